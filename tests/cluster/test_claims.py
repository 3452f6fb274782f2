"""Devices of claims: counted for one pod at a time, divided among all that use them; what was known of them
stays true."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.cluster.objects.metadata import Resources
from gpucost.cluster.objects.nodes import (
    DeviceId,
    DeviceRequest,
    DeviceShare,
    PublishedDevice,
    ResourceClaim,
    ResourceSlice,
)
from gpucost.cluster.objects.pods import Pod, PodPhase
from gpucost.cluster.objects.state import ClusterState, CollectionStatus
from gpucost.cluster.objects.volcano import GroupKind, PodGroup
from gpucost.cluster.views.device_claims import (
    NO_HISTORY,
    ClaimHistory,
    ClaimHoldings,
    DeviceUse,
    DeviceUseKey,
    held_devices,
)
from gpucost.cluster.views.gpu_units import GpuUnits
from gpucost.cluster.views.problems import StateProblemCode, problems
from gpucost.cluster.views.sharing_rules import SharingRules
from gpucost.domain.gpu import ResourceCatalog, ShareMethod
from tests.cluster.builders import GPU, MINUTE, T0, meta, node, pod, template
from tests.cluster.test_devices import DRIVER, MIG, a_slice, gpu, mig

CATALOG = ResourceCatalog()
ONE_GPU = (DeviceRequest(DRIVER, 1),)


def claim(
    name: str,
    *users: str,
    devices: Iterable[str] = (),
    driver: str = DRIVER,
    requests: tuple[DeviceRequest, ...] = (),
) -> ResourceClaim:
    given_out = tuple(DeviceId(driver, "node-1", device) for device in devices)
    return ResourceClaim(meta(name), given_out, users, requests=requests)


def state(*objects: ResourceSlice | ResourceClaim | Pod) -> ClusterState:
    def of(kind: type) -> dict[str, Any]:
        return {each.meta.uid: each for each in objects if isinstance(each, kind)}

    return ClusterState(T0, pods=of(Pod), claims=of(ResourceClaim), slices=of(ResourceSlice))


def units_of(
    found: ClusterState, ended: Sequence[Pod] = (), history: ClaimHistory = NO_HISTORY
) -> dict[str, Resources]:
    """Those of every pod that has some, by its uid."""
    units = GpuUnits(found, CATALOG, ended, history)
    pods = {**found.pods, **{each.meta.uid: each for each in ended}}
    return {uid: held for uid, each in pods.items() if (held := units.of(each))}


def starts(held: ClaimHoldings) -> dict[str, dict[str, int]]:
    """Minutes after T0 from when on pods hold devices, by uid and name of the device."""
    return {
        uid: {device.device: (share.start_ms - T0) // MINUTE for device, share in shares.items()}
        for uid, shares in held.shares.items()
    }


def bound(name: str, minute: int, end: int | None = None, **more: Any) -> Pod:
    """A pod that is bound ``minute`` minutes after T0, and ends."""
    ended_ms = None if end is None else T0 + end * MINUTE
    return pod(name, node="node-1", bound_ms=T0 + minute * MINUTE, ended_ms=ended_ms, **more)


def test_pods_hold_what_their_claims_were_given() -> None:
    found = state(
        a_slice(gpu(0), gpu(1), mig(1, 2), mig(2, 2)),
        bound("a", 0),
        bound("b", 0),
        claim("gpus", "a-uid", devices=["gpu-0", "gpu-1"]),
        claim("part", "a-uid", devices=["gpu-2-mig-1"]),
        claim("other", "b-uid", devices=["gpu-2-mig-2"]),
        claim("nic", "b-uid", devices=["eth0"], driver="dra.net"),
        claim("free", devices=["gpu-3"]),
        claim("gone", "nobody", devices=["gpu-4"]),
        # A device that no slice names is a whole GPU.
        claim("lost", "b-uid", devices=["gpu-9"]),
    )
    assert units_of(found) == {"a-uid": {DRIVER: 2, MIG: 1}, "b-uid": {MIG: 1, DRIVER: 1}}


# Shared devices


@pytest.mark.parametrize(
    ("users", "expected"),
    [
        ([bound("late", 1), bound("z-early", 0)], {"z-early-uid": 0}),
        ([pod("waits"), bound("late", 1)], {"late-uid": 1}),
        ([bound("b", 1), bound("a", 1)], {"a-uid": 1}),
        # From when the one before has ended, and of those that wait for it the first.
        ([bound("a", 0, 60), bound("b", 1), bound("c", 2)], {"a-uid": 0, "b-uid": 60}),
        # One that was gone by then never had it.
        ([bound("a", 0, 60), bound("b", 1, 50), bound("c", 2, 70)], {"a-uid": 0, "c-uid": 60}),
        ([bound("a", 0, 60), bound("b", 90)], {"a-uid": 0, "b-uid": 90}),
        # Refused by its node.
        ([bound("a", 1, 1), bound("b", 0)], {"b-uid": 0}),
    ],
)
def test_a_shared_device_is_held_by_one_pod_at_a_time(users: list[Pod], expected: Mapping[str, int]) -> None:
    uids = [each.meta.uid for each in users]
    shared = {uid: {"gpu-0": minute} for uid, minute in expected.items()}
    for order in permutations(uids):
        through_one = claim("one", *order, devices=["gpu-0"])
        through_several = [claim(f"of-{uid}", uid, devices=["gpu-0"]) for uid in order]
        assert starts(held_devices(state(a_slice(gpu(0)), *users, through_one), CATALOG)) == shared
        assert starts(held_devices(state(a_slice(gpu(0)), *users, *through_several), CATALOG)) == shared


def test_the_next_pod_holds_from_the_end_of_the_first_after_a_restart_too() -> None:
    """The claim is taken from a pod that has ended; the pod still names it."""
    a, b = bound("a", 0, 60, claims=("ca",)), bound("b", 1, claims=("ca",))
    expected = {"a-uid": {"gpu-0": 0}, "b-uid": {"gpu-0": 60}}
    left = claim("ca", "b-uid", devices=["gpu-0"], requests=ONE_GPU)
    assert starts(held_devices(state(a, b, left), CATALOG)) == expected


def test_every_user_of_a_device_holds_it_but_it_is_taken_from_the_node_once() -> None:
    a, b = bound("a", 0), bound("b", 1)
    own = claim("own", "b-uid", devices=["gpu-1"])
    units = GpuUnits(state(a, b, own, claim("ca", "a-uid", "b-uid", devices=["gpu-0"])), CATALOG)
    assert [units.of(each) for each in (a, b)] == [{DRIVER: 1}, {DRIVER: 1}]
    assert [units.held(each) for each in (a, b)] == [{DRIVER: 1}, {DRIVER: 2}]
    assert units.devices.divided == {device("gpu-0")}


def device(name: str) -> DeviceId:
    return DeviceId(DRIVER, "node-1", name)


GI = 2**30
MEMORY = PublishedDevice("gpu-0", {"type": "gpu"}, {"memory": 80 * GI, "cores": 100})
CORES = PublishedDevice("gpu-0", {"type": "gpu"}, {"cores": 100, "engines": 7})


def shared(name: str, *users: str, share_id: str = "", **consumed: int) -> ResourceClaim:
    share = DeviceShare(device("gpu-0"), share_id or f"{name}-share", consumed)
    return replace(claim(name, *users, devices=["gpu-0"]), shares=(share,))


@pytest.mark.parametrize(
    ("published", "consumed", "use"),
    [
        (MEMORY, {"memory": 10 * GI, "cores": 50}, (ShareMethod.CAPACITY, Fraction(1, 8), "memory")),
        (MEMORY, {"cores": 50}, (ShareMethod.CAPACITY, Fraction(1, 2), "cores")),
        (CORES, {"cores": 25, "engines": 0}, (ShareMethod.CAPACITY, Fraction(1, 4), "cores")),
        (MEMORY, {"memory": 0, "cores": 0}, (ShareMethod.TIME, 1, "")),
        (MEMORY, {}, (ShareMethod.TIME, 1, "")),
        # More than there is, of something else, of two things neither of which is memory; of no known device.
        (MEMORY, {"memory": 81 * GI}, (ShareMethod.UNKNOWN, 1, "")),
        (MEMORY, {"memory": 81 * GI, "cores": 1}, (ShareMethod.UNKNOWN, 1, "")),
        (MEMORY, {"engines": 1}, (ShareMethod.UNKNOWN, 1, "")),
        (CORES, {"cores": 25, "engines": 1}, (ShareMethod.UNKNOWN, 1, "")),
        (None, {"memory": 10 * GI}, (ShareMethod.UNKNOWN, 1, "")),
    ],
)
def test_the_part_of_a_share(published: PublishedDevice | None, consumed: Any, use: tuple[Any, ...]) -> None:
    found = state(
        *([a_slice(published)] if published else []), bound("a", 0), shared("ca", "a-uid", **consumed)
    )
    held = held_devices(found, CATALOG)
    key = DeviceUseKey(device("gpu-0"), "ca-uid")
    assert held.uses == {"a-uid": {key: DeviceUse(DRIVER, *use, is_named=published is not None)}}
    assert held.divided == {device("gpu-0")}
    # What was known of it stays so when its slice is gone; what was not is known once it is there.
    history = ClaimHistory({}, held.shares, held.uses)
    for later in (state(a_slice(MEMORY), bound("a", 0)), state(bound("a", 0))):
        assert held_devices(later, CATALOG, history=history).uses == held.uses


@pytest.mark.parametrize(
    ("dimension", "use"),
    [
        ("cores", (ShareMethod.CAPACITY, Fraction(1, 2), "cores")),
        ("memory", (ShareMethod.CAPACITY, Fraction(1, 8), "memory")),
        # It consumes none of it, or the device has none.
        ("engines", (ShareMethod.UNKNOWN, 1, "")),
    ],
)
def test_the_capacity_that_an_administrator_names_decides(dimension: str, use: tuple[Any, ...]) -> None:
    found = state(a_slice(MEMORY), bound("a", 0), shared("ca", "a-uid", memory=10 * GI, cores=50))
    rules = SharingRules({DRIVER: dimension})
    [held] = GpuUnits(found, CATALOG, sharing=rules).devices.uses["a-uid"].values()
    assert held == DeviceUse(DRIVER, *use)
    # Of another driver nothing is said.
    [other] = (
        GpuUnits(found, CATALOG, sharing=SharingRules({"gpu.amd.com": dimension}))
        .devices.uses["a-uid"]
        .values()
    )
    assert other == DeviceUse(DRIVER, ShareMethod.CAPACITY, Fraction(1, 8), "memory")


def test_several_shares_of_a_claim_are_one_use_and_claims_are_apart() -> None:
    two = shared("ca", "a-uid", memory=10 * GI)
    two = replace(two, shares=(*two.shares, DeviceShare(device("gpu-0"), "more", {"memory": 20 * GI})))
    found = state(a_slice(MEMORY), bound("a", 0), two, shared("cb", "a-uid", memory=50 * GI))
    units = GpuUnits(found, CATALOG)
    parts = {key.claim: use.part for key, use in units.devices.uses["a-uid"].items()}
    assert parts == {"ca-uid": Fraction(3, 8), "cb-uid": Fraction(5, 8)}
    assert units.held(found.pods["a-uid"]) == {DRIVER: 1}


@pytest.mark.parametrize(
    ("a", "b", "is_divided"),
    [
        (bound("a", 0), bound("b", 1), True),
        (bound("a", 0, 60), bound("b", 59), True),
        (bound("a", 0, 60), bound("b", 60), False),
        (bound("a", 30), bound("b", 0, 20), False),
        (bound("a", 1, 1), bound("b", 0), False),
    ],
)
def test_a_device_is_divided_where_pods_have_it_at_the_same_time(a: Pod, b: Pod, is_divided: bool) -> None:
    for claims in (
        [claim("one", "a-uid", "b-uid", devices=["gpu-0"])],
        [claim("one", "a-uid", devices=["gpu-0"]), claim("two", "b-uid", devices=["gpu-0"])],
    ):
        held = held_devices(state(a_slice(gpu(0)), a, b, *claims), CATALOG)
        assert held.uses.keys() == {"a-uid", "b-uid"}
        assert held.divided == ({device("gpu-0")} if is_divided else set())


def test_a_claim_of_a_pod_group_is_used_by_those_of_its_pods_that_name_it() -> None:
    group = PodGroup(meta("train"), GroupKind.NATIVE, min_member=2)
    pods = [bound(name, 0, group="train", claims=("shared",)) for name in ("a", "b")]
    others = [bound("c", 0, group="train"), bound("d", 0, group="other", claims=("shared-too",))]
    given = replace(claim("shared", devices=["gpu-0"]), groups=(group.meta.uid,))
    found = replace(state(a_slice(gpu(0)), *pods, *others, given), pod_groups={group.meta.uid: group})
    held = held_devices(found, CATALOG)
    assert held.uses.keys() == {"a-uid", "b-uid"}
    # The group may be gone before its pods have ended.
    assert held_devices(replace(found, pod_groups={}), CATALOG).uses == held.uses


@pytest.mark.parametrize("of_group", [True, False])
def test_a_pod_on_another_node_has_nothing_of_a_device(of_group: bool) -> None:
    """Whoever names a node in a pod needs no scheduler: the claim is reserved for it, its kubelet refuses it,
    and a GPU of that node would be counted for it that somebody else has."""
    group = PodGroup(meta("train"), GroupKind.NATIVE, min_member=2)
    here, there = (
        pod(name, node=node, bound_ms=T0, group="train", claims=("shared",))
        for name, node in (("a", "node-1"), ("b", "node-2"))
    )
    own = replace(claim("own", "c-uid", devices=[]), devices=(DeviceId(DRIVER, "node-2", "gpu-0"),))
    shared_ = claim("shared", *(() if of_group else ("a-uid", "b-uid")), devices=["gpu-0"])
    shared_ = replace(shared_, groups=(group.meta.uid,) if of_group else ())
    slices = [a_slice(gpu(0)), a_slice(gpu(0), name="s2", pool="node-2", node="node-2")]
    found = state(*slices, here, there, pod("c", node="node-2", bound_ms=T0), own, shared_)
    held = held_devices(replace(found, pod_groups={group.meta.uid: group}), CATALOG)
    assert held.uses.keys() == held.shares.keys() == {"a-uid", "c-uid"}
    assert held.divided == set()
    # Devices that no single node has may be used on several.
    anywhere = replace(found, slices={"s": a_slice(gpu(0), node="")}, pod_groups={group.meta.uid: group})
    assert held_devices(anywhere, CATALOG).divided == {device("gpu-0")}


def test_a_claim_of_a_pod_group_is_not_used_by_pods_of_another() -> None:
    """A pod says itself of which group it is, and on which node."""
    groups = [PodGroup(meta(name), GroupKind.NATIVE, min_member=1) for name in ("train", "other")]
    member, stranger = (bound(g, 0, group=g, claims=("shared",)) for g in ("train", "other"))
    given = replace(claim("shared", devices=["gpu-0"]), groups=(groups[0].meta.uid,))
    known = {each.meta.uid: each for each in groups}
    found = replace(state(a_slice(gpu(0)), member, stranger, given), pod_groups=known)
    assert held_devices(found, CATALOG).uses.keys() == {"train-uid"}


def test_what_was_found_stays_so_whatever_is_seen_later() -> None:
    a, b = bound("a", 0), bound("b", 1)
    shared = claim("ca", "a-uid", "b-uid", devices=["gpu-0"])
    # b alone was seen at first, and so was shown as holding.
    first = held_devices(state(b, shared), CATALOG)
    assert starts(first) == {"b-uid": {"gpu-0": 1}}
    history = ClaimHistory(before=first.shares)
    assert starts(held_devices(state(a, b, shared), CATALOG, (), history)) == {"b-uid": {"gpu-0": 1}}
    # a, which the API has forgotten since, left it to b.
    over = replace(a, phase=PodPhase.SUCCEEDED, ended_ms=T0 + 60 * MINUTE)
    second = held_devices(state(b, shared), CATALOG, [over])
    assert starts(second)["b-uid"] == {"gpu-0": 60}
    last = held_devices(state(b, shared), CATALOG, (), ClaimHistory(before=second.shares))
    assert starts(last) == {"b-uid": {"gpu-0": 60}}


_PODS = st.lists(st.tuples(st.integers(0, 20), st.none() | st.integers(0, 20)), min_size=1, max_size=5)


@given(pods=_PODS, ends=st.lists(st.integers(0, 4), max_size=5), unseen=st.sets(st.integers(0, 4)))
def test_intervals_of_a_device_never_overlap(
    pods: list[tuple[int, int | None]], ends: list[int], unseen: set[int]
) -> None:
    """However late pods are seen, and in whatever order they end."""
    names = [bound(f"p{number}", start) for number, (start, _) in enumerate(pods)]
    shared = claim("c", *(each.meta.uid for each in names), devices=["gpu-0"])
    over = {
        each.meta.uid: replace(
            each, phase=PodPhase.SUCCEEDED, ended_ms=max(each.bound_ms or 0, T0 + MINUTE * (end or 20))
        )
        for each, (_, end) in zip(names, pods, strict=True)
    }
    history, seen = NO_HISTORY, [each for number, each in enumerate(names) if number not in unseen]
    for number in (*ends, *range(5)):
        held = held_devices(state(shared, *seen), CATALOG, (), history)
        spans = [
            (share.start_ms, seen_pod.ended_ms)
            for seen_pod in seen
            for share in held.shares.get(seen_pod.meta.uid, {}).values()
        ]
        assert sum(end is None for _, end in spans) <= 1
        told = sorted((start, end) for start, end in spans if end is not None and start < end)
        assert all(first[1] <= second[0] for first, second in pairwise(told))
        history = ClaimHistory(before=held.shares)
        seen = [over[p.meta.uid] if p.meta.name == f"p{number}" else p for p in names]
        names = seen


@given(st.lists(st.tuples(st.sets(st.integers(0, 3), max_size=3), st.sets(st.integers(0, 5))), max_size=5))
def test_units_add_up_to_the_devices_in_use(claims: list[tuple[set[int], set[int]]]) -> None:
    pods = [bound(f"p{index}", index) for index in range(4)]
    given_out = [
        claim(f"c{index}", *(f"p{user}-uid" for user in users), devices=[f"gpu-{each}" for each in devices])
        for index, (users, devices) in enumerate(claims)
    ]
    units = units_of(state(a_slice(*map(gpu, range(6))), *pods, *given_out))
    in_use = {device for users, devices in claims if users for device in devices}
    assert sum(each[DRIVER] for each in units.values()) == len(in_use)


# What is gone


def test_what_was_seen_while_a_claim_was_reserved_is_what_the_pod_had() -> None:
    over = bound("a", 0, 60, claims=("ca",))
    seen = {"a-uid": {"ca-uid": claim("ca", "a-uid", devices=["gpu-0", "gpu-1"])}}
    found = held_devices(state(), CATALOG, [over], ClaimHistory(seen))
    assert starts(found) == {"a-uid": {"gpu-0": 0, "gpu-1": 0}}
    assert list(found.unknown) == []


def test_a_device_keeps_its_name_once_a_slice_has_told_it() -> None:
    a, held = bound("a", 0), claim("ca", "a-uid", devices=["gpu-2-mig-1"])
    before = held_devices(state(a, held), CATALOG)
    assert units_of(state(a, held), (), ClaimHistory(before=before.shares)) == {"a-uid": {DRIVER: 1}}
    named = state(a, held, a_slice(mig(1, 2)))
    assert units_of(named, (), ClaimHistory(before=before.shares)) == {"a-uid": {MIG: 1}}
    history = ClaimHistory(before=held_devices(named, CATALOG).shares)
    assert units_of(state(a), (), history) == {"a-uid": {MIG: 1}}


@pytest.mark.parametrize(
    ("requests", "units"),
    [
        ((DeviceRequest(DRIVER, 2), DeviceRequest("gpu.amd.com", 1)), {DRIVER: 2, "gpu.amd.com": 1}),
        # Its count is not known; nor is what a class of an administrator's gives.
        ((DeviceRequest(DRIVER, 2), DeviceRequest(DRIVER, None)), {DRIVER: 2}),
        ((DeviceRequest("fast", 1),), {}),
    ],
)
def test_a_claim_that_was_taken_back_tells_by_its_spec_what_it_was(
    requests: tuple[DeviceRequest, ...], units: Resources
) -> None:
    over = bound("a", 0, 60, claims=("ca",))
    found = held_devices(state(over, claim("ca", requests=requests)), CATALOG, [over])
    assert units_of(state(over, claim("ca", requests=requests)), [over]) == (
        {"a-uid": units} if units else {}
    )
    is_told = all(each.device_class != "fast" and each.amount for each in requests)
    assert list(found.unknown) == ([] if is_told else [(over, "ca")])
    # It stays when the claim goes.
    history = ClaimHistory(before=found.shares)
    assert units_of(state(over), [over], history) == ({"a-uid": units} if units else {})


def test_a_claim_that_was_given_out_anew_tells_by_its_spec_what_the_first_pod_had() -> None:
    a, b = bound("a", 0, 60, claims=("ca",)), bound("b", 61, claims=("ca",))
    x = bound("x", 0, 30)
    anew = claim("ca", "b-uid", devices=["gpu-0"], requests=ONE_GPU)
    found = state(a, b, x, anew, claim("cx", "x-uid", devices=["gpu-0"]))
    assert starts(held_devices(found, CATALOG)) == {
        "a-uid": {"ca-uid/0": 0},
        "b-uid": {"gpu-0": 61},
        "x-uid": {"gpu-0": 0},
    }


def test_what_a_spec_tells_gives_way_to_what_is_seen() -> None:
    over = bound("a", 0, 60, claims=("ca",))
    first = held_devices(state(over, claim("ca", requests=ONE_GPU)), CATALOG, [over])
    assert starts(first) == {"a-uid": {"ca-uid/0": 0}}
    seen = {"a-uid": {"ca-uid": claim("ca", "a-uid", devices=["gpu-7"])}}
    then = held_devices(state(over), CATALOG, [over], ClaimHistory(seen, first.shares))
    assert starts(then) == {"a-uid": {"gpu-7": 0}}


def test_what_nobody_can_tell_is_a_problem() -> None:
    running, over, old = (
        bound(name, 0, end, claims=("c",)) for name, end in (("r", None), ("o", 9), ("x", 9))
    )
    found = state(running, over, old)
    known = replace(found, collections={"resourceclaims.resource.k8s.io": CollectionStatus("v1", True)})
    units = GpuUnits(known, CATALOG, [over])
    assert [(each.code, each.name, each.detail) for each in problems(known, CATALOG, units)] == [
        (StateProblemCode.CLAIM_UNKNOWN, "o", "what ResourceClaim c gave it is not known"),
        (StateProblemCode.CLAIM_UNKNOWN, "r", "what ResourceClaim c gave it is not known"),
    ]
    # Claims that cannot be read are reported elsewhere.
    absent = replace(found, collections={"resourceclaims.resource.k8s.io": CollectionStatus("", True, True)})
    assert problems(absent, CATALOG, GpuUnits(absent, CATALOG, [over])) == []


# Extended resources that a DRA driver gives


def test_a_claim_made_for_extended_resources_is_counted_as_these() -> None:
    def asks(resource: str) -> Pod:
        found = bound("a", 0, asks=template(requests={resource: 1}))
        return replace(found, backing_claim="made")

    made = claim("made", "a-uid", devices=["gpu-0"])
    dra_only = {"node-uid": node("node-1", allocatable={"cpu": 64_000})}
    plugin = {"node-uid": node("node-1", 8)}
    of_slices = replace(state(asks(GPU), made, a_slice(gpu(0))), nodes=dra_only)
    # Under the name by which the node has its GPUs, or they would be there twice.
    assert units_of(of_slices) == {"a-uid": {DRIVER: 1}}
    assert units_of(replace(of_slices, nodes=plugin)) == {"a-uid": {GPU: 1}}
    assert units_of(state(asks(GPU), made)) == {"a-uid": {GPU: 1}}
    assert problems(of_slices, CATALOG) == []
    mig_units = replace(state(asks("nvidia.com/mig-1g.10gb"), made, a_slice(mig(1, 0))), nodes=dra_only)
    assert units_of(mig_units) == {"a-uid": {MIG: 1}}
    # A name that says nothing of GPUs: the claim does.
    named = replace(state(asks("deviceclass.resource.kubernetes.io/gpu.nvidia.com"), made), nodes=dra_only)
    assert units_of(named) == {"a-uid": {DRIVER: 1}}


def test_a_claim_made_for_two_extended_resources_of_which_one_is_not_called_a_gpu() -> None:
    """Kubernetes makes one claim for all of them (requestMappings of the pod's status name its requests)."""
    by_class = "deviceclass.resource.kubernetes.io/gpu.nvidia.com"
    given = DeviceId(DRIVER, "node-1", "gpu-0"), *(DeviceId(DRIVER, "node-1", f"gpu-{n}") for n in (1, 2))
    made = replace(
        claim("made", "a-uid", devices=[each.device for each in given]),
        named=((given[0], "r0"), (given[1], "r1"), (given[2], "r1")),
    )
    asks = replace(
        bound("a", 0, asks=template(requests={GPU: 1, by_class: 2})),
        backing_claim="made",
        backed=(("r0", GPU), ("r1", by_class)),
    )
    dra_only = {"node-uid": node("node-1", allocatable={"cpu": 64_000})}
    of_slices = replace(state(asks, made, a_slice(gpu(0), gpu(1), gpu(2))), nodes=dra_only)
    assert units_of(of_slices) == {"a-uid": {DRIVER: 3}}
    assert GpuUnits(of_slices, CATALOG).held(asks) == {DRIVER: 3}
    # Of a claim whose requests are not named (an older dump) only what is called a GPU is known.
    assert units_of(replace(of_slices, claims={"made": replace(made, named=())})) == {"a-uid": {DRIVER: 1}}


# Waiting


def test_a_pod_that_waits_wants_what_its_claims_ask_for() -> None:
    first, second = pod("a", claims=("own", "both")), pod("b", claims=("both", "gone"), created_ms=T0 + 1)
    third = pod("c", claims=("given",))
    holds, shares = bound("h", 0, claims=("held",)), pod("s", claims=("held",))
    found = state(
        *(second, first, third, holds, shares),
        claim("own", requests=(DeviceRequest(DRIVER, 2), DeviceRequest("dra.net", 1))),
        claim("both", requests=ONE_GPU),
        claim("given", "c-uid", devices=["gpu-2-mig-1"], requests=(DeviceRequest("mig.nvidia.com", 1),)),
        claim("held", "h-uid", devices=["gpu-5"], requests=ONE_GPU),
        a_slice(mig(1, 2)),
    )
    assert units_of(found) == {"a-uid": {DRIVER: 3}, "c-uid": {MIG: 1}, "h-uid": {DRIVER: 1}}
