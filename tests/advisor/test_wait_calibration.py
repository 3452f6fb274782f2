"""How often the ranges held: held, missed, undecided, and those without a number."""

from __future__ import annotations

import pytest
from hypothesis import given as over
from hypothesis import strategies as st

from gpucost.advisor.wait.calibration import Count, Given, calibration
from gpucost.domain.errors import InputError


def test_each_range_is_held_missed_undecided_or_none() -> None:
    records = [
        Given("q", 10, 100, 10),  # both hold: the bounds belong to the range
        Given("q", 10, 100, 50),
        Given("q", 10, 100, 101),
        Given("q", 10, 100, 5, is_waiting=True),
        Given("q", 10, 100, 50, is_waiting=True),  # p50 is missed already
        Given("q", 10, 100, 101, is_waiting=True),
        Given("q", 10, None, 11),
        Given("q", None, None, 11),
    ]
    counted = calibration(records, "q", least=1)
    assert counted.p50 == Count(held=1, given=6, undecided=1, without=1)
    assert counted.p90 == Count(held=2, given=4, undecided=2, without=2)
    assert counted.p90.share == 0.5


def test_a_queue_with_few_falls_back_to_all() -> None:
    others = [Given("other", 10, 100, 0)] * 30
    own = [Given("own", 10, 100, 1_000)] * 20
    assert calibration([*others, *own[:19]], "own").queue == ""
    assert calibration([*others, *own[:19]], "own").p90.given == 49
    assert calibration([*others, *own], "own").p90 == Count(0, 20, 0, 0)
    undecided = [Given("own", 10, 100, 1, is_waiting=True)] * 20
    assert calibration([*others, *undecided], "own").queue == ""


def test_nothing_given_has_no_share() -> None:
    counted = calibration([], "q")
    assert (counted.queue, counted.p90, counted.p90.share) == ("", Count(0, 0, 0, 0), None)


_RECORDS = st.lists(
    st.builds(
        Given,
        st.sampled_from(["a", "b"]),
        st.none() | st.integers(0, 9),
        st.none() | st.integers(0, 9),
        st.integers(0, 9),
        st.booleans(),
    )
)


@over(_RECORDS)
def test_every_record_is_counted_once_in_any_order(records: list[Given]) -> None:
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
        Given("q", numbers["p50_ms"], numbers["p90_ms"], numbers["waited_ms"])
    assert raised.value.field == field
