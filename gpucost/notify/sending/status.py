"""How sending goes, for metrics and people."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    SENT = "sent"
    RETRIED = "retried"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class SenderStatus:
    """``posts`` counts by (channel, kind, outcome) since the start; a try that failed and will be repeated is
    ``retried``. ``last_success_ms`` is by channel. ``errors`` counts turns that the ledger broke off."""

    posts: dict[tuple[str, str, str], int]
    last_success_ms: dict[str, int]
    errors: int


class Tally:
    """Counts; any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._posts: Counter[tuple[str, str, str]] = Counter()
        self._last_success_ms: dict[str, int] = {}
        self._errors = 0

    def add(self, channel: str, kind: str, outcome: Outcome, at_ms: int) -> None:
        with self._lock:
            self._posts[channel, kind, outcome.value] += 1
            if outcome is Outcome.SENT:
                self._last_success_ms[channel] = at_ms

    def error(self) -> None:
        with self._lock:
            self._errors += 1

    def status(self) -> SenderStatus:
        with self._lock:
            return SenderStatus(dict(self._posts), dict(self._last_success_ms), self._errors)
