"""Chunks of samples: what a plain reading of them says, bit by bit; and bytes that no server writes."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucost.telemetry.prometheus.sample_chunks import (
    FUNCTIONS,
    PADDING,
    RangeStatistics,
    SampleRanges,
    SparseStatistics,
)
from tests.support.xor_chunks import MOST_SAMPLES, STALE, message

Sample = tuple[int, float]
T0 = 1_790_812_800_000
HOUR = 3_600_000

values = st.one_of(
    st.floats(width=64),
    st.integers(-3, 3).map(float),
    st.integers(0, 1 << 60).map(float),
    st.sampled_from([0.0, -0.0, 1e16, 1.0, -1e16, 0.1, math.inf, -math.inf, math.nan, STALE]),
)
gaps = st.one_of(st.just(60_000), st.integers(1, 200_000), st.integers(1, 1 << 33), st.just(59_999))
# Most of what is exported stays as it is for long, at one distance.
runs = st.lists(st.tuples(gaps, values, st.sampled_from([1, 1, 2, 3, 29, 64])), min_size=1, max_size=40)
series = runs.map(lambda found: [each[:2] for each in found for _ in range(each[2])])
asked = st.builds(
    SampleRanges,
    st.integers(T0, T0 + HOUR),
    st.sampled_from([1, 60_000, HOUR]),
    st.integers(1, 6),
    st.sampled_from([0, 59_999, 60_000, HOUR - 1, HOUR + 60_000]),
)


def placed(found: Sequence[tuple[int, float]], start: int = T0 - HOUR) -> list[Sample]:
    """Distances to instants."""
    samples, at = [], start
    for gap, value in found:
        at += gap
        samples.append((at, value))
    return samples


def add(statistics: RangeStatistics, messages: Sequence[bytes], rows: Sequence[int]) -> None:
    data = np.frombuffer(b"".join((*messages, bytes(PADDING))), dtype=np.uint8)
    lengths = np.array([len(each) for each in messages], dtype=np.int64)
    ends = np.cumsum(lengths)
    statistics.add(data, ends - lengths, ends, np.array(rows, dtype=np.int64))


def is_stale(value: float) -> bool:
    return struct.pack(">d", value) == struct.pack(">d", STALE)


def told(samples: Sequence[Sample], ranges: SampleRanges, number: int) -> dict[str, float] | None:
    """What PromQL's functions say of the samples in one range, as Prometheus 2.42 works it out."""
    end = ranges.first_ms + number * ranges.step_ms
    inside = [v for at, v in samples if end - ranges.range_ms <= at <= end and not is_stale(v)]
    if not inside:
        return None
    total = rest = 0.0
    most = least = inside[0]
    for value in inside:
        summed = total + value
        if math.isinf(summed):
            rest = 0.0
        elif abs(total) >= abs(value):
            rest += (total - summed) + value
        else:
            rest += (value - summed) + total
        total = summed
        most = value if value > most or math.isnan(most) else most
        least = value if value < least or math.isnan(least) else least
    resets = sum(b < a for a, b in pairwise(inside))
    total = total if math.isinf(total) else total + rest
    return dict(zip(FUNCTIONS, (len(inside), total, most, least, inside[-1], resets), strict=True))


def as_bits(value: float) -> bytes:
    return b"nan" if math.isnan(value) else struct.pack(">d", value)


def same_by_range(one: RangeStatistics, other: RangeStatistics) -> None:
    for function in FUNCTIONS:
        (values, present), (others, also) = one.grid(function), other.grid(function)
        assert present.tolist() == also.tolist()
        assert values[present].tobytes() == others[present].tobytes()
    for place in range(one.ranges.number):
        (found, rows), (expected, same) = one.range_at(place), other.range_at(place)
        assert rows.tolist() == same.tolist()
        assert found.ranges == expected.ranges
        for function in FUNCTIONS:
            assert found.grid(function)[0].tobytes() == expected.grid(function)[0].tobytes()
        assert found.latest(300_000)[1].tolist() == expected.latest(300_000)[1].tolist()


@given(st.lists(series, min_size=1, max_size=3), asked, st.integers(1, 130))
@settings(max_examples=60, deadline=None)
def test_every_function_of_every_range_is_that_of_the_samples(
    found: list[list[tuple[int, float]]], ranges: SampleRanges, cut: int
) -> None:
    every = [placed(one) for one in found]
    statistics, sparse = RangeStatistics(ranges, rows=1), SparseStatistics(ranges, most_dense=1)
    messages, rows = [], []
    for row, samples in enumerate(every):
        for at in range(0, len(samples), cut):
            messages.append(message(samples[at : at + cut]))
            rows.append(row)
    half = len(messages) // 2
    for each in (statistics, sparse):
        add(each, messages[:half], rows[:half])
        add(each, messages[half:], rows[half:])
        assert each.samples == sum(map(len, every))
        each.close(len(every))
    same_by_range(statistics, sparse)
    grids = {function: statistics.grid(function) for function in FUNCTIONS}
    for row, samples in enumerate(every):
        for number in range(ranges.number):
            expected = told(samples, ranges, number)
            for function, (grid, present) in grids.items():
                assert present[row, number] == (expected is not None)
                if expected is not None:
                    assert as_bits(grid[row, number]) == as_bits(expected[function]), function


@pytest.mark.parametrize("ago_ms", [0, 299_999, 300_000, 300_001])
@pytest.mark.parametrize("is_over", [False, True])
def test_the_latest_value_is_that_of_the_last_five_minutes_of_a_series_that_goes_on(
    ago_ms: int, is_over: bool
) -> None:
    samples = [(T0 - ago_ms - 60_000, 7.0), (T0 - ago_ms, STALE if is_over else 8.0)]
    statistics = RangeStatistics(SampleRanges(T0, 1, 1, HOUR))
    add(statistics, [message(samples)], [0])
    (value,), (present,) = (each[0] for each in statistics.latest(300_000))
    assert present == (not is_over and ago_ms < 300_000)
    assert value == (7.0 if is_over else 8.0)


@given(series.map(placed), st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_chunks_are_refused_or_read_and_never_beyond_their_bytes(
    samples: list[Sample], data: st.DataObject
) -> None:
    whole = message(samples)
    bits = data.draw(st.lists(st.integers(0, 8 * len(whole) - 1), max_size=5))
    damaged = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for bit in bits:
        if bit // 8 < len(damaged):
            damaged[bit // 8] ^= 1 << bit % 8
    statistics = RangeStatistics(SampleRanges(T0, 60_000, 3, HOUR))
    with suppress(ValueError):  # any other error, or none at all, would be one
        add(statistics, [bytes(damaged)], [0])
    assert statistics.samples <= 1 << 16


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([message([(T0, 1.0)], kind=2)], "another encoding"),
        ([message([(T0, 1.0)])[:-3]], "ends before"),
        ([message([(T0, 1.0)]), message([(T0, 2.0)])], "one after the other"),
        ([message([(T0, 1.0), (T0 + 5, 1.0)]), message([(T0 + 3, 2.0)])], "one after the other"),
        ([b""], "another encoding"),
    ],
)
def test_what_is_wrong_is_said(messages: list[bytes], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        add(RangeStatistics(SampleRanges(T0, 1, 1, HOUR)), messages, [0] * len(messages))


def test_a_series_that_comes_again_after_others_is_not_what_a_server_sends() -> None:
    statistics = SparseStatistics(SampleRanges(T0, 1, 2, HOUR), most_dense=1)
    add(statistics, [message([(T0, 1.0)]), message([(T0, 2.0)]), message([(T0, 3.0)])], [0, 1, 2])
    with pytest.raises(ValueError, match="one after the other"):
        add(statistics, [message([(T0 + 1, 1.0)])], [1])


def test_a_full_chunk_is_as_long_as_the_server_makes_it() -> None:
    samples = [(T0 + 15_000 * at, at % 7 / 3) for at in range(MOST_SAMPLES)]
    statistics = RangeStatistics(SampleRanges(T0 + HOUR, 1, 1, HOUR))
    add(statistics, [message(samples)], [0])
    assert statistics.grid("count")[0].tolist() == [[MOST_SAMPLES]]
