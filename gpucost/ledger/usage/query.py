"""Reads of usage: every one takes a Scope, and every value from outside is a bound parameter."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    Table,
    and_,
    case,
    cast,
    func,
    literal_column,
    or_,
    select,
)
from sqlalchemy.sql.selectable import Subquery

from gpucost.charges.capacity_cells import CapacityCell, CellRow
from gpucost.contract.frames import PEAKS, SIGNAL_MEASURES
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import DataProblem, DataProblemCode, InputError
from gpucost.domain.scope import Scope
from gpucost.domain.time import DAY_MS, Window
from gpucost.ledger.db.dimensions import chunked, clusters_of, in_clusters
from gpucost.ledger.db.tables import (
    FOLDED_DAY,
    HOLDER,
    LEDGER_WINDOW,
    PROGRESS_LINE,
    RATE,
    TEAM_RULE,
    UNIT,
    USAGE_LINE,
    WINDOW_PROBLEM,
)
from gpucost.ledger.usage import reader
from gpucost.ledger.usage.lines import HOLDER_KEY_COLUMNS, UNIT_COLUMNS

# The share of a GPU that one unit is: integers, to group by but not to filter on.
_SHARE_DIMS = ("share_num", "share_den")
_UNIT_DIMS = tuple(name for name in UNIT_COLUMNS if name not in _SHARE_DIMS)
_HOLDER_DIMS = tuple(name for name in HOLDER_KEY_COLUMNS if name != "team_label")
_TABLE_OF: dict[str, Table] = (
    dict.fromkeys(UNIT_COLUMNS, UNIT)
    | dict.fromkeys(_HOLDER_DIMS, HOLDER)
    | {"rate_id": RATE, "team_rule": TEAM_RULE}
)
DIMENSIONS = (*_UNIT_DIMS, "bucket", *_HOLDER_DIMS, "rate_id")
# Of usage lines only: waste lines do not say it. Empty where no pod held, and where it was not recorded.
USAGE_DIMENSIONS = (*DIMENSIONS, "team_rule")
_SUMS = ("board_ms", "nano", "unpriced_ms", *SIGNAL_MEASURES)
MEASURES = (*_SUMS, "first_ms", "last_ms")
_NULLABLE = frozenset(("nano", *SIGNAL_MEASURES))

# What a scope with teams sees: their own time. Capacity that no pod held is not part of it.
_OF_A_TEAM = (str(Bucket.HELD), str(Bucket.OVERCOMMITTED))

# No window is longer: it lies inside one month.
_LONGEST_WINDOW_MS = 31 * DAY_MS

# PostgreSQL estimates that the sums by id are nearly as many as the lines, and would sort the lines on disk
# and in one process. Hashing them, and letting several processes read, takes a third of the time. In force
# until the end of the transaction.
_BY_HASH = "; ".join(
    f"SET LOCAL {setting}"
    for setting in (
        "enable_sort = off",
        "work_mem = '64MB'",
        "jit = off",
        "parallel_setup_cost = 0",
        "parallel_tuple_cost = 0",
    )
)

# A parameter would not be the same expression in SELECT and GROUP BY.
_EMPTY: ColumnElement[str] = literal_column("''")

# Without keys to group by, SQL returns one row even for no lines.
_SOME = func.count() > 0

L, W, H = USAGE_LINE.c, LEDGER_WINDOW.c, HOLDER.c

# Lines of the first release: the tensor signal was read with the SM signal or not at all.
TENSOR_OBSERVED = func.coalesce(
    L.tensor_observed_ms, case((L.tensor_active_ms.is_not(None), L.sm_observed_ms))
)


def aggregate(
    connection: Connection,
    scope: Scope,
    window: Window,
    dims: Sequence[str],
    filters: Mapping[str, Collection[str]],
    step_ms: int | None,
) -> pd.DataFrame:
    """See Ledger.aggregate. Sums by integer ids first, and adds the names afterwards: the lines are read
    once."""
    check_dims(dims, filters, USAGE_DIMENSIONS)
    refuse_cut(connection, window, clusters_of(scope, filters), step_ms)
    lines = _sums_by_id(scope, window, dims, filters, step_ms)
    measures = [
        *(total_of(name, lines.c[name]) for name in _SUMS),
        func.min(lines.c.first_ms),
        func.max(lines.c.last_ms),
    ]
    rows = sums_by_name(connection, lines, measures, dims, ["step"] if step_ms is not None else [])
    return as_frame(rows, dims, window, step_ms, MEASURES)


def job_window(connection: Connection, scope: Scope, job_uid: str) -> Window | None:
    _refuse_nul("job_uid", job_uid)
    statement = select(func.min(W.start_ms), func.max(W.end_ms)).where(W.id.in_(_windows_of(scope, job_uid)))
    start_ms, end_ms = connection.execute(statement.where(*in_clusters(scope, W.cluster))).one()
    if start_ms is None:
        return None
    held = Window(start_ms, end_ms)
    # The hours of a rolled up day are not known.
    days = [held, *reader.rollup_days(connection, held, scope.clusters)]
    return Window(min(day.start_ms for day in days), max(day.end_ms for day in days))


def job_clusters(connection: Connection, scope: Scope, job_uid: str) -> tuple[str, ...]:
    _refuse_nul("job_uid", job_uid)
    statement = select(W.cluster).distinct().where(W.id.in_(_windows_of(scope, job_uid)))
    found = connection.execute(statement.where(*in_clusters(scope, W.cluster))).scalars()
    return tuple(sorted(found))


def _windows_of(scope: Scope, job_uid: str) -> Select[int]:
    """Windows by cluster: a clone of a cluster has the same uids."""
    # The scope is checked first: for another team's job no line is read, however many there are.
    holders = select(H.id).where(H.job_uid == job_uid, *own_teams(scope))
    return select(L.window_id).where(L.holder_id.in_(holders), *visible(scope))


def progress(connection: Connection, scope: Scope, window: Window, job_uid: str) -> pd.DataFrame:
    _refuse_nul("job_uid", job_uid)
    p = PROGRESS_LINE.c
    # A pod of the same uid in another cluster, where it belongs to another job or team, is another pod.
    pods = (
        select(W.cluster, H.pod_uid)
        .distinct()
        .select_from(USAGE_LINE)
        .join(HOLDER, H.id == L.holder_id)
        .join(LEDGER_WINDOW, W.id == L.window_id)
        .where(H.job_uid == job_uid, *visible(scope), *in_clusters(scope, W.cluster))
        .subquery()
    )
    statement = (
        select(p.name, p.amount)
        .join(LEDGER_WINDOW, W.id == p.window_id)
        .join(pods, (pods.c.cluster == W.cluster) & (pods.c.pod_uid == p.pod_uid))
        .where(W.start_ms >= window.start_ms, W.end_ms <= window.end_ms)
    )
    amounts: dict[str, list[float]] = defaultdict(list)
    for name, amount in connection.execute(statement):
        amounts[name].append(amount)
    # fsum does not depend on the order in which a database returns rows.
    totals = [(name, math.fsum(values)) for name, values in sorted(amounts.items())]
    names, sums = zip(*totals, strict=True) if totals else ((), ())
    return pd.DataFrame({"name": pd.Series(names, dtype="str"), "amount": pd.Series(sums, dtype="float64")})


def problems(connection: Connection, scope: Scope, window: Window) -> tuple[DataProblem, ...]:
    p = WINDOW_PROBLEM.c
    statement = select(p.code, p.cluster, p.subject, p.detail, p.board_ms).where(
        p.window_id.in_(window_ids(window, scope.clusters))
    )
    if not scope.sees_every_team:
        own = own_teams(scope)
        statement = statement.where(
            or_(
                p.subject.in_(select(H.pod_uid).where(H.pod_uid != "", *own)),
                p.subject.in_(select(H.job_uid).where(H.job_uid != "", *own)),
            )
        )
    rows = connection.execute(statement).all()
    foreign = _foreign(connection, scope, {(row.cluster, row.subject) for row in rows})
    own_rows = (row for row in rows if (row.cluster, row.subject) not in foreign)
    touched = {
        DataProblem(DataProblemCode(code), cluster, subject, detail): board_ms
        for (code, cluster, subject, detail), board_ms in merged_problems(own_rows).items()
    }
    return tuple(replace(problem, board_ms=touched[problem]) for problem in sorted(touched))


def merged_problems(rows: Iterable[Sequence[Any]]) -> dict[tuple[str, str, str, str], int | None]:
    """Rows of code, cluster, subject, detail, board_ms: each problem once, with the sum of the known
    times."""
    touched: dict[tuple[str, str, str, str], int | None] = {}
    for code, cluster, subject, detail, board_ms in rows:
        problem = (code, cluster, subject, detail)
        before = touched.get(problem)
        touched[problem] = before if board_ms is None else (before or 0) + board_ms
    return touched


def _foreign(
    connection: Connection, scope: Scope, subjects: Collection[tuple[str, str]]
) -> frozenset[tuple[str, str]]:
    """Those of ``subjects`` (cluster, uid) that belong to other teams in that cluster, though the scope has
    the same uid in another: clones of a cluster have the same uids. Few uids are of two teams, or none."""
    if scope.teams is None or not subjects:
        return frozenset()
    found: set[tuple[str, str]] = set()
    uids = sorted({uid for _, uid in subjects})
    for column in (H.pod_uid, H.job_uid):
        for chunk in chunked(uids):
            shared = select(column).where(column.in_(chunk), H.team.not_in(sorted(scope.teams)))
            seen = (
                select(W.cluster, column, H.team)
                .distinct()
                .select_from(USAGE_LINE)
                .join(HOLDER, H.id == L.holder_id)
                .join(LEDGER_WINDOW, W.id == L.window_id)
                .where(column.in_(list(connection.execute(shared.distinct()).scalars())))
            )
            rows = connection.execute(seen).all()
            own = {(cluster, uid) for cluster, uid, team in rows if team in scope.teams}
            found |= {(cluster, uid) for cluster, uid, _ in rows} - own
    return frozenset(found & set(subjects))


def check_dims(
    dims: Sequence[str], filters: Mapping[str, Collection[str]], allowed: Sequence[str] = DIMENSIONS
) -> None:
    for name in (*(name for name in dims if name not in _SHARE_DIMS), *filters):
        if name not in allowed:
            raise InputError("dimension", name, ", ".join(allowed))
    for name, values in filters.items():
        for value in values:
            _refuse_nul(name, value)
    for name in dims:
        if dims.count(name) > 1:
            raise InputError("dimensions", name, "each dimension once")


def _refuse_nul(name: str, value: str) -> None:
    """PostgreSQL has no text with NUL in it, so it would refuse the query instead of finding nothing."""
    if "\0" in value:
        raise InputError(name, value, "text without NUL characters")


def refuse_cut(
    connection: Connection, window: Window, clusters: Collection[str] | None, step_ms: int | None
) -> None:
    """Raises InputError where a window of the ledger, or a rolled up day, would be divided: how its sums fall
    on the two sides of a cut is not known."""
    if step_ms is not None and step_ms <= 0:
        raise InputError("step", step_ms, "a positive duration")
    cut = [_cut(table, window, clusters, step_ms) for table in (FOLDED_DAY, LEDGER_WINDOW)]
    found = [row for statement in cut for row in connection.execute(statement).all()]
    if found:
        shown = ", ".join(f"{cluster} {Window(start, end)}" for cluster, start, end in found[:3])
        asked = str(window) if step_ms is None else f"{window} in steps of {step_ms} ms"
        more = " and more" if len(found) > 3 else ""
        raise InputError("window", asked, f"edges between the ledger's windows; cut: {shown}{more}")


def _cut(table: Table, window: Window, clusters: Collection[str] | None, step_ms: int | None) -> Select[Any]:
    """The first few of ``table`` that an edge of ``window``, or of a step in it, lies in."""
    c = table.c
    cut = [
        (c.start_ms < edge) & (c.end_ms > edge) & (c.start_ms > edge - _LONGEST_WINDOW_MS)
        for edge in (window.start_ms, window.end_ms)
    ]
    if step_ms is not None:
        steps_differ = c.start_ms // step_ms != (c.end_ms - 1) // step_ms
        cut.append(steps_differ & (c.start_ms >= window.start_ms) & (c.end_ms <= window.end_ms))
    statement = select(c.cluster, c.start_ms, c.end_ms).distinct().where(or_(*cut))
    if clusters is not None:
        statement = statement.where(c.cluster.in_(clusters))
    return statement.order_by(c.start_ms).limit(4)


def window_ids(window: Window, clusters: Collection[str] | None) -> Select[int]:
    statement = select(W.id).where(W.start_ms >= window.start_ms, W.end_ms <= window.end_ms)
    return statement if clusters is None else statement.where(W.cluster.in_(clusters))


def own_teams(scope: Scope) -> list[ColumnElement[bool]]:
    return [] if scope.teams is None else [H.team.in_(sorted(scope.teams))]


def visible(scope: Scope, table: Table = USAGE_LINE) -> list[ColumnElement[bool]]:
    """Conditions on usage lines: everything, or the held and over-committed lines of the scope's teams. The
    condition on clusters applies to the windows that they are read from: see ``clusters_of``."""
    if scope.teams is None:
        return []
    line = table.c
    return [line.bucket.in_(_OF_A_TEAM), line.holder_id.in_(select(H.id).where(*own_teams(scope)))]


def _sums_by_id(
    scope: Scope,
    window: Window,
    dims: Sequence[str],
    filters: Mapping[str, Collection[str]],
    step_ms: int | None,
) -> Subquery:
    unpriced = case((L.nano.is_(None), L.board_ms), else_=0)
    derived = {"unpriced_ms": unpriced, "tensor_observed_ms": TENSOR_OBSERVED}
    measures = [
        *(total_of(name, derived[name] if name in derived else L[name]).label(name) for name in _SUMS),
        func.min(L.first_ms).label("first_ms"),
        func.max(L.last_ms).label("last_ms"),
    ]
    windows = window_ids(window, clusters_of(scope, filters))
    return sums_by_id(USAGE_LINE, measures, windows, scope, dims, filters, step_ms).subquery()


def sums_by_id(
    table: Table,
    measures: Sequence[ColumnElement[Any]],
    windows: Select[int],
    scope: Scope,
    dims: Sequence[str],
    filters: Mapping[str, Collection[str]],
    step_ms: int | None,
    others: Sequence[ColumnElement[Any]] = (),
) -> Select[Any]:
    """``measures`` over the rows of ``table``, which has the keys of usage lines, in ``windows`` (ids).

    Columns: the ids that ``dims`` need, ``others``, ``step`` when ``step_ms`` is given, and the measures.
    """
    line, alike = table.c, alike_holders(dims)
    keys: list[ColumnElement[Any]] = [
        alike.c.holder_id if name == "holder_id" else line[name]
        for name in dict.fromkeys(
            "bucket" if name == "bucket" else f"{_TABLE_OF[name].name}_id" for name in dims
        )
    ]
    keys += others
    conditions = [line.window_id.in_(windows), *visible(scope, table)]
    for name, values in filters.items():
        if name == "bucket":
            conditions.append(line.bucket.in_(sorted(values)))
        else:
            names = _TABLE_OF[name]
            own = own_teams(scope) if names is HOLDER else []
            matching = select(names.c.id).where(names.c[name].in_(sorted(values)), *own)
            known = line[f"{names.name}_id"]
            conditions.append(
                or_(known.in_(matching), known.is_(None))
                if name == "team_rule" and "" in values
                else known.in_(matching)
            )
    if step_ms is not None:
        keys.append((W.start_ms // step_ms * step_ms).label("step"))
    statement = select(*keys, *measures).where(*conditions)
    if step_ms is not None:
        statement = statement.join(LEDGER_WINDOW, W.id == line.window_id)
    if any(key is alike.c.holder_id for key in keys):
        statement = statement.join(alike, alike.c.id == line.holder_id)
    return statement.group_by(*keys).having(_SOME)


def total_of(name: str, column: ColumnElement[Any]) -> ColumnElement[Any]:
    return func.max(column) if name in PEAKS else cast(func.sum(column), BigInteger)


def sums_by_name(
    connection: Connection,
    lines: Subquery,
    measures: Sequence[ColumnElement[Any]],
    dims: Sequence[str],
    others: Sequence[str],
) -> Sequence[Any]:
    """``measures`` over sums by id, by the names of ``dims`` and by columns that need no look-up."""
    keys = [*(_label(lines, name) for name in dims), *(lines.c[name] for name in others)]
    statement = select(*keys, *measures).group_by(*keys)
    for table in dict.fromkeys(_TABLE_OF[name] for name in dims if name != "bucket"):
        same = table.c.id == lines.c[f"{table.name}_id"]
        statement = statement.join(table, same, isouter=table is TEAM_RULE)
    sum_by_hash(connection)
    return connection.execute(statement.having(_SOME)).all()


def sum_by_hash(connection: Connection) -> None:
    """Makes the database sum by hashing, for many lines, until the end of the transaction."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(_BY_HASH)


def alike_holders(dims: Sequence[str]) -> Subquery:
    """Each holder's id beside the least id of those with the same ``dims``: the pods of a job become one."""
    same = [H[name] for name in dims if _TABLE_OF.get(name) is HOLDER]
    return select(H.id, func.min(H.id).over(partition_by=same).label("holder_id")).subquery()


def _alike_units(dims: Sequence[str]) -> Subquery:
    """The same of units. There are few, and PostgreSQL must not sort them: with sorting made dear by
    ``sum_by_hash`` it would no longer see what any way of joining the lines costs."""
    u = UNIT.c
    same = [u[name] for name in dims]
    least = select(*same, func.min(u.id).label("unit_id")).group_by(*same).subquery()
    own = and_(*(u[name] == least.c[name] for name in dims))
    return select(u.id, least.c.unit_id).join(least, own).subquery()


def _label(lines: Subquery, name: str) -> ColumnElement[Any]:
    if name == "team_rule":
        return func.coalesce(TEAM_RULE.c.team_rule, _EMPTY)
    return lines.c.bucket if name == "bucket" else _TABLE_OF[name].c[name]


def as_frame(
    rows: Sequence[Any],
    dims: Sequence[str],
    window: Window,
    step_ms: int | None,
    measures: Sequence[str],
    others: Sequence[str] = (),
) -> pd.DataFrame:
    """Typed and sorted here, not by the database: collations differ. ``others`` are texts after the step."""
    names = [*dims, *(("step_start_ms",) if step_ms is not None else ()), *others, *measures]
    columns = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(names, ())
    frame = pd.DataFrame(
        {name: pd.Series(values, dtype=_dtype(name, [*dims, *others])) for name, values in columns.items()}
    )
    keys = names[: -len(measures)]
    if step_ms is not None:
        frame["step_start_ms"] = frame["step_start_ms"].clip(lower=window.start_ms)
    return frame.sort_values(keys, ignore_index=True) if keys else frame


def _dtype(name: str, dims: Sequence[str]) -> str:
    if name in dims and name not in _SHARE_DIMS:
        return "str"
    return "Int64" if name in _NULLABLE else "int64"


# Uids first: few rows are alike in them, so that alike rows are found by comparing little more.
_CELL_HOLDER = ("job_uid", "job", "namespace", "cluster_queue", "team")
_CELL_UNIT = ("cluster", "model", "capacity_type")
_PART = 10_000
_BUCKET_OF = {str(bucket): bucket for bucket in Bucket if bucket.is_capacity}


def cells(connection: Connection, scope: Scope, window: Window) -> Iterator[CapacityCell]:
    """See Ledger.cells. The keys are wider than those of ``aggregate``: the window of the ledger, and the
    first and the last instant of a line, so that whoever computes with rates knows when it was held. Names
    are looked up once for each holder, not once for each row."""
    refuse_cut(connection, window, clusters_of(scope, {}), None)
    windows = window_ids(window, clusters_of(scope, {}))
    spans = connection.execute(select(W.id, W.start_ms, W.end_ms).where(W.id.in_(windows))).all()
    sum_by_hash(connection)
    # By window and unit; the holder's id, the bucket, instants and amounts. Bare tuples, and only a cell's
    # rows at a time become more: there may be millions.
    found: dict[tuple[int, int], list[tuple[Any, ...]]] = defaultdict(list)
    for part in connection.execute(_cell_sums(scope, window)).partitions(_PART):
        for row in part:
            found[row[0], row[1]].append(row[2:])
    units = _names(connection, UNIT, _CELL_UNIT, {unit_id for _, unit_id in found})
    holders = _names(connection, HOLDER, _CELL_HOLDER, {row[0] for rows in found.values() for row in rows})
    return _made_cells(found, {row.id: Window(row.start_ms, row.end_ms) for row in spans}, units, holders)


def _made_cells(
    found: dict[tuple[int, int], list[tuple[Any, ...]]],
    spans: Mapping[int, Window],
    units: Mapping[int, tuple[str, ...]],
    holders: Mapping[int, tuple[str, ...]],
) -> Iterator[CapacityCell]:
    places: dict[tuple[str, str, Window], list[tuple[int, int]]] = defaultdict(list)
    for at in found:
        cluster, model, _ = units[at[1]]
        places[cluster, model, spans[at[0]]].append(at)
    for place in sorted(places):
        rows = []
        for at in places[place]:
            capacity_type = units[at[1]][2]
            for holder_id, bucket, *numbers in found.pop(at):
                job_uid, job, namespace, queue, team = holders[holder_id]
                names = (team, queue, namespace, job, job_uid, capacity_type)
                rows.append(CellRow(_BUCKET_OF[bucket], *names, *numbers))
        yield CapacityCell.of(*place, rows)


def _cell_sums(scope: Scope, window: Window) -> Select[Any]:
    """The lines of capacity by ids; of units and holders with the same names, the least id.

    Outer joins, though every line has a unit and a holder: SQLite reads the lines in their order then, and
    not one by one for each holder.
    """
    holders, units = alike_holders(_CELL_HOLDER), _alike_units(_CELL_UNIT)
    keys = [L.window_id, units.c.unit_id, holders.c.holder_id, L.bucket, L.first_ms, L.last_ms]
    measures = [
        cast(func.sum(L.board_ms), BigInteger),
        cast(func.sum(func.coalesce(L.nano, 0)), BigInteger),
        cast(func.sum(case((L.nano.is_(None), L.board_ms), else_=0)), BigInteger),
    ]
    return (
        select(*keys, *measures)
        .select_from(USAGE_LINE)
        .outerjoin(holders, holders.c.id == L.holder_id)
        .outerjoin(units, units.c.id == L.unit_id)
        .where(L.window_id.in_(window_ids(window, clusters_of(scope, {}))), L.bucket.in_(_BUCKET_OF))
        .where(*visible(scope))
        .group_by(*keys)
    )


def _names(
    connection: Connection, table: Table, dims: Sequence[str], ids: Iterable[int]
) -> dict[int, tuple[str, ...]]:
    """Id -> the values of ``dims`` in a table of names."""
    columns = [table.c[name] for name in dims]
    return {
        row_id: tuple(names)
        for chunk in chunked(sorted(ids))
        for row_id, *names in connection.execute(select(table.c.id, *columns).where(table.c.id.in_(chunk)))
    }
