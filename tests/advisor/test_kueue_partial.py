"""Partial admission: the largest size that fits or can preempt, as Kueue searches for it."""

from __future__ import annotations

import pytest

from gpucost.advisor.kueue.cycle import nominate
from gpucost.advisor.kueue.snapshot import KueueSnapshot
from gpucost.advisor.model.cycle_results import CycleOutcome, PendingClass
from gpucost.cluster.objects.kueue import Workload
from tests.advisor import worlds
from tests.advisor.kueue_runs import asked, decided, flavors, outlook_of
from tests.advisor.worlds import pod_set, queue, workload

ADMITTED = CycleOutcome.ADMITTED


def _new(pods: int = 8, least: int | None = 2, priority: int = 0) -> Workload:
    return workload("new", "a", 1, pods, priority, least=least)


@pytest.mark.parametrize(("free", "size"), [(8, 8), (7, 7), (5, 5), (3, 3), (2, 2), (1, None), (0, None)])
def test_the_largest_size_that_fits(free: int, size: int | None) -> None:
    held = [workload("old", "a", 8 - free, holding=True)] if free < 8 else []
    found = decided("new", queue("a", 8), *held, _new())
    assert (found.outcome is ADMITTED) is (size is not None)
    assert [each.count for each in found.pod_sets] == ([] if size is None else [size])


def test_without_a_minimum_all_are_needed() -> None:
    held = workload("old", "a", 1, holding=True)
    assert decided("new", queue("a", 8), held, _new(least=None)).pending is PendingClass.NO_CANDIDATES
    assert decided("new", queue("a", 8), held, _new(least=8)).pending is PendingClass.NO_CANDIDATES


def test_what_never_fits_whole_may_fit_in_part() -> None:
    found = decided("new", queue("a", 4), _new())
    assert (found.outcome, found.pod_sets[0].count) == (ADMITTED, 4)
    assert decided("new", queue("a", 1), _new()).reason == "ExceedsMaxQuota"


def test_preempting_at_full_size_goes_before_a_smaller_size() -> None:
    old = workload("old", "a", 4, holding=True)
    found = decided("new", queue("a", 8, within="LowerPriority"), old, _new(priority=1))
    assert (found.outcome, found.pod_sets[0].count) == (CycleOutcome.PREEMPTING, 8)


def test_a_smaller_size_may_preempt_too() -> None:
    """8 never fit; 6 do once the lower one is gone, and that is more than the 4 that fit at once."""
    old = workload("old", "a", 2, holding=True)
    found = decided("new", queue("a", 6, within="LowerPriority"), old, _new(priority=1))
    assert (found.outcome, found.pod_sets[0].count) == (CycleOutcome.PREEMPTING, 6)


def test_all_pod_sets_shrink_in_proportion() -> None:
    """Kueue's step takes from each pod set what the step is of the whole range, rounded down."""
    sets = pod_set("first", 4, 1, least=1), pod_set("second", 8, 1, least=2), pod_set("third", 1, 1)
    found = decided("new", queue("a", 10), workload("new", "a", pod_sets=sets))
    assert [each.count for each in found.pod_sets] == [3, 6, 1]
    assert decided("new", queue("a", 3), workload("new", "a", pod_sets=sets)).pending is PendingClass.NO_FIT
    least = decided("new", queue("a", 4), workload("new", "a", pod_sets=sets))
    assert [each.count for each in least.pod_sets] == [1, 2, 1]


def test_every_pod_set_and_flavor_is_searched_again_at_each_size() -> None:
    found = decided(
        "new",
        queue("a", {"h100": 4, "l4": 6}),
        workload("old", "a", 2, holding=True, flavor="l4"),
        workload("new", "a", 1, 8, least=1),
    )
    assert (found.pod_sets[0].count, flavors(found)) == (4, {"main": "h100"})


def test_a_minimum_above_the_size_or_below_zero_is_kept_within() -> None:
    state = worlds.state(
        queue("a", 8), workload("new", "a", 1, 4, least=9), workload("two", "a", 1, 4, least=-3)
    )
    snapshot = KueueSnapshot(state, state.schedulers.kueue)
    assert asked(snapshot, "new").pod_sets[0].least == 4
    assert asked(snapshot, "two").pod_sets[0].least == 0
    assert nominate(snapshot, asked(snapshot, "two")).assignment.pod_sets[0].count == 4


def test_the_outlook_says_the_size() -> None:
    held = workload("old", "a", 5, holding=True)
    found = outlook_of(worlds.state(queue("a", 8), held, _new()), "new")
    assert found.admitted
    assert found.nominee is not None
    assert [each.count for each in found.nominee.assignment.pod_sets] == [3]
