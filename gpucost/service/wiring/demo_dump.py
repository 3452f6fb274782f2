"""The simulated cluster's state as the dump that ``gpucost state dump`` would have written of it.

With it commands and pages that look at a cluster's objects can be tried where there is no cluster. Fields are
written that the parsers of ``gpucost.kube.parse`` read and the simulator fills; the objects themselves say
what labels of a real cluster say, such as how many slices a GPU has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import yaml

from gpucost.advisor.kueue.job_workloads import FRAMEWORKS
from gpucost.cluster.objects.jobs import JobObject
from gpucost.cluster.objects.kueue import (
    ClusterQueue,
    FlavorQuota,
    FlavorResource,
    FlavorUsage,
    LocalQueue,
    ResourceFlavor,
    Topology,
    Workload,
)
from gpucost.cluster.objects.metadata import Conditions, ObjectMeta, Resources
from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.objects.pods import Pod, PodPhase, PodSet
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.objects.volcano import PodGroup, VolcanoQueue
from gpucost.domain.gpu import parse_product
from gpucost.domain.jobs import JobKind, OwnerReference
from gpucost.domain.time import iso
from gpucost.kube.dumps.dump import DumpOrigin, closing, line_of, opening
from gpucost.kube.manifests.writer import document_of
from gpucost.kube.parse.collections import collections
from gpucost.simulator.inventory import GPU

Json = dict[str, Any]
_KUEUE, _VOLCANO = "kueue.x-k8s.io/v1beta2", "scheduling.volcano.sh/v1beta1"
_KUEUE_VERSION, _VOLCANO_VERSION = "v0.19.2", "v1.15.1"
_CAPACITY_TYPES = ("on-demand", "spot", "reserved")
"""Those that labels of clouds tell; hardware of one's own has no such label."""
_NOT_SERVED = ("podgroups.scheduling.x-k8s.io", "computedomains.resource.nvidia.com")


def dump_text(state: ClusterState) -> str:
    """The whole file."""
    versions = {each.name: "" if each.name in _NOT_SERVED else each.versions[0] for each in collections()}
    lines = ",\n".join(line_of(each) for each in _documents(state))
    return opening() + lines + closing(DumpOrigin(state.at_ms, versions))


def _documents(state: ClusterState) -> Iterator[Json]:
    yield from map(_node, state.nodes.values())
    yield from (_object("v1", "Namespace", each.meta) for each in state.namespaces.values())
    yield from map(_pod, state.pods.values())
    yield from map(_job, state.jobs.values())
    yield from map(_cluster_queue, state.cluster_queues.values())
    yield from map(_local_queue, state.local_queues.values())
    yield from map(_flavor, state.flavors.values())
    yield from map(_topology, state.topologies.values())
    yield from map(_workload, state.workloads.values())
    yield from map(_pod_group, state.pod_groups.values())
    yield from map(_volcano_queue, state.volcano_queues.values())
    yield from _schedulers(state.at_ms)


def _object(api_version: str, kind: str, meta: ObjectMeta, **fields: Any) -> Json:
    """Without fields that are empty."""
    found = {"apiVersion": api_version, "kind": kind, "metadata": _metadata(meta)}
    return found | {key: value for key, value in fields.items() if value}


def _metadata(meta: ObjectMeta) -> Json:
    found: Json = {"uid": meta.uid, "name": meta.name, "creationTimestamp": iso(meta.created_ms)}
    if meta.namespace:
        found["namespace"] = meta.namespace
    if meta.labels:
        found["labels"] = dict(meta.labels)
    if meta.annotations:
        found["annotations"] = dict(meta.annotations)
    if meta.owner is not None:
        found["ownerReferences"] = [_owner(meta.owner)]
    return found


def _owner(owner: OwnerReference) -> Json:
    return {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
    }


def _conditions(found: Conditions) -> list[Json]:
    return [
        {
            "type": type_,
            "status": "Unknown" if each.status is None else str(each.status),
            "reason": each.reason,
            "message": each.message,
            "lastTransitionTime": None if each.since_ms is None else iso(each.since_ms),
        }
        for type_, each in found.items()
    ]


def _condition(type_: str, is_true: bool, since_ms: int, reason: str = "", message: str = "") -> Json:
    return {
        "type": type_,
        "status": str(is_true),
        "reason": reason,
        "message": message,
        "lastTransitionTime": iso(since_ms),
    }


def _amounts(resources: Resources) -> dict[str, str]:
    return {name: f"{amount}m" if name == "cpu" else str(amount) for name, amount in resources.items()}


# Kubernetes


def _node(node: Node) -> Json:
    labels = dict(node.meta.labels) | {"node.kubernetes.io/pool": node.pool} | _unit_labels(node)
    if node.capacity_type in _CAPACITY_TYPES:
        labels["karpenter.sh/capacity-type"] = node.capacity_type
    elif node.capacity_type:
        labels["node.kubernetes.io/lifecycle"] = node.capacity_type  # owned: no cloud's label says so
    ready = [_condition("Ready", node.is_ready, node.ready_since_ms or node.meta.created_ms, "KubeletReady")]
    return _object(
        "v1",
        "Node",
        replace(node.meta, labels=labels),
        spec={
            "unschedulable": node.is_cordoned,
            "taints": [{"key": each.key, "value": each.value, "effect": each.effect} for each in node.taints],
        },
        status={
            "capacity": _amounts(node.capacity),
            "allocatable": _amounts(node.allocatable),
            "conditions": ready,
        },
    )


def _unit_labels(node: Node) -> dict[str, str]:
    """As GPU feature discovery writes them: of slices of one size their number, of several kinds one each, of
    shared GPUs how often."""
    if parse_product(node.product).profile:
        return {f"{GPU}.count": str(node.expected[GPU])}
    labels = {f"{name}.count": str(units) for name, units in node.expected.items() if name != GPU}
    return labels | {f"{name}.replicas": str(times) for name, times in node.replicas.items()}


def _pod(pod: Pod) -> Json:
    status: Json = {"phase": pod.phase.value, "conditions": []}
    if pod.bound_ms is not None:
        status["conditions"].append(_condition("PodScheduled", True, pod.bound_ms))
        status["startTime"] = iso(pod.bound_ms)
    elif pod.waiting is not None:
        since_ms = pod.meta.created_ms if pod.waiting.since_ms is None else pod.waiting.since_ms
        status["conditions"].append(
            _condition("PodScheduled", False, since_ms, pod.waiting.reason, pod.waiting.message)
        )
    if pod.ready_ms is not None:
        status["conditions"].append(_condition("Ready", True, pod.ready_ms))
    if pod.phase is PodPhase.RUNNING and pod.bound_ms is not None:
        running = {"running": {"startedAt": iso(pod.bound_ms)}}
        status["containerStatuses"] = [{"name": "main", "ready": True, "state": running}]
    spec = _pod_spec(PodSet("main", 1, pod.template))
    if pod.node:
        spec["nodeName"] = pod.node
    return _object("v1", "Pod", pod.meta, spec=spec, status=status)


def _pod_spec(pods: PodSet) -> Json:
    template = pods.template
    found: Json = {"containers": [{"name": "main", "resources": {"requests": _amounts(template.requests)}}]}
    if template.node_selector:
        found["nodeSelector"] = dict(template.node_selector)
    if template.tolerations:
        found["tolerations"] = [
            {"key": each.key, "operator": "Exists" if each.exists else "Equal", "effect": each.effect}
            for each in template.tolerations
        ]
    return found


def _job(job: JobObject) -> Json:
    found = _object(job.api_version, job.kind, job.meta)
    kind, status = job.job_kind, _STATUSES.get(job.job_kind)
    if kind is JobKind.REPLICA_SET:  # the Deployment above it has the template
        found["spec"] = {"replicas": 0}
    elif kind is JobKind.TRAIN_JOB:
        found["spec"] = {"trainer": {"numNodes": job.pods_wanted}}
    elif job.pod_sets:
        found["spec"] = document_of(_with_roles(job))["spec"]
    if status is not None and job.active:
        found["status"] = status(job.active)
    return found


def _with_roles(job: JobObject) -> JobObject:
    """Pods that the simulator has as one set, in the roles that their kind demands."""
    (pods,) = job.pod_sets
    if job.job_kind in (JobKind.RAY_CLUSTER, JobKind.RAY_SERVICE):
        workers = replace(pods, name="workers", count=pods.count - 1)
        return replace(job, pod_sets=(replace(pods, count=1), workers))
    if job.job_kind is JobKind.LEADER_WORKER_SET and job.gang_size is None:
        return replace(job, gangs=pods.count)
    if job.job_kind in (JobKind.PYTORCH_JOB, JobKind.MPI_JOB):
        return replace(job, pod_sets=(replace(pods, name="worker"),))
    return job


def _of_replicas(active: int) -> Json:
    return {"replicas": active, "readyReplicas": active}


_STATUSES: Mapping[JobKind, Callable[[int], Json]] = {
    JobKind.JOB: lambda active: {"active": active, "ready": active},
    JobKind.DEPLOYMENT: _of_replicas,
    JobKind.STATEFUL_SET: _of_replicas,
    JobKind.LEADER_WORKER_SET: _of_replicas,
    JobKind.VOLCANO_JOB: lambda active: {"running": active, "state": {"phase": "Running"}},
    JobKind.PYTORCH_JOB: lambda active: {"replicaStatuses": {"Worker": {"active": active}}},
    JobKind.MPI_JOB: lambda active: {"replicaStatuses": {"Worker": {"active": active}}},
    JobKind.NOTEBOOK: lambda active: {"readyReplicas": active},
}


# Kueue


def _cluster_queue(queue: ClusterQueue) -> Json:
    groups = [
        {
            "coveredResources": list(group.resources),
            "flavors": [
                {
                    "name": flavor,
                    "resources": [
                        _quota(resource, queue.quotas[FlavorResource(flavor, resource)])
                        for resource in group.resources
                    ],
                }
                for flavor in group.flavors
            ],
        }
        for group in queue.groups
    ]
    return _object(
        _KUEUE,
        "ClusterQueue",
        queue.meta,
        spec={"cohortName": queue.cohort, "namespaceSelector": {}, "resourceGroups": groups},
        status={
            "conditions": _conditions(queue.conditions),
            "flavorsReservation": _uses(queue.reserved),
            "flavorsUsage": _uses(queue.used),
        },
    )


def _quota(resource: str, quota: FlavorQuota) -> Json:
    limits = {"borrowingLimit": quota.borrowing_limit, "lendingLimit": quota.lending_limit}
    given = {key: str(limit) for key, limit in limits.items() if limit is not None}
    return {"name": resource, "nominalQuota": str(quota.nominal), **given}


def _uses(found: Mapping[FlavorResource, FlavorUsage]) -> list[Json]:
    flavors: dict[str, list[Json]] = {}
    for key, use in found.items():
        entry = {"name": key.resource, "total": str(use.total), "borrowed": str(use.borrowed)}
        flavors.setdefault(key.flavor, []).append(entry)
    return [{"name": name, "resources": resources} for name, resources in flavors.items()]


def _local_queue(queue: LocalQueue) -> Json:
    spec, status = {"clusterQueue": queue.cluster_queue}, {"conditions": _conditions(queue.conditions)}
    return _object(_KUEUE, "LocalQueue", queue.meta, spec=spec, status=status)


def _flavor(flavor: ResourceFlavor) -> Json:
    spec = {"nodeLabels": dict(flavor.node_labels), "topologyName": flavor.topology}
    return _object(_KUEUE, "ResourceFlavor", flavor.meta, spec=spec)


def _topology(topology: Topology) -> Json:
    levels = [{"nodeLabel": each} for each in topology.levels]
    return _object(_KUEUE, "Topology", topology.meta, spec={"levels": levels})


def _workload(workload: Workload) -> Json:
    pod_sets = [
        {"name": each.name, "count": each.count, "template": {"spec": _pod_spec(each)}}
        for each in workload.pod_sets
    ]
    status: Json = {"conditions": _conditions(workload.conditions)}
    if workload.cluster_queue:
        assignments = [
            {
                "name": each.name,
                "flavors": dict(each.flavors),
                "resourceUsage": _amounts(each.usage),
                "count": each.count,
            }
            for each in workload.assignments
        ]
        status["admission"] = {
            "clusterQueue": workload.cluster_queue,
            "podSetAssignments": assignments,
        }
    if workload.evictions:
        counts = [
            {"reason": each.reason, "underlyingCause": each.cause, "count": each.times}
            for each in workload.evictions
        ]
        status["schedulingStats"] = {"evictions": counts}
    spec = {"queueName": workload.queue, "priority": workload.priority, "podSets": pod_sets}
    return _object(_KUEUE, "Workload", workload.meta, spec=spec, status=status)


# Volcano


def _pod_group(group: PodGroup) -> Json:
    spec = {"minMember": group.min_member, "queue": group.queue}
    status = {"phase": group.phase, "running": group.running}
    return _object(_VOLCANO, "PodGroup", group.meta, spec=spec, status=status)


def _volcano_queue(queue: VolcanoQueue) -> Json:
    spec: Json = {"weight": queue.weight}
    if queue.parent:
        spec["parent"] = queue.parent
    for key, amounts in (("capability", queue.capability), ("deserved", queue.deserved)):
        if amounts:
            spec[key] = _amounts(amounts)
    if queue.guarantee:
        spec["guarantee"] = {"resource": _amounts(queue.guarantee)}
    return _object(_VOLCANO, "Queue", queue.meta, spec=spec, status={"state": queue.state})


def _schedulers(at_ms: int) -> Iterable[Json]:
    """What says the versions of the schedulers, and how Kueue is configured."""
    config = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        # The simulated quotas are of GPUs only.
        "resources": {"excludeResourcePrefixes": ["cpu", "memory"]},
        "integrations": {"frameworks": sorted(set(FRAMEWORKS.values()))},
    }
    own = {"namespace": "kueue-system", "creationTimestamp": iso(at_ms)}
    yield {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "kueue-manager-config", "uid": "kueue-manager-config", **own},
        "data": {"controller_manager_config.yaml": yaml.safe_dump(config)},
    }
    for namespace, name, image in (
        ("kueue-system", "kueue-controller-manager", f"registry.k8s.io/kueue/kueue:{_KUEUE_VERSION}"),
        ("volcano-system", "volcano-scheduler", f"docker.io/volcanosh/vc-scheduler:{_VOLCANO_VERSION}"),
    ):
        template = {"spec": {"containers": [{"name": "manager", "image": image}]}}
        yield {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "uid": name, "namespace": namespace, "creationTimestamp": iso(at_ms)},
            "spec": {"replicas": 1, "template": template},
        }
