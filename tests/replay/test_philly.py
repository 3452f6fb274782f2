"""Waits of the Philly replay, predicted at each submission, beside the simple predictors of the same jobs.

Every submission of the last 30 % is asked whether it fits now. Of those that wait, one in fifty is simulated
(169 of 8,490: all of them take a quarter of an hour); GPUCOST_PHILLY_FULL=1 simulates all.
"""

from __future__ import annotations

import heapq
import os
from dataclasses import dataclass

import numpy as np
import pytest

from tests.replay.philly_waits import (
    GPUS_PER_NODE,
    History,
    Predicted,
    Seconds,
    Trace,
    figures,
    predicted,
)
from tests.support.shared import needs_shared
from tests.support.waits.fifo import FifoJob, fifo

SAMPLES = 40
EVERY = 1 if os.environ.get("GPUCOST_PHILLY_FULL") else 50
PREDICTORS = (
    "always_zero",
    "gbdt_log_wait",
    "median_of_last_20_started_in_vc",
    "queue_work_over_capacity",
    "vc_median",
)
LESS_IS_BETTER = ("mae_s", "median_ae_s")

pytestmark = [
    pytest.mark.timeout(3_600 if EVERY == 1 else 900),
    needs_shared("traces/philly-vc"),
    pytest.mark.slow,
]


@dataclass(frozen=True)
class Replayed:
    """``fits`` and ``fits_by_sum`` say of how many test jobs "fits now" was right, ours and the baselines'
    rule's; ``waits`` are those simulated."""

    trace: Trace
    fits: int
    fits_by_sum: int
    waited: int
    waits: tuple[Predicted, ...]

    @property
    def p50_s(self) -> Seconds:
        return self._s([each.wait.p50_ms for each in self.waits])

    @property
    def p90_s(self) -> Seconds:
        return self._s([each.wait.p90_ms for each in self.waits])

    @property
    def actual_s(self) -> Seconds:
        return np.array([each.job.wait for each in self.waits], dtype=float)

    @property
    def figures(self) -> dict[str, float]:
        """Of all test jobs: each that was simulated stands for its share of those that wait; those that fit
        now wait 0 and were said to."""
        of_waits = figures(self.p50_s, self.actual_s)
        share = self.waited / len(self.trace.test)
        errors = np.abs(self.p50_s - self.actual_s)
        stands_for = np.concatenate([np.full(len(errors), share / len(errors)), [1 - share]])
        order = np.argsort(np.append(errors, 0.0))
        median = np.append(errors, 0.0)[order][np.searchsorted(np.cumsum(stands_for[order]), 0.5)]
        return {
            "mae_s": share * of_waits["mae_s"],
            "median_ae_s": float(median),
            "within_10min": 1 - share + share * of_waits["within_10min"],
            "within_1h": 1 - share + share * of_waits["within_1h"],
            "within_2x_of_waits_over_10min": of_waits["within_2x_of_waits_over_10min"],
        }

    @staticmethod
    def _s(waits_ms: list[int | None]) -> Seconds:
        return np.array([np.inf if ms is None else ms / 1_000 for ms in waits_ms])


@pytest.fixture(scope="module")
def trace() -> Trace:
    return Trace.load()


@pytest.fixture(scope="module")
def replayed(trace: Trace) -> Replayed:
    history = History(trace)
    first = trace.test[0].row
    fits = by_sum = waited = 0
    waits: list[Predicted] = []
    for moment in trace.moments():
        job = moment.job
        if job.row < first:
            continue
        fits += moment.fits_now() == (job.wait == 0)
        by_sum += moment.fits_by_sum() == (job.wait == 0)
        if job.wait:
            waited += 1
            if waited % EVERY == 0:
                waits.append(predicted(moment, history, SAMPLES))
    return Replayed(trace, fits, by_sum, waited, tuple(waits))


def test_the_same_jobs_are_compared(trace: Trace, replayed: Replayed) -> None:
    """Our split, and our way to count, give the figures of the baselines that need no model."""
    told = trace.baselines
    waits = np.array([job.wait for job in trace.test], dtype=float)
    assert len(trace.train) == told["train_jobs"]
    assert len(trace.test) == told["test_jobs"]
    assert waits.mean() == pytest.approx(told["test_wait_mean_s"])
    assert (waits > 0).mean() == pytest.approx(told["test_waited_share"])
    assert replayed.fits_by_sum / len(waits) == pytest.approx(told["rule_fits_now_accuracy"])
    assert figures(np.zeros(len(waits)), waits) == pytest.approx(told["always_zero"])
    of_vc = {vc: np.median([job.wait for job in trace.train if job.vc == vc]) for vc in trace.nodes}
    medians = np.array([of_vc[job.vc] for job in trace.test])
    assert figures(medians, waits) == pytest.approx(told["vc_median"])


def test_strict_fifo_starts_every_job_when_the_replay_did(trace: Trace) -> None:
    """With the run times as they were, the discipline alone gives all 68,503 starts to the second."""
    for vc, nodes in trace.nodes.items():
        jobs = {job.id: job for job in trace.jobs if job.vc == vc}
        asks = {id: FifoJob(id, job.gpus) for id, job in jobs.items()}
        discipline = fifo(nodes, GPUS_PER_NODE, {}, (), later=asks)()
        events = [(job.submit, job.row, False, id) for id, job in jobs.items()]
        heapq.heapify(events)
        starts: dict[str, int] = {}
        while events:
            now, ended, arrived = events[0][0], list[str](), list[str]()
            while events and events[0][0] == now:
                _, _, is_end, id = heapq.heappop(events)
                (ended if is_end else arrived).append(id)
            for id in discipline.start(now, ended, arrived):
                starts[id] = now
                heapq.heappush(events, (now + jobs[id].run, jobs[id].row, True, id))
        assert starts == {id: job.start for id, job in jobs.items()}, vc


def test_fits_now_is_exact(replayed: Replayed) -> None:
    """The rule that looks at the sum of free GPUs only is wrong for twelve: they are free, but apart."""
    jobs = len(replayed.trace.test)
    print(f"fits now: {replayed.fits} of {jobs}; by sum: {replayed.fits_by_sum}")
    assert replayed.fits == jobs
    assert jobs - replayed.fits_by_sum == 12


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_the_median_wait_beats(predictor: str, replayed: Replayed) -> None:
    told = replayed.trace.baselines[predictor]
    ours = replayed.figures
    print(f"{len(replayed.waits)} of {replayed.waited} waits simulated, {SAMPLES} samples each")
    for name, value in ours.items():
        print(f"{name:32}{value:14.4f}{told[name]:14.4f} {predictor}")
    for name, value in ours.items():
        if name == "median_ae_s":
            assert value == 0.0 <= told[name]
        elif name in LESS_IS_BETTER:
            assert value < told[name], name
        else:
            assert value > told[name], name


def test_the_ranges_hold_about_as_often_as_they_say(replayed: Replayed) -> None:
    actual, p50, p90 = replayed.actual_s, replayed.p50_s, replayed.p90_s
    below_p50, below_p90 = (actual <= p50).mean(), (actual <= p90).mean()
    error = np.median(np.abs(p50 - actual) / actual)
    print(f"[0, p50] {below_p50:.3f}, [0, p90] {below_p90:.3f}; median relative error {error:.3f}")
    assert 0.4 < below_p50 < 0.65
    assert 0.8 < below_p90 < 0.97


def test_what_it_rests_on_is_said(replayed: Replayed) -> None:
    assert all("ended runs of team" in each.wait.basis for each in replayed.waits)
    assert {each.wait.samples for each in replayed.waits} == {SAMPLES}
