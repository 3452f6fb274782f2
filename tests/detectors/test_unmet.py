"""Demand against free units: who could have had what, by hand and by laws."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpucost.detectors.unmet import Met, Unmet, unmet
from gpucost.domain.time import MINUTE_MS
from gpucost.domain.waste import Waste
from tests.detectors.worlds import World, at

WAIT_MS = 15 * MINUTE_MS


def _claims(found: Unmet) -> list[tuple[str, str, str, int, int, int]]:
    jobs = found.demand["job"].tolist()
    return sorted((jobs[c.row], c.node, c.waste.value, c.start_ms, c.end_ms, c.units) for c in found.claims)


def _stretches(found: Unmet) -> list[tuple[str, int, int, Met, int, int]]:
    jobs = found.demand["job"].tolist()
    return sorted((jobs[s.row], s.start_ms, s.end_ms, s.met, s.free, s.node_free) for s in found.stretches)


def test_one_who_fits_has_starved() -> None:
    world = World(60).node("n1").pod("p", "n1", 0, units=5).waits("j", 10, 50, units=2)
    found = unmet(world.facts().history, WAIT_MS)
    assert _claims(found) == [("j", "n1", "starved", at(10), at(50), 2)]
    assert _stretches(found) == [("j", at(10), at(50), Met.FITS, 3, 3)]


def test_one_whose_shape_does_not_fit_claims_what_it_could_use() -> None:
    world = World(60).node("n1").node("n2").pod("p", "n1", 0, units=4).pod("q", "n2", 0, units=2)
    world.waits("big", 0, units=8)
    found = unmet(world.facts().history, WAIT_MS)
    assert _claims(found) == [
        ("big", "n1", "fragmented", at(0), at(60), 2),
        ("big", "n2", "fragmented", at(0), at(60), 6),
    ]
    assert _stretches(found) == [("big", at(0), at(60), Met.SHAPE, 10, 6)]


def test_too_little_is_free() -> None:
    world = World(60).node("n1").pod("p", "n1", 0, units=5).waits("big", 0, units=4)
    found = unmet(world.facts().history, WAIT_MS)
    assert _stretches(found) == [("big", at(0), at(60), Met.SHORT, 3, 3)]
    assert _claims(found) == [("big", "n1", "fragmented", at(0), at(60), 3)]


def test_the_longest_waiting_comes_first_and_no_unit_is_claimed_twice() -> None:
    world = World(60).node("n1").pod("p", "n1", 0, units=6)
    world.waits("later", 5, units=2).waits("first", 0, units=1)
    found = unmet(world.facts().history, WAIT_MS)
    assert _claims(found) == [
        ("first", "n1", "starved", at(0), at(60), 1),
        ("later", "n1", "fragmented", at(5), at(60), 1),
    ]


def test_a_gang_fits_whole_or_not_at_all_and_independent_pods_as_many_as_there_is_room_for() -> None:
    world = World(60).node("n1").node("n2").pod("p", "n1", 0, units=6).pod("q", "n2", 0, units=4)
    gang = unmet(_plus(world, pods=4, units=2, min_pods=4), WAIT_MS)
    assert {claim.waste for claim in gang.claims} == {Waste.FRAGMENTED}
    loose = unmet(_plus(world, pods=4, units=2, min_pods=1), WAIT_MS)
    assert _claims(loose) == [
        ("j", "n1", "starved", at(0), at(60), 2),
        ("j", "n2", "starved", at(0), at(60), 4),
    ]


def _plus(world: World, **shape: int):  # type: ignore[no-untyped-def]  # a history, of the world and one job more
    copy = World(world.end, rows={name: list(rows) for name, rows in world.rows.items()})
    return copy.waits("j", 0, **shape).facts().history  # type: ignore[arg-type]  # numbers of a shape


def test_products_decide_who_may_go_where() -> None:
    world = World(60).node("h").node("l", product="NVIDIA-L4").waits("j", 0, units=1, products="NVIDIA-L4")
    assert [claim.node for claim in unmet(world.facts().history, WAIT_MS).claims] == ["l"]
    nowhere = World(60).node("h").waits("j", 0, units=1, products="NVIDIA-L4")
    assert unmet(nowhere.facts().history, WAIT_MS).claims == ()


def test_short_waits_cordoned_nodes_and_unseen_time_count_for_nothing() -> None:
    world = World(60, seen=[(0, 20), (40, 60)]).node("n1").node("n2", schedulable=0)
    world.waits("short", 0, 14.9, units=1).waits("long", 0, 60, units=8)
    found = unmet(world.facts().history, WAIT_MS)
    assert _claims(found) == [
        ("long", "n1", "starved", at(0), at(20), 8),
        ("long", "n1", "starved", at(40), at(60), 8),
    ]


def test_a_wait_goes_on_when_its_reason_changes() -> None:
    world = World(60).node("n1").waits("j", 0, 10, units=1, layer="quota")
    world.waits("j", 10, 20, units=1, layer="placement")
    found = unmet(world.facts().history, WAIT_MS)
    assert found.demand["since_ms"].tolist() == [at(0), at(0)]
    assert sum(claim.end_ms - claim.start_ms for claim in found.claims) == 20 * MINUTE_MS


@given(
    held=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 100), st.integers(1, 100), st.integers(1, 3))),
    asks=st.lists(
        st.tuples(
            st.integers(0, 100), st.integers(15, 100), st.integers(1, 4), st.integers(1, 8), st.booleans()
        ),
        max_size=6,
    ),
)
def test_claims_are_at_every_instant_within_what_is_free(
    held: list[tuple[int, int, int, int]], asks: list[tuple[int, int, int, int, bool]]
) -> None:
    world = World(200).node("n0").node("n1")
    for n, (node, start, length, units) in enumerate(held):
        world.pod(f"p{n}", f"n{node}", start, start + length, units)
    for n, (start, length, pods, units, gang) in enumerate(asks):
        world.waits(f"j{n}", start, start + length, pods=pods, units=units, min_pods=pods if gang else 1)
    found = unmet(world.facts().history, WAIT_MS)
    minutes = np.arange(200) * MINUTE_MS + at(0)
    for node in (0, 1):
        free = 8 - sum(
            units * ((minutes >= at(start)) & (minutes < at(start + length)))
            for which, start, length, units in held
            if which == node
        )
        taken = sum(
            claim.units * ((minutes >= claim.start_ms) & (minutes < claim.end_ms))
            for claim in found.claims
            if claim.node == f"n{node}"
        )
        assert (taken <= np.maximum(free, 0)).all()
    for n, (start, length, pods, units, _) in enumerate(asks):
        mine = [claim for claim in found.claims if found.demand["job"][claim.row] == f"j{n}"]
        wanted = sum(claim.units * ((minutes >= claim.start_ms) & (minutes < claim.end_ms)) for claim in mine)
        assert (wanted <= pods * units * ((minutes >= at(start)) & (minutes < at(start + length)))).all()
