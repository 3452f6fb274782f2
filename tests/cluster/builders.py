"""Small typed objects for tests of ``gpucost.cluster``: what a test does not name has a plain default.

Uids are derived from names, so that a test can refer to an object before it makes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpucost.cluster.objects.jobs import JobObject, Namespace
from gpucost.cluster.objects.kueue import (
    ClusterQueue,
    FlavorQuota,
    LocalQueue,
    PodSetAssignment,
    ResourceFlavor,
    Workload,
)
from gpucost.cluster.objects.kueue import FlavorResource as FlavorResource
from gpucost.cluster.objects.metadata import ObjectMeta, Resources, StatusCondition
from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.objects.pods import (
    Pod,
    PodPhase,
    PodSet,
    PodTemplate,
    PodWaitReason,
)
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.objects.volcano import CompositePodGroup, GroupKind, PodGroup, VolcanoQueue
from gpucost.domain.jobs import OwnerReference, job_kind

T0 = 1_792_800_000_000
"""2026-10-24T00:00:00Z; every object is created then unless a test says otherwise."""
SECOND = 1_000
MINUTE = 60_000
GPU = "nvidia.com/gpu"


def meta(
    name: str,
    namespace: str = "team-a",
    *,
    uid: str = "",
    created_ms: int = T0,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    owner: OwnerReference | JobObject | None = None,
    deleted_ms: int | None = None,
) -> ObjectMeta:
    reference = owner.as_owner if isinstance(owner, JobObject) else owner
    return ObjectMeta(
        uid or f"{name}-uid",
        namespace,
        name,
        created_ms,
        labels or {},
        annotations or {},
        reference,
        deleted_ms,
    )


def template(gpus: int = 0, *, cpu: int = 0, requests: Resources | None = None, **fields: Any) -> PodTemplate:
    """``gpus`` whole GPUs and ``cpu`` thousandths of a core, or ``requests`` as they are."""
    plain = {key: amount for key, amount in ((GPU, gpus), ("cpu", cpu)) if amount}
    return PodTemplate(plain if requests is None else requests, **fields)


def pod(
    name: str,
    gpus: int = 0,
    *,
    node: str = "",
    bound_ms: int | None = None,
    ended_ms: int | None = None,
    phase: PodPhase | None = None,
    unschedulable: str = "",
    gates: tuple[str, ...] = (),
    asks: PodTemplate | None = None,
    stuck: str = "",
    ready_ms: int | None = None,
    claims: tuple[str, ...] = (),
    group: str = "",
    priority: int = 0,
    **fields: Any,
) -> Pod:
    """Pending, unless ``node`` or ``bound_ms`` is given: then it runs, since its creation.

    ``ended_ms`` makes it succeed. ``unschedulable`` is the scheduler's message. More goes to ``meta``.
    """
    own = meta(name, **fields)
    if node and bound_ms is None:
        bound_ms = own.created_ms
    if bound_ms is not None and not node:
        node = "node-1"
    running = PodPhase.PENDING if bound_ms is None else PodPhase.RUNNING
    waiting = PodWaitReason("Unschedulable", unschedulable, own.created_ms) if unschedulable else None
    if gates:
        waiting = PodWaitReason("SchedulingGated", "", own.created_ms)
    return Pod(
        own,
        phase or (running if ended_ms is None else PodPhase.SUCCEEDED),
        asks or template(gpus),
        node,
        bound_ms,
        ended_ms,
        ready_ms,
        waiting,
        stuck,
        gates,
        priority,
        claims,
        group,
    )


def node(
    name: str,
    gpus: int = 8,
    *,
    allocatable: Resources | None = None,
    capacity: Resources | None = None,
    is_ready: bool = True,
    is_cordoned: bool = False,
    expected: Mapping[str, int] | None = None,
    labels: Mapping[str, str] | None = None,
    created_ms: int = T0,
    **fields: Any,
) -> Node:
    """``gpus`` whole GPUs, 64 cores and 110 pods, unless ``allocatable`` says what it has."""
    has = {GPU: gpus, "cpu": 64_000, "pods": 110} if allocatable is None else allocatable
    return Node(
        meta(name, "", created_ms=created_ms, labels={"kubernetes.io/hostname": name, **(labels or {})}),
        has if capacity is None else capacity,
        has,
        is_ready,
        created_ms,
        is_cordoned,
        expected={GPU: gpus} if expected is None and allocatable is None else expected or {},
        **fields,
    )


def pod_set(name: str = "main", count: int = 1, gpus: int = 0, **fields: Any) -> PodSet:
    """``count`` pods of ``gpus`` GPUs; more goes to ``template``."""
    return PodSet(name, count, template(gpus, **fields))


def job(
    name: str,
    kind: str = "Job",
    api_version: str = "batch/v1",
    *,
    pod_sets: tuple[PodSet, ...] = (),
    gang_size: int | None = None,
    gangs: int = 1,
    is_suspended: bool = False,
    **fields: Any,
) -> JobObject:
    """More goes to ``meta``."""
    return JobObject(
        meta(name, **fields),
        api_version,
        kind,
        job_kind(api_version, kind),
        pod_sets,
        gang_size,
        gangs,
        is_suspended,
    )


def condition(
    status: bool | None, reason: str = "", message: str = "", since_ms: int = T0
) -> StatusCondition:
    return StatusCondition(status, reason, message, since_ms)


def workload(
    name: str,
    *pod_sets: PodSet,
    queue: str = "",
    conditions: Mapping[str, StatusCondition] | None = None,
    cluster_queue: str = "",
    flavor: str = "",
    admitted_ms: int | None = None,
    rest: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Workload:
    """Pending, unless ``admitted_ms`` is given: then it has all it wants, of ``flavor`` of ``cluster_queue``.

    ``rest`` are more fields of Workload; more keywords go to ``meta``.
    """
    own = {"conditions": conditions or {}, **(rest or {})}
    if admitted_ms is not None:
        admitted = {type_: condition(True, type_, "", admitted_ms) for type_ in ("QuotaReserved", "Admitted")}
        own["conditions"] = {**admitted, **own["conditions"]}
        own.setdefault("assignments", tuple(assignment(each, flavor) for each in pod_sets))
    return Workload(meta(name, **fields), pod_sets, queue, cluster_queue=cluster_queue, **own)


def assignment(pods: PodSet, flavor: str = "", count: int | None = None) -> PodSetAssignment:
    """All that ``count`` pods of a pod set ask for, of one flavor."""
    given = pods.count if count is None else count
    asked = pods.template.requests
    return PodSetAssignment(
        pods.name,
        dict.fromkeys(asked, flavor) if flavor else {},
        {resource: amount * given for resource, amount in asked.items()},
        given,
    )


def cluster_queue(
    name: str,
    quotas: Mapping[tuple[str, str], FlavorQuota] | None = None,
    *,
    cohort: str = "",
    is_active: bool = True,
    reason: str = "",
    **fields: Any,
) -> ClusterQueue:
    """``quotas`` by flavor and resource; more fields of ClusterQueue by keyword."""
    own = {FlavorResource(*key): quota for key, quota in (quotas or {}).items()}
    active = {"Active": condition(is_active, reason or ("Ready" if is_active else "Stopped"))}
    return ClusterQueue(
        meta(name, ""), cohort, quotas=own, **{"conditions": active, "namespace_selector": (), **fields}
    )


def local_queue(name: str, cluster_queue: str, namespace: str = "team-a", **fields: Any) -> LocalQueue:
    return LocalQueue(meta(name, namespace), cluster_queue, **fields)


def flavor(name: str, **fields: Any) -> ResourceFlavor:
    return ResourceFlavor(meta(name, ""), **fields)


def pod_group(
    name: str,
    min_member: int = 1,
    group_kind: GroupKind = GroupKind.VOLCANO,
    *,
    rest: Mapping[str, Any] | None = None,
    **fields: Any,
) -> PodGroup:
    """``rest`` are more fields of PodGroup; more keywords go to ``meta``."""
    return PodGroup(meta(name, **fields), group_kind, min_member, **(rest or {}))


def composite(name: str, min_groups: int | None = None, parent: str = "", **fields: Any) -> CompositePodGroup:
    """``min_groups`` None: the groups in it are independent. More goes to the object."""
    return CompositePodGroup(meta(name), min_groups, parent, **fields)


def native_group(name: str, min_member: int = 1, parent: str = "", **rest: Any) -> PodGroup:
    """Of Kubernetes itself, in a tree where it has a parent."""
    return pod_group(name, min_member, GroupKind.NATIVE, rest={"parent": parent, **rest})


def namespace(name: str, labels: Mapping[str, str] | None = None, **fields: Any) -> Namespace:
    return Namespace(meta(name, "", labels=labels, **fields))


_FIELDS: Mapping[type, str] = {
    Pod: "pods",
    Node: "nodes",
    Namespace: "namespaces",
    JobObject: "jobs",
    ClusterQueue: "cluster_queues",
    LocalQueue: "local_queues",
    ResourceFlavor: "flavors",
    Workload: "workloads",
    PodGroup: "pod_groups",
    CompositePodGroup: "composite_groups",
    VolcanoQueue: "volcano_queues",
}


def state(*objects: object, at_ms: int = T0 + 60 * MINUTE, **collections: Iterable[Any]) -> ClusterState:
    """A state of these objects, whatever their kinds; kinds it does not know by keyword (``claims=[…]``)."""
    found: dict[str, dict[str, Any]] = {}
    for each in objects:
        found.setdefault(_FIELDS[type(each)], {})[each.meta.uid] = each  # type: ignore[attr-defined]
    for name, items in collections.items():
        found.setdefault(name, {}).update({each.meta.uid: each for each in items})
    return ClusterState(at_ms, **found)  # type: ignore[arg-type]
