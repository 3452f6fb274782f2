"""What reserved_unused must be tried with."""

from __future__ import annotations

from functools import partial

from gpucost.domain.time import HOUR_MS
from tests.detectors.worlds import STEP, Case, World

WEEK = 7 * 24 * 60


def spare(minutes: float = WEEK, used: float = 3, seen: list[tuple[float, float]] | None = None) -> World:
    """A queue with 8 GPUs of quota that uses ``used`` of them all the time."""
    world = World(minutes, seen=seen).node("n1").quota("a", 8, used)
    return world.pod("p1", "n1", 0, units=round(used), cluster_queue="a") if used else world


CASES: tuple[Case, ...] = (
    Case(
        "unused",
        positive=spare,
        below=partial(spare, used=4),
        short=partial(spare, minutes=WEEK - STEP),
        gap=partial(spare, seen=[(0, 5000), (6100, WEEK)]),
        board_ms=5 * 24 * HOUR_MS,
        is_view=True,
    ),
)
