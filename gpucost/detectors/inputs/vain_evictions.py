"""Preemption that gave nobody room: what repeats in a cluster whose preemption has no rest.

Kueue tells a workload to leave, and it is the next of its cohort to hold GPUs again, while the one for which
it had to go still waits (docs/decisions/0021-replay.md has the mechanism). Once is bad luck; again and again
it is a ring, in which everything that the evicted job computes is lost.

An eviction is *in vain* where, of all jobs that share quota with it (the root of its cohort), the evicted job
was the first to begin again within ten minutes, not counting pods that were preempted themselves (rings of
three exist), and a job of that cohort waited before it and still waits after it. Of several that waited,
that is named which waited for its victims to leave, if it is known, else the one that waited longest.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import pandas as pd

from gpucost.cluster.objects.kueue import EvictionReason
from gpucost.detectors.inputs.detector_facts import ClusterHistory
from gpucost.domain.time import MINUTE_MS

RETURN_MS = 10 * MINUTE_MS
"""The longest time until the evicted job holds GPUs again that counts."""
WAITS_FOR_VICTIMS = "WaitingForPreemptedWorkloads"
_Job: TypeAlias = tuple[str, str]
"""Namespace and uid."""


class WaitingJob(NamedTuple):
    """A job that waited for quota."""

    namespace: str
    job: str
    job_uid: str
    cluster_queue: str


class VainEviction(NamedTuple):
    """Of a pod of ``cluster_queue`` that gave its GPUs back at ``end_ms`` for nothing: ``by`` waits on."""

    pod_uid: str
    end_ms: int
    cluster_queue: str
    by: WaitingJob


class _Start(NamedTuple):
    at_ms: int
    job: _Job
    pod_uid: str


class _Wait(NamedTuple):
    is_for_victims: bool
    start_ms: int
    end_ms: int
    who: WaitingJob


def vain_evictions(history: ClusterHistory) -> dict[_Job, list[VainEviction]]:
    """Of each job, in their order. Nothing where no job was preempted twice, or none waited."""
    frames = history.frames
    rows = frames.evictions
    rows = rows[rows["reason"] == EvictionReason.PREEMPTED.value].sort_values(["end_ms", "pod_uid"])
    if not rows["job_uid"].duplicated().any() or frames.demand.empty:
        return {}
    preempted = set(rows["pod_uid"].tolist())
    roots = _roots(frames.quotas)
    held = history.held
    held = held[held["cluster_queue"] != ""].sort_values(["start_ms", "pod_uid"]).drop_duplicates("pod_uid")
    queues: dict[str, tuple[_Job, str]] = {}
    starts: dict[str, list[_Start]] = {}
    names = ("namespace", "job_uid", "pod_uid", "cluster_queue", "start_ms")
    for namespace, uid, pod, queue, at_ms in zip(*(held[name].tolist() for name in names), strict=True):
        queues[pod] = (namespace, uid), queue
        starts.setdefault(roots.get(queue, queue), []).append(_Start(at_ms, (namespace, uid), pod))
    waits = _waits(frames.demand, roots)
    found: dict[_Job, list[VainEviction]] = {}
    for pod, end_ms in zip(rows["pod_uid"].tolist(), rows["end_ms"].tolist(), strict=True):
        if pod not in queues:
            continue
        job, queue = queues[pod]
        root = roots.get(queue, queue)
        again_ms = _again_ms(starts.get(root, []), job, end_ms, preempted)
        by = None if again_ms is None else _waited(waits.get(root, []), job, end_ms, again_ms)
        if by is not None:
            found.setdefault(job, []).append(VainEviction(pod, end_ms, queue, by))
    return found


def _roots(quotas: pd.DataFrame) -> Mapping[str, str]:
    rows = quotas[(quotas["scheduler"] == "kueue") & (quotas["cohort"] != "")].drop_duplicates("queue")
    return dict(zip(rows["queue"].tolist(), rows["cohort"].tolist(), strict=True))


def _waits(demand: pd.DataFrame, roots: Mapping[str, str]) -> dict[str, list[_Wait]]:
    """By root, those that wait for their victims first, then the longest waiting."""
    rows = demand[demand["cluster_queue"] != ""]
    names = (*WaitingJob._fields, "reason", "start_ms", "end_ms")
    found: dict[str, list[_Wait]] = {}
    for *who, reason, start_ms, end_ms in zip(*(rows[name].tolist() for name in names), strict=True):
        job = WaitingJob(*who)
        wait = _Wait(reason == WAITS_FOR_VICTIMS, start_ms, end_ms, job)
        found.setdefault(roots.get(job.cluster_queue, job.cluster_queue), []).append(wait)
    for each in found.values():
        each.sort(key=lambda wait: (not wait.is_for_victims, wait.start_ms, wait.who))
    return found


def _again_ms(starts: list[_Start], job: _Job, end_ms: int, preempted: set[str]) -> int | None:
    """When the job began again; None where another one came first, or it took too long."""
    for each in starts[bisect_left(starts, end_ms, key=lambda start: start.at_ms) :]:
        if each.at_ms > end_ms + RETURN_MS:
            return None
        if each.job == job:
            return each.at_ms
        if each.pod_uid not in preempted:
            return None
    return None


def _waited(waits: list[_Wait], job: _Job, end_ms: int, again_ms: int) -> WaitingJob | None:
    """Who waited before and after. A wait may be told in several rows, where its reason changed."""
    after = {each.who for each in waits if each.start_ms <= again_ms < each.end_ms}
    for each in waits:
        who = each.who
        if each.start_ms < end_ms <= each.end_ms and who in after and (who.namespace, who.job_uid) != job:
            return who
    return None
