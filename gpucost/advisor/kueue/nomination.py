"""What one head of a queue would get: flavors, a size, victims.

Rules: kueue v0.19.2, pkg/scheduler/scheduler.go (getInitialAssignments), flavorassigner/podset_reducer.go,
preemption/preemption_oracle.go.

``victims_given`` is the search for victims alone, with flavors that are given: how some recorded decisions
are stated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from gpucost.advisor.kueue.flavor_assigner import (
    AssignmentGrade,
    AssignmentMode,
    FlavorAssigner,
    FlavorAssignment,
)
from gpucost.advisor.kueue.preemption import PreemptionTarget, VictimSearch, classical_targets, fair_targets
from gpucost.advisor.kueue.requests import QuotaRequest, ask_of, requested
from gpucost.advisor.kueue.snapshot import KueueSnapshot, SnapshotQueue
from gpucost.cluster.objects.kueue import FlavorResource
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.quota import QuotaUse


@dataclass(slots=True)
class NominatedHead:
    """A head with what was chosen for it; ``targets`` are the victims it needs, empty where none were found
    or none are needed."""

    ask: QuotaRequest
    queue: SnapshotQueue
    assignment: FlavorAssignment
    targets: list[PreemptionTarget]


def nominate(snapshot: KueueSnapshot, ask: QuotaRequest, may_preempt: bool = True) -> NominatedHead:
    """At full size; else, where pod sets may be smaller, at the largest size that fits or can preempt."""
    queue = snapshot.queues[ask.queue]
    full = _at_size(snapshot, queue, ask, ask.counts, may_preempt)
    if full.assignment.mode is AssignmentMode.FIT or full.targets:
        return full
    spare = [asked.count - asked.least for asked in ask.pod_sets]
    total = sum(spare)

    def smaller(step: int) -> NominatedHead:
        counts = [
            asked.count - delta * step // total for asked, delta in zip(ask.pod_sets, spare, strict=True)
        ]
        return _at_size(snapshot, queue, ask, tuple(counts), may_preempt)

    return _first_that_helps(total, smaller) or full


def targets_of(
    snapshot: KueueSnapshot,
    queue: SnapshotQueue,
    ask: QuotaRequest,
    contested: Collection[FlavorResource],
    usage: QuotaUse,
) -> list[PreemptionTarget]:
    """The victims that ``ask`` needs for ``usage``, of which ``contested`` is short."""
    search = VictimSearch(snapshot, queue, ask, contested, usage)
    if snapshot.config.fair_sharing:
        return fair_targets(search, snapshot.shares)
    return classical_targets(search)


def _at_size(
    snapshot: KueueSnapshot,
    queue: SnapshotQueue,
    ask: QuotaRequest,
    counts: tuple[int, ...],
    may_preempt: bool,
) -> NominatedHead:
    def oracle(key: FlavorResource, amount: int) -> AssignmentGrade:
        targets = targets_of(snapshot, queue, ask, (key,), {key: amount}) if may_preempt else []
        if not targets:
            return AssignmentGrade(AssignmentMode.NO_CANDIDATES, queue.node.borrowing_level(key, amount))
        with snapshot.without(each.member for each in targets):
            level = queue.node.borrowing_level(key, amount)
        is_own = any(each.member.queue == queue.name for each in targets)
        return AssignmentGrade(AssignmentMode.PREEMPT if is_own else AssignmentMode.RECLAIM, level)

    assignment = FlavorAssigner(snapshot, queue, ask, oracle).assign(counts)
    targets: list[PreemptionTarget] = []
    if may_preempt and assignment.mode is AssignmentMode.PREEMPT:
        targets = targets_of(snapshot, queue, ask, assignment.contested, assignment.usage)
    return NominatedHead(ask, queue, assignment, targets)


def _first_that_helps(total: int, at_step: Callable[[int], NominatedHead]) -> NominatedHead | None:
    """Binary search over sizes as Kueue does it, which takes "helps" for monotonous; the last size that
    helped counts if the search ends at it."""
    if not total:
        return None
    low, high = 0, total + 1
    last_step, last = 0, None
    while low < high:
        step = (low + high) // 2
        found = at_step(step)
        if found.assignment.mode is AssignmentMode.FIT or found.targets:
            last_step, last, high = step, found, step
        else:
            low = step + 1
    return last if low == last_step else None


def victims_given(
    state: ClusterState,
    config: KueueConfig,
    uid: str,
    flavors: Mapping[str, Mapping[str, str]],
    fits: Collection[str] = (),
) -> tuple[tuple[str, str], ...]:
    """Victims (uid, reason) of a pending workload that gets ``flavors``, by pod set and resource; of the
    resources in ``fits`` there is enough."""
    snapshot = KueueSnapshot(state, config)
    workload = state.workloads[uid]
    local = state.local_queue_by_name[workload.meta.namespace, workload.queue]
    queue = snapshot.queues[local.cluster_queue]
    ask = ask_of(workload, queue.name, config)
    usage: dict[FlavorResource, int] = {}
    for asked in ask.pod_sets:
        chosen = flavors.get(asked.name, {})
        for resource, amount in requested(asked, asked.count, queue.covered).items():
            if resource in chosen:
                key = FlavorResource(chosen[resource], resource)
                usage[key] = usage.get(key, 0) + amount
    contested = frozenset(key for key in usage if key.resource not in fits)
    targets = targets_of(snapshot, queue, ask, contested, usage)
    return tuple((each.member.uid, each.reason) for each in targets)
