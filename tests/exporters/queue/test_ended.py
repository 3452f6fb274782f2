"""When a pod ended: its own word where it has one, else what was seen; once known, it stays the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.objects.pods import Pod, PodPhase
from gpucost.contract.metrics import LINGER_MS
from gpucost.kube.watch.object_store import ObjectChange, ObjectChangeKind
from gpucost_queue_collector.object_memory import CATCH_UP_MS, EndedObjects
from tests.cluster.builders import MINUTE, SECOND, T0, node, pod

ADDED, MODIFIED, DELETED, VANISHED = ObjectChangeKind
HOUR = 60 * MINUTE
BOUND = T0 + 10 * SECOND
"""When the pod of a test was given its node."""
OWN = T0 + 20 * MINUTE
"""When it ended by its own word."""
SEEN = T0 + 20 * MINUTE + 3 * SECOND
"""When that was seen; also what the clock says then."""

RUNNING = pod("train-0", 8, bound_ms=BOUND)
SUCCEEDED = pod("train-0", 8, bound_ms=BOUND, ended_ms=OWN)
FAILED_UNKNOWN = pod("train-0", 8, bound_ms=BOUND, phase=PodPhase.FAILED)


@dataclass
class Clock:
    now: int = SEEN

    def __call__(self) -> int:
        return self.now


def change(
    kind: ObjectChangeKind, found: Pod, previous: Pod | None = None, seen_ms: int = SEEN
) -> ObjectChange[Pod]:
    before = found if kind in (DELETED, VANISHED) and previous is None else previous
    return ObjectChange(kind, found, before, seen_ms * 1_000_000 + 999_999)


def told(*changes: ObjectChange[Pod], now: int = SEEN) -> dict[str, tuple[PodPhase, int | None]]:
    """Phase and end by name, after these changes."""
    ended = EndedObjects(lambda: now)
    for each in changes:
        ended.pod_changed(each)
    return {each.meta.name: (each.phase, each.ended_ms) for each in ended.pods()}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([change(ADDED, RUNNING)], None),
        ([change(ADDED, pod("train-0", 8))], None),
        ([change(ADDED, pod("train-0", 8)), change(DELETED, pod("train-0", 8))], None),
        ([change(MODIFIED, SUCCEEDED, RUNNING)], (PodPhase.SUCCEEDED, OWN)),
        ([change(MODIFIED, FAILED_UNKNOWN, RUNNING)], (PodPhase.FAILED, SEEN)),
        ([change(DELETED, RUNNING, RUNNING)], (PodPhase.FAILED, SEEN)),
        ([change(DELETED, SUCCEEDED, RUNNING)], (PodPhase.SUCCEEDED, OWN)),
        ([change(DELETED, FAILED_UNKNOWN, RUNNING)], (PodPhase.FAILED, SEEN)),
        ([change(VANISHED, RUNNING, seen_ms=OWN)], (PodPhase.FAILED, OWN)),
        ([change(ADDED, SUCCEEDED)], (PodPhase.SUCCEEDED, OWN)),
        ([change(ADDED, FAILED_UNKNOWN)], None),
        ([change(ADDED, FAILED_UNKNOWN), change(DELETED, FAILED_UNKNOWN)], None),
        (
            [change(ADDED, FAILED_UNKNOWN), change(MODIFIED, SUCCEEDED, FAILED_UNKNOWN)],
            (PodPhase.SUCCEEDED, OWN),
        ),
    ],
    ids=[
        "runs",
        "waits",
        "went while it waited",
        "ended",
        "ended, but its object does not say when",
        "deleted while it ran",
        "its last words came with the deletion",
        "gone with the deletion, without a word",
        "vanished: the last sign of life",
        "had ended when it was first seen",
        "had ended, nobody knows when",
        "had ended, nobody knows when, and was deleted",
        "says later when it ended",
    ],
)
def test_the_end(changes: list[ObjectChange[Pod]], expected: tuple[PodPhase, int] | None) -> None:
    assert told(*changes) == ({} if expected is None else {"train-0": expected})


@pytest.mark.parametrize(
    "later",
    [
        change(DELETED, SUCCEEDED, seen_ms=SEEN + MINUTE),
        change(VANISHED, SUCCEEDED, seen_ms=SEEN + MINUTE),
        change(MODIFIED, pod("train-0", 8, bound_ms=BOUND, ended_ms=OWN + HOUR), SUCCEEDED),
        change(MODIFIED, FAILED_UNKNOWN, SUCCEEDED),
    ],
    ids=["deleted", "vanished", "says something else", "says nothing any more"],
)
def test_an_end_once_known_stays(later: ObjectChange[Pod]) -> None:
    assert told(change(MODIFIED, SUCCEEDED, RUNNING), later) == {"train-0": (PodPhase.SUCCEEDED, OWN)}


@pytest.mark.fault(12)
def test_one_that_vanished_and_comes_back_alive_has_not_ended() -> None:
    clock = Clock()
    ended = EndedObjects(clock)
    ended.pod_changed(change(VANISHED, RUNNING, seen_ms=SEEN - MINUTE))
    assert [each.ended_ms for each in ended.pods()] == [SEEN - MINUTE]
    ended.pod_changed(change(ADDED, RUNNING))
    assert ended.pods() == []
    ended.pod_changed(change(MODIFIED, SUCCEEDED, RUNNING))
    assert [each.ended_ms for each in ended.pods()] == [OWN]


def test_an_end_is_never_before_the_beginning() -> None:
    late = pod("train-0", 8, bound_ms=SEEN + MINUTE)
    assert told(change(DELETED, late)) == {"train-0": (PodPhase.FAILED, SEEN + MINUTE)}


def test_a_pod_of_the_same_name_is_another_pod() -> None:
    again = pod("train-0", 8, uid="second-uid", bound_ms=BOUND + MINUTE)
    ended = EndedObjects(lambda: SEEN)
    ended.pod_changed(change(DELETED, RUNNING))
    ended.pod_changed(change(ADDED, again))
    assert [each.meta.uid for each in ended.pods()] == ["train-0-uid"]


@pytest.mark.parametrize("still_there", [True, False])
def test_it_lingers_for_ten_minutes(still_there: bool) -> None:
    clock = Clock()
    ended = EndedObjects(clock)
    ended.pod_changed(change(MODIFIED, SUCCEEDED, RUNNING))
    clock.now += 5 * MINUTE
    if not still_there:
        ended.pod_changed(change(DELETED, SUCCEEDED, seen_ms=clock.now))
    clock.now = SEEN + LINGER_MS - 1
    assert [each.ended_ms for each in ended.pods()] == [OWN]
    clock.now = SEEN + LINGER_MS
    assert ended.pods() == []


def test_one_that_stays_in_the_api_does_not_end_again_when_it_goes() -> None:
    clock = Clock()
    ended = EndedObjects(clock)
    ended.pod_changed(change(MODIFIED, FAILED_UNKNOWN, RUNNING))
    clock.now += HOUR
    assert ended.pods() == []
    ended.pod_changed(change(MODIFIED, FAILED_UNKNOWN, FAILED_UNKNOWN, clock.now))
    ended.pod_changed(change(DELETED, FAILED_UNKNOWN, seen_ms=clock.now))
    assert ended.pods() == []


def test_a_restart_tells_of_the_last_day_once_more() -> None:
    now = T0 + 3 * CATCH_UP_MS
    yesterday, before = now - CATCH_UP_MS + 1, now - CATCH_UP_MS
    known = told(
        change(ADDED, pod("news", 1, bound_ms=BOUND, ended_ms=yesterday)),
        change(ADDED, pod("history", 1, bound_ms=BOUND, ended_ms=before)),
        now=now,
    )
    assert known == {"news": (PodPhase.SUCCEEDED, yesterday)}


def test_history_stays_history_when_it_is_deleted() -> None:
    clock = Clock(T0 + 3 * CATCH_UP_MS)
    ended = EndedObjects(clock)
    ended.pod_changed(change(ADDED, SUCCEEDED))
    assert ended.pods() == []
    ended.pod_changed(change(DELETED, SUCCEEDED, seen_ms=clock.now))
    assert ended.pods() == []


# Nodes


def gone(found: Node, kind: ObjectChangeKind = DELETED, seen_ms: int = SEEN) -> ObjectChange[Node]:
    return ObjectChange(kind, found, found, seen_ms * 1_000_000)


def left(ended: EndedObjects, *there: Node) -> list[tuple[str, int]]:
    return [(each.node.meta.uid, each.ended_ms) for each in ended.nodes(there)]


def test_a_node_lingers_with_the_time_its_deletion_was_seen() -> None:
    clock = Clock()
    ended = EndedObjects(clock)
    ended.node_changed(ObjectChange(ADDED, node("gpu-1"), None, 0))
    assert left(ended) == []
    ended.node_changed(gone(node("gpu-1")))
    clock.now = SEEN + LINGER_MS - 1
    assert left(ended, node("gpu-2")) == [("gpu-1-uid", SEEN)]
    clock.now = SEEN + LINGER_MS
    assert left(ended) == []


def test_a_node_that_vanished_in_a_long_outage_is_told_of_when_that_is_over() -> None:
    clock = Clock(SEEN + HOUR)
    ended = EndedObjects(clock)
    ended.node_changed(gone(node("gpu-1"), VANISHED, SEEN))
    assert left(ended) == [("gpu-1-uid", SEEN)]


def test_a_node_that_comes_back_under_its_name_takes_the_series_over() -> None:
    ended = EndedObjects(Clock())
    ended.node_changed(gone(node("gpu-1")))
    again = node("gpu-1", created_ms=SEEN)
    again = replace(again, meta=replace(again.meta, uid="second-uid"))
    ended.node_changed(ObjectChange(ADDED, again, None, SEEN * 1_000_000))
    assert left(ended, again) == []
    assert left(ended) == []


def test_a_deletion_that_the_state_at_hand_does_not_know_of_yet_is_kept() -> None:
    ended = EndedObjects(Clock())
    ended.node_changed(gone(node("gpu-1")))
    assert left(ended, node("gpu-1")) == [("gpu-1-uid", SEEN)]
    assert left(ended) == [("gpu-1-uid", SEEN)]


def test_the_same_node_back_from_a_bad_list_has_not_ended() -> None:
    ended = EndedObjects(Clock())
    ended.node_changed(gone(node("gpu-1"), VANISHED))
    ended.node_changed(ObjectChange(ADDED, node("gpu-1"), None, SEEN * 1_000_000))
    assert left(ended, node("gpu-1")) == []


# Any order of events

UIDS = ("a", "b")


class Lives(RuleBasedStateMachine):
    """Two pods live, end and go, in any order that a store can tell of, while time passes. One that was alive
    when it went may come back alive: a list had missed it."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock(T0)
        self.ended = EndedObjects(self.clock)
        self.there: dict[str, Pod] = {}
        self.terminal: set[str] = set()
        self.seen: set[str] = set()
        self.ends: dict[str, int | None] = {}
        self.known: dict[str, int] = {}

    def tell(self, kind: ObjectChangeKind, found: Pod, ago_ms: int = 0) -> None:
        uid, seen_ms = found.meta.uid, self.clock.now - ago_ms
        previous = self.there.get(uid)
        was_running = previous is not None and previous.is_bound
        self.seen.add(uid)
        if found.has_ended:
            self.terminal.add(uid)
        if kind in (DELETED, VANISHED):
            del self.there[uid]
        else:
            self.there[uid] = found
        if not found.has_ended and kind in (ADDED, MODIFIED):
            self.ends.pop(uid, None)
            self.known.pop(uid, None)
        if was_running and (found.has_ended or uid not in self.there):
            self.known[uid] = self.clock.now
        self.ended.pod_changed(ObjectChange(kind, found, previous, seen_ms * 1_000_000))

    @rule(ms=st.sampled_from([1, 5 * SECOND, 3 * MINUTE, LINGER_MS]))
    def wait(self, ms: int) -> None:
        self.clock.now += ms

    @rule(uid=st.sampled_from(UIDS), bound=st.booleans())
    def lives(self, uid: str, bound: bool) -> None:
        known = self.there.get(uid)
        if uid in self.terminal:  # such a phase stays
            return
        bound_ms = known.bound_ms if known is not None and known.bound_ms else self.clock.now
        is_bound = bound or (known is not None and known.is_bound)
        found = pod(uid, 1, uid=uid, bound_ms=bound_ms if is_bound else None)
        self.tell(MODIFIED if known else ADDED, found)

    @rule(uid=st.sampled_from(UIDS), lasted_ms=st.integers(-SECOND, MINUTE) | st.none())
    def ends_in_the_api(self, uid: str, lasted_ms: int | None) -> None:
        known = self.there.get(uid)
        bound_ms = T0 if known is None else known.bound_ms
        if bound_ms is None or (known is None and uid in self.seen):
            return
        own = None if lasted_ms is None else max(bound_ms, bound_ms + lasted_ms)
        ended = pod(uid, 1, uid=uid, bound_ms=bound_ms, ended_ms=own, phase=PodPhase.FAILED)
        self.tell(MODIFIED if known else ADDED, ended)

    @precondition(lambda self: self.there)
    @rule(number=st.integers(0, 1), kind=st.sampled_from([DELETED, VANISHED]), ago_ms=st.integers(0, HOUR))
    def goes(self, number: int, kind: ObjectChangeKind, ago_ms: int) -> None:
        uid = sorted(self.there)[number % len(self.there)]
        self.tell(kind, self.there[uid], ago_ms if kind is VANISHED else 0)

    @invariant()
    def it_holds(self) -> None:
        found = {each.meta.uid: each for each in self.ended.pods()}
        for uid, each in found.items():
            assert each.has_ended
            assert each.bound_ms is not None
            assert each.ended_ms is not None
            assert each.ended_ms >= each.bound_ms
            assert self.ends.setdefault(uid, each.ended_ms) == each.ended_ms, "a second end"
            assert uid not in self.there or self.there[uid].has_ended, "shown as ended while it runs"
        for uid, known_ms in self.known.items():
            assert (uid in found) == (self.clock.now - known_ms < LINGER_MS)


TestLives: Callable[..., object] = Lives.TestCase


def test_what_ends_before_our_eyes_is_news_when_the_clock_of_the_host_is_days_ahead() -> None:
    clock = Clock()
    ended = EndedObjects(clock)
    clock.now = SEEN + 2 * CATCH_UP_MS
    ended.pod_changed(change(MODIFIED, SUCCEEDED, RUNNING))
    assert [each.ended_ms for each in ended.pods()] == [OWN]
