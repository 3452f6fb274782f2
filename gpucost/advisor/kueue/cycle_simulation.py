"""Cycle after cycle on one snapshot, until nothing changes: which workloads are admitted, leave, or wait.

Rules: kueue v0.19.2, pkg/cache/queue (manager.go, cluster_queue.go): a parked workload is tried again when
quota comes back somewhere in its tree; a preemptor stays the head of its queue while its victims leave.

``CycleSandbox`` runs the cycles. ``QuickFitCheck`` tells cheaply that a workload cannot be admitted unless
another leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from gpucost.advisor.kueue.cycle import STRICT, AdmissionCycle, NominatedHead, ProcessedNominee
from gpucost.advisor.kueue.requests import (
    QuotaRequest,
    ask_of,
    in_order,
    requested,
)
from gpucost.advisor.kueue.snapshot import KueueSnapshot, QuotaMember
from gpucost.advisor.model.cycle_results import CycleOutcome, PendingClass
from gpucost.cluster.objects.kueue import FlavorResource

_Need = list[list[tuple[tuple[FlavorResource, int], ...]]]


@dataclass(slots=True)
class _WorkloadShape:
    """What some workloads of a queue need, and whether it is there, while usage stays as it is."""

    queue: str
    need: _Need | None
    said: bool | None = None


class QuickFitCheck:
    """A check that is necessary, not sufficient: each pod set at its smallest finds, in each resource group,
    a flavor that takes it and has enough left. What a workload needs is worked out once, and whether it is
    there once for all that need the same, until ``forget``."""

    def __init__(self, snapshot: KueueSnapshot) -> None:
        self._snapshot = snapshot
        self._needs: dict[str, tuple[QuotaRequest, _WorkloadShape]] = {}
        self._kinds: dict[tuple[str, str], _WorkloadShape] = {}
        self._told: list[_WorkloadShape] = []
        self._left: dict[tuple[str, FlavorResource], int] = {}

    def forget(self) -> None:
        """Drops all results, since usage has changed."""
        for kind in self._told:
            kind.said = None
        self._told.clear()
        self._left.clear()

    def may_fit(self, ask: QuotaRequest) -> bool:
        known = self._needs.get(ask.uid)
        if known is None or known[0] is not ask:
            known = self._needs[ask.uid] = ask, self._shared(ask.queue, self._need(ask))
        kind = known[1]
        if kind.said is None:
            kind.said = self._may_fit(kind)
            self._told.append(kind)
        return kind.said

    def _shared(self, queue: str, need: _Need | None) -> _WorkloadShape:
        """One entry for all that need the same: many pending workloads of a queue do."""
        return self._kinds.setdefault((queue, repr(need)), _WorkloadShape(queue, need))

    def _may_fit(self, kind: _WorkloadShape) -> bool:
        if kind.need is None:
            return False
        return all(
            any(all(amount <= self._available(kind.queue, key) for key, amount in flavor) for flavor in each)
            for each in kind.need
        )

    def _available(self, queue: str, key: FlavorResource) -> int:
        left = self._left.get((queue, key))
        if left is None:
            left = self._left[queue, key] = self._snapshot.queues[queue].node.available(key)
        return left

    def _need(self, ask: QuotaRequest) -> _Need | None:
        """Alternatives for each pod set and resource group; None where some resource is not covered."""
        queue = self._snapshot.queues[ask.queue]
        need: _Need = []
        for asked in ask.pod_sets:
            by_group: dict[int, dict[str, int]] = {}
            for resource, amount in requested(asked, asked.least, queue.covered).items():
                group = queue.covered.get(resource)
                if group is None and amount and not self._snapshot.config.ignores_undeclared:
                    return None
                if group is not None:
                    by_group.setdefault(group, {})[resource] = amount
            for group, amounts in by_group.items():
                flavors = queue.spec.groups[group].flavors
                need.append(
                    [
                        tuple((FlavorResource(flavor, name), amount) for name, amount in amounts.items())
                        for flavor in flavors
                        if self._snapshot.refusal(queue, asked, flavor) is None
                    ]
                )
        return need


MOST_CYCLES = 64
"""The number of cycles after which the simulation gives up without an answer."""


@dataclass(slots=True)
class QueueHeap:
    """One queue's workloads: ``heap`` head first, and ``parked`` in the same order. ``sticky`` is a preemptor
    that keeps the head."""

    heap: list[QuotaRequest] = field(default_factory=list)
    parked: list[QuotaRequest] = field(default_factory=list)
    sticky: str = ""

    @property
    def head(self) -> QuotaRequest | None:
        if self.sticky:
            for ask in self.heap:
                if ask.uid == self.sticky:
                    return ask
        return self.heap[0] if self.heap else None

    def join(self, asks: Iterable[QuotaRequest]) -> None:
        """Puts more into the heap."""
        self.heap = sorted([*self.heap, *asks], key=in_order)

    def take(self, uid: str) -> None:
        self.heap = [ask for ask in self.heap if ask.uid != uid]

    def park(self, like: QuotaRequest) -> None:
        """The head and all that are equal to it."""
        self.parked.extend(ask for ask in self.heap if ask.uid == like.uid or ask.shape == like.shape)
        self.heap = [ask for ask in self.heap if ask.uid != like.uid and ask.shape != like.shape]

    def wake(self, may_fit: Callable[[QuotaRequest], bool] = lambda _: True) -> None:
        """Moves parked workloads back into the heap, those that may fit now."""
        woken = [ask for ask in self.parked if may_fit(ask)]
        if woken:
            names = {ask.uid for ask in woken}
            self.parked = [ask for ask in self.parked if ask.uid not in names]
            self.join(woken)


class CycleSandbox:
    """The pending queues of one tree over a snapshot. ``cycle`` runs once and applies what was decided; what
    it changes is undone at the end of ``sandbox``.

    With ``glance`` no workload preempts, and those that the check rules out are not tried: much faster, and
    exact but for the quota that a head without candidates to preempt keeps free for one cycle.
    """

    def __init__(
        self, snapshot: KueueSnapshot, lines: dict[str, QueueHeap], glance: QuickFitCheck | None = None
    ) -> None:
        self.snapshot, self.lines, self._glance = snapshot, lines, glance
        self._journal: list[tuple[QuotaMember, bool]] = []
        self._cycle = AdmissionCycle(snapshot, may_preempt=glance is None)
        self._nominees: dict[str, NominatedHead] = {}
        self._forget()

    def cycle(self) -> tuple[list[ProcessedNominee], bool]:
        """The decision about each head, and whether anything changed by it."""
        heads = list(self._heads())
        done = self._cycle.run(heads, self._nominees)
        changed = False
        freed = False
        for each in done:
            line = self.lines[each.nominee.queue.name]
            ask = each.nominee.ask
            if each.outcome is CycleOutcome.ADMITTED:
                line.take(ask.uid)
                line.sticky = ""
                self.join(_as_member(each, self.snapshot.state.at_ms))
                changed = True
            elif each.outcome is CycleOutcome.PREEMPTING:
                line.sticky = ask.uid
                freed = True
                for target in each.nominee.targets:
                    self.leave(target.member)
                    self._queue_again(target.member)
            elif each.is_parked:
                line.park(ask)
                changed = True
        if freed:
            self.wake()
        elif not changed:
            changed = self._park_stalled(done)
        return done, changed or freed

    def _park_stalled(self, done: Sequence[ProcessedNominee]) -> bool:
        """A head that does not fit and has flavors left to try is parked once Kueue has tried them, in a
        cycle or two; here all flavors were tried already. Returns whether there was one."""
        stalled = [
            each
            for each in done
            if each.pending in (PendingClass.NO_FIT, PendingClass.NO_CANDIDATES)
            and each.nominee.queue.spec.strategy != STRICT
        ]
        for each in stalled:
            self.lines[each.nominee.queue.name].park(each.nominee.ask)
        return bool(stalled)

    def _heads(self) -> Iterator[QuotaRequest]:
        for name, line in self.lines.items():
            head = line.head
            if self._glance is not None:
                is_strict = self.snapshot.queues[name].spec.strategy == STRICT
                while head is not None and not self._glance.may_fit(head):
                    if not is_strict:
                        line.park(head)
                    head = None if is_strict else line.head
            if head is not None:
                yield head

    def wake(self) -> None:
        """Tries parked workloads again, after quota came back."""
        for line in self.lines.values():
            if self._glance is None:
                line.wake()
            elif line.parked:
                line.wake(self._glance.may_fit)

    def leave(self, member: QuotaMember) -> None:
        """Gives its quota back."""
        if self.snapshot.queues[member.queue].members.pop(member.uid, None) is not None:
            self.snapshot.remove(member)
            self._journal.append((member, False))
            self._forget()

    def leave_by_uid(self, uid: str) -> None:
        """Likewise, for one whose queue is in ``lines``; nothing for one that holds no quota there."""
        for name in self.lines:
            member = self.snapshot.queues[name].members.get(uid)
            if member is not None:
                self.leave(member)
                return

    def join(self, member: QuotaMember) -> None:
        """Holds quota from now on."""
        self.snapshot.queues[member.queue].members[member.uid] = member
        self.snapshot.put(member)
        self._journal.append((member, True))
        self._forget()

    def undo(self) -> None:
        """Everything as it was before."""
        for member, joined in reversed(self._journal):
            members = self.snapshot.queues[member.queue].members
            if joined:
                members.pop(member.uid)
                self.snapshot.remove(member)
            else:
                members[member.uid] = member
                self.snapshot.put(member)
        self._journal.clear()
        self._forget()

    def _forget(self) -> None:
        """Drops what was worked out from usage, which has changed."""
        self._nominees.clear()
        if self._glance is not None:
            self._glance.forget()

    def _queue_again(self, member: QuotaMember) -> None:
        """Puts a victim back into its queue, at its former place."""
        workload = self.snapshot.state.workloads.get(member.uid)
        line = self.lines.get(member.queue)
        if workload is not None and line is not None:
            line.heap.append(ask_of(workload, member.queue, self.snapshot.config))
            line.heap.sort(key=in_order)


@contextmanager
def sandbox(snapshot: KueueSnapshot, lines: dict[str, QueueHeap]) -> Iterator[CycleSandbox]:
    """A sandbox whose changes end with it."""
    box = CycleSandbox(snapshot, lines)
    try:
        yield box
    finally:
        box.undo()


def _as_member(done: ProcessedNominee, at_ms: int) -> QuotaMember:
    ask = done.nominee.ask
    usage = dict(done.nominee.assignment.usage)
    return QuotaMember(ask.uid, ask.queue, ask.priority, ask.queued_ms, at_ms, False, usage)
