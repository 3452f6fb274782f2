"""Strict first in, first out over whole nodes: the discipline of trace replays, and of queues without Kueue.

Each pool has nodes and a line of its own. The first of a line that does not fit holds all behind it back. The
placement is the consolidated one: a job of up to one node's GPUs goes to the node with the fewest free ones
that fits it; more take whole empty nodes, and the rest is put like a job of its size. Ties go to the node
that comes first.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import NamedTuple

from gpucost.advisor.replay.replay_timeline import CycleEffects, StoryEviction
from gpucost.domain.errors import InputError

NODE_LOST = "NodeLost"
FifoPlacement = tuple[tuple[int, int], ...]
"""Node and GPUs on it, for each node."""


class FifoAsk(NamedTuple):
    """A job that wants ``gpus`` of a pool, all at once."""

    pool: str
    gpus: int


class PoolNodes(NamedTuple):
    """How many nodes a pool has from now on; those that are lost are the last, and who is on them leaves. Of
    a pool that is a quota, how many GPUs: who is beyond it runs on."""

    pool: str
    nodes: int


class FifoNodes:
    """Nodes of ``gpus_per_node`` GPUs, and how many of each are free."""

    def __init__(self, nodes: int, gpus_per_node: int) -> None:
        self._size = gpus_per_node
        self.free = [gpus_per_node] * nodes
        self.left = nodes * gpus_per_node

    def place(self, gpus: int) -> FifoPlacement | None:
        """Where it would go now; None where it does not fit. Takes nothing."""
        if gpus > self.left:
            return None
        free, size = self.free, self._size
        if gpus <= size:
            room = [left for left in free if left >= gpus]
            return ((free.index(min(room)), gpus),) if room else None
        whole, rest = divmod(gpus, size)
        empty = [node for node, left in enumerate(free) if left == size][:whole]
        if len(empty) < whole:
            return None
        placed = tuple((node, size) for node in empty)
        if not rest:
            return placed
        others = [(left, node) for node, left in enumerate(free) if left >= rest and node not in empty]
        return (*placed, (min(others)[1], rest)) if others else None

    def take(self, placement: FifoPlacement) -> None:
        for node, gpus in placement:
            self.free[node] -= gpus
            self.left -= gpus

    def give_back(self, placement: FifoPlacement) -> None:
        """Of nodes that are there still."""
        for node, gpus in placement:
            if node < len(self.free):
                self.free[node] += gpus
                self.left += gpus

    def resize(self, nodes: int) -> None:
        """So many from now on: empty ones come at the end, and the last ones go, whatever they hold."""
        while len(self.free) > nodes:
            self.left -= self.free.pop()
        more = nodes - len(self.free)
        self.free += [self._size] * more
        self.left += more * self._size


class FifoQuota:
    """GPUs of which nobody asks where they are. Below 0 are left where quota in use was taken away."""

    def __init__(self, gpus: int) -> None:
        self._all = self.left = gpus

    def place(self, gpus: int) -> FifoPlacement | None:
        """As if all were one node."""
        return ((0, gpus),) if gpus <= self.left else None

    def take(self, placement: FifoPlacement) -> None:
        self.left -= placement[0][1]

    def give_back(self, placement: FifoPlacement) -> None:
        self.left += placement[0][1]

    def resize(self, gpus: int) -> None:
        self.left += gpus - self._all
        self._all = gpus


class FifoReplay:
    """A ``ReplayDiscipline``. What is given to an admission is its ``FifoPlacement``. Without
    ``gpus_per_node`` (of all pools, or of each) a pool is a quota, and ``nodes`` are its GPUs."""

    wake_ms: int | None = None
    leaves_ms = 0

    def __init__(self, nodes: Mapping[str, int], gpus_per_node: Mapping[str, int] | int | None) -> None:
        sizes = gpus_per_node if isinstance(gpus_per_node, Mapping) else dict.fromkeys(nodes, gpus_per_node)
        self._pools: dict[str, FifoNodes | FifoQuota] = {
            pool: FifoQuota(count) if (size := sizes[pool]) is None else FifoNodes(count, size)
            for pool, count in nodes.items()
        }
        self._lines: dict[str, list[tuple[int, str]]] = {pool: [] for pool in nodes}
        self._asks: dict[str, tuple[int, FifoAsk]] = {}
        self._held: dict[str, dict[str, FifoPlacement]] = {pool: {} for pool in nodes}
        self._touched: set[str] = set()

    def arrive(self, _now_ms: int, uid: str, ask: FifoAsk, /) -> None:
        """Raises InputError for a pool that is not there, and for less than one GPU."""
        if ask.pool not in self._pools:
            raise InputError("pool", ask.pool, ", ".join(self._pools))
        if ask.gpus < 1:
            raise InputError("gpus", ask.gpus, "1 or more")
        self._asks[uid] = len(self._asks), ask
        self._join(uid)

    def end(self, _now_ms: int, uid: str, /) -> None:
        self._give_back(self._asks[uid][1].pool, uid)

    def release(self, _now_ms: int, uid: str, /) -> None:
        self._give_back(self._asks[uid][1].pool, uid)
        self._join(uid)

    def change(self, now_ms: int, change: PoolNodes, /) -> Mapping[str, StoryEviction]:
        pool, held = self._pools[change.pool], self._held[change.pool].items()
        lost: list[str] = []
        if isinstance(pool, FifoNodes):
            lost = [uid for uid, place in held if any(node >= change.nodes for node, _ in place)]
        pool.resize(change.nodes)
        self._touched.add(change.pool)
        return {uid: StoryEviction(now_ms, NODE_LOST) for uid in lost}

    def wake(self, _now_ms: int, /) -> None:
        """Nothing waits for a time."""

    def cycle(self, _now_ms: int, /) -> CycleEffects:
        admitted: dict[str, object] = {}
        for pool in sorted(self._touched):
            line, nodes = self._lines[pool], self._pools[pool]
            while line and (place := nodes.place(self._asks[line[0][1]][1].gpus)) is not None:
                _, uid = heapq.heappop(line)
                nodes.take(place)
                self._held[pool][uid] = place
                admitted[uid] = place
        self._touched.clear()
        return CycleEffects(admitted, {}, is_at_rest=True)

    def state_key(self, _now_ms: int, /) -> None:
        """Nobody is preempted."""

    def pass_over(self, _span_ms: int, /) -> None:
        """Nothing waits for a time."""

    def _join(self, uid: str) -> None:
        """At its place: by its first arrival."""
        number, ask = self._asks[uid]
        heapq.heappush(self._lines[ask.pool], (number, uid))
        self._touched.add(ask.pool)

    def _give_back(self, pool: str, uid: str) -> None:
        self._pools[pool].give_back(self._held[pool].pop(uid))
        self._touched.add(pool)
