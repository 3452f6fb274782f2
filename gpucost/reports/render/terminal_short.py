"""Reports on one screen, 80 columns by 24 lines: who pays what and what to do first; the rest is said by the
same command without ``--short``.

The figures and their names are those of the long reports. Names give way to numbers, and lists say how much
of them is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpucost.domain.buckets import Waste
from gpucost.reports.base import display
from gpucost.reports.base.values import ratio
from gpucost.reports.job.job_report import JobReport
from gpucost.reports.month.model import MonthReport
from gpucost.reports.month.provenance import UNREAD_WORDS, is_use_unread, provisional_words, read_of
from gpucost.reports.render.terminal_parts import (
    caption,
    cost_text,
    filled,
    footnotes,
    name_text,
    print_parts,
    severity_style,
    shown_cost,
    signal_text,
)
from gpucost.reports.waste.findings import FindingsReport
from gpucost.reports.waste.recommendations import Recommendation
from gpucost.reports.waste.waste_report import WasteReport
from gpucost.reports.waste.waste_table import LABELS, bucket_cells, per_day, proof, who, whole

_MOST_TEAMS, _MOST_FINDINGS = 7, 15
_TO_DO = 3
_LONGEST_TEXT = 2_000
NOTHING_GOES_ON = "No finding goes on."


def print_short_month(report: MonthReport, console: Console) -> None:
    """What was held and wasted, teams with their budgets, and the dearest things to do."""
    totals = report.totals
    head = Text.assemble(
        (f"GPU cost, {display.month_name(report.month)}", "bold"),
        (f"  {report.provenance.state}", "dim"),
        f"\n{_money(cost_text(totals.held), report.currency)} for {display.hours(totals.held.board_ms)}"
        f" GPU-hours held by {display.counted(totals.jobs, 'job')}",
    )
    if report.waste is not None:
        head.append(f"\n{_wasted_words(report.waste)}")
    if report.adjustments:
        head.append(f"\n{display.signed_money(totals.adjustments.nano)} {report.currency} of adjustments, ")
        head.append(f"{display.money(totals.adjusted.nano)} {report.currency} net; teams are before them")
    read = read_of(report.provenance.clusters, report.month.window)
    if read:
        head.append(f"\n{read}: the rest is in no figure here", "bold yellow")
    if is_use_unread(report.methods):
        head.append(f"\n{UNREAD_WORDS}", "bold yellow")
    if provisional_words(report.provenance.clusters):
        head.append("\nprovisional: some of it may still change", "bold yellow")
    parts: list[RenderableType] = [head, _team_table(report, console.width)]
    if report.waste is not None:
        parts.append(_to_do(report.waste.to_do, report.currency, console.width, _TO_DO))
    print_parts(parts, console, gap=0)


def _money(figure: str, currency: str) -> str:
    return figure if figure == "no price" else f"{figure} {currency}"


def _wasted_words(report: WasteReport) -> str:
    at_least = "at least " if report.not_told else ""
    hours = f"{display.hours(report.wasted.board_ms)} GPU-hours"
    of = "capacity" if report.teams_in_scope is None else "the held time"
    figure = _money(cost_text(report.wasted), report.currency)
    return f"{at_least}{figure} wasted: {hours}, {display.percent(report.share, 1)} of {of}"


def _team_table(report: MonthReport, width: int) -> Table:
    """Teams by cost. A team without a budget has dashes: none is not 0."""
    shown = report.teams[:_MOST_TEAMS]
    rows = [
        [
            name_text(team.row.group["team"]),
            shown_cost(team.row.held),
            Text(display.percent(ratio(team.row.held.nano, report.totals.held.nano), 1)),
            Text(display.MISSING if team.budget is None else display.money(team.budget.monthly_nano)),
            Text(display.MISSING if team.budget is None else display.percent(team.budget.part, 1)),
        ]
        for team in shown
    ]
    rows.append([Text("all"), shown_cost(report.totals.held), Text(""), Text(""), Text("")])
    table = filled("", ("team", "cost", "of cost", "budget of the month", "used"), rows, (0,), width)
    more = len(report.teams) - len(shown)
    notes = footnotes([*(team.row.held for team in shown), report.totals.held])
    caption(table, *([f"{more:,} more teams."] if more else []), *notes)
    return table


def _to_do(rows: Sequence[Recommendation], currency: str, width: int, most: int) -> RenderableType:
    """Two lines each: what it costs and whose it is; the change."""
    lines = [
        Text(
            "What to do first: gpucost findings show NUMBER has all of it" if rows else NOTHING_GOES_ON,
            "bold",
        )
    ]
    for rank, row in enumerate(rows[:most], 1):
        lines += _two_lines(rank, row, currency)
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
        line.truncate(width - 2, overflow="ellipsis")
    return Group(*lines)


def _two_lines(rank: int, row: Recommendation, currency: str) -> Iterator[Text]:
    yield Text.assemble(
        f"{rank}. ",
        (row.severity, severity_style(row.severity)),
        f"  {who(row)}  ",
        (per_day(row.daily_nano, currency), "bold"),
        (f"  finding {row.finding}", "dim"),
    )
    yield Text(f"   → {display.visible(row.action, _LONGEST_TEXT)}")


def print_short_waste(report: WasteReport, console: Console) -> None:
    """The buckets that have something, their proof, and the dearest things to do."""
    rows = [
        [
            Text(f"{'!' if line.is_waste else ' '} {line.label}"),
            Text(line.hours),
            Text(line.percent),
            shown_cost(line.amount),
        ]
        for line in bucket_cells(report)
        if line.amount.board_ms
    ]
    table = filled(
        "", ("bucket", "GPU-hours", f"of {whole(report).lower()}", "cost"), rows, (0,), console.width
    )
    head = Text.assemble(("Where the capacity went\n", "bold"), _wasted_words(report))
    to_do = _to_do(report.to_do, report.currency, console.width, _TO_DO - 1)
    print_parts([head, table, Text(proof(report), "dim"), to_do], console, gap=0)


def print_short_findings(report: FindingsReport, console: Console) -> None:
    """The dearest, a line each."""
    shown = report.findings[:_MOST_FINDINGS]
    rows = [
        [
            Text(row.severity, severity_style(row.severity)),
            Text(row.pattern),
            name_text(row.subject.name),
            name_text(row.team),
            Text(display.money(row.wasted.nano)),
            Text(str(row.id)),
        ]
        for row in shown
    ]
    heads = ("severity", "what", "subject", "team", "last day", "id")
    title = f"Findings, by what they wasted in their last day; money in {report.currency}"
    table = filled(title, heads, rows, (0, 1, 2, 3), console.width, 26)
    more = len(report.findings) - len(shown)
    caption(table, *([f"{more:,} more."] if more else []), "The change to make: gpucost findings show ID")
    print_parts([table], console)


def print_short_job(report: JobReport, console: Console) -> None:
    """What it cost and how busy it was, what it wasted, and the first things to change."""
    busy = report.utilisation.busy
    head = Text.assemble(
        (display.name(report.job), "bold"),
        f"  {display.visible(report.job_kind)} in {display.name(report.namespace)}",
        f"\n{_money(cost_text(report.held), report.currency)} for {display.hours(report.held.board_ms)}"
        f" GPU-hours; busy {signal_text(busy)}",
    )
    parts: list[RenderableType] = [head]
    if report.account is not None:
        rows = [
            [
                Text(LABELS[Waste(row.waste)]),
                Text(display.hours(row.amount.board_ms)),
                Text(display.percent(row.share, 1)),
                shown_cost(row.amount),
            ]
            for row in report.account.buckets
            if row.amount.board_ms
        ]
        parts.append(filled("", ("", "GPU-hours", "of held", "cost"), rows, (0,), console.width))
    live = [each for each in report.findings if each.state != "resolved" and each.until is None]
    lines = [Text("What to change" if live else NOTHING_GOES_ON, "bold")]
    for rank, each in enumerate(live[:_TO_DO], 1):
        lines.append(Text(f"{rank}. {display.visible(each.action, _LONGEST_TEXT)}"))
        lines.append(Text(f"   gpucost findings show {each.finding}", "dim"))
    print_parts([*parts, Group(*lines)], console, gap=0)
