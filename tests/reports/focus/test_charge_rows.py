"""Rows of origins: the specification's worked example, and what every split must hold."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.domain.buckets import Bucket
from gpucost.domain.money import NANO, plain
from gpucost.domain.rates import Rate
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window, parse_instant
from gpucost.reports.focus.charge_rows import (
    AllocationMethod,
    CommitmentPortion,
    CommitmentTerms,
    HeldUsage,
    HolderKey,
    PlaceKey,
    UsageStep,
    cell_key,
    method_of,
    split_rows,
)
from gpucost.reports.focus.exact_products import (
    dealt,
    exact_quantity,
    exact_ratios,
    nano_of,
    number_text,
    product_of,
)
from gpucost.reports.focus.focus_columns import FocusDataset, FocusVersion, columns_of
from gpucost.reports.focus.focus_files import to_csv
from tests.support.focus_rules import breaches, rows_of

DAY = Window(parse_instant("2026-06-01T00:00:00Z"), parse_instant("2026-06-02T00:00:00Z"))
JUNE = Month(2026, 6).window
HOST = PlaceKey("aura", "host-aura-prod-07", "", "", "reserved", "", "", "", "host")


def host_rate(price: int = 12 * NANO) -> Rate:
    return Rate("host", price, "USD", price, "model", "list", "2026-01-01")


def used(board_ms: int, nano: int | None, **more: Any) -> HeldUsage:
    times = {"first_ms": DAY.start_ms, "last_ms": DAY.end_ms}
    return HeldUsage(board_ms, nano, methods={AllocationMethod.WHOLE}, **times | more)


def holder(pod: str, team: str = "aura") -> HolderKey:
    return HolderKey("held", team, "apps", "Deployment", pod, pod)


def test_the_worked_split_example_to_the_cent() -> None:
    """A host of 24 hours, 12 a list and 10 by a reservation that paid all of it, among three pods."""
    parts = {"api-gateway": Decimal("0.5"), "data-ingest": Decimal("0.3"), "ml-train": Decimal("0.2")}
    usage = {holder(pod): used(int(ratio * DAY_MS), int(ratio * 288 * NANO)) for pod, ratio in parts.items()}
    cell = ("aura", "", "", "reserved", "host", "aura")
    step = UsageStep(
        period=DAY,
        month=JUNE,
        currency="USD",
        usage={HOST: usage},
        rates={"host": host_rate()},
        portions={cell: [CommitmentPortion("rr", "used", DAY_MS, DAY_MS, 240 * NANO)]},
        terms={"rr": CommitmentTerms("rr", "reservation", is_spend=False)},
    )
    version = FocusVersion.V1_3
    columns = columns_of(FocusDataset.COST_AND_USAGE, version)
    rows = rows_of(to_csv(columns, [split_rows(step)]))
    assert not breaches(version, FocusDataset.COST_AND_USAGE, rows)
    cents = ("EffectiveCost", "ListCost", "ContractedCost", "BilledCost", "ListUnitPrice")
    assert [[round(Decimal(row[name]), 2) for name in cents] for row in rows] == [
        [Decimal(text) for text in line]
        for line in (
            ("120", "144", "144", "0", "12"),
            ("72", "86.4", "86.4", "0", "12"),
            ("48", "57.6", "57.6", "0", "12"),
        )
    ]
    details = [json.loads(row["AllocatedMethodDetails"])["Elements"][0] for row in rows]
    assert [each["AllocatedRatio"] for each in details] == [0.5, 0.3, 0.2]
    assert {row["ResourceId"] for row in rows} == {"aura/host-aura-prod-07"}
    assert [row["AllocatedResourceName"] for row in rows] == [f"apps/{pod}" for pod in parts]
    assert {row["CommitmentDiscountStatus"] for row in rows} == {"Used"}


@pytest.mark.parametrize(
    ("resource", "profile", "basis", "share", "method"),
    [
        ("nvidia.com/gpu", "", "compute", (1, 1), "whole"),
        ("nvidia.com/mig-1g.10gb", "1g.10gb", "compute", (1, 7), "mig-compute"),
        ("nvidia.com/mig-1g.10gb", "1g.10gb", "memory", (1, 8), "mig-memory"),
        ("nvidia.com/gpu.shared", "", "compute", (1, 4), "shared-equal"),
        ("gpu.nvidia.com.dra-time", "", "compute", (1, 100_800), "shared-equal"),
        ("gpu.nvidia.com.dra-claim", "", "compute", (1, 100_800), "shared-equal"),
        ("gpu.nvidia.com.dra-capacity", "", "compute", (1, 100_800), "dra-capacity"),
        ("nvidia.com/gpu.gpu-fraction", "", "compute", (1, 100_800), "dra-capacity"),
        ("__remainder__", "", "compute", (1, 1), None),
    ],
)
def test_every_way_of_sharing_has_a_method(
    resource: str, profile: str, basis: str, share: tuple[int, int], method: str | None
) -> None:
    assert method_of(resource, profile, basis, share) == method


@given(st.integers(0, 10**15), st.integers(1, 10**13))
def test_price_times_quantity_is_the_cost_in_float64(nano: int, price: int) -> None:
    quantity = exact_quantity(nano, price, 0.0)
    cost = product_of(quantity, price)
    written = number_text(cost) if isinstance(cost, float) else plain(cost)
    assert float(plain(price)) * float(number_text(quantity)) == float(written)
    assert nano_of(cost) == nano
    assert "e" not in written
    assert float(number_text(quantity)) == quantity


_PRICES = (
    *(("ListCost", "ListUnitPrice"), ("ContractedCost", "ContractedUnitPrice")),
    *(("ListCost", "PricingCurrencyListUnitPrice"), ("ContractedCost", "PricingCurrencyContractedUnitPrice")),
)


@given(
    st.integers(1, 10**13),
    st.integers(0, 10**13),
    st.lists(st.tuples(st.integers(1, 8 * DAY_MS), st.integers(-1, 1)), min_size=1, max_size=5),
)
def test_every_price_times_the_quantity_is_its_cost_as_a_validator_multiplies(
    price: int, discount: int, parts: list[tuple[int, int]]
) -> None:
    """Lines are apportioned, so that a cost is a nano-unit off GPU time at its price."""
    rate = Rate("r", price, "USD", price + discount, "model", "", "")
    key = place("r")
    usage = {
        holder(f"pod-{at}"): used(board_ms, max(0, board_ms * price // HOUR_MS + off))
        for at, (board_ms, off) in enumerate(parts)
    }
    batch = split_rows(UsageStep(DAY, JUNE, "USD", {key: usage}, {"r": rate}))
    rows = rows_of(to_csv(columns_of(FocusDataset.COST_AND_USAGE, FocusVersion.V1_3), [batch]))
    for row, each in zip(rows, usage.values(), strict=True):
        for cost, unit in _PRICES:
            assert float(row[cost]) == float(row[unit]) * float(row["PricingQuantity"])
        assert round(Decimal(row["ContractedCost"]) * NANO) == each.nano
        # At list prices as much is off as in the discounted line, in proportion.
        exact = Decimal(each.board_ms) * (price + discount) / HOUR_MS
        most = (2 + Decimal("1e-15") * exact) * (price + discount) / price + 1
        assert abs(Decimal(row["ListCost"]) * NANO - exact) <= most


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=50))
def test_ratios_add_up_to_one(weights: list[int]) -> None:
    ratios = exact_ratios(weights)
    assert sum(ratios) == 10**12
    assert min(ratios) >= 0
    whole = sum(weights)
    if whole:
        assert all(abs(r * whole - 10**12 * w) < whole for r, w in zip(ratios, weights, strict=True))


@given(st.integers(-(10**15), 10**15), st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_amounts_are_dealt_whole(total: int, weights: list[int]) -> None:
    parts = dealt(total, weights)
    assert sum(parts) == total
    whole = sum(weights)
    if whole:
        assert all(abs(p * whole - total * w) < whole for p, w in zip(parts, weights, strict=True))


_TIMES = st.integers(1, 3) | st.integers(1, 8 * DAY_MS)
_DRAWS = (("a", "used"), ("a", "overage"), ("b", "used"), ("", "on_demand"))


@given(
    st.lists(st.tuples(st.sampled_from(("n1", "n2")), _TIMES), min_size=1, max_size=6),
    st.lists(st.integers(0, 2) | st.integers(0, 10**12), min_size=3, max_size=3),
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=3, max_size=3),
)
def test_what_each_contract_paid_is_in_its_rows_however_little_time_it_paid_for(
    parts: list[tuple[str, int]], times: list[int], amounts: list[tuple[int, int]]
) -> None:
    """Also for the commitment that was drawn on by less than a millisecond, and for other teams' nothing."""
    usage: dict[PlaceKey, dict[HolderKey, HeldUsage]] = {}
    for at, (node, board_ms) in enumerate(parts):
        usage.setdefault(place("a", node), {})[holder(f"pod-{at}")] = used(board_ms, board_ms)
    left, portions = sum(board_ms for _, board_ms in parts), []
    for (contract, draw), board_ms, (quantity, nano) in zip(_DRAWS, times, amounts, strict=False):
        portions.append(CommitmentPortion(contract, draw, min(board_ms, left), quantity, nano))
        left -= min(board_ms, left)
    if left:
        portions.append(CommitmentPortion(*_DRAWS[-1], left, 0, left))
    cell = cell_key(place("a"), holder("pod"))
    terms = {name: CommitmentTerms(name, "reservation", is_spend=False) for name in ("a", "b")}
    others = (*cell[:-1], "another team")
    step = replace(step_of(usage), portions={cell: portions, others: portions}, terms=terms)
    columns = columns_of(FocusDataset.COST_AND_USAGE, FocusVersion.V1_3)
    rows = rows_of(to_csv(columns, [split_rows(step)]))
    assert not breaches(FocusVersion.V1_3, FocusDataset.COST_AND_USAGE, rows)
    spent, drawn = Counter[str](), Counter[str]()
    for row in rows:
        contract, draw = row["x_OriginId"].split("|")[-2:]
        spent[f"{contract} {draw}"] += int(Decimal(row["EffectiveCost"]) * NANO)
        drawn[contract] += round(Decimal(row["CommitmentDiscountQuantity"] or 0) * HOUR_MS)
        assert row["BilledCost"] == ("0.000000000" if draw == "used" else row["EffectiveCost"])
    assert spent == Counter({f"{each.contract} {each.draw}": each.nano for each in portions})
    assert drawn == Counter({each.contract: each.quantity for each in portions if each.draw == "used"})
    assert sum(Decimal(row["ConsumedQuantity"]) * 1000 for row in rows) == sum(ms for _, ms in parts)


def place(rate_id: str, node: str = "n1") -> PlaceKey:
    return PlaceKey("prod", node, "H100", "", "", "", "", "", rate_id)


def step_of(usage: dict[PlaceKey, dict[HolderKey, HeldUsage]]) -> UsageStep:
    rates = {name: Rate(name, NANO, "USD", NANO, "model", "", "") for name in ("a", "b")}
    return UsageStep(DAY, JUNE, "USD", usage, rates)


def test_a_price_that_changes_in_the_day_cuts_it() -> None:
    noon = DAY.start_ms + 12 * HOUR_MS
    before = used(12 * HOUR_MS, 12 * NANO, last_ms=noon)
    after = used(12 * HOUR_MS, 12 * NANO, first_ms=noon)
    rows = split_rows(step_of({place("a"): {holder("x"): before}, place("b"): {holder("x"): after}})).dicts()
    spans = [(row["ChargePeriodStart"], row["ChargePeriodEnd"]) for row in rows]
    assert spans == [(DAY.start_ms, noon), (noon, DAY.end_ms)]
    assert {row["ResourceId"] for row in rows} == {"prod/n1/H100"}


def test_two_prices_at_once_are_two_resources() -> None:
    usage = {place(name): {holder("x"): used(HOUR_MS, NANO)} for name in ("a", "b")}
    rows = split_rows(step_of(usage)).dicts()
    assert [row["ResourceId"] for row in rows] == ["prod/n1/H100@a", "prod/n1/H100@b"]


def test_time_without_a_price_has_no_cost_and_no_zero() -> None:
    usage = {place(""): {holder("x"): used(HOUR_MS, None, unpriced_ms=HOUR_MS)}}
    [row] = split_rows(step_of(usage)).dicts()
    costs = ("BilledCost", "EffectiveCost", "ContractedCost", "ListCost", "ListUnitPrice", "PricingQuantity")
    assert [row[name] for name in costs] == [None] * 6
    assert row["ConsumedQuantity"] == HOUR_MS


def test_what_nobody_held_is_a_row_without_a_tenant() -> None:
    usage = {place("a"): {holder("x"): used(HOUR_MS, NANO), HolderKey("unallocated"): used(HOUR_MS, NANO)}}
    rows = split_rows(step_of(usage)).dicts()
    idle = [row for row in rows if row["x_Bucket"] == Bucket.UNALLOCATED]
    assert [(row["AllocatedMethodId"], row["AllocatedResourceId"]) for row in idle] == [("whole", None)]
    assert '"AllocatedRatio":0.5' in str(idle[0]["AllocatedMethodDetails"])
