"""The activity of every GPU for every pod, in steps of five minutes, and its sums by the hour.

Work is either active or idle: an idle GPU is exactly 0 for whole steps, in stretches that the pods of a gang
share. Training loads its data first, evaluates now and then, and dips while it writes checkpoints; servers
follow the day; notebooks mostly wait for their user. MIG slices have no busy signal and L4 GPUs no SM signal,
as in real life; some nodes measure only part of the time, and one not at all. Null means not measured.

``draw_levels`` draws how busy GPUs are, levels from 0 to 1, for gangs, and spreads them over their GPUs;
``draw_activity`` makes the activity frame of them. ``draw_signals`` is what was measured of the held time,
hour by hour, and ``draw_progress`` the steps of training jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpucost.attribution.frames import conform
from gpucost.contract.frames import ACTIVITY, PROGRESS, SIGNALS
from gpucost.domain.jobs import JobKind, WorkloadClass, workload_class
from gpucost.domain.time import HOUR_MS, Window
from gpucost.simulator.injected_patterns import GIB, MIB, ActivityScript
from gpucost.simulator.inventory import SimulatedNode
from gpucost.simulator.scheduler import STEP_MS
from gpucost.simulator.workloads import DrawnFloats, DrawnInts, rhythm


@dataclass(frozen=True, slots=True)
class _Character:
    """Of a class of work: parameters of the beta distributions of the busy level while at work, of the ratios
    of SM activity to busy time and of tensor to SM activity; the chance that a stretch is idle, by day and by
    night; how many steps a stretch lasts on average; and the lowest and highest part of its GPU's memory that
    it uses."""

    busy: tuple[float, float]
    sm: tuple[float, float]
    tensor: tuple[float, float]
    idle_day: float
    idle_night: float
    stretch: float
    memory: tuple[float, float]


_CHARACTER = {
    WorkloadClass.BATCH: _Character((26.0, 1.5), (5.0, 4.0), (3.0, 5.0), 0.05, 0.05, 3, (0.55, 0.95)),
    WorkloadClass.SERVING: _Character((4.0, 3.0), (3.0, 6.0), (3.0, 6.0), 0.03, 0.15, 5, (0.6, 0.92)),
    WorkloadClass.INTERACTIVE: _Character((1.5, 5.0), (2.0, 7.0), (1.0, 8.0), 0.6, 0.93, 8, (0.05, 0.6)),
    WorkloadClass.UNKNOWN: _Character((3.0, 3.0), (3.0, 5.0), (2.0, 6.0), 0.35, 0.5, 4, (0.1, 0.7)),
}
_CLASSES = list(_CHARACTER)
# Loading data at the start: at most this long, and this part of the run.
_LOAD_MS, _LOAD_PART = 15 * 60_000, 0.04
# Every so many steps a checkpoint of a part of a step, and an evaluation of whole ones.
_CHECKPOINT_STEPS, _EVALUATION_STEPS = 12, 40
_CONTEXT_BYTES = 0.6 * GIB


@dataclass(frozen=True)
class ActivityLevels:
    """Per row: busy and SM level, tensor to SM, memory in bytes, and a variation around 0 for any use."""

    busy: DrawnFloats
    sm: DrawnFloats
    sm_ratio: DrawnFloats
    tensor_ratio: DrawnFloats
    memory: DrawnFloats
    wobble: DrawnFloats

    def write(self, at: DrawnInts, busy: float | None, sm_ratio: float | None, memory: float | None) -> None:
        """Set other levels at some rows; None keeps a level."""
        if busy is not None:
            self.busy[at] = np.clip(busy * (1 + 0.04 * self.wobble[at]), 0, 1)
        if sm_ratio is not None:
            self.sm_ratio[at] = sm_ratio
        self.sm[at] = self.busy[at] * self.sm_ratio[at]
        if memory is not None:
            self.memory[at] = memory * (1 + 0.02 * self.wobble[at])


def draw_levels(
    held: pd.DataFrame,
    row_of: DrawnInts,
    gpu: DrawnInts,
    nth: DrawnInts,
    memory_bytes: DrawnFloats,
    rng: np.random.Generator,
) -> ActivityLevels:
    """Levels of every row: GPU ``gpu`` (``row_of`` gives its row of ``held``) in its step ``nth``."""
    key = held["job_uid"].astype(str) + held["start_ms"].astype(str) + held["end_ms"].astype(str)
    codes, names = pd.factorize(key)
    gang_of = codes.astype(np.int64)
    first = held.iloc[np.unique(gang_of, return_index=True)[1]].reset_index(drop=True)
    kind = _classes(first)
    tables = {
        name: np.array([getattr(_CHARACTER[c], name) for c in _CLASSES]) for name in ("busy", "sm", "tensor")
    }
    level, sm_ratio, tensor_ratio = (rng.beta(*tables[name][kind].T) for name in ("busy", "sm", "tensor"))
    is_batch = kind == _CLASSES.index(WorkloadClass.BATCH)
    stuck = is_batch & (rng.random(len(names)) < 0.08)
    level = np.where(stuck, level * rng.random(len(names)) * 0.2, level)
    begin, at_work = _at_work(first, kind, rng)
    gang = gang_of[row_of][gpu]
    step = begin[gang] + nth
    of_gpu = 1 + rng.normal(0, 0.015, len(row_of))
    busy = np.clip(level[gang] * at_work[step] * of_gpu[gpu], 0, 1)
    low, high = np.array([_CHARACTER[c].memory for c in _CLASSES])[kind].T
    memory = (low + (high - low) * rng.random(len(names)))[gang_of]
    wobble = rng.normal(0, 1, len(gpu)).clip(-2.5, 2.5)
    used = _CONTEXT_BYTES + (memory * memory_bytes - _CONTEXT_BYTES)[row_of][gpu] * (
        1 + 0.01 * (wobble - 2.5)
    )
    ratio = sm_ratio[gang]
    return ActivityLevels(busy, busy * ratio, ratio, tensor_ratio[gang], used, wobble)


def _classes(first: pd.DataFrame) -> DrawnInts:
    known = {kind.value: _CLASSES.index(workload_class(kind)) for kind in JobKind}
    return np.asarray(first["job_kind"].map(known), dtype=np.int64)


def _at_work(first: pd.DataFrame, kind: DrawnInts, rng: np.random.Generator) -> tuple[DrawnInts, DrawnFloats]:
    """(first step of each gang, how much it is at work in each step: exactly 0 where it is idle)."""
    start, end = first["start_ms"].to_numpy(np.int64), first["end_ms"].to_numpy(np.int64)
    steps = -(-end // STEP_MS) - start // STEP_MS
    begin = np.cumsum(steps) - steps
    gang = np.repeat(np.arange(len(first)), steps)
    nth = np.arange(len(gang)) - begin[gang]
    at_ms = (start // STEP_MS)[gang] * STEP_MS + nth * STEP_MS
    busy = _stretches(kind[gang], at_ms, nth == 0, rng)
    work = np.where(busy, np.clip(rng.normal(1, 0.04, len(gang)), 0, None), 0.0)
    is_batch = (kind == _CLASSES.index(WorkloadClass.BATCH))[gang]
    offset = rng.integers(0, _EVALUATION_STEPS, len(first))[gang]
    work[is_batch & ((nth + offset) % _CHECKPOINT_STEPS == 0)] *= 0.7
    work[is_batch & ((nth + offset) % _EVALUATION_STEPS < 2) & (nth > 2)] *= 0.45
    load_ms = np.minimum(_LOAD_MS, (end - start) * _LOAD_PART) * rng.random(len(first)) * 1.3
    loaded = start + np.where(kind == _CLASSES.index(WorkloadClass.BATCH), load_ms, 0.0)
    opened, closed = np.maximum(at_ms, start[gang]), np.minimum(at_ms + STEP_MS, end[gang])
    work *= ((closed - np.maximum(loaded[gang], opened)) / (closed - opened)).clip(0, 1)
    serves = (kind == _CLASSES.index(WorkloadClass.SERVING))[gang]
    return begin, np.where(serves, work * rhythm(at_ms) / 1.8, work)


def _stretches(
    kind: DrawnInts, at_ms: DrawnInts, is_first: npt.NDArray[np.bool_], rng: np.random.Generator
) -> npt.NDArray[np.bool_]:
    """Whether a gang is at work: drawn anew at random steps, so that stretches have geometric lengths."""
    mean = np.array([_CHARACTER[c].stretch for c in _CLASSES])[kind]
    anew = is_first | (rng.random(len(kind)) < 1 / mean)
    hour = at_ms // HOUR_MS % 24
    by_night = (hour < 7) | (hour >= 20)
    day, night = (
        np.array([getattr(_CHARACTER[c], name) for c in _CLASSES]) for name in ("idle_day", "idle_night")
    )
    drawn = rng.random(len(kind)) >= np.where(by_night, night[kind], day[kind])
    last = np.maximum.accumulate(np.where(anew, np.arange(len(kind)), 0))
    return np.asarray(drawn[last], dtype=bool)


# By the beginning of the product name: idle and full watts, and memory of a GPU.
_BOARDS = {
    "NVIDIA-H100": (68.0, 640.0, 80.0),
    "NVIDIA-A100": (60.0, 380.0, 80.0),
    "NVIDIA-L4": (15.0, 71.0, 22.5),
}
_SLICE_GIB = {"1g.10gb": 9.75, "2g.20gb": 19.5, "3g.40gb": 39.25}
_SUMMED = ("observed_ms", "busy_ms", "sm_observed_ms", "sm_active_ms")


@dataclass(frozen=True)
class GpuActivity:
    """The activity frame, and beside it, row by row, what the frame does not have: the tensor activity, and
    ``row``, the position in ``held`` it belongs to."""

    frame: pd.DataFrame
    tensor_ms: DrawnFloats
    row: DrawnInts


@dataclass(frozen=True)
class GpuHardware:
    """Per row of ``held``: watts of a GPU at rest and at full load, bytes of one GPU, and which signals
    exist."""

    idle_w: DrawnFloats
    full_w: DrawnFloats
    memory_bytes: DrawnFloats
    coverage: DrawnFloats
    has_busy: npt.NDArray[np.bool_]
    has_sm: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, held: pd.DataFrame, nodes: Mapping[str, SimulatedNode]) -> GpuHardware:
        keys = list(zip(held["node"], held["resource"], strict=True))
        kinds = {key: hardware_of(nodes[key[0]], key[1]) for key in set(keys)}
        rows = [kinds[key] for key in keys]
        columns = [np.array(column) for column in zip(*rows, strict=True)]
        return cls(*columns)


def hardware_of(node: SimulatedNode, resource: str) -> tuple[float, float, float, float, bool, bool]:
    """A unit's values in the order of ``GpuHardware``."""
    idle_w, full_w, memory = next(v for start, v in _BOARDS.items() if node.product.startswith(start))
    profile = next((p for p in _SLICE_GIB if p in resource or p in node.product), "")
    memory = _SLICE_GIB.get(profile, memory)
    return idle_w, full_w, memory * GIB, node.signal_coverage, not profile, "L4" not in node.product


@dataclass(frozen=True)
class _Grid:
    """Rows of activity: each a GPU (position among all pods' GPUs) and a step. ``nth`` counts steps."""

    gpu: DrawnInts
    nth: DrawnInts
    start: DrawnInts
    end: DrawnInts


def _grid(start: DrawnInts, end: DrawnInts) -> _Grid:
    """Steps of each GPU, from the pod's start to its end, aligned to the epoch."""
    first = start // STEP_MS
    steps = -(-end // STEP_MS) - first
    gpu = np.repeat(np.arange(len(start)), steps)
    nth = np.arange(len(gpu)) - np.repeat(np.cumsum(steps) - steps, steps)
    begin = (first[gpu] + nth) * STEP_MS
    return _Grid(gpu, nth, np.maximum(begin, start[gpu]), np.minimum(begin + STEP_MS, end[gpu]))


def draw_activity(
    held: pd.DataFrame,
    gpus: Sequence[tuple[str, ...]],
    nodes: Mapping[str, SimulatedNode],
    gap: Window,
    scripts: Sequence[ActivityScript],
    rng: np.random.Generator,
) -> GpuActivity:
    """``held`` is the allocations frame with ``unit_share`` (of a GPU, per GPU); ``gpus`` are the ids of
    the GPUs of each of its rows."""
    counts = np.array([len(ids) for ids in gpus])
    row_of = np.repeat(np.arange(len(held)), counts)
    position = np.arange(len(row_of)) - np.repeat(np.cumsum(counts) - counts, counts)
    grid = _grid(held["start_ms"].to_numpy(np.int64)[row_of], held["end_ms"].to_numpy(np.int64)[row_of])
    row = row_of[grid.gpu]
    hardware = GpuHardware.of(held, nodes)
    levels = draw_levels(held, row_of, grid.gpu, grid.nth, hardware.memory_bytes, rng)
    seen = hardware.coverage[row] > 0
    for script in scripts:
        seen &= _played(script, held, grid, row, position, levels)
    length = grid.end - grid.start
    unseen = np.minimum(grid.end, gap.end_ms) - np.maximum(grid.start, gap.start_ms)
    observed = (length - unseen.clip(min=0)) * hardware.coverage[row]
    share = held["unit_share"].to_numpy(np.float64)[row]
    keep = seen & (observed > 0)
    board_ms = (observed * share)[keep]
    at = row[keep]
    busy, sm, memory = levels.busy[keep], levels.sm[keep], levels.memory[keep]
    held_ms = (length * share)[keep]
    load = 0.4 * busy + 0.6 * np.minimum(1.0, sm * 1.4)
    watts = hardware.idle_w[at] + (hardware.full_w - hardware.idle_w)[at] * load
    watts *= 1 + 0.03 * levels.wobble[keep]
    ids = [gpu for of_pod in gpus for gpu in of_pod]
    frame = pd.DataFrame(
        {
            "cluster": _category([str(held["cluster"].iloc[0])], np.zeros(len(at), np.int64)),
            "node": _texts(held["node"], at),
            "gpu": _texts(pd.Series(ids), grid.gpu[keep]),
            "pod_uid": _texts(held["pod_uid"], at),
            "start_ms": grid.start[keep],
            "end_ms": grid.end[keep],
            "held_ms": held_ms,
            "observed_ms": np.where(hardware.has_busy[at], board_ms, np.nan),
            "busy_ms": np.where(hardware.has_busy[at], board_ms * busy, np.nan),
            "sm_observed_ms": np.where(hardware.has_sm[at], board_ms, np.nan),
            "sm_active_ms": np.where(hardware.has_sm[at], board_ms * sm, np.nan),
            "memory_used_bytes": memory,
            "memory_total_bytes": hardware.memory_bytes[at],
            "energy_j": watts * held_ms / 1000,
        }
    )
    tensor = np.where(hardware.has_sm[at], board_ms * sm * levels.tensor_ratio[keep], np.nan)
    return GpuActivity(frame[list(ACTIVITY.column_names)], tensor, at)


def _played(
    script: ActivityScript,
    held: pd.DataFrame,
    grid: _Grid,
    row: DrawnInts,
    position: DrawnInts,
    levels: ActivityLevels,
) -> npt.NDArray[np.bool_]:
    """Write a script over what was drawn. Returns which rows are seen all the same."""
    seen = np.ones(len(row), dtype=bool)
    mine = np.flatnonzero((held["job"] == script.job).to_numpy())
    low, high = np.searchsorted(row, [mine.min(initial=len(held)), mine.max(initial=-1) + 1])
    at = np.arange(low, high)
    at = at[np.isin(row[at], mine)]
    at = at[(grid.start[at] >= script.window.start_ms) & (grid.end[at] <= script.window.end_ms)]
    if script.boards is not None:
        at = at[np.isin(position[grid.gpu[at]], script.boards)]
    if not script.is_seen:
        seen[at] = False
    levels.write(at, script.busy, script.sm_ratio, script.memory_bytes)
    if script.burst_steps:
        burst = at[grid.start[at] // STEP_MS % script.burst_steps == 0]
        levels.write(burst, 0.4, None, None)
    return seen


def hour_sums(activity: GpuActivity, hours: pd.DataFrame) -> dict[str, DrawnFloats]:
    """Sums of the activity per row of ``hours`` (from ``hourly``), by the names of the signals frame; what
    has no signal sums to 0."""
    row, start = hours["row"].to_numpy(np.int64), hours["start_ms"].to_numpy(np.int64)
    first_of_row = np.flatnonzero(np.append(True, row[1:] != row[:-1]))
    frame = activity.frame
    hour = frame["start_ms"].to_numpy() // HOUR_MS - (start // HOUR_MS)[first_of_row][activity.row]
    at = first_of_row[activity.row] + hour
    parts: dict[str, DrawnFloats] = {name: frame[name].to_numpy(np.float64) for name in _SUMMED}
    parts["tensor_active_ms"] = activity.tensor_ms
    seconds = (frame["end_ms"] - frame["start_ms"]).to_numpy() / 1000
    measured_ms = np.fmax(frame["observed_ms"].to_numpy(), frame["sm_observed_ms"].to_numpy())
    used_mib = frame["memory_used_bytes"].to_numpy() / MIB
    parts["memory_observed_ms"] = parts["energy_observed_ms"] = measured_ms
    parts["memory_used_mib_s"] = used_mib * seconds
    parts["memory_total_mib_s"] = frame["memory_total_bytes"].to_numpy() / MIB * seconds
    parts["energy_mj"] = frame["energy_j"].to_numpy() * 1000
    sums = {
        name: np.asarray(
            np.bincount(at, weights=np.nan_to_num(values), minlength=len(hours)), dtype=np.float64
        )
        for name, values in parts.items()
    }
    sums["memory_peak_mib"] = np.zeros(len(hours))
    np.maximum.at(sums["memory_peak_mib"], at, used_mib)
    return sums


def _texts(values: pd.Series[str], at: DrawnInts) -> pd.Categorical:
    codes, names = pd.factorize(values.to_numpy(dtype=object))
    return _category(list(names), codes[at])


def _category(names: list[str], codes: DrawnInts) -> pd.Categorical:
    return pd.Categorical.from_codes(codes, categories=pd.Index(names, dtype="str"))


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
    held: pd.DataFrame, nodes: dict[str, SimulatedNode], hours: pd.DataFrame, sums: Mapping[str, DrawnFloats]
) -> pd.DataFrame:
    """The signals frame: ``sums`` of the activity (``hour_sums``) in each row of ``hours``."""
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
