"""OpenCost's node prices as a source of rates: beside a price book, before it, or not at all."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf, nan

import pytest

from gpucost.domain.rates import MAX_NANO_PER_BOARD_HOUR, NodeFacts, RateSpan
from gpucost.domain.time import DAY_MS, HOUR_MS, Window, parse_instant
from gpucost.pricing.opencost_prices import (
    ObservedNode,
    ObservedPriceBasis,
    ObservedPriceMode,
    ObservedPrices,
    OpenCostRates,
    PriceStep,
    RateLookup,
)
from gpucost.pricing.price_book import PriceBook

T0 = parse_instant("2026-10-06T00:00:00Z")
DAY = Window(T0, T0 + DAY_MS)
NOON = T0 + 12 * HOUR_MS
P5 = NodeFacts("east", "n1", "H100", 8, "p5.48xlarge", "on-demand")
L40S = NodeFacts("east", "n2", "L40S", 4, "g6e.24xlarge")
BOOK = PriceBook.parse(
    """
version: 1
currency: EUR
prices:
  - {model: H100, per_hour: "2.50", source: a test, retrieved: 2026-10-01}
""",
    "prices.yaml",
)


def always(value: float) -> tuple[PriceStep, ...]:
    return (PriceStep(DAY.start_ms, DAY.end_ms, value),)


def rates_of(
    prices: ObservedPrices,
    mode: ObservedPriceMode = ObservedPriceMode.FIRST,
    basis: ObservedPriceBasis = ObservedPriceBasis.TOTAL,
    book: PriceBook = BOOK,
) -> RateLookup:
    return OpenCostRates(lambda *_: prices, book.rates, mode, book.currency, basis)


def one(prices: ObservedPrices, node: NodeFacts = P5, **options: object) -> RateSpan:
    (span,) = rates_of(prices, **options)(node, DAY)  # type: ignore[arg-type]
    return span


@pytest.mark.vector("V2")
def test_the_whole_price_of_a_node_follows_its_boards() -> None:
    span = one({("east", "n1"): ObservedNode(total=always(55.04), gpu=always(2.33985))})
    rate = span.rate
    assert (span.start_ms, span.end_ms) == (DAY.start_ms, DAY.end_ms)
    assert rate is not None
    assert (rate.nano_per_board_hour, rate.list_nano_per_board_hour) == (6_880_000_000, 6_880_000_000)
    assert (rate.currency, rate.matched_by, rate.retrieved) == ("EUR", "node", "2026-10")
    assert rate.source == "OpenCost node_total_hourly_cost / 8 boards"
    assert rate.pricing_category == "Standard"
    assert rate.rate_id.startswith("OpenCost/total@")


@pytest.mark.vector("V2")
def test_the_basis_gpu_takes_what_opencosts_split_leaves() -> None:
    prices = {("east", "n1"): ObservedNode(total=always(55.04), gpu=always(2.33985))}
    rate = one(prices, replace(P5, boards=None), basis=ObservedPriceBasis.GPU).rate
    assert rate is not None
    assert (rate.nano_per_board_hour, rate.source) == (2_339_850_000, "OpenCost node_gpu_hourly_cost")


@pytest.mark.parametrize(
    ("node_price", "is_told"),
    [(0.03168, True), (3.99, True), (4.0, False), (55.04, False), (100.0, False), (100.01, True)],
)
def test_a_price_more_than_five_times_from_the_books_is_told_either_way(
    node_price: float, is_told: bool
) -> None:
    """2.50 by the book; the prices of an OpenCost that says 0.00396 were never set."""
    prices = {("east", "n1"): ObservedNode(total=always(node_price))}
    span = one(prices)
    assert bool(span.doubt) is is_told
    assert span.rate is not None
    assert span.rate.nano_per_board_hour == round(node_price / 8 * 10**9)  # it is used all the same
    if is_told:
        said = f"{node_price / 8:.9f}".rstrip("0").rstrip(".")
        assert f"{said} EUR per GPU-hour by OpenCost node_total_hourly_cost / 8 boards" in span.doubt
        assert "but 2.5 by the price book (H100): more than 5 times apart" in span.doubt
        assert "pricing.opencost to fallback" in span.doubt
    # With the book first it is the book's; where the book has none, there is nothing to hold it to.
    assert one(prices, mode=ObservedPriceMode.FALLBACK).doubt == ""
    assert one({("east", "n2"): ObservedNode(total=always(node_price))}, L40S).doubt == ""


def test_a_doubt_lasts_as_long_as_the_books_price_that_it_is_about() -> None:
    book = PriceBook.parse(
        """
version: 1
currency: EUR
prices:
  - {model: H100, per_hour: "20", source: a test, retrieved: 2026-10-01, valid_to: 2026-10-06T12:00:00Z}
  - {model: H100, per_hour: "7", source: a test, retrieved: 2026-10-01, valid_from: 2026-10-06T12:00:00Z}
""",
        "prices.yaml",
    )
    spans = rates_of({("east", "n1"): ObservedNode(total=always(16.0))}, book=book)(P5, DAY)
    assert [(span.start_ms, bool(span.doubt)) for span in spans] == [(T0, True), (NOON, False)]
    assert spans[0].rate == spans[1].rate


def test_a_price_is_divided_exactly_and_rounded_once() -> None:
    rate = one({("east", "n1"): ObservedNode(total=always(10.0))}, replace(P5, boards=3)).rate
    assert rate is not None
    assert rate.nano_per_board_hour == 3_333_333_333


@pytest.mark.vector("V7")
@pytest.mark.parametrize("boards", [None, 0, -1])
def test_without_boards_there_is_no_price_and_never_a_guess(boards: int | None) -> None:
    span = one({("east", "n2"): ObservedNode(total=always(15.0))}, replace(L40S, boards=boards))
    assert span.rate is None
    assert "how many boards the node has is not known" in span.reason


@pytest.mark.parametrize(
    ("value", "why"),
    [(value, "is no price") for value in (0.0, -1.0, nan, inf)]
    + [(value, "no board costs per hour") for value in (1e-12, 9e12)],
)
def test_what_is_no_price_is_said_and_not_billed(value: float, why: str) -> None:
    span = one({("east", "n2"): ObservedNode(total=always(value))}, L40S)
    assert span.rate is None
    assert f"OpenCost says node_total_hourly_cost is {value:g}, which {why}; " in span.reason


def test_the_dearest_price_that_a_rate_takes() -> None:
    most = MAX_NANO_PER_BOARD_HOUR // 10**9
    rate = one({("east", "n2"): ObservedNode(total=always(4.0 * most))}, L40S).rate
    assert rate is not None
    assert rate.nano_per_board_hour == MAX_NANO_PER_BOARD_HOUR


@pytest.mark.vector("V23")
def test_a_change_of_price_splits_the_window_at_its_instant() -> None:
    steps = (PriceStep(DAY.start_ms, NOON, 16.0), PriceStep(NOON, DAY.end_ms, 24.0))
    spans = rates_of({("east", "n1"): ObservedNode(total=steps)})(P5, DAY)
    found = [(s.start_ms, s.end_ms, s.rate.nano_per_board_hour if s.rate else None) for s in spans]
    assert found == [(DAY.start_ms, NOON, 2 * 10**9), (NOON, DAY.end_ms, 3 * 10**9)]
    bill = sum((end - start) // HOUR_MS * (nano or 0) for start, end, nano in found)
    assert bill == 60 * 10**9


def test_the_same_value_seen_twice_is_one_span() -> None:
    steps = (PriceStep(DAY.start_ms, NOON, 16.0), PriceStep(NOON, DAY.end_ms, 16.0))
    assert len(rates_of({("east", "n1"): ObservedNode(total=steps)})(P5, DAY)) == 1
    other = (
        PriceStep(DAY.start_ms, DAY.start_ms + HOUR_MS, 24.0),
        PriceStep(DAY.start_ms + HOUR_MS, NOON, 16.0),
    )
    assert len(rates_of({("east", "n1"): ObservedNode(total=other + steps[1:])})(P5, DAY)) == 2


@pytest.mark.parametrize(
    ("spot", "capacity_type", "category"),
    [(1.0, "", "Dynamic"), (0.0, "spot", "Standard"), (None, "spot", "Dynamic"), (None, "", "Standard")],
)
def test_a_spot_node_has_a_dynamic_price(spot: float | None, capacity_type: str, category: str) -> None:
    found = ObservedNode(total=always(8.0), spot=() if spot is None else always(spot))
    rate = one({("east", "n1"): found}, replace(P5, capacity_type=capacity_type)).rate
    assert rate is not None
    assert rate.pricing_category == category


def test_modes_say_who_comes_first() -> None:
    prices = {("east", "n1"): ObservedNode(total=always(55.04)), ("east", "n2"): ObservedNode(always(15.0))}
    for mode, p5, l40s in (
        (ObservedPriceMode.OFF, 2_500_000_000, None),
        (ObservedPriceMode.FALLBACK, 2_500_000_000, 3_750_000_000),
        (ObservedPriceMode.FIRST, 6_880_000_000, 3_750_000_000),
    ):
        found = [one(prices, node, mode=mode).rate for node in (P5, L40S)]
        assert [rate and rate.nano_per_board_hour for rate in found] == [p5, l40s], mode


def test_where_neither_has_a_price_both_say_why() -> None:
    span = one({}, L40S, mode=ObservedPriceMode.FALLBACK)
    assert span.rate is None
    assert span.reason.startswith("no price for model L40S")
    assert span.reason.endswith("; OpenCost has no node_total_hourly_cost of this node")


def test_gaps_are_filled_by_the_other_source_and_nothing_else() -> None:
    prices = {("east", "n1"): ObservedNode(total=(PriceStep(NOON, DAY.end_ms, 55.04),))}
    spans = rates_of(prices)(P5, DAY)
    assert [(s.start_ms, s.rate and s.rate.nano_per_board_hour) for s in spans] == [
        (DAY.start_ms, 2_500_000_000),
        (NOON, 6_880_000_000),
    ]
    (first, _) = rates_of(prices, book=BOOK)(replace(P5, model="H300"), DAY)
    assert "at that time" in first.reason
    assert "no price for model H300" in first.reason


def test_ids_are_of_the_value_and_the_same_every_time() -> None:
    prices = {(c, n): ObservedNode(total=always(v)) for c, n, v in (("east", "n1", 8.0), ("west", "n9", 8.0))}
    east = one(prices).rate
    west = one(prices, replace(P5, cluster="west", node="n9")).rate
    assert east == west
    dearer = one({("east", "n1"): ObservedNode(total=always(8.000000008))}).rate
    assert east is not None
    assert dearer is not None
    assert dearer.rate_id != east.rate_id
    assert re.fullmatch("OpenCost/total@[0-9a-f]{10}", east.rate_id)


def test_a_rate_says_its_month() -> None:
    end = parse_instant("2026-11-01T00:00:00Z")
    window = Window(end - DAY_MS, end + DAY_MS)
    found = ObservedNode(total=(PriceStep(window.start_ms, window.end_ms, 8.0),))
    spans = rates_of({("east", "n1"): found})(P5, window)
    assert [(s.start_ms, s.rate and s.rate.retrieved) for s in spans] == [
        (window.start_ms, "2026-10"),
        (end, "2026-11"),
    ]


def test_days_are_read_once_when_they_are_needed() -> None:
    asked: list[tuple[str, Window]] = []

    def read(cluster: str, window: Window) -> ObservedPrices:
        asked.append((cluster, window))
        return {("east", "n2"): ObservedNode(total=(PriceStep(window.start_ms, window.end_ms, 15.0),))}

    rates = OpenCostRates(read, BOOK.rates, ObservedPriceMode.FALLBACK, "EUR")
    assert rates(P5, DAY)[0].rate == BOOK.rates(P5, DAY)[0].rate
    assert asked == []
    two_days = Window(T0, T0 + 2 * DAY_MS)
    (span,) = rates(L40S, two_days)
    assert span.rate is not None
    assert (span.start_ms, span.end_ms) == (two_days.start_ms, two_days.end_ms)
    rates(L40S, Window(T0 + HOUR_MS, T0 + 2 * HOUR_MS))
    assert asked == [("east", DAY), ("east", Window(DAY.end_ms, DAY.end_ms + DAY_MS))]


def test_a_day_that_has_not_ended_is_read_again_for_its_rest() -> None:
    asked: list[Window] = []

    def read(cluster: str, window: Window) -> ObservedPrices:
        del cluster
        asked.append(window)
        return {}

    rates = OpenCostRates(read, BOOK.rates, ObservedPriceMode.FIRST, "EUR")
    for end in (HOUR_MS // 4, HOUR_MS, 2 * HOUR_MS, HOUR_MS):
        rates(P5, Window(T0 + end - 1, T0 + end))
    assert asked == [Window(T0, T0 + HOUR_MS), Window(T0, T0 + 2 * HOUR_MS)]


@pytest.mark.vector("V5")
def test_a_price_per_gpu_is_that_of_each_gpu() -> None:
    rate = one(
        {("east", "n1"): ObservedNode(gpu=always(2.0))}, replace(P5, boards=2), basis=ObservedPriceBasis.GPU
    ).rate
    assert rate is not None
    assert rate.nano_per_board_hour * 2 == 4 * 10**9
