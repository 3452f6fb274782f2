"""Topology over simulated time: where pods stand that ask for one domain, by the advisor's own placement.

A workload of Kueue with a topology request (``required``, ``preferred``, slices, groups) goes where
``gpucost.advisor.placement.gang_placement`` puts it, which answers the same question for one instant; what is
free are the nodes of the replay (``fifo_nodes``). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpucost.advisor.kueue.requests import QuotaRequest
from gpucost.advisor.model.cycle_results import PodSetFlavors
from gpucost.advisor.placement.free_capacity import FreeCapacity, NodeBase
from gpucost.advisor.placement.gang_placement import place
from gpucost.advisor.placement.pod_demand import PlacementDemand
from gpucost.advisor.replay.fifo_nodes import FifoNodes, FifoPlacement
from gpucost.cluster.objects.metadata import Labels, ObjectMeta
from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.objects.pods import PodTemplate


class PoolDomains(NamedTuple):
    """The nodes of a pool: what they offer, the levels of the flavor's topology (widest first; empty where it
    has none), and the labels of each. Nodes that are added later have none."""

    resource: str
    units: int
    levels: tuple[str, ...]
    labels: tuple[Labels, ...]


class _Seat(NamedTuple):
    pool: str
    node: int


def asks_topology(request: QuotaRequest | None) -> bool:
    """Whether a pod set of it has a topology request."""
    return request is not None and any(each.topology for each in request.pod_sets)


class NodeDomains:
    """All nodes whose labels are known, by the pools they are in."""

    def __init__(self, pools: Mapping[str, PoolDomains]) -> None:
        self.pools = pools
        self._seats: list[_Seat] = []
        self._among: dict[str, frozenset[str]] = {}
        nodes = []
        for name, pool in sorted(pools.items()):
            own = []
            for number, labels in enumerate(pool.labels):
                nodes.append(_node(f"{name} {number:06d}", pool, labels))
                own.append(nodes[-1].meta.name)
                self._seats.append(_Seat(name, number))
            self._among[name] = frozenset(own)
        self._base = NodeBase(nodes, [each.allocatable for each in nodes], {}, lambda _: {})

    def decide(
        self,
        request: QuotaRequest | None,
        flavors: Sequence[PodSetFlavors],
        pools_of: Mapping[tuple[str, str], str],
    ) -> bool:
        """Whether it matters in which domain its pods stand: one of them asks for more than any place, and
        something is known of the nodes of all its pools."""
        if request is None or not any(each.topology.keys() - {"unconstrained"} for each in request.pod_sets):
            return False
        pools = (
            pools_of.get((flavor, resource)) for each in flavors for resource, flavor in each.flavors.items()
        )
        return all(pool in self.pools for pool in pools if pool is not None)

    def fit(
        self,
        request: QuotaRequest,
        flavors: Sequence[PodSetFlavors],
        pools_of: Mapping[tuple[str, str], str],
        free: Mapping[str, FifoNodes],
    ) -> list[tuple[str, FifoPlacement]] | None:
        """Where all of its pods stand at once now, by pool; None where they cannot. Takes nothing."""
        given = {each.name: each for each in flavors}
        wanted: list[PlacementDemand] = []
        for each in request.pod_sets:
            got = given[each.name]
            for resource, amount in each.each.items():
                pool = pools_of.get((got.flavors.get(resource, ""), resource), "")
                if pool in self.pools and amount:
                    wanted.append(
                        PlacementDemand(
                            each.name,
                            got.count,
                            got.count,
                            PodTemplate({resource: amount}),
                            topology=each.topology,
                            levels=self.pools[pool].levels,
                            among=self._among[pool],
                        )
                    )
        found = place(self._rooms(free), wanted, ask_empty=False)
        if not found.fits:
            return None
        amounts = {each.name: next(iter(each.template.requests.values())) for each in wanted}
        taken: dict[str, dict[int, int]] = {}
        for pod_set, nodes in sorted(found.nodes.items()):
            for node, pods in nodes.items():
                seat = self._seats[self._base.index[node]]
                own = taken.setdefault(seat.pool, {})
                own[seat.node] = own.get(seat.node, 0) + pods * amounts[pod_set]
        return [(pool, tuple(sorted(own.items()))) for pool, own in sorted(taken.items())]

    def _rooms(self, free: Mapping[str, FifoNodes]) -> FreeCapacity:
        rooms = FreeCapacity(self._base)
        for at, seat in enumerate(self._seats):
            pool, left = self.pools[seat.pool], free[seat.pool].free
            held = pool.units - (left[seat.node] if seat.node < len(left) else 0)
            if held:
                rooms.take_at(at, {pool.resource: held}, 1)
        return rooms


def _node(name: str, pool: PoolDomains, labels: Labels) -> Node:
    there = {pool.resource: pool.units}
    return Node(ObjectMeta(name, "", name, 0, labels, {}), there, there, True, None, False)
