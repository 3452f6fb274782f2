"""One scheduling cycle: every queue offers its head, heads are nominated against one snapshot, and processed
one after another.

Rules: kueue v0.19.2, pkg/scheduler/scheduler.go (schedule, processEntry, requeueAndUpdate) and
pkg/cache/queue/cluster_queue.go (requeueIfNotPresent).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpucost.advisor.kueue import words
from gpucost.advisor.kueue.asks import Ask
from gpucost.advisor.kueue.modes import Mode
from gpucost.advisor.kueue.nominate import Nominee, nominate
from gpucost.advisor.kueue.order import Tournament, classical_order
from gpucost.advisor.kueue.results import (
    CycleResult,
    Nominated,
    Outcome,
    PendingClass,
    WorkloadDecision,
)
from gpucost.advisor.kueue.snapshot import Member, Queue, Snapshot
from gpucost.advisor.kueue.targets import Target
from gpucost.advisor.kueue.waiting import Lines, lines
from gpucost.cluster.cohorts import QuotaNode
from gpucost.cluster.kueue import FlavorResource
from gpucost.cluster.quota_use import QuotaUse
from gpucost.cluster.scheduling import KueueConfig
from gpucost.cluster.state import ClusterState

STRICT = "StrictFIFO"
_TO_THE_HEAP = frozenset(
    {PendingClass.NEEDS_PREEMPTION, PendingClass.NO_LONGER_FITS, PendingClass.OVERLAPPING}
)


@dataclass(slots=True)
class Processed:
    """A head after its turn."""

    nominee: Nominee
    outcome: Outcome
    pending: PendingClass | None = None
    message: str = ""
    reason: str = ""

    @property
    def is_parked(self) -> bool:
        """Whether it waits outside the heap from now on, for something to change in its tree."""
        if self.outcome is Outcome.ADMITTED or self.nominee.queue.spec.strategy == STRICT:
            return False
        return self.pending not in _TO_THE_HEAP and not self.nominee.assignment.has_untried


def run_cycle(state: ClusterState, config: KueueConfig) -> CycleResult:
    """What one cycle decides about every workload, as if all that wait had just come into their queues."""
    snapshot = Snapshot(state, config)
    waiting = lines(snapshot)
    cycle = Cycle(snapshot)
    done = cycle.run([line[0] for line in waiting.by_queue.values() if line[0].uid not in waiting.refused])
    return CycleResult(
        _decisions(snapshot, waiting, done),
        _order_by_tree(done),
        tuple(sorted(cycle.ties)),
    )


class Cycle:
    """Runs cycles on a snapshot, whose usage it changes only while it runs. Without ``may_preempt`` nobody
    has anybody to preempt. ``ties`` are pairs of sibling cohorts with equal shares that Kueue takes in any
    order, of heads or in the search for victims: what was decided is one of the things it may do."""

    def __init__(self, snapshot: Snapshot, may_preempt: bool = True) -> None:
        self._snapshot, self._may_preempt = snapshot, may_preempt
        self.ties: set[tuple[str, str]] = set()

    def run(self, heads: Sequence[Ask], known: dict[str, Nominee] | None = None) -> list[Processed]:
        """The heads in the order in which they were processed. ``known`` are nominees by uid that hold as
        long as nobody's quota changes; new ones are added."""
        known = {} if known is None else known
        lots = self._snapshot.lots
        earlier, lots.ties = lots.ties, set()
        done = self._run(heads, known)
        self.ties |= lots.ties
        lots.ties |= earlier
        return done

    def _run(self, heads: Sequence[Ask], known: dict[str, Nominee]) -> list[Processed]:
        for ask in heads:
            if ask.uid not in known:
                known[ask.uid] = nominate(self._snapshot, ask, self._may_preempt)
        nominees = [known[ask.uid] for ask in heads]
        victims: dict[str, Member] = {}
        counted: list[tuple[Queue, QuotaUse]] = []
        done = []
        for nominee in self._ordered(nominees):
            processed, usage = self._process(nominee, victims)
            for key, amount in usage.items():
                _count(nominee.queue.node, key, amount)
            counted.append((nominee.queue, usage))
            done.append(processed)
        for queue, usage in reversed(counted):
            for key, amount in usage.items():
                _count(queue.node, key, amount, undo=True)
        return done

    def _ordered(self, nominees: Sequence[Nominee]) -> Iterator[Nominee]:
        if not self._snapshot.config.fair_sharing:
            yield from classical_order(nominees)
            return
        yield from Tournament(self._snapshot, nominees)

    def _process(self, nominee: Nominee, victims: dict[str, Member]) -> tuple[Processed, QuotaUse]:
        """What becomes of a head, and what it takes of the quota for the rest of the cycle. ``victims`` are
        those of heads before it; its own are added."""
        assignment = nominee.assignment
        if assignment.mode is Mode.NO_FIT:
            said, reason = assignment.message, assignment.reason
            return Processed(nominee, Outcome.PENDING, PendingClass.NO_FIT, said, reason), {}
        needs_victims = assignment.mode is Mode.PREEMPT
        if needs_victims and not nominee.targets:
            said = assignment.message
            done = Processed(
                nominee, Outcome.PENDING, PendingClass.NO_CANDIDATES, said, words.WAITING_FOR_QUOTA
            )
            return done, _kept_free(nominee)
        refused = self._refused(nominee, victims)
        if refused is not None:
            said = words.OVERLAPPING if refused is PendingClass.OVERLAPPING else words.NO_LONGER_FITS
            return Processed(nominee, Outcome.PENDING, refused, said, words.WAITING_FOR_QUOTA), {}
        victims.update((each.member.uid, each.member) for each in nominee.targets)
        if needs_victims:
            said = f"{assignment.message}. Pending the preemption of {len(nominee.targets)} workload(s)"
            done = Processed(
                nominee, Outcome.PREEMPTING, PendingClass.NEEDS_PREEMPTION, said, words.FOR_VICTIMS
            )
            return done, assignment.usage
        return Processed(nominee, Outcome.ADMITTED), assignment.usage

    def _refused(self, nominee: Nominee, victims: Mapping[str, Member]) -> PendingClass | None:
        """Whether heads before it took its victims or its quota; theirs count as gone, though they still
        run."""
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


def _kept_free(nominee: Nominee) -> dict[FlavorResource, int]:
    """What a head that has nobody to preempt keeps others from taking until the next cycle; nothing where it
    can have it back whenever it likes."""
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


def _decisions(snapshot: Snapshot, waiting: Lines, done: Iterable[Processed]) -> dict[str, WorkloadDecision]:
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
                Outcome.PENDING,
                PendingClass.WAITING,
                parked=is_parked and ask.shape == line[0].shape,
            )
        by_uid[line[0].uid] = waiting.refused[line[0].uid] if first is None else _of_head(first)
    by_uid.update(waiting.hopeless)
    return by_uid


def _victims(heads: Iterable[Processed]) -> dict[str, tuple[str, Target]]:
    """Whose victim each is, by uid."""
    return {
        target.member.uid: (head.nominee.ask.uid, target)
        for head in heads
        if head.outcome is Outcome.PREEMPTING
        for target in head.nominee.targets
    }


def _of_member(member: Member, taken: tuple[str, Target] | None) -> WorkloadDecision:
    by, target = taken if taken is not None else ("", None)
    if member.is_evicted:
        return WorkloadDecision(member.uid, Outcome.BEING_EVICTED, preempted_by=by)
    if target is None:
        return WorkloadDecision(member.uid, Outcome.KEEPS_RUNNING)
    return WorkloadDecision(member.uid, Outcome.PREEMPTED, preempted_by=by, preempted_reason=target.reason)


def _of_head(head: Processed) -> WorkloadDecision:
    assignment, uid = head.nominee.assignment, head.nominee.ask.uid
    is_chosen = head.outcome in (Outcome.ADMITTED, Outcome.PREEMPTING)
    was_nominated = head.pending in (PendingClass.NO_LONGER_FITS, PendingClass.OVERLAPPING)
    if head.pending is PendingClass.NO_CANDIDATES:
        was_nominated = True
    mode = "Fit" if assignment.mode is Mode.FIT else "Preempt"
    return WorkloadDecision(
        uid,
        head.outcome,
        head.pending,
        assignment.assigned if is_chosen else (),
        assignment.level if is_chosen else 0,
        Nominated(mode, assignment.assigned, assignment.level) if was_nominated else None,
        tuple(each.member.uid for each in head.nominee.targets) if is_chosen else (),
        reason=head.reason,
        message=head.message,
        parked=head.is_parked,
    )


def _order_by_tree(done: Iterable[Processed]) -> tuple[tuple[str, ...], ...]:
    trees: dict[int, list[str]] = {}
    for head in done:
        root = head.nominee.queue.node.path[-1]
        trees.setdefault(id(root), []).append(head.nominee.ask.uid)
    return tuple(tuple(each) for each in trees.values())
