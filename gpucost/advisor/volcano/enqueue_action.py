"""The action enqueue: in which order jobs are asked to enter, and which the plugins let in.

Order: volcano, pkg/scheduler/framework/session_plugins.go (QueueOrderFn, JobOrderFn), plugins priority, gang
and drf, v1.15.1. Plugins are asked in the order of their tiers; the first that sees a difference decides,
then the older one goes first, then the smaller uid.

Votes of overcommit and of the quota plugin: volcano, pkg/scheduler/actions/enqueue/enqueue.go,
plugins/overcommit/overcommit.go, framework/session_plugins.go (JobEnqueueable), v1.15.1.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from gpucost.advisor.volcano.gang import VolcanoGang
from gpucost.advisor.volcano.queues import QueueRefusal, SessionQueues
from gpucost.advisor.volcano.resource_amounts import (
    ResourceAmounts,
    add_to,
    counted,
    minus,
    plus,
    share,
    too_much,
)
from gpucost.cluster.objects.scheduler_config import VolcanoConfig

SortKey: TypeAlias = tuple[float | str, ...]


@dataclass
class JobTurn:
    """A job while a session runs, with what it was given. ``ready`` and ``left`` are pods by place in its
    tasks."""

    gang: VolcanoGang
    least: int
    ready: dict[str, int]
    left: list[int]
    allocated: ResourceAmounts = field(default_factory=dict)

    @classmethod
    def of(cls, gang: VolcanoGang, has_gangs: bool) -> JobTurn:
        """Without the plugin gang every pod starts on its own."""
        least = gang.min_member if has_gangs else 1
        left = [task.count for task in gang.tasks]
        return cls(gang, least, dict(gang.ready), left, counted(gang.allocated))

    @property
    def is_ready(self) -> bool:
        return self.gang.is_ready(self.ready, self.least)

    @property
    def waits(self) -> bool:
        """Whether pods of it have no node."""
        return any(self.left)


def job_key(turn: JobTurn, config: VolcanoConfig, total: ResourceAmounts) -> SortKey:
    """Smaller goes first: higher priority, not ready before ready, the smaller dominant share."""
    found: list[float | str] = []
    for plugin in (name for tier in config.tiers for name in tier):
        if plugin == "priority":
            found.append(-turn.gang.priority)
        elif plugin == "gang":
            found.append(1 if turn.is_ready else 0)
        elif plugin == "drf":
            found.append(share(turn.allocated, total, total))
    gang = turn.gang
    return (*found, gang.created_ms, gang.uid or "~", gang.namespace, gang.name)


def queue_key(name: str, queues: SessionQueues) -> SortKey:
    """Smaller goes first: higher priority, the smaller share of what it deserves."""
    meta = queues.attrs[name].queue.meta
    return (*queues.order(name), meta.created_ms, meta.uid)


FACTOR = "overcommit-factor"
DEFAULT_FACTOR = 1.2
NO_QUEUE = ""
OrderKey: TypeAlias = tuple[SortKey, SortKey]
"""Of a queue, then of a job in it; smaller goes first. Letting jobs in changes neither."""


class EnqueueVotes:
    """The plugins' answers for one job after another, while those that are let in count. ``idle`` is what
    overcommit has to give (``idle_of``), ``promised`` what it has reserved; queues are changed."""

    def __init__(
        self, config: VolcanoConfig, queues: SessionQueues, idle: ResourceAmounts, promised: ResourceAmounts
    ) -> None:
        self._config, self.queues, self.idle = config, queues, idle
        self.promised: dict[str, float] = dict(promised)
        self._refused: set[object] = set()

    def ask(self, gang: VolcanoGang) -> QueueRefusal | None:
        """The plugins vote tier by tier: one that rejects decides; a tier that permits asks no further."""
        if gang.min_resources is None:
            # Not even a closed queue is asked (enqueue.go).
            return None
        for tier in self._config.tiers:
            permits = False
            for plugin in tier:
                if plugin == "overcommit":
                    refused = self._overcommit(gang)
                elif plugin in ("proportion", "capacity"):
                    refused = self.queues.enqueueable(gang)
                else:
                    continue
                if refused is not None:
                    return refused
                permits = True
            if permits:
                return None
        return None

    def takes(self, gang: VolcanoGang) -> bool:
        """Lets it in, if no plugin refuses it. While jobs are only let in, a refused job stays refused, and
        with it every job that asks the same queue, or the whole cluster, for the same."""
        alike = gang.minimum_key
        if alike in self._refused or (gang.queue, alike) in self._refused:
            return False
        refused = self.ask(gang)
        if refused is None:
            self.let_in(gang)
        elif refused.reason == "Overcommit":
            self._refused.add(alike)
        else:
            self._refused.add((gang.queue, alike))
        return refused is None

    def let_in(self, gang: VolcanoGang) -> None:
        add_to(self.promised, gang.minimum)
        self.queues.enqueued(gang)

    def _overcommit(self, gang: VolcanoGang) -> QueueRefusal | None:
        minimum = gang.minimum
        wanted, idle = plus(self.promised, minimum), self.idle
        short = too_much(wanted, idle, minimum)
        return QueueRefusal("Overcommit", NO_QUEUE, FACTOR, short, wanted, idle) if short else None


def idle_of(config: VolcanoConfig, total: ResourceAmounts, used: ResourceAmounts) -> dict[str, float]:
    """What overcommit has to give: the cluster times its factor, less what is used."""
    factor = factors(config)
    most = {key: amount * factor.get(key, factor[FACTOR]) for key, amount in total.items()}
    return minus(most, used)


@dataclass(frozen=True)
class EnqueueLine:
    """All that wait to be let in, in the order in which they are asked, and how one run of the action ends
    for them. A job that is refused holds back no other. Jobs of queues that do not exist are not asked."""

    places: Sequence[OrderKey]
    gangs: Sequence[VolcanoGang]
    taken: Sequence[int]
    """Those that are let in, by their place among ``gangs``."""
    at: Mapping[str, int] = field(default_factory=dict)
    """Places by uid."""

    @classmethod
    def of(cls, pending: Iterable[VolcanoGang], votes: EnqueueVotes, place_of: JobPlace) -> EnqueueLine:
        ordered = sorted(
            ((place_of(gang), gang) for gang in pending if gang.queue in votes.queues.attrs),
            key=lambda each: each[0],
        )
        gangs = [gang for _, gang in ordered]
        taken = [at for at, gang in enumerate(gangs) if votes.takes(gang)]
        return cls([place for place, _ in ordered], gangs, taken, {g.uid: at for at, g in enumerate(gangs)})

    def let_in(self) -> list[VolcanoGang]:
        return [self.gangs[at] for at in self.taken]

    def before(self, uid: str) -> list[VolcanoGang]:
        """Those that are let in before one of them."""
        return [self.gangs[at] for at in self.taken if at < self.at[uid]]

    def with_one(
        self, gang: VolcanoGang, place: OrderKey, votes: EnqueueVotes
    ) -> tuple[QueueRefusal | None, list[VolcanoGang]]:
        """Why a job that joins it is refused, None where it is let in; and the other jobs that
        are let in then. Only jobs that were let in without it are asked again, until one of them
        is refused because of it."""
        at = bisect_left(self.places, place)
        found = [self.gangs[each] for each in self.taken if each < at]
        for each in found:
            votes.let_in(each)
        refused = votes.ask(gang)
        if refused is not None:
            return refused, found
        votes.let_in(gang)
        for behind in (each for each in self.taken if each >= at):
            if not votes.takes(self.gangs[behind]):
                found += [other for other in self.gangs[behind + 1 :] if votes.takes(other)]
                break
            found.append(self.gangs[behind])
        return None, found


class JobPlace:
    """The place of a job in the order of a session, whose queues have shares as they are at its start."""

    def __init__(self, config: VolcanoConfig, total: ResourceAmounts, queues: SessionQueues) -> None:
        self._config, self._total, self._queues = config, total, queues
        self._keys: dict[str, SortKey] = {}
        self._has_gangs = "gang" in config.plugins

    def __call__(self, gang: VolcanoGang) -> OrderKey:
        key = self._keys.get(gang.queue)
        if key is None:
            key = self._keys[gang.queue] = queue_key(gang.queue, self._queues)
        return key, job_key(JobTurn.of(gang, self._has_gangs), self._config, self._total)


def factors(config: VolcanoConfig) -> Mapping[str, float]:
    """By resource, and under ``overcommit-factor`` for all others; what is below 1 or no number is 1.2."""
    found = {FACTOR: DEFAULT_FACTOR}
    for key, text in config.arguments.get("overcommit", {}).items():
        name = key.removeprefix(f"{FACTOR}.")
        if key == FACTOR or name != key:
            found[name if name != key else FACTOR] = _factor(text)
    return found


def _factor(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return DEFAULT_FACTOR
    return number if 1.0 <= number < 1e9 else DEFAULT_FACTOR
