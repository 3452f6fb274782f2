"""Backtests and explanations of detectors in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Console, Group, RenderableType
from rich.text import Text

from gpucost.detectors.findings import WastePattern
from gpucost.domain.buckets import Waste
from gpucost.reports.base import display
from gpucost.reports.render.terminal_findings import (
    MOST_FINDINGS,
    foreign,
    job_uid,
    shown_subject,
    what,
)
from gpucost.reports.render.terminal_parts import (
    WHOLE,
    cost_text,
    indented,
    print_parts,
    severity_style,
)
from gpucost.reports.waste.backtest import (
    BacktestAbsence,
    BacktestFindingRow,
    Explained,
    Rehearsal,
    SettingRow,
)
from gpucost.reports.waste.waste_table import LABELS, MEANINGS

_MOST_REASONS = 3


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
    rows = report.findings if console.width >= WHOLE else report.findings[:MOST_FINDINGS]
    parts += [_found(row, report.currency) for row in rows]
    if len(report.findings) > len(rows):
        parts.append(Text(f"{len(report.findings) - len(rows):,} more in --format json.", "dim"))
    if report.withheld:
        parts.append(Group(Text("Not said", "bold"), *_unsaid(report.withheld)))
    print_parts(parts, console)


def _unsaid(withheld: Sequence[BacktestAbsence]) -> Iterator[RenderableType]:
    """By pattern, how often a finding was withheld and why; of many reasons the most frequent."""
    for pattern, found in groupby(withheld, key=lambda each: each.pattern):
        rows = [*found]
        yield indented(Text(f"{pattern}, {_times(sum(each.times for each in rows))}"), 2)
        for each in rows[:_MOST_REASONS]:
            yield indented(Text(f"because {foreign(each.because)}: {_times(each.times)}", "dim"), 4)
        rest = rows[_MOST_REASONS:]
        if rest:
            more = _times(sum(each.times for each in rest))
            yield indented(Text(f"for {display.counted(len(rest), 'other reason')}: {more}", "dim"), 4)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _found(row: BacktestFindingRow, currency: str) -> RenderableType:
    money = cost_text(row.wasted) if row.wasted.nano is None else f"{cost_text(row.wasted)} {currency}"
    days = f"{row.days} of {display.counted(row.of, 'day')}"
    uid = job_uid(row.subject)
    view = "" if row.counted else ", shown, and in no sum"
    head = Text.assemble(
        (row.severity, severity_style(row.severity)),
        "  ",
        what(row.pattern, row.variant, "open"),
        "  ",
        shown_subject(row.subject),
        (f"  team {display.name(row.team)}" if row.team else "", "dim"),
        (f"  uid {uid}" if uid else "", "dim"),
    )
    hours = f"{display.hours(row.wasted.board_ms)} GPU-hours ({money}) on {days}{view}"
    action = row.action.partition("\n")[0]
    lines = (Text(hours), Text(foreign(row.summary)), *((Text(f"→ {foreign(action)}"),) if action else ()))
    return Group(head, *(indented(line, 2) for line in lines))


def print_bucket(waste: Waste, patterns: Sequence[WastePattern], console: Console) -> None:
    """What a bucket of the waste ledger is, and which detectors claim its time."""
    names = ", ".join(patterns) or "no anti-pattern: it is no waste, or what is left"
    words = f"{MEANINGS[waste]}.\nIts time is claimed by {names}. More: docs/waste.md"
    print_parts([Text.assemble((f"{LABELS[waste]}, a bucket of the waste ledger: ", "bold"), words)], console)


def print_explained(found: Explained, console: Console) -> None:
    """What an anti-pattern is, its page, and its settings."""
    head = Text.assemble((found.pattern, "bold"), f"\n{found.meaning}\n", (f"More: {found.page}", "dim"))
    settings = [part for row in found.settings for part in _setting(row)]
    title = Text.assemble(("Settings", "bold"), f", group {found.group}")
    print_parts([head, Group(title, *settings)], console)


def _setting(row: SettingRow) -> tuple[RenderableType, ...]:
    changed = "" if row.value == row.default else f" (default {row.default or 'not set'})"
    value = display.visible(row.value, 400) or "not set"
    head = Text.assemble(f"{row.key}: ", (value, "cyan"), changed)
    return indented(head, 2), indented(Text(row.meaning, "dim"), 6)
