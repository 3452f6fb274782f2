"""Heads that got no quota, as their Workloads tell it: which of them become cases, and which are counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucost.advisor.verify import decision_follower
from gpucost.advisor.verify.case_schema import MOST_TEXT
from gpucost.advisor.verify.case_writer import CaseAliases
from gpucost.advisor.verify.decision_follower import MOST_REFUSALS, checked
from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.objects.metadata import StatusCondition
from gpucost.cluster.objects.state import ClusterState
from tests.advisor import worlds
from tests.advisor.test_verify_follow import AT, before, followed, given, told_to_leave
from tests.advisor.worlds import NOW, queue, workload
from tests.cluster.builders import GPU

SHORT = f"insufficient unused quota for {GPU} in flavor h100"
FULL = worlds.state(queue("alone", 8))
HOLDER = given(workload("holder", "alone", 6), "alone", NOW - 60_000)


def refused(each: Workload, said: str, reason: str = "WaitingForQuota") -> Workload:
    told = StatusCondition(False, reason, said, AT)
    return replace(each, conditions={**each.conditions, "QuotaReserved": told})


def of_main(said: str) -> str:
    return f"couldn't assign flavors to pod set main: {said}"


def test_a_head_that_is_told_why_it_waits_is_a_case() -> None:
    """8 GPUs, 6 are held: 4 asked are 2 more than there are."""
    one = workload("one", "alone", 4)
    said = of_main(f"{SHORT}, 2 more needed")
    kept = followed(*before(HOLDER, one), (AT, refused(one, said)), state=FULL)
    (case,) = kept.cases
    assert case["expected"] == {
        "alone/one": {
            "outcome": "pending",
            "quotaReservedReason": "WaitingForQuota",
            "messageContains": said,
        },
        "alone/holder": {"outcome": "keeps-running"},
    }
    assert (kept.refusals, kept.decisions, checked(kept.cases).agrees) == (1, 1, True)


@pytest.mark.parametrize(
    ("asked", "said", "facts"),
    [
        (4, f"{SHORT}, 3 more needed", {"messageContains"}),
        (2, f"{SHORT}, 1 more needed", {"outcome", "quotaReservedReason", "messageContains"}),
    ],
    ids=["other amount", "would fit"],
)
def test_one_that_the_rules_would_tell_otherwise_disagrees(asked: int, said: str, facts: set[str]) -> None:
    one = workload("one", "alone", asked)
    kept = followed(*before(HOLDER, one), (AT, refused(one, of_main(said))), state=FULL)
    assert {each.fact for each in checked(kept.cases).disagreements} == facts


def test_a_vague_reason_is_none_and_aliases_leave_the_message_out() -> None:
    """Without the gate UnadmittedWorkloadsObservability every reason is Pending."""
    one = workload("one", "alone", 4)
    told = refused(one, of_main(f"{SHORT}, 2 more needed"), "Pending")
    (case,) = followed(*before(HOLDER, one), (AT, told), state=FULL, names=CaseAliases()).cases
    assert case["expected"]["namespace-00001/workload-00002"] == {
        "outcome": "pending",
        "quotaReservedReason": None,
        "messageContains": None,
    }
    assert checked([case]).agrees


def test_a_message_that_is_too_long_for_a_file_is_cut() -> None:
    one = workload("one", "alone", 4)
    told = refused(one, of_main("x" * 30_000))
    (case,) = followed(*before(HOLDER, one), (AT, told), state=FULL).cases
    assert len(case["expected"]["alone/one"]["messageContains"]) == MOST_TEXT


def test_the_same_said_again_is_no_decision_and_the_fourth_of_one_workload_no_case() -> None:
    one = workload("one", "alone", 4)
    told = [refused(one, of_main(f"{SHORT}, {count} more needed")) for count in (2, 2, 3, 4, 5)]
    writes = [(AT + place * 5_000, each) for place, each in enumerate(told)]
    kept = followed(*before(HOLDER, one), *writes, state=FULL)
    assert (kept.refusals, len(kept.cases)) == (4, MOST_REFUSALS)
    assert dict(kept.left_out) == {decision_follower.AGAIN: 1}


@pytest.mark.parametrize(
    "said",
    [
        "",
        "The workload is deactivated",
        "ClusterQueue alone is stopped",
        of_main(f"{SHORT}, 2 more needed. Pending the preemption of 1 workload(s)"),
    ],
)
def test_what_others_than_the_scheduler_say_and_who_preempts_is_no_refusal(said: str) -> None:
    """Whom one preempts is told by the evictions."""
    one = workload("one", "alone", 4)
    kept = followed(*before(HOLDER, one), (AT, refused(one, said)), state=FULL)
    assert (kept.decisions, kept.cases) == (0, [])


def test_one_that_lost_its_quota_is_not_refused() -> None:
    held = given(workload("one", "alone", 8), "alone", NOW - 60_000)
    gone = refused(
        replace(held, cluster_queue="", assignments=(), conditions={}), of_main(f"{SHORT}, 8 more needed")
    )
    assert followed(*before(held), (AT, gone), state=FULL).decisions == 0


@pytest.mark.parametrize(
    ("cluster", "said", "why"),
    [
        (
            worlds.state(queue("alone", {"h100": 8, "a100": 8})),
            of_main(f"{SHORT}, 2 more needed"),
            decision_follower.RESUMED,
        ),
        (
            FULL,
            "Workload no longer fits after processing another workload",
            decision_follower.BY_OTHERS,
        ),
        (
            FULL,
            "Workload has overlapping preemption targets with another workload",
            decision_follower.BY_OTHERS,
        ),
        (
            worlds.state(queue("alone", 8, admission_mode="UsageBasedAdmissionFairSharing")),
            of_main(f"{SHORT}, 2 more needed"),
            decision_follower.FAIR_QUEUES,
        ),
        (worlds.state(queue("other", 8)), of_main("x"), decision_follower.UNREAD),
    ],
    ids=["several flavors", "no longer fits", "overlapping", "admission fair sharing", "no queue"],
)
def test_a_refusal_that_no_object_explains_is_counted_by_its_reason(
    cluster: ClusterState, said: str, why: str
) -> None:
    one = workload("one", "alone", 4)
    kept = followed(*before(one), (AT, refused(one, said)), state=cluster)
    assert (kept.cases, dict(kept.left_out), kept.refusals) == ([], {why: 1}, 1)


# What was there before the watch began, and what happens elsewhere


def test_what_is_first_seen_with_quota_was_written_before() -> None:
    """The first list comes within a second of a decision: who holds quota in it did so before. Else every
    decision of the first second that the rules disagree with would be taken for one in another order."""
    one = workload("one", "alone", 4)
    wrong = given(one, "alone")
    kept = followed((AT - 500, HOLDER), (AT - 500, one), (AT, wrong), state=FULL)
    assert {each.fact for each in checked(kept.cases).disagreements} >= {"outcome"}
    assert dict(kept.left_out) == {}


def test_evictions_in_another_tree_leave_the_victims_asserted() -> None:
    state = worlds.state(queue("ml", 8, within="LowerPriority"), queue("alone", 8))
    leaving = told_to_leave(given(workload("gone", "alone", 8), "alone", NOW - 60_000), "x", NOW - 50_000)
    low = given(workload("low", "ml", 8), "ml", NOW - 60_000)
    high = workload("high", "ml", 8, priority=100)
    told = (AT, told_to_leave(low, "high"))
    (case,) = followed(*before(leaving, low, high), told, state=state).cases
    assert case["expected"]["ml/high"]["preempts"] == ["ml/low"]
    near = told_to_leave(given(workload("gone", "ml", 0), "ml", NOW - 60_000), "x", NOW - 50_000)
    (case,) = followed(*before(near, low, high), told, state=state).cases
    assert case["expected"]["ml/high"]["preempts"] is None
