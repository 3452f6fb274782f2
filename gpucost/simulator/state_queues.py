"""The Kueue queues of the simulated cluster at one instant."""

from __future__ import annotations

from collections.abc import Mapping

from gpucost.cluster.kueue import (
    ClusterQueue,
    FlavorResource,
    LocalQueue,
    Quota,
    ResourceFlavor,
    ResourceGroup,
    Topology,
    Use,
)
from gpucost.cluster.objects import Condition
from gpucost.simulator.cluster import SimulatedCluster
from gpucost.simulator.inventory import POOLS
from gpucost.simulator.quotas import QueueQuota
from gpucost.simulator.state_names import BLOCK, POOL, RACK, TOPOLOGY, ZONE, meta
from gpucost.simulator.tenants import RELEASE, TEAMS


def cluster_queues(cluster: SimulatedCluster, at_ms: int) -> list[ClusterQueue]:
    """Every ClusterQueue with its quotas and what is used of them."""
    used = _used(cluster, at_ms)
    by_queue: dict[str, list[QueueQuota]] = {}
    for quota in cluster.queues:
        by_queue.setdefault(quota.queue, []).append(quota)
    return [_cluster_queue(cluster, name, quotas, used) for name, quotas in sorted(by_queue.items())]


def _cluster_queue(
    cluster: SimulatedCluster, name: str, kinds: list[QueueQuota], used: Mapping[tuple[str, str, str], int]
) -> ClusterQueue:
    quotas = {
        FlavorResource(kind.flavor, kind.resource): Quota(
            kind.nominal, kind.borrowing_limit, _lending_limit(kind)
        )
        for kind in kinds
    }
    uses = {
        FlavorResource(kind.flavor, kind.resource): Use(total, max(0, total - kind.nominal))
        for kind in kinds
        for total in [used.get(kind.key, 0)]
    }
    groups: dict[tuple[str, ...], list[str]] = {}
    for flavor in dict.fromkeys(kind.flavor for kind in kinds):
        resources = tuple(kind.resource for kind in kinds if kind.flavor == flavor)
        groups.setdefault(resources, []).append(flavor)
    active = Condition(True, "Ready", "Can admit new workloads", cluster.window.start_ms)
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


def _lending_limit(kind: QueueQuota) -> int | None:
    """Product may lend all of its H100s, and says so; nobody else says anything."""
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
    active = Condition(True, "Ready", "Can submit new workloads to ClusterQueue", start_ms)
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
