"""What idle_allocation must be tried with: each variant at its threshold, below it, too short, with a gap."""

from __future__ import annotations

from collections.abc import Sequence

from gpucost.domain.time import MINUTE_MS
from tests.detectors.worlds import STEP, Case, World

START = 5
"""The history begins earlier, so that the pod's start is known; its grace ends ten minutes later."""
GRACE = 10


def holding(
    levels: Sequence[Sequence[float | None]], kind: str = "Job", busy_first: int = 0, late: int = 0
) -> World:
    """One pod with a GPU per row of ``levels``, in steps from START on; the world ends ``late`` minutes
    after them. Before ``levels`` come ``busy_first`` steps of work."""
    steps = busy_first + max(len(each) for each in levels)
    end = START + steps * STEP + late
    world = World(end).node("n1").pod("p1", "n1", START, units=len(levels), job="j1", kind=kind)
    for n, each in enumerate(levels):
        world.work("p1", "n1", f"GPU-{n}", [*[1.0] * busy_first, *each], start=START)
    # These servers are known not to be called, so that the activity of GPUs decides.
    serves = kind in ("Deployment", "RayService")
    return world.served("p1", [0.0] * steps, start=START) if serves else world


def idle(minutes: int) -> list[float | None]:
    return [0.0] * (minutes // STEP)


def spoiled(levels: Sequence[float | None], value: float | None, steps: Sequence[int]) -> list[float | None]:
    """With another value in some steps."""
    return [value if n in steps else level for n, level in enumerate(levels)]


def _case(kind: str, minutes: int, gpus: int, busy_first: int = 0) -> Case:
    """All GPUs idle for ``minutes``, after the grace or after some work."""
    levels = idle(minutes + (0 if busy_first else GRACE))
    middle, gap = len(levels) // 2, range(len(levels) // 2, len(levels) // 2 + minutes // STEP // 5)
    return Case(
        "whole",
        positive=holding([levels] * gpus, kind, busy_first),
        below=holding([spoiled(levels, 0.001, [middle])] * gpus, kind, busy_first),
        short=holding([levels[1:]] * gpus, kind, busy_first),
        gap=holding([spoiled(levels, None, gap)] * gpus, kind, busy_first),
        board_ms=gpus * minutes * MINUTE_MS,
    )


def _partly() -> Case:
    levels, busy = idle(60), [1.0] * 12
    others: list[Sequence[float | None]] = [busy] * 7
    return Case(
        "partly",
        positive=holding([*others, levels], busy_first=6),
        below=holding([*others, spoiled(levels, 0.001, [6])], busy_first=6),
        short=holding([*others, [1.0, *levels[1:]]], busy_first=6),
        gap=holding([*others, spoiled(levels, None, [4, 5])], busy_first=6),
        board_ms=60 * MINUTE_MS,
    )


CASES: tuple[Case, ...] = (
    _case("Job", 60, 2),
    _case("PyTorchJob", 240, 2, busy_first=12),
    _case("Notebook", 60, 1, busy_first=6),
    _case("Deployment", 240, 1, busy_first=6),
    _case("Pod", 240, 1, busy_first=6),
    _partly(),
)
