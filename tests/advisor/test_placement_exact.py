"""Placements against brute force on tiny clusters, and what must hold of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpucost.advisor.placement.gang_placement import GangPlacement, place
from gpucost.advisor.placement.pod_demand import PlacementDemand
from gpucost.cluster.objects.nodes import Node
from gpucost.cluster.objects.pods import PodTemplate
from gpucost.cluster.views.node_fit import FreeNodes, matches, room
from tests.advisor.placements import rooms_of
from tests.cluster.builders import GPU, node, pod, state

RACK, HOST = "rack", "kubernetes.io/hostname"
LEVELS = (RACK, HOST)


@st.composite
def nodes_(draw: st.DrawFn) -> list[Node]:
    count = draw(st.integers(1, 4))
    return [
        node(
            f"n{at}",
            allocatable={
                GPU: draw(st.integers(0, 4)),
                "cpu": draw(st.integers(1, 5)),
                "pods": draw(st.integers(1, 4)),
            },
            labels={RACK: draw(st.sampled_from("ab")), "pool": draw(st.sampled_from("xy"))},
            is_ready=draw(st.integers(0, 9)) > 0,
        )
        for at in range(count)
    ]


TOPOLOGIES: tuple[Mapping[str, str], ...] = (
    {},
    {},
    {"unconstrained": "true"},
    {"required": RACK},
    {"required": HOST},
    {"preferred": RACK},
    {"slice": RACK, "slice_size": "2"},
    {"slice": HOST, "slice_size": "2"},
    {"required": RACK, "slice": HOST, "slice_size": "2"},
    {"required": RACK, "group": "g"},
)


@st.composite
def wanted_(draw: st.DrawFn, topologies: Sequence[Mapping[str, str]] = TOPOLOGIES) -> list[PlacementDemand]:
    found = []
    for at in range(draw(st.integers(1, 3))):
        requests = {GPU: draw(st.integers(0, 3)), "cpu": draw(st.integers(0, 3))}
        selector = draw(st.sampled_from([{}, {}, {"pool": "x"}]))
        count = draw(st.integers(1, 3))
        topology = draw(st.sampled_from(topologies))
        template = PodTemplate(requests, selector)
        found.append(PlacementDemand(f"s{at}", count, count, template, topology=topology, levels=LEVELS))
    return found


def brute(nodes: Sequence[Node], wanted: Sequence[PlacementDemand]) -> bool:
    """Every pod on every node, one after the other."""
    pods = [each for each in wanted for _ in range(each.count)]
    free = {n.meta.name: dict(n.allocatable) for n in nodes}
    spots: list[Node] = []

    def puts(place_: int) -> Iterator[bool]:
        if place_ == len(pods):
            yield _keeps_topology(pods, spots)
            return
        asks = pods[place_].asks
        for each in nodes:
            left = free[each.meta.name]
            if matches(each, asks) and room(each, left, asks.requests):
                for key, amount in asks.requests.items():
                    left[key] -= amount
                left["pods"] -= 1
                spots.append(each)
                yield from puts(place_ + 1)
                spots.pop()
                left["pods"] += 1
                for key, amount in asks.requests.items():
                    left[key] += amount

    return any(puts(0))


def _keeps_topology(pods: Sequence[PlacementDemand], spots: Sequence[Node]) -> bool:
    by_set: dict[str, tuple[PlacementDemand, list[Node]]] = {}
    for each, spot in zip(pods, spots, strict=True):
        by_set.setdefault(each.name, (each, []))[1].append(spot)
    groups: dict[str, set[str]] = {}
    for each, on in by_set.values():
        level = each.topology.get("required")
        if level:
            domains = groups.setdefault(each.topology.get("group", each.name), set())
            domains.update(one.labels[level] for one in on)
        if "slice" in each.topology:
            size, names = int(each.topology["slice_size"]), [one.labels[each.topology["slice"]] for one in on]
            per_domain = {name: names.count(name) for name in names}
            ends = sum(count % size for count in per_domain.values())
            # Whole slices, and one that is smaller where they do not come out even.
            if ends != each.count % size or sum(count % size > 0 for count in per_domain.values()) > 1:
                return False
    return all(len(domains) == 1 for domains in groups.values())


@settings(max_examples=250, deadline=None)
@given(nodes_(), wanted_())
def test_the_same_as_trying_everything(nodes: list[Node], wanted: list[PlacementDemand]) -> None:
    found = place(rooms_of(*nodes), wanted)
    if found.is_exact:
        assert found.fits is brute(nodes, wanted)
    assert_holds(nodes, wanted, found)


@settings(max_examples=150, deadline=None)
@given(nodes_(), wanted_([{}]))
def test_without_topology_it_is_always_certain_on_few_nodes(
    nodes: list[Node], wanted: list[PlacementDemand]
) -> None:
    found = place(rooms_of(*nodes), wanted)
    assert found.is_exact
    assert found.fits is brute(nodes, wanted)


@settings(max_examples=100, deadline=None)
@given(nodes_(), wanted_())
def test_the_order_of_input_does_not_matter(nodes: list[Node], wanted: list[PlacementDemand]) -> None:
    answers = {
        repr(place(rooms_of(*some), list(many)))
        for some in (nodes, nodes[::-1])
        for many in permutations(wanted)
    }
    assert len(answers) == 1


@settings(max_examples=150, deadline=None)
@given(nodes_(), wanted_(), st.sampled_from("ab"))
def test_more_room_never_turns_yes_into_no(
    nodes: list[Node], wanted: list[PlacementDemand], rack: str
) -> None:
    before = place(rooms_of(*nodes), wanted)
    after = place(rooms_of(*nodes, node("more", 2, labels={RACK: rack, "pool": "x"})), wanted)
    if before.fits:
        assert after.fits or not after.is_exact


@settings(max_examples=100, deadline=None)
@given(nodes_(), wanted_(), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=5))
def test_victims_that_leave_are_as_if_they_had_never_been(
    nodes: list[Node], wanted: list[PlacementDemand], on: list[tuple[int, int]]
) -> None:
    pods = [pod(f"p{at}", gpus, node=f"n{which % len(nodes)}") for at, (which, gpus) in enumerate(on)]
    rooms = rooms_of(*nodes, *pods)
    gone = rooms.without([*(each.meta.uid for each in pods), pods[0].meta.uid if pods else "", "nobody"])
    empty = rooms_of(*nodes)
    assert [gone.free_at(at) for at in range(len(nodes))] == [empty.free_at(at) for at in range(len(nodes))]
    assert place(gone, wanted) == place(empty, wanted) == place(rooms.emptied(), wanted)
    free = FreeNodes(state(*nodes, *pods))
    assert all(rooms.free(each.meta.name) == free.free(each) for each in nodes)


def assert_holds(nodes: Sequence[Node], wanted: Sequence[PlacementDemand], found: GangPlacement) -> None:
    """What it says of where pods go is possible, and adds up."""
    by_name = {each.meta.name: each for each in nodes}
    used: dict[tuple[str, str], int] = {}
    for each in wanted:
        put = found.nodes.get(each.name, {})
        assert sum(put.values()) + found.short.get(each.name, 0) == each.count
        for name, count in put.items():
            assert count > 0
            assert matches(by_name[name], each.asks)
            for key, amount in {**each.asks.requests, "pods": 1}.items():
                used[name, key] = used.get((name, key), 0) + amount * count
    assert all(amount <= by_name[name].allocatable[key] for (name, key), amount in used.items())
    if found.fits:
        assert not found.short
        spots = [by_name[n] for e in wanted for n, c in found.nodes.get(e.name, {}).items() for _ in range(c)]
        pods = [e for e in wanted for _ in range(e.count)]
        assert _keeps_topology(pods, spots)
        assert found.even_empty
