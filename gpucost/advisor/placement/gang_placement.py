"""Whether all pods of a gang find a node at once, where, and else why not.

``place`` is given what is free on each node (``FreeCapacity``) and what each pod set wants
(``PlacementDemand``). All pod sets must find room together, each for at least its least: half a gang that
holds GPUs helps nobody. ``gang_solver`` tries greedily first, then proves that there is no way, then searches
a bounded number of ways; beyond that bound the answer is "not known" (``is_exact`` False), and never a guess.
Pods beyond the least are added afterwards as far as they go, without moving any. Topology that a pod set
requires (one rack, one NVLink domain) holds all of its pods together.

If it does not fit, three things are said. Why nodes refuse one more pod, counted in the manner of
kube-scheduler: ``0/12 nodes: 5 insufficient nvidia.com/gpu, 4 taint nvidia.com/gpu not tolerated``. Whether
it would fit if no job ran anywhere (``even_empty``): if not, waiting does not help. And which single pod asks
for more than any node has (``too_big``).

Rules of single nodes (taints, affinity, selectors, resources, number of pods) are those of
``gpucost.cluster.views.node_fit``. Rules about other pods and spreading are not evaluated, and named in
``unknown``, as are extended resources that a DRA driver may give. Nodes that an autoscaler has to add count
with the minutes that their pool takes.

Pure; the free capacity is as before afterwards. ``estimate.placement_layer`` calls it for an answer,
``estimate.queue_wait`` and ``placement.preemption`` for later instants and with victims gone,
``placement.repaired_nodes`` for suggestions; ``reserve`` keeps room for pods with quota and without a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpucost.advisor.placement.free_capacity import (
    FreeCapacity,
    NodeBase,
    TopologyDomain,
    positive,
)
from gpucost.advisor.placement.gang_solver import (
    BlockSolution,
    PodSetGang,
    level_of,
    levels_of,
    order,
    solve,
)
from gpucost.advisor.placement.gang_solver import fits as solve_fits
from gpucost.advisor.placement.pod_demand import PlacementDemand
from gpucost.advisor.placement.topology_domains import PlacedPods
from gpucost.cluster.objects.metadata import Resources
from gpucost.cluster.objects.nodes import Node, Taint
from gpucost.cluster.objects.pods import PodTemplate
from gpucost.cluster.views.node_fit import PODS, matches

NOT_READY, CORDONED, AFFINITY = "not ready", "cordoned", "node affinity"
TOO_MANY_PODS = "too many pods"
NOT_AMONG = "not among the nodes it may use"
HAS_ROOM = "room, but not in a domain that takes all"


def why(rooms: FreeCapacity, wanted: PlacementDemand) -> dict[str, int]:
    """How many nodes refuse one more of its pods, by the reason; the most frequent first.

    A node that lacks several resources counts for each, so that the sum may be more than the nodes. Of what
    keeps a pod out before it is asked for room only the first counts, as in kube-scheduler.
    """
    asks, among, known = wanted.asks, wanted.among, len(rooms.base.nodes)
    if wanted.conflict:
        return {f"node selector {wanted.conflict}": len(rooms)} if len(rooms) else {}
    of_base = rooms.base.refusals(asks, _refusals)
    nodes: Sequence[int] = range(len(rooms))
    found: Counter[str] = Counter()
    if among is not None:
        nodes = sorted(at for at in map(rooms.at, among) if at is not None)
        found[NOT_AMONG] = len(rooms) - len(nodes)
    changed, asked, admits = frozenset(rooms.changed), positive(asks.requests), rooms.base.admits(asks)
    for at in nodes:
        if at >= known:
            found.update(_refusal(rooms.node(at), rooms.free_at(at), asks, asked))
        elif at in changed and at in admits:
            found.update(lacks(rooms.node(at), rooms.free_at(at), asked))
        else:
            found.update(of_base[at])
    return dict(sorted((+found).items(), key=lambda each: (-each[1], each[0])))


def _refusals(base: NodeBase, template: PodTemplate) -> Sequence[tuple[str, ...]]:
    """Of every node of a base."""
    asked, known = positive(template.requests), dict[tuple[object, ...], tuple[str, ...]]()
    found = []
    for at, key in base.alike(template):
        reasons = known.get(key)
        if reasons is None:
            reason = refusal(base.nodes[at], template)
            reasons = known[key] = (reason,) if reason else ()
        found.append(reasons or lacks(base.nodes[at], base.free[at], asked))
    return found


def _refusal(node: Node, free: Resources, template: PodTemplate, asked: Resources) -> tuple[str, ...]:
    reason = refusal(node, template)
    return (reason,) if reason else lacks(node, free, asked)


def line(reasons: Mapping[str, int], nodes: int) -> str:
    """``0/12 nodes: 5 insufficient nvidia.com/gpu, 4 taint nvidia.com/gpu not tolerated``."""
    if not nodes:
        return "there are no nodes"
    return f"0/{nodes} nodes: " + ", ".join(f"{count} {reason}" for reason, count in reasons.items())


def refusal(node: Node, template: PodTemplate) -> str:
    """What keeps it out, whatever is free there (``node_fit.matches``); empty where nothing does."""
    if matches(node, template):
        return ""
    if not node.is_ready:
        return NOT_READY
    if node.is_cordoned and not matches(
        replace(node, taints=()), PodTemplate({}, tolerations=template.tolerations)
    ):
        return CORDONED
    for key, value in sorted(template.node_selector.items()):
        if node.labels.get(key) != value:
            return f"node selector {key}"
    bare = replace(template, node_selector={}, affinity=())
    for taint in node.taints:
        if not matches(_with(node, taint), bare):
            return f"taint {taint.key} not tolerated"
    return AFFINITY


def _with(node: Node, taint: Taint) -> Node:
    return replace(node, taints=(taint,), is_cordoned=False)


def lacks(node: Node, free: Resources, asked: Resources) -> tuple[str, ...]:
    """What there is too little of for one pod; HAS_ROOM alone if nothing."""
    found = [TOO_MANY_PODS] if PODS in node.allocatable and free.get(PODS, 0) < 1 else []
    found += [f"insufficient {key}" for key, amount in asked.items() if free.get(key, 0) < amount]
    return tuple(found) or (HAS_ROOM,)


MOST_EXPLAINED = 8
"""The most pod sets for which the refusals of nodes are explained, the first by name."""


@dataclass(frozen=True, slots=True)
class OversizedPod:
    """One pod asks for ``asks`` of a resource, and no node has more than ``most``, even when empty."""

    pod_set: str
    resource: str
    asks: int
    most: int


@dataclass(frozen=True, slots=True)
class GangPlacement:
    """Where they go, by pod set.

    ``fits`` is whether each pod set finds room for its least, all at once. With ``is_exact`` that is certain
    as far as the rules of ``gpucost.cluster.views.node_fit`` go; without, it is not known, and ``fits`` is
    False. ``unknown`` says what was not evaluated, also where it fits: "nothing known is against it".

    ``nodes`` has pods by node, of as many as went; ``short`` how many found no room (missing: none). ``why``
    has how many of the ``seen`` nodes refuse one more pod, by reason, of the first that are short.
    ``domains`` are the topology domains chosen, as label values from the widest level down. ``notes`` are
    further reasons, in sentences. ``even_empty`` is whether it would fit if no job ran on any node: if not,
    waiting does not help; None where it is not known. ``new_nodes`` are nodes an autoscaler has to add, by
    pool, ready after ``minutes``.
    """

    fits: bool
    is_exact: bool = True
    nodes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    short: Mapping[str, int] = field(default_factory=dict)
    why: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    seen: int = 0
    domains: Mapping[str, tuple[TopologyDomain, ...]] = field(default_factory=dict)
    even_empty: bool | None = None
    too_big: tuple[OversizedPod, ...] = ()
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    new_nodes: Mapping[str, int] = field(default_factory=dict)
    minutes: float = 0.0

    def line(self, pod_set: str) -> str:
        """Why the pod set is short, as kube-scheduler would say; empty where it is not."""
        reasons = self.why.get(pod_set)
        return "" if reasons is None else line(reasons, self.seen)


def place(rooms: FreeCapacity, wanted: Sequence[PlacementDemand], ask_empty: bool = True) -> GangPlacement:
    """Finds every pod a node, all at once. ``rooms`` is as before afterwards; the order of ``wanted`` does
    not matter. Without ``ask_empty`` it is not asked whether it would fit on empty nodes."""
    gang = PodSetGang(wanted)
    if gang.unknown:
        return GangPlacement(False, is_exact=False, seen=len(rooms), unknown=gang.unknown)
    if gang.wrong:
        return _refused(rooms, gang)
    full = solve(rooms, gang.blocks(rooms, lambda each: each.count))
    found, fits = full, full.fits
    if not fits and gang.has_least:
        found = solve(rooms, gang.blocks(rooms, lambda each: each.least))
        fits = found.fits
        if fits:
            found = BlockSolution(True, _more(rooms, gang, found.placed))
        elif fits is False:
            found = full
    return _answer(rooms, gang, found.placed, fits, ask_empty)


def reserve(rooms: FreeCapacity, wanted: Iterable[PlacementDemand]) -> FreeCapacity:
    """What is left once pods that have quota, but no node yet, are placed as far as they go: each pod set by
    itself, in order of name. Pods that find no room hold none."""
    left = rooms.copy()
    for each in sorted(wanted, key=order):
        gang = PodSetGang([each])
        if not gang.unknown and not gang.wrong:
            placed = solve(left, gang.blocks(left, lambda one: one.count)).placed
            _take(left, gang, placed)
    return left


def _take(rooms: FreeCapacity, gang: PodSetGang, placed: PlacedPods) -> None:
    for each in gang.merged:
        for at, count in placed.taken.get(each.name, {}).items():
            rooms.take_at(at, positive(each.asks.requests), count)


def _more(rooms: FreeCapacity, gang: PodSetGang, placed: PlacedPods) -> PlacedPods:
    """Further pods beyond the least, as far as they go without moving any, where no topology holds them."""
    mark = rooms.mark()
    _take(rooms, gang, placed)
    for block in gang.blocks(rooms, lambda each: each.count - placed.count(each.name)):
        if block.level is None and not block.is_bound:
            added = solve(rooms, [block]).placed
            _take(rooms, gang, added)
            for name, taken in added.taken.items():
                have = placed.taken.setdefault(name, {})
                for at, count in taken.items():
                    have[at] = have.get(at, 0) + count
    rooms.rewind(mark)
    return placed


def _refused(rooms: FreeCapacity, gang: PodSetGang) -> GangPlacement:
    short = {each.name: each.count for group in gang.sources.values() for each in group}
    notes = tuple(f"{name}: {problem}" for name, problem in sorted(gang.wrong.items()))
    return GangPlacement(False, short=short, seen=len(rooms), even_empty=False, notes=notes)


def _answer(
    rooms: FreeCapacity, gang: PodSetGang, placed: PlacedPods, fits: bool | None, ask_empty: bool
) -> GangPlacement:
    backed = _maybe_backed(rooms, gang) if fits is False else ()
    if backed:
        fits = None
    nodes = gang.by_pod_set(placed, rooms)
    short = _short(gang, nodes)
    even_empty: bool | None = True if fits else None
    if not fits and ask_empty and not backed:
        empty = rooms.emptied()
        even_empty = solve_fits(empty, gang.blocks(empty, lambda each: each.least))
    new = {at for taken in placed.taken.values() for at in taken if rooms.is_new(at)}
    pools: dict[str, int] = {}
    for at in sorted(new):
        pools[rooms.node(at).pool] = pools.get(rooms.node(at).pool, 0) + 1
    return GangPlacement(
        bool(fits),
        fits is not None,
        nodes,
        short,
        _why(rooms, gang, placed, short),
        len(rooms),
        {one.name: placed.domains[name] for name in placed.domains for one in gang.sources[name]},
        even_empty,
        () if fits else _too_big(rooms, gang),
        backed or _not_evaluated(gang, fits),
        () if fits else _notes(gang, placed, short),
        pools,
        max((rooms.minutes.get(pool, 0.0) for pool in pools), default=0.0),
    )


def _short(gang: PodSetGang, nodes: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for group in gang.sources.values():
        for each in group:
            counts[each.name] = counts.get(each.name, 0) + each.count
    left = {name: count - sum(nodes.get(name, {}).values()) for name, count in counts.items()}
    return {name: count for name, count in sorted(left.items()) if count > 0}


def _why(
    rooms: FreeCapacity, gang: PodSetGang, placed: PlacedPods, short: Mapping[str, int]
) -> dict[str, dict[str, int]]:
    mark, found = rooms.mark(), dict[str, dict[str, int]]()
    _take(rooms, gang, placed)
    explained = frozenset(list(short)[:MOST_EXPLAINED])
    for group in gang.sources.values():
        names = [each.name for each in group if each.name in explained]
        if names:
            reasons = why(rooms, group[0])
            found.update(dict.fromkeys(names, reasons))
    rooms.rewind(mark)
    return found


def _too_big(rooms: FreeCapacity, gang: PodSetGang) -> tuple[OversizedPod, ...]:
    largest = {**rooms.base.largest}
    for node in rooms.extra:
        for resource, amount in node.allocatable.items():
            largest[resource] = max(amount, largest.get(resource, 0))
    return tuple(
        OversizedPod(each.name, resource, amount, largest.get(resource, 0))
        for group in gang.sources.values()
        for each in group
        for resource, amount in sorted(positive(each.asks.requests).items())
        if amount > largest.get(resource, 0)
    )


def _not_evaluated(gang: PodSetGang, fits: bool | None) -> tuple[str, ...]:
    sets = [each for group in gang.sources.values() for each in group]
    found = [
        f"{each.name}: rules about other pods or spreading are not evaluated"
        for each in sets
        if each.template.has_pod_affinity
    ]
    if fits is None:
        found.append("too many ways to place pods of different sizes: not all were tried")
    return tuple(sorted(found))


def _maybe_backed(rooms: FreeCapacity, gang: PodSetGang) -> tuple[str, ...]:
    """Extended resources that a DRA driver may provide, which only its DeviceClass would show."""
    asked = {key for each in gang.merged for key in positive(each.asks.requests)}
    return tuple(
        f"{key}: devices that nodes publish in ResourceSlices may stand for it; that is not evaluated"
        for key in sorted(asked)
        if rooms.base.may_back(key)
    )


def _notes(gang: PodSetGang, placed: PlacedPods, short: Mapping[str, int]) -> tuple[str, ...]:
    notes = []
    for each in gang.merged:
        level, is_preferred = level_of(each)
        names = ", ".join(dict.fromkeys(one.name for one in gang.sources[each.name]))
        if each.conflict:
            notes.append(f"{names}: asks for another {each.conflict} than its flavor's nodes have")
        elif level is not None and not is_preferred:
            put = placed.count(each.name)
            who = f"all {each.count:,} pods" if each.count > 1 else "its pod"
            best = (
                f"at best {put:,} of them {'is' if put == 1 else 'are'}"
                if each.count > 1
                else "none has room"
            )
            notes.append(f"{names}: {who} must be in one {levels_of(each)[level]}; {best}")
    if len(short) > MOST_EXPLAINED:
        notes.append(f"why nodes refuse pods is said of {MOST_EXPLAINED} of {len(short)} pod sets")
    return tuple(notes)
