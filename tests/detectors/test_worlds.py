"""The worlds that the rules' tests are made of say what they seem to say."""

from __future__ import annotations

from gpucost.domain.time import MINUTE_MS
from tests.detectors.worlds import World, at


def test_a_world_is_what_was_written() -> None:
    world = World(60).node("n1").pod("p1", "n1", 10, units=2).work("p1", "n1", "g0", [0, 0, 1], start=10)
    facts = world.facts()
    held = facts.history.held
    assert held["boards"].tolist() == [2.0]
    assert held["team"].tolist() == ["t1"]
    assert held["workload_class"].tolist() == ["batch"]
    activity = facts.history.activity
    idle = activity.stretches(activity.is_idle)
    assert (idle.start.tolist(), idle.end.tolist()) == ([at(10)], [at(20)])
    assert activity.sums("busy_ms").tolist() == [5.0 * MINUTE_MS]
    assert facts.prices.nano("c", "n1", at(0), at(60), 2.0) == 8_000_000_000


def test_a_cluster_without_a_heartbeat_is_not_idle_when_all_is_zero() -> None:
    world = World(60, zero_is_gap=True).node("n1").pod("p1", "n1", 0, 20).pod("p2", "n1", 40, 60)
    starts, ends = world.facts().history.seen
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == [(at(0), at(20)), (at(40), at(60))]
    assert world.facts().history.coverage(at(0), at(60)) == 40 / 60
