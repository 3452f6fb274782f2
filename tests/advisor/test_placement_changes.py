"""Placement: what preemption, an autoscaler or a repair would change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucost.advisor.model.settings import AutoscaledPool
from gpucost.advisor.placement.gang_placement import place
from gpucost.advisor.placement.node_pools import silent_about, with_pools
from gpucost.advisor.placement.preemption import freed_capacity
from gpucost.advisor.placement.repaired_nodes import NodeRepair, repair_plan
from gpucost.cluster.objects.nodes import Taint
from gpucost.cluster.objects.pods import Toleration
from gpucost.domain.errors import InputError
from tests.advisor.placements import HOST, LEVELS, RACK, rooms_of, wants
from tests.cluster.builders import GPU, node, pod, template

TAINT = Taint(GPU, "present", "NoSchedule")


def test_freed_but_useless() -> None:
    names = [f"n{at}" for at in range(8)]
    pods = [
        pod(f"{role}-{name}", gpus, node=name) for name in names for role, gpus in (("keep", 7), ("go", 1))
    ]
    rooms = rooms_of(*map(node, names), *pods)
    victims = [each.meta.uid for each in pods if each.meta.name.startswith("go")]
    gang = [wants(1, 8)]
    found = freed_capacity(rooms, rooms.without(victims), gang)
    assert found.units == {GPU: 8}
    assert found.is_useless
    assert found.by_node == {name: {GPU: 1} for name in names}
    assert [(use.before, use.after) for use in found.uses] == [(0, 0)]
    assert found.says(GPU, gang) == (
        "preemption frees 8 nvidia.com/gpu, but on 8 nodes with at most 1 free each "
        "(n0, n1, n2, n3, n4 and 3 more): a pod of main needs 8 on one node"
    )
    small = [wants(8, 1)]
    useful = freed_capacity(rooms, rooms.without(victims), small)
    assert not useful.is_useless
    assert useful.says(GPU, small) == ""
    assert useful.uses[0].after == 8
    more = [wants(9, 1)]
    assert (
        freed_capacity(rooms, rooms.without(victims), more)
        .says(GPU, more)
        .endswith("of 9 pods of main 8 would find room")
    )


POOL = AutoscaledPool(
    "burst", {"pool": "burst"}, {GPU: "8", "cpu": "64", "pods": "110"}, 3, 5.0, (f"{GPU}=present:NoSchedule",)
)
TOLERANT = template(8, tolerations=(Toleration(GPU, exists=True),))


def test_nodes_that_an_autoscaler_adds() -> None:
    rooms = rooms_of(node("a"), node("b", labels={"pool": "burst"}, taints=(TAINT,)))
    gang = [wants(4, asks=TOLERANT)]
    assert not place(rooms, gang).fits
    found = place(with_pools(rooms, [POOL], gang), gang)
    assert found.fits
    assert found.new_nodes == {"burst": 2}
    assert found.minutes == 5.0
    assert found.nodes["main"] == {"a": 1, "b": 1, "burst/new-1": 1, "burst/new-2": 1}
    more = [wants(5, asks=TOLERANT)]
    assert not place(with_pools(rooms, [POOL], more), more).fits
    intolerant = [wants(3)]
    assert not place(with_pools(rooms, [POOL], intolerant), intolerant).fits
    now = place(with_pools(rooms, [POOL], gang), [wants(2, asks=TOLERANT)])
    assert now.new_nodes == {}
    assert now.minutes == 0


def test_pools_that_make_no_sense_or_are_silent() -> None:
    rooms, gang = rooms_of(node("a")), [wants(2, topology={"required": RACK}, levels=LEVELS)]
    assert silent_about([POOL], gang) == (f"pool burst does not say which {RACK} its new nodes will have",)
    assert silent_about([POOL], [wants(2)]) == ()
    with pytest.raises(InputError, match=r"pools\.burst\.taints"):
        with_pools(rooms, [replace(POOL, taints=("gpu",))], gang)
    with pytest.raises(InputError, match=r"pools\.burst\.allocatable\.nvidia"):
        with_pools(rooms, [replace(POOL, allocatable={GPU: "many"})], gang)
    assert not place(with_pools(rooms, [replace(POOL, most=0)], gang), [wants(2)]).fits


def test_a_node_that_lost_its_gpus() -> None:
    lost = node("n7", allocatable={"cpu": 64_000, "pods": 110}, expected={GPU: 8})
    down = node("n8", is_ready=False, taints=(Taint("node.kubernetes.io/not-ready", "", "NoSchedule"),))
    rooms = rooms_of(node("a"), lost, down, node("n9", is_cordoned=True))
    found = repair_plan(rooms, [wants(2)])
    assert found is not None
    assert found.nodes == {"n7": NodeRepair.DEVICES}
    assert found.says() == f"would fit if node n7 advertised its GPUs (8 {GPU} missing)"
    found = repair_plan(rooms, [wants(3)])
    assert found is not None
    assert found.nodes == {"n7": NodeRepair.DEVICES, "n8": NodeRepair.READY}
    found = repair_plan(rooms, [wants(4)])
    assert found is not None
    assert found.nodes["n9"] is NodeRepair.UNCORDON
    assert found.placement.new_nodes == {}
    assert repair_plan(rooms, [wants(5)]) is None


def test_only_repairs_that_are_needed() -> None:
    rooms = rooms_of(node("a", is_ready=False), node("b", 4, expected={GPU: 8}))
    found = repair_plan(rooms, [wants(1, 6)])
    assert found is not None
    assert found.nodes == {"b": NodeRepair.DEVICES}
    found = repair_plan(rooms, [wants(1, 8, asks=template(8, node_selector={HOST: "a"}))])
    assert found is not None
    assert found.nodes == {"a": NodeRepair.READY}


def test_new_nodes_are_the_last_resort() -> None:
    rooms, gang = rooms_of(node("a", 4), node("b", 4)), [wants(2, 4)]
    pools = [replace(POOL, taints=())]
    assert place(with_pools(rooms, pools, gang), gang).new_nodes == {}
    more = [wants(4, 4)]
    found = place(with_pools(rooms, pools, more), more)
    assert found.nodes == {"main": {"a": 1, "b": 1, "burst/new-1": 2}}


def test_what_a_repaired_node_has_counts_once() -> None:
    rooms = rooms_of(node("b", 4, expected={GPU: 8}))
    assert repair_plan(rooms, [wants(2, 4)]) is not None
    assert repair_plan(rooms, [wants(3, 4)]) is None
