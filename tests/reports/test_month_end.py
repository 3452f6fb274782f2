"""The forecast of a month's end: by hand, its interval, and when there is none."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.domain.money import NANO
from gpucost.reports.month.month_end import (
    COVERAGE,
    conformal_part,
    daily_forecast,
    month_ends,
    relative_errors,
    smoothed,
)

LEVEL = 100 * NANO


def test_a_level_that_stays_is_forecast_exactly() -> None:
    [found] = month_ends({"vision": [LEVEL] * 40}, {"vision": 10 * LEVEL}, 21).values()
    assert (found.expected_nano, found.low_nano, found.high_nano) == (31 * LEVEL,) * 3
    assert (found.days_left, found.reason) == (21, "")


def test_the_forecast_is_the_mean_of_smoothing_and_of_28_days() -> None:
    history = [0.0] * 20 + [70.0] * 14
    assert smoothed(history) == pytest.approx(70, abs=0.01)
    assert daily_forecast(history) == pytest.approx((smoothed(history) + 35) / 2)


def test_the_interval_holds_the_part_of_errors_that_it_says() -> None:
    errors = [each / 100 for each in range(1, 101)]
    part = conformal_part(errors)
    assert part is not None
    assert sum(error <= part for error in errors) == math.ceil(101 * COVERAGE)


def test_errors_are_those_that_would_have_been_made() -> None:
    history = [100.0] * 20 + [200.0]
    assert relative_errors(history, 1)[-1] == pytest.approx(1.0), "200 came, 100 was forecast"
    assert relative_errors(history, 1)[:-1] == [0.0] * 6


def test_no_more_than_all_gpus_cost() -> None:
    [found] = month_ends({"vision": [LEVEL] * 40}, {"vision": 0}, 10, LEVEL // 2).values()
    assert found.expected_nano == 5 * LEVEL


def test_no_end_is_below_what_is_held_already() -> None:
    held = {"vision": 12 * LEVEL}
    [found] = month_ends({"vision": [LEVEL] * 40}, {"vision": 10 * LEVEL}, 1, held=held).values()
    assert (found.low_nano, found.expected_nano, found.high_nano) == (12 * LEVEL,) * 3


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        ([LEVEL] * 13, "13 of 14 days of history"),
        ([LEVEL] * 30 + [None] + [LEVEL] * 5, "1 of the last 36 days are not known whole"),
        ([LEVEL] * 14, "fewer than 5 past forecasts of 9 days"),
    ],
)
def test_without_enough_there_is_none_and_it_says_why(history: list[int | None], reason: str) -> None:
    [found] = month_ends({"vision": history}, {"vision": 5}, 9).values()
    assert (found.expected_nano, found.low_nano, found.high_nano) == (None, None, None)
    assert found.reason.startswith(reason)


def test_a_month_that_is_whole_has_what_was_spent() -> None:
    [found] = month_ends({"vision": []}, {"vision": 7}, 0).values()
    assert (found.expected_nano, found.low_nano, found.high_nano) == (7, 7, 7)


@given(
    days=st.lists(st.integers(0, 10_000 * NANO), min_size=25, max_size=70),
    left=st.integers(1, 12),
    spent=st.integers(0, 10**15),
)
def test_low_is_at_most_expected_is_at_most_high(days: list[int], left: int, spent: int) -> None:
    [found] = month_ends({"a": days}, {"a": spent}, left).values()
    if found.expected_nano is None:
        assert found.reason
        return
    assert found.low_nano is not None
    assert found.high_nano is not None
    assert spent <= found.low_nano <= found.expected_nano <= found.high_nano


def test_of_who_held_nothing_for_two_weeks_no_more_is_expected() -> None:
    """Half the mean of the month before would be a cost of nobody."""
    gone, rests = [100] * 20 + [0] * 20, [100] * 27 + [0] * 13
    found = month_ends({"gone": gone, "rests": rests, "stays": [100] * 40}, {"gone": 500, "rests": 500}, 8)
    assert (found["gone"].expected_nano, found["gone"].high_nano) == (500, 500)
    assert found["gone"].reason == "held nothing for 14 days: no more is expected"
    assert (found["rests"].reason, found["stays"].reason) == ("", "")
    assert (found["rests"].expected_nano or 0) > 500
    back = month_ends({"gone": gone, "stays": [100] * 40}, {"gone": 500}, 8, held={"gone": 600})["gone"]
    assert (back.expected_nano, back.reason) == (600, "")
