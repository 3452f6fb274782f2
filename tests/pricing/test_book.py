"""Looking up a price: which row wins, when, and what is said where none does."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.domain.errors import ConfigError
from gpucost.domain.money import parse_nano
from gpucost.domain.rates import NodeFacts, Rate
from gpucost.domain.time import DAY_MS, Window, iso, parse_day_or_instant
from gpucost.pricing.price_book import PriceBook
from tests.pricing.books import SOURCE, book, h100, only_rate, price, window


def per_hour(of: PriceBook, node: NodeFacts) -> str:
    [span] = of.rates(node, window())
    return "none" if span.rate is None else f"{span.rate.nano_per_board_hour / 10**9:g}"


LADDER = book(
    price("1", model="H100"),
    price("2", model="H100", capacity_type="spot"),
    price("3", model="H100", capacity_type="spot", region="eu"),
    price("10", instance_type="p5"),
    price("11", instance_type="p6", model="A100-80GB"),
    price("12", instance_type="p5", capacity_type="on-demand"),
    price("13", instance_type="p5", capacity_type="on-demand", pool="train"),
    price("14", instance_type="p5", capacity_type="on-demand", pool="train", labels={"rack": "r1"}),
    price("15", instance_type="p5", capacity_type="on-demand", pool="train", cluster="c", zone="eu-1"),
)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, "1"),
        ({"capacity_type": "spot"}, "2"),
        ({"capacity_type": "spot", "region": "us"}, "2"),
        ({"capacity_type": "spot", "region": "eu"}, "3"),
        ({"capacity_type": "owned"}, "1"),
        ({"instance_type": "other"}, "1"),
        ({"instance_type": "p5"}, "10"),
        ({"instance_type": "p5", "capacity_type": "spot", "region": "eu"}, "10"),
        ({"instance_type": "p6", "model": "A100-80GB"}, "11"),
        ({"instance_type": "p6", "model": "H100"}, "1"),
        ({"instance_type": "p5", "capacity_type": "on-demand"}, "12"),
        ({"instance_type": "p5", "capacity_type": "on-demand", "pool": "train"}, "13"),
        (
            {"instance_type": "p5", "capacity_type": "on-demand", "pool": "train", "labels": {"rack": "r1"}},
            "14",
        ),
        (
            {"instance_type": "p5", "capacity_type": "on-demand", "pool": "train", "labels": {"rack": "r2"}},
            "13",
        ),
        ({"instance_type": "p5", "capacity_type": "on-demand", "pool": "train", "zone": "eu-1"}, "15"),
        ({"model": "H200"}, "none"),
        ({"model": "H200", "instance_type": "p5"}, "10"),
        ({"model": ""}, "none"),
    ],
)
def test_the_most_specific_row_wins(facts: dict[str, Any], expected: str) -> None:
    assert per_hour(LADDER, h100(**facts)) == expected


def test_the_order_of_rows_does_not_matter() -> None:
    rows = [price("1"), price("2", capacity_type="spot"), price("3", instance_type="p5")]
    nodes = [h100(), h100(capacity_type="spot"), h100(instance_type="p5")]
    expected = [per_hour(book(*rows), node) for node in nodes]
    assert [per_hour(book(*reversed(rows)), node) for node in nodes] == expected == ["1", "2", "3"]


def test_a_spot_node_is_never_priced_as_on_demand() -> None:
    on_demand = book(price("6.88", capacity_type="on-demand"))
    [span] = on_demand.rates(h100(capacity_type="spot"), window())
    assert span.rate is None
    assert span.reason == (
        "no price for model H100, instance_type not known, capacity_type spot; "
        "nearest: H100/on-demand asks for capacity_type on-demand"
    )
    assert per_hour(book(price("6.88")), h100(capacity_type="spot")) == "6.88"


def test_a_node_that_does_not_say_is_what_the_book_takes_it_for() -> None:
    rows = price("6.88", capacity_type="on-demand"), price("1.28", capacity_type="spot")
    assert per_hour(book(*rows), h100()) == "none"
    assert per_hour(book(*rows, assume_capacity_type="on-demand"), h100()) == "6.88"
    assert per_hour(book(*rows, assume_capacity_type="on-demand"), h100(capacity_type="spot")) == "1.28"


def test_an_unknown_model_is_named_and_never_priced() -> None:
    [span] = book(price()).rates(h100(model="NVIDIA-RTX-9999", instance_type="box", region="r"), window())
    assert span.rate is None
    assert span.reason == (
        "no price for model NVIDIA-RTX-9999, instance_type box, capacity_type not known, region r"
    )


def test_the_price_per_board_does_not_depend_on_how_many_boards_are_up() -> None:
    eight = book(price("55.04", instance_type="p5", per="instance", gpus=8))
    rates = {
        only_rate(eight.rates(h100(instance_type="p5", boards=boards), window())) for boards in (8, 7, None)
    }
    assert [rate.nano_per_board_hour for rate in rates] == [parse_nano("6.88")]


def test_a_label_of_the_product_names_its_model() -> None:
    assert per_hour(book(price("6.88", model="NVIDIA-H100-80GB-HBM3")), h100()) == "6.88"


def test_the_rounding_is_half_to_even_and_happens_once() -> None:
    thirds = book(price("1", instance_type="x", per="instance", gpus=3))
    assert only_rate(thirds.rates(h100(instance_type="x"), window())).nano_per_board_hour == 333_333_333
    ties = [
        only_rate(book(price(amount, per="instance", gpus=2)).rates(h100(), window())).nano_per_board_hour
        for amount in ("0.000000001", "0.000000003", "0.000000005")
    ]
    assert ties == [0, 2, 2]
    half_of_a_third = book(
        price("0.000000005", per="instance", gpus=2), discounts=[{"name": "half", "percent": 50}]
    )
    assert only_rate(half_of_a_third.rates(h100(), window())).nano_per_board_hour == 1


# --- time ---


@pytest.mark.fault(34)
def test_where_nothing_is_valid_there_is_no_price_and_a_reason() -> None:
    gap = book(price("2", valid_to="2026-10-10"), price("3", valid_from="2026-10-20"))
    spans = gap.rates(h100(), window("2026-10-01", "2026-11-01"))
    assert [(iso(s.start_ms)[:10], s.rate and s.rate.nano_per_board_hour // 10**9) for s in spans] == [
        ("2026-10-01", 2),
        ("2026-10-10", None),
        ("2026-10-20", 3),
    ]
    assert spans[1].reason == (
        "no price for model H100, instance_type not known, capacity_type not known; "
        "nearest: H100 is valid to 2026-10-10T00:00:00Z; H100 is valid from 2026-10-20T00:00:00Z"
    )


def test_the_rows_that_come_nearest_are_named_and_no_more_than_three() -> None:
    """Those that ask for least first; a row that asks for more than the others is not among them."""
    far = price("5", region="eu", zone="eu-1")
    [span] = book(far, *(price("1", pool=f"p{at}") for at in range(3))).rates(h100(), window())
    nearest = "; ".join(f"H100/p{at} asks for pool p{at}" for at in range(3))
    assert span.reason == (
        f"no price for model H100, instance_type not known, capacity_type not known; nearest: {nearest}"
    )


def test_stretches_of_one_price_are_one_span() -> None:
    """Another row begins on the third day, which is less specific: nothing changes then."""
    rows = book(price("1", pool="a", valid_from="2026-10-02"), price("9", valid_from="2026-10-03"))
    spans = rows.rates(h100(pool="a"), window("2026-10-01", "2026-10-05"))
    assert [iso(span.start_ms)[:10] for span in spans] == ["2026-10-01", "2026-10-02"]


def test_a_row_for_part_of_the_time_stands_before_the_general_one() -> None:
    promotion = book(price("3"), price("1", region="eu", valid_from="2026-10-10", valid_to="2026-10-12"))
    spans = promotion.rates(h100(region="eu"), window("2026-10-01", "2026-11-01"))
    assert [(s.end_ms - s.start_ms) // DAY_MS for s in spans] == [9, 2, 20]


def test_a_window_wholly_inside_one_price_has_one_span_with_its_edges() -> None:
    day = window("2026-10-05", "2026-10-06")
    [span] = book(price("2", valid_from="2026-10-01", valid_to="2026-11-01")).rates(h100(), day)
    assert (span.start_ms, span.end_ms) == (day.start_ms, day.end_ms)


DAYS = st.integers(1, 28).map(lambda day: f"2026-10-{day:02d}")
MATCHES = st.fixed_dictionaries(
    {},
    optional={
        "capacity_type": st.sampled_from(["spot", "on-demand"]),
        "region": st.sampled_from(["eu", "us"]),
        "pool": st.sampled_from(["a", "b"]),
        "valid_from": DAYS,
        "valid_to": DAYS,
    },
)


@st.composite
def rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows that a book accepts: each differs from the others in its number of narrowings or its time."""
    drawn = draw(st.lists(MATCHES, max_size=6))
    kept: list[dict[str, Any]] = []
    for n, match in enumerate(drawn):
        row = price(str(n + 1), **match)
        if match.get("valid_from", "0") < match.get("valid_to", "9"):
            try:
                book(*kept, row)
            except ConfigError:
                continue
            kept.append(row)
    return kept or [price("1")]


@pytest.mark.fault(34)
@given(rows(), st.sampled_from(["spot", "on-demand", ""]), st.sampled_from(["eu", ""]), st.data())
def test_spans_cover_the_window_once_and_cutting_it_changes_nothing(
    prices: list[dict[str, Any]], capacity_type: str, region: str, data: st.DataObject
) -> None:
    node = h100(capacity_type=capacity_type, region=region, pool="a")
    whole = window("2026-10-01", "2026-10-29")
    priced = book(*prices)
    spans = priced.rates(node, whole)
    assert (spans[0].start_ms, spans[-1].end_ms) == (whole.start_ms, whole.end_ms)
    assert all(before.end_ms == after.start_ms for before, after in pairwise(spans))
    assert all((span.rate is None) == bool(span.reason) for span in spans)
    cut = data.draw(st.integers(whole.start_ms + 1, whole.end_ms - 1))
    halves = (Window(whole.start_ms, cut), Window(cut, whole.end_ms))
    assert _by_rate(priced, node, halves) == _by_rate(priced, node, (whole,))


def _by_rate(of: PriceBook, node: NodeFacts, windows: tuple[Window, ...]) -> dict[Rate | None, int]:
    lengths: dict[Rate | None, int] = {}
    for part in windows:
        for span in of.rates(node, part):
            lengths[span.rate] = lengths.get(span.rate, 0) + span.end_ms - span.start_ms
    return lengths


# --- discounts ---

CONTRACTS = [
    {"name": "all", "percent": 10},
    {"name": "h100", "percent": "30.5", "model": "H100"},
    {"name": "spot", "percent": 20, "capacity_type": "spot"},
    {"name": "october", "percent": 50, "model": "A10", "valid_from": "2026-10-01", "valid_to": "2026-10-02"},
]


@pytest.mark.parametrize(
    ("facts", "net", "discount"),
    [
        ({}, "6.95", "30.5 % h100"),
        ({"model": "T4"}, "9", "10 % all"),
        ({"model": "T4", "capacity_type": "spot"}, "8", "20 % spot"),
        ({"model": "A10"}, "5", "50 % october"),
    ],
)
def test_the_most_specific_discount_applies_alone(facts: dict[str, Any], net: str, discount: str) -> None:
    ten = book(*(price("10", model=model) for model in ("H100", "T4", "A10")), discounts=CONTRACTS)
    rate = only_rate(ten.rates(h100(**facts), window()))
    assert (rate.nano_per_board_hour, rate.discount) == (parse_nano(net), discount)
    assert rate.list_nano_per_board_hour == parse_nano("10")


def test_a_discount_that_begins_splits_the_window() -> None:
    contract = {"name": "new", "percent": 30, "valid_from": "2026-10-01T12:00:00Z"}
    spans = book(price("6.88"), discounts=[contract]).rates(h100(), window())
    assert [span.rate and span.rate.discount for span in spans] == ["", "30 % new"]


OWNED = {
    "model": "H100", "gpus": 8, "purchase": 300000, "residual": 30000, "months": 48, "power_watts": 10200,
    "kwh_price": "0.21", "pue": "1.3", "hosting_per_month": 1500, **SOURCE,
}  # fmt: skip


def test_owned_hardware_costs_its_amortisation_power_and_hosting() -> None:
    rate = only_rate(book(owned=[OWNED]).rates(h100(), window()))
    node_hour = (
        Fraction(270_000, 48 * 730)
        + Fraction(102, 10) * Fraction(21, 100) * Fraction(13, 10)
        + Fraction(1500, 730)
    )
    assert rate.nano_per_board_hour == round(node_hour / 8 * 10**9) == parse_nano("1.568109247")
    assert rate.pricing_category == "Other"


@pytest.mark.parametrize(
    ("change", "nano"),
    [
        ({}, "0.010273973"),
        ({"residual": 2880}, "0"),
        ({"hosting_per_month": 730}, "0.135273973"),
        ({"power_watts": 1000, "kwh_price": "0.8"}, "0.110273973"),
        ({"power_watts": 1000, "kwh_price": "0.8", "pue": 2}, "0.210273973"),
    ],
)
def test_each_part_of_owned_hardware(change: dict[str, Any], nano: str) -> None:
    plain = {"model": "H100", "gpus": 8, "purchase": 2880, "months": 48, **SOURCE}
    rate = only_rate(book(owned=[plain | change]).rates(h100(), window()))
    assert rate.nano_per_board_hour == parse_nano(nano)


def test_what_owned_hardware_does_not_say_costs_nothing() -> None:
    [row] = book(owned=[{"model": "H100", "gpus": 8, "purchase": 2920, "months": 1, **SOURCE}]).rows
    assert row.board_hour == Fraction(10**9, 2), "to the nano-unit and beyond"
    assert book(price(None, per_month="0")).rows[0].board_hour == 0


def test_discounts_leave_what_you_own_and_what_you_committed_alone() -> None:
    commitment = {"model": "H200", "amount": 24, "period": "day", "gpu_hours": 24, **SOURCE}
    both = book(owned=[OWNED], commitments=[commitment], discounts=[{"name": "x", "percent": 50}])
    for node in (h100(), h100(model="H200")):
        rate = only_rate(both.rates(node, window()))
        assert (rate.discount, rate.nano_per_board_hour) == ("", rate.list_nano_per_board_hour)


# --- identity and provenance ---


def test_a_rate_names_its_row_source_and_date() -> None:
    row = price(
        "55.04", instance_type="p5.48xlarge", capacity_type="reserved", per="instance", gpus=8,
        flags=["f1"], dated=False,
    )  # fmt: skip
    rate = only_rate(book(row).rates(h100(instance_type="p5.48xlarge", capacity_type="reserved"), window()))
    assert rate.rate_id.startswith("p5.48xlarge/reserved@")
    assert (rate.source, rate.retrieved) == ("test list (f1, undated)", "2026-11-21")
    assert (rate.matched_by, rate.pricing_category, rate.currency) == ("instance_type", "Committed", "USD")


def rate_id(row: dict[str, Any], *others: dict[str, Any], **more: Any) -> str:
    return only_rate(book(*others, row, **more).rates(h100(region="eu"), window())).rate_id


def test_the_id_of_a_rate_is_its_value() -> None:
    base = price("2.50", region="eu")
    same = [
        rate_id(base),
        rate_id(base, price("9")),
        rate_id(base | {"valid_to": "2027-01-01"}),
        rate_id(base | {"notes": "read twice"}),
        rate_id(base | {"per_hour": "2.5"}),
    ]
    assert len(set(same)) == 1
    others = [
        rate_id(base | {"per_hour": "2.51"}),
        rate_id(base | {"source": "another"}),
        rate_id(base | {"retrieved": "2026-11-20"}),
        rate_id(price("2.50")),
        rate_id(base, currency="EUR"),
        rate_id(base, discounts=[{"name": "x", "percent": 1}]),
    ]
    assert len({*same, *others}) == 7


def test_an_id_is_safe_and_short_whatever_the_names() -> None:
    row = price("1", name="<b> & ünïcode " + "x" * 200)
    made = only_rate(book(row).rates(h100(), window())).rate_id
    assert made.isascii()
    assert len(made) <= 72
    assert not set(made) & set("<>& \"'")


def test_the_book_says_which_labels_it_looks_at() -> None:
    labelled = book(
        price("1", labels={"rack": "r1", "tier": "a"}),
        discounts=[{"name": "x", "percent": 1, "labels": {"deal": "d"}}],
    )
    assert labelled.label_names == {"rack", "tier", "deal"}
    assert labelled.currency == "USD"


def test_labels_that_no_row_looks_at_change_nothing() -> None:
    one = book(price("1", labels={"rack": "r1"}))
    nodes = [h100(node=f"n{n}", labels={"rack": "r1", "hostname": f"n{n}"}) for n in range(3)]
    assert {only_rate(one.rates(node, window())) for node in nodes} == {
        only_rate(one.rates(nodes[0], window()))
    }


def test_time_before_and_after_every_edge_is_covered_too() -> None:
    edge = parse_day_or_instant("2026-10-10")
    spans = book(price("1", valid_from="2026-10-10")).rates(h100(), Window(0, 2 * edge))
    assert [(span.start_ms, span.end_ms) for span in spans] == [(0, edge), (edge, 2 * edge)]


def test_the_rows_behind_rates_are_found() -> None:
    """With and without a discount; no others."""
    found = book(
        price("2", model="H100"),
        price("9", model="H100", pool="theirs"),
        discounts=[{"name": "deal", "percent": "10", "model": "H100"}],
    )
    rate = only_rate(found.rates(h100(), window()))
    assert rate.nano_per_board_hour == parse_nano("1.8", "price")
    assert found.rows_of({rate.rate_id}) == found.rows[:1]
    assert found.rows_of({"x"}) == ()
    assert {rate.rate_id} < found.rate_ids
