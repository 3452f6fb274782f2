"""The proof: capacity computed a second time, from nodes and prices alone, beside the sum of all lines.

Nothing here looks at allocations, layouts or pieces, so that an error there cannot hide here.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from json import loads

import pandas as pd

from gpucost.attribution.frames import Frames
from gpucost.attribution.pieces import RateLookup
from gpucost.domain.gpu import parse_product
from gpucost.domain.holders import Bucket
from gpucost.domain.rates import NodeFacts
from gpucost.domain.time import HOUR_MS, Window


@dataclass(frozen=True, slots=True)
class Difference:
    """Sum of the lines minus capacity. ``uncounted`` nodes have no board count and are left out of both."""

    board_ms: int
    nano: int
    uncounted: tuple[str, ...]

    @property
    def is_zero(self) -> bool:
        return self.board_ms == 0 and self.nano == 0

    def __str__(self) -> str:
        return f"conservation: difference {self.board_ms} GPU-ms, {self.nano} nano"


def difference(by_bucket: pd.DataFrame, frames: Frames, scope: Window, rates: RateLookup) -> Difference:
    """Compare lines with capacity.

    ``by_bucket`` has cluster, node, bucket, board_ms and nano (as Ledger.aggregate returns them); ``frames``
    need nodes only. Node rows of one node must not overlap.
    """
    capacity_ms, capacity_nano, uncounted = capacity(frames, scope, rates)
    is_capacity = by_bucket["bucket"].isin([bucket.value for bucket in Bucket if bucket.is_capacity])
    places = by_bucket["cluster"] + "/" + by_bucket["node"]
    lines = by_bucket[is_capacity & ~places.isin(uncounted)]
    ms = sum(int(value) for value in lines["board_ms"])
    nano = sum(int(value) for value in lines["nano"].dropna())
    return Difference(ms - capacity_ms, nano - capacity_nano, tuple(sorted(uncounted)))


def capacity(frames: Frames, scope: Window, rates: RateLookup) -> tuple[int, int, Collection[str]]:
    """(board milliseconds, nano-units where there is a price, nodes whose boards nobody counted)."""
    total_ms, total_nano, uncounted = 0, 0, set()
    for row in frames.nodes.to_dict("records"):
        lifetime = Window(int(row["start_ms"]), int(row["end_ms"])).intersect(scope)
        if lifetime is None:
            continue
        if row["boards"] < 0:
            uncounted.add(f"{row['cluster']}/{row['node']}")
            continue
        total_ms += row["boards"] * lifetime.length_ms
        facts = NodeFacts(
            row["cluster"],
            row["node"],
            parse_product(row["product"]).model,
            row["boards"],
            row["instance_type"],
            row["capacity_type"],
            row["region"],
            row["zone"],
            row["pool"],
            loads(row["labels"] or "{}"),
        )
        for span in rates(facts, lifetime):
            if span.rate is not None:
                price = span.rate.nano_per_board_hour
                earned = price * span.end_ms // HOUR_MS - price * span.start_ms // HOUR_MS
                total_nano += row["boards"] * earned
    return total_ms, total_nano, uncounted
