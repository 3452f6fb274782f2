"""The simulated cluster: the same seed gives the same frames, no pod is given what does not exist, and the
ground truth agrees with the frames and with attribution."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import accumulate

import pandas as pd
import pytest

from gpucost.attribution.frames import ClusterFrames
from gpucost.contract.frames import FRAMES
from gpucost.detectors.findings import WastePattern
from gpucost.domain.buckets import NO_TEAM
from gpucost.domain.gpu import ResourceCatalog
from gpucost.domain.jobs import JobKind
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Month
from gpucost.simulator.cluster import SimulatedCluster
from gpucost.simulator.inventory import POOLS
from gpucost.simulator.scheduler import PodPlacement, SimulatedOutcome
from tests.support.simulated import simulated

SEEDS = (7, 8, 9)


@pytest.fixture(scope="module")
def cluster() -> SimulatedCluster:
    return simulated()


def _frames_of(frames: ClusterFrames) -> dict[str, pd.DataFrame]:
    return {spec.name: getattr(frames, spec.name) for spec in FRAMES}


@pytest.mark.slow
def test_same_seed_gives_the_same_frames_and_another_seed_gives_others(cluster: SimulatedCluster) -> None:
    again, other = SimulatedCluster(seed=7), simulated(8)
    for name, frame in _frames_of(cluster.frames).items():
        same = _frames_of(again.frames)[name]
        # Which says where they differ, and looks at every row for that.
        if not frame.equals(same):
            pd.testing.assert_frame_equal(frame, same)
            pytest.fail(f"{name} is another")
    assert cluster.frames.problems == again.frames.problems
    assert cluster.ground_truth == again.ground_truth
    assert not cluster.frames.allocations.equals(other.frames.allocations)


def test_it_is_the_cluster_the_demo_promises(cluster: SimulatedCluster) -> None:
    assert sum(pool.nodes * pool.boards for pool in POOLS) >= 96
    catalog = ResourceCatalog()
    models = {
        catalog.unit(offer.resource, node.product, offer.replicas).model
        for node in cluster.nodes
        for offer in node.offers
    }
    assert models == {"H100", "A100-80GB", "L4"}
    assert len(cluster.ground_truth.held_ms.keys() - {NO_TEAM}) == 6
    assert cluster.window == Month(2026, 10).window
    kinds = set(cluster.frames.allocations["job_kind"])
    wanted = (
        "PyTorchJob", "JobSet", "VolcanoJob", "RayCluster", "Deployment", "Notebook", "Pod", "CronJob", "Job"
    )  # fmt: skip
    assert kinds >= set(wanted)


def test_shares_written_out_by_hand_are_those_of_the_catalog(cluster: SimulatedCluster) -> None:
    catalog = ResourceCatalog()
    for node in cluster.nodes:
        for offer in node.offers:
            assert catalog.unit(offer.resource, node.product, offer.replicas).share == offer.share


@pytest.mark.parametrize("seed", SEEDS)
def test_the_scheduler_never_gives_out_more_than_a_node_advertises(seed: int) -> None:
    cluster = simulated(seed)
    for node in cluster.nodes:
        for offer in node.offers:
            pods = [
                pod
                for pod in cluster.placements
                if pod.node == node.name and pod.submission.resource == offer.resource
            ]
            assert all(pod.end_ms <= node.end_ms for pod in pods)
            kept = [pod for pod in pods if pod is not cluster.extra]
            assert _most(kept) <= offer.units
            for spell in node.spells:
                within = [pod for pod in kept if pod.start_ms < spell.end_ms and pod.end_ms > spell.start_ms]
                assert _most(within, from_ms=spell.start_ms, to_ms=spell.end_ms) <= offer.units - spell.lost
                if spell.cordoned:
                    assert not [pod for pod in within if pod.start_ms >= spell.start_ms]


def _most(pods: list[PodPlacement], from_ms: int = 0, to_ms: int = 10**15) -> int:
    """The most units held at once by ``pods`` in a stretch of time."""
    changes = Counter[int]()
    for pod in pods:
        changes[max(pod.start_ms, from_ms)] += pod.submission.units
        changes[min(pod.end_ms, to_ms)] -= pod.submission.units
    return max(accumulate(change for _, change in sorted(changes.items())), default=0)


def test_gangs_start_and_end_together(cluster: SimulatedCluster) -> None:
    gangs: dict[tuple[str, int], set[tuple[int, int]]] = {}
    sizes = Counter[tuple[str, int]]()
    late = {plant.uid for plant in cluster.plants if plant.pattern is WastePattern.GANG_STALL}
    for pod in cluster.placements:
        submission = pod.submission
        if submission.pods > 1 and submission.job.uid not in late:
            key = (submission.job.uid, submission.attempt)
            gangs.setdefault(key, set()).add((pod.start_ms, pod.end_ms))
            sizes[key] += 1
            assert sizes[key] <= submission.pods
    assert len(gangs) > 100
    assert all(len(spans) == 1 for spans in gangs.values())


def test_the_deliberate_double_booking_is_one_unit_for_25_minutes(cluster: SimulatedCluster) -> None:
    extra = cluster.extra
    on_node = [pod for pod in cluster.placements if pod.node == extra.node]
    assert _most(on_node, extra.start_ms, extra.end_ms) == 9
    assert cluster.ground_truth.overcommitted_ms == 25 * MINUTE_MS


def test_mishaps_are_in_the_frames(cluster: SimulatedCluster) -> None:
    frames, gap = cluster.frames, cluster.gap
    assert gap.length_ms == 40 * MINUTE_MS
    assert frames.observed["end_ms"].tolist() == [gap.start_ms, cluster.window.end_ms]
    lost = frames.allocations[frames.allocations["pod_uid"].isin([p.subject for p in frames.problems])]
    assert len(lost) == len(frames.problems) >= 1
    assert set(lost["end_ms"]) == {gap.start_ms}
    capacity = frames.capacity
    cordoned = capacity[capacity["schedulable"] == 0]
    assert (cordoned["end_ms"] - cordoned["start_ms"]).tolist() == [2 * DAY_MS]
    assert capacity[capacity["allocatable"] < capacity["expected"]]["allocatable"].tolist() == [7]
    moved = frames.allocations[frames.allocations["job"] == cluster.hand_over.job]
    before = moved[moved["end_ms"] <= cluster.hand_over.at_ms]
    after = moved[moved["start_ms"] >= cluster.hand_over.at_ms]
    assert len(before) + len(after) == len(moved)
    assert set(before["team_label"]) == {"ranking"}
    assert set(after["team_label"]) == {"vision"}
    outcomes = {pod.outcome for pod in cluster.placements}
    assert outcomes == set(SimulatedOutcome)


def test_time_held_in_the_frames_is_the_ground_truth(cluster: SimulatedCluster) -> None:
    """Rows of known labels, weighted by hand-written shares, add up to what the scheduler did."""
    shares = {(node.name, o.resource): o.share for node in cluster.nodes for o in node.offers}
    total = Fraction(0)
    for row in cluster.frames.allocations.itertuples():
        inside = cluster.window.overlap_ms(row.start_ms, row.end_ms)
        total += shares[row.node, row.resource] * row.count * inside
    truth = cluster.ground_truth
    assert total == sum(truth.held_ms.values()) + truth.overcommitted_ms
    assert truth.capacity_ms == sum(n.boards * (n.end_ms - n.start_ms) for n in cluster.nodes)


def test_weekends_are_quiet_and_short_jobs_are_many(cluster: SimulatedCluster) -> None:
    started = [pod.start_ms for pod in cluster.placements if pod.submission.job.kind is JobKind.JOB]
    weekend = [t for t in started if (t // DAY_MS + 3) % 7 >= 5]
    assert len(weekend) < len(started) * 2 / 7 / 1.5
    seconds = [pod for pod in cluster.placements if pod.end_ms - pod.start_ms < MINUTE_MS]
    assert len(seconds) > 1_000


def test_signals_are_plausible_and_null_where_nothing_measures(cluster: SimulatedCluster) -> None:
    signals = cluster.frames.signals
    assert not signals["node"].eq("a100-03").any()
    l4 = signals["node"].str.startswith("l4")
    assert signals.loc[l4, ["sm_observed_ms", "sm_active_ms", "tensor_active_ms"]].isna().all(axis=None)
    sliced = signals["node"].isin(["h100-sliced-01", "h100-mixed-01"])
    assert signals.loc[sliced, ["observed_ms", "busy_ms"]].isna().all(axis=None)
    assert signals.loc[~l4 & ~sliced].notna().all(axis=None)
    assert (signals["busy_ms"] <= signals["observed_ms"]).sum() == signals["busy_ms"].notna().sum()
    assert (signals["tensor_active_ms"] <= signals["sm_active_ms"]).sum() == signals[
        "sm_active_ms"
    ].notna().sum()
    assert (signals["end_ms"] - signals["start_ms"]).between(1, HOUR_MS).all()
    busy = signals["busy_ms"].sum() / signals["observed_ms"].sum()
    sm = signals["sm_active_ms"].sum() / signals["sm_observed_ms"].sum()
    assert 0.4 < busy < 0.9
    assert sm < busy


def test_progress_rises_only_for_training(cluster: SimulatedCluster) -> None:
    progress, allocations = cluster.frames.progress, cluster.frames.allocations
    kinds = allocations.set_index("pod_uid")["job_kind"].loc[progress["pod_uid"].unique()]
    assert set(kinds) == {"PyTorchJob", "TrainJob"}
    assert set(progress["name"]) == {"steps", "tokens"}
    assert (progress["amount"] >= 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("month", [Month(2024, 2), Month(2027, 1)])
def test_any_month_works(month: Month) -> None:
    cluster = SimulatedCluster(seed=3, month=month)
    assert cluster.frames.observed["start_ms"].min() == month.window.start_ms
    assert cluster.frames.observed["end_ms"].max() == month.window.end_ms


@pytest.mark.slow
def test_scale_multiplies_nodes_and_work(cluster: SimulatedCluster) -> None:
    twice = SimulatedCluster(seed=7, scale=2)
    boards = sum(pool.nodes * pool.boards for pool in POOLS)
    assert sum(n.boards for n in twice.nodes) > 1.9 * boards
    assert len(twice.placements) > 1.8 * len(cluster.placements)


@pytest.mark.fault(38)
def test_preempted_evicted_failed_and_pending_hold_time_only_while_bound(cluster: SimulatedCluster) -> None:
    allocations = cluster.frames.allocations
    by_name = dict(list(allocations.groupby("job")))
    assert "too-big" not in by_name
    assert [submission.job.name for submission in cluster.never_bound].count("too-big") == 1
    bad_image = by_name["bad-image"]
    assert (bad_image["end_ms"] - bad_image["start_ms"]).between(3 * MINUTE_MS, 4 * MINUTE_MS).all()
    for outcome in (SimulatedOutcome.PREEMPTED, SimulatedOutcome.EVICTED):
        cut = next(p for p in cluster.placements if p.outcome is outcome and p.submission.restarts)
        pods = by_name[cut.submission.job.name]
        later = pods[pods["start_ms"] > cut.end_ms]
        assert ((pods["start_ms"] == cut.start_ms) & (pods["end_ms"] == cut.end_ms)).any()
        assert len(later) > 0
