"""Backups: taken while another process writes, looked through, put back; and what a restored ledger still
proves."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import threading
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from gpucost.access.keys import KeyRecord, hash_secret
from gpucost.access.principal import AccessRole
from gpucost.domain.errors import InputError, LedgerError, LedgerUnavailable
from gpucost.domain.scope import EVERYTHING
from gpucost.ledger.db.database import alembic_config
from gpucost.ledger.db.records import LedgerTooNew
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.retention import backup
from tests.ledger.builders import MONTH, NOW_MS, contents, hour, ingest, line, random_rows

WAIT_MS = 5_000


def opened(url: str) -> Ledger:
    return Ledger.open(url, now=lambda: NOW_MS)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A ledger with a closed and folded month."""
    file = tmp_path / "ledger.db"
    with opened(f"sqlite:///{file}") as ledger:
        fill(ledger)
    return file


def fill(ledger: Ledger) -> None:
    for number in range(3):
        ingest(ledger, hour(number), *random_rows(1, hour(number), 5))
    ledger.close_month(MONTH, author="ann", min_coverage=Fraction(0), reason="three hours")
    ledger.adjust(MONTH, "red", 1, 1, "late", "ann", "FIN-1")
    ledger.fold(MONTH, author="ann")


def state(ledger: Ledger) -> tuple[object, ...]:
    return (
        contents(ledger, MONTH.window),
        ledger.month(MONTH),
        ledger.folded(MONTH),
        ledger.audit(EVERYTHING),
        ledger.aggregate(EVERYTHING, MONTH.window, ["node", "team"]).to_csv(),
        ledger.verify(),
    )


def test_a_backup_is_restored_to_the_same_digests(source: Path, tmp_path: Path) -> None:
    target, elsewhere = tmp_path / "backups" / "one.db", tmp_path / "restored.db"
    target.parent.mkdir()
    with opened(f"sqlite:///{source}") as ledger:
        before = state(ledger)
        found = backup.back_up(source, target, WAIT_MS)
        assert (found.windows, found.closed, found.verified) == (3, (MONTH,), True)
        assert found.size == target.stat().st_size
    assert list(target.parent.iterdir()) == [target], "nothing else is left beside it"
    assert target.stat().st_mode & 0o777 == 0o600
    assert backup.restore(target, elsewhere, WAIT_MS) == found
    with opened(f"sqlite:///{elsewhere}") as ledger:
        assert state(ledger) == before


def test_a_backup_is_of_one_instant_while_a_writer_runs(source: Path, tmp_path: Path) -> None:
    """Every window is in it whole or not at all, and the writer is never held up for good."""
    stop, written = threading.Event(), list[int]()

    def write() -> None:
        month = MONTH.next()
        with opened(f"sqlite:///{source}") as ledger:
            for number in range(500):
                if stop.is_set():
                    return
                ingest(ledger, hour(number, month), *(random_rows(1, hour(number, month), 20)))
                written.append(number)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        copies = []
        for number in range(3):
            so_far = len(written)
            target = tmp_path / f"{number}.db"
            found = backup.back_up(source, target, WAIT_MS)
            assert so_far <= found.windows - 3 <= len(written) + 1
            copies.append(found.windows)
    finally:
        stop.set()
        writer.join()
    assert copies == sorted(copies)
    assert written
    with opened(f"sqlite:///{source}") as ledger:
        assert ledger.verify() == ()


def test_a_backup_never_replaces_a_file(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "there.db"
    target.write_bytes(b"precious")
    with pytest.raises(InputError, match="not there yet"):
        backup.back_up(source, target, WAIT_MS)
    assert target.read_bytes() == b"precious"
    with pytest.raises(InputError, match="can be written"):
        backup.back_up(source, tmp_path / "no" / "folder.db", WAIT_MS)
    with pytest.raises(LedgerUnavailable, match="no such ledger"):
        backup.back_up(tmp_path / "nothing.db", tmp_path / "new.db", WAIT_MS)
    assert not (tmp_path / "new.db").exists()
    assert not (tmp_path / "nothing.db").exists()


@pytest.mark.fault(41)
def test_a_ledger_that_was_tampered_with_gives_no_backup(source: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(source)) as connection, connection:
        triggers = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("UPDATE usage_line SET board_ms = board_ms + 1")
    with pytest.raises(LedgerError, match="does not verify"):
        backup.back_up(source, tmp_path / "copy.db", WAIT_MS)
    assert {path.name for path in tmp_path.iterdir()} <= {"ledger.db", "ledger.db-wal", "ledger.db-shm"}


def test_only_a_ledger_is_restored(source: Path, tmp_path: Path) -> None:
    copy, target = tmp_path / "copy.db", tmp_path / "target.db"
    backup.back_up(source, copy, WAIT_MS)
    text_file, empty, damaged = (tmp_path / name for name in ("text.db", "empty.db", "damaged.db"))
    text_file.write_text("no database")
    with closing(sqlite3.connect(empty)) as connection, connection:
        connection.execute("CREATE TABLE other (id)")
    content = bytearray(copy.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 8192] = b"\xff" * 8192
    damaged.write_bytes(content)
    for file, error, match in (
        (tmp_path / "nothing.db", InputError, "can be read"),
        (text_file, InputError, "a SQLite database"),
        (damaged, LedgerError, "damaged|malformed|corrupt|not a database"),
        (empty, InputError, "a ledger"),
    ):
        with pytest.raises(error, match=match):
            backup.restore(file, target, WAIT_MS)
        assert not target.exists(), file
    with pytest.raises(InputError, match="--replace"):
        backup.restore(copy, source, WAIT_MS)


def test_a_ledger_in_the_way_is_kept(source: Path, tmp_path: Path) -> None:
    copy, kept = tmp_path / "copy.db", tmp_path / "ledger.db.replaced"
    backup.back_up(source, copy, WAIT_MS)
    after = hour(0, MONTH.next())
    with opened(f"sqlite:///{source}") as ledger:
        ingest(ledger, after, line(after))
        with pytest.raises(LedgerUnavailable, match="stop gpucost first"):
            ledger_is_used(ledger, copy, source, kept)
    assert not kept.exists()
    backup.restore(copy, source, WAIT_MS, kept=kept)
    with opened(f"sqlite:///{source}") as ledger:
        assert ledger.windows(after) == ()
        assert ledger.verify() == ()
    with opened(f"sqlite:///{kept}") as ledger:
        assert len(ledger.windows(after)) == 1
    assert not list(tmp_path.glob(".*"))


def test_a_ledger_in_the_way_is_kept_where_there_are_no_links(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, kept = tmp_path / "copy.db", tmp_path / "ledger.db.replaced"
    backup.back_up(source, copy, WAIT_MS)

    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("gpucost.ledger.retention.backup.os.link", refused)
    backup.restore(copy, source, WAIT_MS, kept=kept)
    for file in (source, kept):
        with opened(f"sqlite:///{file}") as ledger:
            assert ledger.verify() == ()
    assert kept.stat().st_mode & 0o077 == 0
    assert not list(tmp_path.glob("*.part"))


def keep_keys(ledger: Ledger, *names: str) -> None:
    for name in names:
        record = KeyRecord(name, hash_secret(name), AccessRole.ADMIN, created_ms=NOW_MS, created_by="root")
        ledger.add_key(record)


@pytest.mark.fault(49)
def test_a_key_that_was_revoked_since_the_backup_stays_revoked(source: Path, tmp_path: Path) -> None:
    copy, kept = tmp_path / "copy.db", tmp_path / "ledger.db.replaced"
    with opened(f"sqlite:///{source}") as ledger:
        keep_keys(ledger, "one", "two", "three")
        ledger.revoke_key("three", "ann")
        backup.back_up(source, copy, WAIT_MS)
        keep_keys(ledger, "later")
        ledger.revoke_key("later", "ann")
        ledger.revoke_key("two", "ann", "left")
    alone = backup.restore(copy, tmp_path / "alone.db", WAIT_MS)
    assert (alone.carried, {key.id for key in alone.keys}) == (None, {"one", "two"})
    found = backup.restore(copy, source, WAIT_MS, kept=kept)
    assert (found.carried, [key.id for key in found.keys]) == (1, ["one"])
    with opened(f"sqlite:///{source}") as ledger:
        two = ledger.key("two")
        assert two is not None
        assert (two.revoked_ms, two.revoked_by) == (NOW_MS, "ann")
        last = ledger.audit(EVERYTHING)[-1]
        assert (last.action, last.subject, last.author) == ("key revocation", "two", "ann")
        assert "replaced" in last.reason
        assert ledger.verify() == ()


def test_a_ledger_that_cannot_be_read_any_more_can_be_replaced(source: Path, tmp_path: Path) -> None:
    """What it had revoked is not known then."""
    copy, old = tmp_path / "copy.db", tmp_path / "old.db"
    backup.back_up(source, copy, WAIT_MS)
    with closing(sqlite3.connect(old)) as connection, connection:
        connection.execute("CREATE TABLE api_key (id)")
    assert backup.restore(copy, old, WAIT_MS, kept=tmp_path / "kept.db").carried is None


_PLANTED = "CREATE TRIGGER planted BEFORE UPDATE OF revoked_ms ON api_key BEGIN SELECT RAISE(IGNORE); END"
_FOREIGN = {
    _PLANTED: "trigger 'planted' is not of gpucost",
    "DROP TRIGGER api_key_delete_guard": "trigger 'api_key_delete_guard' is missing",
    "CREATE VIEW other AS SELECT 1": "view 'other' is not of gpucost",
    "CREATE TABLE other (id)": "table 'other' is not of gpucost",
    "CREATE INDEX other ON api_key (note)": "index 'other' is not of gpucost",
    "ALTER TABLE api_key ADD COLUMN more": "table 'api_key' was changed",
}


@pytest.mark.fault(41)
def test_a_file_with_a_schema_of_its_own_is_not_restored(tmp_path: Path) -> None:
    copy, file, target = (tmp_path / f"{name}.db" for name in ("copy", "file", "target"))
    opened(f"sqlite:///{copy}").close()
    for statement, named in _FOREIGN.items():
        file.write_bytes(copy.read_bytes())
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute("ANALYZE")
            connection.execute(statement)
        with pytest.raises(InputError, match=named):
            backup.restore(file, target, WAIT_MS)
        assert not target.exists()


def test_a_new_ledger_is_its_owners_alone(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        with opened(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
            keep_keys(ledger, "one")
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    finally:
        os.umask(mask)
    assert modes.keys() >= {"ledger.db", "ledger.db-wal"}
    assert set(modes.values()) == {0o600}


def ledger_is_used(ledger: Ledger, copy: Path, source: Path, kept: Path) -> None:
    assert ledger.windows(MONTH.window)
    backup.restore(copy, source, 100, kept=kept)


@pytest.mark.fault(45)
def test_a_backup_of_an_older_program_is_migrated_and_of_a_newer_one_refused(tmp_path: Path) -> None:
    old, target = tmp_path / "old.db", tmp_path / "target.db"
    engine = create_engine(f"sqlite:///{old}")
    with engine.begin() as connection:
        command.upgrade(alembic_config(connection), "0001")
    engine.dispose()
    found = backup.back_up(old, tmp_path / "copy.db", WAIT_MS)
    assert (found.revision, found.verified) == ("0001", False)
    assert backup.restore(tmp_path / "copy.db", target, WAIT_MS).verified
    with closing(sqlite3.connect(target)) as newer, newer:
        newer.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(LedgerTooNew, match="revision 9999"):
        backup.restore(target, tmp_path / "other.db", WAIT_MS)
    assert not (tmp_path / "other.db").exists()


# --- PostgreSQL -----------------------------------------------------------------------------------------


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_dump"), key=lambda path: int(path.parts[-3]))
    if not found:
        pytest.skip("PostgreSQL is not installed: no /usr/lib/postgresql/*/bin/pg_dump")
    monkeypatch.setenv("PATH", f"{found[-1].parent}:{os.environ['PATH']}")


@pytest.mark.postgres
@pytest.mark.usefixtures("tools")
def test_the_commands_for_postgresql_restore_the_same_digests_and_triggers(
    postgres_url: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server = request.getfixturevalue("postgres")
    with opened(postgres_url) as ledger:
        fill(ledger)
        before = state(ledger)
    file = tmp_path / "a dump"
    run(backup.dump_command(postgres_url, file))
    assert [path.name for path in tmp_path.iterdir()] == ["a dump"]
    with server.database("restored") as url:
        run(backup.restore_command(url, file))
        with opened(url) as ledger:
            assert state(ledger) == before
            after = hour(0, MONTH.next())
            assert ingest(ledger, after, line(after)).changed, "and it goes on"
        engine = create_engine(url)
        for statement in ("DELETE FROM usage_line", "UPDATE month_fold SET lines = 1", "TRUNCATE audit"):
            with pytest.raises(DBAPIError, match="gpucost: "), engine.begin() as connection:
                connection.execute(text(statement))
        engine.dispose()


def run(words: str) -> None:
    done = subprocess.run(["sh", "-c", words], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_commands_show_no_password() -> None:
    url = "postgresql+psycopg://ann:hunter2@db.example:5433/ledger?sslmode=require&password=hunter2"
    for words in (backup.dump_command(url, Path("b c")), backup.restore_command(url, Path("b c"))):
        assert "hunter2" not in words
        assert "postgresql://ann@db.example:5433/ledger" in words
        assert "'b c'" in words
