"""GPU units of dynamic resource allocation: published once per GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucost.cluster.objects.nodes import DeviceTaintRule, PublishedDevice, ResourceSlice, Taint
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.device_claims import published_units
from tests.cluster.builders import T0, meta

DRIVER = "gpu.nvidia.com"
MIG = f"{DRIVER}/mig-1g.10gb"


def gpu(index: int, *sets: str) -> PublishedDevice:
    return PublishedDevice(f"gpu-{index}", {"type": "gpu", "uuid": f"GPU-{index}"}, counter_sets=sets)


def mig(index: int, board: int, profile: str = "1g.10gb", *sets: str) -> PublishedDevice:
    attributes = {"type": "mig", "parentUUID": f"GPU-{board}", "profile": profile}
    return PublishedDevice(f"gpu-{board}-mig-{index}", attributes, counter_sets=sets)


def a_slice(
    *devices: PublishedDevice,
    name: str = "s",
    driver: str = DRIVER,
    pool: str = "node-1",
    generation: int = 1,
    node: str = "node-1",
) -> ResourceSlice:
    return ResourceSlice(meta(name, ""), driver, pool, generation, node, devices)


def state(*slices: ResourceSlice) -> ClusterState:
    return ClusterState(T0, slices={each.meta.uid: each for each in slices})


DYNAMIC = "gpu-0-counter-set"
PLAIN = "1g.10gb"


@pytest.mark.parametrize(
    ("devices", "units"),
    [
        ([gpu(0), gpu(1), gpu(2)], {DRIVER: 3}),
        (
            [gpu(0), mig(1, 1), mig(2, 1), mig(3, 1, "3G.40GB")],
            {DRIVER: 1, MIG: 2, f"{DRIVER}/mig-3g.40gb": 1},
        ),
        ([mig(1, 0, "1g.10gb+me")], {f"{MIG}.me": 1}),
        # Cut when claimed: one GPU as a whole and as two of its possible parts.
        ([gpu(0, DYNAMIC), mig(1, 0, PLAIN, DYNAMIC), mig(2, 0, PLAIN, DYNAMIC), gpu(1)], {DRIVER: 2}),
        # The same where the driver cannot hand out the whole GPU.
        ([mig(1, 0, PLAIN, DYNAMIC), mig(2, 0, PLAIN, DYNAMIC)], {DRIVER: 1}),
        # Two counter sets of each GPU: parts draw on both, or on one.
        (
            [
                gpu(0, "0-memory", "0-cores"),
                mig(1, 0, PLAIN, "0-memory", "0-cores"),
                mig(2, 0, PLAIN, "0-cores"),
                gpu(1, "1-memory", "1-cores"),
            ],
            {DRIVER: 2},
        ),
        ([mig(1, 0, PLAIN, "m"), mig(2, 0, PLAIN, "c"), mig(3, 0, PLAIN, "c", "m")], {DRIVER: 1}),
        # A counter set of several GPUs, as a driver of another vendor might publish.
        ([gpu(0, DYNAMIC), gpu(1, DYNAMIC)], {DRIVER: 2}),
        # A GPU that is cut and is published as a whole too.
        ([gpu(0), mig(1, 0), mig(2, 0)], {MIG: 2}),
        # A GPU for containers and, under another name, for virtual machines.
        ([gpu(0), PublishedDevice("gpu-vfio-0", {"type": "vfio", "uuid": "GPU-0"})], {DRIVER: 1}),
        ([PublishedDevice("a", {}), PublishedDevice("b", {})], {DRIVER: 2}),
    ],
)
def test_a_board_is_published_once(devices: list[PublishedDevice], units: dict[str, int]) -> None:
    assert published_units(state(a_slice(*devices))) == {"node-1": (units, units)}
    apart = [a_slice(device, name=device.name) for device in devices]
    assert published_units(state(*apart)) == {"node-1": (units, units)}


def test_only_the_newest_generation_of_each_pool_of_each_driver() -> None:
    slices = [
        a_slice(gpu(0), gpu(1), name="old", generation=3),
        a_slice(gpu(0), name="new", generation=4),
        a_slice(gpu(2), name="more", generation=4),
        a_slice(gpu(5), name="other", pool="node-2", node="node-2"),
        a_slice(gpu(6), name="amd", driver="gpu.amd.com"),
        a_slice(PublishedDevice("eth0"), name="net", driver="dra.net"),
        a_slice(gpu(7), name="fabric", pool="fabric", node=""),
    ]
    expected = {"node-1": {DRIVER: 2, "gpu.amd.com": 1}, "node-2": {DRIVER: 1}}
    for found in (published_units(state(*slices)), published_units(state(*slices[::-1]))):
        assert {node: units.there for node, units in found.items()} == expected
    assert published_units(state(*slices), drivers=["dra.net"])["node-1"].there == {"dra.net": 1}


@pytest.mark.parametrize(
    ("effect", "usable"),
    [("NoExecute", 1), ("NoSchedule", 1), ("None", 2), ("PreferNoSchedule", 2), ("SomethingNew", 2)],
)
def test_a_tainted_device_is_there_but_not_usable(effect: str, usable: int) -> None:
    """Unknown effects are as None (resource/v1 types.go, DeviceTaint)."""
    broken = replace(gpu(0), taints=(Taint("gpu.nvidia.com/xid", "79", effect),))
    found = published_units(state(a_slice(broken, gpu(1))))["node-1"]
    assert found == ({DRIVER: 2}, {DRIVER: usable})
    rule = DeviceTaintRule(meta("rule", ""), Taint("repair", "", effect), True, device="gpu-0")
    ruled = replace(state(a_slice(gpu(0), gpu(1))), taint_rules={"rule": rule})
    assert published_units(ruled)["node-1"] == found
    alone = published_units(state(a_slice(broken)))["node-1"]
    assert alone.usable == {DRIVER: usable - 1}
