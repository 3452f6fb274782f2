"""The life of findings over many evaluations: opened, seen again, acknowledged or muted, resolved.

A finding is identified by its fingerprint. It closes after CLEAN evaluations that did not find it, and one
that comes back within REOPEN_MS is the same finding, not a new one. So neither a restart of the service nor a
value that wavers about its threshold causes new notifications. Pure: records in, records out; the caller
stores them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from gpucost.detectors.findings import Finding, FindingDraft, WastePattern
from gpucost.domain.errors import InputError
from gpucost.domain.text import is_any
from gpucost.domain.time import DAY_MS, MINUTE_MS, parse_day_or_instant

CLEAN = 2
REOPEN_MS = 10 * MINUTE_MS
EXEMPT_LABEL = "gpucost.io/exempt-until"
"""A label of a job or pod with a day (2026-12-31): until then no finding is raised about it."""
LONGEST_LABEL_MS = 90 * DAY_MS
"""The longest exemption by label, from now: a person who may label a pod must not silence it for good."""


class FindingLifeState(StrEnum):
    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    MUTED = "muted"
    RESOLVED = "resolved"


LIVE = (FindingLifeState.OPEN, FindingLifeState.ACKNOWLEDGED, FindingLifeState.MUTED)


class FindingChange(StrEnum):
    """What an evaluation changed about a finding."""

    OPENED = "opened"
    REOPENED = "reopened"
    RESOLVED = "resolved"
    WORSENED = "worsened"
    UNMUTED = "unmuted"


@dataclass(frozen=True, slots=True)
class FindingLife:
    """A finding's life so far. ``opened_at_ms`` is when it was first reported, ``since_ms`` when its problem
    began. ``clean`` counts evaluations in a row that did not find it. ``finding`` is its last content.
    ``exempt_until_ms`` is None where no exemption applies."""

    finding: Finding
    state: FindingLifeState
    opened_at_ms: int
    since_ms: int
    last_seen_ms: int
    closed_at_ms: int | None = None
    clean: int = 0
    muted_until_ms: int | None = None
    exempt_until_ms: int | None = None
    rehearsal: bool = False

    @property
    def fingerprint(self) -> str:
        return self.finding.fingerprint

    def speaks(self, now_ms: int) -> bool:
        """Whether it may raise an alert or be posted: open, not exempt, and not a rehearsal."""
        exempt = self.exempt_until_ms is not None and now_ms < self.exempt_until_ms
        return self.state is FindingLifeState.OPEN and not exempt and not self.rehearsal


@dataclass(frozen=True, slots=True)
class FindingExemption:
    """An exemption in the settings: findings that match it raise no alert and are not posted until
    ``until_ms``.

    Empty tuples match everything; entries are shell patterns. ``reason`` is text for people who read the
    list.
    """

    until_ms: int
    reason: str
    patterns: tuple[WastePattern, ...] = ()
    namespaces: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    teams: tuple[str, ...] = ()
    users: tuple[str, ...] = ()

    def covers(self, draft: FindingDraft) -> bool:
        if self.patterns and draft.pattern not in self.patterns:
            return False
        asked = (
            (self.namespaces, draft.subject.namespace),
            (self.queues, draft.queue),
            (self.teams, draft.team),
            (self.users, draft.user),
        )
        return all(is_any(value, wanted) for wanted, value in asked)


@dataclass(frozen=True, slots=True)
class LifecycleStep:
    """The result of one evaluation: all lives that are not forgotten, and the changes."""

    lives: tuple[FindingLife, ...]
    changes: tuple[tuple[FindingChange, FindingLife], ...]


def exempt_until(draft: FindingDraft, exemptions: Iterable[FindingExemption], now_ms: int) -> int | None:
    """The last instant of the exemptions that apply now, None for none. A label that is not a date, or a date
    more than LONGEST_LABEL_MS away, exempts nothing."""
    found = [each.until_ms for each in exemptions if each.covers(draft) and now_ms < each.until_ms]
    label = (draft.labels or {}).get(EXEMPT_LABEL, "")
    if label:
        try:
            until_ms = parse_day_or_instant(label, EXEMPT_LABEL)
        except InputError:
            until_ms = now_ms
        if now_ms < until_ms <= now_ms + LONGEST_LABEL_MS:
            found.append(until_ms)
    return max(found, default=None)


def advance(
    lives: Sequence[FindingLife],
    findings: Sequence[Finding],
    now_ms: int,
    *,
    exemptions: Sequence[FindingExemption] = (),
    rehearsals: Mapping[WastePattern, bool] | None = None,
    unknown: Iterable[str] = (),
    known_from_ms: int = 0,
) -> LifecycleStep:
    """One evaluation further. ``findings`` are those that go on; ``unknown`` are fingerprints that could not
    be checked (their rule failed or lacked data): their lives stay as they are. A finding that seems to begin
    with the history, at ``known_from_ms``, may have begun before.

    Of two findings with one fingerprint, the one that wastes more counts.
    """
    lives = [_with_clock(life, now_ms) for life in lives]
    # If the clock went back, what was seen later is kept.
    later = {life.fingerprint for life in lives if now_ms < life.last_seen_ms}
    current: dict[str, Finding] = {}
    for finding in sorted(findings, key=lambda each: each.wasted.board_ms):
        if finding.goes_on:
            current[finding.fingerprint] = finding
    known = {life.fingerprint: life for life in _latest(lives)}
    unsure = frozenset(unknown)
    for fingerprint in later:
        current.pop(fingerprint, None)
    unsure |= later
    kept: list[FindingLife] = []
    changes: list[tuple[FindingChange, FindingLife]] = []
    for fingerprint in sorted(known.keys() | current.keys()):
        before, now = known.get(fingerprint), current.get(fingerprint)
        change: FindingChange | None
        if now is not None:
            if before is not None and _is_another(before, now, known_from_ms):
                closed = replace(before, state=FindingLifeState.RESOLVED, closed_at_ms=now_ms)
                kept.append(closed)
                changes.append((FindingChange.RESOLVED, closed))
                life, change = _opened(before, now, now_ms), FindingChange.OPENED
            else:
                life, change = _seen(before, now, now_ms)
            exempt = exempt_until(now.draft, exemptions, now_ms)
            rehearsal = bool(rehearsals and rehearsals.get(now.draft.pattern))
            life = replace(life, exempt_until_ms=exempt, rehearsal=rehearsal)
        elif before is not None:
            life, change = (before, None) if fingerprint in unsure else _missed(before, now_ms)
        kept.append(life)
        if change is not None:
            changes.append((change, life))
    return LifecycleStep(tuple(kept), tuple(changes))


def _with_clock(life: FindingLife, now_ms: int) -> FindingLife:
    """A life that was last seen more than a day in the future was seen by a wrong clock: it counts as seen
    now."""
    is_wrong = life.last_seen_ms > now_ms + DAY_MS
    return (
        replace(life, last_seen_ms=now_ms, opened_at_ms=min(life.opened_at_ms, now_ms)) if is_wrong else life
    )


def _latest(lives: Iterable[FindingLife]) -> Iterable[FindingLife]:
    """Of each fingerprint the last life; lives that are not over come before others."""
    return sorted(lives, key=lambda life: (life.state is not FindingLifeState.RESOLVED, life.opened_at_ms))


def _seen(before: FindingLife | None, now: Finding, now_ms: int) -> tuple[FindingLife, FindingChange | None]:
    since_ms = now.draft.since_ms
    if before is None or (before.state is FindingLifeState.RESOLVED and not _comes_back(before, now_ms)):
        return _opened(before, now, now_ms), FindingChange.OPENED
    life = replace(before, finding=now, last_seen_ms=now_ms, clean=0, since_ms=min(before.since_ms, since_ms))
    if before.state is FindingLifeState.RESOLVED:
        return replace(life, state=FindingLifeState.OPEN, closed_at_ms=None), FindingChange.REOPENED
    if (
        life.state is FindingLifeState.MUTED
        and life.muted_until_ms is not None
        and life.muted_until_ms <= now_ms
    ):
        return replace(life, state=FindingLifeState.OPEN, muted_until_ms=None), FindingChange.UNMUTED
    worse = now.severity.rank > before.finding.severity.rank
    return life, FindingChange.WORSENED if worse else None


def _is_another(before: FindingLife, now: Finding, known_from_ms: int) -> bool:
    """Whether it was over for a while since it was last seen, in a time without evaluations."""
    if before.state is FindingLifeState.RESOLVED or now.draft.since_ms <= known_from_ms + REOPEN_MS:
        return False
    return now.draft.since_ms > before.last_seen_ms + REOPEN_MS


def _opened(before: FindingLife | None, now: Finding, now_ms: int) -> FindingLife:
    """A new life. A mute of the last life with an end date covers the new one too, if the date is still to
    come."""
    life = FindingLife(now, FindingLifeState.OPEN, now_ms, now.draft.since_ms, now_ms)
    until_ms = None if before is None else before.muted_until_ms
    if until_ms is None or until_ms <= now_ms:
        return life
    return replace(life, state=FindingLifeState.MUTED, muted_until_ms=until_ms)


def _comes_back(before: FindingLife, now_ms: int) -> bool:
    return before.closed_at_ms is not None and now_ms - before.closed_at_ms <= REOPEN_MS


def _missed(before: FindingLife, now_ms: int) -> tuple[FindingLife, FindingChange | None]:
    if before.state is FindingLifeState.RESOLVED:
        return before, None
    if before.clean + 1 < CLEAN:
        return replace(before, clean=before.clean + 1), None
    return replace(
        before, state=FindingLifeState.RESOLVED, closed_at_ms=now_ms, clean=CLEAN
    ), FindingChange.RESOLVED
