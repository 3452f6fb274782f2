"""How jobs ended: from the state of a watched cluster, and from the history of a source.

The ledger knows when a job held GPUs, and not why it held none any more. Where neither knows, the end is
unknown, and never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import pandas as pd

from gpucost.attribution.segments import union
from gpucost.cluster.objects.jobs import JobObject
from gpucost.cluster.objects.kueue import EvictionReason, Workload, WorkloadState, eviction_meaning
from gpucost.cluster.objects.metadata import is_true
from gpucost.cluster.objects.pods import PREEMPTED_BY_SCHEDULER, Pod, PodPhase
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.ownership import workload_by_job
from gpucost.domain.errors import InputError, SourceError
from gpucost.domain.jobs import JobKind, job_kind
from gpucost.domain.time import MINUTE_MS, Window
from gpucost.kube.parse.collections import collections
from gpucost.reports.job.job_receipt import NO_END, JobEndFacts, JobEnding
from gpucost.reports.job.job_report import JobReport
from gpucost.service.detection.job_inspection import BEFORE_MS, LONGEST_SPAN_MS
from gpucost.telemetry.interval_source import IntervalSource

EndLookup: TypeAlias = Callable[[str, str, str, str], JobEndFacts]
"""Cluster, namespace, uid and kind of a job -> what is known of its end now."""
NEAR_MS = 10 * MINUTE_MS
"""An eviction this long before a job's last instant or after it ended it: a later one was of pods that came
back."""
END_FRAMES = ("evictions", "demand")
_PREEMPTED = (EvictionReason.PREEMPTED, PREEMPTED_BY_SCHEDULER)
_COLLECTIONS = {
    job_kind(f"{each.group}/{each.versions[0]}" if each.group else each.versions[0], each.kind): each.name
    for each in collections()
    if each.field in ("jobs", "pods")
}


def ends_in(watched: str, state: ClusterState | None) -> EndLookup:
    """Of the jobs of the cluster ``watched``, by its ``state``."""

    def look_up(cluster: str, namespace: str, job_uid: str, kind: str) -> JobEndFacts:
        if state is None or cluster != watched:
            return NO_END
        return end_in_cluster(state, namespace, job_uid, kind)

    return look_up


def end_in_cluster(
    state: ClusterState,
    namespace: str,
    job_uid: str,
    kind: str,
    workloads: Mapping[tuple[str, str], Workload] | None = None,
) -> JobEndFacts:
    """What the objects of ``state`` say; of workloads those of the job's ``namespace``, since anybody's may
    name its uid. ``workloads`` are all of the state (``workload_by_job``), where more than one job is asked
    about. A job that is gone is called so only where all jobs of its kind have been read."""
    if workloads is None:
        beside = (each for each in state.workloads.values() if each.meta.namespace == namespace)
        workloads = workload_by_job(beside)
    workload = workloads.get((namespace, job_uid))
    waited_ms = None if workload is None else _waited_ms(workload)
    job, pod = state.jobs.get(job_uid), state.pods.get(job_uid)
    if job is not None:
        ending, reason = _of_job(job, workload)
    elif pod is not None:
        ending, reason = _of_pod(pod)
    else:
        ending, reason = (JobEnding.GONE if _would_be_known(state, kind) else JobEnding.UNKNOWN), ""
    return JobEndFacts(ending, reason, waited_ms)


def _waited_ms(workload: Workload) -> int | None:
    since_ms, until_ms = workload.queued_since_ms, workload.admitted_ms
    return None if since_ms is None or until_ms is None else max(0, until_ms - since_ms)


def _of_job(job: JobObject, workload: Workload | None) -> tuple[JobEnding, str]:
    if job.failure is not None:
        return JobEnding.FAILED, job.failure
    if job.ended_ms is not None:
        return JobEnding.SUCCEEDED, ""
    if workload is not None and is_true(workload.conditions, "Evicted"):
        reason = workload.conditions["Evicted"].reason
        again = "; it waits to run again" if workload.state is WorkloadState.PENDING else ""
        return _stopped_for(reason), f"{eviction_meaning(reason)}{again}"
    if job.is_suspended or (not job.pods_wanted and not job.active):
        return JobEnding.STOPPED, ""
    return JobEnding.UNKNOWN, ""


def _of_pod(pod: Pod) -> tuple[JobEnding, str]:
    if pod.disruption is not None:
        return _stopped_for(pod.disruption.reason), pod.disruption.reason
    if pod.phase is PodPhase.SUCCEEDED:
        return JobEnding.SUCCEEDED, ""
    if pod.phase is PodPhase.FAILED:
        return JobEnding.FAILED, pod.stuck
    return JobEnding.UNKNOWN, ""


def _stopped_for(reason: str) -> JobEnding:
    return JobEnding.PREEMPTED if reason in _PREEMPTED else JobEnding.EVICTED


def _would_be_known(state: ClusterState, kind: str) -> bool:
    known = kind in set(JobKind)
    status = state.collections.get(_COLLECTIONS.get(JobKind(kind), "")) if known else None
    return status is not None and status.synced and not status.absent


def end_in_history(
    evictions: pd.DataFrame, demand: pd.DataFrame, job_uid: str, last_ms: int, since_ms: int
) -> JobEndFacts:
    """What frames of a source, read from ``since_ms`` on, say of a job that held GPUs until ``last_ms``:
    whether its last pods were evicted, and how long it waited before it ran last. A wait that may have begun
    before the frames is not known."""
    waits = demand[demand["job_uid"] == job_uid]
    starts, ends = union(waits["start_ms"].tolist(), waits["end_ms"].tolist())
    before = ends <= last_ms
    waited_ms = None
    if before.any() and starts[before][-1] > since_ms:
        waited_ms = int(ends[before][-1] - starts[before][-1])
    mine = evictions[evictions["job_uid"] == job_uid]
    last = mine[(mine["end_ms"] - last_ms).abs() <= NEAR_MS].sort_values(["end_ms", "pod_uid"])
    if last.empty:
        return JobEndFacts(waited_ms=waited_ms)
    reason = str(last["reason"].iloc[-1])
    return JobEndFacts(_stopped_for(reason), eviction_meaning(reason), waited_ms)


def end_in_source(source: IntervalSource, report: JobReport) -> JobEndFacts:
    """What ``source`` still knows of the end of the job of ``report``. Errors of the source are never
    raised."""
    for cluster in report.clusters:
        span = report.span
        around = Window(max(span.start_ms - BEFORE_MS, span.end_ms - LONGEST_SPAN_MS), span.end_ms + NEAR_MS)
        try:
            covered = source.covered(cluster)
            window = None if covered is None else covered.intersect(around)
            if window is not None:
                frames = source.history(cluster, window, only=END_FRAMES)
                asked = (report.job_uid, span.end_ms, window.start_ms)
                return end_in_history(frames.evictions, frames.demand, *asked)
        except (SourceError, InputError):
            continue
    return NO_END


def joined_end(of_cluster: JobEndFacts, of_history: JobEndFacts) -> JobEndFacts:
    """Both together: the cluster's word, where it has one, since it may be newer, and is what pages say; else
    the history's, which has the wait of jobs that were evicted more than once, too."""
    known = of_cluster if of_cluster.ending not in (JobEnding.UNKNOWN, JobEnding.GONE) else of_history
    if known.ending is JobEnding.UNKNOWN:
        known = of_cluster
    waited_ms = of_history.waited_ms if of_cluster.waited_ms is None else of_cluster.waited_ms
    return JobEndFacts(known.ending, known.reason, waited_ms)
