"""Who waited while what was free: demand against free units, over time.

At every instant at which something changed, those who wait are tried in turn, the longest waiting first.
Whoever fits takes, on paper, the units it would have had: they are *starved*, free while somebody waited whom
they would have fitted. Then those who do not fit claim what is left of the units they could use, up to what
they asked for: *fragmented*, free while somebody waited whom they did not fit. So no free unit is claimed
twice, and of several who could have had it the longest waiting one is named.

"Fits" means by GPU units per node, and by the GPU products a pod may run on; what else may be against it
(CPU, memory, taints, topology) only the cluster's state knows, and rules ask it. A gang fits whole or not at
all. Pods of one job are alike, so it fits when the nodes together have room for enough of them.

Where that would take more than MOST_TRIES tries, times are rounded up to whole minutes, then to five.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

import numpy as np
import pandas as pd

from gpucost.attribution.deal import Ints
from gpucost.detectors.facts import History
from gpucost.domain.time import MINUTE_MS
from gpucost.domain.waste import Waste

MOST_TRIES = 1_000_000
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


@dataclass(frozen=True)
class Unmet:
    """``demand`` is the frame, index 0 to n - 1: ``row`` is a position in it. It also has ``since_ms``: when
    the job began to wait, over rows that touch. Rows that waited less than asked for are not looked at, nor
    is time in which nobody observed the cluster."""

    demand: pd.DataFrame
    stretches: tuple[Stretch, ...]
    claims: tuple[Claim, ...]


def unmet(history: History, min_wait_ms: int) -> Unmet:
    """Everybody who waited ``min_wait_ms`` or longer, against what was free. Worked out once per history."""
    key = ("unmet", min_wait_ms)
    if key not in history.memo:
        history.memo[key] = _unmet(history, min_wait_ms)
    found = history.memo[key]
    assert isinstance(found, Unmet)
    return found


def with_since(demand: pd.DataFrame) -> pd.DataFrame:
    """Demand with ``since_ms`` and ``until_ms``: all of a wait, over rows of a job and pod set that touch."""
    rows = demand.reset_index(drop=True)
    order = rows.sort_values(["job_uid", "pod_set", "resource", "start_ms"], kind="stable").index
    ordered = rows.loc[order]
    names = ["job_uid", "pod_set", "resource"]
    same = (ordered[names] == ordered[names].shift()).all(axis=1)
    touches = same & (ordered["start_ms"] <= ordered["end_ms"].shift())
    wait = (~touches).cumsum()
    since = ordered.groupby(wait)["start_ms"].transform("min")
    until = ordered.groupby(wait)["end_ms"].transform("max")
    return rows.assign(since_ms=since.reindex(rows.index), until_ms=until.reindex(rows.index))


def _unmet(history: History, min_wait_ms: int) -> Unmet:
    demand = with_since(history.frames.demand)
    asked = demand[demand["until_ms"] - demand["since_ms"] >= min_wait_ms]
    sweeps = [
        _Sweep(history, str(resource), rows) for resource, rows in asked.groupby("resource", observed=True)
    ]
    for sweep in sweeps:
        sweep.run()
    stretches = [Stretch(row, a, b, *facts) for sweep in sweeps for row, a, b, facts in sweep.standing.done]
    claims = [Claim(*key, a, b, *amount) for sweep in sweeps for key, a, b, amount in sweep.claimed.done]
    return Unmet(demand, tuple(stretches), tuple(claims))


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


class _Sweep:
    """One resource: its nodes, and those who wait for it."""

    def __init__(self, history: History, resource: str, rows: pd.DataFrame) -> None:
        self.standing: _Track[int, tuple[Met, int, int]] = _Track()
        self.claimed: _Track[tuple[int, str, Waste], tuple[int, float]] = _Track()
        self._history = history
        capacity = history.frames.capacity
        self._capacity = capacity[capacity["resource"] == resource]
        held = history.frames.allocations
        self._held = held[held["resource"] == resource]
        self._nodes = tuple(sorted(set(self._capacity["node"])))
        cluster = str(self._capacity["cluster"].iloc[0]) if len(self._capacity) else ""
        shares = history.shares
        self._boards = [float(shares.get((cluster, node, resource), 0)) for node in self._nodes]
        self._products = _products(history)
        self._eligible: dict[str, Ints] = {}
        ordered = rows.sort_values(["since_ms", "job_uid", "pod_set"], kind="stable")
        self._row = ordered.index.to_numpy(np.int64)
        self._start, self._end = (ordered[name].to_numpy(np.int64) for name in ("start_ms", "end_ms"))
        self._asks = list(
            zip(*(ordered[name].tolist() for name in ("pods", "min_pods", "units", "products")), strict=True)
        )

    def run(self) -> None:
        times, deltas = self._changes()
        free = np.zeros(len(self._nodes), np.int64)
        at = np.searchsorted(times, deltas[0])
        order = np.argsort(at, kind="stable")
        node, change = deltas[1][order], deltas[2][order]
        bounds = np.searchsorted(at[order], np.arange(len(times) + 1))
        starts, ends = self._history.seen
        seen = np.searchsorted(starts, times, "right") > np.searchsorted(ends, times, "right")
        for n, now_ms in enumerate(times.tolist()):
            here = slice(bounds[n], bounds[n + 1])
            np.add.at(free, node[here], change[here])
            waiting = np.flatnonzero((self._start <= now_ms) & (self._end > now_ms)) if seen[n] else ()
            standing, claimed = self._try(waiting, np.maximum(free, 0))
            self.standing.at(now_ms, standing)
            self.claimed.at(now_ms, claimed)
        end_ms = self._history.window.end_ms
        self.standing.at(end_ms, {})
        self.claimed.at(end_ms, {})

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
        for step in _STEPS_MS:
            rounded = -(-time // step) * step
            others = [self._start, self._end, *self._history.seen, np.array([window.start_ms])]
            times = np.unique(np.concatenate([rounded, *(-(-other // step) * step for other in others)]))
            times = times[(times >= window.start_ms) & (times < window.end_ms)]
            tries = np.searchsorted(times, self._end) - np.searchsorted(times, self._start)
            if tries.sum() <= MOST_TRIES:
                break
        inside = rounded < window.end_ms
        return times, (rounded[inside], node[inside], change[inside])

    def _try(
        self, waiting: Ints | tuple[()], free: Ints
    ) -> tuple[dict[int, tuple[Met, int, int]], dict[tuple[int, str, Waste], tuple[int, float]]]:
        """Everybody in turn; ``free`` is used up."""
        standing: dict[int, tuple[Met, int, int]] = {}
        claimed: dict[tuple[int, str, Waste], tuple[int, float]] = {}
        unplaced = []
        for n in waiting:
            if not free.any():
                break
            pods, least, units, products = self._asks[n]
            nodes = self._nodes_of(products)
            room = free[nodes]
            places = room // max(units, 1)
            found = int(places.sum())
            if found < least or not found:
                unplaced.append(n)
                continue
            standing[int(self._row[n])] = (Met.FITS, int(room.sum()), int(room.max()))
            for node, count in _tightest(nodes, room, places, min(pods, found)):
                self._claim(claimed, n, node, Waste.STARVED, count * units, free)
        for n in unplaced:
            pods, least, units, products = self._asks[n]
            nodes = self._nodes_of(products)
            room = free[nodes]
            total, wanted = int(room.sum()), pods * units
            if not total:
                continue
            met = Met.SHAPE if total >= max(least, 1) * units else Met.SHORT
            standing[int(self._row[n])] = (met, total, int(room.max()))
            for node in nodes[np.argsort(-room, kind="stable")].tolist():
                taken = min(int(free[node]), wanted)
                if taken <= 0:
                    break
                self._claim(claimed, n, node, Waste.FRAGMENTED, taken, free)
                wanted -= taken
        return standing, claimed

    def _claim(
        self,
        claimed: dict[tuple[int, str, Waste], tuple[int, float]],
        n: int,
        node: int,
        waste: Waste,
        units: int,
        free: Ints,
    ) -> None:
        free[node] -= units
        claimed[int(self._row[n]), self._nodes[node], waste] = (units, units * self._boards[node])

    def _nodes_of(self, products: str) -> Ints:
        """Positions of the nodes whose product is among ``products``; all of them for empty text."""
        if products not in self._eligible:
            wanted = set(products.split("|"))
            fits = [not products or self._products.get(node, "") in wanted for node in self._nodes]
            self._eligible[products] = np.flatnonzero(np.array(fits, dtype=bool)).astype(np.int64)
        return self._eligible[products]


_EDGES = ("start_ms", "end_ms")


def _tightest(nodes: Ints, room: Ints, places: Ints, pods: int) -> list[tuple[int, int]]:
    """(node, pods of it) for ``pods`` pods, those with the least room first: large blocks stay whole."""
    order = np.argsort(np.where(places > 0, room, np.iinfo(np.int64).max), kind="stable")
    filled = np.minimum(np.cumsum(places[order]), pods)
    taken = np.diff(filled, prepend=0)
    return [(int(nodes[i]), int(count)) for i, count in zip(order, taken, strict=True) if count]


def _products(history: History) -> dict[str, str]:
    """The product label of each node, its last one."""
    nodes = history.frames.nodes.sort_values("start_ms", kind="stable")
    return dict(zip(nodes["node"].tolist(), nodes["product"].tolist(), strict=True))
