"""Attempts that were cut short: pods that kube-scheduler preempted, as they say themselves, and pods that
ended when Kueue's count of their workload's evictions rose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pandas as pd

from gpucost.cluster.pods import PREEMPTED_BY_SCHEDULER
from gpucost.contract import queue_metrics as m
from gpucost.contract.metrics import POD_GPU_START
from gpucost.domain.time import MINUTE_MS, SECOND_MS, Window
from gpucost.telemetry.history_runs import Run, StateReader, by_labels
from gpucost.telemetry.reader import ClusterReader, own_label, points, with_renamed
from gpucost.telemetry.rows import Row

NEAR_MS = 10 * MINUTE_MS
"""How far apart the rise and the end of a pod may be: pods have a grace period, and Kueue counts the eviction
before it stops them, or (PodsReadyTimeout of a pod that is gone) after."""
_KEY = ("workload_uid", "namespace", "workload")
NO_CHECKPOINT = -1


class _Rise(NamedTuple):
    at_ms: int
    reason: str


class _Attempt(NamedTuple):
    """Of one pod, as the frame of allocations has it."""

    pod_uid: str
    job_uid: str
    queue: str
    start_ms: int
    end_ms: int


def read_evictions(reader: ClusterReader, window: Window, allocations: pd.DataFrame) -> list[Row]:
    """Rows of frames.EVICTIONS: of the pods that ended in the window, those that kube-scheduler preempted,
    and of others those whose workload was evicted within ten minutes of their end. Of these a pod that ended
    by itself then cannot be told from one that was stopped."""
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


def risen(runs: Sequence[Run], is_known_before: bool, step_ms: int) -> Iterator[int]:
    """When a counter was seen to have risen, of its runs in order, which were looked at in such steps. Its
    first value is a rise only if it is known that the counter was not there before."""
    before = 0.0 if is_known_before else None
    for run in runs:
        if before is not None and run.value > before:
            yield run.start_ms + step_ms
        before = run.value


def _preempted(state: StateReader) -> dict[str, _Rise]:
    """When kube-scheduler told a pod to stop, by its uid."""
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
    """Pods that ended within the window; whoever holds until its end may go on."""
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
    """When pods began that held before the window did."""
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
