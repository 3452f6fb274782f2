"""The rise of the GPU exporter's counters: exact over edges, restarts and short lives; windows add up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpucost.contract.gpu_metrics import (
    DEVICE_LABELS,
    GPU_BOARD_RATIO,
    GPU_MEMORY_TOTAL,
    GPU_MEMORY_USED,
    HOLDER_COUNTERS,
    POD_BUSY,
    POD_COUNTED_SINCE,
    POD_ENERGY,
    POD_GPU_SHARE,
    POD_HELD,
    GpuMeasure,
)
from gpucost.contract.metric_spec import MetricSpec
from gpucost.domain.time import HOUR_MS, MINUTE_MS, SECOND_MS, Window
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.prometheus_source import PrometheusSource
from tests.support.history import History, Pod, at, counted, openmetrics_of
from tests.support.metric_samples import ExpositionSample
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus

pytestmark = [needs_prometheus, pytest.mark.prometheus]

DAY = Window(at(1), at(10))
UIDS = (*("steady", "short", "shared", "moved", "gapped", "reset"), "edge", "flipped", "reborn", "twice")


def _busy(
    uid: str, start: int, end: int, rate: float = 1.0, offset: float = 0.0, **labels: str
) -> list[ExpositionSample]:
    """A counter that rises from ``offset`` by ``rate``, scraped each minute from ``start`` on."""
    return [
        counted(POD_BUSY, uid, offset + rate * (now - start) / SECOND_MS, now, **labels)
        for now in range(start, end, MINUTE_MS)
    ]


def _since(uid: str, instant: int, start: int, end: int) -> list[ExpositionSample]:
    return [counted(POD_COUNTED_SINCE, uid, instant / SECOND_MS, now) for now in range(start, end, MINUTE_MS)]


def _moved(instance: str) -> list[ExpositionSample]:
    """An exporter that is restarted at 3:30 on another address; its counters go on."""
    if instance == "one":
        return _busy("moved", at(2), at(3.5)) + _since("moved", at(2), at(2), at(3.5))
    start = at(3.5) + 2 * MINUTE_MS
    return _busy("moved", start, at(5), offset=5400.0 + 120) + _since("moved", at(2), start, at(5))


def _renamed(samples: list[ExpositionSample], is_renaming: bool) -> list[ExpositionSample]:
    """What a scrape without ``honor_labels`` makes of them: the exporter's own pod stands there."""
    if not is_renaming:
        return samples
    own = {"pod": "gpucost-gpu-exporter-x", "namespace": "gpucost"}
    return [replace(sample, labels={**sample.labels, **own}) for sample in samples]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = tmp_path_factory.mktemp("signals") / "data"
    pods = [Pod(uid, at(2)) for uid in UIDS]
    samples = [
        # Began at 2:00:20, first scraped at 2:01.
        *_busy("steady", at(2) + MINUTE_MS, at(6), rate=0.5, offset=20.0),
        *_since("steady", at(2) + 20 * SECOND_MS, at(2) + MINUTE_MS, at(6)),
        # Lived for 20 s between two scrapes; its series stay for ten minutes.
        *(counted(POD_BUSY, "short", 20.0, now) for now in range(at(3), at(3) + 10 * MINUTE_MS, MINUTE_MS)),
        *_since("short", at(3) - 30 * SECOND_MS, at(3), at(3) + 10 * MINUTE_MS),
        # Two GPUs, and a split that changes its method.
        *_busy("shared", at(2), at(4), rate=0.25, method="weighted"),
        *_busy("shared", at(3), at(4), rate=0.125, method="equal", gpu_uuid="GPU-2"),
        *_since("shared", at(2), at(2), at(4)),
        # Not scraped from 3:20 to 4:10: what it did then belongs to no window for certain.
        *_busy("gapped", at(2), at(3) + 20 * MINUTE_MS),
        *_busy("gapped", at(4) + 10 * MINUTE_MS, at(5), offset=130 * 60.0),
        *_since("gapped", at(2), at(2), at(5)),
        # The exporter lost its state at 3:30, the pod did not end.
        *_busy("reset", at(2), at(3.5)),
        *_busy("reset", at(3.5), at(5)),
        *_since("reset", at(2), at(2), at(3.5)),
        *_since("reset", at(3.5), at(3.5), at(5)),
        # Began 5 s before an hour, first scraped in it.
        *(counted(POD_BUSY, "edge", 20.0, now) for now in range(at(4), at(4) + 10 * MINUTE_MS, MINUTE_MS)),
        *_since("edge", at(4) - 5 * SECOND_MS, at(4), at(4) + 10 * MINUTE_MS),
        # Two hours old when the way its GPU is split changes: a row that begins at 0 with its first 30 s.
        *_busy("flipped", at(2), at(4.5)),
        *_busy("flipped", at(4.5), at(5), offset=30.0, method="equal"),
        *_since("flipped", at(2), at(2), at(5)),
    ]
    twice = [*_busy("twice", at(2), at(3)), *_since("twice", at(2), at(2), at(3))]
    taken = {"honest": {}, "renaming": {"exported_pod": "pod-twice", "exported_namespace": "ns"}}
    reborn = [
        [*_busy("reborn", at(2), at(3)), *_since("reborn", at(2), at(2), at(3))],
        [*_busy("reborn", at(3) + MINUTE_MS, at(3.5)), *_since("reborn", at(3), at(3) + MINUTE_MS, at(3.5))],
    ]
    histories = [
        History("c", pods, extra=samples),
        # A job that honours labels and one that does not scrape the same exporter.
        *(
            History("c", [], [], extra=_renamed(twice, bool(labels)), target={"instance": name, **labels})
            for name, labels in taken.items()
        ),
        # The node boots: the exporter comes back on another address, its counters at 0.
        *(
            History("c", [], [], extra=life, target={"instance": f"life-{number}"})
            for number, life in enumerate(reborn)
        ),
        History("c", [], [], extra=_moved("one"), target={"instance": "one"}),
        History("c", [], [], extra=_moved("two"), target={"instance": "two"}),
    ]
    create_blocks(openmetrics_of(*histories), data)
    with running_prometheus(data) as address:
        yield address


def busy_steps(url: str, uid: str, step_ms: int = HOUR_MS) -> dict[int, float]:
    """Busy seconds of the day by the start of each step."""
    with PrometheusClient(url) as client:
        settings = PrometheusSourceSettings(signal_step_ms=step_ms)
        signals = PrometheusSource(client, settings, now=lambda: at(240)).read("c", DAY).signals
    mine = signals[signals["pod_uid"] == uid]
    return {
        int(start): round(float(busy) / SECOND_MS, 3)
        for start, busy in zip(mine["start_ms"], mine["busy_ms"], strict=True)
    }


def busy_seconds(url: str, uid: str) -> dict[int, float]:
    """Busy seconds by the hour of T0, where there were any."""
    return {(start - at(0)) // HOUR_MS: busy for start, busy in busy_steps(url, uid).items() if busy}


def test_a_counter_that_began_in_the_window_is_counted_from_nought(url: str) -> None:
    hours = busy_seconds(url, "steady")
    # 20 s were there at the first scrape, 2:01; then half a second each second, up to 5:59.
    assert sum(hours.values()) == 20 + 0.5 * (4 * 3600 - 120)
    assert hours[3] == 1800


@pytest.mark.trap(16, 26)
def test_a_job_between_two_scrapes_is_counted_whole(url: str) -> None:
    assert busy_seconds(url, "short") == {2: 20.0}


def test_series_of_one_pod_are_added(url: str) -> None:
    assert sum(busy_seconds(url, "shared").values()) == 0.25 * (2 * 3600 - 60) + 0.125 * (3600 - 60)


@pytest.mark.fault(6)
@pytest.mark.trap(27)
def test_a_restarted_exporter_on_another_address_goes_on(url: str) -> None:
    hours = busy_seconds(url, "moved")
    assert sum(hours.values()) == 5400 + 120 + (90 - 2 - 1) * 60
    assert hours[3] == 3600


def test_what_rose_in_a_gap_is_left_out(url: str) -> None:
    hours = busy_seconds(url, "gapped")
    assert hours == {2: 3600.0, 3: 19 * 60.0, 4: 49 * 60.0}


@pytest.mark.fault(6)
def test_a_counter_that_fell_is_right_within_a_scrape_interval(url: str) -> None:
    hours = busy_seconds(url, "reset")
    assert sum(hours.values()) == pytest.approx(3 * 3600 - 60, abs=3 * 60)


def test_what_began_just_before_an_hour_is_not_lost(url: str) -> None:
    assert busy_seconds(url, "edge") == {3: 20.0}


def test_a_new_row_of_an_old_pod_begins_at_nought(url: str) -> None:
    hours = busy_seconds(url, "flipped")
    # 2:00 to 4:29 by the one method, 30 s and 4:30 to 4:59 by the other.
    assert sum(hours.values()) == 149 * 60 + 30 + 29 * 60


@pytest.mark.fault(5, 27)
def test_one_exporter_scraped_by_two_jobs_is_counted_once(url: str) -> None:
    assert busy_seconds(url, "twice") == {2: 59 * 60.0}


@pytest.mark.fault(6)
def test_a_boot_at_the_edge_of_an_hour_is_no_negative_rise(url: str) -> None:
    assert busy_seconds(url, "reborn") == {2: 59 * 60.0, 3: 28 * 60.0}


@pytest.mark.parametrize("uid", ["steady", "short", "shared", "moved"])
def test_steps_of_any_length_add_up_to_the_same(url: str, uid: str) -> None:
    by_hour = sum(busy_steps(url, uid).values())
    for step_ms in (20 * MINUTE_MS, 3 * HOUR_MS, DAY.length_ms):
        assert sum(busy_steps(url, uid, step_ms).values()) == pytest.approx(by_hour, abs=0.001)


GIB = 1 << 30


def _rising(
    spec: MetricSpec, uid: str, start: int, end: int, rate: float, **labels: str
) -> list[ExpositionSample]:
    return [
        counted(spec, uid, rate * (now - start) / SECOND_MS, now, **labels)
        for now in range(start, end + 1, MINUTE_MS)
    ]


def _share(
    uid: str, start: int, end: int, value: float, gpu: str, instance: str = ""
) -> list[ExpositionSample]:
    """The pod holds the GPU; the last sample is not a number, as after a scrape that no longer has it."""
    place = {"gpu_uuid": gpu, "gpu_instance": instance, "resource": "r", "container_names": "main"}
    return [counted(POD_GPU_SHARE, uid, value, now, **place) for now in range(start, end, MINUTE_MS)]


def _gpu(
    gpu: str, ratio: float, used: dict[int, float], total: float, instance: str = ""
) -> list[ExpositionSample]:
    """A GPU from 1:00 to 8:00, with ``used`` GiB in use from each instant on."""
    labels = dict(zip(DEVICE_LABELS, ("n1", gpu, instance), strict=True))
    samples = []
    for now in range(at(1), at(8), MINUTE_MS):
        level = [gib for since, gib in sorted(used.items()) if since <= now][-1]
        values = {GPU_BOARD_RATIO: ratio, GPU_MEMORY_USED: level * GIB, GPU_MEMORY_TOTAL: total * GIB}
        samples += [ExpositionSample(spec, labels, value, now) for spec, value in values.items()]
    return samples


@pytest.fixture(scope="module")
def levels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, int], dict[str, float]]]:
    """Signals of a day by pod and hour, with memory and energy."""
    data = tmp_path_factory.mktemp("levels") / "data"
    tensor = (HOLDER_COUNTERS[GpuMeasure.TENSOR_OBSERVED], HOLDER_COUNTERS[GpuMeasure.TENSOR_ACTIVE])
    samples = [
        *_gpu("GPU-1", 1.0, {at(1): 10, at(2.5): 70, at(2.6): 20}, 80),
        *_gpu("GPU-2", 1.0, {at(1): 40}, 80),
        *_gpu("GPU-3", 3 / 7, {at(1): 30}, 40, instance="1"),
        # Two whole GPUs; the tensor signal of one of them; energy on rows of another method.
        *(sample for gpu in ("GPU-1", "GPU-2") for sample in _share("two", at(2), at(3), 1.0, gpu)),
        *_rising(tensor[0], "two", at(2), at(3), 1.0),
        *_rising(tensor[1], "two", at(2), at(3), 0.25),
        *_rising(POD_HELD, "two", at(2), at(3), 1.0),
        *_rising(POD_HELD, "two", at(2), at(3), 1.0, gpu_uuid="GPU-2"),
        *_rising(POD_ENERGY, "two", at(2), at(3), 500.0, method="weighted"),
        *_rising(POD_ENERGY, "two", at(2), at(3), 0.0, gpu_uuid="GPU-2"),
        # A MIG instance, and a quarter of a GPU.
        *_share("sliced", at(2), at(3), 3 / 7, "GPU-3", "1"),
        *_share("quarter", at(4), at(5), 0.25, "GPU-2"),
        *_share("quarter", at(4), at(5), 0.25, "GPU-2", "gone"),
    ]
    uids = {sample.labels["pod_uid"] for sample in samples if "pod_uid" in sample.labels}
    samples += [sample for uid in sorted(uids) for sample in _since(uid, at(2), at(2), at(5))]
    create_blocks(openmetrics_of(History("c", [Pod(uid, at(2)) for uid in uids], extra=samples)), data)
    with running_prometheus(data) as address, PrometheusClient(address) as client:
        source = PrometheusSource(client, PrometheusSourceSettings(), now=lambda: at(240))
        found = source.read("c", DAY).signals.set_index(["pod_uid", "start_ms"])
        yield {key: row.dropna().to_dict() for key, row in found.iterrows()}  # type: ignore[misc]


def test_memory_is_of_all_gpus_a_pod_holds_and_the_peak_of_one(
    levels: dict[tuple[str, int], dict[str, float]],
) -> None:
    two = levels["two", at(2)]
    assert two["memory_observed_ms"] == pytest.approx(2 * HOUR_MS, rel=0.02)
    # 30 min at 10 GiB, 6 at 70 and 24 at 20 on one, 40 on the other.
    used = (30 * 10 + 6 * 70 + 24 * 20 + 60 * 40) * 60 * 1024
    assert two["memory_used_mib_s"] == pytest.approx(used, rel=0.03)
    assert two["memory_total_mib_s"] == pytest.approx(2 * 80 * 1024 * 3600, rel=0.02)
    assert two["memory_peak_mib"] == 70 * 1024


def test_memory_of_parts_of_boards(levels: dict[tuple[str, int], dict[str, float]]) -> None:
    sliced, quarter = levels["sliced", at(2)], levels["quarter", at(4)]
    assert sliced["memory_observed_ms"] == pytest.approx(3 / 7 * HOUR_MS, rel=0.02)
    assert sliced["memory_used_mib_s"] / sliced["memory_total_mib_s"] == pytest.approx(0.75)
    assert sliced["memory_total_mib_s"] == pytest.approx(40 * 1024 * 3600, rel=0.02), "all of the instance"
    assert quarter["memory_observed_ms"] == pytest.approx(HOUR_MS / 4, rel=0.02), "not of a GPU nobody reads"
    assert quarter["memory_used_mib_s"] == pytest.approx(10 * 1024 * 3600, rel=0.02)
    assert quarter["memory_peak_mib"] == 40 * 1024, "whosever it is"


def test_energy_and_the_tensor_signal_have_coverage_of_their_own(
    levels: dict[tuple[str, int], dict[str, float]],
) -> None:
    two = levels["two", at(2)]
    assert (two["energy_mj"], two["energy_observed_ms"]) == (500.0 * HOUR_MS, HOUR_MS)
    assert (two["tensor_observed_ms"], two["tensor_active_ms"]) == (HOUR_MS, HOUR_MS / 4)
    assert "energy_mj" not in levels["quarter", at(4)]
    assert "observed_ms" not in two
