"""Contracts as YAML and use by the hour, for tests of drawdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hypothesis import strategies as st

from gpucost.charges.commitment_drawdown import (
    ContractDrawdown,
    UsageCell,
    draw_down,
    schedules_of,
)
from gpucost.charges.contract_terms import ContractBook
from gpucost.domain.money import parse_nano
from gpucost.domain.time import HOUR_MS, Window, iso, parse_instant

HEAD = "version: 1\ncurrency: USD\n"
TEAMS = ("language", "speech", "vision")


def book_of(*contracts: str, head: str = HEAD) -> ContractBook:
    """Contracts in YAML's flow style, without their braces."""
    rows = "".join(f"- {{{contract}}}\n" for contract in contracts)
    return ContractBook.parse(f"{head}contracts:\n{rows}", "contracts.yaml", TEAMS)


def span(start: str, end: str) -> Window:
    """A window from day to day, in UTC."""
    return Window(*(parse_instant(f"{day}T00:00:00Z") for day in (start, end)))


def usd(text: str) -> int:
    return parse_nano(text)


def cell(
    hour_ms: int,
    team: str = "vision",
    gpus: str | int = 1,
    price: str = "4",
    listed: str | None = None,
    *,
    cluster: str = "prod",
    pool: str = "p5",
    model: str = "H100",
    capacity_type: str = "reserved",
) -> UsageCell:
    """So many GPUs for an hour, at a price per GPU-hour by the usage line and one by the list."""
    thousandths = parse_nano(str(gpus)) // 1_000_000
    board_ms = thousandths * HOUR_MS // 1_000
    priced, by_list = (parse_nano(text) * thousandths // 1_000 for text in (price, listed or price))
    return UsageCell(
        hour_ms, cluster, pool, model, capacity_type, team, "rate", board_ms, by_list, priced
    )  # fmt: skip


def hours(window: Window) -> Iterator[int]:
    return iter(range(window.start_ms, window.end_ms, HOUR_MS))


def drawn(book: ContractBook, cells: Iterable[UsageCell], window: Window) -> ContractDrawdown:
    return draw_down(book.file, schedules_of(book.in_force), cells, window)


START, HOURS = span("2026-09-30", "2026-10-01").start_ms + 18 * HOUR_MS, 14
WINDOW = Window(START, START + HOURS * HOUR_MS)
CLUSTERS, MODELS = ("prod", "test"), ("H100", "L40S")


@st.composite
def contracts(draw: st.DrawFn) -> ContractBook:
    """One to four contracts of every model, over the end of a day and a month, each with an order."""
    rows = []
    for n in range(draw(st.integers(1, 4))):
        spend = draw(st.booleans())
        per = draw(st.sampled_from(("hour", "day", "month", "term")))
        kind = "committed_use"
        minutes = draw(st.integers(-120, 13 * 60))
        length = draw(st.integers(1, 20 * 60))
        begin = START + minutes * 60_000
        row = f"id: c{n}, kind: {kind}, order: {n + 1}, per: {per}, "
        row += f'start: "{iso(begin)}", end: "{iso(begin + length * 60_000)}", '
        row += f"owner: {draw(st.sampled_from(('shared', 'vision', 'speech')))}, "
        unused = draw(st.sampled_from(("by_use", "platform")))
        row += f"unused: {unused}, "
        if spend:
            row += f"spend: {draw(st.integers(1, 60))}.37, price: 2.{draw(st.integers(1, 99)):02d}"
            row += draw(st.sampled_from(("", ", upfront: 77.7")))
        elif draw(st.booleans()):
            row += f"gpus: {draw(st.integers(1, 9))}, price: 1.23456789, "
            row += f"take_or_pay: {draw(st.integers(1, 100))}"
        else:
            row += f"gpu_hours: {draw(st.integers(1, 40))}, upfront: {draw(st.integers(0, 99))}.000000001, "
            row += "recurring: [{amount: 3.333333333, every: month}, {amount: 0.1, every: hour}]"
        if draw(st.booleans()):
            row += ", overage_price: 3.5"
        names = draw(st.sampled_from(("", ", scope: {clusters: [prod]}", ", scope: {models: [H100]}")))
        rows.append(row + names)
    return book_of(*rows)
