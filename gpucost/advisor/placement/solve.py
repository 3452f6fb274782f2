"""Decides whether several blocks find room at once: greedy first, then a proof, then a bounded search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from gpucost.advisor.placement.domains import WAYS, Block, Part, Placed, Way, candidates, greedy
from gpucost.advisor.placement.pack import MOST_STEPS, Item, Packing, Taken
from gpucost.advisor.placement.rooms import Domain, Rooms

MOST_CHOICES = 32
"""Combinations of domains that the search looks at."""


@dataclass(frozen=True, slots=True)
class Solved:
    """``fits`` is None where nobody knows; ``placed`` is all of it, or as much as went at best."""

    fits: bool | None
    placed: Placed


def solve(rooms: Rooms, blocks: Sequence[Block]) -> Solved:
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
    if isinstance(searched, Placed):
        return Solved(True, searched)
    return Solved(searched, best.placed)


def is_impossible(rooms: Rooms, blocks: Sequence[Block]) -> bool:
    """Whether it is proven that they do not fit all at once."""
    if any(_cannot(rooms, block) for block in blocks):
        return True
    items = [part.item for block in blocks for part in block.parts]
    return len(items) > 1 and Packing(rooms, items).cannot()


def fits(rooms: Rooms, blocks: Sequence[Block]) -> bool | None:
    """``solve``, without saying where."""
    if len(blocks) == 1 and _is_free(blocks[0]):
        item = blocks[0].parts[0].item
        return sum(item.counts(rooms).values()) >= item.need
    return solve(rooms, blocks).fits


def _tried(rooms: Rooms, blocks: Sequence[Block], way: Way) -> Solved:
    placed = greedy(rooms, blocks, way)
    return Solved(_is_whole(blocks, placed), placed)


def _is_free(block: Block) -> bool:
    """Whether counting alone decides: one part that no topology holds."""
    return len(block.parts) == 1 and not block.is_bound


def _ways(blocks: Sequence[Block]) -> Iterator[Way]:
    """Those that differ for these blocks."""
    is_one = sum(len(block.parts) for block in blocks) < 2
    prefers = any(block.is_preferred for block in blocks)
    for way in WAYS:
        if (way.prefers or prefers) and (not is_one or (way.by_size and not way.tight)):
            yield way


def _is_whole(blocks: Sequence[Block], placed: Placed) -> bool:
    return all(placed.count(part.wanted.name) >= part.item.need for block in blocks for part in block.parts)


def _cannot(rooms: Rooms, block: Block) -> bool:
    """Whether it is proven that the block does not fit, even alone. Of one part greedy is exact: its pods are
    equal, a domain takes the sum of its nodes, and every domain is tried."""
    if _is_free(block):
        return fits(rooms, [block]) is False
    if len(block.parts) == 1:
        return not any(_is_whole([block], greedy(rooms, [block], way)) for way in _ways([block]))
    return all(Packing(rooms, items).cannot() for items in _choices(rooms, block))


def _choices(rooms: Rooms, block: Block) -> Iterator[list[Item]]:
    """Its items, held to each domain it may stand in."""
    items = [part.item for part in block.parts]
    if block.level is None or block.is_preferred:
        yield items
        return
    for nodes in _domains(rooms, block).values():
        yield [_held(item, nodes) for item in items]


def _domains(rooms: Rooms, block: Block) -> Mapping[Domain, frozenset[int]]:
    """That take enough of each part by itself."""
    counts = {part.wanted.name: part.item.counts(rooms) for part in block.parts}
    levels = block.levels[: (block.level or 0) + 1]
    found = candidates(rooms, block, counts, levels)
    needs = sum(part.item.need for part in block.parts)
    return {domain: frozenset(nodes) for domain, nodes, total in found if total >= needs}


def _held(item: Item, nodes: frozenset[int]) -> Item:
    return replace(item, allowed=nodes if item.allowed is None else nodes & item.allowed)


def _search(rooms: Rooms, blocks: Sequence[Block]) -> Placed | bool | None:
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
        packing = Packing(rooms, items)
        found = False if packing.cannot() else packing.search(steps)
        steps -= packing.steps
        if isinstance(found, list) and not any(part.slices for part in parts):
            return _placed(parts, found, {name: domain for name, (domain, _) in nodes.items()})
        is_open = is_open or found is not False
    return None if is_open else False


def _is_held(block: Block) -> bool:
    return block.level is not None and not block.is_preferred


def _placed(parts: Sequence[Part], found: Sequence[Taken], domains: Mapping[str, Domain]) -> Placed:
    taken = {part.wanted.name: each for part, each in zip(parts, found, strict=True)}
    return Placed(taken, {name: (domain,) for name, domain in domains.items()})
