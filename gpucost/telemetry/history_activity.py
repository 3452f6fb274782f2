"""What each GPU did for each pod, in steps of a few minutes: rises of the GPU exporter's counters.

As signals (telemetry.signals), by GPU and without any that nobody held. Every rise is the difference of two
readings: what a step without a reading had is in the next one, so steps add up, and a counter that did not
move is exactly 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

import numpy as np
import pandas as pd

from gpucost.attribution.frames import conform, empty_frame
from gpucost.contract.frames import ACTIVITY
from gpucost.contract.gpu_metrics import (
    DEVICE_LABELS,
    GPU_MEMORY_TOTAL,
    GPU_MEMORY_USED,
    HOLDER_COUNTERS,
    Measure,
)
from gpucost.contract.spec import MetricSpec
from gpucost.domain.time import SECOND_MS, Window
from gpucost.telemetry.history_runs import Floats
from gpucost.telemetry.reader import ClusterReader
from gpucost.telemetry.rises import PLACE, Key, Rises, levels

# Column -> its counter, and what makes the column's unit of the counter's.
_RISES: Mapping[str, tuple[Measure, int]] = {
    "held_ms": (Measure.HELD, SECOND_MS),
    "observed_ms": (Measure.OBSERVED, SECOND_MS),
    "busy_ms": (Measure.BUSY, SECOND_MS),
    "sm_observed_ms": (Measure.SM_OBSERVED, SECOND_MS),
    "sm_active_ms": (Measure.SM_ACTIVE, SECOND_MS),
    "energy_j": (Measure.ENERGY, 1),
}
_MEMORY: Mapping[str, MetricSpec] = {
    "memory_used_bytes": GPU_MEMORY_USED,
    "memory_total_bytes": GPU_MEMORY_TOTAL,
}
# Unknown where nothing was observed, however still the counter stood.
_OBSERVED_BY = {"busy_ms": "observed_ms", "sm_active_ms": "sm_observed_ms"}
_DEVICE = tuple(PLACE.index(label) for label in DEVICE_LABELS)


def read_activity(reader: ClusterReader, window: Window) -> pd.DataFrame:
    """Rows of frames.ACTIVITY. Steps are aligned to the epoch, and cut at the window's edges."""
    groups = _equal_steps(window, reader.settings.activity_step_ms)
    parts = [part for steps in groups if len(part := _read_steps(reader, steps))]
    return conform(pd.concat(parts, ignore_index=True), ACTIVITY) if parts else empty_frame(ACTIVITY)


def _read_steps(reader: ClusterReader, steps: list[Window]) -> pd.DataFrame:
    """Steps of one length."""
    rises = Rises(reader, [HOLDER_COUNTERS[measure] for measure, _ in _RISES.values()], steps)
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


def _gpu(key: Key) -> str:
    _, _, uuid, instance = key
    return f"{uuid}/{instance}" if instance else uuid


def _equal_steps(window: Window, step_ms: int) -> Iterator[list[Window]]:
    for _, group in groupby(window.split(step_ms), key=lambda step: step.length_ms):
        yield list(group)
