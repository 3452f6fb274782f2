"""Sentences and evidence of an answer, and what no waiting helps against.

``impossible`` finds a gang that would not start on an empty cluster either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpucost.advisor.model.answers import AdviceEvidence, SchedulingLayer
from gpucost.advisor.placement.free_capacity import FreeCapacity
from gpucost.advisor.placement.packing import NodePacking, PackingItem
from gpucost.advisor.volcano.enqueue_action import FACTOR, factors
from gpucost.advisor.volcano.gang import VolcanoGang
from gpucost.advisor.volcano.hypernodes import HyperNodeDomains
from gpucost.advisor.volcano.queues import OPEN, CapacityQueues, QueueRefusal, SessionQueues
from gpucost.advisor.volcano.resource_amounts import (
    INFINITE,
    ResourceAmounts,
    counted,
    plus,
    times,
    too_much,
)
from gpucost.advisor.volcano.session import VolcanoSession
from gpucost.cluster.objects.metadata import base_units, is_bytes, readable
from gpucost.cluster.objects.scheduler_config import VolcanoConfig
from gpucost.cluster.objects.volcano import VolcanoQueue
from gpucost.domain import text

CONFIG = "configmap/volcano-scheduler-configmap"
MOST_NAMED = 3
"""Names in one sentence; the number of the others is given."""


def amount(resource: str, value: float) -> str:
    """An amount as a person writes it: cores, GiB, units."""
    if value == INFINITE:
        return f"any amount of {resource}"
    if is_bytes(resource):
        return f"{value / 2**30:.6g} GiB {resource}"
    return f"{base_units(resource, 1) * value:.6g} {resource}"


def named(names: list[str]) -> str:
    """The first of them, and how many more."""
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def compared(refusal: QueueRefusal) -> str:
    """What would be used, and the limit, of each resource that is short."""
    parts = [
        f"{amount(key, refusal.used.get(key, 0.0))} with it, of {amount(key, refusal.limit.get(key, 0.0))}"
        for key in refusal.resources
    ]
    return named(parts)


def evidence_of(
    refusal: QueueRefusal, queues: Mapping[str, VolcanoQueue], config: VolcanoConfig
) -> list[AdviceEvidence]:
    """The fields of a queue, or of the scheduler's configuration, that refuse it."""
    if refusal.reason == "Overcommit":
        value = config.arguments.get("overcommit", {}).get(refusal.field, "1.2")
        meaning = f"lets in jobs up to so many times the cluster: {compared(refusal)}"
        return [AdviceEvidence(CONFIG, f"overcommit.arguments.{refusal.field}", value, meaning)]
    queue = queues.get(refusal.queue)
    about = f"queue/{refusal.queue}"
    if queue is None:
        return [AdviceEvidence(about, "metadata.name", "", "there is no such queue")]
    if refusal.field == "status.state":
        return [AdviceEvidence(about, refusal.field, queue.state, "only an open queue takes jobs")]
    if refusal.field == "spec.parent":
        return [AdviceEvidence(about, refusal.field, queue.parent, _PARENT[refusal.reason])]
    return [_limit(refusal, queue, key) for key in refusal.resources]


_PARENT = {
    "QueueCycle": "its parents go round in a circle: nothing is scheduled in any queue",
    "NoParent": "there is no such queue: nothing is scheduled in any queue",
    "NotALeaf": "it has queues below it, and only those take jobs",
    "JobsInParent": "it has queues below it and jobs of its own: nothing is scheduled in any queue",
}


def _limit(refusal: QueueRefusal, queue: VolcanoQueue, resource: str) -> AdviceEvidence:
    about, limit = f"queue/{queue.name}", refusal.limit.get(resource, 0.0)
    if refusal.field == "spec.weight":
        meaning = f"by weight it deserves {amount(resource, limit)} now"
        return AdviceEvidence(about, refusal.field, str(queue.weight), meaning)
    capability = counted(queue.capability or {}).get(resource)
    if capability is None:
        meaning = f"not set; the cluster and others' guarantees leave it {amount(resource, limit)}"
        return AdviceEvidence(about, f"spec.capability[{resource}]", "", meaning)
    meaning = f"the most its jobs may have together; {amount(resource, limit)} after others' guarantees"
    return AdviceEvidence(
        about, f"spec.capability[{resource}]", readable(resource, round(capability)), meaning
    )


def refused_says(refusal: QueueRefusal, gang: VolcanoGang) -> str:
    """One line for a person."""
    queue = f"queue {refusal.queue}"
    match refusal.reason:
        case "QueueClosed":
            return f"{queue} is not open"
        case "QueueQuota":
            return f"{queue} lets no more jobs in: {compared(refusal)}"
        case "QueueShare":
            return f"{queue} has its share: {compared(refusal)}"
        case "QueueCapability":
            return f"{queue} is at its capability: {compared(refusal)}"
        case "Overcommit":
            return f"the cluster lets no more jobs in: {compared(refusal)}"
        case "NotALeaf":
            return f"{queue} has queues below it, and only those take jobs"
        case _:
            return f"the tree of queues is broken at {refusal.queue}, so {gang.queue} takes no jobs"


def left_of(limit: ResourceAmounts, used: ResourceAmounts, asked: ResourceAmounts) -> dict[str, int]:
    """Whole units that are left of a limit, of what is asked; resources without a limit are left out."""
    found = {}
    for key in sorted(asked):
        most = limit.get(key, 0.0)
        if most != INFINITE:
            found[key] = max(0, int(most - used.get(key, 0.0) + 0.0001))
    return found


@dataclass(frozen=True, slots=True)
class ImpossibleGang:
    layer: SchedulingLayer
    reason: str
    says: str
    evidence: tuple[AdviceEvidence, ...] = ()


def impossible(
    gang: VolcanoGang, world: VolcanoSession, queues: SessionQueues, domains: HyperNodeDomains
) -> ImpossibleGang | None:
    """Why it never starts, None where it may. Only what is proven counts."""
    refused = _refused(gang, world, queues)
    if refused is not None:
        says = f"{refused_says(refused, gang)}, whoever else leaves"
        return ImpossibleGang(
            SchedulingLayer.QUOTA,
            refused.reason,
            says,
            tuple(evidence_of(refused, world.queues, world.config)),
        )
    if domains.wrong:
        value = gang.topology.get("highest_tier") or gang.topology.get("highest_tier_name", "")
        found = AdviceEvidence(gang.about, domains.field, value, domains.wrong)
        return ImpossibleGang(SchedulingLayer.PLACEMENT, "NoHyperNode", domains.wrong, (found,))
    return _no_room(gang, world, domains)


def _refused(gang: VolcanoGang, world: VolcanoSession, queues: SessionQueues) -> QueueRefusal | None:
    queue = world.queues[gang.queue]
    if queue.state not in OPEN and type(queues) is not SessionQueues:
        return QueueRefusal("QueueClosed", queue.name, "status.state")
    if isinstance(queues, CapacityQueues):
        if queues.broken is not None:
            return queues.broken
        if not queues.attrs[gang.queue].is_leaf:
            return QueueRefusal("NotALeaf", queue.name, "spec.parent")
    wants = [_least_of(gang, world)]
    if gang.min_resources is not None and gang.is_pending and "enqueue" in world.config.actions:
        wants.append(counted(gang.min_resources))
        short = _over(wants[-1], world)
        if short is not None:
            return short
    if type(queues) is SessionQueues:
        return None
    for attr in queues.chain(gang.queue):
        for wanted in wants:
            names = too_much(wanted, attr.real_capability, wanted)
            if names:
                field = "spec.capability"
                return QueueRefusal("QueueCapability", attr.name, field, names, wanted, attr.real_capability)
    return None


def _over(minimum: ResourceAmounts, world: VolcanoSession) -> QueueRefusal | None:
    """Whether overcommit never lets so much in."""
    if "overcommit" not in world.config.plugins:
        return None
    factor = factors(world.config)
    most = {key: amount * factor.get(key, factor[FACTOR]) for key, amount in world.total.items()}
    names = too_much(minimum, most, minimum)
    return QueueRefusal("Overcommit", "", FACTOR, names, minimum, most) if names else None


def _least_of(gang: VolcanoGang, world: VolcanoSession) -> ResourceAmounts:
    """At least so much it holds when it starts: exact where it needs all its pods, else of each resource what
    the pods that ask least of it need."""
    short = _needed(gang, world)
    if gang.size == gang.min_member:
        parts = (times(world.asked(task.template), task.count) for task in gang.tasks)
        return plus(_held(gang, world), *parts)
    asked = [(world.asked(task.template), task.count) for task in gang.tasks]
    found = dict(_held(gang, world))
    for key in {key for one, _ in asked for key in one}:
        left, total = short, 0.0
        for amount, count in sorted((one.get(key, 0.0), count) for one, count in asked):
            total += amount * min(left, count)
            left -= min(left, count)
        found[key] = found.get(key, 0.0) + total
    return found


def _held(gang: VolcanoGang, world: VolcanoSession) -> ResourceAmounts:
    return {key: amount for key, amount in counted(gang.allocated).items() if key in world.total}


def _needed(gang: VolcanoGang, world: VolcanoSession) -> int:
    """Pods that it still needs to start; one where all it needs run."""
    least = gang.min_member if "gang" in world.config.plugins else 1
    return max(1, least - gang.ready_count)


def _no_room(gang: VolcanoGang, world: VolcanoSession, domains: HyperNodeDomains) -> ImpossibleGang | None:
    places: Sequence[frozenset[str] | None] = (
        (None,) if domains.allowed is None else [nodes for _, _, nodes in domains.allowed]
    )
    if any(_may_fit(gang, world, world.empty, among) for among in places):
        return None
    needed = _needed(gang, world)
    pods = text.counted(needed, "pod")
    says = f"no nodes, not even empty ones, take the {pods} that it needs at once"
    if domains.allowed is not None:
        says = f"no HyperNode that it may use takes the {pods} that it needs at once, even when empty"
    largest = max(gang.tasks, key=lambda task: (sum(task.template.requests.values()), task.name))
    asked = ", ".join(
        f"{key}: {readable(key, amount)}" for key, amount in sorted(largest.template.requests.items())
    )
    field = f"spec.tasks[{largest.name}].template" if largest.name else "spec.template"
    found = AdviceEvidence(gang.about, field, asked, "what one of its pods asks for")
    return ImpossibleGang(SchedulingLayer.PLACEMENT, "NoNodeFits", says, (found,))


def _may_fit(
    gang: VolcanoGang, world: VolcanoSession, rooms: FreeCapacity, among: frozenset[str] | None
) -> bool:
    """False only where it is proven that it does not fit."""
    counts = [rooms.counts(task.template, among) for task in gang.tasks]
    fits = [min(task.count, sum(found.values())) for task, found in zip(gang.tasks, counts, strict=True)]
    if sum(fits) < _needed(gang, world):
        return False
    if gang.asks_per_task and "gang" in world.config.plugins:
        ready = dict(gang.ready)
        for task, count in zip(gang.tasks, fits, strict=True):
            ready[task.name] = ready.get(task.name, 0) + count
        if any(ready.get(task, 0) < least for task, least in gang.min_task_member.items()):
            return False
    if len(gang.tasks) == 1 or _needed(gang, world) < sum(task.count for task in gang.tasks):
        # Of equal pods it is enough to count them.
        return True
    allowed = None if among is None else frozenset(at for found in counts for at in found)
    return not NodePacking(
        rooms, [PackingItem(task.count, task.template, allowed) for task in gang.tasks]
    ).cannot()
