"""Fair sharing: the search for victims by share.

Rules: kueue v0.19.2, pkg/scheduler/preemption (fairPreemptions, fairsharing/) and
pkg/scheduler/fair_sharing_iterator.go, with its gates FairSharingPreemptWithinNominal and
FairSharingPrioritizeNonBorrowing on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpucost.advisor.kueue.fair_shares import DominantShare, FairShares
from gpucost.advisor.kueue.preemption import (
    FAIR_SHARING,
    IN_QUEUE,
    NEVER,
    RECLAMATION,
    PreemptionTarget,
    VictimSearch,
    is_within_nominal,
)
from gpucost.advisor.kueue.snapshot import QuotaMember, SnapshotQueue
from gpucost.cluster.objects.scheduler_config import FINAL_SHARE, INITIAL_SHARE
from gpucost.cluster.views.cohorts import QuotaNode


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
