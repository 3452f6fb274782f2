"""The screen of ``gpucost state show``: the facts of a cluster as lines that fit a terminal.

All names that a cluster gives are foreign text: they are shown, and never interpreted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from rich.console import Console
from rich.text import Text

from gpucost.cli.state.column_help import SIGNS, WORDS
from gpucost.cli.terminal.columns import (
    TextColumn,
    TextRow,
    folded,
    in_columns,
    name,
    number,
    path,
    without_spare,
)
from gpucost.cluster.objects.metadata import Resources, added
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, iso
from gpucost.reports.base.display import MISSING, counted, visible
from gpucost.reports.live.kueue_rows import sent_text, used_text
from gpucost.reports.live.queue_rows import (
    QueueQuotaRow,
    QueueRow,
    QuotaLoan,
    VolcanoRow,
    WaitingRow,
)
from gpucost.reports.live.state_facts import (
    CLUSTER_QUEUES,
    NOT_EXPECTED,
    PODS,
    WORKLOADS,
    GangRow,
    GpuTotal,
    NodeRow,
    ProblemCount,
    StateFacts,
    most_urgent,
    with_parents,
)

T = TypeVar("T")

UNSURE = "?"
MOST_ROWS = 15
"""Most rows of a list that is not shown whole."""
_MOST_QUEUE_ROWS = 40
_MOST_LENDERS = 4
_MOST_PROBLEMS = 5
_NOTE_LINES = 2
_WHOLE = "nvidia.com/gpu"
_WIDE = 116  # from so many columns on, tables also have the optional columns
_LONGEST_MESSAGE = 1_000
_LONGEST_LINES = 5_000
_ROOM_FOR_MEANINGS = 110


@dataclass(frozen=True, slots=True)
class ScreenLayout:
    """How much is shown: lists whole with ``everything``; cells never cut with ``is_uncut``; the words
    explained with ``explain``. ``asked`` are the options that narrowed the facts, ``is_dump`` whether they
    are from a dump.
    """

    everything: bool = False
    is_uncut: bool = False
    explain: bool = False
    asked: str = ""
    is_dump: bool = False


def print_screen(facts: StateFacts, console: Console, look: ScreenLayout | None = None) -> None:
    """Every section with content; lists are cut unless everything is wanted."""
    for line in _Screen(facts, console.width, look or ScreenLayout()).lines():
        console.print(line, soft_wrap=True)


class _Screen:
    """Makes the lines of the sections, none of them wider than ``width`` as far as numbers leave room."""

    def __init__(self, facts: StateFacts, width: int, look: ScreenLayout) -> None:
        self._facts, self._width, self._look = facts, width, look
        self._everything, self._is_uncut = look.everything, look.everything or look.is_uncut
        self._is_wide = width >= _WIDE or self._is_uncut

    def lines(self) -> Iterator[Text]:
        """All of them."""
        sections = (
            self._header(),
            self._queues(),
            self._loans(),
            self._usage(),
            self._sent(),
            self._volcano(),
            self._waiting(),
            self._gangs(),
            self._nodes(),
            self._problems(),
            self._remarks(),
        )
        is_first = True
        for section in sections:
            found = list(section)
            if found and not is_first:
                yield Text()
            is_first = is_first and not found
            yield from found

    # Sections

    def _header(self) -> Iterator[Text]:
        facts = self._facts
        when = iso(facts.at_ms) if facts.is_dated else f"{iso(facts.at_ms)}, when the dump was read"
        yield Text.assemble(("Cluster state ", "bold"), when)
        yield from self._folded("; ".join(_counts(facts)), "")
        if facts.teams_in_scope is not None:
            yield from self._own()
        elif facts.gpus:
            heads = [name("resource", 12), *map(number, ("held", "advertised", "expected", "missing"))]
            yield from self._table(heads, facts.gpus, _gpu_row)
        if facts.forbidden:
            yield from self._folded(f"Not allowed to list: {', '.join(facts.forbidden)}", "yellow")
        if facts.unread:
            where = "Not in this dump" if self._look.is_dump else "Could not be read"
            yield from self._folded(f"{where}: {', '.join(_groups(facts.unread))}", "yellow")
        if self._look.asked:
            yield from self._folded(f"Only {self._look.asked}; totals are the cluster's")

    def _own(self) -> Iterator[Text]:
        held = _units(_sum({each.resource: each.held or 0} for each in self._facts.gpus))
        teams = ", ".join(self._facts.teams_in_scope or ()) or "no team"
        yield from self._folded(f"{held} GPUs held", "")
        yield from self._folded(
            f"Of {teams} only: of others, whole queues and nodes nothing is told", "yellow"
        )

    def _queues(self) -> Iterator[Text]:
        """Where there are too many, idle ones are left out first."""
        rows = self._facts.queues
        shown, quiet = with_parents(rows, _has_gpus), "without GPU quota"
        if not shown:
            yield from self._no_queues()
            return
        if not self._everything and _lines(shown) > _MOST_QUEUE_ROWS:
            shown, quiet = with_parents(rows, _is_busy), "idle or without GPU quota"
        most = _MOST_QUEUE_ROWS
        if not self._everything and _lines(shown) > most:
            shown, quiet = most_urgent(shown, most), "less urgent, idle or without GPU quota"
            most = _lines(shown)
        yield Text("Queues and cohorts of Kueue, in GPUs", "bold")
        has_used = self._is_wide or any(q.used != q.reserved for each in shown for q in each.quotas)
        lines = [line for each in shown for line in _queue_lines(each, self._facts.at_ms, has_used)]
        yield from self._table(_queue_heads(has_used), lines, lambda line: line, most)
        left_out = sum(each.is_queue for each in rows) - sum(each.is_queue for each in shown)
        if left_out:
            all_ = "" if quiet == "without GPU quota" else " (--all shows more)"
            yield from self._folded(f"{counted(left_out, 'ClusterQueue')} {quiet} left out{all_}")

    def _no_queues(self) -> Iterator[Text]:
        if self._look.asked:
            return
        if not self._facts.knows(CLUSTER_QUEUES):
            said = "ClusterQueues of Kueue could not be read."
        elif self._facts.queues or CLUSTER_QUEUES not in self._facts.absent:
            said = "No ClusterQueue has GPU quota."
        else:
            said = "Kueue is not installed."
        yield Text(said, "dim")

    def _loans(self) -> Iterator[Text]:
        if self._facts.loans:
            yield Text("Borrowing", "bold")
            for loan in self._cut(self._facts.loans):
                yield from self._folded(_loan_text(loan), "")
            yield from self._rest(len(self._facts.loans) - len(self._cut(self._facts.loans)))

    def _usage(self) -> Iterator[Text]:
        rows = self._facts.usage
        if rows:
            yield Text("Who comes first by usage (admission fair sharing of Kueue)", "bold")
            for each in self._cut(rows):
                weight = "" if each.weight == 1 else f" (weight {each.weight:g})"
                who = (
                    f"{visible(each.cluster_queue)} {each.place}. {_full(each.namespace, each.queue)}{weight}"
                )
                yield from self._folded(f"{who}: {visible(used_text(each), _LONGEST_MESSAGE)}", "")
            yield from self._rest(len(rows) - len(self._cut(rows)))

    def _sent(self) -> Iterator[Text]:
        rows = self._facts.sent
        if rows:
            units = _units(_sum(each.units for each in rows))
            title = f"In other clusters (MultiKueue): {counted(len(rows), 'job')} with quota for {units} GPUs"
            yield from self._outdented(title, "bold")
            for each in self._cut(rows):
                who = f"{_full(each.namespace, each.job or each.workload)} of {visible(each.queue)}"
                age = _age(self._facts.at_ms, each.since_ms)
                said = f"{who}: {visible(sent_text(each), _LONGEST_MESSAGE)}, {_units(each.units)} GPUs"
                yield from self._folded(f"{said}{f', {age}' if age else ''}", "")
            yield from self._rest(len(rows) - len(self._cut(rows)))

    def _volcano(self) -> Iterator[Text]:
        rows = [each for each in self._facts.volcano_queues if each.name != "root"]
        if rows:
            yield Text("Queues of Volcano, in GPUs", "bold")
            heads = ("deserved", "guarantee", "cap", "allocated", "pending", "GPUs", "oldest")
            columns = [name("queue"), *(number(head, is_spare=head == "guarantee") for head in heads)]
            yield from self._table(columns, rows, self._dated(_volcano_row))

    def _waiting(self) -> Iterator[Text]:
        rows = self._facts.waiting
        unknown = _unknown_waiters(self._facts)
        if not rows:
            yield from self._outdented(_nobody(self._look.asked, unknown), "dim")
            return
        layers = Counter(each.layer for each in rows)
        by_layer = ", ".join(f"{layer} {count:,}" for layer, count in layers.most_common())
        title = f"Waiting: {counted(len(rows), 'job')} for {_units(_sum(each.units for each in rows))} GPUs"
        yield from self._outdented(f"{title} (held by {by_layer})", "bold")
        if unknown:
            yield from self._folded(f"More may wait: {unknown} could not be read", "yellow")
        columns = [
            *map(number, ("wait", "pos", "GPUs")),
            path("job", 14),
            *([name("kind", 8)] if self._is_wide else []),
            name("team", 6),
            name("queue", 6),
            name("held by", 14),
        ]
        yield from self._table(columns, rows, self._dated(partial(_waiting_row, is_wide=self._is_wide)))
        yield from self._dropped("kind")

    def _gangs(self) -> Iterator[Text]:
        rows = self._facts.partial_gangs
        if rows:
            held = _units(_sum(each.held for each in rows))
            title = f"Partial gangs: {counted(len(rows), 'gang')} holding {held} GPUs in vain"
            yield from self._outdented(title, "bold")
            columns = [
                *map(number, ("since", "GPUs held", "running", "needs", "pending")),
                path("gang", 14),
                name("queue", 6),
            ]
            yield from self._table(columns, rows, self._dated(_gang_row))

    def _nodes(self) -> Iterator[Text]:
        rows = self._facts.short_nodes
        if rows:
            missing = sum(each.expected - each.advertised for each in rows)
            title = f"Nodes that do not advertise all their GPUs: {missing:,} missing"
            yield from self._outdented(title, "bold")
            columns = [
                name("node", 14),
                *([name("product", 8)] if self._is_wide else []),
                name("pool", 6),
                name("resource", 6),
                *map(number, ("advertised", "expected", "held")),
                name("state", 9),
            ]
            yield from self._table(columns, rows, partial(_node_row, is_wide=self._is_wide))
            yield from self._dropped("product")

    def _problems(self) -> Iterator[Text]:
        facts = self._facts
        if facts.teams_in_scope is not None:
            return
        if not facts.problems:
            is_whole = not (facts.unread or facts.forbidden)
            if not self._look.asked:
                yield Text(f"No problems found{'' if is_whole else ' in what could be read'}.", "dim")
            return
        yield Text(f"Problems: {len(facts.problems):,}", "bold")
        is_noted = not self._is_uncut and self._width < _ROOM_FOR_MEANINGS
        columns = [number("count"), TextColumn("problem"), *([] if is_noted else [TextColumn("meaning")])]
        rows = [_problem_row(each, is_noted) for each in facts.problem_counts]
        yield from self._table(columns, rows, lambda row: row)
        shown = self._cut(facts.problems, _MOST_PROBLEMS)
        for each in shown:
            who = f"{each.kind} {_full(each.namespace, each.name)}"
            yield from self._folded(f"{who}: {visible(each.detail, _LONGEST_MESSAGE)}", "")
        yield from self._rest(len(facts.problems) - len(shown))

    def _remarks(self) -> Iterator[Text]:
        absent = [each for each in self._facts.absent if each not in NOT_EXPECTED]
        if absent:
            yield from self._folded(f"Not installed: {', '.join(_groups(absent))}")
        if not self._look.explain:
            yield from self._folded("What columns and words mean: --explain")
            return
        yield Text("Columns and words", "bold")
        for word, meaning in (*WORDS.items(), *SIGNS.items()):
            yield from self._folded(f"{word}: {meaning}", "")

    # Lists, and lines that fit

    def _table(
        self,
        columns: Sequence[TextColumn],
        rows: Sequence[T],
        make: Callable[[T], TextRow],
        most: int = MOST_ROWS,
    ) -> Iterator[Text]:
        """At most ``most`` rows unless everything is wanted, and how many more there are."""
        shown = self._cut(rows, most)
        note_lines = None if self._everything else _NOTE_LINES
        made = [make(row) for row in shown]
        dropped: list[str] = []
        if not self._is_uncut:
            columns, made, dropped = without_spare(columns, made, self._width)
        yield from in_columns(columns, made, self._width, note_lines, is_cut=not self._is_uncut)
        if dropped:
            yield from self._folded(f"no room for {', '.join(dropped)} (--all shows all)")
        yield from self._rest(len(rows) - len(shown))

    def _cut(self, rows: Sequence[T], most: int = MOST_ROWS) -> Sequence[T]:
        """One more row is shown rather than a note that there is one more."""
        return rows if self._everything or len(rows) <= most + 1 else rows[:most]

    def _rest(self, count: int) -> Iterator[Text]:
        if count:
            yield from self._folded(f"and {count:,} more (--all shows them)")

    def _dropped(self, column: str) -> Iterator[Text]:
        if not self._is_wide:
            yield from self._folded(f"no room for the column {column} (from {_WIDE} columns on, or --all)")

    def _dated(self, make: Callable[[T, int], TextRow]) -> Callable[[T], TextRow]:
        return lambda row: make(row, self._facts.at_ms)

    def _outdented(self, text: str, style: str) -> Iterator[Text]:
        yield from (Text(line, style) for line in folded(text, self._width, "", "   "))

    def _folded(self, text: str, style: str = "dim") -> Iterator[Text]:
        """As many lines as it needs."""
        safe = visible(text, _LONGEST_LINES)
        yield from (Text(line, style) for line in folded(safe, self._width, " ", "   "))


# Rows


def _gpu_row(found: GpuTotal) -> TextRow:
    expected = MISSING if found.expected is None else f"{found.expected:,}"
    is_known = found.expected is not None and found.advertised is not None
    missing = max(0, (found.expected or 0) - (found.advertised or 0)) if is_known else 0
    cells = (
        visible(found.resource),
        _sure(found.held),
        _sure(found.advertised),
        expected,
        _count(missing) if is_known or found.expected is None else UNSURE,
    )
    return TextRow(cells, style="yellow" if missing else "")


def _queue_heads(has_used: bool) -> list[TextColumn]:
    heads = ("nominal", "reserved", *(("used",) if has_used else ()))
    spare = (number(head, is_spare=True) for head in ("borrowed", "lendable"))
    waiting = map(number, ("pending", "GPUs", "oldest"))
    return [name("queue", 12), name("flavor", 8), *map(number, heads), *spare, *waiting]


def _queue_lines(row: QueueRow, at_ms: int, has_used: bool) -> Iterator[TextRow]:
    """One for each flavor and resource; what counts for the whole queue is in the first."""
    label = f"{'  ' * row.depth}{visible(row.name)}{'' if row.is_queue else '/'}"
    waiting = _waiting_cells(row, at_ms)
    quotas: Sequence[QueueQuotaRow | None] = row.quotas or (None,)
    for index, quota in enumerate(quotas):
        first = index == 0
        yield TextRow(
            (label if first else "", *_quota_cells(quota, has_used), *(waiting if first else ("", "", ""))),
            visible(row.trouble) if first else "",
            "yellow" if row.trouble else "",
        )


def _quota_cells(quota: QueueQuotaRow | None, has_used: bool) -> tuple[str, ...]:
    if quota is None:
        return ("", *[""] * (5 if has_used else 4))
    return (
        visible(quota.flavor) + ("" if quota.resource == _WHOLE else f" {visible(_short(quota.resource))}"),
        _known(quota.nominal),
        _sure(quota.reserved),
        *((_sure(quota.used),) if has_used else ()),
        _sure_count(quota.borrowed),
        UNSURE if quota.reserved is None else _known(quota.lendable),
    )


def _waiting_cells(row: QueueRow | VolcanoRow, at_ms: int) -> tuple[str, str, str]:
    """How many wait, for how much, since when; empty where none do."""
    if row.pending is None or row.pending_units is None:
        return UNSURE, UNSURE, UNSURE
    has_units = bool(row.pending_units) or (isinstance(row, VolcanoRow) and row.pending)
    return _count(row.pending), _units(row.pending_units) if has_units else "", _age(at_ms, row.oldest_ms)


def _loan_text(loan: QuotaLoan) -> str:
    kind = "" if loan.resource == _WHOLE else f" {visible(_short(loan.resource))}"
    what = f"{visible(loan.borrower)} borrows {loan.borrowed_text}{kind} of {visible(loan.flavor)}"
    if not loan.lenders:
        return f"{what} in cohort {visible(loan.cohort)}, where nobody has quota to lend any more"
    names = [
        f"{'' if each.is_queue else 'cohort '}{visible(each.name)} (lends up to {each.unused_text})"
        for each in loan.lenders[:_MOST_LENDERS]
    ]
    rest = len(loan.lenders) - len(names)
    return f"{what} from {' or '.join(names)}" + (f" or {rest:,} more" if rest else "")


def _volcano_row(row: VolcanoRow, at_ms: int) -> TextRow:
    limits = [
        MISSING if each is None else _units(each) for each in (row.deserved, row.guarantee, row.capability)
    ]
    waiting = _waiting_cells(row, at_ms)
    allocated = UNSURE if row.allocated is None else _units(row.allocated)
    trouble = "" if row.state in ("", "Open") else f"state {visible(row.state)}"
    return TextRow((visible(row.name), *limits, allocated, *waiting), trouble)


def _waiting_row(row: WaitingRow, at_ms: int, is_wide: bool) -> TextRow:
    return TextRow(
        (
            _age(at_ms, row.since_ms),
            "" if row.position is None else f"{row.position:,}",
            _units(row.units),
            _full(row.namespace, row.job or row.workload),
            *((visible(row.job_kind),) if is_wide else ()),
            visible(row.team) or MISSING,
            visible(row.queue) or MISSING,
            f"{row.layer}: {visible(row.reason)}",
        ),
        visible(_sentence(row.message), _LONGEST_MESSAGE),
    )


def _gang_row(row: GangRow, at_ms: int) -> TextRow:
    counts = (f"{count:,}" for count in (row.running, row.min_members, row.pending))
    who = _full(row.namespace, row.name)
    since = "unknown" if row.since_ms is None else _age(at_ms, row.since_ms)
    return TextRow(
        (since, _units(row.held), *counts, who, visible(row.queue) or MISSING),
        style="yellow",
    )


_OF_CONDITIONS = {
    "GracefulNodeShutdownInProgress": "shuts down",
    "Drained": "drained",
    "DrainInProgress": "is drained",
    "MaintenanceInProgress": "in maintenance",
    "MaintenancePlanned": "maintenance planned",
}


def _node_row(row: NodeRow, is_wide: bool) -> TextRow:
    states = (
        *("" if row.is_ready else "not ready", "cordoned" if row.is_cordoned else ""),
        *(_OF_CONDITIONS.get(each, "") for each in (row.drain, row.maintenance)),
    )
    return TextRow(
        (
            visible(row.name),
            *((visible(row.product) or MISSING,) if is_wide else ()),
            visible(row.pool) or MISSING,
            visible(_short(row.resource)),
            *map(_sure, (row.advertised, row.expected, row.held)),
            ", ".join(filter(None, states)) or "ready",
        ),
        style="yellow",
    )


def _problem_row(row: ProblemCount, is_noted: bool) -> TextRow:
    cells = (f"{row.count:,}", row.code)
    return TextRow(cells, row.meaning) if is_noted else TextRow((*cells, row.meaning))


# Words


def _has_gpus(row: QueueRow) -> bool:
    return bool(row.quotas or row.pending_units)


def _is_busy(row: QueueRow) -> bool:
    return row.is_queue and bool(
        row.pending_units or (row.trouble and row.quotas) or any(quota.reserved for quota in row.quotas)
    )


def _groups(names: Iterable[str]) -> list[str]:
    """``pods`` as it is; several collections of a group as the group and how many kinds."""
    by_group: dict[str, list[str]] = {}
    for each in names:
        by_group.setdefault(each.partition(".")[2] or each, []).append(each)
    return [
        f"{group} ({len(found)} kinds)" if len(found) > 1 else found[0] for group, found in by_group.items()
    ]


def _counts(facts: StateFacts) -> Iterator[str]:
    """The numbers of nodes, pods and workloads, and those that could not be read."""
    if facts.nodes is not None:
        yield f"{counted(facts.nodes, 'node')}, {facts.gpu_nodes or 0:,} with GPUs"
    elif facts.teams_in_scope is None:
        yield "nodes could not be read"
    if facts.pods is None:
        yield "pods could not be read"
    else:
        yield f"{counted(facts.pods, 'pod')}, {facts.gpu_pods or 0:,} of which hold GPUs"
    if facts.workloads is None:
        yield "workloads of Kueue could not be read"
    elif facts.workloads:
        yield f"{counted(facts.workloads, 'workload')} of Kueue"


def _unknown_waiters(facts: StateFacts) -> str:
    """What may wait and could not be read, empty when all of it was."""
    names = {PODS: "pods", WORKLOADS: "workloads of Kueue"}
    return " and ".join(said for name, said in names.items() if not facts.knows(name))


def _nobody(asked: str, unknown: str) -> str:
    who = "Nobody" if not asked else f"Nothing that matches {visible(asked, _LONGEST_MESSAGE)}"
    if unknown:
        return f"Whether {who[0].lower()}{who[1:]} waits for GPUs is not known: {unknown} could not be read."
    return f"{who} waits for GPUs.{' What runs is not listed here.' if asked else ''}"


def _lines(rows: Iterable[QueueRow]) -> int:
    return sum(max(1, len(each.quotas)) for each in rows)


def _sure(count: int | None) -> str:
    return UNSURE if count is None else f"{count:,}"


def _sure_count(count: int | None) -> str:
    return UNSURE if count is None else _count(count)


def _sum(parts: Iterable[Resources]) -> dict[str, int]:
    return added(*parts)


def _units(units: Mapping[str, int]) -> str:
    """``8``; units other than whole GPUs with their name: ``4 mig-1g.10gb``."""
    texts = [
        f"{amount:,}" if resource == _WHOLE else f"{amount:,} {visible(_short(resource))}"
        for resource, amount in sorted(units.items())
    ]
    return "+".join(texts) or "0"


def _short(resource: str) -> str:
    return resource.rpartition("/")[2]


def _known(amount: int | None) -> str:
    return MISSING if amount is None else f"{amount:,}"


def _count(count: int) -> str:
    """Empty for 0, to keep the screen short."""
    return f"{count:,}" if count else ""


def _full(namespace: str, own: str) -> str:
    return visible(f"{namespace}/{own}" if namespace else own, 120)


def _sentence(message: str) -> str:
    """The first one, on one line."""
    return " ".join(message.split()).partition(". ")[0]


def _age(at_ms: int, since_ms: int | None) -> str:
    """``45s``, ``12m``, ``3h05m``, ``4d02h``; empty for never."""
    if since_ms is None:
        return ""
    length_ms = max(0, at_ms - since_ms)
    if length_ms < MINUTE_MS:
        return f"{length_ms // SECOND_MS}s"
    if length_ms < HOUR_MS:
        return f"{length_ms // MINUTE_MS}m"
    if length_ms < DAY_MS:
        return f"{length_ms // HOUR_MS}h{length_ms % HOUR_MS // MINUTE_MS:02}m"
    return f"{length_ms // DAY_MS}d{length_ms % DAY_MS // HOUR_MS:02}h"
