"""Unmet demand: jobs that waited, against the units that were free, over time.

At every instant at which something changed, the waiting jobs are tried in turn, the longest waiting first. A
job that fits takes, on paper, the units it would have had: they are *starved*, free while a job waited that
they would have fitted. Then the jobs that do not fit claim what is left of the units they could use, up to
what they asked for: *fragmented*, free while a job waited that they did not fit. So no free unit is claimed
twice, and of several jobs that could have had it the longest waiting one is named. The others are *behind*:
they would fit into the free units if the jobs before them did not take these.

"Fits" means by GPU units per node, and by the GPU products a pod may run on; whether something else is
against it (CPU, memory, taints, topology) only the cluster's state shows, and rules check it. A gang fits
whole or not at all. Pods of one job are alike, so it fits when the nodes together have room for enough of
them.

Jobs that wait for trays of NVLink domains, and get none because ComputeDomains have the others, are left out
for as long: what they could use is worked out in ``stranded_trays``.

Where that would take more than MOST_LOOKS comparisons of jobs and nodes, times are rounded up to whole
minutes, then to five.

``FreeUnits`` keeps the nodes of one kind (product) with equally many free units as an ascending list of
positions. So the cost of a request depends on the number of levels, and on the nodes that it takes, not on
the number of nodes.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import merge
from itertools import islice
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pandas as pd

from gpucost.attribution.apportion import Ints
from gpucost.detectors.inputs.detector_facts import ClusterHistory
from gpucost.detectors.inputs.queue_quotas import StepFunction
from gpucost.detectors.inputs.schedulability import RequestSchedulability
from gpucost.detectors.inputs.stranded_trays import stranded_spans
from gpucost.domain.buckets import Waste
from gpucost.domain.time import MINUTE_MS

NodeKinds: TypeAlias = tuple[int, ...]
"""Kinds of nodes that will do, each once."""


class FreeUnits:
    """``free`` units (never below 0) of nodes of ``kind``, parallel. Requests name the kinds that will do."""

    def __init__(self, free: Ints, kind: Ints, kinds: int) -> None:
        self._levels: list[dict[int, list[int]]] = [{} for _ in range(kinds)]
        some = np.flatnonzero(free > 0)
        self.left = int(free.sum())
        # In turn, so that each list ascends. Sorted as arrays it takes longer up to some hundred nodes.
        for node, level, of in zip(some.tolist(), free[some].tolist(), kind[some].tolist(), strict=True):
            self._levels[of].setdefault(level, []).append(node)

    def places(self, kinds: NodeKinds, units: int) -> int:
        """How many pods of ``units`` find room."""
        return sum(
            level // units * len(nodes)
            for kind in kinds
            for level, nodes in self._levels[kind].items()
            if level >= units
        )

    def total(self, kinds: NodeKinds) -> int:
        return sum(level * len(nodes) for kind in kinds for level, nodes in self._levels[kind].items())

    def largest(self, kinds: NodeKinds) -> int:
        """The most free units on one node."""
        return max((level for kind in kinds for level in self._levels[kind]), default=0)

    def take_pods(self, kinds: NodeKinds, units: int, pods: int) -> list[tuple[int, int]]:
        """(node, units taken) for ``pods`` pods of ``units``, nodes with the least room first, so that large
        blocks stay whole. Of nodes with equal room, the first ones."""
        size, taken = max(units, 1), list[tuple[int, int]]()
        for level in sorted(self._known(kinds)):
            if pods <= 0:
                break
            each = level // size
            if not each:
                continue
            full, rest = divmod(pods, each)
            nodes = self._first(kinds, level, full + (rest > 0))
            for n, node in enumerate(nodes):
                count = each if n < full else rest
                taken.append((node, count * units))
                pods -= count
            if units:
                self._lower(kinds, level, nodes[:full], level - each * units)
                self._lower(kinds, level, nodes[full:], level - rest * units)
        return taken

    def take_units(self, kinds: NodeKinds, wanted: int) -> list[tuple[int, int]]:
        """(node, units taken) for up to ``wanted`` units, nodes with the most room first."""
        taken = list[tuple[int, int]]()
        for level in sorted(self._known(kinds), reverse=True):
            if wanted <= 0:
                break
            full, rest = divmod(wanted, level)
            nodes = self._first(kinds, level, full + (rest > 0))
            taken += [(node, level) for node in nodes[:full]]
            taken += [(node, rest) for node in nodes[full:]]
            wanted -= level * min(full, len(nodes)) + rest * (len(nodes) > full)
            self._lower(kinds, level, nodes[:full], 0)
            self._lower(kinds, level, nodes[full:], level - rest)
        return taken

    def _known(self, kinds: NodeKinds) -> set[int]:
        return {level for kind in kinds for level in self._levels[kind]}

    def _first(self, kinds: NodeKinds, level: int, count: int) -> list[int]:
        """The first ``count`` nodes of a level."""
        lists = [nodes for kind in kinds if (nodes := self._levels[kind].get(level))]
        return lists[0][:count] if len(lists) == 1 else list(islice(merge(*lists), count))

    def _lower(self, kinds: NodeKinds, level: int, nodes: Sequence[int], to: int) -> None:
        """Moves ``nodes``, the first of a level, to a lower one; level 0 is dropped."""
        if not nodes:
            return
        self.left -= (level - to) * len(nodes)
        for kind, moved in self._split(kinds, level, nodes):
            levels = self._levels[kind]
            del levels[level][: len(moved)]
            if not levels[level]:
                del levels[level]
            if to and len(moved) == 1:
                insort(levels.setdefault(to, []), moved[0])
            elif to:
                levels[to] = sorted(levels.get(to, []) + moved)

    def _split(self, kinds: NodeKinds, level: int, nodes: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
        """``nodes`` by kind: they are the first ones of each kind's list."""
        last = nodes[-1]
        for kind in kinds:
            here = self._levels[kind].get(level, [])
            count = bisect_right(here, last)
            if count:
                yield kind, here[:count]


MOST_LOOKS = 2_000_000
"""The limit takes about four seconds. 300 jobs that wait all day and 1,000 nodes with free units stay
exact."""
_STEPS_MS = (1, MINUTE_MS, 5 * MINUTE_MS)

K = TypeVar("K")
V = TypeVar("V")


class DemandStanding(StrEnum):
    """How a waiting job stands to the free units."""

    FITS = "fits"
    """It would find a place now."""
    SHAPE = "shape"
    """As many units are free as it needs, but not in places where it could use them."""
    SHORT = "short"
    """Fewer are free than it needs."""


@dataclass(frozen=True, slots=True)
class DemandStretch:
    """How one row of demand stood in ``[start, end)``. ``free`` is the least number of units it could use
    that were free there, after those of the jobs before it; ``node_free`` the most on one node."""

    row: int
    start_ms: int
    end_ms: int
    met: DemandStanding
    free: int
    node_free: int


@dataclass(frozen=True, slots=True)
class UnmetClaim:
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
    """A row of demand would have found a place, but for the jobs that wait longer."""

    row: int
    start_ms: int
    end_ms: int


@dataclass(frozen=True)
class UnmetDemand:
    """``demand`` is the frame, index 0 to n - 1: ``row`` is a position in it. It also has ``since_ms``: when
    the job began to wait, over rows that touch. Rows that waited less than ``min_wait_ms`` are left out, and
    so is time in which the cluster was not observed."""

    demand: pd.DataFrame
    stretches: tuple[DemandStretch, ...]
    claims: tuple[UnmetClaim, ...]
    behind: tuple[BehindSpan, ...] = ()


def unmet(history: ClusterHistory, min_wait_ms: int, without: frozenset[int] = frozenset()) -> UnmetDemand:
    """Every job that waited ``min_wait_ms`` or longer, against the free units. Computed once per history.

    ``without`` are rows of demand to leave out (a guard holds them back): what they would have had falls to
    the next. Requests that no node could ever serve are left out too.
    """
    key = ("unmet", min_wait_ms, without)
    if key not in history.memo:
        history.memo[key] = _unmet(history, min_wait_ms, without)
    found = history.memo[key]
    assert isinstance(found, UnmetDemand)
    return found


def with_since(demand: pd.DataFrame) -> pd.DataFrame:
    """Demand with ``since_ms`` and ``until_ms``: the whole wait, over rows of a job and pod set that
    touch."""
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
    """The values that decide whether any node could ever serve it."""

    resource: str
    products: str
    units: int
    min_pods: int


def hopeless(history: ClusterHistory, demand: pd.DataFrame) -> frozenset[int]:
    """Rows of demand that no node could ever serve: they must not stand before those that can be served."""
    possible = RequestSchedulability(history)
    requests = map(_Request, *(demand[name].tolist() for name in _Request._fields))
    return frozenset(
        row
        for row, request in zip(demand.index.tolist(), requests, strict=True)
        if not possible.is_possible(request)
    )


def _unmet(history: ClusterHistory, min_wait_ms: int, without: frozenset[int]) -> UnmetDemand:
    demand = with_since(history.frames.demand)
    asked = demand[demand["until_ms"] - demand["since_ms"] >= min_wait_ms]
    asked = asked[~asked.index.isin(without | hopeless(history, asked))]
    sweeps = [
        _Sweep(history, str(resource), rows) for resource, rows in asked.groupby("resource", observed=True)
    ]
    for sweep in sweeps:
        sweep.run()
    stretches = [
        DemandStretch(row, a, b, *facts) for sweep in sweeps for row, a, b, facts in sweep.standing.done
    ]
    claims = [UnmetClaim(*key, a, b, *amount) for sweep in sweeps for key, a, b, amount in sweep.claimed.done]
    behind = [BehindSpan(row, a, b) for sweep in sweeps for row, a, b, _ in sweep.behind.done]
    return UnmetDemand(demand, tuple(stretches), tuple(claims), tuple(behind))


class _Track(Generic[K, V]):
    """Facts by key over time: a fact that stays the same from one instant to the next is one entry of
    ``done``."""

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


_Standing: TypeAlias = dict[int, tuple[DemandStanding, int, int]]
_Claimed: TypeAlias = dict[tuple[int, str, Waste], tuple[int, float]]


class _Sweep:
    """One resource: its nodes, and the jobs that wait for it."""

    def __init__(self, history: ClusterHistory, resource: str, rows: pd.DataFrame) -> None:
        self.standing = _Track[int, tuple[DemandStanding, int, int]]()
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
        spans = stranded_spans(history)
        away = [(n, *span) for n, row in enumerate(self._row) for span in spans.get(row, ())]
        self._away = np.array(away, dtype=np.int64).reshape(-1, 3)
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
            waiting = self._waiting(now_ms) if seen[n] else nobody
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

    def _waiting(self, now_ms: int) -> Ints:
        """Those that could use what is free: not while they need a tray of an NVLink domain, and get none."""
        here: Ints = np.flatnonzero((self._start <= now_ms) & (self._end > now_ms))
        if not len(self._away):
            return here
        who, start, end = self._away.T
        found: Ints = np.setdiff1d(here, who[(start <= now_ms) & (end > now_ms)], assume_unique=True)
        return found

    def _changes(self) -> tuple[Ints, tuple[Ints, Ints, Ints]]:
        """(instants to evaluate, (time, node, change of its free units)), rounded if there are too many."""
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
            others = [self._start, self._end, *self._away.T[1:], *self._history.seen]
            others.append(np.array([window.start_ms]))
            times = np.unique(np.concatenate([rounded, *(-(-other // step) * step for other in others)]))
            times = times[(times >= window.start_ms) & (times < window.end_ms)]
            if self._looks(times, open_nodes) <= MOST_LOOKS:
                break
        inside = rounded < window.end_ms
        return times, (rounded[inside], node[inside], change[inside])

    def _looks(self, times: Ints, open_nodes: StepFunction) -> float:
        """The number of comparisons: at every instant the waiting jobs, and, if there are any, the nodes with
        free units."""
        first, last = np.searchsorted(times, self._start), np.searchsorted(times, self._end)
        waits = np.zeros(len(times) + 1, dtype=np.int64)
        np.add.at(waits, first, 1)
        np.add.at(waits, last, -1)
        waiting = waits.cumsum()[:-1]
        return float((waiting + open_nodes.at(times) * (waiting > 0)).sum())

    def _try(self, waiting: Ints, free: Ints) -> tuple[_Standing, _Claimed]:
        """Tries every job in turn. The free units only get fewer on the way: a shape that once had too few
        places has too few for the rest of it, which ``most`` records."""
        standing, claimed = _Standing(), _Claimed()
        if not len(waiting):
            return standing, claimed
        units_left = FreeUnits(free, self._kind, len(self._kinds))
        most: dict[tuple[NodeKinds, int], int] = {}
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
            standing[row] = DemandStanding.FITS, units_left.total(kinds), units_left.largest(kinds)
            for node, taken in units_left.take_pods(kinds, units, min(pods, found)):
                claimed[row, self._nodes[node], Waste.STARVED] = taken, taken * self._boards[node]
        used_up = set[NodeKinds]()
        for n in unplaced:
            pods, least, units, kinds = self._asks[n]
            if kinds in used_up:
                continue
            total, row = units_left.total(kinds), self._row[n]
            if not total:
                used_up.add(kinds)
                continue
            met = DemandStanding.SHAPE if total >= max(least, 1) * units else DemandStanding.SHORT
            standing[row] = met, total, units_left.largest(kinds)
            for node, taken in units_left.take_units(kinds, pods * units):
                claimed[row, self._nodes[node], Waste.FRAGMENTED] = taken, taken * self._boards[node]
        return standing, claimed

    def _behind(self, waiting: Ints, free: Ints, standing: _Standing) -> dict[int, bool]:
        """The jobs that got nothing, and that would fit into all that is free."""
        without = [n for n in waiting.tolist() if not self._fits(n, standing)]
        if not without or not free.any():
            return {}
        units_free = FreeUnits(free, self._kind, len(self._kinds))
        places: dict[tuple[NodeKinds, int], int] = {}
        found: dict[int, bool] = {}
        for n in without:
            _, least, units, kinds = self._asks[n]
            shape = kinds, max(units, 1)
            if shape not in places:
                places[shape] = units_free.places(*shape)
            if places[shape] >= max(least, 1):
                found[self._row[n]] = True
        return found

    def _fits(self, n: int, standing: _Standing) -> bool:
        row = self._row[n]
        return row in standing and standing[row][0] is DemandStanding.FITS

    def _kinds_of(self, products: str) -> NodeKinds:
        """The kinds among ``products``; all of them for empty text."""
        wanted = set(products.split("|"))
        return tuple(n for n, product in enumerate(self._kinds) if not products or product in wanted)


_EDGES = ("start_ms", "end_ms")


def _positive(node: Ints, time: Ints, change: Ints) -> StepFunction:
    """How many nodes have something left. The changes of a node add up to 0, so one running sum over all
    nodes, one after the other, contains each node's own."""
    if not len(node):
        return StepFunction(np.zeros(0, np.int64), np.zeros(0))
    order = np.lexsort([time, node])
    node, time, left = node[order], time[order], np.cumsum(change[order])
    last = np.append((node[1:] != node[:-1]) | (time[1:] != time[:-1]), True)
    steps = np.diff((left[last] > 0).astype(np.int64), prepend=0)
    times, at = np.unique(time[last], return_inverse=True)
    return StepFunction(times, np.cumsum(np.bincount(at, weights=steps, minlength=len(times))))
