"""Dealing: the arithmetic that everything else rests on, against counting on one's fingers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpucost.attribution.apportion import FEW_SLOTS, deal_ms, deal_nano
from gpucost.domain.rates import MAX_NANO_PER_BOARD_HOUR
from gpucost.domain.time import HOUR_MS, LATEST_MS

instants = st.integers(0, LATEST_MS - 40 * 24 * HOUR_MS)
prices = st.integers(0, MAX_NANO_PER_BOARD_HOUR)


def ms(start: int, end: int, low: int, high: int, den: int) -> int:
    return int(deal_ms(*(np.int64(value) for value in (start, end, low, high, den))))


def nano(start: int, end: int, low: int, high: int, den: int, price: int) -> int:
    return int(deal_nano(*(np.int64(value) for value in (start, end, low, high, den, price))))


@given(st.integers(0, 200), st.integers(0, 60), st.integers(0, 20), st.integers(0, 20), st.integers(1, 9))
def test_milliseconds_go_round_like_cards(start: int, length: int, low: int, width: int, den: int) -> None:
    by_hand = sum(
        1 for t in range(start, start + length) for s in range(low, low + width) if t % den == s % den
    )
    assert ms(start, start + length, low, low + width, den) == by_hand


@given(
    st.integers(0, 50), st.integers(0, 20), st.integers(0, 6), st.integers(0, 6), st.integers(1, 5), prices
)
def test_nano_units_go_round_like_cards(
    start: int, length: int, low: int, width: int, den: int, price: int
) -> None:
    price %= 20 * HOUR_MS
    first, last = price * start // HOUR_MS, price * (start + length) // HOUR_MS
    by_hand = sum(1 for k in range(first, last) for s in range(low, low + width) if k % den == s % den)
    assert nano(start, start + length, low, low + width, den, price) == by_hand


@given(instants, st.integers(0, 31 * 24 * HOUR_MS), st.integers(1, 56), st.integers(1, 4096), prices)
def test_slots_add_up_to_the_boards_they_are_cut_from(
    start: int, length: int, den: int, boards: int, price: int
) -> None:
    end, slots = start + length, boards * den
    middle = slots // 3
    assert ms(start, end, 0, middle, den) + ms(start, end, middle, slots, den) == boards * length
    earned = price * end // HOUR_MS - price * start // HOUR_MS
    if boards * earned < 2**62:  # more than that fits no ledger line: 4 billion dollars on one node
        parts = nano(start, end, 0, middle, den, price) + nano(start, end, middle, slots, den, price)
        assert parts == boards * earned


@given(
    instants,
    st.integers(1, 24 * HOUR_MS),
    st.integers(0, 24 * HOUR_MS),
    st.integers(0, 60),
    st.integers(0, 60),
    st.integers(1, 60),
    prices,
)
def test_a_cut_changes_nothing_and_no_part_is_negative(
    start: int, length: int, cut: int, low: int, width: int, den: int, price: int
) -> None:
    end, middle = start + length, start + min(cut, length)
    for total, first, second in (
        (
            ms(start, end, low, low + width, den),
            ms(start, middle, low, low + width, den),
            ms(middle, end, low, low + width, den),
        ),
        (
            nano(start, end, low, low + width, den, price),
            nano(start, middle, low, low + width, den, price),
            nano(middle, end, low, low + width, den, price),
        ),
    ):
        assert first >= 0
        assert second >= 0
        assert first + second == total


@given(instants, st.integers(1, 24 * HOUR_MS), st.integers(0, 59), st.integers(1, 60), prices)
def test_a_slot_is_off_by_less_than_one(start: int, length: int, slot: int, den: int, price: int) -> None:
    slot %= den
    assert abs(ms(start, start + length, slot, slot + 1, den) - length / den) < 1
    earned = price * (start + length) // HOUR_MS - price * start // HOUR_MS
    assert abs(nano(start, start + length, slot, slot + 1, den, price) * den - earned) < den


MANY = st.sampled_from((FEW_SLOTS + 1, 1_000, 10_080, 100_800, 705_600))


@given(MANY, st.integers(0, 10**6), st.integers(0, 3_000), st.integers(0, 10**6), st.integers(0, 10**6))
def test_each_of_many_slots_gets_one_card_in_a_round(
    den: int, start: int, length: int, low: int, high: int
) -> None:
    low, high = sorted((low % den, high % den))
    got = ms(start, start + length, low, high, den)
    assert 0 <= got <= length
    assert got + ms(start, start + length, high, den, den) + ms(start, start + length, 0, low, den) == length
    assert ms(start, start + den, low, high, den) == high - low
    assert ms(start + den, start + den + length, low, high, den) == got
    single = [ms(start, start + length, slot, slot + 1, den) for slot in (low, high)]
    assert set(single) <= {length // den, length // den + 1}


@given(MANY, instants, st.integers(0, 10**8), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_part_of_many_slots_is_never_off_by_more_than_some_milliseconds(
    den: int, start: int, length: int, low: int, high: int
) -> None:
    low, high = sorted((low % den, high % den))
    exact = length * (high - low) / den
    assert abs(ms(start, start + length, low, high, den) - exact) < 20
