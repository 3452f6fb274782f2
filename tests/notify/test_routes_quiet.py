"""Quiet hours on the clock of a place, over the days on which it changes."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, parse_instant
from gpucost.notify.routes.rules import QuietHours, is_ever_loud, quiet_until

BERLIN = ZoneInfo("Europe/Berlin")
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC", "Pacific/Apia", "Asia/Kathmandu")
NIGHT = QuietHours(22 * 60, 7 * 60, BERLIN)


def until(text: str, *quiet: QuietHours) -> str | None:
    found = quiet_until(quiet, parse_instant(text))
    return None if found is None else datetime.fromtimestamp(found / 1000, UTC).strftime("%m-%d %H:%M")


@pytest.mark.parametrize(
    ("now", "end"),
    [
        ("2026-10-12T19:59:59Z", None),
        ("2026-10-12T20:00:00Z", "10-13 05:00"),
        ("2026-10-13T04:59:59Z", "10-13 05:00"),
        ("2026-10-13T05:00:00Z", None),
        ("2026-10-24T20:00:00Z", "10-25 06:00"),  # the clock is put back: ten hours
        ("2026-03-28T21:00:00Z", "03-29 05:00"),  # put forward: eight
    ],
)
def test_a_night_in_berlin(now: str, end: str | None) -> None:
    assert until(now, NIGHT) == end


def test_an_hour_that_comes_twice_is_quiet_twice() -> None:
    quiet = QuietHours(60, 150, BERLIN)  # 01:00 to 02:30
    assert until("2026-10-25T00:45:00Z", quiet) == "10-25 01:30"  # 02:45 in summer, before 02:30 in winter
    assert until("2026-10-25T01:30:00Z", quiet) is None


def test_an_end_that_does_not_exist_is_later() -> None:
    assert until("2026-03-29T00:30:00Z", QuietHours(60, 150, BERLIN)) == "03-29 01:30"


def test_days_on_which_it_begins() -> None:
    weekend = (
        QuietHours(0, 24 * 60, ZoneInfo("UTC"), frozenset({5, 6})),
        QuietHours(20 * 60, 7 * 60, ZoneInfo("UTC")),
    )
    assert until("2026-10-16T21:00:00Z", *weekend) == "10-19 07:00"  # Friday's night to Monday
    assert until("2026-10-16T12:00:00Z", *weekend) is None


def test_quiet_for_ever_is_seen() -> None:
    halves = [QuietHours(0, 12 * 60, BERLIN), QuietHours(12 * 60, 24 * 60, BERLIN)]
    assert not is_ever_loud(halves, parse_instant("2026-01-05T00:00:00Z"))
    assert is_ever_loud(halves[:1], parse_instant("2026-01-05T00:00:00Z"))


@given(
    zone=st.sampled_from(ZONES),
    start=st.integers(0, 1439),
    length=st.integers(1, 1439),
    minute=st.integers(0, 366 * 24 * 60),
)
def test_whatever_the_clock_shows_between_start_and_end_is_quiet(
    zone: str, start: int, length: int, minute: int
) -> None:
    """By the clock on the wall, also on the days it changes; and the end is never more than a change off."""
    end = (start + length) % 1440 or 1440
    quiet = QuietHours(start, end, ZoneInfo(zone))
    now_ms = parse_instant("2026-01-01T00:00:00Z") + minute * MINUTE_MS
    wall = datetime.fromtimestamp(now_ms / 1000, ZoneInfo(zone))
    on_wall = wall.hour * 60 + wall.minute
    is_quiet = start <= on_wall < end if start < end else on_wall >= start or on_wall < end
    found = quiet_until([quiet], now_ms)
    if is_quiet:
        assert found is not None
    if found is not None:
        assert now_ms < found <= now_ms + DAY_MS + HOUR_MS
        assert quiet_until([quiet], found) is None
