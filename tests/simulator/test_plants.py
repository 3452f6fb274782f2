"""The anti-patterns that are in the month on purpose are really in its frames."""

from __future__ import annotations

from collections import Counter

import pandas as pd
import pytest

from gpucost.detectors.findings import WastePattern
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Window
from gpucost.simulator.cluster import SimulatedCluster
from gpucost.simulator.injected_patterns import InjectedPattern
from gpucost.simulator.scheduler import STEP_MS, SpareCapacity
from tests.support.simulated import simulated


@pytest.fixture(scope="module", params=[7, 8])
def cluster(request: pytest.FixtureRequest) -> SimulatedCluster:
    return simulated(request.param)


def _plant(cluster: SimulatedCluster, name: str) -> InjectedPattern:
    return next(plant for plant in cluster.plants if plant.name == name)


def _rows(cluster: SimulatedCluster, plant: InjectedPattern, window: Window | None = None) -> pd.DataFrame:
    """Activity of the plant's job in whole steps of its window."""
    frames, window = cluster.frames, window or plant.window
    uids = set(frames.allocations.loc[frames.allocations["job_uid"] == plant.uid, "pod_uid"])
    rows = frames.activity[frames.activity["pod_uid"].isin(uids)]
    return rows[(rows["start_ms"] >= window.start_ms) & (rows["end_ms"] <= window.end_ms)]


def test_all_of_them_are_there_and_within_the_month(cluster: SimulatedCluster) -> None:
    found = Counter(plant.pattern for plant in cluster.plants)
    assert found == {
        WastePattern.IDLE_ALLOCATION: 5,
        WastePattern.OVERSIZED_REQUEST: 1,
        WastePattern.GANG_STALL: 1,
        WastePattern.FRAGMENTATION: 2,
        WastePattern.QUOTA_STARVATION: 1,
        WastePattern.PREEMPTION_WASTE: 1,
        WastePattern.UNHEALTHY_ALLOCATED: 1,
        WastePattern.NOT_ADVERTISED: 1,
        WastePattern.CPU_ONLY_PODS: 1,
        WastePattern.RESERVED_UNUSED: 1,
    }
    assert cluster.plants == SimulatedCluster(cluster.seed).plants
    for plant in cluster.plants:
        assert plant.window == cluster.window.intersect(plant.window)
        assert plant.what
    assert [plant.name for plant in cluster.plants if not plant.is_found] == ["thumbnailer"]


@pytest.mark.parametrize(
    ("name", "hours"), [("finetune-bad-loader", 9), ("nb-weekend", 62), ("legacy-captioner", 48)]
)
def test_idle_jobs_do_nothing_at_all(cluster: SimulatedCluster, name: str, hours: int) -> None:
    plant = _plant(cluster, name)
    rows = _rows(cluster, plant)
    assert plant.window.length_ms == hours * HOUR_MS
    assert (rows["busy_ms"] == 0).all()
    seen = plant.window.length_ms - cluster.gap.overlap_ms(plant.window.start_ms, plant.window.end_ms)
    assert rows["held_ms"].sum() == plant.boards * seen
    before = _rows(cluster, plant, Window(plant.window.start_ms - HOUR_MS, plant.window.start_ms))
    assert (before["busy_ms"] > 0.8 * before["observed_ms"]).all()


def test_three_gpus_of_eight_are_never_used(cluster: SimulatedCluster) -> None:
    by_gpu = _rows(cluster, _plant(cluster, "finetune-five-of-eight")).groupby("gpu", observed=True)
    busy = by_gpu["busy_ms"].sum() / by_gpu["observed_ms"].sum()
    assert sorted(busy > 0.8) == [False] * 3 + [True] * 5
    assert (busy[busy < 0.8] == 0).all()


def test_a_server_with_a_request_now_and_then_is_no_plant(cluster: SimulatedCluster) -> None:
    plant = _plant(cluster, "thumbnailer")
    rows = _rows(cluster, plant).sort_values("start_ms")
    assert not plant.is_found
    bursts = rows.loc[rows["busy_ms"] > 0, "start_ms"]
    assert 0.05 < len(bursts) / len(rows) < 0.2
    assert bursts.diff().max() <= 45 * MINUTE_MS


def test_the_small_job_would_fit_a_slice(cluster: SimulatedCluster) -> None:
    rows = _rows(cluster, _plant(cluster, "embed-small"))
    assert 0.02 < rows["sm_active_ms"].sum() / rows["sm_observed_ms"].sum() < 0.12
    assert rows["memory_used_bytes"].quantile(0.99) < 0.8 * 9.75 * 2**30
    assert rows["held_ms"].sum() > 24 * HOUR_MS


def test_the_gang_stalls_until_its_last_rank_comes(cluster: SimulatedCluster) -> None:
    plant = _plant(cluster, "pretrain-late-rank")
    (row,) = cluster.frames.stalls.to_dict("records")
    assert (row["job_uid"], row["min_members"], row["running"], row["pending"]) == (plant.uid, 4, 3, 1)
    assert Window(row["start_ms"], row["end_ms"]) == plant.window
    assert plant.window.length_ms == 50 * MINUTE_MS
    held = cluster.frames.allocations.query("job_uid == @plant.uid")
    assert Counter(held["start_ms"]) == {plant.window.start_ms: 3, plant.window.end_ms: 1}
    assert (_rows(cluster, plant)["busy_ms"] == 0).all()


@pytest.fixture(scope="module")
def rooms(cluster: SimulatedCluster) -> SpareCapacity:
    placed = [pod for pod in cluster.placements if pod is not cluster.extra]
    return SpareCapacity(cluster.nodes, placed, cluster.window)


def _free(cluster: SimulatedCluster, rooms: SpareCapacity, window: Window) -> dict[str, int]:
    """The fewest free units of each h100 node in the window."""
    step = (window.start_ms - cluster.window.start_ms) // STEP_MS
    names = [node.name for node in cluster.nodes if node.pool == "h100"]
    return {name: int(rooms.least(name, window.length_ms // STEP_MS)[step]) for name in names}


def test_two_jobs_wait_beside_gpus_in_pieces(cluster: SimulatedCluster, rooms: SpareCapacity) -> None:
    for name in ("finetune-blocked-a", "finetune-blocked-b"):
        plant = _plant(cluster, name)
        (row,) = cluster.frames.demand.query("job_uid == @plant.uid").to_dict("records")
        assert (row["layer"], row["pods"], row["units"]) == ("placement", 1, 8)
        assert Window(row["start_ms"], row["end_ms"]) == plant.window
        assert plant.window.length_ms == 4 * HOUR_MS
        assert sum(_free(cluster, rooms, plant.window).values()) >= 12
        for start_ms in range(plant.window.start_ms, plant.window.end_ms, STEP_MS):
            assert max(_free(cluster, rooms, Window(start_ms, start_ms + STEP_MS)).values()) < 8


def test_a_queue_at_its_limit_waits_beside_free_gpus(cluster: SimulatedCluster, rooms: SpareCapacity) -> None:
    plant = _plant(cluster, "grasp-eval")
    (row,) = cluster.frames.demand.query("job_uid == @plant.uid").to_dict("records")
    assert (row["layer"], row["cluster_queue"], row["units"]) == ("quota", "product", 4)
    quotas = cluster.frames.quotas.query("queue == 'product' and flavor == 'h100'")
    during = quotas[(quotas["start_ms"] < plant.window.end_ms) & (quotas["end_ms"] > plant.window.start_ms)]
    assert (during["used"] == during["nominal"]).all()
    assert (during["borrowing_limit"] == 0).all()
    assert max(_free(cluster, rooms, plant.window).values()) >= 4


def test_one_job_is_preempted_four_times_in_a_day(cluster: SimulatedCluster) -> None:
    plant = _plant(cluster, "sim-grid")
    mine = cluster.frames.evictions.query("job_uid == @plant.uid")
    assert mine["reason"].tolist() == ["Preempted"] * 4
    assert mine["by"].nunique() == 4
    assert plant.window.length_ms < 24 * HOUR_MS


def test_the_broken_board_is_held_and_not_measured(cluster: SimulatedCluster) -> None:
    plant = next(each for each in cluster.plants if each.pattern is WastePattern.UNHEALTHY_ALLOCATED)
    (row,) = cluster.frames.health.query("reason == 'xid_79'").to_dict("records")
    assert (row["node"], Window(row["start_ms"], row["end_ms"])) == (plant.node, plant.window)
    before = Window(plant.window.start_ms - HOUR_MS // 2, plant.window.start_ms)
    assert row["gpu"] in set(_rows(cluster, plant, before)["gpu"])
    during = _rows(cluster, plant)
    assert len(during) > 0
    assert row["gpu"] not in set(during["gpu"])
    held = cluster.frames.allocations.query("job_uid == @plant.uid")
    assert held["end_ms"].max() >= plant.window.end_ms
    assert plant.window.length_ms == 3 * HOUR_MS


def test_the_reserve_is_hardly_used(cluster: SimulatedCluster) -> None:
    rows = cluster.frames.quotas.query("queue == 'release'")
    length = rows["end_ms"] - rows["start_ms"]
    assert set(rows["nominal"]) == {16.0}
    assert rows["used"].max() == 2
    assert length[rows["used"] == 0].sum() / length.sum() > 0.99
