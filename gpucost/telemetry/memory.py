"""Memory in use of what pods held: readings of GPUs, once a minute, joined with who held them then.

Memory is a level, not a counter, and belongs to a GPU: so it is looked at at instants, at which the exporter
says which pods hold the GPU, and each instant stands for the minute before it. Of a GPU that several pods
share, each has the part that it holds of it: no driver says whose memory is whose on every kind of share.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpucost.contract.gpu_metrics import (
    DEVICE_LABELS,
    GPU_BOARD_RATIO,
    GPU_MEMORY_TOTAL,
    GPU_MEMORY_USED,
    POD_GPU_SHARE,
)
from gpucost.contract.spec import MetricSpec
from gpucost.domain.time import HOUR_MS, MINUTE_MS, SECOND_MS
from gpucost.telemetry.promql import (
    PromQL,
    by,
    divided,
    instead,
    over_instants,
    times,
    where_any,
)
from gpucost.telemetry.reader import ClusterReader

EVERY_MS = MINUTE_MS
# How much one query may look at: Prometheus holds the readings of all GPUs at all of its instants in memory,
# and refuses more than 50 million values (--query.max-samples). With 40,000 GPUs these are 36.
MOST_MS = 4 * HOUR_MS
_MIB = 1 << 20
# Columns of frames.SIGNALS -> what makes the column's unit of the query's.
MEMORY_UNITS: Mapping[str, float] = {
    "memory_observed_ms": EVERY_MS,
    "memory_used_mib_s": EVERY_MS / SECOND_MS / _MIB,
    "memory_total_mib_s": EVERY_MS / SECOND_MS / _MIB,
    "memory_peak_mib": 1 / _MIB,
}


def memory_queries(reader: ClusterReader, pod: tuple[str, ...], range_ms: int) -> Mapping[str, PromQL]:
    """By column of MEMORY_UNITS: sums over the instants of the range, of all that each ``pod`` held."""
    share = by(
        "max",
        POD_GPU_SHARE.labels,
        reader.as_exported(reader.select(POD_GPU_SHARE.name), POD_GPU_SHARE.labels),
    )
    share = by("sum", tuple(dict.fromkeys((*pod, *DEVICE_LABELS))), share)
    used, total, ratio = (
        _of_device(reader, spec) for spec in (GPU_MEMORY_USED, GPU_MEMORY_TOTAL, GPU_BOARD_RATIO)
    )
    # Of a MIG instance's memory all is its holder's, though the instance is only a part of a board.
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
