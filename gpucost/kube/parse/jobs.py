"""Parsers of jobs of every kind, and of their status: how many pods a job has, since when it runs, when it
ended, and whether it failed.

The API leaves out counters that are 0. So where a status has been written at all, a missing counter is 0,
unless its kind or version may not have it; where no counter is present, the numbers are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpucost.cluster.objects.jobs import JobObject
from gpucost.cluster.objects.metadata import is_true
from gpucost.domain.errors import InputError
from gpucost.domain.jobs import JobKind, job_kind
from gpucost.kube.parse.fields import ObjectPart, conditions, meta
from gpucost.kube.parse.job_shapes import JOB_KINDS, JobShape, pods_of_job, shape

_FINAL_CONDITIONS = ("Complete", "Completed", "Succeeded", "Failed")
_FINAL_PHASES = ("Completed", "Terminated", "Failed")
_FAILED_PHASES = ("Terminated", "Failed")
_FAILED_RAY_JOBS = ("FAILED", "STOPPED")
_STOPPED_PHASES = ("Aborting", "Aborted")
_STOPPED_NOTEBOOK = "kubeflow-resource-stopped"


@dataclass(frozen=True, slots=True)
class JobPodCounts:
    """Numbers of pods, as in ``gpucost.cluster.objects.jobs.JobObject``."""

    active: int | None = None
    ready: int | None = None
    succeeded: int | None = None
    failed: int | None = None


def counts(job_kind: JobKind, root: ObjectPart) -> JobPodCounts:
    """Of a whole object."""
    read = _COUNTS.get(job_kind)
    return read(root) if read is not None and root.part("status") else JobPodCounts()


def is_suspended(job_kind: JobKind, root: ObjectPart) -> bool:
    """Whether it is stopped so that it can go on later."""
    if job_kind is JobKind.VOLCANO_JOB:
        return root.part("status").part("state").text("phase") in _STOPPED_PHASES
    if job_kind is JobKind.NOTEBOOK:
        return _STOPPED_NOTEBOOK in root.part("metadata").part("annotations")
    spec = root.part("spec")
    if job_kind in _KUBEFLOW:
        spec = spec.part("runPolicy")
    return spec.flag("suspend")


def started_ms(root: ObjectPart) -> int | None:
    """Since when it runs, according to its controller; None where its kind does not report it."""
    return root.part("status").instant("startTime")


def ended_ms(job_kind: JobKind, root: ObjectPart) -> int | None:
    """When it succeeded or failed for good; None while it has not, and where its kind never ends."""
    status = root.part("status")
    if job_kind is JobKind.RAY_JOB:
        return status.instant("endTime")
    if job_kind is JobKind.VOLCANO_JOB:
        state = status.part("state")
        return state.instant("lastTransitionTime") if state.text("phase") in _FINAL_PHASES else None
    if job_kind not in _ENDING:
        return None
    completed = status.instant("completionTime")
    if completed is not None:
        return completed
    found = conditions(status)
    times = [found[each].since_ms for each in _FINAL_CONDITIONS if is_true(found, each)]
    return min((each for each in times if each is not None), default=None)


def failure(job_kind: JobKind, root: ObjectPart) -> str | None:
    """Why it failed for good, in its controller's word (``BackoffLimitExceeded``); None where it has not, and
    where its kind does not say."""
    status = root.part("status")
    if job_kind is JobKind.RAY_JOB:
        word = status.text("jobStatus")
        return word if word in _FAILED_RAY_JOBS else None
    if job_kind is JobKind.VOLCANO_JOB:
        phase = status.part("state").text("phase")
        return phase if phase in _FAILED_PHASES else None
    found = conditions(status)
    return (found["Failed"].reason or "Failed") if job_kind in _ENDING and is_true(found, "Failed") else None


def _optional(part: ObjectPart, key: str) -> int | None:
    return part.count(key) if key in part else None


def _job(root: ObjectPart) -> JobPodCounts:
    status = root.part("status")
    return JobPodCounts(
        status.count("active"), _optional(status, "ready"), status.count("succeeded"), status.count("failed")
    )


def _job_set(root: ObjectPart) -> JobPodCounts:
    """Its status counts child Jobs; each stands for all the pods that such a Job runs at once."""
    replicated = root.part("spec").parts("replicatedJobs")
    pods = {each.text("name"): pods_of_job(each.part("template").part("spec")) for each in replicated}
    listed = root.part("status").parts("replicatedJobsStatus")
    return JobPodCounts(
        *(
            sum(each.count(key) * pods.get(each.text("name"), 0) for each in listed)
            for key in ("active", "ready", "succeeded", "failed")
        )
    )


def _kubeflow(root: ObjectPart) -> JobPodCounts:
    replicas = root.part("status").part("replicaStatuses")
    listed = [replicas.part(role) for role in replicas]
    return JobPodCounts(_total(listed, "active"), None, _total(listed, "succeeded"), _total(listed, "failed"))


def _total(listed: Iterable[ObjectPart], key: str) -> int:
    return sum(each.count(key) for each in listed)


def _ray_cluster(status: ObjectPart) -> JobPodCounts:
    """Workers only: the head is not counted. Older versions of KubeRay do not report how many are ready."""
    return JobPodCounts(
        _optional(status, "availableWorkerReplicas"), _optional(status, "readyWorkerReplicas")
    )


def _ray_service(root: ObjectPart) -> JobPodCounts:
    return _ray_cluster(root.part("status").part("activeServiceStatus").part("rayClusterStatus"))


def _leader_worker_set(root: ObjectPart) -> JobPodCounts:
    """Its status counts groups; each stands for all its pods."""
    size = root.part("spec").part("leaderWorkerTemplate").count("size", 1)
    status = root.part("status")
    return JobPodCounts(status.count("replicas") * size, status.count("readyReplicas") * size)


def _replicas(root: ObjectPart) -> JobPodCounts:
    status = root.part("status")
    return JobPodCounts(status.count("replicas"), status.count("readyReplicas"))


def _daemon_set(root: ObjectPart) -> JobPodCounts:
    status = root.part("status")
    return JobPodCounts(status.count("currentNumberScheduled"), status.count("numberReady"))


def _notebook(root: ObjectPart) -> JobPodCounts:
    return JobPodCounts(ready=root.part("status").count("readyReplicas"))


def _volcano(root: ObjectPart) -> JobPodCounts:
    status = root.part("status")
    active = status.count("pending") + status.count("running")
    return JobPodCounts(active, None, status.count("succeeded"), status.count("failed"))


_KUBEFLOW = frozenset(
    {
        JobKind.PYTORCH_JOB,
        JobKind.TF_JOB,
        JobKind.XGBOOST_JOB,
        JobKind.PADDLE_JOB,
        JobKind.JAX_JOB,
        JobKind.MPI_JOB,
    }
)
_ENDING = _KUBEFLOW | {JobKind.JOB, JobKind.JOB_SET, JobKind.TRAIN_JOB}
_COUNTS: Mapping[JobKind, Callable[[ObjectPart], JobPodCounts]] = {
    JobKind.JOB: _job,
    JobKind.JOB_SET: _job_set,
    **dict.fromkeys(_KUBEFLOW, _kubeflow),
    JobKind.RAY_JOB: lambda root: _ray_cluster(root.part("status").part("rayClusterStatus")),
    JobKind.RAY_CLUSTER: lambda root: _ray_cluster(root.part("status")),
    JobKind.RAY_SERVICE: _ray_service,
    JobKind.VOLCANO_JOB: _volcano,
    JobKind.LEADER_WORKER_SET: _leader_worker_set,
    JobKind.DEPLOYMENT: _replicas,
    JobKind.STATEFUL_SET: _replicas,
    JobKind.REPLICA_SET: _replicas,
    JobKind.DAEMON_SET: _daemon_set,
    JobKind.NOTEBOOK: _notebook,
}


_DEADLINE = "activeDeadlineSeconds"
KUEUE_PRIORITY = "kueue.x-k8s.io/priority-class"


def job_parser(api_version: str, kind: str) -> Callable[[Mapping[str, Any]], JobObject]:
    """The parser of one collection: items of typed lists lack their kind.

    The version of ``api_version`` is only passed on: the fields that are read are the same in all released
    versions. Raises InputError for a kind that is not a job; the parser raises Unreadable for an object
    without a uid or a name.
    """
    found_kind = job_kind(api_version, kind)
    if found_kind not in JOB_KINDS:
        raise InputError("kind", f"{api_version} {kind}", "a kind of job that gpucost knows")

    def parse(found: Mapping[str, Any]) -> JobObject:
        root = ObjectPart(found)
        identity = meta(root)
        wanted, has = shape(found_kind, root), counts(found_kind, root)
        return JobObject(
            meta=identity,
            api_version=api_version,
            kind=kind,
            job_kind=found_kind,
            pod_sets=wanted.pod_sets,
            gang_size=wanted.gang_size,
            gangs=wanted.gangs,
            is_suspended=is_suspended(found_kind, root),
            active=has.active,
            ready=has.ready,
            succeeded=has.succeeded,
            failed=has.failed,
            started_ms=started_ms(root),
            ended_ms=ended_ms(found_kind, root),
            failure=failure(found_kind, root),
            priority_class=_priority_class(wanted) or identity.labels.get(KUEUE_PRIORITY, ""),
            deadline_s=_deadline(root.part("spec")),
            flaws=tuple(dict.fromkeys(root.flaws)),
        )

    return parse


def _priority_class(wanted: JobShape) -> str:
    """The job's own, else the first that a template has."""
    of_templates = (each.template.priority_class for each in wanted.pod_sets)
    return wanted.priority_class or next(filter(None, of_templates), "")


def _deadline(spec: ObjectPart) -> int | None:
    """The shorter of the job's own and its run policy's."""
    places = (spec, spec.part("runPolicy")) if "runPolicy" in spec else (spec,)
    found = [each.count(_DEADLINE) for each in places if _DEADLINE in each]
    return min((each for each in found if each > 0), default=None)
