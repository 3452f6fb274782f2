"""Small conversions between what Prometheus stores (floats) and what frames hold (integers)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import isfinite

import numpy as np

from gpucost.telemetry.answers import Series
from gpucost.telemetry.evidence import NONE, IntArray
from gpucost.telemetry.reader import points

# Far outside every instant gpucost accepts, yet far inside 64 bits.
_ABSURD_S = 1e12


def to_millis(seconds: Sequence[float | None]) -> IntArray:
    """Timestamps in seconds -> milliseconds; NONE where there is none, 0 where it is no number."""
    values = np.array([NONE / 1000 if value is None else value for value in seconds], dtype=np.float64)
    values = np.where(np.abs(values) < _ABSURD_S, values, 0.0)
    return np.rint(values * 1000).astype(np.int64)


def unit_count(value: float) -> int | None:
    """A number of units, or None when ``value`` is not a whole number from 0 to a million."""
    return int(value) if isfinite(value) and 0 <= value <= 1_000_000 and value == int(value) else None


def timeline(group: Sequence[Series], name: str, stale: Collection[int]) -> dict[int, float]:
    """All samples of one metric but the stale ones; the largest where two series have the same instant."""
    merged: dict[int, float] = {}
    for series in group:
        if series["metric"].get("__name__") == name:
            for at, value in zip(*points(series), strict=True):
                if at not in stale:
                    merged[at] = max(merged.get(at, value), value)
    return merged


def instants(values: Mapping[int, float], at: Sequence[int]) -> list[int]:
    """The timestamps in ``values`` (seconds) at these instants, in milliseconds; NONE where absent."""
    converted: list[int] = to_millis([values.get(instant) for instant in at]).tolist()
    return converted
