"""The walk through the layers for a job that exists: quota, gang and placement, device, running well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gpucost.advisor.advise import advise, advise_asking
from gpucost.advisor.answers import (
    Advice,
    Decision,
    Explanation,
    Layer,
    LayerAnswer,
    Suggestion,
    Verdict,
)
from gpucost.advisor.existing import Existing, asking_of, find
from gpucost.advisor.knowledge import Knowledge
from gpucost.advisor.kueue.answer import rules_named
from gpucost.advisor.steps import device_step, placement_step, quota_step, running_step
from gpucost.advisor.suggest.ranking import suggestions
from gpucost.cluster.kueue import WorkloadState
from gpucost.cluster.manifest import JobManifest
from gpucost.cluster.overview import Overview
from gpucost.domain.errors import InputError

_STEPS: Sequence[Callable[[Existing, Knowledge], LayerAnswer]] = (
    quota_step,
    placement_step,
    device_step,
    running_step,
)


def explain(kind: str, namespace: str, name: str, known: Knowledge) -> Explanation | None:
    """Why a job does not run, or does not run well, and what to do; None where no such job is there.

    ``kind`` is a JobKind (``PyTorchJob``), ``Workload`` or ``PodGroup``, in any case.
    """
    found = find(kind, namespace, name, known)
    if found is None:
        return None
    steps = _walk(found, known)
    held = next((each for each in steps if each.verdict is Verdict.HOLDS), None)
    if held is None:
        last = next((each for each in steps if each.verdict is Verdict.UNKNOWN), steps[-1])
        return Explanation(found.subject, Layer.NONE, last.says, last.since_ms, steps)
    advice = _advice(found, held, known)
    if advice is not None:
        steps, held = _with_advice(found, steps, held, advice)
    return Explanation(
        found.subject,
        held.layer,
        f"{held.layer.value} holds it: {held.says}",
        held.since_ms,
        steps,
        _actions(found, advice, known) if advice is not None else (),
        advice,
        advice.rules if advice is not None else rules_named(known.overview),
    )


def _with_advice(
    found: Existing, steps: tuple[LayerAnswer, ...], held: LayerAnswer, advice: Advice
) -> tuple[tuple[LayerAnswer, ...], LayerAnswer]:
    """The walk with what the rules say of it, and the layer that holds it.

    That is a later one than the first that says so in two cases: a workload waits in its queue, by the rules
    has quota now, and its pods would find no nodes; or its pods find no nodes for want of devices that nodes
    should have.
    """
    cause = held
    if advice.decision in _NOT_YET and _ORDER.index(advice.layer) > _ORDER.index(held.layer):
        cause = next(each for each in steps if each.layer is advice.layer)
        if held.layer is Layer.QUOTA:
            quota = replace(held, verdict=Verdict.PASSED, says=_quota_is_there(found, advice))
            steps = tuple(quota if each is held else each for each in steps)
        if held.layer is Layer.QUOTA or cause.verdict is not Verdict.HOLDS:
            said = LayerAnswer(advice.layer, Verdict.HOLDS, advice.reason_says, held.since_ms)
            steps = tuple(said if each is cause else each for each in steps)
            cause = said
    known = {*cause.evidence}
    more = tuple(each for each in advice.evidence if each not in known)
    full = replace(cause, evidence=(*cause.evidence, *more))
    return tuple(full if each is cause else each for each in steps), full


def _walk(found: Existing, known: Knowledge) -> tuple[LayerAnswer, ...]:
    """Layers after the first that holds it are not reached, but for those that hold it as well."""
    steps: list[LayerAnswer] = []
    is_held = False
    for step in _STEPS:
        answer = step(found, known)
        if is_held and answer.verdict is not Verdict.HOLDS:
            answer = LayerAnswer(answer.layer, Verdict.NOT_REACHED, "", None)
        is_held = is_held or answer.verdict is Verdict.HOLDS
        steps.append(answer)
    return tuple(steps)


def _advice(found: Existing, held: LayerAnswer, known: Knowledge) -> Advice | None:
    """What the advisor says of it now; None where it asks for nothing any more."""
    if held.layer is Layer.RUNNING:
        return None
    workload = found.workload
    if workload is not None and workload.state is WorkloadState.FINISHED:
        return None
    return advise_asking(asking_of(found, known), known)


def _actions(found: Existing, advice: Advice, known: Knowledge) -> tuple[Suggestion, ...]:
    """Changes that would make it run if it were submitted again with them: it and its pods are taken out of
    the cluster, and its manifest is asked about."""
    if found.object is None or known.write is None or known.read_new is None:
        return ()
    apart = without(found, known)
    try:
        document = known.write(found.object, found.workload, found.of_volcano)
        manifest = known.read_new(document)
    except InputError:
        return ()
    again = advise(manifest, apart, with_suggestions=False)
    base = advice if again.decision is Decision.NOW else again
    return suggestions(manifest, base, apart, _again)


def _again(manifest: JobManifest, known: Knowledge) -> Advice:
    return advise(manifest, known, with_suggestions=False)


def without(found: Existing, known: Knowledge) -> Knowledge:
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
    overview = known.overview
    return replace(known, overview=Overview(left, overview.catalog, overview.owner_keys))
