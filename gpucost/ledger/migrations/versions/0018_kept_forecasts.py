"""What months were expected to cost at their end, as it was said."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # No triggers: rows are added once a day, and deleted after 400 days.
    op.create_table(
        "kept_forecast",
        *(sa.Column(name, sa.String, nullable=False) for name in ("month", "team")),
        *(
            sa.Column(name, sa.BigInteger, nullable=False)
            for name in ("as_of_ms", "days_left", "expected_nano", "low_nano", "high_nano")
        ),
        sa.PrimaryKeyConstraint("month", "team", "as_of_ms"),
        sa.CheckConstraint("low_nano <= expected_nano AND expected_nano <= high_nano", name="interval"),
        sqlite_with_rowid=False,
    )
