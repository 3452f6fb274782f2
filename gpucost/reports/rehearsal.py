"""What detectors would have found on some days, without having been asked to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpucost.detectors.findings import Finding
from gpucost.domain.time import iso
from gpucost.reports.findings import SubjectPart
from gpucost.reports.values import Amount


@dataclass(frozen=True, slots=True)
class RehearsedCluster:
    """``days`` whole days up to ``end`` could be looked at, of those asked for."""

    cluster: str
    end: str
    days: int


@dataclass(frozen=True, slots=True)
class RehearsedFinding:
    """A finding as it was on the last of the ``days`` of ``of`` on which it was found; ``wasted`` is added up
    over them. What is not ``counted`` is a view, in no sum."""

    pattern: str
    variant: str
    severity: str
    subject: SubjectPart
    team: str
    since: str
    days: int
    of: int
    wasted: Amount
    counted: bool
    summary: str
    action: str
    patch: str


@dataclass(frozen=True, slots=True)
class RehearsedUnsaid:
    """What a detector did not say on these days: ``because`` completes "not said, because …"."""

    pattern: str
    because: str
    lacks_data: bool
    times: int


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The dearest first. Nothing of it was written. ``withheld`` is by pattern, the most frequent first."""

    currency: str
    days: int
    clusters: tuple[RehearsedCluster, ...]
    findings: tuple[RehearsedFinding, ...]
    withheld: tuple[RehearsedUnsaid, ...] = ()


@dataclass(frozen=True, slots=True)
class OnDays:
    """A finding of several days, with its waste on all of them."""

    finding: Finding
    days: int
    of: int
    wasted: Amount


def rehearsal(
    currency: str,
    days: int,
    clusters: Sequence[RehearsedCluster],
    found: Sequence[OnDays],
    withheld: Sequence[RehearsedUnsaid] = (),
) -> Rehearsal:
    """The report, for any order of ``found`` and ``withheld``."""
    ranked = sorted(
        found,
        key=lambda each: (-(each.wasted.nano or 0), -each.wasted.board_ms, each.finding.fingerprint),
    )
    unsaid = sorted(withheld, key=lambda each: (each.pattern, -each.times, each.because))
    return Rehearsal(currency, days, tuple(clusters), tuple(map(_row, ranked)), tuple(unsaid))


def _row(found: OnDays) -> RehearsedFinding:
    finding, draft = found.finding, found.finding.draft
    subject = draft.subject
    return RehearsedFinding(
        pattern=draft.pattern.value,
        variant=draft.variant,
        severity=finding.severity.value,
        subject=SubjectPart(
            subject.kind.value, subject.cluster, subject.namespace, subject.name, subject.uid
        ),
        team=draft.team,
        since=iso(draft.since_ms),
        days=found.days,
        of=found.of,
        wasted=found.wasted,
        counted=finding.wasted.counted,
        summary=draft.summary,
        action=draft.action.text,
        patch=draft.action.patch,
    )
