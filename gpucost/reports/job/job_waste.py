"""What a job wasted, by the waste ledger, and the findings about it, with the change to make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import pandas as pd

from gpucost.domain.buckets import Bucket, Waste
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import Window, iso
from gpucost.reports.base.values import NOTHING, CostAmount, ratio
from gpucost.reports.waste.recommendations import (
    KnownFinding,
    page_of,
    patterns_of,
    view_for,
)
from gpucost.reports.waste.waste_report import WasteAssessment, WasteRow, held_rows


@dataclass(frozen=True, slots=True)
class JobAccount:
    """Where the time that the job held went: ``buckets`` add up to what it held; those of time without a
    holder are left out. ``wasted`` could have been of use to others; ``assessment`` says how much of it was
    assessed.
    """

    wasted: CostAmount
    share: Fraction | None
    buckets: tuple[WasteRow, ...]
    assessment: WasteAssessment


@dataclass(frozen=True, slots=True)
class JobFinding:
    """A finding about the job, and the exact change to make. ``until`` is None while it is ongoing; of a
    resolved one it is the end that was observed, or else when it was resolved. ``wasted`` is that of its last
    day; one that is not ``counted`` is a view, in no sum.
    """

    finding: int
    pattern: str
    variant: str
    severity: str
    state: str
    since: str
    until: str | None
    summary: str
    formula: str
    action: str
    patch: str
    wasted: CostAmount
    counted: bool


@dataclass(frozen=True, slots=True)
class JobObservation:
    """What a detector says of the job when it is run again on the job's time: as JobFinding, without a
    lifecycle. ``wasted`` is all of the job's own time in it, within what was assessed."""

    pattern: str
    variant: str
    severity: str
    since: str
    until: str | None
    summary: str
    formula: str
    action: str
    patch: str
    wasted: CostAmount
    counted: bool


@dataclass(frozen=True, slots=True)
class JobPatternAbsence:
    """Why a detector has no finding about the job: ``because`` completes "not found, because …"."""

    pattern: str
    because: str


@dataclass(frozen=True, slots=True)
class JobDetectionView:
    """All detectors on the time of the job as the source still has it: ``spans`` were assessed, at most three
    days; ``notes`` say why not more. None of it is in the ledger."""

    spans: tuple[Window, ...]
    findings: tuple[JobObservation, ...]
    withheld: tuple[JobPatternAbsence, ...]
    notes: tuple[str, ...]


def account(lines: pd.DataFrame, assessment: WasteAssessment) -> JobAccount:
    """``lines`` are the waste ledger of one job, with ``bucket`` among their dimensions."""
    rows = held_rows(lines[lines["bucket"] == Bucket.HELD])
    held = sum((row.amount.board_ms for row in rows), 0)
    wasted = sum((row.amount for row in rows if row.is_waste), NOTHING)
    return JobAccount(wasted, ratio(wasted.board_ms, held), rows, assessment)


def unexplained(
    account: JobAccount, findings: Sequence[JobFinding | JobObservation]
) -> tuple[tuple[WasteRow, tuple[str, ...]], ...]:
    """The buckets of waste that none of ``findings`` explains, each with the pages of the detectors that
    claim it."""
    said = {each.pattern for each in findings}
    rows = []
    for row in account.buckets:
        patterns = patterns_of(Waste(row.waste))[:1]
        if row.is_waste and row.amount.board_ms and not said.intersection(patterns):
            rows.append((row, tuple(map(page_of, patterns))))
    return tuple(rows)


def findings_about(known: Sequence[KnownFinding], scope: Scope = EVERYTHING) -> tuple[JobFinding, ...]:
    """The most important first: ongoing ones before resolved ones, then by severity, then by cost."""
    ranked = sorted(
        known,
        key=lambda each: (
            not _goes_on(each),
            -each.finding.severity.rank,
            -(each.finding.wasted.nano or 0),
            -each.finding.wasted.board_ms,
            each.id,
        ),
    )
    return tuple(_about(each, scope) for each in ranked)


def _goes_on(known: KnownFinding) -> bool:
    return known.finding.goes_on and known.state != "resolved"


def _about(known: KnownFinding, scope: Scope) -> JobFinding:
    finding, draft = known.finding, known.finding.draft
    words = view_for(draft, scope)
    ended_ms = known.closed_at_ms if draft.ended_ms is None else draft.ended_ms
    return JobFinding(
        finding=known.id,
        pattern=draft.pattern.value,
        variant=draft.variant,
        severity=finding.severity.value,
        state=known.state,
        since=iso(known.since_ms),
        until=None if ended_ms is None else iso(ended_ms),
        summary=words.summary,
        formula=draft.formula,
        action=words.action.text,
        patch=words.action.patch,
        wasted=CostAmount(finding.wasted.board_ms, finding.wasted.nano),
        counted=finding.wasted.counted,
    )
