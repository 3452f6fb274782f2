"""Volcano's PodGroups, Queues and HyperNodes: values by hand, and nonsense."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucost.cluster.objects.metadata import ObjectMeta, StatusCondition
from gpucost.cluster.objects.volcano import (
    GroupKind,
    HyperNode,
    PodGroup,
    VolcanoQueue,
)
from gpucost.kube.parse import gang_schedulers as parse
from gpucost.kube.parse.events import Unreadable
from tests.support import crds
from tests.support.objects import volcano as make
from tests.support.objects.broken import broken, put, without

CREATED_MS = 1_790_812_800_000
GPU = "nvidia.com/gpu"
UNSCHEDULABLE = make.pod_group_condition(
    "Unschedulable", reason="NotEnoughResources", message="3/4 tasks in gang unschedulable", transition="7"
)


def parsed(parser: Callable[[Any], Any], found: dict[str, Any]) -> Any:
    """Valid for its CRD, and parsed."""
    crds.validate(found)
    return parser(found)


def meta(name: str, namespace: str = "") -> ObjectMeta:
    return ObjectMeta(f"uid-{namespace}-{name}", namespace, name, CREATED_MS, {}, {})


def full_pod_group() -> dict[str, Any]:
    return make.pod_group(
        "train",
        "nlp",
        min_member=4,
        min_task_member={"master": 1, "worker": 3},
        min_resources={GPU: "32", "cpu": "1500m"},
        queue="research",
        priority_class="high",
        topology={"mode": "soft", "highestTierAllowed": 2, "highestTierName": "spine"},
        phase="Unknown",
        running=3,
        failed=1,
        conditions=[UNSCHEDULABLE],
    )


def test_pod_group() -> None:
    message = "3/4 tasks in gang unschedulable"
    assert parsed(parse.volcano_pod_group, full_pod_group()) == PodGroup(
        meta("train", "nlp"),
        GroupKind.VOLCANO,
        4,
        {"master": 1, "worker": 3},
        {GPU: 32, "cpu": 1500},
        "research",
        "high",
        "Unknown",
        running=3,
        succeeded=0,
        failed=1,
        conditions={"Unschedulable": StatusCondition(True, "NotEnoughResources", message, CREATED_MS)},
        topology={"mode": "soft", "highest_tier": "2", "highest_tier_name": "spine"},
    )


def test_pod_group_that_says_nothing() -> None:
    read = parsed(parse.volcano_pod_group, make.pod_group("g", queue=""))
    assert read == PodGroup(meta("g", "default"), GroupKind.VOLCANO, queue="default")
    assert (read.min_member, read.min_resources, read.running) == (1, None, None)


@pytest.mark.parametrize(("written", "expected"), [(None, 1), (0, 1), (1, 1), (16, 16)])
def test_min_member(written: int | None, expected: int) -> None:
    assert parsed(parse.volcano_pod_group, make.pod_group("g", min_member=written)).min_member == expected


def test_nothing_needed_differs_from_nothing_said() -> None:
    """Without minResources a PodGroup is let in without a look at them."""
    assert parsed(parse.volcano_pod_group, make.pod_group("g", min_resources={})).min_resources == {}


def full_queue() -> dict[str, Any]:
    return make.queue(
        "research",
        weight=3,
        capability={GPU: 64},
        deserved={GPU: 32, "cpu": "100"},
        guarantee={GPU: "8"},
        reclaimable=False,
        parent="root",
        priority=10,
        dequeue_strategy="fifo",
        allocated={GPU: "40", "cpu": "2500m"},
    )


def test_queue() -> None:
    assert parsed(parse.volcano_queue, full_queue()) == VolcanoQueue(
        meta("research"),
        3,
        {GPU: 64},
        {GPU: 32, "cpu": 100_000},
        {GPU: 8},
        is_reclaimable=False,
        parent="root",
        priority=10,
        dequeue_strategy="fifo",
        state="Open",
        allocated={GPU: 40, "cpu": 2500},
    )


def test_queue_that_says_nothing() -> None:
    read = parsed(parse.volcano_queue, make.queue("default", state=""))
    assert read == VolcanoQueue(meta("default"), dequeue_strategy="traverse")
    assert (read.weight, read.is_reclaimable, read.allocated) == (1, True, None)
    empty = make.queue("q", capability={}, deserved={}, guarantee={}, allocated={})
    limits = parsed(parse.volcano_queue, empty)
    assert (limits.capability, limits.deserved, limits.guarantee) == (None, None, None)
    assert limits.allocated == {}


def test_counts_that_volcano_no_longer_writes_are_not_read() -> None:
    found = full_queue()
    stale = put(put(found, ("status", "pending"), 9), ("status", "running"), "many")
    assert parse.volcano_queue(stale) == parse.volcano_queue(found)


def full_hyper_node() -> dict[str, Any]:
    rules = [
        {"key": "rack", "operator": "In", "values": ["r1", "r2"]},
        {"key": "old", "operator": "DoesNotExist"},
    ]
    return make.hyper_node(
        "s1",
        2,
        tier_name="spine",
        members=[
            ("Node", {"exactMatch": {"name": "node-1"}}),
            ("HyperNode", {"regexMatch": {"pattern": "^leaf-[0-9]+$"}}),
            ("Node", {"labelMatch": {"matchLabels": {"zone": "b", "pool": "a"}, "matchExpressions": rules}}),
        ],
        node_count=12,
    )


def test_hyper_node() -> None:
    assert parsed(parse.hyper_node, full_hyper_node()) == HyperNode(
        meta("s1"),
        2,
        "spine",
        (
            ("Node", "exact", "node-1"),
            ("HyperNode", "regex", "^leaf-[0-9]+$"),
            ("Node", "label", "pool=a,zone=b,rack in (r1,r2),!old"),
        ),
        12,
    )


def test_member_that_selects_nothing_is_left_out() -> None:
    read = parse.hyper_node(put(full_hyper_node(), ("spec", "members", 0, "selector"), {}))
    assert len(read.members) == 2
    assert [flaw.field for flaw in read.flaws] == ["spec.members[0].selector"]
    wrong = put(full_hyper_node(), ("spec", "members", 2, "selector", "labelMatch", "matchLabels"), "x")
    read = parse.hyper_node(wrong)
    assert len(read.members) == 2
    assert [flaw.field for flaw in read.flaws] == ["spec.members[2].selector.labelMatch.matchLabels"]


def test_hyper_node_without_a_tier() -> None:
    assert [flaw.field for flaw in parse.hyper_node(without(full_hyper_node(), ("spec", "tier"))).flaws] == [
        "spec.tier"
    ]


FULL = {
    parse.volcano_pod_group: full_pod_group(),
    parse.volcano_queue: full_queue(),
    parse.hyper_node: full_hyper_node(),
}


@pytest.mark.parametrize(
    ("parser", "way", "value", "attribute", "expected"),
    [
        (parse.volcano_pod_group, ("spec", "minMember"), "4", "min_member", 1),
        (parse.volcano_pod_group, ("spec", "minMember"), -4, "min_member", 1),
        (parse.volcano_pod_group, ("spec", "minTaskMember", "master"), -1, "min_task_member", {"worker": 3}),
        (parse.volcano_pod_group, ("spec", "minResources", "cpu"), "1.5 cores", "min_resources", {GPU: 32}),
        (parse.volcano_pod_group, ("spec", "minResources"), [], "min_resources", None),
        (parse.volcano_queue, ("spec", "weight"), 1.5, "weight", 1),
        (parse.volcano_queue, ("spec", "capability", GPU), "-64", "capability", None),
        (parse.volcano_queue, ("spec", "reclaimable"), "no", "is_reclaimable", True),
        (parse.volcano_queue, ("status", "allocated", "cpu"), {}, "allocated", {GPU: 40}),
        (parse.volcano_queue, ("status", "allocated"), "none", "allocated", None),
        (parse.hyper_node, ("status", "nodeCount"), -1, "node_count", None),
        (parse.hyper_node, ("spec", "tier"), "top", "tier", 0),
    ],
)
def test_a_field_that_makes_no_sense_counts_as_not_given(
    parser: Callable[[Any], Any], way: tuple[str, ...], value: object, attribute: str, expected: object
) -> None:
    read = parser(put(FULL[parser], way, value))
    assert [flaw.field for flaw in read.flaws] == [".".join(way)]
    assert getattr(read, attribute) == expected


@pytest.mark.parametrize("phase", ["", "Pending", "Inqueue", "Running", "Unknown", "Completed"])
def test_phases_of_volcano_are_kept(phase: str) -> None:
    read = parse.volcano_pod_group(put(full_pod_group(), ("status", "phase"), phase))
    assert (read.phase, read.flaws) == (phase, ())


@pytest.mark.parametrize("phase", ["pending", "Finished", "x" * 5000])
def test_other_phases_are_one(phase: str) -> None:
    read = parse.volcano_pod_group(put(full_pod_group(), ("status", "phase"), phase))
    assert read.phase == "Other"
    assert [flaw.field for flaw in read.flaws] == ["status.phase"]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(FULL)), st.data())
def test_nothing_but_identity_stops_a_parser(parser: Callable[[Any], Any], data: st.DataObject) -> None:
    found = data.draw(broken(FULL[parser]))
    with suppress(Unreadable):
        read = parser(found)
        assert read == parser(found)
        assert len(read.flaws) <= 20


@pytest.mark.parametrize("parser", list(FULL))
def test_without_identity_it_is_unreadable(parser: Callable[[Any], Any]) -> None:
    with pytest.raises(Unreadable):
        parser(FULL[parser] | {"metadata": {"name": "n"}})
