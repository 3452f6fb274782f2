"""Whom kube-scheduler preempts: a case for each rule of its source.

Rules are cited as function and file of kubernetes v1.34 to v1.36: ``default_preemption.go`` in
pkg/scheduler/framework/plugins/defaultpreemption, ``preemption.go`` in pkg/scheduler/framework/preemption,
and ``utils.go`` in pkg/scheduler/util.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gpucost.advisor.placement.gang_placement import place
from gpucost.advisor.placement.pod_demand import PlacementDemand
from gpucost.advisor.placement.preemption import PodPreemption, preempt
from gpucost.cluster.objects.nodes import Node, Taint
from gpucost.cluster.objects.pods import (
    PREEMPTED_BY_SCHEDULER,
    DisruptionBudget,
    Pod,
    PodDisruption,
    PodPhase,
    SelectorRequirement,
)
from tests.advisor.placements import rooms_of, wants
from tests.cluster.builders import GPU, T0, meta, pod, template
from tests.cluster.builders import node as built_node

NOW = T0 + 3_600_000


def node(name: str, gpus: int = 8, **fields: Any) -> Node:
    return built_node(name, gpus, allocatable={GPU: gpus, "pods": 110}, **fields)


def runs(name: str, on: str, gpus: int = 8, priority: int = 0, since: int | None = 0, **fields: Any) -> Pod:
    """Started ``since`` seconds after T0, None: not yet. ``labels`` and ``deleted_ms`` as in ``meta``."""
    more = {key: fields.pop(key) for key in ("disruption", "grace_ms") if key in fields}
    found = pod(name, gpus, node=on, priority=priority, **fields)
    return replace(found, started_ms=None if since is None else T0 + since * 1000, **more)


def budget(allowed: int, *, namespace: str = "team-a", disrupted: tuple[str, ...] = ()) -> DisruptionBudget:
    """Of pods with the label ``app: web``."""
    return DisruptionBudget(
        meta("web", namespace, uid=f"budget/{namespace}"),
        (SelectorRequirement("app", "In", ("web",)),),
        allowed,
        frozenset(disrupted),
    )


def asks(gpus: int = 8, count: int = 1, priority: int = 1000, **fields: Any) -> PlacementDemand:
    return replace(wants(count, gpus, **fields), priority=priority, preempts=True)


@dataclass(frozen=True)
class Case:
    """``rule`` says which of upstream's it is. ``nodes`` are those the pods get, None: they find none."""

    name: str
    rule: str
    objects: tuple[object, ...]
    wanted: tuple[PlacementDemand, ...]
    victims: tuple[str, ...]
    nodes: Mapping[str, int] | None
    budgets: tuple[DisruptionBudget, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)


WEB = {"labels": {"app": "web"}}
LEAVING = {
    "deleted_ms": NOW + 20_000,
    "disruption": PodDisruption(PREEMPTED_BY_SCHEDULER, NOW - 10_000),
}

CASES = (
    Case(
        "a pod of lower priority leaves",
        "isPreemptionAllowed: the victim's priority is below the preemptor's",
        (node("a"), runs("low", "a", priority=-10)),
        (asks(),),
        ("low",),
        {"a": 1},
    ),
    Case(
        "one of equal priority stays",
        "isPreemptionAllowed: below, not equal",
        (node("a"), runs("same", "a", priority=1000)),
        (asks(),),
        (),
        None,
    ),
    Case(
        "where it does not fit without all of lower priority nobody leaves",
        "SelectVictimsOnNode: not suitable if the pod does not fit after all of them are removed",
        (node("a"), runs("low", "a", 4), runs("high", "a", 4, 2000)),
        (asks(),),
        (),
        None,
    ),
    Case(
        "no more than must",
        "SelectVictimsOnNode: reprieve as many as fit beside it",
        (node("a"), runs("one", "a", 4), runs("two", "a", 2), runs("three", "a", 2, since=9)),
        (asks(2),),
        ("three",),
        {"a": 1},
    ),
    Case(
        "the higher priority is spared first",
        "SelectVictimsOnNode: reprieve begins with the highest importance",
        (node("a"), runs("five", "a", 4, 5), runs("one", "a", 4, 1)),
        (asks(4),),
        ("one",),
        {"a": 1},
    ),
    Case(
        "of equal priority who has run longer is spared",
        "MoreImportantPod (utils.go): of equal priorities the older is more important",
        (node("a"), runs("young", "a", 4, since=900), runs("old", "a", 4, since=60)),
        (asks(4),),
        ("young",),
        {"a": 1},
    ),
    Case(
        "who has not started yet is the youngest",
        "GetPodStartTime (utils.go): now, for a pod without a start",
        (node("a"), runs("bound", "a", 4, since=None), runs("runs", "a", 4, since=3000)),
        (asks(4),),
        ("bound",),
        {"a": 1},
    ),
    Case(
        "sparing goes on behind one that is too large",
        "SelectVictimsOnNode: each is tried in turn, whatever became of the one before",
        (node("a"), runs("large", "a", 6, 5), runs("small", "a", 2, 1)),
        (asks(4),),
        ("large",),
        {"a": 1},
    ),
    Case(
        "a budget that is used up spares",
        "filterPodsWithPDBViolation, SelectVictimsOnNode: those that violate are reprieved first",
        (node("a"), runs("web", "a", 4, 1, **WEB), runs("job", "a", 4, 5)),
        (asks(4),),
        ("job",),
        {"a": 1},
        (budget(0),),
    ),
    Case(
        "a budget with room spares nobody",
        "filterPodsWithPDBViolation: as long as disruptionsAllowed is not below zero",
        (node("a"), runs("web", "a", 4, 1, **WEB), runs("job", "a", 4, 5)),
        (asks(4),),
        ("web",),
        {"a": 1},
        (budget(1),),
    ),
    Case(
        "a budget is used up by each pod in order of importance",
        "filterPodsWithPDBViolation: pdbsAllowed is counted down over the pods of the node",
        (
            node("a"),
            runs("web-1", "a", 4, 5, **WEB),
            runs("web-2", "a", 2, 1, **WEB),
            runs("job", "a", 2, 9),
        ),
        (asks(2),),
        ("job",),
        {"a": 1},
        (budget(0),),
    ),
    Case(
        "who counts as disrupted already is not spared",
        "filterPodsWithPDBViolation: pods in status.disruptedPods are left out",
        (node("a"), runs("web", "a", 4, 1, **WEB), runs("job", "a", 4, 5)),
        (asks(4),),
        ("web",),
        {"a": 1},
        (budget(0, disrupted=("web",)),),
    ),
    Case(
        "a budget of another namespace spares nobody",
        "filterPodsWithPDBViolation: pdb.Namespace != pod.Namespace",
        (node("a"), runs("web", "a", 4, 1, **WEB), runs("job", "a", 4, 5)),
        (asks(4),),
        ("web",),
        {"a": 1},
        (budget(0, namespace="team-b"),),
    ),
    Case(
        "a budget without a selector matches nobody",
        "filterPodsWithPDBViolation: a nil or empty selector matches nothing",
        (node("a"), runs("web", "a", 4, 1, **WEB), runs("job", "a", 4, 5)),
        (asks(4),),
        ("web",),
        {"a": 1},
        (replace(budget(0), selector=()),),
    ),
    Case(
        "a budget is no bar",
        "SelectVictimsOnNode: violating victims are victims where nothing else helps",
        (node("a"), runs("web", "a", **WEB)),
        (asks(),),
        ("web",),
        {"a": 1},
        (budget(0),),
    ),
    Case(
        "the node where no budget is broken",
        "pickOneNodeForPreemption 1: minimum number of PDB violations, before priorities",
        (node("a"), runs("web", "a", priority=1, **WEB), node("b"), runs("job", "b", priority=500)),
        (asks(),),
        ("job",),
        {"b": 1},
        (budget(0),),
    ),
    Case(
        "the node whose most important victim matters least",
        "pickOneNodeForPreemption 2: minimum highest priority, before the sum",
        (
            *(node("a"), runs("five", "a", priority=5)),
            *(node("b"), runs("four-1", "b", 4, 4), runs("four-2", "b", 4, 4)),
        ),
        (asks(),),
        ("four-1", "four-2"),
        {"b": 1},
    ),
    Case(
        "the node with the least sum of priorities",
        "pickOneNodeForPreemption 3: sum of priorities",
        (
            *(node("a"), runs("a-5", "a", 4, 5), runs("a-4", "a", 4, 4)),
            *(node("b"), runs("b-5", "b", 4, 5), runs("b-1", "b", 4, 1)),
        ),
        (asks(),),
        ("b-5", "b-1"),
        {"b": 1},
    ),
    Case(
        "few of a negative priority rather than many",
        "pickOneNodeForPreemption 3: MaxInt32+1 is added to each priority",
        (
            *(node("a"), runs("a-1", "a", 4, -10), runs("a-2", "a", 4, -10)),
            *(node("b"), runs("b-1", "b", 8, -10)),
        ),
        (asks(),),
        ("b-1",),
        {"b": 1},
    ),
    Case(
        "the node whose victims have run the shortest",
        "pickOneNodeForPreemption 5: latest start time of the highest priority victims",
        (node("a"), runs("old", "a", since=60), node("b"), runs("young", "b", since=900)),
        (asks(),),
        ("young",),
        {"b": 1},
    ),
    Case(
        "of a node's most important victims the first start counts",
        "GetEarliestPodStartTime (utils.go): the earliest of those of the highest priority",
        (
            *(node("a"), runs("a-1", "a", 4, since=900), runs("a-2", "a", 4, since=60)),
            *(node("b"), runs("b-1", "b", 4, since=500), runs("b-2", "b", 4, since=600)),
        ),
        (asks(),),
        ("b-1", "b-2"),
        {"b": 1},
    ),
    Case(
        "a node that its taint closes is none",
        "findCandidates: only nodes that are Unschedulable, not UnschedulableAndUnresolvable",
        (node("a", taints=(Taint("dedicated", "x", "NoSchedule"),)), runs("low", "a", priority=-10)),
        (asks(),),
        (),
        None,
    ),
    Case(
        "nor one that is cordoned",
        "findCandidates; NodeUnschedulable answers UnschedulableAndUnresolvable",
        (node("a", is_cordoned=True), runs("low", "a", priority=-10)),
        (asks(),),
        (),
        None,
    ),
    Case(
        "whoever fits preempts nobody",
        "PostFilter runs only where no node passed the filters",
        (node("a"), runs("low", "a", 4)),
        (asks(4),),
        (),
        {"a": 1},
    ),
    Case(
        "each pod of a job by itself, the first where it is free",
        "schedulePod: pods one after the other; Preempt once for each that fails",
        (node("a"), node("b"), runs("b-1", "b"), node("c"), runs("c-1", "c", priority=5)),
        (asks(count=3),),
        ("b-1", "c-1"),
        {"a": 1, "b": 1, "c": 1},
    ),
    Case(
        "as many as preemption helps",
        "Preempt: for the others no candidate is found",
        (node("a"), runs("low", "a"), node("b"), runs("high", "b", priority=5000)),
        (asks(count=2),),
        ("low",),
        None,
        more={"short": {"main": 1}},
    ),
    Case(
        "what the pod before was given counts",
        "RunFilterPluginsWithNominatedPods: nominated pods of no lower priority stand on their node",
        (node("a"), runs("one", "a", 4, 1), runs("two", "a", 4, 2)),
        (asks(4, count=2),),
        ("one", "two"),
        {"a": 2},
    ),
    Case(
        "victims hold their node until they have stopped, so that the next pod goes elsewhere",
        "SelectVictimsOnNode: pods of the node, those that are stopping with them, are potential victims",
        (node("a"), runs("one", "a", 4, 1, 9), runs("two", "a", 4, 1), node("b"), runs("b-1", "b", 4, 1)),
        (asks(4, count=3),),
        ("one", "b-1"),
        {"a": 1, "b": 2},
    ),
    Case(
        "one that is stopping already is a victim like others",
        "isPreemptionAllowed asks for the priority alone; prepareCandidate deletes nobody twice",
        (
            *(node("a"), runs("old", "a", 4, since=1), runs("stopping", "a", 4, since=9, **LEAVING)),
            *(node("b"), runs("higher", "b", 8, 7)),
        ),
        (asks(4),),
        ("stopping",),
        {"a": 1},
    ),
    Case(
        "a pod for which others are stopping waits for these",
        "PodEligibleToPreemptOthers: terminating pods on the nominated node, preempted by the scheduler",
        (node("a"), runs("stopping", "a", priority=5, **LEAVING), node("b"), runs("lower", "b")),
        (replace(asks(), nominated=("a",)),),
        ("stopping",),
        {"a": 1},
    ),
    Case(
        "unless they stop for another reason",
        "podTerminatingByPreemption: DisruptionTarget with reason PreemptionByScheduler",
        (
            *(node("a"), runs("stopping", "a", priority=5, deleted_ms=NOW + 20_000)),
            *(node("b"), runs("lower", "b")),
        ),
        (replace(asks(), nominated=("a",)),),
        ("lower",),
        {"b": 1},
    ),
    Case(
        "unless the nominated node can no longer do",
        "PodEligibleToPreemptOthers: again where the nominated node is UnschedulableAndUnresolvable",
        (
            *(node("a", is_cordoned=True), runs("stopping", "a", priority=5, **LEAVING)),
            *(node("b"), runs("lower", "b")),
        ),
        (replace(asks(), nominated=("a",)),),
        ("lower",),
        {"b": 1},
    ),
    Case(
        "pods that have ended hold nothing",
        "the scheduler's cache has pods that are assigned and not in a terminal phase",
        (node("a"), runs("done", "a", phase=PodPhase.SUCCEEDED), runs("low", "a")),
        (asks(),),
        ("low",),
        {"a": 1},
    ),
    Case(
        "affinity between victims counts for nothing",
        "SelectVictimsOnNode runs the preemptor's filters alone: victims' own rules are not asked again",
        (
            node("a"),
            runs("needs-two", "a", 4, 5, asks=replace(template(4), has_pod_affinity=True)),
            runs("two", "a", 4, 1),
        ),
        (asks(4),),
        ("two",),
        {"a": 1},
    ),
    Case(
        "room for pods counts too",
        "NodeResourcesFit: too many pods",
        (built_node("a", 8, allocatable={GPU: 8, "pods": 1}), runs("low", "a", 0, -10)),
        (asks(4),),
        ("low",),
        {"a": 1},
    ),
    Case(
        "who asks for nothing that is short stays",
        "NodeResourcesFit: only what the pod asks for is compared",
        (node("a"), runs("cpu", "a", 0, -20, asks=template(cpu=4000)), runs("gpu", "a", 8, 5)),
        (asks(),),
        ("gpu",),
        {"a": 1},
    ),
    Case(
        "pods of higher priority are served first",
        "PrioritySort (queuesort): the scheduling queue is ordered by priority",
        (node("a"), runs("low", "a", priority=-10), node("b"), runs("mid", "b", priority=500)),
        (asks(name="later", priority=600), asks(name="sooner", priority=1000)),
        ("low", "mid"),
        None,
        more={"nodes": {"sooner": {"a": 1}, "later": {"b": 1}}, "short": {}},
    ),
)


def asked(case: Case) -> PodPreemption:
    rooms = rooms_of(*case.objects)
    before = {name: rooms.free(name) for name in rooms.base.index}
    found = preempt(rooms, case.wanted, place(rooms, case.wanted), case.budgets, NOW)
    assert {name: rooms.free(name) for name in rooms.base.index} == before
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rules_of_kube_scheduler(case: Case) -> None:
    found = asked(case)
    assert tuple(each.meta.name for each in found.victims) == case.victims, case.rule
    if case.nodes is not None:
        assert found.nodes == {"main": case.nodes}, case.rule
        assert found.fits
    elif not case.more:
        assert not found.fits
    for name, expected in case.more.items():
        assert getattr(found, name) == expected, case.rule


def test_pods_that_preempt_nobody() -> None:
    """PodEligibleToPreemptOthers: preemptionPolicy Never."""
    rooms, wanted = rooms_of(node("a"), runs("low", "a", priority=-10)), [replace(asks(), preempts=False)]
    found = preempt(rooms, wanted, place(rooms, wanted), (), NOW)
    assert not found.victims
    assert found.short == {"main": 1}


def test_between_equal_nodes_it_is_said_that_either_may_be_taken() -> None:
    """pickOneNodeForPreemption 6: the first of those that are left, sort of randomly."""
    equal = Case("", "", (node("a"), runs("x", "a"), node("b"), runs("y", "b")), (asks(),), (), None)
    assert asked(equal).is_drawn
    other = replace(equal, objects=(node("a"), runs("x", "a"), node("b"), runs("y", "b", priority=1)))
    assert not asked(other).is_drawn


@pytest.mark.parametrize(("nodes", "is_sampled"), [(100, False), (101, True)])
def test_of_many_nodes_a_part_is_looked_at(nodes: int, is_sampled: bool) -> None:
    """calculateNumCandidates: a tenth of the nodes, 100 at least."""
    objects = [each for at in range(nodes) for each in (node(f"n{at}"), runs(f"p{at}", f"n{at}", since=at))]
    found = asked(Case("", "", tuple(objects), (asks(),), (), None))
    assert found.is_sampled is is_sampled
    assert [each.meta.name for each in found.victims] == [f"p{nodes - 1}"]


def test_how_many_budgets_are_broken() -> None:
    objects = (node("a"), runs("w1", "a", 4, **WEB), runs("w2", "a", 4, **WEB))
    assert asked(Case("", "", objects, (asks(),), (), None, (budget(1),))).broken == 1
    assert asked(Case("", "", objects, (asks(),), (), None, (budget(2),))).broken == 0
