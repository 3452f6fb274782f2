"""Series that only newer releases of kube-state-metrics give, or give otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpucost.attribution.frames import ClusterFrames
from gpucost.contract import kube_state as ksm
from gpucost.domain.errors import DataProblemCode
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Month, Window
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.upstream.kube_reader import UpstreamSettings
from gpucost.telemetry.upstream.upstream_source import CLAIMS_TEXT, UpstreamSource
from tests.support.existing.text import Scrapes, Series, Target, Writer
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus

pytestmark = [needs_prometheus, pytest.mark.prometheus]

T0 = Month(2026, 10).window.start_ms
SPAN = Window(T0, T0 + 3 * HOUR_MS)
WINDOW = Window(T0 + HOUR_MS, T0 + 2 * HOUR_MS)
BOUND = T0 + 90 * MINUTE_MS
REFUSED, OLDER, FAILED = "refused", "refused-or-not", "failed"
"""By what is said of them: the second has a row of 0 for each reason, as before 2.20, and the third none."""
SAID = {
    REFUSED: {"UnexpectedAdmissionError": 1},
    OLDER: {"UnexpectedAdmissionError": 0, "Evicted": 1},
    FAILED: {},
}

QUARTER_MS, HALF_MS = 15 * MINUTE_MS, 30 * MINUTE_MS
CUT = WINDOW.start_ms + HALF_MS
CONDITIONS = (
    ("Ready", "true", SPAN.start_ms, SPAN.end_ms),
    ("DrainInProgress", "true", WINDOW.start_ms + QUARTER_MS, WINDOW.start_ms + 2 * QUARTER_MS),
    ("Drained", "true", WINDOW.start_ms + 2 * QUARTER_MS, WINDOW.start_ms + 3 * QUARTER_MS),
    ("MaintenanceInProgress", "true", WINDOW.start_ms + 2 * QUARTER_MS, SPAN.end_ms),
)
"""Kubernetes 1.37: a node has them once an administrator has set them, so their series begin with that."""


def _series(cluster: str, *, claims: bool) -> Iterator[Series]:
    def series(name: str, value: float, start: int = SPAN.start_ms, **labels: str) -> Series:
        return Series(name, {"cluster": cluster, **labels}, value, start, SPAN.end_ms)

    yield series(ksm.NODE_CREATED, T0 / 1000, node="n")
    for metric in (ksm.NODE_CAPACITY, ksm.NODE_ALLOCATABLE):
        yield series(metric, 8, node="n", resource="nvidia_com_gpu", unit="integer")
    yield series(ksm.NODE_LABELS, 1, node="n", label_nvidia_com_gpu_product="NVIDIA-L4")
    for node, start, end in (("cut", CUT, SPAN.end_ms), ("whole", SPAN.start_ms, CUT)):
        yield series(ksm.NODE_CREATED, T0 / 1000, node=node)
        for metric in (ksm.NODE_CAPACITY, ksm.NODE_ALLOCATABLE):
            yield series(metric, 6, node=node, resource="nvidia_com_gpu", unit="integer")
            what = {"node": node, "resource": "nvidia_com_mig_1g_10gb", "unit": "integer"}
            yield Series(metric, {"cluster": cluster, **what}, 14, start, end)
    for pod, reasons in SAID.items():
        who = {"namespace": "ml", "pod": pod, "uid": f"uid-{pod}"}
        gpu = {"node": "n", "container": "main", "resource": "nvidia_com_gpu", "unit": "integer"}
        yield series(ksm.REQUESTS, 1, BOUND, **who, **gpu)
        yield series(ksm.SCHEDULED, (BOUND - MINUTE_MS) / 1000, BOUND, **who)
        yield series(ksm.PHASE, 1, BOUND, **who, phase="Failed")
        for reason, value in reasons.items():
            yield series(ksm.STATUS_REASON, value, BOUND, **who, reason=reason)
    for condition, status, start, end in CONDITIONS:
        what = {"node": "n", "condition": condition, "status": status}
        yield Series(ksm.NODE_CONDITION, {"cluster": cluster, **what}, 1, start, end)
    if claims:
        names = {"claim_name": "gpu", "resourceclaim_name": "a-gpu-x", "resourceclaim_template_name": "a"}
        yield series(ksm.RESOURCE_CLAIMS, 1, BOUND, namespace="ml", pod="a", uid="uid-a", **names)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpstreamSource]:
    data = tmp_path_factory.mktemp("newer") / "blocks"
    writer = Writer()
    for cluster, claims in (("with", True), ("without", False)):
        target = Target({"job": "ksm", "instance": "k", "cluster": cluster}, True)
        writer.add(target, Scrapes(SPAN, MINUTE_MS), _series(cluster, claims=claims))
    create_blocks(writer.text(), data)
    with running_prometheus(data) as url, PrometheusClient(url) as client:
        yield UpstreamSource(client, PrometheusSourceSettings(), UpstreamSettings(), now=lambda: SPAN.end_ms)


def read(source: UpstreamSource, cluster: str) -> ClusterFrames:
    return source.read(cluster, WINDOW)


def test_a_pod_that_a_kubelet_is_said_to_have_refused_held_nothing(source: UpstreamSource) -> None:
    """No series of containers is there that would tell it too; a row of 0 says that it was not so."""
    assert {*read(source, "without").allocations["pod"]} == {OLDER, FAILED}


def test_claims_whose_devices_nobody_tells_are_a_problem(source: UpstreamSource) -> None:
    found = {
        cluster: [each.code for each in read(source, cluster).problems if each.detail == CLAIMS_TEXT]
        for cluster in ("with", "without")
    }
    assert found == {"with": [DataProblemCode.NOT_OBSERVED], "without": []}


def test_a_node_is_unavailable_while_it_is_drained_and_not_for_maintenance_alone(
    source: UpstreamSource,
) -> None:
    """In the second and third quarter of the hour, known by the scrapes of every minute."""
    spans = read(source, "without").capacity
    ends = zip(
        spans["start_ms"].tolist(), spans["end_ms"].tolist(), spans["schedulable"].tolist(), strict=True
    )
    closed = [(start - WINDOW.start_ms, end - WINDOW.start_ms) for start, end, is_open in ends if not is_open]
    assert (min(closed)[0], max(closed)[1]) == pytest.approx((QUARTER_MS, 3 * QUARTER_MS), abs=MINUTE_MS)
    assert sum(end - start for start, end in closed) == pytest.approx(2 * QUARTER_MS, abs=2 * MINUTE_MS)


def test_slices_that_come_or_go_beside_whole_gpus_are_there_from_then_or_until_then(
    source: UpstreamSource,
) -> None:
    spans = read(source, "without").capacity
    slices = spans[spans["resource"] == "nvidia.com/mig-1g.10gb"]
    found = {
        str(node): (start - WINDOW.start_ms, end - WINDOW.start_ms)
        for node, start, end in slices[["node", "start_ms", "end_ms"]].to_numpy().tolist()
    }
    assert found.keys() == {"cut", "whole"}
    assert found["cut"] == pytest.approx((HALF_MS, HOUR_MS), abs=MINUTE_MS)
    assert found["whole"] == pytest.approx((0, HALF_MS), abs=MINUTE_MS)
