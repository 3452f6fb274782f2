"""Which jobs waited for GPUs, which gangs stalled, and which attempts were cut short.

Demand: Kueue's workloads, and jobs that no workload stands for. Stalls: stretches in which a gang held GPUs
while it lacked members, as the queue collector exports them. Evictions: pods that kube-scheduler preempted,
according to their own condition, and pods that ended when Kueue's count of their workload's evictions rose.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import pandas as pd

from gpucost.cluster.objects.pods import PREEMPTED_BY_SCHEDULER
from gpucost.contract import queue_metrics as m
from gpucost.contract.metric_spec import MetricSpec
from gpucost.contract.metrics import NODE_DOMAIN_RESERVED, POD_GPU_START
from gpucost.contract.queue_metrics import JOB_LABELS, NodeAdmission
from gpucost.domain.time import MINUTE_MS, SECOND_MS, Window
from gpucost.telemetry.evidence.frame_rows import FrameRow
from gpucost.telemetry.evidence.gauge_runs import (
    GaugeRun,
    StateReader,
    by_labels,
    covering,
    values_of,
)
from gpucost.telemetry.prometheus.cluster_reader import (
    ClusterReader,
    own_label,
    points,
    with_renamed,
)

DemandKey = tuple[str, ...]
NO_NODES = "__none__"
NOT_KNOWN = "__unknown__"
"""Stands in place of products where no node would take the pods, or where that is unknown: neither is a
product."""


@dataclass(frozen=True, slots=True)
class _WorkloadEventKind:
    """The metrics of one kind of waiting subject; ``key`` are the labels that name it. ``owned`` are columns
    of the frame and the labels of ``info`` (or of the key) that they come from; empty for none."""

    key: tuple[str, ...]
    waiting: MetricSpec
    info: MetricSpec
    pods: MetricSpec
    fewest: MetricSpec
    units: MetricSpec
    channels: MetricSpec
    owned: Mapping[str, str]


_OWNED = ("namespace", "job_kind", "job", "job_uid", "workload", "queue", "cluster_queue", "team_label")
_WORKLOADS = _WorkloadEventKind(
    ("workload_uid",),
    m.WORKLOAD_LAYER,
    m.WORKLOAD_INFO,
    m.WORKLOAD_SET_PODS,
    m.WORKLOAD_SET_MIN,
    m.WORKLOAD_SET_UNITS,
    m.WORKLOAD_SET_CHANNELS,
    {
        **{name: name for name in _OWNED},
        "job": "job_name",
        "team_label": "owner_team",
    },
)
_JOBS = _WorkloadEventKind(
    JOB_LABELS,
    m.JOB_WAITING,
    m.JOB_WAITING_INFO,
    m.JOB_SET_PODS,
    m.JOB_SET_MIN,
    m.JOB_SET_UNITS,
    m.JOB_SET_CHANNELS,
    {
        **{name: name for name in _OWNED},
        "job": "job_name",
        "workload": "pod_group",
        "team_label": "owner_team",
    },
)


class _Around(NamedTuple):
    """The series about one waiting subject."""

    waiting: Sequence[GaugeRun]
    info: Sequence[GaugeRun]
    pods: Sequence[GaugeRun]
    fewest: Sequence[GaugeRun]
    queued: Sequence[GaugeRun]
    channels: Sequence[GaugeRun]


def read_demand(state: StateReader) -> list[FrameRow]:
    """Rows of frames.DEMAND, clipped to the window."""
    queued = by_labels(state.rare(m.WORKLOAD_QUEUED, ("workload_uid",)), ("workload_uid",))
    return [*_read(state, _WORKLOADS, queued), *_read(state, _JOBS, {})]


def _read(
    state: StateReader, kind: _WorkloadEventKind, queued: Mapping[DemandKey, list[GaugeRun]]
) -> Iterator[FrameRow]:
    key, with_set = kind.key, (*kind.key, "pod_set")
    units = state.runs(kind.units, (*with_set, "resource", "products", "nodes"))
    if not units:
        return
    waiting = by_labels(state.runs(kind.waiting, (*key, "layer", "reason")), key)
    own = tuple(label for label in kind.info.labels if label in kind.owned.values())
    info = by_labels(state.rare(kind.info, tuple(dict.fromkeys((*key, *own)))), key)
    pods = by_labels(state.runs(kind.pods, with_set), with_set)
    fewest = by_labels(state.rare(kind.fewest, with_set), with_set)
    channels = by_labels(state.rare(kind.channels, (*with_set, "span")), with_set)
    for run in units:
        of, of_set = values_of(run, key), values_of(run, with_set)
        around = _Around(
            *(waiting.get(of, []), info.get(of, [])),
            *(pods.get(of_set, []), fewest.get(of_set, []), queued.get(of, [])),
            channels.get(of_set, []),
        )
        yield from _rows(state, kind, run, around)


def _rows(state: StateReader, kind: _WorkloadEventKind, run: GaugeRun, around: _Around) -> Iterator[FrameRow]:
    window = state.window
    begun_ms = _begun_ms(state, run, around)
    for low, high, pods in covering(around.pods, run.start_ms, run.end_ms):
        if pods is None:
            continue
        for since, until, held in covering(around.waiting, low, high):
            start = max(begun_ms if since == run.start_ms else since, window.start_ms)
            end = min(until, window.end_ms)
            if start >= end:
                continue
            info, fewest, channel = (
                _nearest(runs, since) for runs in (around.info, around.fewest, around.channels)
            )
            owned = info.labels if info is not None else run.labels
            yield (
                state.reader.cluster,
                *(owned.get(kind.owned[name], "") for name in _OWNED),
                run.labels.get("pod_set", ""),
                run.labels.get("resource", ""),
                _products(run),
                int(pods.value),
                int(fewest.value) if fewest is not None else int(pods.value),
                int(run.value),
                held.labels.get("layer", "") if held is not None else "",
                held.labels.get("reason", "") if held is not None else "",
                start,
                end,
                channel.labels.get("span", "") if channel is not None else "",
            )


def _begun_ms(state: StateReader, run: GaugeRun, around: _Around) -> int:
    """When it was queued, if that is shortly before it was first seen, or within its first step."""
    earliest = run.start_ms - state.reader.settings.lateness_ms
    for queued in around.queued:
        at_ms = round(queued.value * 1000)
        first_seen = not any(each.end_ms <= run.start_ms for each in around.pods)
        if first_seen and earliest <= at_ms <= min(run.end_ms - 1, run.start_ms + state.step_ms):
            return at_ms
    return run.start_ms


def _products(run: GaugeRun) -> str:
    nodes, products = run.labels.get("nodes", ""), run.labels.get("products", "")
    if nodes == NodeAdmission.ALL:
        return ""
    if nodes == NodeAdmission.NONE:
        return NO_NODES
    return products if nodes == NodeAdmission.SOME and products else NOT_KNOWN


def _nearest(runs: Sequence[GaugeRun], at_ms: int) -> GaugeRun | None:
    """The run that holds then, else the last before, else the first."""
    for run in reversed(runs):
        if run.start_ms <= at_ms:
            return run
    return runs[0] if runs else None


def read_domains(state: StateReader) -> list[FrameRow]:
    """Rows of frames.DOMAINS, clipped to the window."""
    window, names = state.window, ("namespace", "compute_domain", "job_name", "job_uid")
    found = []
    for run in state.runs(NODE_DOMAIN_RESERVED, NODE_DOMAIN_RESERVED.labels):
        start, end = max(run.start_ms, window.start_ms), min(run.end_ms, window.end_ms)
        if start < end:
            said = (run.labels.get(name, "") for name in names)
            place = state.reader.cluster, run.labels.get("node", ""), run.labels.get("clique", "")
            found.append((*place, int(run.value > 0), *said, start, end))
    return found


_GANG_KEY = ("gang_uid",)
_GANG_OWNED = ("namespace", "job_kind", "job_name", "job_uid", "queue")


def read_stalls(state: StateReader) -> list[FrameRow]:
    """Rows of frames.STALLS, clipped to the window: from the instant that the series names to the minute in
    which it was last seen. A stall that is seen on both sides of a gap went on through the gap, since the
    series names the same instant."""
    since = by_labels(state.runs(m.GANG_PARTIAL_SINCE, _GANG_KEY), _GANG_KEY)
    if not since:
        return []
    info = by_labels(state.runs(m.GANG_INFO, (*_GANG_KEY, *_GANG_OWNED)), _GANG_KEY)
    counts = [
        by_labels(state.runs(spec, _GANG_KEY), _GANG_KEY)
        for spec in (m.GANG_MIN_MEMBERS, m.GANG_RUNNING, m.GANG_PENDING)
    ]
    rows: list[FrameRow] = []
    for key, runs in since.items():
        around = [known.get(key, []) for known in counts]
        for start, end in _stretches(runs):
            rows += _stall_rows(state, key[0], info.get(key, []), around, (start, end))
    return rows


def _stretches(runs: Sequence[GaugeRun]) -> Iterator[tuple[int, int]]:
    """Ordered runs of one gang -> one stretch for each instant that is named."""
    ends: dict[int, int] = {}
    for run in runs:
        ends[round(run.value * 1000)] = run.end_ms
    reached = 0
    for since_ms, end in sorted(ends.items()):
        if max(since_ms, reached) < end:
            yield max(since_ms, reached), end
            reached = end


def _stall_rows(
    state: StateReader,
    gang: str,
    info: Sequence[GaugeRun],
    around: Sequence[Sequence[GaugeRun]],
    stretch: tuple[int, int],
) -> Iterator[FrameRow]:
    low, high = max(stretch[0], state.window.start_ms), min(stretch[1], state.window.end_ms)
    if low >= high:
        return
    cuts = {low, high}
    for runs in around:
        cuts |= {edge for start, end, _ in covering(runs, low, high) for edge in (start, end)}
    edges = sorted(cuts)
    owned = _at(info, low)
    rows: list[list[object]] = []
    for start, end in pairwise(edges):
        known = [_at(runs, start) for runs in around]
        if owned is None or any(run is None for run in known):
            continue
        counts = [int(run.value) for run in known if run is not None]
        head = [state.reader.cluster, gang, *(owned.labels.get(name, "") for name in _GANG_OWNED), *counts]
        if rows and rows[-1][:-2] == head and rows[-1][-1] == start:
            rows[-1][-1] = end
        else:
            rows.append([*head, start, end])
    yield from (tuple(row) for row in rows)


def _at(runs: Sequence[GaugeRun], at_ms: int) -> GaugeRun | None:
    """The value that held then, or was last seen before it; else the first one seen."""
    return next((run for run in reversed(runs) if run.start_ms <= at_ms), runs[0] if runs else None)


NEAR_MS = 10 * MINUTE_MS
"""The greatest distance between the increase and the end of a pod: pods have a grace period, and Kueue counts
the eviction before it stops them, or (PodsReadyTimeout of a pod that is gone) after."""
_KEY = ("workload_uid", "namespace", "workload")
NO_CHECKPOINT = -1


class _Rise(NamedTuple):
    at_ms: int
    reason: str


class _Attempt(NamedTuple):
    """One pod with its held time, as in the frame of allocations."""

    pod_uid: str
    job_uid: str
    queue: str
    start_ms: int
    end_ms: int


def read_evictions(reader: ClusterReader, window: Window, allocations: pd.DataFrame) -> list[FrameRow]:
    """Rows of frames.EVICTIONS: of the pods that ended in the window, those that kube-scheduler preempted,
    and of the others those whose workload was evicted within ten minutes of their end. Among the latter, a
    pod that happened to end by itself cannot be told from one that was stopped."""
    state = StateReader(reader, Window(window.start_ms - NEAR_MS, window.end_ms + NEAR_MS))
    rises, preempted = _rises(state), _preempted(state)
    if not rises and not preempted:
        return []
    found = []
    for name, attempt in _ended(window, allocations):
        rise = preempted.get(attempt.pod_uid)
        near = [each for each in rises.get(name, ()) if abs(each.at_ms - attempt.end_ms) <= NEAR_MS]
        if rise is None and near:
            rise = min(near, key=lambda each: abs(each.at_ms - attempt.end_ms))
        if rise is not None:
            found.append((attempt, rise))
    began = _began(reader, [attempt for attempt, _ in found if attempt.start_ms == window.start_ms])
    return [
        (
            *(reader.cluster, each.pod_uid, each.job_uid, each.queue),
            *(min(began.get(each.pod_uid, each.start_ms), each.start_ms), each.end_ms),
            *(rise.reason, "", NO_CHECKPOINT),
        )
        for each, rise in found
    ]


def risen(runs: Sequence[GaugeRun], is_known_before: bool, step_ms: int) -> Iterator[int]:
    """The instants at which a counter was seen to have risen, from its ordered runs at the given step. Its
    first value counts as an increase only if the counter is known not to have existed before."""
    before = 0.0 if is_known_before else None
    for run in runs:
        if before is not None and run.value > before:
            yield run.start_ms + step_ms
        before = run.value


def _preempted(state: StateReader) -> dict[str, _Rise]:
    """By uid of the pod, when kube-scheduler asked it to stop."""
    keys = ("pod_uid", "reason")
    told = by_labels(state.runs(m.POD_DISRUPTED, keys), keys)
    return {
        uid: _Rise(round(runs[-1].value * SECOND_MS), reason)
        for (uid, reason), runs in told.items()
        if reason == PREEMPTED_BY_SCHEDULER
    }


def _rises(state: StateReader) -> dict[tuple[str, ...], list[_Rise]]:
    """By namespace and name of the workload."""
    counted = by_labels(state.runs(m.WORKLOAD_EVICTIONS, (*_KEY, "reason")), (*_KEY, "reason"))
    if not counted:
        return {}
    seen = by_labels(state.runs(m.WORKLOAD_INFO, _KEY), _KEY)
    found: dict[tuple[str, ...], list[_Rise]] = {}
    for (*key, reason), runs in counted.items():
        first = runs[0].start_ms
        is_known = any(run.start_ms < first <= run.end_ms for run in seen.get(tuple(key), ()))
        for at_ms in risen(runs, is_known, state.step_ms):
            found.setdefault(tuple(key[1:]), []).append(_Rise(at_ms, reason))
    return found


def _ended(window: Window, allocations: pd.DataFrame) -> Iterator[tuple[tuple[str, str], _Attempt]]:
    """Pods that ended within the window; a pod that holds until the window's end may go on."""
    by_pod = allocations.sort_values("start_ms").groupby("pod_uid", sort=False, observed=True)
    spans = by_pod.agg(
        namespace=("namespace", "last"),
        workload=("workload", "last"),
        job_uid=("job_uid", "last"),
        queue=("queue", "last"),
        start_ms=("start_ms", "min"),
        end_ms=("end_ms", "max"),
    )
    spans = spans[spans["end_ms"] < window.end_ms].reset_index()
    columns = (spans[name].tolist() for name in spans)
    for uid, namespace, workload, job_uid, queue, start, end in zip(*columns, strict=True):
        yield (
            (str(namespace), str(workload)),
            _Attempt(str(uid), str(job_uid), str(queue), int(start), int(end)),
        )


def _began(reader: ClusterReader, attempts: Sequence[_Attempt]) -> dict[str, int]:
    """For pods that held before the window began: when they began."""
    if not attempts:
        return {}
    first, last = min(each.end_ms for each in attempts), max(each.end_ms for each in attempts)
    series = reader.raw_where(
        POD_GPU_START.name,
        with_renamed(["pod_uid"]),
        [each.pod_uid for each in attempts],
        first - NEAR_MS,
        last,
    )
    found: dict[str, int] = {}
    for one in series:
        at_ms = round(min(points(one)[1]) * 1000)
        uid = own_label(one, "pod_uid")
        found[uid] = min(found.get(uid, at_ms), at_ms)
    return found
