"""How often the ranges held: held, missed, undecided, and those without a number."""

from __future__ import annotations

import pytest
from hypothesis import given as over
from hypothesis import strategies as st

from gpucost.advisor.wait.forecast_skill import PredictedRange, RangeCount, calibration
from gpucost.domain.errors import InputError


def test_each_range_is_held_missed_undecided_or_none() -> None:
    records = [
        PredictedRange("q", 10, 100, 10),  # both hold: the bounds belong to the range
        PredictedRange("q", 10, 100, 50),
        PredictedRange("q", 10, 100, 101),
        PredictedRange("q", 10, 100, 5, is_waiting=True),
        PredictedRange("q", 10, 100, 50, is_waiting=True),  # p50 is missed already
        PredictedRange("q", 10, 100, 101, is_waiting=True),
        PredictedRange("q", 10, None, 11),
        PredictedRange("q", None, None, 11),
    ]
    counted = calibration(records, "q", least=1)
    assert counted.p50 == RangeCount(held=1, given=6, undecided=1, without=1)
    assert counted.p90 == RangeCount(held=2, given=4, undecided=2, without=2)
    assert counted.p90.share == 0.5


def test_a_queue_with_few_falls_back_to_all() -> None:
    others = [PredictedRange("other", 10, 100, 0)] * 30
    own = [PredictedRange("own", 10, 100, 1_000)] * 20
    assert calibration([*others, *own[:19]], "own").queue == ""
    assert calibration([*others, *own[:19]], "own").p90.given == 49
    assert calibration([*others, *own], "own").p90 == RangeCount(0, 20, 0, 0)
    undecided = [PredictedRange("own", 10, 100, 1, is_waiting=True)] * 20
    assert calibration([*others, *undecided], "own").queue == ""


def test_nothing_given_has_no_share() -> None:
    counted = calibration([], "q")
    assert (counted.queue, counted.p90, counted.p90.share) == ("", RangeCount(0, 0, 0, 0), None)


_RECORDS = st.lists(
    st.builds(
        PredictedRange,
        st.sampled_from(["a", "b"]),
        st.none() | st.integers(0, 9),
        st.none() | st.integers(0, 9),
        st.integers(0, 9),
        st.booleans(),
    )
)


@over(_RECORDS)
def test_every_record_is_counted_once_in_any_order(records: list[PredictedRange]) -> None:
    counted = calibration(records, "a", least=0)
    own = [record for record in records if record.queue == "a"]
    for count in (counted.p50, counted.p90):
        assert count.given + count.undecided + count.without == len(own)
        assert 0 <= count.held <= count.given
    assert calibration(records[::-1], "a", least=0) == counted


@pytest.mark.parametrize("field", ["p50_ms", "p90_ms", "waited_ms"])
def test_negative_waits_are_refused_by_field(field: str) -> None:
    numbers = {"p50_ms": 1, "p90_ms": 1, "waited_ms": 1, field: -1}
    with pytest.raises(InputError) as raised:
        PredictedRange("q", numbers["p50_ms"], numbers["p90_ms"], numbers["waited_ms"])
    assert raised.value.field == field
