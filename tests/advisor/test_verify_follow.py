"""Decisions worked out from the writes of Workloads: of the real scheduler's own histories, and
one by one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from gpucost.advisor.verify import decision_follower
from gpucost.advisor.verify.case_writer import CaseAliases, CaseNames
from gpucost.advisor.verify.decision_follower import (
    NO_PLACE,
    DecisionFollower,
    ObservedCases,
    WorkloadWrite,
    checked,
)
from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.objects.metadata import StatusCondition
from gpucost.cluster.objects.pods import SelectorRequirement, Toleration
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.cluster.objects.state import ClusterState
from tests.advisor import worlds
from tests.advisor.histories import HISTORIES, histories, steps
from tests.advisor.worlds import NOW, flavor, queue, workload
from tests.cluster.builders import GPU

CONFIG = KueueConfig("v0.19.2", is_read=True)
AT = NOW + 5_000
Told = tuple[int, Workload | None]
"""When, and the workload as it is then."""


def followed(
    *told: Told, state: ClusterState, config: KueueConfig = CONFIG, names: CaseNames | None = None
) -> ObservedCases:
    follower = DecisionFollower(config, names or CaseNames())
    follower.look(state, NOW)
    known: dict[str, str] = {}
    for at_ms, each in told:
        uid = each.meta.uid if each is not None else known["last"]
        known["last"] = uid
        follower.take(WorkloadWrite(at_ms, uid, None, each), state)
    follower.pass_by()
    return follower.kept


def given(each: Workload, to: str, at_ms: int = AT, **fields: str) -> Workload:
    """Admitted in a ClusterQueue, all of it."""
    held = workload(each.meta.name, to, pod_sets=each.pod_sets, holding=True, **fields)
    conditions = {kind: replace(found, since_ms=at_ms) for kind, found in held.conditions.items()}
    return replace(each, cluster_queue=to, assignments=held.assignments, conditions=conditions)


def told_to_leave(each: Workload, by: str, at_ms: int = AT, reason: str = "InClusterQueue") -> Workload:
    said = f"Preempted to accommodate a workload (UID: {by}, JobUID: j) due to prioritization" if by else ""
    told = {
        "Evicted": StatusCondition(True, "Preempted", said, at_ms),
        "Preempted": StatusCondition(True, reason, said, at_ms),
    }
    return replace(each, conditions={**each.conditions, **told})


def cases(*objects: object) -> ClusterState:
    return worlds.state(*objects)


def before(*found: Workload) -> Iterable[Told]:
    return [(NOW, each) for each in found]


# The real scheduler's histories


@pytest.mark.parametrize("id_", ["kh-051/A", *(f"kh-min-{each}/A" for each in range(1, 7))])
def test_decisions_of_the_real_scheduler_become_cases_that_agree(id_: str) -> None:
    """Of decisions within one second their order is not in the history, nor which flavor a scan resumed."""
    history = next(each for each in histories(HISTORIES) if each.id == id_)
    follower = DecisionFollower(history.config, CaseNames())
    for step in steps(history):
        follower.take(step.write, step.state)
    follower.pass_by()
    kept = follower.kept
    report = checked(kept.cases)
    truth = history.found["truth"]
    assert kept.admissions == sum(len(each["admissions"]) for each in truth)
    assert len(kept.cases) + kept.left_out.total() == kept.decisions
    assert len(kept.cases) >= 0.95 * kept.decisions
    assert report.cases.agree >= 0.98 * report.cases.of
    if history.id != "kh-051/A":
        assert len(kept.cases) == kept.decisions == report.cases.agree


# One by one

ROOM = cases(queue("ml", 16, cohort="org"), queue("serve", 8, cohort="org"), queue("alone", 8))


def test_one_that_is_admitted_as_it_comes_is_a_case() -> None:
    one = workload("one", "ml", 4)
    kept = followed((AT, one), (AT + 3, given(one, "ml")), state=ROOM)
    (case,) = kept.cases
    assert case["expected"]["ml/one"] == {
        "outcome": "admitted",
        "clusterQueue": "ml",
        "flavors": {GPU: "h100"},
        "podSets": [{"name": "main", "count": 1, "flavors": {GPU: "h100"}}],
    }
    assert {each["name"] for each in case["clusterQueues"]} == {"ml", "serve"}
    assert (kept.admissions, checked(kept.cases).agrees) == (1, True)


@pytest.mark.parametrize(
    "change",
    [
        {"tolerations": (Toleration("a", False, "b", "Bogus"),)},
        {"affinity": ((SelectorRequirement("k", "Foo", ("v",)),),)},
        {"node_selector": {"k": "v" * 5000}},
    ],
)
def test_what_no_case_can_say_is_left_out_and_ends_no_recording(change: dict[str, Any]) -> None:
    """Nobody checks the templates of jobs of other kinds than Kubernetes' own."""
    one, two = workload("one", "ml", 4), workload("two", "serve", 4)
    [pods] = one.pod_sets
    one = replace(one, pod_sets=(replace(pods, template=replace(pods.template, **change)),))
    told = [(AT, given(one, "ml")), (AT + 5_000, given(two, "serve", AT + 5_000))]
    kept = followed(*before(one, two), *told, state=ROOM)
    assert kept.left_out == {NO_PLACE: 1}
    assert [[*each["expected"]] for each in kept.cases] == [["serve/two", "ml/one"]]


def test_several_of_one_second_and_one_queue_are_a_case_each_in_the_order_of_their_writes() -> None:
    found = [workload(f"w{at}", "ml", 4) for at in range(4)]
    told = [(AT + at, given(each, "ml")) for at, each in enumerate(found)]
    kept = followed(*before(*found), *told, state=ROOM)
    assert [len(each["workloads"]) for each in kept.cases] == [1, 2, 3, 4]
    assert checked(kept.cases).agrees


def test_another_tree_spoils_nothing() -> None:
    """A stopped queue, a topology, and a queue that changes, in trees that have nothing to do with it."""
    state = cases(
        *ROOM.cluster_queues.values(),
        replace(queue("stopped", 8), stop_policy="Hold"),
        queue("racks", {"tas": 8}),
        flavor("tas", topology="rack"),
        flavor("h100"),
    )
    one = workload("one", "ml", 4)
    kept = followed((AT, one), (AT + 3, given(one, "ml")), state=state)
    assert (len(kept.cases), kept.left_out.total()) == (1, 0)


def test_a_stopped_queue_of_its_own_tree_is_written_as_such() -> None:
    state = cases(*ROOM.cluster_queues.values(), replace(queue("old", 8, cohort="org"), stop_policy="Hold"))
    one = workload("one", "ml", 24)
    (case,) = followed((AT, one), (AT + 3, given(one, "ml")), state=state).cases
    assert {each["name"]: each["stopPolicy"] for each in case["clusterQueues"]}["old"] == "Hold"
    assert checked([case]).agrees


def test_victims_are_those_of_whom_their_condition_says_so() -> None:
    state = cases(queue("ml", 16, within="LowerPriority"), queue("alone", 8))
    low = [given(workload(f"low{at}", "ml", 8), "ml", NOW - 60_000 + at * 1000) for at in range(2)]
    high = workload("high", "ml", 16, priority=100)
    told = [(AT + at, told_to_leave(each, "high")) for at, each in enumerate(low)]
    kept = followed(*before(*low, high), *told, state=state)
    (case,) = kept.cases
    assert case["expected"]["ml/high"] == {"outcome": "preempting", "preempts": ["ml/low0", "ml/low1"]}
    assert case["expected"]["ml/low0"] == {
        "outcome": "preempted",
        "preemptedReason": "InClusterQueue",
        "preemptedBy": "ml/high",
    }
    assert (kept.preemptions, checked(kept.cases).agrees) == (1, True)


def test_pods_that_are_done_gave_their_quota_back() -> None:
    state = cases(queue("alone", 8))
    pods = (worlds.pod_set("main", 8, 1),)
    done = replace(given(workload("done", "alone", pod_sets=pods), "alone"), reclaimable={"main": 6})
    one = workload("one", "alone", 6)
    kept = followed(*before(done), (AT, one), (AT + 3, given(one, "alone")), state=state)
    assert checked(kept.cases).agrees


def test_what_kueue_counted_is_what_it_asks_for() -> None:
    """Defaults of a LimitRange and the overhead of a RuntimeClass are in no pod template."""
    state = cases(queue("alone", 8, cpu=8))
    one = workload("one", "alone", 8)
    now = given(one, "alone")
    (held,) = now.assignments
    more = replace(held, usage={**held.usage, "cpu": 500}, flavors={**held.flavors, "cpu": "h100"})
    (case,) = followed((AT, one), (AT + 3, replace(now, assignments=(more,))), state=state).cases
    (asks,) = (each for each in case["workloads"] if each["name"] == "one")
    assert asks["podSets"][0]["requestsPerPod"] == {GPU: "8", "cpu": "500m"}


def test_a_later_write_of_the_same_cycle_may_have_been_counted_before() -> None:
    """Kueue counts its own admissions before they are written: what fits only without one that is written
    first is not called a disagreement, but left out."""
    state = cases(queue("alone", 8))
    full, one = given(workload("full", "alone", 8), "alone", NOW - 60_000), workload("one", "alone", 8)
    over = replace(
        full, conditions={**full.conditions, "Finished": StatusCondition(True, "Succeeded", "", AT)}
    )
    kept = followed(*before(full, one), (AT, given(one, "alone")), (AT + 2, over), state=state)
    assert (kept.cases, dict(kept.left_out)) == ([], {decision_follower.ORDER: 1})


def test_what_the_rules_do_not_say_is_kept_as_a_disagreement() -> None:
    state = cases(queue("alone", 8))
    one = workload("one", "alone", 16)
    kept = followed(*before(one), (AT, given(one, "alone")), state=state)
    (wrong,) = {each.workload for each in checked(kept.cases).disagreements}
    assert wrong == "alone/one"


def test_a_strict_queue_passes_over_nobody() -> None:
    state = cases(queue("alone", 8, strict=True))
    first, second = workload("a", "alone", 8, created=60), workload("b", "alone", 8, created=50)
    right = followed(*before(first, second), (AT, given(first, "alone")), state=state)
    assert checked(right.cases).agrees
    wrong = followed(*before(first, second), (AT, given(second, "alone")), state=state)
    assert not checked(wrong.cases).agrees


Spoil = Callable[[Workload], Workload]


@pytest.mark.parametrize(
    ("state", "spoil", "why"),
    [
        (cases(queue("alone", 8), flavor("h100", topology="rack")), None, decision_follower.TOPOLOGY),
        (ROOM, lambda each: replace(each, on_cluster="far"), decision_follower.ELSEWHERE),
        (cases(queue("ml", 8)), None, decision_follower.UNREAD),
    ],
    ids=["topology", "elsewhere", "unknown queue"],
)
def test_what_has_no_place_in_a_case_is_counted_by_its_reason(
    state: ClusterState, spoil: Spoil | None, why: str
) -> None:
    one = workload("one", "alone", 4)
    now = given(one, "alone")
    kept = followed((AT, one), (AT + 3, spoil(now) if spoil else now), state=state)
    assert (kept.cases, dict(kept.left_out)) == ([], {why: 1})


def test_a_preemption_that_names_nobody_is_counted() -> None:
    low, high = given(workload("low", "alone", 8), "alone", NOW), workload("high", "alone", 8, priority=9)
    for by, why in (("", decision_follower.UNNAMED), ("stranger", decision_follower.UNSEEN)):
        kept = followed(*before(low, high), (AT, told_to_leave(low, by)), state=ROOM)
        assert dict(kept.left_out) == {why: 1}


def test_a_change_of_its_tree_within_two_seconds_is_one_that_cannot_be_told() -> None:
    one = workload("one", "ml", 4)
    follower = DecisionFollower(CONFIG, CaseNames())
    follower.look(ROOM, NOW)
    changed = cases(queue("ml", 24, cohort="org"), queue("serve", 8, cohort="org"), queue("alone", 8))
    follower.look(changed, AT - 1_000)
    for uid, to, at_ms in (("one", "ml", AT), ("two", "alone", AT + 10)):
        each = replace(one, meta=replace(one.meta, uid=uid, name=uid, namespace=to))
        follower.take(WorkloadWrite(at_ms, uid, None, each), changed)
        follower.take(WorkloadWrite(at_ms + 3, uid, None, given(each, to)), changed)
    follower.pass_by()
    assert [each["clusterQueues"][0]["name"] for each in follower.kept.cases] == ["alone"]
    assert dict(follower.kept.left_out) == {decision_follower.CHANGED: 1}


def test_what_was_read_at_once_after_a_break_has_no_order() -> None:
    one, other = workload("one", "ml", 4), workload("other", "ml", 4)
    follower = DecisionFollower(CONFIG, CaseNames())
    for each in (one, other):
        follower.take(WorkloadWrite(NOW, each.meta.uid, None, each), ROOM)
    for each in (one, other):
        follower.take(WorkloadWrite(AT, each.meta.uid, None, given(each, "ml")), ROOM, is_alone=False)
    follower.pass_by()
    assert dict(follower.kept.left_out) == {decision_follower.MISSED: 2}


def test_ties_by_uid_stay_with_aliases() -> None:
    state = cases(queue("ml", 16, within="LowerPriority"), queue("alone", 8))
    low = [given(workload(name, "ml", 8), "ml", NOW - 60_000) for name in ("z", "a")]
    low = [replace(each, meta=replace(each.meta, uid=uid)) for each, uid in zip(low, "12", strict=True)]
    high = workload("high", "ml", 8, priority=100)
    for names in (CaseNames(), CaseAliases()):
        kept = followed(*before(*low, high), (AT, told_to_leave(low[0], "high")), state=state, names=names)
        assert checked(kept.cases).agrees, json.dumps(kept.cases)
