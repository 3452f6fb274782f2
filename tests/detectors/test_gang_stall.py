"""Stalled gangs: what they claim, whom they name, and what is no stall."""

from __future__ import annotations

from dataclasses import replace

from gpucost.cluster.objects.volcano import DisruptionMode, GroupKind
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.detectors.findings import RuleDetection
from gpucost.detectors.rule_settings import GangStallSettings, ScopedSettings
from gpucost.detectors.rules.gang_stall import run
from gpucost.domain.time import MINUTE_MS, Window
from tests.cluster import builders as build
from tests.detectors.case_gang_stall import half, lagging, locked, lost, stall
from tests.detectors.worlds import World, at


def found(world: World) -> RuleDetection:
    return run(world.facts(), ScopedSettings(GangStallSettings()))


def claimed(detection: RuleDetection) -> float:
    episodes = [each for draft in detection.drafts for each in draft.episodes]
    return sum((each.end_ms - each.start_ms) * (each.boards or 0) for each in episodes)


def test_rows_of_one_stall_are_one_finding_and_each_claims_what_was_held_then() -> None:
    world = World(40).node("n1").pod("a", "n1", 0, units=4, job="j").pod("b", "n1", 10, units=2, job="j")
    stall(world, "j", 0, 10, running=1, needed=3)
    stall(world, "j", 10, 20, running=2, needed=3)
    (draft,) = found(world).drafts
    assert (draft.since_ms, draft.ended_ms) == (at(0), at(20))
    assert claimed(found(world)) == (4 * 10 + 6 * 10) * MINUTE_MS


def test_a_second_stall_of_a_gang_is_a_finding_of_its_own() -> None:
    world = World(60).node("n1").pod("a", "n1", 0, units=4, job="j")
    stall(world, "j", 0, 15, running=1)
    stall(world, "j", 30, 45, running=1)
    assert [draft.since_ms for draft in found(world).drafts] == [at(0), at(30)]


def test_an_elastic_gang_with_more_than_it_needs_is_none() -> None:
    world = World(60).node("n1").pod("a", "n1", 0, units=4, job="j")
    assert found(stall(world, "j", 0, running=3, needed=3, pending=5)).drafts == ()


def test_other_groups_of_a_leader_worker_set_are_not_claimed() -> None:
    world = World(30).node("n1").node("n2")
    for name in ("lws-0", "lws-0-1", "lws-1"):
        world.pod(name, "n1", 0, job="lws", kind="LeaderWorkerSet")
    stall(world, "lws", 0, running=1, needed=2, gang="uid-lws-1", kind="LeaderWorkerSet")
    (draft,) = found(world).drafts
    assert {each.pod_uid for each in draft.episodes} == {"lws-1"}
    assert draft.subject.name == "lws-1"


def test_no_more_pods_are_claimed_than_run_and_the_newest_first() -> None:
    world = World(30).node("n1")
    for n in range(3):
        world.pod(f"p{n}", "n1", n, job="j")
    (draft,) = found(stall(world, "j", 5, running=2, needed=4)).drafts
    assert {each.pod_uid for each in draft.episodes} == {"p1", "p2"}


def test_of_two_in_each_others_way_the_smaller_is_to_go() -> None:
    drafts = {draft.subject.name: draft for draft in found(locked()).drafts}
    assert {name: draft.variant for name, draft in drafts.items()} == {"big": "partial", "small": "deadlock"}
    assert all("/small" in draft.action.patch for draft in drafts.values())
    assert {draft.action.frees_boards for draft in drafts.values()} == {8}


def pulling(bound: float) -> World:
    world = half()
    world.rows["stalls"][0].update(pending=0)
    pod = build.pod("a", 4, uid="a", node="n1", bound_ms=at(bound), stuck="ContainerCreating", namespace="ns")
    world.overview = ClusterOverview(build.state(pod, at_ms=at(15)))
    return world


def test_a_pod_that_pulls_its_image_holds_the_finding_back_for_a_while() -> None:
    (withheld,) = found(pulling(bound=5.1)).withheld
    assert "pulling its image" in withheld.because
    assert not withheld.lacks_data
    assert found(pulling(bound=5)).withheld == ()


def test_reasons_of_the_state_are_evidence() -> None:
    world = half()
    made = {"namespace": "ns", "created_ms": at(0)}
    job = build.job("j", "PyTorchJob", "kubeflow.org/v1", uid="uid-j", **made)
    pod = build.pod("c", 4, unschedulable="0/1 nodes are available", owner=job, **made)
    world.overview = ClusterOverview(build.state(job, pod, at_ms=at(15)))
    evidence = {each.name: each.value for each in found(world).drafts[0].evidence}
    assert evidence["pods that wait: Unschedulable"] == 1
    assert evidence["the scheduler says"] == "0/1 nodes are available"


def test_a_gang_that_starts_with_fewer_than_its_replicas_is_mentioned() -> None:
    made = {"namespace": "ns", "created_ms": at(0)}
    job = build.job(
        "j", "Job", "batch.volcano.sh/v1alpha1", pod_sets=(build.pod_set(count=4, gpus=1),), **made
    )
    group = build.pod_group("j", 2, owner=job, rest={"phase": "Running"}, **made)
    labels = {"annotations": {"scheduling.k8s.io/group-name": "j"}, "owner": job, **made}
    pods = [build.pod(f"j-{n}", 1, node="n1", **labels) for n in range(4)]
    world = World(60)
    world.overview = ClusterOverview(build.state(job, group, *pods, at_ms=at(60)))
    (draft,) = found(world).drafts
    assert draft.variant == "below_replicas"
    assert draft.action.patch == "spec:\n  minAvailable: 4"


def test_a_rank_that_never_worked_is_no_straggler() -> None:
    world = lagging(steps=6)
    world.rows["activity"] = [row for row in world.rows["activity"] if row["start_ms"] >= at(30)]
    assert found(world).drafts == ()


def test_samples_from_before_the_window_change_nothing() -> None:
    """The steps of a job's GPUs may begin before what was asked for."""
    world = lagging()
    facts = world.facts()
    window = facts.history.window
    later = Window(window.start_ms + 3 * MINUTE_MS, window.end_ms)
    cut = replace(facts, history=replace(facts.history, window=later))
    drafts = [run(each, ScopedSettings(GangStallSettings())).drafts for each in (facts, cut)]
    assert drafts[0]
    assert [draft.subject for draft in drafts[1]] == [draft.subject for draft in drafts[0]]


def test_two_that_lag_are_no_stragglers() -> None:
    world = lagging()
    for row in world.rows["activity"]:
        if row["pod_uid"] == "p1" and row["start_ms"] >= at(30):
            row["busy_ms"] = 0.0
    assert found(world).drafts == ()


def test_one_gpu_of_a_pod_that_lags_is_no_straggler() -> None:
    world = lagging()
    for row in world.rows["activity"]:
        if row["gpu"] == "g0-1":
            row["busy_ms"] = 0.9 * row["observed_ms"]
    assert found(world).drafts == ()


def native(disruption: DisruptionMode, *, count: int = 1) -> ClusterOverview:
    """Of four pods in one PodGroup of Kubernetes, or in several; three run."""
    made = {"namespace": "ns", "created_ms": at(0)}
    job = build.job("j", "Job", uid="uid-j", pod_sets=(build.pod_set(count=4, gpus=2),), **made)
    groups = [
        build.pod_group(f"g{n}", 4 // count, GroupKind.NATIVE, rest={"disruption": disruption}, **made)
        for n in range(count)
    ]
    pods = [
        build.pod(f"p{n}", 2, uid=f"p{n}", node="n1", owner=job, group=f"g{n % count}", **made)
        for n in range(3)
    ]
    return ClusterOverview(build.state(job, *groups, *pods, at_ms=at(15)))


def test_whether_a_native_gang_is_preempted_as_a_whole_is_evidence_and_advice() -> None:
    for mode, said in (
        (DisruptionMode.SINGLE, "one member, or one group"),
        (DisruptionMode.ALL, "the whole gang"),
    ):
        world = lost()
        world.rows["stalls"][0].update(gang="g0-uid")
        world.overview = native(mode)
        [draft] = found(world).drafts
        evidence = {each.name: each.value for each in draft.evidence}
        assert evidence["preempted at once"] == said
        assert (draft.variant, "disruptionMode all" in draft.action.text) == (
            "lost_rank",
            mode is DisruptionMode.SINGLE,
        )


def test_parts_of_a_job_that_are_groups_of_their_own_need_a_part_of_its_pods() -> None:
    world = World(60)
    world.overview = native(DisruptionMode.ALL, count=2)
    assert found(world).drafts == ()
    world.overview = native(DisruptionMode.ALL)
    group = next(iter(world.overview.state.pod_groups.values()))
    groups = {group.meta.uid: replace(group, min_member=2)}
    world.overview = ClusterOverview(replace(world.overview.state, pod_groups=groups))
    [draft] = found(world).drafts
    assert draft.action.patch == "spec:\n  schedulingPolicy:\n    gang:\n      minCount: 4"
    assert "spec.schedulingPolicy.gang.minCount" in draft.evidence[0].shown_by
