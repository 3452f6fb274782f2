"""The walk through the layers for a job that exists: quota, gang and placement, device, running well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gpucost.advisor.actions import actions, activations
from gpucost.advisor.advise import advise_asking
from gpucost.advisor.answers import (
    Advice,
    Decision,
    Explanation,
    Layer,
    LayerAnswer,
    Verdict,
)
from gpucost.advisor.ended import end_of
from gpucost.advisor.existing import Existing, asking_of, find, whole_of
from gpucost.advisor.knowledge import Knowledge
from gpucost.advisor.kueue.answer import rules_named
from gpucost.advisor.placement.mended import NODES_UNUSABLE
from gpucost.advisor.quota_step import quota_step
from gpucost.advisor.steps import device_step, placement_step, running_step
from gpucost.cluster.kueue import WorkloadState
from gpucost.domain.time import DAY_MS, EARLIEST_MS

_STEPS: Sequence[Callable[[Existing, Knowledge], LayerAnswer]] = (
    quota_step,
    placement_step,
    device_step,
    running_step,
)
_INWARDS = (Layer.NONE, Layer.QUOTA, Layer.PLACEMENT, Layer.DEVICE, Layer.RUNNING)


def explain(kind: str, namespace: str, name: str, known: Knowledge) -> Explanation | None:
    """Why a job does not run, or does not run well, and what to do; None where no such job is there.

    ``kind`` is a JobKind (``PyTorchJob``), ``Workload`` or ``PodGroup``, in any case.
    """
    found = find(kind, namespace, name, known)
    if found is None:
        return None
    end = end_of(found)
    if end is not None:
        return _ended(found, _dated(end, known))
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
        actions(found, known, advice) if advice is not None else activations(found, known),
        advice,
        advice.rules if advice is not None else rules_named(known.overview),
    )


def _ended(found: Existing, end: LayerAnswer) -> Explanation:
    """Nothing holds what has ended: only how it ended is told."""
    inner = (Layer.QUOTA, Layer.PLACEMENT, Layer.DEVICE)
    before = [LayerAnswer(each, Verdict.NOT_REACHED, "", None) for each in inner]
    return Explanation(found.subject, Layer.NONE, end.says, end.since_ms, (*before, end))


def _with_advice(
    found: Existing, steps: tuple[LayerAnswer, ...], held: LayerAnswer, advice: Advice
) -> tuple[tuple[LayerAnswer, ...], LayerAnswer]:
    """The walk with what the rules say of it, and the layer that holds it.

    That is a later one than the first that says so in two cases: a workload waits in its queue, by the rules
    has quota now, and its pods would find no nodes; or its pods find no nodes for want of devices that nodes
    should have.
    """
    cause = held
    if _is_later(advice, held) and _may_pass(found, held):
        cause = next(each for each in steps if each.layer is advice.layer)
        if held.layer is Layer.QUOTA:
            quota = replace(held, verdict=Verdict.PASSED, says=_quota_is_there(advice))
            steps = tuple(quota if each is held else each for each in steps)
        if held.layer is Layer.QUOTA or cause.verdict is not Verdict.HOLDS:
            said = LayerAnswer(advice.layer, Verdict.HOLDS, _reason(advice), held.since_ms)
            steps = tuple(said if each is cause else each for each in steps)
            cause = said
    told = {(each.object, each.field) for each in cause.evidence}
    more = [each for each in advice.evidence if (each.object, each.field) not in told]
    full = replace(cause, evidence=(*cause.evidence, *more))
    return tuple(full if each is cause else each for each in steps), full


def _is_later(advice: Advice, held: LayerAnswer) -> bool:
    """Whether the rules see what holds it in a layer further in."""
    is_known = advice.decision in (Decision.WAITS, Decision.NEVER, Decision.LATER)
    return is_known and _INWARDS.index(advice.layer) > _INWARDS.index(held.layer)


def _may_pass(found: Existing, held: LayerAnswer) -> bool:
    """Of the quota layer only what merely waits there: not what is stopped, checked or evicted."""
    if held.layer is not Layer.QUOTA or found.workload is None:
        return True
    return found.workload.state is WorkloadState.PENDING


def _quota_is_there(advice: Advice) -> str:
    where = f" in queue {advice.queue}" if advice.queue else ""
    count = sum(not each.is_of_scheduler for each in advice.victims)
    who = f", once {count:,} workload{'s have' if count > 1 else ' has'} left for it" if count else ""
    return f"it waits to be let in, and by the rules quota{where} is there for it{who}"


def _reason(advice: Advice) -> str:
    """What holds it, without what happens."""
    return advice.why[0].partition(": ")[2] if advice.why else advice.says


def _dated(answer: LayerAnswer, known: Knowledge) -> LayerAnswer:
    """Without a time that cannot be: before gpucost knows any, or later than clocks disagree."""
    since_ms = answer.since_ms
    if since_ms is None or EARLIEST_MS <= since_ms <= known.state.at_ms + DAY_MS:
        return answer
    return replace(answer, since_ms=None)


def _walk(found: Existing, known: Knowledge) -> tuple[LayerAnswer, ...]:
    """Layers after the first that holds it are not reached, but for those that hold it as well."""
    steps: list[LayerAnswer] = []
    is_held = False
    for step in _STEPS:
        answer = _dated(step(found, known), known)
        if is_held and answer.verdict is not Verdict.HOLDS:
            answer = LayerAnswer(answer.layer, Verdict.NOT_REACHED, "", None)
        is_held = is_held or answer.verdict is Verdict.HOLDS
        steps.append(answer)
    return tuple(steps)


def _advice(found: Existing, held: LayerAnswer, known: Knowledge) -> Advice | None:
    """What the advisor says of it now; None where it does not ask: it runs, its workload is deactivated, or
    Kueue holds it and nobody knows by which workload. The rest of a job that has
    some of its pods on nodes never runs where the whole never would, even on its own nodes, and waits for
    nodes to come back where the whole would."""
    if held.layer is Layer.RUNNING:
        return None
    workload = found.workload
    if workload is not None and workload.state is WorkloadState.INACTIVE:
        return None
    asking = asking_of(found, known)
    if held.layer is Layer.QUOTA and workload is None and asking.gang is None and asking.refused is None:
        return None
    advice = advise_asking(asking, known)
    whole = whole_of(found, asking, known)
    if whole is None or advice.decision is not Decision.WAITS:
        return advice
    again = advise_asking(whole, known)
    is_of_nodes = again.reason == NODES_UNUSABLE and again.wait is None
    return again if again.decision is Decision.NEVER or is_of_nodes else advice
