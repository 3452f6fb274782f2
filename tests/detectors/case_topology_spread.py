"""What topology_spread must be tried with."""

from __future__ import annotations

from functools import partial
from typing import Any

from gpucost.cluster.views.overview import ClusterOverview
from gpucost.domain.time import MINUTE_MS
from tests.cluster import builders as build
from tests.detectors.worlds import Case, World, at

ZONE = "topology.kubernetes.io/zone"
START = 5
NODES = {"a1": "a", "a2": "a", "b1": "b", "b2": "b"}


def spread(minutes: float = 61, taken: int = 0, is_watched: bool = True, **asks: Any) -> World:
    """A job of two whole nodes has one in each of two zones, and another job holds ``taken`` GPUs of the
    other node of each."""
    world = World(START + minutes)
    for name in NODES:
        world.node(name)
    pods = []
    for name in ("a1", "b1"):
        world.pod(f"j-{name}-uid", name, START, units=8, job="j", kind="PyTorchJob")
        made: dict[str, Any] = {"created_ms": at(START), "namespace": "ns", "labels": {"job": "j"}}
        pods.append(build.pod(f"j-{name}", node=name, asks=build.template(8, **asks), **made))
    for name in ("a2", "b2"):
        if taken:
            world.pod(f"other-{name}", name, 0, units=taken, job=f"other-{name}", kind="PyTorchJob")
    nodes = [
        build.node(name, labels={ZONE: zone}, created_ms=at(0), product="NVIDIA-H100-80GB-HBM3")
        for name, zone in NODES.items()
    ]
    if is_watched:
        world.overview = ClusterOverview(build.state(*nodes, *pods, at_ms=at(world.end)))
    return world


CASES: tuple[Case, ...] = (
    Case(
        "spread",
        positive=spread,
        below=partial(spread, taken=1),
        short=partial(spread, minutes=60),
        gap=partial(spread, is_watched=False),
        board_ms=8 * 61 * MINUTE_MS,
        is_view=True,
    ),
)
