"""The cost vectors that a price book answers: inputs and results as in the reference."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.domain.errors import InputError
from gpucost.domain.money import NANO, parse_nano, plain
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Window
from gpucost.pricing.price_rows import gpu_fraction
from tests.pricing.books import SOURCE, book, cost, h100, only_rate, price, window
from tests.support.cost_vectors import ClusterCost, committed_gpus, split_by_ratio, split_commitment

HOST = {"vcpu": 192, "gib": 2048, "weights": {"gpu": "0.95", "vcpu": "0.031611", "gib": "0.004237"}}


def parts(**numbers: object) -> dict[str, Fraction]:
    return {kind: Fraction(str(number)) for kind, number in numbers.items()}


@pytest.mark.vector("V1")
def test_v1_a_node_price_keeps_the_ratio_of_its_base_prices() -> None:
    split = split_by_ratio(35 * NANO, parts(gpu=1, vcpu=1, gib=1), parts(gpu=30, vcpu=30, gib=10))
    assert split == {"gpu": 15 * NANO, "vcpu": 15 * NANO, "gib": 5 * NANO}


@pytest.mark.vector("V2")
def test_v2_the_whole_node_follows_its_gpus_unless_the_book_says_otherwise() -> None:
    p5 = {"instance_type": "p5.48xlarge", "per": "instance", "gpus": 8}
    node = h100(instance_type="p5.48xlarge")
    gpu_first = only_rate(book(price("55.04", **p5)).rates(node, window()))
    assert gpu_first.nano_per_board_hour == parse_nano("6.88")
    by_ratio = only_rate(book(price("55.04", **p5, host=HOST)).rates(node, window()))
    assert plain(by_ratio.nano_per_board_hour, 5) == "2.33985"


@pytest.mark.vector("V2")
def test_v2_the_parts_of_the_ratio_split_add_up_to_the_node() -> None:
    amounts, weights = parts(gpu=8, vcpu=192, gib=2048), parts(**HOST["weights"])  # type: ignore[arg-type]
    split = split_by_ratio(parse_nano("55.04"), amounts, weights)
    assert {kind: plain(nano, 4) for kind, nano in split.items()} == {
        "gpu": "18.7188",
        "vcpu": "14.9487",
        "gib": "21.3724",
    }
    assert sum(split.values()) == parse_nano("55.04")
    assert abs(split["gpu"] - parse_nano("55.04") * gpu_fraction(amounts, weights)) < 1


@pytest.mark.vector("V3")
@pytest.mark.parametrize(
    ("amount", "hours", "rate"), [(8, 24, "2.50"), (1, 744, "6.88"), (3, 1, "0.000000001")]
)
def test_v3_an_asset_costs_amount_times_hours_times_rate(amount: int, hours: int, rate: str) -> None:
    start = window().start_ms
    spans = book(price(rate)).rates(h100(), Window(start, start + hours * HOUR_MS))
    assert cost(spans, amount) == amount * hours * parse_nano(rate)


@pytest.mark.vector("V3")
@given(
    st.integers(0, 10**15),
    st.dictionaries(st.sampled_from(["gpu", "vcpu", "gib", "network"]), st.integers(1, 4096), min_size=1),
)
def test_v3_a_node_is_the_sum_of_its_resources(nano: int, amounts: dict[str, int]) -> None:
    weights = parts(gpu="0.95", vcpu="0.031611", gib="0.004237", network="0.01")
    assert sum(split_by_ratio(nano, parts(**amounts), weights).values()) == nano


@pytest.mark.vector("V4")
@given(st.integers(0, 10**18), st.integers(0, 10**15), st.integers(0, 10**15), st.fractions(0, 1))
def test_v4_total_and_idle_are_identities(allocation: int, usage: int, overhead: int, part: Fraction) -> None:
    workload = int(allocation * part)
    cluster = ClusterCost(allocation, usage, overhead, workload)
    assert cluster.total_nano == allocation + usage + overhead
    assert cluster.idle_nano + workload == allocation
    assert cluster.idle_ratio == (1 - Fraction(workload, allocation) if allocation else None)


@pytest.mark.vector("V4")
@pytest.mark.parametrize("workload", [-1, 101])
def test_v4_idle_is_never_negative(workload: int) -> None:
    with pytest.raises(InputError, match="workload"):
        ClusterCost(100, 50, 10, workload)


@pytest.mark.vector("V5")
def test_v5_two_gpus_at_two_an_hour_cost_four() -> None:
    start = window().start_ms
    spans = book(price("2")).rates(h100(boards=2), Window(start, start + HOUR_MS))
    assert cost(spans, 2) == 4 * NANO


@pytest.mark.vector("V6")
def test_v6_a_price_by_the_month_is_spread_over_730_hours() -> None:
    monthly = book(price(None, per_month=500))
    rate = only_rate(monthly.rates(h100(boards=2), window()))
    assert rate.nano_per_board_hour == round(Fraction(500 * NANO, 730))
    # The reference doubles a price that it had rounded to six decimals; the node's exact price is 1.369863.
    assert 2 * parse_nano(plain(rate.nano_per_board_hour, 6)) == parse_nano("1.369864")


@pytest.mark.vector("V23")
@pytest.mark.fault(34)
def test_v23_a_price_that_changes_at_noon_splits_the_day() -> None:
    noon = "2026-10-01T12:00:00Z"
    changing = book(price("2.00", valid_to=noon), price("3.00", valid_from=noon))
    spans = changing.rates(h100(), window())
    assert [(span.end_ms - span.start_ms) // HOUR_MS for span in spans] == [12, 12]
    assert [cost([span]) for span in spans] == [24 * NANO, 36 * NANO]
    assert cost(spans) == 60 * NANO


@pytest.mark.vector("V24")
def test_v24_an_evicted_spot_node_costs_what_it_ran() -> None:
    spot = book(price("1.20", capacity_type="spot"), price("2.50", capacity_type="on-demand"))
    start = window().start_ms
    spans = spot.rates(h100(capacity_type="spot"), Window(start, start + 20 * MINUTE_MS))
    assert cost(spans, 4) == parse_nano("1.60")
    assert only_rate(spans).pricing_category == "Dynamic"


@pytest.mark.vector("V27")
def test_v27_a_negotiated_discount_reduces_the_gpu_price() -> None:
    discounted = book(price("6.88"), discounts=[{"name": "contract", "percent": 30}])
    rate = only_rate(discounted.rates(h100(), window()))
    assert rate.nano_per_board_hour == parse_nano("4.816")
    assert rate.list_nano_per_board_hour == parse_nano("6.88")
    assert rate.discount == "30 % contract"


COMMITMENT = {"model": "H100", "amount": 100, "period": "day", "gpu_hours": 40, **SOURCE}


@pytest.mark.vector("V28")
def test_v28_used_and_unused_add_up_to_the_bill() -> None:
    committed = book(commitments=[COMMITMENT])
    [commitment] = committed.commitments
    split = split_commitment(commitment.amount, commitment.gpu_hours * HOUR_MS, 30 * HOUR_MS)
    assert (split.used_nano, split.unused_nano, split.beyond_ms) == (75 * NANO, 25 * NANO, 0)
    rate = only_rate(committed.rates(h100(), window()))
    assert 30 * rate.nano_per_board_hour == split.used_nano
    assert rate.pricing_category == "Committed"
    assert committed_gpus(commitment) == Fraction(40, 24)


@pytest.mark.vector("V28")
@given(st.integers(0, 10**18), st.integers(1, 10**12), st.integers(0, 10**12))
def test_v28_nothing_of_a_bill_is_lost(billed: int, committed_ms: int, used_ms: int) -> None:
    split = split_commitment(billed, committed_ms, used_ms)
    assert split.used_nano + split.unused_nano == billed
    assert min(split.used_nano, split.unused_nano, split.beyond_ms) >= 0
    assert split.beyond_ms == max(0, used_ms - committed_ms)
    assert abs(split.used_nano - Fraction(billed * min(used_ms, committed_ms), committed_ms)) <= Fraction(
        1, 2
    )


@pytest.mark.vector("V28")
@pytest.mark.parametrize(("billed", "committed", "used"), [(-1, 1, 1), (1, 0, 1), (1, 1, -1)])
def test_v28_a_commitment_that_makes_no_sense_is_refused(billed: int, committed: int, used: int) -> None:
    with pytest.raises(InputError, match="commitment"):
        split_commitment(billed, committed, used)


def test_a_split_needs_a_weight_for_every_resource() -> None:
    with pytest.raises(InputError, match=r"weights\.gib"):
        split_by_ratio(1, parts(gpu=1, gib=1), parts(gpu=1))
    with pytest.raises(InputError, match="above 0"):
        gpu_fraction(parts(gpu=0), parts(gpu=1))
