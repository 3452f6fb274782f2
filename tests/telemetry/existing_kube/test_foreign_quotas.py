"""Quotas out of Kueue's and Volcano's own metrics, where they are scraped."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan

import pandas as pd
import pytest

from gpucost.contract import kube_state as ksm
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Month, Window
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.upstream.kube_reader import UpstreamSettings
from gpucost.telemetry.upstream.upstream_source import UpstreamSource
from tests.support.existing.text import Scrapes, Series, Steps, Target, Writer
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus

pytestmark = [needs_prometheus, pytest.mark.prometheus]

T0 = Month(2026, 10).window.start_ms
SPAN = Window(T0, T0 + 4 * HOUR_MS)
WINDOW = Window(T0 + HOUR_MS, T0 + 3 * HOUR_MS)
KUEUE = Target({"cluster": "c", "job": "kueue", "instance": "10.0.0.5:8443"}, True)
VOLCANO = Target({"cluster": "c", "job": "volcano", "instance": "10.0.0.6:8080"}, True)
STATE = Target({"cluster": "c", "job": "ksm", "instance": "10.0.0.1:8080"}, True)
GPU = "nvidia.com/gpu"


def always(name: str, value: float | Steps, **labels: str) -> Series:
    return Series(name, labels, value, SPAN.start_ms, SPAN.end_ms)


def of_kueue() -> Iterator[Series]:
    grown = Steps((SPAN.start_ms, T0 + 2 * HOUR_MS), (4.0, 6.0))
    for queue, cohort in (("research", "all"), ("batch", "")):
        place = {"cluster_queue": queue, "cohort": cohort, "flavor": "h100", "resource": GPU}
        yield always("kueue_cluster_queue_nominal_quota", 8, **place)
        yield always("kueue_cluster_queue_resource_usage", grown if cohort else 1, **place)
        yield always("kueue_cluster_queue_borrowing_limit", 2 if cohort else float("inf"), **place)
        yield always("kueue_cluster_queue_nominal_quota", 64, **{**place, "resource": "cpu"})
    yield always(
        "kueue_cluster_queue_info", 1, cluster_queue="research", parent_cohort="all", root_cohort="org"
    )


def of_volcano() -> Iterator[Series]:
    for name, milli in (("deserved", 4000), ("allocated", 2500)):
        yield always(f"volcano_queue_{name}_scalar_resources", milli, queue_name="vision", resource=GPU)


@pytest.fixture(scope="module")
def quotas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pd.DataFrame]:
    folder = tmp_path_factory.mktemp("quotas")
    writer, scrapes = Writer(), Scrapes(SPAN, MINUTE_MS)
    writer.add(KUEUE, scrapes, of_kueue())
    writer.add(VOLCANO, scrapes, of_volcano())
    node = {"node": "n", "resource": "nvidia_com_gpu", "unit": "integer"}
    state = [always(name, 8, **node) for name in (ksm.NODE_CAPACITY, ksm.NODE_ALLOCATABLE)]
    who = {"uid": "u", "namespace": "d", "pod": "p", "container": "c", "node": "n", "resource": "cpu"}
    state.append(always(ksm.REQUESTS, 2, **who))
    writer.add(STATE, scrapes, [always(ksm.NODE_CREATED, T0 / 1000, node="n"), *state])
    create_blocks(writer.text(), folder / "blocks")
    with running_prometheus(folder / "blocks") as url, PrometheusClient(url) as client:
        source = UpstreamSource(
            client, PrometheusSourceSettings(), UpstreamSettings(), now=lambda: SPAN.end_ms
        )
        found = source.history("c", WINDOW)
        assert "quotas" not in found.lacks
        yield found.quotas


def test_kueues_quota_and_what_was_used_of_it(quotas: pd.DataFrame) -> None:
    rows = quotas[quotas["queue"] == "research"].sort_values("start_ms")
    assert set(rows["scheduler"]) == {"kueue"}
    assert set(rows["flavor"]) == {"h100"}
    assert set(rows["cohort"]) == {"org"}
    assert rows["nominal"].tolist() == [8, 8]
    assert rows["used"].tolist() == [4, 6]
    assert set(rows["borrowing_limit"]) == {2}
    change = rows["start_ms"].tolist()[1]
    assert abs(change - (T0 + 2 * HOUR_MS)) <= MINUTE_MS
    assert rows["start_ms"].tolist()[0] == WINDOW.start_ms


def test_what_is_unlimited_is_null_and_what_is_no_gpu_is_left_out(quotas: pd.DataFrame) -> None:
    (row,) = quotas[quotas["queue"] == "batch"].to_dict("records")
    assert isnan(row["borrowing_limit"])
    assert isnan(row["lending_limit"])
    assert row["cohort"] == ""
    assert set(quotas["resource"]) == {GPU}


def test_volcano_counts_by_thousandths(quotas: pd.DataFrame) -> None:
    (row,) = quotas[quotas["scheduler"] == "volcano"].to_dict("records")
    assert (row["queue"], row["nominal"], row["used"], row["cohort"]) == ("vision", 4, 2.5, "root")
