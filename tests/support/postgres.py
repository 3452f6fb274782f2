"""A real PostgreSQL of our own: a cluster in a temporary directory, run by a user that is not root."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from tests.support.ports import free_port

_SUPERUSER = "gpucost"
_START_SECONDS = 60
_ROOM = 4 << 30
"""Bytes: its log alone may take one GiB, and each worker has a server."""


@dataclass(frozen=True)
class PostgresServer:
    """A running server that trusts every local user."""

    port: int

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://{_SUPERUSER}@127.0.0.1:{self.port}/{database}"

    @contextmanager
    def database(self, name: str, template: str = "template1") -> Iterator[str]:
        """The URL of a new database, empty or a copy of ``template``, which is dropped at the end."""
        self.create(name, template)
        try:
            yield self.url(name)
        finally:
            self.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def create(self, name: str, template: str) -> None:
        # Not through the server's log, which takes twice as long.
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY file_copy')

    def execute(self, statement: str, database: str = "postgres") -> None:
        with self.connect(database) as connection:
            connection.execute(statement.encode())

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=_SUPERUSER, dbname=database, autocommit=True
        )


def _memory() -> Path | None:
    """A folder in memory with room for a server: a new database is 300 files, which take a disk's file
    system longer to make than most tests take. None where there is no such folder."""
    folder = Path("/dev/shm")
    return folder if folder.is_dir() and shutil.disk_usage(folder).free > _ROOM else None


@contextmanager
def postgres_server(*, in_memory: bool = False) -> Iterator[PostgresServer]:
    """Start a server, and stop it at the end; its files are in memory where that is asked for and there is
    room. Skips the test when no PostgreSQL is installed.

    Its collation is American English on purpose: sorting in the database would differ from code points.
    """
    home = Path(tempfile.mkdtemp(prefix="gpucost-pg-", dir=_memory() if in_memory else None))
    try:
        server = PostgresServer(free_port())
        command = new_cluster(home, server.port, "synchronous_commit=off")
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=home)
        try:
            _await(server, process, home / "log")
            yield server
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def new_cluster(home: Path, port: int, *settings: str) -> list[str]:
    """Make a cluster in the empty folder ``home``; the command that serves it, with further ``settings``.

    Nothing is flushed to the disk, so it survives a SIGKILL and no crash of the machine. Skips the test
    when no PostgreSQL is installed.
    """
    binaries = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3])
    )
    if not binaries:
        pytest.skip("PostgreSQL is not installed: no /usr/lib/postgresql/*/bin/postgres")
    bin_dir, data = binaries[-1].parent, home / "data"
    as_user = _unprivileged(home)
    subprocess.run(
        [
            *(*as_user, bin_dir / "initdb", "-D", data, "-U", _SUPERUSER, "--auth=trust", "--no-sync"),
            *("--encoding=UTF8", "--locale-provider=icu", "--icu-locale=en-US", "--locale=C.UTF-8"),
        ],
        check=True,
        capture_output=True,
        cwd=home,
    )
    all_settings = "fsync=off", "full_page_writes=off", "shared_buffers=64MB", *settings
    return [
        *(*as_user, str(bin_dir / "postgres"), "-D", str(data), "-k", str(home), "-h", "127.0.0.1"),
        *("-p", str(port), *(word for each in all_settings for word in ("-c", each))),
    ]


def _unprivileged(home: Path) -> list[str]:
    """The words to put before a command so that it does not run as root, which PostgreSQL refuses."""
    if os.geteuid() != 0:
        return []
    names = {user.pw_name: user for user in pwd.getpwall()}
    user = names.get("postgres") or names["nobody"]
    os.chown(home, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]


def _await(server: PostgresServer, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            server.execute("SELECT 1")
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text()}") from None
            time.sleep(0.05)
        else:
            return
