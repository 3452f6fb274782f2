"""What jobs used of their boards, out of the usage lines: what suggestions of a smaller size rest on."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from sqlalchemy import BigInteger, Connection, Float, cast, func, select

from gpucost.domain.errors import InputError
from gpucost.domain.holders import Bucket
from gpucost.domain.scope import Scope
from gpucost.domain.time import SECOND_MS, Window
from gpucost.ledger.checks import check_text
from gpucost.ledger.query import alike_holders, sum_by_hash, visible
from gpucost.ledger.runs import inside
from gpucost.ledger.tables import HOLDER, LEDGER_WINDOW, UNIT, USAGE_LINE

MOST_USES = 20_000
"""Jobs that are told at once: those that ended last."""

L, W, H, U = USAGE_LINE.c, LEDGER_WINDOW.c, HOLDER.c, UNIT.c


@dataclass(frozen=True, slots=True)
class JobUse:
    """What a job used of the whole boards of ``model`` that it held in the time that was asked about.

    ``memory_peak_mib`` is the most that it took of one of them, of ``memory_total_mib``. ``sm_busy`` is SM
    activity while anything ran, 0 to 1: the mean over a window (by pod), the highest of its windows. The
    mean over all time would call a job small that works in bursts. ``memory_seen`` and ``sm_seen`` are the
    parts of its board time in which these were observed, 0 to 1.
    """

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
    alike = alike_holders(("namespace", "job", "job_uid"))
    # Of what was observed of each signal: the two need not have been observed for as long.
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
        select(H.namespace, H.job, H.job_uid, *(column for column in j if column.name != "holder_id"))
        .join(HOLDER, H.id == j.holder_id)
        .where(H.job_uid != "", j.peak.is_not(None), j.sm_busy.is_not(None), j.memory_observed_ms > 0)
        .order_by(j.last_ms.desc(), j.holder_id.desc(), j.model)
        .limit(most)
    )
    sum_by_hash(connection)
    found = [
        JobUse(
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
    order = ("last_ms", "first_ms", "job_uid", "model", "namespace", "job")
    return tuple(sorted(found, key=attrgetter(*order)))
