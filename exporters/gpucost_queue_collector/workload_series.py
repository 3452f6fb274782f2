"""Series of Kueue's workloads, and of jobs without one: where they stand, since when, what holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpucost.cluster.kueue import Workload, WorkloadState
from gpucost.cluster.objects import Resources
from gpucost.cluster.overview import Overview
from gpucost.cluster.quota_use import workload_units
from gpucost.cluster.state import ClusterState
from gpucost.cluster.waiting import Hold
from gpucost.contract import queue_metrics as m
from gpucost.contract.metrics import LINGER_MS
from gpucost.contract.spec import MetricSpec
from gpucost.domain.jobs import Job
from gpucost_queue_collector.demand_series import (
    JOB_SETS,
    WORKLOAD_SETS,
    Demand,
    WaitingSet,
    write_sets,
)
from gpucost_queue_collector.lines import labels, line, sample

SPECS = (
    m.WORKLOAD_INFO,
    m.WORKLOAD_STATE,
    m.WORKLOAD_UNITS,
    m.WORKLOAD_PRIORITY,
    m.WORKLOAD_QUEUED,
    m.WORKLOAD_RESERVED,
    m.WORKLOAD_ADMITTED,
    m.WORKLOAD_FINISHED,
    m.WORKLOAD_POSITION,
    m.WORKLOAD_LAYER,
    m.WORKLOAD_EVICTIONS,
    m.WORKLOAD_REQUEUES,
    *WORKLOAD_SETS,
)
WAITING_JOB = (m.JOB_WAITING, m.JOB_WAITING_INFO, *JOB_SETS)
# The condition that says why a workload is in a state.
_WHY = {
    WorkloadState.PENDING: "QuotaReserved",
    WorkloadState.INACTIVE: "Evicted",
    WorkloadState.RESERVED: "Admitted",
    WorkloadState.EVICTING: "Evicted",
    WorkloadState.FINISHED: "Finished",
}


class ShownWorkload(NamedTuple):
    """A workload and what follows from the state around it. ``cluster_queue`` is where it is or would go,
    ``queued_ms`` since when it waits, or waited, for the quota it has; None where nobody knows. ``wants`` are
    its pod sets while it waits."""

    workload: Workload
    cluster_queue: str
    job: Job
    team: str
    units: Resources
    queued_ms: int | None
    position: int | None
    hold: Hold | None
    wants: tuple[WaitingSet, ...] = ()


class WaitingJob(NamedTuple):
    """A job without a workload that waits. ``belonging`` is that of one of its waiting pods, ``pod_group``
    the PodGroup it names; empty before there are pods."""

    job: Job
    hold: Hold
    namespace: str = ""
    pod_group: str = ""
    queue: str = ""
    team: str = ""
    wants: tuple[WaitingSet, ...] = ()


def shown_workloads(overview: Overview, before: Mapping[str, ShownWorkload]) -> dict[str, ShownWorkload]:
    """By uid: all that have not been finished for long. ``before`` is what was shown last."""
    state, since_ms = overview.state, overview.state.at_ms - LINGER_MS
    demand = Demand(overview)
    return {
        uid: ShownWorkload(
            workload,
            _cluster_queue(state, workload),
            _job(overview.ownership.job_of(workload), before.get(uid)),
            overview.ownership.team_of(workload),
            workload_units(workload, overview.catalog),
            _queued_ms(workload, before.get(uid)),
            overview.positions.get(uid),
            overview.holds.get(uid),
            demand.of_workload(workload) if uid in overview.holds else (),
        )
        for uid, workload in state.workloads.items()
        if (finished_ms := workload.finished_ms) is None or finished_ms > since_ms
    }


def _job(found: Job, before: ShownWorkload | None) -> Job:
    """As before, where the job has gone before its workload, and so can no longer be checked."""
    is_gone = before is not None and found.uid.endswith(f":{before.job.uid}")
    return before.job if before is not None and is_gone else found


def _queued_ms(workload: Workload, before: ShownWorkload | None) -> int | None:
    """As it was while it waited for this quota: afterwards its object says less of it."""
    if before is None or not (workload.has_quota or workload.finished_ms is not None):
        return workload.queued_since_ms
    is_the_same = not before.workload.has_quota or before.workload.reserved_ms == workload.reserved_ms
    return before.queued_ms if is_the_same else workload.queued_since_ms


def _cluster_queue(state: ClusterState, workload: Workload) -> str:
    if workload.cluster_queue:
        return workload.cluster_queue
    queue = state.local_queue_by_name.get((workload.meta.namespace, workload.queue))
    return queue.cluster_queue if queue else ""


def write_workload(shown: ShownWorkload) -> Sequence[bytes]:
    """One text for each of SPECS."""
    workload, meta = shown.workload, shown.workload.meta
    identity = (meta.namespace, meta.name, meta.uid)
    written = labels(m.WORKLOAD_LABELS, identity)
    info = (
        workload.queue,
        shown.cluster_queue,
        shown.job.kind.value,
        shown.job.name,
        shown.job.uid,
        workload.priority_class,
        shown.team,
    )
    hold = shown.hold
    return (
        line(m.WORKLOAD_INFO, (*identity, *info), 1),
        line(m.WORKLOAD_STATE, (*identity, workload.state.value, _reason(workload)), 1),
        _by(m.WORKLOAD_UNITS, identity, shown.units),
        sample(m.WORKLOAD_PRIORITY, written, workload.priority),
        _instant(m.WORKLOAD_QUEUED, written, shown.queued_ms),
        _instant(m.WORKLOAD_RESERVED, written, workload.reserved_ms),
        _instant(m.WORKLOAD_ADMITTED, written, workload.admitted_ms),
        _instant(m.WORKLOAD_FINISHED, written, workload.finished_ms),
        b"" if shown.position is None else sample(m.WORKLOAD_POSITION, written, shown.position),
        b"" if hold is None else line(m.WORKLOAD_LAYER, (*identity, hold.layer.value, hold.reason), 1),
        _by(m.WORKLOAD_EVICTIONS, identity, _evictions(workload)),
        sample(m.WORKLOAD_REQUEUES, written, workload.requeue_count),
        *write_sets(WORKLOAD_SETS, identity, shown.wants),
    )


def waiting_jobs(overview: Overview) -> dict[str, WaitingJob]:
    """Jobs without a workload that wait, by uid."""
    demand = Demand(overview)
    return {job.uid: _waiting_job(job, hold, demand) for job, hold in overview.job_holds.items()}


def _waiting_job(job: Job, hold: Hold, demand: Demand) -> WaitingJob:
    pods = demand.pods_of(job)
    if not pods:
        return WaitingJob(job, hold)
    first = min(pods, key=lambda pod: (pod.meta.created_ms, pod.meta.uid))
    of, group = demand.ownership.of(first), demand.ownership.pod_group_of(first)
    name = "" if group is None else group.meta.name
    return WaitingJob(job, hold, first.meta.namespace, name, of.queue, of.team, demand.of_job(job))


def write_waiting_job(waiting: WaitingJob) -> Sequence[bytes]:
    """One text for each of WAITING_JOB."""
    job, hold = waiting.job, waiting.hold
    identity = (job.kind.value, job.name, job.uid)
    info = (waiting.namespace, waiting.pod_group, waiting.queue, waiting.team)
    return (
        line(m.JOB_WAITING, (*identity, hold.layer.value, hold.reason), 1),
        line(m.JOB_WAITING_INFO, (*identity, *info), 1),
        *write_sets(JOB_SETS, identity, waiting.wants),
    )


def _reason(workload: Workload) -> str:
    why = workload.conditions.get(_WHY.get(workload.state, ""))
    return why.reason if why else ""


def _evictions(workload: Workload) -> dict[str, int]:
    counts: dict[str, int] = {}
    for each in workload.evictions:
        counts[each.reason] = counts.get(each.reason, 0) + each.times
    return counts


def _by(spec: MetricSpec, identity: tuple[str, ...], counts: Mapping[str, int]) -> bytes:
    return b"".join(line(spec, (*identity, key), count) for key, count in counts.items())


def _instant(spec: MetricSpec, written: str, instant_ms: int | None) -> bytes:
    return b"" if instant_ms is None else sample(spec, written, instant_ms / 1000)
