"""The scales that both chart engines draw by."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.reports.base.chart_scales import BandScale, ChartAxis, LinearScale, highest_stack


@given(st.integers(0, 10**18), st.sampled_from([1, 3_600_000, 10**9]))
def test_an_axis_ends_above_its_values_with_few_ticks(highest: int, unit: int) -> None:
    axis = ChartAxis.up_to(highest, unit)
    assert axis.ticks[0] == 0
    assert axis.ticks[-1] == axis.top >= max(highest, 1)
    assert len({high - low for low, high in zip(axis.ticks, axis.ticks[1:], strict=False)}) == 1
    assert (3 if highest > max(unit // 100, 1) else 2) <= len(axis.ticks) <= 6


@pytest.mark.parametrize(("highest", "top", "step"), [(0, 1, 1), (7, 8, 2), (12, 15, 5), (50, 50, 10)])
def test_ticks_are_one_two_or_five_times_a_power_of_ten(highest: int, top: int, step: int) -> None:
    axis = ChartAxis.up_to(highest * 100, 100)
    assert axis.ticks[-1] == (top * 100 if highest else 1)
    assert axis.ticks[1] == (step * 100 if highest else 1)


def test_lengths_and_bands() -> None:
    scale, bands = LinearScale(200, 50), BandScale(10, 30, 3)
    assert [scale.length(value) for value in (0, 1, 100, 200)] == [0, 0.25, 25, 50]
    assert scale.length(1, least=2.0) == 2.0
    assert (bands.width, bands.at(0.5), bands.at(2)) == (10, 15, 30)
    assert BandScale(10, 30, 0).width == 30


def test_the_highest_stack() -> None:
    assert highest_stack([]) == 0
    assert highest_stack([(1, 2), (None, 4), (5, -3)]) == 5
