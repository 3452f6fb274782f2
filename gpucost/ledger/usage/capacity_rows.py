"""Capacity by window of the ledger, for whoever computes with rates: every pool with who held what of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, Connection, Select, Table, and_, case, cast, func, select
from sqlalchemy.sql.selectable import Subquery

from gpucost.charges.capacity_cells import CapacityCell, CellRow
from gpucost.domain.buckets import Bucket
from gpucost.domain.scope import Scope
from gpucost.domain.time import Window
from gpucost.ledger.db.dimensions import among, clusters_of
from gpucost.ledger.db.tables import HOLDER, LEDGER_WINDOW, UNIT, USAGE_LINE
from gpucost.ledger.sealed.sealed_reader import SealedStore
from gpucost.ledger.usage.query import alike_holders, refuse_cut, sum_by_hash, visible, window_ids

L, W = USAGE_LINE.c, LEDGER_WINDOW.c

# Uids first: few rows are alike in them, so that alike rows are found by comparing little more.
_CELL_HOLDER = ("job_uid", "job", "namespace", "cluster_queue", "team")
_CELL_UNIT = ("cluster", "model", "capacity_type")
_PART = 10_000
_BUCKET_OF = {str(bucket): bucket for bucket in Bucket if bucket.is_capacity}


def cells(
    connection: Connection, scope: Scope, window: Window, sealed: SealedStore
) -> Iterator[CapacityCell]:
    """See Ledger.cells. The keys are wider than those of ``aggregate``: the window of the ledger, and the
    first and the last instant of a line, so that whoever computes with rates knows when it was held. Names
    are looked up once for each holder, not once for each row."""
    refuse_cut(connection, window, clusters_of(scope, {}), None)
    windows = window_ids(window, clusters_of(scope, {}))
    spans = connection.execute(select(W.id, W.start_ms, W.end_ms).where(W.id.in_(windows))).all()
    sum_by_hash(connection)
    # By window and unit; the holder's id, the bucket, instants and amounts. Bare tuples, and only a cell's
    # rows at a time become more: there may be millions.
    found: dict[tuple[Any, Any], list[tuple[Any, ...]]] = defaultdict(list)
    for part in connection.execute(_cell_sums(scope, window)).partitions(_PART):
        for row in part:
            found[row[0], row[1]].append(tuple(row[2:]))
    used = {unit_id for _, unit_id in found}, {row[0] for rows in found.values() for row in rows}
    units = _OfSelf(_names(connection, UNIT, _CELL_UNIT, used[0]))
    holders = _OfSelf(_names(connection, HOLDER, _CELL_HOLDER, used[1]))
    windows_of: dict[Any, Window] = {row.id: Window(row.start_ms, row.end_ms) for row in spans}
    span = sealed.span(connection, window, scope.clusters)
    for held, unit, holder, *numbers in () if span is None else span.cells(scope, _CELL_UNIT, _CELL_HOLDER):
        windows_of[held] = held
        found[held, unit].append((holder, *numbers))
    return _made_cells(found, windows_of, units, holders)


class _OfSelf(dict[Any, tuple[str, ...]]):
    """Names by id. What comes out of files has names in the place of ids: they stand for themselves."""

    def __missing__(self, key: tuple[str, ...]) -> tuple[str, ...]:
        return key


def _made_cells(
    found: dict[tuple[Any, Any], list[tuple[Any, ...]]],
    spans: Mapping[Any, Window],
    units: Mapping[Any, tuple[str, ...]],
    holders: Mapping[Any, tuple[str, ...]],
) -> Iterator[CapacityCell]:
    places: dict[tuple[str, str, Window], list[tuple[Any, Any]]] = defaultdict(list)
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


def _alike_units(dims: Sequence[str]) -> Subquery:
    """The same of units. There are few, and PostgreSQL must not sort them: with sorting made dear by
    ``sum_by_hash`` it would no longer see what any way of joining the lines costs."""
    u = UNIT.c
    same = [u[name] for name in dims]
    least = select(*same, func.min(u.id).label("unit_id")).group_by(*same).subquery()
    own = and_(*(u[name] == least.c[name] for name in dims))
    return select(u.id, least.c.unit_id).join(least, own).subquery()


def _names(
    connection: Connection, table: Table, dims: Sequence[str], ids: Iterable[int]
) -> dict[int, tuple[str, ...]]:
    """Id -> the values of ``dims`` in a table of names."""
    columns = [table.c[name] for name in dims]
    statement = select(table.c.id, *columns).where(among(connection, table.c.id, ids))
    return {row_id: tuple(names) for row_id, *names in connection.execute(statement)}
