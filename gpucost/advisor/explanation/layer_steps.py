"""One function for each layer of the walk: what holds a job that exists there.

``quota_step`` is the first: whether a queue, or another controller that has to let it start, holds the job.
``placement_step``, ``device_step`` and ``running_step`` follow.

What is worked out, and stands in no object, is evidence without a field.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpucost.advisor.kueue.job_workloads import suspend_path, switched_off, unlifted
from gpucost.advisor.kueue.messages import (
    NOT_YET,
    PODS_READY,
    REJECTED,
    held_evidence,
    held_says,
    reserved_evidence,
)
from gpucost.advisor.model.answers import (
    AdviceEvidence,
    LayerAnswer,
    LayerVerdict,
    SchedulingLayer,
)
from gpucost.advisor.request.context import AdvisorContext
from gpucost.advisor.request.scheduling_request import ExistingJob
from gpucost.cluster.objects.kueue import Workload, WorkloadState, eviction_meaning
from gpucost.cluster.objects.metadata import is_true
from gpucost.cluster.objects.pods import Pod, PodPhase
from gpucost.cluster.objects.volcano import PodGroup
from gpucost.cluster.views.gangs import PodGang
from gpucost.cluster.views.node_fit import lacking
from gpucost.cluster.views.quota import (
    FOR_PODS_READY,
    QUEUE_INACTIVE,
    QUEUE_MISSING,
    TOPOLOGY_OUTSTANDING,
    WAITING_FOR_REQUEUE,
    HeldBack,
    checks_reason,
    held_back,
    open_checks,
    quota_reason,
)
from gpucost.cluster.views.wait_causes import (
    DEVICE_ERRORS,
    REFUSED,
    pod_reason,
    pod_since_ms,
)
from gpucost.cluster.views.workload_families import DispatchStage, WorkloadDispatch
from gpucost.contract.queue_metrics import GangKind
from gpucost.domain.jobs import JobKind

MOST_PODS = 3
_QUOTA_RESERVED = "status.conditions[QuotaReserved]"


def placement_step(found: ExistingJob, known: AdvisorContext) -> LayerAnswer:
    """Its pods: whether every one has a node, all at once where they need each other."""
    if (sent := _sent(found, known)) is not None:
        return LayerAnswer(SchedulingLayer.PLACEMENT, LayerVerdict.UNKNOWN, _elsewhere(sent), None)
    gang = _partial_gang(found, known)
    alive = found.standing
    waiting = sorted((pod for pod in alive if pod.is_unplaced and not pod.is_gated), key=pod_since_ms)
    gated = [pod for pod in alive if pod.is_gated]
    facts = tuple(_pod_evidence(waiting))
    if gang is not None:
        held = ", ".join(f"{amount:,} {name}" for name, amount in sorted(gang.held.items()))
        stay = gang.running - gang.leaving
        has, holds = ("has", "holds") if stay == 1 else ("have", "hold")
        says = f"{stay:,} of {gang.min_members:,} pods that {_bond(gang)} {has} a node"
        if held:
            says += f", and {'with those that leave ' if gang.leaving else ''}{holds} {held} meanwhile"
        says += _leaving(found.pods)
        since_ms = gang.partial_since_ms
        shape = tuple(_shape_evidence(gang, found))
        facts = (*shape, *_gang_evidence(found), *facts)
        return LayerAnswer(SchedulingLayer.PLACEMENT, LayerVerdict.HOLDS, says, since_ms, facts)
    if waiting:
        bound, least = sum(pod.is_bound for pod in alive), _minimum(found)
        who = f"{len(waiting):,} of its {len(alive):,} pods have" if len(alive) > 1 else "its pod has"
        says = f"{who} no node: {_said(waiting[0])}"
        if bound and least is not None:
            says += (
                f"; {bound:,} run and hold their GPUs, because {least:,} are its minimum, fewer than it wants"
            )
        says += _leaving(found.pods)
        since_ms = min(map(pod_since_ms, waiting))
        return LayerAnswer(
            SchedulingLayer.PLACEMENT, LayerVerdict.HOLDS, says, since_ms, (*_gang_evidence(found), *facts)
        )
    if gated:
        names = ", ".join(sorted({gate for pod in gated for gate in pod.gates}))
        one = "pod is" if len(gated) == 1 else "pods are"
        says = f"{len(gated):,} {one} held back by scheduling gates: {names}"
        return LayerAnswer(
            SchedulingLayer.PLACEMENT, LayerVerdict.UNKNOWN, says, min(pod.meta.created_ms for pod in gated)
        )
    if not alive:
        says = f"it has no pods now{_leaving(found.pods)}"
        return LayerAnswer(SchedulingLayer.PLACEMENT, LayerVerdict.UNKNOWN, says, None)
    nodes = sorted({pod.node for pod in alive})
    since_ms = max((pod.bound_ms for pod in alive if pod.bound_ms is not None), default=None)
    says = f"all its {len(alive):,} pods have nodes ({', '.join(nodes[:3])}{', …' if len(nodes) > 3 else ''})"
    says += _leaving(found.pods)
    return LayerAnswer(SchedulingLayer.PLACEMENT, LayerVerdict.PASSED, says, since_ms)


def device_step(found: ExistingJob, known: AdvisorContext) -> LayerAnswer:
    """Its nodes: whether they have the devices, and its pods can be started with them."""
    if (sent := _sent(found, known)) is not None:
        return LayerAnswer(SchedulingLayer.DEVICE, LayerVerdict.UNKNOWN, _elsewhere(sent), None)
    pods = _still_there(found)
    broken = [
        pod
        for pod in pods
        if (pod.stuck in DEVICE_ERRORS and not pod.has_ended) or (pod.has_ended and pod.stuck == REFUSED)
    ]
    if broken:
        names = sorted({pod.stuck for pod in broken})
        says = f"{len(broken):,} of its pods cannot be started on their nodes: {', '.join(names)}"
        facts = tuple(
            AdviceEvidence(f"pod/{pod.meta.name}", "status", pod.stuck, f"on node {pod.node}")
            for pod in broken[:MOST_PODS]
        )
        since_ms = min(pod.bound_ms or pod.meta.created_ms for pod in broken)
        return LayerAnswer(SchedulingLayer.DEVICE, LayerVerdict.HOLDS, says, since_ms, facts)
    waiting = [pod for pod in pods if pod.is_unplaced and not pod.is_gated]
    if waiting:
        return _of_nodes(waiting, known)
    lost = sorted({pod.node for pod in pods if pod.is_bound and not _is_ready(known, pod.node)})
    if lost:
        says = f"nodes of its pods are not ready: {', '.join(lost[:3])}"
        facts = tuple(
            AdviceEvidence(f"node/{name}", "status.conditions[Ready]", "not True", "its pods do not run on")
            for name in lost[:MOST_PODS]
        )
        node = known.state.node_by_name.get(lost[0])
        return LayerAnswer(
            SchedulingLayer.DEVICE,
            LayerVerdict.HOLDS,
            says,
            node.ready_since_ms if node is not None else None,
            facts,
        )
    if not any(pod.is_bound for pod in pods):
        return LayerAnswer(SchedulingLayer.DEVICE, LayerVerdict.UNKNOWN, "it has no pods on nodes", None)
    return LayerAnswer(
        SchedulingLayer.DEVICE, LayerVerdict.PASSED, "its nodes are ready and its devices were given", None
    )


def running_step(found: ExistingJob, known: AdvisorContext) -> LayerAnswer:
    """Its containers: whether they run, and use what they hold."""
    if (sent := _sent(found, known)) is not None:
        return LayerAnswer(SchedulingLayer.RUNNING, LayerVerdict.UNKNOWN, _elsewhere(sent), None)
    bound = [pod for pod in _still_there(found) if pod.is_bound]
    if not bound:
        ended = [pod for pod in found.pods if pod.has_ended]
        says = "it has ended" if ended else "it does not run"
        failed = sum(pod.phase is PodPhase.FAILED for pod in ended)
        if failed:
            says = f"it has ended; {failed:,} of its pods failed"
        return LayerAnswer(SchedulingLayer.RUNNING, LayerVerdict.UNKNOWN, says, None)
    stuck = [pod for pod in bound if pod.stuck and pod.stuck not in DEVICE_ERRORS and pod.ready_ms is None]
    if stuck:
        names = sorted({pod.stuck for pod in stuck})
        says = f"{len(stuck):,} of its {len(bound):,} pods are on nodes and do not run: {', '.join(names)}"
        facts = tuple(
            AdviceEvidence(
                f"pod/{pod.meta.name}", "status.containerStatuses", pod.stuck, f"on node {pod.node}"
            )
            for pod in stuck[:MOST_PODS]
        )
        since_ms = min((pod.bound_ms or pod.meta.created_ms for pod in stuck), default=None)
        return LayerAnswer(SchedulingLayer.RUNNING, LayerVerdict.HOLDS, says, since_ms, facts)
    troubles = known.troubles(found.job.uid) if known.troubles is not None else None
    since_ms = max((pod.bound_ms for pod in bound if pod.bound_ms is not None), default=None)
    if troubles is None:
        says = "its pods run; how well it uses its GPUs is not known here (the service knows)"
        return LayerAnswer(SchedulingLayer.RUNNING, LayerVerdict.PASSED, says, since_ms)
    if troubles:
        facts = tuple(
            AdviceEvidence(f"finding/{each.id}", each.rule, each.says, each.action) for each in troubles
        )
        says = f"it runs, and not well: {troubles[0].says}"
        return LayerAnswer(SchedulingLayer.RUNNING, LayerVerdict.HOLDS, says, troubles[0].since_ms, facts)
    says = "its pods run, and nothing is found against how it uses its GPUs"
    return LayerAnswer(SchedulingLayer.RUNNING, LayerVerdict.PASSED, says, since_ms)


def _sent(found: ExistingJob, known: AdvisorContext) -> WorkloadDispatch | None:
    """To which clusters MultiKueue sent it."""
    workload = found.workload
    return None if workload is None else known.overview.dispatches.get(workload.meta.uid)


def _elsewhere(sent: WorkloadDispatch) -> str:
    is_there = sent.stage is DispatchStage.ASSIGNED
    where = f"are on cluster {sent.clusters[0]}" if is_there else "will be on another cluster"
    return f"its pods {where} (MultiKueue), which knows more of them"


def _partial_gang(found: ExistingJob, known: AdvisorContext) -> PodGang | None:
    return next(
        (each for each in known.overview.gangs if each.job.uid == found.job.uid and each.is_partial), None
    )


def _bond(gang: PodGang) -> str:
    """Whether something makes them start together, or their shape only says that they need each other."""
    return "need each other" if gang.kind is GangKind.JOB else "must run together"


def _shape_evidence(gang: PodGang, found: ExistingJob) -> Iterator[AdviceEvidence]:
    """Why pods without a PodGroup or workload are taken to need each other."""
    job = found.object
    if gang.kind is not GangKind.JOB or job is None:
        return
    name = f"{job.kind.lower()}/{job.meta.name}"
    if job.job_kind is JobKind.JOB:
        meaning = (
            "as many completions as parallelism: each pod has a part of its own; nothing starts them together"
        )
        yield AdviceEvidence(name, "spec.completionMode", "Indexed", meaning)
    else:
        meaning = f"worked out: pods of a {job.kind} work together; nothing starts them together"
        yield AdviceEvidence(name, "", str(gang.min_members), meaning)


def _minimum(found: ExistingJob) -> int | None:
    """With how few pods it starts, where that is below what it wants; None where no object says."""
    wanted = found.object.pods_wanted if found.object is not None else 0
    fewest = [each.min_member for each in found.groups]
    if not fewest and found.object is not None and found.object.gang_size is not None:
        fewest = [found.object.gang_size]
    least = min(fewest, default=wanted)
    return least if least < wanted else None


def _gang_evidence(found: ExistingJob) -> Iterator[AdviceEvidence]:
    wanted = found.object.pods_wanted if found.object is not None else None
    for group in found.groups:
        below = wanted is not None and group.min_member < wanted
        meaning = (
            f"below the {wanted:,} pods it wants: it starts with part of them" if below else "all it needs"
        )
        yield AdviceEvidence(f"podgroup/{group.meta.name}", "spec.minMember", str(group.min_member), meaning)


def _pod_evidence(pods: Iterable[Pod]) -> Iterator[AdviceEvidence]:
    for pod in list(pods)[:MOST_PODS]:
        said = pod.waiting.message if pod.waiting is not None else ""
        yield AdviceEvidence(
            f"pod/{pod.meta.name}",
            "status.conditions[PodScheduled]",
            pod_reason(pod),
            said or "nothing said yet",
        )


def _still_there(found: ExistingJob) -> tuple[Pod, ...]:
    """Without those that are being deleted; with them while nothing has taken their place."""
    return tuple(pod for pod in found.pods if not pod.is_leaving) if found.standing else found.pods


def _leaving(pods: Iterable[Pod]) -> str:
    count = sum(pod.is_leaving for pod in pods)
    if not count:
        return ""
    return f"; {count:,} {'pod is' if count == 1 else 'pods are'} being deleted"


def _said(pod: Pod) -> str:
    return (pod.waiting.message if pod.waiting is not None else "") or pod_reason(pod)


def _of_nodes(waiting: Iterable[Pod], known: AdvisorContext) -> LayerAnswer:
    """Whether nodes would take its pods if they advertised all their GPUs."""
    free = known.free_nodes
    for pod in waiting:
        node = free.would_fit(pod.template) if not free.fits(pod.template) else None
        if node is None:
            continue
        overview = known.overview
        short = lacking(node, overview.published_on(node), overview.catalog)
        said = ", ".join(f"{amount} {name}" for name, amount in sorted(short.items()))
        says = f"would fit node {node.meta.name} if it advertised all its GPUs: {said} missing"
        facts = tuple(
            AdviceEvidence(
                f"node/{node.meta.name}",
                f"status.allocatable[{name}]",
                str(node.allocatable.get(name, 0)),
                f"{amount} fewer than its hardware has",
            )
            for name, amount in sorted(short.items())
        )
        return LayerAnswer(SchedulingLayer.DEVICE, LayerVerdict.HOLDS, says, pod_since_ms(pod), facts)
    return LayerAnswer(SchedulingLayer.DEVICE, LayerVerdict.UNKNOWN, "its pods have no nodes yet", None)


def _is_ready(known: AdvisorContext, name: str) -> bool:
    node = known.state.node_by_name.get(name)
    return node is None or node.is_ready


ADMISSION_GATE = "kueue.x-k8s.io/admission"
"""Kueue takes it from pods when their workload is admitted (kueue v0.19.2, pkg/controller/jobs/pod)."""


def quota_step(found: ExistingJob, known: AdvisorContext) -> LayerAnswer:
    """Its queue: whether it has quota, or is let in."""
    workload, sent = found.workload, _sent(found, known)
    if workload is not None and sent is not None:
        return _of_dispatch(workload, sent)
    if workload is not None:
        return _of_workload(workload, known)
    if found.of_volcano is not None:
        return _of_group(found.of_volcano)
    return _of_gates(found) or _of_suspended(found, known) or _of_no_workload(found, known)


def _of_workload(workload: Workload, known: AdvisorContext) -> LayerAnswer:
    name = f"workload/{workload.meta.name}"
    match workload.state:
        case WorkloadState.PENDING:
            return _pending(workload, known)
        case WorkloadState.RESERVED:
            return _not_admitted(workload)
        case WorkloadState.EVICTING:
            evicted = workload.conditions["Evicted"]
            fact = AdviceEvidence(name, "status.conditions[Evicted]", evicted.reason, evicted.message)
            says = f"it is being evicted: {evicted.reason}"
            return LayerAnswer(SchedulingLayer.QUOTA, LayerVerdict.HOLDS, says, evicted.since_ms, (fact,))
        case WorkloadState.INACTIVE:
            return _inactive(workload)
        case WorkloadState.FINISHED:
            return LayerAnswer(
                SchedulingLayer.QUOTA, LayerVerdict.PASSED, "it has finished", workload.finished_ms
            )
        case _:
            says = f"admitted in ClusterQueue {workload.cluster_queue}"
            return LayerAnswer(SchedulingLayer.QUOTA, LayerVerdict.PASSED, says, workload.admitted_ms)


def _not_admitted(workload: Workload) -> LayerAnswer:
    """It has quota; what Kueue waits for, as far as its object has it."""
    (reason, said), has = checks_reason(workload), f"it has quota in {workload.cluster_queue}"
    rejected = [each.name for each in open_checks(workload) if each.state == REJECTED]
    if rejected:
        says = f"{has}, and Kueue deactivates it, as it was rejected by an admission check: {said}"
    elif open_checks(workload):
        says = f"{has} and waits for its admission checks: {said}"
    elif reason == TOPOLOGY_OUTSTANDING:
        says = f"{has} and waits for its topology assignment"
    else:
        says = f"{has}; {NOT_YET}"
    facts = tuple(reserved_evidence(workload))
    return LayerAnswer(SchedulingLayer.QUOTA, LayerVerdict.HOLDS, says, workload.reserved_ms, facts)


def _of_dispatch(workload: Workload, sent: WorkloadDispatch) -> LayerAnswer:
    """Of MultiKueue's manager: its quota here, and where it waits or runs."""
    name, where = f"workload/{workload.meta.name}", ", ".join(sent.clusters)
    has = f"it has quota in {workload.cluster_queue}"
    if sent.stage is DispatchStage.ASSIGNED:
        fact = AdviceEvidence(name, "status.clusterName", where, "MultiKueue runs it there")
        says = f"{has}, and runs on cluster {where} (MultiKueue)"
        since_ms = workload.admitted_ms or workload.reserved_ms
        return LayerAnswer(SchedulingLayer.QUOTA, LayerVerdict.PASSED, says, since_ms, (fact,))
    _, said = checks_reason(workload)
    facts = [*reserved_evidence(workload)]
    says = f"{has}, and MultiKueue has named no cluster yet that may run it" + (f": {said}" if said else "")
    if sent.stage is DispatchStage.NOMINATED:
        facts.append(AdviceEvidence(name, "status.nominatedClusterNames", where, "it waits in each of them"))
        says = f"{has}, and waits for one of these clusters to admit it (MultiKueue): {where}"
    return LayerAnswer(SchedulingLayer.QUOTA, LayerVerdict.HOLDS, says, workload.reserved_ms, tuple(facts))


def _pending(workload: Workload, known: AdvisorContext) -> LayerAnswer:
    reason, said = quota_reason(known.state, workload)
    held = held_back(workload, known.state.at_ms)
    says = f"LocalQueue {workload.queue} has no quota for it ({reason})"
    if reason in (QUEUE_INACTIVE, QUEUE_MISSING):
        says, held = said or says, None
    elif held is not None:
        says = held_says(held, workload, known.state.at_ms)
    elif reason == WAITING_FOR_REQUEUE:
        says = "Kueue has yet to put it back into its queue, and its time to wait is over"
    elif reason == FOR_PODS_READY:
        says = f"Kueue lets nobody in before {PODS_READY}"
    evicted = workload.conditions.get("Evicted")
    if evicted is not None and evicted.status is True:
        says += f"; it ran before and was evicted ({evicted.reason})"
    facts = (*_reserved(workload, reason, said, held), *_evicted(workload))
    return LayerAnswer(SchedulingLayer.QUOTA, LayerVerdict.HOLDS, says, workload.waiting_since_ms, facts)


def _reserved(workload: Workload, reason: str, said: str, held: HeldBack | None) -> Iterator[AdviceEvidence]:
    """What the object says of its quota, then what that means where Kueue has no word for it."""
    name, condition = f"workload/{workload.meta.name}", workload.conditions.get("QuotaReserved")
    if condition is not None:
        told = condition.message or "nothing said yet"
        yield AdviceEvidence(name, _QUOTA_RESERVED, condition.reason, told)
    if held is not None:
        yield from (each for each in held_evidence(held, workload) if each.field != _QUOTA_RESERVED)
    elif reason == WAITING_FOR_REQUEUE:
        requeued = workload.conditions["Requeued"]
        yield AdviceEvidence(name, "status.conditions[Requeued]", requeued.reason, requeued.message)
    elif condition is None or condition.reason != reason:
        same = condition is not None and said == condition.message
        of = (
            "from that" if same else f"from its queue: {said}" if said else "from what it has no word for yet"
        )
        yield AdviceEvidence(name, "", reason, f"worked out {of}")


def _inactive(workload: Workload) -> LayerAnswer:
    """Kueue deactivates workloads too: then the reason of the eviction says why."""
    name, evicted = f"workload/{workload.meta.name}", workload.conditions.get("Evicted")
    why = f" ({evicted.reason})" if evicted is not None and evicted.status is True else ""
    meaning = (
        "it does not queue until this is true; people set it, and Kueue does when it gives a workload up"
    )
    facts = (AdviceEvidence(name, "spec.active", "false", meaning), *_evicted(workload))
    says = f"it is deactivated{why}: it does not queue before spec.active of its Workload is true"
    since_ms = evicted.since_ms if why and evicted is not None else None
    return LayerAnswer(SchedulingLayer.QUOTA, LayerVerdict.HOLDS, says, since_ms, facts)


def _evicted(workload: Workload) -> Iterator[AdviceEvidence]:
    """Why it lost its quota, while it has none."""
    for each in ("Evicted", "Preempted"):
        if is_true(workload.conditions, each):
            condition = workload.conditions[each]
            meaning = condition.message or eviction_meaning(condition.reason)
            yield AdviceEvidence(
                f"workload/{workload.meta.name}", f"status.conditions[{each}]", condition.reason, meaning
            )


def _of_group(group: PodGroup) -> LayerAnswer:
    name, queue = f"podgroup/{group.meta.name}", group.queue or "default"
    if group.phase in ("", "Pending"):
        said = group.conditions.get("Unschedulable")
        fact = AdviceEvidence(
            name, "status.phase", group.phase or "none", said.message if said else "not let in yet"
        )
        says = f"Volcano's queue {queue} has not let it in"
        return LayerAnswer(SchedulingLayer.QUOTA, LayerVerdict.HOLDS, says, group.meta.created_ms, (fact,))
    return LayerAnswer(
        SchedulingLayer.QUOTA, LayerVerdict.PASSED, f"let in by Volcano's queue {queue} ({group.phase})", None
    )


def _of_gates(found: ExistingJob) -> LayerAnswer | None:
    """Pods that Kueue holds back, whose workload is not known."""
    held = [pod for pod in found.pods if ADMISSION_GATE in pod.gates and not pod.has_ended]
    if not held:
        return None
    facts = tuple(
        AdviceEvidence(
            f"pod/{pod.meta.name}",
            "spec.schedulingGates",
            ADMISSION_GATE,
            "Kueue takes it away when it lets the pod in",
        )
        for pod in held[:MOST_PODS]
    )
    one, they = ("pod waits", "it names") if len(held) == 1 else ("pods wait", "they name")
    named = f"queue {found.queue}" if found.queue else "no queue"
    says = (
        f"{len(held):,} {one} for Kueue to take the scheduling gate {ADMISSION_GATE} away; {they} {named}, "
        "and no Workload is known"
    )
    return LayerAnswer(
        SchedulingLayer.QUOTA, LayerVerdict.HOLDS, says, min(pod.meta.created_ms for pod in held), facts
    )


def _of_suspended(found: ExistingJob, known: AdvisorContext) -> LayerAnswer | None:
    """A job that makes no pods until its suspend is lifted; in a queue that is done by Kueue, through its
    Workload."""
    job = found.object
    if job is None or not job.is_suspended:
        return None
    says = unlifted(job, found.queue, known.state)
    if not says and known.state.is_unread("workloads"):
        says = f"it is suspended, and whether queue {found.queue} has a Workload of it could not be read"
        return LayerAnswer(SchedulingLayer.QUOTA, LayerVerdict.UNKNOWN, says, None)
    says = (
        says or f"it is suspended, and Kueue, whose queue {found.queue} it names, has made no Workload of it"
    )
    path = suspend_path(job.job_kind)
    value = "true" if path[0] == "spec" else "set"
    meaning = "it makes no pods while it is so"
    fact = AdviceEvidence(f"{job.kind.lower()}/{job.meta.name}", ".".join(path), value, meaning)
    return LayerAnswer(SchedulingLayer.QUOTA, LayerVerdict.HOLDS, says, None, (fact,))


def _of_no_workload(found: ExistingJob, known: AdvisorContext) -> LayerAnswer:
    """A job that is submitted to Kueue has a Workload, if Kueue manages jobs of its kind."""
    off = switched_off(found.job.kind, known.state.schedulers.kueue)
    if found.queue and off:
        says = (
            f"no queue holds it: Kueue's integration {off} is switched off, so queue {found.queue} does not"
        )
        return LayerAnswer(SchedulingLayer.QUOTA, LayerVerdict.PASSED, says, None)
    if found.queue:
        seen = "could not be read" if known.state.is_unread("workloads") else "is not there"
        says = (
            f"it names LocalQueue {found.queue}, and its Workload {seen}: whether it has quota is not known"
        )
        return LayerAnswer(SchedulingLayer.QUOTA, LayerVerdict.UNKNOWN, says, None)
    return LayerAnswer(
        SchedulingLayer.QUOTA, LayerVerdict.PASSED, "no queue holds it: it has no workload or PodGroup", None
    )
