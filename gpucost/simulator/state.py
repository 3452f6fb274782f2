"""The simulated cluster at one instant, as the typed objects that a collector would have read.

``cluster_state`` puts it together: nodes, pods, and the queues of Kueue (``cluster_queues``,
``local_queues``) and Volcano (``volcano_queues``, ``pod_groups``), which starts the pods of some kinds of
jobs together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from gpucost.cluster.objects.jobs import JobObject, Namespace
from gpucost.cluster.objects.kueue import (
    ClusterQueue,
    FlavorQuota,
    FlavorResource,
    FlavorUsage,
    LocalQueue,
    ResourceFlavor,
    ResourceGroup,
    Topology,
)
from gpucost.cluster.objects.metadata import ObjectMeta, Resources, StatusCondition
from gpucost.cluster.objects.nodes import Node as NodeObject
from gpucost.cluster.objects.nodes import Taint
from gpucost.cluster.objects.pods import Pod, PodPhase, PodTemplate
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.objects.volcano import GroupKind, PodGroup, VolcanoQueue
from gpucost.cluster.views.ownership import VOLCANO_GROUPS
from gpucost.detectors.findings import WastePattern
from gpucost.domain.jobs import OwnerReference
from gpucost.simulator.cluster import CPU_NODE, SimulatedCluster, states
from gpucost.simulator.history import SimulatedQueueQuota
from gpucost.simulator.injected_patterns import GIB, InjectedPattern
from gpucost.simulator.inventory import GPU, POOLS, REGION, SimulatedNode
from gpucost.simulator.state_workloads import (
    BLOCK,
    POD_GROUPED,
    POOL,
    RACK,
    TAINT,
    TOPOLOGY,
    ZONE,
    SimulatedWork,
    cores_and_memory,
    meta,
)
from gpucost.simulator.workloads import RELEASE, SANDBOX, TEAMS

ROOT, QUEUE = "root", "batch"


def volcano_queues(seed: int, created_ms: int) -> list[VolcanoQueue]:
    """The root, and one queue below it; what is allocated is counted from pods."""
    root = VolcanoQueue(meta(seed, "volcanoqueue", "", ROOT, created_ms, {}), state="Open")
    batch = VolcanoQueue(
        meta(seed, "volcanoqueue", "", QUEUE, created_ms, {}),
        weight=4,
        capability={GPU: 48},
        deserved={GPU: 24},
        guarantee={GPU: 8},
        parent=ROOT,
        state="Open",
    )
    return [root, batch]


def pod_groups(seed: int, jobs: Iterable[JobObject], pods: Sequence[Pod]) -> list[PodGroup]:
    """A PodGroup for each job of those kinds whose pods Kueue has allowed, running once one of them is."""
    members: dict[tuple[str, str], list[Pod]] = {}
    for pod in pods:
        name = pod.meta.annotations.get(VOLCANO_GROUPS[1])
        if name is not None:
            members.setdefault((pod.meta.namespace, name), []).append(pod)
    return [
        _group(seed, job, mine)
        for job in jobs
        if job.job_kind in POD_GROUPED and (mine := members.get((job.meta.namespace, job.meta.name)))
    ]


def _group(seed: int, job: JobObject, pods: Sequence[Pod]) -> PodGroup:
    running = sum(pod.is_bound for pod in pods)
    own = job.meta
    return PodGroup(
        meta(
            seed, "podgroup", own.namespace, own.name, own.created_ms, own.labels,
            owner=OwnerReference(job.api_version, job.kind, own.name, own.uid),
        ),
        GroupKind.VOLCANO,
        min_member=job.gang_size or job.pods_wanted,
        queue=QUEUE,
        phase="Running" if running else "Inqueue",
        running=running,
    )  # fmt: skip


def cluster_queues(cluster: SimulatedCluster, at_ms: int) -> list[ClusterQueue]:
    """Every ClusterQueue with its quotas and what is used of them."""
    used = _used(cluster, at_ms)
    by_queue: dict[str, list[SimulatedQueueQuota]] = {}
    for quota in cluster.queues:
        by_queue.setdefault(quota.queue, []).append(quota)
    return [_cluster_queue(cluster, name, quotas, used) for name, quotas in sorted(by_queue.items())]


def _cluster_queue(
    cluster: SimulatedCluster,
    name: str,
    kinds: list[SimulatedQueueQuota],
    used: Mapping[tuple[str, str, str], int],
) -> ClusterQueue:
    quotas = {
        FlavorResource(kind.flavor, kind.resource): FlavorQuota(
            kind.nominal, kind.borrowing_limit, _lending_limit(kind)
        )
        for kind in kinds
    }
    uses = {
        FlavorResource(kind.flavor, kind.resource): FlavorUsage(total, max(0, total - kind.nominal))
        for kind in kinds
        for total in [used.get(kind.key, 0)]
    }
    groups: dict[tuple[str, ...], list[str]] = {}
    for flavor in dict.fromkeys(kind.flavor for kind in kinds):
        resources = tuple(kind.resource for kind in kinds if kind.flavor == flavor)
        groups.setdefault(resources, []).append(flavor)
    active = StatusCondition(True, "Ready", "Can admit new workloads", cluster.window.start_ms)
    return ClusterQueue(
        meta(cluster.seed, "clusterqueue", "", name, cluster.window.start_ms, {}),
        cohort=kinds[0].cohort,
        groups=tuple(ResourceGroup(resources, tuple(names)) for resources, names in groups.items()),
        quotas=quotas,
        namespace_selector=(),
        conditions={"Active": active},
        reserved=uses,
        used=uses,
    )


def _lending_limit(kind: SimulatedQueueQuota) -> int | None:
    """The lending limit of product's queue, which may lend all of its H100s; no other queue has one."""
    return kind.nominal if kind.cohort and kind.borrowing_limit is not None else None


def _used(cluster: SimulatedCluster, at_ms: int) -> dict[tuple[str, str, str], int]:
    used: dict[tuple[str, str, str], int] = {}
    for at in cluster.placed(at_ms, at_ms + 1):
        sub = cluster.placements[at].submission
        key = (sub.job.team.cluster_queue, sub.pool, sub.resource)
        used[key] = used.get(key, 0) + sub.units
    return used


def local_queues(cluster: SimulatedCluster) -> list[LocalQueue]:
    """One per team and namespace."""
    start_ms = cluster.window.start_ms
    active = StatusCondition(True, "Ready", "Can submit new workloads to ClusterQueue", start_ms)
    return [
        LocalQueue(
            meta(cluster.seed, "localqueue", namespace, team.queue, start_ms, {}),
            team.cluster_queue,
            conditions={"Active": active},
        )
        for team in (*TEAMS, RELEASE)
        for namespace in team.namespaces
    ]


def flavors(cluster: SimulatedCluster) -> list[ResourceFlavor]:
    """One per pool."""
    return [
        ResourceFlavor(
            meta(cluster.seed, "flavor", "", pool.name, cluster.window.start_ms, {}),
            node_labels={POOL: pool.name},
            topology=TOPOLOGY,
        )
        for pool in POOLS
    ]


def topologies(cluster: SimulatedCluster) -> list[Topology]:
    """Zones, blocks, racks, hosts."""
    levels = (ZONE, BLOCK, RACK, "kubernetes.io/hostname")
    return [Topology(meta(cluster.seed, "topology", "", TOPOLOGY, cluster.window.start_ms, {}), levels)]


class _HasMeta(Protocol):
    @property
    def meta(self) -> ObjectMeta: ...


T = TypeVar("T", bound=_HasMeta)


def cluster_state(cluster: SimulatedCluster, at_ms: int) -> ClusterState:
    """The cluster at ``at_ms``: nodes, pods that hold or want GPUs, their jobs, queues and workloads. The
    units that pods hold are those of the allocations frame."""
    nodes = [node for node in cluster.nodes if node.start_ms <= at_ms < node.end_ms]
    work = SimulatedWork.of(cluster, at_ms)
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


def node_object(node: SimulatedNode, seed: int, at_ms: int) -> NodeObject:
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
        provider_id=node.provider_id,
    )


def _cpu_only(plant: InjectedPattern, seed: int) -> list[Pod]:
    """Pods without GPUs on the node that has no taint to keep them away."""
    if plant.pattern is not WastePattern.CPU_ONLY_PODS:
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
