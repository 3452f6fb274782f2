"""Rows that are kept once: content key -> id, adding what is new."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import Connection, Insert, Table, select
from sqlalchemy.dialects import postgresql, sqlite

from gpucost.domain.errors import LedgerConflict

T = TypeVar("T")

# Well below SQLite's limit of parameters in one statement.
_CHUNK = 5_000


def resolve(connection: Connection, table: Table, rows: Mapping[str, Sequence[Any]]) -> dict[str, int]:
    """The id of every content key of ``rows``, whose values stand in the order of the table's columns.

    Raises LedgerConflict when another unique column of a row is taken.
    """
    ids = known(connection, table, rows)
    # In one order everywhere, so that two writers who add the same rows wait but never deadlock.
    missing = sorted(rows.keys() - ids.keys())
    if missing:
        names = [column.name for column in table.columns][1:]
        connection.execute(
            insert_new(connection, table),
            [dict(zip(names, (key, *rows[key]), strict=True)) for key in missing],
        )
        ids |= known(connection, table, missing)
    for key in rows.keys() - ids.keys():
        raise LedgerConflict(f"another writer has just added {table.name} {rows[key][0]!r} with other values")
    return ids


def chunked(values: Iterable[T], size: int = _CHUNK) -> Iterator[list[T]]:
    iterator = iter(values)
    while chunk := list(islice(iterator, size)):
        yield chunk


def known(connection: Connection, table: Table, keys: Iterable[str]) -> dict[str, int]:
    """The id of those content keys that the ledger has."""
    found: dict[str, int] = {}
    for chunk in chunked(keys):
        statement = select(table.c.content_key, table.c.id).where(table.c.content_key.in_(chunk))
        found |= {row.content_key: row.id for row in connection.execute(statement)}
    return found


def insert_new(connection: Connection, table: Table) -> Insert:
    """An INSERT that waits for, and then leaves alone, what another writer has just added."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing()
    return sqlite.insert(table).on_conflict_do_nothing()
