"""The frames that only detectors read, out of Prometheus (contract.frames.HISTORY_FRAMES).

Activity is what each GPU did for each pod, in steps of a few minutes: increases of the GPU exporter's
counters, as signals (``evidence.signals``), but by GPU, and without time that had no holder. Every increase
is the difference of two readings: what a step without a reading had is in the next one, so steps add up, and
a counter that did not move is exactly 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np
import pandas as pd

from gpucost.attribution.frames import ClusterFrames, conform, empty_frame
from gpucost.contract.frames import (
    ACTIVITY,
    ALLOCATIONS,
    CAPACITY,
    COHORTS,
    DEMAND,
    DOMAINS,
    EVICTIONS,
    HEALTH,
    QUOTAS,
    SERVING,
    STALLS,
    FrameSpec,
)
from gpucost.contract.gpu_metrics import (
    DEVICE_LABELS,
    GPU_MEMORY_TOTAL,
    GPU_MEMORY_USED,
    HOLDER_COUNTERS,
    GpuMeasure,
)
from gpucost.contract.metric_spec import MetricSpec
from gpucost.contract.metrics import NODE_GPU_CAPACITY
from gpucost.domain.time import SECOND_MS, Window
from gpucost.telemetry.evidence.counter_increase import (
    PLACE,
    CounterIncrease,
    CounterKey,
    levels,
)
from gpucost.telemetry.evidence.frame_rows import frame_of
from gpucost.telemetry.evidence.gauge_runs import Floats, StateReader, equal_steps
from gpucost.telemetry.history.gpu_health import read_health, read_reported
from gpucost.telemetry.history.queue_quotas import read_cohorts, read_quotas
from gpucost.telemetry.history.serving import read_serving
from gpucost.telemetry.history.workload_history import (
    read_demand,
    read_domains,
    read_evictions,
    read_stalls,
)
from gpucost.telemetry.prometheus.cluster_reader import ClusterReader

# Column -> its counter, and the factor from the counter's unit to the column's.
_RISES: Mapping[str, tuple[GpuMeasure, int]] = {
    "held_ms": (GpuMeasure.HELD, SECOND_MS),
    "observed_ms": (GpuMeasure.OBSERVED, SECOND_MS),
    "busy_ms": (GpuMeasure.BUSY, SECOND_MS),
    "sm_observed_ms": (GpuMeasure.SM_OBSERVED, SECOND_MS),
    "sm_active_ms": (GpuMeasure.SM_ACTIVE, SECOND_MS),
    "energy_j": (GpuMeasure.ENERGY, 1),
}
_MEMORY: Mapping[str, MetricSpec] = {
    "memory_used_bytes": GPU_MEMORY_USED,
    "memory_total_bytes": GPU_MEMORY_TOTAL,
}
# Unknown where nothing was observed, even if the counter stood still.
_OBSERVED_BY = {"busy_ms": "observed_ms", "sm_active_ms": "sm_observed_ms"}
_DEVICE = tuple(PLACE.index(label) for label in DEVICE_LABELS)


def read_activity(reader: ClusterReader, window: Window) -> pd.DataFrame:
    """Rows of frames.ACTIVITY. Steps are aligned to the epoch, and cut at the window's edges."""
    groups = equal_steps(window, reader.settings.activity_step_ms)
    parts = [part for steps in groups if len(part := _read_steps(reader, steps))]
    return conform(pd.concat(parts, ignore_index=True), ACTIVITY) if parts else empty_frame(ACTIVITY)


def _read_steps(reader: ClusterReader, steps: list[Window]) -> pd.DataFrame:
    """Steps of one length."""
    rises = CounterIncrease(reader, [HOLDER_COUNTERS[measure] for measure, _ in _RISES.values()], steps)
    grids = {name: (rises.of(HOLDER_COUNTERS[measure]), factor) for name, (measure, factor) in _RISES.items()}
    keys = [*dict.fromkeys(key for name in ("held_ms", "observed_ms") for key in grids[name][0].keys)]
    values = {name: grid.of(keys) * factor for name, (grid, factor) in grids.items()}
    row, step = np.nonzero((values["held_ms"] > 0) | (values["observed_ms"] > 0))
    if not len(row):
        return empty_frame(ACTIVITY)
    found: dict[str, Floats] = {name: of[row, step] for name, of in values.items()}
    for name, observed in _OBSERVED_BY.items():
        found[name] = np.where(found[observed] > 0, found[name], np.nan)
    devices = [tuple(key[at] for at in _DEVICE) for key in keys]
    for name, spec in _MEMORY.items():
        found[name] = levels(reader, spec, DEVICE_LABELS, steps).of(devices)[row, step]
    ends = np.array([each.end_ms for each in steps], dtype=np.int64)[step]
    texts = {name: pd.Categorical([key[at] for key in keys])[row] for at, name in enumerate(PLACE)}
    texts["gpu"] = pd.Categorical([_gpu(key) for key in keys])[row]
    length = steps[0].length_ms
    times = {"start_ms": ends - length, "end_ms": ends}
    frame = pd.DataFrame({"cluster": reader.cluster, **texts, **times, **found})
    return frame[list(ACTIVITY.column_names)]


def _gpu(key: CounterKey) -> str:
    _, _, uuid, instance = key
    return f"{uuid}/{instance}" if instance else uuid


NEEDED: Mapping[str, FrameSpec] = {
    EVICTIONS.name: ALLOCATIONS,
    HEALTH.name: CAPACITY,
    SERVING.name: ALLOCATIONS,
}
"""The frames that each frame needs beside it."""


def with_history(
    reader: ClusterReader, window: Window, read: ClusterFrames, wanted: Collection[str] | None = None
) -> ClusterFrames:
    """``read``, the frames of ``window``, with those that only detectors read; of these only the ``wanted``,
    by name, unless None. For them, ``read`` must include the frames of NEEDED. Cohorts are no detector's, and
    read only where they are wanted by name.

    Raises the SourceErrors of the client.
    """
    history = _History(reader, window, read)
    found = {
        spec.name: getattr(history, spec.name)()
        for spec in (ACTIVITY, SERVING, DEMAND, STALLS, EVICTIONS, QUOTAS, HEALTH, DOMAINS)
        if wanted is None or spec.name in wanted
    }
    if wanted is not None and COHORTS.name in wanted:
        found[COHORTS.name] = history.cohorts()
    return replace(read, **found)


class _History:
    """Each frame, by its name; inputs that several of them need are read once."""

    def __init__(self, reader: ClusterReader, window: Window, read: ClusterFrames) -> None:
        self._reader = reader
        self._window = window
        self._read = read

    @cached_property
    def _state(self) -> StateReader:
        return StateReader(self._reader, self._window)

    def activity(self) -> pd.DataFrame:
        return read_activity(self._reader, self._window)

    def serving(self) -> pd.DataFrame:
        return read_serving(self._reader, self._window, self._read.allocations)

    def demand(self) -> pd.DataFrame:
        return frame_of(DEMAND, read_demand(self._state))

    def stalls(self) -> pd.DataFrame:
        return frame_of(STALLS, read_stalls(self._state))

    def evictions(self) -> pd.DataFrame:
        return frame_of(EVICTIONS, read_evictions(self._reader, self._window, self._read.allocations))

    def quotas(self) -> pd.DataFrame:
        return frame_of(QUOTAS, read_quotas(self._state, {*self._resources()}))

    def cohorts(self) -> pd.DataFrame:
        return frame_of(COHORTS, read_cohorts(self._state, {*self._resources()}))

    def health(self) -> pd.DataFrame:
        found = read_health(self._reader, self._window, self._read.capacity)
        return frame_of(HEALTH, [*found, *read_reported(self._state)])

    def domains(self) -> pd.DataFrame:
        return frame_of(DOMAINS, read_domains(self._state))

    def _resources(self) -> Iterator[str]:
        """Resources that the collector exported as GPU resources."""
        if self._read.capacity.empty:
            yield from (run.labels["resource"] for run in self._state.runs(NODE_GPU_CAPACITY, ("resource",)))
        yield from self._read.capacity["resource"].tolist()
        yield from self._read.allocations["resource"].tolist()
