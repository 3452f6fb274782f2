"""The series of the queue collector: queues, waiting jobs, evictions and partial gangs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, TypeAlias

import pandas as pd

from gpucost.attribution.frames import ClusterFrames
from gpucost.contract import queue_metrics as m
from gpucost.contract.metric_spec import MetricSpec
from gpucost.contract.metrics import LINGER_MS
from tests.support.simulated_metrics.series import ScrapeTimes, SeriesRun

_Row: TypeAlias = dict[Hashable, Any]
_QUOTA_COLUMNS: Mapping[str, tuple[MetricSpec, ...]] = {
    "nominal": (m.CLUSTER_QUEUE_NOMINAL,),
    "borrowing_limit": (m.CLUSTER_QUEUE_BORROWING_LIMIT,),
    "lending_limit": (m.CLUSTER_QUEUE_LENDING_LIMIT,),
    "used": (m.CLUSTER_QUEUE_USED, m.CLUSTER_QUEUE_RESERVED),
}
_STRATEGY = "BestEffortFIFO"
_PENDING = "pending"


class _Presence:
    """Info series: present while any of the things they describe is. Stretches of equal labels are joined."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, tuple[tuple[str, str], ...]], list[tuple[int, int]]] = defaultdict(
            list
        )
        self._specs: dict[str, MetricSpec] = {}

    def add(
        self, spec: MetricSpec, labels: Mapping[str, str], cluster: str, start_ms: int, end_ms: int
    ) -> None:
        self._specs[spec.name] = spec
        self._found[spec.name, cluster, tuple(labels.items())].append((start_ms, end_ms))

    def runs(self) -> Iterator[SeriesRun]:
        for (name, cluster, labels), spans in self._found.items():
            low, high = sorted(spans)[0]
            for start_ms, end_ms in sorted(spans):
                if start_ms > high:
                    yield SeriesRun(self._specs[name], dict(labels), cluster, 1, low, high)
                    low = start_ms
                high = max(high, end_ms)
            yield SeriesRun(self._specs[name], dict(labels), cluster, 1, low, high)


def of_queues(frames: ClusterFrames, scrapes: ScrapeTimes) -> Iterator[SeriesRun]:
    """Series of the frames quotas, demand, evictions and stalls."""
    presence = _Presence()
    yield from _quotas(scrapes.near(frames.quotas), presence)
    yield from _demand(_with_lanes(frames.demand), scrapes, presence)
    yield from _evictions(frames, scrapes, presence)
    for row in scrapes.near(frames.stalls).to_dict("records"):
        yield from _gang(row)
    yield from presence.runs()


def _quotas(quotas: pd.DataFrame, presence: _Presence) -> Iterator[SeriesRun]:
    for row in quotas.to_dict("records"):
        queue = {"cluster_queue": row["queue"]}
        info = {**queue, "cohort": row["cohort"], "strategy": _STRATEGY}
        times = row["start_ms"], row["end_ms"]
        presence.add(m.CLUSTER_QUEUE_INFO, info, row["cluster"], *times)
        if row["cohort"]:
            presence.add(m.COHORT_INFO, {"cohort": row["cohort"], "parent": ""}, row["cluster"], *times)
        labels = {**queue, "flavor": row["flavor"], "resource": row["resource"]}
        for column, specs in _QUOTA_COLUMNS.items():
            for spec in specs:
                if row[column] == row[column]:
                    yield SeriesRun(spec, labels, row["cluster"], row[column], *times)


def _with_lanes(demand: pd.DataFrame) -> pd.DataFrame:
    """With ``lane``: rows of one job that wait at the same time are different workloads of it. A row that
    follows another of its lane at once is the same wait, ``queued_ms`` its start."""
    ends: dict[str, list[int]] = defaultdict(list)
    began: dict[tuple[str, int], int] = {}
    lanes, queued = [], []
    rows = demand.sort_values(["start_ms", "end_ms"], kind="stable")
    for uid, start_ms, end_ms in zip(rows["job_uid"], rows["start_ms"], rows["end_ms"], strict=True):
        busy = ends[uid]
        lane = next((n for n, end in enumerate(busy) if end <= start_ms), len(busy))
        if lane == len(busy) or busy[lane] < start_ms:
            began[uid, lane] = start_ms
        busy[lane : lane + 1] = [end_ms]
        lanes.append(lane)
        queued.append(began[uid, lane])
    return rows.assign(lane=lanes, queued_ms=queued)


def _demand(demand: pd.DataFrame, scrapes: ScrapeTimes, presence: _Presence) -> Iterator[SeriesRun]:
    for row in scrapes.near(demand).to_dict("records"):
        if row["workload"]:
            yield from _waiting_workload(row, presence)
        elif not row["lane"]:
            yield from _waiting_job(row, presence)


def _waiting_workload(row: _Row, presence: _Presence) -> Iterator[SeriesRun]:
    key = _workload_key(row["namespace"], row["workload"], row["job_uid"], row["lane"])
    cluster, start_ms, end_ms = row["cluster"], row["start_ms"], row["end_ms"]
    presence.add(m.WORKLOAD_INFO, {**key, **_workload_owner(row)}, cluster, start_ms, end_ms)
    yield SeriesRun(m.WORKLOAD_QUEUED, key, cluster, row["queued_ms"] / 1000, start_ms, end_ms)
    state = {**key, "state": _PENDING, "reason": row["reason"]}
    yield SeriesRun(m.WORKLOAD_STATE, state, cluster, 1, start_ms, end_ms)
    layer = {**key, "layer": row["layer"], "reason": row["reason"]}
    yield SeriesRun(m.WORKLOAD_LAYER, layer, cluster, 1, start_ms, end_ms)
    yield SeriesRun(
        m.WORKLOAD_SET_PODS, {**key, "pod_set": row["pod_set"]}, cluster, row["pods"], start_ms, end_ms
    )
    yield SeriesRun(
        m.WORKLOAD_SET_MIN, {**key, "pod_set": row["pod_set"]}, cluster, row["min_pods"], start_ms, end_ms
    )
    yield SeriesRun(m.WORKLOAD_SET_UNITS, {**key, **_asks(row)}, cluster, row["units"], start_ms, end_ms)


def _waiting_job(row: _Row, presence: _Presence) -> Iterator[SeriesRun]:
    key = {"job_kind": row["job_kind"], "job_name": row["job"], "job_uid": row["job_uid"]}
    cluster, start_ms, end_ms = row["cluster"], row["start_ms"], row["end_ms"]
    owner = {
        "namespace": row["namespace"], "pod_group": "", "queue": row["queue"], "owner_team": row["team_label"]
    }  # fmt: skip
    presence.add(m.JOB_WAITING_INFO, {**key, **owner}, cluster, start_ms, end_ms)
    layer = {**key, "layer": row["layer"], "reason": row["reason"]}
    yield SeriesRun(m.JOB_WAITING, layer, cluster, 1, start_ms, end_ms)
    yield SeriesRun(
        m.JOB_SET_PODS, {**key, "pod_set": row["pod_set"]}, cluster, row["pods"], start_ms, end_ms
    )
    yield SeriesRun(
        m.JOB_SET_MIN, {**key, "pod_set": row["pod_set"]}, cluster, row["min_pods"], start_ms, end_ms
    )
    yield SeriesRun(m.JOB_SET_UNITS, {**key, **_asks(row)}, cluster, row["units"], start_ms, end_ms)


def _workload_key(namespace: str, workload: str, job_uid: str, lane: int) -> dict[str, str]:
    name = f"{workload}-{lane}" if lane else workload
    return {"namespace": namespace, "workload": name, "workload_uid": f"{job_uid}-{lane}"}


def _workload_owner(row: _Row) -> dict[str, str]:
    return {
        "queue": row["queue"], "cluster_queue": row["cluster_queue"], "job_kind": row["job_kind"],
        "job_name": row["job"], "job_uid": row["job_uid"], "priority_class": "",
        "owner_team": row["team_label"],
    }  # fmt: skip


def _asks(row: _Row) -> dict[str, str]:
    nodes = m.NodeAdmission.SOME if row["products"] else m.NodeAdmission.ALL
    return {
        "pod_set": row["pod_set"], "resource": row["resource"], "products": row["products"],
        "nodes": nodes.value,
    }  # fmt: skip


def _evictions(frames: ClusterFrames, scrapes: ScrapeTimes, presence: _Presence) -> Iterator[SeriesRun]:
    """Kueue's count of evictions of each workload: once for all pods that were stopped at an instant."""
    pods = frames.allocations.drop_duplicates("pod_uid").set_index("pod_uid")
    queued = frames.evictions[frames.evictions["queue"] != ""]
    for (_, reason), group in queued.groupby(["job_uid", "reason"]):
        row = pods.loc[group["pod_uid"].iloc[0]].to_dict()
        key = _workload_key(row["namespace"], row["workload"], row["job_uid"], 0)
        instants = sorted(set(group["end_ms"].tolist()))
        ends = [*instants[1:], instants[-1] + LINGER_MS]
        begun_ms = int(group["start_ms"].min())
        if begun_ms >= scrapes.window.end_ms or ends[-1] <= scrapes.window.start_ms:
            continue
        info = {**key, **_workload_owner(row)}
        presence.add(m.WORKLOAD_INFO, info, row["cluster"], begun_ms, ends[-1])
        labels = {**key, "reason": str(reason)}
        for count, (start_ms, end_ms) in enumerate(zip(instants, ends, strict=True), 1):
            yield SeriesRun(m.WORKLOAD_EVICTIONS, labels, row["cluster"], count, start_ms, end_ms)


def _gang(row: _Row) -> Iterator[SeriesRun]:
    key = {
        "namespace": row["namespace"], "gang": row["job"], "gang_uid": row["gang"],
        "gang_kind": m.GangKind.WORKLOAD.value,
    }  # fmt: skip
    job = {name: row[column] for name, column in (("job_kind", "job_kind"), ("job_name", "job"))}
    info = {**key, **job, "job_uid": row["job_uid"], "queue": row["queue"]}
    values: tuple[tuple[MetricSpec, Mapping[str, str], float], ...] = (
        (m.GANG_INFO, info, 1),
        (m.GANG_MIN_MEMBERS, key, row["min_members"]),
        (m.GANG_RUNNING, key, row["running"]),
        (m.GANG_PENDING, key, row["pending"]),
        (m.GANG_PARTIAL_SINCE, key, row["start_ms"] / 1000),
    )
    for spec, labels, value in values:
        yield SeriesRun(spec, labels, row["cluster"], value, row["start_ms"], row["end_ms"])
