"""A manifest of a job that exists, made of what is kept of it: the reverse of ``reader``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpucost.cluster.objects.jobs import Document, JobObject
from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.objects.pods import PodSet, SelectorRequirement, Toleration
from gpucost.cluster.objects.volcano import GroupKind, PodGroup
from gpucost.cluster.views.ownership import KUEUE_QUEUES, VOLCANO_QUEUES
from gpucost.domain.errors import InputError
from gpucost.domain.jobs import JobKind
from gpucost.kube.parse.fields import ObjectPart
from gpucost.kube.parse.job_shapes import ROLES, pods_of_job, pods_of_workers
from gpucost.kube.parse.jobs import KUEUE_PRIORITY
from gpucost.kube.parse.templates import TOPOLOGY_ANNOTATIONS

Json = dict[str, Any]
_QUEUE = KUEUE_QUEUES[1]
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_REQUESTS = ("required", "preferred", "unconstrained", "group", "slice", "slice_size")
_ANNOTATIONS = dict(zip(_REQUESTS, TOPOLOGY_ANNOTATIONS, strict=True))
"""Annotations of pod templates, by the key of ``PodSet.topology``."""
_TIERS = {"mode": "mode", "highest_tier": "highestTierAllowed", "highest_tier_name": "highestTierName"}
"""Fields of a network topology of Volcano, by the key of ``PodGroup.topology``."""
_LEAST_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"
_ROLE_NAMES = {role.lower(): role for role in ROLES}
_OTHER_PODS = [{"maxSkew": 1, "topologyKey": "rebuilt", "whenUnsatisfiable": "DoNotSchedule"}]
_SUBMITTER = "submitter"
_IMAGE = "rebuilt"
_LABELS = {"app": "rebuilt"}


def document_of(job: JobObject, workload: Workload | None = None, group: PodGroup | None = None) -> Document:
    """The manifest that ``job`` could have been made from, as far as the advisor reads it.

    Read again it has the same pod sets, gangs and priority class, in the fields that say how many pods there
    are and to which containers that ask for resources by name: people see the patch of what changed, and it
    must be one of the real object. Its LocalQueue and its priority class of Kueue are those of ``workload``
    where the object names none; its Volcano queue and network topology those of ``group``. The document is
    only input of the advisor and never applied as a whole.

    What is not kept comes back in its simplest form: images, init containers as one that asks for what is
    left, rules about other pods as one spreading rule that stands for them, and where the containers or
    counts are not known one container, ``main``, and pods of one copy. Claims come back as templates.

    Raises InputError for a kind without pod templates of its own (a TrainJob has them in its runtime), and
    where a job of another kind has no pods.
    """
    write = _SPECS.get(job.job_kind)
    if write is None or not job.pod_sets:
        allowed = "a job with pod templates of its own"
        raise InputError(job.kind, job.meta.name, allowed)
    spec = write(job)
    metadata = _metadata(job, workload)
    if group is not None and group.group_kind is GroupKind.VOLCANO:
        _into_volcano(job, group, spec, metadata)
    document: Json = {"apiVersion": job.api_version, "kind": job.kind, "metadata": metadata, "spec": spec}
    if job.job_kind is JobKind.CRON_JOB:
        inner = {key: metadata.pop(key) for key in ("labels", "annotations") if key in metadata}
        template = {"metadata": inner, "spec": spec}
        document["spec"] = {"schedule": "@yearly", "jobTemplate": template}
    if job.job_kind is JobKind.DAEMON_SET:
        document["status"] = {"desiredNumberScheduled": job.pods_wanted}
    return document


def _metadata(job: JobObject, workload: Workload | None) -> Json:
    meta = job.meta
    labels, annotations = dict(meta.labels), dict(meta.annotations)
    if workload is not None:
        if workload.queue and not (labels.get(_QUEUE) or annotations.get(_QUEUE)):
            labels[_QUEUE] = workload.queue
        if workload.priority_class_of_kueue and workload.priority_class:
            labels.setdefault(KUEUE_PRIORITY, workload.priority_class)
    if job.job_kind in (JobKind.JOB, JobKind.CRON_JOB):
        fewest, count = job.pod_sets[0].min_count, job.pod_sets[0].count
        annotations.pop(_LEAST_PARALLELISM, None)
        if fewest is not None and fewest < count:
            annotations[_LEAST_PARALLELISM] = str(fewest)
    if job.job_kind is JobKind.POD:
        annotations |= _topology(job.pod_sets[0])
    found: Json = {"name": meta.name, "namespace": meta.namespace}
    return found | {key: held for key, held in (("labels", labels), ("annotations", annotations)) if held}


def _into_volcano(job: JobObject, group: PodGroup, spec: Json, metadata: Json) -> None:
    """Queue and network topology, which a Volcano job has in its spec and others in annotations."""
    if job.job_kind is not JobKind.VOLCANO_JOB:
        annotations = metadata.setdefault("annotations", {})
        if group.queue and not any(annotations.get(key) for key in VOLCANO_QUEUES):
            annotations[VOLCANO_QUEUES[0]] = group.queue
        return
    if group.queue:
        spec["queue"] = group.queue
    said = {written: group.topology[key] for key, written in _TIERS.items() if key in group.topology}
    if said:
        spec["networkTopology"] = {
            key: int(value) if value.isdecimal() else value for key, value in said.items()
        }


# Pod templates


def _template(pod_set: PodSet) -> Json:
    annotations = _topology(pod_set)
    found: Json = {"metadata": {"annotations": annotations}} if annotations else {}
    return found | {"spec": _pod_spec(pod_set)}


def _topology(pod_set: PodSet) -> dict[str, str]:
    return {_ANNOTATIONS[key]: value for key, value in pod_set.topology.items()}


def _pod_spec(pod_set: PodSet) -> Json:
    template = pod_set.template
    affinity = [_term(each) for each in template.affinity]
    required = {_REQUIRED: {"nodeSelectorTerms": affinity}}
    claims = [
        {"name": f"claim-{at}", "resourceClaimTemplateName": name} for at, name in enumerate(template.claims)
    ]
    found: Json = {
        **_containers(pod_set),
        "nodeSelector": dict(template.node_selector),
        "affinity": {"nodeAffinity": required} if affinity else {},
        "tolerations": [_toleration(each) for each in template.tolerations],
        "preemptionPolicy": "Never" if template.never_preempts else "",
        "priorityClassName": template.priority_class,
        "schedulerName": template.scheduler,
        "resourceClaims": claims,
        "topologySpreadConstraints": _OTHER_PODS if template.has_pod_affinity else [],
    }
    return {key: value for key, value in found.items() if value}


def _containers(pod_set: PodSet) -> Json:
    """The known containers, and one before them with the rest of the pod's request."""
    asked: dict[str, int] = {}
    for each in pod_set.containers:
        for resource, amount in {**each.limits, **each.requests}.items():
            asked[resource] = asked.get(resource, 0) + amount
    total = pod_set.template.requests
    if not pod_set.containers or any(amount > total.get(key, 0) for key, amount in asked.items()):
        return {"containers": [{"name": "main", "image": _IMAGE, **_resources(total)}]}
    rest = {key: amount for key, amount in total.items() if amount != asked.get(key)}
    first = [{"name": "rebuilt-first", "image": _IMAGE, **_resources(rest)}] if rest else []
    own = [
        {"name": each.name, "image": _IMAGE, **_said(requests=each.requests, limits=each.limits)}
        for each in pod_set.containers
    ]
    return {"containers": own, "initContainers": first}


def _said(**amounts: Mapping[str, int]) -> Json:
    written = {key: _written(each) for key, each in amounts.items() if each}
    return {"resources": written} if written else {}


def _written(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: f"{amount}m" if name == "cpu" else str(amount) for name, amount in sorted(amounts.items())}


def _resources(requests: Mapping[str, int]) -> Json:
    """Limits equal to the request where Kubernetes requires that: devices and huge pages; the latter with a
    CPU limit beside them, without which they are refused."""
    limits = {
        name: amount for name, amount in requests.items() if "/" in name or name.startswith("hugepages-")
    }
    has_huge_pages = any(name.startswith("hugepages-") for name in limits)
    if has_huge_pages and not {"cpu", "memory"} & requests.keys():
        limits["cpu"], requests = 0, {**requests, "cpu": 0}
    return _said(requests=requests, limits=limits)


def _term(requirements: Sequence[SelectorRequirement]) -> Json:
    """A term without requirements is read as a single one without a name."""
    if requirements == (SelectorRequirement("", "In"),):
        return {}
    found: Json = {}
    for each in requirements:
        written: Json = {"key": each.key, "operator": each.operator}
        if each.values:
            written["values"] = list(each.values)
        found.setdefault("matchFields" if each.of_field else "matchExpressions", []).append(written)
    return found


def _toleration(toleration: Toleration) -> Json:
    found = {
        "key": toleration.key,
        "operator": "Exists" if toleration.exists else "Equal",
        "value": toleration.value,
        "effect": toleration.effect,
    }
    return {key: value for key, value in found.items() if value}


# Specs


def _smallest(pod_sets: Sequence[PodSet]) -> int:
    return sum(each.count if each.min_count is None else each.min_count for each in pod_sets)


def _own_class(job: JobObject) -> str:
    """The job's own priority class, if it comes neither from a template nor from a label."""
    of_templates = next(filter(None, (each.template.priority_class for each in job.pod_sets)), "")
    given = of_templates or job.meta.labels.get(KUEUE_PRIORITY, "")
    return "" if job.priority_class == given else job.priority_class


def _suspended(job: JobObject) -> Json:
    return {"suspend": True} if job.is_suspended else {}


def _job(job: JobObject) -> Json:
    (pods,) = job.pod_sets
    found: Json = {**_suspended(job), **_counts(pods, pods_of_job)}
    if job.gang_size is not None and not pods.stated:
        found |= {"completions": pods.count, "completionMode": "Indexed"}
    template = _template(pods)
    template["spec"]["restartPolicy"] = "Never"
    return found | {"template": template}


def _counts(pods: PodSet, counted: Callable[[ObjectPart], int]) -> Json:
    """The fields that decide how many pods there are, if their values still match."""
    stated = dict(pods.stated)
    if stated and counted(ObjectPart(stated)) == pods.count:
        return stated
    return {"parallelism": pods.count, **({} if counted is pods_of_job else {"completions": pods.count})}


def _job_set(job: JobObject) -> Json:
    """Jobs that must be complete first are found by how many pods the gang leaves out."""
    before = _of_sum(job.pod_sets, job.pods_wanted - (job.gang_size or 0))
    waits = [{"name": each, "status": "Complete"} for each in before]
    replicated = []
    for each in job.pod_sets:
        spec = _counts(each, _pods_of_copies)
        copies = spec.pop("replicas", 1)
        after = {"dependsOn": waits} if waits and each.name not in before else {}
        template = {"spec": {**spec, "template": _template(each)}}
        replicated.append({"name": each.name, "replicas": copies, "template": template, **after})
    return {**_suspended(job), "replicatedJobs": replicated}


def _pods_of_copies(stated: ObjectPart) -> int:
    return stated.count("replicas", 1) * pods_of_job(stated)


def _of_sum(pod_sets: Sequence[PodSet], pods: int) -> tuple[str, ...]:
    """Names of pod sets, the first ones that fit, which have that many pods together; none if none have."""
    found: dict[int, tuple[str, ...]] = {0: ()}
    for each in pod_sets:
        for size, names in list(found.items()):
            if size + each.count <= pods:
                found.setdefault(size + each.count, (*names, each.name))
    return found.get(pods, ())


def _kubeflow(replica_specs: str) -> Callable[[JobObject], Json]:
    def write(job: JobObject) -> Json:
        policy: Json = {}
        if job.gang_size and job.gang_size != _smallest(job.pod_sets):
            policy["minAvailable"] = job.gang_size
        if own := _own_class(job):
            policy["priorityClass"] = own
        run_policy = _suspended(job) | ({"schedulingPolicy": policy} if policy else {})
        fewest = next((each.min_count for each in job.pod_sets if each.min_count is not None), None)
        roles = {
            _ROLE_NAMES.get(each.name, each.name): {"replicas": each.count, "template": _template(each)}
            for each in job.pod_sets
        }
        found: Json = {"runPolicy": run_policy} if run_policy else {}
        if fewest is not None:
            found["elasticPolicy"] = {"minReplicas": fewest}
        return {**found, replica_specs: roles}

    return write


def _ray(pod_sets: Sequence[PodSet]) -> Json:
    head, *workers = pod_sets
    scales = any(each.min_count is not None for each in workers)
    found: Json = {"enableInTreeAutoscaling": True} if scales else {}
    groups = [{"groupName": each.name, **_workers(each), "template": _template(each)} for each in workers]
    return {**found, "headGroupSpec": {"template": _template(head)}, "workerGroupSpecs": groups}


def _workers(pods: PodSet) -> Json:
    stated = dict(pods.stated)
    if stated and pods_of_workers(ObjectPart(stated)) == pods.count:
        return stated
    fewest = pods.count if pods.min_count is None else pods.min_count
    return {"replicas": pods.count, "minReplicas": fewest, "maxReplicas": pods.count}


def _ray_job(job: JobObject) -> Json:
    """A submitter of its own is the last and no part of the gang."""
    *cluster, last = job.pod_sets
    has_own = last.name == _SUBMITTER and bool(cluster) and job.gang_size == _smallest(cluster)
    found = {**_suspended(job), "rayClusterSpec": _ray(cluster if has_own else job.pod_sets)}
    return found | ({"submitterPodTemplate": _template(last)} if has_own else {})


def _leader_worker_set(job: JobObject) -> Json:
    """Without a template of its own the leader is a worker."""
    leader, worker = job.pod_sets[0], job.pod_sets[-1]
    group: Json = {"size": job.gang_size or 1, "workerTemplate": _template(worker)}
    if (leader.template, leader.topology) != (worker.template, worker.topology):
        group["leaderTemplate"] = _template(leader)
    return {"replicas": job.gangs, "leaderWorkerTemplate": group}


def _replicas(job: JobObject) -> Json:
    return {"replicas": job.pod_sets[0].count, **_selected(job)}


def _selected(job: JobObject) -> Json:
    """With labels and the selector that matches them, for kinds that require one."""
    template = _template(job.pod_sets[0])
    template.setdefault("metadata", {})["labels"] = dict(_LABELS)
    return {"selector": {"matchLabels": dict(_LABELS)}, "template": template}


def _one_template(job: JobObject) -> Json:
    return {"template": _template(job.pod_sets[0])}


def _pod(job: JobObject) -> Json:
    """Each pod of a group is an object."""
    if job.pods_wanted != 1:
        raise InputError(job.kind, job.meta.name, "one pod")
    return _pod_spec(job.pod_sets[0])


def _volcano(job: JobObject) -> Json:
    """The minimum is always written, as Volcano's webhook writes it."""
    tasks = []
    for each in job.pod_sets:
        task: Json = {"name": each.name, "replicas": each.count}
        if each.min_count is not None:
            task["minAvailable"] = each.min_count
        tasks.append(task | {"template": _template(each)})
    own = _own_class(job)
    found: Json = {"minAvailable": job.gang_size, "tasks": tasks}
    return found | ({"priorityClassName": own} if own else {})


_SPECS: Mapping[JobKind, Callable[[JobObject], Json]] = {
    JobKind.JOB: _job,
    JobKind.CRON_JOB: _job,
    JobKind.JOB_SET: _job_set,
    JobKind.PYTORCH_JOB: _kubeflow("pytorchReplicaSpecs"),
    JobKind.TF_JOB: _kubeflow("tfReplicaSpecs"),
    JobKind.XGBOOST_JOB: _kubeflow("xgbReplicaSpecs"),
    JobKind.PADDLE_JOB: _kubeflow("paddleReplicaSpecs"),
    JobKind.JAX_JOB: _kubeflow("jaxReplicaSpecs"),
    JobKind.MPI_JOB: _kubeflow("mpiReplicaSpecs"),
    JobKind.RAY_JOB: _ray_job,
    JobKind.RAY_CLUSTER: lambda job: _suspended(job) | _ray(job.pod_sets),
    JobKind.RAY_SERVICE: lambda job: {"rayClusterConfig": _ray(job.pod_sets)},
    JobKind.VOLCANO_JOB: _volcano,
    JobKind.LEADER_WORKER_SET: _leader_worker_set,
    JobKind.DEPLOYMENT: _replicas,
    JobKind.STATEFUL_SET: _replicas,
    JobKind.REPLICA_SET: _replicas,
    JobKind.DAEMON_SET: _selected,
    JobKind.NOTEBOOK: _one_template,
    JobKind.POD: _pod,
}
