"""The answer of Kueue's rules for a job, as sentences, evidence and a decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from gpucost.advisor.kueue import messages
from gpucost.advisor.kueue.admission import AdmissionOutlook, KueueView
from gpucost.advisor.kueue.cycle import STRICT, NominatedHead
from gpucost.advisor.kueue.flavor_assigner import PREEMPTION_FIRST, AssignmentMode, PodSetChoice
from gpucost.advisor.kueue.job_workloads import MOST_WORKLOADS
from gpucost.advisor.kueue.messages import (
    CHECKS,
    FlavorReason,
    as_held,
    check_named,
    quantity,
    quota_evidence,
)
from gpucost.advisor.kueue.pending_queues import admits_namespace, standing
from gpucost.advisor.kueue.preemption import PreemptionTarget
from gpucost.advisor.kueue.requests import QuotaRequest, added_usage
from gpucost.advisor.kueue.rule_set import drift, named
from gpucost.advisor.kueue.snapshot import SnapshotQueue
from gpucost.advisor.model.answers import (
    AdviceEvidence,
    AdviceSubject,
    LayerResult,
    PodSetAnswer,
    PreemptionVictim,
    SchedulingDecision,
    SchedulingLayer,
)
from gpucost.cluster.objects.kueue import FlavorResource, Workload
from gpucost.cluster.objects.metadata import is_false
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.queues import FAIR_ADMISSION, goes_by_usage
from gpucost.cluster.views.quota import workload_units
from gpucost.cluster.views.workload_families import multi_kueue_checks
from gpucost.domain.text import counted

QUEUE_MISSING = "QueueMissing"
QUEUE_INACTIVE = "QueueInactive"
BLOCKED = "BlockedByHead"
UNSETTLED = "Unsettled"
NOT_ASKED = "NotAllAsked"
BY_LOT = "ByLot"
MOST_LEVELS = 100
MOST_COHORTS = 4
"""Named in one sentence."""
MOST_BESIDE = 256
"""Workloads of one job (a Deployment makes one for each pod) that are asked about together."""
_REFUSALS = {
    "missing": "does not exist",
    "taint": "has the taint {}, which they do not tolerate",
    "label": "has another value of the label {} than they ask for",
    "affinity": "does not match their node affinity",
    "topology-only": "is for pods with a topology request, which they do not make",
    "no-topology": "has no topology, which they ask for",
    "level": "has a topology without the level {}",
}
_NOT_PASSED = (
    "workloads that Kueue has looked at and found no quota for count as parked until quota comes back"
)


def rules_named(overview: ClusterOverview) -> str:
    """The rule set, for an answer."""
    return named(overview.state.schedulers.kueue)


def rules_drift(overview: ClusterOverview) -> tuple[str, ...]:
    """Where the cluster's Kueue may decide otherwise, for an answer."""
    return drift(overview.state.schedulers.kueue)


def kueue_answer(view: KueueView, overview: ClusterOverview, workloads: Sequence[Workload]) -> LayerResult:
    """Of workloads that one job has or would have, all of the same queue; quota only, no nodes."""
    last = workloads[-1]
    refused = _no_queue(view, last) or _no_service(view, last) or _too_deep(view, last)
    if refused is not None:
        return replace(refused, drift=rules_drift(overview))
    asks = [standing(view.snapshot, each) for each in workloads[:MOST_BESIDE]]
    queue = view.snapshot.queues[asks[-1].queue]
    outlook = view.outlook(asks[-1], asks[:-1])
    found = _of_all(len(workloads), _either(view, queue, asks, outlook))
    if len(workloads) > len(asks):
        found = _of_more(found, len(asks), len(workloads))
    full = replace(
        found,
        queue=queue.name,
        ahead=outlook.ahead,
        victims=tuple(_victim(overview, each) for each in outlook.victims),
        others=outlook.others,
        leaving=outlook.leaving,
        why=(*found.why, *_by_usage(view, last)),
        assumptions=(*found.assumptions, *_assumed(view, queue, len(workloads))),
        drift=rules_drift(overview),
    )
    return as_held(full, last, view.snapshot.state)


def _of_more(found: LayerResult, asked: int, count: int) -> LayerResult:
    """An answer about some of its workloads, worded for all of them and not only for those that were asked
    about."""
    more = " or more" if count >= MOST_WORKLOADS else ""
    said = f"of its {asked:,} ", f"of its {count:,}{more} "
    says = found.says.replace(*said).replace("all of it asks", f"the first {asked:,} alone ask")
    return replace(found, says=says, partly=found.partly.replace(*said))


def _too_deep(view: KueueView, workload: Workload) -> LayerResult | None:
    """Cohorts nested deeper than in practice: the rules walk down them recursively."""
    local = view.snapshot.state.local_queue_by_name[workload.meta.namespace, workload.queue]
    depth = view.snapshot.queues[local.cluster_queue].node.path[-1].height
    if depth <= MOST_LEVELS:
        return None
    says = f"cohorts nested {depth:,} deep are not followed, at most {MOST_LEVELS}"
    return LayerResult(SchedulingDecision.UNKNOWN, SchedulingLayer.QUOTA, UNSETTLED, says)


def _of_all(count: int, found: LayerResult) -> LayerResult:
    """Where all workloads that were asked about fit, and there are more: not known for the others."""
    if count <= MOST_BESIDE or found.decision is not SchedulingDecision.NOW:
        return found
    says = f"the first {MOST_BESIDE:,} of its {count:,} workloads have quota; the others were not asked about"
    return replace(
        found, decision=SchedulingDecision.UNKNOWN, layer=SchedulingLayer.QUOTA, reason=NOT_ASKED, says=says
    )


def _decided(
    view: KueueView, queue: SnapshotQueue, asks: Sequence[QuotaRequest], outlook: AdmissionOutlook
) -> LayerResult:
    """The answer for all of them; where some have quota and others do not, for the others, with
    how many have it."""
    if outlook.admitted:
        return _admitted(view, queue, outlook)
    found = _refused(view, queue, asks, outlook)
    if not outlook.given:
        return found
    return replace(found, partly=_part(asks, len(outlook.given)), pod_sets=_given(outlook.given))


def _either(
    view: KueueView, queue: SnapshotQueue, asks: Sequence[QuotaRequest], outlook: AdmissionOutlook
) -> LayerResult:
    """Where Kueue draws lots and the outcome depends on it: the outcomes either way."""
    found = _decided(view, queue, asks, outlook)
    if not outlook.otherwise:
        return found
    names = sorted({name for pair in outlook.ties for name in pair})
    more = f" and {len(names) - MOST_COHORTS:,} more" if len(names) > MOST_COHORTS else ""
    cohorts = f"{', '.join(names[:MOST_COHORTS])}{more}"
    lots = f"Kueue draws lots in every cycle between cohorts {cohorts}, which have equal shares"
    if any(each.admitted is not outlook.admitted for each in outlook.otherwise):
        says = f"either finds quota or waits: {lots}"
        return replace(
            found, decision=SchedulingDecision.UNKNOWN, layer=SchedulingLayer.QUOTA, reason=BY_LOT, says=says
        )
    ways = dict.fromkeys(_leaving(each) for each in (outlook, *outlook.otherwise))
    what = f"{' or '.join(ways)} must leave" if len(ways) > 1 else "this follows, or others come before it"
    return replace(found, why=(*found.why, f"either: {what}, as {lots}"))


def _leaving(outlook: AdmissionOutlook) -> str:
    """How many victims it has, by queue, without their names, which not every reader may see."""
    counts = Counter(each.member.queue for each in outlook.victims)
    of = (f"{counted(count, 'workload')} of {name}" for name, count in sorted(counts.items()))
    return " and ".join(of) or "nobody"


def _refused(
    view: KueueView, queue: SnapshotQueue, asks: Sequence[QuotaRequest], outlook: AdmissionOutlook
) -> LayerResult:
    if not outlook.fits_empty:
        return _never(view, queue, asks)
    if not outlook.is_settled:
        says = f"quota goes to and fro between workloads of its tree: no answer after {outlook.cycles} cycles"
        return LayerResult(SchedulingDecision.UNKNOWN, SchedulingLayer.QUOTA, UNSETTLED, says)
    if outlook.nominee is None:
        return _behind(view, queue, outlook)
    with view.started(queue, outlook):
        return _short(view, queue, outlook, outlook.nominee, len(asks) > 1)


def _part(asks: Sequence[QuotaRequest], count: int) -> str:
    """``2 of its 3 pods``; of a LeaderWorkerSet ``1 of its 2 groups of 4 pods``."""
    each = sum(asks[0].counts)
    what = "pods" if each == 1 else f"groups of {each:,} pods"
    return f"{count:,} of its {len(asks):,} {what}"


def _given(nominees: Sequence[NominatedHead]) -> tuple[PodSetAnswer, ...]:
    """By pod set and flavors: equal ones of several workloads as one."""
    counts: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
    for nominee in nominees:
        for each in nominee.assignment.assigned:
            key = each.name, tuple(sorted(each.flavors.items()))
            counts[key] = counts.get(key, 0) + each.count
    return tuple(PodSetAnswer(name, count, dict(flavors), {}) for (name, flavors), count in counts.items())


def _admitted(view: KueueView, queue: SnapshotQueue, outlook: AdmissionOutlook) -> LayerResult:
    total = added_usage([each.assignment.usage for each in outlook.given])
    usage = ", ".join(
        f"{quantity(key.resource, amount)} {key.resource} of {key.flavor}"
        for key, amount in sorted(total.items())
    )
    why = [f"quota: ClusterQueue {queue.name} has room for {usage}"]
    if any(each.assignment.mode is not AssignmentMode.FIT for each in outlook.given):
        why.append("quota: at a size below what was asked")
    asked = sum(sum(each.ask.counts) for each in outlook.given)
    given = sum(each.count for nominee in outlook.given for each in nominee.assignment.pod_sets)
    if given < asked:
        why.append(f"size: {given} of {asked} pods (partial admission)")
    elsewhere = multi_kueue_checks(view.snapshot.state)
    checks = sorted({check for each in outlook.given for check in _checks(queue, each, elsewhere)})
    return LayerResult(
        SchedulingDecision.UNKNOWN if checks else SchedulingDecision.NOW,
        SchedulingLayer.QUOTA if checks else SchedulingLayer.NONE,
        CHECKS if checks else "",
        f"has quota; then {_some(checks)} must agree, which is not followed" if checks else "",
        tuple(why),
        pod_sets=_given(outlook.given),
        borrowed=dict(outlook.borrowed),
        level=max(each.assignment.level for each in outlook.given),
    )


def _never(view: KueueView, queue: SnapshotQueue, asks: Sequence[QuotaRequest]) -> LayerResult:
    """What keeps it out whatever other workload leaves."""
    count, nominee = view.alone(asks)
    if count:
        return _never_all(view, queue, asks, count, nominee)
    ask = nominee.ask
    unserved = [each for each in nominee.assignment.pod_sets if each.mode is not AssignmentMode.FIT]
    reason = nominee.assignment.reason or messages.NO_FLAVOR
    return LayerResult(
        SchedulingDecision.NEVER,
        SchedulingLayer.QUOTA,
        reason,
        _why_never(view, queue, ask, unserved),
        (f"kueue: {nominee.assignment.message}",),
        evidence=tuple(_evidence(view, queue, unserved)),
    )


def _never_all(
    view: KueueView, queue: SnapshotQueue, asks: Sequence[QuotaRequest], count: int, nominee: NominatedHead
) -> LayerResult:
    """Each of them would have quota, and all together never."""
    unserved = [each for each in nominee.assignment.pod_sets if each.mode is not AssignmentMode.FIT]
    said, lack = nominee.assignment.message, _least_lack(unserved, messages.WAITING_FOR_QUOTA)
    if lack is not None:
        asked = sum(pods.each.get(lack.resource, 0) * pods.count for ask in asks for pods in ask.pod_sets)
        most = queue.node.potential(FlavorResource(lack.flavor, lack.resource))
        said = (
            f"all of it asks {_amount(lack, asked)}; ClusterQueue {queue.name} can never have more than "
            f"{quantity(lack.resource, most)} (flavor {lack.flavor})"
        )
    says = f"never more than {_part(asks, count)} have quota at once: {said}"
    facts = tuple(_evidence(view, queue, unserved))
    return LayerResult(
        SchedulingDecision.NEVER, SchedulingLayer.QUOTA, messages.EXCEEDS_MAX, says, evidence=facts
    )


def _why_never(
    view: KueueView, queue: SnapshotQueue, ask: QuotaRequest, unserved: Sequence[PodSetChoice]
) -> str:
    uncovered = [
        resource
        for each in unserved
        for resource, amount in each.requests.items()
        if resource not in queue.covered and amount and not view.snapshot.config.ignores_undeclared
    ]
    if uncovered:
        return f"ClusterQueue {queue.name} has no quota for {_some(uncovered)} at all"
    lack = _least_lack(unserved, messages.EXCEEDS_MAX)
    if lack is not None:
        return (
            f"asks {_amount(lack, lack.used + lack.asked)}; ClusterQueue {queue.name} can never have more "
            f"than {quantity(lack.resource, lack.left)} (flavor {lack.flavor})"
        )
    refusals = dict.fromkeys(each for choice in unserved for each in _refusals(view, queue, ask, choice))
    said = "; ".join(refusals) or "; ".join(
        sorted({each.message for choice in unserved for each in choice.reasons})
    )
    return f"no flavor of ClusterQueue {queue.name} takes its pods: {said}"


def _refusals(
    view: KueueView, queue: SnapshotQueue, ask: QuotaRequest, choice: PodSetChoice
) -> Iterator[str]:
    """Why each flavor is out of the question for a pod set, for a person."""
    asked = next(each for each in ask.pod_sets if each.name == choice.name)
    groups = {queue.covered[name] for name in choice.requests if name in queue.covered}
    for flavor in dict.fromkeys(name for at in sorted(groups) for name in queue.spec.groups[at].flavors):
        refusal = view.snapshot.refusal(queue, asked, flavor)
        if refusal is not None:
            yield f"{flavor} {_REFUSALS[refusal.kind].format(refusal.detail)}"


def _least_lack(choices: Sequence[PodSetChoice], reason: str) -> FlavorReason | None:
    """Of the flavors that lack something for ``reason``, the one that lacks least, and what it lacks most:
    GPUs before other resources, then by name."""
    for choice in choices:
        worst: dict[str, tuple[float, bool, str, FlavorReason]] = {}
        for each in choice.reasons:
            if each.reason == reason and each.resource:
                part = each.left / max(1, each.used + each.asked)
                rank = (part, "/" not in each.resource, each.resource, each)
                worst[each.flavor] = min(worst.get(each.flavor, rank), rank, key=lambda one: one[:3])
        if worst:
            return max(worst.items(), key=lambda item: (item[1][0], item[0]))[1][3]
    return None


def _amount(lack: FlavorReason, amount: int) -> str:
    return f"{quantity(lack.resource, amount)} {lack.resource}"


def _short(
    view: KueueView, queue: SnapshotQueue, outlook: AdmissionOutlook, nominee: NominatedHead, is_of_many: bool
) -> LayerResult:
    """It waits for quota that others give back. ``is_of_many``: it is one of several workloads of its job."""
    unserved = [each for each in nominee.assignment.pod_sets if each.mode is not AssignmentMode.FIT]
    says = outlook.message
    lack = _least_lack(unserved or nominee.assignment.pod_sets, messages.WAITING_FOR_QUOTA)
    if lack is not None:
        says = (
            f"{'each asks' if is_of_many else 'asks'} {_amount(lack, lack.used + lack.asked)}; "
            f"ClusterQueue {queue.name} has {quantity(lack.resource, lack.left)} left (flavor {lack.flavor})"
        )
    why = [f"kueue: {outlook.message}"] if outlook.message not in ("", says) else []
    if _hides_preemption(queue, nominee):
        why.append(
            "kueue: with preference PreemptionOverBorrowing v0.19.2 takes a flavor for free that needs "
            "preemption, and so preempts nobody; the default preference would"
        )
    return LayerResult(
        SchedulingDecision.WAITS,
        SchedulingLayer.QUOTA,
        outlook.reason or messages.WAITING_FOR_QUOTA,
        says,
        tuple(why),
        evidence=tuple(_evidence(view, queue, unserved or nominee.assignment.pod_sets)),
    )


def _hides_preemption(queue: SnapshotQueue, nominee: NominatedHead) -> bool:
    """The defect of v0.19.2: the representative mode is Fit, and some resource is not there."""
    is_fit = nominee.assignment.mode is AssignmentMode.FIT
    prefers = queue.spec.fungibility.preference == PREEMPTION_FIRST
    return is_fit and prefers and not queue.fits(nominee.assignment.usage)


def _behind(view: KueueView, queue: SnapshotQueue, outlook: AdmissionOutlook) -> LayerResult:
    """No workload passes the head of a StrictFIFO queue."""
    head = view.snapshot.state.workloads.get(outlook.blocker)
    who = f"{head.meta.namespace}/{head.meta.name}" if head is not None else "another workload"
    says = f"stands behind {who}, which does not fit; nobody passes the head of a StrictFIFO queue"
    if queue.spec.strategy != STRICT:
        says = f"stands behind {who}, which Kueue tries again and again"
    field = AdviceEvidence(
        f"clusterqueue/{queue.name}", "spec.queueingStrategy", queue.spec.strategy, "nobody is passed"
    )
    return LayerResult(SchedulingDecision.WAITS, SchedulingLayer.QUOTA, BLOCKED, says, evidence=(field,))


def _no_queue(view: KueueView, workload: Workload) -> LayerResult | None:
    state, name = view.snapshot.state, f"{workload.meta.namespace}/{workload.queue}"
    local = state.local_queue_by_name.get((workload.meta.namespace, workload.queue))
    if local is None:
        says = f"LocalQueue {name} does not exist{_no_namespace(state, workload.meta.namespace)}"
        known = state.knows("local_queues")
    elif local.cluster_queue not in view.snapshot.queues:
        says = f"LocalQueue {name} leads to ClusterQueue {local.cluster_queue}, which does not exist"
        known = state.knows("cluster_queues")
    else:
        return None
    if not known:
        return LayerResult(
            SchedulingDecision.UNKNOWN, SchedulingLayer.QUOTA, QUEUE_MISSING, f"{says}, or could not be read"
        )
    where = AdviceEvidence(f"localqueue/{workload.queue}", "spec.clusterQueue" if local else "", "", says)
    return LayerResult(
        SchedulingDecision.NEVER, SchedulingLayer.QUOTA, QUEUE_MISSING, says, evidence=(where,)
    )


def _no_namespace(state: ClusterState, namespace: str) -> str:
    """Evidence that the namespace is missing, where all namespaces are known."""
    is_known = bool(state.namespaces) and not state.is_unread("namespaces")
    is_missing = is_known and namespace not in state.namespace_by_name
    return f": there is no namespace {namespace}" if is_missing else ""


def _no_service(view: KueueView, workload: Workload) -> LayerResult | None:
    """A queue that exists and takes no workloads, or none of this namespace."""
    namespace = workload.meta.namespace
    local = view.snapshot.state.local_queue_by_name[namespace, workload.queue]
    queue = view.snapshot.queues[local.cluster_queue]
    if local.stop_policy != "None":
        says = f"LocalQueue {local.meta.name} is stopped ({local.stop_policy})"
        fact = AdviceEvidence(f"localqueue/{local.meta.name}", "spec.stopPolicy", local.stop_policy, says)
        return LayerResult(
            SchedulingDecision.NEVER, SchedulingLayer.QUOTA, QUEUE_INACTIVE, says, evidence=(fact,)
        )
    if not queue.is_active:
        return _inactive(queue)
    if not admits_namespace(view.snapshot, queue, namespace):
        says = f"ClusterQueue {queue.name} takes no workloads of namespace {namespace}"
        fact = AdviceEvidence(f"clusterqueue/{queue.name}", "spec.namespaceSelector", "", says)
        return LayerResult(
            SchedulingDecision.NEVER, SchedulingLayer.QUOTA, messages.MISCONFIGURED, says, evidence=(fact,)
        )
    return None


def _inactive(queue: SnapshotQueue) -> LayerResult:
    name, spec = f"clusterqueue/{queue.name}", queue.spec
    if spec.stop_policy != "None":
        says = f"ClusterQueue {queue.name} is stopped ({spec.stop_policy})"
        fact = AdviceEvidence(name, "spec.stopPolicy", spec.stop_policy, says)
    elif is_false(spec.conditions, "Active"):
        said = spec.conditions["Active"]
        says = f"ClusterQueue {queue.name} is not active: {said.message or said.reason}"
        fact = AdviceEvidence(name, "status.conditions[Active]", said.reason, says)
    elif queue.node.in_cycle:
        says = f"ClusterQueue {queue.name} is in a circle of cohorts: nothing is admitted in it"
        fact = AdviceEvidence(name, "spec.cohortName", spec.cohort, says)
    else:
        says = f"ClusterQueue {queue.name} names a flavor that does not exist"
        fact = AdviceEvidence(name, "spec.resourceGroups", "", says)
    return LayerResult(
        SchedulingDecision.NEVER, SchedulingLayer.QUOTA, QUEUE_INACTIVE, says, evidence=(fact,)
    )


def _evidence(
    view: KueueView, queue: SnapshotQueue, unserved: Sequence[PodSetChoice]
) -> Iterator[AdviceEvidence]:
    """Of the scarce resources of the first pod set that is not served."""
    for each in unserved[:1]:
        for resource in sorted(each.requests):
            group = queue.covered.get(resource)
            for flavor in queue.spec.groups[group].flavors if group is not None else ():
                key = FlavorResource(flavor, resource)
                if queue.node.available(key) < each.requests[resource]:
                    yield from quota_evidence(view.snapshot, queue, key, each.requests[resource])


def _checks(queue: SnapshotQueue, nominee: NominatedHead, elsewhere: Collection[str]) -> list[str]:
    """Admission checks that apply to the flavors it gets; those of ``elsewhere`` are MultiKueue's."""
    flavors = {flavor for each in nominee.assignment.assigned for flavor in each.flavors.values()}
    return sorted(
        check_named(name, elsewhere)
        for name, only in queue.spec.checks.items()
        if not only or flavors & set(only)
    )


def _victim(overview: ClusterOverview, target: PreemptionTarget) -> PreemptionVictim:
    workload = overview.state.workloads[target.member.uid]
    job = overview.ownership.job_of(workload)
    return PreemptionVictim(
        AdviceSubject(job.kind.value, workload.meta.namespace, job.name, workload.meta.uid),
        target.member.queue,
        target.member.priority,
        target.reason,
        workload_units(workload, overview.catalog),
        target.member.is_evicted,
    )


def _by_usage(view: KueueView, workload: Workload) -> Iterator[str]:
    """That its queue goes by what LocalQueues used, and where its own stands among them."""
    used = view.snapshot.local_usages.get((workload.meta.namespace, workload.queue))
    if used is None:
        return
    beside = [
        each.order
        for each in view.snapshot.local_usages.values()
        if each.queue.cluster_queue == used.queue.cluster_queue and each.queue is not used.queue
    ]
    less = sum(order < used.order for order in beside)
    yield (
        f"order: ClusterQueue {used.queue.cluster_queue} goes by what its LocalQueues used lately (admission "
        f"fair sharing), before priority; of {counted(len(beside), 'other LocalQueue')} {less:,} used less "
        f"than {workload.queue}"
    )


def _assumed(view: KueueView, queue: SnapshotQueue, count: int) -> Iterator[str]:
    if queue.spec.strategy != "StrictFIFO":
        yield _NOT_PASSED
    if queue.spec.admission_mode == FAIR_ADMISSION:
        yield _assumed_of_usage(view, queue)
    yield "Kueue looks at flavors from the first one on; in its memory it may be further"
    if count > MOST_BESIDE:
        yield f"of its {count:,} workloads the first {MOST_BESIDE} were asked about"


def _assumed_of_usage(view: KueueView, queue: SnapshotQueue) -> str:
    config = view.snapshot.config
    if not goes_by_usage(queue.spec, config):
        return (
            f"ClusterQueue {queue.name} asks for admission fair sharing, which Kueue's Configuration has "
            "switched off: usage of LocalQueues does not count"
        )
    said = "usage of LocalQueues (admission fair sharing) is as their status has it"
    if config.fair_admission is None:
        return f"{said}; resources weigh alike, and entry penalties are not known"
    return f"{said}, with penalties of who has quota; its decay, and penalties to come, are not followed"


def _some(names: Sequence[str]) -> str:
    return ", ".join(sorted(set(names)))
