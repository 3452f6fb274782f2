"""What Kueue's rules say of a job, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpucost.advisor.answers import Decision, Evidence, Layer, PodSetAnswer, Subject, Victim
from gpucost.advisor.kueue import words
from gpucost.advisor.kueue.asks import Ask
from gpucost.advisor.kueue.evidence import quota_evidence
from gpucost.advisor.kueue.flavors import PodSetChoice
from gpucost.advisor.kueue.modes import PREEMPTION_FIRST, Mode
from gpucost.advisor.kueue.nominate import Nominee
from gpucost.advisor.kueue.outlook import KueueView, Outlook
from gpucost.advisor.kueue.rule_set import drift, named
from gpucost.advisor.kueue.snapshot import Queue
from gpucost.advisor.kueue.targets import Target
from gpucost.advisor.kueue.waiting import admits_namespace, standing
from gpucost.advisor.kueue.words import quantity
from gpucost.advisor.layers import LayerResult
from gpucost.cluster.kueue import FlavorResource, Workload
from gpucost.cluster.objects import is_false
from gpucost.cluster.order import FAIR_ADMISSION
from gpucost.cluster.overview import Overview
from gpucost.cluster.quota_use import workload_units

QUEUE_MISSING = "QueueMissing"
QUEUE_INACTIVE = "QueueInactive"
CHECKS = "AdmissionChecks"
BLOCKED = "BlockedByHead"
UNSETTLED = "Unsettled"
MOST_BESIDE = 64
"""Workloads of one job (a Deployment makes one for each pod) that are asked about together."""
_REFUSALS = {
    "missing": "does not exist",
    "taint": "has the taint {}, which they do not tolerate",
    "label": "has another value of the label {} than they ask for",
    "affinity": "does not match their node affinity",
}
_NOT_PASSED = (
    "workloads that Kueue has looked at and found no quota for count as parked until quota comes back"
)


def rules_named(overview: Overview) -> str:
    """The rule set, for an answer."""
    return named(overview.state.schedulers.kueue)


def kueue_answer(view: KueueView, overview: Overview, workloads: Sequence[Workload]) -> LayerResult:
    """Of workloads that one job has or would have, all of the same queue; quota only, no nodes."""
    last = workloads[-1]
    refused = _no_queue(view, last) or _no_service(view, last)
    if refused is not None:
        return refused
    asks = [standing(view.snapshot, each) for each in workloads[-MOST_BESIDE:]]
    ask, queue = asks[-1], view.snapshot.queues[asks[-1].queue]
    outlook = view.outlook(ask, asks[:-1])
    found = _decided(view, queue, ask, outlook)
    config = overview.state.schedulers.kueue
    return replace(
        found,
        queue=queue.name,
        ahead=outlook.ahead,
        victims=tuple(_victim(overview, each) for each in outlook.victims),
        assumptions=(*found.assumptions, *_assumed(queue, len(workloads))),
        drift=drift(config),
    )


def _decided(view: KueueView, queue: Queue, ask: Ask, outlook: Outlook) -> LayerResult:
    if outlook.admitted and outlook.nominee is not None:
        return _admitted(queue, outlook, outlook.nominee)
    if not outlook.fits_empty:
        return _never(view, queue, ask)
    if not outlook.is_settled:
        says = f"quota goes to and fro between workloads of its tree: no answer after {outlook.cycles} cycles"
        return LayerResult(Decision.UNKNOWN, Layer.QUOTA, UNSETTLED, says)
    if outlook.nominee is None:
        return _behind(view, queue, outlook)
    return _short(view, queue, outlook, outlook.nominee)


def _admitted(queue: Queue, outlook: Outlook, nominee: Nominee) -> LayerResult:
    usage = ", ".join(
        f"{quantity(key.resource, amount)} {key.resource} of {key.flavor}"
        for key, amount in sorted(nominee.assignment.usage.items())
    )
    why = [f"quota: ClusterQueue {queue.name} has room for {usage}"]
    if nominee.assignment.mode is not Mode.FIT:
        why.append("quota: at a size below what was asked")
    asked = sum(nominee.ask.counts)
    given = sum(each.count for each in nominee.assignment.pod_sets)
    if given < asked:
        why.append(f"size: {given} of {asked} pods (partial admission)")
    checks = _checks(queue, nominee)
    return LayerResult(
        Decision.UNKNOWN if checks else Decision.NOW,
        Layer.QUOTA if checks else Layer.NONE,
        CHECKS if checks else "",
        f"has quota; then {_some(checks)} must agree, which is not followed" if checks else "",
        tuple(why),
        pod_sets=tuple(
            PodSetAnswer(each.name, each.count, dict(each.flavors), {})
            for each in nominee.assignment.assigned
        ),
        borrowed=dict(outlook.borrowed),
        level=nominee.assignment.level,
    )


def _never(view: KueueView, queue: Queue, ask: Ask) -> LayerResult:
    """What is wrong with it whoever leaves."""
    nominee = view.nominated_alone(ask)
    unserved = [each for each in nominee.assignment.pod_sets if each.mode is not Mode.FIT]
    reason = nominee.assignment.reason or words.NO_FLAVOR
    return LayerResult(
        Decision.NEVER,
        Layer.QUOTA,
        reason,
        _why_never(view, queue, ask, unserved),
        (f"kueue: {nominee.assignment.message}",),
        evidence=tuple(_evidence(view, queue, unserved)),
    )


def _why_never(view: KueueView, queue: Queue, ask: Ask, unserved: Sequence[PodSetChoice]) -> str:
    uncovered = [
        resource
        for each in unserved
        for resource, amount in each.requests.items()
        if resource not in queue.covered and amount and not view.snapshot.config.ignores_undeclared
    ]
    if uncovered:
        return f"ClusterQueue {queue.name} has no quota for {_some(uncovered)} at all"
    for each in unserved:
        keys = [key for key in _keys(view, queue, ask, each) if queue.node.potential(key) < _total(key, ask)]
        if keys:
            best = max(keys, key=queue.node.potential)
            most, asked = queue.node.potential(best), _total(best, ask)
            return (
                f"asks {quantity(best.resource, asked)} {best.resource}; ClusterQueue {queue.name} can never "
                f"have more than {quantity(best.resource, most)} (flavor {best.flavor})"
            )
    refusals = dict.fromkeys(each for choice in unserved for each in _refusals(view, queue, ask, choice))
    said = "; ".join(refusals) or "; ".join(
        sorted({each.message for choice in unserved for each in choice.reasons})
    )
    return f"no flavor of ClusterQueue {queue.name} takes its pods: {said}"


def _refusals(view: KueueView, queue: Queue, ask: Ask, choice: PodSetChoice) -> Iterator[str]:
    """Why each flavor is out of the question for a pod set, for a person."""
    template = next(each.template for each in ask.pod_sets if each.name == choice.name)
    groups = {queue.covered[name] for name in choice.requests if name in queue.covered}
    for flavor in dict.fromkeys(name for at in sorted(groups) for name in queue.spec.groups[at].flavors):
        refusal = view.snapshot.refusal(template, flavor)
        if refusal is not None:
            yield f"{flavor} {_REFUSALS[refusal.kind].format(refusal.detail)}"


def _keys(view: KueueView, queue: Queue, ask: Ask, choice: PodSetChoice) -> Iterator[FlavorResource]:
    """Flavors and resources that could serve a pod set, GPUs first, then by name."""
    template = next(each.template for each in ask.pod_sets if each.name == choice.name)
    for resource in sorted(choice.requests, key=lambda name: ("/" not in name, name)):
        group = queue.covered.get(resource)
        for flavor in queue.spec.groups[group].flavors if group is not None else ():
            if view.snapshot.refusal(template, flavor) is None:
                yield FlavorResource(flavor, resource)


def _total(key: FlavorResource, ask: Ask) -> int:
    return sum(each.each.get(key.resource, 0) * each.count for each in ask.pod_sets)


def _short(view: KueueView, queue: Queue, outlook: Outlook, nominee: Nominee) -> LayerResult:
    """It waits for others to give quota back."""
    unserved = [each for each in nominee.assignment.pod_sets if each.mode is not Mode.FIT]
    says = outlook.message
    for each in unserved:
        keys = [
            key
            for key in _keys(view, queue, nominee.ask, each)
            if queue.node.available(key) < _total(key, nominee.ask) <= queue.node.potential(key)
        ]
        if keys:
            best = max(keys, key=lambda key: queue.node.available(key) - _total(key, nominee.ask))
            asked, left = _total(best, nominee.ask), queue.node.available(best)
            says = (
                f"asks {quantity(best.resource, asked)} {best.resource}; ClusterQueue {queue.name} has "
                f"{quantity(best.resource, left)} left (flavor {best.flavor})"
            )
            break
    why = [f"kueue: {outlook.message}"] if outlook.message else []
    if _hides_preemption(queue, nominee):
        why.append(
            "kueue: with preference PreemptionOverBorrowing v0.19.2 takes a flavor for free that needs "
            "preemption, and so preempts nobody; the default preference would"
        )
    return LayerResult(
        Decision.WAITS,
        Layer.QUOTA,
        outlook.reason or words.WAITING_FOR_QUOTA,
        says,
        tuple(why),
        evidence=tuple(_evidence(view, queue, unserved or nominee.assignment.pod_sets)),
    )


def _hides_preemption(queue: Queue, nominee: Nominee) -> bool:
    """The defect of v0.19.2: the representative mode is Fit, and some resource is not there."""
    is_fit = nominee.assignment.mode is Mode.FIT
    prefers = queue.spec.fungibility.preference == PREEMPTION_FIRST
    return is_fit and prefers and not queue.fits(nominee.assignment.usage)


def _behind(view: KueueView, queue: Queue, outlook: Outlook) -> LayerResult:
    """Nobody passes the head of a StrictFIFO queue."""
    head = view.snapshot.state.workloads.get(outlook.blocker)
    who = f"{head.meta.namespace}/{head.meta.name}" if head is not None else "another workload"
    says = f"stands behind {who}, which does not fit; nobody passes the head of a {queue.spec.strategy} queue"
    field = Evidence(
        f"clusterqueue/{queue.name}", "spec.queueingStrategy", queue.spec.strategy, "nobody is passed"
    )
    return LayerResult(Decision.WAITS, Layer.QUOTA, BLOCKED, says, evidence=(field,))


def _no_queue(view: KueueView, workload: Workload) -> LayerResult | None:
    state, name = view.snapshot.state, f"{workload.meta.namespace}/{workload.queue}"
    local = state.local_queue_by_name.get((workload.meta.namespace, workload.queue))
    if local is None:
        says = f"LocalQueue {name} does not exist"
        known = state.knows("local_queues")
    elif local.cluster_queue not in view.snapshot.queues:
        says = f"LocalQueue {name} leads to ClusterQueue {local.cluster_queue}, which does not exist"
        known = state.knows("cluster_queues")
    else:
        return None
    if not known:
        return LayerResult(Decision.UNKNOWN, Layer.QUOTA, QUEUE_MISSING, f"{says}, or could not be read")
    where = Evidence(f"localqueue/{workload.queue}", "spec.clusterQueue" if local else "", "", says)
    return LayerResult(Decision.NEVER, Layer.QUOTA, QUEUE_MISSING, says, evidence=(where,))


def _no_service(view: KueueView, workload: Workload) -> LayerResult | None:
    """A queue that is there and serves nobody, or not this namespace."""
    namespace = workload.meta.namespace
    local = view.snapshot.state.local_queue_by_name[namespace, workload.queue]
    queue = view.snapshot.queues[local.cluster_queue]
    if local.stop_policy != "None":
        says = f"LocalQueue {local.meta.name} is stopped ({local.stop_policy})"
        fact = Evidence(f"localqueue/{local.meta.name}", "spec.stopPolicy", local.stop_policy, says)
        return LayerResult(Decision.NEVER, Layer.QUOTA, QUEUE_INACTIVE, says, evidence=(fact,))
    if not queue.is_active:
        return _inactive(queue)
    if not admits_namespace(view.snapshot, queue, namespace):
        says = f"ClusterQueue {queue.name} takes no workloads of namespace {namespace}"
        fact = Evidence(f"clusterqueue/{queue.name}", "spec.namespaceSelector", "", says)
        return LayerResult(Decision.NEVER, Layer.QUOTA, words.MISCONFIGURED, says, evidence=(fact,))
    return None


def _inactive(queue: Queue) -> LayerResult:
    name, spec = f"clusterqueue/{queue.name}", queue.spec
    if spec.stop_policy != "None":
        says = f"ClusterQueue {queue.name} is stopped ({spec.stop_policy})"
        fact = Evidence(name, "spec.stopPolicy", spec.stop_policy, says)
    elif is_false(spec.conditions, "Active"):
        said = spec.conditions["Active"]
        says = f"ClusterQueue {queue.name} is not active: {said.message or said.reason}"
        fact = Evidence(name, "status.conditions[Active]", said.reason, says)
    elif queue.node.in_cycle:
        says = f"ClusterQueue {queue.name} is in a circle of cohorts: nothing is admitted in it"
        fact = Evidence(name, "spec.cohortName", spec.cohort, says)
    else:
        says = f"ClusterQueue {queue.name} names a flavor that does not exist"
        fact = Evidence(name, "spec.resourceGroups", "", says)
    return LayerResult(Decision.NEVER, Layer.QUOTA, QUEUE_INACTIVE, says, evidence=(fact,))


def _evidence(view: KueueView, queue: Queue, unserved: Sequence[PodSetChoice]) -> Iterator[Evidence]:
    """Of the scarce resources of the first pod set that is not served."""
    for each in unserved[:1]:
        for resource in sorted(each.requests):
            group = queue.covered.get(resource)
            for flavor in queue.spec.groups[group].flavors if group is not None else ():
                key = FlavorResource(flavor, resource)
                if queue.node.available(key) < each.requests[resource]:
                    yield from quota_evidence(view.snapshot, queue, key, each.requests[resource])


def _checks(queue: Queue, nominee: Nominee) -> list[str]:
    """Admission checks that apply to the flavors it gets."""
    flavors = {flavor for each in nominee.assignment.assigned for flavor in each.flavors.values()}
    return sorted(
        f"admission check {name}"
        for name, only in queue.spec.checks.items()
        if not only or flavors & set(only)
    )


def _victim(overview: Overview, target: Target) -> Victim:
    workload = overview.state.workloads[target.member.uid]
    job = overview.ownership.job_of(workload)
    return Victim(
        Subject(job.kind.value, workload.meta.namespace, job.name, workload.meta.uid),
        target.member.queue,
        target.member.priority,
        target.reason,
        workload_units(workload, overview.catalog),
        target.member.is_evicted,
    )


def _assumed(queue: Queue, count: int) -> Iterator[str]:
    if queue.spec.strategy != "StrictFIFO":
        yield _NOT_PASSED
    if queue.spec.admission_mode == FAIR_ADMISSION:
        yield "usage of LocalQueues (admission fair sharing) is as their status has it; resources weigh alike"
    yield "Kueue looks at flavors from the first one on; in its memory it may be further"
    if count > MOST_BESIDE:
        yield f"of its {count} workloads the last {MOST_BESIDE} were asked about"


def _some(names: Sequence[str]) -> str:
    return ", ".join(sorted(set(names)))
