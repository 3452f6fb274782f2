"""Stragglers: one pod of a job does nothing while most of the others are busy. Arrays, no loops over rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from gpucost.attribution.deal import Flags, Ints
from gpucost.detectors.activity import Activity
from gpucost.detectors.facts import History

FEWEST_PODS = 3
"""Of two pods nobody can say which one is late."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """Pod ``pod_uid`` of a job did nothing in ``[start_ms, end_ms)``, as seen in steps of ``step_ms``."""

    job_uid: str
    pod_uid: str
    start_ms: int
    end_ms: int
    step_ms: int


def stragglers(history: History, low: float, high: float, least_ms: int) -> tuple[Straggler, ...]:
    """Pods of which every GPU was busy for less than ``low`` of every step, for ``least_ms`` or longer, while
    of more than half of the job's pods every GPU was above ``high`` and no other pod was low.

    Only pods that kept up with the others before: a rank that never worked is no straggler.
    """
    activity, pod_of, job_of, uids, jobs = _ranks(history)
    if activity is None:
        return ()
    pod_of = _of_suspects(activity, pod_of, job_of, low)
    rows = np.flatnonzero((pod_of >= 0)[activity.code] & activity.is_observed)
    if not len(rows):
        return ()
    start, end = activity.start[rows], activity.end[rows]
    step_ms = max(1, int(np.median(end - start)))
    step = (start - history.window.start_ms) // step_ms
    steps = int(step.max()) + 1
    level = activity.values["busy_ms"][rows] / activity.values["observed_ms"][rows]
    at = pod_of[activity.code[rows]] * steps + step
    size = len(uids) * steps
    seen = np.bincount(at, minlength=size)
    is_low = (np.bincount(at, level < low, size) == seen) & (seen > 0)
    is_high = (np.bincount(at, level > high, size) == seen) & (seen > 0)
    by_job = np.repeat(job_of, steps) * steps + np.tile(np.arange(steps), len(uids))
    cells = len(jobs) * steps
    pods, lows, highs = (np.bincount(by_job, what, cells)[by_job] for what in (seen > 0, is_low, is_high))
    alone = is_low & (lows == 1) & (2 * highs > pods) & (pods >= FEWEST_PODS)
    kept_up = np.maximum.accumulate(is_high.reshape(-1, steps), axis=1)
    late = alone.reshape(-1, steps) & kept_up
    edges = (np.full(size, np.iinfo(np.int64).max), np.zeros(size, np.int64))
    np.minimum.at(edges[0], at, start)
    np.maximum.at(edges[1], at, end)
    found = _runs(late, edges[0].reshape(-1, steps), edges[1].reshape(-1, steps))
    return tuple(
        Straggler(jobs[job_of[pod]], uids[pod], a, b, step_ms) for pod, a, b in found if b - a >= least_ms
    )


def _ranks(history: History) -> tuple[Activity | None, Ints, Ints, list[str], list[str]]:
    """Activity; per series the position of its pod, -1 where its job has too few; per pod that of its job."""
    held = history.held[["pod_uid", "namespace", "job_uid"]].drop_duplicates("pod_uid")
    # A uid is what an owner reference claims: pods of another namespace are another job.
    by_job = held.groupby(["namespace", "job_uid"], observed=True)
    size, held = by_job["pod_uid"].transform("size"), held.assign(job=by_job.ngroup())
    held = held[size >= FEWEST_PODS]
    nothing = np.zeros(0, np.int64)
    if held.empty or not len(history.frames.activity):
        return None, nothing, nothing, [], []
    uids = held["pod_uid"].tolist()
    job_of, _ = pd.factorize(held["job"])
    jobs = held.drop_duplicates("job")["job_uid"].tolist()
    pod_of = pd.Index(uids).get_indexer(history.activity.series["pod_uid"]).astype(np.int64)
    return history.activity, pod_of, job_of.astype(np.int64), uids, jobs


def _of_suspects(activity: Activity, pod_of: Ints, job_of: Ints, low: float) -> Ints:
    """``pod_of`` with -1 for series of jobs in which no pod has low rows on each of its GPUs: nearly all."""
    is_low = activity.values["busy_ms"] < low * activity.values["observed_ms"]
    some = np.add.reduceat(is_low.astype(np.int64), activity.begin[:-1]) > 0
    known = pod_of >= 0
    gpus = np.bincount(pod_of[known], minlength=len(job_of))
    lows = np.bincount(pod_of[known & some], minlength=len(job_of))
    suspects = np.unique(job_of[(lows == gpus) & (gpus > 0)])
    wanted = np.isin(job_of, suspects)
    return np.where(known & wanted[pod_of], pod_of, -1)


def _runs(late: Flags, start: Ints, end: Ints) -> list[tuple[int, int, int]]:
    """(pod, start, end) of runs of late steps."""
    found: list[tuple[int, int, int]] = []
    for pod, step in np.argwhere(late).tolist():
        a, b = int(start[pod, step]), int(end[pod, step])
        if found and found[-1][0] == pod and found[-1][2] >= a:
            found[-1] = (pod, found[-1][1], b)
        else:
            found.append((pod, a, b))
    return found
