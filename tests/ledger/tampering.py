"""Somebody who owns the database and knows of the triggers."""

from __future__ import annotations

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
