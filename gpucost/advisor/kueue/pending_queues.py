"""Which workloads wait in which ClusterQueue, in Kueue's order, which will, and which are in no queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from gpucost.advisor.kueue import messages
from gpucost.advisor.kueue.requests import QuotaRequest, ask_of, in_order
from gpucost.advisor.kueue.snapshot import STOPPED, KueueSnapshot, SnapshotQueue
from gpucost.advisor.model.cycle_results import CycleOutcome, PendingClass, WorkloadDecision
from gpucost.cluster.objects.kueue import Workload, WorkloadState
from gpucost.cluster.views.node_fit import meets
from gpucost.cluster.views.queue_order import is_tried
from gpucost.cluster.views.quota import held_back

NAMESPACE_MISMATCH = "workload namespace doesn't match ClusterQueue selector"


@dataclass(frozen=True, slots=True)
class LaterRequest:
    """A workload that stands in its queue from ``from_ms`` on, once its time to wait is over (backoff)."""

    from_ms: int
    ask: QuotaRequest


@dataclass(frozen=True, slots=True)
class PendingQueues:
    """``by_queue`` has the asks of each active ClusterQueue, head first. ``refused`` are those among them
    that are parked when their turn comes, ``hopeless`` those that are in no queue until something else
    changes, ``later`` those of them that an instant brings back: by uid."""

    by_queue: Mapping[str, list[QuotaRequest]]
    refused: Mapping[str, WorkloadDecision]
    hopeless: Mapping[str, WorkloadDecision]
    later: Mapping[str, LaterRequest]


def lines(snapshot: KueueSnapshot) -> PendingQueues:
    """Of all workloads that wait for quota. Under admission fair sharing the usage of the LocalQueue
    (``cluster.views.queues``) comes before priority."""
    found: dict[str, list[QuotaRequest]] = {}
    refused: dict[str, WorkloadDecision] = {}
    hopeless: dict[str, WorkloadDecision] = {}
    later: dict[str, LaterRequest] = {}
    for workload in snapshot.state.workloads.values():
        if workload.state is not WorkloadState.PENDING:
            continue
        why = _why_not_in_line(snapshot, workload)
        if why is not None:
            hopeless[workload.meta.uid] = why
            back = _later(snapshot, workload) if why.pending is PendingClass.WAITING else None
            if back is not None:
                later[workload.meta.uid] = back
            continue
        ask = standing(snapshot, workload)
        found.setdefault(ask.queue, []).append(ask)
        if not admits_namespace(snapshot, snapshot.queues[ask.queue], workload.meta.namespace):
            refused[ask.uid] = _refused(ask)
    by_queue = {name: sorted(asks, key=in_order) for name, asks in found.items()}
    return PendingQueues(by_queue, refused, hopeless, later)


def standing(snapshot: KueueSnapshot, workload: Workload) -> QuotaRequest:
    """What a workload asks, and its place in its queue. Its queues exist."""
    local = snapshot.state.local_queue_by_name[workload.meta.namespace, workload.queue]
    queue = snapshot.queues[local.cluster_queue]
    used = snapshot.local_usages.get((workload.meta.namespace, workload.queue))
    before = Fraction(0) if used is None else used.order
    return ask_of(workload, queue.name, snapshot.config, before)


def _why_not_in_line(snapshot: KueueSnapshot, workload: Workload) -> WorkloadDecision | None:
    """Why a pending workload is not tried; None where its queue tries it. In a queue that is not active it
    waits as it is."""
    uid = workload.meta.uid
    local = snapshot.state.local_queue_by_name.get((workload.meta.namespace, workload.queue))
    queue = snapshot.queues.get(local.cluster_queue) if local is not None else None
    if local is None or queue is None or local.stop_policy in STOPPED:
        return WorkloadDecision(uid, CycleOutcome.PENDING, PendingClass.INADMISSIBLE)
    if not queue.is_active or not is_tried(workload, snapshot.state.at_ms):
        return WorkloadDecision(uid, CycleOutcome.PENDING, PendingClass.WAITING)
    return None


def _later(snapshot: KueueSnapshot, workload: Workload) -> LaterRequest | None:
    """When one that is not tried now is; None where no object knows, or its queue would not take it then."""
    held = held_back(workload, snapshot.state.at_ms)
    if held is None or held.until_ms is None:
        return None
    ask = standing(snapshot, workload)
    queue = snapshot.queues[ask.queue]
    if not queue.is_active or not admits_namespace(snapshot, queue, workload.meta.namespace):
        return None
    return LaterRequest(held.until_ms, ask)


def _refused(ask: QuotaRequest) -> WorkloadDecision:
    """Parked whatever the strategy of its queue is (cluster_queue.go, RequeueReasonNamespaceMismatch)."""
    return WorkloadDecision(
        ask.uid,
        CycleOutcome.PENDING,
        PendingClass.INADMISSIBLE,
        reason=messages.MISCONFIGURED,
        message=NAMESPACE_MISMATCH,
        parked=True,
    )


def admits_namespace(snapshot: KueueSnapshot, queue: SnapshotQueue, namespace: str) -> bool:
    """Whether the queue's namespaceSelector takes a namespace; one that is not known has no labels."""
    selector = queue.spec.namespace_selector
    if selector is None:
        return False
    found = snapshot.state.namespace_by_name.get(namespace)
    labels = {"kubernetes.io/metadata.name": namespace, **(found.meta.labels if found else {})}
    return all(meets(each, labels) for each in selector)
