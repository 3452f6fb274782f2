"""OpenCost's series in a real Prometheus: prices as steps in time, and what OpenCost bills by them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpucost.contract.opencost import BilledNode, BilledPod, DefaultPrice, OpenCostRelease
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Window, parse_instant
from gpucost.pricing.opencost_prices import ObservedNode, ObservedPrices, PriceStep
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.cluster_reader import ClusterReader
from gpucost.telemetry.prometheus.promql import PromQL, select
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.upstream.opencost_series import (
    CARRY_MS,
    REACH_MS,
    read_billed,
    read_prices,
    read_release,
)
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus

pytestmark = [needs_prometheus, pytest.mark.prometheus]

T0 = parse_instant("2026-10-06T00:00:00Z")
DAY = Window(T0, T0 + DAY_MS)
OFFSET = 17_000  # scrapes fall on no round time
TOTAL, GPU, SPOT = "node_total_hourly_cost", "node_gpu_hourly_cost", "kubecost_node_is_spot"

Value = float | Callable[[int], float | None]


def at(hours: float) -> int:
    return T0 + round(hours * HOUR_MS)


def series(name: str, value: Value, start: float, end: float, offset: int = OFFSET, **labels: str) -> str:
    """A sample each minute of hours ``start`` to ``end``; where the value is None, there is none."""
    inner = ",".join(f'{key}="{text}"' for key, text in labels.items())
    lines = []
    for now in range(at(start) + offset, at(end), MINUTE_MS):
        found = value(now) if callable(value) else value
        if found is not None:
            lines.append(f"{name}{{{inner}}} {found!r} {now / 1000:.3f}\n".replace(" nan ", " NaN "))
    return "".join(lines)


def on(cluster: str, node: str) -> dict[str, str]:
    return {"cluster": cluster, "node": node, "instance": node, "instance_type": "p5.48xlarge"}


def changing(before: float, when: float, after: float) -> Value:
    return lambda now: before if now < at(when) else after


def until(value: float, *gaps: tuple[float, float]) -> Value:
    return lambda now: None if any(at(a) <= now < at(b) for a, b in gaps) else value


def prices_text() -> Iterator[str]:
    yield series(TOTAL, 55.04, -8, 25, **on("p", "steady"))
    yield series(TOTAL, changing(16.0, 12.5, 24.0), -8, 25, **on("p", "changes"))
    yield series(TOTAL, changing(16.0, 13, 24.0), -8, 25, **on("p", "changes-on-the-hour"))
    yield series(TOTAL, 8.0, 3.5, 25, **on("p", "comes"))
    yield series(TOTAL, 8.0, 3 + 2 / 60, 25, **on("p", "comes-early"))
    yield series(TOTAL, 8.0, -8, 5.25, **on("p", "goes"))
    yield series(TOTAL, until(8.0, (4, 7)), -8, 25, **on("p", "short-gap"))
    yield series(TOTAL, until(8.0, (4, 14.5)), -8, 25, **on("p", "long-gap"))
    yield series(TOTAL, 0.0, -8, 25, **on("p", "zero"))
    yield series(TOTAL, math.nan, -8, 25, **on("p", "nan"))
    for member, offset in (("a", OFFSET), ("b", OFFSET + 20_000)):
        stops = 9 if member == "a" else 25
        yield series(TOTAL, 4.0, -8, stops, offset, replica=member, **on("p", "ha"))
    yield series(
        TOTAL, 6.0, -8, 25, cluster="p", instance="10.0.0.9:9003", exported_instance="renamed", pod="opencost"
    )
    yield series(TOTAL, 99.0, -8, 25, **on("other", "steady"))
    yield series(GPU, 2.33985, -8, 25, **on("p", "steady"))
    yield series(SPOT, changing(0.0, 6, 1.0), -8, 25, **on("p", "steady"))
    yield "# EOF\n"


def pod(name: str, node: str, container: str = "main", cluster: str = "b") -> dict[str, str]:
    found = {"cluster": cluster, "namespace": "ml", "pod": name, "container": container}
    return found | ({"node": node} if node else {})


def billed_text() -> Iterator[str]:
    """Of node n1 and n2, hours 0 to 24: what each pod asked for, and when its container ran."""
    requests = {"resource": "nvidia_com_gpu", "unit": "integer", "uid": "u"}
    held, runs, active = (
        "kube_pod_container_resource_requests",
        "kube_pod_container_status_running",
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    )
    yield series(held, 8.0, 0, 24, **pod("eight", "n1"), **requests)
    yield series(held, 1.0, 0, 24, **pod("finished", "n2"), **requests)
    yield series(held, 1.0, 0, 24, **pod("pending", ""), **requests)
    yield series(held, 1.0, 2, 3, **pod("short", "n2"), **requests)
    mig = requests | {"resource": "nvidia_com_mig_1g_10gb"}
    yield series(held, 1.0, 0, 24, **pod("mig", "n2"), **mig)
    yield series(held, 1.0, 0, 12, **pod("two", "n2", "one"), **requests)
    yield series(held, 2.0, 0, 12, **pod("two", "n2", "other"), **requests)
    yield series(runs, changing(0.0, 1, 1.0), 0, 24, **pod("eight", ""))
    yield series(runs, changing(1.0, 6, 0.0), 0, 24, **pod("finished", ""))
    yield series(runs, 0.0, 0, 24, **pod("pending", ""))
    yield series(
        runs, lambda now: float(at(2) + MINUTE_MS <= now < at(2) + 4 * MINUTE_MS), 2, 3, **pod("short", "")
    )
    yield series(runs, 1.0, 0, 12, **pod("two", "", "one"))
    yield series(runs, 1.0, 0, 12, **pod("two", "", "other"))
    for gpu, busy in (("0", 1.0), ("1", 0.5)):
        renamed = {"exported_namespace": "ml", "exported_pod": "eight", "namespace": "mon", "pod": "dcgm"}
        yield series(active, busy, 1, 24, cluster="b", gpu=gpu, **renamed)
    cpu = requests | {"resource": "cpu", "unit": "core"}
    for name, container in (("eight", "main"), ("finished", "main"), ("two", "one"), ("two", "other")):
        yield series(held, 4.0, 0, 24, **pod(name, "n1" if name == "eight" else "n2", container), **cpu)
    yield series(TOTAL, 55.04, 0, 24, **on("b", "n1"))
    yield series(GPU, changing(2.0, 12, 3.0), 0, 24, **on("b", "n1"))
    yield series("node_gpu_count", 8.0, 0, 24, **on("b", "n1"))
    yield series(GPU, 0.95, 0, 12, **on("b", "n2"))
    yield series(TOTAL, 4.0, 2, 12, **on("b", "n2"))
    # Of n3 there is a price, and no look ever fell on it: gone after a minute.
    yield series(GPU, 0.95, 6 + 6 / 60, 6 + 7 / 60, **on("b", "n3"))
    # In cluster c OpenCost's own series of what containers have; kube-state-metrics says otherwise.
    yield series(held, 1.0, 0, 6, **pod("a", "n3", cluster="c"), **requests)
    yield series("container_gpu_allocation", 2.0, 3, 6, **pod("a", "n3", cluster="c"))
    yield series("container_cpu_allocation", 2.0, 3, 6, **pod("a", "n3", cluster="c"))
    yield series(runs, 1.0, 0, 6, **pod("a", "", cluster="c"))
    yield series(held, 1.0, 0, 6, **pod("none", "n3", cluster="c"), **requests)
    yield series(runs, 1.0, 0, 6, **pod("none", "", cluster="c"))
    # In clusters d and e a scrape renamed kube-state-metrics' labels; OpenCost's own only where it said so.
    for cluster in ("d", "e"):
        yield series(held, 1.0, 0, 6, cluster=cluster, **renamed_pod(True), **requests)
        yield series(runs, 1.0, 0, 3, cluster=cluster, **renamed_pod(False))
        yield series(runs, 0.0, 3, 6, cluster=cluster, **renamed_pod(False))
        yield series(held, 1.0, 0, 6, cluster=cluster, **renamed_pod(True), **cpu)
    yield series("container_gpu_allocation", 4.0, 0, 6, **pod("a", "n3", cluster="e"))
    yield from late_text()
    yield "# EOF\n"


def late_text() -> Iterator[str]:
    """Cluster f, of a late release: a StatefulSet's pod twice, each seen once, and one that was there before
    the day. A job that is nobody's says so too: OpenCost believes any."""
    yield series("opencost_build_info", 0.0, 0, 24, cluster="f", version="1.118.0", revision="c0ffee")
    yield series("kubecost_cluster_info", 1.0, 0, 24, cluster="f", provider="AWS", id="f")
    yield series(TOTAL, 4.0, 0, 24, **on("f", "n4"), uid="n4-uid")
    for uid, minute in (("u1", 63), ("u2", 123)):
        there = minute / 60, (minute + 4) / 60
        who = pod("web-0", "n4", cluster="f") | {"uid": uid, "job": "anyone"}
        for resource, value in (("nvidia_com_gpu", 1.0), ("memory", 2.0**30)):
            labels = {"resource": resource, "unit": "integer"}
            yield series("kube_pod_container_resource_requests", value, *there, **who, **labels)
        yield series("kube_pod_container_status_running", 1.0, *there, **who)
        yield series("kube_pod_container_status_running", 0.0, there[1], there[1] + 0.1, **who)
    old = pod("old", "n4", cluster="f") | {"uid": "u3"}
    labels = {"resource": "nvidia_com_gpu", "unit": "integer"}
    yield series("kube_pod_container_resource_requests", 1.0, -1, 2, **old, **labels)
    yield series("kube_pod_container_status_running", 1.0, -1, 2, **old)


def renamed_pod(with_node: bool) -> dict[str, str]:
    found = {"exported_namespace": "ml", "exported_pod": "a", "exported_container": "main"}
    found |= {"namespace": "monitoring", "pod": "kube-state-metrics-0", "container": "kube-state-metrics"}
    return found | ({"node": "n3"} if with_node else {})


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data: Path = tmp_path_factory.mktemp("opencost") / "data"
    create_blocks(prices_text(), data)
    create_blocks(billed_text(), data)
    with running_prometheus(data) as found:
        yield found


def reader(url: str, cluster: str, window: Window = DAY) -> ClusterReader:
    settings = PrometheusSourceSettings(replica_labels=("replica",))
    return ClusterReader(PrometheusClient(url), settings, cluster, window)


@pytest.fixture(scope="module")
def prices(url: str) -> ObservedPrices:
    return read_prices(reader(url, "p"), DAY)


def total(prices: ObservedPrices, node: str) -> tuple[PriceStep, ...]:
    return prices["p", node].total


def test_a_price_that_never_changes_is_one_step(prices: ObservedPrices) -> None:
    found = prices["p", "steady"]
    assert found.total == (PriceStep(DAY.start_ms, DAY.end_ms, 55.04),)
    assert found.gpu == (PriceStep(DAY.start_ms, DAY.end_ms, 2.33985),)
    six = at(6) + OFFSET
    assert found.spot == (PriceStep(DAY.start_ms, six, 0.0), PriceStep(six, DAY.end_ms, 1.0))


@pytest.mark.vector("V23")
@pytest.mark.parametrize(("node", "when"), [("changes", 12.5), ("changes-on-the-hour", 13)])
def test_a_change_takes_effect_at_the_first_sample_that_shows_it(
    prices: ObservedPrices, node: str, when: float
) -> None:
    change = at(when) + OFFSET
    assert total(prices, node) == (PriceStep(DAY.start_ms, change, 16.0), PriceStep(change, DAY.end_ms, 24.0))


def test_a_node_has_its_price_for_a_moment_before_it_was_seen(prices: ObservedPrices) -> None:
    assert total(prices, "comes") == (PriceStep(at(3.5) + OFFSET - REACH_MS, DAY.end_ms, 8.0),)
    early = at(3 + 2 / 60) + OFFSET - REACH_MS
    assert early < at(3)
    assert total(prices, "comes-early") == (PriceStep(early, DAY.end_ms, 8.0),)


def test_a_price_outlives_a_gap_but_not_a_long_one(prices: ObservedPrices) -> None:
    assert total(prices, "short-gap") == (PriceStep(DAY.start_ms, DAY.end_ms, 8.0),)
    gap_end = at(14.5) + OFFSET - REACH_MS
    assert total(prices, "long-gap") == (
        PriceStep(DAY.start_ms, at(4) + CARRY_MS, 8.0),
        PriceStep(gap_end, DAY.end_ms, 8.0),
    )
    assert total(prices, "goes") == (PriceStep(DAY.start_ms, at(6) + CARRY_MS, 8.0),)


def test_what_is_no_price_is_kept_to_be_said(prices: ObservedPrices) -> None:
    assert total(prices, "zero") == (PriceStep(DAY.start_ms, DAY.end_ms, 0.0),)
    (step,) = total(prices, "nan")
    assert math.isnan(step.value)


def test_members_renamed_labels_and_other_clusters(prices: ObservedPrices) -> None:
    assert total(prices, "ha") == (PriceStep(DAY.start_ms, DAY.end_ms, 4.0),)
    assert total(prices, "renamed") == (PriceStep(DAY.start_ms, DAY.end_ms, 6.0),)
    assert {cluster for cluster, _ in prices} == {"p"}
    assert "10.0.0.9:9003" not in {node for _, node in prices}


def test_windows_of_any_size_agree(url: str, prices: ObservedPrices) -> None:
    for window in DAY.split(HOUR_MS):
        hour = read_prices(reader(url, "p", window), window)
        for key, whole in prices.items():
            expected = tuple(
                PriceStep(max(step.start_ms, window.start_ms), min(step.end_ms, window.end_ms), step.value)
                for step in whole.total
                if step.start_ms < window.end_ms and window.start_ms < step.end_ms
            )
            if key[1] != "nan":
                assert hour.get(key, ObservedNode()).total == expected, (key, window)


def test_what_opencost_bills_worked_out_by_hand(url: str) -> None:
    nodes, pods = read_billed(reader(url, "b"), DAY)
    by_name = {each.pod: each for each in pods}
    assert set(by_name) == {"eight", "finished", "two"}  # neither pending, nor MIG, nor the short one
    # Looked at each five minutes, from 01:05 to 24:00.
    first = at(1 + 5 / 60)
    hours = (at(24) - first) / HOUR_MS
    assert by_name["eight"] == BilledPod(
        "n1", "ml", "eight", first, at(24), round(8 * hours * HOUR_MS), pytest.approx(0.75)
    )
    # Its first sample is 17 seconds after midnight.
    minutes = 6 * 60 - 5
    assert by_name["finished"] == BilledPod("n2", "ml", "finished", at(5 / 60), at(6), minutes * MINUTE_MS)
    assert by_name["two"].unit_ms == 3 * by_name["two"].running_ms
    # A series that ends without a word is seen until five minutes after its last sample.
    assert by_name["two"].running_ms == pytest.approx(12 * HOUR_MS, abs=5 * MINUTE_MS)
    one, two, three = nodes
    day = DAY_MS - 5 * MINUTE_MS
    assert one == BilledNode("n1", pytest.approx(2.5, abs=0.01), pytest.approx(55.04), 8.0, day)
    assert (two.node, two.total_price, two.count) == ("n2", 4.0, None)
    assert two.node_ms == pytest.approx(10 * HOUR_MS, abs=10 * MINUTE_MS)
    assert (three.node, three.node_ms) == ("n3", HOUR_MS)


def test_one_look_is_one_resolution_and_a_finer_one_sees_more(url: str) -> None:
    _, pods = read_billed(reader(url, "b"), DAY, resolution_ms=MINUTE_MS)
    short = next(each for each in pods if each.pod == "short")
    assert (short.start_ms, short.end_ms) == (at(2 + 2 / 60), at(2 + 4 / 60))
    assert not short.is_placed  # nothing but its GPU request says where it is
    window = Window(at(2) + 2 * MINUTE_MS + 20_000, at(3))
    _, pods = read_billed(reader(url, "b", window), window, resolution_ms=2 * MINUTE_MS)
    (short,) = (each for each in pods if each.pod == "short")
    assert (short.start_ms, short.end_ms) == (at(2 + 3 / 60), at(2 + 5 / 60))


def test_its_own_series_of_allocations_is_preferred_and_its_mean_is_for_all_of_the_time(url: str) -> None:
    """Of half of the time that ``a`` ran; a pod that has none of it costs nothing."""
    _, pods = read_billed(reader(url, "c"), DAY)
    ran = at(6) - at(5 / 60)
    assert [(each.pod, each.unit_ms / each.running_ms, each.is_placed) for each in pods] == [
        ("a", 2.0, True), ("none", 0.0, False),
    ]  # fmt: skip
    assert all(each.running_ms >= ran for each in pods)


def test_a_late_release_looks_by_uid_and_sees_the_start(url: str) -> None:
    found = read_release(reader(url, "f"), DAY)
    assert found == OpenCostRelease(
        ("1.118.0",), by_uid=True, default=DefaultPrice(0.95, found.default.source if found.default else "")
    )
    assert found.default is not None
    assert "shipped with for aws" in found.default.source
    assert read_release(reader(url, "f"), DAY, 1.25).default == DefaultPrice(1.25, "as you say")
    nodes, pods = read_billed(reader(url, "f"), DAY, found)
    web, old = sorted(pods, key=lambda each: each.pod, reverse=True)
    # Each of the two was seen once, at 01:05 and at 02:05.
    assert (web.start_ms, web.end_ms) == (at(1) + 150_000, at(2) + 450_000)
    assert web.unit_ms == web.running_ms
    assert old.start_ms == DAY.start_ms
    assert [each.node for each in nodes] == ["n4"]
    _, pods = read_billed(reader(url, "f"), DAY, OpenCostRelease())
    by_name = next(each for each in pods if each.pod == "web-0")
    assert (by_name.start_ms, by_name.end_ms) == (at(1) + 300_000, at(2) + 300_000)
    _, pods = read_billed(reader(url, "f"), DAY, OpenCostRelease(sees_start=False))
    assert next(each for each in pods if each.pod == "old").start_ms == at(5 / 60)


@pytest.mark.parametrize(
    ("version", "left_open", "sees"),
    [("1.112.0", True, False), ("v1.114.2", True, False), ("1.115.0", True, True), ("1.112.0", False, True)],
)
def test_the_start_of_a_day_counts_unless_an_early_release_asks_a_prometheus_3(
    version: str, left_open: bool, sees: bool
) -> None:
    class Answers:
        """What is asked of a reader, where the server at hand is of one release."""

        def select_of_all(self, name: str, *matchers: PromQL) -> PromQL:
            return select(name, matchers)

        def vector(self, expression: PromQL, at_ms: int) -> list[dict[str, object]]:
            value = [at_ms / 1000, "1" if left_open else "2"]
            if "vector(1)" in expression:
                return [{"metric": {}, "value": value}]
            return [{"metric": {"version": version}, "value": value}] if "build_info" in expression else []

    assert read_release(Answers(), DAY).sees_start is sees  # type: ignore[arg-type]


@pytest.mark.parametrize(("cluster", "units"), [("d", 1), ("e", 4)])
def test_labels_that_a_scrape_renamed_are_their_exporters(url: str, cluster: str, units: int) -> None:
    _, pods = read_billed(reader(url, cluster), DAY)
    (found,) = pods
    assert (found.node, found.namespace, found.pod) == ("n3", "ml", "a")
    assert (found.start_ms, found.end_ms) == (at(5 / 60), at(3))
    assert found.unit_ms == units * found.running_ms


def test_without_any_series_there_is_nothing(url: str) -> None:
    assert read_prices(reader(url, "none"), DAY) == {}
    assert read_billed(reader(url, "none"), DAY) == ([], [])
