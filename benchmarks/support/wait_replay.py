"""Months of real traces queued again: on fewer GPUs, first in first out on nodes, or by Kueue's quota.

Each month starts with nothing running and nothing known. A virtual cluster is a queue with nodes of its own,
so many that the GPU time which its jobs of the month ask for is ``load`` of what they have; those with fewer
than 50 jobs are left out. ``fifo`` is strict, on nodes of 8 GPUs. ``kueue`` is a BestEffortFIFO ClusterQueue
without a cohort: quota is a number, and who does not fit is passed by those behind (Kueue v0.19.2,
site/content/en/docs/concepts/cluster_queue.md, "Queueing strategy").
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmarks.support.helios_jobs import helios_jobs
from gpucost.advisor.model.answers import WaitRange
from gpucost.advisor.replay.fifo_nodes import FifoNodes, FifoPlacement
from gpucost.advisor.wait.forecast_skill import PastWait, WaitSkill
from gpucost.advisor.wait.run_times import PastRun
from gpucost.advisor.wait.simulation import (
    SimulatedRun,
    WaitSampling,
    WaitSimulationInput,
    simulate,
)
from gpucost.domain.time import DAY_MS, SECOND_MS
from tests.support.waits.fifo import FifoDiscipline, FifoJob
from tests.support.waits.run_times import AdaptiveRunTimes

RULES = ("fifo", "kueue")
HELIOS = "helios"
"""Stands for May 2020 of the Helios cluster "Earth"; other months are of the Philly trace."""
GPUS_PER_NODE = 8
FEWEST_JOBS = 50
HORIZON_MS = 365 * DAY_MS

Seconds = npt.NDArray[np.float64]


def month_of(traces: Path, month: str) -> pd.DataFrame:
    """The jobs of ``month`` (``2017-12``; ``helios``) in the order of submission: vc, gpus, submit and run in
    seconds."""
    if month == HELIOS:
        return helios_jobs(traces / "helios-earth-vc")
    jobs = pd.read_csv(traces / "philly-vc" / "jobs.csv.gz", dtype={"vc": "str"}, parse_dates=["submit_time"])
    jobs = jobs.sort_values(["submit_time", "job"], kind="stable")
    jobs = jobs[jobs["submit_time"].dt.to_period("M") == pd.Period(month)].reset_index(drop=True)
    since = jobs["submit_time"] - jobs["submit_time"].min().normalize()
    return pd.DataFrame(
        {
            "vc": jobs["vc"],
            "gpus": jobs["num_gpus"].astype("int64"),
            "submit": since.dt.total_seconds().astype("int64"),
            "run": jobs["run_s"].astype("int64").clip(lower=1),
        }
    )


@dataclass(frozen=True)
class QueuedMonth:
    """``start`` is when each job started, ``places`` where; ``nodes`` of each virtual cluster."""

    jobs: pd.DataFrame
    rule: str
    nodes: Mapping[str, int]
    start: npt.NDArray[np.int64]
    places: Mapping[int, FifoPlacement]

    @classmethod
    def play(cls, jobs: pd.DataFrame, rule: str, load: float) -> QueuedMonth:
        kept = jobs.groupby("vc")["vc"].transform("size") >= FEWEST_JOBS
        jobs = jobs[kept].reset_index(drop=True)
        span = int(jobs["submit"].max() - jobs["submit"].min())
        nodes, start = dict[str, int](), np.zeros(len(jobs), dtype=np.int64)
        places: dict[int, FifoPlacement] = {}
        for vc, own in jobs.groupby("vc"):
            asked = float((own["gpus"] * own["run"]).sum()) / (load * span * GPUS_PER_NODE)
            nodes[str(vc)] = max(math.ceil(asked), math.ceil(own["gpus"].max() / GPUS_PER_NODE))
            for row, at, place in _started(own, rule, nodes[str(vc)]):
                start[row], places[row] = at, place
        return cls(jobs, rule, nodes, start, places)

    @cached_property
    def waits(self) -> npt.NDArray[np.int64]:
        """Seconds, of every job."""
        found: npt.NDArray[np.int64] = self.start - self.jobs["submit"].to_numpy()
        return found

    def sampled(self, count: int) -> npt.NDArray[np.int64]:
        """About ``count`` of those that wait, evenly in the order of submission."""
        rows: npt.NDArray[np.int64] = np.flatnonzero(self.waits > 0)
        every = max(1, len(rows) // count)
        return rows[every // 2 :: every]

    def simulated(self, rows: npt.NDArray[np.int64], samples: int) -> dict[int, WaitRange]:
        """What the simulation says when each of ``rows`` is submitted, with run times that ended by then."""
        submit, run, gpus, vc = (self.jobs[name].to_numpy() for name in ("submit", "run", "gpus", "vc"))
        ends = self.start + run
        ending, known = np.argsort(ends, kind="stable"), 0
        run_times, found = AdaptiveRunTimes(), dict[int, WaitRange]()
        for row in rows.tolist():
            now = submit[row]
            while known < len(ending) and ends[ending[known]] < now:
                ended = ending[known]
                run_times.learn(PastRun(vc[ended], "", int(gpus[ended]), int(run[ended]) * SECOND_MS))
                known += 1
            sampling = WaitSampling(samples, HORIZON_MS, seed=row)
            wait = simulate(self._scene(row), run_times, sampling)
            if wait is not None and wait.simulated is not None:
                found[row] = wait.simulated
        return found

    def _scene(self, row: int) -> WaitSimulationInput:
        jobs = self.jobs.iloc[: row + 1]
        now = int(jobs["submit"].iloc[-1])
        start, own = self.start[: row + 1], (jobs["vc"] == jobs["vc"].iloc[-1]).to_numpy()
        running = np.flatnonzero(own & (start <= now) & (start + jobs["run"].to_numpy() > now))
        queue = np.flatnonzero(own & (start > now))
        vc, gpus = str(jobs["vc"].iloc[-1]), jobs["gpus"].to_numpy()

        def run_of(each: int, elapsed_s: int = 0) -> SimulatedRun:
            return SimulatedRun(str(each), vc, "", int(gpus[each]), elapsed_s * SECOND_MS)

        held = {str(each): self.places[each] for each in running.tolist()}
        asks = [FifoJob(str(each), int(gpus[each])) for each in queue.tolist()]
        return WaitSimulationInput(
            str(row),
            [run_of(each, now - int(start[each])) for each in running.tolist()],
            [run_of(each) for each in queue.tolist()],
            lambda: FifoDiscipline(_room(self.rule, self.nodes[vc]), held, asks, self.rule == "kueue"),
        )

    def told(self, simulated: Mapping[int, WaitRange]) -> dict[int, WaitRange]:
        """The range that is predicted for each that was simulated, from what was known when it was submitted:
        the ranges predicted before, and, of all that wait, since when, and when they started."""
        skill, found = WaitSkill(), dict[int, WaitRange]()
        for _, is_asked, past in self._events(simulated):
            if is_asked:
                answer = skill.asked(past)
                if answer is not None:
                    found[int(past.id)] = answer.range
            else:
                skill.started(past)
        return found

    def _events(self, simulated: Mapping[int, WaitRange]) -> Iterator[tuple[int, bool, PastWait]]:
        """In the order of time; a start in the second of a submission is known to it."""
        gpus, vc, submit = (self.jobs[name].to_numpy() for name in ("gpus", "vc", "submit"))
        events: list[tuple[int, bool, int, PastWait]] = []
        for row in np.flatnonzero(self.waits > 0).tolist():
            past = PastWait(
                str(row),
                str(vc[row]),
                int(gpus[row]),
                int(submit[row]) * SECOND_MS,
                HORIZON_MS,
                simulated.get(row),
                int(self.start[row]) * SECOND_MS,
            )
            events.append((int(self.start[row]), False, row, past))
            events.append((int(submit[row]), True, row, past))
        heapq.heapify(events)
        while events:
            at, is_asked, _, past = heapq.heappop(events)
            yield at, is_asked, past


def baselines(month: QueuedMonth, rows: npt.NDArray[np.int64]) -> dict[str, Seconds]:
    """What simple predictors say of ``rows``: of those of the queue that waited and had started by then."""
    submit, gpus, vc = (month.jobs[name].to_numpy() for name in ("submit", "gpus", "vc"))
    waited = np.flatnonzero(month.waits > 0)
    by_vc = {name: waited[vc[waited] == name] for name in month.nodes}
    found: dict[str, list[float]] = {"mean": [], "median": [], "last": [], "zero": []}
    for row in rows.tolist():
        before = by_vc[vc[row]]
        before = before[month.start[before] < submit[row]]
        same = before[gpus[before] == gpus[row]]
        same = same if len(same) else before
        waits = month.waits[before]
        found["mean"].append(float(waits.mean()) if len(waits) else 0.0)
        found["median"].append(float(np.median(waits)) if len(waits) else 0.0)
        found["last"].append(float(month.waits[same[np.argmax(month.start[same])]]) if len(same) else 0.0)
        found["zero"].append(0.0)
    return {name: np.array(values) for name, values in found.items()}


@dataclass(frozen=True, slots=True)
class WaitScore:
    """Mean absolute errors in seconds, and how often the truth lay inside."""

    count: int
    mae: Mapping[str, float]
    inside: float
    below_p50: float
    below_p90: float
    simulated_inside: float

    @property
    def ratio(self) -> float:
        """Our error by that of the best baseline."""
        return self.mae["ours"] / min(self.mae[name] for name in ("mean", "median", "last", "zero"))


def score(month: QueuedMonth, count: int, samples: int) -> WaitScore:
    """Of about ``count`` jobs that wait, each simulated ``samples`` times."""
    simulated = month.simulated(month.sampled(count), samples)
    rows = np.array(sorted(simulated), dtype=np.int64)
    told = month.told(simulated)
    actual = month.waits[rows].astype(np.float64)
    low, half, high = _quantiles([told[row] for row in rows.tolist()])
    only = _quantiles([simulated[row] for row in rows.tolist()])
    guesses = {"ours": half, "simulation": only[1], **baselines(month, rows)}
    return WaitScore(
        len(rows),
        {name: float(np.abs(guess - actual).mean()) for name, guess in guesses.items()},
        float(((actual >= low) & (actual <= high)).mean()),
        float((actual <= half).mean()),
        float((actual <= high).mean()),
        float(((actual >= only[0]) & (actual <= only[2])).mean()),
    )


def _quantiles(ranges: list[WaitRange]) -> tuple[Seconds, Seconds, Seconds]:
    rows = [[each.p10_ms, each.p50_ms, each.p90_ms] for each in ranges]
    found = np.array([[HORIZON_MS if ms is None else ms for ms in row] for row in rows]) / SECOND_MS
    return found[:, 0], found[:, 1], found[:, 2]


def _room(rule: str, nodes: int) -> FifoNodes:
    """Quota is one large node."""
    return FifoNodes(1, nodes * GPUS_PER_NODE) if rule == "kueue" else FifoNodes(nodes, GPUS_PER_NODE)


def _started(own: pd.DataFrame, rule: str, nodes: int) -> Iterator[tuple[int, int, FifoPlacement]]:
    """Row, second and place of each, as they start."""
    runs = dict(zip(own.index.tolist(), own["run"].tolist(), strict=True))
    asks = {str(row): FifoJob(str(row), int(gpus)) for row, gpus in zip(runs, own["gpus"], strict=True)}
    discipline = FifoDiscipline(_room(rule, nodes), {}, (), rule == "kueue", asks)
    events = [(int(at), row, False) for row, at in zip(runs, own["submit"], strict=True)]
    heapq.heapify(events)
    while events:
        now, ended, arrived = events[0][0], list[str](), list[str]()
        while events and events[0][0] == now:
            _, row, is_end = heapq.heappop(events)
            (ended if is_end else arrived).append(str(row))
        for id in discipline.start(now, ended, arrived):
            heapq.heappush(events, (now + runs[int(id)], int(id), True))
            yield int(id), now, discipline.placement(id)
