"""The loop of ``gpucost serve`` that writes every window that has ended into the ledger.

It looks for what is missing rather than remembering what it did, so that a crash, an outage of the source or
a longer stop of its own are all the same to it: the oldest missing window comes first.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from functools import partial

from gpucost.domain.errors import GpuCostError
from gpucost.domain.time import Window, iso
from gpucost.reports.base.display import visible
from gpucost.service.ingest.pipeline import Pipeline
from gpucost.service.ingest.status import LoopStatus, WindowFailure
from gpucost.service.settings.model import IngestSettings
from gpucost.settings.types import milliseconds

logger = logging.getLogger(__name__)

_LONGEST_MESSAGE = 500
# A turn may include the longest pause and a slow answer; after three of them without a sign of life the loop
# is stalled.
_MISSED_TURNS = 3
# Tenants choose the names of their jobs.
_MOST_STRANGERS = 100


class IngestLoop:
    """``sleep`` pauses for seconds, or less when a stop is requested; ``stopped`` says whether one is.

    ``expected`` is the cluster of the settings: a source that never answered is reported under it while the
    ledger is empty or holds it. ``strangers`` names scrape jobs whose series are not trusted, for the log: at
    the start, and when windows were written.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        settings: IngestSettings,
        status: LoopStatus,
        *,
        sleep: Callable[[float], object],
        stopped: Callable[[], bool],
        rng: random.Random,
        expected: str = "",
        strangers: Callable[[str], Sequence[object]] = lambda cluster: (),  # noqa: ARG005  no strangers are looked for
    ) -> None:
        self._pipeline = pipeline
        self._settings = settings
        self._status = status
        self._sleep = sleep
        self._stopped = stopped
        self._rng = rng
        self._expected = expected
        self._strangers = strangers
        self._said_strangers: dict[str, set[str]] = {}
        self._failed_turns = 0
        self._said_empty = False

    def run(self) -> None:
        """Runs until a stop is requested. The window being written is finished first."""
        stale_after = _MISSED_TURNS * (self._settings.poll + self._settings.retry_max)
        self._status.started(milliseconds(stale_after))
        try:
            while not self._stopped():
                self._sleep(self.turn())
        finally:
            self._status.ended()

    def turn(self) -> float:
        """Bring every cluster up to date, as far as the source lets us; returns the seconds to pause."""
        failed = self._guarded("source", self._every_cluster)
        self._failed_turns = self._failed_turns + 1 if failed else 0
        self._status.turned(self._pipeline.now())
        return self._pause()

    def _guarded(self, what: str, step: Callable[[], bool]) -> bool:
        """Whether something failed. No error may end the loop: what is not written now is due next time."""
        try:
            return step()
        except GpuCostError as error:
            logger.error("%s: %s", visible(what), visible(str(error), _LONGEST_MESSAGE))
            self._status.failed(error)
        except Exception as error:
            logger.exception("%s: unexpected error", visible(what))
            self._status.failed(error)
        return True

    def _every_cluster(self) -> bool:
        try:
            clusters = self._pipeline.source.clusters()
        except Exception as error:  # a broken recording, a token that no header can carry
            for cluster in self._ours():
                self._source_failed(cluster, error)
            return True
        self._say_when_empty(clusters)
        # A cluster that was never read here belongs to another service that writes to the same ledger.
        read = {name for name, each in self._status.clusters().items() if each.last_success_ms is not None}
        self._status.keep({*clusters, *read})
        # Every cluster has its turn, also when the one before it failed.
        return sum(self._guarded(cluster, partial(self._cluster, cluster)) for cluster in clusters) > 0

    def _say_when_empty(self, clusters: Sequence[str]) -> None:
        """Logged once, not in every turn: a source that answers without any of our series raises no error."""
        if clusters or self._said_empty:
            self._said_empty = not clusters
            return
        self._said_empty = True
        logger.warning("source: it answers, and has no series of the queue collector: is that one scraped?")

    def _ours(self) -> list[str]:
        """The clusters to report while the source cannot name them: those that it had. After a restart, the
        one of the settings where the ledger has it, since other services may write to the ledger too; else
        all that the ledger has.
        """
        had, known = self._status.clusters(), self._pipeline.ledger.clusters()
        if had:
            return sorted(had)
        return [self._expected] if self._expected in known or not known else [*known]

    def _cluster(self, cluster: str) -> bool:
        try:
            covered = self._pipeline.source.covered(cluster)
        except Exception as error:
            self._source_failed(cluster, error)
            return True
        return self._bring_up_to_date(cluster, covered)

    def _source_failed(self, cluster: str, error: Exception) -> None:
        """What is due follows from the ledger; it is unknown where that is empty and no start is set."""
        cause = None if isinstance(error, GpuCostError) else error
        reason = visible(str(error), _LONGEST_MESSAGE)
        logger.warning("%s: %s: %s", _named(cluster), type(error).__name__, reason, exc_info=cause)
        span = self._span(cluster, None)
        due = () if span is None else self._pipeline.pending(cluster, span)
        window = Window(due[0].start_ms, due[-1].end_ms) if due else None
        known = span is not None or self._pipeline.ledger.extent(cluster) is not None
        self._status.source_failed(WindowFailure.of(cluster, window, error), len(due) if known else None)

    def _bring_up_to_date(self, cluster: str, covered: Window | None) -> bool:
        pipeline = self._pipeline
        span = self._span(cluster, covered)
        due = () if span is None else pipeline.pending(cluster, span)
        lost = sum(covered is not None and window.start_ms < covered.start_ms for window in due)
        held = tuple(window for window in due if covered is not None and _inside(window, covered))
        if held:
            logger.info("%s: %d windows to read, from %s", _named(cluster), len(held), iso(held[0].start_ms))
        outcome = pipeline.ingest(cluster, held, on_window=self._ingested, stop=self._stopped)
        for failure in outcome.failures:
            reason = visible(failure.reason, _LONGEST_MESSAGE)
            logger.warning("%s stays open: %s: %s", failure.window, failure.kind, reason)
        pending = len(due) - lost - outcome.ingested
        self._status.cluster_read(cluster, pending=pending, lost=lost, failures=outcome.failures)
        if outcome.ingested or cluster not in self._said_strangers:
            self._look_for_strangers(cluster)
        return bool(outcome.failures)

    def _look_for_strangers(self, cluster: str) -> None:
        """Each is logged once."""
        try:
            found = [str(each) for each in self._strangers(cluster)]
        except GpuCostError as error:
            reason = visible(str(error), _LONGEST_MESSAGE)
            logger.warning("%s: nobody can say whose series these are: %s", _named(cluster), reason)
            return
        said = self._said_strangers.setdefault(cluster, set())
        for text in found:
            if text not in said and len(said) < _MOST_STRANGERS:
                said.add(text)
                logger.warning("%s: not believed: %s", _named(cluster), visible(text, _LONGEST_MESSAGE))
        self._status.looked_for_strangers(cluster, len(found))

    def _span(self, cluster: str, covered: Window | None) -> Window | None:
        """From where the ledger (or the settings) begins to now, without what is settled in the ledger."""
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


def _named(cluster: str) -> str:
    return visible(cluster) if cluster else "source"


def _inside(window: Window, covered: Window) -> bool:
    return covered.start_ms <= window.start_ms and window.end_ms <= covered.end_ms
