"""The commitment examples of the FOCUS specification, to the cent.

Figures only, read from the CSV files of FinOps-Open-Cost-and-Usage-Spec/FOCUS_Spec,
specification/data/commitment_discount_scenarios (working drafts of 2025 and 2026; drafts of one file differ,
so the figures are those of one commit of each). Each file is one commitment of one GPU's worth of capacity
for a year, shown for a day: what was paid once and in the month, what an hour of it costs (EffectiveCost),
what the same hour costs by the list (ListCost; of the file without any use, that of the unused hours), how
many hours of the day were used, and how many more were used on demand.

One file is left out because it does not add up: gcp_flex_cud_partial_upfront_100pct (100,208.34 and twelve
times 8,350.69 are 22.88 an hour, where its rows say 42.24). A payment for the hours of its month (17,183.04
for the 672 hours of February are 25.57 each) is paid by the hour; one of a twelfth of the year is spread
evenly over the term, as the rows do.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from gpucost.charges.commitment_drawdown import DrawKind
from gpucost.charges.contract_schedule import ContractSchedule
from gpucost.domain.money import plain
from gpucost.domain.time import HOUR_MS, Month, Window
from tests.charges.contract_worlds import book_of, cell, drawn, span, usd


@dataclass(frozen=True, slots=True)
class FocusExample:
    """``month`` is the recurring payment in the month of the file, ``hourly`` how the contract says it."""

    name: str
    is_spend: bool
    year: int
    upfront: str
    month: str
    hourly: str
    effective: str
    listed: str
    used: int = 24
    over: int = 0


SPEND, GPUS = True, False
EXAMPLES = [
    # all upfront
    FocusExample("aws_savings_plan_all_upfront_75pct", SPEND, 2, "459024.00", "0", "", "52.40", "78.60", 18),
    FocusExample("aws_overflow_150pct", SPEND, 1, "212000.00", "0", "", "24.20", "36.30"),
    FocusExample("aws_reserved_instance_all_upfront", GPUS, 1, "403000.00", "0", "", "46.00", "69.00"),
    FocusExample(
        "aura_web_flexible_spend_plan_all_upfront_0pct", SPEND, 2, "353028.00", "0", "", "40.30", "40.30", 0
    ),
    FocusExample(
        "aura_web_flexible_spend_plan_all_upfront_50pct",
        SPEND,
        2,
        "693003.60",
        "0",
        "",
        "79.11",
        "118.67",
        12,
    ),
    FocusExample(
        "aura_web_flexible_spend_plan_all_upfront_75pct", SPEND, 2, "211992.00", "0", "", "24.20", "36.30", 18
    ),
    FocusExample(
        "aura_web_flexible_spend_plan_all_upfront_100pct", SPEND, 2, "211992.00", "0", "", "24.20", "36.30"
    ),
    FocusExample(
        "aura_web_flexible_spend_plan_all_upfront_overage",
        SPEND,
        2,
        "211992.00",
        "0",
        "",
        "24.20",
        "36.30",
        24,
        12,
    ),
    FocusExample(
        "aura_web_resource_reservation_all_upfront_100pct", GPUS, 2, "402960.00", "0", "", "46.00", "69.00"
    ),
    FocusExample(
        "crestnode_resource_reservation_all_upfront_100pct", GPUS, 2, "358021.20", "0", "", "40.87", "61.31"
    ),
    FocusExample(
        "crestnode_flexible_spend_plan_all_upfront_100pct", SPEND, 2, "462002.40", "0", "", "52.74", "79.11"
    ),
    FocusExample("gcp_resource_cud_all_upfront_100pct", GPUS, 2, "258000.00", "0", "", "29.45", "44.18"),
    # partial upfront
    FocusExample(
        "aws_reserved_instance_partial_upfront", GPUS, 1, "220000.00", "18333.33", "", "50.23", "75.35"
    ),
    FocusExample(
        "aura_web_flexible_spend_plan_partial_upfront_100pct",
        SPEND,
        2,
        "223993.20",
        "17183.04",
        "25.57",
        "51.14",
        "76.71",
    ),
    FocusExample(
        "aura_web_resource_reservation_partial_upfront_100pct",
        GPUS,
        2,
        "220007.40",
        "16877.28",
        "25.115",
        "50.23",
        "75.35",
    ),
    # no upfront
    FocusExample("aws_savings_plan_no_upfront", SPEND, 1, "0", "38583.33", "", "52.85", "79.28"),
    FocusExample(
        "aura_web_flexible_spend_plan_no_upfront_100pct", SPEND, 2, "0", "35515.20", "52.85", "52.85", "79.28"
    ),
    FocusExample(
        "crestnode_resource_reservation_no_upfront_100pct", GPUS, 2, "0", "55334.00", "", "75.80", "113.70"
    ),
    FocusExample(
        "latticescale_dynamic_compute_commitment_no_upfront_100pct",
        SPEND,
        2,
        "0",
        "42423.36",
        "63.13",
        "63.13",
        "94.70",
    ),
    FocusExample(
        "latticescale_resource_reservation_no_upfront_100pct",
        GPUS,
        2,
        "0",
        "19790.40",
        "29.45",
        "29.45",
        "44.18",
    ),
]


def contract(example: FocusExample) -> str:
    term = f"start: 2026-0{example.year}-01T00:00:00Z, end: 2027-0{example.year}-01T00:00:00Z"
    quantity = f"spend: {example.effective}, price: {example.effective}" if example.is_spend else "gpus: 1"
    kind = "savings_plan" if example.is_spend else "reservation"
    money = f", upfront: {example.upfront}" if example.upfront != "0" else ""
    if example.hourly:
        money += f", recurring: [{{amount: {example.hourly}, every: hour}}]"
    elif example.month != "0":
        money += f", recurring: [{{amount: {example.month}, every: month}}], spread: term"
    return f"id: plan, kind: {kind}, {term}, {quantity}{money}"


def cents(nano: int) -> str:
    return plain(nano, 2)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_of_focus(example: FocusExample) -> None:
    book = book_of(contract(example))
    day = span(f"2026-0{example.year}-01", f"2026-0{example.year}-02")
    use = [cell(day.start_ms + n * HOUR_MS, price=example.listed) for n in range(example.used)]
    over = [cell(day.start_ms + n * HOUR_MS, "speech", price=example.listed) for n in range(example.over)]
    found = drawn(book, [*use, *over], day)
    [total] = found.totals

    by_kind = {kind: [e for e in found.entries if e.kind is kind] for kind in DrawKind}
    covered, listed = Counter[int](), Counter[int]()
    for entry in by_kind[DrawKind.USED]:
        covered[entry.hour_ms] += entry.nano or 0
        listed[entry.hour_ms] += entry.list_nano or 0
    assert [cents(nano) for _, nano in sorted(covered.items())] == [example.effective] * example.used
    assert [cents(nano) for _, nano in sorted(listed.items())] == [example.listed] * example.used
    assert [cents(e.nano or 0) for e in by_kind[DrawKind.UNUSED]] == [example.effective] * (24 - example.used)
    on_demand = sum(e.nano or 0 for e in by_kind[DrawKind.ON_DEMAND])
    assert on_demand == usd(example.listed) * example.over
    # Billed: once at the start, and in the month of the file; the hours bill nothing.
    month = Month(2026, example.year).window
    [schedule] = [ContractSchedule.of(terms) for terms in book.in_force]
    assert schedule.due(month) == usd(example.upfront) + usd(example.month)
    # Used and unused are what was paid, to the nano-unit, in the day and over the year.
    assert total.used_nano + total.unused_nano == total.paid_nano == schedule.cost(day)
    whole = schedule.due(schedule.term)
    assert schedule.cost(schedule.term) == whole
    assert sum(schedule.cost(part) for part in schedule.term.split(7 * 24 * HOUR_MS)) == whole


def test_every_way_is_among_the_examples() -> None:
    assert len({example.name for example in EXAMPLES}) >= 20
    assert {example.used for example in EXAMPLES} == {0, 12, 18, 24}
    upfront = {(example.upfront != "0", example.month != "0") for example in EXAMPLES}
    assert upfront == {(True, False), (True, True), (False, True)}
    assert {example.is_spend for example in EXAMPLES} == {True, False}
    assert any(example.over for example in EXAMPLES)


@pytest.mark.parametrize("used", [0, 1, 4380, 8759, 8760])
def test_a_year_of_459024_is_52_40_an_hour_used_or_not(used: int) -> None:
    book = book_of(contract(EXAMPLES[0]))
    year = span("2026-02-01", "2027-02-01")
    use = [cell(year.start_ms + n * HOUR_MS, price="78.60") for n in range(used)]
    found = drawn(book, use, year)
    [total] = found.totals
    assert {entry.nano for entry in found.entries} == {usd("52.40")}
    assert len(found.entries) == 8760
    assert total.used_nano == used * usd("52.40")
    assert total.used_nano + total.unused_nano == usd("459024")
    assert Window(year.start_ms, year.end_ms) == book.in_force[0].term
