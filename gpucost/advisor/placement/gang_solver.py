"""Decides whether the pod sets of a gang fit at once: greedy first, then a proof, then a bounded search.

``PodSetGang`` puts pod sets into blocks that are placed together; ``solve`` places the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from gpucost.advisor.placement.free_capacity import (
    FreeCapacity,
    TopologyDomain,
    positive,
)
from gpucost.advisor.placement.packing import (
    MOST_STEPS,
    NodePacking,
    PackedCounts,
    PackingItem,
)
from gpucost.advisor.placement.pod_demand import PlacementDemand
from gpucost.advisor.placement.topology_domains import (
    WAYS,
    PlacedPods,
    PlacementBlock,
    PlacementPart,
    TrialOrder,
    candidates,
    greedy,
)
from gpucost.cluster.views.node_fit import node_rules

MOST_POD_SETS = 64
"""Different pod sets of one gang that are evaluated together; equal ones count once."""


class PodSetGang:
    """Pod sets in an order of their own, equal ones as one; by a name that is made up here."""

    def __init__(self, wanted: Sequence[PlacementDemand]) -> None:
        groups: dict[object, list[PlacementDemand]] = {}
        for number, each in enumerate(sorted(wanted, key=order)):
            groups.setdefault(_alike(each) or number, []).append(each)
        self.sources: dict[str, list[PlacementDemand]] = {}
        self.merged: list[PlacementDemand] = []
        for number, group in enumerate(groups.values()):
            name = f"{number:06}"
            self.sources[name] = group
            count, least = (sum(getattr(each, key) for each in group) for key in ("count", "least"))
            self.merged.append(replace(group[0], name=name, count=count, least=least))
        self.unknown = self._unknown(wanted)
        self.wrong = {
            name: problem
            for each in self.merged
            for name in dict.fromkeys(one.name for one in self.sources[each.name])
            if (problem := _level_problem(each))
        }

    @property
    def has_least(self) -> bool:
        return any(each.least < each.count for each in self.merged)

    def _unknown(self, wanted: Sequence[PlacementDemand]) -> tuple[str, ...]:
        if len(self.merged) > MOST_POD_SETS:
            return (f"{len(self.merged)} different pod sets: at most {MOST_POD_SETS} are evaluated together",)
        return tuple(f"{each.name}: {each.unknown}" for each in sorted(wanted, key=order) if each.unknown)

    def blocks(self, rooms: FreeCapacity, need: Callable[[PlacementDemand], int]) -> list[PlacementBlock]:
        """Those of one topology group that share a level share a domain."""
        blocks: dict[object, list[PlacementDemand]] = {}
        for each in self.merged:
            level, _ = level_of(each)
            group = each.topology.get("group", "")
            key = (group, each.levels, level) if group and level is not None else each.name
            blocks.setdefault(key, []).append(each)
        return [_block(rooms, group, need) for group in blocks.values()]

    def by_pod_set(self, placed: PlacedPods, rooms: FreeCapacity) -> dict[str, dict[str, int]]:
        """Pods by node name; equal pod sets divide what they got in order of their names."""
        nodes: dict[str, dict[str, int]] = {}
        for name, taken in sorted(placed.taken.items()):
            left = [[at, count] for at, count in sorted(taken.items())]
            for each in self.sources[name]:
                of_set, need = nodes.setdefault(each.name, {}), each.count
                while need > 0 and left:
                    put = min(need, left[0][1])
                    node = rooms.name(left[0][0])
                    of_set[node] = of_set.get(node, 0) + put
                    need, left[0][1] = need - put, left[0][1] - put
                    if not left[0][1]:
                        left.pop(0)
        return nodes


def order(each: PlacementDemand) -> tuple[str, ...]:
    requests = repr(sorted(each.asks.requests.items()))
    return (
        each.name,
        f"{each.count:012}",
        requests,
        repr(node_rules(each.asks)),
        repr(sorted(each.topology.items())),
    )


def _alike(each: PlacementDemand) -> object:
    """Equal pod sets are one, if nothing holds each of them together; None for those that stay apart."""
    if each.least < each.count or set(each.topology) - {"unconstrained"} or each.conflict:
        return None
    requests = tuple(sorted(positive(each.asks.requests).items()))
    return node_rules(each.asks), requests, each.levels, each.among


def level_of(each: PlacementDemand) -> tuple[int | None, bool]:
    """The level it asks for as an index of its levels, and whether that is a preference."""
    for key in ("required", "preferred"):
        label = each.topology.get(key)
        if label:
            levels = levels_of(each)
            return (levels.index(label) if label in levels else None), key == "preferred"
    return None, False


def levels_of(each: PlacementDemand) -> TopologyDomain:
    """The levels of its topology; the one label it names, where its flavor has no topology."""
    named = [each.topology[key] for key in ("required", "preferred", "slice") if each.topology.get(key)]
    return each.levels or tuple(dict.fromkeys(named))


def _level_problem(each: PlacementDemand) -> str:
    if not each.levels:
        return ""
    for key in ("required", "preferred", "slice"):
        label = each.topology.get(key)
        if label and label not in each.levels:
            known = ", ".join(each.levels)
            return f"{key} topology {label}: no level of its flavor's topology, which has {known}"
    return ""


def _block(
    rooms: FreeCapacity, group: Sequence[PlacementDemand], need: Callable[[PlacementDemand], int]
) -> PlacementBlock:
    level, is_preferred = level_of(group[0])
    one = group[0]
    if len(group) == 1 and one.topology.get("slice") and need(one) <= (one.slice_size or 1):
        # A single slice stands in one domain of its level: that is a required topology.
        slice_level = levels_of(one).index(one.topology["slice"])
        level = slice_level if level is None or is_preferred else max(level, slice_level)
        whole = PlacementPart(one, PackingItem(need(one), one.asks, _allowed(rooms, one)))
        return PlacementBlock((whole,), levels_of(one), level)
    parts = tuple(_part(rooms, each, need(each)) for each in group)
    return PlacementBlock(parts, levels_of(group[0]), level, is_preferred)


def _part(rooms: FreeCapacity, each: PlacementDemand, need: int) -> PlacementPart:
    item = PackingItem(need, each.asks, _allowed(rooms, each))
    slice_level = each.topology.get("slice", "")
    if not slice_level:
        return PlacementPart(each, item)
    levels = levels_of(each) if each.levels else (slice_level,)
    upto = levels[: levels.index(slice_level) + 1]
    return PlacementPart(each, item, each.slice_size or 1, rooms.domains(upto))


def _allowed(rooms: FreeCapacity, each: PlacementDemand) -> frozenset[int] | None:
    """The nodes it may use; None where its template alone decides. Topology needs every level's
    label on a node."""
    if each.conflict:
        return frozenset()
    allowed: Collection[int] | None = None
    if each.among is not None:
        allowed = [at for at in map(rooms.at, each.among) if at is not None]
    if each.levels:
        domain_of = rooms.domains(each.levels)
        allowed = [
            at for at in (range(len(rooms)) if allowed is None else allowed) if domain_of(at) is not None
        ]
    return None if allowed is None else frozenset(allowed)


MOST_CHOICES = 32
"""Combinations of domains that the search tries."""


@dataclass(frozen=True, slots=True)
class BlockSolution:
    """``fits`` is None where the bounds did not allow an answer; ``placed`` is all of it, or as much as went
    at best."""

    fits: bool | None
    placed: PlacedPods


def solve(rooms: FreeCapacity, blocks: Sequence[PlacementBlock]) -> BlockSolution:
    """Whether every pod finds room; ``rooms`` is not changed by it."""
    ways = _ways(blocks)
    best = _tried(rooms, blocks, next(ways))
    if best.fits or is_impossible(rooms, blocks):
        return best
    for way in ways:
        found = _tried(rooms, blocks, way)
        if found.fits:
            return found
        best = max(best, found, key=lambda each: each.placed.total)
    searched = _search(rooms, blocks)
    if isinstance(searched, PlacedPods):
        return BlockSolution(True, searched)
    return BlockSolution(searched, best.placed)


def is_impossible(rooms: FreeCapacity, blocks: Sequence[PlacementBlock]) -> bool:
    """Whether it is proven that they do not fit all at once."""
    if any(_cannot(rooms, block) for block in blocks):
        return True
    items = [part.item for block in blocks for part in block.parts]
    return len(items) > 1 and NodePacking(rooms, items).cannot()


def fits(rooms: FreeCapacity, blocks: Sequence[PlacementBlock]) -> bool | None:
    """The answer of ``solve``, without the placement."""
    if len(blocks) == 1 and _is_free(blocks[0]):
        item = blocks[0].parts[0].item
        return sum(item.counts(rooms).values()) >= item.need
    return solve(rooms, blocks).fits


def _tried(rooms: FreeCapacity, blocks: Sequence[PlacementBlock], way: TrialOrder) -> BlockSolution:
    placed = greedy(rooms, blocks, way)
    return BlockSolution(_is_whole(blocks, placed), placed)


def _is_free(block: PlacementBlock) -> bool:
    """Whether counting alone decides: one part that no topology holds."""
    return len(block.parts) == 1 and not block.is_bound


def _ways(blocks: Sequence[PlacementBlock]) -> Iterator[TrialOrder]:
    """The orders of trial that differ for these blocks."""
    is_one = sum(len(block.parts) for block in blocks) < 2
    prefers = any(block.is_preferred for block in blocks)
    for way in WAYS:
        if (way.prefers or prefers) and (not is_one or (way.by_size and not way.tight)):
            yield way


def _is_whole(blocks: Sequence[PlacementBlock], placed: PlacedPods) -> bool:
    return all(placed.count(part.wanted.name) >= part.item.need for block in blocks for part in block.parts)


def _cannot(rooms: FreeCapacity, block: PlacementBlock) -> bool:
    """Whether it is proven that the block does not fit, even alone. Of one part greedy is exact: its pods are
    equal, a domain takes the sum of its nodes, and every domain is tried."""
    if _is_free(block):
        return fits(rooms, [block]) is False
    if len(block.parts) == 1:
        return not any(_is_whole([block], greedy(rooms, [block], way)) for way in _ways([block]))
    return all(NodePacking(rooms, items).cannot() for items in _choices(rooms, block))


def _choices(rooms: FreeCapacity, block: PlacementBlock) -> Iterator[list[PackingItem]]:
    """Its items, held to each domain it may stand in."""
    items = [part.item for part in block.parts]
    if block.level is None or block.is_preferred:
        yield items
        return
    for nodes in _domains(rooms, block).values():
        yield [_held(item, nodes) for item in items]


def _domains(rooms: FreeCapacity, block: PlacementBlock) -> Mapping[TopologyDomain, frozenset[int]]:
    """That take enough of each part by itself."""
    counts = {part.wanted.name: part.item.counts(rooms) for part in block.parts}
    levels = block.levels[: (block.level or 0) + 1]
    found = candidates(rooms, block, counts, levels)
    needs = sum(part.item.need for part in block.parts)
    return {domain: frozenset(nodes) for domain, nodes, total in found if total >= needs}


def _held(item: PackingItem, nodes: frozenset[int]) -> PackingItem:
    return replace(item, allowed=nodes if item.allowed is None else nodes & item.allowed)


def _search(rooms: FreeCapacity, blocks: Sequence[PlacementBlock]) -> PlacedPods | bool | None:
    """Every combination of domains, and every packing of each, within bounds. Slices are left out: then only
    "no" counts."""
    parts = [part for block in blocks for part in block.parts]
    bound = [(block, _domains(rooms, block)) for block in blocks if _is_held(block)]
    if prod(len(domains) for _, domains in bound) > MOST_CHOICES:
        return None
    steps, is_open = MOST_STEPS, False
    for choice in product(*(sorted(domains.items()) for _, domains in bound)):
        nodes = {
            part.wanted.name: (domain, at)
            for (block, _), (domain, at) in zip(bound, choice, strict=True)
            for part in block.parts
        }
        items = [_held(p.item, nodes[p.wanted.name][1]) if p.wanted.name in nodes else p.item for p in parts]
        packing = NodePacking(rooms, items)
        found = False if packing.cannot() else packing.search(steps)
        steps -= packing.steps
        if isinstance(found, list) and not any(part.slices for part in parts):
            return _placed(parts, found, {name: domain for name, (domain, _) in nodes.items()})
        is_open = is_open or found is not False
    return None if is_open else False


def _is_held(block: PlacementBlock) -> bool:
    return block.level is not None and not block.is_preferred


def _placed(
    parts: Sequence[PlacementPart], found: Sequence[PackedCounts], domains: Mapping[str, TopologyDomain]
) -> PlacedPods:
    taken = {part.wanted.name: each for part, each in zip(parts, found, strict=True)}
    return PlacedPods(taken, {name: (domain,) for name, domain in domains.items()})
