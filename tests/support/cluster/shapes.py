"""What controllers and people write, as the API serves it: nodes, pods, and jobs of some kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tests.support.objects import condition, given, metadata

Json: TypeAlias = dict[str, Any]
OwnerReference: TypeAlias = tuple[str, str, str, str]
"""apiVersion, kind, name, uid."""
IMAGE = "train:1"


def second(at_ms: int) -> int:
    """The API writes times in whole seconds."""
    return at_ms // 1000 * 1000


def set_condition(found: Json, type_: str, status: bool, reason: str, now_ms: int, message: str = "") -> None:
    """Its time changes only with its status, as everywhere in Kubernetes (meta.SetStatusCondition)."""
    conditions = found.setdefault("status", {}).setdefault("conditions", [])
    made = condition(type_, status, reason, message, second(now_ms))
    for index, known in enumerate(conditions):
        if known["type"] == type_:
            if known["status"] == made["status"]:
                made["lastTransitionTime"] = known["lastTransitionTime"]
            conditions[index] = made
            return
    conditions.append(made)


def has_condition(found: Mapping[str, Any], type_: str) -> bool:
    """Whether it is True."""
    conditions = found.get("status", {}).get("conditions", [])
    return any(each["type"] == type_ and each["status"] == "True" for each in conditions)


def node(name: str, now_ms: int, resources: Mapping[str, int], labels: Mapping[str, str]) -> Json:
    """A node that is ready; ``resources`` are its GPUs, as capacity and allocatable."""
    amounts = {
        "cpu": "192",
        "memory": "2Ti",
        "pods": "110",
        **{key: str(count) for key, count in resources.items()},
    }
    found = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata(
            name,
            uid=f"node-{name}",
            created=second(now_ms),
            labels={"kubernetes.io/hostname": name, **labels},
        ),
        "spec": {},
        "status": {"capacity": amounts, "allocatable": dict(amounts)},
    }
    set_condition(found, "Ready", True, "KubeletReady", now_ms)
    return found


def containers(resource: str, units: int) -> list[Json]:
    """One container; for extended resources requests and limits are the same."""
    amounts = {resource: str(units)}
    resources = {"requests": {"cpu": "8", "memory": "64Gi", **amounts}, "limits": amounts}
    return [{"name": "main", "image": IMAGE, "resources": resources}]


def pod(
    namespace: str,
    name: str,
    uid: str,
    now_ms: int,
    resource: str,
    units: int,
    *,
    owner: OwnerReference | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    scheduler: str = "default-scheduler",
    pool: str = "",
) -> Json:
    """A pod that is not scheduled; ``pool`` is where it must go."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata(
            name,
            namespace,
            uid=uid,
            created=second(now_ms),
            owner=owner,
            labels=labels,
            annotations=annotations,
        ),
        "spec": {
            "containers": containers(resource, units),
            "schedulerName": scheduler,
            "restartPolicy": "Never",
            "priority": 0,
            **({"nodeSelector": {"pool": pool}} if pool else {}),
        },
        "status": {"phase": "Pending", "qosClass": "Burstable"},
    }


def template(resource: str, units: int, pool: str = "") -> Json:
    """Of a job's pods."""
    selector = {"nodeSelector": {"pool": pool}} if pool else {}
    return {"spec": {"containers": containers(resource, units), "restartPolicy": "Never", **selector}}


def _owned(
    api_version: str,
    kind: str,
    namespace: str,
    name: str,
    now_ms: int,
    spec: Json,
    owner: OwnerReference | None = None,
    labels: Mapping[str, str] | None = None,
) -> Json:
    made = metadata(
        name, namespace, uid=f"{kind.lower()}-{name}", created=second(now_ms), owner=owner, labels=labels
    )
    return {"apiVersion": api_version, "kind": kind, "metadata": made, "spec": spec, "status": {}}


def reference(found: Mapping[str, Any]) -> OwnerReference:
    """To ``found``, for what it owns."""
    named = found["metadata"]
    return found["apiVersion"], found["kind"], named["name"], named["uid"]


def job(
    namespace: str,
    name: str,
    now_ms: int,
    count: int,
    pods: Json,
    *,
    owner: OwnerReference | None = None,
    labels: Mapping[str, str] | None = None,
) -> Json:
    """A suspended batch Job of ``count`` pods, each of which has a part of its own."""
    spec = {
        "parallelism": count,
        "completions": count,
        "completionMode": "Indexed",
        "suspend": True,
        "template": pods,
    }
    return _owned("batch/v1", "Job", namespace, name, now_ms, spec, owner, labels)


def job_set(
    namespace: str, name: str, now_ms: int, count: int, pods: Json, labels: Mapping[str, str]
) -> Json:
    """A suspended JobSet of one replicated job, ``workers``."""
    inner = {"spec": {"parallelism": count, "completions": count, "template": pods}}
    spec = {"suspend": True, "replicatedJobs": [{"name": "workers", "replicas": 1, "template": inner}]}
    return _owned("jobset.x-k8s.io/v1alpha2", "JobSet", namespace, name, now_ms, spec, labels=labels)


def pytorch_job(
    namespace: str, name: str, now_ms: int, count: int, pods: Json, labels: Mapping[str, str]
) -> Json:
    """A suspended PyTorchJob of workers only."""
    replicas = {"Worker": {"replicas": count, "restartPolicy": "OnFailure", "template": pods}}
    spec = {"runPolicy": {"suspend": True}, "pytorchReplicaSpecs": replicas}
    return _owned("kubeflow.org/v1", "PyTorchJob", namespace, name, now_ms, spec, labels=labels)


def volcano_job(namespace: str, name: str, now_ms: int, count: int, queue: str, pods: Json) -> Json:
    """A gang of ``count``: all of them are needed."""
    spec = {
        "queue": queue,
        "minAvailable": count,
        "schedulerName": "volcano",
        "tasks": [{"name": "worker", "replicas": count, "minAvailable": count, "template": pods}],
    }
    found = _owned("batch.volcano.sh/v1alpha1", "Job", namespace, name, now_ms, spec)
    found["metadata"]["uid"] = f"vcjob-{name}"
    return found


def deployment(namespace: str, name: str, now_ms: int, count: int, pods: Json) -> tuple[Json, Json]:
    """A Deployment and its ReplicaSet."""
    labels = {"app": name}
    spec = {
        "replicas": count,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, **pods},
    }
    outer = _owned("apps/v1", "Deployment", namespace, name, now_ms, spec)
    inner = _owned("apps/v1", "ReplicaSet", namespace, f"{name}-7d9f", now_ms, spec, reference(outer), labels)
    inner["status"] = {"replicas": count}
    return outer, inner


def terminated(exit_code: int, reason: str, started: str, finished: str) -> list[Json]:
    """The status of the one container, once it has ended."""
    state = given(exitCode=exit_code, reason=reason, startedAt=started, finishedAt=finished)
    return [_status(False, {"terminated": state})]


def running(started: str) -> list[Json]:
    """The status of the one container while it runs."""
    return [{**_status(True, {"running": {"startedAt": started}}), "started": True}]


def scaled(found: Json, units: Mapping[str, int], *fields: str) -> Json:
    """A node whose ``fields`` (capacity, allocatable) name other amounts."""
    amounts = {key: str(count) for key, count in units.items()}
    status = {**found["status"], **{field: {**found["status"][field], **amounts} for field in fields}}
    return {**found, "status": status}


def pods_of(found: Sequence[Json], owner_uid: str) -> list[Json]:
    """Those that ``owner_uid`` controls, by name."""
    owned = [
        each
        for each in found
        if owner_uid in [owner["uid"] for owner in each["metadata"].get("ownerReferences", ())]
    ]
    return sorted(owned, key=lambda each: str(each["metadata"]["name"]))


def _status(is_ready: bool, state: Json) -> Json:
    made = {"name": "main", "image": IMAGE, "imageID": f"sha256:{IMAGE}"}
    return {**made, "ready": is_ready, "restartCount": 0, "state": state}
