"""What not_advertised must be tried with."""

from __future__ import annotations

from functools import partial

from gpucost.domain.time import MINUTE_MS
from tests.detectors.worlds import Case, World

START = 5


def node(allocatable: int = 0, minutes: float = 10, schedulable: int = 1, expected: int = 8) -> World:
    """A node of eight GPUs advertises ``allocatable`` of them from START on."""
    world = World(START + minutes).node("n1", capacity=False)
    world.counts("n1", 0, START, expected, 8, 1)
    return world.counts("n1", START, START + minutes, expected, allocatable, schedulable)


def unseen(world: World) -> World:
    """With 2 of 15 minutes that were not observed."""
    world.seen = [(0, START + 4), (START + 6, world.end)]
    return world


CASES: tuple[Case, ...] = (
    Case(
        "none",
        positive=node,
        below=partial(node, allocatable=8),
        short=partial(node, minutes=9),
        gap=lambda: unseen(node()),
        board_ms=8 * 10 * MINUTE_MS,
    ),
    Case(
        "fewer",
        positive=partial(node, allocatable=7),
        below=partial(node, allocatable=8),
        short=partial(node, allocatable=7, minutes=9),
        gap=lambda: unseen(node(allocatable=7)),
        board_ms=10 * MINUTE_MS,
    ),
)
