"""What GPU time cost in the ledger: by node over time, as the price of a pool, and in all of a window."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import pandas as pd

from gpucost.advisor.replay.history_record import LedgerCost
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import InputError
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import Window
from gpucost.ledger.ledger import Ledger


class LedgerRateSpan(NamedTuple):
    """From when until when the ledger has GPU time of a node at a rate, and how much."""

    rate_id: str
    start_ms: int
    end_ms: int
    board_ms: int


@dataclass(frozen=True)
class LedgerPrices:
    """Of one cluster and window. ``rates`` are nano-units of a GPU-hour by their id; ``cost`` is None where
    some of the time has no price."""

    spans: Mapping[str, tuple[LedgerRateSpan, ...]]
    rates: Mapping[str, int]
    cost: LedgerCost | None

    @classmethod
    def of(cls, ledger: Ledger, cluster: str, window: Window) -> LedgerPrices:
        """Raises InputError where an edge of the window cuts one of the ledger."""
        frame = ledger.aggregate(
            EVERYTHING, window, ("node", "bucket", "rate_id"), filters={"cluster": [cluster]}
        )
        own = frame[frame["bucket"] != Bucket.OVERCOMMITTED]
        spans: dict[str, list[LedgerRateSpan]] = defaultdict(list)
        columns = ("node", "rate_id", "first_ms", "last_ms", "board_ms")
        for node, *rest in zip(*(own[name].tolist() for name in columns), strict=True):
            if rest[0]:
                spans[node].append(LedgerRateSpan(*rest))
        rates = ledger.rates({each.rate_id for found in spans.values() for each in found})
        return cls(
            {node: tuple(found) for node, found in spans.items()},
            {name: rate.nano_per_board_hour for name, rate in rates.items()},
            _cost(own),
        )

    def steps(self, nodes: Iterable[str]) -> list[tuple[int, Fraction]]:
        """What a GPU-hour of these nodes costs, from each instant on where it is another; empty where none of
        them has a price. Where they are of several rates, it is their mean by GPU time."""
        found: dict[str, LedgerRateSpan] = {}
        for each in (span for node in nodes for span in self.spans.get(node, ())):
            old = found.get(each.rate_id, each._replace(board_ms=0))
            found[each.rate_id] = LedgerRateSpan(
                each.rate_id,
                min(old.start_ms, each.start_ms),
                max(old.end_ms, each.end_ms),
                old.board_ms + each.board_ms,
            )
        spans = [each for each in found.values() if each.rate_id in self.rates and each.board_ms]
        edges = sorted({edge for each in spans for edge in (each.start_ms, each.end_ms)})
        steps: list[tuple[int, Fraction]] = []
        for low, _ in pairwise(edges):
            weights = {
                each.rate_id: Fraction(each.board_ms, each.end_ms - each.start_ms)
                for each in spans
                if each.start_ms <= low < each.end_ms
            }
            if not weights:
                continue
            price = sum(weight * self.rates[name] for name, weight in weights.items()) / sum(weights.values())
            if not steps or steps[-1][1] != price:
                steps.append((low, Fraction(price)))
        return steps


def observed_prices(ledger: Ledger | None, cluster: str, window: Window) -> tuple[LedgerPrices | None, str]:
    """With why there are none, in words."""
    if ledger is None:
        return None, "prices: no ledger was asked"
    try:
        return LedgerPrices.of(ledger, cluster, window), ""
    except InputError as error:
        return None, f"prices: {error}"


def _cost(frame: pd.DataFrame) -> LedgerCost | None:
    if frame.empty or frame["unpriced_ms"].sum():
        return None
    held = frame[frame["bucket"] == Bucket.HELD]
    sums = (int(each[name].sum()) for each in (frame, held) for name in ("board_ms", "nano"))
    return LedgerCost(*sums)
