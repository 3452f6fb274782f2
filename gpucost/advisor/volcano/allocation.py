"""The action allocate: queue after queue and job after job, each gang on nodes or not at all.

Sources: volcano, pkg/scheduler/actions/allocate/allocate.go, plugins/gang/gang.go, v1.15.1. Which of the
nodes that fit is chosen follows scores that are not restated: pods go where the least is left, like binpack.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpucost.advisor.placement.free_capacity import (
    FreeCapacity,
    how_many,
    positive,
)
from gpucost.advisor.volcano.enqueue_action import (
    JobTurn,
    SortKey,
    job_key,
    queue_key,
)
from gpucost.advisor.volcano.gang import VolcanoGang
from gpucost.advisor.volcano.hypernodes import HyperNodeDomains, domains_of
from gpucost.advisor.volcano.queues import QueueRefusal, SessionQueues
from gpucost.advisor.volcano.resource_amounts import plus
from gpucost.advisor.volcano.session import VolcanoSession
from gpucost.cluster.objects.pods import PodSet, PodTemplate
from gpucost.cluster.views.node_fit import is_evaluated, pod_kind

NO_DOMAINS = HyperNodeDomains(None)
MOST_KINDS = 100
"""The most kinds of pods in one gang that are placed on nodes."""


@dataclass
class GangAttempt:
    """One attempt to place a gang: ``nodes`` by place among its tasks, what a queue ``refused`` last, and
    tasks for which ``no_room`` was left. ``domain`` is the HyperNode it was placed in."""

    placed: bool = False
    nodes: dict[int, dict[str, int]] = field(default_factory=dict)
    refused: QueueRefusal | None = None
    no_room: list[int] = field(default_factory=list)
    domain: str = ""

    @property
    def count(self) -> int:
        return sum(sum(each.values()) for each in self.nodes.values())


class AllocateAction:
    """One run of the action over ``turns`` (jobs that were let in)."""

    def __init__(
        self, world: VolcanoSession, queues: SessionQueues, rooms: FreeCapacity, turns: Iterable[JobTurn]
    ) -> None:
        self._world, self._queues, self._rooms = world, queues, rooms
        self._turns = list(turns)
        self._hopeless: set[object] = set()
        self._until: JobTurn | None = None
        self.before: list[JobTurn] = []
        self.placed: list[tuple[JobTurn, GangAttempt]] = []
        self.skipped: str = ""
        self.unasked: list[str] = []

    def run(self, until: JobTurn) -> GangAttempt | None:
        """What happens to ``until`` at its turn; None where its queue gets none. ``before`` are jobs that got
        nodes first, in order, and ``placed`` the same with their nodes; ``skipped`` is its queue where that
        is overused when its turn comes; ``unasked`` are jobs that were not tried on nodes, and count as not
        placed."""
        self._until = until
        by_queue = self._by_queue()
        heads = [(queue_key(name, self._queues), name) for name in by_queue]
        heapq.heapify(heads)
        while heads:
            _, name = heapq.heappop(heads)
            if self._queues.overused(name):
                if name == until.gang.queue:
                    self.skipped = name
                    return None
                continue
            _, at = heapq.heappop(by_queue[name])
            turn = self._turns[at]
            tried = self._try(turn)
            if turn is until:
                return tried
            if tried.placed:
                self.before.append(turn)
                self.placed.append((turn, tried))
                if turn.waits:
                    heapq.heappush(by_queue[name], (self._key(turn), at))
            if by_queue[name]:
                heapq.heappush(heads, (queue_key(name, self._queues), name))
        return None

    def _by_queue(self) -> dict[str, list[tuple[SortKey, int]]]:
        found: dict[str, list[tuple[SortKey, int]]] = {}
        for at, turn in enumerate(self._turns):
            if turn.waits and turn.gang.queue in self._queues.attrs and turn.gang.size >= turn.least:
                found.setdefault(turn.gang.queue, []).append((self._first_key(turn), at))
        for each in found.values():
            heapq.heapify(each)
        return found

    def _key(self, turn: JobTurn) -> SortKey:
        return job_key(turn, self._world.config, self._world.total)

    def _first_key(self, turn: JobTurn) -> SortKey:
        known = None if turn is self._until else self._world.job_keys.get(turn.gang.uid)
        return self._key(turn) if known is None else known

    def _try(self, turn: JobTurn) -> GangAttempt:
        """Rooms only shrink while the action runs, so what found no room will find none later."""
        if not is_asked(turn.gang):
            self.unasked.append(turn.gang.name)
            return GangAttempt()
        shape = shape_of(turn)
        if shape in self._hopeless:
            return GangAttempt()
        domains = domains_for(turn.gang, self._world)
        tried = place_gang(self._world, self._queues, self._rooms, turn, domains)
        if not tried.placed and tried.refused is None:
            self._hopeless.add(shape)
        return tried


def domains_for(gang: VolcanoGang, world: VolcanoSession) -> HyperNodeDomains:
    """The nodes of a snapshot that it may use."""
    if not gang.topology:
        return NO_DOMAINS
    hyper_nodes = world.overview.state.hyper_nodes.values()
    return domains_of(gang, world.config, hyper_nodes, list(world.rooms.nodes))


def is_asked(gang: VolcanoGang) -> bool:
    """Whether nodes are asked for it: a tenant can write pods of thousands of kinds, with thousands of rules
    each, and each costs a look at every node."""
    if len(gang.tasks) > MOST_KINDS and len({pod_kind(task.template) for task in gang.tasks}) > MOST_KINDS:
        return False
    return all(is_evaluated(task.template) for task in gang.tasks)


def shape_of(turn: JobTurn) -> object:
    """Equal for gangs that fit the same nodes alike."""
    gang = turn.gang
    return (
        turn.least - sum(turn.ready.values()),
        tuple(sorted(gang.topology.items())),
        gang.nodes if gang.topology else (),
        tuple((left, pod_kind(task.template)) for left, task in zip(turn.left, gang.tasks, strict=True)),
        tuple(sorted(gang.min_task_member.items())) if gang.asks_per_task else (),
        tuple(sorted(turn.ready.items())) if gang.asks_per_task else (),
    )


def place_gang(
    world: VolcanoSession,
    queues: SessionQueues,
    rooms: FreeCapacity,
    turn: JobTurn,
    domains: HyperNodeDomains,
) -> GangAttempt:
    """Pods in turn until the gang is ready, in the narrowest HyperNodes first where it has to stay in one.
    All of it is undone where it does not become ready."""
    if domains.allowed is None:
        return _place(world, queues, rooms, turn, None)
    tried = GangAttempt(no_room=list(range(len(turn.gang.tasks))))
    for name, _, nodes in domains.allowed:
        tried = _place(world, queues, rooms, turn, nodes)
        if tried.placed:
            tried.domain = name
            return tried
    return tried


def _place(
    world: VolcanoSession,
    queues: SessionQueues,
    rooms: FreeCapacity,
    turn: JobTurn,
    among: frozenset[str] | None,
) -> GangAttempt:
    tried, mark = GangAttempt(), rooms.mark()
    saved = dict(turn.ready), list(turn.left), turn.allocated
    seats = [NodeSeats(rooms, task.template, among) for task in turn.gang.tasks]
    name = turn.gang.queue
    given: list[Mapping[str, float]] = []
    out: set[int] = set()
    for at, task in in_turn(turn, out):
        asked = world.asked(task.template)
        refused = queues.allocatable(name, asked)
        if refused is not None:
            tried.refused = refused
            out.add(at)
            continue
        node = seats[at].take()
        if node is None:
            tried.no_room.append(at)
            out.add(at)
            continue
        nodes = tried.nodes.setdefault(at, {})
        nodes[node] = nodes.get(node, 0) + 1
        queues.allocate(name, asked)
        given.append(asked)
        turn.left[at] -= 1
        turn.ready[task.name] = turn.ready.get(task.name, 0) + 1
        turn.allocated = plus(turn.allocated, asked)
        if turn.is_ready:
            tried.placed = True
            return tried
    rooms.rewind(mark)
    for each in given:
        queues.free(name, each)
    turn.ready, turn.left, turn.allocated = saved
    return tried


def in_turn(turn: JobTurn, out: Container[int]) -> Iterator[tuple[int, PodSet]]:
    """Pods without a node in the order of their numbers, one of each task in turn, with the place of the task
    (pkg/scheduler/api, CompareTask). Ends once every task is ``out``, which may grow meanwhile: a
    manifest can ask for as many pods as a number can say."""
    left, number = list(turn.left), 0
    active = [(at, task) for at, task in enumerate(turn.gang.tasks) if left[at]]
    while active:
        for at, task in active:
            if at not in out:
                yield at, task
        number += 1
        active = [(at, task) for at, task in active if at not in out and number < left[at]]


class NodeSeats:
    """Nodes for equal pods, the fullest node first."""

    def __init__(self, rooms: FreeCapacity, template: PodTemplate, among: frozenset[str] | None) -> None:
        self._rooms, self._template, self._among = rooms, template, among
        self._asked = positive(template.requests)
        self._nodes: list[int] | None = None

    def take(self) -> str | None:
        """A node with room, on which one pod now stands; None where there is none."""
        if self._nodes is None:
            counts = self._rooms.counts(self._template, self._among)
            self._nodes = sorted(counts, key=lambda at: (-counts[at], -at))
        rooms = self._rooms
        while self._nodes:
            at = self._nodes[-1]
            if how_many(rooms.node(at), rooms.free_at(at), self._asked):
                rooms.take_at(at, self._template.requests, 1)
                return rooms.name(at)
            self._nodes.pop()
        return None


def gangs_ahead(turn: JobTurn, others: Iterable[JobTurn], world: VolcanoSession) -> list[VolcanoGang]:
    """Jobs of the same queue that wait and are ahead of it, in order."""
    own = job_key(turn, world.config, world.total)
    keyed = (
        (job_key(each, world.config, world.total), each.gang)
        for each in others
        if each is not turn and each.gang.queue == turn.gang.queue and each.waits
    )
    return [gang for key, gang in sorted((pair for pair in keyed if pair[0] < own), key=lambda pair: pair[0])]
