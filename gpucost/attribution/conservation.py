"""The proof: capacity computed a second time, from nodes and prices alone, beside the sum of all lines.

Nothing here looks at allocations, layouts or pieces, so that an error there cannot hide here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from json import loads
from typing import Any

import pandas as pd

from gpucost.attribution.frames import Frames
from gpucost.domain.gpu import parse_product
from gpucost.domain.holders import Bucket
from gpucost.domain.rates import NodeFacts, RateLookup
from gpucost.domain.time import HOUR_MS, Window


@dataclass(frozen=True, slots=True)
class Difference:
    """How far lines are from capacity: absolute differences, added over all nodes.

    ``nodes`` names those that differ. ``uncounted`` ones (cluster/node) have no board count for some of the
    time, or pods beyond the time that is known of them: there is no capacity to compare with.
    """

    board_ms: int
    nano: int
    nodes: tuple[str, ...]
    uncounted: tuple[str, ...]

    @property
    def is_zero(self) -> bool:
        return self.board_ms == 0 and self.nano == 0


def difference(by_bucket: pd.DataFrame, frames: Frames, scope: Window, rates: RateLookup) -> Difference:
    """Compare lines with capacity, node by node.

    ``by_bucket`` has cluster, node, model, bucket, board_ms and nano (as Ledger.aggregate returns them);
    of ``frames`` only the nodes are used. What it cannot see: a node that the source does not know, a wrong
    price, and time in the wrong bucket; the first two would be wrong on both sides, the last is what the
    tests of attribution are for.
    """
    expected, uncounted = capacity(frames, scope, rates)
    found: dict[str, tuple[int, int]] = {}
    columns = (by_bucket[name].tolist() for name in ("cluster", "node", "model", "bucket", "board_ms"))
    nanos = by_bucket["nano"].astype(object).where(by_bucket["nano"].notna(), 0).tolist()
    for cluster, node, model, bucket, board_ms, nano in zip(*columns, nanos, strict=True):
        key = f"{cluster}/{node}"
        if not model:
            uncounted.add(key)
        if Bucket(bucket).is_capacity:
            ms, cost = found.get(key, (0, 0))
            found[key] = (ms + int(board_ms), cost + int(nano))
    off = {}
    for key in sorted((expected.keys() | found.keys()) - uncounted):
        (ms, cost), (its_ms, its_cost) = found.get(key, (0, 0)), expected.get(key, (0, 0))
        if (ms, cost) != (its_ms, its_cost):
            off[key] = (abs(ms - its_ms), abs(cost - its_cost))
    total_ms, total_nano = sum(ms for ms, _ in off.values()), sum(cost for _, cost in off.values())
    return Difference(total_ms, total_nano, tuple(off), tuple(sorted(uncounted)))


def capacity(frames: Frames, scope: Window, rates: RateLookup) -> tuple[dict[str, tuple[int, int]], set[str]]:
    """(cluster/node -> board milliseconds and nano-units where there is a price, nodes nobody counted)."""
    total: dict[str, tuple[int, int]] = {}
    uncounted: set[str] = set()
    for row in frames.nodes.to_dict("records"):
        start, end = max(int(row["start_ms"]), scope.start_ms), min(int(row["end_ms"]), scope.end_ms)
        if start >= end:
            continue
        key, boards = f"{row['cluster']}/{row['node']}", int(row["boards"])
        if boards <= 0:
            uncounted.add(key)
            continue
        ms, nano = total.get(key, (0, 0))
        nano += sum(boards * earned for earned in _earned(row, Window(start, end), rates))
        total[key] = (ms + boards * (end - start), nano)
    return total, uncounted


def _earned(row: dict[Hashable, Any], time: Window, rates: RateLookup) -> Iterator[int]:
    """Nano-units of one board, per span of prices."""
    facts = NodeFacts(
        row["cluster"],
        row["node"],
        parse_product(row["product"]).model,
        int(row["boards"]),
        row["instance_type"],
        row["capacity_type"],
        row["region"],
        row["zone"],
        row["pool"],
        loads(row["labels"] or "{}"),
    )
    for span in rates(facts, time):
        if span.rate is not None:
            price = span.rate.nano_per_board_hour
            yield price * span.end_ms // HOUR_MS - price * span.start_ms // HOUR_MS
