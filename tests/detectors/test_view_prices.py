"""What a view costs: the price of the nodes, flavor or queue it is about. Figures by hand, in comments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpucost.cluster.objects.kueue import ResourceFlavor
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.detectors.engine.evaluation import evaluate
from gpucost.detectors.findings import Finding, ViewTime, WastePattern
from gpucost.detectors.inputs.detector_facts import DetectorFacts, GpuTimePrices
from gpucost.detectors.rule_settings import RuleSettings
from gpucost.domain.money import NANO
from gpucost.domain.rates import NodeFacts, Rate, RateSpan
from gpucost.domain.time import DAY_MS, HOUR_MS, Window
from tests.cluster import builders as build
from tests.detectors.case_cpu_only_pods import crowded
from tests.detectors.worlds import CLUSTER, T0, World, at

WEEK = 7 * 24 * 60
A100 = "NVIDIA-A100-SXM4-80GB"
HOURLY = {"H100": 6.2, "A100": 0.8}


def _rate(usd: float) -> Rate:
    nano = round(usd * NANO)
    return Rate(f"r{usd}", nano, "USD", nano, "model", "test", "2026-10-01")


def by_model(facts: NodeFacts, window: Window) -> Sequence[RateSpan]:
    model = next(name for name in HOURLY if name in facts.model)
    return (RateSpan(window.start_ms, window.end_ms, _rate(HOURLY[model])),)


def dearer_at_noon(facts: NodeFacts, window: Window) -> Sequence[RateSpan]:
    del facts
    noon = T0 + 12 * HOUR_MS
    return tuple(
        RateSpan(start, end, _rate(usd))
        for start, end, usd in ((window.start_ms, noon, 2.0), (noon, window.end_ms, 3.0))
    )


def _facts(world: World, overview: ClusterOverview | None = None, rates: object = by_model) -> DetectorFacts:
    facts = world.facts()
    prices = GpuTimePrices(facts.history, rates)  # type: ignore[arg-type]
    return replace(facts, prices=prices, overview=overview or facts.overview)


def _only(facts: DetectorFacts, pattern: WastePattern) -> Finding:
    (found,) = (each for each in evaluate(facts, RuleSettings()).findings if each.draft.pattern is pattern)
    return found


def mixed(minutes: float = WEEK) -> World:
    """One node of eight H100 at 6.20 an hour, three of four A100 at 0.80."""
    world = World(minutes).node("h", 8)
    for name in ("a1", "a2", "a3"):
        world.node(name, 4, product=A100)
    return world


def test_blocked_gpus_of_a_node_cost_what_that_node_costs() -> None:
    world = crowded(8, minutes=120)
    world.node("dear", 8)
    world.rows["nodes"][0]["product"] = A100
    found = _only(_facts(world), WastePattern.CPU_ONLY_PODS)
    # One GPU of an A100 node for two hours at 0.80; the mean of both nodes, 3.50, has nothing to do with it.
    assert found.wasted.board_ms == 2 * HOUR_MS
    assert found.wasted.nano == round(1.6 * NANO)
    assert (found.boards_now, found.nano_per_hour) == (1.0, round(0.8 * NANO))


@pytest.mark.parametrize("known_by", ["labels of the flavor", "work that ran on it", "nothing"])
def test_unused_quota_of_a_flavor_costs_what_the_flavors_nodes_cost(known_by: str) -> None:
    world, overview = mixed().quota("q", 8, 2, flavor="h100"), None
    if known_by == "labels of the flavor":
        nodes = [build.node(name, labels={"gpu": gpu}) for name, gpu in (("h", "h100"), ("a1", "a100"))]
        flavor = ResourceFlavor(build.meta("h100", ""), {"gpu": "h100"})
        overview = ClusterOverview(build.state(*nodes, flavor, at_ms=at(WEEK)))
    elif known_by == "work that ran on it":
        world.pod("p", "h", 0, units=2, cluster_queue="q")
        world.rows["allocations"][0]["flavor"] = "h100"
    found = _only(_facts(world, overview), WastePattern.RESERVED_UNUSED)
    # 8 - 2 unused over the last 24 hours. By the flavor: at 6.20. Where nothing says which nodes it is of,
    # at the mean over GPUs: (8 x 6.20 + 12 x 0.80) / 20 = 2.96 (over nodes it were 2.15).
    assert found.wasted.board_ms == 6 * DAY_MS
    usd = 2.96 if known_by == "nothing" else 6.2
    assert found.wasted.nano == round(6 * 24 * usd * NANO)


def test_a_unit_of_quota_is_what_it_is_on_the_nodes_of_its_flavor() -> None:
    world = mixed().node("shared", 4, product="NVIDIA-A100-SHARED", units=16, replicas=4)
    world.quota("q", 8, 2, flavor="h100").pod("p", "h", 0, units=2, cluster_queue="q")
    world.rows["allocations"][0]["flavor"] = "h100"
    found = _only(_facts(world), WastePattern.RESERVED_UNUSED)
    # A unit of h100 is a GPU: 6 x 24 hours. The mean over all nodes, (4 x 1 + 1/4) / 5 = 0.85 GPUs, is of
    # nodes that the quota is not of.
    assert found.wasted.board_ms == 6 * DAY_MS
    assert found.wasted.nano == round(6 * 24 * 6.2 * NANO)
    assert found.draft.action.frees_boards == 5


def test_quota_of_two_flavors_by_what_each_left_unused() -> None:
    world = mixed().quota("q", 8, 0, flavor="h100").quota("q", 12, 2, flavor="a100")
    world.pod("p", "h", 0, 1, cluster_queue="q").pod("r", "a1", 0, 1, cluster_queue="q")
    for row, flavor in zip(world.rows["allocations"], ("h100", "a100"), strict=True):
        row["flavor"] = flavor
    found = _only(_facts(world), WastePattern.RESERVED_UNUSED)
    # 18 unused: 8 at 6.20 and 10 at 0.80.
    assert found.wasted.nano == round(24 * (8 * 6.2 + 10 * 0.8) * NANO)


def test_a_price_that_changes_splits_the_time() -> None:
    prices = _facts(mixed(24 * 60), rates=dearer_at_noon).prices
    day = ViewTime(T0, T0 + DAY_MS, 4.0 * DAY_MS, ("h",))
    assert prices.mean_nano(CLUSTER, day) == 4 * (12 * 2 + 12 * 3) * NANO
    late = day.within(Window(T0 + 11 * HOUR_MS, T0 + 13 * HOUR_MS))
    assert prices.mean_nano(CLUSTER, late) == 4 * (2 + 3) * NANO


def test_of_a_view_that_lasts_longer_only_the_last_day_is_its_waste() -> None:
    world = crowded(8, minutes=3 * 24 * 60)
    found = _only(_facts(world), WastePattern.CPU_ONLY_PODS)
    assert found.wasted.board_ms == DAY_MS
    whole = ViewTime(T0, T0 + 3 * DAY_MS, 3.0 * DAY_MS, ("n1",))
    assert whole.within(Window(T0 + 2 * DAY_MS, T0 + 3 * DAY_MS)).board_ms == DAY_MS
    assert whole.within(Window(T0 + 5 * DAY_MS, T0 + 6 * DAY_MS)).board_ms == 0


def test_without_any_price_there_is_no_cost() -> None:
    def none(facts: NodeFacts, window: Window) -> Sequence[RateSpan]:
        del facts
        return (RateSpan(window.start_ms, window.end_ms, None),)

    prices = _facts(mixed(60), rates=none).prices
    assert prices.mean_nano(CLUSTER, ViewTime(T0, at(60), 1.0 * HOUR_MS, ("h",))) is None
    assert prices.mean_nano(CLUSTER, ViewTime(T0, at(60), 0.0)) == 0
