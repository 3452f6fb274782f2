"""One gang as Volcano's scheduler sees it: a PodGroup with its tasks, already made or still to be made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from gpucost.advisor.volcano.resource_amounts import (
    ResourceAmounts,
    counted,
    plus,
    times,
)
from gpucost.cluster.objects.jobs import JobManifest, JobObject
from gpucost.cluster.objects.metadata import Labels, Resources, added
from gpucost.cluster.objects.metadata import times as many
from gpucost.cluster.objects.pods import (
    Pod,
    PodPhase,
    PodSet,
    PodTemplate,
)
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.objects.volcano import GroupKind, PodGroup
from gpucost.cluster.views.node_fit import PODS
from gpucost.cluster.views.queue_order import pod_priority
from gpucost.cluster.views.volcano_queues import DEFAULT_QUEUE, queue_of
from gpucost.domain.jobs import JobKind

MIN_MEMBER = "scheduling.volcano.sh/group-min-member"
QUEUE_NAME = "scheduling.volcano.sh/queue-name"
TASK = "volcano.sh/task-spec"
SCHEDULER = "volcano"
_PARTS = ("partitionPolicy", "subGroupPolicy")


@dataclass(frozen=True)
class VolcanoGang:
    """``tasks`` are the pods that have no node yet; ``ready`` says how many of each task have one or
    succeeded, ``allocated`` what these hold and ``nodes`` where. ``min_task_member`` is by task.

    ``min_resources`` is None where the PodGroup states none. ``topology`` is as of ``PodGroup.topology``.
    ``phase`` is empty for one that is not submitted. ``unread`` are settings that change its fate and that
    gpucost does not follow. ``subject`` is (kind, uid) of the job it stands for. ``group`` is the name of its
    PodGroup where one was written by hand, empty where a controller will make it; ``is_group_missing`` says
    that its pods name one which does not exist.
    """

    namespace: str
    name: str
    queue: str
    priority: int
    min_member: int
    min_task_member: Mapping[str, int]
    tasks: tuple[PodSet, ...]
    min_resources: Resources | None
    topology: Mapping[str, str]
    created_ms: int
    uid: str = ""
    phase: str = ""
    ready: Mapping[str, int] = field(default_factory=dict)
    allocated: Resources = field(default_factory=dict)
    nodes: frozenset[str] = frozenset()
    unread: tuple[str, ...] = ()
    subject: tuple[str, str] = ("PodGroup", "")
    group: str = ""
    is_group_missing: bool = False

    @property
    def about(self) -> str:
        """The object that states its minimum, for evidence."""
        return f"podgroup/{self.group}" if self.group else f"job/{self.name}"

    @property
    def minimum_field(self) -> str:
        """The field that states it."""
        return "spec.minMember" if self.group else "spec.minAvailable"

    @property
    def is_pending(self) -> bool:
        """Whether it was not let in yet (JobInfo.IsPending)."""
        return self.phase in ("", "Pending")

    @cached_property
    def holds(self) -> ResourceAmounts:
        return counted(self.allocated)

    @cached_property
    def minimum(self) -> ResourceAmounts:
        """Its minResources as they count; nothing where it states none."""
        return counted(self.min_resources or {})

    @cached_property
    def minimum_key(self) -> object:
        """Equal for those of equal minResources."""
        return tuple(sorted(self.minimum.items()))

    @cached_property
    def wants(self) -> ResourceAmounts:
        """What all its waiting pods ask for."""
        return plus(*(times(asked_of(task.template), task.count) for task in self.tasks))

    @property
    def ready_count(self) -> int:
        return sum(self.ready.values())

    @property
    def size(self) -> int:
        """All its pods."""
        return self.ready_count + sum(task.count for task in self.tasks)

    @property
    def asks_per_task(self) -> bool:
        """Whether the minimum of each task counts: not when the gang's is below their sum
        (volcano, pkg/scheduler/api/job_info.go, CheckTaskReady, v1.15.1)."""
        return bool(self.min_task_member) and self.min_member >= sum(self.min_task_member.values())

    def is_ready(self, ready: Mapping[str, int], min_member: int) -> bool:
        """Whether with so many pods of each task it is complete."""
        if sum(ready.values()) < min_member:
            return False
        return not self.asks_per_task or all(
            ready.get(task, 0) >= least for task, least in self.min_task_member.items()
        )


def asked_of(template: PodTemplate) -> dict[str, float]:
    """What one pod counts in a queue (GetPodResourceRequest: the pod itself is one of ``pods``)."""
    return {**counted(template.requests), PODS: 1.0}


def min_resources_of(tasks: Sequence[PodSet], min_member: int) -> dict[str, int]:
    """``minResources`` as Volcano's controller writes it: tasks with a minimum first, then the rest in order
    (volcano, pkg/controllers/job/job_controller_util.go, CalcPGMinResources, v1.15.1)."""
    left, parts = min_member, []
    for task in tasks:
        first = min(left, task.min_count or 0)
        parts.append(many(task.template.requests, first))
        left -= first
    for task in tasks:
        rest = min(left, task.count - min(task.min_count or 0, task.count))
        parts.append(many(task.template.requests, max(rest, 0)))
        left -= max(rest, 0)
    return {key: amount for key, amount in added(*parts).items() if amount}


def gang_of_manifest(
    manifest: JobManifest, state: ClusterState, members: Mapping[str, Sequence[Pod]] | None = None
) -> VolcanoGang:
    """A job that is about to be submitted. A Volcano job names its minimum, or all its pods are needed; plain
    pods under Volcano's scheduler that name a PodGroup, in the same file or in the cluster, join it. In
    others any single pod suffices, unless an annotation asks for more (volcano,
    pkg/controllers/podgroup/pg_controller_handler.go, v1.15.1).

    ``members`` are pods that exist, by the uid of their PodGroup.
    """
    job, of_volcano = manifest.job, manifest.job.job_kind is JobKind.VOLCANO_JOB
    is_missing = False
    if manifest.group_name and not of_volcano:
        joined = _joined(manifest, state, members or {})
        if joined is not None:
            return joined
        is_missing = manifest.pod_group is None
    meta = job.meta
    spec = manifest.document.get("spec")
    topology = spec.get("networkTopology") if of_volcano and isinstance(spec, Mapping) else None
    total = job.pods_wanted
    least = job.gang_size if of_volcano else _annotated(meta.annotations)
    min_member = min(max(least or 1, 1), max(total, 1)) if of_volcano else max(least or 1, 1)
    return VolcanoGang(
        meta.namespace,
        meta.name,
        manifest.volcano_queue or _named(meta.annotations, meta.labels) or DEFAULT_QUEUE,
        pod_priority(state, _class_of(job)),
        min_member,
        _task_minimum(job) if of_volcano else {},
        job.pod_sets,
        min_resources_of(job.pod_sets, min_member),
        _topology(topology),
        meta.created_ms,
        unread=_unread(manifest.document),
        subject=(job.kind, meta.uid),
        group=manifest.group_name if is_missing else "",
        is_group_missing=is_missing,
    )


def _joined(
    manifest: JobManifest, state: ClusterState, members: Mapping[str, Sequence[Pod]]
) -> VolcanoGang | None:
    """Its pods in the PodGroup that they name, as the file has it, with the pods and the phase of the one in
    the cluster. None where there is no such PodGroup of Volcano."""
    job, beside = manifest.job, manifest.pod_group
    there = state.pod_group_by_name.get((GroupKind.VOLCANO.value, manifest.namespace, manifest.group_name))
    group = beside if beside is not None and beside.group_kind is GroupKind.VOLCANO else there
    if group is None:
        return None
    if there is not None:
        group = replace(group, meta=there.meta, phase=there.phase)
    found = gang_of_group(group, () if there is None else members.get(there.meta.uid, ()), state)
    is_new = there is None
    return replace(
        found,
        tasks=(*found.tasks, *job.pod_sets),
        priority=found.priority
        if group.priority_class or found.size
        else pod_priority(state, _class_of(job)),
        created_ms=job.meta.created_ms if is_new else found.created_ms,
        uid="" if is_new else found.uid,
        unread=(*found.unread, *_unread(manifest.document)),
        subject=(job.kind, job.meta.uid),
    )


def _class_of(job: JobObject) -> str:
    """Its priority class, or that of the first of its pods that name one."""
    classes = (job.priority_class, *(each.template.priority_class for each in job.pod_sets))
    return next((each for each in classes if each), "")


def is_for_volcano(manifest: JobManifest) -> bool:
    """Whether Volcano would place its pods: a Volcano job with no other scheduler, or pods that name it."""
    named = manifest.scheduler or next((each.template.scheduler for each in manifest.job.pod_sets), "")
    if manifest.job.job_kind is JobKind.VOLCANO_JOB:
        return named in ("", SCHEDULER)
    return named == SCHEDULER


def gang_of_group(
    group: PodGroup, pods: Iterable[Pod], state: ClusterState, maker: JobObject | None = None
) -> VolcanoGang:
    """A PodGroup that exists, with its pods. Of a Volcano job that is not let in, no pods are made yet: they
    are taken from ``maker``. Pods that are being deleted hold their node and count no more."""
    members = sorted(pods, key=lambda pod: (pod.meta.created_ms, pod.meta.name, pod.meta.uid))
    alive = [pod for pod in members if pod.meta.deleted_ms is None]
    bound = [pod for pod in alive if pod.is_bound]
    ready: dict[str, int] = {}
    for pod in alive:
        if pod.is_bound or pod.phase is PodPhase.SUCCEEDED:
            ready[task_of(pod)] = ready.get(task_of(pod), 0) + 1
    is_complete = sum(ready.values()) + sum(not p.is_bound and not p.has_ended for p in alive)
    tasks = _waiting(alive)
    if maker is not None and maker.pod_sets and is_complete < group.min_member:
        tasks = _missing(maker, ready)
    priorities = [pod.priority for pod in alive]
    return VolcanoGang(
        group.meta.namespace,
        group.meta.name,
        queue_of(group),
        pod_priority(state, group.priority_class)
        if group.priority_class or not priorities
        else priorities[0],
        group.min_member,
        group.min_task_member,
        tasks,
        group.min_resources,
        group.topology,
        group.meta.created_ms,
        group.meta.uid,
        group.phase,
        ready,
        added(*({**pod.requests, PODS: 1} for pod in bound)),
        frozenset(pod.node for pod in bound),
        unread=group.unread,
        subject=("PodGroup", group.meta.uid) if maker is None else (maker.kind, maker.meta.uid),
        group=group.meta.name,
    )


def task_of(pod: Pod) -> str:
    """The task that a pod's label or annotation names, empty for none."""
    return pod.meta.labels.get(TASK) or pod.meta.annotations.get(TASK, "")


def _waiting(pods: Iterable[Pod]) -> tuple[PodSet, ...]:
    """Pods without a node, equal ones of a task together. Those that are gated wait for another
    controller."""
    kinds: dict[object, tuple[str, PodTemplate, int]] = {}
    for pod in pods:
        if pod.is_bound or pod.has_ended or pod.is_gated:
            continue
        one = pod.template
        key = (
            task_of(pod),
            tuple(sorted(one.requests.items())),
            tuple(sorted(one.node_selector.items())),
            one.affinity,
            one.tolerations,
        )
        name, template, count = kinds.get(key, (task_of(pod), one, 0))
        kinds[key] = (name, template, count + 1)
    return tuple(PodSet(name, count, template) for name, template, count in kinds.values())


def _missing(maker: JobObject, ready: Mapping[str, int]) -> tuple[PodSet, ...]:
    left = ((each, each.count - ready.get(each.name, 0)) for each in maker.pod_sets)
    return tuple(PodSet(each.name, count, each.template, each.min_count) for each, count in left if count > 0)


def _task_minimum(job: JobObject) -> dict[str, int]:
    """Without one a task needs all its pods, as the webhook sets it."""
    return {each.name: each.count if each.min_count is None else each.min_count for each in job.pod_sets}


def _annotated(annotations: Labels) -> int | None:
    text = annotations.get(MIN_MEMBER, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _named(*places: Labels) -> str:
    return next((place[QUEUE_NAME] for place in places if place.get(QUEUE_NAME)), "")


def _topology(written: object) -> dict[str, str]:
    """As ``PodGroup.topology``, of a job's own field."""
    if not isinstance(written, Mapping) or not written:
        return {}
    found = {
        "mode": written.get("mode") or "hard",
        "highest_tier": written.get("highestTierAllowed"),
        "highest_tier_name": written.get("highestTierName"),
    }
    return {key: str(value) for key, value in found.items() if value is not None and value != ""}


def _unread(document: Mapping[str, object]) -> tuple[str, ...]:
    spec = document.get("spec")
    if not isinstance(spec, Mapping):
        return ()
    tasks = spec.get("tasks")
    places: list[tuple[str, object]] = [("spec", spec)]
    if isinstance(tasks, list):
        places += [(f"spec.tasks[{at}]", each) for at, each in enumerate(tasks)]
    return tuple(
        f"{place}.{part}"
        for place, each in places
        for part in _PARTS
        if isinstance(each, Mapping) and each.get(part)
    )
