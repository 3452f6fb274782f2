"""Where capacity went in a month, and what to do first: the waste ledger as a report.

Every GPU-hour is in one bucket (domain.buckets), so the buckets add up to capacity; the difference is printed
and must be 0. A report for some teams (its scope) is of their held time only: time that no pod held belongs
to no team.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import pandas as pd

from gpucost.domain.buckets import ORDER, Bucket, Waste
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import Window, iso
from gpucost.reports.base.values import (
    NOTHING,
    STEP,
    CostAmount,
    UsageSignal,
    costliest_first,
    ratio,
)
from gpucost.reports.waste.recommendations import (
    PATTERN_OF_HELD_WASTE,
    KnownFinding,
    Recommendation,
    page_of,
    pattern_of,
    to_do,
)

WASTE_DIMS = ("cluster", "bucket", "team", "namespace", "job_kind", "job", "job_uid")
AmountsByKey: TypeAlias = dict[tuple[Any, ...], CostAmount]
WASTE_MEASURES = ("board_ms", "nano", "unpriced_ms")
TOP = 10


@dataclass(frozen=True, slots=True)
class WasteRow:
    """One bucket: its time and money, its share of capacity, and whether it could have been of use."""

    waste: str
    amount: CostAmount
    share: Fraction | None
    is_waste: bool


@dataclass(frozen=True, slots=True)
class TeamWaste:
    """What a team held, by bucket; ``wasted`` is the part that is waste, ``share`` of what the team held;
    ``unknown`` may contain more."""

    team: str
    held: CostAmount
    wasted: CostAmount
    share: Fraction | None
    unknown: CostAmount
    buckets: tuple[WasteRow, ...]


@dataclass(frozen=True, slots=True)
class DayWaste:
    """One day and bucket: the trend."""

    day: str
    waste: str
    amount: CostAmount


@dataclass(frozen=True, slots=True)
class JobWaste:
    """What one job wasted in one bucket, and the finding about it, where one is still known."""

    cluster: str
    namespace: str
    job_kind: str
    job: str
    job_uid: str
    team: str
    waste: str
    amount: CostAmount
    finding: int | None


@dataclass(frozen=True, slots=True)
class CauseRow:
    """What one bucket of waste cost one team, and the page of the detector that finds it. ``team`` is empty
    for time that no pod held."""

    waste: str
    team: str
    amount: CostAmount
    documentation: str


@dataclass(frozen=True, slots=True)
class UnknownParts:
    """Where the unknown time is: the hardware was not observed; it was held, and not measured or not
    assessed; it was free, and no detector has assessed it."""

    unobserved: CostAmount
    held: CostAmount
    free: CostAmount


@dataclass(frozen=True, slots=True)
class WasteAssessment:
    """How many windows the detectors have assessed: finally, provisionally, not at all."""

    final: int
    provisional: int
    missing: int


@dataclass(frozen=True, slots=True)
class WasteReport:
    """The waste ledger of a stretch of time. ``capacity`` was measured apart from it: see Capacity.
    ``not_told`` are buckets of which the sources say nothing: not among ``buckets``, rather than 0.
    ``held_busy`` is how busy all was that was held, None where nobody saw: a bucket says nothing of that."""

    window: Window
    currency: str
    teams_in_scope: tuple[str, ...] | None
    capacity: CostAmount
    difference_board_ms: int
    difference_nano: int
    wasted: CostAmount
    share: Fraction | None
    buckets: tuple[WasteRow, ...]
    unknown: UnknownParts
    causes: tuple[CauseRow, ...]
    teams: tuple[TeamWaste, ...]
    days: tuple[DayWaste, ...]
    jobs: tuple[JobWaste, ...]
    to_do: tuple[Recommendation, ...]
    assessment: WasteAssessment
    not_told: tuple[str, ...]
    held_busy: UsageSignal | None


@dataclass(frozen=True)
class WasteInputs:
    """``lines`` are the waste ledger by WASTE_DIMS, with a step of a day (``step_start_ms``); ``capacity`` is
    what the ledger measured apart from it, None where the reader may not see it. ``findings`` are ongoing.
    ``not_told`` are buckets for which no source has data: they are left out where nothing is in them.
    """

    window: Window
    currency: str
    lines: pd.DataFrame
    capacity: CostAmount | None
    assessment: WasteAssessment
    findings: Sequence[KnownFinding] = ()
    scope: Scope = EVERYTHING
    not_told: Collection[Waste] = ()
    held_busy: UsageSignal | None = None


def build_waste(inputs: WasteInputs, *, top: int = TOP) -> WasteReport:
    """The report; the same for any order of rows."""
    lines = inputs.lines
    by_bucket = _amounts(lines, ["waste"])
    total = sum(by_bucket.values(), NOTHING)
    capacity = total if inputs.capacity is None else inputs.capacity
    wasted = _wasted(by_bucket)
    not_told = _not_told(inputs.not_told, by_bucket)
    return WasteReport(
        window=inputs.window,
        currency=inputs.currency,
        teams_in_scope=None if inputs.scope.teams is None else tuple(sorted(inputs.scope.teams)),
        capacity=capacity,
        difference_board_ms=capacity.board_ms - total.board_ms,
        difference_nano=(capacity.nano or 0) - (total.nano or 0),
        wasted=wasted,
        share=ratio(wasted.board_ms, capacity.board_ms),
        buckets=_rows(by_bucket, capacity, [each for each in Waste if each.value not in not_told]),
        unknown=_unknown(lines),
        causes=_causes(lines),
        teams=_teams(lines),
        days=_days(lines),
        jobs=wasteful_jobs(lines, inputs.findings)[:top],
        to_do=to_do(inputs.findings, inputs.scope)[:top],
        assessment=inputs.assessment,
        not_told=not_told,
        held_busy=inputs.held_busy,
    )


_OF_USE = (Waste.IDLE, Waste.OVERSIZED, Waste.PRODUCTIVE)


def _not_told(by_sources: Collection[Waste], by_bucket: AmountsByKey) -> tuple[str, ...]:
    """Buckets that are empty because no source has data for them; where no use was observed at all, those of
    use too."""

    def is_empty(waste: Waste) -> bool:
        return not by_bucket.get((waste.value,), NOTHING).board_ms

    blind = _OF_USE if by_sources and all(map(is_empty, _OF_USE)) else ()
    return tuple(sorted(each.value for each in {*by_sources, *blind} if is_empty(each)))


def _amounts(lines: pd.DataFrame, keys: list[str]) -> AmountsByKey:
    """Sums by the values of ``keys``."""
    if lines.empty:
        return {}
    sums = lines.groupby(keys, observed=True)[list(WASTE_MEASURES)].sum(min_count=1)
    columns = (sums[measure].astype("object").tolist() for measure in WASTE_MEASURES)
    return {
        (key if isinstance(key, tuple) else (key,)): CostAmount(
            board, None if pd.isna(nano) else nano, unpriced
        )
        for key, board, nano, unpriced in zip(sums.index.tolist(), *columns, strict=True)
    }


def _wasted(by_bucket: AmountsByKey) -> CostAmount:
    return sum((amount for (name,), amount in by_bucket.items() if Waste(name).is_waste), NOTHING)


def _rows(
    by_bucket: AmountsByKey, whole: CostAmount, buckets: Sequence[Waste] = tuple(Waste)
) -> tuple[WasteRow, ...]:
    return tuple(
        WasteRow(
            waste.value,
            amount := by_bucket.get((waste.value,), NOTHING),
            ratio(amount.board_ms, whole.board_ms),
            waste.is_waste,
        )
        for waste in buckets
    )


NEVER_HELD = frozenset({Waste.STARVED, Waste.STRANDED, Waste.FRAGMENTED, Waste.NO_DEMAND})
"""Buckets of time that no pod held: a report for some teams does not have them."""
_OF_HELD = tuple(waste for waste in Waste if waste not in NEVER_HELD)


def held_rows(held: pd.DataFrame) -> tuple[WasteRow, ...]:
    """Lines of held time by bucket, with shares of it; the buckets of time that no pod held are left out."""
    by_bucket = _amounts(held, ["waste"])
    return _rows(by_bucket, sum(by_bucket.values(), NOTHING), _OF_HELD)


def _teams(lines: pd.DataFrame) -> tuple[TeamWaste, ...]:
    held = lines[lines["bucket"] == Bucket.HELD]
    rows = []
    for team, part in held.groupby("team", observed=True):
        buckets = held_rows(part)
        whole = sum((row.amount for row in buckets), NOTHING)
        wasted = sum((row.amount for row in buckets if row.is_waste), NOTHING)
        unknown = next(row.amount for row in buckets if row.waste == Waste.UNKNOWN)
        share = ratio(wasted.board_ms, whole.board_ms)
        rows.append(TeamWaste(str(team), whole, wasted, share, unknown, buckets))
    return tuple(sorted(rows, key=lambda row: costliest_first(row.wasted, row.team)))


def _days(lines: pd.DataFrame) -> tuple[DayWaste, ...]:
    if STEP not in lines.columns:
        return ()
    found = _amounts(lines, [STEP, "waste"])
    days = [DayWaste(iso(start)[:10], waste, amount) for (start, waste), amount in found.items()]
    return tuple(sorted(days, key=lambda day: (day.day, ORDER[Waste(day.waste)])))


def _unknown(lines: pd.DataFrame) -> UnknownParts:
    found = _amounts(lines[lines["waste"] == Waste.UNKNOWN], ["bucket"])
    held = found.pop((Bucket.HELD.value,), NOTHING)
    free = found.pop((Bucket.UNALLOCATED.value,), NOTHING)
    return UnknownParts(sum(found.values(), NOTHING), held, free)


def _causes(lines: pd.DataFrame) -> tuple[CauseRow, ...]:
    """Every bucket of waste by who held it, the most expensive first; they add up to what was wasted."""
    held = lines["bucket"] == Bucket.HELD
    rows = [
        CauseRow(waste, team, amount, page_of(pattern_of(Waste(waste), is_held=True)))
        for (waste, team), amount in _amounts(lines[held], ["waste", "team"]).items()
        if Waste(waste).is_waste
    ]
    rows += [
        CauseRow(waste, "", amount, page_of(pattern_of(Waste(waste), is_held=False)))
        for (waste,), amount in _amounts(lines[~held], ["waste"]).items()
        if Waste(waste).is_waste
    ]
    with_time = [row for row in rows if row.amount.board_ms]
    return tuple(sorted(with_time, key=lambda row: costliest_first(row.amount, (row.waste, row.team))))


_JOB = ["cluster", "namespace", "job_kind", "job", "job_uid", "team"]


def wasteful_jobs(lines: pd.DataFrame, findings: Sequence[KnownFinding]) -> tuple[JobWaste, ...]:
    """Every job by bucket of waste, the costliest first. ``lines`` are those of WasteInputs."""
    wasteful = [waste.value for waste in PATTERN_OF_HELD_WASTE]
    held = lines[(lines["bucket"] == Bucket.HELD) & lines["waste"].isin(wasteful)]
    known = {(each.finding.draft.subject.uid, each.finding.draft.pattern): each.id for each in findings}
    rows = []
    for key, amount in _amounts(held, [*_JOB, "waste"]).items():
        cluster, namespace, job_kind, job, uid, team, waste = key
        finding = known.get((uid, PATTERN_OF_HELD_WASTE[Waste(waste)]))
        rows.append(JobWaste(cluster, namespace, job_kind, job, uid, team, waste, amount, finding))
    return tuple(sorted(rows, key=lambda row: costliest_first(row.amount, (row.job_uid, row.waste))))
