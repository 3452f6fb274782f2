"""The screen of ``gpucost state show``: the facts of a cluster as lines that fit a terminal.

All that a cluster names itself is foreign text: it is shown, and never interpreted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from rich.console import Console
from rich.text import Text

from gpucost.cli.columns import Column, Row, fitted, folded, in_columns, name, number
from gpucost.cli.state_facts import Facts, GangRow, GpuTotal, NodeRow, ProblemCount
from gpucost.cli.state_queues import Loan, QueueRow, QuotaRow, VolcanoRow
from gpucost.cli.state_waiting import WaitingRow
from gpucost.cluster.objects import Resources, added
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, iso
from gpucost.reports.display import MISSING, counted, visible

T = TypeVar("T")

MOST_ROWS = 15
"""Of a list that is not shown whole."""
_MOST_QUEUE_ROWS = 40
_MOST_LENDERS = 4
_MOST_PROBLEMS = 5
_NOTE_LINES = 2
_WHOLE = "nvidia.com/gpu"
_WIDE = 116  # from so many columns on, tables also say what can be done without
_LONGEST_MESSAGE = 1_000


def print_screen(facts: Facts, console: Console, *, everything: bool = False) -> None:
    """Every section that has something to say; lists are cut unless ``everything`` is wanted."""
    screen = _Screen(facts, console.width, everything)
    for line in screen.lines():
        console.print(line, soft_wrap=True)


class _Screen:
    """Makes the lines of the sections, none of them wider than ``width`` as far as numbers leave room."""

    def __init__(self, facts: Facts, width: int, everything: bool) -> None:
        self._facts, self._width, self._everything = facts, width, everything
        self._is_wide = width >= _WIDE

    def lines(self) -> Iterator[Text]:
        """All of them."""
        sections = (
            self._header(),
            self._queues(),
            self._loans(),
            self._volcano(),
            self._waiting(),
            self._gangs(),
            self._nodes(),
            self._problems(),
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
        nodes = f"{counted(facts.nodes, 'node')}, {facts.gpu_nodes:,} with GPUs"
        pods = f"{counted(facts.pods, 'pod')}, {facts.gpu_pods:,} of which hold GPUs"
        workloads = f"; {counted(facts.workloads, 'workload')} of Kueue" if facts.workloads else ""
        yield self._plain(f"{nodes}; {pods}{workloads}")
        if facts.gpus:
            heads = [name("resource", 12), *map(number, ("held", "advertised", "expected", "missing"))]
            yield from self._table(heads, facts.gpus, _gpu_row)
        if facts.forbidden:
            yield self._plain(f"Not allowed to list: {', '.join(facts.forbidden)}", "yellow")
        if facts.absent:
            yield from self._folded(f"Not installed: {', '.join(_groups(facts.absent))}")

    def _queues(self) -> Iterator[Text]:
        """Where they are too many, idle ones are left out first."""
        rows = self._facts.queues
        shown, quiet = _kept(rows, _has_gpus), "without GPU quota"
        if not shown:
            has_kueue = bool(rows) or "clusterqueues.kueue.x-k8s.io" not in self._facts.absent
            yield Text("No ClusterQueue has GPU quota." if has_kueue else "Kueue is not installed.", "dim")
            return
        if not self._everything and sum(len(each.quotas) for each in shown) > _MOST_QUEUE_ROWS:
            shown, quiet = _kept(rows, _is_busy), "idle or without GPU quota"
        yield Text("Queues and cohorts of Kueue, in GPUs", "bold")
        has_used = self._is_wide or any(q.used != q.reserved for each in shown for q in each.quotas)
        lines = [line for each in shown for line in _queue_lines(each, self._facts.at_ms, has_used)]
        yield from self._table(_queue_heads(has_used), lines, lambda line: line, _MOST_QUEUE_ROWS)
        left_out = sum(each.is_queue for each in rows) - sum(each.is_queue for each in shown)
        if left_out:
            yield self._plain(f"{counted(left_out, 'ClusterQueue')} {quiet} left out", "dim")

    def _loans(self) -> Iterator[Text]:
        if self._facts.loans:
            yield Text("Borrowing", "bold")
            for loan in self._cut(self._facts.loans):
                yield from self._folded(_loan_text(loan), "")
            yield from self._rest(len(self._facts.loans) - len(self._cut(self._facts.loans)))

    def _volcano(self) -> Iterator[Text]:
        rows = [each for each in self._facts.volcano_queues if each.name != "root"]
        if rows:
            yield Text("Queues of Volcano, in GPUs", "bold")
            heads = ("deserved", "guarantee", "cap", "allocated", "pending", "GPUs", "oldest")
            columns = [name("queue"), *map(number, heads)]
            yield from self._table(columns, rows, self._dated(_volcano_row))

    def _waiting(self) -> Iterator[Text]:
        rows = self._facts.waiting
        if not rows:
            yield Text("Nobody waits for GPUs.", "dim")
            return
        layers = Counter(each.layer for each in rows)
        by_layer = ", ".join(f"{layer} {count:,}" for layer, count in layers.most_common())
        title = f"Waiting: {counted(len(rows), 'job')} for {_units(_sum(each.units for each in rows))} GPUs"
        yield Text.assemble((title, "bold"), f" (held by {by_layer})")
        columns = [
            *map(number, ("wait", "pos", "GPUs")),
            name("job", 14),
            *([name("kind", 8)] if self._is_wide else []),
            name("team", 6),
            name("queue", 6),
            name("held by", 18),
        ]
        yield from self._table(columns, rows, self._dated(partial(_waiting_row, is_wide=self._is_wide)))

    def _gangs(self) -> Iterator[Text]:
        rows = self._facts.partial_gangs
        if rows:
            held = _units(_sum(each.held for each in rows))
            yield Text(f"Partial gangs: {counted(len(rows), 'gang')} holding {held} GPUs in vain", "bold")
            columns = [
                *map(number, ("since", "GPUs held", "running", "needs", "pending")),
                name("gang", 14),
                name("queue", 6),
            ]
            yield from self._table(columns, rows, self._dated(_gang_row))

    def _nodes(self) -> Iterator[Text]:
        rows = self._facts.short_nodes
        if rows:
            missing = sum(each.expected - each.advertised for each in rows)
            yield Text(f"Nodes that do not advertise all their GPUs: {missing:,} missing", "bold")
            columns = [
                name("node", 14),
                *([name("product", 8)] if self._is_wide else []),
                name("pool", 6),
                name("resource", 6),
                *map(number, ("advertised", "expected", "held")),
                name("state", 9),
            ]
            yield from self._table(columns, rows, partial(_node_row, is_wide=self._is_wide))

    def _problems(self) -> Iterator[Text]:
        facts = self._facts
        if not facts.problems:
            yield Text("No problems found.", "dim")
            return
        yield Text(f"Problems: {len(facts.problems):,}", "bold")
        columns = [number("count"), Column("problem"), name("meaning", 20)]
        yield from self._table(columns, facts.problem_counts, _problem_row)
        shown = self._cut(facts.problems, _MOST_PROBLEMS)
        for each in shown:
            who = f"{each.kind} {_full(each.namespace, each.name)}"
            yield from self._folded(f"{who}: {visible(each.detail, _LONGEST_MESSAGE)}", "")
        yield from self._rest(len(facts.problems) - len(shown))

    # Lists, and lines that fit

    def _table(
        self, columns: Sequence[Column], rows: Sequence[T], make: Callable[[T], Row], most: int = MOST_ROWS
    ) -> Iterator[Text]:
        """At most ``most`` rows unless everything is wanted, and how many more there are."""
        shown = self._cut(rows, most)
        note_lines = None if self._everything else _NOTE_LINES
        yield from in_columns(columns, [make(row) for row in shown], self._width, note_lines)
        yield from self._rest(len(rows) - len(shown))

    def _cut(self, rows: Sequence[T], most: int = MOST_ROWS) -> Sequence[T]:
        """One row more is shown rather than announced."""
        return rows if self._everything or len(rows) <= most + 1 else rows[:most]

    def _rest(self, count: int) -> Iterator[Text]:
        if count:
            yield self._plain(f"and {count:,} more (--all shows them)", "dim")

    def _dated(self, make: Callable[[T, int], Row]) -> Callable[[T], Row]:
        return lambda row: make(row, self._facts.at_ms)

    def _plain(self, text: str, style: str = "") -> Text:
        return Text(f" {fitted(visible(text, _LONGEST_MESSAGE), self._width - 1)}", style)

    def _folded(self, text: str, style: str = "dim") -> Iterator[Text]:
        """As many lines as it needs."""
        yield from (Text(line, style) for line in folded(text, self._width, " ", "   "))


# Rows


def _gpu_row(found: GpuTotal) -> Row:
    expected = MISSING if found.expected is None else f"{found.expected:,}"
    missing = 0 if found.expected is None else max(0, found.expected - found.advertised)
    cells = (visible(found.resource), f"{found.held:,}", f"{found.advertised:,}", expected, _count(missing))
    return Row(cells, style="yellow" if missing else "")


def _queue_heads(has_used: bool) -> list[Column]:
    heads = ("nominal", "reserved", *(("used",) if has_used else ()), "borrowed", "lendable")
    waiting = map(number, ("pending", "GPUs", "oldest"))
    return [name("queue", 12), name("flavor", 8), *map(number, heads), *waiting]


def _queue_lines(row: QueueRow, at_ms: int, has_used: bool) -> Iterator[Row]:
    """One for each flavor and resource; what counts for the whole queue is in the first."""
    label = f"{'  ' * row.depth}{visible(row.name)}{'' if row.is_queue else '/'}"
    units = _units(row.pending_units) if row.pending_units else ""
    waiting = (_count(row.pending), units, _age(at_ms, row.oldest_ms))
    quotas: Sequence[QuotaRow | None] = row.quotas or (None,)
    for index, quota in enumerate(quotas):
        first = index == 0
        yield Row(
            (label if first else "", *_quota_cells(quota, has_used), *(waiting if first else ("", "", ""))),
            visible(row.trouble) if first else "",
            "yellow" if row.trouble else "",
        )


def _quota_cells(quota: QuotaRow | None, has_used: bool) -> tuple[str, ...]:
    if quota is None:
        return ("", *[""] * (5 if has_used else 4))
    return (
        visible(quota.flavor) + ("" if quota.resource == _WHOLE else f" {visible(_short(quota.resource))}"),
        MISSING if quota.nominal is None else f"{quota.nominal:,}",
        f"{quota.reserved:,}",
        *((f"{quota.used:,}",) if has_used else ()),
        _count(quota.borrowed),
        MISSING if quota.lendable is None else f"{quota.lendable:,}",
    )


def _loan_text(loan: Loan) -> str:
    kind = "" if loan.resource == _WHOLE else f" {visible(_short(loan.resource))}"
    what = f"{visible(loan.borrower)} borrows {loan.borrowed:,}{kind} of {visible(loan.flavor)}"
    if not loan.lenders:
        return f"{what} in cohort {visible(loan.cohort)}, where nobody has quota to lend any more"
    names = [
        f"{'' if each.is_queue else 'cohort '}{visible(each.name)} (lends up to {each.unused:,})"
        for each in loan.lenders[:_MOST_LENDERS]
    ]
    rest = len(loan.lenders) - len(names)
    return f"{what} from {' or '.join(names)}" + (f" or {rest:,} more" if rest else "")


def _volcano_row(row: VolcanoRow, at_ms: int) -> Row:
    limits = [
        MISSING if each is None else _units(each) for each in (row.deserved, row.guarantee, row.capability)
    ]
    waiting = (
        _count(row.pending),
        _units(row.pending_units) if row.pending else "",
        _age(at_ms, row.oldest_ms),
    )
    trouble = "" if row.state in ("", "Open") else f"state {visible(row.state)}"
    return Row((visible(row.name), *limits, _units(row.allocated), *waiting), trouble)


def _waiting_row(row: WaitingRow, at_ms: int, is_wide: bool) -> Row:
    return Row(
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


def _gang_row(row: GangRow, at_ms: int) -> Row:
    counts = (f"{count:,}" for count in (row.running, row.min_members, row.pending))
    who = _full(row.namespace, row.name)
    return Row(
        (_age(at_ms, row.since_ms), _units(row.held), *counts, who, visible(row.queue) or MISSING),
        style="yellow",
    )


def _node_row(row: NodeRow, is_wide: bool) -> Row:
    states = ("" if row.is_ready else "not ready", "cordoned" if row.is_cordoned else "")
    return Row(
        (
            visible(row.name),
            *((visible(row.product) or MISSING,) if is_wide else ()),
            visible(row.pool) or MISSING,
            visible(_short(row.resource)),
            *(f"{count:,}" for count in (row.advertised, row.expected, row.held)),
            ", ".join(filter(None, states)) or "ready",
        ),
        style="yellow",
    )


def _problem_row(row: ProblemCount) -> Row:
    return Row((f"{row.count:,}", row.code, row.meaning))


# Words


def _has_gpus(row: QueueRow) -> bool:
    return bool(row.quotas or row.pending_units)


def _is_busy(row: QueueRow) -> bool:
    return row.is_queue and bool(
        row.pending_units or (row.trouble and row.quotas) or any(quota.reserved for quota in row.quotas)
    )


def _kept(rows: Sequence[QueueRow], is_wanted: Callable[[QueueRow], bool]) -> list[QueueRow]:
    """Those that are wanted, and the cohorts above them."""
    kept: list[QueueRow] = []
    lowest = 0
    for row in reversed(rows):  # whatever is below a cohort comes before it
        if is_wanted(row) or (not row.is_queue and row.depth < lowest):
            kept.append(row)
            lowest = row.depth
    return kept[::-1]


def _groups(names: Iterable[str]) -> list[str]:
    """``pods`` as it is; collections of a group as the group and how many."""
    counts = Counter(each.partition(".")[2] or each for each in names)
    return [f"{group} ({count})" if count > 1 else group for group, count in sorted(counts.items())]


def _sum(parts: Iterable[Resources]) -> dict[str, int]:
    return added(*parts)


def _units(units: Mapping[str, int]) -> str:
    """``8``; what are not whole GPUs with the name: ``4 mig-1g.10gb``."""
    texts = [
        f"{amount:,}" if resource == _WHOLE else f"{amount:,} {visible(_short(resource))}"
        for resource, amount in sorted(units.items())
    ]
    return "+".join(texts) or "0"


def _short(resource: str) -> str:
    return resource.rpartition("/")[2]


def _count(count: int) -> str:
    """Nothing for 0: what is not there should not be read."""
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
