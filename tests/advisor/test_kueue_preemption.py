"""Classical preemption: who may be made to leave, in which order, and how few."""

from __future__ import annotations

from typing import Any

import pytest

from gpucost.advisor.model.cycle_results import CycleOutcome, PendingClass
from gpucost.cluster.objects.kueue import Workload
from tests.advisor.kueue_runs import cycle, outcomes
from tests.advisor.worlds import cohort, queue, workload

NO_CANDIDATES = PendingClass.NO_CANDIDATES
NEEDS = PendingClass.NEEDS_PREEMPTION


def _held(name: str, where: str, gpus: int = 4, priority: int = 0, **times: Any) -> Workload:
    return workload(name, where, gpus, priority=priority, holding=True, **times)


def _victims(*objects: object) -> dict[str, str]:
    """Of the workload ``new``: why, by name; those that were evicted already have no reason."""
    result = cycle(*objects)
    decision = result.decisions["new"]
    assert (decision.outcome is CycleOutcome.PREEMPTING) is bool(decision.preempts)
    return {name: result.decisions[name].preempted_reason for name in sorted(decision.preempts)}


@pytest.mark.parametrize(
    ("policy", "priority", "created", "is_taken"),
    [
        ("Never", 0, 60, False),
        ("LowerPriority", 4, 9000, True),
        ("LowerPriority", 5, 60, False),
        ("LowerPriority", 6, 60, False),
        ("LowerOrNewerEqualPriority", 4, 9000, True),
        ("LowerOrNewerEqualPriority", 5, 3599, True),
        ("LowerOrNewerEqualPriority", 5, 3600, False),
        ("LowerOrNewerEqualPriority", 5, 3601, False),
        ("LowerOrNewerEqualPriority", 6, 60, False),
    ],
)
def test_within_the_queue(policy: str, priority: int, created: float, is_taken: bool) -> None:
    """Equal priority counts by creation: all of these have had their quota for an equally long time."""
    held = _held("old", "a", 8, priority, created=created, reserved=30)
    found = _victims(queue("a", 8, within=policy), held, workload("new", "a", 1, priority=5, created=3600))
    assert found == ({"old": "InClusterQueue"} if is_taken else {})


@pytest.mark.parametrize(
    ("policy", "priority", "is_taken"),
    [
        ("Never", 0, False),
        ("LowerPriority", 4, True),
        ("LowerPriority", 5, False),
        ("Any", 4, True),
        ("Any", 5, True),
        ("Any", 99, True),
    ],
)
def test_of_other_queues_of_the_cohort(policy: str, priority: int, is_taken: bool) -> None:
    objects = queue("a", 4, cohort="org", reclaim=policy), queue("b", 4, cohort="org")
    found = _victims(*objects, _held("old", "b", 8, priority), workload("new", "a", 4, priority=5))
    assert found == ({"old": "InCohortReclamation"} if is_taken else {})


def test_never_of_another_cohort() -> None:
    objects = queue("a", 4, cohort="one", reclaim="Any"), queue("b", 4, cohort="two")
    held = _held("own", "a", 4), _held("old", "b", 4)
    assert _victims(*objects, *held, workload("new", "a", 4, priority=5)) == {}


@pytest.mark.parametrize(("used", "is_taken"), [(4, False), (5, True)])
def test_only_of_queues_above_their_quota(used: int, is_taken: bool) -> None:
    """The asking queue lacks quota either way: another one borrows the rest, and may not be touched."""
    objects = (
        queue("a", 4, cohort="org", reclaim="LowerPriority"),
        queue("b", 4, cohort="org"),
        queue("c", 0, cohort="org"),
    )
    held = (*(_held(f"b{place}", "b", 1) for place in range(used)), _held("c0", "c", 8 - used, 9))
    found = _victims(*objects, *held, workload("new", "a", 1, priority=5))
    assert len(found) == is_taken


def test_no_queue_is_taken_below_its_quota() -> None:
    """Of two that borrow 1 each, 2 are needed: one of each, though all of one would be newer."""
    objects = (
        queue("a", 2, cohort="org", reclaim="Any"),
        queue("b", 3, cohort="org"),
        queue("c", 3, cohort="org"),
    )
    of_b = (_held(f"b{place}", "b", 1, reserved=10 + place) for place in range(4))
    of_c = (_held(f"c{place}", "c", 1, reserved=50 + place) for place in range(4))
    found = _victims(*objects, *of_b, *of_c, workload("new", "a", 2))
    assert set(found) == {"b0", "c0"}


def test_lower_priority_goes_first_then_the_newest_quota_then_the_name() -> None:
    spec = queue("a", 16, within="LowerPriority")
    high = _held("high", "a", 4, 3, reserved=1)
    older, newer = _held("older", "a", 4, 2, reserved=200), _held("newer", "a", 4, 2, reserved=100)
    low = _held("low", "a", 4, 1, reserved=300)

    def of(gpus: int) -> set[str]:
        return set(_victims(spec, high, older, newer, low, workload("new", "a", gpus, priority=9)))

    assert of(4) == {"low"}
    assert of(8) == {"low", "newer"}
    assert of(12) == {"low", "newer", "older"}
    twins = _held("second", "a", 8), _held("first", "a", 8)
    assert set(_victims(spec, *twins, workload("new", "a", 1, priority=9))) == {"first"}


def test_other_queues_go_before_the_own() -> None:
    objects = queue("a", 8, cohort="org", within="LowerPriority", reclaim="Any"), queue("b", 0, cohort="org")
    held = _held("own", "a", 4, 0, reserved=1), _held("theirs", "b", 4, 3, reserved=900)
    assert _victims(*objects, *held, workload("new", "a", 4, priority=5)) == {"theirs": "InCohortReclamation"}
    assert _victims(*objects, *held, workload("new", "a", 8, priority=5)) == {
        "theirs": "InCohortReclamation",
        "own": "InClusterQueue",
    }


def test_who_need_not_leave_after_all_stays() -> None:
    """The small one goes first, and comes back once the big one has to go anyway."""
    held = _held("small", "a", 2, 0), _held("big", "a", 8, 1)
    assert set(
        _victims(queue("a", 10, within="LowerPriority"), *held, workload("new", "a", 8, priority=9))
    ) == {"big"}
    assert set(
        _victims(queue("a", 10, within="LowerPriority"), *held, workload("new", "a", 9, priority=9))
    ) == {
        "big",
        "small",
    }


def test_where_all_victims_are_not_enough_nobody_leaves() -> None:
    held = _held("low", "a", 4, 0), _held("high", "a", 4, 9)
    result = cycle(queue("a", 8, within="LowerPriority"), *held, workload("new", "a", 5, priority=5))
    assert outcomes(result) == {"low": "keeps-running", "high": "keeps-running", "new": NO_CANDIDATES}


def test_who_was_told_to_leave_goes_first_and_gets_no_new_reason() -> None:
    gone = workload("gone", "a", 4, priority=4, holding=True, evicted=60)
    result = cycle(
        queue("a", 8, within="LowerPriority"),
        gone,
        _held("low", "a", 4, 0),
        workload("new", "a", 4, priority=5),
    )
    assert outcomes(result) == {"gone": "being-evicted", "low": "keeps-running", "new": NEEDS}
    assert result.decisions["new"].preempts == ("gone",)
    assert result.decisions["gone"].preempted_by == "new"
    assert result.decisions["gone"].preempted_reason == ""


def test_only_who_holds_what_is_short_is_taken() -> None:
    cheap = workload("cheap", "a", 0, cpu=4, holding=True)
    spec = queue("a", 8, cpu=64, within="LowerPriority")
    found = _victims(spec, cheap, _held("old", "a", 8, 3), workload("new", "a", 1, cpu=1, priority=5))
    assert set(found) == {"old"}


@pytest.mark.parametrize(
    ("borrow", "threshold", "priority", "outcome"),
    [
        ("Never", None, 0, PendingClass.NO_FIT),
        ("LowerPriority", None, 4, NEEDS),
        ("LowerPriority", None, 5, NO_CANDIDATES),
        ("LowerPriority", 4, 4, NEEDS),
        ("LowerPriority", 3, 4, NO_CANDIDATES),
        ("LowerPriority", 3, 3, NEEDS),
    ],
)
def test_preempting_while_borrowing(
    borrow: str, threshold: int | None, priority: int, outcome: PendingClass
) -> None:
    """Of 12 the other queue has 8: 6 are asked by a queue with 4 of its own."""
    result = cycle(
        queue("a", 4, cohort="org", reclaim="Any", borrow=borrow, threshold=threshold),
        queue("b", 4, cohort="org"),
        queue("c", 4, cohort="org"),
        _held("old", "b", 4, priority),
        _held("older", "b", 4, 9, reserved=9000),
        workload("new", "a", 6, priority=5),
    )
    assert result.decisions["new"].pending is outcome
    if outcome is NEEDS:
        assert result.decisions["old"].preempted_reason == "InCohortReclaimWhileBorrowing"
        assert result.decisions["new"].level == 1


def test_within_its_own_quota_the_threshold_does_not_matter() -> None:
    """The second attempt is without borrowing, and then the reason is another."""
    objects = (
        queue("a", 4, cohort="org", reclaim="Any", borrow="LowerPriority", threshold=1),
        queue("b", 4, cohort="org"),
    )
    found = _victims(*objects, _held("old", "b", 8, 9), workload("new", "a", 4, priority=5))
    assert found == {"old": "InCohortReclamation"}


@pytest.mark.parametrize(("of_b", "left"), [(8, 1), (9, 0)])
def test_it_borrows_first_where_there_is_nobody_to_take_from(of_b: int, left: int) -> None:
    """8 are asked and 4 used of its own 8: with what c lends, one victim does. Where b has more than its
    own, it may be taken from, if the asking queue ends within its quota: that is tried first."""
    result = cycle(
        queue("a", 8, cohort="org", within="LowerPriority", reclaim="LowerPriority"),
        queue("b", 8, cohort="org"),
        queue("c", 2 + of_b - 8, cohort="org"),
        _held("own", "a", 2),
        _held("own-too", "a", 2),
        _held("theirs", "b", of_b),
        workload("new", "a", 8, priority=5),
    )
    kept = [
        name for name in ("own", "own-too") if result.decisions[name].outcome is CycleOutcome.KEEPS_RUNNING
    ]
    assert result.decisions["new"].pending is NEEDS
    assert result.decisions["theirs"].outcome is CycleOutcome.KEEPS_RUNNING
    assert len(kept) == left


def test_a_queue_that_uses_all_of_its_own_borrows_first() -> None:
    """Others that borrow may only be taken from within its own quota, of which nothing is left."""
    result = cycle(
        queue("a", 4, cohort="org", within="LowerPriority", reclaim="Any"),
        queue("b", 0, cohort="org"),
        queue("c", 6, cohort="org"),
        _held("own", "a", 2),
        _held("own-too", "a", 2),
        _held("theirs", "b", 4),
        workload("new", "a", 4, priority=5),
    )
    assert result.decisions["new"].pending is NEEDS
    assert len(result.decisions["new"].preempts) == 1
    assert result.decisions["theirs"].outcome is CycleOutcome.KEEPS_RUNNING


def test_by_its_place_in_the_tree_it_takes_back_what_its_subtree_has() -> None:
    """The quota is of the cohort left, and used by a queue in the cohort right."""
    tree = cohort("org"), cohort("left", 4, parent="org"), cohort("right", parent="org")
    held = _held("old", "b", 4, 9)
    for policy, is_taken in (("Any", True), ("LowerPriority", False)):
        spec = queue("a", 0, cohort="left", reclaim=policy)
        found = _victims(
            *tree, spec, queue("b", 0, cohort="right"), held, workload("new", "a", 4, priority=5)
        )
        assert found == ({"old": "InCohortReclamation"} if is_taken else {})


def test_in_a_flat_cohort_nothing_beyond_its_own_quota_is_taken_back() -> None:
    spec = queue("a", 0, cohort="org", reclaim="Any")
    result = cycle(
        cohort("org", 4), spec, queue("b", 0, cohort="org"), _held("old", "b", 4), workload("new", "a", 4)
    )
    assert outcomes(result) == {"old": "keeps-running", "new": PendingClass.NO_FIT}
    assert result.decisions["new"].reason == "WaitingForQuota"


def test_a_subtree_within_its_quota_is_not_touched() -> None:
    """A queue above its own quota, below a cohort that is not above its own."""
    tree = cohort("org", 4), cohort("right", 4, parent="org")
    objects = queue("a", 4, cohort="org", reclaim="Any"), queue("b", 0, cohort="right")
    thief = queue("c", 0, cohort="org")
    held = _held("inside", "b", 4, 0), _held("outside", "c", 8, 3)
    found = _victims(*tree, *objects, thief, *held, workload("new", "a", 4, priority=5))
    assert set(found) == {"outside"}


@pytest.mark.parametrize(
    ("reclaim", "expected"),
    [("Never", "no-longer-fits"), ("LowerPriority", "no-longer-fits"), ("Any", "admitted")],
)
def test_a_head_without_candidates_keeps_its_quota_free_unless_it_can_have_it_back(
    reclaim: str, expected: str
) -> None:
    """4 of the 8 of queue a are free; its head wants all 8, the head of b would borrow the 4."""
    result = cycle(
        queue("a", 8, cohort="org", within="LowerPriority", reclaim=reclaim),
        queue("b", 0, cohort="org"),
        _held("old", "a", 4, 9),
        workload("first", "a", 8, priority=5),
        workload("second", "b", 4, priority=1),
    )
    assert outcomes(result) == {"old": "keeps-running", "first": NO_CANDIDATES, "second": expected}


@pytest.mark.parametrize(
    ("limit", "of_others", "expected"),
    [
        (0, 0, "no-longer-fits"),
        (0, 1, "admitted"),
        (2, 2, "no-longer-fits"),
        (2, 3, "admitted"),
        (None, 3, "no-longer-fits"),
    ],
)
def test_what_is_kept_free_is_no_more_than_it_may_have(
    limit: int | None, of_others: int, expected: str
) -> None:
    """Of its own 8 it uses 4, and wants 8 more; beside these 4 it keeps what it may borrow."""
    result = cycle(
        queue("a", 8, cohort="org", within="LowerPriority", borrowing=limit),
        queue("b", 0, cohort="org"),
        queue("c", of_others, cohort="org"),
        _held("old", "a", 4, 9),
        workload("first", "a", 8, priority=5),
        workload("second", "b", 1, priority=1),
    )
    assert outcomes(result) == {"old": "keeps-running", "first": NO_CANDIDATES, "second": expected}


def test_two_heads_do_not_take_the_same_victim() -> None:
    result = cycle(
        queue("a", 4, cohort="org", reclaim="Any"),
        queue("c", 4, cohort="org", reclaim="Any"),
        queue("b", 0, cohort="org"),
        _held("old", "b", 8),
        workload("first", "a", 4, priority=2),
        workload("second", "c", 4, priority=1),
    )
    assert outcomes(result) == {
        "old": "preempted",
        "first": NEEDS,
        "second": PendingClass.OVERLAPPING,
    }
    second = result.decisions["second"]
    assert second.message == "Workload has overlapping preemption targets with another workload"
    assert not second.parked
    assert result.decisions["old"].preempted_by == "first"


def test_victims_of_heads_before_count_as_gone_so_a_cycle_may_end_above_quota() -> None:
    """12 in all, 8 of them in use: the first head takes those 8 for its 6, the others then find 6 free."""
    result = cycle(
        queue("a", 8, cohort="org", reclaim="Any"),
        queue("c", 2, cohort="org"),
        queue("d", 2, cohort="org"),
        queue("b", 0, cohort="org"),
        _held("old", "b", 8),
        workload("first", "a", 6),
        workload("second", "c", 3),
        workload("third", "d", 3),
    )
    assert outcomes(result) == {
        "old": "preempted",
        "first": NEEDS,
        "second": "admitted",
        "third": "admitted",
    }
    assert result.order == (("first", "second", "third"),)


def test_the_level_is_that_after_the_victims_are_gone() -> None:
    """4 of the own queue in use, 8 asked: 4 beyond its own before, none after."""
    result = cycle(
        queue("a", 8, cohort="org", within="LowerPriority"),
        queue("b", 8, cohort="org"),
        _held("old", "a", 4),
        _held("theirs", "b", 8),
        workload("new", "a", 8, priority=5),
    )
    assert (result.decisions["new"].pending, result.decisions["new"].level) == (NEEDS, 0)


def test_the_message_counts_the_victims() -> None:
    held = _held("one", "a", 4), _held("two", "a", 4)
    result = cycle(queue("a", 8, within="LowerPriority"), *held, workload("new", "a", 8, priority=5))
    decision = result.decisions["new"]
    assert decision.reason == "WaitingForPreemptedWorkloads"
    assert decision.message == (
        "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor "
        "h100, 8 more needed. Pending the preemption of 2 workload(s)"
    )
    assert not decision.parked
