"""Prices of nodes out of OpenCost's series, as one more source of rates beside the price book. Pure.

The whole node's price follows its GPUs, as in the price book: a GPU costs what the node costs divided by its
GPUs. Where the number of GPUs is unknown there is no price, and the span gives the reason.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from itertools import pairwise

from gpucost.contract.opencost import NODE_GPU, NODE_TOTAL
from gpucost.domain.money import NANO, plain
from gpucost.domain.rates import MAX_NANO_PER_BOARD_HOUR, NodeFacts, Rate, RateLookup, RateSpan
from gpucost.domain.text import counted
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window

_MOST_DAYS = 100
PLAUSIBLE_FACTOR = 5
"""A price that differs from the book's by more than this factor, either way, is reported: OpenCost's default
price, which applies until one is configured, is a thousandth of it."""


class ObservedPriceMode(StrEnum):
    """When these prices apply: never, where the book has none, or before the book."""

    OFF = "off"
    FALLBACK = "fallback"
    FIRST = "first"


class ObservedPriceBasis(StrEnum):
    """The whole node's price divided by its GPUs, or what OpenCost's split leaves for one GPU."""

    TOTAL = "total"
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class PriceStep:
    """A value from ``start_ms`` until ``end_ms``."""

    start_ms: int
    end_ms: int
    value: float


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """The prices of one node as they were observed, per hour and in the currency that OpenCost was configured
    with: the whole node, one GPU of it, and whether it is a spot node (1) or not (0). Steps do not overlap;
    between them nothing was observed for too long.
    """

    total: tuple[PriceStep, ...] = ()
    gpu: tuple[PriceStep, ...] = ()
    spot: tuple[PriceStep, ...] = ()


ObservedPrices = Mapping[tuple[str, str], ObservedNode]
"""By (cluster, node)."""


@dataclass
class OpenCostRates:
    """The rates of a book with observed prices as a further source; ``currency`` is the book's. Prices are
    read when they are needed: by cluster and UTC day, once.

    ``read`` is given windows of at most a day. Of a day that was read before it had ended, the rest is read
    when it is needed. Errors of ``read`` are those of a call.
    """

    read: Callable[[str, Window], ObservedPrices]
    book_rates: RateLookup
    mode: ObservedPriceMode
    currency: str
    basis: ObservedPriceBasis = ObservedPriceBasis.TOTAL
    _days: dict[tuple[str, int], tuple[int, ObservedPrices]] = field(default_factory=dict, repr=False)

    def __call__(self, node: NodeFacts, window: Window) -> Sequence[RateSpan]:
        return _combined(self.book_rates, self._observed, self.mode)(node, window)

    def _observed(self, node: NodeFacts, window: Window) -> tuple[RateSpan, ...]:
        spans: list[RateSpan] = []
        for day in window.split(DAY_MS):
            found = self._day(node.cluster, day)
            spans += observed_spans(found, node, day, self.currency, self.basis)
        return _joined(spans)

    def _day(self, cluster: str, asked: Window) -> ObservedPrices:
        start = asked.start_ms // DAY_MS * DAY_MS
        until = -(-asked.end_ms // HOUR_MS) * HOUR_MS
        known = self._days.get((cluster, start))
        if known is None or known[0] < until:
            known = until, self.read(cluster, Window(start, until))
            self._days[cluster, start] = known
            while len(self._days) > _MOST_DAYS:
                del self._days[next(iter(self._days))]  # the one that was read first
        return known[1]


def observed_spans(
    prices: ObservedPrices, node: NodeFacts, window: Window, currency: str, basis: ObservedPriceBasis
) -> tuple[RateSpan, ...]:
    """The rates of a node over ``window`` by its observed prices alone, or why it has none."""
    found = prices.get((node.cluster, node.node), ObservedNode())
    steps = found.total if basis is ObservedPriceBasis.TOTAL else found.gpu
    edges = {edge for step in (*steps, *found.spot) for edge in (step.start_ms, step.end_ms)}
    edges |= _months(window)  # a rate names the month in which it was observed
    inside = sorted({window.start_ms, window.end_ms, *(e for e in edges if _is_inside(e, window))})
    spans = []
    for start, end in pairwise(inside):
        value, spot = _value_at(steps, start), _value_at(found.spot, start)
        is_spot = node.capacity_type == "spot" if spot is None else spot > 0
        rate, reason = _rate(node, value, basis, currency, Month.of(start), is_spot)
        if value is None and steps:
            reason = f"OpenCost has no {_name(basis)} of this node at that time"
        spans.append(RateSpan(start, end, rate, reason))
    return _joined(spans)


def _rate(
    node: NodeFacts,
    value: float | None,
    basis: ObservedPriceBasis,
    currency: str,
    month: Month,
    is_spot: bool,
) -> tuple[Rate | None, str]:
    name = _name(basis)
    if value is None:
        return None, f"OpenCost has no {name} of this node"
    if not math.isfinite(value) or value <= 0:
        return None, f"OpenCost says {name} is {value:g}, which is no price"
    divisor, source = 1, f"OpenCost {name}"
    if basis is ObservedPriceBasis.TOTAL:
        if not node.boards or node.boards < 0:
            return None, f"OpenCost has {name}, but how many boards the node has is not known"
        divisor, source = node.boards, f"OpenCost {name} / {counted(node.boards, 'board')}"
    nano = round(exact_nano(value) / divisor)
    if not 0 < nano <= MAX_NANO_PER_BOARD_HOUR:
        return None, f"OpenCost says {name} is {value:g}, which no board costs per hour"
    rate = Rate(
        rate_id="",
        nano_per_board_hour=nano,
        currency=currency,
        list_nano_per_board_hour=nano,
        matched_by="node",
        source=source,
        retrieved=str(month),
        pricing_category="Dynamic" if is_spot else "Standard",
    )
    digest = hashlib.sha256(json.dumps(asdict(rate), sort_keys=True).encode()).hexdigest()[:10]
    return replace(rate, rate_id=f"OpenCost/{basis.value}@{digest}"), ""


def exact_nano(value: float) -> Fraction:
    """Nano-units of a price as it was written: 55.04 is 55,040,000,000, not the binary value of the float."""
    return Fraction(Decimal(repr(value))) * NANO


def _combined(book: RateLookup, observed: RateLookup, mode: ObservedPriceMode) -> RateLookup:
    """Rates of one source first, and of the other for the stretches in which the first has none. Where
    OpenCost's is first, it is in force whatever the book says, and carries a doubt where the two are far
    apart.
    """
    if mode is ObservedPriceMode.OFF:
        return book
    first, second = (book, observed) if mode is ObservedPriceMode.FALLBACK else (observed, book)

    def rates(node: NodeFacts, window: Window) -> tuple[RateSpan, ...]:
        spans: list[RateSpan] = []
        for span in first(node, window):
            if span.rate is not None:
                spans += (
                    [span] if mode is ObservedPriceMode.FALLBACK else _doubted(span, span.rate, second, node)
                )
                continue
            for other in second(node, Window(span.start_ms, span.end_ms)):
                reason = "" if other.rate else "; ".join(filter(None, (span.reason, other.reason)))
                spans.append(replace(other, reason=reason))
        return _joined(spans)

    return rates


def _doubted(span: RateSpan, rate: Rate, book: RateLookup, node: NodeFacts) -> list[RateSpan]:
    """``span`` cut where the book's price changes, each part with what has to be said of both prices."""
    return [
        replace(span, start_ms=each.start_ms, end_ms=each.end_ms, doubt=_doubt(rate, each.rate))
        for each in book(node, Window(span.start_ms, span.end_ms))
    ]


def _doubt(rate: Rate, listed: Rate | None) -> str:
    """Why OpenCost's price may be unintended, compared with the book's before discounts; empty where it is
    plausible."""
    if listed is None:
        return ""
    theirs, ours = rate.nano_per_board_hour, listed.list_nano_per_board_hour
    low, high = sorted((theirs, ours))
    if not low or high <= PLAUSIBLE_FACTOR * low:
        return ""
    said, told = (format(Decimal(plain(nano)).normalize(), "f") for nano in (theirs, ours))
    row = listed.rate_id.partition("@")[0]
    return (
        f"{said} {rate.currency} per GPU-hour by {rate.source}, but {told} by the price book ({row}): more "
        f"than {PLAUSIBLE_FACTOR} times apart. OpenCost's is used, since pricing.opencost is first: set "
        "OpenCost's prices, or pricing.opencost to fallback"
    )


def _joined(spans: Iterable[RateSpan]) -> tuple[RateSpan, ...]:
    """Spans in order, adjacent ones that are equal but for their times joined."""
    found: list[RateSpan] = []
    for span in spans:
        if found and replace(found[-1], start_ms=span.start_ms, end_ms=span.end_ms) == span:
            span = replace(span, start_ms=found.pop().start_ms)
        found.append(span)
    return tuple(found)


def _value_at(steps: Sequence[PriceStep], instant_ms: int) -> float | None:
    return next((step.value for step in steps if step.start_ms <= instant_ms < step.end_ms), None)


def _months(window: Window) -> set[int]:
    """The starts of the months in ``window``."""
    found, month = set[int](), Month.of(window.start_ms)
    while month.window.end_ms < window.end_ms:
        month = month.next()
        found.add(month.window.start_ms)
    return found


def _is_inside(instant_ms: int, window: Window) -> bool:
    return window.start_ms < instant_ms < window.end_ms


def _name(basis: ObservedPriceBasis) -> str:
    return NODE_TOTAL if basis is ObservedPriceBasis.TOTAL else NODE_GPU
