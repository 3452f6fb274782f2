"""One session of the scheduler: all its jobs and queues, as a snapshot has them.

``enter`` puts a job among all others in the next session: whether it is let in, which others are, and the
queues then. ``running`` are the pods that Volcano may evict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gpucost.advisor.placement.free_capacity import FreeCapacity
from gpucost.advisor.volcano import queue_shares
from gpucost.advisor.volcano.enqueue_action import (
    EnqueueLine,
    EnqueueVotes,
    JobPlace,
    JobTurn,
    SortKey,
    idle_of,
    job_key,
)
from gpucost.advisor.volcano.gang import VolcanoGang, asked_of, gang_of_group
from gpucost.advisor.volcano.queue_shares import (
    QueueClaim,
    deserved,
    not_guaranteed,
    real_capability,
    total_guarantee,
)
from gpucost.advisor.volcano.queues import (
    NO_SUMS,
    CapacityQueues,
    ProportionQueues,
    QueueAttr,
    QueueRefusal,
    QueueSums,
    SessionQueues,
    reserved,
)
from gpucost.advisor.volcano.resource_amounts import (
    ResourceAmounts,
    add_to,
    at_most,
    counted,
    minus,
    plus,
)
from gpucost.advisor.volcano.rule_set import flag
from gpucost.cluster.objects.metadata import Resources
from gpucost.cluster.objects.pods import Pod, PodPhase, PodTemplate
from gpucost.cluster.objects.scheduler_config import VolcanoConfig
from gpucost.cluster.objects.state import grouped
from gpucost.cluster.objects.volcano import GroupKind, PodGroup, VolcanoQueue
from gpucost.cluster.views.node_fit import PODS
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.volcano_queues import volcano_groups

PREEMPTABLE = "volcano.sh/preemptable"


@dataclass(frozen=True)
class EvictionCandidate:
    """A running pod of another gang. ``number`` is its place among the pods of its gang."""

    pod: Pod
    gang: VolcanoGang
    asked: ResourceAmounts
    number: int


def running(
    gangs: Mapping[str, VolcanoGang],
    members: Mapping[str, Sequence[Pod]],
    asked: Callable[[PodTemplate], ResourceAmounts],
) -> Iterator[EvictionCandidate]:
    """Pods that run and may be evicted at all; ``members`` are by the uid of their gang."""
    for uid, gang in gangs.items():
        ordered = sorted(members.get(uid, ()), key=lambda pod: (pod.meta.name, pod.meta.uid))
        for number, pod in enumerate(ordered):
            if pod.is_bound and pod.phase is PodPhase.RUNNING and pod.meta.deleted_ms is None:
                said = pod.meta.annotations.get(PREEMPTABLE) or pod.meta.labels.get(PREEMPTABLE, "true")
                if said.lower() in ("true", "1", "t"):
                    yield EvictionCandidate(pod, gang, asked(pod.template), number)


class VolcanoSession:
    """A snapshot as Volcano sees it. Never changed; share it among all questions to that snapshot.

    ``rooms`` are the nodes. Jobs that are over are not here.
    """

    def __init__(
        self,
        overview: ClusterOverview,
        config: VolcanoConfig | None = None,
        rooms: FreeCapacity | None = None,
    ):
        self.overview = overview
        self.config = config or overview.state.schedulers.volcano
        self.rooms = rooms or FreeCapacity.of(overview)

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
    def gangs(self) -> Mapping[str, VolcanoGang]:
        """Of every PodGroup that is not over, by its uid."""
        return {
            uid: self.gang_of(group)
            for uid, group in sorted(self.groups.items())
            if group.phase != "Completed" and group.meta.deleted_ms is None
        }

    @cached_property
    def settled(self) -> Mapping[str, Mapping[str, VolcanoGang]]:
        """Jobs that were let in, by queue and uid: what they hold is the same for every question."""
        found: dict[str, dict[str, VolcanoGang]] = {}
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
    def empty(self) -> FreeCapacity:
        """The nodes as if no job were on them."""
        return self.rooms.emptied()

    @cached_property
    def pending(self) -> Sequence[VolcanoGang]:
        """Jobs that were not let in yet."""
        return [gang for gang in self.gangs.values() if gang.is_pending]

    @cached_property
    def unplaced(self) -> Sequence[VolcanoGang]:
        """Jobs that were let in and have pods without a node."""
        return [gang for gang in self.gangs.values() if not gang.is_pending and gang.tasks]

    @cached_property
    def has_gangs(self) -> bool:
        return "gang" in self.config.plugins

    @cached_property
    def before(self) -> SessionQueues:
        """The queues before any job is let in. To be copied."""
        return self.queues_of(self.pending)

    @cached_property
    def line(self) -> EnqueueLine:
        return EnqueueLine.of(
            self.pending, self.votes(self.before), JobPlace(self.config, self.total, self.before)
        )

    @cached_property
    def entered(self) -> Mapping[str, VolcanoGang]:
        """Jobs that are let in next, by uid: their pods exist then. Without the action all are."""
        gangs = self.line.let_in() if "enqueue" in self.config.actions else self.pending
        return {gang.uid: self.as_let_in(gang) for gang in gangs}

    @cached_property
    def _let_in(self) -> dict[str, VolcanoGang]:
        return {}

    def as_let_in(self, gang: VolcanoGang) -> VolcanoGang:
        """One of ``pending``, once it is let in."""
        found = self._let_in.get(gang.uid)
        if found is None:
            found = self._let_in[gang.uid] = replace(gang, phase="Inqueue")
        return found

    @cached_property
    def after(self) -> SessionQueues:
        """The queues once the next jobs are let in. To be copied."""
        return self.queues_of(self.entered.get(gang.uid, gang) for gang in self.pending)

    @cached_property
    def job_keys(self) -> Mapping[str, SortKey]:
        """Of jobs that wait for nodes, by uid."""
        gangs = (*self.unplaced, *self.entered.values())
        return {
            gang.uid: job_key(JobTurn.of(gang, self.has_gangs), self.config, self.total) for gang in gangs
        }

    @cached_property
    def idle(self) -> Mapping[str, float]:
        return idle_of(self.config, self.total, self.used)

    def votes(self, queues: SessionQueues, promised: ResourceAmounts | None = None) -> EnqueueVotes:
        """Of one run of enqueue, over a copy of the queues."""
        return EnqueueVotes(
            self.config, queues.copy(), self.idle, self.reserved if promised is None else promised
        )

    def joined(self, queues: SessionQueues, gang: VolcanoGang) -> SessionQueues:
        """A copy of the queues with one more job, which is let in. What queues deserve changes only where its
        own had all it asked for: otherwise nothing but its weight limits it, and that stays."""
        if gang.queue not in queues.present:
            return self.queues_of([*(self.entered.get(each.uid, each) for each in self.pending), gang])
        found, old = queues.copy(), queues.attrs[gang.queue]
        sums = QueueSums.of([gang])
        for attr in found.chain(gang.queue):
            attr.add(sums, has_pods=PODS in self.total)
        request, deserves = found.attrs[gang.queue].request, old.deserved
        more = [key for key, amount in request.items() if amount > old.request.get(key, 0.0)]
        if isinstance(found, ProportionQueues) and any(
            at_most(key, old.request.get(key, 0.0), deserves.get(key, 0.0)) for key in more
        ):
            self._divide(found.attrs, found.present)
        return found

    @cached_property
    def candidates(self) -> Mapping[str, Sequence[EvictionCandidate]]:
        """Pods that may be evicted, by node."""
        found: dict[str, list[EvictionCandidate]] = {}
        for each in running(self.gangs, self.members, self.asked):
            if each.gang.queue in self.queues:
                found.setdefault(each.pod.node, []).append(each)
        return found

    @cached_property
    def _sums(self) -> Mapping[str, QueueSums]:
        return {name: QueueSums.of(gangs.values()) for name, gangs in self.settled.items()}

    def sums(self, queue: str, without: str) -> QueueSums:
        """Of the jobs of a queue that were let in, but for the one that asks (its uid)."""
        gangs = self.settled.get(queue, {})
        if without in gangs:
            return QueueSums.of(gang for uid, gang in gangs.items() if uid != without)
        return self._sums.get(queue, NO_SUMS)

    def gang_of(self, group: PodGroup) -> VolcanoGang:
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

    def queues_of(self, more: Iterable[VolcanoGang], without: str = "") -> SessionQueues:
        """The queues while the jobs that were let in, but for ``without``, and these are all there are."""
        jobs = sorted(more, key=lambda gang: (gang.namespace, gang.name, gang.uid))
        if "capacity" in self.config.plugins:
            return self._by_capacity(jobs, without)
        free = not_guaranteed(self.total, total_guarantee(self.queues.values()))
        attrs = {name: self._attr(queue, free) for name, queue in self.queues.items()}
        present = self._fill(attrs, jobs, without)
        if "proportion" not in self.config.plugins:
            return SessionQueues(attrs, self.total, present)
        self._divide(attrs, present)
        return ProportionQueues(attrs, self.total, present)

    def _divide(self, attrs: Mapping[str, QueueAttr], present: frozenset[str]) -> None:
        claims = [
            QueueClaim(name, attr.queue.weight, attr.guarantee, attr.real_capability, attr.request)
            for name, attr in attrs.items()
            if name in present
        ]
        for name, amounts in deserved(self.total, claims).items():
            attrs[name].deserved = amounts

    def _by_capacity(self, jobs: Sequence[VolcanoGang], without: str) -> SessionQueues:
        hierarchy = flag(self.config, "capacity", "enableHierarchy", False)
        if hierarchy:
            attrs, broken = queue_shares.tree(self.queues, self.total)
        else:
            attrs, broken = queue_shares.flat(self.queues, self.total), None
        taken = self._fill(attrs, [gang for gang in jobs if gang.uid], without)
        present = taken | self._fill(attrs, [gang for gang in jobs if not gang.uid], None)
        if hierarchy and broken is None:
            broken = queue_shares.summed_up(attrs, taken)
        return CapacityQueues(attrs, self.total, present, broken)

    def _attr(self, queue: VolcanoQueue, free: ResourceAmounts) -> QueueAttr:
        guarantee = counted(queue.guarantee or {})
        return QueueAttr(queue, guarantee, real_capability(queue, free))

    def _fill(
        self, attrs: Mapping[str, QueueAttr], jobs: Sequence[VolcanoGang], without: str | None
    ) -> frozenset[str]:
        """Adds what jobs hold and want to their queues, with those that were let in unless ``without`` is
        None; those of unknown queues count nowhere. Returns the queues that have jobs."""
        by_queue = grouped((gang for gang in jobs if gang.queue in attrs), lambda gang: gang.queue)
        present = set(by_queue)
        for name, attr in attrs.items():
            parts = [QueueSums.of(by_queue[name])] if name in by_queue else []
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


@dataclass(frozen=True)
class SessionEntry:
    """``refused`` is why the job is not let in. ``asking`` is it as it is then, ``others`` are the other jobs
    that are let in with it, ``queues`` all queues then: to be copied before they are changed. Where it is
    refused, ``others`` are those let in before it, and ``queues`` are as they were before them."""

    refused: QueueRefusal | None
    asking: VolcanoGang
    others: Sequence[VolcanoGang]
    queues: SessionQueues


def queues_before(gang: VolcanoGang, world: VolcanoSession) -> SessionQueues:
    """The queues while the gang waits to be let in. To be copied."""
    if _is_known(gang, world) or (not gang.uid and gang.queue in world.before.present):
        return world.before
    return world.queues_of([*_others(gang, world), gang], gang.uid)


def enter(gang: VolcanoGang, world: VolcanoSession) -> SessionEntry:
    """Enters a job. For a new job only what depends on it is worked out again."""
    if _is_known(gang, world):
        return _of_known(gang, world)
    others = _others(gang, world)
    if "enqueue" not in world.config.actions:
        return _among(gang, world, others)
    before = queues_before(gang, world)
    own = world.gangs.get(gang.uid)
    votes = world.votes(before, world.reserved if own is None else minus(world.reserved, reserved(own)))
    place_of = JobPlace(world.config, world.total, before)
    line = world.line
    if before is not world.before:
        line = EnqueueLine.of(others, world.votes(before, votes.promised), place_of)
    if not gang.is_pending:
        return _among(gang, world, line.let_in())
    refused, let_in = line.with_one(gang, place_of(gang), votes)
    if refused is not None:
        return SessionEntry(refused, gang, let_in, before)
    return _among(gang, world, let_in)


def _of_known(gang: VolcanoGang, world: VolcanoSession) -> SessionEntry:
    entered: Mapping[str, VolcanoGang] = world.entered
    if gang.is_pending and gang.uid not in entered:
        votes = world.votes(world.before)
        let_in = world.line.before(gang.uid)
        for each in let_in:
            votes.let_in(each)
        return SessionEntry(votes.ask(gang), gang, let_in, world.before)
    others = [each for uid, each in entered.items() if uid != gang.uid]
    return SessionEntry(None, entered.get(gang.uid, gang), others, world.after)


def _among(gang: VolcanoGang, world: VolcanoSession, let_in: Sequence[VolcanoGang]) -> SessionEntry:
    asking = replace(gang, phase="Inqueue") if gang.is_pending else gang
    others = [world.as_let_in(each) for each in let_in]
    now = {each.uid: each for each in others}
    if not gang.uid and now.keys() == world.entered.keys():
        return SessionEntry(None, asking, others, world.joined(world.after, asking))
    waiting = [now.get(each.uid, each) for each in _others(gang, world)]
    return SessionEntry(None, asking, others, world.queues_of([*waiting, asking], gang.uid))


def _is_known(gang: VolcanoGang, world: VolcanoSession) -> bool:
    """Whether it is one of the snapshot, as it is there."""
    return bool(gang.uid) and world.gangs.get(gang.uid) is gang


def _others(gang: VolcanoGang, world: VolcanoSession) -> list[VolcanoGang]:
    return [each for each in world.pending if not gang.uid or each.uid != gang.uid]
