"""What contracts cost and commit over time: months of 28 to 31 days, local days of 25 hours, changes."""

from __future__ import annotations

import pytest

from gpucost.charges.contract_schedule import ContractSchedule
from gpucost.domain.money import NANO
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window, parse_instant
from tests.charges.contract_worlds import book_of, span, usd

YEAR = "start: 2026-01-01T00:00:00Z, end: 2027-01-01T00:00:00Z"


def schedule_of(contract: str) -> ContractSchedule:
    [terms] = book_of(contract).file.contracts
    return ContractSchedule.of(terms)


@pytest.mark.parametrize("month", ["2027-02", "2028-02", "2027-04", "2027-10", "2027-12"])
def test_a_month_costs_its_payment_however_many_days_it_has(month: str) -> None:
    """28, 29, 30 and 31 days; October has the hour that is twice in local time."""
    found = schedule_of(
        "id: r, kind: reservation, gpus: 64, start: 2027-01-01T00:00:00Z, end: 2029-01-01T00:00:00Z, "
        "recurring: [{amount: 98765.432109877, every: month}]"
    )
    window = Month.parse(month).window
    assert found.cost(window) == usd("98765.432109877")
    assert sum(found.cost(part) for part in window.split(HOUR_MS)) == usd("98765.432109877")
    assert found.due(window) == usd("98765.432109877")


def test_a_month_that_the_term_cuts_is_paid_in_part() -> None:
    """From 16 October 12:00 on: 15.5 of 31 days, and November's 30."""
    found = schedule_of(
        "id: r, kind: reservation, gpus: 8, start: 2026-10-16T12:00:00Z, end: 2026-12-01T00:00:00Z, "
        "recurring: [{amount: 3100, every: month}]"
    )
    assert found.cost(Window(found.term.start_ms, Month(2026, 10).window.end_ms)) == usd("1550")
    assert found.due(Month(2026, 10).window) == usd("1550")
    assert found.cost(Month(2026, 11).window) == usd("3100")


def test_a_local_day_of_25_hours_is_25_hours() -> None:
    """The night of 25 October 2026 in Berlin: 8 GPUs for 25 hours; and 23 hours in March."""
    long = schedule_of(
        "id: d, kind: capacity_block, gpus: 8, upfront: 500, "
        'start: "2026-10-25T00:00:00+02:00", end: "2026-10-26T00:00:00+01:00"'
    )
    assert long.term.length_ms == 25 * HOUR_MS
    assert sum(long.committed(hour) for hour in long.periods(long.term)) == 200 * HOUR_MS
    assert {long.cost(hour) for hour in long.periods(long.term)} == {usd("20")}
    short = schedule_of(
        "id: d, kind: capacity_block, gpus: 8, upfront: 460, "
        'start: "2026-03-29T00:00:00+01:00", end: "2026-03-30T00:00:00+02:00"'
    )
    assert {short.cost(hour) for hour in short.periods(short.term)} == {usd("20")}
    assert len(list(short.periods(short.term))) == 23


def test_a_leap_year_has_a_day_more_for_the_same_money() -> None:
    leap = schedule_of(
        "id: y, kind: reservation, gpus: 1, upfront: 8784, "
        "start: 2028-01-01T00:00:00Z, end: 2029-01-01T00:00:00Z"
    )
    assert leap.cost(span("2028-02-29", "2028-03-01")) == usd("24")
    assert leap.cost(leap.term) == usd("8784")


def test_a_start_in_the_middle_of_an_hour_commits_and_costs_its_part() -> None:
    found = schedule_of(
        "id: m, kind: reservation, gpus: 4, upfront: 100, start: 2026-10-01T12:30:00Z, "
        "end: 2026-10-01T22:30:00Z"
    )
    [first, second, *_] = found.periods(found.term)
    assert (first.length_ms, found.committed(first), found.cost(first)) == (
        HOUR_MS // 2,
        2 * HOUR_MS,
        usd("5"),
    )
    assert (found.committed(second), found.cost(second)) == (4 * HOUR_MS, usd("10"))


def test_quantities_per_day_and_month_are_cut_with_their_periods() -> None:
    daily = schedule_of(
        "id: p, kind: neocloud, gpu_hours: 100, per: day, price: 2.5, "
        "start: 2026-10-01T18:00:00Z, end: 2026-10-03T00:00:00Z"
    )
    assert [daily.committed(day) for day in daily.periods(daily.term)] == [25 * HOUR_MS, 100 * HOUR_MS]
    assert [daily.cost(day) for day in daily.periods(daily.term)] == [usd("62.5"), usd("250")]
    monthly = schedule_of(
        "id: p, kind: neocloud, gpu_hours: 3100, per: month, price: 2, "
        "start: 2026-10-31T00:00:00Z, end: 2026-12-01T00:00:00Z"
    )
    assert [monthly.committed(m) for m in monthly.periods(monthly.term)] == [100 * HOUR_MS, 3100 * HOUR_MS]


def test_take_or_pay_pays_its_floor() -> None:
    found = schedule_of(
        "id: t, kind: neocloud, gpu_hours: 1000, per: month, price: 2, take_or_pay: 80, "
        "start: 2026-10-01T00:00:00Z, end: 2026-11-01T00:00:00Z"
    )
    assert found.promised(found.term) == 1000 * HOUR_MS
    assert found.committed(found.term) == 800 * HOUR_MS
    assert found.cost(found.term) == usd("1600")


def test_owned_hardware_in_a_straight_line_and_as_cash() -> None:
    """A node of 8 for 300,000, worth 30,000 after four years; hosting for 1,500 a month."""
    bought = (
        "id: o, kind: owned, gpus: 8, upfront: 300000, recurring: [{amount: 1500, every: month}], "
        "start: 2026-03-10T08:00:00Z, end: 2030-03-10T08:00:00Z"
    )
    line = schedule_of(f"{bought}, residual: 30000")
    hosting = schedule_of(
        "id: h, kind: neocloud, gpus: 8, recurring: [{amount: 1500, every: month}], "
        "start: 2026-03-10T08:00:00Z, end: 2030-03-10T08:00:00Z"
    )
    assert line.cost(line.term) == usd("270000") + hosting.cost(hosting.term)
    day = span("2026-04-01", "2026-04-02")
    assert line.cost(day) - hosting.cost(day) == pytest.approx(270_000 * NANO / 1461, abs=2)
    cash = schedule_of(f"{bought}, spread: cash")
    assert cash.cost(Month(2026, 4).window) == usd("1500")
    rest = Window(cash.term.start_ms, Month(2026, 3).window.end_ms)
    assert cash.cost(rest) == usd("300000") + hosting.cost(rest)
    assert line.due(Month(2026, 3).window) == cash.due(Month(2026, 3).window) == cash.cost(rest)


def test_a_change_in_mid_life_never_reaches_back() -> None:
    """After two of four years: 40,000 for new switches, and it is kept for two years longer."""
    plain = (
        "id: o, kind: owned, gpus: 8, upfront: 262800, start: 2026-01-01T00:00:00Z, end: 2030-01-01T00:00:00Z"
    )
    before = schedule_of(plain)
    change = "at: 2028-01-01T00:00:00Z, amount: 40000, end: 2032-01-01T00:00:00Z, gpus: 7"
    after = schedule_of(f"{plain}, changes: [{{{change}}}]")
    early = span("2026-01-01", "2028-01-01")
    assert [after.cost(m) for m in early.split(DAY_MS)] == [before.cost(m) for m in early.split(DAY_MS)]
    assert after.committed(after.period(early.start_ms)) == 8 * HOUR_MS
    assert after.committed(after.period(early.end_ms)) == 7 * HOUR_MS
    assert after.cost(after.term) == usd("302800")
    late = span("2028-01-01", "2032-01-01")
    assert after.cost(late) == usd("302800") - before.cost(early)
    assert after.due(Month(2028, 1).window) == usd("40000")
    assert after.due(after.term) == usd("302800")
    cash = schedule_of(f"{plain}, spread: cash, changes: [{{{change}}}]")
    assert [cash.cost(Month(*m).window) for m in ((2026, 1), (2026, 2), (2028, 1))] == [
        usd("262800"),
        0,
        usd("40000"),
    ]
    assert cash.cost(cash.term) == usd("302800")


def test_a_dead_gpu_stays_paid() -> None:
    """The eighth GPU dies: the same money over seven."""
    plain = (
        "id: o, kind: owned, gpus: 8, upfront: 87600, start: 2026-01-01T00:00:00Z, end: 2027-01-01T00:00:00Z"
    )
    dead = schedule_of(f"{plain}, changes: [{{at: 2026-07-01T00:00:00Z, gpus: 7}}]")
    assert dead.cost(dead.term) == usd("87600")
    assert dead.cost(Month(2026, 8).window) == schedule_of(plain).cost(Month(2026, 8).window)


def test_a_change_inside_an_hour_counts_to_the_millisecond() -> None:
    found = schedule_of(
        f"id: r, kind: reservation, gpus: 2, {YEAR}, upfront: 1, "
        'changes: [{at: "2026-05-05T10:00:00.001Z", gpus: 4}]'
    )
    hour = found.period(parse_instant("2026-05-05T10:00:00Z"))
    assert found.committed(hour) == 2 + 4 * (HOUR_MS - 1)


def test_a_twelfth_of_the_year_every_month_spread_over_the_term() -> None:
    found = schedule_of(
        f"id: r, kind: reservation, gpus: 1, {YEAR}, recurring: [{{amount: 730, every: month}}], spread: term"
    )
    assert found.cost(span("2026-02-10", "2026-02-11")) == usd("24")
    assert found.due(Month(2026, 2).window) == usd("730")
