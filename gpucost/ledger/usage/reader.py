"""The state of the ledger: windows, rates, frontier, history, rolled up days. No usage is read here."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select

from gpucost.domain.errors import LedgerError
from gpucost.domain.rates import Rate
from gpucost.domain.scope import Scope
from gpucost.domain.time import Month, Window
from gpucost.ledger.db.dimensions import chunked, in_clusters
from gpucost.ledger.db.records import (
    AuditEntry,
    LedgerState,
    WindowInfo,
    WindowVersion,
)
from gpucost.ledger.db.tables import (
    AUDIT,
    FOLDED_DAY,
    LEDGER_META,
    LEDGER_WINDOW,
    MONTH,
    RATE,
    WINDOW_VERSION,
)

W, V = LEDGER_WINDOW.c, WINDOW_VERSION.c
CURRENT_VERSION = and_(V.window_id == W.id, V.version == W.version)


def currency(connection: Connection) -> str | None:
    return connection.execute(select(LEDGER_META.c.currency)).scalar_one_or_none()


def clusters(connection: Connection, scope: Scope) -> tuple[str, ...]:
    statement = select(W.cluster).distinct().where(*in_clusters(scope, W.cluster))
    return tuple(sorted(connection.execute(statement).scalars()))


def is_closed(connection: Connection, month: Month) -> bool:
    return connection.execute(select(MONTH.c.seq).where(MONTH.c.month == str(month))).first() is not None


def extent(connection: Connection, scope: Scope, cluster: str | None) -> Window | None:
    statement = select(func.min(W.start_ms), func.max(W.end_ms)).where(*in_clusters(scope, W.cluster))
    if cluster is not None:
        statement = statement.where(W.cluster == cluster)
    start_ms, end_ms = connection.execute(statement).one()
    return None if start_ms is None else Window(start_ms, end_ms)


def frontier(connection: Connection, cluster: str) -> int | None:
    """A closed month counts as unbroken, so the run starts at the end of the last one, or later."""
    first = connection.execute(select(func.min(W.start_ms)).where(W.cluster == cluster)).scalar_one()
    if first is None:
        return None
    last_month = connection.execute(select(func.max(MONTH.c.month))).scalar_one()
    closed_end = Month.parse(last_month).window.end_ms if last_month else None
    start = first if closed_end is None else max(first, closed_end)
    runs = (
        select(
            W.start_ms,
            W.end_ms,
            W.state,
            func.lag(W.end_ms).over(order_by=W.start_ms).label("before_ms"),
        )
        .where(W.cluster == cluster, W.start_ms >= start)
        .subquery()
    )
    broken = or_(runs.c.state == LedgerState.OPEN, func.coalesce(runs.c.before_ms, start) != runs.c.start_ms)
    stop = select(func.min(runs.c.start_ms)).where(broken).scalar_subquery()
    end = connection.execute(
        select(func.max(runs.c.end_ms)).where(or_(stop.is_(None), runs.c.start_ms < stop))
    ).scalar_one()
    if end is None:
        return start if start == closed_end else None
    return int(end)


def windows(
    connection: Connection, scope: Scope, window: Window, cluster: str | None
) -> tuple[WindowInfo, ...]:
    conditions: list[ColumnElement[bool]] = [W.start_ms < window.end_ms, W.end_ms > window.start_ms]
    conditions += in_clusters(scope, W.cluster)
    if cluster is not None:
        conditions.append(W.cluster == cluster)
    statement = (
        select(
            *(W.cluster, W.start_ms, W.end_ms, W.state, W.version),
            *(
                V.digest,
                V.observed_ms,
                V.source,
                V.code_version,
                V.written_at_ms,
                V.board_ms,
                V.nano,
                V.unpriced_ms,
            ),
        )
        .join(WINDOW_VERSION, CURRENT_VERSION)
        .where(*conditions)
    )
    found = (
        WindowInfo(name, Window(start_ms, end_ms), LedgerState(state), *rest)
        for name, start_ms, end_ms, state, *rest in connection.execute(statement)
    )
    return tuple(sorted(found, key=lambda info: (info.cluster, info.window)))


def rates(connection: Connection, rate_ids: Collection[str]) -> dict[str, Rate]:
    found: dict[str, Rate] = {}
    columns = [column for column in RATE.columns if column.name not in ("id", "content_key")]
    for chunk in chunked(sorted(set(rate_ids) - {""})):
        for row in connection.execute(select(*columns).where(RATE.c.rate_id.in_(chunk))):
            found[row.rate_id] = Rate(**row._mapping)
    return found


def history(connection: Connection, scope: Scope, cluster: str, window: Window) -> tuple[WindowVersion, ...]:
    if not (scope.sees_every_team and scope.sees_cluster(cluster)):
        raise LedgerError("the history of a window needs a scope that sees every team of its cluster")
    columns = [column for column in WINDOW_VERSION.columns if column.name != "window_id"]
    statement = (
        select(*columns)
        .join(LEDGER_WINDOW, W.id == V.window_id)
        .where(W.cluster == cluster, W.start_ms == window.start_ms, W.end_ms == window.end_ms)
        .order_by(V.version)
    )
    return tuple(WindowVersion(**row._mapping) for row in connection.execute(statement))


def audit(connection: Connection, scope: Scope) -> tuple[AuditEntry, ...]:
    if not scope.sees_all:
        raise LedgerError("the audit trail needs a scope that sees every team of every cluster")
    columns = [column for column in AUDIT.columns if column.name != "id"]
    return tuple(
        AuditEntry(**row._mapping) for row in connection.execute(select(*columns).order_by(AUDIT.c.id))
    )


F = FOLDED_DAY.c


def rollup_days(
    connection: Connection, window: Window, clusters: Collection[str] | None
) -> tuple[Window, ...]:
    """The rolled up days that meet ``window``, sorted; ``clusters`` None is all of them."""
    statement = select(F.start_ms, F.end_ms).where(F.start_ms < window.end_ms, F.end_ms > window.start_ms)
    if clusters is not None:
        statement = statement.where(F.cluster.in_(sorted(clusters)))
    return tuple(sorted({Window(*row) for row in connection.execute(statement)}))


def holds_rollup_days(connection: Connection, window_id: int) -> bool:
    """Whether a window lies in a rolled up day."""
    statement = select(F.window_id).join(
        LEDGER_WINDOW, (W.cluster == F.cluster) & (W.start_ms >= F.start_ms) & (W.start_ms < F.end_ms)
    )
    return connection.execute(statement.where(W.id == window_id)).first() is not None
