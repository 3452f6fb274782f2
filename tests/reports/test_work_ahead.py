"""What jobs that run or wait will cost: by hand, and no more than what there is."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from gpucost.advisor.wait.run_times import PastRun, RunTimes
from gpucost.domain.money import NANO
from gpucost.domain.time import DAY_MS, HOUR_MS
from gpucost.reports.month.month_end import cost_ahead, month_ends
from gpucost.reports.month.work_ahead import AheadJob, cost_by_team, daily_cost, times_left

AN_HOUR = Fraction(2 * NANO, HOUR_MS)


def job(team: str, from_ms: int, *left_ms: int, nano_per_ms: Fraction = AN_HOUR) -> AheadJob:
    return AheadJob(team, "", "", "c", from_ms, left_ms, nano_per_ms)


def test_the_cost_of_a_day_is_the_mean_of_the_likely_times() -> None:
    """From noon on, as likely for 6 hours as for 24: half of 12 + 48 units, a part of it on the next day."""
    found = daily_cost([job("a", DAY_MS // 2, 6 * HOUR_MS, 24 * HOUR_MS)], 0, 2)
    assert found == [(6 + 12) * NANO, 12 * NANO]


def test_days_before_and_after_do_not_count() -> None:
    assert daily_cost([job("a", -DAY_MS, 2 * DAY_MS), job("b", 3 * DAY_MS, DAY_MS)], 0, 3) == [
        48 * NANO,
        0,
        0,
    ]
    assert cost_by_team([job("b", 0, HOUR_MS), job("a", 0, HOUR_MS)], 0, 1) == {
        "a": [2 * NANO],
        "b": [2 * NANO],
    }


def test_how_long_it_goes_on_is_learnt_from_similar_jobs() -> None:
    like = RunTimes(PastRun("a", "train-1", 8, 10 * HOUR_MS) for _ in range(400)).like("a", "train-9", 8)
    assert sorted(times_left(like, 4 * HOUR_MS))[10] == 6 * HOUR_MS


def test_half_of_what_is_above_the_level_is_added() -> None:
    """A level of 100, three days; 300 and 60 by jobs that run: 300 + (300 - 100) / 2."""
    assert cost_ahead([100.0] * 30, 3, [300.0, 60.0]) == 400.0
    [found] = month_ends({"a": [100] * 40}, {"a": 1_000}, 3, ahead={"a": [300, 60, 0]}).values()
    assert found.expected_nano == 1_400


def test_who_is_back_with_a_job_is_not_gone() -> None:
    history = {"gone": [100] * 20 + [0] * 20, "stays": [100] * 40}
    found = month_ends(history, {"gone": 500}, 2, ahead={"gone": [80, 0]})["gone"]
    assert (found.expected_nano, found.reason) == (540, "")


@given(
    days=st.lists(st.integers(0, 10**6), min_size=26, max_size=60),
    ahead=st.lists(st.integers(0, 10**7), max_size=9),
    spent=st.integers(0, 10**9),
    most=st.integers(0, 10**6),
)
def test_no_forecast_is_above_what_was_spent_and_all_gpus_cost(
    days: list[int], ahead: list[int], spent: int, most: int
) -> None:
    [found] = month_ends({"a": days}, {"a": spent}, 9, most, ahead={"a": ahead}).values()
    if found.expected_nano is None or found.low_nano is None or found.high_nano is None:
        assert found.reason
        return
    assert spent <= found.low_nano <= found.expected_nano <= found.high_nano <= spent + 9 * most
