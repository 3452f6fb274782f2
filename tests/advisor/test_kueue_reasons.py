"""Why nothing fits, in Kueue's words: in which order resources are walked, and which refusals are counted.

Rules: kueue v0.19.2, pkg/resources/slice_requests.go, pkg/scheduler/flavorassigner (assignFlavors,
mergeFlavorAttemptsForResource, resolveNoFitReason).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucost.advisor.kueue.requests import groups_by_resource, walk_rank
from gpucost.advisor.model.cycle_results import CycleOutcome, PendingClass, WorkloadDecision
from gpucost.cluster.objects.kueue import (
    ClusterQueue,
    FlavorQuota,
    FlavorResource,
    ResourceGroup,
)
from tests.advisor.kueue_runs import decided, why
from tests.advisor.worlds import flavor, pod_set, queue, taint, workload
from tests.cluster.builders import GPU

NO_FIT = PendingClass.NO_FIT
SPOT = flavor("spot", taints=(taint("spot"),))


def test_the_hash_of_a_name_step_by_step() -> None:
    """FNV-1a, 64 bits, of ``cpu``: xor a byte, then multiply by the prime; the values are worked out one by
    one, and the last is what hash/fnv of Go 1.26 gives."""
    prime = 2**40 + 2**8 + 0xB3
    steps = [
        (ord("c"), 0xCBF29CE484222325, 0xAF63DE4C8601EFF2),
        (ord("p"), 0xAF63DE4C8601EFF2, 0x08A23E07B549F9E6),
        (ord("u"), 0x08A23E07B549F9E6, 0xF5A8FA190CB314C9),
    ]
    for byte, before, after in steps:
        assert (before ^ byte) * prime % 2**64 == after
    assert walk_rank("cpu") == (0xF5A8FA190CB314C9, "cpu")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Test vectors that the authors of FNV publish.
        ("", 0xCBF29CE484222325),
        ("a", 0xAF63DC4C8601EC8C),
        ("foobar", 0x85944171F73967E8),
        # What hash/fnv of Go 1.26 gives, from the lowest to the highest.
        ("ephemeral-storage", 0x0A740D6438A94C20),
        ("amd.com/gpu", 0x17765035669B645F),
        ("memory", 0x2E78EB99A1612FEE),
        ("nvidia.com/gpu", 0x4F75CF4C78DF7EE4),
        ("pods", 0x8BFCEE0DA86A3C2D),
    ],
)
def test_the_hash_of_a_name(name: str, expected: int) -> None:
    assert walk_rank(name) == (expected, name)


def test_names_are_hashed_whatever_stands_in_them() -> None:
    assert walk_rank("\ud800")[0] != walk_rank("ü")[0]


def _no_fit(spec: ClusterQueue, *objects: object, **asked: Any) -> WorkloadDecision:
    found = decided("new", spec, *objects, workload("new", "a", **asked))
    assert (found.outcome, found.pending) == (CycleOutcome.PENDING, NO_FIT)
    return found


def _never(resource: str, where: str, asks: str, most: str) -> str:
    return (
        f"couldn't assign flavors to pod set main: insufficient quota for {resource} in flavor {where}, "
        f"previously considered podsets requests (0) + current podset request ({asks}) > maximum capacity "
        f"({most})"
    )


def test_of_groups_that_all_fail_the_first_by_hash_is_told() -> None:
    """memory 2e78.. before nvidia.com/gpu 4f75.. before cpu f5a8..: the alphabet would have cpu first."""
    spec = queue("a", {"h100": 8}, cpu={"pool": 4}, memory={"dram": 2**30})
    found = _no_fit(spec, gpus=9, cpu=5, more={"memory": 2**31})
    assert found.message == _never("memory", "dram", "2Gi", "1Gi")
    found = _no_fit(spec, gpus=9, cpu=5)
    assert found.message == _never(GPU, "h100", "9", "8")
    found = _no_fit(spec, cpu=5)
    assert found.message == _never("cpu", "pool", "5", "4")


def test_refusals_of_groups_before_the_one_that_failed_count() -> None:
    """GPUs are walked first: spot is refused (NoMatchingFlavor), h100 fits. Then cpu, of which there is too
    little (ExceedsMaxQuota). Of GPUs the mildest refusal is NoMatchingFlavor, the only one; of both groups
    the most severe counts."""
    spec = queue("a", {"spot": 8, "h100": 8}, cpu={"pool": 4})
    found = _no_fit(spec, SPOT, gpus=1, cpu=5)
    assert found.message == _never("cpu", "pool", "5", "4")
    assert found.reason == "NoMatchingFlavor"


def test_flavors_behind_the_one_that_fits_are_not_tried() -> None:
    """h100 fits and ends the search before spot: only cpu refuses."""
    spec = queue("a", {"h100": 8, "spot": 8}, cpu={"pool": 4})
    assert _no_fit(spec, SPOT, gpus=1, cpu=5).reason == "ExceedsMaxQuota"


def test_the_mildest_refusal_of_a_group_that_could_be_had() -> None:
    """Of GPUs spot is refused, small has too few, h100 fits: the mildest refusal is ExceedsMaxQuota. Of cpu
    there is enough, but it is in use and no workload may be preempted for more than the queue's own
    (WaitingForQuota). The most severe of both is ExceedsMaxQuota."""
    spec = queue("a", {"spot": 8, "small": 1, "h100": 8}, cohort="org", cpu={"pool": 4})
    lender = queue("b", None, cohort="org", cpu={"pool": 4})
    old = workload("old", "b", 0, cpu=4, holding=True, flavor="pool")
    found = _no_fit(spec, SPOT, lender, old, gpus=2, cpu=5)
    assert found.reason == "ExceedsMaxQuota"
    assert "insufficient unused quota for cpu in flavor pool, 1 more needed" in found.message
    without = queue("a", {"h100": 8}, cohort="org", cpu={"pool": 4})
    assert _no_fit(without, lender, old, gpus=2, cpu=5).reason == "WaitingForQuota"


def test_a_flavor_that_needs_preemption_refuses_nothing() -> None:
    """Of the GPUs all are in use by higher priority: h100 is no refusal (Preempt), so cpu's counts alone."""
    spec = queue("a", {"h100": 8}, cpu={"pool": 4}, within="LowerPriority")
    old = workload("old", "a", 8, priority=9, holding=True)
    assert _no_fit(spec, old, gpus=1, cpu=5).reason == "ExceedsMaxQuota"


def test_no_flavor_matches_where_none_was_tried() -> None:
    """memory is walked first, and no group covers it."""
    found = _no_fit(queue("a", {"h100": 8}), gpus=1, more={"memory": 1})
    assert found.message.endswith("resource memory unavailable in ClusterQueue")
    assert found.reason == "NoMatchingFlavor"


def test_nothing_refuses_where_all_that_was_tried_fits() -> None:
    """cpu is walked last, and no group covers it: h100 fitted before, so Kueue gives no reason."""
    found = _no_fit(queue("a", {"h100": 8}), gpus=1, cpu=1)
    assert found.message.endswith("resource cpu unavailable in ClusterQueue")
    assert found.reason == ""
    # With a flavor before that is refused its reason is the workload's.
    assert _no_fit(queue("a", {"spot": 8, "h100": 8}), SPOT, gpus=1, cpu=1).reason == "NoMatchingFlavor"


def test_of_pod_sets_only_those_that_fail_count() -> None:
    """The GPUs of the first get h100 after spot refused: that refusal is none of the second's."""
    spec = queue("a", {"spot": 8, "h100": 8}, cpu={"pool": 4})
    sets = pod_set("first", 1, 1, cpu=1), pod_set("second", 1, 0, cpu=4)
    found = _no_fit(spec, SPOT, pod_sets=sets)
    assert "pod set second" in found.message
    assert "pod set first" not in found.message
    assert found.reason == "ExceedsMaxQuota"


def test_the_whole_reason_is_told_of_a_taint_and_of_two_groups() -> None:
    """Both groups fail; GPUs come first, and cpu is never looked at."""
    spec = queue("a", {"spot": 8}, cpu={"pool": 4})
    found = _no_fit(spec, SPOT, gpus=1, cpu=5)
    assert found.message.endswith("untolerated taint {spot  NoSchedule <nil>} in flavor spot")
    assert found.reason == "NoMatchingFlavor"


def test_a_namespace_that_is_not_selected() -> None:
    """Word for word as in pkg/workload/resources.go."""
    spec = replace(queue("a", 8), namespace_selector=None)
    found = decided("new", spec, workload("new", "a", 1))
    assert why(found) == (PendingClass.INADMISSIBLE, "Misconfigured")
    assert found.message == "workload namespace doesn't match ClusterQueue selector"


def _overlapping(*groups: ResourceGroup) -> ClusterQueue:
    quotas = {
        FlavorResource(name, resource): FlavorQuota(4000 if resource == "cpu" else 8)
        for group in groups
        for name in group.flavors
        for resource in group.resources
    }
    return replace(queue("a", 1), groups=groups, quotas=quotas)


def test_of_two_groups_that_cover_a_resource_the_first_is_asked() -> None:
    """No API server would let such a ClusterQueue in; a file or an old object may have one."""
    spec = _overlapping(ResourceGroup(("cpu",), ("fast",)), ResourceGroup(("cpu",), ("slow",)))
    assert groups_by_resource(spec) == {"cpu": 0}
    found = decided("new", spec, workload("new", "a", 0, cpu=1))
    assert found.pod_sets[0].flavors == {"cpu": "fast"}


def test_a_group_serves_all_that_it_covers() -> None:
    """GPUs are walked first; their group has cpu as well, and so serves both, although the group before it
    covers cpu too. Of cpu alone the first group is asked."""
    spec = _overlapping(ResourceGroup(("cpu",), ("fast",)), ResourceGroup(("cpu", GPU), ("h100",)))
    found = decided("new", spec, workload("new", "a", 1, cpu=1))
    assert found.pod_sets[0].flavors == {"cpu": "h100", GPU: "h100"}
    assert decided("new", spec, workload("new", "a", 0, cpu=1)).pod_sets[0].flavors == {"cpu": "fast"}


def test_a_flavor_of_two_groups_that_the_second_scan_does_not_reach() -> None:
    """memory: h100 and l4 fit or not; GPUs: pool fits and ends the search, so that h100 and l4 count as
    refused there, whatever they were for memory; cpu is covered by no group and fails."""
    groups = ResourceGroup(("memory",), ("h100", "l4")), ResourceGroup((GPU,), ("pool", "h100", "l4"))
    for memory in (1, 9):  # with 9 h100 and l4 do not fit, and memory is where it ends
        found = decided("new", _overlapping(*groups), workload("new", "a", cpu=1, more={"memory": memory}))
        assert why(found) == (NO_FIT, "NoMatchingFlavor" if memory == 1 else "ExceedsMaxQuota")
    apart = ResourceGroup(("memory",), ("h100", "l4")), ResourceGroup((GPU,), ("pool",))
    assert why(decided("new", _overlapping(*apart), workload("new", "a", cpu=1, more={"memory": 1}))) == (
        NO_FIT,
        "",
    )
