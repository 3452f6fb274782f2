"""The database's own look at its pages and indexes.

Digests are read from the tables one way; a report may go another, through an index that was damaged since,
and miss rows of which every digest agrees.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from gpucost.ledger.tables import METADATA

_MOST = 20

# Indexes of our tables. What PostgreSQL still builds, or failed to build, it does not use either.
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
class Integrity:
    """``damage`` in sentences, at most 20 of them; ``unchecked`` says why not all was looked at."""

    damage: tuple[str, ...] = ()
    unchecked: str = ""


def integrity(connection: Connection) -> Integrity:
    """See Ledger.integrity."""
    return _sqlite(connection) if connection.dialect.name == "sqlite" else _postgres(connection)


def damaged_pages(connection: Connection) -> tuple[str, ...]:
    """What SQLite's integrity check says of pages, tables and indexes; empty when all is well."""
    found = connection.exec_driver_sql(f"PRAGMA integrity_check({_MOST})").scalars().all()
    return () if found == ["ok"] else tuple(map(str, found))


def _sqlite(connection: Connection) -> Integrity:
    damage = damaged_pages(connection)
    if damage:
        return Integrity(damage)
    orphans = connection.exec_driver_sql(
        'SELECT "table", parent, count(*) FROM pragma_foreign_key_check GROUP BY 1, 2 ORDER BY 1, 2'
    )
    missing = (
        f"{count:,} rows of {table} name a row of {parent} that is gone" for table, parent, count in orphans
    )
    return Integrity(tuple(missing))


def _postgres(connection: Connection) -> Integrity:
    """By ``amcheck``: the order within each index, and that every row of its table is in it."""
    schema = connection.exec_driver_sql(_AMCHECK).scalar()
    if schema is None:
        return Integrity(unchecked="the database has no extension amcheck (CREATE EXTENSION amcheck)")
    rows = connection.execute(text(_INDEXES), {"tables": list(METADATA.tables)}).all()
    damage = []
    for oid, name in rows:
        state, message = _checked(connection, schema, oid)
        if state == _NOT_ALLOWED:
            function = f"{schema}.bt_index_check(regclass, boolean)"
            return Integrity(
                unchecked=f"{message} (GRANT EXECUTE ON FUNCTION {function} TO the ledger's user)"
            )
        if state:
            damage.append(f"index {name}: {message}")
    return Integrity(tuple(damage[:_MOST]))


def _checked(connection: Connection, schema: str, oid: int) -> tuple[str, str]:
    """SQLSTATE and message of what is wrong with one index; empty when nothing is."""
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
