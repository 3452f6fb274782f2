"""Which domains of a topology pods may stand in, and a greedy placement that keeps to it.

Rules are those of Kueue's topology-aware scheduling (kueue, pkg/cache/scheduler/tas_flavor_snapshot.go,
v0.19.2): ``required``: one domain of the level; ``preferred``: one domain of it, else of the next wider one,
else as few of the widest as can be; slices: each in one domain of its level. What a domain takes is the sum
of what its nodes take, pod by pod, also where the lowest level is wider than a node: Kueue adds up free
amounts there, and so may admit what no node can run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpucost.advisor.placement.free_capacity import FreeCapacity, TopologyDomain, how_many
from gpucost.advisor.placement.packing import PackedCounts, PackingItem, best_fit
from gpucost.advisor.placement.pod_demand import PlacementDemand


@dataclass(frozen=True)
class PlacementPart:
    """One of several things to be placed: ``item`` for node fit; ``slices`` gives a node's slice domain."""

    wanted: PlacementDemand
    item: PackingItem
    slice_size: int = 1
    slices: Callable[[int], TopologyDomain | None] | None = None


@dataclass(frozen=True)
class PlacementBlock:
    """Parts that share one domain of ``level``, an index in ``levels`` (None: they need not). With
    ``is_preferred`` wider domains do, and in the end any number of them."""

    parts: tuple[PlacementPart, ...]
    levels: tuple[str, ...] = ()
    level: int | None = None
    is_preferred: bool = False

    @property
    def is_bound(self) -> bool:
        """Whether its topology can make it not fit where it would fit without."""
        return (self.level is not None and not self.is_preferred) or any(p.slices for p in self.parts)


@dataclass
class PlacedPods:
    """By name of the pod set."""

    taken: dict[str, PackedCounts] = field(default_factory=dict)
    domains: dict[str, tuple[TopologyDomain, ...]] = field(default_factory=dict)

    def count(self, name: str) -> int:
        return sum(self.taken.get(name, {}).values())

    @property
    def total(self) -> int:
        return sum(map(self.count, self.taken))


@dataclass(frozen=True, slots=True)
class TrialOrder:
    """One order of trial: ``by_size`` large pods first, else those with the least choice first; ``tight``
    smallest nodes first; ``prefers`` whether preferred topologies are taken into account."""

    by_size: bool = True
    tight: bool = False
    prefers: bool = True


_BOTH = (True, False)
WAYS = tuple(TrialOrder(size, not loose, prefers) for prefers in _BOTH for size in _BOTH for loose in _BOTH)


def greedy(rooms: FreeCapacity, blocks: Sequence[PlacementBlock], way: TrialOrder) -> PlacedPods:
    """Puts them one after the other, as many as go; ``rooms`` is as before afterwards."""
    mark, placed = rooms.mark(), PlacedPods()
    for block in ordered(rooms, blocks, way):
        put_block(rooms, block, way, placed)
    rooms.rewind(mark)
    return placed


def ordered(rooms: FreeCapacity, blocks: Sequence[PlacementBlock], way: TrialOrder) -> list[PlacementBlock]:
    """In the order in which they are put; names decide between equals."""
    if len(blocks) < 2:
        return list(blocks)

    def key(block: PlacementBlock) -> tuple[float, ...]:
        size = max(_size(rooms, part.item) for part in block.parts)
        choice = min(_choice(rooms, part.item) for part in block.parts)
        return (not block.is_bound, -size, choice) if way.by_size else (choice, not block.is_bound, -size)

    return sorted(blocks, key=lambda block: (key(block), [part.wanted.name for part in block.parts]))


def put_block(rooms: FreeCapacity, block: PlacementBlock, way: TrialOrder, placed: PlacedPods) -> bool:
    """Whether all of it found room; what did is taken either way."""
    if block.level is None or (block.is_preferred and not way.prefers):
        return _put_parts(rooms, block.parts, way, placed)
    counts = {part.wanted.name: part.item.counts(rooms) for part in block.parts}
    best: tuple[int, TopologyDomain, Sequence[int]] | None = None
    for level in range(block.level, -1, -1):
        names = block.levels[: level + 1]
        for domain, nodes, total in candidates(rooms, block, counts, names):
            if best is None or (block.level == level and total > best[0]):
                best = total, domain, nodes
            mark, found = rooms.mark(), PlacedPods()
            if _put_parts(rooms, block.parts, way, found, frozenset(nodes)):
                placed.taken.update(found.taken)
                placed.domains.update({part.wanted.name: (domain,) for part in block.parts})
                return True
            rooms.rewind(mark)
        if not block.is_preferred:
            break
    return _put_rest(rooms, block, way, placed, best, counts)


def candidates(
    rooms: FreeCapacity,
    block: PlacementBlock,
    counts: Mapping[str, Mapping[int, int]],
    levels: TopologyDomain,
) -> Iterator[tuple[TopologyDomain, Sequence[int], int]]:
    """Domains that take enough pods of each part by itself: existing nodes before new ones, the smallest
    first, with their nodes and how many pods they take. Only the largest, if none takes enough."""
    domain_of = rooms.domains(levels)
    nodes: dict[TopologyDomain, dict[int, None]] = {}
    totals: dict[TopologyDomain, dict[str, int]] = {}
    for name, of_part in counts.items():
        for at, count in of_part.items():
            domain = domain_of(at)
            if domain is not None:
                nodes.setdefault(domain, {})[at] = None
                sums = totals.setdefault(domain, {})
                sums[name] = sums.get(name, 0) + count
    needs = {part.wanted.name: part.item.need for part in block.parts}
    enough = [d for d, sums in totals.items() if all(sums.get(name, 0) >= n for name, n in needs.items())]
    is_new = {d: any(map(rooms.is_new, nodes[d])) for d in enough} if rooms.extra else {}
    for d in sorted(enough, key=lambda d: (is_new.get(d, False), sum(totals[d].values()), d)):
        yield d, sorted(nodes[d]), sum(totals[d].values())
    if not enough and totals:
        largest = min(totals, key=lambda d: (-sum(totals[d].values()), d))
        yield largest, sorted(nodes[largest]), sum(totals[largest].values())


def _put_rest(
    rooms: FreeCapacity,
    block: PlacementBlock,
    way: TrialOrder,
    placed: PlacedPods,
    best: tuple[int, TopologyDomain, Sequence[int]] | None,
    counts: Mapping[str, Mapping[int, int]],
) -> bool:
    """No domain takes all of it: spread where the topology is only preferred, else what the largest takes."""
    if not block.is_preferred:
        if best is not None:
            _put_parts(rooms, block.parts, way, placed, frozenset(best[2]))
        return False
    domain_of, is_whole = rooms.domains(block.levels[:1]), True
    for part in block.parts:
        taken: PackedCounts = {}
        of_part = part.item.counts(rooms) if len(block.parts) > 1 else counts[part.wanted.name]
        by_domain: dict[TopologyDomain, dict[int, int]] = {}
        for at, count in of_part.items():
            by_domain.setdefault(domain_of(at) or (), {})[at] = count
        used: list[TopologyDomain] = []
        holds = {domain: sum(of.values()) for domain, of in by_domain.items()}
        while holds and (left := part.item.need - sum(taken.values())) > 0:
            enough = [domain for domain, hold in holds.items() if hold >= left]
            domain = min(enough or holds, key=lambda d: (holds[d] if enough else -holds[d], d))
            del holds[domain]
            found = _choose(rooms, part, by_domain[domain], left, way)
            taken.update(found)
            used += [domain] if found else []
        _take(rooms, part, taken)
        placed.taken[part.wanted.name] = taken
        placed.domains[part.wanted.name] = tuple(used)
        is_whole = is_whole and sum(taken.values()) >= part.item.need
    return is_whole


def _put_parts(
    rooms: FreeCapacity,
    parts: Sequence[PlacementPart],
    way: TrialOrder,
    placed: PlacedPods,
    within: frozenset[int] | None = None,
) -> bool:
    is_whole = True
    by_size = sorted(parts, key=lambda part: (-_size(rooms, part.item), part.wanted.name))
    for part in by_size:
        counts = _within(rooms, part.item, within)
        taken = _choose(rooms, part, counts, part.item.need, way)
        _take(rooms, part, taken)
        placed.taken[part.wanted.name] = taken
        is_whole = is_whole and sum(taken.values()) >= part.item.need
    return is_whole


def _within(rooms: FreeCapacity, item: PackingItem, within: frozenset[int] | None) -> dict[int, int]:
    if within is None:
        return item.counts(rooms)
    if len(within) * 8 > len(rooms):
        return {at: count for at, count in item.counts(rooms).items() if at in within}
    admits, asked = rooms.admitting(item.template), item.asked
    allowed = within if item.allowed is None else within & item.allowed
    found = ((at, how_many(rooms.node(at), rooms.free_at(at), asked)) for at in allowed if admits(at))
    return {at: count for at, count in found if count}


def _take(rooms: FreeCapacity, part: PlacementPart, taken: PackedCounts) -> None:
    for at, count in taken.items():
        rooms.take_at(at, part.item.asked, count)


def _choose(
    rooms: FreeCapacity, part: PlacementPart, counts: Mapping[int, int], need: int, way: TrialOrder
) -> PackedCounts:
    """Nodes for ``need`` pods, or as many as go, in whole slices where it has slices."""
    if part.slices is None:
        return best_fit(counts, need, rooms, way.tight)
    by_domain: dict[TopologyDomain, dict[int, int]] = {}
    for at, count in counts.items():
        domain = part.slices(at)
        if domain is not None:
            by_domain.setdefault(domain, {})[at] = count
    size, taken = part.slice_size, PackedCounts()
    whole, last = divmod(need, size)
    holds = {domain: sum(of.values()) for domain, of in by_domain.items()}
    put = dict.fromkeys(holds, 0)
    for domain in sorted(holds, key=lambda d: (-(holds[d] // size), d)):
        put[domain] = min(whole, holds[domain] // size) * size
        whole -= put[domain] // size
    if last and not whole:
        fitting = [domain for domain in holds if holds[domain] - put[domain] >= last]
        if fitting:
            put[min(fitting, key=lambda d: (holds[d] - put[d], d))] += last
    for domain, count in put.items():
        taken.update(best_fit(by_domain[domain], count, rooms, way.tight))
    return taken


def _size(rooms: FreeCapacity, item: PackingItem) -> float:
    """The largest part of any resource that one pod takes of the largest node."""
    largest = rooms.base.largest
    return max((amount / max(largest.get(key, 0), 1) for key, amount in item.asked.items()), default=0.0)


def _choice(rooms: FreeCapacity, item: PackingItem) -> float:
    """How many times over it would fit, alone."""
    return sum(item.counts(rooms).values()) / max(item.need, 1)
