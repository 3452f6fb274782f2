"""A bucket of the waste ledger for what is free and stranded in NVLink domains."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_TABLE, _CHECK = "waste_line", "ck_waste_line_waste"
_WASTES = (
    "'unavailable', 'gang_stall', 'preempted', 'idle', 'oversized', 'starved', {}'fragmented', 'no_demand', "
    "'productive', 'unknown'"
)
_BEFORE, _AFTER = _WASTES.format(""), _WASTES.format("'stranded', ")


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        _sqlite(connection)
        return
    connection.exec_driver_sql(f"ALTER TABLE {_TABLE} DROP CONSTRAINT {_CHECK}")
    connection.exec_driver_sql(f"ALTER TABLE {_TABLE} ADD CONSTRAINT {_CHECK} CHECK (waste IN ({_AFTER}))")


def _sqlite(connection: sa.Connection) -> None:
    """SQLite cannot change a check: the table is made anew, with its rows, indexes and triggers."""
    found = connection.exec_driver_sql(
        "SELECT type, name, sql FROM sqlite_master WHERE tbl_name = ? AND sql IS NOT NULL", (_TABLE,)
    ).all()
    (table,) = (sql for kind, _, sql in found if kind == "table")
    beside = [(kind, name, sql) for kind, name, sql in found if kind != "table"]
    made = str(table).replace(_BEFORE, _AFTER).replace(_TABLE, f"{_TABLE}_after", 1)
    assert _AFTER in made
    for kind, name, _ in beside:
        connection.exec_driver_sql(f'DROP {kind} "{name}"')
    connection.exec_driver_sql(made)
    connection.exec_driver_sql(f"INSERT INTO {_TABLE}_after SELECT * FROM {_TABLE}")
    connection.exec_driver_sql(f"DROP TABLE {_TABLE}")
    # Triggers of other tables name this one, which is not there for a moment.
    connection.exec_driver_sql("PRAGMA legacy_alter_table = ON")
    connection.exec_driver_sql(f"ALTER TABLE {_TABLE}_after RENAME TO {_TABLE}")
    connection.exec_driver_sql("PRAGMA legacy_alter_table = OFF")
    for _, _, sql in beside:
        connection.exec_driver_sql(sql)
