"""One cycle: who is the head, in which order heads are processed, and where those that stay wait."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from gpucost.advisor.model.cycle_results import CycleOutcome, PendingClass
from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.objects.metadata import StatusCondition
from gpucost.cluster.objects.scheduler_config import FairAdmission, KueueConfig
from tests.advisor import worlds
from tests.advisor.kueue_runs import cycle, decided, flavors, outcomes
from tests.advisor.worlds import local_queue, queue, workload
from tests.cluster.builders import GPU

ADMITTED = CycleOutcome.ADMITTED
WAITING = PendingClass.WAITING
NO_CANDIDATES, NO_FIT = PendingClass.NO_CANDIDATES, PendingClass.NO_FIT
NO_LONGER = PendingClass.NO_LONGER_FITS
FAIR_ADMISSION = "UsageBasedAdmissionFairSharing"
EVEN = FairAdmission()


def _head(*objects: object, kueue: KueueConfig | None = None) -> str:
    """Which workload is looked at."""
    ((found,),) = cycle(*objects, kueue=kueue).order
    return found


def test_the_head_is_of_the_highest_priority_then_the_oldest_then_the_first_by_uid() -> None:
    low, high = workload("low", "a", priority=1, created=900), workload("high", "a", priority=2, created=60)
    assert _head(queue("a", 8), low, high) == "high"
    older = workload("older", "a", priority=2, created=61)
    assert _head(queue("a", 8), low, high, older) == "older"
    twin = workload("another", "a", priority=2, created=61)
    assert _head(queue("a", 8), low, high, older, twin) == "another"


def test_each_queue_offers_one_head() -> None:
    result = cycle(
        queue("a", 8), *(workload(name, "a", created=place) for place, name in enumerate("zyx", 1))
    )
    assert outcomes(result) == {"z": WAITING, "y": WAITING, "x": "admitted"}
    assert not any(each.parked for each in result.decisions.values())


@pytest.mark.parametrize(
    ("reason", "first"),
    [("PodsReadyTimeout", "new"), ("AdmissionCheck", "new"), ("Preempted", "old"), ("Deactivated", "old")],
)
def test_who_was_evicted_for_its_pods_or_a_check_stands_at_the_back(reason: str, first: str) -> None:
    old = workload("old", "a", created=9000, evicted=30, evicted_for=reason)
    assert _head(queue("a", 8), old, workload("new", "a", created=60)) == first


@pytest.mark.parametrize("reason", ["OnHold", "AdmissionGated"])
def test_who_is_held_back_is_not_in_line(reason: str) -> None:
    held = {"conditions": {"QuotaReserved": StatusCondition(False, reason, "", None)}}
    result = cycle(queue("a", 8), workload("held", "a", created=900, rest=held), workload("new", "a"))
    assert outcomes(result) == {"held": WAITING, "new": "admitted"}


def test_who_is_not_active_is_not_there() -> None:
    gone = workload("gone", "a", rest={"is_active": False})
    assert cycle(queue("a", 8), gone, workload("new", "a")).decisions.keys() == {"new"}


def _two_queues() -> tuple[object, ...]:
    return queue("a", 4, cohort="org"), queue("b", 4, cohort="org")


def test_who_borrows_less_is_processed_first_then_priority_then_age() -> None:
    borrows = workload("borrows", "a", 5, priority=9, created=9000)
    own = workload("own", "b", 4, created=60)
    assert cycle(*_two_queues(), borrows, own).order == (("own", "borrows"),)
    urgent, old = workload("urgent", "a", 2, priority=1, created=60), workload("old", "b", 2, created=9000)
    assert cycle(*_two_queues(), urgent, old).order == (("urgent", "old"),)
    young = workload("young", "a", 2, created=60)
    assert cycle(*_two_queues(), young, old).order == (("old", "young"),)


def test_trees_are_processed_each_on_its_own() -> None:
    result = cycle(queue("a", 4), queue("b", 4), workload("one", "a", 1), workload("two", "b", 1))
    assert sorted(result.order) == [("one",), ("two",)]


@pytest.mark.parametrize(("second", "expected"), [(3, "admitted"), (4, "no-longer-fits")])
def test_heads_before_take_quota_from_heads_after(second: int, expected: str) -> None:
    result = cycle(
        *_two_queues(),
        queue("c", 0, cohort="org"),
        workload("one", "a", 5, priority=1),
        workload("two", "c", second),
    )
    assert outcomes(result) == {"one": "admitted", "two": expected}
    two = result.decisions["two"]
    if expected == "no-longer-fits":
        assert two.reason == "WaitingForQuota"
        assert two.message == "Workload no longer fits after processing another workload"
        assert two.nominated is not None
        assert (two.nominated.mode, two.nominated.level) == ("Fit", 1)
        assert not two.parked


@pytest.mark.parametrize("is_strict", [True, False])
def test_who_finds_no_quota_is_parked_unless_the_queue_is_strict(is_strict: bool) -> None:
    spec = queue("a", 8, strict=is_strict)
    held = workload("old", "a", 8, holding=True)
    short = decided("new", spec, held, workload("new", "a", 1))
    assert (short.pending, short.parked) == (NO_CANDIDATES, not is_strict)
    never = decided("new", spec, held, workload("new", "a", 9))
    assert (never.pending, never.parked) == (NO_FIT, not is_strict)


def test_who_has_flavors_left_to_try_is_not_parked() -> None:
    """The scan stopped at the first flavor in which preemption is tried: there are no candidates."""
    spec = queue("a", {"h100": 4, "l4": 4}, cohort="org", can_borrow="MayStopSearch")
    lender = queue("b", {"h100": 4}, cohort="org")
    two = queue("c", {"h100": 0}, cohort="org")
    result = cycle(spec, lender, two, workload("one", "a", 8), workload("two", "c", 8, priority=9))
    assert result.decisions["two"].outcome is ADMITTED
    assert result.decisions["one"].pending is NO_LONGER
    sets = worlds.pod_set("first", 1, 6), worlds.pod_set("second", 1, 9)
    found = decided("new", spec, lender, workload("new", "a", pod_sets=sets))
    assert (found.pending, found.parked) == (NO_FIT, False)
    sets = worlds.pod_set("second", 1, 9), worlds.pod_set("first", 1, 6)
    found = decided("new", spec, lender, workload("new", "a", pod_sets=sets))
    assert (found.pending, found.parked) == (NO_FIT, True)


def test_equal_workloads_are_parked_with_the_head() -> None:
    spec, held = queue("a", 8), workload("old", "a", 8, holding=True)
    result = cycle(
        spec,
        held,
        workload("head", "a", 2, created=900),
        workload("equal", "a", 2, created=60),
        workload("bigger", "a", 3, created=60),
        workload("more", "a", 2, 2, created=60),
        workload("lower", "a", 2, priority=-1, created=60),
        workload("picky", "a", 2, created=60, selector={"zone": "north"}),
    )
    parked = {name for name, each in result.decisions.items() if each.parked}
    assert parked == {"head", "equal"}
    assert result.decisions["equal"].pending is WAITING


def test_nobody_is_parked_with_a_head_that_no_longer_fits() -> None:
    result = cycle(
        *_two_queues(),
        queue("c", 0, cohort="org"),
        workload("one", "a", 8, priority=1),
        workload("two", "c", 1, created=9000),
        workload("three", "c", 1),
    )
    assert outcomes(result)["two"] == NO_LONGER
    assert not any(each.parked for each in result.decisions.values())


def test_nobody_is_parked_in_another_queue() -> None:
    held = workload("old", "a", 8, holding=True)
    result = cycle(
        queue("a", 8),
        queue("b", 8),
        held,
        workload("mine", "a", 2),
        *(workload(name, "b", 2, created=age) for name, age in (("theirs", 900), ("next", 60))),
    )
    assert {name for name, each in result.decisions.items() if each.parked} == {"mine"}


def test_a_strict_queue_and_one_that_is_not_differ_in_the_next_cycle_only() -> None:
    """Within one cycle each has one head."""
    for is_strict in (True, False):
        result = cycle(
            queue("a", 8, strict=is_strict),
            workload("old", "a", 4, holding=True),
            workload("big", "a", 8, created=9000),
            workload("small", "a", 1),
        )
        assert outcomes(result) == {"old": "keeps-running", "big": NO_CANDIDATES, "small": WAITING}


def _shared(
    mode: str,
    usage: dict[str, int],
    weight: Fraction | int = 1,
    config: FairAdmission | None = EVEN,
    *more: Workload,
) -> str:
    """The head of a queue with two LocalQueues, of which the one with the urgent workload used something."""
    return _head(
        *more,
        queue("a", 8, admission_mode=mode),
        local_queue("greedy", "a", "a", fair_usage=usage, weight=Fraction(weight)),
        local_queue("modest", "a", "a", fair_usage={GPU: 2000}),
        workload("urgent", "a", priority=9, rest={"queue": "greedy"}),
        workload("plain", "a", rest={"queue": "modest"}),
        kueue=KueueConfig("v0.19.2", fair_admission=config, is_read=True),
    )


@pytest.mark.parametrize(
    ("usage", "weight", "first"),
    [
        ({GPU: 2001}, 1, "plain"),
        ({GPU: 2000}, 1, "urgent"),
        ({GPU: 1999}, 1, "urgent"),
        ({}, 1, "urgent"),
        ({GPU: 4000}, 2, "urgent"),
        ({GPU: 4001}, 2, "plain"),
        ({GPU: 1}, 0, "plain"),
        ({GPU: 1500, "cpu": 501}, 1, "plain"),
    ],
)
def test_admission_fair_sharing_orders_by_what_local_queues_used(
    usage: dict[str, int], weight: int, first: str
) -> None:
    assert _shared(FAIR_ADMISSION, usage, weight) == first
    assert _shared("", usage, weight) == "urgent"
    # Kueue's Configuration does not have it.
    assert _shared(FAIR_ADMISSION, usage, weight, None) == "urgent"


def test_a_workload_with_quota_that_is_not_admitted_is_charged_at_once() -> None:
    """Half-life and sampling are equal, so half of its 4 GPUs: 2 for ``greedy`` and the 2 of ``modest`` are
    equal, and 2.001 are more."""
    half = FairAdmission(half_life_ms=300_000, sampling_ms=300_000)
    entering = workload("enters", "a", 4, holding=True, rest={"queue": "greedy"})
    entering = replace(
        entering, conditions={key: each for key, each in entering.conditions.items() if key != "Admitted"}
    )
    assert _shared(FAIR_ADMISSION, {}, 1, half, entering) == "urgent"
    assert _shared(FAIR_ADMISSION, {GPU: 1}, 1, half, entering) == "plain"
    admitted = workload("runs", "a", 4, holding=True, rest={"queue": "greedy"})
    assert _shared(FAIR_ADMISSION, {GPU: 1}, 1, half, admitted) == "urgent"


def test_what_is_decided_of_those_that_hold_quota() -> None:
    result = cycle(
        queue("a", 8),
        workload("runs", "a", 4, holding=True),
        workload("leaves", "a", 4, holding=True, evicted=5),
        workload("nowhere", "gone", 4, holding=True, namespace="a"),
    )
    assert outcomes(result) == {"runs": "keeps-running", "leaves": "being-evicted"}
    assert result.order == ()


def test_an_empty_cluster() -> None:
    result = cycle()
    assert (dict(result.decisions), result.order, result.ties) == ({}, (), ())


def test_ten_thousand_wait() -> None:
    many = [workload(f"w{place:05}", "a", 1 + place % 8, created=place) for place in range(10_000)]
    result = cycle(queue("a", 8), workload("old", "a", 4, holding=True), *many)
    assert len(result.decisions) == 10_001
    assert sum(each.pending is WAITING for each in result.decisions.values()) == 9_999
    assert result.order == (("w09999",),)


def test_ten_thousand_pod_sets() -> None:
    many = tuple(worlds.pod_set(f"p{place}", 1, 1) for place in range(10_000))
    result = cycle(
        queue("a", 10_000),
        queue("b", 9_999),
        *(workload(name, name, pod_sets=many, uid=name) for name in "ab"),
    )
    assert result.decisions["a"].outcome is ADMITTED
    assert len(flavors(result.decisions["a"])) == 10_000
    assert (result.decisions["b"].pending, result.decisions["b"].reason) == (NO_FIT, "ExceedsMaxQuota")
    assert "pod set p9999" in result.decisions["b"].message
