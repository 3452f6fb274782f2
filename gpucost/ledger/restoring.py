"""What a backup must not bring when it is put back: a foreign schema, and keys that were revoked since."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.util import CommandError
from sqlalchemy import Connection, create_engine

from gpucost.domain.errors import InputError, LedgerError, shorten
from gpucost.ledger import keys
from gpucost.ledger.database import Database, alembic_config

_CARRIED = "carried over from the ledger that a backup replaced"
_STATISTICS = ("sqlite_stat1", "sqlite_stat4")
Schema = dict[tuple[str, str], str]


def refuse_foreign_schema(file: Path, revision: str, name: Path) -> None:
    """A trigger in a file from elsewhere would run here. Raises InputError, about ``name``, unless tables,
    indexes, views and triggers are those that the migrations make up to ``revision``."""
    database = Database.reading(file)
    try:
        with database.read() as connection:
            found = _schema(connection)
    finally:
        database.close()
    wanted = _made_anew(revision, name)
    for kind, what in sorted(found.keys() | wanted.keys()):
        one, other = found.get((kind, what)), wanted.get((kind, what))
        if one != other:
            is_wrong = (
                "is missing" if one is None else "is not of gpucost" if other is None else "was changed"
            )
            allowed = (
                f"a ledger as gpucost made it: in revision {revision} the {kind} {shorten(what)} {is_wrong}"
            )
            raise InputError("FILE", str(name), allowed)


def carry_revocations(old: Path, restored: Path, wait_ms: int) -> int | None:
    """Revoke in ``restored`` what is revoked in ``old``; how many keys that were. None where ``old`` cannot
    be read: it may be damaged, and that is why there is a restore."""
    reading = Database.reading(old)
    try:
        with reading.read() as connection:
            if not connection.dialect.has_table(connection, "api_key"):
                return 0
            words = "SELECT id, revoked_by, revoked_ms FROM api_key WHERE revoked_ms IS NOT NULL"
            revoked = connection.exec_driver_sql(words).all()
    except LedgerError:
        return None
    finally:
        reading.close()
    database = Database.open(f"sqlite:///{restored.absolute()}", wait_ms, create=False)
    try:
        with database.write() as connection:
            valid = {key.id for key in keys.unrevoked(connection)}
            again = [row for row in revoked if row.id in valid]
            for row in again:
                keys.revoke(connection, row.id, row.revoked_by, _CARRIED, row.revoked_ms)
    finally:
        database.close()
    return len(again)


def _made_anew(revision: str, name: Path) -> Schema:
    engine = create_engine("sqlite://")
    try:
        with engine.begin() as connection:
            command.upgrade(alembic_config(connection), revision)
            return _schema(connection)
    except CommandError:
        raise InputError("FILE", str(name), f"a ledger: {revision!r} is no revision of one") from None
    finally:
        engine.dispose()


def _schema(connection: Connection) -> Schema:
    """(type, name) -> SQL. What ANALYZE makes is left out, white space counts for nothing."""
    rows = connection.exec_driver_sql("SELECT type, name, sql FROM sqlite_master").all()
    return {
        (str(kind), str(name)): " ".join((sql or "").split())
        for kind, name, sql in rows
        if not (name in _STATISTICS and (sql or "").startswith(f"CREATE TABLE {name}("))
    }
