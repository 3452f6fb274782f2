"""Trees of groups: PodGroups whose parents are CompositePodGroups (Kubernetes 1.37, KEP-6012).

A tree is one gang where its groups must find nodes at once. Rules of kube-scheduler (kubernetes v1.37,
pkg/scheduler/framework/plugins/gangscheduling, pkg/scheduler/backend/cache): a PodGroup needs ``minCount`` of
its pods, one where it is basic; a CompositePodGroup ``minGroupCount`` of the groups right below it, one where
it is basic, and a group counts once it has what it needs itself. So pods too many in one group do not make up
for those that another lacks. Parents are names within the namespace. A tree has at most four levels, without
circles; kube-scheduler places no pods of another one.

The root of a gang is the topmost CompositePodGroup that needs more than one of its groups: those below one
that needs one at most get on alone. What cannot be followed (a parent that does not exist, a circle, too many
levels or groups) is told in ``broken``, and each PodGroup in it is a gang by itself, as it is where
CompositePodGroups are not served.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpucost.cluster.objects.state import ClusterState, grouped
from gpucost.cluster.objects.volcano import CompositePodGroup, GroupKind, PodGroup

TREE_SCHEDULED = "CompositePodGroupInitiallyScheduled"
"""The condition of a CompositePodGroup: True from when all that it needs was placed, for good."""
MOST_LEVELS = 4
"""WorkloadMaxTreeDepth (kubernetes/api, scheduling/v1alpha3 types.go), PodGroups included."""
MOST_GROUPS = 256
"""PodGroups of a tree, more than any has use for: a tenant can write thousands, and each is looked at
whenever one of its pods comes or goes."""


@dataclass(frozen=True, slots=True)
class GroupNeed:
    """What a group needs at once: ``least`` of the pods that name ``group``, or, where that is empty, of the
    groups ``within`` it."""

    least: int
    group: str = ""
    within: tuple[GroupNeed, ...] = ()

    def is_met(self, there: Mapping[str, int]) -> bool:
        """Whether ``missing`` is 0, without its sums: it is asked at every instant at which a pod came or
        went, and a tenant may make thousands of them in a tree of hundreds of groups."""
        if self.group:
            return there.get(self.group, 0) >= self.least
        return sum(one.is_met(there) for one in self.within) >= self.least

    def missing(self, there: Mapping[str, int]) -> int:
        """With how many more pods at least it would have what it needs; ``there`` are pods by PodGroup. A
        group that is needed and not made yet counts as one pod: how many it needs is not known."""
        if self.group:
            return max(0, self.least - there.get(self.group, 0))
        each = sorted(one.missing(there) for one in self.within)[: self.least]
        return sum(each) + self.least - len(each)


class GroupTrees:
    """The trees of a state; equal questions are answered once."""

    def __init__(self, state: ClusterState) -> None:
        self._parents = state.composite_group_by_name
        self._is_known = state.knows("composite_groups")
        native = (each for each in state.pod_groups.values() if each.group_kind is GroupKind.NATIVE)
        self._leaves = grouped((each for each in native if each.parent), _parent)
        inner = (each for each in state.composite_groups.values() if each.parent)
        self._inner = grouped(inner, _parent)
        self._needs: dict[str, GroupNeed | None] = {}
        self._groups = state.pod_groups.values()

    def root_of(self, group: PodGroup) -> CompositePodGroup | None:
        """The root of the gang that it is a part of; None where it is none, or that cannot be followed."""
        root, why = self._climbed(group)
        return root if not why and root is not None and self.need_of(root) is not None else None

    def need_of(self, root: CompositePodGroup) -> GroupNeed | None:
        """None where it has too many groups, or too many levels."""
        uid = root.meta.uid
        if uid not in self._needs:
            levels = self._levels(root, 1)
            is_small = levels <= MOST_LEVELS and self._count(root) <= MOST_GROUPS
            self._needs[uid] = self._need(root) if is_small else None
        return self._needs[uid]

    def broken(self) -> Mapping[str, tuple[PodGroup, str]]:
        """By uid the PodGroups whose tree cannot be followed, with the reason."""
        found = {}
        for each in self._groups:
            root, why = self._climbed(each)
            if not why and root is not None and self.need_of(root) is None:
                why = f"the tree below CompositePodGroup {root.meta.name} has too many groups or levels"
            if why:
                found[each.meta.uid] = (each, why)
        return found

    def _climbed(self, group: PodGroup) -> tuple[CompositePodGroup | None, str]:
        """The topmost group that needs several of those below it, and why its tree cannot be followed."""
        if group.group_kind is not GroupKind.NATIVE or not group.parent:
            return None, ""
        root: CompositePodGroup | None = None
        name = group.parent
        for _ in range(MOST_LEVELS - 1):
            above = self._parents.get((group.meta.namespace, name))
            if above is None:
                # Kubernetes without the feature refuses parents, so one is told of only where they are read.
                return None, f"CompositePodGroup {name} does not exist" if self._is_known else ""
            if (above.min_groups or 1) > 1:
                root = above
            if not above.parent:
                return root, ""
            name = above.parent
        return None, f"it has more than {MOST_LEVELS} levels, or goes in a circle"

    def _levels(self, root: CompositePodGroup, above: int) -> int:
        """How many levels there are from the root on; one more than allowed where there are more."""
        if above >= MOST_LEVELS:
            return above + bool(self._inner.get(_key(root)) or self._leaves.get(_key(root)))
        inner = [self._levels(each, above + 1) for each in self._inner.get(_key(root), ())]
        return max(inner, default=above + bool(self._leaves.get(_key(root))))

    def _count(self, root: CompositePodGroup) -> int:
        below = self._inner.get(_key(root), [])
        return len(self._leaves.get(_key(root), ())) + sum(1 + self._count(each) for each in below)

    def _need(self, root: CompositePodGroup) -> GroupNeed:
        leaves = (GroupNeed(each.min_member, each.meta.name) for each in self._leaves.get(_key(root), ()))
        inner = (self._need(each) for each in self._inner.get(_key(root), ()))
        return GroupNeed(root.min_groups or 1, within=(*leaves, *inner))


def _parent(group: PodGroup | CompositePodGroup) -> tuple[str, str]:
    return group.meta.namespace, group.parent


def _key(group: CompositePodGroup) -> tuple[str, str]:
    return group.meta.namespace, group.meta.name
