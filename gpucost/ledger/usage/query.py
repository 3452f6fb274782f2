"""Reads of usage: every one takes a Scope, and every value from outside is a bound parameter."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    Table,
    case,
    cast,
    func,
    literal_column,
    or_,
    select,
    union,
    union_all,
)
from sqlalchemy.sql.selectable import Subquery

from gpucost.contract.frames import SIGNAL_MEASURES
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import DataProblem, DataProblemCode, InputError
from gpucost.domain.scope import Scope
from gpucost.domain.time import DAY_MS, Window
from gpucost.ledger.db.dimensions import chunked, clusters_of, in_clusters
from gpucost.ledger.db.tables import (
    DAY_LINE,
    FOLDED_DAY,
    HOLDER,
    LEDGER_WINDOW,
    RATE,
    SEALED_HOLDER,
    TEAM_RULE,
    UNIT,
    USAGE_DAY,
    USAGE_LINE,
    WINDOW_PROBLEM,
)
from gpucost.ledger.sealed.sealed_reader import SealedStore
from gpucost.ledger.usage import reader
from gpucost.ledger.usage.coded_sums import added, coded_frame, rows_of, sealed_frame
from gpucost.ledger.usage.day_totals import LARGEST
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

L, W, H, D = USAGE_LINE.c, LEDGER_WINDOW.c, HOLDER.c, USAGE_DAY.c

_OF_LINES_ONLY = frozenset(("node", "pod", "pod_uid", "team_rule"))
# By these, groups are many.
OF_JOBS = frozenset(("job", "job_uid", "workload"))
_DAY_OF_WINDOW = (D.cluster == W.cluster) & (D.start_ms == W.start_ms - W.start_ms % DAY_MS)

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
    sealed: SealedStore,
    *,
    categories: bool = False,
) -> pd.DataFrame:
    """See Ledger.aggregate. Sums by integer ids first, and adds the names afterwards: the lines are read
    once. What is in sealed files is added to what is in the database."""
    check_dims(dims, filters, USAGE_DIMENSIONS)
    refuse_cut(connection, window, clusters_of(scope, filters), step_ms)
    windows, days = window_ids(window, clusters_of(scope, filters)), None
    asked = scope, dims, filters, step_ms
    if _said_by_days(dims, filters, step_ms):
        days = day_ids(window, clusters_of(scope, filters))
        windows = windows.where(
            W.id.not_in(select(W.id).join(USAGE_DAY, _DAY_OF_WINDOW).where(D.id.in_(days)))
        )
        if connection.execute(days.limit(1)).first() is None:
            days = None
    span = sealed.span(connection, window, clusters_of(scope, filters))
    if span is None and days is not None and connection.execute(windows.limit(1)).first() is None:
        if HOLDER in (_TABLE_OF.get(name) for name in dims):
            # Sums by holder are nearly as many as rows of the days, so the rows are read as they are.
            keys, found_rows = _rows(DAY_LINE, days, *asked)
            lines = found_rows.add_columns(*keys, *(DAY_LINE.c[name] for name in MEASURES)).subquery()
            if not OF_JOBS.isdisjoint(dims):
                return _by_job(
                    connection, lines, dims, window, step_ms, categories=categories, are_sums=False
                )
        else:
            lines = _sums_of_days(days, *asked).subquery()
    else:
        by_job = span is None and not OF_JOBS.isdisjoint(dims) and "team_rule" not in dims
        by_line = sums_by_id(
            USAGE_LINE, [*line_measures().values()], windows, *asked, one_of_alike=not by_job
        )
        both = by_line if days is None else union_all(_sums_of_days(days, *asked), by_line)
        lines = both.subquery("usage_sums")
        if by_job:
            sum_by_hash(connection)
            return _by_job(connection, lines, dims, window, step_ms, categories=categories, are_sums=True)
    measures = list(_measures({name: lines.c[name] for name in MEASURES}).values())
    rows = sums_by_name(connection, lines, measures, dims, ["step"] if step_ms is not None else [])
    if span is not None:
        found = span.sums(scope, dims, filters, step_ms)
        if found is not None and not rows:
            names = [*dims, *(["step_start_ms"] if step_ms is not None else []), *MEASURES]
            frame = sealed_frame(found, {name: _dtype(name, dims) for name in names}, categories=categories)
            if step_ms is not None:
                frame["step_start_ms"] = frame["step_start_ms"].clip(lower=window.start_ms)
            return frame
        rows = added(rows, rows_of(found), MEASURES)
    frame = as_frame(rows, dims, window, step_ms, MEASURES)
    return frame.astype(dict.fromkeys(_texts(dims), "category")) if categories else frame


def _sums_of_days(days: Select[int], *asked: Any) -> Select[Any]:
    measures = _measures({name: DAY_LINE.c[name] for name in MEASURES})
    return sums_by_id(DAY_LINE, [*measures.values()], days, *asked)


def _by_job(
    connection: Connection,
    lines: Subquery,
    dims: Sequence[str],
    window: Window,
    step_ms: int | None,
    *,
    categories: bool,
    are_sums: bool,
) -> pd.DataFrame:
    """Names of jobs are nearly as many as rows by id: they are looked up once, and compared as codes."""
    tables = {name: None if name == "bucket" else _TABLE_OF[name] for name in dims}
    stepped = step_ms is not None
    frame = coded_frame(connection, lines, tables, MEASURES, stepped=stepped, are_sums=are_sums)
    types = {name: "int64" for name in MEASURES if name not in _NULLABLE}
    if not categories:
        types |= dict.fromkeys(_texts(dims), "str")
    if stepped:
        frame["step_start_ms"] = frame["step_start_ms"].clip(lower=window.start_ms)
    return frame.astype(types)


def _texts(dims: Sequence[str]) -> list[str]:
    return [name for name in dims if name not in _SHARE_DIMS]


def _said_by_days(dims: Sequence[str], filters: Mapping[str, Collection[str]], step_ms: int | None) -> bool:
    """Few lines are of one job: to find them by its uid is faster than to look through days."""
    if step_ms is not None and step_ms % DAY_MS:
        return False
    return _OF_LINES_ONLY.isdisjoint((*dims, *filters)) and "job_uid" not in filters


def day_ids(window: Window, clusters: Collection[str] | None) -> Select[int]:
    """The days inside ``window`` that were added up."""
    last_ms = window.end_ms - DAY_MS
    statement = select(D.id).where(D.start_ms >= window.start_ms, D.start_ms <= last_ms)
    return statement if clusters is None else statement.where(D.cluster.in_(clusters))


def job_window(connection: Connection, scope: Scope, job_uid: str) -> Window | None:
    _refuse_nul("job_uid", job_uid)
    statement = select(func.min(W.start_ms), func.max(W.end_ms)).where(W.id.in_(_windows_of(scope, job_uid)))
    s = SEALED_HOLDER.c
    sealed = select(func.min(s.first_ms), func.max(s.last_ms)).where(*_sealed_of(scope, job_uid))
    found = [connection.execute(statement.where(*in_clusters(scope, W.cluster))).one()]
    found += [connection.execute(sealed).one()]
    known = [Window(*row) for row in found if row[0] is not None]
    if not known:
        return None
    held = Window(min(each.start_ms for each in known), max(each.end_ms for each in known))
    # The hours of a rolled up day are not known.
    days = [held, *reader.rollup_days(connection, held, scope.clusters)]
    return Window(min(day.start_ms for day in days), max(day.end_ms for day in days))


def job_clusters(connection: Connection, scope: Scope, job_uid: str) -> tuple[str, ...]:
    _refuse_nul("job_uid", job_uid)
    statement = select(W.cluster).distinct().where(W.id.in_(_windows_of(scope, job_uid)))
    sealed = select(SEALED_HOLDER.c.cluster).distinct().where(*_sealed_of(scope, job_uid))
    found = {
        *connection.execute(statement.where(*in_clusters(scope, W.cluster))).scalars(),
        *connection.execute(sealed).scalars(),
    }
    return tuple(sorted(found))


def _sealed_of(scope: Scope, job_uid: str) -> list[ColumnElement[bool]]:
    s = SEALED_HOLDER.c
    holders = select(H.id).where(H.job_uid == job_uid, *own_teams(scope))
    return [s.holder_id.in_(holders), *visible(scope, SEALED_HOLDER), *in_clusters(scope, s.cluster)]


def _windows_of(scope: Scope, job_uid: str) -> Select[int]:
    """Windows by cluster: a clone of a cluster has the same uids."""
    # The scope is checked first: for another team's job no line is read, however many there are.
    holders = select(H.id).where(H.job_uid == job_uid, *own_teams(scope))
    return select(L.window_id).where(L.holder_id.in_(holders), *visible(scope))


def problems(
    connection: Connection, scope: Scope, window: Window, sealed: SealedStore
) -> tuple[DataProblem, ...]:
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
    rows = [tuple(row) for row in connection.execute(statement)]
    span = sealed.span(connection, window, scope.clusters)
    if span is not None:
        found = span.problems()
        known = _own_uids(connection, scope, {row[2] for row in found})
        rows += (row for row in found if known is None or row[2] in known)
    foreign = _foreign(connection, scope, {(row[1], row[2]) for row in rows})
    own_rows = (row for row in rows if (row[1], row[2]) not in foreign)
    touched = {
        DataProblem(DataProblemCode(code), cluster, subject, detail): board_ms
        for (code, cluster, subject, detail), board_ms in merged_problems(own_rows).items()
    }
    return tuple(replace(problem, board_ms=touched[problem]) for problem in sorted(touched))


def _own_uids(connection: Connection, scope: Scope, subjects: Collection[str]) -> set[str] | None:
    """Those of ``subjects`` that are pods or jobs of the scope's teams; None where it sees all teams."""
    if scope.sees_every_team:
        return None
    return {
        uid
        for column in (H.pod_uid, H.job_uid)
        for chunk in chunked(sorted({*subjects} - {""}))
        for uid in connection.execute(select(column).where(column.in_(chunk), *own_teams(scope))).scalars()
    }


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
            uids_of_two = list(connection.execute(shared.distinct()).scalars())
            seen = union(
                select(W.cluster, column, H.team)
                .select_from(USAGE_LINE)
                .join(HOLDER, H.id == L.holder_id)
                .join(LEDGER_WINDOW, W.id == L.window_id)
                .where(column.in_(uids_of_two)),
                select(SEALED_HOLDER.c.cluster, column, H.team)
                .join(HOLDER, H.id == SEALED_HOLDER.c.holder_id)
                .where(column.in_(uids_of_two)),
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


def line_measures() -> dict[str, ColumnElement[Any]]:
    """The sums over usage lines, by the name of each of MEASURES."""
    unpriced = case((L.nano.is_(None), L.board_ms), else_=0)
    derived = {"unpriced_ms": unpriced, "tensor_observed_ms": TENSOR_OBSERVED}
    return _measures({name: derived[name] if name in derived else L[name] for name in MEASURES})


def _measures(columns: Mapping[str, ColumnElement[Any]]) -> dict[str, ColumnElement[Any]]:
    return {
        name: (func.min(column) if name == "first_ms" else total_of(name, column)).label(name)
        for name, column in columns.items()
    }


def sums_by_id(
    table: Table,
    measures: Sequence[ColumnElement[Any]],
    windows: Select[int],
    scope: Scope,
    dims: Sequence[str],
    filters: Mapping[str, Collection[str]],
    step_ms: int | None,
    others: Sequence[ColumnElement[Any]] = (),
    *,
    one_of_alike: bool = True,
) -> Select[Any]:
    """``measures`` over the rows of ``table``, which has the keys of usage lines, in ``windows`` (ids): for
    DAY_LINE these are days. With ``one_of_alike``, holders with the same ``dims`` are summed as one: to find
    them, all holders are compared.

    Columns: the ids that ``dims`` need, ``others``, ``step`` when ``step_ms`` is given, and the measures.
    """
    # Of the holders of days few are alike.
    alike = alike_holders(dims) if one_of_alike and table is not DAY_LINE else None
    keys, statement = _rows(table, windows, scope, dims, filters, step_ms, others, alike)
    return statement.add_columns(*keys, *measures).group_by(*keys).having(_SOME)


def _rows(
    table: Table,
    windows: Select[int],
    scope: Scope,
    dims: Sequence[str],
    filters: Mapping[str, Collection[str]],
    step_ms: int | None,
    others: Sequence[ColumnElement[Any]] = (),
    alike: Subquery | None = None,
) -> tuple[list[ColumnElement[Any]], Select[Any]]:
    """The keys to group by, and the rows, still without columns; holders by the least id of those alike."""
    line = table.c
    place, joined = (USAGE_DAY, line.day_id) if table is DAY_LINE else (LEDGER_WINDOW, line.window_id)
    keys: list[ColumnElement[Any]] = [
        alike.c.holder_id if name == "holder_id" and alike is not None else line[name]
        for name in dict.fromkeys(
            "bucket" if name == "bucket" else f"{_TABLE_OF[name].name}_id" for name in dims
        )
    ]
    keys += others
    conditions = [joined.in_(windows), *visible(scope, table)]
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
    statement = select().select_from(table).where(*conditions)
    if step_ms is not None:
        keys.append((place.c.start_ms // step_ms * step_ms).label("step"))
        statement = statement.join(place, place.c.id == joined)
    if alike is not None and any(key is alike.c.holder_id for key in keys):
        statement = statement.join(alike, alike.c.id == line.holder_id)
    return keys, statement


def total_of(name: str, column: ColumnElement[Any]) -> ColumnElement[Any]:
    return func.max(column) if name in LARGEST else cast(func.sum(column), BigInteger)


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
