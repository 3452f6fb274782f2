"""Windows, months and instants: half-open, UTC, exact."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.domain.errors import InputError
from gpucost.domain.time import (
    DAY_MS,
    EARLIEST_MS,
    HOUR_MS,
    LATEST_MS,
    Month,
    Window,
    iso,
    parse_day_or_instant,
    parse_duration,
    parse_instant,
)

INSTANTS = st.integers(EARLIEST_MS, LATEST_MS - 1)


def at(text: str) -> int:
    return parse_instant(text)


@st.composite
def windows(draw: st.DrawFn) -> Window:
    start = draw(INSTANTS)
    return Window(start, start + draw(st.integers(1, 60 * DAY_MS)))


@given(windows(), st.integers(60_000, 10 * DAY_MS))
def test_split_covers_a_window_once(window: Window, step: int) -> None:
    if window.length_ms // step > 2000:
        step = window.length_ms // 2000 + 1
    parts = list(window.split(step))
    assert parts[0].start_ms == window.start_ms
    assert parts[-1].end_ms == window.end_ms
    assert all(a.end_ms == b.start_ms for a, b in pairwise(parts))
    assert all(part.start_ms % step == 0 for part in parts[1:])


@given(windows(), windows())
def test_intersection_has_the_length_of_the_overlap(one: Window, two: Window) -> None:
    common = one.intersect(two)
    assert one.overlap_ms(two.start_ms, two.end_ms) == (common.length_ms if common else 0)
    assert common == two.intersect(one)


@pytest.mark.parametrize("length", [0, -1])
def test_a_window_is_never_empty_or_reversed(length: int) -> None:
    with pytest.raises(InputError, match="a start before its end"):
        Window(1_790_000_000_000, 1_790_000_000_000 + length)


def test_a_step_must_be_positive() -> None:
    with pytest.raises(InputError, match="positive"):
        list(Window(0, 10).split(0))


@given(INSTANTS)
def test_iso_and_parse_are_inverse(instant: int) -> None:
    assert parse_instant(iso(instant)) == instant


@given(INSTANTS)
def test_every_instant_lies_in_its_month(instant: int) -> None:
    month = Month.of(instant)
    assert month.window.start_ms <= instant < month.window.end_ms
    assert month.next().window.start_ms == month.window.end_ms
    assert month.next().previous() == month
    assert Month.parse(str(month)) == month


@pytest.mark.fault(33)
@pytest.mark.parametrize(
    ("month", "days"), [("2028-02", 29), ("2026-02", 28), ("2027-02", 28), ("2026-12", 31)]
)
def test_leap_days_are_counted(month: str, days: int) -> None:
    assert Month.parse(month).window.length_ms == days * DAY_MS


@pytest.mark.fault(33)
@pytest.mark.parametrize(("month", "local_hours"), [("2026-10", 745), ("2026-03", 743)])
def test_a_clock_change_of_a_local_zone_changes_no_month(month: str, local_hours: int) -> None:
    """October in Berlin has 745 hours on the wall; the month is UTC and has its 744."""
    berlin, parsed = ZoneInfo("Europe/Berlin"), Month.parse(month)
    walls = [
        at(f"{m}-01T00:00:00Z") - _offset_ms(berlin, f"{m}-01T00:00:00Z") for m in (parsed, parsed.next())
    ]
    assert (walls[1] - walls[0]) // HOUR_MS == local_hours
    assert parsed.window.length_ms == 31 * DAY_MS


def _offset_ms(zone: ZoneInfo, text: str) -> int:
    offset = datetime.fromisoformat(text).astimezone(zone).utcoffset()
    assert offset is not None
    return int(offset.total_seconds() * 1000)


@pytest.mark.fault(33)
def test_the_hour_that_happens_twice_is_two_hours() -> None:
    first, second = at("2026-10-25T02:30:00+02:00"), at("2026-10-25T02:30:00+01:00")
    assert second - first == HOUR_MS
    assert [iso(first), iso(second)] == ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"]


@pytest.mark.fault(33)
@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("2026-10-31T23:30:00Z", "2026-11-01T00:30:00Z"),
        ("2028-02-28T22:00:00Z", "2028-03-01T02:00:00Z"),
        ("2026-12-31T12:00:00+14:00", "2027-01-01T12:00:00-11:00"),
    ],
)
def test_a_job_over_a_month_end_splits_without_loss(start: str, end: str) -> None:
    job = Window(at(start), at(end))
    months = {Month.of(job.start_ms), Month.of(job.end_ms - 1)}
    assert len(months) == 2
    assert sum(month.window.overlap_ms(job.start_ms, job.end_ms) for month in months) == job.length_ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-10-01",
        "2026-10-01T00:00:00",
        "2026-13-01T00:00:00Z",
        "2026-02-29T00:00:00Z",
        "now",
        "1790000000",
    ],
)
def test_instants_without_zone_or_sense_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="RFC 3339"):
        parse_instant(text, "start")


@pytest.mark.parametrize("text", ["1970-01-01T00:00:00Z", "2106-02-07T06:28:15Z", "0001-01-01T00:00:00Z"])
def test_instants_of_broken_clocks_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="2010 to 2099"):
        parse_instant(text)


def test_days_are_midnights_in_utc() -> None:
    assert parse_day_or_instant("2026-10-01") == at("2026-10-01T00:00:00Z")
    assert parse_day_or_instant("2026-10-01T02:00:00+02:00") == at("2026-10-01T00:00:00Z")


@pytest.mark.parametrize("text", ["2026-02-30", "2026-10", "10/01/2026", "2026-10-01 12:00", "2026-W40-4"])
def test_days_that_do_not_exist_or_could_be_another_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="midnight UTC"):
        parse_day_or_instant(text, "valid_from")


@pytest.mark.parametrize(
    ("text", "ms"), [("90s", 90_000), ("15m", 900_000), ("1h", HOUR_MS), ("2w", 14 * DAY_MS), ("250ms", 250)]
)
def test_durations(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize("text", ["", "1", "0h", "1.5h", "-1h", "1 h", "1y", "1H", "1h30m"])
def test_durations_that_are_unclear_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="such as 15m"):
        parse_duration(text)


@pytest.mark.parametrize(
    "text", ["2026-13", "0000-01", "2026-1", "2009-12", "2100-01", "2026-10-01", "202610"]
)
def test_months_outside_the_calendar_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="YYYY-MM"):
        Month.parse(text)


def test_iso_survives_instants_that_no_calendar_has() -> None:
    assert iso(2**62) == f"{2**62}ms"
    assert iso(1_790_000_000_001).endswith(".001Z")


@pytest.mark.parametrize("text", ["２026-10", "٢٠٢٦-10"])
def test_a_month_has_plain_digits(text: str) -> None:
    with pytest.raises(InputError):
        Month.parse(text)


def test_a_duration_has_plain_digits() -> None:
    with pytest.raises(InputError):
        parse_duration("１5m")
