"""One session of the scheduler: all its jobs and queues, as a snapshot has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from gpucost.advisor.placement.rooms import Rooms
from gpucost.advisor.volcano import capacity
from gpucost.advisor.volcano.amounts import Amounts, add_to, at_most, counted, plus
from gpucost.advisor.volcano.enqueue import Line, PlaceOf, Votes, idle_of
from gpucost.advisor.volcano.gang import Gang, asked_of, gang_of_group
from gpucost.advisor.volcano.order import Key, Turn, job_key
from gpucost.advisor.volcano.proportion import (
    Claim,
    deserved,
    not_guaranteed,
    real_capability,
    total_guarantee,
)
from gpucost.advisor.volcano.queues import NO_SUMS, ByCapacity, ByWeight, QueueAttr, Queues, Sums, reserved
from gpucost.advisor.volcano.rules import flag
from gpucost.advisor.volcano.victims import Candidate, running
from gpucost.cluster.fit import PODS
from gpucost.cluster.objects import Resources
from gpucost.cluster.overview import Overview
from gpucost.cluster.pods import Pod, PodTemplate
from gpucost.cluster.scheduling import VolcanoConfig
from gpucost.cluster.state import grouped
from gpucost.cluster.volcano import GroupKind, PodGroup, VolcanoQueue
from gpucost.cluster.volcano_queues import volcano_groups


class World:
    """A snapshot as Volcano sees it. Never changed; share it among all questions to that snapshot.

    ``rooms`` are the nodes. Jobs that are over are not here.
    """

    def __init__(self, overview: Overview, config: VolcanoConfig | None = None, rooms: Rooms | None = None):
        self.overview = overview
        self.config = config or overview.state.schedulers.volcano
        self.rooms = rooms or Rooms.of(overview)

    def warm(self) -> None:
        """Works out now what the first answer would have to wait for."""
        _ = self.after, self.empty.base, self.job_keys
        if {"preempt", "reclaim"} & set(self.config.actions):
            _ = self.candidates

    @cached_property
    def queues(self) -> Mapping[str, VolcanoQueue]:
        return dict(sorted(self.overview.state.volcano_queue_by_name.items()))

    @cached_property
    def members(self) -> Mapping[str, Sequence[Pod]]:
        """Pods by the uid of their PodGroup."""
        found: dict[str, list[Pod]] = {}
        for pod in self.overview.state.pods.values():
            group = self.overview.ownership.pod_group_of(pod)
            if group is not None and group.group_kind is GroupKind.VOLCANO:
                found.setdefault(group.meta.uid, []).append(pod)
        return found

    @cached_property
    def groups(self) -> Mapping[str, PodGroup]:
        """Of Volcano, by uid."""
        return {group.meta.uid: group for group in volcano_groups(self.overview.state)}

    @cached_property
    def gangs(self) -> Mapping[str, Gang]:
        """Of every PodGroup that is not over, by its uid."""
        return {
            uid: self.gang_of(group)
            for uid, group in sorted(self.groups.items())
            if group.phase != "Completed" and group.meta.deleted_ms is None
        }

    @cached_property
    def settled(self) -> Mapping[str, Mapping[str, Gang]]:
        """Jobs that were let in, by queue and uid: what they hold does not depend on who asks."""
        found: dict[str, dict[str, Gang]] = {}
        for uid, gang in self.gangs.items():
            if not gang.is_pending:
                found.setdefault(gang.queue, {})[uid] = gang
        return found

    @cached_property
    def reserved(self) -> Mapping[str, float]:
        """What overcommit reserves for jobs that were let in."""
        found: dict[str, float] = {}
        for gang in self.gangs.values():
            add_to(found, reserved(gang))
        return found

    @cached_property
    def empty(self) -> Rooms:
        """The nodes as if no job were on them."""
        return self.rooms.emptied()

    @cached_property
    def pending(self) -> Sequence[Gang]:
        """Jobs that were not let in yet."""
        return [gang for gang in self.gangs.values() if gang.is_pending]

    @cached_property
    def unplaced(self) -> Sequence[Gang]:
        """Jobs that were let in and have pods without a node."""
        return [gang for gang in self.gangs.values() if not gang.is_pending and gang.tasks]

    @cached_property
    def has_gangs(self) -> bool:
        return "gang" in self.config.plugins

    @cached_property
    def before(self) -> Queues:
        """The queues before anybody is let in. To be copied."""
        return self.queues_of(self.pending)

    @cached_property
    def line(self) -> Line:
        return Line.of(self.pending, self.votes(self.before), PlaceOf(self.config, self.total, self.before))

    @cached_property
    def entered(self) -> Mapping[str, Gang]:
        """Jobs that are let in next, by uid: their pods exist then. Without the action all are."""
        gangs = self.line.let_in() if "enqueue" in self.config.actions else self.pending
        return {gang.uid: self.as_let_in(gang) for gang in gangs}

    @cached_property
    def _let_in(self) -> dict[str, Gang]:
        return {}

    def as_let_in(self, gang: Gang) -> Gang:
        """One of ``pending``, once it is let in."""
        found = self._let_in.get(gang.uid)
        if found is None:
            found = self._let_in[gang.uid] = replace(gang, phase="Inqueue")
        return found

    @cached_property
    def after(self) -> Queues:
        """The queues once those are let in that are let in next. To be copied."""
        return self.queues_of(self.entered.get(gang.uid, gang) for gang in self.pending)

    @cached_property
    def job_keys(self) -> Mapping[str, Key]:
        """Of jobs that wait for nodes, by uid."""
        gangs = (*self.unplaced, *self.entered.values())
        return {gang.uid: job_key(Turn.of(gang, self.has_gangs), self.config, self.total) for gang in gangs}

    @cached_property
    def idle(self) -> Mapping[str, float]:
        return idle_of(self.config, self.total, self.used)

    def votes(self, queues: Queues, promised: Amounts | None = None) -> Votes:
        """Of one run of enqueue, over a copy of the queues."""
        return Votes(self.config, queues.copy(), self.idle, self.reserved if promised is None else promised)

    def joined(self, queues: Queues, gang: Gang) -> Queues:
        """A copy of the queues with one more job, which is let in. What queues deserve changes only where its
        own had all it asked for: otherwise nothing but its weight limits it, and that stays."""
        if gang.queue not in queues.present:
            return self.queues_of([*(self.entered.get(each.uid, each) for each in self.pending), gang])
        found, old = queues.copy(), queues.attrs[gang.queue]
        sums = Sums.of([gang])
        for attr in found.chain(gang.queue):
            attr.add(sums, has_pods=PODS in self.total)
        request, deserves = found.attrs[gang.queue].request, old.deserved
        more = [key for key, amount in request.items() if amount > old.request.get(key, 0.0)]
        if isinstance(found, ByWeight) and any(
            at_most(key, old.request.get(key, 0.0), deserves.get(key, 0.0)) for key in more
        ):
            self._divide(found.attrs, found.present)
        return found

    @cached_property
    def candidates(self) -> Mapping[str, Sequence[Candidate]]:
        """Pods that may be evicted, by node."""
        found: dict[str, list[Candidate]] = {}
        for each in running(self.gangs, self.members, self.asked):
            if each.gang.queue in self.queues:
                found.setdefault(each.pod.node, []).append(each)
        return found

    @cached_property
    def _sums(self) -> Mapping[str, Sums]:
        return {name: Sums.of(gangs.values()) for name, gangs in self.settled.items()}

    def sums(self, queue: str, without: str) -> Sums:
        """Of the jobs of a queue that were let in, but for the one that asks (its uid)."""
        gangs = self.settled.get(queue, {})
        if without in gangs:
            return Sums.of(gang for uid, gang in gangs.items() if uid != without)
        return self._sums.get(queue, NO_SUMS)

    def gang_of(self, group: PodGroup) -> Gang:
        overview = self.overview
        members = self.members.get(group.meta.uid, ())
        return gang_of_group(group, members, overview.state, overview.ownership.maker_of(group))

    @cached_property
    def total(self) -> dict[str, float]:
        """What nodes that are ready have (framework.Session, TotalResource)."""
        ready = (node.allocatable for node in self.rooms.nodes if node.is_ready)
        return plus(*(counted(each) for each in ready))

    @cached_property
    def used(self) -> dict[str, float]:
        """What pods of all schedulers hold of them."""
        free: dict[str, float] = {}
        for node in self.rooms.nodes:
            if node.is_ready:
                add_to(free, counted(self.rooms.free(node.meta.name)))
        return {key: amount - free.get(key, 0.0) for key, amount in self.total.items()}

    def asked(self, template: PodTemplate) -> dict[str, float]:
        """What one pod counts; pods are counted where nodes say how many they take."""
        found = asked_of(template)
        if PODS not in self.total:
            del found[PODS]
        return found

    def queues_of(self, more: Iterable[Gang], without: str = "") -> Queues:
        """The queues while the jobs that were let in, but for ``without``, and these are all there are."""
        jobs = sorted(more, key=lambda gang: (gang.namespace, gang.name, gang.uid))
        if "capacity" in self.config.plugins:
            return self._by_capacity(jobs, without)
        free = not_guaranteed(self.total, total_guarantee(self.queues.values()))
        attrs = {name: self._attr(queue, free) for name, queue in self.queues.items()}
        present = self._fill(attrs, jobs, without)
        if "proportion" not in self.config.plugins:
            return Queues(attrs, self.total, present)
        self._divide(attrs, present)
        return ByWeight(attrs, self.total, present)

    def _divide(self, attrs: Mapping[str, QueueAttr], present: frozenset[str]) -> None:
        claims = [
            Claim(name, attr.queue.weight, attr.guarantee, attr.real_capability, attr.request)
            for name, attr in attrs.items()
            if name in present
        ]
        for name, amounts in deserved(self.total, claims).items():
            attrs[name].deserved = amounts

    def _by_capacity(self, jobs: Sequence[Gang], without: str) -> Queues:
        hierarchy = flag(self.config, "capacity", "enableHierarchy", False)
        if hierarchy:
            attrs, broken = capacity.tree(self.queues, self.total)
        else:
            attrs, broken = capacity.flat(self.queues, self.total), None
        taken = self._fill(attrs, [gang for gang in jobs if gang.uid], without)
        present = taken | self._fill(attrs, [gang for gang in jobs if not gang.uid], None)
        if hierarchy and broken is None:
            broken = capacity.summed_up(attrs, taken)
        return ByCapacity(attrs, self.total, present, broken)

    def _attr(self, queue: VolcanoQueue, free: Amounts) -> QueueAttr:
        guarantee = counted(queue.guarantee or {})
        return QueueAttr(queue, guarantee, real_capability(queue, free))

    def _fill(
        self, attrs: Mapping[str, QueueAttr], jobs: Sequence[Gang], without: str | None
    ) -> frozenset[str]:
        """Adds what jobs hold and want to their queues, with those that were let in unless ``without`` is
        None; those of unknown queues count nowhere. Returns the queues that have jobs."""
        by_queue = grouped((gang for gang in jobs if gang.queue in attrs), lambda gang: gang.queue)
        present = set(by_queue)
        for name, attr in attrs.items():
            parts = [Sums.of(by_queue[name])] if name in by_queue else []
            if without is not None and (settled := self.sums(name, without)).jobs:
                present.add(name)
                parts.append(settled)
            for part in parts:
                attr.add(part, has_pods=PODS in self.total)
        return frozenset(present)

    def units(self, pods: Iterable[Pod]) -> Resources:
        """GPU units that pods hold."""
        total = plus(*(self.overview.units.of(pod) for pod in pods))
        return {key: round(amount) for key, amount in sorted(total.items())}
