"""What became of usage lines (the waste ledger), and the findings of the detectors with their events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

from gpucost.ledger.migrations.triggers import (
    postgres_append_only,
    postgres_content,
    sqlite_append_only,
    sqlite_content,
)

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    _waste()
    _findings()
    connection = op.get_bind()
    for statement in _sqlite() if connection.dialect.name == "sqlite" else _postgres():
        connection.exec_driver_sql(statement)


def _sqlite() -> Iterator[str]:
    yield from sqlite_content("waste_window")
    yield from sqlite_content("waste_line")
    yield from sqlite_append_only("finding_event", ("id",))


def _postgres() -> Iterator[str]:
    yield from postgres_content("waste_window")
    yield from postgres_content("waste_line")
    yield postgres_append_only("finding_event")


def _texts(*names: str, nullable: bool = False) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.String, nullable=nullable) for name in names]


def _bigs(*names: str, nullable: bool = False) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.BigInteger, nullable=nullable) for name in names]


def _waste() -> None:
    op.create_table(
        "waste_window",
        *_bigs("window_id"),
        sa.Column("version", sa.Integer, nullable=False),
        *_texts("state", "digest"),
        *_bigs("assessed_at_ms"),
        *_texts("code_version"),
        sa.PrimaryKeyConstraint("window_id"),
        sa.ForeignKeyConstraint(["window_id"], ["ledger_window.id"]),
        sa.CheckConstraint("state IN ('provisional', 'final')", name="state"),
    )
    op.create_table(
        "waste_line",
        *_bigs("window_id", "unit_id", "holder_id", "rate_id"),
        *_texts("bucket", "waste"),
        *_bigs("board_ms"),
        *_bigs("nano", nullable=True),
        sa.PrimaryKeyConstraint("window_id", "unit_id", "holder_id", "rate_id", "bucket", "waste"),
        sa.ForeignKeyConstraint(["window_id"], ["ledger_window.id"]),
        *(
            sa.ForeignKeyConstraint([f"{dimension}_id"], [f"{dimension}.id"])
            for dimension in ("unit", "holder", "rate")
        ),
        sa.CheckConstraint("bucket IN ('held', 'unallocated', 'unavailable', 'unknown')", name="bucket"),
        sa.CheckConstraint(
            "waste IN ('unavailable', 'gang_stall', 'preempted', 'idle', 'oversized', 'starved', "
            "'fragmented', 'no_demand', 'productive', 'unknown')",
            name="waste",
        ),
        sa.CheckConstraint("board_ms >= 0 AND (nano IS NULL OR nano >= 0)", name="amount"),
        sqlite_with_rowid=False,
    )
    op.create_index(None, "waste_line", ["holder_id", "window_id"])


def _findings() -> None:
    op.create_table(
        "finding",
        sa.Column("id", _ROW_ID, nullable=False, primary_key=True),
        sa.Column("revision", sa.Integer, nullable=False),
        *_texts("fingerprint"),
        sa.Column("episode", sa.Integer, nullable=False),
        *_texts("cluster", "pattern", "variant"),
        *_texts("subject_kind", "subject_name", "subject_namespace", "subject_uid"),
        *_texts("team", "queue", "severity", "state"),
        *_bigs("opened_at_ms", "since_ms", "last_seen_ms"),
        *_bigs("closed_at_ms", nullable=True),
        sa.Column("clean_evaluations", sa.Integer, nullable=False),
        sa.Column("rehearsal", sa.Boolean, nullable=False),
        *_bigs("exempt_until_ms", "muted_until_ms", nullable=True),
        *_texts("acknowledged_by", nullable=True),
        *_bigs("acknowledged_at_ms", nullable=True),
        *_texts("acknowledged_note", nullable=True),
        *_texts("content"),
        *_bigs("board_ms"),
        *_bigs("nano", nullable=True),
        sa.Column("counted", sa.Boolean, nullable=False),
        sa.Column("boards_now", sa.Float(53), nullable=False),
        sa.UniqueConstraint("cluster", "fingerprint", "episode"),
        sa.CheckConstraint("state IN ('open', 'acknowledged', 'muted', 'resolved')", name="state"),
    )
    unresolved = sa.text("state <> 'resolved'")
    op.create_index(
        "ix_finding_unresolved",
        "finding",
        ["cluster", "fingerprint"],
        unique=True,
        sqlite_where=unresolved,
        postgresql_where=unresolved,
    )
    op.create_index(None, "finding", ["cluster", "closed_at_ms"])
    op.create_index(None, "finding", ["team"])
    op.create_table(
        "finding_event",
        sa.Column("id", _ROW_ID, nullable=False, primary_key=True),
        *_bigs("finding_id", "at_ms"),
        *_texts("author", "action", "detail"),
        sa.ForeignKeyConstraint(["finding_id"], ["finding.id"]),
    )
    op.create_index(None, "finding_event", ["finding_id"])
