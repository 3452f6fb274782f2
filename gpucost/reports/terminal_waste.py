"""``gpucost waste`` in a terminal: the section of the month's report, and all there is to do."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from gpucost.reports.terminal_parts import print_parts
from gpucost.reports.terminal_waste_section import print_to_do, waste_section
from gpucost.reports.waste import WasteReport


def print_waste(report: WasteReport, console: Console) -> None:
    """Buckets with their sum and the difference, teams, the costliest jobs, causes, what to do first."""
    parts = [Text(f"Waste, {report.window}", "dim"), *waste_section(report, console.width)]
    print_parts(parts, console)
    print_to_do(report, console)
