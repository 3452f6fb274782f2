"""The simulated month through attribution, with the demo's prices and teams: totals are the ground truth."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pandas as pd
import pytest

from gpucost.attribution.attribute import attribute
from gpucost.attribution.conservation import difference
from gpucost.attribution.teams import TeamRules
from gpucost.attribution.usage_lines import Attribution
from gpucost.detectors.engine.evaluation import evaluate
from gpucost.detectors.findings import WastePattern
from gpucost.detectors.inputs.detector_facts import ClusterHistory, DetectorFacts, GpuTimePrices
from gpucost.detectors.rule_settings import RuleSettings
from gpucost.domain.buckets import HOLDER_OF_BUCKET, Bucket
from gpucost.domain.errors import DataProblemCode
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Window, parse_instant
from gpucost.pricing.price_book import PriceBook
from gpucost.simulator.cluster import (
    DEMO_MONTH,
    PRICES_NAME,
    TEAMS_NAME,
    SimulatedCluster,
    demo_cluster,
    demo_prices_text,
    demo_teams_text,
)
from tests.support.simulated import simulated

pytestmark = pytest.mark.slow

BOOK = PriceBook.parse(demo_prices_text(), PRICES_NAME)
CHANGE_MS = parse_instant("2026-10-16T00:00:00Z")
TEAMS = TeamRules.parse(demo_teams_text(), TEAMS_NAME)


@pytest.fixture(scope="module")
def cluster() -> SimulatedCluster:
    return simulated()


def _attributed(cluster: SimulatedCluster, step_ms: int) -> Attribution:
    windows = list(cluster.window.split(step_ms))
    return attribute(cluster.frames, windows, rates=BOOK.rates, teams=TEAMS)


@pytest.fixture(scope="module")
def by_day(cluster: SimulatedCluster) -> Attribution:
    return _attributed(cluster, DAY_MS)


@pytest.fixture(scope="module")
def lines(by_day: Attribution) -> pd.DataFrame:
    return by_day.flat()


def test_demo_is_the_simulated_cluster(cluster: SimulatedCluster) -> None:
    pd.testing.assert_frame_equal(demo_cluster().frames.allocations, cluster.frames.allocations)
    assert cluster.window == DEMO_MONTH.window


def test_capacity_is_conserved_in_time_and_money(
    cluster: SimulatedCluster, by_day: Attribution, lines: pd.DataFrame
) -> None:
    key = ["cluster", "node", "model", "bucket"]
    by_bucket = lines.groupby(key, as_index=False)[["board_ms", "nano"]].sum()
    found = difference(by_bucket, cluster.frames, cluster.window, BOOK.rates)
    assert (found.board_ms, found.nano, found.uncounted) == (0, 0, ())
    totals = by_day.totals()
    in_capacity = sum(ms for bucket, (ms, _) in totals.items() if bucket.is_capacity)
    assert in_capacity == cluster.ground_truth.capacity_ms
    assert all(totals[bucket][0] > 0 for bucket in Bucket)


def test_every_team_holds_what_the_scheduler_gave_it(cluster: SimulatedCluster, lines: pd.DataFrame) -> None:
    """Dealing is off by less than a millisecond per pod that holds a part of a GPU, and otherwise exact."""
    truth = cluster.ground_truth
    held = lines[lines["bucket"] == Bucket.HELD.value]
    by_team = held.groupby("team")["board_ms"].sum()
    assert set(by_team.index) == set(truth.held_ms)
    sliced = Counter(pod.submission.job.team.name for pod in cluster.placements if pod.node[:2] != "a1")
    for team, expected in truth.held_ms.items():
        assert abs(int(by_team[team]) - expected) <= sliced[team] + sliced["ranking"]
    whole = held[held["share_den"] == 1]
    boards = {"h100", "a100", "a100-owned", "l4-spot"}
    of_pools = {node.name for node in cluster.nodes if node.pool in boards}
    expected_ms = sum(
        pod.submission.units * cluster.window.overlap_ms(pod.start_ms, pod.end_ms)
        for pod in cluster.placements
        if pod.node in of_pools
    )
    assert int(whole["board_ms"].sum()) == expected_ms - truth.overcommitted_ms


def test_one_board_was_booked_twice_for_25_minutes(cluster: SimulatedCluster, lines: pd.DataFrame) -> None:
    over = lines[lines["bucket"] == Bucket.OVERCOMMITTED.value]
    assert over["board_ms"].sum() == cluster.ground_truth.overcommitted_ms == 25 * MINUTE_MS
    assert over["nano"].eq(0).all()
    assert set(over["node"]) == {cluster.extra.node}


def test_problems_are_those_that_were_made(cluster: SimulatedCluster, by_day: Attribution) -> None:
    codes = Counter(problem.code for problem in by_day.problems)
    assert codes == {DataProblemCode.OVERCOMMITTED: 1, DataProblemCode.END_UNKNOWN: len(cluster.lost)}


def test_totals_do_not_depend_on_the_window(cluster: SimulatedCluster, by_day: Attribution) -> None:
    assert _attributed(cluster, HOUR_MS).totals() == by_day.totals()


def test_unavailable_is_the_drained_node_and_the_lost_board(
    cluster: SimulatedCluster, lines: pd.DataFrame
) -> None:
    away = lines[lines["bucket"] == Bucket.UNAVAILABLE.value].groupby("node")["board_ms"].sum()
    drained, broken = (next(n for n in cluster.nodes if n.name == name) for name in ("h100-02", "h100-03"))
    (drain,), (loss,) = drained.spells, broken.spells
    assert set(away.index) == {"h100-02", "h100-03"}
    assert away["h100-03"] == loss.end_ms - loss.start_ms
    held_while_draining = sum(
        pod.submission.units * max(0, min(pod.end_ms, drain.end_ms) - max(pod.start_ms, drain.start_ms))
        for pod in cluster.placements
        if pod.node == "h100-02"
    )
    unseen = 8 * cluster.gap.overlap_ms(drain.start_ms, drain.end_ms)
    assert away["h100-02"] == 8 * (drain.end_ms - drain.start_ms) - held_while_draining - unseen
    assert held_while_draining > 0


def test_price_changes_in_the_middle_of_the_month(lines: pd.DataFrame) -> None:
    paid = lines[(lines["instance_type"] == "p5.48xlarge") & (lines["bucket"] != Bucket.OVERCOMMITTED.value)]
    sums = paid.groupby("rate_id")[["board_ms", "nano"]].sum()
    per_hour = (sums["nano"] / 1e9 / (sums["board_ms"] / HOUR_MS)).round(6)
    assert sorted(per_hour) == [6.2, 6.88]
    before = paid["window_end_ms"] <= CHANGE_MS
    assert len(set(paid[before]["rate_id"])) == len(set(paid[~before]["rate_id"])) == 1


@pytest.mark.fault(38)
def test_work_that_never_ran_costs_nothing_and_cut_work_only_until_the_cut(
    cluster: SimulatedCluster, lines: pd.DataFrame
) -> None:
    held = lines[lines["bucket"] == Bucket.HELD.value].groupby("job")["board_ms"].sum()
    never = {submission.job.name for submission in cluster.never_bound}
    assert "too-big" in never
    assert not never & set(held.index)
    for name in ("bad-image", *_interrupted(cluster)):
        pods = [pod for pod in cluster.placements if pod.submission.job.name == name]
        assert held[name] == sum(pod.submission.units * (pod.end_ms - pod.start_ms) for pod in pods)
    nobody = lines[lines["bucket"] == Bucket.UNALLOCATED.value]
    assert set(nobody["pod_uid"]) == {HOLDER_OF_BUCKET[Bucket.UNALLOCATED]}


def _interrupted(cluster: SimulatedCluster) -> set[str]:
    """Jobs on whole GPUs that were preempted, or evicted with their node."""
    cut = {
        pod.submission.job.name
        for pod in cluster.placements
        if pod.outcome in ("preempted", "evicted") and pod.submission.pool in ("h100", "a100", "l4-spot")
    }
    servers = {"chat-70b"}
    assert cut - servers
    return cut - servers


def test_the_dearest_server_is_told_what_its_peak_needs(
    cluster: SimulatedCluster, lines: pd.DataFrame
) -> None:
    """On a Thursday chat-70b takes at most 21 % of the SMs of its four GPUs: 0.83 of one, at 70 % two. Its
    memory keeps it on all of them. Training is told nothing of the sort, nor are servers with real peaks."""
    start_ms = parse_instant("2026-10-22T00:00:00Z")
    day = Window(start_ms, start_ms + DAY_MS)
    frames = cluster.frames
    held = _within(frames.allocations, day).assign(
        start_ms=lambda rows: rows["start_ms"].clip(lower=day.start_ms),
        end_ms=lambda rows: rows["end_ms"].clip(upper=day.end_ms),
    )
    frames = replace(frames, allocations=held, activity=_within(frames.activity, day))
    history = ClusterHistory(frames, day, TEAMS)
    facts = DetectorFacts(cluster.name, history, GpuTimePrices(history, BOOK.rates))
    found = evaluate(
        facts, RuleSettings().only([WastePattern.OVERSIZED_REQUEST, WastePattern.IDLE_ALLOCATION])
    )
    told = {each.draft.subject.name: each for each in found.findings if "serving" in each.draft.variant}
    assert set(told) == {"chat-70b", "embedder"}

    chat = told["chat-70b"]
    uids = held.loc[held["job"] == "chat-70b", "pod_uid"]
    rows = frames.activity[frames.activity["pod_uid"].isin(uids)]
    boards = rows["sm_active_ms"] / rows["sm_observed_ms"]
    peak = boards.groupby(rows["start_ms"]).sum().max()
    memory = rows.groupby("start_ms")["memory_used_bytes"].sum().max()
    assert 0.7 < peak < 1.4
    assert 0.8 * 3 * 80 * 2**30 < memory < 0.8 * 4 * 80 * 2**30
    evidence = {each.name: each.value for each in chat.draft.evidence}
    assert (evidence["has"], evidence["its peak needs"]) == ("4 GPUs", "2 GPUs per pod")
    assert evidence["SM activity at the peak"] == pytest.approx(100 * peak / 4, abs=0.01)
    assert (chat.draft.variant, chat.wasted.counted, chat.boards_now) == ("serving_memory", False, 2.0)
    assert chat.wasted.board_ms == pytest.approx(rows["held_ms"].sum() / 2, abs=1)
    bill = lines[(lines["job"] == "chat-70b") & (lines["window_start_ms"] == day.start_ms)]
    assert chat.wasted.nano == pytest.approx(bill["nano"].sum() / 2, rel=1e-9)


def _within(frame: pd.DataFrame, window: Window) -> pd.DataFrame:
    return frame[(frame["start_ms"] < window.end_ms) & (frame["end_ms"] > window.start_ms)]
