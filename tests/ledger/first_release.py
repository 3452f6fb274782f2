"""A ledger as the first release left it."""

from __future__ import annotations

import json
from pathlib import Path

from alembic import command
from sqlalchemy import Connection, MetaData, create_engine, text

from gpucost.ledger.db.database import alembic_config

# What it wrote, table by table, in an order that foreign keys and triggers accept. Frozen.
_TABLES = json.loads((Path(__file__).parent / "data" / "first_release.json").read_text())


def make(url: str) -> None:
    """In an empty database."""
    engine = create_engine(url)
    with engine.begin() as connection:
        command.upgrade(alembic_config(connection), "0001")
        load(connection)
    engine.dispose()


def load(connection: Connection) -> None:
    metadata = MetaData()
    metadata.reflect(connection)
    for name, rows in _TABLES.items():
        table = metadata.tables[name]
        if name == "month":
            connection.execute(text("UPDATE ledger_window SET state = 'closed' WHERE month = '2026-10'"))
        connection.execute(table.insert(), rows)
        if connection.dialect.name == "postgresql" and table.primary_key.columns.keys() in (["id"], ["seq"]):
            [key] = table.primary_key.columns.keys()
            sequence = f"pg_get_serial_sequence('{name}', '{key}')"
            connection.execute(
                text(f"SELECT setval({sequence}, max({key})) FROM {name} WHERE {sequence} <> ''")
            )
