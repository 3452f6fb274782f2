"""Anti-patterns that are in the month on purpose: what detectors must find, and what they must not.

Some are jobs like any other, submitted here and run by the scheduler; others are put where it left room
(``staged``). What their GPUs do is a ``Script`` that overrides what would have been drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpucost.detectors.findings import Pattern
from gpucost.domain.jobs import JobKind
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Window
from gpucost.simulator.inventory import GPU
from gpucost.simulator.rooms import STEP_MS
from gpucost.simulator.scheduler import Placement
from gpucost.simulator.tenants import RELEASE, TEAM_BY_NAME, Team
from gpucost.simulator.workloads import Submission, identity, is_weekend, stable_rng

GIB, MIB = 1 << 30, 1 << 20


@dataclass(frozen=True, slots=True)
class Plant:
    """One anti-pattern: of job, node or queue ``name``, in ``window``, on ``boards`` boards.

    ``is_found`` False: it only looks like one, and a detector that reports it is wrong.
    """

    pattern: Pattern
    name: str
    window: Window
    boards: float
    what: str
    namespace: str = ""
    uid: str = ""
    is_found: bool = True
    node: str = ""


@dataclass(frozen=True, slots=True)
class Script:
    """What GPUs of ``job`` do in ``window``: the ones at ``boards`` in each pod, None for all of them.

    Levels are 0 to 1 and replace what was drawn; None leaves it. With ``burst_steps`` every so many steps one
    is busy all the same. ``is_seen`` False: nothing is measured.
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
    """A job of a plant: on which day and hour it is submitted, and for how long it runs."""

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


def planted(month: Window, seed: int) -> list[Submission]:
    """The jobs of plants that the scheduler runs."""
    found = [_submission(case, month, seed) for case in _CASES]
    friday = _last_friday(month)
    case = _Case("vision", JobKind.NOTEBOOK, _WEEKEND, "a100", 1, 1, 0, 9, 73)
    shifted = Window(friday, friday + DAY_MS)
    found.append(replace(_submission(case, shifted, seed), restarts=False))
    for day in (1, 8, 15, 22):
        check = _Case("", JobKind.JOB, f"{_RELEASE_CHECK}-{day:02d}", "h100", 1, 2, day, 5, 1)
        found.append(_submission(check, month, seed))
    return found


def _submission(case: _Case, month: Window, seed: int) -> Submission:
    team: Team = TEAM_BY_NAME[case.team] if case.team else RELEASE
    job = identity(seed, case.name, case.kind, team, stable_rng(seed, case.name))
    at_ms = month.start_ms + case.day * DAY_MS + int(case.hour * HOUR_MS)
    return Submission(
        job, case.pool, GPU, case.pods, case.units, at_ms, int(case.hours * HOUR_MS),
        failures=(0.999,) if case.fails else (), measured=True,
    )  # fmt: skip


def _last_friday(month: Window) -> int:
    """The start of the Friday in the fourth week."""
    days = range(month.start_ms + 18 * DAY_MS, month.start_ms + 25 * DAY_MS, DAY_MS)
    return next(day for day in days if is_weekend(day + DAY_MS) and not is_weekend(day))


def arrive_late(placements: Sequence[Placement]) -> list[Placement]:
    """The last rank of one gang is made 50 minutes after the others: its first pod was lost with its image
    half pulled."""
    return [
        replace(pod, start_ms=pod.start_ms + _LATE_MS)
        if pod.submission.job.name == _LATE and pod.index == pod.submission.pods - 1
        and pod.end_ms - pod.start_ms > 2 * _LATE_MS
        else pod
        for pod in placements
    ]  # fmt: skip


def of_jobs(placements: Sequence[Placement]) -> tuple[tuple[Plant, ...], tuple[Script, ...]]:
    """Plants of the jobs that ran, and what their GPUs do. A job that found no room in the month has none."""
    first: dict[str, Placement] = {}
    for each in placements:
        first.setdefault(each.submission.job.name, each)
    plants: list[Plant] = []
    scripts: list[Script] = []

    def steady(name: str) -> Placement | None:
        pod = first.get(name)
        if pod is not None:
            scripts.append(Script(name, Window(pod.start_ms, pod.end_ms), busy=0.95))
        return pod

    for idle in _IDLE:
        pod = steady(idle.name)
        if pod is None or (window := _window(idle, pod)) is None:
            continue
        scripts.append(Script(idle.name, window, idle.boards, busy=0.0, burst_steps=idle.burst_steps))
        boards = len(idle.boards) if idle.boards else pod.submission.units
        found = plant_of(Pattern.IDLE_ALLOCATION, pod.submission, window, boards, idle.what)
        plants.append(replace(found, is_found=not idle.burst_steps))
    if (small := first.get(_SMALL)) is not None:
        window = Window(small.start_ms, small.end_ms)
        scripts.append(Script(_SMALL, window, busy=0.35, sm_ratio=0.2, memory_bytes=6.0 * GIB))
        what = "7 % of its SMs and 6 GiB: a slice of a board would do"
        plants.append(plant_of(Pattern.OVERSIZED_REQUEST, small.submission, window, 1, what))
    if (rank := steady(_LATE)) is not None:
        window = Window(rank.start_ms, rank.start_ms + _LATE_MS)
        scripts.append(Script(_LATE, window, busy=0.0))
        held = rank.submission.units * (rank.submission.pods - 1)
        what = "three ranks of four hold their GPUs, the fourth comes after 50 minutes"
        plants.append(plant_of(Pattern.GANG_STALL, rank.submission, window, held, what))
    return tuple(plants), tuple(scripts)


def _window(idle: _Idle, pod: Placement) -> Window | None:
    """In whole steps of activity, or all of the pod's life; None where it was cut short before."""
    if not idle.hours:
        return Window(pod.start_ms, pod.end_ms)
    start_ms = -(-(pod.start_ms + int(idle.after_h * HOUR_MS)) // STEP_MS) * STEP_MS
    end_ms = start_ms + int(idle.hours * HOUR_MS)
    return Window(start_ms, end_ms) if end_ms <= pod.end_ms else None


def plant_of(pattern: Pattern, submission: Submission, window: Window, boards: float, what: str) -> Plant:
    """A plant whose subject is a job."""
    job = submission.job
    return Plant(pattern, job.name, window, boards, what, job.namespace, job.uid)


def job_of(seed: int, name: str, kind: JobKind, team: str, urgent: bool = False, **shape: int) -> Submission:
    """A job of a staged plant: ``shape`` has units, submit_ms and run_ms, and pods unless it is one."""
    job = identity(seed, name, kind, TEAM_BY_NAME[team], stable_rng(seed, name))
    known: Mapping[str, int] = {"pods": 1, **shape}
    return Submission(job, "h100", GPU, urgent=urgent, **known)  # type: ignore[arg-type]
