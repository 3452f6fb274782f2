"""What makes no sense is named, once, and only where all of its kind is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.cluster.objects.jobs import PriorityClass
from gpucost.cluster.objects.kueue import (
    AdmissionCheck,
    Cohort,
    FlavorQuota,
    ResourceGroup,
    Topology,
)
from gpucost.cluster.objects.metadata import FieldFlaw
from gpucost.cluster.objects.state import ClusterState, CollectionStatus
from gpucost.cluster.objects.volcano import VolcanoQueue
from gpucost.cluster.views.problems import StateProblem, StateProblemCode, problems
from gpucost.domain.gpu import ResourceCatalog
from tests.cluster.builders import (
    GPU,
    T0,
    cluster_queue,
    condition,
    flavor,
    job,
    local_queue,
    meta,
    node,
    pod,
    pod_group,
    pod_set,
    state,
    workload,
)

NAMES = (
    *("pods", "nodes", "clusterqueues.kueue.x-k8s.io", "localqueues.kueue.x-k8s.io"),
    *("resourceflavors.kueue.x-k8s.io", "admissionchecks.kueue.x-k8s.io", "topologies.kueue.x-k8s.io"),
    "queues.scheduling.volcano.sh",
)
KNOWN = dict.fromkeys(NAMES, CollectionStatus("v1", True))


def found(*objects: object, known: Any = KNOWN, **collections: Any) -> list[tuple[str, ...]]:
    return told(replace(state(*objects, **collections), collections=known))


def told(of: ClusterState) -> list[tuple[str, ...]]:
    listed = problems(of, ResourceCatalog())
    assert listed == sorted(set(listed))
    return [(each.code.value, each.namespace, each.kind, each.name, each.detail) for each in listed]


def test_a_sound_state_has_no_problems() -> None:
    pods = pod_set(count=2, gpus=4)
    sound = (
        node("n", 8),
        pod("p", 8, node="n"),
        pod("waits", 8),
        flavor("h100", topology="racks"),
        cluster_queue("a", {("h100", GPU): FlavorQuota(8)}, checks={"quota": ()}, cohort="only-named"),
        local_queue("main", "a"),
        workload("w", pods, queue="main", cluster_queue="a", flavor="h100", admitted_ms=T0),
        workload("elsewhere", pods),
        VolcanoQueue(meta("default", ""), parent="root"),
        pod_group("g"),
    )
    more = {"topologies": [Topology(meta("racks", ""))], "checks": [AdmissionCheck(meta("quota", ""))]}
    assert found(*sound, **more) == []


def test_every_flaw_is_named() -> None:
    negative = FieldFlaw("spec.quota", "'-3'", "a Kubernetes quantity")
    strange = FieldFlaw("spec.cohort", "7", "text")
    objects = (
        replace(cluster_queue("a"), flaws=(negative, strange)),
        replace(job("train", "PyTorchJob", "kubeflow.org/v1"), flaws=(strange,)),
        replace(VolcanoQueue(meta("q", "")), flaws=(strange,)),
    )
    classes = [PriorityClass(meta("p", ""), 1, of_kueue=True, flaws=(strange,))]
    detail = "spec.cohort: 7 is not allowed; allowed: text"
    assert found(*objects, priority_classes=classes) == [
        ("flawed", "", "ClusterQueue", "a", detail),
        (
            "flawed",
            "",
            "ClusterQueue",
            "a",
            "spec.quota: '-3' is not allowed; allowed: a Kubernetes quantity",
        ),
        ("flawed", "", "Queue", "q", detail),
        ("flawed", "", "WorkloadPriorityClass", "p", detail),
        ("flawed", "team-a", "PyTorchJob", "train", detail),
    ]


def test_cohorts_in_a_circle() -> None:
    cohorts = [Cohort(meta(name, ""), parent) for name, parent in (("x", "y"), ("y", "x"), ("below", "x"))]
    assert found(cohorts=cohorts) == [
        ("cohort_cycle", "", "Cohort", "x", "parents: x -> y -> x"),
        ("cohort_cycle", "", "Cohort", "y", "parents: x -> y -> x"),
    ]


def test_links_to_kueue_objects_that_are_gone() -> None:
    pods = pod_set(count=2, gpus=4)
    evicting = {"Evicted": condition(True, "Preempted")}
    finished = {"Finished": condition(True, "Succeeded")}
    given = {"queue": "gone", "cluster_queue": "lost", "flavor": "old", "admitted_ms": T0}
    assert found(
        cluster_queue("a", {("h100", GPU): FlavorQuota(8)}, checks={"budget": ()}),
        cluster_queue("b", groups=(ResourceGroup((GPU,), ("h100", "t4")),)),
        flavor("t4", topology="racks"),
        local_queue("main", "lost"),
        workload("w1", pods, queue="gone"),
        workload("w2", pods, **{**given, "queue": "main"}, conditions=evicting),
        workload("w3", pods, **given, conditions=finished),
    ) == [
        ("check_missing", "", "ClusterQueue", "a", "AdmissionCheck budget does not exist"),
        ("cluster_queue_gone", "team-a", "Workload", "w2", "ClusterQueue lost does not exist"),
        ("flavor_missing", "", "ClusterQueue", "a", "ResourceFlavor h100 does not exist"),
        ("flavor_missing", "", "ClusterQueue", "b", "ResourceFlavor h100 does not exist"),
        (
            "flavor_missing",
            "team-a",
            "Workload",
            "w2",
            "admitted to ResourceFlavor old, which does not exist",
        ),
        ("queue_missing", "team-a", "LocalQueue", "main", "ClusterQueue lost does not exist"),
        ("queue_missing", "team-a", "Workload", "w1", "LocalQueue gone does not exist"),
        ("topology_missing", "", "ResourceFlavor", "t4", "Topology racks does not exist"),
    ]


def test_volcano_queues_that_are_gone() -> None:
    assert found(
        VolcanoQueue(meta("ml", ""), parent="org"),
        pod_group("g", rest={"queue": "gone"}),
        pod_group("plain"),
        pod_group("done", rest={"queue": "gone", "phase": "Completed"}),
    ) == [
        ("volcano_queue_missing", "", "Queue", "ml", "parent: Queue org does not exist"),
        ("volcano_queue_missing", "team-a", "PodGroup", "g", "Queue gone does not exist"),
        ("volcano_queue_missing", "team-a", "PodGroup", "plain", "Queue default does not exist"),
    ]


def test_pods_on_nodes() -> None:
    assert found(
        node("full", allocatable={GPU: 8, "cpu": 1000}),
        node("lost-its-gpus", allocatable={"cpu": 1000}),
        pod("p1", 8, node="full"),
        pod("p2", 1, node="full"),
        pod("ended", 8, bound_ms=T0, ended_ms=T0 + 1, node="full"),
        pod("p3", 0, node="full"),
        pod("p4", 4, node="lost-its-gpus"),
        pod("p5", 1, node="gone"),
    ) == [
        ("node_unknown", "team-a", "Pod", "p5", "Node gone does not exist"),
        ("overcommitted", "", "Node", "full", f"{GPU}: pods hold 9, the node allocates 8"),
        ("overcommitted", "", "Node", "lost-its-gpus", f"{GPU}: pods hold 4, the node allocates 0"),
    ]


BROKEN = (
    pod("p", 1, node="gone"),
    cluster_queue("a", {("h100", GPU): FlavorQuota(8)}, checks={"budget": ()}),
    flavor("t4", topology="racks"),
    local_queue("main", "lost"),
    workload("w", pod_set(), queue="gone"),
    pod_group("g"),
)


@pytest.mark.parametrize(
    "status",
    [CollectionStatus("v1", False), CollectionStatus("", True, absent=True)],
    ids=["not yet read", "absent"],
)
def test_what_is_not_known_is_not_missing(status: CollectionStatus) -> None:
    assert len(found(*BROKEN)) == 7
    assert found(*BROKEN, known=dict.fromkeys(NAMES, status)) == []
    assert found(*BROKEN, known={"pods": CollectionStatus("v1", True)}) == []


def test_a_state_by_hand_knows_what_it_has() -> None:
    # It has ClusterQueues, LocalQueues and flavors, but no nodes, checks, topologies or Volcano queues.
    assert [code for code, *_ in found(*BROKEN, known={})] == [
        "flavor_missing",
        "queue_missing",
        "queue_missing",
    ]


def test_every_code_says_what_it_means() -> None:
    assert all(code.meaning.endswith(".") for code in StateProblemCode)
    assert str(StateProblemCode("overcommitted")) == "overcommitted"
    assert len({code.meaning for code in StateProblemCode}) == len(StateProblemCode) == 12


@given(st.permutations(BROKEN))
def test_the_order_of_objects_means_nothing(objects: list[object]) -> None:
    assert found(*objects) == found(*BROKEN)


def test_two_pods_of_one_name_are_one_problem() -> None:
    pods = [pod("p", 1, node="gone", uid=uid) for uid in ("1", "2")]
    only = StateProblem(StateProblemCode.NODE_UNKNOWN, "team-a", "Pod", "p", "Node gone does not exist")
    assert problems(replace(state(*pods), collections=KNOWN), ResourceCatalog()) == [only]
