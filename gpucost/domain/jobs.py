"""Kinds of work that hold GPUs, and how a chain of Kubernetes owners names one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache


class JobKind(StrEnum):
    """The kind of the outermost owner that a person would call "the job"."""

    JOB = "Job"
    CRON_JOB = "CronJob"
    JOB_SET = "JobSet"
    TRAIN_JOB = "TrainJob"
    PYTORCH_JOB = "PyTorchJob"
    TF_JOB = "TFJob"
    XGBOOST_JOB = "XGBoostJob"
    PADDLE_JOB = "PaddleJob"
    JAX_JOB = "JAXJob"
    MPI_JOB = "MPIJob"
    RAY_JOB = "RayJob"
    RAY_CLUSTER = "RayCluster"
    RAY_SERVICE = "RayService"
    VOLCANO_JOB = "VolcanoJob"
    LEADER_WORKER_SET = "LeaderWorkerSet"
    DEPLOYMENT = "Deployment"
    STATEFUL_SET = "StatefulSet"
    REPLICA_SET = "ReplicaSet"
    DAEMON_SET = "DaemonSet"
    NOTEBOOK = "Notebook"
    POD = "Pod"
    OTHER = "Other"


class WorkloadClass(StrEnum):
    """What idleness means: a notebook waits for a person, a server for requests, a batch job for nothing."""

    BATCH = "batch"
    SERVING = "serving"
    INTERACTIVE = "interactive"
    UNKNOWN = "unknown"


_KUBEFLOW = {
    "PyTorchJob": JobKind.PYTORCH_JOB,
    "TFJob": JobKind.TF_JOB,
    "XGBoostJob": JobKind.XGBOOST_JOB,
    "PaddleJob": JobKind.PADDLE_JOB,
    "JAXJob": JobKind.JAX_JOB,
    "MPIJob": JobKind.MPI_JOB,
    "Notebook": JobKind.NOTEBOOK,
}

# (API group, kind) -> JobKind. The group decides: batch/Job and batch.volcano.sh/Job are two things.
_BY_GROUP_KIND: dict[tuple[str, str], JobKind] = {
    ("batch", "Job"): JobKind.JOB,
    ("batch", "CronJob"): JobKind.CRON_JOB,
    ("jobset.x-k8s.io", "JobSet"): JobKind.JOB_SET,
    ("trainer.kubeflow.org", "TrainJob"): JobKind.TRAIN_JOB,
    ("ray.io", "RayJob"): JobKind.RAY_JOB,
    ("ray.io", "RayCluster"): JobKind.RAY_CLUSTER,
    ("ray.io", "RayService"): JobKind.RAY_SERVICE,
    ("batch.volcano.sh", "Job"): JobKind.VOLCANO_JOB,
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): JobKind.LEADER_WORKER_SET,
    ("apps", "Deployment"): JobKind.DEPLOYMENT,
    ("apps", "StatefulSet"): JobKind.STATEFUL_SET,
    ("apps", "ReplicaSet"): JobKind.REPLICA_SET,
    ("apps", "DaemonSet"): JobKind.DAEMON_SET,
    ("", "Pod"): JobKind.POD,
    **{("kubeflow.org", kind): job_kind for kind, job_kind in _KUBEFLOW.items()},
}

_CLASS_BY_KIND = {
    JobKind.DEPLOYMENT: WorkloadClass.SERVING,
    JobKind.STATEFUL_SET: WorkloadClass.SERVING,
    JobKind.REPLICA_SET: WorkloadClass.SERVING,
    JobKind.DAEMON_SET: WorkloadClass.SERVING,
    JobKind.RAY_SERVICE: WorkloadClass.SERVING,
    JobKind.LEADER_WORKER_SET: WorkloadClass.SERVING,
    JobKind.NOTEBOOK: WorkloadClass.INTERACTIVE,
    JobKind.RAY_CLUSTER: WorkloadClass.INTERACTIVE,
    JobKind.POD: WorkloadClass.UNKNOWN,
    JobKind.OTHER: WorkloadClass.UNKNOWN,
}


_KINDS = 1024
"""Of owners, which are remembered: everybody can make new ones."""


@dataclass(frozen=True, slots=True)
class OwnerReference:
    """One link of an owner chain; ``api_version`` as in Kubernetes (``batch/v1``, ``v1``)."""

    api_version: str
    kind: str
    name: str
    uid: str

    @property
    def group(self) -> str:
        group, slash, _ = self.api_version.partition("/")
        return group if slash else ""


@dataclass(frozen=True, slots=True)
class JobReference:
    """The job a pod belongs to. Reports group by ``uid``: names are reused, uids are not."""

    kind: JobKind
    name: str
    uid: str


@lru_cache(_KINDS)
def api_version_of(kind: str) -> str:
    """The API version of owners of ``kind``, where only the kind is known; where two API groups have a kind
    of that name, Kubernetes' own. Empty for kinds that gpucost does not know, as for core kinds."""
    groups = [group for group, name in _BY_GROUP_KIND if name == kind]
    return f"{groups[0]}/v1" if groups and groups[0] else ""


@lru_cache(_KINDS)
def job_kind(api_version: str, kind: str) -> JobKind:
    """The kind of one owner; ``JobKind.OTHER`` for kinds gpucost does not know."""
    return _BY_GROUP_KIND.get((OwnerReference(api_version, kind, "", "").group, kind), JobKind.OTHER)


def resolve_job(owners: Sequence[OwnerReference]) -> JobReference:
    """The job that a chain of owners stands for.

    ``owners`` runs from the pod itself outwards (pod, ReplicaSet, Deployment). The outermost owner of a known
    kind is the job: a pod of a Job of a JobSet belongs to the JobSet, and a pod without an owner is its own
    job. A CronJob is the exception: each Job it starts is a job of its own, because one row for a year of
    nightly runs would be of no use in a report; its kind says CronJob.
    """
    if not owners:
        raise ValueError("an owner chain starts with the pod itself")
    kinds = [job_kind(owner.api_version, owner.kind) for owner in owners]
    known = [i for i, kind in enumerate(kinds) if kind is not JobKind.OTHER]
    if not known:
        return JobReference(JobKind.OTHER, owners[-1].name, owners[-1].uid)
    outermost = known[-1]
    if kinds[outermost] is JobKind.CRON_JOB and outermost > 0:
        run = owners[outermost - 1]
        return JobReference(JobKind.CRON_JOB, run.name, run.uid)
    if kinds[outermost] is JobKind.POD and len(owners) > outermost + 1:
        return JobReference(JobKind.OTHER, owners[-1].name, owners[-1].uid)
    return JobReference(kinds[outermost], owners[outermost].name, owners[outermost].uid)


def workload_class(kind: JobKind) -> WorkloadClass:
    """The workload class of a kind, unless a label says otherwise: every kind not listed runs to
    completion."""
    return _CLASS_BY_KIND.get(kind, WorkloadClass.BATCH)
