"""PostgreSQL dies in the middle of a batch, and its standby takes over: nothing is lost or there twice."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, event

from gpucost.domain.errors import LedgerUnavailable
from gpucost.ledger.ledger import Ledger
from tests.ledger.builders import MONTH, NOW_MS, attribution, contents, ingest_batch
from tests.support.ledgers import new_ledger
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer, new_cluster
from tests.support.programs import Program

BATCHES = [attribution(first, first + 3) for first in range(0, 12, 3)]
_DYING_IN = 2
"""The batch in the middle of which it dies."""


@dataclass
class Pair:
    """A primary, and a standby that follows it."""

    primary: PostgresServer
    standby: PostgresServer
    first: Program
    second: Program

    @property
    def url(self) -> str:
        """Of whichever of the two can be written to."""
        ports = f"{self.primary.port}&host=127.0.0.1:{self.standby.port}"
        return f"postgresql+psycopg://gpucost@/ledger?host=127.0.0.1:{ports}&target_session_attrs=read-write"

    def followed(self) -> None:
        """Until the standby has all of it."""
        self._until("SELECT bool_and(pg_current_wal_flush_lsn() <= replay_lsn) FROM pg_stat_replication")

    def cut_off(self) -> None:
        """The standby follows no more: what is committed from now on it will not have."""
        self.standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
        self.standby.execute("SELECT pg_reload_conf()")
        self._until("SELECT count(*) = 0 FROM pg_stat_replication")

    def _until(self, query: str) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with self.primary.connect() as connection:
                if connection.execute(query.encode()).fetchone() == (True,):
                    return
            time.sleep(0.02)
        raise TimeoutError(query)


def _program(home: Path, command: list[str], server: PostgresServer) -> Program:
    def is_up() -> bool:
        try:
            server.execute("SELECT 1")
        except psycopg.Error:
            return False
        return True

    return Program("postgres", command, home / "log", is_up, home)


@contextmanager
def _home() -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="gpucost-pg-"))
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        one, other = stack.enter_context(_home()), stack.enter_context(_home())
        primary, standby = PostgresServer(free_port()), PostgresServer(free_port())
        command = new_cluster(one, primary.port, "wal_level=replica", "max_wal_senders=4")
        first = stack.enter_context(_program(one, command, primary))
        primary.execute("CREATE DATABASE ledger")
        as_user = command[: next(at for at, word in enumerate(command) if word.endswith("/postgres"))]
        shutil.chown(other, user=one.owner(), group=one.group())
        binary = Path(command[len(as_user)])
        copy = ["-h", "127.0.0.1", "-p", str(primary.port), "-U", "gpucost", "-D", str(other / "data"), "-R"]
        words = [*as_user, str(binary.parent / "pg_basebackup"), *copy, "--checkpoint=fast", "--no-sync"]
        subprocess.run(words, check=True, capture_output=True, cwd=other)
        moved = {
            str(one): str(other),
            str(one / "data"): str(other / "data"),
            str(primary.port): str(standby.port),
        }
        second = _program(other, [moved.get(word, word) for word in command], standby)
        yield Pair(primary, standby, first, stack.enter_context(second))


@pytest.mark.fault(39, 44)
@pytest.mark.postgres
def test_a_failover_in_the_middle_of_a_batch_loses_and_doubles_nothing(pair: Pair, tmp_path: Path) -> None:
    """The standby has even lost a batch that was committed: it is missing there, so it is read again."""
    with opened(new_ledger(tmp_path / "calm.db")) as calm:
        for batch in BATCHES:
            ingest_batch(calm, batch)
        wanted = contents(calm, MONTH.window)
    with opened(pair.url) as ledger:
        ingest_batch(ledger, BATCHES[0])
        pair.followed()
        pair.cut_off()
        ingest_batch(ledger, BATCHES[1])

        def dies(*arguments: Any) -> None:
            if "INSERT INTO window_version" in str(arguments):
                pair.first.kill()

        event.listen(Engine, "before_cursor_execute", dies)
        try:
            with pytest.raises(LedgerUnavailable):
                ingest_batch(ledger, BATCHES[_DYING_IN])
        finally:
            event.remove(Engine, "before_cursor_execute", dies)
        with pytest.raises(LedgerUnavailable):
            ingest_batch(ledger, BATCHES[_DYING_IN])
        mark = None
        pair.standby.execute("SELECT pg_promote()")
        assert contents(ledger, MONTH.window) == wanted[:3], "what it had when it was cut off"
        for batch in BATCHES:
            results = ingest_batch(ledger, batch)
            mark = mark or ledger.mark()
            assert {result.version for result in results} == {1}
        assert contents(ledger, MONTH.window) == wanted
        assert (ledger.verify(), ledger.mark() == mark) == ((), False)


def opened(url: str) -> Ledger:
    return Ledger.open(url, now=lambda: NOW_MS)
