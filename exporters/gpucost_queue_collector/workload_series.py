"""Series of Kueue's workloads, and of jobs without one: their state, since when, and what holds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gpucost.cluster.objects.kueue import Workload, WorkloadState
from gpucost.cluster.objects.metadata import Resources
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.quota import workload_units
from gpucost.cluster.views.wait_causes import WaitCause
from gpucost.cluster.views.workload_families import WorkloadDispatch, origin_of
from gpucost.contract import queue_metrics as m
from gpucost.contract.metric_spec import MetricSpec
from gpucost.contract.metrics import LINGER_MS
from gpucost.contract.queue_metrics import NodeAdmission, WaitLayer
from gpucost.domain.jobs import JobKind, JobReference
from gpucost_queue_collector.demand_series import (
    JOB_SETS,
    WORKLOAD_SETS,
    PodGpuDemand,
    WaitingDemand,
    WaitingSet,
    write_sets,
)
from gpucost_queue_collector.page import OTHERS, NamespaceLimit, labels, line, others_uid, sample

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
    m.WORKLOAD_DISPATCHED,
    m.WORKLOAD_ORIGIN,
    *WORKLOAD_SETS,
)
WAITING_JOB = (m.JOB_WAITING, m.JOB_WAITING_INFO, *JOB_SETS)
_LATER_MS = 1 << 50
"""Later than any time of creation."""
# The condition that has the reason for each state of a workload.
_WHY = {
    WorkloadState.PENDING: "QuotaReserved",
    WorkloadState.INACTIVE: "Evicted",
    WorkloadState.RESERVED: "Admitted",
    WorkloadState.EVICTING: "Evicted",
    WorkloadState.FINISHED: "Finished",
}


class ShownWorkload(NamedTuple):
    """A workload and what follows from the state around it. ``cluster_queue`` is where it is or would go,
    ``queued_ms`` since when it waits, or waited, for the quota it has; None where that is not known.
    ``wants`` are its pod sets while it waits, ``sent`` the clusters that MultiKueue sent it to."""

    workload: Workload
    cluster_queue: str
    job: JobReference
    team: str
    units: Resources
    queued_ms: int | None
    position: int | None
    hold: WaitCause | None
    wants: tuple[WaitingSet, ...] = ()
    sent: WorkloadDispatch | None = None


class WaitingJob(NamedTuple):
    """A job without a workload that waits. ``queue`` and ``team`` are those of one of its waiting pods,
    ``pod_group`` the PodGroup it names; empty before there are pods."""

    job: JobReference
    hold: WaitCause
    namespace: str = ""
    pod_group: str = ""
    queue: str = ""
    team: str = ""
    wants: tuple[WaitingSet, ...] = ()
    jobs: int = 1
    """More than one for what stands for several."""


class OtherWorkloads(NamedTuple):
    """``workloads`` of a namespace and ClusterQueue that have no rows of their own, all held back in
    ``layer`` (empty: not held back), by state; ``queued_ms`` is that of the longest waiting one."""

    namespace: str
    cluster_queue: str
    layer: str
    workloads: int
    states: Mapping[str, int]
    units: Resources
    queued_ms: int | None
    wants: tuple[WaitingSet, ...]


def shown_workloads(
    overview: ClusterOverview, before: Mapping[str, ShownWorkload]
) -> dict[str, ShownWorkload]:
    """By uid: all that have not been finished for long. ``before`` is what was shown last."""
    state, since_ms = overview.state, overview.state.at_ms - LINGER_MS
    demand = WaitingDemand(overview)
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
            overview.dispatches.get(uid),
        )
        for uid, workload in state.workloads.items()
        if (finished_ms := workload.finished_ms) is None or finished_ms > since_ms
    }


def _job(found: JobReference, before: ShownWorkload | None) -> JobReference:
    """As before, where the job has gone before its workload, and so can no longer be checked."""
    is_gone = before is not None and found.uid.endswith(f":{before.job.uid}")
    return before.job if before is not None and is_gone else found


def _queued_ms(workload: Workload, before: ShownWorkload | None) -> int | None:
    """Since when it queued, as recorded while it waited for this quota: afterwards its object no
    longer shows it."""
    if before is None or not (workload.has_quota or workload.finished_ms is not None):
        return workload.queued_since_ms
    is_the_same = not before.workload.has_quota or before.workload.reserved_ms == workload.reserved_ms
    return before.queued_ms if is_the_same else workload.queued_since_ms


def _cluster_queue(state: ClusterState, workload: Workload) -> str:
    if workload.cluster_queue:
        return workload.cluster_queue
    queue = state.local_queue_by_name.get((workload.meta.namespace, workload.queue))
    return queue.cluster_queue if queue else ""


def write_workload(shown: ShownWorkload | OtherWorkloads) -> Sequence[bytes]:
    """One text for each of SPECS."""
    if isinstance(shown, OtherWorkloads):
        return _write_others(shown)
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
        _dispatched(identity, shown.sent),
        line(m.WORKLOAD_ORIGIN, (*identity, origin), 1) if (origin := origin_of(workload)) else b"",
        *write_sets(WORKLOAD_SETS, identity, shown.wants),
    )


def _other_workloads(found: Sequence[ShownWorkload]) -> Mapping[str, OtherWorkloads]:
    """One for each ClusterQueue and layer: what waits there is what the queue's demand is made of."""
    groups: dict[tuple[str, str, str], list[ShownWorkload]] = {}
    for each in found:
        layer = "" if each.hold is None else each.hold.layer.value
        groups.setdefault((each.workload.meta.namespace, each.cluster_queue, layer), []).append(each)
    return {
        others_uid(*where): OtherWorkloads(
            *where,
            len(mine),
            dict(sorted(Counter(each.workload.state.value for each in mine).items())),
            _total(each.units for each in mine),
            min((each.queued_ms for each in mine if each.hold and each.queued_ms is not None), default=None),
            _together(wants for each in mine for wants in each.wants),
        )
        for where, mine in groups.items()
    }


def _total(amounts: Iterable[Resources]) -> Resources:
    found: Counter[str] = Counter()
    for each in amounts:
        found.update(each)
    return dict(sorted(found.items()))


def _together(sets: Iterable[WaitingSet]) -> tuple[WaitingSet, ...]:
    """GPU units of several pod sets, one set for each resource: as many pods of one unit. Which nodes would
    take them is left out, and that some must start at once."""
    units: Counter[str] = Counter()
    for each in sets:
        for wanted in each.wants:
            units[wanted.resource] += each.pods * wanted.units
    return tuple(
        WaitingSet(resource, count, 1, (PodGpuDemand(resource, 1, NodeAdmission.UNKNOWN),))
        for resource, count in sorted(units.items())
    )


def _rank(shown: ShownWorkload) -> tuple[int, str]:
    """The order of workloads: those with quota, then those that wait, then the finished ones; of each the
    oldest first."""
    workload = shown.workload
    rank = 2 if workload.finished_ms is not None else int(not workload.has_quota)
    return rank * _LATER_MS + workload.meta.created_ms, workload.meta.uid


WORKLOAD_LIMIT = NamespaceLimit[ShownWorkload](
    lambda shown: shown.workload.meta.namespace, _rank, _other_workloads
)


def _write_others(others: OtherWorkloads) -> Sequence[bytes]:
    """One text for each of SPECS. Counts of evictions are left out: the row stands for changing workloads,
    and a count that falls and rises would look like evictions."""
    uid = others_uid(others.namespace, others.cluster_queue, others.layer)
    identity = (others.namespace, OTHERS, uid)
    info = ("", others.cluster_queue, JobKind.OTHER.value, OTHERS, uid, "", "")
    states = (line(m.WORKLOAD_STATE, (*identity, state, ""), n) for state, n in others.states.items())
    return (
        line(m.WORKLOAD_INFO, (*identity, *info), 1),
        b"".join(states),
        _by(m.WORKLOAD_UNITS, identity, others.units),
        b"",
        _instant(m.WORKLOAD_QUEUED, labels(m.WORKLOAD_LABELS, identity), others.queued_ms),
        *(b"", b"", b"", b""),
        line(m.WORKLOAD_LAYER, (*identity, others.layer, ""), others.workloads) if others.layer else b"",
        *(b"", b"", b"", b""),
        *write_sets(WORKLOAD_SETS, identity, others.wants),
    )


def waiting_jobs(overview: ClusterOverview) -> dict[str, WaitingJob]:
    """Jobs without a workload that wait, by uid."""
    demand = WaitingDemand(overview)
    return {job.uid: _waiting_job(job, hold, demand) for job, hold in overview.job_holds.items()}


def _waiting_job(job: JobReference, hold: WaitCause, demand: WaitingDemand) -> WaitingJob:
    pods = demand.pods_of(job)
    if not pods:
        known = demand.overview.state.jobs.get(job.uid)
        return WaitingJob(job, hold, "" if known is None else known.meta.namespace)
    first = min(pods, key=lambda pod: (pod.meta.created_ms, pod.meta.uid))
    of, group = demand.ownership.of(first), demand.ownership.pod_group_of(first)
    name = "" if group is None else group.meta.name
    return WaitingJob(job, hold, first.meta.namespace, name, of.queue, of.team, demand.of_job(job))


def _other_jobs(found: Sequence[WaitingJob]) -> Mapping[str, WaitingJob]:
    """One for each layer."""
    layers: dict[WaitLayer, list[WaitingJob]] = {}
    for each in found:
        layers.setdefault(each.hold.layer, []).append(each)
    jobs = dict[str, WaitingJob]()
    for layer, mine in layers.items():
        namespace, uid = mine[0].namespace, others_uid(mine[0].namespace, layer.value)
        hold = WaitCause(layer, "", "", min(each.hold.since_ms for each in mine))
        sets = _together(wants for each in mine for wants in each.wants)
        job = JobReference(JobKind.OTHER, OTHERS, uid)
        jobs[uid] = WaitingJob(job, hold, namespace, wants=sets, jobs=len(mine))
    return jobs


JOB_LIMIT = NamespaceLimit[WaitingJob](
    lambda waiting: waiting.namespace, lambda waiting: (waiting.hold.since_ms, waiting.job.uid), _other_jobs
)


def write_waiting_job(waiting: WaitingJob) -> Sequence[bytes]:
    """One text for each of WAITING_JOB."""
    job, hold = waiting.job, waiting.hold
    identity = (job.kind.value, job.name, job.uid)
    info = (waiting.namespace, waiting.pod_group, waiting.queue, waiting.team)
    return (
        line(m.JOB_WAITING, (*identity, hold.layer.value, hold.reason), waiting.jobs),
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


def _dispatched(identity: tuple[str, ...], sent: WorkloadDispatch | None) -> bytes:
    """One row for each cluster; one without a cluster while none is named."""
    if sent is None:
        return b""
    return b"".join(
        line(m.WORKLOAD_DISPATCHED, (*identity, cluster, sent.stage.value), 1)
        for cluster in sent.clusters or ("",)
    )


def _by(spec: MetricSpec, identity: tuple[str, ...], counts: Mapping[str, int]) -> bytes:
    return b"".join(line(spec, (*identity, key), count) for key, count in counts.items())


def _instant(spec: MetricSpec, written: str, instant_ms: int | None) -> bytes:
    return b"" if instant_ms is None else sample(spec, written, instant_ms / 1000)
