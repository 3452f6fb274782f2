"""Pods, nodes and owners out of series written by hand, through a real Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from gpucost.cluster.objects.metadata import OwnerKeys
from gpucost.contract import kube_state as ksm
from gpucost.domain.errors import DataProblemCode, NotCovered
from gpucost.domain.time import HOUR_MS, MINUTE_MS, SECOND_MS, Month, Window
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.upstream.kube_reader import UpstreamSettings
from gpucost.telemetry.upstream.upstream_source import UpstreamSource
from tests.support.existing.text import Scrapes, Series, Target, Writer
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus

pytestmark = [needs_prometheus, pytest.mark.prometheus]

T0 = Month(2026, 10).window.start_ms
SPAN = Window(T0, T0 + 6 * HOUR_MS)
WINDOW = Window(T0 + HOUR_MS, T0 + 5 * HOUR_MS)
EVERY = MINUTE_MS
CUSTOM = (("PyTorchJob", "kube_customresource_pytorchjob_labels", "name"),)


def at(minutes: float) -> int:
    return WINDOW.start_ms + round(minutes * MINUTE_MS)


@dataclass(frozen=True)
class PodRow:
    """A pod on node n, its series from ``bound`` to ``gone`` (minutes after the window's start)."""

    name: str
    bound: float
    gone: float
    requests: Mapping[str, tuple[str, int]]
    owner: tuple[str, str] = (ksm.NOBODY, ksm.NOBODY)
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None
    init: int = 0
    sidecar: int = 0
    began: bool = True
    phase: str = ""
    ended: float = 1e6
    done: float | None = None
    scheduled: bool = True

    def series(self) -> Iterator[Series]:
        who = {"namespace": "research", "pod": self.name, "uid": f"uid-{self.name}"}
        start, end = at(self.bound), at(self.gone)

        def series(name: str, value: float, **labels: str) -> Series:
            return Series(name, {**who, **labels}, value, start, end)

        for container, (resource, units) in self.requests.items():
            what = {"container": container, "resource": resource, "unit": "integer"}
            yield series(ksm.REQUESTS, units, node="n", **what)
        if self.init:
            what = {"container": "setup", "resource": "nvidia_com_gpu", "unit": "integer"}
            yield series(ksm.INIT_REQUESTS, self.init, **what)
            yield series(ksm.INIT_INFO, 1, container="setup")
        if self.sidecar:
            what = {"container": "proxy", "resource": "nvidia_com_gpu", "unit": "integer"}
            yield series(ksm.INIT_REQUESTS, self.sidecar, node="n", **what)
            yield series(ksm.INIT_INFO, 1, container="proxy", restart_policy="Always")
        if self.began:
            yield series(ksm.CONTAINER_INFO, 1, container="main")
        if self.scheduled:
            yield series(ksm.SCHEDULED, start / 1000)
        yield series(ksm.CREATED, (start - 30 * SECOND_MS) / 1000)
        if self.done is not None:
            since = at(min(self.done, self.ended))
            yield Series(ksm.COMPLETED, who, at(self.done) / 1000, since, end)
        turn = at(min(self.ended, self.gone))
        for phase in ("Pending", "Running", "Succeeded", "Failed", "Unknown"):
            named = {**who, "phase": phase}
            yield Series(ksm.PHASE, named, int(phase == "Running"), start, turn)
            yield Series(ksm.PHASE, named, int(phase == self.phase), turn, end)
        kind, name = self.owner
        yield series(ksm.POD_OWNER, 1, owner_kind=kind, owner_name=name, owner_is_controller="true")
        if self.labels is not None:
            named = {ksm.label_name(key): value for key, value in self.labels.items()}
            yield series(ksm.POD_LABELS, 1, **named)
        if self.annotations is not None:
            named = {ksm.annotation_name(key): value for key, value in self.annotations.items()}
            yield series(ksm.POD_ANNOTATIONS, 1, **named)


GPU = "nvidia_com_gpu"
ONE = {"main": (GPU, 1)}
PODS = (
    PodRow("two-containers", -10, 400, {"a": (GPU, 1), "b": (GPU, 2), "c": ("cpu", 4)}),
    PodRow("big-setup", -10, 400, ONE, init=3),
    PodRow("small-setup", -10, 400, {"a": (GPU, 2)}, init=1),
    PodRow("sidecar", -10, 400, {"a": (GPU, 2)}, sidecar=1),
    PodRow("sidecar-and-big-setup", -10, 400, ONE, init=3, sidecar=2),
    PodRow("sidecar-and-small-setup", -10, 400, {"a": (GPU, 2)}, init=1, sidecar=1),
    PodRow("refused", 30.2, 200, ONE, phase="Failed", ended=30.2, began=False),
    PodRow("evicted-at-once", 30.5, 200, ONE, phase="Failed", ended=30.6),
    PodRow("sliced", -10, 400, {"a": ("nvidia_com_mig_3g_40gb", 1)}),
    PodRow("deployed", -10, 400, ONE, owner=("ReplicaSet", "web-7d9"), labels={"team": "serving"}),
    PodRow("in-set", -10, 400, ONE, owner=("Job", "train-0-abc")),
    PodRow("torch", -10, 400, ONE, owner=("PyTorchJob", "bert")),
    PodRow("annotated", -10, 400, ONE, labels={"app": "x"}, annotations={"gpucost.io/team": "speech"}),
    PodRow("sidecar-ended", -10, 400, ONE, done=20),
    PodRow("created-only", 10, 130, ONE, scheduled=False),
    PodRow("finished", 10, 200, ONE, phase="Succeeded", ended=70, done=70),
    PodRow("clock-ahead", 10, 200, ONE, phase="Succeeded", ended=70, done=60 * 24 * 365 * 400),
)


def node_series(name: str, start: int, end: int) -> Iterator[Series]:
    def series(metric: str, value: float, **labels: str) -> Series:
        return Series(metric, {"node": name, **labels}, value, start, end)

    yield series(ksm.NODE_CREATED, start / 1000)
    for metric in (ksm.NODE_CAPACITY, ksm.NODE_ALLOCATABLE):
        yield series(metric, 16, resource=GPU, unit="integer")
        yield series(metric, 2, resource="nvidia_com_mig_3g_40gb", unit="integer")
        yield series(metric, 64, resource="cpu", unit="core")
    yield series(ksm.NODE_CONDITION, 1, condition="Ready", status="true")
    yield series(ksm.NODE_UNSCHEDULABLE, 0)
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "topology.kubernetes.io/region": "eu-1"}
    yield series(ksm.NODE_LABELS, 1, **{ksm.label_name(key): value for key, value in labels.items()})


def owners() -> Iterator[Series]:
    def series(metric: str, **labels: str) -> Series:
        return Series(metric, {"namespace": "research", **labels}, 1, SPAN.start_ms, SPAN.end_ms)

    deployment = {"owner_kind": "Deployment", "owner_name": "web", "owner_is_controller": "true"}
    yield series(ksm.REPLICASET_OWNER, replicaset="web-7d9", **deployment)
    job_set = {"owner_kind": "JobSet", "owner_name": "train", "owner_is_controller": "true"}
    yield series(ksm.JOB_OWNER, job_name="train-0-abc", **job_set)
    queue = {ksm.label_name("kueue.x-k8s.io/queue-name"): "research-lq"}
    yield series("kube_job_labels", job_name="train-0-abc", label_team="vision", **queue)
    yield series(ksm.NAMESPACE_LABELS, label_team="the-namespace")
    yield series("kube_customresource_pytorchjob_labels", name="bert", team="nlp", user="ada")


TARGET = Target({"cluster": "c", "job": "ksm", "instance": "10.0.0.1:8080"}, True)
BARE = Target({"cluster": "bare", "job": "ksm", "instance": "10.0.0.2:8080"}, True)


def everything() -> Sequence[Series]:
    pods = [series for pod in PODS for series in pod.series()]
    nodes = [*node_series("n", SPAN.start_ms, SPAN.end_ms), *node_series("goes", SPAN.start_ms, at(90.4))]
    again = [*node_series("again", SPAN.start_ms, at(30.4)), *node_series("again", at(60), at(80.4))]
    return [*pods, *nodes, *again, *owners()]


def fakes() -> Iterator[Series]:
    """What a tenant's own target may say of another's pod."""
    who = {"namespace": "research", "pod": "finished", "uid": "uid-finished", "node": "n"}
    what = {"container": "x", "resource": GPU, "unit": "integer"}
    yield Series(ksm.REQUESTS, {**who, **what}, 500, SPAN.start_ms, SPAN.end_ms)
    yield Series(ksm.NODE_CREATED, {"node": "n"}, SPAN.start_ms / 1000, SPAN.start_ms, SPAN.end_ms)


REAL = Target({"cluster": "tenants", "job": "ksm", "instance": "10.0.0.3:8080"}, True)
FAKE = Target({"cluster": "tenants", "job": "podmonitor/research", "instance": "10.9.9.9:80"}, True)


def without_uid() -> Iterator[Series]:
    for one in everything():
        labels = {name: value for name, value in one.labels.items() if name != "uid"}
        yield Series(one.name, labels, one.value, one.start_ms, one.end_ms)


LACKING = {
    "no-uid": tuple(without_uid()),
    "no-requests": tuple(one for one in everything() if one.name != ksm.REQUESTS),
    "no-containers": tuple(one for one in everything() if one.name != ksm.CONTAINER_INFO),
    "no-phase": tuple(one for one in everything() if one.name != ksm.PHASE),
}
"""Clusters whose kube-state-metrics does not say everything."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpstreamSource]:
    folder = tmp_path_factory.mktemp("edges")
    writer = Writer()
    writer.add(TARGET, Scrapes(SPAN, EVERY), everything())
    writer.add(REAL, Scrapes(SPAN, EVERY), everything())
    writer.add(FAKE, Scrapes(SPAN, EVERY), fakes())
    for name, lacks in LACKING.items():
        writer.add(
            Target({"cluster": name, "job": "ksm", "instance": name}, True), Scrapes(SPAN, EVERY), lacks
        )
    lines = "".join(writer.text()).splitlines(keepends=True)
    # In the other cluster `up` was dropped on the way.
    second = Writer()
    second.add(BARE, Scrapes(SPAN, EVERY), everything())
    other = [line for line in "".join(second.text()).splitlines(keepends=True) if not line.startswith("up{")]
    create_blocks(lines, folder / "blocks")
    create_blocks([line for line in other if line != "# TYPE up unknown\n"], folder / "blocks")
    settings = UpstreamSettings(owners=OwnerKeys(), custom_resources=CUSTOM)
    with running_prometheus(folder / "blocks") as url, PrometheusClient(url) as client:
        yield UpstreamSource(client, PrometheusSourceSettings(), settings, now=lambda: SPAN.end_ms)


@pytest.fixture(scope="module")
def rows(source: UpstreamSource) -> pd.DataFrame:
    return source.read("c", WINDOW).allocations.set_index("pod")


@pytest.mark.parametrize(
    ("pod", "units"),
    [
        ("two-containers", 3),
        ("big-setup", 3),
        ("small-setup", 2),
        ("sliced", 1),
        ("sidecar", 3),
        ("sidecar-and-big-setup", 5),
        ("sidecar-and-small-setup", 3),
    ],
)
def test_units_are_what_scheduling_counts(pod: str, units: int, rows: pd.DataFrame) -> None:
    assert rows.loc[pod, "count"] == units
    is_sliced = pod == "sliced"
    assert rows.loc[pod, "resource"] == ("nvidia.com/mig-3g.40gb" if is_sliced else "nvidia.com/gpu")


@pytest.mark.parametrize(
    ("pod", "kind", "job", "team", "queue", "user"),
    [
        ("two-containers", "Pod", "two-containers", "the-namespace", "", ""),
        ("deployed", "Deployment", "web", "serving", "", ""),
        ("in-set", "JobSet", "train", "vision", "research-lq", ""),
        ("torch", "PyTorchJob", "bert", "nlp", "", "ada"),
        ("annotated", "Pod", "annotated", "speech", "", ""),
    ],
)
def test_whose_a_pod_is(
    pod: str, kind: str, job: str, team: str, queue: str, user: str, rows: pd.DataFrame
) -> None:
    found = rows.loc[pod]
    assert (found["job_kind"], found["job"], found["team_label"]) == (kind, job, team)
    assert (found["queue"], found["user"]) == (queue, user)


def test_a_container_that_ended_ends_no_pod_that_runs(rows: pd.DataFrame) -> None:
    assert rows.loc["sidecar-ended", "end_ms"] == WINDOW.end_ms


def test_a_finished_pod_ended_when_it_says(rows: pd.DataFrame) -> None:
    found = rows.loc["finished"]
    assert (found["start_ms"], found["end_ms"]) == (at(10), at(70))


def test_a_pod_that_the_kubelet_refused_held_nothing(source: UpstreamSource, rows: pd.DataFrame) -> None:
    assert "refused" not in rows.index
    # Where no series shows a pod's containers, the end is not known: half-way to the scrape that showed it.
    untold = source.read("no-containers", WINDOW).allocations.set_index("pod")
    assert (untold.loc["refused", "start_ms"], untold.loc["refused", "end_ms"]) == (at(30.2), at(30.6))


def test_a_pod_that_was_evicted_before_its_first_scrape_ended_half_way(rows: pd.DataFrame) -> None:
    found = rows.loc["evicted-at-once"]
    assert (found["start_ms"], found["end_ms"]) == (at(30.5), at(30.75))


def test_a_node_that_went_and_came_back_is_there_twice(source: UpstreamSource) -> None:
    found = source.read("c", WINDOW).nodes.query("node == 'again'")
    spans = found[["start_ms", "end_ms"]].to_numpy().tolist()
    assert spans == [[WINDOW.start_ms, at(30.5)], [at(60), at(80.5)]]


def test_without_a_time_of_scheduling_the_next_best_counts(rows: pd.DataFrame) -> None:
    assert rows.loc["created-only", "start_ms"] == at(10) - 30 * SECOND_MS


@pytest.mark.fault(29)
def test_an_end_that_is_no_time_is_refused(source: UpstreamSource) -> None:
    found = source.read("c", WINDOW)
    refused = [each for each in found.problems if each.code is DataProblemCode.INTERVAL_REFUSED]
    assert [each.subject for each in refused] == ["uid-clock-ahead"]
    held = found.allocations[found.allocations["pod"] == "clock-ahead"]
    assert (held["end_ms"] <= WINDOW.end_ms).all()


def test_a_node_that_goes_ends_between_two_scrapes(source: UpstreamSource) -> None:
    nodes = source.read("c", WINDOW).nodes.set_index("node")
    assert nodes.loc["goes", "end_ms"] == at(90.5)
    assert nodes.loc["n", "end_ms"] == WINDOW.end_ms
    assert nodes.loc["n", "region"] == "eu-1"


def test_without_up_the_scrapes_are_those_of_a_node(source: UpstreamSource) -> None:
    first, second = (source.read(cluster, WINDOW) for cluster in ("c", "bare"))
    names = ["pod", "resource", "count", "start_ms", "end_ms"]
    assert first.allocations[names].equals(second.allocations[names])
    assert first.observed.iloc[0]["end_ms"] == second.observed.iloc[0]["end_ms"] == WINDOW.end_ms


def test_clusters_and_what_is_covered(source: UpstreamSource) -> None:
    assert source.clusters() == ("bare", "c", *sorted(LACKING), "tenants")
    covered = source.covered("c")
    assert covered == Window(SPAN.start_ms, SPAN.end_ms - MINUTE_MS - 5 * MINUTE_MS)
    assert source.covered("nobody") is None


def test_time_before_and_after_is_not_covered(source: UpstreamSource) -> None:
    with pytest.raises(NotCovered, match="up of kube-state-metrics"):
        source.read("c", Window(SPAN.start_ms - HOUR_MS, SPAN.start_ms))
    with pytest.raises(NotCovered, match="not yet complete"):
        source.read("c", Window(SPAN.end_ms - MINUTE_MS, SPAN.end_ms))


def test_windows_of_any_size_give_the_same(source: UpstreamSource) -> None:
    whole = source.read("c", WINDOW).allocations
    parts = pd.concat([source.read("c", part).allocations for part in WINDOW.split(20 * MINUTE_MS)])
    sums = [
        (frame["count"] * (frame["end_ms"] - frame["start_ms"])).groupby(frame["pod"]).sum()
        for frame in (whole, parts)
    ]
    assert sums[0].equals(sums[1])


def test_what_cannot_be_told_is_said(source: UpstreamSource) -> None:
    found = source.history("c", WINDOW)
    lacking = {"demand", "domains", "stalls", "evictions", "quotas", "activity", "health"}
    assert set(found.lacks) == lacking
    assert "queue collector" in found.lacks["demand"]
    assert "enableClusterQueueResources" in found.lacks["quotas"]
    only = source.history("c", WINDOW, ["quotas"])
    assert only.allocations.empty


@pytest.mark.fault(5)
def test_of_several_jobs_the_one_that_is_called_like_it_is_believed_and_the_other_is_said(
    source: UpstreamSource,
) -> None:
    found = source.read("tenants", WINDOW)
    (said,) = [each for each in found.problems if each.code is DataProblemCode.SERIES_REFUSED]
    assert (said.subject, said.board_ms) == ("podmonitor/research", 500 * WINDOW.length_ms)
    assert "those of ksm are believed" in said.detail
    real = source.read("c", WINDOW).allocations
    names = ["pod", "count", "start_ms", "end_ms", "team_label"]
    assert found.allocations[names].equals(real[names])


def test_the_job_that_is_named_is_believed(source: UpstreamSource) -> None:
    pinned = PrometheusSourceSettings(jobs={"kube_": ("podmonitor/research",)})
    fake = UpstreamSource(source._client, pinned, UpstreamSettings(), now=lambda: SPAN.end_ms)
    found = fake.read("tenants", WINDOW)
    assert found.allocations["pod"].tolist() == ["finished"]
    assert [each.subject for each in found.problems if each.code is DataProblemCode.SERIES_REFUSED] == ["ksm"]


@pytest.mark.parametrize(
    ("cluster", "why"), [("no-uid", "has no label uid"), ("no-requests", "resource_requests at all")]
)
def test_what_cannot_be_told_at_all_is_refused(cluster: str, why: str, source: UpstreamSource) -> None:
    with pytest.raises(NotCovered, match=why):
        source.read(cluster, WINDOW)


def test_without_phases_the_completion_times_count_and_that_is_said(source: UpstreamSource) -> None:
    found = source.read("no-phase", WINDOW)
    said = "kube_pod_status_phase is not there for all pods"
    assert [each for each in found.problems if said in each.detail]
    ends = found.allocations.set_index("pod")["end_ms"]
    assert ends["finished"] == at(70)
    assert ends["deployed"] == WINDOW.end_ms
    # That only a sidecar ended cannot be known.
    assert ends["sidecar-ended"] <= at(20)


class AskedClient(PrometheusClient):
    """Remembers the text of what it asked."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked: list[str] = []

    def _send(self, path: str, form: Mapping[str, Any] | None) -> tuple[int, bytes]:
        self.asked.append(str(form))
        return super()._send(path, form)


def test_a_pod_that_goes_between_the_last_two_scrapes_makes_others_no_exceptions(tmp_path: Path) -> None:
    """In a big cluster there nearly always is one; all samples of all pods that went were read for it."""
    gpu = {"main": ("nvidia_com_gpu", 1)}
    # The last scrape that is looked at is five minutes after the window.
    pods = PodRow("went", 10.25, 60, gpu), PodRow("stays", 5.25, 400, gpu), PodRow("goes", 20.25, 244.5, gpu)
    series = [*node_series("n", SPAN.start_ms, SPAN.end_ms), *(each for pod in pods for each in pod.series())]
    writer = Writer()
    labels = {"cluster": "edges", "job": "kube-state-metrics", "instance": "10.2.0.9:8080"}
    writer.add(Target(labels, honors=True), Scrapes(SPAN, EVERY), series)
    create_blocks(writer.text(), tmp_path / "blocks")
    with running_prometheus(tmp_path / "blocks") as url, AskedClient(url) as client:
        found = UpstreamSource(
            client, PrometheusSourceSettings(), UpstreamSettings(), now=lambda: SPAN.end_ms
        ).read("edges", WINDOW)
        ends = dict(zip(found.allocations["pod"], found.allocations["end_ms"], strict=True))
    assert ends == {"went": at(59.5), "stays": WINDOW.end_ms, "goes": WINDOW.end_ms}
    assert not any("uid-went" in each for each in client.asked)
