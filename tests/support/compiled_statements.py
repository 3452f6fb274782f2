"""Statements of SQL are compiled once for all ledgers of a run.

SQLAlchemy keeps what it compiled for each engine and dialect, as is right for the one engine of a service.
Nearly every test opens a ledger of its own, and an eighth of the time of such tests went into compiling the
same statements again.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import Engine
from sqlalchemy.util import LRUCache

_MOST = 2_000


def share_compiled_statements() -> None:
    """From now on, in this process. A dialect is as any other of its kind: all have the same server."""
    for kind in (SQLiteDialect_pysqlite, PGDialect_psycopg):
        kind.__eq__ = lambda self, other: type(self) is type(other)  # type: ignore[method-assign]
        kind.__hash__ = lambda self: hash(type(self))  # type: ignore[method-assign]
    statements: LRUCache[Any, Any] = LRUCache(_MOST)
    made = Engine.__init__

    def make(self: Engine, *args: Any, **options: Any) -> None:
        made(self, *args, **options)
        self._compiled_cache = statements

    Engine.__init__ = make  # type: ignore[method-assign]
