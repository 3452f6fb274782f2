"""What quota_starvation must be tried with."""

from __future__ import annotations

from functools import partial

from gpucost.domain.time import MINUTE_MS
from tests.detectors.worlds import Case, World


def beside(
    minutes: float = 15,
    held: int = 7,
    spare: int = 0,
    seen: list[tuple[float, float]] | None = None,
) -> World:
    """Queue a uses its 4 GPUs and waits for one more; b leaves one of its 4 unused, c ``spare``, and all but
    ``held`` of 8 GPUs are free."""
    world = World(minutes, seen=seen).node("n1").pod("p1", "n1", 0, units=held, cluster_queue="b")
    world.quota("a", 4, 4).quota("b", 4, 3).quota("c", spare, 0)
    return world.waits("j1", 0, cluster_queue="a", queue="lq")


CASES: tuple[Case, ...] = (
    Case(
        "starved",
        positive=beside,
        below=partial(beside, held=8),
        short=partial(beside, minutes=14),
        gap=partial(beside, minutes=24, seen=[(0, 10), (14, 24)]),
        board_ms=15 * MINUTE_MS,
    ),
    Case(
        "reserved",
        positive=beside,
        below=partial(beside, spare=1),
        short=partial(beside, minutes=14),
        gap=partial(beside, minutes=24, seen=[(0, 10), (14, 24)]),
        board_ms=15 * MINUTE_MS,
        is_view=True,
        settings={"reserved_queues": "b"},
    ),
)
