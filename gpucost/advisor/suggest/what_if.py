"""A cluster with a change in it, as cheap to evaluate as the one it was made from.

Only what the change touches is worked out again: of quota the tree of one queue, of nodes the room on those
that are repaired.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from gpucost.advisor.placement.repaired_nodes import NodeRepair, repaired
from gpucost.advisor.request.context import AdvisorContext
from gpucost.advisor.volcano.session import VolcanoSession
from gpucost.cluster.objects.kueue import ClusterQueue, Cohort, LocalQueue
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.objects.volcano import VolcanoQueue

T = TypeVar("T", ClusterQueue, Cohort, LocalQueue)

_OF_STATE = ("node_by_name", "pods_by_node", "flavor_by_name", "local_queue_by_name", "namespace_by_name")
_OF_OVERVIEW = ("units", "ownership", "published")
_OF_WORLD = ("members", "groups", "gangs")


def with_quota(
    known: AdvisorContext, queue: str, queues: Iterable[ClusterQueue] = (), cohorts: Iterable[Cohort] = ()
) -> AdvisorContext:
    """With these in place of those of their names, which share quota with ``queue``; of the cluster's
    workloads only those of that tree are there."""
    state, view = known.state, known.kueue
    names = view.tree(queue)
    uids = {uid for name in names for uid in view.snapshot.queues[name].members}
    for line in view.lines_of(queue).values():
        uids.update(ask.uid for ask in (*line.heap, *line.parked))
    own = {each.meta.uid: each for name in names if (each := state.cluster_queue_by_name[name])}
    changed = replace(
        state,
        cluster_queues=_put(own, queues),
        cohorts=_put(state.cohorts, cohorts),
        workloads={uid: state.workloads[uid] for uid in sorted(uids)},
    )
    _carry(state, changed, _OF_STATE)
    return _with_state(known, changed, ("rooms", "world", "pods_by_workload"))


def with_queues(
    known: AdvisorContext,
    cluster_queues: Iterable[ClusterQueue] = (),
    local_queues: Iterable[LocalQueue] = (),
) -> AdvisorContext:
    """With these queues in place of those of their names, and all workloads: also those that were in no
    queue."""
    state = known.state
    changed = replace(
        state,
        cluster_queues=_put(state.cluster_queues, cluster_queues),
        local_queues=_put(state.local_queues, local_queues),
    )
    _carry(state, changed, [each for each in _OF_STATE if each != "local_queue_by_name"])
    return _with_state(known, changed, ("rooms", "world", "pods_by_workload"))


def with_volcano_queue(known: AdvisorContext, queue: VolcanoQueue) -> AdvisorContext:
    """With this in place of the one of its name."""
    state = known.state
    queues = {uid: each for uid, each in state.volcano_queues.items() if each.name != queue.name}
    changed = replace(state, volcano_queues={**queues, queue.meta.uid: queue})
    _carry(state, changed, _OF_STATE)
    found = _with_state(known, changed, ("rooms", "kueue", "pods_by_workload"))
    world = VolcanoSession(found.overview, changed.schedulers.volcano, known.rooms)
    _carry(known.world, world, _OF_WORLD)
    vars(found)["world"] = world
    return found


def with_repairs(known: AdvisorContext, repairs: Mapping[str, NodeRepair]) -> AdvisorContext:
    """With these nodes as they would be once they are repaired."""
    rooms = repaired(known.rooms, repairs)
    found = replace(known)
    _carry(known, found, ("kueue", "pods_by_workload"))
    world = VolcanoSession(known.overview, known.state.schedulers.volcano, rooms)
    _carry(known.world, world, _OF_WORLD)
    vars(found).update(rooms=rooms, world=world)
    return found


def with_samples(known: AdvisorContext, samples: int) -> AdvisorContext:
    """The same cluster, its waits from fewer samples."""
    found = replace(known, settings=replace(known.settings, samples=samples))
    _carry(known, found, ("rooms", "kueue", "world", "pods_by_workload"))
    return found


def _with_state(known: AdvisorContext, state: ClusterState, kept: Iterable[str]) -> AdvisorContext:
    overview = replace(known.overview, state=state)
    _carry(known.overview, overview, _OF_OVERVIEW)
    found = replace(known, overview=overview)
    vars(found)["rooms"] = known.rooms
    _carry(known, found, kept)
    return found


def _put(objects: Mapping[str, T], changed: Iterable[T]) -> dict[str, T]:
    return {**objects, **{each.meta.uid: each for each in changed}}


def _carry(one: object, other: object, names: Iterable[str]) -> None:
    """Takes over what was worked out for one cluster already and is the same for the other."""
    known = vars(one)
    vars(other).update({name: known[name] for name in names if name in known})
