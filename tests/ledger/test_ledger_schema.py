"""Opening a ledger: migrations from every release, no drift, refusals."""

from __future__ import annotations

import itertools
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.exc import DBAPIError

from gpucost.domain.errors import InputError, LedgerUnavailable
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, Window
from gpucost.ledger.db.database import _NEWEST_SCHEMA as NEWEST_SCHEMA
from gpucost.ledger.db.database import LedgerDatabase, _revisions, alembic_config, migrated_schema
from gpucost.ledger.db.records import LedgerState, LedgerTooNew
from gpucost.ledger.db.tables import METADATA
from gpucost.ledger.ledger import Ledger
from tests.ledger.builders import MONTH, NOW_MS, ingest, line
from tests.ledger.first_release import load

DAY = Window(MONTH.window.start_ms, MONTH.window.start_ms + DAY_MS)


@pytest.fixture
def connection(empty_url: str) -> Iterator[Connection]:
    engine = create_engine(empty_url)
    with engine.connect() as opened:
        yield opened
    engine.dispose()


def open_ledger(url: str) -> Ledger:
    return Ledger.open(url, now=lambda: NOW_MS)


def revisions(connection: Connection) -> list[str]:
    script = ScriptDirectory.from_config(alembic_config(connection))
    return [revision.revision for revision in reversed(list(script.walk_revisions()))]


@pytest.mark.fault(45)
def test_a_ledger_of_the_first_release_goes_through_every_migration(
    empty_url: str, connection: Connection
) -> None:
    first, *later = revisions(connection)
    with connection.begin():
        command.upgrade(alembic_config(connection), first)
        load(connection)
    for revision in later:
        with connection.begin():
            command.upgrade(alembic_config(connection), revision)
    with open_ledger(empty_url) as ledger:
        assert ledger.verify() == ()
        assert ledger.month(MONTH).state is LedgerState.CLOSED
        assert ledger.month(MONTH).author == "ann"
        assert [adjustment.nano for adjustment in ledger.adjustments(EVERYTHING, MONTH)] == [200]
        found = ledger.aggregate(EVERYTHING, MONTH.window, ["team"])
        assert found[["team", "nano"]].to_dict("list") == {
            "team": ["__unallocated__", "red"],
            "nano": [300, 5_000_000_000],
        }
        rules = ledger.aggregate(EVERYTHING, MONTH.window, ["team_rule"])
        assert rules["team_rule"].tolist() == [""], "not recorded"
        before = found.to_csv()
        ledger.fold(MONTH, author="ann")
        assert ledger.verify() == (), "folded by this release"
        assert ledger.aggregate(EVERYTHING, MONTH.window, ["team"]).to_csv() == before
        following = Window(MONTH.window.end_ms, MONTH.window.end_ms + DAY_MS)
        measured = {"energy_mj": 5, "energy_observed_ms": 3, "memory_peak_mib": 70, "busy_over_ms": 1}
        ingest(ledger, following, line(following, team="blue", pod_uid="new", **measured))
        ledger.close_month(MONTH.next(), author="ann", min_coverage=Fraction(0), reason="one day")
        assert ledger.verify() == (), "and it goes on"
        row = ledger.aggregate(EVERYTHING, following, ["team"]).iloc[0]
        assert row[list(measured)].to_dict() == measured


def test_a_new_file_gets_what_all_migrations_make(tmp_path: Path) -> None:
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        newest = revisions(connection)
    engine.dispose()
    assert _revisions() == tuple(reversed(newest))
    open_ledger(f"sqlite:///{tmp_path / 'new.db'}").close()
    with closing(sqlite3.connect(tmp_path / "new.db")) as made:
        script = [each for each in made.iterdump() if each not in ("BEGIN TRANSACTION;", "COMMIT;")]
    assert "".join(f"{statement}\n" for statement in script) == migrated_schema()
    assert f"VALUES('{newest[-1]}');" in NEWEST_SCHEMA.read_text(), "run: make docs"


@pytest.mark.fault(45)
def test_models_and_migrations_do_not_drift(empty_url: str, connection: Connection) -> None:
    open_ledger(empty_url).close()

    def is_compared(_: object, name: str | None, kind: str, *__: object) -> bool:
        """A trigger stands for these on PostgreSQL."""
        by_trigger = kind == "foreign_key_constraint" and str(name).startswith("fk_usage_line_")
        return not (by_trigger and connection.dialect.name == "postgresql")

    opts = {"compare_type": True, "include_object": is_compared}
    context = MigrationContext.configure(connection, opts=opts)
    assert compare_metadata(context, METADATA) == []
    expected = {table.name: {check.name for check in table.constraints} for table in METADATA.sorted_tables}
    for name, names in expected.items():
        found = inspect(connection)
        assert {check["name"] for check in found.get_check_constraints(name)} <= names
        assert found.get_pk_constraint(name)["name"] in names


def test_a_line_that_names_what_is_not_there_is_refused(ledger_url: str) -> None:
    """By foreign keys, or by the trigger that stands for them."""
    with open_ledger(ledger_url) as ledger:
        ingest(ledger, DAY, line(DAY))
    engine = create_engine(ledger_url)
    for column in ("window_id", "unit_id", "holder_id", "rate_id", "team_rule_id"):
        ids = {"window_id": 1, "unit_id": 1, "holder_id": 1, "rate_id": 0, "team_rule_id": "NULL", column: 99}
        names, values = ", ".join(ids), ", ".join(map(str, ids.values()))
        statement = (
            f"INSERT INTO usage_line ({names}, bucket, board_ms, first_ms, last_ms)"
            f" VALUES ({values}, 'unknown', 1, 1, 1)"
        )
        with engine.connect() as connection:
            if connection.dialect.name == "sqlite":
                connection.exec_driver_sql("PRAGMA foreign_keys = ON")
            with pytest.raises(DBAPIError, match=r"names what is not there|FOREIGN KEY"):
                connection.exec_driver_sql(statement)
    engine.dispose()


@pytest.mark.fault(45)
def test_there_is_one_line_of_revisions(connection: Connection) -> None:
    script = ScriptDirectory.from_config(alembic_config(connection))
    assert len(script.get_heads()) == 1
    assert revisions(connection) == sorted(revisions(connection))


@pytest.mark.fault(45)
def test_a_newer_ledger_is_refused(empty_url: str, connection: Connection) -> None:
    open_ledger(empty_url).close()
    with connection.begin():
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(LedgerTooNew, match=r"revision 9999; this one knows up to \d+\): upgrade gpucost"):
        open_ledger(empty_url)


@pytest.mark.fault(45)
def test_a_crash_in_a_migration_leaves_nothing(empty_url: str, connection: Connection) -> None:
    class Crash(BaseException):
        pass

    for stop in (5, 30):
        steps = itertools.count()

        def crash(*_: object, steps: Iterator[int] = steps, stop: int = stop) -> None:
            if next(steps) == stop:
                raise Crash

        event.listen(Engine, "before_cursor_execute", crash)
        try:
            with pytest.raises(Crash):
                open_ledger(empty_url)
        finally:
            event.remove(Engine, "before_cursor_execute", crash)
        with connection.begin():
            assert inspect(connection).get_table_names() == []
    with open_ledger(empty_url) as ledger:
        assert ingest(ledger, DAY, line(DAY)).changed


def test_many_may_open_a_new_ledger_at_once(empty_url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        ledgers = list(pool.map(lambda _: open_ledger(empty_url), range(4)))
    assert ingest(ledgers[0], DAY, line(DAY)).changed
    assert [ledger.frontier("alpha") for ledger in ledgers] == [DAY.end_ms] * 4
    for ledger in ledgers:
        ledger.close()


_MIGRATES = """
import sys
from gpucost.ledger.db.database import LedgerDatabase
print("ready", flush=True)
sys.stdin.readline()
LedgerDatabase.open(sys.argv[1], 60_000).close()
"""


def test_a_new_sqlite_file_that_another_process_holds_is_waited_for(tmp_path: Path) -> None:
    """The busy timeout of SQLite does not hold for a change to the write-ahead log."""
    file = tmp_path / "ledger.db"
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE t (x)")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(LedgerUnavailable, match="locked by another process"):
        LedgerDatabase.open(f"sqlite:///{file}", 100)
    release = threading.Timer(0.3, other.execute, ["COMMIT"])
    release.start()
    LedgerDatabase.open(f"sqlite:///{file}", 60_000).close()
    release.join()
    other.close()


@pytest.mark.slow
@pytest.mark.fault(45)
def test_two_processes_may_migrate_a_new_ledger_at_once(empty_url: str, connection: Connection) -> None:
    """As two replicas that start together: one migrates, the other finds it done."""
    command = [sys.executable, "-c", _MIGRATES, empty_url]
    options: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with (
        subprocess.Popen(command, text=True, **options) as one,
        subprocess.Popen(command, text=True, **options) as other,
    ):
        children = (one, other)
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        for child in children:
            _, errors = child.communicate(timeout=60)
            assert (child.returncode, errors) == (0, "")
    assert len(connection.execute(text("SELECT version_num FROM alembic_version")).all()) == 1
    with open_ledger(empty_url) as ledger:
        assert ingest(ledger, DAY, line(DAY)).changed


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "postgresql://ann:hunter2@localhost/ledger",
        "postgresql+psycopg2://ann:hunter2@localhost/ledger",
        "mysql://ann:hunter2@localhost/ledger",
        "ledger.db",
        "",
        "hunter2",
    ],
)
def test_other_urls_are_refused_without_the_password(url: str) -> None:
    with pytest.raises(InputError, match=r"ledger URL.*sqlite:///FILE") as refused:
        open_ledger(url)
    assert "hunter2" not in str(refused.value)
