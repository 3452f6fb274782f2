"""Which team rule gave a line's holder its team. Lines written before do not say it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gpucost.ledger.migrations.triggers import postgres_append_only, sqlite_append_only

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "team_rule",
        sa.Column("id", _ROW_ID, nullable=False, primary_key=True),
        sa.Column("content_key", sa.String, nullable=False),
        sa.Column("team_rule", sa.String, nullable=False),
        sa.UniqueConstraint("content_key"),
    )
    connection = op.get_bind()
    # In SQL: Alembic adds no column with a foreign key to a table of SQLite.
    connection.exec_driver_sql(
        "ALTER TABLE usage_line ADD COLUMN team_rule_id BIGINT"
        " CONSTRAINT fk_usage_line_team_rule_id REFERENCES team_rule (id)"
    )
    if connection.dialect.name == "sqlite":
        for statement in sqlite_append_only("team_rule", ("id", "content_key")):
            connection.exec_driver_sql(statement)
    else:
        connection.exec_driver_sql(postgres_append_only("team_rule"))
