"""The gang-and-placement layer: once quota is there, whether every pod finds a node, all of them at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpucost.advisor.estimate.preempted_pods import (
    BY_TOPOLOGY,
    PREEMPTION_NOT_KNOWN,
    PREEMPTS_PODS,
    assumed,
    claimed,
    doubt,
    makes_room,
    preempted,
    priority_of,
    remarks,
    stopped_ms,
    victims,
)
from gpucost.advisor.kueue.messages import quantity
from gpucost.advisor.model.answers import (
    LayerResult,
    PodSetAnswer,
    PreemptionVictim,
    SchedulingDecision,
    SchedulingLayer,
)
from gpucost.advisor.placement.free_capacity import FreeCapacity
from gpucost.advisor.placement.gang_placement import GangPlacement, place, reserve
from gpucost.advisor.placement.node_pools import silent_about, with_pools
from gpucost.advisor.placement.pod_demand import PlacementDemand, of_pod_set
from gpucost.advisor.placement.preemption import PodPreemption, freed_capacity
from gpucost.advisor.placement.repaired_nodes import (
    NODES_UNUSABLE,
    NodeRepair,
    RepairPlan,
    repair_plan,
    repairs_in,
)
from gpucost.advisor.request.context import AdvisorContext
from gpucost.advisor.request.scheduling_request import SchedulingRequest
from gpucost.cluster.objects.metadata import added
from gpucost.cluster.objects.pods import PodSet
from gpucost.cluster.views.wait_causes import UNSCHEDULABLE
from gpucost.domain.text import counted
from gpucost.domain.time import MINUTE_MS

FREED_IS_USELESS = "FreedCapacityUnusable"
LARGER_THAN_ANY_NODE = "LargerThanAnyNode"
NOT_EVALUATED = "NotEvaluated"
NOT_READ = "NotRead"
_SOME_NODES = 3
_NO_OTHER_PODS = "rules about other pods, topology spreading, volumes and host ports are not evaluated"


def wanted_of(
    known: AdvisorContext, asking: SchedulingRequest, quota: LayerResult | None
) -> list[PlacementDemand]:
    """The demand of its pods on nodes, with the flavors and sizes that ``quota`` gave them; None without
    quota."""
    return [each for part in parts_of(known, asking, quota) for each in part.wanted]


@dataclass(frozen=True, slots=True)
class PodSetPart:
    """Pods of one pod set that have the same flavors. ``wanted`` has several entries where each workload of
    the job has a topology of its own; ``given`` is what quota assigned to them, None where no quota is
    counted."""

    name: str
    wanted: tuple[PlacementDemand, ...]
    given: PodSetAnswer | None

    @property
    def count(self) -> int:
        return sum(each.count for each in self.wanted)


def parts_of(known: AdvisorContext, asking: SchedulingRequest, quota: LayerResult | None) -> list[PodSetPart]:
    """All pods of a job, by pod set and flavors; those of equal workloads together.

    Pod sets for which no quota is counted (a job can be more than its workload) come as they are.
    """
    times = max(1, len(asking.workloads))
    sets = asking.workloads[0].pod_sets if asking.workloads else asking.pod_sets
    parts = []
    for each in (one for one in sets if one.count):
        given: list[PodSetAnswer | None] = []
        if quota is not None:
            given += [one for one in quota.pod_sets if one.name == each.name]
        for answer in given or [None]:
            whole = each.count * times if answer is None else answer.count
            flavors = sorted(set(answer.flavors.values())) if answer is not None else []
            named = replace(each, name=f"{each.name} in {', '.join(flavors)}") if len(given) > 1 else each
            wanted = _wanted_each(known, named, answer, whole, times)
            parts.append(
                PodSetPart(each.name, tuple(claimed(known, asking, each, one) for one in wanted), answer)
            )
    return parts


def _wanted_each(
    known: AdvisorContext, pod_set: PodSet, given: PodSetAnswer | None, whole: int, times: int
) -> Iterator[PlacementDemand]:
    """All as one, unless a topology holds the pods of each of several workloads together."""
    if times == 1 or not pod_set.topology:
        yield _wanted(known, pod_set, given, whole)
        return
    for number in range(whole // pod_set.count):
        yield _wanted(known, replace(pod_set, name=f"{pod_set.name}-{number}"), given, pod_set.count)


def placement_answer(
    known: AdvisorContext, asking: SchedulingRequest, quota: LayerResult | None = None
) -> LayerResult:
    """The answer for the pods of a job whose quota, if it needs any, is there once the victims in ``quota``
    have left."""
    unread = [each for each in ("nodes", "pods") if known.state.is_unread(each)]
    if unread:
        says = f"{' and '.join(unread)} could not be read: what is free is not known"
        return LayerResult(SchedulingDecision.UNKNOWN, SchedulingLayer.PLACEMENT, NOT_READ, says)
    parts = parts_of(known, asking, quota)
    wanted = [each for part in parts for each in part.wanted]
    leaving = quota.leaving if quota is not None else frozenset()
    gone = {pod for uid in leaving for pod in known.pods_by_workload.get(uid, ())}
    before = rooms_for(known, asking, wanted).without(asking.own_pods)
    rooms = _left_by_others(known, before.without(gone), quota)
    found = place(rooms, wanted)
    assumptions = (_NO_OTHER_PODS, *found.unknown) if found.fits or found.unknown else (_NO_OTHER_PODS,)
    has_pods = quota is not None or not asking.workloads
    done = preempted(known, rooms, wanted, found, asking.own_pods | gone) if has_pods else None
    nodes = found.nodes if done is None else done.nodes
    if done is not None and done.fits:
        answer = _by_preempting(known, asking, wanted, done)
    else:
        answer = _answer(known, before, rooms, wanted, found, bool(gone))
        if asking.gang is None and answer.decision in (SchedulingDecision.WAITS, SchedulingDecision.NEVER):
            answer = _in_part(known, asking, wanted, answer, found, done)
    return replace(
        answer,
        assumptions=(*assumptions, *answer.assumptions),
        pod_sets=_pod_sets(parts, answer, nodes),
    )


def rooms_for(
    known: AdvisorContext, asking: SchedulingRequest, wanted: Sequence[PlacementDemand]
) -> FreeCapacity:
    """What is left for its pods."""
    return known.rooms_for(asking.subject.uid, priority_of(wanted))


def _by_preempting(
    known: AdvisorContext, asking: SchedulingRequest, wanted: Sequence[PlacementDemand], done: PodPreemption
) -> LayerResult:
    """All of it runs once kube-scheduler has preempted others; UNKNOWN where it is not known whether it may
    preempt."""
    gone, why = victims(known, done), doubt(known, asking, wanted)
    where = f"placement: {_where(done.nodes)}"
    if why:
        says = f"{why}; as kube-scheduler does by default, it would run now {makes_room(gone)}"
        return LayerResult(SchedulingDecision.UNKNOWN, SchedulingLayer.PLACEMENT, PREEMPTION_NOT_KNOWN, says)
    return LayerResult(
        SchedulingDecision.NOW,
        SchedulingLayer.NONE,
        PREEMPTS_PODS,
        "",
        (where, *remarks(done)),
        victims=gone,
        later_ms=stopped_ms(gone),
        assumptions=assumed(known),
    )


def _in_part(
    known: AdvisorContext,
    asking: SchedulingRequest,
    wanted: Sequence[PlacementDemand],
    answer: LayerResult,
    found: GangPlacement,
    done: PodPreemption | None,
) -> LayerResult:
    """With what becomes of those of its pods that find nodes, if need be by preempting others."""
    gone: tuple[PreemptionVictim, ...] = ()
    if done is not None and not doubt(known, asking, wanted):
        gone, found = victims(known, done), replace(found, nodes=done.nodes)
        answer = replace(
            answer,
            why=(*answer.why, *remarks(done)),
            victims=gone,
            assumptions=(*answer.assumptions, *assumed(known)),
        )
    if any(each.levels for each in wanted):
        answer = replace(answer, assumptions=(*answer.assumptions, BY_TOPOLOGY))
    if answer.decision is SchedulingDecision.WAITS and not asking.subject.uid:
        return replace(answer, says="; ".join((*_held_meanwhile(known, wanted, found, gone), answer.says)))
    if gone:
        line = f"placement: kube-scheduler makes room for a part of it {makes_room(gone)}"
        return replace(answer, why=(*answer.why, line))
    return answer


def started(known: AdvisorContext, asking: SchedulingRequest, quota: LayerResult) -> LayerResult:
    """Where some of its workloads have quota and others do not: whether those that have it find nodes too."""
    if not quota.partly:
        return quota
    nodes = placement_answer(known, asking, quota)
    does = "can start now"
    if nodes.decision is not SchedulingDecision.NOW:
        does = "can have quota now, but not all of these a node"
    elif quota.victims:
        does = f"can start once {counted(len(quota.victims), 'workload')} left"
    return replace(quota, partly=f"{quota.partly} {does}", pod_sets=())


def _held_meanwhile(
    known: AdvisorContext,
    wanted: Sequence[PlacementDemand],
    found: GangPlacement,
    gone: Sequence[PreemptionVictim],
) -> Iterator[str]:
    """What is taken while the rest waits, as nothing makes its pods start together."""
    if any(each.topology for each in wanted) or not found.is_exact:
        return
    placed = {each.name: sum(found.nodes.get(each.name, {}).values()) for each in wanted}
    pods, whole = sum(placed.values()), sum(each.count for each in wanted)
    gpus = sum(
        amount * placed[each.name]
        for each in wanted
        for name, amount in each.asks.requests.items()
        if known.overview.catalog.is_gpu(name)
    )
    if pods:
        holds = f" and hold {counted(gpus, 'GPU')}" if gpus else ""
        how = f" {makes_room(gone)}" if gone else ""
        yield f"{pods:,} of its {counted(whole, 'pod')} would start{how}{holds} while the others wait"


def _left_by_others(known: AdvisorContext, rooms: FreeCapacity, quota: LayerResult | None) -> FreeCapacity:
    """Once those have their nodes that get quota before it or with it, though they have no pods yet."""
    wanted = [
        _wanted(known, pod_set, PodSetAnswer(each.name, each.count, each.flavors, {}), each.count)
        for uid, assigned in (quota.others if quota is not None else {}).items()
        if uid in known.state.workloads
        for each in assigned
        for pod_set in known.state.workloads[uid].pod_sets
        if pod_set.name == each.name and each.count
    ]
    return reserve(rooms, wanted) if wanted else rooms


def _answer(
    known: AdvisorContext,
    before: FreeCapacity,
    rooms: FreeCapacity,
    wanted: Sequence[PlacementDemand],
    found: GangPlacement,
    has_victims: bool,
) -> LayerResult:
    if found.fits:
        return LayerResult(
            SchedulingDecision.NOW, SchedulingLayer.NONE, "", "", (f"placement: {_where(found.nodes)}",)
        )
    grown = _grown(known, rooms, wanted)
    if grown is not None:
        return grown
    if not found.is_exact:
        says = "; ".join((*found.unknown, *found.notes)) or "too many ways to place its pods: not decided"
        return LayerResult(SchedulingDecision.UNKNOWN, SchedulingLayer.PLACEMENT, NOT_EVALUATED, says)
    repaired = repair_plan(rooms, wanted)
    if repaired is not None:
        until = "" if found.even_empty else repaired.until
        return _unusable(known, repaired, found, repaired.says(), until)
    later = repair_plan(rooms.emptied(), wanted) if found.even_empty is False else None
    if later is not None:
        says = f"{later.says()} and jobs that are there have ended"
        return _unusable(known, later, found, says, later.until)
    if has_victims:
        useless = freed_capacity(before, rooms, wanted)
        if useless.is_useless:
            resource = next(
                (name for name, amount in sorted(useless.units.items()) if amount and "/" in name), ""
            )
            says = useless.says(resource or next(iter(useless.units)), wanted)
            decision = SchedulingDecision.WAITS if found.even_empty else SchedulingDecision.NEVER
            return LayerResult(
                decision, SchedulingLayer.PLACEMENT, FREED_IS_USELESS, says, tuple(_why(found))
            )
    if found.too_big:
        return _too_big(found)
    decision = SchedulingDecision.NEVER if found.even_empty is False else SchedulingDecision.WAITS
    says = _short(found)
    if decision is SchedulingDecision.NEVER:
        says += ", not even on empty nodes"
    return LayerResult(decision, SchedulingLayer.PLACEMENT, UNSCHEDULABLE, says, tuple(_why(found)))


def _unusable(
    known: AdvisorContext, repaired: RepairPlan, found: GangPlacement, says: str, until: str
) -> LayerResult:
    """It waits for nodes, not for a change of its own: kubelets and device plugins come back, and a cordoned
    node is uncordoned by an administrator. ``until`` is what it waits for where no other node would take it,
    even when empty; else it is empty."""
    layer = (
        SchedulingLayer.DEVICE if NodeRepair.DEVICES in repaired.nodes.values() else SchedulingLayer.PLACEMENT
    )
    facts = tuple(repairs_in(known.state, repaired.nodes, repaired.lacks))
    why = tuple(_why(found))
    return LayerResult(
        SchedulingDecision.WAITS, layer, NODES_UNUSABLE, says, why, evidence=facts, until=until
    )


def _grown(
    known: AdvisorContext, rooms: FreeCapacity, wanted: Sequence[PlacementDemand]
) -> LayerResult | None:
    """With the nodes that autoscalers would add; None where these do not help either."""
    pools = known.settings.pools
    if not pools:
        return None
    found = place(with_pools(rooms, pools, wanted), wanted, ask_empty=False)
    if not found.fits or not found.new_nodes:
        return None
    nodes = ", ".join(f"{count} of pool {name}" for name, count in sorted(found.new_nodes.items()))
    says = f"fits once the autoscaler has added nodes ({nodes}), after about {found.minutes:g} min"
    return LayerResult(
        SchedulingDecision.LATER,
        SchedulingLayer.PLACEMENT,
        "NewNodes",
        says,
        (f"placement: {_where(found.nodes)}", *silent_about(pools, wanted)),
        later_ms=round(found.minutes * MINUTE_MS),
    )


def _too_big(found: GangPlacement) -> LayerResult:
    worst = found.too_big[0]
    asks, most = (quantity(worst.resource, amount) for amount in (worst.asks, worst.most))
    says = f"a pod of {worst.pod_set} asks {asks} {worst.resource}; the largest node that takes it has {most}"
    return LayerResult(
        SchedulingDecision.NEVER, SchedulingLayer.PLACEMENT, LARGER_THAN_ANY_NODE, says, tuple(_why(found))
    )


def _short(found: GangPlacement) -> str:
    parts = [f"no node for {count:,} of its pods ({name})" for name, count in sorted(found.short.items())]
    said = [found.line(name) for name in sorted(found.short)][:1]
    return ": ".join(["; ".join(parts) or "its pods find no room together", *filter(None, said)])


def _why(found: GangPlacement) -> Iterator[str]:
    for name in sorted(found.short):
        line = found.line(name)
        if line:
            yield f"placement: {name}: {line}"
    for note in found.notes:
        yield f"placement: {note}"


def _where(placed: Mapping[str, Mapping[str, int]]) -> str:
    nodes = sorted({node for each in placed.values() for node in each})
    named = ", ".join(nodes[:_SOME_NODES])
    more = f" and {len(nodes) - _SOME_NODES:,} more" if len(nodes) > _SOME_NODES else ""
    return f"on {len(nodes):,} node{'s' if len(nodes) != 1 else ''}: {named}{more}"


def _wanted(
    known: AdvisorContext, pod_set: PodSet, given: PodSetAnswer | None, count: int
) -> PlacementDemand:
    names = dict.fromkeys(given.flavors.values()) if given is not None else ()
    flavors = [known.state.flavor_by_name[name] for name in names if name in known.state.flavor_by_name]
    topologies = {each.meta.name: each for each in known.state.topologies.values()}
    return of_pod_set(pod_set, flavors, topologies, count)


def _pod_sets(
    parts: Sequence[PodSetPart], answer: LayerResult, placed: Mapping[str, Mapping[str, int]]
) -> tuple[PodSetAnswer, ...]:
    """Nodes only where all of the gang has one."""
    nodes = placed if answer.decision is SchedulingDecision.NOW else {}
    return tuple(
        PodSetAnswer(
            part.name,
            part.count,
            part.given.flavors if part.given is not None else {},
            added(*(nodes.get(each.name, {}) for each in part.wanted)),
        )
        for part in parts
    )
