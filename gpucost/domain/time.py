"""Instants are integer milliseconds since 1970-01-01T00:00:00Z; windows are half-open and UTC."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from gpucost.domain.errors import InputError

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

# Instants outside these years are wrong data (a zero timestamp, a clock in 2106), never usage.
EARLIEST_MS = 1_262_304_000_000  # 2010-01-01
LATEST_MS = 4_102_444_800_000  # 2100-01-01

_MONTH = re.compile(r"([0-9]{4})-(0[1-9]|1[0-2])\Z")


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """A half-open interval ``[start_ms, end_ms)`` of UTC time; never empty, never reversed.

    Raises InputError when ``start_ms >= end_ms``.
    """

    start_ms: int
    end_ms: int

    def __post_init__(self) -> None:
        if self.start_ms >= self.end_ms:
            raise InputError(
                "window",
                f"{iso(self.start_ms)}/{iso(self.end_ms)}",
                "a start before its end (half-open, UTC)",
            )

    @property
    def length_ms(self) -> int:
        return self.end_ms - self.start_ms

    def overlap_ms(self, start_ms: int, end_ms: int) -> int:
        """Milliseconds of ``[start_ms, end_ms)`` inside this window; 0 when they do not meet."""
        return max(0, min(self.end_ms, end_ms) - max(self.start_ms, start_ms))

    def intersect(self, other: Window) -> Window | None:
        start, end = max(self.start_ms, other.start_ms), min(self.end_ms, other.end_ms)
        return Window(start, end) if start < end else None

    def split(self, step_ms: int) -> Iterator[Window]:
        """Consecutive windows of ``step_ms`` aligned to the epoch; first and last are cut at the edges.

        Their lengths add up to this window's, whether or not the step divides it.
        """
        if step_ms <= 0:
            raise InputError("step", step_ms, "a positive duration")
        start = self.start_ms
        while start < self.end_ms:
            end = min((start // step_ms + 1) * step_ms, self.end_ms)
            yield Window(start, end)
            start = end

    def __str__(self) -> str:
        return f"{iso(self.start_ms)}/{iso(self.end_ms)}"


@dataclass(frozen=True, slots=True, order=True)
class Month:
    """A calendar month in UTC, written ``YYYY-MM``."""

    year: int
    month: int

    @classmethod
    def parse(cls, text: str) -> Month:
        """``2026-10`` -> Month. Raises InputError for anything else, years outside 2010-2099 included."""
        match = _MONTH.match(text)
        if match is None or not 2010 <= int(match[1]) <= 2099:
            raise InputError("month", text, "YYYY-MM, such as 2026-10, from 2010-01 to 2099-12")
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def of(cls, instant_ms: int) -> Month:
        moment = datetime.fromtimestamp(instant_ms / 1000, UTC)
        return cls(moment.year, moment.month)

    @property
    def window(self) -> Window:
        return Window(self._start_ms(), self.next()._start_ms())

    def next(self) -> Month:
        return Month(self.year + 1, 1) if self.month == 12 else Month(self.year, self.month + 1)

    def previous(self) -> Month:
        return Month(self.year - 1, 12) if self.month == 1 else Month(self.year, self.month - 1)

    def _start_ms(self) -> int:
        return int(datetime(self.year, self.month, 1, tzinfo=UTC).timestamp()) * 1000

    def __str__(self) -> str:
        return f"{self.year:04d}-{self.month:02d}"


def iso(instant_ms: int) -> str:
    """``2026-10-01T00:00:00Z``; with milliseconds only where there are any."""
    seconds, millis = divmod(instant_ms, 1000)
    try:
        text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{instant_ms}ms"
    return f"{text}.{millis:03d}Z" if millis else f"{text}Z"


def parse_instant(text: str, field: str = "time") -> int:
    """RFC 3339 with a zone -> milliseconds. A time without a zone is refused, not guessed."""
    allowed = "RFC 3339 with a zone, such as 2026-10-01T00:00:00Z"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(field, text, allowed) from None
    if moment.tzinfo is None:
        raise InputError(field, text, allowed)
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    instant = (delta.days * 86_400 + delta.seconds) * 1000 + delta.microseconds // 1000
    if not EARLIEST_MS <= instant < LATEST_MS:
        raise InputError(field, text, "an instant from 2010 to 2099")
    return instant


_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")


def parse_day_or_instant(text: str, field: str = "time") -> int:
    """``2026-10-01`` (its midnight UTC) or RFC 3339 with a zone -> milliseconds. Raises InputError."""
    try:
        return parse_instant(f"{text}T00:00:00Z" if _DAY.match(text) else text, field)
    except InputError:
        allowed = "a day such as 2026-10-01 (midnight UTC), or RFC 3339 with a zone, from 2010 to 2099"
        raise InputError(field, text, allowed) from None


_DURATION = re.compile(r"([0-9]{1,9})(ms|s|m|h|d|w)\Z")
_UNIT_MS = {"ms": 1, "s": SECOND_MS, "m": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS, "w": 7 * DAY_MS}


def parse_duration(text: str, field: str = "duration") -> int:
    """``90s``, ``15m``, ``1h``, ``1d``, ``2w`` -> milliseconds. Raises InputError."""
    match = _DURATION.match(text)
    if match is None or int(match[1]) == 0:
        raise InputError(field, text, "a whole number and a unit: ms, s, m, h, d or w, such as 15m")
    return int(match[1]) * _UNIT_MS[match[2]]
