"""Which flavor a pod set gets: who may have it, where the search stops, and what is preferred."""

from __future__ import annotations

from typing import Any

import pytest

from gpucost.advisor.model.cycle_results import CycleOutcome, PendingClass
from gpucost.cluster.objects.kueue import (
    ClusterQueue,
    FlavorQuota,
    FlavorResource,
    ResourceGroup,
)
from gpucost.cluster.objects.pods import PodSet, PodTemplate, SelectorRequirement
from tests.advisor import worlds
from tests.advisor.kueue_runs import cycle, decided, flavors, outcomes
from tests.advisor.worlds import flavor, pod_set, queue, taint, tolerates, workload
from tests.cluster.builders import GPU

ADMITTED, PENDING, PREEMPTING = CycleOutcome.ADMITTED, CycleOutcome.PENDING, CycleOutcome.PREEMPTING
TWO = queue("a", {"h100": 8, "l4": 8})


def _taken(*objects: object, **asked: Any) -> str:
    found = decided("new", TWO, *objects, workload("new", "a", **asked))
    return flavors(found).get("main", "")


@pytest.mark.parametrize(
    ("effect", "taken"), [("NoSchedule", "l4"), ("NoExecute", "l4"), ("PreferNoSchedule", "h100")]
)
def test_taints(effect: str, taken: str) -> None:
    spot = flavor("h100", taints=(taint("spot", "true", effect),))
    assert _taken(spot) == taken
    assert _taken(spot, tolerations=(tolerates("spot"),)) == "h100"
    assert _taken(spot, tolerations=(tolerates("spot", "false"),)) == taken
    own = flavor("h100", taints=(taint("spot", "true", effect),), tolerations=(tolerates("spot"),))
    assert _taken(own) == "h100"


@pytest.mark.parametrize(
    ("selector", "taken"),
    [
        ({}, "h100"),
        ({"gpu": "h100"}, "h100"),
        ({"gpu": "l4"}, "l4"),
        ({"zone": "north"}, "h100"),  # no flavor has it: it is ignored
        ({"gpu": "a100"}, ""),
        ({"rack": "7"}, "l4"),  # only h100 has it
    ],
)
def test_only_labels_that_a_flavor_has_count(selector: dict[str, str], taken: str) -> None:
    ones = flavor("h100", {"gpu": "h100", "rack": "3"}), flavor("l4", {"gpu": "l4"})
    assert _taken(*ones, selector=selector) == taken


@pytest.mark.parametrize(
    ("operator", "values", "taken"),
    [
        ("In", ("l4", "t4"), "l4"),
        ("NotIn", ("h100",), "l4"),
        ("Exists", (), "h100"),
        ("DoesNotExist", (), ""),
        ("In", ("t4",), ""),
    ],
)
def test_affinity(operator: str, values: tuple[str, ...], taken: str) -> None:
    ones = flavor("h100", {"gpu": "h100"}), flavor("l4", {"gpu": "l4"})
    about = SelectorRequirement("gpu", operator, values)
    unknown = SelectorRequirement("zone", "In", ("north",))
    assert _taken(*ones, affinity=(about, unknown)) == taken


def test_one_term_of_the_affinity_is_enough() -> None:
    terms = tuple((SelectorRequirement("gpu", "In", (name,)),) for name in ("t4", "l4"))
    sets = (PodSet("main", 1, PodTemplate({GPU: 1}, affinity=terms)),)
    ones = flavor("h100", {"gpu": "h100"}), flavor("l4", {"gpu": "l4"})
    assert flavors(decided("new", TWO, *ones, workload("new", "a", pod_sets=sets))) == {"main": "l4"}


def test_where_no_flavor_may_be_had_the_reason_is_that() -> None:
    spots = flavor("h100", taints=(taint("spot"),)), flavor("l4", {"gpu": "l4"})
    found = decided("new", TWO, *spots, workload("new", "a", selector={"gpu": "h100"}))
    assert (found.pending, found.reason) == (PendingClass.NO_FIT, "NoMatchingFlavor")
    assert found.message == (
        "couldn't assign flavors to pod set main: flavor l4 doesn't match node affinity, "
        "untolerated taint {spot  NoSchedule <nil>} in flavor h100"
    )


def test_flavors_are_alternatives_so_the_mildest_reason_counts() -> None:
    spot = flavor("h100", taints=(taint("spot"),))
    assert decided("new", TWO, spot, workload("new", "a", 9)).reason == "ExceedsMaxQuota"
    full = workload("old", "a", 8, holding=True, flavor="l4")
    assert decided("new", TWO, spot, full, workload("new", "a", 1)).reason == "WaitingForQuota"


def test_groups_must_all_be_served_so_the_most_severe_reason_counts() -> None:
    spec = queue("a", {"h100": 8}, cpu={"pool": 1})
    spot = flavor("h100", taints=(taint("spot"),))
    assert decided("new", spec, spot, workload("new", "a", 1, cpu=1)).reason == "NoMatchingFlavor"


def test_the_first_flavor_that_fits_is_taken() -> None:
    assert _taken() == "h100"
    assert _taken(workload("old", "a", 8, holding=True)) == "l4"


def test_resource_groups_have_flavors_of_their_own() -> None:
    found = decided("new", queue("a", {"h100": 8}, cpu={"pool": 64}), workload("new", "a", cpu=4))
    assert found.pod_sets[0].flavors == {GPU: "h100", "cpu": "pool"}


def test_resources_of_one_group_get_one_flavor() -> None:
    spec = queue("a", {"h100": 8, "l4": 8}, cpu={"h100": 4, "l4": 64})
    found = decided("new", spec, workload("new", "a", cpu=16))
    assert found.pod_sets[0].flavors == {GPU: "l4", "cpu": "l4"}


def _borrows_first(can_borrow: str, second: int) -> tuple[ClusterQueue, ClusterQueue]:
    """h100 would be borrowed, of l4 there is ``second`` of its own."""
    lender = queue("b", {"h100": 8}, cohort="org")
    return queue("a", {"h100": 2, "l4": second}, cohort="org", can_borrow=can_borrow), lender


@pytest.mark.parametrize(
    ("can_borrow", "second", "expected"),
    [
        ("MayStopSearch", 8, ("h100", 1)),
        ("TryNextFlavor", 8, ("l4", 0)),
        ("TryNextFlavor", 4, ("l4", 0)),
        ("TryNextFlavor", 3, ("h100", 1)),
    ],
)
def test_when_can_borrow(can_borrow: str, second: int, expected: tuple[str, int]) -> None:
    found = decided("new", *_borrows_first(can_borrow, second), workload("new", "a", 4))
    assert (flavors(found)["main"], found.level) == expected


@pytest.mark.parametrize(
    ("can_preempt", "second", "expected"),
    [
        ("MayStopSearch", 8, (PREEMPTING, "h100")),
        ("TryNextFlavor", 8, (ADMITTED, "l4")),
        ("TryNextFlavor", 4, (ADMITTED, "l4")),
        ("TryNextFlavor", 3, (PREEMPTING, "h100")),
    ],
)
def test_when_can_preempt(can_preempt: str, second: int, expected: tuple[CycleOutcome, str]) -> None:
    spec = queue("a", {"h100": 8, "l4": second}, within="LowerPriority", can_preempt=can_preempt)
    old = workload("old", "a", 8, holding=True)
    found = decided("new", spec, old, workload("new", "a", 4, priority=1))
    assert (found.outcome, flavors(found)["main"]) == expected


def test_a_flavor_without_candidates_does_not_stop_the_search() -> None:
    spec = queue("a", {"h100": 8, "l4": 8}, within="LowerPriority", can_preempt="MayStopSearch")
    old = workload("old", "a", 8, priority=1, holding=True)
    found = decided("new", spec, old, workload("new", "a", 4, priority=1))
    assert (found.outcome, flavors(found)) == (ADMITTED, {"main": "l4"})


@pytest.mark.parametrize(
    ("preference", "expected"),
    [
        ("", (ADMITTED, "l4", 1)),
        ("BorrowingOverPreemption", (ADMITTED, "l4", 1)),
        ("PreemptionOverBorrowing", (PREEMPTING, "h100", 0)),
    ],
)
def test_preference(preference: str, expected: tuple[CycleOutcome, str, int]) -> None:
    """The other way round than the comments of the API have it."""
    spec = queue(
        "a",
        {"h100": 4, "l4": 0},
        cohort="org",
        within="LowerPriority",
        can_borrow="TryNextFlavor",
        preference=preference,
    )
    lender = queue("b", {"l4": 8}, cohort="org")
    old = workload("old", "a", 4, holding=True)
    objects = spec, queue("c", {"h100": 0}, cohort="org"), lender, old
    found = decided("new", *objects, workload("new", "a", 4, priority=1))
    assert (found.outcome, flavors(found)["main"], found.level) == expected


def test_reclaiming_goes_before_preempting_ones_own() -> None:
    """Both flavors need victims; of l4 those of another queue."""
    spec = queue("a", {"h100": 4, "l4": 4}, cohort="org", within="LowerPriority", reclaim="Any")
    other = queue("b", {"h100": 0, "l4": 0}, cohort="org")
    own = workload("own", "a", 4, holding=True)
    theirs = workload("theirs", "b", 4, holding=True, flavor="l4")
    found = decided("new", spec, other, own, theirs, workload("new", "a", 4, priority=1))
    assert (found.outcome, flavors(found), found.preempts) == (PREEMPTING, {"main": "l4"}, ("theirs",))


def _hidden(preference: str) -> tuple[object, ...]:
    spec = queue("a", FlavorQuota(8, 0), cpu=16, cohort="org", within="LowerPriority", preference=preference)
    low = workload("low", "a", 8, priority=100, holding=True)
    high = workload("high", "a", 8, priority=1000, cpu=32)
    return spec, queue("b", None, cpu=64, cohort="org"), low, high


def test_preemption_over_borrowing_hides_a_needed_preemption() -> None:
    """A defect of v0.19.2, kept: GPUs need preemption, cpu is borrowed, and the flavor counts as free."""
    result = cycle(*_hidden("PreemptionOverBorrowing"))
    assert outcomes(result) == {"low": "keeps-running", "high": PendingClass.NO_LONGER_FITS}
    high = result.decisions["high"]
    assert high.nominated is not None
    assert (high.nominated.mode, high.nominated.level) == ("Fit", 1)
    assert high.message == "Workload no longer fits after processing another workload"
    assert not high.parked


@pytest.mark.parametrize("preference", ["", "BorrowingOverPreemption"])
def test_the_default_preference_hides_nothing(preference: str) -> None:
    result = cycle(*_hidden(preference))
    assert outcomes(result) == {"low": "preempted", "high": PendingClass.NEEDS_PREEMPTION}
    assert result.decisions["high"].preempts == ("low",)


def test_pod_sets_add_up_and_may_end_in_different_flavors() -> None:
    sets = pod_set("first", 1, 6), pod_set("second", 1, 2), pod_set("third", 1, 1)
    found = decided("new", TWO, workload("new", "a", pod_sets=sets))
    assert flavors(found) == {"first": "h100", "second": "h100", "third": "l4"}


def test_what_earlier_pod_sets_take_is_said() -> None:
    sets = pod_set("first", 1, 6), pod_set("second", 1, 3)
    found = decided("new", queue("a", 8), workload("new", "a", pod_sets=sets))
    assert found.reason == "ExceedsMaxQuota"
    assert "pod set second" in found.message
    assert "pod set first" not in found.message
    assert "podsets requests (6) + current podset request (3) > maximum capacity (8)" in found.message


RACKS = flavor("h100", topology="racks")


@pytest.mark.parametrize(
    ("topology", "taken"),
    [
        ({}, "l4"),
        ({"group": "pair"}, "l4"),  # a group is no request
        ({"required": "rack"}, "h100"),
        ({"preferred": "rack"}, "h100"),
        ({"slice": "rack"}, "h100"),
        ({"unconstrained": "true"}, "h100"),
    ],
)
def test_a_flavor_with_a_topology_is_for_pods_that_ask_for_one(topology: dict[str, str], taken: str) -> None:
    """tas_flavorassigner.go, checkPodSetAndFlavorMatchForTAS; TopologyAwareScheduling is on by default."""
    assert _taken(RACKS, topology=topology) == taken


def test_a_queue_whose_flavors_all_have_a_topology_is_for_everybody() -> None:
    found = decided("new", queue("a", {"h100": 8}), RACKS, workload("new", "a"))
    assert flavors(found) == {"main": "h100"}


def test_pod_sets_of_a_group_share_their_flavor() -> None:
    grouped = {"group": "pair"}
    sets = pod_set("first", 1, 6, topology=grouped), pod_set("second", 1, 3, topology=grouped)
    spec = queue("a", {"h100": 8, "l4": 9})
    found = decided("new", spec, workload("new", "a", pod_sets=sets))
    assert flavors(found) == {"first": "l4", "second": "l4"}
    alone = pod_set("first", 1, 6), pod_set("second", 1, 3)
    assert flavors(decided("new", spec, workload("new", "a", pod_sets=alone))) == {
        "first": "h100",
        "second": "l4",
    }


def test_all_pods_of_a_group_must_be_let_in() -> None:
    grouped = {"group": "pair"}
    sets = (
        pod_set("first", topology=grouped, tolerations=(tolerates("spot"),)),
        pod_set("second", topology=grouped),
    )
    spot = flavor("h100", taints=(taint("spot"),))
    assert flavors(decided("new", TWO, spot, workload("new", "a", pod_sets=sets))) == {
        "first": "l4",
        "second": "l4",
    }


def test_a_pod_set_without_gpus_is_served_too() -> None:
    sets = pod_set("launcher", 1, 0, cpu=1), pod_set("workers", 2, 4, cpu=1)
    found = decided("new", queue("a", 8, cpu=3), workload("new", "a", pod_sets=sets))
    assert [(each.name, each.count, dict(each.flavors)) for each in found.pod_sets] == [
        ("launcher", 1, {"cpu": "h100"}),
        ("workers", 2, {GPU: "h100", "cpu": "h100"}),
    ]
    assert decided("new", queue("a", 8, cpu=2.999), workload("new", "a", pod_sets=sets)).outcome is PENDING


def test_a_flavor_named_by_two_groups() -> None:
    groups = ResourceGroup((GPU,), ("h100",)), ResourceGroup(("cpu",), ("h100",))
    quotas = {FlavorResource("h100", GPU): FlavorQuota(8), FlavorResource("h100", "cpu"): FlavorQuota(4000)}
    spec = queue("a", 1, groups=groups)
    spec = ClusterQueue(
        spec.meta, groups=groups, quotas=quotas, namespace_selector=(), conditions=spec.conditions
    )
    found = decided("new", spec, workload("new", "a", cpu=4))
    assert found.pod_sets[0].flavors == {GPU: "h100", "cpu": "h100"}
    assert decided("new", spec, workload("new", "a", cpu=5)).pending is PendingClass.NO_FIT


def test_earlier_flavors_taken_by_greed_can_leave_a_later_pod_set_without() -> None:
    """Kueue goes through pod sets in order and never back: more quota can make this worse."""
    picky = pod_set("second", 1, 4, selector={"gpu": "h100"})
    new = workload("new", "a", pod_sets=(pod_set("first", 1, 8), picky))
    ones = flavor("h100", {"gpu": "h100"}), flavor("l4", {"gpu": "l4"})
    assert decided("new", queue("a", {"h100": 4, "l4": 8}), *ones, new).outcome is ADMITTED
    assert decided("new", queue("a", {"h100": 8, "l4": 8}), *ones, new).pending is PendingClass.NO_FIT


def test_three_flavors_the_best_is_kept() -> None:
    """Levels 2, 1, 2: the search goes to the end, the lowest level wins, the first of equals."""
    spec = queue("a", {"x": 0, "y": 0, "z": 0}, cohort="low", can_borrow="TryNextFlavor")
    result = cycle(
        worlds.cohort("org", {"x": 8, "z": 8}),
        worlds.cohort("low", {"y": 8}, parent="org"),
        spec,
        workload("new", "a", 4),
    )
    assert (flavors(result.decisions["new"]), result.decisions["new"].level) == ({"main": "y"}, 1)
    without = queue("a", {"x": 0, "z": 0}, cohort="low", can_borrow="TryNextFlavor")
    found = decided(
        "new",
        worlds.cohort("org", {"x": 8, "z": 8}),
        worlds.cohort("low", parent="org"),
        without,
        workload("new", "a", 4),
    )
    assert (flavors(found), found.level) == ({"main": "x"}, 2)
