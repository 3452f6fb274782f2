"""The pipeline: whole windows or nothing, only what is missing, and failures that stay open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pandas as pd
import pytest

from gpucost.attribution.frames import ClusterFrames
from gpucost.domain.errors import (
    DataProblem,
    DataProblemCode,
    LedgerConflict,
    NotCovered,
    PartialResponse,
    SourceError,
    SourceTimeout,
    SourceUnreachable,
)
from gpucost.domain.rates import NodeFacts, RateSpan
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Month, Window
from gpucost.ledger.db.records import LedgerState
from gpucost.ledger.ledger import Ledger
from gpucost.service.ingest.batch_reader import observed_ms, progress_in
from gpucost.service.ingest.pipeline import Pipeline
from gpucost.service.ingest.status import WindowFailure, joined_failures
from tests.service.worlds import DAY, Clock, MemorySource, filled_ledger, frames, pipeline
from tests.support.frames import OCTOBER, hours
from tests.support.ledgers import new_ledger


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[Ledger]:
    with Ledger.open(new_ledger(tmp_path / "l.db"), now=clock) as found:
        yield found


def totals(ledger: Ledger, span: Window = OCTOBER) -> dict[str, tuple[int, int]]:
    frame = ledger.aggregate(EVERYTHING, span, ("bucket",))
    return {
        str(bucket): (int(ms), int(nano))
        for bucket, ms, nano in frame[["bucket", "board_ms", "nano"]].to_numpy()
    }


def with_windows(found: Pipeline, window_ms: int, batch_ms: int) -> Pipeline:
    return Pipeline(
        **{**found.__dict__, "window_ms": window_ms, "batch_ms": batch_ms},
    )


def test_a_day_is_ingested_and_adds_up(ledger: Ledger, clock: Clock) -> None:
    machines = frozenset({("a", "aws:///eu-1a/i-1"), ("b", "aws:///eu-1a/i-2")})
    lines = pipeline(ledger, MemorySource(replace(frames(), provider_ids=machines)), clock)
    outcome = lines.ingest("c", lines.pending("c", DAY))
    assert (outcome.ingested, outcome.changed, outcome.failures) == (24, 24, ())
    assert {(each.node, each.provider_id) for each in ledger.node_identities()} == machines
    found = totals(ledger)
    assert sum(ms for ms, _ in found.values()) == 16 * 24 * HOUR_MS
    assert sum(nano for _, nano in found.values()) == 16 * 24 * 2_500_000_000
    assert found["unknown"][0] == 13 * HOUR_MS, "16 boards in the unobserved hour, less the 3 held"


@pytest.mark.parametrize(("window", "batch"), [(15, 15), (15, 90), (60, 60), (60, 1440), (1440, 1440)])
def test_window_and_batch_do_not_change_totals(tmp_path: Path, clock: Clock, window: int, batch: int) -> None:
    # Nothing begins or ends in the afternoon but one pod; batches of minutes are as dear as those of days.
    span = DAY if window == 1440 else hours(0, 12)
    with (
        filled_ledger(tmp_path, clock) as reference,
        Ledger.open(new_ledger(tmp_path / "other.db"), now=clock) as other,
    ):
        lines = with_windows(
            pipeline(other, MemorySource(frames()), clock), window * MINUTE_MS, batch * MINUTE_MS
        )
        lines.ingest("c", lines.pending("c", span))
        assert totals(other) == totals(reference, span)


def test_the_batch_does_not_change_what_a_window_holds(tmp_path: Path, clock: Clock, ledger: Ledger) -> None:
    """Else the same window read alone, an hour later, would be another version of itself."""
    lines = pipeline(ledger, MemorySource(frames()), clock)
    lines.ingest("c", lines.pending("c", DAY))
    with Ledger.open(new_ledger(tmp_path / "other.db"), now=clock) as other:
        single = with_windows(pipeline(other, MemorySource(frames()), clock), HOUR_MS, HOUR_MS)
        single.ingest("c", single.pending("c", DAY))
        digests = [[info.digest for info in found.windows(DAY)] for found in (ledger, other)]
    assert digests[0] == digests[1]


def test_ingesting_again_changes_nothing(ledger: Ledger, clock: Clock) -> None:
    lines = pipeline(ledger, MemorySource(frames()), clock)
    lines.ingest("c", lines.pending("c", DAY))
    assert lines.pending("c", DAY) == ()
    again = lines.ingest("c", lines.every("c", DAY))
    assert (again.ingested, again.changed) == (24, 0)


def test_windows_that_have_not_ended_are_left_alone(ledger: Ledger, clock: Clock) -> None:
    clock.now_ms = DAY.start_ms + 5 * HOUR_MS - 1
    lines = pipeline(ledger, MemorySource(frames()), clock)
    assert lines.pending("c", Window(DAY.start_ms, clock.now_ms)) == tuple(hours(0, 4).split(HOUR_MS))


def test_a_window_settles_after_the_lateness_allowance(ledger: Ledger, clock: Clock) -> None:
    lines = pipeline(ledger, MemorySource(frames()), clock)
    clock.now_ms = DAY.start_ms + HOUR_MS + 14 * MINUTE_MS
    lines.ingest("c", lines.pending("c", DAY))
    assert [info.state for info in ledger.windows(DAY)] == [LedgerState.OPEN]
    assert lines.pending("c", DAY) == (), "nothing is due before the allowance is over"
    clock.now_ms += MINUTE_MS
    assert lines.pending("c", DAY) == (hours(0, 1),)
    outcome = lines.ingest("c", lines.pending("c", DAY))
    assert [info.state for info in ledger.windows(DAY)] == [LedgerState.SETTLED]
    assert outcome.changed == 0, "settling the same content is not a new version"


@pytest.mark.fault(24)
def test_a_partial_response_leaves_its_window_open_and_only_that(ledger: Ledger, clock: Clock) -> None:
    bad = hours(7, 8)

    def fail(window: Window) -> SourceError | None:
        meets = window.overlap_ms(bad.start_ms, bad.end_ms)
        return PartialResponse("shard 3 is missing", ("shard 3",)) if meets else None

    source = MemorySource(frames(), fail)
    lines = pipeline(ledger, source, clock)
    outcome = lines.ingest("c", lines.pending("c", DAY))
    assert outcome.ingested == 23
    assert [(f.window, f.kind, f.reason) for f in outcome.failures] == [
        (bad, "PartialResponse", "shard 3 is missing")
    ]
    assert lines.pending("c", DAY) == (bad,)
    source.fail = lambda _: None
    assert lines.ingest("c", lines.pending("c", DAY)).failures == ()
    assert lines.pending("c", DAY) == ()


@pytest.mark.fault(23)
@pytest.mark.parametrize("error", [SourceUnreachable("refused"), SourceTimeout("too slow")])
def test_a_source_that_is_gone_is_not_asked_for_the_rest(
    error: SourceError, ledger: Ledger, clock: Clock
) -> None:
    source = MemorySource(
        frames(), lambda window: error if window.start_ms >= hours(12, 13).start_ms else None
    )
    lines = pipeline(ledger, source, clock)
    outcome = lines.ingest("c", lines.pending("c", DAY))
    assert outcome.ingested == 12
    assert len(outcome.failures) == 1
    asked_in_vain = [window for window in source.reads if window.start_ms >= hours(12, 13).start_ms]
    assert len(asked_in_vain) <= 4, "one batch, halved for a time-out, and no further one"


@pytest.mark.fault(28)
def test_a_window_whose_prices_cannot_be_read_stays_open(ledger: Ledger, clock: Clock) -> None:
    """Prices may come from the source too (pricing.opencost)."""
    whole = pipeline(ledger, MemorySource(frames()), clock)

    def rates(node: NodeFacts, window: Window) -> Sequence[RateSpan]:
        if window.end_ms > hours(0, 12).end_ms:
            raise PartialResponse("a store did not answer", ())
        return whole.rules.prices(node, window)

    lines = with_windows(replace(whole, rules=replace(whole.rules, prices=rates)), HOUR_MS, 24 * HOUR_MS)
    outcome = lines.ingest("c", lines.pending("c", DAY))
    assert outcome.ingested == 12
    assert {failure.kind for failure in outcome.failures} == {"PartialResponse"}
    assert len(lines.pending("c", DAY)) == 12


def test_what_a_source_says_of_an_instant_is_read_at_once(ledger: Ledger, clock: Clock) -> None:
    """A problem that says when it was needs no window of its own."""
    said = [
        DataProblem(DataProblemCode.END_BOUNDED, "c", "s", "may be off", 5, at_ms=hours(h, h + 1).start_ms)
        for h in (2, 7)
    ]
    source = MemorySource(replace(frames(), problems=tuple(said)))
    lines = with_windows(pipeline(ledger, source, clock), HOUR_MS, 24 * HOUR_MS)
    lines.ingest("c", lines.pending("c", DAY))
    assert source.reads == [DAY]
    for hour, count in ((1, 0), (2, 1), (7, 1), (8, 0)):
        found = [
            each for each in ledger.problems(EVERYTHING, hours(hour, hour + 1)) if each.detail == "may be off"
        ]
        assert len(found) == count, hour


def test_what_a_source_adds_up_by_the_hour_is_read_by_windows_that_are_shorter(
    ledger: Ledger, clock: Clock
) -> None:
    """Else a quarter of an hour would have what the whole hour has, until it is read alone."""

    class Hourly(MemorySource):
        def read(self, cluster: str, window: Window) -> ClusterFrames:
            told = [
                DataProblem(DataProblemCode.SHARE_UNKNOWN, "c", "s", "hourly", hour.length_ms, hour.start_ms)
                for hour in window.split(HOUR_MS)
            ]
            return replace(super().read(cluster, window), problems=tuple(told))

    lines = with_windows(pipeline(ledger, Hourly(frames()), clock), 15 * MINUTE_MS, 2 * HOUR_MS)
    lines.ingest("c", tuple(hours(2, 3).split(15 * MINUTE_MS)))
    for quarter in hours(2, 3).split(15 * MINUTE_MS):
        told = [each for each in ledger.problems(EVERYTHING, quarter) if each.detail == "hourly"]
        assert [each.board_ms for each in told] == [15 * MINUTE_MS]


def test_what_the_source_no_longer_holds_stays_missing(ledger: Ledger, clock: Clock) -> None:
    source = MemorySource(
        frames(), lambda window: NotCovered("retention") if window.start_ms < hours(3, 4).start_ms else None
    )
    lines = pipeline(ledger, source, clock)
    outcome = lines.ingest("c", lines.pending("c", DAY))
    assert [failure.window for failure in outcome.failures] == list(hours(0, 3).split(HOUR_MS))
    assert outcome.ingested == 21


def test_a_stop_ends_between_batches(ledger: Ledger, clock: Clock) -> None:
    lines = pipeline(ledger, MemorySource(frames()), clock)
    seen: list[Window] = []
    outcome = lines.ingest(
        "c",
        lines.pending("c", DAY),
        on_window=lambda _, window: seen.append(window),
        stop=lambda: len(seen) >= 3,
    )
    assert outcome.ingested == 6, "a batch is written whole"
    assert len(ledger.windows(DAY)) == 6


def test_a_window_that_the_ledger_refuses_costs_none_before_it(ledger: Ledger, clock: Clock) -> None:
    quarter = with_windows(pipeline(ledger, MemorySource(frames()), clock), 15 * MINUTE_MS, HOUR_MS)
    quarter.ingest("c", quarter.pending("c", hours(3, 3.25)))
    hourly = pipeline(ledger, MemorySource(frames()), clock)
    with pytest.raises(LedgerConflict, match="overlaps"):
        hourly.ingest("c", tuple(hours(0, 6).split(HOUR_MS)))
    assert [info.window for info in ledger.windows(DAY)] == [*hours(0, 3).split(HOUR_MS), hours(3, 3.25)]


def test_a_change_of_window_length_fills_around_what_is_there(ledger: Ledger, clock: Clock) -> None:
    quarter = with_windows(pipeline(ledger, MemorySource(frames()), clock), 15 * MINUTE_MS, HOUR_MS)
    quarter.ingest("c", quarter.pending("c", hours(2, 2.5)))
    hourly = pipeline(ledger, MemorySource(frames()), clock)
    due = hourly.pending("c", DAY)
    assert hours(2.5, 3) in due
    assert hourly.ingest("c", due).failures == ()
    assert sum(ms for ms, _ in totals(ledger).values()) == 16 * 24 * HOUR_MS


def test_a_closed_month_is_left_alone(ledger: Ledger, clock: Clock) -> None:
    lines = pipeline(ledger, MemorySource(frames()), clock)
    lines.ingest("c", lines.pending("c", hours(0, 12)))
    clock.now_ms = OCTOBER.end_ms + HOUR_MS
    ledger.close_month(Month(2026, 10), author="test", min_coverage=Fraction(0), reason="half a day")
    assert lines.pending("c", DAY) == ()


def test_observed_time_is_a_union() -> None:
    found = frames().observed
    assert observed_ms(found, hours(9, 12)) == 2 * HOUR_MS
    assert observed_ms(found, hours(10, 11)) == 0
    doubled = pd.concat([found, found], ignore_index=True)
    assert observed_ms(doubled, hours(9, 12)) == 2 * HOUR_MS


def test_progress_is_spread_over_the_windows_it_spans() -> None:
    progress = frames().progress
    quarters = [progress_in(progress, window) for window in hours(0, 3).split(15 * MINUTE_MS)]
    assert [float(part["amount"].sum()) for part in quarters] == [0.0] * 4 + [125.0] * 4 + [0.0] * 4
    inside = quarters[5].iloc[0]
    assert (inside["start_ms"], inside["end_ms"]) == (hours(1.25, 2).start_ms, hours(0, 1.5).end_ms)


def test_windows_that_fail_alike_and_follow_one_another_are_told_as_one() -> None:
    first, second, third, apart = (hours(start, start + 1) for start in (0, 1, 2, 4))
    gone, late = SourceUnreachable("gone"), SourceTimeout("late")
    failures = [
        *(WindowFailure.of("c", window, gone) for window in (first, second)),
        WindowFailure.of("c", third, late),
        WindowFailure.of("c", apart, late),
        WindowFailure.of("other", hours(5, 6), late),
        WindowFailure.of("other", None, late),
    ]
    assert [(each.cluster, each.window, each.reason) for each in joined_failures(failures)] == [
        ("c", hours(0, 2), "gone"),
        ("c", third, "late"),
        ("c", apart, "late"),
        ("other", hours(5, 6), "late"),
        ("other", None, "late"),
    ]
