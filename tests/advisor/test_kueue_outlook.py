"""What becomes of one workload that asks now: cycles in a row, and queues while others end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpucost.advisor.kueue.admission import AdmissionOutlook, KueueView, disciplines
from gpucost.advisor.kueue.snapshot import SnapshotQueue
from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.objects.metadata import StatusCondition
from gpucost.cluster.objects.state import ClusterState
from tests.advisor import worlds
from tests.advisor.kueue_runs import GPUS, asked, members, outlook_of, usages
from tests.advisor.worlds import cohort, queue, workload


def _outlook(*objects: object) -> AdmissionOutlook:
    """Of the workload ``new``."""
    return outlook_of(worlds.state(*objects), "new")


def _tried(
    name: str, gpus: int, reason: str = "WaitingForQuota", message: str = "couldn't", **more: Any
) -> Workload:
    """Pending in queue a, and Kueue has said why; older than ``new``."""
    said = {"conditions": {"QuotaReserved": StatusCondition(False, reason, message, None)}}
    return workload(name, "a", gpus, created=9000, rest=said, **more)


def test_it_is_admitted_with_its_flavor() -> None:
    found = _outlook(queue("a", 8), workload("new", "a", 8))
    assert (found.admitted, found.fits_empty, found.ahead, found.is_settled) == (True, True, 0, True)
    assert found.nominee is not None
    assert dict(found.nominee.assignment.usage) == {GPUS: 8}
    assert found.borrowed == {}


@pytest.mark.parametrize(("gpus", "borrowed"), [(2, 0), (4, 0), (5, 1), (8, 4)])
def test_what_is_borrowed_is_said(gpus: int, borrowed: int) -> None:
    found = _outlook(queue("a", 4, cohort="org"), queue("b", 4, cohort="org"), workload("new", "a", gpus))
    assert found.borrowed == ({GPUS: borrowed} if borrowed else {})


def test_what_was_borrowed_before_is_not_its_own() -> None:
    held = workload("old", "a", 6, holding=True)
    found = _outlook(queue("a", 4, cohort="org"), queue("b", 8, cohort="org"), held, workload("new", "a", 2))
    assert found.borrowed == {GPUS: 2}


def test_it_is_admitted_once_its_victims_have_left() -> None:
    held = workload("old", "a", 8, holding=True)
    found = _outlook(queue("a", 8, within="LowerPriority"), held, workload("new", "a", 4, priority=1))
    assert found.admitted
    assert [(each.member.uid, each.reason) for each in found.victims] == [("old", "InClusterQueue")]
    assert found.cycles == 2
    assert found.borrowed == {}


def test_a_preemptor_keeps_the_head_while_its_victims_leave() -> None:
    """What they give back wakes one that was parked, would come first, and would take all of it."""
    held = workload("old", "a", 8, holding=True)
    parked = _tried("parked", 8, priority=9)
    found = _outlook(queue("a", 8, within="LowerPriority"), held, parked, workload("new", "a", 4, priority=1))
    assert found.admitted
    assert [each.member.uid for each in found.victims] == ["old"]


def test_those_before_it_in_its_line_go_first() -> None:
    before = workload("before", "a", 4, created=9000)
    found = _outlook(queue("a", 8), before, workload("new", "a", 4))
    assert (found.admitted, found.ahead, found.cycles) == (True, 1, 2)
    found = _outlook(queue("a", 8), before, workload("new", "a", 5))
    assert (found.admitted, found.ahead, found.fits_empty) == (False, 1, True)


def test_those_of_other_queues_of_its_tree_go_first_too() -> None:
    objects = queue("a", 0, cohort="org"), queue("b", 4, cohort="org")
    assert not _outlook(*objects, workload("own", "b", 4), workload("new", "a", 1)).admitted
    assert _outlook(*objects, workload("own", "b", 3), workload("new", "a", 1)).admitted


@pytest.mark.parametrize("is_strict", [True, False])
def test_nobody_passes_the_head_of_a_strict_queue(is_strict: bool) -> None:
    held = workload("old", "a", 4, holding=True)
    big = workload("big", "a", 8, created=9000)
    found = _outlook(queue("a", 8, strict=is_strict), held, big, workload("new", "a", 4))
    assert found.admitted is not is_strict
    assert found.ahead == 1
    assert found.blocker == ("big" if is_strict else "")
    assert (found.nominee is None) is is_strict
    assert found.fits_empty


@pytest.mark.parametrize("is_strict", [True, False])
def test_those_that_kueue_has_looked_at_are_parked_where_the_queue_parks(is_strict: bool) -> None:
    """What is free would do for them; but nothing has come back since they were parked."""
    found = _outlook(queue("a", 8, strict=is_strict), _tried("big", 8), workload("new", "a", 8))
    assert found.admitted is not is_strict
    assert found.ahead == 1


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("WaitingForPreemptedWorkloads", "couldn't. Pending the preemption of 1 workload(s)"),
        ("WaitingForQuota", "Workload no longer fits after processing another workload"),
        ("WaitingForQuota", "Workload has overlapping preemption targets with another workload"),
        ("Pending", "Pending the preemption of 1 workload(s)"),
        ("WaitingForQuota", ""),
    ],
)
def test_those_that_went_back_to_the_heap_are_tried_again(reason: str, message: str) -> None:
    found = _outlook(queue("a", 8), _tried("big", 8, reason, message), workload("new", "a", 8))
    assert not found.admitted


def test_quota_that_comes_back_wakes_the_parked() -> None:
    """The victim's 8 GPUs are more than the preemptor takes, and the parked one is older."""
    held = workload("old", "a", 8, holding=True)
    parked = _tried("parked", 4, priority=9)
    found = _outlook(
        queue("a", 8, within="LowerPriority"), held, parked, workload("new", "a", 4, priority=1, created=60)
    )
    assert found.admitted
    assert [each.member.uid for each in found.victims] == ["old"]


def test_a_parked_equal_in_front_does_not_keep_one_from_being_asked() -> None:
    held = workload("old", "a", 8, holding=True)
    found = _outlook(queue("a", 8), held, workload("twin", "a", 2, created=9000), workload("new", "a", 2))
    assert not found.admitted
    assert found.fits_empty
    assert found.is_settled


def test_what_never_fits() -> None:
    found = _outlook(queue("a", 8), workload("new", "a", 9))
    assert (found.admitted, found.fits_empty, found.reason) == (False, False, "ExceedsMaxQuota")
    held = workload("old", "a", 8, holding=True)
    crowded = _outlook(queue("a", 8), held, workload("new", "a", 8))
    assert (crowded.admitted, crowded.fits_empty, crowded.reason) == (False, True, "WaitingForQuota")


def test_an_empty_tree_has_no_holders_of_inactive_queues() -> None:
    objects = queue("a", 0, cohort="org"), queue("b", 8, cohort="org", stop_policy="Hold")
    held = workload("old", "b", 8, holding=True)
    found = _outlook(*objects, held, workload("new", "a", 8))
    assert (found.admitted, found.fits_empty) == (False, True)


def test_quota_that_goes_to_and_fro_has_an_end() -> None:
    """Two queues that may take from each other without end."""
    policies: dict[str, Any] = {"reclaim": "Any", "within": "LowerPriority"}
    found = _outlook(
        queue("a", 4, cohort="org", **policies),
        queue("b", 4, cohort="org", **policies),
        *(workload(f"a{place}", "a", 4, created=9000 + place) for place in range(3)),
        *(workload(f"b{place}", "b", 4, created=9000 + place) for place in range(3)),
        workload("held", "b", 8, holding=True),
        workload("new", "a", 4),
    )
    assert found.cycles <= 64
    assert not found.admitted


def test_others_of_the_same_job_stand_before_it() -> None:
    state = worlds.state(queue("a", 8), *(workload(f"pod-{place}", "a", 3) for place in range(3)))
    view = KueueView(state, state.schedulers.kueue)
    asks = [asked(view.snapshot, f"pod-{place}") for place in range(3)]
    assert view.outlook(asks[1], asks[:1]).admitted
    assert not view.outlook(asks[2], asks[:2]).admitted
    assert view.outlook(asks[2], asks[:2]).ahead == 0


def test_one_that_is_not_in_the_state_may_ask() -> None:
    state = worlds.state(queue("a", 8), workload("old", "a", 8, holding=True))
    view = KueueView(state, state.schedulers.kueue)
    (stranger,) = worlds.state(queue("a", 8), workload("new", "a", 4)).workloads.values()
    joined = replace(state, workloads={**state.workloads, "new": stranger})
    ask = asked(KueueView(joined, joined.schedulers.kueue).snapshot, "new")
    assert not view.outlook(ask).admitted
    assert view.lines_of("a")["a"].heap == []


def test_an_exception_leaves_members_where_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that caught it may ask again, once the view is made anew: members are never lost for good."""
    state = worlds.state(
        queue("a", 8, within="LowerPriority"),
        workload("old", "a", 8, holding=True),
        workload("new", "a", 4, priority=1),
    )
    view = KueueView(state, state.schedulers.kueue)
    held = members(view.snapshot)
    with monkeypatch.context() as broken:
        broken.setattr(SnapshotQueue, "fits", _breaks)
        with pytest.raises(RuntimeError, match="out of order"):
            view.outlook(asked(view.snapshot, "new"))
    assert members(view.snapshot) == held


def test_an_exception_leaves_usage_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    state = worlds.state(
        queue("a", 8, within="LowerPriority"),
        workload("old", "a", 8, holding=True),
        workload("new", "a", 4, priority=1),
    )
    view = KueueView(state, state.schedulers.kueue)
    before = usages(view.snapshot)
    with monkeypatch.context() as broken:
        broken.setattr(SnapshotQueue, "fits", _breaks)
        with pytest.raises(RuntimeError, match="out of order"):
            view.outlook(asked(view.snapshot, "new"))
    assert usages(view.snapshot) == before


def _breaks(*_: object) -> bool:
    raise RuntimeError("out of order")


# While others end


class Nodes:
    """Of which there are enough while ``enough``."""

    def __init__(self, enough: bool = True) -> None:
        self.enough, self.ended = enough, list[str]()

    def leave(self, ended: Sequence[str], /) -> None:
        self.ended += ended

    def is_open(self) -> bool:
        return self.enough


def _started(state: ClusterState, *ended: Sequence[str]) -> list[set[str]]:
    """Who starts after each of ``ended``, until ``new`` does."""
    view = KueueView(state, state.schedulers.kueue)
    before = usages(view.snapshot), members(view.snapshot)
    with disciplines(view, asked(view.snapshot, "new"), Nodes) as make:
        line = make()
        found = [set(line.start(0, each, ())) for each in ended]
    assert (usages(view.snapshot), members(view.snapshot)) == before
    return found


def test_equal_ones_are_parked_together_and_others_stay() -> None:
    waiting = workload("one", "a", 9), workload("two", "a", 9), workload("new", "a", 4)
    state = worlds.state(queue("a", 8), *waiting)
    view = KueueView(state, state.schedulers.kueue)
    [line] = view.lines_of("a").values()
    line.park(asked(view.snapshot, "one"))
    assert ({ask.uid for ask in line.parked}, [ask.uid for ask in line.heap]) == ({"one", "two"}, ["new"])


def _line(*, is_strict: bool) -> ClusterState:
    return worlds.state(
        queue("a", 8, strict=is_strict),
        workload("old", "a", 4, holding=True),
        workload("older", "a", 2, holding=True),
        workload("big", "a", 8, created=9000),
        workload("new", "a", 4),
    )


def test_in_a_strict_queue_it_starts_after_the_head() -> None:
    state = _line(is_strict=True)
    assert _started(state, (), ("old",), ("older",), ("big",)) == [set(), set(), {"big"}, {"new"}]


def test_in_another_queue_it_passes_the_head() -> None:
    state = _line(is_strict=False)
    assert _started(state, (), ("old",)) == [set(), {"new"}]


def test_who_fits_starts_at_once() -> None:
    state = worlds.state(queue("a", 8), workload("one", "a", 4, created=9000), workload("new", "a", 4))
    assert _started(state, ()) == [{"one", "new"}]


def test_quota_lent_by_others_counts_when_they_end() -> None:
    state = worlds.state(
        cohort("org"),
        queue("a", 0, cohort="org"),
        queue("b", 8, cohort="org"),
        workload("theirs", "b", 8, holding=True),
        workload("next", "b", 4, created=60),
        workload("new", "a", 4),
    )
    assert _started(state, (), ("theirs",)) == [set(), {"next", "new"}]


def _in_backoff(name: str, gpus: int) -> Workload:
    """In queue a, before all others, from a minute from now on."""
    return workload(name, "a", gpus, created=9000, rest={"requeue_at_ms": worlds.NOW + 60_000})


@pytest.mark.parametrize("is_strict", [True, False])
def test_nobody_waits_behind_one_that_waits_out_its_backoff(is_strict: bool) -> None:
    found = _outlook(queue("a", 8, strict=is_strict), _in_backoff("big", 8), workload("new", "a", 8))
    assert (found.admitted, found.ahead, found.others) == (True, 0, {})


def test_one_joins_its_queue_when_its_backoff_is_over() -> None:
    state = worlds.state(
        queue("a", 8, strict=True),
        workload("old", "a", 8, holding=True),
        _in_backoff("big", 8),
        workload("new", "a", 8),
    )
    view = KueueView(state, state.schedulers.kueue)
    assert {uid: each.from_ms for uid, each in view.later_of("a").items()} == {"big": worlds.NOW + 60_000}
    with disciplines(view, asked(view.snapshot, "new"), Nodes) as make:
        line = make()
        told = [list(line.start(0, (), ())), list(line.start(60_000, (), ("big",)))]
        told += [list(line.start(70_000, ("old",), ())), list(line.start(80_000, ("big",), ()))]
    assert told == [[], [], ["big"], ["new"]]


def test_the_target_waits_out_its_backoff_too() -> None:
    state = worlds.state(queue("a", 8), _in_backoff("new", 8))
    view = KueueView(state, state.schedulers.kueue)
    with disciplines(view, asked(view.snapshot, "new"), Nodes) as make:
        line = make()
        assert list(line.start(0, (), ())) == []
        assert list(line.start(60_000, (), ("new",))) == ["new"]


def test_the_gate_holds_it_back_with_its_quota() -> None:
    state = worlds.state(queue("a", 8), workload("new", "a", 4), workload("late", "a", 8, created=60))
    view = KueueView(state, state.schedulers.kueue)
    nodes = Nodes(enough=False)
    with disciplines(view, asked(view.snapshot, "new"), lambda: nodes) as make:
        line = make()
        assert list(line.start(0, ("gone",), ())) == []
        assert nodes.ended == ["gone"]
        nodes.enough = True
        assert list(line.start(1, (), ())) == ["new"]
        again = make()
        assert list(again.start(0, (), ())) == ["new"]


def test_each_question_is_answered_for_what_is_asked() -> None:
    """A manifest that is changed and asked about again is another, though it has the same uid."""
    state = worlds.state(queue("a", 8), workload("old", "a", 4, holding=True), workload("new", "a", 8))
    smaller = worlds.state(queue("a", 8), workload("old", "a", 4, holding=True), workload("new", "a", 4))
    view = KueueView(state, state.schedulers.kueue)
    ask = asked(view.snapshot, "new")
    changed = asked(KueueView(smaller, smaller.schedulers.kueue).snapshot, "new")
    for each, expected in ((ask, set()), (changed, {"new"})):
        with disciplines(view, each, Nodes) as make:
            assert set(make().start(0, (), ())) == expected
