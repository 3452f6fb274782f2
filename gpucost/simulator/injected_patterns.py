"""Anti-patterns that are injected into the month: what detectors must find, and what they must not.

Some are jobs like any other, submitted here and run by the scheduler (``planted``). Others, which no
scheduler causes by itself, are put where it left room (``stage``): blocked, starved and thrashed jobs. The
activity of their GPUs is an ``ActivityScript`` that overrides what would have been drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpucost.contract.queue_metrics import WaitLayer
from gpucost.detectors.findings import WastePattern
from gpucost.domain.jobs import JobKind
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Window
from gpucost.simulator.inventory import GPU, SimulatedNode
from gpucost.simulator.scheduler import STEP_MS, PodPlacement, SchedulingWait, SimulatedOutcome, SpareCapacity
from gpucost.simulator.workloads import (
    RELEASE,
    TEAM_BY_NAME,
    JobSubmission,
    SimulatedTeam,
    identity,
    is_weekend,
    stable_rng,
)

GIB, MIB = 1 << 30, 1 << 20


@dataclass(frozen=True, slots=True)
class InjectedPattern:
    """One anti-pattern: of the job, node or queue ``name``, in ``window``, on ``boards`` GPUs.

    ``is_found`` False: it only looks like one, and a detector that reports it is wrong.
    """

    pattern: WastePattern
    name: str
    window: Window
    boards: float
    what: str
    namespace: str = ""
    uid: str = ""
    is_found: bool = True
    node: str = ""


@dataclass(frozen=True, slots=True)
class ActivityScript:
    """What GPUs of ``job`` do in ``window``: those at ``boards`` in each pod, None for all of them.

    Levels are 0 to 1 and replace what was drawn; None leaves it. With ``burst_steps`` one step in so many is
    busy all the same. ``is_seen`` False: nothing is measured.
    """

    job: str
    window: Window
    boards: tuple[int, ...] | None = None
    busy: float | None = None
    sm_ratio: float | None = None
    memory_bytes: float | None = None
    burst_steps: int = 0
    is_seen: bool = True


@dataclass(frozen=True, slots=True)
class _Case:
    """A job of an injected pattern: the day and hour of its submission, and its run time."""

    team: str
    kind: JobKind
    name: str
    pool: str
    pods: int
    units: int
    day: int
    hour: float
    hours: float
    fails: bool = False


_LOADER, _WIDE, _WEEKEND, _BURSTS, _DEAD, _SMALL, _LATE = (
    "finetune-bad-loader", "finetune-five-of-eight", "nb-weekend", "thumbnailer", "legacy-captioner",
    "embed-small", "pretrain-late-rank",
)  # fmt: skip
_RELEASE_CHECK = "release-check"
_CASES = (
    _Case("language", JobKind.PYTORCH_JOB, _LOADER, "h100", 1, 4, 25, 9, 11.5, fails=True),
    _Case("speech", JobKind.PYTORCH_JOB, _WIDE, "h100", 1, 8, 30, 10, 14),
    _Case("ranking", JobKind.DEPLOYMENT, _BURSTS, "a100", 1, 1, 0, 20, 80),
    _Case("vision", JobKind.DEPLOYMENT, _DEAD, "a100", 1, 2, 2, 8, 96),
    _Case("language", JobKind.JOB, _SMALL, "h100", 1, 1, 29, 12, 36),
    _Case("vision", JobKind.PYTORCH_JOB, _LATE, "h100", 4, 2, 20, 10, 5),
)
_LATE_MS = 50 * MINUTE_MS


@dataclass(frozen=True, slots=True)
class _Idle:
    """From ``after_h`` hours on, for ``hours`` hours (0: all its life), GPUs of a job do nothing."""

    name: str
    after_h: float
    hours: float
    what: str
    boards: tuple[int, ...] | None = None
    burst_steps: int = 0


_IDLE = (
    _Idle(_LOADER, 2, 9, "a crash loop in its data loader, 9 hours long"),
    _Idle(_WIDE, 0, 0, "3 of its 8 GPUs are never used", boards=(5, 6, 7)),
    _Idle(_WEEKEND, 9, 62, "a notebook nobody looks at over the weekend"),
    _Idle(_BURSTS, 29, 5, "quiet at night, with a request now and then: it serves", burst_steps=9),
    _Idle(_DEAD, 30, 48, "nobody has called it for two days"),
)


def planted(month: Window, seed: int) -> list[JobSubmission]:
    """The jobs of injected patterns that the scheduler runs."""
    found = [_submission(case, month, seed) for case in _CASES]
    friday = _last_friday(month)
    case = _Case("vision", JobKind.NOTEBOOK, _WEEKEND, "a100", 1, 1, 0, 9, 73)
    shifted = Window(friday, friday + DAY_MS)
    found.append(replace(_submission(case, shifted, seed), restarts=False))
    for day in (1, 8, 15, 22):
        check = _Case("", JobKind.JOB, f"{_RELEASE_CHECK}-{day:02d}", "h100", 1, 2, day, 5, 1)
        found.append(_submission(check, month, seed))
    return found


def _submission(case: _Case, month: Window, seed: int) -> JobSubmission:
    team: SimulatedTeam = TEAM_BY_NAME[case.team] if case.team else RELEASE
    job = identity(seed, case.name, case.kind, team, stable_rng(seed, case.name))
    at_ms = month.start_ms + case.day * DAY_MS + int(case.hour * HOUR_MS)
    return JobSubmission(
        job, case.pool, GPU, case.pods, case.units, at_ms, int(case.hours * HOUR_MS),
        failures=(0.999,) if case.fails else (), measured=True,
    )  # fmt: skip


def _last_friday(month: Window) -> int:
    """The start of the Friday in the fourth week."""
    days = range(month.start_ms + 18 * DAY_MS, month.start_ms + 25 * DAY_MS, DAY_MS)
    return next(day for day in days if is_weekend(day + DAY_MS) and not is_weekend(day))


def arrive_late(placements: Sequence[PodPlacement]) -> list[PodPlacement]:
    """The last rank of one gang is made 50 minutes after the others: its first pod was lost with its image
    half pulled."""
    return [
        replace(pod, start_ms=pod.start_ms + _LATE_MS)
        if pod.submission.job.name == _LATE and pod.index == pod.submission.pods - 1
        and pod.end_ms - pod.start_ms > 2 * _LATE_MS
        else pod
        for pod in placements
    ]  # fmt: skip


def of_jobs(
    placements: Sequence[PodPlacement],
) -> tuple[tuple[InjectedPattern, ...], tuple[ActivityScript, ...]]:
    """Injected patterns of the jobs that ran, and the activity of their GPUs. A job that found no room in the
    month has none."""
    first: dict[str, PodPlacement] = {}
    for each in placements:
        first.setdefault(each.submission.job.name, each)
    plants: list[InjectedPattern] = []
    scripts: list[ActivityScript] = []

    def steady(name: str) -> PodPlacement | None:
        pod = first.get(name)
        if pod is not None:
            scripts.append(ActivityScript(name, Window(pod.start_ms, pod.end_ms), busy=0.95))
        return pod

    for idle in _IDLE:
        pod = steady(idle.name)
        if pod is None or (window := _window(idle, pod)) is None:
            continue
        scripts.append(ActivityScript(idle.name, window, idle.boards, busy=0.0, burst_steps=idle.burst_steps))
        boards = len(idle.boards) if idle.boards else pod.submission.units
        found = plant_of(WastePattern.IDLE_ALLOCATION, pod.submission, window, boards, idle.what)
        plants.append(replace(found, is_found=not idle.burst_steps))
    if (small := first.get(_SMALL)) is not None:
        window = Window(small.start_ms, small.end_ms)
        scripts.append(ActivityScript(_SMALL, window, busy=0.35, sm_ratio=0.2, memory_bytes=6.0 * GIB))
        what = "7 % of its SMs and 6 GiB: a slice of a GPU would do"
        plants.append(plant_of(WastePattern.OVERSIZED_REQUEST, small.submission, window, 1, what))
    if (rank := steady(_LATE)) is not None:
        window = Window(rank.start_ms, rank.start_ms + _LATE_MS)
        scripts.append(ActivityScript(_LATE, window, busy=0.0))
        held = rank.submission.units * (rank.submission.pods - 1)
        what = "three ranks of four hold their GPUs, the fourth comes after 50 minutes"
        plants.append(plant_of(WastePattern.GANG_STALL, rank.submission, window, held, what))
    return tuple(plants), tuple(scripts)


def _window(idle: _Idle, pod: PodPlacement) -> Window | None:
    """In whole steps of activity, or all of the pod's life; None where it was cut short before."""
    if not idle.hours:
        return Window(pod.start_ms, pod.end_ms)
    start_ms = -(-(pod.start_ms + int(idle.after_h * HOUR_MS)) // STEP_MS) * STEP_MS
    end_ms = start_ms + int(idle.hours * HOUR_MS)
    return Window(start_ms, end_ms) if end_ms <= pod.end_ms else None


def plant_of(
    pattern: WastePattern, submission: JobSubmission, window: Window, boards: float, what: str
) -> InjectedPattern:
    """An injected pattern whose subject is a job."""
    job = submission.job
    return InjectedPattern(pattern, job.name, window, boards, what, job.namespace, job.uid)


def job_of(
    seed: int, name: str, kind: JobKind, team: str, urgent: bool = False, **shape: int
) -> JobSubmission:
    """A job of a staged pattern: ``shape`` has units, submit_ms and run_ms, and pods unless it is one."""
    job = identity(seed, name, kind, TEAM_BY_NAME[team], stable_rng(seed, name))
    known: Mapping[str, int] = {"pods": 1, **shape}
    return JobSubmission(job, "h100", GPU, urgent=urgent, **known)  # type: ignore[arg-type]


_ATTEMPT_MS, _AWAY_MS, _REQUEUE_MS = 75 * MINUTE_MS, 12 * MINUTE_MS, 30 * SECOND_MS
_PIECES = 12
XID = "xid_79"


@dataclass(frozen=True, slots=True)
class StagedWait:
    """A wait whose reason is scripted."""

    wait: SchedulingWait
    layer: WaitLayer
    reason: str


@dataclass(frozen=True, slots=True)
class BrokenGpu:
    """The GPU at ``position`` among those of a pod, broken but held in ``window``."""

    job_uid: str
    node: str
    position: int
    window: Window


@dataclass(slots=True)
class StagedPatterns:
    """What was added to the month."""

    placements: list[PodPlacement] = field(default_factory=list)
    waits: list[StagedWait] = field(default_factory=list)
    plants: list[InjectedPattern] = field(default_factory=list)
    scripts: list[ActivityScript] = field(default_factory=list)
    broken: BrokenGpu | None = None


def stage(
    nodes: Sequence[SimulatedNode], placements: Sequence[PodPlacement], month: Window, seed: int
) -> StagedPatterns:
    """Each pattern at the first place with room for it after its day; one that finds none is left out."""
    rooms = SpareCapacity(nodes, placements, month)
    pools = {node.name: node.pool for node in nodes}
    staged = StagedPatterns()
    _fragment(staged, rooms, month, seed)
    _starve(staged, rooms, month, seed)
    _thrash(staged, rooms, month, seed, pools)
    _break(staged, nodes, placements, month)
    return staged


def _fragment(staged: StagedPatterns, rooms: SpareCapacity, month: Window, seed: int) -> None:
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
        staged.waits.append(
            StagedWait(
                SchedulingWait(job, window.start_ms, window.end_ms), WaitLayer.PLACEMENT, "Unschedulable"
            )
        )
        what = f"{_PIECES} GPUs are free, and no node has the 8 it needs; withdrawn after 4 hours"
        staged.plants.append(plant_of(WastePattern.FRAGMENTATION, job, window, 8, what))


def _starve(staged: StagedPatterns, rooms: SpareCapacity, month: Window, seed: int) -> None:
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
    # The units it waits for must stay free for it to starve.
    rooms.take(node, 4, start_ms, start_ms + run_ms)
    window = Window(submit_ms, start_ms + run_ms)
    staged.waits.append(
        StagedWait(SchedulingWait(second, window.start_ms, window.end_ms), WaitLayer.QUOTA, "WaitingForQuota")
    )
    what = "its queue is at its limit, while 4 GPUs of the same node stand idle on another's quota"
    staged.plants.append(plant_of(WastePattern.QUOTA_STARVATION, second, window, 4, what))


def _thrash(
    staged: StagedPatterns, rooms: SpareCapacity, month: Window, seed: int, pools: dict[str, str]
) -> None:
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
        _put(staged, rooms, mine, node, at_ms, _ATTEMPT_MS, SimulatedOutcome.PREEMPTED, urgent.job.full_name)
        _put(staged, rooms, urgent, node, at_ms + _ATTEMPT_MS, _AWAY_MS)
        again = replace(job, attempt=attempt + 1)
        asked_ms = at_ms + _ATTEMPT_MS + _REQUEUE_MS
        at_ms += period
        staged.waits.append(
            StagedWait(SchedulingWait(again, asked_ms, at_ms), WaitLayer.QUOTA, "WaitingForQuota")
        )
    window = Window(start_ms, at_ms + _ATTEMPT_MS)
    what = "preempted four times in a day, each time for some minutes of urgent work"
    staged.plants.append(plant_of(WastePattern.PREEMPTION_WASTE, job, window, 4, what))


def _break(
    staged: StagedPatterns, nodes: Sequence[SimulatedNode], placements: Sequence[PodPlacement], month: Window
) -> None:
    """A GPU falls off the bus (XID 79) three hours before the job that holds it notices."""
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
    staged.broken = BrokenGpu(pod.submission.job.uid, pod.node, position, window)
    staged.scripts.append(ActivityScript(pod.submission.job.name, window, (position,), is_seen=False))
    what = "XID 79: the GPU fell off the bus, and its job held it for three more hours"
    staged.plants.append(
        replace(plant_of(WastePattern.UNHEALTHY_ALLOCATED, pod.submission, window, 1, what), node=pod.node)
    )


def _put(
    staged: StagedPatterns,
    rooms: SpareCapacity,
    job: JobSubmission,
    node: str,
    start_ms: int,
    run_ms: int,
    outcome: SimulatedOutcome = SimulatedOutcome.SUCCEEDED,
    by: str = "",
) -> None:
    staged.placements.append(PodPlacement(job, 0, node, start_ms, start_ms + run_ms, outcome, by))
    rooms.take(node, job.units, start_ms, start_ms + run_ms)
