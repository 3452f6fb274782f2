"""What cpu_only_pods must be tried with."""

from __future__ import annotations

from functools import partial
from typing import Any

from gpucost.cluster.objects.nodes import Taint
from gpucost.cluster.objects.pods import Pod
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.domain.jobs import OwnerReference
from gpucost.domain.time import MINUTE_MS
from tests.cluster import builders as build
from tests.detectors.worlds import Case, World, at


def overview(
    cores: float,
    end: float,
    *,
    owner: str = "",
    taints: tuple[Taint, ...] = (),
    gpus: int = 6,
    team: str = "",
    more: tuple[Pod, ...] = (),
) -> ClusterOverview:
    """A node of 64 cores and eight GPUs: a pod with ``gpus`` GPUs and as many times eight cores, and one with
    ``cores`` and no GPU."""
    made: dict[str, Any] = {"created_ms": at(0), "namespace": "ns"}
    reference = OwnerReference("apps/v1", owner, "agent", "agent-uid") if owner else None
    objects = (
        build.node("n1", created_ms=at(0), taints=taints),
        build.pod("train", node="n1", asks=build.template(gpus, cpu=8_000 * gpus), **made),
        build.pod(
            "web",
            node="n1",
            asks=build.template(cpu=round(cores * 1000)),
            owner=reference,
            labels={"team": team} if team else {},
            **made,
        ),
        *more,
    )
    return ClusterOverview(build.state(*objects, at_ms=at(end)))


def crowded(cores: float = 8, minutes: float = 15, is_watched: bool = True, **more: Any) -> World:
    """Of 16 cores left for two free GPUs a pod without a GPU takes ``cores``."""
    world = World(minutes).node("n1").pod("train-uid", "n1", 0, units=6)
    world.overview = overview(cores, minutes, **more) if is_watched else None
    return world


CASES: tuple[Case, ...] = (
    Case(
        "blocked",
        positive=partial(crowded, cores=0.001),
        below=partial(crowded, cores=0),
        short=partial(crowded, cores=0.001, minutes=14),
        gap=partial(crowded, is_watched=False),
        board_ms=15 * MINUTE_MS,
        is_view=True,
    ),
)
