"""Free GPUs in the wrong places: who is blocked by them, what holds a finding back, and whom to move."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from gpucost.attribution.teams import TeamRules
from gpucost.cluster.objects.nodes import Taint
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.detectors.engine.waste_resolution import resolve
from gpucost.detectors.findings import FindingDraft, RuleDetection
from gpucost.detectors.rule_settings import FragmentationSettings, ScopedSettings, overridden
from gpucost.detectors.rules.fragmentation import fragmentation_rule
from gpucost.detectors.rules.fragmentation.fragmentation_rule import run
from gpucost.domain.buckets import Waste
from gpucost.domain.time import MINUTE_MS
from tests.cluster.builders import job, meta, node, pod, state, template
from tests.detectors.case_fragmentation import CASES, blocked, halves, scattered, spread
from tests.detectors.worlds import GPU, T0, Case, World, at


def detect(world: World, **values: object) -> RuleDetection:
    return run(world.facts(), ScopedSettings(overridden(FragmentationSettings(), values)))


def found(detection: RuleDetection, variant: str) -> list[FindingDraft]:
    return [draft for draft in detection.drafts if draft.variant == variant]


def claimed(draft: FindingDraft) -> float:
    return sum((each.boards or 0) * (each.end_ms - each.start_ms) for each in draft.episodes)


@pytest.mark.parametrize("case", CASES, ids=[case.variant for case in CASES])
def test_least_and_mirrors(case: Case) -> None:
    settings: dict[str, Any] = dict(case.settings)
    (draft,) = found(detect(case.positive, **settings), case.variant)
    assert (draft.view_ms if case.is_view else claimed(draft)) == case.board_ms
    assert draft.ended_ms is None
    for mirror in (case.below, case.short, case.gap):
        assert not found(detect(mirror, **settings), case.variant)
    assert any(each.lacks_data for each in detect(case.gap, **settings).withheld)


@pytest.mark.parametrize("case", CASES, ids=[case.variant for case in CASES])
def test_five_minutes_later_it_is_the_same_finding(case: Case) -> None:
    """Frames end later; nothing else happens."""
    settings: dict[str, Any] = dict(case.settings)
    world = case.positive
    later = World(
        world.end + 5, rows={name: [dict(row) for row in rows] for name, rows in world.rows.items()}
    )
    for rows in later.rows.values():
        for row in rows:
            row["end_ms"] = at(later.end) if row["end_ms"] == at(world.end) else row["end_ms"]
    (first,) = found(detect(world, **settings), case.variant)
    (second,) = found(detect(later, **settings), case.variant)
    assert (first.fingerprint, first.since_ms) == (second.fingerprint, second.since_ms)


def test_a_finding_says_where_gpus_are_free_and_whom_to_move() -> None:
    world = World(60).node("n1").node("n2").node("n3")
    world.pod("old", "n1", 0, units=5).pod("new", "n2", 40, units=5).pod("full", "n3", 0, units=3)
    world.waits("big", 40, units=8, layer="placement", team="research", queue="q")
    (draft,) = found(detect(world), "blocked")
    assert draft.since_ms == at(40)
    assert (draft.team, draft.queue, str(draft.subject)) == ("research", "q", "ns/big")
    evidence = {each.name: each.value for each in draft.evidence}
    assert evidence["largest free block of one node"] == 5
    assert evidence["free blocks (nodes x GPUs)"] == "1 x 5, 2 x 3"
    # n2's pod has run for 20 minutes only: 5 GPUs x 20 min; it fits on n3, where 5 are free.
    assert "ns/job-new (5 GPUs on n2) to n3" in draft.action.text
    assert "1.67 GPU-hours" in draft.action.text
    assert draft.action.patch.splitlines() == [
        "kubectl cordon n2",
        "kubectl -n ns delete pod new",
        "kubectl uncordon n2",
    ]
    assert draft.action.frees_boards == 5
    before, after = (evidence[f"fragments (F) {when} the move"] for when in ("before", "after"))
    # Of 21 GPUs that pods ask for, 8 are one pod's, 10 of pods of five, 3 of one of three. With 3, 3 and 5
    # free, 11 are lost to the first and 6 to the second; with 3 and 8, 3 to either.
    assert before == round((8 * 11 + 10 * 6) / 21, 2)
    assert after == round((8 * 3 + 10 * 3) / 21, 2)


def test_waste_is_what_is_free_up_to_what_is_asked_and_counts_once() -> None:
    """Two wait for 6 on one node, 3 + 3 are free: what the first claims the second cannot."""
    world = blocked(60).waits("second", 0, units=6, layer="placement")
    detection = detect(world)
    drafts = found(detection, "blocked")
    assert sum(map(claimed, drafts)) == 6 * 60 * MINUTE_MS
    pieces = resolve(world.facts().history, list(detection.drafts))
    lost = pieces[pieces["waste"] == Waste.FRAGMENTED.value]
    assert (lost["boards"] * (lost["end_ms"] - lost["start_ms"])).sum() == 6 * 60 * MINUTE_MS


def test_a_gang_is_counted_once() -> None:
    """Two pods of 4: 3 + 3 + 4 free GPUs are enough in sum, with a place for one pod."""
    world = halves(30).node("n3").pod("p3", "n3", 0, units=4)
    world.waits("gang", 0, pods=2, units=4, layer="placement")
    (draft,) = found(detect(world), "blocked")
    assert claimed(draft) == 8 * 30 * MINUTE_MS
    alone = halves(30).node("n3").pod("p3", "n3", 0, units=4)
    alone.waits("gang", 0, pods=2, min_pods=1, units=4, layer="placement")
    assert not found(detect(alone), "blocked")


def test_it_ends_when_a_place_is_there() -> None:
    world = World(120).node("n1").node("n2").pod("p1", "n1", 0, 40, units=5).pod("p2", "n2", 0, units=5)
    world.waits("big", 0, 40, units=6, layer="placement")
    (draft,) = found(detect(world), "blocked")
    assert (draft.since_ms, draft.ended_ms) == (at(0), at(40))


def test_short_breaks_do_not_end_it() -> None:
    """For five minutes a third pod holds what is free."""
    world = blocked(40).pod("short", "n1", 10, 15, units=3)
    (draft,) = found(detect(world), "blocked")
    assert draft.since_ms == at(0)
    assert claimed(draft) == 6 * 35 * MINUTE_MS
    assert not found(detect(world, pause="5m", after="30m"), "blocked")


@pytest.mark.parametrize(
    ("world", "because"),
    [
        (halves(60).waits("w", 0, units=16, layer="placement"), "asks for 16 GPUs, the largest"),
        (halves(60).waits("w", 0, pods=3, units=6, layer="placement"), "3 pods of 6 GPUs at once"),
        (halves(60).waits("w", 0, units=6, layer="quota"), "no quota left"),
        (blocked(60).node("n3", schedulable=0), "n3 took pods"),
    ],
)
def test_guards(world: World, because: str) -> None:
    detection = detect(world)
    assert not found(detection, "blocked")
    assert any(because in each.because and not each.lacks_data for each in detection.withheld)


def test_with_quota_left_its_shape_alone_decides() -> None:
    world = halves(60).waits("w", 0, units=6, layer="quota", cluster_queue="cq").quota("cq", 20, 10)
    assert found(detect(world), "blocked")
    full = halves(60).waits("w", 0, units=6, layer="quota", cluster_queue="cq").quota("cq", 20, 15)
    assert not found(detect(full), "blocked")


def test_what_is_too_few_for_anybody_is_in_the_ledger_too() -> None:
    detection = detect(halves(60, held=6).waits("w", 0, units=6, layer="placement"))
    (draft,) = found(detection, "unusable")
    assert claimed(draft) == 4 * 60 * MINUTE_MS
    # The finding may be older than what is looked at: the words tell of the latter alone.
    assert draft.summary.startswith("4 GPU-hours of nvidia.com/gpu in the last 60 min stood free, ")
    assert draft.action.patch == ""
    hopeless = detect(halves(60, held=6).waits("w", 0, units=16, layer="placement"))
    assert not found(hopeless, "unusable")


def test_the_patch_names_the_queues_it_is_for() -> None:
    world = halves(60, held=6).waits("w", 0, units=6, layer="placement", cluster_queue="cq")
    (draft,) = found(detect(world), "unusable")
    assert shlex.split(draft.action.patch) == [
        *("kubectl", "patch", "clusterqueues.v1beta2.kueue.x-k8s.io", "cq", "--type=merge"),
        *("-p", '{"spec":{"queueingStrategy":"BestEffortFIFO"}}'),
    ]


# What the cluster's state says besides: T0 of its builders is another day, so objects are dated by hand.


def overview(*nodes: Any, pods: tuple[Any, ...] = ()) -> ClusterOverview:
    made = job("big", namespace="ns", uid="uid-big", created_ms=T0)
    return ClusterOverview(state(made, *nodes, *pods, at_ms=at(60)))


def waiting(gpus: int, cpu: int = 0, **fields: Any) -> Any:
    owner = replace(job("big", uid="uid-big"), meta=meta("big", "ns", uid="uid-big")).as_owner
    return pod("w", namespace="ns", asks=template(gpus, cpu=cpu, **fields), unschedulable="no", owner=owner)


def test_cpu_may_be_what_is_in_the_way() -> None:
    """8 GPUs are free on n2, with 4 cores: the frames say it fits, the state says what is missing."""
    world = World(60).node("n1").node("n2").pod("p1", "n1", 0, units=8)
    world.waits("big", 0, units=6, layer="placement")
    assert not found(detect(world), "blocked")
    small = {GPU: 8, "cpu": 4_000, "pods": 110}
    on_n1 = pod("p1", 8, node="n1", namespace="ns")
    world.overview = overview(node("n1"), node("n2", allocatable=small), pods=(on_n1, waiting(6, 48_000)))
    (draft,) = found(detect(world), "blocked")
    assert "too little cpu" in draft.summary
    assert "Lower what its pods ask of cpu" in draft.action.text
    assert claimed(draft) == 6 * 60 * MINUTE_MS


def test_the_state_may_know_that_taints_leave_it_too_few() -> None:
    world = blocked(60)
    tainted = node("n2", taints=(Taint("team", "x", "NoSchedule"),))
    held = (pod("p1", 5, node="n1", namespace="ns"), pod("p2", 5, node="n2", namespace="ns"))
    world.overview = overview(node("n1"), tainted, pods=(*held, waiting(6)))
    detection = detect(world)
    assert not found(detection, "blocked")
    assert any("only 3 GPUs of the 6" in each.because for each in detection.withheld)


def test_the_gauge_shows_the_part_of_tasks_without_gpus_apart() -> None:
    world = scattered(60)
    nodes = [node(f"n{n}") for n in range(10)]
    held = [pod(f"p{n}", 6, node=f"n{n}", namespace="ns") for n in range(10)]
    web = pod("web", 0, node="n0", namespace="ns", asks=template(0, cpu=1000))
    world.overview = overview(*nodes, pods=(*held, web))
    (draft,) = found(detect(world), "gauge")
    evidence = {each.name: each.value for each in draft.evidence}
    # 20 GPUs are free: all of it is lost to the 10 pods of six and to the one without.
    assert evidence["F / idle now, with CPU"] == 100
    assert evidence["of F: to pods without GPUs"] == round(20 / 11, 2)


def test_jobs_that_fit_no_single_node_or_serve_are_not_spread() -> None:
    assert found(detect(spread(120)), "jobs_spread")
    wide = World(120).node("n1").node("n2").node("n3")
    wide.pod("a", "n1", 0, units=6, job="j").pod("b", "n2", 0, units=6, job="j")
    assert not found(detect(wide), "jobs_spread")
    serving = World(120).node("n1").node("n2").node("n3")
    serving.pod("a", "n1", 0, units=1, job="d", kind="Deployment")
    serving.pod("b", "n2", 0, units=1, job="d", kind="Deployment")
    assert not found(detect(serving), "jobs_spread")


def test_repacking_leaves_daemon_sets_where_they_are() -> None:
    world = World(120).node("n1").node("n2")
    world.pod("a", "n1", 0, units=4, kind="DaemonSet").pod("b", "n2", 0, units=4)
    (draft,) = found(detect(world), "repack")
    assert "ns/b of job-b (4 GPUs) from n2 to n1" in draft.action.text
    evidence = {each.name: each.value for each in draft.evidence}
    assert evidence["price of the nodes that get empty"] == 32.0
    assert evidence["nodes that must be in use, however packed"] == 1


def test_an_empty_history_says_nothing() -> None:
    assert detect(World(60)) == RuleDetection()
    assert detect(World(60).node("n1")) == RuleDetection()


def test_the_team_is_by_the_rules_and_not_the_label() -> None:
    world = halves(60).waits("big", 0, units=6, layer="placement", team="label", namespace="ml-lab")
    rules = TeamRules.parse("version: 1\nrules:\n- {namespace: ml-*, team: research}\n", "teams.yaml")
    (draft,) = found(run(world.facts(rules), ScopedSettings(FragmentationSettings())), "blocked")
    assert draft.team == "research"


def test_beyond_so_many_blocked_jobs_there_is_one_finding_per_team_queue_and_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 20 nodes of two GPUs one is free each, and ten jobs want two on one node."""
    monkeypatch.setattr(fragmentation_rule, "MOST_SINGLE", 4)
    world = World(60)
    for n in range(20):
        world.node(f"n{n}", 2).pod(f"p{n}", f"n{n}", 0)
    for n in range(10):
        team, queue = ("t1", "q1") if n % 2 else ("t2", "q2")
        world.waits(f"big-{n}", n, units=2, layer="placement", team=team, queue=queue)
    detection = detect(world)
    assert [draft.subject.name for draft in found(detection, "blocked")] == [f"big-{n}" for n in range(4)]
    many = {draft.team: draft for draft in found(detection, "blocked_many")}
    assert {team: draft.queue for team, draft in many.items()} == {"t1": "q1", "t2": "q2"}
    assert [{each.name: each.value for each in draft.evidence}["jobs"] for draft in many.values()] == [3, 3]
    assert {team: draft.since_ms for team, draft in many.items()} == {"t1": at(5), "t2": at(4)}
    # Each claims two GPUs, from when it came.
    claims = sum(claimed(draft) for draft in detection.drafts)
    assert claims == sum(2 * (60 - n) for n in range(10)) * MINUTE_MS


def test_its_team_is_not_told_whom_to_move() -> None:
    (draft,) = found(detect(blocked(60)), "blocked")
    assert "job-p" in draft.action.text
    assert draft.team_view is not None
    assert draft.team_view.action.text.startswith("Ask for pods of at most 3 GPUs each")
    assert "alone on a node" not in {each.name for each in draft.team_view.evidence}


def test_strange_names_come_into_no_command() -> None:
    world = halves(60)
    for row in world.rows["allocations"]:
        row["pod"] = "p; reboot"
    (draft,) = found(detect(world.waits("big", 0, units=6, layer="placement")), "blocked")
    assert draft.action.text.startswith("Move ns/job-p")
    assert draft.action.patch == ""
