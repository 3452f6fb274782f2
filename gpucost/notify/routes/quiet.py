"""Hours in which only what is critical is told, on the clock of a place, also when that clock changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from gpucost.domain.time import DAY_MS, MINUTE_MS

DAY_MINUTES = DAY_MS // MINUTE_MS
_EVERY_DAY = frozenset(range(7))
_LONGEST_LOOK = 15 * DAY_MS


@dataclass(frozen=True, slots=True)
class Quiet:
    """From ``start`` to ``end``, in minutes since midnight on the clocks of ``zone`` (1440: the day's end),
    on ``days`` (Monday is 0); ``end`` not above ``start`` is on the next day.

    Where a clock is put back, an hour comes twice: both are quiet. Where it is put forward, a start or end
    that does not exist is moved so that more is quiet, not less.
    """

    start: int
    end: int
    zone: ZoneInfo
    days: frozenset[int] = _EVERY_DAY

    def span(self, now_ms: int) -> tuple[int, int] | None:
        """The quiet time ``[start, end)`` that ``now_ms`` is in, in ms; None when it is in none."""
        return next((span for span in self._spans(now_ms) if span[0] <= now_ms < span[1]), None)

    def _spans(self, now_ms: int) -> Iterator[tuple[int, int]]:
        today = datetime.fromtimestamp(now_ms / 1000, self.zone).date()
        for day in (today - timedelta(days=1), today, today + timedelta(days=1)):
            if day.weekday() in self.days:
                end = self.end if self.end > self.start else self.end + DAY_MINUTES
                yield min(_instants(day, self.start, self.zone)), max(_instants(day, end, self.zone))


def quiet_until(quiet: Sequence[Quiet], now_ms: int) -> int | None:
    """When the quiet time of ``now_ms`` ends, several that touch taken together; None where it is not quiet.
    Looks 15 days ahead at most."""
    until_ms = now_ms
    while until_ms < now_ms + _LONGEST_LOOK:
        spans = [span for each in quiet if (span := each.span(until_ms)) is not None]
        if not spans:
            break
        until_ms = max(end for _, end in spans)
    return until_ms if until_ms > now_ms else None


def is_ever_loud(quiet: Sequence[Quiet], from_ms: int) -> bool:
    """Whether it ends at all: quiet hours that fill a week leave no time to tell anything."""
    until_ms = quiet_until(quiet, from_ms)
    return until_ms is None or until_ms < from_ms + _LONGEST_LOOK


def _instants(day: date, minutes: int, zone: ZoneInfo) -> tuple[int, int]:
    """Both instants that a time on the clock may mean; the same twice, where it means one."""
    # Adding to a time with a zone moves its clock, and not the instant.
    local = datetime(day.year, day.month, day.day, tzinfo=zone) + timedelta(minutes=minutes)
    found = [local.replace(fold=fold).astimezone(UTC) for fold in (0, 1)]
    first, second = (round(each.timestamp() * 1000) for each in found)
    return first, second
