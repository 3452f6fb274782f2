"""Recommendations: what to do first. Ongoing findings by the money they save, similar ones in one line.

``view_for`` decides what a reader may see of a finding: a reader of some teams does not see the names of
others. ``patterns_of`` and ``page_of`` give the anti-patterns that claim the time of a bucket of the waste
ledger, and their pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpucost.detectors.findings import (
    Finding,
    FindingAction,
    FindingDraft,
    FindingEvidence,
    SubjectKind,
    WastePattern,
)
from gpucost.domain.buckets import Waste
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import iso
from gpucost.reports.base.values import CostAmount


@dataclass(frozen=True, slots=True)
class FindingView:
    """The texts of a finding."""

    summary: str
    evidence: tuple[FindingEvidence, ...]
    action: FindingAction


def view_for(draft: FindingDraft, scope: Scope) -> FindingView:
    """The texts of ``draft`` for a reader with ``scope``: those for its team where the rule has such, since
    the full text may name what other teams run. Labels are never shown."""
    view = None if scope.sees_every_team else draft.team_view
    words = draft if view is None else view
    return FindingView(words.summary, words.evidence, words.action)


_DAY_HOURS = 24


@dataclass(frozen=True, slots=True)
class KnownFinding:
    """A finding of the ledger: its number, its state, its content, and when it was resolved."""

    id: int
    state: str
    finding: Finding
    since_ms: int
    closed_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SimilarFindings:
    """More findings of the same pattern, variant, team and state: their numbers, and what they cost together
    in a day at their current rates; None where none of them has one."""

    findings: tuple[int, ...]
    daily_nano: int | None


@dataclass(frozen=True, slots=True)
class Recommendation:
    """An ongoing finding: what it costs, what to do, and the saving. ``daily_nano`` is what it costs in a day
    at its current rate; None where there is no price, or no rate. ``job_uid`` is empty where it is about no
    job. ``alike`` is None where there is no similar finding.
    """

    finding: int
    pattern: str
    variant: str
    severity: str
    state: str
    team: str
    subject_kind: str
    subject: str
    job_uid: str
    since: str
    summary: str
    action: str
    patch: str
    wasted: CostAmount
    counted: bool
    daily_nano: int | None
    alike: SimilarFindings | None


def to_do(findings: Sequence[KnownFinding], scope: Scope = EVERYTHING) -> tuple[Recommendation, ...]:
    """Findings by the money they save, then by what they wasted; of similar ones the most expensive, which
    names the others."""
    ranked = sorted((each for each in findings if each.finding.goes_on), key=_order)
    groups: dict[tuple[str, ...], list[KnownFinding]] = {}
    for each in ranked:
        draft = each.finding.draft
        # An acknowledged finding must not stand for findings that are not.
        kind = (draft.pattern, draft.variant, draft.team, draft.subject.kind, each.state)
        groups.setdefault(kind, []).append(each)
    return tuple(_to_do(first, others, scope) for first, *others in groups.values())


def daily_nano(finding: Finding) -> int | None:
    """What it costs in a day at its current rate."""
    hourly = finding.nano_per_hour if finding.boards_now > 0 else None
    return None if hourly is None else hourly * _DAY_HOURS


def _order(known: KnownFinding) -> tuple[int, ...]:
    wasted = known.finding.wasted
    return -(daily_nano(known.finding) or 0), -(wasted.nano or 0), -wasted.board_ms, known.id


def _to_do(known: KnownFinding, others: Sequence[KnownFinding], scope: Scope) -> Recommendation:
    finding, draft, words = known.finding, known.finding.draft, view_for(known.finding.draft, scope)
    return Recommendation(
        finding=known.id,
        pattern=draft.pattern.value,
        variant=draft.variant,
        severity=finding.severity.value,
        state=known.state,
        team=draft.team,
        subject_kind=draft.subject.kind.value,
        subject=str(draft.subject),
        job_uid=draft.subject.uid if draft.subject.kind is SubjectKind.JOB else "",
        since=iso(known.since_ms),
        summary=words.summary,
        action=words.action.text,
        patch=words.action.patch,
        wasted=CostAmount(finding.wasted.board_ms, finding.wasted.nano),
        counted=finding.wasted.counted,
        daily_nano=daily_nano(finding),
        alike=_alike(others),
    )


def _alike(others: Sequence[KnownFinding]) -> SimilarFindings | None:
    if not others:
        return None
    costs = [cost for each in others if (cost := daily_nano(each.finding)) is not None]
    return SimilarFindings(tuple(each.id for each in others), sum(costs) if costs else None)


PATTERN_OF_HELD_WASTE: Mapping[Waste, WastePattern] = {
    Waste.UNAVAILABLE: WastePattern.UNHEALTHY_ALLOCATED,
    Waste.GANG_STALL: WastePattern.GANG_STALL,
    Waste.PREEMPTED: WastePattern.PREEMPTION_WASTE,
    Waste.IDLE: WastePattern.IDLE_ALLOCATION,
    Waste.OVERSIZED: WastePattern.OVERSIZED_REQUEST,
}
"""The patterns that claim held time, by bucket."""
PATTERN_OF_UNHELD_WASTE: Mapping[Waste, WastePattern] = {
    Waste.UNAVAILABLE: WastePattern.NOT_ADVERTISED,
    Waste.STARVED: WastePattern.QUOTA_STARVATION,
    Waste.STRANDED: WastePattern.NVLINK_DOMAIN,
    Waste.FRAGMENTED: WastePattern.FRAGMENTATION,
}
"""The patterns that claim time that no pod held, by bucket."""
HABITS: Mapping[Waste, str] = {
    Waste.UNAVAILABLE: "save checkpoints, to move off a broken GPU at once",
    Waste.GANG_STALL: "start all members or none, through a queue",
    Waste.PREEMPTED: "save checkpoints more often, to lose less to a stop",
    Waste.IDLE: "let it end when its work is done",
    Waste.OVERSIZED: "ask for what it has used",
}
"""How to avoid a bucket of held time, in a few words."""


def patterns_of(waste: Waste) -> tuple[WastePattern, ...]:
    """The anti-patterns whose findings have time in this bucket; none for a bucket that is not waste."""
    return tuple(found[waste] for found in (PATTERN_OF_HELD_WASTE, PATTERN_OF_UNHELD_WASTE) if waste in found)


def pattern_of(waste: Waste, *, is_held: bool) -> WastePattern:
    """The anti-pattern behind wasted time that was held, or had no holder. Raises KeyError for a bucket that
    is not waste."""
    held, unheld = PATTERN_OF_HELD_WASTE, PATTERN_OF_UNHELD_WASTE
    return ({**unheld, **held} if is_held else {**held, **unheld})[waste]


def page_of(pattern: WastePattern | str) -> str:
    """The page of a pattern, as a path in gpucost's documentation."""
    return f"docs/detectors/{pattern}.md"
