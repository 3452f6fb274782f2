"""The simulated cluster as OpenMetrics text: right in itself, and in a real Prometheus the same history."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd
import pytest

from gpucost.attribution.attribute import attribute
from gpucost.attribution.teams import TeamRules
from gpucost.contract.gpu_metrics import GPU_MEMORY_TOTAL, GPU_MEMORY_USED, GPU_UP, POD_COUNTED_SINCE
from gpucost.contract.metric_spec import EOF
from gpucost.contract.metrics import (
    METRICS,
    NODE_METRICS,
    NODE_UNAVAILABLE,
    POD_CLAIM_SHARE,
    POD_METRICS,
    SIGNAL_METRICS,
    STATE_UP,
)
from gpucost.contract.queue_metrics import (
    CLUSTER_QUEUE_BORROWING_LIMIT,
    CLUSTER_QUEUE_INFO,
    CLUSTER_QUEUE_NOMINAL,
    CLUSTER_QUEUE_USED,
    WORKLOAD_INFO,
    WORKLOAD_LAYER,
    WORKLOAD_SET_MIN,
    WORKLOAD_SET_PODS,
    WORKLOAD_SET_UNITS,
)
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import DataProblemCode
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Window
from gpucost.pricing.price_book import PriceBook
from gpucost.simulator.cluster import (
    PRICES_NAME,
    TEAMS_NAME,
    SimulatedCluster,
    demo_prices_text,
    demo_teams_text,
)
from gpucost.simulator.disruptions import LINGER_MS
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.prometheus_source import PrometheusSource
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus
from tests.support.simulated import simulated
from tests.support.simulated_metrics.exposition import exposition

pytestmark = pytest.mark.slow

BOOK = PriceBook.parse(demo_prices_text(), PRICES_NAME)
TEAMS = TeamRules.parse(demo_teams_text(), TEAMS_NAME)
SCRAPE_MS = 2 * MINUTE_MS
KEY = ["pod_uid", "start_ms"]


@pytest.fixture(scope="module")
def cluster() -> SimulatedCluster:
    return simulated()


def _after(cluster: SimulatedCluster, days: float, hours: float) -> Window:
    start_ms = cluster.window.start_ms + int(days * DAY_MS)
    return Window(start_ms, start_ms + int(hours * HOUR_MS))


def _samples(text: Iterator[str]) -> Iterator[tuple[str, str, int]]:
    """(series, value, ms) of every line."""
    for piece in text:
        for line in piece.splitlines():
            if not line.startswith("#"):
                series, value, at = line.rsplit(" ", 2)
                yield series, value, round(float(at) * 1000)


def test_all_metrics_of_the_contract_are_written_once_each_and_end_with_eof(
    cluster: SimulatedCluster,
) -> None:
    # The first eviction of a spot node, six days in, so that the end of a node is among them.
    pieces = list(exposition(cluster.frames, SCRAPE_MS, _after(cluster, 6, 6)))
    assert pieces[-1] == EOF
    types = [line.split()[2] for piece in pieces for line in piece.splitlines() if line.startswith("# TYPE")]
    simulated = {STATE_UP, *POD_METRICS, *NODE_METRICS, POD_COUNTED_SINCE, *SIGNAL_METRICS.values()}
    # No GPU of the simulated cluster is shared through claims, and no node is taken away for maintenance.
    simulated -= {POD_CLAIM_SHARE, NODE_UNAVAILABLE}
    simulated |= {GPU_UP, GPU_MEMORY_USED, GPU_MEMORY_TOTAL}
    simulated |= {
        CLUSTER_QUEUE_INFO,
        CLUSTER_QUEUE_NOMINAL,
        CLUSTER_QUEUE_USED,
        CLUSTER_QUEUE_BORROWING_LIMIT,
    }
    simulated |= {WORKLOAD_INFO, WORKLOAD_LAYER, WORKLOAD_SET_PODS, WORKLOAD_SET_MIN, WORKLOAD_SET_UNITS}
    families = [spec.family for spec in METRICS if spec.family in types]
    assert types == [*families, "vllm:request_success"]
    assert {spec.family for spec in simulated} <= set(types)
    samples = list(_samples(iter(pieces)))
    assert len({(series, at) for series, _, at in samples}) == len(samples)
    assert all(at % SCRAPE_MS == 0 for _, _, at in samples)


def test_stretches_add_up_to_the_whole(cluster: SimulatedCluster) -> None:
    whole = _after(cluster, 4, 3)
    parts = [_after(cluster, 4, 1.3), Window(_after(cluster, 4, 1.3).end_ms, whole.end_ms)]
    together = [s for part in parts for s in _samples(exposition(cluster.frames, SCRAPE_MS, part))]
    assert sorted(together) == sorted(_samples(exposition(cluster.frames, SCRAPE_MS, whole)))


def test_nothing_is_scraped_in_the_gap_and_a_lost_pod_has_no_end(cluster: SimulatedCluster) -> None:
    gap = cluster.gap
    around = Window(gap.start_ms - HOUR_MS, gap.end_ms + HOUR_MS)
    samples = list(_samples(exposition(cluster.frames, SCRAPE_MS, around)))
    assert not [at for _, _, at in samples if gap.start_ms <= at < gap.end_ms]
    for problem in cluster.frames.problems:
        mine = [(series, at) for series, _, at in samples if f'pod_uid="{problem.subject}"' in series]
        assert mine
        assert max(at for _, at in mine) < gap.start_ms
        assert not [series for series, _ in mine if "_end_timestamp" in series]


def test_a_finished_pod_lingers_with_its_end(cluster: SimulatedCluster) -> None:
    window = _after(cluster, 3, 4)
    pods = cluster.frames.allocations
    ended = pods[(pods["end_ms"] > window.start_ms) & (pods["end_ms"] + LINGER_MS < window.end_ms)]
    samples = list(_samples(exposition(cluster.frames, SCRAPE_MS, window)))
    ends = [s for s in samples if s[0].startswith("gpucost_pod_gpu_end_timestamp_seconds")]
    for row in ended.itertuples():
        mine = [(float(value), at) for series, value, at in ends if f'pod_uid="{row.pod_uid}"' in series]
        assert {round(value * 1000) for value, _ in mine} == {row.end_ms}
        assert len(mine) == LINGER_MS // SCRAPE_MS
        assert all(row.end_ms <= at < row.end_ms + LINGER_MS for _, at in mine)
    assert len(ended) > 10


@pytest.fixture(scope="module")
def source(cluster: SimulatedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusSource]:
    """Six hours around the gap, six around the change of a label, and six around the loss of a GPU."""
    data = tmp_path_factory.mktemp("simulated") / "blocks"
    for window in (_after(cluster, 11, 7), _after(cluster, 14.5, 7), _after(cluster, 4.5, 7)):
        create_blocks(exposition(cluster.frames, SCRAPE_MS, window), data)
    with running_prometheus(data) as url:
        yield PrometheusSource(
            PrometheusClient(url), PrometheusSourceSettings(), now=lambda: cluster.window.end_ms
        )


def _totals(frames: object, window: Window) -> pd.DataFrame:
    found = attribute(frames, [window], rates=BOOK.rates, teams=TEAMS)  # type: ignore[arg-type]
    return found.flat().groupby(["team", "bucket", "node"])[["board_ms", "nano"]].sum()


@needs_prometheus
@pytest.mark.prometheus
@pytest.mark.parametrize("days", [4.5, 14.5], ids=["a lost board", "a changed label"])
def test_prometheus_gives_the_same_bill_as_the_frames(
    cluster: SimulatedCluster, source: PrometheusSource, days: float
) -> None:
    window = _after(cluster, days, 6)
    found = source.read(cluster.name, window)
    pd.testing.assert_frame_equal(_totals(found, window), _totals(cluster.frames, window))
    assert found.problems == ()
    if days == 14.5:
        moved = found.allocations[found.allocations["job"] == cluster.hand_over.job]
        assert {"ranking", "vision"} == set(moved["team_label"])


@needs_prometheus
@pytest.mark.prometheus
def test_prometheus_measures_what_the_signals_say(
    cluster: SimulatedCluster, source: PrometheusSource
) -> None:
    """Counters are read where they are scraped: right but for the scrape interval at the edges."""
    window = _after(cluster, 14.5, 6)
    signals = cluster.frames.signals
    inside = signals[(signals["start_ms"] >= window.start_ms) & (signals["end_ms"] <= window.end_ms)]
    found = source.read(cluster.name, window).signals
    for name in ("observed_ms", "busy_ms", "sm_observed_ms", "sm_active_ms", "tensor_active_ms"):
        assert found[name].sum() == pytest.approx(inside[name].sum(), rel=0.02)


@needs_prometheus
@pytest.mark.prometheus
@pytest.mark.fault(26)
def test_prometheus_knows_what_it_did_not_see(cluster: SimulatedCluster, source: PrometheusSource) -> None:
    window, gap = _after(cluster, 11, 6), cluster.gap
    found = source.read(cluster.name, window)
    unknown = [p.subject for p in found.problems if p.code is DataProblemCode.END_UNKNOWN]
    assert unknown == [p.subject for p in cluster.frames.problems]
    assert (found.observed["end_ms"] - found.observed["start_ms"]).sum() < window.length_ms
    totals, truth = _totals(found, window), _totals(cluster.frames, window)
    assert totals["board_ms"].sum() == truth["board_ms"].sum()
    held = totals.xs(Bucket.HELD.value, level="bucket")["board_ms"].sum()
    true_held = truth.xs(Bucket.HELD.value, level="bucket")["board_ms"].sum()
    # A lost pod was last seen at the last scrape before the gap, not at its first instant.
    assert abs(int(held) - int(true_held)) <= len(unknown) * 2 * SCRAPE_MS
    missing = totals.xs(Bucket.UNKNOWN.value, level="bucket")["board_ms"].sum()
    true_missing = truth.xs(Bucket.UNKNOWN.value, level="bucket")["board_ms"].sum()
    assert missing == pytest.approx(true_missing, rel=2 * SCRAPE_MS / gap.length_ms + 0.01)


def test_a_node_without_counts_exports_no_count(cluster: SimulatedCluster) -> None:
    frames = cluster.frames
    nameless = replace(
        frames,
        nodes=frames.nodes.assign(boards=-1),
        capacity=frames.capacity.assign(expected=-1, capacity=-1),
    )
    names = {s.split("{")[0] for s, _, _ in _samples(exposition(nameless, HOUR_MS, _after(cluster, 2, 2)))}
    absent = {"gpucost_node_boards", "gpucost_node_gpu_expected", "gpucost_node_gpu_capacity"}
    assert not absent & names
    assert "gpucost_node_gpu_allocatable" in names
