"""Writing a window: the caller holds the transaction and the lock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import astuple, dataclass

from sqlalchemy import Connection, and_, delete, insert, select, update

from gpucost.domain.errors import InputError, LedgerConflict
from gpucost.domain.holders import Bucket
from gpucost.domain.time import Month, Window
from gpucost.ledger import reader
from gpucost.ledger.database import insert_rows
from gpucost.ledger.dimensions import insert_new, resolve
from gpucost.ledger.errors import LateLines
from gpucost.ledger.lines import LineRow, Prepared
from gpucost.ledger.records import IngestResult, LedgerState, ProposedAdjustment
from gpucost.ledger.tables import (
    AUDIT,
    HOLDER,
    LEDGER_META,
    LEDGER_WINDOW,
    PROGRESS_LINE,
    RATE,
    UNIT,
    USAGE_LINE,
    WINDOW_PROBLEM,
    WINDOW_VERSION,
)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a version of a window comes from."""

    source: str
    code_version: str
    reason: str
    author: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class _Stored:
    """A window as the ledger has it."""

    id: int
    state: str
    version: int
    digest: str


def ingest(connection: Connection, prepared: Prepared, origin: Origin, *, settle: bool) -> IngestResult:
    stored = _window_row(connection, prepared.cluster, prepared.window)
    if stored is None:
        _refuse_overlap(connection, prepared.cluster, prepared.window)
    elif stored.digest == prepared.digest:
        if settle and stored.state == LedgerState.OPEN:
            _update_window(connection, stored.id, state=LedgerState.SETTLED)
        return IngestResult(stored.version, False, stored.digest)
    if reader.is_closed(connection, prepared.month):
        proposal = _proposal(connection, prepared, stored.id if stored else None)
        raise LateLines(prepared.month, f"{prepared.cluster} {prepared.window}", proposal)
    _keep_currency(connection, prepared.currency, origin.now_ms)
    _keep_rates(connection, prepared)
    version = _write_version(connection, prepared, origin, stored, settle=settle)
    return IngestResult(version, True, prepared.digest)


def settle(connection: Connection, cluster: str, window: Window) -> None:
    stored = _window_row(connection, cluster, window)
    if stored is None:
        raise InputError("window", f"{cluster} {window}", "a window of the ledger")
    if stored.state == LedgerState.OPEN:
        _update_window(connection, stored.id, state=LedgerState.SETTLED)


def record(
    connection: Connection, *, at_ms: int, author: str, action: str, subject: str, reason: str, detail: str
) -> None:
    """Add to the audit trail."""
    values = {"author": author, "action": action, "subject": subject, "reason": reason, "detail": detail}
    connection.execute(insert(AUDIT).values(at_ms=at_ms, **values))


def _window_row(connection: Connection, cluster: str, window: Window) -> _Stored | None:
    w, v = LEDGER_WINDOW.c, WINDOW_VERSION.c
    statement = (
        select(w.id, w.state, w.version, v.digest)
        .join(WINDOW_VERSION, and_(v.window_id == w.id, v.version == w.version))
        .where(w.cluster == cluster, w.start_ms == window.start_ms, w.end_ms == window.end_ms)
    )
    row = connection.execute(statement).one_or_none()
    return None if row is None else _Stored(*row)


def _refuse_overlap(connection: Connection, cluster: str, window: Window) -> None:
    w = LEDGER_WINDOW.c
    month = str(Month.of(window.start_ms))
    statement = select(w.start_ms, w.end_ms).where(
        w.cluster == cluster, w.month == month, w.start_ms < window.end_ms, w.end_ms > window.start_ms
    )
    for start_ms, end_ms in connection.execute(statement.order_by(w.start_ms).limit(1)):
        raise LedgerConflict(
            f"{cluster} {window} overlaps {Window(start_ms, end_ms)}, which the ledger has: windows of a "
            "cluster keep one length and alignment within a month"
        )


def _keep_currency(connection: Connection, currency: str | None, now_ms: int) -> None:
    if currency is None:
        return
    if reader.currency(connection) is None:
        values = {"id": 1, "currency": currency, "created_at_ms": now_ms}
        connection.execute(insert_new(connection, LEDGER_META), values)
    known = reader.currency(connection)
    if currency != known:
        raise InputError("currency", currency, f"{known}, the currency of this ledger")


def _keep_rates(connection: Connection, prepared: Prepared) -> None:
    """A rate_id is printed on reports of closed months: it keeps the value it had."""
    given = {row[0]: row for row in prepared.rates.values()}
    for rate_id, known in reader.rates(connection, given).items():
        if astuple(known) != given[rate_id]:
            raise LedgerConflict(f"rate {rate_id!r} is in the ledger as {known}, not as {given[rate_id]}")


def _write_version(
    connection: Connection, prepared: Prepared, origin: Origin, stored: _Stored | None, *, settle: bool
) -> int:
    state = LedgerState.SETTLED if settle else LedgerState.OPEN
    if stored is None:
        window_id, version = _add_window(connection, prepared, state), 1
    else:
        window_id, version = stored.id, stored.version + 1
        if stored.state == LedgerState.SETTLED:
            state = LedgerState.SETTLED
        _update_window(connection, window_id, state=state, version=version)
        for table in (USAGE_LINE, PROGRESS_LINE, WINDOW_PROBLEM):
            connection.execute(delete(table).where(table.c.window_id == window_id))
        record(
            connection,
            at_ms=origin.now_ms,
            author=origin.author,
            action="window version",
            subject=f"{prepared.cluster} {prepared.window}",
            reason=origin.reason,
            detail=f"version {version} {prepared.digest} replaces {stored.digest}",
        )
    connection.execute(
        insert(WINDOW_VERSION).values(
            (
                window_id,
                version,
                prepared.digest,
                origin.reason,
                *astuple(prepared.totals),
                prepared.observed_ms,
                origin.source,
                origin.code_version,
                origin.now_ms,
            )
        )
    )
    _write_content(connection, prepared, window_id)
    return version


def _add_window(connection: Connection, prepared: Prepared, state: LedgerState) -> int:
    window = prepared.window
    result = connection.execute(
        insert(LEDGER_WINDOW).values(
            cluster=prepared.cluster,
            start_ms=window.start_ms,
            end_ms=window.end_ms,
            month=str(prepared.month),
            state=str(state),
            version=1,
        )
    )
    assert result.inserted_primary_key is not None
    return int(result.inserted_primary_key[0])


def _update_window(connection: Connection, window_id: int, state: LedgerState, **values: int) -> None:
    connection.execute(
        update(LEDGER_WINDOW).where(LEDGER_WINDOW.c.id == window_id).values(state=str(state), **values)
    )


def _write_content(connection: Connection, prepared: Prepared, window_id: int) -> None:
    units = resolve(connection, UNIT, prepared.units)
    holders = resolve(connection, HOLDER, prepared.holders)
    rates = resolve(connection, RATE, prepared.rates) | {"": 0}
    rows = [
        (window_id, units[unit], holders[holder], rates[rate], *rest)
        for unit, holder, rate, *rest in prepared.lines
    ]
    # In key order, so that the pages of the table fill from one side.
    insert_rows(connection, USAGE_LINE, sorted(rows, key=lambda row: row[:5]))
    insert_rows(connection, PROGRESS_LINE, [(window_id, *row) for row in prepared.progress])
    insert_rows(
        connection, WINDOW_PROBLEM, [(window_id, seq, *row) for seq, row in enumerate(prepared.problems)]
    )


def _proposal(
    connection: Connection, prepared: Prepared, window_id: int | None
) -> tuple[ProposedAdjustment, ...]:
    """Per team, new minus stored, over capacity: over-commitment costs nothing and is nobody's."""
    sides: dict[str, list[tuple[int, int | None]]] = defaultdict(list)
    for team, board_ms, nano in _by_team(prepared.lines, prepared):
        sides[team].append((board_ms, nano))
    if window_id is not None:
        line, holder = USAGE_LINE.c, HOLDER.c
        statement = (
            select(holder.team, line.board_ms, line.nano)
            .join(HOLDER, holder.id == line.holder_id)
            .where(line.window_id == window_id, line.bucket != str(Bucket.OVERCOMMITTED))
        )
        for team, board_ms, nano in connection.execute(statement):
            sides[team].append((-board_ms, None if nano is None else -nano))
    proposal = []
    for team, parts in sorted(sides.items()):
        board_ms = sum(part for part, _ in parts)
        nano = None if any(part is None for _, part in parts) else sum(part or 0 for _, part in parts)
        if board_ms or nano or nano is None:
            proposal.append(ProposedAdjustment(team, board_ms, nano))
    return tuple(proposal)


def _by_team(lines: Iterable[LineRow], prepared: Prepared) -> Iterable[tuple[str, int, int | None]]:
    for _, holder, _, bucket, board_ms, nano, *_ in lines:
        if bucket != Bucket.OVERCOMMITTED:
            yield prepared.holders[holder][-1], board_ms, nano
