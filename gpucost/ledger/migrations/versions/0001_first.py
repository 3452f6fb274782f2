"""The first schema: windows and their versions, usage lines and their dimensions, months, the audit trail."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from gpucost.ledger.migrations.triggers import postgres_triggers, sqlite_triggers

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    _dimensions()
    _windows()
    _lines()
    _months()
    connection = op.get_bind()
    for statement in sqlite_triggers() if connection.dialect.name == "sqlite" else postgres_triggers():
        connection.exec_driver_sql(statement)


def _row_id(name: str = "id") -> sa.Column[Any]:
    return sa.Column(name, _ROW_ID, nullable=False, primary_key=True)


def _texts(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.String, nullable=False) for name in names]


def _bigs(*names: str, nullable: bool = False) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.BigInteger, nullable=nullable) for name in names]


def _window_id() -> tuple[sa.Column[Any], sa.ForeignKeyConstraint]:
    return (
        sa.Column("window_id", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["window_id"], ["ledger_window.id"]),
    )


def _dimensions() -> None:
    op.create_table(
        "unit",
        _row_id(),
        *_texts("content_key", "cluster", "node", "resource", "model", "profile"),
        *_bigs("share_num", "share_den"),
        *_texts("basis", "instance_type", "capacity_type", "region", "zone", "pool"),
        sa.UniqueConstraint("content_key"),
    )
    op.create_table(
        "holder",
        _row_id(),
        *_texts("content_key", "namespace", "pod", "pod_uid", "job_kind", "job", "job_uid"),
        *_texts("workload", "queue", "cluster_queue", "flavor", "team_label", "project", "user", "team"),
        sa.UniqueConstraint("content_key"),
    )
    for name in ("pod_uid", "job_uid", "team"):
        op.create_index(None, "holder", [name])
    rate = op.create_table(
        "rate",
        _row_id(),
        *_texts("content_key", "rate_id"),
        *_bigs("nano_per_board_hour", nullable=True),
        *_texts("currency"),
        *_bigs("list_nano_per_board_hour", nullable=True),
        *_texts("matched_by", "source", "retrieved", "pricing_category", "discount"),
        sa.UniqueConstraint("content_key"),
        sa.UniqueConstraint("rate_id"),
    )
    # What the lines without a price point to, so that the natural key has no null in it.
    no_price = {column.name: "" for column in rate.columns if isinstance(column.type, sa.String)}
    op.bulk_insert(rate, [{**no_price, "id": 0}])


def _windows() -> None:
    op.create_table(
        "ledger_window",
        _row_id(),
        *_texts("cluster"),
        *_bigs("start_ms", "end_ms"),
        *_texts("month", "state"),
        sa.Column("version", sa.Integer, nullable=False),
        sa.UniqueConstraint("cluster", "start_ms"),
        sa.CheckConstraint("start_ms < end_ms", name="not_empty"),
        sa.CheckConstraint("state IN ('open', 'settled', 'closed')", name="state"),
    )
    for name in ("month", "start_ms"):
        op.create_index(None, "ledger_window", [name])
    op.create_table(
        "window_version",
        *_window_id(),
        sa.Column("version", sa.Integer, nullable=False),
        *_texts("digest", "reason"),
        *_bigs("line_count", "board_ms", "unknown_ms", "unpriced_ms", "nano", "observed_ms"),
        *_texts("source", "code_version"),
        *_bigs("written_at_ms"),
        sa.PrimaryKeyConstraint("window_id", "version"),
    )


def _lines() -> None:
    op.create_table(
        "usage_line",
        *_window_id(),
        *_bigs("unit_id", "holder_id", "rate_id"),
        *_texts("bucket"),
        *_bigs("board_ms"),
        *_bigs("nano", nullable=True),
        *_bigs("first_ms", "last_ms"),
        *_bigs("observed_ms", "busy_ms", "sm_observed_ms", "sm_active_ms", "tensor_active_ms", nullable=True),
        sa.PrimaryKeyConstraint("window_id", "unit_id", "holder_id", "rate_id", "bucket"),
        sa.CheckConstraint(
            "bucket IN ('held', 'unallocated', 'unavailable', 'unknown', 'overcommitted')", name="bucket"
        ),
        *(
            sa.ForeignKeyConstraint([f"{dimension}_id"], [f"{dimension}.id"])
            for dimension in ("unit", "holder", "rate")
        ),
        sqlite_with_rowid=False,
    )
    op.create_index(None, "usage_line", ["holder_id", "window_id"])
    op.create_table(
        "progress_line",
        *_window_id(),
        *_texts("pod_uid", "name"),
        sa.Column("amount", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("window_id", "pod_uid", "name"),
        sqlite_with_rowid=False,
    )
    op.create_index(None, "progress_line", ["pod_uid"])
    op.create_table(
        "window_problem",
        *_window_id(),
        sa.Column("seq", sa.Integer, nullable=False),
        *_texts("code", "cluster", "subject", "detail"),
        *_bigs("board_ms", nullable=True),
        sa.PrimaryKeyConstraint("window_id", "seq"),
        sqlite_with_rowid=False,
    )


def _months() -> None:
    op.create_table(
        "ledger_meta",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=False),
        *_texts("currency"),
        *_bigs("created_at_ms"),
        sa.PrimaryKeyConstraint("id"),
        sa.CheckConstraint("id = 1", name="one_row"),
    )
    op.create_table(
        "month",
        _row_id("seq"),
        *_texts("month"),
        sa.Column("version", sa.Integer, nullable=False),
        *_texts("digest", "previous_digest"),
        *_bigs("closed_at_ms"),
        *_texts("author", "reason"),
        sa.UniqueConstraint("month"),
    )
    op.create_table(
        "adjustment",
        _row_id(),
        *_texts("month", "team", "job_uid"),
        *_bigs("board_ms", "nano"),
        *_texts("currency", "reason", "author", "reference"),
        *_bigs("created_at_ms"),
        *_texts("digest"),
        sa.ForeignKeyConstraint(["month"], ["month.month"]),
        sa.UniqueConstraint("month", "team", "job_uid", "reference"),
    )
    op.create_table(
        "audit",
        _row_id(),
        *_bigs("at_ms"),
        *_texts("author", "action", "subject", "reason", "detail"),
    )
