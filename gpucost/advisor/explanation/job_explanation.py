"""The walk through the layers for a job that exists: quota, gang and placement, device, running well.

``explain`` is the walk. ``end_of`` says how a job ended, as its Workload, its status or its pods report it.
``actions`` says what to do about it: suggestions for its manifest, as if it were submitted again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace

from gpucost.advisor.advise import advise_asking, ask_again
from gpucost.advisor.explanation.layer_steps import (
    MOST_PODS,
    device_step,
    placement_step,
    quota_step,
    running_step,
)
from gpucost.advisor.kueue.answer import rules_drift, rules_named
from gpucost.advisor.kueue.messages import hold_of
from gpucost.advisor.model.answers import (
    Advice,
    AdviceEvidence,
    Explanation,
    JobSuggestion,
    LayerAnswer,
    LayerVerdict,
    SchedulingDecision,
    SchedulingLayer,
    SuggestedChangeKind,
)
from gpucost.advisor.placement.repaired_nodes import NODES_UNUSABLE
from gpucost.advisor.request.context import AdvisorContext
from gpucost.advisor.request.scheduling_request import (
    ExistingJob,
    find_job,
    request_from_job,
    whole_of,
)
from gpucost.advisor.suggest.candidates import (
    RANK,
    is_clearly_less,
    is_longer,
    is_shorter,
)
from gpucost.advisor.suggest.patches import merge_patch, operations, patched
from gpucost.advisor.suggest.ranking import RULES, suggestions
from gpucost.advisor.suggest.repairs import activation
from gpucost.cluster.objects.jobs import JobManifest
from gpucost.cluster.objects.kueue import Workload, WorkloadState
from gpucost.cluster.objects.pods import PodPhase
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.domain.errors import InputError
from gpucost.domain.jobs import JobKind
from gpucost.domain.time import DAY_MS, EARLIEST_MS

_GANG = "gang"
"""Name of the rule: start whole or not at all."""
_SMALLER = frozenset(("min-count", "fewer-gpus-per-pod", "fewer-pods"))
"""Rules after which the job does less at a time than it was made for."""
_OF_QUOTA = ("QuotaReserved", "Admitted")
_GIVEN_BACK = "it has given its quota back"


def actions(found: ExistingJob, known: AdvisorContext, outlook: Advice) -> tuple[JobSuggestion, ...]:
    """Changes with which it would run if it were submitted again: it and its pods are taken out of the
    cluster, and its manifest is asked about. None where its manifest cannot be made from what is known.

    ``outlook`` is the advice for the job as it stands, with what it holds already: only what is better than
    that is given. A Volcano job that has started in part, as its minimum lets it, is asked about with all its
    pods as the minimum: to start in part again is no help.

    The soonest come first; of those that do equally well, those that leave the job what it is before smaller
    jobs, and then those for the author of the job before those for administrators.
    """
    manifest = _manifest(found, known)
    if manifest is None:
        return ()
    most = known.settings.most_suggestions
    all_of_them = replace(known.settings, most_suggestions=len(RULES) if most else 0)
    apart = replace(without(found, known), settings=all_of_them)
    suggested = _suggested(manifest, apart)
    whole = _started_whole(found, manifest, known)
    if whole is not None:
        gang = [each for each in suggested if each.rule == _GANG]
        suggested = (*gang, *_rebased(_suggested(whole, apart), whole, manifest))
    better = (each for each in suggested if _is_better(each, outlook))
    return tuple(sorted(better, key=_order)[:most])


def activations(found: ExistingJob, known: AdvisorContext) -> tuple[JobSuggestion, ...]:
    """To let a deactivated workload queue again, with what the advisor says of it once it does. None where
    it is not deactivated, and where it would never run then either."""
    workload = found.workload
    is_off = workload is not None and workload.state is WorkloadState.INACTIVE
    if workload is None or not is_off or known.settings.most_suggestions < 1:
        return ()
    answer = advise_asking(request_from_job(found, known), known)
    if answer.decision in (SchedulingDecision.NEVER, SchedulingDecision.UNKNOWN):
        return ()
    says = f"set spec.active of Workload {workload.meta.name} to true, so that it queues again"
    caveat = "somebody, or Kueue itself, deactivated it for a reason: see what its Workload says first"
    return (JobSuggestion.of("activate", says, activation(workload), answer, caveat),)


def without(found: ExistingJob, known: AdvisorContext) -> AdvisorContext:
    """The cluster without a job: as if it had never been submitted."""
    state = known.state
    pods, own = {each.meta.uid for each in found.pods}, {each.meta.uid for each in found.workloads}
    groups = {each.meta.uid for each in found.groups}
    left = replace(
        state,
        pods={uid: pod for uid, pod in state.pods.items() if uid not in pods},
        workloads={uid: each for uid, each in state.workloads.items() if uid not in own},
        pod_groups={uid: each for uid, each in state.pod_groups.items() if uid not in groups},
    )
    return _with_state(known, left)


def _with_state(known: AdvisorContext, state: ClusterState) -> AdvisorContext:
    overview = known.overview
    return replace(known, overview=ClusterOverview(state, overview.catalog, overview.owner_keys))


def _manifest(found: ExistingJob, known: AdvisorContext) -> JobManifest | None:
    if found.object is None or known.write is None or known.read_new is None:
        return None
    try:
        return known.read_new(known.write(found.object, found.workload, found.of_volcano))
    except InputError:
        return None


def _suggested(manifest: JobManifest, known: AdvisorContext) -> tuple[JobSuggestion, ...]:
    return suggestions(manifest, ask_again(manifest, known, True), known, ask_again)


def _started_whole(found: ExistingJob, manifest: JobManifest, known: AdvisorContext) -> JobManifest | None:
    """With all its pods as its minimum; None where that is so already, and where none or all of them run."""
    job = manifest.job
    bound = sum(pod.is_bound for pod in found.pods)
    waits = any(pod.is_unplaced for pod in found.pods)
    has_started = job.job_kind is JobKind.VOLCANO_JOB and bound and waits
    if not has_started or job.gang_size is None or job.gang_size >= job.pods_wanted:
        return None
    document = deepcopy(dict(manifest.document))
    document["spec"]["minAvailable"] = job.pods_wanted
    return known.read(manifest, document)


def _rebased(found: Sequence[JobSuggestion], on: JobManifest, onto: JobManifest) -> Iterator[JobSuggestion]:
    """Changes of one manifest as changes of the other, from which that was made."""
    for each in found:
        if each.change.kind is SuggestedChangeKind.MANIFEST:
            after = patched(on.document, each.change.operations)
            change = replace(
                each.change,
                patch=merge_patch(onto.document, after),
                operations=tuple(operations(onto.document, after)),
            )
            yield replace(each, change=change)
        else:
            yield each


def _is_better(suggestion: JobSuggestion, outlook: Advice) -> bool:
    """Sooner, or no later and cheaper without doing less at a time, or whole where it started in part."""
    if outlook.decision not in RANK:
        return True
    mine, now = RANK[suggestion.decision], RANK[outlook.decision]
    if mine != now:
        return mine < now or suggestion.rule == _GANG
    if suggestion.decision is not SchedulingDecision.WAITS:
        return True
    if is_longer(suggestion.wait, outlook.wait):
        return False
    if suggestion.rule == _GANG or is_shorter(suggestion.wait, outlook.wait):
        return True
    if suggestion.rule in _SMALLER or suggestion.price_per_hour is None or outlook.price is None:
        return False
    return is_clearly_less(suggestion.price_per_hour, outlook.price.per_hour)


def _order(suggestion: JobSuggestion) -> tuple[int, bool, bool]:
    is_for_admins = suggestion.change.kind is SuggestedChangeKind.CLUSTER
    return RANK[suggestion.decision], suggestion.rule in _SMALLER, is_for_admins


def end_of(found: ExistingJob) -> LayerAnswer | None:
    """That it has ended, so that no layer has to be asked any more; None where it has not, or where no object
    records its end.

    Of a job: what its Workload says, else its status. Of plain pods: that all of them have ended.
    """
    job, workload = found.object, found.workload
    if workload is not None and workload.state is WorkloadState.FINISHED:
        said = workload.conditions["Finished"]
        fact = AdviceEvidence(
            f"workload/{workload.meta.name}", "status.conditions[Finished]", said.reason, said.message
        )
        how = f"it has finished ({said.reason or 'Finished'})"
        how += f": {said.message}" if said.message else ""
        return _end(how, said.reason == "Failed", workload.finished_ms, fact)
    if job is not None and job.ended_ms is not None:
        counted = [
            AdviceEvidence(
                f"{job.kind.lower()}/{job.meta.name}", f"status.{name}", f"{amount:,}", f"pods that {name}"
            )
            for name, amount in (("succeeded", job.succeeded), ("failed", job.failed))
            if amount
        ]
        if bool(job.failed) == bool(job.succeeded):
            return _end("it has ended", False, job.ended_ms, *counted)
        return _end(
            "it has failed" if job.failed else "it is complete", bool(job.failed), job.ended_ms, *counted
        )
    if job is None and found.pods and all(pod.has_ended for pod in found.pods):
        failed = [pod for pod in found.pods if pod.phase is PodPhase.FAILED]
        facts = [
            AdviceEvidence(f"pod/{pod.meta.name}", "status.phase", pod.phase.value, "it has ended")
            for pod in (failed or found.pods)[:MOST_PODS]
        ]
        times = [pod.ended_ms for pod in found.pods if pod.ended_ms is not None]
        how = "it has failed" if failed else "it is complete"
        return _end(how, bool(failed), max(times, default=None), *facts)
    return None


def _end(says: str, has_failed: bool, since_ms: int | None, *facts: AdviceEvidence) -> LayerAnswer:
    verdict = LayerVerdict.UNKNOWN if has_failed else LayerVerdict.PASSED
    return LayerAnswer(SchedulingLayer.RUNNING, verdict, says, since_ms, facts)


_STEPS: Sequence[Callable[[ExistingJob, AdvisorContext], LayerAnswer]] = (
    quota_step,
    placement_step,
    device_step,
    running_step,
)
_INWARDS = (
    SchedulingLayer.NONE,
    SchedulingLayer.QUOTA,
    SchedulingLayer.PLACEMENT,
    SchedulingLayer.DEVICE,
    SchedulingLayer.RUNNING,
)


def explain(kind: str, namespace: str, name: str, known: AdvisorContext) -> Explanation | None:
    """Why a job does not run, or does not run well, and what to do; None where no such job is there.

    ``kind`` is a JobKind (``PyTorchJob``), ``Workload`` or ``PodGroup``, in any case.
    """
    found = find_job(kind, namespace, name, known)
    if found is None:
        return None
    end = end_of(found)
    if end is not None:
        return _ended(found, _dated(end, known))
    steps = _walk(found, known)
    held = next((each for each in steps if each.verdict is LayerVerdict.HOLDS), None)
    if held is None:
        last = next((each for each in steps if each.verdict is LayerVerdict.UNKNOWN), steps[-1])
        return Explanation(found.subject, SchedulingLayer.NONE, last.says, last.since_ms, steps)
    advice = _advice(found, held, known)
    if advice is not None:
        steps, held = _with_advice(found, steps, held, advice, known)
    return Explanation(
        found.subject,
        held.layer,
        f"{held.layer.value} holds it: {held.says}",
        held.since_ms,
        steps,
        actions(found, known, advice) if advice is not None else activations(found, known),
        advice,
        advice.rules if advice is not None else rules_named(known.overview),
        drift=advice.drift if advice is not None else rules_drift(known.overview),
    )


def _ended(found: ExistingJob, end: LayerAnswer) -> Explanation:
    """No layer holds a job that has ended: only how it ended is reported."""
    inner = (SchedulingLayer.QUOTA, SchedulingLayer.PLACEMENT, SchedulingLayer.DEVICE)
    before = [LayerAnswer(each, LayerVerdict.NOT_REACHED, "", None) for each in inner]
    return Explanation(found.subject, SchedulingLayer.NONE, end.says, end.since_ms, (*before, end))


def _with_advice(
    found: ExistingJob,
    steps: tuple[LayerAnswer, ...],
    held: LayerAnswer,
    advice: Advice,
    known: AdvisorContext,
) -> tuple[tuple[LayerAnswer, ...], LayerAnswer]:
    """The walk with what the rules say of it, and the layer that holds it.

    That is a later layer than the first that holds it in two cases: a workload waits in its queue, by the
    rules has quota now, and its pods would find no nodes; or its pods find no nodes for want of devices that
    nodes should have.
    """
    cause = held
    if _is_later(advice, held) and _may_pass(found, held):
        cause = next(each for each in steps if each.layer is advice.layer)
        if held.layer is SchedulingLayer.QUOTA:
            quota = replace(held, verdict=LayerVerdict.PASSED, says=_quota_is_there(found, advice, known))
            steps = tuple(quota if each is held else each for each in steps)
        if held.layer is SchedulingLayer.QUOTA or cause.verdict is not LayerVerdict.HOLDS:
            said = LayerAnswer(advice.layer, LayerVerdict.HOLDS, _reason(advice), held.since_ms)
            steps = tuple(said if each is cause else each for each in steps)
            cause = said
    told = {(each.object, each.field) for each in cause.evidence}
    more = [each for each in advice.evidence if (each.object, each.field) not in told]
    full = replace(cause, evidence=(*cause.evidence, *more))
    return tuple(full if each is cause else each for each in steps), full


def _is_later(advice: Advice, held: LayerAnswer) -> bool:
    """Whether the rules find it held in a layer further in."""
    is_known = advice.decision in (
        SchedulingDecision.WAITS,
        SchedulingDecision.NEVER,
        SchedulingDecision.LATER,
    )
    return is_known and _INWARDS.index(advice.layer) > _INWARDS.index(held.layer)


def _may_pass(found: ExistingJob, held: LayerAnswer) -> bool:
    """Whether the quota layer may be passed: only where the job merely waits there, not where it is stopped,
    checked or evicted."""
    if held.layer is not SchedulingLayer.QUOTA or found.workload is None:
        return True
    return found.workload.state is WorkloadState.PENDING


def _quota_is_there(found: ExistingJob, advice: Advice, known: AdvisorContext) -> str:
    hold = hold_of(found.workload, known.state) if found.workload is not None else None
    waits = "it waits to be let in, and" if hold is None else f"{hold.says};"
    where = f" in queue {advice.queue}" if advice.queue else ""
    count = sum(not each.is_of_scheduler for each in advice.victims)
    who = f", once {count:,} workload{'s have' if count > 1 else ' has'} left for it" if count else ""
    return f"{waits} by the rules quota{where} is there for it{who}"


def _reason(advice: Advice) -> str:
    """What holds it, without the first half of the sentence, which says what happens."""
    return advice.why[0].partition(": ")[2] if advice.why else advice.says


def _dated(answer: LayerAnswer, known: AdvisorContext) -> LayerAnswer:
    """Without instants that cannot be: before gpucost existed, or later than clocks may disagree."""
    since_ms = answer.since_ms
    if since_ms is None or EARLIEST_MS <= since_ms <= known.state.at_ms + DAY_MS:
        return answer
    return replace(answer, since_ms=None)


def _walk(found: ExistingJob, known: AdvisorContext) -> tuple[LayerAnswer, ...]:
    """Layers after the first that holds it are not reached, except for those that hold it as well."""
    steps: list[LayerAnswer] = []
    is_held = False
    for step in _STEPS:
        answer = _dated(step(found, known), known)
        if is_held and answer.verdict is not LayerVerdict.HOLDS:
            answer = LayerAnswer(answer.layer, LayerVerdict.NOT_REACHED, "", None)
        is_held = is_held or answer.verdict is LayerVerdict.HOLDS
        steps.append(answer)
    return tuple(steps)


def _after_eviction(found: ExistingJob, workload: Workload, known: AdvisorContext) -> Advice:
    """What the advisor says of a workload that is being evicted: asked as one that waits in its queue, with
    its quota given back and without its pods."""
    conditions = {key: each for key, each in workload.conditions.items() if key not in _OF_QUOTA}
    waits = replace(workload, conditions=conditions, cluster_queue="", assignments=(), checks=())
    uid, state, ownership = workload.meta.uid, known.state, known.overview.ownership
    pods = {key: pod for key, pod in state.pods.items() if ownership.of(pod).workload_uid != uid}
    left = _with_state(known, replace(state, pods=pods, workloads={**state.workloads, uid: waits}))
    there = replace(
        found,
        workloads=(waits,),
        pods=tuple(pod for pod in found.pods if pod.meta.uid in pods),
    )
    return advise_asking(replace(request_from_job(there, left), until=_GIVEN_BACK), left)


def _advice(found: ExistingJob, held: LayerAnswer, known: AdvisorContext) -> Advice | None:
    """What the advisor says of it now; None where it does not ask: it runs, its workload is deactivated (and
    may still have its quota), it is plain pods that Kueue evicts, and so deletes, or Kueue holds it and its
    workload is not known. The rest of a job that has some of its pods on nodes never runs where the whole
    never would, even on its own nodes, and waits for nodes to come back where the whole would."""
    if held.layer is SchedulingLayer.RUNNING:
        return None
    workload = found.workload
    if workload is not None and not workload.is_active:
        return None
    if workload is not None and workload.state is WorkloadState.EVICTING:
        return None if found.job.kind is JobKind.POD else _after_eviction(found, workload, known)
    asking = request_from_job(found, known)
    if (
        held.layer is SchedulingLayer.QUOTA
        and workload is None
        and asking.gang is None
        and asking.refused is None
    ):
        return None
    advice = advise_asking(asking, known)
    whole = whole_of(found, asking, known)
    if whole is None or advice.decision is not SchedulingDecision.WAITS:
        return advice
    again = advise_asking(whole, known)
    is_of_nodes = again.reason == NODES_UNUSABLE and again.wait is None
    return again if again.decision is SchedulingDecision.NEVER or is_of_nodes else advice
