"""Victims under Volcano, and its topology domains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpucost.advisor.model.answers import SchedulingDecision, SchedulingLayer
from gpucost.advisor.volcano.answer import VolcanoAnswer
from gpucost.advisor.volcano.gang import VolcanoGang
from gpucost.cluster.objects.pods import Pod
from gpucost.cluster.objects.scheduler_config import VolcanoConfig
from gpucost.cluster.objects.volcano import HyperNode
from tests.advisor.volcano_worlds import (
    ONE_TIER,
    asked,
    classes,
    gang,
    queue,
    running,
    short,
    waiting,
    with_actions,
)
from tests.cluster.builders import GPU, meta, node, pod

# Evictions


def test_by_default_nobody_is_evicted() -> None:
    answer = asked(gang(1, priority=10), node("n1", 4), running("r", 4, least=1), **classes(10))
    assert answer.decision is SchedulingDecision.WAITS
    assert not answer.victims


def preempting(asking: VolcanoGang, *objects: object, **fields: Any) -> VolcanoAnswer:
    own = {"actions": ("enqueue", "allocate", "preempt"), **fields}
    return asked(asking, *objects, config=VolcanoConfig(is_read=True, **own), **classes(5, 10))


@pytest.mark.parametrize(("priority", "expected"), [(4, "waits"), (5, "waits"), (6, "now")])
def test_preempt_takes_lower_priority_of_its_queue(priority: int, expected: str) -> None:
    tiers = (("priority", "gang", "conformance"), ("overcommit", "predicates", "proportion"))
    held = running("r", 4, least=1, priority=5)
    asking = gang(2, priority=priority, min_resources=None)
    answer = preempting(asking, node("n1", 4), held, tiers=tiers)
    assert answer.decision.value == expected
    if expected == "now":
        [victim] = answer.victims
        assert (victim.reason, victim.queue, victim.units, victim.priority) == (
            "preempt",
            "default",
            {GPU: 2},
            5,
        )
        assert answer.action == "preempt"


@pytest.mark.parametrize(("least", "expected"), [(1, "now"), (2, "now"), (3, "waits"), (4, "waits")])
def test_no_gang_is_taken_below_its_minimum(least: int, expected: str) -> None:
    held, asking = running("r", 4, least=least), gang(2, priority=10, min_resources=None)
    assert preempting(asking, node("n1", 4), held, tiers=ONE_TIER).decision.value == expected


def test_a_later_tier_gives_what_the_first_does_not() -> None:
    """Volcano asks drf where the first tier gives no victims, and drf does not consider gangs."""
    held, asking = running("r", 4, least=4), gang(2, priority=10, min_resources=None)
    answer = preempting(asking, node("n1", 4), held)
    assert (answer.decision, answer.why) == (
        SchedulingDecision.NOW, ("priority, gang gave nobody, so the next tier decides: drf",),
    )  # fmt: skip
    off = {"drf": {"enablePreemptable": "false"}}
    assert preempting(asking, node("n1", 4), held, arguments=off).decision is SchedulingDecision.WAITS


def test_what_the_cluster_needs_stays() -> None:
    group, *members = running("r", 4, least=1)
    critical = [
        replace(each, template=replace(each.template, priority_class="system-node-critical"))
        for each in members
        if isinstance(each, Pod)
    ]
    tiers = (("priority", "gang", "conformance"), ("overcommit", "predicates", "proportion"))
    asking = gang(1, priority=10, min_resources=None)
    assert (
        preempting(asking, node("n1", 4), [group, *critical], tiers=tiers).decision
        is SchedulingDecision.WAITS
    )
    assert (
        preempting(asking, node("n1", 4), [group, *members], tiers=tiers).decision is SchedulingDecision.NOW
    )


def test_another_queue_is_not_preempted() -> None:
    queues = [queue("default"), queue("other")]
    held = running("r", 4, least=1, queue="other")
    asking = gang(1, priority=10, min_resources=None)
    assert preempting(asking, *queues, node("n1", 4), held).decision is SchedulingDecision.WAITS


def test_a_job_that_is_not_let_in_preempts_nobody() -> None:
    answer = preempting(gang(2, priority=10), node("n1", 4), running("r", 4, least=1))
    assert short(answer) == ("waits", "Overcommit")


def test_a_pod_may_be_exempt() -> None:
    group, *members = running("r", 4, least=1)
    exempt = [
        replace(each, meta=replace(each.meta, labels={"volcano.sh/preemptable": "false"}))
        for each in members
        if isinstance(each, Pod)
    ]
    asking = gang(1, priority=10, min_resources=None)
    assert preempting(asking, node("n1", 4), [group, *exempt]).decision is SchedulingDecision.WAITS


def reclaiming(held: int, asked_: int = 1, tiers: Any = ONE_TIER, **other: Any) -> VolcanoAnswer:
    """Two queues of equal weight share 4 GPUs."""
    least = other.pop("least", 1)
    queues = [queue("default"), queue("other", **other)]
    rest = [running("r", held, least=least, queue="other"), waiting("w", 4, queue="other", age_ms=-1)]
    config = with_actions("enqueue", "allocate", "reclaim", tiers=tiers)
    return asked(gang(asked_, min_resources=None), *queues, *rest, node("n1", 4), config=config)


@pytest.mark.parametrize(("asked_", "expected", "units"), [(1, "now", 1), (2, "now", 2), (3, "waits", 0)])
def test_reclaim_takes_back_up_to_what_is_deserved(asked_: int, expected: str, units: int) -> None:
    answer = reclaiming(4, asked_)
    assert answer.decision.value == expected
    if units:
        [victim] = answer.victims
        assert (victim.reason, victim.queue, victim.units) == ("reclaim", "other", {GPU: units})


def test_a_queue_that_is_not_reclaimable_keeps_what_it_has() -> None:
    assert reclaiming(4, is_reclaimable=False).decision is SchedulingDecision.WAITS


@pytest.mark.parametrize(("held", "expected"), [(2, "waits"), (3, "now")])
def test_a_queue_keeps_what_it_deserves(held: int, expected: str) -> None:
    """The rest of the node is a pod's that is not Volcano's."""
    queues = [queue("default"), queue("other")]
    rest = [running("r", held, least=1, queue="other"), waiting("w", 4, queue="other", age_ms=-1)]
    stranger = pod("stranger", 4 - held, node="n1")
    rest.append(waiting("x", 2, age_ms=-1))
    config = with_actions("enqueue", "allocate", "reclaim", tiers=ONE_TIER)
    answer = asked(gang(1, min_resources=None), *queues, *rest, stranger, node("n1", 4), config=config)
    assert answer.decision.value == expected


def test_reclaim_keeps_gangs_whole() -> None:
    assert reclaiming(4, least=4).decision is SchedulingDecision.WAITS


@pytest.mark.parametrize(("deserved", "expected"), [(2, "now"), (3, "now"), (4, "waits")])
def test_capacity_takes_back_above_what_the_other_deserves(deserved: int, expected: str) -> None:
    tiers = (("priority", "gang", "conformance", "overcommit", "predicates", "capacity"),)
    queues = [queue("default", deserved=1), queue("other", deserved=deserved)]
    config = with_actions("enqueue", "allocate", "reclaim", tiers=tiers)
    held = running("r", 4, least=1, queue="other")
    answer = asked(gang(1, min_resources=None), *queues, held, node("n1", 4), config=config)
    assert answer.decision.value == expected


def test_the_first_tier_that_gives_victims_decides() -> None:
    """With gang and conformance in a tier of their own, no plugin checks what the other queue deserves."""
    tiers = (("priority", "gang", "conformance"), ("overcommit", "predicates", "capacity"))
    queues = [queue("default", deserved=1), queue("other", deserved=4)]
    config = with_actions("enqueue", "allocate", "reclaim", tiers=tiers)
    held = running("r", 4, least=1, queue="other")
    answer = asked(gang(1, min_resources=None), *queues, held, node("n1", 4), config=config)
    assert answer.decision is SchedulingDecision.NOW
    off = {plugin: {"enableReclaimable": "false"} for plugin in ("gang", "conformance")}
    config = replace(config, arguments=off)
    answer = asked(gang(1, min_resources=None), *queues, held, node("n1", 4), config=config)
    assert answer.decision is SchedulingDecision.WAITS


# Topology


def hyper(name: str, tier: int, *members: tuple[str, str, str], tier_name: str = "") -> HyperNode:
    return HyperNode(meta(name, ""), tier, tier_name, members)


RACKS = [
    hyper("rack-1", 1, ("Node", "exact", "a1"), ("Node", "exact", "a2")),
    hyper("rack-2", 1, ("Node", "regex", "^b[0-9]$")),
    hyper("row", 2, ("HyperNode", "exact", "rack-1"), ("HyperNode", "regex", "rack-2"), tier_name="row"),
]
TOPOLOGY = VolcanoConfig(tiers=(*VolcanoConfig().tiers, ("network-topology-aware",)), is_read=True)
FOUR = [node(name, 2) for name in ("a1", "a2", "b1", "b2")]


@pytest.mark.parametrize(("pods", "tier", "expected"), [
    (4, 1, "now"), (5, 1, "never"), (5, 2, "now"), (8, 2, "now"), (4, 0, "never"),
])  # fmt: skip
def test_a_hard_topology_keeps_a_gang_together(pods: int, tier: int, expected: str) -> None:
    asking = gang(pods, topology={"mode": "hard", "highest_tier": str(tier)})
    answer = asked(asking, *FOUR, config=TOPOLOGY, hyper_nodes=RACKS)
    assert answer.decision.value == expected
    if expected == "never":
        assert answer.layer is SchedulingLayer.PLACEMENT


def test_the_narrowest_is_taken_that_has_room() -> None:
    asking = gang(4, min_resources=None, topology={"mode": "hard", "highest_tier": "2"})
    answer = asked(asking, *FOUR, running("r", 1, on="a1"), config=TOPOLOGY, hyper_nodes=RACKS)
    assert set(answer.pod_sets[0].nodes) == {"b1", "b2"}
    narrow = gang(4, min_resources=None, topology={"mode": "hard", "highest_tier": "1"})
    held = [running("r", 1, on="a1"), running("s", 1, on="b1")]
    answer = asked(narrow, *FOUR, *held, config=TOPOLOGY, hyper_nodes=RACKS)
    assert short(answer) == ("waits", "NotEnoughResources")


@pytest.mark.parametrize("topology", [
    {"mode": "soft", "highest_tier": "1"}, {"mode": "hard"}, {"highest_tier_name": "row"},
])  # fmt: skip
def test_wishes_and_names(topology: Mapping[str, str]) -> None:
    asking = gang(6, topology=topology)
    assert asked(asking, *FOUR, config=TOPOLOGY, hyper_nodes=RACKS).decision is SchedulingDecision.NOW


def test_a_topology_that_nobody_enforces() -> None:
    asking = gang(6, topology={"mode": "hard", "highest_tier": "1"})
    plain = asked(asking, *FOUR, hyper_nodes=RACKS)
    assert plain.decision is SchedulingDecision.NOW
    assert any("not enforced" in each for each in plain.assumptions)
    unread = asked(asking, *FOUR, hyper_nodes=RACKS, config=VolcanoConfig())
    assert unread.decision is SchedulingDecision.NEVER


def test_labels_circles_and_patterns_that_never_end() -> None:
    odd = [
        hyper("x", 1, ("HyperNode", "exact", "y"), ("Node", "label", "kubernetes.io/hostname=a1")),
        hyper("y", 1, ("HyperNode", "exact", "x"), ("Node", "regex", "(a+)+$"), ("Node", "regex", "(")),
    ]
    asking = gang(2, topology={"highest_tier": "1"})
    answer = asked(asking, *FOUR, config=TOPOLOGY, hyper_nodes=odd)
    assert answer.pod_sets[0].nodes == {"a1": 2}
    assert any("HyperNode y" in each for each in answer.assumptions)
    assert asked(
        gang(3, topology={"highest_tier": "1"}), *FOUR, config=TOPOLOGY, hyper_nodes=odd
    ).decision is (SchedulingDecision.NEVER)
