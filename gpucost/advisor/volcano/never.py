"""What no waiting helps against: a gang that would not start on an empty cluster either."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpucost.advisor.answers import Evidence, Layer
from gpucost.advisor.placement.pack import Item, Packing
from gpucost.advisor.placement.rooms import Rooms
from gpucost.advisor.volcano.amounts import Amounts, counted, plus, times, too_much
from gpucost.advisor.volcano.enqueue import FACTOR, factors
from gpucost.advisor.volcano.gang import Gang
from gpucost.advisor.volcano.hypernodes import Domains
from gpucost.advisor.volcano.queues import OPEN, ByCapacity, Queues, Refusal
from gpucost.advisor.volcano.session import World
from gpucost.advisor.volcano.words import evidence_of, refused_says
from gpucost.cluster.quantities import readable
from gpucost.domain import words


@dataclass(frozen=True, slots=True)
class Never:
    layer: Layer
    reason: str
    says: str
    evidence: tuple[Evidence, ...] = ()


def impossible(gang: Gang, world: World, queues: Queues, domains: Domains) -> Never | None:
    """Why it never starts, None where it may. Only what is proven counts."""
    refused = _refused(gang, world, queues)
    if refused is not None:
        says = f"{refused_says(refused, gang)}, whoever else leaves"
        return Never(
            Layer.QUOTA, refused.reason, says, tuple(evidence_of(refused, world.queues, world.config))
        )
    if domains.wrong:
        value = gang.topology.get("highest_tier") or gang.topology.get("highest_tier_name", "")
        found = Evidence(gang.about, domains.field, value, domains.wrong)
        return Never(Layer.PLACEMENT, "NoHyperNode", domains.wrong, (found,))
    return _no_room(gang, world, domains)


def _refused(gang: Gang, world: World, queues: Queues) -> Refusal | None:
    queue = world.queues[gang.queue]
    if queue.state not in OPEN and type(queues) is not Queues:
        return Refusal("QueueClosed", queue.name, "status.state")
    if isinstance(queues, ByCapacity):
        if queues.broken is not None:
            return queues.broken
        if not queues.attrs[gang.queue].is_leaf:
            return Refusal("NotALeaf", queue.name, "spec.parent")
    wants = [_least_of(gang, world)]
    if gang.min_resources is not None and gang.is_pending and "enqueue" in world.config.actions:
        wants.append(counted(gang.min_resources))
        short = _over(wants[-1], world)
        if short is not None:
            return short
    if type(queues) is Queues:
        return None
    for attr in queues.chain(gang.queue):
        for wanted in wants:
            names = too_much(wanted, attr.real_capability, wanted)
            if names:
                field = "spec.capability"
                return Refusal("QueueCapability", attr.name, field, names, wanted, attr.real_capability)
    return None


def _over(minimum: Amounts, world: World) -> Refusal | None:
    """Whether overcommit never lets so much in."""
    if "overcommit" not in world.config.plugins:
        return None
    factor = factors(world.config)
    most = {key: amount * factor.get(key, factor[FACTOR]) for key, amount in world.total.items()}
    names = too_much(minimum, most, minimum)
    return Refusal("Overcommit", "", FACTOR, names, minimum, most) if names else None


def _least_of(gang: Gang, world: World) -> Amounts:
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


def _held(gang: Gang, world: World) -> Amounts:
    return {key: amount for key, amount in counted(gang.allocated).items() if key in world.total}


def _needed(gang: Gang, world: World) -> int:
    """Pods that it still needs to start; one where all it needs run."""
    least = gang.min_member if "gang" in world.config.plugins else 1
    return max(1, least - gang.ready_count)


def _no_room(gang: Gang, world: World, domains: Domains) -> Never | None:
    places: Sequence[frozenset[str] | None] = (
        (None,) if domains.allowed is None else [nodes for _, _, nodes in domains.allowed]
    )
    if any(_may_fit(gang, world, world.empty, among) for among in places):
        return None
    needed = _needed(gang, world)
    pods = words.counted(needed, "pod")
    says = f"no nodes, not even empty ones, take the {pods} that it needs at once"
    if domains.allowed is not None:
        says = f"no HyperNode that it may use takes the {pods} that it needs at once, even when empty"
    largest = max(gang.tasks, key=lambda task: (sum(task.template.requests.values()), task.name))
    asked = ", ".join(
        f"{key}: {readable(key, amount)}" for key, amount in sorted(largest.template.requests.items())
    )
    field = f"spec.tasks[{largest.name}].template" if largest.name else "spec.template"
    found = Evidence(gang.about, field, asked, "what one of its pods asks for")
    return Never(Layer.PLACEMENT, "NoNodeFits", says, (found,))


def _may_fit(gang: Gang, world: World, rooms: Rooms, among: frozenset[str] | None) -> bool:
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
    return not Packing(rooms, [Item(task.count, task.template, allowed) for task in gang.tasks]).cannot()
