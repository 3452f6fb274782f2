"""Contracts as YAML and use by the hour, for tests of drawdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpucost.charges.commitment_drawdown import (
    ContractDrawdown,
    UsageCell,
    draw_down,
    schedules_of,
)
from gpucost.charges.contract_terms import ContractBook
from gpucost.domain.money import parse_nano
from gpucost.domain.time import HOUR_MS, Window, parse_instant

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
