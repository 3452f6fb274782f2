"""Queues of a cluster: Kueue's as a tree with loans, and Volcano's; and the jobs that wait in them, for how
many GPUs, and why.

For who sees every team the figures are the queues'; for others those of their own workloads, and None where
only a sum with others' could be given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from gpucost.cluster.objects.kueue import ClusterQueue, FlavorResource, Workload, WorkloadState
from gpucost.cluster.objects.metadata import Resources, added, base_units, is_true, readable
from gpucost.cluster.objects.pods import Pod
from gpucost.cluster.objects.state import ClusterState, grouped
from gpucost.cluster.objects.volcano import WAITING_PHASES, PodGroup
from gpucost.cluster.views.cohorts import QuotaNode
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.queues import (
    ClusterQueueView,
    CohortView,
    PendingWorkloads,
    QueueViews,
    pending_of,
)
from gpucost.cluster.views.quota import workload_units, workload_usage
from gpucost.cluster.views.volcano_queues import parent_of, queue_of, volcano_groups
from gpucost.cluster.views.wait_causes import (
    DEVICE_ERRORS,
    REFUSED,
    WaitCause,
    waiting_jobs,
)
from gpucost.domain.jobs import JobReference
from gpucost.reports.live.cluster_reader import ClusterReader, as_pod, label_reader

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
    """A queue or cohort with quota that it does not use itself: ``unused`` cores, bytes or units,
    ``unused_text`` for a person."""

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


def queue_rows(overview: ClusterOverview, reader: ClusterReader | None = None) -> list[QueueRow]:
    """Cohorts with what is below them, by name; then ClusterQueues without a cohort. Of who sees some teams:
    the ClusterQueues that they may use, by name, without cohorts."""
    if reader is not None and not reader.sees_every_team:
        return _own_queue_rows(overview, reader)
    nodes = overview.queues.tree
    roots = [node for node in nodes.bottom_up if node.parent is None]
    alone = [node for node in nodes.queues.values() if node.parent is None]
    ordered = [*sorted(roots, key=lambda node: node.name), *sorted(alone, key=lambda node: node.name)]
    rows = (_row(overview, node, depth) for root in ordered for node, depth in _below(root, 0))
    return [row for row in rows if row is not None]


def loans(views: QueueViews, *, lent_too: bool = False) -> list[QuotaLoan]:
    """By cohort and borrower. Of lenders there is what they could still lend, and ``lent_too`` what they do
    not use themselves: of that, the loan may be already."""
    found = [
        QuotaLoan(
            name,
            view.queue.cohort,
            *key,
            _in_base_units(key.resource, quota.borrowed),
            readable(key.resource, quota.borrowed),
            _lenders(views, name, key, lent_too),
        )
        for name, view in views.cluster_queues.items()
        for key, quota in view.quotas.items()
        if quota.borrowed
    ]
    return sorted(found, key=lambda loan: (loan.cohort, loan.borrower, loan.flavor, loan.resource))


def volcano_rows(overview: ClusterOverview, reader: ClusterReader | None = None) -> list[VolcanoRow]:
    """By name. Of who sees some teams: the queues in which they have a PodGroup."""
    if reader is not None and not reader.sees_every_team:
        return _own_volcano_rows(overview, reader)
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


def _own_queue_rows(overview: ClusterOverview, reader: ClusterReader) -> list[QueueRow]:
    """With what the reader's workloads hold and wait for; others' use cannot be worked out from it."""
    state = overview.state
    own = [each for each in state.workloads.values() if reader.sees(each)]
    leads_to = {
        name: queue.cluster_queue
        for name, queue in state.local_queue_by_name.items()
        if reader.works_in(name[0])
    }
    holding = grouped((each for each in own if each.has_quota), lambda each: each.cluster_queue)
    waiting = grouped(
        (each for each in own if each.state is WorkloadState.PENDING),
        lambda each: leads_to.get((each.meta.namespace, each.queue), ""),
    )
    names = {*leads_to.values(), *holding}.intersection(state.cluster_queue_by_name)
    knows = not (state.is_unread("workloads") or state.is_unread("local_queues"))
    rows = []
    for name in sorted(names):
        pending = pending_of(waiting.get(name, ()), overview.catalog) if knows else None
        held = holding.get(name, []) if knows else None
        rows.append(
            QueueRow(
                name,
                True,
                0,
                _trouble(overview.queues.cluster_queues[name]),
                _own_quotas(overview, state.cluster_queue_by_name[name], held),
                None if held is None else sum(is_true(each.conditions, "Admitted") for each in held),
                None if pending is None else sum(pending.workloads.values()),
                None if pending is None else _pending_units(pending),
                None if pending is None else pending.oldest_ms,
            )
        )
    return rows


def _own_quotas(
    overview: ClusterOverview, queue: ClusterQueue, held: Sequence[Workload] | None
) -> list[QueueQuotaRow]:
    """``held`` are the reader's workloads with quota there, None where they are not known."""
    reserved: dict[FlavorResource, int] = {}
    used: dict[FlavorResource, int] = {}
    for workload in held or ():
        for key, amount in workload_usage(workload).items():
            reserved[key] = reserved.get(key, 0) + amount
            if is_true(workload.conditions, "Admitted"):
                used[key] = used.get(key, 0) + amount
    keys = [key for key in dict.fromkeys((*queue.quotas, *reserved)) if overview.catalog.is_gpu(key.resource)]
    return [
        QueueQuotaRow(
            *key,
            queue.quotas[key].nominal if key in queue.quotas else None,
            None if held is None else reserved.get(key, 0),
            None if held is None else used.get(key, 0),
            None,
            None,
        )
        for key in keys
    ]


def _own_volcano_rows(overview: ClusterOverview, reader: ClusterReader) -> list[VolcanoRow]:
    own = [group for group in volcano_groups(overview.state) if reader.sees(group)]
    rows = []
    for name, groups in sorted(grouped(own, queue_of).items()):
        view = overview.volcano_queues.get(name)
        if view is None:
            continue
        queue, asked = view.queue, overview.units.asked
        waiting = [group for group in groups if group.phase in WAITING_PHASES]
        rows.append(
            VolcanoRow(
                name,
                "",
                queue.state,
                None if queue.deserved is None else asked(queue.deserved),
                None if queue.guarantee is None else asked(queue.guarantee),
                None if queue.capability is None else asked(queue.capability),
                None,
                len(waiting),
                added(*(asked(group.min_resources or {}) for group in waiting)),
                min((group.meta.created_ms for group in waiting), default=None),
            )
        )
    return rows


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


def _lenders(views: QueueViews, borrower: str, key: FlavorResource, lent_too: bool) -> list[QuotaLender]:
    """The largest first. In a cohort that does not borrow itself, borrowed quota stays in it."""
    cohort = views.tree.queues[borrower].parent
    while cohort is not None and cohort.parent is not None and cohort.borrowed(key) > 0:
        cohort = cohort.parent
    found = [
        QuotaLender(
            node.name, node.is_queue, _in_base_units(key.resource, unused), readable(key.resource, unused)
        )
        for node, _ in (() if cohort is None else _below(cohort, 0))
        if not (node.is_queue and node.name == borrower)
        and (unused := _unused(views, node, key, lent_too)) > 0
    ]
    return sorted(found, key=lambda lender: (-lender.unused, lender.name))


def _in_base_units(resource: str, amount: int) -> int | float:
    """In the units of the metrics (contract.queue_metrics): cores, with a fraction where they have one."""
    found = base_units(resource, amount)
    return int(found) if found == int(found) else found


def _unused(views: QueueViews, node: QuotaNode, key: FlavorResource, lent_too: bool) -> int:
    if not node.is_queue:
        quota = node.quotas.get(key)
        return 0 if quota is None else quota.nominal
    own = views.cluster_queues[node.name].quotas.get(key)
    if own is None or own.lendable is None:
        return 0
    if not lent_too or own.nominal is None or own.reserved is None:
        return own.lendable
    most = own.nominal if own.lending_limit is None else own.lending_limit
    return max(0, min(most, own.nominal - own.reserved))


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
    user: str = ""


@dataclass(slots=True)
class _Waiters:
    """Pods of a job that have no node yet, and their requests; ``are_seen``: the reader may see all of
    them."""

    first: Pod
    units: dict[str, int] = field(default_factory=dict)
    are_seen: bool = True


def waiting_rows(overview: ClusterOverview, reader: ClusterReader | None = None) -> list[WaitingRow]:
    """All jobs that request GPUs and wait, the longest first; of who sees some teams, those of these."""
    reads = reader or label_reader(overview)
    rows = [*_of_workloads(overview, reads), *_of_jobs(overview, reads)]
    return sorted(rows, key=lambda row: (row.since_ms, row.namespace, row.workload, row.job))


def _of_workloads(overview: ClusterOverview, reader: ClusterReader) -> Iterator[WaitingRow]:
    state = overview.state
    for uid, hold in overview.holds.items():
        workload = state.workloads[uid]
        units = workload_units(workload, overview.catalog)
        if not units or not reader.sees(workload):
            continue
        job, meta = overview.ownership.job_of(workload), workload.meta
        local = state.local_queue_by_name.get((meta.namespace, workload.queue))
        queue = workload.cluster_queue or (local.cluster_queue if local is not None else workload.queue)
        yield WaitingRow(
            meta.namespace,
            meta.name,
            job.kind.value,
            job.name,
            reader.team_of(workload),
            queue,
            # Where it stands tells how many of others do before it.
            overview.positions.get(uid) if reader.sees_every_team else None,
            workload.priority,
            units,
            hold.since_ms,
            hold.layer.value,
            hold.reason,
            reader.said(hold.message, (meta.namespace, meta.name, job.name, queue, workload.queue)),
            overview.ownership.of(as_pod(workload)).user,
        )


def _of_jobs(overview: ClusterOverview, reader: ClusterReader) -> Iterator[WaitingRow]:
    holds = waiting_jobs(overview.state, overview.units, overview.ownership)
    pods = _waiters(overview, reader) if holds else {}
    groups = {} if holds.keys() <= pods.keys() else _groups(overview)
    for job, hold in holds.items():
        if job in pods:
            if pods[job].are_seen:
                yield _of_pods(overview, job, hold, pods[job], reader)
        elif job in groups and reader.sees(groups[job]):
            yield _of_group(overview, job, hold, groups[job], reader)


def _waiters(overview: ClusterOverview, reader: ClusterReader) -> dict[JobReference, _Waiters]:
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
            known.are_seen = known.are_seen and reader.sees(pod)
    return found


def _is_waiting(pod: Pod) -> bool:
    if pod.has_ended:
        return pod.stuck == REFUSED
    return not pod.is_bound or pod.stuck in DEVICE_ERRORS


def _groups(overview: ClusterOverview) -> dict[JobReference, PodGroup]:
    return {overview.ownership.job_of(group): group for group in overview.state.pod_groups.values()}


def _of_pods(
    overview: ClusterOverview, job: JobReference, hold: WaitCause, pods: _Waiters, reader: ClusterReader
) -> WaitingRow:
    first = pods.first
    queue = overview.ownership.of(first).queue
    row = _job_row(job, hold, first, queue, first.priority, pods.units, reader)
    return replace(row, user=overview.ownership.of(first).user)


def _of_group(
    overview: ClusterOverview, job: JobReference, hold: WaitCause, group: PodGroup, reader: ClusterReader
) -> WaitingRow:
    """A PodGroup whose pods are not made yet."""
    units = overview.units.asked(group.min_resources or {})
    row = _job_row(job, hold, group, group.queue, 0, units, reader)
    return replace(row, user=overview.ownership.of(as_pod(group)).user)


def _job_row(
    job: JobReference,
    hold: WaitCause,
    found: Pod | PodGroup,
    queue: str,
    priority: int,
    units: Resources,
    reader: ClusterReader,
) -> WaitingRow:
    namespace = found.meta.namespace
    return WaitingRow(
        namespace,
        "",
        job.kind.value,
        job.name,
        reader.team_of(found),
        queue,
        None,
        priority,
        units,
        hold.since_ms,
        hold.layer.value,
        hold.reason,
        reader.said(hold.message, (namespace, found.meta.name, job.name, queue)),
    )
