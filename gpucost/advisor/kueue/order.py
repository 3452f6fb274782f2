"""In which order the heads of a cycle are processed.

Rules: kueue v0.19.2, pkg/scheduler/scheduler.go (entryOrdering) and fair_sharing_iterator.go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpucost.advisor.kueue.nominate import Nominee
from gpucost.advisor.kueue.snapshot import Snapshot
from gpucost.cluster.cohorts import QuotaNode


def classical_order(nominees: Sequence[Nominee]) -> list[Nominee]:
    """Who borrows from lower down comes first, then higher priority, then the older."""
    return sorted(nominees, key=lambda each: (each.assignment.level, *_among_equals(each)))


class Tournament:
    """Under fair sharing: each cohort sends up the nominee whose admission leaves the lowest share.

    ``next`` asks the snapshot as it is: every nominee that was processed changes shares.
    """

    def __init__(self, snapshot: Snapshot, nominees: Sequence[Nominee]) -> None:
        self._snapshot, self._shares = snapshot, snapshot.shares
        self._left = {each.queue.name: each for each in nominees}

    def __iter__(self) -> Iterator[Nominee]:
        while self._left:
            name = min(self._left)
            winner = self._winner(self._snapshot.queues[name].node.path[-1])
            del self._left[winner.queue.name]
            yield winner

    def _winner(self, root: QuotaNode) -> Nominee:
        if root.is_queue:
            return self._left[root.name]
        ranks = self._ranks(root)
        found = self._best(root, ranks)
        assert found is not None
        return found

    def _ranks(self, root: QuotaNode) -> dict[tuple[int, str], tuple[bool, tuple[bool, float]]]:
        """By node and nominee: whether the node would borrow what the nominee asks, and its share, with the
        nominee admitted."""
        ranks: dict[tuple[int, str], tuple[bool, tuple[bool, float]]] = {}
        for name, nominee in self._left.items():
            path = self._snapshot.queues[name].node.path
            if path[-1] is not root:
                continue
            usage = nominee.assignment.usage
            asked = [key for key, amount in usage.items() if amount > 0]
            with self._snapshot.using(nominee.queue, usage):
                for each in path[:-1]:
                    share = self._shares.of(each)
                    ranks[id(each), nominee.ask.uid] = share.borrows(asked), share.rank
        return ranks

    def _best(
        self, cohort: QuotaNode, ranks: dict[tuple[int, str], tuple[bool, tuple[bool, float]]]
    ) -> Nominee | None:
        best: tuple[object, ...] | None = None
        found: list[tuple[Nominee, QuotaNode]] = []
        for child in cohort.children:
            nominee = self._left.get(child.name) if child.is_queue else self._best(child, ranks)
            if nominee is None:
                continue
            rank = (*ranks[id(child), nominee.ask.uid], *_among_equals(nominee)[:2])
            if best is None or rank < best:
                best, found = rank, [(nominee, child)]
            elif rank == best and not child.is_queue:  # cohorts come before queues: all found are cohorts
                found.append((nominee, child))
        if not found:
            return None
        at = self._snapshot.lots.draw([child for _, child in found]) if len(found) > 1 else 0
        return found[at][0]


def _among_equals(nominee: Nominee) -> tuple[int, int, str]:
    return -nominee.ask.priority, nominee.ask.queued_ms, nominee.ask.uid
