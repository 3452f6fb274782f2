"""Requests and bytes of servers out of a real Prometheus: whom a series is believed about, and rises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isnan
from pathlib import Path

import pandas as pd
import pytest

from gpucost.attribution.frames import conform
from gpucost.contract.frames import ALLOCATIONS
from gpucost.domain.errors import InputError
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Window, parse_instant
from gpucost.telemetry.history.serving import read_serving
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.cluster_reader import ClusterReader
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings, ServingCounter
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus

pytestmark = [needs_prometheus, pytest.mark.prometheus]

T0 = parse_instant("2026-10-06T10:00:00Z")
WINDOW = Window(T0, T0 + HOUR_MS)
VLLM, ISTIO = "vllm:request_success_total", "istio_requests_total"
INGRESS, BYTES = "nginx_ingress_controller_requests", "container_network_receive_bytes_total"


def series(name: str, labels: str, values: Sequence[float | None]) -> Iterator[str]:
    """A sample a minute, from five minutes before the window on; None: none then."""
    for n, value in enumerate(values):
        if value is not None:
            yield f"{name}{{{labels}}} {value} {T0 // 1000 + 60 * (n - 5)}\n"


def rising(at_minutes: Sequence[int], minutes: int = 66, begin: float = 7) -> list[float | None]:
    """A counter that stands at ``begin`` and rises by 2 at some minutes of the window."""
    return [begin + 2 * sum(n - 5 >= each for each in at_minutes) for n in range(minutes)]


def text() -> Iterator[str]:
    web, quiet = 'namespace="a",pod="web-1"', 'namespace="a",pod="quiet-1"'
    forged = 'namespace="evil",pod="forger",exported_namespace="a",exported_pod="quiet-1"'
    yield "# TYPE vllm:request_success counter\n".replace("counter", "unknown")
    yield from series(VLLM, web, [*rising([12, 13])[:40], *[0.0] * 10, *[3.0] * 16])
    yield from series(VLLM, quiet, rising([]))
    yield from series(VLLM, forged, rising([20]))
    late: list[float | None] = [None] * 30
    yield from series(VLLM, 'namespace="a",pod="late-1"', [*late, *[5.0] * 36])
    yield from series(ISTIO, 'namespace="a",pod="mesh-1",reporter="destination"', rising([31]))
    yield from series(ISTIO, 'namespace="a",pod="mesh-1",reporter="source"', rising([2]))
    own = 'exported_namespace="a",exported_service="quiet"'
    yield from series(INGRESS, f'namespace="ingress-nginx",{own}', rising([41]))
    yield from series(INGRESS, f'namespace="evil",{own}', rising([51]))
    for interface in ("eth0", "eth1"):
        yield from series(BYTES, f'{quiet},interface="{interface}"', [1000.0 * n for n in range(66)])
    yield "# EOF\n"


def held(pod: str, kind: str = "Deployment", job: str = "") -> dict[str, object]:
    texts = dict.fromkeys((column.name for column in ALLOCATIONS.columns if column.type == "str"), "")
    return {
        **texts, "cluster": "c", "node": "n", "namespace": "a", "pod": pod, "pod_uid": f"uid-{pod}",
        "job_kind": kind, "job": job or pod.rpartition("-")[0], "resource": "nvidia.com/gpu", "count": 1,
        "start_ms": T0, "end_ms": WINDOW.end_ms,
    }  # fmt: skip


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data: Path = tmp_path_factory.mktemp("serving") / "data"
    create_blocks(text(), data)
    with running_prometheus(data) as found:
        yield found


def read(url: str, *pods: dict[str, object], **given: object) -> tuple[pd.DataFrame, int]:
    """The frame, and how many questions it took."""
    client = PrometheusClient(url)
    settings = replace(PrometheusSourceSettings(fallback_cluster="c"), **given)
    reader = ClusterReader(client, settings, "c", WINDOW)
    found = read_serving(reader, WINDOW, conform(pd.DataFrame(pods), ALLOCATIONS))
    return found, client.stats.queries


def calls(found: pd.DataFrame, metric: str, pod: str) -> dict[int, float]:
    """Requests by the minute in which a step ends."""
    rows = found[(found["metric"] == metric) & (found["pod_uid"] == f"uid-{pod}")]
    ends = ((rows["end_ms"] - T0) // MINUTE_MS).tolist()
    return dict(zip(ends, rows["requests"].tolist(), strict=True))


def test_rises_by_step_and_over_a_restart(url: str) -> None:
    """7, 9 and 11 by minute 13; from minute 35 on 0 again, and 3 from minute 45 on."""
    found, _ = read(url, held("web-1"))
    assert {end: rise for end, rise in calls(found, VLLM, "web-1").items() if rise} == {15: 4.0, 45: 3.0}
    assert sorted(calls(found, VLLM, "web-1")) == list(range(5, 61, 5))
    assert found["received_bytes"].isna().all()


def test_a_counter_that_appears_counts_from_zero(url: str) -> None:
    """Its first sample, of 5, is 25 minutes into the window."""
    found, _ = read(url, held("late-1"))
    assert calls(found, VLLM, "late-1") == {25: 5.0, **dict.fromkeys(range(30, 61, 5), 0.0)}


def test_nobody_is_believed_about_anothers_pods(url: str) -> None:
    """A pod of namespace evil says that quiet-1 was called, once by its own labels and once as an ingress."""
    found, _ = read(url, held("quiet-1"))
    assert set(calls(found, VLLM, "quiet-1").values()) == {0.0}
    assert calls(found, INGRESS, "quiet-1") == {45: 2.0}
    received = found[found["metric"] == BYTES]
    assert set(received["received_bytes"]) == {10_000.0}
    assert all(isnan(value) for value in received["requests"])


def test_only_what_the_servers_sidecar_reports(url: str) -> None:
    found, _ = read(url, held("mesh-1"))
    assert {end: rise for end, rise in calls(found, ISTIO, "mesh-1").items() if rise} == {35: 2.0}


def test_what_is_not_there_costs_one_question(url: str) -> None:
    absent = (ServingCounter("nothing_total"), ServingCounter("nowhere_total"))
    found, questions = read(url, held("web-1"), serving=absent)
    assert (len(found), questions) == (0, 1)
    found, questions = read(url, held("train-1", "PyTorchJob"))
    assert (len(found), questions) == (0, 0)


def test_bad_counters_are_refused() -> None:
    with pytest.raises(InputError, match=r"serving\.x\.from_namespaces"):
        ServingCounter("x", "workload", "service")
    with pytest.raises(InputError, match="pod or workload"):
        ServingCounter("x", "node")
