"""GPU units that pods hold or ask for: extended resources, and devices given to their claims."""

from __future__ import annotations

from collections.abc import Mapping

from gpucost.cluster.devices import claimed_units
from gpucost.cluster.nodes import Node
from gpucost.cluster.objects import Resources, added
from gpucost.cluster.pods import Pod
from gpucost.cluster.state import ClusterState
from gpucost.domain.gpu import ResourceCatalog


class Units:
    """GPU units by resource name, never 0, as ``catalog`` says what a GPU is.

    Remembers what it has answered, so that the thousands of pods that ask for the same cost one look each.
    """

    def __init__(self, state: ClusterState, catalog: ResourceCatalog) -> None:
        self._catalog = catalog
        self._claimed: Mapping[str, Resources] = claimed_units(state) if state.claims else {}
        self._is_gpu: dict[str, bool] = {}
        # By identity, and with the mapping itself, so that no other can take its place in memory.
        self._asked: dict[int, tuple[Resources, Resources]] = {}

    def is_gpu(self, resource: str) -> bool:
        """Whether units of it are GPUs, or parts of them."""
        found = self._is_gpu.get(resource)
        if found is None:
            found = self._is_gpu[resource] = self._catalog.is_gpu(resource)
        return found

    def asked(self, resources: Resources) -> Resources:
        """The GPU units among ``resources``."""
        known = self._asked.get(id(resources))
        if known is None:
            found = {key: amount for key, amount in resources.items() if amount > 0 and self.is_gpu(key)}
            known = self._asked[id(resources)] = (resources, found)
        return known[1]

    def of(self, pod: Pod) -> Resources:
        """The units that a pod asks for, and so holds while it is bound; devices of claims once given."""
        asked = self.asked(pod.template.requests)
        claimed = self._claimed.get(pod.meta.uid)
        return added(asked, claimed) if claimed else asked


def held_units(state: ClusterState, catalog: ResourceCatalog) -> dict[str, Resources]:
    """The GPU units of every pod that holds some now, by its uid."""
    units = Units(state, catalog)
    held = ((pod.meta.uid, units.of(pod)) for pod in state.pods.values() if pod.is_bound)
    return {uid: found for uid, found in held if found}


def of_node(node: Node, published: Resources, catalog: ResourceCatalog) -> tuple[Resources, Resources]:
    """GPU units that a node has, and those it advertises; 0 too, since a node that has none has lost them.

    ``published`` are units of its ResourceSlices. They count where no device plugin advertises GPUs: where
    both do, they are the same boards.
    """
    capacity = {name: amount for name, amount in node.capacity.items() if catalog.is_gpu(name)}
    allocatable = {name: amount for name, amount in node.allocatable.items() if catalog.is_gpu(name)}
    if any(capacity.values()) or any(allocatable.values()):
        return capacity, allocatable
    return {**capacity, **published}, {**allocatable, **published}
