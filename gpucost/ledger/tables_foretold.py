"""The table of waits that were foretold. Only the last 90 days: no money rests on it."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Index
from sqlalchemy import text as sql
from sqlmodel import Field

from gpucost.ledger.tables import LedgerModel, big_int, table_of

UNDECIDED = "started_ms IS NULL AND gone_ms IS NULL"


class WaitPrediction(LedgerModel, table=True):
    """What the advisor first said of a workload's wait, and what came of it.

    ``queue`` is its ClusterQueue. Waits count from ``asked_ms``; null where they lie beyond the horizon.
    ``simulated_*`` are those of the simulation alone; ``gpus`` is null in rows of before there were any.
    """

    __tablename__ = "wait_prediction"
    __table_args__ = (
        CheckConstraint("(p50_ms IS NULL OR p50_ms >= 0) AND (p90_ms IS NULL OR p90_ms >= 0)", name="waits"),
        CheckConstraint("horizon_ms >= 0", name="horizon"),
        Index(None, "cluster", "asked_ms"),
        Index(
            "ix_wait_prediction_undecided",
            "cluster",
            "workload_uid",
            sqlite_where=sql(UNDECIDED),
            postgresql_where=sql(UNDECIDED),
        ),
        {"sqlite_with_rowid": False},
    )
    cluster: str = Field(primary_key=True)
    workload_uid: str = Field(primary_key=True)
    namespace: str
    name: str
    queue: str
    team: str
    asked_ms: int = big_int()
    p50_ms: int | None = big_int()
    p90_ms: int | None = big_int()
    horizon_ms: int = big_int()
    started_ms: int | None = big_int()
    gone_ms: int | None = big_int()
    gpus: int | None = big_int()
    p10_ms: int | None = big_int()
    simulated_p10_ms: int | None = big_int()
    simulated_p50_ms: int | None = big_int()
    simulated_p90_ms: int | None = big_int()


WAIT_PREDICTION = table_of(WaitPrediction)
