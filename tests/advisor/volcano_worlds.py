"""Small clusters under Volcano, for tests of its rules. Amounts are GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpucost.advisor.volcano.answer import VolcanoAnswer, volcano_answer
from gpucost.advisor.volcano.gang import VolcanoGang
from gpucost.advisor.volcano.session import VolcanoSession
from gpucost.cluster.objects.jobs import JobManifest, JobObject, PriorityClass
from gpucost.cluster.objects.pods import Pod, PodSet
from gpucost.cluster.objects.scheduler_config import VolcanoConfig
from gpucost.cluster.objects.volcano import VolcanoQueue
from gpucost.cluster.views.overview import ClusterOverview
from tests.cluster.builders import GPU, T0, job, meta, pod, pod_group, pod_set, state, template

NOW = T0 + 3_600_000
EVICTING = ("enqueue", "allocate", "preempt", "reclaim", "backfill")
FLAT = (("priority", "gang", "conformance"), ("overcommit", "drf", "predicates", "capacity", "nodeorder"))
NO_QUOTA = VolcanoConfig(
    tiers=(("priority", "gang", "conformance"), ("overcommit", "drf", "predicates")), is_read=True
)
"""So that only overcommit votes: no queue gets more than the cluster has."""
ONE_TIER = (("priority", "gang", "conformance", "overcommit", "predicates", "proportion"),)


def queue(name: str, capability: int | None = None, **fields: Any) -> VolcanoQueue:
    """Open; ``capability``, ``deserved`` and ``guarantee`` in GPUs."""
    for key in ("deserved", "guarantee"):
        if isinstance(fields.get(key), int):
            fields[key] = {GPU: fields[key]}
    limit = None if capability is None else {GPU: capability}
    return VolcanoQueue(meta(name, ""), capability=limit, **{"state": "Open", **fields})


def running(
    name: str, pods: int, gpus: int = 1, *, on: str = "n1", queue: str = "default", least: int | None = None,
    priority: int = 0, phase: str = "Running", **fields: Any,
) -> list[object]:  # fmt: skip
    """A PodGroup whose ``pods`` run on a node."""
    rest = {"phase": phase, "queue": queue, "min_resources": {GPU: gpus * (least or pods)}}
    if priority:
        rest["priority_class"] = f"p{priority}"
    group = pod_group(name, pods if least is None else least, rest={**rest, **fields})
    return [group, *(member(name, at, gpus, node=on, priority=priority) for at in range(pods))]


def waiting(
    name: str, pods: int, gpus: int = 1, *, queue: str = "default", phase: str = "Inqueue", age_ms: int = 0,
    priority: int = 0, **fields: Any,
) -> list[object]:  # fmt: skip
    """A PodGroup whose ``pods`` have no node."""
    rest = {"phase": phase, "queue": queue, "min_resources": {GPU: gpus * pods}, **fields}
    if priority:
        rest["priority_class"] = f"p{priority}"
    group = pod_group(name, pods, rest=rest, created_ms=NOW - age_ms)
    return [group, *(member(name, at, gpus, priority=priority) for at in range(pods))]


def member(name: str, at: int, gpus: int, **fields: Any) -> Pod:
    return pod(f"{name}-{at}", gpus, annotations={"scheduling.k8s.io/group-name": name}, **fields)


def classes(*values: int) -> dict[str, Any]:
    return {"priority_classes": [PriorityClass(meta(f"p{value}", ""), value) for value in values]}


def gang(pods: int = 1, gpus: int = 1, queue: str = "default", **fields: Any) -> VolcanoGang:
    """A Volcano job of one task, as it would be submitted."""
    least = fields.pop("min_member", pods)
    per_task = fields.pop("min_task_member", {})
    asks = fields.pop("asks", None) or template(gpus)
    own = {"min_resources": {GPU: gpus * least}, "topology": {}, **fields}
    return VolcanoGang(
        "team-a", "new", queue, own.pop("priority", 0), least, per_task,
        own.pop("tasks", (PodSet("main", pods, asks),)), own.pop("min_resources"), own.pop("topology"),
        NOW, **own,
    )  # fmt: skip


def world(*objects: object, config: VolcanoConfig | None = None, **collections: Any) -> VolcanoSession:
    """With queue ``default`` unless queues are named."""
    flat = [each for one in objects for each in (one if isinstance(one, list) else [one])]
    if not any(isinstance(each, VolcanoQueue) for each in flat):
        flat.append(queue("default"))
    return VolcanoSession(ClusterOverview(state(*flat, **collections)), config or VolcanoConfig(is_read=True))


def asked(gang_: VolcanoGang, *objects: object, **fields: Any) -> VolcanoAnswer:
    return volcano_answer(gang_, world(*objects, **fields))


def with_actions(*actions: str, **fields: Any) -> VolcanoConfig:
    return VolcanoConfig(actions=actions, is_read=True, **fields)


CAPACITY = with_actions("enqueue", "allocate", tiers=FLAT)
TREE = replace(CAPACITY, arguments={"capacity": {"enableHierarchy": "true"}})


def short(answer: VolcanoAnswer) -> tuple[str, str]:
    return answer.decision.value, answer.reason


def vcjob(pods: int, gpus: int = 1, **fields: Any) -> JobObject:
    return job(
        "train", "Job", "batch.volcano.sh/v1alpha1",
        pod_sets=(pod_set("main", pods, gpus),), gang_size=fields.pop("gang_size", pods), **fields,
    )  # fmt: skip


def manifest(made: JobObject, **fields: Any) -> JobManifest:
    return JobManifest(replace(made, meta=replace(made.meta, created_ms=NOW)), **fields)
