"""Fair sharing: shares, who is next, and whose workloads go."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from gpucost.advisor.kueue.snapshot import KueueSnapshot
from gpucost.advisor.model.cycle_results import CycleResult, PendingClass
from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.objects.scheduler_config import (
    FINAL_SHARE,
    INITIAL_SHARE,
    STRATEGIES,
    KueueConfig,
)
from tests.advisor import worlds
from tests.advisor.cases_random import reordered
from tests.advisor.kueue_runs import cycle, cycle_of, outcomes
from tests.advisor.worlds import cohort, queue, workload

NO_CANDIDATES = PendingClass.NO_CANDIDATES
NEEDS = PendingClass.NEEDS_PREEMPTION
FAIR = KueueConfig("v0.19.2", True, is_read=True)


def _held(name: str, where: str, gpus: int, priority: int = 0, **more: Any) -> Workload:
    return workload(name, where, gpus, priority=priority, holding=True, **more)


def _fair(*objects: object, strategies: tuple[str, ...] = STRATEGIES) -> CycleResult:
    return cycle(*objects, kueue=KueueConfig("v0.19.2", True, strategies, is_read=True))


def _pool(
    weight_of_a: Fraction | int = 1, weight_of_b: Fraction | int = 1, **policy: Any
) -> tuple[object, ...]:
    """12 GPUs that two queues without quota of their own share."""
    policies = {"reclaim": "Any", **policy}
    return (
        cohort("org", 12),
        queue("a", 0, cohort="org", weight=weight_of_a, **policies),
        queue("b", 0, cohort="org", weight=weight_of_b),
    )


def _share(queue_name: str, *objects: object) -> tuple[bool, float]:
    state = worlds.state(*objects, kueue=FAIR)
    snapshot = KueueSnapshot(state, FAIR)
    return snapshot.shares.of(snapshot.queues[queue_name].node).rank


def test_the_share_is_what_is_borrowed_of_what_could_be_lent() -> None:
    assert _share("a", *_pool(), _held("old", "a", 3)) == (False, 250.0)
    assert _share("a", *_pool(Fraction(2)), _held("old", "a", 3)) == (False, 125.0)
    assert _share("a", *_pool(Fraction(1, 2)), _held("old", "a", 3)) == (False, 500.0)
    assert _share("a", *_pool()) == (False, 0.0)


def test_the_share_is_of_the_scarcest_resource() -> None:
    objects = (
        cohort("org", 12, cpu=100),
        queue("a", 0, cpu=0, cohort="org"),
        _held("old", "a", 3, cpu=50),
    )
    assert _share("a", *objects) == (False, 500.0)


def test_within_its_own_quota_a_queue_has_no_share() -> None:
    objects = queue("a", 8, cohort="org"), queue("b", 8, cohort="org")
    assert _share("a", *objects, _held("old", "a", 8)) == (False, 0.0)
    assert _share("a", *objects, _held("old", "a", 12)) == (False, 250.0)
    assert _share("a", queue("a", 8), _held("old", "a", 12)) == (False, 0.0)


def test_who_borrows_with_weight_zero_is_above_all() -> None:
    assert _share("a", *_pool(0), _held("old", "a", 1)) > _share("b", *_pool(0), _held("old", "b", 12))
    assert _share("a", *_pool(0)) == (False, 0.0)


@pytest.mark.parametrize(
    ("strategies", "gpus", "is_taken"),
    [
        # b has one workload of 8 of the 12; what is asked beyond 4 needs it gone.
        ((FINAL_SHARE,), 5, False),
        ((INITIAL_SHARE,), 5, True),
        ((INITIAL_SHARE,), 7, True),
        ((INITIAL_SHARE,), 8, False),  # as much as b has now
        (STRATEGIES, 7, True),
        (STRATEGIES, 8, False),
    ],
)
def test_strategies_with_one_big_victim(strategies: tuple[str, ...], gpus: int, is_taken: bool) -> None:
    result = _fair(*_pool(), _held("old", "b", 8), workload("new", "a", gpus), strategies=strategies)
    assert result.decisions["new"].pending is (NEEDS if is_taken else NO_CANDIDATES)
    if is_taken:
        assert result.decisions["old"].preempted_reason == "InCohortFairSharing"


@pytest.mark.parametrize(
    ("strategies", "gpus", "is_taken"),
    [
        ((FINAL_SHARE,), 6, True),  # 6 and 6 afterwards: equal is enough
        ((FINAL_SHARE,), 7, False),
        ((INITIAL_SHARE,), 6, True),
        (STRATEGIES, 7, False),  # the second strategy takes one of each queue, and needs two
    ],
)
def test_strategies_with_two_victims(strategies: tuple[str, ...], gpus: int, is_taken: bool) -> None:
    held = _held("one", "b", 6, reserved=10), _held("two", "b", 6, reserved=20)
    result = _fair(*_pool(), *held, workload("new", "a", gpus), strategies=strategies)
    assert result.decisions["new"].preempts == (("one",) if is_taken else ())


@pytest.mark.parametrize(
    ("of_a", "of_b", "gpus", "victims"),
    [
        (1, 1, 7, set()),
        (2, 1, 7, {"one", "two"}),
        (Fraction(1, 2), 1, 6, set()),
        (1, 2, 6, set()),
        (1, Fraction(1, 2), 7, {"one", "two"}),
        (1, 0, 7, {"one", "two"}),  # b's share has no end while it borrows
        (0, 1, 1, set()),  # a's has none
    ],
)
def test_weights(of_a: Fraction | int, of_b: Fraction | int, gpus: int, victims: set[str]) -> None:
    held = _held("one", "b", 6, reserved=10), _held("two", "b", 6, reserved=20)
    result = _fair(*_pool(of_a, of_b), *held, workload("new", "a", gpus))
    assert set(result.decisions["new"].preempts) == victims


def test_within_its_nominal_quota_shares_do_not_matter() -> None:
    """Queue a borrows all the cpu there is, and asks for its own GPUs back."""
    objects = (
        cohort("org", cpu=100),
        queue("a", 4, cpu=0, cohort="org", reclaim="Any"),
        queue("b", 0, cpu=0, cohort="org"),
        workload("greedy", "a", 0, cpu=99, holding=True),
        _held("old", "b", 4, 9),
    )
    result = _fair(*objects, workload("new", "a", 4))
    assert result.decisions["new"].preempts == ("old",)
    assert result.decisions["old"].preempted_reason == "InCohortReclamation"


def test_policies_hold_under_fair_sharing_too() -> None:
    held = _held("old", "b", 12, 5)
    for policy, priority, taken in (
        ("Never", 9, False),
        ("LowerPriority", 5, False),
        ("LowerPriority", 6, True),
        ("Any", 0, True),
    ):
        result = _fair(*_pool(reclaim=policy), held, workload("new", "a", 4, priority=priority))
        assert (outcomes(result)["old"] == "preempted") is taken


def test_the_own_queue_is_taken_by_its_own_policy() -> None:
    """It has the highest share then, and shares are not compared."""
    held = _held("own", "a", 8), _held("theirs", "b", 4)
    result = _fair(*_pool(within="LowerPriority"), *held, workload("new", "a", 4, priority=5))
    assert outcomes(result) == {"own": "preempted", "theirs": "keeps-running", "new": NEEDS}
    assert result.decisions["own"].preempted_reason == "InClusterQueue"


def test_who_was_told_to_leave_goes_first_of_its_queue() -> None:
    gone = _held("gone", "b", 4, 9, evicted=60, reserved=9000)
    held = gone, _held("low", "b", 4, 0), _held("lower", "b", 4, 0)
    result = _fair(*_pool(), *held, workload("new", "a", 4))
    assert result.decisions["new"].preempts == ("gone",)
    assert outcomes(result)["gone"] == "being-evicted"


def test_who_has_the_highest_share_gives_first() -> None:
    objects = cohort("org", 12), *(queue(name, 0, cohort="org", reclaim="Any") for name in "abc")
    held = _held("of-b", "b", 4, 0), *(_held(f"of-c-{place}", "c", 4, 9, reserved=place) for place in (1, 2))
    result = _fair(*objects, *held, workload("new", "a", 4))
    assert result.decisions["new"].preempts == ("of-c-1",)


def test_equal_shares_of_queues_are_decided_by_whose_victim_goes_first() -> None:
    objects = cohort("org", 12), *(queue(name, 0, cohort="org", reclaim="Any") for name in "abc")
    for lower in "bc":
        held = [
            _held(f"{name}{i}", name, 3, 0 if name == lower else 1, reserved=i)
            for name in "bc"
            for i in (1, 2)
        ]
        result = _fair(*objects, *held, workload("new", "a", 3))
        assert result.decisions["new"].preempts == (f"{lower}1",)


def test_shares_are_compared_below_the_common_ancestor() -> None:
    """Queue b has more than a has, but its cohort has no more than its own: no workload of it is
    preempted."""
    tree = cohort("org", 4), cohort("team", 8, parent="org"), cohort("rest", parent="org")
    objects = queue("a", 0, cohort="rest", reclaim="Any"), queue("b", 0, cohort="team")
    inside = _held("inside", "b", 8)
    result = _fair(*tree, *objects, inside, _held("own", "a", 4), workload("new", "a", 1))
    assert outcomes(result)["inside"] == "keeps-running"
    above = *tree, *objects, inside, _held("outside", "b", 4, reserved=1)
    result = _fair(*above, workload("new", "a", 2))
    assert result.decisions["new"].preempts == ("outside",)


def test_the_search_leaves_the_snapshot_as_it_was_where_nobody_is_found() -> None:
    held = _held("one", "b", 6, reserved=10), _held("two", "b", 6, reserved=20)
    result = _fair(*_pool(), *held, workload("new", "a", 7), workload("small", "b", 1))
    assert outcomes(result) == {
        "one": "keeps-running",
        "two": "keeps-running",
        "new": NO_CANDIDATES,
        "small": PendingClass.NO_FIT,
    }


def test_the_lower_share_is_next() -> None:
    """Classically the older would be."""
    held = _held("old", "a", 4)
    heads = workload("of-a", "a", 4, created=9000), workload("of-b", "b", 4, created=60)
    assert _fair(*_pool(), held, *heads).order == (("of-b", "of-a"),)
    assert cycle(*_pool(), held, *heads).order == (("of-a", "of-b"),)


def test_the_share_counts_with_the_workload_admitted() -> None:
    heads = workload("big", "a", 6, created=9000), workload("small", "b", 2, created=60)
    assert _fair(*_pool(), *heads).order == (("small", "big"),)


def test_equal_shares_go_by_priority_then_by_age() -> None:
    young, old = workload("young", "a", 4, created=60), workload("old", "b", 4, created=9000)
    assert _fair(*_pool(), young, old).order == (("old", "young"),)
    urgent = workload("young", "a", 4, priority=1, created=60)
    assert _fair(*_pool(), urgent, old).order == (("young", "old"),)


def test_who_does_not_borrow_what_it_asks_goes_before_shares() -> None:
    """Queue a has the higher share, of cpu; of the GPUs it asks it has its own."""
    objects = (
        cohort("org", 8, cpu=100),
        queue("a", 4, cpu=0, cohort="org"),
        queue("b", 0, cpu=0, cohort="org"),
        workload("cpus", "a", 0, cpu=90, holding=True),
    )
    heads = workload("own", "a", 4, created=60), workload("borrows", "b", 1, created=9000)
    assert _fair(*objects, *heads).order == (("own", "borrows"),)
    heads = workload("own", "a", 5, created=60), workload("borrows", "b", 1, created=9000)
    assert _fair(*objects, *heads).order == (("borrows", "own"),)


def test_victims_of_sibling_cohorts_with_equal_shares_do_not_depend_on_the_order_of_input() -> None:
    held = [_held(f"{name}{place}", name, 3, reserved=place) for name in "bc" for place in (1, 2)]
    state = worlds.state(
        cohort("org", 12),
        cohort("left", parent="org"),
        cohort("right", parent="org"),
        queue("a", 0, cohort="org", reclaim="Any"),
        queue("b", 0, cohort="left"),
        queue("c", 0, cohort="right"),
        *held,
        workload("new", "a", 3),
        kueue=FAIR,
    )
    found = [cycle_of(reordered(state, seed)) for seed in range(8)]
    assert len({each.decisions["new"].preempts for each in found}) == 1


def test_a_tie_of_queues_is_decided_by_name() -> None:
    heads = workload("two", "b", 4, created=60), workload("one", "a", 4, created=60)
    result = _fair(*_pool(), *heads)
    assert (result.order, result.ties) == ((("one", "two"),), ())


def test_without_a_cohort_nothing_is_shared() -> None:
    spec = queue("a", 8, within="LowerPriority", weight=0)
    result = _fair(spec, _held("old", "a", 8), workload("new", "a", 4, priority=1))
    assert outcomes(result) == {"old": "preempted", "new": NEEDS}


def test_an_inactive_queue_gives_no_victims() -> None:
    objects = cohort("org", 12), queue("a", 0, cohort="org", reclaim="Any")
    stopped = queue("b", 0, cohort="org", stop_policy="Hold")
    result = _fair(*objects, stopped, _held("old", "b", 12), workload("new", "a", 4))
    assert outcomes(result)["old"] == "keeps-running"
    assert cycle_of(worlds.state(*objects, stopped, kueue=FAIR)).order == ()
