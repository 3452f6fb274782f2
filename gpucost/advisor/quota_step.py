"""The first step of the walk: does a queue hold the job, or whoever else has to let it start?

What is worked out, and stands in no object, is evidence without a field.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucost.advisor.answers import Evidence, Layer, LayerAnswer, Verdict
from gpucost.advisor.existing import Existing
from gpucost.advisor.knowledge import Knowledge
from gpucost.advisor.suspended import suspend_path, switched_off, unlifted
from gpucost.cluster.kueue import Workload, WorkloadState
from gpucost.cluster.objects import is_true
from gpucost.cluster.quota_reasons import QUEUE_INACTIVE, QUEUE_MISSING, checks_reason, quota_reason
from gpucost.cluster.volcano import PodGroup

ADMISSION_GATE = "kueue.x-k8s.io/admission"
"""Kueue takes it from pods when their workload is admitted (kueue v0.19.2, pkg/controller/jobs/pod)."""
_MOST_PODS = 3
_MEANINGS = {"Preempted": "others needed its quota", "Deactivated": "it was deactivated"}
"""Of reasons of an eviction that comes without a message."""


def quota_step(found: Existing, known: Knowledge) -> LayerAnswer:
    """Its queue: does it have quota, or is it let in?"""
    workload = found.workload
    if workload is not None:
        return _of_workload(workload, known)
    if found.of_volcano is not None:
        return _of_group(found.of_volcano)
    return _of_gates(found) or _of_suspended(found, known) or _of_no_workload(found, known)


def _of_workload(workload: Workload, known: Knowledge) -> LayerAnswer:
    name = f"workload/{workload.meta.name}"
    match workload.state:
        case WorkloadState.PENDING:
            return _pending(workload, known)
        case WorkloadState.RESERVED:
            reason, said = checks_reason(workload)
            fact = Evidence(name, "status.conditions[Admitted]", reason, said)
            says = f"it has quota in {workload.cluster_queue} and waits for its admission checks: {said}"
            return LayerAnswer(Layer.QUOTA, Verdict.HOLDS, says, workload.reserved_ms, (fact,))
        case WorkloadState.EVICTING:
            evicted = workload.conditions["Evicted"]
            fact = Evidence(name, "status.conditions[Evicted]", evicted.reason, evicted.message)
            says = f"it is being evicted: {evicted.reason}"
            return LayerAnswer(Layer.QUOTA, Verdict.HOLDS, says, evicted.since_ms, (fact,))
        case WorkloadState.INACTIVE:
            return _inactive(workload)
        case WorkloadState.FINISHED:
            return LayerAnswer(Layer.QUOTA, Verdict.PASSED, "it has finished", workload.finished_ms)
        case _:
            says = f"admitted in ClusterQueue {workload.cluster_queue}"
            return LayerAnswer(Layer.QUOTA, Verdict.PASSED, says, workload.admitted_ms)


def _pending(workload: Workload, known: Knowledge) -> LayerAnswer:
    reason, said = quota_reason(known.state, workload)
    says = f"LocalQueue {workload.queue} has no quota for it ({reason})"
    if reason in (QUEUE_INACTIVE, QUEUE_MISSING):
        says = said or says
    evicted = workload.conditions.get("Evicted")
    if evicted is not None and evicted.status is True:
        says += f"; it ran before and was evicted ({evicted.reason})"
    facts = (*_reserved(workload, reason, said), *_evicted(workload))
    return LayerAnswer(Layer.QUOTA, Verdict.HOLDS, says, workload.waiting_since_ms, facts)


def _reserved(workload: Workload, reason: str, said: str) -> Iterator[Evidence]:
    """What the object says of its quota, then what that comes to where Kueue has no word for it."""
    name, condition = f"workload/{workload.meta.name}", workload.conditions.get("QuotaReserved")
    if condition is not None:
        told = condition.message or "nothing said yet"
        yield Evidence(name, "status.conditions[QuotaReserved]", condition.reason, told)
    if condition is None or condition.reason != reason:
        same = condition is not None and said == condition.message
        of = (
            "from that" if same else f"from its queue: {said}" if said else "from what it has no word for yet"
        )
        yield Evidence(name, "", reason, f"worked out {of}")


def _inactive(workload: Workload) -> LayerAnswer:
    """Kueue deactivates too: the reason of the eviction says why, where one is there."""
    name, evicted = f"workload/{workload.meta.name}", workload.conditions.get("Evicted")
    why = f" ({evicted.reason})" if evicted is not None and evicted.status is True else ""
    meaning = (
        "it does not queue until this is true; people set it, and Kueue does when it gives a workload up"
    )
    facts = (Evidence(name, "spec.active", "false", meaning), *_evicted(workload))
    says = f"it is deactivated{why}: it does not queue before spec.active of its Workload is true"
    since_ms = evicted.since_ms if why and evicted is not None else None
    return LayerAnswer(Layer.QUOTA, Verdict.HOLDS, says, since_ms, facts)


def _evicted(workload: Workload) -> Iterator[Evidence]:
    """Why it lost its quota, while it has none."""
    for each in ("Evicted", "Preempted"):
        if is_true(workload.conditions, each):
            condition = workload.conditions[each]
            meaning = condition.message or _MEANINGS.get(condition.reason, "it gave its quota back")
            yield Evidence(
                f"workload/{workload.meta.name}", f"status.conditions[{each}]", condition.reason, meaning
            )


def _of_group(group: PodGroup) -> LayerAnswer:
    name, queue = f"podgroup/{group.meta.name}", group.queue or "default"
    if group.phase in ("", "Pending"):
        said = group.conditions.get("Unschedulable")
        fact = Evidence(
            name, "status.phase", group.phase or "none", said.message if said else "not let in yet"
        )
        says = f"Volcano's queue {queue} has not let it in"
        return LayerAnswer(Layer.QUOTA, Verdict.HOLDS, says, group.meta.created_ms, (fact,))
    return LayerAnswer(
        Layer.QUOTA, Verdict.PASSED, f"let in by Volcano's queue {queue} ({group.phase})", None
    )


def _of_gates(found: Existing) -> LayerAnswer | None:
    """Pods that Kueue holds back, whose workload nobody knows."""
    held = [pod for pod in found.pods if ADMISSION_GATE in pod.gates and not pod.has_ended]
    if not held:
        return None
    facts = tuple(
        Evidence(
            f"pod/{pod.meta.name}",
            "spec.schedulingGates",
            ADMISSION_GATE,
            "Kueue takes it away when it lets the pod in",
        )
        for pod in held[:_MOST_PODS]
    )
    one, they = ("pod waits", "it names") if len(held) == 1 else ("pods wait", "they name")
    named = f"queue {found.queue}" if found.queue else "no queue"
    says = (
        f"{len(held):,} {one} for Kueue to take the scheduling gate {ADMISSION_GATE} away; {they} {named}, "
        "and no Workload is known"
    )
    return LayerAnswer(Layer.QUOTA, Verdict.HOLDS, says, min(pod.meta.created_ms for pod in held), facts)


def _of_suspended(found: Existing, known: Knowledge) -> LayerAnswer | None:
    """One that makes no pods until somebody lets it; in a queue that is Kueue, by its Workload."""
    job = found.object
    if job is None or not job.is_suspended:
        return None
    says = unlifted(job, found.queue, known.state)
    if not says and known.state.is_unread("workloads"):
        says = f"it is suspended, and whether queue {found.queue} has a Workload of it could not be read"
        return LayerAnswer(Layer.QUOTA, Verdict.UNKNOWN, says, None)
    says = (
        says or f"it is suspended, and Kueue, whose queue {found.queue} it names, has made no Workload of it"
    )
    path = suspend_path(job.job_kind)
    value = "true" if path[0] == "spec" else "set"
    meaning = "it makes no pods while it is so"
    fact = Evidence(f"{job.kind.lower()}/{job.meta.name}", ".".join(path), value, meaning)
    return LayerAnswer(Layer.QUOTA, Verdict.HOLDS, says, None, (fact,))


def _of_no_workload(found: Existing, known: Knowledge) -> LayerAnswer:
    """One that Kueue was asked about has a Workload, if Kueue looks at it."""
    off = switched_off(found.job.kind, known.state.schedulers.kueue)
    if found.queue and off:
        says = (
            f"no queue holds it: Kueue's integration {off} is switched off, so queue {found.queue} does not"
        )
        return LayerAnswer(Layer.QUOTA, Verdict.PASSED, says, None)
    if found.queue:
        seen = "could not be read" if known.state.is_unread("workloads") else "is not there"
        says = (
            f"it names LocalQueue {found.queue}, and its Workload {seen}: whether it has quota is not known"
        )
        return LayerAnswer(Layer.QUOTA, Verdict.UNKNOWN, says, None)
    return LayerAnswer(Layer.QUOTA, Verdict.PASSED, "no queue holds it: it has no workload or PodGroup", None)
