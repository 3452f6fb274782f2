"""How busy the held time was, hour by hour, and how far training jobs came.

Training is either at work (nearly always busy, half of the SMs active) or stuck; servers follow the day;
notebooks mostly wait for their owner. MIG slices have no busy signal and L4 boards no SM signal, as in
real life; some nodes measure only part of the time, and one not at all. Null means not measured.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpucost.attribution.frames import conform
from gpucost.contract.frames import PROGRESS, SIGNALS
from gpucost.domain.jobs import JobKind, WorkloadClass, workload_class
from gpucost.domain.time import HOUR_MS, Window
from gpucost.simulator.inventory import Node
from gpucost.simulator.workloads import rhythm

# Busy level while at work and chance of an hour at nothing, by class of work; then the two ratios of SM
# activity to busy time and of tensor activity to SM activity, each as the two parameters of a beta.
_CHARACTER = {
    WorkloadClass.BATCH: ((26.0, 1.5), 0.10, (5.0, 4.0), (3.0, 5.0)),
    WorkloadClass.SERVING: ((4.0, 3.0), 0.05, (3.0, 6.0), (3.0, 6.0)),
    WorkloadClass.INTERACTIVE: ((1.5, 5.0), 0.80, (2.0, 7.0), (1.0, 8.0)),
    WorkloadClass.UNKNOWN: ((3.0, 3.0), 0.40, (3.0, 5.0), (2.0, 6.0)),
}
_TRAINING = (JobKind.PYTORCH_JOB.value, JobKind.TRAIN_JOB.value)


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
    held: pd.DataFrame, nodes: dict[str, Node], gap: Window, rng: np.random.Generator
) -> pd.DataFrame:
    """The signals frame. ``held`` is the allocations frame with ``share``: boards held."""
    hours = hourly(held)
    at = hours["row"].to_numpy()
    coverage = held["node"].map({name: node.signal_coverage for name, node in nodes.items()}).to_numpy()[at]
    seen_ms = (hours["end_ms"] - hours["start_ms"] - _overlap_ms(hours, gap)).to_numpy() * coverage
    board_ms = seen_ms * held["share"].to_numpy()[at]
    busy, sm, tensor = _levels(held, hours, rng)
    product = held["node"].map({name: node.product for name, node in nodes.items()}).to_numpy()[at]
    sliced = (
        np.array(["-MIG-" in text for text in product]) | held["resource"].str.contains("mig-").to_numpy()[at]
    )
    small = np.array(["L4" in text for text in product])
    measured = coverage > 0
    signals = pd.DataFrame(
        {
            "cluster": held["cluster"].to_numpy()[at],
            "node": held["node"].to_numpy()[at],
            "pod_uid": held["pod_uid"].to_numpy()[at],
            "start_ms": hours["start_ms"],
            "end_ms": hours["end_ms"],
            "observed_ms": np.where(sliced, np.nan, board_ms),
            "busy_ms": np.where(sliced, np.nan, board_ms * busy),
            "sm_observed_ms": np.where(small, np.nan, board_ms),
            "sm_active_ms": np.where(small, np.nan, board_ms * sm),
            "tensor_active_ms": np.where(small, np.nan, board_ms * tensor),
        }
    )
    return conform(signals[measured].reset_index(drop=True), SIGNALS)


def _levels(
    held: pd.DataFrame, hours: pd.DataFrame, rng: np.random.Generator
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Busy, SM-active and tensor-active levels (0 to 1) of every hour: a pod's own level with some noise."""
    at = hours["row"].to_numpy()
    classes = np.array([workload_class(JobKind(kind)) for kind in held["job_kind"]], dtype=object)
    level, idle, sm_ratio, tensor_ratio = (np.zeros(len(held)) for _ in range(4))
    for kind, (busy, idle_chance, sm, tensor) in _CHARACTER.items():
        mine = classes == kind
        level[mine] = rng.beta(*busy, mine.sum())
        idle[mine] = idle_chance
        sm_ratio[mine] = rng.beta(*sm, mine.sum())
        tensor_ratio[mine] = rng.beta(*tensor, mine.sum())
    stuck = (classes == WorkloadClass.BATCH) & (rng.random(len(held)) < 0.08)
    level[stuck] *= rng.random(int(stuck.sum())) * 0.2
    daily = np.where(
        (classes == WorkloadClass.SERVING)[at], rhythm(hours["start_ms"].to_numpy(np.int64)) / 1.8, 1.0
    )
    working = rng.random(len(at)) >= idle[at]
    noise = np.clip(rng.normal(1, 0.05, len(at)), 0, None)
    busy_level = np.clip(level[at] * daily * working * noise, 0, 1)
    sm_level = busy_level * sm_ratio[at]
    return busy_level, sm_level, sm_level * tensor_ratio[at]


def _overlap_ms(hours: pd.DataFrame, gap: Window) -> pd.Series[int]:
    end = hours["end_ms"].clip(upper=gap.end_ms)
    return (end - hours["start_ms"].clip(lower=gap.start_ms)).clip(lower=0)


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
