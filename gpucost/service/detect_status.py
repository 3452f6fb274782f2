"""What detectors say of themselves: told by their loop, read by /metrics and the API from other threads."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

from gpucost.detectors.findings import Pattern, Withheld
from gpucost.service.detecting import Looked


@dataclass(frozen=True, slots=True)
class LastLook:
    """The last evaluation of a cluster: when, how long it took, what held rules back, which of them failed.

    ``has_state`` says whether the state of the cluster was watched, which some rules need.
    """

    at_ms: int
    seconds: float
    withheld: tuple[Withheld, ...]
    failed: tuple[Pattern, ...]
    has_state: bool


@dataclass
class DetectStatus:
    """All methods may be called from any thread. ``evaluations`` counts the looks."""

    evaluations: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _looks: dict[str, LastLook] = field(default_factory=dict)
    _errors: Counter[tuple[str, str]] = field(default_factory=Counter)

    def looked(self, cluster: str, found: Looked, seconds: float, *, has_state: bool) -> None:
        failures = found.evaluation.failures
        look = LastLook(
            found.evaluation.now_ms,
            seconds,
            found.withheld,
            tuple(failure.pattern for failure in failures),
            has_state,
        )
        with self._lock:
            self._looks[cluster] = look
            self.evaluations += 1
            for failure in failures:
                self._errors[cluster, failure.pattern.value] += 1

    def failed(self, cluster: str, kind: str) -> None:
        """An evaluation or assessment that did not happen; ``kind`` is the error's class."""
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
