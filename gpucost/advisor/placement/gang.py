"""Several pod sets as blocks that are placed together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from gpucost.advisor.placement.domains import Block, Part, Placed
from gpucost.advisor.placement.pack import Item
from gpucost.advisor.placement.rooms import Domain, Rooms, positive, where
from gpucost.advisor.placement.wanted import Wanted

MOST_POD_SETS = 64
"""Different pod sets of one gang that are evaluated together; equal ones count once."""


class Gang:
    """Pod sets in an order of their own, equal ones as one; by a name that is made up here."""

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        groups: dict[object, list[Wanted]] = {}
        for number, each in enumerate(sorted(wanted, key=order)):
            groups.setdefault(_alike(each) or number, []).append(each)
        self.sources: dict[str, list[Wanted]] = {}
        self.merged: list[Wanted] = []
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

    def _unknown(self, wanted: Sequence[Wanted]) -> tuple[str, ...]:
        if len(self.merged) > MOST_POD_SETS:
            return (f"{len(self.merged)} different pod sets: at most {MOST_POD_SETS} are evaluated together",)
        return tuple(f"{each.name}: {each.unknown}" for each in sorted(wanted, key=order) if each.unknown)

    def blocks(self, rooms: Rooms, need: Callable[[Wanted], int]) -> list[Block]:
        """Those of one topology group that share a level share a domain."""
        blocks: dict[object, list[Wanted]] = {}
        for each in self.merged:
            level, _ = level_of(each)
            group = each.topology.get("group", "")
            key = (group, each.levels, level) if group and level is not None else each.name
            blocks.setdefault(key, []).append(each)
        return [_block(rooms, group, need) for group in blocks.values()]

    def by_pod_set(self, placed: Placed, rooms: Rooms) -> dict[str, dict[str, int]]:
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


def order(each: Wanted) -> tuple[str, ...]:
    requests = repr(sorted(each.asks.requests.items()))
    return (
        each.name,
        f"{each.count:012}",
        requests,
        repr(where(each.asks)),
        repr(sorted(each.topology.items())),
    )


def _alike(each: Wanted) -> object:
    """Equal pod sets are one, if nothing holds each of them together; None for those that stay apart."""
    if each.least < each.count or set(each.topology) - {"unconstrained"} or each.conflict:
        return None
    requests = tuple(sorted(positive(each.asks.requests).items()))
    return where(each.asks), requests, each.levels, each.among


def level_of(each: Wanted) -> tuple[int | None, bool]:
    """The level it asks for as an index of its levels, and whether that is a preference."""
    for key in ("required", "preferred"):
        label = each.topology.get(key)
        if label:
            levels = levels_of(each)
            return (levels.index(label) if label in levels else None), key == "preferred"
    return None, False


def levels_of(each: Wanted) -> Domain:
    """Of its topology; the one label it names, where its flavor has no topology."""
    named = [each.topology[key] for key in ("required", "preferred", "slice") if each.topology.get(key)]
    return each.levels or tuple(dict.fromkeys(named))


def _level_problem(each: Wanted) -> str:
    if not each.levels:
        return ""
    for key in ("required", "preferred", "slice"):
        label = each.topology.get(key)
        if label and label not in each.levels:
            known = ", ".join(each.levels)
            return f"{key} topology {label}: no level of its flavor's topology, which has {known}"
    return ""


def _block(rooms: Rooms, group: Sequence[Wanted], need: Callable[[Wanted], int]) -> Block:
    level, is_preferred = level_of(group[0])
    one = group[0]
    if len(group) == 1 and one.topology.get("slice") and need(one) <= (one.slice_size or 1):
        # A single slice stands in one domain of its level: that is a required topology.
        slice_level = levels_of(one).index(one.topology["slice"])
        level = slice_level if level is None or is_preferred else max(level, slice_level)
        whole = Part(one, Item(need(one), one.asks, _allowed(rooms, one)))
        return Block((whole,), levels_of(one), level)
    parts = tuple(_part(rooms, each, need(each)) for each in group)
    return Block(parts, levels_of(group[0]), level, is_preferred)


def _part(rooms: Rooms, each: Wanted, need: int) -> Part:
    item = Item(need, each.asks, _allowed(rooms, each))
    slice_level = each.topology.get("slice", "")
    if not slice_level:
        return Part(each, item)
    levels = levels_of(each) if each.levels else (slice_level,)
    upto = levels[: levels.index(slice_level) + 1]
    return Part(each, item, each.slice_size or 1, rooms.domains(upto))


def _allowed(rooms: Rooms, each: Wanted) -> frozenset[int] | None:
    """None where its template alone decides. Topology needs every level's label on a node."""
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
