"""Finding lives to and from the records of the ledger, and findings to and from JSON, as records hold them.

Claims (``FindingDraft.episodes``) and labels are left out: they are not needed once a finding's waste is
computed, and there may be many.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import TypeAdapter, ValidationError

from gpucost.detectors.engine.lifecycle import FindingLife
from gpucost.detectors.findings import Finding
from gpucost.ledger.db.records import NEXT_EPISODE, FindingRecord

_FINDING = TypeAdapter(Finding)


def to_json(finding: Finding) -> str:
    """Compact text, the same for equal findings."""
    return _FINDING.dump_json(_without_claims(finding)).decode()


def from_json(text: str) -> Finding:
    """The finding that ``to_json`` wrote. Raises pydantic's ValidationError for anything else."""
    return _FINDING.validate_json(text)


def _without_claims(finding: Finding) -> Finding:
    return replace(finding, draft=replace(finding.draft, episodes=(), labels=None))


def is_readable(record: FindingRecord) -> bool:
    """Whether this version can read the finding in the record."""
    try:
        from_json(record.content)
    except ValidationError:
        return False
    return True


def life_of(record: FindingRecord) -> FindingLife:
    """The life that a record holds."""
    return FindingLife(
        finding=from_json(record.content),
        state=record.state,
        opened_at_ms=record.opened_at_ms,
        since_ms=record.since_ms,
        last_seen_ms=record.last_seen_ms,
        closed_at_ms=record.closed_at_ms,
        clean=record.clean_evaluations,
        muted_until_ms=record.muted_until_ms,
        exempt_until_ms=record.exempt_until_ms,
        rehearsal=record.rehearsal,
    )


def record_of(cluster: str, life: FindingLife, before: FindingRecord | None) -> FindingRecord:
    """The record of a life; ``before`` is that of the last life of its fingerprint, None for the first."""
    finding, draft = life.finding, life.finding.draft
    record = FindingRecord(
        cluster=cluster,
        fingerprint=life.fingerprint,
        episode=NEXT_EPISODE,
        pattern=draft.pattern.value,
        variant=draft.variant,
        subject_kind=draft.subject.kind.value,
        subject_name=draft.subject.name,
        subject_namespace=draft.subject.namespace,
        subject_uid=draft.subject.uid,
        team=draft.team,
        queue=draft.queue,
        severity=finding.severity.value,
        opened_at_ms=life.opened_at_ms,
        since_ms=life.since_ms,
        last_seen_ms=life.last_seen_ms,
        content=to_json(finding),
        board_ms=finding.wasted.board_ms,
        nano=finding.wasted.nano,
        counted=finding.wasted.counted,
        boards_now=finding.boards_now,
        state=life.state,
        closed_at_ms=life.closed_at_ms,
        clean_evaluations=life.clean,
        rehearsal=life.rehearsal,
        exempt_until_ms=life.exempt_until_ms,
        muted_until_ms=life.muted_until_ms,
    )
    if before is None or before.opened_at_ms != life.opened_at_ms:
        return record
    return replace(
        record,
        episode=before.episode,
        id=before.id,
        revision=before.revision,
        acknowledged_by=before.acknowledged_by,
        acknowledged_at_ms=before.acknowledged_at_ms,
        acknowledged_note=before.acknowledged_note,
    )
