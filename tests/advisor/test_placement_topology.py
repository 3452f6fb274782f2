"""Placement: domains of a topology."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gpucost.advisor.placement.gang_placement import place
from gpucost.advisor.placement.pod_demand import of_pod_set
from gpucost.cluster.objects.kueue import ResourceFlavor, Topology
from gpucost.cluster.objects.pods import PodSet
from tests.advisor.placements import HOST, LEVELS, RACK, rooms_of, wants
from tests.cluster.builders import GPU, meta, node, template

CLIQUE = "nvidia.com/gpu.clique"


@pytest.mark.parametrize(
    ("topology", "count", "on"),
    [
        ({"required": RACK}, 2, {"c": 1, "d": 1}),
        ({"required": RACK}, 3, {"e": 1, "f": 1, "g": 1}),
        ({"required": HOST}, 1, {"a": 1}),
        ({"preferred": HOST}, 2, {"c": 1, "d": 1}),
        ({"preferred": RACK}, 4, {"a": 1, "e": 1, "f": 1, "g": 1}),
        ({"unconstrained": "true"}, 6, {"a": 1, "c": 1, "d": 1, "e": 1, "f": 1, "g": 1}),
        ({"slice": RACK, "slice_size": "2"}, 4, {"c": 1, "d": 1, "e": 1, "f": 1}),
        ({"slice": RACK, "slice_size": "2", "required": RACK}, 2, {"c": 1, "d": 1}),
    ],
)
def test_topology(topology: Mapping[str, str], count: int, on: Mapping[str, int]) -> None:
    racks = {"a": "r1", "c": "r2", "d": "r2", "e": "r3", "f": "r3", "g": "r3"}
    rooms = rooms_of(*(node(name, labels={RACK: rack}) for name, rack in racks.items()), node("bare"))
    found = place(rooms, [wants(count, topology=topology, levels=LEVELS)])
    assert found.fits
    assert found.nodes["main"] == on


@pytest.mark.parametrize(
    ("topology", "count"),
    [
        ({"required": RACK}, 3),
        ({"required": HOST}, 2),
        ({"slice": RACK, "slice_size": "3"}, 3),
        ({"slice": HOST, "slice_size": "2"}, 2),
        ({"unconstrained": "true"}, 5),
        ({"preferred": RACK}, 5),
    ],
)
def test_topology_that_holds_it(topology: Mapping[str, str], count: int) -> None:
    racks = {"a": "r1", "b": "r1", "c": "r2", "d": "r2"}
    rooms = rooms_of(*(node(name, labels={RACK: rack}) for name, rack in racks.items()), node("bare"))
    found = place(rooms, [wants(count, topology=topology, levels=LEVELS)])
    assert not found.fits
    assert found.is_exact
    assert found.even_empty is False


def test_where_a_domain_is_too_small_it_is_said() -> None:
    rooms = rooms_of(
        *(node(name, labels={RACK: rack}) for name, rack in (("a", "1"), ("b", "2"), ("c", "2")))
    )
    found = place(rooms, [wants(3, topology={"required": RACK}, levels=LEVELS)])
    assert found.notes == (f"main: all 3 pods must be in one {RACK}; at best 2 of them are",)
    assert found.why["main"] == {f"insufficient {GPU}": 2, "room, but not in a domain that takes all": 1}


def test_a_level_that_the_flavor_does_not_have() -> None:
    found = place(rooms_of(node("a")), [wants(topology={"required": "zone"}, levels=LEVELS)])
    assert not found.fits
    assert found.is_exact
    assert found.even_empty is False
    assert found.notes == (
        f"main: required topology zone: no level of its flavor's topology, which has {RACK}, {HOST}",
    )


def test_an_nvlink_clique_is_a_domain_without_any_topology() -> None:
    rooms = rooms_of(
        *(node(name, labels={CLIQUE: c}) for name, c in (("a", "x"), ("b", "y"), ("c", "y"))), node("d")
    )
    found = place(rooms, [wants(2, topology={"required": CLIQUE})])
    assert found.nodes == {"main": {"b": 1, "c": 1}}
    assert found.domains == {"main": (("y",),)}
    assert not place(rooms, [wants(3, topology={"required": CLIQUE})]).fits


def test_a_leader_stands_with_its_workers() -> None:
    racks = {"a": "1", "b": "1", "c": "2", "d": "2", "e": "2"}
    rooms = rooms_of(*(node(name, labels={RACK: rack}) for name, rack in racks.items()))
    together = {"required": RACK, "group": "g"}
    leader = wants(1, 1, "leader", topology=together, levels=LEVELS)
    workers = wants(2, 8, "workers", topology=together, levels=LEVELS)
    found = place(rooms, [leader, workers])
    assert found.fits
    assert set(found.domains.values()) == {(("2",),)}
    apart = [replace(leader, topology={"required": RACK}), replace(workers, count=3, least=3)]
    assert place(rooms, apart).domains == {"leader": (("1",),), "workers": (("2",),)}
    assert not place(rooms, [leader, replace(workers, count=3, least=3)]).fits


def test_levels_of_a_flavor() -> None:
    flavor = ResourceFlavor(meta("f", ""), topology="t")
    topologies = {"t": Topology(meta("t", ""), LEVELS)}
    assert of_pod_set(PodSet("main", 2, template(8)), [flavor], topologies).levels == LEVELS
    rooms = rooms_of(node("bare"), node("a", labels={RACK: "1"}))
    found = place(rooms, [of_pod_set(PodSet("main", 1, template(8)), [flavor], topologies)])
    assert found.nodes == {"main": {"a": 1}}


def test_slices_beside_other_pods_are_unknown_where_greedy_finds_no_room() -> None:
    # It does not fit, and without its slices it would: so nothing is proven either way.
    has = (("a", 1, 3, 1), ("a", 1, 1, 2), ("b", 0, 4, 2), ("a", 4, 3, 2))
    rooms = rooms_of(
        *(
            node(f"n{at}", allocatable={GPU: gpus, "cpu": cpu, "pods": pods}, labels={RACK: rack})
            for at, (rack, gpus, cpu, pods) in enumerate(has)
        )
    )
    sliced = {"required": RACK, "slice": HOST, "slice_size": "2"}
    gang = [
        wants(1, 2, "one"),
        wants(3, name="three", asks=template(1, cpu=1), topology=sliced, levels=LEVELS),
    ]
    found = place(rooms, gang)
    assert (found.fits, found.is_exact) == (False, False)
    assert place(rooms, [gang[1]]).fits
    plain = replace(gang[1], topology={"required": RACK})
    assert place(rooms, [gang[0], plain]).fits


def test_a_preference_climbs_level_by_level() -> None:
    block = "example.com/block"
    where = {"a": ("1", "x"), "b": ("1", "y"), "c": ("2", "z"), "d": ("2", "z"), "e": ("2", "w")}
    rooms = rooms_of(*(node(name, labels={block: in_, RACK: rack}) for name, (in_, rack) in where.items()))
    asks = wants(2, topology={"preferred": HOST}, levels=(block, RACK, HOST))
    found = place(rooms, [asks])
    assert found.nodes == {"main": {"c": 1, "d": 1}}
    assert found.domains == {"main": (("2", "z"),)}
    found = place(rooms, [replace(asks, count=3, least=3)])
    assert found.domains == {"main": (("2",),)}
    assert place(rooms, [replace(asks, count=5, least=5)]).domains == {"main": (("2",), ("1",))}


def test_slices_without_a_size_are_unknown() -> None:
    found = place(rooms_of(node("a", labels={RACK: "1"})), [wants(topology={"slice": RACK}, levels=LEVELS)])
    assert not found.is_exact
    assert found.unknown == ("main: its topology slices have no size",)
