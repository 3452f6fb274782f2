"""Rehearsals and explanations of detectors in a terminal."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.text import Text

from gpucost.reports import display
from gpucost.reports.explained import Explained, SettingRow
from gpucost.reports.rehearsal import Rehearsal, RehearsedFinding
from gpucost.reports.terminal_findings import MOST_FINDINGS, foreign, shown_subject, what
from gpucost.reports.terminal_parts import cost_text, indented, print_parts, severity_style


def print_rehearsal(report: Rehearsal, console: Console) -> None:
    """One line per finding; under it its sentence."""
    head = Text.assemble(("Rehearsal", "bold"), (": nothing was written\n", "dim"))
    lines = [
        f"{display.name(each.cluster)}: {display.counted(each.days, 'whole day')} until {each.end}"
        + (f", of {report.days} asked for" if each.days < report.days else "")
        for each in report.clusters
    ]
    head.append("\n".join(lines), "dim")
    parts: list[RenderableType] = [head]
    if not report.findings:
        parts.append(Text("Nothing would have been found with these settings."))
    rows = report.findings[:MOST_FINDINGS]
    parts += [_found(row, report.currency) for row in rows]
    if len(report.findings) > len(rows):
        parts.append(Text(f"{len(report.findings) - len(rows):,} more in --format json.", "dim"))
    print_parts(parts, console)


def _found(row: RehearsedFinding, currency: str) -> RenderableType:
    money = cost_text(row.wasted) if row.wasted.nano is None else f"{cost_text(row.wasted)} {currency}"
    days = f"{row.days} of {display.counted(row.of, 'day')}"
    view = "" if row.counted else ", shown, and in no sum"
    head = Text.assemble(
        (row.severity, severity_style(row.severity)),
        "  ",
        what(row.pattern, row.variant, "open"),
        "  ",
        shown_subject(row.subject),
        (f"  team {display.name(row.team)}" if row.team else "", "dim"),
    )
    hours = f"{display.hours(row.wasted.board_ms)} GPU-hours ({money}) on {days}{view}"
    return Group(head, indented(Text(hours), 2), indented(Text(foreign(row.summary)), 2))


def print_explained(found: Explained, console: Console) -> None:
    """What it is, its page, and its settings."""
    head = Text.assemble((found.pattern, "bold"), f"\n{found.meaning}\n", (f"More: {found.page}", "dim"))
    settings = [part for row in found.settings for part in _setting(row)]
    title = Text.assemble(("Settings", "bold"), f", group {found.group}")
    print_parts([head, Group(title, *settings)], console)


def _setting(row: SettingRow) -> tuple[RenderableType, ...]:
    changed = "" if row.value == row.default else f" (default {row.default or 'not set'})"
    value = display.visible(row.value, 400) or "not set"
    head = Text.assemble(f"{row.key}: ", (value, "cyan"), changed)
    return indented(head, 2), indented(Text(row.meaning, "dim"), 6)
