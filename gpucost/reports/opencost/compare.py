"""OpenCost's month beside ours: rows by namespace, team or node, each with the causes of its difference."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction

from gpucost.contract.opencost import COUNTED_RESOURCES, BilledNode, BilledPod
from gpucost.domain.holders import Bucket
from gpucost.domain.money import round_half_even, split_by_weight
from gpucost.domain.time import DAY_MS, Month
from gpucost.pricing.observed import exact_nano
from gpucost.reports import display
from gpucost.reports.opencost.causes import READ_MORE, TEXTS, Cause
from gpucost.reports.opencost.inputs import OpenCostDay, OurLine
from gpucost.reports.opencost.stages import (
    Figures,
    NodeDay,
    NodePrice,
    PodDay,
    amounts,
    capacity_figures,
    pod_figures,
)
from gpucost.reports.values import ratio

_NO_PRICE = "no-price"
_Node = tuple[str, int, str]  # cluster, day, node
_Pod = tuple[str, str, str]  # namespace, pod, team


class By(StrEnum):
    NAMESPACE = "namespace"
    TEAM = "team"
    NODE = "node"


class Kind(StrEnum):
    """Of what a row is: time that pods held, or what is left of the capacity."""

    HELD = "held"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class CauseAmount:
    """``nano`` is how much more (less, if negative) ours is than OpenCost's for this cause."""

    cause: Cause
    defect: str
    title: str
    nano: int


@dataclass(frozen=True, slots=True)
class Efficiency:
    """``opencost`` as OpenCost shows it: activity of a pod's GPUs, which is a mean, by their number, which is
    not; what was not measured counts as 0. ``ours`` is over the observed part, which ``coverage`` is of the
    time held."""

    opencost: Fraction | None
    ours: Fraction | None
    coverage: Fraction | None


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """``opencost_nano`` + the causes = ``ours_nano``, exactly. ``name`` is empty for idle time. ``notes`` say
    what to know of figures that no amount stands for."""

    cluster: str
    name: str
    kind: Kind
    opencost_nano: int
    ours_nano: int
    causes: tuple[CauseAmount, ...]
    efficiency: Efficiency
    notes: tuple[str, ...] = ()

    @property
    def is_priced(self) -> bool:
        """Whether any of our time has a price; where none has, ``ours_nano`` is 0 for want of one."""
        return bool(self.ours_nano) or not any(note.startswith(_NO_PRICE) for note in self.notes)


@dataclass(frozen=True, slots=True)
class Explained:
    """A cause that made a difference anywhere."""

    cause: Cause
    defect: str
    title: str
    sentence: str
    read_more: str


@dataclass(frozen=True, slots=True)
class OpenCostComparison:
    """A month by OpenCost's formula from its own series, and by ours. ``days`` are those of which there are
    both; ``missing_days`` those of which the ledger has lines and OpenCost has nothing: they are left out.
    ``read_ms`` is how much of ``days`` was read."""

    month: Month
    currency: str
    by: By
    rows: tuple[ComparedRow, ...]
    total: ComparedRow
    causes: tuple[Explained, ...]
    days: int
    missing_days: int
    read_ms: int


@dataclass
class _Sum:
    """One row while it grows."""

    figures: Figures = field(default_factory=lambda: [0] * (len(Cause) + 1))
    unpriced_ms: int = 0
    active_ms: Fraction = Fraction(0)
    requested_ms: int = 0
    unmeasured_ms: int = 0
    busy_ms: int = 0
    observed_ms: int = 0
    held_ms: int = 0
    has_many: bool = False

    def add(self, figures: Sequence[int], sign: int = 1) -> None:
        self.figures = [a + sign * b for a, b in zip(self.figures, figures, strict=True)]


def compare(
    month: Month,
    currency: str,
    by: By,
    days: Sequence[OpenCostDay],
    lines: Iterable[OurLine],
    uncounted: Collection[tuple[str, str]] = (),
    read_ms: Mapping[tuple[str, int], int] | None = None,
) -> OpenCostComparison:
    """``lines`` are our lines of the month, of every bucket; ``uncounted`` are nodes (cluster and name) of
    which nothing says how many boards they have: their lines are what was held, and no capacity. ``read_ms``
    is how much of each day was read, where not all of it."""
    ours: dict[tuple[str, int], dict[str, list[OurLine]]] = {}
    for line in lines:
        ours.setdefault((line.cluster, line.day_ms), {}).setdefault(line.node, []).append(line)
    theirs = {(day.cluster, day.day_ms): day for day in days if day.nodes}
    boards = {key: count for key, count in _boards(ours).items() if key not in uncounted}
    found: dict[tuple[str, str, Kind], _Sum] = {}
    both = sorted(ours.keys() & theirs.keys())
    for key in both:
        _add_day(found, by, theirs[key], ours[key], boards)
    rows = tuple(sorted((_row(*key, sum_) for key, sum_ in found.items()), key=_order))
    total = _total(found)
    explained = tuple(_explained(amount.cause) for amount in total.causes)
    extra = {amount.cause for row in rows for amount in row.causes} - {each.cause for each in explained}
    explained += tuple(_explained(cause) for cause in Cause if cause in extra)
    missing = len(ours.keys() - theirs.keys())
    read = sum((read_ms or {}).get(key, DAY_MS) for key in both)
    return OpenCostComparison(month, currency, by, rows, total, explained, len(both), missing, read)


def _add_day(
    found: dict[tuple[str, str, Kind], _Sum],
    by: By,
    day: OpenCostDay,
    ours: Mapping[str, Sequence[OurLine]],
    boards: Mapping[tuple[str, str], int],
) -> None:
    nodes = {node.node: node for node in day.nodes}
    billed: dict[str, list[BilledPod]] = {}
    for pod in day.pods:
        billed.setdefault(pod.node, []).append(pod)
    for name in sorted({*nodes, *billed, *ours}):
        node, lines = nodes.get(name), ours.get(name, ())
        price = _price(node, boards.get((day.cluster, name)))
        idle_name = name if by is By.NODE else ""
        idle = found.setdefault((day.cluster, idle_name, Kind.IDLE), _Sum())
        idle.add(capacity_figures(_node_day(node, lines, boards.get((day.cluster, name))), price))
        idle.unpriced_ms += sum(line.unpriced_ms for line in lines if _is_idle(line))
        for (namespace, _, team), (pod_day, their, our) in _pods(billed.get(name, ()), lines).items():
            row_name = {By.NAMESPACE: namespace, By.TEAM: team, By.NODE: name}[by]
            row = found.setdefault((day.cluster, row_name, Kind.HELD), _Sum())
            figures = pod_figures(pod_day, price)
            row.add(figures)
            row.unpriced_ms += pod_day.unpriced_ms
            idle.add(figures, -1)
            _measure(row, their, our)


def _is_idle(line: OurLine) -> bool:
    return line.bucket.is_capacity and line.bucket is not Bucket.HELD


def _pods(
    billed: Sequence[BilledPod], lines: Sequence[OurLine]
) -> dict[_Pod, tuple[PodDay, BilledPod | None, list[OurLine]]]:
    """Pods of one node and day by namespace, name and team: OpenCost knows no uids. Of a pod that two teams
    had, each has the part of OpenCost's time that it has of ours."""
    ours: dict[tuple[str, str], dict[str, list[OurLine]]] = {}
    for line in lines:
        if line.bucket in (Bucket.HELD, Bucket.OVERCOMMITTED):
            ours.setdefault((line.namespace, line.pod), {}).setdefault(line.team, []).append(line)
    theirs: dict[tuple[str, str], BilledPod] = {}
    for pod in billed:
        theirs[pod.namespace, pod.pod] = pod
    found: dict[_Pod, tuple[PodDay, BilledPod | None, list[OurLine]]] = {}
    for key in sorted(ours.keys() | theirs.keys()):
        teams = ours.get(key, {"": []})
        weights = {team: sum(line.board_ms for line in own) for team, own in teams.items()}
        for team, part in _parts(theirs.get(key), weights).items():
            found[(*key, team)] = (_pod_day(part, teams[team]), part, teams[team])
    return found


def _parts(pod: BilledPod | None, weights: Mapping[str, int]) -> dict[str, BilledPod | None]:
    if pod is None or len(weights) == 1 or not any(weights.values()):
        first = next(iter(weights))
        return {team: pod if team == first else None for team in weights}
    units, running = (split_by_weight(total, weights) for total in (pod.unit_ms, pod.running_ms))
    return {team: replace(pod, unit_ms=units[team], running_ms=running[team]) for team in weights}


def _pod_day(billed: BilledPod | None, lines: Sequence[OurLine]) -> PodDay:
    known = [line for line in lines if line.resource in COUNTED_RESOURCES]
    others = [line for line in lines if line.resource not in COUNTED_RESOURCES]
    over = [line for line in lines if line.bucket is Bucket.OVERCOMMITTED]
    return PodDay(
        billed_ms=billed.unit_ms if billed else 0,
        billed_run_ms=billed.running_ms if billed else 0,
        unit_ms=sum(line.unit_ms for line in known),
        board_ms=sum(line.board_ms for line in known),
        other_board_ms=sum(line.board_ms for line in others),
        over_ms=sum(line.board_ms for line in over),
        unpriced_ms=sum(line.unpriced_ms for line in lines),
        wall_ms=_span(lines),
        list_nano=sum(line.list_nano for line in lines),
        nano=sum(line.nano for line in lines),
    )


def _node_day(node: BilledNode | None, lines: Sequence[OurLine], boards: int | None) -> NodeDay:
    capacity = [line for line in lines if line.bucket.is_capacity]
    known = sum(line.board_ms for line in capacity if line.resource in COUNTED_RESOURCES)
    count = node.count if node else None
    return NodeDay(
        count_milli=None if count is None else round(count * 1000),
        billed_node_ms=node.node_ms if node else 0,
        node_ms=_span(capacity),
        board_ms=known,
        other_board_ms=sum(line.board_ms for line in capacity) - known,
        boards=boards,
        unpriced_ms=sum(line.unpriced_ms for line in capacity),
        list_nano=sum(line.list_nano for line in capacity),
        nano=sum(line.nano for line in capacity),
    )


def _price(node: BilledNode | None, boards: int | None) -> NodePrice:
    if node is None:
        return NodePrice(None, None)
    gpu = None if node.gpu_price is None else round(exact_nano(node.gpu_price))
    has_whole = node.total_price is not None and node.total_price > 0 and boards
    whole = round(exact_nano(node.total_price or 0) / (boards or 1)) if has_whole else None
    return NodePrice(gpu, whole)


def _boards(ours: Mapping[tuple[str, int], Mapping[str, Sequence[OurLine]]]) -> dict[tuple[str, str], int]:
    """The boards of each node, by the most of its capacity that was there at once on any day."""
    found: dict[tuple[str, str], int] = {}
    for (cluster, _), by_node in ours.items():
        for node, lines in by_node.items():
            capacity = [line for line in lines if line.bucket.is_capacity]
            if span := _span(capacity):
                boards = -(-sum(line.board_ms for line in capacity) // span)
                found[cluster, node] = max(boards, found.get((cluster, node), 0))
    return found


def _span(lines: Sequence[OurLine]) -> int:
    if not lines:
        return 0
    return max(line.last_ms for line in lines) - min(line.first_ms for line in lines)


def _measure(row: _Sum, their: BilledPod | None, ours: Sequence[OurLine]) -> None:
    if their is not None:
        row.requested_ms += their.unit_ms
        row.active_ms += Fraction(their.active or 0) * their.running_ms
        row.unmeasured_ms += their.unit_ms if their.active is None else 0
        row.has_many |= their.unit_ms > their.running_ms
    row.busy_ms += sum(line.busy_ms for line in ours)
    row.observed_ms += sum(line.observed_ms for line in ours)
    row.held_ms += sum(line.board_ms for line in ours)


def _row(cluster: str, name: str, kind: Kind, found: _Sum) -> ComparedRow:
    made = amounts(found.figures)
    causes = tuple(
        CauseAmount(cause, TEXTS[cause].defect, TEXTS[cause].title, nano)
        for cause, nano in made.items()
        if nano
    )
    active = Fraction(round_half_even(found.active_ms.numerator, found.active_ms.denominator))
    efficiency = Efficiency(
        active / found.requested_ms if found.requested_ms else None,
        ratio(found.busy_ms, found.observed_ms),
        ratio(found.observed_ms, found.held_ms),
    )
    first, last = found.figures[0], found.figures[-1]
    return ComparedRow(cluster, name, kind, first, last, causes, efficiency, tuple(_notes(found, kind)))


def _notes(found: _Sum, kind: Kind) -> Iterable[str]:
    if found.unpriced_ms:
        yield f"{_NO_PRICE} {display.hours(found.unpriced_ms)} GPU-hours of ours have none: they count as 0"
    if kind is Kind.IDLE and found.figures[0] < 0:
        yield "D8 OpenCost's idle is negative: it bills pods for more than the node costs"
    if found.has_many and found.active_ms:
        yield "D4 efficiency: OpenCost divides the mean of a pod's GPUs by their number"
    if found.unmeasured_ms:
        yield "D7 efficiency: OpenCost takes what was not measured for 0%"


_OF_OURS = ("busy_ms", "observed_ms", "held_ms")


def _total(found: Mapping[tuple[str, str, Kind], _Sum]) -> ComparedRow:
    whole = _Sum()
    for sum_ in found.values():
        whole.add(sum_.figures)
        for name in ("unpriced_ms", "active_ms", "requested_ms", "unmeasured_ms", *_OF_OURS):
            setattr(whole, name, getattr(whole, name) + getattr(sum_, name))
        whole.has_many |= sum_.has_many
    return _row("", "", Kind.HELD, whole)


def _explained(cause: Cause) -> Explained:
    text = TEXTS[cause]
    return Explained(cause, text.defect, text.title, text.sentence, f"{READ_MORE}#{cause.value}")


def _order(row: ComparedRow) -> tuple[object, ...]:
    return (row.cluster, row.kind is Kind.IDLE, -max(abs(row.ours_nano), abs(row.opencost_nano)), row.name)
