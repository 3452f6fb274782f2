"""How numbers and names look to a person."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.domain.time import DAY_MS, HOUR_MS
from gpucost.reports.base import display


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (None, "–"),
        (Fraction(0), "0%"),
        (Fraction(1), "100%"),
        (Fraction(22, 24), "92%"),
        (Fraction(1, 10**9), "<1%"),
        (1 - Fraction(1, 10**9), ">99%"),
        (Fraction(25, 2), "1,250%"),
    ],
)
def test_percent_never_rounds_to_none_or_all(part: Fraction | None, text: str) -> None:
    assert display.percent(part) == text


@pytest.mark.parametrize(
    ("length_ms", "text"),
    [
        (int(3.5 * HOUR_MS), "3.5 h"),
        (HOUR_MS // 3, "20 min"),
        (1, "0.001 s"),
        (61_001, "1 min 1.001 s"),
        (604_268_000, "167 h 51 min 8 s"),
        (5 * HOUR_MS, "5 h"),
    ],
)
def test_durations(length_ms: int, text: str) -> None:
    assert display.duration(length_ms) == text


@pytest.mark.parametrize(
    ("board_ms", "text"), [(0, "0.0"), (1, "<0.1"), (HOUR_MS // 10, "0.1"), (HOUR_MS, "1.0")]
)
def test_hours_that_are_more_than_none_look_like_it(board_ms: int, text: str) -> None:
    assert display.hours_or_less(board_ms) == text


@pytest.mark.parametrize(("length_ms", "text"), [(0, "nothing"), (DAY_MS, "24 h"), (3 * DAY_MS, "3 days")])
def test_durations_in_prose(length_ms: int, text: str) -> None:
    assert display.span_of_days(length_ms) == text


def test_money_hours_and_prices() -> None:
    assert display.money(1_234_567_891_000_000) == "1,234,567.89"
    assert display.money(-5_000_001) == "-0.01"
    assert display.money(5_000_000) == "0.00"  # half to even
    assert display.money(None) == "–"
    assert display.signed_money(-412_500_000_000) == "−412.50"
    assert display.signed_money(1_000_000_000) == "+1.00"
    assert display.signed_hours(-9_911_7 * HOUR_MS // 10) == "−9,911.7"
    assert display.signed_hours(HOUR_MS) == "+1.0"
    assert display.signed_percent(Fraction(-1, 3)) == "−33.3%"
    assert display.price(6_880_000_000) == "6.88"
    assert display.price(42_892_500) == "0.0428925"
    assert display.hours(3 * HOUR_MS // 2) == "1.5"
    assert display.hours_exact(1) == "0.000000278"


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_exact_hours_tell_every_millisecond_apart(a: int, b: int) -> None:
    assert (display.hours_exact(a) == display.hours_exact(b)) == (a == b)


@given(st.text())
def test_visible_text_has_nothing_hidden(text: str) -> None:
    shown = display.visible(text)
    assert "".join(shown.split()).isprintable()
    assert not re.search(r"[\n\r\t\u2028\u2029]", shown)
    shown.encode()
