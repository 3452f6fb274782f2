"""GPUs that nodes have and do not advertise: counted as GPUs, with guards for what passes by itself."""

from __future__ import annotations

import pytest

from gpucost.cluster.views.overview import ClusterOverview
from gpucost.detectors.findings import FindingSeverity, RuleDetection
from gpucost.detectors.rule_settings import NotAdvertisedSettings, ScopedSettings
from gpucost.detectors.rules.not_advertised import run
from gpucost.domain.time import MINUTE_MS
from tests.cluster import builders as build
from tests.detectors.case_not_advertised import START, node
from tests.detectors.worlds import World, at


def found(world: World) -> RuleDetection:
    return run(world.facts(), ScopedSettings(NotAdvertisedSettings()))


def board_minutes(detection: RuleDetection) -> float:
    episodes = [each for draft in detection.drafts for each in draft.episodes]
    return sum((each.end_ms - each.start_ms) * (each.boards or 0) for each in episodes) / MINUTE_MS


def test_gpus_that_pods_still_hold_are_not_missing() -> None:
    world = node(minutes=20).pod("p", "n1", 0, START + 10, units=6)
    assert board_minutes(found(world)) == 2 * 10 + 8 * 10


def test_what_it_had_before_counts_where_labels_say_nothing() -> None:
    (draft,) = found(node(expected=-1)).drafts
    assert draft.variant == "none"


def test_a_node_of_which_nothing_is_known_is_not_found() -> None:
    world = World(60).node("n1", -1, capacity=False).counts("n1", 0, 60, -1, 0)
    assert found(world) == RuleDetection()


def test_a_cordoned_node_is_not_found() -> None:
    assert found(node(schedulable=0)) == RuleDetection()


def test_a_new_node_has_ten_minutes() -> None:
    def fresh(minutes: float) -> World:
        world = World(20 + minutes).node("n1", start=20, capacity=False)
        return world.counts("n1", 20, 20 + minutes, 8, 0)

    assert found(fresh(19)).drafts == ()
    (draft,) = found(fresh(20)).drafts
    assert draft.since_ms == at(30)


def test_boards_that_are_sliced_anew_are_all_there() -> None:
    world = World(60).node("n1", capacity=False).counts("n1", 0, 30, 8, 8).counts("n1", 30, 60, -1, 0)
    world.counts("n1", 30, 60, 56, 56, resource="nvidia.com/mig-1g.10gb")
    assert found(world) == RuleDetection()


def test_shared_boards_are_counted_once() -> None:
    world = World(60).node("n1", capacity=False).counts("n1", 0, 60, 32, 24, replicas=4)
    (draft,) = found(world).drafts
    assert board_minutes(found(world)) == 2 * 60
    assert draft.variant == "fewer"


def test_none_at_all_while_somebody_waits_is_at_least_high() -> None:
    def waiting(products: str) -> FindingSeverity:
        (draft,) = found(node().waits("j", 0, products=products)).drafts
        return draft.at_least

    assert waiting("") is FindingSeverity.HIGH
    assert waiting("NVIDIA-H100-80GB-HBM3|other") is FindingSeverity.HIGH
    assert waiting("other") is FindingSeverity.INFO


@pytest.mark.parametrize(
    ("labels", "because"),
    [
        ({"nvidia.com/mig.config.state": "pending"}, "sliced anew"),
        ({"nvidia.com/gpu-driver-upgrade-state": "pod-restart-required"}, "being upgraded"),
    ],
)
def test_work_under_way_holds_it_back(labels: dict[str, str], because: str) -> None:
    world = node()
    world.overview = ClusterOverview(
        build.state(build.node("n1", 0, labels=labels, created_ms=at(-60)), at_ms=at(15))
    )
    (withheld,) = found(world).withheld
    assert because in withheld.because
    assert not withheld.lacks_data


def test_the_plugin_of_the_node_is_named() -> None:
    world = node()
    host = build.node("n1", 0, labels={"nvidia.com/mig.strategy": "mixed"}, created_ms=at(-60))
    plugin = build.pod(
        "my-device-plugin-x", node="n1", namespace="gpus", created_ms=at(-60), stuck="CrashLoopBackOff"
    )
    world.overview = ClusterOverview(build.state(host, plugin, at_ms=at(15)))
    (draft,) = found(world).drafts
    assert draft.action.patch == "kubectl -n gpus delete pod my-device-plugin-x"
    assert {each.name: each.value for each in draft.evidence}["pod my-device-plugin-x"] == "CrashLoopBackOff"


def test_it_is_over_when_they_are_back() -> None:
    world = World(60).node("n1", capacity=False)
    world.counts("n1", 0, 10, 8, 8).counts("n1", 10, 30, 8, 0).counts("n1", 30, 60, 8, 8)
    (draft,) = found(world).drafts
    assert (draft.since_ms, draft.ended_ms) == (at(10), at(30))
