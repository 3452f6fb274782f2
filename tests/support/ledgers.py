"""New ledgers without migrating each: what the migrations make is made once in a process, and copied."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

from gpucost.ledger.db.database import LedgerDatabase


def new_ledger(file: Path) -> str:
    """The URL of a new ledger that holds nothing, in a SQLite file that is not there yet."""
    with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as written:
        written.write(_migrated())
    return f"sqlite:///{file}"


def migrate(url: str) -> None:
    LedgerDatabase.open(url, 60_000).close()


@cache
def _migrated() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "ledger.db"
        migrate(f"sqlite:///{file}")
        return file.read_bytes()
