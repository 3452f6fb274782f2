"""The activity of GPUs, step by step, as arrays: millions of rows, so no Python loop runs over them.

``covered_runs`` finds the time in which enough was observed. Its result is exact and does not depend on the
steps of the activity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpucost.attribution.apportion import Flags, Ints
from gpucost.attribution.segments import union
from gpucost.detectors.allocation_pieces import LEAST_COVERAGE
from gpucost.domain.time import MINUTE_MS

Floats: TypeAlias = npt.NDArray[np.float64]

SERIES = ["cluster", "node", "gpu", "pod_uid"]
LONGEST_PAUSE_MS = 15 * MINUTE_MS
_MOST = 1e15
_VALUES = (
    "held_ms",
    "observed_ms",
    "busy_ms",
    "sm_observed_ms",
    "sm_active_ms",
    "memory_used_bytes",
    "memory_total_bytes",
    "energy_j",
)


@dataclass(frozen=True)
class ActivityRuns:
    """Runs of steps of one series that touch and are alike: parallel arrays. ``series`` is a position in
    ``ActivityTable.series``, ``first`` and ``last`` (exclusive) are rows of the activity."""

    series: Ints
    start: Ints
    end: Ints
    first: Ints
    last: Ints


@dataclass(frozen=True)
class ActivityTable:
    """Rows of the activity frame, sorted by series, then time.

    ``series`` has one row per cluster, node, gpu and pod. ``code``, ``start`` and ``end`` are per row, and so
    are ``values``, by the name of the frame's column; NaN where missing. ``begin`` is the first row of each
    series, and one more entry for the end.
    """

    series: pd.DataFrame
    code: Ints
    start: Ints
    end: Ints
    begin: Ints
    values: dict[str, Floats]

    @classmethod
    def of(cls, frame: pd.DataFrame) -> ActivityTable:
        frame = plausible(frame)
        key, start = _key(frame), frame["start_ms"].to_numpy(np.int64)
        order = None if _is_sorted(key, start) else np.lexsort([start, key])
        # The rows are in order already, so the columns are views of the frame: nothing is copied.
        ordered = frame if order is None else frame.iloc[order]
        key = key if order is None else key[order]
        new = np.append(True, key[1:] != key[:-1])[: len(key)]
        first = np.flatnonzero(new)
        return cls(
            series=ordered[SERIES].iloc[first].astype("str").reset_index(drop=True),
            code=np.cumsum(new, dtype=np.int64) - 1,
            start=ordered["start_ms"].to_numpy(np.int64),
            end=ordered["end_ms"].to_numpy(np.int64),
            begin=np.append(first, len(key)).astype(np.int64),
            values={name: ordered[name].to_numpy(np.float64) for name in _VALUES},
        )

    def __len__(self) -> int:
        return len(self.code)

    @cached_property
    def is_observed(self) -> Flags:
        """Rows in which the busy signal was observed for at least nine tenths of the held time."""
        held, seen = self.values["held_ms"], self.values["observed_ms"]
        found: Flags = np.nan_to_num(seen) >= 0.9 * held
        return found & (held > 0)

    @cached_property
    def is_idle(self) -> Flags:
        """Observed rows in which no kernel ran at any time: counters are integrals, so this does not rest on
        sampling."""
        found: Flags = self.is_observed & (self.values["busy_ms"] == 0)
        return found

    def rows_of(self, series: int) -> slice:
        return slice(int(self.begin[series]), int(self.begin[series + 1]))

    def stretches(self, flag: Flags) -> ActivityRuns:
        """Maximal runs of rows of one series for which ``flag`` holds and that touch one another."""
        at = np.flatnonzero(flag)
        if not len(at):
            nothing = np.zeros(0, np.int64)
            return ActivityRuns(nothing, nothing, nothing, nothing, nothing)
        breaks = (at[1:] != at[:-1] + 1) | (self.code[at[1:]] != self.code[at[:-1]])
        breaks |= self.start[at[1:]] != self.end[at[:-1]]
        first = at[np.append(True, breaks)]
        last = at[np.append(breaks, True)] + 1
        return ActivityRuns(self.code[first], self.start[first], self.end[last - 1], first, last)

    def sums(self, name: str) -> Floats:
        """The sum of a value per series; NaN where it never was observed."""
        values = self.values[name]
        if not len(values):
            return np.zeros(0)
        known = ~np.isnan(values)
        total = np.add.reduceat(np.where(known, values, 0.0), self.begin[:-1])
        some = np.add.reduceat(known.astype(np.int64), self.begin[:-1])
        return np.where(some > 0, total, np.nan)


def _key(frame: pd.DataFrame) -> Ints:
    """A number per row that is equal for the rows of one series, and ordered by the series' names."""
    key, size = np.zeros(len(frame), dtype=np.int64), 1
    for name in SERIES:
        column = frame[name]
        if not isinstance(column.dtype, pd.CategoricalDtype):
            column = column.astype("category")
        codes, count = column.cat.codes.to_numpy(), max(len(column.cat.categories), 1)
        if size * count > np.iinfo(np.int64).max:
            known, key = np.unique(key, return_inverse=True)
            size = max(len(known), 1)
        key = key * count
        key += codes
        size *= count
    return key


def plausible(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows whose numbers are possible: a GPU is not held for longer than its step (but for the pause that
    one reading may cover), and is not busy for longer than it was held. But for the held time, numbers may be
    missing."""
    length = (frame["end_ms"] - frame["start_ms"]).to_numpy(np.float64)
    held = frame["held_ms"].to_numpy(np.float64)
    wrong = (length <= 0) | np.isnan(held) | (held < 0) | (held > length + LONGEST_PAUSE_MS)
    for name in ("observed_ms", "busy_ms", "sm_observed_ms", "sm_active_ms"):
        values = frame[name].to_numpy(np.float64)
        wrong |= (values < 0) | (values > held + LONGEST_PAUSE_MS)
    for name in ("memory_used_bytes", "memory_total_bytes", "energy_j"):
        values = frame[name].to_numpy(np.float64)
        wrong |= (values < 0) | (values > _MOST)
    return frame[~wrong] if wrong.any() else frame


def _is_sorted(key: Ints, start: Ints) -> bool:
    same = key[1:] == key[:-1]
    return bool((key[1:] >= key[:-1]).all() and (start[1:] >= start[:-1])[same].all())


class CoverageSpan(NamedTuple):
    """What should have been observed in ``[start, end)``, and the disjoint stretches in which it was."""

    start: int
    end: int
    seen_start: Ints
    seen_end: Ints


def covered_runs(
    every: Sequence[CoverageSpan], begin_ms: int, end_ms: int, needed_ms: int, latest_ms: int | None = None
) -> list[tuple[int, int]]:
    """The union of all stretches of ``needed_ms`` in ``[begin, end)`` (begun by ``latest_ms``) in which each
    of ``every`` was seen for at least ``LEAST_COVERAGE`` of its time.

    So the result for an instant depends on ``needed_ms`` before and after it only, however much more was
    read: two consecutive days, each with its own history around it, agree about midnight.
    """
    if end_ms - begin_ms < needed_ms:
        return []
    last = end_ms - needed_ms if latest_ms is None else min(latest_ms, end_ms - needed_ms)
    seen = [edge for each in every for edge in (each.seen_start, each.seen_end)]
    edges = np.array([edge for each in every for edge in (each.start, each.end)], np.int64)
    edges = np.concatenate([*seen, edges])
    edges = np.concatenate([edges, edges - needed_ms, np.array([begin_ms, last], np.int64)])
    begins = np.unique(edges[(edges >= begin_ms) & (edges <= last)])
    if not len(begins):
        return []
    # Half a millisecond allows for the rounding of a tenth of the time.
    most = (1 - LEAST_COVERAGE) * needed_ms + 0.5
    first, final = begins[:-1].astype(np.float64), begins[1:].astype(np.float64)
    alone = np.ones(len(begins), np.bool_)
    for each in every:
        unseen = _unseen(each, begins, needed_ms)
        alone &= unseen <= most
        # Unobserved time changes linearly between two edges, so it crosses the limit at most once.
        low, high = unseen[:-1], unseen[1:]
        crossing = begins[:-1] + (most - low) / np.where(high == low, 1.0, high - low) * np.diff(begins)
        first = np.where(low > most, np.where(high > most, np.inf, np.maximum(first, crossing)), first)
        final = np.where((high > most) & (low <= most), np.minimum(final, crossing), final)
    good = first <= final
    starts = [*np.ceil(first[good]).astype(np.int64).tolist(), *begins[alone].tolist()]
    ends = [*np.floor(final[good]).astype(np.int64).tolist(), *begins[alone].tolist()]
    runs = union(starts, [end + needed_ms for end in ends])
    return list(zip(*(edge.tolist() for edge in runs), strict=True))


def _unseen(each: CoverageSpan, begins: Ints, length_ms: int) -> Floats:
    """How much of ``[begin, begin + length)`` should have been observed and was not, by begin."""
    order = np.argsort(each.seen_start, kind="stable")
    start, end = each.seen_start[order], each.seen_end[order]
    edges = np.stack([start, end], axis=1).reshape(-1)
    seen = np.zeros(len(edges))
    seen[1::2] = np.cumsum(end - start)
    seen[2::2] = seen[1:-1:2]

    def until(instants: Ints) -> Floats:
        should = np.clip(instants, each.start, each.end) - each.start
        known = np.interp(instants, edges, seen) if len(edges) else np.zeros(len(instants))
        return np.subtract(should, known, dtype=np.float64)

    return until(begins + length_ms) - until(begins)
