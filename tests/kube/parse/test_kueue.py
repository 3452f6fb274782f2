"""Kueue's queues, flavors, cohorts, checks and classes: values by hand, both versions, and nonsense."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucost.cluster.objects.jobs import PriorityClass
from gpucost.cluster.objects.kueue import (
    AdmissionCheck,
    ClusterQueue,
    ClusterQueuePreemption,
    Cohort,
    FlavorFungibility,
    FlavorQuota,
    FlavorResource,
    FlavorUsage,
    LocalQueue,
    ResourceFlavor,
    ResourceGroup,
    Topology,
)
from gpucost.cluster.objects.metadata import ObjectMeta, StatusCondition
from gpucost.cluster.objects.nodes import Taint
from gpucost.cluster.objects.pods import SelectorRequirement, Toleration
from gpucost.kube.parse import kueue as parse
from gpucost.kube.parse.events import Unreadable
from tests.support import crds
from tests.support.objects import condition
from tests.support.objects import kueue as make
from tests.support.objects.broken import broken, put, without
from tests.support.objects.kueue_v1beta1 import as_v1beta1

CREATED_MS = 1_790_812_800_000
GI = 1024**3
A_CPU, A_MEMORY, A_GPU = (FlavorResource("a", name) for name in ("cpu", "memory", "nvidia.com/gpu"))
ACTIVE = StatusCondition(True, "Ready", "Can admit new workloads", CREATED_MS)


def in_both(parser: Callable[[Any], Any], found: dict[str, Any]) -> Any:
    """Parsed, the same from both versions, each valid for its CRD."""
    crds.validate(found)
    read = parser(found)
    for old_words in (True, False):
        old = as_v1beta1(found, old_words=old_words)
        crds.validate(old)
        assert parser(old) == read
    return read


def meta(name: str, namespace: str = "") -> ObjectMeta:
    return ObjectMeta(f"uid-{namespace}-{name}", namespace, name, CREATED_MS, {}, {})


def full_cluster_queue() -> dict[str, Any]:
    return make.cluster_queue(
        "research",
        cohort="all",
        groups=[
            {
                "a": {"cpu": ("7500m", "500m", 2), "memory": ("64Gi", None, "1Gi")},
                "b": {"cpu": 0, "memory": 0},
            },
            {"a": {"nvidia.com/gpu": (8, 4)}},
        ],
        strategy="StrictFIFO",
        preemption={
            "withinClusterQueue": "LowerPriority",
            "reclaimWithinCohort": "Any",
            "borrowWithinCohort": {"policy": "LowerPriority", "maxPriorityThreshold": -5},
        },
        fungibility={
            "whenCanBorrow": "TryNextFlavor",
            "whenCanPreempt": "MayStopSearch",
            "preference": "PreemptionOverBorrowing",
        },
        namespace_selector={
            "matchLabels": {"team": "nlp"},
            "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["test", "dev"]}],
        },
        stop_policy="Hold",
        checks={"provision": ["a"], "multi": []},
        weight="1.5",
        admission_mode="UsageBasedAdmissionFairSharing",
        reserved={"a": {"cpu": ("8", "500m"), "nvidia.com/gpu": (10, 2)}},
        used={"a": {"cpu": ("1", 0)}},
        pending=3,
        reserving=2,
        admitted=1,
        weighted_share=125,
    )


def test_cluster_queue() -> None:
    assert in_both(parse.cluster_queue, full_cluster_queue()) == ClusterQueue(
        meta("research"),
        cohort="all",
        strategy="StrictFIFO",
        groups=(
            ResourceGroup(("cpu", "memory"), ("a", "b")),
            ResourceGroup(("nvidia.com/gpu",), ("a",)),
        ),
        quotas={
            A_CPU: FlavorQuota(7500, 500, 2000),
            A_MEMORY: FlavorQuota(64 * GI, None, GI),
            FlavorResource("b", "cpu"): FlavorQuota(0),
            FlavorResource("b", "memory"): FlavorQuota(0),
            A_GPU: FlavorQuota(8, 4),
        },
        preemption=ClusterQueuePreemption("LowerPriority", "Any", "LowerPriority", -5),
        fungibility=FlavorFungibility("TryNextFlavor", "MayStopSearch", "PreemptionOverBorrowing"),
        namespace_selector=(
            SelectorRequirement("team", "In", ("nlp",)),
            SelectorRequirement("tier", "NotIn", ("test", "dev")),
        ),
        stop_policy="Hold",
        checks={"provision": ("a",), "multi": ()},
        weight=Fraction(3, 2),
        admission_mode="UsageBasedAdmissionFairSharing",
        conditions={"Active": ACTIVE},
        reserved={A_CPU: FlavorUsage(8000, 500), A_GPU: FlavorUsage(10, 2)},
        used={A_CPU: FlavorUsage(1000)},
        pending=3,
        reserving=2,
        admitted=1,
        weighted_share=125,
    )


def test_cluster_queue_that_says_nothing_has_the_defaults() -> None:
    """As the API server fills them in, and as where it does not (a dump of objects as they were applied)."""
    bare = {"apiVersion": make.VERSION, "kind": "ClusterQueue", "metadata": {"name": "q", "uid": "u"}}
    crds.validate(bare)
    read = parse.cluster_queue(bare)
    assert read == ClusterQueue(ObjectMeta("u", "", "q", 0, {}, {}))
    assert read.namespace_selector is None
    assert read.fungibility == FlavorFungibility("MayStopSearch", "TryNextFlavor")
    assert (read.weight, read.pending, read.weighted_share) == (1, None, None)
    filled = bare | {
        "spec": {
            "flavorFungibility": {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "TryNextFlavor"},
            "preemption": {
                "borrowWithinCohort": {"policy": "Never"},
                "reclaimWithinCohort": "Never",
                "withinClusterQueue": "Never",
            },
            "queueingStrategy": "BestEffortFIFO",
            "stopPolicy": "None",
        }
    }
    crds.validate(filled)
    assert parse.cluster_queue(filled) == read


def test_cluster_queue_written_by_hand_in_both_versions() -> None:
    """Apart from the converter."""
    quota = [{"name": "cpu", "nominalQuota": "4"}]
    groups = [{"coveredResources": ["cpu"], "flavors": [{"name": "a", "resources": quota}]}]
    common = {"resourceGroups": groups, "namespaceSelector": {}}
    new = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": "q", "uid": "u"},
        "spec": {
            **common,
            "cohortName": "c",
            "admissionChecksStrategy": {"admissionChecks": [{"name": "x"}, {"name": "y"}]},
            "flavorFungibility": {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "MayStopSearch"},
        },
    }
    old = new | {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "spec": {
            **common,
            "cohort": "c",
            "admissionChecks": ["x", "y"],
            "flavorFungibility": {"whenCanBorrow": "Borrow", "whenCanPreempt": "Preempt"},
        },
    }
    crds.validate(new)
    crds.validate(old)
    read = parse.cluster_queue(old)
    assert read == parse.cluster_queue(new)
    assert (read.cohort, read.checks) == ("c", {"x": (), "y": ()})
    assert read.quotas == {A_CPU: FlavorQuota(4000)}
    assert read.namespace_selector == ()
    assert read.fungibility == FlavorFungibility("MayStopSearch", "MayStopSearch")


def test_local_queue() -> None:
    found = make.local_queue(
        "train",
        "research",
        "nlp",
        stop_policy="HoldAndDrain",
        weight=2,
        conditions=[condition("Active", False, "ClusterQueueIsInactive", "no")],
        reserved={"a": {"nvidia.com/gpu": 6}},
        used={"a": {"nvidia.com/gpu": 4, "cpu": "250m"}},
        pending=2,
        reserving=1,
        admitted=1,
        consumed={"cpu": "1234u", "nvidia.com/gpu": "7500m"},
    )
    assert in_both(parse.local_queue, found) == LocalQueue(
        meta("train", "nlp"),
        "research",
        stop_policy="HoldAndDrain",
        weight=Fraction(2),
        conditions={"Active": StatusCondition(False, "ClusterQueueIsInactive", "no", CREATED_MS)},
        reserved={A_GPU: FlavorUsage(6)},
        used={A_GPU: FlavorUsage(4), A_CPU: FlavorUsage(250)},
        pending=2,
        reserving=1,
        admitted=1,
        fair_usage={"cpu": 2, "nvidia.com/gpu": 7500},
        fair_usage_ms=CREATED_MS,
    )


def test_cohort() -> None:
    found = make.cohort(
        "all", parent="root", quotas={"a": {"cpu": (16, None, 0)}}, weight=0, weighted_share=2**63 - 1
    )
    assert in_both(parse.cohort, found) == Cohort(
        meta("all"),
        "root",
        (ResourceGroup(("cpu",), ("a",)),),
        {A_CPU: FlavorQuota(16_000, None, 0)},
        Fraction(0),
        2**63 - 1,
    )


def test_resource_flavor() -> None:
    found = make.resource_flavor(
        "a",
        node_labels={"nvidia.com/gpu.product": "H100"},
        taints=[("spot", "", "NoSchedule")],
        tolerations=[
            {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "k", "value": "v"},
        ],
        topology="racks",
    )
    assert in_both(parse.resource_flavor, found) == ResourceFlavor(
        meta("a"),
        {"nvidia.com/gpu.product": "H100"},
        (Taint("spot", "", "NoSchedule"),),
        (Toleration("gpu", True, "", "NoSchedule"), Toleration("k", False, "v", "")),
        "racks",
    )


def test_topology_check_and_class() -> None:
    levels = ["block", "rack", "kubernetes.io/hostname"]
    assert in_both(parse.topology, make.topology("racks", levels)) == Topology(meta("racks"), tuple(levels))
    assert in_both(parse.admission_check, make.admission_check("x", "example.com/check")) == AdmissionCheck(
        meta("x"), "example.com/check", ACTIVE
    )
    unseen = make.admission_check("x", conditions=())
    assert in_both(parse.admission_check, unseen).active is None
    high = make.workload_priority_class("high", -7)
    assert in_both(parse.workload_priority_class, high) == PriorityClass(meta("high"), -7, of_kueue=True)


names = st.sampled_from(["a", "b", "c", "d"])
quantities = st.integers(0, 10**12) | st.sampled_from(["0", "1500m", "3Gi", "2.5", "1e3", "7u", "0.1"])
limits = st.tuples(quantities, st.none() | quantities, st.none() | quantities)
quotas = st.dictionaries(
    names,
    st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), limits, min_size=1),
    max_size=3,
)
uses = st.dictionaries(
    names, st.dictionaries(st.sampled_from(["cpu", "nvidia.com/gpu"]), st.tuples(quantities, quantities))
)
totals = st.dictionaries(names, st.dictionaries(st.sampled_from(["cpu", "memory"]), quantities))
counts = st.none() | st.integers(0, 2**31 - 1)
searches = st.sampled_from(["MayStopSearch", "TryNextFlavor"])
cluster_queues = st.builds(
    make.cluster_queue,
    names,
    cohort=st.just("") | names,
    quotas=quotas,
    fungibility=st.none() | st.fixed_dictionaries({"whenCanBorrow": searches, "whenCanPreempt": searches}),
    namespace_selector=st.none() | st.just({}) | st.just({"matchLabels": {"team": "x"}}),
    checks=st.dictionaries(names, st.lists(names, unique=True, max_size=2), max_size=3),
    weight=st.none() | quantities,
    reserved=uses,
    used=uses,
    pending=counts,
    reserving=counts,
    admitted=counts,
    weighted_share=st.none() | st.integers(0, 2**63 - 1),
)
local_queues = st.builds(
    make.local_queue,
    names,
    names,
    weight=st.none() | quantities,
    reserved=totals,
    used=totals,
    pending=counts,
    consumed=st.none() | st.dictionaries(st.sampled_from(["cpu", "memory"]), quantities),
)
cohorts = st.builds(make.cohort, names, parent=st.just("") | names, quotas=quotas, weight=quantities)


@settings(max_examples=60, deadline=None)
@given(cluster_queues, local_queues, cohorts)
def test_both_versions_give_the_same(
    cluster_queue: dict[str, Any], local_queue: dict[str, Any], cohort: dict[str, Any]
) -> None:
    assert not in_both(parse.cluster_queue, cluster_queue).flaws
    assert not in_both(parse.local_queue, local_queue).flaws
    assert not in_both(parse.cohort, cohort).flaws


NOMINAL = ("spec", "resourceGroups", 0, "flavors", 0, "resources", 0, "nominalQuota")
WAY = "spec.resourceGroups[0].flavors[0].resources[0]"


@pytest.mark.parametrize("value", ["eight", "", "-1", None, True, [], {}, "1e", "0x10", "٣"])
def test_a_quota_that_makes_no_sense_is_left_out(value: object) -> None:
    """It is not 0, and the others are kept."""
    read = parse.cluster_queue(put(full_cluster_queue(), NOMINAL, value))
    assert A_CPU not in read.quotas
    assert read.quotas[A_MEMORY] == FlavorQuota(64 * GI, None, GI)
    assert [flaw.field for flaw in read.flaws] == [f"{WAY}.nominalQuota.cpu"]


@pytest.mark.parametrize(
    ("way", "value", "flaw", "field", "expected"),
    [
        ((*NOMINAL[:-1], "borrowingLimit"), "x", f"{WAY}.borrowingLimit.cpu", "weight", Fraction(3, 2)),
        (("spec", "fairSharing", "weight"), "heavy", "spec.fairSharing.weight", "weight", 1),
        (("spec", "fairSharing", "weight"), True, "spec.fairSharing.weight", "weight", 1),
        (("spec", "fairSharing", "weight"), "-1", "spec.fairSharing.weight", "weight", 1),
        (("spec", "cohortName"), 5, "spec.cohortName", "cohort", ""),
        (("spec", "queueingStrategy"), {}, "spec.queueingStrategy", "strategy", "BestEffortFIFO"),
        (("status", "pendingWorkloads"), -1, "status.pendingWorkloads", "pending", None),
        (("status", "pendingWorkloads"), 10**30, "status.pendingWorkloads", "pending", None),
        (("status", "flavorsUsage"), "none", "status.flavorsUsage", "used", {}),
        (
            ("status", "flavorsUsage", 0, "resources", 0, "total"),
            "NaN",
            "status.flavorsUsage[0].resources[0].total.cpu",
            "used",
            {},
        ),
        (
            ("spec", "namespaceSelector"),
            {"matchExpressions": [{"key": "k", "operator": "Near"}]},
            "spec.namespaceSelector.matchExpressions[0].operator",
            "namespace_selector",
            None,
        ),
        (("spec", "namespaceSelector"), 5, "spec.namespaceSelector", "namespace_selector", None),
        (
            ("spec", "namespaceSelector", "matchLabels"),
            5,
            "spec.namespaceSelector.matchLabels",
            "namespace_selector",
            None,
        ),
        (("spec", "resourceGroups"), "x", "spec.resourceGroups", "quotas", {}),
        (
            ("spec", "resourceGroups", 0, "flavors"),
            1,
            "spec.resourceGroups[0].flavors",
            "strategy",
            "StrictFIFO",
        ),
    ],
)
def test_a_field_that_makes_no_sense_counts_as_not_given(
    way: tuple[str | int, ...], value: object, flaw: str, field: str, expected: object
) -> None:
    read = parse.cluster_queue(put(full_cluster_queue(), way, value))
    assert [each.field for each in read.flaws] == [flaw]
    assert getattr(read, field) == expected


def test_a_class_without_a_value_is_flawed() -> None:
    read = parse.workload_priority_class(without(make.workload_priority_class("high", 5), ("value",)))
    assert (read.value, [flaw.field for flaw in read.flaws]) == (0, ["value"])


FULL = {
    parse.cluster_queue: full_cluster_queue(),
    parse.local_queue: make.local_queue("l", "q", consumed={"cpu": 1}, used={"a": {"cpu": 1}}, weight=1),
    parse.cohort: make.cohort("c", parent="r", quotas={"a": {"cpu": (1, 2, 3)}}, weight=1, weighted_share=1),
    parse.resource_flavor: make.resource_flavor(
        "a",
        node_labels={"k": "v"},
        taints=[("k", "v", "NoSchedule")],
        tolerations=[{"key": "k"}],
        topology="t",
    ),
    parse.topology: make.topology("t", ["rack"]),
    parse.admission_check: make.admission_check("x"),
    parse.workload_priority_class: make.workload_priority_class("high", 5),
}


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(list(FULL)), st.data())
def test_nothing_but_identity_stops_a_parser(parser: Callable[[Any], Any], data: st.DataObject) -> None:
    found = data.draw(broken(FULL[parser]))
    with suppress(Unreadable):
        read = parser(found)
        assert read == parser(found)
        assert len(read.flaws) <= 20
        hash(read.flaws)


@pytest.mark.parametrize("parser", list(FULL))
@pytest.mark.parametrize(
    "metadata", [None, {}, [], "x", {"name": "n"}, {"uid": "u"}, {"name": "n", "uid": 5}]
)
def test_without_identity_it_is_unreadable(parser: Callable[[Any], Any], metadata: object) -> None:
    with pytest.raises(Unreadable) as error:
        parser(FULL[parser] | {"metadata": metadata})
    assert error.value.reason == "bad_object"
