"""Since when a gang is partial, from the lives of its members. Exact to the millisecond where objects are.

Partial means: a member holds GPUs, and members that are bound or have done their part are fewer than needed.
It does not while every missing member is there and held back by a scheduling gate: Kueue or its user lets it
go later, and the scheduler has not failed. A gate that is gone left no trace: such a member is taken for one
that never had it.

Since when follows from members that are known to have ended, from those that wait, and from the word of the
gang's own object that it never was whole. A member that was lost without a trace and without a successor
leaves none of these: then it is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpucost.cluster.pods import Pod, PodPhase


class Need(NamedTuple):
    """``members`` it needs at once, or to have done their part, of which ``done`` have by the account of its
    own object. With ``stays_done`` none of these ever needs a successor. ``never_whole``: its own object
    says that it has not been whole since its first member was bound. ``wanted``: how many members it is made
    of, where that may be more than it needs."""

    members: int
    done: int = 0
    stays_done: bool = False
    never_whole: bool = False
    wanted: int = 0


class Partial(NamedTuple):
    """Since when a gang is partial, None where nothing says; ``was_whole``: whether its pods show that it
    was whole before."""

    since_ms: int | None
    was_whole: bool = False


def partial(
    need: Need, members: Sequence[Pod], gone: Sequence[Pod], holds_gpus: Callable[[Pod], bool]
) -> Partial | None:
    """Whether the gang is partial, and the last moment at which it became so; None while it is not.

    ``members`` are its pods in the API, ``gone`` those no longer there, which say only when it changed.
    Where a member is gone that nobody saw end, it is partial from the creation of the earliest pod that
    waits in its place, if there is one. Where the pods that wait are as old as its first binding, it never
    was whole; unless they may be those that it can do without.
    """
    if sum(pod.is_bound and pod.ended_ms is None for pod in members) >= need.members:
        return None
    now = _Counts(done=_unseen_done(need, members))
    for change in _changes(members, holds_gpus):
        now.add(change)
    if not now.is_partial(need):
        return None
    since_ms, was_whole = _last_start(need, (*members, *gone), holds_gpus)
    if since_ms is None or was_whole or need.never_whole:
        return Partial(since_ms, was_whole)
    waiting = [pod for pod in members if pod.bound_ms is None and not pod.has_ended and not pod.is_gated]
    if need.wanted > need.members:
        are_all_made = sum(pod.phase is not PodPhase.FAILED for pod in members) >= need.wanted
        late = [pod for pod in waiting if pod.meta.created_ms > since_ms]
        waiting = late or (waiting if are_all_made else [])
    if not waiting:
        return Partial(None)
    return Partial(max(since_ms, min(pod.meta.created_ms for pod in waiting)))


class _Change(NamedTuple):
    """What a member does to the counts of its gang, at one instant."""

    at_ms: int
    bound: int = 0
    holding: int = 0
    pending: int = 0
    gated: int = 0
    done: int = 0


@dataclass(slots=True)
class _Counts:
    """Members at one instant; ``holding`` are those of ``bound`` that hold GPUs."""

    bound: int = 0
    holding: int = 0
    pending: int = 0
    gated: int = 0
    done: int = 0

    def add(self, change: _Change) -> None:
        self.bound += change.bound
        self.holding += change.holding
        self.pending += change.pending
        self.gated += change.gated
        self.done += change.done

    def is_partial(self, need: Need) -> bool:
        """A member that succeeded while another waits in its place was only one of many to come (a Job with
        more completions than parallelism): it does not count as done."""
        rest = need.members - self.bound
        done = self.done if need.stays_done else min(self.done, max(0, rest - self.pending))
        return self.holding > 0 and rest - done > max(0, self.gated)


def _last_start(
    need: Need, pods: Sequence[Pod], holds_gpus: Callable[[Pod], bool]
) -> tuple[int | None, bool]:
    """When the last stretch of being partial began, and whether the gang was seen whole before."""
    by_instant: dict[int, list[_Change]] = {}
    for change in _changes(pods, holds_gpus):
        by_instant.setdefault(change.at_ms, []).append(change)
    counts = _Counts(done=_unseen_done(need, pods))
    since_ms, was_whole = None, False
    for at_ms in sorted(by_instant):
        for change in by_instant[at_ms]:
            counts.add(change)
        if not counts.is_partial(need):
            since_ms = None
            was_whole = was_whole or counts.holding > 0
        elif since_ms is None:
            since_ms = at_ms
    return since_ms, was_whole


def _unseen_done(need: Need, pods: Iterable[Pod]) -> int:
    """Members that are done and no longer known: taken for done all along."""
    return max(0, need.done - sum(pod.phase is PodPhase.SUCCEEDED for pod in pods))


def _changes(pods: Iterable[Pod], holds_gpus: Callable[[Pod], bool]) -> Iterator[_Change]:
    """Creation, binding and end of each. One whose end is not known says nothing of when it held its node."""
    for pod in pods:
        done = int(pod.phase is PodPhase.SUCCEEDED)
        gated = int(pod.is_gated)
        created_ms, bound_ms, ended_ms = pod.meta.created_ms, pod.bound_ms, pod.ended_ms
        if pod.has_ended and ended_ms is None:
            yield _Change(created_ms, done=done)
        elif bound_ms is None:
            yield _Change(created_ms, pending=1, gated=gated)
            if ended_ms is not None:
                yield _Change(max(created_ms, ended_ms), pending=-1, gated=-gated, done=done)
        else:
            holding = int(holds_gpus(pod))
            yield _Change(min(created_ms, bound_ms), pending=1, gated=gated)
            yield _Change(bound_ms, bound=1, holding=holding, pending=-1, gated=-gated)
            if ended_ms is not None:
                yield _Change(max(bound_ms, ended_ms), bound=-1, holding=-holding, done=done)
