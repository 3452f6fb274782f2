"""Shards and replicas of kube-state-metrics, restarted and down: what pods held stays within what is printed.

A scripted cluster of some two hundred pods, scraped in several ways into one real Prometheus.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pytest

from gpucost.attribution.frames import ClusterFrames
from gpucost.contract import kube_state as ksm
from gpucost.domain.errors import DataProblemCode
from gpucost.domain.time import HOUR_MS, MINUTE_MS, SECOND_MS, Month, Window
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.upstream.kube_pods import PodSpan, read_pods
from gpucost.telemetry.upstream.kube_reader import ScrapeGroups, UpstreamSettings, read_groups
from gpucost.telemetry.upstream.upstream_source import UpstreamSource
from tests.support.existing.text import Scrapes, Series, Target, Writer
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus

pytestmark = [needs_prometheus, pytest.mark.prometheus]

T0 = Month(2026, 10).window.start_ms
SPAN = Window(T0, T0 + 6 * HOUR_MS)
WINDOW = Window(T0 + HOUR_MS, T0 + 5 * HOUR_MS)
GPU = "nvidia_com_gpu"


def at(minutes: float) -> int:
    return T0 + round(minutes * MINUTE_MS)


@dataclass(frozen=True)
class PodLife:
    """``is_kept``: its object stays after its end, and says when it was."""

    uid: str
    node: str
    start_ms: int
    end_ms: int
    is_kept: bool

    def held_ms(self) -> int:
        return max(0, min(self.end_ms, WINDOW.end_ms) - max(self.start_ms, WINDOW.start_ms))

    def series(self) -> Iterator[Series]:
        who = {"namespace": "ml", "pod": self.uid, "uid": self.uid}
        gone = self.end_ms + 40 * MINUTE_MS if self.is_kept else self.end_ms

        def series(name: str, value: float, since: int, until: int, **labels: str) -> Series:
            return Series(name, {**who, **labels}, value, since, until)

        whole = self.start_ms, gone
        container = {"container": "main", "resource": GPU, "unit": "integer", "node": self.node}
        yield series(ksm.REQUESTS, 1, *whole, **container)
        yield series(ksm.CREATED, self.start_ms / 1000, *whole)
        yield series(ksm.SCHEDULED, self.start_ms / 1000, *whole)
        yield series(ksm.CONTAINER_INFO, 1, *whole, container="main")
        for phase in ("Running", "Succeeded"):
            yield series(ksm.PHASE, int(phase == "Running"), self.start_ms, self.end_ms, phase=phase)
            yield series(ksm.PHASE, int(phase == "Succeeded"), self.end_ms, gone, phase=phase)
        if self.is_kept:
            yield series(ksm.COMPLETED, self.end_ms / 1000, self.end_ms, gone)


def _lives() -> Iterator[PodLife]:
    random_ = random.Random(17)
    for number in range(200):
        start = SPAN.start_ms + random_.randrange(0, 300 * 60) * SECOND_MS
        lasts = round(MINUTE_MS * random_.choice((0.4, 0.8, 3, 11, 37, 90)) * random_.uniform(0.7, 1.3))
        is_kept = random_.random() < 0.4
        end = start + (lasts // SECOND_MS * SECOND_MS if is_kept else lasts)
        yield PodLife(f"pod-{number}", f"node-{number % 6}", start, end, is_kept)
    for number in range(6):
        yield PodLife(f"lasting-{number}", f"node-{number}", SPAN.start_ms, 1 << 50, is_kept=False)


PODS = tuple(_lives())


def _node(name: str) -> Iterator[Series]:
    for metric in (ksm.NODE_CAPACITY, ksm.NODE_ALLOCATABLE):
        yield Series(
            metric, {"node": name, "resource": GPU, "unit": "integer"}, 64, SPAN.start_ms, SPAN.end_ms
        )
    yield Series(ksm.NODE_CREATED, {"node": name}, SPAN.start_ms / 1000, SPAN.start_ms, SPAN.end_ms)


def _namespace(name: str) -> Series:
    return Series(ksm.NAMESPACE_CREATED, {"namespace": name}, 1, SPAN.start_ms, SPAN.end_ms)


OBJECTS: dict[str, tuple[Series, ...]] = {
    **{f"node-{number}": tuple(_node(f"node-{number}")) for number in range(6)},
    **{name: (_namespace(name),) for name in ("ml", "default", "kube-system", "monitoring", "infra")},
    **{pod.uid: tuple(pod.series()) for pod in PODS},
}


@dataclass(frozen=True)
class ScrapedTarget:
    """One kube-state-metrics: which of how many shards, under which address, and when it answered; with
    nothing while it was ``empty``."""

    shard: int
    of: int
    instance: str
    offset_ms: int
    window: Window = SPAN
    down: tuple[Window, ...] = ()
    empty: Window | None = None

    def series(self) -> Iterator[Series]:
        for name, series in OBJECTS.items():
            if int(hashlib.md5(name.encode(), usedforsecurity=False).hexdigest(), 16) % self.of == self.shard:
                for each in series:
                    yield from self._shown(each)

    def _shown(self, series: Series) -> Iterator[Series]:
        if self.empty is None:
            yield series
            return
        yield replace(series, end_ms=min(series.end_ms, self.empty.start_ms))
        yield replace(series, start_ms=max(series.start_ms, self.empty.end_ms))


@dataclass(frozen=True)
class ScrapeWay:
    """``groups`` are how many different sets of objects there are to see, ``apart_ms`` the longest way from
    one scrape of an object to the next, where nothing is down."""

    every_ms: int
    targets: tuple[ScrapedTarget, ...]
    groups: int
    apart_ms: int
    honors: bool = True


LONG, SHORT = Window(at(140), at(160)), Window(at(200), at(201.5))
BEFORE, AFTER = Window(SPAN.start_ms, SHORT.start_ms), Window(SHORT.end_ms, SPAN.end_ms)
MINUTE = MINUTE_MS
WAYS: Mapping[str, ScrapeWay] = {
    "one": ScrapeWay(
        MINUTE, (ScrapedTarget(0, 1, "a", 0, BEFORE), ScrapedTarget(0, 1, "b", 7_000, AFTER)), 1, MINUTE
    ),
    "starting": ScrapeWay(
        MINUTE, (ScrapedTarget(0, 1, "a", 0, empty=Window(at(200), at(202.5))),), 1, MINUTE
    ),
    "three": ScrapeWay(
        MINUTE, tuple(ScrapedTarget(n, 3, f"s{n}", 19_000 * n + 1_234) for n in range(3)), 3, MINUTE
    ),
    "renamed": ScrapeWay(
        30_000, tuple(ScrapedTarget(n, 2, f"s{n}", 13_000 * n) for n in range(2)), 2, 30_000, honors=False
    ),
    "one-down": ScrapeWay(
        MINUTE,
        (
            ScrapedTarget(0, 3, "s0", 0),
            ScrapedTarget(1, 3, "s1", 21_000, down=(LONG,)),
            ScrapedTarget(2, 3, "s2", 43_000),
        ),
        3,
        MINUTE,
    ),
    "one-restarted": ScrapeWay(
        MINUTE,
        (
            ScrapedTarget(0, 2, "s0", 0, BEFORE),
            ScrapedTarget(0, 2, "s0-again", 11_000, AFTER),
            ScrapedTarget(1, 2, "s1", 31_000),
        ),
        2,
        MINUTE,
    ),
    "replicas": ScrapeWay(
        MINUTE, (ScrapedTarget(0, 1, "r0", 0, down=(LONG,)), ScrapedTarget(0, 1, "r1", 23_000)), 1, 37_000
    ),
}


@dataclass(frozen=True)
class WayRead:
    groups: ScrapeGroups
    spans: Mapping[str, PodSpan]
    frames: ClusterFrames

    def held_ms(self, uid: str) -> int:
        rows = self.frames.allocations[self.frames.allocations["pod_uid"] == uid]
        return int((rows["end_ms"] - rows["start_ms"]).sum())


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, WayRead]]:
    data = tmp_path_factory.mktemp("shards") / "blocks"
    writer = Writer()
    for name, way in WAYS.items():
        for each in way.targets:
            labels = {"cluster": name, "job": "ksm", "instance": each.instance, "namespace": "monitoring"}
            scrapes = Scrapes(each.window, way.every_ms, each.offset_ms, down=each.down)
            writer.add(Target({**labels, "pod": f"ksm-{each.instance}"}, way.honors), scrapes, each.series())
    create_blocks(writer.text(), data)
    with running_prometheus(data) as url, PrometheusClient(url) as client:
        source = UpstreamSource(
            client, PrometheusSourceSettings(), UpstreamSettings(), now=lambda: SPAN.end_ms
        )
        read = {}
        for name in WAYS:
            reader = source._reader(name, WINDOW)
            groups = read_groups(reader, WINDOW)
            spans = {span.uid: span for span in read_pods(reader, groups).spans}
            read[name] = WayRead(groups, spans, source.read(name, WINDOW))
        yield read


@pytest.mark.parametrize("name", WAYS)
def test_held_time_is_exact_where_the_end_is_told_and_else_within_its_bound(
    name: str, found: Mapping[str, WayRead]
) -> None:
    read, way = found[name], WAYS[name]
    assert len(read.groups.groups) == way.groups
    missing = 0
    for pod in PODS:
        held, true = read.held_ms(pod.uid), pod.held_ms()
        span = read.spans.get(pod.uid)
        if held == 0:
            missing += 1
            assert true < way.apart_ms or (pod.is_kept is False and _is_down(way, pod)), pod
        elif pod.is_kept and not (span is not None and span.off_ms):
            assert held == true, pod
        else:
            assert span is not None
            assert abs(held - true) <= span.off_ms, pod
    assert missing < len(PODS) / 3


def _is_down(way: ScrapeWay, pod: PodLife) -> bool:
    downs = [*(each for target in way.targets for each in target.down), SHORT, Window(at(200), at(202.5))]
    return any(
        each.start_ms - MINUTE <= pod.start_ms and pod.end_ms <= each.end_ms + MINUTE for each in downs
    )


@pytest.mark.parametrize("name", WAYS)
def test_the_total_is_within_the_printed_bound(name: str, found: Mapping[str, WayRead]) -> None:
    read, way = found[name], WAYS[name]
    true, held = (sum(of(pod) for pod in PODS) for of in (PodLife.held_ms, lambda pod: read.held_ms(pod.uid)))
    codes = (DataProblemCode.END_BOUNDED, DataProblemCode.END_UNKNOWN)
    printed = sum(each.board_ms or 0 for each in read.frames.problems if each.code in codes)
    unseen = sum(pod.held_ms() for pod in PODS if not read.held_ms(pod.uid))
    assert abs(held - (true - unseen)) <= printed
    assert held == pytest.approx(true, rel=0.005 if name != "one-down" else 0.05)
    (said,) = (each.detail for each in read.frames.problems if each.code is DataProblemCode.SHORT_UNSEEN)
    assert said.endswith(f", {way.apart_ms // SECOND_MS} s")


def test_while_a_shard_is_down_its_cluster_is_not_observed(found: Mapping[str, WayRead]) -> None:
    seen = {
        name: read.frames.observed[["start_ms", "end_ms"]].to_numpy().tolist() for name, read in found.items()
    }
    whole = [[WINDOW.start_ms, WINDOW.end_ms]]
    assert seen.pop("one-down") == [
        [WINDOW.start_ms, LONG.start_ms - 39_000],
        [LONG.end_ms + 21_000, WINDOW.end_ms],
    ]
    assert all(each == whole for each in seen.values())


def test_nodes_are_there_all_the_time_whatever_shard_shows_them(found: Mapping[str, WayRead]) -> None:
    for read in found.values():
        rows = read.frames.capacity[["node", "start_ms", "end_ms"]].to_numpy().tolist()
        assert sorted(rows) == [[f"node-{n}", WINDOW.start_ms, WINDOW.end_ms] for n in range(6)]
