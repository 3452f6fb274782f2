"""Preemption: which workloads a workload may preempt, in which order, and the classical search for victims.

Rules: kueue v0.19.2, pkg/scheduler/preemption (preemption.go, common/), for the classical search
preemption.go (classicalPreemptions) and classical/ (candidate_generator.go, hierarchical_preemption.go).

``VictimSearch`` is what classical preemption and fair sharing (``fair_preemption``) have in common.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from gpucost.advisor.kueue.requests import QuotaRequest
from gpucost.advisor.kueue.snapshot import KueueSnapshot, QuotaMember, SnapshotQueue
from gpucost.cluster.objects.kueue import FlavorResource
from gpucost.cluster.views.cohorts import QuotaNode
from gpucost.cluster.views.quota import QuotaUse

NEVER = "Never"
IN_QUEUE = "InClusterQueue"
RECLAMATION = "InCohortReclamation"
FAIR_SHARING = "InCohortFairSharing"
WHILE_BORROWING = "InCohortReclaimWhileBorrowing"


class PreemptionTarget(NamedTuple):
    """A victim, and why it may be preempted, in Kueue's word."""

    member: QuotaMember
    reason: str


@dataclass(frozen=True, slots=True)
class VictimSearch:
    """Victims are searched for ``ask``, which wants ``usage``; ``contested`` is the part of it that needs
    preemption."""

    snapshot: KueueSnapshot
    queue: SnapshotQueue
    ask: QuotaRequest
    contested: Collection[FlavorResource]
    usage: QuotaUse

    def satisfies(self, policy: str, member: QuotaMember) -> bool:
        """Whether a policy lets the ask preempt a member (common/preemption_policy.go): equal priority counts
        as newer by place in the queue, not by when quota was reserved."""
        if policy == "Any":
            return True
        is_lower = self.ask.priority > member.priority
        if policy == "LowerPriority":
            return is_lower
        if policy == "LowerOrNewerEqualPriority":
            is_equal = self.ask.priority == member.priority
            return is_lower or (is_equal and self.ask.queued_ms < member.queued_ms)
        return False

    def candidates(self, queue: SnapshotQueue) -> Iterable[QuotaMember]:
        """Members of a queue that hold something contested and that policy allows to preempt. A queue that is
        not active has none: Kueue's snapshot leaves it out."""
        if not queue.is_active:
            return
        policies = self.queue.spec.preemption
        policy = policies.within_cluster_queue if queue is self.queue else policies.reclaim_within_cohort
        if policy == NEVER:
            return
        for member in queue.members.values():
            if member.uses(self.contested) and self.satisfies(policy, member):
                yield member

    def fits(self, may_borrow: bool) -> bool:
        """Whether quota is enough now, with ``may_borrow`` False within the queue's own."""
        if not may_borrow and any(self.queue.borrows_with(*item) for item in self.usage.items()):
            return False
        return self.queue.fits(self.usage)

    def order(self, member: QuotaMember) -> tuple[bool, bool, int, int, str]:
        """The order of preemption: already evicted, of another queue, of lower priority, with the newest
        quota."""
        return (
            not member.is_evicted,
            member.queue == self.queue.name,
            member.priority,
            -member.reserved_ms,
            member.uid,
        )

    def filled_back(self, targets: Sequence[PreemptionTarget], may_borrow: bool) -> list[PreemptionTarget]:
        """Without those that need not leave after all, tried from the last but one to the first; the targets
        are removed from the snapshot before, and those that are left stay so."""
        left = list(targets)
        for position in range(len(left) - 2, -1, -1):
            member = left[position].member
            self.snapshot.put(member)
            if self.fits(may_borrow):
                left[position] = left[-1]
                left.pop()
            else:
                self.snapshot.remove(member)
        return left


def is_within_nominal(node: QuotaNode, keys: Iterable[FlavorResource]) -> bool:
    """Whether a queue or cohort uses no more than its own (subtree) quota of any of ``keys``."""
    return all(node.usage.get(key, 0) <= node.subtree.get(key, 0) for key in keys)


class PreemptionVariant(Enum):
    """By what right a candidate may be preempted; the value is Kueue's reason."""

    OWN = (IN_QUEUE, "own")
    HIERARCHICAL = (RECLAMATION, "hierarchical")
    """The ask is nearer to the quota that the candidate uses."""
    WITHOUT_BORROWING = (RECLAMATION, "without borrowing")
    """Only as long as the asking queue ends within its own quota."""
    WHILE_BORROWING = (WHILE_BORROWING, "while borrowing")

    @property
    def reason(self) -> str:
        return self.value[0]


class PreemptionCandidate(NamedTuple):
    """``top`` is the lowest cohort that the candidate's queue and the asking one have in common."""

    member: QuotaMember
    variant: PreemptionVariant
    top: QuotaNode | None


def classical_targets(search: VictimSearch) -> list[PreemptionTarget]:
    """The victims, in the order in which Kueue names them; empty where no set of candidates is enough."""
    own = [PreemptionCandidate(each, PreemptionVariant.OWN, None) for each in search.candidates(search.queue)]
    hierarchical, by_priority = _foreign(search)
    candidates = _ordered(search, hierarchical, by_priority, own)
    for may_borrow in _attempts(search, bool(hierarchical), bool(by_priority)):
        targets = _removed_until_it_fits(search, candidates, may_borrow)
        if targets:
            return targets
    return []


def _attempts(search: VictimSearch, has_hierarchical: bool, has_priority: bool) -> tuple[bool, ...]:
    """Whether quota may be borrowed, attempt by attempt."""
    is_forbidden = search.queue.spec.preemption.borrow_within_cohort == NEVER
    if not (has_hierarchical or has_priority) or (is_forbidden and not _is_under_nominal(search)):
        return (True,)
    if is_forbidden and not has_hierarchical:
        return False, True
    return True, False


def _is_under_nominal(search: VictimSearch) -> bool:
    used = search.queue.node.usage
    return all(used.get(key, 0) < search.queue.nominal(key) for key in search.contested)


def _removed_until_it_fits(
    search: VictimSearch, candidates: Sequence[PreemptionCandidate], may_borrow: bool
) -> list[PreemptionTarget]:
    targets: list[PreemptionTarget] = []
    found: list[PreemptionTarget] = []
    for candidate in candidates:
        if not _is_valid(search, candidate, may_borrow):
            continue
        search.snapshot.remove(candidate.member)
        targets.append(PreemptionTarget(candidate.member, candidate.variant.reason))
        if search.fits(may_borrow):
            targets = found = search.filled_back(targets, may_borrow)
            break
    for each in targets:
        search.snapshot.put(each.member)
    return found


def _is_valid(search: VictimSearch, candidate: PreemptionCandidate, may_borrow: bool) -> bool:
    """Whether it may still be taken: its queue, and each cohort below the common one, is above quota yet."""
    if candidate.top is None:
        return True
    if may_borrow and candidate.variant is PreemptionVariant.WITHOUT_BORROWING:
        return False
    node: QuotaNode | None = search.snapshot.queues[candidate.member.queue].node
    while node is not None and node is not candidate.top:
        if is_within_nominal(node, search.contested):
            return False
        node = node.parent
    return True


def _foreign(search: VictimSearch) -> tuple[list[PreemptionCandidate], list[PreemptionCandidate]]:
    """Candidates of other queues: those over which the ask has the advantage of its place, and the others.

    Going up from the asking queue: once a subtree has quota for what is left of the request, all queues
    outside of it use what is the subtree's by right.
    """
    hierarchical: list[PreemptionCandidate] = []
    by_priority: list[PreemptionCandidate] = []
    if search.queue.spec.preemption.reclaim_within_cohort == NEVER:
        return hierarchical, by_priority
    rest = dict(search.usage)
    has_advantage = _holds(search.queue.node, rest)
    below: QuotaNode | None = None
    cohort = search.queue.node.parent
    while cohort is not None:
        for queue in _above_quota(search, cohort, below):
            for member in search.candidates(queue):
                variant = PreemptionVariant.HIERARCHICAL if has_advantage else _variant(search, member)
                into = hierarchical if has_advantage else by_priority
                into.append(PreemptionCandidate(member, variant, cohort))
        has_advantage = _holds(cohort, rest) or has_advantage
        below, cohort = cohort, cohort.parent
    return hierarchical, by_priority


def _holds(node: QuotaNode, rest: dict[FlavorResource, int]) -> bool:
    """Whether its quota is enough for ``rest``, of which it then takes what it keeps to itself."""
    fits = True
    for key, amount in rest.items():
        if node.usage.get(key, 0) + amount > node.subtree.get(key, 0):
            fits = False
        rest[key] = amount - node.local_available(key)
    return fits


def _above_quota(
    search: VictimSearch, cohort: QuotaNode, skipped: QuotaNode | None
) -> Iterator[SnapshotQueue]:
    """Queues below a cohort that use more than their quota, through cohorts that do."""
    for child in cohort.children:
        if child is skipped or child is search.queue.node or is_within_nominal(child, search.contested):
            continue
        if child.is_queue:
            yield search.snapshot.queues[child.name]
        else:
            yield from _above_quota(search, child, None)


def _variant(search: VictimSearch, member: QuotaMember) -> PreemptionVariant:
    policy = search.queue.spec.preemption
    if policy.borrow_within_cohort == NEVER or member.priority >= search.ask.priority:
        return PreemptionVariant.WITHOUT_BORROWING
    threshold = policy.max_priority_threshold
    is_above = threshold is not None and member.priority > threshold
    return PreemptionVariant.WITHOUT_BORROWING if is_above else PreemptionVariant.WHILE_BORROWING


def _ordered(search: VictimSearch, *groups: list[PreemptionCandidate]) -> list[PreemptionCandidate]:
    """Those already evicted first, then the others; each by right, and then by the common order."""
    for group in groups:
        group.sort(key=lambda each: search.order(each.member))
    return [
        each
        for is_evicted in (True, False)
        for group in groups
        for each in group
        if each.member.is_evicted is is_evicted
    ]
