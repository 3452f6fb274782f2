"""The least that makes each finding of fragmentation, and its mirrors."""

from __future__ import annotations

from gpucost.domain.time import MINUTE_MS
from tests.detectors.worlds import Case, World

MINUTES = MINUTE_MS


def halves(end: float, held: int = 5, seen: list[tuple[float, float]] | None = None) -> World:
    """Two nodes of 8 GPUs, ``held`` of each held: what is free is in two blocks."""
    world = World(end, seen=seen).node("n1").node("n2")
    return world.pod("p1", "n1", 0, units=held).pod("p2", "n2", 0, units=held)


def blocked(end: float, held: int = 5, seen: list[tuple[float, float]] | None = None) -> World:
    """A job waits for 6 GPUs on one node."""
    return halves(end, held, seen).waits("big", 0, units=6, layer="placement")


def spread(
    end: float, start: float = 0, other: int = 0, seen: list[tuple[float, float]] | None = None
) -> World:
    """Two pods of 4 GPUs on two nodes; n3 has ``other`` GPUs held from the beginning."""
    world = World(end, seen=seen).node("n1").node("n2").node("n3")
    world.pod("a", "n1", start, units=4, job="j").pod("b", "n2", start, units=4, job="j")
    for n, free in (("n1", 4), ("n2", 4)):
        world.pod(f"other-{n}", n, 0, units=free)
    return world.pod("o", "n3", 0, units=other, job="o") if other else world


def scattered(end: float, held: int = 6, seen: list[tuple[float, float]] | None = None) -> World:
    """Ten nodes of 8 GPUs with ``8 - held`` free each; pods of four usually come, and one waits."""
    world = World(end, seen=seen)
    for n in range(10):
        world.node(f"n{n}").pod(f"p{n}", f"n{n}", 0, units=held, job="j")
    return world.waits("w", 0, units=4, pods=90, min_pods=1, layer="placement")


CASES: tuple[Case, ...] = (
    Case(
        variant="blocked",
        # 3 + 3 GPUs are free, 6 are wanted on one node: 6 GPUs x 15 min.
        positive=blocked(15),
        # 2 + 2 are free: fewer than it needs, wherever they are.
        below=blocked(15, held=6),
        short=blocked(14),
        gap=blocked(60, seen=[(0, 25), (35, 60)]),
        board_ms=6 * 15 * MINUTES,
        settings={"pause": "20m"},
    ),
    Case(
        variant="jobs_spread",
        positive=spread(61),
        # n3 has 7 free of the 8 it needs.
        below=spread(61, other=1),
        short=spread(60),
        gap=spread(61, seen=[(0, 30), (40, 61)]),
        board_ms=0,
        is_view=True,
    ),
    Case(
        variant="gauge",
        # 20 of 80 GPUs are free, in blocks of 2; 90 of 100 pods ask for 4.
        positive=scattered(60),
        # 7 of 8 held: 10 of 80 are free, of which 12.5 % would be lost; the threshold is set above that.
        below=scattered(60, held=7),
        short=scattered(55),
        gap=scattered(60, seen=[(0, 20), (30, 60)]),
        board_ms=20 * 60 * MINUTES,
        is_view=True,
        settings={"gauge_share": 0.25},
    ),
    Case(
        variant="repack",
        # 4 + 4 of 8 fit on one node: 8 GPUs for the hour that both have run.
        positive=halves(60, held=4),
        below=halves(60, held=5),
        short=halves(59, held=4),
        gap=halves(60, held=4, seen=[(0, 20), (30, 60)]),
        board_ms=8 * 60 * MINUTES,
        is_view=True,
    ),
)
