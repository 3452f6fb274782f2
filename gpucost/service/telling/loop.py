"""The loop of news: how things stand now, against what each channel was told."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from gpucost.domain.errors import GpuCostError
from gpucost.domain.time import DAY_MS
from gpucost.ledger import Ledger
from gpucost.notify.notices import Conversation, Notice
from gpucost.notify.routes import Rules, decide
from gpucost.reports.display import visible
from gpucost.service.telling.status import TellingStatus

logger = logging.getLogger(__name__)

EVERY_S = 10.0
"""Findings change every few minutes, alerts at once: nobody waits long, and a look costs milliseconds."""
_REMEMBERED_MS = 32 * DAY_MS
"""The longest cool-down is 31 days."""
_LONGEST_MESSAGE = 500

Source = Callable[[int, Sequence[Conversation]], Iterable[Notice]]
"""How things of one kind stand at an instant (ms), given what was told. Raises GpuCostError."""


class Telling:
    """One thread. ``sleep`` pauses for seconds, or less when a stop is asked for.

    A source that fails says nothing in that turn: its things are neither over nor new.
    """

    def __init__(
        self,
        ledger: Ledger,
        rules: Rules,
        sources: Mapping[str, Source],
        status: TellingStatus,
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
    def _ask(source: Source, now_ms: int, told: Sequence[Conversation], notices: list[Notice]) -> None:
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
