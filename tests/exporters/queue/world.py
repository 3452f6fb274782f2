"""Objects of a small cluster of which every metric of the queue collector can be made."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from gpucost.domain.time import iso
from tests.cluster.builders import T0
from tests.support.cluster import shapes
from tests.support.objects import condition, kueue, metadata, volcano

GPU = "nvidia.com/gpu"
QUOTAS = {"h100": {GPU: ("8", "8", "4")}}
_LABELS = {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.count": "8",
}


def node(name: str) -> dict[str, Any]:
    """Eight H100, as its labels say too."""
    return shapes.node(name, T0, {GPU: 8}, _LABELS)


def shared_node(name: str) -> dict[str, Any]:
    """One GPU, handed out four times."""
    labels = {"product": "NVIDIA-L40S-SHARED", "count": "1", "replicas": "4"}
    return shapes.node(name, T0, {GPU: 4}, {f"nvidia.com/gpu.{key}": text for key, text in labels.items()})


def pod(name: str, gpus: int = 8, resource: str = GPU, **more: Any) -> dict[str, Any]:
    """A pod that is not scheduled yet."""
    return shapes.pod("team-a", name, f"{name}-uid", T0, resource, gpus, **more)


def bound(found: dict[str, Any], node: str, at_ms: int) -> dict[str, Any]:
    """The same pod, running on ``node`` since ``at_ms``."""
    made = {**found, "spec": {**found["spec"], "nodeName": node}, "status": {"phase": "Running"}}
    shapes.set_condition(made, "PodScheduled", True, "", at_ms)
    return made


def fraction() -> list[dict[str, Any]]:
    """A pod with half a GPU of gpu-1, and the pod of KAI Scheduler that reserves it."""
    group = {"runai-gpu-group": "g"}
    whole = shapes.pod(
        "kai-resource-reservation",
        "gpu-reservation-g",
        "gpu-reservation-g-uid",
        T0,
        GPU,
        1,
        labels={"app": "kai-resource-reservation", **group},
    )
    half = pod("half", 0, labels=group, annotations={"gpu-fraction": "0.5"})
    half["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
    return [bound(each, "gpu-1", T0) for each in (whole, half)]


def preempted(found: dict[str, Any], at_ms: int) -> dict[str, Any]:
    """The same pod, preempted by kube-scheduler for one of higher priority."""
    made = deepcopy(found)
    shapes.set_condition(made, "DisruptionTarget", True, "PreemptionByScheduler", at_ms)
    return made


def unwell(found: dict[str, Any], device: str) -> dict[str, Any]:
    """The same pod, one of whose GPUs its kubelet calls unhealthy."""
    units = [{"resourceID": device, "health": "Unhealthy"}]
    stated = {**shapes.running(iso(T0))[0], "allocatedResourcesStatus": [{"name": GPU, "resources": units}]}
    return {**found, "status": {**found["status"], "containerStatuses": [stated]}}


def ended(found: dict[str, Any], began: str, finished: str) -> dict[str, Any]:
    """The same pod, succeeded."""
    containers = shapes.terminated(0, "Completed", began, finished)
    return {**found, "status": {**found["status"], "phase": "Succeeded", "containerStatuses": containers}}


def waiting_workload(name: str, resource: str = GPU) -> dict[str, Any]:
    """One that its queue gives nothing, evicted and requeued before."""
    return kueue.workload(
        name,
        "team-a",
        queue="lq",
        pod_sets=[kueue.pod_set(requests={resource: "8"})],
        priority_class="high",
        labels={"kueue.x-k8s.io/multikueue-origin": "hub"},
        conditions=[condition("QuotaReserved", False, "Pending")],
        requeue=(1, T0),
        evictions=[("Preempted", "InCohortReclamation", 2)],
    )


def queues() -> list[dict[str, Any]]:
    """Kueue's queues and cohorts, and workloads in every state that has a series of its own."""
    use = {"h100": {GPU: ("8", "0")}}
    admitted = [condition(type_) for type_ in ("QuotaReserved", "Admitted")]
    given = {"flavors": {GPU: "h100"}, "usage": {GPU: "8"}}
    of_local = {"h100": {GPU: "8"}}
    return [
        kueue.resource_flavor("h100"),
        kueue.cohort("all", parent="root", quotas=QUOTAS),
        kueue.cluster_queue(
            "cq",
            cohort="all",
            quotas=QUOTAS,
            reserved=use,
            used=use,
            admission_mode="UsageBasedAdmissionFairSharing",
        ),
        kueue.local_queue("lq", "cq", "team-a", reserved=of_local, used=of_local, consumed={GPU: "7500m"}),
        waiting_workload("waits"),
        kueue.workload(
            "runs",
            "team-a",
            queue="lq",
            cluster_queue="cq",
            assignments=[kueue.assignment(**given)],
            conditions=admitted,
            on_cluster="west",
        ),
    ]


def finished_workload(finished_ms: int) -> dict[str, Any]:
    ends = [condition("Finished", True, "JobFinished", since=finished_ms)]
    return kueue.workload("done", "team-a", queue="lq", conditions=ends)


GANG: Mapping[str, Any] = {"annotations": {"scheduling.k8s.io/group-name": "gang"}, "scheduler": "volcano"}
"""Of the pods of a gang."""


def volcano_gang(at_ms: int) -> list[dict[str, Any]]:
    """A queue, a gang of two of which one runs since ``at_ms`` and the other waits, and one that waits."""
    amounts: dict[str, str | int] = {GPU: "8"}
    first, second = (pod(f"gang-{number}", **GANG) for number in range(2))
    return [
        volcano.queue(
            "vq", weight=1, capability=amounts, deserved=amounts, guarantee=amounts, allocated=amounts
        ),
        volcano.pod_group("gang", "team-a", min_member=2, queue="vq", phase="Running"),
        volcano.pod_group("next", "team-a", min_member=1, min_resources=amounts, queue="vq", phase="Pending"),
        bound(first, "gpu-1", at_ms),
        second,
    ]


def nvlink_tray(node: str) -> list[dict[str, Any]]:
    """A ComputeDomain, the channel of a node as its driver publishes it, and a pod and a workload that need
    one."""
    domain = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": metadata("imex", "team-a", uid="imex-uid", created=T0),
        "spec": {"channel": {"resourceClaimTemplate": {"name": "imex-channel"}}},
    }
    channel = {"name": "channel-0", "attributes": {"type": {"string": "channel"}, "id": {"int": 0}}}
    published = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": metadata(f"{node}-imex", uid=f"{node}-imex-uid", created=T0),
        "spec": {
            "driver": "compute-domain.nvidia.com",
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [channel],
        },
    }
    needs = {"resourceClaims": [{"name": "channel", "resourceClaimTemplateName": "imex-channel"}]}
    waits = pod("needs-channel")
    waits["spec"] |= needs
    queued = kueue.workload(
        "needs-channel",
        "team-a",
        queue="lq",
        pod_sets=[kueue.pod_set(requests={GPU: "8"}, pod=needs)],
        conditions=[condition("QuotaReserved", False, "Pending")],
    )
    return [domain, published, waits, queued]
