"""Nodes as they are now: their GPUs, who is on which, what is free, and what is broken or closed.

Live estimates, as ``queues_now``. For a reader who is bound to teams there are the nodes on which their pods
are, with these pods; what others hold there, and so what is free, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from gpucost.cluster.objects.metadata import added
from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.objects.pods import Pod
from gpucost.cluster.views.gpu_units import DeviceHealth, expected_units, of_node
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.domain.gpu import parse_product
from gpucost.domain.time import iso
from gpucost.pricing.price_book import PriceBook
from gpucost.reports.live.cluster_reader import ClusterReader
from gpucost.reports.live.queues_now import LivePrices, unread_of


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """GPU units of one resource of a node. ``count`` is what it has or should have: ``held`` by pods,
    ``free`` for new ones, and ``unavailable`` (broken, not advertised, or on a node that takes no pods),
    which add up to it. ``allocatable`` is what it advertises. For who sees some teams ``held`` is theirs, and
    the rest of the sum is None."""

    resource: str
    count: int
    allocatable: int
    held: int | None
    free: int | None
    unavailable: int | None


@dataclass(frozen=True, slots=True)
class NodePod:
    """A pod that holds GPUs of a node, since ``since``. ``devices`` are ids of GPUs where the cluster says
    which (claims of dynamic resource allocation), ``unhealthy_gpus`` how many of its GPUs the kubelet calls
    unhealthy. ``per_hour_nano`` is what it costs an hour, None where that is not known."""

    namespace: str
    pod: str
    job_kind: str
    job: str
    job_uid: str
    team: str
    user: str
    queue: str
    gpus: Mapping[str, int]
    since: str | None
    devices: tuple[str, ...]
    unhealthy_gpus: int
    per_hour_nano: int | None


@dataclass(frozen=True, slots=True)
class LiveNode:
    """A node with GPUs. ``model`` is the GPU's; ``closed`` says in a word why no pods are put there now,
    empty while they are. ``has_hole``: some of its GPUs are held and some free; None where that is not told.

    ``gpu_hour_nano`` is the price of a GPU there, ``held_per_hour_nano`` what those that are held cost an
    hour, ``free_per_hour_nano`` those that are free; None where that is not known.
    """

    name: str
    model: str
    product: str
    pool: str
    instance_type: str
    capacity_type: str
    region: str
    zone: str
    gpus: tuple[NodeGpus, ...]
    pods: tuple[NodePod, ...]
    is_ready: bool
    closed: str
    has_hole: bool | None
    gpu_hour_nano: int | None
    held_per_hour_nano: int | None
    free_per_hour_nano: int | None


@dataclass(frozen=True, slots=True)
class NodesNow:
    """The nodes of a cluster that have GPUs at ``at``, by name.

    A caller bound to teams (``teams_in_scope``; null: all) sees the nodes on which their pods hold GPUs, and
    these pods. ``unread`` are collections that could not be read: lists lack their objects.
    """

    cluster: str
    at: str
    currency: str | None
    teams_in_scope: tuple[str, ...] | None
    nodes: tuple[LiveNode, ...]
    unread: tuple[str, ...]


def build_nodes(
    cluster: str, overview: ClusterOverview, reader: ClusterReader, prices: PriceBook | None
) -> NodesNow:
    """Every node that has GPUs, or should have; for who sees some teams those with GPU pods of these."""
    building = _NodeBuilder(overview, reader, LivePrices(overview, cluster, prices))
    ordered = sorted(overview.state.nodes.values(), key=lambda node: node.meta.name)
    nodes = (building.node(each) for each in ordered)
    return NodesNow(
        cluster,
        iso(overview.state.at_ms),
        None if prices is None else prices.currency,
        None if reader.teams is None else tuple(sorted(reader.teams)),
        tuple(each for each in nodes if each is not None),
        unread_of(overview),
    )


def only_node(found: NodesNow, name: str) -> NodesNow | None:
    """The node ``name``; None where there is none of that name."""
    nodes = tuple(each for each in found.nodes if each.name == name)
    return replace(found, nodes=nodes) if nodes else None


class _NodeBuilder:
    def __init__(self, overview: ClusterOverview, reader: ClusterReader, prices: LivePrices) -> None:
        self._overview, self._reader, self._prices = overview, reader, prices
        self._health = DeviceHealth(overview.state, overview.units)
        self._knows_pods = not overview.state.is_unread("pods")

    def node(self, node: Node) -> LiveNode | None:
        """None for one without GPUs, and for one that the reader does not see."""
        overview = self._overview
        bound = [
            pod
            for pod in overview.state.pods_by_node.get(node.meta.name, ())
            if pod.is_bound and overview.units.having(pod)
        ]
        seen = [pod for pod in bound if self._reader.sees(pod)]
        gpus = self._gpus(node, bound, seen)
        if not gpus or not (seen or self._reader.sees_every_team):
            return None
        is_told = all(each.free is not None for each in gpus)
        free = sum(each.free or 0 for each in gpus)
        cause = node.unavailable_cause
        free_units = {each.resource: each.free for each in gpus if each.free}
        money = [self._prices.of_pod(pod) for pod in seen]
        known = [each for each in money if each is not None]
        return LiveNode(
            node.meta.name,
            parse_product(node.product).model if node.product else "",
            node.product,
            node.pool,
            node.instance_type,
            node.capacity_type,
            node.region,
            node.zone,
            gpus,
            tuple(map(self._pod, sorted(seen, key=lambda pod: (pod.meta.namespace, pod.meta.name)))),
            node.is_ready,
            "" if cause is None else cause.value,
            bool(free and bound) if is_told else None,
            self._prices.gpu_hour(node),
            _whole(sum(known, Fraction(0))) if len(known) == len(money) else None,
            _whole(self._prices.per_hour(node, free_units)) if is_told else None,
        )

    def _gpus(self, node: Node, bound: Sequence[Pod], seen: Sequence[Pod]) -> tuple[NodeGpus, ...]:
        overview, published = self._overview, self._overview.published_on(node)
        there, advertised = of_node(node, published, overview.catalog)
        expected = expected_units(node, published, overview.catalog)
        own = added(*(overview.units.of(pod) for pod in seen))
        held = added(*(overview.units.of(pod) for pod in bound))
        is_told = self._reader.sees_every_team and self._knows_pods
        # A pod may hold what the node no longer has: it counts, but only for who may know that it is there.
        names = {*there, *advertised, *expected, *(held if is_told else own)}
        found = []
        for name in sorted(names):
            count = max(there.get(name, 0), advertised.get(name, 0), expected.get(name, 0))
            if not is_told:
                mine = own.get(name, 0) if self._knows_pods else None
                found.append(NodeGpus(name, count, advertised.get(name, 0), mine, None, None))
                continue
            taken = held.get(name, 0)
            free = max(0, advertised.get(name, 0) - taken) if node.is_schedulable else 0
            rest = max(0, count - taken - free)
            found.append(NodeGpus(name, taken + free + rest, advertised.get(name, 0), taken, free, rest))
        return tuple(each for each in found if each.count or each.held)

    def _pod(self, pod: Pod) -> NodePod:
        overview = self._overview
        known, units = overview.ownership.of(pod), overview.units.having(pod)
        per_hour = self._prices.of_pod(pod)
        devices = overview.units.devices.uses.get(pod.meta.uid, {})
        return NodePod(
            pod.meta.namespace,
            pod.meta.name,
            known.job.kind.value,
            known.job.name,
            known.job.uid,
            self._reader.team_of(pod),
            known.user,
            known.cluster_queue or known.queue,
            dict(sorted(units.items())),
            None if pod.bound_ms is None else iso(pod.bound_ms),
            tuple(sorted({key.device.device for key in devices})),
            sum(self._health.unhealthy(pod, units).values()),
            _whole(per_hour),
        )


def _whole(nano: Fraction | None) -> int | None:
    return None if nano is None else round(nano)
