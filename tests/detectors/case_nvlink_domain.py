"""What nvlink_domain must be tried with."""

from __future__ import annotations

from gpucost.domain.time import MINUTE_MS
from tests.detectors.worlds import Case, World

TRAYS = 6


def rack(
    minutes: float = 15,
    *,
    taken: int = 2,
    wanted: int = 5,
    units: int = 4,
    held: int = 4,
    **worlds: list[tuple[float, float]],
) -> World:
    """A rack of six trays of four GPUs. A ComputeDomain has ``taken`` of them with ``held`` GPUs each, and a
    job waits for ``wanted`` trays of one clique."""
    world = World(minutes, seen=worlds.get("seen"))
    for n in range(TRAYS):
        name, is_taken = f"t{n}", n < taken
        world.node(name, 4).tray(name, taken=((0, minutes),) if is_taken else ())
        if is_taken:
            world.pod(f"h{n}", name, 0, units=held, job="holds")
    return world.waits("wide", 0, pods=wanted, units=units, layer="placement", channel="clique")


CASES: tuple[Case, ...] = (
    Case(
        "rest",
        positive=rack(),
        # Four trays are left, and it wants four.
        below=rack(wanted=4),
        short=rack(14),
        gap=rack(60, seen=[(0, 25), (35, 60)]),
        # Four free trays of four GPUs; it wants five.
        board_ms=4 * 4 * 15 * MINUTE_MS,
    ),
    Case(
        "taken_trays",
        # Two GPUs of each of the taken trays are free, and pods ask for two.
        positive=rack(units=2, held=2),
        # Of the taken trays one GPU is left: it would not fit if they had no ComputeDomain, but for the rest
        # of a whole clique.
        below=rack(units=2, held=3),
        short=rack(14, units=2, held=2),
        gap=rack(60, units=2, held=2, seen=[(0, 25), (35, 60)]),
        # Five trays, two GPUs of each.
        board_ms=5 * 2 * 15 * MINUTE_MS,
    ),
)
