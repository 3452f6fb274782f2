"""Rows of frames.SIGNALS out of dcgm-exporter: what was measured on the time that pods held."""

from __future__ import annotations

from math import isfinite

import numpy as np

from gpucost.contract.frames import SIGNALS
from gpucost.domain.problems import Problem
from gpucost.domain.time import Window
from gpucost.telemetry.existing.holdings import Holdings
from gpucost.telemetry.existing.reader import ExistingReader
from gpucost.telemetry.existing.use import MIB, Use, read_use
from gpucost.telemetry.history_runs import Floats
from gpucost.telemetry.rows import Row

_PEAK = SIGNALS.column_names[5:].index("memory_peak_mib")


def read_signals(
    reader: ExistingReader, window: Window, holdings: Holdings
) -> tuple[list[Row], list[Problem]]:
    """One row per pod, node and step of the window, and what could not be known."""
    rows: list[Row] = []
    problems: list[Problem] = []
    for use in read_use(reader, window, holdings, reader.settings.signal_step_ms):
        rows += _rows(reader.cluster, use)
        problems += use.problems
    return rows, problems


def _rows(cluster: str, use: Use) -> list[Row]:
    pods: dict[tuple[str, str], int] = {}
    of = np.array(
        [
            pods.setdefault((node, uid), len(pods))
            for node, (_, uid) in zip(use.nodes, use.claims, strict=True)
        ],
        dtype=np.int64,
    )
    columns = np.array([_summed(grid, of, len(pods)) for grid in _columns(use)])
    columns[_PEAK] = _largest(use.used / MIB, of, len(pods))
    pod, step = np.nonzero(np.isfinite(columns).any(axis=0))
    names = [*pods]
    values: list[list[float]] = columns[:, pod, step].T.tolist()
    return [
        (
            cluster,
            *names[p],
            use.steps[s].start_ms,
            use.steps[s].end_ms,
            *(each if isfinite(each) else None for each in measured),
        )
        for p, s, measured in zip(pod.tolist(), step.tolist(), values, strict=True)
    ]


def _columns(use: Use) -> list[Floats]:
    """In the order of the frame."""
    return [
        use.busy.observed,
        use.busy.amount,
        use.sm.observed,
        use.sm.amount,
        use.tensor.amount,
        use.tensor.observed,
        use.memory.observed,
        use.memory.amount,
        use.memory_total,
        use.used,
        use.energy.observed,
        use.energy.amount,
    ]


def _summed(grid: Floats, of: np.ndarray[tuple[int], np.dtype[np.int64]], pods: int) -> Floats:
    """NaN where all of a pod's are."""
    known = np.isfinite(grid)
    sums, seen = np.zeros((pods, grid.shape[1])), np.zeros((pods, grid.shape[1]), dtype=bool)
    np.add.at(sums, of, np.where(known, grid, 0.0))
    np.logical_or.at(seen, of, known)
    return np.where(seen, sums, np.nan)


def _largest(grid: Floats, of: np.ndarray[tuple[int], np.dtype[np.int64]], pods: int) -> Floats:
    found = np.full((pods, grid.shape[1]), np.nan)
    np.fmax.at(found, of, grid)
    return found
