"""Why nodes refuse a pod, in the manner of kube-scheduler: how many nodes for which reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpucost.advisor.placement.rooms import Base, Rooms, positive
from gpucost.advisor.placement.wanted import Wanted
from gpucost.cluster.fit import PODS, matches
from gpucost.cluster.nodes import Node, Taint
from gpucost.cluster.objects import Resources
from gpucost.cluster.pods import PodTemplate

NOT_READY, CORDONED, AFFINITY = "not ready", "cordoned", "node affinity"
TOO_MANY_PODS = "too many pods"
NOT_AMONG = "not among the nodes it may use"
HAS_ROOM = "room, but not in a domain that takes all"


def why(rooms: Rooms, wanted: Wanted) -> dict[str, int]:
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


def _refusals(base: Base, template: PodTemplate) -> Sequence[tuple[str, ...]]:
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
    """What keeps it out, whatever is free there (``fit.matches``); empty where nothing does."""
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
