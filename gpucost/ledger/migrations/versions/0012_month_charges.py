"""What teams were charged when a month was closed. Months that were closed before have no row."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gpucost.ledger.migrations.triggers import postgres_append_only, sqlite_append_only

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_TEXTS = (
    *("content_key", "policy_name", "policy", "files", "weights"),
    *("currency", "digest", "amounts"),
)


def upgrade() -> None:
    op.create_table(
        "month_charges",
        sa.Column("month", sa.String, sa.ForeignKey("month.month"), nullable=False, primary_key=True),
        *(sa.Column(name, sa.String, nullable=False) for name in _TEXTS),
    )
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        for statement in sqlite_append_only("month_charges", ("month",)):
            connection.exec_driver_sql(statement)
    else:
        connection.exec_driver_sql(postgres_append_only("month_charges"))
