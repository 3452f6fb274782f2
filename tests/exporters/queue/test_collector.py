"""The collector over real HTTP: what it shows, when its heartbeat stops, and that one fault stays one."""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpucost.contract import queue_metrics as q
from gpucost.contract.metric_spec import MetricExporter
from gpucost.contract.metrics import LINGER_MS, METRICS, NODE_METRICS, POD_METRICS, STATE_UP
from gpucost.domain.backoff import FullJitter
from gpucost.domain.gpu import WHOLE, ResourceCatalog
from gpucost.domain.time import DAY_MS, iso
from gpucost.kube.connect.connection import connect_url
from gpucost.kube.parse.collections import collections
from gpucost.kube.watch.cluster_watch import SETTINGS, WatchClocks
from gpucost_exporter_base.endpoint import EndpointRequest
from gpucost_queue_collector.collector import QueueCollector, SeriesRules, pause_s
from tests.cluster.builders import MINUTE, SECOND, T0
from tests.exporters.queue import world
from tests.support.cluster.server import ClusterServer
from tests.support.prometheus import PROMTOOL, needs_prometheus

QUICK = replace(SETTINGS, absent_s=0.1, short_watch_s=0.0, backoff=FullJitter(0.01, 0.05))
BROKEN = "example.com/broken"
OF_SCHEDULERS = {q.SCHEDULER_INFO, q.SCHEDULER_UP, q.ADMISSION_WAITS, q.ADMISSION_WAIT_SECONDS}
"""From Kueue's and Volcano's own metrics, which are read elsewhere."""

Key = tuple[str, frozenset[tuple[str, str]]]


class Faulty(ResourceCatalog):
    """A mistake of ours: it raises for one resource."""

    def is_gpu(self, resource: str) -> bool:
        if resource == BROKEN:
            raise ArithmeticError(resource)
        return super().is_gpu(resource)


class Watching:
    """A collector of the server's state, whose wall clock stands still unless it is moved."""

    def __init__(self, server: ClusterServer, rules: SeriesRules) -> None:
        self.now_ms, self.later_s = T0 + MINUTE, 0.0
        self.transport = connect_url(server.url)
        clocks = WatchClocks(lambda: self.now_ms * 1_000_000, lambda: time.monotonic() + self.later_s)
        self.collector = QueueCollector(self.transport, collections(), rules, clocks, QUICK)

    def series(self) -> dict[Key, float]:
        answer = self.collector.answer(EndpointRequest("GET", "/metrics", "", {}, True))
        families = text_string_to_metric_families(answer.body.decode())
        found = [sample for family in families for sample in family.samples]
        read = {(each.name, frozenset(each.labels.items())): each.value for each in found}
        assert len(read) == len(found), "a series came twice"
        return read

    def value(self, name: str, **labels: str) -> float | None:
        """Of the only series with these labels among its own."""
        found = [
            number
            for (known, own), number in self.series().items()
            if known == f"gpucost_{name}" and labels.items() <= dict(own).items()
        ]
        assert len(found) <= 1
        return found[0] if found else None

    def is_up(self) -> bool:
        return self.value("state_up") == 1

    def until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not is_so():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def problem(self, collection: str) -> str:
        return self.collector.watch.statuses()[collection].problem

    def close(self) -> None:
        self.collector.close()
        self.transport.close()


@pytest.fixture
def server() -> Iterator[ClusterServer]:
    with ClusterServer() as running:
        running.put(world.node("gpu-1"))
        running.put(world.bound(world.pod("train-0"), "gpu-1", T0 + 10 * SECOND))
        yield running


@pytest.fixture
def watching(server: ClusterServer) -> Iterator[Watching]:
    found = Watching(server, SeriesRules(Faulty({"nvidia.com/gpu": WHOLE, BROKEN: WHOLE}), replicas=2))
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def current(server: ClusterServer, watching: Watching) -> Watching:
    """One that has read everything, and says so."""
    watching.collector.start()
    assert watching.collector.watch.wait(60)
    server.await_watches(30)
    watching.collector.refresh()
    assert watching.is_up()
    return watching


def test_before_anything_was_read_there_is_no_heartbeat_and_nothing_else(watching: Watching) -> None:
    assert watching.value("state_up") == 0
    assert watching.value("state_replicas") == 2
    watching.collector.refresh()
    assert watching.value("state_up") == 0
    assert watching.value("node_info") is None
    assert watching.value("state_collection_up", collection="pods") == 0


def test_after_the_first_refresh_everything_is_there(current: Watching) -> None:
    assert current.value("pod_gpu_request", pod="train-0") == 8
    assert current.value("pod_gpu_start_timestamp_seconds", pod="train-0") == (T0 + 10 * SECOND) / 1000
    assert current.value("node_gpu_allocatable", node="gpu-1", resource=world.GPU) == 8
    assert current.value("state_refreshed_timestamp_seconds") == (T0 + MINUTE) / 1000
    assert current.value("state_collection_up", collection="pods", version="v1") == 1
    assert current.value("state_collection_objects", collection="pods") == 1
    assert current.value("state_problems", code="flawed") == 0


def test_the_page_changes_with_a_refresh_only(server: ClusterServer, current: Watching) -> None:
    server.put(world.bound(world.pod("train-1"), "gpu-1", T0 + 20 * SECOND))
    current.until(lambda: current.value("state_collection_objects", collection="pods") == 2)
    assert current.value("pod_gpu_request", pod="train-1") is None
    current.collector.refresh()
    assert current.value("pod_gpu_request", pod="train-1") == 8


# The heartbeat


def test_it_stops_when_refreshing_stops(current: Watching) -> None:
    """However the time of the host is set meanwhile."""
    current.now_ms += DAY_MS
    assert current.is_up()
    current.now_ms -= 2 * DAY_MS
    current.later_s = 61
    assert not current.is_up()
    assert current.value("pod_gpu_request", pod="train-0") == 8
    current.collector.refresh()
    assert current.is_up()


@pytest.mark.fault(14)
@pytest.mark.parametrize("collection", ["pods", "nodes"])
@pytest.mark.parametrize("how", ["403", "500"])
def test_it_stops_when_pods_or_nodes_cannot_be_read_for_a_minute(
    server: ClusterServer, current: Watching, collection: str, how: str
) -> None:
    server.break_watch(how, collection, times=None)  # type: ignore[arg-type]
    current.until(lambda: current.problem(collection) == f"http_{how}")
    current.now_ms += 60 * SECOND
    current.collector.refresh()
    assert current.is_up()
    assert current.value("state_collection_up", collection=collection) == 0
    current.now_ms += 1
    current.collector.refresh()
    assert not current.is_up()
    assert current.value("pod_gpu_request", pod="train-0") == 8
    assert (
        current.value("state_collection_errors_total", collection=collection, reason=f"http_{how}") or 0
    ) > 0
    server.mend()
    current.until(lambda: not current.problem(collection))
    current.collector.refresh()
    assert current.is_up()


@pytest.mark.fault(14, 19)
def test_what_is_optional_may_be_forbidden(server: ClusterServer, watching: Watching) -> None:
    server.break_list("403", "rayjobs.ray.io", times=None)
    watching.collector.start()
    assert watching.collector.watch.wait(60)
    watching.collector.refresh()
    assert watching.is_up()
    assert watching.value("state_collection_up", collection="rayjobs.ray.io") == 0
    assert (watching.value("state_collection_errors_total", collection="rayjobs.ray.io") or 0) >= 1
    assert watching.value("state_collection_up", collection="topologies.kueue.x-k8s.io") == 1


@pytest.mark.fault(14)
def test_pods_may_not(server: ClusterServer, watching: Watching) -> None:
    server.break_list("403", "pods", times=None)
    watching.collector.start()
    assert watching.collector.watch.wait(60)
    watching.collector.refresh()
    assert not watching.is_up()
    assert watching.value("node_info", node="gpu-1") == 1


@pytest.mark.fault(19)
def test_what_the_cluster_does_not_have_is_no_failure(server: ClusterServer, watching: Watching) -> None:
    server.uninstall("workloads.kueue.x-k8s.io")
    watching.collector.start()
    assert watching.collector.watch.wait(60)
    watching.collector.refresh()
    assert watching.is_up()
    workloads = {"collection": "workloads.kueue.x-k8s.io"}
    assert watching.value("state_collection_up", **workloads, version="none") == 1


@pytest.mark.fault(14)
def test_a_page_of_before_the_server_was_heard_again_is_an_old_one(
    server: ClusterServer, watching: Watching
) -> None:
    """With a heartbeat, pods that it does not show yet would count as ended."""
    server.break_list("403", "pods", times=None)
    watching.collector.start()
    assert watching.collector.watch.wait(60)
    watching.collector.refresh()
    server.mend()
    watching.until(lambda: watching.value("state_collection_up", collection="pods") == 1)
    assert watching.value("pod_gpu_request", pod="train-0") is None
    assert not watching.is_up()
    watching.collector.refresh()
    assert watching.value("pod_gpu_request", pod="train-0") == 8
    assert watching.is_up()


@pytest.mark.fault(14)
def test_after_a_long_outage_old_series_get_no_heartbeat(server: ClusterServer, current: Watching) -> None:
    server.break_watch("500", "pods", times=None)
    current.until(lambda: current.problem("pods") == "http_500")
    current.now_ms += 60 * SECOND + 1
    current.collector.refresh()
    server.mend()
    current.until(lambda: not current.problem("pods"))
    assert not current.is_up()
    current.collector.refresh()
    assert current.is_up()


# Parts that fail


def test_a_part_that_fails_stays_as_it_was_and_is_counted(
    server: ClusterServer, current: Watching, caplog: pytest.LogCaptureFixture
) -> None:
    for each in (*world.queues(), world.waiting_workload("second")):
        server.put(each)
    current.until(
        lambda: current.value("state_collection_objects", collection="workloads.kueue.x-k8s.io") == 3
    )
    current.collector.refresh()
    assert current.value("workload_queue_position", workload="second") == 1
    server.put(world.waiting_workload("broken", BROKEN))
    server.delete(world.waiting_workload("waits"))
    server.put(world.bound(world.pod("train-1"), "gpu-1", T0 + 20 * SECOND))
    counts = current.collector.watch.counts
    current.until(
        lambda: counts()["pods"] == 2 and "uid-team-a-broken" in current.collector.watch.snapshot().workloads
    )
    with caplog.at_level(logging.ERROR):
        current.collector.refresh()
        current.collector.refresh()
    assert current.value("workload_info", workload="waits") == 1
    assert current.value("workload_info", workload="broken") is None
    assert current.value("exporter_source_up", source="workloads") == 0
    assert current.value("exporter_source_errors_total", source="workloads") == 2
    assert current.value("pod_gpu_request", pod="train-1") == 8
    assert current.is_up()
    assert [each.message for each in caplog.records].count(
        "the series of workloads could not be made; the old ones stay"
    ) == 1
    server.delete(world.waiting_workload("broken", BROKEN))
    current.until(lambda: "uid-team-a-broken" not in current.collector.watch.snapshot().workloads)
    current.collector.refresh()
    assert current.value("workload_info", workload="waits") is None
    assert current.value("exporter_source_up", source="workloads") == 1
    assert current.value("exporter_source_errors_total", source="workloads") == 2


def test_pods_that_cannot_be_shown_stop_the_heartbeat_at_once(
    server: ClusterServer, current: Watching
) -> None:
    broken = world.bound(world.pod("broken", 1, BROKEN), "gpu-1", T0)
    server.put(broken)
    current.until(lambda: current.collector.watch.counts()["pods"] == 2)
    current.collector.refresh()
    assert not current.is_up()
    assert current.value("exporter_source_up", source="pods") == 0
    assert current.value("pod_gpu_request", pod="train-0") == 8
    server.delete(broken)
    current.until(lambda: current.collector.watch.counts()["pods"] == 1)
    current.now_ms += LINGER_MS
    current.collector.refresh()
    assert current.is_up()


# All there is


@dataclass
class Seen:
    """The page of a cluster with everything in it."""

    text: str
    names: Mapping[str, int]


@pytest.fixture
def full(server: ClusterServer, current: Watching) -> Watching:
    now_ms = current.now_ms
    for each in (
        {**world.node("gone"), "spec": {"unschedulable": True}},
        world.shared_node("shared"),
        world.pod("waits"),
        *world.queues(),
        *world.fraction(),
        *world.nvlink_tray("gpu-1"),
        world.finished_workload(now_ms - 30 * SECOND),
        *world.volcano_gang(T0 + 20 * SECOND),
    ):
        server.put(each)
    current.until(lambda: current.collector.watch.counts()["nodes"] == 3)
    server.delete(world.node("gone"))
    running = world.bound(world.pod("train-0"), "gpu-1", T0 + 10 * SECOND)
    told = world.preempted(running, T0 + 35 * SECOND)
    server.put(world.ended(told, iso(T0 + 10 * SECOND), iso(T0 + 40 * SECOND)))
    server.put(world.unwell(world.bound(world.pod("gang-0", **world.GANG), "gpu-1", T0 + 20 * SECOND), "0"))
    astray = world.bound(world.pod("astray"), "gpu-1", T0 + 20 * SECOND)
    astray["spec"] |= {"resourceClaims": [{"name": "gpu", "resourceClaimName": "gone"}]}
    astray["spec"]["containers"] = [{"name": "main", "resources": {}}]
    server.put(astray)
    server.break_watch("410_event", "pods")
    counts = current.collector.watch.counts

    def is_read() -> bool:
        found = counts()
        named = ("pods", "nodes", "workloads.kueue.x-k8s.io", "podgroups.scheduling.volcano.sh")
        # The gang's queue may be read after its groups.
        if not found["queues.scheduling.volcano.sh"] or not found["clusterqueues.kueue.x-k8s.io"]:
            return False
        return [found[name] for name in named] == [8, 2, 4, 2] and (
            current.collector.watch.snapshot().pods["train-0-uid"].has_ended
            and bool(current.collector.watch.errors())
            and not current.problem("pods")
        )

    current.until(is_read)
    current.collector.refresh()
    return current


def test_a_pod_that_kube_scheduler_preempts_says_so_until_its_series_go(
    server: ClusterServer, current: Watching
) -> None:
    """It writes the condition and deletes the pod, which is gone once it has stopped."""
    told = world.preempted(world.bound(world.pod("train-0"), "gpu-1", T0 + 10 * SECOND), T0 + 35 * SECOND)
    server.put(told)
    server.delete(told)
    current.until(lambda: current.collector.watch.counts()["pods"] == 0)
    current.collector.refresh()
    pod = {"pod": "train-0", "node": "gpu-1", "reason": "PreemptionByScheduler"}
    assert current.value("pod_disruption_timestamp_seconds", **pod) == (T0 + 35 * SECOND) / 1000
    assert current.value("pod_gpu_end_timestamp_seconds", pod="train-0") is not None


def test_every_metric_of_the_contract_can_be_seen(full: Watching) -> None:
    ours = {spec.name for spec in METRICS if spec.exporter is MetricExporter.QUEUE_COLLECTOR}
    ours -= {spec.name for spec in OF_SCHEDULERS}
    assert {STATE_UP.name, *(spec.name for spec in (*POD_METRICS, *NODE_METRICS))} < ours
    seen = {name for name, _ in full.series()}
    assert sorted(ours - seen) == []


def test_every_series_is_of_the_contract(full: Watching) -> None:
    specs = {spec.name: spec for spec in METRICS}
    for name, labels in full.series():
        specs[name].check_labels(dict(labels))


@pytest.mark.fault(12)
def test_an_end_is_the_pods_own_to_the_millisecond(full: Watching) -> None:
    assert full.value("pod_gpu_end_timestamp_seconds", pod="train-0") == (T0 + 40 * SECOND) / 1000
    assert full.value("node_end_timestamp_seconds", node="gone") == full.now_ms / 1000
    assert full.value("gang_partial_since_timestamp_seconds", gang="gang") is not None


@needs_prometheus
@pytest.mark.prometheus
@pytest.mark.fault(8)
def test_promtool_has_nothing_to_say_of_the_page(full: Watching) -> None:
    body = full.collector.answer(EndpointRequest("GET", "/metrics", "", {}, True)).body
    arguments = [PROMTOOL or "promtool", "check", "metrics"]
    done = subprocess.run(arguments, input=body, capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("interval_s", "took_s", "expected_s"),
    [
        (5, 0.1, 5),
        (5, 3, 12),  # a fifth of the time
        (5, 13, 21),  # 13 + 21 + 13 s: before a minute is over
        (5, 25, 5),
        (30, 3, 30),
    ],
)
def test_long_renewals_come_less_often_but_in_time(
    interval_s: float, took_s: float, expected_s: float
) -> None:
    assert pause_s(interval_s, took_s) == expected_s
