"""What monopoly must be tried with."""

from __future__ import annotations

from functools import partial

from gpucost.domain.time import HOUR_MS
from tests.detectors.worlds import Case, World

DAY = 24 * 60


def lending(others: int = 7, waits: float = 60, seen: list[tuple[float, float]] | None = None) -> World:
    """Queues a and b have quota of 10 GPUs each. a uses 12, b ``others``, nothing is free, and b waits for
    one GPU in the last minutes."""
    world = World(DAY, seen=seen).node("n1", 12).node("n2", others)
    world.pod("pa", "n1", 0, units=12, cluster_queue="a").pod("pb", "n2", 0, units=others, cluster_queue="b")
    world.quota("a", 10, 12, cohort="all").quota("b", 10, others, cohort="all")
    return world.waits("j1", DAY - waits, cluster_queue="b")


CASES: tuple[Case, ...] = (
    Case(
        "tenant",
        positive=lending,
        # 12 of 20 are 60 %: exactly 1.2 times the half that is its own.
        below=partial(lending, others=8),
        short=partial(lending, waits=59),
        gap=partial(lending, seen=[(0, 600), (800, DAY)]),
        board_ms=HOUR_MS,
        is_view=True,
    ),
)
