"""Folding: the windows of a closed month added up by day. The caller holds the transaction and the lock.

The rows of the windows themselves, with their digests and sums, stay: the digest of the month rests on them,
and reports name them. What they held goes into the first window of each day. Windows that were assessed
differently are kept apart, so that what is unknown of a day's capacity stays so.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import astuple, dataclass
from typing import Any

from sqlalchemy import BigInteger, Connection, Select, case, cast, delete, func, insert, select

from gpucost.contract.frames import LINE_MEASURES
from gpucost.domain.errors import InputError, LedgerError
from gpucost.domain.time import Month
from gpucost.ledger import folded, months, verification
from gpucost.ledger.checks import check_text
from gpucost.ledger.database import insert_rows
from gpucost.ledger.digest import folded_month_digest
from gpucost.ledger.errors import FoldRefused
from gpucost.ledger.folded import Piece
from gpucost.ledger.query import TENSOR_OBSERVED, merged_problems, sum_by_hash, total_of
from gpucost.ledger.records import FoldedMonth, LedgerState
from gpucost.ledger.tables import LEDGER_WINDOW, MONTH, PROGRESS_LINE, USAGE_LINE, WINDOW_PROBLEM
from gpucost.ledger.tables_folding import FOLD_BEGUN, FOLDED_DAY, MONTH_FOLD
from gpucost.ledger.tables_waste import WASTE_LINE
from gpucost.ledger.trail import FOLDS, fold_detail
from gpucost.ledger.writer import record

L, P, W = USAGE_LINE.c, WASTE_LINE.c, LEDGER_WINDOW.c

_KEY = (L.unit_id, L.holder_id, L.rate_id, L.bucket)
_WASTE_KEY = (P.unit_id, P.holder_id, P.rate_id, P.bucket, P.waste)
_CONTENT = (USAGE_LINE, PROGRESS_LINE, WINDOW_PROBLEM, WASTE_LINE)

# What a sum could not tell of: a tensor signal of which nobody knows for how long it was observed.
_ODD = case(
    (L.tensor_active_ms.is_not(None) & L.sm_observed_ms.is_(None) & L.tensor_observed_ms.is_(None), 1),
    else_=0,
)


_TOLD = ("digest", "month_digest", "lines_before", "lines", "waste_before", "waste_lines")


@dataclass(frozen=True, slots=True)
class _Sums:
    """What the windows of a piece hold together, as rows without a window."""

    lines: list[tuple[Any, ...]]
    waste: list[tuple[Any, ...]]
    progress: list[tuple[Any, ...]]
    problems: list[tuple[Any, ...]]


def due(connection: Connection, before_ms: int) -> tuple[Month, ...]:
    """Closed months that ended at or before ``before_ms`` and are not folded, oldest first."""
    statement = select(MONTH.c.month).where(MONTH.c.month.not_in(select(MONTH_FOLD.c.month)))
    found = (Month.parse(name) for name in connection.execute(statement).scalars())
    return tuple(sorted(month for month in found if month.window.end_ms <= before_ms))


def plan(connection: Connection, month: Month) -> FoldedMonth:
    """What ``fold`` would begin with: ``lines`` and ``waste_lines`` are not known yet, and 0."""
    windows = select(W.id).where(W.month == str(month))
    counts = [
        connection.execute(select(func.count()).select_from(table).where(table.c.window_id.in_(windows)))
        for table in (USAGE_LINE, WASTE_LINE)
    ]
    lines, waste_lines = (int(count.scalar_one()) for count in counts)
    return FoldedMonth(month, "", 0, "", lines, 0, waste_lines, 0)


def fold(connection: Connection, month: Month, author: str, now_ms: int) -> FoldedMonth:
    """See Ledger.fold."""
    check_text("author", author, empty=False)
    info = months.info(connection, month)
    if info.state is not LedgerState.CLOSED or info.digest is None:
        raise InputError("month", str(month), "a closed month: only what does not change any more is folded")
    done = folded.of_month(connection, month)
    if done is not None:
        return done
    wrong = verification.verify(connection, month)
    if wrong:
        raise FoldRefused(month, [f"{finding.subject}: {finding.detail}" for finding in wrong])
    before = plan(connection, month)
    sum_by_hash(connection)
    connection.execute(insert(FOLD_BEGUN).values(month=str(month)))
    days = [
        day
        for piece in folded.pieces(connection, str(month))
        if (day := _fold_piece(connection, str(month), piece)) is not None
    ]
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
    found = folded.of_month(connection, month)
    assert found is not None
    return found


def _fold_piece(connection: Connection, month: str, piece: Piece) -> tuple[Any, ...] | None:
    """The day as the month's digest covers it; None where it stays as it is."""
    if len(piece.windows) < 2:
        return None
    sums = _sums(connection, piece)
    if sums is None:
        return None
    for table in _CONTENT:
        connection.execute(delete(table).where(table.c.window_id.in_(piece.ids)))
    for table, rows in zip(_CONTENT, (sums.lines, sums.progress, sums.problems, sums.waste), strict=True):
        insert_rows(connection, table, [(piece.carrier, *row) for row in rows])
    digest, totals = folded.content(connection, piece)
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
    return folded.day_row(values)


def _sums(connection: Connection, piece: Piece) -> _Sums | None:
    lines = _rows(connection, _lines(piece), len(_KEY) + len(LINE_MEASURES))
    waste = _rows(connection, _waste(piece), len(_WASTE_KEY) + 2)
    if lines is None or waste is None:
        return None
    return _Sums(lines, waste, _progress(connection, piece), _problems(connection, piece))


def _lines(piece: Piece) -> Select[Any]:
    measures = {name: L[name] for name in LINE_MEASURES} | {"tensor_observed_ms": TENSOR_OBSERVED}
    sums = [_measure(name, column) for name, column in measures.items()]
    # Priced and unpriced time in one line would lose the unpriced.
    mixed = (func.count(L.nano) > 0) & (func.count(L.nano) < func.count())
    checks = case((mixed, 1), else_=0), func.sum(_ODD)
    statement = select(*_KEY, *sums, *checks).where(L.window_id.in_(piece.ids))
    return statement.group_by(*_KEY).order_by(*_KEY)


def _measure(name: str, column: Any) -> Any:
    if name == "first_ms":
        return func.min(column)
    return func.max(column) if name == "last_ms" else total_of(name, column)


def _waste(piece: Piece) -> Select[Any]:
    sums = [cast(func.sum(column), BigInteger) for column in (P.board_ms, P.nano)]
    mixed = (func.count(P.nano) > 0) & (func.count(P.nano) < func.count())
    statement = select(*_WASTE_KEY, *sums, case((mixed, 1), else_=0)).where(P.window_id.in_(piece.ids))
    return statement.group_by(*_WASTE_KEY).order_by(*_WASTE_KEY)


def _rows(connection: Connection, statement: Select[Any], width: int) -> list[tuple[Any, ...]] | None:
    """The sums; None where one of the checks after them says that they would lose something."""
    rows = [tuple(row) for row in connection.execute(statement)]
    return None if any(any(row[width:]) for row in rows) else [row[:width] for row in rows]


def _progress(connection: Connection, piece: Piece) -> list[tuple[Any, ...]]:
    p = PROGRESS_LINE.c
    amounts: dict[tuple[str, str], list[float]] = defaultdict(list)
    statement = select(p.pod_uid, p.name, p.amount).where(p.window_id.in_(piece.ids))
    for pod_uid, name, amount in connection.execute(statement):
        amounts[pod_uid, name].append(amount)
    return [(*key, math.fsum(found)) for key, found in sorted(amounts.items())]


def _problems(connection: Connection, piece: Piece) -> list[tuple[Any, ...]]:
    p = WINDOW_PROBLEM.c
    statement = select(p.code, p.cluster, p.subject, p.detail, p.board_ms).where(p.window_id.in_(piece.ids))
    found = sorted(merged_problems(connection.execute(statement)).items())
    return [(seq, *key, board_ms) for seq, (key, board_ms) in enumerate(found)]
