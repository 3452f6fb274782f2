"""Two replicas are one, as Prometheus reads them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from gpucost.domain.time import Window
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.prometheus_source import PrometheusSource
from gpucost_exporter_base.endpoint import EndpointRequest
from tests.exporters.queue import world
from tests.exporters.queue.replicas import replicas, scraping, until
from tests.support.cluster.server import ClusterServer
from tests.support.prometheus import needs_prometheus, running_prometheus

GAP_MS = 6_000


@dataclass
class Pair:
    """The Prometheus that scraped two replicas, of which one stopped before the pod ``later`` was bound."""

    url: str
    window: Window
    later_ms: int


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    hour_ago_ms = int(time.time()) * 1000 - 3_600_000
    with ExitStack() as parts:
        server = parts.enter_context(ClusterServer())
        server.put(world.node("gpu-1"))
        server.put(world.bound(world.pod("both", 4), "gpu-1", hour_ago_ms))
        first, second = parts.enter_context(replicas(server, 2))
        data = tmp_path_factory.mktemp("replicas") / "data"
        url = parts.enter_context(running_prometheus(data, scrape_configs=scraping(first, second)))
        until(url, "sum(count_over_time(gpucost_state_up[1h]))", 4)
        until(url, "count(gpucost_state_up)", 2)
        began_ms = int(time.time() * 1000)
        until(url, "min(count_over_time(gpucost_state_up[1h]))", 5)
        first.endpoint.close()
        later_ms = int(time.time()) * 1000
        server.put(world.bound(world.pod("later", 2), "gpu-1", later_ms))
        deadline = time.monotonic() + 60
        while second.collector.watch.counts()["pods"] < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        second.collector.refresh()
        until(url, 'max(count_over_time(gpucost_pod_gpu_request{pod="later"}[1h]))', 3)
        ended_ms = int(time.time() * 1000)
        time.sleep(GAP_MS / 1000 + 1.5)
        second.collector.refresh()
        yield Pair(url, Window(began_ms, ended_ms), later_ms)


@needs_prometheus
@pytest.mark.prometheus
@pytest.mark.fault(22)
def test_two_replicas_are_the_whole_and_each_pod_counts_once(pair: Pair) -> None:
    settings = PrometheusSourceSettings(max_gap_ms=GAP_MS, lateness_ms=GAP_MS, replica_labels=("instance",))
    with PrometheusClient(pair.url) as client:
        source = PrometheusSource(client, settings, now=lambda: int(time.time() * 1000))
        frames = source.read("default", pair.window)
    held = {
        row.pod: (row.count, row.start_ms, row.end_ms)
        for row in frames.allocations[["pod", "count", "start_ms", "end_ms"]].itertuples()
    }
    window = pair.window
    assert len(frames.allocations) == 2
    assert held == {
        "both": (4, window.start_ms, window.end_ms),
        "later": (2, pair.later_ms, window.end_ms),
    }
    assert frames.problems == ()
    assert list(frames.nodes["node"]) == ["gpu-1"]


@pytest.mark.fault(22)
def test_all_that_replicas_say_differently_is_of_themselves() -> None:
    with ClusterServer() as server:
        server.put(world.node("gpu-1"))
        for each in (*world.queues(), *world.volcano_gang(int(time.time()) * 1000 - 3_600_000)):
            server.put(each)
        with replicas(server, 2) as both:
            pages = [
                each.collector.page.answer(EndpointRequest("GET", "/metrics", "", {}, True)).body
                for each in both
            ]
    series = [{line for line in page.decode().splitlines() if not line.startswith("#")} for page in pages]
    assert series[0] == series[1]
    assert any(line.startswith("gpucost_gang_partial_since") for line in series[0])
    assert any(line.startswith("gpucost_workload_queue_position") for line in series[0])
