"""Pauses, and what a server says of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.domain.backoff import FullJitter, retry_after_s
from tests.kube.worlds import START


@given(st.integers(1, 10**6), st.floats(0, 1, exclude_max=True))
def test_a_pause_is_between_nothing_and_a_ceiling_that_doubles_up_to_the_cap(
    failures: int, jitter: float
) -> None:
    pause = FullJitter(base_s=1, cap_s=30).pause_s(failures, jitter)
    assert pause == pytest.approx(jitter * min(30, 2 ** min(failures - 1, 10)))


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1", 1),
        ("120", 120),
        ("Mon, 05 Jan 2026 08:00:30 GMT", 30),
        ("Mon, 05 Jan 2026 07:59:30 GMT", None),
        ("Mon, 05 Jan 99999 08:00:30 GMT", None),
        (None, None),
        ("1.5", None),
        ("٣", None),
        ("0", None),
        ("9" * 5000, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str | None, seconds: float | None) -> None:
    assert retry_after_s(value, START) == seconds
