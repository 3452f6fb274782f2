"""The table of alert groups that Alertmanager sent, until everything about them was told."""

from __future__ import annotations

from sqlalchemy import Boolean, CheckConstraint, Index, Text
from sqlmodel import Field

from gpucost.ledger.tables import LedgerModel, big_int, table_of


class AlertGroup(LedgerModel, table=True):
    """The last that Alertmanager sent of one group. ``key`` is the hash of its ``groupKey``, ``size`` the
    characters of ``content``."""

    __tablename__ = "alert_group"
    __table_args__ = (
        CheckConstraint("received_ms >= 0", name="received"),
        Index(None, "received_ms"),
    )
    key: str = Field(primary_key=True)
    content: str = Field(sa_type=Text)
    firing: bool = Field(sa_type=Boolean)
    size: int = big_int()
    received_ms: int = big_int()


ALERT_GROUP = table_of(AlertGroup)
