"""New ledgers, copied from one that was migrated, or also filled, once."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeAlias

from gpucost.ledger.db.database import LedgerDatabase
from tests.support.postgres import PostgresServer

Prepare: TypeAlias = Callable[[str], None]
"""Writes into a new ledger what its copies shall hold; a function of a module, so that it is called once."""


def migrate(url: str) -> None:
    LedgerDatabase.open(url, 60_000).close()


def new_ledger(file: Path, prepare: Prepare = migrate) -> str:
    """The URL of a ledger in a new SQLite file, which holds nothing or what ``prepare`` writes."""
    content = _prepared(prepare)
    with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as written:
        written.write(content)
    return f"sqlite:///{file}"


@cache
def _prepared(prepare: Prepare) -> bytes:
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "ledger.db"
        prepare(f"sqlite:///{file}" if prepare is migrate else new_ledger(file))
        return file.read_bytes()


class PostgresLedgers:
    """The same on a PostgreSQL server."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._prepared: dict[Prepare, str] = {}

    @contextmanager
    def new(self, name: str, prepare: Prepare = migrate) -> Iterator[str]:
        """The URL of a ledger in a database of that name, which is dropped at the end."""
        with self._server.database(name, self._template(prepare)) as url:
            yield url

    def _template(self, prepare: Prepare) -> str:
        """A database that is copied; it goes with the server."""
        if prepare not in self._prepared:
            source = "template1" if prepare is migrate else self._template(migrate)
            name = f"prepared_{len(self._prepared)}"
            self._server.create(name, source)
            prepare(self._server.url(name))
            self._prepared[prepare] = name
        return self._prepared[prepare]
