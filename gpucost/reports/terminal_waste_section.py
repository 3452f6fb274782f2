"""Where the capacity went, in a terminal: the pieces that the month's report and other printers stand on."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from fractions import Fraction
from itertools import groupby

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpucost.domain.waste import Waste
from gpucost.reports import display
from gpucost.reports.terminal_parts import (
    MOST_ROWS,
    caption,
    cost_text,
    footnotes,
    indented,
    new_table,
    print_block,
    print_parts,
    severity_style,
    shown_cost,
    shown_name,
)
from gpucost.reports.values import ratio
from gpucost.reports.waste import DayWaste, JobWaste, TeamWaste, ToDo, WasteReport
from gpucost.reports.waste_table import (
    LABELS,
    NOBODY_LOOKED,
    bucket_cells,
    is_broken,
    looked_at,
    mostly,
    per_month,
    proof,
    sum_cells,
    who,
    whole,
)

_LONGEST_TEXT, _LONGEST_NAME = 2_000, 40
_NO_WORDS, _NO_EXTRAS = 64, 79  # below this many columns tables drop what can be read elsewhere
_WIDEST_BAR, _NARROWEST_BAR = 40, 8
_COLUMNS = 62  # of the table without its bar
_LEVELS = "▁▂▃▄▅▆▇█"
_STYLES = {
    Waste.UNAVAILABLE: "red",
    Waste.GANG_STALL: "magenta",
    Waste.PREEMPTED: "bright_magenta",
    Waste.IDLE: "yellow",
    Waste.OVERSIZED: "bright_yellow",
    Waste.STARVED: "green",
    Waste.FRAGMENTED: "bright_green",
    Waste.NO_DEMAND: "bright_black",
    Waste.PRODUCTIVE: "cyan",
    Waste.UNKNOWN: "bright_black",
}


def waste_section(report: WasteReport | None, width: int) -> list[RenderableType]:
    """The section of the month's report; ``report`` None says that nobody has looked."""
    if report is None:
        return [Text.assemble(("Where the capacity went\n", "bold"), (NOBODY_LOOKED, "yellow"))]
    parts: list[RenderableType] = [Group(headline(report), bucket_table(report, width))]
    if report.teams:
        parts.append(team_table(report.teams, width))
    if report.jobs:
        parts.append(job_table(report.jobs, width))
    return parts


def headline(report: WasteReport) -> Text:
    """How much was wasted, how much the detectors looked at, and the trend."""
    of = "capacity" if report.teams_in_scope is None else "the held time"
    text = Text.assemble(
        ("Where the capacity went\n", "bold"),
        (f"{cost_text(report.wasted)} {report.currency}", "bold cyan"),
        f" wasted: {display.hours(report.wasted.board_ms)} GPU-hours, "
        f"{display.percent(report.share, 1)} of {of}",
    )
    text.append(f"\n{looked_at(report.assessment)}", "dim" if not report.assessment.missing else "yellow")
    trend = _trend(report.days) if report.days else ""
    if trend:
        text.append(f"\n{trend}", "dim")
    return text


def bucket_table(report: WasteReport, width: int) -> RenderableType:
    """The buckets in order with their sum, what they must add up to, and the difference."""
    room = min(_WIDEST_BAR, width - _COLUMNS)
    drawn = room >= _NARROWEST_BAR
    rows: list[list[Text]] = []
    lines, added = bucket_cells(report), sum_cells(report)
    for line in lines:
        waste = Waste(line.key)
        mark = "!" if line.is_waste else "?" if waste is Waste.UNKNOWN else " "
        label = Text.assemble((f"{mark} ", "bold"), line.label)
        block = "░" if waste is Waste.UNKNOWN else "█"
        bar = Text(block * _cells(line.share, room), _STYLES[waste])
        rows.append([label, *map(Text, (line.hours, line.percent)), shown_cost(line.amount), bar])
    capacity = (whole(report), display.hours(report.capacity.board_ms), "", cost_text(report.capacity))
    sums = added.label if width >= _NO_WORDS else "Sum"
    for cells in ((sums, added.hours, added.percent, cost_text(added.amount)), capacity):
        rows.append([Text(text, "bold") for text in (f"  {cells[0]}", *cells[1:], "")])
    heads = ("bucket", "GPU-hours", "share", "cost", *(("",) if drawn else ()))
    table = _filled("", heads, rows, texts=(0, 4))
    table.rows[len(lines) - 1].end_section = True
    caption(
        table, "! could have been had back.", *footnotes([*(line.amount for line in lines), added.amount])
    )
    return Group(table, Text(proof(report), "bold red" if is_broken(report) else "dim"))


def team_table(teams: Sequence[TeamWaste], width: int) -> Table:
    """What each team held, what of it was wasted, and in which bucket most of that is."""
    heads = ("team", "wasted h", "cost", "share", "mostly", "held h")
    rows = [
        [
            shown_name(team.team),
            Text(display.hours(team.wasted.board_ms)),
            shown_cost(team.wasted),
            Text(display.percent(team.share, 1)),
            Text(mostly(team)),
            Text(display.hours(team.held.board_ms)),
        ]
        for team in teams[:MOST_ROWS]
    ]
    columns = 4 if width < _NO_WORDS else 5 if width < _NO_EXTRAS else 6
    table = _filled("Wasted by team, of what it held", heads[:columns], rows, texts=(0, 4))
    more = len(teams) - MOST_ROWS
    cut = (f"{more} more in the other formats.",) if more > 0 else ()
    caption(table, *cut, *footnotes(team.wasted for team in teams[:MOST_ROWS]))
    return table


def job_table(jobs: Sequence[JobWaste], width: int) -> Table:
    """The costliest jobs by bucket."""
    heads = ("job", "bucket", "GPU-hours", "cost", "team", "finding")
    rows = [
        [
            shown_name(job.job),
            Text(LABELS[Waste(job.waste)]),
            Text(display.hours(job.amount.board_ms)),
            shown_cost(job.amount),
            shown_name(job.team),
            Text(display.MISSING if job.finding is None else f"#{job.finding}"),
        ]
        for job in jobs
    ]
    columns = 4 if width < _NO_EXTRAS else 6
    table = _filled("What it cost: jobs that wasted most", heads[:columns], rows, texts=(0, 1, 4))
    caption(table, *footnotes(job.amount for job in jobs))
    return table


def _filled(title: str, heads: Sequence[str], rows: Sequence[Sequence[Text]], texts: Container[int]) -> Table:
    """A table of as many columns as ``heads``; those at ``texts`` hold text, the others numbers, which are
    never cut: a number that is cut is another number."""
    table = new_table(title)
    for at, head in enumerate(heads):
        if at in texts:
            table.add_column(head, overflow="ellipsis", no_wrap=True, max_width=_LONGEST_NAME)
        else:
            widest = max((row[at].cell_len for row in rows), default=0)
            table.add_column(head, justify="right", no_wrap=True, min_width=max(widest, len(head)))
    for row in rows:
        table.add_row(*row[: len(heads)])
    return table


def print_to_do(report: WasteReport, console: Console, most: int | None = None) -> None:
    """What to do first: what comes back, the sentence, the action and its patch; ``most`` of them, or all."""
    rows = report.to_do if most is None else report.to_do[:most]
    nothing = "" if rows else "\nNo finding goes on."
    print_parts([Text.assemble(("What to do first", "bold"), (nothing, "dim"))], console)
    for rank, row in enumerate(rows, 1):
        print_parts([*_to_do(rank, row, report.currency)], console, gap=0)
        print_block(row.patch, console, indent=4)
        console.print()
    if len(rows) < len(report.to_do):
        print_parts([Text(f"{len(report.to_do) - len(rows)} more in the other formats.", "dim")], console)


def _to_do(rank: int, row: ToDo, currency: str) -> Iterator[RenderableType]:
    yield Text.assemble(
        f"{rank}. ",
        (row.severity, severity_style(row.severity)),
        f"  {who(row)}  ",
        (per_month(row, currency), "bold"),
        (f"  finding {row.finding}, since {row.since}", "dim"),
    )
    yield indented(Text(display.visible(row.summary, _LONGEST_TEXT)), 3)
    yield indented(Text(f"→ {display.visible(row.action, _LONGEST_TEXT)}", "bold"), 3)


def _cells(share: Fraction | None, room: int) -> int:
    """Cells of a bar; a part of any size gets at least one."""
    return max(1, int(share * room)) if share else 0


def _trend(days: Sequence[DayWaste]) -> str:
    """The wasted share of each day as one character, against the worst; empty where nothing was wasted."""
    shares: dict[str, Fraction] = {}
    for day, rows in groupby(days, key=lambda row: row.day):
        found = list(rows)
        wasted = sum(row.amount.board_ms for row in found if Waste(row.waste).is_waste)
        shares[day] = ratio(wasted, sum(row.amount.board_ms for row in found)) or Fraction(0)
    worst = max(shares, key=lambda day: shares[day])
    if not shares[worst]:
        return ""
    top = len(_LEVELS) - 1
    drawn = "".join(_LEVELS[round(share / shares[worst] * top)] for share in shares.values())
    return f"Per day {drawn} at most {display.percent(shares[worst], 1)}, on {worst}"
