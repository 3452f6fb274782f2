"""Kueue's objects as v1beta2; ``as_v1beta1`` of ``kueue_v1beta1`` writes the same facts in the old version.

Quotas, reservations and usage are written ``{flavor: {resource: value}}``; a quota is one quantity or
(nominal, borrowing limit, lending limit) of which the limits may be None or left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tests.support.objects import CREATED, condition, given, instant, metadata

VERSION = "kueue.x-k8s.io/v1beta2"
Quantity: TypeAlias = str | int
Quotas: TypeAlias = Mapping[str, Mapping[str, Any]]
Uses: TypeAlias = Mapping[str, Mapping[str, Any]]
ACTIVE = condition("Active", reason="Ready", message="Can admit new workloads")


def cluster_queue(
    name: str,
    *,
    cohort: str = "",
    quotas: Quotas | None = None,
    groups: Sequence[Quotas] = (),
    strategy: str = "BestEffortFIFO",
    preemption: Mapping[str, Any] | None = None,
    fungibility: Mapping[str, str] | None = None,
    namespace_selector: Mapping[str, Any] | None = {},
    stop_policy: str = "None",
    checks: Mapping[str, Sequence[str]] | None = None,
    weight: Quantity | None = None,
    admission_mode: str = "",
    conditions: Sequence[Mapping[str, Any]] = (ACTIVE,),
    reserved: Uses | None = None,
    used: Uses | None = None,
    pending: int | None = 0,
    reserving: int | None = 0,
    admitted: int | None = 0,
    weighted_share: int | None = None,
    **meta: Any,
) -> dict[str, Any]:
    """``quotas`` is one resource group, ``groups`` several. Reserved and used are a total or (total,
    borrowed). ``checks`` are flavors by AdmissionCheck, none for all."""
    strategies = [given(name=check, onFlavors=list(flavors)) for check, flavors in (checks or {}).items()]
    spec = given(
        cohortName=cohort,
        queueingStrategy=strategy,
        resourceGroups=_resource_groups(quotas, groups),
        preemption=preemption and dict(preemption),
        flavorFungibility=fungibility and dict(fungibility),
        stopPolicy=stop_policy,
        admissionChecksStrategy=strategies and {"admissionChecks": strategies},
        fairSharing=None if weight is None else {"weight": weight},
        admissionScope=admission_mode and {"admissionMode": admission_mode},
    )
    if namespace_selector is not None:
        spec["namespaceSelector"] = dict(namespace_selector)
    status = _counters(conditions, pending, reserving, admitted) | given(
        flavorsReservation=_uses(reserved, with_borrowed=True),
        flavorsUsage=_uses(used, with_borrowed=True),
        fairSharing=None if weighted_share is None else {"weightedShare": weighted_share},
    )
    return _object("ClusterQueue", metadata(name, **meta), spec, status)


def local_queue(
    name: str,
    cluster_queue: str,
    namespace: str = "default",
    *,
    stop_policy: str = "None",
    weight: Quantity | None = None,
    conditions: Sequence[Mapping[str, Any]] = (ACTIVE,),
    reserved: Uses | None = None,
    used: Uses | None = None,
    pending: int | None = 0,
    reserving: int | None = 0,
    admitted: int | None = 0,
    consumed: Mapping[str, Quantity] | None = None,
    **meta: Any,
) -> dict[str, Any]:
    """``consumed`` is admission fair sharing's decayed use by resource."""
    spec = given(
        clusterQueue=cluster_queue,
        stopPolicy=stop_policy,
        fairSharing=None if weight is None else {"weight": weight},
    )
    sharing = None
    if consumed is not None:
        decayed = {"consumedResources": dict(consumed), "lastUpdate": instant(CREATED)}
        sharing = {"weightedShare": 0, "admissionFairSharingStatus": decayed}
    status = _counters(conditions, pending, reserving, admitted) | given(
        flavorsReservation=_uses(reserved, with_borrowed=False),
        flavorsUsage=_uses(used, with_borrowed=False),
        fairSharing=sharing,
    )
    return _object("LocalQueue", metadata(name, namespace, **meta), spec, status)


def cohort(
    name: str,
    *,
    parent: str = "",
    quotas: Quotas | None = None,
    groups: Sequence[Quotas] = (),
    weight: Quantity | None = None,
    weighted_share: int | None = None,
    **meta: Any,
) -> dict[str, Any]:
    spec = given(
        parentName=parent,
        resourceGroups=_resource_groups(quotas, groups),
        fairSharing=None if weight is None else {"weight": weight},
    )
    status = given(fairSharing=None if weighted_share is None else {"weightedShare": weighted_share})
    return _object("Cohort", metadata(name, **meta), spec, status)


def resource_flavor(
    name: str,
    *,
    node_labels: Mapping[str, str] | None = None,
    taints: Sequence[tuple[str, str, str]] = (),
    tolerations: Sequence[Mapping[str, str]] = (),
    topology: str = "",
    **meta: Any,
) -> dict[str, Any]:
    """``taints`` are (key, value, effect)."""
    spec = given(
        nodeLabels=node_labels and dict(node_labels),
        nodeTaints=[given(key=key, value=value, effect=effect) for key, value, effect in taints],
        tolerations=[dict(each) for each in tolerations],
        topologyName=topology,
    )
    return _object("ResourceFlavor", metadata(name, **meta), spec, {})


def topology(name: str, levels: Sequence[str], **meta: Any) -> dict[str, Any]:
    """``levels`` are node labels, the widest domain first."""
    spec = {"levels": [{"nodeLabel": level} for level in levels]}
    return _object("Topology", metadata(name, **meta), spec, {})


def admission_check(
    name: str,
    controller: str = "kueue.x-k8s.io/provisioning-request",
    *,
    conditions: Sequence[Mapping[str, Any]] = (ACTIVE,),
    **meta: Any,
) -> dict[str, Any]:
    status = given(conditions=[dict(each) for each in conditions])
    return _object("AdmissionCheck", metadata(name, **meta), {"controllerName": controller}, status)


def workload_priority_class(name: str, value: int, **meta: Any) -> dict[str, Any]:
    found = _object("WorkloadPriorityClass", metadata(name, **meta), {}, {})
    return found | {"value": value, "description": "made by a test"}


def workload(
    name: str,
    namespace: str = "default",
    *,
    queue: str = "",
    pod_sets: Sequence[Mapping[str, Any]] | None = None,
    priority: int | None = 0,
    priority_class: str = "",
    of_kueue: bool = True,
    active: bool = True,
    max_execution_s: int | None = None,
    cluster_queue: str = "",
    assignments: Sequence[Mapping[str, Any]] = (),
    conditions: Sequence[Mapping[str, Any]] = (),
    requeue: tuple[int, int | str] | None = None,
    reclaimable: Mapping[str, int] | None = None,
    checks: Sequence[Mapping[str, Any]] = (),
    asked: Mapping[str, Mapping[str, Quantity]] | None = None,
    evictions: Sequence[tuple[str, str, int]] = (),
    past_execution_s: int | None = None,
    unhealthy_nodes: Sequence[str] = (),
    on_cluster: str = "",
    nominated: Sequence[str] = (),
    **meta: Any,
) -> dict[str, Any]:
    """One pod set of one GPU unless ``pod_sets`` says otherwise. With ``cluster_queue`` it has an admission;
    conditions are only those given. ``requeue`` is (count, at), ``evictions`` (reason, cause, times)."""
    spec = given(
        podSets=[dict(each) for each in (pod_sets or [pod_set()])],
        queueName=queue,
        priority=priority,
        priorityClassRef=priority_class and _class_reference(priority_class, of_kueue),
        active=active,
        maximumExecutionTimeSeconds=max_execution_s,
    )
    admission = {"clusterQueue": cluster_queue, "podSetAssignments": [dict(each) for each in assignments]}
    times = [dict(zip(("reason", "underlyingCause", "count"), each, strict=True)) for each in evictions]
    status = given(
        admission=cluster_queue and admission,
        conditions=[dict(each) for each in conditions],
        requeueState=requeue and {"count": requeue[0], "requeueAt": instant(requeue[1])},
        reclaimablePods=[{"name": key, "count": count} for key, count in (reclaimable or {}).items()],
        admissionChecks=[dict(each) for each in checks],
        resourceRequests=[{"name": key, "resources": dict(of)} for key, of in (asked or {}).items()],
        schedulingStats=times and {"evictions": times},
        accumulatedPastExecutionTimeSeconds=past_execution_s,
        unhealthyNodes=[{"name": node} for node in unhealthy_nodes],
        clusterName=on_cluster,
        nominatedClusterNames=list(nominated),
    )
    return _object("Workload", metadata(name, namespace, **meta), spec, status)


def pod_set(
    name: str = "main",
    count: int = 1,
    requests: Mapping[str, Quantity] | None = None,
    *,
    min_count: int | None = None,
    topology: Mapping[str, Any] | None = None,
    pod: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """``requests`` of its one container (one GPU unless given); ``pod`` are more fields of the pod's spec.
    ``topology`` is the topologyRequest as the API writes it."""
    wanted = {"nvidia.com/gpu": "1"} if requests is None else dict(requests)
    container = {"name": "main", "image": "train", "resources": {"requests": wanted}}
    return {
        "name": name,
        "count": count,
        "template": {"spec": {"containers": [container], **(pod or {})}},
    } | given(minCount=min_count, topologyRequest=topology and dict(topology))


def assignment(
    name: str = "main",
    flavors: Mapping[str, str] | None = None,
    usage: Mapping[str, Quantity] | None = None,
    count: int | None = 1,
    *,
    topology: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What a pod set was given; ``usage`` is of all its pods. ``topology``: see ``topology_assignment``."""
    return {"name": name} | given(
        flavors=flavors and dict(flavors),
        resourceUsage=usage and dict(usage),
        count=count,
        topologyAssignment=topology and dict(topology),
    )


def topology_assignment(
    levels: Sequence[str], domains: Sequence[tuple[Sequence[str], int]]
) -> dict[str, Any]:
    """v1beta2's compressed form of (values, pods): domains that differ in the last value share a slice."""
    slices: dict[tuple[str, ...], list[tuple[str, int]]] = {}
    for values, pods in domains:
        slices.setdefault(tuple(values[:-1]), []).append((values[-1], pods))
    return {
        "levels": list(levels),
        "slices": [
            {
                "domainCount": len(last),
                "valuesPerLevel": [*({"universal": value} for value in upper), _values([v for v, _ in last])],
                "podCounts": _universal_or_individual([pods for _, pods in last]),
            }
            for upper, last in slices.items()
        ],
    }


def check_state(name: str, state: str, message: str = "", since: int | str = CREATED) -> dict[str, Any]:
    """Where an admission check of a workload stands."""
    return {"name": name, "state": state, "message": message, "lastTransitionTime": instant(since)}


def _object(kind: str, meta: dict[str, Any], spec: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": VERSION, "kind": kind, "metadata": meta} | given(spec=spec, status=status)


def _counters(
    conditions: Sequence[Mapping[str, Any]], pending: int | None, reserving: int | None, admitted: int | None
) -> dict[str, Any]:
    return given(
        conditions=[dict(each) for each in conditions],
        pendingWorkloads=pending,
        reservingWorkloads=reserving,
        admittedWorkloads=admitted,
    )


def _resource_groups(quotas: Quotas | None, groups: Sequence[Quotas]) -> list[dict[str, Any]]:
    return [
        {
            "coveredResources": list(dict.fromkeys(name for each in group.values() for name in each)),
            "flavors": [
                {"name": flavor, "resources": [_quota(name, quota) for name, quota in resources.items()]}
                for flavor, resources in group.items()
            ],
        }
        for group in (([quotas] if quotas else []) + list(groups))
    ]


def _quota(resource: str, quota: Any) -> dict[str, Any]:
    parts = tuple(quota) if isinstance(quota, tuple | list) else (quota,)
    nominal, borrowing, lending = (*parts, None, None)[:3]
    return {"name": resource, "nominalQuota": nominal} | given(borrowingLimit=borrowing, lendingLimit=lending)


def _uses(uses: Uses | None, *, with_borrowed: bool) -> list[dict[str, Any]]:
    return [
        {"name": flavor, "resources": [_use(name, use, with_borrowed) for name, use in resources.items()]}
        for flavor, resources in (uses or {}).items()
    ]


def _use(resource: str, use: Any, with_borrowed: bool) -> dict[str, Any]:
    total, borrowed = use if isinstance(use, tuple | list) else (use, 0)
    return {"name": resource, "total": total} | ({"borrowed": borrowed} if with_borrowed else {})


def _class_reference(name: str, of_kueue: bool) -> dict[str, str]:
    group, kind = (
        ("kueue.x-k8s.io", "WorkloadPriorityClass") if of_kueue else ("scheduling.k8s.io", "PriorityClass")
    )
    return {"group": group, "kind": kind, "name": name}


def _values(values: list[str]) -> dict[str, Any]:
    if len(set(values)) == 1:
        return {"universal": values[0]}
    prefix = _common_prefix(values)
    rest = [value[len(prefix) :] for value in values]
    suffix = _common_prefix([value[::-1] for value in rest])[::-1]
    roots = [value[: len(value) - len(suffix)] for value in rest]
    return {"individual": {"roots": roots} | given(prefix=prefix, suffix=suffix)}


def _common_prefix(values: list[str]) -> str:
    first, last = min(values), max(values)
    differ = (index for index, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(differ, min(len(first), len(last)))]


def _universal_or_individual(counts: list[int]) -> dict[str, Any]:
    return {"universal": counts[0]} if len(set(counts)) == 1 else {"individual": counts}
