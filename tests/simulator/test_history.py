"""What detectors look at of the simulated month: the frames agree with one another and with what happened."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gpucost.domain.time import HOUR_MS, MINUTE_MS, Window
from gpucost.simulator.cluster import SimulatedCluster
from gpucost.simulator.history import StepSeries
from gpucost.simulator.scheduler import SimulatedOutcome
from tests.support.simulated import simulated

STEP_MS = 5 * MINUTE_MS
SUMS = ("observed_ms", "busy_ms", "sm_observed_ms", "sm_active_ms")


@pytest.fixture(scope="module")
def cluster() -> SimulatedCluster:
    return simulated()


@pytest.fixture(scope="module")
def activity(cluster: SimulatedCluster) -> pd.DataFrame:
    return cluster.frames.activity


def test_signals_are_the_sums_of_activity(cluster: SimulatedCluster, activity: pd.DataFrame) -> None:
    signals = cluster.frames.signals
    hour = activity["start_ms"] // HOUR_MS
    sums = activity.assign(hour=hour).groupby(["pod_uid", "hour"], observed=True)[list(SUMS)].sum(min_count=1)
    by_hour = signals.assign(hour=signals["start_ms"] // HOUR_MS)
    said = by_hour.groupby(["pod_uid", "hour"])[list(SUMS)].sum(min_count=1)
    assert len(said) == len(sums) > 50_000
    pd.testing.assert_frame_equal(
        sums.reset_index().astype({"pod_uid": "str"}).sort_values(["pod_uid", "hour"], ignore_index=True),
        said.reset_index().sort_values(["pod_uid", "hour"], ignore_index=True),
        rtol=1e-9,
    )


def test_steps_are_aligned_and_cut_where_a_pod_begins_and_ends(
    cluster: SimulatedCluster, activity: pd.DataFrame
) -> None:
    lives = cluster.frames.allocations.groupby("pod_uid").agg(
        start=("start_ms", "min"), end=("end_ms", "max")
    )
    of = lives.loc[activity["pod_uid"].astype("str")]
    start, end = activity["start_ms"].to_numpy(), activity["end_ms"].to_numpy()
    assert ((start % STEP_MS == 0) | (start == of["start"].to_numpy())).all()
    assert ((end % STEP_MS == 0) | (end == of["end"].to_numpy())).all()
    assert (start // STEP_MS == (end - 1) // STEP_MS).all()
    assert (activity["held_ms"] > 0).all()
    assert (activity["busy_ms"].fillna(0) <= activity["observed_ms"].fillna(0)).all()
    assert (activity["memory_used_bytes"] <= activity["memory_total_bytes"]).all()


def test_a_gpu_is_held_by_one_pod_at_a_time(cluster: SimulatedCluster, activity: pd.DataFrame) -> None:
    """But for GPUs that are shared, and for the one that was booked twice."""
    extra = cluster.names[len(cluster.placements) - 1][1]
    alone = activity[~activity["node"].astype("str").str.startswith("l4-shared")]
    rows = alone[alone["pod_uid"] != extra].sort_values(["gpu", "start_ms"])
    same = rows["gpu"].to_numpy()[1:] == rows["gpu"].to_numpy()[:-1]
    assert (rows["start_ms"].to_numpy()[1:] >= rows["end_ms"].to_numpy()[:-1])[same].all()
    gpus = activity[["node", "gpu"]].drop_duplicates().astype("str")
    assert not gpus["gpu"].duplicated().any()
    boards = gpus.assign(gpu=gpus["gpu"].str.partition("/")[0]).drop_duplicates().groupby("node").size()
    assert all(boards[node.name] <= node.boards for node in cluster.nodes if node.name in boards)
    counts = cluster.frames.allocations.drop_duplicates("pod_uid").set_index("pod_uid")["count"]
    held = activity.groupby("pod_uid", observed=True)["gpu"].nunique()
    assert (held == counts.loc[held.index.astype("str")].to_numpy()).all()


def test_what_is_not_measured_is_absent(cluster: SimulatedCluster, activity: pd.DataFrame) -> None:
    node = activity["node"].astype("str")
    assert not (node == "a100-03").any()
    sliced = node.str.startswith(("h100-sliced", "h100-mixed"))
    assert activity["gpu"].astype("str").str.contains("/").equals(sliced)
    assert activity.loc[sliced, ["observed_ms", "busy_ms"]].isna().all(axis=None)
    assert activity.loc[sliced, ["sm_observed_ms", "sm_active_ms"]].notna().all(axis=None)
    small = node.str.startswith("l4")
    assert activity.loc[small, ["sm_observed_ms", "sm_active_ms"]].isna().all(axis=None)
    gap = cluster.gap
    assert not ((activity["start_ms"] < gap.end_ms) & (activity["end_ms"] > gap.start_ms)).any()


def test_idleness_comes_in_whole_steps_and_has_the_power_of_idleness(activity: pd.DataFrame) -> None:
    h100 = activity[activity["node"].astype("str").str.match(r"h100-0\d$")]
    idle = h100[h100["busy_ms"] == 0]
    assert 0.03 < len(idle) / len(h100) < 0.15
    assert (idle["sm_active_ms"] == 0).all()
    watts = idle["energy_j"] / (idle["held_ms"] / 1000)
    assert watts.between(55, 80).all()
    busy = h100[h100["busy_ms"] > 0.9 * h100["observed_ms"]]
    assert (busy["energy_j"] / (busy["held_ms"] / 1000)).median() > 300


def test_who_waited_waited_until_it_began(cluster: SimulatedCluster) -> None:
    demand = cluster.frames.demand
    scripted = {held.wait.submission.job.uid for held in cluster.staged.waits}
    began: dict[str, set[int]] = {}
    for pod in cluster.placements:
        began.setdefault(pod.submission.job.uid, set()).add(pod.start_ms)
    by_job = dict(list(demand.groupby("job_uid")))
    open_ended = 0
    for wait in cluster.waits:
        rows = by_job[wait.submission.job.uid]
        rows = rows[(rows["start_ms"] >= wait.start_ms) & (rows["end_ms"] <= wait.end_ms)]
        assert rows["start_ms"].min() == wait.start_ms
        assert rows["end_ms"].max() == wait.end_ms
        if wait.end_ms == cluster.window.end_ms:
            open_ended += 1
        elif wait.end_ms - wait.start_ms > 41 * MINUTE_MS:  # else it may have come and gone in the gap
            assert wait.end_ms in began.get(wait.submission.job.uid, set()) or cluster.gap.overlap_ms(
                wait.end_ms, wait.end_ms + 1
            )
    assert open_ended >= len(cluster.never_bound) >= 1
    assert scripted <= set(demand["job_uid"])
    assert (demand["min_pods"] == demand["pods"]).all()
    assert demand.loc[demand["queue"] == "", "layer"].isin(["placement"]).all()
    assert set(demand["layer"]) == {"quota", "placement"}
    assert (demand["products"] != "").all()


def test_evictions_are_those_that_were_made(cluster: SimulatedCluster) -> None:
    evictions = cluster.frames.evictions
    lost = {id(pod) for pod in cluster.lost}
    made = [pod for pod in cluster.placements if id(pod) not in lost]
    preempted = evictions[evictions["reason"] == "Preempted"]
    assert len(preempted) == sum(pod.outcome is SimulatedOutcome.PREEMPTED for pod in made)
    assert (evictions["reason"] == "Drain").sum() == sum(
        pod.outcome is SimulatedOutcome.EVICTED for pod in made
    )
    names = {pod.submission.job.full_name: pod for pod in made if pod.submission.urgent}
    assert set(preempted["by"]) <= set(names)
    for row in preempted.itertuples():
        assert any(pod.start_ms == row.end_ms for pod in made if pod.submission.job.full_name == row.by)
    known = evictions["checkpoint_ms"] >= 0
    assert known.any()
    assert not known.all()
    saved = evictions[known]
    assert ((saved["checkpoint_ms"] > saved["start_ms"]) & (saved["checkpoint_ms"] <= saved["end_ms"])).all()


def test_quotas_are_used_by_what_was_allocated(cluster: SimulatedCluster) -> None:
    quotas = cluster.frames.quotas
    used = ((quotas["end_ms"] - quotas["start_ms"]) * quotas["used"]).groupby(quotas["queue"]).sum()
    held = cluster.frames.allocations
    clipped = held["end_ms"].clip(upper=cluster.window.end_ms) - held["start_ms"].clip(
        lower=cluster.window.start_ms
    )
    by_queue = (clipped * held["count"]).groupby(held["cluster_queue"]).sum()
    assert used.to_dict() == by_queue.drop("").to_dict()
    same = ["queue", "flavor", "resource"]
    ordered = quotas.sort_values([*same, "start_ms"])
    touching = (ordered[same].shift() == ordered[same]).all(axis=1)
    assert (ordered["start_ms"] == ordered["end_ms"].shift())[touching].all()
    assert (ordered["used"] != ordered["used"].shift())[touching].all()
    assert set(zip(quotas["queue"], quotas["cohort"], strict=True)) == {
        ("research", "company"),
        ("product", "company"),
        ("platform", ""),
        ("release", ""),
    }
    alone = quotas[quotas["cohort"] == ""]
    assert (alone["used"] <= alone["nominal"]).all()


def test_the_lost_board_was_nobodys(cluster: SimulatedCluster, activity: pd.DataFrame) -> None:
    (lost,) = cluster.frames.health.query("reason == 'lost'").to_dict("records")
    rows = activity[activity["gpu"] == lost["gpu"]]
    assert len(rows) > 1_000
    assert not ((rows["start_ms"] < lost["end_ms"]) & (rows["end_ms"] > lost["start_ms"])).any()


def test_steps_within_a_window() -> None:
    steps = StepSeries.of([(10, 2), (20, -1), (20, 1), (30, -2), (40, 5)])
    assert list(steps.within(Window(0, 50))) == [(0, 10, 0), (10, 30, 2), (30, 40, 0), (40, 50, 5)]
    assert list(steps.within(Window(15, 30))) == [(15, 30, 2)]
    assert list(steps.within(Window(10, 12))) == [(10, 12, 2)]
    assert list(StepSeries.of(()).within(Window(1, 2))) == [(1, 2, 0)]
    assert [steps.at(t) for t in (9, 10, 29, 30, 41)] == [0, 2, 2, 0, 5]
    assert np.array_equal(steps.at_ms, [10, 20, 30, 40])
