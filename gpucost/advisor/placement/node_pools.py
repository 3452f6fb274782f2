"""Nodes that an autoscaler would add."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpucost.advisor.model.settings import AutoscaledPool
from gpucost.advisor.placement.free_capacity import FreeCapacity
from gpucost.advisor.placement.pod_demand import PlacementDemand
from gpucost.cluster.objects.metadata import ObjectMeta, amount, parse_quantity
from gpucost.cluster.objects.nodes import Node, Taint
from gpucost.domain.errors import InputError

MOST_NEW_NODES = 2_000
"""Nodes of one pool that are considered for one answer."""
_HOSTNAME = "kubernetes.io/hostname"
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def with_pools(
    rooms: FreeCapacity, pools: Sequence[AutoscaledPool], wanted: Sequence[PlacementDemand]
) -> FreeCapacity:
    """And the nodes that each pool may still add: its ``most`` less those that are there, and no more than
    there are pods wanted, nor than ``MOST_NEW_NODES``.

    A new node is empty, and named ``<pool>/new-1`` and so on, which no node can be; its host name is its own.
    A label that the settings of the pool do not name (a rack) it does not have. Raises InputError for a pool
    whose taints or quantities make no sense.
    """
    pods = sum(max(each.count, 0) for each in wanted)
    nodes: list[Node] = []
    for pool in sorted(pools, key=lambda pool: pool.name):
        more = min(pool.most - existing(rooms, pool), pods, MOST_NEW_NODES)
        nodes += new_nodes(pool, more)
    return rooms.with_nodes(nodes, {pool.name: pool.minutes for pool in pools})


def existing(rooms: FreeCapacity, pool: AutoscaledPool) -> int:
    """Nodes that exist and belong to the pool: they have all its labels, or, where it lists none,
    its name."""
    wanted = pool.labels.items()
    return sum(
        all(node.labels.get(key) == value for key, value in wanted) if wanted else node.pool == pool.name
        for node in rooms.base.nodes
    )


def silent_about(pools: Sequence[AutoscaledPool], wanted: Sequence[PlacementDemand]) -> tuple[str, ...]:
    """What keeps new nodes out only because the settings of a pool leave it open: levels of a topology that
    its nodes may well have, as sentences. With any of them "does not fit new nodes" is not certain."""
    found = set()
    for pool in pools:
        for each in wanted:
            asked = {each.topology.get(key, "") for key in ("required", "preferred", "slice")}
            for level in {*each.levels, *asked} - {"", _HOSTNAME, *pool.labels}:
                found.add(f"pool {pool.name} does not say which {level} its new nodes will have")
    return tuple(sorted(found))


def new_nodes(pool: AutoscaledPool, count: int) -> list[Node]:
    """Nodes as the pool would add them. Raises InputError for invalid quantities and taints."""
    if count < 1:
        return []
    field = f"pools.{pool.name}"
    allocatable = _amounts(pool.allocatable, f"{field}.allocatable")
    taints = tuple(_taint(text, f"{field}.taints") for text in pool.taints)
    names = (f"{pool.name}/new-{number}" for number in range(1, count + 1))
    return [
        Node(
            ObjectMeta(name, "", name, 0, {**pool.labels, _HOSTNAME: name}, {}),
            allocatable,
            allocatable,
            is_ready=True,
            ready_since_ms=None,
            is_cordoned=False,
            pool=pool.name,
            taints=taints,
        )
        for name in names
    ]


def _amounts(quantities: Mapping[str, str], field: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for resource, text in quantities.items():
        try:
            found[resource] = amount(resource, parse_quantity(text))
        except InputError as error:
            raise InputError(f"{field}.{resource}", text, error.allowed) from error
    return found


def _taint(text: str, field: str) -> Taint:
    """``key=value:effect`` or ``key:effect``."""
    rest, colon, effect = text.rpartition(":")
    key, _, value = rest.partition("=")
    if not colon or not key or effect not in _EFFECTS:
        raise InputError(field, text, f"key=value:effect, with effect one of {', '.join(_EFFECTS)}")
    return Taint(key, value, effect)
