"""``gpucost waste`` in a terminal: the tables of the month's section, and all there is to do."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from gpucost.reports import display
from gpucost.reports.terminal_parts import indented, print_block, print_parts, severity_style
from gpucost.reports.terminal_waste_section import bucket_table, headline, job_table, team_table
from gpucost.reports.waste import ToDo, WasteReport
from gpucost.reports.waste_table import per_month

_LONGEST_TEXT = 2_000


def print_waste(report: WasteReport, console: Console) -> None:
    """Buckets with their sum and the difference, teams, the costliest jobs, what to do first."""
    parts: list[RenderableType] = [
        Text(f"Waste, {report.window}", "dim"),
        headline(report),
        bucket_table(report, console.width),
    ]
    if report.teams:
        parts.append(team_table(report.teams, console.width))
    if report.jobs:
        parts.append(job_table(report.jobs, console.width))
    print_parts(parts, console)
    _print_to_do(report, console)


def _print_to_do(report: WasteReport, console: Console) -> None:
    if not report.to_do:
        print_parts([Text.assemble(("What to do first\n", "bold"), ("No finding goes on.", "dim"))], console)
        return
    print_parts([Text("What to do first", "bold")], console)
    for rank, row in enumerate(report.to_do, 1):
        print_parts([*_action(rank, row, report.currency)], console, gap=0)
        print_block(row.patch, console, indent=4)
        console.print()


def _action(rank: int, row: ToDo, currency: str) -> Iterator[RenderableType]:
    team = display.name(row.team) if row.team else "the platform"
    yield Text.assemble(
        f"{rank}. ",
        (row.severity, severity_style(row.severity)),
        f"  {team}  ",
        (per_month(row, currency), "bold"),
        (f"  finding {row.finding}, since {row.since}", "dim"),
    )
    yield indented(Text(display.visible(row.summary, _LONGEST_TEXT)), 3)
    yield indented(Text(f"→ {display.visible(row.action, _LONGEST_TEXT)}", "bold"), 3)
