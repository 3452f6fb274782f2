"""What to do first: findings that go on, by the money that comes back, those that are alike in one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpucost.detectors.findings import Finding, SubjectKind
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import iso
from gpucost.reports.told import told
from gpucost.reports.values import Amount

_DAY_HOURS = 24


@dataclass(frozen=True, slots=True)
class KnownFinding:
    """A finding of the ledger: its number, its state, what it says, and when it was resolved."""

    id: int
    state: str
    finding: Finding
    since_ms: int
    closed_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Alike:
    """More findings of the same pattern, variant, team and state: their numbers, and what they cost together
    in a day at their rates of now; None where none of them has one."""

    findings: tuple[int, ...]
    daily_nano: int | None


@dataclass(frozen=True, slots=True)
class ToDo:
    """A finding that goes on: what it costs, what to do, and what comes back. ``daily_nano`` is what it costs
    in a day at its rate of now; None where there is no price, or no rate. ``job_uid`` is empty where it is
    about no job. ``alike`` is None where there is no other of its kind."""

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
    wasted: Amount
    counted: bool
    daily_nano: int | None
    alike: Alike | None


def to_do(findings: Sequence[KnownFinding], scope: Scope = EVERYTHING) -> tuple[ToDo, ...]:
    """Findings by the money that comes back, then by what they wasted; of those alike the dearest, which
    names the others."""
    ranked = sorted((each for each in findings if each.finding.goes_on), key=_order)
    groups: dict[tuple[str, ...], list[KnownFinding]] = {}
    for each in ranked:
        draft = each.finding.draft
        # What somebody has answered must not stand for what nobody has.
        kind = (draft.pattern, draft.variant, draft.team, draft.subject.kind, each.state)
        groups.setdefault(kind, []).append(each)
    return tuple(_to_do(first, others, scope) for first, *others in groups.values())


def daily_nano(finding: Finding) -> int | None:
    """What it costs in a day at its rate of now."""
    hourly = finding.nano_per_hour if finding.boards_now > 0 else None
    return None if hourly is None else hourly * _DAY_HOURS


def _order(known: KnownFinding) -> tuple[int, ...]:
    wasted = known.finding.wasted
    return -(daily_nano(known.finding) or 0), -(wasted.nano or 0), -wasted.board_ms, known.id


def _to_do(known: KnownFinding, others: Sequence[KnownFinding], scope: Scope) -> ToDo:
    finding, draft, words = known.finding, known.finding.draft, told(known.finding.draft, scope)
    return ToDo(
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
        wasted=Amount(finding.wasted.board_ms, finding.wasted.nano),
        counted=finding.wasted.counted,
        daily_nano=daily_nano(finding),
        alike=_alike(others),
    )


def _alike(others: Sequence[KnownFinding]) -> Alike | None:
    if not others:
        return None
    costs = [cost for each in others if (cost := daily_nano(each.finding)) is not None]
    return Alike(tuple(each.id for each in others), sum(costs) if costs else None)
