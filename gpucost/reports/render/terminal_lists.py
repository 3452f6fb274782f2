"""Lists in a terminal: teams, budgets of a month, rows of the price book."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpucost.domain.money import plain
from gpucost.reports.base import display
from gpucost.reports.month.reference_lists import MonthBudgets, PriceEntry, TeamDirectory
from gpucost.reports.render.terminal_parts import filled, print_parts, shown_name

_NARROW = 100
"""Below this many columns the table of prices has no sources."""


def print_teams(found: TeamDirectory, console: Console) -> None:
    """By name."""
    if not found.teams:
        print_parts([Text("No team is known yet.")], console)
        return
    rows = [
        [
            shown_name(each.name),
            Text(display.MISSING) if each.cost_centre is None else shown_name(each.cost_centre),
            Text(display.MISSING if each.quota_gpus is None else f"{float(each.quota_gpus):,g}"),
            Text(display.money(each.monthly_budget_nano)),
        ]
        for each in found.teams
    ]
    heads = ["team", "cost centre", "quota GPUs", f"budget, {found.currency} a month"]
    print_parts([filled("Teams", heads, rows, {0, 1}, console.width)], console)


_ALL_BUDGETS = "Those of queues, projects and other periods, and forecasts: gpucost budget list."


def print_budgets(found: MonthBudgets, console: Console) -> None:
    """By team."""
    if not found.budgets:
        none = f"No team that you may see has a budget for {found.month}. {_ALL_BUDGETS}"
        print_parts([Text(none)], console)
        return
    rows = [
        [
            shown_name(each.team),
            Text(display.MISSING) if each.cost_centre is None else shown_name(each.cost_centre),
            Text(display.money(each.budget_nano)),
            Text(display.money(each.held.nano)),
            Text(display.money(each.left_nano)),
            Text(display.percent(each.part, 1)),
        ]
        for each in found.budgets
    ]
    state = "provisional" if found.provisional else "all of it settled"
    title = f"Budgets of {found.month}, in {found.currency}"
    heads = ["team", "cost centre", "budget", "held", "left", "used"]
    known = f"{display.percent(found.covered, 1)} of the month, {state}"
    note = f"Held so far, without adjustments; {known}. {_ALL_BUDGETS}"
    print_parts([filled(title, heads, rows, {0, 1}, console.width), Text(note, "dim")], console)


def print_prices(entries: Sequence[PriceEntry], title: str, console: Console, *, sources: bool) -> None:
    """One line each: vendor, where it applies, price per GPU-hour, when and where read."""
    table = _price_table(title, console.width >= _NARROW)
    for each in entries:
        table.add_row(*(Text(display.visible(cell)) for cell in _cells(each)[: len(table.columns)]))
    console.print(table, crop=False)
    for each in entries if sources else ():
        lines = f"{display.visible(each.title)}  valid {each.validity}\n  {display.visible(each.provenance)}"
        console.print(Text(lines), soft_wrap=True)


def _price_table(title: str, wide: bool) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for head in ("vendor", "region", "instance or model"):
        table.add_column(head, overflow="ellipsis", no_wrap=True, max_width=26)
    table.add_column("capacity", no_wrap=True, min_width=9)
    table.add_column("per GPU-h", justify="right", no_wrap=True, min_width=10)
    table.add_column("retrieved", no_wrap=True, min_width=10)
    if wide:
        table.add_column("source", overflow="ellipsis", no_wrap=True, max_width=26)
    return table


def _cells(each: PriceEntry) -> tuple[str, ...]:
    return (
        each.vendor or "–",
        each.region or "any",
        each.name,
        each.capacity_type or "any",
        plain(each.gpu_hour_nano, 4),
        each.retrieved,
        each.source.partition(":")[0].rpartition("/")[2],
    )
