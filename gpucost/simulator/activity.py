"""What every GPU did for every pod, in steps of five minutes, and the sums of it by the hour.

Work is either at it or not: what is idle is exactly 0 for whole steps, in stretches that the pods of a gang
share. Training loads its data first, evaluates now and then, and dips while it writes checkpoints; servers
follow the day; notebooks mostly wait for their owner. MIG slices have no busy signal and L4 boards no SM
signal, as in real life; some nodes measure only part of the time, and one not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpucost.contract.frames import ACTIVITY
from gpucost.domain.time import HOUR_MS, Window
from gpucost.simulator.inventory import Node
from gpucost.simulator.levels import Levels, draw_levels
from gpucost.simulator.plants import GIB, MIB, Script
from gpucost.simulator.rooms import STEP_MS
from gpucost.simulator.workloads import Floats, Ints

# By the beginning of the product: idle and full watts, and memory of a board.
_BOARDS = {
    "NVIDIA-H100": (68.0, 640.0, 80.0),
    "NVIDIA-A100": (60.0, 380.0, 80.0),
    "NVIDIA-L4": (15.0, 71.0, 22.5),
}
_SLICE_GIB = {"1g.10gb": 9.75, "2g.20gb": 19.5, "3g.40gb": 39.25}
_SUMMED = ("observed_ms", "busy_ms", "sm_observed_ms", "sm_active_ms")


@dataclass(frozen=True)
class Activity:
    """The activity frame, and beside it, row by row, what the frame does not have: the tensor activity, and
    ``row``, the position in ``held`` it belongs to."""

    frame: pd.DataFrame
    tensor_ms: Floats
    row: Ints


@dataclass(frozen=True)
class Hardware:
    """Per row of ``held``: watts of a board at rest and at full load, bytes of one GPU, and what is seen."""

    idle_w: Floats
    full_w: Floats
    memory_bytes: Floats
    coverage: Floats
    has_busy: npt.NDArray[np.bool_]
    has_sm: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, held: pd.DataFrame, nodes: Mapping[str, Node]) -> Hardware:
        keys = list(zip(held["node"], held["resource"], strict=True))
        kinds = {key: hardware_of(nodes[key[0]], key[1]) for key in set(keys)}
        rows = [kinds[key] for key in keys]
        columns = [np.array(column) for column in zip(*rows, strict=True)]
        return cls(*columns)


def hardware_of(node: Node, resource: str) -> tuple[float, float, float, float, bool, bool]:
    """A unit's values in the order of ``Hardware``."""
    idle_w, full_w, memory = next(v for start, v in _BOARDS.items() if node.product.startswith(start))
    profile = next((p for p in _SLICE_GIB if p in resource or p in node.product), "")
    memory = _SLICE_GIB.get(profile, memory)
    return idle_w, full_w, memory * GIB, node.signal_coverage, not profile, "L4" not in node.product


@dataclass(frozen=True)
class _Grid:
    """Rows of activity: each a GPU (position among all pods' GPUs) and a step. ``nth`` counts steps."""

    gpu: Ints
    nth: Ints
    start: Ints
    end: Ints


def _grid(start: Ints, end: Ints) -> _Grid:
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
    nodes: Mapping[str, Node],
    gap: Window,
    scripts: Sequence[Script],
    rng: np.random.Generator,
) -> Activity:
    """``held`` is the allocations frame with ``unit_share`` (of a board, per GPU); ``gpus`` are the ids of
    the GPUs of each of its rows."""
    counts = np.array([len(ids) for ids in gpus])
    row_of = np.repeat(np.arange(len(held)), counts)
    position = np.arange(len(row_of)) - np.repeat(np.cumsum(counts) - counts, counts)
    grid = _grid(held["start_ms"].to_numpy(np.int64)[row_of], held["end_ms"].to_numpy(np.int64)[row_of])
    row = row_of[grid.gpu]
    hardware = Hardware.of(held, nodes)
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
    return Activity(frame[list(ACTIVITY.column_names)], tensor, at)


def _played(
    script: Script, held: pd.DataFrame, grid: _Grid, row: Ints, position: Ints, levels: Levels
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


def hour_sums(activity: Activity, hours: pd.DataFrame) -> dict[str, Floats]:
    """Sums of the activity per row of ``hours`` (from ``signals.hourly``), by the names of the signals frame;
    what has no signal sums to 0."""
    row, start = hours["row"].to_numpy(np.int64), hours["start_ms"].to_numpy(np.int64)
    first_of_row = np.flatnonzero(np.append(True, row[1:] != row[:-1]))
    frame = activity.frame
    hour = frame["start_ms"].to_numpy() // HOUR_MS - (start // HOUR_MS)[first_of_row][activity.row]
    at = first_of_row[activity.row] + hour
    parts: dict[str, Floats] = {name: frame[name].to_numpy(np.float64) for name in _SUMMED}
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


def _texts(values: pd.Series[str], at: Ints) -> pd.Categorical:
    codes, names = pd.factorize(values.to_numpy(dtype=object))
    return _category(list(names), codes[at])


def _category(names: list[str], codes: Ints) -> pd.Categorical:
    return pd.Categorical.from_codes(codes, categories=pd.Index(names, dtype="str"))
