"""The tables of waste and of findings.

``waste_line`` and ``waste_window`` say what became of usage lines and are closed with their month;
``finding_event`` only grows. A finding is of now: it changes, and its events tell how.
"""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Float, Index, Integer, UniqueConstraint
from sqlalchemy import text as sql
from sqlmodel import Field

from gpucost.domain.holders import Bucket
from gpucost.domain.waste import Waste
from gpucost.ledger.tables import LedgerModel, big_int, row_id, table_of

_BUCKETS = ", ".join(f"'{bucket}'" for bucket in Bucket if bucket.is_capacity)
_WASTES = ", ".join(f"'{waste}'" for waste in Waste)
UNRESOLVED = "state <> 'resolved'"


class WasteWindow(LedgerModel, table=True):
    """That a window was looked at by the detectors. It counts while ``version`` is the window's own."""

    __tablename__ = "waste_window"
    __table_args__ = (CheckConstraint("state IN ('provisional', 'final')", name="state"),)
    window_id: int = big_int(primary_key=True, foreign_key="ledger_window.id")
    version: int = Field(sa_type=Integer)
    state: str
    digest: str
    assessed_at_ms: int = big_int()
    code_version: str


class WasteLine(LedgerModel, table=True):
    """The part of a usage line that is in another bucket of the waste ledger than its rest (REST)."""

    __tablename__ = "waste_line"
    __table_args__ = (
        CheckConstraint(f"bucket IN ({_BUCKETS})", name="bucket"),
        CheckConstraint(f"waste IN ({_WASTES})", name="waste"),
        CheckConstraint("board_ms >= 0 AND (nano IS NULL OR nano >= 0)", name="amount"),
        Index(None, "holder_id", "window_id"),
        {"sqlite_with_rowid": False},
    )
    window_id: int = big_int(primary_key=True, foreign_key="ledger_window.id")
    unit_id: int = big_int(primary_key=True, foreign_key="unit.id")
    holder_id: int = big_int(primary_key=True, foreign_key="holder.id")
    rate_id: int = big_int(primary_key=True, foreign_key="rate.id")
    bucket: str = Field(primary_key=True)
    waste: str = Field(primary_key=True)
    board_ms: int = big_int()
    nano: int | None = big_int()


class FindingRow(LedgerModel, table=True):
    """An episode of an anti-pattern. ``revision`` grows with every change of the row."""

    __tablename__ = "finding"
    __table_args__ = (
        UniqueConstraint("cluster", "fingerprint", "episode"),
        CheckConstraint("state IN ('open', 'acknowledged', 'muted', 'resolved')", name="state"),
        Index(
            "ix_finding_unresolved",
            "cluster",
            "fingerprint",
            unique=True,
            sqlite_where=sql(UNRESOLVED),
            postgresql_where=sql(UNRESOLVED),
        ),
        Index(None, "cluster", "closed_at_ms"),
        Index(None, "team"),
    )
    id: int | None = row_id()
    revision: int = Field(sa_type=Integer)
    fingerprint: str
    episode: int = Field(sa_type=Integer)
    cluster: str
    pattern: str
    variant: str
    subject_kind: str
    subject_name: str
    subject_namespace: str
    subject_uid: str
    team: str
    queue: str
    severity: str
    state: str
    opened_at_ms: int = big_int()
    since_ms: int = big_int()
    last_seen_ms: int = big_int()
    closed_at_ms: int | None = big_int()
    clean_evaluations: int = Field(sa_type=Integer)
    rehearsal: bool
    exempt_until_ms: int | None = big_int()
    muted_until_ms: int | None = big_int()
    acknowledged_by: str | None
    acknowledged_at_ms: int | None = big_int()
    acknowledged_note: str | None
    content: str
    board_ms: int = big_int()
    nano: int | None = big_int()
    counted: bool
    boards_now: float = Field(sa_type=Float(53))


class FindingEventRow(LedgerModel, table=True):
    """Who did what to a finding, when."""

    __tablename__ = "finding_event"
    __table_args__ = (Index(None, "finding_id"),)
    id: int | None = row_id()
    finding_id: int = big_int(foreign_key="finding.id")
    at_ms: int = big_int()
    author: str
    action: str
    detail: str


WASTE_WINDOW = table_of(WasteWindow)
WASTE_LINE = table_of(WasteLine)
FINDING = table_of(FindingRow)
FINDING_EVENT = table_of(FindingEventRow)
