"""What queues deserve by weight (volcano, pkg/scheduler/plugins/proportion/proportion.go, v1.15.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpucost.advisor.volcano.amounts import (
    INFINITE,
    MEMORY,
    Amounts,
    counted,
    covers,
    exceeding,
    is_nothing,
    least,
    minus,
    most,
    plus,
    times,
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
    found: dict[str, dict[str, float]] = {claim.name: {} for claim in queues}
    remaining: dict[str, float] = dict(total)
    done: set[str] = set()
    rounds = 0
    while True:
        open_ = [claim for claim in queues if claim.name not in done]
        weights = sum(claim.weight for claim in open_)
        if weights <= 0:
            return found
        before = remaining
        for claim in open_:
            old = found[claim.name]
            new = plus(old, times(before, claim.weight / weights))
            new = least(least(new, claim.real_capability, INFINITE), claim.request, 0.0)
            if covers(new, claim.request) or _same(new, old):
                done.add(claim.name)
            new = most(new, claim.guarantee)
            found[claim.name] = new
            remaining = minus(remaining, minus(new, old))
        # Guarantees above what the cluster has leave less than nothing, which nobody can be given.
        remaining = {key: max(0.0, amount) for key, amount in remaining.items()}
        rounds += 1
        if is_nothing(remaining) or _same(remaining, before) or rounds >= MOST_ROUNDS:
            return found


def _same(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    return all(one.get(key, 0.0) == other.get(key, 0.0) for key in {*one, *other})
