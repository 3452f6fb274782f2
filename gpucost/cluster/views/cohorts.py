"""The trees in which ClusterQueues lend and borrow quota.

Rules: kueue v0.19.2, pkg/cache/scheduler/resource_node.go.
ClusterQueues are leaves, cohorts inner nodes; all is counted by flavor and resource. A cohort that only a
ClusterQueue or a child names is there too, without quota of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpucost.cluster.objects.kueue import (
    ClusterQueue,
    Cohort,
    FlavorQuota,
    FlavorResource,
)
from gpucost.cluster.objects.metadata import is_false
from gpucost.cluster.objects.state import grouped

_NO_QUOTA = FlavorQuota(0)


class _Terms(NamedTuple):
    """Of one node, flavor and resource, independent of use: the quota of its subtree, the part of it that is
    never lent, and what may be borrowed (None: without limit)."""

    quota: int
    local: int
    limit: int | None


@dataclass(slots=True, eq=False)
class QuotaNode:
    """A ClusterQueue or a cohort in its tree.

    ``subtree`` is the quota it can provide: its own, and what its children lend. ``usage`` is what counts
    against that: a ClusterQueue's own, and of a cohort what its children use beyond what they keep to
    themselves. ``height`` is that of the tree of active queues below it, 0 for a ClusterQueue. With
    ``in_cycle`` its parents go round in a circle, so it has none here. ``known`` is what was available in
    which ``epoch``: the number of changes of usage in all trees. ``terms`` and ``most`` never change.
    """

    name: str
    is_queue: bool
    quotas: Mapping[FlavorResource, FlavorQuota]
    is_active: bool = True
    in_cycle: bool = False
    height: int = 0
    parent: QuotaNode | None = None
    children: list[QuotaNode] = field(default_factory=list)
    subtree: dict[FlavorResource, int] = field(default_factory=dict)
    usage: dict[FlavorResource, int] = field(default_factory=dict)
    epoch: list[int] = field(default_factory=lambda: [0])
    known: dict[FlavorResource, tuple[int, int]] = field(default_factory=dict)
    terms: dict[FlavorResource, _Terms] = field(default_factory=dict)
    most: dict[FlavorResource, int] = field(default_factory=dict)

    def local_quota(self, key: FlavorResource) -> int:
        """The quota it never lends to its parent: what its lending limit leaves."""
        return self._terms(key).local

    def local_available(self, key: FlavorResource) -> int:
        """The unused part of its local quota."""
        return max(0, self._terms(key).local - self.usage.get(key, 0))

    def available(self, key: FlavorResource) -> int:
        """What can still be used here, what the parents can lend included.

        Below 0 for a cohort in which more is used than there is; never for a ClusterQueue. It is quota only:
        a ClusterQueue that is not active admits nothing, whatever is available.
        """
        path: list[QuotaNode] = []
        node: QuotaNode | None = self
        amount, epoch = 0, self.epoch[0]
        while node is not None:
            found = node.known.get(key)
            if found is not None and found[0] == epoch:
                amount = found[1]
                break
            path.append(node)
            node = node.parent
        for node in reversed(path):
            amount = node._available(key, amount)
            node.known[key] = epoch, amount
        return max(0, amount) if self.is_queue else amount

    def potential(self, key: FlavorResource) -> int:
        """What could be used here if nothing were in use: a larger request waits for ever."""
        found = self.most.get(key)
        if found is None:
            *nodes, root = self.path
            found = root._terms(key).quota
            for node in reversed(nodes):
                quota, local, limit = node._terms(key)
                found = local + found if limit is None else min(local + found, quota + limit)
            self.most[key] = found
        return found

    def borrowed(self, key: FlavorResource) -> int:
        """What it uses of its parent's quota."""
        return 0 if self.parent is None else max(0, self.usage.get(key, 0) - self.subtree.get(key, 0))

    def borrowing_level(self, key: FlavorResource, amount: int) -> int:
        """The height in the tree from which ``amount`` more would have to be borrowed; 0 if nothing is
        borrowed.

        The height of the lowest cohort with room for what the nodes below it cannot keep to themselves; the
        root's if none has (kueue, classical/hierarchical_preemption.go, FindHeightOfLowestSubtreeThatFits).
        """
        return self._lowest_that_fits(key, amount)[0]

    def fits_below_root(self, key: FlavorResource, amount: int) -> bool:
        """Whether that height is one of a subtree smaller than the whole tree: then the quota belongs to the
        subtree, and borrowers outside of it can be preempted."""
        return self._lowest_that_fits(key, amount)[1]

    def add_usage(self, key: FlavorResource, amount: int) -> None:
        """Count ``amount`` more, or less if negative, here, and above what is not covered by local quota."""
        self.epoch[0] += 1
        node: QuotaNode | None = self
        while node is not None and amount:
            used, local = node.usage.get(key, 0), (node.terms.get(key) or node._terms(key)).local
            more = node.usage[key] = used + amount
            if used < local or more < local:
                amount = max(0, more - local) - max(0, used - local)
            node = node.parent

    def shift_usage(self, key: FlavorResource, amount: int) -> None:
        """Count that much more or less here only, whatever the parents lend."""
        self.epoch[0] += 1
        self.usage[key] = self.usage.get(key, 0) + amount

    def restore(self, usage: Mapping[FlavorResource, int]) -> None:
        """Set the usage here to exactly this; the parents are to be restored with it."""
        self.epoch[0] += 1
        self.usage = dict(usage)

    @property
    def path(self) -> list[QuotaNode]:
        """From itself to its root."""
        path, node = [self], self.parent
        while node is not None:
            path.append(node)
            node = node.parent
        return path

    @property
    def below(self) -> list[QuotaNode]:
        """Itself and all that is below it, parents before children."""
        nodes = [self]
        for node in nodes:  # grows meanwhile
            nodes.extend(node.children)
        return nodes

    def _available(self, key: FlavorResource, of_parent: int) -> int:
        quota, local, limit = self.terms.get(key) or self._terms(key)
        used = self.usage.get(key, 0)
        if self.parent is None:
            return quota - used
        left = local - used
        if limit is not None:
            of_parent = min(of_parent, quota - local + limit + min(0, left))
        return of_parent + left if left > 0 else of_parent

    def _lowest_that_fits(self, key: FlavorResource, amount: int) -> tuple[int, bool]:
        node = self.parent
        if node is None or not self._exceeds(key, amount):
            return 0, node is not None
        rest = amount - self.local_available(key)
        while node.parent is not None and node._exceeds(key, rest):
            rest -= node.local_available(key)
            node = node.parent
        return node.height, node.parent is not None

    def _exceeds(self, key: FlavorResource, amount: int) -> bool:
        return self.usage.get(key, 0) + amount > self.subtree.get(key, 0)

    def _terms(self, key: FlavorResource) -> _Terms:
        found = self.terms.get(key)
        if found is None:
            quota, own = self.subtree.get(key, 0), self.quotas.get(key, _NO_QUOTA)
            local = 0 if own.lending_limit is None else max(0, quota - own.lending_limit)
            found = self.terms[key] = _Terms(quota, local, own.borrowing_limit)
        return found


@dataclass(frozen=True, slots=True)
class QuotaTree:
    """All trees of a cluster: nodes by name. ``bottom_up`` are the cohorts, children before parents."""

    queues: Mapping[str, QuotaNode]
    cohorts: Mapping[str, QuotaNode]
    bottom_up: tuple[QuotaNode, ...]


def quota_tree(
    queues: Iterable[ClusterQueue],
    cohorts: Iterable[Cohort],
    usage: Mapping[str, Mapping[FlavorResource, int]] | None = None,
) -> QuotaTree:
    """The trees of these objects. ``usage`` is by name of ClusterQueue; without it, the reserved quota of the
    status.

    A ClusterQueue that is not active admits nothing, but lends its quota as before: Kueue keeps it in the
    sums of its cohort (pkg/cache/scheduler/snapshot.go). Nodes on or below a cycle of cohorts stand alone.
    """
    queues, cohorts = list(queues), list(cohorts)
    epoch = [0]
    leaves = {
        each.name: QuotaNode(each.name, True, each.quotas, _is_active(each), epoch=epoch) for each in queues
    }
    inner = {each.name: QuotaNode(each.name, False, each.quotas, epoch=epoch) for each in cohorts}
    parents = {each.name: each.parent for each in cohorts}
    for name in [*(each.cohort for each in queues), *parents.values()]:
        if name and name not in inner:
            inner[name] = QuotaNode(name, False, {}, epoch=epoch)
    bottom_up = _linked_cohorts(inner, parents)
    for queue in queues:
        leaf = leaves[queue.name]
        reserved = {key: use.total for key, use in queue.reserved.items()}
        leaf.usage = dict(reserved if usage is None else usage.get(queue.name, {}))
        leaf.subtree = {key: quota.nominal for key, quota in queue.quotas.items()}
        if queue.cohort:
            _link(leaf, inner[queue.cohort])
    for cohort in bottom_up:
        _add_up(cohort)
    return QuotaTree(leaves, inner, bottom_up)


def cohort_cycles(cohorts: Iterable[Cohort]) -> list[tuple[str, ...]]:
    """The cycles of cohorts that are each other's parents, each from its alphabetically first name on."""
    parents = {each.name: each.parent for each in cohorts}
    seen: set[str] = set()
    found = []
    for start in parents:
        position: dict[str, int] = {}
        name = start
        while name in parents and name not in seen:
            seen.add(name)
            position[name] = len(position)
            name = parents[name]
        if name in position:
            circle = list(position)[position[name] :]
            first = circle.index(min(circle))
            found.append((*circle[first:], *circle[:first]))
    return sorted(found)


def _is_active(queue: ClusterQueue) -> bool:
    return not is_false(queue.conditions, "Active")


def _linked_cohorts(cohorts: Mapping[str, QuotaNode], parents: Mapping[str, str]) -> tuple[QuotaNode, ...]:
    """Links cohorts to their parents; returns all, children first. A cohort that no root leads to is in a
    cycle."""
    children = grouped(cohorts, lambda name: parents.get(name, ""))
    top_down = list(children.get("", ()))
    for name in top_down:  # grows meanwhile
        for child in children.get(name, ()) if name else ():
            _link(cohorts[child], cohorts[name])
            top_down.append(child)
    reached = set(top_down)
    for name, node in cohorts.items():
        node.in_cycle = name not in reached
    lone = [name for name in cohorts if name not in reached]
    return tuple(cohorts[name] for name in reversed([*top_down, *lone]))


def _link(node: QuotaNode, parent: QuotaNode) -> None:
    if parent.in_cycle:
        node.in_cycle = True
        return
    node.parent = parent
    parent.children.append(node)


def _add_up(cohort: QuotaNode) -> None:
    """Subtree quota, usage and height of a cohort from those of its children."""
    subtree = {key: quota.nominal for key, quota in cohort.quotas.items()}
    usage: dict[FlavorResource, int] = {}
    for child in cohort.children:
        for key, quota in child.subtree.items():
            subtree[key] = subtree.get(key, 0) + quota - child.local_quota(key)
        for key in child.usage:
            usage[key] = usage.get(key, 0) + max(0, child.usage[key] - child.local_quota(key))
    cohort.subtree, cohort.usage = subtree, usage
    counted = (child for child in cohort.children if child.is_active)
    cohort.height = max((child.height + 1 for child in counted), default=0)
