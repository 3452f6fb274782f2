"""Findings in a terminal: the list, and one of them in full. Names from the cluster are untrusted text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.text import Text

from gpucost.domain.time import iso
from gpucost.reports.base import display
from gpucost.reports.month.savings_report import SavingsReport
from gpucost.reports.render.terminal_parts import (
    LONGEST_NAME,
    WHOLE,
    caption,
    filled,
    indented,
    new_table,
    print_block,
    print_parts,
    severity_style,
    shown_cost,
    shown_name,
)
from gpucost.reports.waste.findings import (
    EventRow,
    EvidencePart,
    FindingAcknowledgement,
    FindingEntry,
    FindingReport,
    FindingsReport,
    SubjectPart,
)

MOST_FINDINGS = 50
LONGEST_TEXT = 4_000
_WIDE = 116
_SUBJECT, _LEAST_SUBJECT = "subject", 8
_NUMBERS = ("GPU-h", "last day", "rate", "id")
_HEADS = ("severity", "what", _SUBJECT, "last day", "rate", "id")
_WIDE_HEADS = ("severity", "what", _SUBJECT, "team", "since", *_NUMBERS)
_MOST = {"what": 28, "team": 12}
_MOST_TIGHT = {"what": 12}
_TIGHT = 80
_BETWEEN = 3  # characters between two columns of a table
_OVER = "resolved"
_MOST_NAMED = 4  # people who acknowledged a finding
_VIEW = "°"
_VIEWS = f"{_VIEW} shown, and in no sum."


def print_findings(report: FindingsReport, console: Console) -> None:
    """One line each, the most expensive first. In a narrow terminal names are cut, and no number is; without
    a terminal nothing is cut or left out."""
    wide, whole = console.width >= _WIDE, console.width >= WHOLE
    rows = report.findings if whole else report.findings[:MOST_FINDINGS]
    cells = [_cells(row, wide, whole) for row in rows]
    table = new_table(f"Findings, by what they wasted in their last day; money in {report.currency}")
    heads = _WIDE_HEADS if wide else _HEADS
    most_of = {} if whole else _MOST_TIGHT if console.width < _TIGHT else _MOST
    room = console.width
    for head, *column in zip(heads, *cells, strict=True):
        if head != _SUBJECT:
            room -= (
                min(most_of.get(head, room), max(cell.cell_len for cell in (Text(head), *column))) + _BETWEEN
            )
    for head, *column in zip(heads, *cells, strict=True):
        limit = max(_LEAST_SUBJECT, room - _BETWEEN) if head == _SUBJECT else most_of.get(head)
        widest = max(cell.cell_len for cell in (Text(head), *column))
        least = widest if limit is None else min(widest, limit)
        justify: Literal["left", "right"] = "right" if head in _NUMBERS else "left"
        table.add_column(
            head, justify=justify, no_wrap=True, overflow="ellipsis", min_width=least, max_width=limit
        )
    for row_cells in cells:
        table.add_row(*row_cells)
    more = len(report.findings) - len(rows)
    notes = [f"{more:,} more: choose, or see the other formats."] if more > 0 else []
    notes.append("rate: what a day costs at the rate of now.")
    notes += [_VIEWS] if any(not row.wasted.counted for row in rows) else []
    notes.append("All of one: gpucost findings show ID")
    caption(table, *notes)
    console.print(table, crop=False)


def _cells(row: FindingEntry, wide: bool, whole: bool) -> tuple[Text, ...]:
    """The cells in the order of the headings. The subject needs the room that a variant would take."""
    severity = Text(row.severity, severity_style(row.severity))
    name = what(row.pattern, row.variant if whole else "", row.state, is_rehearsal=row.rehearsal)
    cost = Text(_money(row.wasted.nano) + ("" if row.wasted.counted else _VIEW))
    daily = Text(_money(row.now.daily_nano) if row.now.boards and row.state != _OVER else display.MISSING)
    more = (Text(display.name(row.team, LONGEST_NAME)), Text(row.since[:10])) if wide else ()
    hours = (Text(display.hours(row.wasted.board_ms)),) if wide else ()
    return (severity, name, shown_subject(row.subject), *more, *hours, cost, daily, Text(str(row.id)))


def print_finding(report: FindingReport, console: Console) -> None:
    """The sentence and the change first, ready to be copied; then evidence, waste, guards, what happened."""
    row = report.finding
    is_over = row.state == _OVER
    print_parts(_headline(report), console)
    title = "What it said to do" if is_over else "What to do"
    print_parts([Text.assemble((f"{title}\n", "bold"), foreign(row.action.text))], console)
    if row.action.patch:
        print_block(row.action.patch, console, indent=2 if is_over else 0)
        console.print()
    rest = [Group(*_evidence(row.evidence)), Group(*_waste(row, report.currency)), *_guards(row)]
    rest += [Group(*_events(report.events)), Text(f"More: {row.documentation}", "dim")]
    if uid := job_uid(row.subject):
        rest.append(Text(f"The job: gpucost job {uid}", "dim"))
    print_parts(rest, console)


def what(pattern: str, variant: str, state: str, *, is_rehearsal: bool = False) -> Text:
    """``idle_allocation partly, muted``."""
    text = Text(f"{pattern} {display.visible(variant)}" if variant else pattern)
    told = [*([] if state == "open" else [state]), *(["rehearsal"] if is_rehearsal else [])]
    return text.append(f", {', '.join(told)}", "dim") if told else text


def shown_subject(subject: SubjectPart) -> Text:
    """``job ns/train``."""
    names = f"{display.visible(subject.namespace, LONGEST_NAME)}/" if subject.namespace else ""
    return Text(f"{subject.kind} {names}{display.name(subject.name, LONGEST_NAME)}")


def job_uid(subject: SubjectPart) -> str:
    """The argument for ``gpucost job``; empty for subjects other than jobs."""
    return display.visible(subject.uid, LONGEST_NAME) if subject.kind == "job" else ""


def foreign(text: str) -> str:
    return display.visible(text, LONGEST_TEXT)


def _headline(report: FindingReport) -> list[RenderableType]:
    """For a resolved finding, first that it is over, then its sentence."""
    row = report.finding
    over = f"Was found, resolved at {row.closed_at or row.last_seen}. What it said last:\n"
    since = f"since {row.since}" + (f" until {row.closed_at}" if row.closed_at else "")
    uid = job_uid(row.subject)
    head = Text.assemble(
        (over if row.state == _OVER else "", "green"),
        (foreign(row.summary), "dim" if row.state == _OVER else "bold"),
        "\n",
        (row.severity, "dim" if row.state == _OVER else severity_style(row.severity)),
        "  ",
        what(row.pattern, row.variant, row.state, is_rehearsal=row.rehearsal),
        "  ",
        shown_subject(row.subject),
        (f" in {display.name(row.subject.cluster)}{f' uid {uid}' if uid else ''}", "dim"),
        (
            f"\nfinding {row.id} · {since} · team {display.name(row.team)} · queue {display.name(row.queue)}",
            "dim",
        ),
        (f"\nfirst reported {row.opened_at}, last seen {row.last_seen}", "dim"),
    )
    if row.acknowledged is not None:
        note = f": {foreign(row.acknowledged.note)}" if row.acknowledged.note else ""
        head.append(f"\nacknowledged by {_who_knows(row.acknowledged, report.events)}{note}", "cyan")
    if row.muted_until is not None:
        head.append(f"\nmuted until {row.muted_until}", "cyan")
    if row.exempt_until is not None:
        head.append(f"\nexempt until {row.exempt_until}, by a setting or a label", "cyan")
    return [head]


def _who_knows(last: FindingAcknowledgement, events: Sequence[EventRow]) -> str:
    """``ann``, ``ann, then bob``: a later acknowledgement does not replace the first."""
    said = [event.author for event in events if event.action == "acknowledge"] or [last.by]
    names = [display.visible(author) for author in said]
    if len(names) > _MOST_NAMED:
        names = [names[0], f"{len(names) - 2} more", names[-1]]
    return ", then ".join(names)


def _evidence(evidence: Sequence[EvidencePart]) -> Iterator[RenderableType]:
    yield Text("Evidence", "bold")
    if not evidence:
        yield indented(Text("none", "dim"), 2)
    for each in evidence:
        unit = f" {display.visible(each.unit)}" if each.unit else ""
        yield indented(Text(f"{foreign(each.name)}: {display.evidence_value(each.value)}{unit}"), 2)
        if each.shown_by:
            yield indented(Text(foreign(each.shown_by), "dim"), 6)


def _waste(row: FindingEntry, currency: str) -> Iterator[RenderableType]:
    wasted = row.wasted
    yield Text("What it wasted" if row.state == _OVER else "What it wastes", "bold")
    hours = f"{display.hours(wasted.board_ms)} GPU-hours ({_priced(wasted.nano, currency)}) in its last day"
    yield indented(Text(f"{hours}{'' if wasted.counted else ': shown, and in no sum'}"), 2)
    if row.now.boards and row.state != _OVER:
        hourly, daily = _priced(row.now.hourly_nano, currency), _priced(row.now.daily_nano, currency)
        gpus = "GPU" if row.now.boards == 1 else "GPUs"
        rate = (
            hourly if row.now.hourly_nano is None else f"{hourly} per hour, {daily} a day at its rate of now"
        )
        yield indented(Text(f"now {display.evidence_value(row.now.boards)} {gpus}, {rate}"), 2)
    if wasted.formula:
        yield indented(Text(foreign(wasted.formula), "dim"), 2)


def _guards(row: FindingEntry) -> list[RenderableType]:
    if not row.checked:
        return []
    guards = (indented(Text(foreign(guard), "dim"), 2) for guard in row.checked)
    return [Group(Text("Looked at, and no reason against it", "bold"), *guards)]


def _events(events: Sequence[EventRow]) -> Iterator[RenderableType]:
    yield Text("What happened", "bold")
    for event in events:
        detail = f": {foreign(event.detail)}" if event.detail else ""
        words = f"{event.at}  {display.visible(event.action)} by {display.visible(event.author)}{detail}"
        yield indented(Text(words, "dim"), 2)


def _priced(nano: int | None, currency: str) -> str:
    return "no price" if nano is None else f"{display.money(nano)} {currency}"


def _money(nano: int | None) -> str:
    return "no price" if nano is None else display.money(nano)


def print_savings(report: SavingsReport, console: Console) -> None:
    """Two sums, by team; then each pattern of jobs that somebody acted upon, with what else changed it."""
    print_parts([*_savings(report, console.width)], console)


def _savings(report: SavingsReport, width: int) -> Iterator[RenderableType]:
    yield Text.assemble(
        (f"{display.money(report.saved_nano)} {report.currency}", "bold cyan"),
        f" saved in {report.month} by what was acted upon; open findings could give back ",
        (f"{display.money(report.possible.nano)} {report.currency}", "bold"),
        " in a month.",
    )
    heads = ["team", "findings", "could be had back, GPU-h", "could be had back", "saved"]
    rows = [
        [
            shown_name(each.team or "nobody"),
            Text(f"{each.findings:,}"),
            Text(display.hours(each.possible.board_ms)),
            shown_cost(each.possible),
            Text(display.money(each.saved_nano)),
        ]
        for each in report.teams
    ]
    if rows:
        yield filled(f"By team, {report.currency} in a month", heads, rows, {0}, width)
    heads = ["jobs", "team", "acted upon", "before", "since", "by other causes", "saved"]
    measured = [each for each in report.measured if not each.why_not]
    rows = [
        [
            shown_name(each.pattern),
            shown_name(each.team),
            Text(iso(each.acted_at_ms)[:10]),
            shown_cost(each.before),
            shown_cost(each.now),
            Text(display.signed_money(sum(cause.nano for cause in each.others))),
            Text(display.money(each.saved_nano)),
        ]
        for each in measured
    ]
    if rows:
        yield filled(f"Acted upon, {report.currency}", heads, rows, {0, 1}, width)
        yield Text("Since: before, and by other causes, less what was saved.", "dim")
    for each in report.measured:
        if each.why_not:
            yield Text(f"{display.name(each.pattern)}: nothing is claimed, {each.why_not}", "dim")
    if report.looked_at is not None:
        yield Text(f"Could be had back: as {report.looked_at}, each GPU-hour once.", "dim")
    else:
        yield Text("Could be had back: not known, the detectors looked at no whole day of the month.", "dim")
    for count, words in (
        (report.unanswered, "ended without an answer: nothing of it is claimed."),
        (report.unmeasured, "acted upon and about no job, or one of too many: not measured."),
    ):
        if count:
            yield Text(f"{count:,} {'finding' if count == 1 else 'findings'} {words}", "dim")
