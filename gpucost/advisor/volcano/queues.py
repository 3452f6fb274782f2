"""Queues in one session of the scheduler, and the decisions of the quota plugins about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Self

from gpucost.advisor.volcano.gang import VolcanoGang
from gpucost.advisor.volcano.resource_amounts import (
    ResourceAmounts,
    add_to,
    at_most,
    covers,
    exceeding,
    minus,
    plus,
    share,
    too_much,
)
from gpucost.cluster.objects.volcano import VolcanoQueue
from gpucost.cluster.views.node_fit import PODS
from gpucost.cluster.views.volcano_queues import ROOT_QUEUE

OPEN = ("Open", "")
"""States in which a queue takes jobs; a queue without a status counts as open."""


class QueueRefusal(NamedTuple):
    """Why a queue does not take something: ``reason`` in one word, ``field`` of ``queue``, resources of which
    there is not enough, and how much of them is ``used`` (with what is asked) and the ``limit``."""

    reason: str
    queue: str
    field: str
    resources: tuple[str, ...] = ()
    used: ResourceAmounts = MappingProxyType({})
    limit: ResourceAmounts = MappingProxyType({})


@dataclass(frozen=True)
class QueueSums:
    """What ``jobs`` jobs hold, want and were promised together (OnSessionOpen of the plugins)."""

    jobs: int
    allocated: ResourceAmounts
    request: ResourceAmounts
    elastic: ResourceAmounts
    inqueue: ResourceAmounts

    @classmethod
    def of(cls, gangs: Iterable[VolcanoGang]) -> QueueSums:
        """Pods of a job that was not let in are not made, so it wants nothing yet."""
        jobs, allocated, request = 0, dict[str, float](), dict[str, float]()
        elastic, inqueue = dict[str, float](), dict[str, float]()
        for gang in gangs:
            jobs += 1
            holds = gang.holds
            add_to(allocated, holds)
            add_to(request, holds)
            if not gang.is_pending:
                add_to(request, gang.wants)
            if holds:
                add_to(elastic, exceeding(holds, gang.minimum))
            add_to(inqueue, promised(gang))
        return cls(jobs, allocated, request, elastic, inqueue)


NO_SUMS = QueueSums(0, {}, {}, {}, {})


@dataclass
class QueueAttr:
    """One queue while a session runs. ``elastic`` is what its jobs hold above their minResources, ``inqueue``
    what those that were let in have still to get. ``ancestors`` are from the root down."""

    queue: VolcanoQueue
    guarantee: ResourceAmounts = field(default_factory=dict)
    real_capability: ResourceAmounts = field(default_factory=dict)
    deserved: ResourceAmounts = field(default_factory=dict)
    allocated: ResourceAmounts = field(default_factory=dict)
    request: ResourceAmounts = field(default_factory=dict)
    elastic: ResourceAmounts = field(default_factory=dict)
    inqueue: ResourceAmounts = field(default_factory=dict)
    ancestors: tuple[str, ...] = ()
    is_leaf: bool = True

    @property
    def name(self) -> str:
        return self.queue.name

    @property
    def share(self) -> float:
        return share(self.allocated, self.deserved, self.deserved)

    def add(self, sums: QueueSums, has_pods: bool) -> None:
        """What jobs hold, want and were promised. Pods are counted where nodes say how many they take."""
        parts = [sums.allocated, sums.request]
        if not has_pods:
            parts = [{key: amount for key, amount in each.items() if key != PODS} for each in parts]
        self.allocated, self.request = plus(self.allocated, parts[0]), plus(self.request, parts[1])
        self.elastic, self.inqueue = plus(self.elastic, sums.elastic), plus(self.inqueue, sums.inqueue)


class QueueOverlay(Mapping[str, QueueAttr]):
    """Queues, each of which is copied when it is first used: a question touches few of many."""

    def __init__(self, base: Mapping[str, QueueAttr]) -> None:
        self._base = base
        self._own: dict[str, QueueAttr] = {}

    def __getitem__(self, name: str) -> QueueAttr:
        found = self._own.get(name)
        if found is None:
            # Amounts are replaced, never changed in place: a shallow copy will do.
            found = self._own[name] = copy(self._base[name])
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._base

    def __iter__(self) -> Iterator[str]:
        return iter(self._base)

    def __len__(self) -> int:
        return len(self._base)


def promised(gang: VolcanoGang) -> dict[str, float]:
    """Of its minResources what a job that was let in has not got yet; of one that runs only where it has as
    many pods as it needs (plugins/util, GetInqueueResource)."""
    if gang.min_resources is None:
        return {}
    runs = gang.phase == "Running" and len(gang.allocated) > 0 and gang.ready_count >= gang.min_member
    if gang.phase != "Inqueue" and not runs:
        return {}
    return exceeding(gang.minimum, gang.holds)


def reserved(gang: VolcanoGang) -> ResourceAmounts:
    """What overcommit reserves for a job that was let in: all of its minResources until it runs
    (plugins/overcommit/overcommit.go, OnSessionOpen)."""
    if gang.min_resources is None:
        return {}
    minimum = gang.minimum
    if gang.phase == "Inqueue":
        return minimum
    if gang.phase == "Running" and gang.ready_count >= gang.min_member:
        left = minus(minimum, gang.holds)
        return {key: max(0.0, amount) for key, amount in left.items()}
    return {}


class SessionQueues:
    """Queues by name, without any plugin that limits them: jobs may take all that nodes have.

    ``ProportionQueues`` and ``CapacityQueues`` refine it.
    """

    def __init__(
        self, attrs: Mapping[str, QueueAttr], total: ResourceAmounts, present: frozenset[str] = frozenset()
    ) -> None:
        """``present`` are queues that have jobs."""
        self.attrs = attrs
        self.total = total
        self.present = present

    def copy(self) -> Self:
        """The same, to be changed apart. This one must not be changed any more."""
        other = copy(self)
        other.attrs = QueueOverlay(self.attrs)
        return other

    def chain(self, name: str) -> Sequence[QueueAttr]:
        """The queues in which a job of it counts: the queue, and with a hierarchy its ancestors."""
        own = self.attrs[name]
        return (own, *(self.attrs[each] for each in reversed(own.ancestors)))

    def allocate(self, name: str, asked: ResourceAmounts) -> None:
        for attr in self.chain(name):
            attr.allocated = plus(attr.allocated, asked)

    def free(self, name: str, asked: ResourceAmounts) -> None:
        for attr in self.chain(name):
            attr.allocated = minus(attr.allocated, asked)

    def enqueueable(self, _gang: VolcanoGang) -> QueueRefusal | None:
        """None where a job may be let in (JobEnqueueableFn)."""
        return None

    def enqueued(self, gang: VolcanoGang) -> None:
        """It was let in."""
        minimum = gang.minimum
        for attr in self.chain(gang.queue):
            attr.inqueue = plus(attr.inqueue, minimum)

    def overused(self, _name: str) -> bool:
        """Whether its turn is skipped (OverusedFn)."""
        return False

    def allocatable(self, _name: str, _asked: ResourceAmounts) -> QueueRefusal | None:
        """None where one more pod may be bound (AllocatableFn)."""
        return None

    def preemptive(self, _name: str, _asked: ResourceAmounts) -> bool:
        """Whether it may take back from others (PreemptiveFn)."""
        return True

    def order(self, _name: str) -> tuple[float, ...]:
        """Smaller goes first (QueueOrderFn)."""
        return ()

    def _closed(self, name: str) -> QueueRefusal | None:
        state = self.attrs[name].queue.state
        return None if state in OPEN else QueueRefusal("QueueClosed", name, "status.state")

    def _enough(self, attr: QueueAttr, gang: VolcanoGang) -> QueueRefusal | None:
        """minResources + allocated + inqueue - elastic, on what is asked, at most the real capability."""
        minimum = gang.minimum
        used = minus(plus(minimum, attr.allocated, attr.inqueue), attr.elastic)
        short = too_much(used, attr.real_capability, minimum)
        if not short:
            return None
        return QueueRefusal("QueueQuota", attr.name, "spec.capability", short, used, attr.real_capability)


class ProportionQueues(SessionQueues):
    """The plugin proportion: no queue gets more than the weights give."""

    def enqueueable(self, gang: VolcanoGang) -> QueueRefusal | None:
        closed = self._closed(gang.queue)
        if closed is not None or gang.min_resources is None:
            return closed
        return self._enough(self.attrs[gang.queue], gang)

    def overused(self, name: str) -> bool:
        attr = self.attrs[name]
        return covers(attr.allocated, attr.deserved)

    def allocatable(self, name: str, asked: ResourceAmounts) -> QueueRefusal | None:
        attr = self.attrs[name]
        used = plus(attr.allocated, asked)
        short = too_much(used, attr.deserved, asked)
        if short:
            capped = tuple(key for key in short if self._is_capped(attr, key))
            if capped:
                field_ = "spec.capability"
                return QueueRefusal("QueueCapability", name, field_, capped, used, attr.real_capability)
            return QueueRefusal("QueueShare", name, "spec.weight", short, used, attr.deserved)
        return self._closed(name)

    def _is_capped(self, attr: QueueAttr, resource: str) -> bool:
        """Whether the queue's own limits, and not its weight, keep it from more."""
        real = attr.real_capability.get(resource, 0.0)
        return real < self.total.get(resource, 0.0) and at_most(
            resource, real, attr.deserved.get(resource, 0.0)
        )

    def preemptive(self, name: str, asked: ResourceAmounts) -> bool:
        return self.allocatable(name, asked) is None

    def order(self, name: str) -> tuple[float, ...]:
        attr = self.attrs[name]
        return (-attr.queue.priority, attr.share)


class CapacityQueues(SessionQueues):
    """The plugin capacity: the real capability is the limit, of each ancestor too where ``hierarchy`` is on;
    ``broken`` is why the hierarchy cannot be built, and then nothing is let in anywhere."""

    def __init__(
        self,
        attrs: Mapping[str, QueueAttr],
        total: ResourceAmounts,
        present: frozenset[str] = frozenset(),
        broken: QueueRefusal | None = None,
    ) -> None:
        super().__init__(attrs, total, present)
        self.broken = broken

    def enqueueable(self, gang: VolcanoGang) -> QueueRefusal | None:
        attr = self.attrs[gang.queue]
        refused = self.broken or self._not_leaf(attr) or self._closed(gang.queue)
        if refused is not None or gang.min_resources is None:
            return refused
        return next(
            (found for each in self.chain(gang.queue) if (found := self._enough(each, gang)) is not None),
            None,
        )

    def allocatable(self, name: str, asked: ResourceAmounts) -> QueueRefusal | None:
        refused = self._closed(name) or self.broken or self._not_leaf(self.attrs[name])
        if refused is not None:
            return refused
        for attr in self.chain(name):
            used = plus(attr.allocated, asked)
            short = too_much(used, attr.real_capability, asked)
            if short:
                field_ = "spec.capability"
                return QueueRefusal("QueueCapability", attr.name, field_, short, used, attr.real_capability)
        return None

    def preemptive(self, name: str, asked: ResourceAmounts) -> bool:
        """Within its real capability, and of one resource at most what it deserves."""
        attr = self.attrs[name]
        if self.broken is not None or self._closed(name) is not None:
            return False
        used = plus(attr.allocated, asked)
        if too_much(used, attr.real_capability, asked):
            return False
        wanted = {key: amount for key, amount in asked.items() if amount > 0 and key != PODS}
        return len(too_much(used, attr.deserved, wanted)) < len(wanted)

    def order(self, name: str) -> tuple[float, ...]:
        """A queue that deserves nothing goes last, also among those that have all they deserve."""
        attr = self.attrs[name]
        deserves = any(attr.deserved.values())
        return (-attr.queue.priority, attr.share if deserves else 1.0, 0.0 if deserves else 1.0)

    def _not_leaf(self, attr: QueueAttr) -> QueueRefusal | None:
        return None if attr.is_leaf else QueueRefusal("NotALeaf", attr.name, "spec.parent")


def ancestors_of(name: str, queues: Mapping[str, VolcanoQueue]) -> tuple[str, ...] | QueueRefusal:
    """From the root down; a refusal where a parent is missing, or parents go round in a circle."""
    found: list[str] = []
    while name != ROOT_QUEUE:
        queue = queues[name]
        parent = queue.parent or ROOT_QUEUE
        if parent in found or parent == name:
            return QueueRefusal("QueueCycle", name, "spec.parent")
        if parent not in queues and parent != ROOT_QUEUE:
            return QueueRefusal("NoParent", name, "spec.parent")
        found.append(parent)
        name = parent
    return tuple(reversed(found))
