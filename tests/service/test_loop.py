"""The loop: up to date by itself, after a crash, an outage, and a clock that only tests move."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from gpucost.domain.errors import InputError, LedgerUnavailable, PartialResponse, SourceUnreachable
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Window
from gpucost.ledger.db.records import LedgerState
from gpucost.ledger.ledger import Ledger
from gpucost.service.ingest.loop import IngestLoop
from gpucost.service.ingest.status import LoopStatus
from gpucost.service.settings.model import IngestSettings
from tests.service.worlds import DAY, Clock, MemorySource, frames, pipeline
from tests.support.frames import START, hours
from tests.support.ledgers import new_ledger


class World:
    """A loop over a clock that its sleep moves on."""

    def __init__(self, ledger: Ledger, clock: Clock, **settings: object) -> None:
        self.ledger, self.clock, self.status = ledger, clock, LoopStatus()
        self.source = MemorySource(frames(), extent=Window(START, START + 90 * DAY_MS))
        self.pauses: list[float] = []
        self.until, self.asked = clock.now_ms, 0
        self.loop = IngestLoop(
            pipeline(ledger, self.source, clock),
            IngestSettings(**settings),
            self.status,
            sleep=self.sleep,
            stopped=lambda: clock.now_ms >= self.until,
            rng=random.Random(7),
            strangers=self._named,
        )

    def _named(self, cluster: str) -> list[str]:
        self.asked += 1
        return [f"job pods of {cluster}"]

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.now_ms += round(seconds * 1000)

    def run_until(self, instant_ms: int) -> None:
        self.until = instant_ms
        self.loop.run()

    def settled(self) -> list[Window]:
        return [i.window for i in self.ledger.windows(DAY, "c") if i.state is LedgerState.SETTLED]


@pytest.fixture
def clock() -> Clock:
    return Clock(START)


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[Ledger]:
    with Ledger.open(new_ledger(tmp_path / "l.db"), now=clock) as found:
        yield found


def test_every_closed_window_flows_in_by_itself(ledger: Ledger, clock: Clock) -> None:
    world = World(ledger, clock)
    world.run_until(START + 3 * HOUR_MS + 16 * MINUTE_MS)
    assert world.settled() == list(hours(0, 3).split(HOUR_MS))
    assert world.ledger.frontier("c") == hours(0, 3).end_ms
    assert world.status.ingested() == {"c": 6}, "each once when it ended and once to settle it"
    assert set(world.pauses) == {60.0}
    assert world.status.clusters()["c"].pending == 0


def test_who_is_not_believed_is_said_at_the_start_once_and_counted_with_each_window(
    ledger: Ledger, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(ledger, clock)
    world.run_until(START + MINUTE_MS)
    assert (world.asked, world.status.clusters()["c"].refused) == (1, 1)
    world.run_until(START + 2 * HOUR_MS)
    assert world.asked < 6, "with windows, not in every turn"
    assert [each for each in caplog.messages if "not believed" in each] == ["c: not believed: job pods of c"]


def test_a_window_is_in_the_ledger_within_a_poll_of_its_end(ledger: Ledger, clock: Clock) -> None:
    world = World(ledger, clock)
    world.run_until(START + HOUR_MS + 2 * MINUTE_MS)
    assert [info.state for info in ledger.windows(DAY)] == [LedgerState.OPEN]


def test_it_goes_on_after_a_crash_where_the_ledger_ends(
    ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(ledger, clock)
    world.run_until(START + 5 * HOUR_MS)
    clock.now_ms = START + 20 * HOUR_MS

    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    crashed = World(ledger, clock)
    with monkeypatch.context() as patched:
        patched.setattr(crashed.source, "read", crash)
        with pytest.raises(KeyboardInterrupt):
            crashed.run_until(START + 21 * HOUR_MS)
    again = World(ledger, clock)
    again.run_until(START + 20 * HOUR_MS + 20 * MINUTE_MS)
    assert again.settled() == list(hours(0, 20).split(HOUR_MS))
    assert again.source.reads[0].start_ms >= hours(4, 5).start_ms, "what was settled is not read again"


@pytest.mark.fault(23)
def test_an_outage_is_waited_out_and_filled_oldest_first(ledger: Ledger, clock: Clock) -> None:
    world = World(ledger, clock)
    world.run_until(START + 2 * HOUR_MS + 20 * MINUTE_MS)
    world.source.fail = lambda _: SourceUnreachable("connection refused")
    world.pauses.clear()
    world.run_until(START + 10 * HOUR_MS)
    failing = [pause for pause in world.pauses if pause != 60.0]
    assert len(failing) < 200, "eight hours of outage: the pauses grow to ten minutes"
    assert max(failing) <= 600
    assert min(failing) >= 5
    status = world.status.clusters()["c"]
    assert status.up is False
    assert status.pending >= 7
    assert status.failures[0].reason == "connection refused"
    assert world.status.source_errors()["c", "SourceUnreachable"] == len(failing)

    world.source.fail = lambda _: None
    world.source.reads.clear()
    world.run_until(START + 11 * HOUR_MS)
    assert world.settled() == list(hours(0, 10).split(HOUR_MS))
    starts = [window.start_ms for window in world.source.reads]
    assert starts[0] == hours(2, 3).start_ms, "oldest first"
    assert world.status.clusters()["c"].up is True
    assert world.status.clusters()["c"].failures == ()


@pytest.mark.fault(24)
def test_a_partial_response_keeps_the_window_open_and_the_rest_flows(ledger: Ledger, clock: Clock) -> None:
    bad = hours(1, 2)
    world = World(ledger, clock)
    world.source.fail = lambda window: (
        PartialResponse("one shard", ("one shard",)) if window.overlap_ms(bad.start_ms, bad.end_ms) else None
    )
    world.run_until(START + 5 * HOUR_MS + 30 * MINUTE_MS)
    assert world.settled() == [hours(0, 1), *hours(2, 5).split(HOUR_MS)]
    assert world.status.clusters()["c"].failures[0].window == bad
    assert ledger.frontier("c") == bad.start_ms, "the frontier does not pass a hole"


def test_a_new_ledger_begins_where_the_source_or_the_settings_say(ledger: Ledger, clock: Clock) -> None:
    clock.now_ms = START + 10 * DAY_MS
    world = World(ledger, clock, backfill=timedelta(hours=6))
    world.run_until(clock.now_ms + 1)
    assert ledger.extent("c") == Window(START + 10 * DAY_MS - 6 * HOUR_MS, START + 10 * DAY_MS)


def test_an_earlier_start_is_filled_in_behind(ledger: Ledger, clock: Clock) -> None:
    clock.now_ms = START + 24 * HOUR_MS
    World(ledger, clock, backfill=timedelta(hours=6)).run_until(clock.now_ms + 1)
    world = World(ledger, clock, start=START)
    world.run_until(clock.now_ms + 1)
    assert ledger.extent("c") == DAY


def test_windows_that_nobody_holds_any_more_are_counted_not_tried(ledger: Ledger, clock: Clock) -> None:
    clock.now_ms = START + 12 * HOUR_MS
    world = World(ledger, clock, start=START)
    world.source.extent = Window(hours(4, 5).start_ms, DAY.end_ms)
    world.run_until(clock.now_ms + 1)
    assert world.status.clusters()["c"].lost == 4
    assert world.source.reads[0].start_ms == hours(4, 5).start_ms
    assert world.pauses == [60.0], "what is lost is no reason to hurry or to wait"


def test_a_ledger_that_is_down_is_tried_again(
    ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.now_ms = START + 3 * HOUR_MS
    world = World(ledger, clock)

    def full(*_: object, **__: object) -> None:
        raise LedgerUnavailable("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "write_batch", full)
        world.run_until(clock.now_ms + 5 * MINUTE_MS)
    assert world.status.other_errors()["LedgerUnavailable"] == len(world.pauses)
    world.run_until(START + 4 * HOUR_MS)
    assert world.settled()[:2] == list(hours(0, 2).split(HOUR_MS))


def test_a_fault_of_ours_does_not_end_the_loop(
    ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock.now_ms = START + HOUR_MS
    world = World(ledger, clock)
    monkeypatch.setattr(world.source, "read", lambda *_: 1 / 0)
    world.run_until(clock.now_ms + 1)
    assert world.status.other_errors() == {"ZeroDivisionError": 1}
    assert "unexpected error" in caplog.text


def test_the_pauses_after_failures_grow_and_are_spread(ledger: Ledger, clock: Clock) -> None:
    world = World(ledger, clock)
    clock.now_ms = START + 2 * HOUR_MS
    world.until = START + DAY_MS
    world.source.fail = lambda _: SourceUnreachable("refused")
    pauses = [world.loop.turn() for _ in range(12)]
    for turn, pause in enumerate(pauses, 1):
        assert 5 <= pause <= min(600, 5 * 2**turn)
    assert len(set(pauses)) == len(pauses), "jitter"
    world.source.fail = lambda _: None
    assert world.loop.turn() == 60.0


def test_a_source_that_is_back_is_up_again_before_there_is_anything_to_read(
    ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(ledger, clock)
    world.run_until(START + HOUR_MS + 30 * MINUTE_MS)

    def gone(*_: object) -> None:
        raise SourceUnreachable("refused")

    with monkeypatch.context() as patched:
        patched.setattr(world.source, "clusters", gone)
        world.run_until(clock.now_ms + 1)
    assert world.status.clusters()["c"].up is False
    assert world.status.source_errors() == {("c", "SourceUnreachable"): 1}
    world.run_until(clock.now_ms + MINUTE_MS)
    assert world.status.clusters()["c"].up is True
    assert set(world.status.clusters()) == {"c"}


def unreachable(*_: object) -> None:
    raise SourceUnreachable("connection refused")


@pytest.mark.fault(23)
@pytest.mark.parametrize("call", ["clusters", "covered", "read"])
def test_a_source_that_is_down_is_told_of_every_known_cluster(
    call: str, ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a restart, when nothing is known but what the ledger holds."""
    World(ledger, clock).run_until(START + 2 * HOUR_MS + 20 * MINUTE_MS)
    clock.now_ms = START + 5 * HOUR_MS + MINUTE_MS
    world = World(ledger, clock)
    monkeypatch.setattr(world.source, call, unreachable)
    world.run_until(clock.now_ms + 1)
    status = world.status.clusters()["c"]
    assert (status.up, status.pending) == (False, 3)
    assert [str(failure) for failure in status.failures] == [
        f"{hours(2, 5)}: SourceUnreachable: connection refused"
    ]
    assert world.status.source_errors() == {("c", "SourceUnreachable"): 1}


def test_windows_that_are_lost_are_not_due_while_the_source_is_down(
    ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.now_ms = START + 12 * HOUR_MS
    world = World(ledger, clock, start=START)
    world.source.extent = Window(hours(4, 5).start_ms, DAY.end_ms)
    world.run_until(clock.now_ms + 1)
    monkeypatch.setattr(world.source, "clusters", unreachable)
    clock.now_ms = START + 14 * HOUR_MS
    world.run_until(clock.now_ms + 1)
    status = world.status.clusters()["c"]
    assert (status.lost, status.pending) == (4, 3), "the last hour was open, and two have ended"


def test_a_source_that_never_answered_is_told_of_under_the_name_of_the_settings(
    ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(ledger, clock)
    loop = IngestLoop(
        pipeline(ledger, world.source, clock),
        IngestSettings(),
        world.status,
        sleep=world.sleep,
        stopped=lambda: False,
        rng=random.Random(7),
        expected="default",
    )
    with monkeypatch.context() as patched:
        patched.setattr(world.source, "clusters", unreachable)
        loop.turn()
    status = world.status.clusters()["default"]
    assert (status.up, status.pending) == (False, None), "nobody knows what there is to read"
    assert str(status.failures[0]) == "SourceUnreachable: connection refused"
    loop.turn()
    assert set(world.status.clusters()) == {"c"}, "the source has no cluster of that name"


@pytest.mark.fault(23)
@pytest.mark.parametrize(
    "error", [InputError("observed.parquet", "x", "a Parquet file"), TypeError("odd"), "\ud800"]
)
def test_no_error_of_the_source_ends_the_loop(
    error: Exception | str, ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> tuple[str, ...]:
        if isinstance(error, str):
            error.encode()
        raise error

    world = World(ledger, clock)
    with monkeypatch.context() as patched:
        patched.setattr(world.source, "clusters", broken)
        world.run_until(START + HOUR_MS)
    assert sum(world.status.source_errors().values()) >= 2
    assert world.status.last_turn_ms() is not None
    world.run_until(START + 3 * HOUR_MS)
    assert world.status.ingested()["c"] >= 2


def test_a_loop_that_is_dead_or_silent_is_stalled() -> None:
    """By a clock that cannot be set: a host whose time jumps by a day, either way, is as alive as it was."""
    elapsed_s = 50.0
    status = LoopStatus(lambda: elapsed_s)
    assert status.stalled() is None, "there is no loop yet"
    status.started(1000)
    elapsed_s = 51.0
    assert status.stalled() is None
    elapsed_s = 51.5
    assert "no sign for 2 s" in (status.stalled() or "")
    for jumped_ms in (START - DAY_MS, START + DAY_MS):
        elapsed_s += 10
        status.window_ingested("c", jumped_ms)
        assert status.stalled() is None
        elapsed_s += 2
        assert "no sign" in (status.stalled() or "")
    status.turned(START)
    assert status.stalled() is None
    status.ended()
    assert "ended" in (status.stalled() or "")


def clock_ahead(ledger: Ledger, clock: Clock, steps: Iterable[int]) -> int:
    """The service over some hours at a time, its host's clock ahead by a step of ``steps``; the true time
    then. What there is to read has the source's own time, which goes on as it does."""
    clock.now_ms = true_ms = START
    world = World(ledger, clock)
    for hour, ahead_ms in enumerate(steps, start=2):
        true_ms = START + 3 * hour * HOUR_MS
        world.source.extent = Window(START, true_ms)
        clock.now_ms = true_ms + ahead_ms
        world.run_until(clock.now_ms + 20 * MINUTE_MS)
    return true_ms


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[object, ...]]:
    """What a service has written whose clock is right."""
    clock = Clock(START)
    with Ledger.open(new_ledger(tmp_path_factory.mktemp("calm") / "calm.db"), now=clock) as ledger:
        clock_ahead(ledger, clock, (0, 0, 0, 0))
        return held(ledger)


@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS, DAY_MS, -DAY_MS])
def test_a_host_clock_that_jumps_loses_and_doubles_nothing(
    ledger: Ledger, clock: Clock, calm: list[tuple[object, ...]], by_ms: int
) -> None:
    """Away and back."""
    true_ms = clock_ahead(ledger, clock, (0, by_ms, by_ms, 0))
    assert held(ledger) == calm
    assert len(calm) == (true_ms - START) // HOUR_MS
    assert ledger.verify() == ()


def held(ledger: Ledger) -> list[tuple[object, ...]]:
    return [(info.window, info.state, info.version, info.digest) for info in ledger.windows(DAY, "c")]


def test_a_source_that_holds_nothing_of_ours_is_said_once(
    ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong label of a monitor looks like no trouble: Prometheus answers, and the ledger stays empty."""
    world = World(ledger, clock)
    with monkeypatch.context() as nothing:
        nothing.setattr(world.source, "clusters", lambda: ())
        world.run_until(START + 10 * MINUTE_MS)
        assert [record.message for record in caplog.records if "is that one scraped?" in record.message] == [
            "source: it answers, and has no series of the queue collector: is that one scraped?"
        ]
    world.run_until(START + HOUR_MS + 2 * MINUTE_MS)
    assert len(ledger.windows(DAY)) == 1
