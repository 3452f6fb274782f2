"""How long a job waits: the queue is simulated many times over, with drawn run times."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import NormalDist
from typing import Protocol

from gpucost.advisor.model.answers import WaitEstimate, WaitRange
from gpucost.advisor.wait.run_times import LikeJobs, RunTimes
from gpucost.domain.errors import InputError

SHARED_SPREAD = 0.6
"""Run times of one sample share a factor exp(0.6 z), z standard normal: the runs of a burst are alike, and
the history may be of another burst. Without it the errors of many draws cancel, and the range is too narrow.
In a replay of the Philly trace 90 % of waits fall below p90, in its first 70 % and in the rest."""

_NORMAL = NormalDist()
_GOLDEN = (math.sqrt(5) - 1) / 2


class QueueDiscipline(Protocol):
    """Decides which jobs may start. One is made for every sample, in the state of now, and it keeps count of
    what is free."""

    def start(self, now_ms: int, ended: Sequence[str], arrived: Sequence[str], /) -> Sequence[str]:
        """The jobs that start at ``now_ms`` (from the start of the simulation), once ``ended`` gave back what
        they held and ``arrived`` joined their queues. Called with neither at 0."""
        ...


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """A job that runs (``elapsed_ms``) or waits (0). ``at_most_ms`` is what its deadline leaves it."""

    id: str
    team: str
    name: str
    gpus: int
    elapsed_ms: int = 0
    at_most_ms: int | None = None


@dataclass(frozen=True, slots=True)
class JobArrival:
    """A job that will be submitted ``at_ms`` from now."""

    at_ms: int
    run: SimulatedRun


JobArrivals = Callable[[Random], Sequence[JobArrival]]


def no_arrivals(_: Random) -> Sequence[JobArrival]:
    """No job is submitted: all that matters in strict FIFO, where none overtakes."""
    return ()


@dataclass(frozen=True, slots=True)
class WaitSampling:
    """``samples`` simulations of ``horizon_ms``, seeded with ``seed``. What a job has left is rounded up to
    ``grain_ms``, so that a discipline which is slow to ask is asked less often.

    Raises InputError for numbers that are not above zero.
    """

    samples: int
    horizon_ms: int
    seed: int
    grain_ms: int = 1

    def __post_init__(self) -> None:
        for field in ("samples", "horizon_ms", "grain_ms"):
            if getattr(self, field) < 1:
                raise InputError(field, getattr(self, field), "a whole number above 0")


@dataclass(frozen=True, slots=True)
class WaitSimulationInput:
    """The jobs that run and that wait now; the one that is asked about (``target``) is among the waiting."""

    target: str
    running: Sequence[SimulatedRun]
    waiting: Sequence[SimulatedRun]
    discipline: Callable[[], QueueDiscipline]
    arrivals: JobArrivals = no_arrivals


def simulate(
    scene: WaitSimulationInput,
    run_times: RunTimes,
    sampling: WaitSampling,
    is_late: Callable[[], bool] = lambda: False,
) -> WaitEstimate | None:
    """The wait of ``scene.target``: 0 without any simulation when it starts now. No sample begins once
    ``is_late``; None where none was begun.

    The same seed gives the same answer, whatever the order of ``running`` and, where the discipline does not
    care, of ``waiting``.
    Raises InputError when the target does not wait.
    """
    known = {run.id: run for run in (*scene.running, *scene.waiting)}
    if scene.target not in {run.id for run in scene.waiting}:
        raise InputError("target", scene.target, "the id of a job that waits")
    if scene.target in scene.discipline().start(0, (), ()):
        return WaitEstimate(0, 0, sampling.horizon_ms, "it fits now", 0, p10_ms=0)
    jobs = _Jobs(run_times, known, scene.target)
    random = Random(sampling.seed)
    waits: list[float] = []
    for factor in _factors(sampling.samples):
        if is_late():
            break
        waits.append(_sample(scene, jobs, sampling, factor, random))
    if not waits:
        return None
    waits.sort()
    found = WaitRange(*(_within(_rank(waits, q), sampling.horizon_ms) for q in (0.1, 0.5, 0.9)))
    return WaitEstimate(
        found.p50_ms,
        found.p90_ms,
        sampling.horizon_ms,
        jobs.basis(scene),
        len(waits),
        p10_ms=found.p10_ms,
        simulated=found,
    )


class _Jobs:
    """What is known of each job, looked up once per kind."""

    def __init__(self, run_times: RunTimes, known: Mapping[str, SimulatedRun], target: str) -> None:
        self._run_times = run_times
        self._likes: dict[tuple[str, str, int], LikeJobs] = {}
        self.by_id = known
        self.drawn = sorted(known.keys() - {target})
        self.likes = {id: self.like(run) for id, run in known.items()}

    def like(self, run: SimulatedRun) -> LikeJobs:
        key = (run.team, run.name, run.gpus)
        if key not in self._likes:
            self._likes[key] = self._run_times.like(*key)
        return self._likes[key]

    def basis(self, scene: WaitSimulationInput) -> str:
        """A sentence about the groups that run times are from, the largest first."""
        counts: dict[str, int] = {}
        for run in (*scene.running, *scene.waiting):
            if run.id != scene.target:
                basis = self.likes[run.id].basis
                counts[basis] = counts.get(basis, 0) + 1
        ranked = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
        if not ranked:
            return "nothing runs and nothing waits before it"
        (first, jobs), others = ranked[0], len(ranked) - 1
        more = f", and {others} other group{'s' if others > 1 else ''} of like jobs" if others else ""
        return f"{first} (for {jobs} of {sum(counts.values())} jobs that run or wait){more}"


def _factors(samples: int) -> list[float]:
    """Evenly spread over the distribution rather than drawn, so that the median is stable. In an order in
    which the first few are spread too: how many there is time for is not known."""
    parts = [(at + 0.5) / samples for at in range(samples)]
    places = sorted(range(samples), key=lambda at: (0.5 + at * _GOLDEN) % 1.0)
    return [
        math.exp(SHARED_SPREAD * _NORMAL.inv_cdf(part)) for _, part in sorted(zip(places, parts, strict=True))
    ]


def _sample(
    scene: WaitSimulationInput, jobs: _Jobs, sampling: WaitSampling, factor: float, random: Random
) -> float:
    """The wait in one simulation; infinite beyond the horizon, or when it never starts."""
    uniforms = {id: random.random() for id in jobs.drawn}
    arrivals = {arrival.run.id: arrival for arrival in scene.arrivals(random)}
    uniforms |= {id: random.random() for id in arrivals}
    grain = sampling.grain_ms

    def ends_at(now_ms: int, id: str) -> int:
        run = jobs.by_id.get(id) or arrivals[id].run
        like = jobs.likes.get(id) or jobs.like(run)
        left = int(factor * like.remaining_ms(run.elapsed_ms, uniforms[id])) + 1
        if run.at_most_ms is not None and left > run.at_most_ms:
            left = max(run.at_most_ms, 1)
        return now_ms + -(-left // grain) * grain

    events = [(ends_at(0, run.id), True, run.id) for run in scene.running]
    events += [(arrival.at_ms, False, id) for id, arrival in arrivals.items()]
    heapq.heapify(events)
    discipline = scene.discipline()
    now_ms, ended, arrived = 0, list[str](), list[str]()
    while now_ms <= sampling.horizon_ms:
        for id in discipline.start(now_ms, ended, arrived):
            if id == scene.target:
                return now_ms
            heapq.heappush(events, (ends_at(now_ms, id), True, id))
        if not events:
            break
        now_ms, ended, arrived = events[0][0], [], []
        while events and events[0][0] == now_ms:
            _, is_end, id = heapq.heappop(events)
            (ended if is_end else arrived).append(id)
    return math.inf


def _rank(ordered: Sequence[float], q: float) -> float:
    return ordered[max(math.ceil(q * len(ordered)), 1) - 1]


def _within(wait: float, horizon_ms: int) -> int | None:
    return int(wait) if wait <= horizon_ms else None
