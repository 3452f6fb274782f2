"""The gang-and-placement layer: once quota is there, does every pod find a node, all at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gpucost.advisor.answers import Decision, Evidence, Layer, PodSetAnswer
from gpucost.advisor.asking import Asking
from gpucost.advisor.knowledge import Knowledge
from gpucost.advisor.layers import LayerResult
from gpucost.advisor.placement.freed import freed
from gpucost.advisor.placement.mended import Repair, mended
from gpucost.advisor.placement.place import Placement, place
from gpucost.advisor.placement.pools import silent_about, with_pools
from gpucost.advisor.placement.rooms import Rooms
from gpucost.advisor.placement.wanted import Wanted, of_pod_set
from gpucost.cluster.pods import PodSet
from gpucost.domain.time import MINUTE_MS

UNSCHEDULABLE = "Unschedulable"
FREED_IS_USELESS = "FreedCapacityUnusable"
LARGER_THAN_ANY_NODE = "LargerThanAnyNode"
NODES_UNUSABLE = "NodesUnusable"
NOT_EVALUATED = "NotEvaluated"
_SOME_NODES = 3
_NO_OTHER_PODS = "rules about other pods, topology spreading, volumes and host ports are not evaluated"


def wanted_of(known: Knowledge, asking: Asking, quota: LayerResult | None) -> list[Wanted]:
    """What its pods ask of nodes, with the flavors and sizes that ``quota`` gave them; None for no quota.

    Pod sets that nobody counts quota for (a job is more than its workload) come as they are.
    """
    given = {each.name: each for each in quota.pod_sets} if quota is not None else {}
    sets = [each for workload in asking.workloads for each in workload.pod_sets]
    return [_wanted(known, each, given.get(each.name)) for each in (sets or asking.pod_sets) if each.count]


def placement_answer(known: Knowledge, asking: Asking, quota: LayerResult | None = None) -> LayerResult:
    """Of the pods of a job whose quota, if any, is there once the victims in ``quota`` have left."""
    wanted = wanted_of(known, asking, quota)
    gone = (
        {uid for each in quota.victims for uid in known.pods_by_workload.get(each.subject.uid, ())}
        if quota
        else set()
    )
    before = known.rooms_for(asking.subject.uid).without(asking.own_pods)
    rooms = before.without(gone)
    found = place(rooms, wanted)
    assumptions = (_NO_OTHER_PODS, *found.unknown) if found.fits or found.unknown else (_NO_OTHER_PODS,)
    answer = _answer(known, before, rooms, wanted, found, bool(gone))
    return replace(answer, assumptions=assumptions, pod_sets=_pod_sets(quota, wanted, answer, found))


def _answer(
    known: Knowledge,
    before: Rooms,
    rooms: Rooms,
    wanted: Sequence[Wanted],
    found: Placement,
    has_victims: bool,
) -> LayerResult:
    if found.fits:
        return LayerResult(Decision.NOW, Layer.NONE, "", "", (f"placement: {_where(found)}",))
    grown = _grown(known, rooms, wanted)
    if grown is not None:
        return grown
    if not found.is_exact:
        says = "; ".join((*found.unknown, *found.notes)) or "too many ways to place its pods: not decided"
        return LayerResult(Decision.UNKNOWN, Layer.PLACEMENT, NOT_EVALUATED, says)
    repaired = mended(rooms, wanted)
    if repaired is not None:
        layer = Layer.DEVICE if Repair.DEVICES in repaired.nodes.values() else Layer.PLACEMENT
        facts = tuple(_repair_evidence(known, repaired.nodes, repaired.lacks))
        decision = Decision.WAITS if found.even_empty else Decision.NEVER
        return LayerResult(
            decision, layer, NODES_UNUSABLE, repaired.says(), tuple(_why(found)), evidence=facts
        )
    if has_victims:
        useless = freed(before, rooms, wanted)
        if useless.is_useless:
            resource = next(
                (name for name, amount in sorted(useless.units.items()) if amount and "/" in name), ""
            )
            says = useless.says(resource or next(iter(useless.units)), wanted)
            decision = Decision.WAITS if found.even_empty else Decision.NEVER
            return LayerResult(decision, Layer.PLACEMENT, FREED_IS_USELESS, says, tuple(_why(found)))
    if found.too_big:
        return _too_big(found)
    decision = Decision.NEVER if found.even_empty is False else Decision.WAITS
    says = _short(found)
    if decision is Decision.NEVER:
        says += ", not even on empty nodes"
    return LayerResult(decision, Layer.PLACEMENT, UNSCHEDULABLE, says, tuple(_why(found)))


def _grown(known: Knowledge, rooms: Rooms, wanted: Sequence[Wanted]) -> LayerResult | None:
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
        Decision.LATER,
        Layer.PLACEMENT,
        "NewNodes",
        says,
        (f"placement: {_where(found)}", *silent_about(pools, wanted)),
        later_ms=round(found.minutes * MINUTE_MS),
    )


def _too_big(found: Placement) -> LayerResult:
    worst = found.too_big[0]
    says = (
        f"a pod of {worst.pod_set} asks {worst.asks:,} {worst.resource}; the largest node that takes it has "
        f"{worst.most:,}"
    )
    return LayerResult(Decision.NEVER, Layer.PLACEMENT, LARGER_THAN_ANY_NODE, says, tuple(_why(found)))


def _short(found: Placement) -> str:
    parts = [f"{count:,} of its pods find no node ({name})" for name, count in sorted(found.short.items())]
    said = [found.line(name) for name in sorted(found.short)][:1]
    return ": ".join(["; ".join(parts) or "its pods find no room together", *filter(None, said)])


def _why(found: Placement) -> Iterator[str]:
    for name in sorted(found.short):
        line = found.line(name)
        if line:
            yield f"placement: {name}: {line}"
    for note in found.notes:
        yield f"placement: {note}"


def _where(found: Placement) -> str:
    nodes = sorted({node for each in found.nodes.values() for node in each})
    named = ", ".join(nodes[:_SOME_NODES])
    more = f" and {len(nodes) - _SOME_NODES:,} more" if len(nodes) > _SOME_NODES else ""
    return f"on {len(nodes):,} node{'s' if len(nodes) != 1 else ''}: {named}{more}"


def _wanted(known: Knowledge, pod_set: PodSet, given: PodSetAnswer | None) -> Wanted:
    names = dict.fromkeys(given.flavors.values()) if given is not None else ()
    flavors = [known.state.flavor_by_name[name] for name in names if name in known.state.flavor_by_name]
    topologies = {each.meta.name: each for each in known.state.topologies.values()}
    count = given.count if given is not None else None
    return of_pod_set(pod_set, flavors, topologies, count)


def _pod_sets(
    quota: LayerResult | None, wanted: Sequence[Wanted], answer: LayerResult, found: Placement
) -> tuple[PodSetAnswer, ...]:
    """Nodes only where all of the gang has one."""
    flavors = {each.name: each.flavors for each in quota.pod_sets} if quota is not None else {}
    nodes = found.nodes if answer.decision is Decision.NOW else {}
    return tuple(
        PodSetAnswer(each.name, each.count, flavors.get(each.name, {}), nodes.get(each.name, {}))
        for each in wanted
    )


def _repair_evidence(
    known: Knowledge, nodes: Mapping[str, Repair], lacks: Mapping[str, Mapping[str, int]]
) -> Iterator[Evidence]:
    for name, repair in sorted(nodes.items()):
        node = known.state.node_by_name[name]
        if repair is Repair.DEVICES:
            for resource, amount in sorted(lacks.get(name, {}).items()):
                has = node.allocatable.get(resource, 0)
                field = f"status.allocatable[{resource}]"
                yield Evidence(f"node/{name}", field, str(has), f"{amount} fewer than it should have")
        elif repair is Repair.READY:
            yield Evidence(f"node/{name}", "status.conditions[Ready]", str(node.is_ready), "takes no pods")
        else:
            yield Evidence(f"node/{name}", "spec.unschedulable", str(node.is_cordoned), "takes no new pods")
