"""Stretches of time in which no GPU of a job was observed to work, for all jobs at once, with arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpucost.attribution.apportion import Flags, Ints
from gpucost.detectors.inputs.activity_table import ActivityTable, Floats
from gpucost.detectors.inputs.job_tables import JobTables
from gpucost.detectors.rule_settings import LATELY_MS
from gpucost.domain.gpu import parse_product

LEAST_SEEN = 0.9
"""The part of a row's held time that must be observed, as in ``ActivityTable.is_observed``."""
_IDLE_WATTS = {
    **dict.fromkeys(("T4", "L4"), 40.0),
    **dict.fromkeys(("A10", "A10G", "A30", "V100-16GB", "V100-32GB", "L40S"), 100.0),
    **dict.fromkeys(("A100-40GB", "A100-80GB", "A800-80GB"), 100.0),
    **dict.fromkeys(("H100", "H100-PCIe", "H100-NVL"), 150.0),
    **dict.fromkeys(("H200", "GH200"), 180.0),
    **dict.fromkeys(("B200", "B300", "GB200", "GB300"), 300.0),
}
"""Watts that a GPU of a model with a loaded program but no running kernel stays below. gpu-pruner's examples
are 100 W for A10G and 150 W for H100; Acme's idle A100 draw about 70 W; the others are gpucost's own."""
UNKNOWN_WATTS, UNKNOWN_TIMES_FLOOR = 100.0, 1.5
"""For models not named above: the lesser of a level and a multiple of the least power the GPU drew lately."""


@dataclass(frozen=True)
class QuietRuns:
    """Stretches of one series each in which it was not observed to work: parallel arrays.

    ``first`` and ``last`` (exclusive) are the rows of the activity inside; there may be none.
    """

    series: Ints
    start: Ints
    end: Ints
    first: Ints
    last: Ints

    def take(self, which: Flags) -> QuietRuns:
        return QuietRuns(
            self.series[which], self.start[which], self.end[which], self.first[which], self.last[which]
        )


@dataclass(frozen=True)
class JobSpans:
    """Stretches of jobs: parallel arrays, ordered by job, then time."""

    job: Ints
    start: Ints
    end: Ints


def is_active(activity: ActivityTable) -> Flags:
    """Rows in which the GPU was observed to work, however little of the row was observed."""
    found: Flags = (activity.values["busy_ms"] > 0) | (activity.values["sm_active_ms"] > 0)
    return found


def quiet_runs(table: JobTables, least_ms: int) -> QuietRuns:
    """Maximal stretches between two rows in which a series worked, or between one and an end of its pod.

    Shorter ones than ``least_ms`` are left out, unless they touch an end of the pod: the next pod of the job
    may go on being quiet.
    """
    activity = table.activity
    series, start, end, first, last = _active_runs(activity)
    known = np.flatnonzero(table.pod >= 0)
    pod = table.pod[known]
    begin, close = table.start[pod], table.end[pod]
    # An empty run at either end of each pod, so that every quiet stretch lies between two runs.
    kind = np.repeat([0, 1, 2], [len(known), len(series), len(known)])
    all_series = np.concatenate([known, series, known])
    all_start, all_end = np.concatenate([begin, start, close]), np.concatenate([begin, end, close])
    all_first = np.concatenate([activity.begin[known], first, activity.begin[known + 1]])
    all_last = np.concatenate([activity.begin[known], last, activity.begin[known + 1]])
    order = np.lexsort([all_start, kind, all_series])
    a, b = order[:-1], order[1:]
    same = (all_series[a] == all_series[b]) & (all_start[b] > all_end[a])
    at_end = (kind[a] == 0) | (kind[b] == 2)
    keep = same & (at_end | (all_start[b] - all_end[a] >= least_ms))
    a, b = a[keep], b[keep]
    found = QuietRuns(all_series[a], all_end[a], all_start[b], all_last[a], all_first[b])
    return found.take(table.pod[found.series] >= 0)


def _active_runs(activity: ActivityTable) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    if not len(activity):
        nothing = np.zeros(0, np.int64)
        return nothing, nothing, nothing, nothing, nothing
    active = is_active(activity)
    cut = (active[1:] != active[:-1]) | (activity.code[1:] != activity.code[:-1])
    cut |= activity.start[1:] != activity.end[:-1]
    edge = np.flatnonzero(cut) + 1
    first = np.concatenate([[0], edge])
    last = np.concatenate([edge, [len(activity)]])
    first, last = first[active[first]], last[active[first]]
    return activity.code[first], activity.start[first], activity.end[last - 1], first, last


def all_quiet(table: JobTables, quiet: QuietRuns) -> JobSpans:
    """When a job held GPUs and every one of them was quiet; a GPU that is not measured counts as quiet."""
    pod = table.pod[quiet.series]
    missing = table.gpus - table.series_count
    ones = np.ones(len(pod), np.int64)
    job = np.concatenate([table.job[pod], table.job[pod], table.job, table.job])
    time = np.concatenate([quiet.start, quiet.end, table.start, table.end])
    # The number of GPUs that are held and not quiet, and of those held: both start and end at 0 for each job.
    loud = np.concatenate([-ones, ones, table.gpus - missing, missing - table.gpus])
    held = np.concatenate([0 * ones, 0 * ones, table.gpus, -table.gpus])
    order = np.lexsort([time, job])
    job, time = job[order], time[order]
    loud, held = np.cumsum(loud[order]), np.cumsum(held[order])
    settled = np.append((job[1:] != job[:-1]) | (time[1:] != time[:-1]), True)[: len(job)]
    at = np.flatnonzero(settled)
    flag = (loud[at] == 0) & (held[at] > 0)
    begins = flag & ~np.append(False, flag[:-1])[: len(flag)]
    ends = np.append(False, flag[:-1])[: len(flag)] & ~flag
    return JobSpans(job[at[begins]], time[at[begins]], time[at[ends]])


@dataclass(frozen=True)
class IdleRows:
    """Which rows of the activity count as idle, and why others do not."""

    table: JobTables
    idle_watts: float | None

    @cached_property
    def level(self) -> Floats:
        """Watts at which the power of a row contradicts idleness; infinite where power proves nothing."""
        activity = self.table.activity
        found = np.full(len(activity), np.inf)
        if not len(activity):
            return found
        by_node = _levels(self.table)
        level = activity.series["node"].map(by_node).to_numpy(np.float64)[activity.code]
        rest = np.fmin(UNKNOWN_TIMES_FLOOR * self._least, UNKNOWN_WATTS)
        level = np.where(np.isnan(level), rest, level)
        if self.idle_watts is not None:
            level[:] = self.idle_watts
        whole = np.where(self.table.pod >= 0, self.table.whole[self.table.pod], False)
        return np.where(whole[activity.code] & ~np.isnan(level), level, np.inf)

    @cached_property
    def _least(self) -> Floats:
        """The least power that the GPU of each row drew lately."""
        activity = self.table.activity
        power = self.power(np.arange(len(activity)))
        half_day = activity.start // LATELY_MS
        new = (activity.code[1:] != activity.code[:-1]) | (half_day[1:] != half_day[:-1])
        first = np.flatnonzero(np.append(True, new))
        least = np.fmin.reduceat(np.where(power > 0, power, np.nan), first)
        follows = activity.code[first[1:]] == activity.code[first[:-1]]
        follows &= half_day[first[1:]] == half_day[first[:-1]] + 1
        before = np.append(np.nan, np.where(follows, least[:-1], np.nan))
        found: Floats = np.repeat(np.fmin(least, before), np.diff(np.append(first, len(activity))))
        return found

    def power(self, rows: Ints) -> Floats:
        """Mean watts of rows."""
        values = self.table.activity.values
        held = values["held_ms"][rows]
        found: Floats = np.full(len(rows), np.nan)
        return np.divide(1000 * values["energy_j"][rows], held, out=found, where=held > 0)

    def quiet(self, rows: Ints) -> Flags:
        """Observed, and no kernel ran: by the busy signal, or, where a MIG instance has none, by its SMs."""
        activity = self.table.activity
        held, busy = activity.values["held_ms"][rows], activity.values["busy_ms"][rows]
        seen = np.nan_to_num(activity.values["observed_ms"][rows]) >= LEAST_SEEN * held
        sm_seen = np.nan_to_num(activity.values["sm_observed_ms"][rows]) >= LEAST_SEEN * held
        sm = activity.values["sm_active_ms"][rows]
        by_busy = seen & (busy == 0) & ~(sm > 0)
        by_sm = np.isnan(busy) & sm_seen & (sm == 0)
        found: Flags = (held > 0) & (by_busy | by_sm)
        return found

    def contradicted(self, rows: Ints) -> Flags:
        """Rows in which the GPU drew power that only work draws."""
        found: Flags = self.power(rows) >= self.level[rows]
        return found


def _levels(table: JobTables) -> dict[str, float]:
    nodes = table.history.frames.nodes
    return {
        node: _IDLE_WATTS[model]
        for node, product in zip(nodes["node"].tolist(), nodes["product"].tolist(), strict=True)
        if (model := parse_product(product).model) in _IDLE_WATTS
    }
