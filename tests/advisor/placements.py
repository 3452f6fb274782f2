"""Rooms and what is to be placed in few words, for tests of placement."""

from __future__ import annotations

from typing import Any

from gpucost.advisor.placement.free_capacity import FreeCapacity
from gpucost.advisor.placement.pod_demand import PlacementDemand
from gpucost.cluster.objects.pods import PodTemplate
from gpucost.cluster.views.overview import ClusterOverview
from tests.cluster.builders import state, template

RACK, HOST = "example.com/rack", "kubernetes.io/hostname"
LEVELS = (RACK, HOST)
"""Of a Topology, widest first."""


def rooms_of(*objects: object, **collections: Any) -> FreeCapacity:
    """Of a state of these objects, as ``builders.state`` takes them."""
    return FreeCapacity.of(ClusterOverview(state(*objects, **collections)))


def wants(
    count: int = 1, gpus: int = 8, name: str = "main", asks: PodTemplate | None = None, **fields: Any
) -> PlacementDemand:
    """``count`` pods of ``gpus`` GPUs, or of what ``asks`` says, all of them needed; more goes to Wanted."""
    return PlacementDemand(name, count, fields.pop("least", count), asks or template(gpus), **fields)
