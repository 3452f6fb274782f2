"""The queue simulated: FIFO, backfill, arrivals, deadlines, the horizon, and a fair game of chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.advisor.replay.fifo_nodes import FifoNodes, FifoPlacement
from gpucost.advisor.wait.run_times import (
    FLOOR_MS,
    NO_HISTORY,
    PastRun,
    RunTimes,
)
from gpucost.advisor.wait.simulation import (
    JobArrival,
    SimulatedRun,
    WaitSampling,
    WaitSimulationInput,
    no_arrivals,
    simulate,
)
from gpucost.domain.errors import InputError
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS
from tests.support.waits.arrivals import as_before
from tests.support.waits.fifo import FifoJob, fifo

SAMPLING = WaitSampling(samples=40, horizon_ms=7 * DAY_MS, seed=1)
AN_HOUR_EACH = RunTimes([PastRun("t", "", gpus, HOUR_MS) for gpus in (1, 2, 4, 8) for _ in range(1_000)])


def _running(*elapsed_ms: int, gpus: int = 8) -> list[SimulatedRun]:
    return [SimulatedRun(f"r{at}", "t", "", gpus, elapsed) for at, elapsed in enumerate(elapsed_ms)]


def _waiting(*gpus: int) -> list[SimulatedRun]:
    return [SimulatedRun(f"w{at}", "t", "", each) for at, each in enumerate(gpus)]


def _scene(
    running: Sequence[SimulatedRun],
    waiting: Sequence[SimulatedRun],
    backfills: bool = False,
    nodes: int | None = None,
) -> WaitSimulationInput:
    """The last that waits is asked about; each that runs has a node of its own."""
    placed = {run.id: ((node, run.gpus),) for node, run in enumerate(running)}
    asks = [FifoJob(run.id, run.gpus) for run in waiting]
    return WaitSimulationInput(
        waiting[-1].id, running, waiting, fifo(nodes or len(running), 8, placed, asks, backfills=backfills)
    )


def test_what_fits_now_is_not_simulated() -> None:
    wait = simulate(_scene(_running(0), _waiting(8), nodes=2), NO_HISTORY, SAMPLING)
    assert (wait.p50_ms, wait.p90_ms, wait.samples, wait.basis) == (0, 0, 0, "it fits now")


def test_it_waits_for_what_runs_and_for_all_ahead() -> None:
    """One node, runs of an hour, half an hour gone: half an hour, then an hour for each ahead; and the shared
    spread around it."""
    alone = simulate(_scene(_running(30 * MINUTE_MS), _waiting(8)), AN_HOUR_EACH, SAMPLING)
    third = simulate(_scene(_running(30 * MINUTE_MS), _waiting(8, 8, 8)), AN_HOUR_EACH, SAMPLING)
    assert alone.p50_ms == pytest.approx(30 * MINUTE_MS, rel=0.03)
    assert third.p50_ms == pytest.approx(2.5 * HOUR_MS, rel=0.03)
    assert third.p90_ms == pytest.approx(2.5 * HOUR_MS * 2.1, rel=0.1)
    assert third.basis == "1,000 ended runs of team t on 5-8 GPUs (for 3 of 3 jobs that run or wait)"


def test_what_comes_behind_does_not_matter_in_strict_fifo() -> None:
    running = _running(0, HOUR_MS // 2)
    waiting = _waiting(8, 8, 8, 8)
    placed = {run.id: ((node, run.gpus),) for node, run in enumerate(running)}
    asks = [FifoJob(run.id, run.gpus) for run in waiting]
    with_all = WaitSimulationInput("w1", running, waiting, fifo(2, 8, placed, asks))
    alone = WaitSimulationInput("w1", running, waiting[:2], fifo(2, 8, placed, asks[:2]))
    assert simulate(with_all, AN_HOUR_EACH, SAMPLING).p50_ms == pytest.approx(
        simulate(alone, AN_HOUR_EACH, SAMPLING).p50_ms, rel=1e-6
    )


def test_the_same_seed_gives_the_same_answer_in_any_order() -> None:
    history = RunTimes([PastRun("t", "", 8, at * MINUTE_MS) for at in range(1, 100)])
    running = _running(HOUR_MS, 0, 5 * MINUTE_MS)
    one, other = _scene(running, _waiting(8, 8)), _scene(running, _waiting(8, 8))
    turned = replace(other, running=running[::-1], waiting=other.waiting[::-1])
    assert simulate(one, history, SAMPLING) == simulate(turned, history, SAMPLING)
    assert simulate(one, history, SAMPLING) != simulate(one, history, replace(SAMPLING, seed=2))


def test_the_cold_start_waits_about_as_long_as_it_ran_already() -> None:
    for elapsed_ms in (HOUR_MS, 20 * HOUR_MS):
        wait = simulate(
            _scene(_running(elapsed_ms), _waiting(8)), NO_HISTORY, replace(SAMPLING, samples=2_000)
        )
        assert wait.p50_ms == pytest.approx(elapsed_ms, rel=0.1)
        assert wait.basis.startswith("no ended runs: what has passed is taken for what is left (for 1 of 1")


def test_beyond_the_horizon_there_is_no_number() -> None:
    short = replace(SAMPLING, horizon_ms=3 * HOUR_MS)
    wait = simulate(_scene(_running(0), _waiting(8, 8, 8)), AN_HOUR_EACH, short)
    assert wait.p50_ms == pytest.approx(3 * HOUR_MS, rel=0.03)
    assert (wait.p90_ms, wait.horizon_ms) == (None, 3 * HOUR_MS)
    never = simulate(_scene(_running(0), _waiting(16)), AN_HOUR_EACH, SAMPLING)
    assert (never.p50_ms, never.p90_ms) == (None, None)


def test_a_deadline_ends_a_run_whatever_history_says() -> None:
    running = [replace(_running(0)[0], at_most_ms=MINUTE_MS)]
    wait = simulate(_scene(running, _waiting(8)), NO_HISTORY, SAMPLING)
    assert wait.p50_ms is not None
    assert wait.p50_ms <= MINUTE_MS
    assert wait.p90_ms == MINUTE_MS


def test_backfill_lets_the_small_pass() -> None:
    running = _running(0, 0, gpus=4)
    strict = simulate(_scene(running, _waiting(8, 4)), AN_HOUR_EACH, SAMPLING)
    backfilled = simulate(_scene(running, _waiting(8, 4), backfills=True), AN_HOUR_EACH, SAMPLING)
    assert strict.p50_ms == pytest.approx(HOUR_MS, rel=0.03)
    assert (backfilled.p50_ms, backfilled.samples) == (0, 0)


def test_ends_in_grains_are_never_earlier() -> None:
    scene = _scene(_running(HOUR_MS, 7 * MINUTE_MS, 0), _waiting(8, 8, 8))
    fine, coarse = (
        simulate(scene, AN_HOUR_EACH, replace(SAMPLING, grain_ms=grain)) for grain in (1, 10 * MINUTE_MS)
    )
    assert fine.p50_ms is not None
    assert coarse.p50_ms is not None
    assert coarse.p50_ms % (10 * MINUTE_MS) == 0
    assert fine.p50_ms <= coarse.p50_ms <= fine.p50_ms + 2 * 10 * MINUTE_MS


class _Priority:
    """One slot; jobs that arrive go before those that wait."""

    def __init__(self, waiting: Sequence[str]) -> None:
        self._waiting = list(waiting)
        self._is_free = False

    def start(self, _now_ms: int, ended: Sequence[str], arrived: Sequence[str], /) -> Sequence[str]:
        self._is_free = self._is_free or bool(ended)
        self._waiting = [*arrived, *self._waiting]
        if not self._is_free or not self._waiting:
            return ()
        self._is_free = False
        return (self._waiting.pop(0),)


def test_arrivals_that_overtake_are_drawn_from_the_past() -> None:
    """One before it in every two hours, each of an hour, on one slot: it gets in all the same, but later."""
    past = [JobArrival(at * 2 * HOUR_MS, SimulatedRun(f"p{at}", "t", "", 8)) for at in range(12)]
    scene = WaitSimulationInput(
        "w0", _running(0), _waiting(8), lambda: _Priority(["w0"]), as_before(past, DAY_MS, DAY_MS)
    )
    quiet = replace(scene, arrivals=no_arrivals)
    some, none = (simulate(each, AN_HOUR_EACH, SAMPLING).p90_ms for each in (scene, quiet))
    assert some is not None
    assert none is not None
    assert some >= none + HOUR_MS // 2


def test_a_stretch_of_the_past_is_played_whole_and_round() -> None:
    past = [JobArrival(at, SimulatedRun(f"p{at}", "t", "", 1)) for at in (0, 10, 50)]
    drawn = as_before(past, 100, 250)(Random(3))
    assert len({arrival.run.id for arrival in drawn}) == len(drawn)
    assert 7 <= len(drawn) <= 9
    assert all(0 <= arrival.at_ms < 250 for arrival in drawn)
    assert [arrival.at_ms for arrival in drawn] == sorted(arrival.at_ms for arrival in drawn)
    assert as_before(past, 100, 250)(Random(3)) == drawn
    assert as_before([], 100, 250)(Random(3)) == []


@pytest.mark.parametrize("at_ms", [-1, 100])
def test_the_past_lies_within_its_span(at_ms: int) -> None:
    with pytest.raises(InputError, match=r"at_ms: .*; allowed: from 0 to below the span of 100 ms"):
        as_before([JobArrival(at_ms, SimulatedRun("p", "t", "", 1))], 100, 100)


@pytest.mark.parametrize("field", ["samples", "horizon_ms", "grain_ms"])
def test_a_sampling_of_nothing_is_refused_by_field(field: str) -> None:
    with pytest.raises(InputError) as raised:
        replace(SAMPLING, **{field: 0})
    assert raised.value.field == field


def test_only_what_waits_can_be_asked_about() -> None:
    scene = _scene(_running(0), _waiting(8))
    with pytest.raises(InputError, match=r"target: .*; allowed: the id of a job that waits"):
        simulate(replace(scene, target="r0"), NO_HISTORY, SAMPLING)


@pytest.mark.parametrize(
    ("free", "gpus", "placement"),
    [
        ([8, 3, 2], 2, ((2, 2),)),
        ([8, 3, 3], 2, ((1, 2),)),
        ([2, 2, 2], 4, None),
        ([8, 3, 8], 16, ((0, 8), (2, 8))),
        ([8, 4, 5], 12, ((0, 8), (1, 4))),
        ([8, 3, 2], 12, None),
        ([8, 7, 7], 16, None),
        ([8, 8, 8], 17, ((0, 8), (1, 8), (2, 1))),
    ],
)
def test_a_job_stays_together(free: list[int], gpus: int, placement: FifoPlacement | None) -> None:
    nodes = FifoNodes(len(free), 8)
    nodes.take(tuple((node, 8 - left) for node, left in enumerate(free)))
    assert nodes.place(gpus) == placement


def test_a_blocked_queue_holds_nobody_elses() -> None:
    asks = [FifoJob("a1", 8, "a"), FifoJob("a2", 1, "a"), FifoJob("b1", 4, "b"), FifoJob("b2", 1, "b")]
    discipline = fifo(1, 8, {"r": ((0, 3),)}, asks)()
    assert discipline.start(0, (), ()) == ["b1", "b2"]
    assert discipline.start(1, ("r",), ()) == []
    assert discipline.start(2, ("b1", "b2"), ()) == ["a1"]
    assert discipline.start(3, ("a1",), ()) == ["a2"]


_ASKS = st.lists(st.tuples(st.integers(1, 24), st.sampled_from("ab"), st.integers(1, 9)), max_size=30)


@given(_ASKS, st.booleans(), st.integers(1, 4))
def test_no_node_is_ever_given_twice_and_order_is_kept(
    rows: list[tuple[int, str, int]], backfills: bool, node_count: int
) -> None:
    asks = [FifoJob(f"{at:02}", gpus, queue) for at, (gpus, queue, _) in enumerate(rows)]
    gpus_of = {ask.id: ask.gpus for ask in asks}
    discipline = fifo(node_count, 8, {}, asks, backfills=backfills)()
    ends: dict[str, int] = {}
    begun: list[str] = []
    for now in range(300):
        ended = sorted(id for id, end in ends.items() if end == now)
        started = discipline.start(now, ended, ())
        begun += started
        ends |= {id: now + rows[int(id)][2] for id in started}
        held = sum(gpus_of[id] for id, end in ends.items() if end > now)
        assert held <= 8 * node_count
    assert len(set(begun)) == len(begun)
    if backfills:
        assert set(begun) == {ask.id for ask in asks if ask.gpus <= 8 * node_count}
    else:
        for queue in "ab":
            own = [ask.id for ask in asks if ask.queue == queue]
            assert [id for id in begun if id in own] == own[: sum(id in begun for id in own)]


def test_an_ask_for_no_gpu_is_refused() -> None:
    with pytest.raises(InputError, match=r"gpus: .*; allowed: 1 or more"):
        FifoJob("a", 0)


def test_a_new_job_without_history_is_given_the_floor() -> None:
    """Twenty jobs without history are ahead of it: their run times are not zero."""
    wait = simulate(_scene(_running(0), _waiting(*[8] * 21)), NO_HISTORY, SAMPLING)
    assert wait.p50_ms is not None
    assert wait.p50_ms > 20 * FLOOR_MS
