"""Use out of dcgm-exporter's series in a real Prometheus: each case a cluster, its figures worked by hand."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import isnan

import pytest

from gpucost.contract.frames import SIGNALS
from gpucost.domain.errors import DataProblem, DataProblemCode
from gpucost.domain.time import HOUR_MS, MINUTE_MS, SECOND_MS, Window
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.upstream.device_subjects import ClusterHoldings, PodHolding
from gpucost.telemetry.upstream.kube_reader import KubeStateReader, UpstreamSettings
from gpucost.telemetry.upstream.upstream_history import read_activity
from gpucost.telemetry.upstream.upstream_source import read_signals
from tests.support.dcgm_rows import (
    EVERY_MS,
    IDLE,
    MJ_PER_HOUR,
    Rows,
    at,
    counter,
    halves,
    held,
    openmetrics_of,
    spoilt,
    used_by,
)
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus

pytestmark = [needs_prometheus, pytest.mark.prometheus]

WINDOW = Window(at(0), at(2))
UTIL, SM, GR = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
TENSOR = "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"
USED, FREE = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"
ENERGY, POWER = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_POWER_USAGE"
RATIO = "DCGM_FI_DEV_GPU_UTIL_RATIO"
A, B = used_by("pod-a"), used_by("pod-b")
SHARED = "nvidia.com/gpu.shared"


def _of(name: str, **labels: str) -> dict[str, str]:
    return {"UUID": f"GPU-{name}", **used_by(f"pod-{name}"), **labels}


def _instance(number: str, profile: str, **labels: str) -> dict[str, str]:
    return {"GPU_I_ID": number, "GPU_I_PROFILE": profile, **labels}


BIG, SMALL = _instance("1", "3g.40gb", **A), _instance("2", "1g.10gb", **IDLE)
VGPU_A, VGPU_B = {**A, "vgpu": "0"}, {**B, "vgpu": "1"}
CASES: dict[str, list[Rows]] = {
    # Held from 0:30 to 1:30; idle before and after.
    "plain": [
        *(Rows(UTIL, 40.0, 0.5, 1.5, A), Rows(UTIL, 0.0, 0, 0.5), Rows(UTIL, 0.0, 1.5, 2)),
        *(Rows(SM, 0.25, 0.5, 1.5, A), Rows(TENSOR, 0.125, 0.5, 1.5, A)),
        *(Rows(USED, 10240, 0.5, 1.25, A), Rows(USED, 20480, 1.25, 1.5, A)),
        *(Rows(FREE, 71680, 0.5, 1.25, A), Rows(FREE, 61440, 1.25, 1.5, A)),
        *(Rows(ENERGY, counter, 0.5, 1.5, A), Rows(ENERGY, counter, 0, 0.5), Rows(ENERGY, counter, 1.5, 2)),
    ],
    "mixed": [
        Rows(RATIO, lambda h: 0.2 if h < 0.5 else 0.3, labels=_of("a", instance="10.0.0.1:9400")),
        Rows(RATIO, lambda h: 20 if h <= 0.5 else 30, labels=_of("b", instance="10.0.0.2:9400")),
        Rows(RATIO, 1, labels=_of("c", instance="10.0.0.3:9400")),
        Rows(UTIL, 25, labels=_of("d", instance="10.0.0.4:9400")),
        Rows("DCGM_FI_DEV_FB_USED_BYTES", 10240 * 2**20, labels=_of("a")),
        Rows("DCGM_FI_DEV_FB_CAPACITY_BYTES", 81920 * 2**20, labels=_of("a")),
        Rows("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", lambda h: counter(h) / 1000, labels=_of("a")),
        Rows("DCGM_FI_PROF_SM_UTIL_RATIO", 0.5, labels=_of("a")),
        Rows(USED, 10240, labels=_of("d")),
    ],
    "honoured": [
        Rows(UTIL, 40.0, 0, 1, {"pod": "pod-a", "namespace": "team", "pod_uid": ""}),
        Rows(UTIL, 0.0, 1, 2, IDLE),
        Rows(UTIL, 60.0, 0, 1, {"UUID": "GPU-2", "pod": "other", "namespace": "x", "pod_uid": "b"}),
    ],
    "old": [
        Rows(
            "dcgm_gpu_utilization",
            40,
            labels={"UUID": "", "uuid": "GPU-1", "pod_name": "pod-a"} | {"pod_namespace": "team"},
        ),
        Rows(
            "dcgm_fb_used",
            1024,
            labels={"UUID": "", "uuid": "GPU-1", "pod_name": "pod-a"} | {"pod_namespace": "team"},
        ),
    ],
    "mig": [
        *(Rows(GR, 0.5, labels=BIG), Rows(GR, 0.0, labels=SMALL)),
        *(Rows(SM, 0.25, labels=BIG), Rows(SM, 0.0, labels=SMALL)),
        *(Rows(USED, 20000, labels=BIG), Rows(FREE, 20320, labels=BIG), Rows(USED, 10, labels=SMALL)),
        *(Rows(ENERGY, counter, labels=BIG), Rows(ENERGY, counter, labels=SMALL)),
    ],
    # A has a replica of four for an hour, B one of them from 0:30 on.
    "copies": [
        *(Rows(UTIL, halves, 0, 1, VGPU_A), Rows(UTIL, halves, 0.5, 1, VGPU_B)),
        *(Rows(USED, 8000, 0, 1, VGPU_A), Rows(USED, 8000, 0.5, 1, VGPU_B)),
        *(Rows(FREE, 72000, 0, 1, VGPU_A), Rows(FREE, 72000, 0.5, 1, VGPU_B)),
        *(Rows(ENERGY, counter, 0, 1, VGPU_A), Rows(ENERGY, counter, 0.5, 1, VGPU_B)),
    ],
    # Release 4.8.2: busy time and memory of each pod, beside the device's; the rest is copied.
    "own": [
        *(Rows(UTIL, 60, labels=VGPU_A), Rows(UTIL, 30, labels=VGPU_B), Rows(UTIL, 80)),
        *(Rows(USED, 1000, labels=VGPU_A), Rows(USED, 3000, labels=VGPU_B), Rows(USED, 5000)),
        *(Rows(SM, 0.5, labels=VGPU_A), Rows(SM, 0.5, labels=VGPU_B)),
        *(Rows(FREE, 75000, labels=VGPU_A), Rows(FREE, 75000, labels=VGPU_B)),
    ],
    # Two of the four replicas of one instance, and the other two.
    "sliced": [
        *(Rows(GR, 0.5, labels=BIG | {"vgpu": number}) for number in "01"),
        *(Rows(GR, 0.5, labels=BIG | B | {"vgpu": number}) for number in "23"),
        *(Rows(ENERGY, counter, labels=BIG | {"vgpu": number}) for number in "01"),
        *(Rows(ENERGY, counter, labels=BIG | B | {"vgpu": number}) for number in "23"),
    ],
    "still": [Rows(ENERGY, 0.0, labels=A), Rows(POWER, 100, labels=A), Rows(UTIL, 0, labels=A)],
    # A uid that could not be looked up at first, and a name that is used again later.
    "flaky": [Rows(UTIL, 40, 0, 0.25, A), Rows(UTIL, 80, 0.25, 0.5, A | {"pod_uid": "a"})],
    "arbitrary": [Rows(UTIL, 90, 0, 0.75, A), Rows(UTIL, 90, 0.75, 1, B)],
    "corrupt": [Rows(UTIL, spoilt, labels=A)],
    "leaked": [Rows(USED, 9223372036854775794, labels=A), Rows(UTIL, 30, labels=A)],
    "stuck": [
        *(Rows(UTIL, 90, 0, 2, A), Rows(GR, lambda h: 0.0 if h <= 1 else 0.8, 0, 2, A)),
        *(Rows(SM, lambda h: 0.0 if h <= 1 else 0.5, 0, 2, A), Rows(TENSOR, 0.0, 0, 2, A)),
    ],
    "flip": [
        *(Rows(ENERGY, counter, 0, 0.5, A), Rows(ENERGY, counter, 0.5, 1, B)),
        *(Rows(UTIL, 100, 0, 0.5, A), Rows(UTIL, 10, 0.5, 1, B)),
        *(Rows(USED, 10240, 0, 0.5, A), Rows(USED, 71680, 0.5, 1, B)),
        *(Rows(FREE, 71680, 0, 0.5, A), Rows(FREE, 10240, 0.5, 1, B)),
    ],
    # One member was down for 15 minutes; the other saw a part of what it saw.
    "pair": [
        *(
            Rows(UTIL, halves, 0, 0.5, A | {"replica": "a"}),
            Rows(UTIL, halves, 0.75, 1, A | {"replica": "a"}),
        ),
        Rows(UTIL, halves, 0.25, 0.5, A | {"replica": "b"}, 7000),
    ],
    "restarted": [
        Rows(UTIL, 40, 0, 0.5, A),
        Rows(UTIL, 70, 0.75, 1, A | {"instance": "10.0.0.9:9400", "pod": "dcgm-exporter-y"}),
    ],
    "jobs": [
        Rows(UTIL, 40, labels=A),
        Rows(UTIL, 40, labels={"pod": "pod-a", "namespace": "team", "job": "other"}, every_ms=15_000),
        Rows(ENERGY, counter, labels=A),
        Rows(ENERGY, counter, labels={"pod": "pod-a", "namespace": "team", "job": "other"}, every_ms=15_000),
    ],
    "ended": [Rows(UTIL, lambda h: 80 if h <= 0.25 else 0, 0, 1, A)],
    "reused": [Rows(UTIL, lambda h: 80 if h <= 0.25 else 10, 0, 1, A)],
    "lacking": [Rows(USED, 1024, labels=A), Rows(POWER, 300, labels=A)],
    "two": [
        *(Rows(UTIL, 40, labels=A), Rows(UTIL, 0, labels=A | {"UUID": "GPU-2"})),
        *(Rows(USED, 100, labels=A), Rows(USED, 300, labels=A | {"UUID": "GPU-2"})),
    ],
    "containers": [Rows(UTIL, 40, 0, 0.5, A | {"exported_container": name}) for name in ("main", "sidecar")],
    "hpc": [Rows(UTIL, 40, 0, 0.5, A | {"hpc_job": job}) for job in ("17", "18")],
    "reset": [Rows(ENERGY, lambda h: counter(h) if h <= 0.5 else MJ_PER_HOUR * (h - 0.5), 0, 2, A)],
    # Two and a half scrapes in five minutes, of an idle pod; and four and two sevenths.
    "slow": [
        *(Rows(UTIL, 0, 0, 6, A, 37_000, 120_000), Rows(SM, 0.0, 0, 6, A, 37_000, 120_000)),
        Rows(UTIL, halves, 0, 6, _of("b", job="often"), 37_000, 70_000),
        Rows(ENERGY, counter, 0, 6, A, 37_000, 120_000),
    ],
    # Two instances of a GPU that worked differently, for an hour.
    "apart": [
        *(Rows(GR, 0.75, labels=_instance("1", "3g.40gb", **A)),),
        *(Rows(GR, 0.25, labels=_instance("2", "3g.40gb", **B)),),
        *(Rows(ENERGY, counter, labels=_instance("1", "3g.40gb", **A)),),
        *(Rows(ENERGY, counter, labels=_instance("2", "3g.40gb", **B)),),
    ],
    # B is an instance, and has no busy time of its own.
    "beside": [
        *(Rows(UTIL, 40, labels=A), Rows(GR, 0.9, labels=A)),
        Rows(GR, 0.5, labels=_instance("1", "3g.40gb", **B, UUID="GPU-2")),
    ],
    "unknown": [Rows(GR, 0.5, labels=_instance("1", "9g.99gb", **A))],
    "empty": [Rows(UTIL, 40, labels=IDLE | {"exported_pod": "", "pod_name": ""})],
}
MIG = {"resource": "nvidia.com/mig-3g.40gb"}
HOLDS: dict[str, list[PodHolding]] = {
    "plain": [held("a", 0.5, 1.5)],
    "mixed": [held(uid, 0, 1) for uid in "abcd"],
    "honoured": [held("a", 0, 1), held("b", 0, 1)],
    "old": [held("a", 0, 1)],
    "mig": [held("a", 0, 1, **MIG)],
    "copies": [held("a", 0, 1, replicas=4, resource=SHARED), held("b", 0.5, 1, replicas=4, resource=SHARED)],
    "own": [held(uid, 0, 1, replicas=4) for uid in "ab"],
    "arbitrary": [held(uid, 0, 1, replicas=4) for uid in "ab"],
    "sliced": [
        held(uid, 0, 1, replicas=4, count=2, resource="nvidia.com/mig-3g.40gb.shared") for uid in "ab"
    ],
    "two": [held("a", 0, 1, count=2)],
    "flaky": [held("a", 0, 0.5), held("b", 1, 2, pod="pod-a")],
    "flip": [held("a", 0, 0.5), held("b", 0.5, 1)],
    "stuck": [held("a", 0, 2)],
    "ended": [held("a", 0, 0.25)],
    "reused": [held("a", 0, 0.25), held("b", 0.5, 1, pod="pod-a")],
    "reset": [held("a", 0, 2)],
    "unknown": [held("a", 0, 1, **MIG)],
    "slow": [held("a", 0, 6), held("b", 0, 6)],
    "apart": [held(uid, 0, 1, **MIG) for uid in "ab"],
    "beside": [held("a", 0, 1), held("b", 0, 1, **MIG)],
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = tmp_path_factory.mktemp("dcgm") / "data"
    create_blocks(openmetrics_of(CASES), data)
    with running_prometheus(data) as address:
        yield address


Signals = dict[tuple[str, int], dict[str, float]]


def _reader(client: PrometheusClient, case: str) -> KubeStateReader:
    settings = PrometheusSourceSettings(replica_labels=("replica",))
    return KubeStateReader(client, settings, case, WINDOW, UpstreamSettings())


def signals(url: str, case: str) -> tuple[Signals, dict[DataProblemCode, DataProblem]]:
    """By pod and hour; times in minutes of a GPU, what is null left out."""
    with PrometheusClient(url) as client:
        holdings = ClusterHoldings(HOLDS.get(case, [held("a", 0, 1)]))
        rows, problems = read_signals(_reader(client, case), WINDOW, holdings)
    found: Signals = {}
    for row in rows:
        values = dict(zip(SIGNALS.column_names, row, strict=True))
        assert (values["cluster"], values["node"]) == (case, "n1")
        key = str(values["pod_uid"]), (int(str(values["start_ms"])) - at(0)) // HOUR_MS
        measured = {
            name: float(str(values[name])) for name in SIGNALS.column_names[5:] if values[name] is not None
        }
        assert not any(map(isnan, measured.values()))
        found[key] = {
            name: round(value / MINUTE_MS, 3) if name.endswith("_ms") else value
            for name, value in measured.items()
        }
    return found, {problem.code: problem for problem in problems}


def busy(url: str, case: str) -> dict[tuple[str, int], tuple[float | None, float | None]]:
    found, _ = signals(url, case)
    return {key: (each.get("observed_ms"), each.get("busy_ms")) for key, each in found.items()}


@pytest.mark.trap(20)
def test_a_whole_gpu_in_steps_with_what_was_idle_left_out(url: str) -> None:
    found, problems = signals(url, "plain")
    assert sorted(found) == [("a", 0), ("a", 1)]
    first, second = found["a", 0], found["a", 1]
    assert (first["observed_ms"], first["busy_ms"]) == (30, 12)
    assert (first["sm_observed_ms"], first["sm_active_ms"]) == (30, 7.5)
    assert (first["tensor_observed_ms"], first["tensor_active_ms"]) == (30, 3.75)
    assert first["memory_observed_ms"] == 30
    assert first["memory_used_mib_s"] == pytest.approx(10240 * 1800)
    assert first["memory_total_mib_s"] == pytest.approx(81920 * 1800)
    assert (first["memory_peak_mib"], second["memory_peak_mib"]) == (10240, 20480)
    assert second["memory_used_mib_s"] == pytest.approx((10240 + 20480) * 900)
    # Of the first hour its first reading is the base; of the second the last one of the first.
    assert first["energy_observed_ms"] == 29.5
    assert first["energy_mj"] == pytest.approx(300 * 1770 * 1000)
    assert second["energy_observed_ms"] == 30
    assert second["energy_mj"] == pytest.approx(300 * 1800 * 1000)
    # 30 s of the scrape and 30 s of the exporter at both ends.
    assert problems[DataProblemCode.USE_SAMPLED].board_ms == 2 * 60 * SECOND_MS
    assert problems[DataProblemCode.USE_SAMPLED].at_ms == at(0)


@pytest.mark.trap(31)
def test_names_and_units_of_several_releases_side_by_side(url: str) -> None:
    found, problems = signals(url, "mixed")
    told = {uid: (found[uid, 0].get("observed_ms"), found[uid, 0].get("busy_ms")) for uid in "abd"}
    assert told == {"a": (60, pytest.approx(15, abs=0.06)), "b": (60, 15), "d": (60, 15)}
    new = found["a", 0]
    assert new["memory_used_mib_s"] == pytest.approx(10240 * 3600)
    assert new["memory_total_mib_s"] == pytest.approx(81920 * 3600)
    assert new["energy_mj"] == pytest.approx(300 * 3570 * 1000)
    assert new["sm_active_ms"] == 30
    # Nothing was free or whole on the old one: the total is not known, and not what is in use.
    assert "memory_total_mib_s" not in found["d", 0]
    # 1 % or all of the time: not known.
    assert ("c", 0) not in found
    assert problems[DataProblemCode.USE_DROPPED].board_ms == HOUR_MS


@pytest.mark.trap(20, 21)
def test_labels_that_were_honoured_and_a_uid_that_decides(url: str) -> None:
    assert busy(url, "honoured") == {("a", 0): (60, 24), ("b", 0): (60, 36)}


def test_names_and_labels_of_the_oldest_releases(url: str) -> None:
    assert busy(url, "old") == {("a", 0): (60, 24)}


@pytest.mark.trap(20, 21)
def test_a_gpu_that_nobody_holds_has_no_signal(url: str) -> None:
    assert busy(url, "empty") == {}


@pytest.mark.trap(2, 4, 5, 6)
def test_an_instance_counts_its_part_of_the_board(url: str) -> None:
    found, _ = signals(url, "mig")
    assert sorted(found) == [("a", 0)]
    own, share = found["a", 0], 3 / 7
    assert own["observed_ms"] == pytest.approx(60 * share, abs=0.001)
    assert own["busy_ms"] == pytest.approx(30 * share, abs=0.001)
    assert own["sm_active_ms"] == pytest.approx(15 * share, abs=0.001)
    # All of the instance's memory, and of the GPU's energy its part, once.
    assert own["memory_used_mib_s"] == pytest.approx(20000 * 3600)
    assert own["memory_total_mib_s"] == pytest.approx(40320 * 3600)
    assert own["energy_mj"] == pytest.approx(300 * 3570 * 1000 * share)
    assert "tensor_observed_ms" not in own


def test_an_instance_of_an_unknown_kind_is_told(url: str) -> None:
    found, problems = signals(url, "unknown")
    assert not found
    assert problems[DataProblemCode.USE_DROPPED].board_ms is None


@pytest.mark.trap(23)
def test_copies_on_a_shared_gpu_are_split_and_add_up(url: str) -> None:
    found, problems = signals(url, "copies")
    a, b = found["a", 0], found["b", 0]
    # 24 minutes of A's alone; of the 12 of the second half hour a half each. A fourth of the GPU is held.
    assert (a["observed_ms"], a["busy_ms"]) == (15, 30)
    assert (b["observed_ms"], b["busy_ms"]) == (7.5, 6)
    assert a["memory_used_mib_s"] == pytest.approx(8000 / 4 * 3600)
    assert a["memory_total_mib_s"] == pytest.approx(80000 / 4 * 3600)
    assert b["memory_used_mib_s"] == pytest.approx(8000 / 4 * 1800)
    assert a["energy_mj"] == pytest.approx(300 * 3570 * 1000 / 4)
    unsplit = _unsplit(url, "copies")
    # The 12 minutes may be either's, of the 10 % in use all may be, and the energy of the hour.
    assert unsplit["busy time, SM activity, tensor activity"] == 12 * MINUTE_MS
    assert unsplit["memory"] == pytest.approx(HOUR_MS / 10)
    assert 0.75 * 59.5 * MINUTE_MS <= unsplit["energy"] <= 59.5 * MINUTE_MS
    assert problems[DataProblemCode.USE_UNSPLIT].at_ms == at(0)


@pytest.mark.trap(6)
def test_energy_of_instances_is_off_by_no_more_than_who_worked(url: str) -> None:
    found, _ = signals(url, "apart")
    assert found["a", 0]["energy_mj"] == found["b", 0]["energy_mj"]
    # Of what the GPU drew, A may have used three fourths instead of 3/7, B one fourth.
    assert _unsplit(url, "apart") == {"energy": pytest.approx((3 / 4 - 3 / 7) * 59.5 * MINUTE_MS, abs=1)}
    # No other pod worked: all of it may be A's.
    assert _unsplit(url, "mig") == {"energy": pytest.approx((1 - 3 / 7) * 59.5 * MINUTE_MS, abs=1)}
    assert not _unsplit(url, "plain")


def _unsplit(url: str, case: str) -> dict[str, float]:
    with PrometheusClient(url) as client:
        _, problems = read_signals(_reader(client, case), WINDOW, ClusterHoldings(HOLDS[case]))
    found = [each for each in problems if each.code is DataProblemCode.USE_UNSPLIT]
    return {each.subject: float(each.board_ms or 0) for each in found}


@pytest.mark.parametrize(("uid", "every_s", "busy_hours"), [("a", 120, 0.0), ("b", 70, 0.8 / 2 + 0.4 * 5.5)])
def test_scrapes_that_do_not_divide_a_step_lose_nothing(
    url: str, uid: str, every_s: int, busy_hours: float
) -> None:
    case, window = "slow", Window(at(0), at(6))
    with PrometheusClient(url) as client:
        reader = _reader(client, case)
        frame = read_activity(reader, window, ClusterHoldings(HOLDS[case]))
    own = frame[frame["pod_uid"] == uid].sort_values("start_ms")
    assert len(own) == 6 * 12
    # The first sample is of 0:00:37 on; at the very end, the one that stands for it is not of this window.
    inner = own.iloc[1:-1]
    assert inner["observed_ms"].to_numpy() == pytest.approx(5 * MINUTE_MS)
    assert own["observed_ms"].sum() == pytest.approx(6 * HOUR_MS, abs=every_s * SECOND_MS)
    assert own["busy_ms"].sum() == pytest.approx(busy_hours * HOUR_MS, abs=0.01 * HOUR_MS)
    if uid == "a":
        assert (own["busy_ms"] == 0).all()
        assert (own["sm_active_ms"] == 0).all()
        assert own["energy_j"].sum() == pytest.approx(6 * MJ_PER_HOUR / 1000, rel=0.02)


def test_a_gpu_that_is_there_for_half_an_hour_of_a_day_is_found(url: str) -> None:
    window = Window(at(0), at(24))
    with PrometheusClient(url) as client:
        rows, _ = read_signals(_reader(client, "flaky"), window, ClusterHoldings(HOLDS["flaky"]))
    measured = [dict(zip(SIGNALS.column_names, row, strict=True)) for row in rows]
    assert [(row["pod_uid"], row["busy_ms"]) for row in measured] == [("a", 18 * MINUTE_MS)]


def test_the_engines_activity_is_for_those_without_busy_time_only(url: str) -> None:
    assert busy(url, "beside") == {
        ("a", 0): (60, 24),
        ("b", 0): (pytest.approx(60 * 3 / 7, abs=0.001), pytest.approx(30 * 3 / 7, abs=0.001)),
    }


@pytest.mark.trap(23)
def test_own_rows_of_pods_are_no_more_than_the_devices(url: str) -> None:
    found, _ = signals(url, "own")
    a, b = found["a", 0], found["b", 0]
    assert (a["observed_ms"], b["observed_ms"]) == (15, 15)
    assert a["busy_ms"] == pytest.approx(48 * 60 / 90, abs=0.001)
    assert b["busy_ms"] == pytest.approx(48 * 30 / 90, abs=0.001)
    assert a["memory_used_mib_s"] == pytest.approx(1000 * 3600)
    assert b["memory_used_mib_s"] == pytest.approx(3000 * 3600)
    assert (a["memory_peak_mib"], b["memory_peak_mib"]) == (5000, 5000)
    assert a["memory_total_mib_s"] == pytest.approx(80000 / 4 * 3600)
    # Copies: half of the device's half hour each.
    assert (a["sm_active_ms"], b["sm_active_ms"]) == (15, 15)


@pytest.mark.trap(5, 6, 23)
def test_several_replicas_of_an_instance(url: str) -> None:
    found, _ = signals(url, "sliced")
    for uid in "ab":
        assert found[uid, 0]["observed_ms"] == pytest.approx(60 * 3 / 7 / 2, abs=0.001)
        assert found[uid, 0]["busy_ms"] == pytest.approx(30 * 3 / 7 / 2, abs=0.001)
        assert found[uid, 0]["energy_mj"] == pytest.approx(300 * 3570 * 1000 * 3 / 7 / 2)


@pytest.mark.trap(15, 21)
def test_a_uid_that_is_looked_up_late_is_the_same_pods(url: str) -> None:
    assert busy(url, "flaky") == {("a", 0): (30, 6 + 12)}


def test_a_counter_that_stands_still_is_not_read(url: str) -> None:
    found, _ = signals(url, "still")
    assert found["a", 0] == {
        "observed_ms": 60,
        "busy_ms": 0,
        "energy_observed_ms": 60,
        "energy_mj": pytest.approx(MJ_PER_HOUR / 3),
    }


@pytest.mark.trap(11, 23)
def test_of_one_arbitrary_pod_nothing_is_said(url: str) -> None:
    found, problems = signals(url, "arbitrary")
    assert not found
    unsplit = problems[DataProblemCode.USE_UNSPLIT]
    assert unsplit.board_ms == 2 * HOUR_MS / 4
    assert "KUBERNETES_VIRTUAL_GPUS" in unsplit.detail


@pytest.mark.trap(10)
def test_corrupt_samples_are_left_out_one_by_one(url: str) -> None:
    found, problems = signals(url, "corrupt")
    assert (found["a", 0]["observed_ms"], found["a", 0]["busy_ms"]) == (59, 29.5)
    assert problems[DataProblemCode.USE_DROPPED].board_ms == 2 * EVERY_MS


@pytest.mark.trap(10, 11)
def test_a_word_for_no_value_is_none(url: str) -> None:
    found, problems = signals(url, "leaked")
    assert set(found["a", 0]) == {"observed_ms", "busy_ms"}
    assert problems[DataProblemCode.USE_DROPPED].board_ms == HOUR_MS


@pytest.mark.trap(9)
def test_profiling_that_stands_at_nought_on_a_busy_gpu_is_no_signal(url: str) -> None:
    found, problems = signals(url, "stuck")
    assert found["a", 0] == {"observed_ms": 60, "busy_ms": 54}
    assert (found["a", 1]["sm_observed_ms"], found["a", 1]["sm_active_ms"]) == (60, 30)
    # No tensor core was used in the second hour: that is a measured 0.
    assert (found["a", 1]["tensor_observed_ms"], found["a", 1]["tensor_active_ms"]) == (60, 0)
    assert problems[DataProblemCode.USE_DROPPED].board_ms == HOUR_MS


@pytest.mark.trap(16)
def test_a_counter_under_new_labels_is_not_counted_from_nought(url: str) -> None:
    found, _ = signals(url, "flip")
    assert {key: each["energy_mj"] for key, each in found.items()} == {
        ("a", 0): pytest.approx(300 * 1770 * 1000),
        ("b", 0): pytest.approx(300 * 1770 * 1000),
    }
    assert (found["a", 0]["busy_ms"], found["b", 0]["busy_ms"]) == (30, 3)
    used = [found[uid, 0]["memory_used_mib_s"] / found[uid, 0]["memory_total_mib_s"] for uid in "ab"]
    assert used == pytest.approx([1 / 8, 7 / 8])


@pytest.mark.trap(13)
def test_a_counter_that_fell_says_nothing_of_that_interval(url: str) -> None:
    found, problems = signals(url, "reset")
    # Without the first reading, which is the base, and the one that fell.
    assert found["a", 0]["energy_observed_ms"] == 59
    assert found["a", 0]["energy_mj"] == pytest.approx(300 * 3540 * 1000)
    assert found["a", 1]["energy_mj"] == pytest.approx(300 * 3600 * 1000)
    dropped = problems[DataProblemCode.USE_DROPPED]
    assert (dropped.board_ms, dropped.subject) == (EVERY_MS, "energy")


@pytest.mark.fault(5)
def test_members_of_an_ha_pair_are_counted_once(url: str) -> None:
    assert busy(url, "pair") == {("a", 0): (45, 24 + 6)}


@pytest.mark.fault(6)
def test_a_restarted_exporter_goes_on_and_its_gap_is_not_observed(url: str) -> None:
    assert busy(url, "restarted") == {("a", 0): (45, 12 + 10.5)}


@pytest.mark.fault(5)
def test_two_jobs_that_scrape_one_exporter_are_one(url: str) -> None:
    found, _ = signals(url, "jobs")
    assert (found["a", 0]["observed_ms"], found["a", 0]["busy_ms"]) == (60, 24)
    assert found["a", 0]["energy_mj"] == pytest.approx(300 * 3585 * 1000)


def test_two_gpus_of_a_pod_are_added_up(url: str) -> None:
    found, _ = signals(url, "two")
    assert (found["a", 0]["observed_ms"], found["a", 0]["busy_ms"]) == (120, 24)
    assert (found["a", 0]["memory_used_mib_s"], found["a", 0]["memory_peak_mib"]) == (400 * 3600, 300)
    with PrometheusClient(url) as client:
        frame = read_activity(_reader(client, "two"), WINDOW, ClusterHoldings(HOLDS["two"]))
    per_gpu = frame.groupby("gpu", observed=True)["busy_ms"].sum() / MINUTE_MS
    assert per_gpu.round(3).to_dict() == {"GPU-1": 24, "GPU-2": 0}


def test_a_pod_is_observed_for_no_more_than_it_held(url: str) -> None:
    with PrometheusClient(url) as client:
        rows, _ = read_signals(_reader(client, "two"), WINDOW, ClusterHoldings([held("a", 0, 1)]))
    measured = dict(zip(SIGNALS.column_names, rows[0], strict=True))
    assert (measured["observed_ms"], measured["busy_ms"]) == (HOUR_MS, 0.2 * HOUR_MS)


@pytest.mark.parametrize("case", ["hpc", "containers"])
def test_rows_of_jobs_of_another_scheduler_and_of_containers_are_copies(url: str, case: str) -> None:
    assert busy(url, case) == {("a", 0): (30, 12)}


@pytest.mark.trap(17, 18)
def test_labels_that_outlive_a_pod_count_for_what_it_held(url: str) -> None:
    assert busy(url, "ended") == {("a", 0): (15, 12)}


@pytest.mark.trap(15)
def test_a_name_that_is_used_again_is_another_pod(url: str) -> None:
    assert busy(url, "reused") == {("a", 0): (15, 12), ("b", 0): (30, 3)}


@pytest.mark.trap(11)
def test_what_was_not_measured_is_null_and_power_stands_in_for_energy(url: str) -> None:
    found, _ = signals(url, "lacking")
    assert not {"observed_ms", "busy_ms", "sm_observed_ms"} & set(found["a", 0])
    assert found["a", 0]["energy_observed_ms"] == 60
    assert found["a", 0]["energy_mj"] == pytest.approx(MJ_PER_HOUR)


@pytest.mark.parametrize("case", ["plain", "mig", "copies", "own"])
def test_activity_adds_up_to_signals(url: str, case: str) -> None:
    found, _ = signals(url, case)
    with PrometheusClient(url) as client:
        frame = read_activity(_reader(client, case), WINDOW, ClusterHoldings(HOLDS[case]))
    assert set(frame["gpu"]) == ({"GPU-1/1"} if case == "mig" else {"GPU-1"})
    assert (frame["end_ms"] - frame["start_ms"] == 5 * MINUTE_MS).all()
    for column in ("observed_ms", "busy_ms", "sm_observed_ms", "sm_active_ms"):
        total = sum(each.get(column, 0) for each in found.values())
        assert frame[column].sum() / MINUTE_MS == pytest.approx(total, abs=0.01)
    held_ms = {"plain": 60, "mig": 60 * 3 / 7, "copies": 22.5, "own": 30}[case]
    assert frame["held_ms"].sum() / MINUTE_MS == pytest.approx(held_ms)
    energy = sum(each.get("energy_mj", 0) for each in found.values())
    assert frame["energy_j"].sum() == pytest.approx(energy / 1000)


@pytest.mark.parametrize("case", ["plain", "copies", "mig"])
@pytest.mark.parametrize(("start", "end"), [(0.2, 1.9), (0.25, 0.75), (0, 5.5)])
def test_parts_of_a_window_add_up_to_it(url: str, case: str, start: float, end: float) -> None:
    edges = sorted({at(0), at(start), at(end), at(6)})
    parts = [Window(*each) for each in pairwise(edges)]
    whole = _totals(url, case, [Window(at(0), at(6))])
    assert _totals(url, case, parts) == pytest.approx(whole, rel=1e-6)


def _totals(url: str, case: str, windows: list[Window]) -> list[float]:
    """Of all pods: busy time, what was observed of it, and memory."""
    columns = [SIGNALS.column_names.index(name) for name in ("observed_ms", "busy_ms", "memory_used_mib_s")]
    with PrometheusClient(url) as client:
        rows = [
            row
            for window in windows
            for row in read_signals(_reader(client, case), window, ClusterHoldings(HOLDS[case]))[0]
        ]
    return [sum(float(str(row[column])) for row in rows if row[column] is not None) for column in columns]


def test_nothing_at_all_is_an_empty_answer(url: str) -> None:
    with PrometheusClient(url) as client:
        reader = _reader(client, "nowhere")
        assert read_signals(reader, WINDOW, ClusterHoldings([held("a", 0, 1)])) == ([], [])
        assert read_activity(reader, WINDOW, ClusterHoldings([])).empty
