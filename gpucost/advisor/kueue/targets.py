"""Whom a workload may make leave, in which order, and what the search for victims has in common.

Rules: kueue v0.19.2, pkg/scheduler/preemption (preemption.go, common/).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpucost.advisor.kueue.asks import Ask
from gpucost.advisor.kueue.snapshot import Member, Queue, Snapshot
from gpucost.cluster.cohorts import QuotaNode
from gpucost.cluster.kueue import FlavorResource
from gpucost.cluster.quota_use import QuotaUse

NEVER = "Never"
IN_QUEUE = "InClusterQueue"
RECLAMATION = "InCohortReclamation"
FAIR_SHARING = "InCohortFairSharing"
WHILE_BORROWING = "InCohortReclaimWhileBorrowing"


class Target(NamedTuple):
    """A victim, and why it may be one, in Kueue's word."""

    member: Member
    reason: str


@dataclass(frozen=True, slots=True)
class Search:
    """Victims are searched for ``ask``, which wants ``usage``; ``contested`` is the part of it that needs
    preemption."""

    snapshot: Snapshot
    queue: Queue
    ask: Ask
    contested: Collection[FlavorResource]
    usage: QuotaUse

    def satisfies(self, policy: str, member: Member) -> bool:
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

    def candidates(self, queue: Queue) -> Iterable[Member]:
        """Members of a queue that hold something contested and that policy lets go. Nobody is taken from a
        queue that is not active: Kueue's snapshot does not have it."""
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

    def order(self, member: Member) -> tuple[bool, bool, int, int, str]:
        """Who goes first: already evicted, of another queue, of lower priority, with the newest quota."""
        return (
            not member.is_evicted,
            member.queue == self.queue.name,
            member.priority,
            -member.reserved_ms,
            member.uid,
        )

    def filled_back(self, targets: Sequence[Target], may_borrow: bool) -> list[Target]:
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
