"""Reads of whole capacity for charging: lines of the same holder that lie between the same two instants,
summed.

The keys are wider than those of ``query.aggregate``: the window of the ledger, and the first and the last
instant of a line, so that whoever computes with rates (GPU time over time) need not guess when it was held.
Names are added after the sums, as there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from sqlalchemy import BigInteger, Connection, case, cast, func

from gpucost.charges.capacity_cells import CapacityCell, CellRow
from gpucost.domain.buckets import Bucket
from gpucost.domain.scope import Scope
from gpucost.domain.time import Window
from gpucost.ledger.db.dimensions import clusters_of
from gpucost.ledger.db.tables import LEDGER_WINDOW, USAGE_LINE
from gpucost.ledger.usage.query import refuse_cut, sums_by_id, sums_by_name, window_ids

_DIMS = (
    *("cluster", "model", "capacity_type", "bucket", "team", "cluster_queue", "namespace", "job", "job_uid"),
)
_TIMES = ("step", "end_ms", "first_ms", "last_ms")
_CAPACITY = [str(bucket) for bucket in Bucket if bucket.is_capacity]


def cells(connection: Connection, scope: Scope, window: Window) -> Iterator[CapacityCell]:
    """See Ledger.cells."""
    refuse_cut(connection, window, clusters_of(scope, {}), None)
    line = USAGE_LINE.c
    measures = [
        cast(func.sum(line.board_ms), BigInteger).label("board_ms"),
        cast(func.sum(func.coalesce(line.nano, 0)), BigInteger).label("nano"),
        cast(func.sum(case((line.nano.is_(None), line.board_ms), else_=0)), BigInteger).label("unpriced_ms"),
    ]
    others = [LEDGER_WINDOW.c.end_ms, line.first_ms, line.last_ms]
    windows = window_ids(window, clusters_of(scope, {}))
    # A step of one millisecond: the start of the window itself.
    sums = sums_by_id(
        USAGE_LINE, measures, windows, scope, _DIMS, {"bucket": _CAPACITY}, 1, others
    ).subquery()
    totals = [cast(func.sum(sums.c[name]), BigInteger) for name in ("board_ms", "nano", "unpriced_ms")]
    found: dict[tuple[str, str, int, int], list[CellRow]] = defaultdict(list)
    for row in sums_by_name(connection, sums, totals, _DIMS, _TIMES):
        cluster, model, capacity_type, bucket, team, queue, namespace, job, job_uid, *numbers = row
        start, end, first, last, board_ms, nano, unpriced_ms = numbers
        holder = (team, queue, namespace, job, job_uid, capacity_type)
        found[cluster, model, start, end].append(
            CellRow(Bucket(bucket), *holder, first, last, board_ms, nano, unpriced_ms)
        )
    for cluster, model, start, end in sorted(found):
        yield CapacityCell.of(cluster, model, Window(start, end), found.pop((cluster, model, start, end)))
