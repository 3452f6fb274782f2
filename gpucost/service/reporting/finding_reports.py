"""Findings of the ledger as the documents of gpucost.reports."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpucost.detectors.findings import WithheldFinding
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import iso, parse_day_or_instant
from gpucost.ledger.db.records import FindingRecord, FindingState, FindingSum
from gpucost.ledger.ledger import Ledger
from gpucost.reports.waste.findings import (
    EventRow,
    FindingAcknowledgement,
    FindingEntry,
    FindingReport,
    WithheldRow,
    finding_row,
    withheld_row,
)
from gpucost.service.detection.finding_records import life_of
from gpucost.service.detection.loop import LastLook
from gpucost.service.reporting.report_service import NO_CURRENCY

MOST_WITHHELD = 1_000


@dataclass(frozen=True, slots=True)
class WithheldPart:
    """At most MOST_WITHHELD of them, those without data first; ``count`` counts all of them."""

    rows: tuple[WithheldRow, ...]
    count: int


def row_of(record: FindingRecord, now_ms: int, scope: Scope = EVERYTHING) -> FindingEntry:
    """A record of the ledger as a document for a reader with ``scope``."""
    assert record.id is not None, "it was read from the ledger"
    known = None
    if record.acknowledged_by is not None:
        at_ms = record.acknowledged_at_ms
        at = None if at_ms is None else iso(at_ms)
        known = FindingAcknowledgement(record.acknowledged_by, at, record.acknowledged_note or "")
    return finding_row(record.id, life_of(record), now_ms, known, scope)


def finding_report(ledger: Ledger, scope: Scope, finding_id: int, now_ms: int) -> FindingReport | None:
    """One finding with its events; None when the scope sees no finding with this id."""
    record = ledger.finding(scope, finding_id)
    if record is None:
        return None
    events = ledger.finding_events(scope, finding_id)
    return FindingReport(
        ledger.currency or NO_CURRENCY,
        row_of(record, now_ms, scope),
        tuple(EventRow(iso(event.at_ms), event.author, event.action, event.detail) for event in events),
    )


def withheld_of(
    looks: Mapping[str, LastLook], cluster: str | None = None, patterns: Iterable[str] | None = None
) -> WithheldPart:
    """What the last evaluation of each cluster withheld: of one cluster and some patterns, or of all."""
    wanted = None if patterns is None else frozenset(patterns)
    found = [
        each
        for name, look in looks.items()
        if cluster in (None, name)
        for each in look.withheld
        if wanted is None or each.pattern.value in wanted
    ]
    found.sort(key=_order)
    return WithheldPart(tuple(map(withheld_row, found[:MOST_WITHHELD])), len(found))


@dataclass(frozen=True, slots=True)
class ResolvedPattern:
    """Findings of one pattern that are over: how many, how many of them somebody had acknowledged, and what
    those that the waste ledger counts wasted together in the last day of each. ``nano`` is None where nothing
    of it has a price."""

    pattern: str
    count: int
    acknowledged: int
    board_ms: int
    nano: int | None


@dataclass(frozen=True, slots=True)
class ResolvedPart:
    """Findings that are over and were seen since ``since`` (a day), by pattern, the dearest first. What they
    would have gone on to waste, the ledger cannot know."""

    since: str
    patterns: tuple[ResolvedPattern, ...]

    @property
    def total(self) -> ResolvedPattern:
        """All of them together."""
        return _resolved("", self.patterns)


def resolved_part(
    ledger: Ledger,
    scope: Scope,
    since: str,
    *,
    cluster: str | None = None,
    patterns: Collection[str] | None = None,
    teams: Collection[str] | None = None,
) -> ResolvedPart:
    """What is over of the findings seen since the day ``since``, of those that ``scope`` sees."""
    rows = ledger.finding_sums(
        scope,
        cluster=cluster,
        states=(FindingState.RESOLVED,),
        patterns=patterns,
        teams=teams,
        since_ms=parse_day_or_instant(since, "since"),
    )
    by_pattern: dict[str, list[FindingSum]] = {}
    for row in rows:
        by_pattern.setdefault(row.pattern, []).append(row)
    found = [_resolved(pattern, of) for pattern, of in by_pattern.items()]
    found.sort(key=lambda each: (-(each.nano or 0), -each.board_ms, each.pattern))
    return ResolvedPart(since, tuple(found))


def _resolved(pattern: str, rows: Sequence[FindingSum | ResolvedPattern]) -> ResolvedPattern:
    return ResolvedPattern(
        pattern,
        sum(row.count for row in rows),
        sum(row.acknowledged for row in rows),
        sum(row.board_ms for row in rows),
        _sum(row.nano for row in rows),
    )


def _sum(amounts: Iterable[int | None]) -> int | None:
    known = [each for each in amounts if each is not None]
    return sum(known) if known else None


def _order(found: WithheldFinding) -> tuple[object, ...]:
    return (not found.lacks_data, found.subject.cluster, found.pattern, found.subject, found.because)
