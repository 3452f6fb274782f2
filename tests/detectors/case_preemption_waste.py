"""What preemption_waste must be tried with."""

from __future__ import annotations

from functools import partial

from gpucost.domain.time import MINUTE_MS, SECOND_MS
from tests.detectors.worlds import Case, World, at


def evicted(
    world: World,
    uid: str,
    start: float,
    end: float,
    *,
    job: str = "",
    reason: str = "Preempted",
    by: str = "ns/other",
    checkpoint: float | None = None,
) -> World:
    return world.add(
        "evictions", pod_uid=uid, job_uid=f"uid-{job or f'job-{uid}'}", queue="q", start_ms=at(start),
        end_ms=at(end), reason=reason, by=by, checkpoint_ms=-1 if checkpoint is None else at(checkpoint),
    )  # fmt: skip


def queue_of(units: int = 8, minutes: float = 120, capacity_type: str = "") -> World:
    """Two pods run two hours and are evicted; without a known checkpoint each loses half an hour."""
    world = World(480).node("n1", 16)
    if capacity_type:
        world.rows["nodes"][0]["capacity_type"] = capacity_type
    for uid in ("a", "b"):
        world.pod(uid, "n1", 60, 60 + minutes, units=units, queue="q")
        evicted(world, uid, 60, 60 + minutes)
    return world


def cycle(times: int = 3) -> World:
    """A pod of two GPUs runs half an hour and is evicted, ``times`` times; it comes back at once."""
    world = World(240).node("n1")
    for n in range(4):
        start, end = 30 * n, 30 * (n + 1)
        if n <= times:
            world.pod(f"p{n}", "n1", start, None if n == times else end, units=2, job="j", queue="q")
        if n < times:
            evicted(world, f"p{n}", start, end, job="j")
    return world


def ring(times: int = 3, other: float | None = None, waits: bool = True) -> World:
    """A pod of two GPUs in queue ``lent`` runs half an hour and is preempted, ``times`` times, for a job of
    queue ``owns`` that waits all the time; it is back a minute later. ``other``: when a third job begins."""
    world = World(240).node("n1")
    for queue in ("owns", "lent"):
        world.quota(queue, 4, 0, cohort="pool")
    if waits:
        world.waits("asks", 0, queue="o", cluster_queue="owns", team="t2", namespace="theirs")
    for n in range(times + 1):
        start, end = 31 * n, 31 * n + 30
        last = n == times
        world.pod(
            f"p{n}", "n1", start, None if last else end, units=2, job="j", queue="q", cluster_queue="lent"
        )
        if not last:
            evicted(world, f"p{n}", start, end, job="j", by="")
    if other is not None:
        world.pod("x", "n1", other, units=1, queue="q", cluster_queue="lent")
    return world


def unseen(world: World) -> World:
    """With an hour that was not observed."""
    world.seen = [(0, 200), (260, 480)] if world.end == 480 else [(0, 120), (180, 240)]
    return world


CASES: tuple[Case, ...] = (
    Case(
        "queue",
        positive=queue_of,
        below=partial(queue_of, units=7),
        short=partial(queue_of, minutes=59),
        gap=lambda: unseen(queue_of()),
        board_ms=16 * 30 * MINUTE_MS,
    ),
    Case(
        "cycling",
        positive=cycle,
        below=partial(cycle, times=2),
        short=partial(cycle, times=2),
        gap=lambda: unseen(cycle()),
        # Three times half of half an hour, and three starts that take 30 seconds each, on two GPUs.
        board_ms=2 * 3 * (15 * MINUTE_MS + 30 * SECOND_MS),
    ),
    Case(
        "ring",
        positive=ring,
        below=partial(ring, times=2),
        short=partial(ring, times=2),
        gap=lambda: unseen(ring()),
        board_ms=2 * 3 * (15 * MINUTE_MS + 30 * SECOND_MS),
    ),
)
