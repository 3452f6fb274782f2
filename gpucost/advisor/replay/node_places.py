"""Quota first, then nodes: a ``ReplayDiscipline`` for clusters where a job that has quota still needs room.

Kueue decides who gets quota (``KueueReplay``); whoever has it waits until its pods fit on nodes of the pools
that its flavors stand for, all at once, and only then runs. Jobs that no queue manages wait for nodes alone.
Who waits for nodes holds its quota meanwhile, and may be preempted; nobody waits behind another that does not
fit. A pod goes to the node with the fewest free units that takes it (``fifo_nodes``).

With ``fits_first`` quota is given only to what fits on nodes too, as Kueue does with topologies: whoever does
not is parked until room comes. So it is always with those that have a topology request, whose pods stand in
its domains (``node_domains``).

A node that is lost ends the runs on it. Their workloads keep their quota and wait for nodes again, as the
controllers of jobs make new pods.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import NamedTuple

from gpucost.advisor.kueue.requests import QuotaRequest
from gpucost.advisor.model.cycle_results import PodSetFlavors
from gpucost.advisor.replay.fifo_nodes import NODE_LOST, FifoNodes, FifoPlacement, PoolNodes
from gpucost.advisor.replay.kueue_replay import KueueChange, KueueReplay
from gpucost.advisor.replay.node_domains import NodeDomains, asks_topology
from gpucost.advisor.replay.replay_timeline import CycleEffects, StoryEviction

PlacePieces = tuple[tuple[str, int, int], ...]
"""Pool, units on one node, and how often."""
FlavorPools = Mapping[tuple[str, str], str]
"""The pool of a flavor and resource."""


class PlacedAsk(NamedTuple):
    """``request`` goes to Kueue first; without one, ``pieces`` are looked for at once."""

    request: QuotaRequest | None
    pieces: PlacePieces = ()


class RunStart(NamedTuple):
    """What a run got: flavors (empty without quota), nodes by pool, and since when it had its quota."""

    flavors: tuple[PodSetFlavors, ...]
    nodes: tuple[tuple[str, FifoPlacement], ...]
    reserved_ms: int


class _Waiting(NamedTuple):
    reserved_ms: int
    flavors: tuple[PodSetFlavors, ...]
    pieces: PlacePieces


class PlacedReplay:
    """``kueue`` may be None where no job has a queue. ``pools`` are (nodes, units of one) by name."""

    def __init__(
        self,
        kueue: KueueReplay | None,
        pools: Mapping[str, tuple[int, int]],
        flavor_pools: FlavorPools,
        *,
        fits_first: bool = False,
        domains: NodeDomains | None = None,
    ) -> None:
        self._kueue, self._flavor_pools, self._fits_first = kueue, flavor_pools, fits_first
        self._domains = domains
        self._refused: set[str] = set()
        self.ever_refused: set[str] = set()
        self._is_freed = False
        self._pools = {name: FifoNodes(nodes, size) for name, (nodes, size) in pools.items()}
        self._asks: dict[str, PlacedAsk] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._placed: dict[str, RunStart] = {}
        self._on: dict[str, dict[str, FifoPlacement]] = {name: {} for name in pools}
        self._homeless: dict[str, _Waiting] = {}
        self._told: set[str] = set()
        self._touched: set[str] = set()

    @property
    def wake_ms(self) -> int | None:
        return None if self._kueue is None else self._kueue.wake_ms

    @property
    def leaves_ms(self) -> int:
        return 0 if self._kueue is None else self._kueue.leaves_ms

    @property
    def waiting_for_nodes(self) -> frozenset[str]:
        """Those that have quota, or need none."""
        return frozenset(self._waiting) | self._refused

    def arrive(self, now_ms: int, uid: str, ask: PlacedAsk, /) -> None:
        self._asks[uid] = ask
        if ask.request is None:
            self._wait(uid, _Waiting(now_ms, (), ask.pieces))
            return
        assert self._kueue is not None
        request = ask.request if ask.request.queued_ms == now_ms else replace(ask.request, queued_ms=now_ms)
        self._kueue.arrive(now_ms, uid, request)

    def end(self, now_ms: int, uid: str, /) -> None:
        self._give_back(uid)
        if self._asks.pop(uid).request is not None and self._kueue is not None:
            self._kueue.end(now_ms, uid)

    def release(self, now_ms: int, uid: str, /) -> None:
        self._give_back(uid)
        self._told.discard(uid)
        again = self._homeless.pop(uid, None)
        if again is not None:
            self._wait(uid, again._replace(reserved_ms=now_ms))
        elif self._kueue is not None:
            self._kueue.release(now_ms, uid)

    def change(self, now_ms: int, change: PoolNodes | KueueChange, /) -> Mapping[str, StoryEviction]:
        if not isinstance(change, PoolNodes):
            assert self._kueue is not None
            return self._leaving(self._kueue.change(now_ms, change))
        pool = self._pools[change.pool]
        lost = [
            uid
            for uid, place in self._on[change.pool].items()
            if uid not in self._told and any(node >= change.nodes for node, _ in place)
        ]
        pool.resize(change.nodes)
        self._is_freed = True
        self._touched.add(change.pool)
        self._told.update(lost)
        for uid in lost:
            start = self._placed[uid]
            self._homeless[uid] = _Waiting(now_ms, start.flavors, self._pieces(uid, start.flavors))
        return {uid: StoryEviction(now_ms, NODE_LOST) for uid in lost}

    def wake(self, now_ms: int, /) -> None:
        if self._kueue is not None:
            self._kueue.wake(now_ms)

    def cycle(self, now_ms: int, /) -> CycleEffects:
        evicted: Mapping[str, StoryEviction] = {}
        is_at_rest, was_run = True, False
        if self._kueue is not None:
            done = self._kueue.cycle(now_ms)
            is_at_rest, was_run = done.is_at_rest, done.was_run
            evicted = self._leaving(done.evicted)
            for uid, given in done.admitted.items():
                assert isinstance(given, tuple)
                self._wait(uid, _Waiting(now_ms, given, self._pieces(uid, given)))
            self._refused -= done.admitted.keys()
            if self._is_freed:
                for uid in sorted(self._refused):
                    self._kueue.ask_again(now_ms, uid)
                self._is_freed = False
        placed = self._place()
        if self._kueue is not None:
            for uid in [each for each in done.admitted if each in self._waiting]:
                is_first = self._fits_first or (
                    self._domains is not None and asks_topology(self._asks[uid].request)
                )
                if is_first and self._kueue.refuse(uid):
                    del self._waiting[uid]
                    self._refused.add(uid)
                    self.ever_refused.add(uid)
        return CycleEffects(placed, evicted, is_at_rest, was_run)

    def state_key(self, now_ms: int, /) -> Hashable | None:
        if self._kueue is None:
            return None
        placed = frozenset((uid, start.nodes) for uid, start in self._placed.items())
        return self._kueue.state_key(now_ms), tuple(self._waiting), tuple(self._homeless), placed

    def pass_over(self, span_ms: int, /) -> None:
        if self._kueue is not None:
            self._kueue.pass_over(span_ms)

    def _leaving(self, told: Mapping[str, StoryEviction]) -> dict[str, StoryEviction]:
        """Who is told to leave waits for nodes no more. Who leaves a lost node already is not told twice; it
        goes back to its queue then."""
        found = {}
        for uid, eviction in told.items():
            self._waiting.pop(uid, None)
            if self._homeless.pop(uid, None) is None:
                found[uid] = eviction
                self._told.add(uid)
        return found

    def _pieces(self, uid: str, flavors: tuple[PodSetFlavors, ...]) -> PlacePieces:
        request = self._asks[uid].request
        if request is None:
            return self._asks[uid].pieces
        given = {each.name: each for each in flavors}
        found = []
        for each in request.pod_sets:
            got = given[each.name]
            for resource, amount in each.each.items():
                pool = self._flavor_pools.get((got.flavors.get(resource, ""), resource))
                if pool is not None and amount:
                    found.append((pool, amount, got.count))
        return tuple(found)

    def _wait(self, uid: str, waiting: _Waiting) -> None:
        self._waiting[uid] = waiting
        self._touched.update(pool for pool, _, _ in waiting.pieces)
        if not waiting.pieces:
            self._touched.add("")

    def _place(self) -> dict[str, object]:
        """Who fits now, in the order of waiting."""
        if not self._touched:
            return {}
        found: dict[str, object] = {}
        for uid, waiting in list(self._waiting.items()):
            if waiting.pieces and not any(pool in self._touched for pool, _, _ in waiting.pieces):
                continue
            request, domains = self._asks[uid].request, self._domains
            if domains is not None and domains.decide(request, waiting.flavors, self._flavor_pools):
                nodes = self._fit_domains(uid, waiting)
            else:
                nodes = self._fit(waiting.pieces)
            if nodes is None:
                continue
            del self._waiting[uid]
            start = RunStart(waiting.flavors, nodes, waiting.reserved_ms)
            found[uid] = self._placed[uid] = start
            for pool, place in nodes:
                on = self._on[pool]
                on[uid] = (*on.get(uid, ()), *place)
        self._touched.clear()
        return found

    def _fit_domains(self, uid: str, waiting: _Waiting) -> tuple[tuple[str, FifoPlacement], ...] | None:
        """As ``_fit``, in the domains it asks for."""
        request, domains = self._asks[uid].request, self._domains
        assert request is not None
        assert domains is not None
        taken = domains.fit(request, waiting.flavors, self._flavor_pools, self._pools)
        if taken is None:
            return None
        for name, place in taken:
            self._pools[name].take(place)
        return tuple(taken)

    def _fit(self, pieces: PlacePieces) -> tuple[tuple[str, FifoPlacement], ...] | None:
        """Takes the room of all pieces, or of none."""
        taken: list[tuple[str, FifoPlacement]] = []
        for name, units, times in pieces:
            pool = self._pools[name]
            is_room = units * times <= pool.left
            for _ in range(times):
                place = pool.place(units) if is_room else None
                if place is None:
                    for other, held in taken:
                        self._pools[other].give_back(held)
                    return None
                pool.take(place)
                taken.append((name, place))
        return tuple(taken)

    def _give_back(self, uid: str) -> None:
        start = self._placed.pop(uid, None)
        if start is None:
            return
        self._is_freed = True
        for pool, place in start.nodes:
            self._pools[pool].give_back(place)
            self._on[pool].pop(uid, None)
            self._touched.add(pool)
