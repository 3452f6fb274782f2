"""Login sessions of people in a browser."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "login_session",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("sha256", sa.String, nullable=False, unique=True),
        sa.Column("method", sa.String, nullable=False),
        sa.Column("subject", sa.String, nullable=False),
        sa.Column("credential", sa.String, nullable=False),
        sa.Column("groups", sa.Text, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_ms", sa.BigInteger, nullable=False),
        sa.Column("login_sha256", sa.String, nullable=False, unique=True),
        sa.Column("revoked_ms", sa.BigInteger, nullable=True),
        sa.Column("revoked_by", sa.String, nullable=False),
        sa.CheckConstraint("created_ms >= 0 AND expires_ms > created_ms", name="instants"),
        sa.CheckConstraint("(revoked_ms IS NULL) = (revoked_by = '')", name="revoked"),
    )
    op.create_index(None, "login_session", ["expires_ms"])
