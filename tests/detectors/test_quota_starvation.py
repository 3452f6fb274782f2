"""Queues that wait beside idle GPUs: what is claimed, who holds the quota, and what is in the way."""

from __future__ import annotations

import json
import shlex
from datetime import timedelta
from typing import Any

import pytest
import yaml

from gpucost.cluster.objects.nodes import Taint
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.detectors.findings import FindingDraft, RuleDetection
from gpucost.detectors.rule_settings import QuotaStarvationSettings, ScopedSettings, SettingsOverride
from gpucost.detectors.rules.quota_starvation.quota_starvation_rule import run
from gpucost.domain.time import MINUTE_MS
from tests.cluster import builders as build
from tests.detectors.case_quota_starvation import beside
from tests.detectors.worlds import GPU, World, at


def _run(world: World, **settings: object) -> RuleDetection:
    return run(world.facts(), ScopedSettings(QuotaStarvationSettings.model_validate(settings)))


def _one(world: World, **settings: object) -> FindingDraft:
    (draft,) = _run(world, **settings).drafts
    return draft


def _says(draft: FindingDraft) -> dict[str, Any]:
    return {each.name: each.value for each in draft.evidence}


def _free(end: float = 30, *, held: int = 4, **world: Any) -> World:
    """A node of 8 GPUs of which 8 - ``held`` are free."""
    return World(end, **world).node("n1").pod("p1", "n1", 0, units=held, cluster_queue="b")


def test_evidence_says_whose_quota_lies_idle_and_how_much_of_it_would_have_done() -> None:
    world = _free().quota("a", 2, 2).quota("b", 4, 2, cohort="x").quota("c", 2, 1)
    draft = _one(world.waits("j1", 10, pods=4, min_pods=1, cluster_queue="a"))
    says = _says(draft)
    # 4 wait for 20 minutes, others leave 3 unused.
    assert says["could have run on the unused quota of others"] == pytest.approx(1.0)
    assert says["all of it could have"] == 0
    assert (says["unused by ClusterQueue b"], says["unused by ClusterQueue c"]) == (2, 1)
    assert says["what keeps it from using them"] == "it is in no cohort"
    # What counts is what was free: 4 GPUs x 20 min.
    assert sum((each.end_ms - each.start_ms) * (each.boards or 0) for each in draft.episodes) == (
        4 * 20 * MINUTE_MS
    )
    assert (draft.since_ms, draft.ended_ms, draft.queue) == (at(10), None, "a")
    assert draft.action.frees_boards == 4


def test_two_queues_that_want_the_same_gpu_do_not_both_claim_it() -> None:
    world = _free(held=7).quota("a", 0, 0).quota("b", 8, 7).quota("c", 0, 0)
    world.waits("j1", 0, cluster_queue="a").waits("j2", 1, cluster_queue="c")
    claims = {draft.queue: len(draft.episodes) for draft in _run(world).drafts}
    assert claims == {"a": 1, "c": 0}


def test_a_queue_starves_though_those_who_wait_longer_are_named_for_all_that_is_idle() -> None:
    world = _free(held=6).quota("a", 0, 0).quota("b", 8, 6).quota("c", 0, 0)
    world.waits("first", 2, pods=2, min_pods=1, cluster_queue="a")
    world.waits("second", 5, pods=1, cluster_queue="c")
    longer, behind = sorted(_run(world).drafts, key=lambda draft: draft.queue)
    # Two GPUs are idle from 2 to 30: all of it is counted where work waited longer, 28 min x 2.
    counted = [sum((each.end_ms - each.start_ms) * (each.boards or 0) for each in draft.episodes)
               for draft in (longer, behind)]  # fmt: skip
    assert counted == [2 * 28 * MINUTE_MS, 0]
    assert (behind.queue, behind.since_ms, behind.episodes, behind.at_least) == ("c", at(5), (), "low")
    assert "(0 GPU-hours; all of them counted where work waited longer)" in behind.summary
    assert _says(behind)["the longest waiting has waited"].startswith("since 2026-10-06T00:05")
    # A job that free GPUs would not fit at all is behind no other: 3 at once where 2 are free.
    world = _free(held=6).quota("a", 0, 0).quota("b", 8, 6).quota("c", 0, 0)
    world.waits("first", 2, pods=2, min_pods=1, cluster_queue="a").waits("gang", 5, pods=3, cluster_queue="c")
    assert [draft.queue for draft in _run(world).drafts] == ["a"]


def test_behind_those_who_wait_for_a_node_that_has_just_come_nobody_starves() -> None:
    world = World(30).node("n1").pod("p1", "n1", 0, units=8, cluster_queue="b").node("n2", 2, start=16)
    world.quota("a", 0, 0).quota("b", 10, 8).quota("c", 0, 0)
    world.waits("first", 2, pods=2, min_pods=1, cluster_queue="a").waits(
        "second", 5, pods=1, cluster_queue="c"
    )
    assert _run(world).drafts == ()


def test_stretches_are_findings_of_their_own_with_one_fingerprint() -> None:
    world = _free(100).quota("a", 0, 0).quota("b", 8, 4)
    world.waits("j1", 0, 20, cluster_queue="a").waits("j2", 50, 80, cluster_queue="a")
    world.waits("j3", 90, cluster_queue="a")
    one, other = _run(world).drafts
    assert (one.since_ms, one.ended_ms) == (at(0), at(20))
    assert (other.since_ms, other.ended_ms) == (at(50), at(80))
    assert one.fingerprint == other.fingerprint
    assert _says(one)["longest such stretch in the history"] == 0.5


def test_a_wait_from_before_the_history_began_keeps_its_beginning() -> None:
    world = _free().quota("a", 0, 0).quota("b", 8, 4).waits("j1", -60, cluster_queue="a")
    assert _one(world).since_ms == at(-60)


def test_places_are_cluster_queues_volcano_queues_and_namespaces() -> None:
    world = _free().quota("v", 2, 2, scheduler="volcano", flavor="", borrowing_limit=0)
    world.waits("j1", 0, cluster_queue="a", queue="lq").waits("j2", 0, queue="v").waits(
        "j3", 0, namespace="ml"
    )
    found = {draft.subject.uid: draft for draft in _run(world).drafts}
    assert sorted(found) == [f"ClusterQueue a {GPU}", f"Volcano queue v {GPU}", f"namespace ml {GPU}"]
    volcano = found[f"Volcano queue v {GPU}"]
    assert _says(volcano)["what keeps it from using them"] == "its capability of 2 is reached"
    assert json.loads(shlex.split(volcano.action.patch)[-1]) == {"spec": {"capability": {GPU: 3}}}
    assert "no queue manages these jobs" in found[f"namespace ml {GPU}"].summary


def test_a_moment_without_observation_is_no_break_and_a_longer_one_is() -> None:
    world = _free(40, seen=[(0, 10), (11, 40)]).quota("a", 0, 0).quota("b", 8, 4)
    draft = _one(world.waits("j1", 0, cluster_queue="a"))
    assert draft.since_ms == at(0)
    # Not claimed where it was not observed.
    assert sum(each.end_ms - each.start_ms for each in draft.episodes) == 39 * MINUTE_MS
    world = _free(40, seen=[(0, 10), (12, 40)]).quota("a", 0, 0).quota("b", 8, 4)
    found = _run(world.waits("j1", 0, cluster_queue="a"))
    assert [each.since_ms for each in found.drafts] == [at(12)]
    (withheld,) = found.withheld
    assert withheld.lacks_data
    assert "for 10 min from" in withheld.because


def test_a_long_gap_is_unknown_for_everybody() -> None:
    found = _run(_free(60, seen=[(0, 20), (40, 60)]))
    (withheld,) = found.withheld
    assert withheld.lacks_data
    assert withheld.because.startswith("nobody observed the cluster for 20 min from 2026-10-06T00:20:00Z on")


def test_gpus_of_a_node_that_has_just_come_are_not_idle_yet() -> None:
    world = World(60).node("n1", start=20).quota("a", 0, 0).quota("b", 8, 0)
    assert _one(world.waits("j1", 0, cluster_queue="a")).since_ms == at(35)
    assert _one(world, warm_up="1s").since_ms == at(20) + 1000


@pytest.mark.parametrize(
    ("reason", "because"),
    [
        ("UnsatisfiedAdmissionChecks", "admission checks are outstanding"),
        ("UnsatisfiedChecks", "admission checks are outstanding"),
        ("NoWorkerCluster", "MultiKueue has named no cluster yet"),
        ("PendingDelayedTopologyRequests", "the topology assignment is outstanding"),
        ("NotAdmittedYet", "the admission is outstanding"),
    ],
)
def test_what_has_quota_and_is_not_admitted_does_not_lack_quota(reason: str, because: str) -> None:
    world = _free().waits("j1", 0, cluster_queue="a", reason=reason)
    found = _run(world)
    assert found.drafts == ()
    assert [each.because for each in found.withheld] == [f"{because} for work that has its quota already"]


def test_a_queue_may_have_its_own_patience() -> None:
    world = _free().quota("a", 0, 0).quota("b", 8, 4).waits("j1", 20, cluster_queue="a")
    assert _run(world).drafts == ()
    override = SettingsOverride((), ("a",), QuotaStarvationSettings.model_validate({"after": "10m"}))
    (draft,) = run(world.facts(), ScopedSettings(QuotaStarvationSettings(), [override])).drafts
    assert draft.since_ms == at(20)


def test_idle_quota_that_is_kept_on_purpose_is_for_information_only() -> None:
    draft = _one(beside(30), reserved_queues="b")
    assert (draft.variant, draft.episodes, draft.view_ms) == ("reserved", (), 30 * MINUTE_MS)
    assert "kept free on purpose" in draft.summary


# What is in the way: queue a has 2 GPUs and uses them; b has 8 and uses 4.
def _quotas(a: dict[str, Any], b: dict[str, Any], used: float = 2) -> World:
    world = _free().quota("a", 2, used, **a).quota("b", 8, 4, **b)
    return world.waits("j1", 0, units=2, cluster_queue="a", layer="placement")


@pytest.mark.parametrize(
    ("a", "b", "why", "patch"),
    [
        ({}, {}, "it is in no cohort", "cohortName"),
        ({}, {"cohort": "x"}, "it is in no cohort", "cohortName"),
        ({"cohort": "y"}, {"cohort": "x"}, "nobody in its cohort y has any unused", "cohortName"),
        (
            {"cohort": "x"},
            {"cohort": "x", "flavor": "g"},
            "what is unused is of flavor g, of which it has no quota",
            {"nominalQuota": 0, "borrowingLimit": 2},
        ),
        (
            {"cohort": "x"},
            {"cohort": "x", "lending_limit": 1},
            "the lending limit of b keeps 3 it does not use",
            {"lendingLimit": 3},
        ),
        (
            {"cohort": "x", "borrowing_limit": 1},
            {"cohort": "x"},
            "its borrowing limit of 1 is reached",
            {"borrowingLimit": 2},
        ),
        (
            {"cohort": "x"},
            {"cohort": "x"},
            "its cohort x could lend it 4, so quota is not what holds them",
            "kubectl -n ns get pods",
        ),
    ],
)
def test_what_keeps_it_from_borrowing_and_the_one_change_that_helps(
    a: dict[str, Any], b: dict[str, Any], why: str, patch: str | dict[str, int]
) -> None:
    draft = _one(_quotas(a, b))
    assert _says(draft)["what keeps it from using them"] == why
    if isinstance(patch, str):
        assert patch in draft.action.patch
        return
    (flavor,) = yaml.safe_load(draft.action.patch)["spec"]["resourceGroups"][0]["flavors"]
    (quota,) = flavor["resources"]
    assert quota == {"name": GPU, **patch}


def test_room_in_its_own_quota_is_said() -> None:
    draft = _one(_quotas({}, {}, used=0))
    assert "its own quota has room for 2, so quota is not what holds them" in draft.summary


@pytest.mark.parametrize(("queue", "cohort"), [("a; rm -rf", "x"), ("a", "x y"), ("A", "x"), ("a", "x\ny")])
def test_names_that_are_none_come_into_no_command(queue: str, cohort: str) -> None:
    world = _free().quota(queue, 0, 0).quota("b", 8, 4, cohort=cohort)
    draft = _one(world.waits("j1", 0, cluster_queue=queue))
    assert draft.action.patch == ""
    assert draft.action.text.endswith("(by hand: its name is no plain name).")
    draft = _one(_free().quota("a", 0, 0).quota("b", 8, 4, cohort="x").waits("j1", 0, cluster_queue="a"))
    words = shlex.split(draft.action.patch)
    assert words[2:4] == ["clusterqueues.v1beta2.kueue.x-k8s.io", "a"]
    assert json.loads(words[-1]) == {"spec": {"cohortName": "x"}}


def test_quota_is_not_acquitted_where_the_queue_says_that_it_is_what_they_wait_for() -> None:
    world = _quotas({}, {}, used=0)
    world.rows["demand"][0]["layer"] = "quota"
    assert "quota is not what holds them" not in _one(world).summary


def test_an_impossible_request_is_no_witness_and_waits_for_no_quota() -> None:
    world = _free().quota("a", 2, 2).quota("b", 8, 4)
    world.waits("giant", 0, units=9, cluster_queue="a").waits("j1", 10, cluster_queue="a", layer="placement")
    draft = _one(world)
    assert draft.summary.startswith("Work of ClusterQueue a waits for up to 1 nvidia.com/gpu since ")
    assert _says(draft)["waiting, in the mean"] == 1
    assert _says(draft)["the longest waiting has waited"] == "since 2026-10-06T00:10:00Z"
    assert "giant" not in draft.summary + draft.action.text


def test_what_reaches_the_start_of_the_history_waits_at_least_since_then() -> None:
    draft = _one(_free().quota("a", 0, 0).quota("b", 8, 4).waits("j1", 0, cluster_queue="a"))
    assert _says(draft)["the longest waiting has waited"] == "at least since 2026-10-06T00:00:00Z"
    assert "at least since 2026-10-06T00:00:00Z" in draft.summary


def test_lines_say_what_is_there_now() -> None:
    draft = _one(_quotas({"cohort": "x", "borrowing_limit": 1}, {"cohort": "x"}))
    assert draft.action.text == "Raise the borrowing limit of ClusterQueue a from 1 to 2."
    assert "borrowingLimit: 2  # now 1" in draft.action.patch
    assert yaml.safe_load(draft.action.patch)["metadata"] == {"name": "a"}


def _watched(strategy: str = "StrictFIFO", cpu: int = 1000, **node: Any) -> World:
    """A job waits for one GPU and ``cpu`` thousandths of a core behind one that waits for sixteen GPUs."""
    world = _quotas({"cohort": "x"}, {"cohort": "x"}, used=0)
    quotas = {("f", GPU): build.FlavorQuota(2)}
    big = build.workload("big", build.pod_set(gpus=16), queue="lq", namespace="ns", created_ms=at(-9))
    small = build.workload("w1", build.pod_set(gpus=2, cpu=cpu), queue="lq", namespace="ns", created_ms=at(0))
    state = build.state(
        build.node("n1", **node),
        build.cluster_queue("a", quotas, cohort="x", strategy=strategy),
        build.local_queue("lq", "a", "ns"),
        *(big, small),
        at_ms=at(30),
    )
    world.overview = ClusterOverview(state)
    world.rows["demand"][0]["workload"] = "w1"
    return world


def test_the_head_of_a_strict_queue_is_named() -> None:
    draft = _one(_watched())
    assert _says(draft)["what keeps it from using them"] == (
        "its own quota has room for 2, but it is StrictFIFO: all wait behind ns/big"
    )
    assert json.loads(shlex.split(draft.action.patch)[-1]) == {"spec": {"queueingStrategy": "BestEffortFIFO"}}
    draft = _one(_watched("BestEffortFIFO"))
    assert draft.action.patch == "kubectl -n ns describe workloads.kueue.x-k8s.io w1"


def test_who_would_find_no_place_for_another_reason_is_left_to_fragmentation() -> None:
    assert len(_run(_watched(cpu=64_000)).drafts) == 1
    found = _run(_watched(cpu=64_001))
    assert found.drafts == ()
    assert [each.because for each in found.withheld] == [
        "ns/j1 would find no place, so this is fragmentation: no node that its labels and taints admit has "
        "room for one of its pods"
    ]
    assert _run(_watched(taints=(Taint("team", "b", "NoSchedule"),))).drafts == ()
    # What Kubernetes tolerates by itself is no obstacle.
    assert len(_run(_watched(taints=(Taint(GPU, "present", "NoSchedule"),))).drafts) == 1


def test_what_is_too_short_for_its_own_queue_takes_nothing_from_another() -> None:
    """With an override no job counts as starved before best-effort work has waited for two hours, though it
    came first."""
    world = World(120).node("n1", 4).pod("p", "n1", 0, units=2)
    world.waits("cheap", 10, units=2, cluster_queue="best-effort").waits(
        "dear", 40, units=2, cluster_queue="q2"
    )
    world.quota("best-effort", 2, 2).quota("q2", 2, 0)
    other = QuotaStarvationSettings(after=timedelta(hours=2))
    scoped = ScopedSettings(QuotaStarvationSettings(), (SettingsOverride((), ("best-effort",), other),))
    (draft,) = run(world.facts(), scoped).drafts
    assert draft.subject.name == "q2"
    assert sum(each.end_ms - each.start_ms for each in draft.episodes) == 80 * MINUTE_MS
