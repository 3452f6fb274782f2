"""How long jobs ran and what they used of their GPUs, out of the usage lines.

The advisor predicts waits from the runs, and suggests smaller requests from the use.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Float, Select, cast, func, select
from sqlalchemy.sql.selectable import Subquery

from gpucost.advisor.wait.run_times import PastRun, RunTimes
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import InputError
from gpucost.domain.scope import Scope
from gpucost.domain.time import DAY_MS, SECOND_MS, Window
from gpucost.ledger.db.database import LedgerDatabase
from gpucost.ledger.db.stored_values import check_text
from gpucost.ledger.db.tables import (
    FOLDED_DAY,
    HOLDER,
    LEDGER_WINDOW,
    MONTH_SEAL,
    UNIT,
    USAGE_LINE,
)
from gpucost.ledger.usage.query import alike_holders, sum_by_hash, visible

LONGEST_MS = 90 * DAY_MS
"""How far back runs are read. Later runs count more: older ones would change little."""
MOST_RUNS = 50_000
"""The most runs that are returned at once: those that ended last."""

L, W, H, U, F = USAGE_LINE.c, LEDGER_WINDOW.c, HOLDER.c, UNIT.c, FOLDED_DAY.c


@dataclass(frozen=True, slots=True)
class JobRun:
    """A job that held GPUs from ``first_ms`` until ``last_ms``, both inside the queried time.

    ``held_ms`` is how long it held any at all: in every window from the first to the last instant that it
    did, added up. Time between two attempts is left out, but for gaps within one window. ``gpus`` is the
    number of GPU units (GPUs, or parts of them as requested) that it held at once, the mean over that time,
    at least 1. ``began_before`` and ``goes_on`` say that it held some at the edges of the queried time: its
    run is longer than the part seen here. The queried time begins after the last rolled up day in it.
    ``team`` is by the team rules, ``team_label`` the value of its labels.
    """

    job_uid: str
    team: str
    team_label: str
    job: str
    gpus: int
    held_ms: int
    first_ms: int
    last_ms: int
    began_before: bool
    goes_on: bool

    @property
    def is_whole(self) -> bool:
        return not (self.began_before or self.goes_on)


def runs(connection: Connection, scope: Scope, cluster: str, window: Window, most: int) -> tuple[JobRun, ...]:
    """See Ledger.runs. Two sums: what each job held in each window, and these by job."""
    check_text("cluster", cluster)
    if not 1 <= most <= MOST_RUNS:
        raise InputError("most", most, f"1 to {MOST_RUNS}")
    if not scope.sees_cluster(cluster):
        return ()
    # Whole windows only: the parts of one that is cut are not known, and at the edges runs are cut anyway.
    edges = select(func.min(W.start_ms), func.max(W.end_ms), func.count()).where(*inside(cluster, window))
    start_ms, end_ms, count = connection.execute(edges).one()
    if not count:
        return ()
    alike = alike_holders(("team", "job", "job_uid"))
    held = _held(scope, cluster, window, alike).subquery("held")
    h = held.c
    by_job = (
        select(
            h.holder_id,
            *(cast(func.sum(h[name]), BigInteger).label(name) for name in ("span_ms", "unit_ms")),
            func.min(h.first_ms).label("first_ms"),
            func.max(h.last_ms).label("last_ms"),
        )
        .group_by(h.holder_id)
        .subquery("by_job")
    )
    j = by_job.c
    statement = (
        select(H.job_uid, H.team, H.team_label, H.job, j.span_ms, j.unit_ms, j.first_ms, j.last_ms)
        .join(HOLDER, H.id == j.holder_id)
        .where(H.job_uid != "", j.span_ms > 0)
        .order_by(j.last_ms.desc(), j.holder_id.desc())
        .limit(most)
    )
    sum_by_hash(connection)
    found = [
        JobRun(
            uid,
            team,
            team_label,
            job,
            max(1, round(unit_ms / span_ms)),
            span_ms,
            first_ms,
            last_ms,
            first_ms <= start_ms,
            last_ms >= end_ms,
        )
        for uid, team, team_label, job, span_ms, unit_ms, first_ms, last_ms in connection.execute(statement)
    ]
    # Sorted here, not by the database: ids are in another order in each.
    return tuple(sorted(found, key=attrgetter("last_ms", "first_ms", "job_uid", "team", "job")))


def learnt(runs: Iterable[JobRun]) -> RunTimes:
    """Run times of ``runs``, in their order. Runs that are seen only in part are left out: those that still
    go on, since together with those that ended last they would hold too many long ones, and those that began
    before. Teams are taken from labels, as in the advisor; the team rules decide who may read a run."""
    return RunTimes(
        PastRun(run.team_label, run.job, run.gpus, run.held_ms, owner=run.team)
        for run in runs
        if run.is_whole
    )


def inside(cluster: str, window: Window) -> tuple[ColumnElement[bool], ...]:
    """The windows of the ledger to use: those after its last rolled up day, because for that day and earlier
    ones it is not known how long a job held what within it, and after its last sealed month, whose lines are
    in files."""
    folded_end = select(func.coalesce(func.max(F.end_ms), 0)).where(
        F.cluster == cluster, F.start_ms < window.end_ms, F.end_ms > window.start_ms
    )
    s, other = MONTH_SEAL.c, LEDGER_WINDOW.alias().c
    # What was sealed once more than unsealed.
    in_files = select(s.month).group_by(s.month).having(func.count() % 2 == 1)
    sealed_end = select(func.coalesce(func.max(other.end_ms), 0)).where(
        other.cluster == cluster,
        other.month.in_(in_files),
        other.start_ms < window.end_ms,
        other.end_ms > window.start_ms,
    )
    return (
        W.cluster == cluster,
        W.start_ms >= window.start_ms,
        W.start_ms >= folded_end.scalar_subquery(),
        W.start_ms >= sealed_end.scalar_subquery(),
        W.end_ms <= window.end_ms,
    )


def _held(scope: Scope, cluster: str, window: Window, alike: Subquery) -> Select[Any]:
    """Held time by job (the least id among its holders) and window."""
    windows = select(W.id).where(*inside(cluster, window))
    # A unit is ``share_num / share_den`` of a GPU.
    units_ms = L.board_ms * U.share_den // U.share_num
    return (
        select(
            alike.c.holder_id,
            func.min(L.first_ms).label("first_ms"),
            func.max(L.last_ms).label("last_ms"),
            (func.max(L.last_ms) - func.min(L.first_ms)).label("span_ms"),
            cast(func.sum(units_ms), BigInteger).label("unit_ms"),
        )
        .join(alike, alike.c.id == L.holder_id)
        .join(UNIT, U.id == L.unit_id)
        .where(L.window_id.in_(windows), L.bucket == str(Bucket.HELD), *visible(scope))
        .group_by(alike.c.holder_id, L.window_id)
    )


MOST_USES = 20_000
"""The most jobs that are returned at once: those that ended last."""


@dataclass(frozen=True, slots=True)
class JobUse:
    """What a job used of the whole GPUs of ``model`` that it held in the queried time. ``team`` is by the
    team rules.

    ``memory_peak_mib`` is the most that it used of one of them, of ``memory_total_mib``. ``sm_busy`` is SM
    activity while a kernel ran, 0 to 1: the mean over a window (by pod), the highest of its windows. The mean
    over all time would make a job that works in bursts look small. ``memory_seen`` and ``sm_seen`` are the
    parts of its GPU time in which these were observed, 0 to 1.
    """

    team: str
    namespace: str
    job: str
    job_uid: str
    model: str
    memory_peak_mib: int
    memory_total_mib: float
    sm_busy: float
    memory_seen: float
    sm_seen: float
    first_ms: int
    last_ms: int


def uses(connection: Connection, scope: Scope, cluster: str, window: Window, most: int) -> tuple[JobUse, ...]:
    """See Ledger.uses."""
    check_text("cluster", cluster)
    if not 1 <= most <= MOST_USES:
        raise InputError("most", most, f"1 to {MOST_USES}")
    if not scope.sees_cluster(cluster):
        return ()
    alike = alike_holders(("team", "namespace", "job", "job_uid"))
    # Each signal over its own observed time: the two may differ.
    active = cast(L.sm_active_ms, Float(53)) / func.nullif(L.sm_observed_ms, 0)
    busy = cast(L.busy_ms, Float(53)) / func.nullif(L.observed_ms, 0)
    sums = {
        name: L[name] for name in ("board_ms", "memory_observed_ms", "memory_total_mib_s", "sm_observed_ms")
    }
    by_job = (
        select(
            alike.c.holder_id,
            U.model,
            func.max(L.memory_peak_mib).label("peak"),
            func.max(active / func.nullif(busy, 0.0)).label("sm_busy"),
            *(cast(func.sum(column), BigInteger).label(name) for name, column in sums.items()),
            func.min(L.first_ms).label("first_ms"),
            func.max(L.last_ms).label("last_ms"),
        )
        .join(alike, alike.c.id == L.holder_id)
        .join(UNIT, U.id == L.unit_id)
        .where(
            L.window_id.in_(select(W.id).where(*inside(cluster, window))),
            L.bucket == str(Bucket.HELD),
            U.share_num == U.share_den,
            *visible(scope),
        )
        .group_by(alike.c.holder_id, U.model)
        .subquery("by_job")
    )
    j = by_job.c
    statement = (
        select(
            *(H.team, H.namespace, H.job, H.job_uid),
            *(column for column in j if column.name != "holder_id"),
        )
        .join(HOLDER, H.id == j.holder_id)
        .where(H.job_uid != "", j.peak.is_not(None), j.sm_busy.is_not(None), j.memory_observed_ms > 0)
        .order_by(j.last_ms.desc(), j.holder_id.desc(), j.model)
        .limit(most)
    )
    sum_by_hash(connection)
    found = [
        JobUse(
            row.team,
            row.namespace,
            row.job,
            row.job_uid,
            row.model,
            row.peak,
            row.memory_total_mib_s * SECOND_MS / row.memory_observed_ms,
            min(1.0, row.sm_busy),
            row.memory_observed_ms / row.board_ms,
            row.sm_observed_ms / row.board_ms,
            row.first_ms,
            row.last_ms,
        )
        for row in connection.execute(statement)
        if row.board_ms and row.memory_total_mib_s is not None
    ]
    order = ("last_ms", "first_ms", "job_uid", "model", "team", "namespace", "job")
    return tuple(sorted(found, key=attrgetter(*order)))


class JobHistory:
    """Runs of jobs: a base class of Ledger, which has the promises."""

    _database: LedgerDatabase

    def runs(
        self, scope: Scope, cluster: str, window: Window, *, most: int = MOST_RUNS
    ) -> tuple[JobRun, ...]:
        """Jobs that held GPUs in ``window``, in the order of their end: the ``most`` (1 to 50,000) that ended
        last. Only windows of the ledger that lie wholly inside, and after the last rolled up day in it,
        count. Jobs without a uid are left out.
        """
        with self._database.read() as connection:
            return runs(connection, scope, cluster, window, most)

    def uses(
        self, scope: Scope, cluster: str, window: Window, *, most: int = MOST_USES
    ) -> tuple[JobUse, ...]:
        """What jobs used of whole GPUs in ``window``, by job and model, in the order of their end: the
        ``most`` (1 to 20,000) that ended last. Those without any observation are left out, and windows as
        ``runs`` leaves them out.
        """
        with self._database.read() as connection:
            return uses(connection, scope, cluster, window, most)
