"""Findings and their events: what the evaluation of detectors writes, and how people respond.

An evaluation reads live findings, and writes them back; in between a person may have acknowledged a finding,
or another process may have evaluated. ``revision`` detects that: the later writer is refused, and reads
again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Integer, and_, case, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from gpucost.attribution.usage_lines import storable_text
from gpucost.contract.frames import MAX_TEXT
from gpucost.domain.errors import InputError, LedgerConflict
from gpucost.domain.scope import Scope
from gpucost.domain.time import DAY_MS, iso
from gpucost.ledger.db.dimensions import in_clusters
from gpucost.ledger.db.records import (
    NEXT_EPISODE,
    FindingEvent,
    FindingRecord,
    FindingState,
    FindingSum,
)
from gpucost.ledger.db.store_tables import FINDING, FINDING_EVENT
from gpucost.ledger.db.stored_values import check_int64, check_text

MOST_PER_PAGE = 1_000
LONGEST_MUTE_MS = 366 * DAY_MS
LONGEST_NOTE = 1_000
MOST_EVENTS = 1_000
"""Limit for the events of one finding, so that its page can show them all. Events of the service itself are
always written."""
SERVICE = "gpucost"
_LONGEST_FINGERPRINT = 64

F, E = FINDING.c, FINDING_EVENT.c
_NAMES = [field.name for field in fields(FindingRecord)]
_COLUMNS = [F[name] for name in _NAMES]
_TEXTS = (
    *("pattern", "variant", "subject_kind", "subject_name", "subject_namespace", "subject_uid"),
    *("team", "queue", "severity", "acknowledged_by"),
)
# Text that is not cut: cut JSON would be invalid, and a note was checked when it was written.
_LONG_TEXTS = ("content", "acknowledged_note")
_WHOLE = [column.name for column in FINDING.columns if isinstance(column.type, Integer)]


@dataclass(frozen=True, slots=True)
class FindingFilters:
    """Which findings to list; None selects everything. ``since_ms``: last seen then or later."""

    cluster: str | None = None
    states: Collection[str] | None = None
    patterns: Collection[str] | None = None
    teams: Collection[str] | None = None
    severities: Collection[str] | None = None
    since_ms: int | None = None
    subject_uid: str | None = None


def live(connection: Connection, cluster: str, resolved_since_ms: int | None) -> tuple[FindingRecord, ...]:
    wanted: ColumnElement[bool] = F.state != str(FindingState.RESOLVED)
    if resolved_since_ms is not None:
        # A mute outlives its episode: it also applies to later ones.
        wanted = or_(wanted, F.closed_at_ms >= resolved_since_ms, F.muted_until_ms > resolved_since_ms)
    return _records(connection, [F.cluster == cluster, wanted])


def save(
    connection: Connection, cluster: str, records: Sequence[FindingRecord], events: Sequence[FindingEvent]
) -> tuple[FindingRecord, ...]:
    """See Ledger.save_findings."""
    check_text("cluster", cluster, empty=False)
    # Resolved findings first: that makes room for the next episode of the same finding.
    order = sorted(range(len(records)), key=lambda at: records[at].state is not FindingState.RESOLVED)
    by_position = {at: _save(connection, cluster, records[at]) for at in order}
    saved = [by_position[at] for at in range(len(records))]
    both = (*zip(records, saved, strict=True), *zip(saved, saved, strict=True))
    ids = {(record.fingerprint, record.episode): stored.id for record, stored in both}
    for event in events:
        key = (event.fingerprint, event.episode)
        finding_id = ids[key] if key in ids else _id_of(connection, cluster, *key)
        _add_event(connection, finding_id, event.at_ms, event.author, event.action, event.detail)
    return tuple(saved)


def find(
    connection: Connection,
    scope: Scope,
    filters: FindingFilters,
    limit: int,
    after: tuple[int | None, int] | None,
) -> tuple[FindingRecord, ...]:
    """See Ledger.findings."""
    if not 1 <= limit <= MOST_PER_PAGE:
        raise InputError("limit", limit, f"1 to {MOST_PER_PAGE}")
    conditions = [*_visible(scope), *_conditions(filters)]
    if after is not None:
        nano, finding_id = after
        cost = check_int64("after", -1 if nano is None else nano)
        later = and_(_cost() == cost, F.id > check_int64("after", finding_id))
        conditions.append(or_(_cost() < cost, later))
    return _records(connection, conditions, order=[_cost().desc(), F.id], limit=limit)


def sums(connection: Connection, scope: Scope, filters: FindingFilters) -> tuple[FindingSum, ...]:
    """See Ledger.finding_sums."""
    counted = F.counted.is_(True)
    statement = (
        select(
            F.pattern,
            F.team,
            F.state,
            func.count(),
            func.count(F.acknowledged_by),
            func.sum(case((counted, F.board_ms), else_=0)),
            func.sum(case((counted, F.nano))),
        )
        .where(*_visible(scope), *_conditions(filters))
        .group_by(F.pattern, F.team, F.state)
        .order_by(F.pattern, F.team, F.state)
    )
    return tuple(
        FindingSum(
            pattern,
            team,
            FindingState(state),
            count,
            known,
            int(board_ms),
            None if nano is None else int(nano),
        )
        for pattern, team, state, count, known, board_ms, nano in connection.execute(statement)
    )


def _cost() -> ColumnElement[int]:
    """A finding without a price comes after all that have one: no cost is below 0."""
    return func.coalesce(F.nano, -1)


def get(connection: Connection, scope: Scope, finding_id: int) -> FindingRecord | None:
    check_int64("finding", finding_id)
    return next(iter(_records(connection, [F.id == finding_id, *_visible(scope)])), None)


def require(connection: Connection, scope: Scope, finding_id: int) -> FindingRecord:
    """The finding. Raises InputError when there is none with this id, or it is another team's."""
    found = get(connection, scope, finding_id)
    if found is None:
        raise InputError("finding", finding_id, "the id of a finding")
    return found


def events(connection: Connection, scope: Scope, finding_id: int) -> tuple[FindingEvent, ...]:
    found = require(connection, scope, finding_id)
    statement = select(E.at_ms, E.author, E.action, E.detail).where(E.finding_id == finding_id).order_by(E.id)
    return tuple(
        FindingEvent(found.fingerprint, found.episode, *row) for row in connection.execute(statement)
    )


def acknowledge(
    connection: Connection, scope: Scope, finding_id: int, author: str, note: str, now_ms: int
) -> FindingRecord:
    check_words(author, "note", note)
    found = _unresolved(connection, scope, finding_id)
    state = FindingState.MUTED if found.state is FindingState.MUTED else FindingState.ACKNOWLEDGED
    told = replace(
        found, state=state, acknowledged_by=author, acknowledged_at_ms=now_ms, acknowledged_note=note
    )
    _add_event(connection, finding_id, now_ms, author, "acknowledge", note)
    return _update(connection, told)


def mute(
    connection: Connection,
    scope: Scope,
    finding_id: int,
    author: str,
    until_ms: int,
    reason: str,
    now_ms: int,
) -> FindingRecord:
    check_words(author, "reason", reason)
    if not now_ms < until_ms <= now_ms + LONGEST_MUTE_MS:
        raise InputError(
            "until", until_ms, f"later than now, at most a year: {iso(now_ms + LONGEST_MUTE_MS)}"
        )
    found = _unresolved(connection, scope, finding_id)
    detail = f"until {iso(until_ms)}" + (f": {reason}" if reason else "")
    _add_event(connection, finding_id, now_ms, author, "mute", detail)
    return _update(connection, replace(found, state=FindingState.MUTED, muted_until_ms=until_ms))


def unmute(
    connection: Connection, scope: Scope, finding_id: int, author: str, reason: str, now_ms: int
) -> FindingRecord:
    check_words(author, "reason", reason)
    found = require(connection, scope, finding_id)
    if found.state is not FindingState.MUTED:
        return found
    state = FindingState.OPEN if found.acknowledged_by is None else FindingState.ACKNOWLEDGED
    _add_event(connection, finding_id, now_ms, author, "unmute", reason)
    return _update(connection, replace(found, state=state, muted_until_ms=None))


def check_words(author: str, field: str, words: str) -> None:
    check_text("author", author, empty=False)
    check_text(field, words, most=LONGEST_NOTE)


def _unresolved(connection: Connection, scope: Scope, finding_id: int) -> FindingRecord:
    found = require(connection, scope, finding_id)
    if found.state is FindingState.RESOLVED:
        when = "" if found.closed_at_ms is None else f" since {iso(found.closed_at_ms)}"
        raise LedgerConflict(f"finding {finding_id} is resolved{when}: there is nothing left to do about it")
    return found


def _save(connection: Connection, cluster: str, record: FindingRecord) -> FindingRecord:
    if record.cluster != cluster:
        raise InputError("finding.cluster", record.cluster, f"{cluster}, the cluster being written")
    checked = _storable(record)
    try:
        return _insert(connection, checked) if record.id is None else _update(connection, checked)
    except IntegrityError as error:
        raise LedgerConflict(
            f"finding {record.fingerprint} of {cluster} is there already, live or as episode "
            f"{record.episode}: another process evaluated; read the live findings again"
        ) from error


def _storable(record: FindingRecord) -> FindingRecord:
    """The record with names cut to what a database can store. Raises InputError for numbers that it cannot
    store."""
    for name in _WHOLE:
        check_int64(f"finding.{name}", getattr(record, name) or 0)
    if record.board_ms < 0 or (record.nano or 0) < 0 or not math.isfinite(record.boards_now):
        value = (record.board_ms, record.nano, record.boards_now)
        raise InputError("finding", value, "board_ms and nano of at least 0, a finite boards_now")
    check_text("finding.fingerprint", record.fingerprint, empty=False, most=_LONGEST_FINGERPRINT)
    most: dict[str, int | None] = dict.fromkeys(_TEXTS, MAX_TEXT) | dict.fromkeys(_LONG_TEXTS, None)
    texts: dict[str, Any] = {
        name: storable_text(str(text), longest)
        for name, longest in most.items()
        if (text := getattr(record, name)) is not None
    }
    return replace(record, **texts)


def _insert(connection: Connection, record: FindingRecord) -> FindingRecord:
    if record.episode == NEXT_EPISODE:
        same = (F.cluster == record.cluster, F.fingerprint == record.fingerprint)
        latest = connection.execute(select(func.max(F.episode)).where(*same)).scalar()
        record = replace(record, episode=(latest or 0) + 1)
    values = _values(record) | {"revision": 1}
    [finding_id] = connection.execute(insert(FINDING).values(values).returning(F.id)).one()
    return replace(record, id=finding_id, revision=1)


def _update(connection: Connection, record: FindingRecord) -> FindingRecord:
    revision = record.revision + 1
    statement = (
        update(FINDING)
        .where(F.id == record.id, F.cluster == record.cluster, F.revision == record.revision)
        .where(F.fingerprint == record.fingerprint, F.episode == record.episode)
        .values(_values(record) | {"revision": revision})
    )
    if connection.execute(statement).rowcount != 1:
        raise LedgerConflict(
            f"finding {record.id} of {record.cluster} has changed since it was read: read it again"
        )
    return replace(record, revision=revision)


def _values(record: FindingRecord) -> dict[str, Any]:
    values = {name: getattr(record, name) for name in _NAMES if name != "id"}
    return values | {"state": str(record.state)}


def _add_event(
    connection: Connection, finding_id: int | None, at_ms: int, author: str, action: str, detail: str
) -> None:
    of_finding = select(func.count()).select_from(FINDING_EVENT).where(E.finding_id == finding_id)
    if author != SERVICE and connection.execute(of_finding).scalar_one() >= MOST_EVENTS:
        raise LedgerConflict(f"finding {finding_id} has {MOST_EVENTS:,} answers already: it takes no more")
    texts = {"author": storable_text(author), "action": storable_text(action)}
    values = texts | {"detail": storable_text(detail, most=None)}
    check_int64("event.at_ms", at_ms)
    connection.execute(insert(FINDING_EVENT).values(finding_id=finding_id, at_ms=at_ms, **values))


def _id_of(connection: Connection, cluster: str, fingerprint: str, episode: int) -> int:
    check_text("event.fingerprint", fingerprint, empty=False)
    statement = select(F.id).where(F.cluster == cluster, F.fingerprint == fingerprint, F.episode == episode)
    found = connection.execute(statement).scalar_one_or_none()
    if found is None:
        raise InputError("event.fingerprint", fingerprint, f"a finding of {cluster} with episode {episode}")
    return int(found)


def _visible(scope: Scope) -> list[ColumnElement[bool]]:
    """Condition on what ``scope`` sees. A finding without a team is the platform's own."""
    of_teams = [] if scope.teams is None else [F.team.in_(sorted(scope.teams - {""}))]
    return [*of_teams, *in_clusters(scope, F.cluster)]


def _conditions(filters: FindingFilters) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    columns = (
        ("cluster", F.cluster, None if filters.cluster is None else [filters.cluster]),
        ("state", F.state, filters.states),
        ("pattern", F.pattern, filters.patterns),
        ("team", F.team, filters.teams),
        ("severity", F.severity, filters.severities),
        ("subject_uid", F.subject_uid, None if filters.subject_uid is None else [filters.subject_uid]),
    )
    for name, column, values in columns:
        if values is not None:
            for value in values:
                check_text(name, value)
            conditions.append(column.in_(sorted(map(str, values))))
    if filters.since_ms is not None:
        conditions.append(F.last_seen_ms >= check_int64("since", filters.since_ms))
    return conditions


def _records(
    connection: Connection,
    conditions: Sequence[ColumnElement[bool]],
    order: Sequence[ColumnElement[Any]] = (F.id,),
    limit: int | None = None,
) -> tuple[FindingRecord, ...]:
    statement = select(*_COLUMNS).where(*conditions).order_by(*order).limit(limit)
    return tuple(
        FindingRecord(**(dict(row._mapping) | {"state": FindingState(row.state)}))
        for row in connection.execute(statement)
    )
