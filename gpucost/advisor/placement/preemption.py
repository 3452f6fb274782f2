"""kube-scheduler's preemption of pods of lower priority for pods that find no node, and what it frees.

Rules are those of its plugin DefaultPreemption, on by default (kubernetes v1.34 to v1.36,
pkg/scheduler/framework/plugins/defaultpreemption/default_preemption.go, and
pkg/scheduler/framework/preemption/preemption.go). Pods come one after the other. On each node that only lacks
room, all pods of lower priority are taken away; if the pod then fits, they are put back one by one where they
may stay, first those that a PodDisruptionBudget would spare, in both groups the most important first
(SelectVictimsOnNode). Of the nodes one is taken (pickOneNodeForPreemption) by fewest budgets broken, least
priority of the most important victim, least sum of priorities, fewest victims, latest start of the most
important ones; between equals at random. A budget is no bar, only a preference. Victims hold their room until
they have stopped, and count as victims for the next pod as well.

``preempt`` follows these rules. ``freed_capacity`` compares two states: what preemption gives back, and
whether the gang that asked for it can use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from gpucost.advisor.placement.free_capacity import FreeCapacity, positive
from gpucost.advisor.placement.gang_placement import GangPlacement, place
from gpucost.advisor.placement.pod_demand import PlacementDemand
from gpucost.cluster.objects.metadata import Resources, readable
from gpucost.cluster.objects.pods import PREEMPTED_BY_SCHEDULER, DisruptionBudget, Pod
from gpucost.cluster.views.node_fit import PODS, meets
from gpucost.domain.text import counted

LEAST_CANDIDATES, PART_OF_CANDIDATES = 100, 10
"""minCandidateNodesAbsolute, and one in so many (minCandidateNodesPercentage): nodes are examined from a
random one on, until as many as the larger of both are candidates (calculateNumCandidates)."""
_ABOVE_ZERO = 2**31
"""Added to each priority, so that a sum of negative ones is not the less the more there are."""


@dataclass(frozen=True)
class PodPreemption:
    """``nodes`` are all pods by node and pod set once ``victims`` have left; ``short`` how many of each pod
    set still find none. ``broken`` is how many victims a PodDisruptionBudget would spare. ``is_drawn``: other
    nodes were as good, and one is taken at random; ``is_sampled``: there are more candidate nodes than
    kube-scheduler examines. ``together`` of the victims, the last of them, are preempted only because their
    gang is preempted as a whole."""

    nodes: Mapping[str, Mapping[str, int]]
    short: Mapping[str, int]
    victims: tuple[Pod, ...]
    broken: int = 0
    is_drawn: bool = False
    is_sampled: bool = False
    together: int = 0

    @property
    def fits(self) -> bool:
        return not self.short


class _Candidate(NamedTuple):
    """A node with the pods that would have to leave it, the most important first; the lower the better.
    ``spared`` are uids of those that a budget would spare."""

    broken: int
    highest: int
    total: int
    pods: int
    not_since_ms: float
    name: str
    at: int
    victims: tuple[Pod, ...]
    spared: frozenset[str]

    @property
    def rank(self) -> tuple[float, ...]:
        return self[:5]


def preempt(
    rooms: FreeCapacity,
    wanted: Sequence[PlacementDemand],
    found: GangPlacement,
    budgets: Iterable[DisruptionBudget] = (),
    now_ms: int = 0,
    gone: frozenset[str] = frozenset(),
) -> PodPreemption:
    """For the pods that ``found`` gave no node in ``rooms``, the highest priority first. ``gone`` are uids of
    pods that ``rooms`` is without. Changes nothing."""
    field_ = _Field(rooms.copy(), _Budgets(budgets), now_ms, gone)
    nodes = {each.name: dict(found.nodes.get(each.name, {})) for each in wanted}
    for each in wanted:
        for node, count in nodes[each.name].items():
            field_.rooms.take(node, positive(each.asks.requests), count)
    for each in sorted(wanted, key=lambda one: -one.priority):
        left = each.count - sum(nodes[each.name].values())
        for node in _placed(field_, each, left) if each.preempts else ():
            nodes[each.name][node] = nodes[each.name].get(node, 0) + 1
    short = {each.name: each.count - sum(nodes[each.name].values()) for each in wanted}
    return PodPreemption(
        nodes,
        {name: count for name, count in sorted(short.items()) if count > 0},
        tuple(field_.victims.values()),
        len(field_.broken),
        field_.is_drawn,
        field_.is_sampled,
    )


def evictable(rooms: FreeCapacity, wanted: Sequence[PlacementDemand]) -> frozenset[str]:
    """Uids of pods that would be preempted wherever that makes room for all of ``wanted``."""
    if not wanted or not all(each.preempts for each in wanted):
        return frozenset()
    least = min(each.priority for each in wanted)
    nodes = {at for each in wanted for at in rooms.base.admits(each.asks)}
    pods = (pod for at in nodes for pod in rooms.base.by_importance[at])
    return frozenset(pod.meta.uid for pod in pods if pod.priority < least)


@dataclass
class _Field:
    """Nodes as they are after the pods placed before: each of these has a node, and its victims are still
    there."""

    rooms: FreeCapacity
    budgets: _Budgets
    now_ms: int
    gone: frozenset[str]
    victims: dict[str, Pod] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    is_drawn: bool = False
    is_sampled: bool = False

    def take(self, at: int, asked: Resources, victims: Iterable[Pod]) -> str:
        """The node's name."""
        self.rooms.take_at(at, asked, 1)
        self.victims.update((pod.meta.uid, pod) for pod in victims)
        return self.rooms.name(at)

    def candidate(self, at: int, asked: Resources, priority: int) -> _Candidate | None:
        """The pods that would leave the node for a pod of ``asked``; None where that would not help."""
        there = self.rooms.base.by_importance[at]
        if not there or there[-1].priority >= priority:
            return None
        lower = [pod for pod in there if pod.priority < priority and pod.meta.uid not in self.gone]
        if not lower:
            return None
        held = {pod.meta.uid: self.held(at, pod, asked) for pod in lower}
        spare = self.spare(at, asked)
        for amounts in held.values():
            for key, amount in amounts.items():
                spare[key] += amount
        if any(amount < 0 for amount in spare.values()):
            return None
        violating, others = self.budgets.split(lower)
        spared = {pod.meta.uid for pod in violating}
        victims = {pod.meta.uid for pod in (*violating, *others) if not _stays(held[pod.meta.uid], spare)}
        leaving = tuple(pod for pod in lower if pod.meta.uid in victims)
        return self._ranked(at, leaving, frozenset(victims & spared)) if leaving else None

    def _ranked(self, at: int, victims: tuple[Pod, ...], spared: frozenset[str]) -> _Candidate:
        highest = victims[0].priority
        of_highest = [pod.started_ms for pod in victims if pod.priority == highest]
        since_ms = min(self.now_ms if each is None else each for each in of_highest)
        total = sum(pod.priority + _ABOVE_ZERO for pod in victims)
        name = self.rooms.name(at)
        return _Candidate(len(spared), highest, total, len(victims), -since_ms, name, at, victims, spared)

    def spare(self, at: int, asked: Resources) -> dict[str, int]:
        """What is left of each resource that counts once the pod stands there too."""
        free = self.rooms.free_at(at)
        spare = {key: free.get(key, 0) - amount for key, amount in asked.items()}
        if PODS in self.rooms.node(at).allocatable:
            spare[PODS] = free.get(PODS, 0) - 1
        return spare

    def held(self, at: int, pod: Pod, asked: Resources) -> dict[str, int]:
        usage = self.rooms.base.usage(pod)
        held = {key: usage[key] for key in asked if usage.get(key)}
        if PODS in self.rooms.node(at).allocatable:
            held[PODS] = 1
        return held


class _Budgets:
    """The PodDisruptionBudgets of all namespaces."""

    def __init__(self, budgets: Iterable[DisruptionBudget]) -> None:
        self._of: dict[str, list[DisruptionBudget]] = {}
        for each in budgets:
            if each.selector:
                self._of.setdefault(each.meta.namespace, []).append(each)

    def split(self, pods: Sequence[Pod]) -> tuple[list[Pod], list[Pod]]:
        """Those that a budget would spare were all of these disrupted, and the others; both in the order of
        ``pods``, which is that in which budgets are used up (filterPodsWithPDBViolation)."""
        if not self._of:
            return [], list(pods)
        violating, others, left = list[Pod](), list[Pod](), dict[str, int]()
        for pod in pods:
            is_spared = False
            for each in self._of.get(pod.meta.namespace, ()) if pod.meta.labels else ():
                if _counts(each, pod):
                    left[each.meta.uid] = left.get(each.meta.uid, each.allowed) - 1
                    is_spared = is_spared or left[each.meta.uid] < 0
            (violating if is_spared else others).append(pod)
        return violating, others


def _counts(budget: DisruptionBudget, pod: Pod) -> bool:
    """Whether its disruption would use the budget up: those on their way out were counted before."""
    if pod.meta.name in budget.disrupted:
        return False
    return all(meets(each, pod.meta.labels) for each in budget.selector or ())


def _stays(held: Resources, spare: dict[str, int]) -> bool:
    """Whether a pod may stay; then it takes its room again."""
    if any(spare[key] < amount for key, amount in held.items()):
        return False
    for key, amount in held.items():
        spare[key] -= amount
    return True


def _placed(field_: _Field, each: PlacementDemand, left: int) -> Iterable[str]:
    """A node for each pod, as long as there is one."""
    asked = positive(each.asks.requests)
    waiting = [node for node in each.nominated[:left] if _is_cleared(field_, each, node, asked)]
    yield from waiting
    admits, heap = field_.rooms.base.admits(each.asks), list[_Candidate]()
    allowed = [at for at in admits if each.among is None or field_.rooms.name(at) in each.among]
    for at in allowed if left > len(waiting) else ():
        found = field_.candidate(at, asked, each.priority)
        heap += [found] if found is not None else []
    heapify(heap)
    ranks = set[tuple[float, ...]]()
    for _ in range(left - len(waiting)):
        if not heap:
            return
        most = max(LEAST_CANDIDATES, len(allowed) // PART_OF_CANDIDATES)
        field_.is_sampled = field_.is_sampled or len(heap) > most
        best = heappop(heap)
        ranks.add(best.rank)
        field_.broken |= best.spared
        yield field_.take(best.at, asked, best.victims)
        again = field_.candidate(best.at, asked, each.priority)
        if again is not None:
            heappush(heap, again)
    as_good = (pod.meta.uid for other in heap if other.rank in ranks for pod in other.victims)
    field_.is_drawn = field_.is_drawn or any(uid not in field_.victims for uid in as_good)


def _is_cleared(field_: _Field, each: PlacementDemand, node: str, asked: Resources) -> bool:
    """Takes the node on which room is being made for a pod, where that will do: as long as pods that were
    preempted there are stopping, it preempts no others (PodEligibleToPreemptOthers)."""
    at = field_.rooms.at(node)
    if at is None or at not in field_.rooms.base.admits(each.asks):
        return False
    leaving = [pod for pod in field_.rooms.base.by_importance[at] if _is_leaving(pod, each.priority)]
    spare = field_.spare(at, asked)
    for pod in leaving:
        for key, amount in field_.held(at, pod, asked).items():
            spare[key] += amount
    if not leaving or any(amount < 0 for amount in spare.values()):
        return False
    field_.take(at, asked, leaving)
    return True


def _is_leaving(pod: Pod, priority: int) -> bool:
    disruption = pod.disruption
    was_preempted = disruption is not None and disruption.reason == PREEMPTED_BY_SCHEDULER
    return pod.priority < priority and pod.is_leaving and was_preempted


MOST_NAMED = 5
"""Nodes that a sentence names; it says how many more there are."""


@dataclass(frozen=True, slots=True)
class PreemptionBenefit:
    """Of one pod set, alone: how many of its ``count`` pods would fit before and after, and what one pod asks
    for of the resource it is about."""

    pod_set: str
    count: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class FreedCapacity:
    """``units`` are what is given back in all, by resource that the pods ask for; ``by_node`` what each node
    gives back of it, and ``free`` what is free on these nodes afterwards. ``placement`` is that of the gang
    afterwards."""

    units: Mapping[str, int]
    by_node: Mapping[str, Mapping[str, int]]
    free: Mapping[str, Mapping[str, int]]
    uses: tuple[PreemptionBenefit, ...]
    placement: GangPlacement

    @property
    def is_useless(self) -> bool:
        """Whether something is given back, and the gang certainly still does not fit."""
        return any(self.units.values()) and self.placement.is_exact and not self.placement.fits

    def says(self, resource: str, wanted: Sequence[PlacementDemand]) -> str:
        """``preemption frees 8 nvidia.com/gpu, but on 8 nodes with at most 1 each (n1, n2, …): pod set main
        needs 8 on one node``; empty where the gang can use it."""
        if not self.is_useless or not self.units.get(resource):
            return ""
        nodes = sorted(name for name, units in self.by_node.items() if units.get(resource))
        most = max(self.free[name].get(resource, 0) for name in nodes)
        named = ", ".join(nodes[:MOST_NAMED])
        more = f" and {len(nodes) - MOST_NAMED} more" if len(nodes) > MOST_NAMED else ""
        needs = max(wanted, key=lambda each: (each.asks.requests.get(resource, 0), each.name))
        asks = needs.asks.requests.get(resource, 0)
        asked, given = readable(resource, asks), readable(resource, self.units[resource])
        where = (
            f"on {len(nodes)} nodes with at most {readable(resource, most)} free each"
            if len(nodes) > 1
            else "on one node"
        )
        if asks > most:
            but = f"a pod of {needs.name} needs {asked} on one node"
        elif self.placement.notes:
            but = self.placement.notes[0]
        else:
            fits = {use.pod_set: use.after for use in self.uses}
            but = (
                f"of {counted(needs.count, 'pod')} of {needs.name} {fits.get(needs.name, 0)} would find room"
            )
        return f"preemption frees {given} {resource}, but {where} ({named}{more}): {but}"


def freed_capacity(
    before: FreeCapacity, after: FreeCapacity, wanted: Sequence[PlacementDemand]
) -> FreedCapacity:
    """Compares two free capacities of one snapshot: ``after`` has the victims gone. Amounts are as of
    ``Resources``."""
    asked = {key for each in wanted for key in positive(each.asks.requests)}
    by_node: dict[str, dict[str, int]] = {}
    free: dict[str, dict[str, int]] = {}
    for at in after.changed:
        was, now = before.free_at(at), after.free_at(at)
        more = {key: now.get(key, 0) - was.get(key, 0) for key in sorted(asked)}
        gained = {key: amount for key, amount in more.items() if amount > 0}
        if gained:
            by_node[after.name(at)] = gained
            free[after.name(at)] = {key: max(now.get(key, 0), 0) for key in sorted(asked)}
    units = {key: sum(gained.get(key, 0) for gained in by_node.values()) for key in sorted(asked)}
    uses = tuple(
        PreemptionBenefit(each.name, each.count, fitting(before, each), fitting(after, each))
        for each in sorted(wanted, key=lambda one: one.name)
    )
    return FreedCapacity(units, by_node, free, uses, place(after, wanted, ask_empty=False))


def fitting(rooms: FreeCapacity, wanted: PlacementDemand) -> int:
    """How many of its pods would fit, alone."""
    return sum(place(rooms, [wanted], ask_empty=False).nodes.get(wanted.name, {}).values())
