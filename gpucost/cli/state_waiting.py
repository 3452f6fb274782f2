"""Who waits in a cluster, for how many GPUs, and what holds them, for ``gpucost state show``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpucost.cluster.kueue import Workload
from gpucost.cluster.objects import Resources, added
from gpucost.cluster.overview import Overview
from gpucost.cluster.pods import Pod, PodPhase, PodTemplate
from gpucost.cluster.quota_use import workload_units
from gpucost.cluster.volcano import PodGroup
from gpucost.cluster.waiting import DEVICE_ERRORS, REFUSED, Hold, waiting_jobs
from gpucost.domain.jobs import Job


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """A Kueue workload, or a job that Kueue does not manage (``workload`` is empty), that waits since
    ``since_ms``. ``units`` are those of the whole workload, of a job those of its waiting pods. ``queue`` is
    the ClusterQueue it is in or would go to, else the Volcano queue; ``position`` in it from 1, None where
    there is no order. ``layer``, ``reason`` and ``message`` say what holds it; ``team`` is empty where no
    label names one."""

    namespace: str
    workload: str
    job_kind: str
    job: str
    team: str
    queue: str
    position: int | None
    priority: int
    units: Resources
    since_ms: int
    layer: str
    reason: str
    message: str


@dataclass(slots=True)
class _Waiters:
    """Pods of a job that have no node yet, and what they ask for."""

    first: Pod
    units: dict[str, int] = field(default_factory=dict)


def waiting_rows(overview: Overview) -> list[WaitingRow]:
    """All that want GPUs and wait, the longest first."""
    rows = [*_of_workloads(overview), *_of_jobs(overview)]
    return sorted(rows, key=lambda row: (row.since_ms, row.namespace, row.workload, row.job))


def _of_workloads(overview: Overview) -> Iterator[WaitingRow]:
    state = overview.state
    for uid, hold in overview.holds.items():
        workload = state.workloads[uid]
        units = workload_units(workload, overview.catalog)
        if not units:
            continue
        job, meta = overview.ownership.job_of(workload), workload.meta
        belonging = overview.ownership.of(_as_pod(workload))
        local = state.local_queue_by_name.get((meta.namespace, workload.queue))
        yield WaitingRow(
            meta.namespace,
            meta.name,
            job.kind.value,
            job.name,
            belonging.team,
            workload.cluster_queue or (local.cluster_queue if local is not None else workload.queue),
            overview.positions.get(uid),
            workload.priority,
            units,
            hold.since_ms,
            hold.layer.value,
            hold.reason,
            hold.message,
        )


def _as_pod(made_for: Workload | PodGroup) -> Pod:
    """The pod that its job would make: what it belongs to is known before it is there."""
    return Pod(made_for.meta, PodPhase.PENDING, PodTemplate({}))


def _of_jobs(overview: Overview) -> Iterator[WaitingRow]:
    holds = waiting_jobs(overview.state, overview.units, overview.ownership)
    pods = _waiters(overview) if holds else {}
    groups = {} if holds.keys() <= pods.keys() else _groups(overview)
    for job, hold in holds.items():
        if job in pods:
            yield _of_pods(overview, job, hold, pods[job])
        elif job in groups:
            yield _of_group(overview, job, hold, groups[job])


def _waiters(overview: Overview) -> dict[Job, _Waiters]:
    """Pods that Kueue does not manage and that have no node, or cannot start on it."""
    found: dict[Job, _Waiters] = {}
    for pod in overview.state.pods.values():
        units = overview.units.of(pod) if _is_waiting(pod) else {}
        if not units:
            continue
        belonging = overview.ownership.of(pod)
        if not belonging.workload_uid:
            known = found.setdefault(belonging.job, _Waiters(pod))
            known.units = added(known.units, units)
            known.first = min(known.first, pod, key=lambda each: (each.meta.created_ms, each.meta.uid))
    return found


def _is_waiting(pod: Pod) -> bool:
    if pod.has_ended:
        return pod.stuck == REFUSED
    return not pod.is_bound or pod.stuck in DEVICE_ERRORS


def _groups(overview: Overview) -> dict[Job, PodGroup]:
    return {overview.ownership.job_of(group): group for group in overview.state.pod_groups.values()}


def _of_pods(overview: Overview, job: Job, hold: Hold, pods: _Waiters) -> WaitingRow:
    first, belonging = pods.first, overview.ownership.of(pods.first)
    return _job_row(
        job, hold, first.meta.namespace, belonging.team, belonging.queue, first.priority, pods.units
    )


def _of_group(overview: Overview, job: Job, hold: Hold, group: PodGroup) -> WaitingRow:
    """A PodGroup whose pods are not made yet."""
    units = overview.units.asked(group.min_resources or {})
    team = overview.ownership.of(_as_pod(group)).team
    return _job_row(job, hold, group.meta.namespace, team, group.queue, 0, units)


def _job_row(
    job: Job, hold: Hold, namespace: str, team: str, queue: str, priority: int, units: Resources
) -> WaitingRow:
    return WaitingRow(
        namespace,
        "",
        job.kind.value,
        job.name,
        team,
        queue,
        None,
        priority,
        units,
        hold.since_ms,
        hold.layer.value,
        hold.reason,
        hold.message,
    )
