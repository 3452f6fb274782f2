"""An attacker who owns the database and knows of the triggers; and a disk that changes bytes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy import Connection, create_engine, text


def tamper(url: str, *statements: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        drop_triggers(connection)
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def drop_triggers(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        found = connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'"))
        for name in found.scalars().all():
            connection.execute(text(f"DROP TRIGGER {name}"))
    else:
        connection.execute(text("SET session_replication_role = replica"))


_LEAF_OF_INDEX = 0x0A


def flip_index_page(file: Path, index: str) -> None:
    """Change a value in an index of a SQLite file that is not open. Its page stays one by its header: a
    reader of it gets another value, and no error."""
    with closing(sqlite3.connect(file)) as connection:
        [size] = connection.execute("PRAGMA page_size").fetchone()
        [page] = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (index,)).fetchone()
    assert file.read_bytes()[(page - 1) * size] == _LEAF_OF_INDEX
    flip(file, page, size, 3)


def flip(file: Path, page: int, size: int, count: int) -> None:
    """Invert the last bytes of a page (the first is 1), which is filled from its end."""
    content = bytearray(file.read_bytes())
    span = slice(page * size - count, page * size)
    content[span] = bytes(byte ^ 0xFF for byte in content[span])
    file.write_bytes(content)
