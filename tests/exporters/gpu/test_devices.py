"""From device ids to exact shares: every form of an id, and shares that never exceed the device."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost_gpu_exporter.holders import (
    NodeHoldings,
    ShareNote,
    ShareNoteKind,
    resolve,
)
from gpucost_gpu_exporter.model.holdings import (
    DeviceClaim,
    DeviceHolding,
    DeviceKey,
    DraDevice,
    GpuDevice,
    GpuTopology,
    KubeletState,
    MigInstance,
    PodRef,
)

GPU = "nvidia.com/gpu"
NODE = GpuTopology(
    {
        "GPU-a": GpuDevice(0),
        "GPU-b": GpuDevice(1),
        "GPU-m": GpuDevice(
            2,
            {
                1: MigInstance(3, {"MIG-m1": 3}),
                2: MigInstance(3, {"MIG-m2x": 1, "MIG-m2y": 2}),
                5: MigInstance(1, {"MIG-GPU-m/5/0": 1}),
                6: MigInstance(2, {"MIG-m6x": 1, "MIG-m6y": 1}),
            },
        ),
    }
)
DRA = {
    "gpu.nvidia.com/n1/gpu-0": DraDevice("GPU-a", "gpu"),
    "gpu.nvidia.com/n1/gpu-2-mig-1": DraDevice("MIG-m1", "mig"),
    "gpu.nvidia.com/n1/gpu-9": DraDevice("GPU-elsewhere", "gpu"),
}
UIDS = {("research", name): f"uid-{name}" for name in "abcdefgh"}


def claim(pod: str, device_id: str, container: str = "main", resource: str = GPU) -> DeviceClaim:
    is_dra = device_id.startswith("gpu.nvidia.com/")
    resource = "gpu.nvidia.com" if is_dra else resource
    return DeviceClaim("research", pod, container, resource, device_id, is_dra)


def resolved(
    *claims: DeviceClaim,
    allocatable: Iterable[str] | None = (),
    uids: Mapping[tuple[str, str], str] | None = None,
    finished: Iterable[str] = (),
    topology: GpuTopology = NODE,
    remembered: Mapping[str, int] | None = None,
) -> NodeHoldings:
    """The claims, with every pod known to the watch as ``uid-<name>``, if not said otherwise."""
    state = KubeletState(claims, None if allocatable is None else {GPU: tuple(allocatable)})
    known, ended = UIDS if uids is None else uids, set(finished)
    return resolve(
        state,
        topology,
        lambda namespace, name: known.get((namespace, name)),
        lambda _namespace, name: name in ended,
        DRA,
        remembered,
    )


def shares(found: NodeHoldings) -> dict[tuple[str, str, str], Fraction]:
    """(pod, GPU, GPU instance) -> share."""
    return {(held.pod.name, *held.device): held.share for held in found.holdings}


@pytest.mark.parametrize(
    ("device_id", "board", "instance", "share"),
    [
        ("GPU-a", "GPU-a", "", "1"),
        ("MIG-m1", "GPU-m", "1", "1"),
        ("MIG-m2x", "GPU-m", "2", "1/3"),
        ("MIG-m2y", "GPU-m", "2", "2/3"),
        ("MIG-GPU-m/5/0", "GPU-m", "5", "1"),
        ("MIG-GPU-m/1/0", "GPU-m", "1", "1"),
        ("MIG-GPU-m/6/1", "GPU-m", "6", "1/2"),
        ("GPU-a::1", "GPU-a", "", "1/4"),
        ("MIG-m1::0", "GPU-m", "1", "1/4"),
        ("MIG-m2y::3", "GPU-m", "2", "1/6"),
        ("MIG-GPU-m/5/0::2", "GPU-m", "5", "1/4"),
        ("nvidia1", "GPU-b", "", "1"),
        ("nvidia2/gi1", "GPU-m", "1", "1"),
        ("nvidia1/vgpu1", "GPU-b", "", "1/4"),
        ("nvidia2/gi2/vgpu0", "GPU-m", "2", "1/4"),
        ("gpu.nvidia.com/n1/gpu-0", "GPU-a", "", "1"),
        ("gpu.nvidia.com/n1/gpu-2-mig-1", "GPU-m", "1", "1"),
    ],
)
def test_every_form_of_a_device_id(device_id: str, board: str, instance: str, share: str) -> None:
    bases = ["GPU-a", "MIG-m1", "MIG-m2y", "MIG-GPU-m/5/0"]
    replicas = [f"{base}::{index}" for base in bases for index in range(4)]
    replicas += [f"{base}/vgpu{index}" for base in ("nvidia1", "nvidia2/gi2") for index in range(4)]
    asked = claim("a", device_id)
    found = resolved(asked, allocatable=replicas)
    pod = PodRef("research", "a", "uid-a")
    device = DeviceKey(board, instance)
    assert found.holdings == (DeviceHolding(pod, device, Fraction(share), asked.resource, ("main",)),)
    assert found.unresolved == ()
    assert found.notes == ()


@pytest.mark.parametrize(
    "device_id",
    [
        "GPU-gone",
        "GPU-gone::0",
        "MIG-gone",
        "MIG-GPU-m/2/0",  # two sizes of compute instance: which is number 0 cannot be said
        "MIG-GPU-m/9/0",
        "MIG-GPU-gone/1/0",
        "nvidia7",
        "nvidia7/gi1",
        "nvidia2/gi9",
        "nvidia1/gi1",
        "GPU-m",  # cut into instances: the claim is from before
        "nvidia2",
        "nvidia",
        "nvidiactl",
        "",
        "::1",
        "gpu.nvidia.com/n1/gpu-7",
        "gpu.nvidia.com/n1/gpu-9",
        "GPU-a-0",
        "\N{PILE OF POO}\n",
    ],
)
def test_an_id_that_nothing_answers_to_is_kept_apart(device_id: str) -> None:
    asked = claim("a", device_id)
    found = resolved(asked, claim("b", "GPU-b"))
    assert found.unresolved == (asked,)
    assert shares(found) == {("b", "GPU-b", ""): 1}


@pytest.mark.trap(12)
def test_the_key_is_the_uuid_not_the_index() -> None:
    """After a restart the GPUs come in another order and with other minor numbers."""
    claims = [claim("a", "GPU-a"), claim("b", "MIG-m2x")]
    boards = [
        (uuid, replace(board, minor=9 - index)) for index, (uuid, board) in enumerate(NODE.boards.items())
    ]
    shuffled = GpuTopology(dict(reversed(boards)))
    assert resolved(*claims, topology=shuffled).holdings == resolved(*claims).holdings
    assert shares(resolved(claim("a", "nvidia9"), topology=shuffled)) == {("a", "GPU-a", ""): 1}


@pytest.mark.trap(12)
@pytest.mark.fault(7)
def test_a_mig_uuid_used_again_is_where_it_is_now() -> None:
    old, new = claim("a", "MIG-m1"), claim("b", "MIG-new")
    recut = GpuTopology(
        {"GPU-m": GpuDevice(2, {4: MigInstance(4, {"MIG-m1": 4}), 7: MigInstance(3, {"MIG-new": 3})})}
    )
    assert shares(resolved(old)) == {("a", "GPU-m", "1"): 1}
    assert shares(resolved(old, new, topology=recut)) == {("a", "GPU-m", "4"): 1, ("b", "GPU-m", "7"): 1}


@pytest.mark.fault(7)
def test_a_board_cut_anew_while_pods_are_still_listed() -> None:
    """The claims on slices that are gone count for nothing; those on the new ones fill the GPU."""
    recut = GpuTopology({"GPU-m": GpuDevice(2, {n: MigInstance(1, {f"MIG-n{n}": 1}) for n in range(7)})})
    old = [claim("a", "MIG-m1"), claim("b", "MIG-m2x")]
    new = [claim("c", f"MIG-n{n}") for n in range(7)]
    found = resolved(*old, *new, topology=recut)
    assert found.unresolved == tuple(old)
    assert sum(held.share * recut.boards["GPU-m"].instances[int(held.device[1])].slices
               for held in found.holdings) == 7  # fmt: skip


@pytest.mark.trap(15)
def test_a_name_used_again_is_the_pod_that_has_it_now() -> None:
    before = resolved(claim("a", "GPU-a"), uids={("research", "a"): "first"})
    after = resolved(claim("a", "GPU-a"), uids={("research", "a"): "second"})
    assert [held.pod.uid for held in (*before.holdings, *after.holdings)] == ["first", "second"]


def test_a_pod_nobody_knows_holds_too() -> None:
    assert resolved(claim("a", "GPU-a"), uids={}).holdings[0].pod == PodRef("research", "a", "")


@pytest.mark.trap(18)
def test_a_finished_pod_holds_nothing() -> None:
    both = claim("a", "GPU-a"), claim("b", "GPU-b")
    assert shares(resolved(*both, finished=["a"])) == {("b", "GPU-b", ""): 1}


@pytest.mark.trap(18)
def test_a_finished_pod_listed_beside_its_successor() -> None:
    found = resolved(claim("a", "GPU-a"), claim("b", "GPU-a"), finished=["a"])
    assert shares(found) == {("b", "GPU-a", ""): 1}
    assert found.notes == ()


@pytest.mark.trap(18)
def test_a_pod_the_watch_knows_comes_before_one_it_does_not() -> None:
    found = resolved(claim("a", "GPU-a"), claim("b", "GPU-a"), uids={("research", "b"): "uid-b"})
    assert shares(found) == {("b", "GPU-a", ""): 1}
    assert found.notes == (ShareNote(ShareNoteKind.DISPUTED, "GPU-a"),)


@pytest.mark.trap(18)
@pytest.mark.parametrize("uids", [{}, UIDS])
def test_pods_that_nothing_tells_apart_share_equally(uids: dict[tuple[str, str], str]) -> None:
    found = resolved(claim("a", "GPU-a"), claim("b", "GPU-a"), claim("c", "GPU-a"), uids=uids)
    assert set(shares(found).values()) == {Fraction(1, 3)}
    assert found.notes == (ShareNote(ShareNoteKind.DISPUTED, "GPU-a"),)


@pytest.mark.trap(19)
def test_a_pod_that_has_not_started_holds_its_device() -> None:
    """The kubelet gives out devices at admission: only the first of the containers is listed yet."""
    assert shares(resolved(claim("a", "GPU-a", container="fetch-model"))) == {("a", "GPU-a", ""): 1}


@pytest.mark.trap(28)
def test_containers_of_a_pod_hold_a_device_once() -> None:
    found = resolved(*(claim("a", "GPU-a", container) for container in ("init", "main", "sidecar", "main")))
    pod = PodRef("research", "a", "uid-a")
    containers = ("init", "main", "sidecar")
    assert found.holdings == (DeviceHolding(pod, DeviceKey("GPU-a"), Fraction(1), GPU, containers),)
    replica = resolved(
        claim("a", "GPU-a::0", "init"), claim("a", "GPU-a::0"), allocatable=["GPU-a::0", "GPU-a::1"]
    )
    assert shares(replica) == {("a", "GPU-a", ""): Fraction(1, 2)}


@pytest.mark.trap(23)
def test_two_replicas_in_one_pod_are_two_shares_of_one_board() -> None:
    found = resolved(
        claim("a", "GPU-a::0"),
        claim("a", "GPU-a::3", "second"),
        claim("b", "GPU-a::1"),
        allocatable=[f"GPU-a::{index}" for index in range(4)],
    )
    assert shares(found) == {("a", "GPU-a", ""): Fraction(1, 2), ("b", "GPU-a", ""): Fraction(1, 4)}
    assert found.holdings[0].containers == ("main", "second")
    assert found.replicas == {"GPU-a": 4}


def test_pods_of_one_resource_claim_share_its_device_equally() -> None:
    device_id = "gpu.nvidia.com/n1/gpu-0"
    found = resolved(*(claim(pod, device_id) for pod in "abc"), claim("a", device_id, "sidecar"))
    assert shares(found) == {(pod, "GPU-a", ""): Fraction(1, 3) for pod in "abc"}
    assert found.notes == ()


def test_a_device_given_out_twice_over_is_shared_in_proportion() -> None:
    """A whole GPU beside replicas of it: the device plugin was configured anew."""
    replicas = [f"GPU-a::{index}" for index in range(2)]
    found = resolved(claim("a", "GPU-a"), claim("b", "GPU-a::1"), allocatable=replicas)
    assert shares(found) == {("a", "GPU-a", ""): Fraction(2, 3), ("b", "GPU-a", ""): Fraction(1, 3)}
    assert found.notes == (ShareNote(ShareNoteKind.OVERSUBSCRIBED, "GPU-a"),)


def test_an_oversubscribed_instance_is_named() -> None:
    found = resolved(claim("a", "MIG-m1"), claim("b", "gpu.nvidia.com/n1/gpu-2-mig-1"))
    assert found.notes == (ShareNote(ShareNoteKind.OVERSUBSCRIBED, "GPU-m/1"),)


@pytest.mark.parametrize("allocatable", [None, ("GPU-b",)])
def test_replicas_the_kubelet_does_not_list_are_guessed(allocatable: tuple[str, ...] | None) -> None:
    found = resolved(claim("a", "GPU-a::0"), claim("b", "GPU-a::2"), allocatable=allocatable)
    assert shares(found) == {("a", "GPU-a", ""): Fraction(1, 3), ("b", "GPU-a", ""): Fraction(1, 3)}
    assert found.notes == (ShareNote(ShareNoteKind.REPLICAS_GUESSED, "GPU-a"),)


def test_replicas_that_were_known_are_remembered() -> None:
    """A GPU that falls ill leaves the kubelet's list; the shares of its holders stay."""
    known = resolved(claim("a", "GPU-a::0"), allocatable=[f"GPU-a::{index}" for index in range(4)])
    ill = resolved(claim("a", "GPU-a::0"), allocatable=[], remembered=known.replicas)
    assert shares(ill) == shares(known) == {("a", "GPU-a", ""): Fraction(1, 4)}


def test_a_replica_held_from_an_earlier_cut_counts() -> None:
    found = resolved(claim("a", "GPU-a::7"), allocatable=["GPU-a::0", "GPU-a::1"])
    assert shares(found) == {("a", "GPU-a", ""): Fraction(1, 3)}


IDS = st.sampled_from(
    [
        *("GPU-a", "GPU-b", "GPU-m", "MIG-m1", "MIG-m2x", "MIG-m2y", "MIG-GPU-m/5/0", "MIG-GPU-m/6/1"),
        *("nvidia0", "nvidia2/gi1", "nvidia0/vgpu1", "nvidia2/gi2/vgpu1", "GPU-gone", "MIG-gone::1"),
        *(f"GPU-a::{index}" for index in range(5)),
        *(f"MIG-m2x::{index}" for index in range(3)),
        *DRA,
    ]
)
PODS = st.sampled_from("abcdef")
CLAIMS = st.lists(st.builds(claim, PODS, IDS, st.sampled_from(["init", "main"])), max_size=20)


@given(
    claims=CLAIMS,
    allocatable=st.none() | st.sets(IDS),
    known=st.sets(PODS),
    ended=st.sets(PODS, max_size=3),
    remembered=st.dictionaries(st.sampled_from(["GPU-a", "MIG-m2x", "GPU-b"]), st.integers(1, 8)),
    order=st.randoms(use_true_random=False),
)
def test_shares_of_a_device_never_exceed_it(
    claims: list[DeviceClaim],
    allocatable: set[str] | None,
    known: set[str],
    ended: set[str],
    remembered: dict[str, int],
    order: random.Random,
) -> None:
    uids = {("research", name): f"uid-{name}" for name in known}

    def look(*asked: DeviceClaim) -> NodeHoldings:
        return resolved(*asked, allocatable=allocatable, uids=uids, finished=ended, remembered=remembered)

    found = look(*claims)
    totals: dict[DeviceKey, Fraction] = defaultdict(Fraction)
    for held in found.holdings:
        assert isinstance(held.share, Fraction)
        assert held.share > 0
        assert held.pod.name not in ended
        totals[held.device] += held.share
    assert all(total <= 1 for total in totals.values())
    assert len({(held.pod, held.device) for held in found.holdings}) == len(found.holdings)
    shuffled = list(claims)
    order.shuffle(shuffled)
    assert shares(look(*shuffled)) == shares(found)


@given(st.lists(st.text(max_size=30), max_size=6))
def test_any_text_may_be_a_device_id(ids: list[str]) -> None:
    found = resolved(*(claim("a", device_id) for device_id in ids), allocatable=ids)
    assert len(found.unresolved) == len(ids)
