"""A batch of windows: read from the source, attributed, and checked and put into the ledger's form.

That is the unit of work of ingestion, a day of one cluster by default. It needs no ledger, so that other
processes may do it (``worker_pools``): what comes back is written by one process, in the order of time.

A batch that the source cannot answer is halved until only the windows that really fail are left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pandas as pd

from gpucost.attribution.attribute import attribute
from gpucost.attribution.frames import ClusterFrames
from gpucost.attribution.usage_lines import Attribution, TeamLookup
from gpucost.domain.errors import (
    DataProblem,
    GpuCostError,
    InputError,
    LedgerConflict,
    MonthClosed,
    SourceError,
    SourceTimeout,
    SourceUnreachable,
)
from gpucost.domain.gpu import ResourceCatalog, ShareBasis
from gpucost.domain.rates import RateLookup
from gpucost.domain.time import HOUR_MS, Window
from gpucost.ledger.usage.prepared_batch import PreparedBatch, prepare_batch
from gpucost.service.ingest.status import WindowFailure
from gpucost.telemetry.interval_source import IntervalSource
from gpucost.telemetry.prometheus.query_response import COLLECTOR

REFUSALS = (InputError, LedgerConflict, MonthClosed)
"""What is wrong with one window of a batch, and not with the ledger."""


@dataclass(frozen=True)
class AttributionRules:
    """How frames become lines: prices, teams, resource names, and what a MIG slice is measured by."""

    prices: RateLookup
    teams: TeamLookup
    catalog: ResourceCatalog
    basis: ShareBasis


@dataclass(frozen=True, slots=True)
class WindowBatch:
    """Neighbouring windows of a cluster: what is read at once."""

    cluster: str
    windows: tuple[Window, ...]

    @property
    def span(self) -> Window:
        return Window(self.windows[0].start_ms, self.windows[-1].end_ms)

    def halves(self) -> tuple[WindowBatch, WindowBatch]:
        half = len(self.windows) // 2
        return WindowBatch(self.cluster, self.windows[:half]), WindowBatch(self.cluster, self.windows[half:])


@dataclass(frozen=True, slots=True)
class ReadyWindows:
    """Windows in the ledger's form, and the source that they come from; and which machines nodes are, as in
    ClusterFrames."""

    batch: WindowBatch
    prepared: PreparedBatch
    source: str
    provider_ids: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What became of a batch, in the order of time.

    With ``gone`` the source is, and what is not told of here was not tried; with a ``refusal`` one window's
    content is refused, and what follows it was not tried.
    """

    parts: tuple[ReadyWindows | WindowFailure, ...]
    gone: bool = False
    refusal: GpuCostError | None = None

    @property
    def is_whole(self) -> bool:
        return not self.gone and self.refusal is None


@dataclass(frozen=True)
class BatchReader:
    """A source and the rules. ``window_ms`` is the length of a window."""

    source: IntervalSource
    rules: AttributionRules
    window_ms: int

    def read(self, batch: WindowBatch) -> BatchResult:
        """Raises no error of a source, nor of content that a ledger would refuse: they are in the result."""
        # A day of many pods is hundreds of thousands of objects, none of which is garbage.
        with COLLECTOR.paused():
            return self._read(batch)

    def _read(self, batch: WindowBatch) -> BatchResult:
        windows, span = batch.windows, batch.span
        try:
            frames = self.source.read(batch.cluster, span)
            if len(windows) > 1 and any(map(self._may_be_of_others, frames.problems)):
                # What a source complains of stands with the window it is about, whatever the batch.
                return self._halves(batch)
            # Prices may be read from the source too.
            found = attribute_windows(frames, windows, self.rules)
        except SourceUnreachable as error:
            return BatchResult((WindowFailure.of(batch.cluster, span, error),), gone=True)
        except SourceError as error:
            if len(windows) > 1:
                return self._halves(batch)
            failure = WindowFailure.of(batch.cluster, span, error)
            return BatchResult((failure,), gone=isinstance(error, SourceTimeout))
        progress = frames.progress
        try:
            prepared = prepare_batch(
                batch.cluster,
                found,
                observed_ms={window: observed_ms(frames.observed, window) for window in windows},
                progress={} if progress.empty else {one: progress_in(progress, one) for one in windows},
            )
        except REFUSALS as error:
            # Only the windows from the refused one on shall be missing.
            return self._halves(batch) if len(windows) > 1 else BatchResult((), refusal=error)
        source = frames.source or self.source.name
        return BatchResult((ReadyWindows(batch, prepared, source, frames.provider_ids),))

    def _may_be_of_others(self, problem: DataProblem) -> bool:
        """Whether a problem may be about more windows than that of its instant: sources add up the GPU time
        of an hour of UTC."""
        is_longer = self.window_ms % HOUR_MS != 0 and problem.board_ms is not None
        return problem.at_ms is None or is_longer

    def _halves(self, batch: WindowBatch) -> BatchResult:
        first, second = batch.halves()
        before = self.read(first)
        if not before.is_whole:
            return before
        after = self.read(second)
        return BatchResult(before.parts + after.parts, after.gone, after.refusal)


class PendingResult(Protocol):
    """The result of a batch that is being read."""

    def result(self) -> BatchResult:
        """Waits for it. Raises GpuCostError where no worker could do it."""


class WorkerPool(Protocol):
    """Where batches are read: in this process, in others of this machine, or on others."""

    @property
    def width(self) -> int:
        """How many batches may be under way, or wait to be written, at once."""

    def submit(self, batch: WindowBatch) -> PendingResult: ...


@dataclass(frozen=True)
class OwnProcess:
    """No other process: a batch is read when its result is asked for."""

    reader: BatchReader
    width: int = 1

    def submit(self, batch: WindowBatch) -> PendingResult:
        return _LaterResult(self.reader, batch)


@dataclass(frozen=True)
class _LaterResult:
    reader: BatchReader
    batch: WindowBatch

    def result(self) -> BatchResult:
        return self.reader.read(self.batch)


def results_in_order(pool: WorkerPool, batches: Iterable[WindowBatch]) -> Iterator[BatchResult]:
    """The results in the order of ``batches``, of which no more than the pool's width are taken ahead."""
    waiting: deque[PendingResult] = deque()
    for batch in batches:
        waiting.append(pool.submit(batch))
        if len(waiting) >= pool.width:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


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
