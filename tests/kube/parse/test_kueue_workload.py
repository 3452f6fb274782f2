"""Kueue's Workloads: values by hand, both versions, topology assignments, and nonsense."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucost.cluster.objects.kueue import (
    AdmissionCheckState,
    DomainCount,
    PodSetAssignment,
    Workload,
    WorkloadEviction,
    WorkloadState,
)
from gpucost.cluster.objects.metadata import ObjectMeta, StatusCondition
from gpucost.cluster.objects.pods import PodSet, PodTemplate
from gpucost.kube.parse.events import Unreadable
from gpucost.kube.parse.kueue import workload
from tests.support import crds
from tests.support.objects import condition
from tests.support.objects import kueue as make
from tests.support.objects.broken import broken, put, without
from tests.support.objects.kueue_v1beta1 import as_v1beta1

CREATED_MS = 1_790_812_800_000
GPU = "nvidia.com/gpu"
RACKS = [(("b1", "r1"), 4), (("b1", "r2"), 2), (("b2", "r1"), 1)]


def in_both(found: dict[str, Any]) -> Workload:
    """Parsed, the same from both versions, each valid for its CRD."""
    old = as_v1beta1(found)
    crds.validate(found)
    crds.validate(old)
    read = workload(found)
    assert workload(old) == read
    return read


def full_workload() -> dict[str, Any]:
    conditions = [
        condition("QuotaReserved", reason="QuotaReserved", message="in q", since=CREATED_MS + 60_000),
        condition("Admitted", reason="Admitted", message="by q", since=CREATED_MS + 61_000),
        condition("PodsReady", False, "WaitForStart", "not yet", since=CREATED_MS + 61_500),
    ]
    return make.workload(
        "train",
        "nlp",
        queue="gpus",
        pod_sets=[
            make.pod_set("driver", 1, {"cpu": "500m"}),
            make.pod_set(
                "workers",
                8,
                {GPU: 2, "memory": "1Gi"},
                min_count=4,
                topology={"required": "rack", "podSetSliceRequiredTopology": "host", "podSetSliceSize": 2},
                pod={"nodeSelector": {"zone": "z"}},
            ),
        ],
        priority=100,
        priority_class="high",
        max_execution_s=3600,
        cluster_queue="q",
        assignments=[
            make.assignment("driver", {"cpu": "cpus"}, {"cpu": "500m"}),
            make.assignment(
                "workers",
                {GPU: "h100", "memory": "h100"},
                {GPU: "14", "memory": "7Gi"},
                7,
                topology=make.topology_assignment(["block", "rack"], RACKS),
            ),
        ],
        conditions=conditions,
        requeue=(3, "2026-10-01T00:05:00.250Z"),
        reclaimable={"workers": 2},
        checks=[make.check_state("provision", "Ready", "capacity is there")],
        asked={"driver": {"cpu": "500m"}, "workers": {GPU: 16}},
        evictions=[("Preempted", "InCohortReclamation", 2), ("PodsReadyTimeout", "", 1)],
        past_execution_s=720,
        unhealthy_nodes=["node-1"],
        on_cluster="west",
    )


def test_workload() -> None:
    read = in_both(full_workload())
    assert read == Workload(
        ObjectMeta("uid-nlp-train", "nlp", "train", CREATED_MS, {}, {}),
        (
            PodSet("driver", 1, PodTemplate({"cpu": 500})),
            PodSet(
                "workers",
                8,
                PodTemplate({GPU: 2, "memory": 1024**3}, node_selector={"zone": "z"}),
                4,
                {"required": "rack", "slice": "host", "slice_size": "2"},
            ),
        ),
        queue="gpus",
        priority=100,
        priority_class="high",
        priority_class_of_kueue=True,
        max_execution_s=3600,
        cluster_queue="q",
        assignments=(
            PodSetAssignment("driver", {"cpu": "cpus"}, {"cpu": 500}, 1),
            PodSetAssignment(
                "workers",
                {GPU: "h100", "memory": "h100"},
                {GPU: 14, "memory": 7 * 1024**3},
                7,
                ("block", "rack"),
                (DomainCount(("b1", "r1"), 4), DomainCount(("b1", "r2"), 2), DomainCount(("b2", "r1"), 1)),
            ),
        ),
        conditions={
            "QuotaReserved": StatusCondition(True, "QuotaReserved", "in q", CREATED_MS + 60_000),
            "Admitted": StatusCondition(True, "Admitted", "by q", CREATED_MS + 61_000),
            "PodsReady": StatusCondition(False, "WaitForStart", "not yet", CREATED_MS + 61_500),
        },
        requeue_count=3,
        requeue_at_ms=CREATED_MS + 300_250,
        reclaimable={"workers": 2},
        checks=(AdmissionCheckState("provision", "Ready", "capacity is there"),),
        asked={"driver": {"cpu": 500}, "workers": {GPU: 16}},
        evictions=(
            WorkloadEviction("Preempted", "InCohortReclamation", 2),
            WorkloadEviction("PodsReadyTimeout", "", 1),
        ),
        past_execution_s=720,
        unhealthy_nodes=("node-1",),
        on_cluster="west",
    )
    assert read.state is WorkloadState.ADMITTED


def test_workload_that_waits() -> None:
    read = in_both(make.workload("w", queue="gpus", priority=None))
    template = PodTemplate({GPU: 1})
    meta = ObjectMeta("uid-default-w", "default", "w", CREATED_MS, {}, {})
    assert read == Workload(meta, (PodSet("main", 1, template),), queue="gpus")
    assert (read.state, read.max_execution_s) == (WorkloadState.PENDING, None)
    assert in_both(make.workload("w", active=False)).state is WorkloadState.INACTIVE


def test_defaults_that_a_server_fills_in() -> None:
    """A pod set is ``main`` and one pod; an assignment without a count is of the whole pod set."""
    found = make.workload("w", cluster_queue="q", assignments=[make.assignment(count=None)])
    found["spec"]["podSets"][0]["count"] = 5
    assert in_both(found).assignments[0].count == 5
    bare = without(without(found, ("spec", "podSets", 0, "name")), ("spec", "podSets", 0, "count"))
    crds.validate(bare)
    assert (workload(bare).pod_sets[0].name, workload(bare).pod_sets[0].count) == ("main", 1)


def test_domains_that_are_chosen_later() -> None:
    found = make.workload("w", cluster_queue="q", assignments=[make.assignment()])
    given = found["status"]["admission"]["podSetAssignments"][0]
    for state, waits in (("Pending", True), ("Ready", False)):
        given["delayedTopologyRequest"] = state
        assert in_both(found).assignments[0].awaits_topology is waits
    given["delayedTopologyRequest"] = "Pending"
    given["topologyAssignment"] = make.topology_assignment(["rack"], [(("a",), 1)])
    assert not in_both(found).assignments[0].awaits_topology


def test_priority_class_of_each_kind() -> None:
    of_pods = in_both(make.workload("w", priority=5, priority_class="system", of_kueue=False))
    assert (of_pods.priority_class, of_pods.priority_class_of_kueue) == ("system", False)
    old = as_v1beta1(make.workload("w", priority=5, priority_class="high"))
    old["spec"]["priorityClassSource"] = ""
    crds.validate(old)
    assert workload(old).priority_class == ""


def test_topology_requests() -> None:
    free = make.pod_set(topology={"unconstrained": True, "podSetGroupName": "g"})
    preferred = make.pod_set("p", topology={"preferred": "rack", "unconstrained": False})
    read = in_both(make.workload("w", pod_sets=[free, preferred]))
    assert [dict(each.topology) for each in read.pod_sets] == [
        {"unconstrained": "true", "group": "g"},
        {"preferred": "rack"},
    ]


def assigned(topology: dict[str, Any]) -> dict[str, Any]:
    return make.workload(
        "w", cluster_queue="q", assignments=[make.assignment(usage={GPU: 1}, topology=topology)]
    )


def a_slice(domains: object, values: object, counts: object) -> dict[str, Any]:
    return {"domainCount": domains, "valuesPerLevel": values, "podCounts": counts}


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        pytest.param(
            [a_slice(2, [{"individual": {"roots": ["n2", "n1"]}}], {"individual": [3, 4]})],
            [("n1", 4), ("n2", 3)],
            id="sorted",
        ),
        pytest.param(
            [
                a_slice(2, [{"individual": {"prefix": "rack-", "roots": ["1", "2"]}}], {"universal": 4}),
                a_slice(1, [{"universal": "lone"}], {"universal": 1}),
            ],
            [("lone", 1), ("rack-1", 4), ("rack-2", 4)],
            id="prefix, then one alone",
        ),
        pytest.param(
            [
                a_slice(
                    2,
                    [{"individual": {"prefix": "a-", "suffix": ".net", "roots": ["1", "2"]}}],
                    {"universal": 1},
                )
            ],
            [("a-1.net", 1), ("a-2.net", 1)],
            id="prefix and suffix",
        ),
        pytest.param([], [], id="none"),
    ],
)
def test_slices(slices: list[dict[str, Any]], expected: list[tuple[str, int]]) -> None:
    read = in_both(assigned({"levels": ["host"], "slices": slices}))
    assert read.assignments[0].topology == tuple(DomainCount((value,), pods) for value, pods in expected)
    assert not read.flaws


domains = st.dictionaries(
    st.tuples(st.sampled_from(["b1", "b2"]), st.from_regex(r"(node-)?[a-c]{1,3}(-gpu)?", fullmatch=True)),
    st.integers(1, 5),
    min_size=1,
    max_size=12,
)


@settings(max_examples=100, deadline=None)
@given(domains)
def test_domains_survive_either_form(found: dict[tuple[str, str], int]) -> None:
    read = in_both(assigned(make.topology_assignment(["block", "host"], list(found.items()))))
    assert read.assignments[0].topology == tuple(DomainCount(*each) for each in sorted(found.items()))


ONE = [{"individual": {"roots": ["n1", "n2"]}}]


@pytest.mark.parametrize(
    ("topology", "flaw"),
    [
        (
            {"levels": ["h"], "slices": [a_slice(10**9, [{"universal": "n"}], {"universal": 1})]},
            "domainCount",
        ),
        ({"levels": ["h"], "slices": [a_slice(10**9, ONE, {"universal": 1})]}, "domainCount"),
        ({"levels": ["h"], "slices": [a_slice(1, ONE, {"universal": 1})]}, "domainCount"),
        ({"levels": ["h"], "slices": [a_slice(0, ONE, {"universal": 1})]}, "domainCount"),
        ({"levels": ["h"], "slices": [a_slice(2, ONE, {"individual": [1]})]}, "domainCount"),
        ({"levels": ["h"], "slices": [a_slice(2, ONE, {"individual": [1, 0]})]}, "podCounts.individual"),
        ({"levels": ["h"], "slices": [a_slice(2, ONE, {"individual": [1, True]})]}, "podCounts.individual"),
        ({"levels": ["h"], "slices": [a_slice(2, ONE, {"universal": -1})]}, "podCounts.universal"),
        ({"levels": ["h"], "slices": [a_slice(1, [{}], {"universal": 1})]}, "valuesPerLevel[0].universal"),
        ({"levels": ["b", "h"], "slices": [a_slice(2, ONE, {"universal": 1})]}, "valuesPerLevel"),
        (
            {
                "levels": ["h"],
                "slices": [
                    a_slice(
                        2, [{"individual": {"prefix": "p" * 10**6, "roots": ["1", "2"]}}], {"universal": 1}
                    )
                ],
            },
            "valuesPerLevel[0].individual.prefix",
        ),
        ({"levels": ["l"] * 17, "slices": []}, ".levels"),
        ({"levels": [], "domains": [{"values": [], "count": 1}]}, ".levels"),
        ({"levels": ["h"], "domains": [{"values": ["a", "b"], "count": 1}]}, "domains[0].values"),
        ({"levels": ["h"], "domains": [{"values": ["a"], "count": 0}]}, "domains[0].count"),
    ],
)
def test_an_assignment_that_makes_no_sense_is_left_out(topology: dict[str, Any], flaw: str) -> None:
    """A part of it would mislead; what the pod set uses is kept."""
    read = workload(assigned(topology))
    assert (read.assignments[0].topology, read.assignments[0].topology_levels) == ((), ())
    assert read.assignments[0].usage == {GPU: 1}
    assert any(each.field.endswith(flaw) for each in read.flaws)


@pytest.mark.parametrize(
    ("way", "value", "field", "attribute", "expected"),
    [
        (("spec", "priority"), "high", "spec.priority", "priority", 0),
        (("spec", "active"), "yes", "spec.active", "is_active", True),
        (("spec", "maximumExecutionTimeSeconds"), -1, None, "max_execution_s", None),
        (("status", "requeueState", "requeueAt"), "soon", None, "requeue_at_ms", None),
        (("status", "admission", "clusterQueue"), 7, None, "cluster_queue", ""),
        (("status", "reclaimablePods", 0, "count"), -2, None, "reclaimable", {"workers": 0}),
        (("status", "conditions"), {}, "status.conditions", "conditions", {}),
        (("status", "schedulingStats"), [], "status.schedulingStats", "evictions", ()),
        (
            ("status", "resourceRequests", 0, "resources", "cpu"),
            "lots",
            "status.resourceRequests[0].resources.cpu",
            "asked",
            {"driver": {}, "workers": {GPU: 16}},
        ),
    ],
)
def test_a_field_that_makes_no_sense_counts_as_not_given(
    way: tuple[str | int, ...], value: object, field: str | None, attribute: str, expected: object
) -> None:
    read = workload(put(full_workload(), way, value))
    named = ".".join(map(str, way)).replace(".0.", "[0].")
    assert [flaw.field for flaw in read.flaws] == [field or named]
    assert getattr(read, attribute) == expected


counts = st.dictionaries(st.sampled_from(["main", "a", "b"]), st.integers(0, 1000), max_size=3)
amounts = st.dictionaries(
    st.sampled_from(["cpu", "memory", GPU]), st.integers(0, 10**9) | st.sampled_from(["1500m", "2Gi", "0.5"])
)
workloads = st.builds(
    make.workload,
    st.just("w"),
    pod_sets=st.lists(
        st.builds(
            make.pod_set, st.sampled_from(["main", "a"]), st.integers(0, 100), amounts, min_count=st.none()
        ),
        min_size=1,
        max_size=3,
        unique_by=lambda each: each["name"],
    ),
    priority=st.integers(-(2**31), 2**31 - 1),
    priority_class=st.sampled_from(["", "high"]),
    of_kueue=st.booleans(),
    active=st.booleans(),
    cluster_queue=st.sampled_from(["", "q"]),
    assignments=st.lists(
        st.builds(make.assignment, st.sampled_from(["main", "a"]), usage=amounts, count=st.integers(0, 9)),
        max_size=2,
    ),
    reclaimable=counts,
    asked=st.dictionaries(st.sampled_from(["main", "a"]), amounts),
    past_execution_s=st.none() | st.integers(0, 10**6),
    evictions=st.lists(st.tuples(st.just("Preempted"), st.sampled_from(["", "x"]), st.integers(0, 9))),
)


@settings(max_examples=60, deadline=None)
@given(workloads)
def test_both_versions_give_the_same(found: dict[str, Any]) -> None:
    assert not in_both(found).flaws


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_nothing_but_identity_stops_the_parser(data: st.DataObject) -> None:
    whole = full_workload()
    found = data.draw(broken(data.draw(st.sampled_from([whole, as_v1beta1(whole)]))))
    with suppress(Unreadable):
        read = workload(found)
        assert read == workload(found)
        assert len(read.flaws) <= 20


@pytest.mark.parametrize("metadata", [None, {}, [], {"name": "n"}, {"uid": "u"}])
def test_without_identity_it_is_unreadable(metadata: object) -> None:
    with pytest.raises(Unreadable):
        workload(full_workload() | {"metadata": metadata})


@pytest.mark.parametrize(
    ("way", "value"),
    [
        (("spec", "queuename"), "gpus"),
        (("spec", "podSets", 0, "template", "spec", "nodeSelecter"), {}),
        (("spec", "podSets", 0, "template", "spec", "containers", 0, "resources", "request"), {}),
        (("status", "admission", "podSetAssignments", 0, "resourceUsage", "cpu"), "half"),
        (("status", "conditions", 0, "status"), True),
        (("status", "conditions", 0, "lastTransitionTime"), "today"),
        (("spec", "priorityClassName"), "high"),
        (("status", "accumulatedPastExexcutionTimeSeconds"), 1),
    ],
)
def test_fixtures_are_held_to_the_definitions(way: tuple[str | int, ...], value: object) -> None:
    """A typo, or a field of the other version, is found."""
    with pytest.raises(AssertionError):
        crds.validate(put(full_workload(), way, value))
