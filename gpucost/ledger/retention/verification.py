"""The tamper check: every digest computed again from what is stored, one window in memory at a time.

``integrity`` runs the database's own checks of its pages and indexes as well. Digests are read from the
tables one way; a report may go another, through an index that was damaged since, and miss rows of which every
digest agrees.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from sqlalchemy import Connection, Table, func, select, text
from sqlalchemy.exc import DBAPIError

from gpucost.contract.frames import LINE_MEASURES
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import LedgerDamaged, LedgerError, LedgerUnavailable
from gpucost.domain.time import Month, Window
from gpucost.ledger.db.audit_trail import audited_months, trail
from gpucost.ledger.db.digest import (
    adjustment_digest,
    content_key,
    line_texts,
    month_digest,
    seal_digest,
    window_digest,
)
from gpucost.ledger.db.records import LedgerState, VerifyFinding
from gpucost.ledger.db.tables import (
    ADJUSTMENT,
    HOLDER,
    LEDGER_WINDOW,
    METADATA,
    MONTH,
    MONTH_CHARGES,
    MONTH_SEAL,
    PROGRESS_LINE,
    RATE,
    SEAL_BEGUN,
    SEALED_HOLDER,
    TEAM_RULE,
    UNIT,
    USAGE_LINE,
    WASTE_LINE,
    WINDOW_PROBLEM,
    WINDOW_VERSION,
)
from gpucost.ledger.sealed.seal_folder import (
    LISTS,
    SealedMonth,
    SealFolder,
    changed_files,
    manifest_path,
)
from gpucost.ledger.sealed.sealed_reader import SealedStore, sealed_months
from gpucost.ledger.usage import day_sums, reader, rollups
from gpucost.ledger.usage.lines import totals
from gpucost.ledger.usage.months import SUMS
from gpucost.ledger.waste import waste_reader

W, V, M = LEDGER_WINDOW.c, WINDOW_VERSION.c, MONTH.c

_DIMENSIONS = (UNIT, HOLDER, RATE, TEAM_RULE)


def verify(
    connection: Connection, month: Month | None, sealed: SealedStore | None = None
) -> tuple[VerifyFinding, ...]:
    """See Ledger.verify. The dimensions are always checked: every month depends on them. Without ``sealed``
    the files of sealed months are not looked at."""
    findings = [finding for table in _DIMENSIONS for finding in _dimension(connection, table)]
    closed = {row.month: row for row in connection.execute(select(MONTH).order_by(M.seq))}
    known = (
        set(connection.execute(select(W.month).distinct()).scalars())
        | closed.keys()
        | audited_months(connection)
        | rollups.months_begun(connection)
    )
    wanted = known if month is None else {str(month)}
    for name in sorted(wanted):
        findings += _month(connection, Month.parse(name), closed.get(name))
        findings += _charges(connection, name)
        findings += waste_reader.verify(connection, name)
        findings += rollups.verify(connection, name)
        findings += day_sums.verify(connection, name)
        findings += verify_seal(connection, Month.parse(name), sealed)
    findings += _chain(list(closed.values()), wanted)
    findings += _adjustments(connection, wanted)
    findings += trail(connection, wanted)
    return tuple(findings)


def _charges(connection: Connection, month: str) -> Iterator[VerifyFinding]:
    """What teams were charged when the month was closed."""
    c = MONTH_CHARGES.c
    for row in connection.execute(select(MONTH_CHARGES).where(c.month == month)):
        values = [value for name, value in row._mapping.items() if name != "content_key"]
        if content_key(values) != row.content_key:
            yield VerifyFinding(Month.parse(month), "charges", "changed since the month was closed")


def _dimension(connection: Connection, table: Table) -> Iterator[VerifyFinding]:
    columns = list(table.columns)[2:]
    for row_id, key, *values in connection.execute(select(table.c.id, table.c.content_key, *columns)):
        # The row that stands for "no price" has no content and no key.
        if content_key(values) != key and (row_id, key) != (0, ""):
            yield VerifyFinding(None, f"{table.name} {row_id}", f"changed: now {values}")


def _month(connection: Connection, month: Month, closed: Any) -> Iterator[VerifyFinding]:
    statement = (
        select(
            *(W.id, W.cluster, W.start_ms, W.end_ms, W.state),
            *(V.observed_ms, V.digest, *SUMS),
        )
        .join(WINDOW_VERSION, reader.CURRENT_VERSION)
        .where(W.month == str(month))
    )
    rows = sorted(connection.execute(statement), key=lambda row: (row.cluster, row.start_ms))
    recomputed, in_days = [], rollups.window_ids(connection, str(month))
    if month in sealed_months(connection):  # its lines are in files
        in_days = {row.id for row in rows}
    for window_id, cluster, start_ms, end_ms, state, observed_ms, recorded, *sums in rows:
        subject = f"{cluster} {Window(start_ms, end_ms)}"
        header = (cluster, start_ms, end_ms, observed_ms)
        if window_id in in_days:  # its lines are in a rolled up day: the sums that were recorded of it count
            digest, found_sums = recorded, tuple(sums)
        else:
            digest, found_sums = _window(connection, window_id, header)
        recomputed.append((cluster, start_ms, end_ms, digest, *found_sums))
        if digest != recorded:
            yield VerifyFinding(month, subject, f"content changed: digest {digest}, recorded {recorded}")
        elif list(found_sums) != sums:
            yield VerifyFinding(month, subject, f"sums changed: {found_sums}, recorded {tuple(sums)}")
        if (state == LedgerState.CLOSED) != (closed is not None):
            yield VerifyFinding(month, subject, f"state {state} does not fit the month's")
    if closed is not None:
        digest = month_digest(str(month), closed.previous_digest, recomputed)
        if digest != closed.digest:
            yield VerifyFinding(
                month,
                str(month),
                f"{len(rows)} windows give digest {digest}, closed with {closed.digest}",
            )


def verify_seal(connection: Connection, month: Month, sealed: SealedStore | None) -> Iterator[VerifyFinding]:
    """Findings about the moves of a month into files: their chain, what the database keeps of the month,
    every file, by its hash, and files that no list names."""
    started = connection.execute(select(SEAL_BEGUN.c.seq, SEAL_BEGUN.c.month))
    begun = {(seq, name) for seq, name in started}
    previous = ""
    for row in connection.execute(select(MONTH_SEAL).order_by(MONTH_SEAL.c.seq)):
        if row.month == str(month):
            if seal_digest(previous, row._asdict()) != row.digest:
                yield VerifyFinding(month, row.month, f"{row.kind} {row.seq} changed, or one before it")
            if (row.seq, row.month) not in begun:
                yield VerifyFinding(month, row.month, f"{row.kind} {row.seq} was never begun")
        previous = row.digest
    manifest = sealed_months(connection).get(month)
    if manifest is None:
        return
    yield from _kept_beside(connection, month)
    if sealed is not None:
        try:
            folder, files = sealed.folder, sealed.month(month, manifest).manifest.files
            unnamed = unnamed_files(connection, folder, month)
        except LedgerUnavailable:
            raise
        except LedgerError as error:
            yield VerifyFinding(month, "sealed files", str(error))
            return
        for wrong in changed_files(folder, files):
            yield VerifyFinding(month, "sealed files", wrong)
        for path in unnamed:
            detail = f"{path} is in no list, and other programs count it: ledger seal {month} removes it"
            yield VerifyFinding(month, "sealed files", detail)


def unnamed_files(connection: Connection, folder: SealFolder, month: Month) -> tuple[str, ...]:
    """The files of a month that no list names now: what a killed seal left, or an unseal could not remove,
    and other programs would count. A folder is of one ledger; where it has lists of another one, they are
    those that a list of ours names and none of theirs. Lists come last, so that it is known whose the others
    are for as long as there are any."""
    found = folder.of_month(month)
    sha256 = sealed_months(connection).get(month)
    kept = set[str]() if sha256 is None else _named(folder, month, sha256)
    ours, theirs = lists_of(connection, folder, month, found)
    mine = set(found)
    if theirs:
        mine = {path for each in ours for path in _named(folder, month, each)}
        kept.update(path for each in theirs for path in _named(folder, month, each))
    return tuple(sorted(mine.intersection(found) - kept, key=lambda path: (path.startswith(LISTS), path)))


def lists_of(
    connection: Connection, folder: SealFolder, month: Month, paths: Sequence[str]
) -> tuple[list[str], list[str]]:
    """The hashes of the lists among files of a month: of our own, and of those of other ledgers. One is ours
    where it was registered, or is of the month as it was closed here; what is no whole list is nobody's."""
    s = MONTH_SEAL.c
    registered = set(connection.execute(select(s.manifest).where(s.month == str(month))).scalars())
    closed = connection.execute(select(M.digest).where(M.month == str(month))).scalar()
    ours, theirs = list[str](), list[str]()
    for path in paths:
        if not path.startswith(LISTS):
            continue
        try:
            content = folder.content(path)
        except LedgerDamaged:  # another process has removed it since
            continue
        sha256 = hashlib.sha256(content).hexdigest()
        if path == manifest_path(month, sha256):
            is_ours = sha256 in registered or json.loads(content).get("month_digest") == closed
            (ours if is_ours else theirs).append(sha256)
    return ours, theirs


def _named(folder: SealFolder, month: Month, sha256: str) -> set[str]:
    """A list, and the files that it names."""
    manifest = SealedMonth(folder, month, sha256).manifest
    return {manifest_path(month, sha256), *(file.path for file in manifest.files)}


def _kept_beside(connection: Connection, month: Month) -> Iterator[VerifyFinding]:
    """What holders had in a sealed month must be what its windows summed to, and no line may be left."""
    s, seq = SEALED_HOLDER.c, select(func.max(MONTH_SEAL.c.seq)).where(MONTH_SEAL.c.month == str(month))
    sums = (func.sum(s.board_ms), func.sum(func.coalesce(s.nano, 0)), func.sum(s.unpriced_ms))
    capacity = s.bucket != str(Bucket.OVERCOMMITTED)
    of_holders = select(*sums).where(s.seq == seq.scalar_subquery(), capacity)
    of_windows = (
        select(func.sum(V.board_ms), func.sum(V.nano), func.sum(V.unpriced_ms))
        .join(LEDGER_WINDOW, reader.CURRENT_VERSION)
        .where(W.month == str(month))
    )
    kept, recorded = (
        tuple(int(each or 0) for each in connection.execute(statement).one())
        for statement in (of_holders, of_windows)
    )
    if kept != recorded:
        detail = f"holders sum to {kept}, the windows to {recorded}"
        yield VerifyFinding(month, "sealed month", detail)
    windows = select(W.id).where(W.month == str(month))
    for table in (USAGE_LINE, PROGRESS_LINE, WINDOW_PROBLEM, WASTE_LINE):
        if connection.execute(select(table.c.window_id).where(table.c.window_id.in_(windows))).first():
            yield VerifyFinding(
                month, "sealed month", f"rows of {table.name} in the database beside its files"
            )


def _window(connection: Connection, window_id: int, header: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    line, progress, problem = USAGE_LINE.c, PROGRESS_LINE.c, WINDOW_PROBLEM.c
    statement = (
        select(UNIT.c.content_key, HOLDER.c.content_key, RATE.c.content_key, line.bucket)
        .add_columns(*(line[name] for name in LINE_MEASURES))
        .join(UNIT, UNIT.c.id == line.unit_id)
        .join(HOLDER, HOLDER.c.id == line.holder_id)
        .join(RATE, RATE.c.id == line.rate_id)
        .where(line.window_id == window_id)
    )
    columns = list(zip(*connection.execute(statement), strict=True)) or [()] * (4 + len(LINE_MEASURES))
    amounts = select(progress.pod_uid, progress.name, progress.amount).where(progress.window_id == window_id)
    problems = select(problem.code, problem.cluster, problem.subject, problem.detail, problem.board_ms).where(
        problem.window_id == window_id
    )
    digest = window_digest(
        header,
        line_texts(columns),
        (tuple(row) for row in connection.execute(amounts)),
        (tuple(row) for row in connection.execute(problems)),
    )
    return digest, astuple(totals(*columns[3:6]))


def _chain(closed: Sequence[Any], wanted: set[str]) -> Iterator[VerifyFinding]:
    previous = ""
    for row in closed:
        if row.month in wanted and row.previous_digest != previous:
            yield VerifyFinding(
                Month.parse(row.month),
                row.month,
                f"chain broken: follows {row.previous_digest or 'nothing'}, the month closed before has "
                f"{previous or 'none'}",
            )
        previous = row.digest


def _adjustments(connection: Connection, wanted: set[str]) -> Iterator[VerifyFinding]:
    columns = [column for column in ADJUSTMENT.columns if column.name not in ("id", "digest")]
    previous = ""
    for recorded, *values in connection.execute(
        select(ADJUSTMENT.c.digest, *columns).order_by(ADJUSTMENT.c.id)
    ):
        if adjustment_digest(previous, values) != recorded and values[0] in wanted:
            subject = f"adjustment of {values[1]}, {values[8]}"
            yield VerifyFinding(Month.parse(values[0]), subject, "changed, or one before it is missing")
        previous = recorded


_MOST = 20

# Indexes of our tables. Those that PostgreSQL still builds, or failed to build, it does not use either.
_INDEXES = """
SELECT c.oid, c.relname FROM pg_index i
JOIN pg_class c ON c.oid = i.indexrelid
JOIN pg_class t ON t.oid = i.indrelid
JOIN pg_am a ON a.oid = c.relam
WHERE a.amname = 'btree' AND i.indisvalid AND pg_table_is_visible(t.oid) AND t.relname = ANY(:tables)
ORDER BY c.relname
"""
_AMCHECK = """
SELECT quote_ident(n.nspname) FROM pg_extension e
JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'amcheck'
"""
_NOT_ALLOWED = "42501"
# Class XX: data_corrupted, index_corrupted and internal errors; undefined_file: a file of it is gone.
_DAMAGED = ("XX", "58P01")


@dataclass(frozen=True, slots=True)
class IntegrityReport:
    """``damage`` in sentences, at most 20 of them; ``unchecked`` says why not everything was checked."""

    damage: tuple[str, ...] = ()
    unchecked: str = ""


def integrity(connection: Connection) -> IntegrityReport:
    """See Ledger.integrity."""
    return _sqlite(connection) if connection.dialect.name == "sqlite" else _postgres(connection)


def damaged_pages(connection: Connection) -> tuple[str, ...]:
    """The errors that SQLite's integrity check reports of pages, tables and indexes; empty when there are
    none."""
    found = connection.exec_driver_sql(f"PRAGMA integrity_check({_MOST})").scalars().all()
    return () if found == ["ok"] else tuple(map(str, found))


def _sqlite(connection: Connection) -> IntegrityReport:
    damage = damaged_pages(connection)
    if damage:
        return IntegrityReport(damage)
    orphans = connection.exec_driver_sql(
        'SELECT "table", parent, count(*) FROM pragma_foreign_key_check GROUP BY 1, 2 ORDER BY 1, 2'
    )
    missing = (
        f"{count:,} rows of {table} name a row of {parent} that is gone" for table, parent, count in orphans
    )
    return IntegrityReport(tuple(missing))


def _postgres(connection: Connection) -> IntegrityReport:
    """Checks by ``amcheck``: the order within each index, and that every row of its table is in it."""
    schema = connection.exec_driver_sql(_AMCHECK).scalar()
    if schema is None:
        return IntegrityReport(unchecked="the database has no extension amcheck (CREATE EXTENSION amcheck)")
    rows = connection.execute(text(_INDEXES), {"tables": list(METADATA.tables)}).all()
    damage = []
    for oid, name in rows:
        state, message = _checked(connection, schema, oid)
        if state == _NOT_ALLOWED:
            function = f"{schema}.bt_index_check(regclass, boolean)"
            return IntegrityReport(
                unchecked=f"{message} (GRANT EXECUTE ON FUNCTION {function} TO the ledger's user)"
            )
        if state:
            damage.append(f"index {name}: {message}")
    return IntegrityReport(tuple(damage[:_MOST]))


def _checked(connection: Connection, schema: str, oid: int) -> tuple[str, str]:
    """SQLSTATE and message of the error in one index; empty when there is none."""
    statement = text(f"SELECT {schema}.bt_index_check(CAST(:oid AS oid)::regclass, true)")
    try:
        with connection.begin_nested():
            connection.execute(statement, {"oid": oid})
    except DBAPIError as error:
        state = str(getattr(error.orig, "sqlstate", None) or "")
        if state != _NOT_ALLOWED and not state.startswith(_DAMAGED):
            raise
        return state, str(error.orig).strip().partition("\n")[0]
    return "", ""
