"""Use out of series of AMD's exporter and OpenTelemetry in a real Prometheus: each case a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan

import pytest

from gpucost.contract.frames import SIGNALS
from gpucost.domain.time import HOUR_MS, Window
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.upstream.device_subjects import ClusterHoldings, PodHolding
from gpucost.telemetry.upstream.kube_reader import KubeStateReader, UpstreamSettings
from gpucost.telemetry.upstream.upstream_source import read_signals
from tests.support.dcgm_rows import Rows, at, held, openmetrics_of
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus

pytestmark = [needs_prometheus, pytest.mark.prometheus]

WINDOW = Window(at(0), at(1))
NOTHING = {"UUID": "", "modelName": "", "pod": "", "namespace": ""}


def amd(number: int, pod: str = "", style: str = "spx", part: int = 0, **labels: str) -> dict[str, str]:
    own = {"gpu_id": str(number), "gpu_partition_id": str(part), "gpu_compute_partition_type": style}
    who = {"pod": f"pod-{pod}", "namespace": "team"} if pod else {}
    place = {"serial_number": "S1", "hostname": "n1", "job": "amd-metrics-exporter"}
    return {**NOTHING, **place, **own, **who, **labels}


def otel(number: str, **labels: str) -> dict[str, str]:
    return {**NOTHING, "hw_id": number, "hw_type": "gpu", "host_name": "n1", "job": "otel", **labels}


BUSY, PACKAGE, AVERAGE = "gpu_gfx_activity", "gpu_package_power", "gpu_average_package_power"
CASES: dict[str, list[Rows]] = {
    # Names without a prefix. An MI2xx has no power of the package; 0 is not a reading.
    "plain": [
        *(Rows(BUSY, 50, labels=amd(0, "a")), Rows(PACKAGE, 0, labels=amd(0, "a"))),
        Rows(AVERAGE, 250, labels=amd(0, "a")),
    ],
    # One row is not of the first half, so it is its part of the GPU, and not measured.
    "halves": [
        Rows(BUSY, 60, labels=amd(0, "a", "dpx")),
        Rows(BUSY, 0, labels=amd(1, "b", "dpx", 1)),
        Rows(PACKAGE, 0, labels=amd(1, "b", "dpx", 1)),
    ],
    # Six dies: CPX of a GPU whose model no label names.
    "dies": [Rows(BUSY, 60 if n == 0 else 0, labels=amd(n, "a", "cpx", n)) for n in range(6)],
    # A value that no GPU can have.
    "corrupt": [Rows(BUSY, lambda h: 65535 if h > 0.5 else 50, labels=amd(0, "a"))],
    # dcgm-exporter tells of the pod; OpenTelemetry of the same GPU is not read beside it.
    "both": [
        Rows("DCGM_FI_DEV_GPU_UTIL", 40, labels={"exported_pod": "pod-a", "exported_namespace": "team"}),
        Rows("hw_gpu_utilization_ratio", 0.9, labels=otel("GPU-1")),
    ],
    # More rows than the node has units: a GPU that Kubernetes does not know may be among them.
    "beside": [Rows("hw_gpu_utilization_ratio", 0.9, labels=otel(f"GPU-{n}")) for n in range(3)],
    # A collector exports the node's CPU and disk under the same names: they are no GPUs of it.
    "hardware": [
        Rows("hw_gpu_utilization_ratio", 0.5, labels=otel("GPU-1")),
        Rows("hw_power_watts", 200, labels=otel("GPU-1")),
        Rows("hw_power_watts", 150, labels=otel("CPU-1", hw_type="cpu")),
        Rows("hw_power_watts", 10, labels=otel("disk-1", hw_type="physical_disk")),
    ],
    # Power of something that does not say what it is, under the number of the GPU.
    "untold": [
        Rows("hw_gpu_utilization_ratio", 0.5, labels=otel("0", hw_type="")),
        Rows("hw_power_watts", 200, labels=otel("0")),
        Rows("hw_power_watts", 3000, labels=otel("0", hw_type="")),
    ],
    # Rows of parts of a GPU alone: there is nothing of the whole.
    "parts": [Rows("hw_gpu_utilization_ratio", 0.9, labels=otel("GPU-1", hw_gpu_partition="1g.10gb"))],
    # The scrape says where the collector runs, and the hosts of which it tells are not of this cluster.
    "gateway": [
        Rows("hw_gpu_utilization_ratio", 0.9, labels=otel("0", host_name="far-1", node="n1")),
        Rows("hw_gpu_utilization_ratio", 0.7, labels=otel("0", host_name="far-2", node="n1")),
    ],
    # So does a node's name of another cluster; a host's own name may differ from that of its node.
    "far": [
        Rows("hw_gpu_utilization_ratio", 0.9, labels=otel("0", k8s_node_name="far", host_name="", node="n1"))
    ],
    "named": [Rows("hw_gpu_utilization_ratio", 0.5, labels=otel("0", host_name="n1.lan", node="n1"))],
    # No label and no target_info names the node.
    "nowhere": [Rows("hw_gpu_utilization_ratio", 0.9, labels=otel("GPU-1", host_name=""))],
    # Power alone is of any hardware: nothing proves that its job tells of GPUs.
    "power": [Rows("hw_power_watts", 300, labels=otel("GPU-1"))],
    # Two pods, one after the other, each with the whole node.
    "turns": [Rows("hw_gpu_utilization_ratio", lambda h: 0.9 if h <= 0.5 else 0.3, labels=otel("GPU-1"))],
}
AMD_GPU = {"resource": "amd.com/gpu"}
HOLDS: dict[str, list[PodHolding]] = {
    "plain": [held("a", 0, 1, **AMD_GPU)],
    "halves": [held("a", 0, 1, replicas=2, **AMD_GPU), held("b", 0, 1, replicas=2, **AMD_GPU)],
    "dies": [held("a", 0, 1, count=6, replicas=6, **AMD_GPU)],
    "corrupt": [held("a", 0, 1, **AMD_GPU)],
    "beside": [held("a", 0, 1, count=2)],
    "turns": [held("a", 0, 0.5), held("b", 0.5, 1)],
}
UNITS = {"beside": 2}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusClient]:
    data = tmp_path_factory.mktemp("others") / "data"
    create_blocks(openmetrics_of(CASES), data)
    with running_prometheus(data) as url, PrometheusClient(url) as found:
        yield found


def measured(client: PrometheusClient, case: str) -> tuple[dict[str, dict[str, float]], list[str]]:
    """By pod what was measured in hours (GPU-hours, watt-hours), and the codes of problems."""
    holds = HOLDS.get(case, [held("a", 0, 1)])
    units = {"n1": {holds[0].resource: UNITS.get(case, 1)}}
    reader = KubeStateReader(client, PrometheusSourceSettings(), case, WINDOW, UpstreamSettings())
    rows, problems = read_signals(reader, WINDOW, ClusterHoldings(holds, units))
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        values = dict(zip(SIGNALS.column_names, row, strict=True))
        numbers = {
            name: float(str(value)) / HOUR_MS
            for name, value in values.items()
            if name in ("observed_ms", "busy_ms", "energy_mj") and value is not None
        }
        found[str(values["pod_uid"])] = {key: value for key, value in numbers.items() if not isnan(value)}
    return found, sorted(each.code.value for each in problems)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("plain", {"a": {"observed_ms": 1, "busy_ms": 0.5, "energy_mj": 250}}),
        ("halves", {"a": {"observed_ms": 0.5, "busy_ms": 0.3}}),
        ("dies", {"a": {"observed_ms": 1 / 6, "busy_ms": 0.1}}),
        ("corrupt", {"a": {"observed_ms": 0.5, "busy_ms": 0.25}}),
        ("both", {"a": {"observed_ms": 1, "busy_ms": 0.4}}),
        ("turns", {"a": {"observed_ms": 0.5, "busy_ms": 0.45}, "b": {"observed_ms": 0.5, "busy_ms": 0.15}}),
        ("hardware", {"a": {"observed_ms": 1, "busy_ms": 0.5, "energy_mj": 200}}),
        ("untold", {"a": {"observed_ms": 1, "busy_ms": 0.5, "energy_mj": 200}}),
        ("named", {"a": {"observed_ms": 1, "busy_ms": 0.5}}),
        *((case, {}) for case in ("beside", "nowhere", "power", "parts", "gateway", "far")),
    ],
)
def test_what_is_measured(client: PrometheusClient, case: str, expected: dict[str, dict[str, float]]) -> None:
    found, _ = measured(client, case)
    assert found.keys() == expected.keys()
    for pod, values in expected.items():
        assert found[pod] == pytest.approx(values, rel=0.02)


@pytest.mark.parametrize(
    ("case", "codes"),
    [
        ("plain", []),
        ("halves", ["use_unsplit"]),
        ("corrupt", ["use_dropped"]),
        ("both", []),
        ("beside", ["use_unsplit"]),
        ("parts", ["use_unsplit"]),
        ("power", []),
    ],
)
def test_what_is_not_measured_is_said(client: PrometheusClient, case: str, codes: list[str]) -> None:
    assert measured(client, case)[1] == codes
