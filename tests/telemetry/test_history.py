"""PrometheusSource.history against a real Prometheus: over gaps, restarts and HA pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpucost.contract import queue_metrics as m
from gpucost.contract.frames import ACTIVITY, HISTORY_FRAMES
from gpucost.contract.gpu_metrics import (
    GPU_DRIVER_EPOCH,
    GPU_MEMORY_TOTAL,
    GPU_MEMORY_USED,
    GPU_UP,
    GPU_XID_EVENTS,
    HOLDER_COUNTERS,
    POD_COUNTED_SINCE,
    GpuMeasure,
)
from gpucost.contract.metric_spec import MetricSpec
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Window
from gpucost.telemetry.evidence.gauge_runs import step_ms
from gpucost.telemetry.history.workload_history import NO_NODES, NOT_KNOWN
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.prometheus_source import PrometheusSource
from tests.support.history import GPU, T0, History, Node, Pod, at, counted, openmetrics_of
from tests.support.metric_samples import ExpositionSample
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus

pytestmark = [needs_prometheus, pytest.mark.prometheus]

STEP = 5 * MINUTE_MS
FIRST = Window(T0, at(6))
H100, A100 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB"
END = at(7)
DOWN = (at(3) + 1, at(3) + 20 * MINUTE_MS)
"""The queue collector is not scraped: longer than max_gap."""
SHORT = (at(2) + 1, at(2) + 4 * MINUTE_MS)
"""A pause that is no gap."""


def of(spec: MetricSpec, low: int, high: int, value: float, **labels: str) -> Iterator[ExpositionSample]:
    """A series with one value, in the collector's scrapes from ``low`` until before ``high``."""
    own = {**dict.fromkeys(spec.labels, ""), **labels}
    for now in range(T0, END, MINUTE_MS):
        if low <= now < high and not any(a <= now < b for a, b in (DOWN, SHORT)):
            yield ExpositionSample(spec, own, value, now)


# Activity


def counters(
    uid: str, begun: int, ended: int, rates: Mapping[GpuMeasure, float], **labels: str
) -> list[ExpositionSample]:
    """Counters of a pod that began at 0 at ``begun``, by the second, scraped every 30 s."""
    found = []
    for now in range(begun // (30 * SECOND_MS) * 30 * SECOND_MS, ended + 10 * MINUTE_MS, 30 * SECOND_MS):
        if now < begun:
            continue
        held_s = (min(now, ended) - begun) / 1000
        place = {key: value for key, value in labels.items() if key == "node"}
        found.append(counted(POD_COUNTED_SINCE, uid, begun / 1000, now, **place))
        found += [
            counted(HOLDER_COUNTERS[measure], uid, held_s * rate, now, **labels)
            for measure, rate in rates.items()
        ]
    return found


ALL = {
    GpuMeasure.HELD: 1.0,
    GpuMeasure.OBSERVED: 1.0,
    GpuMeasure.BUSY: 0.25,
    GpuMeasure.SM_OBSERVED: 1.0,
    GpuMeasure.SM_ACTIVE: 0.125,
    GpuMeasure.ENERGY: 300.0,
}
BUSY_BEGUN, BUSY_ENDED = at(1) + 10 * SECOND_MS, at(5) + 90 * SECOND_MS


def memory(uuid: str, used: float, low: int, high: int, instance: str = "") -> list[ExpositionSample]:
    place = {"node": "n1", "gpu_uuid": uuid, "gpu_instance": instance}
    return [
        ExpositionSample(spec, place, value, now)
        for now in range(low, high, MINUTE_MS)
        for spec, value in ((GPU_MEMORY_USED, used + (now == at(2))), (GPU_MEMORY_TOTAL, 80e9))
    ]


def activity_samples() -> list[ExpositionSample]:
    still = {**ALL, GpuMeasure.BUSY: 0.0, GpuMeasure.SM_ACTIVE: 0.0}
    lost = {GpuMeasure.HELD: 1.0}
    return [
        *counters("busy", BUSY_BEGUN, BUSY_ENDED, ALL),
        *counters("still", at(1), at(4), still, gpu_uuid="GPU-2", gpu_instance="3"),
        *counters("lost", at(1), at(2), lost, gpu_uuid="GPU-3"),
        *counters("short", at(1.5) + 40_000, at(1.5) + 41_000, ALL, gpu_uuid="GPU-4"),
        *counters("", at(1), at(4), still, holder="__unallocated__", gpu_uuid="GPU-5", namespace="", pod=""),
        *memory("GPU-1", 40e9, at(1), at(5)),
    ]


def without(samples: list[ExpositionSample], low: int, high: int) -> list[ExpositionSample]:
    return [sample for sample in samples if not low <= sample.at_ms < high]


def renamed(samples: list[ExpositionSample]) -> list[ExpositionSample]:
    """What a scrape makes of them whose target has a node of its own; theirs is among its labels then."""
    return [replace(sample, labels={**sample.labels, "node": "the-collectors"}) for sample in samples]


# Demand


def waiting_workload(
    uid: str, low: int, high: int, nodes: str, products: str = ""
) -> Iterator[ExpositionSample]:
    name = {"namespace": "ns", "workload": f"wl-{uid}", "workload_uid": uid}
    owner = {"job_kind": "Job", "job_name": "train", "job_uid": f"job-{uid}", "owner_team": "vision"}
    yield from of(m.WORKLOAD_INFO, low, END, 1, **name, **owner, queue="lq", cluster_queue="cq")
    yield from of(m.WORKLOAD_QUEUED, low, END, (low - 17_500) / 1000, **name)
    middle = (low + high) // 2
    yield from of(m.WORKLOAD_LAYER, low, middle, 1, **name, layer="quota", reason="NoFit")
    yield from of(m.WORKLOAD_LAYER, middle, high, 1, **name, layer="placement", reason="Unschedulable")
    for pod_set, pods, fewest, units in (("leader", 1, 1, 1), ("worker", 4, 3, 8)):
        one = {**name, "pod_set": pod_set}
        yield from of(m.WORKLOAD_SET_PODS, low, high, pods, **one)
        yield from of(m.WORKLOAD_SET_MIN, low, high, fewest, **one)
        wants = {"resource": GPU, "products": products, "nodes": nodes}
        yield from of(m.WORKLOAD_SET_UNITS, low, high, units, **one, **wants)


def waiting_job(low: int, high: int) -> Iterator[ExpositionSample]:
    name = {"job_kind": "VolcanoJob", "job_name": "sim", "job_uid": "vj"}
    yield from of(m.JOB_WAITING, low, high, 1, **name, layer="placement", reason="GangNotReady")
    info = {"namespace": "ns", "pod_group": "pg", "queue": "vq", "owner_team": "sims"}
    yield from of(m.JOB_WAITING_INFO, low, high, 1, **name, **info)
    yield from of(m.JOB_SET_PODS, low, at(4), 2, **name)
    yield from of(m.JOB_SET_PODS, at(4), high, 1, **name)
    yield from of(m.JOB_SET_MIN, low, high, 1, **name)
    yield from of(m.JOB_SET_UNITS, low, high, 4, **name, resource=GPU, nodes="all")


def demand_samples() -> Iterator[ExpositionSample]:
    yield from waiting_workload("some", at(1), at(3), "some", f"{A100}|{H100}")
    yield from waiting_workload("none", at(1), at(1.5), "none")
    yield from waiting_workload("unknown", at(1), at(1.5), "unknown")
    yield from waiting_job(at(2.5), at(5))


# Stalls, evictions, quotas, health


def stall_samples() -> Iterator[ExpositionSample]:
    gang = {"namespace": "ns", "gang": "pg", "gang_uid": "g1", "gang_kind": "pod_group"}
    owner = {"job_kind": "VolcanoJob", "job_name": "sim", "job_uid": "vj", "queue": "vq"}
    yield from of(m.GANG_INFO, at(1), END, 1, **gang, **owner)
    yield from of(m.GANG_MIN_MEMBERS, at(1), END, 4, **gang)
    yield from of(m.GANG_RUNNING, at(1), at(4), 2, **gang)
    yield from of(m.GANG_RUNNING, at(4), END, 3, **gang)
    yield from of(m.GANG_PENDING, at(1), at(4), 2, **gang)
    yield from of(m.GANG_PENDING, at(4), END, 1, **gang)
    yield from of(m.GANG_PARTIAL_SINCE, at(1), at(4.5), (at(0.75) + 250) / 1000, **gang)
    yield from of(m.GANG_PARTIAL_SINCE, at(5), at(5.5), at(5) / 1000, **gang)


EVICTED = {"namespace": "ns", "workload": "wl-some", "workload_uid": "some"}


def eviction_samples() -> Iterator[ExpositionSample]:
    """Twice preempted; and once ``late``, which was not observed before it had been evicted."""
    yield from of(m.WORKLOAD_EVICTIONS, at(4), at(5), 1, **EVICTED, reason="Preempted")
    yield from of(m.WORKLOAD_EVICTIONS, at(5), END, 3, **EVICTED, reason="Preempted")
    late = {"namespace": "ns", "workload": "wl-late", "workload_uid": "late"}
    yield from of(m.WORKLOAD_INFO, at(3), END, 1, **late)
    yield from of(m.WORKLOAD_EVICTIONS, at(3), END, 1, **late, reason="Preempted")
    # By kube-scheduler: a pod that Kueue does not know, and one whose workload Kueue evicted then too.
    for uid, low, high in (("plain", 4.4, 4.7), ("second", 4.9, 5.2)):
        told = {"namespace": "ns", "pod": uid, "pod_uid": uid, "node": "n1"}
        told |= {"reason": "PreemptionByScheduler"}
        yield from of(m.POD_DISRUPTED, at(low), at(high), at(low) / 1000, **told)
    told = {"namespace": "ns", "pod": "by-itself", "pod_uid": "by-itself", "node": "n1"}
    yield from of(m.POD_DISRUPTED, at(4.5), at(4.7), at(4.5) / 1000, **told, reason="EvictionByEvictionAPI")


def attempts() -> list[Pod]:
    def owned(workload: str) -> Mapping[int, Mapping[str, str]]:
        return {T0 - DAY_MS: {"workload": workload, "queue": "lq"}}

    return [
        Pod("first", T0 - HOUR_MS - 3, at(4) - 2 * MINUTE_MS, owners=owned("wl-some")),
        Pod("second", at(4.2), at(5) + 90_500, owners=owned("wl-some")),
        Pod("by-itself", at(4.2), at(4.6), owners=owned("wl-some")),
        Pod("goes-on", at(5.1), owners=owned("wl-some")),
        Pod("another", at(4), at(5), owners=owned("wl-late")),
        Pod("plain", at(4.1), at(4.45)),
    ]


def quota_samples() -> Iterator[ExpositionSample]:
    queue = {"cluster_queue": "cq", "flavor": "h100"}
    yield from of(m.CLUSTER_QUEUE_INFO, T0, END, 1, cluster_queue="cq", cohort="ml")
    yield from of(m.COHORT_INFO, T0, END, 1, cohort="ml", parent="all")
    yield from of(m.COHORT_INFO, T0, END, 1, cohort="all")
    yield from of(m.COHORT_NOMINAL, T0, END, 6, cohort="all", flavor="h100", resource=GPU)
    yield from of(m.COHORT_NOMINAL, T0, END, 64, cohort="all", flavor="h100", resource="cpu")
    yield from of(m.COHORT_LENDING_LIMIT, at(1), END, 2, cohort="ml", flavor="h100", resource=GPU)
    yield from of(m.CLUSTER_QUEUE_NOMINAL, T0, END, 8, **queue, resource=GPU)
    yield from of(m.CLUSTER_QUEUE_NOMINAL, T0, END, 64, **queue, resource="cpu")
    yield from of(m.CLUSTER_QUEUE_BORROWING_LIMIT, T0, at(1), 4, **queue, resource=GPU)
    yield from of(m.CLUSTER_QUEUE_USED, T0, at(1.5), 2, **queue, resource=GPU)
    yield from of(m.CLUSTER_QUEUE_USED, at(1.5), END, 9, **queue, resource=GPU)
    yield from of(m.VOLCANO_QUEUE_INFO, T0, END, 1, volcano_queue="vq", parent="root", state="Open")
    yield from of(m.VOLCANO_QUEUE_ALLOCATED, T0, END, 3, volcano_queue="vq", resource=GPU)


def health_samples() -> list[ExpositionSample]:
    found = []
    for now in range(T0, END, MINUTE_MS):
        for gpu, node in (("GPU-1", "n1"), ("GPU-2", "n1"), ("GPU-3", "cordoned")):
            place = {"node": node, "gpu_uuid": gpu}
            is_up = not (gpu == "GPU-1" and at(1) <= now < at(1.5))
            found.append(ExpositionSample(GPU_UP, place, float(is_up), now))
            epoch = 2.0 if gpu == "GPU-1" and now >= at(4.25) else 1.0
            found.append(ExpositionSample(GPU_DRIVER_EPOCH, place, epoch, now))
            if now >= at(4):
                found.append(
                    ExpositionSample(GPU_XID_EVENTS, {**place, "xid": "79"}, 1.0 + (now >= at(4.5)), now)
                )
                found.append(ExpositionSample(GPU_XID_EVENTS, {**place, "xid": "31"}, 5.0, now))
    return found


def histories() -> list[History]:
    activity = activity_samples()
    still = {**ALL, GpuMeasure.BUSY: 0.0}
    first = [sample for sample in counters("still", at(1), at(2.5), still) if sample.at_ms < at(2.5)]
    anew = [*first, *counters("still", at(2.5), at(4), still)]
    nodes = [Node("n1"), Node("cordoned", changes={at(4) + 600_000: {"schedulable": 0}})]
    queue = [*demand_samples(), *stall_samples(), *eviction_samples(), *quota_samples()]
    plain = {"end": END}
    return [
        History("gpus", extra=activity, **plain),
        History("gap", extra=without(activity, at(2), at(2.5)), **plain),
        History("ha", extra=without(activity, at(2), at(2.5)), target={"replica": "a"}, **plain),
        History("ha", extra=without(activity, at(3), at(4)), target={"replica": "b"}, **plain),
        History("restart", extra=without(activity, at(3), END), target={"instance": "one"}, **plain),
        History("restart", extra=without(activity, T0, at(3)), target={"instance": "two"}, **plain),
        History("renamed", extra=renamed(activity), target={"exported_node": "n1"}, **plain),
        History("lost-state", extra=anew, **plain),
        History("queue", attempts(), nodes, extra=[*queue, *health_samples()], down=(DOWN, SHORT), **plain),
        *(
            History(
                "pair", attempts(), nodes, extra=queue, target={"replica": name}, down=(DOWN, SHORT), **plain
            )
            for name in "ab"
        ),
        History("idle", **plain),
    ]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = tmp_path_factory.mktemp("history") / "data"
    create_blocks(openmetrics_of(*histories()), data)
    with running_prometheus(data) as address:
        yield address


@pytest.fixture(scope="module")
def source(url: str) -> Iterator[PrometheusSource]:
    with PrometheusClient(url) as client:
        chosen = PrometheusSourceSettings(replica_labels=("replica",))
        yield PrometheusSource(client, chosen, now=lambda: T0 + 10 * DAY_MS)


@pytest.fixture(scope="module")
def activity(source: PrometheusSource) -> pd.DataFrame:
    """Of the plain cluster: to be looked at, not changed."""
    return source.history("gpus", FIRST).activity


def rows(frame: pd.DataFrame, *columns: str, **where: object) -> list[tuple[object, ...]]:
    """Those columns of the rows with these values, in order of the start."""
    for name, value in where.items():
        frame = frame[frame[name] == value]
    frame = frame.sort_values(["start_ms", *columns], kind="stable")
    return [tuple(row) for row in frame[list(columns)].itertuples(index=False)]


@pytest.mark.parametrize("cluster", ["gpus", "gap", "ha", "restart", "renamed"])
def test_activity_is_the_same_however_it_was_scraped(source: PrometheusSource, cluster: str) -> None:
    found = source.history(cluster, FIRST).activity
    assert set(found["pod_uid"]) == {"busy", "still", "lost", "short"}
    assert set(found["node"]) == {"n1"}
    busy = found[found["pod_uid"] == "busy"]
    held = BUSY_ENDED - BUSY_BEGUN
    if cluster == "gap":
        assert not any(at(2) < start < at(2.5) - STEP for start in busy["start_ms"])
        missing = held - busy["held_ms"].sum()
        assert 29 * MINUTE_MS <= missing <= 31 * MINUTE_MS
        assert busy["busy_ms"].sum() == busy["held_ms"].sum() / 4
        return
    sums = busy[["held_ms", "observed_ms", "busy_ms", "sm_observed_ms", "sm_active_ms"]].sum().tolist()
    assert sums == [held, held, held / 4, held, held / 8]
    assert busy["energy_j"].sum() == pytest.approx(held / 1000 * 300)


def test_a_row_of_activity_is_one_gpu_and_one_step(activity: pd.DataFrame) -> None:
    found = activity
    assert (found["start_ms"] % STEP == 0).all()
    assert (found["end_ms"] - found["start_ms"] == STEP).all()
    assert found.groupby("pod_uid")["gpu"].unique().map(list).to_dict() == {
        "busy": ["GPU-1"],
        "still": ["GPU-2/3"],
        "lost": ["GPU-3"],
        "short": ["GPU-4"],
    }
    assert rows(found, "held_ms", "busy_ms", pod_uid="short") == [(1000.0, 250.0)]
    full = found[(found["pod_uid"] == "busy") & (found["start_ms"] == at(3))].iloc[0]
    assert (full["held_ms"], full["busy_ms"], full["energy_j"]) == (STEP, STEP / 4, 90_000)


def test_a_gpu_that_never_ran_a_kernel_has_exactly_0(activity: pd.DataFrame) -> None:
    found = activity
    still = found[found["pod_uid"] == "still"]
    assert len(still) == 3 * HOUR_MS / STEP
    assert (still["busy_ms"] == 0.0).all()
    lost = found[found["pod_uid"] == "lost"]
    assert lost["held_ms"].sum() == HOUR_MS
    assert lost[["observed_ms", "busy_ms", "sm_active_ms", "energy_j"]].isna().all(axis=None)


def test_counters_that_begin_anew_are_no_work(source: PrometheusSource) -> None:
    """The exporter lost its state: what rose around that is Prometheus' estimate, but 0 stays 0."""
    found = source.history("lost-state", FIRST).activity
    assert (found["busy_ms"] == 0.0).all()
    assert found["held_ms"].sum() == pytest.approx(3 * HOUR_MS, abs=MINUTE_MS)


def test_memory_is_the_most_of_a_step(activity: pd.DataFrame) -> None:
    found = activity.set_index(["pod_uid", "start_ms"])
    assert found.loc[("busy", at(2)), "memory_used_bytes"] == 40e9 + 1
    assert found.loc[("busy", at(2) - STEP), "memory_used_bytes"] == 40e9
    assert found.loc[("busy", at(3)), "memory_used_bytes"] == 40e9
    assert found.loc[("busy", at(3)), "memory_total_bytes"] == 80e9
    assert np.isnan(found.loc[("still", at(3)), "memory_used_bytes"])


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(at(0.5) // 30_000, at(5.9) // 30_000), min_size=1, max_size=3, unique=True))
def test_activity_of_parts_adds_up(source: PrometheusSource, activity: pd.DataFrame, cuts: list[int]) -> None:
    edges = [FIRST.start_ms, *sorted(cut * 30_000 for cut in cuts), FIRST.end_ms]
    measures = ["held_ms", "observed_ms", "busy_ms", "sm_active_ms"]
    windows = [Window(start_ms, end_ms) for start_ms, end_ms in pairwise(edges)]
    parts = [source.history("gpus", window, only=(ACTIVITY.name,)).activity for window in windows]
    whole = activity.groupby(["pod_uid", "gpu"])[measures].sum()
    assert pd.concat(parts).groupby(["pod_uid", "gpu"])[measures].sum().equals(whole)


@pytest.mark.parametrize("cluster", ["queue", "pair"])
def test_demand_of_a_workload(source: PrometheusSource, cluster: str) -> None:
    found = source.history(cluster, FIRST).demand
    columns = ("layer", "reason", "start_ms", "end_ms")
    first, changed, last = at(1) - 17_500, at(2) - MINUTE_MS, at(3) - MINUTE_MS
    for pod_set, shape in (("leader", (1, 1, 1)), ("worker", (4, 3, 8))):
        of_set = found[found["pod_set"] == pod_set]
        assert rows(of_set, *columns, job_uid="job-some") == [
            ("quota", "NoFit", first, changed),
            ("placement", "Unschedulable", changed, last),
        ]
        assert set(rows(of_set, "pods", "min_pods", "units", job_uid="job-some")) == {shape}
    one = found[found["job_uid"] == "job-some"].iloc[0]
    assert (one["namespace"], one["job_kind"], one["job"], one["workload"]) == (
        "ns",
        "Job",
        "train",
        "wl-some",
    )
    assert (one["queue"], one["cluster_queue"], one["team_label"]) == ("lq", "cq", "vision")
    assert one["products"] == f"{A100}|{H100}"
    assert set(rows(found, "products", job_uid="job-none")) == {(NO_NODES,)}
    assert set(rows(found, "products", job_uid="job-unknown")) == {(NOT_KNOWN,)}


def test_demand_of_a_job_over_a_gap(source: PrometheusSource) -> None:
    found = source.history("queue", FIRST).demand
    job = found[found["job_uid"] == "vj"]
    assert rows(job, "pods", "start_ms", "end_ms") == [
        (2, at(2.5) - MINUTE_MS, at(3)),
        (2, at(3) + 19 * MINUTE_MS, at(4) - MINUTE_MS),
        (1, at(4) - MINUTE_MS, at(5) - MINUTE_MS),
    ]
    one = job.iloc[0]
    assert (one["workload"], one["queue"], one["team_label"], one["products"]) == ("pg", "vq", "sims", "")


@pytest.mark.parametrize("cluster", ["queue", "pair"])
def test_stalls_begin_when_the_series_says(source: PrometheusSource, cluster: str) -> None:
    found = source.history(cluster, FIRST).stalls
    assert rows(found, "min_members", "running", "pending", "start_ms", "end_ms") == [
        (4, 2, 2, at(0.75) + 250, at(4) - MINUTE_MS),
        (4, 3, 1, at(4) - MINUTE_MS, at(4.5) - MINUTE_MS),
        (4, 3, 1, at(5), at(5.5) - MINUTE_MS),
    ]
    assert rows(found, "gang", "namespace", "job_uid", "queue")[0] == ("g1", "ns", "vj", "vq")


def test_a_stall_is_clipped_to_the_window(source: PrometheusSource) -> None:
    found = source.history("queue", Window(at(1.5), at(2.5))).stalls
    assert rows(found, "start_ms", "end_ms") == [(at(1.5), at(2.5))]


@pytest.mark.parametrize("cluster", ["queue", "pair"])
def test_evictions_are_pods_that_ended_when_the_count_rose(source: PrometheusSource, cluster: str) -> None:
    found = source.history(cluster, FIRST).evictions
    assert rows(found, "pod_uid", "job_uid", "queue", "start_ms", "end_ms", "reason", "by") == [
        ("first", "job-first", "lq", T0 - HOUR_MS - 3, at(4) - 2 * MINUTE_MS, "Preempted", ""),
        ("plain", "job-plain", "", at(4.1), at(4.45), "PreemptionByScheduler", ""),
        ("second", "job-second", "lq", at(4.2), at(5) + 90_500, "PreemptionByScheduler", ""),
    ]
    assert set(found["checkpoint_ms"]) == {-1}
    parts = [source.history(cluster, Window(a, b)).evictions for a, b in ((T0, at(4)), (at(4), at(6)))]
    assert [frame["pod_uid"].tolist() for frame in parts] == [["first"], ["plain", "second"]]


@pytest.mark.parametrize("cluster", ["queue", "pair"])
def test_quotas_by_stretch(source: PrometheusSource, cluster: str) -> None:
    found = source.history(cluster, Window(at(0.5), at(2))).quotas
    columns = ("queue", "cohort", "flavor", "resource", "start_ms", "end_ms", "nominal", "used")
    limited, changed = at(1) - MINUTE_MS, at(1.5) - MINUTE_MS
    name = ("cq", "all", "h100", GPU)
    assert rows(found, *columns, scheduler="kueue") == [
        (*name, at(0.5), limited, 8, 2),
        (*name, limited, changed, 8, 2),
        (*name, changed, at(2), 8, 9),
    ]
    kueue = found[found["scheduler"] == "kueue"].sort_values("start_ms")
    assert kueue["borrowing_limit"].tolist()[0] == 4
    assert kueue["borrowing_limit"].isna().tolist() == [False, True, True]
    assert kueue["lending_limit"].isna().all()
    assert set(kueue["own_cohort"]) == {"ml"}
    assert rows(found, *columns[:4], "used", scheduler="volcano") == [("vq", "root", "", GPU, 3.0)]
    assert found[found["scheduler"] == "volcano"]["nominal"].isna().all()


def test_cohorts_and_the_quota_of_their_own(source: PrometheusSource) -> None:
    """Only where they are asked for: no detector looks at them."""
    window = Window(at(0.5), at(2))
    assert source.history("queue", window).cohorts.empty
    found = source.history("queue", window, only=("cohorts",)).cohorts
    columns = ("cohort", "parent", "flavor", "resource", "start_ms", "end_ms")
    assert rows(found, *columns) == [
        ("all", "", "", "", at(0.5), at(2)),
        ("all", "", "h100", GPU, at(0.5), at(2)),
        ("ml", "all", "", "", at(0.5), at(2)),
        ("ml", "all", "h100", GPU, at(1) - MINUTE_MS, at(2)),
    ]
    assert found["nominal"].fillna(-1).tolist() == [-1, 6, -1, -1]
    assert found["lending_limit"].fillna(-1).tolist() == [-1, -1, -1, 2]


def test_health_ends_with_a_repair_a_drain_or_after_an_hour(source: PrometheusSource) -> None:
    found = source.history("queue", FIRST).health
    assert rows(found, "gpu", "reason", "start_ms", "end_ms") == [
        ("GPU-1", "lost", at(1) - MINUTE_MS, at(1.5) - MINUTE_MS),
        ("GPU-1", "xid_79", at(4), at(4.25)),
        ("GPU-2", "xid_79", at(4), at(5.5)),
        ("GPU-3", "xid_79", at(4), at(4) + 10 * MINUTE_MS),
        ("GPU-1", "xid_79", at(4.5), at(5.5)),
    ]


def test_weeks_are_looked_at_in_larger_steps(source: PrometheusSource) -> None:
    assert [step_ms(Window(T0, T0 + days * DAY_MS)) // MINUTE_MS for days in (1, 2, 7, 28)] == [1, 1, 5, 15]
    found = source.history("queue", Window(T0 - 27 * DAY_MS, at(6)), only=("quotas",))
    kueue = found.quotas[found.quotas["scheduler"] == "kueue"]
    quarter = 15 * MINUTE_MS
    assert rows(kueue, "start_ms", "end_ms", "nominal", "used") == [
        (T0 - quarter, at(1), 8, 2),
        (at(1), at(1.5) - quarter, 8, 2),
        (at(1.5) - quarter, at(3), 8, 9),
        (at(3) + quarter, at(6), 8, 9),
    ]
    assert found.allocations.empty
    assert found.demand.empty


def test_read_pays_for_no_history(source: PrometheusSource) -> None:
    frames = source.read("queue", FIRST)
    assert all(getattr(frames, spec.name).empty for spec in HISTORY_FRAMES)
    idle = source.history("idle", FIRST)
    assert all(getattr(idle, spec.name).empty for spec in HISTORY_FRAMES)
    assert list(idle.activity.columns) == list(HISTORY_FRAMES[0].column_names)
