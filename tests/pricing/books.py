"""Small price books and nodes for tests; dates are fixed."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import yaml

from gpucost.domain.rates import NodeFacts, Rate, RateSpan
from gpucost.domain.time import HOUR_MS, Window, parse_day_or_instant
from gpucost.pricing.price_book import PriceBook

SOURCE = {"source": "test list", "retrieved": "2026-11-21"}


def price(per_hour: str | None = "2.50", **more: Any) -> dict[str, Any]:
    """A row of ``prices``; keyed by model H100 unless it says otherwise."""
    key = {} if {"model", "instance_type"} & more.keys() else {"model": "H100"}
    amount = {} if per_hour is None else {"per_hour": per_hour}
    return {**key, **amount, **SOURCE, **more}


def book(*prices: dict[str, Any], **more: Any) -> PriceBook:
    content: dict[str, Any] = {"version": 1, "currency": "USD", **more}
    if prices:
        content["prices"] = list(prices)
    return PriceBook.parse(yaml.safe_dump(content), "prices.yaml")


def h100(**more: Any) -> NodeFacts:
    facts: dict[str, Any] = {"cluster": "c", "node": "n1", "model": "H100", "boards": 8}
    return NodeFacts(**(facts | more))


def window(start: str = "2026-10-01", end: str = "2026-10-02") -> Window:
    return Window(parse_day_or_instant(start), parse_day_or_instant(end))


def only_rate(spans: Sequence[RateSpan]) -> Rate:
    [span] = spans
    assert span.rate is not None, span.reason
    return span.rate


def cost(spans: Sequence[RateSpan], boards: int = 1) -> Fraction:
    """What GPUs held over the spans cost, in nano-units, exactly."""
    total = Fraction(0)
    for span in spans:
        assert span.rate is not None, span.reason
        total += Fraction(span.rate.nano_per_board_hour * (span.end_ms - span.start_ms) * boards, HOUR_MS)
    return total
