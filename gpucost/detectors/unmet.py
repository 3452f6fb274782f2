"""Who waited while what was free: demand against free units, over time.

At every instant at which something changed, those who wait are tried in turn, the longest waiting first.
Whoever fits takes, on paper, the units it would have had: they are *starved*, free while somebody waited whom
they would have fitted. Then those who do not fit claim what is left of the units they could use, up to what
they asked for: *fragmented*, free while somebody waited whom they did not fit. So no free unit is claimed
twice, and of several who could have had it the longest waiting one is named. The others are *behind*: what is
free would fit them, if those who wait longer did not have it.

"Fits" means by GPU units per node, and by the GPU products a pod may run on; what else may be against it
(CPU, memory, taints, topology) only the cluster's state knows, and rules ask it. A gang fits whole or not at
all. Pods of one job are alike, so it fits when the nodes together have room for enough of them.

Where that would take more than MOST_LOOKS looks at who waits and at nodes, times are rounded up to whole
minutes, then to five.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pandas as pd

from gpucost.attribution.deal import Ints
from gpucost.detectors.facts import History
from gpucost.detectors.places import FreeUnits, Kinds
from gpucost.detectors.possible import Possible
from gpucost.detectors.series import Series
from gpucost.domain.time import MINUTE_MS
from gpucost.domain.waste import Waste

MOST_LOOKS = 2_000_000
"""About four seconds. 300 jobs that wait all day and 1,000 nodes with something free keep the minutes."""
_STEPS_MS = (1, MINUTE_MS, 5 * MINUTE_MS)

K = TypeVar("K")
V = TypeVar("V")


class Met(StrEnum):
    """How somebody who waits stands to what is free."""

    FITS = "fits"
    """It would find a place now."""
    SHAPE = "shape"
    """As many units are free as it needs, but not in places where it could use them."""
    SHORT = "short"
    """Fewer are free than it needs."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """How one row of demand stood in ``[start, end)``. ``free`` is how many units it could use were free
    there at least, after those who wait longer; ``node_free`` the most on one node."""

    row: int
    start_ms: int
    end_ms: int
    met: Met
    free: int
    node_free: int


@dataclass(frozen=True, slots=True)
class Claim:
    """Free units of a node that a row of demand would have had (STARVED), or could not use (FRAGMENTED)."""

    row: int
    node: str
    waste: Waste
    start_ms: int
    end_ms: int
    units: int
    boards: float


@dataclass(frozen=True, slots=True)
class BehindSpan:
    """While a row of demand would have found a place, but for those who wait longer."""

    row: int
    start_ms: int
    end_ms: int


@dataclass(frozen=True)
class Unmet:
    """``demand`` is the frame, index 0 to n - 1: ``row`` is a position in it. It also has ``since_ms``: when
    the job began to wait, over rows that touch. Rows that waited less than asked for are not looked at, nor
    is time in which nobody observed the cluster."""

    demand: pd.DataFrame
    stretches: tuple[Stretch, ...]
    claims: tuple[Claim, ...]
    behind: tuple[BehindSpan, ...] = ()


def unmet(history: History, min_wait_ms: int, without: frozenset[int] = frozenset()) -> Unmet:
    """Everybody who waited ``min_wait_ms`` or longer, against what was free. Worked out once per history.

    ``without`` are rows of demand that are not looked at (a guard holds them back): what they would have had
    falls to the next. So are requests that no node could ever serve.
    """
    key = ("unmet", min_wait_ms, without)
    if key not in history.memo:
        history.memo[key] = _unmet(history, min_wait_ms, without)
    found = history.memo[key]
    assert isinstance(found, Unmet)
    return found


def with_since(demand: pd.DataFrame) -> pd.DataFrame:
    """Demand with ``since_ms`` and ``until_ms``: all of a wait, over rows of a job and pod set that touch."""
    rows = demand.reset_index(drop=True)
    order = rows.sort_values(["namespace", "job_uid", "pod_set", "resource", "start_ms"], kind="stable").index
    ordered = rows.loc[order]
    names = ["namespace", "job_uid", "pod_set", "resource"]
    same = (ordered[names] == ordered[names].shift()).all(axis=1)
    touches = same & (ordered["start_ms"] <= ordered["end_ms"].shift())
    wait = (~touches).cumsum()
    since = ordered.groupby(wait)["start_ms"].transform("min")
    until = ordered.groupby(wait)["end_ms"].transform("max")
    return rows.assign(since_ms=since.reindex(rows.index), until_ms=until.reindex(rows.index))


class _Request(NamedTuple):
    """What decides whether anybody could ever serve it."""

    resource: str
    products: str
    units: int
    min_pods: int


def hopeless(history: History, demand: pd.DataFrame) -> frozenset[int]:
    """Rows of demand that no node could ever serve: they must not stand before those that can be served."""
    possible = Possible(history)
    requests = map(_Request, *(demand[name].tolist() for name in _Request._fields))
    return frozenset(
        row
        for row, request in zip(demand.index.tolist(), requests, strict=True)
        if not possible.is_possible(request)
    )


def _unmet(history: History, min_wait_ms: int, without: frozenset[int]) -> Unmet:
    demand = with_since(history.frames.demand)
    asked = demand[demand["until_ms"] - demand["since_ms"] >= min_wait_ms]
    asked = asked[~asked.index.isin(without | hopeless(history, asked))]
    sweeps = [
        _Sweep(history, str(resource), rows) for resource, rows in asked.groupby("resource", observed=True)
    ]
    for sweep in sweeps:
        sweep.run()
    stretches = [Stretch(row, a, b, *facts) for sweep in sweeps for row, a, b, facts in sweep.standing.done]
    claims = [Claim(*key, a, b, *amount) for sweep in sweeps for key, a, b, amount in sweep.claimed.done]
    behind = [BehindSpan(row, a, b) for sweep in sweeps for row, a, b, _ in sweep.behind.done]
    return Unmet(demand, tuple(stretches), tuple(claims), tuple(behind))


class _Track(Generic[K, V]):
    """Facts by key over time: what stays the same from one instant to the next is one entry of ``done``."""

    def __init__(self) -> None:
        self._open: dict[K, tuple[int, V]] = {}
        self.done: list[tuple[K, int, int, V]] = []

    def at(self, now_ms: int, facts: Mapping[K, V]) -> None:
        """From ``now_ms`` on exactly these facts hold."""
        for key in [key for key, (_, value) in self._open.items() if facts.get(key) != value]:
            start, value = self._open.pop(key)
            if start < now_ms:
                self.done.append((key, start, now_ms, value))
        for key, value in facts.items():
            self._open.setdefault(key, (now_ms, value))


_Standing: TypeAlias = dict[int, tuple[Met, int, int]]
_Claimed: TypeAlias = dict[tuple[int, str, Waste], tuple[int, float]]


class _Sweep:
    """One resource: its nodes, and those who wait for it."""

    def __init__(self, history: History, resource: str, rows: pd.DataFrame) -> None:
        self.standing = _Track[int, tuple[Met, int, int]]()
        self.claimed = _Track[tuple[int, str, Waste], tuple[int, float]]()
        self.behind = _Track[int, bool]()
        self._history = history
        capacity = history.frames.capacity
        self._capacity = capacity[capacity["resource"] == resource]
        held = history.frames.allocations
        self._held = held[held["resource"] == resource]
        self._nodes = tuple(sorted(set(self._capacity["node"])))
        cluster = str(self._capacity["cluster"].iloc[0]) if len(self._capacity) else ""
        shares = history.shares
        self._boards = [float(shares.get((cluster, node, resource), 0)) for node in self._nodes]
        of_nodes = [history.products.get(node, "") for node in self._nodes]
        self._kinds = tuple(sorted(set(of_nodes)))
        at = {product: n for n, product in enumerate(self._kinds)}
        self._kind = np.array([at[product] for product in of_nodes], dtype=np.int64)
        ordered = rows.sort_values(["since_ms", "job_uid", "pod_set"], kind="stable")
        self._row: list[int] = ordered.index.tolist()
        self._start, self._end = (ordered[name].to_numpy(np.int64) for name in ("start_ms", "end_ms"))
        kinds = {each: self._kinds_of(each) for each in set(ordered["products"])}
        numbers = (ordered[name].tolist() for name in ("pods", "min_pods", "units"))
        self._asks = list(zip(*numbers, map(kinds.__getitem__, ordered["products"]), strict=True))

    def run(self) -> None:
        times, deltas = self._changes()
        free = np.zeros(len(self._nodes), np.int64)
        at = np.searchsorted(times, deltas[0])
        order = np.argsort(at, kind="stable")
        node, change = deltas[1][order], deltas[2][order]
        bounds = np.searchsorted(at[order], np.arange(len(times) + 1))
        starts, ends = self._history.seen
        seen = np.searchsorted(starts, times, "right") > np.searchsorted(ends, times, "right")
        nobody = np.zeros(0, np.int64)
        last = nobody, free.copy()
        for n, now_ms in enumerate(times.tolist()):
            here = slice(bounds[n], bounds[n + 1])
            np.add.at(free, node[here], change[here])
            waiting = np.flatnonzero((self._start <= now_ms) & (self._end > now_ms)) if seen[n] else nobody
            asked = waiting, np.maximum(free, 0)
            if all(map(np.array_equal, asked, last)):
                continue
            last = asked
            standing, claimed = self._try(*asked)
            self.standing.at(now_ms, standing)
            self.claimed.at(now_ms, claimed)
            self.behind.at(now_ms, self._behind(*asked, standing))
        end_ms = self._history.window.end_ms
        self.standing.at(end_ms, {})
        self.claimed.at(end_ms, {})
        self.behind.at(end_ms, {})

    def _changes(self) -> tuple[Ints, tuple[Ints, Ints, Ints]]:
        """(instants to look at, (time, node, change of its free units)), rounded if there are too many."""
        index = {name: n for n, name in enumerate(self._nodes)}
        given = (self._capacity["allocatable"] * self._capacity["schedulable"]).to_numpy(np.int64)
        held = self._held[self._held["node"].isin(self._nodes)]
        parts = [(self._capacity, given), (held, -held["count"].to_numpy(np.int64))]
        nodes = [frame["node"].map(index).to_numpy(np.int64) for frame, _ in parts]
        time = np.concatenate([frame[name].to_numpy(np.int64) for frame, _ in parts for name in _EDGES])
        node = np.concatenate([nodes[n] for n in (0, 0, 1, 1)])
        change = np.concatenate([sign * amount for _, amount in parts for sign in (1, -1)])
        window = self._history.window
        time = np.maximum(time, window.start_ms)
        open_nodes = _positive(node, time, change)
        for step in _STEPS_MS:
            rounded = -(-time // step) * step
            others = [self._start, self._end, *self._history.seen, np.array([window.start_ms])]
            times = np.unique(np.concatenate([rounded, *(-(-other // step) * step for other in others)]))
            times = times[(times >= window.start_ms) & (times < window.end_ms)]
            if self._looks(times, open_nodes) <= MOST_LOOKS:
                break
        inside = rounded < window.end_ms
        return times, (rounded[inside], node[inside], change[inside])

    def _looks(self, times: Ints, open_nodes: Series) -> float:
        """How much there is to look at: at every instant those who wait, and, if there are any, nodes with
        something free."""
        first, last = np.searchsorted(times, self._start), np.searchsorted(times, self._end)
        waits = np.zeros(len(times) + 1, dtype=np.int64)
        np.add.at(waits, first, 1)
        np.add.at(waits, last, -1)
        waiting = waits.cumsum()[:-1]
        return float((waiting + open_nodes.at(times) * (waiting > 0)).sum())

    def _try(self, waiting: Ints, free: Ints) -> tuple[_Standing, _Claimed]:
        """Everybody in turn. What is free only gets less on the way: a shape that once had too few places has
        too few for the rest of it, which ``most`` remembers."""
        standing, claimed = _Standing(), _Claimed()
        units_left = FreeUnits(free, self._kind, len(self._kinds))
        most: dict[tuple[Kinds, int], int] = {}
        unplaced = []
        for n in waiting.tolist():
            if not units_left.left:
                break
            pods, least, units, kinds = self._asks[n]
            shape = kinds, max(units, 1)
            if shape in most and most[shape] < max(least, 1):
                unplaced.append(n)
                continue
            found = most[shape] = units_left.places(*shape)
            if found < least or not found:
                unplaced.append(n)
                continue
            row = self._row[n]
            standing[row] = Met.FITS, units_left.total(kinds), units_left.largest(kinds)
            for node, taken in units_left.take_pods(kinds, units, min(pods, found)):
                claimed[row, self._nodes[node], Waste.STARVED] = taken, taken * self._boards[node]
        used_up = set[Kinds]()
        for n in unplaced:
            pods, least, units, kinds = self._asks[n]
            if kinds in used_up:
                continue
            total, row = units_left.total(kinds), self._row[n]
            if not total:
                used_up.add(kinds)
                continue
            met = Met.SHAPE if total >= max(least, 1) * units else Met.SHORT
            standing[row] = met, total, units_left.largest(kinds)
            for node, taken in units_left.take_units(kinds, pods * units):
                claimed[row, self._nodes[node], Waste.FRAGMENTED] = taken, taken * self._boards[node]
        return standing, claimed

    def _behind(self, waiting: Ints, free: Ints, standing: _Standing) -> dict[int, bool]:
        """Those who got nothing, and whom all that is free would fit."""
        units_free = FreeUnits(free, self._kind, len(self._kinds))
        if not units_free.left:
            return {}
        places: dict[tuple[Kinds, int], int] = {}
        found: dict[int, bool] = {}
        for n in waiting.tolist():
            _, least, units, kinds = self._asks[n]
            row = self._row[n]
            if row in standing and standing[row][0] is Met.FITS:
                continue
            shape = kinds, max(units, 1)
            if shape not in places:
                places[shape] = units_free.places(*shape)
            if places[shape] >= max(least, 1):
                found[row] = True
        return found

    def _kinds_of(self, products: str) -> Kinds:
        """Those among ``products``; all of them for empty text."""
        wanted = set(products.split("|"))
        return tuple(n for n, product in enumerate(self._kinds) if not products or product in wanted)


_EDGES = ("start_ms", "end_ms")


def _positive(node: Ints, time: Ints, change: Ints) -> Series:
    """How many nodes have something left. The changes of a node add up to 0, so that one running sum over all
    nodes, one after the other, is each node's own."""
    if not len(node):
        return Series(np.zeros(0, np.int64), np.zeros(0))
    order = np.lexsort([time, node])
    node, time, left = node[order], time[order], np.cumsum(change[order])
    last = np.append((node[1:] != node[:-1]) | (time[1:] != time[:-1]), True)
    steps = np.diff((left[last] > 0).astype(np.int64), prepend=0)
    times, at = np.unique(time[last], return_inverse=True)
    return Series(times, np.cumsum(np.bincount(at, weights=steps, minlength=len(times))))
