"""Demand against free units: who could have had what, by hand and by laws."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost.detectors.inputs import unmet_demand as module
from gpucost.detectors.inputs.detector_facts import ClusterHistory
from gpucost.detectors.inputs.unmet_demand import DemandStanding, UnmetDemand, unmet
from gpucost.domain.buckets import Waste
from gpucost.domain.time import MINUTE_MS
from tests.detectors.test_places import slow_pods, slow_units
from tests.detectors.worlds import H100, World, at

WAIT_MS = 15 * MINUTE_MS


def _claims(found: UnmetDemand) -> list[tuple[str, str, str, int, int, int]]:
    jobs = found.demand["job"].tolist()
    return sorted((jobs[c.row], c.node, c.waste.value, c.start_ms, c.end_ms, c.units) for c in found.claims)


def _stretches(found: UnmetDemand) -> list[tuple[str, int, int, DemandStanding, int, int]]:
    jobs = found.demand["job"].tolist()
    return sorted((jobs[s.row], s.start_ms, s.end_ms, s.met, s.free, s.node_free) for s in found.stretches)


def test_one_who_fits_has_starved() -> None:
    world = World(60).node("n1").pod("p", "n1", 0, units=5).waits("j", 10, 50, units=2)
    found = unmet(world.facts().history, WAIT_MS)
    assert _claims(found) == [("j", "n1", "starved", at(10), at(50), 2)]
    assert _stretches(found) == [("j", at(10), at(50), DemandStanding.FITS, 3, 3)]


def test_one_whose_shape_does_not_fit_claims_what_it_could_use() -> None:
    world = World(60).node("n1").node("n2").pod("p", "n1", 0, units=4).pod("q", "n2", 0, units=2)
    world.waits("big", 0, units=8)
    found = unmet(world.facts().history, WAIT_MS)
    assert _claims(found) == [
        ("big", "n1", "fragmented", at(0), at(60), 2),
        ("big", "n2", "fragmented", at(0), at(60), 6),
    ]
    assert _stretches(found) == [("big", at(0), at(60), DemandStanding.SHAPE, 10, 6)]


def test_too_little_is_free() -> None:
    world = World(60).node("n1").pod("p", "n1", 0, units=5).waits("big", 0, units=4)
    found = unmet(world.facts().history, WAIT_MS)
    assert _stretches(found) == [("big", at(0), at(60), DemandStanding.SHORT, 3, 3)]
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


L4 = "NVIDIA-L4"
Row = tuple[str, int, str, str, int]
"""A job, a minute, what of it (``stands`` or the bucket of a claim), where, how many units."""


@given(
    held=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(1, 50), st.integers(1, 3)), max_size=12
    ),
    asks=st.lists(
        st.tuples(
            *(st.integers(0, 50), st.integers(15, 50), st.integers(1, 4), st.integers(1, 5), st.booleans()),
            st.sampled_from(["", H100, L4, f"{H100}|{L4}", "other"]),
        ),
        max_size=8,
    ),
)
def test_the_sweep_says_what_trying_everybody_on_every_node_every_minute_says(
    held: list[tuple[int, int, int, int]], asks: list[tuple[int, int, int, int, bool, str]]
) -> None:
    world = World(60)
    for n in range(4):
        world.node(f"n{n}", 4, product=(H100, L4)[n % 2])
    for n, (node, start, length, units) in enumerate(held):
        world.pod(f"p{n}", f"n{node}", start, min(start + length, 60), units)
    for n, (start, length, pods, units, gang, products) in enumerate(asks):
        shape = {"pods": pods, "units": units, "min_pods": pods if gang else 1}
        world.waits(f"j{n}", start, min(start + length, 60), products=products, **shape)
    history = world.facts().history
    found = unmet(history, WAIT_MS)
    jobs = found.demand["job"].tolist()
    minutes = [(minute, at(minute)) for minute in range(60)]
    said: list[Row] = [
        (jobs[claim.row], minute, claim.waste.value, claim.node, claim.units)
        for claim in found.claims
        for minute, now in minutes
        if claim.start_ms <= now < claim.end_ms
    ]
    said += [
        (jobs[each.row], minute, each.met.value, str(each.node_free), each.free)
        for each in found.stretches
        for minute, now in minutes
        if each.start_ms <= now < each.end_ms
    ]
    assert sorted(said) == sorted(_slowly(history, found))


def _slowly(history: ClusterHistory, found: UnmetDemand) -> list[Row]:
    """Everything worked out afresh every minute, every node checked for every job."""
    demand = found.demand[found.demand["until_ms"] - found.demand["since_ms"] >= WAIT_MS]
    demand = demand.sort_values(["since_ms", "job_uid", "pod_set"], kind="stable")
    held = _values(history.frames.allocations, "start_ms", "end_ms", "node", "count")
    wanted = _values(demand, "start_ms", "end_ms", "job", "pods", "min_pods", "units", "products")
    rows: list[Row] = []
    for minute in range(60):
        now = at(minute)
        here = [(node, count) for start, end, node, count in held if start <= now < end]
        used = [sum(count for node, count in here if node == f"n{n}") for n in range(4)]
        free = np.maximum(4 - np.array(used, dtype=np.int64), 0)
        every = [ask for start, end, *ask in wanted if start <= now < end]
        # A job that four units on each of its nodes could never serve stands before no other.
        asks = [ask for ask in every if len(_nodes_for(ask[4])) * (4 // ask[3]) >= max(ask[2], 1)]
        unplaced = []
        for ask in asks:
            job, pods, least, units, products = ask
            nodes = _nodes_for(products)
            places = int((free[nodes] // units).sum())
            if places < max(least, 1):
                unplaced.append(ask)
                continue
            room = free[nodes].copy()
            rows.append((job, minute, DemandStanding.FITS.value, str(room.max()), int(room.sum())))
            taken = slow_pods(free, nodes, units, min(pods, places))
            rows += [(job, minute, Waste.STARVED.value, f"n{node}", units) for node, units in taken]
        for job, pods, least, units, products in unplaced:
            nodes = _nodes_for(products)
            room = free[nodes].copy()
            if not room.sum():
                continue
            met = DemandStanding.SHAPE if room.sum() >= max(least, 1) * units else DemandStanding.SHORT
            rows.append((job, minute, met.value, str(room.max()), int(room.sum())))
            taken = slow_units(free, nodes, pods * units)
            rows += [(job, minute, Waste.FRAGMENTED.value, f"n{node}", units) for node, units in taken]
    return rows


def _values(frame: pd.DataFrame, *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(frame[name].tolist() for name in names), strict=True))


def _nodes_for(products: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(
        [n for n in range(4) if not products or (H100, L4)[n % 2] in products.split("|")], np.int64
    )


@pytest.mark.parametrize(("most", "end"), [(1_000, 37.5), (100, 38), (40, 40)])
def test_where_there_is_too_much_to_look_at_times_are_rounded_up(most: int, end: float) -> None:
    world = World(60).node("n1", 4).waits("j", 0, units=1)
    for n in range(40):
        world.pod(f"p{n}", "n1", n + 0.5, n + 0.75, 1)
    world.pod("last", "n1", 37.5, units=4)
    with patch.object(module, "MOST_LOOKS", most):
        found = unmet(world.facts().history, WAIT_MS)
    assert max(claim.end_ms for claim in found.claims) == at(end)


def test_who_could_never_be_served_stands_before_nobody() -> None:
    """Two nodes with four free GPUs each: eight fit no node now, sixteen fit none ever."""
    world = World(120).node("n1").node("n2").pod("p", "n1", 0, units=4).pod("q", "n2", 0, units=4)
    alone = unmet(_plus(world, pods=1, units=8), WAIT_MS)
    assert sum(claim.units for claim in alone.claims) == 8
    world.waits("hopeless", 0, units=16).waits("gang", 0, pods=3, units=8)
    both = unmet(_plus(world, pods=1, units=8), WAIT_MS)
    assert _claims(both) == _claims(alone)
    assert _stretches(both) == _stretches(alone)


def test_what_a_guard_holds_back_falls_to_the_next() -> None:
    world = World(60).node("n1").pod("p", "n1", 0, units=6)
    world.waits("held-back", 0, units=2).waits("next", 5, units=2)
    history = world.facts().history
    assert {name for name, *_ in _claims(unmet(history, WAIT_MS))} == {"held-back"}
    assert _claims(unmet(history, WAIT_MS, frozenset({0}))) == [("next", "n1", "starved", at(5), at(60), 2)]
