"""Self-metrics of ingest: counted by the loop, read by /metrics and /readyz from other threads."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from gpucost.domain.time import SECOND_MS, Window

_KEPT_FAILURES = 50


@dataclass(frozen=True, slots=True)
class WindowFailure:
    """What could not be read, and why. It stays open and is read again.

    ``window`` is None when the source did not answer and it is not known what there is to read.
    """

    cluster: str
    window: Window | None
    kind: str
    reason: str

    @classmethod
    def of(cls, cluster: str, window: Window | None, error: Exception) -> WindowFailure:
        return cls(cluster, window, type(error).__name__, str(error))

    def __str__(self) -> str:
        cause = f"{self.kind}: {self.reason}"
        return cause if self.window is None else f"{self.window}: {cause}"


def joined_failures(failures: Sequence[WindowFailure]) -> list[WindowFailure]:
    """Windows that follow one another and failed for one reason, as one: for those who read them all."""
    joined: list[WindowFailure] = []
    for failure in failures:
        last, window = joined[-1] if joined else failure, failure.window
        before = last.window
        alike = replace(failure, window=before) == last
        if joined and alike and window and before and before.end_ms == window.start_ms:
            joined[-1] = replace(last, window=Window(before.start_ms, window.end_ms))
        else:
            joined.append(failure)
    return joined


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """One cluster. ``pending`` counts windows that are due; all but ``failures`` is None until it is known.

    ``lost`` counts windows that are in neither the ledger nor the source any more, ``refused`` scrape jobs
    whose series are not trusted.
    """

    up: bool | None = None
    last_success_ms: int | None = None
    pending: int | None = None
    lost: int | None = None
    refused: int | None = None
    failures: tuple[WindowFailure, ...] = ()


@dataclass
class LoopStatus:
    """Counters since the start of the process. All methods may be called from any thread.

    ``seconds`` is a monotonic clock: when the host's time jumps, a live loop does not look dead, nor a dead
    one alive.
    """

    seconds: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _clusters: dict[str, ClusterStatus] = field(default_factory=dict)
    _ingested: Counter[str] = field(default_factory=Counter)
    _source_errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    _other_errors: Counter[str] = field(default_factory=Counter)
    _stale_after_ms: int | None = None
    _last_turn_ms: int | None = None
    _last_sign_s: float = 0.0
    _has_ended: bool = False

    def started(self, stale_after_ms: int) -> None:
        """The loop begins; it is stalled when it gives no sign of life for ``stale_after_ms``."""
        with self._lock:
            self._stale_after_ms, self._last_sign_s, self._has_ended = stale_after_ms, self.seconds(), False

    def turned(self, now_ms: int) -> None:
        """The end of a turn over all clusters, whatever became of it."""
        with self._lock:
            self._last_turn_ms, self._last_sign_s = now_ms, self.seconds()

    def ended(self) -> None:
        """The loop is over: stopped, or dead."""
        with self._lock:
            self._has_ended = True

    def last_turn_ms(self) -> int | None:
        """When the last turn ended; None before the first."""
        with self._lock:
            return self._last_turn_ms

    def stalled(self) -> str | None:
        """Why windows no longer flow into the ledger; None while the loop lives, or where there is none."""
        with self._lock:
            if self._stale_after_ms is None:
                return None
            if self._has_ended:
                return "the loop has ended"
            silent_s = self.seconds() - self._last_sign_s
            if silent_s * SECOND_MS > self._stale_after_ms:
                return f"the loop has given no sign for {silent_s:.0f} s"
            return None

    def window_ingested(self, cluster: str, now_ms: int) -> None:
        with self._lock:
            self._ingested[cluster] += 1
            self._last_sign_s = self.seconds()
            self._change(cluster, up=True, last_success_ms=now_ms)

    def cluster_read(
        self, cluster: str, *, pending: int, lost: int, failures: tuple[WindowFailure, ...]
    ) -> None:
        """The end of one turn over a cluster: what is still to be read, and what failed."""
        with self._lock:
            for failure in failures:
                self._source_errors[cluster, failure.kind] += 1
            kept = failures[:_KEPT_FAILURES]
            self._change(cluster, pending=pending, lost=lost, failures=kept, up=not failures)

    def looked_for_strangers(self, cluster: str, refused: int) -> None:
        """How many scrape jobs recently gave series that are not trusted."""
        with self._lock:
            self._change(cluster, refused=refused)

    def source_failed(self, failure: WindowFailure, due: int | None) -> None:
        """The source could not even list what it holds. ``due`` windows are to be read; None: unknown."""
        name = failure.cluster
        with self._lock:
            self._source_errors[name, failure.kind] += 1
            lost = self._clusters.get(name, ClusterStatus()).lost or 0
            pending = None if due is None else max(0, due - lost)
            self._change(name, up=False, pending=pending, failures=(failure,))

    def keep(self, clusters: Collection[str]) -> None:
        """Forget all other clusters: names that turned out not to be in the source."""
        with self._lock:
            for name in self._clusters.keys() - set(clusters):
                del self._clusters[name]

    def failed(self, error: Exception) -> None:
        """Count an error that is not the source's: of the ledger, or of gpucost itself."""
        with self._lock:
            self._other_errors[type(error).__name__] += 1

    def clusters(self) -> dict[str, ClusterStatus]:
        with self._lock:
            return dict(self._clusters)

    def ingested(self) -> dict[str, int]:
        """Windows written since the start, by cluster."""
        with self._lock:
            return dict(self._ingested)

    def source_errors(self) -> dict[tuple[str, str], int]:
        """Errors since the start, by cluster and kind (the name of the error's class)."""
        with self._lock:
            return dict(self._source_errors)

    def other_errors(self) -> dict[str, int]:
        """Errors of the ledger and of gpucost itself since the start, by kind."""
        with self._lock:
            return dict(self._other_errors)

    def _change(self, cluster: str, **values: object) -> None:
        self._clusters[cluster] = replace(self._clusters.get(cluster, ClusterStatus()), **values)  # type: ignore[arg-type]
