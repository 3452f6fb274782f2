"""Who waited for GPUs, and for what: Kueue's workloads, and jobs that no workload stands for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpucost.contract import queue_metrics as m
from gpucost.contract.queue_metrics import JOB_LABELS, Admitting
from gpucost.contract.spec import MetricSpec
from gpucost.telemetry.history_runs import Run, StateReader, by_labels, covering, values_of
from gpucost.telemetry.rows import Row

Key = tuple[str, ...]
NO_NODES = "__none__"
NOT_KNOWN = "__unknown__"
"""In place of products, where no node would take the pods, or nobody knows which: neither is any product."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """The metrics of what waits; ``key`` are the labels that name it. ``owned`` are columns of the frame and
    the labels of ``info`` (or of the key) that they come from; empty for none."""

    key: tuple[str, ...]
    waiting: MetricSpec
    info: MetricSpec
    pods: MetricSpec
    fewest: MetricSpec
    units: MetricSpec
    owned: Mapping[str, str]


_OWNED = ("namespace", "job_kind", "job", "job_uid", "workload", "queue", "cluster_queue", "team_label")
_WORKLOADS = _Kind(
    ("workload_uid",),
    m.WORKLOAD_LAYER,
    m.WORKLOAD_INFO,
    m.WORKLOAD_SET_PODS,
    m.WORKLOAD_SET_MIN,
    m.WORKLOAD_SET_UNITS,
    {
        **{name: name for name in _OWNED},
        "job": "job_name",
        "team_label": "owner_team",
    },
)
_JOBS = _Kind(
    JOB_LABELS,
    m.JOB_WAITING,
    m.JOB_WAITING_INFO,
    m.JOB_SET_PODS,
    m.JOB_SET_MIN,
    m.JOB_SET_UNITS,
    {
        **{name: name for name in _OWNED},
        "job": "job_name",
        "workload": "pod_group",
        "team_label": "owner_team",
    },
)


class _Around(NamedTuple):
    """What is known of one that waits."""

    waiting: Sequence[Run]
    info: Sequence[Run]
    pods: Sequence[Run]
    fewest: Sequence[Run]
    queued: Sequence[Run]


def read_demand(state: StateReader) -> list[Row]:
    """Rows of frames.DEMAND, clipped to the window."""
    queued = by_labels(state.rare(m.WORKLOAD_QUEUED, ("workload_uid",)), ("workload_uid",))
    return [*_read(state, _WORKLOADS, queued), *_read(state, _JOBS, {})]


def _read(state: StateReader, kind: _Kind, queued: Mapping[Key, list[Run]]) -> Iterator[Row]:
    key, with_set = kind.key, (*kind.key, "pod_set")
    units = state.runs(kind.units, (*with_set, "resource", "products", "nodes"))
    if not units:
        return
    waiting = by_labels(state.runs(kind.waiting, (*key, "layer", "reason")), key)
    own = tuple(label for label in kind.info.labels if label in kind.owned.values())
    info = by_labels(state.rare(kind.info, tuple(dict.fromkeys((*key, *own)))), key)
    pods = by_labels(state.runs(kind.pods, with_set), with_set)
    fewest = by_labels(state.rare(kind.fewest, with_set), with_set)
    for run in units:
        of, of_set = values_of(run, key), values_of(run, with_set)
        around = _Around(
            *(waiting.get(of, []), info.get(of, [])),
            *(pods.get(of_set, []), fewest.get(of_set, []), queued.get(of, [])),
        )
        yield from _rows(state, kind, run, around)


def _rows(state: StateReader, kind: _Kind, run: Run, around: _Around) -> Iterator[Row]:
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
            info, fewest = (_nearest(runs, since) for runs in (around.info, around.fewest))
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
            )


def _begun_ms(state: StateReader, run: Run, around: _Around) -> int:
    """When it was queued, where that is shortly before it was first seen, or within its first step."""
    earliest = run.start_ms - state.reader.settings.lateness_ms
    for queued in around.queued:
        at_ms = round(queued.value * 1000)
        first_seen = not any(each.end_ms <= run.start_ms for each in around.pods)
        if first_seen and earliest <= at_ms <= min(run.end_ms - 1, run.start_ms + state.step_ms):
            return at_ms
    return run.start_ms


def _products(run: Run) -> str:
    nodes, products = run.labels.get("nodes", ""), run.labels.get("products", "")
    if nodes == Admitting.ALL:
        return ""
    if nodes == Admitting.NONE:
        return NO_NODES
    return products if nodes == Admitting.SOME and products else NOT_KNOWN


def _nearest(runs: Sequence[Run], at_ms: int) -> Run | None:
    """The one that holds then, else the last before, else the first."""
    for run in reversed(runs):
        if run.start_ms <= at_ms:
            return run
    return runs[0] if runs else None
