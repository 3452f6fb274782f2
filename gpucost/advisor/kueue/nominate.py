"""What one head of a queue would get: flavors, a size, victims.

Rules: kueue v0.19.2, pkg/scheduler/scheduler.go (getInitialAssignments), flavorassigner/podset_reducer.go,
preemption/preemption_oracle.go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from gpucost.advisor.kueue.asks import Ask
from gpucost.advisor.kueue.classical import classical_targets
from gpucost.advisor.kueue.fair import fair_targets
from gpucost.advisor.kueue.flavors import Assigner, Assignment
from gpucost.advisor.kueue.modes import Grade, Mode
from gpucost.advisor.kueue.snapshot import Queue, Snapshot
from gpucost.advisor.kueue.targets import Search, Target
from gpucost.cluster.kueue import FlavorResource
from gpucost.cluster.quota_use import QuotaUse


@dataclass(slots=True)
class Nominee:
    """A head with what was chosen for it; ``targets`` are the victims it needs, empty where none were found
    or none are needed."""

    ask: Ask
    queue: Queue
    assignment: Assignment
    targets: list[Target]


def nominate(snapshot: Snapshot, ask: Ask, may_preempt: bool = True) -> Nominee:
    """At full size; else, where pod sets may be smaller, at the largest size that fits or can preempt."""
    queue = snapshot.queues[ask.queue]
    full = _at_size(snapshot, queue, ask, ask.counts, may_preempt)
    if full.assignment.mode is Mode.FIT or full.targets:
        return full
    spare = [asked.count - asked.least for asked in ask.pod_sets]
    total = sum(spare)

    def smaller(step: int) -> Nominee:
        counts = [
            asked.count - delta * step // total for asked, delta in zip(ask.pod_sets, spare, strict=True)
        ]
        return _at_size(snapshot, queue, ask, tuple(counts), may_preempt)

    return _first_that_helps(total, smaller) or full


def targets_of(
    snapshot: Snapshot, queue: Queue, ask: Ask, contested: Collection[FlavorResource], usage: QuotaUse
) -> list[Target]:
    """The victims that ``ask`` needs for ``usage``, of which ``contested`` is short."""
    search = Search(snapshot, queue, ask, contested, usage)
    if snapshot.config.fair_sharing:
        return fair_targets(search, snapshot.shares)
    return classical_targets(search)


def _at_size(
    snapshot: Snapshot, queue: Queue, ask: Ask, counts: tuple[int, ...], may_preempt: bool
) -> Nominee:
    def oracle(key: FlavorResource, amount: int) -> Grade:
        targets = targets_of(snapshot, queue, ask, (key,), {key: amount}) if may_preempt else []
        if not targets:
            return Grade(Mode.NO_CANDIDATES, queue.node.borrowing_level(key, amount))
        with snapshot.without(each.member for each in targets):
            level = queue.node.borrowing_level(key, amount)
        is_own = any(each.member.queue == queue.name for each in targets)
        return Grade(Mode.PREEMPT if is_own else Mode.RECLAIM, level)

    assignment = Assigner(snapshot, queue, ask, oracle).assign(counts)
    targets: list[Target] = []
    if may_preempt and assignment.mode is Mode.PREEMPT:
        targets = targets_of(snapshot, queue, ask, assignment.contested, assignment.usage)
    return Nominee(ask, queue, assignment, targets)


def _first_that_helps(total: int, at_step: Callable[[int], Nominee]) -> Nominee | None:
    """Binary search over sizes as Kueue does it, which takes "helps" for monotonous; the last size that
    helped counts if the search ends at it."""
    if not total:
        return None
    low, high = 0, total + 1
    last_step, last = 0, None
    while low < high:
        step = (low + high) // 2
        found = at_step(step)
        if found.assignment.mode is Mode.FIT or found.targets:
            last_step, last, high = step, found, step
        else:
            low = step + 1
    return last if low == last_step else None
