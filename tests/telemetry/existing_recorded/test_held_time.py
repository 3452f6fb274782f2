"""What pods held by real kube-state-metrics, in four settings, against the script that they were run by.

A real Prometheus over each recorded directory. Where the object stayed, or said when it ended, held time is
exact; where it was deleted, within the bound of its span, and all of them within the one that is printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import pytest

from gpucost.attribution.frames import ClusterFrames
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import DataProblemCode
from gpucost.domain.time import MINUTE_MS, SECOND_MS, Window
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.upstream.kube_pods import PodSpan, read_pods
from gpucost.telemetry.upstream.kube_reader import UpstreamSettings, read_groups
from gpucost.telemetry.upstream.upstream_source import UpstreamSource
from tests.support.existing.totals import Totals, attributed
from tests.support.prometheus import needs_prometheus
from tests.support.recorded import SERVERS, recorded_json, recorded_prometheus

pytestmark = [needs_prometheus, pytest.mark.prometheus]

RECORDED_MS = 1_795_385_300_000
UNTOLD = ("delete", "graceful", "gone", "evict", "evict-del")
"""Ways to end of which no series says when."""
MOST_OFF_MS = 47 * SECOND_MS
"""Half of the longest distance of two scrapes: kube-state-metrics was down for a minute."""
SCRAPE_MS = {"p1": 30_000, "p2": 15_000, "p3": 30_000, "p4": 30_000}


@dataclass(frozen=True)
class ScriptedPod:
    """One row of ``truth.json``; times in milliseconds, None where it never was or goes on."""

    uid: str
    name: str
    units: int
    share: Fraction
    is_sliced: bool
    how: str
    start_ms: int | None
    end_ms: int | None

    def held_ms(self, window: Window) -> int:
        """Unit milliseconds."""
        if self.start_ms is None:
            return 0
        end = window.end_ms if self.end_ms is None else min(self.end_ms, window.end_ms)
        return max(0, end - max(self.start_ms, window.start_ms)) * self.units


def _scripted(row: Mapping[str, object]) -> ScriptedPod:
    def instant(name: str) -> int | None:
        found = row[name]
        return None if found is None else round(float(str(found)) * 1000)

    ((resource, units),) = dict(row["units"]).items()  # type: ignore[call-overload]
    share = Fraction(str(row["shareOfAGpu"])).limit_denominator(28)
    named = str(row["uid"]), str(row["pod"])
    is_sliced = "mig-" in resource
    return ScriptedPod(
        *named, units, share, is_sliced, str(row["how"]), instant("scheduled"), instant("ended")
    )


PODS = tuple(_scripted(row) for row in recorded_json("truth.json"))


@dataclass(frozen=True)
class ServerRead:
    """One server, read once: the frames of all that it covers, and the spans with their own bounds."""

    window: Window
    frames: ClusterFrames
    spans: Sequence[PodSpan]

    @cached_property
    def totals(self) -> Totals:
        return Totals.of(attributed(self.frames, (self.window,)))

    def held_ms(self, uid: str) -> int:
        rows = self.frames.allocations[self.frames.allocations["pod_uid"] == uid]
        return int(((rows["end_ms"] - rows["start_ms"]) * rows["count"]).sum())

    def off_ms(self, uid: str) -> int:
        return sum(span.off_ms * span.units for span in self.spans if span.uid == uid)

    def printed_ms(self) -> int:
        said = (each for each in self.frames.problems if each.code is DataProblemCode.END_BOUNDED)
        return sum(each.board_ms or 0 for each in said)


def _read(url: str) -> ServerRead:
    with PrometheusClient(url) as client:
        source = UpstreamSource(
            client, PrometheusSourceSettings(), UpstreamSettings(), now=lambda: RECORDED_MS
        )
        (cluster,) = source.clusters()
        covered = source.covered(cluster)
        assert covered is not None
        begins, ends = -(-covered.start_ms // MINUTE_MS), covered.end_ms // MINUTE_MS
        window = Window(begins * MINUTE_MS, ends * MINUTE_MS)
        reader = source._reader(cluster, window)
        pods = read_pods(reader, read_groups(reader, window))
        return ServerRead(window, source.read(cluster, window), pods.spans)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, ServerRead]:
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        folders: dict[str, Path] = {name: tmp_path_factory.mktemp(name) for name in SERVERS}
        opened = [recorded_prometheus(name, folder) for name, folder in folders.items()]
        urls = [stack.enter_context(each) for each in opened]
        return dict(zip(SERVERS, pool.map(_read, urls), strict=True))


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, servers: Mapping[str, ServerRead]) -> ServerRead:
    return servers[request.param]


@pytest.mark.parametrize("pod", [pod for pod in PODS if pod.how not in UNTOLD], ids=lambda pod: pod.name)
def test_where_the_end_is_told_held_time_is_exact(pod: ScriptedPod, server: ServerRead) -> None:
    assert server.held_ms(pod.uid) == pod.held_ms(server.window)
    assert server.off_ms(pod.uid) == 0


@pytest.mark.parametrize("pod", [pod for pod in PODS if pod.how in UNTOLD], ids=lambda pod: pod.name)
@pytest.mark.parametrize("name", SERVERS)
def test_where_no_end_is_told_held_time_is_within_its_bound(
    pod: ScriptedPod, name: str, servers: Mapping[str, ServerRead]
) -> None:
    server = servers[name]
    true, held = pod.held_ms(server.window), server.held_ms(pod.uid)
    if held == 0:
        # Not seen at all: less than the distance of the scrapes that is printed.
        (said,) = (
            each.detail for each in server.frames.problems if each.code is DataProblemCode.SHORT_UNSEEN
        )
        assert said.endswith(f"{SCRAPE_MS[name] // SECOND_MS} s") or name == "p4"
        assert true < SCRAPE_MS[name]
        return
    assert abs(held - true) <= server.off_ms(pod.uid)
    assert 0 < server.off_ms(pod.uid) <= pod.units * MOST_OFF_MS


def test_the_total_is_within_the_printed_bound_and_half_a_percent(server: ServerRead) -> None:
    true = sum(float(pod.held_ms(server.window) * pod.share) for pod in PODS)
    held = sum(float(server.held_ms(pod.uid) * pod.share) for pod in PODS)
    assert held == pytest.approx(true, rel=0.005)
    assert abs(held - true) <= server.printed_ms()
    apart = (float(abs(server.held_ms(pod.uid) - pod.held_ms(server.window)) * pod.share) for pod in PODS)
    assert sum(apart) <= server.printed_ms() + 2 * max(SCRAPE_MS.values())
    assert {*server.frames.allocations["pod_uid"]} <= {pod.uid for pod in PODS}


def test_slices_cost_what_they_held(servers: Mapping[str, ServerRead]) -> None:
    """mig-b has ``gpu.replicas`` 0, mig-c four whole GPUs and 28 slices. On p1 and p4 no label is
    shown, and no dcgm-exporter was on these two: a seventh is a seventh of whichever GPU."""
    for server in servers.values():
        found = server.totals.by("board_ms", "bucket", "node", "resource")
        held = {key[1:]: ms for key, ms in found.items() if key[0] == Bucket.HELD.value and "mig" in key[1]}
        true: dict[tuple[str, str], float] = {}
        for pod, row in zip(PODS, recorded_json("truth.json"), strict=True):
            if row["node"].startswith("mig"):
                key = row["node"], next(iter(row["units"]))
                true[key] = true.get(key, 0) + float(pod.held_ms(server.window) * pod.share)
        assert held == pytest.approx(true, rel=0.001)
        assert {node for node, _ in true} == {"mig-a", "mig-b", "mig-c"}
        assert not [key for key in found if key[0] in ("unavailable", "unknown") and "mig" in key[1]]


def test_a_node_of_twenty_minutes_has_its_model_from_its_boards(server: ServerRead) -> None:
    nodes = server.frames.nodes.set_index("node")
    assert nodes.loc["gpu-b", "boards"] == 8
    assert {each.replace(" ", "-") for each in nodes.loc[["gpu-b"], "product"]} == {"NVIDIA-H100-80GB-HBM3"}


def test_of_the_time_held_in_slices_nothing_is_lost(server: ServerRead) -> None:
    sliced = [pod for pod in PODS if pod.is_sliced]
    true = sum(pod.held_ms(server.window) * pod.share for pod in sliced)
    assert sum(server.held_ms(pod.uid) * pod.share for pod in sliced) == pytest.approx(true, rel=0.001)
