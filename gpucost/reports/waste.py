"""Where capacity went in a month, and what to do first: the waste ledger as a report.

Every GPU-hour is in one bucket (domain.waste), so the buckets add up to capacity; the difference is printed
and must be 0. A report for some teams (its scope) is of their held time only: what nobody held is nobody's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import pandas as pd

from gpucost.detectors.findings import Finding, Pattern
from gpucost.domain.holders import Bucket
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import Window, iso
from gpucost.domain.waste import ORDER, Waste
from gpucost.reports.values import NOTHING, STEP, Amount, costliest_first, ratio

WASTE_DIMS = ("cluster", "bucket", "team", "namespace", "job_kind", "job", "job_uid")
Amounts: TypeAlias = dict[tuple[Any, ...], Amount]
WASTE_MEASURES = ("board_ms", "nano", "unpriced_ms")
TOP = 10
MONTH_HOURS = 730
"""Of a month on average: what a finding would cost if it went on."""


@dataclass(frozen=True, slots=True)
class WasteRow:
    """One bucket: its time and money, its share of capacity, and whether somebody could have had it back."""

    waste: str
    amount: Amount
    share: Fraction | None
    is_waste: bool


@dataclass(frozen=True, slots=True)
class TeamWaste:
    """What a team held, by bucket; ``wasted`` is the part that is waste, ``share`` of what the team held."""

    team: str
    held: Amount
    wasted: Amount
    share: Fraction | None
    buckets: tuple[WasteRow, ...]


@dataclass(frozen=True, slots=True)
class DayWaste:
    """One day and bucket: the trend."""

    day: str
    waste: str
    amount: Amount


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
    amount: Amount
    finding: int | None


@dataclass(frozen=True, slots=True)
class ToDo:
    """A finding that goes on: what it costs, what to do, and what comes back. ``monthly_nano`` is what it
    would cost in a month (730 h) at its rate of now; None where there is no price, or no rate."""

    finding: int
    pattern: str
    severity: str
    state: str
    team: str
    subject: str
    since: str
    summary: str
    action: str
    patch: str
    wasted: Amount
    counted: bool
    monthly_nano: int | None


@dataclass(frozen=True, slots=True)
class Assessment:
    """How many windows the detectors have looked at: for good, for now, not at all."""

    final: int
    provisional: int
    missing: int


@dataclass(frozen=True, slots=True)
class WasteReport:
    """The waste ledger of a stretch of time. ``capacity`` was measured apart from it: see Capacity."""

    window: Window
    currency: str
    teams_in_scope: tuple[str, ...] | None
    capacity: Amount
    difference_board_ms: int
    difference_nano: int
    wasted: Amount
    share: Fraction | None
    buckets: tuple[WasteRow, ...]
    teams: tuple[TeamWaste, ...]
    days: tuple[DayWaste, ...]
    jobs: tuple[JobWaste, ...]
    to_do: tuple[ToDo, ...]
    assessment: Assessment


@dataclass(frozen=True, slots=True)
class KnownFinding:
    """A finding of the ledger: its number, its state, and what it says."""

    id: int
    state: str
    finding: Finding
    since_ms: int


@dataclass(frozen=True)
class WasteInputs:
    """``lines`` are the waste ledger by WASTE_DIMS, with a step of a day (``step_start_ms``); ``capacity`` is
    what the ledger measured apart from it, None where the reader may not know. ``findings`` go on.
    """

    window: Window
    currency: str
    lines: pd.DataFrame
    capacity: Amount | None
    assessment: Assessment
    findings: Sequence[KnownFinding] = ()
    scope: Scope = EVERYTHING


def build_waste(inputs: WasteInputs, *, top: int = TOP) -> WasteReport:
    """The report; the same for any order of rows."""
    lines = inputs.lines
    by_bucket = _amounts(lines, ["waste"])
    total = sum(by_bucket.values(), NOTHING)
    capacity = total if inputs.capacity is None else inputs.capacity
    wasted = _wasted(by_bucket)
    return WasteReport(
        window=inputs.window,
        currency=inputs.currency,
        teams_in_scope=None if inputs.scope.teams is None else tuple(sorted(inputs.scope.teams)),
        capacity=capacity,
        difference_board_ms=capacity.board_ms - total.board_ms,
        difference_nano=(capacity.nano or 0) - (total.nano or 0),
        wasted=wasted,
        share=ratio(wasted.board_ms, capacity.board_ms),
        buckets=_rows(by_bucket, capacity),
        teams=_teams(lines),
        days=_days(lines),
        jobs=_jobs(lines, inputs.findings, top),
        to_do=to_do(inputs.findings)[:top],
        assessment=inputs.assessment,
    )


def to_do(findings: Sequence[KnownFinding]) -> tuple[ToDo, ...]:
    """Findings by the money that comes back, then by what they wasted."""
    rows = [_to_do(each) for each in findings if each.finding.goes_on]
    return tuple(
        sorted(
            rows,
            key=lambda row: (
                -(row.monthly_nano or 0),
                -(row.wasted.nano or 0),
                -row.wasted.board_ms,
                row.finding,
            ),
        )
    )


def _to_do(known: KnownFinding) -> ToDo:
    finding, draft = known.finding, known.finding.draft
    hourly = finding.nano_per_hour if finding.boards_now > 0 else None
    return ToDo(
        finding=known.id,
        pattern=draft.pattern.value,
        severity=finding.severity.value,
        state=known.state,
        team=draft.team,
        subject=str(draft.subject),
        since=iso(known.since_ms),
        summary=draft.summary,
        action=draft.action.text,
        patch=draft.action.patch,
        wasted=Amount(finding.wasted.board_ms, finding.wasted.nano),
        counted=finding.wasted.counted,
        monthly_nano=None if hourly is None else hourly * MONTH_HOURS,
    )


def _amounts(lines: pd.DataFrame, keys: list[str]) -> Amounts:
    """Sums by the values of ``keys``."""
    if lines.empty:
        return {}
    sums = lines.groupby(keys, observed=True)[list(WASTE_MEASURES)].sum(min_count=1)
    columns = (sums[measure].astype("object").tolist() for measure in WASTE_MEASURES)
    return {
        (key if isinstance(key, tuple) else (key,)): Amount(board, None if pd.isna(nano) else nano, unpriced)
        for key, board, nano, unpriced in zip(sums.index.tolist(), *columns, strict=True)
    }


def _wasted(by_bucket: Amounts) -> Amount:
    return sum((amount for (name,), amount in by_bucket.items() if Waste(name).is_waste), NOTHING)


def _rows(by_bucket: Amounts, whole: Amount, buckets: Sequence[Waste] = tuple(Waste)) -> tuple[WasteRow, ...]:
    return tuple(
        WasteRow(
            waste.value,
            amount := by_bucket.get((waste.value,), NOTHING),
            ratio(amount.board_ms, whole.board_ms),
            waste.is_waste,
        )
        for waste in buckets
    )


_OF_HELD = tuple(waste for waste in Waste if waste not in (Waste.STARVED, Waste.FRAGMENTED, Waste.NO_DEMAND))


def held_rows(held: pd.DataFrame) -> tuple[WasteRow, ...]:
    """Lines of held time by bucket, with shares of it; the buckets of what nobody held are left out."""
    by_bucket = _amounts(held, ["waste"])
    return _rows(by_bucket, sum(by_bucket.values(), NOTHING), _OF_HELD)


def _teams(lines: pd.DataFrame) -> tuple[TeamWaste, ...]:
    held = lines[lines["bucket"] == Bucket.HELD]
    rows = []
    for team, part in held.groupby("team", observed=True):
        buckets = held_rows(part)
        whole = sum((row.amount for row in buckets), NOTHING)
        wasted = sum((row.amount for row in buckets if row.is_waste), NOTHING)
        rows.append(TeamWaste(str(team), whole, wasted, ratio(wasted.board_ms, whole.board_ms), buckets))
    return tuple(sorted(rows, key=lambda row: costliest_first(row.wasted, row.team)))


def _days(lines: pd.DataFrame) -> tuple[DayWaste, ...]:
    if STEP not in lines.columns:
        return ()
    found = _amounts(lines, [STEP, "waste"])
    days = [DayWaste(iso(start)[:10], waste, amount) for (start, waste), amount in found.items()]
    return tuple(sorted(days, key=lambda day: (day.day, ORDER[Waste(day.waste)])))


_PATTERNS = {
    Waste.IDLE: (Pattern.IDLE_ALLOCATION,),
    Waste.OVERSIZED: (Pattern.OVERSIZED_REQUEST,),
    Waste.GANG_STALL: (Pattern.GANG_STALL,),
    Waste.PREEMPTED: (Pattern.PREEMPTION_WASTE,),
    Waste.UNAVAILABLE: (Pattern.UNHEALTHY_ALLOCATED,),
}
_JOB = ["cluster", "namespace", "job_kind", "job", "job_uid", "team"]


def _jobs(lines: pd.DataFrame, findings: Sequence[KnownFinding], top: int) -> tuple[JobWaste, ...]:
    """The costliest job and bucket first."""
    wasteful = [waste.value for waste in _PATTERNS]
    held = lines[(lines["bucket"] == Bucket.HELD) & lines["waste"].isin(wasteful)]
    known = {(each.finding.draft.subject.uid, each.finding.draft.pattern): each.id for each in findings}
    rows = []
    for key, amount in _amounts(held, [*_JOB, "waste"]).items():
        cluster, namespace, job_kind, job, uid, team, waste = key
        about = (known.get((uid, pattern)) for pattern in _PATTERNS[Waste(waste)])
        finding = next(filter(None, about), None)
        rows.append(JobWaste(cluster, namespace, job_kind, job, uid, team, waste, amount, finding))
    return tuple(sorted(rows, key=lambda row: costliest_first(row.amount, (row.job_uid, row.waste)))[:top])
