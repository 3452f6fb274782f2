"""What queues deserve by weight (volcano, pkg/scheduler/plugins/proportion/proportion.go, v1.15.1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpucost.advisor.volcano.amounts import (
    INFINITE,
    MEMORY,
    Amounts,
    counted,
    exceeding,
    keys,
    least,
    plus,
    slack,
)
from gpucost.cluster.quantities import CPU
from gpucost.cluster.volcano import VolcanoQueue

MOST_ROUNDS = 1_000


@dataclass(frozen=True)
class Claim:
    """What a queue brings to the division: its ``request`` is what its pods hold and wait for."""

    name: str
    weight: int
    guarantee: Amounts
    real_capability: Amounts
    request: Amounts


def total_guarantee(queues: Iterable[VolcanoQueue]) -> dict[str, float]:
    """Of all queues, whether or not they have jobs; in order of name, so that the sum is always the same."""
    ordered = sorted(queues, key=lambda queue: queue.name)
    return plus(*(counted(queue.guarantee or {}) for queue in ordered))


def real_capability(queue: VolcanoQueue, free: Amounts) -> dict[str, float]:
    """The most a queue can have: what is ``free`` of others' guarantees and its own, and not above its
    capability. A capability of cpu or memory that is not set, or 0, is none."""
    guarantee = counted(queue.guarantee or {})
    return least(plus(free, guarantee), capability(queue), INFINITE)


def capability(queue: VolcanoQueue) -> dict[str, float]:
    found = counted(queue.capability or {})
    return {key: amount for key, amount in found.items() if amount > 0 or key not in (CPU, MEMORY)}


def not_guaranteed(total: Amounts, guarantees: Amounts) -> dict[str, float]:
    """What of the cluster is guaranteed to nobody."""
    return exceeding(total, guarantees)


def deserved(total: Amounts, claims: Iterable[Claim]) -> dict[str, dict[str, float]]:
    """What each queue deserves, by name.

    In rounds, what remains is divided by weight among queues that are not done; each is cut off at its real
    capability and its request, and never gets less than its guarantee. A queue is done when it has all it
    asks for, or when a round gave it nothing. Ends when nothing remains or a round changed nothing, and after
    ``MOST_ROUNDS``: weights that differ a thousandfold would take tens of thousands for the last millionth.
    A guarantee may come on top of what a round gave the others: then all together deserve more than there is.
    """
    queues = sorted(claims, key=lambda claim: claim.name)
    names = keys(total, *(part for claim in queues for part in (claim.request, claim.guarantee)))
    shares = [_Share(claim, names) for claim in queues]
    remaining = [total.get(name, 0.0) for name in names]
    nothing = [slack(name) for name in names]
    open_, rounds = shares, 0
    while (weights := sum(share.weight for share in open_)) > 0:
        before = remaining
        remaining = list(before)
        for share in open_:
            for at, taken in enumerate(share.take(before, weights)):
                remaining[at] -= taken
        # Guarantees above what the cluster has leave less than nothing, which nobody can be given.
        remaining = [max(0.0, amount) for amount in remaining]
        open_ = [share for share in open_ if not share.is_done]
        rounds += 1
        is_over = all(amount < few for amount, few in zip(remaining, nothing, strict=True))
        if is_over or remaining == before or rounds >= MOST_ROUNDS:
            break
    return {share.name: share.named(names, total) for share in shares}


class _Share:
    """What one queue has been given so far, by place among the names of resources."""

    __slots__ = ("_cap", "_guarantee", "_named", "_nothing", "_request", "given", "is_done", "name", "weight")

    def __init__(self, claim: Claim, names: Sequence[str]) -> None:
        self.name, self.weight, self.is_done = claim.name, claim.weight, False
        self._request = [claim.request.get(name, 0.0) for name in names]
        caps = (claim.real_capability.get(name, INFINITE) for name in names)
        self._cap = list(map(min, caps, self._request))
        self._guarantee = [claim.guarantee.get(name, 0.0) for name in names]
        self._named = claim.guarantee
        self._nothing = [slack(name) for name in names]
        self.given = [0.0] * len(names)

    def take(self, before: Sequence[float], weights: float) -> list[float]:
        """Its part of a round, and how much more it has then. It is done when it has all it asks for, or got
        nothing."""
        factor, old = self.weight / weights, self.given
        new = [
            min(have + amount * factor, cap) for have, amount, cap in zip(old, before, self._cap, strict=True)
        ]
        self.is_done = new == old or all(
            want <= have or want - have < few
            for want, have, few in zip(self._request, new, self._nothing, strict=True)
        )
        self.given = list(map(max, new, self._guarantee))
        return [now - have for now, have in zip(self.given, old, strict=True)]

    def named(self, names: Sequence[str], total: Amounts) -> dict[str, float]:
        """Of what the cluster has, and of what it is guaranteed."""
        pairs = zip(names, self.given, strict=True)
        return {name: amount for name, amount in pairs if name in total or name in self._named}
