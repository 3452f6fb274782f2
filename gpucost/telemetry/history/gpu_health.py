"""Stretches in which a GPU was present but broken: lost, after an error that only a reset repairs, or called
unhealthy by the status of a pod that holds it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

import pandas as pd

from gpucost.contract.gpu_metrics import GPU_DRIVER_EPOCH, GPU_UP, GPU_XID_EVENTS
from gpucost.contract.queue_metrics import POD_GPU_UNHEALTHY
from gpucost.domain.time import HOUR_MS, Window
from gpucost.telemetry.evidence.frame_rows import FrameRow
from gpucost.telemetry.evidence.gauge_runs import (
    GaugeRun,
    StateReader,
    bridged_runs,
    by_labels,
    step_ms,
    values_of,
)
from gpucost.telemetry.history.workload_history import risen
from gpucost.telemetry.prometheus.cluster_reader import ClusterReader
from gpucost.telemetry.prometheus.promql import (
    below,
    by,
    one_of,
    over_time,
)

GpuHealthKey = tuple[str, ...]
LOST = "lost"
REPORTED = "reported_unhealthy"
NO_POD = ("", "", None)
"""The last columns of a row that is not of a pod."""
LONGEST_MS = HOUR_MS
"""How long an error counts where no series shows a repair: an operator should have acted by then."""
BROKEN_XIDS = frozenset({46, 48, 62, 64, 79, 95, 110, 119, 120, 136, 140, 143, 156, 158})
"""Errors after which the GPU must be reset or its node rebooted before it is used again: those whose
immediate action is RESET_GPU or RESTART_BM in NVIDIA's catalogue (https://docs.nvidia.com/deploy/xid-errors/
analyzing-xid-catalog.html), and 48, of which it says that a reset is needed to clear it. GPU stopped
processing, uncorrectable ECC, PMU halt, row remapping failed, fallen off the bus, uncontained ECC, security
fault, GSP timeout and error, link training failed, unrecovered ECC, GPU initialisation, resource retirement,
fatal timeout. Not 74 and 144 to 150 (NVLink), which need a reset or not by registers that no count has; nor
109, which programs cause too (NVIDIA's device plugin leaves it out), 155, which is also seen when a link is
meant to go down, 63 and 94, after which the GPU goes on, and those that programs cause (13, 31, 43, 45)."""
_MOST_NAMED = 1_000
_NO_GPU = "__none__"
_GPU = ("node", "gpu_uuid")
_REPORTED_BY = ("node", "pod_uid", "resource", "gpu_uuid")


def read_health(reader: ClusterReader, window: Window, capacity: pd.DataFrame) -> list[FrameRow]:
    """Rows of frames.HEALTH, clipped to the window; ``capacity`` says when nodes took no more pods."""
    wide = Window(window.start_ms - LONGEST_MS, window.end_ms)
    events = reader.narrowed(
        [GPU_XID_EVENTS.name], one_of("xid", [str(code) for code in sorted(BROKEN_XIDS)])
    )
    counted = by_labels(bridged_runs(events, GPU_XID_EVENTS, (*_GPU, "xid"), wide), (*_GPU, "xid"))
    up = bridged_runs(
        _of_gpus(reader, {*_ever_lost(reader, wide), *(key[1] for key in counted)}), GPU_UP, _GPU, wide
    )
    found = [(*_names(run), run.start_ms, run.end_ms, LOST) for run in up if run.value == 0]
    found += _after_errors(reader, wide, counted, by_labels(up, _GPU), _drained(capacity))
    return [
        (reader.cluster, node, gpu, max(start, window.start_ms), min(end, window.end_ms), reason, *NO_POD)
        for node, gpu, start, end, reason in sorted(found)
        if start < window.end_ms and end > window.start_ms
    ]


def read_reported(state: StateReader) -> list[FrameRow]:
    """Rows of frames.HEALTH, clipped to the window: units that statuses of pods call unhealthy."""
    window, found = state.window, list[FrameRow]()
    for run in state.runs(POD_GPU_UNHEALTHY, _REPORTED_BY):
        node, uid, resource, gpu = values_of(run, _REPORTED_BY)
        start, end = max(run.start_ms, window.start_ms), min(run.end_ms, window.end_ms)
        if run.value > 0 and start < end:
            place = state.reader.cluster, node, gpu
            found.append((*place, start, end, REPORTED, uid, resource, run.value))
    return found


def _ever_lost(reader: ClusterReader, wide: Window) -> Iterator[str]:
    """GPUs that were lost at some time; for most GPUs no further query is needed."""
    least = over_time("min_over_time", reader.select(GPU_UP.name), wide.length_ms)
    lost = by("min", _GPU, reader.as_exported(least, _GPU))
    for each in reader.vector(below(lost, 1), wide.end_ms):
        yield str(each["metric"].get("gpu_uuid", ""))


def _of_gpus(reader: ClusterReader, gpus: Collection[str]) -> ClusterReader:
    """The same reader, for GPU_UP and GPU_DRIVER_EPOCH of these GPUs alone, where they are few."""
    if len(gpus) > _MOST_NAMED or "gpu_uuid" in reader.renames:
        return reader
    return reader.narrowed(
        [GPU_UP.name, GPU_DRIVER_EPOCH.name], one_of("gpu_uuid", sorted(gpus) or [_NO_GPU])
    )


def _after_errors(
    reader: ClusterReader,
    wide: Window,
    broken: Mapping[GpuHealthKey, list[GaugeRun]],
    up: Mapping[GpuHealthKey, list[GaugeRun]],
    drained: Mapping[str, list[tuple[int, int]]],
) -> Iterator[tuple[str, str, int, int, str]]:
    if not broken:
        return
    named = _of_gpus(reader, {gpu for _, gpu, _ in broken})
    epochs = by_labels(bridged_runs(named, GPU_DRIVER_EPOCH, _GPU, wide), _GPU)
    every_ms = step_ms(wide)
    for (node, gpu, xid), runs in broken.items():
        first = runs[0].start_ms
        is_known = any(run.start_ms < first for run in up.get((node, gpu), ()))
        repaired = [*risen(epochs.get((node, gpu), []), False, every_ms), *_restarts(runs)]
        began = reached = 0
        for at_ms in risen(runs, is_known, every_ms):
            over = min([at_ms + LONGEST_MS, *(each for each in repaired if each > at_ms)])
            over = min([over, *(max(low, at_ms) for low, high in drained.get(node, []) if high > at_ms)])
            if at_ms > reached:
                if began < reached:
                    yield node, gpu, began, reached, f"xid_{xid}"
                began = at_ms
            reached = max(reached, over)
        if began < reached:
            yield node, gpu, began, reached, f"xid_{xid}"


def _restarts(runs: Sequence[GaugeRun]) -> Iterator[int]:
    """When the driver's counter began anew or ended for good: the node booted, or was removed."""
    for run, following in pairwise(runs):
        if following.value < run.value:
            yield following.start_ms
    yield runs[-1].end_ms


def _drained(capacity: pd.DataFrame) -> dict[str, list[tuple[int, int]]]:
    """By node, when it accepted no pods."""
    found: dict[str, list[tuple[int, int]]] = {}
    closed = capacity[capacity["schedulable"] == 0]
    columns = (closed[name].tolist() for name in ("node", "start_ms", "end_ms"))
    for node, start, end in zip(*columns, strict=True):
        found.setdefault(str(node), []).append((int(start), int(end)))
    return found


def _names(run: GaugeRun) -> tuple[str, str]:
    return run.labels.get("node", ""), run.labels.get("gpu_uuid", "")
