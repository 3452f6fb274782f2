"""The engine: connection settings, transactions, migrations, and the database's errors as ours.

Alembic and the driver of PostgreSQL are imported where they are needed: together they take longer to load
than a report of a small cluster takes.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import quote

from sqlalchemy import Column, Connection, Engine, Table, create_engine, event, insert, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import NullPool, PoolProxiedConnection

from gpucost.domain.errors import (
    ErrorRemark,
    InputError,
    LedgerDamaged,
    LedgerError,
    LedgerUnavailable,
    MonthClosed,
)
from gpucost.ledger.db.records import LedgerTooNew

if TYPE_CHECKING:
    import psycopg
    from alembic.config import Config

_ALLOWED_URL = "sqlite:///FILE, sqlite:////ABSOLUTE/FILE or postgresql+psycopg://USER:PASSWORD@HOST/NAME"
_POSTGRES = "postgresql+psycopg"
_MIGRATIONS = Path(__file__).parent.parent / "migrations"
_NEWEST_SCHEMA = _MIGRATIONS / "newest.sql"
"""What all migrations make of an empty SQLite database; a test compares the two."""

# Sums over millions of lines by holder and unit: with less memory the server sorts them on disk, and
# compiling the query takes longer than it saves. Options in the URL override these.
_POSTGRES_SETTINGS = "-c work_mem=256MB -c jit=off"

# Connections that stay open, and further ones on demand: one for each thread that answers requests (some are
# shared, and ``api.heavy`` have their own) and for each loop, so that no thread waits in vain for a free
# connection. PostgreSQL itself allows 100.
_POOL_KEPT, _POOL_MORE = 12, 44

# A snapshot changes with every commit; a server that crashed, or replays the log of another, may return the
# same one twice.
_POSTGRES_MARK = (
    "SELECT pg_current_snapshot()::text, pg_postmaster_start_time()::text, pg_last_wal_replay_lsn()::text"
)

_LOCKED_S = 0.02

# Every writer of windows holds this advisory lock shared; closing a month holds it alone.
_WRITERS = "gpucost"

# 64 MiB: lines are written all over the index by holder. SQLite takes as much of it as it needs.
_WRITERS_CACHE = "PRAGMA cache_size = -65536"

_SQLITE_UNAVAILABLE = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PROTOCOL,
}
_WRITABLE = "the file and its folder must be writable: SQLite keeps a log beside it, also while it is read"
_SQLITE_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
# data_corrupted and index_corrupted
_POSTGRES_DAMAGED = ("XX001", "XX002")
_DAMAGED = "the database is damaged; gpucost ledger restore puts a backup back"
# Classes of SQLSTATE: connection, transaction rollback (deadlock, serialization), resources (disk full),
# object not ready (lock timeout), operator intervention (shutdown, cancel), system error.
_POSTGRES_UNAVAILABLE = ("08", "40", "53", "55", "57", "58")


class LedgerDatabase:
    """Where the tables are. ``read`` and ``write`` give a connection in a transaction of its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._marking = threading.Lock()
        self._marker: PoolProxiedConnection | None = None

    @classmethod
    def open(cls, url: str, wait_ms: int, *, create: bool = True) -> Self:
        database = cls.unchecked(url, wait_ms, create=create)
        try:
            with database.read() as connection:
                current = _is_current(connection)
                if not (current or create or _has_tables(connection)):
                    raise LedgerUnavailable(
                        "no such ledger: the database has no tables; reading makes none, ingest does"
                    )
            if not current:
                with database.write() as connection:
                    _migrate(connection)
        except BaseException:
            database.close()
            raise
        return database

    @classmethod
    def unchecked(cls, url: str, wait_ms: int, *, create: bool) -> Self:
        """The database as it is: neither checked nor migrated."""
        if not create:
            _require_file(url)
        engine = _engine(url, wait_ms)
        if create:
            _make_private(engine)
        return cls(engine)

    @classmethod
    def reading(cls, file: Path) -> Self:
        """A SQLite file that has no writer, opened read-only: SQLite makes no other file beside it."""
        address = f"file:{quote(str(file.absolute()))}?mode=ro"
        return cls(
            create_engine("sqlite://", creator=lambda: sqlite3.connect(address, uri=True), poolclass=NullPool)
        )

    def revision(self) -> tuple[str, str]:
        """The revision of the schema, empty where there is none, and the newest that this code knows.

        Raises LedgerTooNew when the schema is a later one.
        """
        with self.read() as connection:
            _is_current(connection)
            found = _heads(connection)
        return ", ".join(found), _revisions()[0]

    def close(self) -> None:
        with self._marking:
            if self._marker is not None:
                self._marker.close()
                self._marker = None
        self._engine.dispose()

    def mark(self) -> str:
        """A text that changes with every commit of any process: while it is the same, so is all that ``read``
        sees. Commits to other databases of a PostgreSQL server change it too."""
        with _translated():
            if self._engine.dialect.name == "postgresql":
                with self._engine.connect() as connection:
                    connection.execution_options(isolation_level="AUTOCOMMIT")
                    return " ".join(map(str, connection.exec_driver_sql(_POSTGRES_MARK).one()))
            with self._marking:
                if self._marker is None:
                    # SQLite counts the commits of other connections: this one makes none, and is used for
                    # nothing else.
                    self._marker = self._engine.raw_connection()
                    self._marker.detach()
                cursor = self._marker.cursor()
                cursor.execute("PRAGMA data_version")
                return str(cursor.fetchall())

    def free_bytes(self) -> int | None:
        """Empty pages of a SQLite file, in bytes; None for PostgreSQL, which does not report them."""
        if self._engine.dialect.name != "sqlite":
            return None
        with self.read() as connection:
            free, size = (
                int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
                for name in ("freelist_count", "page_size")
            )
        return free * size

    def vacuum(self) -> None:
        """Rewrite a SQLite file without its empty pages. PostgreSQL reuses them by itself."""
        if self._engine.dialect.name != "sqlite":
            return
        raw = self._engine.raw_connection()
        try:
            driver = cast("sqlite3.Connection", raw.driver_connection)
            with _translated():
                driver.execute("VACUUM")
                driver.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            raw.close()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent view for all statements of the block."""
        with _translated(), self._engine.connect() as connection:
            if connection.dialect.name == "postgresql":
                connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with connection.begin():
                yield connection

    @contextmanager
    def write(self, cluster: str | None = None) -> Iterator[Connection]:
        """Commits at the end of the block, or leaves nothing of it.

        There is one writer per cluster at a time, and one in all without ``cluster``; SQLite has one writer
        anyway.
        """
        with (
            _translated(),
            self._engine.connect().execution_options(gpucost_writes=True) as connection,
            connection.begin(),
        ):
            if connection.dialect.name == "postgresql":
                _lock(connection, cluster)
            yield connection


def place_of(url: str) -> str:
    """Where a ledger is, in a form that may be shown: no user, no password, no parameters."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return "(not a database URL)"
    if _holds_password(url, parsed):
        return "(not a database URL)"
    port = f":{parsed.port}" if parsed.port else ""
    return f"{parsed.drivername}://{parsed.host or ''}{port}/{parsed.database or ''}"


def insert_rows(
    connection: Connection,
    table: Table,
    rows: Sequence[tuple[Any, ...]],
    *,
    columns: Sequence[Column[Any]] | None = None,
) -> None:
    """Insert rows of ``columns``, all of the table's unless given, others are null; COPY on PostgreSQL."""
    if not rows:
        return
    columns = list(table.columns) if columns is None else columns
    if connection.dialect.name == "postgresql":
        preparer = connection.dialect.identifier_preparer
        names = ", ".join(map(preparer.format_column, columns))
        driver = cast("psycopg.Connection", connection.connection.driver_connection)
        with (
            driver.cursor() as cursor,
            cursor.copy(f"COPY {preparer.format_table(table)} ({names}) FROM STDIN") as copy,
        ):
            for row in rows:
                copy.write_row(row)
    else:
        keys = [column.name for column in columns]
        statement = insert(table).compile(dialect=connection.dialect, column_keys=keys)
        connection.exec_driver_sql(str(statement), list(rows))


def insert_filled(connection: Connection, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows of all columns of the table, but those without a value."""
    if rows:
        columns, by_column = _filled(list(table.columns), rows)
        insert_rows(connection, table, list(zip(*by_column, strict=True)), columns=columns)


def add_rows(
    connection: Connection,
    table: Table,
    rows: Sequence[tuple[Any, ...]],
    *,
    columns: Sequence[Column[Any]] | None = None,
    merged: Mapping[str, str] | None = None,
) -> None:
    """Insert rows of ``columns``, all of the table's unless given, of which some may be there.

    ``merged`` has the expression of each column by which one that is there, by its key, takes the new one in:
    {0} is what is there and {1} what is new. Without it, whatever is there stays: an INSERT that waits for
    another writer's row, and then leaves it as it is.
    """
    if not rows:
        return
    # A column without a value changes nothing, neither as it is nor merged.
    columns, by_column = _filled(list(table.columns) if columns is None else columns, rows)
    names = [connection.dialect.identifier_preparer.format_column(column) for column in columns]
    conflict = "DO NOTHING"
    if merged is not None:
        sets = (
            f"{name} = {merged[column.name].format(f'{table.name}.{name}', f'excluded.{name}')}"
            for name, column in zip(names, columns, strict=True)
            if column.name in merged
        )
        keys = ", ".join(column.name for column in table.primary_key)
        conflict = f"({keys}) DO UPDATE SET {', '.join(sets)}"
    into = f"INSERT INTO {table.name} ({', '.join(names)})"
    if connection.dialect.name != "postgresql":
        values = ", ".join("?" * len(names))
        connection.exec_driver_sql(
            f"{into} VALUES ({values}) ON CONFLICT {conflict}", list(zip(*by_column, strict=True))
        )
        return
    # A column is one parameter, as JSON: a parameter for each value takes the driver several times as long.
    casts = ", ".join(
        f"c{at}::{column.type.compile(connection.dialect)}" for at, column in enumerate(columns)
    )
    each = ", ".join(["json_array_elements_text(%s)"] * len(columns))
    aliases = ", ".join(f"c{at}" for at in range(len(columns)))
    connection.exec_driver_sql(
        f"{into} SELECT {casts} FROM ROWS FROM ({each}) AS t ({aliases}) ON CONFLICT {conflict}",
        tuple(json.dumps(values, ensure_ascii=False) for values in by_column),
    )


def _filled(
    columns: Sequence[Column[Any]], rows: Sequence[tuple[Any, ...]]
) -> tuple[list[Column[Any]], list[tuple[Any, ...]]]:
    """The columns in which a row has a value, and their values."""
    by_column = list(zip(*rows, strict=True))
    some = [at for at, values in enumerate(by_column) if values.count(None) < len(rows)]
    return [columns[at] for at in some], [by_column[at] for at in some]


def _holds_password(url: str, parsed: URL) -> bool:
    """Whether a part of the password stands in the place of the host, the database or a parameter."""
    if parsed.drivername.startswith("sqlite"):
        return False
    return "@" in f"{parsed.host}{parsed.database}" or (parsed.username is None and "@" in url)


def parsed_url(url: str) -> URL:
    """The URL of a ledger. Raises InputError, which never contains any of the password."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise InputError("ledger URL", ErrorRemark("not a database URL"), _ALLOWED_URL) from None
    if _holds_password(url, parsed):
        raise InputError(
            "ledger URL",
            ErrorRemark("its parts cannot be told apart"),
            "@, / and : in a password as %40, %2F, %3A",
        )
    is_file = parsed.drivername in ("sqlite", "sqlite+pysqlite")
    if parsed.drivername != _POSTGRES and not (is_file and parsed.database not in (None, "", ":memory:")):
        raise InputError("ledger URL", place_of(url), _ALLOWED_URL)
    return parsed


def _engine(url: str, wait_ms: int) -> Engine:
    parsed = parsed_url(url)
    if parsed.drivername == _POSTGRES:
        settings = f"-c lock_timeout={wait_ms} {_POSTGRES_SETTINGS} {parsed.query.get('options', '')}"
        engine = create_engine(
            parsed,
            pool_pre_ping=True,
            pool_size=_POOL_KEPT,
            max_overflow=_POOL_MORE,
            isolation_level="READ COMMITTED",
            connect_args={"options": settings},
        )
    else:
        engine = create_engine(parsed, connect_args={"timeout": wait_ms / 1000})
        event.listen(engine, "connect", partial(_sqlite_settings, wait_ms))
        event.listen(engine, "begin", _sqlite_begin)
    return engine


def _require_file(url: str) -> None:
    """SQLite creates a database's file by opening it. Raises LedgerUnavailable when there is none."""
    path = Path(place_of(url).partition(":///")[2])
    if url.startswith("sqlite") and not (str(path).startswith("file:") or path.exists()):
        raise LedgerUnavailable(f"no such ledger ({path.absolute()}); reading makes none, ingest does")


def _make_private(engine: Engine) -> None:
    """Makes a new SQLite file accessible to its owner only; the files that SQLite makes beside it get the
    same mode.

    Errors are left to SQLite, which explains them better.
    """
    path = str(engine.url.database)
    if engine.dialect.name == "sqlite" and not path.startswith("file:"):
        with suppress(OSError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _sqlite_settings(wait_ms: int, connection: sqlite3.Connection, _record: object) -> None:
    # The driver's own transactions start too late to be BEGIN IMMEDIATE and skip DDL: we begin ourselves.
    connection.isolation_level = None
    _write_ahead(connection, wait_ms)
    connection.execute("PRAGMA foreign_keys = ON")


def _write_ahead(connection: sqlite3.Connection, wait_ms: int) -> None:
    """The busy timeout does not apply to this pragma: where another process opens a new file at the same
    moment it fails at once with "database is locked", so it is repeated for as long."""
    until = time.monotonic() + wait_ms / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise
            if time.monotonic() >= until:
                raise LedgerUnavailable(f"the database is locked by another process ({error})") from error
        time.sleep(_LOCKED_S)


def _sqlite_begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("gpucost_writes", False)
    if writes:
        connection.exec_driver_sql(_WRITERS_CACHE)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _lock(connection: Connection, cluster: str | None) -> None:
    lock = "SELECT pg_advisory_xact_lock{}(hashtextextended(:name, 0))"
    connection.execute(text(lock.format("_shared" if cluster is not None else "")), {"name": _WRITERS})
    if cluster is not None:
        connection.execute(text(lock.format("")), {"name": f"{_WRITERS} {cluster}"})


def alembic_config(connection: Connection) -> Config:
    config = _config()
    config.attributes["connection"] = connection
    return config


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    return config


@cache
def _revisions() -> tuple[str, ...]:
    """Those that this code knows, the newest first, by the names of their files."""
    files = (_MIGRATIONS / "versions").glob("[0-9]*_*.py")
    return tuple(sorted((file.name.partition("_")[0] for file in files), reverse=True))


def _heads(connection: Connection) -> tuple[str, ...]:
    """The revision of the schema as it says itself; empty where there is none."""
    if not inspect(connection).has_table("alembic_version"):
        return ()
    return tuple(connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalars())


def _is_current(connection: Connection) -> bool:
    """Whether the schema is the one of this code. Raises LedgerTooNew when it is a later one."""
    newest, *earlier = _revisions()
    current = set(_heads(connection))
    if not all(isinstance(revision, str) for revision in current):  # a null, in spite of the schema
        raise LedgerDamaged(f"its schema has no revision: {_DAMAGED}")
    unknown = current - {newest, *earlier}
    if unknown:
        raise LedgerTooNew(
            f"a newer gpucost has migrated this ledger (revision {', '.join(sorted(unknown))}; this one "
            f"knows up to {newest}): upgrade gpucost, or restore a backup"
        )
    return current == {newest}


def _has_tables(connection: Connection) -> bool:
    return bool(_heads(connection))


def _migrate(connection: Connection) -> None:
    """Checks again once it has the lock: another process may have migrated first."""
    if _is_current(connection):
        return
    if connection.dialect.name == "sqlite" and not inspect(connection).get_table_names():
        for statement in _statements(_NEWEST_SCHEMA.read_text()):
            connection.exec_driver_sql(statement)
        if _is_current(connection):
            return
    from alembic import command

    command.upgrade(alembic_config(connection), "head")


def migrated_schema() -> str:
    """What all migrations make of an empty SQLite database, as a script: the content of ``newest.sql``."""
    from alembic import command

    engine = create_engine("sqlite://")
    try:
        with engine.begin() as connection:
            command.upgrade(alembic_config(connection), "head")
        raw = engine.raw_connection()
        driver = cast("sqlite3.Connection", raw.driver_connection)
        found = [each for each in driver.iterdump() if each not in ("BEGIN TRANSACTION;", "COMMIT;")]
        raw.close()
    finally:
        engine.dispose()
    return "".join(f"{statement}\n" for statement in found)


def _statements(script: str) -> Iterator[str]:
    """Of a script in which each ends with its line."""
    found = ""
    for line in script.splitlines(keepends=True):
        found += line
        if sqlite3.complete_statement(found):
            yield found.strip()
            found = ""


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except PoolTimeout as error:
        raise LedgerUnavailable(f"all connections to the ledger are in use: {error}") from error
    except DBAPIError as error:
        raise _our_error(error.orig, disconnected=error.connection_invalidated) from error
    except UnicodeDecodeError as error:  # of SQLite's own messages, which quote what a page holds
        raise LedgerDamaged(f"{error}: {_DAMAGED}") from error
    except Exception as error:
        if isinstance(error, sqlite3.Error) or _of_postgres(error) is not None:
            raise _our_error(error, disconnected=False) from error
        raise


def _of_postgres(error: BaseException | None) -> psycopg.Error | None:
    """The error, if it is one of PostgreSQL's driver: none is, before that is loaded."""
    driver = sys.modules.get("psycopg")
    is_one = driver is not None and isinstance(error, driver.Error)
    return cast("psycopg.Error", error) if is_one else None


def is_damage(error: BaseException | None) -> bool:
    """Whether the database itself reports that it cannot read what it stored."""
    if (of_postgres := _of_postgres(error)) is not None:
        return of_postgres.sqlstate in _POSTGRES_DAMAGED
    if str(error).startswith("Could not decode to UTF-8"):
        return True
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _SQLITE_DAMAGED


def _our_error(error: BaseException | None, *, disconnected: bool) -> LedgerError:
    message = str(error).strip().partition("\n")[0]
    if "gpucost: the month is closed" in message:
        return MonthClosed(message)
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None and code & 0xFF in _SQLITE_UNAVAILABLE:
        hint = f"; {_WRITABLE}" if code & 0xFF in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY) else ""
        return LedgerUnavailable(f"{message} ({getattr(error, 'sqlite_errorname', code)}){hint}")
    if is_damage(error):
        return LedgerDamaged(f"{message}: {_DAMAGED}")
    if (of_postgres := _of_postgres(error)) is not None:
        state = of_postgres.sqlstate
        lost = state is None and isinstance(of_postgres, sys.modules["psycopg"].OperationalError)
        if lost or (state or "").startswith(_POSTGRES_UNAVAILABLE):
            return LedgerUnavailable(message)
    if disconnected:
        return LedgerUnavailable(message)
    if "integer overflow" in message or "out of range" in message:
        return LedgerError(f"a sum does not fit 64 bits: {message}")
    return LedgerError(message)
