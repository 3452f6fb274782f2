"""The series of the GPU exporter: counters of pods by GPU, memory, and GPU health."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from gpucost.attribution.frames import ClusterFrames
from gpucost.contract.gpu_metrics import (
    DEVICE_LABELS,
    GPU_BOARD_RATIO,
    GPU_DRIVER_EPOCH,
    GPU_MEMORY_TOTAL,
    GPU_MEMORY_USED,
    GPU_UP,
    GPU_XID_EVENTS,
    HOLDER_COUNTERS,
    HOLDER_LABELS,
    POD_COUNTED_SINCE,
    POD_GPU_SHARE,
    POD_LABELS,
    AttributionMethod,
    GpuMeasure,
    HolderKind,
)
from gpucost.contract.metric_spec import MetricSpec
from gpucost.contract.metrics import SIGNAL_METRICS
from gpucost.simulator.history import CounterCurve
from gpucost.simulator.scheduler import STEP_MS
from gpucost.simulator.workloads import DrawnFloats, DrawnInts
from tests.support.simulated_metrics.series import GaugeLevels, ScrapeTimes, SeriesLife, SeriesRun

# Of the activity's columns: the counter, and the column's unit in the counter's.
_COUNTED: Mapping[str, tuple[MetricSpec, float]] = {
    "held_ms": (HOLDER_COUNTERS[GpuMeasure.HELD], 1e-3),
    "observed_ms": (HOLDER_COUNTERS[GpuMeasure.OBSERVED], 1e-3),
    "busy_ms": (HOLDER_COUNTERS[GpuMeasure.BUSY], 1e-3),
    "sm_observed_ms": (HOLDER_COUNTERS[GpuMeasure.SM_OBSERVED], 1e-3),
    "sm_active_ms": (HOLDER_COUNTERS[GpuMeasure.SM_ACTIVE], 1e-3),
    "tensor_observed_ms": (HOLDER_COUNTERS[GpuMeasure.TENSOR_OBSERVED], 1e-3),
    "tensor_active_ms": (HOLDER_COUNTERS[GpuMeasure.TENSOR_ACTIVE], 1e-3),
    "energy_j": (HOLDER_COUNTERS[GpuMeasure.ENERGY], 1.0),
}
_OF_SIGNALS: Mapping[str, tuple[MetricSpec, float]] = {
    column: (spec, 1e-3) for column, spec in SIGNAL_METRICS.items()
}
_GAUGES: Mapping[str, MetricSpec] = {
    "memory_used_bytes": GPU_MEMORY_USED,
    "memory_total_bytes": GPU_MEMORY_TOTAL,
}
_XID = "xid_"


def of_gpus(frames: ClusterFrames, scrapes: ScrapeTimes, life: SeriesLife) -> Iterator[SeriesRun]:
    """Counters that rise from 0 at the pod's start, as the rows of the activity say, and gauges.

    Frames without activity have one series per pod, of no GPU in particular, as the signals say.
    """
    here = scrapes.near(frames.signals)["pod_uid"].unique()
    signals = frames.signals[frames.signals["pod_uid"].isin(here)].sort_values("start_ms")
    lives = frames.allocations[frames.allocations["pod_uid"].isin(here)].sort_values("start_ms")
    pods = lives.drop_duplicates("pod_uid", keep="last").set_index("pod_uid").to_dict("index")
    if frames.activity.empty:
        rows, counted = signals.assign(gpu=""), _OF_SIGNALS
    else:
        activity = frames.activity[frames.activity["pod_uid"].isin(here)]
        rows, counted = _with_tensor(activity, signals), _COUNTED
    known: set[str] = set()
    for (uid, gpu), group in rows.groupby(["pod_uid", "gpu"], observed=True, sort=True):
        pod = pods[uid] | {"pod_uid": uid}
        place = {name: str(pod[name]) for name in POD_LABELS}
        start_ms, gone_ms = int(group["start_ms"].iloc[0]), life.gone_ms(pod["end_ms"], str(uid))
        if uid not in known:
            known.add(str(uid))
            yield SeriesRun(POD_COUNTED_SINCE, place, pod["cluster"], start_ms / 1000, start_ms, gone_ms)
        board, _, instance = str(gpu).partition("/")
        labels = {
            **dict.fromkeys(HOLDER_LABELS, ""),
            **place,
            "holder": HolderKind.POD,
            "method": AttributionMethod.EXACT,
            "gpu_uuid": board,
            "gpu_instance": instance,
        }
        if "held_ms" in group:
            held = {**place, "gpu_uuid": board, "gpu_instance": instance, "resource": pod["resource"]}
            share = float(group["held_ms"].sum() / (group["end_ms"] - group["start_ms"]).sum())
            whole = {**held, "container_names": "main"}
            yield SeriesRun(POD_GPU_SHARE, whole, pod["cluster"], share, start_ms, pod["end_ms"])
        at_ms = np.column_stack([group["start_ms"], group["end_ms"]]).ravel()
        for column, (spec, unit) in counted.items():
            values = group[column].to_numpy(np.float64) * unit
            if not np.isnan(values).any():
                yield SeriesRun(
                    spec, labels, pod["cluster"], CounterCurve(at_ms, _risen(values)), start_ms, gone_ms
                )
    yield from _memory(scrapes.near(frames.activity))
    yield from _health(frames)
    yield from _ratios(frames)


def _with_tensor(activity: pd.DataFrame, signals: pd.DataFrame) -> pd.DataFrame:
    """With the tensor activity, which is the same part of a pod's SM activity on all its GPUs."""
    sums = signals.groupby("pod_uid")[["tensor_active_ms", "sm_active_ms"]].sum(min_count=1)
    ratio = activity["pod_uid"].astype("str").map(sums["tensor_active_ms"] / sums["sm_active_ms"]).fillna(0.0)
    return activity.assign(
        tensor_observed_ms=activity["sm_observed_ms"], tensor_active_ms=activity["sm_active_ms"] * ratio
    )


def _risen(values: DrawnFloats) -> DrawnFloats:
    """The counter at the start and the end of every row."""
    after = np.cumsum(values)
    return np.column_stack([after - values, after]).ravel()


def _memory(activity: pd.DataFrame) -> Iterator[SeriesRun]:
    """Memory in use on a GPU while a pod holds it: of all that share it, and never more than the GPU has."""
    step: DrawnInts = activity["start_ms"].to_numpy() // STEP_MS * STEP_MS
    by_step = activity.assign(step=step).groupby(["node", "gpu", "step"], observed=True, sort=True)
    rows = by_step.agg({"cluster": "first", "memory_used_bytes": "sum", "memory_total_bytes": "max"})
    rows["memory_used_bytes"] = rows[["memory_used_bytes", "memory_total_bytes"]].min(axis=1)
    for (node, gpu), group in rows.reset_index().groupby(["node", "gpu"], observed=True):
        board, _, instance = str(gpu).partition("/")
        labels = {"node": str(node), "gpu_uuid": board, "gpu_instance": instance}
        start = group["step"].to_numpy(np.int64)
        for column, spec in _GAUGES.items():
            values = GaugeLevels(start, start + STEP_MS, group[column].to_numpy(np.float64).round())
            cluster = str(group["cluster"].iloc[0])
            yield SeriesRun(spec, labels, cluster, values, int(start[0]), int(start[-1]) + STEP_MS)


def _ratios(frames: ClusterFrames) -> Iterator[SeriesRun]:
    """Which share of its GPU each device is, as long as its node exists: a MIG instance belongs to its holder
    as a whole."""
    rows = frames.activity
    held = rows.assign(ratio=rows["held_ms"] / (rows["end_ms"] - rows["start_ms"]))
    most = held.groupby(["cluster", "node", "gpu"], observed=True)["ratio"].max().reset_index()
    nodes = frames.nodes.drop_duplicates("node").set_index("node")
    columns = (most[name].tolist() for name in ("cluster", "node", "gpu", "ratio"))
    for cluster, node, gpu, ratio in zip(*columns, strict=True):
        board, _, instance = str(gpu).partition("/")
        device = dict(zip(DEVICE_LABELS, (str(node), board, instance), strict=True))
        here = int(nodes.loc[node, "start_ms"]), int(nodes.loc[node, "end_ms"])
        yield SeriesRun(GPU_BOARD_RATIO, device, str(cluster), round(ratio, 6) if instance else 1.0, *here)


def _health(frames: ClusterFrames) -> Iterator[SeriesRun]:
    """GPUs that answered at some time, while their node exists; 0 while they are lost. After an error a GPU
    continues to answer, and its driver's counters begin at 0 when it is repaired."""
    named = frames.activity[["cluster", "node", "gpu"]].drop_duplicates().astype(str)
    named["gpu"] = named["gpu"].str.split("/").str[0]
    boards = pd.concat([named, frames.health[["cluster", "node", "gpu"]]]).drop_duplicates()
    nodes = frames.nodes.drop_duplicates("node").set_index("node")
    broken = {key: group.sort_values("start_ms") for key, group in frames.health.groupby(["node", "gpu"])}
    nothing = frames.health.iloc[:0]
    for cluster, node, gpu in zip(boards["cluster"], boards["node"], boards["gpu"], strict=True):
        labels = {"node": node, "gpu_uuid": gpu}
        here = int(nodes.loc[node, "start_ms"]), int(nodes.loc[node, "end_ms"])
        rows = broken.get((node, gpu), nothing)
        has_error = rows["reason"].str.startswith(_XID)
        lost = [(start, end, 0) for start, end in _times(rows[~has_error])]
        yield from _changes(GPU_UP, labels, cluster, here, 1, lost)
        errors = _times(rows[has_error])
        repairs = [(end, here[1], number) for number, (_, end) in enumerate(errors, 2)]
        yield from _changes(GPU_DRIVER_EPOCH, labels, cluster, here, 1, repairs)
        for reason, of_code in rows[has_error].groupby("reason"):
            xid = {**labels, "xid": str(reason).removeprefix(_XID)}
            begun = _times(of_code)
            counts = [(start, here[1], number) for number, (start, _) in enumerate(begun, 1)]
            yield from _changes(GPU_XID_EVENTS, xid, cluster, (begun[0][0], here[1]), 1, counts)


def _times(rows: pd.DataFrame) -> list[tuple[int, int]]:
    return list(zip(rows["start_ms"].tolist(), rows["end_ms"].tolist(), strict=True))


def _changes(
    spec: MetricSpec,
    labels: Mapping[str, str],
    cluster: str,
    here: tuple[int, int],
    usual: int,
    changes: Sequence[tuple[int, int, int]],
) -> Iterator[SeriesRun]:
    """A value that is the usual one but in the stretches of ``changes``, which the next of them may end."""
    reached = here[0]
    for number, (start_ms, end_ms, value) in enumerate(changes):
        until = min(end_ms, changes[number + 1][0]) if number + 1 < len(changes) else end_ms
        yield SeriesRun(spec, labels, cluster, usual, reached, start_ms)
        yield SeriesRun(spec, labels, cluster, value, start_ms, until)
        reached = until
    yield SeriesRun(spec, labels, cluster, usual, reached, here[1])
