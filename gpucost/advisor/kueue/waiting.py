"""Who waits in which ClusterQueue, in Kueue's order, and who stands in no line at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from gpucost.advisor.kueue import words
from gpucost.advisor.kueue.asks import Ask, ask_of, in_order
from gpucost.advisor.kueue.results import Outcome, PendingClass, WorkloadDecision
from gpucost.advisor.kueue.snapshot import Queue, Snapshot
from gpucost.cluster.fit import meets
from gpucost.cluster.kueue import Workload, WorkloadState
from gpucost.cluster.order import FAIR_ADMISSION, fair_usage, is_tried

NAMESPACE_MISMATCH = "Workload namespace doesn't match ClusterQueue selector"
_STOPPED = ("Hold", "HoldAndDrain")


@dataclass(frozen=True, slots=True)
class Lines:
    """``by_queue`` has the asks of each active ClusterQueue, head first; ``hopeless`` those that nobody will
    serve before something else changes: by uid."""

    by_queue: Mapping[str, list[Ask]]
    hopeless: Mapping[str, WorkloadDecision]


def lines(snapshot: Snapshot) -> Lines:
    """Of all workloads that wait for quota. Under admission fair sharing the usage of the LocalQueue, as its
    status has it, comes before priority."""
    found: dict[str, list[Ask]] = {}
    hopeless: dict[str, WorkloadDecision] = {}
    for workload in snapshot.state.workloads.values():
        if workload.state is not WorkloadState.PENDING:
            continue
        why = why_not_in_line(snapshot, workload)
        if why is not None:
            hopeless[workload.meta.uid] = why
            continue
        ask = standing(snapshot, workload)
        found.setdefault(ask.queue, []).append(ask)
    return Lines({name: sorted(asks, key=in_order) for name, asks in found.items()}, hopeless)


def standing(snapshot: Snapshot, workload: Workload) -> Ask:
    """What a workload asks, and where it stands in its line. Its queues exist."""
    local = snapshot.state.local_queue_by_name[workload.meta.namespace, workload.queue]
    queue = snapshot.queues[local.cluster_queue]
    is_fair = queue.spec.admission_mode == FAIR_ADMISSION
    return ask_of(workload, queue.name, snapshot.config, fair_usage(local) if is_fair else Fraction(0))


def why_not_in_line(snapshot: Snapshot, workload: Workload) -> WorkloadDecision | None:
    """Why nobody looks at a pending workload; None where its queue does."""
    local = snapshot.state.local_queue_by_name.get((workload.meta.namespace, workload.queue))
    queue = snapshot.queues.get(local.cluster_queue) if local is not None else None
    if local is None or queue is None or not queue.is_active or local.stop_policy in _STOPPED:
        return WorkloadDecision(workload.meta.uid, Outcome.PENDING, PendingClass.INADMISSIBLE)
    if not is_tried(workload):
        return WorkloadDecision(workload.meta.uid, Outcome.PENDING, PendingClass.WAITING)
    if not admits_namespace(snapshot, queue, workload.meta.namespace):
        return WorkloadDecision(
            workload.meta.uid,
            Outcome.PENDING,
            PendingClass.INADMISSIBLE,
            reason=words.MISCONFIGURED,
            message=NAMESPACE_MISMATCH,
            parked=True,
        )
    return None


def admits_namespace(snapshot: Snapshot, queue: Queue, namespace: str) -> bool:
    """Whether the queue's namespaceSelector takes a namespace; one that is not known has no labels."""
    selector = queue.spec.namespace_selector
    if selector is None:
        return False
    found = snapshot.state.namespace_by_name.get(namespace)
    labels = {"kubernetes.io/metadata.name": namespace, **(found.meta.labels if found else {})}
    return all(meets(each, labels) for each in selector)
