"""Trays of NVLink domains: which of them a ComputeDomain has, and what waits for one.

NVIDIA's driver for ComputeDomains (NVIDIA/k8s-dra-driver-gpu, cmd/compute-domain-kubelet-plugin) publishes
one channel for each node, ``channel-0``, and no GPU. A pod that is to share memory over NVLink with pods on
other nodes claims the channel of its node; while it has it, the node carries the label of its ComputeDomain
and belongs to no other, however few of its GPUs the pod holds. So free GPUs of such a node, here a *tray*,
are of no use to a pod that needs a channel; one that needs none may have them. Other trays of the clique (the
nodes that one NVLink fabric connects, ``nvidia.com/gpu.clique``) stay free for other ComputeDomains.

What a pod needs is known by the claim that it has, or by the template that its ComputeDomain names: both are
of the pod's own namespace, which the driver checks. That its pods must be in one clique is only known where
they say so; the driver itself makes a ComputeDomain over several.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from gpucost.cluster.objects.metadata import ObjectMeta
from gpucost.cluster.objects.nodes import Node, ResourceClaim
from gpucost.cluster.objects.pods import Pod, PodTemplate
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.device_claims import CHANNELS, newest_slices
from gpucost.cluster.views.ownership import PodOwnership
from gpucost.domain.jobs import JobReference

DRIVER = "compute-domain.nvidia.com"
CLIQUE = "nvidia.com/gpu.clique"
"""Set by GPU Feature Discovery: uuid of the NVLink cluster, and number of the clique in it."""
RESERVED_BY = "resource.nvidia.com/computeDomain"
"""Set by the driver while a pod on the node has its channel: uid of the ComputeDomain. Where it stays behind,
it still keeps others from the node."""
_REQUIRED_TOPOLOGY = "kueue.x-k8s.io/podset-required-topology"


class ChannelNeed(StrEnum):
    """What a waiting pod needs beside GPUs: nothing, a channel on its node, or that and the other pods of its
    set in the same clique."""

    NONE = ""
    NODE = "node"
    CLIQUE = "clique"


class DomainTray(NamedTuple):
    """A node with a channel. ``clique`` is empty where its GPUs have no NVLink beyond the node. ``domain`` is
    the ComputeDomain that has it, as namespace/name where it is known; ``job`` is that of the pod that has
    the channel."""

    node: str
    clique: str
    is_reserved: bool = False
    domain: str = ""
    namespace: str = ""
    job: JobReference | None = None


def domain_trays(state: ClusterState, ownership: PodOwnership) -> Mapping[str, DomainTray]:
    """All nodes with a channel, by name."""
    nodes = dict[str, str]()  # by pool
    for each in newest_slices(state.slices.values(), (DRIVER,)):
        if each.node and any(device.attributes.get("type") == "channel" for device in each.devices):
            nodes[each.pool] = each.node
    if not nodes:
        return {}
    holders = dict[str, ResourceClaim]()
    for claim in sorted(state.claims.values(), key=lambda each: each.meta.uid):
        for device in claim.devices:
            if device.driver == DRIVER and device.device.startswith("channel-") and device.pool in nodes:
                holders.setdefault(nodes[device.pool], claim)
    known = (state.node_by_name[name] for name in nodes.values() if name in state.node_by_name)
    found = (_tray(state, ownership, node, holders.get(node.meta.name)) for node in known)
    return {each.node: each for each in found}


def _tray(
    state: ClusterState, ownership: PodOwnership, node: Node, claim: ResourceClaim | None
) -> DomainTray:
    name, clique, uid = node.meta.name, node.labels.get(CLIQUE, ""), node.labels.get(RESERVED_BY, "")
    domain = state.compute_domains.get(uid)
    written = f"{domain.meta.namespace}/{domain.meta.name}" if domain is not None else uid
    if claim is None:
        namespace = domain.meta.namespace if domain is not None else ""
        return DomainTray(name, clique, bool(uid), written, namespace)
    pods = (state.pods.get(uid) for uid in claim.reserved_for)
    users = sorted((each for each in pods if each is not None and not each.has_ended), key=_bound)
    job = ownership.of(users[0]).job if users else None
    return DomainTray(name, clique, True, written, claim.meta.namespace, job)


def _bound(pod: Pod) -> tuple[int, str]:
    return pod.bound_ms or 0, pod.meta.uid


@dataclass(frozen=True)
class ChannelNeeds:
    """What waiting pods of a state need."""

    state: ClusterState

    def of(
        self,
        meta: ObjectMeta,
        template: PodTemplate,
        claims: Iterable[str] = (),
        topology: Mapping[str, str] = MappingProxyType({}),
    ) -> ChannelNeed:
        """Of pods of a template in the namespace of ``meta``; ``claims`` are those that a pod has already,
        ``topology`` what its set asks of Kueue."""
        names = [(meta.namespace, name) for name in (*claims, *template.claims)]
        if self._templates.isdisjoint(names):
            made = (self.state.claim_by_name.get(name) for name in names)
            if not any(each is not None and is_of_channel(each) for each in made):
                return ChannelNeed.NONE
        required = topology.get("required", "") or meta.annotations.get(_REQUIRED_TOPOLOGY, "")
        is_one = CLIQUE in (*template.together, required) or CLIQUE in template.node_selector
        return ChannelNeed.CLIQUE if is_one else ChannelNeed.NODE

    @cached_property
    def _templates(self) -> frozenset[tuple[str, str]]:
        """By namespace and name, those that channels are claimed by."""
        domains = self.state.compute_domains.values()
        return frozenset((each.meta.namespace, each.channel_template) for each in domains)


def is_of_channel(claim: ResourceClaim) -> bool:
    return any(each.device_class == CHANNELS for each in claim.requests)
