"""Pages that a disk changed: the database's own check finds what no digest is read through."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucost.domain.errors import InputError, LedgerDamaged, LedgerError
from gpucost.domain.scope import EVERYTHING
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.retention import backup
from tests.ledger.builders import MONTH, NOW_MS, hour, ingest, line
from tests.ledger.tampering import flip, flip_index_page, tamper
from tests.support.ledgers import new_ledger
from tests.support.postgres import PostgresServer

_PAGE = 4096


def opened(url: str) -> Ledger:
    return Ledger.open(url, now=lambda: NOW_MS)


def fill(url: str) -> None:
    with opened(url) as ledger:
        for number in range(3):
            ingest(ledger, hour(number), line(hour(number)))


@pytest.mark.fault(41)
def test_a_whole_ledger_has_no_damage(ledger_url: str, request: pytest.FixtureRequest) -> None:
    fill(ledger_url)
    with opened(ledger_url) as ledger:
        found = ledger.integrity()
    if "postgresql" not in ledger_url:
        assert (found.damage, found.unchecked) == ((), "")
        return
    assert (found.damage, "CREATE EXTENSION amcheck" in found.unchecked) == ((), True)
    server = request.getfixturevalue("postgres")
    name = ledger_url.rpartition("/")[2]
    server.execute("CREATE EXTENSION amcheck", name)
    server.execute("CREATE ROLE reader LOGIN", name)
    server.execute("GRANT pg_read_all_data TO reader", name)
    try:
        with opened(ledger_url.replace("gpucost@", "reader@")) as ledger:
            assert "bt_index_check(regclass, boolean) TO" in ledger.integrity().unchecked
        with opened(ledger_url) as ledger:
            found = ledger.integrity()
        assert (found.damage, found.unchecked) == ((), "")
    finally:
        server.execute("DROP OWNED BY reader; DROP ROLE reader", name)


@pytest.mark.fault(41)
def test_a_damaged_index_page_is_found_though_every_digest_agrees(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    fill(new_ledger(file))
    flip_index_page(file, "ix_holder_team")
    with opened(f"sqlite:///{file}") as ledger:
        assert ledger.verify() == ()
        assert any("ix_holder_team" in each for each in ledger.integrity().damage)
    with pytest.raises(LedgerDamaged, match=r"ledger\.db is damaged, no copy"):
        backup.back_up(file, tmp_path / "copy.db", 1_000)
    assert {path.name for path in tmp_path.iterdir()} <= {"ledger.db", "ledger.db-wal", "ledger.db-shm"}


@pytest.mark.fault(41)
@pytest.mark.postgres
def test_a_damaged_index_page_of_postgresql_is_found(postgres: PostgresServer, postgres_url: str) -> None:
    """Files are copied past the server's memory, and the page is flipped before it reads it."""
    fill(postgres_url)
    name = postgres_url.rpartition("/")[2]
    postgres.execute("CREATE EXTENSION amcheck", name)
    with postgres.connect(name) as connection:
        query = "SELECT current_setting('data_directory'), pg_relation_filepath('ix_ledger_window_month')"
        folder, path = connection.execute(query.encode()).fetchone() or ("", "")
    postgres.execute(f'CREATE DATABASE "{name}_hit" TEMPLATE "{name}" STRATEGY file_copy')
    try:
        with postgres.connect() as connection:
            query = f"SELECT oid FROM pg_database WHERE datname = '{name}_hit'"
            [oid] = connection.execute(query.encode()).fetchone() or (0,)
        flip(Path(folder) / "base" / str(oid) / path.rpartition("/")[2], 2, 8192, 40)
        with opened(f"{postgres_url}_hit") as ledger:
            [damage] = ledger.integrity().damage
        assert "index ix_ledger_window_month: " in damage
    finally:
        postgres.execute(f'DROP DATABASE "{name}_hit" WITH (FORCE)')


def test_rows_that_name_what_is_gone_are_damage(sqlite_url: str) -> None:
    fill(sqlite_url)
    tamper(sqlite_url, "PRAGMA foreign_keys = OFF", "DELETE FROM holder")
    with opened(sqlite_url) as ledger:
        assert ledger.integrity().damage == (
            "1 rows of day_line name a row of holder that is gone",
            "3 rows of usage_line name a row of holder that is gone",
        )


@pytest.mark.fault(41)
def test_a_damaged_ledger_is_replaced_by_its_backup(tmp_path: Path) -> None:
    """Its header is gone, so nothing can be read of it. A log is of one file alone."""
    file, copy, kept = tmp_path / "ledger.db", tmp_path / "copy.db", tmp_path / "ledger.db.replaced"
    log = tmp_path / "ledger.db-wal"
    fill(new_ledger(file))
    backup.back_up(file, copy, 1_000)
    content = file.read_bytes()
    file.write_bytes(b"\0" * _PAGE + content[_PAGE:])
    with pytest.raises(LedgerDamaged, match="gpucost ledger restore"):
        opened(f"sqlite:///{file}")
    log.write_bytes(b"of the damaged one")
    assert backup.restore(copy, file, 1_000, kept=kept).windows == 3
    assert not log.exists()
    with opened(f"sqlite:///{file}") as ledger:
        assert (ledger.integrity().damage, ledger.verify()) == ((), ())
    assert kept.read_bytes()[:_PAGE] == b"\0" * _PAGE
    file.unlink()
    log.write_bytes(b"of one that was removed")
    with pytest.raises(InputError, match=r"ledger\.db-wal.*a ledger that is gone"):
        backup.restore(copy, file, 1_000)


@pytest.mark.fault(41)
def test_a_damaged_page_of_any_kind_is_found_or_an_error_of_ours(tmp_path: Path) -> None:
    """Pages of tables, of indexes and of the schema, whose text SQLite quotes as it is."""
    file = tmp_path / "ledger.db"
    fill(new_ledger(file))
    content, told = file.read_bytes(), set()
    pages = range(1, len(content) // _PAGE + 1)
    of_schema = {1, *(page for page in pages if b"CREATE T" in content[(page - 1) * _PAGE : page * _PAGE])}
    for page in sorted({*pages[1::5], *of_schema}):
        file.write_bytes(content)
        flip(file, page, _PAGE, 40)
        try:
            with opened(f"sqlite:///{file}") as ledger:
                ledger.aggregate(EVERYTHING, MONTH.window, ["team"])
                if ledger.integrity().damage or ledger.verify():
                    told.add(page)
        except LedgerError:
            told.add(page)
    assert 1 in told
    assert len(told & of_schema) > 2, "an overflow page may end in bytes that are not used"
    assert told - of_schema
