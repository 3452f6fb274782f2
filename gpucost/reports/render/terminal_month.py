"""The month and allocations in a terminal, for any rich Console.

Names are shown, never interpreted as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpucost.domain.buckets import Bucket
from gpucost.domain.time import iso
from gpucost.reports.base import display
from gpucost.reports.base.values import NOTHING, CostAmount, ratio
from gpucost.reports.month.allocations import AllocationRow, Allocations
from gpucost.reports.month.change_causes import cause_words
from gpucost.reports.month.model import (
    NO_ADJUSTMENTS,
    GroupRow,
    JobCostRow,
    MonthReport,
    MonthTotals,
    StatementSummary,
    budget_words,
    jobs_of_several,
)
from gpucost.reports.month.provenance import (
    UNREAD_WORDS,
    ReportProvenance,
    is_use_unread,
    provisional_words,
    read_of,
)
from gpucost.reports.render.terminal_budgets import budget_table
from gpucost.reports.render.terminal_parts import (
    LONGEST_TEXT,
    MOST_ROWS,
    caption,
    cost_text,
    filled,
    footnotes,
    level_lines,
    method_table,
    new_table,
    print_parts,
    problem_table,
    shown_cost,
    shown_name,
    shown_names,
    signal_text,
    three_signals,
)
from gpucost.reports.render.terminal_waste import print_to_do, waste_section

_NARROW = 116  # below this many columns the tables drop repeated values
_NARROW_ALLOCATIONS = 100
_FEW_TO_DO = 5
_FEW_CAUSES = 3
_MOST_JOB_NAME = 34
_STYLES = {
    Bucket.HELD: "cyan",
    Bucket.UNALLOCATED: "yellow",
    Bucket.UNAVAILABLE: "red",
    Bucket.UNKNOWN: "bright_black",
}
# Distinguishable without colour too.
_BLOCKS = {Bucket.HELD: "█", Bucket.UNALLOCATED: "▒", Bucket.UNAVAILABLE: "▚", Bucket.UNKNOWN: "░"}
_SIGNALS = "busy: a kernel ran; SM, tensor: part of the processors and of their tensor cores that worked."
_BRACKETS = "In brackets: the part of the held time that was observed."


def print_month(report: MonthReport, console: Console) -> None:
    """Headline, teams with budgets and what they pay, what to do first; then what that rests on: jobs,
    capacity, waste, models, problems and provenance."""
    several = len(report.clusters) > 1
    print_parts([_headline(report), *_payers(report, console.width)], console)
    if report.waste is not None:
        print_to_do(report.waste, console, _FEW_TO_DO)
    print_parts([*_evidence(report, console.width, several=several)], console)


def _payers(report: MonthReport, width: int) -> Iterator[RenderableType]:
    """Who holds and pays what, and the budgets."""
    yield _teams(report, width >= _NARROW)
    if any(team.has_account for team in report.teams):
        yield _accounts(report, width)
    if report.budgets:
        yield budget_table("Budgets of the list in the team rules", report.budgets, width)
    if report.charges is not None:
        yield from summary_parts(report.charges, width)
        yield Text(f"By the charge policy {display.visible(report.charges.policy)}.")
    elif report.uncharged:
        yield Text(f"What teams pay is not known: {display.visible(report.uncharged, 500)}.")


def _evidence(report: MonthReport, width: int, *, several: bool) -> Iterator[RenderableType]:
    """Where the money went, and how exact that is."""
    yield _jobs("Costliest jobs", report.top_jobs, width, several)
    if report.capacity is not None:
        yield _capacity(report, min(width, 110) - 2)
    yield from waste_section(report.waste, width - 1, several=several)
    if report.capacity is not None:
        yield _models(report)
    if several:
        yield _clusters(report)
    if report.adjustments:
        yield _adjustments(report)
    yield method_table(report.methods)
    yield problem_table(report.problems)
    yield _provenance(report.provenance)


def summary_parts(found: StatementSummary, width: int) -> Iterator[RenderableType]:
    """What every team pays; what the platform keeps, and the proof that nothing is left out."""
    adjusted = any(each.adjusted_nano for each in found.teams)
    heads = ["team", "cost centre", "GPU-h", *(["charged", "adjusted"] if adjusted else []), "to pay"]
    rows = [
        [
            shown_name(each.team),
            shown_name(each.cost_centre) if each.cost_centre else Text(display.MISSING),
            Text(display.hours(each.board_ms)),
            *([_signed(each.charged_nano), _signed(each.adjusted_nano)] if adjusted else []),
            _signed(each.total_nano),
        ]
        for each in found.teams
    ]
    sums = [sum(getattr(each, name) for each in found.teams) for name in _SUMMED]
    money = [_signed(nano) for nano in (sums[1:] if adjusted else sums[3:])]
    rows.append([Text("all teams", "bold"), Text(""), Text(display.hours(sums[0])), *money])
    yield filled(f"What each team pays, {found.currency}", heads, rows, {0, 1}, width)
    proof = found.proof
    if proof is None:
        return
    parts = [
        [Text(name), Text(display.hours(board_ms).replace("-", "−")), _signed(nano)]
        for name, board_ms, nano in (
            ("charged to teams", proof.charged_board_ms, proof.charged_nano),
            ("kept by the platform", proof.kept_board_ms, proof.kept_nano),
            ("what the capacity cost", proof.capacity_board_ms, proof.capacity_nano),
        )
    ]
    yield filled("Nothing is left out", ["before adjustments", "GPU-h", found.currency], parts, {0}, width)
    off = f"{proof.difference_board_ms} GPU-ms, {proof.difference_nano} nano-{found.currency}"
    yield Text(f"Difference {off}.")


_SUMMED = ("board_ms", "charged_nano", "adjusted_nano", "total_nano")


def _signed(nano: int) -> Text:
    return Text(display.money(nano).replace("-", "−"))


def print_allocations(allocations: Allocations, console: Console) -> None:
    """One row per step and group."""
    title = f"Allocations {allocations.window}, idle {allocations.idle.value}, {allocations.currency}"
    table = new_table(title)
    names = ("from",) if allocations.step_ms is not None else ()
    for name in (*names, *allocations.group_by):
        table.add_column(name, overflow="fold", min_width=len(name))
    wide = console.width >= _NARROW_ALLOCATIONS
    shares = wide or any(row.shared_idle != NOTHING for row in allocations.rows)
    heads = ("held h", "held", *(("shared idle",) if shares else ()), "nobody's", "total", "busy")
    cells = [_allocation_cells(row, shares, wide) for row in allocations.rows]
    last = (*[Text("")] * (len(heads) - 2), shown_cost(allocations.total), Text(""))
    for head, *column in zip(heads, *cells, last, strict=True):
        # A number that is cut reads as another number: names are folded first, then the table is wider than
        # the screen.
        widest = max(len(cell) for cell in (head, *column))
        table.add_column(head, justify="right", no_wrap=True, min_width=widest)
    for row, numbers in zip(allocations.rows, cells, strict=True):
        start = (
            [] if allocations.step_ms is None else [Text(iso(row.window.start_ms).removesuffix("T00:00:00Z"))]
        )
        table.add_row(*start, *(shown_name(value) for value in row.group.values()), *numbers)
    table.add_section()
    table.add_row(*[Text("")] * (len(names) + len(allocations.group_by)), *last)
    shown = [cost for row in allocations.rows for cost in _allocation_costs(row)]
    caption(table, *footnotes([*shown, allocations.total]))
    console.print(table, crop=False)


def _headline(report: MonthReport) -> Text:
    held = report.totals.held
    scope = "all teams" if report.teams_in_scope is None else shown_names(report.teams_in_scope)
    if report.clusters_in_scope is not None:
        scope += f", of {shown_names(report.clusters_in_scope)} only"
    text = Text.assemble(
        (f"GPU cost, {display.month_name(report.month)}", "bold"),
        (f"  {report.provenance.state}, {scope}\n", "dim"),
        ("No price" if held.nano is None else f"{display.money(held.nano)} {report.currency}", "bold cyan"),
        f" for {display.hours(held.board_ms)} GPU-hours held by {display.counted(report.totals.jobs, 'job')}",
    )
    if report.totals.change is not None:
        change = report.totals.change
        money = "" if change.nano is None else f"{display.signed_money(change.nano)} {report.currency}, "
        text.append(f", {money}{display.relative(change)} against the month before")
    else:
        text.append(f", {display.MISSING} against the month before")
    if report.comparison.note:
        text.append(f" ({report.comparison.note})")
    for cause in (report.causes or ())[:_FEW_CAUSES]:
        text.append(f"\n  {display.signed_money(cause.nano)}", "bold")
        text.append(f" {display.name(cause.team)}: {cause_words(cause)}")
    if report.adjustments:
        totals = report.totals
        text.append(f"\n{display.signed_money(totals.adjustments.nano)} {report.currency} of adjustments, ")
        text.append(f"{display.money(totals.adjusted.nano)} {report.currency} net", "bold cyan")
    if report.clusters_in_scope is not None:
        text.append(f"\n{NO_ADJUSTMENTS}", "dim")
    for line in level_lines(report.totals.utilisation):
        text.append(f"\n{line}", "dim")
    if is_use_unread(report.methods):
        text.append(f"\n{UNREAD_WORDS}", "bold yellow")
    read = read_of(report.provenance.clusters, report.month.window)
    if read:
        text.append(f"\n{read}: the rest is in no figure here", "bold yellow")
    provisional = provisional_words(report.provenance.clusters)
    if provisional:
        text.append(f"\n{provisional}", "bold yellow")
    if held.unpriced_board_ms:
        unpriced = display.hours_or_less(held.unpriced_board_ms)
        text.append(f"\n{unpriced} of these GPU-hours have no price", "bold red")
    return text


def _capacity(report: MonthReport, width: int) -> RenderableType:
    capacity = report.capacity
    assert capacity is not None
    amounts = {bucket: getattr(capacity.buckets, bucket.value) for bucket in _STYLES}
    bar = Text()
    for bucket, cells in _dealt(width, [amount.board_ms for amount in amounts.values()], list(amounts)):
        bar.append(_BLOCKS[bucket] * cells, _STYLES[bucket])
    table = new_table("")
    table.add_column("capacity")
    for head in ("GPU-hours", "of capacity", "cost"):
        table.add_column(head, justify="right", no_wrap=True)
    for bucket, amount in amounts.items():
        share = ratio(amount.board_ms, capacity.buckets.capacity.board_ms)
        label = Text.assemble((f"{_BLOCKS[bucket]} ", _STYLES[bucket]), display.PARTS[bucket])
        table.add_row(label, display.hours(amount.board_ms), display.percent(share, 1), shown_cost(amount))
    table.add_section()
    table.add_row(
        "capacity", display.hours(capacity.capacity.board_ms), "", shown_cost(capacity.capacity), style="bold"
    )
    proof = (
        f"difference {capacity.difference_board_ms} GPU-ms, {capacity.difference_nano} nano-{report.currency}"
    )
    wrong = capacity.difference_board_ms or capacity.difference_nano
    caption(table, *footnotes((*amounts.values(), capacity.capacity)))
    return Group(bar, table, Text(proof, "bold red" if wrong else "dim"))


def _dealt(width: int, parts: Sequence[int], names: Sequence[Bucket]) -> Iterable[tuple[Bucket, int]]:
    """Cells of a bar; a part of any size gets at least one."""
    whole = sum(parts) or 1
    for bucket, part in zip(names, parts, strict=True):
        yield bucket, max(1, part * width // whole) if part else 0


def _teams(report: MonthReport, wide: bool) -> Table:
    """With adjustments, the money takes the room of the signals: it is what such a month is read for."""
    table = new_table("Teams")
    table.add_column("team", overflow="ellipsis", no_wrap=True, max_width=28)
    adjusted = bool(report.adjustments)
    money = ("adjustments", "net") if adjusted else ()
    for head in ("cost", *money, "GPU-hours", *(() if adjusted and not wide else ("jobs",))):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("of cost", no_wrap=True, justify="left" if wide else "right")
    heads = _signal_heads(wide, adjusted)
    for head in (*heads, *(("change",) if report.totals.change else ())):
        table.add_column(head, justify="right", no_wrap=True)
    for team in report.teams[:MOST_ROWS]:
        cells = _team_cells(
            team.row, (team.adjustments, team.adjusted), adjusted, _share(team.row, wide), wide
        )
        table.add_row(shown_name(team.row.group["team"]), *cells)
    table.add_section()
    totals = report.totals
    cells = _team_cells(totals, (totals.adjustments, totals.adjusted), adjusted, Text(""), wide)
    table.add_row("all", *cells, style="bold")
    more = len(report.teams) - MOST_ROWS
    cut = (f"{more} more in the other formats.",) if more > 0 else ()
    shown = [amount for team in report.teams[:MOST_ROWS] for amount in (team.row.held, team.adjusted)]
    several = jobs_of_several(report) if wide or not adjusted else ""
    notes = (several, _BRACKETS if heads else "", _SIGNALS if "SM" in heads else "")
    caption(table, *cut, *footnotes([*shown, totals.held]), *filter(None, notes))
    return table


def _accounts(report: MonthReport, width: int) -> Table:
    """The cost centre and budget of each team. A team without a budget has a dash: none is not 0."""
    teams = [team for team in report.teams if team.has_account][:MOST_ROWS]
    rows = [
        [
            shown_name(team.row.group["team"]),
            shown_name(team.cost_centre or ""),
            shown_cost(team.row.held),
            Text(display.MISSING if team.budget is None else display.money(team.budget.monthly_nano)),
            Text(display.MISSING if team.budget is None else display.percent(team.budget.part, 1)),
        ]
        for team in teams
    ]
    heads = ("team", "cost centre", "cost", "budget of the month", "used")
    table = filled("Cost centres and budgets", heads, rows, (0, 1), width)
    caption(table, *filter(None, (budget_words(report),)), *footnotes(team.row.held for team in teams))
    return table


def _signal_heads(wide: bool, adjusted: bool) -> tuple[str, ...]:
    if adjusted:
        return ("busy",) if wide else ()
    return ("busy", "SM", "tensor") if wide else ("busy",)


def _team_cells(
    row: GroupRow | MonthTotals,
    corrections: tuple[CostAmount, CostAmount],
    adjusted: bool,
    share: Text,
    wide: bool,
) -> list[str | Text]:
    adjustments, net = corrections
    signals = dict(zip(("busy", "SM", "tensor"), three_signals(row.utilisation), strict=True))
    cells: list[str | Text] = [shown_cost(row.held)]
    if adjusted:
        cells += [display.signed_money(adjustments.nano), shown_cost(net)]
    cells.append(display.hours(row.held.board_ms))
    if wide or not adjusted:
        cells.append(f"{row.jobs:,}")
    cells += [share, *(signal_text(signals[head]) for head in _signal_heads(wide, adjusted))]
    return cells if row.change is None else [*cells, display.relative(row.change)]


def _jobs(title: str, jobs: Sequence[JobCostRow], width: int, several: bool) -> Table:
    """``several``: there is more than one cluster, so each job names its own."""
    wide = width >= _NARROW
    more = ("kind", "namespace") if wide else ()
    names = ("job", *(("cluster",) if several else ()), "team", *more)
    rows = [
        [
            *_job_names(job, wide, several),
            shown_cost(job.held),
            Text(display.hours(job.held.board_ms)),
            Text(signal_text(job.utilisation.busy)),
        ]
        for job in jobs
    ]
    heads = (*names, "cost", "GPU-hours", "busy")
    table = filled(title, heads, rows, range(len(names)), width, _MOST_JOB_NAME)
    caption(table, *footnotes(job.held for job in jobs))
    return table


def _job_names(job: JobCostRow, wide: bool, several: bool) -> Iterator[Text]:
    yield shown_name(job.job)
    if several:
        yield shown_name(job.cluster)
    yield Text(shown_names(job.teams))
    if wide:
        yield from (shown_name(job.job_kind), shown_name(job.namespace))


def _models(report: MonthReport) -> Table:
    assert report.capacity is not None
    table = new_table("GPU models, GPU-hours and cost")
    table.add_column("model", overflow="ellipsis", no_wrap=True, max_width=28)
    for bucket in _STYLES:
        table.add_column(display.PARTS[bucket], justify="right", no_wrap=True)
    shown: list[CostAmount] = []
    for model in report.capacity.models:
        cells = [getattr(model.buckets, bucket.value) for bucket in _STYLES]
        table.add_row(
            shown_name(model.model), *(Text(f"{display.hours(c.board_ms)}\n{cost_text(c)}") for c in cells)
        )
        shown += cells
    caption(table, *footnotes(shown))
    return table


def _clusters(report: MonthReport) -> Table:
    table = new_table("Clusters, held")
    table.add_column("cluster", overflow="ellipsis", no_wrap=True, max_width=28)
    for head in ("cost", "GPU-hours", "jobs", "of cost"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in report.clusters[:MOST_ROWS]:
        numbers = (Text(display.hours(row.held.board_ms)), Text(f"{row.jobs:,}"), _share(row, wide=False))
        table.add_row(shown_name(row.group["cluster"]), shown_cost(row.held), *numbers)
    caption(table, *footnotes([row.held for row in report.clusters[:MOST_ROWS]]))
    return table


def _adjustments(report: MonthReport) -> Table:
    table = new_table("Adjustments")
    for head in ("team", "reason", "reference", "author"):
        table.add_column(head, overflow="ellipsis", no_wrap=True)
    table.add_column("amount", justify="right", no_wrap=True)
    for item in report.adjustments[:MOST_ROWS]:
        names = (item.team, item.reason, item.reference, item.author)
        table.add_row(*(shown_name(name) for name in names), display.signed_money(item.nano))
    return table


def _provenance(facts: ReportProvenance) -> Text:
    lines = [
        f"{display.visible(item.cluster)}: {display.counted(item.windows, 'window')} until {item.until}, "
        f"observed {display.percent(item.observed, 1)}, missing {display.span_of_days(item.missing_ms)}"
        for item in facts.clusters
    ]
    lines += [
        f"not observed: {display.name(item.cluster)} {item.span}, {display.duration(item.unobserved_ms)}"
        for item in facts.unobserved
    ]
    if facts.unobserved_more:
        lines.append(f"not observed: {facts.unobserved_more:,} shorter spans more")
    rates = display.counted(len(facts.rates), "rate")
    lines.append(f"{rates}; sources {shown_names(facts.sources, LONGEST_TEXT)}; gpucost {facts.code_version}")
    lines.append(f"ledger {facts.digest}")
    return Text("\n".join(lines), "dim")


def _allocation_cells(row: AllocationRow, shares: bool, wide: bool) -> tuple[Text, ...]:
    """``shares`` keeps what was shared, ``wide`` the part of the time that a signal was measured on."""
    hours, busy = Text(display.hours(row.held.board_ms)), row.utilisation.busy
    held, shared, *others = (shown_cost(amount) for amount in _allocation_costs(row))
    costs = (held, *((shared,) if shares else ()), *others)
    return (hours, *costs, Text(signal_text(busy) if wide or busy is None else display.percent(busy.mean)))


def _allocation_costs(row: AllocationRow) -> tuple[CostAmount, ...]:
    nobody = row.unallocated + row.unavailable + row.unknown
    return (row.held, row.shared_idle, nobody, row.total)


def _share(row: GroupRow, wide: bool) -> Text:
    share = row.share_of_cost or Fraction(0)
    bar = ("█" * round(share * 10)).ljust(10, "·") if wide else ""
    return Text(f"{bar} {display.percent(row.share_of_cost, 1):>6}".strip())
