"""Money: exact integers in, exact integers out; nothing is lost when it is split."""

from __future__ import annotations

import random
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.domain.errors import InputError
from gpucost.domain.money import NANO, Money, parse_nano, plain, round_half_even, split_by_weight

NANOS = st.integers(-(10**21), 10**21)


@pytest.mark.fault(37)
@given(NANOS)
def test_every_nano_unit_survives_writing_and_reading(nano: int) -> None:
    assert parse_nano(plain(nano)) == nano
    assert parse_nano(Decimal(plain(nano))) == nano


@pytest.mark.fault(37)
@pytest.mark.parametrize(
    ("value", "nano"),
    [
        ("0.000000001", 1),
        (Decimal("1E-9"), 1),
        ("1000000000000", 10**21),
        (10**12, 10**21),
        (Decimal("1E+12"), 10**21),
        ("-6.88", -6_880_000_000),
        (" 55.04 ", 55_040_000_000),
        ("+1.50", 1_500_000_000),
        (0, 0),
        ("999999999999.999999999", 10**21 - 1),
    ],
)
def test_amounts_from_the_smallest_to_the_largest_are_exact(value: object, nano: int) -> None:
    assert parse_nano(value) == nano


@pytest.mark.fault(37)
@pytest.mark.parametrize(
    "value",
    [
        6.88,
        float("nan"),
        float("inf"),
        Decimal("NaN"),
        Decimal("Infinity"),
        Decimal("-sNaN"),
        Decimal("1E+999999"),
        Decimal("1E-999999"),
        "NaN",
        "inf",
        "-Infinity",
        "1e3",
        "6,88",
        "$6.88",
        "٣.٥",
        "",
        ".5",
        "5.",
        "1.0000000001",
        "1000000000000.000000001",
        "999999999999.999999999000000001",
        10**12 + 1,
        pytest.param(10**5000, id="5001 digits"),
        True,
        None,
        b"1",
    ],
)
def test_what_is_not_an_exact_amount_is_refused(value: object) -> None:
    with pytest.raises(InputError, match="price"):
        parse_nano(value, "price")


@pytest.mark.fault(37)
def test_two_currencies_do_not_add() -> None:
    dollars, euros = Money.parse("1.50", "USD"), Money.parse("1", "EUR")
    with pytest.raises(InputError, match="do not add"):
        dollars + euros
    with pytest.raises(InputError, match="do not add"):
        dollars - euros
    assert dollars + dollars - dollars == dollars
    assert -dollars == Money(-1_500_000_000, "USD")
    assert str(dollars) == "1.500000000 USD"


@pytest.mark.fault(37)
@pytest.mark.parametrize("nano", [1.0, float("nan"), True, "1", None])
def test_money_holds_integers_only(nano: object) -> None:
    with pytest.raises(InputError, match="nano-units"):
        Money(nano, "USD")  # type: ignore[arg-type]


@pytest.mark.parametrize("code", ["usd", "US", "USDX", "", "U$D", None])
def test_a_currency_has_the_form_of_iso_4217(code: object) -> None:
    with pytest.raises(InputError, match="ISO 4217"):
        Money(1, code)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nano", "decimals", "text"),
    [
        (125_000_000, 2, "0.12"),
        (135_000_000, 2, "0.14"),
        (-125_000_000, 2, "-0.12"),
        (-1, 2, "0.00"),
        (1_500_000_000, 0, "2"),
        (2_500_000_000, 0, "2"),
        (5, 9, "0.000000005"),
    ],
)
def test_plain_rounds_half_to_even(nano: int, decimals: int, text: str) -> None:
    assert plain(nano, decimals) == text


def test_plain_refuses_decimals_it_does_not_have() -> None:
    with pytest.raises(InputError, match="0 to 9"):
        plain(1, 10)


@given(NANOS, st.integers(1, 10**12))
def test_rounding_is_within_half_a_unit(numerator: int, denominator: int) -> None:
    rounded = round_half_even(numerator, denominator)
    assert abs(rounded - Fraction(numerator, denominator)) <= Fraction(1, 2)


WEIGHTS = st.dictionaries(
    st.text(max_size=4), st.fractions(0, 1000, max_denominator=97), min_size=1, max_size=12
).filter(lambda weights: any(weights.values()))


@given(NANOS, WEIGHTS, st.randoms(use_true_random=False))
def test_a_split_adds_up_and_is_fair_in_any_order(
    total: int, weights: dict[str, Fraction], rng: random.Random
) -> None:
    parts = split_by_weight(total, weights)
    assert sum(parts.values()) == total
    whole = sum(weights.values())
    assert all(abs(parts[key] - total * weights[key] / whole) < 1 for key in weights)
    assert all(parts[key] == 0 for key in weights if weights[key] == 0)
    shuffled = list(weights.items())
    rng.shuffle(shuffled)
    assert split_by_weight(total, dict(shuffled)) == parts


@given(st.integers(0, 10**18), st.integers(1, 50))
def test_equal_weights_differ_by_at_most_one(total: int, count: int) -> None:
    parts = split_by_weight(total, dict.fromkeys(range(count), 1))
    assert max(parts.values()) - min(parts.values()) <= 1


@pytest.mark.parametrize("weights", [{}, {"a": 0}, {"a": 1, "b": -1}])
def test_weights_that_divide_nothing_are_refused(weights: dict[str, int]) -> None:
    with pytest.raises(InputError, match="weights"):
        split_by_weight(NANO, weights)
