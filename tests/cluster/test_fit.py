"""Whether a pod could be put on a node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucost.cluster.objects.nodes import PublishedDevice, ResourceSlice, Taint
from gpucost.cluster.objects.pods import SelectorRequirement, Toleration
from gpucost.cluster.views.device_claims import NOT_PUBLISHED, PublishedUnits
from gpucost.cluster.views.node_fit import (
    MOST_RULES,
    FreeNodes,
    lacking,
    matches,
    room,
)
from gpucost.domain.gpu import ResourceCatalog
from tests.cluster.builders import GPU, T0, meta, node, pod, state, template

GPU_TAINT = Taint("nvidia.com/gpu", "present", "NoSchedule")
LABELS = {"pool": "h100", "gpus": "8"}


@pytest.mark.parametrize(
    ("on", "expected"),
    [
        ({}, True),
        ({"is_ready": False}, False),
        ({"is_cordoned": True}, False),
        ({"taints": (GPU_TAINT,)}, False),
        ({"taints": (Taint("drain", "", "NoExecute"),)}, False),
        ({"taints": (Taint("spot", "", "PreferNoSchedule"),)}, True),
    ],
)
def test_a_node_that_takes_no_pods(on: dict[str, Any], expected: bool) -> None:
    assert matches(node("n", **on), template(1)) is expected


def test_tolerations() -> None:
    tainted, cordoned = node("n", taints=(GPU_TAINT,)), node("n", is_cordoned=True)
    everything, by_key = Toleration(exists=True), Toleration("nvidia.com/gpu", exists=True)
    other = Toleration("nvidia.com/gpu", value="absent")
    assert matches(tainted, template(1, tolerations=(everything,)))
    assert matches(tainted, template(1, tolerations=(by_key,)))
    assert not matches(tainted, template(1, tolerations=(other,)))
    assert matches(cordoned, template(1, tolerations=(everything,)))
    assert not matches(cordoned, template(1, tolerations=(by_key,)))


@pytest.mark.parametrize(
    ("key", "operator", "values", "expected"),
    [
        ("pool", "In", ("a100", "h100"), True),
        ("pool", "In", ("a100",), False),
        ("zone", "In", ("a",), False),
        ("pool", "NotIn", ("h100",), False),
        ("zone", "NotIn", ("a",), True),
        ("pool", "Exists", (), True),
        ("zone", "Exists", (), False),
        ("pool", "DoesNotExist", (), False),
        ("zone", "DoesNotExist", (), True),
        ("gpus", "Gt", ("7",), True),
        ("gpus", "Gt", ("8",), False),
        ("gpus", "Lt", ("9",), True),
        ("gpus", "Lt", ("8",), False),
        ("gpus", "Gt", ("seven",), False),
        ("pool", "Gt", ("1",), False),
        ("zone", "Lt", ("1",), False),
        ("gpus", "Gt", ("1", "2"), False),
        ("pool", "Near", ("h100",), False),
    ],
)
def test_requirements(key: str, operator: str, values: tuple[str, ...], expected: bool) -> None:
    asks = template(1, affinity=((SelectorRequirement(key, operator, values),),))
    assert matches(node("n", labels=LABELS), asks) is expected


def test_one_term_must_hold_as_a_whole() -> None:
    here = node("n-7", labels=LABELS)
    right, wrong = SelectorRequirement("pool", "In", ("h100",)), SelectorRequirement("gpus", "Lt", ("8",))
    assert not matches(here, template(1, affinity=((right, wrong),)))
    assert matches(here, template(1, affinity=((wrong,), (right,))))
    assert not matches(here, template(1, affinity=((),)))
    named = SelectorRequirement("metadata.name", "In", ("n-7",), of_field=True)
    assert matches(here, template(1, affinity=((named,),)))
    assert not matches(node("n-8"), template(1, affinity=((named,),)))
    assert matches(here, template(1, node_selector={"pool": "h100"}))
    assert not matches(here, template(1, node_selector={"pool": "h100", "zone": "a"}))


def test_room_is_what_is_allocatable_and_not_bound() -> None:
    n1, n2 = node("n1", 8), node("n2", allocatable={GPU: 8, "cpu": 4_000, "pods": 3})
    pods = [
        pod("a", 6, node="n1"),
        pod("over", 2, node="n1", ended_ms=T0 + 1),
        *(pod(f"small-{i}", 1, node="n2", asks=template(1, cpu=500)) for i in range(2)),
        pod("lost", 8, node="gone"),
        pod("waits", 8),
    ]
    nodes = FreeNodes(state(n1, n2, *pods))
    assert nodes.free(n1) == {GPU: 2, "cpu": 64_000, "pods": 109}
    assert nodes.free(n2) == {GPU: 6, "cpu": 3_000, "pods": 1}
    assert nodes.fits(template(6))
    assert not nodes.fits(template(7))
    assert not nodes.fits(template(3, cpu=3_001))
    assert nodes.fits(template(2, cpu=3_001))
    assert not nodes.fits(template(requests={"example.com/other": 1}))
    assert nodes.fits(template(requests={"example.com/other": 0}))


def test_no_room_for_another_pod() -> None:
    full = node("n", allocatable={GPU: 8, "pods": 1})
    assert not FreeNodes(state(full, pod("a", 0, node="n"))).fits(template(1))
    assert room(node("n", allocatable={GPU: 8}), {GPU: 8}, {GPU: 8})


@pytest.mark.parametrize(
    ("gpus", "bound", "expected"),
    [
        (8, 0, True),  # 6 advertised and 2 more would do
        (6, 0, True),  # would do without them: fits() says so
        (9, 0, False),
        (8, 1, False),  # 5 free now, 7 then
        (2, 8, False),  # 8 bound before 2 were lost: -2 free, 0 then
        (0, 0, False),  # wants none
    ],
)
def test_would_fit_if_all_gpus_were_advertised(gpus: int, bound: int, expected: bool) -> None:
    short = node("short", allocatable={GPU: 6, "cpu": 64_000}, expected={GPU: 8})
    held = [pod(f"p-{i}", 1, node="short") for i in range(bound)]
    found = FreeNodes(state(short, *held)).would_fit(template(gpus))
    assert (found is short) is expected


def test_would_fit_only_where_it_may_run() -> None:
    down = node("short", allocatable={GPU: 6}, expected={GPU: 8}, is_ready=False)
    tainted = node("tainted", allocatable={GPU: 6}, expected={GPU: 8}, taints=(GPU_TAINT,))
    whole = node("whole", 8)
    assert FreeNodes(state(down, tainted, whole)).would_fit(template(8)) is None


def _named(*values: str) -> tuple[SelectorRequirement, ...]:
    return (SelectorRequirement("pool", "In", values),)


@pytest.mark.parametrize(
    ("rules", "requests"),
    [
        ({"affinity": (_named("h100", *map(str, range(200))),)}, {}),
        ({"affinity": tuple(_named("h100") for _ in range(60))}, {}),
        ({"affinity": (_named("h100") * 101,)}, {}),
        ({"tolerations": (Toleration(exists=True),) * 101}, {}),
        ({}, {f"example.com/{i}": 0 for i in range(101)}),
    ],
)
def test_what_has_too_many_rules_is_not_evaluated(rules: dict[str, Any], requests: dict[str, int]) -> None:
    short = node("n", 7, expected={GPU: 8}, labels=LABELS)
    nodes = FreeNodes(state(short))
    small = template(requests={GPU: 8}, affinity=(_named("h100", *map(str, range(MOST_RULES - 4))),))
    assert (nodes.would_fit(small), nodes.fits(small)) == (short, False)
    large = template(requests={GPU: 8, **requests}, **rules)
    assert (nodes.would_fit(large), nodes.fits(large)) == (None, True)


def test_a_node_whose_gpus_slices_publish_lacks_only_what_these_do_not() -> None:
    """Labels of the node speak of the device plugin's resources."""
    dra = node("node-1", allocatable={"cpu": 64_000}, expected={GPU: 2, "nvidia.com/mig-1g.10gb": 1})
    catalog = ResourceCatalog()
    assert lacking(dra, NOT_PUBLISHED, catalog) == {GPU: 2, "nvidia.com/mig-1g.10gb": 1}
    units = {"gpu.nvidia.com": 1, "gpu.nvidia.com/mig-1g.10gb": 1}
    published = PublishedUnits(units, units)
    assert lacking(dra, published, catalog) == {"gpu.nvidia.com": 1}
    # With a device plugin, these are the same GPUs.
    plugin = node("node-1", allocatable={GPU: 1}, expected={GPU: 2})
    assert lacking(plugin, published, catalog) == {GPU: 1}
    slices = {
        "s": ResourceSlice(meta("s"), "gpu.nvidia.com", "node-1", 1, "node-1", (PublishedDevice("gpu-0"),))
    }
    now = replace(state(dra), slices=slices)
    assert FreeNodes(state(dra)).would_fit(template(1)) is dra
    assert FreeNodes(now).would_fit(template(1)) is None
