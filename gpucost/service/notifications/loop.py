"""The loop of news: how things stand now, against what each channel was told.

What the loop of news says of itself: counted by the loop, read by /metrics from other threads.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from gpucost.domain.errors import GpuCostError
from gpucost.domain.time import DAY_MS
from gpucost.ledger import Ledger
from gpucost.notify.notices import Conversation, Notice, NoticeKind
from gpucost.notify.routes import HeldNotice, HoldReason, RoutingRules, decide
from gpucost.notify.sending.delivery import SenderStatus
from gpucost.reports.base.display import visible


class NotificationStatus:
    """Counts since the start. What is held back for hours counts once, however often it is looked at.

    ``channels`` are their names; ``sending`` is what the sender says of itself.
    """

    def __init__(self, channels: Iterable[str], sending: Callable[[], SenderStatus]) -> None:
        self.channels = tuple(channels)
        self.sending = sending
        self._lock = threading.Lock()
        self._held: frozenset[HeldNotice] = frozenset()
        self._suppressed: Counter[tuple[NoticeKind, HoldReason]] = Counter()
        self._errors: Counter[str] = Counter()

    def held(self, held: Iterable[HeldNotice]) -> None:
        """What a round held back."""
        now = frozenset(held)
        with self._lock:
            self._suppressed.update((each.kind, each.reason) for each in now - self._held)
            self._held = now

    def failed(self, kind: str) -> None:
        """A source of news, or the ledger, failed."""
        with self._lock:
            self._errors[kind] += 1

    def suppressed(self) -> dict[tuple[NoticeKind, HoldReason], int]:
        with self._lock:
            return dict(self._suppressed)

    def errors(self) -> dict[str, int]:
        with self._lock:
            return dict(self._errors)


logger = logging.getLogger(__name__)

EVERY_S = 10.0
"""Findings change every few minutes, alerts at once: nobody waits long, and a look costs milliseconds."""
_REMEMBERED_MS = 32 * DAY_MS
"""The longest cool-down is 31 days."""
_LONGEST_MESSAGE = 500

NoticeSource = Callable[[int, Sequence[Conversation]], Iterable[Notice]]
"""How things of one kind stand at an instant (ms), given what was told. Raises GpuCostError."""


class NotificationLoop:
    """One thread. ``sleep`` pauses for seconds, or less when a stop is asked for.

    A source that fails says nothing in that turn: its things are neither over nor new.
    """

    def __init__(
        self,
        ledger: Ledger,
        rules: RoutingRules,
        sources: Mapping[str, NoticeSource],
        status: NotificationStatus,
        *,
        now: Callable[[], int],
        sleep: Callable[[float], object],
        stopped: Callable[[], bool],
        every_s: float = EVERY_S,
    ) -> None:
        self._ledger = ledger
        self._rules = rules
        self._sources = sources
        self._status = status
        self._now = now
        self._sleep = sleep
        self._stopped = stopped
        self._every_s = every_s

    def run(self) -> None:
        """Until a stop is asked for."""
        while not self._stopped():
            self.turn()
            self._sleep(self._every_s)

    def turn(self) -> None:
        """Once. Nothing ends the loop: what failed is tried again in the next turn."""
        self._guarded("news", self._tell)

    def _tell(self) -> None:
        now_ms = self._now()
        told = self._ledger.conversations(since_ms=now_ms - _REMEMBERED_MS)
        notices: list[Notice] = []
        for name, source in self._sources.items():
            self._guarded(name, partial(self._ask, source, now_ms, told, notices))
        decision = decide(notices, told, self._rules, now_ms)
        if decision.conversations:
            self._ledger.tell(decision.conversations, decision.posts)
        self._status.held(decision.held)

    @staticmethod
    def _ask(source: NoticeSource, now_ms: int, told: Sequence[Conversation], notices: list[Notice]) -> None:
        notices.extend(list(source(now_ms, told)))  # all of them, or none

    def _guarded(self, what: str, step: Callable[[], object]) -> None:
        try:
            step()
        except GpuCostError as error:
            logger.warning("%s: %s", what, visible(str(error), _LONGEST_MESSAGE))
            self._status.failed(type(error).__name__)
        except Exception as error:
            logger.exception("%s: unexpected error", what)
            self._status.failed(type(error).__name__)
