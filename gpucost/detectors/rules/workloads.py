"""Jobs, their pods and their series of activity, as tables: for rules about what GPUs do."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from gpucost.attribution.deal import Flags, Ints
from gpucost.detectors.activity import Activity
from gpucost.detectors.facts import History
from gpucost.detectors.findings import Subject, SubjectKind

_JOB = ["cluster", "namespace", "job", "job_uid", "job_kind", "queue", "team", "user", "workload_class"]
_MIG = ("/mig-", "nvidia.com/mig")


@dataclass(frozen=True, slots=True)
class JobRow:
    """What is known of one job; of attributes that changed, the last."""

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
    def subject(self) -> Subject:
        return Subject(SubjectKind.JOB, self.cluster, self.job, self.namespace, self.job_uid)


@dataclass(frozen=True)
class Workloads:
    """``pods``: one row per pod and node: ``pod_uid``, ``pod`` (its name), ``node``, ``start``, ``end``,
    ``boards`` (NaN where a share is not known), ``units``, ``whole`` (its GPUs are whole boards),
    ``resource``, and ``job``, a position in ``jobs``. ``pod`` is, per series of the activity, the position of
    its pod, -1 for a stranger.
    """

    history: History
    pods: pd.DataFrame
    jobs: pd.DataFrame
    pod: Ints

    @classmethod
    def of(cls, history: History) -> Workloads:
        held = history.held
        # A uid is what an owner reference claims: pods of another namespace are another job.
        key = held["namespace"] + "/" + held["job_uid"].where(held["job_uid"] != "", held["pod_uid"])
        code, _ = pd.factorize(key, sort=True)
        held = held.assign(_code=code).sort_values(["start_ms", "pod_uid", "resource"], kind="stable")
        jobs = held.groupby("_code")[_JOB].last()
        pods = _pods(held)
        series = pd.MultiIndex.from_frame(history.activity.series[["pod_uid", "node"]])
        known = pd.MultiIndex.from_frame(pods[["pod_uid", "node"]])
        return cls(history, pods, jobs, known.get_indexer(series).astype(np.int64))

    @property
    def activity(self) -> Activity:
        return self.history.activity

    @cached_property
    def start(self) -> Ints:
        return self.pods["start"].to_numpy(np.int64)

    @cached_property
    def end(self) -> Ints:
        return self.pods["end"].to_numpy(np.int64)

    @cached_property
    def job(self) -> Ints:
        """Of each pod."""
        return self.pods["job"].to_numpy(np.int64)

    @cached_property
    def whole(self) -> Flags:
        """Of each pod."""
        return self.pods["whole"].to_numpy(np.bool_)

    @cached_property
    def is_cut(self) -> Flags:
        """Pods that held their GPUs when the history began: how long already, nothing says."""
        return self.start <= self.history.window.start_ms

    @cached_property
    def gpus(self) -> Ints:
        """Of each pod: how many GPUs, or MIG instances, should have been measured.

        Where boards are shared by time, units are no GPUs: as many as were seen, at least one.
        """
        seen = self.series_count
        found: Ints = np.where(self.is_shared, np.maximum(seen, 1), np.maximum(self.units, seen))
        return found

    @cached_property
    def units(self) -> Ints:
        """Of each pod: what it asked for of its resource."""
        return self.pods["units"].to_numpy(np.int64)

    @cached_property
    def is_shared(self) -> Flags:
        """Of each pod: whether its boards are shared by time."""
        return self.pods["is_shared"].to_numpy(np.bool_)

    @cached_property
    def series_count(self) -> Ints:
        """Of each pod."""
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
    def rows(self) -> list[JobRow]:
        """Of each job."""
        return [JobRow(*row) for row in zip(*(self.jobs[name].tolist() for name in _JOB), strict=True)]

    def row(self, job: int) -> JobRow:
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
        """Of each pod."""
        return self.pods["pod"].tolist()

    @cached_property
    def resources(self) -> list[str]:
        return self.pods["resource"].tolist()

    @cached_property
    def nodes(self) -> list[str]:
        return self.pods["node"].tolist()

    @cached_property
    def gpu_names(self) -> list[str]:
        """Of each series."""
        return self.activity.series["gpu"].tolist()


def _pods(held: pd.DataFrame) -> pd.DataFrame:
    """Rows of one pod that follow one another are one; of several resources, units and boards add up."""
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
