"""What Kueue's queues and cohorts have, use, could lend, and keep waiting; and what LocalQueues have used
lately.

``PendingWorkloads`` are workloads that wait for quota: how many, for how much, and since when.

By what its LocalQueues have used lately Kueue orders the workloads of a ClusterQueue (admission fair
sharing). The usage of a LocalQueue is what its status says it consumed, with the entry penalties added, by
the weights of resources, divided by the weight of the queue. An entry penalty is charged when a workload gets
quota, and is part of what was consumed once the workload is admitted: Kueue keeps it in memory, so here it is
computed, for workloads with quota that are not admitted yet. It is not known where Kueue's Configuration was
not read.

Rules: kueue v0.19.2, pkg/util/admissionfairsharing/admission_fair_sharing.go, pkg/cache/queue/afs and
pkg/scheduler/scheduler.go (shouldApplyEntryPenalty). Left out: what Kueue has added since it last wrote the
status (every usageSamplingInterval), and penalties of workloads that were evicted before they were admitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

from gpucost.cluster.objects.kueue import (
    ClusterQueue,
    Cohort,
    FlavorQuota,
    FlavorResource,
    FlavorUsage,
    LocalQueue,
    Workload,
    WorkloadState,
)
from gpucost.cluster.objects.metadata import CPU, Conditions, is_true
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.cluster.objects.state import ClusterState, grouped
from gpucost.cluster.views.cohorts import QuotaNode, QuotaTree, quota_tree
from gpucost.cluster.views.quota import (
    QuotaUsage,
    QuotaUse,
    quota_use,
    workload_units,
)
from gpucost.domain.gpu import ResourceCatalog

FAIR_ADMISSION = "UsageBasedAdmissionFairSharing"
GATE = "AdmissionFairSharing"
LAST = Fraction(2**200)
"""The usage of a LocalQueue of weight 0, which comes after all others."""
LocalUsages: TypeAlias = Mapping[tuple[str, str], "LocalQueueUsage"]
"""By namespace and name of the LocalQueue."""
QueueName: TypeAlias = tuple[str, str]
"""Namespace and name of a LocalQueue."""


@dataclass(frozen=True, slots=True)
class LocalQueueUsage:
    """``consumed`` is what its status says, ``penalty`` what is charged for workloads that are not admitted
    yet (None: not known), both by resource in thousandths of a core, byte or unit. ``order`` is what Kueue
    compares: the less comes first."""

    queue: LocalQueue
    consumed: Mapping[str, int]
    penalty: Mapping[str, Fraction] | None
    order: Fraction


def goes_by_usage(queue: ClusterQueue, config: KueueConfig) -> bool:
    """Whether Kueue orders the queue's workloads by usage: the queue says so, and Kueue is not known to have
    admission fair sharing switched off."""
    is_off = (config.is_read and config.fair_admission is None) or config.gates.get(GATE) is False
    return queue.admission_mode == FAIR_ADMISSION and not is_off


def local_usages(state: ClusterState, config: KueueConfig) -> LocalUsages:
    """Of the LocalQueues that lead to a ClusterQueue which goes by usage."""
    fair = {name for name, queue in state.cluster_queue_by_name.items() if goes_by_usage(queue, config)}
    if not fair:
        return {}
    entering: dict[tuple[str, str], list[Workload]] = {}
    for each in state.workloads.values():
        if each.has_quota and each.cluster_queue in fair and not is_true(each.conditions, "Admitted"):
            entering.setdefault((each.meta.namespace, each.queue), []).append(each)
    return {
        name: _usage(queue, entering.get(name, []), config)
        for name, queue in state.local_queue_by_name.items()
        if queue.cluster_queue in fair
    }


def _usage(queue: LocalQueue, entering: list[Workload], config: KueueConfig) -> LocalQueueUsage:
    settings = config.fair_admission
    penalty = None if settings is None else _penalty(entering, settings.entry_part)
    weights = {} if settings is None else settings.weights
    total = sum(
        (weights.get(resource, Fraction(1)) * amount for resource, amount in queue.fair_usage.items()),
        sum(
            (weights.get(resource, Fraction(1)) * amount for resource, amount in (penalty or {}).items()),
            Fraction(0),
        ),
    )
    order = total / queue.weight if queue.weight > 0 else LAST
    return LocalQueueUsage(queue, queue.fair_usage, penalty, order)


def _penalty(entering: list[Workload], part: Fraction) -> dict[str, Fraction]:
    """``part`` of all that these were given."""
    found: dict[str, Fraction] = {}
    for workload in entering:
        for assignment in workload.assignments:
            for resource, amount in assignment.usage.items():
                thousandths = amount if resource == CPU else 1000 * amount
                found[resource] = found.get(resource, Fraction(0)) + part * thousandths
    return found


@dataclass(frozen=True, slots=True)
class PendingWorkloads:
    """Workloads that wait for quota: how many by reason, GPU units by resource and reason, and since when
    the longest waiting one has waited (None: none does)."""

    workloads: Mapping[str, int] = field(default_factory=dict)
    units: Mapping[tuple[str, str], int] = field(default_factory=dict)
    oldest_ms: int | None = None


def waiting_by_queue(state: ClusterState) -> dict[QueueName, list[Workload]]:
    """Workloads that wait for quota, by the LocalQueue they name, whether that exists or not."""
    pending = (each for each in state.workloads.values() if each.state is WorkloadState.PENDING)
    return grouped(pending, lambda workload: (workload.meta.namespace, workload.queue))


def pending_reason(workload: Workload) -> str:
    """Why it has no quota, in Kueue's word; ``Pending`` before Kueue has written a reason."""
    found = workload.conditions.get("QuotaReserved")
    return found.reason if found is not None and found.reason else "Pending"


def pending_of(workloads: Iterable[Workload], catalog: ResourceCatalog) -> PendingWorkloads:
    """The sum over these workloads."""
    counts: Counter[str] = Counter()
    units: Counter[tuple[str, str]] = Counter()
    since = []
    for workload in workloads:
        reason = pending_reason(workload)
        counts[reason] += 1
        since.append(workload.waiting_since_ms)
        for resource, amount in workload_units(workload, catalog).items():
            units[resource, reason] += amount
    return PendingWorkloads(dict(counts), dict(units), min(since, default=None))


def merged(parts: Iterable[PendingWorkloads | None]) -> PendingWorkloads | None:
    """The sum of parts that have no workload in common; None where one of them is not known."""
    counts: Counter[str] = Counter()
    units: Counter[tuple[str, str]] = Counter()
    since = []
    for part in parts:
        if part is None:
            return None
        counts.update(part.workloads)
        units.update(part.units)
        if part.oldest_ms is not None:
            since.append(part.oldest_ms)
    return PendingWorkloads(dict(counts), dict(units), min(since, default=None))


_NOTHING = FlavorUsage(0)


@dataclass(frozen=True, slots=True)
class ClusterQueueQuota:
    """A ClusterQueue's quota of one flavor and resource. ``nominal`` is None where it has use but no longer
    quota; ``lendable`` is what others may borrow now, None outside any cohort or without quota. Use is None
    where neither the status nor the workloads have it."""

    nominal: int | None
    borrowing_limit: int | None
    lending_limit: int | None
    reserved: int | None
    used: int | None
    borrowed: int | None
    lendable: int | None


@dataclass(frozen=True, slots=True)
class ClusterQueueView:
    """``is_active`` is None while unknown. ``admitted`` and ``reserving`` count workloads. With
    ``from_status`` reserved and used quota are Kueue's; else counted from the workloads' admissions.
    ``pending`` and counts are None where workloads could not be read."""

    queue: ClusterQueue
    is_active: bool | None
    reason: str
    quotas: Mapping[FlavorResource, ClusterQueueQuota]
    pending: PendingWorkloads | None
    admitted: int | None
    reserving: int | None
    from_status: bool


@dataclass(frozen=True, slots=True)
class CohortQuota:
    """A cohort's quota of one flavor and resource: ``nominal`` of its own (None: none), ``subtree`` what it
    can provide, ``reserved`` and ``used`` of all queues below it, ``borrowed`` from its parent, ``lendable``
    what queues below it can still get; None where the use of a queue below is."""

    nominal: int | None
    borrowing_limit: int | None
    lending_limit: int | None
    subtree: int
    reserved: int | None
    used: int | None
    borrowed: int | None
    lendable: int | None


@dataclass(frozen=True, slots=True)
class CohortView:
    """``cohort`` is None for one that is only named. One on or below a cycle counts nothing below itself."""

    name: str
    parent: str
    cohort: Cohort | None
    in_cycle: bool
    quotas: Mapping[FlavorResource, CohortQuota]
    pending: PendingWorkloads | None


@dataclass(frozen=True, slots=True)
class LocalQueueView:
    """As ClusterQueueView; a LocalQueue has no quota of its own. Use is empty where it is unknown.
    ``is_fair``: its ClusterQueue goes by what LocalQueues used lately."""

    queue: LocalQueue
    is_active: bool | None
    reason: str
    reserved: QuotaUse
    used: QuotaUse
    pending: PendingWorkloads | None
    from_status: bool
    is_fair: bool = False


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
    does not exist is not counted (``problems`` names it). Where ClusterQueues or Cohorts could not be read
    there are no cohorts: their members are unknown.
    """
    waiting = waiting_by_queue(state)
    knows_waiting = not (state.is_unread("workloads") or state.is_unread("local_queues"))
    pending = {
        name: pending_of(waiting.get(name, ()), catalog) if knows_waiting else None
        for name in state.local_queue_by_name
    }
    holding = [each for each in state.workloads.values() if each.has_quota]
    cluster_queues, tree = _cluster_queues(state, holding, pending)
    return QueueViews(
        cluster_queues,
        _cohorts(state, tree, cluster_queues) if _knows_cohorts(state) else {},
        _local_queues(state, holding, pending),
        tree,
    )


def _knows_cohorts(state: ClusterState) -> bool:
    return not (state.is_unread("cluster_queues") or state.is_unread("cohorts"))


def _cluster_queues(
    state: ClusterState, holding: list[Workload], pending: Mapping[QueueName, PendingWorkloads | None]
) -> tuple[dict[str, ClusterQueueView], QuotaTree]:
    queues = state.cluster_queue_by_name
    members = grouped(holding, lambda workload: workload.cluster_queue)
    leading = grouped(state.local_queue_by_name.items(), lambda item: item[1].cluster_queue)
    uses = {
        name: quota_use(queue.reserved, queue.used, queue.quotas, members.get(name, []))
        for name, queue in queues.items()
    }
    reserved = {name: _totals(use.reserved) for name, use in uses.items()}
    tree = quota_tree(queues.values(), state.cohort_by_name.values(), reserved)
    knows_workloads = not state.is_unread("workloads")
    knows_waiting = knows_workloads and not state.is_unread("local_queues")
    # Where the use of one queue is unknown, it is unknown what the others could lend.
    knows_lending = _knows_cohorts(state) and (
        knows_workloads or all(use.from_status for use in uses.values())
    )
    views = {
        name: _cluster_queue(
            tree.queues[name],
            queue,
            uses[name],
            members.get(name, []) if knows_workloads else None,
            merged(pending[own] for own, _ in leading.get(name, ())) if knows_waiting else None,
            knows_lending,
        )
        for name, queue in queues.items()
    }
    return views, tree


def _cluster_queue(
    node: QuotaNode,
    queue: ClusterQueue,
    use: QuotaUsage,
    holding: list[Workload] | None,
    pending: PendingWorkloads | None,
    knows_lending: bool,
) -> ClusterQueueView:
    """``holding`` are workloads with quota here; None where workloads could not be read."""
    is_used = use.from_status or holding is not None
    reserving = None if holding is None else len(holding)
    admitted = None if holding is None else sum(is_true(each.conditions, "Admitted") for each in holding)
    keys = dict.fromkeys([*queue.quotas, *use.reserved, *use.used])
    return ClusterQueueView(
        queue,
        *_activity(queue.conditions),
        {key: _queue_quota(node, queue, key, use if is_used else None, knows_lending) for key in keys},
        pending,
        admitted if queue.admitted is None else queue.admitted,
        reserving if queue.reserving is None else queue.reserving,
        use.from_status,
    )


def _queue_quota(
    node: QuotaNode, queue: ClusterQueue, key: FlavorResource, use: QuotaUsage | None, knows_lending: bool
) -> ClusterQueueQuota:
    quota = queue.quotas.get(key)
    reserved = None if use is None else use.reserved.get(key, _NOTHING)
    limits = _limits(quota)
    if use is None or reserved is None:
        return ClusterQueueQuota(*limits, None, None, None, None)
    lendable = None
    if quota is not None and queue.cohort and knows_lending:
        most = quota.nominal if quota.lending_limit is None else quota.lending_limit
        unused = min(most, quota.nominal - reserved.total)
        # Others may have borrowed it already: then the cohort has nothing more to lend.
        lendable = max(0, min(unused, node.parent.available(key))) if node.parent else 0
    borrowed = reserved.borrowed if queue.cohort else 0
    return ClusterQueueQuota(*limits, reserved.total, use.used.get(key, _NOTHING).total, borrowed, lendable)


def _limits(quota: FlavorQuota | None) -> tuple[int | None, int | None, int | None]:
    return (
        (None, None, None) if quota is None else (quota.nominal, quota.borrowing_limit, quota.lending_limit)
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
            merged(each.pending for each in below),
        )
    return views


def _cohort_quotas(
    node: QuotaNode, below: Sequence[ClusterQueueView | CohortView]
) -> dict[FlavorResource, CohortQuota]:
    parts = grouped(
        ((key, quota) for view in below for key, quota in view.quotas.items()), lambda part: part[0]
    )
    return {
        key: _cohort_quota(node, key, [quota for _, quota in parts.get(key, ())])
        for key in dict.fromkeys([*node.quotas, *node.subtree, *parts])
    }


def _cohort_quota(
    node: QuotaNode, key: FlavorResource, below: Sequence[ClusterQueueQuota | CohortQuota]
) -> CohortQuota:
    quota = node.quotas.get(key)
    limits = _limits(quota)
    reserved, used = _sum(each.reserved for each in below), _sum(each.used for each in below)
    is_used = reserved is not None
    return CohortQuota(
        *limits,
        node.subtree.get(key, 0),
        reserved,
        used,
        node.borrowed(key) if is_used else None,
        max(0, node.available(key)) if is_used else None,
    )


def _sum(amounts: Iterable[int | None]) -> int | None:
    """None where one of them is."""
    total = 0
    for amount in amounts:
        if amount is None:
            return None
        total += amount
    return total


def _local_queues(
    state: ClusterState, holding: list[Workload], pending: Mapping[QueueName, PendingWorkloads | None]
) -> dict[QueueName, LocalQueueView]:
    members = grouped(holding, lambda workload: (workload.meta.namespace, workload.queue))
    views = {}
    for name, queue in state.local_queue_by_name.items():
        leads_to = state.cluster_queue_by_name.get(queue.cluster_queue)
        quotas = {} if leads_to is None else leads_to.quotas
        use = quota_use(queue.reserved, queue.used, quotas, members.get(name, []))
        is_used = use.from_status or not state.is_unread("workloads")
        views[name] = LocalQueueView(
            queue,
            *_activity(queue.conditions),
            _totals(use.reserved) if is_used else {},
            _totals(use.used) if is_used else {},
            pending[name],
            use.from_status,
            leads_to is not None and goes_by_usage(leads_to, state.schedulers.kueue),
        )
    return views


def _activity(conditions: Conditions) -> tuple[bool | None, str]:
    active = conditions.get("Active")
    return (None, "") if active is None else (active.status is True, active.reason)


def _totals(use: Mapping[FlavorResource, FlavorUsage]) -> dict[FlavorResource, int]:
    return {key: each.total for key, each in use.items()}
