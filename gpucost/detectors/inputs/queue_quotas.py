"""Quota, use and waiting per queue over time, as step functions: vectorised, for the rows of a month.

A ``StepFunction`` is a number that stays the same for a while: sums of stretches as arrays, to add and
integrate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpucost.attribution.apportion import Flags, Ints
from gpucost.detectors.inputs.activity_table import Floats
from gpucost.detectors.inputs.detector_facts import ClusterHistory


@dataclass(frozen=True)
class StepFunction:
    """A number over time: ``value[n]`` from ``time[n]`` (ms, ascending) to the next one, the last one for
    ever, and 0 before the first. Sums of whole units are exact."""

    time: Ints
    value: Floats

    @classmethod
    def summed(cls, start: Ints, end: Ints, amount: Floats) -> StepFunction:
        """At every instant the sum of ``amount`` over the stretches ``[start, end)`` that contain it."""
        real = (start < end) & (amount != 0)
        time = np.concatenate([start[real], end[real]])
        times, at = np.unique(time, return_inverse=True)
        change = np.concatenate([amount[real], -amount[real]])
        value = np.cumsum(np.bincount(at, weights=change, minlength=len(times)), dtype=np.float64)
        return cls(times.astype(np.int64), value)

    @classmethod
    def within(cls, start: Ints, end: Ints) -> StepFunction:
        """1 in stretches that do not overlap, else 0."""
        return cls.summed(start, end, np.ones(len(start)))

    def at(self, instants: npt.ArrayLike) -> Floats:
        """Its value at each of some instants."""
        position = np.searchsorted(self.time, np.asarray(instants, dtype=np.int64), "right")
        found: Floats = np.concatenate([np.zeros(1), self.value])[position]
        return found

    def parts(self, start_ms: int, end_ms: int) -> tuple[Ints, Ints, Floats]:
        """(starts, ends, values) of the stretches of ``[start, end)`` in which it is constant."""
        if start_ms >= end_ms:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
        inside = self.time[(self.time > start_ms) & (self.time < end_ms)]
        starts = np.concatenate([np.array([start_ms], np.int64), inside])
        ends = np.append(starts[1:], end_ms).astype(np.int64)
        return starts, ends, self.at(starts)

    def integral(self, start_ms: int, end_ms: int) -> float:
        """Its value times milliseconds in ``[start, end)``."""
        starts, ends, values = self.parts(start_ms, end_ms)
        return float(((ends - starts) * values).sum())

    def mean(self, start_ms: int, end_ms: int) -> float:
        return self.integral(start_ms, end_ms) / (end_ms - start_ms)

    def most(self, start_ms: int, end_ms: int) -> float:
        return float(self.parts(start_ms, end_ms)[2].max(initial=0.0))

    def stretches(self, start_ms: int, end_ms: int) -> tuple[Ints, Ints]:
        """(starts, ends) of the longest stretches of ``[start, end)`` in which it is above 0."""
        starts, ends, values = self.parts(start_ms, end_ms)
        above = np.concatenate([np.zeros(1, bool), values > 0, np.zeros(1, bool)])
        begun, over = above[1:-1] & ~above[:-2], above[1:-1] & ~above[2:]
        return starts[begun], ends[over]

    def quantile(self, part: float, start_ms: int, end_ms: int, where: StepFunction) -> float:
        """The least value that it does not exceed for ``part`` of the time of ``[start, end)`` in which
        ``where`` is above 0; NaN without any such time."""
        both = combined(lambda value, known: np.where(known > 0, value, np.nan), self, where)
        starts, ends, values = both.parts(start_ms, end_ms)
        known = (~np.isnan(values)) & (where.at(starts) > 0)
        if not known.any():
            return float("nan")
        values, length = values[known], (ends - starts)[known]
        order = np.argsort(values, kind="stable")
        reached = np.cumsum(length[order])
        # Half a millisecond allows for the rounding of 0.95 x total.
        return float(values[order][np.searchsorted(reached, part * reached[-1] - 0.5)])


def combined(function: Callable[..., Floats | Flags], *series: StepFunction) -> StepFunction:
    """``function`` of the values of several series at every instant; it maps arrays to one array."""
    # Not np.unique: these are a few sorted runs, which a stable sort merges.
    times = np.sort(np.concatenate([each.time for each in series]), kind="stable")
    times = times[np.append(True, times[1:] != times[:-1])[: len(times)]]
    return StepFunction(times, np.asarray(function(*(each.at(times) for each in series)), dtype=np.float64))


def least(*series: StepFunction) -> StepFunction:
    return combined(lambda *values: np.minimum.reduce(values), *series)


def difference(one: StepFunction, *others: StepFunction) -> StepFunction:
    """``one`` less the ``others``, never below 0."""
    return combined(lambda value, *rest: np.maximum(value - sum(rest), 0.0), one, *others)


_BY_CLUSTER_QUEUE = "cluster_queue"


class QueueKind(StrEnum):
    """The kinds of queues."""

    CLUSTER_QUEUE = "ClusterQueue"
    VOLCANO_QUEUE = "Volcano queue"
    NAMESPACE = "namespace"
    """The place of work that no queue manages."""


class QueuePlace(NamedTuple):
    """The place where work waits or runs: a ClusterQueue, else a Volcano queue, else a namespace."""

    line: QueueKind
    name: str

    def __str__(self) -> str:
        return f"{self.line} {self.name}"


class QuotaHistoryRow(NamedTuple):
    """One row of the quotas frame at an instant; NaN as there."""

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
        """The part of its unused quota that others in its cohort may borrow."""
        if not self.cohort:
            return 0.0
        return self.unused if np.isnan(self.lending_limit) else min(self.unused, self.lending_limit)


_COLUMNS = list(QuotaHistoryRow._fields)


@dataclass(frozen=True)
class QueueQuotas:
    """Rows of the quotas frame within a history, and series of them, in units of a resource.

    A row with unknown nominal quota or use counts as if it had nothing unused; use without nominal quota is
    all borrowed. Series are 0 where the cluster was not observed.
    """

    history: ClusterHistory

    @classmethod
    def of(cls, history: ClusterHistory) -> QueueQuotas:
        """Computed once per history."""
        if "quotas" not in history.memo:
            history.memo["quotas"] = cls(history)
        found = history.memo["quotas"]
        assert isinstance(found, QueueQuotas)
        return found

    @cached_property
    def rows(self) -> pd.DataFrame:
        window, rows = self.history.window, self.history.frames.quotas
        start = rows["start_ms"].clip(lower=window.start_ms)
        rows = rows.assign(start_ms=start, end_ms=rows["end_ms"].clip(upper=window.end_ms))
        return rows[rows["start_ms"] < rows["end_ms"]].reset_index(drop=True)

    @cached_property
    def seen(self) -> StepFunction:
        """1 where the cluster was observed."""
        window = self.history.window
        starts, ends = (edge.clip(window.start_ms, window.end_ms) for edge in self.history.seen)
        return StepFunction.within(starts, ends)

    @cached_property
    def resources(self) -> tuple[str, ...]:
        return tuple(sorted(self.rows["resource"].unique()))

    def queues(self, resource: str) -> tuple[QueuePlace, ...]:
        """Queues that have or had quota of the resource, in order."""
        return tuple(sorted(place for place, of in self._kinds[1] if of == resource))

    def mean_unused(self, resource: str, start_ms: int, end_ms: int) -> Mapping[QueuePlace, float]:
        """The mean unused quota of each queue in ``[start, end)``."""
        start, end = (edge.clip(start_ms, end_ms) for edge in self._edges)
        codes, kinds = self._kinds
        sums = np.bincount(codes, weights=(end - start) * self._unused, minlength=len(kinds)).tolist()
        found = zip(kinds, sums, strict=True)
        return {place: total / (end_ms - start_ms) for (place, of), total in found if of == resource}

    def mine(self, place: QueuePlace, resource: str) -> Flags:
        """Which rows are those of a queue."""
        found = self._of(resource) & (self.rows["queue"] == place.name).to_numpy(bool)
        return found & self._is_line(place.line)

    def others(self, place: QueuePlace, resource: str) -> Flags:
        """Which rows are those of all other queues."""
        return self._of(resource) & ~self.mine(place, resource)

    def in_queues(self, names: Iterable[str]) -> Flags:
        return self.rows["queue"].isin(list(names)).to_numpy(bool)

    def nominal(self, which: Flags) -> StepFunction:
        return self._sum(which, np.nan_to_num(self._amounts[0]))

    def used(self, which: Flags) -> StepFunction:
        return self._sum(which, np.nan_to_num(self._amounts[1]))

    def known(self, which: Flags) -> StepFunction:
        """How many of these rows have both quota and use."""
        return self._sum(which, (~np.isnan(self._amounts[0] - self._amounts[1])).astype(np.float64))

    def unused(self, which: Flags) -> StepFunction:
        return self._sum(which, self._unused)

    def unused_of_others(self, place: QueuePlace, resource: str) -> StepFunction:
        """The sum over all other queues."""
        key = ("unused", resource)
        if key not in self.history.memo:
            self.history.memo[key] = self.unused(self._of(resource))
        everybody = self.history.memo[key]
        assert isinstance(everybody, StepFunction)
        return difference(everybody, self.unused_of(place, resource))

    def unused_of(self, place: QueuePlace, resource: str) -> StepFunction:
        """The unused quota of one queue; cached, since every starving queue needs it of all others."""
        key = ("unused", place, resource)
        if key not in self.history.memo:
            self.history.memo[key] = self.unused(self.mine(place, resource))
        found = self.history.memo[key]
        assert isinstance(found, StepFunction)
        return found

    def lendable(self, which: Flags) -> StepFunction:
        """Unused quota that others in the cohort may borrow."""
        limit = self.rows["lending_limit"].to_numpy(np.float64)
        limited = np.where(np.isnan(limit), self._unused, np.minimum(self._unused, limit))
        return self._sum(which, np.where(self.rows["cohort"] != "", limited, 0.0))

    def borrowed(self, which: Flags) -> StepFunction:
        nominal, used = self._amounts
        return self._sum(which, np.nan_to_num(np.maximum(used - np.nan_to_num(nominal), 0.0)))

    def lent(self, place: QueuePlace, resource: str) -> StepFunction:
        """The quota of a queue that others in its cohort use. No series says who lent what: what is borrowed
        of a flavor in the cohort is divided among the lenders in proportion to their lendable quota."""
        rows, mine = self.rows, self.mine(place, resource)
        found = [StepFunction(np.zeros(0, np.int64), np.zeros(0))]
        kinds = rows.loc[mine & (rows["cohort"] != "").to_numpy(bool), ["cohort", "flavor"]]
        for cohort, flavor in kinds.drop_duplicates().itertuples(index=False):
            pool = self._of(resource) & ((rows["cohort"] == cohort) & (rows["flavor"] == flavor)).to_numpy(
                bool
            )
            found.append(
                combined(_lent, self.lendable(pool & mine), self.lendable(pool), self.borrowed(pool & ~mine))
            )
        return combined(lambda *parts: np.sum(parts, axis=0), *found)

    def at(self, resource: str, at_ms: int) -> list[QuotaHistoryRow]:
        """The rows that hold at an instant."""
        start, end = self._edges
        here = self.rows.iloc[np.flatnonzero((start <= at_ms) & (end > at_ms))]
        here = here[here["resource"] == resource]
        return [QuotaHistoryRow(*row) for row in here[_COLUMNS].itertuples(index=False)]

    @cached_property
    def _edges(self) -> tuple[Ints, Ints]:
        return self.rows["start_ms"].to_numpy(np.int64), self.rows["end_ms"].to_numpy(np.int64)

    @cached_property
    def _kinds(self) -> tuple[Ints, list[tuple[QueuePlace, str]]]:
        """(position in the second of each row, the distinct queues and resources)."""
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

    def _is_line(self, line: QueueKind) -> Flags:
        scheduler = {QueueKind.CLUSTER_QUEUE: "kueue", QueueKind.VOLCANO_QUEUE: "volcano"}.get(line, "")
        return (self.rows["scheduler"] == scheduler).to_numpy(bool)

    def _sum(self, which: Flags, amount: Floats) -> StepFunction:
        start, end = self._edges
        return _seen(StepFunction.summed(start[which], end[which], amount[which]), self.seen)


def place_of(scheduler: str, queue: str) -> QueuePlace:
    return QueuePlace(QueueKind.VOLCANO_QUEUE if scheduler == "volcano" else QueueKind.CLUSTER_QUEUE, queue)


def places(rows: pd.DataFrame) -> list[QueuePlace]:
    """The queue of each row of demand or of allocations."""
    names = (rows[name].tolist() for name in (_BY_CLUSTER_QUEUE, "queue", "namespace"))
    return [
        QueuePlace(QueueKind.CLUSTER_QUEUE, cluster_queue)
        if cluster_queue
        else QueuePlace(QueueKind.VOLCANO_QUEUE, queue)
        if queue
        else QueuePlace(QueueKind.NAMESPACE, namespace)
        for cluster_queue, queue, namespace in zip(*names, strict=True)
    ]


def pending(history: ClusterHistory, rows: pd.DataFrame) -> StepFunction:
    """Units that rows of demand wait for."""
    start, end = (rows[name].to_numpy(np.int64) for name in ("start_ms", "end_ms"))
    amount = (rows["pods"] * rows["units"]).to_numpy(np.float64)
    window = history.window
    waits = StepFunction.summed(
        start.clip(window.start_ms, window.end_ms), end.clip(window.start_ms, window.end_ms), amount
    )
    return _seen(waits, QueueQuotas.of(history).seen)


def free_units(history: ClusterHistory, resource: str) -> StepFunction:
    """Units of a resource without a holder on nodes that take work; an over-committed node has none."""
    key = ("free_units", resource)
    if key not in history.memo:
        history.memo[key] = _free_units(history, resource)
    found = history.memo[key]
    assert isinstance(found, StepFunction)
    return found


def _free_units(history: ClusterHistory, resource: str) -> StepFunction:
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
    return _seen(_positive(*map(np.concatenate, (node, time, change))), QueueQuotas.of(history).seen)


def _positive(node: Ints, time: Ints, change: Ints) -> StepFunction:
    """The sum over nodes of what is above 0 there. Changes of a node add up to 0, so one running sum over all
    nodes, one after the other, contains each node's own."""
    if not len(node):
        return StepFunction(np.zeros(0, np.int64), np.zeros(0))
    order = np.lexsort([time, node])
    node, time, change = node[order], time[order], change[order]
    first = np.flatnonzero(np.append(True, (node[1:] != node[:-1]) | (time[1:] != time[:-1])))
    free = np.maximum(np.cumsum(np.add.reduceat(change, first)), 0)
    steps = np.diff(free, prepend=0).astype(np.float64)
    times, at = np.unique(time[first], return_inverse=True)
    return StepFunction(times, np.cumsum(np.bincount(at, weights=steps, minlength=len(times))))


def boards_per_unit(history: ClusterHistory, resource: str, nodes: tuple[str, ...] = ()) -> float:
    """The GPUs that one unit stands for, the mean over ``nodes``, or over all nodes if empty; NaN where
    unknown."""
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


def _seen(series: StepFunction, seen: StepFunction) -> StepFunction:
    """0 where the cluster was not observed."""
    is_whole = len(seen.time) == 2 and len(series.time) > 0
    if is_whole and seen.time[0] <= series.time[0] and series.time[-1] <= seen.time[1]:
        return series
    return combined(lambda value, here: np.where(here > 0, value, 0.0), series, seen)


def _lent(own: Floats, all_: Floats, borrowed: Floats) -> Floats:
    part = np.divide(own, all_, out=np.zeros_like(own), where=all_ > 0)
    return np.minimum(own, part * borrowed)


class QuotaLeft:
    """Whether queues had quota left at an instant."""

    def __init__(self, history: ClusterHistory) -> None:
        self._history = history
        self._left: dict[tuple[str, str, int], float | None] = {}

    def has(self, queue: str, resource: str, at_ms: int, units: int) -> bool:
        """Whether ``queue`` had ``units`` of its nominal quota left just before ``at_ms``; not where nothing
        says what it has."""
        key = (queue, resource, at_ms)
        if key not in self._left:
            start, end, left = self._quotas.get(key[:2], _NO_QUOTA)
            here = (start < at_ms) & (end >= at_ms)
            self._left[key] = float(np.nansum(left[here])) if here.any() else None
        found = self._left[key]
        return found is not None and found >= units

    @cached_property
    def _quotas(self) -> Mapping[tuple[str, str], tuple[Ints, Ints, Floats]]:
        """(starts, ends, what is left) of the rows of each queue and resource."""
        quotas = self._history.frames.quotas
        start, end = (quotas[name].to_numpy(np.int64) for name in ("start_ms", "end_ms"))
        left = (quotas["nominal"] - quotas["used"]).to_numpy(np.float64)
        rows: dict[tuple[str, str], list[int]] = {}
        keys = zip(quotas["queue"].tolist(), quotas["resource"].tolist(), strict=True)
        for row, key in enumerate(keys):
            rows.setdefault(key, []).append(row)
        return {key: (start[at], end[at], left[at]) for key, at in rows.items()}


_NO_QUOTA = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
