"""What gang_stall must be tried with."""

from __future__ import annotations

from functools import partial

from gpucost.domain.time import MINUTE_MS
from tests.detectors.worlds import Case, World, at

START = 5


def stall(
    world: World,
    job: str,
    start: float,
    end: float | None = None,
    *,
    running: int = 2,
    needed: int = 4,
    pending: int = 2,
    gang: str = "",
    kind: str = "PyTorchJob",
) -> World:
    return world.add(
        "stalls", gang=gang or f"gang-{job}", namespace="ns", job_kind=kind, job=job, job_uid=f"uid-{job}",
        queue="", min_members=needed, running=running, pending=pending, start_ms=at(start),
        end_ms=at(world.end if end is None else end),
    )  # fmt: skip


def half(minutes: float = 10, running: int = 2, needed: int = 4) -> World:
    """Two pods of four GPUs each run, the gang needs ``needed``."""
    world = World(START + minutes).node("n1")
    for name in ("a", "b"):
        world.pod(name, "n1", START, units=4, job="j", kind="PyTorchJob")
    return stall(world, "j", START, running=running, needed=needed, pending=needed - running)


def unseen(world: World) -> World:
    """With 2 of 15 minutes, in the stall, that were not observed."""
    world.seen = [(0, START + 4), (START + 6, world.end)]
    return world


def lost(minutes: float = 10, whole: int = 4) -> World:
    """``whole`` of four pods ran for five minutes; then one is gone."""
    world = World(START + minutes).node("n1")
    for n in range(whole):
        until = START if n == 3 else None
        world.pod(f"p{n}", "n1", 0, until, units=2, job="j", kind="PyTorchJob")
    return stall(world, "j", START, running=3, needed=4, pending=0)


def locked(minutes: float = 10, product: str = "") -> World:
    """Two gangs of three pods: one holds two nodes' GPUs, the other one's, and each waits for the rest."""
    world = World(START + minutes).node("n1").node("n2").node("n3")
    for node, job in (("n1", "big"), ("n2", "big"), ("n3", "small")):
        world.pod(f"p-{node}", node, START, units=8, job=job, kind="PyTorchJob")
    world.waits("big", START, units=8, kind="PyTorchJob", products=product)
    world.waits("small", START, pods=2, units=8, kind="PyTorchJob")
    stall(world, "big", START, running=2, needed=3, pending=1)
    return stall(world, "small", START, running=1, needed=3, pending=2)


def lagging(steps: int = 2, level: float = 0.09, others: float = 0.9) -> World:
    """Three pods of two GPUs each are busy for half an hour; then the first one does next to nothing."""
    world = World(30 + 5 * steps).node("n1")
    for n in range(3):
        world.pod(f"p{n}", "n1", 0, units=2, job="j", kind="PyTorchJob")
        late = [level if n == 0 else others] * steps
        for gpu in range(2):
            world.work(f"p{n}", "n1", f"g{n}-{gpu}", [0.9] * 6 + late)
    return world


def lagging_unseen() -> World:
    world = lagging()
    world.seen = [(0, 31), (33, 40)]
    return world


CASES: tuple[Case, ...] = (
    Case(
        "partial",
        positive=half,
        below=partial(half, needed=2),
        short=partial(half, minutes=9),
        gap=lambda: unseen(half()),
        board_ms=8 * 10 * MINUTE_MS,
    ),
    Case(
        "lost_rank",
        positive=lost,
        below=partial(lost, whole=3),
        short=partial(lost, minutes=9),
        gap=lambda: unseen(lost()),
        board_ms=6 * 10 * MINUTE_MS,
    ),
    Case(
        "deadlock",
        positive=locked,
        below=partial(locked, product="NVIDIA-A100-SXM4-80GB"),
        short=partial(locked, minutes=9),
        gap=lambda: unseen(locked()),
        board_ms=8 * 10 * MINUTE_MS,
    ),
    Case(
        "straggler",
        positive=lagging,
        below=partial(lagging, level=0.1),
        short=partial(lagging, steps=1),
        gap=lagging_unseen,
        board_ms=4 * 10 * MINUTE_MS,
        is_view=True,
    ),
)
