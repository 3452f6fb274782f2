"""Budgets in a terminal: how they stand, their thresholds, and their history; a forecast of a month; and
incidents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from shlex import quote

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from gpucost.reports.base import display
from gpucost.reports.month.budget_status import ACTUAL, BudgetReport, BudgetStatus, exceed_words
from gpucost.reports.month.cost_incidents import IncidentReport, TeamIncident
from gpucost.reports.month.month_end import ForecastOrigin, ForecastScore, MonthForecast
from gpucost.reports.render.terminal_parts import filled, print_parts, shown_name

_WIDE = 100
_LONGEST = 200
"""Characters of words that a wide terminal shows of a cell."""


def print_budget_list(found: BudgetReport, console: Console) -> None:
    """A row per budget, with when it will be exceeded."""
    if not found.budgets:
        print_parts([Text("No budget that you may see is in force.")], console)
        return
    title = f"Budgets as of {found.as_of[:16].replace('T', ' ')} UTC, in {found.currency}"
    print_parts([budget_table(title, found.budgets, console.width), *_notes(found.budgets)], console)


def budget_table(title: str, budgets: Sequence[BudgetStatus], width: int) -> Table:
    """A row each; without what it is of, where all are of what they are called and there is little room."""
    of = [] if width < _WIDE and all(each.name == each.of for each in budgets) else ["of"]
    heads = ["budget", *of, "period", "total", "spent", "used", "exceedance"]
    rows = [
        [
            shown_name(each.name),
            *(shown_name(f"{each.subject.replace('_', ' ')} {each.of}") for _ in of),
            Text(each.period),
            Text(display.money(each.total_nano)),
            Text(display.money(each.spent_nano)),
            Text(display.percent(each.part, 1)),
            Text(exceed_words(each)),
        ]
        for each in budgets
    ]
    return filled(title, heads, rows, {0, len(of), len(heads) - 1}, width, _LONGEST)


def print_budget(found: BudgetReport, console: Console) -> None:
    """Each budget whole: amounts, thresholds, causes and history."""
    parts: list[RenderableType] = []
    for each in found.budgets:
        parts += _whole(each, console.width)
    heads = ["amount", "period", "in force", "carries over"]
    rows = [
        [
            Text(f"{display.money(each.amount_nano)} {each.currency}"),
            Text(each.period),
            Text(each.validity),
            Text("yes" if each.carry_over else "no"),
        ]
        for each in found.entries
    ]
    print_parts([*parts, filled("History", heads, rows, {1, 2, 3}, console.width)], console)


def print_budget_check(found: BudgetReport, console: Console) -> None:
    """The thresholds that are reached, one a line."""
    lines = [
        f"{display.name(each.name)}, {each.period}: {display.percent(one.part)} "
        f"{'reached by' if one.kind == ACTUAL else 'expected, as of'} "
        f"{(one.reached_at or '')[:16].replace('T', ' ')} UTC"
        for each in found.budgets
        for one in each.reached
    ]
    print_parts([Text("\n".join(lines) or "No threshold is reached."), *_notes(found.budgets)], console)


def _notes(budgets: Iterable[BudgetStatus]) -> Iterator[RenderableType]:
    names: dict[str, list[str]] = defaultdict(list)
    for each in budgets:
        names[each.note].append(display.name(each.name))
    for note, named in names.items():
        if note:
            yield Text(f"{', '.join(named)}: {note}", "dim")


def _whole(status: BudgetStatus, width: int) -> Iterator[RenderableType]:
    carried = "" if not status.carried_nano else f", {display.signed_money(status.carried_nano)} carried over"
    total, left = (display.money(each).replace("-", "−") for each in (status.total_nano, status.left_nano))
    spent = f"{display.money(status.spent_nano)} of {total} {status.currency}"
    yield Text.assemble(
        (f"Budget {display.name(status.name)}", "bold"),
        f"  {status.subject.replace('_', ' ')} {display.name(status.of)}, {status.period}\n",
        (spent, "bold cyan"),
        f" spent ({display.percent(status.part, 1)}){carried}; {left} left\n",
        exceed_words(status),
    )
    rows = [
        [
            Text(display.percent(each.part)),
            Text(each.kind),
            Text("not reached" if each.reached_at is None else each.reached_at[:16].replace("T", " ")),
        ]
        for each in status.thresholds
    ]
    yield filled("Thresholds", ["of it", "of", "reached"], rows, {1, 2}, width)
    if status.causes:
        causes = [[Text(display.money(each.nano)), Text(each.words)] for each in status.causes]
        yield filled("Dearest causes", [status.currency, "cause"], causes, {1}, width, _LONGEST)
    if status.note:
        yield Text(status.note, "dim")


def print_forecast(found: MonthForecast, console: Console) -> None:
    """All teams together, time that nobody held, and each team: expected, with its interval, or why not."""
    ends = [found.total, *found.teams, *([found.unallocated] if found.unallocated is not None else [])]
    rows = [
        [
            shown_name(each.team),
            Text(display.money(each.expected_nano)),
            Text(display.money(each.low_nano)),
            Text(display.money(each.high_nano)),
            Text(each.reason),
        ]
        for each in ends
    ]
    coverage = display.percent(found.coverage)
    title = f"{display.month_name(found.month)} at its end, {found.currency}"
    heads = ["team", "expected", "low", "high", "why not"]
    note = (
        f"As of {found.as_of[:10]}, {found.days_left} days left: {coverage} of past forecasts were between "
        "low and high. Adjustments are left out. Counted with what they will cost yet: "
        f"{found.running_jobs:,} jobs that run, {found.waiting_jobs:,} that wait"
        f"{f'; not counted: {found.not_counted}' if found.not_counted else ''}."
    )
    if len(found.teams) > 1:
        note += " All teams together are a forecast of their own: those of the teams need not add up to it."
    if found.committed_nano is not None:
        committed = display.money(found.committed_nano)
        note += f" Owned and committed GPUs cost {committed} in this month, held or not."
    print_parts([filled(title, heads, rows, {0, 4}, console.width, _LONGEST), Text(note, "dim")], console)


def print_score(found: ForecastScore, console: Console) -> None:
    """A row for each number of days left."""
    if not found.origins:
        print_parts(
            [Text("No past forecast can be scored yet: it takes a month that is known whole.")], console
        )
        return
    months = ", ".join(map(str, found.months))
    parts = [
        _score_table(f"Forecasts of the month's end, made again: {months}", found.origins, console.width)
    ]
    note = f"Intervals are to keep {display.percent(found.nominal)}. MASE: 1 is the same day a week before."
    if found.kept:
        parts.insert(0, _score_table("Forecasts as they were said", found.kept, console.width))
    else:
        note += " None of what was said then is kept: gpucost serve keeps forecasts, day by day."
    print_parts([*parts, Text(note, "dim")], console)


def _score_table(title: str, origins: Sequence[ForecastOrigin], width: int) -> Table:
    rows = [
        [
            Text(str(each.days_left)),
            Text(f"{each.forecasts:,}"),
            Text(display.percent(each.coverage, 1)),
            Text(display.percent(each.wape, 1)),
            Text(display.MISSING if each.mase is None else f"{float(each.mase):.2f}"),
        ]
        for each in origins
    ]
    return filled(title, ["days left", "forecasts", "kept", "WAPE", "MASE"], rows, set(), width)


def print_incidents(found: IncidentReport, console: Console) -> None:
    """A row per incident; what teams announced below."""
    if found.since is None:
        words = "The ledger has not the five weeks and more that telling what is usual takes."
        print_parts([Text(words)], console)
        return
    rows = [
        [
            shown_name(each.incident),
            Text("goes on" if each.ended is None else f"until {each.ended[:10]}"),
            Text(display.money(each.excess_nano)),
            Text(display.money(each.usual_nano)),
            Text(each.why),
        ]
        for each in found.incidents
    ]
    heads = ["incident", "", "more a week", "usual week", "most of it by"]
    title = f"Incidents from {found.since[:10]} to {found.as_of[:10]}, in {found.currency}"
    floor = f"{found.currency} {display.money(found.floor_nano)}"
    note = f"An incident is at least {floor} more a week than usual, for days, most of it by one cause."
    table = filled(title, heads, rows, {0, 1, 4}, console.width, _LONGEST)
    announced = [
        Text(f"{display.name(each.team)} announced more spending: {each.window}", "dim")
        for each in found.expected
    ]
    print_parts([table if rows else Text(f"{title}: none."), Text(note, "dim"), *announced], console)


def print_incident(found: TeamIncident, currency: str, console: Console) -> None:
    """Since when, how much by which cause, and its days."""
    until = "goes on" if found.ended is None else f"until {found.ended[:10]}"
    by = f": {display.money(found.cause_nano)} by {found.why}" if found.why else ""
    head = Text.assemble(
        (f"{display.name(found.team)} costs more than usual", "bold"),
        f"  since {found.began[:10]}, {until}\n",
        (f"{display.money(found.excess_nano)} {currency}", "bold cyan"),
        f" more in a week than the usual {display.money(found.usual_nano)}{by}\n",
        f"gpucost compare {found.week} {found.base} --team {quote(display.visible(found.team))}",
    )
    rows = [
        [Text(each.day[:10]), Text(display.money(each.excess_nano)), Text(display.money(each.usual_nano))]
        for each in found.days
    ]
    print_parts([head, filled("Weeks up to", ["day", "more", "usual"], rows, {0}, console.width)], console)
