"""What a job wasted, by the waste ledger, and what was found about it, with the change to make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import pandas as pd

from gpucost.domain.holders import Bucket
from gpucost.domain.time import iso
from gpucost.reports.values import NOTHING, Amount, ratio
from gpucost.reports.waste import Assessment, KnownFinding, WasteRow, held_rows


@dataclass(frozen=True, slots=True)
class JobAccount:
    """Where the time that the job held went: ``buckets`` add up to what it held, those of nobody's time left
    out. ``wasted`` could have been somebody else's; ``assessment`` says how much of it was looked at."""

    wasted: Amount
    share: Fraction | None
    buckets: tuple[WasteRow, ...]
    assessment: Assessment


@dataclass(frozen=True, slots=True)
class JobFinding:
    """A finding about the job, and the exact change to make. ``until`` is None while it goes on. ``wasted``
    is that of the last day of it; a part that is not ``counted`` is a view, in no sum."""

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
    wasted: Amount
    counted: bool


def account(lines: pd.DataFrame, assessment: Assessment) -> JobAccount:
    """``lines`` are the waste ledger of one job, with ``bucket`` among their dimensions."""
    rows = held_rows(lines[lines["bucket"] == Bucket.HELD])
    held = sum((row.amount.board_ms for row in rows), 0)
    wasted = sum((row.amount for row in rows if row.is_waste), NOTHING)
    return JobAccount(wasted, ratio(wasted.board_ms, held), rows, assessment)


def findings_about(known: Sequence[KnownFinding]) -> tuple[JobFinding, ...]:
    """The most important first: what goes on before what is over, then by severity, then the dearest."""
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
    return tuple(_about(each) for each in ranked)


def _goes_on(known: KnownFinding) -> bool:
    return known.finding.goes_on and known.state != "resolved"


def _about(known: KnownFinding) -> JobFinding:
    finding, draft = known.finding, known.finding.draft
    return JobFinding(
        finding=known.id,
        pattern=draft.pattern.value,
        variant=draft.variant,
        severity=finding.severity.value,
        state=known.state,
        since=iso(known.since_ms),
        until=None if draft.ended_ms is None else iso(draft.ended_ms),
        summary=draft.summary,
        formula=draft.formula,
        action=draft.action.text,
        patch=draft.action.patch,
        wasted=Amount(finding.wasted.board_ms, finding.wasted.nano),
        counted=finding.wasted.counted,
    )
