"""GPU units of dynamic resource allocation: published once per board, claimed once per device."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.cluster.devices import COUNTER_SET, claimed_units, published_units
from gpucost.cluster.dra import Device, DeviceId, ResourceClaim, ResourceSlice
from gpucost.cluster.pods import Pod
from gpucost.cluster.state import ClusterState
from tests.cluster.builders import MINUTE, T0, meta, pod

DRIVER = "gpu.nvidia.com"
MIG = f"{DRIVER}/mig-1g.10gb"


def gpu(index: int, **more: str) -> Device:
    return Device(f"gpu-{index}", {"type": "gpu", "uuid": f"GPU-{index}", **more})


def mig(index: int, board: int, profile: str = "1g.10gb", **more: str) -> Device:
    attributes = {"type": "mig", "parentUUID": f"GPU-{board}", "profile": profile}
    return Device(f"gpu-{board}-mig-{index}", {**attributes, **more})


def a_slice(
    *devices: Device,
    name: str = "s",
    driver: str = DRIVER,
    pool: str = "node-1",
    generation: int = 1,
    node: str = "node-1",
) -> ResourceSlice:
    return ResourceSlice(meta(name, ""), driver, pool, generation, node, devices)


def claim(name: str, *users: str, devices: Iterable[str], driver: str = DRIVER) -> ResourceClaim:
    given = tuple(DeviceId(driver, "node-1", device) for device in devices)
    return ResourceClaim(meta(name), given, users)


def state(*objects: ResourceSlice | ResourceClaim | Pod) -> ClusterState:
    def of(kind: type) -> dict[str, Any]:
        return {each.meta.uid: each for each in objects if isinstance(each, kind)}

    return ClusterState(T0, pods=of(Pod), claims=of(ResourceClaim), slices=of(ResourceSlice))


DYNAMIC = {COUNTER_SET: "gpu-0-counter-set"}


@pytest.mark.parametrize(
    ("devices", "units"),
    [
        ([gpu(0), gpu(1), gpu(2)], {DRIVER: 3}),
        (
            [gpu(0), mig(1, 1), mig(2, 1), mig(3, 1, "3G.40GB")],
            {DRIVER: 1, MIG: 2, f"{DRIVER}/mig-3g.40gb": 1},
        ),
        ([mig(1, 0, "1g.10gb+me")], {f"{MIG}.me": 1}),
        # Cut when claimed: one board as a whole and as two of its possible parts.
        ([gpu(0, **DYNAMIC), mig(1, 0, **DYNAMIC), mig(2, 0, **DYNAMIC), gpu(1)], {DRIVER: 2}),
        # The same where the driver cannot hand out the whole board.
        ([mig(1, 0, **DYNAMIC), mig(2, 0, **DYNAMIC)], {DRIVER: 1}),
        # A counter set of several boards, as a driver of another vendor might publish.
        ([gpu(0, **DYNAMIC), gpu(1, **DYNAMIC)], {DRIVER: 2}),
        # A board that is cut and is published as a whole too.
        ([gpu(0), mig(1, 0), mig(2, 0)], {MIG: 2}),
        # A board for containers and, under another name, for virtual machines.
        ([gpu(0), Device("gpu-vfio-0", {"type": "vfio", "uuid": "GPU-0"})], {DRIVER: 1}),
        ([Device("a", {}), Device("b", {})], {DRIVER: 2}),
    ],
)
def test_a_board_is_published_once(devices: list[Device], units: dict[str, int]) -> None:
    assert published_units(state(a_slice(*devices))) == {"node-1": units}
    apart = [a_slice(device, name=device.name) for device in devices]
    assert published_units(state(*apart)) == {"node-1": units}


def test_only_the_newest_generation_of_each_pool_of_each_driver() -> None:
    slices = [
        a_slice(gpu(0), gpu(1), name="old", generation=3),
        a_slice(gpu(0), name="new", generation=4),
        a_slice(gpu(2), name="more", generation=4),
        a_slice(gpu(5), name="other", pool="node-2", node="node-2"),
        a_slice(gpu(6), name="amd", driver="gpu.amd.com"),
        a_slice(Device("eth0"), name="net", driver="dra.net"),
        a_slice(gpu(7), name="fabric", pool="fabric", node=""),
    ]
    expected = {"node-1": {DRIVER: 2, "gpu.amd.com": 1}, "node-2": {DRIVER: 1}}
    assert published_units(state(*slices)) == published_units(state(*slices[::-1])) == expected
    assert published_units(state(*slices), drivers=["dra.net"]) == {"node-1": {"dra.net": 1}}


def test_pods_hold_what_their_claims_were_given() -> None:
    found = state(
        a_slice(gpu(0), gpu(1), mig(1, 2), mig(2, 2)),
        pod("a", node="node-1"),
        pod("b", node="node-1"),
        claim("gpus", "a-uid", devices=["gpu-0", "gpu-1"]),
        claim("part", "a-uid", devices=["gpu-2-mig-1"]),
        claim("other", "b-uid", devices=["gpu-2-mig-2"]),
        claim("nic", "b-uid", devices=["eth0"], driver="dra.net"),
        claim("free", devices=["gpu-3"]),
        claim("gone", "nobody", devices=["gpu-4"]),
    )
    assert claimed_units(found) == {"a-uid": {DRIVER: 2, MIG: 1}, "b-uid": {MIG: 1}}


def test_a_device_that_no_slice_names_is_a_whole_gpu() -> None:
    found = state(pod("a", node="node-1"), claim("c", "a-uid", devices=["gpu-9"]))
    assert claimed_units(found) == {"a-uid": {DRIVER: 1}}


WAITING = pod("waiting")
EARLY = pod("z-early", node="node-1", bound_ms=T0)
LATE = pod("a-late", node="node-1", bound_ms=T0 + MINUTE)
ENDED = pod("ended", node="node-1", bound_ms=T0 - MINUTE, ended_ms=T0)
TWIN = pod("b-late", node="node-1", bound_ms=T0 + MINUTE)


@pytest.mark.parametrize(
    ("users", "holder"),
    [
        ([LATE, EARLY], EARLY),
        ([WAITING, LATE], LATE),
        ([ENDED, LATE], LATE),
        ([TWIN, LATE], LATE),
        ([ENDED], ENDED),
    ],
)
def test_a_shared_device_is_counted_for_one_pod(users: list[Pod], holder: Pod) -> None:
    uids = [each.meta.uid for each in users]
    expected = {holder.meta.uid: {DRIVER: 1}}
    for order in permutations(uids):
        through_one = claim("one", *order, devices=["gpu-0"])
        through_several = [claim(f"of-{uid}", uid, devices=["gpu-0"]) for uid in order]
        assert claimed_units(state(a_slice(gpu(0)), *users, through_one)) == expected
        assert claimed_units(state(a_slice(gpu(0)), *users, *through_several)) == expected


@given(st.lists(st.tuples(st.sets(st.integers(0, 3), max_size=3), st.sets(st.integers(0, 5))), max_size=5))
def test_claimed_units_add_up_to_the_devices_in_use(claims: list[tuple[set[int], set[int]]]) -> None:
    pods = [pod(f"p{index}", node="node-1", bound_ms=T0 + index) for index in range(4)]
    given_out = [
        claim(f"c{index}", *(f"p{user}-uid" for user in users), devices=[f"gpu-{each}" for each in devices])
        for index, (users, devices) in enumerate(claims)
    ]
    units = claimed_units(state(a_slice(*map(gpu, range(6))), *pods, *given_out))
    in_use = {device for users, devices in claims if users for device in devices}
    assert sum(each[DRIVER] for each in units.values()) == len(in_use)
