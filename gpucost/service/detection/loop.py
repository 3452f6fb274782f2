"""The detectors' loop of ``gpucost serve``, which updates findings and assesses windows, and its status.

The status is written by the loop, and read by /metrics and the API from other threads.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

from gpucost.cluster.views.overview import ClusterOverview
from gpucost.detectors.findings import WastePattern, WithheldFinding
from gpucost.domain.errors import GpuCostError
from gpucost.domain.time import Window
from gpucost.ledger.db.records import WindowInfo
from gpucost.reports.base.display import visible
from gpucost.service.detection.runner import DetectorRun, DetectorRunner
from gpucost.service.detection.waste_accounting import WasteAccounting
from gpucost.service.ingest.status import WindowFailure


@dataclass(frozen=True, slots=True)
class LastLook:
    """The last evaluation of a cluster: when, how long it took, what held rules back, which failed."""

    at_ms: int
    seconds: float
    withheld: tuple[WithheldFinding, ...]
    failed: tuple[WastePattern, ...]


@dataclass
class DetectorStatus:
    """All methods may be called from any thread. ``evaluations`` counts the evaluations."""

    evaluations: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _looks: dict[str, LastLook] = field(default_factory=dict)
    _errors: Counter[tuple[str, str]] = field(default_factory=Counter)

    def looked(self, cluster: str, found: DetectorRun, seconds: float) -> None:
        failures = found.evaluation.failures
        look = LastLook(
            found.evaluation.now_ms,
            seconds,
            found.withheld,
            tuple(failure.pattern for failure in failures),
        )
        with self._lock:
            self._looks[cluster] = look
            self.evaluations += 1
            for failure in failures:
                self._errors[cluster, failure.pattern.value] += 1

    def failed(self, cluster: str, kind: str) -> None:
        """Count an evaluation or assessment that failed; ``kind`` is the error's class."""
        with self._lock:
            self._errors[cluster, kind] += 1

    def looks(self) -> dict[str, LastLook]:
        """The last evaluation of each cluster."""
        with self._lock:
            return dict(self._looks)

    def errors(self) -> dict[tuple[str, str], int]:
        """Failures since the start, by cluster and what failed: a rule's name, or an error's class."""
        with self._lock:
            return dict(self._errors)


logger = logging.getLogger(__name__)

_LONGEST_MESSAGE = 500

StateOf = Callable[[str], ClusterOverview | None]
"""The current state of a cluster; None where it is not watched, or not all of it has been read yet."""


def _told(failure: WindowFailure) -> str:
    return f"{failure.kind}: {visible(failure.reason, _LONGEST_MESSAGE)}"


class DetectorLoop:
    """One thread beside that of ingest, so that neither waits for a source that is slow for the other.

    ``sleep`` pauses for seconds, or less when a stop is requested; ``seconds`` is a monotonic clock.
    """

    def __init__(
        self,
        detecting: DetectorRunner,
        assessing: WasteAccounting,
        status: DetectorStatus,
        *,
        interval_s: float,
        state: StateOf,
        now: Callable[[], int],
        seconds: Callable[[], float],
        sleep: Callable[[float], object],
        stopped: Callable[[], bool],
    ) -> None:
        self._detecting = detecting
        self._assessing = assessing
        self._status = status
        self._interval_s = interval_s
        self._state = state
        self._now = now
        self._seconds = seconds
        self._sleep = sleep
        self._stopped = stopped
        self._assessed: dict[str, tuple[tuple[str, bool], ...]] = {}
        self._outdated: dict[str, dict[Window, str]] = {}

    def run(self) -> None:
        """Runs until a stop is requested."""
        while not self._stopped():
            begun = self._seconds()
            self.turn()
            self._sleep(max(1.0, self._interval_s - (self._seconds() - begun)))

    def turn(self) -> None:
        """One round over every cluster. No error ends the loop: what failed is tried again in the next."""
        clusters: tuple[str, ...] = ()

        def ask() -> None:
            nonlocal clusters
            clusters = self._detecting.source.clusters()

        self._guarded("", ask)
        for cluster in clusters:
            self._guarded(cluster, partial(self._look, cluster))
            self._guarded(cluster, partial(self._assess, cluster))

    def _look(self, cluster: str) -> None:
        state = self._state(cluster)
        begun = self._seconds()
        found = self._detecting.once(cluster, self._now(), state)
        if found is not None:
            taken = self._seconds() - begun
            self._status.looked(cluster, found, taken)

    def _assess(self, cluster: str) -> None:
        extent = self._assessing.ledger.extent(cluster)
        if extent is None:
            return
        pending = self._assessing.pending(cluster, Window(extent.start_ms, extent.end_ms))
        stand = tuple((info.digest, self._assessing.is_final(cluster, info)) for info in pending)
        if stand == self._assessed.get(cluster):
            return  # nothing came since the last round: provisional assessments stay as they are
        known = self._outdated.get(cluster, {})
        # What is final stays outdated until it is read again: its day is not worked out anew before that.
        wanted = [
            info
            for info, (_, is_final) in zip(pending, stand, strict=True)
            if not is_final or known.get(info.window) != info.digest
        ]
        outcome = self._assessing.assess(cluster, wanted, stop=self._stopped)
        for failure in outcome.failures:
            logger.warning("%s: %s is not assessed: %s", visible(cluster), failure.window, _told(failure))
            self._status.failed(cluster, failure.kind)
        left = self._wait_for_ingest(cluster, pending, wanted, outcome.outdated)
        stands = list(zip(pending, stand, strict=True))
        due = sum(is_final for info, (_, is_final) in stands if info.window not in left)
        if not outcome.failures and outcome.final == due:
            # Final windows are pending no more: the others stay, as they were before.
            self._assessed[cluster] = tuple(
                each for info, each in stands if not each[1] or info.window in left
            )

    def _wait_for_ingest(
        self,
        cluster: str,
        pending: Sequence[WindowInfo],
        tried: Sequence[WindowInfo],
        outdated: Sequence[WindowFailure],
    ) -> Collection[Window]:
        """The windows that wait until the ledger has read them again. Each is told once, and counts as no
        failure: nothing of the detectors can mend it."""
        digests = {info.window: info.digest for info in pending}
        known = self._outdated.get(cluster, {})
        before = {window: digest for window, digest in known.items() if digests.get(window) == digest}
        for failure in outdated:
            if failure.window is not None and failure.window not in before:
                logger.warning(
                    "%s: %s is assessed once it was read again, by itself within minutes of its end, later "
                    "by gpucost ingest --again: %s",
                    visible(cluster), failure.window, _told(failure),
                )  # fmt: skip
        again = {info.window for info in tried}
        found = {each.window: digests[each.window] for each in outdated if each.window is not None}
        kept = {window: digest for window, digest in before.items() if window not in again}
        self._outdated[cluster] = {**kept, **found}
        return self._outdated[cluster]

    def _guarded(self, cluster: str, step: Callable[[], None]) -> None:
        try:
            step()
        except GpuCostError as error:
            logger.warning("%s: detectors: %s", visible(cluster), visible(str(error), _LONGEST_MESSAGE))
            self._status.failed(cluster, type(error).__name__)
        except Exception as error:
            logger.exception("%s: detectors: unexpected error", visible(cluster))
            self._status.failed(cluster, type(error).__name__)
