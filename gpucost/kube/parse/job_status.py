"""What the status of a job says: how many pods it has, since when it runs, when it ended.

The API leaves out counters that are 0. So where a status has been written at all, a counter that is missing
is 0, unless its kind or version may not have it; where none has, nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gpucost.cluster.objects import is_true
from gpucost.domain.jobs import JobKind
from gpucost.kube.parse.job_shapes import pods_of_job
from gpucost.kube.parse.reading import Part, conditions

_FINAL_CONDITIONS = ("Complete", "Completed", "Succeeded", "Failed")
_FINAL_PHASES = ("Completed", "Terminated", "Failed")
_STOPPED_PHASES = ("Aborting", "Aborted")
_STOPPED_NOTEBOOK = "kubeflow-resource-stopped"


@dataclass(frozen=True, slots=True)
class Counts:
    """Pods, as in ``gpucost.cluster.jobs.JobObject``."""

    active: int | None = None
    ready: int | None = None
    succeeded: int | None = None
    failed: int | None = None


def counts(job_kind: JobKind, root: Part) -> Counts:
    """Of a whole object."""
    read = _COUNTS.get(job_kind)
    return read(root) if read is not None and root.part("status") else Counts()


def is_suspended(job_kind: JobKind, root: Part) -> bool:
    """Whether somebody stopped it so that it can go on later."""
    if job_kind is JobKind.VOLCANO_JOB:
        return root.part("status").part("state").text("phase") in _STOPPED_PHASES
    if job_kind is JobKind.NOTEBOOK:
        return _STOPPED_NOTEBOOK in root.part("metadata").part("annotations")
    spec = root.part("spec")
    if job_kind in _KUBEFLOW:
        spec = spec.part("runPolicy")
    return spec.flag("suspend")


def started_ms(root: Part) -> int | None:
    """Since when it runs, as its controller says; None where its kind does not say."""
    return root.part("status").instant("startTime")


def ended_ms(job_kind: JobKind, root: Part) -> int | None:
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


def _optional(part: Part, key: str) -> int | None:
    return part.count(key) if key in part else None


def _job(root: Part) -> Counts:
    status = root.part("status")
    return Counts(
        status.count("active"), _optional(status, "ready"), status.count("succeeded"), status.count("failed")
    )


def _job_set(root: Part) -> Counts:
    """Its status counts child Jobs; each stands for all the pods that such a Job runs at once."""
    replicated = root.part("spec").parts("replicatedJobs")
    pods = {each.text("name"): pods_of_job(each.part("template").part("spec")) for each in replicated}
    listed = root.part("status").parts("replicatedJobsStatus")
    return Counts(
        *(
            sum(each.count(key) * pods.get(each.text("name"), 0) for each in listed)
            for key in ("active", "ready", "succeeded", "failed")
        )
    )


def _kubeflow(root: Part) -> Counts:
    replicas = root.part("status").part("replicaStatuses")
    listed = [replicas.part(role) for role in replicas]
    return Counts(_total(listed, "active"), None, _total(listed, "succeeded"), _total(listed, "failed"))


def _total(listed: Iterable[Part], key: str) -> int:
    return sum(each.count(key) for each in listed)


def _ray_cluster(status: Part) -> Counts:
    """Workers only: the head is not counted. Older versions of KubeRay do not say how many are ready."""
    return Counts(_optional(status, "availableWorkerReplicas"), _optional(status, "readyWorkerReplicas"))


def _ray_service(root: Part) -> Counts:
    return _ray_cluster(root.part("status").part("activeServiceStatus").part("rayClusterStatus"))


def _leader_worker_set(root: Part) -> Counts:
    """Its status counts groups; each stands for all its pods."""
    size = root.part("spec").part("leaderWorkerTemplate").count("size", 1)
    status = root.part("status")
    return Counts(status.count("replicas") * size, status.count("readyReplicas") * size)


def _replicas(root: Part) -> Counts:
    status = root.part("status")
    return Counts(status.count("replicas"), status.count("readyReplicas"))


def _daemon_set(root: Part) -> Counts:
    status = root.part("status")
    return Counts(status.count("currentNumberScheduled"), status.count("numberReady"))


def _notebook(root: Part) -> Counts:
    return Counts(ready=root.part("status").count("readyReplicas"))


def _volcano(root: Part) -> Counts:
    status = root.part("status")
    active = status.count("pending") + status.count("running")
    return Counts(active, None, status.count("succeeded"), status.count("failed"))


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
_COUNTS: Mapping[JobKind, Callable[[Part], Counts]] = {
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
