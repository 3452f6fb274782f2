"""Segments of a node: stretches of time in which its layout, price and observation do not change.

Layout: how the GPUs of a node are divided among its resources, at one moment. The GPUs are cut into ``boards
x den`` slots, ``den`` being the common denominator of all shares on the node. Resources take slots in the
order of their names, whatever is left is the remainder: the part of the GPUs that no resource advertises (2/7
of a GPU that is sliced 3g + 2g).

Cuts fall at window edges, price changes, team-rule changes, edges of observation, and where a node's own rows
begin or end. Apportioning (apportion.py) makes the number and place of cuts irrelevant to every total.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, product
from json import loads
from math import ceil, lcm
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import pandas as pd

from gpucost.attribution.apportion import Flags, Ints
from gpucost.attribution.frames import ClusterFrames
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import DataProblem, DataProblemCode, InputError
from gpucost.domain.gpu import ResourceCatalog, ShareBasis, UnitKind, parse_product
from gpucost.domain.rates import NodeFacts, Rate, RateLookup, RateSpan
from gpucost.domain.time import Window

REMAINDER = "__remainder__"


@dataclass(frozen=True, slots=True)
class ResourceCount:
    """One row of the capacity frame: counts are units, -1 when unknown."""

    resource: str
    expected: int
    capacity: int
    allocatable: int
    replicas: int

    @property
    def is_known(self) -> bool:
        return self.units >= 0

    @property
    def units(self) -> int:
        """The number that should exist; -1 when it is unknown."""
        return max(self.expected, self.capacity, self.allocatable)


@dataclass(frozen=True, slots=True)
class KindLayout:
    """One resource: its units own slots ``[base, base + units x width)`` of ``den`` a GPU.

    ``units`` is what should exist, ``available`` what Kubernetes can hand out. Where no source says how many
    there are, they are ``inferred`` from the GPUs that are left. Where the number of GPUs is unknown too, the
    kind is ``elastic``: exactly what is held exists. It has GPUs and a denominator of its own, so that it
    never moves the others' slots. Attribution reports the time held of both.
    """

    unit: UnitKind
    units: int
    available: int
    width: int
    base: int
    den: int
    elastic: bool = False
    inferred: bool = False


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """The division of a node: ``slots`` of ``den`` a GPU, of which the kinds own the first ones."""

    model: str
    boards: int
    den: int
    kinds: tuple[KindLayout, ...]
    remainder_base: int
    remainder_bucket: Bucket
    problems: tuple[tuple[DataProblemCode, str], ...] = ()

    @property
    def slots(self) -> int:
        return self.boards * self.den


def lay_out(
    product: str,
    boards: int,
    counts: Iterable[ResourceCount],
    held: Iterable[str],
    catalog: ResourceCatalog,
    basis: ShareBasis,
) -> NodeLayout:
    """Divide ``boards`` (the number of GPUs, -1 when unknown) of ``product`` among the resources of a node.

    ``held`` names the resources that pods hold there. One without a count gets what the others leave of the
    GPUs; where the number of GPUs is unknown it is elastic. Together, resources never get more than the GPUs:
    what is held beyond that is over-committed. Resources whose share is unknown (a MIG slice of an unknown
    GPU) are left out, and the rest of the GPUs is then unknown, with a problem.
    """
    boards = boards or -1  # a GPU node with 0 GPUs is one whose GPUs were not counted
    problems: list[tuple[DataProblemCode, str]] = []
    rows = {row.resource: row for row in counts}
    units: list[tuple[UnitKind, ResourceCount]] = []
    for resource in sorted(rows.keys() | set(held), key=lambda name: (not _is_known(rows.get(name)), name)):
        row = rows.get(resource) or ResourceCount(resource, -1, -1, -1, 1)
        if _is_counted_in_parts(resource, rows):
            continue
        try:
            units.append((catalog.unit(resource, product, row.replicas, basis), row))
        except InputError as error:
            problems.append((DataProblemCode.UNIT_UNKNOWN, str(error)))
    den = lcm(1, *(unit.share.denominator for unit, row in units if row.is_known or boards >= 0))
    slots = boards * den if boards >= 0 else None
    kinds: list[KindLayout] = []
    base = 0
    for unit, row in units:
        kind = _kind(unit, row, den, base, None if slots is None else slots - base)
        kinds.append(kind)
        base += kind.units * kind.width
    wanted = sum((unit.share * row.units for unit, row in units if row.is_known), Fraction(0))
    if boards < 0 and not any(kind.units for kind in kinds):
        problems.append((DataProblemCode.COUNT_UNKNOWN, "nothing says how many GPUs the node has"))
    if 0 <= boards < wanted:
        detail = f"its resources stand for {wanted} boards, more than the {boards} it has"
        problems.append((DataProblemCode.CAPACITY_EXCEEDS_BOARDS, detail))
    sliced = any(kind.unit.profile for kind in kinds if kind.units and not kind.inferred)
    is_blind = any(code is DataProblemCode.UNIT_UNKNOWN for code, _ in problems)
    # What MIG geometry leaves over could be sliced, but is not; a GPU that is not advertised at all is broken
    # or forgotten.
    rest = Bucket.UNALLOCATED if sliced else Bucket.UNAVAILABLE
    return NodeLayout(
        model=parse_product(product).model,
        boards=boards if boards >= 0 else ceil(base / den),
        den=den,
        kinds=tuple(sorted(kinds, key=lambda kind: kind.unit.resource)),
        remainder_base=base,
        remainder_bucket=Bucket.UNKNOWN if is_blind else rest,
        problems=tuple(problems),
    )


def _is_known(row: ResourceCount | None) -> bool:
    return row is not None and row.is_known


def _is_counted_in_parts(resource: str, rows: Mapping[str, ResourceCount]) -> bool:
    """HAMi hands out ``gpu`` as a mere number of tenants beside ``gpucores``, which are the real shares."""
    return resource == "nvidia.com/gpu" and _is_known(rows.get("nvidia.com/gpucores"))


def _kind(unit: UnitKind, row: ResourceCount, den: int, base: int, room: int | None) -> KindLayout:
    """``room`` is the number of slots that are left, None when that is unknown."""
    if not row.is_known and room is None:
        return KindLayout(unit, 0, 0, unit.share.numerator, 0, unit.share.denominator, elastic=True)
    width = unit.share.numerator * (den // unit.share.denominator)
    if not row.is_known:
        # Nothing advertises these units, so those that no pod holds are not available.
        return KindLayout(unit, (room or 0) // width, 0, width, base, den, inferred=True)
    units = row.units if room is None else min(row.units, room // width)
    available = units if row.allocatable < 0 else min(row.allocatable, units)
    return KindLayout(unit, units, available, width, base, den)


NodeKey = tuple[str, str]
ObservedSpans = tuple[Ints, Ints]


class FactRow(NamedTuple):
    """One row of the nodes frame."""

    start_ms: int
    end_ms: int
    product: str = ""
    boards: int = -1
    instance_type: str = ""
    capacity_type: str = ""
    region: str = ""
    zone: str = ""
    pool: str = ""
    labels: str = "{}"


class CountRow(NamedTuple):
    """One row of the capacity frame."""

    start_ms: int
    end_ms: int
    resource: str
    expected: int
    capacity: int
    allocatable: int
    replicas: int
    schedulable: int

    @property
    def units(self) -> ResourceCount:
        return ResourceCount(self.resource, self.expected, self.capacity, self.allocatable, self.replicas)


@dataclass(frozen=True, slots=True)
class PlaceFacts:
    """The fields of a usage line that name the place: everything but the resource."""

    cluster: str
    node: str
    instance_type: str
    capacity_type: str
    region: str
    zone: str
    pool: str


@dataclass(frozen=True)
class NodeSegments:
    """Parallel arrays, one entry per segment, sorted by node, then time.

    ``layout``, ``place`` and ``rate`` are positions in the tuples of the same name; ``rate`` is -1 where
    there is no price. ``window`` is the position of the window. ``observed`` and ``schedulable`` are
    booleans. ``problems`` are (window, problem); ``no_price`` says why a (cluster, model, instance type) has
    no price.
    """

    nodes: tuple[NodeKey, ...]
    node: Ints
    start: Ints
    end: Ints
    window: Ints
    layout: Ints
    place: Ints
    rate: Ints
    observed: Flags
    schedulable: Flags
    layouts: tuple[NodeLayout, ...]
    places: tuple[PlaceFacts, ...]
    rates: tuple[Rate, ...]
    problems: tuple[tuple[int, DataProblem], ...]
    no_price: Mapping[tuple[str, str, str], str]


class HeldRow(NamedTuple):
    """A stretch in which pods held a resource whose number of units is unknown."""

    start_ms: int
    end_ms: int
    resource: str


class PodHoldings(Protocol):
    """What pods hold: on each node these ``resources``, and each of them ``when`` (stretches, joined)."""

    @property
    def resources(self) -> Mapping[NodeKey, frozenset[str]]: ...

    def when(self, key: NodeKey, resource: str) -> Sequence[tuple[int, int]]: ...


T = TypeVar("T", bound=Hashable)
Row = TypeVar("Row", bound=FactRow | CountRow)


class _Interned(Generic[T]):
    """Values to small integers, in order of first appearance."""

    def __init__(self) -> None:
        self._position: dict[T, int] = {}

    def __getitem__(self, value: T) -> int:
        return self._position.setdefault(value, len(self._position))

    @property
    def values(self) -> tuple[T, ...]:
        return tuple(self._position)


class SegmentBuilder:
    """Builds NodeSegments for consecutive windows; remembers layouts and rates that many nodes have in
    common."""

    def __init__(
        self,
        windows: Sequence[Window],
        rates: RateLookup,
        catalog: ResourceCatalog,
        basis: ShareBasis,
        extra_cuts: Iterable[int],
    ) -> None:
        self.scope = Window(windows[0].start_ms, windows[-1].end_ms)
        self.edges = np.array([window.start_ms for window in windows] + [self.scope.end_ms], dtype=np.int64)
        self.rates_of = rates
        self.catalog = catalog
        self.basis = basis
        self.extra_cuts = np.array(sorted(set(extra_cuts)), dtype=np.int64)
        self.problems: set[tuple[int, DataProblem]] = set()
        self.no_price: dict[tuple[str, str, str], str] = {}
        self._layouts: _Interned[NodeLayout] = _Interned()
        self._places: _Interned[PlaceFacts] = _Interned()
        self._rates: _Interned[Rate] = _Interned()
        self._layout_cache: dict[object, NodeLayout] = {}
        self._span_cache: dict[object, Sequence[RateSpan]] = {}

    def build(self, frames: ClusterFrames, held: PodHoldings) -> NodeSegments:
        """``held`` says which resources pods hold on each node, and when."""
        facts = rows_by_node(frames.nodes, FactRow)
        counts = rows_by_node(frames.capacity, CountRow)
        observed = {
            str(cluster): union(rows["start_ms"].tolist(), rows["end_ms"].tolist())
            for cluster, rows in frames.observed.groupby("cluster", observed=True)
        }
        never = union([], [])
        nodes = tuple(sorted(facts.keys() | counts.keys() | held.resources.keys()))
        parts = [
            self._node(
                i,
                key,
                facts.get(key, []),
                counts.get(key, []),
                self._uncounted(key, counts.get(key, []), held),
                observed.get(key[0], never),
            )
            for i, key in enumerate(nodes)
        ]
        node, start, end, window, layout, place, rate, in_sight, schedulable = (
            np.concatenate([part[i] for part in parts] or [np.zeros(0, np.int64)]) for i in range(9)
        )
        return NodeSegments(
            nodes=nodes,
            node=node,
            start=start,
            end=end,
            window=window,
            layout=layout,
            place=place,
            rate=rate,
            observed=in_sight.astype(bool),
            schedulable=schedulable.astype(bool),
            layouts=self._layouts.values,
            places=self._places.values,
            rates=self._rates.values,
            problems=tuple(self.problems),
            no_price=self.no_price,
        )

    def _node(
        self,
        index: int,
        key: NodeKey,
        facts: list[FactRow],
        counts: list[CountRow],
        held: list[HeldRow],
        observed: ObservedSpans,
    ) -> list[Ints]:
        spans = {fact: self._spans(key, fact) for fact in facts}
        own = [t for row in (*facts, *counts, *held) for t in row[:2]]
        own += [span.start_ms for group in spans.values() for span in group]
        cuts = np.concatenate([self.edges, self.extra_cuts, *observed, np.array(own, dtype=np.int64)])
        cuts = np.unique(cuts[(cuts >= self.scope.start_ms) & (cuts <= self.scope.end_ms)])
        start, end = cuts[:-1], cuts[1:]
        layout, place, rate = (np.full(len(start), -1, np.int64) for _ in range(3))
        schedulable = np.ones(len(start), np.int64)
        window = np.searchsorted(self.edges, start, side="right") - 1
        for a, b, fact, rows, uncounted in _runs(start, facts, counts, held):
            if fact is None and not rows and not uncounted:
                continue  # before the node was created, or after it was deleted
            known = fact or FactRow(0, 0)
            found = self._layout(known, rows, uncounted)
            problems = [DataProblem(code, *key, detail) for code, detail in found.problems]
            if fact is None:
                detail = "nothing says what this node is, or was then: its GPU model and price are not known"
                problems.append(DataProblem(DataProblemCode.NODE_UNKNOWN, *key, detail))
            self.problems.update(product(np.unique(window[a:b]).tolist(), problems))
            layout[a:b] = self._layouts[found]
            place[a:b] = self._places[PlaceFacts(*key, *known[4:9])]
            schedulable[a:b] = min((row.schedulable for row in rows), default=1)
            in_force = spans.get(known, ())
            rate[a:b] = self._rate_of((key[0], found.model, known.instance_type), in_force, start[a:b])
            for span in in_force:
                at = window[a:b][(start[a:b] >= span.start_ms) & (start[a:b] < span.end_ms)]
                doubts = [DataProblem(DataProblemCode.PRICE_DOUBTFUL, *key, span.doubt)] if span.doubt else []
                self.problems.update(product(np.unique(at).tolist(), doubts))
        begun, over = (np.searchsorted(edges, start, side="right") for edges in observed)
        columns = [
            np.full(len(start), index),
            start,
            end,
            window,
            layout,
            place,
            rate,
            begun > over,
            schedulable,
        ]
        return [column.astype(np.int64)[layout >= 0] for column in columns]

    def _uncounted(self, key: NodeKey, counts: list[CountRow], held: PodHoldings) -> list[HeldRow]:
        """When pods held resources for which no row has a count; usually never."""
        found = []
        for resource in sorted(held.resources.get(key, ())):
            known = [
                (row.start_ms, row.end_ms)
                for row in counts
                if row.resource == resource and row.units.is_known
            ]
            starts, ends = union(*zip(*known, strict=True)) if known else union([], [])
            scope = self.scope
            if not any((starts <= scope.start_ms) & (ends >= scope.end_ms)):
                found += [HeldRow(start, end, resource) for start, end in held.when(key, resource)]
        return found

    def _layout(self, fact: FactRow, rows: tuple[CountRow, ...], held: frozenset[str]) -> NodeLayout:
        counts = tuple(row.units for row in rows)
        boards = fact.boards
        signature = (fact.product, boards, counts, held)
        layout = self._layout_cache.get(signature)
        if layout is None:
            layout = lay_out(fact.product, boards, counts, held, self.catalog, self.basis)
            self._layout_cache[signature] = layout
        return layout

    def _spans(self, key: NodeKey, fact: FactRow) -> Sequence[RateSpan]:
        signature = (key, fact[2:])
        if signature not in self._span_cache:
            self._span_cache[signature] = self.rates_of(node_facts(key, fact), self.scope)
        return self._span_cache[signature]

    def _rate_of(self, what: tuple[str, str, str], spans: Sequence[RateSpan], start: Ints) -> Ints:
        """The rate in force at each of ``start``; -1 where there is none, and the reason is kept under
        ``what``."""
        rate = np.full(len(start), -1, np.int64)
        for span in spans:
            a, b = np.searchsorted(start, [span.start_ms, span.end_ms])
            if span.rate is not None:
                rate[a:b] = self._rates[span.rate]
            elif a < b:
                self.no_price[what] = min(span.reason, self.no_price.get(what, span.reason))
        return rate


def node_facts(key: NodeKey, fact: FactRow) -> NodeFacts:
    """The facts that the price of a node's GPUs can depend on."""
    labels = {str(name): str(value) for name, value in loads(fact.labels or "{}").items()}
    boards = fact.boards if fact.boards >= 0 else None
    return NodeFacts(*key, parse_product(fact.product).model, boards, *fact[4:9], labels)


def rows_by_node(frame: pd.DataFrame, row_type: type[Row]) -> dict[NodeKey, list[Row]]:
    """(cluster, node) -> its rows, in order of time and then of everything else."""
    rows: dict[NodeKey, list[Row]] = {}
    names = ["cluster", "node", *row_type._fields]
    for cluster, node, *rest in zip(*(frame[name].tolist() for name in names), strict=True):
        rows.setdefault((cluster, node), []).append(row_type(*rest))
    for found in rows.values():
        found.sort(key=tuple)
    return rows


def _runs(
    start: Ints, facts: list[FactRow], counts: list[CountRow], held: list[HeldRow]
) -> Iterator[tuple[int, int, FactRow | None, tuple[CountRow, ...], frozenset[str]]]:
    """Runs ``[a, b)`` of segments with the same rows in force, and the uncounted resources that are held.

    Of two rows that are in force at once the larger one wins, whatever their times: a source may clip them.
    """
    edges = {0, len(start)}
    for row in (*facts, *counts, *held):
        edges.update(int(i) for i in np.searchsorted(start, row[:2]))
    for a, b in pairwise(sorted(edges)):
        t = int(start[a])
        fact = max(
            (row for row in facts if row.start_ms <= t < row.end_ms), key=lambda row: row[2:], default=None
        )
        in_force = sorted((row for row in counts if row.start_ms <= t < row.end_ms), key=lambda row: row[2:])
        by_resource = {row.resource: row for row in in_force}
        uncounted = frozenset(row.resource for row in held if row.start_ms <= t < row.end_ms)
        yield a, b, fact, tuple(by_resource[name] for name in sorted(by_resource)), uncounted


def union(start: Sequence[int], end: Sequence[int]) -> ObservedSpans:
    """Overlapping stretches joined: two collectors that watched at the same time are one observation."""
    starts: list[int] = []
    ends: list[int] = []
    for a, b in sorted(zip(start, end, strict=True)):
        if ends and a <= ends[-1]:
            ends[-1] = max(ends[-1], b)
        elif a < b:
            starts.append(a)
            ends.append(b)
    return np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64)
