"""Warnings: what is valid in a book, but wants a look."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from gpucost.pricing.price_book import PriceBook
from gpucost.pricing.price_rows import BookWarning, WarningCode
from tests.pricing.books import SOURCE, book, price

TODAY = date(2026, 11, 30)


def codes(of: PriceBook, today: date = TODAY) -> list[WarningCode]:
    return [warning.code for warning in of.check(today)]


def test_a_fresh_book_has_nothing_to_warn_about() -> None:
    assert codes(book(price("1"), price("2", model="H200"))) == []


@pytest.mark.parametrize(("days", "warned"), [(90, False), (91, True)])
def test_a_price_is_stale_the_day_after_its_age(days: int, warned: bool) -> None:
    today = date.fromordinal(date(2026, 11, 21).toordinal() + days)
    assert (WarningCode.STALE in codes(book(price()), today)) is warned
    assert codes(book(price(), stale_after_days=365), today) == []


def test_rows_of_one_source_share_a_warning() -> None:
    old = book(price("1", region="eu"), price("1", region="us"), price("1", model="H200", source="other"))
    age = "was read on 2026-11-21, 365 days ago; prices are called stale after 90"
    assert old.check(date(2027, 11, 21)) == (
        BookWarning(WarningCode.STALE, ("H100/eu", "H100/us"), f"test list {age}"),
        BookWarning(WarningCode.STALE, ("H200",), f"other {age}"),
    )


def test_what_you_own_does_not_go_stale() -> None:
    owned = {"model": "H100", "gpus": 8, "purchase": 1, "months": 1, **SOURCE}
    assert codes(book(owned=[owned]), date(2030, 1, 1)) == []


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"dated": False}, WarningCode.UNDATED),
        ({"retrieved": "2026-12-01"}, WarningCode.FUTURE),
        ({"valid_to": "2026-11-30"}, WarningCode.EXPIRED),
        ({"model": "H1000"}, WarningCode.UNKNOWN_MODEL),
    ],
)
def test_one_odd_row_is_one_warning(more: dict[str, Any], code: WarningCode) -> None:
    assert codes(book(price("1", **more))) == [code]


def test_a_row_that_is_followed_by_another_has_not_expired() -> None:
    followed = book(price("1", valid_to="2026-11-01"), price("2", valid_from="2026-11-01"))
    assert codes(followed) == []


def test_a_gap_between_two_rows_is_named() -> None:
    gap = book(price("1", valid_to="2026-11-01"), price("2", valid_from="2026-11-02"))
    [warning] = gap.check(TODAY)
    assert warning.code is WarningCode.GAP
    assert warning.detail == "nothing prices H100 from 2026-11-01T00:00:00Z to 2026-11-02T00:00:00Z"


@pytest.mark.parametrize(("odd", "warned"), [("30", False), ("30.01", True), ("3.33", True), ("3.34", False)])
def test_a_price_far_from_the_others_is_named(odd: str, warned: bool) -> None:
    rows = [price("10", region=f"r{n}") for n in range(4)]
    assert (WarningCode.FAR_FROM_OTHERS in codes(book(*rows, price(odd, region="odd")))) is warned


def test_a_price_far_from_the_others_is_told_with_theirs() -> None:
    rows = [price("10.1234", region=f"r{n}") for n in range(4)]
    [warning] = book(*rows, price("100.1234", region="odd")).check(TODAY)
    assert warning.detail == (
        "100.123 per GPU-hour; the median of the 5 rows for H100, any capacity type, is 10.123"
    )


def test_two_prices_are_too_few_to_call_one_odd() -> None:
    assert codes(book(price("1", region="a"), price("100", region="b"))) == []


def test_spot_is_not_compared_with_on_demand() -> None:
    rows = [price("10", region=f"r{n}", capacity_type="on-demand") for n in range(4)]
    assert codes(book(*rows, price("1", capacity_type="spot"))) == []
