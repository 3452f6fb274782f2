"""One scheduling cycle of Kueue: every queue offers its head, heads are nominated against one snapshot, and
processed one after another.

Rules: kueue v0.19.2, pkg/scheduler/scheduler.go (schedule, processEntry, requeueAndUpdate, entryOrdering,
getInitialAssignments), flavorassigner/podset_reducer.go, preemption/preemption_oracle.go,
pkg/scheduler/fair_sharing_iterator.go and pkg/cache/queue/cluster_queue.go (requeueIfNotPresent).

A head is nominated by itself: flavors, size and victims as if no other head were there (``nominate``;
``victims_given`` is the search for victims alone, with flavors that are given: how some recorded decisions
are stated). Then the order decides. Classical: who borrows from lower down first, then higher priority, then
the older. Fair sharing: a tournament, in which each cohort sends up the nominee whose admission leaves the
lowest share; it asks the snapshot anew each time, since every head that was processed changes shares.

Each head is then admitted, preempts, or stays pending. It is refused where heads before it took its victims
or its quota, though they fitted when it was nominated: one cycle, one snapshot, many heads. A head that found
nobody to preempt may keep what it lacks free for the rest of the cycle, so that others do not take it first.
A head that can get nothing is parked outside the heap, until something changes in its cohort tree.

Restated from the source and not asked of the cluster, because the advisor answers in milliseconds for jobs
that do not exist. Where Kueue draws lots between sibling cohorts with equal shares, ``ties`` says so: what
was decided is one of the things it may do. The module is held to 314 recorded decisions
(``tests/advisor/test_verify_recorded.py``).

Pure: usage of the snapshot changes only while ``AdmissionCycle.run`` runs. ``cycle_simulation`` runs cycle
after cycle for the advisor; ``verify.replay`` calls ``run_cycle`` on recorded clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpucost.advisor.kueue import messages
from gpucost.advisor.kueue.flavor_assigner import (
    AssignmentGrade,
    AssignmentMode,
    FlavorAssigner,
    FlavorAssignment,
    FlavorScan,
    PlainRequest,
)
from gpucost.advisor.kueue.pending_queues import PendingQueues, lines
from gpucost.advisor.kueue.preemption import PreemptionTarget, VictimSearch, classical_targets, fair_targets
from gpucost.advisor.kueue.requests import QuotaRequest, ask_of, requested
from gpucost.advisor.kueue.snapshot import KueueSnapshot, QuotaMember, SnapshotQueue
from gpucost.advisor.model.cycle_results import (
    CycleOutcome,
    CycleResult,
    HeadNomination,
    PendingClass,
    WorkloadDecision,
)
from gpucost.cluster.objects.kueue import FlavorResource
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.cohorts import QuotaNode
from gpucost.cluster.views.quota import QuotaUse


@dataclass(slots=True)
class NominatedHead:
    """A head with what was chosen for it; ``targets`` are the victims it needs, empty where none were found
    or none are needed."""

    ask: QuotaRequest
    queue: SnapshotQueue
    assignment: FlavorAssignment
    targets: list[PreemptionTarget]


def nominate(
    snapshot: KueueSnapshot, ask: QuotaRequest, may_preempt: bool = True, scan: FlavorScan | None = None
) -> NominatedHead:
    """At full size; else, where pod sets may be smaller, at the largest size that fits or can preempt. The
    scan of flavors starts as ``scan`` says."""
    queue = snapshot.queues[ask.queue]
    full = _at_size(snapshot, queue, ask, ask.counts, may_preempt, scan)
    if full.assignment.mode is AssignmentMode.FIT or full.targets:
        return full
    spare = [asked.count - asked.least for asked in ask.pod_sets]
    total = sum(spare)

    def smaller(step: int) -> NominatedHead:
        counts = [
            asked.count - delta * step // total for asked, delta in zip(ask.pod_sets, spare, strict=True)
        ]
        return _at_size(snapshot, queue, ask, tuple(counts), may_preempt, scan)

    return _first_that_helps(total, smaller) or full


def targets_of(
    snapshot: KueueSnapshot,
    queue: SnapshotQueue,
    ask: QuotaRequest,
    contested: Collection[FlavorResource],
    usage: QuotaUse,
) -> list[PreemptionTarget]:
    """The victims that ``ask`` needs for ``usage``, of which ``contested`` is short."""
    search = VictimSearch(snapshot, queue, ask, contested, usage)
    if snapshot.config.fair_sharing:
        return fair_targets(search, snapshot.shares)
    return classical_targets(search)


def gets_nothing(snapshot: KueueSnapshot, ask: QuotaRequest, plain: PlainRequest) -> bool:
    """Whether a try now would be refused and would not matter to any other head: most tries of a replay are
    of that kind, and this costs a tenth of one. False where only a whole try can tell."""
    queue, (key, amount) = snapshot.queues[ask.queue], plain
    if plain.is_beyond_reach(snapshot, queue):
        return True
    if queue.spec.preemption.reclaim_within_cohort != "Any" or amount <= queue.node.available(key):
        return False  # it may keep quota free for itself (``_kept_free``), or have it
    return not targets_of(snapshot, queue, ask, (key,), {key: amount})


def _at_size(
    snapshot: KueueSnapshot,
    queue: SnapshotQueue,
    ask: QuotaRequest,
    counts: tuple[int, ...],
    may_preempt: bool,
    scan: FlavorScan | None,
) -> NominatedHead:
    asked: list[tuple[QuotaUse, list[PreemptionTarget]]] = []

    def oracle(key: FlavorResource, amount: int) -> AssignmentGrade:
        usage = {key: amount}
        targets = targets_of(snapshot, queue, ask, (key,), usage) if may_preempt else []
        asked.append((usage, targets))
        if not targets:
            return AssignmentGrade(AssignmentMode.NO_CANDIDATES, queue.node.borrowing_level(key, amount))
        with snapshot.without(each.member for each in targets):
            level = queue.node.borrowing_level(key, amount)
        is_own = any(each.member.queue == queue.name for each in targets)
        return AssignmentGrade(AssignmentMode.PREEMPT if is_own else AssignmentMode.RECLAIM, level)

    assignment = FlavorAssigner(snapshot, queue, ask, oracle, scan).assign(counts)
    targets: list[PreemptionTarget] = []
    if may_preempt and assignment.mode is AssignmentMode.PREEMPT:
        known = None
        if len(assignment.usage) == 1 and not snapshot.config.fair_sharing:  # which may draw other lots
            known = next((found for usage, found in asked if usage == assignment.usage), None)
        if known is None:
            known = targets_of(snapshot, queue, ask, assignment.contested, assignment.usage)
        targets = known
    return NominatedHead(ask, queue, assignment, targets)


def _first_that_helps(total: int, at_step: Callable[[int], NominatedHead]) -> NominatedHead | None:
    """Binary search over sizes as Kueue does it, which takes "helps" for monotonous; the last size that
    helped counts if the search ends at it."""
    if not total:
        return None
    low, high = 0, total + 1
    last_step, last = 0, None
    while low < high:
        step = (low + high) // 2
        found = at_step(step)
        if found.assignment.mode is AssignmentMode.FIT or found.targets:
            last_step, last, high = step, found, step
        else:
            low = step + 1
    return last if low == last_step else None


def victims_given(
    state: ClusterState,
    config: KueueConfig,
    uid: str,
    flavors: Mapping[str, Mapping[str, str]],
    fits: Collection[str] = (),
) -> tuple[tuple[str, str], ...]:
    """Victims (uid, reason) of a pending workload that gets ``flavors``, by pod set and resource; of the
    resources in ``fits`` there is enough."""
    snapshot = KueueSnapshot(state, config)
    workload = state.workloads[uid]
    local = state.local_queue_by_name[workload.meta.namespace, workload.queue]
    queue = snapshot.queues[local.cluster_queue]
    ask = ask_of(workload, queue.name, config)
    usage: dict[FlavorResource, int] = {}
    for asked in ask.pod_sets:
        chosen = flavors.get(asked.name, {})
        for resource, amount in requested(asked, asked.count, queue.covered).items():
            if resource in chosen:
                key = FlavorResource(chosen[resource], resource)
                usage[key] = usage.get(key, 0) + amount
    contested = frozenset(key for key in usage if key.resource not in fits)
    targets = targets_of(snapshot, queue, ask, contested, usage)
    return tuple((each.member.uid, each.reason) for each in targets)


def classical_order(nominees: Sequence[NominatedHead]) -> list[NominatedHead]:
    """Workloads that borrow from lower in the tree come first, then higher priority, then the older."""
    return sorted(nominees, key=lambda each: (each.assignment.level, *_among_equals(each)))


class FairSharingTournament:
    """Under fair sharing: each cohort sends up the nominee whose admission leaves the lowest share.

    ``next`` asks the snapshot as it is: every nominee that was processed changes shares.
    """

    def __init__(self, snapshot: KueueSnapshot, nominees: Sequence[NominatedHead]) -> None:
        self._snapshot, self._shares = snapshot, snapshot.shares
        self._left = {each.queue.name: each for each in nominees}

    def __iter__(self) -> Iterator[NominatedHead]:
        while self._left:
            name = min(self._left)
            winner = self._winner(self._snapshot.queues[name].node.path[-1])
            del self._left[winner.queue.name]
            yield winner

    def _winner(self, root: QuotaNode) -> NominatedHead:
        if root.is_queue:
            return self._left[root.name]
        ranks = self._ranks(root)
        found = self._best(root, ranks)
        assert found is not None
        return found

    def _ranks(self, root: QuotaNode) -> dict[tuple[int, str], tuple[bool, tuple[bool, float]]]:
        """By node and nominee: whether the node would borrow what the nominee asks, and its share, with the
        nominee admitted."""
        ranks: dict[tuple[int, str], tuple[bool, tuple[bool, float]]] = {}
        for name, nominee in self._left.items():
            path = self._snapshot.queues[name].node.path
            if path[-1] is not root:
                continue
            usage = nominee.assignment.usage
            asked = [key for key, amount in usage.items() if amount > 0]
            with self._snapshot.using(nominee.queue, usage):
                for each in path[:-1]:
                    share = self._shares.of(each)
                    ranks[id(each), nominee.ask.uid] = share.borrows(asked), share.rank
        return ranks

    def _best(
        self, cohort: QuotaNode, ranks: dict[tuple[int, str], tuple[bool, tuple[bool, float]]]
    ) -> NominatedHead | None:
        best: tuple[object, ...] | None = None
        found: list[tuple[NominatedHead, QuotaNode]] = []
        for child in cohort.children:
            nominee = self._left.get(child.name) if child.is_queue else self._best(child, ranks)
            if nominee is None:
                continue
            rank = (*ranks[id(child), nominee.ask.uid], *_among_equals(nominee)[:2])
            if best is None or rank < best:
                best, found = rank, [(nominee, child)]
            elif rank == best and not child.is_queue:  # cohorts come before queues: all found are cohorts
                found.append((nominee, child))
        if not found:
            return None
        at = self._snapshot.lots.draw([child for _, child in found]) if len(found) > 1 else 0
        return found[at][0]


def _among_equals(nominee: NominatedHead) -> tuple[int, int, str]:
    return -nominee.ask.priority, nominee.ask.queued_ms, nominee.ask.uid


STRICT = "StrictFIFO"
_TO_THE_HEAP = frozenset(
    {PendingClass.NEEDS_PREEMPTION, PendingClass.NO_LONGER_FITS, PendingClass.OVERLAPPING}
)


@dataclass(slots=True)
class ProcessedNominee:
    """A head after the cycle has processed it."""

    nominee: NominatedHead
    outcome: CycleOutcome
    pending: PendingClass | None = None

    @property
    def message(self) -> str:
        """In Kueue's words why it is pending; made only when it is read, for a replay reads none."""
        nominee, pending = self.nominee, self.pending
        if pending is PendingClass.OVERLAPPING:
            return messages.OVERLAPPING
        if pending is PendingClass.NO_LONGER_FITS:
            return messages.NO_LONGER_FITS
        if pending is PendingClass.NEEDS_PREEMPTION:
            count = len(nominee.targets)
            return f"{nominee.assignment.message}. Pending the preemption of {count} workload(s)"
        return "" if pending is None else nominee.assignment.message

    @property
    def reason(self) -> str:
        """The granular one."""
        if self.pending is None:
            return ""
        if self.pending is PendingClass.NEEDS_PREEMPTION:
            return messages.FOR_VICTIMS
        is_refused = self.pending is PendingClass.NO_FIT
        return self.nominee.assignment.reason if is_refused else messages.WAITING_FOR_QUOTA

    @property
    def is_parked(self) -> bool:
        """Whether it waits outside the heap from now on, for something to change in its tree."""
        if self.outcome is CycleOutcome.ADMITTED or self.nominee.queue.spec.strategy == STRICT:
            return False
        return self.pending not in _TO_THE_HEAP and not self.nominee.assignment.has_untried


def run_cycle(state: ClusterState, config: KueueConfig) -> CycleResult:
    """The decisions of one cycle about every workload, as if all pending ones had just come into their
    queues."""
    snapshot = KueueSnapshot(state, config)
    waiting = lines(snapshot)
    cycle = AdmissionCycle(snapshot)
    done = cycle.run([line[0] for line in waiting.by_queue.values() if line[0].uid not in waiting.refused])
    return CycleResult(
        _decisions(snapshot, waiting, done),
        _order_by_tree(done),
        tuple(sorted(cycle.ties)),
    )


class AdmissionCycle:
    """Runs cycles on a snapshot, whose usage it changes only while it runs. Without
    ``may_preempt`` no workload has candidates to preempt. ``ties`` are pairs of sibling cohorts
    with equal shares that Kueue takes in any order, of heads or in the search for victims: what
    was decided is one of the things it may do."""

    def __init__(self, snapshot: KueueSnapshot, may_preempt: bool = True) -> None:
        self._snapshot, self._may_preempt = snapshot, may_preempt
        self.ties: set[tuple[str, str]] = set()

    def run(
        self, heads: Sequence[QuotaRequest], known: dict[str, NominatedHead] | None = None
    ) -> list[ProcessedNominee]:
        """The heads in the order in which they were processed. ``known`` are nominees by uid that hold as
        long as no workload's quota changes; new ones are added."""
        known = {} if known is None else known
        lots = self._snapshot.lots
        earlier, lots.ties = lots.ties, set()
        done = self._run(heads, known)
        self.ties |= lots.ties
        lots.ties |= earlier
        return done

    def _run(self, heads: Sequence[QuotaRequest], known: dict[str, NominatedHead]) -> list[ProcessedNominee]:
        for ask in heads:
            if ask.uid not in known:
                known[ask.uid] = nominate(self._snapshot, ask, self._may_preempt)
        nominees = [known[ask.uid] for ask in heads]
        victims: dict[str, QuotaMember] = {}
        counted: list[tuple[SnapshotQueue, QuotaUse]] = []
        done = []
        for nominee in self._ordered(nominees):
            processed, usage = self._process(nominee, victims)
            done.append(processed)
            if len(done) == len(nominees):
                break  # what the last one takes nobody asks for in this cycle
            for key, amount in usage.items():
                _count(nominee.queue.node, key, amount)
            counted.append((nominee.queue, usage))
        for queue, usage in reversed(counted):
            for key, amount in usage.items():
                _count(queue.node, key, amount, undo=True)
        return done

    def _ordered(self, nominees: Sequence[NominatedHead]) -> Iterator[NominatedHead]:
        if not self._snapshot.config.fair_sharing:
            yield from classical_order(nominees)
            return
        yield from FairSharingTournament(self._snapshot, nominees)

    def _process(
        self, nominee: NominatedHead, victims: dict[str, QuotaMember]
    ) -> tuple[ProcessedNominee, QuotaUse]:
        """Decides about a head, and counts the quota that it takes for the rest of the cycle. ``victims`` are
        those of heads before it; its own are added."""
        assignment = nominee.assignment
        if assignment.mode is AssignmentMode.NO_FIT:
            return ProcessedNominee(nominee, CycleOutcome.PENDING, PendingClass.NO_FIT), {}
        needs_victims = assignment.mode is AssignmentMode.PREEMPT
        if needs_victims and not nominee.targets:
            done = ProcessedNominee(nominee, CycleOutcome.PENDING, PendingClass.NO_CANDIDATES)
            return done, _kept_free(nominee)
        refused = self._refused(nominee, victims)
        if refused is not None:
            return ProcessedNominee(nominee, CycleOutcome.PENDING, refused), {}
        victims.update((each.member.uid, each.member) for each in nominee.targets)
        if needs_victims:
            done = ProcessedNominee(nominee, CycleOutcome.PREEMPTING, PendingClass.NEEDS_PREEMPTION)
            return done, assignment.usage
        return ProcessedNominee(nominee, CycleOutcome.ADMITTED), assignment.usage

    def _refused(self, nominee: NominatedHead, victims: Mapping[str, QuotaMember]) -> PendingClass | None:
        """Whether heads before it took its victims or its quota; theirs count as gone, though they still
        run."""
        if not nominee.targets and not victims:
            return None if nominee.queue.fits(nominee.assignment.usage) else PendingClass.NO_LONGER_FITS
        own = {each.member.uid: each.member for each in nominee.targets}
        if own.keys() & victims.keys():
            return PendingClass.OVERLAPPING
        with self._snapshot.without({**victims, **own}.values()):
            fits = nominee.queue.fits(nominee.assignment.usage)
        return None if fits else PendingClass.NO_LONGER_FITS


def _count(node: QuotaNode, key: FlavorResource, amount: int, undo: bool = False) -> None:
    """Usage for the rest of the cycle. A negative amount, which a queue above its quota keeps free, stays
    where it is, as in Kueue."""
    if amount >= 0:
        node.add_usage(key, -amount if undo else amount)
    else:
        node.shift_usage(key, -amount if undo else amount)


def _kept_free(nominee: NominatedHead) -> dict[FlavorResource, int]:
    """The quota that a head without candidates to preempt keeps others from taking until the next cycle;
    nothing where it can have it back whenever it likes."""
    queue = nominee.queue
    if queue.spec.preemption.reclaim_within_cohort == "Any":
        return {}
    kept = {}
    for key, amount in nominee.assignment.usage.items():
        quota = queue.spec.quotas.get(key)
        nominal, limit = (0, None) if quota is None else (quota.nominal, quota.borrowing_limit)
        used = queue.node.usage.get(key, 0)
        if nominee.assignment.level == 0:
            kept[key] = max(0, min(amount, nominal - used))
        else:
            kept[key] = amount if limit is None else min(amount, nominal + limit - used)
    return kept


def _decisions(
    snapshot: KueueSnapshot, waiting: PendingQueues, done: Iterable[ProcessedNominee]
) -> dict[str, WorkloadDecision]:
    by_uid: dict[str, WorkloadDecision] = {}
    heads = {each.nominee.ask.uid: each for each in done}
    victims = _victims(heads.values())
    for queue in snapshot.queues.values():
        for member in queue.members.values():
            by_uid[member.uid] = _of_member(member, victims.get(member.uid))
    for line in waiting.by_queue.values():
        first = heads.get(line[0].uid)
        is_parked = first is None or first.is_parked
        for ask in line:
            by_uid[ask.uid] = WorkloadDecision(
                ask.uid,
                CycleOutcome.PENDING,
                PendingClass.WAITING,
                parked=is_parked and ask.shape == line[0].shape,
            )
        by_uid[line[0].uid] = waiting.refused[line[0].uid] if first is None else _of_head(first)
    by_uid.update(waiting.hopeless)
    return by_uid


def _victims(heads: Iterable[ProcessedNominee]) -> dict[str, tuple[str, PreemptionTarget]]:
    """By uid of each victim, the uid of the head that preempts it."""
    return {
        target.member.uid: (head.nominee.ask.uid, target)
        for head in heads
        if head.outcome is CycleOutcome.PREEMPTING
        for target in head.nominee.targets
    }


def _of_member(member: QuotaMember, taken: tuple[str, PreemptionTarget] | None) -> WorkloadDecision:
    by, target = taken if taken is not None else ("", None)
    if member.is_evicted:
        return WorkloadDecision(member.uid, CycleOutcome.BEING_EVICTED, preempted_by=by)
    if target is None:
        return WorkloadDecision(member.uid, CycleOutcome.KEEPS_RUNNING)
    return WorkloadDecision(
        member.uid, CycleOutcome.PREEMPTED, preempted_by=by, preempted_reason=target.reason
    )


def _of_head(head: ProcessedNominee) -> WorkloadDecision:
    assignment, uid = head.nominee.assignment, head.nominee.ask.uid
    is_chosen = head.outcome in (CycleOutcome.ADMITTED, CycleOutcome.PREEMPTING)
    was_nominated = head.pending in (PendingClass.NO_LONGER_FITS, PendingClass.OVERLAPPING)
    if head.pending is PendingClass.NO_CANDIDATES:
        was_nominated = True
    mode = "Fit" if assignment.mode is AssignmentMode.FIT else "Preempt"
    return WorkloadDecision(
        uid,
        head.outcome,
        head.pending,
        assignment.assigned if is_chosen else (),
        assignment.level if is_chosen else 0,
        HeadNomination(mode, assignment.assigned, assignment.level) if was_nominated else None,
        tuple(each.member.uid for each in head.nominee.targets) if is_chosen else (),
        reason=head.reason,
        message=head.message,
        parked=head.is_parked,
    )


def _order_by_tree(done: Iterable[ProcessedNominee]) -> tuple[tuple[str, ...], ...]:
    trees: dict[int, list[str]] = {}
    for head in done:
        root = head.nominee.queue.node.path[-1]
        trees.setdefault(id(root), []).append(head.nominee.ask.uid)
    return tuple(tuple(each) for each in trees.values())
