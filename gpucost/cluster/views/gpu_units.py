"""GPU units that pods hold or request: extended resources, and devices allocated to their claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

from gpucost.cluster.objects.metadata import Resources, added, few
from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.objects.pods import Pod
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.device_claims import (
    NO_HISTORY,
    ClaimHistory,
    ClaimHoldings,
    DeviceUses,
    PublishedUnits,
    held_devices,
    published_units,
    wanted_units,
)
from gpucost.cluster.views.gpu_fractions import TICKETS, GpuFractions, gpu_fractions, wants_fraction
from gpucost.cluster.views.sharing_rules import DEFAULT_SHARING, SharingRules
from gpucost.domain.gpu import ResourceCatalog

_DRIVERS = {
    "nvidia.com/": "gpu.nvidia.com",
    "amd.com/": "gpu.amd.com",
    "gpu.intel.com/": "gpu.intel.com",
    "habana.ai/": "gaudi.intel.com",
}
"""Drivers whose slices publish what device plugins call ``<vendor>/...``."""


class GpuUnits:
    """GPU units by resource name, never 0; ``catalog`` decides what a GPU is.

    ``ended`` are pods that are over, newer than ``state``, ``history`` is that of claims, ``sharing`` what an
    administrator says of GPUs that several pods have. Answers are
    cached, so that thousands of pods with equal requests cost one lookup each.
    """

    def __init__(
        self,
        state: ClusterState,
        catalog: ResourceCatalog,
        ended: Sequence[Pod] = (),
        history: ClaimHistory = NO_HISTORY,
        sharing: SharingRules = DEFAULT_SHARING,
    ) -> None:
        self.catalog, self._sharing = catalog, sharing
        self._state, self._ended, self._history = state, ended, history
        self._is_gpu: dict[str, bool] = {}
        # By identity, and with the mapping itself, so that no other mapping can take its address in memory.
        self._asked: dict[int, tuple[Resources, Resources]] = {}

    @cached_property
    def devices(self) -> ClaimHoldings:
        """What pods hold through claims."""
        return held_devices(self._state, self.catalog, self._ended, self._history, self._sharing)

    @cached_property
    def fractions(self) -> GpuFractions:
        """What pods hold of GPUs that a scheduler reserves for their fractions."""
        history, namespace = self._history, self._sharing.reservations
        return gpu_fractions(self._state, self._ended, history.fractions, history.firsts, namespace)

    def uses(self, pod: Pod) -> DeviceUses:
        """The devices that it holds and others may hold at the same time."""
        claimed, devices = self.devices.uses.get(pod.meta.uid, {}), self.devices.divided
        shared = {key: use for key, use in claimed.items() if key.device in devices}
        return {**shared, **self.fractions.uses.get(pod.meta.uid, {})}

    @cached_property
    def _claimed(self) -> Mapping[str, Resources]:
        """By uid, for pods that are or were bound, and for those that wait."""
        found: dict[str, Resources] = dict(wanted_units(self._state, self.devices))
        for uid, shares in self.devices.shares.items():
            units: dict[str, int] = {}
            for share in shares.values():
                units[share.resource] = units.get(share.resource, 0) + 1
            found[uid] = units
        return found

    @cached_property
    def _published(self) -> Mapping[str, PublishedUnits]:
        return published_units(self._state)

    def is_gpu(self, resource: str) -> bool:
        """Whether units of it are GPUs, or parts of them."""
        found = self._is_gpu.get(resource)
        if found is None:
            found = self._is_gpu[resource] = self.catalog.is_gpu(resource)
        return found

    def asked(self, resources: Resources) -> Resources:
        """The GPU units among ``resources``, of no more kinds than one object may request."""
        known = self._asked.get(id(resources))
        if known is None:
            found = {key: amount for key, amount in resources.items() if amount > 0 and self.is_gpu(key)}
            known = self._asked[id(resources)] = (resources, few(found))
        return known[1]

    def of(self, pod: Pod) -> Resources:
        """The units that a pod requests, and so holds while it is bound; devices of claims once it has them,
        and while it waits those that its claims request.

        Extended resources that a DRA driver provides are counted under the name the node has them by.
        """
        asked = self.asked(pod.template.requests)
        if pod.backing_claim and asked:
            asked = self._as_published(pod, asked)
        claimed = self._claimed.get(pod.meta.uid)
        return added(asked, claimed) if claimed else asked

    def held(self, pod: Pod) -> Resources:
        """As ``of`` for a pod that is or was bound, but every device that it uses, whoever uses it too, and
        nothing for one that only reserves GPUs for the fractions of others."""
        if pod.meta.uid in self.fractions.reservations:
            return {}
        uses = {
            **self.devices.uses.get(pod.meta.uid, {}),
            **self.fractions.uses.get(pod.meta.uid, {}),
        }
        if not uses:
            return self.of(pod)
        used = Counter({key.device: use.resource for key, use in uses.items()}.values())
        asked = self.asked(pod.template.requests)
        if pod.meta.uid in self.fractions.tickets:
            asked = {name: units for name, units in asked.items() if name not in TICKETS}
        return added(self._as_published(pod, asked) if pod.backing_claim and asked else asked, used)

    def having(self, pod: Pod) -> Resources:
        """As ``of``; where that is nothing, what it has of GPUs that a scheduler gave it parts of, each as
        one."""
        return self.of(pod) or self.held(pod)

    def is_gpu_pod(self, pod: Pod) -> bool:
        """Whether it has GPUs or parts of them, or wants some."""
        return bool(self.having(pod)) or wants_fraction(pod)

    def _as_published(self, pod: Pod, asked: Resources) -> Resources:
        node, published = self._state.node_by_name.get(pod.node), self._published.get(pod.node)
        if node is None or not published or _has_plugin(node, self.catalog):
            return asked
        return _named_as_published(asked)


def of_node(node: Node, published: PublishedUnits, catalog: ResourceCatalog) -> tuple[Resources, Resources]:
    """GPU units that a node has, and those it advertises; 0 is included, since such a node has lost them.

    ``published`` are units of its ResourceSlices. They count where no device plugin advertises GPUs: where
    both do, they are the same GPUs.
    """
    capacity = {name: amount for name, amount in node.capacity.items() if catalog.is_gpu(name)}
    allocatable = {name: amount for name, amount in node.allocatable.items() if catalog.is_gpu(name)}
    if _has_plugin(node, catalog):
        return capacity, allocatable
    return {**capacity, **published.there}, {**allocatable, **published.usable}


def expected_units(node: Node, published: PublishedUnits, catalog: ResourceCatalog) -> Resources:
    """GPU units that hardware and sharing settings of a node should give, named as the node has them.

    Labels name a device plugin's resources also where slices publish the GPUs instead.
    """
    if not node.expected or not published.there or _has_plugin(node, catalog):
        return node.expected
    return _named_as_published(node.expected)


def _has_plugin(node: Node, catalog: ResourceCatalog) -> bool:
    """Whether a device plugin advertises GPUs on it."""
    resources = (*node.capacity.items(), *node.allocatable.items())
    return any(amount > 0 and catalog.is_gpu(name) for name, amount in resources)


def _named_as_published(units: Resources) -> Resources:
    return added(*({_published_name(name): amount} for name, amount in units.items()))


def _published_name(resource: str) -> str:
    vendor, slash, unit = resource.partition("/")
    driver = _DRIVERS.get(vendor + slash)
    if driver is None:
        return resource
    return f"{driver}/{unit}" if unit.startswith("mig-") else driver
