"""Workloads of which several stand for one job: variants of a parent, and slices of an elastic job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucost.cluster.objects.kueue import Workload, WorkloadEviction, WorkloadState
from gpucost.cluster.objects.metadata import OwnerReference, StatusCondition
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.cluster.views.queues import pending_of
from gpucost.cluster.views.workload_families import PARENT as PARENT_LABEL
from gpucost.cluster.views.workload_families import REPLACES, FamilyMemory, one_per_job
from gpucost.domain.gpu import ResourceCatalog
from tests.cluster.builders import GPU, MINUTE, T0, condition, meta, pod_set, workload

JOB = OwnerReference("batch/v1", "Job", "train", "job-uid")
PARENT = OwnerReference("kueue.x-k8s.io/v1beta2", "Workload", "parent", "parent-uid")


def joined(*workloads: Workload) -> dict[str, Workload]:
    given = {each.meta.uid: each for each in workloads}
    backwards = dict(reversed(given.items()))
    found = dict(one_per_job(given))
    assert dict(one_per_job(backwards)) == found
    assert dict(one_per_job(found)) == found
    return found


def slice_(
    name: str, minute: int, pods: int, replaces: str = "", admitted: int | None = None, **rest: Any
) -> Workload:
    """Of an elastic job, made at ``minute``, of pods with one GPU each."""
    annotations = {REPLACES: f"default/{replaces}"} if replaces else {}
    found = workload(
        name,
        pod_set("main", pods, 1),
        cluster_queue="cq" if admitted is not None else "",
        flavor="h100" if admitted is not None else "",
        admitted_ms=None if admitted is None else T0 + admitted * MINUTE,
        rest=rest,
    )
    made = replace(
        found.meta,
        namespace="default",
        owner=JOB,
        annotations=annotations,
        created_ms=T0 + minute * MINUTE,
    )
    return replace(found, meta=made)


def ended(found: Workload, minute: int, reason: str = "WorkloadSliceReplaced") -> Workload:
    finished = condition(True, reason, "", T0 + minute * MINUTE)
    return replace(found, conditions={**found.conditions, "Finished": finished})


def test_variants_of_a_known_parent_do_not_count() -> None:
    parent = workload("parent", pod_set("main", 1, 8), labels={PARENT_LABEL: "true"})
    variants = [
        replace(each, meta=replace(each.meta, owner=PARENT))
        for each in (workload("parent-a", pod_set("main", 1, 8)), workload("parent-b", pod_set("main", 1, 8)))
    ]
    assert parent.meta.uid == PARENT.uid
    other = workload("other", pod_set("main", 1, 1))
    found = joined(parent, *variants, other)
    assert found == {"parent-uid": parent, "other-uid": other}
    pending = pending_of(found.values(), ResourceCatalog())
    assert sum(pending.units.values()) == 9
    # A variant whose parent is not known, or of another namespace, is all that is known of the job.
    assert joined(*variants) == {each.meta.uid: each for each in variants}
    strange = replace(variants[0], meta=replace(variants[0].meta, namespace="elsewhere"))
    assert joined(parent, strange).keys() == {"parent-uid", "parent-a-uid"}


def test_a_parent_is_what_kueue_says_is_one() -> None:
    """Whoever may write workloads could hide them behind any other."""
    parent = workload("parent", pod_set("main", 1, 8), labels={PARENT_LABEL: "true"})
    variant = replace(workload("v", pod_set("main", 1, 8)), meta=replace(meta("v"), owner=PARENT))
    assert joined(parent, variant).keys() == {"parent-uid"}
    for changed in (
        # Kueue gives a variant the spec of its parent: this one would have 8 GPUs counted as 1, or elsewhere.
        replace(parent, pod_sets=(pod_set("main", 1, 1),)),
        replace(parent, queue="other"),
        replace(parent, meta=replace(parent.meta, labels={})),
        replace(parent, meta=replace(parent.meta, owner=PARENT)),
        ended(parent, 5, "Succeeded"),
    ):
        assert "v-uid" in joined(changed, variant)


def test_no_parent_hides_the_quota_of_its_variants() -> None:
    """Kueue writes to the parent what its variant got, a moment later; whoever writes workloads does not."""
    parent = workload("parent", pod_set("main", 1, 8), labels={PARENT_LABEL: "true"})
    evicted = replace(parent, conditions={"Evicted": condition(True, "VariantEvicted")})
    variants = [
        replace(each, meta=replace(each.meta, owner=PARENT))
        for name in ("a", "b")
        for each in (workload(name, pod_set("main", 1, 8), cluster_queue="cq", flavor=name, admitted_ms=T0),)
    ]
    for found in (parent, evicted):
        (one,) = joined(found, variants[0]).values()
        assert (one.meta, one.state, one.reserved_ms) == (parent.meta, WorkloadState.ADMITTED, T0)
        assert (one.cluster_queue, one.assignments) == ("cq", variants[0].assignments)
    # One runs at a time: of Kueue's own families no two have quota.
    both = joined(parent, *variants)
    assert {uid for uid, each in both.items() if each.has_quota} == {"a-uid", "b-uid"}


def test_a_native_workload_is_no_parent() -> None:
    parent = workload("parent", pod_set("main", 1, 8), labels={PARENT_LABEL: "true"})
    native = OwnerReference("scheduling.k8s.io/v1beta1", "Workload", "parent", "parent-uid")
    child = replace(workload("child"), meta=replace(meta("child"), owner=native))
    assert joined(parent, child).keys() == {"parent-uid", "child-uid"}


def test_a_chain_of_slices_is_one_workload_since_the_first_and_of_the_last_size() -> None:
    first = ended(slice_("a", 0, 2, admitted=5), 30)
    second = ended(slice_("b", 28, 4, "a", admitted=30), 60)
    third = slice_("c", 55, 6, "b", admitted=60)
    [found] = joined(first, second, third).values()
    assert (found.meta.uid, found.meta.name, found.meta.created_ms) == ("a-uid", "a", T0)
    assert found.meta.owner == JOB
    assert (found.state, found.pod_sets[0].count) == (WorkloadState.ADMITTED, 6)
    assert found.reserved_ms == found.admitted_ms == T0 + 5 * MINUTE
    assert found.queued_since_ms == T0
    assert found.assignments == third.assignments
    # It ends when its last slice does.
    [over] = joined(first, second, ended(third, 90, "Succeeded")).values()
    assert (over.meta.uid, over.finished_ms) == ("a-uid", T0 + 90 * MINUTE)


def test_a_slice_that_waits_wants_what_it_has_more() -> None:
    first = slice_("a", 0, 2, admitted=5)
    asked = {"main": {GPU: 6}}
    more = slice_("b", 28, 6, "a", asked=asked)
    found = joined(first, more)
    assert found["a-uid"] == first
    assert (found["b-uid"].pod_sets[0].count, found["b-uid"].asked) == (4, {"main": {GPU: 4}})
    assert sum(pending_of([found["b-uid"]], ResourceCatalog()).units.values()) == 4
    overview = ClusterOverview(ClusterState(T0 + 40 * MINUTE, workloads=found))
    assert overview.holds.keys() == {"b-uid"}


def test_pod_sets_that_do_not_grow_are_not_wanted_again() -> None:
    head, workers = pod_set("head", 2, 1), pod_set("workers", 2, 1)
    first = workload("a", head, workers, admitted_ms=T0, cluster_queue="cq", flavor="h100")
    first = replace(first, meta=replace(first.meta, namespace="default", owner=JOB))
    more = (head, replace(workers, count=5))
    second = replace(
        workload("b", *more),
        meta=replace(meta("b"), namespace="default", owner=JOB, annotations={REPLACES: "default/a"}),
    )
    assert {each.name: each.count for each in joined(first, second)["b-uid"].pod_sets} == {"workers": 3}


@pytest.mark.parametrize("reason", ["OutOfSync", "Succeeded"])
def test_a_slice_that_ended_in_another_way_was_the_end_of_its_chain(reason: str) -> None:
    """As one that was evicted: what comes after it waited for its quota."""
    first = ended(slice_("a", 0, 2, admitted=5), 30, reason)
    second = slice_("b", 30, 4, "a", admitted=45)
    found = joined(first, second)
    assert found == {"a-uid": first, "b-uid": second}
    assert found["b-uid"].reserved_ms == T0 + 45 * MINUTE


def test_a_slice_whose_predecessors_are_gone_stands_for_itself() -> None:
    third = slice_("c", 55, 6, "b", admitted=60)
    assert joined(third) == {"c-uid": third}


def test_a_chain_goes_on_when_its_first_slice_is_removed() -> None:
    """Three slices, of which Kueue removes those that were replaced one after the other."""
    first, second = slice_("first", 0, 2, admitted=1), slice_("second", 10, 3, "first", admitted=12)
    third = slice_("third", 20, 4, "second", admitted=22)
    memory = FamilyMemory()

    def seen(*workloads: Workload) -> list[tuple[str, str, int]]:
        found = memory.one_per_job({each.meta.uid: each for each in workloads})
        return [(uid, each.meta.name, sum(of.count for of in each.pod_sets)) for uid, each in found.items()]

    assert seen(first) == [("first-uid", "first", 2)]
    assert seen(ended(first, 12), second) == [("first-uid", "first", 3)]
    assert seen(second) == [("first-uid", "first", 3)]
    assert seen(ended(second, 22), third) == [("first-uid", "first", 4)]
    assert seen(third) == [("first-uid", "first", 4)]
    # Nothing is kept for those that nobody names any more.
    assert seen(slice_("other", 30, 1, admitted=31)) == [("other-uid", "other", 1)]
    assert seen(third) == [("third-uid", "third", 4)]


def test_names_lead_into_no_other_namespace_and_in_no_circle() -> None:
    elsewhere = replace(slice_("a", 0, 2, admitted=5), meta=replace(meta("a"), namespace="other", owner=JOB))
    claims = replace(slice_("b", 1, 2, admitted=6).meta, annotations={REPLACES: "other/a"})
    second = replace(slice_("b", 1, 2, admitted=6), meta=claims)
    assert joined(ended(elsewhere, 5), second)["b-uid"] == second
    one, two = ended(slice_("a", 0, 2, "b", 1), 5), ended(slice_("b", 0, 2, "a", 1), 5)
    last = slice_("c", 6, 2, "b", admitted=7)
    assert joined(one, two, last).keys() == {"a-uid"}


def test_a_slice_replaces_one_of_its_own_job_only() -> None:
    first = ended(slice_("a", 0, 2, admitted=5), 30)
    other = OwnerReference("batch/v1", "Job", "other", "other-uid")
    of_other = slice_("b", 28, 4, "a", admitted=30)
    of_other = replace(of_other, meta=replace(of_other.meta, owner=other))
    of_none = replace(of_other, meta=replace(of_other.meta, owner=None))
    waits = replace(slice_("w", 28, 4, "c"), meta=replace(slice_("w", 28, 4, "c").meta, owner=other))
    assert joined(first, of_other)["b-uid"] == of_other
    assert joined(first, of_none)["b-uid"] == of_none
    assert joined(slice_("c", 0, 4, admitted=1), waits)["w-uid"] == waits


def test_one_slice_replaces_another_and_the_rest_stand_for_themselves() -> None:
    first = ended(slice_("a", 0, 2, admitted=5), 30)
    made = (("b", 28), ("c", 29), ("d", 29))
    several = [slice_(name, minute, 4, "a", admitted=30) for name, minute in made]
    assert dict(one_per_job({each.meta.uid: each for each in (first, *several)})).keys() == {
        "a-uid",
        "c-uid",
        "d-uid",
    }


def test_a_slice_that_waits_anew_has_no_older_place_in_the_queue() -> None:
    first = ended(slice_("a", 0, 2, admitted=5), 30)
    again = slice_("b", 28, 4, "a")
    assert joined(first, again) == {"b-uid": again}


def test_without_families_nothing_is_copied() -> None:
    given = {"a-uid": slice_("a", 0, 2), "b-uid": slice_("b", 0, 2)}
    assert one_per_job(given) is given


def variant(
    name: str, *evictions: tuple[str, str, int], told: dict[str, StatusCondition] | None = None
) -> Workload:
    """Of ``parent``, with what Kueue wrote to it."""
    counted = tuple(WorkloadEviction(*each) for each in evictions)
    found = workload(name, pod_set("main", 1, 8), conditions=told, rest={"evictions": counted})
    return replace(found, meta=replace(found.meta, owner=PARENT))


def parent_of(*evictions: tuple[str, str, int], told: dict[str, StatusCondition] | None = None) -> Workload:
    found = replace(variant("parent", *evictions, told=told))
    return replace(found, meta=replace(found.meta, owner=None, labels={PARENT_LABEL: "true"}))


def test_evictions_of_variants_are_those_of_the_parent() -> None:
    """Kueue counts them at the variant only; that one was deactivated in favour of another is none."""
    first = variant("a", ("FlavorMigration", "", 2), ("Deactivated", "", 3), ("Preempted", "", 1))
    second = variant("b", ("Preempted", "", 1), ("Deactivated", "RequeuingLimitExceeded", 1), ("New", "", 1))
    [found] = joined(parent_of(("Deactivated", "", 1)), first, second).values()
    assert set(found.evictions) == {
        WorkloadEviction("Deactivated", "", 1),
        WorkloadEviction("FlavorMigration", "", 2),
        WorkloadEviction("Preempted", "", 2),
        WorkloadEviction("Deactivated", "RequeuingLimitExceeded", 1),
        WorkloadEviction("New", "", 1),
    }


@pytest.mark.parametrize(
    ("of_parent", "reason"),
    [("VariantEvicted", "FlavorMigration"), ("ConcurrentAdmission", "FlavorMigration"), ("Own", "Own")],
)
def test_a_parent_is_evicted_for_the_reason_of_its_variant(of_parent: str, reason: str) -> None:
    later = condition(True, "FlavorMigration", "to a better flavor", T0 + 2 * MINUTE)
    before = variant("a", told={"Evicted": condition(True, "Preempted", "", T0 + MINUTE)})
    last = variant("b", told={"Evicted": later})
    other = variant("c", told={"Evicted": condition(True, "Deactivated", "", T0 + 3 * MINUTE)})
    parent = parent_of(told={"Evicted": condition(True, of_parent, "", T0 + 2 * MINUTE)})
    [found] = joined(parent, before, last, other).values()
    assert found.conditions["Evicted"].reason == reason
    assert found.conditions["Evicted"].since_ms == T0 + 2 * MINUTE


@pytest.mark.parametrize(
    ("told", "reason", "message"),
    [
        ([("NoMatchingFlavor", "none"), ("WaitingForQuota", "short")], "WaitingForQuota", "none; short"),
        ([("Pending", "short"), ("Pending", "short")], "Pending", "short"),
        ([("Fresh", "new"), ("Pending", "")], "Fresh", "new"),
        ([("Pending", ""), ("PendingEvaluation", "")], "Pending", "own"),
    ],
)
def test_a_parent_waits_for_what_its_variants_wait_for(
    told: list[tuple[str, str]], reason: str, message: str
) -> None:
    variants = [
        variant(f"v{n}", told={"QuotaReserved": condition(False, *each)}) for n, each in enumerate(told)
    ]
    parent = parent_of(told={"QuotaReserved": condition(False, "Pending", "own")})
    [found] = joined(parent, *variants).values()
    assert (found.conditions["QuotaReserved"].reason, found.conditions["QuotaReserved"].message) == (
        reason,
        message,
    )
    looked_at = parent_of(told={"QuotaReserved": condition(False, "Suspended", "stopped")})
    assert next(iter(joined(looked_at, *variants).values())).conditions == looked_at.conditions
