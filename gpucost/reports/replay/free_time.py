"""What became of the GPU time of pools: held, and of what was free, what somebody waited for.

Names and order are those of the waste ledger (``gpucost.detectors.inputs.unmet_demand`` has the rule): of
those who wait for a pool the longest waiting take, on paper, the room that they fit into: it is *starved*.
Those that do not fit claim of what is left as much as they ask for: it is *fragmented*. Here jobs that are
alike (size, queue, team) wait in one line, since the first of them came; and where nobody knows the nodes,
a pool is one. Amounts are units times milliseconds, whole numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

from gpucost.advisor.replay.history_record import HistoryJob, PoolRecord
from gpucost.domain.buckets import Waste
from gpucost.domain.time import Window
from gpucost.reports.replay.run_views import RunView, pool_of

Levels = dict[int, int]
"""How many nodes have so many units free."""
_Pods = tuple[tuple[int, int], ...]
"""Units of a pod, and how many pods there are of it; the largest first."""


class JobOwner(NamedTuple):
    """Whose jobs wait."""

    queue: str
    team: str


@dataclass(slots=True)
class PoolSums:
    """Of one pool in the window: what there was, what was held, and what was free on nodes in use. ``claims``
    are of what stood free while somebody waited for it, never more than was asked for: starved or fragmented,
    by who waited."""

    capacity: int = 0
    held: int = 0
    partly_free: int = 0
    knows_nodes: bool = True
    claims: dict[tuple[Waste, JobOwner], int] = field(default_factory=lambda: defaultdict(int))


class _Asking(NamedTuple):
    owner: JobOwner
    pods: _Pods
    units: int


class _PoolEvent(NamedTuple):
    """Units that are held more or less on a node (-1: of no known node), or jobs that wait."""

    at_ms: int
    units: int = 0
    node: int = -1
    asks: _Asking | None = None
    jobs: int = 0


def pool_sums(
    views: Iterable[RunView], pools: Mapping[str, PoolRecord], window: Window
) -> dict[str, PoolSums]:
    """By pool."""
    events: dict[str, list[_PoolEvent]] = {name: [] for name in pools}
    for view in views:
        job = view.job
        name = pool_of(job, pools)
        if not name:
            continue
        own = events[name]
        until = window.end_ms if view.start_ms is None else view.start_ms
        if view.created_ms < until:
            asks = _Asking(JobOwner(job.queue, job.team), _pods(job, pools[name]), job.gpus)
            own.append(_PoolEvent(max(view.created_ms, window.start_ms), asks=asks, jobs=1))
            own.append(_PoolEvent(until, asks=asks, jobs=-1))
        for run in view.runs:
            begun = max(run.start_ms, window.start_ms)
            if begun >= run.end_ms:
                continue
            pieces = [(node, units) for pool, node, units in run.nodes if pool == name] or [(-1, job.gpus)]
            for node, units in pieces:
                own.append(_PoolEvent(begun, units, node))
                own.append(_PoolEvent(run.end_ms, -units, node))
    return {name: _PoolSweep(pool, window).run(events[name]) for name, pool in pools.items()}


def claimed_by(
    sums: Mapping[str, PoolSums], pools: Mapping[str, PoolRecord]
) -> dict[tuple[str, str], dict[Waste, int]]:
    """GPU time that was starved and fragmented, by group (``groups_of``)."""
    exact: dict[tuple[str, str], dict[Waste, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    for name, pool in sums.items():
        for (waste, owner), units_ms in pool.claims.items():
            for key in (("all", ""), ("queue", owner.queue), ("team", owner.team)):
                exact[key][waste] += units_ms * pools[name].share
    return {key: {waste: int(ms) for waste, ms in found.items()} for key, found in exact.items()}


def _pods(job: HistoryJob, pool: PoolRecord) -> _Pods:
    """Of its pods those that hold units of the pool; what is larger than a node is whole nodes and a rest."""
    sets = [(each.each.get(pool.resource, 0), each.count) for each in job.pod_sets if pool.resource]
    sets = [(units, count) for units, count in sets if units and count] or [(job.gpus, 1)]
    found: dict[int, int] = defaultdict(int)
    for units, count in sets:
        whole, rest = divmod(units, pool.gpus) if units > pool.gpus else (0, units)
        for size, pods in ((pool.gpus, whole * count), (rest, count)):
            if size and pods:
                found[size] += pods
    return tuple(sorted(found.items(), reverse=True))


class _PoolSweep:
    """One pool over time."""

    def __init__(self, pool: PoolRecord, window: Window) -> None:
        self._pool, self._window, self._found = pool, window, PoolSums()
        self._used: dict[int, int] = defaultdict(int)
        self._levels: Levels = defaultdict(int)
        self._waiting: dict[_Asking, int] = {}
        self._held = self._partly = 0

    def run(self, events: list[_PoolEvent]) -> PoolSums:
        window, found = self._window, self._found
        events.sort(key=itemgetter(0))
        steps = [*self._pool.steps, (window.end_ms, 0)]
        cuts = sorted(
            {window.start_ms, window.end_ms, *(each.at_ms for each in events), *(at for at, _ in steps)}
        )
        inside = [each for each in cuts if window.start_ms <= each <= window.end_ms]
        found.knows_nodes = not any(each.units and each.node < 0 for each in events)
        place = at_step = nodes = 0
        for low, high in pairwise(inside):
            while at_step < len(steps) and steps[at_step][0] <= low:
                nodes = steps[at_step][1]
                at_step += 1
            while place < len(events) and events[place].at_ms <= low:
                self._enter(events[place])
                place += 1
            length, there = high - low, nodes * self._pool.gpus
            found.capacity += there * length
            found.held += self._held * length
            found.partly_free += max(0, self._partly) * length
            if self._waiting and there > self._held:
                self._claim(self._free(nodes), there - self._held, length)
        return found

    def _enter(self, event: _PoolEvent) -> None:
        if event.asks is not None:
            left = self._waiting.get(event.asks, 0) + event.jobs
            if left:
                self._waiting[event.asks] = left
            else:
                del self._waiting[event.asks]
            return
        self._held += event.units
        if event.node >= 0:
            size, used = self._pool.gpus, self._used[event.node]
            now = self._used[event.node] = used + event.units
            for units, step in ((used, -1), (now, 1)):
                if 0 < units < size:
                    self._partly += step * (size - units)
                if units:
                    self._levels[max(0, size - units)] += step

    def _free(self, nodes: int) -> Levels:
        """Where nobody knows the nodes, all is one."""
        if not self._found.knows_nodes:
            return {nodes * self._pool.gpus - self._held: 1}
        found = {level: count for level, count in self._levels.items() if level and count > 0}
        empty = nodes - sum(self._levels.values())
        if empty > 0:
            found[self._pool.gpus] = empty
        return found

    def _claim(self, free: Levels, left: int, length_ms: int) -> None:
        claims, refused = self._found.claims, list[tuple[JobOwner, int]]()
        for asks, count in self._waiting.items():
            if not left:
                return
            took = gangs_placed(free, asks.pods, count) if asks.units <= left else 0
            if took:
                left -= took * asks.units
                claims[Waste.STARVED, asks.owner] += took * asks.units * length_ms
            if took < count:
                refused.append((asks.owner, (count - took) * asks.units))
        for owner, asked in refused:
            part = min(left, asked)
            left -= part
            if part:
                claims[Waste.FRAGMENTED, owner] += part * length_ms


def gangs_placed(free: Levels, pods: _Pods, most: int) -> int:
    """How many gangs of ``pods`` find room, up to ``most``; ``free`` is what they leave. A pod goes to the
    node with the fewest free units that takes it."""
    for done in range(most):
        trial = dict(free)
        if not all(_placed(trial, units, count) for units, count in pods):
            return done
        free.clear()
        free.update(trial)
    return most


def _placed(free: Levels, units: int, pods: int) -> bool:
    for level in sorted(each for each in free if each >= units):
        while pods and free[level]:
            if level == units or pods == 1:  # all of them at once, or the last
                took = min(pods, free[level])
                _move(free, level, level - units, took)
                pods -= took
                continue
            each = min(pods, level // units)
            _move(free, level, level - each * units, 1)
            pods -= each
    return not pods


def _move(free: Levels, level: int, to: int, nodes: int) -> None:
    free[level] -= nodes
    if to:
        free[to] = free.get(to, 0) + nodes
