"""What people were told in chat and by e-mail, and posts on their way."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    # No triggers: posts go from waiting to sent or dead, and both tables are pruned.
    op.create_table(
        "notify_conversation",
        *(
            sa.Column(name, sa.String, nullable=False)
            for name in ("channel", "key", "topic", "kind", "team", "version")
        ),
        sa.Column("posted_ms", sa.BigInteger, nullable=False),
        *(
            sa.Column(name, sa.BigInteger, nullable=True)
            for name in ("updated_ms", "escalated_ms", "resolved_ms")
        ),
        sa.Column("reference", sa.String, nullable=False),
        sa.Column("changed_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("channel", "key"),
        sa.CheckConstraint("posted_ms >= 0 AND changed_ms >= posted_ms", name="instants"),
    )
    op.create_index(None, "notify_conversation", ["changed_ms"])
    op.create_table(
        "notify_post",
        sa.Column("id", _ROW_ID, nullable=False, primary_key=True),
        *(
            sa.Column(name, sa.String, nullable=False)
            for name in ("channel", "key", "kind", "act", "version")
        ),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("since_ms", sa.BigInteger, nullable=False),
        sa.Column("due_ms", sa.BigInteger, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("urgent", sa.Boolean, nullable=False),
        sa.Column("trouble", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("ended_ms", sa.BigInteger, nullable=True),
        sa.CheckConstraint("state IN ('waiting', 'sent', 'dead', 'superseded')", name="state"),
        sa.CheckConstraint("(state = 'waiting') = (ended_ms IS NULL)", name="ended"),
        sa.CheckConstraint("tries >= 0", name="tries"),
    )
    waiting = sa.text("state = 'waiting'")
    op.create_index(
        "ix_notify_post_waiting",
        "notify_post",
        ["channel", "key", "id"],
        sqlite_where=waiting,
        postgresql_where=waiting,
    )
    op.create_index(None, "notify_post", ["ended_ms"])
