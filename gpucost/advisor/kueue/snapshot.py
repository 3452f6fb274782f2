"""What a scheduling cycle works on: quota trees, workloads with quota in them, which pods a flavor admits,
and for fair sharing the dominant resource share of queues and cohorts, and which comes first where it is
equal.

Shares: kueue v0.19.2, pkg/cache/scheduler/fair_sharing.go. They are floats there, and so here: two shares are
equal when Kueue takes them for equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from random import Random

from gpucost.advisor.kueue.requests import PodSetRequest, added_usage, groups_by_resource
from gpucost.cluster.objects.kueue import (
    ClusterQueue,
    Cohort,
    FlavorResource,
    ResourceFlavor,
    Workload,
)
from gpucost.cluster.objects.metadata import is_false, is_true
from gpucost.cluster.objects.pods import PodTemplate, SelectorRequirement
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.cohorts import QuotaNode, quota_tree
from gpucost.cluster.views.node_fit import meets
from gpucost.cluster.views.queue_order import queue_timestamp_ms
from gpucost.cluster.views.queues import local_usages
from gpucost.cluster.views.quota import QuotaUse, workload_usage

_KEEPS_OUT = ("NoSchedule", "NoExecute")
STOPPED = ("Hold", "HoldAndDrain")


@dataclass(frozen=True)
class DominantShare:
    """How much a node borrows of what its cohort could lend it, in thousandths, before ``weight``."""

    ratio: float
    weight: float
    borrowed: frozenset[FlavorResource]

    @property
    def is_borrowing(self) -> bool:
        return bool(self.borrowed)

    @cached_property
    def rank(self) -> tuple[bool, float]:
        """To compare shares: a node that borrows with weight 0 is above all others."""
        if self.weight == 0 and self.borrowed:
            return True, self.ratio
        return False, self.ratio / self.weight if self.ratio else 0.0

    def borrows(self, keys: Iterable[FlavorResource]) -> bool:
        """Whether it borrows any of ``keys``."""
        return not self.borrowed.isdisjoint(keys)


class ShareTieBreaker:
    """Which of sibling cohorts with equal shares Kueue takes: the order of a Go map decides, which differs
    each time. Here it is the first in ``turn`` 0, the last in turn 1, in others any, always the same.

    ``ties`` are the pairs between which lots were drawn.
    """

    def __init__(self, turn: int = 0) -> None:
        self._turn, self._random = turn, Random(turn)
        self.ties: set[tuple[str, str]] = set()

    def draw(self, cohorts: Sequence[QuotaNode]) -> int:
        """The index of the one that is taken."""
        first, *others = (each.name for each in cohorts)
        self.ties.update((min(first, each), max(first, each)) for each in others)
        return (0, -1)[self._turn] if self._turn < 2 else self._random.randrange(len(cohorts))


class FairShares:
    """Shares of the nodes of a tree as it is when they are asked for. Weights by name; 1 for those that are
    not named."""

    def __init__(self, queues: Iterable[ClusterQueue], cohorts: Iterable[Cohort]) -> None:
        self._queue_weights = {each.name: float(each.weight) for each in queues}
        self._cohort_weights = {each.name: float(each.weight) for each in cohorts}
        self._lendable: dict[str, dict[str, int]] = {}

    def of(self, node: QuotaNode) -> DominantShare:
        """A root has none."""
        weights = self._queue_weights if node.is_queue else self._cohort_weights
        weight = weights.get(node.name, 1.0)
        if node.parent is None:
            return DominantShare(0.0, weight, frozenset())
        borrowed: set[FlavorResource] = set()
        by_resource: dict[str, int] = {}
        for key, used in node.usage.items():
            beyond = used - node.subtree.get(key, 0)
            if beyond > 0 and key in node.subtree:
                borrowed.add(key)
                by_resource[key.resource] = by_resource.get(key.resource, 0) + beyond
        ratio = 0.0
        if by_resource:
            lendable = self._lendable_to(node.parent)
            for resource, beyond in by_resource.items():
                most = lendable.get(resource, 0)
                if most > 0:
                    ratio = max(ratio, float(beyond) * 1000.0 / float(most))
        return DominantShare(ratio, weight, frozenset(borrowed))

    def _lendable_to(self, cohort: QuotaNode) -> dict[str, int]:
        """What a cohort could have at most, by resource, over all flavors of its tree."""
        found = self._lendable.get(cohort.name)
        if found is None:
            found = {}
            for key in cohort.path[-1].subtree:
                found[key.resource] = found.get(key.resource, 0) + cohort.potential(key)
            self._lendable[cohort.name] = found
        return found


@dataclass(frozen=True, slots=True, eq=False)
class QuotaMember:
    """A workload that holds quota. ``reserved_ms`` is since when, ``queued_ms`` its place in a queue.
    ``rank`` orders victims of one queue: already evicted, of lower priority, with the newest quota."""

    uid: str
    queue: str
    priority: int
    queued_ms: int
    reserved_ms: int
    is_evicted: bool
    usage: QuotaUse
    rank: tuple[bool, int, int, str] = field(init=False)

    def __post_init__(self) -> None:
        rank = not self.is_evicted, self.priority, -self.reserved_ms, self.uid
        object.__setattr__(self, "rank", rank)


class SnapshotQueue:
    """A ClusterQueue in a snapshot: its object, its place in the tree, and the workloads that hold quota in
    it, by uid."""

    __slots__ = ("covered", "is_active", "is_tas_only", "members", "node", "spec")

    def __init__(self, spec: ClusterQueue, node: QuotaNode, is_active: bool) -> None:
        self.spec, self.node, self.is_active = spec, node, is_active
        self.members: dict[str, QuotaMember] = {}
        self.covered: Mapping[str, int] = groups_by_resource(spec)
        self.is_tas_only = False

    @property
    def name(self) -> str:
        return self.spec.name

    def nominal(self, key: FlavorResource) -> int:
        quota = self.spec.quotas.get(key)
        return 0 if quota is None else quota.nominal

    def borrows_with(self, key: FlavorResource, amount: int) -> bool:
        """Whether ``amount`` more takes it beyond its own quota."""
        return self.node.usage.get(key, 0) + amount > self.nominal(key)

    def fits(self, usage: QuotaUse) -> bool:
        """Whether there is quota for all of it now, borrowed or not."""
        available = self.node.available
        for key, amount in usage.items():  # noqa: SIM110 - a generator costs more
            if amount > available(key):
                return False
        return True


class KueueSnapshot:
    """The quota trees of a cluster with their workloads, for what-ifs: whatever is removed is put back.

    ``state`` is left as it is. ``queues`` by name; one that is not active is included, and admits no
    workload.
    """

    def __init__(self, state: ClusterState, config: KueueConfig) -> None:
        self.state, self.config = state, config
        queues = state.cluster_queue_by_name
        members = [
            _member(each, state.at_ms)
            for each in state.workloads.values()
            if each.has_quota and each.cluster_queue in queues
        ]
        usage: dict[str, list[QuotaUse]] = {}
        for member in members:
            usage.setdefault(member.queue, []).append(member.usage)
        of_queues = {name: added_usage(usages) for name, usages in usage.items()}
        self.tree = quota_tree(queues.values(), state.cohorts.values(), of_queues)
        for cohort in self.tree.cohorts.values():
            cohort.children.sort(key=lambda node: (node.is_queue, node.name))  # in any order until here
        self.shares = FairShares(queues.values(), state.cohorts.values())
        self.lots = ShareTieBreaker()
        self.flavors: Mapping[str, ResourceFlavor] = state.flavor_by_name
        self.queues = {
            name: SnapshotQueue(spec, self.tree.queues[name], self._is_active(spec))
            for name, spec in queues.items()
        }
        self._levels = {each.meta.name: each.levels for each in state.topologies.values()}
        with_topology = {each.meta.name for each in self.flavors.values() if each.topology}
        self._has_topology = config.gates.get("TopologyAwareScheduling", True)
        for queue in self.queues.values():
            named = {flavor for group in queue.spec.groups for flavor in group.flavors}
            queue.is_tas_only = bool(named) and named <= with_topology
        for member in members:
            self.queues[member.queue].members[member.uid] = member
        self.local_usages = local_usages(state, config)
        self._refusals: dict[tuple[int, str], tuple[PodTemplate, FlavorRefusal | None]] = {}

    def remove(self, member: QuotaMember) -> None:
        """Takes its usage away."""
        node = self.queues[member.queue].node
        for key, amount in member.usage.items():
            node.add_usage(key, -amount)

    def put(self, member: QuotaMember) -> None:
        """Counts its usage again."""
        node = self.queues[member.queue].node
        for key, amount in member.usage.items():
            node.add_usage(key, amount)

    @contextmanager
    def without(self, members: Iterable[QuotaMember]) -> Iterator[None]:
        """As if these had given their quota back."""
        gone = list(members)
        for member in gone:
            self.remove(member)
        try:
            yield
        finally:
            for member in gone:
                self.put(member)

    @contextmanager
    def drawing(self, lots: ShareTieBreaker) -> Iterator[None]:
        """With these lots wherever some are drawn."""
        before, self.lots = self.lots, lots
        try:
            yield
        finally:
            self.lots = before

    @contextmanager
    def using(self, queue: SnapshotQueue, usage: QuotaUse, sign: int = 1) -> Iterator[None]:
        """As if the queue used so much more, or less with ``sign`` -1."""
        for key, amount in usage.items():
            queue.node.add_usage(key, sign * amount)
        try:
            yield
        finally:
            for key, amount in usage.items():
                queue.node.add_usage(key, -sign * amount)

    def refusal(self, queue: SnapshotQueue, asked: PodSetRequest, flavor: str) -> FlavorRefusal | None:
        """Why pods of a set cannot have a flavor of the queue, whatever its quota; None where they can."""
        return self._topology_refusal(queue, asked, flavor) or self.mismatch(asked.template, flavor)

    def mismatch(self, template: PodTemplate, flavor: str) -> FlavorRefusal | None:
        """Why taints or labels of a flavor keep pods of a template out; None where they do not."""
        key = id(template), flavor
        found = self._refusals.get(key)
        if found is None:
            found = self._refusals[key] = template, _refusal(template, self.flavors.get(flavor), flavor)
        return found[1]

    def _topology_refusal(
        self, queue: SnapshotQueue, asked: PodSetRequest, name: str
    ) -> FlavorRefusal | None:
        """Flavors with a topology are for pods that ask for one, and the other way round; unless the queue
        has no others (tas_flavorassigner.go, checkPodSetAndFlavorMatchForTAS)."""
        flavor = self.flavors.get(name)
        if flavor is None or not self._has_topology or not (asked.topology or flavor.topology):
            return None
        level = asked.level
        if level is None and not queue.is_tas_only:
            if not flavor.topology:
                return None
            said = f'Flavor "{name}" supports only TopologyAwareScheduling'
            return FlavorRefusal(said, "topology-only")
        if not flavor.topology:
            said = f'Flavor "{name}" does not support TopologyAwareScheduling'
            return FlavorRefusal(said, "no-topology")
        levels = self._levels.get(flavor.topology)
        if level and levels is not None and level not in levels:
            return FlavorRefusal(f'Flavor "{name}" does not contain the requested level', "level", level)
        return None

    def _is_active(self, spec: ClusterQueue) -> bool:
        """Whether Kueue counts it as active: by its Active condition, and by the causes of that condition,
        for a queue that is not reconciled yet."""
        if spec.stop_policy in STOPPED or is_false(spec.conditions, "Active"):
            return False
        if self.tree.queues[spec.name].in_cycle:
            return False
        named = {flavor for group in spec.groups for flavor in group.flavors}
        return not (self.flavors and named - self.flavors.keys())


@dataclass(frozen=True, slots=True)
class FlavorRefusal:
    """Why a flavor is out of the question for a pod: in Kueue's words, and the taint or label key it is."""

    message: str
    kind: str
    detail: str = ""


def _member(workload: Workload, at_ms: int) -> QuotaMember:
    reserved_ms = workload.reserved_ms
    return QuotaMember(
        workload.meta.uid,
        workload.cluster_queue,
        workload.priority,
        queue_timestamp_ms(workload),
        at_ms if reserved_ms is None else reserved_ms,
        is_true(workload.conditions, "Evicted"),
        workload_usage(workload),
    )


def _refusal(template: PodTemplate, flavor: ResourceFlavor | None, name: str) -> FlavorRefusal | None:
    """Rule: kueue v0.19.2, flavorassigner.go, checkFlavorForPodSets: taints first, then labels, of which
    only those count that the flavor itself has."""
    if flavor is None:
        return FlavorRefusal(f"flavor {name} not found", "missing")
    tolerations = (*template.tolerations, *flavor.tolerations)
    for taint in flavor.taints:
        if taint.effect in _KEEPS_OUT and not taint.tolerated_by(tolerations):
            value = f"={taint.value}" if taint.value else ""
            said = f"untolerated taint {{{taint.key} {taint.value} {taint.effect} <nil>}} in flavor {name}"
            return FlavorRefusal(said, "taint", f"{taint.key}{value}:{taint.effect}")
    for key, value in template.node_selector.items():
        if key in flavor.node_labels and flavor.node_labels[key] != value:
            return FlavorRefusal(f"flavor {name} doesn't match node affinity", "label", key)
    if template.affinity and not _meets_any(template.affinity, flavor):
        return FlavorRefusal(f"flavor {name} doesn't match node affinity", "affinity")
    return None


def _meets_any(terms: tuple[tuple[SelectorRequirement, ...], ...], flavor: ResourceFlavor) -> bool:
    """One term is enough; a term that says nothing of the flavor's own labels lets everything pass."""
    for term in terms:
        known = [each for each in term if not each.of_field and each.key in flavor.node_labels]
        if all(meets(each, flavor.node_labels) for each in known):
            return True
    return False
