"""Answers with kube-scheduler's preemption: what the pods may do, which pods leave, and what
cannot be known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpucost.advisor.advise import advise
from gpucost.advisor.estimate.preempted_pods import (
    BUDGETS_UNREAD,
    BY_DEFAULT,
    PREEMPTION_NOT_KNOWN,
    PREEMPTS_PODS,
)
from gpucost.advisor.explanation.job_explanation import explain
from gpucost.advisor.model.answers import (
    Advice,
    PreemptionVictim,
    SchedulingDecision,
    SchedulingLayer,
)
from gpucost.advisor.model.encoding import document
from gpucost.advisor.request.context import AdvisorContext
from gpucost.cluster.objects.jobs import PriorityClass
from gpucost.cluster.objects.kueue import Topology
from gpucost.cluster.objects.pods import (
    PREEMPTED_BY_SCHEDULER,
    DisruptionBudget,
    Pod,
    PodDisruption,
    SelectorRequirement,
)
from gpucost.cluster.objects.state import CollectionStatus
from gpucost.cluster.objects.volcano import DisruptionMode
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.domain.time import MINUTE_MS
from gpucost.kube.manifests import reread
from tests.advisor.test_advise import job, knows, nodes
from tests.advisor.worlds import NOW, flavor, meta, queue, workload
from tests.cluster import builders

CLASSES = (
    PriorityClass(meta("high"), 1000),
    PriorityClass(meta("low"), -10),
    PriorityClass(meta("polite"), 1000, never_preempts=True),
)
HIGH = {"priorityClassName": "high"}
OF_GROUP = {"schedulingGroup": {"podGroupName": "g"}}


NEAR = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "db"}}}


def runs(name: str, on: str, gpus: int = 8, priority: int = -10, **fields: Any) -> Pod:
    """Of namespace cv, bound for an hour; may take 30 s to stop."""
    more = {key: fields.pop(key) for key in ("disruption", "grace_ms", "nominated") if key in fields}
    where = {"node": on, "bound_ms": NOW - 60 * MINUTE_MS} if on else {}
    found = builders.pod(name, gpus, namespace="cv", priority=priority, **where, **fields)
    return replace(found, **{"grace_ms": 30_000, "started_ms": NOW - 60 * MINUTE_MS, **more})


def world(*objects: object, classes: tuple[PriorityClass, ...] = CLASSES, **more: Any) -> AdvisorContext:
    return knows(*objects, priority_classes=classes, **more)


def unread(known: AdvisorContext, *names: str) -> AdvisorContext:
    """The same where collections of these names could not be read."""
    read = {name: CollectionStatus("v1", synced=True) for name in _READ}
    refused = {name: CollectionStatus("", synced=False, problem="forbidden") for name in names}
    state = replace(known.state, collections={**read, **refused})
    return AdvisorContext(ClusterOverview(state), reread, known.prices, settings=known.settings)


_READ = ("pods", "nodes", "priorityclasses.scheduling.k8s.io", "poddisruptionbudgets.policy")


def asked(known: AdvisorContext, pods: int = 1, gpus: int = 8, **spec: Any) -> Advice:
    """A job without a queue of Kueue, of class high."""
    return advise(job(pods, gpus, **{"queue": "", "pod": HIGH, **spec}), known, with_suggestions=False)


def named(found: Advice) -> list[str]:
    return [each.subject.name for each in found.victims]


def test_a_job_that_preempts_runs_now() -> None:
    """Measured on a cluster: priority 1000, the node held by one of -10; it ran within 9 seconds."""
    found = asked(world(*nodes(1), runs("batch", "n0")))
    assert found.decision is SchedulingDecision.NOW
    assert (found.layer, found.reason) == (SchedulingLayer.NONE, PREEMPTS_PODS)
    assert found.says == (
        "runs now on 1 node (n0) by preempting 1 pod of lower priority (cv/batch), which has 30 s to stop"
    )
    assert found.wait is None
    assert found.later_ms == 30_000
    assert found.victims == (
        PreemptionVictim(
            *(found.victims[0].subject, "", -10, PREEMPTED_BY_SCHEDULER, {"nvidia.com/gpu": 8}),
            node="n0",
            grace_ms=30_000,
        ),
    )
    assert (found.victims[0].subject.kind, found.victims[0].subject.namespace) == ("Pod", "cv")
    assert BY_DEFAULT in found.assumptions
    assert BUDGETS_UNREAD not in found.assumptions
    written = document(found)["victims"][0]
    assert (written["node"], written["grace_ms"], written["reason"]) == (
        *("n0", 30_000),
        PREEMPTED_BY_SCHEDULER,
    )


def test_the_longest_grace_counts_and_none_where_one_is_not_known() -> None:
    long, unknown = runs("b", "n0", 4, grace_ms=600_000), runs("b", "n0", 4, grace_ms=None)
    assert asked(world(*nodes(1), runs("a", "n0", 4), long)).later_ms == 600_000
    found = asked(world(*nodes(1), runs("a", "n0", 4), unknown))
    assert found.later_ms is None
    assert found.says.endswith("by preempting 2 pods of lower priority (cv/a, cv/b)")


def test_one_that_stops_already_has_what_is_left() -> None:
    gone = PodDisruption(PREEMPTED_BY_SCHEDULER, NOW - 10_000)
    found = asked(world(*nodes(1), runs("batch", "n0", deleted_ms=NOW + 20_000, disruption=gone)))
    assert found.later_ms == 20_000
    assert [each.already_leaving for each in found.victims] == [True]


@pytest.mark.parametrize(
    ("pod", "classes", "decision"),
    [
        (HIGH, CLASSES, SchedulingDecision.NOW),
        ({}, CLASSES, SchedulingDecision.NOW),  # 0 where there is no default: above -10
        ({"priorityClassName": "low"}, CLASSES, SchedulingDecision.WAITS),
        ({"priorityClassName": "polite"}, CLASSES, SchedulingDecision.WAITS),
        ({**HIGH, "preemptionPolicy": "Never"}, CLASSES, SchedulingDecision.WAITS),
        ({}, (PriorityClass(meta("usual"), -20, is_default=True),), SchedulingDecision.WAITS),
        ({}, (PriorityClass(meta("usual"), 5, is_default=True),), SchedulingDecision.NOW),
        (
            {},
            (PriorityClass(meta("usual"), 5, is_default=True, never_preempts=True),),
            SchedulingDecision.WAITS,
        ),
    ],
)
def test_priority_and_policy_are_those_of_the_class(
    pod: Mapping[str, Any], classes: tuple[PriorityClass, ...], decision: SchedulingDecision
) -> None:
    found = asked(world(*nodes(1), runs("batch", "n0"), classes=classes), pod=dict(pod))
    assert found.decision is decision
    assert named(found) == (["batch"] if decision is SchedulingDecision.NOW else [])


def test_a_class_that_is_not_there_is_no_class() -> None:
    """The API server refuses its pods: none is made, and no pod is preempted."""
    known = world(*nodes(1), runs("batch", "n0"))
    found = asked(known, pod={"priorityClassName": "hihg"})
    assert (found.decision, found.victims) == (SchedulingDecision.NEVER, ())
    assert found.says == "never runs as it is: there is no PriorityClass hihg, which its pods name"
    assert asked(known, pod={"priorityClassName": "system-node-critical"}).decision is SchedulingDecision.NOW
    unknown = asked(unread(known, "priorityclasses.scheduling.k8s.io"), pod={"priorityClassName": "hihg"})
    assert unknown.decision is SchedulingDecision.UNKNOWN


def test_a_job_of_several_pods_of_which_each_preempts() -> None:
    found = asked(world(*nodes(3), runs("x", "n0"), runs("y", "n1")), pods=3)
    assert found.decision is SchedulingDecision.NOW
    assert sorted(named(found)) == ["x", "y"]
    assert found.pod_sets[0].nodes == {"n0": 1, "n1": 1, "n2": 1}


def test_a_part_of_a_job_preempts_though_the_rest_waits() -> None:
    found = asked(world(*nodes(2), runs("x", "n0"), runs("y", "n1", priority=5000)), pods=2)
    assert found.decision is SchedulingDecision.WAITS
    assert named(found) == ["x"]
    expected = "1 of its 2 pods would start by preempting 1 pod of lower priority (cv/x) and hold 8 GPUs"
    assert expected in found.says


def test_what_it_waits_for_are_those_that_it_cannot_preempt() -> None:
    """The node of the pod of priority 5000 is free once that ends, whatever stands beside it."""
    low, high = runs("x", "n0", 4, grace_ms=1), runs("y", "n0", 4, priority=5000)
    found = asked(world(*nodes(1), replace(low, bound_ms=NOW - 900 * MINUTE_MS), high))
    assert found.decision is SchedulingDecision.WAITS
    assert found.wait is not None
    assert found.wait.p50_ms is not None
    assert found.wait.p50_ms < 90 * MINUTE_MS


def test_pods_that_stop_hold_their_room_until_they_have() -> None:
    """Of equal priority they are no victims: it waits as long as they may take."""
    found = asked(world(*nodes(1), runs("same", "n0", priority=1000, deleted_ms=NOW + 20_000)))
    assert found.decision is SchedulingDecision.WAITS
    assert found.wait is not None
    simulated = found.wait.simulated
    assert simulated is not None
    assert found.wait.p50_ms == simulated.p50_ms == simulated.p90_ms == MINUTE_MS


def test_a_budget_is_said_to_be_no_bar() -> None:
    web = runs("web", "n0", labels={"app": "web"})
    budget = DisruptionBudget(builders.meta("b", "cv"), (SelectorRequirement("app", "Exists"),), 0)
    found = asked(world(*nodes(1), web, disruption_budgets=[budget]))
    assert found.decision is SchedulingDecision.NOW
    assert any("PodDisruptionBudget that allows no more" in line for line in found.why)


def test_budgets_that_could_not_be_read_are_said() -> None:
    found = asked(unread(world(*nodes(1), runs("batch", "n0")), "poddisruptionbudgets.policy"))
    assert found.decision is SchedulingDecision.NOW
    assert BUDGETS_UNREAD in found.assumptions


@pytest.mark.parametrize(
    ("spec", "hidden", "says"),
    [
        ({"schedulerName": "other"}, (), "scheduler other places its pods"),
        ({}, ("priorityclasses.scheduling.k8s.io",), "PriorityClass high, which it names, could not be read"),
        (
            {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [NEAR]}}},
            (),
            "rules about other pods or spreading decide whom its pods preempt",
        ),
    ],
)
def test_what_nobody_can_know_is_said(spec: dict[str, Any], hidden: tuple[str, ...], says: str) -> None:
    known = unread(world(*nodes(1), runs("batch", "n0")), *hidden)
    found = asked(known, pod={**HIGH, **spec})
    assert (found.decision, found.reason) == (SchedulingDecision.UNKNOWN, PREEMPTION_NOT_KNOWN)
    assert found.says.startswith(f"unknown: {says}")
    assert not found.victims
    assert found.wait is None


def test_what_would_not_matter_is_not_unknown() -> None:
    known = unread(world(*nodes(1), runs("batch", "n0", priority=2**31 - 1)))
    assert asked(known, pod={**HIGH, "schedulerName": "other"}).decision is SchedulingDecision.WAITS


def test_quota_first_and_then_preemption() -> None:
    """Kueue's quota is there, the node is not: kube-scheduler preempts who holds it."""
    known = world(queue("ml", 8), *nodes(1), runs("batch", "n0"))
    found = asked(known, queue="main")
    assert found.decision is SchedulingDecision.NOW
    assert named(found) == ["batch"]
    full = world(queue("ml", 8), workload("held", "ml", 8, holding=True), *nodes(1), runs("batch", "n0"))
    assert named(asked(full, queue="main")) == []


def test_what_waits_for_quota_and_never_fits_preempts_nobody() -> None:
    held = workload("held", "ml", 8, holding=True)
    found = asked(world(queue("ml", 24), held, *nodes(2), runs("batch", "n0")), pods=3, queue="main")
    assert found.decision is SchedulingDecision.NEVER
    assert not found.victims


def test_where_the_scheduler_found_nobody_it_is_not_known() -> None:
    """As it says in FailedScheduling of a pod; a rule that is not evaluated here may be the reason."""
    owner = builders.job("train", namespace="ml", uid="train")
    said = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. preemption: 0/1 nodes are available: 1 No"
    waits = builders.pod("train-0", 8, namespace="ml", owner=owner, priority=1000, unschedulable=said)
    found = explain("Job", "ml", "train", world(*nodes(1), owner, waits, runs("batch", "n0")))
    assert found is not None
    assert found.advice is not None
    assert (found.advice.decision, found.advice.reason) == (SchedulingDecision.UNKNOWN, PREEMPTION_NOT_KNOWN)


def test_topology_of_kueue_preempts_nobody_at_the_scheduler() -> None:
    rack = "example.com/rack"
    tas = Topology(meta("racks"), (rack, "kubernetes.io/hostname"))
    known = world(
        *(queue("ml", 8), flavor(topology="racks"), *nodes(1, labels={rack: "r1"}), runs("batch", "n0")),
        topologies=[tas],
    )
    found = asked(known, queue="main")
    assert found.decision is not SchedulingDecision.NOW
    assert not found.victims


def test_a_node_that_is_cleared_for_another_is_not_free() -> None:
    """A nominated pod of no lower priority holds its node; one of lower priority does not."""
    waits = runs("waits", "", 8, 2000, nominated="n0", unschedulable="0/1 nodes")
    stopping = runs("stops", "n0", 4, deleted_ms=NOW + 20_000)
    found = asked(world(*nodes(1), stopping, waits), gpus=4)
    assert found.decision is SchedulingDecision.WAITS
    found = asked(world(*nodes(1), stopping, replace(waits, priority=500)), gpus=4)
    assert found.decision is SchedulingDecision.NOW
    assert not found.victims


@pytest.mark.parametrize(
    ("priority", "decision"), [(-10, SchedulingDecision.NOW), (1000, SchedulingDecision.WAITS)]
)
def test_room_is_not_kept_for_pods_of_lower_priority_that_wait(
    priority: int, decision: SchedulingDecision
) -> None:
    """kube-scheduler tries them after it; a pod that waits though there is room may wait for
    something else."""
    waits = runs("waits", "", 4, priority, unschedulable="0/1 nodes: 1 pod has unbound volume claims")
    found = asked(world(*nodes(1), runs("batch", "n0", 4), waits))
    assert found.decision is decision
    assert named(found) == (["batch"] if decision is SchedulingDecision.NOW else [])


def test_that_others_would_do_as_well_is_not_said_where_all_are_taken() -> None:
    known = world(*nodes(3), *(runs(f"b{at}", f"n{at}") for at in range(3)))
    assert any("another node would do" in line for line in asked(known, pods=2).why)
    assert not any("another node would do" in line for line in asked(known, pods=3).why)


def test_a_waiting_pod_is_explained_with_whom_it_preempts() -> None:
    owner = builders.job("train", namespace="ml", uid="train")
    waits = builders.pod(
        "train-0", 8, namespace="ml", owner=owner, priority=1000, unschedulable="0/1 nodes are available"
    )
    known = world(*nodes(1), owner, waits, runs("batch", "n0"))
    found = explain("Job", "ml", "train", known)
    assert found is not None
    assert found.advice is not None
    assert named(found.advice) == ["batch"]
    polite = replace(waits, template=replace(waits.template, never_preempts=True))
    found = explain("Job", "ml", "train", world(*nodes(1), owner, polite, runs("batch", "n0")))
    assert found is not None
    assert found.advice is not None
    assert found.advice.decision is SchedulingDecision.WAITS


def in_group(*groups: object) -> tuple[object, ...]:
    """The objects of a group of three pods of cv, two of which share node n0; and another job on n2."""
    of_cv = [replace(each, meta=replace(each.meta, namespace="cv")) for each in groups]  # type: ignore[type-var, attr-defined]
    members = [runs(f"m{n}", f"n{n // 2}", 4, group="g") for n in range(3)]
    return (*of_cv, *members, runs("other", "n1", 4))


def test_a_gang_that_is_preempted_as_a_whole_leaves_with_its_first_pod() -> None:
    """Two of its pods make room; the third has its node elsewhere and stops too."""
    whole = builders.native_group("g", 3, disruption=DisruptionMode.ALL)
    found = asked(world(*nodes(2), *in_group(whole), runs("mine", "n1", 0, priority=2000)), gpus=8)
    assert found.decision is SchedulingDecision.NOW
    assert sorted(named(found)) == ["m0", "m1", "m2"]
    assert any("1 of them only because their gang is preempted as a whole" in each for each in found.why)
    single = builders.native_group("g", 3)
    found = asked(world(*nodes(2), *in_group(single)), gpus=8)
    assert sorted(named(found)) == ["m0", "m1"]


def test_a_tree_that_is_preempted_as_a_whole_leaves_as_a_whole() -> None:
    every = {"disruption": DisruptionMode.ALL}
    tree = (
        builders.composite("root", 2, **every),
        builders.native_group("g", 3, "root", **every),
        builders.native_group("h", 1, "root", **every),
    )
    more = (runs("far", "n1", 4, group="h"), runs("free", "n1", 0, group="i"))
    objects = [each for each in in_group(*tree) if each.meta.name != "other"]  # type: ignore[attr-defined]
    found = asked(world(*nodes(2), *objects, *more), gpus=8)
    assert sorted(named(found)) == ["far", "m0", "m1", "m2"]


@pytest.mark.parametrize("never", [True, False])
def test_the_policy_of_its_pod_group_decides_whether_it_preempts(never: bool) -> None:
    """Kubernetes 1.37: ``preemptionPolicy`` of the PodGroup that its pods name, whatever their class."""
    group = builders.native_group("g", 1, never_preempts=never)
    group = replace(group, meta=replace(group.meta, namespace="ml"))
    found = asked(world(*nodes(1), runs("batch", "n0"), group), pod={**HIGH, **OF_GROUP})
    assert found.decision is (SchedulingDecision.WAITS if never else SchedulingDecision.UNKNOWN)
    assert (found.reason == PREEMPTION_NOT_KNOWN) is not never
