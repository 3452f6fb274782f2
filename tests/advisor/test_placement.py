"""Placement: one rule after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucost.advisor.placement.gang_placement import MOST_EXPLAINED, place, reserve
from gpucost.advisor.placement.gang_solver import MOST_POD_SETS
from gpucost.advisor.placement.packing import NodePacking, PackingItem
from gpucost.advisor.placement.pod_demand import PlacementDemand, of_pod_set
from gpucost.advisor.placement.topology_domains import (
    WAYS,
    PlacementBlock,
    PlacementPart,
    greedy,
)
from gpucost.cluster.objects.kueue import ResourceFlavor
from gpucost.cluster.objects.nodes import (
    DeviceId,
    PublishedDevice,
    ResourceClaim,
    ResourceSlice,
    Taint,
)
from gpucost.cluster.objects.pods import PodSet, SelectorRequirement, Toleration
from gpucost.domain.jobs import OwnerReference
from tests.advisor.placements import rooms_of, wants
from tests.cluster.builders import GPU, meta, node, pod, template

MIG = "nvidia.com/mig-1g.10gb"
TAINT = Taint(GPU, "present", "NoSchedule")


def test_the_whole_gang_or_nothing() -> None:
    rooms = rooms_of(node("a"), node("b"), node("c"), pod("p", 1, node="c"))
    found = place(rooms, [wants(2)])
    assert found.fits
    assert found.is_exact
    assert not found.short
    assert not found.why
    assert found.nodes == {"main": {"a": 1, "b": 1}}
    found = place(rooms, [wants(3)])
    assert not found.fits
    assert found.is_exact
    assert found.even_empty
    assert found.short == {"main": 1}
    assert found.nodes == {"main": {"a": 1, "b": 1}}
    assert found.line("main") == "0/3 nodes: 3 insufficient nvidia.com/gpu"
    assert place(rooms, [wants(4)]).even_empty is False


def test_a_smaller_gang_will_do_and_takes_what_more_there_is() -> None:
    rooms = rooms_of(node("a"), node("b"), node("c"))
    found = place(rooms, [wants(5, least=2)])
    assert found.fits
    assert found.short == {"main": 2}
    assert found.nodes == {"main": {"a": 1, "b": 1, "c": 1}}
    assert not place(rooms, [wants(5, least=4)]).fits


def test_why_nodes_refuse() -> None:
    rooms = rooms_of(
        node("a", 4, labels={"pool": "h100"}),
        node("b", labels={"pool": "h100"}, taints=(TAINT,)),
        node("c"),
        node("d", is_ready=False),
        node("e", is_cordoned=True),
        node("f", allocatable={GPU: 8, "cpu": 500, "pods": 0}, labels={"pool": "h100"}),
        node("g", labels={"pool": "h100", "gen": "1"}),
    )
    anywhere = (SelectorRequirement("gen", "DoesNotExist"),)
    asks = template(8, cpu=1000, node_selector={"pool": "h100"}, affinity=(anywhere,))
    found = place(rooms, [wants(asks=asks)])
    assert found.seen == 7
    assert found.why["main"] == {
        "cordoned": 1,
        "insufficient cpu": 1,
        f"insufficient {GPU}": 1,
        "node affinity": 1,
        "node selector pool": 1,
        "not ready": 1,
        f"taint {GPU} not tolerated": 1,
        "too many pods": 1,
    }


def test_why_counts_what_the_gang_itself_has_taken() -> None:
    found = place(rooms_of(node("a", 8), node("b", 4)), [wants(4, 4)])
    assert found.short == {"main": 1}
    assert found.why["main"] == {f"insufficient {GPU}": 2}


def test_what_the_flavor_adds() -> None:
    rooms = rooms_of(node("a", taints=(TAINT,), labels={"pool": "spot"}), node("b"))
    flavor = ResourceFlavor(meta("spot", ""), {"pool": "spot"}, (TAINT,), (Toleration(GPU, exists=True),))
    pods = PodSet("main", 1, template(8))
    assert place(rooms, [of_pod_set(pods, [flavor])]).nodes == {"main": {"a": 1}}
    assert not place(rooms, [of_pod_set(pods, [replace(flavor, tolerations=())])]).fits
    assert place(rooms, [of_pod_set(pods)]).nodes == {"main": {"b": 1}}
    other = PodSet("main", 1, template(8, node_selector={"pool": "on-demand"}))
    found = place(rooms, [of_pod_set(other, [flavor])])
    assert not found.fits
    assert found.is_exact
    assert found.even_empty is False
    assert found.notes == ("main: asks for another pool than its flavor's nodes have",)
    assert found.line("main") == "0/2 nodes: 2 node selector pool"


def test_a_pod_larger_than_any_node() -> None:
    found = place(rooms_of(node("a", 4), node("b", 8)), [wants(1, 16)])
    assert found.even_empty is False
    (big,) = found.too_big
    assert (big.pod_set, big.resource, big.asks, big.most) == ("main", GPU, 16, 8)
    assert place(rooms_of(), [wants()]).line("main") == "there are no nodes"


def test_pods_of_daemon_sets_stay_on_empty_nodes() -> None:
    agent = pod("agent", 1, node="a", owner=OwnerReference("apps/v1", "DaemonSet", "agent", "u"))
    assert place(rooms_of(node("a"), agent), [wants()]).even_empty is False
    assert place(rooms_of(node("a"), replace(agent, meta=meta("job"))), [wants()]).even_empty is True


def test_both_kinds_of_units_and_all_of_them() -> None:
    has = {GPU: 1, MIG: 7, "cpu": 8000, "pods": 10}
    rooms = rooms_of(node("a", allocatable=has), node("b", allocatable={**has, MIG: 0}))
    both = wants(asks=template(requests={GPU: 1, MIG: 1}))
    assert place(rooms, [both]).nodes == {"main": {"a": 1}}
    assert place(rooms, [replace(both, count=2, least=2)]).why["main"] == {
        f"insufficient {GPU}": 1,
        f"insufficient {MIG}": 1,
    }
    shared = wants(3, asks=template(requests={"nvidia.com/gpu.shared": 1}))
    assert place(rooms_of(node("s", allocatable={"nvidia.com/gpu.shared": 3})), [shared]).fits
    assert not place(rooms_of(node("s", allocatable={"nvidia.com/gpu.shared": 2})), [shared]).fits


def test_different_pods_share_nodes() -> None:
    rooms = rooms_of(node("a"), node("b"))
    found = place(rooms, [wants(1, 8, "big"), wants(2, 3, "mid"), wants(2, 1, "small")])
    assert found.fits
    found = place(rooms, [wants(3, 5, "big"), wants(2, 3, "mid")])
    assert not found.fits
    assert found.is_exact


@pytest.mark.parametrize(
    ("nodes", "pods", "fits"),
    [((9, 16, 14), ((3, 2), (5, 2), (7, 3)), True), ((14, 10, 11), ((7, 3), (3, 1), (5, 3)), False)],
)
def test_what_greedy_misses_is_searched(
    nodes: tuple[int, ...], pods: tuple[tuple[int, int], ...], fits: bool
) -> None:
    rooms = rooms_of(*(node(f"n{at}", allocatable={GPU: has}) for at, has in enumerate(nodes)))
    gang = [wants(count, size, f"of-{size}") for size, count in pods]
    items = [PackingItem(each.count, each.asks) for each in gang]
    wanted = sum(each.count for each in gang)
    assert all(greedy(rooms, blocks_of(gang), way).total < wanted for way in WAYS)
    assert not NodePacking(rooms, items).cannot()
    assert (place(rooms, gang).fits, place(rooms, gang).is_exact) == (fits, True)


def blocks_of(gang: list[PlacementDemand]) -> list[PlacementBlock]:
    return [PlacementBlock((PlacementPart(each, PackingItem(each.count, each.asks)),)) for each in gang]


def test_too_hard_is_unknown_never_no() -> None:
    # What is free is enough in sum, pods are a fifth to a half of a node, and there are too many ways.
    first = (94, 108, 92, 98, 93, 105, 104, 105, 110, 102, 96, 93, 105, 90, 102)
    sizes = (*first, 103, 109, 90, 104, 98, 97, 108, 93, 100, 90, 90, 90, 110, 107, 90)
    rooms = rooms_of(*(node(f"n{at:02}", allocatable={GPU: size}) for at, size in enumerate(sizes)))
    many = ((45, 6), (34, 5), (48, 3), (22, 6), (54, 7), (35, 3), (49, 4), (52, 5), (38, 3), (28, 5))
    pods = (*many, (32, 7), (50, 6), (42, 7), (57, 4))
    found = place(rooms, [wants(count, size, f"of-{size}") for size, count in pods])
    assert not found.fits
    assert not found.is_exact
    assert found.even_empty is None
    assert found.unknown == ("too many ways to place pods of different sizes: not all were tried",)


def test_ten_thousand_pod_sets() -> None:
    rooms = rooms_of(node("a"), node("b"))
    equal = [wants(1, 0, f"s{at}") for at in range(200)]
    found = place(rooms, equal)
    assert found.fits
    assert len(found.nodes) == 200
    different = [wants(1, 0, f"s{at}", asks=template(cpu=at + 1)) for at in range(10_000)]
    found = place(rooms, different)
    assert not found.fits
    assert not found.is_exact
    assert found.unknown == (f"10000 different pod sets: at most {MOST_POD_SETS} are evaluated together",)
    found = place(
        rooms,
        [wants(1, 9 + at, f"s{at}") for at in range(20)],
    )
    assert len(found.why) == MOST_EXPLAINED
    assert found.notes == (f"why nodes refuse pods is said of {MOST_EXPLAINED} of 20 pod sets",)


def test_what_is_not_evaluated_is_said() -> None:
    rooms = rooms_of(node("a"))
    found = place(rooms, [wants(asks=template(8, has_pod_affinity=True))])
    assert found.fits
    assert found.unknown == ("main: rules about other pods or spreading are not evaluated",)
    found = place(rooms, [wants(asks=template(claims=("gpus",)))])
    assert not found.fits
    assert not found.is_exact
    assert "claims" in found.unknown[0]
    hostile = template(8, node_selector={f"k{at}": "v" for at in range(101)})
    assert not place(rooms, [wants(asks=hostile)]).is_exact


def test_only_among_given_nodes() -> None:
    rooms = rooms_of(node("a"), node("b"))
    found = place(rooms, [wants(2, among=frozenset({"b", "gone"}))])
    assert found.nodes == {"main": {"b": 1}}
    assert found.why["main"] == {f"insufficient {GPU}": 1, "not among the nodes it may use": 1}


def test_take_give_and_rewind() -> None:
    rooms = rooms_of(node("a"))
    before = dict(rooms.free("a"))
    mark = rooms.mark()
    rooms.take("a", {GPU: 3}, 2)
    assert rooms.free("a")[GPU] == 2
    assert rooms.free("a")["pods"] == 108
    other = rooms.copy()
    rooms.give("a", {GPU: 3})
    assert rooms.free("a")[GPU] == 5
    rooms.rewind(mark)
    assert rooms.free("a") == before
    assert not list(rooms.changed)
    assert other.free("a")[GPU] == 2
    with pytest.raises(KeyError):
        rooms.take("gone", {})


def test_what_has_quota_and_no_node_yet_is_reserved() -> None:
    rooms = rooms_of(node("a"), node("b"))
    left = reserve(rooms, [wants(1, 8, "theirs"), wants(1, 16, "never")])
    assert place(rooms, [wants(2)]).fits
    assert not place(left, [wants(2)]).fits
    assert place(left, [wants(1)]).fits


def test_devices_of_claims() -> None:
    dra = "gpu.nvidia.com"
    devices = tuple(PublishedDevice(f"gpu-{at}", {"type": "gpu", "uuid": f"u{at}"}) for at in range(4))
    published = ResourceSlice(meta("slice", ""), dra, "a", 1, "a", devices)
    user = pod("user", node="a", claims=("held",))
    held = ResourceClaim(meta("held"), (DeviceId(dra, "a", "gpu-0"),), (user.meta.uid,))
    objects = (node("a", allocatable={"cpu": 8000, "pods": 10}), user)
    rooms = rooms_of(*objects, slices=[published], claims=[held])
    assert rooms.free("a")[dra] == 3
    asks = template(claims=("mine",))
    assert place(rooms, [wants(3, asks=asks, devices={dra: 1})]).fits
    assert not place(rooms, [wants(2, asks=asks, devices={dra: 2})]).fits
    assert place(rooms.without([user.meta.uid]), [wants(2, asks=asks, devices={dra: 2})]).fits
    backed = place(rooms, [wants(1, 1)])
    assert not backed.fits
    assert not backed.is_exact
    assert "ResourceSlices" in backed.unknown[0]
