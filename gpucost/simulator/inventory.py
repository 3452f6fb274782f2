"""The nodes of the simulated cluster: their hardware, what they advertise, and what happens to them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from uuid import NAMESPACE_URL, uuid5

from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Window

GPU = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class ResourceOffer:
    """What a node advertises of one resource: units, replicas per GPU, and the share of a GPU per unit.

    The share is written out here, not looked up, so that the ground truth does not depend on the code it
    tests.
    """

    resource: str
    units: int
    share: Fraction
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class TroubleSpell:
    """A stretch of trouble: ``lost`` units are not advertised, or the node is cordoned."""

    start_ms: int
    end_ms: int
    lost: int = 0
    cordoned: bool = False


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """One node and its life ``[start_ms, end_ms)``. GPUs times time is its capacity."""

    name: str
    pool: str
    product: str
    boards: int
    instance_type: str
    capacity_type: str
    zone: str
    offers: tuple[ResourceOffer, ...]
    start_ms: int
    end_ms: int
    spells: tuple[TroubleSpell, ...] = ()
    signal_coverage: float = 1.0

    @property
    def provider_id(self) -> str:
        """Which machine of the cloud it is; empty for one that is owned."""
        if self.capacity_type == "owned":
            return ""
        return f"aws:///{self.zone}/i-{uuid5(NAMESPACE_URL, f'gpucost.simulator/{self.name}').hex[:17]}"


@dataclass(frozen=True, slots=True)
class SimulatedPool:
    """``nodes`` equal nodes."""

    name: str
    nodes: int
    product: str
    boards: int
    instance_type: str
    capacity_type: str
    offers: tuple[ResourceOffer, ...]


_H100 = "NVIDIA-H100-80GB-HBM3"
_A100 = "NVIDIA-A100-SXM4-80GB"
_EIGHT = (ResourceOffer(GPU, 8, Fraction(1)),)
_MIXED = (
    ResourceOffer("nvidia.com/mig-1g.10gb", 8, Fraction(1, 7)),
    ResourceOffer("nvidia.com/mig-2g.20gb", 8, Fraction(2, 7)),
    ResourceOffer("nvidia.com/mig-3g.40gb", 8, Fraction(3, 7)),
)

POOLS: tuple[SimulatedPool, ...] = (
    SimulatedPool("h100", 6, _H100, 8, "p5.48xlarge", "on-demand", _EIGHT),
    SimulatedPool(
        "h100-sliced",
        1,
        f"{_H100}-MIG-1g.10gb",
        8,
        "p5.48xlarge",
        "on-demand",
        (ResourceOffer(GPU, 56, Fraction(1, 7)),),
    ),
    SimulatedPool("h100-mixed", 1, _H100, 8, "p5.48xlarge", "on-demand", _MIXED),
    SimulatedPool("a100", 3, _A100, 8, "p4de.24xlarge", "on-demand", _EIGHT),
    SimulatedPool("a100-owned", 1, _A100, 8, "dgx-a100", "owned", _EIGHT),
    SimulatedPool(
        "l4-shared",
        2,
        "NVIDIA-L4-SHARED",
        4,
        "g6.12xlarge",
        "on-demand",
        (ResourceOffer(GPU, 16, Fraction(1, 4), replicas=4),),
    ),
    SimulatedPool("l4-spot", 2, "NVIDIA-L4", 4, "g6.12xlarge", "spot", (ResourceOffer(GPU, 4, Fraction(1)),)),
)

REGION = "us-east-1"
_ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")

# (pool, day and hour of the eviction, hours until the replacement joins)
_ENDINGS: tuple[tuple[str, int, float, float], ...] = (
    ("a100", 17, 13.0, 3.5),
    ("l4-spot", 6, 3.2, 1.8),
    ("l4-spot", 19, 15.4, 2.6),
)
# Nodes of a pool that measure only a share of the time, or not at all.
_COVERAGE = {"h100-04": 0.82, "l4-spot-02": 0.9, "a100-03": 0.0}


def inventory(month: Window, scale: int = 1) -> tuple[SimulatedNode, ...]:
    """All nodes that exist at some time in ``month``, ``scale`` times the demo's number of each pool.

    The first nodes of some pools have a history: one is cordoned for two days, one advertises seven of its
    eight GPUs for three, one is replaced by a new machine, and spot nodes are taken away and come back
    under new names.
    """
    nodes = {
        node.name: node
        for pool in POOLS
        for number in range(1, pool.nodes * scale + 1)
        for node in [_node(pool, number, month)]
    }
    for pool_name, day, hour, absence in _ENDINGS:
        _replace_first(nodes, pool_name, month, int(day * DAY_MS + hour * HOUR_MS), int(absence * HOUR_MS))
    drained = _spell(month, day=9, hours=48, cordoned=True)
    broken = _spell(month, day=4, hours=67, lost=1)
    nodes["h100-02"] = replace(nodes["h100-02"], spells=(drained,))
    nodes["h100-03"] = replace(nodes["h100-03"], spells=(broken,))
    return tuple(nodes[name] for name in sorted(nodes))


def _node(pool: SimulatedPool, number: int, month: Window) -> SimulatedNode:
    name = f"{pool.name}-{number:02d}"
    return SimulatedNode(
        name,
        pool.name,
        pool.product,
        pool.boards,
        pool.instance_type,
        pool.capacity_type,
        _ZONES[number % len(_ZONES)],
        pool.offers,
        month.start_ms,
        month.end_ms,
        signal_coverage=_COVERAGE.get(name, 1.0),
    )


def _replace_first(
    nodes: dict[str, SimulatedNode], pool: str, month: Window, offset_ms: int, absence_ms: int
) -> None:
    """End the oldest living node of the pool at ``offset_ms`` and add its successor ``absence_ms`` later."""
    mates = sorted(name for name, node in nodes.items() if node.pool == pool)
    leaving = next(name for name in mates if nodes[name].end_ms == month.end_ms)
    end_ms = month.start_ms + offset_ms
    successor = f"{pool}-{len(mates) + 1:02d}"
    nodes[successor] = replace(
        nodes[leaving], name=successor, start_ms=end_ms + absence_ms, signal_coverage=1.0
    )
    nodes[leaving] = replace(nodes[leaving], end_ms=end_ms)


def _spell(month: Window, day: int, hours: int, lost: int = 0, cordoned: bool = False) -> TroubleSpell:
    start_ms = month.start_ms + day * DAY_MS + 8 * HOUR_MS + 20 * MINUTE_MS
    return TroubleSpell(start_ms, start_ms + hours * HOUR_MS, lost, cordoned)
