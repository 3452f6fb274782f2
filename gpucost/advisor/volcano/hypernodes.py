"""Topology domains of Volcano: which nodes are in a HyperNode, and which HyperNodes a gang may use.

Source: volcano, pkg/scheduler/api/hyper_node_info.go, plugins/network-topology-aware, v1.15.1. A HyperNode
lists nodes or other HyperNodes, by name, by pattern or by labels; those of a higher tier are wider.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpucost.advisor.volcano.gang import VolcanoGang
from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.objects.scheduler_config import VolcanoConfig
from gpucost.cluster.objects.volcano import HyperNode

PLUGIN = "network-topology-aware"
HARD = "hard"
MOST_PATTERN = 256
"""The longest pattern that is evaluated, in characters."""
_QUANTIFIERS = re.compile(r"(?<!\\)[*+?{]")
_GROUPS = re.compile(r"\(\?[^:iP]|\\[1-9]")
MOST_QUANTIFIERS = 4


@dataclass(frozen=True, slots=True)
class HyperNodeDomains:
    """What a gang may use: ``allowed`` are sets of nodes, the narrowest tiers first, each with its HyperNode
    and tier; None where it may use any node. ``notes`` are assumptions, ``wrong`` is why no HyperNode will
    do. ``field`` is where the limit stands."""

    allowed: tuple[tuple[str, int, frozenset[str]], ...] | None
    notes: tuple[str, ...] = ()
    wrong: str = ""
    field: str = "spec.networkTopology.highestTierAllowed"


def domains_of(
    gang: VolcanoGang, config: VolcanoConfig, hyper_nodes: Iterable[HyperNode], nodes: Sequence[Node]
) -> HyperNodeDomains:
    """A hard topology with a highest tier keeps all pods of a gang, those that run too, in one HyperNode of
    at most that tier. A soft one, and a hard one without a tier, are wishes (IsHardTopologyMode)."""
    asked = gang.topology
    if not asked:
        return HyperNodeDomains(None)
    if asked.get("mode", HARD) != HARD:
        return HyperNodeDomains(None, ("networkTopology.mode soft is a wish: any node will do",))
    known = sorted(hyper_nodes, key=lambda each: each.meta.name)
    if config.is_read and PLUGIN not in config.plugins:
        note = f"networkTopology is not enforced: the plugin {PLUGIN} is not configured"
        return HyperNodeDomains(None, (note,))
    notes = () if PLUGIN in config.plugins else (f"the plugin {PLUGIN} is taken to be configured",)
    highest = _highest(asked, known)
    if highest is None and asked.get("highest_tier_name"):
        name = asked["highest_tier_name"]
        return HyperNodeDomains((), notes, f"no HyperNode has the tier name {name}", _FIELD_OF_NAME)
    if highest is None:
        return HyperNodeDomains(None, (*notes, "a hard networkTopology without highestTierAllowed is a wish"))
    sets = members(known, nodes)
    allowed = [
        (each.meta.name, each.tier, sets[each.meta.name])
        for each in known
        if each.tier <= highest and gang.nodes <= sets[each.meta.name]
    ]
    allowed.sort(key=lambda each: (each[1], each[0]))
    wrong = "" if allowed else f"no HyperNode of tier {highest} or below holds the nodes it is on"
    if not known:
        wrong = "the cluster has no HyperNodes"
    elif not any(each.tier <= highest for each in known):
        wrong = f"no HyperNode is of tier {highest} or below"
    unread = [f"a pattern of HyperNode {each.meta.name} is not evaluated" for each in known if _odd(each)]
    return HyperNodeDomains(tuple(allowed), (*notes, *unread), wrong)


_FIELD_OF_NAME = "spec.networkTopology.highestTierName"


def members(hyper_nodes: Sequence[HyperNode], nodes: Sequence[Node]) -> dict[str, frozenset[str]]:
    """The nodes in each HyperNode, by name, through those that are nested in it; each once, also where they
    are nested in a circle."""
    by_name = {each.meta.name: each for each in hyper_nodes}
    own: dict[str, set[str]] = {}
    below: dict[str, set[str]] = {}
    for each in hyper_nodes:
        of_nodes, of_hyper = own.setdefault(each.meta.name, set()), below.setdefault(each.meta.name, set())
        for type_, how, value in each.members:
            if type_ == "HyperNode":
                of_hyper.update(_named(how, value, by_name))
            elif type_ == "Node" and how == "label":
                of_nodes.update(node.meta.name for node in nodes if _labelled(node.labels, value))
            elif type_ == "Node":
                of_nodes.update(_named(how, value, [node.meta.name for node in nodes]))
    return {name: frozenset(_reached(name, own, below)) for name in by_name}


def _reached(name: str, own: Mapping[str, set[str]], below: Mapping[str, set[str]]) -> set[str]:
    seen, left, found = {name}, [name], set[str]()
    while left:
        each = left.pop()
        found |= own.get(each, set())
        left += sorted(below.get(each, set()) - seen)
        seen |= below.get(each, set())
    return found


def _named(how: str, value: str, names: Iterable[str]) -> list[str]:
    if how == "exact":
        return [name for name in names if name == value]
    pattern = _pattern(value) if how == "regex" else None
    return [name for name in names if pattern.search(name)] if pattern is not None else []


def _labelled(labels: Mapping[str, str], selector: str) -> bool:
    """``key=value`` pairs, all of which must be there."""
    pairs = [pair.partition("=") for pair in selector.split(",") if pair]
    return bool(pairs) and all(labels.get(key) == value for key, _, value in pairs)


def _pattern(text: str) -> re.Pattern[str] | None:
    """The compiled pattern; None for one that Go would not accept, or that could take for ever here: Go
    searches in linear time, Python does not."""
    if len(text) > MOST_PATTERN or len(_QUANTIFIERS.findall(text)) > MOST_QUANTIFIERS or _GROUPS.search(text):
        return None
    if re.search(r"\)[*+{?]", text) and len(_QUANTIFIERS.findall(text)) > 1:
        return None
    try:
        return re.compile(text)
    except re.error:
        return None


def _odd(hyper_node: HyperNode) -> bool:
    return any(how == "regex" and _pattern(value) is None for _, how, value in hyper_node.members)


def _highest(asked: Mapping[str, str], known: Sequence[HyperNode]) -> int | None:
    text = asked.get("highest_tier", "")
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    name = asked.get("highest_tier_name", "")
    return max((each.tier for each in known if name and each.tier_name == name), default=None)
