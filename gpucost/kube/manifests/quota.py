"""The pod sets of the Workloads that Kueue makes of a job, in its order and with its names.

Rules are those of Kueue's integrations (kueue v0.19.2, pkg/controller/jobs/*): mostly the job's own pod sets.
Different are what KubeRay adds to pods (the submitter, the autoscaler) and how Ray's workers are counted;
kinds of which each pod or group has a Workload of its own; and that only a batch/v1 Job may start with fewer
pods than it asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from gpucost.cluster.jobs import JobObject
from gpucost.cluster.pods import PodSet
from gpucost.domain.jobs import JobKind
from gpucost.kube.parse.job_shapes import pod_set_of
from gpucost.kube.parse.reading import Part

_SUBMITTER = {
    "name": "ray-job-submitter",
    "resources": {"requests": {"cpu": "500m", "memory": "200Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
}
_AUTOSCALER = {
    "requests": {"cpu": "500m", "memory": "512Mi"},
    "limits": {"cpu": "500m", "memory": "512Mi"},
}
_EACH_POD = (JobKind.DEPLOYMENT, JobKind.REPLICA_SET, JobKind.DAEMON_SET, JobKind.NOTEBOOK)
_RAY_SPEC = {JobKind.RAY_JOB: "rayClusterSpec", JobKind.RAY_SERVICE: "rayClusterConfig"}
_K8S_JOB = "K8sJobMode"


class Quota(NamedTuple):
    """``workloads`` equal Workloads of these pod sets; none of what Kueue has no integration for."""

    pod_sets: tuple[PodSet, ...] = ()
    workloads: int = 0


def quota(job: JobObject, document: Mapping[str, Any]) -> Quota:
    """``document`` is the job's object, of which flaws have been looked for already."""
    spec = Part(document).part("spec")
    if job.job_kind is JobKind.VOLCANO_JOB:
        return Quota()
    if job.job_kind in (JobKind.JOB, JobKind.CRON_JOB):
        return _one(job.pod_sets)
    if job.job_kind is JobKind.RAY_JOB:
        return _ray_job(spec)
    if job.job_kind in (JobKind.RAY_CLUSTER, JobKind.RAY_SERVICE):
        key = _RAY_SPEC.get(job.job_kind)
        return _one(_ray(spec.part(key) if key else spec))
    whole = tuple(replace(each, min_count=None) for each in job.pod_sets)
    if job.job_kind is JobKind.LEADER_WORKER_SET:
        return _leader_worker_set(spec, job.gangs, whole)
    if job.job_kind in _EACH_POD:
        return Quota(tuple(replace(each, count=1) for each in whole), job.pods_wanted)
    return _one(whole)


def _one(pod_sets: tuple[PodSet, ...]) -> Quota:
    return Quota(pod_sets, 1 if pod_sets else 0)


def _leader_worker_set(spec: Part, groups: int, pod_sets: tuple[PodSet, ...]) -> Quota:
    """A Workload for each group: leader and workers, or one pod set where no leader has its own template."""
    group = spec.part("leaderWorkerTemplate")
    size = max(group.count("size", 1), 1)
    leader, worker = pod_sets[0], pod_sets[-1]
    if not group.part("leaderTemplate"):
        return Quota((replace(worker, name="main", count=size),), groups)
    own = pod_set_of("worker", size - 1, group.part("workerTemplate"))
    return Quota((replace(leader, count=1), own), groups)


def _ray_job(spec: Part) -> Quota:
    """A job on a cluster that is there already is not Kueue's. KubeRay adds the submitter: as a pod of its
    own, or beside the head."""
    if spec.part("clusterSelector"):
        return Quota()
    mode = spec.text("submissionMode", _K8S_JOB)
    beside_head = [_SUBMITTER] if mode == "SidecarMode" else []
    pod_sets = _ray(spec.part("rayClusterSpec"), beside_head)
    if mode != _K8S_JOB or not pod_sets:
        return _one(pod_sets)
    own = spec.part("submitterPodTemplate")
    template = own if own else Part({"spec": {"containers": [_SUBMITTER]}})
    return _one((*pod_sets, pod_set_of("submitter", 1, template)))


def _ray(cluster: Part, beside_head: list[dict[str, Any]] | None = None) -> tuple[PodSet, ...]:
    """Head and workers. Workers are counted as they are written: not below one where nothing is said,
    whatever their least and most, and also while suspended."""
    if not cluster:
        return ()
    added = list(beside_head or ())
    if cluster.flag("enableInTreeAutoscaling"):
        own = cluster.part("autoscalerOptions").raw("resources")
        added.append({"name": "autoscaler", "resources": own or _AUTOSCALER})
    pod_sets = [pod_set_of("head", 1, _with(cluster.part("headGroupSpec").part("template"), added))]
    for group in cluster.parts("workerGroupSpecs"):
        count = group.count("replicas", 1) * max(group.count("numOfHosts", 1), 1)
        pod_sets.append(pod_set_of(group.text("groupName").lower(), count, group.part("template")))
    return tuple(pod_sets)


def _with(template: Part, containers: list[dict[str, Any]]) -> Part:
    """The same template with further containers."""
    if not containers:
        return template
    spec = template.raw("spec")
    spec = spec if isinstance(spec, dict) else {}
    own = spec.get("containers")
    inside = [*own, *containers] if isinstance(own, list) else containers
    return Part({"metadata": template.raw("metadata"), "spec": {**spec, "containers": inside}})
