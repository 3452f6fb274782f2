"""What Volcano's queues deserve, use and keep waiting (volcano v1.15.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpucost.cluster.objects.metadata import Resources, added
from gpucost.cluster.objects.pods import Pod
from gpucost.cluster.objects.state import ClusterState, grouped
from gpucost.cluster.objects.volcano import (
    WAITING_PHASES,
    GroupKind,
    PodGroup,
    VolcanoQueue,
)
from gpucost.cluster.views.gpu_units import GpuUnits
from gpucost.cluster.views.ownership import group_key
from gpucost.domain.gpu import ResourceCatalog

DEFAULT_QUEUE = "default"
"""The queue of a PodGroup that names none."""
ROOT_QUEUE = "root"
"""The parent of a queue that names none."""
NEW = "Pending"
"""The phase of a PodGroup that no scheduler has seen."""


@dataclass(frozen=True, slots=True)
class VolcanoQueueView:
    """``allocated`` is of all resources, a parent's with its children's: as the scheduler last wrote it
    (``from_status``), else what pods of its PodGroups hold now. The rest is the queue's own only: PodGroups
    by phase, GPU units that the waiting ones need at least, and since when the oldest of them has existed
    (None: none waits)."""

    queue: VolcanoQueue
    allocated: Resources
    from_status: bool
    pod_groups: Mapping[str, int]
    pending_units: Resources
    oldest_pending_ms: int | None


def volcano_queue_views(state: ClusterState, catalog: ResourceCatalog) -> dict[str, VolcanoQueueView]:
    """All Volcano queues by name. PodGroups of queues that do not exist are not counted."""
    queues = state.volcano_queue_by_name
    if not queues:
        return {}
    units = GpuUnits(state, catalog)
    groups = grouped(volcano_groups(state), queue_of)
    pods = _pods_by_group(state)
    allocated = _allocated(state, groups, pods)
    return {
        name: _view(queue, groups.get(name, []), pods, allocated.get(name, {}), units)
        for name, queue in queues.items()
    }


def volcano_groups(state: ClusterState) -> Iterable[PodGroup]:
    """The PodGroups that are Volcano's."""
    return (each for each in state.pod_groups.values() if each.group_kind is GroupKind.VOLCANO)


def queue_of(group: PodGroup) -> str:
    """The name of a PodGroup's queue."""
    return group.queue or DEFAULT_QUEUE


def parent_of(queue: VolcanoQueue) -> str:
    """The name of a queue's parent, empty for the root."""
    return queue.parent or ("" if queue.name == ROOT_QUEUE else ROOT_QUEUE)


def _view(
    queue: VolcanoQueue,
    groups: list[PodGroup],
    pods: Mapping[str, list[Pod]],
    allocated: Resources,
    units: GpuUnits,
) -> VolcanoQueueView:
    waiting = [group for group in groups if group.phase in WAITING_PHASES]
    return VolcanoQueueView(
        queue,
        allocated if queue.allocated is None else {**_none_of(queue), **queue.allocated},
        queue.allocated is not None,
        dict(Counter(group.phase or NEW for group in groups)),
        added(*(_needed(group, pods.get(group.meta.uid, []), units) for group in waiting)),
        min((group.meta.created_ms for group in waiting), default=None),
    )


def _none_of(queue: VolcanoQueue) -> Resources:
    """0 of what it could have: the scheduler leaves out what is not allocated."""
    named = (queue.deserved, queue.guarantee, queue.capability)
    return {resource: 0 for amounts in named for resource in amounts or ()}


def _needed(group: PodGroup, pods: list[Pod], units: GpuUnits) -> Resources:
    """GPU units it cannot start without: its ``minResources``, else the requests of its ``min_member``
    smallest pods."""
    if group.min_resources is not None:
        return units.asked(group.min_resources)
    asked = sorted((units.of(pod) for pod in pods if not pod.has_ended), key=lambda each: sum(each.values()))
    return added(*asked[: group.min_member])


def _pods_by_group(state: ClusterState) -> dict[str, list[Pod]]:
    """By the uid of their PodGroup."""
    found: dict[str, list[Pod]] = {}
    by_name = state.pod_group_by_name
    for pod in state.pods.values():
        key = group_key(pod)
        group = by_name.get(key) if key is not None else None
        if group is not None:
            found.setdefault(group.meta.uid, []).append(pod)
    return found


def _allocated(
    state: ClusterState, groups: Mapping[str, list[PodGroup]], pods: Mapping[str, list[Pod]]
) -> dict[str, Resources]:
    """The requests of bound pods, by queue, children in their parents; empty where the status has all of
    it."""
    queues = state.volcano_queue_by_name
    if all(queue.allocated is not None for queue in queues.values()):
        return {}
    total: dict[str, Resources] = {name: {} for name in queues}
    for name in queues:
        members = (pod for group in groups.get(name, ()) for pod in pods.get(group.meta.uid, ()))
        own = added(*(pod.requests for pod in members if pod.is_bound))
        for each in _with_parents(name, queues):
            total[each] = added(total[each], own)
    return total


def _with_parents(name: str, queues: Mapping[str, VolcanoQueue]) -> list[str]:
    """The queue and its ancestors as far as they exist, each once even where they form a cycle."""
    found: dict[str, None] = {}
    while name in queues and name not in found:
        found[name] = None
        name = parent_of(queues[name])
    return list(found)
