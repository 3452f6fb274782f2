"""Files of recorded cases: every field is read, and what makes no sense is refused by its path."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from typing import Any

import pytest

from gpucost.advisor.verify import case_files as reading
from gpucost.advisor.verify.case_files import read_cases
from gpucost.advisor.verify.case_schema import NOW_MS, RecordingOrigin, SchedulerCase
from gpucost.cluster.objects.kueue import FlavorQuota, FlavorResource, WorkloadState
from gpucost.cluster.objects.metadata import is_true
from gpucost.cluster.objects.nodes import Taint
from gpucost.cluster.objects.pods import SelectorRequirement, Toleration
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.domain.errors import InputError
from tests.advisor.recorded import (
    CASE,
    GPU,
    SEARCH,
    Document,
    changed,
    content,
    holds,
    queue,
    quota,
    read,
    waits,
)

FULL: Document = {
    "id": "full",
    "title": "title",
    "source": "source",
    "teaches": "rules",
    "level": "one-scheduling-cycle",
    "tags": ["tag"],
    "config": {"fairSharing": True, "preemptionStrategies": ["LessThanInitialShare"]},
    "resourceFlavors": [
        {
            "name": "spot",
            "nodeLabels": {"tier": "spot"},
            "nodeTaints": [{"key": "spot", "value": "yes", "effect": "NoSchedule"}],
            "tolerations": [{"key": "spot", "operator": "Exists"}],
        }
    ],
    "cohorts": [
        {"name": "org", "parentName": "all", "resourceGroups": [], "fairSharingWeight": "2"},
    ],
    "clusterQueues": [
        {
            "name": "ml",
            "cohortName": "org",
            "queueingStrategy": "StrictFIFO",
            "resourceGroups": [
                {
                    "coveredResources": ["cpu", GPU],
                    "flavors": [
                        {
                            "name": "spot",
                            "resources": [
                                quota("1500m", "cpu", borrowingLimit="2", lendingLimit="0"),
                                quota("8", borrowingLimit=None, lendingLimit=None),
                            ],
                        }
                    ],
                }
            ],
            "preemption": {
                "withinClusterQueue": "LowerOrNewerEqualPriority",
                "reclaimWithinCohort": "Any",
                "borrowWithinCohort": {"policy": "LowerPriority", "maxPriorityThreshold": -5},
            },
            "flavorFungibility": {
                "whenCanBorrow": "TryNextFlavor",
                "whenCanPreempt": "MayStopSearch",
                "preference": "PreemptionOverBorrowing",
            },
            "fairSharingWeight": "0.5",
            "admitsNamespaces": ["ml"],
        }
    ],
    "workloads": [
        {
            "name": "old",
            "namespace": "ml",
            "clusterQueue": "ml",
            "role": "holding-quota",
            "priority": -7,
            "podSets": [
                {"name": "a", "count": 2, "requestsPerPod": {"cpu": "500m", GPU: "1"}},
                {"name": "b", "count": 1, "requestsPerPod": {}},
            ],
            "reservation": {
                "podSets": [
                    {"name": "a", "count": 1, "flavors": {"cpu": "spot", GPU: "spot", "pods": "spot"}},
                    {"name": "b", "count": 1, "flavors": {}},
                ],
                "reservedAtSecondsFromNow": -30,
            },
            "createdAtSecondsFromNow": -60.5,
            "alreadyEvicted": True,
            "evictedAtSecondsFromNow": -10,
        },
        {
            "name": "new",
            "namespace": "ml",
            "clusterQueue": "ml",
            "role": "pending",
            "podSets": [
                {
                    "name": "a",
                    "count": 4,
                    "minCount": 2,
                    "requestsPerPod": {GPU: "1"},
                    "nodeSelector": {"tier": "spot"},
                    "tolerations": [
                        {"key": "spot", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}
                    ],
                    "requiredNodeAffinity": [{"key": "zone", "operator": "NotIn", "values": ["z"]}],
                }
            ],
        },
    ],
    "expected": {"ml/new": {"outcome": "pending"}, "ml/old": None},
    "processingOrder": [["ml/new"]],
}


def only(document: Document) -> SchedulerCase:
    (case,) = read(document)
    return case


def test_queues_cohorts_and_flavors_are_as_they_were_written() -> None:
    state = only(FULL).state
    ml, org, spot = state.cluster_queues["ml"], state.cohorts["org"], state.flavors["spot"]
    assert (ml.cohort, ml.strategy, ml.weight) == ("org", "StrictFIFO", Fraction(1, 2))
    assert ml.groups[0].resources == ("cpu", GPU)
    assert ml.groups[0].flavors == ("spot",)
    assert ml.quotas[FlavorResource("spot", "cpu")] == FlavorQuota(1500, 2000, 0)
    assert ml.quotas[FlavorResource("spot", GPU)] == FlavorQuota(8)
    assert ml.preemption.within_cluster_queue == "LowerOrNewerEqualPriority"
    assert ml.preemption.reclaim_within_cohort == "Any"
    assert (ml.preemption.borrow_within_cohort, ml.preemption.max_priority_threshold) == ("LowerPriority", -5)
    assert ml.fungibility.when_can_borrow == "TryNextFlavor"
    assert ml.fungibility.when_can_preempt == "MayStopSearch"
    assert ml.fungibility.preference == "PreemptionOverBorrowing"
    assert ml.namespace_selector == (SelectorRequirement("kubernetes.io/metadata.name", "In", ("ml",)),)
    assert state.namespace_by_name["ml"].meta.labels["kubernetes.io/metadata.name"] == "ml"
    assert (org.parent, org.weight) == ("all", Fraction(2))
    assert spot.node_labels == {"tier": "spot"}
    assert spot.taints == (Taint("spot", "yes", "NoSchedule"),)
    assert spot.tolerations == (Toleration("spot", exists=True),)


def test_a_workload_that_holds_quota_holds_what_its_reservation_says() -> None:
    case = only(FULL)
    old = case.state.workloads["old"]
    assert case.keys == {"old": "ml/old", "new": "ml/new"}
    assert (old.state, old.cluster_queue, old.priority) == (WorkloadState.EVICTING, "ml", -7)
    assert old.reserved_ms == NOW_MS - 30_000
    assert old.meta.created_ms == NOW_MS - 60_500
    assert old.conditions["Evicted"].since_ms == NOW_MS - 10_000
    assert [each.count for each in old.assignments] == [1, 1]
    assert old.assignments[0].usage == {"cpu": 500, GPU: 1, "pods": 1}
    assert old.assignments[1].usage == {}


def test_a_pending_workload_is_in_a_local_queue_that_leads_to_its_cluster_queue() -> None:
    case = only(FULL)
    new = case.state.workloads["new"]
    assert new.state is WorkloadState.PENDING
    assert new.cluster_queue == ""
    assert case.state.local_queue_by_name["ml", new.queue].cluster_queue == "ml"
    (pods,) = new.pod_sets
    assert (pods.count, pods.min_count) == (4, 2)
    assert pods.template.node_selector == {"tier": "spot"}
    assert pods.template.tolerations == (Toleration("spot", False, "yes", "NoSchedule"),)
    assert pods.template.affinity == ((SelectorRequirement("zone", "NotIn", ("z",)),),)
    assert new.meta.created_ms < case.state.workloads["old"].meta.created_ms, "without a time it is older"


def test_the_rest_of_a_case() -> None:
    case = only(FULL)
    assert case.config.fair_sharing
    assert case.config.strategies == ("LessThanInitialShare",)
    assert (case.id, case.title, case.source, case.teaches, case.tags) == (
        *("full", "title", "source", "rules"),
        ("tag",),
    )
    assert case.order == frozenset([("ml/new",)])
    assert case.expected["ml/new"].outcome == "pending"
    assert case.expected["ml/old"].outcome is None


def test_a_case_may_leave_out_nearly_everything() -> None:
    case = only({"id": "x", "workloads": None, "clusterQueues": None, "config": None})
    assert not case.config.fair_sharing
    assert case.order is None
    assert not case.expected


def test_uids_are_names_and_ties_of_equal_names_are_broken_by_namespace() -> None:
    twins = [waits("twin", each, 1) for each in ("a", "b")]
    case = only({"id": "x", "clusterQueues": [queue("a"), queue("b")], "workloads": twins})
    assert sorted(case.keys.items()) == [("twin", "a/twin"), ("twin b", "b/twin")]


def test_two_queues_of_one_namespace_have_a_local_queue_each() -> None:
    both = [{**waits(each, each, 1), "namespace": "team"} for each in ("a", "b")]
    state = only({"id": "x", "clusterQueues": [queue("a"), queue("b")], "workloads": both}).state
    led = {
        (each.queue, state.local_queue_by_name["team", each.queue].cluster_queue)
        for each in state.workloads.values()
    }
    assert led == {("a", "a"), ("b", "b")}


def test_flavors_that_nobody_describes_have_no_rules_and_unusable_ones_do_what_they_say() -> None:
    flavors = [{"name": name, "resources": [quota()]} for name in ("plain", "dirty", "gone")]
    how = {"dirty": "tainted", "gone": "missing"}
    case = only({"id": "x", "clusterQueues": [queue("a", *flavors)], "unusableFlavors": how})
    found = case.state.flavor_by_name
    assert set(found) == {"plain", "dirty"}
    assert not found["plain"].taints
    assert found["dirty"].taints
    active = case.state.cluster_queues["a"].active
    assert active is not None
    assert active.status is False
    assert active.reason == "FlavorNotFound"


def test_a_flavor_may_have_no_resources_and_a_queue_no_group() -> None:
    case = only({"id": "x", "clusterQueues": [queue("a", {"name": "h100"}), {"name": "b"}]})
    assert case.state.cluster_queues["a"].quotas == {}
    assert case.state.cluster_queues["b"].groups == ()
    assert set(case.state.flavor_by_name) == {"h100"}


@pytest.mark.parametrize(("names", "selector"), [(None, ()), ([], None)])
def test_a_queue_admits_every_namespace_or_none(names: list[str] | None, selector: object) -> None:
    case = only({"id": "x", "clusterQueues": [queue("a", admitsNamespaces=names)]})
    assert case.state.cluster_queues["a"].namespace_selector == selector


def test_a_queue_that_leads_nowhere_has_no_local_queue_and_an_unknown_one_no_cluster_queue() -> None:
    lost = [waits("lost", None, 1), waits("astray", "nobody", 1)]
    state = only({"id": "x", "clusterQueues": [queue("a")], "workloads": lost}).state
    leads = {each.meta.name: (each.meta.namespace, each.queue) for each in state.workloads.values()}
    assert leads["lost"] not in state.local_queue_by_name
    assert state.local_queue_by_name[leads["astray"]].cluster_queue == "nobody"
    assert "nobody" not in state.cluster_queues


@pytest.mark.parametrize(
    ("given", "flavors"),
    [
        ({"givenFlavor": {GPU: "h100", "memory": "other"}}, {"main": {GPU: "h100"}}),
        ({"givenFlavor": None, "givenFlavorByPodSet": {"main": {GPU: "l4"}}}, {"main": {GPU: "l4"}}),
    ],
)
def test_a_search_starts_from_flavors_that_are_given(given: Document, flavors: Document) -> None:
    case = only({**SEARCH, **given, "givenFlavorFits": ["memory"]})
    assert case.given.flavors == flavors
    assert case.given.fits == {"memory"}
    assert case.searched == "high"


def test_gates_that_only_word_reasons_are_those_of_the_recordings() -> None:
    assert dict(only(CASE).config.gates) == {"UnadmittedWorkloadsObservability": True}


REFUSED: list[tuple[str, Any, str]] = [
    ("id", None, "cases[0].id: missing"),
    ("surprise", 1, "cases[0] (one).surprise: unknown field"),
    (
        "level",
        "two-cycles",
        "cases[0] (one).level: 'two-cycles' is not allowed; allowed: one-scheduling-cycle",
    ),
    ("tags", "all", "cases[0] (one).tags: 'all' is not allowed; allowed: a list"),
    ("config", [1], "cases[0] (one).config: [1] is not allowed; allowed: an object"),
    ("config.fairSharing", "yes", "config.fairSharing: 'yes' is not allowed; allowed: true or false"),
    ("config.preemptionStrategies", ["Best"], "config.preemptionStrategies: ['Best'] is not allowed"),
    ("config.speed", 9, "config.speed: unknown field"),
    ("cohorts.0.name", None, "cohorts[0].name: missing"),
    ("cohorts.0.name", "", "cohorts[0].name: '' is not allowed; allowed: a name"),
    ("cohorts.0.fairSharingWeight", "-1", "cohorts[0].fairSharingWeight: '-1' is not allowed"),
    ("clusterQueues.1.name", "train", "clusterQueues: 'train' is not allowed; allowed: each name once"),
    ("clusterQueues.0.queueingStrategy", "LIFO", "clusterQueues[0].queueingStrategy: 'LIFO'"),
    ("clusterQueues.0.resourceGroups.0.flavors.0.resources.0.nominalQuota", None, "nominalQuota: missing"),
    (
        "clusterQueues.0.resourceGroups.0.flavors.0.resources.0.nominalQuota",
        "8 GPUs",
        "'8 GPUs' is not allowed",
    ),
    ("clusterQueues.0.resourceGroups.0.flavors.0.resources.0.nominalQuota", True, "True is not allowed"),
    (
        "clusterQueues.0.resourceGroups.0.flavors.0.resources",
        [quota(), quota()],
        "each resource of a flavor once",
    ),
    ("clusterQueues.0.resourceGroups.0.quota", 1, "resourceGroups[0].quota: unknown field"),
    ("clusterQueues.0.preemption.withinClusterQueue", "Any", "preemption.withinClusterQueue: 'Any'"),
    ("clusterQueues.0.preemption.reclaimWithinCohort", "All", "preemption.reclaimWithinCohort: 'All'"),
    ("clusterQueues.0.preemption.borrowWithinCohort", {"policy": "Any"}, "borrowWithinCohort.policy: 'Any'"),
    (
        "clusterQueues.0.preemption.borrowWithinCohort",
        {"maxPriorityThreshold": 1.5},
        "maxPriorityThreshold: 1.5",
    ),
    ("clusterQueues.0.flavorFungibility", {"whenCanBorrow": "Borrow"}, "whenCanBorrow: 'Borrow'"),
    ("clusterQueues.0.flavorFungibility", {"preference": "None"}, "flavorFungibility.preference: 'None'"),
    ("clusterQueues.0.admitsNamespaces", "all", "clusterQueues[0].admitsNamespaces: 'all'"),
    (
        "unusableFlavors",
        {"h100": "broken"},
        "unusableFlavors.h100: 'broken' is not allowed; allowed: tainted or",
    ),
    (
        "resourceFlavors",
        [{"name": "a", "nodeTaints": [{"key": "k", "effect": "No"}]}],
        "nodeTaints[0].effect: 'No'",
    ),
    ("workloads.0.role", "running", "workloads[0].role: 'running' is not allowed; allowed: pending, holding"),
    ("workloads.1.name", "high ", "'train/high' is not allowed; allowed: namespace/name of a workload"),
    (
        "workloads.4.name",
        "next",
        "workloads[4].name: 'serve/next' is not allowed; allowed: each workload once",
    ),
    ("workloads.1.priority", 10**30, "workloads[1].priority: 1000000"),
    (
        "workloads.1.podSets.0.count",
        -1,
        "podSets[0].count: -1 is not allowed; allowed: a whole number from 0",
    ),
    ("workloads.1.podSets.0.count", 1.0, "podSets[0].count: 1.0 is not allowed"),
    ("workloads.1.podSets.0.requestsPerPod", {GPU: "-1"}, f"requestsPerPod.{GPU}: '-1' is not allowed"),
    ("workloads.1.podSets.0.tolerations", [{"operator": "Is"}], "tolerations[0].operator: 'Is'"),
    ("workloads.1.podSets.0.requiredNodeAffinity", [{"key": "a", "operator": "Is"}], "[0].operator: 'Is'"),
    ("workloads.1.reservation", {}, "workloads[1].reservation: given; allowed: none for role pending"),
    (
        "workloads.0.reservation",
        None,
        "workloads[0].reservation.podSets: missing; allowed: each pod set, once",
    ),
    ("workloads.0.reservation.podSets.0.name", "other", "reservation.podSets: other; allowed: each pod set"),
    ("workloads.0.createdAtSecondsFromNow", "1 h", "createdAtSecondsFromNow: '1 h' is not allowed"),
    ("workloads.0.createdAtSecondsFromNow", 10**11, "allowed: seconds from now, at most 10^10"),
    ("workloads.0.evictedAtSecondsFromNow", 1, "evictedAtSecondsFromNow: given; allowed: none unless"),
    ("givenFlavor", {GPU: "h100"}, "givenFlavor: given; allowed: nothing for level one-scheduling-cycle"),
    ("expected.train/low.outcome", "won", "expected.train/low.outcome: 'won' is not allowed"),
    ("expected.train/low.luck", 1, "expected.train/low.luck: unknown field"),
    (
        "expected.train/high.preempts",
        ["nobody"],
        "preempts: 'nobody' is not allowed; allowed: namespace/name",
    ),
    (
        "expected.train/high.requeuedTo",
        "moon",
        "requeuedTo: 'moon' is not allowed; allowed: heap, inadmissible",
    ),
    ("expected.train/high.podSets", [{"name": "main"}], "podSets[0].count: missing"),
    ("expected.serve/next.nominated.mode", 1, "nominated.mode: 1 is not allowed; allowed: text"),
    (
        "expected.serve/none",
        {},
        "expected: 'serve/none' is not allowed; allowed: namespace/name of a workload",
    ),
    ("processingOrder", [["train/none"]], "processingOrder: 'train/none' is not allowed"),
]


@pytest.mark.parametrize(
    ("path", "value", "said"), REFUSED, ids=[f"{path}={value}"[:60] for path, value, _ in REFUSED]
)
def test_what_makes_no_sense_is_refused_by_its_path(path: str, value: Any, said: str) -> None:
    with pytest.raises(InputError) as caught:
        read(changed(CASE, path, value))
    assert said in str(caught.value)
    assert str(caught.value).startswith("cases.json.cases[0]")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"givenFlavor": None}, "givenFlavor: missing"),
        ({"givenFlavorByPodSet": {"main": {}}}, "givenFlavor: both"),
        ({"givenFlavor": None, "givenFlavorByPodSet": {"x": {}}}, "givenFlavorByPodSet.x: unknown"),
        ({"workloads": [holds("a", "train", 1)], "expected": {}}, "workloads: 0 that are pending"),
        ({"unusableFlavors": {"h100": "missing"}}, "workloads: a queue that admits nobody"),
        ({"workloads": [waits("a", None, 1)], "expected": {}}, "workloads: a queue that admits nobody"),
        ({"workloads": [waits("a", "zz", 1)], "expected": {}}, "workloads: a queue that admits nobody"),
    ],
)
def test_a_search_that_says_too_little_is_refused(fields: Document, said: str) -> None:
    with pytest.raises(InputError) as caught:
        read({**SEARCH, **fields})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (b"", "no JSON"),
        (b"[]", "an object"),
        (b"{}", "cases: missing"),
        (b'{"schemaVersion": 2, "cases": []}', "schemaVersion: 2 is not allowed; allowed: 1"),
        (b'{"cases": 1}', "cases: 1 is not allowed; allowed: a list"),
        (b'{"cases": [1]}', "cases[0]: 1 is not allowed; allowed: an object"),
        (b'{"cases": [], "cases": []}', "field 'cases' twice"),
        (b'{"cases": [{"id": NaN}]}', "NaN"),
        (b'{"cases": ' + b"[" * 100_000, "deeply"),
        (b"\xff\xfe", "no JSON"),
        (json.dumps({"cases": [{"id": "x" * 5000}]}).encode(), "text of at most 4,096 characters"),
        (b'{"cases": [{"id": "a", "\\u001b[2J": 1}]}', "\\x1b[2J: unknown field"),
    ],
)
def test_hostile_files_are_refused_in_one_sentence(found: bytes, said: str) -> None:
    with pytest.raises(InputError) as caught:
        read_cases(found, "evil.json")
    assert said in str(caught.value)
    assert str(caught.value).startswith("evil.json")
    assert len(str(caught.value)) < 600


def test_a_file_beyond_the_limit_is_refused_with_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_BYTES", 1 << 20)
    with pytest.raises(InputError, match="too large; allowed: at most 1 MiB"):
        read_cases(b" " * ((1 << 20) + 1), "large.json")


def test_fields_beside_the_cases_decide_nothing_and_are_named() -> None:
    found = read_cases(content(CASE, about="a", conventions=[], outcomes=[], counts={}, seed=1), "cases.json")
    assert found.unread == ("seed",)
    assert len(found.cases) == 1


def test_evicted_ones_need_no_time() -> None:
    evicted = holds("a", "train", 1, alreadyEvicted=True)
    case = only({"id": "x", "clusterQueues": [queue("train")], "workloads": [evicted]})
    assert is_true(case.state.workloads["a"].conditions, "Evicted")


RECORDED: Document = {
    "from": "2026-10-01T00:00:00Z",
    "to": "2026-10-01T01:00:00Z",
    "kueueVersion": "v0.18.1",
    "configurationRead": True,
    "fairSharing": True,
    "preemptionStrategies": ["LessThanInitialShare"],
    "featureGates": {"PriorityBoost": True},
}


def test_a_file_says_whose_decisions_it_holds() -> None:
    found = read_cases(content(CASE, recorded=RECORDED), "cases.json")
    config = KueueConfig("v0.18.1", True, ("LessThanInitialShare",), {"PriorityBoost": True}, is_read=True)
    hour_ms = 3_600_000
    assert found.origin is not None
    assert found.origin.config == config
    assert found.origin.to_ms - found.origin.from_ms == hour_ms
    assert found.unread == ()


def test_a_file_may_not_say_it() -> None:
    assert read_cases(content(CASE), "cases.json").origin is None
    empty = read_cases(content(CASE, recorded={}), "cases.json").origin
    assert empty == RecordingOrigin(KueueConfig())


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("kueueVersion", 19, "text of at most"),
        ("featureGates", {"A": "yes"}, "true or false"),
        ("preemptionStrategies", ["Other"], "null, or one of"),
        ("from", "yesterday", "RFC 3339 with a zone"),
        ("colour", "red", "unknown field"),
    ],
)
def test_what_makes_no_sense_of_whose_decisions_is_refused_by_its_path(
    field: str, value: Any, said: str
) -> None:
    with pytest.raises(InputError, match=re.escape(said)) as raised:
        read_cases(content(CASE, recorded={**RECORDED, field: value}), "cases.json")
    assert raised.value.field.startswith(f"cases.json.recorded.{field}")
