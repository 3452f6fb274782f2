"""A user who may create objects in a namespace cannot create any number of series; sums stay as they are."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpucost.cluster.views.gangs import PodGang
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.contract.queue_metrics import GangKind
from gpucost.domain.gpu import ResourceCatalog
from gpucost.domain.jobs import JobKind, JobReference
from gpucost_queue_collector import pod_series, queue_series, workload_series
from gpucost_queue_collector.collector import SeriesRules
from gpucost_queue_collector.page import OTHERS
from tests.cluster.builders import GPU, MINUTE, T0, cluster_queue, condition, local_queue, pod_set, state
from tests.cluster.builders import workload as built
from tests.exporters.queue import world
from tests.exporters.queue.test_collector import Watching
from tests.support.cluster import shapes
from tests.support.cluster.server import ClusterServer

FLOOD, MOST = 10_000, 100


@pytest.mark.slow
def test_ten_thousand_pods_of_one_tenant_are_a_hundred_and_one_rows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "gpucost_queue_collector")
    with ClusterServer() as server:
        for n in range(FLOOD):
            labels = {"team": f"random-{n}"}
            server.put(shapes.pod("flood", f"p{n}", f"p{n}-uid", T0, world.GPU, 1, labels=labels))
        for n in range(3):
            server.put(shapes.pod("quiet", f"q{n}", f"q{n}-uid", T0, world.GPU, 1))
        watching = Watching(server, SeriesRules(ResourceCatalog(), most_per_namespace=MOST))
        try:
            watching.collector.start()
            watching.collector.watch.wait(60)
            watching.until(lambda: bool(watching.collector.refresh()) and watching.is_up())
            series = watching.series()
            watching.collector.refresh()
            assert watching.series() == series, "the same rows at each refresh"
        finally:
            watching.close()
    found: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
    for (name, labels), value in series.items():
        found[name].append((dict(labels), value))
    waiting = found["gpucost_pod_gpu_waiting"]
    mine = [value for labels, value in waiting if labels["namespace"] == "flood"]
    assert (len(mine), sum(mine)) == (MOST + 1, FLOOD)
    assert sum(labels["namespace"] == "quiet" for labels, _ in waiting) == 3
    jobs = found["gpucost_job_waiting"]
    assert (len(jobs), sum(value for _, value in jobs)) == (MOST + 1 + 3, FLOOD + 3)
    units = {labels["job_uid"]: value for labels, value in found["gpucost_job_pod_set_units"]}
    pods = {labels["job_uid"]: value for labels, value in found["gpucost_job_pod_set_pods"]}
    assert sum(pods[uid] * units[uid] for uid in pods) == FLOOD + 3
    others = {labels["part"]: value for labels, value in found["gpucost_state_other_objects"]}
    assert others == {
        "unknown_claims": 0,
        "waiting_pods": FLOOD - MOST,
        "waiting_jobs": FLOOD - MOST,
        "workloads": 0,
        "gangs": 0,
        "local_queues": 0,
    }
    assert len(series) < 40 * MOST
    told = [each.getMessage() for each in caplog.records if "most_per_namespace" in each.getMessage()]
    assert len(told) == 2, "once for each kind"


def _sums(texts: Iterable[Sequence[bytes]], *keys: str) -> Mapping[tuple[str, ...], float]:
    """Of every series of some rows by name and the labels ``keys``."""
    found: dict[tuple[str, ...], float] = defaultdict(float)
    whole = b"".join(part for text in texts for part in text).decode()
    for family in text_string_to_metric_families(whole):
        for each in family.samples:
            found[(each.name, *(each.labels.get(key, "") for key in keys))] += each.value
    return found


def test_workloads_beyond_the_limit_keep_the_demand_of_their_queue() -> None:
    waits = {"QuotaReserved": condition(False, "Pending")}
    workloads = [
        built(
            f"w{n}", pod_set(count=1 + n % 3, gpus=2), queue=f"lq{n % 2}", conditions=waits,
            created_ms=T0 + n * MINUTE,
        )
        for n in range(30)
    ]  # fmt: skip
    queues = [local_queue("lq0", "a"), local_queue("lq1", "b"), cluster_queue("a"), cluster_queue("b")]
    overview = ClusterOverview(state(*queues, *workloads), ResourceCatalog())
    shown = workload_series.shown_workloads(overview, {})
    rows, beyond = workload_series.WORKLOAD_LIMIT.rows(shown, 4)
    assert (len(rows), beyond) == (4 + 2, 26)
    whole, folded = (list(map(workload_series.write_workload, each.values())) for each in (shown, rows))
    for name in ("workload_state", "workload_waiting", "workload_units"):
        key = (f"gpucost_{name}", "team-a")
        assert _sums(folded, "namespace")[key] == _sums(whole, "namespace")[key] > 0
    kept = [each for each in rows.values() if isinstance(each, workload_series.ShownWorkload)]
    assert [each.workload.meta.name for each in kept] == ["w0", "w1", "w2", "w3"], "the oldest"
    others = [each for each in rows.values() if isinstance(each, workload_series.OtherWorkloads)]
    asked = {each.cluster_queue: each.wants[0].pods * each.wants[0].wants[0].units for each in others}
    right = {queue: sum(2 * (1 + n % 3) for n in range(4 + m, 30, 2)) for m, queue in enumerate("ab")}
    assert asked == right


def test_gangs_and_local_queues_beyond_the_limit_are_sums() -> None:
    gangs = {
        f"g{n}": PodGang(
            GangKind.JOB, "ns", f"g{n}", f"g{n}",
            JobReference(JobKind.JOB, f"g{n}", f"g{n}"), "", 4, n % 3, 1, 0,
            {GPU: n % 3}, is_partial=True, partial_since_ms=T0,
        )
        for n in range(20)
    }  # fmt: skip
    rows, beyond = pod_series.LIMIT.rows(gangs, 5)
    assert (len(rows), beyond) == (6, 15)
    whole, folded = (_sums(map(pod_series.write_gang, each.values()), "namespace") for each in (gangs, rows))
    for name in ("min_members", "running_members", "pending_members", "held_units"):
        assert folded[f"gpucost_gang_{name}", "ns"] == whole[f"gpucost_gang_{name}", "ns"]
    assert sum(each.name == OTHERS for each in rows.values()) == 1
    assert all(each.held[GPU] for each in rows.values()), "those that hold GPUs first"

    waits = {"QuotaReserved": condition(False, "Pending")}
    objects = [local_queue(f"lq{n}", "cq") for n in range(12)]
    objects += [built(f"w{n}", pod_set(gpus=1), queue=f"lq{n}", conditions=waits) for n in range(12)]
    views = ClusterOverview(state(cluster_queue("cq"), *objects), ResourceCatalog()).queues.local_queues
    named = {"/".join(name): view for name, view in views.items()}
    kept, beyond = queue_series.LOCAL_LIMIT.rows(named, 3)
    assert (len(kept), beyond) == (4, 9)
    before, after = (
        _sums(map(queue_series.write_local_queue, each.values()), "namespace") for each in (named, kept)
    )
    for name in ("pending_workloads", "pending_units"):
        key = (f"gpucost_local_queue_{name}", "team-a")
        assert after[key] == before[key] == 12
