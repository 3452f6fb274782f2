"""How busy GPUs are, step by step: levels from 0 to 1, drawn for gangs and spread over their GPUs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpucost.domain.jobs import JobKind, WorkloadClass, workload_class
from gpucost.domain.time import HOUR_MS
from gpucost.simulator.plants import GIB
from gpucost.simulator.rooms import STEP_MS
from gpucost.simulator.workloads import Floats, Ints, rhythm


@dataclass(frozen=True, slots=True)
class _Character:
    """Of a class of work: betas of the busy level while at work, of the ratios of SM activity to busy time
    and of tensor to SM activity; the chance that a stretch is idle, by day and by night; how many steps a
    stretch lasts on average; and the part of its GPU's memory it uses, from and to."""

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
class Levels:
    """Per row: busy and SM level, tensor to SM, memory in bytes, and a wobble around 0 for any use."""

    busy: Floats
    sm: Floats
    sm_ratio: Floats
    tensor_ratio: Floats
    memory: Floats
    wobble: Floats

    def write(self, at: Ints, busy: float | None, sm_ratio: float | None, memory: float | None) -> None:
        """Put other levels at some rows; None keeps what is there."""
        if busy is not None:
            self.busy[at] = np.clip(busy * (1 + 0.04 * self.wobble[at]), 0, 1)
        if sm_ratio is not None:
            self.sm_ratio[at] = sm_ratio
        self.sm[at] = self.busy[at] * self.sm_ratio[at]
        if memory is not None:
            self.memory[at] = memory * (1 + 0.02 * self.wobble[at])


def draw_levels(
    held: pd.DataFrame, row_of: Ints, gpu: Ints, nth: Ints, memory_bytes: Floats, rng: np.random.Generator
) -> Levels:
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
    return Levels(busy, busy * ratio, ratio, tensor_ratio[gang], used, wobble)


def _classes(first: pd.DataFrame) -> Ints:
    known = {kind.value: _CLASSES.index(workload_class(kind)) for kind in JobKind}
    return np.asarray(first["job_kind"].map(known), dtype=np.int64)


def _at_work(first: pd.DataFrame, kind: Ints, rng: np.random.Generator) -> tuple[Ints, Floats]:
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
    kind: Ints, at_ms: Ints, is_first: npt.NDArray[np.bool_], rng: np.random.Generator
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
