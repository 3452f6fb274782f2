"""Queues of a cluster for ``gpucost state show``: Kueue's as a tree, who borrows, and Volcano's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpucost.cluster.cohorts import QuotaNode
from gpucost.cluster.kueue import FlavorResource
from gpucost.cluster.objects import Resources
from gpucost.cluster.overview import Overview
from gpucost.cluster.pending import Pending
from gpucost.cluster.quantities import base_units, readable
from gpucost.cluster.queues import ClusterQueueView, CohortView, QueueViews
from gpucost.cluster.state import ClusterState
from gpucost.cluster.volcano import WAITING_PHASES
from gpucost.cluster.volcano_queues import parent_of

_VOLCANO_GROUPS = "podgroups.scheduling.volcano.sh"


@dataclass(frozen=True, slots=True)
class QuotaRow:
    """GPU quota of one flavor and resource. ``nominal`` is None for a cohort without quota of its own, and
    for a queue that uses what it no longer has. ``lendable`` is what others may borrow of a queue, None
    outside any cohort; of a cohort what queues below it can still get."""

    flavor: str
    resource: str
    nominal: int | None
    reserved: int | None
    used: int | None
    borrowed: int | None
    lendable: int | None


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A ClusterQueue (``is_queue``) or a cohort, ``depth`` below its root. ``trouble`` says why it admits
    nothing, empty while it does. ``admitted`` is None for cohorts. What could not be listed is None."""

    name: str
    is_queue: bool
    depth: int
    trouble: str
    quotas: Sequence[QuotaRow]
    admitted: int | None
    pending: int | None
    pending_units: Resources | None
    oldest_ms: int | None


@dataclass(frozen=True, slots=True)
class Lender:
    """A queue or cohort with quota that it does not use itself, lent already or not: ``unused`` cores, bytes
    or units, ``unused_text`` for a person."""

    name: str
    is_queue: bool
    unused: int | float
    unused_text: str


@dataclass(frozen=True, slots=True)
class Loan:
    """What a ClusterQueue uses above its nominal quota, and who around it has quota to lend: all within the
    lowest cohort above it that does not borrow itself. Kueue does not say whose quota it is; with one lender
    it is that one's. ``borrowed`` is in cores, bytes or units, ``borrowed_text`` for a person."""

    borrower: str
    cohort: str
    flavor: str
    resource: str
    borrowed: int | float
    borrowed_text: str
    lenders: Sequence[Lender]


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


def queue_rows(overview: Overview) -> list[QueueRow]:
    """Cohorts with what is below them, by name; then ClusterQueues without a cohort."""
    nodes = overview.queues.tree
    roots = [node for node in nodes.bottom_up if node.parent is None]
    alone = [node for node in nodes.queues.values() if node.parent is None]
    ordered = [*sorted(roots, key=lambda node: node.name), *sorted(alone, key=lambda node: node.name)]
    rows = (_row(overview, node, depth) for root in ordered for node, depth in _below(root, 0))
    return [row for row in rows if row is not None]


def loans(views: QueueViews) -> list[Loan]:
    """By cohort and borrower."""
    found = [
        Loan(
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


def volcano_rows(overview: Overview) -> list[VolcanoRow]:
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
    """A state that says nothing of its collections is taken to have all of them."""
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


def _row(overview: Overview, node: QuotaNode, depth: int) -> QueueRow | None:
    """None for cohorts of which nobody knows what is below them."""
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
            QuotaRow(*key, quota.nominal, quota.reserved, quota.used, quota.borrowed, quota.lendable)
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


def _pending_units(pending: Pending) -> dict[str, int]:
    units: dict[str, int] = {}
    for (resource, _), amount in sorted(pending.units.items()):
        units[resource] = units.get(resource, 0) + amount
    return units


def _lenders(views: QueueViews, borrower: str, key: FlavorResource) -> list[Lender]:
    """The largest first. In a cohort that does not borrow itself, what is borrowed stays in it."""
    cohort = views.tree.queues[borrower].parent
    while cohort is not None and cohort.parent is not None and cohort.borrowed(key) > 0:
        cohort = cohort.parent
    found = [
        Lender(node.name, node.is_queue, _in_base_units(key.resource, unused), readable(key.resource, unused))
        for node, _ in (() if cohort is None else _below(cohort, 0))
        if not (node.is_queue and node.name == borrower) and (unused := _unused(views, node, key)) > 0
    ]
    return sorted(found, key=lambda lender: (-lender.unused, lender.name))


def _in_base_units(resource: str, amount: int) -> int | float:
    """As metrics have it (contract.queue_metrics): cores, with a fraction where they have one."""
    found = base_units(resource, amount)
    return int(found) if found == int(found) else found


def _unused(views: QueueViews, node: QuotaNode, key: FlavorResource) -> int:
    if not node.is_queue:
        quota = node.quotas.get(key)
        return 0 if quota is None else quota.nominal
    own = views.cluster_queues[node.name].quotas.get(key)
    return 0 if own is None or own.lendable is None else own.lendable
