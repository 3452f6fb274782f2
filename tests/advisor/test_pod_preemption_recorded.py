"""Preemptions by a real kube-scheduler (events with reason Preempted), and what the advisor says of them.

The recording has the nodes, and events of pods that are gone: who was preempted for whom, on which node, and
who was put where. What these asked for and their PriorityClasses it has not. So the victim stands on its node
with every part of its GPUs in turn, beside a pod of which nobody knows more than that it stayed, and the
preemptor asks for every amount in turn: wherever the victim's leaving is what helps, it must be named, and
else nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest

from gpucost.advisor.advise import advise
from gpucost.advisor.estimate.preempted_pods import PREEMPTION_NOT_KNOWN, PREEMPTS_PODS
from gpucost.advisor.explanation.job_explanation import explain
from gpucost.advisor.model.answers import Advice, SchedulingDecision
from gpucost.advisor.model.settings import AdvisorSettings
from gpucost.advisor.request.context import AdvisorContext
from gpucost.cluster.objects.jobs import PriorityClass
from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.objects.pods import PREEMPTED_BY_SCHEDULER, Pod, PodDisruption
from gpucost.cluster.objects.state import CollectionStatus
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.domain.time import HOUR_MS
from gpucost.kube.manifests import reread
from gpucost.kube.parse.core_objects import node as parsed_node
from gpucost.kube.parse.core_objects import priority_class
from tests.advisor.test_advise import job
from tests.cluster import builders
from tests.support.recorded import recorded_objects

NOW = builders.T0
PARTS = (1, 2, 4, 8)
LOW, HIGH, STAYS = -10, 1000, 2**31 - 1
_BY = re.compile(r"Preempted by pod (?P<uid>\S+) on node (?P<node>\S+)")
_TO = re.compile(r"Successfully assigned \S+ to (?P<node>\S+)")
_WAITS = "preemption: not eligible due to a terminating pod on the nominated node"


@dataclass(frozen=True)
class Recorded:
    """``ran_on`` is where the preemptor came to stand at last, empty for nowhere; with ``waited`` the
    scheduler said in between that it waits for the victim to stop."""

    victim: str
    namespace: str
    preemptor: str
    preemptor_namespace: str
    node: str
    victim_was_on: str
    ran_on: str
    waited: bool


@cache
def objects() -> Mapping[str, list[dict[str, Any]]]:
    found: Mapping[str, list[dict[str, Any]]] = recorded_objects()["objects"]
    return found


@cache
def preemptions() -> tuple[Recorded, ...]:
    return tuple(_preemptions())


def _preemptions() -> Iterator[Recorded]:
    of_pods = [each for each in objects()["events"] if each["involvedObject"].get("kind") == "Pod"]
    by_uid: dict[str, list[dict[str, Any]]] = {}
    for each in of_pods:
        by_uid.setdefault(each["involvedObject"].get("uid", ""), []).append(each)
    for each in of_pods:
        found = _BY.fullmatch(each["message"])
        if each["reason"] != "Preempted" or found is None:
            continue
        victim, preemptor = each["involvedObject"], by_uid[found["uid"]]
        yield Recorded(
            victim["name"],
            victim["namespace"],
            preemptor[0]["involvedObject"]["name"],
            preemptor[0]["involvedObject"]["namespace"],
            found["node"],
            _placed(by_uid[victim["uid"]]),
            _placed(preemptor),
            any(_WAITS in event["message"] for event in preemptor),
        )


def _placed(events: list[dict[str, Any]]) -> str:
    named = [found["node"] for each in events if (found := _TO.search(each["message"]))]
    return named[-1] if named else ""


@cache
def nodes() -> tuple[Node, ...]:
    """As they are, but that all are up: when they were not in between is not recorded."""
    read = (parsed_node(each) for each in objects()["nodes"])
    return tuple(replace(each, is_ready=True) for each in read)


@cache
def classes() -> tuple[PriorityClass, ...]:
    return tuple(priority_class(each) for each in objects()["priorityclasses.scheduling.k8s.io"])


def cluster(recorded: Recorded, held: int, *more: object, **victim: Any) -> ClusterOverview:
    """All other nodes are held by pods that are not preempted, and so is the rest of this one."""
    there = builders.pod(
        recorded.victim, held, namespace=recorded.namespace, node=recorded.node, priority=LOW
    )
    fields = {"grace_ms": 30_000, "started_ms": NOW - HOUR_MS, **victim}
    meta = replace(there.meta, deleted_ms=fields.pop("deleted_ms", None))
    others = [
        builders.pod(f"stays-{each.meta.name}", gpus, namespace="x", node=each.meta.name, priority=STAYS)
        for each in nodes()
        if (gpus := each.allocatable.get(builders.GPU, 0) - (held if each.meta.name == recorded.node else 0))
    ]
    state = builders.state(
        *(*nodes(), *others, replace(there, meta=meta, **fields), *more),
        at_ms=NOW,
        priority_classes=classes(),
    )
    return ClusterOverview(state)


def knows(overview: ClusterOverview) -> AdvisorContext:
    return AdvisorContext(overview, reread, settings=AdvisorSettings(samples=0))


def asked(overview: ClusterOverview, recorded: Recorded, gpus: int) -> Advice:
    """By a job of one pod that may use nodes like that one."""
    pod = {"priorityClassName": "high", "nodeSelector": {"pool": recorded.node.partition("-")[0]}}
    found = job(1, gpus, queue="", name="asks", pod=pod)
    return advise(found, knows(overview), with_suggestions=False)


def test_what_was_recorded() -> None:
    """21 preemptions; each victim was on the node that the event names. 14 preemptors came to stand there, 4
    on another node that was free sooner, and 3 nowhere, as their job was stopped. 11 were said to wait."""
    found = preemptions()
    assert len(found) == 21
    assert [each.victim for each in found if each.victim_was_on != each.node] == []
    stood = [each.ran_on == each.node for each in found if each.ran_on]
    assert (stood.count(True), stood.count(False), len(found) - len(stood)) == (14, 4, 3)
    assert sum(each.waited for each in found) == 11


@pytest.mark.parametrize("recorded", preemptions(), ids=lambda each: each.victim)
def test_the_victim_is_named_wherever_its_leaving_helps(recorded: Recorded) -> None:
    for held in PARTS:
        overview = cluster(recorded, held)
        for gpus in PARTS:
            found = asked(overview, recorded, gpus)
            named = [(each.subject.namespace, each.subject.name, each.node) for each in found.victims]
            if gpus > held:
                assert found.decision is not SchedulingDecision.NOW
                assert named == []
                continue
            assert (found.decision, found.reason) == (SchedulingDecision.NOW, PREEMPTS_PODS)
            assert named == [(recorded.namespace, recorded.victim, recorded.node)]
            assert found.later_ms == 30_000


@pytest.mark.parametrize("recorded", preemptions(), ids=lambda each: each.victim)
def test_where_priorities_could_not_be_read_it_says_why_it_cannot_know(recorded: Recorded) -> None:
    overview = cluster(recorded, 8)
    read = dict.fromkeys(("pods", "nodes"), CollectionStatus("v1", synced=True))
    state = replace(overview.state, collections=read, priority_classes={})
    found = asked(ClusterOverview(state), recorded, 8)
    assert (found.decision, found.reason) == (SchedulingDecision.UNKNOWN, PREEMPTION_NOT_KNOWN)
    assert "PriorityClass high, which it names, could not be read" in found.says


@pytest.mark.parametrize(
    "recorded", [each for each in preemptions() if each.waited], ids=lambda each: each.victim
)
def test_a_preemptor_waits_for_the_victim_that_stops(recorded: Recorded) -> None:
    """As the scheduler said: it preempts no other pod meanwhile, though there would be one."""
    spare = builders.node("spare", 8, labels={"pool": "spare"})
    lower: Pod = builders.pod("lower", 8, namespace="x", node="spare", priority=LOW - 10)
    owner = builders.job("asks", namespace=recorded.preemptor_namespace, uid="asks")
    waits = builders.pod(
        recorded.preemptor,
        8,
        namespace=recorded.preemptor_namespace,
        owner=owner,
        priority=HIGH,
        unschedulable=_WAITS,
    )
    overview = cluster(
        *(recorded, 8, owner, replace(waits, nominated=recorded.node), spare, lower),
        deleted_ms=NOW + 4_000,
        disruption=PodDisruption(PREEMPTED_BY_SCHEDULER, NOW),
    )
    found = explain("Job", recorded.preemptor_namespace, "asks", knows(overview))
    assert found is not None
    assert found.advice is not None
    named = [(each.subject.name, each.node, each.already_leaving) for each in found.advice.victims]
    assert named == [(recorded.victim, recorded.node, True)]
    assert found.advice.later_ms == 4_000
