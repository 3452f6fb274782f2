"""What a manifest says to schedulers in labels, annotations and fields, beside the shape of its pods."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from gpucost.cluster.jobs import JobObject
from gpucost.cluster.manifest import LONGEST_RUN
from gpucost.cluster.objects import Flaw
from gpucost.cluster.ownership import KUEUE_QUEUES, VOLCANO_QUEUES
from gpucost.domain.jobs import JobKind
from gpucost.kube.manifests.pod_groups import Named, group_of
from gpucost.kube.parse.jobs import KUEUE_PRIORITY
from gpucost.kube.parse.reading import Part

CHECKPOINTS = "gpucost.io/checkpoints"
"""Label or annotation of a job or of its pods: whether it can be stopped and go on from where it was."""
_KUEUE_QUEUE = KUEUE_QUEUES[1]
_LEAST_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"
_RAY_SCHEDULER = "ray.io/scheduler-name"
_OF_PODS = (
    *(JobKind.DEPLOYMENT, JobKind.REPLICA_SET, JobKind.STATEFUL_SET),
    *(JobKind.DAEMON_SET, JobKind.NOTEBOOK),
)
"""Kinds of which Kueue looks at the pods, and so at the labels of their template."""
_SECONDS = re.compile("[0-9]{1,9}")
_TRUTH = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Said:
    """As in ``JobManifest``. ``group`` is the group that its pods name."""

    queue: str
    kueue_priority_class: str
    volcano_queue: str
    scheduler: str
    deadline_s: int | None
    checkpoints: bool | None
    group: Named
    flaws: tuple[Flaw, ...]


def said(seen: Mapping[str, Any], job: JobObject, templates: Sequence[Mapping[str, Any]]) -> Said:
    """``seen`` is the object, ``templates`` are its pod templates."""
    root, pods = Part(seen), [Part(each) for each in templates]
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
    return Said(
        queue,
        priority_class,
        volcano_queue,
        scheduler,
        deadline_s,
        checkpoints,
        next((each for each in groups if each.name), Named("")),
        tuple(dict.fromkeys(chain(root.flaws, *(each.flaws for each in pods)))),
    )


def _queue(kind: JobKind, metadata: Part, inner: Sequence[Part]) -> str:
    own = metadata.part("labels").text(_KUEUE_QUEUE) or metadata.part("annotations").text(_KUEUE_QUEUE)
    if own or kind not in _OF_PODS or not inner:
        return own
    return inner[0].part("labels").text(_KUEUE_QUEUE)


def _volcano_queue(spec: Part, metadata: Sequence[Part]) -> str:
    """Of a Volcano job or a kind of the training operator its own field, else what a label or annotation
    says, of the object before its pods."""
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


def _scheduler(job: JobObject, metadata: Part, spec: Part) -> str:
    if job.job_kind is JobKind.VOLCANO_JOB:
        return spec.text("schedulerName") or "volcano"
    of_templates = (each.template.scheduler for each in job.pod_sets)
    return next(filter(None, of_templates), "") or metadata.part("labels").text(_RAY_SCHEDULER)


def _deadline(metadata: Part, holders: Sequence[Part]) -> int | None:
    """The shortest that is said anywhere."""
    found = [each.count("activeDeadlineSeconds") for each in holders if "activeDeadlineSeconds" in each]
    labels = metadata.part("labels")
    longest = labels.text(LONGEST_RUN)
    if longest and not _SECONDS.fullmatch(longest):
        labels.flaw(LONGEST_RUN, longest, "a whole number of seconds")
    elif longest:
        found.append(int(longest))
    return min((each for each in found if each > 0), default=None)


def _checkpoints(metadata: Sequence[Part]) -> bool | None:
    for each in metadata:
        for where in ("labels", "annotations"):
            part = each.part(where)
            if CHECKPOINTS in part:
                value = part.text(CHECKPOINTS)
                if value not in _TRUTH:
                    part.flaw(CHECKPOINTS, value, "true or false, in quotes")
                return _TRUTH.get(value)
    return None


def _check_least_parallelism(metadata: Part, job: JobObject) -> None:
    """As Kueue's webhook does (kueue v0.19.2, pkg/controller/jobs/job/job_webhook.go)."""
    annotations = metadata.part("annotations")
    if _LEAST_PARALLELISM not in annotations:
        return
    value = annotations.text(_LEAST_PARALLELISM)
    if not _SECONDS.fullmatch(value) or not 0 < int(value) < job.pods_wanted:
        most = job.pods_wanted - 1
        annotations.flaw(_LEAST_PARALLELISM, value, f"a whole number from 1 to {most}, fewer than its pods")
