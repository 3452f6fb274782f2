"""One window after another: read from the source, attribute, write to the ledger.

``pending`` asks the ledger which windows of a span are due: those that have ended and are not there (an hour
each by default), and those that are open and past the lateness allowance (15 minutes), which are read a
second time and then settled. Nothing else is remembered: the ledger is the only state, so that a run may be
killed at any moment and simply be started again, and a gap of any age is filled by the next turn.

``ingest`` works in batches of neighbouring windows (a day by default), since a few queries per day cost much
less than the same per hour. A batch is read and attributed at once (``batch_reader``), by this process or by
workers, and ``Ledger.write_batch`` writes it in one transaction: always by this process and in the order of
time. A window is written whole or not at all, and writing it again changes nothing.

What fails:

- a batch that the source cannot answer is halved until only the windows that really fail are left out; they
  are tried again at the next turn;
- a source that is gone, or that times out on a single window, ends the run: the rest is not tried;
- a window that the ledger refuses raises, after those before it were written; closed months are left alone.

All times are milliseconds UTC; ``now`` is the only clock.

``gpucost.service.wiring.pipeline`` builds one; ``gpucost.service.ingest.loop`` runs it for ``gpucost serve``,
``gpucost ingest`` and the demo run it once, and ``wiring.adhoc_month`` runs it into a ledger that is thrown
away, for a report straight from Prometheus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from gpucost.domain.time import Month, Window
from gpucost.ledger.db.records import LedgerState
from gpucost.ledger.ledger import Ledger
from gpucost.service.ingest.batch_reader import (
    REFUSALS,
    AttributionRules,
    BatchReader,
    BatchResult,
    OwnProcess,
    ReadyWindows,
    WindowBatch,
    WorkerPool,
    results_in_order,
)
from gpucost.service.ingest.status import WindowFailure
from gpucost.telemetry.interval_source import IntervalSource

OnWindow = Callable[[str, Window], None]


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
        workers: WorkerPool | None = None,
    ) -> PipelineOutcome:
        """Read and write ``windows``, a batch at a time; ``on_window`` is called with each that was written.

        A batch that the source cannot answer is halved, so that only what really fails stays open. When the
        source is gone, the rest is not tried. ``stop`` is asked between batches. ``workers`` read in the
        place of this process. Raises LedgerError.
        """
        pool = workers or OwnProcess(BatchReader(self.source, self.rules, self.window_ms))
        writer = _BatchWriter(self, pool, on_window)
        batches = (WindowBatch(cluster, tuple(batch)) for batch in self._batches(windows))
        wanted = takewhile(lambda _: not (stop() or writer.is_over), batches)
        for result in results_in_order(pool, wanted):
            writer.write(result)
        return PipelineOutcome(writer.ingested, writer.changed, tuple(writer.failures))

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


class _BatchWriter:
    """One call of ``Pipeline.ingest``: what it has done so far. ``is_over`` once the source is gone."""

    def __init__(self, pipeline: Pipeline, pool: WorkerPool, on_window: OnWindow) -> None:
        self.pipeline, self.pool, self.on_window = pipeline, pool, on_window
        self.ingested = 0
        self.changed = 0
        self.failures: list[WindowFailure] = []
        self.is_over = False

    def write(self, result: BatchResult) -> None:
        for part in result.parts:
            if isinstance(part, WindowFailure):
                self.failures.append(part)
            else:
                self._ready(part)
        self.is_over |= result.gone
        if result.refusal is not None:
            raise result.refusal

    def _ready(self, ready: ReadyWindows) -> None:
        pipeline, batch = self.pipeline, ready.batch
        now = pipeline.now()
        try:
            results = pipeline.ledger.write_batch(
                ready.prepared,
                source=ready.source,
                code_version=pipeline.code_version,
                settled={window for window in batch.windows if window.end_ms + pipeline.lateness_ms <= now},
            )
        except REFUSALS:
            # All of a batch is written or none: only the windows from the refused one on shall be missing.
            if len(batch.windows) == 1:
                raise
            for half in batch.halves():
                if not self.is_over:
                    self.write(self.pool.submit(half).result())
            return
        if ready.provider_ids:
            pipeline.ledger.identify_nodes(batch.cluster, ready.provider_ids)
        for window, result in zip(batch.windows, results, strict=True):
            self.ingested += 1
            self.changed += result.changed
            self.on_window(batch.cluster, window)
