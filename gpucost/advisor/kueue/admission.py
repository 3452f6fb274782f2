"""What becomes of a workload that asks for quota, now (``KueueView``) and over time (``KueueDiscipline``).

``KueueView.outlook`` runs scheduling cycles until the workload is admitted, by preempting others if need be,
or has to wait. ``KueueDiscipline`` is the queue as the simulation of waits plays it; no workload is preempted
in it: those that could be preempted would be gone by now, and later arrivals are not known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from gpucost.advisor.kueue.cycle import STRICT, NominatedHead, ProcessedNominee, nominate
from gpucost.advisor.kueue.cycle_simulation import (
    MOST_CYCLES,
    CycleSandbox,
    QueueHeap,
    QuickFitCheck,
    sandbox,
)
from gpucost.advisor.kueue.flavor_assigner import AssignmentMode
from gpucost.advisor.kueue.pending_queues import LaterRequest, PendingQueues, lines
from gpucost.advisor.kueue.preemption import PreemptionTarget
from gpucost.advisor.kueue.requests import QuotaRequest, added_usage, in_order
from gpucost.advisor.kueue.snapshot import KueueSnapshot, ShareTieBreaker, SnapshotQueue
from gpucost.advisor.model.cycle_results import CycleOutcome, PodSetFlavors
from gpucost.cluster.objects.kueue import FlavorResource
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.queue_order import in_heap

DRAWS = 8
"""How many draws of lots are tried to see what depends on them."""


@dataclass(frozen=True, slots=True)
class AdmissionOutlook:
    """Of one workload, or of all that one job has.

    ``admitted`` says whether quota is found for all of them, once ``victims`` have left; ``given`` is what
    was chosen for those that find it, in their order. ``nominee`` is what was chosen in the end, of several
    for the last that finds none, None where its turn never came. ``fits_empty`` is whether quota would do for
    all if no other workload had any; ``blocker`` is the head that no workload passes in a StrictFIFO queue,
    by uid. ``is_settled`` is False where too many cycles passed without a decision. ``ahead`` counts the
    workloads before them in their queue. ``others`` are admitted before them or with them, by uid. Victims
    are those that hold quota now.
    """

    admitted: bool
    nominee: NominatedHead | None
    victims: tuple[PreemptionTarget, ...]
    fits_empty: bool
    ahead: int
    borrowed: Mapping[FlavorResource, int]
    message: str
    reason: str
    blocker: str
    is_settled: bool
    cycles: int
    given: tuple[NominatedHead, ...]
    others: Mapping[str, tuple[PodSetFlavors, ...]]
    leaving: frozenset[str]
    """Uids of all workloads that are preempted, by any other."""
    ties: frozenset[tuple[str, str]] = frozenset()
    """Pairs of sibling cohorts that Kueue takes in any order."""
    otherwise: tuple[AdmissionOutlook, ...] = ()
    """The other outcomes, by how lots between ``ties`` fall; empty where all draws that were tried agree."""

    @property
    def gist(self) -> tuple[object, ...]:
        """What two outcomes have to agree in to count as the same."""
        given = [each.assignment.assigned for each in self.given]
        victims = {each.member.uid for each in self.victims}
        return self.admitted, self.is_settled, given, victims, self.others, self.leaving


class KueueView:
    """A snapshot and its pending queues, made once for many questions. Not for two threads at once."""

    def __init__(self, state: ClusterState, config: KueueConfig) -> None:
        self.snapshot = KueueSnapshot(state, config)
        self.glance = QuickFitCheck(self.snapshot)
        self._holding = {uid for queue in self.snapshot.queues.values() for uid in queue.members}
        self._lines: PendingQueues = lines(self.snapshot)
        self._trees: dict[str, frozenset[str]] = {}

    def lines_of(self, queue: str) -> dict[str, QueueHeap]:
        """Fresh pending queues of all active ClusterQueues in a queue's tree."""
        found = {}
        for name in self.tree(queue):
            if not self.snapshot.queues[name].is_active:
                continue
            line = found[name] = QueueHeap()
            is_strict = self.snapshot.queues[name].spec.strategy == STRICT
            for ask in self._lines.by_queue.get(name, ()):
                if ask.uid in self._lines.refused:
                    continue
                is_tried = not is_strict and not in_heap(self.snapshot.state.workloads[ask.uid])
                (line.parked if is_tried else line.heap).append(ask)
        return found

    def later_of(self, queue: str) -> dict[str, LaterRequest]:
        """Workloads of a queue's tree that are in no queue now and will be, by uid."""
        tree = self.tree(queue)
        return {uid: each for uid, each in self._lines.later.items() if each.ask.queue in tree}

    def tree(self, queue: str) -> frozenset[str]:
        """Names of the queues that share quota with one, itself included."""
        found = self._trees.get(queue)
        if found is None:
            root = self.snapshot.queues[queue].node.path[-1]
            found = frozenset(node.name for node in root.below if node.is_queue)
            self._trees.update(dict.fromkeys(found, found))
        return found

    def outlook(self, ask: QuotaRequest, beside: Sequence[QuotaRequest] = ()) -> AdmissionOutlook:
        """What becomes of a workload that asks now, with ``beside`` it others of the same job. It may be
        pending already."""
        with self.guarded(ask.queue):
            found = self._drawn(ask, beside, 0)
            if not found.ties:
                return found
            others: list[AdmissionOutlook] = []
            for turn in range(1, DRAWS):
                other = self._drawn(ask, beside, turn)
                if all(other.gist != each.gist for each in (found, *others)):
                    others.append(other)
        return replace(found, otherwise=tuple(others))

    def _drawn(self, ask: QuotaRequest, beside: Sequence[QuotaRequest], turn: int) -> AdmissionOutlook:
        lots = ShareTieBreaker(turn)
        with self.snapshot.drawing(lots):
            found = self._outlook(ask, beside)
        return replace(found, ties=frozenset(lots.ties))

    @contextmanager
    def guarded(self, queue: str) -> Iterator[None]:
        """Restores the usage of the queue's tree after any error within, so that the next question starts
        from the right usage."""
        nodes = self.snapshot.queues[queue].node.path[-1].below
        before = [dict(node.usage) for node in nodes]
        try:
            yield
        except BaseException:
            for node, usage in zip(nodes, before, strict=True):
                node.restore(usage)
            raise

    def _outlook(self, ask: QuotaRequest, beside: Sequence[QuotaRequest]) -> AdmissionOutlook:
        lines_ = self.lines_of(ask.queue)
        line = lines_[ask.queue]
        own = {each.uid for each in (ask, *beside)}
        line.heap = [each for each in line.heap if each.uid not in own]
        line.parked = [each for each in line.parked if each.uid not in own]
        ahead = sum(in_order(each) < in_order(ask) for each in (*line.heap, *line.parked))
        line.heap = sorted([*line.heap, *beside, ask], key=in_order)
        done: dict[str, ProcessedNominee] = {}
        others: dict[str, tuple[PodSetFlavors, ...]] = {}
        leaving: set[str] = set()
        victims: list[PreemptionTarget] = []
        with sandbox(self.snapshot, lines_) as box:
            cycles, changed, is_open = 0, True, True
            while changed and is_open and cycles < MOST_CYCLES + len(beside):
                decided, changed = box.cycle()
                cycles += 1
                for each in decided:
                    uid = _of_own(each, own, ask)
                    if uid:
                        done.pop(uid, None)  # the last stands last
                        done[uid] = each
                    elif each.outcome is CycleOutcome.ADMITTED:
                        others[each.nominee.ask.uid] = each.nominee.assignment.assigned
                    if each.outcome is CycleOutcome.PREEMPTING:
                        for target in each.nominee.targets:
                            done.pop(target.member.uid, None)
                            others.pop(target.member.uid, None)
                            leaving.add(target.member.uid)
                            if uid and target.member.uid in self._holding:
                                victims.append(target)
                is_open = any(each.uid in own for each in line.heap)
            head = line.head
            given = tuple(
                done[each.uid].nominee
                for each in (*beside, ask)
                if each.uid in done and done[each.uid].outcome is CycleOutcome.ADMITTED
            )
            borrowed = _borrowed(self.snapshot.queues[ask.queue], given)
        admitted = len(given) == len(own)
        refused = [each for each in done.values() if each.outcome is not CycleOutcome.ADMITTED]
        last = done[ask.uid] if admitted else next(reversed(refused), None)
        return AdmissionOutlook(
            admitted,
            last.nominee if last is not None else None,
            tuple(victims),
            admitted or self._fits_empty((*beside, ask)),
            ahead,
            borrowed if admitted else {},
            last.message if last is not None else "",
            last.reason if last is not None else "",
            head.uid if last is None and head is not None else "",
            not (changed and is_open),
            cycles,
            given,
            others,
            frozenset(leaving & self._holding),
        )

    def nominated_alone(self, ask: QuotaRequest) -> NominatedHead:
        """What would be chosen for it if no other workload had quota in its tree."""
        return self.alone((ask,))[1]

    def alone(self, asks: Sequence[QuotaRequest]) -> tuple[int, NominatedHead]:
        """How many of these would have quota if no other workload had any in their tree, and what would be
        chosen for the first that has none, or the last."""
        queue = self.snapshot.queues[asks[0].queue]
        members = [
            member for name in self.tree(queue.name) for member in self.snapshot.queues[name].members.values()
        ]
        with self.guarded(queue.name), ExitStack() as held:
            held.enter_context(self.snapshot.without(members))
            for at, ask in enumerate(asks):
                nominee = nominate(self.snapshot, ask)
                if nominee.assignment.mode is not AssignmentMode.FIT:
                    return at, nominee
                held.enter_context(self.snapshot.using(queue, nominee.assignment.usage))
        return len(asks), nominee

    @contextmanager
    def started(self, queue: SnapshotQueue, outlook: AdmissionOutlook) -> Iterator[None]:
        """As if those to which the outlook gave quota had it, and their victims none."""
        with self.guarded(queue.name), ExitStack() as held:
            held.enter_context(self.snapshot.without(each.member for each in outlook.victims))
            for nominee in outlook.given:
                held.enter_context(self.snapshot.using(queue, nominee.assignment.usage))
            yield

    def _fits_empty(self, asks: Sequence[QuotaRequest]) -> bool:
        count, last = self.alone(asks)
        return count == len(asks) and last.assignment.mode is AssignmentMode.FIT


def _of_own(done: ProcessedNominee, own: Collection[str], ask: QuotaRequest) -> str:
    """The uid a decision is about: one of its own, or, where an equal one was parked and all that are equal
    with it, itself; else empty."""
    other = done.nominee.ask
    if other.uid in own:
        return other.uid
    is_equal = other.queue == ask.queue and other.shape == ask.shape
    return ask.uid if is_equal and done.is_parked else ""


def _borrowed(queue: SnapshotQueue, given: Sequence[NominatedHead]) -> dict[FlavorResource, int]:
    """What the queue uses beyond its own quota of what these ask; they have been counted."""
    usage = added_usage([each.assignment.usage for each in given])
    beyond = {key: queue.node.usage.get(key, 0) - queue.nominal(key) for key in usage}
    return {key: min(beyond[key], amount) for key, amount in usage.items() if beyond[key] > 0}


class PlacementGate(Protocol):
    """The nodes, for the target: given the jobs that ended, it says whether the target's pods
    would find room."""

    def leave(self, ended: Sequence[str], /) -> None: ...

    def is_open(self) -> bool: ...


class KueueDiscipline:
    """The tree of one queue, as ``gpucost.advisor.wait.simulation.QueueDiscipline``. The target is ``ask``,
    with ``beside`` it others of the same job: it starts when the last of them does; those that have quota
    before that keep it. ``gate`` holds the target back once all have quota, while its pods would find no
    nodes. Those of ``KueueView.later_of`` join their queues when they arrive, the target too."""

    def __init__(
        self, view: KueueView, ask: QuotaRequest, gate: PlacementGate, beside: Sequence[QuotaRequest] = ()
    ) -> None:
        lines = view.lines_of(ask.queue)
        line = lines[ask.queue]
        self._own = {each.uid for each in (*beside, ask)}
        self._later = view.later_of(ask.queue)
        line.heap = [each for each in line.heap if each.uid not in self._own]
        line.parked = [each for each in line.parked if each.uid not in self._own]
        line.join(each for each in (*beside, ask) if each.uid not in self._later)
        self._target, self._gate, self._without_quota = ask.uid, gate, set(self._own)
        self._box = CycleSandbox(view.snapshot, lines, view.glance)

    def start(self, _now_ms: int, ended: Sequence[str], arrived: Sequence[str], /) -> Sequence[str]:
        for uid in ended:
            self._box.leave_by_uid(uid)
        for uid in arrived:
            ask = self._later[uid].ask
            self._box.lines[ask.queue].join((ask,))
        self._box.wake()
        started = []
        changed = True
        cycles = 0
        while changed and cycles < MOST_CYCLES + len(self._own):
            done, changed = self._box.cycle()
            cycles += 1
            started += [each.nominee.ask.uid for each in done if each.outcome is CycleOutcome.ADMITTED]
        self._without_quota.difference_update(started)
        started = [uid for uid in started if uid not in self._own]
        self._gate.leave(ended)
        if not self._without_quota and self._gate.is_open():
            started.append(self._target)
        return started

    def close(self) -> None:
        self._box.undo()


@contextmanager
def disciplines(
    view: KueueView, ask: QuotaRequest, gate: Callable[[], PlacementGate], beside: Sequence[QuotaRequest] = ()
) -> Iterator[Callable[[], KueueDiscipline]]:
    """Makes one discipline after another; each is undone before the next is made."""
    open_: list[KueueDiscipline] = []

    def make() -> KueueDiscipline:
        while open_:
            open_.pop().close()
        open_.append(KueueDiscipline(view, ask, gate(), beside))
        return open_[-1]

    with view.guarded(ask.queue):
        try:
            yield make
        finally:
            while open_:
                open_.pop().close()
