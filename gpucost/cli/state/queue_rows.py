"""Queues of a cluster for ``gpucost state show``: Kueue's as a tree with loans, and Volcano's; and the jobs
that wait in them, for how many GPUs, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpucost.cluster.objects.kueue import FlavorResource, Workload
from gpucost.cluster.objects.metadata import Resources, added
from gpucost.cluster.objects.pods import Pod, PodPhase, PodTemplate
from gpucost.cluster.objects.quantities import base_units, readable
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.objects.volcano import WAITING_PHASES, PodGroup
from gpucost.cluster.views.cohorts import QuotaNode
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.queues import (
    ClusterQueueView,
    CohortView,
    PendingWorkloads,
    QueueViews,
)
from gpucost.cluster.views.quota import workload_units
from gpucost.cluster.views.volcano_queues import parent_of
from gpucost.cluster.views.wait_causes import (
    DEVICE_ERRORS,
    REFUSED,
    WaitCause,
    waiting_jobs,
)
from gpucost.domain.jobs import JobReference

_VOLCANO_GROUPS = "podgroups.scheduling.volcano.sh"


@dataclass(frozen=True, slots=True)
class QueueQuotaRow:
    """GPU quota of one flavor and resource. ``nominal`` is None for a cohort without quota of its own, and
    for a queue that still uses what it no longer has. ``lendable`` is what others may borrow from a queue,
    None outside any cohort; for a cohort what queues below it can still get.
    """

    flavor: str
    resource: str
    nominal: int | None
    reserved: int | None
    used: int | None
    borrowed: int | None
    lendable: int | None


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A ClusterQueue (``is_queue``) or a cohort, ``depth`` below its root. ``trouble`` is the reason why it
    admits nothing, empty while it does. ``admitted`` is None for cohorts. What could not be listed is None.
    """

    name: str
    is_queue: bool
    depth: int
    trouble: str
    quotas: Sequence[QueueQuotaRow]
    admitted: int | None
    pending: int | None
    pending_units: Resources | None
    oldest_ms: int | None


@dataclass(frozen=True, slots=True)
class QuotaLender:
    """A queue or cohort with quota that it does not use itself, lent already or not: ``unused`` cores, bytes
    or units, ``unused_text`` for a person."""

    name: str
    is_queue: bool
    unused: int | float
    unused_text: str


@dataclass(frozen=True, slots=True)
class QuotaLoan:
    """What a ClusterQueue uses above its nominal quota, and the lenders around it: all within the lowest
    cohort above it that does not borrow itself. Kueue does not record whose quota it is; with one lender it
    is that one's. ``borrowed`` is in cores, bytes or units, ``borrowed_text`` for a person.
    """

    borrower: str
    cohort: str
    flavor: str
    resource: str
    borrowed: int | float
    borrowed_text: str
    lenders: Sequence[QuotaLender]


@dataclass(frozen=True, slots=True)
class VolcanoRow:
    """GPU units of a Volcano queue; None where the queue sets none. ``pending`` counts PodGroups. What could
    not be listed is None."""

    name: str
    parent: str
    state: str
    deserved: Resources | None
    guarantee: Resources | None
    capability: Resources | None
    allocated: Resources | None
    pending: int | None
    pending_units: Resources | None
    oldest_ms: int | None


def queue_rows(overview: ClusterOverview) -> list[QueueRow]:
    """Cohorts with what is below them, by name; then ClusterQueues without a cohort."""
    nodes = overview.queues.tree
    roots = [node for node in nodes.bottom_up if node.parent is None]
    alone = [node for node in nodes.queues.values() if node.parent is None]
    ordered = [*sorted(roots, key=lambda node: node.name), *sorted(alone, key=lambda node: node.name)]
    rows = (_row(overview, node, depth) for root in ordered for node, depth in _below(root, 0))
    return [row for row in rows if row is not None]


def loans(views: QueueViews) -> list[QuotaLoan]:
    """By cohort and borrower."""
    found = [
        QuotaLoan(
            name,
            view.queue.cohort,
            *key,
            _in_base_units(key.resource, quota.borrowed),
            readable(key.resource, quota.borrowed),
            _lenders(views, name, key),
        )
        for name, view in views.cluster_queues.items()
        for key, quota in view.quotas.items()
        if quota.borrowed
    ]
    return sorted(found, key=lambda loan: (loan.cohort, loan.borrower, loan.flavor, loan.resource))


def volcano_rows(overview: ClusterOverview) -> list[VolcanoRow]:
    """By name."""
    asked, state = overview.units.asked, overview.state
    knows_groups, knows_pods = _is_read(state, _VOLCANO_GROUPS), _is_read(state, "pods")
    return [
        VolcanoRow(
            name,
            parent_of(view.queue),
            view.queue.state,
            None if view.queue.deserved is None else asked(view.queue.deserved),
            None if view.queue.guarantee is None else asked(view.queue.guarantee),
            None if view.queue.capability is None else asked(view.queue.capability),
            asked(view.allocated) if view.from_status or (knows_groups and knows_pods) else None,
            sum(count for phase, count in view.pod_groups.items() if phase in WAITING_PHASES)
            if knows_groups
            else None,
            asked(view.pending_units) if knows_groups else None,
            view.oldest_pending_ms,
        )
        for name, view in sorted(overview.volcano_queues.items())
    ]


def _is_read(state: ClusterState, name: str) -> bool:
    """A state without a list of its collections counts as complete."""
    status = state.collections.get(name)
    return not state.collections or (status is not None and status.synced)


def _below(node: QuotaNode, depth: int) -> Iterator[tuple[QuotaNode, int]]:
    """The node and all under it, queues before cohorts. The tree has no cycles, and is as deep as people make
    it, so no recursion."""
    stack = [(node, depth)]
    while stack:
        found, at = stack.pop()
        yield found, at
        children = sorted(found.children, key=lambda child: (not child.is_queue, child.name))
        stack += [(child, at + 1) for child in reversed(children)]


def _row(overview: ClusterOverview, node: QuotaNode, depth: int) -> QueueRow | None:
    """None for cohorts whose members are unknown."""
    views = overview.queues
    view = views.cluster_queues.get(node.name) if node.is_queue else views.cohorts.get(node.name)
    if view is None:
        return None
    pending = view.pending
    return QueueRow(
        node.name,
        node.is_queue,
        depth,
        _trouble(view),
        [
            QueueQuotaRow(*key, quota.nominal, quota.reserved, quota.used, quota.borrowed, quota.lendable)
            for key, quota in view.quotas.items()
            if overview.catalog.is_gpu(key.resource)
        ],
        view.admitted if isinstance(view, ClusterQueueView) else None,
        None if pending is None else sum(pending.workloads.values()),
        None if pending is None else _pending_units(pending),
        None if pending is None else pending.oldest_ms,
    )


def _trouble(view: ClusterQueueView | CohortView) -> str:
    if isinstance(view, CohortView):
        return "parents in a circle" if view.in_cycle else ""
    return f"not active: {view.reason or 'no reason given'}" if view.is_active is False else ""


def _pending_units(pending: PendingWorkloads) -> dict[str, int]:
    units: dict[str, int] = {}
    for (resource, _), amount in sorted(pending.units.items()):
        units[resource] = units.get(resource, 0) + amount
    return units


def _lenders(views: QueueViews, borrower: str, key: FlavorResource) -> list[QuotaLender]:
    """The largest first. In a cohort that does not borrow itself, borrowed quota stays in it."""
    cohort = views.tree.queues[borrower].parent
    while cohort is not None and cohort.parent is not None and cohort.borrowed(key) > 0:
        cohort = cohort.parent
    found = [
        QuotaLender(
            node.name, node.is_queue, _in_base_units(key.resource, unused), readable(key.resource, unused)
        )
        for node, _ in (() if cohort is None else _below(cohort, 0))
        if not (node.is_queue and node.name == borrower) and (unused := _unused(views, node, key)) > 0
    ]
    return sorted(found, key=lambda lender: (-lender.unused, lender.name))


def _in_base_units(resource: str, amount: int) -> int | float:
    """In the units of the metrics (contract.queue_metrics): cores, with a fraction where they have one."""
    found = base_units(resource, amount)
    return int(found) if found == int(found) else found


def _unused(views: QueueViews, node: QuotaNode, key: FlavorResource) -> int:
    if not node.is_queue:
        quota = node.quotas.get(key)
        return 0 if quota is None else quota.nominal
    own = views.cluster_queues[node.name].quotas.get(key)
    return 0 if own is None or own.lendable is None else own.lendable


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """A Kueue workload, or a job that Kueue does not manage (``workload`` is empty), that waits since
    ``since_ms``. ``units`` are those of the whole workload, of a job those of its waiting pods. ``queue`` is
    the ClusterQueue it is in or would go to, else the Volcano queue; ``position`` in it from 1, None where
    there is no order. ``layer``, ``reason`` and ``message`` are the cause of the wait; ``team`` is empty
    where no label names one.
    """

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
    """Pods of a job that have no node yet, and their requests."""

    first: Pod
    units: dict[str, int] = field(default_factory=dict)


def waiting_rows(overview: ClusterOverview) -> list[WaitingRow]:
    """All jobs that request GPUs and wait, the longest first."""
    rows = [*_of_workloads(overview), *_of_jobs(overview)]
    return sorted(rows, key=lambda row: (row.since_ms, row.namespace, row.workload, row.job))


def _of_workloads(overview: ClusterOverview) -> Iterator[WaitingRow]:
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
    """The pod that its job would make: its owner is known before it exists."""
    return Pod(made_for.meta, PodPhase.PENDING, PodTemplate({}))


def _of_jobs(overview: ClusterOverview) -> Iterator[WaitingRow]:
    holds = waiting_jobs(overview.state, overview.units, overview.ownership)
    pods = _waiters(overview) if holds else {}
    groups = {} if holds.keys() <= pods.keys() else _groups(overview)
    for job, hold in holds.items():
        if job in pods:
            yield _of_pods(overview, job, hold, pods[job])
        elif job in groups:
            yield _of_group(overview, job, hold, groups[job])


def _waiters(overview: ClusterOverview) -> dict[JobReference, _Waiters]:
    """Pods that Kueue does not manage and that have no node, or cannot start on it."""
    found: dict[JobReference, _Waiters] = {}
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


def _groups(overview: ClusterOverview) -> dict[JobReference, PodGroup]:
    return {overview.ownership.job_of(group): group for group in overview.state.pod_groups.values()}


def _of_pods(overview: ClusterOverview, job: JobReference, hold: WaitCause, pods: _Waiters) -> WaitingRow:
    first, belonging = pods.first, overview.ownership.of(pods.first)
    return _job_row(
        job, hold, first.meta.namespace, belonging.team, belonging.queue, first.priority, pods.units
    )


def _of_group(overview: ClusterOverview, job: JobReference, hold: WaitCause, group: PodGroup) -> WaitingRow:
    """A PodGroup whose pods are not made yet."""
    units = overview.units.asked(group.min_resources or {})
    team = overview.ownership.of(_as_pod(group)).team
    return _job_row(job, hold, group.meta.namespace, team, group.queue, 0, units)


def _job_row(
    job: JobReference, hold: WaitCause, namespace: str, team: str, queue: str, priority: int, units: Resources
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
