"""The report of a job in a terminal: what it cost, how well it used what it held, and what to change.

In the manner of jobstats: a bar for each GPU, and notes at the end, the most important first, each with the
change to make.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpucost.domain.time import MINUTE_MS, iso
from gpucost.domain.waste import Waste
from gpucost.reports import display
from gpucost.reports.job import JobReport, TraceLine
from gpucost.reports.job_seen import GpuUse, JobSeen, Wait
from gpucost.reports.job_waste import JobAccount, JobFinding
from gpucost.reports.terminal_parts import (
    MOST_ROWS,
    bar,
    caption,
    cost_text,
    footnotes,
    indented,
    level_lines,
    new_table,
    print_block,
    print_parts,
    problem_table,
    severity_style,
    shown_cost,
    shown_name,
    shown_names,
    signal_text,
    three_signals,
)
from gpucost.reports.values import Amount
from gpucost.reports.waste_table import LABELS, looked_at

_NARROW = 100  # below this many columns a GPU's line leaves out what is not needed to tell whether it works
_LONGEST_TEXT = 2_000
NOT_READ = "GPU by GPU, and waits: not read from the source. Ask for them with --gpus."


def print_job(report: JobReport, console: Console) -> None:
    """What the job held and cost, each GPU, waits, where its time went, the trace, and what to change."""
    parts: list[RenderableType] = [_headline(report), _signals_line(report)]
    parts += [
        Text(
            f"{display.money(item.per_unit_nano, 9)} {report.currency} per {display.name(item.name)}"
            f" ({display.money(item.per_million_nano)} per million)"
        )
        for item in report.progress
    ]
    parts += _seen(report.seen, console.width)
    if report.account is not None:
        parts += _account(report.account)
    parts += [_trace(report.lines), problem_table(report.problems)]
    print_parts(parts, console)
    _print_notes(report, console)


def _headline(report: JobReport) -> Text:
    pods = display.counted(len(report.pods), "pod")
    nodes = display.counted(len(report.nodes), "node")
    return Text.assemble(
        (display.name(report.job), "bold"),
        f"  {display.visible(report.job_kind)} in {display.name(report.namespace)}\n",
        (f"{display.money(report.held.nano)} {report.currency}", "bold cyan"),
        f" for {display.hours(report.held.board_ms)} GPU-hours of {shown_names(report.models)}\n",
        (f"uid {display.name(report.job_uid)} · team {shown_names(report.teams)} · queue ", "dim"),
        (f"{shown_names(report.queues)} · {pods} on {nodes}\n", "dim"),
        (f"{report.span}", "dim"),
    )


def _signals_line(report: JobReport) -> Text:
    found = report.utilisation
    signals = zip(("busy", "SM", "tensor"), three_signals(found), strict=True)
    lines = [", ".join(f"{name} {signal_text(signal)}" for name, signal in signals)]
    lines += level_lines(found)
    over = found.busy.over_board_ms if found.busy else 0
    if over:
        lines.append(f"busy for {display.hours(over)} GPU-hours more than its part of shared boards")
    return Text("\n".join(lines))


def _seen(seen: JobSeen | None, width: int) -> Iterator[RenderableType]:
    if seen is None:
        yield Text(NOT_READ, "dim")
        return
    if seen.gpus:
        yield _gpus(seen.gpus, width >= _NARROW)
    if seen.waits:
        yield _waits(seen)
    if seen.notes:
        yield Text("\n".join(display.visible(note, _LONGEST_TEXT) for note in seen.notes), "dim")


def _gpus(gpus: Sequence[GpuUse], wide: bool) -> Table:
    """The GPUs that did least come first: they are what a reader looks for."""
    table = new_table("GPUs")
    table.add_column("node", overflow="ellipsis", no_wrap=True, max_width=24)
    table.add_column("gpu", overflow="ellipsis", no_wrap=True, max_width=20 if wide else 12)
    if wide:
        table.add_column("pod", overflow="ellipsis", no_wrap=True, max_width=24)
    table.add_column("busy", no_wrap=True)
    for head in ("idle h", "held h", *(("SM", "power") if wide else ()), "memory"):
        table.add_column(head, justify="right", no_wrap=True)
    ranked = sorted(gpus, key=lambda use: (_busy(use), use.node, use.gpu))
    for use in ranked[:MOST_ROWS]:
        idle = display.MISSING if use.idle_board_ms is None else display.hours(use.idle_board_ms)
        watts = display.MISSING if use.energy is None else display.watts(use.energy.mean_w)
        table.add_row(
            shown_name(use.node),
            shown_name(use.gpu),
            *((shown_name(use.pod),) if wide else ()),
            _level(use, wide),
            *(idle, display.hours(use.held_board_ms)),
            *((signal_text(use.sm), watts) if wide else ()),
            _memory(use, wide),
        )
    more = len(gpus) - MOST_ROWS
    cut = (f"{display.counted(more, 'busier one')} more in --format json.",) if more > 0 else ()
    what = "Busy: any kernel ran; in brackets the part that was observed. Idle: steps without one."
    caption(table, *cut, what)
    return table


def _busy(use: GpuUse) -> Fraction:
    return Fraction(2) if use.busy is None else use.busy.mean


def _level(use: GpuUse, wide: bool) -> Text:
    if use.busy is None:
        return Text("not observed", "dim")
    return Text.assemble((bar(use.busy.mean, 20 if wide else 10), "cyan"), f" {signal_text(use.busy)}")


def _memory(use: GpuUse, wide: bool) -> str:
    """``71.4 of 80.0 GiB``."""
    peak = display.gib(use.memory_peak_mib)
    if use.memory_peak_mib is None or use.memory_total_mib is None or not wide:
        return peak
    return f"{peak.removesuffix(' GiB')} of {display.gib(use.memory_total_mib)}"


def _waits(seen: JobSeen) -> RenderableType:
    since = iso(seen.waits[0].span.start_ms)
    length = display.span_of_days(_minutes(seen.waited_ms))
    longest = sorted(seen.waits, key=lambda wait: -wait.span.length_ms)[:MOST_ROWS]
    lines = [
        indented(Text(f"{iso(wait.span.start_ms)}  {_wait(wait)}", "dim"), 2)
        for wait in sorted(longest, key=lambda wait: wait.span.start_ms)
    ]
    return Group(Text.assemble(("Waited ", "bold"), f"{length} in all, since {since}"), *lines)


def _wait(wait: Wait) -> str:
    queue = f" in {display.name(wait.queue)}" if wait.queue else ""
    held_by = ": ".join(filter(None, (wait.layer, display.visible(wait.reason, 200) if wait.reason else "")))
    what = f"{display.counted(wait.pods, 'pod')} with {wait.units} × {display.name(wait.resource)} each"
    length = display.span_of_days(_minutes(wait.span.length_ms))
    return f"{length}{queue}, {what}; held by {held_by or 'what is not known'}"


def _minutes(length_ms: int) -> int:
    """A wait is known by the minute; less than one is shown as it is."""
    return length_ms - length_ms % MINUTE_MS or length_ms


def _account(account: JobAccount) -> Iterator[RenderableType]:
    rows = [row for row in account.buckets if row.amount.board_ms]
    if not rows:
        return
    table = new_table("Where its time went")
    table.add_column("", no_wrap=True)
    for head in ("GPU-hours", "share", "cost"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        style = "yellow" if row.is_waste else "dim" if row.waste == Waste.UNKNOWN else ""
        cells = (display.hours(row.amount.board_ms), display.percent(row.share, 1), shown_cost(row.amount))
        table.add_row(Text(LABELS[Waste(row.waste)], style), *cells)
    wasted = (display.hours(account.wasted.board_ms), display.percent(account.share, 1))
    table.add_section()
    table.add_row("Wasted", *wasted, shown_cost(account.wasted), style="bold")
    caption(table, *footnotes([*(row.amount for row in rows), account.wasted]))
    yield table
    if account.assessment.missing or account.assessment.provisional:
        yield Text(looked_at(account.assessment), "dim")


def _trace(lines: Sequence[TraceLine]) -> Text:
    """Each part of the cost, and its formula on a line of its own: in a table there is no room for it."""
    text = Text("Where it comes from", "bold")
    for line in lines:
        names = (line.node, line.resource, line.rate_id)
        text.append(f"\n{'  '.join((iso(line.span.start_ms), *map(display.name, names)))}", "not bold dim")
        text.append(f"\n    {line.formula}", "not bold")
    return text


def _print_notes(report: JobReport, console: Console) -> None:
    """The findings, each with its change: at the end, where a reader of a terminal begins."""
    if not report.findings:
        if report.account is not None:
            print_parts([Text(_no_findings(report.account), "dim")], console)
        return
    print_parts([Text("What to change, the most important first", "bold")], console)
    for number, found in enumerate(report.findings, 1):
        print_parts([*_note(number, found, report.currency)], console, gap=0)
        print_block(found.patch, console, indent=4)
        console.print()


def _note(number: int, found: JobFinding, currency: str) -> Iterator[RenderableType]:
    over = found.state == "resolved" or found.until is not None
    when = f"since {found.since}" + (f" until {found.until}" if found.until else "")
    facts = f"{found.pattern}, finding {found.finding}, {found.state}, {when}; {_wasted(found, currency)}"
    yield Text.assemble(
        f"{number}. ",
        (found.severity, "dim" if over else severity_style(found.severity)),
        (f"  {facts}", "dim"),
    )
    yield indented(Text(display.visible(found.summary, _LONGEST_TEXT)), 3)
    yield indented(Text(f"→ {display.visible(found.action, _LONGEST_TEXT)}", "bold"), 3)


def _wasted(found: JobFinding, currency: str) -> str:
    amount: Amount = found.wasted
    hours = f"{display.hours(amount.board_ms)} GPU-hours"
    money = cost_text(amount) if amount.nano is None else f"{cost_text(amount)} {currency}"
    return f"{hours} ({money}) in its last day{'' if found.counted else ', shown, in no sum'}"


def _no_findings(account: JobAccount) -> str:
    looked = account.assessment.final + account.assessment.provisional
    if looked:
        return "Nothing to change: no detector found anything about this job."
    return (
        "No findings: no detector has looked at this time. gpucost serve looks by itself while "
        "detectors.enabled is true."
    )
