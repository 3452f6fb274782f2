"""The Workloads that Kueue would make of a job, and whether its suspend is lifted.

Rules: kueue v0.19.2, pkg/controller/jobframework. ``as_workloads`` makes them of a manifest; ``not_lifted``
and ``unlifted`` say why a suspended job stays so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gpucost.cluster.objects.jobs import (
    LONGEST_RUN,
    Document,
    JobManifest,
    JobObject,
    PriorityClass,
)
from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.objects.metadata import FieldFlaw, ObjectMeta
from gpucost.cluster.objects.pods import PodSet
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.ownership import JOB_UID
from gpucost.cluster.views.queue_order import class_named, default_class, pod_classes
from gpucost.domain.jobs import JobKind

MOST_WORKLOADS = 1_000
"""Of one job whose pods or groups have a Workload each."""
MOST_POD_SETS = 18
"""Of one Workload (kueue, apis/kueue/v1beta2/workload_types.go)."""
_ELASTIC = "kueue.x-k8s.io/elastic-job"
_KUEUE_CLASS = "metadata.labels[kueue.x-k8s.io/priority-class]"
_WITH_MIN_COUNT = (JobKind.JOB, JobKind.CRON_JOB)
FRAMEWORKS: Mapping[JobKind, str] = {
    JobKind.JOB: "batch/job",
    JobKind.CRON_JOB: "batch/job",
    JobKind.JOB_SET: "jobset.x-k8s.io/jobset",
    JobKind.TRAIN_JOB: "trainer.kubeflow.org/trainjob",
    JobKind.PYTORCH_JOB: "kubeflow.org/pytorchjob",
    JobKind.TF_JOB: "kubeflow.org/tfjob",
    JobKind.XGBOOST_JOB: "kubeflow.org/xgboostjob",
    JobKind.PADDLE_JOB: "kubeflow.org/paddlejob",
    JobKind.JAX_JOB: "kubeflow.org/jaxjob",
    JobKind.MPI_JOB: "kubeflow.org/mpijob",
    JobKind.RAY_JOB: "ray.io/rayjob",
    JobKind.RAY_CLUSTER: "ray.io/raycluster",
    JobKind.RAY_SERVICE: "ray.io/rayservice",
    JobKind.LEADER_WORKER_SET: "leaderworkerset.x-k8s.io/leaderworkerset",
    JobKind.STATEFUL_SET: "statefulset",
    JobKind.DEPLOYMENT: "deployment",
    JobKind.REPLICA_SET: "pod",
    JobKind.DAEMON_SET: "pod",
    JobKind.NOTEBOOK: "pod",
    JobKind.POD: "pod",
}
"""Kueue's integration for each kind, as its Configuration names it; others are not Kueue's."""

DEFAULTING = (
    "requests are those of the manifest: defaults of LimitRanges and the overhead of a RuntimeClass are not "
    "added"
)


@dataclass(frozen=True, slots=True)
class WorkloadPriority:
    """``flaw`` says that its class does not exist: then the API server or Kueue refuses the job."""

    value: int = 0
    name: str = ""
    of_kueue: bool = False
    flaw: FieldFlaw | None = None


def as_workloads(manifest: JobManifest, state: ClusterState, config: KueueConfig) -> tuple[Workload, ...]:
    """Equal Workloads without quota, created at the manifest's instant: one for most kinds; one for each pod
    of a Deployment, one for each group of a LeaderWorkerSet, at most ``MOST_WORKLOADS``; none for what is not
    Kueue's. Whether its integration is switched on is not checked.

    The uid is that of the manifest, of several with ``/0``, ``/1`` and so on. Requests are without the
    resources that Kueue does not count. ``flaws`` name a priority class that does not exist.
    """
    job = manifest.job
    if job.job_kind not in FRAMEWORKS or manifest.workloads < 1:
        return ()
    pod_sets = tuple(
        _counted(each, manifest, config) for each in manifest.quota_sets or manifest.job.pod_sets
    )
    priority = priority_of(manifest, state)
    longest = job.meta.labels.get(LONGEST_RUN, "")
    one = Workload(
        ObjectMeta(
            job.meta.uid,
            job.meta.namespace,
            f"{job.kind.lower()}-{job.meta.name}",
            job.meta.created_ms,
            {JOB_UID: job.meta.uid},
            {},
            job.as_owner,
        ),
        pod_sets,
        queue=manifest.queue,
        priority=priority.value,
        priority_class=priority.name,
        priority_class_of_kueue=priority.of_kueue,
        max_execution_s=int(longest) if longest.isascii() and longest.isdigit() else None,
        flaws=() if priority.flaw is None else (priority.flaw,),
    )
    if manifest.workloads == 1:
        return (one,)
    return tuple(_numbered(one, index) for index in range(min(manifest.workloads, MOST_WORKLOADS)))


def priority_of(manifest: JobManifest, state: ClusterState) -> WorkloadPriority:
    """The WorkloadPriorityClass that the job names, else the PriorityClass of the job or its first pod set
    that names one, else the default of the cluster, else 0 (jobframework, ExtractPriority)."""
    name = manifest.kueue_priority_class
    if name:
        of_kueue = (each for each in state.priority_classes.values() if each.of_kueue)
        return _of_class(name, of_kueue, _KUEUE_CLASS)
    name = manifest.job.priority_class
    if name:
        return _of_class(name, pod_classes(state), "priorityClassName")
    default = default_class(state)
    return WorkloadPriority() if default is None else WorkloadPriority(default.value, default.meta.name)


def assumptions(manifest: JobManifest) -> tuple[str, ...]:
    """What is taken for granted where a manifest becomes a Workload, in words for people."""
    job, sets = manifest.job, manifest.quota_sets or manifest.job.pod_sets
    said = [DEFAULTING]
    if len(sets) > MOST_POD_SETS:
        said.append(f"Kueue takes at most {MOST_POD_SETS} pod sets; this job has {len(sets):,}")
    if manifest.workloads > MOST_WORKLOADS:
        said.append(
            f"of the {manifest.workloads:,} Workloads of this job the first {MOST_WORKLOADS:,} are looked at"
        )
    if job.job_kind is JobKind.POD and len(sets) > 1:
        said.append("Kueue orders the pod sets of a pod group by a hash; here they are as in the file")
    is_elastic = job.meta.annotations.get(_ELASTIC) == "true"
    if _scales(manifest.document) and not is_elastic:
        said.append(
            "Kueue refuses a Ray cluster that scales itself (enableInTreeAutoscaling) and is not elastic"
        )
    if is_elastic:
        said.append("an elastic job is taken at the size it asks for; workload slices are not followed")
    return tuple(said)


def _scales(document: Document) -> bool:
    spec = document.get("spec")
    own = spec if isinstance(spec, Mapping) else {}
    inside = (own, own.get("rayClusterSpec"), own.get("rayClusterConfig"))
    return any(isinstance(each, Mapping) and each.get("enableInTreeAutoscaling") is True for each in inside)


def _of_class(name: str, classes: Iterable[PriorityClass], field: str) -> WorkloadPriority:
    of_kueue = field == _KUEUE_CLASS
    found = class_named(classes, name)
    if found is not None:
        return WorkloadPriority(found.value, name, of_kueue)
    kind = "WorkloadPriorityClass" if of_kueue else "PriorityClass"
    return WorkloadPriority(0, name, of_kueue, FieldFlaw(field, name, f"a {kind} that exists"))


def _counted(pod_set: PodSet, manifest: JobManifest, config: KueueConfig) -> PodSet:
    """As Kueue counts it: without resources it leaves out, with what its feature gates let through."""
    requests = pod_set.template.requests
    if any(name.startswith(config.excluded_prefixes) for name in requests):
        kept = {
            name: amount for name, amount in requests.items() if not name.startswith(config.excluded_prefixes)
        }
        pod_set = replace(pod_set, template=replace(pod_set.template, requests=kept))
    is_partial = manifest.job.job_kind in _WITH_MIN_COUNT and config.gates.get("PartialAdmission", True)
    if pod_set.min_count is not None and not is_partial:
        pod_set = replace(pod_set, min_count=None)
    if pod_set.topology and not config.gates.get("TopologyAwareScheduling", True):
        pod_set = replace(pod_set, topology={})
    return pod_set


def _numbered(one: Workload, index: int) -> Workload:
    identity = replace(one.meta, uid=f"{one.meta.uid}/{index}", name=f"{one.meta.name}-{index}")
    return replace(one, meta=identity)


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
    """Why the suspend of a job that names ``queue`` (empty: none) is never lifted; empty where Kueue may lift
    it: in a queue a job is suspended until it is admitted."""
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
    """The same for a job that exists and has no Workload: where its queue is missing, Kueue never admits it
    either."""
    says = not_lifted(job, queue, state)
    is_missing = (job.meta.namespace, queue) not in state.local_queue_by_name
    if says or not job.is_suspended or not is_missing or not state.knows("local_queues"):
        return says
    field = ".".join(suspend_path(job.job_kind))
    return f"it is suspended ({field}), and LocalQueue {queue}, which would lift that, does not exist"
