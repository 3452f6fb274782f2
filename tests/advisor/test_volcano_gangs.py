"""Gangs under Volcano: all at once or nothing, jobs that exist, manifests, and what is not followed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucost.advisor.model.answers import SchedulingDecision, SchedulingLayer
from gpucost.advisor.volcano.answer import volcano_answer
from gpucost.advisor.volcano.gang import VolcanoGang, gang_of_manifest, is_for_volcano
from gpucost.cluster.objects.pods import Pod, PodSet
from gpucost.cluster.objects.scheduler_config import VolcanoConfig
from tests.advisor.volcano_worlds import (
    NOW,
    ONE_TIER,
    asked,
    classes,
    gang,
    manifest,
    member,
    queue,
    running,
    short,
    vcjob,
    waiting,
    with_actions,
    world,
)
from tests.cluster.builders import GPU, job, node, pod, pod_group, pod_set, state, template

# Gangs and nodes


@pytest.mark.parametrize(("free", "expected"), [
    (3, ("waits", "NotEnoughResources")), (4, ("now", "Fits")), (5, ("now", "Fits")),
])  # fmt: skip
def test_all_at_once_or_nothing(free: int, expected: tuple[str, str]) -> None:
    nodes = [node("n1", 8), node("n2", free)]
    answer = asked(gang(4, min_resources=None), *nodes, running("r", 8))
    assert short(answer) == expected
    if expected[0] == "now":
        assert answer.pod_sets[0].nodes == {"n2": 4}
        assert answer.layer is SchedulingLayer.NONE
    else:
        assert answer.layer is SchedulingLayer.PLACEMENT


def test_fewer_than_all_suffice_where_it_says_so() -> None:
    answer = asked(gang(6, min_member=3), node("n1", 4))
    assert (answer.decision, answer.pod_sets[0].count) == (SchedulingDecision.NOW, 3)
    assert "3 pods beyond its minimum follow as room allows" in answer.assumptions


def _two_tasks(**fields: Any) -> VolcanoGang:
    tasks = (PodSet("ps", 2, template(0, cpu=1000)), PodSet("worker", 4, template(2)))
    return gang(6, tasks=tasks, min_resources=None, **fields)


@pytest.mark.parametrize(("workers", "expected"), [(2, "now"), (3, "never")])
def test_each_task_has_its_own_minimum(workers: int, expected: str) -> None:
    least = {"ps": 2, "worker": workers}
    answer = asked(_two_tasks(min_member=2 + workers, min_task_member=least), node("n1", 4))
    assert answer.decision.value == expected


def test_the_minimum_of_tasks_does_not_count_above_that_of_the_gang() -> None:
    answer = asked(_two_tasks(min_member=2, min_task_member={"ps": 2, "worker": 4}), node("n1", 4))
    assert answer.decision is SchedulingDecision.NOW


def test_a_pod_larger_than_any_node_is_never_placed() -> None:
    answer = asked(gang(1, 9), node("n1", 8), node("n2", 8))
    assert (short(answer), answer.layer) == (("never", "NoNodeFits"), SchedulingLayer.PLACEMENT)
    assert answer.evidence[0].value == f"{GPU}: 9"


def test_fewer_pods_than_it_needs() -> None:
    answer = asked(gang(2, min_member=3), node("n1"))
    assert short(answer) == ("never", "NotEnoughTasks")
    assert answer.evidence[0].field == "spec.minAvailable"


def test_without_the_plugin_gang_each_pod_starts_alone() -> None:
    config = VolcanoConfig(tiers=(("priority",), ("predicates", "proportion")), is_read=True)
    answer = asked(gang(4, min_resources=None), node("n1", 8), running("r", 7), config=config)
    assert (answer.decision, answer.pod_sets[0].count) == (SchedulingDecision.NOW, 1)


def test_pods_that_are_being_deleted_hold_their_node_and_no_quota() -> None:
    group, *members = running("r", 4)
    leaving = [
        replace(each, meta=replace(each.meta, deleted_ms=NOW)) for each in members if isinstance(each, Pod)
    ]
    answer = asked(gang(4), queue("default", 4), node("n1", 4), [group, *leaving])
    assert short(answer)[0] == "waits"
    assert answer.layer is SchedulingLayer.PLACEMENT or answer.reason == "Overcommit"


# Jobs that exist


def test_a_podgroup_that_waits_is_not_its_own_rival() -> None:
    seen = world(node("n1", 4), queue("default", 4), waiting("w", 4, phase="Pending"))
    answer = volcano_answer(seen.gangs["w-uid"], seen)
    assert (short(answer), answer.ahead) == (("now", "Fits"), 0)


def test_a_broken_gang_needs_only_what_is_missing() -> None:
    broken = [*running("b", 3, least=4, phase="Unknown"), member("b", 3, 1)]
    seen = world(node("n1", 4), broken)
    assert short(volcano_answer(seen.gangs["b-uid"], seen)) == ("now", "Fits")
    seen = world(node("n1", 4), broken, running("r", 1))
    assert short(volcano_answer(seen.gangs["b-uid"], seen)) == ("waits", "NotEnoughResources")


def test_pods_that_are_not_made_yet_are_those_of_its_job() -> None:
    made = vcjob(4)
    group = pod_group(
        "w", 4, rest={"phase": "Pending", "queue": "default", "min_resources": {GPU: 4}}, owner=made
    )
    seen = world(node("n1", 4), made, group)
    found = seen.gangs["w-uid"]
    assert found.size == 4
    assert short(volcano_answer(found, seen)) == ("now", "Fits")


@pytest.mark.parametrize("gates", [("held",), ()])
def test_pods_that_are_held_back_are_not_there(gates: tuple[str, ...]) -> None:
    group = waiting("w", 0)[0]
    pods = [
        pod(f"w-{at}", 1, annotations={"scheduling.k8s.io/group-name": "w"}, gates=gates) for at in range(2)
    ]
    seen = world(node("n1", 4), [group, *pods])
    answer = volcano_answer(seen.gangs["w-uid"], seen)
    assert answer.reason == ("NotEnoughTasks" if gates else "Fits")


def test_a_podgroup_without_pods_waits_and_one_with_all_is_placed() -> None:
    seen = world(node("n1", 4), waiting("w", 4)[0], running("r", 2))
    assert short(volcano_answer(seen.gangs["w-uid"], seen)) == ("waits", "NotEnoughTasks")
    assert short(volcano_answer(seen.gangs["r-uid"], seen)) == ("now", "Placed")


def test_pods_that_nobody_has_made_are_missing() -> None:
    group, *members = waiting("w", 4)
    seen = world(node("n1", 4), [group, *members[:3]])
    answer = volcano_answer(seen.gangs["w-uid"], seen)
    assert short(answer) == ("waits", "NotEnoughTasks")
    assert answer.evidence[0].object == "podgroup/w"


def test_a_volcano_job_needs_all_its_pods_unless_it_says_less() -> None:
    empty = state(node("n1"))
    found = gang_of_manifest(manifest(vcjob(4, 2), volcano_queue="ml"), empty)
    assert (found.queue, found.min_member, found.min_resources) == ("ml", 4, {GPU: 8})
    found = gang_of_manifest(manifest(vcjob(4, 2, gang_size=3)), empty)
    assert (found.queue, found.min_member, found.min_resources) == ("default", 3, {GPU: 6})
    assert found.min_task_member == {"main": 4}
    assert not found.asks_per_task


@pytest.mark.parametrize(("annotation", "least"), [("", 1), ("3", 3), ("x", 1)])
def test_plain_pods_are_no_gang_unless_an_annotation_says_so(annotation: str, least: int) -> None:
    annotations = {"scheduling.volcano.sh/group-min-member": annotation} if annotation else {}
    plain = job("train", pod_sets=(pod_set("main", 4, 2, scheduler="volcano"),), annotations=annotations)
    found = gang_of_manifest(manifest(plain, scheduler="volcano"), state(node("n1")))
    assert (found.min_member, found.min_resources) == (least, {GPU: 2 * least})


def test_minimum_resources_are_those_of_tasks_with_a_minimum_first() -> None:
    tasks = (PodSet("a", 4, template(1)), PodSet("b", 4, template(8), min_count=1))
    made = replace(vcjob(1), pod_sets=tasks, gang_size=3)
    assert gang_of_manifest(manifest(made), state(node("n1"))).min_resources == {GPU: 8 + 2}


@pytest.mark.parametrize(("kind", "named", "expected"), [
    ("vcjob", "", True), ("vcjob", "volcano", True), ("vcjob", "other", False), ("job", "volcano", True),
    ("job", "", False),
])  # fmt: skip
def test_whose_pods_volcano_places(kind: str, named: str, expected: bool) -> None:
    made = vcjob(1) if kind == "vcjob" else job("train", pod_sets=(pod_set("main", 1, 1),))
    assert is_for_volcano(manifest(made, scheduler=named)) is expected


def test_the_topology_and_the_priority_of_a_manifest() -> None:
    document = {"spec": {"networkTopology": {"mode": "hard", "highestTierAllowed": 1}}}
    made = replace(vcjob(2), priority_class="p10")
    found = gang_of_manifest(manifest(made, document=document), state(node("n1"), **classes(5, 10)))
    assert (found.topology, found.priority) == ({"mode": "hard", "highest_tier": "1"}, 10)
    odd = {"spec": {"networkTopology": ["x"], "tasks": 7}}
    assert gang_of_manifest(manifest(made, document=odd), state(node("n1"))).topology == {}


# What is not followed


def with_plugin(name: str) -> VolcanoConfig:
    return VolcanoConfig(tiers=(*VolcanoConfig().tiers, (name,)), is_read=True)


@pytest.mark.parametrize(("plugin", "free", "full"), [
    ("my-plugin", "unknown", "unknown"), ("sla", "unknown", "unknown"), ("numaaware", "unknown", "waits"),
    ("capacity", "unknown", "unknown"), ("deviceshare", "now", "waits"), ("task-topology", "now", "waits"),
])  # fmt: skip
def test_a_vote_that_is_not_followed_is_never_guessed(plugin: str, free: str, full: str) -> None:
    config = with_plugin(plugin)
    held = running("r", 8)
    answer = asked(gang(1, min_resources=None), node("n1", 8), config=config)
    assert answer.decision.value == free
    assert bool(answer.drift) is (free == "unknown")
    assert asked(gang(1, min_resources=None), node("n1", 8), held, config=config).decision.value == full
    never = asked(gang(9, 9, min_resources=None), node("n1", 8), config=config)
    assert never.decision is SchedulingDecision.NEVER


def test_shares_of_gpus_and_subgroups_are_unknown() -> None:
    vgpu = "volcano.sh/vgpu-number"
    shares = gang(asks=template(requests={vgpu: 1}), min_resources=None)
    answer = asked(shares, node("n1", allocatable={vgpu: 10}))
    assert (answer.decision, answer.reason) == (SchedulingDecision.UNKNOWN, "NotFollowed")
    assert vgpu in answer.says
    document = {"spec": {"tasks": [{"name": "main", "partitionPolicy": {"totalPartitions": 2}}]}}
    found = gang_of_manifest(manifest(vcjob(2), document=document), state(node("n1")))
    answer = asked(found, node("n1"))
    assert (answer.decision, answer.says) == (
        SchedulingDecision.UNKNOWN, "spec.tasks[0].partitionPolicy is not followed",
    )  # fmt: skip


@pytest.mark.parametrize(("version", "drifts"), [
    ("", False), ("v1.15.1", False), ("1.15.0", False), ("v1.14.4", True), ("v1.150.0", True),
])  # fmt: skip
def test_another_version_is_said(version: str, drifts: bool) -> None:
    config = VolcanoConfig(version=version, is_read=True)
    answer = asked(gang(), node("n1"), config=config)
    assert answer.decision is SchedulingDecision.NOW
    assert any(version in each for each in answer.drift) is drifts or not version


def test_the_rules_are_named() -> None:
    answer = asked(gang(), node("n1"), config=VolcanoConfig())
    assert answer.rules == (
        "Volcano 1.15.1, actions enqueue, allocate, backfill, queues by proportion; "
        "default configuration assumed"
    )
    assert any("was not read" in each for each in answer.assumptions)


def test_claims_and_rules_about_other_pods_are_never_guessed() -> None:
    for asks in (template(1, claims=("gpu",)), template(1, has_pod_affinity=True)):
        answer = asked(gang(asks=asks), node("n1"))
        assert (answer.decision, answer.reason) == (SchedulingDecision.UNKNOWN, "NotFollowed")
        assert asked(gang(asks=asks), queue("default", 0), node("n1")).decision is SchedulingDecision.NEVER


def test_as_many_pods_as_a_number_can_say() -> None:
    """Pods beyond the minimum are not gone through one by one."""
    endless = gang(2**31 - 1, min_member=1, min_resources=None)
    assert asked(endless, node("n1", 8)).pod_sets[0].count == 1
    assert (
        asked(endless, queue("default", 8), node("n1", 8), running("r", 8)).decision
        is SchedulingDecision.WAITS
    )
    whole = gang(2**31 - 1, min_resources=None)
    assert asked(whole, node("n1", 8)).decision is SchedulingDecision.NEVER
    config = with_actions("enqueue", "allocate", "preempt", "reclaim", tiers=ONE_TIER)
    assert asked(endless, node("n1", 8), running("r", 8), config=config).decision is SchedulingDecision.WAITS


def test_ten_thousand_pod_sets() -> None:
    alike = tuple(PodSet(f"t{at}", 1, template(1)) for at in range(10_000))
    assert asked(gang(10_000, tasks=alike), node("n1", 8)).decision is SchedulingDecision.NEVER
    tasks = tuple(PodSet(f"t{at}", 1, template(1, cpu=at + 1)) for at in range(10_000))
    answer = asked(gang(10_000, tasks=tasks), node("n1", 8))
    assert (answer.decision, answer.reason) == (SchedulingDecision.UNKNOWN, "NotEvaluated")
    assert "100 kinds" in answer.says
