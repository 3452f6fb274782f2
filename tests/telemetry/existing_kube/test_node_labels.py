"""What nodes of every kind have, whichever of their labels kube-state-metrics is configured to show.

Each kind of node stands there once for every subset of its labels, beside what dcgm-exporter says of it, and
a pod holds one unit of it: the share of a GPU that is billed must be the same for all subsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

import pytest

from gpucost.attribution.frames import ClusterFrames
from gpucost.contract import kube_state as ksm
from gpucost.domain.buckets import Bucket
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Month, Window
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.upstream.kube_reader import UpstreamSettings
from gpucost.telemetry.upstream.upstream_source import UpstreamSource
from tests.support.existing.text import Scrapes, Series, Target, Writer
from tests.support.existing.totals import Totals, attributed
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus

pytestmark = [needs_prometheus, pytest.mark.prometheus]

T0 = Month(2026, 10).window.start_ms
SPAN = Window(T0, T0 + 3 * HOUR_MS)
WINDOW = Window(T0 + HOUR_MS, T0 + 2 * HOUR_MS)
GPU, SHARED, SLICE = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"
H100, H100_CALLED = "NVIDIA-H100-80GB-HBM3", "NVIDIA H100 80GB HBM3"


@dataclass(frozen=True)
class NodeKind:
    """``capacity`` by resource; ``labels`` without ``nvidia.com/``; ``share`` of a GPU that one unit is, of
    the resource that a pod holds; ``profile`` of the instances that each GPU is cut into."""

    capacity: Mapping[str, int]
    labels: Mapping[str, str]
    boards: int
    held: str
    share: Fraction
    called: str = H100_CALLED
    profile: str = ""
    instances: int = 0


def _of_gpus(product: str, count: int, replicas: int) -> dict[str, str]:
    return {"gpu.product": product, "gpu.count": str(count), "gpu.replicas": str(replicas)}


SEVENTH = Fraction(1, 7)
KINDS = {
    "whole": NodeKind({GPU: 8}, _of_gpus(H100, 8, 1), 8, GPU, Fraction(1)),
    "mixed": NodeKind(
        {GPU: 0, SLICE: 28}, {**_of_gpus(H100, 4, 1), "mig-1g.10gb.count": "28"}, 4, SLICE, SEVENTH,
        profile="1g.10gb", instances=7,
    ),
    "no-replicas": NodeKind(
        {GPU: 0, SLICE: 28}, {**_of_gpus(H100, 4, 0), "mig-1g.10gb.count": "28"}, 4, SLICE, SEVENTH,
        profile="1g.10gb", instances=7,
    ),
    "half-whole": NodeKind(
        {GPU: 4, SLICE: 28}, {**_of_gpus(H100, 8, 1), "mig-1g.10gb.count": "28"}, 8, GPU, Fraction(1)
    ),
    "half-slice": NodeKind(
        {GPU: 4, SLICE: 28}, {**_of_gpus(H100, 8, 1), "mig-1g.10gb.count": "28"}, 8, SLICE, SEVENTH
    ),
    "was-cut": NodeKind({GPU: 8, SLICE: 0}, _of_gpus(H100, 8, 1), 8, GPU, Fraction(1)),
    "sliced-single": NodeKind(
        {GPU: 6}, _of_gpus(f"{H100}-MIG-2g.20gb", 6, 1), 2, GPU, Fraction(2, 7),
        profile="2g.20gb", instances=3,
    ),
    "time-sliced": NodeKind(
        {GPU: 4}, _of_gpus("NVIDIA-L4-SHARED", 1, 4), 1, GPU, Fraction(1, 4), "NVIDIA L4"
    ),
    "two-time-sliced": NodeKind(
        {GPU: 6}, _of_gpus("NVIDIA-L4-SHARED", 2, 3), 2, GPU, Fraction(1, 3), "NVIDIA L4"
    ),
    "renamed": NodeKind(
        {GPU: 0, SHARED: 8}, _of_gpus("NVIDIA-L4", 2, 4), 2, SHARED, Fraction(1, 4), "NVIDIA L4"
    ),
}  # fmt: skip


@dataclass(frozen=True)
class NodeCase:
    kind: str
    shown: tuple[str, ...]

    @property
    def name(self) -> str:
        return ".".join([self.kind, *(label.replace(".", "-") for label in self.shown)]).lower()

    def series(self) -> Iterator[Series]:
        kind = KINDS[self.kind]
        span = SPAN.start_ms, SPAN.end_ms

        def series(metric: str, value: float, **labels: str) -> Series:
            return Series(metric, {"node": self.name, **labels}, value, *span)

        yield series(ksm.NODE_INFO, 1, provider_id=f"aws:///eu-1a/i-{self.name}" if self.shown else "")
        yield series(ksm.NODE_CREATED, SPAN.start_ms / 1000)
        for resource, units in kind.capacity.items():
            for metric in (ksm.NODE_CAPACITY, ksm.NODE_ALLOCATABLE):
                yield series(metric, units, resource=ksm.sanitised(resource), unit="integer")
        shown = {ksm.label_name(f"nvidia.com/{label}"): kind.labels[label] for label in self.shown}
        yield series(ksm.NODE_LABELS, 1, **shown)
        who = {"namespace": "ml", "pod": self.name, "uid": f"uid-{self.name}"}
        resource = {"resource": ksm.sanitised(kind.held), "unit": "integer", "container": "main"}
        yield series(ksm.REQUESTS, 1, **who, **resource)
        yield Series(ksm.SCHEDULED, who, SPAN.start_ms / 1000, *span)
        yield Series(ksm.PHASE, {**who, "phase": "Running"}, 1, *span)

    def devices(self) -> Iterator[Series]:
        """What dcgm-exporter shows: a row of each GPU, or of each of its instances."""
        kind = KINDS[self.kind]
        for board in range(kind.boards):
            labels = {"UUID": f"GPU-{self.name}-{board}", "Hostname": self.name, "modelName": kind.called}
            rows: Sequence[dict[str, str]] = [{"GPU_I_PROFILE": kind.profile, "GPU_I_ID": str(each)}
                                              for each in range(kind.instances)] or [{}]  # fmt: skip
            for row in rows:
                yield Series("DCGM_FI_DEV_FB_USED", {**labels, **row}, 100, SPAN.start_ms, SPAN.end_ms)


CASES = [
    NodeCase(kind, shown)
    for kind, each in KINDS.items()
    for size in range(len(each.labels) + 1)
    for shown in combinations(each.labels, size)
]


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterFrames]:
    data = tmp_path_factory.mktemp("labels") / "blocks"
    writer = Writer()
    scrapes = Scrapes(SPAN, MINUTE_MS)
    writer.add(Target({"job": "ksm", "instance": "k"}, True), scrapes, (s for c in CASES for s in c.series()))
    devices = (series for case in CASES for series in case.devices())
    writer.add(Target({"job": "dcgm", "instance": "d"}, True), scrapes, devices)
    create_blocks(writer.text(), data)
    with running_prometheus(data) as url, PrometheusClient(url) as client:
        source = UpstreamSource(
            client, PrometheusSourceSettings(), UpstreamSettings(), now=lambda: SPAN.end_ms
        )
        yield source.read(source.clusters()[0], WINDOW)


@pytest.fixture(scope="module")
def totals(frames: ClusterFrames) -> Totals:
    return Totals.of(attributed(frames, (WINDOW,)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_whatever_labels_are_shown_a_unit_is_the_same_part_of_a_board(case: NodeCase, totals: Totals) -> None:
    found = totals.by("board_ms", "bucket", "node")
    kind = KINDS[case.kind]
    held = found.get((Bucket.HELD.value, case.name), 0)
    assert held == pytest.approx(float(kind.share * WINDOW.length_ms), abs=2)
    rest = found.get((Bucket.UNALLOCATED.value, case.name), 0)
    assert held + rest == pytest.approx(kind.boards * WINDOW.length_ms, abs=2)
    models = {model for (model, node) in totals.by("board_ms", "model", "node") if node == case.name}
    assert models == {"L4" if "L4" in kind.called else "H100"}


def test_the_machines_of_nodes_are_those_that_are_shown(frames: ClusterFrames) -> None:
    expected = {(case.name, f"aws:///eu-1a/i-{case.name}") for case in CASES if case.shown}
    assert frames.provider_ids == expected


def test_a_lost_board_is_missed_where_all_are_whole(frames: ClusterFrames) -> None:
    capacity = frames.capacity.set_index(["node", "resource"])["expected"]
    assert capacity["whole.gpu-count", GPU] == capacity["whole", GPU] == 8
    assert capacity["half-whole.gpu-count", GPU] == -1
    assert capacity["half-whole.gpu-count.mig-1g-10gb-count", SLICE] == 28
