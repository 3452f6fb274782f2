"""Rooms and what is to be placed in few words, for tests of placement."""

from __future__ import annotations

from typing import Any

from gpucost.advisor.placement.rooms import Rooms
from gpucost.advisor.placement.wanted import Wanted
from gpucost.cluster.overview import Overview
from gpucost.cluster.pods import PodTemplate
from tests.cluster.builders import state, template

RACK, HOST = "example.com/rack", "kubernetes.io/hostname"
LEVELS = (RACK, HOST)
"""Of a Topology, widest first."""


def rooms_of(*objects: object, **collections: Any) -> Rooms:
    """Of a state of these objects, as ``builders.state`` takes them."""
    return Rooms.of(Overview(state(*objects, **collections)))


def wants(
    count: int = 1, gpus: int = 8, name: str = "main", asks: PodTemplate | None = None, **fields: Any
) -> Wanted:
    """``count`` pods of ``gpus`` GPUs, or of what ``asks`` says, all of them needed; more goes to Wanted."""
    return Wanted(name, count, fields.pop("least", count), asks or template(gpus), **fields)
