"""The report of a job in a terminal: what it cost, how well it used what it held, and what to change.

In the manner of jobstats: a bar for each GPU, and notes at the end, the most important first, each with the
change to make.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpucost.domain.buckets import Waste
from gpucost.domain.time import MINUTE_MS, Window, iso
from gpucost.reports.base import display
from gpucost.reports.base.unit_costs import unit_words
from gpucost.reports.base.values import CostAmount
from gpucost.reports.job.job_receipt import JobReceipt, ending_words, gpus_words, wasted_words
from gpucost.reports.job.job_report import (
    GpuUse,
    JobLiveView,
    JobMatches,
    JobReport,
    JobWait,
    TraceLine,
)
from gpucost.reports.job.job_waste import (
    JobAccount,
    JobFinding,
    JobObservation,
    unexplained,
)
from gpucost.reports.render.terminal_parts import (
    MOST_ROWS,
    bar,
    caption,
    cost_text,
    filled,
    footnotes,
    indented,
    level_lines,
    name_text,
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
from gpucost.reports.waste.waste_table import LABELS, looked_at

_NARROW = 100  # below this many columns a GPU's line leaves out what is not needed to judge whether it works
_WIDE, _WIDE_BAR, _BAR = 150, 20, 10
_MOST_NAME = 24
_MOST_UNSAID = 5
_LONGEST_TEXT = 2_000
NOT_READ = "GPU by GPU, and waits: not read from the source. Ask for them with --gpus."


def print_job(report: JobReport, console: Console) -> None:
    """What the job held and cost, each GPU, waits, where its time went, the trace, and what to change."""
    parts: list[RenderableType] = [_headline(report), _signals_line(report)]
    parts += [
        Text(f"{display.name(item.name)}: {unit_words(item, report.currency)}") for item in report.progress
    ]
    if report.folded_days:
        parts.append(Text(_by_day(report.folded_days), "dim"))
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


def _by_day(days: Sequence[Window]) -> str:
    first, last = (iso(day.start_ms)[:10] for day in (days[0], days[-1]))
    when = f"{first} is" if len(days) == 1 else f"{len(days)} days from {first} to {last} are"
    return f"{when} kept by day: the sums are whole, the hours are gone."


def _signals_line(report: JobReport) -> Text:
    found = report.utilisation
    signals = zip(("busy", "SM", "tensor"), three_signals(found), strict=True)
    lines = [", ".join(f"{name} {signal_text(signal)}" for name, signal in signals)]
    lines += level_lines(found)
    over = found.busy.over_board_ms if found.busy else 0
    if over:
        lines.append(f"busy for {display.hours(over)} GPU-hours more than its part of shared GPUs")
    return Text("\n".join(lines))


def _seen(seen: JobLiveView | None, width: int) -> Iterator[RenderableType]:
    if seen is None:
        yield Text(NOT_READ, "dim")
        return
    if seen.gpus:
        yield _gpus(seen.gpus, width)
    if seen.waits:
        yield _waits(seen)
    if seen.notes:
        yield Text("\n".join(display.visible(note, _LONGEST_TEXT) for note in seen.notes), "dim")


def _gpus(gpus: Sequence[GpuUse], width: int) -> Table:
    """The least used GPUs come first: they are what a reader looks for."""
    wide = width >= _NARROW
    ranked = sorted(gpus, key=lambda use: (_busy(use), use.node, use.gpu))
    rows = [
        [
            name_text(use.node),
            name_text(use.gpu),
            *((name_text(use.pod),) if wide else ()),
            _level(use, _WIDE_BAR if width >= _WIDE else _BAR),
            Text(display.MISSING if use.idle_board_ms is None else display.hours(use.idle_board_ms)),
            Text(display.hours(use.held_board_ms)),
            *((Text(signal_text(use.sm)), Text(_watts(use))) if wide else ()),
            Text(_memory(use, wide)),
        ]
        for use in ranked[:MOST_ROWS]
    ]
    heads = (
        *("node", "gpu", *(("pod",) if wide else ()), "busy", "idle h", "held h"),
        *(("SM", "power") if wide else ()),
        "memory",
    )
    names = (0, 1, 2) if wide else (0, 1)
    table = filled("GPUs", heads, rows, names, width, _MOST_NAME)
    table.columns[len(names)].justify = "left"
    more = len(gpus) - MOST_ROWS
    cut = (f"{display.counted(more, 'busier one')} more in --format json.",) if more > 0 else ()
    what = "Busy: any kernel ran; in brackets the part that was observed. Idle: steps without one."
    caption(table, *cut, what)
    return table


def _watts(use: GpuUse) -> str:
    return display.MISSING if use.energy is None else display.watts(use.energy.mean_w)


def _busy(use: GpuUse) -> Fraction:
    return Fraction(2) if use.busy is None else use.busy.mean


def _level(use: GpuUse, width: int) -> Text:
    if use.busy is None:
        return Text("not observed", "dim")
    return Text.assemble((bar(use.busy.mean, width), "cyan"), f" {signal_text(use.busy)}")


def _memory(use: GpuUse, wide: bool) -> str:
    """``71.4 of 80.0 GiB``."""
    peak = display.gib(use.memory_peak_mib)
    if use.memory_peak_mib is None or use.memory_total_mib is None or not wide:
        return peak
    return f"{peak.removesuffix(' GiB')} of {display.gib(use.memory_total_mib)}"


def _waits(seen: JobLiveView) -> RenderableType:
    since = iso(seen.waits[0].span.start_ms)
    length = display.span_of_days(_minutes(seen.waited_ms))
    longest = sorted(seen.waits, key=lambda wait: -wait.span.length_ms)[:MOST_ROWS]
    lines = [
        indented(Text(f"{iso(wait.span.start_ms)}  {_wait(wait)}", "dim"), 2)
        for wait in sorted(longest, key=lambda wait: wait.span.start_ms)
    ]
    return Group(Text.assemble(("Waited ", "bold"), f"{length} in all, since {since}"), *lines)


def _wait(wait: JobWait) -> str:
    queue = f" in {display.name(wait.queue)}" if wait.queue else ""
    held_by = ": ".join(filter(None, (wait.layer, display.visible(wait.reason, 200) if wait.reason else "")))
    what = f"{display.counted(wait.pods, 'pod')} with {wait.units} × {display.name(wait.resource)} each"
    length = display.span_of_days(_minutes(wait.span.length_ms))
    return f"{length}{queue}, {what}; held by {held_by or 'what is not known'}"


def _minutes(length_ms: int) -> int:
    """A wait in minutes; less than one is shown exactly."""
    return length_ms - length_ms % MINUTE_MS or length_ms


def _account(account: JobAccount) -> Iterator[RenderableType]:
    rows = [row for row in account.buckets if row.amount.board_ms]
    if not rows:
        return
    table = new_table("Where its time went")
    table.add_column("", no_wrap=True)
    for head in ("GPU-hours", "of held", "cost"):
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
    """Each part of the cost, and its formula on a line of its own: a table has no room for it."""
    text = Text("Where it comes from", "bold")
    for line in lines:
        names = (line.node, line.resource, line.rate_id)
        text.append(f"\n{'  '.join((iso(line.span.start_ms), *map(display.name, names)))}", "not bold dim")
        text.append(f"\n    {line.formula}", "not bold")
    return text


def _print_notes(report: JobReport, console: Console) -> None:
    """The findings, each with its change: at the end, where a reader of a terminal begins. Those of the
    ledger first, then what the detectors say of the job's time, then waste that neither explains."""
    open_, over = _parted(report.findings)
    observed = _observed(report)
    for title, notes in (
        ("What to change, the most important first", [_of_ledger(each, report.currency) for each in open_]),
        (
            "What was found and is over: for the next time",
            [_of_ledger(each, report.currency) for each in over],
        ),
        ("What the detectors say of its time", [_of_source(each, report.currency) for each in observed]),
    ):
        _print_list(title, notes, console)
    rest = [*_rest(report, observed)]
    if rest:
        print_parts([Text("\n".join(rest), "dim")], console)


@dataclass(frozen=True, slots=True)
class _Note:
    """One finding as it is printed: ``facts`` follow the severity."""

    severity: str
    is_over: bool
    facts: str
    texts: tuple[str, ...]
    action: str
    patch: str


def _print_list(title: str, notes: Sequence[_Note], console: Console) -> None:
    if not notes:
        return
    print_parts([Text(title, "bold")], console)
    for number, note in enumerate(notes, 1):
        style = "dim" if note.is_over else severity_style(note.severity)
        head = Text.assemble(f"{number}. ", (note.severity, style), (f"  {note.facts}", "dim"))
        texts = [indented(Text(display.visible(text, _LONGEST_TEXT)), 3) for text in note.texts]
        action = indented(Text(f"→ {display.visible(note.action, _LONGEST_TEXT)}", "bold"), 3)
        print_parts([head, *texts, action], console, gap=0)
        print_block(note.patch, console, indent=4)
        console.print()


def _parted(findings: Sequence[JobFinding]) -> tuple[list[JobFinding], list[JobFinding]]:
    over = [each for each in findings if each.state == "resolved" or each.until is not None]
    return [each for each in findings if each not in over], over


def _observed(report: JobReport) -> list[JobObservation]:
    """What the source shows beyond the ledger's findings."""
    if report.look is None:
        return []
    known = {(each.pattern, each.variant) for each in report.findings}
    return [each for each in report.look.findings if (each.pattern, each.variant) not in known]


def _of_ledger(found: JobFinding, currency: str) -> _Note:
    open_, _ = _parted([found])
    facts = f"{found.pattern}, finding {found.finding}, {found.state}, {_when(found.since, found.until)}"
    cost = _wasted(found.wasted, found.counted, "in its last day", currency)
    texts = (found.summary,)
    return _Note(found.severity, not open_, f"{facts}; {cost}", texts, found.action, found.patch)


def _of_source(found: JobObservation, currency: str) -> _Note:
    name = f"{found.pattern} {found.variant}".rstrip()
    facts = f"{display.visible(name)}, {_when(found.since, found.until)}"
    cost = _wasted(found.wasted, found.counted, "of this job", currency)
    texts = (found.summary, *((found.formula,) if found.formula else ()))
    is_over = found.until is not None
    return _Note(found.severity, is_over, f"{facts}; {cost}", texts, found.action, found.patch)


def _when(since: str, until: str | None) -> str:
    return f"since {since}" + (f" until {until}" if until else "")


def _wasted(amount: CostAmount, counted: bool, of: str, currency: str) -> str:
    hours = f"{display.hours(amount.board_ms)} GPU-hours"
    money = cost_text(amount) if amount.nano is None else f"{cost_text(amount)} {currency}"
    return f"{hours} ({money}) {of}{'' if counted else ', shown, in no sum'}"


def _rest(report: JobReport, observed: Sequence[JobObservation]) -> Iterator[str]:
    """Waste that no finding explains, and which findings detectors withheld, and why."""
    said: list[JobFinding | JobObservation] = [*report.findings, *observed]
    account = report.account
    left = () if account is None else unexplained(account, said)
    for row, pages in left:
        hours, words = display.hours(row.amount.board_ms), LABELS[Waste(row.waste)].lower()
        yield f"{hours} GPU-hours of it were {words}: see {' and '.join(pages)}"
    if account is not None and not said and not left:
        yield _no_findings(account)
    if report.look is not None:
        for unsaid in report.look.withheld[:_MOST_UNSAID]:
            yield f"{unsaid.pattern} was not said, because {display.visible(unsaid.because, _LONGEST_TEXT)}"
        yield from (display.visible(note, _LONGEST_TEXT) for note in report.look.notes)


def _no_findings(account: JobAccount) -> str:
    looked = account.assessment.final + account.assessment.provisional
    if looked:
        return "Nothing to change: no detector found anything about this job, and none of it was wasted."
    return (
        "No findings: no detector has looked at this time. gpucost serve looks by itself while "
        "detectors.enabled is true."
    )


def print_matches(found: JobMatches, console: Console) -> None:
    """The jobs of a name, those that held GPUs last first: what tells them apart, and their uids."""
    several = len({each.cluster for each in found.jobs}) > 1
    heads = ["job", "kind", "uid", "team", *(["cluster"] if several else []), "from", "to", "GPU-h"]
    rows = [
        [
            shown_name(f"{each.namespace}/{each.job}"),
            shown_name(each.job_kind),
            Text(display.visible(each.job_uid)),
            shown_name(each.team),
            *([shown_name(each.cluster)] if several else []),
            *(Text(iso(at)[:16].replace("T", " ")) for at in (each.held.start_ms, each.held.end_ms)),
            Text(display.hours(each.amount.board_ms)),
            shown_cost(each.amount),
        ]
        for each in found.jobs
    ]
    title = f"Jobs called {display.name(found.name)}{', the last 100' if found.cut else ''}"
    left = set(range(len(heads) - 1))
    print_parts([filled(title, [*heads, found.currency], rows, left, console.width)], console)


def print_jobs(found: JobMatches, console: Console) -> None:
    """Jobs that wait now, the longest first, and those of the ledger, those that held GPUs last first."""
    whose = "" if found.users is None else f" of {' or '.join(map(display.name, found.users))}"
    when = "" if found.since is None else f" that held GPUs since {found.since[:10]}"
    waiting = found.waiting or ()
    if waiting:
        heads = ["job", "team", "user", "queue", "since", "GPUs", "waits for"]
        rows = [
            [
                shown_name(f"{each.namespace}/{each.job or each.workload}"),
                shown_name(each.team),
                shown_name(each.user),
                shown_name(each.queue),
                Text(_minute(each.since)),
                Text(f"{sum(each.gpus.values()):,}"),
                Text(display.visible(f"{each.layer}: {each.reason}")),
            ]
            for each in waiting
        ]
        left = {0, 1, 2, 3, 4, 6}
        print_parts([filled(f"Jobs{whose} that wait", heads, rows, left, console.width)], console)
    if found.jobs:
        heads = ["job", "state", "team", "user", "from", "to", "GPU-h", found.currency]
        rows = [
            [
                shown_name(f"{each.namespace}/{each.job}"),
                Text(each.state),
                shown_name(each.team),
                shown_name(each.user),
                *(Text(_minute(iso(at))) for at in (each.held.start_ms, each.held.end_ms)),
                Text(display.hours(each.amount.board_ms)),
                shown_cost(each.amount),
            ]
            for each in found.jobs
        ]
        left = set(range(len(heads) - 2))
        print_parts([filled(f"Jobs{whose}{when}", heads, rows, left, console.width)], console)
    else:
        print_parts([Text(f"No job{whose}{when} in the ledger, of those that you may see.")], console)
    if found.waiting is None:
        print_parts([Text("What waits is not known here: no cluster is watched.", "dim")], console)
    elif not waiting:
        print_parts([Text(f"No job{whose} waits in {display.name(found.watched or '')}.", "dim")], console)
    if found.cut:
        print_parts([Text("There may be more: --page, --limit, --since", "dim")], console)


def _minute(instant: str) -> str:
    return instant[:16].replace("T", " ")


def print_receipt(receipt: JobReceipt, console: Console) -> None:
    """What the job held, cost, wasted and waited, how it ended, and the one change for its next run."""
    head = Text.assemble(
        (display.name(receipt.job), "bold"),
        f"  {display.visible(receipt.job_kind)} in {display.name(receipt.namespace)}\n",
        (f"{display.money(receipt.held.nano)} {receipt.currency}", "bold cyan"),
        f" for {display.hours(receipt.held.board_ms)} GPU-hours: {gpus_words(receipt)}\n",
        (f"team {shown_names(receipt.teams)} · user {shown_names(receipt.users)} · ", "dim"),
        (f"uid {display.name(receipt.job_uid)}\n", "dim"),
        (f"{receipt.span}", "dim"),
    )
    print_parts([head, *map(Text, _receipt_lines(receipt))], console, gap=0)
    console.print()
    change = receipt.change
    if change is None:
        print_parts([Text("Nothing to change for the next run is known.", "dim")], console)
        return
    of = f"finding {change.finding}, " if change.finding is not None else ""
    print_parts(
        [
            Text.assemble(("For the next run", "bold"), (f"  {of}{change.documentation}", "dim")),
            indented(Text(f"→ {display.visible(change.text, _LONGEST_TEXT)}", "bold"), 3),
        ],
        console,
        gap=0,
    )
    print_block(change.patch, console, indent=4)


def _receipt_lines(receipt: JobReceipt) -> Iterator[str]:
    yield f"{ending_words(receipt)}."
    busy = "not observed" if receipt.busy is None else signal_text(receipt.busy)
    yield f"Busy    {busy}"
    yield f"Wasted  {wasted_words(receipt)}"
    waited = "not known" if receipt.waited_ms is None else display.span_of_days(_minutes(receipt.waited_ms))
    yield f"Waited  {waited}"
    if receipt.assessment is not None:
        yield looked_at(receipt.assessment)
