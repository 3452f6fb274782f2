"""Weekly digests and closed months, when they are due."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from gpucost.domain.time import MINUTE_MS
from gpucost.ledger import Ledger
from gpucost.notify.notices import Conversation, Notice
from gpucost.service.digesting import Digesting, Due, DueWeek, Schedule, due

MOST_AT_ONCE = 3
"""Digests that are made in a turn: each reads a week of the ledger, or a month."""
_LOOK_EVERY_MS = MINUTE_MS


class DigestNews:
    """The source of notices about weeks and months; ``weekly`` and ``months`` say which. Raises LedgerError.

    What is due is made once, and given in every turn until it is due no more: one channel may be told of it
    later than another, when its quiet hours are over.
    """

    def __init__(
        self, ledger: Ledger, digesting: Digesting, schedule: Schedule, *, weekly: bool, months: bool
    ) -> None:
        self._ledger = ledger
        self._digesting = digesting
        self._schedule = schedule
        self._weekly = weekly
        self._months = months
        self._looked_ms: int | None = None
        self._made: dict[Due, dict[str, Notice]] = {}
        self._whole: set[Due] = set()

    def __call__(self, now_ms: int, told: Sequence[Conversation]) -> Iterator[Notice]:
        del told
        if self._looked_ms is None or not 0 <= now_ms - self._looked_ms < _LOOK_EVERY_MS:
            self._look(now_ms)
        self._make()
        for made in self._made.values():
            yield from made.values()

    def _look(self, now_ms: int) -> None:
        wanted = [
            each
            for each in due(now_ms, self._schedule, self._ledger)
            if (self._weekly if isinstance(each, DueWeek) else self._months)
        ]
        self._made = {each: self._made.get(each, {}) for each in wanted}
        self._whole &= set(wanted)
        self._looked_ms = now_ms

    def _make(self) -> None:
        for each, made in self._made.items():
            if each not in self._whole:
                found = list(islice(self._digesting.notices(each, frozenset(made)), MOST_AT_ONCE))
                made.update((notice.key, notice) for notice in found)
                if len(found) < MOST_AT_ONCE:
                    self._whole.add(each)
                return
