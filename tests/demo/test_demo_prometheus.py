"""The Prometheus that queries and rules are tried on holds what the demo's exporters say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.demo_prometheus import DemoPrometheus, demo_prometheus, instant_query
from tests.support.prometheus import needs_prometheus

pytestmark = [pytest.mark.prometheus, needs_prometheus, pytest.mark.slow]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoPrometheus]:
    with demo_prometheus(tmp_path_factory) as found:
        yield found


@pytest.mark.parametrize(
    "query",
    [
        "sum(gpucost_node_boards)",
        'sum by (job) (up{cluster="demo"})',
        'rate(gpucost_pod_gpu_busy_seconds_total{holder="pod"}[5m]) > 0',
        "gpucost_gang_pending_members > 0",
        'gpucost_workload_evictions_total{reason="Preempted"}',
        "gpucost_cluster_queue_pending_workloads",
        "gpucost_volcano_queue_pod_groups",
        "rate(gpucost_cluster_queue_admission_waits_total[3h]) > 0",
        "gpucost_job_waiting",
        "gpucost_gpu_throttled_seconds_total > 0",
        "gpucost_finding_active",
        "gpucost_team_cost_usd",
    ],
)
def test_it_has_data(server: DemoPrometheus, query: str) -> None:
    assert instant_query(server.url, query)


def test_no_counter_falls(server: DemoPrometheus) -> None:
    """But for those of pods that have been gone for ten minutes, which go."""
    found = instant_query(server.url, 'count by (__name__) ({__name__=~"gpucost_.+_total"})')
    names = {str(each["metric"]["__name__"]) for each in found}
    assert {"gpucost_pod_gpu_held_seconds_total", "gpucost_gpu_present_seconds_total"} <= names
    fell = [name for name in sorted(names) if instant_query(server.url, f"resets({name}[3h]) > 0")]
    assert not fell
