"""Preempted work: what is lost, what a restart costs, and that nothing is claimed twice."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.detectors.allocation_pieces import AllocationPiece, PriorHolding, pieces
from gpucost.detectors.findings import FindingSeverity, RuleDetection
from gpucost.detectors.rule_settings import PreemptionWasteSettings, ScopedSettings
from gpucost.detectors.rules.preemption_waste import run
from gpucost.domain.time import MINUTE_MS, SECOND_MS
from tests.detectors.case_preemption_waste import cycle, evicted, queue_of, ring
from tests.detectors.worlds import World, at


def found(world: World) -> RuleDetection:
    return run(world.facts(), ScopedSettings(PreemptionWasteSettings()))


def claims(detection: RuleDetection) -> list[tuple[str, int, int]]:
    episodes = [each for draft in detection.drafts for each in draft.episodes]
    return sorted((each.pod_uid, each.start_ms, each.end_ms) for each in episodes)


def test_from_a_known_checkpoint_on_work_is_lost() -> None:
    world = World(240).node("n1").pod("p", "n1", 0, 120)
    detection = found(evicted(world, "p", 0, 120, checkpoint=100))
    assert claims(detection) == [("p", at(100), at(120))]
    (draft,) = detection.drafts
    evidence = {each.name: each.value for each in draft.evidence}
    assert evidence["lost at least"] == evidence["lost at most"] == round(20 / 60, 3)


def test_without_one_it_is_half_the_attempt_at_most_half_an_hour() -> None:
    for minutes, lost in ((40, 20), (60, 30), (200, 30)):
        world = World(240).node("n1").pod("p", "n1", 0, minutes)
        detection = found(evicted(world, "p", 0, minutes))
        assert claims(detection) == [("p", at(minutes - lost), at(minutes))]
        evidence = {each.name: each.value for each in detection.drafts[0].evidence}
        assert evidence["lost at least"] == 0
        assert evidence["lost at most"] == round(minutes / 60, 3)


def test_a_restart_takes_longer_for_more_gpus() -> None:
    for units, seconds in ((1, 7), (2, 30), (8, 30), (9, 60)):
        world = World(240).node("n1", 16).pod("p", "n1", 0, 60, units=units, job="j")
        world.pod("next", "n1", 90, units=units, job="j")
        detection = found(evicted(world, "p", 0, 60, job="j"))
        assert ("next", at(90), at(90) + seconds * SECOND_MS) in claims(detection)


def test_each_eviction_has_one_successor() -> None:
    world = World(240).node("n1").pod("p", "n1", 0, 60, job="j")
    for n in range(3):
        world.pod(f"next-{n}", "n1", 70 + n, job="j")
    assert [uid for uid, _, _ in claims(found(evicted(world, "p", 0, 60, job="j")))] == ["next-0", "p"]


def test_evictions_of_pods_that_never_held_a_gpu_cost_nothing() -> None:
    assert found(evicted(World(240).node("n1"), "p", 0, 60)).drafts == ()


def test_two_reasons_for_one_eviction_count_once() -> None:
    world = evicted(queue_of(), "a", 60, 180, reason="Drain")
    assert claims(found(world)) == claims(found(queue_of()))


def test_what_kube_scheduler_preempted_is_lost_like_what_kueue_evicted() -> None:
    """Of pods without a queue of Kueue as well: each loses half an hour and is claimed by the ledger."""
    world = World(480).node("n1", 16)
    for uid in ("a", "b"):
        world.pod(uid, "n1", 60, 180, units=8, queue="q")
        evicted(world, uid, 60, 180, reason="PreemptionByScheduler", by="")
    assert claims(found(world)) == claims(found(queue_of()))
    (draft,) = found(world).drafts
    assert draft.action.text.startswith("kube-scheduler preempted them for pods of higher priority")
    facts = {each.name: (each.value, each.shown_by) for each in draft.evidence}
    assert facts["reason PreemptionByScheduler"] == (2, "condition DisruptionTarget of the pods")


@pytest.mark.parametrize(
    ("reason", "patch"),
    [
        ("FlavorMigration", "RetainFirstAdmission"),
        ("ClusterQueueStopped", "stopPolicy: Hold"),
        ("LocalQueueStopped", "stopPolicy: Hold"),
        ("PodsReadyTimeout", "timeout: 30m"),
        ("NodeFailures", ""),
        ("OfANewerKueue", "terminationGracePeriodSeconds"),
    ],
)
def test_what_to_do_follows_from_the_reason_and_every_reason_counts(reason: str, patch: str) -> None:
    world = World(480).node("n1", 16)
    for uid in ("a", "b"):
        world.pod(uid, "n1", 60, 180, units=8, queue="q")
        evicted(world, uid, 60, 180, reason=reason, by="")
    (draft,) = found(world).drafts
    assert claims(found(world)) == claims(found(queue_of()))
    assert patch in draft.action.patch
    assert bool(patch) == bool(draft.action.patch)
    facts = {each.name: each.value for each in draft.evidence}
    assert facts[f"reason {reason}"] == 2


def test_below_the_threshold_it_is_counted_all_the_same() -> None:
    (draft,) = found(queue_of(units=7)).drafts
    assert (draft.variant, draft.at_least, draft.view_ms) == ("below_threshold", FindingSeverity.INFO, None)
    assert len(draft.episodes) == 2


def test_spot_capacity_is_shown_and_not_blamed() -> None:
    (draft,) = found(queue_of(capacity_type="spot")).drafts
    assert draft.variant == "below_threshold"
    assert {each.name: each.value for each in draft.evidence}["of these on spot capacity"] == 8


def test_pods_of_a_gang_evicted_together_are_one_eviction() -> None:
    world = World(240).node("n1")
    for n in range(4):
        world.pod(f"p{n}", "n1", 0, 60 + n / 10, job="j")
        evicted(world, f"p{n}", 0, 60 + n / 10, job="j")
    assert [draft.variant for draft in found(world).drafts] == ["below_threshold"]


def test_what_a_cycling_job_lost_is_not_claimed_by_its_queue_as_well() -> None:
    world = cycle()
    queue = queue_of(units=8)
    for name in ("nodes", "capacity"):
        queue.rows[name] = [{**row, "node": "n2"} for row in queue.rows[name]]
    queue.rows["allocations"] = [{**row, "node": "n2"} for row in queue.rows["allocations"]]
    for name, rows in queue.rows.items():
        world.rows[name] += rows
    world.end = 480
    detection = found(world)
    assert sorted(draft.variant for draft in detection.drafts) == ["cycling", "queue"]
    assert len(set(claims(detection))) == len(claims(detection))


def test_a_day_after_the_last_eviction_it_is_over() -> None:
    world = replace(cycle(), end=120 + 24 * 60)
    (draft,) = found(world).drafts
    assert draft.ended_ms == at(90)


@given(
    st.lists(st.integers(1, 90), min_size=1, max_size=8),
    st.lists(st.integers(0, 3), min_size=8, max_size=8),
    st.integers(1, 4),
)
def test_no_second_is_claimed_twice_and_none_that_was_not_held(
    lengths: list[int], pauses: list[int], units: int
) -> None:
    world, start = World(24 * 60).node("n1"), 0
    for n, minutes in enumerate(lengths):
        world.pod(f"p{n}", "n1", start, start + minutes / 4, units=units, job="j")
        evicted(world, f"p{n}", start, start + minutes / 4, job="j")
        start += round(minutes / 4 + 1) + pauses[n]
    spans = claims(found(world))
    held = {row["pod_uid"]: (row["start_ms"], row["end_ms"]) for row in world.rows["allocations"]}
    assert all(held[uid][0] <= a < b <= held[uid][1] for uid, a, b in spans)
    assert all(one[0] != two[0] or one[2] <= two[1] for one, two in pairwise(spans))
    assert sum(b - a for _, a, b in spans) >= sum(lengths) * MINUTE_MS // 8


def naive_boards(rows: list[AllocationPiece], evicted_ms: int) -> float:
    held = {}
    for row in rows:
        if row.start_ms < evicted_ms and row.end_ms >= evicted_ms - MINUTE_MS:
            held[row.pod_uid, row.resource] = row.boards
    return sum(held.values())


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10), st.integers(1, 8)), min_size=1, max_size=12),
    st.lists(st.integers(0, 40), min_size=1, max_size=12),
)
def test_what_was_held_before_is_what_looking_at_every_row_says(
    spans: list[tuple[int, int, int]], instants: list[int]
) -> None:
    world = World(60).node("n1", 64)
    for n, (start, length, units) in enumerate(spans):
        world.pod(f"p{n}", "n1", start, start + length, units=units, job="j")
    rows = pieces(world.facts().history.held, "job_uid", {"uid-j"})["uid-j"]
    before = PriorHolding(rows)
    for instant in sorted(instants):
        assert before.boards(at(instant)) == naive_boards(rows, at(instant))


def test_thousands_of_evictions_of_one_job_are_one_finding() -> None:
    world = World(2000).node("n1")
    for n in range(2000):
        world.pod(f"p{n}", "n1", n * 0.9, (n + 1) * 0.9, units=8, job="j", queue="q")
        evicted(world, f"p{n}", n * 0.9, (n + 1) * 0.9, job="j")
    (draft,) = found(world).drafts
    evidence = {each.name: each.value for each in draft.evidence}
    assert (draft.variant, evidence["pods evicted"], evidence["times evicted"]) == ("cycling", 2000, 2000)


def test_a_uid_in_another_namespace_is_another_job() -> None:
    world = cycle(2)
    world.pod("q", "n1", 90, 120, units=2, job="j", queue="q", namespace="other")
    assert [draft.variant for draft in found(evicted(world, "q", 90, 120, job="j")).drafts] == [
        "below_threshold"
    ]


def test_the_team_of_a_queue_reads_nothing_of_what_the_queue_holds_in_all() -> None:
    (draft,) = [each for each in found(queue_of()).drafts if each.variant == "queue"]
    assert draft.team == "t1"
    assert draft.team_view is not None
    names = {each.name for each in draft.team_view.evidence}
    assert "held in 24 hours" in {each.name for each in draft.evidence} - names
    assert not any("in favour of" in name for name in names)


def test_a_ring_names_who_waits_and_the_policy_that_ends_it() -> None:
    (draft,) = found(ring()).drafts
    assert (draft.variant, draft.subject.uid, draft.ended_ms) == ("ring", "uid-j", None)
    assert "theirs/asks of ClusterQueue owns" in draft.summary
    assert "reclaimWithinCohort: Never" in draft.action.patch
    assert "owns" in draft.action.text
    facts = {each.name: each.value for each in draft.evidence}
    assert (facts["times preempted in vain"], facts["theirs/asks waited on"]) == (3, 3)
    assert facts["lost, estimated"] == round(2 * 3 * (15 * 60 + 30) / 3600, 3)
    assert draft.team_view is not None
    assert "asks" not in repr(draft.team_view)


def test_in_its_own_queue_it_is_the_right_within_the_queue() -> None:
    world = ring(waits=False).waits("asks", 0, cluster_queue="lent")
    (draft,) = found(world).drafts
    assert draft.action.patch.endswith("withinClusterQueue: Never")


@pytest.mark.parametrize(
    "world",
    [
        ring(other=30.5),
        ring(waits=False),
        ring(waits=False).waits("asks", 0, 61, cluster_queue="owns"),
        ring(waits=False).waits("asks", 0, cluster_queue="elsewhere"),
    ],
)
def test_preemption_that_gave_somebody_room_is_no_ring(world: World) -> None:
    assert [each.variant for each in found(world).drafts] == ["cycling"]


def test_of_several_that_wait_it_is_the_one_that_waits_for_its_victims() -> None:
    world = ring(waits=False).waits("old", 0, cluster_queue="lent")
    world.waits("asks", 10, cluster_queue="owns", reason="WaitingForPreemptedWorkloads")
    (draft,) = found(world).drafts
    assert "ns/asks of ClusterQueue owns" in draft.summary


def test_a_third_that_is_preempted_in_between_is_of_the_ring() -> None:
    world = ring()
    for n in range(3):
        world.pod(f"t{n}", "n1", 31 * n + 30.2, 31 * n + 30.6, job="third", cluster_queue="owns")
        evicted(world, f"t{n}", 31 * n + 30.2, 31 * n + 30.6, job="third")
    assert "ring" in [each.variant for each in found(world).drafts]
