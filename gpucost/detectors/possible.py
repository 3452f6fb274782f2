"""Requests that no node could ever serve: what nodes have at most, against what pods ask for."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import Protocol

from gpucost.detectors.facts import History
from gpucost.detectors.held import amount


class Request(Protocol):
    """What of a row of demand it depends on."""

    @property
    def resource(self) -> str: ...
    @property
    def products(self) -> str: ...
    @property
    def units(self) -> int: ...
    @property
    def min_pods(self) -> int: ...


class Possible:
    """Answers for the nodes of one history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._known: dict[tuple[str, str], tuple[int, ...]] = {}
        self._places: dict[tuple[str, str, int], int] = {}

    @cached_property
    def _sizes(self) -> dict[str, list[tuple[str, int]]]:
        """(product, units at most) of each node, by resource."""
        capacity = self._history.frames.capacity
        most = capacity[["expected", "capacity", "allocatable"]].max(axis=1)
        product = self._history.products
        found: dict[str, list[tuple[str, int]]] = defaultdict(list)
        by_node = most.groupby([capacity["resource"], capacity["node"]], observed=True).max().reset_index()
        for resource, node, units in zip(*(by_node[name].tolist() for name in by_node), strict=True):
            found[resource].append((product.get(node, ""), units))
        return found

    def sizes(self, resource: str, products: str) -> tuple[int, ...]:
        """Units of each node that would do, the largest first."""
        key = (resource, products)
        if key not in self._known:
            wanted = set(products.split("|"))
            fitting = (
                units for product, units in self._sizes.get(resource, ()) if not products or product in wanted
            )
            self._known[key] = tuple(sorted(fitting, reverse=True))
        return self._known[key]

    def is_possible(self, asked: Request) -> bool:
        """Whether as many of its pods as must start at once would fit if all nodes were empty."""
        key = (asked.resource, asked.products, max(asked.units, 1))
        if key not in self._places:
            self._places[key] = sum(size // key[2] for size in self.sizes(asked.resource, asked.products))
        return self._places[key] >= max(asked.min_pods, 1)

    def why_not(self, asked: Request) -> str:
        largest = next(iter(self.sizes(asked.resource, asked.products)), 0)
        one = amount(asked.units, "GPU")
        if asked.units > largest:
            return f"impossible request: a pod asks for {one}, the largest node that would do has {largest}"
        pods = amount(asked.min_pods, "pod")
        return f"impossible request: {pods} of {one} at once do not fit, were all nodes that would do empty"
