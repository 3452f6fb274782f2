"""Objects of a state that are inconsistent, alone or together. They are reported and stop nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import chain

from gpucost.cluster.objects.jobs import JobObject, PriorityClass
from gpucost.cluster.objects.kueue import Workload, WorkloadState
from gpucost.cluster.objects.metadata import ObjectMeta, added
from gpucost.cluster.objects.pods import DisruptionBudget
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.objects.volcano import VolcanoQueue
from gpucost.cluster.views.cohorts import cohort_cycles
from gpucost.cluster.views.gpu_units import GpuUnits
from gpucost.cluster.views.group_trees import GroupTrees
from gpucost.cluster.views.volcano_queues import ROOT_QUEUE, queue_of, volcano_groups
from gpucost.domain.gpu import ResourceCatalog


class StateProblemCode(StrEnum):
    """The values of the label ``code``, each with its meaning."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> StateProblemCode:
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    FLAWED = "flawed", "A field of an object makes no sense; the rest of the object is used."
    COHORT_CYCLE = "cohort_cycle", "Cohorts are each other's parents; Kueue admits nothing below them."
    QUEUE_MISSING = "queue_missing", "A queue, or a workload, leads to a queue that does not exist."
    FLAVOR_MISSING = "flavor_missing", "A ClusterQueue or an admitted workload uses a flavor that is gone."
    CHECK_MISSING = "check_missing", "A ClusterQueue wants an AdmissionCheck that does not exist."
    TOPOLOGY_MISSING = "topology_missing", "A ResourceFlavor names a Topology that does not exist."
    CLUSTER_QUEUE_GONE = "cluster_queue_gone", "A workload holds quota of a ClusterQueue that is gone."
    NODE_UNKNOWN = "node_unknown", "A pod holds something on a node that does not exist."
    VOLCANO_QUEUE_MISSING = "volcano_queue_missing", "A PodGroup or queue names a Volcano queue that is gone."
    GROUP_TREE_BROKEN = "group_tree_broken", "A PodGroup is part of a tree that cannot be followed."
    CLAIM_UNKNOWN = "claim_unknown", "A pod used a ResourceClaim of which nobody can say what it gave."
    OVERCOMMITTED = "overcommitted", "Pods hold more GPU units of a node than it allocates."


@dataclass(frozen=True, slots=True, order=True)
class StateProblem:
    """One problem: which object, and in ``detail`` what about it, for people."""

    code: StateProblemCode
    namespace: str
    kind: str
    name: str
    detail: str


_KINDS: Mapping[type, str] = {VolcanoQueue: "Queue", DisruptionBudget: "PodDisruptionBudget"}


def problems(
    state: ClusterState, catalog: ResourceCatalog, units: GpuUnits | None = None
) -> list[StateProblem]:
    """All problems, sorted, each once. ``units`` are those of the state, with the history of claims.

    A missing object is reported only where all objects of its kind are known: once its collection has been
    read, and not where the cluster does not have it. A state without information on its collections counts as
    knowing those of which it has objects.
    """
    units = units or GpuUnits(state, catalog)
    finders = (
        _flawed(state),
        _cycles(state),
        _of_cluster_queues(state),
        _of_local_queues(state),
        _of_flavors(state),
        _of_workloads(state),
        _of_volcano(state),
        _of_trees(state),
        _of_nodes(state, units),
        _of_claims(state, units),
    )
    return sorted(set(chain.from_iterable(finders)))


def _problem(code: StateProblemCode, kind: str, meta: ObjectMeta, detail: str) -> StateProblem:
    return StateProblem(code, meta.namespace, kind, meta.name, detail)


def _flawed(state: ClusterState) -> Iterator[StateProblem]:
    for each in fields(state):
        objects = getattr(state, each.name)
        if each.name in ("at_ms", "collections", "schedulers"):
            continue
        for item in objects.values():
            for flaw in item.flaws:
                detail = f"{flaw.field}: {flaw.value} is not allowed; allowed: {flaw.allowed}"
                yield _problem(StateProblemCode.FLAWED, _kind(item), item.meta, detail)


def _kind(item: object) -> str:
    """The name of the kind in Kubernetes."""
    if isinstance(item, JobObject):
        return item.kind
    if isinstance(item, PriorityClass) and item.of_kueue:
        return "WorkloadPriorityClass"
    return _KINDS.get(type(item), type(item).__name__)


def _cycles(state: ClusterState) -> Iterator[StateProblem]:
    for circle in cohort_cycles(state.cohorts.values()):
        detail = " -> ".join((*circle, circle[0]))
        for name in circle:
            yield _problem(
                StateProblemCode.COHORT_CYCLE, "Cohort", state.cohort_by_name[name].meta, f"parents: {detail}"
            )


def _of_cluster_queues(state: ClusterState) -> Iterator[StateProblem]:
    knows_flavors, knows_checks = state.knows("flavors"), state.knows("checks")
    checks = {check.meta.name for check in state.checks.values()}
    for queue in state.cluster_queues.values():
        listed = {flavor for group in queue.groups for flavor in group.flavors}
        listed.update(key.flavor for key in queue.quotas)
        for flavor in listed - state.flavor_by_name.keys() if knows_flavors else ():
            detail = f"ResourceFlavor {flavor} does not exist"
            yield _problem(StateProblemCode.FLAVOR_MISSING, "ClusterQueue", queue.meta, detail)
        for check in queue.checks.keys() - checks if knows_checks else ():
            detail = f"AdmissionCheck {check} does not exist"
            yield _problem(StateProblemCode.CHECK_MISSING, "ClusterQueue", queue.meta, detail)


def _of_local_queues(state: ClusterState) -> Iterator[StateProblem]:
    if not state.knows("cluster_queues"):
        return
    for queue in state.local_queues.values():
        if queue.cluster_queue not in state.cluster_queue_by_name:
            detail = f"ClusterQueue {queue.cluster_queue} does not exist"
            yield _problem(StateProblemCode.QUEUE_MISSING, "LocalQueue", queue.meta, detail)


def _of_flavors(state: ClusterState) -> Iterator[StateProblem]:
    if not state.knows("topologies"):
        return
    known = {topology.meta.name for topology in state.topologies.values()}
    for flavor in state.flavors.values():
        if flavor.topology and flavor.topology not in known:
            detail = f"Topology {flavor.topology} does not exist"
            yield _problem(StateProblemCode.TOPOLOGY_MISSING, "ResourceFlavor", flavor.meta, detail)


def _of_workloads(state: ClusterState) -> Iterator[StateProblem]:
    knows_queues = state.knows("local_queues")
    knows_cluster_queues, knows_flavors = state.knows("cluster_queues"), state.knows("flavors")
    for workload in state.workloads.values():
        meta = workload.meta
        if workload.state is WorkloadState.FINISHED:
            continue
        own = (meta.namespace, workload.queue)
        if knows_queues and workload.queue and own not in state.local_queue_by_name:
            detail = f"LocalQueue {workload.queue} does not exist"
            yield _problem(StateProblemCode.QUEUE_MISSING, "Workload", meta, detail)
        if not workload.has_quota:
            continue
        given = workload.cluster_queue
        if knows_cluster_queues and given and given not in state.cluster_queue_by_name:
            detail = f"ClusterQueue {given} does not exist"
            yield _problem(StateProblemCode.CLUSTER_QUEUE_GONE, "Workload", meta, detail)
        if knows_flavors:
            yield from _gone_flavors(state, workload)


def _gone_flavors(state: ClusterState, workload: Workload) -> Iterator[StateProblem]:
    for assignment in workload.assignments:
        for flavor in assignment.flavors.values():
            if flavor not in state.flavor_by_name:
                detail = f"admitted to ResourceFlavor {flavor}, which does not exist"
                yield _problem(StateProblemCode.FLAVOR_MISSING, "Workload", workload.meta, detail)


def _of_volcano(state: ClusterState) -> Iterator[StateProblem]:
    if not state.knows("volcano_queues"):
        return
    known = state.volcano_queue_by_name
    for group in volcano_groups(state):
        if group.phase != "Completed" and queue_of(group) not in known:
            detail = f"Queue {queue_of(group)} does not exist"
            yield _problem(StateProblemCode.VOLCANO_QUEUE_MISSING, "PodGroup", group.meta, detail)
    for queue in known.values():
        if queue.parent not in ("", ROOT_QUEUE) and queue.parent not in known:
            detail = f"parent: Queue {queue.parent} does not exist"
            yield _problem(StateProblemCode.VOLCANO_QUEUE_MISSING, "Queue", queue.meta, detail)


def _of_trees(state: ClusterState) -> Iterator[StateProblem]:
    for group, why in GroupTrees(state).broken().values():
        yield _problem(StateProblemCode.GROUP_TREE_BROKEN, "PodGroup", group.meta, why)


def _of_claims(state: ClusterState, units: GpuUnits) -> Iterator[StateProblem]:
    if not state.knows("claims"):
        return
    for pod, name in units.devices.unknown:
        detail = f"what ResourceClaim {name} gave it is not known"
        yield _problem(StateProblemCode.CLAIM_UNKNOWN, "Pod", pod.meta, detail)


def _of_nodes(state: ClusterState, units: GpuUnits) -> Iterator[StateProblem]:
    if not state.knows("nodes"):
        return
    for name, pods in state.pods_by_node.items():
        node = state.node_by_name.get(name)
        if node is None:
            detail = f"Node {name} does not exist"
            for pod in pods:
                yield _problem(StateProblemCode.NODE_UNKNOWN, "Pod", pod.meta, detail)
            continue
        held = units.asked(added(*(pod.requests for pod in pods if not pod.backing_claim)))
        for resource, amount in held.items():
            allocatable = node.allocatable.get(resource, 0)
            if amount > allocatable:
                detail = f"{resource}: pods hold {amount}, the node allocates {allocatable}"
                yield _problem(StateProblemCode.OVERCOMMITTED, "Node", node.meta, detail)
