"""Volcano's queues over time: which jobs start when others end. For the simulation of waits.

No pod is evicted in it. What queues deserve by weight stays as it is when all waiting jobs are let in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gpucost.advisor.placement.free_capacity import FreeCapacity, how_many, positive
from gpucost.advisor.volcano.allocation import (
    AllocateAction,
    GangAttempt,
    domains_for,
    is_asked,
    place_gang,
    shape_of,
)
from gpucost.advisor.volcano.enqueue_action import JobPlace, JobTurn
from gpucost.advisor.volcano.gang import VolcanoGang
from gpucost.advisor.volcano.queues import ProportionQueues, SessionQueues, promised, reserved
from gpucost.advisor.volcano.resource_amounts import (
    ResourceAmounts,
    add_to,
    minus,
    plus,
    times,
)
from gpucost.advisor.volcano.session import SessionEntry, VolcanoSession, enter
from gpucost.cluster.objects.metadata import Resources
from gpucost.cluster.objects.pods import Pod, PodTemplate
from gpucost.cluster.views.node_fit import pod_kind
from gpucost.cluster.views.volcano_queues import ROOT_QUEUE

MOST_RIVALS = 200
"""Jobs that wait beside the target. Where there are more, only those of its queue, and of queues under the
same ancestors, are followed, the first of them in order."""


@dataclass
class JobHoldings:
    """What a job holds: by queue, and on nodes as (node, requests, pods). ``reserved`` and ``inqueue`` are
    what is kept for it beside that."""

    queues: dict[str, dict[str, float]]
    seats: list[tuple[str, Resources, int]]
    reserved: ResourceAmounts
    inqueue: ResourceAmounts


class VolcanoWaitInput:
    """What all samples share: ``target`` waits among ``rivals``, while ``jobs`` (bound pods by the id of
    their run) hold what they hold. The session that comes next has happened: ``begun`` are those that get
    nodes in it before the target."""

    def __init__(self, target: VolcanoGang, world: VolcanoSession, jobs: Mapping[str, Sequence[Pod]]) -> None:
        self.world, self.target, self._jobs = world, target, jobs
        self.entry: SessionEntry = enter(target, world)
        self.queues: SessionQueues = self.entry.queues.copy()
        self.rooms = world.rooms.copy()
        self.begun: dict[str, JobHoldings] = {}
        self.begun_gangs: list[VolcanoGang] = []
        if self.entry.refused is None:
            self._next_session()
        self.waiting: list[VolcanoGang] = self._ordered()

    @property
    def id(self) -> str:
        """Of the target's run."""
        return run_id(self.target)

    @cached_property
    def assumed(self) -> str:
        """What is left out, in words; empty where nothing is."""
        left_out = self._count - len(self.waiting)
        if left_out <= 0:
            return ""
        return f"of jobs that wait, {left_out:,} of other queues or far behind are taken to go elsewhere"

    @property
    def rivals(self) -> list[VolcanoGang]:
        return [gang for gang in self.waiting if gang.uid != self.entry.asking.uid]

    @cached_property
    def held(self) -> Mapping[str, JobHoldings]:
        """By run, of those that hold something now."""
        world, usage = self.world, self.rooms.base.usage
        found: dict[str, JobHoldings] = {}
        for job, pods in self._jobs.items():
            held = JobHoldings({}, [], {}, {})
            kept: dict[str, VolcanoGang] = {}
            for pod in pods:
                held.seats.append((pod.node, usage(pod), 1))
                group = world.overview.ownership.pod_group_of(pod)
                gang = None if group is None else world.gangs.get(group.meta.uid)
                if gang is not None and gang.queue in self.queues.attrs:
                    add_to(held.queues.setdefault(gang.queue, {}), world.asked(pod.template))
                    kept[gang.uid] = gang
            held.reserved = plus(*(reserved(gang) for gang in kept.values()))
            held.inqueue = plus(*(promised(gang) for gang in kept.values()))
            found[job] = held
        return {**found, **self.begun}

    def _next_session(self) -> None:
        world, asking = self.world, self.entry.asking
        others = [each for each in (*world.unplaced, *self.entry.others) if each.uid != asking.uid]
        turn = JobTurn.of(asking, world.has_gangs)
        run = AllocateAction(
            world, self.queues, self.rooms, [*(JobTurn.of(each, world.has_gangs) for each in others), turn]
        )
        run.run(turn)
        for before, tried in run.placed:
            self.begun_gangs.append(before.gang)
            self.begun[run_id(before.gang)] = seated(before.gang, tried, world)

    def _ordered(self) -> list[VolcanoGang]:
        """All that still wait, the target among them, in the order of their turns as they are now."""
        world, asking = self.world, self.entry.asking
        let_in = {each.uid: each for each in self.entry.others} if self.entry.refused is None else {}
        found = [*world.unplaced, *(let_in.get(each.uid, each) for each in world.pending)]
        found = [each for each in found if each.uid != asking.uid and run_id(each) not in self.begun]
        found = [each for each in found if each.queue in self.queues.attrs and is_asked(each)]
        self._count = len(found) + 1
        if len(found) > MOST_RIVALS:
            near = {name for name in _chain(self.queues, asking.queue) if name != ROOT_QUEUE}
            found = [each for each in found if near & set(_chain(self.queues, each.queue))]
        place_of = JobPlace(world.config, world.total, self.queues)
        found = sorted(found, key=place_of)[:MOST_RIVALS]
        return sorted([*found, asking], key=place_of)

    @cached_property
    def deserved(self) -> Mapping[str, ResourceAmounts]:
        """By weight, once all that wait are let in: what a queue asks for limits what it deserves."""
        if not isinstance(self.queues, ProportionQueues):
            return {}
        known = self.world.gangs
        gangs = (*self.begun_gangs, *self.waiting)
        new = [each for each in gangs if each.uid not in known or known[each.uid].is_pending]
        all_in = [replace(each, phase="Inqueue") for each in new]
        return {name: attr.deserved for name, attr in self.world.queues_of(all_in).attrs.items()}


class VolcanoDiscipline:
    """As ``gpucost.advisor.wait.simulation.QueueDiscipline``: after each end, those that wait are let in and
    tried on nodes, in order; no job holds up others."""

    def __init__(self, stage: VolcanoWaitInput) -> None:
        self._stage, world = stage, stage.world
        self._votes = world.votes(stage.queues)
        self._queues = self._votes.queues
        self._rooms = stage.rooms.copy()
        for name, amounts in stage.deserved.items():
            self._queues.attrs[name].deserved = amounts
        for each in stage.entry.others:
            if stage.entry.refused is not None:
                self._votes.let_in(each)
            else:
                add_to(self._votes.promised, each.minimum)
        if stage.entry.refused is None and stage.target.is_pending:
            add_to(self._votes.promised, stage.target.minimum)
        self._waiting = list(stage.waiting)
        self._let_in = {each.uid for each in self._waiting if not each.is_pending}
        self._held = dict(stage.held)
        self._fits = _Fits(self._rooms, (task.template for each in self._waiting for task in each.tasks))
        self._is_first = True

    def start(self, _now_ms: int, ended: Sequence[str], _arrived: Sequence[str], /) -> Sequence[str]:
        for id in ended:
            self._leave(id)
        if not ended and not self._is_first:
            return ()
        self._is_first = False
        started: list[str] = []
        hopeless: set[object] = set()
        for gang in list(self._waiting):
            if self._is_let_in(gang) and self._starts(gang, hopeless):
                self._waiting.remove(gang)
                started.append(run_id(gang))
        return started

    def _is_let_in(self, gang: VolcanoGang) -> bool:
        if gang.uid in self._let_in or "enqueue" not in self._stage.world.config.actions:
            return True
        if self._votes.ask(gang) is not None:
            return False
        self._votes.let_in(gang)
        self._let_in.add(gang.uid)
        return True

    def _starts(self, gang: VolcanoGang, hopeless: set[object]) -> bool:
        world, turn = self._stage.world, JobTurn.of(gang, self._stage.world.has_gangs)
        if not self._fits.may(turn) or self._queues.overused(gang.queue):
            return False
        shape = shape_of(turn)
        if shape in hopeless:
            return False
        tried = place_gang(world, self._queues, self._rooms, turn, domains_for(gang, world))
        if not tried.placed:
            if tried.refused is None:
                hopeless.add(shape)
            return False
        held = seated(gang, tried, world)
        self._fits.changed({node for node, _, _ in held.seats})
        self._held[run_id(gang)] = held
        self._changed_use(held, -1)
        self._promise_less(gang.minimum, {gang.queue: gang.minimum})
        return True

    def _leave(self, id: str) -> None:
        held = self._held.pop(id, None)
        if held is None:
            return
        for node, requests, count in held.seats:
            if self._rooms.at(node) is not None:
                self._rooms.give(node, requests, count)
        self._fits.changed({node for node, _, _ in held.seats})
        for queue, amounts in held.queues.items():
            self._queues.free(queue, amounts)
        self._promise_less(held.reserved, dict.fromkeys(held.queues, held.inqueue))
        self._changed_use(held, 1)

    def _changed_use(self, held: JobHoldings, sign: int) -> None:
        """Updates what overcommit has to give, which grows with what is free."""
        idle = dict(self._votes.idle)
        for _, requests, count in held.seats:
            add_to(idle, times(requests, sign * count))
        self._votes.idle = idle

    def _promise_less(self, amounts: ResourceAmounts, by_queue: Mapping[str, ResourceAmounts]) -> None:
        add_to(self._votes.promised, times(amounts, -1))
        for queue, inqueue in by_queue.items():
            for attr in self._queues.chain(queue):
                attr.inqueue = minus(attr.inqueue, inqueue)


class _Fits:
    """How many pods of each kind all nodes together take now: enough to see that a gang has no room."""

    def __init__(self, rooms: FreeCapacity, templates: Iterable[PodTemplate]) -> None:
        self._rooms = rooms
        self._kinds = {pod_kind(each): each for each in templates}
        self._counts = {kind: rooms.counts(each) for kind, each in self._kinds.items()}
        self._totals = {kind: sum(counts.values()) for kind, counts in self._counts.items()}

    def may(self, turn: JobTurn) -> bool:
        needed = turn.least - sum(turn.ready.values())
        for left, task in zip(turn.left, turn.gang.tasks, strict=True):
            needed -= min(left, self._totals[pod_kind(task.template)])
        return needed <= 0

    def changed(self, nodes: Iterable[str]) -> None:
        rooms = self._rooms
        places = [at for name in nodes if (at := rooms.at(name)) is not None]
        for kind, template in self._kinds.items():
            counts, admits, asked = self._counts[kind], rooms.admitting(template), positive(template.requests)
            for at in places:
                now = how_many(rooms.node(at), rooms.free_at(at), asked) if admits(at) else 0
                self._totals[kind] += now - counts.get(at, 0)
                counts[at] = now


def run_id(gang: VolcanoGang) -> str:
    """Of the run of a gang that waits."""
    return f"gang/{gang.uid}" if gang.uid else f"asking/{gang.namespace}/{gang.name}"


def seated(gang: VolcanoGang, tried: GangAttempt, world: VolcanoSession) -> JobHoldings:
    """What a gang holds that was placed."""
    seats = [
        (node, gang.tasks[at].template.requests, count)
        for at, nodes in tried.nodes.items()
        for node, count in nodes.items()
    ]
    parts = (
        times(world.asked(gang.tasks[at].template), sum(nodes.values())) for at, nodes in tried.nodes.items()
    )
    return JobHoldings({gang.queue: plus(*parts)}, seats, {}, {})


def _chain(queues: SessionQueues, name: str) -> list[str]:
    return [attr.name for attr in queues.chain(name)]
