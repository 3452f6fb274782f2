"""Volcano over simulated time: a ``ReplayDiscipline`` of sessions with the advisor's own rules.

In each session jobs are let in (``enqueue``), and then gangs get nodes queue by queue (``allocate``), by what
queues deserve, may have and are guaranteed as they are then, and in the HyperNodes they ask for
(``gpucost.advisor.volcano``). A gang runs once as many pods have a node as it needs at least; the others
follow when there is room. Nobody is preempted or reclaimed from: the chart of Volcano has neither action.

Jobs that are in no queue of Volcano start when all of their pods have room, before the session looks at the
nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property

from gpucost.advisor.placement.free_capacity import FreeCapacity
from gpucost.advisor.replay.fifo_nodes import NODE_LOST, FifoPlacement, PoolNodes
from gpucost.advisor.replay.history_record import HistoryJob, PoolRecord, VolcanoRecord
from gpucost.advisor.replay.node_places import RunStart
from gpucost.advisor.replay.replay_timeline import CycleEffects, StoryEviction
from gpucost.advisor.volcano.allocation import NO_DOMAINS, AllocateAction, GangAttempt, place_gang
from gpucost.advisor.volcano.enqueue_action import EnqueueVotes, JobTurn
from gpucost.advisor.volcano.gang import VolcanoGang, min_resources_of
from gpucost.advisor.volcano.queues import QueueAttr, SessionQueues
from gpucost.advisor.volcano.session import VolcanoSession
from gpucost.cluster.objects.metadata import ObjectMeta, added
from gpucost.cluster.objects.metadata import times as many
from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.objects.pods import PodSet, PodTemplate
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.objects.volcano import VolcanoQueue
from gpucost.cluster.views.overview import ClusterOverview

_POOL = "gpucost.replay/pool"
_NO_QUEUE = ""
_Seats = list[tuple[str, Mapping[str, int], int]]
"""Node, requests of a pod, and pods."""


def gang_of_job(job: HistoryJob, record: VolcanoRecord) -> VolcanoGang:
    """As it comes: all its pods wait, on nodes of its pool."""
    tasks = tuple(
        PodSet(each.name, each.count, PodTemplate(each.each, node_selector={_POOL: job.pool}))
        for each in job.pod_sets
    )
    size = sum(each.count for each in tasks)
    least = min(job.min_member or size, size)
    return VolcanoGang(
        job.name.partition("/")[0],
        job.name,
        job.queue if job.queue in record.queues else _NO_QUEUE,
        job.priority,
        least,
        {},
        tasks,
        min_resources_of(tasks, least),
        job.topology,
        job.created_ms,
        job.uid,
    )


_NOBODY = JobTurn.of(VolcanoGang("", "", _NO_QUEUE, 0, 0, {}, (), None, {}, 0), has_gangs=True)
"""Until whose turn a session runs, which never comes."""


class _ReplaySession(VolcanoSession):
    """A session over the gangs of a replay, of which no PodGroup or pod is in the state."""

    def __init__(
        self,
        overview: ClusterOverview,
        record: VolcanoRecord,
        rooms: FreeCapacity,
        known: Iterable[VolcanoGang],
    ) -> None:
        super().__init__(overview, record.config, rooms)
        self._known = {each.uid: each for each in known}

    @cached_property
    def gangs(self) -> Mapping[str, VolcanoGang]:
        return dict(sorted(self._known.items()))


class VolcanoReplay:
    """A ``ReplayDiscipline`` whose asks are ``VolcanoGang`` and whose changes are nodes of a pool, or a queue
    as it is from then on. What is given to an admission is a ``RunStart``, whose quota is reserved when no
    queue held it back any more."""

    wake_ms: int | None = None
    leaves_ms = 0

    def __init__(self, record: VolcanoRecord, pools: Mapping[str, PoolRecord]) -> None:
        self._record, self._pools = record, pools
        self._queues = dict(record.queues)
        self._counts = {name: pool.steps[0][1] for name, pool in pools.items()}
        self._names = _names(pools)
        self._asks: dict[str, VolcanoGang] = {}
        self._gangs: dict[str, VolcanoGang] = {}
        self._reserved: dict[str, int] = {}
        self._held: set[str] = set()
        self._seats: dict[str, _Seats] = {}
        self._is_touched = False
        self._build()

    def arrive(self, now_ms: int, uid: str, ask: VolcanoGang, /) -> None:
        self._asks[uid] = ask
        self._wait(now_ms, uid)

    def end(self, _now_ms: int, uid: str, /) -> None:
        self._give_back(uid)
        for known in (self._gangs, self._asks, self._reserved):
            known.pop(uid, None)

    def release(self, now_ms: int, uid: str, /) -> None:
        self._give_back(uid)
        self._wait(now_ms, uid)

    def change(self, now_ms: int, change: PoolNodes | VolcanoQueue, /) -> Mapping[str, StoryEviction]:
        if isinstance(change, VolcanoQueue):
            self._queues[change.name] = change
        else:
            self._counts[change.pool] = change.nodes
        self._build()
        lost = [
            uid
            for uid, seats in self._seats.items()
            if any(self._rooms.at(node) is None for node, _, _ in seats)
        ]
        return {uid: StoryEviction(now_ms, NODE_LOST) for uid in lost}

    def wake(self, _now_ms: int, /) -> None:
        """Nothing waits for a time."""

    @property
    def waiting_for_nodes(self) -> frozenset[str]:
        """Those that no queue holds back."""
        return frozenset(self._gangs.keys() - self._seats.keys() - self._held)

    def cycle(self, now_ms: int, /) -> CycleEffects:
        """One session. Another one may do more after one that let somebody in or placed pods."""
        if not self._is_touched:
            return CycleEffects({}, {}, is_at_rest=True, was_run=False)
        self._reserved |= dict.fromkeys(self._held, now_ms)
        started = self._place_others()
        own = [each for each in self._gangs.values() if each.queue != _NO_QUEUE]
        session = _ReplaySession(self._overview, self._record, self._rooms, own)
        entered = dict(session.entered)
        turns = [
            JobTurn.of(each, session.has_gangs)
            for each in (*session.unplaced, *entered.values())
            if each.tasks
        ]
        self._gangs.update(entered)
        queues = session.after.copy()
        action = AllocateAction(session, queues, self._rooms, turns)
        action.run(_NOBODY)
        for turn, tried in action.placed:
            started |= self._seated(turn.gang.uid, tried)
        waiting = (each for each in self._gangs.values() if each.queue and each.uid not in self._seats)
        votes = session.votes(queues)
        self._held = {each.uid for each in waiting if _is_held(each, session, votes)}
        self._is_touched = bool(entered or action.placed)
        admitted = {uid: self._start(uid) for uid in sorted(started)}
        return CycleEffects(admitted, {}, is_at_rest=not self._is_touched)

    def state_key(self, _now_ms: int, /) -> None:
        """Nobody is preempted."""

    def pass_over(self, _span_ms: int, /) -> None:
        """Nothing waits for a time."""

    def _build(self) -> None:
        """The cluster as it is now; who holds nodes that are left holds them still."""
        self._place_of = {
            node: (name, number)
            for (name, number), node in self._names.items()
            if number < self._counts[name]
        }
        nodes = [_node(each, name, self._pools[name]) for each, (name, _) in self._place_of.items()]
        state = ClusterState(
            0,
            nodes={each.meta.uid: each for each in nodes},
            volcano_queues={each.meta.uid: each for each in self._queues.values()},
            hyper_nodes={each.meta.uid: each for each in self._record.hyper_nodes},
        )
        self._overview = ClusterOverview(state)
        self._rooms = FreeCapacity.of(self._overview)
        for node, requests, count in (seat for seats in self._seats.values() for seat in seats):
            if self._rooms.at(node) is not None:
                self._rooms.take(node, requests, count)
        self._is_touched = True

    def _wait(self, now_ms: int, uid: str) -> None:
        self._gangs[uid], self._reserved[uid] = self._asks[uid], now_ms
        self._is_touched = True

    def _place_others(self) -> set[str]:
        """Those in no queue, in the order in which they came."""
        waiting = [each for each in self._gangs.values() if each.queue == _NO_QUEUE and each.tasks]
        if not waiting:
            return set()
        session = _ReplaySession(self._overview, self._record, self._rooms, ())
        queue = VolcanoQueue(ObjectMeta(_NO_QUEUE, "", _NO_QUEUE, 0, {}, {}))
        free = SessionQueues({_NO_QUEUE: QueueAttr(queue, {})}, session.total)
        found: set[str] = set()
        for gang in waiting:
            turn = JobTurn(gang, gang.size, {}, [each.count for each in gang.tasks])
            tried = place_gang(session, free, self._rooms, turn, NO_DOMAINS)
            if tried.placed:
                found |= self._seated(gang.uid, tried)
        return found

    def _seated(self, uid: str, tried: GangAttempt) -> set[str]:
        """Pods have a node. The gang where it runs from now on, nobody where it ran before."""
        gang, is_first = self._gangs[uid], uid not in self._seats
        seats = self._seats.setdefault(uid, [])
        ready, left, amounts = dict(gang.ready), [], [gang.allocated]
        for at, task in enumerate(gang.tasks):
            placed = tried.nodes.get(at, {})
            count = sum(placed.values())
            seats += [(node, task.template.requests, pods) for node, pods in placed.items()]
            ready[task.name] = ready.get(task.name, 0) + count
            amounts.append(many(task.template.requests, count))
            left.append(replace(task, count=task.count - count))
        self._gangs[uid] = replace(
            gang,
            phase="Running",
            ready=ready,
            allocated=added(*amounts),
            nodes=gang.nodes | {node for node, _, _ in seats},
            tasks=tuple(left) if any(each.count for each in left) else (),
        )
        return {uid} if is_first else set()

    def _start(self, uid: str) -> RunStart:
        """With the nodes it has at the end of the session."""
        found: dict[str, dict[int, int]] = {}
        for node, requests, pods in self._seats[uid]:
            pool, number = self._place_of[node]
            own = found.setdefault(pool, {})
            own[number] = own.get(number, 0) + pods * sum(requests.values())
        nodes: tuple[tuple[str, FifoPlacement], ...] = tuple(
            (pool, tuple(sorted(own.items()))) for pool, own in sorted(found.items())
        )
        return RunStart((), nodes, self._reserved[uid])

    def _give_back(self, uid: str) -> None:
        for node, requests, count in self._seats.pop(uid, ()):
            if self._rooms.at(node) is not None:
                self._rooms.give(node, requests, count)
        self._is_touched = True


def _is_held(gang: VolcanoGang, session: VolcanoSession, votes: EnqueueVotes) -> bool:
    """Whether it waits for its queue, and not for nodes alone: of them overcommit speaks, too."""
    queues = votes.queues
    if gang.is_pending:
        refused = votes.ask(gang)
        return refused is not None and refused.queue != _NO_QUEUE
    if queues.overused(gang.queue):
        return True
    return any(queues.allocatable(gang.queue, session.asked(each.template)) for each in gang.tasks)


def _names(pools: Mapping[str, PoolRecord]) -> dict[tuple[str, int], str]:
    """Of all nodes there ever are, by pool and place. One that is in several pools (of slices) is a node of
    its own in each."""
    places = [
        (name, number)
        for name, pool in sorted(pools.items())
        for number in range(max(nodes for _, nodes in pool.steps))
    ]
    names = [pools[name].name_of(number) for name, number in places]
    times = Counter(names)
    return {
        place: f"{node} {place[0]}" if times[node] > 1 else node
        for place, node in zip(places, names, strict=True)
    }


def _node(name: str, pool_name: str, pool: PoolRecord) -> Node:
    there = {pool.resource: pool.gpus}
    return Node(ObjectMeta(name, "", name, 0, {_POOL: pool_name}, {}), there, there, True, None, False)
