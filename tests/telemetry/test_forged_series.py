"""A tenant's target writes series about another's pods: no GPU time moves, and its job is named.

Each cluster has the same honest exporters, in whatever jobs, and one more target.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pytest

from gpucost.attribution.frames import ClusterFrames
from gpucost.contract import kube_state as ksm
from gpucost.contract.gpu_metrics import LAST_COLLECTION, POD_BUSY, POD_COUNTED_SINCE, POD_HELD, POD_OBSERVED
from gpucost.contract.metrics import (
    NODE_GPU_CAPACITY,
    NODE_INFO,
    NODE_START,
    POD_GPU_REQUEST,
    POD_GPU_START,
    POD_OWNER_INFO,
    STATE_UP,
)
from gpucost.domain.errors import DataProblem, DataProblemCode, NotCovered
from gpucost.domain.gpu import ResourceCatalog
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Month, Window
from gpucost.telemetry.doctor.cluster_probe import probe
from gpucost.telemetry.prometheus import trust
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.prometheus_source import PrometheusSource
from gpucost.telemetry.upstream.kube_reader import UpstreamSettings
from gpucost.telemetry.upstream.upstream_source import UpstreamSource
from tests.support.existing.text import Scrapes, Series, Slope, Target, Writer
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus

pytestmark = [needs_prometheus, pytest.mark.prometheus]

T0 = Month(2026, 10).window.start_ms
SPAN = Window(T0, T0 + 6 * HOUR_MS)
WINDOW = Window(T0 + HOUR_MS, T0 + 5 * HOUR_MS)
LATE = Window(T0 + 2 * HOUR_MS + 7 * MINUTE_MS, SPAN.end_ms)
GPU = "nvidia.com/gpu"
VICTIM = "the-victims"
FORGED = 8


@dataclass(frozen=True)
class Scraped:
    """A target by what Prometheus calls it, and what it says while it is there."""

    job: str
    instance: str
    namespace: str
    series: tuple[Series, ...]
    window: Window = SPAN

    def add(self, writer: Writer, cluster: str) -> None:
        labels = {"cluster": cluster, "job": self.job, "instance": self.instance, "namespace": self.namespace}
        target = Target({name: value for name, value in labels.items() if value}, honors=True)
        once = {(each.name, *sorted(each.labels.items())): each for each in self.series}
        writer.add(target, Scrapes(self.window, MINUTE_MS), once.values())


def gauges(labels: dict[str, str], **values: float) -> Iterator[Series]:
    for name, value in values.items():
        yield Series(name, labels, value, SPAN.start_ms, SPAN.end_ms)


def held(uid: str, units: int, team: str = "") -> tuple[Series, ...]:
    """What the queue collector says of a pod."""
    place = {"namespace": "research", "pod": f"pod-{uid}", "pod_uid": uid, "node": "n"}
    units_of = {POD_GPU_REQUEST.name: float(units), POD_GPU_START.name: SPAN.start_ms / 1000}
    owner = {**place, "owner_team": team, "job_kind": "Job", "job_name": uid, "job_uid": uid}
    return (*gauges({**place, "resource": GPU}, **units_of), *gauges(owner, **{POD_OWNER_INFO.name: 1.0}))


def nodes(*names: str) -> tuple[Series, ...]:
    found = [Series(STATE_UP.name, {}, 1.0, SPAN.start_ms, SPAN.end_ms)]
    for name in names:
        found += gauges({"node": name}, **{NODE_INFO.name: 1.0, NODE_START.name: SPAN.start_ms / 1000})
        found += gauges({"node": name, "resource": GPU}, **{NODE_GPU_CAPACITY.name: 8.0})
    return tuple(found)


def used(uid: str, share: float, gpu: str = "GPU-1") -> tuple[Series, ...]:
    """What the GPU exporter says of a pod that is busy so much."""
    place = {"namespace": "research", "pod": f"pod-{uid}", "pod_uid": uid, "node": "n"}
    row = {**place, "holder": "pod", "gpu_uuid": gpu, "method": "exact"}
    end = SPAN.length_ms / 1000
    found = [*gauges(place, **{POD_COUNTED_SINCE.name: SPAN.start_ms / 1000})]
    for spec, rate in ((POD_HELD, 1.0), (POD_OBSERVED, 1.0), (POD_BUSY, share)):
        rise = Slope((SPAN.start_ms, SPAN.end_ms), (0, end * rate))
        found.append(Series(spec.name, row, rise, SPAN.start_ms, SPAN.end_ms))
    return tuple(found)


STATE = (*nodes("n"), *held(VICTIM, 2, "vision"))
USE = (*used(VICTIM, 0.25), *gauges({"node": "n"}, **{LAST_COLLECTION.name: 1.0}))
COLLECTOR = Scraped("gpucost-queue-collector", "10.0.0.1:9837", "gpucost", STATE)
EXPORTER = Scraped("gpucost/gpucost-gpu-exporter", "10.0.0.2:9836", "gpucost", USE)
HONEST = (COLLECTOR, EXPORTER)
STATIC = (replace(COLLECTOR, job="gpus-1", namespace=""), replace(EXPORTER, job="gpus-2", namespace=""))
LIE = held("forged", FORGED, "other") + held(VICTIM, FORGED, "other")
FULL_LIE = (*nodes("n", "n2", "n3"), *LIE)
TENANT = Scraped("kubernetes-pods", "10.9.9.9:80", "tenant", LIE)
NAMED = {"gpucost_": (COLLECTOR.job, EXPORTER.job)}
AS_OURS = replace(TENANT, job=COLLECTOR.job, series=FULL_LIE)
BUSY_LIE = (*used(VICTIM, 0.9, "GPU-9"), *used("forged", 1.0, "GPU-8"))

ATTACKS: dict[str, tuple[tuple[Scraped, ...], dict[str, object], int | None]] = {
    "pods-alone": ((*HONEST, TENANT), {}, 2 * FORGED),
    "whole-collector": ((*HONEST, replace(TENANT, series=FULL_LIE)), {}, 2 * FORGED),
    "in-our-job": ((*HONEST, replace(AS_OURS, window=LATE)), {}, None),
    "in-our-job-unplaced": ((*HONEST, replace(TENANT, job=COLLECTOR.job, namespace="")), {}, 2 * FORGED),
    "of-settings": ((*HONEST, replace(TENANT, series=FULL_LIE)), {"jobs": NAMED}, 2 * FORGED),
    "of-settings-in-our-job": (
        (*HONEST, AS_OURS), {"jobs": NAMED, "own_namespace": "gpucost"}, 2 * FORGED,
    ),
    "static-jobs": ((*STATIC, replace(TENANT, series=FULL_LIE, window=LATE)), {}, None),
    "use-alone": ((*HONEST, replace(TENANT, series=BUSY_LIE)), {}, 2),
    "whole-exporter": ((*HONEST, replace(TENANT, series=(*USE, *BUSY_LIE))), {}, 3),
    "static-use": ((*STATIC, replace(TENANT, series=(*USE, *BUSY_LIE), window=LATE)), {}, None),
}  # fmt: skip
"""Targets, settings, and the GPUs that are claimed in all of the window; None where it is less."""

DOWN = Window(SPAN.start_ms, T0 + 90 * MINUTE_MS)
TURN = T0 + 3 * HOUR_MS
BEFORE, AFTER = Window(SPAN.start_ms, TURN), Window(TURN - MINUTE_MS, SPAN.end_ms)
BELIEVED: dict[str, tuple[Scraped, ...]] = {
    "as-is": HONEST,
    "static": STATIC,
    "nameless": (Scraped("", "", "", (*STATE, *USE)),),
    "rolling-upgrade": (
        replace(COLLECTOR, window=BEFORE),
        replace(COLLECTOR, instance="10.0.0.7:9837", window=AFTER), EXPORTER,
    ),
    "second-replica": (*HONEST, replace(COLLECTOR, instance="10.0.0.7:9837")),
    "one-job-for-all": tuple(replace(each, job="kubernetes-pods") for each in HONEST),
    "scraped-twice": (*HONEST, replace(COLLECTOR, job="annotated", namespace="")),
    "renamed": (
        replace(COLLECTOR, job="old", window=BEFORE),
        replace(COLLECTOR, job="new", namespace="monitoring", window=AFTER), EXPORTER,
    ),
    "node-pools": (*STATIC, replace(STATIC[1], job="gpus-3", instance="10.0.0.9:9836", series=(
        *gauges({"node": "m"}, **{LAST_COLLECTION.name: 1.0}), *used("of-pool-m", 1.0, "GPU-77"),
    ))),
}  # fmt: skip


def kube(uid: str, units: int) -> tuple[Series, ...]:
    """What kube-state-metrics says of a pod."""
    who = {"namespace": "research", "pod": f"pod-{uid}", "uid": uid}
    resource = {"container": "x", "resource": "nvidia_com_gpu", "unit": "integer", "node": "n"}
    return (
        *gauges({**who, **resource}, **{ksm.REQUESTS: float(units)}),
        *gauges(who, **{ksm.SCHEDULED: SPAN.start_ms / 1000, ksm.CREATED: SPAN.start_ms / 1000}),
        *gauges({**who, "phase": "Running"}, **{ksm.PHASE: 1.0}),
    )


def kube_nodes(*names: str) -> tuple[Series, ...]:
    found = []
    for name in names:
        found += gauges({"node": name}, **{ksm.NODE_CREATED: SPAN.start_ms / 1000})
        found += gauges({"node": name, "resource": "nvidia_com_gpu"}, **{ksm.NODE_CAPACITY: 1.0})
    return tuple(found)


def rows(uuid: str, uid: str, percent: float, node: str = "n") -> tuple[Series, ...]:
    """What dcgm-exporter says of a GPU."""
    labels = {"UUID": uuid, "Hostname": node, "modelName": "NVIDIA H100 80GB HBM3"}
    labels |= {"exported_namespace": "research", "exported_pod": f"pod-{uid}"}
    return tuple(gauges(labels, DCGM_FI_DEV_GPU_UTIL=percent, DCGM_FI_DEV_FB_USED=1000.0))


KUBE = Scraped("kube-state-metrics", "10.0.0.3:8080", "monitoring", (*kube_nodes("n"), *kube(VICTIM, 1)))
DCGM = Scraped("nvidia-dcgm-exporter", "10.0.0.4:9400", "gpu-operator", rows("GPU-1", VICTIM, 25.0))
SEEN = (KUBE, DCGM)
UNNAMED = (replace(KUBE, job="cluster", namespace=""), replace(DCGM, job="gpus-a", namespace=""))
KUBE_LIE = (*kube_nodes("n", "n2"), *kube(VICTIM, FORGED), *kube("forged", FORGED))
ROWS_LIE = (*rows("GPU-1", VICTIM, 99.0), *rows("GPU-2", VICTIM, 99.0))


def amd_rows(serial: str, uid: str, percent: float) -> tuple[Series, ...]:
    """What AMD's exporter says of a GPU."""
    labels = {"serial_number": serial, "gpu_id": "0", "hostname": "n", "gpu_partition_id": "0"}
    labels |= {"namespace": "research", "pod": f"pod-{uid}", "gpu_compute_partition_type": "spx"}
    return tuple(gauges(labels, gpu_gfx_activity=percent, gpu_package_power=500.0))


AMD = Scraped("amd-metrics-exporter", "10.0.0.4:5000", "amd-gpu", amd_rows("S1", VICTIM, 25.0))
AMD_LIE = (*amd_rows("S1", VICTIM, 99.0), *amd_rows("S2", VICTIM, 99.0))
OTHER_ATTACKS: dict[str, tuple[tuple[Scraped, ...], int | None]] = {
    "kube-requests-alone": ((*SEEN, replace(TENANT, series=KUBE_LIE[4:])), 2 * FORGED),
    "whole-kube": ((*SEEN, replace(TENANT, series=KUBE_LIE)), 2 * FORGED),
    "in-kubes-job": ((*SEEN, replace(TENANT, job=KUBE.job, series=KUBE_LIE, window=LATE)), None),
    "unnamed-kube": ((*UNNAMED, replace(TENANT, series=KUBE_LIE, window=LATE)), None),
    "rows-alone": ((*SEEN, replace(TENANT, series=ROWS_LIE)), 2),
    "in-dcgms-job": ((*SEEN, replace(TENANT, job=DCGM.job, series=ROWS_LIE, window=LATE)), None),
    "amd-rows": ((KUBE, AMD, replace(TENANT, series=AMD_LIE)), 2),
    "unnamed-rows": ((*UNNAMED, replace(TENANT, series=rows("GPU-5", VICTIM, 99.0), window=LATE)), None),
}
OTHER_BELIEVED: dict[str, tuple[Scraped, ...]] = {
    "usual": SEEN,
    "unnamed": UNNAMED,
    "operator": (KUBE, replace(DCGM, job="gpu-operator/nvidia-dcgm-exporter")),
    "two-shards": (*SEEN, replace(KUBE, instance="10.0.0.5:8080", series=tuple(
        gauges({"namespace": "research"}, **{ksm.NAMESPACE_CREATED: 1.0})
    ))),
    "two-pools": (*UNNAMED, replace(DCGM, job="gpus-b", namespace="", instance="10.0.0.6:9400",
                                    series=rows("GPU-7", "nobody", 5.0, "m"))),
}  # fmt: skip


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusClient]:
    data = tmp_path_factory.mktemp("forged") / "data"
    writer = Writer()
    clusters: dict[str, Iterable[Scraped]] = {"tie": (COLLECTOR, AS_OURS)}
    began = Window(SPAN.start_ms + 20 * MINUTE_MS, SPAN.end_ms)
    gone = replace(COLLECTOR, job="gpus-1", namespace="", window=DOWN)
    clusters["ours-is-down"] = (gone, replace(TENANT, series=FULL_LIE, window=began))
    clusters |= {name: case[0] for name, case in ATTACKS.items()}
    clusters |= BELIEVED
    clusters |= {name: case[0] for name, case in OTHER_ATTACKS.items()}
    clusters |= OTHER_BELIEVED
    for name, targets in clusters.items():
        for target in targets:
            target.add(writer, name)
    create_blocks(writer.text(), data)
    with running_prometheus(data) as url, PrometheusClient(url) as found:
        yield found


def read_own(
    client: PrometheusClient, cluster: str, window: Window = WINDOW, **settings: object
) -> ClusterFrames:
    options = PrometheusSourceSettings(replica_labels=("instance",), **settings)  # type: ignore[arg-type]
    return PrometheusSource(client, options, now=lambda: SPAN.end_ms).read(cluster, window)


def read_other(client: PrometheusClient, cluster: str) -> ClusterFrames:
    settings = PrometheusSourceSettings()
    source = UpstreamSource(client, settings, UpstreamSettings(), now=lambda: SPAN.end_ms)
    return source.read(cluster, WINDOW)


def moved(frames: ClusterFrames) -> tuple[object, ...]:
    """GPU time by pod and team, capacity by node, and busy time by pod."""
    held_ms = frames.allocations["count"] * (frames.allocations["end_ms"] - frames.allocations["start_ms"])
    keys = [frames.allocations["pod_uid"], frames.allocations["team_label"]]
    busy = frames.signals.groupby("pod_uid")["busy_ms"].sum().round(-3)
    boards = frames.capacity.groupby("node")["capacity"].max()
    return held_ms.groupby(keys).sum().to_dict(), boards.to_dict(), busy.to_dict()


def refused(frames: ClusterFrames) -> list[DataProblem]:
    return [each for each in frames.problems if each.code is DataProblemCode.SERIES_REFUSED]


HELD = {(VICTIM, "vision"): 2 * WINDOW.length_ms}
BUSY = {VICTIM: 0.25 * WINDOW.length_ms}


@pytest.mark.parametrize("cluster", sorted(ATTACKS))
def test_a_forged_series_moves_no_gpu_time_and_its_job_is_named(
    client: PrometheusClient, cluster: str
) -> None:
    targets, settings, gpus = ATTACKS[cluster]
    frames = read_own(client, cluster, **settings)
    assert moved(frames) == (HELD, {"n": 8}, BUSY)
    (problem,) = refused(frames)
    assert problem.subject == targets[-1].job
    claimed = problem.board_ms or 0
    assert claimed == gpus * WINDOW.length_ms if gpus else 0 < claimed < 2 * FORGED * WINDOW.length_ms
    assert "prometheus.gpucost_jobs" in problem.detail


def test_where_nobody_can_tell_nothing_is_believed_and_the_setting_is_named(client: PrometheusClient) -> None:
    with pytest.raises(
        NotCovered, match=r"gpucost-queue-collector is not: name yours in prometheus\.gpucost_jobs"
    ):
        read_own(client, "tie")
    # Ours is down for hours: another exporter that was there beside it is not taken for it.
    with pytest.raises(NotCovered, match=r"kubernetes-pods is not: name yours"):
        read_own(client, "ours-is-down", window=Window(SPAN.end_ms - HOUR_MS, SPAN.end_ms - 30 * MINUTE_MS))
    named = read_own(client, "tie", jobs=NAMED, own_namespace="gpucost")
    assert moved(named)[0] == HELD


@pytest.mark.parametrize("cluster", sorted(BELIEVED))
def test_what_is_ours_is_believed_whatever_the_job_is_called(client: PrometheusClient, cluster: str) -> None:
    frames = read_own(client, cluster)
    time, boards, busy = moved(frames)
    assert (time, boards) == (HELD, {"n": 8})
    assert busy[VICTIM] == BUSY[VICTIM]  # type: ignore[index]
    assert refused(frames) == []


@pytest.mark.parametrize("cluster", sorted(OTHER_ATTACKS))
def test_a_forged_series_of_what_is_there_anyway_moves_nothing(
    client: PrometheusClient, cluster: str
) -> None:
    targets, gpus = OTHER_ATTACKS[cluster]
    frames = read_other(client, cluster)
    assert moved(frames) == moved(read_other(client, "unnamed" if targets[0].job == "cluster" else "usual"))
    assert moved(frames)[0] == {(VICTIM, ""): WINDOW.length_ms}
    (problem,) = refused(frames)
    assert problem.subject == targets[-1].job
    claimed = problem.board_ms or 0
    assert claimed == gpus * WINDOW.length_ms if gpus else 0 < claimed < 2 * FORGED * WINDOW.length_ms


@pytest.mark.parametrize("cluster", ["whole-kube", "in-kubes-job", "in-dcgms-job"])
def test_of_very_many_jobs_all_are_asked_for_at_once(
    client: PrometheusClient, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "_MOST_JOBS", 0)
    frames = read_other(client, cluster)
    assert moved(frames) == moved(read_other(client, "usual"))
    assert [each.subject for each in refused(frames)] == [OTHER_ATTACKS[cluster][0][-1].job]


@pytest.mark.parametrize(
    ("cluster", "setting", "gpu_ms"),
    [
        ("whole-collector", "gpucost_jobs", 2 * FORGED * SPAN.length_ms),
        ("whole-kube", "kube_state_metrics_jobs", 2 * FORGED * SPAN.length_ms),
        ("rows-alone", "dcgm_exporter_jobs", 2 * SPAN.length_ms),
        ("amd-rows", "amd_exporter_jobs", 2 * SPAN.length_ms),
    ],
)
def test_the_doctor_names_who_is_not_believed(
    client: PrometheusClient, cluster: str, setting: str, gpu_ms: int
) -> None:
    now = SPAN.end_ms - MINUTE_MS
    facts = probe(client, PrometheusSourceSettings(), ResourceCatalog(), Month(2026, 10), now, cluster)
    ((found,), unread) = facts.clusters[0].strangers, facts.unread
    assert (found.job, found.namespaces, found.setting, unread) == (
        TENANT.job,
        (TENANT.namespace,),
        setting,
        (),
    )
    assert found.gpu_ms == pytest.approx(gpu_ms, rel=0.01)


@pytest.mark.parametrize("cluster", sorted(OTHER_BELIEVED))
def test_usual_jobs_of_others_are_believed(client: PrometheusClient, cluster: str) -> None:
    frames = read_other(client, cluster)
    assert moved(frames)[0] == {(VICTIM, ""): WINDOW.length_ms}
    assert moved(frames)[2] == pytest.approx({VICTIM: 0.25 * WINDOW.length_ms}, rel=0.01)
    assert refused(frames) == []
