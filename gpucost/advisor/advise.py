"""One answer for one job, over all layers: quota, gang and placement; then wait, price, what to change.

``advise`` answers "what happens if this is submitted now": now, later (nodes come), waits, never or unknown;
and which layer holds the job, in words and with evidence. A manifest becomes a ``SchedulingRequest``, the
same to all layers.

Layers are asked in the order in which a cluster decides, and the first that holds the job is the answer:
what cannot be evaluated at all (unknown), what can never be made (refused), Kueue's quota, Volcano's gang or
the room on nodes. What earlier layers said stays in ``why``. A job that waits for quota is also tried on the
nodes: where no node would ever take its pods, quota is not what it waits for, and the answer is NEVER. That
Kueue lets it in later only (a backoff) is the answer where no layer holds it.

Then, and only for a job that waits, its wait is simulated (seconds, as a range); its price is worked out from
the price book; and suggestions are found by changing the manifest or the cluster and asking again
(``ask_again``), so that what is proposed has been through the same rules. No answer is guessed: quota whose
holders could not be read is UNKNOWN, and what was taken for granted stands in ``assumptions``. What the
cluster has other than the rules that are followed stands in ``drift``.

Pure, and in time: ``AdvisorContext.is_late`` is asked between samples and suggestions; what is there by then
is the answer, and says what was stopped. The same request on the same state gives the same answer.

Called by ``gpucost advise`` (on files without a service), by ``gpucost.service.advisor.advisor_service`` for
the API and the admission webhook, and through ``advise_asking`` by ``explanation.job_explanation`` and the
predictor of waits for jobs that exist already.
"""

from __future__ import annotations

from dataclasses import replace

from gpucost.advisor.estimate.placement_layer import NOT_READ, placement_answer, started
from gpucost.advisor.estimate.preemption_forecast import MOST_KNOWN, LargeTree, restless_queue
from gpucost.advisor.estimate.queue_wait import wait_of
from gpucost.advisor.estimate.run_price import price_of
from gpucost.advisor.kueue.answer import kueue_answer, rules_drift, rules_named
from gpucost.advisor.kueue.messages import NOT_TRIED, KueueHold, hold_of, reserved_answer
from gpucost.advisor.model.answers import (
    SEARCH_STOPPED,
    Advice,
    LayerResult,
    SchedulingDecision,
    SchedulingLayer,
    headline,
)
from gpucost.advisor.request.context import AdvisorContext
from gpucost.advisor.request.scheduling_request import SchedulingRequest, request_from_manifest
from gpucost.advisor.suggest.ranking import suggestions
from gpucost.advisor.volcano.answer import VolcanoAnswer, volcano_answer
from gpucost.cluster.objects.jobs import JobManifest
from gpucost.cluster.views.workload_families import sends_elsewhere

KUEUE, VOLCANO, DEFAULT = "kueue", "volcano", "kube-scheduler"
INCOMPLETE = "Incomplete"
NO_PODS = "NoPods"
EVICTING = "Evicting"
MOST_PAIRS = 3
"""Workloads that preempt each other without rest, of which a warning names so many pairs."""


def advise(manifest: JobManifest, known: AdvisorContext, with_suggestions: bool = True) -> Advice:
    """What happens if it is submitted now. Never raises for what a manifest can hold."""
    asking = request_from_manifest(manifest, known)
    advice = advise_asking(asking, known)
    if not with_suggestions:
        return advice
    found = suggestions(manifest, advice, known, ask_again)
    assumptions = (*advice.assumptions, *_stopped(SEARCH_STOPPED, known))
    return replace(advice, suggestions=found, assumptions=assumptions)


def _stopped(what: str, known: AdvisorContext) -> tuple[str, ...]:
    """The assumption ``what``: that something was cut short, once the answer is late; empty before."""
    if not known.is_late():
        return ()
    seconds = known.settings.budget_s
    return (what + ("" if seconds is None else f" after {seconds:g} s"),)


def ask_again(manifest: JobManifest, known: AdvisorContext, with_wait: bool) -> Advice:
    """For suggestions: the same without further ones, and without its wait unless the caller wants it."""
    return advise_asking(request_from_manifest(manifest, known), known, with_wait)


def advise_asking(asking: SchedulingRequest, known: AdvisorContext, with_wait: bool = True) -> Advice:
    """What happens to one that asks now, submitted or not, without suggestions."""
    found, scheduler, rules = _through_layers(asking, known)
    if found.decision in (SchedulingDecision.NOW, SchedulingDecision.LATER):
        found = _not_before(found, asking, known)
    is_asked = with_wait and found.decision is SchedulingDecision.WAITS and not found.until
    wait = wait_of(asking, found, known) if is_asked else None
    late = (
        _stopped("the simulation of the wait stopped", known) if is_asked and known.settings.samples else ()
    )
    price, unpriced = price_of(asking, found, known)
    if found.decision is SchedulingDecision.NEVER:
        price = None
    why = (
        found.why
        if price is not None or found.decision is SchedulingDecision.NEVER
        else (*found.why, *unpriced)
    )
    if with_wait:
        why = (*why, *_restless(asking, found, known))
    return Advice(
        subject=asking.subject,
        decision=found.decision,
        layer=found.layer,
        reason=found.reason,
        says=headline(found, wait),
        why=(*_first_line(found), *why, *(f"note: {each}" for each in asking.remarks)),
        scheduler=scheduler,
        rules=rules,
        queue=found.queue,
        pod_sets=found.pod_sets,
        borrowed=found.borrowed or None,
        level=found.level,
        ahead=found.ahead,
        victims=found.victims,
        wait=wait,
        later_ms=found.later_ms,
        price=price,
        evidence=found.evidence,
        assumptions=tuple(dict.fromkeys((*found.assumptions, *asking.assumptions, *late))),
        drift=found.drift,
    )


def _not_before(found: LayerResult, asking: SchedulingRequest, known: AdvisorContext) -> LayerResult:
    """Of one that all layers would let run: it waits first where Kueue says that it does not let it in yet,
    or where it has to end what it does."""
    hold = hold_of(asking.workloads[-1], known.state) if asking.workloads else None
    if hold is None and asking.until:
        hold = KueueHold(EVICTING, "", until=asking.until)
    # Without an end: one that is on hold, and wants no pods.
    if hold is None or not hold.until:
        return found
    says = f"quota and nodes are there for it {'then' if asking.until else 'now'}"
    if found.decision is SchedulingDecision.LATER:
        says = f"it {found.says}"
    return replace(
        found,
        decision=SchedulingDecision.WAITS,
        layer=SchedulingLayer.QUOTA,
        reason=hold.reason,
        says=f"by the rules {says}",
        evidence=(*hold.evidence, *found.evidence),
        until=hold.until,
        victims=(),
        later_ms=None,
        partly="",
    )


def _restless(asking: SchedulingRequest, found: LayerResult, known: AdvisorContext) -> tuple[str, ...]:
    """The warning that its admission would preempt without rest, where it would; or that nobody looked."""
    if (
        not asking.workloads
        or not found.queue
        or found.decision is SchedulingDecision.NEVER
        or known.is_late()
    ):
        return ()
    ring = restless_queue(known.kueue, asking.workloads[-1])
    if ring is None:
        return ()
    if isinstance(ring, LargeTree):
        return (
            f"whether preemption would come to rest is not looked at: {ring.workloads:,} workloads share its "
            f"quota, and {MOST_KNOWN:,} are played at most",
        )
    own = asking.workloads[-1].meta.uid

    def named(uid: str) -> str:
        workload = known.state.workloads.get(uid)
        return "it" if uid == own or workload is None else f"{workload.meta.namespace}/{workload.meta.name}"

    pairs = dict.fromkeys((each.by, each.victim) for each in ring.pairs)
    who = ", ".join(f"{named(by)} preempts {named(victim)}" for by, victim in list(pairs)[:MOST_PAIRS])
    more = f" and {len(pairs) - MOST_PAIRS:,} more" if len(pairs) > MOST_PAIRS else ""
    end = "no value of it ends that" if ring.remedy is None else f"{' '.join(ring.remedy)} ends it"
    return (
        f"warning: preemption would have no rest: {who}{more} again and again, as whoever has to go takes "
        f"the room first (spec.preemption.{ring.setting} of clusterqueue {ring.queue}; {end})",
    )


def _through_layers(asking: SchedulingRequest, known: AdvisorContext) -> tuple[LayerResult, str, str]:
    """The first layer that holds it, with what those before it said; the scheduler, and its rules."""
    if asking.unknown:
        says = "; ".join(asking.unknown)
        return LayerResult(SchedulingDecision.UNKNOWN, SchedulingLayer.QUOTA, INCOMPLETE, says), DEFAULT, ""
    if not any(each.count for each in asking.pod_sets):
        return (
            LayerResult(SchedulingDecision.NOW, SchedulingLayer.NONE, NO_PODS, "wants no pods"),
            DEFAULT,
            "",
        )
    if asking.refused is not None:
        return LayerResult(SchedulingDecision.NEVER, SchedulingLayer.QUOTA, *asking.refused), DEFAULT, ""
    if asking.reserved is not None:
        found = replace(reserved_answer(asking.reserved, known.state), drift=rules_drift(known.overview))
        return found, KUEUE, rules_named(known.overview)
    if asking.workloads:
        rules = rules_named(known.overview)
        quota = _unread_quota(asking, known) or kueue_answer(known.kueue, known.overview, asking.workloads)
        quota = started(known, asking, quota)
        if quota.decision is SchedulingDecision.WAITS or quota.reason in NOT_TRIED:
            return _never_placed(quota, asking, known) or quota, KUEUE, rules
        if quota.decision is not SchedulingDecision.NOW:
            return quota, KUEUE, rules
        if asking.gang is not None:
            gang = volcano_answer(asking.gang, known.world)
            return _joined(quota, _of_volcano(gang)), f"{KUEUE}, {VOLCANO}", f"{rules}; {gang.rules}"
        return _joined(quota, placement_answer(known, asking, quota)), KUEUE, rules
    if asking.gang is not None:
        gang = volcano_answer(asking.gang, known.world)
        return _of_volcano(gang), VOLCANO, gang.rules
    return placement_answer(known, asking), DEFAULT, ""


def _unread_quota(asking: SchedulingRequest, known: AdvisorContext) -> LayerResult | None:
    """Whether quota would be a guess, because who holds it could not be read."""
    state = known.state
    local = state.local_queue_by_name.get((asking.subject.namespace, asking.workloads[-1].queue))
    queue = state.cluster_queue_by_name.get(local.cluster_queue) if local is not None else None
    needed = ["workloads", "flavors", *(["cohorts"] if queue is not None and queue.cohort else [])]
    unread = [each for each in needed if queue is not None and state.is_unread(each)]
    if not unread:
        return None
    says = f"{' and '.join(unread)} of Kueue could not be read: who has the quota is not known"
    drift = rules_drift(known.overview)
    return LayerResult(SchedulingDecision.UNKNOWN, SchedulingLayer.QUOTA, NOT_READ, says, drift=drift)


def _never_placed(quota: LayerResult, asking: SchedulingRequest, known: AdvisorContext) -> LayerResult | None:
    """A job that waits for quota, or that Kueue holds back, in vain: no node would take its pods in any
    flavor, even when empty. Not of a queue that sends its workloads to other clusters."""
    queue = known.state.cluster_queue_by_name.get(quota.queue)
    if queue is not None and sends_elsewhere(queue, known.state):
        return None
    nodes = placement_answer(known, asking)
    if nodes.decision is not SchedulingDecision.NEVER:
        return None
    return replace(_joined(quota, nodes), why=(*nodes.why, f"quota: {quota.says}", *quota.why), pod_sets=())


def _joined(quota: LayerResult, nodes: LayerResult) -> LayerResult:
    """The result of the quota layer, together with that of the nodes."""
    return replace(
        nodes,
        why=(*quota.why, *nodes.why),
        queue=quota.queue,
        pod_sets=nodes.pod_sets or quota.pod_sets,
        borrowed=quota.borrowed,
        level=quota.level,
        ahead=quota.ahead,
        victims=(*quota.victims, *nodes.victims),
        evidence=(*quota.evidence, *nodes.evidence),
        assumptions=tuple(dict.fromkeys((*quota.assumptions, *nodes.assumptions))),
        drift=tuple(dict.fromkeys((*quota.drift, *nodes.drift))),
    )


def _of_volcano(found: VolcanoAnswer) -> LayerResult:
    return LayerResult(
        found.decision,
        found.layer,
        found.reason,
        found.says,
        found.why,
        found.queue,
        found.pod_sets,
        ahead=found.ahead,
        victims=found.victims,
        evidence=found.evidence,
        assumptions=found.assumptions,
        drift=found.drift,
        partly=found.partly,
        until=found.until,
    )


def _first_line(found: LayerResult) -> tuple[str, ...]:
    """What holds it, as a line of the why."""
    if found.layer is SchedulingLayer.NONE or not found.says:
        return ()
    label = {SchedulingLayer.QUOTA: "quota", SchedulingLayer.DEVICE: "device"}.get(found.layer, "placement")
    return (f"{label}: {found.says}",)
