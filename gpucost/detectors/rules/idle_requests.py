"""What reached a server while its GPUs did nothing: requests where they are counted, else bytes received."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpucost.attribution.deal import Flags, Ints
from gpucost.attribution.frames import empty_frame
from gpucost.attribution.pieces import union
from gpucost.contract.frames import SERVING
from gpucost.detectors.activity import Floats
from gpucost.detectors.rules.idle_stretches import LEAST_SEEN
from gpucost.detectors.rules.workloads import Workloads
from gpucost.detectors.settings import LATELY_MS
from gpucost.domain.time import MINUTE_MS

_QUIET_PART = 0.1
_TIMES_QUIET = 3.0
_LEAST_BYTES_PER_MINUTE = 20_000
"""Bytes are taken for requests above three times the pod's own quiet floor (the rate that a tenth of its
late steps stay below: probes, scrapes, keep-alives), and above the floor by 20 kB a minute. Ours."""


class Signal(StrEnum):
    """What says whether anybody called a server."""

    REQUESTS = "requests"
    BYTES = "received bytes"


@dataclass(frozen=True)
class Traffic:
    """What reached a job in a stretch of time. ``signal`` is None where too little was read of some pod.

    ``calls`` are steps in which something came, merged and in order. They are known even without a signal,
    where a counter of the whole workload says so: what such a counter does not see is not known to be none.
    """

    signal: Signal | None
    metrics: tuple[str, ...]
    calls: tuple[tuple[int, int], ...]

    def quiet(self, start_ms: int, end_ms: int) -> list[tuple[int, int]]:
        """The parts of ``[start, end)`` in which nothing came."""
        parts, reached = list[tuple[int, int]](), start_ms
        for begin, close in self.calls:
            if begin > reached:
                parts.append((reached, min(begin, end_ms)))
            reached = max(reached, close)
        parts.append((reached, end_ms))
        return [(begin, close) for begin, close in parts if begin < close]


@dataclass(frozen=True)
class _PodRows:
    """Rows of one pod, by their start: ``called`` and ``noisy`` where something came, by requests and by
    bytes; ``counted`` and ``measured`` where such a counter was read."""

    start: Ints
    end: Ints
    metric: npt.NDArray[np.object_]
    called: Flags
    counted: Flags
    noisy: Flags
    measured: Flags

    @classmethod
    def of(cls, rows: pd.DataFrame) -> _PodRows:
        start, end = rows["start_ms"].to_numpy(np.int64), rows["end_ms"].to_numpy(np.int64)
        calls, amount = (rows[name].to_numpy(np.float64) for name in ("requests", "received_bytes"))
        known: Flags = ~np.isnan(amount)
        rate = np.where(known, amount, 0.0) / ((end - start) / MINUTE_MS)
        floor = _floor(start // LATELY_MS, rate, known)
        most = np.maximum(_TIMES_QUIET * floor, floor + _LEAST_BYTES_PER_MINUTE)
        metric = rows["metric"].to_numpy(dtype=object)
        return cls(start, end, metric, calls > 0, ~np.isnan(calls), known & (rate > most), known)

    def within(self, start_ms: int, end_ms: int) -> _PodRows:
        keep = (self.start < end_ms) & (self.end > start_ms)
        return _PodRows(*(getattr(self, each.name)[keep] for each in fields(self)))

    def is_read(self, which: Flags, start_ms: int, end_ms: int) -> bool:
        """Whether rows ``which`` are nine tenths of ``[start, end)``."""
        if not which.any():
            return False
        start, end = self.start[which], self.end[which]
        # Of several counters that overlap each instant counts once.
        begin = np.maximum(start, np.append(start_ms, np.maximum.accumulate(end)[:-1]))
        seen = (np.minimum(end, end_ms) - np.maximum(begin, start_ms)).clip(min=0).sum()
        return bool(seen >= LEAST_SEEN * (end_ms - start_ms))


def _floor(half_day: Ints, rate: Floats, known: Flags) -> Floats:
    """The quiet floor of a pod in each row: of what it received lately."""
    found = np.zeros(len(rate))
    for each in np.unique(half_day).tolist():
        lately = known & ((half_day == each) | (half_day == each - 1))
        if lately.any():
            found[half_day == each] = np.quantile(rate[lately], _QUIET_PART)
    return found


@dataclass(frozen=True)
class ServedPods:
    """The rows of the serving frame, by pod."""

    table: Workloads

    @cached_property
    def _by_pod(self) -> dict[str, _PodRows]:
        rows = self.table.history.frames.serving
        rows = rows[(rows["end_ms"] > rows["start_ms"]).to_numpy(bool)].sort_values("start_ms", kind="stable")
        return {str(uid): _PodRows.of(part) for uid, part in rows.groupby("pod_uid", observed=True)}

    @cached_property
    def _nothing(self) -> _PodRows:
        return _PodRows.of(empty_frame(SERVING))

    def of_job(self, job: int, start_ms: int, end_ms: int) -> Traffic:
        """What reached the pods of a job in ``[start, end)``."""
        table = self.table
        parts = list[tuple[_PodRows, int, int]]()
        for pod in table.pods_of_job[job].tolist():
            start, end = max(start_ms, int(table.start[pod])), min(end_ms, int(table.end[pod]))
            if start < end:
                rows = self._by_pod.get(table.uids[pod], self._nothing)
                parts.append((rows.within(start, end), start, end))
        signal: Signal | None = None
        if parts and all(rows.is_read(rows.measured, start, end) for rows, start, end in parts):
            signal = Signal.BYTES
        if parts and all(rows.is_read(rows.counted, start, end) for rows, start, end in parts):
            signal = Signal.REQUESTS
        by_bytes = signal is Signal.BYTES
        starts, ends, metrics = list[int](), list[int](), set[str]()
        for rows, _, _ in parts:
            heard = rows.called | (rows.noisy & by_bytes)
            starts += rows.start[heard].tolist()
            ends += rows.end[heard].tolist()
            metrics.update(map(str, rows.metric[rows.measured if by_bytes else rows.counted].tolist()))
        begun, ended = union(starts, ends)
        calls = tuple(zip(begun.tolist(), ended.tolist(), strict=True))
        return Traffic(signal, tuple(sorted(metrics)), calls)
