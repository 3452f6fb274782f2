"""Weeks of ISO 8601 in UTC: Monday 00:00 to Monday 00:00, half-open, written ``2026-W43``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime

from gpucost.domain.errors import InputError
from gpucost.domain.time import DAY_MS, Window

_WEEK = re.compile(r"([0-9]{4})-W([0-9]{2})\Z")
_LENGTH_MS = 7 * DAY_MS


@dataclass(frozen=True, slots=True, order=True)
class Week:
    """A week. ``year`` is the one of ISO 8601: that of the week's Thursday."""

    year: int
    number: int

    @classmethod
    def parse(cls, text: str) -> Week:
        """``2026-W43`` -> Week. Raises InputError for anything else, and for a week that a year has not."""
        match = _WEEK.match(text)
        allowed = "YYYY-Www of ISO 8601, such as 2026-W43, from 2010-W01 to 2099-W52"
        if match is None or not 2010 <= int(match[1]) <= 2099:
            raise InputError("week", text, allowed)
        try:
            date.fromisocalendar(int(match[1]), int(match[2]), 1)
        except ValueError:
            raise InputError("week", text, f"{allowed}; {match[1]} has no such week") from None
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def of(cls, instant_ms: int) -> Week:
        """The week that an instant is in."""
        year, number, _ = datetime.fromtimestamp(instant_ms / 1000, UTC).isocalendar()
        return cls(year, number)

    @property
    def window(self) -> Window:
        monday = datetime.combine(
            date.fromisocalendar(self.year, self.number, 1), datetime.min.time(), tzinfo=UTC
        )
        start_ms = int(monday.timestamp()) * 1000
        return Window(start_ms, start_ms + _LENGTH_MS)

    def next(self) -> Week:
        return Week.of(self.window.end_ms)

    def previous(self) -> Week:
        return Week.of(self.window.start_ms - 1)

    def __str__(self) -> str:
        return f"{self.year:04d}-W{self.number:02d}"
