"""What Kueue says itself of a workload that exists, and that its rules of quota do not know: that it is not
tried now, and when it is again (``as_held``); that it has quota, and what it waits for with it
(``reserved_answer``)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from gpucost.advisor.model.answers import AdviceEvidence, LayerResult, SchedulingDecision, SchedulingLayer
from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.quota import (
    ADMISSION_GATED,
    FOR_PODS_READY,
    FOR_REPLACEMENTS,
    ON_HOLD,
    TOPOLOGY_OUTSTANDING,
    HeldBack,
    checks_reason,
    held_back,
    not_admitted,
    open_checks,
    quota_reason,
)
from gpucost.cluster.views.workload_families import multi_kueue_checks
from gpucost.domain.text import counted
from gpucost.domain.time import DAY_MS, MINUTE_MS, iso

CHECKS = "AdmissionChecks"
REJECTED = "Rejected"
NOT_YET = "Kueue has not admitted it yet"
_MULTI_KUEUE = " (MultiKueue: another cluster must admit it, and runs it)"
_LIFTS = {
    ON_HOLD: "until its job wants it again (a StatefulSet that is scaled up, a RayJob that is valid)",
    ADMISSION_GATED: "until the annotation kueue.x-k8s.io/admission-gated-by is taken away",
    FOR_REPLACEMENTS: "until all pods of its group are there again",
}
PODS_READY = "the pods of all admitted workloads are ready"
"""Until then nobody is let in, where waitForPodsReady.blockAdmission says so."""


def as_held(found: LayerResult, workload: Workload, state: ClusterState) -> LayerResult:
    """The answer of the rules, for a workload that Kueue may hold back: it has no place in its queue then,
    and what the rules would give it now it does not get. ``never`` stays, and so does a wait for quota where
    it is known when it is tried again: that is simulated."""
    held = held_back(workload, state.at_ms)
    if held is None:
        return _for_pods_ready(found, workload, state)
    found = replace(found, ahead=None)
    is_told = found.decision is SchedulingDecision.WAITS and held.until_ms is not None
    if found.decision is SchedulingDecision.NEVER or is_told:
        return replace(found, why=(*found.why, f"kueue: {held_says(held, workload, state.at_ms)}"))
    facts = tuple(held_evidence(held, workload))
    if held.until_ms is None:
        says = held_says(held, workload, state.at_ms)
        return _not_now(found, SchedulingDecision.UNKNOWN, held.reason, says, facts)
    until = f"{_clock(held.until_ms, state.at_ms)} ({_backoff(workload)})"
    says = _there(found, "Kueue does not try it before; by the rules")
    return _not_now(found, SchedulingDecision.WAITS, held.reason, says, facts, until)


def held_says(held: HeldBack, workload: Workload, at_ms: int) -> str:
    """That it is not tried, why, and what ends that, as far as it is known."""
    if held.until_ms is not None:
        return f"Kueue does not try it before {_clock(held.until_ms, at_ms)} ({_backoff(workload)})"
    said = f": {held.said}" if held.said else ""
    return f"Kueue does not try it ({held.reason}{said}) {_LIFTS.get(held.reason, '')}".rstrip()


def held_evidence(held: HeldBack, workload: Workload) -> Iterator[AdviceEvidence]:
    """What its object says of that."""
    name = f"workload/{workload.meta.name}"
    if held.until_ms is None:
        yield AdviceEvidence(
            name, held.field, held.value, held.said or "Kueue does not try it while it is so"
        )
        return
    yield AdviceEvidence(name, held.field, held.value, "Kueue puts it back into its queue then")
    if workload.requeue_count:
        count = str(workload.requeue_count)
        yield AdviceEvidence(name, "status.requeueState.count", count, "how often it was put back")


def check_named(name: str, elsewhere: Collection[str]) -> str:
    """An admission check; those of ``elsewhere`` are MultiKueue's."""
    return f"admission check {name}{_MULTI_KUEUE if name in elsewhere else ''}"


def reserved_answer(workload: Workload, state: ClusterState) -> LayerResult:
    """Of a workload that has quota and is not admitted: no rule says what a check will answer. One that was
    rejected ends it."""
    elsewhere, waits_for = multi_kueue_checks(state), open_checks(workload)
    rejected = [each for each in waits_for if each.state == REJECTED]
    named = ", ".join(sorted(check_named(each.name, elsewhere) for each in rejected or waits_for))
    reason, says = CHECKS, f"has quota; then {named} must agree, which is not followed"
    if rejected:
        says = f"has quota; {named} rejected it, and Kueue deactivates it"
    elif not waits_for:
        reason = checks_reason(workload)[0]
        is_delayed = reason == TOPOLOGY_OUTSTANDING
        says = f"has quota; {'it waits for its topology assignment' if is_delayed else NOT_YET}"
    return LayerResult(
        SchedulingDecision.NEVER if rejected else SchedulingDecision.UNKNOWN,
        SchedulingLayer.QUOTA,
        reason,
        says,
        queue=workload.cluster_queue,
        evidence=tuple(reserved_evidence(workload)),
    )


def reserved_evidence(workload: Workload) -> Iterator[AdviceEvidence]:
    """What the object of one with quota says of what it waits for."""
    name, condition = f"workload/{workload.meta.name}", not_admitted(workload)
    if condition is not None:
        yield AdviceEvidence(name, "status.conditions[Admitted]", condition.reason, condition.message)
    for each in open_checks(workload):
        said = each.message or "it has not agreed"
        yield AdviceEvidence(name, f"status.admissionChecks[{each.name}]", each.state, said)
    for given in workload.assignments:
        if given.awaits_topology:
            field = f"status.admission.podSetAssignments[{given.name}].delayedTopologyRequest"
            yield AdviceEvidence(name, field, "Pending", "Kueue chooses its domains once all checks agree")


def _for_pods_ready(found: LayerResult, workload: Workload, state: ClusterState) -> LayerResult:
    """It keeps its place; nobody is let in, whatever quota is there."""
    reason, said = quota_reason(state, workload)
    if reason != FOR_PODS_READY or found.decision is SchedulingDecision.NEVER:
        return found
    if found.decision is SchedulingDecision.WAITS:
        return replace(found, why=(*found.why, f"kueue: nobody is let in before {PODS_READY}"))
    told = workload.conditions["QuotaReserved"]
    fact = AdviceEvidence(
        f"workload/{workload.meta.name}", "status.conditions[QuotaReserved]", told.reason, said
    )
    says = _there(found, "Kueue lets nobody in before (waitForPodsReady.blockAdmission); by the rules")
    return _not_now(found, SchedulingDecision.WAITS, reason, says, (fact,), PODS_READY)


def _there(found: LayerResult, before: str) -> str:
    if found.decision is SchedulingDecision.NOW:
        return f"{before} quota in ClusterQueue {found.queue} is there now"
    return f"{before} it {found.says}"


def _not_now(
    found: LayerResult,
    decision: SchedulingDecision,
    reason: str,
    says: str,
    facts: tuple[AdviceEvidence, ...],
    until: str = "",
) -> LayerResult:
    """Nobody leaves for it, and nobody gets quota before it, while it is not tried."""
    return replace(
        found,
        decision=decision,
        layer=SchedulingLayer.QUOTA,
        reason=reason,
        says=says,
        evidence=facts,
        until=until,
        victims=(),
        others={},
        leaving=frozenset(),
        partly="",
    )


def _backoff(workload: Workload) -> str:
    count = workload.requeue_count
    return f"backoff after {counted(count, 'requeue')}" if count else "backoff"


def _clock(instant_ms: int, at_ms: int) -> str:
    """The minute at which an instant has passed, with its day where that is more than a day off."""
    text = iso(-(-instant_ms // MINUTE_MS) * MINUTE_MS)
    minute = text[11:16]
    return f"{minute} UTC" if instant_ms - at_ms < DAY_MS else f"{text[:10]} {minute} UTC"
