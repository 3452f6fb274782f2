"""What was measured of the held time, hour by hour, as sums of the activity; and how far training jobs came.

MIG slices have no busy signal and L4 boards no SM signal, as in real life. Null means not measured.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from gpucost.attribution.frames import conform
from gpucost.contract.frames import PROGRESS, SIGNALS
from gpucost.domain.jobs import JobKind
from gpucost.domain.time import HOUR_MS
from gpucost.simulator.inventory import Node
from gpucost.simulator.workloads import Floats

_TRAINING = (JobKind.PYTORCH_JOB.value, JobKind.TRAIN_JOB.value)

_LEVELS = (
    *("memory_observed_ms", "memory_used_mib_s", "memory_total_mib_s", "memory_peak_mib"),
    *("energy_observed_ms", "energy_mj"),
)


def hourly(held: pd.DataFrame) -> pd.DataFrame:
    """One row per pod and UTC hour it touches. ``held`` has start_ms and end_ms; ``row`` refers to it."""
    start, end = held["start_ms"].to_numpy(np.int64), held["end_ms"].to_numpy(np.int64)
    first, hours = start // HOUR_MS, -(-end // HOUR_MS) - start // HOUR_MS
    row = np.repeat(np.arange(len(held)), hours)
    nth = np.arange(int(hours.sum())) - np.repeat(np.cumsum(hours) - hours, hours)
    hour_start = (first[row] + nth) * HOUR_MS
    return pd.DataFrame(
        {
            "row": row,
            "start_ms": np.maximum(start[row], hour_start),
            "end_ms": np.minimum(end[row], hour_start + HOUR_MS),
        }
    )


def draw_signals(
    held: pd.DataFrame, nodes: dict[str, Node], hours: pd.DataFrame, sums: Mapping[str, Floats]
) -> pd.DataFrame:
    """The signals frame: ``sums`` of the activity (``activity.hour_sums``) in each row of ``hours``."""
    at = hours["row"].to_numpy()
    product = held["node"].map({name: node.product for name, node in nodes.items()}).to_numpy()[at]
    sliced = (
        np.array(["-MIG-" in text for text in product]) | held["resource"].str.contains("mig-").to_numpy()[at]
    )
    small = np.array(["L4" in text for text in product])
    measured = sums["observed_ms"] + sums["sm_observed_ms"] > 0
    signals = pd.DataFrame(
        {
            "cluster": held["cluster"].to_numpy()[at],
            "node": held["node"].to_numpy()[at],
            "pod_uid": held["pod_uid"].to_numpy()[at],
            "start_ms": hours["start_ms"],
            "end_ms": hours["end_ms"],
            "observed_ms": np.where(sliced, np.nan, sums["observed_ms"]),
            "busy_ms": np.where(sliced, np.nan, sums["busy_ms"]),
            "sm_observed_ms": np.where(small, np.nan, sums["sm_observed_ms"]),
            "sm_active_ms": np.where(small, np.nan, sums["sm_active_ms"]),
            "tensor_active_ms": np.where(small, np.nan, sums["tensor_active_ms"]),
            "tensor_observed_ms": np.where(small, np.nan, sums["sm_observed_ms"]),
            **{name: sums[name] for name in _LEVELS},
        }
    )
    return conform(signals[measured].reset_index(drop=True), SIGNALS)


def draw_progress(held: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """The progress frame: steps and tokens of the first pod of every training gang, hour by hour."""
    leaders = held[held["job_kind"].isin(_TRAINING) & held["leader"]].reset_index(drop=True)
    hours = hourly(leaders)
    at = hours["row"].to_numpy()
    steps_per_s = rng.uniform(0.3, 3.0, len(leaders))[at] * np.clip(rng.normal(1, 0.08, len(at)), 0, None)
    steps = np.floor(steps_per_s * (hours["end_ms"] - hours["start_ms"]).to_numpy() / 1000)
    per_step = rng.choice([65_536.0, 262_144.0, 524_288.0], len(leaders))[at]
    base = {
        "cluster": leaders["cluster"].to_numpy()[at],
        "pod_uid": leaders["pod_uid"].to_numpy()[at],
        "start_ms": hours["start_ms"],
        "end_ms": hours["end_ms"],
    }
    amounts = {"steps": steps, "tokens": steps * per_step}
    frames = [pd.DataFrame({**base, "name": name, "amount": amount}) for name, amount in amounts.items()]
    return conform(pd.concat(frames, ignore_index=True), PROGRESS)
