"""The tables. Usage lines hold integer ids; the names they stand for are kept once, in three dimensions.

``unit``, ``holder`` and ``rate`` rows are identified by the hash of their content (``content_key``), are
added when first seen, and never change. ``window_version``, ``month``, ``adjustment``, ``audit`` and
``ledger_meta`` only grow. Triggers (migrations/triggers.py) hold the database to that.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import BigInteger, CheckConstraint, Float, Index, Integer, MetaData, Table, UniqueConstraint
from sqlmodel import Field, SQLModel

from gpucost.domain.holders import Bucket

# SQLite numbers rows by itself for INTEGER keys only; there an INTEGER has 64 bits anyway.
ROW_ID = BigInteger().with_variant(Integer, "sqlite")


def _id() -> Any:
    return Field(default=None, primary_key=True, sa_type=ROW_ID)


def _big(**options: Any) -> Any:
    return Field(sa_type=BigInteger, **options)


class LedgerModel(SQLModel):
    metadata: ClassVar[MetaData] = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class LedgerMeta(LedgerModel, table=True):
    """One row: the currency of every amount, set by the first window that has a price."""

    __tablename__ = "ledger_meta"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)
    id: int = Field(primary_key=True, sa_type=Integer, sa_column_kwargs={"autoincrement": False})
    currency: str
    created_at_ms: int = _big()


class Unit(LedgerModel, table=True):
    """What was held, and where: a node's boards as one resource hands them out."""

    id: int | None = _id()
    content_key: str = Field(unique=True)
    cluster: str
    node: str
    resource: str
    model: str
    profile: str
    share_num: int = _big()
    share_den: int = _big()
    basis: str
    instance_type: str
    capacity_type: str
    region: str
    zone: str
    pool: str


class Holder(LedgerModel, table=True):
    """Who held it: a pod with what was known of it at the time, and the team the rules gave it."""

    id: int | None = _id()
    content_key: str = Field(unique=True)
    namespace: str
    pod: str
    pod_uid: str = Field(index=True)
    job_kind: str
    job: str
    job_uid: str = Field(index=True)
    workload: str
    queue: str
    cluster_queue: str
    flavor: str
    team_label: str
    project: str
    user: str
    team: str = Field(index=True)


class RateRow(LedgerModel, table=True):
    """A price as it was applied. The row with an empty ``rate_id`` stands for "no price"."""

    __tablename__ = "rate"
    id: int | None = _id()
    content_key: str = Field(unique=True)
    rate_id: str = Field(unique=True)
    nano_per_board_hour: int | None = _big()
    currency: str
    list_nano_per_board_hour: int | None = _big()
    matched_by: str
    source: str
    retrieved: str
    pricing_category: str
    discount: str


class LedgerWindow(LedgerModel, table=True):
    """A window of a cluster: its state, and which of its versions counts."""

    __tablename__ = "ledger_window"
    __table_args__ = (
        UniqueConstraint("cluster", "start_ms"),
        CheckConstraint("start_ms < end_ms", name="not_empty"),
        CheckConstraint("state IN ('open', 'settled', 'closed')", name="state"),
        Index(None, "month"),
        Index(None, "start_ms"),
    )
    id: int | None = _id()
    cluster: str
    start_ms: int = _big()
    end_ms: int = _big()
    month: str
    state: str
    version: int


class WindowVersionRow(LedgerModel, table=True):
    """Every version of every window: what it summed to, and where it came from. Sums are over capacity."""

    __tablename__ = "window_version"
    window_id: int = _big(primary_key=True, foreign_key="ledger_window.id")
    version: int = Field(primary_key=True, sa_type=Integer)
    digest: str
    reason: str
    line_count: int = _big()
    board_ms: int = _big()
    unknown_ms: int = _big()
    unpriced_ms: int = _big()
    nano: int = _big()
    observed_ms: int = _big()
    source: str
    code_version: str
    written_at_ms: int = _big()


class UsageLine(LedgerModel, table=True):
    """One line of the window's current version. The natural key is the primary key."""

    __tablename__ = "usage_line"
    __table_args__ = (
        CheckConstraint("bucket IN ({})".format(", ".join(f"'{b}'" for b in Bucket)), name="bucket"),
        Index(None, "holder_id", "window_id"),
        {"sqlite_with_rowid": False},
    )
    window_id: int = _big(primary_key=True, foreign_key="ledger_window.id")
    unit_id: int = _big(primary_key=True, foreign_key="unit.id")
    holder_id: int = _big(primary_key=True, foreign_key="holder.id")
    rate_id: int = _big(primary_key=True, foreign_key="rate.id")
    bucket: str = Field(primary_key=True)
    board_ms: int = _big()
    nano: int | None = _big()
    first_ms: int = _big()
    last_ms: int = _big()
    observed_ms: int | None = _big()
    busy_ms: int | None = _big()
    sm_observed_ms: int | None = _big()
    sm_active_ms: int | None = _big()
    tensor_active_ms: int | None = _big()


class ProgressLine(LedgerModel, table=True):
    """How far a pod came in a window, by the name of the progress metric."""

    __tablename__ = "progress_line"
    __table_args__ = (Index(None, "pod_uid"), {"sqlite_with_rowid": False})
    window_id: int = _big(primary_key=True, foreign_key="ledger_window.id")
    pod_uid: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    amount: float = Field(sa_type=Float(53))


class WindowProblem(LedgerModel, table=True):
    """What a number of the window could not be computed from."""

    __tablename__ = "window_problem"
    __table_args__ = ({"sqlite_with_rowid": False},)
    window_id: int = _big(primary_key=True, foreign_key="ledger_window.id")
    seq: int = Field(primary_key=True, sa_type=Integer)
    code: str
    cluster: str
    subject: str
    detail: str
    board_ms: int | None = _big()


class MonthRow(LedgerModel, table=True):
    """A closed month. ``seq`` is the order of closing, which the chain of digests follows."""

    __tablename__ = "month"
    seq: int | None = _id()
    month: str = Field(unique=True)
    version: int
    digest: str
    previous_digest: str
    closed_at_ms: int = _big()
    author: str
    reason: str


class AdjustmentRow(LedgerModel, table=True):
    """A correction of a closed month; ``digest`` covers this row and the digest of the one before it."""

    __tablename__ = "adjustment"
    __table_args__ = (UniqueConstraint("month", "team", "job_uid", "reference"),)
    id: int | None = _id()
    month: str = Field(foreign_key="month.month")
    team: str
    job_uid: str
    board_ms: int = _big()
    nano: int = _big()
    currency: str
    reason: str
    author: str
    reference: str
    created_at_ms: int = _big()
    digest: str


class AuditRow(LedgerModel, table=True):
    __tablename__ = "audit"
    id: int | None = _id()
    at_ms: int = _big()
    author: str
    action: str
    subject: str
    reason: str
    detail: str


METADATA = LedgerModel.metadata


def _table(model: type[LedgerModel]) -> Table:
    return METADATA.tables[str(model.__tablename__)]


LEDGER_META = _table(LedgerMeta)
UNIT = _table(Unit)
HOLDER = _table(Holder)
RATE = _table(RateRow)
LEDGER_WINDOW = _table(LedgerWindow)
WINDOW_VERSION = _table(WindowVersionRow)
USAGE_LINE = _table(UsageLine)
PROGRESS_LINE = _table(ProgressLine)
WINDOW_PROBLEM = _table(WindowProblem)
MONTH = _table(MonthRow)
ADJUSTMENT = _table(AdjustmentRow)
AUDIT = _table(AuditRow)
