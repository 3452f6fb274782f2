"""The clock of a replay, and pending lines: conservation, order, capacity, and a plain model beside."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.advisor.kueue.requests import PodSetRequest, QuotaRequest, in_order
from gpucost.advisor.replay.fifo_nodes import NODE_LOST, FifoAsk, FifoReplay, PoolNodes
from gpucost.advisor.replay.pending_lines import PendingLine
from gpucost.advisor.replay.replay_timeline import ReplayArrival, ReplayOutcome, StoryEviction, play
from gpucost.cluster.objects.pods import PodTemplate
from gpucost.domain.errors import InputError

SIZE, NODES = 4, 3


def job(uid: str, at_ms: int, run_ms: int, gpus: int, keeps: bool = False) -> ReplayArrival[FifoAsk]:
    return ReplayArrival(uid, at_ms, run_ms, FifoAsk("pool", gpus), keeps)


def fifo(*arrivals: ReplayArrival[FifoAsk], changes: list[tuple[int, int]] | None = None) -> ReplayOutcome:
    told = [(at_ms, PoolNodes("pool", nodes)) for at_ms, nodes in changes or []]
    return play(arrivals, FifoReplay({"pool": NODES}, SIZE), told)


def starts(outcome: ReplayOutcome, uid: str) -> list[int]:
    return [each.at_ms for each in outcome.stories[uid].admissions]


_JOBS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 15), st.integers(1, SIZE * NODES), st.booleans()),
    max_size=25,
)
_CHANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(1, NODES + 2)), max_size=4)


@given(_JOBS, _CHANGES, st.randoms(use_true_random=False))
def test_time_is_conserved_and_order_means_nothing(jobs, changes, random) -> None:  # type: ignore[no-untyped-def]
    changes = sorted(changes, key=lambda each: each[0])
    arrivals = [job(f"{n:02d}", at, run, gpus, keeps) for n, (at, run, gpus, keeps) in enumerate(jobs)]
    outcome = fifo(*arrivals, changes=changes)
    shuffled = list(arrivals)
    random.shuffle(shuffled)
    assert repr(fifo(*shuffled, changes=changes)).encode() == repr(outcome).encode()
    held: dict[int, int] = {}
    for arrival in arrivals:
        story = outcome.stories[arrival.uid]
        ends = [each.at_ms for each in story.evictions]
        ends += [story.ended_ms] if story.ended_ms is not None else []
        runs = list(zip(starts(outcome, arrival.uid), ends, strict=True))
        for begun, ended in runs:
            assert arrival.at_ms <= begun <= ended
            for at in range(begun, ended):
                held[at] = held.get(at, 0) + arrival.ask.gpus
        if story.ended_ms is not None:
            counted = runs if arrival.keeps_progress else runs[-1:]
            assert sum(ended - begun for begun, ended in counted) == arrival.run_ms
    for at, gpus in held.items():
        nodes = next((nodes for since, nodes in reversed(changes) if since <= at), NODES)
        assert gpus <= nodes * SIZE


def test_the_first_that_does_not_fit_holds_all_behind_it() -> None:
    outcome = fifo(job("a", 0, 10, 8), job("b", 1, 5, 12), job("c", 2, 5, 1))
    assert [starts(outcome, uid) for uid in "abc"] == [[0], [10], [15]]


def test_a_capacity_loss_of_the_record_is_in_the_replay() -> None:
    outcome = fifo(job("a", 0, 100, 12), changes=[(40, 2), (60, 3)])
    assert outcome.stories["a"].evictions == [StoryEviction(40, NODE_LOST)]
    assert starts(outcome, "a") == [0, 60]
    assert outcome.stories["a"].ended_ms == 160


def test_what_keeps_its_progress_runs_what_is_left() -> None:
    outcome = fifo(job("a", 0, 100, 12, keeps=True), changes=[(40, 2), (60, 3)])
    assert outcome.stories["a"].ended_ms == 120


def test_who_never_fits_waits_for_ever() -> None:
    outcome = fifo(job("a", 0, 1, 13), job("b", 1, 1, 1))
    assert (outcome.stories["a"].admissions, outcome.stories["b"].ended_ms) == ([], None)


def test_two_of_one_name_and_pools_that_are_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match="one uid"):
        fifo(job("a", 0, 1, 1), job("a", 1, 1, 1))
    with pytest.raises(InputError, match="pool"):
        play([ReplayArrival("a", 0, 1, FifoAsk("other", 1))], FifoReplay({"pool": 1}, 8))
    with pytest.raises(InputError, match="gpus"):
        fifo(job("a", 0, 1, 0))


@dataclass
class PlainLine:
    """As Kueue's code reads: a sorted heap, the parked ones, and the shapes that are parked together."""

    heap: list[QuotaRequest] = field(default_factory=list)
    parked: list[QuotaRequest] = field(default_factory=list)
    barred: list[QuotaRequest] = field(default_factory=list)
    shapes: set[object] = field(default_factory=set)
    sticky: str = ""

    def push(self, ask: QuotaRequest) -> None:
        (self.parked if ask.shape in self.shapes else self.heap).append(ask)

    def head(self) -> QuotaRequest | None:
        return min(self.heap, key=lambda each: (each.uid != self.sticky, in_order(each)), default=None)

    def park(self, ask: QuotaRequest) -> None:
        self.shapes.add(ask.shape)
        self.parked += [each for each in self.heap if each.shape == ask.shape]
        self.heap = [each for each in self.heap if each.shape != ask.shape]

    def wake(self) -> None:
        self.heap += self.parked
        self.parked, self.shapes = [], set()

    def lift_bar(self) -> None:
        barred, self.barred = self.barred, []
        for ask in barred:
            self.push(ask)


def _ask(number: int, gpus: int, priority: int) -> QuotaRequest:
    sets = (PodSetRequest("main", 1, 1, {"nvidia.com/gpu": gpus}, PodTemplate({})),)
    return QuotaRequest(f"w{number:03d}", "team", priority, number // 2, sets)


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["push", "take", "park", "stick", "wake", "bar", "lift bar"]),
        st.integers(1, 3),
        st.integers(0, 1),
    ),
    max_size=60,
)


@given(_STEPS)
def test_lines_by_shape_are_as_a_plain_heap(steps: list[tuple[str, int, int]]) -> None:
    line, plain = PendingLine(), PlainLine()
    gone: list[QuotaRequest] = []
    for number, (what, gpus, priority) in enumerate(steps):
        head = plain.head()
        if what == "push":
            ask = gone.pop() if gone and priority else _ask(number, gpus, priority)
            line.push(ask)
            plain.push(ask)
        elif what == "bar":
            ask = _ask(number, gpus, priority)
            line.bar(ask)
            plain.barred.append(ask)
        elif what == "wake":
            line.wake()
            plain.wake()
        elif what == "lift bar":
            line.lift_bar()
            plain.lift_bar()
        elif head is not None and what == "take":
            line.take(head.uid)
            plain.heap.remove(head)
            plain.sticky = "" if plain.sticky == head.uid else plain.sticky
            gone.append(head)
        elif head is not None and what == "park":
            line.park(head)
            plain.park(head)
        elif head is not None:
            line.sticky = plain.sticky = head.uid
        assert line.head() == plain.head()
        assert line.counts == (len(plain.heap), len(plain.parked) + len(plain.barred))
