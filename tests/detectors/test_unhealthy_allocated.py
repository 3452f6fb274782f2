"""Broken GPUs that pods hold: whose they are, and when that is not known."""

from __future__ import annotations

from gpucost.detectors.detector_settings import ScopedSettings
from gpucost.detectors.findings import RuleDetection
from gpucost.detectors.rule_settings import UnhealthyAllocatedSettings
from gpucost.detectors.rules.unhealthy_allocated import run
from gpucost.domain.time import MINUTE_MS
from tests.detectors.case_unhealthy_allocated import broken, health
from tests.detectors.worlds import World, at


def found(world: World) -> RuleDetection:
    return run(world.facts(), ScopedSettings(UnhealthyAllocatedSettings()))


def board_minutes(detection: RuleDetection) -> float:
    episodes = [each for draft in detection.drafts for each in draft.episodes]
    return sum((each.end_ms - each.start_ms) * (each.boards or 0) for each in episodes) / MINUTE_MS


def test_only_the_pod_on_the_broken_gpu_is_claimed() -> None:
    (draft,) = found(broken()).drafts
    assert {each.pod_uid for each in draft.episodes} == {"p1"}
    assert "p1" in draft.action.patch
    assert "p2" not in draft.action.patch


def test_reasons_and_gpus_of_a_node_are_one_finding() -> None:
    world = broken(minutes=20)
    health(world, "g0", 10, reason="lost")
    health(world, "g1", 15)
    (draft,) = found(world).drafts
    assert draft.variant == "lost"
    assert board_minutes(found(world)) == 20 + 10


def test_an_unnamed_gpu_is_that_of_the_only_pod_if_it_has_the_whole_node() -> None:
    world = World(30).node("n1").pod("p1", "n1", 0, units=8)
    assert board_minutes(found(health(world, "", 10))) == 20


def test_else_nobody_can_say() -> None:
    for pods in ((4,), (4, 4)):
        world = World(30).node("n1")
        for n, units in enumerate(pods):
            world.pod(f"p{n}", "n1", 0, units=units)
        (withheld,) = found(health(world, "", 10)).withheld
        assert "nothing says which pod" in withheld.because


def test_a_mig_instance_is_its_part_of_the_broken_board() -> None:
    resource = "nvidia.com/mig-1g.10gb"
    world = World(30).node("n1", 1, capacity=False).counts("n1", 0, 30, 7, 7, resource=resource)
    world.pod("p1", "n1", 0, resource=resource).work("p1", "n1", "g0/3", [0.5])
    assert board_minutes(found(health(world, "g0", 16))) == 14 / 7


def test_it_ends_with_the_pod() -> None:
    world = broken(minutes=40)
    world.rows["allocations"][0]["end_ms"] = at(20)
    (draft,) = found(world).drafts
    assert (draft.since_ms, draft.ended_ms) == (at(5), at(20))


def test_named_and_unnamed_reports_of_one_pod_are_not_added() -> None:
    world = World(30).node("n1", 1).pod("p1", "n1", 0).work("p1", "n1", "g0", [0.5])
    health(world, "g0", 10)
    health(world, "", 10)
    assert board_minutes(found(world)) == 20
