"""What the loop of news says of itself: counted by the loop, read by /metrics from other threads."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable

from gpucost.notify.notices import Kind
from gpucost.notify.routes import Held, Reason
from gpucost.notify.sending.status import SenderStatus


class TellingStatus:
    """Counts since the start. What is held back for hours counts once, however often it is looked at.

    ``channels`` are their names; ``sending`` is what the sender says of itself.
    """

    def __init__(self, channels: Iterable[str], sending: Callable[[], SenderStatus]) -> None:
        self.channels = tuple(channels)
        self.sending = sending
        self._lock = threading.Lock()
        self._held: frozenset[Held] = frozenset()
        self._suppressed: Counter[tuple[Kind, Reason]] = Counter()
        self._errors: Counter[str] = Counter()

    def held(self, held: Iterable[Held]) -> None:
        """What a round held back."""
        now = frozenset(held)
        with self._lock:
            self._suppressed.update((each.kind, each.reason) for each in now - self._held)
            self._held = now

    def failed(self, kind: str) -> None:
        """A source of news, or the ledger, failed."""
        with self._lock:
            self._errors[kind] += 1

    def suppressed(self) -> dict[tuple[Kind, Reason], int]:
        with self._lock:
            return dict(self._suppressed)

    def errors(self) -> dict[str, int]:
        with self._lock:
            return dict(self._errors)
