"""What Kueue's queues and cohorts have, use, could lend, and keep waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from gpucost.cluster.cohorts import QuotaNode, QuotaTree, quota_tree
from gpucost.cluster.kueue import (
    Assignment,
    ClusterQueue,
    Cohort,
    FlavorResource,
    LocalQueue,
    Quota,
    Use,
    Workload,
    WorkloadState,
)
from gpucost.cluster.objects import Conditions, Resources, added, is_true, times
from gpucost.cluster.state import ClusterState, grouped
from gpucost.domain.gpu import ResourceCatalog

QuotaUse: TypeAlias = Mapping[FlavorResource, int]
QueueName: TypeAlias = tuple[str, str]
"""Namespace and name of a LocalQueue."""

_NOTHING = Use(0)
"""States of a workload that quota is reserved for."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Workloads that wait for quota: how many by reason, GPU units by resource and reason, and since when
    the longest waiting one has waited (None: none does)."""

    workloads: Mapping[str, int] = field(default_factory=dict)
    units: Mapping[tuple[str, str], int] = field(default_factory=dict)
    oldest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class QueueQuota:
    """A ClusterQueue's quota of one flavor and resource. ``nominal`` is None where it has use but no longer
    quota; ``lendable`` is what others may borrow now, None outside any cohort or without quota."""

    nominal: int | None
    borrowing_limit: int | None
    lending_limit: int | None
    reserved: int
    used: int
    borrowed: int
    lendable: int | None


@dataclass(frozen=True, slots=True)
class ClusterQueueView:
    """``is_active`` is None while nothing says. ``admitted`` and ``reserving`` count workloads. With
    ``from_status`` reserved and used quota are Kueue's; else counted from the workloads' admissions."""

    queue: ClusterQueue
    is_active: bool | None
    reason: str
    quotas: Mapping[FlavorResource, QueueQuota]
    pending: Pending
    admitted: int
    reserving: int
    from_status: bool


@dataclass(frozen=True, slots=True)
class CohortQuota:
    """A cohort's quota of one flavor and resource: ``nominal`` of its own (None: none), ``subtree`` what it
    can hand out, ``reserved`` and ``used`` of all queues below it, ``borrowed`` from its parent, ``lendable``
    what queues below it can still get."""

    nominal: int | None
    borrowing_limit: int | None
    lending_limit: int | None
    subtree: int
    reserved: int
    used: int
    borrowed: int
    lendable: int


@dataclass(frozen=True, slots=True)
class CohortView:
    """``cohort`` is None for one that is only named. One on or below a cycle counts nothing below itself."""

    name: str
    parent: str
    cohort: Cohort | None
    in_cycle: bool
    quotas: Mapping[FlavorResource, CohortQuota]
    pending: Pending


@dataclass(frozen=True, slots=True)
class LocalQueueView:
    """As ClusterQueueView; a LocalQueue has no quota of its own."""

    queue: LocalQueue
    is_active: bool | None
    reason: str
    reserved: QuotaUse
    used: QuotaUse
    pending: Pending
    from_status: bool


@dataclass(frozen=True, slots=True)
class QueueViews:
    """ClusterQueues and cohorts by name, LocalQueues by namespace and name."""

    cluster_queues: Mapping[str, ClusterQueueView]
    cohorts: Mapping[str, CohortView]
    local_queues: Mapping[QueueName, LocalQueueView]
    tree: QuotaTree


def queue_views(state: ClusterState, catalog: ResourceCatalog) -> QueueViews:
    """All queues and cohorts of a state.

    A pending workload counts in its LocalQueue and in the ClusterQueue that leads to; one whose LocalQueue
    does not exist counts nowhere (``problems`` names it).
    """
    waiting = waiting_by_queue(state)
    pending = {name: _pending(waiting.get(name, ()), catalog) for name in state.local_queue_by_name}
    holding = [each for each in state.workloads.values() if each.has_quota]
    cluster_queues, tree = _cluster_queues(state, holding, pending)
    return QueueViews(
        cluster_queues,
        _cohorts(state, tree, cluster_queues),
        _local_queues(state, holding, pending),
        tree,
    )


def waiting_by_queue(state: ClusterState) -> dict[QueueName, list[Workload]]:
    """Workloads that wait for quota, by the LocalQueue they name, whether that exists or not."""
    pending = (each for each in state.workloads.values() if each.state is WorkloadState.PENDING)
    return grouped(pending, lambda workload: (workload.meta.namespace, workload.queue))


def pending_reason(workload: Workload) -> str:
    """Why it has no quota, in Kueue's word; ``Pending`` before Kueue has said anything."""
    found = workload.conditions.get("QuotaReserved")
    return found.reason if found is not None and found.reason else "Pending"


def workload_units(workload: Workload, catalog: ResourceCatalog) -> Resources:
    """GPU units that it was given, pods that gave theirs back included; while it has no quota, asks for."""
    has_quota = workload.has_quota or workload.state is WorkloadState.FINISHED
    if has_quota and workload.assignments:
        total = added(*(each.usage for each in workload.assignments))
    elif workload.asked:
        total = added(*workload.asked.values())
    else:
        total = added(
            *(
                times(each.template.requests, max(0, each.count - workload.reclaimable.get(each.name, 0)))
                for each in workload.pod_sets
            )
        )
    return {resource: amount for resource, amount in total.items() if amount and catalog.is_gpu(resource)}


def workload_usage(workload: Workload) -> QuotaUse:
    """Quota it holds now: what it was given, less the part of pods that gave theirs back.

    Rule: kueue, pkg/workload/workload.go, totalRequestsFromAdmission (v0.19.2).
    """
    counts = {each.name: each.count for each in workload.pod_sets}
    usage: dict[FlavorResource, int] = {}
    for each in workload.assignments:
        left = counts.get(each.name, each.count) - workload.reclaimable.get(each.name, 0)
        for resource, amount in _scaled(each, max(0, left)).items():
            if resource in each.flavors:
                key = FlavorResource(each.flavors[resource], resource)
                usage[key] = usage.get(key, 0) + amount
    return usage


def _cluster_queues(
    state: ClusterState, holding: list[Workload], pending: Mapping[QueueName, Pending]
) -> tuple[dict[str, ClusterQueueView], QuotaTree]:
    queues = state.cluster_queue_by_name
    members = grouped(holding, lambda workload: workload.cluster_queue)
    leading = grouped(state.local_queue_by_name.items(), lambda item: item[1].cluster_queue)
    uses = {
        name: _use(queue.reserved, queue.used, queue.quotas, members.get(name, []))
        for name, queue in queues.items()
    }
    reserved = {name: _totals(use.reserved) for name, use in uses.items()}
    tree = quota_tree(queues.values(), state.cohort_by_name.values(), reserved)
    views = {
        name: _cluster_queue(
            tree.queues[name],
            queue,
            uses[name],
            members.get(name, []),
            _merged(pending[own] for own, _ in leading.get(name, ())),
        )
        for name, queue in queues.items()
    }
    return views, tree


def _cluster_queue(
    node: QuotaNode, queue: ClusterQueue, use: _Use, holding: list[Workload], pending: Pending
) -> ClusterQueueView:
    admitted = sum(is_true(each.conditions, "Admitted") for each in holding)
    return ClusterQueueView(
        queue,
        *_activity(queue.conditions),
        {
            key: _queue_quota(node, queue, key, use)
            for key in dict.fromkeys([*queue.quotas, *use.reserved, *use.used])
        },
        pending,
        admitted if queue.admitted is None else queue.admitted,
        len(holding) if queue.reserving is None else queue.reserving,
        use.from_status,
    )


def _queue_quota(node: QuotaNode, queue: ClusterQueue, key: FlavorResource, use: _Use) -> QueueQuota:
    quota = queue.quotas.get(key)
    reserved = use.reserved.get(key, _NOTHING)
    lendable = None
    if quota is not None and queue.cohort:
        most = quota.nominal if quota.lending_limit is None else quota.lending_limit
        unused = min(most, quota.nominal - reserved.total)
        # Others may have borrowed it already: then the cohort has no more to give.
        lendable = max(0, min(unused, node.parent.available(key))) if node.lends and node.parent else 0
    return QueueQuota(
        None if quota is None else quota.nominal,
        None if quota is None else quota.borrowing_limit,
        None if quota is None else quota.lending_limit,
        reserved.total,
        use.used.get(key, _NOTHING).total,
        reserved.borrowed if queue.cohort else 0,
        lendable,
    )


def _cohorts(
    state: ClusterState, tree: QuotaTree, queues: Mapping[str, ClusterQueueView]
) -> dict[str, CohortView]:
    views: dict[str, CohortView] = {}
    for node in tree.bottom_up:
        below = [queues[each.name] if each.is_queue else views[each.name] for each in node.children]
        cohort = state.cohort_by_name.get(node.name)
        views[node.name] = CohortView(
            node.name,
            "" if cohort is None else cohort.parent,
            cohort,
            node.in_cycle,
            _cohort_quotas(node, below),
            _merged(each.pending for each in below),
        )
    return views


def _cohort_quotas(
    node: QuotaNode, below: Iterable[ClusterQueueView | CohortView]
) -> dict[FlavorResource, CohortQuota]:
    reserved: Counter[FlavorResource] = Counter()
    used: Counter[FlavorResource] = Counter()
    for view in below:
        for key, quota in view.quotas.items():
            reserved[key] += quota.reserved
            used[key] += quota.used
    return {
        key: _cohort_quota(node, key, reserved[key], used[key])
        for key in dict.fromkeys([*node.quotas, *node.subtree, *reserved])
    }


def _cohort_quota(node: QuotaNode, key: FlavorResource, reserved: int, used: int) -> CohortQuota:
    quota = node.quotas.get(key)
    return CohortQuota(
        None if quota is None else quota.nominal,
        None if quota is None else quota.borrowing_limit,
        None if quota is None else quota.lending_limit,
        node.subtree.get(key, 0),
        reserved,
        used,
        node.borrowed(key),
        max(0, node.available(key)),
    )


def _local_queues(
    state: ClusterState, holding: list[Workload], pending: Mapping[QueueName, Pending]
) -> dict[QueueName, LocalQueueView]:
    members = grouped(holding, lambda workload: (workload.meta.namespace, workload.queue))
    views = {}
    for name, queue in state.local_queue_by_name.items():
        leads_to = state.cluster_queue_by_name.get(queue.cluster_queue)
        quotas = {} if leads_to is None else leads_to.quotas
        use = _use(queue.reserved, queue.used, quotas, members.get(name, []))
        views[name] = LocalQueueView(
            queue,
            *_activity(queue.conditions),
            _totals(use.reserved),
            _totals(use.used),
            pending[name],
            use.from_status,
        )
    return views


def _activity(conditions: Conditions) -> tuple[bool | None, str]:
    active = conditions.get("Active")
    return (None, "") if active is None else (active.status is True, active.reason)


class _Use(NamedTuple):
    reserved: Mapping[FlavorResource, Use]
    used: Mapping[FlavorResource, Use]
    from_status: bool


def _use(
    reserved: Mapping[FlavorResource, Use],
    used: Mapping[FlavorResource, Use],
    quotas: Mapping[FlavorResource, Quota],
    workloads: list[Workload],
) -> _Use:
    """As the status says; what it does not say is counted from the workloads that have quota.

    A status that lacks a flavor and resource of the spec was written before the spec, or never.
    """
    knows_reserved, knows_used = (bool(of) and quotas.keys() <= of.keys() for of in (reserved, used))
    if knows_reserved and knows_used:
        return _Use(reserved, used, True)
    held = [(workload_usage(each), is_true(each.conditions, "Admitted")) for each in workloads]
    if not knows_reserved:
        reserved = _counted((usage for usage, _ in held), quotas)
    if not knows_used:
        used = _counted((usage for usage, is_admitted in held if is_admitted), quotas)
    return _Use(reserved, used, False)


def _counted(usages: Iterable[QuotaUse], quotas: Mapping[FlavorResource, Quota]) -> dict[FlavorResource, Use]:
    total = dict.fromkeys(quotas, 0)
    for usage in usages:
        for key, amount in usage.items():
            total[key] = total.get(key, 0) + amount
    return {
        key: Use(amount, max(0, amount - (quotas[key].nominal if key in quotas else 0)))
        for key, amount in total.items()
    }


def _totals(use: Mapping[FlavorResource, Use]) -> dict[FlavorResource, int]:
    return {key: each.total for key, each in use.items()}


def _scaled(assignment: Assignment, count: int) -> Resources:
    if count >= assignment.count:
        return assignment.usage
    return {resource: amount // assignment.count * count for resource, amount in assignment.usage.items()}


def _pending(workloads: Iterable[Workload], catalog: ResourceCatalog) -> Pending:
    counts: Counter[str] = Counter()
    units: Counter[tuple[str, str]] = Counter()
    since = []
    for workload in workloads:
        reason = pending_reason(workload)
        counts[reason] += 1
        since.append(workload.waiting_since_ms)
        for resource, amount in workload_units(workload, catalog).items():
            units[resource, reason] += amount
    return Pending(dict(counts), dict(units), min(since, default=None))


def _merged(parts: Iterable[Pending]) -> Pending:
    counts: Counter[str] = Counter()
    units: Counter[tuple[str, str]] = Counter()
    since = []
    for part in parts:
        counts.update(part.workloads)
        units.update(part.units)
        if part.oldest_ms is not None:
            since.append(part.oldest_ms)
    return Pending(dict(counts), dict(units), min(since, default=None))
