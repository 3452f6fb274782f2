"""One layer of the walk each: what it says of a job that exists. Quota: ``quota_step``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpucost.advisor.answers import Evidence, Layer, LayerAnswer, Verdict
from gpucost.advisor.existing import Existing
from gpucost.advisor.knowledge import Knowledge
from gpucost.cluster.fit import lacking
from gpucost.cluster.gangs import Gang
from gpucost.cluster.pods import Pod, PodPhase
from gpucost.cluster.waiting import DEVICE_ERRORS, REFUSED, pod_reason, pod_since_ms
from gpucost.contract.queue_metrics import GangKind
from gpucost.domain.jobs import JobKind

_MOST_PODS = 3


def placement_step(found: Existing, known: Knowledge) -> LayerAnswer:
    """Its pods: does every one have a node, all that must be there at once?"""
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
        return LayerAnswer(Layer.PLACEMENT, Verdict.HOLDS, says, since_ms, facts)
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
        return LayerAnswer(Layer.PLACEMENT, Verdict.HOLDS, says, since_ms, (*_gang_evidence(found), *facts))
    if gated:
        names = ", ".join(sorted({gate for pod in gated for gate in pod.gates}))
        one = "pod is" if len(gated) == 1 else "pods are"
        says = f"{len(gated):,} {one} held back by scheduling gates: {names}"
        return LayerAnswer(Layer.PLACEMENT, Verdict.UNKNOWN, says, min(pod.meta.created_ms for pod in gated))
    if not alive:
        says = f"it has no pods now{_leaving(found.pods)}"
        return LayerAnswer(Layer.PLACEMENT, Verdict.UNKNOWN, says, None)
    nodes = sorted({pod.node for pod in alive})
    since_ms = max((pod.bound_ms for pod in alive if pod.bound_ms is not None), default=None)
    says = f"all its {len(alive):,} pods have nodes ({', '.join(nodes[:3])}{', …' if len(nodes) > 3 else ''})"
    says += _leaving(found.pods)
    return LayerAnswer(Layer.PLACEMENT, Verdict.PASSED, says, since_ms)


def device_step(found: Existing, known: Knowledge) -> LayerAnswer:
    """Its nodes: do they have the devices, and can its pods be started with them?"""
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
            Evidence(f"pod/{pod.meta.name}", "status", pod.stuck, f"on node {pod.node}")
            for pod in broken[:_MOST_PODS]
        )
        since_ms = min(pod.bound_ms or pod.meta.created_ms for pod in broken)
        return LayerAnswer(Layer.DEVICE, Verdict.HOLDS, says, since_ms, facts)
    waiting = [pod for pod in pods if pod.is_unplaced and not pod.is_gated]
    if waiting:
        return _of_nodes(waiting, known)
    lost = sorted({pod.node for pod in pods if pod.is_bound and not _is_ready(known, pod.node)})
    if lost:
        says = f"nodes of its pods are not ready: {', '.join(lost[:3])}"
        facts = tuple(
            Evidence(f"node/{name}", "status.conditions[Ready]", "not True", "its pods do not run on")
            for name in lost[:_MOST_PODS]
        )
        node = known.state.node_by_name.get(lost[0])
        return LayerAnswer(
            Layer.DEVICE, Verdict.HOLDS, says, node.ready_since_ms if node is not None else None, facts
        )
    if not any(pod.is_bound for pod in pods):
        return LayerAnswer(Layer.DEVICE, Verdict.UNKNOWN, "it has no pods on nodes", None)
    return LayerAnswer(Layer.DEVICE, Verdict.PASSED, "its nodes are ready and its devices were given", None)


def running_step(found: Existing, known: Knowledge) -> LayerAnswer:
    """Its containers: do they run, and do they use what they hold?"""
    bound = [pod for pod in _still_there(found) if pod.is_bound]
    if not bound:
        ended = [pod for pod in found.pods if pod.has_ended]
        says = "it has ended" if ended else "it does not run"
        failed = sum(pod.phase is PodPhase.FAILED for pod in ended)
        if failed:
            says = f"it has ended; {failed:,} of its pods failed"
        return LayerAnswer(Layer.RUNNING, Verdict.UNKNOWN, says, None)
    stuck = [pod for pod in bound if pod.stuck and pod.stuck not in DEVICE_ERRORS and pod.ready_ms is None]
    if stuck:
        names = sorted({pod.stuck for pod in stuck})
        says = f"{len(stuck):,} of its {len(bound):,} pods are on nodes and do not run: {', '.join(names)}"
        facts = tuple(
            Evidence(f"pod/{pod.meta.name}", "status.containerStatuses", pod.stuck, f"on node {pod.node}")
            for pod in stuck[:_MOST_PODS]
        )
        since_ms = min((pod.bound_ms or pod.meta.created_ms for pod in stuck), default=None)
        return LayerAnswer(Layer.RUNNING, Verdict.HOLDS, says, since_ms, facts)
    troubles = known.troubles(found.job.uid) if known.troubles is not None else None
    since_ms = max((pod.bound_ms for pod in bound if pod.bound_ms is not None), default=None)
    if troubles is None:
        says = "its pods run; how well it uses its GPUs is not known here (the service knows)"
        return LayerAnswer(Layer.RUNNING, Verdict.PASSED, says, since_ms)
    if troubles:
        facts = tuple(Evidence(f"finding/{each.id}", each.rule, each.says, each.action) for each in troubles)
        says = f"it runs, and not well: {troubles[0].says}"
        return LayerAnswer(Layer.RUNNING, Verdict.HOLDS, says, troubles[0].since_ms, facts)
    says = "its pods run, and nothing is found against how it uses its GPUs"
    return LayerAnswer(Layer.RUNNING, Verdict.PASSED, says, since_ms)


def _partial_gang(found: Existing, known: Knowledge) -> Gang | None:
    return next(
        (each for each in known.overview.gangs if each.job.uid == found.job.uid and each.is_partial), None
    )


def _bond(gang: Gang) -> str:
    """Whether something makes them start together, or their shape only says that they need each other."""
    return "need each other" if gang.kind is GangKind.JOB else "must run together"


def _shape_evidence(gang: Gang, found: Existing) -> Iterator[Evidence]:
    """Why pods without a PodGroup or workload are taken to need each other."""
    job = found.object
    if gang.kind is not GangKind.JOB or job is None:
        return
    name = f"{job.kind.lower()}/{job.meta.name}"
    if job.job_kind is JobKind.JOB:
        meaning = (
            "as many completions as parallelism: each pod has a part of its own; nothing starts them together"
        )
        yield Evidence(name, "spec.completionMode", "Indexed", meaning)
    else:
        meaning = f"worked out: pods of a {job.kind} work together; nothing starts them together"
        yield Evidence(name, "", str(gang.min_members), meaning)


def _minimum(found: Existing) -> int | None:
    """How few pods start it, where that is below what it wants; None where nothing is."""
    wanted = found.object.pods_wanted if found.object is not None else 0
    fewest = [each.min_member for each in found.groups]
    if not fewest and found.object is not None and found.object.gang_size is not None:
        fewest = [found.object.gang_size]
    least = min(fewest, default=wanted)
    return least if least < wanted else None


def _gang_evidence(found: Existing) -> Iterator[Evidence]:
    wanted = found.object.pods_wanted if found.object is not None else None
    for group in found.groups:
        below = wanted is not None and group.min_member < wanted
        meaning = (
            f"below the {wanted:,} pods it wants: it starts with part of them" if below else "all it needs"
        )
        yield Evidence(f"podgroup/{group.meta.name}", "spec.minMember", str(group.min_member), meaning)


def _pod_evidence(pods: Iterable[Pod]) -> Iterator[Evidence]:
    for pod in list(pods)[:_MOST_PODS]:
        said = pod.waiting.message if pod.waiting is not None else ""
        yield Evidence(
            f"pod/{pod.meta.name}",
            "status.conditions[PodScheduled]",
            pod_reason(pod),
            said or "nothing said yet",
        )


def _still_there(found: Existing) -> tuple[Pod, ...]:
    """Without those that are being deleted; with them while nothing has taken their place."""
    return tuple(pod for pod in found.pods if not pod.is_leaving) if found.standing else found.pods


def _leaving(pods: Iterable[Pod]) -> str:
    count = sum(pod.is_leaving for pod in pods)
    if not count:
        return ""
    return f"; {count:,} {'pod is' if count == 1 else 'pods are'} being deleted"


def _said(pod: Pod) -> str:
    return (pod.waiting.message if pod.waiting is not None else "") or pod_reason(pod)


def _of_nodes(waiting: Iterable[Pod], known: Knowledge) -> LayerAnswer:
    """Whether nodes would take its pods if they advertised all their GPUs."""
    free = known.free_nodes
    for pod in waiting:
        node = free.would_fit(pod.template) if not free.fits(pod.template) else None
        if node is None:
            continue
        overview = known.overview
        short = lacking(node, overview.published.get(node.meta.name, {}), overview.catalog)
        said = ", ".join(f"{amount} {name}" for name, amount in sorted(short.items()))
        says = f"would fit node {node.meta.name} if it advertised all its GPUs: {said} missing"
        facts = tuple(
            Evidence(
                f"node/{node.meta.name}",
                f"status.allocatable[{name}]",
                str(node.allocatable.get(name, 0)),
                f"{amount} fewer than its hardware has",
            )
            for name, amount in sorted(short.items())
        )
        return LayerAnswer(Layer.DEVICE, Verdict.HOLDS, says, pod_since_ms(pod), facts)
    return LayerAnswer(Layer.DEVICE, Verdict.UNKNOWN, "its pods have no nodes yet", None)


def _is_ready(known: Knowledge, name: str) -> bool:
    node = known.state.node_by_name.get(name)
    return node is None or node.is_ready
