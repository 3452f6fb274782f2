"""Kueue over simulated time: cycles of ``gpucost.advisor.kueue`` with what Kueue remembers between them.

Rules: kueue v0.19.2, pkg/scheduler/scheduler.go (schedule, lastAssignmentOutdated, requeueAndUpdate),
pkg/cache/queue (manager.go, inadmissible_workloads.go), pkg/cache/scheduler/clusterqueue.go
(AllocatableResourceGeneration).

What one state cannot tell, and a history decides: who is parked, who is the preemptor of a queue, where the
scan of flavors goes on (it is kept over one cycle, and longer while no workload of the own queue left its
cache), and when parked workloads of a tree are looked at again.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpucost.advisor.kueue.cycle import (
    STRICT,
    AdmissionCycle,
    NominatedHead,
    ProcessedNominee,
    gets_nothing,
    nominate,
)
from gpucost.advisor.kueue.flavor_assigner import (
    FlavorAssignment,
    FlavorScan,
    PlainRequest,
    plain_request,
)
from gpucost.advisor.kueue.preemption import FAIR_SHARING, IN_QUEUE, RECLAMATION, WHILE_BORROWING
from gpucost.advisor.kueue.requests import QuotaRequest
from gpucost.advisor.kueue.snapshot import STOPPED, KueueSnapshot, QuotaMember
from gpucost.advisor.model.cycle_results import CycleOutcome, PodSetFlavors
from gpucost.advisor.replay.pending_lines import PendingLine
from gpucost.advisor.replay.replay_timeline import CycleEffects, StoryEviction
from gpucost.cluster.objects.kueue import ClusterQueue, Cohort
from gpucost.cluster.objects.metadata import StatusCondition
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.cluster.objects.state import ClusterState

DRAIN = "HoldAndDrain"
QUEUE_STOPPED = "ClusterQueueStopped"
SETTING_BY_REASON = {
    IN_QUEUE: "withinClusterQueue",
    RECLAMATION: "reclaimWithinCohort",
    FAIR_SHARING: "reclaimWithinCohort",
    WHILE_BORROWING: "borrowWithinCohort",
}
"""The field below ``spec.preemption`` of the preemptor's ClusterQueue that allowed it."""


@dataclass(frozen=True, slots=True)
class ReplayTimings:
    """``leaves_ms``: from an eviction until its pods are gone and quota is back. ``batch_ms``: from the first
    event in a tree until its parked workloads are looked at again; 1 s in Kueue."""

    leaves_ms: int = 0
    batch_ms: int = 1_000


KueueChange = ClusterQueue | Cohort | KueueConfig
"""Something as it is from now on."""


class _Progress(NamedTuple):
    """Of a scan: in which cycle, with which generation of the queue, and where it goes on."""

    cycle: int
    generation: int
    scan: FlavorScan


_Tree = tuple[bool, str]
"""Whether it is a cohort, and the name of its root."""
_QueueRest = tuple[object, ...]
_NOTHING = FlavorAssignment()
"""Of an ask that gets nothing now, and is nobody's concern but its own."""
_FROM_THE_FIRST: FlavorScan = {}


class KueueReplay:
    """A ``ReplayDiscipline`` whose asks are ``QuotaRequest`` and whose changes are ``KueueChange``.
    ``state`` has queues, cohorts and flavors; its workloads are ignored."""

    def __init__(self, state: ClusterState, config: KueueConfig, timings: ReplayTimings) -> None:
        self._config, self._timings = config, timings
        queues = {uid: _told_active(each) for uid, each in state.cluster_queues.items()}
        self._state = replace(state, workloads={}, cluster_queues=queues)
        self._snapshot = KueueSnapshot(self._state, config)
        self._lines = {name: PendingLine() for name in self._snapshot.queues}
        self._preemptors = dict.fromkeys(self._lines, "")
        self._generations = dict.fromkeys(self._lines, 1)
        self._progress: dict[str, _Progress] = {}
        self._asks: dict[str, QuotaRequest] = {}
        self._drained: set[str] = set()
        self._due: dict[_Tree, int] = {}
        self._nominees: dict[_Tree, dict[tuple[str, tuple[object, ...]], NominatedHead]] = {}
        self._plain: dict[str, PlainRequest | None] = {}
        self._plain_in = self._snapshot
        self._number = 0
        self._gave: dict[tuple[object, ...], tuple[PodSetFlavors, ...]] = {}
        self._trees: dict[str, _Tree] = {}
        self._members: dict[_Tree, list[str]] = {}
        self._rests: dict[str, _QueueRest] = {}
        self._follow_trees()
        self._seen: set[tuple[_QueueRest, ...]] = set()

    @property
    def wake_ms(self) -> int | None:
        return min(self._due.values(), default=None)

    @property
    def leaves_ms(self) -> int:
        return self._timings.leaves_ms

    def begin(self, member: QuotaMember, ask: QuotaRequest) -> None:
        """It holds quota from the first on."""
        self._asks[ask.uid] = ask
        self._put(member)

    def arrive(self, _now_ms: int, uid: str, ask: QuotaRequest, /) -> None:
        self._asks[uid] = ask
        self._lines[ask.queue].push(ask)
        self._rests.pop(ask.queue, None)
        self._seen.clear()

    def end(self, now_ms: int, uid: str, /) -> None:
        self._leave(now_ms, uid)
        del self._asks[uid]
        self._plain.pop(uid, None)

    def release(self, now_ms: int, uid: str, /) -> None:
        ask = self._asks[uid]
        self._leave(now_ms, uid)
        line = self._lines[ask.queue]
        is_drained = uid in self._drained
        self._drained.discard(uid)
        if is_drained and self._snapshot.queues[ask.queue].spec.stop_policy in STOPPED:
            line.bar(ask)
        else:
            line.push(ask)
        self._rests.pop(ask.queue, None)

    def refuse(self, uid: str) -> bool:
        """Takes back what the last cycle admitted, as no nodes have room for it: it is parked until its tree
        is looked at again (``ask_again``). False in a StrictFIFO queue, whose head is never parked: it keeps
        its quota."""
        ask = self._asks[uid]
        if self._snapshot.queues[ask.queue].spec.strategy == STRICT:
            return False
        self._snapshot.remove(self._snapshot.queues[ask.queue].members.pop(uid))
        self._generations[ask.queue] += 1
        self._forget(ask.queue)
        line = self._lines[ask.queue]
        line.push(ask)
        line.park(ask)
        self._rests.pop(ask.queue, None)
        return True

    def ask_again(self, now_ms: int, uid: str) -> None:
        """The parked workloads of its tree may find room now."""
        self._ask_again(now_ms, self._asks[uid].queue)

    def change(self, now_ms: int, change: KueueChange, /) -> Mapping[str, StoryEviction]:
        """Queues that are there, cohorts, or the configuration, as they are from now on; workloads keep what
        they hold."""
        if not isinstance(change, ClusterQueue):
            self._change_all(now_ms, change)
            return {}
        name = change.name
        old = self._snapshot.queues[name].spec
        queues = {
            uid: _told_active(change) if each.name == name else each
            for uid, each in self._state.cluster_queues.items()
        }
        self._rebuild(replace(self._state, cluster_queues=queues))
        was_in = self._trees[name]
        self._follow_trees()
        if (old.groups, old.quotas, old.cohort) != (change.groups, change.quotas, change.cohort):
            trees = {was_in, self._trees[name]}
            for each, tree in self._trees.items():
                if tree in trees:
                    self._generations[each] += 1
        self._ask_again(now_ms, name)
        self._nominees.clear()
        self._seen.clear()
        if change.stop_policy not in STOPPED:
            # Their Workloads say at once that they may be queued again (condition Requeued).
            self._lines[name].lift_bar()
            self._rests.pop(name, None)
        if change.stop_policy != DRAIN:
            return {}
        told = [each for each in self._snapshot.queues[name].members.values() if not each.is_evicted]
        for member in told:
            self._drained.add(member.uid)
            self._mark(member)
        return {each.uid: StoryEviction(now_ms, QUEUE_STOPPED) for each in told}

    def _change_all(self, now_ms: int, change: Cohort | KueueConfig) -> None:
        """Every tree is looked at again: a cohort that moves takes others with it."""
        state = self._state
        if isinstance(change, Cohort):
            others = {uid: each for uid, each in state.cohorts.items() if each.name != change.name}
            state = replace(state, cohorts={**others, change.meta.uid: change})
        else:
            self._config = change
        self._rebuild(state)
        self._follow_trees()
        for name in self._trees:
            self._generations[name] += 1
            self._ask_again(now_ms, name)
        self._nominees.clear()
        self._rests.clear()
        self._seen.clear()

    def _rebuild(self, state: ClusterState) -> None:
        before, self._state = self._snapshot, state
        self._snapshot = KueueSnapshot(state, self._config)
        for queue in before.queues.values():
            for member in queue.members.values():
                self._put(member)

    def wake(self, now_ms: int, /) -> None:
        for tree in [tree for tree, due_ms in self._due.items() if due_ms <= now_ms]:
            del self._due[tree]
            for name in self._members.get(tree, ()):
                self._lines[name].wake()
                self._rests.pop(name, None)
        self._seen.clear()

    def _given(self, flavors: tuple[PodSetFlavors, ...]) -> tuple[PodSetFlavors, ...]:
        """The same, once for all that are given it: stories of a month keep each of them."""
        key = tuple((each.name, each.count, tuple(each.flavors.items())) for each in flavors)
        return self._gave.setdefault(key, flavors)

    def cycle(self, now_ms: int, /) -> CycleEffects:
        heads = [
            head
            for name, line in self._lines.items()
            if line.waiting and self._snapshot.queues[name].is_active and (head := line.head()) is not None
        ]
        if not heads:
            return CycleEffects({}, {}, is_at_rest=True, was_run=False)
        self._number += 1
        tried, is_moved = self._tried(heads)
        asks = [each.ask for each in tried]
        done = (
            AdmissionCycle(self._snapshot).run(asks, {each.ask.uid: each for each in tried}) if tried else []
        )
        generations = {each.queue: self._generations[each.queue] for each in asks}
        admitted: dict[str, object] = {}
        evicted: dict[str, StoryEviction] = {}
        for each in done:
            ask, line = each.nominee.ask, self._lines[each.nominee.queue.name]
            if each.outcome is CycleOutcome.ADMITTED:
                admitted[ask.uid] = self._given(each.nominee.assignment.assigned)
                continue
            if each.outcome is CycleOutcome.PREEMPTING:
                evicted.update(self._preempted(now_ms, each.nominee))
                continue
            scan = each.nominee.assignment.next_flavors
            self._progress[ask.uid] = _Progress(self._number, generations[ask.queue], scan)
            if each.is_parked:
                line.park(ask)
                is_moved = True
        for uid in sorted(evicted):
            self._mark(self._snapshot.queues[self._asks[uid].queue].members[uid])
        for each in done:
            if each.outcome is CycleOutcome.ADMITTED:
                self._start(now_ms, each)
        if admitted or evicted:
            self._seen.clear()
            return CycleEffects(admitted, evicted, is_at_rest=False)
        found = self._rests.get
        rest = tuple([found(name) or self._rest_of(name) for name in self._lines])
        is_at_rest = not is_moved and rest in self._seen
        self._seen.add(rest)
        return CycleEffects(admitted, evicted, is_at_rest)

    def _tried(self, heads: list[QuotaRequest]) -> tuple[list[NominatedHead], bool]:
        """Heads that a cycle has to decide about; and whether one of the others is parked now."""
        tried: list[NominatedHead] = []
        is_moved = False
        for ask in heads:
            self._rests.pop(ask.queue, None)
            nominee = self._nominated(ask)
            if nominee.assignment is not _NOTHING:
                tried.append(nominee)
                continue
            self._progress[ask.uid] = _Progress(self._number, self._generations[ask.queue], _FROM_THE_FIRST)
            if nominee.queue.spec.strategy != STRICT:
                self._lines[ask.queue].park(ask)
                is_moved = True
        return tried, is_moved

    def _preempted(self, now_ms: int, nominee: NominatedHead) -> dict[str, StoryEviction]:
        """Who is told to leave for it, save those who were before; it is first in its queue until they have
        left."""
        ask = nominee.ask
        self._progress.pop(ask.uid, None)
        self._preemptors[ask.queue] = ask.uid
        self._lines[ask.queue].sticky = ask.uid if nominee.queue.spec.strategy != STRICT else ""
        return {
            each.member.uid: StoryEviction(now_ms, each.reason, ask.uid)
            for each in nominee.targets
            if not each.member.is_evicted
        }

    def state_key(self, now_ms: int, /) -> Hashable | None:
        queues = []
        known = [each for queue in self._snapshot.queues.values() for each in queue.members.values()]
        places = {at_ms: at for at, at_ms in enumerate(sorted({each.reserved_ms for each in known}))}
        for name, line in self._lines.items():
            members = self._snapshot.queues[name].members.values()
            held = frozenset(
                (each.uid, each.is_evicted, places[each.reserved_ms], *each.usage.items()) for each in members
            )
            queues.append((*line.counts, line.sticky, line.parked_shapes, self._preemptors[name], held))
        scans = frozenset(
            (
                uid,
                min(2, self._number - each.cycle),
                self._generations[self._asks[uid].queue] > each.generation,
                *sorted(each.scan.items()),
            )
            for uid, each in self._progress.items()
        )
        due = tuple((tree, due_ms - now_ms) for tree, due_ms in sorted(self._due.items()))
        return tuple(queues), scans, due, frozenset(self._drained)

    def pass_over(self, span_ms: int, /) -> None:
        self._due = {tree: due_ms + span_ms for tree, due_ms in self._due.items()}

    def _nominated(self, ask: QuotaRequest) -> NominatedHead:
        progress = self._progress.get(ask.uid)
        if progress is not None and self._is_outdated(ask, progress):
            del self._progress[ask.uid]
            progress = None
        scan: FlavorScan = {} if progress is None else progress.scan
        key = ask.uid, tuple(sorted(scan.items())) if scan else ()
        known = self._nominees.setdefault(self._trees[ask.queue], {})
        found = known.get(key)
        if found is None:
            if not scan and self._gets_nothing(ask):
                found = NominatedHead(ask, self._snapshot.queues[ask.queue], _NOTHING, [])
            else:
                found = nominate(self._snapshot, ask, scan=scan)
            known[key] = found
        return found

    def _gets_nothing(self, ask: QuotaRequest) -> bool:
        if self._plain_in is not self._snapshot:
            self._plain_in = self._snapshot
            self._plain.clear()
        if ask.uid not in self._plain:
            queue = self._snapshot.queues[ask.queue]
            self._plain[ask.uid] = plain_request(self._snapshot, queue, ask)
        plain = self._plain[ask.uid]
        return plain is not None and gets_nothing(self._snapshot, ask, plain)

    def _is_outdated(self, ask: QuotaRequest, progress: _Progress) -> bool:
        """In the cycle that runs now."""
        return self._number - progress.cycle > 1 and self._generations[ask.queue] > progress.generation

    def _rest_of(self, name: str) -> _QueueRest:
        """Of a queue that offers no head it stays, until something happens to it."""
        found = self._rest(name)
        if not self._lines[name].waiting:
            self._rests[name] = found
        return found

    def _rest(self, name: str) -> _QueueRest:
        """What decides whether the next cycle could be another one."""
        line = self._lines[name]
        head = line.head()
        uid = "" if head is None else head.uid
        progress = self._progress.get(uid)
        scan = None  # as the next cycle finds it; a head that was not tried is another than one that was
        if progress is not None:
            is_next = self._number == progress.cycle
            if is_next or self._generations[name] <= progress.generation:
                scan = tuple(sorted(progress.scan.items()))
        return *line.counts, uid, self._preemptors[name], scan

    def _start(self, now_ms: int, done: ProcessedNominee) -> None:
        ask = done.nominee.ask
        self._lines[ask.queue].take(ask.uid)
        self._progress.pop(ask.uid, None)
        if self._preemptors[ask.queue] == ask.uid:
            self._preemptors[ask.queue] = ""
        usage = dict(done.nominee.assignment.usage)
        self._put(QuotaMember(ask.uid, ask.queue, ask.priority, ask.queued_ms, now_ms, False, usage))
        self._generations[ask.queue] += 1
        self._forget(ask.queue)

    def _mark(self, member: QuotaMember) -> None:
        """It is told to leave, and holds its quota until then."""
        self._snapshot.queues[member.queue].members[member.uid] = replace(member, is_evicted=True)
        self._generations[member.queue] += 1
        self._forget(member.queue)

    def _leave(self, now_ms: int, uid: str) -> None:
        queue = self._asks[uid].queue
        self._snapshot.remove(self._snapshot.queues[queue].members.pop(uid))
        self._generations[queue] += 1
        self._ask_again(now_ms, queue)
        self._forget(queue)

    def _put(self, member: QuotaMember) -> None:
        self._snapshot.queues[member.queue].members[member.uid] = member
        self._snapshot.put(member)

    def _ask_again(self, now_ms: int, queue: str) -> None:
        """Parked workloads of its tree are looked at once the batch is over, which the first event began."""
        self._due.setdefault(self._trees[queue], now_ms + self._timings.batch_ms)

    def _forget(self, queue: str) -> None:
        """What was worked out from usage of its tree, which has changed."""
        self._nominees.pop(self._trees[queue], None)
        self._seen.clear()

    def _follow_trees(self) -> None:
        self._members.clear()
        for name, queue in self._snapshot.queues.items():
            root = queue.node.path[-1]
            tree = self._trees[name] = not root.is_queue, root.name
            self._members.setdefault(tree, []).append(name)


def _told_active(queue: ClusterQueue) -> ClusterQueue:
    """Kueue says of a queue that is stopped that it is not active, and the height of its cohort leaves it
    out."""
    if queue.stop_policy not in STOPPED:
        return queue
    said = StatusCondition(False, "Stopped", "", 0)
    return replace(queue, conditions={**queue.conditions, "Active": said})
