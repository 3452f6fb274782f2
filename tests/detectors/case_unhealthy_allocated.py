"""What unhealthy_allocated must be tried with."""

from __future__ import annotations

from functools import partial

from gpucost.domain.time import MINUTE_MS
from tests.detectors.worlds import GPU, Case, World, at

START = 5


def health(world: World, gpu: str, start: float, end: float | None = None, reason: str = "lost") -> World:
    return world.add(
        "health",
        node="n1",
        gpu=gpu,
        start_ms=at(start),
        end_ms=at(world.end if end is None else end),
        reason=reason,
        pod_uid="",
        resource="",
        units=float("nan"),
    )


def told(
    world: World, pod: str, start: float, end: float | None = None, gpu: str = "", units: float = 1
) -> World:
    """The status of a pod says that units of it are unhealthy."""
    health(world, gpu, start, end, "reported_unhealthy")
    world.rows["health"][-1] |= {"pod_uid": pod, "resource": GPU, "units": units}
    return world


def reported(minutes: float = 10, units: float = 1) -> World:
    """A pod has two of eight GPUs, of which nothing is measured; from START on its status says so."""
    world = World(START + minutes).node("n1").pod("p1", "n1", 0, units=2).pod("p2", "n1", 0)
    return told(world, "p1", START, units=units)


def broken(minutes: float = 10, reason: str = "xid_79", gpu: str = "g0", step: float = 5) -> World:
    """A pod works on two of eight GPUs; from START on one of them is broken."""
    world = World(START + minutes).node("n1").pod("p1", "n1", 0, units=2)
    world.work("p1", "n1", "g0", [0.5], step=step).work("p1", "n1", "g1", [0.5] * 2, step=step)
    world.pod("p2", "n1", 0).work("p2", "n1", "g2", [0.5])
    return health(world, gpu, START, reason=reason)


def unseen(world: World) -> World:
    """With 2 of 15 minutes that were not observed."""
    world.seen = [(0, START + 4), (START + 6, world.end)]
    return world


CASES: tuple[Case, ...] = (
    Case(
        "xid",
        positive=broken,
        below=partial(broken, reason="xid_31"),
        short=partial(broken, minutes=9),
        gap=lambda: unseen(broken()),
        board_ms=10 * MINUTE_MS,
    ),
    Case(
        "lost",
        positive=partial(broken, reason="lost"),
        below=partial(broken, reason="lost", gpu="g7"),
        short=partial(broken, reason="lost", minutes=9),
        gap=lambda: unseen(broken(reason="lost")),
        board_ms=10 * MINUTE_MS,
    ),
    Case(
        "reported",
        positive=reported,
        below=partial(reported, units=0),
        short=partial(reported, minutes=9),
        gap=lambda: unseen(reported()),
        board_ms=10 * MINUTE_MS,
    ),
)
