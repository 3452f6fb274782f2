"""Preemption: which workloads a workload may preempt, in which order, and the searches for victims: the
classical one, and fair sharing's by share.

Rules: kueue v0.19.2, pkg/scheduler/preemption (preemption.go, common/), for the classical search
preemption.go (classicalPreemptions) and classical/ (candidate_generator.go, hierarchical_preemption.go); for
fair sharing fairPreemptions, fairsharing/ and pkg/scheduler/fair_sharing_iterator.go, with its gates
FairSharingPreemptWithinNominal and FairSharingPrioritizeNonBorrowing on.

``VictimSearch`` is what both have in common.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from gpucost.advisor.kueue.requests import QuotaRequest
from gpucost.advisor.kueue.snapshot import (
    DominantShare,
    FairShares,
    KueueSnapshot,
    QuotaMember,
    SnapshotQueue,
)
from gpucost.cluster.objects.kueue import FlavorResource
from gpucost.cluster.objects.scheduler_config import FINAL_SHARE, INITIAL_SHARE
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

    def candidates(self, queue: SnapshotQueue) -> list[QuotaMember]:
        """Members of a queue that hold something contested and that policy allows to preempt
        (common/preemption_policy.go): equal priority counts as newer by place in the queue, not by when quota
        was reserved. A queue that is not active has none: Kueue's snapshot leaves it out."""
        if not queue.is_active:
            return []
        policies = self.queue.spec.preemption
        policy = policies.within_cluster_queue if queue is self.queue else policies.reclaim_within_cohort
        contested, priority, members = self.contested, self.ask.priority, queue.members.values()
        if policy == "Any":
            return [each for each in members if not each.usage.keys().isdisjoint(contested)]
        if policy == "LowerPriority":
            return [
                each
                for each in members
                if each.priority < priority and not each.usage.keys().isdisjoint(contested)
            ]
        if policy == "LowerOrNewerEqualPriority":
            since_ms = self.ask.queued_ms
            return [
                each
                for each in members
                if (each.priority < priority or (each.priority == priority and since_ms < each.queued_ms))
                and not each.usage.keys().isdisjoint(contested)
            ]
        return []

    def fits(self, may_borrow: bool) -> bool:
        """Whether quota is enough now, with ``may_borrow`` False within the queue's own."""
        queue = self.queue
        if not may_borrow:
            for key, amount in self.usage.items():
                if queue.borrows_with(key, amount):
                    return False
        return queue.fits(self.usage)

    def order(self, member: QuotaMember) -> tuple[bool, bool, tuple[bool, int, int, str]]:
        """The order of preemption: already evicted, of another queue, then by rank."""
        return not member.is_evicted, member.queue == self.queue.name, member.rank

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
    used, quota = node.usage.get, node.subtree.get
    for key in keys:  # noqa: SIM110 - a generator costs three times as much, and this is asked a lot
        if used(key, 0) > quota(key, 0):
            return False
    return True


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
    own = search.candidates(search.queue)
    hierarchical, by_priority = _foreign(search)
    candidates: list[PreemptionCandidate] | None = None
    for may_borrow in _attempts(search, bool(hierarchical), bool(by_priority)):
        if not _could_fit(search, own, hierarchical, by_priority, may_borrow):
            continue
        if candidates is None:
            ours = [PreemptionCandidate(each, PreemptionVariant.OWN, None) for each in own]
            candidates = _ordered(
                _of_others(search, hierarchical, True), _of_others(search, by_priority), ours
            )
        targets = _removed_until_it_fits(search, candidates, may_borrow)
        if targets:
            return targets
    return []


def _could_fit(
    search: VictimSearch,
    own: Sequence[QuotaMember],
    hierarchical: Sequence[_OtherQueue],
    by_priority: Sequence[_OtherQueue],
    may_borrow: bool,
) -> bool:
    """False where it would not fit if all went that this attempt may take: most searches end here. The less
    is used, the more is left; so no part of them is enough then."""
    if not (own or hierarchical or by_priority):
        return False
    going: list[tuple[SnapshotQueue, Sequence[QuotaMember]]] = [(search.queue, own)]
    going += [(each.queue, each.members) for each in hierarchical]
    policy = search.queue.spec.preemption.borrow_within_cohort
    if not may_borrow or policy != NEVER:
        going += [(each.queue, each.members) for each in by_priority]
    gone: list[tuple[QuotaNode, FlavorResource, int]] = []
    for queue, members in going:
        for key in search.usage:
            amount = 0
            for each in members:
                amount += each.usage.get(key, 0)
            if amount:
                queue.node.add_usage(key, -amount)
                gone.append((queue.node, key, amount))
    could = search.fits(may_borrow)
    for node, key, amount in gone:
        node.add_usage(key, amount)
    return could


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


class _OtherQueue(NamedTuple):
    """Its candidates; ``top`` is the lowest cohort that it and the asking queue have in common."""

    queue: SnapshotQueue
    members: list[QuotaMember]
    top: QuotaNode


def _foreign(search: VictimSearch) -> tuple[list[_OtherQueue], list[_OtherQueue]]:
    """Candidates of other queues: those over which the ask has the advantage of its place, and the others.

    Going up from the asking queue: once a subtree has quota for what is left of the request, all queues
    outside of it use what is the subtree's by right.
    """
    hierarchical: list[_OtherQueue] = []
    by_priority: list[_OtherQueue] = []
    if search.queue.spec.preemption.reclaim_within_cohort == NEVER:
        return hierarchical, by_priority
    rest = dict(search.usage)
    has_advantage = _holds(search.queue.node, rest)
    below: QuotaNode | None = None
    cohort = search.queue.node.parent
    while cohort is not None:
        for queue in _above_quota(search, cohort, below):
            members = search.candidates(queue)
            if members:
                (hierarchical if has_advantage else by_priority).append(_OtherQueue(queue, members, cohort))
        has_advantage = _holds(cohort, rest) or has_advantage
        below, cohort = cohort, cohort.parent
    return hierarchical, by_priority


def _of_others(
    search: VictimSearch, queues: Sequence[_OtherQueue], has_advantage: bool = False
) -> list[PreemptionCandidate]:
    return [
        PreemptionCandidate(
            member, PreemptionVariant.HIERARCHICAL if has_advantage else _variant(search, member), each.top
        )
        for each in queues
        for member in each.members
    ]


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


def _ordered(*groups: list[PreemptionCandidate]) -> list[PreemptionCandidate]:
    """Those already evicted first, then the others; each by right, and then by rank: of a group, all or none
    are of the asking queue."""
    for group in groups:
        group.sort(key=lambda each: each.member.rank)
    return [
        each
        for is_evicted in (True, False)
        for group in groups
        for each in group
        if each.member.is_evicted is is_evicted
    ]


def fair_targets(search: VictimSearch, shares: FairShares) -> list[PreemptionTarget]:
    """The victims; empty where no set of candidates is enough. The ask counts as admitted meanwhile: shares
    are compared as they would be afterwards."""
    candidates = sorted(_candidates(search), key=search.order)
    if not candidates:
        return []
    with search.snapshot.using(search.queue, search.usage):
        hunt = _Hunt(search, shares)
        found = hunt.run(candidates)
    targets = search.filled_back(hunt.targets, may_borrow=True) if found else hunt.targets
    for each in targets:
        search.snapshot.put(each.member)
    return targets if found else []


def _candidates(search: VictimSearch) -> Iterator[QuotaMember]:
    yield from search.candidates(search.queue)
    node = search.queue.node
    if node.parent is None or search.queue.spec.preemption.reclaim_within_cohort == NEVER:
        return
    for below in node.path[-1].below:
        if not below.is_queue:
            continue
        queue = search.snapshot.queues[below.name]
        if queue is not search.queue and not is_within_nominal(queue.node, search.contested):
            yield from search.candidates(queue)


class _Hunt:
    """One search: ``targets`` are removed from the snapshot as they are found."""

    def __init__(self, search: VictimSearch, shares: FairShares) -> None:
        self._search, self._shares = search, shares
        self.targets: list[PreemptionTarget] = []

    def run(self, candidates: Sequence[QuotaMember]) -> bool:
        """Whether it fits once the targets are gone."""
        strategies = self._search.snapshot.config.strategies
        left: list[QuotaMember] = []
        if self._first(candidates, strategies[0], left):
            return True
        return len(strategies) > 1 and self._second(left)

    def _first(self, candidates: Sequence[QuotaMember], strategy: str, left: list[QuotaMember]) -> bool:
        order = _Order(self._search, self._shares, candidates)
        is_within = is_within_nominal(self._search.queue.node, self._search.contested)
        while (queue := order.next()) is not None:
            if queue is self._search.queue or is_within:
                reason = IN_QUEUE if queue is self._search.queue else RECLAMATION
                if self._take(order.pop(queue), reason):
                    return True
                continue
            asking, holding = _below_common(self._search.queue.node, queue.node)
            new, old = self._shares.of(asking), self._shares.of(holding)
            while order.has(queue):
                member = order.pop(queue)
                if not self._passes(strategy, new, old, holding, member):
                    left.append(member)
                    continue
                if self._take(member, FAIR_SHARING):
                    return True
                break
        return False

    def _second(self, candidates: Sequence[QuotaMember]) -> bool:
        """LessThanInitialShare on those left over, one of each queue at most."""
        order = _Order(self._search, self._shares, candidates)
        while (queue := order.next()) is not None:
            asking, holding = _below_common(self._search.queue.node, queue.node)
            member = order.pop(queue)
            is_lower = self._shares.of(asking).rank < self._shares.of(holding).rank
            if is_lower and self._take(member, FAIR_SHARING):
                return True
            order.drop(queue)
        return False

    def _passes(
        self, strategy: str, new: DominantShare, old: DominantShare, holding: QuotaNode, member: QuotaMember
    ) -> bool:
        if strategy == INITIAL_SHARE:
            return new.rank < old.rank
        assert strategy == FINAL_SHARE, strategy
        with self._search.snapshot.without([member]):
            return new.rank <= self._shares.of(holding).rank

    def _take(self, member: QuotaMember, reason: str) -> bool:
        search = self._search
        search.snapshot.remove(member)
        self.targets.append(PreemptionTarget(member, reason))
        with search.snapshot.using(search.queue, search.usage, sign=-1):
            return search.fits(may_borrow=True)


class _Order:
    """Which queue to take a candidate from next: from the root down to the queue with the highest share."""

    def __init__(self, search: VictimSearch, shares: FairShares, candidates: Sequence[QuotaMember]) -> None:
        self._search, self._shares = search, shares
        self._left: dict[str, list[QuotaMember]] = {}
        for member in reversed(candidates):
            self._left.setdefault(member.queue, []).append(member)
        self._pruned: set[int] = set()
        self._path = set(map(id, search.queue.node.path[1:]))

    def has(self, queue: SnapshotQueue) -> bool:
        return bool(self._left.get(queue.name))

    def pop(self, queue: SnapshotQueue) -> QuotaMember:
        return self._left[queue.name].pop()

    def drop(self, queue: SnapshotQueue) -> None:
        self._pruned.add(id(queue.node))

    def next(self) -> SnapshotQueue | None:
        own = self._search.queue
        if own.node.parent is None:
            return own if self.has(own) and id(own.node) not in self._pruned else None
        root = own.node.path[-1]
        while id(root) not in self._pruned:
            found = self._highest(root)
            if found is not None:
                return found
        return None

    def _highest(self, cohort: QuotaNode) -> SnapshotQueue | None:
        """None where only something was pruned."""
        best_queue: tuple[DominantShare, SnapshotQueue] | None = None
        top, tops = None, list[QuotaNode]()
        for child in cohort.children:
            if id(child) in self._pruned:
                continue
            share = self._shares.of(child)
            if self._is_exhausted(child, share):
                self._pruned.add(id(child))
            elif child.is_queue:
                queue = self._search.snapshot.queues[child.name]
                if best_queue is None or self._is_higher(share, queue, *best_queue):
                    best_queue = share, queue
            elif top is None or share.rank >= top:
                tops = [*tops, child] if share.rank == top else [child]
                top = share.rank
        if best_queue is None and top is None:
            self._pruned.add(id(cohort))
            return None
        if best_queue is None or (top is not None and top >= best_queue[0].rank):
            return self._highest(self._drawn(tops))
        return best_queue[1]

    def _drawn(self, tops: Sequence[QuotaNode]) -> QuotaNode:
        """One of cohorts with equal shares. A cohort without candidates is passed over, which changes
        nothing."""
        giving = [each for each in reversed(tops) if len(tops) == 1 or self._gives(each)]
        return giving[self._search.snapshot.lots.draw(giving)] if len(giving) > 1 else (giving or tops)[-1]

    def _gives(self, node: QuotaNode) -> bool:
        if id(node) in self._pruned or self._is_exhausted(node, self._shares.of(node)):
            return False
        return node.is_queue or any(map(self._gives, node.children))

    def _is_exhausted(self, node: QuotaNode, share: DominantShare) -> bool:
        """Whether there is no candidate below a node, now or later: a queue that borrows nothing gives
        nothing, except the asking queue and the cohorts above it."""
        if not node.is_queue:
            return not share.is_borrowing and id(node) not in self._path
        queue = self._search.snapshot.queues[node.name]
        is_spared = not share.is_borrowing and queue is not self._search.queue
        return is_spared or not queue.is_active or not self.has(queue)

    def _is_higher(
        self, share: DominantShare, queue: SnapshotQueue, other_share: DominantShare, other: SnapshotQueue
    ) -> bool:
        """Equal shares: whose next candidate would go first."""
        if share.rank != other_share.rank:
            return share.rank > other_share.rank
        first, second = self._left[queue.name][-1], self._left[other.name][-1]
        return self._search.order(first) < self._search.order(second)


def _below_common(one: QuotaNode, other: QuotaNode) -> tuple[QuotaNode, QuotaNode]:
    """The nodes on the ways up from both just below where they meet."""
    above = one.path
    positions = {id(node): index for index, node in enumerate(above)}
    below = other
    for node in other.path[1:]:
        if id(node) in positions:
            return above[positions[id(node)] - 1], below
        below = node
    raise ValueError("two queues of different trees")
