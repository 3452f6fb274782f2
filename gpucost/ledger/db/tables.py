"""The tables of usage, months and waste.

Usage lines hold integer ids; the names they stand for are kept once, in four dimensions. ``unit``,
``holder``, ``rate`` and ``team_rule`` rows are identified by the hash of their content (``content_key``), are
added when first seen, and never change. ``window_version``, ``month``, ``adjustment``, ``audit`` and
``ledger_meta`` only grow. Triggers (ledger/migrations/triggers.py) make the database enforce that.

``day_line`` has the sums of lines by UTC day, written in the transaction that writes the lines, for every day
in ``usage_day`` (docs/decisions/0018-ledger-rollups.md).

Months whose lines were added up by day have tables that only grow. ``fold_begun`` opens the triggers: the
lines of a closed month may be replaced from its row here until there is one in ``month_fold``, and no
transaction can be committed with only the first.

Sealed months have their lines in files. ``seal_begun`` opens the same triggers, until ``month_seal`` has a
row of the same number.

``waste_line`` and ``waste_window`` record the waste of usage lines and are closed with their month.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Table,
    UniqueConstraint,
)
from sqlmodel import Field, SQLModel

from gpucost.contract.frames import SIGNAL_MEASURES
from gpucost.domain.buckets import Bucket, Waste

# SQLite numbers rows by itself for INTEGER keys only; there an INTEGER has 64 bits anyway.
ROW_ID = BigInteger().with_variant(Integer, "sqlite")


def row_id() -> Any:
    return Field(default=None, primary_key=True, sa_type=ROW_ID)


def big_int(**options: Any) -> Any:
    return Field(sa_type=BigInteger, **options)


class LedgerModel(SQLModel):
    """A table: its columns in their order."""

    metadata: ClassVar[MetaData] = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


def _signals() -> list[Column[Any]]:
    """What was measured of a line: the last columns of lines and of their sums."""
    return [Column(name, BigInteger) for name in SIGNAL_MEASURES]


class LedgerMeta(LedgerModel, table=True):
    """One row: the currency of every amount, set by the first window that has a price."""

    __tablename__ = "ledger_meta"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)
    id: int = Field(primary_key=True, sa_type=Integer, sa_column_kwargs={"autoincrement": False})
    currency: str
    created_at_ms: int = big_int()


class UnitRow(LedgerModel, table=True):
    """What was held, and where: a node's GPUs as one resource hands them out."""

    __tablename__ = "unit"

    id: int | None = row_id()
    content_key: str = Field(unique=True)
    cluster: str
    node: str
    resource: str
    model: str
    profile: str
    share_num: int = big_int()
    share_den: int = big_int()
    basis: str
    instance_type: str
    capacity_type: str
    region: str
    zone: str
    pool: str


class HolderRow(LedgerModel, table=True):
    """Who held it: a pod with the attributes it had at the time, and the team the rules gave it."""

    __tablename__ = "holder"

    id: int | None = row_id()
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
    id: int | None = row_id()
    content_key: str = Field(unique=True)
    rate_id: str = Field(unique=True)
    nano_per_board_hour: int | None = big_int()
    currency: str
    list_nano_per_board_hour: int | None = big_int()
    matched_by: str
    source: str
    retrieved: str
    pricing_category: str
    discount: str


class TeamRuleRow(LedgerModel, table=True):
    """The text of a team rule that gave holders their team."""

    __tablename__ = "team_rule"
    id: int | None = row_id()
    content_key: str = Field(unique=True)
    team_rule: str


class LedgerWindow(LedgerModel, table=True):
    """A window of a cluster: its state, and which of its versions is the current one."""

    __tablename__ = "ledger_window"
    __table_args__ = (
        UniqueConstraint("cluster", "start_ms"),
        CheckConstraint("start_ms < end_ms", name="not_empty"),
        CheckConstraint("state IN ('open', 'settled', 'closed')", name="state"),
        Index(None, "month"),
        Index(None, "start_ms"),
    )
    id: int | None = row_id()
    cluster: str
    start_ms: int = big_int()
    end_ms: int = big_int()
    month: str
    state: str
    version: int


class WindowVersionRow(LedgerModel, table=True):
    """Every version of every window: what it summed to, and where it came from. Sums are over capacity."""

    __tablename__ = "window_version"
    window_id: int = big_int(primary_key=True, foreign_key="ledger_window.id")
    version: int = Field(primary_key=True, sa_type=Integer)
    digest: str
    reason: str
    line_count: int = big_int()
    board_ms: int = big_int()
    unknown_ms: int = big_int()
    unpriced_ms: int = big_int()
    nano: int = big_int()
    observed_ms: int = big_int()
    source: str
    code_version: str
    written_at_ms: int = big_int()


class UsageLine(LedgerModel, table=True):
    """One line of the window's current version. The natural key is the primary key.

    The rule that gave the holder its team explains the line and is no part of it: neither of its key nor of
    any digest. Null where no pod held, and where it was not recorded.

    On PostgreSQL a trigger stands for the foreign keys (revision 0014).
    """

    __tablename__ = "usage_line"
    __table_args__ = (
        CheckConstraint("bucket IN ({})".format(", ".join(f"'{b}'" for b in Bucket)), name="bucket"),
        Index(None, "holder_id", "window_id"),
        *_signals(),
        Column("team_rule_id", BigInteger, ForeignKey("team_rule.id")),
        {"sqlite_with_rowid": False},
    )
    window_id: int = big_int(primary_key=True, foreign_key="ledger_window.id")
    unit_id: int = big_int(primary_key=True, foreign_key="unit.id")
    holder_id: int = big_int(primary_key=True, foreign_key="holder.id")
    rate_id: int = big_int(primary_key=True, foreign_key="rate.id")
    bucket: str = Field(primary_key=True)
    board_ms: int = big_int()
    nano: int | None = big_int()
    first_ms: int = big_int()
    last_ms: int = big_int()


class UsageDay(LedgerModel, table=True):
    """A UTC day of a cluster whose lines are added up: those of every window that starts in it. ``digest``
    covers its sums from the day on which the month was closed, and is empty before."""

    __tablename__ = "usage_day"
    __table_args__ = (UniqueConstraint("cluster", "start_ms"), Index(None, "month"), Index(None, "start_ms"))
    id: int | None = row_id()
    cluster: str
    start_ms: int = big_int()
    month: str
    digest: str


class DayLine(LedgerModel, table=True):
    """The sums of a day's lines that differ in pod and node alone: ``unit_id`` is of a unit without a node,
    ``holder_id`` of one without a pod. Measures are those of lines, and ``unpriced_ms``, the time of those
    without a price."""

    __tablename__ = "day_line"
    __table_args__ = (
        CheckConstraint("bucket IN ({})".format(", ".join(f"'{b}'" for b in Bucket)), name="bucket"),
        *_signals(),
        {"sqlite_with_rowid": False},
    )
    day_id: int = big_int(primary_key=True, foreign_key="usage_day.id")
    unit_id: int = big_int(primary_key=True, foreign_key="unit.id")
    holder_id: int = big_int(primary_key=True, foreign_key="holder.id")
    rate_id: int = big_int(primary_key=True, foreign_key="rate.id")
    bucket: str = Field(primary_key=True)
    board_ms: int = big_int()
    nano: int | None = big_int()
    unpriced_ms: int = big_int()
    first_ms: int = big_int()
    last_ms: int = big_int()


class ProgressLine(LedgerModel, table=True):
    """The progress of a pod in a window, by the name of the progress metric."""

    __tablename__ = "progress_line"
    __table_args__ = (Index(None, "pod_uid"), {"sqlite_with_rowid": False})
    window_id: int = big_int(primary_key=True, foreign_key="ledger_window.id")
    pod_uid: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    amount: float = Field(sa_type=Float(53))


class WindowProblem(LedgerModel, table=True):
    """A problem of a window: what a number could not be computed from."""

    __tablename__ = "window_problem"
    __table_args__ = ({"sqlite_with_rowid": False},)
    window_id: int = big_int(primary_key=True, foreign_key="ledger_window.id")
    seq: int = Field(primary_key=True, sa_type=Integer)
    code: str
    cluster: str
    subject: str
    detail: str
    board_ms: int | None = big_int()


class MonthRow(LedgerModel, table=True):
    """A closed month. ``seq`` is the order of closing, which the chain of digests follows."""

    __tablename__ = "month"
    seq: int | None = row_id()
    month: str = Field(unique=True)
    version: int
    digest: str
    previous_digest: str
    closed_at_ms: int = big_int()
    author: str
    reason: str


class MonthChargesRow(LedgerModel, table=True):
    """What teams were charged when a month was closed; ``files``, ``weights`` and ``amounts`` are JSON.
    ``content_key`` covers the row."""

    __tablename__ = "month_charges"
    month: str = Field(primary_key=True, foreign_key="month.month")
    content_key: str
    policy_name: str
    policy: str
    files: str
    weights: str
    currency: str
    digest: str
    amounts: str


class AdjustmentRow(LedgerModel, table=True):
    """A correction of a closed month; ``digest`` covers this row and the digest of the one before it."""

    __tablename__ = "adjustment"
    __table_args__ = (UniqueConstraint("month", "team", "job_uid", "reference"),)
    id: int | None = row_id()
    month: str = Field(foreign_key="month.month")
    team: str
    job_uid: str
    board_ms: int = big_int()
    nano: int = big_int()
    currency: str
    reason: str
    author: str
    reference: str
    created_at_ms: int = big_int()
    digest: str


class AuditRow(LedgerModel, table=True):
    __tablename__ = "audit"
    id: int | None = row_id()
    at_ms: int = big_int()
    author: str
    action: str
    subject: str
    reason: str
    detail: str


METADATA = LedgerModel.metadata


def table_of(model: type[LedgerModel]) -> Table:
    return METADATA.tables[str(model.__tablename__)]


LEDGER_META = table_of(LedgerMeta)
UNIT = table_of(UnitRow)
HOLDER = table_of(HolderRow)
RATE = table_of(RateRow)
TEAM_RULE = table_of(TeamRuleRow)
LEDGER_WINDOW = table_of(LedgerWindow)
WINDOW_VERSION = table_of(WindowVersionRow)
USAGE_LINE = table_of(UsageLine)
USAGE_DAY = table_of(UsageDay)
DAY_LINE = table_of(DayLine)
PROGRESS_LINE = table_of(ProgressLine)
WINDOW_PROBLEM = table_of(WindowProblem)
MONTH = table_of(MonthRow)
MONTH_CHARGES = table_of(MonthChargesRow)
ADJUSTMENT = table_of(AdjustmentRow)
AUDIT = table_of(AuditRow)


class RollupStartRow(LedgerModel, table=True):
    __tablename__ = "fold_begun"
    __table_args__ = (
        ForeignKeyConstraint(["month"], ["month_fold.month"], deferrable=True, initially="DEFERRED"),
    )
    month: str = Field(primary_key=True)


class MonthRollupRow(LedgerModel, table=True):
    """A closed month that was rolled up; ``digest`` covers its days and the digest it was closed with."""

    __tablename__ = "month_fold"
    month: str = Field(primary_key=True, foreign_key="month.month")
    digest: str
    month_digest: str
    folded_at_ms: int = big_int()
    author: str
    lines_before: int = big_int()
    lines: int = big_int()
    waste_before: int = big_int()
    waste_lines: int = big_int()


class DayRollupRow(LedgerModel, table=True):
    """Windows of a cluster and UTC day with the same assessment (``assessed``), as one: the first of them,
    ``window_id``, holds what all of them held."""

    __tablename__ = "folded_day"
    __table_args__ = (
        CheckConstraint("assessed IN ('', 'provisional', 'final')", name="assessed"),
        Index(None, "month"),
        Index(None, "start_ms"),
    )
    window_id: int = big_int(primary_key=True, foreign_key="ledger_window.id")
    month: str = Field(foreign_key="fold_begun.month")
    cluster: str
    start_ms: int = big_int()
    end_ms: int = big_int()
    assessed: str
    windows: int = big_int()
    lines: int = big_int()
    waste_lines: int = big_int()
    digest: str


class SealStartRow(LedgerModel, table=True):
    __tablename__ = "seal_begun"
    __table_args__ = (
        ForeignKeyConstraint(["seq"], ["month_seal.seq"], deferrable=True, initially="DEFERRED"),
    )
    seq: int = big_int(primary_key=True)
    month: str


class MonthSealRow(LedgerModel, table=True):
    """A closed month was moved into files (``kind`` seal), or back (unseal); of a month's rows the last one
    counts. ``manifest`` is the SHA-256 of the list of the files, and ``digest`` covers the row before this
    one, too."""

    __tablename__ = "month_seal"
    __table_args__ = (CheckConstraint("kind IN ('seal', 'unseal')", name="kind"),)
    seq: int = Field(primary_key=True, sa_type=ROW_ID, sa_column_kwargs={"autoincrement": False})
    month: str = Field(foreign_key="month.month")
    kind: str
    digest: str
    month_digest: str
    fold_digest: str
    manifest: str
    sealed_at_ms: int = big_int()
    author: str
    lines: int = big_int()
    files: int = big_int()
    size: int = big_int()


class SealedHolderRow(LedgerModel, table=True):
    """What a holder had of a bucket in a sealed month, from the first to the last of its windows: jobs are
    found by name without reading files."""

    __tablename__ = "sealed_holder"
    __table_args__ = ({"sqlite_with_rowid": False},)
    holder_id: int = big_int(primary_key=True, foreign_key="holder.id")
    cluster: str = Field(primary_key=True)
    seq: int = big_int(primary_key=True, foreign_key="seal_begun.seq")
    bucket: str = Field(primary_key=True)
    first_ms: int = big_int()
    last_ms: int = big_int()
    board_ms: int = big_int()
    nano: int | None = big_int()
    unpriced_ms: int = big_int()


FOLD_BEGUN = table_of(RollupStartRow)
MONTH_FOLD = table_of(MonthRollupRow)
FOLDED_DAY = table_of(DayRollupRow)
SEAL_BEGUN = table_of(SealStartRow)
MONTH_SEAL = table_of(MonthSealRow)
SEALED_HOLDER = table_of(SealedHolderRow)


_BUCKETS = ", ".join(f"'{bucket}'" for bucket in Bucket if bucket.is_capacity)
_WASTES = ", ".join(f"'{waste}'" for waste in Waste)


class WasteWindow(LedgerModel, table=True):
    """A window that the detectors have assessed. It counts while ``version`` is the window's own."""

    __tablename__ = "waste_window"
    __table_args__ = (CheckConstraint("state IN ('provisional', 'final')", name="state"),)
    window_id: int = big_int(primary_key=True, foreign_key="ledger_window.id")
    version: int = Field(sa_type=Integer)
    state: str
    digest: str
    assessed_at_ms: int = big_int()
    code_version: str


class WasteLine(LedgerModel, table=True):
    """The part of a usage line that is in another bucket of the waste ledger than its rest
    (WASTE_WHEN_UNCLAIMED)."""

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


WASTE_WINDOW = table_of(WasteWindow)
WASTE_LINE = table_of(WasteLine)
