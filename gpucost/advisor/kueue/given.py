"""The search for victims alone, with flavors that are given: how some recorded decisions are stated."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpucost.advisor.kueue.asks import ask_of, requested
from gpucost.advisor.kueue.nominate import targets_of
from gpucost.advisor.kueue.snapshot import Snapshot
from gpucost.cluster.kueue import FlavorResource
from gpucost.cluster.scheduling import KueueConfig
from gpucost.cluster.state import ClusterState


def victims_given(
    state: ClusterState,
    config: KueueConfig,
    uid: str,
    flavors: Mapping[str, Mapping[str, str]],
    fits: Collection[str] = (),
) -> tuple[tuple[str, str], ...]:
    """Victims (uid, reason) of a pending workload that gets ``flavors``, by pod set and resource; of the
    resources in ``fits`` there is enough."""
    snapshot = Snapshot(state, config)
    workload = state.workloads[uid]
    local = state.local_queue_by_name[workload.meta.namespace, workload.queue]
    queue = snapshot.queues[local.cluster_queue]
    ask = ask_of(workload, queue.name, config)
    usage: dict[FlavorResource, int] = {}
    for asked in ask.pod_sets:
        chosen = flavors.get(asked.name, {})
        for resource, amount in requested(asked, asked.count, queue.covered).items():
            if resource in chosen:
                key = FlavorResource(chosen[resource], resource)
                usage[key] = usage.get(key, 0) + amount
    contested = frozenset(key for key in usage if key.resource not in fits)
    targets = targets_of(snapshot, queue, ask, contested, usage)
    return tuple((each.member.uid, each.reason) for each in targets)
