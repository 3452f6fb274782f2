"""The tables of months whose lines were added up by day. They only grow.

``fold_begun`` is the door of the triggers: the lines of a closed month may be replaced from its row here
until there is one in ``month_fold``, and no transaction can be committed with only the first.
"""

from __future__ import annotations

from sqlalchemy import CheckConstraint, ForeignKeyConstraint, Index
from sqlmodel import Field

from gpucost.ledger.tables import LedgerModel, big_int, table_of


class FoldBegun(LedgerModel, table=True):
    __tablename__ = "fold_begun"
    __table_args__ = (
        ForeignKeyConstraint(["month"], ["month_fold.month"], deferrable=True, initially="DEFERRED"),
    )
    month: str = Field(primary_key=True)


class MonthFold(LedgerModel, table=True):
    """That a closed month was folded; ``digest`` covers its folded days and the digest it was closed with."""

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


class FoldedDay(LedgerModel, table=True):
    """Windows of a cluster and UTC day that were looked at alike (``assessed``), as one: the first of them,
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


FOLD_BEGUN = table_of(FoldBegun)
MONTH_FOLD = table_of(MonthFold)
FOLDED_DAY = table_of(FoldedDay)
