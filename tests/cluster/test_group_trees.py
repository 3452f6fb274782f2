"""Trees of groups as gangs: what they need, level by level, and since when they lack some of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.cluster.objects.pods import Pod
from gpucost.cluster.objects.state import CollectionStatus
from gpucost.cluster.objects.volcano import GroupKind
from gpucost.cluster.views.gangs import PodGang, gangs
from gpucost.cluster.views.gpu_units import GpuUnits
from gpucost.cluster.views.group_trees import MOST_GROUPS, GroupNeed, GroupTrees
from gpucost.cluster.views.ownership import PodOwnership
from gpucost.cluster.views.wait_causes import GANG_NOT_READY, waiting_jobs
from gpucost.contract.queue_metrics import GangKind
from gpucost.domain.gpu import ResourceCatalog
from tests.cluster.builders import (
    SECOND,
    T0,
    composite,
    condition,
    job,
    native_group,
    pod,
    pod_group,
    state,
)

JOBS = job("train", "JobSet", "jobset.x-k8s.io/v1alpha2")
SCHEDULED = "CompositePodGroupInitiallyScheduled"
# Two replicas are needed of three; each needs a driver and three of its four workers.
TREE = (
    composite("root", 2),
    *(composite(f"replica-{n}", 2, "root") for n in range(3)),
    *(native_group(f"workers-{n}", 3, f"replica-{n}") for n in range(3)),
    *(native_group(f"driver-{n}", 1, f"replica-{n}") for n in range(3)),
)


def at(seconds: float) -> int:
    return T0 + round(seconds * SECOND)


def member(
    name: str, group: str, bound_s: float | None = 5, ended_s: float | None = None, **more: Any
) -> Pod:
    fields = {"owner": JOBS, "group": group, **more}
    bound_ms = None if bound_s is None else at(bound_s)
    return pod(name, 8, bound_ms=bound_ms, ended_ms=None if ended_s is None else at(ended_s), **fields)


def replica(number: int, workers: int = 4, driver: bool = True) -> list[Pod]:
    made = [member(f"w{number}{n}", f"workers-{number}") for n in range(workers)]
    return [*made, member(f"d{number}", f"driver-{number}")] if driver else made


def of(*objects: object, ended: tuple[Pod, ...] = ()) -> list[PodGang]:
    now = state(JOBS, *objects)
    return gangs(now, GpuUnits(now, ResourceCatalog()), PodOwnership(now), ended)


def test_a_tree_is_one_gang() -> None:
    (found,) = of(*TREE, *replica(0), *replica(1))
    assert (found.kind, found.name, found.uid) == (GangKind.GROUP_TREE, "root", "root-uid")
    assert (found.job.name, found.min_members, found.running, found.pending) == ("train", 8, 10, 0)
    assert (found.is_partial, found.partial_since_ms) == (False, None)


@pytest.mark.parametrize(
    ("why", "members", "needed"),
    [
        ("one replica", replica(0), 9),
        ("pods too many in one make up for none in another", [*replica(0), *replica(1, 2)], 9),
        ("a driver is missing", [*replica(0), *replica(1, driver=False)], 10),
        ("the third replica is nearer", [*replica(0), *replica(1, 1), *replica(2, 2)], 11),
        ("a worker done counts", [*replica(0), *replica(1, 1), member("x", "workers-1", 5, 60)], 8),
    ],
)
def test_a_tree_lacks_what_any_level_lacks(why: str, members: list[Pod], needed: int) -> None:
    """Of two replicas of 4: those that run, and the fewest that must come."""
    (found,) = of(*TREE, *members)
    assert found.is_partial, why
    assert found.min_members == needed, why
    assert found.min_members > found.running, why


@pytest.mark.parametrize(
    "members",
    [
        [*replica(0, 3), *replica(2, 3)],
        [*replica(0), *replica(1, 3), member("lost", "workers-2")],
        [*replica(0), *replica(1, 2), member("gated", "workers-1", None, gates=("topology",))],
    ],
)
def test_what_is_more_than_needed_may_be_missing(members: list[Pod]) -> None:
    (found,) = of(*TREE, *members)
    assert not found.is_partial


def test_since_when_is_when_a_level_lost_what_it_needs() -> None:
    """A worker too many goes at 0:40, one that is needed at 1:00; one of the other replica is no help."""
    gone = tuple(replace(member(f"gone-{s}", "workers-1"), ended_ms=at(s)) for s in (40, 60))
    members = [*replica(0), *replica(1, 2), member("late", "workers-1", None, created_ms=at(61))]
    (found,) = of(*TREE, *members, ended=gone)
    assert (found.partial_since_ms, found.was_whole, found.pending) == (at(60), True, 1)
    (found,) = of(*TREE, *members, member("w4", "workers-0", 70), ended=gone)
    assert found.partial_since_ms == at(60)
    (found,) = of(*TREE, *members, member("w4", "workers-1", 70), ended=gone)
    assert not found.is_partial


def test_a_tree_that_was_never_placed_was_never_whole() -> None:
    never = replace(TREE[0], conditions={SCHEDULED: condition(False, "Unschedulable", "0/8 nodes")})  # type: ignore[type-var]
    late = member("w1", "workers-1", None, created_ms=at(61))
    (found,) = of(never, *TREE[1:], *replica(0), late)
    assert found.partial_since_ms == at(5)
    now = state(JOBS, never, *TREE[1:], late)
    (hold,) = waiting_jobs(now, GpuUnits(now, ResourceCatalog()), PodOwnership(now)).values()
    assert (hold.reason, hold.message) == (GANG_NOT_READY, "0/8 nodes")


def test_groups_that_get_on_alone_are_gangs_of_their_own() -> None:
    """Below a group that is basic, or that needs one only."""
    for least in (None, 1):
        root = composite("root", least)
        groups = [native_group(f"workers-{n}", 3, "root") for n in range(2)]
        found = of(root, *groups, *replica(0, 3, False), *replica(1, 2, False))
        assert [(each.kind, each.name, each.is_partial) for each in found] == [
            (GangKind.POD_GROUP, "workers-0", False),
            (GangKind.POD_GROUP, "workers-1", True),
        ]
        found = of(root, *(replace(each, parent=each.parent or "root") for each in TREE[1:]), *replica(1, 3))
        assert [(each.kind, each.name) for each in found] == [(GangKind.GROUP_TREE, "replica-1")]


def test_a_group_that_is_not_made_yet_is_missing() -> None:
    (found,) = of(composite("root", 3), native_group("workers-0", 3, "root"), *replica(0, 3, False))
    assert (found.is_partial, found.min_members) == (True, 5)


@pytest.mark.parametrize(
    ("objects", "why"),
    [
        ([composite("other", 2)], "CompositePodGroup root does not exist"),
        (
            [composite("root", 2, "above"), composite("above", 2, "root")],
            "more than 4 levels, or goes in a circle",
        ),
        (
            [
                *(composite(name, 2, above) for name, above in zip("abc", ("b", "c", "root"), strict=True)),
                composite("root", 2),
                native_group("deep", 3, "a"),
            ],
            "",
        ),
        (
            [composite("root", 2), *(native_group(f"g{n}", 3, "root") for n in range(MOST_GROUPS))],
            "too many groups or levels",
        ),
    ],
)
def test_a_tree_that_cannot_be_followed_is_told_and_its_groups_are_gangs(
    objects: list[Any], why: str
) -> None:
    group = native_group("workers-0", 3, "root")
    now = state(*objects, group)
    broken = GroupTrees(now).broken()
    assert why in broken[group.meta.uid][1]
    (found,) = of(*objects, group, *replica(0, 2, False))
    assert (found.kind, found.name, found.is_partial) == (GangKind.POD_GROUP, "workers-0", True)


def test_where_trees_are_not_served_nothing_is_missing() -> None:
    group = native_group("workers-0", 3, "root")
    absent = {"compositepodgroups.scheduling.k8s.io": CollectionStatus("", synced=True, absent=True)}
    assert GroupTrees(replace(state(group), collections=absent)).broken() == {}
    assert GroupTrees(state(group)).root_of(group) is None


def test_other_namespaces_have_no_part_in_a_tree() -> None:
    root = composite("root", 2)
    elsewhere = replace(root, meta=replace(root.meta, namespace="team-b", uid="other"))
    group = native_group("workers-0", 3, "root")
    assert GroupTrees(state(elsewhere, group)).root_of(group) is None


def test_a_workload_of_kubernetes_1_35_has_a_gang_for_each_of_its_groups_and_replicas() -> None:
    """Its pods name it with the group, and the replica of the group."""
    workload = pod_group("train", 5, GroupKind.NATIVE, rest={"min_task_member": {"workers": 3, "ps": 2}})
    members = [
        *(member(f"a{n}", "train/workers/0") for n in range(3)),
        *(member(f"b{n}", "train/workers/1") for n in range(2)),
        *(member(f"m{n}", "train/monitors") for n in range(2)),
    ]
    found = of(workload, *members)
    assert [(each.name, each.uid, each.min_members, each.running, each.is_partial) for each in found] == [
        ("train-workers-0", "train-uid-workers-0", 3, 3, False),
        ("train-workers-1", "train-uid-workers-1", 3, 2, True),
    ]


NEEDS = st.recursive(
    st.builds(GroupNeed, st.integers(1, 4), st.sampled_from("abcd")),
    lambda below: st.builds(
        lambda least, within: GroupNeed(least, within=tuple(within)),
        st.integers(1, 3),
        st.lists(below, max_size=4),
    ),
    max_leaves=8,
)
THERE = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 5))


@given(NEEDS, THERE)
def test_a_pod_more_helps_by_one_at_most(need: GroupNeed, there: dict[str, int]) -> None:
    names = iter(f"g{n}" for n in range(100))

    def renamed(one: GroupNeed) -> GroupNeed:
        if one.group:
            return replace(one, group=next(names))
        return replace(one, within=tuple(map(renamed, one.within)))

    need = renamed(need)
    counts = {f"g{n}": there.get("abcd"[n % 4], 0) for n in range(8)}
    more = {**counts, "g0": counts["g0"] + 1}
    assert need.missing(counts) - 1 <= need.missing(more) <= need.missing(counts)
    assert need.missing({}) >= need.missing(counts) >= 0
    assert [one.is_met(counts) for one in (need, *need.within)] == [
        one.missing(counts) == 0 for one in (need, *need.within)
    ]


def test_many_pods_in_a_tree_of_many_groups_do_not_sum_all_of_it_at_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One GPU, and 300 pods that come a second apart, in 100 groups none of which can have what it needs."""
    sums: list[GroupNeed] = []
    of_one = GroupNeed.missing

    def missing(need: GroupNeed, there: Any) -> int:
        sums.append(need)
        return of_one(need, there)

    monkeypatch.setattr(GroupNeed, "missing", missing)
    groups = (native_group(f"g{n}", 10_000, "root") for n in range(100))
    waiting = (member(f"p{n}", f"g{n % 100}", None, created_ms=at(10 + n)) for n in range(300))
    (found,) = of(composite("root", 100), *groups, member("gpu", "g0"), *waiting)
    assert found.is_partial
    assert len(sums) <= 3 * 101
