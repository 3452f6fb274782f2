"""Self-metrics of the advisor: counted where answers are given, read by /metrics from another thread."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds of the histogram, in seconds; longer durations go into a last bucket without a bound."""


@dataclass(frozen=True, slots=True)
class DurationHistogram:
    """Durations counted by bucket: at most as long as the bound in ``BUCKETS_S`` and longer than the one
    before it; and their sum."""

    counts: tuple[int, ...] = (0,) * (len(BUCKETS_S) + 1)
    sum_s: float = 0.0

    def with_one(self, seconds: float) -> DurationHistogram:
        at = bisect_left(BUCKETS_S, seconds)
        counts = (*self.counts[:at], self.counts[at] + 1, *self.counts[at + 1 :])
        return DurationHistogram(counts, self.sum_s + seconds)


def _no_certificate() -> int | None:
    return None


@dataclass
class AdvisorStatus:
    """All methods may be called from any thread."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    _durations: dict[str, DurationHistogram] = field(default_factory=dict)
    _reviews: Counter[str] = field(default_factory=Counter)
    _scores: Counter[str] = field(default_factory=Counter)
    _foretelling_errors: Counter[str] = field(default_factory=Counter)
    _certificate_errors: Counter[str] = field(default_factory=Counter)
    certificate_end_ms: Callable[[], int | None] = _no_certificate
    """When the webhook's certificate ends, in ms UTC; None where there is none."""

    def answered(self, face: str, decision: str, seconds: float) -> None:
        """Count an answer of ``face`` that took ``seconds``: advice, explain, webhook, or webhook_wait and
        webhook_suggestions for what follows the first answer to a review."""
        with self._lock:
            self._answers[face, decision] += 1
            self._durations[face] = self._durations.get(face, DurationHistogram()).with_one(seconds)

    def reviewed(self, result: str, count: int = 1) -> None:
        """Count reviews of the admission webhook by ``result``: answered with advice, or the reason why
        without."""
        with self._lock:
            self._reviews[result] += count

    def scored(self, outcome: str) -> None:
        """Count the outcome of a predicted wait."""
        with self._lock:
            self._scores[outcome] += 1

    def foretelling_failed(self, kind: str) -> None:
        """Count a failed step of the loop that predicts waits; ``kind`` is the error's class."""
        with self._lock:
            self._foretelling_errors[kind] += 1

    def certificate_failed(self, kind: str) -> None:
        """Count a failure to keep the webhook's certificate; ``kind`` is one word for the reason."""
        with self._lock:
            self._certificate_errors[kind] += 1

    def certificate_errors(self) -> dict[str, int]:
        """By kind."""
        with self._lock:
            return dict(self._certificate_errors)

    def answers(self) -> dict[tuple[str, str], int]:
        """By face and decision, since the start."""
        with self._lock:
            return dict(self._answers)

    def durations(self) -> dict[str, DurationHistogram]:
        """By face."""
        with self._lock:
            return dict(self._durations)

    def reviews(self) -> dict[str, int]:
        """By result."""
        with self._lock:
            return dict(self._reviews)

    def scores(self) -> dict[str, int]:
        """Predicted waits, by outcome."""
        with self._lock:
            return dict(self._scores)

    def foretelling_errors(self) -> dict[str, int]:
        """By class of error."""
        with self._lock:
            return dict(self._foretelling_errors)
