"""What Alertmanager sent of its groups."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # No triggers: a group is replaced by what is sent of it next, and deleted after nine days.
    op.create_table(
        "alert_group",
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("firing", sa.Boolean, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("received_ms", sa.BigInteger, nullable=False),
        sa.CheckConstraint("received_ms >= 0", name="received"),
    )
    op.create_index(None, "alert_group", ["received_ms"])
