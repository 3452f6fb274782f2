"""Lines of invoices that cross the end of a month: each month has its part by time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.domain.money import NANO
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import HOUR_MS, Month, Window, iso
from gpucost.ledger.ledger import Ledger
from gpucost.reports.focus.invoice_lines import InvoiceLine
from tests.ledger.builders import hour, ingest, line
from tests.service.test_invoice_imports import (
    HOURS,
    IDENTITIES,
    MONTH,
    beside,
    book,
    focus_row,
    write_csv,
)
from tests.support.ledgers import new_ledger

NEXT = MONTH.next()
LAST = MONTH.window.length_ms // HOUR_MS
LINE = InvoiceLine(
    *(2, 7, "i-0aaa", "", MONTH.window, "Usage", "USD"), *(Fraction(10), Fraction(9), Fraction(11)), HOUR_MS
)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """The last half day of October, and the first day and a half of November, of one node."""

    def fill(url: str) -> None:
        with _opened(url) as ledger:
            for number in range(LAST - 12, LAST + 36):
                cost = {"board_ms": 8 * HOUR_MS, "nano": 24 * NANO}
                ingest(ledger, hour(number), line(hour(number), node="node-1", **cost))

    with _opened(new_ledger(tmp_path / "l.db", fill)) as ledger:
        yield ledger


def _opened(url: str) -> Ledger:
    return Ledger.open(url, now=lambda: Month(2026, 12).window.start_ms)


def _row(cost: str, hours: str, **more: str) -> dict[str, str]:
    """Two days, of which a quarter lie in October."""
    end = {"ChargePeriodEnd": iso(hour(LAST + 36).start_ms), "ConsumedQuantity": hours}
    return focus_row(LAST - 12, "i-0aaa", cost) | end | more


def test_a_line_that_crosses_a_month_is_in_both_with_its_time(ledger: Ledger, tmp_path: Path) -> None:
    rows = [_row("1248", "48"), _row("8", "", ChargeCategory="Tax"), _row("4", "", ResourceId="support")]
    file = write_csv(tmp_path / "f.csv", [*rows, rows[0]])
    found = beside(ledger, file, IDENTITIES)
    assert [
        (each.month, each.invoice_nano, each.ledger_nano, each.invoice_ms, each.ledger_ms)
        for each in found.nodes
    ] == [
        (MONTH, 314 * NANO, 288 * NANO, 12 * HOUR_MS, 12 * HOUR_MS),
        (NEXT, 942 * NANO, 864 * NANO, 36 * HOUR_MS, 36 * HOUR_MS),
    ]
    assert [{part.cause.value: part.nano // NANO for part in each.causes} for each in found.nodes] == [
        {"tax": 2, "price": 24},
        {"tax": 6, "price": 72},
    ]
    outside = [(each.month, each.invoice_nano, each.lines) for each in found.outside]
    assert outside == [(MONTH, NANO, 1), (NEXT, 3 * NANO, 1)]
    assert (found.lines, found.invoice_nano, found.repeated_nano) == (4, 1260 * NANO, 1248 * NANO)

    first, second = (beside(ledger, file, IDENTITIES, month=month) for month in (MONTH, NEXT))
    assert (*first.nodes, *second.nodes) == found.nodes
    assert (*first.outside, *second.outside) == found.outside
    assert first.repeated_nano + second.repeated_nano == found.repeated_nano


def test_the_part_of_a_month_is_booked_in_it(ledger: Ledger, tmp_path: Path) -> None:
    found = beside(ledger, write_csv(tmp_path / "f.csv", [_row("1248", "48")]), IDENTITIES)
    for month in (MONTH, NEXT):
        ledger.close_month(month, author="ada", min_coverage=Fraction(0), reason="a test")
    book(ledger, found)
    booked = {m: [each.nano for each in ledger.adjustments(EVERYTHING, m)] for m in (MONTH, NEXT)}
    assert booked == {MONTH: [24 * NANO], NEXT: [72 * NANO]}


def test_what_is_paid_for_a_commitment_stays_in_its_month(ledger: Ledger, tmp_path: Path) -> None:
    end = iso(Month(2029, 10).window.start_ms)
    bought = _row("9000", "", ChargeCategory="Purchase", CommitmentDiscountId="sp-1", ChargePeriodEnd=end)
    rows = [bought, *(focus_row(LAST - 1 - number, "i-0aaa", "24") for number in range(HOURS))]
    found = beside(ledger, write_csv(tmp_path / "f.csv", rows), IDENTITIES)
    assert {each.month for each in found.nodes} == {MONTH}
    assert [(each.month, each.invoice_nano) for each in found.outside] == [(MONTH, 9000 * NANO)]


@given(
    st.integers(0, 300 * 24 * HOUR_MS),
    st.integers(1, 200 * 24 * HOUR_MS),
    st.none() | st.integers(-10 * HOUR_MS, 10**12),
)
def test_the_parts_of_a_line_add_up_to_it(start_ms: int, length_ms: int, time_ms: int | None) -> None:
    period = Window(MONTH.window.start_ms + start_ms, MONTH.window.start_ms + start_ms + length_ms)
    whole = replace(LINE, period=period, hours_ms=time_ms)
    months, parts = zip(*whole.by_month(), strict=True)
    assert [month.window.intersect(period) for month in months] == [part.period for part in parts]
    assert sum(part.period.length_ms for part in parts) == length_ms
    for name in ("billed", "effective", "contracted"):
        assert sum(getattr(part, name) for part in parts) == getattr(whole, name)
    if time_ms is None:
        assert {part.hours_ms for part in parts} == {None}
    else:
        assert sum(part.hours_ms for part in parts) == time_ms
