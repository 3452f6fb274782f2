"""What queues deserve: by weight (plugin proportion), or as configured, flat or in a tree (plugin capacity).

Sources: volcano, pkg/scheduler/plugins/proportion/proportion.go and
pkg/scheduler/plugins/capacity/capacity.go, v1.15.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpucost.advisor.volcano.queues import QueueAttr, QueueRefusal, ancestors_of
from gpucost.advisor.volcano.resource_amounts import (
    INFINITE,
    MEMORY,
    ResourceAmounts,
    counted,
    exceeding,
    keys,
    least,
    most,
    plus,
    slack,
)
from gpucost.cluster.objects.metadata import CPU
from gpucost.cluster.objects.volcano import VolcanoQueue
from gpucost.cluster.views.volcano_queues import ROOT_QUEUE

MOST_ROUNDS = 1_000


@dataclass(frozen=True)
class QueueClaim:
    """What a queue brings to the division: its ``request`` is what its pods hold and wait for."""

    name: str
    weight: int
    guarantee: ResourceAmounts
    real_capability: ResourceAmounts
    request: ResourceAmounts


def total_guarantee(queues: Iterable[VolcanoQueue]) -> dict[str, float]:
    """Of all queues, whether or not they have jobs; in order of name, so that the sum is always the same."""
    ordered = sorted(queues, key=lambda queue: queue.name)
    return plus(*(counted(queue.guarantee or {}) for queue in ordered))


def real_capability(queue: VolcanoQueue, free: ResourceAmounts) -> dict[str, float]:
    """The most a queue can have: what is ``free`` of others' guarantees and its own, and not above its
    capability. A capability of cpu or memory that is not set, or 0, is none."""
    guarantee = counted(queue.guarantee or {})
    return least(plus(free, guarantee), capability(queue), INFINITE)


def capability(queue: VolcanoQueue) -> dict[str, float]:
    found = counted(queue.capability or {})
    return {key: amount for key, amount in found.items() if amount > 0 or key not in (CPU, MEMORY)}


def not_guaranteed(total: ResourceAmounts, guarantees: ResourceAmounts) -> dict[str, float]:
    """What of the cluster is not guaranteed to any queue."""
    return exceeding(total, guarantees)


def deserved(total: ResourceAmounts, claims: Iterable[QueueClaim]) -> dict[str, dict[str, float]]:
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
        # Guarantees above what the cluster has leave less than nothing, which cannot be given out.
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

    def __init__(self, claim: QueueClaim, names: Sequence[str]) -> None:
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

    def named(self, names: Sequence[str], total: ResourceAmounts) -> dict[str, float]:
        """Of what the cluster has, and of what it is guaranteed."""
        pairs = zip(names, self.given, strict=True)
        return {name: amount for name, amount in pairs if name in total or name in self._named}


def flat(queues: Mapping[str, VolcanoQueue], total: ResourceAmounts) -> dict[str, QueueAttr]:
    """Each on its own, whatever its parent: what it deserves is cut off at its real capability and is never
    less than its guarantee (buildQueueAttrs)."""
    free = not_guaranteed(total, total_guarantee(queues.values()))
    found = {}
    for name, queue in queues.items():
        guarantee, real = counted(queue.guarantee or {}), real_capability(queue, free)
        deserved = most(least(counted(queue.deserved or {}), real, INFINITE), guarantee)
        found[name] = QueueAttr(queue, guarantee, real, deserved)
    return found


def tree(
    queues: Mapping[str, VolcanoQueue], total: ResourceAmounts
) -> tuple[dict[str, QueueAttr], QueueRefusal | None]:
    """Queues with their ancestors, and why the tree cannot be built, if so: then nothing is scheduled at all
    (buildHierarchicalQueueAttrs, checkHierarchicalQueue).

    The root has no limit unless it has a capability. A child's real capability is its parent's less all
    children's guarantees and with its own, and at most its capability; what of that is not set is its
    parent's.
    """
    attrs = {name: QueueAttr(queue, counted(queue.guarantee or {})) for name, queue in queues.items()}
    broken: QueueRefusal | None = None
    if ROOT_QUEUE not in queues:
        broken = QueueRefusal("NoParent", ROOT_QUEUE, "metadata.name")
    children: dict[str, list[QueueAttr]] = {}
    for name, attr in attrs.items():
        found = ancestors_of(name, queues)
        if isinstance(found, QueueRefusal):
            broken = broken or found
            continue
        attr.ancestors = tuple(each for each in found if each in attrs)
        if found:
            children.setdefault(found[-1], []).append(attr)
    if broken is not None:
        return attrs, broken
    root = attrs[ROOT_QUEUE]
    unlimited = dict.fromkeys({*total, CPU, MEMORY}, INFINITE)
    caps: dict[str, Mapping[str, float]] = {ROOT_QUEUE: counted(root.queue.capability or {}) or unlimited}
    root.real_capability = caps[ROOT_QUEUE]
    order = sorted(attrs.values(), key=lambda attr: (len(attr.ancestors), attr.name))
    for parent in order:
        _divide(parent, children.get(parent.name, []), caps)
    return attrs, None


def _divide(parent: QueueAttr, below: list[QueueAttr], caps: dict[str, Mapping[str, float]]) -> None:
    parent.is_leaf = not below
    guaranteed = plus(*(child.guarantee for child in below))
    for child in below:
        child.deserved = most(counted(child.queue.deserved or {}), child.guarantee)
        caps[child.name] = {**caps[parent.name], **capability(child.queue)}
        real = plus(exceeding(parent.real_capability, guaranteed), child.guarantee)
        child.real_capability = least(real, caps[child.name], INFINITE)
    if parent.name == ROOT_QUEUE:
        parent.guarantee = guaranteed
        parent.deserved = plus(*(child.deserved for child in below))


def summed_up(attrs: Mapping[str, QueueAttr], taken: Iterable[str]) -> QueueRefusal | None:
    """Adds what queues have to their ancestors. A refusal where a queue with children is ``taken`` by jobs
    that exist: then nothing is scheduled at all. (A new one is refused by the webhook.)"""
    own = {
        name: (attr.allocated, attr.request, attr.elastic, attr.inqueue)
        for name, attr in attrs.items()
        if any((attr.allocated, attr.request, attr.elastic, attr.inqueue))
    }
    for name, (allocated, request, elastic, inqueue) in own.items():
        for each in attrs[name].ancestors:
            above = attrs[each]
            above.allocated = plus(above.allocated, allocated)
            above.request = plus(above.request, request)
            above.elastic = plus(above.elastic, elastic)
            above.inqueue = plus(above.inqueue, inqueue)
    parents = [name for name in taken if not attrs[name].is_leaf]
    return QueueRefusal("JobsInParent", min(parents), "spec.parent") if parents else None
