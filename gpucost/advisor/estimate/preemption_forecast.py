"""Whether preemption would have no rest if a job were submitted now: its queue's tree, played forward.

All that holds quota in the tree runs on, all that waits there waits, and the job comes; then cycles run, with
the time that evicted pods take to go, until nothing moves any more or a state comes back
(``replay_timeline``). Nobody ends and nobody else comes meanwhile: a ring that is proven so goes on until
something does. It is the job's if it preempts in it, or is preempted.

Then the policy that allows it is tried at other values: the first under which the job is in no ring is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpucost.advisor.kueue.admission import KueueView
from gpucost.advisor.kueue.pending_queues import standing
from gpucost.advisor.kueue.requests import QuotaRequest, ask_of
from gpucost.advisor.replay.kueue_replay import SETTING_BY_REASON, KueueReplay, ReplayTimings
from gpucost.advisor.replay.replay_timeline import (
    NEVER_ENDS,
    RepeatedPreemption,
    ReplayArrival,
    play,
)
from gpucost.cluster.objects.kueue import ClusterQueuePreemption, Workload
from gpucost.cluster.objects.state import ClusterState
from gpucost.domain.time import SECOND_MS

TIMINGS = ReplayTimings(leaves_ms=30 * SECOND_MS)
"""The time that Kubernetes gives a pod to go."""
MOST_CYCLES = 3_000
MOST_KNOWN = 2_000
"""Workloads of a tree, above which it is not played: the answer would be late."""
NEVER = "Never"
_PATHS = {"borrowWithinCohort": "borrowWithinCohort.policy"}


@dataclass(frozen=True, slots=True)
class RestlessQueue:
    """Preemption that would go on without end: ``pairs`` of uids, the queue that preempts and the ``setting``
    below ``spec.preemption`` by which it may; ``remedy`` is a value of a setting under which the job is in no
    ring, None where none of those that were tried is."""

    pairs: tuple[RepeatedPreemption, ...]
    queue: str
    setting: str
    remedy: tuple[str, str] | None


class LargeTree(NamedTuple):
    """A tree of so many workloads that it is not played."""

    workloads: int


def restless_queue(view: KueueView, workload: Workload) -> RestlessQueue | LargeTree | None:
    """What would have no rest with a workload that its queue takes; None where all comes to rest, or where no
    queue of its tree preempts."""
    ask = standing(view.snapshot, workload)
    tree = view.tree(ask.queue)
    queues = {name: view.snapshot.queues[name] for name in tree}
    if all(each.spec.preemption == ClusterQueuePreemption() for each in queues.values()):
        return None
    forward = _Forward(view, ask)
    if forward.count > MOST_KNOWN:
        return LargeTree(forward.count)
    pairs = forward.ring(view.snapshot.state)
    if not pairs:
        return None
    by, reason = pairs[0].by, pairs[0].reason
    queue, setting = forward.queue_of(by), SETTING_BY_REASON[reason]
    remedy = next(
        (said for said, state in _remedies(view.snapshot.state, queue, setting) if not forward.ring(state)),
        None,
    )
    return RestlessQueue(pairs, queue, setting, remedy)


def _remedies(
    state: ClusterState, queue: str, setting: str
) -> Iterator[tuple[tuple[str, str], ClusterState]]:
    """The setting with less rights, and the state with it."""
    spec = state.cluster_queue_by_name[queue]
    for value in ("LowerPriority", NEVER):
        preemption = _with(spec.preemption, setting, value)
        if preemption == spec.preemption or (
            value != NEVER and _with(preemption, setting, NEVER) == spec.preemption
        ):
            continue
        changed = {
            uid: replace(each, preemption=preemption) if each.name == queue else each
            for uid, each in state.cluster_queues.items()
        }
        yield (_PATHS.get(setting, setting), value), replace(state, cluster_queues=changed)


def _with(policy: ClusterQueuePreemption, setting: str, value: str) -> ClusterQueuePreemption:
    if setting == "withinClusterQueue":
        return replace(policy, within_cluster_queue=value)
    if setting == "borrowWithinCohort":
        return replace(policy, borrow_within_cohort=value)
    if value == NEVER:  # without it nothing is preempted while borrowing
        return replace(policy, reclaim_within_cohort=value, borrow_within_cohort=value)
    return replace(policy, reclaim_within_cohort=value)


class _Forward:
    """The tree as it is, with one job more."""

    def __init__(self, view: KueueView, ask: QuotaRequest) -> None:
        self._config, self._own = view.snapshot.config, ask.uid
        state, self._now_ms = view.snapshot.state, view.snapshot.state.at_ms
        tree = view.tree(ask.queue)
        lines = view.lines_of(ask.queue)
        waiting = [each for line in lines.values() for each in (*line.heap, *line.parked)]
        self._asks: dict[str, QuotaRequest] = {each.uid: each for each in waiting}
        self._held = [
            member
            for name in sorted(tree)
            for member in view.snapshot.queues[name].members.values()
            if member.uid != ask.uid
        ]
        for member in self._held:
            self._asks[member.uid] = ask_of(state.workloads[member.uid], member.queue, self._config)
        self._asks[ask.uid] = ask

    @property
    def count(self) -> int:
        return len(self._asks)

    def queue_of(self, uid: str) -> str:
        return self._asks[uid].queue

    def ring(self, state: ClusterState) -> tuple[RepeatedPreemption, ...]:
        """Who preempts whom without end, if the job does or is; the job's own first."""
        kueue = KueueReplay(state, self._config, TIMINGS)
        begun: Mapping[str, int] = {each.uid: each.reserved_ms for each in self._held if not each.is_evicted}
        for member in self._held:
            if not member.is_evicted:
                kueue.begin(member, self._asks[member.uid])
        arrivals = [
            ReplayArrival(uid, self._now_ms, NEVER_ENDS, each) for uid, each in sorted(self._asks.items())
        ]
        outcome = play(arrivals, kueue, begun=begun, most_cycles=MOST_CYCLES)
        if outcome.restless is None:
            return ()
        pairs = outcome.restless.pairs
        if not any(self._own in (each.by, each.victim) for each in pairs):
            return ()
        return tuple(sorted(pairs, key=lambda each: (self._own not in (each.by, each.victim), each)))
