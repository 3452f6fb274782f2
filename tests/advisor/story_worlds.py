"""Small clusters of real objects, what the commands say of a job in them, and changes carried out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from gpucost.advisor.suggest.patches import patched
from gpucost.cli.application import app
from tests.support.cluster import shapes
from tests.support.objects import condition, kueue, metadata, volcano

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
NOW = 1_792_800_000_000
HOUR = 3_600_000
NS = "ml"
RACK = "topology.example.com/rack"
HOST = "kubernetes.io/hostname"
SHORT = "0/{nodes} nodes are available: {nodes} Insufficient nvidia.com/gpu."


# Objects


def nodes(count: int, gpus: int = 8, *, per_rack: int = 0, advertised: int | None = None) -> list[Json]:
    """H100 nodes ``gpu-1`` and so on, of ``per_rack`` nodes each rack; ``advertised`` units where these are
    fewer than the GPUs, 0: the resource is missing."""
    found = []
    for at in range(count):
        labels = {
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
            "nvidia.com/gpu.count": str(gpus),
        }
        if per_rack:
            labels[RACK] = f"rack-{at // per_rack + 1}"
        units = gpus if advertised is None else advertised
        found.append(shapes.node(f"gpu-{at + 1}", NOW - 240 * HOUR, {GPU: units} if units else {}, labels))
    return found


def namespace() -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata(NS)}


def quotas(gpus: int) -> dict[str, dict[str, Any]]:
    return {"h100": {GPU: str(gpus), "cpu": "1000", "memory": "16Ti"}}


def plain_job(name: str, pods: int, gpus: int, placed: Sequence[str], message: str) -> list[Json]:
    """A Job that no queue holds and its pods: the first ones on the nodes ``placed``, the others pending."""
    job = shapes.job(NS, name, NOW - HOUR, pods, shapes.template(GPU, gpus))
    job["spec"]["suspend"] = False
    found = [job]
    for at in range(pods):
        own = f"{name}-{at}"
        pod = shapes.pod(NS, own, f"pod-{own}", NOW - 3 * HOUR, GPU, gpus, owner=shapes.reference(job))
        found.append(bound(pod, placed[at]) if at < len(placed) else unbound(pod, message))
    return found


def serving(node: str, gpus: int) -> Json:
    """A pod without a queue that stays."""
    return bound(shapes.pod("web", f"serve-{node}", f"serve-{node}", NOW - 48 * HOUR, GPU, gpus), node)


def kueue_job(name: str, pods: int, gpus: int, *, priority_class: str = "", topology: str = "") -> Json:
    """A suspended Job whose pods all need each other; ``topology`` is a required level."""
    template = shapes.template(GPU, gpus)
    if topology:
        template["metadata"] = {"annotations": {"kueue.x-k8s.io/podset-required-topology": topology}}
    labels = {"kueue.x-k8s.io/queue-name": "team"}
    if priority_class:
        labels["kueue.x-k8s.io/priority-class"] = priority_class
    return shapes.job(NS, name, NOW - HOUR, pods, template, labels=labels)


def workload_of(
    job: Json,
    *,
    priorities: Mapping[str, int] | None = None,
    placed: Mapping[str, int] | None = None,
    levels: Sequence[str] = (),
    message: str = "",
) -> Json:
    """As Kueue makes it. ``priorities`` are values of classes. With ``placed`` (pods by node) it is admitted
    in ClusterQueue ``ml``, with ``levels`` by topology."""
    named = job["metadata"]["labels"].get("kueue.x-k8s.io/priority-class", "")
    name, spec = job["metadata"]["name"], job["spec"]
    template = deepcopy(spec["template"])
    annotations = template.pop("metadata", {}).get("annotations", {})
    asked = {
        "required": annotations.get("kueue.x-k8s.io/podset-required-topology"),
        "preferred": annotations.get("kueue.x-k8s.io/podset-preferred-topology"),
    }
    topology = {key: value for key, value in asked.items() if value}
    resources = template["spec"]["containers"][0]["resources"]["requests"]
    pods = spec["parallelism"]
    pod_set = {"name": "main", "count": pods, "template": template}
    if topology:
        pod_set["topologyRequest"] = topology
    state: Json = {"conditions": [condition("QuotaReserved", False, "Pending", message, NOW - HOUR)]}
    if placed is not None:
        usage = {GPU: int(resources[GPU]) * pods, "cpu": 8 * pods, "memory": f"{64 * pods}Gi"}
        held = {
            "name": "main",
            "flavors": dict.fromkeys(usage, "h100"),
            "resourceUsage": {key: str(amount) for key, amount in usage.items()},
            "count": pods,
        }
        if levels:
            domains = [((node,), count) for node, count in placed.items()]
            held["topologyAssignment"] = kueue.topology_assignment(levels, domains)
        state = {
            "cluster_queue": "ml",
            "assignments": [held],
            "conditions": [condition("QuotaReserved"), condition("Admitted")],
        }
    return kueue.workload(
        f"job-{name}",
        NS,
        queue="team",
        pod_sets=[pod_set],
        priority=(priorities or {}).get(named, 0),
        priority_class=named,
        created=NOW - HOUR,
        owner=shapes.reference(job),
        **state,
    )


def running_job(name: str, nodes_: Sequence[str], gpus: int, levels: Sequence[str] = ()) -> list[Json]:
    """Admitted at the lowest priority, one pod of ``gpus`` on each node: Job, Workload and pods."""
    job = kueue_job(name, len(nodes_), gpus)
    job["spec"]["suspend"] = False
    pods = [
        shapes.pod(
            NS, f"{name}-{at}", f"pod-{name}-{at}", NOW - 2 * HOUR, GPU, gpus, owner=shapes.reference(job)
        )
        for at in range(len(nodes_))
    ]
    held = workload_of(job, placed=dict.fromkeys(nodes_, 1), levels=levels)
    return [job, held, *(bound(pod, node) for pod, node in zip(pods, nodes_, strict=True))]


def bound(pod: Json, node: str) -> Json:
    """Running on a node since two hours."""
    started = pod["metadata"]["creationTimestamp"]
    pod["spec"]["nodeName"] = node
    pod["status"] |= {"phase": "Running", "containerStatuses": shapes.running(started), "startTime": started}
    shapes.set_condition(pod, "PodScheduled", True, "", NOW - 2 * HOUR)
    shapes.set_condition(pod, "Ready", True, "", NOW - 2 * HOUR)
    return pod


def unbound(pod: Json, message: str) -> Json:
    shapes.set_condition(pod, "PodScheduled", False, "Unschedulable", NOW - HOUR, message)
    return pod


def volcano_job(
    name: str, replicas: int, minimum: int, gpus: int, placed: Sequence[str], *, message: str = ""
) -> list[Json]:
    """A Volcano job of one task, its PodGroup, and its pods: the first ones on the nodes ``placed``, the
    others pending."""
    job = shapes.volcano_job(NS, name, NOW - 3 * HOUR, replicas, "default", shapes.template(GPU, gpus))
    job["spec"]["minAvailable"] = minimum
    if minimum < replicas:
        del job["spec"]["tasks"][0]["minAvailable"]
    group = volcano.pod_group(
        f"{name}-1a2b",
        NS,
        min_member=minimum,
        min_task_member={"worker": job["spec"]["tasks"][0].get("minAvailable", replicas)},
        min_resources={GPU: str(gpus * minimum)},
        phase="Running" if len(placed) >= minimum else "Inqueue",
        running=len(placed),
        owner=shapes.reference(job),
        created=NOW - 3 * HOUR,
    )
    found = [job, group]
    for at in range(replicas):
        pod = shapes.pod(
            NS,
            f"{name}-worker-{at}",
            f"{name}-worker-{at}",
            NOW - 3 * HOUR,
            GPU,
            gpus,
            owner=shapes.reference(job),
            annotations={
                "scheduling.k8s.io/group-name": group["metadata"]["name"],
                "volcano.sh/task-spec": "worker",
            },
            scheduler="volcano",
        )
        found.append(bound(pod, placed[at]) if at < len(placed) else unbound(pod, message or "no room"))
    return found


# Commands


class Cluster:
    """Objects in a dump, and the commands asked about it. ``folder`` is where they run."""

    def __init__(self, folder: Path, objects: Sequence[Json]) -> None:
        self.folder, self.objects = folder, [*objects]

    def screen(self, subject: str) -> str:
        """What ``gpucost explain`` prints."""
        return self._run("explain", subject, "-n", NS)

    def explain(self, subject: str) -> Json:
        return dict(self._json("explain", subject, "-n", NS, "--format", "json"))

    def advise(self, manifest: Json) -> Json:
        """Of a job that is not there."""
        (self.folder / "job.yaml").write_text(yaml.safe_dump(manifest), encoding="utf-8")
        (found,) = self._json("advise", "-f", "job.yaml", "-n", NS, "--format", "json")
        return dict(found)

    def advise_screen(self, *more: str) -> str:
        """What ``gpucost advise`` prints of the manifest that was asked about last."""
        return self._run("advise", "-f", "job.yaml", "-n", NS, *more)

    def find(self, kind: str, name: str) -> Json:
        return next(each for each in self.objects if (each["kind"], each["metadata"]["name"]) == (kind, name))

    def after(self, change: Mapping[str, Any], how: How) -> Cluster:
        """Where a change of an administrator was carried out."""
        kind, _, name = change["target"].partition("/")
        found = []
        for each in self.objects:
            is_it = (each["kind"].lower(), each["metadata"]["name"]) == (kind, name)
            found.append(how(each, change) if is_it else each)
        assert found != self.objects
        return Cluster(self.folder, found)

    def with_(self, *objects: Json) -> Cluster:
        """With these beside or in place of those of their uid."""
        uids = {each["metadata"]["uid"] for each in objects}
        left = [each for each in self.objects if each["metadata"]["uid"] not in uids]
        return Cluster(self.folder, [*left, *objects])

    def without(self, name: str) -> Cluster:
        """The cluster after a job was deleted, with all it owned."""
        gone = {each["metadata"]["uid"] for each in self.objects if each["metadata"]["name"] == name}
        left = [
            each
            for each in self.objects
            if each["metadata"]["uid"] not in gone
            and not any(one["uid"] in gone for one in each["metadata"].get("ownerReferences", ()))
        ]
        assert len(left) < len(self.objects)
        return Cluster(self.folder, left)

    def _json(self, *words: str) -> Any:
        return json.loads(self._run(*words))

    def _run(self, *words: str) -> str:
        dump = {"apiVersion": "v1", "kind": "List", "items": self.objects}
        (self.folder / "state.json").write_text(json.dumps(dump), encoding="utf-8")
        at = "2026-10-24T00:00:00Z"
        result = CliRunner().invoke(app, [*words, "--state", "state.json", "--at", at])
        assert result.exit_code == 0, result.output
        return result.stdout


def manifest_of(job: Json) -> Json:
    """As its author has it: without what the API server added."""
    named = job["metadata"]
    kept = {key: named[key] for key in ("name", "namespace", "labels", "annotations") if key in named}
    return {"apiVersion": job["apiVersion"], "kind": job["kind"], "metadata": kept, "spec": job["spec"]}


How = Callable[[Json, Mapping[str, Any]], Json]
"""A way to carry a printed change out."""


def by_operations(document: Json, change: Mapping[str, Any]) -> Json:
    return patched(document, change["operations"])


def by_yaml(document: Json, change: Mapping[str, Any]) -> Json:
    """As a person does who edits what the patch shows: null takes a field away, members of lists are those
    of their name."""
    return dict(_merged(document, yaml.safe_load(change["patch"])))


def _merged(value: Any, patch: Any) -> Any:
    if isinstance(patch, dict) and isinstance(value, dict):
        found = {**value, **{key: _merged(value.get(key), inner) for key, inner in patch.items()}}
        return {key: inner for key, inner in found.items() if inner is not None}
    if isinstance(patch, list) and isinstance(value, list) and all("name" in each for each in patch):
        by_name = {each["name"]: each for each in patch}
        return [_merged(each, by_name.get(each["name"], {})) for each in value]
    if isinstance(patch, list) and isinstance(value, list) and len(patch) == len(value):
        return [_merged(*each) for each in zip(value, patch, strict=True)]
    if isinstance(patch, dict):
        return {key: inner for key, inner in patch.items() if inner is not None}
    return patch


def step(found: Json, layer: str) -> Json:
    return next(dict(each) for each in found["steps"] if each["layer"] == layer)


def facts(found: Json, layer: str = "quota") -> list[tuple[str, str, str]]:
    return [(each["object"], each["field"], each["value"]) for each in step(found, layer)["evidence"]]


def queues(gpus: int = 16, stopped: str = "", local_stopped: str = "") -> list[Json]:
    inactive = condition("Active", False, "Stopped", "Can't admit new workloads: it is stopped", NOW - HOUR)
    active: dict[str, Any] = {"conditions": [inactive]} if stopped else {}
    return [
        namespace(),
        *nodes(2),
        kueue.resource_flavor("h100"),
        kueue.cluster_queue("ml", quotas=quotas(gpus), stop_policy=stopped or "None", **active),
        kueue.local_queue("team", "ml", NS, stop_policy=local_stopped or "None"),
        *running_job("other", ["gpu-1"], 8),
    ]


def with_conditions(workload: Json, *conditions: Any, active: bool = True) -> Json:
    workload["spec"]["active"] = active
    workload["status"]["conditions"] = [*conditions]
    return workload
