"""The frame frames.ACTIVITY out of dcgm-exporter: what each GPU did for each pod, in steps of minutes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from gpucost.attribution.frames import conform, empty_frame
from gpucost.contract.frames import ACTIVITY
from gpucost.domain.time import Window
from gpucost.telemetry.existing.holdings import Holdings
from gpucost.telemetry.existing.reader import ExistingReader
from gpucost.telemetry.existing.use import Use, read_use

_MJ_PER_J = 1_000


def read_activity(reader: ExistingReader, window: Window, holdings: Holdings) -> pd.DataFrame:
    """Steps are aligned to the epoch, and cut at the window's edges."""
    uses = read_use(reader, window, holdings, reader.settings.activity_step_ms)
    parts = [part for use in uses if len(part := _frame(reader.cluster, use))]
    return conform(pd.concat(parts, ignore_index=True), ACTIVITY) if parts else empty_frame(ACTIVITY)


def _frame(cluster: str, use: Use) -> pd.DataFrame:
    row, step = np.nonzero(use.held > 0)
    if not len(row):
        return empty_frame(ACTIVITY)
    grids = {
        "held_ms": use.held,
        "observed_ms": use.busy.observed,
        "busy_ms": use.busy.amount,
        "sm_observed_ms": use.sm.observed,
        "sm_active_ms": use.sm.amount,
        "memory_used_bytes": use.used,
        "memory_total_bytes": use.total,
        "energy_j": use.energy.amount / _MJ_PER_J,
    }
    ends = np.array([each.end_ms for each in use.steps], dtype=np.int64)[step]
    names: dict[str, Sequence[str]] = {
        "node": use.nodes,
        "gpu": [f"{uuid}/{instance}" if instance else uuid for (uuid, instance), _ in use.claims],
        "pod_uid": [uid for _, uid in use.claims],
    }
    texts = {name: pd.Categorical([*values])[row] for name, values in names.items()}
    times = {"start_ms": ends - use.steps[0].length_ms, "end_ms": ends}
    measured = {name: grid[row, step] for name, grid in grids.items()}
    frame = pd.DataFrame({"cluster": cluster, **texts, **times, **measured})
    return frame[list(ACTIVITY.column_names)]
