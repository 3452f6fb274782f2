"""Which machine of a cloud each node is: invoices name machines."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "node_identity",
        *(sa.Column(name, sa.String, nullable=False) for name in ("cluster", "node", "provider_id")),
        sa.PrimaryKeyConstraint("cluster", "node", "provider_id"),
        sqlite_with_rowid=False,
    )
