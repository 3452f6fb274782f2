"""The trees in which ClusterQueues lend and borrow quota.

Rules: kueue v0.19.2, pkg/cache/scheduler/resource_node.go.
ClusterQueues are leaves, cohorts inner nodes; all is counted by flavor and resource. A cohort that only a
ClusterQueue or a child names is there too, without quota of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpucost.cluster.kueue import ClusterQueue, Cohort, FlavorResource, Quota
from gpucost.cluster.objects import is_false
from gpucost.cluster.state import grouped

_NO_QUOTA = Quota(0)


@dataclass(slots=True, eq=False)
class QuotaNode:
    """A ClusterQueue or a cohort in its tree.

    ``subtree`` is the quota it can hand out: its own, and what its children lend. ``usage`` is what counts
    against that: a ClusterQueue's own, and of a cohort what its children use beyond what they keep to
    themselves. ``height`` is that of the tree below it, 0 for a ClusterQueue. With ``in_cycle`` its parents
    go round in a circle, so it has none here. ``known`` is what was found to be available, of all nodes of
    its trees, until usage changes.
    """

    name: str
    is_queue: bool
    quotas: Mapping[FlavorResource, Quota]
    lends: bool = True
    in_cycle: bool = False
    height: int = 0
    parent: QuotaNode | None = None
    children: list[QuotaNode] = field(default_factory=list)
    subtree: dict[FlavorResource, int] = field(default_factory=dict)
    usage: dict[FlavorResource, int] = field(default_factory=dict)
    known: dict[tuple[bool, str, FlavorResource], int] = field(default_factory=dict)

    def local_quota(self, key: FlavorResource) -> int:
        """What it never lends to its parent: all of it where it does not lend, else what its limit leaves."""
        quota = self.subtree.get(key, 0)
        if not self.lends:
            return quota
        limit = self._quota(key).lending_limit
        return 0 if limit is None else max(0, quota - limit)

    def local_available(self, key: FlavorResource) -> int:
        """What is unused of its local quota."""
        return max(0, self.local_quota(key) - self.usage.get(key, 0))

    def available(self, key: FlavorResource) -> int:
        """What can still be used here, what the parents can give included.

        Below 0 for a cohort in which more is used than there is; never for a ClusterQueue. It is quota only:
        a ClusterQueue that is not active admits nothing, whatever is available.
        """
        path: list[QuotaNode] = []
        amount = 0
        node: QuotaNode | None = self
        while node is not None:
            found = self.known.get((node.is_queue, node.name, key))
            if found is not None:
                amount = found
                break
            path.append(node)
            node = node.parent
        for node in reversed(path):
            amount = self.known[node.is_queue, node.name, key] = node._available(key, amount)
        return max(0, amount) if self.is_queue else amount

    def potential(self, key: FlavorResource) -> int:
        """What could be used here if nothing were in use: whoever asks for more waits for ever."""
        amount = 0
        for node in reversed(self._path()):
            amount = node._potential(key, amount)
        return amount

    def borrowed(self, key: FlavorResource) -> int:
        """What it uses of its parent's quota."""
        return 0 if self.parent is None else max(0, self.usage.get(key, 0) - self.subtree.get(key, 0))

    def borrowing_level(self, key: FlavorResource, amount: int) -> int:
        """How high in the tree ``amount`` more would have to be borrowed from; 0 for nowhere.

        The height of the lowest cohort with room for what the nodes below it cannot keep to themselves; the
        root's if none has (kueue, classical/hierarchical_preemption.go, FindHeightOfLowestSubtreeThatFits).
        """
        if self.parent is None or not self._exceeds(key, amount):
            return 0
        rest = amount - self.local_available(key)
        *_, root = parents = self._path()[1:]
        for node in parents:
            if not node._exceeds(key, rest):
                return node.height
            rest -= node.local_available(key)
        return root.height

    def add_usage(self, key: FlavorResource, amount: int) -> None:
        """Count ``amount`` more, or less if negative, here, and above what is not covered by local quota."""
        self.known.clear()
        node: QuotaNode | None = self
        while node is not None and amount:
            before = node._reaching_parent(key)
            node.usage[key] = node.usage.get(key, 0) + amount
            amount = node._reaching_parent(key) - before
            node = node.parent

    def _available(self, key: FlavorResource, of_parent: int) -> int:
        quota, used = self.subtree.get(key, 0), self.usage.get(key, 0)
        if self.parent is None:
            return quota - used
        limit = self._quota(key).borrowing_limit
        if limit is not None:
            lent = quota - self.local_quota(key)
            of_parent = min(of_parent, lent - self._reaching_parent(key) + limit)
        return self.local_available(key) + of_parent

    def _potential(self, key: FlavorResource, of_parent: int) -> int:
        quota = self.subtree.get(key, 0)
        if self.parent is None:
            return quota
        limit = self._quota(key).borrowing_limit
        amount = self.local_quota(key) + of_parent
        return amount if limit is None else min(amount, quota + limit)

    def _exceeds(self, key: FlavorResource, amount: int) -> bool:
        return self.usage.get(key, 0) + amount > self.subtree.get(key, 0)

    def _reaching_parent(self, key: FlavorResource) -> int:
        return max(0, self.usage.get(key, 0) - self.local_quota(key))

    def _quota(self, key: FlavorResource) -> Quota:
        return self.quotas.get(key, _NO_QUOTA)

    def _path(self) -> list[QuotaNode]:
        """From itself to its root."""
        path, node = [self], self.parent
        while node is not None:
            path.append(node)
            node = node.parent
        return path


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
    """The trees of these objects. ``usage`` is by name of ClusterQueue; without it, what status reserves.

    A ClusterQueue that is not active lends nothing, as if its lending limit were 0. Nodes on or below a cycle
    of cohorts stand alone.
    """
    queues, cohorts = list(queues), list(cohorts)
    known: dict[tuple[bool, str, FlavorResource], int] = {}
    leaves = {
        each.name: QuotaNode(each.name, True, each.quotas, _lends(each), known=known) for each in queues
    }
    inner = {each.name: QuotaNode(each.name, False, each.quotas, known=known) for each in cohorts}
    parents = {each.name: each.parent for each in cohorts}
    for name in [*(each.cohort for each in queues), *parents.values()]:
        if name and name not in inner:
            inner[name] = QuotaNode(name, False, {}, known=known)
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
    """The circles of cohorts that are each other's parents, each from its alphabetically first name on."""
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


def _lends(queue: ClusterQueue) -> bool:
    """Whether others may use its quota: not while it is not active."""
    return not is_false(queue.conditions, "Active")


def _linked_cohorts(cohorts: Mapping[str, QuotaNode], parents: Mapping[str, str]) -> tuple[QuotaNode, ...]:
    """Links cohorts to their parents; returns all, children first. Whoever no root leads to is in a cycle."""
    children = grouped(cohorts, lambda name: parents.get(name, ""))
    top_down = list(children.get("", ()))
    for name in top_down:  # grows meanwhile
        for child in children.get(name, ()):
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
            usage[key] = usage.get(key, 0) + child._reaching_parent(key)
    cohort.subtree, cohort.usage = subtree, usage
    cohort.height = max((child.height + 1 for child in cohort.children), default=0)
