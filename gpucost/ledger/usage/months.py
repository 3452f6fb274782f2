"""Months: what blocks closing one, closing it, and correcting it afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from fractions import Fraction
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from gpucost.domain.errors import InputError, LedgerConflict
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import Month, Window
from gpucost.ledger.db.audit_trail import ADJUSTS, CHARGES, CLOSES, adjustment_event
from gpucost.ledger.db.digest import adjustment_digest, content_key, month_digest
from gpucost.ledger.db.dimensions import in_clusters
from gpucost.ledger.db.records import (
    Adjustment,
    CloseRefused,
    LedgerState,
    MonthCharges,
    MonthInfo,
    MonthOpen,
    WindowInfo,
)
from gpucost.ledger.db.stored_values import check_int64, check_text
from gpucost.ledger.db.tables import (
    ADJUSTMENT,
    LEDGER_WINDOW,
    MONTH,
    MONTH_CHARGES,
    WINDOW_VERSION,
)
from gpucost.ledger.usage import day_sums, reader
from gpucost.ledger.usage.writer import record

W, V, M, A = LEDGER_WINDOW.c, WINDOW_VERSION.c, MONTH.c, ADJUSTMENT.c
C = MONTH_CHARGES.c
_LONGEST_REASON = 10_000
SUMS = (V.line_count, V.board_ms, V.unknown_ms, V.unpriced_ms, V.nano)


def info(connection: Connection, month: Month, scope: Scope = EVERYTHING) -> MonthInfo:
    """See Ledger.month. The digest of a month and the reason for closing it are of all clusters."""
    row = connection.execute(select(MONTH).where(M.month == str(month))).one_or_none()
    if row is None:
        return MonthInfo(month, LedgerState.OPEN, _version(connection, month, scope))
    if scope.clusters is not None:
        closed = MonthInfo(month, LedgerState.CLOSED, _version(connection, month, scope))
        return replace(closed, closed_at_ms=row.closed_at_ms, author=row.author)
    return MonthInfo(
        month,
        LedgerState.CLOSED,
        row.version,
        row.digest,
        row.previous_digest,
        row.closed_at_ms,
        row.author,
        row.reason,
    )


def blockers(
    connection: Connection, month: Month, min_coverage: Fraction, scope: Scope = EVERYTHING
) -> tuple[str, ...]:
    """Missing and open windows, and coverage: the observed part of the month, per cluster.

    Every cluster with a window in this month or the one before is expected to have all of it.
    """
    if not 0 <= min_coverage <= 1:
        raise InputError("min_coverage", str(min_coverage), "0 to 1")
    before = reader.windows(connection, scope, month.previous().window, None)
    by_cluster: dict[str, list[WindowInfo]] = {info.cluster: [] for info in before}
    for info_ in reader.windows(connection, scope, month.window, None):
        by_cluster.setdefault(info_.cluster, []).append(info_)
    if not by_cluster:
        return (f"no cluster has a window in {month}",)
    return tuple(
        blocker
        for cluster, windows in sorted(by_cluster.items())
        for blocker in _cluster_blockers(cluster, windows, month, min_coverage)
    )


def close(
    connection: Connection,
    month: Month,
    *,
    author: str,
    min_coverage: Fraction,
    reason: str | None,
    now_ms: int,
    charges: MonthCharges | None = None,
    state: str | None = None,
    more: Sequence[str] = (),
) -> MonthInfo:
    check_text("author", author, empty=False)
    check_text("reason", reason or "", most=_LONGEST_REASON)
    if reader.is_closed(connection, month):
        return info(connection, month)
    if now_ms < month.window.end_ms:
        raise InputError("month", str(month), "a month that has ended")
    found = (*blockers(connection, month, min_coverage), *more)
    if found and not (reason and reason.strip()):
        raise CloseRefused(month, found)
    if state is not None and state != state_of(connection, month):
        raise LedgerConflict(f"{month} was written to while it was being closed; try again")
    previous = connection.execute(select(M.digest).order_by(M.seq.desc()).limit(1)).scalar_one_or_none() or ""
    digest = month_digest(str(month), previous, window_rows(connection, month))
    version = _version(connection, month)
    day_sums.close(connection, month)
    connection.execute(
        update(LEDGER_WINDOW).where(W.month == str(month)).values(state=str(LedgerState.CLOSED))
    )
    connection.execute(
        insert(MONTH).values(
            month=str(month),
            version=version,
            digest=digest,
            previous_digest=previous,
            closed_at_ms=now_ms,
            author=author,
            reason=reason or "",
        )
    )
    record(
        connection,
        at_ms=now_ms,
        author=author,
        action=CLOSES[1] if found else CLOSES[0],
        subject=str(month),
        reason=reason or "",
        detail="\n".join((digest, *found)),
    )
    if charges is not None:
        _keep(connection, month, charges, author, now_ms)
    return info(connection, month)


def _keep(connection: Connection, month: Month, charges: MonthCharges, author: str, now_ms: int) -> None:
    values = asdict(charges) | {"amounts": json.dumps(charges.amounts)}
    key = content_key([str(month), *values.values()])
    connection.execute(insert(MONTH_CHARGES).values(month=str(month), content_key=key, **values))
    record(
        connection, at_ms=now_ms, author=author, action=CHARGES[0], subject=str(month), reason="", detail=key
    )


def kept_charges(connection: Connection, month: Month) -> MonthCharges | None:
    """See Ledger.month_charges."""
    row = connection.execute(select(MONTH_CHARGES).where(C.month == str(month))).one_or_none()
    if row is None:
        return None
    values = {name: value for name, value in row._mapping.items() if name not in ("month", "content_key")}
    amounts = tuple((str(team), int(board_ms), int(nano)) for team, board_ms, nano in json.loads(row.amounts))
    return MonthCharges(**{**values, "amounts": amounts})


def state_of(connection: Connection, month: Month) -> str:
    """A digest of the month's windows as they stand, whether or not it is closed."""
    return month_digest(str(month), "", window_rows(connection, month))


def window_rows(connection: Connection, month: Month) -> Iterator[Sequence[Any]]:
    """(cluster, start, end, digest, *sums) of the month's windows, as recorded, in code-point order."""
    statement = (
        select(W.cluster, W.start_ms, W.end_ms, V.digest, *SUMS)
        .join(WINDOW_VERSION, reader.CURRENT_VERSION)
        .where(W.month == str(month))
    )
    return iter(sorted(map(tuple, connection.execute(statement))))


def adjust(
    connection: Connection,
    month: Month,
    *,
    team: str,
    nano: int,
    board_ms: int,
    reason: str,
    author: str,
    reference: str,
    job_uid: str,
    now_ms: int,
) -> Adjustment:
    for field, value in (("team", team), ("reason", reason), ("author", author), ("reference", reference)):
        check_text(field, value, empty=False)
    check_text("job_uid", job_uid)
    check_int64("nano", nano)
    check_int64("board_ms", board_ms)
    if not reader.is_closed(connection, month):
        raise MonthOpen(month)
    currency = reader.currency(connection)
    if currency is None:
        raise InputError("nano", nano, "nothing: this ledger has no currency yet")
    wanted = Adjustment(month, team, job_uid, board_ms, nano, currency, reason, author, reference, now_ms)
    for stored in adjustments(connection, Scope(frozenset({team})), month):
        if (stored.job_uid, stored.reference) == (job_uid, reference):
            return _same_again(stored, wanted)
    previous = connection.execute(select(A.digest).order_by(A.id.desc()).limit(1)).scalar_one_or_none() or ""
    values = adjustment_values(wanted)
    connection.execute(
        insert(ADJUSTMENT).values(**values, digest=adjustment_digest(previous, list(values.values())))
    )
    at_ms, author, subject, reason, detail = adjustment_event(
        now_ms, author, str(month), team, job_uid, reason, reference, board_ms, nano, currency
    )
    record(
        connection,
        at_ms=at_ms,
        author=author,
        action=ADJUSTS[0],
        subject=subject,
        reason=reason,
        detail=detail,
    )
    return wanted


def adjustments(connection: Connection, scope: Scope, month: Month) -> tuple[Adjustment, ...]:
    # An adjustment belongs to no cluster: a reader of some clusters would see others', or parts of them.
    if scope.clusters is not None:
        return ()
    columns = [column for column in ADJUSTMENT.columns if column.name not in ("id", "month", "digest")]
    statement = select(*columns).where(A.month == str(month)).order_by(A.id)
    if scope.teams is not None:
        statement = statement.where(A.team.in_(sorted(scope.teams)))
    return tuple(Adjustment(month, **row._mapping) for row in connection.execute(statement))


def adjustment_values(adjustment: Adjustment) -> dict[str, Any]:
    """Column -> value, in the order that the digest of an adjustment covers."""
    return {**asdict(adjustment), "month": str(adjustment.month)}


def _same_again(stored: Adjustment, wanted: Adjustment) -> Adjustment:
    if replace(wanted, created_at_ms=stored.created_at_ms) != stored:
        raise LedgerConflict(
            f"reference {stored.reference!r} was used with other values for {stored.month} {stored.team}"
        )
    return stored


def _version(connection: Connection, month: Month, scope: Scope = EVERYTHING) -> int:
    statement = select(func.count()).select_from(WINDOW_VERSION).join(LEDGER_WINDOW, W.id == V.window_id)
    statement = statement.where(*in_clusters(scope, W.cluster))
    return int(connection.execute(statement.where(W.month == str(month))).scalar_one())


def _cluster_blockers(
    cluster: str, windows: Sequence[WindowInfo], month: Month, min_coverage: Fraction
) -> Iterator[str]:
    for missing in _gaps([info_.window for info_ in windows], month.window):
        yield f"{cluster}: no window in {missing}"
    for state, run in groupby(windows, key=lambda info_: info_.state):
        if state is LedgerState.OPEN:
            yield from (f"{cluster}: {found} is open" for found in _joined(info_.window for info_ in run))
    coverage = Fraction(sum(info_.observed_ms for info_ in windows), month.window.length_ms)
    if coverage < min_coverage:
        yield f"{cluster}: coverage {float(coverage):.4f} is below {float(min_coverage):.4f}"


def _gaps(windows: Sequence[Window], whole: Window) -> Iterator[Window]:
    """The parts of ``whole`` that no window covers; ``windows`` are sorted."""
    at = whole.start_ms
    for window in windows:
        if window.start_ms > at:
            yield Window(at, window.start_ms)
        at = window.end_ms
    if at < whole.end_ms:
        yield Window(at, whole.end_ms)


def _joined(windows: Iterable[Window]) -> Iterator[Window]:
    """Adjacent windows joined, so that a whole open day is one line of a list."""
    run: Window | None = None
    for window in windows:
        if run is not None and run.end_ms == window.start_ms:
            run = Window(run.start_ms, window.end_ms)
        else:
            if run is not None:
                yield run
            run = window
    if run is not None:
        yield run
