"""TrainJobs, whose pod templates are in a runtime that somebody else wrote.

Where the runtime stands beside the job, the JobSet that comes of both is made as far as it decides what the
pods ask for (kubeflow/trainer v2, pkg/runtime/framework/plugins/jobset): the number of nodes and their
resources, and patches of the pod templates. Otherwise only the trainer's own fields are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from gpucost.cluster.jobs import JobObject
from gpucost.cluster.pods import PodSet
from gpucost.kube.parse.job_shapes import pod_set_of
from gpucost.kube.parse.jobs import job_parser
from gpucost.kube.parse.reading import Part

GROUP = "trainer.kubeflow.org"
_NODE = "node"
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_JOB_SET = job_parser("jobset.x-k8s.io/v1alpha2", "JobSet")
_Json = dict[str, Any]


class Runtime(NamedTuple):
    """Empty ``namespace``: for all namespaces."""

    kind: str
    namespace: str
    name: str


def runtime_of(document: Mapping[str, Any], namespace: str) -> Runtime:
    """The one that a TrainJob names."""
    reference = Part(document).part("spec").part("runtimeRef")
    kind = reference.text("kind") or "ClusterTrainingRuntime"
    return Runtime(kind, "" if kind.startswith("Cluster") else namespace, reference.text("name"))


def with_runtime(
    job: JobObject, document: Mapping[str, Any], runtime: Mapping[str, Any] | None
) -> tuple[JobObject, str]:
    """The job with pod sets, and what is not known of them, in words; empty where all is."""
    spec = Part(document).part("spec")
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
    return pod_set_of(_NODE, nodes, Part(template))


def _job_set(document: Mapping[str, Any], runtime: Mapping[str, Any]) -> _Json:
    trainer = Part(document).part("spec").part("trainer")
    policy = Part(runtime).part("spec")
    nodes = trainer.count("numNodes") or policy.part("mlPolicy").count("numNodes", 1)
    replicated = policy.part("template").part("spec").parts("replicatedJobs")
    return {"replicatedJobs": [_replicated(each, nodes, trainer, document) for each in replicated]}


def _replicated(each: Part, nodes: int, trainer: Part, document: Mapping[str, Any]) -> _Json:
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


def _trained(container: _Json, trainer: Part) -> _Json:
    """The trainer's resources are those of the container that is called node."""
    own = trainer.raw("resourcesPerNode")
    return {**container, "resources": own} if own and container.get("name") == _NODE else container


def _patched(template: _Json, name: str, document: Mapping[str, Any]) -> _Json:
    for patch in _patches(document, name):
        template = _merged(template, patch)
    return template


def _patches(document: Mapping[str, Any], name: str) -> Iterator[_Json]:
    """Of the pod template of one replicated job, in order: all three forms that the API has had."""
    spec = Part(document).part("spec")
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
    """Containers of a patch hold no resources, and would take the place of those that do."""
    spec = patch.get("spec")
    if not isinstance(spec, dict):
        return {key: value for key, value in patch.items() if key != "spec" and isinstance(value, dict)}
    kept = {key: value for key, value in spec.items() if key not in ("containers", "initContainers")}
    return {key: value for key, value in {**patch, "spec": kept}.items() if isinstance(value, dict)}


def _merged(below: _Json, above: _Json) -> _Json:
    """Mappings key by key; what is anything else is taken from ``above``."""
    read = dict(below)
    for key, value in above.items():
        own = read.get(key)
        read[key] = _merged(own, value) if isinstance(own, dict) and isinstance(value, dict) else value
    return read


def runtimes(documents: Iterable[Mapping[str, Any]], default: str) -> dict[Runtime, Mapping[str, Any]]:
    """Those of a file by what names them; ``default`` is the namespace of those that name none."""
    found = {}
    for each in documents:
        kind = each.get("kind")
        if kind in ("TrainingRuntime", "ClusterTrainingRuntime"):
            metadata = Part(each).part("metadata")
            namespace = "" if kind.startswith("Cluster") else metadata.text("namespace") or default
            found[Runtime(kind, namespace, metadata.text("name"))] = each
    return found
