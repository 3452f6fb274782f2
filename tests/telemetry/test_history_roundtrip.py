"""The simulated cluster through a real Prometheus and back: the same history, and detectors find the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gpucost.advisor.replay.scenario_run import run_scenario
from gpucost.attribution.frames import ClusterFrames
from gpucost.attribution.teams import TeamRules
from gpucost.contract.frames import FRAMES
from gpucost.detectors.engine.evaluation import RuleEvaluation, evaluate
from gpucost.detectors.findings import Finding, WastePattern
from gpucost.detectors.inputs.detector_facts import ClusterHistory, DetectorFacts, GpuTimePrices
from gpucost.detectors.rule_settings import RuleSettings
from gpucost.domain.gpu import ResourceCatalog, ShareBasis
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Window
from gpucost.ledger.ledger import Ledger
from gpucost.pricing.price_book import PriceBook
from gpucost.reports.replay.run_views import recorded_views, views_of
from gpucost.reports.replay.scenario_money import scenario_money
from gpucost.service.ingest.batch_reader import AttributionRules
from gpucost.service.ingest.pipeline import Pipeline
from gpucost.service.replay.observed_history import ObservedCluster
from gpucost.simulator.cluster import (
    PRICES_NAME,
    TEAMS_NAME,
    SimulatedCluster,
    demo_prices_text,
    demo_teams_text,
)
from gpucost.telemetry.history.gpu_health import LONGEST_MS
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.prometheus_source import PrometheusSource
from gpucost.telemetry.recorded_source import RecordedSource, record
from tests.support.ledgers import new_ledger
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus
from tests.support.simulated import simulated
from tests.support.simulated_metrics.exposition import exposition

pytestmark = [needs_prometheus, pytest.mark.prometheus, pytest.mark.slow]

SCRAPE_MS = MINUTE_MS
BOOK = PriceBook.parse(demo_prices_text(), PRICES_NAME)
TEAMS = TeamRules.parse(demo_teams_text(), TEAMS_NAME)
# Days of the month, hours that follow, and the frame that is to have rows: around what the simulator plants.
SPANS = {
    "two jobs wait beside pieces": (9.17, 6, "evictions"),
    "a team waits for quota": (14.0, 4, "demand"),
    "a job is preempted": (8.3, 4, "evictions"),
    "a gang stalls": (20.35, 4, "stalls"),
    "an idle job": (25.65, 6, "activity"),
    "a board breaks": (24.3, 5, "health"),
}
MEASURES = ("held_ms", "observed_ms", "busy_ms", "sm_observed_ms", "sm_active_ms")
LONG_MS = 45 * MINUTE_MS
HALF_A_CENT = 5_000_000


@dataclass(frozen=True)
class Trip:
    """One span as the simulator has it, and as it came back."""

    window: Window
    truth: ClusterFrames
    found: ClusterFrames

    @cached_property
    def evaluations(self) -> tuple[RuleEvaluation, RuleEvaluation]:
        return self._evaluated(self.truth), self._evaluated(self.found)

    def _evaluated(self, frames: ClusterFrames) -> RuleEvaluation:
        history = ClusterHistory(frames, self.window, TEAMS)
        return evaluate(DetectorFacts("demo", history, GpuTimePrices(history, BOOK.rates)), RuleSettings())


@pytest.fixture(scope="module")
def cluster() -> SimulatedCluster:
    return simulated()


def _window(cluster: SimulatedCluster, name: str) -> Window:
    day, hours, _ = SPANS[name]
    start_ms = cluster.window.start_ms + int(day * DAY_MS) // HOUR_MS * HOUR_MS
    return Window(start_ms, start_ms + hours * HOUR_MS)


@pytest.fixture(scope="module")
def sources(
    cluster: SimulatedCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RecordedSource, PrometheusSource]]:
    folder = tmp_path_factory.mktemp("roundtrip")
    record(folder / "recording", cluster.frames)
    for name in SPANS:
        window = _window(cluster, name)
        wide = Window(window.start_ms - 2 * LONGEST_MS, window.end_ms + 20 * MINUTE_MS)
        create_blocks(exposition(cluster.frames, SCRAPE_MS, wide), folder / "blocks")
    with running_prometheus(folder / "blocks") as url, PrometheusClient(url) as client:
        prometheus = PrometheusSource(client, PrometheusSourceSettings(), now=lambda: cluster.window.end_ms)
        yield RecordedSource(folder / "recording"), prometheus


@pytest.fixture(scope="module")
def histories(
    cluster: SimulatedCluster, sources: tuple[RecordedSource, PrometheusSource]
) -> Callable[[str], tuple[ClusterFrames, ClusterFrames]]:
    """Of a span, what either source has of it, read once."""

    @cache
    def read(name: str) -> tuple[ClusterFrames, ClusterFrames]:
        truth, found = (source.history(cluster.name, _window(cluster, name)) for source in sources)
        return truth, found

    return read


@pytest.fixture(scope="module", params=list(SPANS))
def trip(
    request: pytest.FixtureRequest,
    cluster: SimulatedCluster,
    histories: Callable[[str], tuple[ClusterFrames, ClusterFrames]],
) -> Trip:
    truth, found = histories(request.param)
    assert not getattr(truth, SPANS[request.param][2]).empty
    return Trip(_window(cluster, request.param), truth, found)


def test_requests_come_back_step_by_step(trip: Trip) -> None:
    """Within a request, where a scrape fell between two edges, of every whole step of a pod but its last, of
    which no scrape sees the end."""
    names = ["pod_uid", "start_ms", "end_ms", "requests"]
    truth, found = (
        each.serving.astype({"pod_uid": "str"})[names].set_index(names[:3])["requests"]
        for each in (trip.truth, trip.found)
    )
    both = pd.concat([truth, found], axis=1, keys=["truth", "found"])
    inner = both.index.get_level_values("start_ms") > trip.window.start_ms + 10 * MINUTE_MS
    whole = both.index.get_level_values("end_ms") - both.index.get_level_values("start_ms") == 5 * MINUTE_MS
    last = truth.reset_index("end_ms").groupby("pod_uid")["end_ms"].max()
    ends = both.index.get_level_values("pod_uid").map(last) == both.index.get_level_values("end_ms")
    known = both[inner & whole & ~ends].dropna()
    assert len(known) > 0.9 * len(truth)
    assert (known["found"] - known["truth"]).abs().max() <= 1
    idle = known["truth"] == 0
    assert idle.any()
    assert (known.loc[idle, "found"] == 0).all()


def _steps(frames: ClusterFrames) -> pd.DataFrame:
    """Activity by GPU, pod and step. The simulator's first and last steps of a pod begin and end with it."""
    rows = frames.activity.astype({"gpu": "str", "pod_uid": "str"})
    return rows.assign(end_ms=rows["end_ms"] + -rows["end_ms"] % (5 * MINUTE_MS)).set_index(
        ["gpu", "pod_uid", "end_ms"]
    )


def test_activity_is_the_same_in_every_step(trip: Trip) -> None:
    truth, found = _steps(trip.truth).sort_index(), _steps(trip.found).sort_index()
    assert truth.index.equals(found.index)
    for name in MEASURES:
        assert truth[name].isna().equals(found[name].isna()), name
        # Counters are written with three decimals.
        assert (truth[name] - found[name]).abs().max() <= 2, name
    assert (truth["energy_j"] - found["energy_j"]).abs().max() <= 0.002
    assert truth["memory_total_bytes"].equals(found["memory_total_bytes"])


def test_a_month_replayed_from_prometheus_is_that_of_the_recording(
    cluster: SimulatedCluster, sources: tuple[RecordedSource, PrometheusSource]
) -> None:
    """The same jobs in the same queues, and waits that differ by scrapes only."""
    window = _window(cluster, "a team waits for quota")
    truth, found = (ObservedCluster(each, cluster.name, window, TEAMS).history("span") for each in sources)
    known, scraped = ({job.uid: job for job in each.jobs} for each in (truth, found))
    assert scraped.keys() <= known.keys()
    assert all(known[uid].run_ms < 2 * SCRAPE_MS for uid in known.keys() - scraped.keys())
    waited = 0
    for uid, job in scraped.items():
        other = known[uid]
        names = ("gpus", "queue", "pool", "name", "team", "user", "pod_sets")
        assert [getattr(job, name) for name in names] == [getattr(other, name) for name in names]
        for mine, theirs in ((job.created_ms, other.created_ms), (job.run_ms, other.run_ms)):
            assert abs(mine - theirs) <= 2 * SCRAPE_MS, uid
        waited += other.record is not None and other.record.starts[0] > other.created_ms
    assert waited > 1
    assert truth.kueue is not None
    assert found.kueue is not None
    quotas = [
        {name: each.quotas for name, each in history.state.cluster_queue_by_name.items()}
        for history in (truth.kueue, found.kueue)
    ]
    assert quotas[0] == quotas[1]
    assert truth.pools.keys() == found.pools.keys()
    waits = [
        {uid: view.wait_ms(window) for uid, view in views_of(run_scenario(each), window).items()}
        for each in (truth, found)
    ]
    off = sorted(abs(waits[0][uid] - wait) for uid, wait in waits[1].items())
    assert off[len(off) * 9 // 10] <= 2 * SCRAPE_MS


def test_what_teams_held_in_a_replay_costs_what_it_costs_in_the_ledger(
    cluster: SimulatedCluster, sources: tuple[RecordedSource, PrometheusSource], tmp_path: Path
) -> None:
    """To the cent. What the ledger has beside it is of parts of GPUs that no resource of a node offers."""
    window, source = _window(cluster, "a team waits for quota"), sources[1]
    now = partial(int, cluster.window.end_ms)
    rules = AttributionRules(BOOK.rates, TEAMS, ResourceCatalog(), ShareBasis.COMPUTE)
    with Ledger.open(new_ledger(tmp_path / "ledger.db"), now=now) as ledger:
        pipeline = Pipeline(source, ledger, rules, HOUR_MS, 6 * HOUR_MS, 0, now, "test")
        assert pipeline.ingest(cluster.name, pipeline.pending(cluster.name, window)).ingested == 4
        history = ObservedCluster(source, cluster.name, window, TEAMS, ledger=ledger).history("span")
        sums = ledger.aggregate(EVERYTHING, window, ("team", "bucket"), filters={"bucket": ["held"]})
    run = run_scenario(history)
    views = list(recorded_views(history).values())
    place = window, cluster.name, "USD"
    money = scenario_money(views, run.pools, run.prices, *place)
    assert len(sums) > 5
    for team, nano in zip(sums["team"], sums["nano"], strict=True):
        assert abs(money.of_team(team).nano - nano) < HALF_A_CENT, team
    assert history.ledger is not None
    assert history.ledger.held_nano == sums["nano"].sum()
    assert money.capacity.nano < history.ledger.nano


def test_idle_steps_stay_idle_and_no_other_becomes_so(trip: Trip) -> None:
    truth, found = _steps(trip.truth)["busy_ms"], _steps(trip.found)["busy_ms"]
    assert (truth == 0).sum() > 100
    assert set(truth.index[truth == 0]) == set(found.index[found == 0])


def _demand(frames: ClusterFrames) -> pd.DataFrame:
    rows = frames.demand
    held = rows["pods"] * rows["units"] * (rows["end_ms"] - rows["start_ms"])
    return (
        rows.assign(unit_ms=held)
        .groupby("job_uid")
        .agg(
            unit_ms=("unit_ms", "sum"),
            start_ms=("start_ms", "min"),
            end_ms=("end_ms", "max"),
            layers=("layer", lambda layers: "|".join(sorted(set(layers)))),
            products=("products", "max"),
            gang=("min_pods", "max"),
            queue=("cluster_queue", "max"),
        )
    )


def test_demand_begins_when_it_was_queued_and_ends_within_two_scrapes(trip: Trip) -> None:
    truth, found = _demand(trip.truth), _demand(trip.found)
    brief = truth.index[truth["end_ms"] - truth["start_ms"] < 2 * SCRAPE_MS]
    truth, found = (frame.drop(brief, errors="ignore") for frame in (truth, found))
    assert set(found.index) == set(truth.index)
    found = found.loc[truth.index]
    # Where a wait began before the window, both begin with it.
    late = (found["start_ms"] - truth["start_ms"]).abs()
    assert late.max() <= SCRAPE_MS
    assert (late == 0).mean() > 0.9
    assert (found["end_ms"] - truth["end_ms"]).abs().max() <= 2 * SCRAPE_MS
    for name in ("layers", "products", "gang", "queue"):
        assert found[name].equals(truth[name]), name
    assert found["unit_ms"].sum() == pytest.approx(truth["unit_ms"].sum(), rel=0.02)


def test_stalls_and_evictions_are_the_same(trip: Trip) -> None:
    columns = ["gang", "namespace", "job_uid", "queue", "min_members", "running", "pending", "start_ms"]
    assert trip.found.stalls[columns].equals(trip.truth.stalls[columns])
    ends = trip.truth.stalls["end_ms"] - trip.found.stalls["end_ms"]
    assert ends.between(0, SCRAPE_MS).all()
    # No series shows who took their place, nor their checkpoints; nor does Kueue for jobs without a queue.
    columns = ["pod_uid", "job_uid", "queue", "start_ms", "end_ms", "reason"]
    queued = trip.truth.evictions[trip.truth.evictions["queue"] != ""]
    truth, found = (set(map(tuple, rows[columns].to_numpy())) for rows in (queued, trip.found.evictions))
    assert found == truth


def _quotas(frames: ClusterFrames) -> pd.DataFrame:
    rows = frames.quotas
    length = rows["end_ms"] - rows["start_ms"]
    limit = rows["borrowing_limit"].fillna(-1)
    sums = rows.assign(used=rows["used"] * length, nominal=rows["nominal"] * length, ms=length, limit=limit)
    return sums.groupby(["queue", "cohort", "flavor", "resource", "limit"])[["used", "nominal", "ms"]].sum()


def test_quotas_are_the_same(trip: Trip) -> None:
    truth, found = _quotas(trip.truth), _quotas(trip.found)
    assert found.index.equals(truth.index)
    assert found[["nominal", "ms"]].equals(truth[["nominal", "ms"]])
    assert ((found["used"] - truth["used"]).abs() <= 0.01 * truth["nominal"]).all()


def test_an_error_counts_for_an_hour_though_the_board_stays_broken(trip: Trip) -> None:
    """The GPU answers, the counter stands: nothing says that it was not repaired after that."""
    truth, found = trip.truth.health, trip.found.health
    assert found[["node", "gpu", "reason"]].equals(truth[["node", "gpu", "reason"]])
    assert (found["start_ms"] - truth["start_ms"]).between(0, SCRAPE_MS).all()
    expected = np.minimum(truth["end_ms"] - truth["start_ms"], LONGEST_MS)
    assert (found["end_ms"] - found["start_ms"] - expected).abs().le(SCRAPE_MS).all()


def _by_fingerprint(found: RuleEvaluation) -> dict[str, Finding]:
    return {finding.fingerprint: finding for finding in found.findings}


NOT_TOLD = {
    # No series shows checkpoints: work since the last one is all work, so a queue has lost more.
    (WastePattern.PREEMPTION_WASTE, "queue"),
    (WastePattern.PREEMPTION_WASTE, "below_threshold"),
    # Of a GPU that several pods share the exporter reads the memory of all, the simulator knows each one's.
    (WastePattern.OVERSIZED_REQUEST, "memory_over_ask"),
    (WastePattern.OVERSIZED_REQUEST, "low_efficiency"),
}


def test_detectors_find_the_same(trip: Trip) -> None:
    assert [each.failures for each in trip.evaluations] == [(), ()]
    truth, found = map(_by_fingerprint, trip.evaluations)
    compared = 0
    for key in {*truth, *found}:
        draft = (truth.get(key) or found[key]).draft
        lasted = (draft.ended_ms or trip.window.end_ms) - draft.since_ms
        if (draft.pattern, draft.variant) in NOT_TOLD or lasted < LONG_MS:
            continue
        assert key in truth, draft.summary
        assert key in found, draft.summary
        one, other = truth[key], found[key]
        compared += 1
        assert abs(one.draft.since_ms - other.draft.since_ms) <= SCRAPE_MS
        expected = float(one.wasted.board_ms)
        if draft.pattern is WastePattern.UNHEALTHY_ALLOCATED:  # see the test of errors above
            expected *= min(1, LONGEST_MS / lasted)
        # What is read from scrapes ends with the last one that saw it: of a gang of six GPUs, six minutes.
        assert other.wasted.board_ms == pytest.approx(expected, rel=0.02, abs=8 * SCRAPE_MS), draft.summary
    assert compared > 10


@pytest.mark.parametrize("only", [("quotas", "demand"), ("evictions",), ("nodes", "health")])
def test_only_what_is_asked_for_is_read(
    cluster: SimulatedCluster,
    sources: tuple[RecordedSource, PrometheusSource],
    histories: Callable[[str], tuple[ClusterFrames, ClusterFrames]],
    only: tuple[str, ...],
) -> None:
    window = _window(cluster, "a board breaks")
    for source, whole in zip(sources, histories("a board breaks"), strict=True):
        part = source.history(cluster.name, window, only=only)
        for spec in FRAMES:
            frame = getattr(part, spec.name)
            wanted = getattr(whole, spec.name) if spec.name in only else frame.iloc[:0]
            pd.testing.assert_frame_equal(frame, wanted)
