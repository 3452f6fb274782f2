"""Jobs, their pods and their series of activity, as tables for rules about what GPUs do.

The module also finds stragglers, where one pod of a job does nothing while most of the others are busy, and
turns rows of activity into claims on GPU time. Arrays, no loops over rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from gpucost.attribution.apportion import Flags, Ints
from gpucost.detectors.findings import FindingSubject, SubjectKind, WasteEpisode
from gpucost.detectors.inputs.activity_table import ActivityTable, Floats
from gpucost.detectors.inputs.detector_facts import ClusterHistory
from gpucost.domain.buckets import Waste
from gpucost.domain.time import DAY_MS

_JOB = ["cluster", "namespace", "job", "job_uid", "job_kind", "queue", "team", "user", "workload_class"]
_MIG = ("/mig-", "nvidia.com/mig")


@dataclass(frozen=True, slots=True)
class JobAttributes:
    """The attributes of one job; of attributes that changed, the last value."""

    cluster: str
    namespace: str
    job: str
    job_uid: str
    job_kind: str
    queue: str
    team: str
    user: str
    workload_class: str

    @property
    def subject(self) -> FindingSubject:
        return FindingSubject(SubjectKind.JOB, self.cluster, self.job, self.namespace, self.job_uid)


@dataclass(frozen=True)
class JobTables:
    """``pods``: one row per pod and node: ``pod_uid``, ``pod`` (its name), ``node``, ``start``, ``end``,
    ``boards`` (NaN where a share is not known), ``units``, ``whole`` (its GPUs are whole GPUs), ``resource``,
    and ``job``, a position in ``jobs``. ``pod`` is, per series of the activity, the position of its pod, -1
    for a pod that is not in ``pods``."""

    history: ClusterHistory
    pods: pd.DataFrame
    jobs: pd.DataFrame
    pod: Ints

    @classmethod
    def of(cls, history: ClusterHistory) -> JobTables:
        """Made once per history. What is kept does not refer to the history, which would keep itself."""
        key = "job_tables"
        if key not in history.memo:
            history.memo[key] = _tables(history)
        kept = history.memo[key]
        assert isinstance(kept, _Tables)
        return cls(history, kept.pods, kept.jobs, kept.pod)

    @property
    def activity(self) -> ActivityTable:
        return self.history.activity

    @cached_property
    def start(self) -> Ints:
        return self.pods["start"].to_numpy(np.int64)

    @cached_property
    def end(self) -> Ints:
        return self.pods["end"].to_numpy(np.int64)

    @cached_property
    def job(self) -> Ints:
        """Per pod: the position of its job."""
        return self.pods["job"].to_numpy(np.int64)

    @cached_property
    def whole(self) -> Flags:
        """Per pod: whether its GPUs are whole GPUs."""
        return self.pods["whole"].to_numpy(np.bool_)

    @cached_property
    def is_cut(self) -> Flags:
        """Pods that held their GPUs when the history began; since when is unknown."""
        return self.start <= self.history.window.start_ms

    @cached_property
    def gpus(self) -> Ints:
        """Per pod: how many GPUs, or MIG instances, should have been measured.

        Where GPUs are shared in time, units are not GPUs: the number that was seen counts, at least one.
        """
        seen = self.series_count
        found: Ints = np.where(self.is_shared, np.maximum(seen, 1), np.maximum(self.units, seen))
        return found

    @cached_property
    def units(self) -> Ints:
        """Per pod: the units of its resource that it requested."""
        return self.pods["units"].to_numpy(np.int64)

    @cached_property
    def is_shared(self) -> Flags:
        """Per pod: whether its GPUs are shared in time."""
        return self.pods["is_shared"].to_numpy(np.bool_)

    @cached_property
    def series_count(self) -> Ints:
        """Per pod: the number of its series."""
        known = self.pod[self.pod >= 0]
        return np.bincount(known, minlength=len(self.pods)).astype(np.int64)

    @cached_property
    def gpus_of_job(self) -> Ints:
        return np.bincount(self.job, weights=self.gpus, minlength=len(self.jobs)).astype(np.int64)

    @cached_property
    def pods_of_job(self) -> list[Ints]:
        return _positions(self.job, len(self.jobs))

    @cached_property
    def series_of_job(self) -> list[Ints]:
        """Positions of each job's series, in their order."""
        job = np.where(self.pod >= 0, self.job[self.pod], -1) if len(self.pods) else self.pod
        return _positions(job, len(self.jobs))

    @cached_property
    def rows(self) -> list[JobAttributes]:
        """Per job: its rows of the activity."""
        return [JobAttributes(*row) for row in zip(*(self.jobs[name].tolist() for name in _JOB), strict=True)]

    def row(self, job: int) -> JobAttributes:
        return self.rows[job]

    @cached_property
    def step_ms(self) -> int:
        """The longest step of the activity."""
        activity = self.activity
        return int((activity.end - activity.start).max()) if len(activity) else 0

    @cached_property
    def uids(self) -> list[str]:
        return self.pods["pod_uid"].tolist()

    @cached_property
    def names(self) -> list[str]:
        """Per pod: its name."""
        return self.pods["pod"].tolist()

    @cached_property
    def resources(self) -> list[str]:
        return self.pods["resource"].tolist()

    @cached_property
    def nodes(self) -> list[str]:
        return self.pods["node"].tolist()

    @cached_property
    def gpu_names(self) -> list[str]:
        """Per series: the name of its GPU."""
        return self.activity.series["gpu"].tolist()


class _Tables(NamedTuple):
    """See ``JobTables``."""

    pods: pd.DataFrame
    jobs: pd.DataFrame
    pod: Ints


def _tables(history: ClusterHistory) -> _Tables:
    held = history.held
    # A uid is what an owner reference claims: pods of another namespace are another job.
    key = held["namespace"] + "/" + held["job_uid"].where(held["job_uid"] != "", held["pod_uid"])
    code, _ = pd.factorize(key, sort=True)
    held = held.assign(_code=code).sort_values(["start_ms", "pod_uid", "resource"], kind="stable")
    jobs = held.groupby("_code")[_JOB].last()
    pods = _pods(held)
    series = pd.MultiIndex.from_frame(history.activity.series[["pod_uid", "node"]])
    known = pd.MultiIndex.from_frame(pods[["pod_uid", "node"]])
    return _Tables(pods, jobs, known.get_indexer(series).astype(np.int64))


def _pods(held: pd.DataFrame) -> pd.DataFrame:
    """Consecutive rows of one pod become one; of several resources, units and GPUs add up."""
    by_resource = held.groupby(["pod_uid", "node", "resource"], sort=True).agg(
        start=("start_ms", "min"), end=("end_ms", "max"), units=("count", "max"), boards=("boards", "max"),
        job=("_code", "last"), cluster=("cluster", "last"), pod=("pod", "last"),
    ).reset_index()  # fmt: skip
    is_mig = by_resource["resource"].map(lambda name: any(part in name for part in _MIG)).astype(bool)
    share = by_resource["boards"] / by_resource["units"].clip(lower=1)
    by_resource["whole"] = (share == 1.0) & ~is_mig
    by_resource["is_shared"] = (share < 1.0) & ~is_mig
    if by_resource[["pod_uid", "node"]].duplicated().any():
        grouped = by_resource.groupby(["pod_uid", "node"], sort=True)
        return grouped.agg(
            resource=("resource", "first"), start=("start", "min"), end=("end", "max"),
            units=("units", "sum"), boards=("boards", "sum"), job=("job", "last"), whole=("whole", "all"),
            is_shared=("is_shared", "any"), cluster=("cluster", "last"), pod=("pod", "last"),
        ).reset_index()  # fmt: skip
    return by_resource


def _positions(code: Ints, count: int) -> list[Ints]:
    """For each of ``count`` codes, where it occurs."""
    order = np.argsort(code, kind="stable")
    edges = np.searchsorted(code[order], np.arange(count + 1))
    return [order[edges[i] : edges[i + 1]] for i in range(count)]


FEWEST_PODS = 3
"""The least number of pods: of two pods it cannot be decided which one is late."""


@dataclass(frozen=True, slots=True)
class StragglerPod:
    """Pod ``pod_uid`` of a job did nothing in ``[start_ms, end_ms)``, as seen in steps of ``step_ms``."""

    job_uid: str
    pod_uid: str
    start_ms: int
    end_ms: int
    step_ms: int


def stragglers(history: ClusterHistory, low: float, high: float, least_ms: int) -> tuple[StragglerPod, ...]:
    """Pods of which every GPU was busy for less than ``low`` of every step, for ``least_ms`` or longer, while
    of more than half of the job's pods every GPU was above ``high`` and no other pod was low.

    Only pods that kept up with the others before: a rank that never worked is not a straggler.
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
    step -= min(0, int(step.min()))  # what was read may begin before the window
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
        StragglerPod(jobs[job_of[pod]], uids[pod], a, b, step_ms) for pod, a, b in found if b - a >= least_ms
    )


def _ranks(history: ClusterHistory) -> tuple[ActivityTable | None, Ints, Ints, list[str], list[str]]:
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


def _of_suspects(activity: ActivityTable, pod_of: Ints, job_of: Ints, low: float) -> Ints:
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


def claims(
    table: JobTables,
    cluster: str,
    waste: Waste,
    pod: Ints,
    gpu: Ints,
    start: Ints,
    end: Ints,
    held_ms: Floats,
) -> tuple[WasteEpisode, ...]:
    """Rows of GPUs (``gpu``: positions of series) as episodes: rows of a day (UTC) that touch become one, and
    so do GPUs of one pod with the same times. So the mean GPUs of an episode are those of its day, however
    much more was read."""
    if not len(start):
        return ()
    order = np.lexsort([start, gpu])
    pod, gpu, start, end = pod[order], gpu[order], start[order], end[order]
    new = np.append(True, (gpu[1:] != gpu[:-1]) | (start[1:] != end[:-1]))
    new[1:] |= start[1:] // DAY_MS != start[:-1] // DAY_MS
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(start)) - 1
    amount = np.add.reduceat(held_ms[order], first)
    found: dict[tuple[int, int, int], list[tuple[float, str]]] = {}
    keys = zip(pod[first].tolist(), start[first].tolist(), end[last].tolist(), strict=True)
    names = [table.gpu_names[series] for series in gpu[first].tolist()]
    for key, held, name in zip(keys, amount.tolist(), names, strict=True):
        found.setdefault(key, []).append((held, name))
    return tuple(
        WasteEpisode(
            waste, cluster, table.nodes[at], table.uids[at], begin, close,
            sum(sorted(amount for amount, _ in held)) / (close - begin), table.resources[at],
            tuple(sorted(name for _, name in held)),
        )
        for (at, begin, close), held in sorted(found.items(), key=lambda item: _order(table, item[0]))
    )  # fmt: skip


def _order(table: JobTables, key: tuple[int, int, int]) -> tuple[str, str, int, int]:
    return table.uids[key[0]], table.nodes[key[0]], key[1], key[2]
