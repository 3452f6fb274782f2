"""The loop of ``gpucost serve``: every window that has ended flows into the ledger by itself.

It looks for what is missing rather than remembering what it did, so that a crash, an outage of the source
or a longer stop of its own are all the same to it: the oldest missing window comes first.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from gpucost.domain.errors import GpuCostError, SourceError
from gpucost.domain.time import Window, iso
from gpucost.service.pipeline import Pipeline
from gpucost.service.settings import IngestSettings
from gpucost.service.settings_types import milliseconds
from gpucost.service.status import LoopStatus

logger = logging.getLogger(__name__)


class Loop:
    """``sleep`` pauses for seconds, or less when a stop is asked for; ``stopped`` says whether it is."""

    def __init__(
        self,
        pipeline: Pipeline,
        settings: IngestSettings,
        status: LoopStatus,
        *,
        sleep: Callable[[float], object],
        stopped: Callable[[], bool],
        rng: random.Random,
    ) -> None:
        self._pipeline = pipeline
        self._settings = settings
        self._status = status
        self._sleep = sleep
        self._stopped = stopped
        self._rng = rng
        self._failed_turns = 0

    def run(self) -> None:
        """Until a stop is asked for. The window being written is finished first."""
        while not self._stopped():
            self._sleep(self.turn())

    def turn(self) -> float:
        """Bring every cluster up to date, as far as the source lets us; returns the seconds to pause."""
        try:
            clusters = self._pipeline.source.clusters()
        except SourceError as error:
            logger.warning("source: %s", error)
            self._status.source_failed("", error)
            failed = True
        else:
            # Every cluster has its turn, whatever became of the one before.
            failed = sum(self._cluster(cluster) for cluster in clusters) > 0
        self._failed_turns = self._failed_turns + 1 if failed else 0
        return self._pause()

    def _cluster(self, cluster: str) -> bool:
        """Whether something failed. Nothing may end the loop: what is not written now is due next time."""
        try:
            return self._bring_up_to_date(cluster)
        except SourceError as error:
            logger.warning("%s: %s", cluster, error)
            self._status.source_failed(cluster, error)
        except GpuCostError as error:
            logger.error("%s: %s", cluster, error)
            self._status.failed(error)
        except Exception as error:
            logger.exception("%s: unexpected error", cluster)
            self._status.failed(error)
        return True

    def _bring_up_to_date(self, cluster: str) -> bool:
        pipeline = self._pipeline
        covered = pipeline.source.covered(cluster)
        span = self._span(cluster, covered)
        due = () if span is None else pipeline.pending(cluster, span)
        lost = sum(covered is not None and window.start_ms < covered.start_ms for window in due)
        held = tuple(window for window in due if covered is not None and _inside(window, covered))
        if held:
            logger.info("%s: %d windows to read, from %s", cluster, len(held), iso(held[0].start_ms))
        outcome = pipeline.ingest(cluster, held, on_window=self._ingested, stop=self._stopped)
        for failure in outcome.failures:
            logger.warning("%s stays open: %s: %s", failure.window, failure.kind, failure.reason)
        pending = len(due) - lost - outcome.ingested
        self._status.cluster_read(cluster, pending=pending, lost=lost, failures=outcome.failures)
        return bool(outcome.failures)

    def _span(self, cluster: str, covered: Window | None) -> Window | None:
        """From where the ledger (or the settings) begins to now; what the ledger settled is left out."""
        ledger, now = self._pipeline.ledger, self._pipeline.now()
        extent, frontier = ledger.extent(cluster), ledger.frontier(cluster)
        first = self._settings.start
        if first is None:
            first = extent.start_ms if extent else self._first_ever(now, covered)
        if frontier is not None and extent is not None and extent.start_ms <= first:
            first = max(first, frontier)
        return Window(first, now) if first < now else None

    def _first_ever(self, now: int, covered: Window | None) -> int:
        start = now - milliseconds(self._settings.backfill)
        start -= start % self._pipeline.window_ms
        return max(start, covered.start_ms) if covered else now

    def _ingested(self, cluster: str, window: Window) -> None:
        del window
        self._status.window_ingested(cluster, self._pipeline.now())

    def _pause(self) -> float:
        if not self._failed_turns:
            return self._settings.poll.total_seconds()
        shortest = self._settings.retry_min.total_seconds()
        longest = min(self._settings.retry_max.total_seconds(), shortest * 2.0 ** min(self._failed_turns, 30))
        return self._rng.uniform(shortest, longest)


def _inside(window: Window, covered: Window) -> bool:
    return covered.start_ms <= window.start_ms and window.end_ms <= covered.end_ms
