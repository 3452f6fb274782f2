"""OpenCost's figures beside ours: rows by namespace, team, node or pod, and the causes of each difference."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction

from gpucost.contract.opencost import COUNTED_RESOURCES, RESOLUTION_MS, BilledNode, BilledPod, OpenCostRelease
from gpucost.domain.buckets import Bucket
from gpucost.domain.money import round_half_even
from gpucost.domain.time import DAY_MS, Month, Window
from gpucost.pricing.opencost_prices import exact_nano
from gpucost.reports.base import display
from gpucost.reports.base.values import ratio
from gpucost.reports.opencost.causes import (
    READ_MORE,
    TEXTS,
    ComparisonCause,
    CostFigures,
    NodeDay,
    NodePrice,
    PodDay,
    amounts,
    capacity_figures,
    pod_figures,
    taken_from_idle,
)
from gpucost.reports.opencost.held_time import (
    OpenCostDay,
    OpenCostHeldTime,
    OurLine,
    Place,
    held_times,
)

_NO_PRICE = "no-price"
_Pod = tuple[str, str]  # namespace, pod


class CompareBy(StrEnum):
    NAMESPACE = "namespace"
    TEAM = "team"
    NODE = "node"
    POD = "pod"


class ComparedKind(StrEnum):
    """The kind of a row: time that pods held, or the rest of the capacity."""

    HELD = "held"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class CauseAmount:
    """``nano`` is how much more (less, if negative) ours is than OpenCost's for this cause."""

    cause: ComparisonCause
    defect: str
    title: str
    nano: int


@dataclass(frozen=True, slots=True)
class GpuEfficiency:
    """``opencost`` as OpenCost shows it: the mean activity of a pod's GPUs times their number, where what was
    not measured counts as 0. ``ours`` is over the observed part, which is ``coverage`` of the time held."""

    opencost: Fraction | None
    ours: Fraction | None
    coverage: Fraction | None


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """``opencost_nano`` + the causes = ``ours_nano``, exactly. ``opencost_board_ms`` is OpenCost's time of
    GPUs, which are units as it counts them. ``name`` is empty for idle time. ``notes`` are remarks on the
    figures that no amount expresses.
    """

    cluster: str
    name: str
    kind: ComparedKind
    opencost_nano: int
    ours_nano: int
    opencost_board_ms: int
    ours_board_ms: int
    causes: tuple[CauseAmount, ...]
    efficiency: GpuEfficiency
    notes: tuple[str, ...] = ()

    @property
    def is_priced(self) -> bool:
        """Whether any of our time has a price; where none has, ``ours_nano`` is 0 for want of one."""
        return bool(self.ours_nano) or not any(note.startswith(_NO_PRICE) for note in self.notes)


@dataclass(frozen=True, slots=True)
class ExplainedCause:
    """A cause that made a difference anywhere."""

    cause: ComparisonCause
    defect: str
    title: str
    sentence: str
    read_more: str


@dataclass(frozen=True, slots=True)
class ComparedRelease:
    """Which OpenCost a cluster was compared with, and by which rules; ``versions`` as its build info has
    them. ``default_nano`` is the assumed price of an hour of a GPU on a node without price series, from
    ``default_source``. ``doubts`` say what cannot be compared.
    """

    cluster: str
    versions: tuple[str, ...]
    rules: str
    default_nano: int | None
    default_source: str
    doubts: tuple[str, ...]

    @classmethod
    def of(cls, cluster: str, found: OpenCostRelease) -> ComparedRelease:
        default = found.default
        nano = None if default is None else round(exact_nano(default.price))
        source = "" if default is None else default.source
        return cls(cluster, found.versions, found.rules, nano, source, found.doubts)


@dataclass(frozen=True, slots=True)
class OpenCostComparison:
    """A stretch of time by OpenCost's formula from its own series, and by ours; ``month`` where it is a whole
    one. ``days`` are those for which there are both; ``missing_days`` those for which the ledger has lines
    and OpenCost has nothing: they are left out. ``read_ms`` is how much of ``days`` was read.
    """

    month: Month | None
    window: Window
    currency: str
    by: CompareBy
    releases: tuple[ComparedRelease, ...]
    resolution_ms: int
    rows: tuple[ComparedRow, ...]
    total: ComparedRow
    causes: tuple[ExplainedCause, ...]
    days: int
    missing_days: int
    read_ms: int


@dataclass
class _CostSum:
    """One row while it is being added up."""

    figures: CostFigures = field(default_factory=lambda: [0] * (len(ComparisonCause) + 1))
    billed_ms: int = 0
    board_ms: int = 0
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
    period: Month | Window,
    currency: str,
    by: CompareBy,
    days: Sequence[OpenCostDay],
    lines: Iterable[OurLine],
    uncounted: Collection[tuple[str, str]] = (),
    read_ms: Mapping[tuple[str, int], int] | None = None,
    resolution_ms: int = RESOLUTION_MS,
) -> OpenCostComparison:
    """``lines`` are our lines of the period, of every bucket; ``uncounted`` are nodes (cluster and name)
    whose number of GPUs is unknown: their lines are what was held, and no capacity. ``read_ms`` is how much
    of each day was read, where not all of it; ``resolution_ms`` how often OpenCost samples.
    """
    ours: dict[tuple[str, int], dict[str, list[OurLine]]] = {}
    for line in lines:
        ours.setdefault((line.cluster, line.day_ms), {}).setdefault(line.node, []).append(line)
    theirs = {(day.cluster, day.day_ms): day for day in days if day.nodes}
    boards = {key: count for key, count in _boards(ours).items() if key not in uncounted}
    rows = _ComparedRows(by, boards, resolution_ms)
    both = sorted(ours.keys() & theirs.keys())
    for key in both:
        rows.add_day(theirs[key], ours[key])
    found = rows.found
    sorted_rows = tuple(sorted((_row(*key, sum_) for key, sum_ in found.items()), key=_order))
    total = _total(found)
    explained = tuple(_explained(amount.cause) for amount in total.causes)
    extra = {amount.cause for row in sorted_rows for amount in row.causes} - {
        each.cause for each in explained
    }
    explained += tuple(_explained(cause) for cause in ComparisonCause if cause in extra)
    releases = dict.fromkeys(ComparedRelease.of(key[0], theirs[key].release) for key in both)
    return OpenCostComparison(
        month=period if isinstance(period, Month) else None,
        window=period.window if isinstance(period, Month) else period,
        currency=currency,
        by=by,
        releases=tuple(releases),
        resolution_ms=resolution_ms,
        rows=sorted_rows,
        total=total,
        causes=explained,
        days=len(both),
        missing_days=len(ours.keys() - theirs.keys()),
        read_ms=sum((read_ms or {}).get(key, DAY_MS) for key in both),
    )


@dataclass
class _ComparedRows:
    """The rows while they are being added up, by cluster, name and kind."""

    by: CompareBy
    boards: Mapping[tuple[str, str], int]
    resolution_ms: int
    found: dict[tuple[str, str, ComparedKind], _CostSum] = field(default_factory=dict)

    def add_day(self, day: OpenCostDay, ours: Mapping[str, Sequence[OurLine]]) -> None:
        nodes = {node.node: node for node in day.nodes}
        default = 0 if day.release.default is None else round(exact_nano(day.release.default.price))
        known = {name for name in {*nodes, *ours} if name in nodes or ours[name]}
        prices = {
            name: _price(nodes.get(name), self.boards.get((day.cluster, name)), default) for name in known
        }
        without = NodePrice(None, None, default, is_default=True)
        for name in sorted(known):
            self._add_node(day.cluster, name, nodes.get(name), ours.get(name, ()), prices[name])
        for key, (bill, lines) in _by_pod(day.pods, ours).items():
            is_placed = bill is None or bill.is_placed
            for place, time in held_times(bill, lines, self.resolution_ms).items():
                price = prices.get(place[0], without) if is_placed else without
                self._add_pod(day.cluster, key, place, _pod_day(time, lines.get(place, ())), price)
                self._measure(day.cluster, key, place, time, bill, lines.get(place, ()))

    def _add_node(
        self, cluster: str, name: str, node: BilledNode | None, lines: Sequence[OurLine], price: NodePrice
    ) -> None:
        idle = self._idle(cluster, name)
        found = _node_day(node, lines, self.boards.get((cluster, name)))
        idle.add(capacity_figures(found, price, self.resolution_ms))
        idle.billed_ms += (found.count_milli or 0) * found.billed_node_ms // 1000
        idle.board_ms += found.board_ms + found.other_board_ms
        idle.unpriced_ms += sum(line.unpriced_ms for line in lines if _is_idle(line))

    def _add_pod(self, cluster: str, key: _Pod, place: Place, pod: PodDay, price: NodePrice) -> None:
        row, idle = self._held(cluster, key, place), self._idle(cluster, place[0])
        figures = pod_figures(pod, price)
        row.add(figures)
        row.billed_ms += pod.time.billed
        row.board_ms += pod.held_ms
        row.unpriced_ms += pod.unpriced_ms
        idle.add(taken_from_idle(figures, price), -1)
        idle.billed_ms -= 0 if price.is_default else pod.time.billed
        idle.board_ms -= pod.held_ms

    def _measure(
        self,
        cluster: str,
        key: _Pod,
        place: Place,
        time: OpenCostHeldTime,
        bill: BilledPod | None,
        ours: Sequence[OurLine],
    ) -> None:
        row, active = self._held(cluster, key, place), None if bill is None else bill.active
        row.requested_ms += time.billed
        row.active_ms += Fraction(active or 0) * time.billed_run_ms
        row.unmeasured_ms += time.billed if active is None else 0
        row.has_many |= time.billed > time.billed_run_ms
        row.busy_ms += sum(line.busy_ms for line in ours)
        row.observed_ms += sum(line.observed_ms for line in ours)
        row.held_ms += sum(line.board_ms for line in ours)

    def _held(self, cluster: str, key: _Pod, place: Place) -> _CostSum:
        names = {
            CompareBy.NAMESPACE: key[0],
            CompareBy.TEAM: place[1],
            CompareBy.NODE: place[0],
            CompareBy.POD: "/".join(key),
        }
        return self.found.setdefault((cluster, names[self.by], ComparedKind.HELD), _CostSum())

    def _idle(self, cluster: str, node: str) -> _CostSum:
        return self.found.setdefault(
            (cluster, node if self.by is CompareBy.NODE else "", ComparedKind.IDLE), _CostSum()
        )


def _is_idle(line: OurLine) -> bool:
    return line.bucket.is_capacity and line.bucket is not Bucket.HELD


def _by_pod(
    billed: Sequence[BilledPod], ours: Mapping[str, Sequence[OurLine]]
) -> dict[_Pod, tuple[BilledPod | None, dict[Place, list[OurLine]]]]:
    """What OpenCost bills under a pod's name, and our lines of all pods that had it, by node and team."""
    lines: dict[_Pod, dict[Place, list[OurLine]]] = {}
    for node, own in sorted(ours.items()):
        for line in own:
            if line.bucket in (Bucket.HELD, Bucket.OVERCOMMITTED):
                places = lines.setdefault((line.namespace, line.pod), {})
                places.setdefault((node, line.team), []).append(line)
    bills = {(pod.namespace, pod.pod): pod for pod in billed}
    return {key: (bills.get(key), lines.get(key, {})) for key in sorted(lines.keys() | bills.keys())}


def _pod_day(time: OpenCostHeldTime, lines: Sequence[OurLine]) -> PodDay:
    known = [line for line in lines if line.resource in COUNTED_RESOURCES]
    others = [line for line in lines if line.resource not in COUNTED_RESOURCES]
    over = [line for line in lines if line.bucket is Bucket.OVERCOMMITTED]
    return PodDay(
        time,
        unit_ms=sum(line.unit_ms for line in known),
        board_ms=sum(line.board_ms for line in known),
        other_board_ms=sum(line.board_ms for line in others),
        over_ms=sum(line.board_ms for line in over),
        unpriced_ms=sum(line.unpriced_ms for line in lines),
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


def _price(node: BilledNode | None, boards: int | None, default: int) -> NodePrice:
    if node is None:
        return NodePrice(None, None, default, is_default=True)
    gpu = None if node.gpu_price is None else round(exact_nano(node.gpu_price))
    has_whole = node.total_price is not None and node.total_price > 0 and boards
    whole = round(exact_nano(node.total_price or 0) / (boards or 1)) if has_whole else None
    return NodePrice(gpu, whole)


def _boards(ours: Mapping[tuple[str, int], Mapping[str, Sequence[OurLine]]]) -> dict[tuple[str, str], int]:
    """The GPUs of each node: the most of its capacity that was there at once on any day."""
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


def _row(cluster: str, name: str, kind: ComparedKind, found: _CostSum) -> ComparedRow:
    made = amounts(found.figures)
    causes = tuple(
        CauseAmount(cause, TEXTS[cause].defect, TEXTS[cause].title, nano)
        for cause, nano in made.items()
        if nano
    )
    active = Fraction(round_half_even(found.active_ms.numerator, found.active_ms.denominator))
    efficiency = GpuEfficiency(
        active / found.requested_ms if found.requested_ms else None,
        ratio(found.busy_ms, found.observed_ms),
        ratio(found.observed_ms, found.held_ms),
    )
    first, last = found.figures[0], found.figures[-1]
    hours = found.billed_ms, found.board_ms
    return ComparedRow(
        cluster, name, kind, first, last, *hours, causes, efficiency, tuple(_notes(found, kind))
    )


def _notes(found: _CostSum, kind: ComparedKind) -> Iterable[str]:
    if found.unpriced_ms:
        unpriced = display.hours_or_less(found.unpriced_ms)
        yield f"{_NO_PRICE} {unpriced} GPU-hours of ours have none: they count as 0"
    if kind is ComparedKind.IDLE and found.figures[0] < 0:
        yield "D8 OpenCost's idle is negative: it bills pods for more than the node costs"
    if found.has_many and found.active_ms:
        yield "D4 efficiency: OpenCost divides the mean of a pod's GPUs by their number"
    if found.unmeasured_ms:
        yield "D7 efficiency: OpenCost takes what was not measured for 0%"


_OF_OURS = ("board_ms", "busy_ms", "observed_ms", "held_ms")


def _total(found: Mapping[tuple[str, str, ComparedKind], _CostSum]) -> ComparedRow:
    whole = _CostSum()
    for sum_ in found.values():
        whole.add(sum_.figures)
        for name in ("billed_ms", "unpriced_ms", "active_ms", "requested_ms", "unmeasured_ms", *_OF_OURS):
            setattr(whole, name, getattr(whole, name) + getattr(sum_, name))
        whole.has_many |= sum_.has_many
    return _row("", "", ComparedKind.HELD, whole)


def _explained(cause: ComparisonCause) -> ExplainedCause:
    text = TEXTS[cause]
    return ExplainedCause(cause, text.defect, text.title, text.sentence, f"{READ_MORE}#{cause.value}")


def _order(row: ComparedRow) -> tuple[object, ...]:
    return (
        row.cluster,
        row.kind is ComparedKind.IDLE,
        -max(abs(row.ours_nano), abs(row.opencost_nano)),
        row.name,
    )
