"""Repairs: broken or cordoned nodes with which a gang would fit; the device layer's part of a placement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from gpucost.advisor.model.answers import AdviceEvidence
from gpucost.advisor.placement.free_capacity import FreeCapacity
from gpucost.advisor.placement.gang_placement import GangPlacement, place
from gpucost.advisor.placement.pod_demand import PlacementDemand
from gpucost.cluster.objects.metadata import Resources, added
from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.objects.state import ClusterState

NODES_UNUSABLE = "NodesUnusable"
"""The reason of an answer that rests on nodes which take no pods now, or do not advertise their GPUs."""
MOST_TRIED = 16
"""Nodes that are left out one by one, to name only those that are needed."""
_BY_NODE_CONTROLLER = "node.kubernetes.io/"


class NodeRepair(StrEnum):
    """What a node would need, in the order in which it is tried."""

    DEVICES = "devices"
    READY = "ready"
    UNCORDON = "uncordon"


_IF: Mapping[NodeRepair, str] = {
    NodeRepair.DEVICES: "advertised its GPUs",
    NodeRepair.READY: "became ready",
    NodeRepair.UNCORDON: "were uncordoned",
}


_UNTIL: Mapping[NodeRepair, str] = {
    NodeRepair.DEVICES: "nodes advertise their GPUs",
    NodeRepair.READY: "nodes are ready",
    NodeRepair.UNCORDON: "nodes are uncordoned",
}


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """It would fit if these nodes were repaired: ``nodes`` by name with what each needs. ``lacks`` are units
    that a node should advertise and does not."""

    nodes: Mapping[str, NodeRepair]
    lacks: Mapping[str, Resources]
    placement: GangPlacement

    def says(self) -> str:
        """``would fit if node n7 advertised its GPUs (8 nvidia.com/gpu missing)``."""
        parts = []
        for name, repair in sorted(self.nodes.items()):
            lack = ", ".join(f"{amount} {key}" for key, amount in sorted(self.lacks.get(name, {}).items()))
            missing = f" ({lack} missing)" if lack and repair is NodeRepair.DEVICES else ""
            parts.append(f"node {name} {_IF[repair]}{missing}")
        return "would fit if " + " and ".join(parts)

    @property
    def until(self) -> str:
        """What it waits for: ``nodes are ready``."""
        return until(self.nodes.values())


def repair_plan(rooms: FreeCapacity, wanted: Sequence[PlacementDemand]) -> RepairPlan | None:
    """Which repairs would make it fit: nodes Ready without all their GPUs first, then also nodes that are not
    ready, then also cordoned ones. None where no repair would, and where it is not certain.

    Taints that Kubernetes set itself are removed with their cause. ``rooms`` is without pools: nodes that an
    autoscaler would add are another answer. Nodes that need no repair are used first.
    """
    lacks = rooms.base.broken
    tried: dict[str, NodeRepair] = {}
    for repair in NodeRepair:
        more = {node.meta.name: repair for node in rooms.base.nodes if _needs(node, repair, lacks)}
        new = {name: each for name, each in more.items() if name not in tried}
        tried.update(new)
        if new and _repaired(rooms, tried, lacks, wanted).fits:
            return _least(rooms, tried, lacks, wanted)
    return None


def until(repairs: Iterable[NodeRepair]) -> str:
    """What a job waits for that needs these repairs."""
    wanted = frozenset(repairs)
    return " and ".join(_UNTIL[each] for each in NodeRepair if each in wanted)


def unusable(rooms: FreeCapacity) -> dict[str, NodeRepair]:
    """Nodes that take no pods now, by name, with what they need."""
    kinds = (NodeRepair.READY, NodeRepair.UNCORDON)
    return {node.meta.name: kind for node in rooms.base.nodes for kind in kinds if _needs(node, kind, {})}


def repairs_in(
    state: ClusterState, nodes: Mapping[str, NodeRepair], lacks: Mapping[str, Resources]
) -> Iterator[AdviceEvidence]:
    """The fields of nodes that show what each needs, as evidence."""
    for name, repair in sorted(nodes.items()):
        node = state.node_by_name[name]
        if repair is NodeRepair.DEVICES:
            for resource, amount in sorted(lacks.get(name, {}).items()):
                has = node.allocatable.get(resource, 0)
                field = f"status.allocatable[{resource}]"
                yield AdviceEvidence(f"node/{name}", field, str(has), f"{amount} fewer than it should have")
        elif repair is NodeRepair.READY:
            yield AdviceEvidence(
                f"node/{name}", "status.conditions[Ready]", str(node.is_ready), f"takes no pods{_why(node)}"
            )
        else:
            yield AdviceEvidence(
                f"node/{name}", "spec.unschedulable", str(node.is_cordoned), f"takes no new pods{_why(node)}"
            )


def _why(node: Node) -> str:
    """The conditions in which an administrator says why."""
    told = ", ".join(filter(None, (node.drain, node.maintenance)))
    return f" ({told})" if told else ""


def repaired(
    rooms: FreeCapacity, repairs: Mapping[str, NodeRepair], lacks: Mapping[str, Resources] | None = None
) -> FreeCapacity:
    """The room once these nodes are repaired; ``lacks`` are those of the base."""
    missing = rooms.base.broken if lacks is None else lacks
    nodes = {
        name: (_whole(rooms.base.nodes[at]), added(rooms.free(name), missing.get(name, {})))
        for name in repairs
        if (at := rooms.base.index.get(name)) is not None
    }
    return rooms.replaced(nodes)


def _least(
    rooms: FreeCapacity,
    tried: Mapping[str, NodeRepair],
    lacks: Mapping[str, Resources],
    wanted: Sequence[PlacementDemand],
) -> RepairPlan:
    """Without repairs that it can do without; what is harder to do goes first."""
    placement = _repaired(rooms, tried, lacks, wanted)
    used = {name for nodes in placement.nodes.values() for name in nodes}
    kept = {name: repair for name, repair in tried.items() if name in used}
    order = list(NodeRepair)
    by_effort = sorted(kept, key=lambda name: (-order.index(kept[name]), name))
    for name in by_effort[:MOST_TRIED]:
        fewer = {key: repair for key, repair in kept.items() if key != name}
        found = _repaired(rooms, fewer, lacks, wanted) if fewer else placement
        if fewer and found.fits:
            kept, placement = fewer, found
    return RepairPlan(kept, {name: lacks[name] for name in kept if name in lacks}, placement)


def _needs(node: Node, repair: NodeRepair, lacks: Mapping[str, Resources]) -> bool:
    match repair:
        case NodeRepair.DEVICES:
            return node.is_schedulable and node.meta.name in lacks
        case NodeRepair.READY:
            return not node.is_ready
        case NodeRepair.UNCORDON:
            return node.is_ready and node.is_cordoned


def _repaired(
    rooms: FreeCapacity,
    repairs: Mapping[str, NodeRepair],
    lacks: Mapping[str, Resources],
    wanted: Sequence[PlacementDemand],
) -> GangPlacement:
    """The placement if these were repaired."""
    found = place(repaired(rooms, repairs, lacks), wanted, ask_empty=False)
    return replace(found, new_nodes={}, minutes=0.0)


def _whole(node: Node) -> Node:
    """Ready, not cordoned, and without the taints that say otherwise."""
    taints = tuple(taint for taint in node.taints if not taint.key.startswith(_BY_NODE_CONTROLLER))
    return replace(node, is_ready=True, is_cordoned=False, taints=taints)
