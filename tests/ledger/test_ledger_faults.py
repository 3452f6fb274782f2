"""What goes wrong around the ledger: crashes, rivals, full disks, locks, lost connections."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, event, text

from gpucost.domain.errors import LedgerError, LedgerUnavailable
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, MINUTE_MS, Window
from gpucost.ledger.ledger import Ledger
from tests.ledger.builders import (
    CLUSTER,
    MONTH,
    NOW_MS,
    attribution,
    contents,
    hour,
    ingest,
    ingest_batch,
    line,
    random_rows,
)
from tests.ledger.child import BATCH, write
from tests.support.ledgers import new_ledger
from tests.support.postgres import PostgresServer

ROOT = Path(__file__).parents[2]
WINDOW = hour(0)
HOURS = 12


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with opened(ledger_url) as ledger:
        yield ledger


def opened(url: str, wait_ms: int = 60_000) -> Ledger:
    return Ledger.open(url, now=lambda: NOW_MS, wait_ms=wait_ms)


@contextmanager
def listening(name: str, listener: Callable[..., Any]) -> Iterator[None]:
    """A listener on every engine, so that no test reaches into the ledger."""
    event.listen(Engine, name, listener)
    try:
        yield
    finally:
        event.remove(Engine, name, listener)


class Crash(BaseException):
    """Not an Exception: no handler of errors may take it for one."""


@contextmanager
def crash_at(number: int) -> Iterator[None]:
    """Stop at the statement of that number, or at the commit when there are fewer."""
    steps = itertools.count()

    def step(*_: object) -> None:
        if next(steps) == number:
            raise Crash

    with listening("before_cursor_execute", step), listening("commit", step):
        yield


def everything(ledger: Ledger) -> tuple[object, ...]:
    """All that a reader can see, in one comparable value."""
    return (
        ledger.windows(MONTH.window),
        ledger.month(MONTH),
        ledger.audit(EVERYTHING),
        ledger.adjustments(EVERYTHING, MONTH),
        ledger.history(EVERYTHING, CLUSTER, WINDOW),
        ledger.currency,
        ledger.aggregate(EVERYTHING, MONTH.window, ["node", "team", "bucket", "rate_id"]).to_csv(),
        ledger.verify(),
    )


def crash_everywhere(ledger: Ledger, write: Callable[[], object], at_least: int) -> None:
    """Crash ``write`` at every statement; each time nothing of it is there, and in the end all of it."""
    before = everything(ledger)
    for number in itertools.count():
        try:
            with crash_at(number):
                write()
        except Crash:
            assert everything(ledger) == before, f"something was left by a crash at step {number}"
        else:
            assert number >= at_least, "the crashes must reach the inner steps"
            assert everything(ledger) != before
            assert everything(ledger)[-1] == (), "and it verifies"
            return


@pytest.mark.slow
@pytest.mark.fault(39, 44)
def test_a_crash_at_any_statement_leaves_all_or_nothing(ledger: Ledger) -> None:
    rows = random_rows(2, WINDOW)
    crash_everywhere(ledger, lambda: ingest(ledger, WINDOW, *rows), at_least=10)
    crash_everywhere(ledger, lambda: ingest(ledger, WINDOW, *rows[1:], reason="late"), at_least=10)
    close = {"author": "ann", "min_coverage": Fraction(1), "reason": "one hour is enough"}
    crash_everywhere(ledger, lambda: ledger.close_month(MONTH, **close), at_least=5)
    correction = {"reason": "late", "author": "ann", "reference": "FIN-1"}
    crash_everywhere(ledger, lambda: ledger.adjust(MONTH, "red", 1, 1, **correction), at_least=4)


@pytest.mark.slow
@pytest.mark.fault(39, 44)
def test_a_crash_at_any_statement_of_a_batch_leaves_all_or_nothing(ledger: Ledger) -> None:
    """Also of a batch of windows of which some are new and some are replaced."""
    first, late = attribution(0, 2), attribution(0, 4, moved_ms=5 * MINUTE_MS)
    crash_everywhere(ledger, lambda: ingest_batch(ledger, first), at_least=10)
    crash_everywhere(ledger, lambda: ingest_batch(ledger, late, reason="late"), at_least=10)
    assert len(ledger.windows(MONTH.window)) == 4


@pytest.mark.fault(39)
def test_after_crashes_the_ledger_is_the_one_without(ledger: Ledger, tmp_path: Path) -> None:
    choose = random.Random(11)
    for number in range(12):
        rows = random_rows(2, hour(number))
        try:
            with crash_at(choose.randrange(14)):
                ingest(ledger, hour(number), *rows)
        except Crash:
            ingest(ledger, hour(number), *rows)
    with opened(new_ledger(tmp_path / "undisturbed.db")) as undisturbed:
        for number in range(12):
            ingest(undisturbed, hour(number), *random_rows(2, hour(number)))
        assert contents(ledger, MONTH.window) == contents(undisturbed, MONTH.window)


@pytest.mark.fault(39)
def test_many_threads_with_one_window_write_it_once(ledger: Ledger) -> None:
    rows = random_rows(1, WINDOW)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: ingest(ledger, WINDOW, *rows), range(8)))
    assert sorted(result.changed for result in results) == [False] * 7 + [True]
    assert len({result.digest for result in results}) == 1
    assert ledger.verify() == ()
    assert [version.version for version in ledger.history(EVERYTHING, CLUSTER, WINDOW)] == [1]


@pytest.mark.fault(39)
def test_rivals_with_different_lines_make_one_version_each(ledger: Ledger) -> None:
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda seed: ingest(ledger, WINDOW, *random_rows(seed, WINDOW)), range(6)))
    assert sorted(result.version for result in results) == [1, 2, 3, 4, 5, 6]
    [last] = [result.digest for result in results if result.version == 6]
    assert contents(ledger, WINDOW) == [(CLUSTER, last, 6)]
    assert ledger.verify() == ()


@pytest.mark.fault(39)
def test_clusters_that_share_holders_and_rates_do_not_get_into_each_others_way(ledger: Ledger) -> None:
    def write(cluster: str) -> None:
        for number in range(4):
            rows = random_rows(number, hour(number), cluster=cluster)
            ingest(ledger, hour(number), *rows, cluster=cluster)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, ["alpha", "beta", "gamma", "delta"]))
    assert len(ledger.windows(MONTH.window)) == 16
    assert ledger.verify() == ()


def start_child(url: str, way: str, hours: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.ledger.child", url, way, str(hours)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], list[tuple[str, str, int]]]:
    """What the child's windows look like when it is not disturbed."""
    found = {}
    for way in ("window", "batch"):
        path = tmp_path_factory.mktemp("undisturbed") / "ledger.db"
        with opened(new_ledger(path)) as ledger:
            for number in range(HOURS):
                write(ledger, way, number)
            found[way] = contents(ledger, MONTH.window)
    return lambda way, hours: found[way][:hours]


both_ways = pytest.mark.parametrize("way", ["window", "batch"])


@pytest.mark.slow
@both_ways
@pytest.mark.fault(39)
def test_processes_that_write_the_same_windows_leave_one_ledger(
    ledger_url: str, way: str, undisturbed: Callable[[str, int], list[tuple[str, str, int]]]
) -> None:
    children = [start_child(ledger_url, way, 6) for _ in range(2)]
    for child in children:
        child.communicate(timeout=120)
    assert [child.returncode for child in children] == [0, 0]
    with opened(ledger_url) as ledger:
        assert contents(ledger, MONTH.window) == undisturbed(way, 6)
        assert ledger.verify() == ()


@pytest.mark.slow
@both_ways
@pytest.mark.fault(39, 44)
def test_a_process_killed_while_it_writes_leaves_whole_windows(
    ledger_url: str, way: str, undisturbed: Callable[[str, int], list[tuple[str, str, int]]]
) -> None:
    choose = random.Random(4)
    have = 0
    for _ in range(2):
        with start_child(ledger_url, way, HOURS) as child:
            assert child.stdout is not None
            # It goes over what is there without a change; the kill falls into the windows after.
            for text_line in child.stdout:
                if int(text_line) >= have:
                    break
            time.sleep(choose.uniform(0, 0.06))
            child.send_signal(signal.SIGKILL)
        with opened(ledger_url) as ledger:
            found = contents(ledger, MONTH.window)
            have = len(found)
            assert way == "window" or have % BATCH == 0
            assert found == undisturbed(way, have)
            assert ledger.verify() == ()
    with start_child(ledger_url, way, HOURS) as child:
        child.communicate(timeout=120)
    with opened(ledger_url) as ledger:
        assert contents(ledger, MONTH.window) == undisturbed(way, HOURS)


def then_it_works(ledger: Ledger, before: tuple[object, ...]) -> None:
    """Nothing was left behind, and the same call again does it."""
    assert everything(ledger) == before
    assert ingest(ledger, WINDOW, *random_rows(1, WINDOW, count=400)).changed
    assert ledger.verify() == ()


@pytest.mark.fault(44)
def test_a_full_disk_leaves_no_half_window(sqlite_url: str) -> None:
    with opened(sqlite_url) as ledger:
        before = everything(ledger)

    def limit(connection: Any, _record: object) -> None:
        [pages] = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + 6}")

    with listening("connect", limit), opened(sqlite_url) as ledger:
        for _ in range(2):
            with pytest.raises(LedgerUnavailable, match="SQLITE_FULL"):
                ingest(ledger, WINDOW, *random_rows(1, WINDOW, count=400))
            assert everything(ledger) == before
    with opened(sqlite_url) as ledger:
        then_it_works(ledger, before)


@contextmanager
def unprivileged() -> Iterator[None]:
    """Read-only means nothing to root."""
    mine = os.geteuid()
    os.seteuid(65_534 if mine == 0 else mine)
    try:
        yield
    finally:
        os.seteuid(mine)


@pytest.mark.fault(44)
@pytest.mark.parametrize(("of_folder", "of_file"), [(0o555, 0o666), (0o777, 0o444)])
def test_a_read_only_file_or_folder_is_said_and_then_it_works(of_folder: int, of_file: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, url = Path(name), new_ledger(Path(name) / "ledger.db")
        with opened(url) as ledger:
            ingest(ledger, WINDOW, line(WINDOW))
            before = everything(ledger)
        (folder / "ledger.db").chmod(of_file)
        folder.chmod(of_folder)
        with (
            unprivileged(),
            pytest.raises(LedgerUnavailable, match="folder must be writable"),
            opened(url) as ledger,
        ):
            ingest(ledger, hour(1), line(hour(1)))
        folder.chmod(0o777)
        (folder / "ledger.db").chmod(0o666)
        with opened(url) as ledger:
            then_it_works(ledger, before)
            assert ledger.integrity().damage == ()


@pytest.mark.fault(44)
@pytest.mark.postgres
@pytest.mark.parametrize("state", ["53100", "58030", "57P01", "40P01"])
def test_a_server_that_cannot_write_now_leaves_no_half_window(postgres_url: str, state: str) -> None:
    engine = create_engine(postgres_url)
    with closing(opened(postgres_url)) as ledger:
        before = everything(ledger)
        with engine.begin() as connection:
            connection.exec_driver_sql(
                "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN RAISE EXCEPTION USING ERRCODE = '{state}'; END $$"
            )
            connection.exec_driver_sql(
                "CREATE TRIGGER fail AFTER INSERT ON usage_line EXECUTE FUNCTION fail()"
            )
        with pytest.raises(LedgerUnavailable):
            ingest(ledger, WINDOW, *random_rows(1, WINDOW, count=400))
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP TRIGGER fail ON usage_line")
        engine.dispose()
        then_it_works(ledger, before)


@pytest.mark.fault(44)
def test_a_locked_ledger_is_unavailable_and_then_works(ledger_url: str) -> None:
    rival = create_engine(ledger_url, isolation_level="AUTOCOMMIT")
    with opened(ledger_url, wait_ms=50) as ledger:
        before = everything(ledger)
        with rival.connect() as connection:
            if rival.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                connection.execute(text("SELECT pg_advisory_lock(hashtextextended('gpucost', 0))"))
            with pytest.raises(LedgerUnavailable, match=r"locked|lock timeout"):
                ingest(ledger, WINDOW, *random_rows(1, WINDOW, count=400))
            assert everything(ledger) == before, "readers are not held up"
            if rival.dialect.name == "sqlite":
                connection.exec_driver_sql("ROLLBACK")
            else:
                connection.execute(text("SELECT pg_advisory_unlock_all()"))
        rival.dispose()
        then_it_works(ledger, before)


@pytest.mark.fault(44)
@pytest.mark.postgres
@pytest.mark.parametrize("moment", ["before_cursor_execute", "commit"])
def test_a_connection_lost_while_writing_leaves_no_half_window(
    postgres: PostgresServer, postgres_url: str, moment: str
) -> None:
    with opened(postgres_url) as ledger:
        before = everything(ledger)

        def lose(connection: Any, *arguments: object) -> None:
            if moment == "commit" or "INSERT INTO window_version" in str(arguments):
                pid = connection.connection.driver_connection.info.backend_pid
                postgres.execute(f"SELECT pg_terminate_backend({pid}, 10000)")

        with listening(moment, lose), pytest.raises(LedgerUnavailable):
            ingest(ledger, WINDOW, *random_rows(1, WINDOW, count=400))
        then_it_works(ledger, before)


@pytest.mark.fault(44)
@pytest.mark.postgres
def test_connections_lost_while_idle_are_replaced(postgres: PostgresServer, postgres_url: str) -> None:
    with opened(postgres_url) as ledger:
        ingest(ledger, WINDOW, line(WINDOW))
        postgres.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname LIKE 'test_%'")
        assert not ingest(ledger, WINDOW, line(WINDOW)).changed


@pytest.mark.fault(44)
def test_a_ledger_that_cannot_be_reached_says_so_without_the_password(tmp_path: Path) -> None:
    unreachable = "postgresql+psycopg://ann:hunter2@127.0.0.1:1/ledger"
    with pytest.raises(LedgerUnavailable, match="refused") as refused:
        opened(unreachable)
    assert "hunter2" not in str(refused.value)
    assert isinstance(refused.value.__cause__.__cause__, psycopg.OperationalError)
    with pytest.raises(LedgerUnavailable, match="SQLITE_CANTOPEN"):
        opened(f"sqlite:///{tmp_path / 'missing' / 'ledger.db'}")
    other = tmp_path / "notes.txt"
    other.write_text("not a database, but long enough to be looked at as one" * 20)
    with pytest.raises(LedgerError, match="not a database"):
        opened(f"sqlite:///{other}")


def test_a_reader_sees_one_state_while_a_writer_goes_on(ledger: Ledger) -> None:
    """Each window holds 1 ms for each of 50 teams: a reader never sees a part of a window."""
    window = Window(WINDOW.start_ms, WINDOW.start_ms + DAY_MS)

    def read(_: int) -> set[int]:
        return set(ledger.aggregate(EVERYTHING, window, ["team"]).board_ms)

    with ThreadPoolExecutor(2) as pool:
        reads = pool.map(read, range(40))
        for number in range(10):
            rows = [
                line(hour(number), team=f"team-{team}", pod_uid=str(team), board_ms=1) for team in range(50)
            ]
            ingest(ledger, hour(number), *rows)
        assert all(len(sums) <= 1 for sums in reads)
