"""What the advisor said of waits, and what came of it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # No triggers: rows are scored once they are known, and deleted after 90 days.
    op.create_table(
        "wait_prediction",
        *(
            sa.Column(name, sa.String, nullable=False)
            for name in ("cluster", "workload_uid", "namespace", "name", "queue", "team")
        ),
        sa.Column("asked_ms", sa.BigInteger, nullable=False),
        sa.Column("p50_ms", sa.BigInteger, nullable=True),
        sa.Column("p90_ms", sa.BigInteger, nullable=True),
        sa.Column("horizon_ms", sa.BigInteger, nullable=False),
        sa.Column("started_ms", sa.BigInteger, nullable=True),
        sa.Column("gone_ms", sa.BigInteger, nullable=True),
        sa.PrimaryKeyConstraint("cluster", "workload_uid"),
        sa.CheckConstraint(
            "(p50_ms IS NULL OR p50_ms >= 0) AND (p90_ms IS NULL OR p90_ms >= 0)", name="waits"
        ),
        sa.CheckConstraint("horizon_ms >= 0", name="horizon"),
        sqlite_with_rowid=False,
    )
    op.create_index(None, "wait_prediction", ["cluster", "asked_ms"])
    undecided = sa.text("started_ms IS NULL AND gone_ms IS NULL")
    op.create_index(
        "ix_wait_prediction_undecided",
        "wait_prediction",
        ["cluster", "workload_uid"],
        sqlite_where=undecided,
        postgresql_where=undecided,
    )
