"""What decides in a cluster and has no place in the schema of recorded cases."""

from __future__ import annotations

from collections.abc import Iterator

from gpucost.cluster.kueue import Workload
from gpucost.cluster.objects import is_false, times
from gpucost.cluster.scheduling import KueueConfig
from gpucost.cluster.state import ClusterState

_FIELDS = ("workloads", "cluster_queues", "local_queues", "cohorts", "flavors")


def beyond(state: ClusterState, config: KueueConfig) -> Iterator[str]:
    """In words, for a person; nothing where a case can say all."""
    for field in _FIELDS:
        if state.is_unread(field):
            yield f"{field.replace('_', ' ')} could not be read"
    yield from _of_config(config)
    yield from _of_queues(state)
    for each in state.workloads.values():
        what = _of_workload(each)
        if what:
            yield f"workload {each.meta.namespace}/{each.meta.name}: {what}"


def _of_config(config: KueueConfig) -> Iterator[str]:
    if config.block_admission:
        yield "waitForPodsReady.blockAdmission is on"
    if config.excluded_prefixes or config.ignores_undeclared:
        yield "resources that Kueue is told not to count"
    for each in config.unread:
        yield f"a setting of Kueue that gpucost does not follow: {each}"


def _of_queues(state: ClusterState) -> Iterator[str]:
    for queue in state.cluster_queues.values():
        has_all = {flavor for group in queue.groups for flavor in group.flavors} <= set(state.flavor_by_name)
        if queue.stop_policy != "None" or (has_all and is_false(queue.conditions, "Active")):
            yield f"ClusterQueue {queue.name} is stopped or not active"
        if queue.checks:
            yield f"ClusterQueue {queue.name} has admission checks"
        if queue.admission_mode:
            yield f"ClusterQueue {queue.name} has admission fair sharing"
    for local in state.local_queues.values():
        if local.stop_policy != "None":
            yield f"LocalQueue {local.meta.namespace}/{local.meta.name} is stopped"
    for flavor in state.flavors.values():
        if flavor.topology:
            yield f"flavor {flavor.meta.name} has a topology"


def _of_workload(each: Workload) -> str:
    if each.on_cluster:
        return "it runs on another cluster"
    if any(pods.topology for pods in each.pod_sets):
        return "it asks for a topology"
    if any(len(pods.template.affinity) > 1 for pods in each.pod_sets):
        return "its node affinity has more than one term"
    if any(line.of_field for pods in each.pod_sets for term in pods.template.affinity for line in term):
        return "its node affinity is about fields of nodes"
    asked = {pods.name: pods.template.requests for pods in each.pod_sets}
    for given in each.assignments if each.has_quota else ():
        wanted = times(asked.get(given.name, {}), given.count)
        counted = {key: amount for key, amount in given.usage.items() if key != "pods" and amount}
        if counted != {key: amount for key, amount in wanted.items() if amount}:
            return "its quota is not what its pods ask for"
    if each.has_quota and each.reclaimable:
        return "it gave back the quota of some pods"
    return ""
