"""What the ledger does not keep for ever: the windows of old months, and rows that have been over for long.

Rolling up adds up the windows of a closed month by day. The rows of the windows themselves, with their
digests and sums, stay: the digest of the month is computed from them, and reports name them. What they held
goes into the first window of each day. Windows with different assessments are kept apart, so that the unknown
part of a day's capacity stays unknown. A line that came from several team rules in its day names none.

``forget`` deletes rows that have been over for long and that no number depends on. An event goes only with
its finding: a trigger allows deleting those of a resolved one that is marked (revision 0). The caller of
``roll_up`` and ``forget`` holds the transaction and the lock.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    Table,
    and_,
    case,
    cast,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from gpucost.contract.frames import LINE_MEASURES
from gpucost.domain.errors import InputError, LedgerError
from gpucost.domain.scope import Scope
from gpucost.domain.time import DAY_MS, Month, Window
from gpucost.ledger.db.audit_trail import FOLDS, fold_detail
from gpucost.ledger.db.database import LedgerDatabase, insert_rows
from gpucost.ledger.db.digest import folded_month_digest
from gpucost.ledger.db.records import (
    FoldRefused,
    LedgerState,
    MonthCharges,
    MonthRollup,
    PruningResult,
)
from gpucost.ledger.db.store_tables import (
    ALERT_GROUP,
    FINDING,
    FINDING_EVENT,
    NOTIFY_CONVERSATION,
    NOTIFY_POST,
)
from gpucost.ledger.db.stored_values import check_text
from gpucost.ledger.db.tables import (
    FOLD_BEGUN,
    FOLDED_DAY,
    LEDGER_WINDOW,
    MONTH,
    MONTH_FOLD,
    PROGRESS_LINE,
    USAGE_LINE,
    WASTE_LINE,
    WINDOW_PROBLEM,
)
from gpucost.ledger.retention import verification
from gpucost.ledger.sealed.sealed_reader import sealed_months
from gpucost.ledger.stores.outbox import ONCE
from gpucost.ledger.usage import day_sums, months, reader, rollups
from gpucost.ledger.usage.query import (
    TENSOR_OBSERVED,
    merged_problems,
    sum_by_hash,
    total_of,
)
from gpucost.ledger.usage.rollups import RollupPiece
from gpucost.ledger.usage.writer import record

L, P, W = USAGE_LINE.c, WASTE_LINE.c, LEDGER_WINDOW.c

_KEY = (L.unit_id, L.holder_id, L.rate_id, L.bucket)
_WASTE_KEY = (P.unit_id, P.holder_id, P.rate_id, P.bucket, P.waste)
_CONTENT = (USAGE_LINE, PROGRESS_LINE, WINDOW_PROBLEM, WASTE_LINE)

# What a sum would lose: a tensor signal for which the observed time is unknown.
_ODD = case(
    (L.tensor_active_ms.is_not(None) & L.sm_observed_ms.is_(None) & L.tensor_observed_ms.is_(None), 1),
    else_=0,
)


_TOLD = ("digest", "month_digest", "lines_before", "lines", "waste_before", "waste_lines")


@dataclass(frozen=True, slots=True)
class _DaySums:
    """What the windows of a piece hold together, as rows without a window."""

    lines: list[tuple[Any, ...]]
    waste: list[tuple[Any, ...]]
    progress: list[tuple[Any, ...]]
    problems: list[tuple[Any, ...]]


def due(connection: Connection, before_ms: int) -> tuple[Month, ...]:
    """Closed months that ended at or before ``before_ms`` and are neither rolled up nor sealed, oldest
    first."""
    statement = select(MONTH.c.month).where(MONTH.c.month.not_in(select(MONTH_FOLD.c.month)))
    found = (Month.parse(name) for name in connection.execute(statement).scalars())
    sealed = sealed_months(connection)
    return tuple(sorted(month for month in found if month.window.end_ms <= before_ms and month not in sealed))


def plan(connection: Connection, month: Month) -> MonthRollup:
    """The MonthRollup that ``roll_up`` would begin with: ``lines`` and ``waste_lines`` are not known yet, and
    0."""
    windows = select(W.id).where(W.month == str(month))
    counts = [
        connection.execute(select(func.count()).select_from(table).where(table.c.window_id.in_(windows)))
        for table in (USAGE_LINE, WASTE_LINE)
    ]
    lines, waste_lines = (int(count.scalar_one()) for count in counts)
    return MonthRollup(month, "", 0, "", lines, 0, waste_lines, 0)


def roll_up(connection: Connection, month: Month, author: str, now_ms: int) -> MonthRollup:
    """See Ledger.fold."""
    check_text("author", author, empty=False)
    info = months.info(connection, month)
    if info.state is not LedgerState.CLOSED or info.digest is None:
        raise InputError("month", str(month), "a closed month: only what does not change any more is folded")
    done = rollups.of_month(connection, month)
    if done is not None:
        return done
    if month in sealed_months(connection):
        raise InputError("month", str(month), "a month whose lines are in the database: this one is sealed")
    wrong = verification.verify(connection, month)
    if wrong:
        raise FoldRefused(month, [f"{finding.subject}: {finding.detail}" for finding in wrong])
    for cluster, start_ms in day_sums.pending(connection, month):
        day_sums.add_up(connection, cluster, start_ms)
    before = plan(connection, month)
    sum_by_hash(connection)
    connection.execute(insert(FOLD_BEGUN).values(month=str(month)))
    days = [
        day
        for piece in rollups.pieces(connection, str(month))
        if (day := _fold_piece(connection, str(month), piece)) is not None
    ]
    for wrong_day in day_sums.verify(connection, str(month)):
        raise LedgerError(f"{wrong_day.subject}: {wrong_day.detail}")
    digest = folded_month_digest(str(month), info.digest, days)
    after = plan(connection, month)
    row: dict[str, Any] = {
        "month": str(month),
        "digest": digest,
        "month_digest": info.digest,
        "folded_at_ms": now_ms,
        "author": author,
        "lines_before": before.lines_before,
        "lines": after.lines_before,
        "waste_before": before.waste_before,
        "waste_lines": after.waste_before,
    }
    connection.execute(insert(MONTH_FOLD).values(row))
    record(
        connection,
        at_ms=now_ms,
        author=author,
        action=FOLDS[0],
        subject=str(month),
        reason="",
        detail=fold_detail(**{name: row[name] for name in _TOLD}),
    )
    found = rollups.of_month(connection, month)
    assert found is not None
    return found


def _fold_piece(connection: Connection, month: str, piece: RollupPiece) -> tuple[Any, ...] | None:
    """Rolls up one piece; returns the day as the month's digest covers it, None where it stays as it is."""
    if len(piece.windows) < 2:
        return None
    sums = _sums(connection, piece)
    if sums is None:
        return None
    for table in _CONTENT:
        connection.execute(delete(table).where(table.c.window_id.in_(piece.ids)))
    for table, rows in zip(_CONTENT, (sums.lines, sums.progress, sums.problems, sums.waste), strict=True):
        insert_rows(connection, table, [(piece.carrier, *row) for row in rows])
    digest, totals = rollups.content(connection, piece)
    if astuple(totals)[1:] != piece.sums[1:]:
        raise LedgerError(f"{piece.subject}: the day would sum to {totals}, its windows to {piece.sums}")
    values = {
        "window_id": piece.carrier,
        "month": month,
        "cluster": piece.cluster,
        "start_ms": piece.start_ms,
        "end_ms": piece.end_ms,
        "assessed": piece.assessed,
        "windows": len(piece.windows),
        "lines": len(sums.lines),
        "waste_lines": len(sums.waste),
        "digest": digest,
    }
    connection.execute(insert(FOLDED_DAY).values(values))
    return rollups.day_row(values)


def _sums(connection: Connection, piece: RollupPiece) -> _DaySums | None:
    lines = _rows(connection, _lines(piece), len(_KEY) + len(LINE_MEASURES) + 1)
    waste = _rows(connection, _waste(piece), len(_WASTE_KEY) + 2)
    if lines is None or waste is None:
        return None
    return _DaySums(lines, waste, _progress(connection, piece), _problems(connection, piece))


def _lines(piece: RollupPiece) -> Select[Any]:
    measures = {name: L[name] for name in LINE_MEASURES} | {"tensor_observed_ms": TENSOR_OBSERVED}
    sums = [_measure(name, column) for name, column in measures.items()]
    # In one line, priced and unpriced time would no longer be told apart.
    mixed = (func.count(L.nano) > 0) & (func.count(L.nano) < func.count())
    checks = case((mixed, 1), else_=0), func.sum(_ODD)
    rule = L.team_rule_id
    # One rule for the whole day, or none is named.
    alone = (func.min(rule) == func.max(rule)) & (func.count(rule) == func.count())
    statement = select(*_KEY, *sums, case((alone, func.min(rule))), *checks).where(L.window_id.in_(piece.ids))
    return statement.group_by(*_KEY).order_by(*_KEY)


def _measure(name: str, column: Any) -> Any:
    if name == "first_ms":
        return func.min(column)
    return func.max(column) if name == "last_ms" else total_of(name, column)


def _waste(piece: RollupPiece) -> Select[Any]:
    sums = [cast(func.sum(column), BigInteger) for column in (P.board_ms, P.nano)]
    mixed = (func.count(P.nano) > 0) & (func.count(P.nano) < func.count())
    statement = select(*_WASTE_KEY, *sums, case((mixed, 1), else_=0)).where(P.window_id.in_(piece.ids))
    return statement.group_by(*_WASTE_KEY).order_by(*_WASTE_KEY)


def _rows(connection: Connection, statement: Select[Any], width: int) -> list[tuple[Any, ...]] | None:
    """The sums; None where one of the checks after them finds that they would lose something."""
    rows = [tuple(row) for row in connection.execute(statement)]
    return None if any(any(row[width:]) for row in rows) else [row[:width] for row in rows]


def _progress(connection: Connection, piece: RollupPiece) -> list[tuple[Any, ...]]:
    p = PROGRESS_LINE.c
    amounts: dict[tuple[str, str], list[float]] = defaultdict(list)
    statement = select(p.pod_uid, p.name, p.amount).where(p.window_id.in_(piece.ids))
    for pod_uid, name, amount in connection.execute(statement):
        amounts[pod_uid, name].append(amount)
    return [(*key, math.fsum(found)) for key, found in sorted(amounts.items())]


def _problems(connection: Connection, piece: RollupPiece) -> list[tuple[Any, ...]]:
    p = WINDOW_PROBLEM.c
    statement = select(p.code, p.cluster, p.subject, p.detail, p.board_ms).where(p.window_id.in_(piece.ids))
    found = sorted(merged_problems(connection.execute(statement)).items())
    return [(seq, *key, board_ms) for seq, (key, board_ms) in enumerate(found)]


F, E, N, C, G = FINDING.c, FINDING_EVENT.c, NOTIFY_POST.c, NOTIFY_CONVERSATION.c, ALERT_GROUP.c

_GOING = 0


def count(connection: Connection, before_ms: int) -> PruningResult:
    """How many rows ``forget`` would delete."""
    counts = {
        name: connection.execute(select(func.count()).select_from(table).where(old)).scalar_one()
        for name, (table, old) in _old(before_ms).items()
    }
    return PruningResult(**counts)


def forget(connection: Connection, before_ms: int) -> PruningResult:
    """See Ledger.forget."""
    old = _old(before_ms)
    connection.execute(update(FINDING).where(old["findings"][1]).values(revision=_GOING))
    counts = {
        name: connection.execute(delete(table).where(rows)).rowcount for name, (table, rows) in old.items()
    }
    return PruningResult(**counts)


def _old(before_ms: int) -> dict[str, tuple[Table, ColumnElement[bool]]]:
    """Events before their findings, deliveries before their conversations. An open conversation stays."""
    resolved = and_(F.state == "resolved", F.closed_at_ms < before_ms)
    over = and_(or_(C.resolved_ms.is_not(None), C.kind.in_(ONCE)), C.changed_ms < before_ms)
    posts = select(N.id).where(N.channel == C.channel, N.key == C.key).exists()
    return {
        "events": (FINDING_EVENT, E.finding_id.in_(select(F.id).where(resolved))),
        "findings": (FINDING, resolved),
        "posts": (NOTIFY_POST, and_(N.state != "waiting", N.ended_ms < before_ms)),
        "conversations": (NOTIFY_CONVERSATION, and_(over, ~posts)),
        "alert_groups": (ALERT_GROUP, G.received_ms < before_ms),
    }


@dataclass(frozen=True, slots=True)
class DayAddedUp:
    """A UTC day of a cluster whose usage is kept as sums beside the lines; not ``done`` where the lines do
    not sum to what was recorded of them, or a sum would leave 64 bits. Then reports read the lines."""

    cluster: str
    day: Window
    done: bool


# Rolling up waits for the closing or rolling up of a month, and not for writers of windows: these write to no
# closed month. No cluster has this name.
_RETENTION = "(retention)"


class RetentionStore:
    """A part of ``Ledger``. No sum of a day, and nothing that was closed, changes."""

    _database: LedgerDatabase
    _now: Callable[[], int]

    def foldable(self, before_ms: int) -> tuple[MonthRollup, ...]:
        """Closed months that ended at or before ``before_ms`` and are not rolled up, the oldest first, with
        the lines that they have now."""
        with self._database.read() as connection:
            return tuple(plan(connection, month) for month in due(connection, before_ms))

    def fold(self, month: Month, *, author: str) -> MonthRollup:
        """Add up the windows of a closed month by UTC day, in one transaction, after it was verified in it.

        Sums by day, month and anything longer stay the same to the last unit; the hours are gone. Days whose
        edge a window crosses, and those of which a sum would lose something, stay. Repeating it changes
        nothing. Raises InputError for a month that is not closed, FoldRefused for one that does not verify.
        """
        with self._database.write(_RETENTION) as connection:
            return roll_up(connection, month, author, self._now())

    def folded(self, month: Month) -> MonthRollup | None:
        """None for a month that still has its windows as they were written."""
        with self._database.read() as connection:
            return rollups.of_month(connection, month)

    def add_up_days(self) -> Iterator[DayAddedUp]:
        """Add up the usage of days that were written by an earlier release, the newest first. Each day is a
        transaction of its own: whoever stops in between goes on later. Reads are right all the time, and
        faster afterwards."""
        with self._database.read() as connection:
            found = day_sums.pending(connection)
        for cluster, start_ms in found:
            with self._database.write(cluster) as connection:
                done = day_sums.add_up_pending(connection, cluster, start_ms)
            yield DayAddedUp(cluster, Window(start_ms, start_ms + DAY_MS), done)

    def month_state(self, month: Month) -> str:
        """A digest of the month's windows as they stand."""
        with self._database.read() as connection:
            return months.state_of(connection, month)

    def month_charges(self, month: Month) -> MonthCharges | None:
        """What teams were charged when ``month`` was closed; None for an open month, and for one that was
        closed without. Of all teams: the caller answers for who sees it."""
        with self._database.read() as connection:
            return months.kept_charges(connection, month)

    def folded_days(self, scope: Scope, window: Window) -> tuple[Window, ...]:
        """The UTC days that meet ``window`` and whose hours are gone, in any of the clusters that ``scope``
        sees; sorted."""
        with self._database.read() as connection:
            return reader.rollup_days(connection, window, scope.clusters)

    def forget(self, before_ms: int, *, dry_run: bool = False) -> PruningResult:
        """Delete findings resolved before then, with their events; deliveries that were sent, given up or
        superseded before then, conversations that were over; and what Alertmanager sent before then."""
        if dry_run:
            with self._database.read() as connection:
                return count(connection, before_ms)
        with self._database.write(_RETENTION) as connection:
            return forget(connection, before_ms)

    def free_bytes(self) -> int | None:
        """Bytes in the file that new rows will reuse; None where the database is not a file of ours."""
        return self._database.free_bytes()

    def vacuum(self) -> None:
        """Return that space to the file system. It needs as much again while it runs, and blocks writers."""
        self._database.vacuum()
