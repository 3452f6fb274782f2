"""The pods that a job of each kind wants, and how many of them must be there at once.

Fields and defaults are those of the kinds' own API types: Kubernetes (batch/v1, apps/v1), JobSet v1alpha2,
Kubeflow trainer and training-operator, mpi-operator v2beta1, KubeRay v1, LeaderWorkerSet v1, and Volcano
v1alpha1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpucost.cluster.objects.pods import PodSet
from gpucost.domain.jobs import JobKind
from gpucost.kube.parse.fields import ObjectPart
from gpucost.kube.parse.templates import container_asks, pod_template, topology_request

_MOST_REPLICAS = 2**31 - 1
_OF_JOB = ("parallelism", "completions", "completionMode")
_OF_WORKERS = ("replicas", "minReplicas", "maxReplicas", "numOfHosts")
NOTHING: Mapping[str, int | str] = {}
ROLES = ("Launcher", "Chief", "Master", "PS", "Worker", "Evaluator")
"""The order in which training-operator and Kueue take them (kueue v0.19.2, pkg/controller/jobs/kubeflow)."""


@dataclass(frozen=True, slots=True)
class JobShape:
    """As in ``gpucost.cluster.objects.jobs.JobObject``; ``priority_class`` is the job's own, not its
    templates'."""

    pod_sets: tuple[PodSet, ...] = ()
    gang_size: int | None = None
    gangs: int = 1
    priority_class: str = ""


def shape(job_kind: JobKind, root: ObjectPart) -> JobShape:
    """The shape of a whole object. Without pods there is no gang, and a job of a single pod has a gang of
    1."""
    found = _SHAPES[job_kind](root)
    return found if found.gang_size else JobShape(found.pod_sets, None, found.gangs, found.priority_class)


def pods_of_job(spec: ObjectPart) -> int:
    """How many pods a batch/v1 Job runs at once: the smaller of parallelism and completions."""
    parallelism = spec.count("parallelism", 1)
    return min(parallelism, spec.count("completions")) if "completions" in spec else parallelism


def _pod_set(
    name: str,
    count: int,
    holder: ObjectPart,
    min_count: int | None = None,
    stated: Mapping[str, int | str] = NOTHING,
) -> PodSet:
    """Of the pod template that ``holder`` has."""
    return pod_set_of(name, count, holder.part("template"), min_count, stated)


def pod_set_of(
    name: str,
    count: int,
    template: ObjectPart,
    min_count: int | None = None,
    stated: Mapping[str, int | str] = NOTHING,
) -> PodSet:
    """Of a pod template, or of a pod."""
    spec = template.part("spec")
    asks = container_asks(spec)
    return PodSet(name, count, pod_template(spec), min_count, topology_request(template), asks, stated)


def _stated(holder: ObjectPart, *fields: str) -> Mapping[str, int | str]:
    """Those of the fields that are present: whole numbers and text."""
    found = ((key, holder.raw(key)) for key in fields)
    return {key: value for key, value in found if isinstance(value, (int, str)) and value is not True}


def _smallest(pod_sets: tuple[PodSet, ...]) -> int:
    return sum(each.count if each.min_count is None else each.min_count for each in pod_sets)


def _no_pods(_: ObjectPart) -> JobShape:
    """A CronJob: the Jobs that it makes have the pods."""
    return JobShape()


def _job(root: ObjectPart) -> JobShape:
    """A gang where every pod has a part of its own and all run at once (Indexed, as many completions as
    pods): pods that take from a queue, or one after another from an array, do not need each other.

    Kueue may start it with fewer pods, where an annotation says so (partial admission).
    """
    spec = root.part("spec")
    fewest = root.part("metadata").part("annotations").text("kueue.x-k8s.io/job-min-parallelism")
    count = pods_of_job(spec)
    min_count = (
        min(int(fewest), count) if fewest.isascii() and fewest.isdigit() and len(fewest) < 10 else None
    )
    pod_sets = (_pod_set("main", count, spec, min_count, _stated(spec, *_OF_JOB)),)
    is_gang = spec.text("completionMode") == "Indexed" and spec.whole("completions") == spec.whole(
        "parallelism"
    )
    return JobShape(pod_sets, _smallest(pod_sets) if is_gang else None)


def _job_set(root: ObjectPart) -> JobShape:
    """Jobs that must be complete before others start, such as initializers, are no part of the gang."""
    replicated = root.part("spec").parts("replicatedJobs")
    pod_sets = tuple(map(_replicated_job, replicated))
    over = {
        before.text("name")
        for each in replicated
        for before in each.parts("dependsOn")
        if before.text("status") == "Complete"
    }
    return JobShape(pod_sets, sum(each.count for each in pod_sets if each.name not in over))


def _replicated_job(replicated: ObjectPart) -> PodSet:
    job = replicated.part("template").part("spec")
    count = replicated.count("replicas", 1) * pods_of_job(job)
    stated = {**_stated(job, *_OF_JOB), **_stated(replicated, "replicas")}
    return _pod_set(replicated.text("name"), count, job, None, stated)


def _train_job(root: ObjectPart) -> JobShape:
    """Its templates are in its runtime. An MPI launcher beside the nodes does not count in the gang."""
    return JobShape(gang_size=root.part("spec").part("trainer").count("numNodes") or None)


def _rank(role: str) -> int:
    return ROLES.index(role) if role in ROLES else len(ROLES)


def _kubeflow(replica_specs: str) -> Callable[[ObjectPart], JobShape]:
    """A kind of the training operator, by where its replicas are; an MPI launcher counts like a worker.

    Elastic workers (PyTorchJob's ``elasticPolicy``) need only be as many as its minimum.
    """

    def read(root: ObjectPart) -> JobShape:
        spec = root.part("spec")
        replicas, elastic = spec.part(replica_specs), spec.part("elasticPolicy")
        fewest = elastic.count("minReplicas") if "minReplicas" in elastic else None
        pod_sets = tuple(
            _pod_set(
                role.lower(),
                replicas.part(role).count("replicas", 1),
                replicas.part(role),
                fewest if role == "Worker" else None,
            )
            for role in sorted(replicas, key=_rank)
        )
        policy = spec.part("runPolicy").part("schedulingPolicy")
        gang_size = policy.count("minAvailable") or _smallest(pod_sets)
        return JobShape(pod_sets, gang_size, priority_class=policy.text("priorityClass"))

    return read


def _ray(cluster: ObjectPart) -> JobShape:
    """A RayCluster's spec: the head, and worker groups of ``numOfHosts`` pods a replica.

    With autoscaling the head and the smallest number of workers are enough to start (KubeRay's own gangs:
    batchscheduler/volcano). A suspended worker group wants no pods.
    """
    if not cluster:
        return JobShape()
    scales = cluster.flag("enableInTreeAutoscaling")
    workers = [_ray_workers(each, scales) for each in cluster.parts("workerGroupSpecs")]
    pod_sets = (_pod_set("head", 1, cluster.part("headGroupSpec")), *workers)
    return JobShape(pod_sets, _smallest(pod_sets))


def pods_of_workers(group: ObjectPart) -> int:
    """How many pods a worker group of Ray has: its replicas, within its bounds, of so many hosts."""
    if group.flag("suspend"):
        return 0
    fewest, most = group.count("minReplicas"), group.count("maxReplicas", _MOST_REPLICAS)
    return min(max(group.count("replicas"), fewest), most) * group.count("numOfHosts", 1)


def _ray_workers(group: ObjectPart, scales: bool) -> PodSet:
    count, fewest = pods_of_workers(group), group.count("minReplicas") * group.count("numOfHosts", 1)
    min_count = min(fewest, count) if scales else None
    stated = NOTHING if group.flag("suspend") else _stated(group, *_OF_WORKERS)
    return _pod_set(group.text("groupName"), count, group, min_count, stated)


def _ray_job(root: ObjectPart) -> JobShape:
    """The submitter, which waits for the cluster, is not in the gang; it is left out where KubeRay's own
    template is used, which asks for no GPUs. A job on an existing cluster wants nothing else."""
    spec = root.part("spec")
    cluster = _ray(spec.part("rayClusterSpec"))
    template = spec.part("submitterPodTemplate")
    if not template or spec.text("submissionMode", "K8sJobMode") != "K8sJobMode":
        return cluster
    submitter = pod_set_of("submitter", 1, template)
    return JobShape((*cluster.pod_sets, submitter), cluster.gang_size)


def _leader_worker_set(root: ObjectPart) -> JobShape:
    spec = root.part("spec")
    group = spec.part("leaderWorkerTemplate")
    groups, size = spec.count("replicas", 1), max(group.count("size", 1), 1)
    worker = group.part("workerTemplate")
    leader = group.part("leaderTemplate") or worker
    pod_sets = (
        pod_set_of("leader", groups, leader),
        pod_set_of("worker", groups * (size - 1), worker),
    )
    return JobShape(pod_sets if size > 1 else pod_sets[:1], size, groups)


def _replicas(root: ObjectPart) -> JobShape:
    """Deployments, StatefulSets and ReplicaSets, whose pods are independent."""
    spec = root.part("spec")
    return JobShape((_pod_set("main", spec.count("replicas", 1), spec),))


def _daemon_set(root: ObjectPart) -> JobShape:
    count = root.part("status").count("desiredNumberScheduled")
    return JobShape((_pod_set("main", count, root.part("spec")),))


def _notebook(root: ObjectPart) -> JobShape:
    return JobShape((_pod_set("main", 1, root.part("spec")),), 1)


def _volcano(root: ObjectPart) -> JobShape:
    """Without ``minAvailable`` all that its tasks need are the gang, as Volcano's webhook sets it."""
    spec = root.part("spec")
    pod_sets = []
    for index, task in enumerate(spec.parts("tasks")):
        count = task.count("replicas", 1)
        min_count = min(task.count("minAvailable"), count) if "minAvailable" in task else None
        pod_sets.append(_pod_set(task.text("name") or f"default{index}", count, task, min_count))
    gang_size = spec.count("minAvailable") or _smallest(tuple(pod_sets))
    return JobShape(tuple(pod_sets), gang_size, priority_class=spec.text("priorityClassName"))


_SHAPES: Mapping[JobKind, Callable[[ObjectPart], JobShape]] = {
    JobKind.JOB: _job,
    JobKind.CRON_JOB: _no_pods,
    JobKind.JOB_SET: _job_set,
    JobKind.TRAIN_JOB: _train_job,
    JobKind.PYTORCH_JOB: _kubeflow("pytorchReplicaSpecs"),
    JobKind.TF_JOB: _kubeflow("tfReplicaSpecs"),
    JobKind.XGBOOST_JOB: _kubeflow("xgbReplicaSpecs"),
    JobKind.PADDLE_JOB: _kubeflow("paddleReplicaSpecs"),
    JobKind.JAX_JOB: _kubeflow("jaxReplicaSpecs"),
    JobKind.MPI_JOB: _kubeflow("mpiReplicaSpecs"),
    JobKind.RAY_JOB: _ray_job,
    JobKind.RAY_CLUSTER: lambda root: _ray(root.part("spec")),
    JobKind.RAY_SERVICE: lambda root: _ray(root.part("spec").part("rayClusterConfig")),
    JobKind.VOLCANO_JOB: _volcano,
    JobKind.LEADER_WORKER_SET: _leader_worker_set,
    JobKind.DEPLOYMENT: _replicas,
    JobKind.STATEFUL_SET: _replicas,
    JobKind.REPLICA_SET: _replicas,
    JobKind.DAEMON_SET: _daemon_set,
    JobKind.NOTEBOOK: _notebook,
}
JOB_KINDS = frozenset(_SHAPES)
