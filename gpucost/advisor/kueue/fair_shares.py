"""Fair sharing: the dominant resource share of queues and cohorts, and which comes first where it is equal.

Rules: kueue v0.19.2, pkg/cache/scheduler/fair_sharing.go. Shares are floats there, and so here: two shares
are equal when Kueue takes them for equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random

from gpucost.cluster.objects.kueue import ClusterQueue, Cohort, FlavorResource
from gpucost.cluster.views.cohorts import QuotaNode


@dataclass(frozen=True)
class DominantShare:
    """How much a node borrows of what its cohort could lend it, in thousandths, before ``weight``."""

    ratio: float
    weight: float
    borrowed: frozenset[FlavorResource]

    @property
    def is_borrowing(self) -> bool:
        return bool(self.borrowed)

    @cached_property
    def rank(self) -> tuple[bool, float]:
        """To compare shares: a node that borrows with weight 0 is above all others."""
        if self.weight == 0 and self.borrowed:
            return True, self.ratio
        return False, self.ratio / self.weight if self.ratio else 0.0

    def borrows(self, keys: Iterable[FlavorResource]) -> bool:
        """Whether it borrows any of ``keys``."""
        return not self.borrowed.isdisjoint(keys)


class ShareTieBreaker:
    """Which of sibling cohorts with equal shares Kueue takes: the order of a Go map decides, which differs
    each time. Here it is the first in ``turn`` 0, the last in turn 1, in others any, always the same.

    ``ties`` are the pairs between which lots were drawn.
    """

    def __init__(self, turn: int = 0) -> None:
        self._turn, self._random = turn, Random(turn)
        self.ties: set[tuple[str, str]] = set()

    def draw(self, cohorts: Sequence[QuotaNode]) -> int:
        """The index of the one that is taken."""
        first, *others = (each.name for each in cohorts)
        self.ties.update((min(first, each), max(first, each)) for each in others)
        return (0, -1)[self._turn] if self._turn < 2 else self._random.randrange(len(cohorts))


class FairShares:
    """Shares of the nodes of a tree as it is when they are asked for. Weights by name; 1 for those that are
    not named."""

    def __init__(self, queues: Iterable[ClusterQueue], cohorts: Iterable[Cohort]) -> None:
        self._queue_weights = {each.name: float(each.weight) for each in queues}
        self._cohort_weights = {each.name: float(each.weight) for each in cohorts}
        self._lendable: dict[str, dict[str, int]] = {}

    def of(self, node: QuotaNode) -> DominantShare:
        """A root has none."""
        weights = self._queue_weights if node.is_queue else self._cohort_weights
        weight = weights.get(node.name, 1.0)
        if node.parent is None:
            return DominantShare(0.0, weight, frozenset())
        borrowed: set[FlavorResource] = set()
        by_resource: dict[str, int] = {}
        for key, used in node.usage.items():
            beyond = used - node.subtree.get(key, 0)
            if beyond > 0 and key in node.subtree:
                borrowed.add(key)
                by_resource[key.resource] = by_resource.get(key.resource, 0) + beyond
        ratio = 0.0
        if by_resource:
            lendable = self._lendable_to(node.parent)
            for resource, beyond in by_resource.items():
                most = lendable.get(resource, 0)
                if most > 0:
                    ratio = max(ratio, float(beyond) * 1000.0 / float(most))
        return DominantShare(ratio, weight, frozenset(borrowed))

    def _lendable_to(self, cohort: QuotaNode) -> dict[str, int]:
        """What a cohort could have at most, by resource, over all flavors of its tree."""
        found = self._lendable.get(cohort.name)
        if found is None:
            found = {}
            for key in cohort.path[-1].subtree:
                found[key.resource] = found.get(key.resource, 0) + cohort.potential(key)
            self._lendable[cohort.name] = found
        return found
