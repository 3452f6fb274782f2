"""Utilisation joins attribution: what was measured on a pod is laid on the lines of the time it held.

A signal row covers some time of one pod on one node. It is spread over the windows it touches by time, and
within a window over the pod's lines by board time. Where no row is, the line's measures stay null: time
that was not observed is not time at 0 %.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpucost.attribution.deal import Ints
from gpucost.attribution.sweep import expand

MEASURES = ("observed_ms", "busy_ms", "sm_observed_ms", "sm_active_ms", "tensor_active_ms")
_CEILING = {
    "observed_ms": "board_ms",
    "busy_ms": "observed_ms",
    "sm_observed_ms": "board_ms",
    "sm_active_ms": "sm_observed_ms",
    "tensor_active_ms": "sm_observed_ms",
}
_KEY = ["cluster", "node", "pod_uid", "window"]


def join_signals(lines: pd.DataFrame, signals: pd.DataFrame, edges: Ints) -> pd.DataFrame:
    """The MEASURES of each line (same index as ``lines``), as nullable integers.

    ``lines`` has cluster, node, pod_uid, window and board_ms of held lines; ``edges`` are the window edges.
    No measure exceeds what it is a part of: observed time is at most held time, busy at most observed.
    """
    per_window = _spread_over_windows(signals, edges)
    total = lines.groupby(_KEY, observed=True)["board_ms"].transform("sum")
    joined = lines[[*_KEY, "board_ms"]].merge(per_window, how="left", on=_KEY, validate="many_to_one")
    joined.index = lines.index
    weight = lines["board_ms"] / total.where(total > 0)
    result = pd.DataFrame({"board_ms": lines["board_ms"].astype("Float64")}, index=lines.index)
    for name in MEASURES:
        value = (joined[name] * weight).round().astype("Float64")
        ceiling = result[_CEILING[name]]
        result[name] = value.clip(lower=0.0).where(
            value.isna() | ceiling.isna() | (value <= ceiling), ceiling
        )
    return result[list(MEASURES)].astype("Int64")


def _spread_over_windows(signals: pd.DataFrame, edges: Ints) -> pd.DataFrame:
    inside = signals[(signals["start_ms"] < edges[-1]) & (signals["end_ms"] > edges[0])].reset_index(
        drop=True
    )
    start, end = inside["start_ms"].to_numpy(), inside["end_ms"].to_numpy()
    first = np.maximum(np.searchsorted(edges, start, side="right") - 1, 0)
    last = np.minimum(np.searchsorted(edges, end, side="left"), len(edges) - 1)
    row = np.repeat(np.arange(len(inside)), last - first)
    window = expand(first, last - first)
    overlap = np.minimum(end[row], edges[window + 1]) - np.maximum(start[row], edges[window])
    weight = overlap / (end - start)[row]
    spread = inside.loc[row, ["cluster", "node", "pod_uid", *MEASURES]].reset_index(drop=True)
    spread[list(MEASURES)] = spread[list(MEASURES)].mul(weight, axis=0)
    spread["window"] = window
    per_window: pd.DataFrame = spread.groupby(_KEY, observed=True, as_index=False)[list(MEASURES)].sum(
        min_count=1
    )
    return per_window
