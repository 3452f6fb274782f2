"""Signals of the time that pods held, and memory in use.

Signals are increases of counters: differences of two values, at most a scrape interval away from the edges of
the window; what one window leaves out the next one has, so that windows add up (``counter_increase``). The
GPU exporter's counters begin at 0 at an instant that it exports, and go on over its restarts. Money never
depends on them. What has no samples has no row, and no zero.

Memory is a level, not a counter, and belongs to a GPU. It is read once a minute; at each instant the exporter
says which pods hold the GPU, and the reading stands for the minute before it. Of a GPU that several pods
share, each gets the part of the memory that it holds of the GPU: no driver reports memory per pod on every
kind of share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from math import isfinite

import numpy as np

from gpucost.contract.frames import SIGNALS
from gpucost.contract.gpu_metrics import (
    DEVICE_LABELS,
    GPU_BOARD_RATIO,
    GPU_MEMORY_TOTAL,
    GPU_MEMORY_USED,
    POD_ENERGY,
    POD_GPU_SHARE,
)
from gpucost.contract.metric_spec import MetricSpec
from gpucost.contract.metrics import SIGNAL_METRICS
from gpucost.domain.errors import DataProblem, DataProblemCode
from gpucost.domain.time import HOUR_MS, MINUTE_MS, SECOND_MS, Window
from gpucost.telemetry.evidence.counter_increase import CounterIncrease, SampleGrid
from gpucost.telemetry.evidence.gauge_runs import equal_steps, step_values
from gpucost.telemetry.prometheus.cluster_reader import ClusterReader
from gpucost.telemetry.prometheus.promql import (
    PromQL,
    by,
    divided,
    instead,
    over_instants,
    tagged,
    times,
    union,
    where_any,
)
from gpucost.telemetry.prometheus.query_response import needed

_OF_USE = "busy time, SM activity, tensor activity, memory, energy"
UNREAD = "use was not read (--cost-only): it is unknown, and not 0"


def unread_use(cluster: str, window: Window) -> DataProblem:
    """What stands in a window of which no use is read."""
    return DataProblem(DataProblemCode.USE_UNREAD, cluster, _OF_USE, UNREAD, None, window.start_ms)


EVERY_MS = MINUTE_MS
# How many readings one query may cover: Prometheus holds the readings of all GPUs at all instants in memory,
# and refuses more than 50 million values (--query.max-samples). With 40,000 GPUs these are 36.
MOST_MS = 4 * HOUR_MS
_MIB = 1 << 20
# Columns of frames.SIGNALS -> the factor from the query's unit to the column's.
MEMORY_UNITS: Mapping[str, float] = {
    "memory_observed_ms": EVERY_MS,
    "memory_used_mib_s": EVERY_MS / SECOND_MS / _MIB,
    "memory_total_mib_s": EVERY_MS / SECOND_MS / _MIB,
    "memory_peak_mib": 1 / _MIB,
}


def memory_queries(reader: ClusterReader, pod: tuple[str, ...], range_ms: int) -> Mapping[str, PromQL]:
    """By column of MEMORY_UNITS: sums over the instants of the range, over all that each ``pod`` held."""
    share = by(
        "max",
        POD_GPU_SHARE.labels,
        reader.as_exported(reader.select(POD_GPU_SHARE.name), POD_GPU_SHARE.labels),
    )
    share = by("sum", tuple(dict.fromkeys((*pod, *DEVICE_LABELS))), share)
    used, total, ratio = (
        _of_device(reader, spec) for spec in (GPU_MEMORY_USED, GPU_MEMORY_TOTAL, GPU_BOARD_RATIO)
    )
    # All memory of a MIG instance is its holder's, though the instance is only a part of a GPU.
    part = divided(share, ratio, DEVICE_LABELS)
    instants = {
        "memory_observed_ms": by("sum", pod, where_any(share, used, DEVICE_LABELS)),
        "memory_used_mib_s": by("sum", pod, times(part, used, DEVICE_LABELS)),
        "memory_total_mib_s": by(
            "sum", pod, times(where_any(part, used, DEVICE_LABELS), total, DEVICE_LABELS)
        ),
        "memory_peak_mib": by("max", pod, instead(share, used, DEVICE_LABELS)),
    }
    functions = {"memory_peak_mib": "max_over_time"}
    return {
        name: over_instants(functions.get(name, "sum_over_time"), expression, range_ms, EVERY_MS)
        for name, expression in instants.items()
    }


def _of_device(reader: ClusterReader, spec: MetricSpec) -> PromQL:
    return by("max", DEVICE_LABELS, reader.as_exported(reader.select(spec.name), DEVICE_LABELS))


_TAG = "signal"
_POD = ("pod_uid", "node")

SignalRow = tuple[object, ...]
_Measured = dict[tuple[str, str, Window], dict[str, float]]


def read_signals(reader: ClusterReader, window: Window) -> list[SignalRow]:
    """Rows of frames.SIGNALS, one per pod and step of the window."""
    measured: _Measured = defaultdict(dict)
    for steps in equal_steps(window, reader.settings.signal_step_ms):
        length = steps[0].length_ms
        rises = CounterIncrease(reader, SIGNAL_METRICS.values(), steps)
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


def _of_pods(rises: CounterIncrease, column: str) -> SampleGrid:
    """In the counter's unit, by _POD."""
    found = rises.of(SIGNAL_METRICS[column])
    if column == "energy_observed_ms":
        # Energy that did not rise was not read.
        energy = rises.of(POD_ENERGY).of(found.keys)
        found = SampleGrid(found.keys, np.where(energy > 0, found.values, np.nan))
    return found.summed(len(_POD))


def _keep(column: str, grid: SampleGrid, steps: list[Window], measured: _Measured) -> None:
    for (uid, node), row in grid.keys.items():
        for step, value in zip(steps, grid.values[row].tolist(), strict=True):
            if isfinite(value):
                measured[uid, node, step][column] = value * SECOND_MS


def _remember(reader: ClusterReader, length: int, steps: list[Window], measured: _Measured) -> None:
    """Memory: one query for all columns, by pod, node and step."""
    queries = memory_queries(reader, _POD, length)
    parts = [tagged(expression, _TAG, column) for column, expression in queries.items()]
    for series, step, value in step_values(reader, union(*parts), steps):
        if not isfinite(value):
            continue
        labels = series["metric"]
        place = labels.get("pod_uid", ""), labels.get("node", ""), step
        column = needed(series, _TAG, MEMORY_UNITS)
        measured[place][column] = value * MEMORY_UNITS[column]
