"""Queues that are given what they deserve, flat or in a tree.

Source: volcano, pkg/scheduler/plugins/capacity/capacity.go, v1.15.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpucost.advisor.volcano.amounts import (
    INFINITE,
    MEMORY,
    Amounts,
    counted,
    exceeding,
    least,
    most,
    plus,
)
from gpucost.advisor.volcano.proportion import (
    capability,
    not_guaranteed,
    real_capability,
    total_guarantee,
)
from gpucost.advisor.volcano.queues import QueueAttr, Refusal, ancestors_of
from gpucost.cluster.quantities import CPU
from gpucost.cluster.volcano import VolcanoQueue
from gpucost.cluster.volcano_queues import ROOT_QUEUE


def flat(queues: Mapping[str, VolcanoQueue], total: Amounts) -> dict[str, QueueAttr]:
    """Each on its own, whatever its parent: what it deserves is cut off at its real capability and is never
    less than its guarantee (buildQueueAttrs)."""
    free = not_guaranteed(total, total_guarantee(queues.values()))
    found = {}
    for name, queue in queues.items():
        guarantee, real = counted(queue.guarantee or {}), real_capability(queue, free)
        deserved = most(least(counted(queue.deserved or {}), real, INFINITE), guarantee)
        found[name] = QueueAttr(queue, guarantee, real, deserved)
    return found


def tree(queues: Mapping[str, VolcanoQueue], total: Amounts) -> tuple[dict[str, QueueAttr], Refusal | None]:
    """Queues with their ancestors, and why the tree cannot be built, if so: then nothing is scheduled at all
    (buildHierarchicalQueueAttrs, checkHierarchicalQueue).

    The root has no limit unless it has a capability. A child's real capability is its parent's less all
    children's guarantees and with its own, and at most its capability; what of that is not set is its
    parent's.
    """
    attrs = {name: QueueAttr(queue, counted(queue.guarantee or {})) for name, queue in queues.items()}
    broken: Refusal | None = None
    if ROOT_QUEUE not in queues:
        broken = Refusal("NoParent", ROOT_QUEUE, "metadata.name")
    children: dict[str, list[QueueAttr]] = {}
    for name, attr in attrs.items():
        found = ancestors_of(name, queues)
        if isinstance(found, Refusal):
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


def summed_up(attrs: Mapping[str, QueueAttr], taken: Iterable[str]) -> Refusal | None:
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
    return Refusal("JobsInParent", min(parents), "spec.parent") if parents else None
