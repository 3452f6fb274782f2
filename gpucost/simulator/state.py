"""The simulated cluster at one instant, as the typed objects that a collector would have read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

from gpucost.cluster.jobs import Namespace
from gpucost.cluster.nodes import Node as NodeObject
from gpucost.cluster.nodes import Taint
from gpucost.cluster.objects import Meta, Resources
from gpucost.cluster.pods import Pod, PodPhase, PodTemplate
from gpucost.cluster.state import ClusterState
from gpucost.detectors.findings import Pattern
from gpucost.simulator.cluster import CPU_NODE, SimulatedCluster
from gpucost.simulator.inventory import REGION, Node
from gpucost.simulator.machines import states
from gpucost.simulator.plants import GIB, Plant
from gpucost.simulator.state_names import BLOCK, POOL, RACK, TAINT, cores_and_memory, meta
from gpucost.simulator.state_queues import cluster_queues, flavors, local_queues, topologies
from gpucost.simulator.state_volcano import pod_groups, volcano_queues
from gpucost.simulator.state_work import Work
from gpucost.simulator.tenants import RELEASE, SANDBOX, TEAMS


class _HasMeta(Protocol):
    @property
    def meta(self) -> Meta: ...


T = TypeVar("T", bound=_HasMeta)


def cluster_state(cluster: SimulatedCluster, at_ms: int) -> ClusterState:
    """What stands at ``at_ms``: nodes, pods that hold or want GPUs, their jobs, queues and workloads. The
    units that pods hold are those of the allocations frame."""
    nodes = [node for node in cluster.nodes if node.start_ms <= at_ms < node.end_ms]
    work = Work.of(cluster, at_ms)
    cpu_only = [pod for plant in cluster.plants for pod in _cpu_only(plant, cluster.seed)]
    alive = {node.name for node in nodes}
    queues = cluster_queues(cluster, at_ms)
    return ClusterState(
        at_ms=at_ms,
        pods=_by_uid([*work.pods, *(pod for pod in cpu_only if pod.node in alive)]),
        nodes=_by_uid(node_object(node, cluster.seed, at_ms) for node in nodes),
        namespaces=_by_uid(_namespaces(cluster)),
        jobs=_by_uid(work.jobs),
        cluster_queues=_by_uid(queues),
        local_queues=_by_uid(local_queues(cluster)),
        flavors=_by_uid(flavors(cluster)),
        topologies=_by_uid(topologies(cluster)),
        pod_groups=_by_uid(pod_groups(cluster.seed, work.jobs, work.pods)),
        volcano_queues=_by_uid(volcano_queues(cluster.seed, cluster.window.start_ms)),
        workloads=_by_uid(work.workloads),
    )


def _by_uid(objects: Iterable[T]) -> Mapping[str, T]:
    return {each.meta.uid: each for each in objects}


def node_object(node: Node, seed: int, at_ms: int) -> NodeObject:
    """A node as it stands at an instant."""
    lost, cordoned = next((s[2], s[3]) for s in states(node) if s[0] <= at_ms < s[1])
    number = int(node.name.rpartition("-")[2])
    labels = {
        "kubernetes.io/hostname": node.name,
        "node.kubernetes.io/instance-type": node.instance_type,
        "topology.kubernetes.io/region": REGION,
        "topology.kubernetes.io/zone": node.zone,
        "nvidia.com/gpu.product": node.product,
        "nvidia.com/gpu.count": str(node.boards),
        POOL: node.pool,
        BLOCK: f"{node.zone}-{'hopper' if node.pool.startswith('h100') else 'other'}",
        RACK: f"{node.pool}-r{(number + 1) // 2}",
    }
    cores, memory = cores_and_memory(node)
    base = {"cpu": cores, "memory": memory, "pods": 250}
    units = {offer.resource: offer.units for offer in node.offers}
    taint = () if node.name == CPU_NODE else (Taint(TAINT, "present", "NoSchedule"),)
    return NodeObject(
        meta=meta(seed, "node", "", node.name, node.start_ms, labels),
        capacity={**base, **units},
        allocatable={**base, **{name: count - lost for name, count in units.items()}},
        is_ready=True,
        ready_since_ms=node.start_ms,
        is_cordoned=cordoned,
        product=node.product,
        instance_type=node.instance_type,
        capacity_type=node.capacity_type,
        region=REGION,
        zone=node.zone,
        pool=node.pool,
        boards=node.boards,
        expected=units,
        replicas={offer.resource: offer.replicas for offer in node.offers if offer.replicas > 1},
        taints=taint,
    )


def _cpu_only(plant: Plant, seed: int) -> list[Pod]:
    """Pods without GPUs on the node that has no taint to keep them away."""
    if plant.pattern is not Pattern.CPU_ONLY_PODS:
        return []
    requests: Resources = {"cpu": 56_000, "memory": 300 * GIB}
    start_ms = plant.window.start_ms
    return [
        Pod(
            meta(seed, "pod", plant.namespace, f"{plant.name}-{number}", start_ms, {"team": "robotics"}),
            PodPhase.RUNNING,
            PodTemplate(requests),
            node=plant.node,
            bound_ms=start_ms,
            ready_ms=start_ms,
        )
        for number in range(2)
    ]


def _namespaces(cluster: SimulatedCluster) -> list[Namespace]:
    names = {name for team in (*TEAMS, RELEASE, SANDBOX) for name in team.namespaces}
    return [
        Namespace(meta(cluster.seed, "namespace", "", name, cluster.window.start_ms, {}))
        for name in sorted(names)
    ]
