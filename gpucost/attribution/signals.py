"""Utilisation joins attribution: what was measured on a pod is laid on the lines of the time it held.

A signal row covers some time of one pod on one node. It is spread over the windows it touches by time, and
within a window over the pod's lines by board time. Where no row is, the line's measures stay null: time
that was not observed is not time at 0 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from gpucost.attribution.deal import Ints
from gpucost.attribution.sweep import expand
from gpucost.contract.frames import PEAKS, SIGNAL_MEASURES

MEASURES = SIGNAL_MEASURES
# The time each amount was measured over.
_AMOUNTS: Mapping[str, tuple[str, ...]] = {
    "observed_ms": ("busy_ms",),
    "sm_observed_ms": ("sm_active_ms",),
    "tensor_observed_ms": ("tensor_active_ms",),
    "memory_observed_ms": ("memory_total_mib_s", "memory_used_mib_s"),
    "energy_observed_ms": ("energy_mj",),
}
_CEILING = {
    "busy_ms": "observed_ms",
    "sm_active_ms": "sm_observed_ms",
    "tensor_active_ms": "tensor_observed_ms",
    "memory_used_mib_s": "memory_total_mib_s",
}
# Where what is above the ceiling goes: on a shared board a pod may do more than its part of it.
_OVER = {"busy_ms": "busy_over_ms", "sm_active_ms": "sm_over_ms", "tensor_active_ms": "tensor_over_ms"}
_MEASURED = tuple(name for name in MEASURES if name not in _OVER.values())
_KEY = ["cluster", "node", "pod_uid", "window"]

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


def join_signals(lines: pd.DataFrame, signals: pd.DataFrame, edges: Ints) -> pd.DataFrame:
    """The MEASURES of each line (same index as ``lines``), as nullable integers.

    ``lines`` has cluster, node, pod_uid, window and board_ms of held lines; ``edges`` are the window edges.
    No measure exceeds what it is a part of: observed time is at most held time (what was measured over the
    part that is cut goes with it), active time at most observed, with the rest beside it as time over.
    """
    per_window = _spread_over_windows(signals, edges)
    held = lines.groupby(_KEY, observed=True)["board_ms"].transform("sum").to_numpy("float64")
    joined = lines[_KEY].merge(per_window, how="left", on=_KEY, validate="many_to_one")
    measured = {name: joined[name].to_numpy("float64") for name in _MEASURED if name in joined}
    share = lines["board_ms"].to_numpy("float64") / np.where(held > 0, held, np.nan)
    found = {name: measured[name] for name in PEAKS if name in measured}
    for time, amounts in _AMOUNTS.items():
        seen = _time(measured, time)
        part = share if seen is None else share * _kept(held, seen)
        if time in measured:
            found[time] = measured[time] * part
        for name in (name for name in amounts if name in measured):
            limit = seen if name in _OVER else measured.get(_CEILING.get(name, ""))
            found |= _within(name, measured[name], limit, part)
    return _whole_numbers(found, lines)


def _time(measured: Mapping[str, Floats], name: str) -> Floats | None:
    """The time ``name``; a recording without one of its own read the tensor signal with the SM signal."""
    if name == "tensor_observed_ms" and "sm_observed_ms" in measured:
        own = measured.get(name)
        sm = measured["sm_observed_ms"]
        return sm if own is None else np.where(np.isnan(own), sm, own)
    return measured.get(name)


def _kept(held: Floats, seen: Floats) -> Floats:
    """The part of the observed time that fits into the held time: scrapes do not fall on a pod's ends."""
    return np.divide(held, seen, out=np.ones(len(seen)), where=seen > held)


def _within(name: str, amount: Floats, limit: Floats | None, part: Floats) -> dict[str, Floats]:
    """The amount up to its limit and, where there is a place for it, what is over."""
    amount = np.maximum(amount, 0.0)
    if limit is None:
        return {name: amount * part}
    over = np.where(np.isnan(limit), 0.0, np.maximum(amount - limit, 0.0))
    found = {name: (amount - over) * part}
    if name in _OVER:
        found[_OVER[name]] = over * part
    return found


def _whole_numbers(found: Mapping[str, Floats], lines: pd.DataFrame) -> pd.DataFrame:
    """Rounded, and under their ceilings after rounding too; nothing over is null."""
    board_ms = lines["board_ms"].to_numpy("float64")
    columns: dict[str, Floats] = {}
    for name in (*_AMOUNTS, *MEASURES):
        if name in found and name not in columns:
            limit = board_ms if name in _AMOUNTS else columns.get(_CEILING.get(name, ""))
            value = np.rint(np.maximum(found[name], 0.0))
            columns[name] = value if limit is None else np.where(value > limit, limit, value)
    result = pd.DataFrame(index=lines.index)
    for name in MEASURES:
        values = columns.get(name, np.full(len(lines), np.nan))
        missing = np.isnan(values) | ((values == 0) & (name in _OVER.values()))
        numbers = np.where(missing, 0.0, values).astype(np.int64)
        result[name] = pd.arrays.IntegerArray(numbers, missing)
    return result


def _spread_over_windows(signals: pd.DataFrame, edges: Ints) -> pd.DataFrame:
    """The measures that have a value anywhere, per pod, node and window."""
    inside = signals[(signals["start_ms"] < edges[-1]) & (signals["end_ms"] > edges[0])].reset_index(
        drop=True
    )
    names = [name for name in _MEASURED if inside[name].notna().any()]
    start, end = inside["start_ms"].to_numpy(), inside["end_ms"].to_numpy()
    first = np.maximum(np.searchsorted(edges, start, side="right") - 1, 0)
    last = np.minimum(np.searchsorted(edges, end, side="left"), len(edges) - 1)
    row = np.repeat(np.arange(len(inside)), last - first)
    window = expand(first, last - first)
    overlap = np.minimum(end[row], edges[window + 1]) - np.maximum(start[row], edges[window])
    weight = overlap / (end - start)[row]
    spread = inside.loc[row, ["cluster", "node", "pod_uid", *names]].reset_index(drop=True)
    added = [name for name in names if name not in PEAKS]
    spread[added] = spread[added].mul(weight, axis=0)
    spread["window"] = window
    grouped = spread.groupby(_KEY, observed=True)
    peaks = grouped[[name for name in names if name in PEAKS]].max()
    found: pd.DataFrame = pd.concat([grouped[added].sum(min_count=1), peaks], axis=1).reset_index()
    return found
