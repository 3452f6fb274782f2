"""Dimension rows, which are stored once, and conditions that all reads share.

``resolve`` maps content keys to ids and adds new rows. ``clusters_of`` says which clusters a read is about:
those of the reader's scope, and of these those that were asked for.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Insert, Table, any_, cast, func, select
from sqlalchemy.dialects import sqlite

from gpucost.domain.errors import LedgerConflict
from gpucost.domain.scope import Scope
from gpucost.ledger.db.database import add_rows

T = TypeVar("T")

# Well below SQLite's limit of parameters in one statement.
_CHUNK = 5_000


def resolve(connection: Connection, table: Table, rows: Mapping[str, Sequence[Any]]) -> dict[str, int]:
    """The id of every content key of ``rows``, whose values are in the order of the table's columns.

    Raises LedgerConflict when another unique column of a row is taken.
    """
    ids = known(connection, table, rows) if rows else {}
    # In one order everywhere, so that two writers that add the same rows wait but never deadlock.
    missing = sorted(rows.keys() - ids.keys())
    if missing:
        add_rows(connection, table, [(key, *rows[key]) for key in missing], columns=list(table.columns)[1:])
        ids |= known(connection, table, missing)
    for key in rows.keys() - ids.keys():
        raise LedgerConflict(f"another writer has just added {table.name} {rows[key][0]!r} with other values")
    return ids


def chunked(values: Iterable[T], size: int = _CHUNK) -> Iterator[list[T]]:
    iterator = iter(values)
    while chunk := list(islice(iterator, size)):
        yield chunk


def known(connection: Connection, table: Table, keys: Iterable[str]) -> dict[str, int]:
    """The ids of those content keys that the ledger has."""
    c = table.c
    statement = select(c.content_key, c.id).where(among(connection, c.content_key, keys))
    with closing(connection.execute(statement)) as result:
        assert result.cursor is not None
        return dict(result.cursor.fetchall())  # without a Row for each


def among(connection: Connection, column: ColumnElement[T], values: Iterable[T]) -> ColumnElement[bool]:
    """``column IN values`` for ids and keys, with one parameter: a hundred thousand of them take drivers
    longer than a database takes to look them up."""
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql

        joined = func.string_to_array(",".join(map(str, values)), ",")
        return column == any_(cast(joined, postgresql.ARRAY(column.type)))
    each = func.json_each(json.dumps([*values])).table_valued("value")
    return column.in_(select(each.c.value))


def insert_new(connection: Connection, table: Table) -> Insert:
    """An INSERT that waits for another writer's row, and then leaves it as it is."""
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table).on_conflict_do_nothing()
    return sqlite.insert(table).on_conflict_do_nothing()


def clusters_of(scope: Scope, filters: Mapping[str, Collection[str]]) -> Collection[str] | None:
    """The clusters that a read with ``filters`` is about; None is all of them."""
    asked = filters.get("cluster")
    return scope.clusters if asked is None else scope.within(asked).clusters


def in_clusters(scope: Scope, column: ColumnElement[str]) -> list[ColumnElement[bool]]:
    """The condition on a cluster's name, as for windows and findings."""
    return [] if scope.clusters is None else [column.in_(sorted(scope.clusters))]
