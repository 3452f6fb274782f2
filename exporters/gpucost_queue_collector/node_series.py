"""Series of nodes: what they have, advertise and should advertise, and the labels that prices depend on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from gpucost.cluster.objects.metadata import Resources
from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.views.device_claims import NOT_PUBLISHED, PublishedUnits
from gpucost.cluster.views.gpu_units import expected_units, of_node
from gpucost.cluster.views.nvlink_domains import DomainTray
from gpucost.contract.metric_spec import MetricSpec
from gpucost.contract.metrics import (
    NODE_BOARDS,
    NODE_DOMAIN_RESERVED,
    NODE_END,
    NODE_GPU_ALLOCATABLE,
    NODE_GPU_CAPACITY,
    NODE_GPU_EXPECTED,
    NODE_GPU_REPLICAS,
    NODE_INFO,
    NODE_METRICS,
    NODE_SCHEDULABLE,
    NODE_START,
    NODE_UNAVAILABLE,
    node_label_name,
)
from gpucost.domain.gpu import ResourceCatalog
from gpucost_queue_collector.object_memory import EndedNode
from gpucost_queue_collector.page import line, open_labels, sample

SPECS = NODE_METRICS
TRAYS = (NODE_DOMAIN_RESERVED,)


class GpuNode(NamedTuple):
    """A node with GPUs, and of its resources only those. ``labels`` are the further ones to be exported;
    ``expected`` units are named as the node advertises them."""

    node: Node
    capacity: Resources
    allocatable: Resources
    labels: tuple[tuple[str, str], ...]
    ended_ms: int | None = None
    expected: Resources = MappingProxyType({})


class GpuNodes:
    """Finds the nodes with GPUs. ``node_labels`` are Kubernetes labels to be exported."""

    def __init__(self, catalog: ResourceCatalog, node_labels: Sequence[str]) -> None:
        self._catalog = catalog
        self._node_labels = tuple(node_labels)
        self._before: Mapping[str, GpuNode] = {}

    def find(
        self, nodes: Iterable[Node], ended: Iterable[EndedNode], published: Mapping[str, PublishedUnits]
    ) -> Mapping[str, GpuNode]:
        """By name, the newest of each: nodes that have, claim or publish a GPU, or did until they ended.

        ``published`` are units of ResourceSlices by node. A node that ended is shown as it last was: its
        slices may be gone.
        """
        living = [self._facts(node, published.get(node.meta.name, NOT_PUBLISHED)) for node in nodes]
        living.sort(key=lambda each: each.node.meta.created_ms)
        gone = [self._ended(each) for each in sorted(ended, key=lambda each: each.ended_ms)]
        self._before = {
            each.node.meta.name: each
            for each in (*living, *gone)
            if each.capacity or each.allocatable or each.node.product or each.node.expected
        }
        return self._before

    def _ended(self, gone: EndedNode) -> GpuNode:
        before = self._before.get(gone.node.meta.name)
        if before is None or before.node.meta.uid != gone.node.meta.uid:
            before = self._facts(gone.node, NOT_PUBLISHED)
        return before._replace(ended_ms=gone.ended_ms)

    def _facts(self, node: Node, published: PublishedUnits) -> GpuNode:
        capacity, allocatable = of_node(node, published, self._catalog)
        labels = tuple((key, node.labels[key]) for key in self._node_labels if key in node.labels)
        expected = expected_units(node, published, self._catalog)
        return GpuNode(node, capacity, allocatable, labels, expected=expected)


def write_node(found: GpuNode) -> Sequence[bytes]:
    """One text for each of SPECS."""
    node, name = found.node, (found.node.meta.name,)
    boards = node.boards
    texts: dict[MetricSpec, bytes] = {
        NODE_INFO: _info(found),
        NODE_BOARDS: b"" if boards is None else line(NODE_BOARDS, name, boards),
        NODE_GPU_CAPACITY: _by_resource(NODE_GPU_CAPACITY, node, found.capacity),
        NODE_GPU_ALLOCATABLE: _by_resource(NODE_GPU_ALLOCATABLE, node, found.allocatable),
        NODE_GPU_EXPECTED: _by_resource(NODE_GPU_EXPECTED, node, found.expected),
        NODE_GPU_REPLICAS: _by_resource(NODE_GPU_REPLICAS, node, node.replicas),
        NODE_SCHEDULABLE: line(NODE_SCHEDULABLE, name, node.is_schedulable),
        NODE_UNAVAILABLE: _unavailable(node),
        NODE_START: line(NODE_START, name, node.meta.created_ms / 1000),
        NODE_END: b"" if found.ended_ms is None else line(NODE_END, name, found.ended_ms / 1000),
    }
    return [texts[spec] for spec in SPECS]


def _info(found: GpuNode) -> bytes:
    node = found.node
    values = (
        node.meta.name,
        node.product,
        node.instance_type,
        node.capacity_type,
        node.region,
        node.zone,
        node.pool,
        node.provider_id,
    )
    further = {node_label_name(key): value for key, value in found.labels}
    return sample(NODE_INFO, open_labels(NODE_INFO, values, further), 1)


def _unavailable(node: Node) -> bytes:
    cause = node.unavailable_cause
    return b"" if cause is None else line(NODE_UNAVAILABLE, (node.meta.name, cause.value), 1)


def _by_resource(spec: MetricSpec, node: Node, amounts: Mapping[str, int]) -> bytes:
    return b"".join(line(spec, (node.meta.name, resource), amount) for resource, amount in amounts.items())


def write_tray(tray: DomainTray) -> Sequence[bytes]:
    """The text of TRAYS."""
    job = tray.job
    of_job = ("", "", "") if job is None else (job.kind.value, job.name, job.uid)
    values = (tray.node, tray.clique, tray.namespace, tray.domain, *of_job)
    return (line(NODE_DOMAIN_RESERVED, values, tray.is_reserved),)
