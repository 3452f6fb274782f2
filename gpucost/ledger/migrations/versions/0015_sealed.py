"""Sealed months: closed months whose lines are in files."""

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

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

# What moves into files and back. Never by UPDATE: that stays refused.
_MOVED = ("usage_line", "progress_line", "window_problem", "waste_line")
_KEYS = {"seal_begun": ("seq",), "month_seal": ("seq",)}
_ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    _tables()
    connection = op.get_bind()
    for statement in _sqlite() if connection.dialect.name == "sqlite" else _postgres():
        connection.exec_driver_sql(statement)


def _tables() -> None:
    def big(name: str, *, null: bool = False) -> sa.Column[int]:
        return sa.Column(name, sa.BigInteger, nullable=null)

    op.create_table(
        "month_seal",
        sa.Column("seq", _ROW_ID, primary_key=True, autoincrement=False),
        sa.Column("month", sa.String, sa.ForeignKey("month.month"), nullable=False),
        *(sa.Column(name, sa.String, nullable=False) for name in ("kind", "digest", "month_digest")),
        *(sa.Column(name, sa.String, nullable=False) for name in ("fold_digest", "manifest")),
        big("sealed_at_ms"),
        sa.Column("author", sa.String, nullable=False),
        *(big(name) for name in ("lines", "files", "size")),
        sa.CheckConstraint("kind IN ('seal', 'unseal')", name="kind"),
    )
    op.create_table(
        "seal_begun",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("month", sa.String, nullable=False),
        sa.ForeignKeyConstraint(["seq"], ["month_seal.seq"], deferrable=True, initially="DEFERRED"),
    )
    op.create_table(
        "sealed_holder",
        sa.Column(
            "holder_id", sa.BigInteger, sa.ForeignKey("holder.id"), primary_key=True, autoincrement=False
        ),
        sa.Column("cluster", sa.String, primary_key=True),
        sa.Column(
            "seq", sa.BigInteger, sa.ForeignKey("seal_begun.seq"), primary_key=True, autoincrement=False
        ),
        sa.Column("bucket", sa.String, primary_key=True),
        *(big(name) for name in ("first_ms", "last_ms", "board_ms")),
        big("nano", null=True),
        big("unpriced_ms"),
        sqlite_with_rowid=False,
    )


def _unfinished(table: str, done: str, key: str, row: str) -> str:
    """Whether something was begun and is not done yet; ``row`` is the condition on what was begun."""
    return (
        f"EXISTS (SELECT 1 FROM {table} b WHERE {row}"
        f" AND NOT EXISTS (SELECT 1 FROM {done} f WHERE f.{key} = b.{key}))"
    )


def _open(month: str) -> str:
    """Whether a month is being folded, sealed or unsealed."""
    same = f"b.month = {month}"
    fold = _unfinished("fold_begun", "month_fold", "month", same)
    return f"({fold} OR {_unfinished('seal_begun', 'month_seal', 'seq', same)})"


def _moving(month: str) -> str:
    """Whether a month is being sealed or unsealed."""
    return _unfinished("seal_begun", "month_seal", "seq", f"b.month = {month}")


def _sealing(seq: str) -> str:
    return _unfinished(
        "seal_begun", "month_seal", "seq", f"b.month = (SELECT month FROM seal_begun s WHERE s.seq = {seq})"
    )


def _sqlite() -> Iterator[str]:
    yield from sqlite_content_but(_MOVED, _open)
    # Sums of days go with the lines: files have their own. They are never put back, but added up anew.
    for table, month in (
        ("day_line", "(SELECT month FROM usage_day WHERE id = OLD.day_id)"),
        ("usage_day", "OLD.month"),
    ):
        closed = f"EXISTS (SELECT 1 FROM month WHERE month = {month})"
        yield f"DROP TRIGGER {table}_delete_guard"
        when = f"{closed} AND NOT {_moving(month)}"
        yield guard(f"{table}_delete_guard", "DELETE", table, when, "the month is closed")
    for table, keys in _KEYS.items():
        yield from sqlite_append_only(table, keys)
    yield guard("sealed_holder_update_guard", "UPDATE", "sealed_holder", "1", "the month is closed")
    for event, row in (("INSERT", "NEW"), ("DELETE", "OLD")):
        name = f"sealed_holder_{event.lower()}_guard"
        yield guard(name, event, "sealed_holder", f"NOT {_sealing(f'{row}.seq')}", "no month is being sealed")


def _postgres() -> Iterator[str]:
    yield postgres_content_but(_open)
    yield replaced_function(
        "gpucost_day_line_guard",
        "IF EXISTS (SELECT 1 FROM (SELECT DISTINCT day_id FROM changed) c JOIN usage_day d ON d.id = c.day_id"
        " JOIN month m ON m.month = d.month WHERE (TG_OP <> 'INSERT' OR d.digest <> '')"
        f" AND NOT (TG_OP = 'DELETE' AND {_moving('d.month')}))"
        " THEN RAISE EXCEPTION 'gpucost: the month is closed'; END IF; RETURN NULL;",
    )
    moved = " OR ".join(f"NEW.{name} <> OLD.{name}" for name in ("id", "cluster", "start_ms", "month"))
    yield replaced_function(
        "gpucost_usage_day_guard",
        "IF TG_OP = 'DELETE' THEN"
        f" IF EXISTS (SELECT 1 FROM month WHERE month = OLD.month) AND NOT {_moving('OLD.month')}"
        " THEN RAISE EXCEPTION 'gpucost: the month is closed'; END IF; RETURN OLD;"
        f" ELSIF {moved} OR OLD.digest <> ''"
        " THEN RAISE EXCEPTION 'gpucost: a day does not change'; END IF; RETURN NEW;",
    )
    for table in _KEYS:
        yield postgres_append_only(table)
    yield replaced_function(
        "gpucost_sealed_holder_guard",
        f"IF EXISTS (SELECT 1 FROM changed c WHERE TG_OP = 'UPDATE' OR NOT {_sealing('c.seq')})"
        " THEN RAISE EXCEPTION 'gpucost: no month is being sealed'; END IF; RETURN NULL;",
    )
    for event, rows in (("INSERT", "NEW"), ("UPDATE", "OLD"), ("DELETE", "OLD")):
        yield (
            f"CREATE TRIGGER sealed_holder_{event.lower()} AFTER {event} ON sealed_holder"
            f" REFERENCING {rows} TABLE AS changed"
            " FOR EACH STATEMENT EXECUTE FUNCTION gpucost_sealed_holder_guard()"
        )
    yield (
        "CREATE TRIGGER sealed_holder_truncate BEFORE TRUNCATE ON sealed_holder"
        " FOR EACH STATEMENT EXECUTE FUNCTION gpucost_append_only()"
    )
