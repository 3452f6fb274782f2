"""What was measured on the time that pods held, and how far their jobs came: rises of counters.

Signals are the difference of two values of a counter, at most a scrape interval away from the edges of the
window; what one window leaves out the next one has, so that windows add up (telemetry.rises). The GPU
exporter's counters begin at 0 at an instant it tells, and go on over its restarts. Progress comes from other
people's counters, of which none of this is known, so there it is ``increase()``. Money never depends on
either. What has no samples has no row, and no zero.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import groupby
from math import isfinite

import numpy as np

from gpucost.contract.frames import SIGNALS
from gpucost.contract.gpu_metrics import POD_ENERGY
from gpucost.contract.metrics import SIGNAL_METRICS
from gpucost.domain.time import SECOND_MS, Window
from gpucost.telemetry.answers import Series, instant_place, needed
from gpucost.telemetry.memory import MEMORY_UNITS, MOST_MS, memory_queries
from gpucost.telemetry.promql import PromQL, by, over_time, tagged, union, without
from gpucost.telemetry.reader import ClusterReader, own_label, points, with_renamed
from gpucost.telemetry.rises import Grid, Rises
from gpucost.telemetry.settings import ProgressMetric

_TAG = "signal"
_POD = ("pod_uid", "node")

Row = tuple[object, ...]
# (namespace, pod) -> uids with the start of what they held, newest last: names are reused, uids are not.
PodNames = Mapping[tuple[str, str], list[tuple[int, str]]]
_Measured = dict[tuple[str, str, Window], dict[str, float]]


def read_signals(reader: ClusterReader, window: Window) -> list[Row]:
    """Rows of frames.SIGNALS, one per pod and step of the window."""
    measured: _Measured = defaultdict(dict)
    for steps in _equal_steps(reader, window):
        length = steps[0].length_ms
        rises = Rises(reader, SIGNAL_METRICS.values(), steps)
        for column in SIGNAL_METRICS:
            _keep(column, _of_pods(rises, column), steps, measured)
        most = max(1, MOST_MS // length)
        for at in range(0, len(steps), most):
            _remember(reader, length, steps[at : at + most], measured)
    measures = SIGNALS.column_names[5:]
    return [
        (reader.cluster, node, uid, step.start_ms, step.end_ms, *map(values.get, measures))
        for (uid, node, step), values in measured.items()
        if uid
    ]


def _of_pods(rises: Rises, column: str) -> Grid:
    """In the counter's unit, by _POD."""
    found = rises.of(SIGNAL_METRICS[column])
    if column == "energy_observed_ms":
        # Where energy did not rise nobody read it.
        energy = rises.of(POD_ENERGY).of(found.keys)
        found = Grid(found.keys, np.where(energy > 0, found.values, np.nan))
    return found.summed(len(_POD))


def _keep(column: str, grid: Grid, steps: list[Window], measured: _Measured) -> None:
    for (uid, node), row in grid.keys.items():
        for step, value in zip(steps, grid.values[row].tolist(), strict=True):
            if isfinite(value):
                measured[uid, node, step][column] = value * SECOND_MS


def _remember(reader: ClusterReader, length: int, steps: list[Window], measured: _Measured) -> None:
    """Memory: one query for all columns, by pod, node and step."""
    queries = memory_queries(reader, _POD, length)
    parts = [tagged(expression, _TAG, column) for column, expression in queries.items()]
    for series, step, value in _increases(reader, union(*parts), steps):
        labels = series["metric"]
        place = labels.get("pod_uid", ""), labels.get("node", ""), step
        column = needed(series, _TAG, MEMORY_UNITS)
        measured[place][column] = value * MEMORY_UNITS[column]


def read_progress(reader: ClusterReader, window: Window, pods: PodNames) -> list[Row]:
    """Rows of frames.PROGRESS for the metrics in the settings; series of unknown pods are left out."""
    rows: list[Row] = []
    for progress in reader.settings.progress:
        labels = [label for label in (progress.pod_label, progress.namespace_label) if label]
        for steps in _equal_steps(reader, window):
            increase = _increase(reader, progress.metric, steps[0].length_ms)
            amounts: dict[tuple[str, Window], float] = defaultdict(float)
            for series, step, value in _increases(reader, by("max", with_renamed(labels), increase), steps):
                uid = _uid(progress, series, step, pods)
                if uid:
                    amounts[uid, step] += value
            rows += [
                (reader.cluster, uid, step.start_ms, step.end_ms, progress.name, amount)
                for (uid, step), amount in amounts.items()
            ]
    return rows


def _uid(progress: ProgressMetric, series: Series, step: Window, pods: PodNames) -> str:
    pod = own_label(series, progress.pod_label)
    if not progress.namespace_label:
        return pod
    held = pods.get((own_label(series, progress.namespace_label), pod), [])
    return next((uid for start, uid in reversed(held) if start < step.end_ms), "")


def _increase(reader: ClusterReader, metric: str, range_ms: int) -> PromQL:
    increase = over_time("increase", reader.select(metric), range_ms)
    replicas = reader.settings.replica_labels
    return without("max", replicas, increase) if replicas else increase


def _increases(
    reader: ClusterReader, expression: PromQL, steps: list[Window]
) -> Iterator[tuple[Series, Window, float]]:
    """Series, step and value, for steps of equal length, one after the other."""
    length = steps[0].length_ms
    for series in reader.matrix(expression, steps[0].end_ms, steps[-1].end_ms, length):
        for at, value in zip(*points(series), strict=True):
            if isfinite(value):
                yield series, steps[instant_place(at, steps[0].end_ms, length, len(steps))], value


def _equal_steps(reader: ClusterReader, window: Window) -> list[list[Window]]:
    """The window in steps, together while their lengths are equal: one query for each list."""
    steps = window.split(reader.settings.signal_step_ms)
    return [list(group) for _, group in groupby(steps, key=lambda step: step.length_ms)]
