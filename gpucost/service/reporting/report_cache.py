"""A cache of reports, keyed by the question and the state of the ledger.

A report over millions of lines takes seconds; fifty people open the same one on Monday morning. A report is
kept under all that it was made from: the question, the scope, and the state of the ledger. When the ledger
changes, so does the key; a cached report is never stale, and no invalidation is needed.
"""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

MOST_BYTES = 64 * 1024 * 1024
"""Limit of the cache, by the size of the pickles of answers and questions: some hundred reports."""
_LARGEST_PART = 4
_ENTRY_BYTES = 1024


class _SizeLimit(Exception):
    """A pickle is larger than what is kept."""


@dataclass
class _PickleSize:
    """A file that counts what is written to it, and takes no more than ``most``."""

    most: int
    written: int = 0

    def write(self, part: bytes | memoryview) -> None:
        self.written += len(part)
        if self.written > self.most:
            raise _SizeLimit


def _size(answer: object, most: int) -> int | None:
    """The size of the pickle; None where it is over ``most``, which a report of every job is by far: it is
    written no further than that, and never held."""
    if not most:
        return None
    found = _PickleSize(most)
    try:
        pickle.dump(answer, found, pickle.HIGHEST_PROTOCOL)
    except _SizeLimit:
        return None
    return found.written


@dataclass(frozen=True, slots=True)
class LandedReport:
    """A report, for all who waited for it."""

    answer: Any


@dataclass(frozen=True, slots=True)
class FlightTicket:
    """A place in a flight: the one that ``leads`` makes the report and lands; the others wait. What has
    ``landed`` is None where there is no report for them: then each asks again."""

    key: Hashable
    leads: bool
    landed: Future[LandedReport | None]


class ReportCache:
    """Reports by key, at most ``most_bytes`` of them; the least recently used go first. Of 0 bytes it keeps
    nothing, and those who want the same at once still share it.

    May be shared by threads. Reports are handed out without a copy: no caller may change one.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._flights: dict[Hashable, FlightTicket] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, make: Callable[[], T], *, keeps: Callable[[T], bool]) -> T:
        """The answer to ``key``, by ``make`` where none is kept.

        One thread makes it while others that want the same wait for it. It is kept, and given to those,
        where it ``keeps``; else, and where it fails, each of them makes its own, one after the other.
        """
        while True:
            ticket = self.ticket(key)
            if ticket.leads:
                break
            landed = ticket.landed.result()
            if landed is not None:
                answer: T = landed.answer
                return answer
        for_all = None
        try:
            made = make()
            if keeps(made):
                for_all = LandedReport(made)
            return made
        finally:
            self.land(ticket, for_all, keep=for_all is not None)

    def ticket(self, key: Hashable) -> FlightTicket:
        """A place among the callers that want the report of ``key``: it has landed already where one is kept.
        The caller that leads must ``land``, whatever happens."""
        with self._lock:
            kept, flight = self._kept.get(key), self._flights.get(key)
            if kept is None and flight is not None:
                return flight
            landed: Future[LandedReport | None] = Future()
            landed.set_running_or_notify_cancel()  # a waiting caller cannot cancel it for the others
            if kept is not None:
                self._kept.move_to_end(key)
                landed.set_result(LandedReport(kept[0]))
                return FlightTicket(key, leads=False, landed=landed)
            self._flights[key] = FlightTicket(key, leads=False, landed=landed)
            return FlightTicket(key, leads=True, landed=landed)

    def land(self, ticket: FlightTicket, landed: LandedReport | None, *, keep: bool) -> None:
        """End a flight: ``landed`` is for all who wait, and kept for those who come later if ``keep``."""
        if landed is not None and keep:
            self._keep(ticket.key, landed.answer)
        with self._lock:
            del self._flights[ticket.key]
        ticket.landed.set_result(landed)

    def _keep(self, key: Hashable, answer: object) -> None:
        most = self._most_bytes // _LARGEST_PART
        of_answer, of_key = _size(answer, most), _size(key, most)
        if of_answer is None or of_key is None:
            return
        # Whoever asks chooses the text of a question: one sign in it may make four bytes of each other.
        size = of_answer + 4 * of_key + _ENTRY_BYTES
        with self._lock:
            self._kept[key] = answer, size
            self.bytes += size
            while self.bytes > self._most_bytes:
                _, (_, gone) = self._kept.popitem(last=False)
                self.bytes -= gone
