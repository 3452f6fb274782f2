"""The loop of notifications: reconciles the current state with what each channel was sent.

Its status is counted by the loop, and read by /metrics from other threads.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from gpucost.domain.errors import GpuCostError
from gpucost.domain.time import DAY_MS
from gpucost.ledger.ledger import Ledger
from gpucost.notify.notices import Conversation, Notice, NoticeKind
from gpucost.notify.routes import HeldNotice, HoldReason, RoutingRules, decide
from gpucost.notify.sending.delivery import SenderStatus
from gpucost.reports.base.display import visible


class NotificationStatus:
    """Counts since the start. A notice that is held back for hours counts once.

    ``channels`` are their names; ``sending`` is the status of the sender.
    """

    def __init__(self, channels: Iterable[str], sending: Callable[[], SenderStatus]) -> None:
        self.channels = tuple(channels)
        self.sending = sending
        self._lock = threading.Lock()
        self._held: frozenset[HeldNotice] = frozenset()
        self._suppressed: Counter[tuple[NoticeKind, HoldReason]] = Counter()
        self._errors: Counter[str] = Counter()

    def held(self, held: Iterable[HeldNotice]) -> None:
        """Count what a round held back."""
        now = frozenset(held)
        with self._lock:
            self._suppressed.update((each.kind, each.reason) for each in now - self._held)
            self._held = now

    def failed(self, kind: str) -> None:
        """Count a failure of a source of notices, or of the ledger."""
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
"""Findings change every few minutes, alerts at once: the delay is short, and a round costs milliseconds."""
_REMEMBERED_MS = 32 * DAY_MS
"""The longest cool-down is 31 days."""
_LONGEST_MESSAGE = 500

NoticeSource = Callable[[int, Sequence[Conversation]], Iterable[Notice]]
"""The notices of one kind at an instant (ms), given the conversations so far. Raises GpuCostError."""


class NotificationLoop:
    """One thread. ``sleep`` pauses for seconds, or less when a stop is requested.

    A source that fails yields nothing in that turn: its notices are neither over nor new.
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
        """Runs until a stop is requested."""
        while not self._stopped():
            self.turn()
            self._sleep(self._every_s)

    def turn(self) -> None:
        """One round. No error ends the loop: what failed is tried again in the next round."""
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
