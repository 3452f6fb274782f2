"""What the service says of itself: counted by the loop, read by /metrics and /readyz from other threads."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field, replace

from gpucost.domain.time import Window

_KEPT_FAILURES = 50


@dataclass(frozen=True, slots=True)
class Failure:
    """A window that could not be read, and why. It stays open and is read again."""

    cluster: str
    window: Window
    kind: str
    reason: str

    @classmethod
    def of(cls, cluster: str, window: Window, error: Exception) -> Failure:
        return cls(cluster, window, type(error).__name__, str(error))


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """One cluster. ``up`` and the times are None before the first attempt; ``pending`` counts windows.

    ``lost`` counts windows that are in neither the ledger nor the source any more.
    """

    up: bool | None = None
    last_success_ms: int | None = None
    pending: int = 0
    lost: int = 0
    failures: tuple[Failure, ...] = ()


@dataclass
class LoopStatus:
    """Counters since the start of the process. All methods may be called from any thread."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _clusters: dict[str, ClusterStatus] = field(default_factory=dict)
    _ingested: Counter[str] = field(default_factory=Counter)
    _source_errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    _other_errors: Counter[str] = field(default_factory=Counter)

    def window_ingested(self, cluster: str, now_ms: int) -> None:
        with self._lock:
            self._ingested[cluster] += 1
            self._change(cluster, up=True, last_success_ms=now_ms)

    def cluster_read(self, cluster: str, *, pending: int, lost: int, failures: tuple[Failure, ...]) -> None:
        """The end of one turn over a cluster: what is still to be read, and what failed."""
        with self._lock:
            for failure in failures:
                self._source_errors[cluster, failure.kind] += 1
            kept = failures[:_KEPT_FAILURES]
            self._change(cluster, pending=pending, lost=lost, failures=kept, up=not failures)

    def source_failed(self, cluster: str, error: Exception) -> None:
        """The source could not even say what it holds; without a cluster, of none of them."""
        with self._lock:
            self._source_errors[cluster, type(error).__name__] += 1
            for name in (cluster,) if cluster else tuple(self._clusters):
                self._change(name, up=False)

    def failed(self, error: Exception) -> None:
        """Something other than the source: the ledger, or a fault of ours."""
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
