"""Quota, use and waiting per queue over time, as series: vectorised, for as many rows as a month has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from gpucost.attribution.deal import Flags, Ints
from gpucost.detectors.activity import Floats
from gpucost.detectors.facts import History
from gpucost.detectors.series import Series, combined, difference

_BY_CLUSTER_QUEUE = "cluster_queue"


class Line(StrEnum):
    """What people stand in line in."""

    CLUSTER_QUEUE = "ClusterQueue"
    VOLCANO_QUEUE = "Volcano queue"
    NAMESPACE = "namespace"
    """Of those that no queue manages."""


class Place(NamedTuple):
    """Where somebody waits or runs: a ClusterQueue, else a Volcano queue, else a namespace."""

    line: Line
    name: str

    def __str__(self) -> str:
        return f"{self.line} {self.name}"


class QuotaRow(NamedTuple):
    """One row of the quotas frame as it holds at an instant; NaN as there."""

    scheduler: str
    queue: str
    cohort: str
    flavor: str
    nominal: float
    borrowing_limit: float
    lending_limit: float
    used: float

    @property
    def unused(self) -> float:
        return float(np.nan_to_num(max(self.nominal - self.used, 0.0)))

    @property
    def lendable(self) -> float:
        """What others in its cohort may have of what is unused."""
        if not self.cohort:
            return 0.0
        return self.unused if np.isnan(self.lending_limit) else min(self.unused, self.lending_limit)


_COLUMNS = list(QuotaRow._fields)


@dataclass(frozen=True)
class Quotas:
    """Rows of the quotas frame within a history, and series of them, in units of a resource.

    A row of which nominal quota or use is not known counts as if it had nothing unused; use without nominal
    quota is borrowed, all of it. Series are 0 where nobody observed the cluster.
    """

    history: History

    @classmethod
    def of(cls, history: History) -> Quotas:
        """Worked out once per history."""
        if "quotas" not in history.memo:
            history.memo["quotas"] = cls(history)
        found = history.memo["quotas"]
        assert isinstance(found, Quotas)
        return found

    @cached_property
    def rows(self) -> pd.DataFrame:
        window, rows = self.history.window, self.history.frames.quotas
        start = rows["start_ms"].clip(lower=window.start_ms)
        rows = rows.assign(start_ms=start, end_ms=rows["end_ms"].clip(upper=window.end_ms))
        return rows[rows["start_ms"] < rows["end_ms"]].reset_index(drop=True)

    @cached_property
    def seen(self) -> Series:
        """1 where the cluster was observed."""
        window = self.history.window
        starts, ends = (edge.clip(window.start_ms, window.end_ms) for edge in self.history.seen)
        return Series.within(starts, ends)

    @cached_property
    def resources(self) -> tuple[str, ...]:
        return tuple(sorted(self.rows["resource"].unique()))

    def queues(self, resource: str) -> tuple[Place, ...]:
        """Those that have quota of it, or had, in order."""
        return tuple(sorted(place for place, of in self._kinds[1] if of == resource))

    def mean_unused(self, resource: str, start_ms: int, end_ms: int) -> Mapping[Place, float]:
        """What each queue left unused in the mean of ``[start, end)``."""
        start, end = (edge.clip(start_ms, end_ms) for edge in self._edges)
        codes, kinds = self._kinds
        sums = np.bincount(codes, weights=(end - start) * self._unused, minlength=len(kinds)).tolist()
        found = zip(kinds, sums, strict=True)
        return {place: total / (end_ms - start_ms) for (place, of), total in found if of == resource}

    def mine(self, place: Place, resource: str) -> Flags:
        """Which rows are those of a queue."""
        found = self._of(resource) & (self.rows["queue"] == place.name).to_numpy(bool)
        return found & self._is_line(place.line)

    def others(self, place: Place, resource: str) -> Flags:
        """Which rows are those of all others."""
        return self._of(resource) & ~self.mine(place, resource)

    def in_queues(self, names: Iterable[str]) -> Flags:
        return self.rows["queue"].isin(list(names)).to_numpy(bool)

    def nominal(self, which: Flags) -> Series:
        return self._sum(which, np.nan_to_num(self._amounts[0]))

    def used(self, which: Flags) -> Series:
        return self._sum(which, np.nan_to_num(self._amounts[1]))

    def known(self, which: Flags) -> Series:
        """How many of these rows say both quota and use."""
        return self._sum(which, (~np.isnan(self._amounts[0] - self._amounts[1])).astype(np.float64))

    def unused(self, which: Flags) -> Series:
        return self._sum(which, self._unused)

    def unused_of_others(self, place: Place, resource: str) -> Series:
        """Of all other queues together."""
        key = ("unused", resource)
        if key not in self.history.memo:
            self.history.memo[key] = self.unused(self._of(resource))
        everybody = self.history.memo[key]
        assert isinstance(everybody, Series)
        return difference(everybody, self.unused_of(place, resource))

    def unused_of(self, place: Place, resource: str) -> Series:
        """Of one queue; remembered, since every queue that starves asks it of all others."""
        key = ("unused", place, resource)
        if key not in self.history.memo:
            self.history.memo[key] = self.unused(self.mine(place, resource))
        found = self.history.memo[key]
        assert isinstance(found, Series)
        return found

    def lendable(self, which: Flags) -> Series:
        """What is unused and others in the cohort may borrow."""
        limit = self.rows["lending_limit"].to_numpy(np.float64)
        limited = np.where(np.isnan(limit), self._unused, np.minimum(self._unused, limit))
        return self._sum(which, np.where(self.rows["cohort"] != "", limited, 0.0))

    def borrowed(self, which: Flags) -> Series:
        nominal, used = self._amounts
        return self._sum(which, np.nan_to_num(np.maximum(used - np.nan_to_num(nominal), 0.0)))

    def lent(self, place: Place, resource: str) -> Series:
        """What others in its cohort use of its quota. Nobody notes who lent what: of what is borrowed there
        of a flavor each lender has the part that its lendable quota is of all."""
        rows, mine = self.rows, self.mine(place, resource)
        found = [Series(np.zeros(0, np.int64), np.zeros(0))]
        kinds = rows.loc[mine & (rows["cohort"] != "").to_numpy(bool), ["cohort", "flavor"]]
        for cohort, flavor in kinds.drop_duplicates().itertuples(index=False):
            pool = self._of(resource) & ((rows["cohort"] == cohort) & (rows["flavor"] == flavor)).to_numpy(
                bool
            )
            found.append(
                combined(_lent, self.lendable(pool & mine), self.lendable(pool), self.borrowed(pool & ~mine))
            )
        return combined(lambda *parts: np.sum(parts, axis=0), *found)

    def at(self, resource: str, at_ms: int) -> list[QuotaRow]:
        """The rows that hold at an instant."""
        start, end = self._edges
        here = self.rows.iloc[np.flatnonzero((start <= at_ms) & (end > at_ms))]
        here = here[here["resource"] == resource]
        return [QuotaRow(*row) for row in here[_COLUMNS].itertuples(index=False)]

    @cached_property
    def _edges(self) -> tuple[Ints, Ints]:
        return self.rows["start_ms"].to_numpy(np.int64), self.rows["end_ms"].to_numpy(np.int64)

    @cached_property
    def _kinds(self) -> tuple[Ints, list[tuple[Place, str]]]:
        """(position in the second of each row, the queues and resources there are)."""
        names = ["scheduler", "queue", "resource"]
        codes = self.rows.groupby(names, observed=True).ngroup().to_numpy().astype(np.int64)
        _, first = np.unique(codes, return_index=True)
        kinds = self.rows[names].iloc[first].itertuples(index=False)
        return codes, [(place_of(scheduler, queue), str(of)) for scheduler, queue, of in kinds]

    @cached_property
    def _amounts(self) -> tuple[Floats, Floats]:
        return self.rows["nominal"].to_numpy(np.float64), self.rows["used"].to_numpy(np.float64)

    @cached_property
    def _unused(self) -> Floats:
        nominal, used = self._amounts
        found: Floats = np.nan_to_num(np.maximum(nominal - used, 0.0))
        return found

    def _of(self, resource: str) -> Flags:
        return (self.rows["resource"] == resource).to_numpy(bool)

    def _is_line(self, line: Line) -> Flags:
        scheduler = {Line.CLUSTER_QUEUE: "kueue", Line.VOLCANO_QUEUE: "volcano"}.get(line, "")
        return (self.rows["scheduler"] == scheduler).to_numpy(bool)

    def _sum(self, which: Flags, amount: Floats) -> Series:
        start, end = self._edges
        return _seen(Series.summed(start[which], end[which], amount[which]), self.seen)


def place_of(scheduler: str, queue: str) -> Place:
    return Place(Line.VOLCANO_QUEUE if scheduler == "volcano" else Line.CLUSTER_QUEUE, queue)


def places(rows: pd.DataFrame) -> list[Place]:
    """Where each row of demand or of allocations stands in line."""
    names = (rows[name].tolist() for name in (_BY_CLUSTER_QUEUE, "queue", "namespace"))
    return [
        Place(Line.CLUSTER_QUEUE, cluster_queue)
        if cluster_queue
        else Place(Line.VOLCANO_QUEUE, queue)
        if queue
        else Place(Line.NAMESPACE, namespace)
        for cluster_queue, queue, namespace in zip(*names, strict=True)
    ]


def pending(history: History, rows: pd.DataFrame) -> Series:
    """Units that rows of demand wait for."""
    start, end = (rows[name].to_numpy(np.int64) for name in ("start_ms", "end_ms"))
    amount = (rows["pods"] * rows["units"]).to_numpy(np.float64)
    window = history.window
    waits = Series.summed(
        start.clip(window.start_ms, window.end_ms), end.clip(window.start_ms, window.end_ms), amount
    )
    return _seen(waits, Quotas.of(history).seen)


def free_units(history: History, resource: str) -> Series:
    """Units of a resource that nobody holds on nodes that take work; an over-committed node has none."""
    key = ("free_units", resource)
    if key not in history.memo:
        history.memo[key] = _free_units(history, resource)
    found = history.memo[key]
    assert isinstance(found, Series)
    return found


def _free_units(history: History, resource: str) -> Series:
    capacity, held = history.frames.capacity, history.frames.allocations
    capacity, held = capacity[capacity["resource"] == resource], held[held["resource"] == resource]
    nodes = pd.Index(capacity["node"].unique())
    held = held[held["node"].isin(nodes)]
    given = (capacity["allocatable"] * capacity["schedulable"]).to_numpy(np.int64)
    parts = ((capacity, given), (held, -held["count"].to_numpy(np.int64)))
    window = history.window
    node, time, change = [], [], []
    for frame, amount in parts:
        for name, sign in (("start_ms", 1), ("end_ms", -1)):
            node.append(nodes.get_indexer(frame["node"]))
            time.append(frame[name].to_numpy(np.int64).clip(window.start_ms, window.end_ms))
            change.append(sign * amount)
    return _seen(_positive(*map(np.concatenate, (node, time, change))), Quotas.of(history).seen)


def _positive(node: Ints, time: Ints, change: Ints) -> Series:
    """The sum over nodes of what is above 0 there. Changes of a node add up to 0, so that one running sum
    over all nodes, one after the other, is each node's own."""
    if not len(node):
        return Series(np.zeros(0, np.int64), np.zeros(0))
    order = np.lexsort([time, node])
    node, time, change = node[order], time[order], change[order]
    first = np.flatnonzero(np.append(True, (node[1:] != node[:-1]) | (time[1:] != time[:-1])))
    free = np.maximum(np.cumsum(np.add.reduceat(change, first)), 0)
    steps = np.diff(free, prepend=0).astype(np.float64)
    times, at = np.unique(time[first], return_inverse=True)
    return Series(times, np.cumsum(np.bincount(at, weights=steps, minlength=len(times))))


def boards_per_unit(history: History, resource: str, nodes: tuple[str, ...] = ()) -> float:
    """Boards that a unit stands for, the mean over ``nodes``, all of them for none; NaN where none says."""
    key = ("boards_per_unit", resource, nodes)
    if key not in history.memo:
        shares = [
            float(share)
            for (_, node, name), share in history.shares.items()
            if name == resource and (not nodes or node in nodes)
        ]
        history.memo[key] = sum(shares) / len(shares) if shares else float("nan")
    found = history.memo[key]
    assert isinstance(found, float)
    return found


def _seen(series: Series, seen: Series) -> Series:
    """0 where nobody observed the cluster."""
    is_whole = len(seen.time) == 2 and len(series.time) > 0
    if is_whole and seen.time[0] <= series.time[0] and series.time[-1] <= seen.time[1]:
        return series
    return combined(lambda value, here: np.where(here > 0, value, 0.0), series, seen)


def _lent(own: Floats, all_: Floats, borrowed: Floats) -> Floats:
    part = np.divide(own, all_, out=np.zeros_like(own), where=all_ > 0)
    return np.minimum(own, part * borrowed)
