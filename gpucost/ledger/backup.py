"""Copies of a SQLite ledger: taken while it is written to, looked through before they count, and put back.

PostgreSQL has its own: ``dump_command`` and ``restore_command`` say which.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkstemp
from urllib.parse import quote

from sqlalchemy.engine import URL

from gpucost.access.keys import KeyRecord
from gpucost.domain.errors import InputError, LedgerError, LedgerUnavailable
from gpucost.domain.time import Month
from gpucost.ledger import keys, verification
from gpucost.ledger.database import Database, parsed_url
from gpucost.ledger.restoring import carry_revocations, refuse_foreign_schema

_HEADER = b"SQLite format 3\0"
_SIDES = ("-wal", "-shm", "-journal")


@dataclass(frozen=True, slots=True)
class Checked:
    """What a copy was found to be. One of an older schema is verified when it is restored: ``verified``.

    ``keys`` are those that are not revoked (none of an older schema). ``carried`` is how many of them a
    restore revoked, as they were in the ledger that it replaced; None where that is not known.
    """

    revision: str
    verified: bool
    windows: int
    closed: tuple[Month, ...]
    size: int
    keys: tuple[KeyRecord, ...] = ()
    carried: int | None = None


def file_of(url: str) -> Path | None:
    """The file of a SQLite ledger; None for another database. Raises InputError for a URL that is none."""
    parsed = parsed_url(url)
    return Path(str(parsed.database)) if parsed.drivername.startswith("sqlite") else None


def dump_command(url: str, file: Path) -> str:
    """How to back up a PostgreSQL ledger. The password is no part of it: PGPASSWORD or ~/.pgpass has it."""
    words = ["pg_dump", "--format=custom", "--no-owner", f"--file={file}", f"--dbname={_shown(url)}"]
    return shlex.join(words)


def restore_command(url: str, file: Path) -> str:
    """How to put a dump of ``dump_command`` into an empty PostgreSQL database: all of it or nothing."""
    options = ["--no-owner", "--exit-on-error", "--single-transaction"]
    return shlex.join(["pg_restore", *options, f"--dbname={_shown(url)}", str(file)])


def back_up(source: Path, target: Path, wait_ms: int) -> Checked:
    """Copy the ledger in ``source`` as it is at one instant to ``target``, which is there whole and looked
    through, or not at all. Whoever writes goes on writing.

    Raises InputError when there is a ``target`` or it cannot be written, LedgerUnavailable for no such
    ledger, LedgerError for one whose closed months do not verify.
    """
    if not source.is_file():
        raise LedgerUnavailable(f"no such ledger ({source.absolute()})")
    _refuse_existing(target)
    with _beside(target) as draft:
        _copy(source, draft, wait_ms)
        found = check(draft)
        _put(draft, target)
    return found


def restore(backup: Path, target: Path, wait_ms: int, *, kept: Path | None = None) -> Checked:
    """Put a copy in the place of the ledger ``target``, migrated to this program's schema and looked through.

    A ledger that is there is kept as ``kept``, and its revocations of keys go on; without ``kept``, it is in
    the way. Raises InputError for a file that is no ledger or has a schema of its own, and for a ledger in
    the way; LedgerTooNew for one of a later program; LedgerError for
    one that does not verify; LedgerUnavailable while another process has the ledger open.
    """
    _require_ledger(backup)
    if kept is None:
        _refuse_existing(
            target, "a path without a ledger, or --replace to keep the one that is there beside it"
        )
    with _beside(target) as draft:
        _copy(backup, draft, wait_ms)
        revision, _ = _revisions(draft)
        refuse_foreign_schema(draft, revision, backup)
        Database.open(f"sqlite:///{draft.absolute()}", wait_ms, create=False).close()
        carried = None
        if kept is not None and target.exists():
            _one_file(target, wait_ms)
            carried = carry_revocations(target, draft, wait_ms)
        _one_file(draft, wait_ms)
        found = replace(check(draft), carried=carried)
        if kept is not None and target.exists():
            _one_file(target, wait_ms)
            _refuse_existing(kept)
            os.link(target, kept)
            draft.replace(target)
            _sync(target.parent)
        else:
            _put(draft, target)
    return found


def check(file: Path) -> Checked:
    """Read a file that nobody writes to, from end to end. Raises as ``restore`` does."""
    _require_ledger(file)
    revision, newest = _revisions(file)
    database = Database.reading(file)
    try:
        with database.read() as connection:
            findings = verification.verify(connection, None) if revision == newest else ()
            if findings:
                first = findings[0]
                raise LedgerError(f"{file} does not verify: {first.subject}: {first.detail}")
            months = connection.exec_driver_sql("SELECT month FROM month ORDER BY month").scalars().all()
            count = connection.exec_driver_sql("SELECT count(*) FROM ledger_window").scalar_one()
            valid = keys.unrevoked(connection) if revision == newest else ()
    finally:
        database.close()
    closed = tuple(map(Month.parse, months))
    return Checked(revision, revision == newest, int(count), closed, file.stat().st_size, valid)


def _revisions(file: Path) -> tuple[str, str]:
    """Of a database that is whole and has the tables of a ledger, and of this program."""
    database = Database.reading(file)
    try:
        with database.read() as connection:
            [*wrong] = connection.exec_driver_sql("PRAGMA integrity_check").scalars()
        if wrong != ["ok"]:
            raise LedgerError(f"{file} is damaged: {'; '.join(map(str, wrong[:3]))}")
        revision, newest = database.revision()
        if not revision:
            raise InputError("FILE", str(file), "a ledger: this database has none of its tables")
    finally:
        database.close()
    return revision, newest


def _shown(url: str) -> str:
    """The URL for the tools of PostgreSQL: no driver, no password, no options of ours."""
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
def _beside(target: Path) -> Iterator[Path]:
    """A file in the folder of ``target``, for nobody else to read, which is gone at the end."""
    try:
        descriptor, name = mkstemp(prefix=f".{target.name}.", dir=target.absolute().parent)
    except OSError as error:
        allowed = f"a file that can be written ({error.strerror})"
        raise InputError("FILE", str(target), allowed) from None
    os.close(descriptor)
    draft = Path(name)
    try:
        yield draft
    finally:
        for side in ("", *_SIDES):
            draft.with_name(draft.name + side).unlink(missing_ok=True)


def _copy(source: Path, draft: Path, wait_ms: int) -> None:
    """In one step, under one view: a writer does not make it begin again."""
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
    """Everything into the file itself. Raises LedgerUnavailable while another process has it open."""
    try:
        with closing(_connect(file, "rw", wait_ms)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise LedgerUnavailable(f"{file} is in use: stop gpucost first ({error})") from error


def _connect(file: Path, mode: str, wait_ms: int) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(str(file.absolute()))}?mode={mode}", uri=True, timeout=wait_ms / 1000
    )


def _put(draft: Path, target: Path) -> None:
    """Whole or not at all, and never over another file."""
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
