"""A week by hand: what jobs held of whole GPUs on its days, as usage lines and as the waste ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import pandas as pd

from gpucost.domain.buckets import HOLDER_OF_BUCKET, Bucket
from gpucost.domain.rates import Rate
from gpucost.domain.time import DAY_MS, HOUR_MS
from gpucost.reports.base.values import CostAmount
from gpucost.reports.digest.week_builder import WeekInputs, scope_of
from gpucost.reports.digest.week_model import IsoWeek
from gpucost.reports.month.inputs import WindowFacts
from gpucost.reports.waste.waste_report import WasteAssessment, WasteInputs
from tests.reports.builders import H100, START_MS, frame, row, windows
from tests.reports.waste_builders import part, waste_frame

WEEK = IsoWeek(2026, 43)
WEEK_START_MS = WEEK.window.start_ms
_FIRST_DAY = (WEEK_START_MS - START_MS) // DAY_MS


@dataclass(frozen=True)
class Use:
    """``hours`` of a GPU in bucket ``waste`` on ``day`` (0 Monday); ``busy`` None: not observed."""

    waste: str
    hours: float
    day: int = 0
    team: str = "nlp"
    job: str = "train"
    bucket: str = "held"
    rate: Rate | None = H100
    busy: float | None = None


USES = (
    Use("productive", 50, busy=0.8),
    Use("idle", 10, day=1, busy=0.0),
    Use("unknown", 4, day=2, job="eval"),
    Use("productive", 20, day=1, team="vision", job="seg"),
    Use("oversized", 5, day=6, team="vision", job="seg"),
    Use("fragmented", 7, day=3, bucket="unallocated"),
    Use("no_demand", 3, day=3, bucket="unallocated"),
    Use("unavailable", 1, day=5, bucket="unavailable"),
)
"""100 hours of capacity: nlp held 64 (10 idle, 4 unknown), vision 25 (5 oversized); 23 hours are wasted."""


def usage(uses: Sequence[Use]) -> pd.DataFrame:
    return frame([_line(use) for use in uses])


def _line(use: Use) -> dict[str, Any]:
    names = _names(use)
    seen = None if use.busy is None else use.hours
    return row(use.hours, use.rate, seen=seen, busy=use.busy, bucket=use.bucket, **names)


def _names(use: Use) -> dict[str, str]:
    nobody = HOLDER_OF_BUCKET.get(Bucket(use.bucket))
    return {"team": nobody} if nobody else {"team": use.team, "namespace": use.team, "job": use.job}


def wasted(uses: Sequence[Use]) -> pd.DataFrame:
    rows = [
        part(use.waste, use.hours, use.rate, day=_FIRST_DAY + use.day, bucket=use.bucket, **_names(use))
        for use in uses
        if use.bucket != "overcommitted"
    ]
    return waste_frame(rows)


def week_windows(days: int = 7, **changes: Any) -> tuple[WindowFacts, ...]:
    return windows(days=days, start_ms=WEEK_START_MS, **changes)


def before_windows(days: int = 7) -> tuple[WindowFacts, ...]:
    return windows(days=days, start_ms=WEEK_START_MS - 7 * DAY_MS)


def by_hand(uses: Sequence[Use]) -> CostAmount:
    """Hours times price, without gpucost's sums. For whole multiples of the price only."""
    ms = sum(Fraction(use.hours) * HOUR_MS for use in uses)
    priced = [use for use in uses if use.rate is not None]
    nano = sum(
        use.rate.nano_per_board_hour * int(Fraction(use.hours) * HOUR_MS) // HOUR_MS
        for use in priced
        if use.rate
    )
    unpriced = sum(Fraction(use.hours) * HOUR_MS for use in uses if use.rate is None)
    return CostAmount(int(ms), nano if priced or not uses else None, int(unpriced))


def week_inputs(
    uses: Sequence[Use] = USES, before: Sequence[Use] = USES, team: str = "", **changes: Any
) -> WeekInputs:
    """As the service would read it: for a team only what it held."""
    if team:
        uses, before = (
            [use for use in each if (use.team, use.bucket) == (team, "held")] for each in (uses, before)
        )
    capacity = by_hand([use for use in uses if use.bucket != "overcommitted"])
    waste = WasteInputs(
        WEEK.window,
        "USD",
        wasted(uses),
        None if team else capacity,
        WasteAssessment(7, 0, 0),
        (),
        scope_of(team),
    )
    if "findings" in changes:
        waste = replace(waste, findings=changes.pop("findings"))
    inputs = WeekInputs(
        week=WEEK,
        team=team,
        currency="USD",
        code_version="1.0",
        lines=usage(uses),
        previous=usage(before),
        windows=week_windows(),
        previous_windows=before_windows(),
        waste=waste,
    )
    return replace(inputs, **changes)
