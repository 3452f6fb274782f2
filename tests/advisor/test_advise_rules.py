"""What reviewers found by asking: order among those who wait, victims, amounts, what could not be read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucost.advisor.advise import advise
from gpucost.advisor.model.answers import Advice, SchedulingDecision, SchedulingLayer
from gpucost.advisor.model.settings import AdvisorSettings, AutoscaledPool
from gpucost.advisor.request.context import AdvisorContext
from gpucost.cluster.objects.kueue import ResourceGroup
from gpucost.cluster.objects.state import ClusterState, CollectionStatus
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.domain.time import MINUTE_MS
from gpucost.kube.manifests import reread
from tests.advisor.test_advise import ask, job, nodes, running
from tests.advisor.worlds import GPU, Topology, cohort, flavor, meta, pod_set, queue, state, workload
from tests.pricing.books import book, price

GROUPS = (ResourceGroup((GPU,), ("h100",)), ResourceGroup(("cpu",), ("small", "large")))
HOST = "kubernetes.io/hostname"
READ = CollectionStatus("v1", synced=True)


def of_state(found: ClusterState, **fields: Any) -> Advice:
    known = AdvisorContext(
        ClusterOverview(found), reread, settings=AdvisorSettings(horizon_hours=48, samples=10)
    )
    return advise(job(**fields), known, with_suggestions=False)


def test_a_head_that_has_flavors_left_to_try_blocks_nobody() -> None:
    """Its CPUs fit the first of two flavors, its GPUs fit nowhere now: Kueue tries on, and parks it."""
    two_groups = queue("ml", 16, cpu={"small": 64, "large": 64}, groups=GROUPS)
    held = workload("held", "ml", 8, holding=True)
    head = workload("head", "ml", 16, cpu=1, priority=5)
    manifest = job(1, 8)
    found = ask(manifest, two_groups, held, head, *nodes(3))
    assert found.decision is SchedulingDecision.NOW


def test_victims_of_another_head_make_room_for_it_too() -> None:
    """High preempts 16 for its 8; the other 8 are free for who asks in the next cycle."""
    queues = [
        queue("ml", 0, cohort="c"),
        queue("b", 16, cohort="c", within="LowerPriority"),
    ]
    low = workload("low", "b", 16, priority=-5, holding=True)
    high = workload("high", "b", 8, priority=100)
    found = ask(job(1, 8), *queues, cohort("c"), low, high, *nodes(3))
    assert found.decision is SchedulingDecision.NOW
    pods = [running(f"low-{at}", 8, f"n{at}", "low", namespace="b") for at in range(2)]
    assert (
        ask(job(1, 8), *queues, cohort("c"), low, high, *pods, *nodes(2)).decision is SchedulingDecision.NOW
    )
    held = running("held", 8, "n1")
    found = ask(job(1, 8), *queues, cohort("c"), low, high, pods[0], held, *nodes(2))
    assert (found.decision, found.layer) == (SchedulingDecision.WAITS, SchedulingLayer.PLACEMENT)


def test_those_who_get_quota_before_it_get_nodes_before_it() -> None:
    ahead = workload("ahead", "ml", 8, 2, priority=5)
    assert ask(job(1, 8), queue("ml", 32), ahead, *nodes(3)).decision is SchedulingDecision.NOW
    found = ask(job(1, 8), queue("ml", 32), ahead, *nodes(2))
    assert (found.decision, found.layer) == (SchedulingDecision.WAITS, SchedulingLayer.PLACEMENT)


def test_what_is_borrowed_counts_those_admitted_before_it() -> None:
    queues = [queue("ml", 16, cohort="c"), queue("b", 16, cohort="c")]
    ahead = workload("ahead", "ml", 8, 2, priority=5)
    found = ask(job(1, 8), *queues, cohort("c"), ahead, *nodes(4))
    assert found.decision is SchedulingDecision.NOW
    assert [(key.resource, amount) for key, amount in (found.borrowed or {}).items()] == [(GPU, 8)]
    assert "on borrowed quota" in found.says


def test_one_that_was_told_to_leave_is_gone_in_a_minute() -> None:
    leaving = workload("leaving", "ml", 16, holding=True, reserved=36_000, evicted=30)
    found = ask(job(1, 16), queue("ml", 16), leaving, *nodes(2, 16))
    assert found.decision is SchedulingDecision.WAITS
    assert found.wait is not None
    assert found.wait.p90_ms is not None
    assert found.wait.p90_ms <= 2 * MINUTE_MS


def test_the_resource_that_lacks_is_the_one_that_is_named() -> None:
    nic = "example.com/nic"
    short = queue("ml", 32, resources={nic: 1})
    manifest = job(1, 32, resources={GPU: 32, nic: 4})
    found = ask(manifest, short, *nodes(1, 32))
    assert found.decision is SchedulingDecision.NEVER
    assert "asks 4 example.com/nic; ClusterQueue ml can never have more than 1 (flavor h100)" in found.says


def test_a_topology_request_needs_a_flavor_with_a_topology() -> None:
    rack = {"kueue.x-k8s.io/podset-required-topology": "rack"}
    levels = Topology(meta("racks"), ("rack", HOST))
    plain, tas = flavor("h100"), flavor("h100", topology="racks")
    racks = [
        replace(each, meta=replace(each.meta, labels={"rack": "r1", HOST: each.meta.name}))
        for each in nodes(2)
    ]
    found = ask(job(annotations=rack), queue("ml", 16), plain, *racks)
    assert (found.decision, found.layer) == (SchedulingDecision.NEVER, SchedulingLayer.QUOTA)
    assert "h100 has no topology, which they ask for" in found.says
    found = ask(job(annotations=rack), queue("ml", 16), tas, *racks, topologies=[levels])
    assert found.decision is SchedulingDecision.NOW
    block = {"kueue.x-k8s.io/podset-required-topology": "block"}
    found = ask(job(annotations=block), queue("ml", 16), tas, *racks, topologies=[levels])
    assert found.decision is SchedulingDecision.NEVER
    assert "a topology without the level block" in found.says


def test_pods_without_a_topology_request_skip_flavors_with_one_unless_there_are_no_others() -> None:
    levels = Topology(meta("racks"), (HOST,))
    tas, plain = flavor("h100", topology="racks"), flavor("l4", {"pool": "l4"})
    mixed = queue("ml", {"h100": 16, "l4": 0})
    found = ask(job(1, 8), mixed, tas, plain, *nodes(2), topologies=[levels])
    assert found.decision is SchedulingDecision.NEVER
    alone = ask(job(1, 8), queue("ml", 16), tas, *nodes(2), topologies=[levels])
    assert alone.decision is SchedulingDecision.NOW


def test_a_pod_larger_than_any_node_never_runs_though_quota_waits() -> None:
    held = workload("held", "ml", 16, holding=True)
    found = ask(job(1, 16), queue("ml", 16), held, *nodes(2))
    assert (found.decision, found.layer, found.reason) == (
        SchedulingDecision.NEVER,
        SchedulingLayer.PLACEMENT,
        "LargerThanAnyNode",
    )


@pytest.mark.parametrize(
    ("collection", "layer"),
    [
        ("nodes", SchedulingLayer.PLACEMENT),
        ("pods", SchedulingLayer.PLACEMENT),
        ("workloads.kueue.x-k8s.io", SchedulingLayer.QUOTA),
        ("resourceflavors.kueue.x-k8s.io", SchedulingLayer.QUOTA),
    ],
)
def test_what_nobody_could_read_is_no_answer(collection: str, layer: SchedulingLayer) -> None:
    names = ("nodes", "pods", "workloads", "clusterqueues", "localqueues", "resourceflavors", "cohorts")
    read = {each if "node" in each or "pod" in each else f"{each}.kueue.x-k8s.io": READ for each in names}
    found = state(queue("ml", 16), *nodes(3))
    assert of_state(replace(found, collections=read)).decision is SchedulingDecision.NOW
    unread = {**read, collection: CollectionStatus("", synced=False, problem="forbidden")}
    answer = of_state(replace(found, collections=unread))
    assert (answer.decision, answer.layer, answer.reason) == (SchedulingDecision.UNKNOWN, layer, "NotRead")
    assert "could not be read" in answer.says


def test_a_kind_that_the_cluster_does_not_serve() -> None:
    gone = {"jobs.batch": CollectionStatus("", synced=True, absent=True)}
    found = of_state(replace(state(queue("ml", 16), *nodes(3)), collections=gone))
    assert (found.decision, found.reason) == (SchedulingDecision.NEVER, "KindNotServed")


def test_a_priority_class_that_does_not_exist() -> None:
    manifest = job(priority="urgent")
    found = ask(manifest, queue("ml", 16), *nodes(3))
    assert (found.decision, found.reason) == (SchedulingDecision.NEVER, "Misconfigured")
    assert "there is no WorkloadPriorityClass urgent" in found.says


def test_gpus_of_nodes_that_are_not_there_yet_have_no_price() -> None:
    pool = AutoscaledPool("b", {"pool": "b"}, {GPU: "8", "cpu": "64", "pods": "110"}, 8, 5.0)
    settings = AdvisorSettings(samples=0, pools=(pool,))
    manifest = job(3, 8, pod={"nodeSelector": {"pool": "b"}})
    found = ask(manifest, queue("ml", 32), *nodes(1), settings=settings, prices=book(price("2.50")))
    assert (found.decision, found.price) == (SchedulingDecision.LATER, None)
    assert any("nodes that are not there yet" in line for line in found.why)


def test_cohorts_nested_too_deep_are_no_crash() -> None:
    chain = [cohort(f"c{at}", parent=f"c{at + 1}") for at in range(1500)]
    found = ask(job(), queue("ml", 16, cohort="c0"), *chain, *nodes(3))
    assert found.decision is SchedulingDecision.UNKNOWN
    assert "nested 1,501 deep" in found.says


def test_a_victim_that_does_not_run_is_none() -> None:
    waiting = workload("low", "ml", 8, priority=-5)
    found = ask(job(2, 8), queue("ml", 16, within="LowerPriority"), waiting, *nodes(3))
    assert found.decision is SchedulingDecision.NOW
    assert found.victims == ()


def test_pod_sets_of_a_workload_that_waits_are_as_it_asked() -> None:
    both = (pod_set("a", 1, 8), pod_set("b", 1, 8))
    other = workload("other", "ml", pod_sets=both, holding=True)
    assert ask(job(1, 8), queue("ml", 16), other, *nodes(3)).decision is SchedulingDecision.WAITS
