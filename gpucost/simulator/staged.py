"""Plants that no scheduler makes by itself, put where it left room: blocked, starved and thrashed jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gpucost.contract.queue_metrics import Layer
from gpucost.detectors.findings import Pattern
from gpucost.domain.jobs import JobKind
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Window
from gpucost.simulator.inventory import Node
from gpucost.simulator.plants import Plant, Script, job_of, plant_of
from gpucost.simulator.rooms import STEP_MS, Rooms
from gpucost.simulator.scheduler import Outcome, Placement, Wait
from gpucost.simulator.workloads import Submission

_ATTEMPT_MS, _AWAY_MS, _REQUEUE_MS = 75 * MINUTE_MS, 12 * MINUTE_MS, 30 * SECOND_MS
_PIECES = 12
XID = "xid_79"


@dataclass(frozen=True, slots=True)
class Held:
    """A wait whose reason is scripted."""

    wait: Wait
    layer: Layer
    reason: str


@dataclass(frozen=True, slots=True)
class Broken:
    """The board at ``position`` among those of a pod, broken but held in ``window``."""

    job_uid: str
    node: str
    position: int
    window: Window


@dataclass(slots=True)
class Staged:
    """What was added to the month."""

    placements: list[Placement] = field(default_factory=list)
    waits: list[Held] = field(default_factory=list)
    plants: list[Plant] = field(default_factory=list)
    scripts: list[Script] = field(default_factory=list)
    broken: Broken | None = None


def stage(nodes: Sequence[Node], placements: Sequence[Placement], month: Window, seed: int) -> Staged:
    """Each plant at the first place with room for it after its day; one that finds none is left out."""
    rooms = Rooms(nodes, placements, month)
    pools = {node.name: node.pool for node in nodes}
    staged = Staged()
    _fragment(staged, rooms, month, seed)
    _starve(staged, rooms, month, seed)
    _thrash(staged, rooms, month, seed, pools)
    _break(staged, nodes, placements, month)
    return staged


def _fragment(staged: Staged, rooms: Rooms, month: Window, seed: int) -> None:
    """Small jobs on every empty node: two that need a whole one wait four hours, while 12 GPUs are free."""
    length_ms = 4 * HOUR_MS + 10 * MINUTE_MS
    found = rooms.pieces("h100", 8, _PIECES, length_ms, month.start_ms + 5 * DAY_MS)
    if found is None:
        return
    start_ms, taken = found
    number = 0
    for node, units in taken.items():
        for piece in [4] * (units // 4) + [1] * (units % 4):
            number += 1
            small = job_of(
                seed, f"ablation-long-{number:02d}", JobKind.JOB, "vision",
                units=piece, submit_ms=start_ms, run_ms=length_ms,
            )  # fmt: skip
            _put(staged, rooms, small, node, start_ms, length_ms)
    window = Window(start_ms + STEP_MS, start_ms + STEP_MS + 4 * HOUR_MS)
    for name in ("finetune-blocked-a", "finetune-blocked-b"):
        job = job_of(
            seed, name, JobKind.PYTORCH_JOB, "language",
            units=8, submit_ms=window.start_ms, run_ms=2 * HOUR_MS,
        )  # fmt: skip
        staged.waits.append(Held(Wait(job, window.start_ms, window.end_ms), Layer.PLACEMENT, "Unschedulable"))
        what = f"{_PIECES} GPUs are free, and no node has the 8 it needs; withdrawn after 4 hours"
        staged.plants.append(plant_of(Pattern.FRAGMENTATION, job, window, 8, what))


def _starve(staged: Staged, rooms: Rooms, month: Window, seed: int) -> None:
    """A queue at its limit waits, with room for it on a node: the quota is another's."""
    run_ms = 5 * HOUR_MS
    found = rooms.find(["h100"], 8, run_ms + HOUR_MS, month.start_ms + 14 * DAY_MS)
    if found is None:
        return
    node, start_ms = found
    first = job_of(seed, "grasp-train", JobKind.JOB, "robotics", units=4, submit_ms=start_ms, run_ms=run_ms)
    _put(staged, rooms, first, node, start_ms, run_ms)
    submit_ms = start_ms + HOUR_MS
    second = job_of(seed, "grasp-eval", JobKind.JOB, "robotics", units=4, submit_ms=submit_ms, run_ms=HOUR_MS)
    _put(staged, rooms, second, node, start_ms + run_ms, HOUR_MS)
    # What it waits beside must stay free for it to starve.
    rooms.take(node, 4, start_ms, start_ms + run_ms)
    window = Window(submit_ms, start_ms + run_ms)
    staged.waits.append(Held(Wait(second, window.start_ms, window.end_ms), Layer.QUOTA, "WaitingForQuota"))
    what = "its queue is at its limit, while 4 GPUs of the same node stand idle on another's quota"
    staged.plants.append(plant_of(Pattern.QUOTA_STARVATION, second, window, 4, what))


def _thrash(staged: Staged, rooms: Rooms, month: Window, seed: int, pools: dict[str, str]) -> None:
    """One job gives way to urgent ones four times in a day."""
    period = _ATTEMPT_MS + _AWAY_MS
    found = rooms.find(["h100", "a100-owned", "a100"], 4, 5 * period, month.start_ms + 16 * DAY_MS)
    if found is None:
        return
    node, start_ms = found
    job = replace(
        job_of(seed, "sim-grid", JobKind.JOB, "vision", units=4, submit_ms=start_ms, run_ms=5 * _ATTEMPT_MS),
        pool=pools[node],
    )
    at_ms = start_ms
    for attempt in range(5):
        mine = replace(job, attempt=attempt)
        if attempt == 4:
            _put(staged, rooms, mine, node, at_ms, _ATTEMPT_MS)
            break
        urgent = replace(
            job_of(
                seed, f"demo-day-{attempt + 1}", JobKind.JOB, "speech", urgent=True,
                units=4, submit_ms=at_ms + _ATTEMPT_MS, run_ms=_AWAY_MS,
            ),
            pool=pools[node],
        )  # fmt: skip
        _put(staged, rooms, mine, node, at_ms, _ATTEMPT_MS, Outcome.PREEMPTED, urgent.job.full_name)
        _put(staged, rooms, urgent, node, at_ms + _ATTEMPT_MS, _AWAY_MS)
        again = replace(job, attempt=attempt + 1)
        asked_ms = at_ms + _ATTEMPT_MS + _REQUEUE_MS
        at_ms += period
        staged.waits.append(Held(Wait(again, asked_ms, at_ms), Layer.QUOTA, "WaitingForQuota"))
    window = Window(start_ms, at_ms + _ATTEMPT_MS)
    what = "preempted four times in a day, each time for some minutes of urgent work"
    staged.plants.append(plant_of(Pattern.PREEMPTION_WASTE, job, window, 4, what))


def _break(staged: Staged, nodes: Sequence[Node], placements: Sequence[Placement], month: Window) -> None:
    """A board falls off the bus (XID 79) three hours before the job that holds it notices."""
    measuring = {node.name for node in nodes if node.signal_coverage == 1 and node.pool == "h100"}
    from_ms, hours = month.start_ms + 24 * DAY_MS, 3
    holders = [
        pod
        for pod in placements
        if pod.node in measuring
        and pod.submission.pods == 1
        and pod.submission.units >= 2
        and pod.start_ms >= from_ms
        and pod.end_ms - pod.start_ms >= (hours + 1) * HOUR_MS
        and not pod.submission.measured
    ]
    if not holders:
        return
    pod = min(holders, key=lambda each: (each.start_ms, each.submission.job.uid))
    end_ms = pod.end_ms // STEP_MS * STEP_MS
    window = Window(end_ms - hours * HOUR_MS, end_ms)
    position = pod.submission.units - 1
    staged.broken = Broken(pod.submission.job.uid, pod.node, position, window)
    staged.scripts.append(Script(pod.submission.job.name, window, (position,), is_seen=False))
    what = "XID 79: the board fell off the bus, and its job held it for three more hours"
    staged.plants.append(
        replace(plant_of(Pattern.UNHEALTHY_ALLOCATED, pod.submission, window, 1, what), node=pod.node)
    )


def _put(
    staged: Staged,
    rooms: Rooms,
    job: Submission,
    node: str,
    start_ms: int,
    run_ms: int,
    outcome: Outcome = Outcome.SUCCEEDED,
    by: str = "",
) -> None:
    staged.placements.append(Placement(job, 0, node, start_ms, start_ms + run_ms, outcome, by))
    rooms.take(node, job.units, start_ms, start_ms + run_ms)
