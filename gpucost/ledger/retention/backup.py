"""Copies of a SQLite ledger: taken while it is written to, verified before they count, and restored.

PostgreSQL has its own tools: ``dump_command`` and ``restore_command`` give their command lines. A restore
refuses a foreign schema, and revokes keys that were revoked since the backup.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkstemp
from urllib.parse import quote

from sqlalchemy import Connection, create_engine, delete
from sqlalchemy.engine import URL

from gpucost.access.keys import KeyRecord
from gpucost.domain.errors import InputError, LedgerDamaged, LedgerError, LedgerUnavailable, shorten
from gpucost.domain.time import Month
from gpucost.ledger.db.database import (
    LedgerDatabase,
    alembic_config,
    is_damage,
    parsed_url,
)
from gpucost.ledger.db.store_tables import LOGIN_SESSION
from gpucost.ledger.retention import verification
from gpucost.ledger.retention.verification import damaged_pages
from gpucost.ledger.stores import api_keys

_CARRIED = "carried over from the ledger that a backup replaced"
_STATISTICS = ("sqlite_stat1", "sqlite_stat4")
TableSchemas = dict[tuple[str, str], str]


def refuse_foreign_schema(file: Path, revision: str, name: Path) -> None:
    """A trigger in a file from elsewhere would run here. Raises InputError, about ``name``, unless tables,
    indexes, views and triggers are those that the migrations make up to ``revision``."""
    database = LedgerDatabase.reading(file)
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
    """Revoke in ``restored`` the keys that are revoked in ``old``; how many these were. None where ``old``
    cannot be read: it may be damaged, which may be the reason for the restore."""
    reading = LedgerDatabase.reading(old)
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
    database = LedgerDatabase.open(f"sqlite:///{restored.absolute()}", wait_ms, create=False)
    try:
        with database.write() as connection:
            valid = {key.id for key in api_keys.unrevoked(connection)}
            again = [row for row in revoked if row.id in valid]
            for row in again:
                api_keys.revoke(connection, row.id, row.revoked_by, _CARRIED, row.revoked_ms)
    finally:
        database.close()
    return len(again)


def _end_sessions(file: Path, wait_ms: int) -> None:
    """Migrates the ledger as well."""
    database = LedgerDatabase.open(f"sqlite:///{file.absolute()}", wait_ms, create=False)
    try:
        with database.write() as connection:
            connection.execute(delete(LOGIN_SESSION))
    finally:
        database.close()


def _made_anew(revision: str, name: Path) -> TableSchemas:
    from alembic import command
    from alembic.util import CommandError

    engine = create_engine("sqlite://")
    try:
        with engine.begin() as connection:
            command.upgrade(alembic_config(connection), revision)
            return _schema(connection)
    except CommandError:
        raise InputError("FILE", str(name), f"a ledger: {revision!r} is no revision of one") from None
    finally:
        engine.dispose()


def _schema(connection: Connection) -> TableSchemas:
    """(type, name) -> SQL. What ANALYZE creates is left out, and white space is ignored."""
    rows = connection.exec_driver_sql("SELECT type, name, sql FROM sqlite_master").all()
    return {
        (str(kind), str(name)): " ".join((sql or "").split())
        for kind, name, sql in rows
        if not (name in _STATISTICS and (sql or "").startswith(f"CREATE TABLE {name}("))
    }


_HEADER = b"SQLite format 3\0"
_SIDES = ("-wal", "-shm", "-journal")
_DRAFT = ".gpucost-draft"


@dataclass(frozen=True, slots=True)
class BackupCheck:
    """The result of checking a copy. One of an older schema is verified only when it is restored:
    ``verified``.

    ``keys`` counts those that are not revoked (none of an older schema). ``carried`` is how many of them a
    restore revoked, because they were revoked in the ledger that it replaced; None where that is not known.
    ``swept`` are incomplete copies of killed processes, which were in the same folder and have been removed.
    """

    revision: str
    verified: bool
    windows: int
    closed: tuple[Month, ...]
    size: int
    keys: tuple[KeyRecord, ...] = ()
    carried: int | None = None
    swept: tuple[Path, ...] = ()


def file_of(url: str) -> Path | None:
    """The file of a SQLite ledger; None for another database. Raises InputError for what is no URL."""
    parsed = parsed_url(url)
    return Path(str(parsed.database)) if parsed.drivername.startswith("sqlite") else None


def dump_command(url: str, file: Path) -> str:
    """The command that backs up a PostgreSQL ledger. The password is not in it: PGPASSWORD or ~/.pgpass has
    it.

    ``pg_dump`` writes under another name first, so that a file with the requested name is a complete dump.
    """
    part = f"{file}.part"
    words = ["pg_dump", "--format=custom", "--no-owner", f"--file={part}", f"--dbname={_shown(url)}"]
    return f"{shlex.join(words)} && {shlex.join(['mv', '--', part, str(file)])}"


def restore_command(url: str, file: Path) -> str:
    """The command that restores a dump of ``dump_command`` into an empty PostgreSQL database: all of it or
    nothing."""
    options = ["--no-owner", "--exit-on-error", "--single-transaction"]
    return shlex.join(["pg_restore", *options, f"--dbname={_shown(url)}", str(file)])


def back_up(source: Path, target: Path, wait_ms: int) -> BackupCheck:
    """Copy the ledger in ``source`` as it is at one instant to ``target``, which is then complete and
    verified, or does not exist. Writers are not blocked.

    Raises InputError when there is a ``target`` or it cannot be written, LedgerUnavailable for no such
    ledger, LedgerError for one whose closed months do not verify.
    """
    if not source.is_file():
        raise LedgerUnavailable(f"no such ledger ({source.absolute()})")
    _refuse_existing(target)
    with _beside(target) as (draft, swept):
        _copy(source, draft, wait_ms)
        found = check(draft, source)
        _put(draft, target)
    return replace(found, swept=swept)


def restore(backup: Path, target: Path, wait_ms: int, *, kept: Path | None = None) -> BackupCheck:
    """Replace the ledger ``target`` by a copy, migrated to this program's schema and verified.

    Nobody is logged in to what was restored: a session may have ended since. An existing ledger is kept as
    ``kept``, and its revocations of keys are carried over; without ``kept``, an existing ledger is an error.
    Raises InputError for a file that is not a ledger or has a schema of its own, and for an existing ledger;
    LedgerTooNew for one of a later program; LedgerError for one that does not verify; LedgerUnavailable while
    another process has the ledger open.
    """
    _require_ledger(backup)
    if kept is None:
        _refuse_existing(
            target, "a path without a ledger, or --replace to keep the one that is there beside it"
        )
    with _beside(target) as (draft, swept):
        _copy(backup, draft, wait_ms)
        revision, _ = _revisions(draft, backup)
        refuse_foreign_schema(draft, revision, backup)
        _end_sessions(draft, wait_ms)
        carried = None
        if kept is not None and target.exists():
            _settle(target, wait_ms)
            carried = carry_revocations(target, draft, wait_ms)
        _one_file(draft, wait_ms)
        found = replace(check(draft, backup), carried=carried, swept=swept)
        if kept is not None and target.exists():
            _settle(target, wait_ms)
            _set_aside(target, kept)
            draft.replace(target)
            _sync(target.parent)
        else:
            _put(draft, target)
    return found


def check(file: Path, name: Path | None = None) -> BackupCheck:
    """Read a file that has no writer from end to end. Raises as ``restore`` does, about ``name``."""
    name = name or file
    _require_ledger(file)
    revision, newest = _revisions(file, name)
    database = LedgerDatabase.reading(file)
    try:
        with database.read() as connection:
            findings = verification.verify(connection, None) if revision == newest else ()
            if findings:
                first = findings[0]
                raise LedgerError(f"{name} does not verify: {first.subject}: {first.detail}")
            months = connection.exec_driver_sql("SELECT month FROM month ORDER BY month").scalars().all()
            count = connection.exec_driver_sql("SELECT count(*) FROM ledger_window").scalar_one()
            valid = api_keys.unrevoked(connection) if revision == newest else ()
    finally:
        database.close()
    closed = tuple(map(Month.parse, months))
    return BackupCheck(revision, revision == newest, int(count), closed, file.stat().st_size, valid)


def _revisions(file: Path, name: Path) -> tuple[str, str]:
    """The revisions of a database that is intact and has the tables of a ledger, and of this program."""
    database = LedgerDatabase.reading(file)
    try:
        with database.read() as connection:
            wrong = damaged_pages(connection)
        if wrong:
            raise LedgerDamaged(f"{name} is damaged, no copy was made of it: {'; '.join(wrong[:3])}")
        revision, newest = database.revision()
        if not revision:
            raise InputError("FILE", str(name), "a ledger: this database has none of its tables")
    finally:
        database.close()
    return revision, newest


def _shown(url: str) -> str:
    """The URL for the tools of PostgreSQL: no driver, no password, none of our options."""
    parsed = parsed_url(url)
    return URL.create(
        "postgresql", parsed.username, None, parsed.host, parsed.port, parsed.database
    ).render_as_string()


def _require_ledger(file: Path) -> None:
    try:
        with file.open("rb") as opened:
            head = opened.read(len(_HEADER))
    except OSError as error:
        raise InputError("FILE", str(file), f"a backup that can be read ({error.strerror})") from None
    if head != _HEADER:
        raise InputError("FILE", str(file), "a backup of gpucost ledger backup: a SQLite database")


def _refuse_existing(path: Path, allowed: str = "a file that is not there yet") -> None:
    if path.exists() or path.is_symlink():
        raise InputError("FILE", str(path), allowed)


@contextmanager
def _beside(target: Path) -> Iterator[tuple[Path, tuple[Path, ...]]]:
    """A file in the folder of ``target``, readable by its owner only and removed at the end; and the
    incomplete copies of other processes, which are removed too."""
    try:
        swept = _sweep(target.absolute().parent)
        descriptor, draft = _draft(target)
    except OSError as error:
        allowed = f"a file that can be written ({error.strerror})"
        raise InputError("FILE", str(target), allowed) from None
    try:
        yield draft, swept
    finally:
        _remove(draft)
        os.close(descriptor)


def _draft(target: Path) -> tuple[int, Path]:
    """A draft that is locked for as long as this process lives: the lock tells it from one that was left
    behind."""
    while True:
        descriptor, name = mkstemp(prefix=f".{target.name}.", suffix=_DRAFT, dir=target.absolute().parent)
        with suppress(OSError):  # a file system without locks: drafts are then never removed
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, Path(name)
        os.close(descriptor)  # another process removed it before it was locked


def _sweep(folder: Path) -> tuple[Path, ...]:
    """Removes drafts that no process has locked."""
    swept = []
    for draft in sorted(folder.glob(f".*{_DRAFT}")):
        with suppress(OSError), draft.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(draft)
            swept.append(draft)
    return tuple(swept)


def _remove(draft: Path) -> None:
    """Removes a file; the files beside it first, so that none is ever left without it."""
    for side in (*_SIDES, ""):
        draft.with_name(draft.name + side).unlink(missing_ok=True)


def _copy(source: Path, draft: Path, wait_ms: int) -> None:
    """Copies in one step, in one read transaction: a writer does not make it start again."""
    try:
        with (
            closing(_connect(source, "ro", wait_ms)) as one,
            closing(_connect(draft, "rw", wait_ms)) as other,
        ):
            one.backup(other)
            other.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise LedgerUnavailable(f"{source} could not be copied: {error}") from error


def _one_file(file: Path, wait_ms: int) -> None:
    """Moves everything into the file itself. Raises LedgerUnavailable while another process has it open."""
    try:
        with closing(_connect(file, "rw", wait_ms)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        if is_damage(error):
            raise LedgerDamaged(f"{file}: {error}") from error
        raise LedgerUnavailable(f"{file} is in use: stop gpucost first ({error})") from error


def _settle(target: Path, wait_ms: int) -> None:
    """As ``_one_file``, for the ledger to be replaced: damage must not keep it from being moved."""
    with suppress(LedgerDamaged):
        _one_file(target, wait_ms)


def _set_aside(target: Path, kept: Path) -> None:
    """Renames the ledger, with the files that may be beside a damaged one."""
    if not (kept.exists() and kept.samefile(target)):  # killed at this point, and called again
        _refuse_existing(kept)
    for side in _SIDES:
        with suppress(FileNotFoundError):
            target.with_name(target.name + side).rename(kept.with_name(kept.name + side))
    try:
        os.link(target, kept)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        draft = kept.with_name(f"{kept.name}.part")
        shutil.copy2(target, draft)
        draft.rename(kept)


def _connect(file: Path, mode: str, wait_ms: int) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(str(file.absolute()))}?mode={mode}", uri=True, timeout=wait_ms / 1000
    )


def _put(draft: Path, target: Path) -> None:
    """Completely or not at all, never over another file, and never beside the log of another database: SQLite
    would take that log for this file's, and apply it."""
    for side in _SIDES:
        _refuse_existing(
            target.with_name(target.name + side), "no such file: it belongs to a ledger that is gone"
        )
    with draft.open("rb+") as opened:
        os.fsync(opened.fileno())
    try:
        os.link(draft, target)
    except FileExistsError:
        _refuse_existing(target)
    except OSError:  # a file system without links
        _refuse_existing(target)
        draft.rename(target)
    _sync(target.absolute().parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
