"""Classical preemption: the victims that priority, the place in the tree and borrowing allow.

Rules: kueue v0.19.2, pkg/scheduler/preemption/preemption.go (classicalPreemptions) and classical/
(candidate_generator.go, hierarchical_preemption.go).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from gpucost.advisor.kueue.snapshot import Member, Queue
from gpucost.advisor.kueue.targets import (
    IN_QUEUE,
    NEVER,
    RECLAMATION,
    WHILE_BORROWING,
    Search,
    Target,
    is_within_nominal,
)
from gpucost.cluster.cohorts import QuotaNode
from gpucost.cluster.kueue import FlavorResource


class Variant(Enum):
    """By what right a candidate may be made to leave; the value is Kueue's reason."""

    OWN = (IN_QUEUE, "own")
    HIERARCHICAL = (RECLAMATION, "hierarchical")
    """The ask is nearer to the quota that the candidate uses."""
    WITHOUT_BORROWING = (RECLAMATION, "without borrowing")
    """Only as long as the asking queue ends within its own quota."""
    WHILE_BORROWING = (WHILE_BORROWING, "while borrowing")

    @property
    def reason(self) -> str:
        return self.value[0]


class Candidate(NamedTuple):
    """``top`` is the lowest cohort that the candidate's queue and the asking one have in common."""

    member: Member
    variant: Variant
    top: QuotaNode | None


def classical_targets(search: Search) -> list[Target]:
    """The victims, in the order in which Kueue names them; empty where no set of candidates is enough."""
    own = [Candidate(each, Variant.OWN, None) for each in search.candidates(search.queue)]
    hierarchical, by_priority = _foreign(search)
    candidates = _ordered(search, hierarchical, by_priority, own)
    for may_borrow in _attempts(search, bool(hierarchical), bool(by_priority)):
        targets = _removed_until_it_fits(search, candidates, may_borrow)
        if targets:
            return targets
    return []


def _attempts(search: Search, has_hierarchical: bool, has_priority: bool) -> tuple[bool, ...]:
    """Whether quota may be borrowed, attempt by attempt."""
    is_forbidden = search.queue.spec.preemption.borrow_within_cohort == NEVER
    if not (has_hierarchical or has_priority) or (is_forbidden and not _is_under_nominal(search)):
        return (True,)
    if is_forbidden and not has_hierarchical:
        return False, True
    return True, False


def _is_under_nominal(search: Search) -> bool:
    used = search.queue.node.usage
    return all(used.get(key, 0) < search.queue.nominal(key) for key in search.contested)


def _removed_until_it_fits(search: Search, candidates: Sequence[Candidate], may_borrow: bool) -> list[Target]:
    targets: list[Target] = []
    found: list[Target] = []
    for candidate in candidates:
        if not _is_valid(search, candidate, may_borrow):
            continue
        search.snapshot.remove(candidate.member)
        targets.append(Target(candidate.member, candidate.variant.reason))
        if search.fits(may_borrow):
            targets = found = search.filled_back(targets, may_borrow)
            break
    for each in targets:
        search.snapshot.put(each.member)
    return found


def _is_valid(search: Search, candidate: Candidate, may_borrow: bool) -> bool:
    """Whether it may still be taken: its queue, and each cohort below the common one, is above quota yet."""
    if candidate.top is None:
        return True
    if may_borrow and candidate.variant is Variant.WITHOUT_BORROWING:
        return False
    node: QuotaNode | None = search.snapshot.queues[candidate.member.queue].node
    while node is not None and node is not candidate.top:
        if is_within_nominal(node, search.contested):
            return False
        node = node.parent
    return True


def _foreign(search: Search) -> tuple[list[Candidate], list[Candidate]]:
    """Candidates of other queues: those over whom the ask has the advantage of its place, and the others.

    Going up from the asking queue: once a subtree has quota for what is left of the request, everybody
    outside of it uses what is the subtree's by right.
    """
    hierarchical: list[Candidate] = []
    by_priority: list[Candidate] = []
    if search.queue.spec.preemption.reclaim_within_cohort == NEVER:
        return hierarchical, by_priority
    rest = dict(search.usage)
    has_advantage = _holds(search.queue.node, rest)
    below: QuotaNode | None = None
    cohort = search.queue.node.parent
    while cohort is not None:
        for queue in _above_quota(search, cohort, below):
            for member in search.candidates(queue):
                variant = Variant.HIERARCHICAL if has_advantage else _variant(search, member)
                into = hierarchical if has_advantage else by_priority
                into.append(Candidate(member, variant, cohort))
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


def _above_quota(search: Search, cohort: QuotaNode, skipped: QuotaNode | None) -> Iterator[Queue]:
    """Queues below a cohort that use more than their quota, through cohorts that do."""
    for child in cohort.children:
        if child is skipped or child is search.queue.node or is_within_nominal(child, search.contested):
            continue
        if child.is_queue:
            yield search.snapshot.queues[child.name]
        else:
            yield from _above_quota(search, child, None)


def _variant(search: Search, member: Member) -> Variant:
    policy = search.queue.spec.preemption
    if policy.borrow_within_cohort == NEVER or member.priority >= search.ask.priority:
        return Variant.WITHOUT_BORROWING
    threshold = policy.max_priority_threshold
    is_above = threshold is not None and member.priority > threshold
    return Variant.WITHOUT_BORROWING if is_above else Variant.WHILE_BORROWING


def _ordered(search: Search, *groups: list[Candidate]) -> list[Candidate]:
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
