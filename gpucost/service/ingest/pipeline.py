"""One window after another: read from the source, attribute, write to the ledger.

``pending`` asks the ledger which windows of a span are due: those that have ended and are not there (an hour
each by default), and those that are open and past the lateness allowance (15 minutes), which are read a
second time and then settled. Nothing else is remembered: the ledger is the only state, so that a run may be
killed at any moment and simply be started again, and a gap of any age is filled by the next turn.

``ingest`` works in batches of neighbouring windows (a day by default), since a few queries per day cost much
less than the same per hour. Of a batch the source is read once, ``attribute`` makes lines for all windows,
and ``Ledger.ingest_batch`` writes them in one transaction. A window is written whole or not at all, and
writing it again changes nothing.

What fails:

- a batch that the source cannot answer is halved until only the windows that really fail are left out; they
  are tried again at the next turn;
- a source that is gone, or that times out on a single window, ends the run: the rest is not tried;
- a window that the ledger refuses raises, after those before it were written; closed months are left alone.

All times are milliseconds UTC; ``now`` is the only clock.

``gpucost.service.wiring.pipeline`` builds one; ``gpucost.service.ingest.loop`` runs it for ``gpucost serve``,
``gpucost ingest`` and the demo run it once, and ``wiring.adhoc_month`` runs it into a ledger that is thrown
away, for a report straight from Prometheus. ``attribute_windows`` is also how the waste ledger gets the lines
it divides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from gpucost.attribution.attribute import attribute
from gpucost.attribution.frames import ClusterFrames
from gpucost.attribution.usage_lines import Attribution, TeamLookup
from gpucost.domain.errors import (
    DataProblem,
    InputError,
    LedgerConflict,
    MonthClosed,
    SourceError,
    SourceTimeout,
    SourceUnreachable,
)
from gpucost.domain.gpu import ResourceCatalog, ShareBasis
from gpucost.domain.rates import RateLookup
from gpucost.domain.time import HOUR_MS, Month, Window
from gpucost.ledger.db.records import LedgerState
from gpucost.ledger.ledger import Ledger
from gpucost.service.ingest.status import WindowFailure
from gpucost.telemetry.interval_source import IntervalSource

OnWindow = Callable[[str, Window], None]

# What is wrong with one window of a batch, and not with the ledger.
_REFUSALS = (InputError, LedgerConflict, MonthClosed)


@dataclass(frozen=True)
class AttributionRules:
    """How frames become lines: prices, teams, resource names, and what a MIG slice is measured by."""

    prices: RateLookup
    teams: TeamLookup
    catalog: ResourceCatalog
    basis: ShareBasis


@dataclass(frozen=True)
class PipelineOutcome:
    """What became of the windows. ``changed`` counts new or other content; ``failures`` stay open."""

    ingested: int = 0
    changed: int = 0
    failures: tuple[WindowFailure, ...] = ()


def nobody(cluster: str, window: Window) -> None:
    """Reports no window: for callers that do not follow the progress."""
    del cluster, window


@dataclass(frozen=True)
class Pipeline:
    """A source, the rules and a ledger. Lengths are ms; ``now`` is the clock, in ms UTC."""

    source: IntervalSource
    ledger: Ledger
    rules: AttributionRules
    window_ms: int
    batch_ms: int
    lateness_ms: int
    now: Callable[[], int]
    code_version: str

    def pending(self, cluster: str, span: Window) -> tuple[Window, ...]:
        """The windows of ``span`` that are due, oldest first.

        Due is what has ended and is not in the ledger, and what is open there and past the lateness
        allowance. Months that are closed are left alone.
        """
        now, due, reached = self.now(), list[Window](), span.start_ms
        for info in self.ledger.windows(span, cluster):
            due += self._ended(reached, info.window.start_ms, now)
            if info.state is LedgerState.OPEN and info.window.end_ms + self.lateness_ms <= now:
                due.append(info.window)
            reached = info.window.end_ms
        due += self._ended(reached, self._whole(span.end_ms), now)
        closed = self._closed_months(due)
        return tuple(window for window in due if Month.of(window.start_ms) not in closed)

    def every(self, cluster: str, span: Window) -> tuple[Window, ...]:
        """All windows of ``span`` that have ended, those the ledger has with the edges they have there."""
        now, found, reached = self.now(), list[Window](), span.start_ms
        for info in self.ledger.windows(span, cluster):
            found += [*self._ended(reached, info.window.start_ms, now), info.window]
            reached = info.window.end_ms
        return (*found, *self._ended(reached, self._whole(span.end_ms), now))

    def ingest(
        self,
        cluster: str,
        windows: Sequence[Window],
        *,
        on_window: OnWindow = nobody,
        stop: Callable[[], bool] = lambda: False,
    ) -> PipelineOutcome:
        """Read and write ``windows``, a batch at a time; ``on_window`` is called with each that was written.

        A batch that the source cannot answer is halved, so that only what really fails stays open. When the
        source is gone, the rest is not tried. ``stop`` is asked between batches. Raises LedgerError.
        """
        run = _WindowRun(self, cluster, on_window, stop)
        for batch in self._batches(windows):
            if stop() or not run.batch(batch):
                break
        return PipelineOutcome(run.ingested, run.changed, tuple(run.failures))

    def _ended(self, start_ms: int, end_ms: int, now: int) -> list[Window]:
        if start_ms >= end_ms:
            return []
        return [window for window in Window(start_ms, end_ms).split(self.window_ms) if window.end_ms <= now]

    def _whole(self, end_ms: int) -> int:
        """The last window is whole or left for later; only the first may be cut, where a source begins."""
        return end_ms - end_ms % self.window_ms

    def _closed_months(self, windows: Sequence[Window]) -> frozenset[Month]:
        months = {Month.of(window.start_ms) for window in windows}
        return frozenset(month for month in months if self.ledger.month(month).state is LedgerState.CLOSED)

    def _batches(self, windows: Sequence[Window]) -> Iterator[list[Window]]:
        """Runs of windows without a gap, no longer than a batch."""
        batch: list[Window] = []
        for window in windows:
            fits = batch and batch[-1].end_ms == window.start_ms
            if batch and not (fits and window.end_ms - batch[0].start_ms <= self.batch_ms):
                yield batch
                batch = []
            batch.append(window)
        if batch:
            yield batch


class _WindowRun:
    """One call of ``Pipeline.ingest``: what it has done so far."""

    def __init__(
        self, pipeline: Pipeline, cluster: str, on_window: OnWindow, stop: Callable[[], bool]
    ) -> None:
        self.pipeline, self.cluster, self.on_window, self.stop = pipeline, cluster, on_window, stop
        self.ingested = 0
        self.changed = 0
        self.failures: list[WindowFailure] = []

    def batch(self, batch: list[Window]) -> bool:
        """Whether to go on with the next batch."""
        span = Window(batch[0].start_ms, batch[-1].end_ms)
        try:
            frames = self.pipeline.source.read(self.cluster, span)
            if len(batch) > 1 and any(map(self._may_be_of_others, frames.problems)):
                # What a source complains of stands with the window it is about, whatever the batch.
                return self._halves(batch)
            # Prices may be read from the source too.
            found = attribute_windows(frames, batch, self.pipeline.rules)
        except SourceUnreachable as error:
            self.failures.append(WindowFailure.of(self.cluster, span, error))
            return False
        except SourceError as error:
            if len(batch) > 1:
                return self._halves(batch)
            self.failures.append(WindowFailure.of(self.cluster, span, error))
            return not isinstance(error, SourceTimeout)
        return self._write(batch, frames, found)

    def _may_be_of_others(self, problem: DataProblem) -> bool:
        """Whether a problem may be about more windows than that of its instant: sources add up the GPU time
        of an hour of UTC."""
        is_longer = self.pipeline.window_ms % HOUR_MS != 0 and problem.board_ms is not None
        return problem.at_ms is None or is_longer

    def _halves(self, batch: list[Window]) -> bool:
        half = len(batch) // 2
        return self.batch(batch[:half]) and self.batch(batch[half:])

    def _write(self, batch: list[Window], frames: ClusterFrames, found: Attribution) -> bool:
        pipeline, progress = self.pipeline, frames.progress
        now = pipeline.now()
        try:
            results = pipeline.ledger.ingest_batch(
                self.cluster,
                found,
                observed_ms={window: observed_ms(frames.observed, window) for window in batch},
                progress={} if progress.empty else {one: progress_in(progress, one) for one in batch},
                source=frames.source or pipeline.source.name,
                code_version=pipeline.code_version,
                settled={window for window in batch if window.end_ms + pipeline.lateness_ms <= now},
            )
        except _REFUSALS:
            # All of a batch is written or none: only the windows from the refused one on shall be missing.
            if len(batch) > 1:
                return self._halves(batch)
            raise
        for window, result in zip(batch, results, strict=True):
            self.ingested += 1
            self.changed += result.changed
            self.on_window(self.cluster, window)
        return True


def attribute_windows(
    frames: ClusterFrames, windows: Sequence[Window], rules: AttributionRules
) -> Attribution:
    """The usage lines of ``windows`` by the rules of this installation."""
    return attribute(
        frames, windows, rates=rules.prices, teams=rules.teams, catalog=rules.catalog, basis=rules.basis
    )


def progress_in(progress: pd.DataFrame, window: Window) -> pd.DataFrame:
    """The part of the progress that falls into ``window``; it is taken to be even over its stretch."""
    meets = (progress["start_ms"] < window.end_ms) & (progress["end_ms"] > window.start_ms)
    found = progress[meets]
    start, end = found["start_ms"].clip(lower=window.start_ms), found["end_ms"].clip(upper=window.end_ms)
    part = (end - start) / (found["end_ms"] - found["start_ms"])
    return found.assign(start_ms=start, end_ms=end, amount=found["amount"] * part)


def observed_ms(observed: pd.DataFrame, window: Window) -> int:
    """How much of ``window`` lies in at least one of the observed stretches."""
    stretches = sorted(zip(observed["start_ms"].tolist(), observed["end_ms"].tolist(), strict=True))
    total, reached = 0, window.start_ms
    for start_ms, end_ms in stretches:
        start, end = max(start_ms, reached), min(end_ms, window.end_ms)
        total += max(0, end - start)
        reached = max(reached, end)
    return total
