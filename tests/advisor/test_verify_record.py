"""What a cluster was seen to do, written down as a case; and what cannot be known from outside, refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpucost.advisor.verify.case_files import read_cases
from gpucost.advisor.verify.case_recording import (
    NO_DECISION,
    RecordedCase,
    document,
    record,
)
from gpucost.advisor.verify.case_writer import CaseAliases, CaseNames
from gpucost.advisor.verify.replay import verify
from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.objects.metadata import StatusCondition
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.cluster.objects.state import ClusterState
from tests.advisor import worlds
from tests.advisor.worlds import NOW, flavor, queue, workload

AT = NOW + 5_000
"""When the scheduler decides."""
CONFIG = KueueConfig("v0.19.2", is_read=True)
FULL = (
    queue("train", 8, cohort="org", within="LowerPriority", strict=True),
    queue("serve", 8, cohort="org"),
    queue("alone", 8),
    workload("low", "train", 8, holding=True),
    workload("model", "serve", 8, holding=True),
    workload("high", "train", 8, priority=100),
    workload("next", "serve", 4),
    workload("new", "alone", 4),
)
"""``high`` preempts ``low``, ``new`` is admitted, ``next`` waits."""


def given(each: Workload, queue: str, since_ms: int = AT) -> Workload:
    """Admitted, all of it."""
    held = workload(each.meta.name, queue, pod_sets=each.pod_sets, holding=True)
    conditions = {kind: replace(found, since_ms=since_ms) for kind, found in held.conditions.items()}
    return replace(each, cluster_queue=queue, assignments=held.assignments, conditions=conditions)


def told_to_leave(each: Workload, since_ms: int | None = AT, reason: str = "InClusterQueue") -> Workload:
    evicted = {
        "Evicted": StatusCondition(True, "Preempted", "", since_ms),
        "Preempted": StatusCondition(True, reason, "", since_ms),
    }
    return replace(each, conditions={**each.conditions, **evicted})


def told(each: Workload, message: str, reason: str = "WaitingForQuota") -> Workload:
    said = StatusCondition(False, reason, message, AT)
    return replace(each, conditions={**each.conditions, "QuotaReserved": said})


def later(state: ClusterState, *changed: Workload, gone: str = "") -> ClusterState:
    found = {**state.workloads, **{each.meta.uid: each for each in changed}}
    found.pop(gone, None)
    return replace(state, at_ms=NOW + 10_000, workloads=found)


def recorded(before: ClusterState, after: ClusterState, names: CaseNames | None = None) -> RecordedCase:
    return record(before, after, CONFIG, names or CaseNames(), "rec-001")


def decided() -> tuple[ClusterState, ClusterState]:
    before = worlds.state(*FULL)
    found = before.workloads
    missing = (
        "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor h100"
    )
    after = later(
        before,
        told_to_leave(found["low"]),
        given(found["new"], "alone"),
        told(found["high"], f"{missing}, 8 more needed. Pending the preemption of 1 workload(s)", "Pending"),
        told(found["next"], f"{missing}, 4 more needed"),
    )
    return before, after


def test_what_was_seen_of_one_cycle_is_what_is_expected() -> None:
    case = recorded(*decided()).case
    assert case is not None
    assert case["expected"] == {
        "train/low": {"outcome": "preempted", "preemptedReason": "InClusterQueue"},
        "serve/model": {"outcome": "keeps-running"},
        "train/high": {
            "outcome": "preempting",
            "quotaReservedReason": None,
            "messageContains": "couldn't assign flavors to pod set main: insufficient unused quota for "
            "nvidia.com/gpu in flavor h100, 8 more needed. Pending the preemption of 1 workload(s)",
        },
        "serve/next": {
            "outcome": "pending",
            "quotaReservedReason": "WaitingForQuota",
            "messageContains": "couldn't assign flavors to pod set main: insufficient unused quota for "
            "nvidia.com/gpu in flavor h100, 4 more needed",
        },
        "alone/new": {
            "outcome": "admitted",
            "clusterQueue": "alone",
            "flavors": {"nvidia.com/gpu": "h100"},
            "podSets": [{"name": "main", "count": 1, "flavors": {"nvidia.com/gpu": "h100"}}],
        },
    }


@pytest.mark.parametrize("names", [CaseNames, CaseAliases])
def test_a_recorded_file_is_read_and_agrees_with_the_rules(names: Callable[[], CaseNames]) -> None:
    case = recorded(*decided(), names()).case
    assert case is not None
    found = read_cases(json.dumps(document([case])).encode(), "recorded.json")
    report = verify(found.cases)
    assert report.disagreements == ()
    assert report.facts.of >= 9


def test_aliases_name_nothing_and_leave_messages_out() -> None:
    case = recorded(*decided(), CaseAliases()).case
    text = json.dumps(case)
    for name in ("train", "serve", "alone", "org", "h100", "high", "model", "flavor h100"):
        assert f'"{name}' not in text
        assert f"{name}/" not in text
    assert "insufficient" not in text
    assert "queue-00001" in text


def test_aliases_are_the_same_over_all_cases_of_a_file() -> None:
    names = CaseAliases()
    first, second = (recorded(*decided(), names).case for _ in range(2))
    assert first == second


def test_nothing_decided_is_no_case() -> None:
    before = worlds.state(*FULL)
    assert recorded(before, later(before)) == RecordedCase(None, (NO_DECISION,))
    only_told = later(before, told(before.workloads["next"], "no room"))
    assert recorded(before, only_told) == RecordedCase(None, (NO_DECISION,))


def test_who_waited_ahead_in_a_best_effort_queue_was_outside_its_heap_and_is_left_out() -> None:
    before = worlds.state(
        queue("alone", 8),
        workload("large", "alone", 16, priority=100),
        workload("small", "alone", 4),
    )
    found = recorded(before, later(before, given(before.workloads["small"], "alone")))
    assert found.case is not None
    assert [each["name"] for each in found.case["workloads"]] == ["small"]
    assert found.why == ("1 that waited before a later one of their queue, and so outside its heap",)
    read = read_cases(json.dumps(document([found.case])).encode(), "recorded.json")
    assert verify(read.cases).agrees


def test_what_a_queue_says_after_it_admitted_one_is_of_a_later_cycle() -> None:
    before = worlds.state(queue("alone", 8), workload("a", "alone", 8), workload("b", "alone", 8, created=9))
    first = given(before.workloads["a"], "alone")
    found = recorded(before, later(before, first, told(before.workloads["b"], "8 more needed"))).case
    assert found is not None
    assert found["expected"]["alone/b"] == {"outcome": "pending"}


Change = Callable[[ClusterState, ClusterState], tuple[ClusterState, ClusterState]]


def _with(*changed: Any, gone: str = "") -> Change:
    return lambda before, after: (before, later(after, *changed, gone=gone))


def _both(**fields: Any) -> Change:
    return lambda before, after: (replace(before, **fields), replace(after, **fields))


def _queue(**fields: Any) -> Change:
    def change(before: ClusterState, after: ClusterState) -> tuple[ClusterState, ClusterState]:
        queues = {**before.cluster_queues, "serve": replace(before.cluster_queues["serve"], **fields)}
        return replace(before, cluster_queues=queues), replace(after, cluster_queues=queues)

    return change


STATE = worlds.state(*FULL)
HELD, WAITS = STATE.workloads["model"], STATE.workloads["next"]
DOUBTS: dict[str, Change] = {
    "decisions that are 3 s apart": _with(given(STATE.workloads["new"], "alone", AT + 3_000)),
    "decisions that are not dated": _with(told_to_leave(STATE.workloads["low"], None)),
    "2 admissions in ClusterQueue alone": _with(given(replace(WAITS, queue="main"), "alone")),
    "workload serve/extra came in between": _with(workload("extra", "serve", 1, created=-2)),
    "workload serve/model went away in between": _with(gone="model"),
    "workload serve/model gave its quota back": _with(replace(HELD, conditions={}, cluster_queue="")),
    "workload serve/model was evicted in between": _with(
        replace(HELD, conditions={**HELD.conditions, "Evicted": StatusCondition(True, "Preempted", "", AT)})
    ),
    "workload serve/next changed in between": _with(replace(WAITS, priority=7)),
    "cluster queues changed in between": lambda before, after: (
        before,
        replace(after, cluster_queues={**after.cluster_queues, "more": queue("more", 8)}),
    ),
    "flavor h100 has a topology": _both(flavors={"h100": flavor("h100", topology="racks")}),
    "ClusterQueue serve has admission checks": _queue(checks={"budget": ()}),
    "ClusterQueue serve is stopped or not active": _queue(stop_policy="Hold"),
    "ClusterQueue serve has admission fair sharing": _queue(admission_mode="UsageBased"),
}


@pytest.mark.parametrize("said", DOUBTS)
def test_what_may_be_more_than_one_cycle_or_is_beyond_the_schema_is_refused_by_name(said: str) -> None:
    found = recorded(*DOUBTS[said](*decided()))
    assert found.case is None
    assert any(said in why for why in found.why), found.why


def test_who_waits_out_a_backoff_is_passed_over_and_left_out() -> None:
    back = {"requeue_at_ms": NOW + 600_000}
    before = worlds.state(
        queue("alone", 8, strict=True),
        workload("large", "alone", 8, priority=100, rest=back),
        workload("small", "alone", 4),
    )
    found = recorded(before, later(before, given(before.workloads["small"], "alone")))
    assert found.case is not None
    assert [each["name"] for each in found.case["workloads"]] == ["small"]
    assert found.why == ()
    read = read_cases(json.dumps(document([found.case])).encode(), "recorded.json")
    assert verify(read.cases).agrees


def test_a_strict_queue_passes_nobody_over() -> None:
    before = worlds.state(
        queue("alone", 8, strict=True), workload("a", "alone", 8), workload("b", "alone", 8, created=9)
    )
    found = recorded(before, later(before, given(before.workloads["b"], "alone")))
    assert found.case is None
    assert "workload alone/b was not the head of alone: more than one cycle" in found.why


def test_a_setting_that_gpucost_does_not_follow_is_no_case() -> None:
    config = replace(CONFIG, unread=("resources.transformations",), block_admission=True)
    found = record(*decided(), config, CaseNames(), "x")
    assert found.case is None
    assert "waitForPodsReady.blockAdmission is on" in found.why


def test_status_of_queues_may_change() -> None:
    before, after = decided()
    queues = {uid: replace(each, pending=9, weighted_share=3) for uid, each in after.cluster_queues.items()}
    assert recorded(before, replace(after, cluster_queues=queues)).case is not None
