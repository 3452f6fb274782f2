"""Where the capacity went, in a terminal.

``waste_section`` and its pieces serve the month's report and other renderers; ``print_waste`` is ``gpucost
waste``: the same section, and all recommendations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import groupby

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpucost.domain.buckets import Waste
from gpucost.reports.base import display
from gpucost.reports.base.values import ratio
from gpucost.reports.render.terminal_parts import (
    MOST_ROWS,
    WHOLE,
    caption,
    cost_text,
    filled,
    footnotes,
    indented,
    name_text,
    print_block,
    print_parts,
    severity_style,
    shown_cost,
)
from gpucost.reports.waste.recommendations import Recommendation
from gpucost.reports.waste.waste_report import DayWaste, JobWaste, WasteReport
from gpucost.reports.waste.waste_table import (
    LABELS,
    MEANINGS,
    NOBODY_LOOKED,
    alike,
    bucket_cells,
    busy_words,
    cause_team,
    is_broken,
    last_day,
    looked_at,
    mostly,
    not_told_words,
    per_day,
    proof,
    show_command,
    sum_cells,
    unknown_words,
    who,
    whole,
)

_LONGEST_TEXT = 2_000
_NO_WORDS, _NO_EXTRAS, _NO_WORDS_OF_TEAMS = (
    64,
    79,
    96,
)  # below this many columns tables drop what can be read elsewhere
_WIDEST_BAR, _NARROWEST_BAR = 40, 8
_COLUMNS = 62  # columns of the table without its bar
_LEVELS = "▁▂▃▄▅▆▇█"
_STYLES = {
    Waste.UNAVAILABLE: "red",
    Waste.GANG_STALL: "magenta",
    Waste.PREEMPTED: "bright_magenta",
    Waste.IDLE: "yellow",
    Waste.OVERSIZED: "bright_yellow",
    Waste.STARVED: "green",
    Waste.STRANDED: "bright_cyan",
    Waste.FRAGMENTED: "bright_green",
    Waste.NO_DEMAND: "bright_black",
    Waste.PRODUCTIVE: "cyan",
    Waste.UNKNOWN: "bright_black",
}


def waste_section(report: WasteReport | None, width: int, *, several: bool = False) -> list[RenderableType]:
    """The section of the month's report; ``report`` None says that the waste was not assessed. ``several``:
    there is more than one cluster, so jobs name theirs."""
    if report is None:
        return [Text.assemble(("Where the capacity went\n", "bold"), (NOBODY_LOOKED, "yellow"))]
    parts: list[RenderableType] = [Group(headline(report), bucket_table(report, width))]
    if report.teams:
        parts.append(team_table(report, width))
    if report.jobs:
        parts.append(job_table(report.jobs, width, several=several))
    if report.causes:
        parts.append(cause_table(report, width))
    return parts


def headline(report: WasteReport) -> Text:
    """How much was wasted, how much the detectors assessed, and the trend."""
    of = "capacity" if report.teams_in_scope is None else "the held time"
    hours = f"{display.hours(report.wasted.board_ms)} GPU-hours"
    figure, words = f"{cost_text(report.wasted)} {report.currency}", f" wasted: {hours}"
    if report.wasted.nano is None:
        figure, words = hours, " wasted, without a price"
    text = Text.assemble(
        ("Where the capacity went\n", "bold"),
        "at least " if report.not_told else "",
        (figure, "bold cyan"),
        f"{words}, {display.percent(report.share, 1)} of {of}",
    )
    text.append(f"\n{looked_at(report.assessment)}", "dim" if not report.assessment.missing else "yellow")
    if report.not_told:
        text.append(f"\n{not_told_words(report)}", "yellow")
    trend = _trend(report.days) if report.days else ""
    if trend:
        text.append(f"\n{trend}", "dim")
    return text


def bucket_table(report: WasteReport, width: int) -> RenderableType:
    """The buckets in order with their sum, the amount it must be equal to, and the difference."""
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
    heads = ("bucket", "GPU-hours", f"of {whole(report).lower()}", "cost", *(("",) if drawn else ()))
    table = filled("", heads, rows, (0, 4), width)
    table.rows[len(lines) - 1].end_section = True
    caption(
        table, "! could have been had back.", *footnotes([*(line.amount for line in lines), added.amount])
    )
    words = "; ".join(
        f"{line.label}: {MEANINGS[Waste(line.key)]}"
        for line in lines
        if line.is_waste and line.amount.board_ms
    )
    explained = (Text(f"{words}.", "dim"),) if words else ()
    busy = busy_words(report)
    rest = (Text(f"{busy[0].upper()}{busy[1:]}.", "dim"),) if busy else ()
    return Group(table, Text(proof(report), "bold red" if is_broken(report) else "dim"), *rest, *explained)


def team_table(report: WasteReport, width: int) -> RenderableType:
    """What each team held, what of it was wasted, in which bucket most of that is, and what is unknown."""
    teams = report.teams
    heads = ("team", "wasted h", "cost of it", "of held", "unknown h", "held h", "mostly")
    rows = [
        [
            name_text(team.team),
            Text(display.hours(team.wasted.board_ms)),
            shown_cost(team.wasted),
            Text(display.percent(team.share, 1)),
            Text(display.hours(team.unknown.board_ms)),
            Text(display.hours(team.held.board_ms)),
            Text(mostly(team)),
        ]
        for team in teams[:MOST_ROWS]
    ]
    columns = 5 if width < _NO_WORDS else 6 if width < _NO_WORDS_OF_TEAMS else 7
    table = filled("Wasted by team, of what it held", heads[:columns], rows, (0, 6), width)
    more = len(teams) - MOST_ROWS
    cut = (f"{more} more in the other formats.",) if more > 0 else ()
    caption(table, *cut, *footnotes(team.wasted for team in teams[:MOST_ROWS]))
    unknown = unknown_words(report)
    return Group(table, Text(unknown, "dim")) if unknown else table


def job_table(jobs: Sequence[JobWaste], width: int, *, several: bool = False) -> Table:
    """The costliest jobs by bucket; with their uids where there is room for everything, and with their
    clusters where there are ``several``, here or in all of the report."""
    several = several or len({job.cluster for job in jobs}) > 1
    extra = ("cluster",) if several else ()
    heads = ("job", *extra, "bucket", "GPU-hours", "cost", "team", "finding", "uid")
    rows = [
        [
            name_text(job.job),
            *((name_text(job.cluster),) if several else ()),
            Text(LABELS[Waste(job.waste)]),
            Text(display.hours(job.amount.board_ms)),
            shown_cost(job.amount),
            name_text(job.team),
            Text(display.MISSING if job.finding is None else f"#{job.finding}"),
            name_text(job.job_uid),
        ]
        for job in jobs
    ]
    columns = len(extra) + (4 if width < _NO_EXTRAS else 7 if width >= WHOLE else 6)
    texts = [at for at, head in enumerate(heads) if head not in ("GPU-hours", "cost", "finding")]
    table = filled("Jobs that wasted most", heads[:columns], rows, texts, width)
    caption(table, *footnotes(job.amount for job in jobs))
    return table


def cause_table(report: WasteReport, width: int) -> Table:
    """Every bucket of waste by team, by the money that was lost, and the page that says what to do."""
    causes = report.causes[:MOST_ROWS]
    heads = ("bucket", "GPU-hours", "cost", "team", "what to do about it")
    rows = [
        [
            Text(LABELS[Waste(row.waste)], _STYLES[Waste(row.waste)]),
            Text(display.hours(row.amount.board_ms)),
            shown_cost(row.amount),
            Text(cause_team(row)),
            Text(row.documentation, "dim"),
        ]
        for row in causes
    ]
    columns = 4 if width < _NO_EXTRAS else 5
    table = filled("What it cost, by cause", heads[:columns], rows, (0, 3, 4), width)
    more = len(report.causes) - len(causes)
    cut = (f"{more} more in --format json.",) if more > 0 else ()
    caption(table, *cut, *footnotes(row.amount for row in causes))
    return table


def print_to_do(report: WasteReport, console: Console, most: int | None = None) -> None:
    """What to do first: the saving, the sentence, the action and its patch; ``most`` of them, or all."""
    rows = report.to_do if most is None else report.to_do[:most]
    nothing = "" if rows else "\nNo finding goes on."
    print_parts([Text.assemble(("What to do first", "bold"), (nothing, "dim"))], console)
    for rank, row in enumerate(rows, 1):
        print_parts([*_to_do(rank, row, report.currency)], console, gap=0)
        print_block(row.patch, console, indent=4)
        more = [indented(Text(found, "dim"), 3) for found in (alike(row, report.currency),) if found]
        print_parts([*more, indented(Text(show_command(row.finding), "dim"), 3)], console, gap=0)
        console.print()
    if len(rows) < len(report.to_do):
        print_parts([Text(f"{len(report.to_do) - len(rows)} more in the other formats.", "dim")], console)


def _to_do(rank: int, row: Recommendation, currency: str) -> Iterator[RenderableType]:
    state = "" if row.state == "open" else f", {row.state}"
    yield Text.assemble(
        f"{rank}. ",
        (row.severity, severity_style(row.severity)),
        f"  {who(row)}  ",
        (per_day(row.daily_nano, currency), "bold"),
        f"; {last_day(row, currency)}",
    )
    about = f"{row.pattern}, finding {row.finding}{state}, since {row.since}"
    yield indented(Text(about, "dim"), 3)
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


def print_waste(report: WasteReport, console: Console) -> None:
    """Buckets with their sum and the difference, what to do first, then teams, the costliest jobs, causes."""
    buckets, *rest = waste_section(report, console.width)
    print_parts([Text(f"Waste, {report.window}", "dim"), buckets], console)
    print_to_do(report, console)
    print_parts(rest, console)
