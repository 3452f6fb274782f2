"""What findings are worth: by hand, that nothing counts twice, and that it adds up to the change."""

from __future__ import annotations

from fractions import Fraction

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.domain.money import NANO
from gpucost.domain.time import DAY_MS, HOUR_MS
from gpucost.reports.base.values import CostAmount
from gpucost.reports.month.change_causes import SpanLines, SpanTime
from gpucost.reports.month.savings_report import MeasuredSaving, OpenClaim, measured_saving, possible_savings
from tests.reports.builders import START_MS, frame, row

SERVES, ENDS = ("Deployment",), ("Job",)


def lines(*rows: dict[str, object], days: int = 28, seen: int | None = None) -> SpanLines:
    """Lines of a span of ``days``, of which ``seen`` hours were observed."""
    length_ms = days * DAY_MS
    observed = {} if seen is None else {"east": seen * HOUR_MS}
    return SpanLines(frame(list(rows)), SpanTime(length_ms, {}, observed))


def run(hours: int, price: int = 4, uid: str = "u", days: int = 28, **more: object) -> dict[str, object]:
    """A run that was there all the time."""
    found = row(hours, cluster="east", team="vision", namespace="ml", job="server", job_uid=uid, model="H100")
    found |= {"nano": price * hours * NANO, "unpriced_ms": 0, "first_ms": START_MS}
    return found | {"last_ms": START_MS + days * DAY_MS} | more


BARE: dict[str, object] = {"nano": None, "unpriced_ms": 672 * HOUR_MS}


def saving(before: SpanLines, now: SpanLines, kinds: tuple[str, ...] = SERVES) -> MeasuredSaving:
    found = measured_saving(MeasuredSaving((1,), "ml/server", "east", "vision", 0, "ann"), before, now, kinds)
    change = (found.now.nano or 0) - (found.before.nano or 0)
    assert change == sum(each.nano for each in found.others) - found.saved_nano
    return found


def test_fewer_gpus_are_saved_and_a_price_that_fell_is_not() -> None:
    """Five GPUs at 4 for 28 days, two at 3 since: three GPUs at the price of before."""
    found = saving(lines(run(5 * 672)), lines(run(2 * 672, 3)))
    assert found.saved_nano == 3 * 672 * 4 * NANO
    assert [(each.kind, each.nano) for each in found.others] == [("price", -2 * 672 * NANO)]


def test_a_server_that_is_gone_saved_what_it_would_have_cost_since() -> None:
    """28 days, of which half an hour in 21 was not observed, and 14 days since."""
    found = saving(lines(run(640), seen=640), lines(days=14))
    assert found.saved_nano == 336 * 4 * NANO
    assert {each.kind for each in found.others} == {"span", "missing_data"}
    assert found.observed_before == Fraction(640, 672)


@pytest.mark.parametrize(
    ("before", "now", "kinds", "why"),
    [
        ([run(672)], [], ENDS, "no such job ran since"),
        ([], [run(672)], SERVES, "held nothing in the days before"),
        ([run(672)], [run(672, team="nlp")], SERVES, "another team holds such jobs since"),
        ([run(672, **BARE)], [], SERVES, "parts of it have no price"),
        ([run(672), run(672, uid="v", **BARE)], [], SERVES, "parts of it have no price"),
        ([run(1344, **BARE)], [run(672, **BARE)], SERVES, "parts of it have no price"),
    ],
)
def test_what_no_action_explains_is_not_claimed(
    before: list[dict[str, object]], now: list[dict[str, object]], kinds: tuple[str, ...], why: str
) -> None:
    found = saving(lines(*before), lines(*now), kinds)
    assert found.saved_nano == 0
    assert why in found.why_not


def test_fewer_runs_and_less_telemetry_are_not_claimed() -> None:
    often = [run(10, uid=f"u{n}", days=1) for n in range(8)]
    assert saving(lines(*often), lines(*often[:4]), ENDS).saved_nano == 0
    assert saving(lines(run(672), seen=672), lines(run(336), seen=336)).saved_nano == 0


RUNS = st.lists(
    st.builds(
        run,
        st.integers(1, 2_000),
        st.integers(0, 9),
        uid=st.sampled_from(("a", "b", "c")),
        days=st.integers(1, 28),
        team=st.sampled_from(("vision", "vision", "nlp")),
    ),
    max_size=4,
)


@given(RUNS, RUNS, st.integers(300, 672), st.sampled_from((SERVES, ENDS)))
def test_saved_and_all_other_causes_are_the_change(
    before: list[dict[str, object]], now: list[dict[str, object]], seen: int, kinds: tuple[str, ...]
) -> None:
    """To the nano-unit, which ``saving`` asserts; and what holds more than before saved nothing."""
    found = saving(lines(*before, seen=seen), lines(*now, days=14, seen=seen // 2), kinds)
    if not found.before.board_ms:
        assert found.saved_nano == 0


def test_a_gpu_hour_that_two_findings_claim_counts_once() -> None:
    rows = pd.DataFrame(
        [
            ("east", "held", "vision", "n1", "u1", "idle", 2 * HOUR_MS, 8 * NANO, 0),
            ("east", "held", "vision", "n1", "u2", "idle", HOUR_MS, 4 * NANO, 0),
            ("east", "unallocated", "", "n2", "", "fragmented", HOUR_MS, 3 * NANO, 0),
            ("west", "unallocated", "", "n2", "", "fragmented", HOUR_MS, 3 * NANO, 0),
        ],
        columns=[
            *("cluster", "bucket", "team", "node", "job_uid", "waste", "board_ms", "nano", "unpriced_ms"),
        ],
    )
    claims = [
        OpenClaim(1, "east", "idle_allocation", "u1"),
        OpenClaim(2, "east", "idle_allocation", "u1"),
        OpenClaim(3, "east", "oversized_request", "u2"),
        OpenClaim(4, "east", "fragmentation", ""),
    ]
    found = possible_savings(rows, claims)
    assert found.amounts == {
        "vision": CostAmount(2 * HOUR_MS, 8 * NANO),
        "": CostAmount(HOUR_MS, 3 * NANO),
    }
    assert found.findings == {"vision": 2, "": 1}
