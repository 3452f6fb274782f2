"""What a server did step by step, pod by pod, and the busiest of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpucost.attribution.deal import Ints
from gpucost.detectors.activity import Floats
from gpucost.detectors.rules.oversized_common import Search


@dataclass(frozen=True)
class ServerLoad:
    """Rows of one server in which SMs and memory were seen, without GPUs that idle. Per row: ``pod`` is a
    position in the table's pods, ``sm`` and ``busy`` are 0 to 1 (``busy`` NaN where nothing measures it),
    ``memory`` is in bytes."""

    search: Search
    rows: Ints
    pod: Ints
    start: Ints
    end: Ints
    sm: Floats
    busy: Floats
    memory: Floats

    @cached_property
    def busier(self) -> float | None:
        """How many times as busy as the busiest hour of these rows one was before the history, at least 1;
        None where nobody knows."""
        past, row = self.search.facts.past, self.search.table.row(int(self.search.table.job[self.pod[0]]))
        before = None if past is None else past.peaks.get((row.namespace, row.job_uid))
        if past is None or before is None:
            return None
        hour = self.start // past.step_ms
        here = np.bincount(hour - hour.min(), self.sm * self.length * self._boards) / past.step_ms
        most = float(here.max())
        return max(1.0, before / most) if most else None

    @property
    def _boards(self) -> Floats:
        """Of each row: its GPU in boards."""
        pods = self.search.table.pods.iloc[self.pod]
        found: Floats = (pods["boards"] / pods["units"].clip(lower=1)).to_numpy(np.float64)
        return np.nan_to_num(found)

    @classmethod
    def of(cls, search: Search, which: Ints) -> ServerLoad:
        """``which`` are rows of one job's GPUs that count and say something."""
        use, table = search.use, search.table
        values = table.activity.values
        pod = table.pod[table.activity.code[which]]
        end = np.minimum(table.activity.end[which], table.end[pod])
        keep = use.start[which] < end
        rows, pod, end = which[keep], pod[keep], end[keep]
        sm = values["sm_active_ms"][rows] / values["sm_observed_ms"][rows]
        busy = use.share("busy_ms", "observed_ms", table.activity.is_observed)[rows]
        return cls(search, rows, pod, use.start[rows], end, sm, busy, values["memory_used_bytes"][rows])

    @cached_property
    def length(self) -> Floats:
        return (self.end - self.start).astype(np.float64)

    @cached_property
    def _steps(self) -> tuple[Ints, Ints]:
        """(order of the rows by pod and step, where in it each pod's step begins)."""
        order = np.lexsort([self.end, self.start, self.pod])
        parts = [each[order] for each in (self.pod, self.start, self.end)]
        new = np.zeros(len(order), np.bool_)
        new[0] = True
        for each in parts:
            new[1:] |= each[1:] != each[:-1]
        return order, np.flatnonzero(new)

    @cached_property
    def first(self) -> Ints:
        """One row of each pod's step."""
        order, begin = self._steps
        found: Ints = order[begin]
        return found

    def most(self, values: Floats) -> Floats:
        """Of each pod's step: that of the GPU with the most."""
        order, begin = self._steps
        found: Floats = np.fmax.reduceat(values[order], begin)
        return found

    def together(self, values: Floats) -> Floats:
        """Of each pod's step: all its GPUs together; one that was not seen did as much as the others."""
        order, begin = self._steps
        seen = np.diff(np.append(begin, len(order)))
        gpus = np.maximum(self.search.table.gpus[self.pod[self.first]], seen)
        found: Floats = np.add.reduceat(values[order], begin) / seen * gpus
        return found

    @cached_property
    def edges(self) -> Ints:
        """Instants at which a step of some pod begins or ends."""
        return np.unique(np.concatenate([self.start[self.first], self.end[self.first]]))

    def over_time(self, of_step: Floats) -> Floats:
        """From each edge to the next: the sum over pods of a value of theirs."""
        found = np.zeros(len(self.edges))
        known = np.nan_to_num(of_step)
        np.add.at(found, np.searchsorted(self.edges, self.start[self.first]), known)
        np.add.at(found, np.searchsorted(self.edges, self.end[self.first]), -known)
        return np.cumsum(found)[:-1]

    @cached_property
    def replicas(self) -> Floats:
        """From each edge to the next: how many pods were seen, and did not idle."""
        return np.round(self.over_time(np.ones(len(self.first))))

    def of_rows(self, over_time: Floats) -> Floats:
        """The mean over each row of a value from each edge to the next."""
        total = np.append(0.0, np.cumsum(over_time * np.diff(self.edges)))
        at = np.interp(np.stack([self.start, self.end]), self.edges, total)
        found: Floats = (at[1] - at[0]) / self.length
        return found

    def mean(self, values: Floats) -> float:
        """By time; NaN where nothing is known."""
        known = ~np.isnan(values)
        weight = float(self.length[known].sum())
        return float((values[known] * self.length[known]).sum()) / weight if weight else float("nan")

    def now(self, values: Floats) -> float:
        """Boards of the last rows, times a value of each."""
        last = self.end == self.end.max()
        return float((self._boards * values)[last].sum())
