"""Folding of closed months, and forgetting findings that were resolved long ago."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from alembic import op

from gpucost.ledger.migrations.triggers import (
    guard,
    postgres_append_only,
    postgres_content_but,
    replaced_function,
    sqlite_append_only,
    sqlite_content_but,
)

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

# What folding replaces. Never by UPDATE: that stays refused.
_FOLDED = ("usage_line", "progress_line", "window_problem", "waste_line")
_KEYS = {"fold_begun": ("month",), "month_fold": ("month",), "folded_day": ("window_id",)}
# An event goes with its finding, which is marked by the revision that no living one has.
_GOING = "SELECT 1 FROM finding WHERE id = {}.finding_id AND state = 'resolved' AND revision = 0"


def upgrade() -> None:
    _tables()
    connection = op.get_bind()
    for statement in _sqlite() if connection.dialect.name == "sqlite" else _postgres():
        connection.exec_driver_sql(statement)


def _tables() -> None:
    bigs = {
        name: sa.Column(name, sa.BigInteger, nullable=False)
        for name in ("folded_at_ms", "lines_before", "waste_before")
    }
    op.create_table(
        "month_fold",
        sa.Column("month", sa.String, sa.ForeignKey("month.month"), primary_key=True),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("month_digest", sa.String, nullable=False),
        bigs["folded_at_ms"],
        sa.Column("author", sa.String, nullable=False),
        bigs["lines_before"],
        sa.Column("lines", sa.BigInteger, nullable=False),
        bigs["waste_before"],
        sa.Column("waste_lines", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "fold_begun",
        sa.Column("month", sa.String, primary_key=True),
        sa.ForeignKeyConstraint(["month"], ["month_fold.month"], deferrable=True, initially="DEFERRED"),
    )
    op.create_table(
        "folded_day",
        sa.Column(
            "window_id",
            sa.BigInteger,
            sa.ForeignKey("ledger_window.id"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("month", sa.String, sa.ForeignKey("fold_begun.month"), nullable=False),
        sa.Column("cluster", sa.String, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("start_ms", "end_ms")),
        sa.Column("assessed", sa.String, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("windows", "lines", "waste_lines")),
        sa.Column("digest", sa.String, nullable=False),
        sa.CheckConstraint("assessed IN ('', 'provisional', 'final')", name="assessed"),
    )
    op.create_index(None, "folded_day", ["month"])
    op.create_index(None, "folded_day", ["start_ms"])


def _open(month: str) -> str:
    """Whether a month is being folded: begun, and not yet done."""
    return (
        f"EXISTS (SELECT 1 FROM fold_begun b WHERE b.month = {month}"
        " AND NOT EXISTS (SELECT 1 FROM month_fold f WHERE f.month = b.month))"
    )


def _sqlite() -> Iterator[str]:
    yield from sqlite_content_but(_FOLDED, _open)
    for table, keys in _KEYS.items():
        yield from sqlite_append_only(table, keys)
    yield guard(
        "folded_day_insert_open",
        "INSERT",
        "folded_day",
        f"NOT {_open('NEW.month')}",
        "no month is being folded",
    )
    yield "DROP TRIGGER finding_event_delete_guard"
    yield guard(
        "finding_event_delete_guard",
        "DELETE",
        "finding_event",
        f"NOT EXISTS ({_GOING.format('OLD')})",
        "finding_event is append-only",
    )


def _postgres() -> Iterator[str]:
    yield postgres_content_but(_open)
    for table in _KEYS:
        yield postgres_append_only(table)
    yield replaced_function(
        "gpucost_folded_day_guard",
        f"IF EXISTS (SELECT 1 FROM changed c WHERE NOT {_open('c.month')})"
        " THEN RAISE EXCEPTION 'gpucost: no month is being folded'; END IF; RETURN NULL;",
    )
    yield (
        "CREATE TRIGGER folded_day_open AFTER INSERT ON folded_day REFERENCING NEW TABLE AS changed "
        "FOR EACH STATEMENT EXECUTE FUNCTION gpucost_folded_day_guard()"
    )
    yield "DROP TRIGGER finding_event_guard ON finding_event"
    yield (
        "CREATE TRIGGER finding_event_guard BEFORE UPDATE OR TRUNCATE ON finding_event "
        "FOR EACH STATEMENT EXECUTE FUNCTION gpucost_append_only()"
    )
    yield replaced_function(
        "gpucost_event_guard",
        f"IF EXISTS (SELECT 1 FROM changed c WHERE NOT EXISTS ({_GOING.format('c')}))"
        " THEN RAISE EXCEPTION 'gpucost: finding_event is append-only'; END IF; RETURN NULL;",
    )
    yield (
        "CREATE TRIGGER finding_event_delete AFTER DELETE ON finding_event REFERENCING OLD TABLE AS changed "
        "FOR EACH STATEMENT EXECUTE FUNCTION gpucost_event_guard()"
    )
