"""Free units of nodes, sorted by how many a node has, for many who ask in turn and use them up.

Nodes of one kind (product) with equally many free units are a list of positions, rising. So what an ask costs
depends on how many levels there are, and on the nodes that it takes, not on how many nodes there are.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import TypeAlias

import numpy as np

from gpucost.attribution.deal import Ints

Kinds: TypeAlias = tuple[int, ...]
"""Kinds of nodes that will do, each once."""


class FreeUnits:
    """``free`` units (never below 0) of nodes of ``kind``, parallel. Asks name the kinds that will do."""

    def __init__(self, free: Ints, kind: Ints, kinds: int) -> None:
        self._levels: list[dict[int, list[int]]] = [{} for _ in range(kinds)]
        some = np.flatnonzero(free > 0)
        self.left = int(free.sum())
        order = some[np.lexsort((some, free[some], kind[some]))]
        level, of = free[order], kind[order]
        cuts = np.flatnonzero((np.diff(level) != 0) | (np.diff(of) != 0)) + 1
        nodes = order.tolist()
        for a, b in zip([0, *cuts.tolist()], [*cuts.tolist(), len(nodes)], strict=True):
            if a < b:
                self._levels[int(of[a])][int(level[a])] = nodes[a:b]

    def places(self, kinds: Kinds, units: int) -> int:
        """How many pods of ``units`` find room."""
        return sum(
            level // units * len(nodes)
            for kind in kinds
            for level, nodes in self._levels[kind].items()
            if level >= units
        )

    def total(self, kinds: Kinds) -> int:
        return sum(level * len(nodes) for kind in kinds for level, nodes in self._levels[kind].items())

    def largest(self, kinds: Kinds) -> int:
        """The most on one node."""
        return max((level for kind in kinds for level in self._levels[kind]), default=0)

    def take_pods(self, kinds: Kinds, units: int, pods: int) -> list[tuple[int, int]]:
        """(node, units taken) for ``pods`` pods of ``units``, those with the least room first: large blocks
        stay whole. Of nodes with equally much, the first ones."""
        size, taken = max(units, 1), list[tuple[int, int]]()
        for level in sorted(self._known(kinds)):
            if pods <= 0:
                break
            each = level // size
            if not each:
                continue
            full, rest = divmod(pods, each)
            nodes = self._first(kinds, level, full + (rest > 0))
            for n, node in enumerate(nodes):
                count = each if n < full else rest
                taken.append((node, count * units))
                pods -= count
            if units:
                self._lower(kinds, level, nodes[:full], level - each * units)
                self._lower(kinds, level, nodes[full:], level - rest * units)
        return taken

    def take_units(self, kinds: Kinds, wanted: int) -> list[tuple[int, int]]:
        """(node, units taken) for up to ``wanted`` units, those with the most room first."""
        taken = list[tuple[int, int]]()
        for level in sorted(self._known(kinds), reverse=True):
            if wanted <= 0:
                break
            full, rest = divmod(wanted, level)
            nodes = self._first(kinds, level, full + (rest > 0))
            taken += [(node, level) for node in nodes[:full]]
            taken += [(node, rest) for node in nodes[full:]]
            wanted -= level * min(full, len(nodes)) + rest * (len(nodes) > full)
            self._lower(kinds, level, nodes[:full], 0)
            self._lower(kinds, level, nodes[full:], level - rest)
        return taken

    def _known(self, kinds: Kinds) -> set[int]:
        return {level for kind in kinds for level in self._levels[kind]}

    def _first(self, kinds: Kinds, level: int, count: int) -> list[int]:
        """The first ``count`` nodes of a level."""
        lists = [nodes for kind in kinds if (nodes := self._levels[kind].get(level))]
        return lists[0][:count] if len(lists) == 1 else list(islice(merge(*lists), count))

    def _lower(self, kinds: Kinds, level: int, nodes: Sequence[int], to: int) -> None:
        """Moves ``nodes``, the first of a level, to a lower one; 0 is none."""
        if not nodes:
            return
        self.left -= (level - to) * len(nodes)
        for kind, moved in self._split(kinds, level, nodes):
            levels = self._levels[kind]
            del levels[level][: len(moved)]
            if not levels[level]:
                del levels[level]
            if to and len(moved) == 1:
                insort(levels.setdefault(to, []), moved[0])
            elif to:
                levels[to] = sorted(levels.get(to, []) + moved)

    def _split(self, kinds: Kinds, level: int, nodes: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
        """``nodes`` by kind: of each the first of its list."""
        last = nodes[-1]
        for kind in kinds:
            here = self._levels[kind].get(level, [])
            count = bisect_right(here, last)
            if count:
                yield kind, here[:count]
