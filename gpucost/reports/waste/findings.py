"""Findings as documents: what is wrong, since when, what it costs, and what to do about it.

Flat, with stable names: what the API answers, and what the command line writes. Built from the lifecycles of
findings, so nothing here depends on a ledger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from gpucost.detectors.engine.lifecycle import FindingLife, FindingLifeState
from gpucost.detectors.findings import FindingEvidence, FindingSubject, WithheldFinding
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import iso
from gpucost.reports.waste.recommendations import daily_nano, page_of, view_for


@dataclass(frozen=True, slots=True)
class SubjectPart:
    """What a finding is about; ``kind`` is cluster, team, queue, job or node."""

    kind: str
    cluster: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class EvidencePart:
    """One number or fact; ``value`` is null where a number is not finite."""

    name: str
    value: Fraction | int | str | None
    unit: str
    shown_by: str


@dataclass(frozen=True, slots=True)
class WastedPart:
    """The waste of the last 24 hours. ``counted``: it is in the waste ledger under this finding; else it is a
    view, and must not be added up."""

    board_ms: int
    nano: int | None
    formula: str
    counted: bool


@dataclass(frozen=True, slots=True)
class RatePart:
    """The current waste: GPUs, and money per hour. ``boards`` is null of a view without such a number,
    ``hourly_nano`` without a price and where there are no GPUs. ``daily_nano`` is the same for a day at that
    rate, which differs from what its last day wasted. Of a resolved finding all are null.
    """

    boards: Fraction | None
    hourly_nano: int | None
    daily_nano: int | None


@dataclass(frozen=True, slots=True)
class ActionPart:
    """The one thing to do; ``patch`` is YAML or a command, ready to be used as written, or empty."""

    text: str
    patch: str
    frees_boards: Fraction | None


@dataclass(frozen=True, slots=True)
class FindingAcknowledgement:
    """Who acknowledged it, when, and their note."""

    by: str
    at: str | None
    note: str


@dataclass(frozen=True, slots=True)
class FindingEntry:
    """A finding as it stands. ``since`` is when its subject's condition began, ``opened_at`` when it was
    first reported. ``speaks``: it is open, not exempt and no rehearsal, so it may raise an alert. ``checked``
    are guards that were evaluated and passed. ``documentation`` is a path in gpucost's documentation.
    """

    id: int
    fingerprint: str
    pattern: str
    variant: str
    severity: str
    state: str
    speaks: bool
    subject: SubjectPart
    team: str
    queue: str
    user: str
    since: str
    opened_at: str
    last_seen: str
    closed_at: str | None
    summary: str
    evidence: tuple[EvidencePart, ...]
    wasted: WastedPart
    now: RatePart
    action: ActionPart
    checked: tuple[str, ...]
    acknowledged: FindingAcknowledgement | None
    muted_until: str | None
    exempt_until: str | None
    rehearsal: bool
    documentation: str


@dataclass(frozen=True, slots=True)
class WithheldRow:
    """What the last evaluation withheld, and why; ``because`` completes "not found, because …"."""

    pattern: str
    subject: SubjectPart
    because: str
    lacks_data: bool


@dataclass(frozen=True, slots=True)
class FindingsReport:
    """Findings, the dearest first, those without a price last.

    ``next`` is the cursor of the following page, null on the last one. ``withheld`` is told with the first
    page to who sees every team, else null; ``withheld_count`` says how many there are in all.
    """

    currency: str
    teams_in_scope: tuple[str, ...] | None
    findings: tuple[FindingEntry, ...]
    next: str | None = None
    withheld: tuple[WithheldRow, ...] | None = None
    withheld_count: int | None = None


@dataclass(frozen=True, slots=True)
class EventRow:
    """Who did what to a finding, when."""

    at: str
    author: str
    action: str
    detail: str


@dataclass(frozen=True, slots=True)
class FindingReport:
    """One finding, and all that happened to it, oldest first."""

    currency: str
    finding: FindingEntry
    events: tuple[EventRow, ...]


def finding_row(
    finding_id: int,
    life: FindingLife,
    now_ms: int,
    acknowledged: FindingAcknowledgement | None = None,
    scope: Scope = EVERYTHING,
) -> FindingEntry:
    """The document of a finding for a reader with ``scope``; ``now_ms`` decides whether it speaks."""
    finding, draft = life.finding, life.finding.draft
    words = view_for(draft, scope)
    return FindingEntry(
        id=finding_id,
        fingerprint=life.fingerprint,
        pattern=draft.pattern.value,
        variant=draft.variant,
        severity=finding.severity.value,
        state=life.state.value,
        speaks=life.speaks(now_ms),
        subject=_subject(draft.subject),
        team=draft.team,
        queue=draft.queue,
        user=draft.user,
        since=iso(life.since_ms),
        opened_at=iso(life.opened_at_ms),
        last_seen=iso(life.last_seen_ms),
        closed_at=_iso(life.closed_at_ms),
        summary=words.summary,
        evidence=tuple(map(_evidence, words.evidence)),
        wasted=WastedPart(
            finding.wasted.board_ms, finding.wasted.nano, finding.wasted.formula, finding.wasted.counted
        ),
        now=_rate(life),
        action=ActionPart(words.action.text, words.action.patch, _number(words.action.frees_boards)),
        checked=draft.checked,
        acknowledged=acknowledged,
        muted_until=_iso(life.muted_until_ms),
        exempt_until=_iso(life.exempt_until_ms),
        rehearsal=life.rehearsal,
        documentation=page_of(draft.pattern),
    )


def _rate(life: FindingLife) -> RatePart:
    """A resolved finding wastes nothing now, whatever its last rate was."""
    if life.state is FindingLifeState.RESOLVED:
        return RatePart(None, None, None)
    finding = life.finding
    # A view that does not say how many GPUs it is about now has no number of them.
    is_said = finding.wasted.counted or finding.boards_now > 0
    boards = _number(finding.boards_now) if is_said else None
    return RatePart(boards, finding.nano_per_hour, daily_nano(finding))


def withheld_row(found: WithheldFinding) -> WithheldRow:
    return WithheldRow(found.pattern.value, _subject(found.subject), found.because, found.lacks_data)


def _subject(subject: FindingSubject) -> SubjectPart:
    return SubjectPart(subject.kind.value, subject.cluster, subject.namespace, subject.name, subject.uid)


def _evidence(found: FindingEvidence) -> EvidencePart:
    value = _number(found.value) if isinstance(found.value, float) else found.value
    return EvidencePart(found.name, value, found.unit, found.shown_by)


def _number(value: float | None) -> Fraction | None:
    """Documents have no NaN and no infinity: a value that is not finite is missing."""
    return None if value is None or not math.isfinite(value) else Fraction(value)


def _iso(instant_ms: int | None) -> str | None:
    return None if instant_ms is None else iso(instant_ms)
