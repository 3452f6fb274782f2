"""Broken GPUs that pods hold: whose they are, and when that is not known."""

from __future__ import annotations

from functools import partial

from gpucost.detectors.engine.evaluation import RuleSettings, evaluate
from gpucost.detectors.findings import RuleDetection, WastePattern
from gpucost.detectors.rule_settings import ScopedSettings, UnhealthyAllocatedSettings
from gpucost.detectors.rules.unhealthy_allocated import NAME, run
from gpucost.domain.time import MINUTE_MS
from tests.detectors.case_unhealthy_allocated import broken, health, reported, told
from tests.detectors.worlds import GPU, World, at


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


def minutes_of(world: World) -> dict[tuple[str, str], float]:
    """By variant and pod."""
    found_: dict[tuple[str, str], float] = {}
    for draft in found(world).drafts:
        for each in draft.episodes:
            key = draft.variant, each.pod_uid
            found_[key] = found_.get(key, 0) + (each.end_ms - each.start_ms) * (each.boards or 0) / MINUTE_MS
    return found_


def test_the_status_of_a_pod_is_about_that_pod_alone() -> None:
    (draft,) = found(reported(20, units=2)).drafts
    assert {each.pod_uid: each.boards for each in draft.episodes} == {"p1": 2}
    assert draft.summary.startswith("2 GPUs of node n1 broken (reported_unhealthy)")
    assert [each.shown_by for each in draft.evidence[:2]] == ["gpucost_pod_gpu_unhealthy"] * 2


def test_no_more_than_the_pod_has() -> None:
    assert minutes_of(reported(20, units=5)) == {("reported", "p1"): 2 * 20}


def test_a_gpu_that_exporter_and_status_name_counts_once() -> None:
    """Lost from 10 to 30, unhealthy from 5 to 20: 25 minutes, not 35."""
    world = World(60).node("n1").pod("p1", "n1", 0, units=2)
    world.work("p1", "n1", "g0", [0.5]).work("p1", "n1", "g1", [0.5])
    told(health(world, "g0", 10, 30), "p1", 5, 20, gpu="g0")
    short = {("lost", "p1"): 20.0}
    assert minutes_of(world) == short  # five minutes before are no finding of their own
    told(world, "p1", 30, 45, gpu="g0")
    assert minutes_of(world) == {**short, ("reported", "p1"): 15}


def test_the_status_names_the_holder_of_a_lost_gpu_that_was_never_measured() -> None:
    world = World(60).node("n1").pod("p1", "n1", 0, units=2).pod("p2", "n1", 0)
    assert found(health(world, "g0", 10, 40)).withheld
    told(world, "p1", 10, 20, gpu="g0")
    assert minutes_of(world) == {("lost", "p1"): 30}
    assert not found(world).withheld


def test_a_status_without_a_name_is_the_gpu_that_an_exporter_says() -> None:
    """One of two unhealthy units is the lost one while that is lost."""
    world = World(60).node("n1").pod("p1", "n1", 0, units=4).work("p1", "n1", "g0", [0.5])
    for gpu in ("g1", "g2", "g3"):
        world.work("p1", "n1", gpu, [0.5])
    told(health(world, "g0", 20, 40), "p1", 20, 60, units=2)
    assert minutes_of(world) == {("lost", "p1"): 20, ("reported", "p1"): 20 + 2 * 20}


def test_a_lost_gpu_without_a_name_is_the_one_of_a_status() -> None:
    world = World(60).node("n1").pod("p1", "n1", 0, units=4).pod("p2", "n1", 0, units=4)
    told(health(world, "", 20, 40), "p1", 20, 40, gpu="g0")
    assert minutes_of(world) == {("reported", "p1"): 20}
    assert not found(world).withheld


def test_other_gpus_of_a_pod_are_added() -> None:
    """g0 is lost, and the status names g1 and one more, whose id names no GPU."""
    world = World(60).node("n1").pod("p1", "n1", 0, units=4).work("p1", "n1", "g0", [0.5])
    told(health(world, "g0", 20, 40), "p1", 20, 40, gpu="g1")
    assert minutes_of(world)["reported", "p1"] == 20


def test_parts_of_a_divided_gpu() -> None:
    """Half of a GPU that two pods have, while the kubelet says of both that it is unhealthy."""
    world = World(60).node("n1", 1)
    parts = f"{GPU}.dra-time"
    world.counts("n1", 0, 60, 100_800, 100_800, resource=parts, replicas=100_800)
    for uid in ("p1", "p2"):
        told(world.pod(uid, "n1", 0, units=50_400, resource=parts), uid, 20, 40, gpu="g0")
    assert minutes_of(world) == {("reported", "p1"): 20 / 2, ("reported", "p2"): 20 / 2}


def test_a_broken_gpu_is_not_idle_too_and_no_other_of_its_pod_is() -> None:
    for tells in (partial(health, reason="xid_79"), partial(health, reason="lost"), None):
        world = World(600).node("n1").pod("p1", "n1", 0, units=8)
        for gpu in range(8):
            world.work("p1", "n1", f"g{gpu}", [0.9] * 12 + [0.9 if gpu else 0.0] * 108)
        if tells is None:
            told(world, "p1", 60, gpu="g0")
        else:
            tells(world, "g0", 60)
        (finding,) = evaluate(world.facts(), RuleSettings()).findings
        assert finding.draft.pattern is NAME
        assert finding.wasted.board_ms == 540 * MINUTE_MS


def found_of(world: World) -> dict[WastePattern, int]:
    """GPU time by pattern, in minutes."""
    findings = evaluate(world.facts(), RuleSettings()).findings
    return {each.draft.pattern: round(each.wasted.board_ms / MINUTE_MS) for each in findings}


def test_slices_of_one_broken_gpu_are_all_broken() -> None:
    small, large = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb"
    world = World(600).node("n1", 1, capacity=False)
    for slices, units, gpu in ((small, 1, "g0/3"), (large, 3, "g0/5")):
        world.counts("n1", 0, 600, units, units, resource=slices).pod("p1", "n1", 0, resource=slices)
        world.work("p1", "n1", gpu, [0.9] * 120)
    assert found_of(health(world, "g0", 60)) == {NAME: round(540 * 3 / 7)}


def test_of_slices_of_which_one_is_reported_the_others_are_idle() -> None:
    slices = "nvidia.com/mig-1g.10gb"
    world = World(600).node("n1", 1, capacity=False).counts("n1", 0, 600, 7, 7, resource=slices)
    world.pod("p1", "n1", 0, units=7, resource=slices)
    for number in range(7):
        world.work("p1", "n1", f"g0/{number}", [0.9] * 12 + [0.0] * 108, share=1 / 7)
    told(world, "p1", 60, gpu="g0").rows["health"][-1]["resource"] = slices
    assert found_of(world) == {NAME: round(540 / 7), WastePattern.IDLE_ALLOCATION: round(540 * 6 / 7)}


def test_what_is_idle_on_a_gpu_of_unknown_size_is_found() -> None:
    slices = "nvidia.com/mig-1g.24gb"
    world = World(600).node("n1", 1, capacity=False, product="unknown")
    world.counts("n1", 0, 600, 4, 4, resource=slices).pod("p1", "n1", 0, resource=slices)
    world.work("p1", "n1", "g0/1", [0.9] * 12 + [0.0] * 108)
    assert found_of(world) == {WastePattern.IDLE_ALLOCATION: 0}
