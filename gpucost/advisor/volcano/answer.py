"""One answer for one gang: a walk through Volcano's session up to the first thing that holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpucost.advisor.model.answers import (
    STARTS_WITH,
    AdviceEvidence,
    AdviceSubject,
    PodSetAnswer,
    PreemptionVictim,
    SchedulingDecision,
    SchedulingLayer,
)
from gpucost.advisor.placement.repaired_nodes import (
    NODES_UNUSABLE,
    repaired,
    repairs_in,
    until,
    unusable,
)
from gpucost.advisor.volcano.allocation import (
    MOST_KINDS,
    AllocateAction,
    GangAttempt,
    domains_for,
    gangs_ahead,
    is_asked,
    place_gang,
)
from gpucost.advisor.volcano.enqueue_action import JobTurn
from gpucost.advisor.volcano.eviction import PREEMPT, RECLAIM, EvictionAction
from gpucost.advisor.volcano.gang import VolcanoGang
from gpucost.advisor.volcano.hypernodes import HyperNodeDomains
from gpucost.advisor.volcano.queues import ProportionQueues, QueueRefusal, SessionQueues
from gpucost.advisor.volcano.refusals import (
    ImpossibleGang,
    compared,
    evidence_of,
    impossible,
    left_of,
    named,
    refused_says,
)
from gpucost.advisor.volcano.resource_amounts import ResourceAmounts, at_most, plus
from gpucost.advisor.volcano.rule_set import RuleGaps, gaps, rules_named
from gpucost.advisor.volcano.session import (
    EvictionCandidate,
    SessionEntry,
    VolcanoSession,
    enter,
    queues_before,
)
from gpucost.cluster.views.node_fit import MOST_RULES
from gpucost.domain.text import counted

_SOME_NODES = 3
SCORES = "which of the nodes that fit is chosen follows scores that are not restated"


@dataclass(frozen=True)
class VolcanoAnswer:
    """What Volcano does with a gang if nothing else changes.

    ``pod_sets`` say how many pods of each task get which nodes: as many as make the gang complete; those
    beyond follow as room allows. ``left`` is what of its queue is free for it, ``ahead`` how many jobs of its
    queue stand before it, ``action`` the action that would place it (allocate, preempt, reclaim).
    """

    decision: SchedulingDecision
    layer: SchedulingLayer
    reason: str
    says: str
    why: tuple[str, ...]
    queue: str
    rules: str
    evidence: tuple[AdviceEvidence, ...] = ()
    victims: tuple[PreemptionVictim, ...] = ()
    left: Mapping[str, int] | None = None
    ahead: int | None = None
    pod_sets: tuple[PodSetAnswer, ...] = ()
    action: str = ""
    assumptions: tuple[str, ...] = ()
    drift: tuple[str, ...] = ()
    until: str = ""
    """What it waits for where that is not the end of other jobs (``nodes are ready``)."""
    partly: str = ""
    """Where not all of its pods start at once: with how many (``starts with 1 of 3 pods``)."""


def volcano_answer(gang: VolcanoGang, world: VolcanoSession) -> VolcanoAnswer:
    """What happens to a gang that is submitted now, or that waits. Never raises for what it can hold."""
    walk = _Walk(gang, world)
    return walk.in_doubt(walk.answer())


class _Walk:
    """The layers in order; each gives an answer or leaves it to the next."""

    def __init__(self, gang: VolcanoGang, world: VolcanoSession) -> None:
        self.gang, self.world, self.config = gang, world, world.config
        self.gaps: RuleGaps = gaps(world.config, gang)
        self.assumptions: list[str] = [SCORES]
        self.why: list[str] = []
        self.left: Mapping[str, int] | None = None
        self.ahead: int | None = None

    def answer(self) -> VolcanoAnswer:
        plain = self._at_a_glance()
        if plain is not None:
            return plain
        gang = self.gang
        self._say_what_is_assumed()
        if not is_asked(gang):
            says = f"its pods are of more than {MOST_KINDS} kinds, or have more than {MOST_RULES} rules"
            return self._of(
                SchedulingDecision.UNKNOWN,
                SchedulingLayer.PLACEMENT,
                "NotEvaluated",
                f"{says}: not evaluated",
            )
        domains = self._domains()
        never = impossible(gang, self.world, queues_before(gang, self.world), domains)
        if never is not None:
            return self._until_nodes(never) or self._of(
                SchedulingDecision.NEVER, never.layer, never.reason, never.says, list(never.evidence)
            )
        if "enqueue" not in self.config.actions:
            self.why.append("the action enqueue is not configured: every job counts as let in")
        entry = enter(gang, self.world)
        if entry.refused is not None:
            if {PREEMPT, RECLAIM} & set(self.config.actions):
                self.why.append("a job that is not let in cannot preempt or reclaim either")
            return self._refused(entry.refused)
        return self._allocate(entry, domains)

    def _until_nodes(self, never: ImpossibleGang) -> VolcanoAnswer | None:
        """Where it is impossible only while some nodes take no pods: Volcano counts what ready nodes have."""
        gang, world, rooms = self.gang, self.world, self.world.rooms
        nodes = unusable(rooms)
        whole = VolcanoSession(world.overview, self.config, repaired(rooms, nodes)) if nodes else world
        if whole is world or impossible(gang, whole, queues_before(gang, whole), domains_for(gang, whole)):
            return None
        some = ", ".join(sorted(nodes)[:_SOME_NODES]) + (", …" if len(nodes) > _SOME_NODES else "")
        one = "node takes" if len(nodes) == 1 else "nodes take"
        says = f"{len(nodes):,} {one} no pods ({some}), and the others are not enough: {never.says}"
        facts = list(repairs_in(world.overview.state, nodes, {}))
        found = self._of(SchedulingDecision.WAITS, SchedulingLayer.PLACEMENT, NODES_UNUSABLE, says, facts)
        return replace(found, until=until(nodes.values()))

    def _at_a_glance(self) -> VolcanoAnswer | None:
        """The answers that need no other jobs."""
        gang, state = self.gang, self.world.overview.state
        if gang.queue not in self.world.queues:
            return self._no_queue(state.is_unread("volcano_queues"))
        if gang.is_group_missing:
            return self._no_group()
        if gang.size < max(gang.min_member, 1):
            return self._too_few()
        if not any(task.count for task in gang.tasks):
            return self._of(
                SchedulingDecision.NOW, SchedulingLayer.NONE, "Placed", "all of its pods have nodes"
            )
        return None

    def _say_what_is_assumed(self) -> None:
        gang = self.gang
        if gang.min_member < gang.size:
            self.why.append(
                f"it starts with {gang.min_member:,} of its {counted(gang.size, 'pod')}, and those hold GPUs "
                f"while the rest waits ({gang.about}, {gang.minimum_field}: {gang.min_member})"
            )
        if not self.config.is_read:
            self.assumptions.append("the scheduler's configuration was not read: that of its chart")
        if not self.world.queues[gang.queue].state:
            self.assumptions.append(f"nothing says whether queue {gang.queue} is open: it is taken to be")

    def _allocate(self, entry: SessionEntry, domains: HyperNodeDomains) -> VolcanoAnswer:
        world, asking = self.world, entry.asking
        if not world.has_gangs:
            self.why.append("the plugin gang is not configured: its pods start one by one")
        queues, turn = entry.queues.copy(), JobTurn.of(asking, world.has_gangs)
        unplaced = [each for each in world.unplaced if each.uid != asking.uid]
        turns = [JobTurn.of(each, world.has_gangs) for each in (*unplaced, *entry.others)]
        self.ahead = len(gangs_ahead(turn, turns, world))
        self._say_left(queues)
        run = AllocateAction(world, queues, world.rooms.copy(), [*turns, turn])
        tried = run.run(turn)
        if run.unasked:
            self.assumptions.append(f"not placed, as it is not evaluated: {named(run.unasked)}")
        if tried is not None and tried.placed:
            return self._placed(tried.nodes, "allocate", tried.domain)
        if run.before:
            self.why.append(f"before it {named([each.gang.name for each in run.before])} get nodes")
        for action in (each for each in self.config.actions if each in (PREEMPT, RECLAIM)):
            found = self._evict(action, entry, domains)
            if found is not None:
                return found
        if not {PREEMPT, RECLAIM} & set(self.config.actions):
            self.why.append("neither preempt nor reclaim is configured: nobody is evicted for it")
        return self._waits(run, tried, entry, domains)

    def _evict(self, action: str, entry: SessionEntry, domains: HyperNodeDomains) -> VolcanoAnswer | None:
        if domains.allowed is not None:
            self.why.append(f"{action} for a hard networkTopology is not followed")
            return None
        turn = JobTurn.of(entry.asking, self.world.has_gangs)
        run = EvictionAction(action, self.world, entry.queues.copy(), self.world.rooms.copy(), turn)
        if not run.run():
            self.why.append(f"{action} finds no pods whose leaving would make room for all of it")
            return None
        self.assumptions.append("nobody else preempts or reclaims before it")
        answer = self._placed(run.nodes, action, "")
        victims = self._victims(action, run.chosen)
        pods, jobs = counted(len(run.chosen), "pod"), counted(len(victims), "job")
        says = f"runs once {pods} of {jobs} have left ({action})"
        if not victims:
            says = answer.says
        why = (*answer.why, *run.notes)
        return replace(answer, victims=victims, says=says, why=why, reason=action.capitalize())

    def _victims(self, action: str, chosen: list[EvictionCandidate]) -> tuple[PreemptionVictim, ...]:
        by_gang: dict[str, list[EvictionCandidate]] = {}
        for each in chosen:
            by_gang.setdefault(each.gang.uid, []).append(each)
        found = []
        for pods in by_gang.values():
            gang, job = pods[0].gang, self.world.overview.ownership.of(pods[0].pod).job
            subject = AdviceSubject(job.kind.value, gang.namespace, job.name, job.uid)
            units = self.world.units(each.pod for each in pods)
            found.append(PreemptionVictim(subject, gang.queue, gang.priority, action, units))
        return tuple(found)

    def _waits(
        self, run: AllocateAction, tried: GangAttempt | None, entry: SessionEntry, domains: HyperNodeDomains
    ) -> VolcanoAnswer:
        asking = entry.asking
        if run.skipped:
            says = f"queue {run.skipped} has all it deserves, so its turn is skipped"
            weight = str(self.world.queues[run.skipped].weight)
            found = AdviceEvidence(
                f"queue/{run.skipped}", "spec.weight", weight, "what it deserves goes by weight"
            )
            return self._of(SchedulingDecision.WAITS, SchedulingLayer.QUOTA, "QueueOverused", says, [found])
        refused = None if tried is None else tried.refused
        if refused is not None and not (run.before and self._is_the_cluster(refused)):
            return self._refused(refused)
        wanted = asking.min_member - asking.ready_count
        says = f"the nodes have no room for the {counted(wanted, 'pod')} that it needs at once"
        if wanted < 1:
            rest = counted(sum(task.count for task in asking.tasks), "pod")
            says = f"the nodes have no room for its other {rest}, beyond its minimum"
        reason = "NotEnoughResources"
        if run.before and self._fits_alone(entry, domains):
            says, reason = (
                f"jobs before it take the room: {named([t.gang.name for t in run.before])}",
                "Behind",
            )
        meaning = "so many pods start at once or none does"
        if asking.min_member < asking.size:
            meaning = f"below its {counted(asking.size, 'pod')}: it starts with part of them"
        found = self._minimum(meaning)
        return self._of(SchedulingDecision.WAITS, SchedulingLayer.PLACEMENT, reason, says, [found])

    def _fits_alone(self, entry: SessionEntry, domains: HyperNodeDomains) -> bool:
        turn = JobTurn.of(entry.asking, self.world.has_gangs)
        return place_gang(self.world, entry.queues.copy(), self.world.rooms.copy(), turn, domains).placed

    def _placed(self, nodes: Mapping[int, Mapping[str, int]], action: str, domain: str) -> VolcanoAnswer:
        tasks = self.gang.tasks
        sets = tuple(
            PodSetAnswer(tasks[at].name, sum(each.values()), {}, dict(sorted(each.items())))
            for at, each in sorted(nodes.items())
        )
        placed = sum(each.count for each in sets)
        later = sum(task.count for task in tasks) - placed
        if later:
            self.assumptions.append(
                f"{counted(later, 'pod')} beyond its minimum follow{'s' if later == 1 else ''} as room allows"
            )
        where = f"in HyperNode {domain}" if domain else ""
        says = f"the other {later:,} follow as room allows" if later else where
        partly = f"{STARTS_WITH}{placed:,} of {counted(placed + later, 'pod')}" if later else ""
        answer = self._of(SchedulingDecision.NOW, SchedulingLayer.NONE, "Fits", says)
        return replace(answer, pod_sets=sets, action=action, partly=partly)

    def _domains(self) -> HyperNodeDomains:
        found = domains_for(self.gang, self.world)
        self.assumptions += found.notes
        return found

    def _say_left(self, queues: SessionQueues) -> None:
        attr = queues.attrs[self.gang.queue]
        asked = plus(*(self.world.asked(task.template) for task in self.gang.tasks))
        limits: ResourceAmounts = (
            attr.deserved if isinstance(queues, ProportionQueues) else attr.real_capability
        )
        if type(queues) is not SessionQueues:
            self.left = left_of(limits, attr.allocated, asked)

    def _no_queue(self, is_unread: bool) -> VolcanoAnswer:
        name = self.gang.queue
        found = [AdviceEvidence(f"queue/{name}", "metadata.name", "", "there is no such queue")]
        if is_unread:
            says = f"Volcano's queues could not be read, so nobody knows queue {name}"
            return self._of(SchedulingDecision.UNKNOWN, SchedulingLayer.QUOTA, "QueuesUnread", says)
        return self._of(
            SchedulingDecision.NEVER,
            SchedulingLayer.QUOTA,
            "QueueMissing",
            f"there is no queue {name}",
            found,
        )

    def _no_group(self) -> VolcanoAnswer:
        about, name = self.gang.about, self.gang.group
        if self.world.overview.state.is_unread("pod_groups"):
            says = f"PodGroups could not be read, so nobody knows PodGroup {name}"
            return self._of(SchedulingDecision.UNKNOWN, SchedulingLayer.PLACEMENT, "PodGroupsUnread", says)
        says = f"its pods name PodGroup {name}, which is neither in the file nor in the cluster"
        found = AdviceEvidence(
            about, "metadata.name", "", "Volcano leaves pods alone until their PodGroup is there"
        )
        return self._of(SchedulingDecision.NEVER, SchedulingLayer.PLACEMENT, "PodGroupMissing", says, [found])

    def _minimum(self, meaning: str) -> AdviceEvidence:
        return AdviceEvidence(self.gang.about, self.gang.minimum_field, str(self.gang.min_member), meaning)

    def _too_few(self) -> VolcanoAnswer:
        gang = self.gang
        says = f"it needs {counted(gang.min_member, 'pod')} at once and has {gang.size}"
        found = self._minimum(f"more than its {counted(gang.size, 'pod')}")
        decision = SchedulingDecision.WAITS if gang.uid else SchedulingDecision.NEVER
        return self._of(decision, SchedulingLayer.PLACEMENT, "NotEnoughTasks", says, [found])

    def _refused(self, refusal: QueueRefusal) -> VolcanoAnswer:
        """The answer for a queue's refusal. A queue that is limited only by what the cluster has, and by
        nothing of its own, has enough quota."""
        says, evidence = refused_says(refusal, self.gang), self._evidence(refusal)
        if refusal.reason == "Overcommit":
            return self._of(
                SchedulingDecision.WAITS, SchedulingLayer.PLACEMENT, refusal.reason, says, evidence
            )
        if self._is_the_cluster(refusal):
            says = f"the cluster has no more: {compared(refusal)}"
            return self._of(
                SchedulingDecision.WAITS, SchedulingLayer.PLACEMENT, "NotEnoughResources", says, evidence
            )
        return self._of(SchedulingDecision.WAITS, SchedulingLayer.QUOTA, refusal.reason, says, evidence)

    def _is_the_cluster(self, refusal: QueueRefusal) -> bool:
        """Whether the limit is all that the cluster has."""
        total, limit = self.world.total, refusal.limit
        return bool(refusal.resources) and all(
            at_most(key, total.get(key, 0.0), limit.get(key, 0.0)) for key in refusal.resources
        )

    def _evidence(self, refusal: QueueRefusal) -> list[AdviceEvidence]:
        return evidence_of(refusal, self.world.queues, self.config)

    def _of(
        self,
        decision: SchedulingDecision,
        layer: SchedulingLayer,
        reason: str,
        says: str,
        evidence: list[AdviceEvidence] | None = None,
    ) -> VolcanoAnswer:
        return VolcanoAnswer(
            decision,
            layer,
            reason,
            says,
            tuple(self.why),
            self.gang.queue,
            rules_named(self.config),
            tuple(evidence or ()),
            left=self.left,
            ahead=self.ahead,
            assumptions=tuple(self.assumptions),
            drift=self.gaps.drift,
        )

    def in_doubt(self, answer: VolcanoAnswer) -> VolcanoAnswer:
        """Unknown where a rule that is not followed could change it; the rules' own answer
        becomes a reason."""
        doubts = (
            self.gaps.doubts if answer.decision in (SchedulingDecision.NOW, SchedulingDecision.WAITS) else ()
        )
        if answer.decision is SchedulingDecision.NOW and answer.reason != "Placed":
            doubts += self.gaps.vetoes
        if not doubts or answer.reason == "Placed":
            return answer
        why = (*doubts[1:], f"by the rules that are followed: {answer.says}", *answer.why)
        return replace(
            answer,
            decision=SchedulingDecision.UNKNOWN,
            reason="NotFollowed",
            says=doubts[0],
            why=why,
            victims=(),
        )
