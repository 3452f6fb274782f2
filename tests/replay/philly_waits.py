"""The FIFO replay of the Philly trace, moment by moment: what the advisor knows when a job is submitted.

Virtual clusters have queues and 8-GPU nodes of their own. Rows are in the order of submission.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmarks.support.philly import DEFAULT_TRACES
from gpucost.advisor.model.answers import WaitEstimate
from gpucost.advisor.replay.fifo_nodes import FifoPlacement
from gpucost.advisor.wait.run_times import PastRun
from gpucost.advisor.wait.simulation import (
    SimulatedRun,
    WaitSampling,
    WaitSimulationInput,
    simulate,
)
from gpucost.domain.time import DAY_MS
from tests.support.waits.fifo import FifoJob, fifo
from tests.support.waits.run_times import AdaptiveRunTimes

FOLDER = DEFAULT_TRACES / "philly-vc"
GPUS_PER_NODE = 8
TRAINED_SHARE = 0.7
HORIZON_MS = 365 * DAY_MS
MINUTES_10 = 600
HOUR = 3_600

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Job:
    """Times in seconds since the start of the trace; ``row`` is the place in the order of submission."""

    row: int
    id: str
    vc: str
    gpus: int
    submit: int
    start: int
    run: int
    placement: FifoPlacement

    @property
    def end(self) -> int:
        return self.start + self.run

    @property
    def wait(self) -> int:
        return self.start - self.submit


@dataclass(frozen=True, slots=True)
class Moment:
    """``job`` is submitted: who runs in its virtual cluster then, and who waits before it."""

    job: Job
    running: tuple[Job, ...]
    ahead: tuple[Job, ...]
    nodes: int

    def scene(self) -> WaitSimulationInput:
        now, job = self.job.submit, self.job
        queue = (*self.ahead, job)
        return WaitSimulationInput(
            job.id,
            [
                SimulatedRun(each.id, each.vc, "", each.gpus, (now - each.start) * 1_000)
                for each in self.running
            ],
            [SimulatedRun(each.id, each.vc, "", each.gpus) for each in queue],
            fifo(
                self.nodes,
                GPUS_PER_NODE,
                {each.id: each.placement for each in self.running},
                [FifoJob(each.id, each.gpus) for each in queue],
            ),
        )

    def fits_now(self) -> bool:
        scene = self.scene()
        return self.job.id in scene.discipline().start(0, (), ())

    def fits_by_sum(self) -> bool:
        """The simple rule of the baselines: no job waits, and enough GPUs are free in all."""
        taken = sum(each.gpus for each in self.running)
        return not self.ahead and self.nodes * GPUS_PER_NODE - taken >= self.job.gpus


@dataclass(frozen=True)
class Trace:
    jobs: tuple[Job, ...]
    nodes: dict[str, int]
    baselines: dict[str, Any]

    @classmethod
    def load(cls, folder: Path = FOLDER) -> Trace:
        rows = pd.read_csv(folder / "replay_fifo.csv.gz", dtype={"vc": "str"})
        columns = (rows[name] for name in ("job", "vc", "num_gpus", "submit_s", "start_s", "run_s", "nodes"))
        reference = json.loads((folder / "reference.json").read_text(encoding="utf-8"))
        return cls(
            tuple(
                Job(row, id, vc, int(gpus), int(submit), int(start), int(run), _placement(nodes))
                for row, (id, vc, gpus, submit, start, run, nodes) in enumerate(zip(*columns, strict=True))
            ),
            {vc: each["nodes"] for vc, each in reference["replay"]["by_vc"].items()},
            json.loads((folder / "wait_baselines.json").read_text(encoding="utf-8")),
        )

    @cached_property
    def test(self) -> tuple[Job, ...]:
        """The last 30 % of those submitted."""
        return self.jobs[int(len(self.jobs) * TRAINED_SHARE) :]

    @cached_property
    def train(self) -> tuple[Job, ...]:
        """Those before whose wait was known by then."""
        split = self.test[0].submit
        return tuple(job for job in self.jobs[: self.test[0].row] if job.start <= split)

    def moments(self) -> Iterator[Moment]:
        """Every submission, in order. What ends in the very second is gone."""
        running: dict[str, dict[str, Job]] = {vc: {} for vc in self.nodes}
        queue: dict[str, list[Job]] = {vc: [] for vc in self.nodes}
        ends: dict[str, list[tuple[int, str]]] = {vc: [] for vc in self.nodes}
        for job in self.jobs:
            own, waiting, leaving = running[job.vc], queue[job.vc], ends[job.vc]
            started = 0
            while started < len(waiting) and waiting[started].start <= job.submit:
                own[waiting[started].id] = waiting[started]
                heapq.heappush(leaving, (waiting[started].end, waiting[started].id))
                started += 1
            del waiting[:started]
            while leaving and leaving[0][0] <= job.submit:
                del own[heapq.heappop(leaving)[1]]
            yield Moment(job, tuple(own.values()), tuple(waiting), self.nodes[job.vc])
            waiting.append(job)


def _placement(nodes: str) -> FifoPlacement:
    pairs = (each.split(":") for each in nodes.split("|"))
    return tuple((int(node), int(gpus)) for node, gpus in pairs)


class History:
    """Run times learnt only from jobs that ended before."""

    def __init__(self, trace: Trace) -> None:
        self._ending = sorted(trace.jobs, key=lambda job: (job.end, job.row))
        self._known = 0
        self.run_times = AdaptiveRunTimes()

    def until(self, second: int) -> AdaptiveRunTimes:
        while self._known < len(self._ending) and self._ending[self._known].end < second:
            job = self._ending[self._known]
            self.run_times.learn(PastRun(job.vc, "", job.gpus, job.run * 1_000))
            self._known += 1
        return self.run_times


@dataclass(frozen=True, slots=True)
class Predicted:
    job: Job
    wait: WaitEstimate


def predicted(moment: Moment, history: History, samples: int) -> Predicted:
    run_times = history.until(moment.job.submit)
    sampling = WaitSampling(samples, HORIZON_MS, seed=moment.job.row)
    return Predicted(moment.job, simulate(moment.scene(), run_times, sampling))


def figures(predicted_s: Seconds, actual_s: Seconds) -> dict[str, float]:
    """As in wait_baselines.json."""
    error = np.abs(predicted_s - actual_s)
    waited = actual_s > MINUTES_10
    half, twice = predicted_s >= actual_s / 2, predicted_s <= 2 * actual_s
    return {
        "mae_s": float(error.mean()),
        "median_ae_s": float(np.median(error)),
        "within_10min": float((error <= MINUTES_10).mean()),
        "within_1h": float((error <= HOUR).mean()),
        "within_2x_of_waits_over_10min": float((half & twice)[waited].mean()),
    }
