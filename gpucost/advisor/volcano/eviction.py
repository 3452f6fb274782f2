"""Evictions: the actions preempt and reclaim, for one gang that found no room.

Sources: volcano, pkg/scheduler/actions/preempt/preempt.go and reclaim/reclaim.go,
framework/session_plugins.go (Preemptable, Reclaimable, BuildVictimsPriorityQueue), plugins priority, gang,
conformance, drf, proportion and capacity, v1.15.1. Pods are taken from one node after another; which node is
first follows scores that are not restated: here those with room, then by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gpucost.advisor.placement.free_capacity import FreeCapacity, how_many, positive
from gpucost.advisor.volcano.allocation import in_turn
from gpucost.advisor.volcano.enqueue_action import (
    JobTurn,
    SortKey,
    job_key,
    queue_key,
)
from gpucost.advisor.volcano.queues import CapacityQueues, ProportionQueues, SessionQueues
from gpucost.advisor.volcano.resource_amounts import (
    ResourceAmounts,
    counted,
    covers,
    minus,
    plus,
    share,
    too_much,
)
from gpucost.advisor.volcano.rule_set import flag
from gpucost.advisor.volcano.session import EvictionCandidate, VolcanoSession
from gpucost.cluster.objects.pods import PodTemplate
from gpucost.cluster.views.node_fit import PODS

PREEMPT, RECLAIM = "preempt", "reclaim"
CRITICAL = frozenset({"system-cluster-critical", "system-node-critical"})
SYSTEM = "kube-system"


_Vote = Callable[[ResourceAmounts, Sequence[EvictionCandidate]], list[EvictionCandidate]]


class EvictionAction:
    """One action for one gang. ``chosen`` are its victims, in order, ``notes`` the plugins that
    decided it."""

    def __init__(
        self, action: str, world: VolcanoSession, queues: SessionQueues, rooms: FreeCapacity, turn: JobTurn
    ) -> None:
        self._action, self._world, self._queues, self._rooms = action, world, queues, rooms
        self._turn, self._gang = turn, turn.gang
        self.chosen: list[EvictionCandidate] = []
        self.nodes: dict[int, dict[str, int]] = {}
        self.notes: dict[str, None] = {}
        self._gone: dict[str, int] = {}
        self._by_node: dict[str, Sequence[EvictionCandidate]] = dict(world.candidates)
        self._queue_keys: dict[str, SortKey] = {}
        self._job_keys: dict[str, SortKey] = {}

    def run(self) -> bool:
        """Whether the gang would be complete once its victims are gone; if not, no pod is evicted. Leaves
        rooms and queues as they were then, so that no second action may follow on them."""
        if self._action == RECLAIM and self._queues.overused(self._gang.queue):
            return False
        out: set[int] = set()
        for at, task in in_turn(self._turn, out):
            node = self._seat(task.template)
            if node is None:
                out.add(at)
                continue
            nodes = self.nodes.setdefault(at, {})
            nodes[node] = nodes.get(node, 0) + 1
            self._turn.left[at] -= 1
            self._turn.ready[task.name] = self._turn.ready.get(task.name, 0) + 1
            self._turn.allocated = plus(self._turn.allocated, self._world.asked(task.template))
            if self._turn.is_ready:
                return True
        return False

    def _seat(self, template: PodTemplate) -> str | None:
        """A node for one pod, once those that are chosen there are gone."""
        asked, rooms = self._world.asked(template), self._rooms
        if self._action == RECLAIM and not self._queues.preemptive(self._gang.queue, asked):
            return None
        counts = rooms.counts(template)
        for at in sorted(rooms.base.admits(template), key=lambda each: (each not in counts, each)):
            victims = self._victims(at, template, asked)
            if victims is None:
                continue
            for victim in victims:
                self._evict(victim)
            self._queue_keys.clear()
            rooms.take_at(at, template.requests, 1)
            self._queues.allocate(self._gang.queue, asked)
            return rooms.name(at)
        return None

    def _victims(
        self, at: int, template: PodTemplate, asked: ResourceAmounts
    ) -> list[EvictionCandidate] | None:
        """As few as make room, in order; None where the node cannot have it."""
        rooms, name = self._rooms, self._rooms.name(at)
        offered = [each for each in self._by_node.get(name, ()) if self._is_offered(each)]
        # Plugins get them in any order (a map's); sessions repeat until one suits.
        offered.sort(key=self._victim_key, reverse=True)
        agreed = self._agreed(asked, offered)
        mark, wanted, taken = rooms.mark(), positive(template.requests), list[EvictionCandidate]()
        found: list[EvictionCandidate] | None = None
        freed: ResourceAmounts = {}
        for each in (None, *agreed):
            if each is not None:
                rooms.take_at(at, each.pod.requests, -1)
                freed = plus(freed, each.asked)
                taken.append(each)
            has_room = how_many(rooms.node(at), rooms.free_at(at), wanted) > 0
            if has_room and self._queue_takes(asked, freed):
                found = taken
                break
        rooms.rewind(mark)
        return found

    def _queue_takes(self, asked: ResourceAmounts, freed: ResourceAmounts) -> bool:
        """Whether the queue takes the pod. preempt also makes room in the queue itself; reclaim has checked
        before."""
        if self._action == RECLAIM:
            return True
        name = self._gang.queue
        self._queues.free(name, freed)
        takes = self._queues.allocatable(name, asked) is None
        self._queues.allocate(name, freed)
        return takes

    def _evict(self, victim: EvictionCandidate) -> None:
        self.chosen.append(victim)
        self._gone[victim.gang.uid] = self._gone.get(victim.gang.uid, 0) + 1
        self._rooms.give(victim.pod.node, victim.pod.requests)
        self._queues.free(victim.gang.queue, victim.asked)
        left = self._by_node[victim.pod.node]
        self._by_node[victim.pod.node] = [each for each in left if each is not victim]

    def _is_offered(self, each: EvictionCandidate) -> bool:
        if each.gang.uid == self._gang.uid:
            return False
        if self._action == PREEMPT:
            return each.gang.queue == self._gang.queue and bool(positive(each.pod.requests))
        queue = self._world.queues.get(each.gang.queue)
        return each.gang.queue != self._gang.queue and queue is not None and queue.is_reclaimable

    def _agreed(
        self, asked: ResourceAmounts, offered: Sequence[EvictionCandidate]
    ) -> list[EvictionCandidate]:
        """Tier by tier, those that every plugin of it would give; the first tier that gives any decides. A
        plugin that gives none ends its tier."""
        if not offered:
            return []
        voters = self._voters()
        switch = "enablePreemptable" if self._action == PREEMPT else "enableReclaimable"
        given: list[EvictionCandidate] = []
        silent: list[str] = []
        for tier in self._world.config.tiers:
            asked_of: list[str] = []
            for plugin in tier:
                vote = voters.get(plugin)
                if vote is None or not flag(self._world.config, plugin, switch, True):
                    continue
                asked_of.append(plugin)
                own = vote(asked, offered)
                if not own:
                    given = []
                    break
                given = [each for each in given if each in own] if given else own
            if given and silent:
                self.notes[
                    f"{', '.join(silent)} gave nobody, so the next tier decides: {', '.join(asked_of)}"
                ] = None
            if given:
                return given
            silent += asked_of
        return given

    def _voters(self) -> Mapping[str, _Vote]:
        both: dict[str, _Vote] = {"gang": self._of_gang, "conformance": _conforming}
        if self._action == PREEMPT:
            return {**both, "priority": self._of_priority, "drf": self._of_drf}
        if isinstance(self._queues, ProportionQueues):
            both["proportion"] = self._of_proportion
        if isinstance(self._queues, CapacityQueues):
            both["capacity"] = self._of_capacity
        return both

    def _of_priority(
        self, _asked: ResourceAmounts, offered: Sequence[EvictionCandidate]
    ) -> list[EvictionCandidate]:
        return [each for each in offered if each.gang.priority < self._gang.priority]

    def _of_gang(
        self, _asked: ResourceAmounts, offered: Sequence[EvictionCandidate]
    ) -> list[EvictionCandidate]:
        """No gang is taken below its minimum."""
        left: dict[str, int] = {}
        given = []
        for each in offered:
            uid = each.gang.uid
            now = left.setdefault(uid, each.gang.ready_count - self._gone.get(uid, 0))
            if now > each.gang.min_member:
                left[uid] = now - 1
                given.append(each)
        return given

    def _of_drf(
        self, asked: ResourceAmounts, offered: Sequence[EvictionCandidate]
    ) -> list[EvictionCandidate]:
        """Those whose job keeps at least the share that the asking one would then have."""
        total = self._world.total
        mine = share(plus(self._turn.allocated, asked), total, total)
        left: dict[str, ResourceAmounts] = {}
        given = []
        for each in offered:
            have = left.get(each.gang.uid, counted(each.gang.allocated))
            left[each.gang.uid] = minus(have, each.asked)
            if mine <= share(left[each.gang.uid], total, total) + 0.000001:
                given.append(each)
        return given

    def _of_proportion(
        self, asked: ResourceAmounts, offered: Sequence[EvictionCandidate]
    ) -> list[EvictionCandidate]:
        """Of queues that have more than they deserve, and of all that is asked as much."""
        return self._of_queues(
            offered,
            lambda have, deserved, _: covers(have, asked) and not covers(deserved, have),
        )

    def _of_capacity(
        self, asked: ResourceAmounts, offered: Sequence[EvictionCandidate]
    ) -> list[EvictionCandidate]:
        """Of queues that have more than they deserve of what the pod holds, or deserve nothing of it; never
        below their guarantee, and only pods that hold something of what is asked."""

        def gives(have: ResourceAmounts, deserved: ResourceAmounts, each: EvictionCandidate) -> bool:
            holds = {key: amount for key, amount in each.asked.items() if amount > 0 and key != PODS}
            if not any(asked.get(key, 0) > 0 for key in holds):
                return False
            guarantee = self._queues.attrs[each.gang.queue].guarantee
            if not covers(minus(have, each.asked), guarantee):
                return False
            named = {key: amount for key, amount in holds.items() if deserved.get(key, 0) > 0}
            return not named or bool(too_much(have, deserved, named))

        return self._of_queues(offered, gives)

    def _of_queues(
        self,
        offered: Sequence[EvictionCandidate],
        gives: Callable[[ResourceAmounts, ResourceAmounts, EvictionCandidate], bool],
    ) -> list[EvictionCandidate]:
        have: dict[str, ResourceAmounts] = {}
        given = []
        for each in offered:
            attr = self._queues.attrs[each.gang.queue]
            now = have.setdefault(attr.name, attr.allocated)
            if gives(now, attr.deserved, each):
                have[attr.name] = minus(now, each.asked)
                given.append(each)
        return given

    def _victim_key(self, each: EvictionCandidate) -> tuple[object, ...]:
        """The last in the order of queues, jobs and pods leaves first."""
        world, gang = self._world, each.gang
        of_queue = self._queue_keys.get(gang.queue)
        if of_queue is None:
            of_queue = self._queue_keys[gang.queue] = queue_key(gang.queue, self._queues)
        of_job = self._job_keys.get(gang.uid)
        if of_job is None:
            turn = JobTurn.of(gang, world.has_gangs)
            of_job = self._job_keys[gang.uid] = job_key(turn, world.config, world.total)
        return of_queue, of_job, each.number


def _conforming(_asked: ResourceAmounts, offered: Sequence[EvictionCandidate]) -> list[EvictionCandidate]:
    """Without pods that the cluster itself needs."""
    return [
        each
        for each in offered
        if each.pod.template.priority_class not in CRITICAL and each.pod.meta.namespace != SYSTEM
    ]
