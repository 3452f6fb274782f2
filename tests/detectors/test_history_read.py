"""What became of a day does not depend on how much of the time before it was read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest

from gpucost.detectors.engine.evaluation import evaluate
from gpucost.detectors.rule_settings import RuleSettings
from gpucost.domain.time import MINUTE_MS
from tests.detectors.case_gang_stall import stall
from tests.detectors.case_preemption_waste import evicted
from tests.detectors.case_unhealthy_allocated import health
from tests.detectors.worlds import STEP, World, at, read_of

HOUR, DAY = 60, 24 * 60
FIRST, END = 7 * DAY, 8 * DAY + 5 * HOUR
"""The day's first minute, and the end of what an assessment of it reads."""


def _steps(start: float, end: float, level: Callable[[float], float | None]) -> list[float | None]:
    return [level(start + n * STEP) for n in range(int((end - start) // STEP))]


def stalled() -> World:
    """Of a gang's five days, and of the day's night and morning, a part was not observed."""
    world = World(END).node("n1")
    for name in ("a", "b"):
        world.pod(name, "n1", 3 * DAY, units=4, job="j", kind="PyTorchJob")
    world.seen = [
        (0, 3 * DAY + HOUR),
        (4 * DAY, FIRST - 20 * HOUR),
        (FIRST - 15 * HOUR, FIRST + 10 * HOUR),
        (FIRST + 11 * HOUR, END),
    ]
    return stall(world, "j", 3 * DAY)


def broken() -> World:
    """A GPU falls off its bus on the third day; one of the days after it was not observed."""
    world = World(END).node("n1").pod("p1", "n1", 0, units=1)
    world.work("p1", "n1", "g0", [0.5] * (END // STEP))
    world.seen = [(0, 3 * DAY), (5 * DAY, FIRST - 20 * HOUR), (FIRST - 15 * HOUR, END)]
    return health(world, "g0", 2 * DAY)


def unknown_model() -> World:
    """A GPU of an unknown model once drew 20 W; at 45 W for days it is taken to rest, or not."""
    world = World(END).node("n1", product="NVIDIA-Unheard-Of")
    world.pod("p1", "n1", 0, job="j", kind="Notebook")
    world.work("p1", "n1", "g0", [0.0] * 12, watts=20.0)
    return world.work("p1", "n1", "g0", [0.0] * (END // STEP - 12), start=HOUR, watts=45.0)


def restarted() -> World:
    """A job's first pod worked five days ago; the next one began this morning and never used its GPU."""
    world = World(END).node("n1").pod("p1", "n1", DAY, 2 * DAY, job="j")
    world.work("p1", "n1", "g0", [1.0] * (DAY // STEP), start=DAY)
    world.pod("p2", "n1", FIRST + HOUR, FIRST + 4 * HOUR, job="j")
    return world.work("p2", "n1", "g0", [0.0] * (3 * HOUR // STEP), start=FIRST + HOUR)


def served() -> World:
    """A server is called all week until this morning, and then every six hours, much less loudly."""
    quiet = FIRST + 10 * HOUR

    def received(minute: float) -> float:
        if minute < quiet:
            return 10_000_000.0
        return 1_500_000.0 if (minute - quiet) % (6 * HOUR) == 0 else 1_000.0

    world = World(END).node("n1").pod("p1", "n1", 0, job="s", kind="Deployment")
    world.work("p1", "n1", "g0", _steps(0, END, lambda minute: float(minute < quiet)))
    return world.served("p1", _steps(0, END, received), metric="bytes", received=True)


def starved() -> World:
    """A job has waited for six days, while what was free was seen in pieces at first."""
    world = World(END).node("n1", 4).quota("q1", 8, 0).quota("q2", 8, 0)
    minutes = [2 * DAY + n for n in (2, 3, 5, 6, 8, 9)]
    edges = [0, *minutes, END]
    world.seen = list(zip(edges[::2], edges[1::2], strict=True))
    return world.waits("w", 2 * DAY, units=1, cluster_queue="q1")


def came_back() -> World:
    """A node was there a week ago, and again from this morning on; a job waits for it."""
    world = World(END).node("n1", 1).pod("p1", "n1", 0, units=1)
    world.work("p1", "n1", "g0", [1.0] * (END // STEP))
    world.node("n2", 4, end=DAY).node("n2", 4, start=FIRST + 3 * HOUR)
    world.quota("q1", 8, 0).quota("q2", 8, 0)
    return world.waits("w", FIRST + HOUR, units=1, cluster_queue="q1")


def preempted() -> World:
    """Two pods are evicted this morning, the first of which left a checkpoint days ago."""
    world = World(END).node("n1", 16)
    for uid, start, end in (("a", DAY, FIRST + 2 * HOUR), ("b", FIRST - 30 * HOUR, FIRST + 3 * HOUR)):
        world.pod(uid, "n1", start, end, units=8, queue="q", job=uid)
        world.work(uid, "n1", f"g-{uid}", [1.0] * round((end - start) // STEP), start=start)
        evicted(world, uid, start, end, job=uid, checkpoint=5 * DAY if uid == "a" else None)
    return world


def partly_idle() -> World:
    """Two of four GPUs of a notebook server rest for days, the others in the nights."""
    world = World(END).node("n1").pod("p1", "n1", DAY, units=4, job="j", kind="Job")
    for n in range(4):
        levels = _steps(DAY, END, lambda minute, n=n: float(n > 1 and minute % DAY > 2 * HOUR))
        world.work("p1", "n1", f"g{n}", levels, start=DAY)
    return world


WORLDS = [stalled, broken, unknown_model, restarted, served, starved, came_back, preempted, partly_idle]


def _day(world: World, start: float) -> dict[tuple[str, str, str, int], int]:
    """GPU milliseconds of the day by bucket, node, pod and hour."""
    pieces = evaluate(read_of(world, start, END), RuleSettings()).pieces
    found: dict[tuple[str, str, str, int], float] = defaultdict(float)
    columns = ("waste", "node", "pod_uid", "start_ms", "end_ms", "boards")
    for waste, node, pod, begin, end, boards in zip(
        *(pieces[name].tolist() for name in columns), strict=True
    ):
        for hour in range(24):
            first, last = at(FIRST + hour * HOUR), at(FIRST + (hour + 1) * HOUR)
            length = min(end, last) - max(begin, first)
            if length > 0:
                found[waste, node, pod, hour] += boards * length
    return {key: round(amount) for key, amount in found.items()}


@pytest.mark.parametrize("made", WORLDS, ids=lambda made: made.__name__)
def test_a_day_is_the_same_whatever_was_read_before_it(made: Callable[[], World]) -> None:
    world = made()
    days = [_day(world, FIRST - before) for before in (DAY, DAY + 7, 2 * DAY + 3, 7 * DAY)]
    assert sum(days[0].values()) >= MINUTE_MS, "the day of this world has waste"
    assert days[1:] == [days[0]] * 3
