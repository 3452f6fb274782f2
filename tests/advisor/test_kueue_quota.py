"""Quota in a tree: limits, levels, what is not covered, and queues that admit nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucost.advisor.model.cycle_results import CycleOutcome, PendingClass
from gpucost.cluster.objects.kueue import FlavorQuota, FlavorResource
from gpucost.cluster.objects.pods import PodSet, PodTemplate, SelectorRequirement
from gpucost.cluster.objects.scheduler_config import KueueConfig
from tests.advisor import worlds
from tests.advisor.kueue_runs import GPUS, cycle, cycle_of, decided, outcomes, outlook_of
from tests.advisor.worlds import cohort, queue, workload
from tests.cluster import builders
from tests.cluster.builders import GPU

ADMITTED, PENDING = CycleOutcome.ADMITTED, CycleOutcome.PENDING
NO_FIT, NO_CANDIDATES = PendingClass.NO_FIT, PendingClass.NO_CANDIDATES
INADMISSIBLE = PendingClass.INADMISSIBLE


@pytest.mark.parametrize(
    ("gpus", "expected", "reason"),
    [
        (3, None, ""),
        (4, NO_CANDIDATES, "WaitingForQuota"),
        (8, NO_CANDIDATES, "WaitingForQuota"),
        (9, NO_FIT, "ExceedsMaxQuota"),
    ],
)
def test_own_quota(gpus: int, expected: PendingClass | None, reason: str) -> None:
    found = decided("new", queue("a", 8), workload("old", "a", 5, holding=True), workload("new", "a", gpus))
    assert (found.pending, found.reason) == (expected, reason)
    assert (found.outcome is ADMITTED) is (expected is None)


def test_the_message_says_what_is_short() -> None:
    objects = queue("a", 8), workload("old", "a", 5, holding=True)
    assert decided("new", *objects, workload("new", "a", 7)).message == (
        "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor "
        "h100, 4 more needed"
    )
    assert decided("new", *objects, workload("new", "a", 9)).message == (
        "couldn't assign flavors to pod set main: insufficient quota for nvidia.com/gpu in flavor h100, "
        "previously considered podsets requests (0) + current podset request (9) > maximum capacity (8)"
    )


@pytest.mark.parametrize(
    ("limit", "gpus", "level"),
    [(2, 4, 0), (2, 5, 1), (2, 6, 1), (2, 7, None), (0, 4, 0), (0, 5, None), (None, 12, 1), (None, 13, None)],
)
def test_borrowing_limit(limit: int | None, gpus: int, level: int | None) -> None:
    objects = queue("a", 4, cohort="org", borrowing=limit), queue("b", 8, cohort="org")
    found = decided("new", *objects, workload("new", "a", gpus))
    assert (found.outcome is ADMITTED) is (level is not None)
    assert found.level == (level or 0)
    if level is None:
        assert (found.pending, found.reason) == (NO_FIT, "ExceedsMaxQuota")


@pytest.mark.parametrize(
    ("asks", "used_by_lender", "gpus", "is_admitted"),
    [
        ("a", 0, 7, True),
        ("a", 0, 8, False),
        ("a", 5, 7, True),  # what the lender keeps to itself is used first
        ("a", 6, 7, False),
        ("a", 6, 6, True),
        ("b", 0, 12, True),  # a lending limit does not keep the lender from borrowing
        ("b", 0, 13, False),
    ],
)
def test_lending_limit(asks: str, used_by_lender: int, gpus: int, is_admitted: bool) -> None:
    old = [workload("old", "b", used_by_lender, holding=True)] if used_by_lender else []
    objects = queue("a", 4, cohort="org"), queue("b", 8, cohort="org", lending=3)
    found = decided("new", *objects, *old, workload("new", asks, gpus))
    assert (found.outcome is ADMITTED) is is_admitted


def test_a_lending_limit_of_zero_keeps_all() -> None:
    objects = queue("a", 4, cohort="org"), queue("b", 8, cohort="org", lending=0)
    assert decided("new", *objects, workload("new", "a", 4)).outcome is ADMITTED
    assert decided("new", *objects, workload("new", "a", 5)).pending is NO_FIT


def _tall() -> tuple[object, ...]:
    """Three cohorts, one in the other: x may have 2 + 4 + 2 borrowed from the root's 8."""
    return (
        cohort("org", 8),
        cohort("labs", 4, parent="org", borrowing=2),
        cohort("deep", parent="labs"),
        queue("x", 2, cohort="deep"),
        queue("y", 0, cohort="org"),
    )


@pytest.mark.parametrize(("gpus", "level"), [(2, 0), (3, 2), (6, 2), (7, 3), (8, 3), (9, None)])
def test_the_level_is_the_height_of_the_lowest_tree_with_room(gpus: int, level: int | None) -> None:
    found = decided("new", *_tall(), workload("new", "x", gpus))
    assert (found.outcome is ADMITTED) is (level is not None)
    assert found.level == (level or 0)


@pytest.mark.parametrize(
    ("gpus", "level"), [(4, 0), (5, 1), (6, 1), (7, 2), (9, 2), (10, 3), (17, 3), (18, None)]
)
def test_what_is_kept_on_the_way_up_need_not_be_found_above(gpus: int, level: int | None) -> None:
    """The queue keeps 4, labs keeps 2; mid has 3, and the root 8."""
    found = decided(
        "new",
        cohort("org", 8),
        cohort("mid", 3, parent="org"),
        cohort("labs", 2, parent="mid", lending=0),
        queue("x", 4, cohort="labs", lending=0),
        workload("new", "x", gpus),
    )
    assert (found.outcome is ADMITTED) is (level is not None)
    assert found.level == (level or 0)


@pytest.mark.parametrize(
    ("used", "gpus", "is_admitted"),
    [(0, 9, True), (0, 10, False), (5, 9, True), (6, 9, False), (6, 8, True)],
)
def test_a_cohort_keeps_what_its_lending_limit_leaves(used: int, gpus: int, is_admitted: bool) -> None:
    """Of the 6 below labs it lends 1: the first 5 in use count nowhere above."""
    objects = [each for each in _tall() if getattr(each, "name", "") != "labs"]
    old = [workload("old", "x", used, holding=True)] if used else []
    found = decided(
        "new", cohort("labs", 4, parent="org", lending=1), *objects, *old, workload("new", "y", gpus)
    )
    assert (found.outcome is ADMITTED) is is_admitted


def test_a_cohort_without_an_object_is_there_without_quota() -> None:
    objects = queue("a", 4, cohort="unwritten"), queue("b", 4, cohort="unwritten")
    assert decided("new", *objects, workload("new", "a", 8)).level == 1
    assert decided("new", *objects, workload("new", "a", 9)).pending is NO_FIT


def test_heights_are_of_the_whole_tree() -> None:
    """A queue beside a tall subtree borrows from the root's height, not from one level up."""
    found = decided("new", *_tall(), workload("new", "y", 1))
    assert (found.outcome, found.level) == (ADMITTED, 3)


def test_queues_that_are_not_active_make_no_tree_higher() -> None:
    for is_active, level in ((True, 2), (False, 1)):
        tree = cohort("org", 8), cohort("labs", parent="org")
        below = queue("x", 2, cohort="labs", is_active=is_active)
        found = decided("new", *tree, below, queue("a", 0, cohort="org"), workload("new", "a", 4))
        assert (found.outcome, found.level) == (ADMITTED, level)


def test_cpu_counts_in_thousandths() -> None:
    objects = (queue("a", 8, cpu=2),)
    assert decided("new", *objects, workload("new", "a", cpu=2)).outcome is ADMITTED
    found = decided("new", *objects, workload("new", "a", cpu=2.001))
    assert found.reason == "ExceedsMaxQuota"
    assert "current podset request (2001m) > maximum capacity (2)" in found.message


@pytest.mark.parametrize(("pods", "is_admitted"), [(3, True), (4, False)])
def test_pods_are_counted_where_they_have_quota(pods: int, is_admitted: bool) -> None:
    found = decided("new", queue("a", 8, pods=3), workload("new", "a", 1, pods))
    assert (found.outcome is ADMITTED) is is_admitted
    assert decided("new", queue("a", 8), workload("new", "a", 1, pods)).outcome is ADMITTED


def test_what_no_group_covers_has_no_granular_reason() -> None:
    found = decided("new", queue("a", 8), workload("new", "a", cpu=1))
    assert (found.pending, found.reason, found.parked) == (NO_FIT, "", True)
    assert (
        found.message == "couldn't assign flavors to pod set main: resource cpu unavailable in ClusterQueue"
    )


def test_zero_of_what_no_group_covers_is_nothing() -> None:
    asks_zero = PodSet("main", 1, PodTemplate({GPU: 1, "example.com/nic": 0}))
    found = decided("new", queue("a", 8), workload("new", "a", pod_sets=(asks_zero,)))
    assert found.outcome is ADMITTED
    assert found.pod_sets[0].flavors == {GPU: "h100"}


def test_what_no_group_covers_is_ignored_where_kueue_is_told_to() -> None:
    config = KueueConfig("v0.19.2", ignores_undeclared=True, is_read=True)
    found = decided("new", queue("a", 8), workload("new", "a", cpu=1), kueue=config)
    assert found.outcome is ADMITTED
    assert found.pod_sets[0].flavors == {GPU: "h100"}


def test_a_queue_without_any_quota() -> None:
    empty = queue("a")
    assert decided("new", empty, workload("new", "a")).pending is NO_FIT
    nothing = workload("new", "a", pod_sets=(PodSet("main", 1, PodTemplate({})),))
    assert decided("new", empty, nothing).outcome is ADMITTED


def test_zero_quota_is_not_missing_quota() -> None:
    zero = decided("new", queue("a", 0), workload("new", "a"))
    assert (zero.pending, zero.reason) == (NO_FIT, "ExceedsMaxQuota")
    borrowed = decided("new", queue("a", 0, cohort="org"), queue("b", 8, cohort="org"), workload("new", "a"))
    assert (borrowed.outcome, borrowed.level) == (ADMITTED, 1)


def test_a_flavor_that_lists_no_resources_has_no_quota() -> None:
    spec = queue("a", {"h100": 8, "l4": 8})
    spec = replace(spec, quotas={GPUS: FlavorQuota(8)})
    objects = spec, worlds.flavor("l4"), workload("old", "a", 8, holding=True)
    found = decided("new", *objects, workload("new", "a"))
    assert found.pending is NO_CANDIDATES
    assert "flavor l4" in found.message


@pytest.mark.parametrize(
    "how",
    [
        {"stop_policy": "Hold"},
        {"stop_policy": "HoldAndDrain"},
        {"is_active": False, "reason": "CheckNotFoundOrInactive"},
    ],
)
def test_an_inactive_queue_admits_nobody_lends_on_and_gives_no_victims(how: dict[str, Any]) -> None:
    objects = queue("a", 4, cohort="org", reclaim="Any", within="LowerPriority")
    stopped = queue("b", 4, cohort="org", **how)
    result = cycle(objects, stopped, workload("own", "b", 1), workload("new", "a", 8))
    assert outcomes(result) == {"own": "waiting", "new": "admitted"}
    held = workload("old", "b", 6, holding=True)
    result = cycle(objects, stopped, held, workload("new", "a", 3, priority=9))
    assert outcomes(result) == {"old": "keeps-running", "new": NO_CANDIDATES}
    running = cycle(objects, queue("b", 4, cohort="org"), held, workload("new", "a", 3, priority=9))
    assert outcomes(running)["old"] == "preempted"


@pytest.mark.parametrize("policy", ["Hold", "HoldAndDrain"])
def test_a_stopped_local_queue_stops_its_own_only(policy: str) -> None:
    objects = queue("a", 8), worlds.local_queue("other", "a", "a", stop_policy=policy)
    theirs = workload("theirs", "a", rest={"queue": "other"})
    assert outcomes(cycle(*objects, theirs, workload("mine", "a"))) == {
        "theirs": "inadmissible",
        "mine": "admitted",
    }


def test_a_flavor_that_does_not_exist_makes_its_queue_inactive() -> None:
    state = worlds.state(
        queue("a", {"h100": 4, "gone": 4}, cohort="org"),
        queue("b", 4, cohort="org"),
        workload("one", "a"),
        workload("two", "b", 8),
    )
    state = replace(state, flavors={uid: each for uid, each in state.flavors.items() if uid != "gone"})
    assert outcomes(cycle_of(state)) == {"one": "waiting", "two": "admitted"}


def test_nothing_is_admitted_on_or_below_a_circle_of_cohorts() -> None:
    result = cycle(
        cohort("p", 4, parent="q"),
        cohort("q", 4, parent="p"),
        cohort("below", 4, parent="q"),
        queue("a", 8, cohort="p"),
        queue("b", 8, cohort="below"),
        queue("free", 8),
        workload("one", "a"),
        workload("two", "b"),
        workload("three", "free"),
    )
    assert outcomes(result) == {"one": "waiting", "two": "waiting", "three": "admitted"}


def test_queues_that_lead_nowhere() -> None:
    result = cycle(
        queue("a", 8),
        worlds.local_queue("lost", "no-such-queue", "a"),
        workload("one", "a", rest={"queue": "lost"}),
        workload("two", "a", rest={"queue": "never-made"}),
        workload("three", "a"),
    )
    assert outcomes(result) == {"one": "inadmissible", "two": "inadmissible", "three": "admitted"}
    assert not result.decisions["one"].parked


@pytest.mark.parametrize(("key", "is_admitted"), [("team", True), ("absent", False)])
def test_namespace_selector(key: str, is_admitted: bool) -> None:
    exists = SelectorRequirement(key, "Exists")
    space = builders.namespace("space", {"team": "nlp"})
    objects = queue("a", 8, namespace_selector=(exists,)), worlds.local_queue("main", "a", "space"), space
    found = decided("new", *objects, workload("new", "a", namespace="space"))
    assert (found.outcome is ADMITTED) is is_admitted
    if not is_admitted:
        assert (found.pending, found.reason, found.parked) == (INADMISSIBLE, "Misconfigured", True)


@pytest.mark.parametrize("is_strict", [True, False])
def test_a_head_of_a_namespace_that_is_not_taken_has_its_turn_and_is_parked(is_strict: bool) -> None:
    """Even in a StrictFIFO queue, which no workload of that namespace blocks for longer than a cycle."""
    named = SelectorRequirement("kubernetes.io/metadata.name", "In", ("a",))
    result = cycle(
        queue("a", 8, strict=is_strict, namespace_selector=(named,)),
        worlds.local_queue("main", "a", "elsewhere"),
        workload("first", "a", 2, namespace="elsewhere", created=9000),
        workload("new", "a"),
    )
    assert outcomes(result) == {"first": "inadmissible", "new": "waiting"}
    assert result.decisions["first"].parked
    assert not result.decisions["new"].parked
    assert result.order == ()


def test_no_selector_matches_no_namespace_and_an_empty_one_all() -> None:
    assert (
        decided("new", queue("a", 8, namespace_selector=None), workload("new", "a")).pending is INADMISSIBLE
    )
    assert decided("new", queue("a", 8, namespace_selector=()), workload("new", "a")).outcome is ADMITTED


def test_a_namespace_that_nobody_knows_has_its_name_for_a_label() -> None:
    named = SelectorRequirement("kubernetes.io/metadata.name", "In", ("a",))
    state = worlds.state(queue("a", 8, namespace_selector=(named,)), workload("new", "a"))
    assert cycle_of(replace(state, namespaces={})).decisions["new"].outcome is ADMITTED


@pytest.mark.parametrize(("gone", "is_admitted"), [(0, False), (1, False), (2, True)])
def test_pods_that_are_done_give_their_quota_back(gone: int, is_admitted: bool) -> None:
    old = workload("old", "a", 2, 3, holding=True, rest={"reclaimable": {"main": gone}})
    found = decided("new", queue("a", 8), old, workload("new", "a", 6))
    assert (found.outcome is ADMITTED) is is_admitted


def test_pods_that_are_done_are_not_asked_for_again() -> None:
    again = workload("new", "a", 4, 3, rest={"reclaimable": {"main": 1}})
    found = decided("new", queue("a", 8), again)
    assert (found.outcome, found.pod_sets[0].count) == (ADMITTED, 2)
    assert decided("new", queue("a", 7), again).pending is NO_FIT


def test_what_kueue_says_it_asks_goes_before_its_templates() -> None:
    """After LimitRanges, overhead of runtime classes and transformations, which templates do not show."""
    told = workload("new", "a", 4, 2, rest={"asked": {"main": {GPU: 10}}})
    assert decided("new", queue("a", 9), told).pending is NO_FIT
    assert decided("new", queue("a", 10), told).outcome is ADMITTED


def test_an_evicted_workload_holds_its_quota_until_it_is_back() -> None:
    old = workload("old", "a", 8, holding=True, evicted=60)
    result = cycle(queue("a", 8), old, workload("new", "a", 1))
    assert outcomes(result) == {"old": "being-evicted", "new": NO_CANDIDATES}


def test_quotas_of_other_flavors_do_not_count() -> None:
    spec = queue("a", {"h100": 4, "l4": 4})
    assert decided("new", spec, workload("new", "a", 5)).reason == "ExceedsMaxQuota"
    assert decided("new", spec, workload("new", "a", 4)).outcome is ADMITTED
    assert spec.quotas.keys() == {GPUS, FlavorResource("l4", GPU)}


def test_more_held_than_there_is_leaves_nothing() -> None:
    """Quota that was lowered afterwards: no less than nothing is left, and others' quota is not touched."""
    held = workload("old", "a", 8, holding=True)
    objects = queue("a", 4, cohort="org", borrowing=0), queue("b", 8, cohort="org"), held
    assert decided("new", *objects, workload("new", "a", 1)).pending is NO_CANDIDATES
    assert decided("new", *objects, workload("new", "b", 4)).outcome is ADMITTED
    assert decided("new", *objects, workload("new", "b", 5)).outcome is PENDING
    assert not outlook_of(worlds.state(*objects, workload("new", "a", 5)), "new").fits_empty
