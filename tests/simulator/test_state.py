"""The simulated cluster's objects at an instant: what pods hold is what the frames say."""

from __future__ import annotations

from collections import Counter

import pytest

from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.contract.queue_metrics import WaitLayer
from gpucost.detectors.findings import WastePattern
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS
from gpucost.simulator.cluster import CPU_NODE, SimulatedCluster
from gpucost.simulator.injected_patterns import InjectedPattern
from gpucost.simulator.state import cluster_state
from gpucost.simulator.state_workloads import BLOCK, RACK, ZONE
from tests.support.simulated import simulated


@pytest.fixture(scope="module")
def cluster() -> SimulatedCluster:
    return simulated()


def _plant(cluster: SimulatedCluster, name: str) -> InjectedPattern:
    return next(plant for plant in cluster.plants if plant.name == name)


@pytest.mark.parametrize("hours", [12, 100, 4.5 * 24, 9.9 * 24, 11.2 * 24, 14.8 * 24, 17.6 * 24, 30 * 24])
def test_units_held_and_advertised_are_those_of_the_frames(cluster: SimulatedCluster, hours: float) -> None:
    at_ms = cluster.window.start_ms + int(hours * HOUR_MS)
    state = cluster_state(cluster, at_ms)
    overview = ClusterOverview(state)
    held = Counter[tuple[str, str]]()
    for pod in state.pods.values():
        if pod.is_bound:
            held.update({(pod.node, name): units for name, units in overview.units.of(pod).items()})
    frame = cluster.frames.allocations
    here = frame[(frame["start_ms"] <= at_ms) & (frame["end_ms"] > at_ms)]
    assert dict(held) == here.groupby(["node", "resource"])["count"].sum().to_dict()
    capacity = cluster.frames.capacity
    capacity = capacity[(capacity["start_ms"] <= at_ms) & (capacity["end_ms"] > at_ms)]
    for row in capacity.itertuples():
        node = state.node_by_name[row.node]
        assert node.allocatable[row.resource] == row.allocatable
        assert node.expected[row.resource] == row.expected
        assert node.is_schedulable == bool(row.schedulable)
        assert {ZONE, BLOCK, RACK} <= set(node.labels)
    assert set(state.node_by_name) == set(capacity["node"])
    assert not overview.problems


def test_pods_belong_to_whom_the_frames_say(cluster: SimulatedCluster) -> None:
    at_ms = cluster.window.start_ms + 20 * DAY_MS + 12 * HOUR_MS
    state = cluster_state(cluster, at_ms)
    overview = ClusterOverview(state)
    frame = cluster.frames.allocations
    here = frame[(frame["start_ms"] <= at_ms) & (frame["end_ms"] > at_ms)].set_index("pod_uid")
    for uid, row in here.iterrows():
        found = overview.ownership.of(state.pods[str(uid)])
        assert (found.job.name, found.job.kind) == (row["job"], row["job_kind"]) or row["job_kind"] == "Pod"
        assert (found.queue, found.cluster_queue) == (row["queue"], row["cluster_queue"])
        assert (found.flavor, found.team, found.user) == (row["flavor"], row["team_label"], row["user"])


def test_quota_in_use_is_that_of_the_frame(cluster: SimulatedCluster) -> None:
    at_ms = cluster.window.start_ms + 8 * DAY_MS + 15 * HOUR_MS
    state = cluster_state(cluster, at_ms)
    frame = cluster.frames.quotas
    here = frame[(frame["start_ms"] <= at_ms) & (frame["end_ms"] > at_ms)]
    found = {
        (queue.name, key.flavor, key.resource): (float(queue.quotas[key].nominal), float(use.total))
        for queue in state.cluster_queues.values()
        for key, use in queue.used.items()
    }
    keys = zip(here["queue"], here["flavor"], here["resource"], strict=True)
    assert found == dict(zip(keys, zip(here["nominal"], here["used"], strict=True), strict=True))
    assert {queue.cohort for queue in state.cluster_queues.values()} == {"company", ""}


def test_a_gang_without_its_last_rank_is_partial(cluster: SimulatedCluster) -> None:
    plant = _plant(cluster, "pretrain-late-rank")
    during = ClusterOverview(cluster_state(cluster, plant.window.start_ms + 20 * MINUTE_MS))
    (gang,) = (gang for gang in during.gangs if gang.is_partial)
    assert (gang.job.name, gang.running, gang.pending, gang.min_members) == (plant.name, 3, 1, 4)
    assert gang.partial_since_ms == plant.window.start_ms
    after = ClusterOverview(cluster_state(cluster, plant.window.end_ms + MINUTE_MS))
    assert not [gang for gang in after.gangs if gang.is_partial]


@pytest.mark.parametrize(
    ("name", "layer", "reason"),
    [
        ("finetune-blocked-a", WaitLayer.PLACEMENT, "Unschedulable"),
        ("grasp-eval", WaitLayer.QUOTA, "WaitingForQuota"),
    ],
)
def test_what_waits_waits_for_what_the_frame_says(
    cluster: SimulatedCluster, name: str, layer: WaitLayer, reason: str
) -> None:
    plant = _plant(cluster, name)
    at_ms = plant.window.start_ms + HOUR_MS
    state = cluster_state(cluster, at_ms)
    overview = ClusterOverview(state)
    holds = {
        overview.ownership.job_of(state.workloads[uid]).name: hold for uid, hold in overview.holds.items()
    }
    assert (holds[name].layer, holds[name].reason) == (layer, reason)
    frame = cluster.frames.demand
    here = frame[(frame["start_ms"] <= at_ms) & (frame["end_ms"] > at_ms) & (frame["queue"] != "")]
    assert set(here["job"]) <= set(holds)
    assert all(holds[row.job].layer == row.layer for row in here.itertuples())


def test_pods_without_gpus_stand_where_no_taint_keeps_them_away(cluster: SimulatedCluster) -> None:
    plant = next(plant for plant in cluster.plants if plant.pattern is WastePattern.CPU_ONLY_PODS)
    state = cluster_state(cluster, cluster.window.start_ms + 3 * DAY_MS)
    units = ClusterOverview(state).units
    without = [pod for pod in state.pods.values() if pod.is_bound and not units.of(pod)]
    assert {pod.node for pod in without} == {CPU_NODE} == {plant.node}
    assert len(without) == 2
    assert [node.meta.name for node in state.nodes.values() if not node.taints] == [CPU_NODE]
    for node in state.nodes.values():
        asked = sum(pod.requests["cpu"] for pod in state.pods.values() if pod.node == node.meta.name)
        assert asked <= node.allocatable["cpu"]


def test_no_workload_waits_while_its_job_holds_gpus(cluster: SimulatedCluster) -> None:
    """Neither one of a job that failed and was submitted again, nor one that runs by now."""
    at_ms = cluster.window.end_ms - 1
    ends: dict[str, set[int]] = {}
    for pod in cluster.placements:
        ends.setdefault(pod.submission.job.uid, set()).add(pod.end_ms)
    seen = Counter[bool]()
    for each in cluster_state(cluster, at_ms).workloads.values():
        since_ms = each.queued_since_ms
        if each.meta.owner is not None and since_ms is not None:
            until_ms = at_ms if each.admitted_ms is None else each.admitted_ms
            held = [end_ms for end_ms in ends.get(each.meta.owner.uid, ()) if end_ms <= until_ms]
            assert since_ms >= max(held, default=0), each.meta.name
            seen[each.has_quota] += bool(held)
    assert set(seen) == {True, False}
    assert min(seen.values()) > 0


def test_an_evicted_workload_says_so_as_kueue_does(cluster: SimulatedCluster) -> None:
    uid, ((first_ms, _), (second_ms, _), *_) = next(
        (uid, times) for uid, times in cluster.evicted.items() if len(times) >= 4
    )

    def seen(at_ms: int) -> Workload:
        workloads = cluster_state(cluster, at_ms).workloads.values()
        return next(each for each in workloads if each.meta.owner is not None and each.meta.owner.uid == uid)

    waits, runs, again = (seen(each) for each in (first_ms + MINUTE_MS, second_ms - 1, second_ms + MINUTE_MS))
    assert (waits.waiting_since_ms, waits.meta.created_ms < first_ms) == (first_ms, True)
    assert (runs.conditions["Evicted"].status, runs.conditions["Requeued"].status) == (False, True)
    assert runs.queued_since_ms is not None
    assert 0 <= runs.queued_since_ms - first_ms < MINUTE_MS
    assert again.waiting_since_ms == second_ms
    assert sum(each.times for each in again.evictions) == 2
