"""The parts of a cluster that decide apart: a cohort tree with its queues, or a ClusterQueue alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from gpucost.cluster.kueue import Workload
from gpucost.cluster.state import ClusterState

_QUEUE = "queue/"
"""Before the name of a ClusterQueue without a cohort, which no cohort may have."""


def tree_names(state: ClusterState) -> dict[str, str]:
    """By ClusterQueue the name of its tree: of its topmost cohort, or its own. In a circle of cohorts, in
    which nothing is scheduled, the least of their names."""
    parents = {name: each.parent for name, each in state.cohort_by_name.items()}
    return {
        name: _root(each.cohort, parents) if each.cohort else _QUEUE + name
        for name, each in state.cluster_queue_by_name.items()
    }


def queue_of(state: ClusterState, workload: Workload) -> str:
    """The ClusterQueue where it has quota or asks for it; empty where its LocalQueue leads nowhere."""
    local = state.local_queue_by_name.get((workload.meta.namespace, workload.queue))
    return workload.cluster_queue or (local.cluster_queue if local is not None else "")


def of_tree(state: ClusterState, tree: str, workloads: Collection[Workload]) -> ClusterState:
    """The state without all that is no part of one tree; ``workloads`` are those that take part."""
    names = tree_names(state)
    queues = {uid: each for uid, each in state.cluster_queues.items() if names.get(each.name) == tree}
    own = {each.name for each in queues.values()}
    parents = {name: each.parent for name, each in state.cohort_by_name.items()}
    cohorts = {uid: each for uid, each in state.cohorts.items() if _root(each.name, parents) == tree}
    named = {key.flavor for each in queues.values() for key in each.quotas}
    named |= {key.flavor for each in cohorts.values() for key in each.quotas}
    named |= {flavor for queue in queues.values() for group in queue.groups for flavor in group.flavors}
    spaces = {each.meta.namespace for each in workloads}
    return replace(
        state,
        pods={},
        nodes={},
        cluster_queues=queues,
        cohorts=cohorts,
        local_queues={uid: each for uid, each in state.local_queues.items() if each.cluster_queue in own},
        flavors={uid: each for uid, each in state.flavors.items() if each.meta.name in named},
        namespaces={uid: each for uid, each in state.namespaces.items() if each.meta.name in spaces},
        workloads={each.meta.uid: each for each in workloads},
    )


def _root(cohort: str, parents: Mapping[str, str]) -> str:
    seen = [cohort]
    while parents.get(seen[-1]):
        if parents[seen[-1]] in seen:
            return min(seen[seen.index(parents[seen[-1]]) :])
        seen.append(parents[seen[-1]])
    return seen[-1]
