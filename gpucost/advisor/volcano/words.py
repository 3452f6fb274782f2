"""What an answer says, and the fields it rests on."""

from __future__ import annotations

from collections.abc import Mapping

from gpucost.advisor.answers import Evidence
from gpucost.advisor.volcano.amounts import INFINITE, Amounts, counted
from gpucost.advisor.volcano.gang import Gang
from gpucost.advisor.volcano.queues import Refusal
from gpucost.cluster.quantities import base_units, is_bytes, readable
from gpucost.cluster.scheduling import VolcanoConfig
from gpucost.cluster.volcano import VolcanoQueue

CONFIG = "configmap/volcano-scheduler-configmap"
MOST_NAMED = 3
"""Things that one sentence names; how many more there are is said."""


def amount(resource: str, value: float) -> str:
    """As a person says it: cores, GiB, units."""
    if value == INFINITE:
        return f"any amount of {resource}"
    if is_bytes(resource):
        return f"{value / 2**30:.6g} GiB {resource}"
    return f"{base_units(resource, 1) * value:.6g} {resource}"


def named(names: list[str]) -> str:
    """The first of them, and how many more."""
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def compared(refusal: Refusal) -> str:
    """What would be used, and the limit, of each resource that is short."""
    parts = [
        f"{amount(key, refusal.used.get(key, 0.0))} with it, of {amount(key, refusal.limit.get(key, 0.0))}"
        for key in refusal.resources
    ]
    return named(parts)


def evidence_of(
    refusal: Refusal, queues: Mapping[str, VolcanoQueue], config: VolcanoConfig
) -> list[Evidence]:
    """The fields of a queue, or of the scheduler's configuration, that refuse it."""
    if refusal.reason == "Overcommit":
        value = config.arguments.get("overcommit", {}).get(refusal.field, "1.2")
        meaning = f"lets in jobs up to so many times the cluster: {compared(refusal)}"
        return [Evidence(CONFIG, f"overcommit.arguments.{refusal.field}", value, meaning)]
    queue = queues.get(refusal.queue)
    about = f"queue/{refusal.queue}"
    if queue is None:
        return [Evidence(about, "metadata.name", "", "there is no such queue")]
    if refusal.field == "status.state":
        return [Evidence(about, refusal.field, queue.state, "only an open queue takes jobs")]
    if refusal.field == "spec.parent":
        return [Evidence(about, refusal.field, queue.parent, _PARENT[refusal.reason])]
    return [_limit(refusal, queue, key) for key in refusal.resources]


_PARENT = {
    "QueueCycle": "its parents go round in a circle: nothing is scheduled in any queue",
    "NoParent": "there is no such queue: nothing is scheduled in any queue",
    "NotALeaf": "it has queues below it, and only those take jobs",
    "JobsInParent": "it has queues below it and jobs of its own: nothing is scheduled in any queue",
}


def _limit(refusal: Refusal, queue: VolcanoQueue, resource: str) -> Evidence:
    about, limit = f"queue/{queue.name}", refusal.limit.get(resource, 0.0)
    if refusal.field == "spec.weight":
        meaning = f"by weight it deserves {amount(resource, limit)} now"
        return Evidence(about, refusal.field, str(queue.weight), meaning)
    capability = counted(queue.capability or {}).get(resource)
    if capability is None:
        meaning = f"not set; the cluster and others' guarantees leave it {amount(resource, limit)}"
        return Evidence(about, f"spec.capability[{resource}]", "", meaning)
    meaning = f"the most its jobs may have together; {amount(resource, limit)} after others' guarantees"
    return Evidence(about, f"spec.capability[{resource}]", readable(resource, round(capability)), meaning)


def refused_says(refusal: Refusal, gang: Gang) -> str:
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


def left_of(limit: Amounts, used: Amounts, asked: Amounts) -> dict[str, int]:
    """Whole units that are left of a limit, of what is asked; nothing is said where there is no limit."""
    found = {}
    for key in sorted(asked):
        most = limit.get(key, 0.0)
        if most != INFINITE:
            found[key] = max(0, int(most - used.get(key, 0.0) + 0.0001))
    return found
