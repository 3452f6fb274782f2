"""Jobs that are suspended: where that stands, and whether a queue lifts it."""

from __future__ import annotations

from gpucost.advisor.kueue.submitted import FRAMEWORKS
from gpucost.cluster.jobs import JobObject
from gpucost.cluster.scheduling import KueueConfig
from gpucost.cluster.state import ClusterState
from gpucost.domain.jobs import JobKind

SUSPENDED = "Suspended"
SuspendPath = tuple[str, ...]
_SPEC: SuspendPath = ("spec", "suspend")
_POLICY: SuspendPath = ("spec", "runPolicy", "suspend")
_NOTEBOOK: SuspendPath = ("metadata", "annotations", "kubeflow-resource-stopped")
_OF_KIND = {
    **dict.fromkeys((JobKind.PYTORCH_JOB, JobKind.TF_JOB, JobKind.XGBOOST_JOB), _POLICY),
    **dict.fromkeys((JobKind.PADDLE_JOB, JobKind.JAX_JOB, JobKind.MPI_JOB), _POLICY),
    JobKind.NOTEBOOK: _NOTEBOOK,
}
_NEVER_LIFTED = (JobKind.CRON_JOB, JobKind.NOTEBOOK)
"""Kueue holds what these make, and not themselves."""


def suspend_path(kind: JobKind) -> SuspendPath:
    """The field that suspends a job of a kind; of a Notebook the annotation that does."""
    return _OF_KIND.get(kind, _SPEC)


def switched_off(kind: JobKind, config: KueueConfig) -> str:
    """The name of Kueue's integration for a kind, where that is known to be off; else empty."""
    name = FRAMEWORKS.get(kind, "")
    return name if config.frameworks is not None and name not in config.frameworks else ""


def not_lifted(job: JobObject, queue: str, state: ClusterState) -> str:
    """Why nobody lifts the suspend of a job that names ``queue`` (empty: none); empty where Kueue may: in a
    queue it is suspended until it is let in."""
    if not job.is_suspended:
        return ""
    says = f"it is suspended ({'.'.join(suspend_path(job.job_kind))})"
    off = switched_off(job.job_kind, state.schedulers.kueue)
    if job.job_kind in _NEVER_LIFTED:
        return f"{says}, which no queue lifts"
    if not queue:
        return f"{says}, and names no queue of Kueue that would lift that"
    if state.is_absent("cluster_queues"):
        return f"{says}, and there is no Kueue here to lift that"
    if off:
        return f"{says}, and Kueue's integration {off}, which would lift that, is switched off"
    if job.job_kind not in FRAMEWORKS:
        return f"{says}, and Kueue, whose queue it names, does not know its kind"
    return ""


def unlifted(job: JobObject, queue: str, state: ClusterState) -> str:
    """The same of a job that exists and has no Workload: where its queue is missing, Kueue never lets it in
    either."""
    says = not_lifted(job, queue, state)
    is_missing = (job.meta.namespace, queue) not in state.local_queue_by_name
    if says or not job.is_suspended or not is_missing or not state.knows("local_queues"):
        return says
    field = ".".join(suspend_path(job.job_kind))
    return f"it is suspended ({field}), and LocalQueue {queue}, which would lift that, does not exist"
