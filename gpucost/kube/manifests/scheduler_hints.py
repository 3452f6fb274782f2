"""What a manifest sets for schedulers in labels, annotations and fields; and PodGroups and groups of plain
pods."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

from gpucost.cluster.objects.jobs import LONGEST_RUN, Document, JobObject
from gpucost.cluster.objects.metadata import FieldFlaw
from gpucost.cluster.objects.pods import PodSet
from gpucost.cluster.objects.volcano import PodGroup
from gpucost.cluster.views.ownership import (
    COSCHEDULING_GROUP,
    KUEUE_GROUP,
    KUEUE_QUEUES,
    VOLCANO_GROUPS,
    VOLCANO_QUEUES,
)
from gpucost.domain.jobs import JobKind
from gpucost.kube.parse.fields import ObjectPart, meta
from gpucost.kube.parse.gang_schedulers import coscheduling_pod_group, native_pod_group, volcano_pod_group
from gpucost.kube.parse.job_shapes import pod_set_of
from gpucost.kube.parse.jobs import KUEUE_PRIORITY

TOTAL = "kueue.x-k8s.io/pod-group-total-count"
_FAST = "kueue.x-k8s.io/pod-group-fast-admission"
_ROLE = "kueue.x-k8s.io/role-hash"
_WHOLE = re.compile("[0-9]{1,6}")
_PARSERS: Mapping[str, Callable[[Mapping[str, Any]], PodGroup]] = {
    "scheduling.volcano.sh": volcano_pod_group,
    "scheduling.x-k8s.io": coscheduling_pod_group,
    "scheduling.k8s.io": native_pod_group,
}


class PodGroupName(NamedTuple):
    """A group that a pod names: with ``of_kueue`` a pod group of Kueue, else a PodGroup."""

    name: str
    of_kueue: bool = False


class ManifestPodGroup(NamedTuple):
    """A PodGroup, and the document that it was read from."""

    group: PodGroup
    document: Document


def group_of(holder: Mapping[str, Any]) -> PodGroupName:
    """The group that a pod or a pod template names; an empty name for none."""
    metadata = ObjectPart(holder).part("metadata")
    labels, annotations = metadata.part("labels"), metadata.part("annotations")
    kueue = labels.text(KUEUE_GROUP) or annotations.text(KUEUE_GROUP)
    if kueue:
        return PodGroupName(kueue, True)
    native = ObjectPart(holder).part("spec").part("schedulingGroup").text("podGroupName")
    named = (annotations.text(key) for key in VOLCANO_GROUPS)
    return PodGroupName(next(filter(None, named), "") or labels.text(COSCHEDULING_GROUP) or native)


def is_pod_group(document: Mapping[str, Any]) -> bool:
    """Whether it is a PodGroup of a known scheduler."""
    return document.get("kind") == "PodGroup" and _group(document) in _PARSERS


def pod_groups(documents: Iterable[Document], default: str) -> dict[tuple[str, str], ManifestPodGroup]:
    """The PodGroups of a file by namespace and name; ``default`` is the namespace of those that name none."""
    found = {}
    for each in documents:
        if not is_pod_group(each):
            continue
        metadata = each.get("metadata")
        own = metadata if isinstance(metadata, dict) else {}
        name, namespace = own.get("name"), own.get("namespace") or default
        if isinstance(name, str) and isinstance(namespace, str) and name:
            identity = {**own, "uid": f"manifest/{name}", "namespace": namespace}
            group = _PARSERS[_group(each)]({**each, "metadata": identity, "status": {}})
            found[namespace, name] = ManifestPodGroup(group, each)
    return found


def _group(document: Mapping[str, Any]) -> str:
    return str(document.get("apiVersion")).partition("/")[0]


def pods_as_job(pods: list[dict[str, Any]], group: PodGroupName) -> tuple[JobObject, str]:
    """Pods with identity as one job. Also what is unknown about them, in words; empty where nothing is.

    A pod group of Kueue has the total number of pods in every pod. With fast admission one pod stands for
    all.
    """
    roots = [ObjectPart(each) for each in pods]
    pod_sets, count, unknown = _roles(roots, group.of_kueue), len(pods), ""
    total = _total(roots) if group.of_kueue else None
    if total is not None and _FAST in _annotations(roots[0]):
        pod_sets, count = [replace(pod_sets[0], count=total)], total
    elif total is not None and total > count:
        unknown = f"the pod group {group.name} is to have {total:,} pods, and {count:,} are given"
        count = total
    elif total is not None and total < count:
        _annotations(roots[0]).flaw(TOTAL, str(total), f"{count:,}, as many pods as are given")
    job = JobObject(
        meta(roots[0]),
        "v1",
        "Pod",
        JobKind.POD,
        pod_sets=tuple(pod_sets),
        gang_size=count,
        priority_class=next(filter(None, (each.template.priority_class for each in pod_sets)), ""),
        flaws=tuple(dict.fromkeys(flaw for each in roots for flaw in each.flaws)),
    )
    return job, unknown


def _roles(roots: list[ObjectPart], of_kueue: bool) -> list[PodSet]:
    """Equal pods are a pod set, in the order of their first. Kueue names each by a hash of its spec; here it
    is numbered, unless a pod has its hash."""
    found: list[PodSet] = []
    for root in roots:
        one = pod_set_of("", 1, root)
        at = next((at for at, each in enumerate(found) if replace(each, name="", count=1) == one), None)
        if at is None:
            name = f"role-{len(found) + 1}" if of_kueue or found else "main"
            found.append(replace(one, name=_annotations(root).text(_ROLE) or name))
        else:
            found[at] = replace(found[at], count=found[at].count + 1)
    return found


def _annotations(root: ObjectPart) -> ObjectPart:
    return root.part("metadata").part("annotations")


def _total(roots: list[ObjectPart]) -> int | None:
    """The value that all pods share; None, with a flaw, where one has none or another number."""
    first: str | None = None
    for each in roots:
        annotations = _annotations(each)
        said = annotations.text(TOTAL)
        if not _WHOLE.fullmatch(said) or not int(said):
            annotations.flaw(TOTAL, annotations.raw(TOTAL), "how many pods the group has, from 1 to 999,999")
            return None
        if first is not None and said != first:
            annotations.flaw(TOTAL, said, f"{first}, as the first pod of its group says")
            return None
        first = said
    return int(first or 0)


CHECKPOINTS = "gpucost.io/checkpoints"
"""Label or annotation of a job or of its pods: whether it can be stopped and resumed."""
_KUEUE_QUEUE = KUEUE_QUEUES[1]
_LEAST_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"
_RAY_SCHEDULER = "ray.io/scheduler-name"
_OF_PODS = (
    *(JobKind.DEPLOYMENT, JobKind.REPLICA_SET, JobKind.STATEFUL_SET),
    *(JobKind.DAEMON_SET, JobKind.NOTEBOOK),
)
"""Kinds for which Kueue reads the pods, and so the labels of their template."""
_SECONDS = re.compile("[0-9]{1,9}")
_TRUTH = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class SchedulerHints:
    """As in ``JobManifest``. ``group`` is the group that its pods name."""

    queue: str
    kueue_priority_class: str
    volcano_queue: str
    scheduler: str
    deadline_s: int | None
    checkpoints: bool | None
    group: PodGroupName
    flaws: tuple[FieldFlaw, ...]


def scheduler_hints(
    seen: Mapping[str, Any], job: JobObject, templates: Sequence[Mapping[str, Any]]
) -> SchedulerHints:
    """``seen`` is the object, ``templates`` are its pod templates."""
    root, pods = ObjectPart(seen), [ObjectPart(each) for each in templates]
    inner = [each.part("metadata") for each in pods]
    metadata, spec = root.part("metadata"), root.part("spec")
    deadlines = [spec, spec.part("runPolicy"), *(each.part("spec") for each in pods)]
    groups = (group_of(each) for each in (seen, *templates))
    queue, volcano_queue = _queue(job.job_kind, metadata, inner), _volcano_queue(spec, [metadata, *inner])
    priority_class = metadata.part("labels").text(KUEUE_PRIORITY)
    scheduler, deadline_s = _scheduler(job, metadata, spec), _deadline(metadata, deadlines)
    checkpoints = _checkpoints([metadata, *inner])
    if job.job_kind in (JobKind.JOB, JobKind.CRON_JOB):
        _check_least_parallelism(metadata, job)
    return SchedulerHints(
        queue,
        priority_class,
        volcano_queue,
        scheduler,
        deadline_s,
        checkpoints,
        next((each for each in groups if each.name), PodGroupName("")),
        tuple(dict.fromkeys(chain(root.flaws, *(each.flaws for each in pods)))),
    )


def _queue(kind: JobKind, metadata: ObjectPart, inner: Sequence[ObjectPart]) -> str:
    own = metadata.part("labels").text(_KUEUE_QUEUE) or metadata.part("annotations").text(_KUEUE_QUEUE)
    if own or kind not in _OF_PODS or not inner:
        return own
    return inner[0].part("labels").text(_KUEUE_QUEUE)


def _volcano_queue(spec: ObjectPart, metadata: Sequence[ObjectPart]) -> str:
    """For a Volcano job or a kind of the training operator its own field, else a label or annotation, of the
    object before its pods."""
    own = spec.raw("queue")
    if isinstance(own, str) and own:
        return own
    policy = spec.part("runPolicy").part("schedulingPolicy").text("queue")
    said_in = (
        each.part(where).text(key)
        for each in metadata
        for where in ("annotations", "labels")
        for key in VOLCANO_QUEUES
    )
    return policy or next(filter(None, said_in), "")


def _scheduler(job: JobObject, metadata: ObjectPart, spec: ObjectPart) -> str:
    if job.job_kind is JobKind.VOLCANO_JOB:
        return spec.text("schedulerName") or "volcano"
    of_templates = (each.template.scheduler for each in job.pod_sets)
    return next(filter(None, of_templates), "") or metadata.part("labels").text(_RAY_SCHEDULER)


def _deadline(metadata: ObjectPart, holders: Sequence[ObjectPart]) -> int | None:
    """The shortest deadline among all of them."""
    found = [each.count("activeDeadlineSeconds") for each in holders if "activeDeadlineSeconds" in each]
    labels = metadata.part("labels")
    longest = labels.text(LONGEST_RUN)
    if longest and not _SECONDS.fullmatch(longest):
        labels.flaw(LONGEST_RUN, longest, "a whole number of seconds")
    elif longest:
        found.append(int(longest))
    return min((each for each in found if each > 0), default=None)


def _checkpoints(metadata: Sequence[ObjectPart]) -> bool | None:
    for each in metadata:
        for where in ("labels", "annotations"):
            part = each.part(where)
            if CHECKPOINTS in part:
                value = part.text(CHECKPOINTS)
                if value not in _TRUTH:
                    part.flaw(CHECKPOINTS, value, "true or false, in quotes")
                return _TRUTH.get(value)
    return None


def _check_least_parallelism(metadata: ObjectPart, job: JobObject) -> None:
    """As Kueue's webhook does (kueue v0.19.2, pkg/controller/jobs/job/job_webhook.go)."""
    annotations = metadata.part("annotations")
    if _LEAST_PARALLELISM not in annotations:
        return
    value = annotations.text(_LEAST_PARALLELISM)
    if not _SECONDS.fullmatch(value) or not 0 < int(value) < job.pods_wanted:
        most = job.pods_wanted - 1
        annotations.flaw(_LEAST_PARALLELISM, value, f"a whole number from 1 to {most}, fewer than its pods")
