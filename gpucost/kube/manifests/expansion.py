"""What controllers make of a job: Kueue's pod sets, in its order and with its names, and a TrainJob's
runtime.

Rules are those of Kueue's integrations (kueue v0.19.2, pkg/controller/jobs/*): mostly the job's own pod sets.
Different are what KubeRay adds to pods (the submitter, the autoscaler) and how Ray's workers are counted;
kinds of which each pod or group has a Workload of its own; and that only a batch/v1 Job may start with fewer
pods than it asks for.

The pod templates of TrainJobs are in a runtime that is a separate object. Where the runtime is given beside
the job, the resulting JobSet is made as far as it decides what the pods ask for (kubeflow/trainer v2,
pkg/runtime/framework/plugins/jobset): the number of nodes and their resources, and patches of the pod
templates. Otherwise only the trainer's own fields are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from gpucost.cluster.objects.jobs import JobObject
from gpucost.cluster.objects.pods import PodSet
from gpucost.domain.jobs import JobKind
from gpucost.kube.parse.fields import ObjectPart
from gpucost.kube.parse.job_shapes import pod_set_of
from gpucost.kube.parse.jobs import job_parser

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


class KueuePodSets(NamedTuple):
    """``workloads`` equal Workloads of these pod sets; none if Kueue has no integration for the kind."""

    pod_sets: tuple[PodSet, ...] = ()
    workloads: int = 0


def kueue_pod_sets(job: JobObject, document: Mapping[str, Any]) -> KueuePodSets:
    """``document`` is the job's object, which has been checked for flaws already."""
    spec = ObjectPart(document).part("spec")
    if job.job_kind is JobKind.VOLCANO_JOB:
        return KueuePodSets()
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
        return KueuePodSets(tuple(replace(each, count=1) for each in whole), job.pods_wanted)
    return _one(whole)


def _one(pod_sets: tuple[PodSet, ...]) -> KueuePodSets:
    return KueuePodSets(pod_sets, 1 if pod_sets else 0)


def _leader_worker_set(spec: ObjectPart, groups: int, pod_sets: tuple[PodSet, ...]) -> KueuePodSets:
    """A Workload for each group: leader and workers, or one pod set where no leader has its own template."""
    group = spec.part("leaderWorkerTemplate")
    size = max(group.count("size", 1), 1)
    leader, worker = pod_sets[0], pod_sets[-1]
    if not group.part("leaderTemplate"):
        return KueuePodSets((replace(worker, name="main", count=size),), groups)
    own = pod_set_of("worker", size - 1, group.part("workerTemplate"))
    return KueuePodSets((replace(leader, count=1), own), groups)


def _ray_job(spec: ObjectPart) -> KueuePodSets:
    """A job on an existing cluster is not managed by Kueue. KubeRay adds the submitter: as a pod of its own,
    or beside the head."""
    if spec.part("clusterSelector"):
        return KueuePodSets()
    mode = spec.text("submissionMode", _K8S_JOB)
    beside_head = [_SUBMITTER] if mode == "SidecarMode" else []
    pod_sets = _ray(spec.part("rayClusterSpec"), beside_head)
    if mode != _K8S_JOB or not pod_sets:
        return _one(pod_sets)
    own = spec.part("submitterPodTemplate")
    template = own if own else ObjectPart({"spec": {"containers": [_SUBMITTER]}})
    return _one((*pod_sets, pod_set_of("submitter", 1, template)))


def _ray(cluster: ObjectPart, beside_head: list[dict[str, Any]] | None = None) -> tuple[PodSet, ...]:
    """Head and workers. Workers are counted as they are written: 1 where no number is given, whatever their
    minimum and maximum, and also while suspended."""
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


def _with(template: ObjectPart, containers: list[dict[str, Any]]) -> ObjectPart:
    """The same template with further containers."""
    if not containers:
        return template
    spec = template.raw("spec")
    spec = spec if isinstance(spec, dict) else {}
    own = spec.get("containers")
    inside = [*own, *containers] if isinstance(own, list) else containers
    return ObjectPart({"metadata": template.raw("metadata"), "spec": {**spec, "containers": inside}})


_NODE = "node"
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_JOB_SET = job_parser("jobset.x-k8s.io/v1alpha2", "JobSet")
_Json = dict[str, Any]


class TrainJobRuntime(NamedTuple):
    """A runtime; with an empty ``namespace``, for all namespaces."""

    kind: str
    namespace: str
    name: str


def runtime_of(document: Mapping[str, Any], namespace: str) -> TrainJobRuntime:
    """The runtime that a TrainJob names."""
    reference = ObjectPart(document).part("spec").part("runtimeRef")
    kind = reference.text("kind") or "ClusterTrainingRuntime"
    return TrainJobRuntime(kind, "" if kind.startswith("Cluster") else namespace, reference.text("name"))


def with_runtime(
    job: JobObject, document: Mapping[str, Any], runtime: Mapping[str, Any] | None
) -> tuple[JobObject, str]:
    """The job with pod sets, and what is unknown about them, in words; empty where nothing is."""
    spec = ObjectPart(document).part("spec")
    trainer = spec.part("trainer")
    if runtime is None:
        nodes = trainer.count("numNodes", 1)
        named = runtime_of(document, job.meta.namespace)
        template = _patched({"spec": {"containers": [_trained({"name": _NODE}, trainer)]}}, _NODE, document)
        job = replace(job, pod_sets=(_of(template, nodes),), gang_size=nodes or None)
        return job, f"its pods come from {named.kind} {named.name or '(none named)'}, which is not given"
    made = {"metadata": {"uid": job.meta.uid, "name": job.meta.name}, "spec": _job_set(document, runtime)}
    found = _JOB_SET(made)
    return replace(
        job,
        pod_sets=found.pod_sets,
        gang_size=found.gang_size,
        priority_class=found.priority_class or job.priority_class,
        flaws=(*job.flaws, *found.flaws),
    ), ""


def _of(template: _Json, nodes: int) -> PodSet:
    return pod_set_of(_NODE, nodes, ObjectPart(template))


def _job_set(document: Mapping[str, Any], runtime: Mapping[str, Any]) -> _Json:
    trainer = ObjectPart(document).part("spec").part("trainer")
    policy = ObjectPart(runtime).part("spec")
    nodes = trainer.count("numNodes") or policy.part("mlPolicy").count("numNodes", 1)
    replicated = policy.part("template").part("spec").parts("replicatedJobs")
    return {"replicatedJobs": [_replicated(each, nodes, trainer, document) for each in replicated]}


def _replicated(each: ObjectPart, nodes: int, trainer: ObjectPart, document: Mapping[str, Any]) -> _Json:
    job, name = each.part("template"), each.text("name")
    step = job.part("metadata").part("labels").text(_STEP)
    spec = {key: job.part("spec").raw(key) for key in ("parallelism", "completions", "template")}
    template = spec["template"] if isinstance(spec["template"], dict) else {}
    if step == "trainer" or (not step and name == _NODE):
        spec |= {"parallelism": nodes, "completions": nodes}
        pod = template.get("spec")
        containers = pod.get("containers") if isinstance(pod, dict) else None
        if isinstance(pod, dict) and isinstance(containers, list):
            trained = [_trained(one, trainer) if isinstance(one, dict) else one for one in containers]
            template = {**template, "spec": {**pod, "containers": trained}}
    spec["template"] = _patched(template, name, document)
    return {
        "name": name,
        "replicas": each.raw("replicas"),
        "dependsOn": each.raw("dependsOn"),
        "template": {"spec": spec},
    }


def _trained(container: _Json, trainer: ObjectPart) -> _Json:
    """The trainer's resources are those of the container named node."""
    own = trainer.raw("resourcesPerNode")
    return {**container, "resources": own} if own and container.get("name") == _NODE else container


def _patched(template: _Json, name: str, document: Mapping[str, Any]) -> _Json:
    for patch in _patches(document, name):
        template = _merged(template, patch)
    return template


def _patches(document: Mapping[str, Any], name: str) -> Iterator[_Json]:
    """Of the pod template of one replicated job, in order: all three forms that the API has had."""
    spec = ObjectPart(document).part("spec")
    for key in ("podSpecOverrides", "podTemplateOverrides"):
        for each in spec.parts(key):
            if name in (target.text("name") for target in each.parts("targetJobs")):
                if key == "podTemplateOverrides":
                    yield _kept({"metadata": each.raw("metadata"), "spec": each.raw("spec")})
                else:
                    yield {"spec": {field: each.raw(field) for field in each if field != "targetJobs"}}
    for each in spec.parts("runtimePatches"):
        patched = each.part("trainingRuntimeSpec").part("template").part("spec")
        for one in patched.parts("replicatedJobs"):
            if one.text("name") == name:
                yield _kept({"spec": one.part("template").part("spec").part("template").raw("spec")})


def _kept(patch: _Json) -> _Json:
    """Containers of a patch have no resources, and would replace those that do."""
    spec = patch.get("spec")
    if not isinstance(spec, dict):
        return {key: value for key, value in patch.items() if key != "spec" and isinstance(value, dict)}
    kept = {key: value for key, value in spec.items() if key not in ("containers", "initContainers")}
    return {key: value for key, value in {**patch, "spec": kept}.items() if isinstance(value, dict)}


def _merged(below: _Json, above: _Json) -> _Json:
    """Mappings are merged key by key; any other value is taken from ``above``."""
    read = dict(below)
    for key, value in above.items():
        own = read.get(key)
        read[key] = _merged(own, value) if isinstance(own, dict) and isinstance(value, dict) else value
    return read


def runtimes(
    documents: Iterable[Mapping[str, Any]], default: str
) -> dict[TrainJobRuntime, Mapping[str, Any]]:
    """The runtimes of a file by what names them; ``default`` is the namespace of those that name none."""
    found = {}
    for each in documents:
        kind = each.get("kind")
        if kind in ("TrainingRuntime", "ClusterTrainingRuntime"):
            metadata = ObjectPart(each).part("metadata")
            namespace = "" if kind.startswith("Cluster") else metadata.text("namespace") or default
            found[TrainJobRuntime(kind, namespace, metadata.text("name"))] = each
    return found
