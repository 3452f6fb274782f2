"""A snapshot as it is scraped."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from gpucost.contract.gpu_metrics import GPU_EXPORTER_METRICS, AttributionMethod, GpuMeasure, HolderKind
from gpucost_exporter_base.exposition import MetricExposition
from gpucost_gpu_exporter.metering.accounts import (
    UNPARTITIONED,
    CounterRow,
    GpuAccounts,
    GpuUser,
)
from gpucost_gpu_exporter.metering.gpu_state import GpuState
from gpucost_gpu_exporter.metering.missing_parts import (
    NODE,
    MissingPart,
    MissingParts,
    missing_parts_of,
)
from gpucost_gpu_exporter.metric_families import (
    ExporterSnapshot,
    GpuView,
    SelfCounts,
    SnapshotSource,
)
from gpucost_gpu_exporter.model.holdings import (
    SECOND_NS,
    DeviceHolding,
    DeviceKey,
    PodRef,
)
from gpucost_gpu_exporter.model.readings import (
    GpuReading,
    GpuSignal,
    InstanceReading,
    ReadingPart,
    SignalSource,
)
from tests.support.prometheus import PROMTOOL, needs_prometheus

GOLDEN = Path(__file__).parent / "golden" / "snapshot.prom"
NOW_MS = 1_793_491_200_500
WHOLE, SLICED, LOST = DeviceKey("GPU-1"), DeviceKey("GPU-2"), DeviceKey("GPU-3")
SLICE = DeviceKey("GPU-2", "1")
TRAIN, EVAL = PodRef("team", "train", "uid-train"), PodRef("team", "eval", "uid-eval")

SECONDS = {
    GpuMeasure.HELD: 8,
    GpuMeasure.OBSERVED: 8,
    GpuMeasure.BUSY: 4,
    GpuMeasure.SM_OBSERVED: 8,
    GpuMeasure.SM_ACTIVE: 2,
    GpuMeasure.TENSOR_OBSERVED: 8,
    GpuMeasure.TENSOR_ACTIVE: 1,
}
BOARDS = (
    GpuReading("GPU-1", 0, "NVIDIA H100", "0000:01:00.0", memory_used_bytes=1024, memory_total_bytes=4096),
    GpuReading(
        "GPU-2",
        1,
        "NVIDIA H100",
        "0000:02:00.0",
        mig=True,
        memory_used_bytes=3000,
        memory_total_bytes=7000,
        instances=(InstanceReading(1, {"MIG-a": 3}, 3, 7, "3g.40gb", 300, 3000),),
    ),
    GpuReading("GPU-3", 2, "NVIDIA H100", "0000:03:00.0", memory_used_bytes=1, memory_total_bytes=4096),
)


def row(pod: PodRef, device: DeviceKey, method: AttributionMethod) -> CounterRow:
    return CounterRow(GpuUser(HolderKind.POD, pod), device, method)


def accounts() -> GpuAccounts:
    found = GpuAccounts()
    found.saw(EVAL, NOW_MS - 900_000, 0)
    found.add(WHOLE, GpuMeasure.HELD, 3 * SECOND_NS, {row(EVAL, WHOLE, AttributionMethod.EXACT): 1})
    found.retire(SECOND_NS, 0)
    found.saw(TRAIN, NOW_MS - 60_000, SECOND_NS)
    train, part = row(TRAIN, WHOLE, AttributionMethod.EXACT), row(TRAIN, SLICE, AttributionMethod.NONE)
    for measure, seconds in SECONDS.items():
        found.add(WHOLE, measure, seconds * SECOND_NS, {train: 1})
    found.add(WHOLE, GpuMeasure.ENERGY, 2_500_000, {train: 1})
    found.add(SLICE, GpuMeasure.HELD, 3 * SECOND_NS, {part: 1})
    found.add(
        SLICED,
        GpuMeasure.HELD,
        4 * SECOND_NS,
        {CounterRow(UNPARTITIONED, SLICED, AttributionMethod.EXACT): 1},
    )
    found.add(LOST, GpuMeasure.HELD, 7 * SECOND_NS, {row(TRAIN, LOST, AttributionMethod.NONE): 1})
    found.add(LOST, GpuMeasure.BUSY, 5 * SECOND_NS, {row(TRAIN, LOST, AttributionMethod.EXACT): 1})
    found.throttled_ns = {("GPU-1", "sw_power_cap"): SECOND_NS // 2, ("GPU-3", "sw_power_cap"): SECOND_NS}
    found.xids = {("GPU-3", 79): 1}
    return found


def states() -> list[GpuState]:
    whole, sliced, lost = (GpuState(board, 0) for board in BOARDS)
    whole.epoch, lost.lost = 1, "GPU_IS_LOST"
    known = whole.device(WHOLE)
    known.sources = {
        GpuSignal.BUSY: SignalSource.NVML_SAMPLES,
        GpuSignal.SM: SignalSource.GPM,
        GpuSignal.TENSOR: SignalSource.GPM,
    }
    known.owners = {"pod": 2, "outside": 1}
    return [whole, sliced, lost]


def snapshot() -> ExporterSnapshot:
    return ExporterSnapshot(
        version=7,
        node="node-1",
        at_ms=NOW_MS,
        is_up=True,
        driver_version="580.1",
        accounts=accounts(),
        boards=tuple(map(GpuView.of, states())),
        holdings=(
            DeviceHolding(TRAIN, WHOLE, Fraction(1), "nvidia.com/gpu", ("init", "main")),
            DeviceHolding(TRAIN, SLICE, Fraction(1, 2), "nvidia.com/mig-3g.40gb.shared", ("main",)),
        ),
        lacks={
            MissingPart(LOST, "gpu", "GPU_IS_LOST"): NOW_MS - 7_000,
            MissingPart(NODE, "kubelet", "refused"): NOW_MS,
        },
        counts=SelfCounts(42, {("gpu", "GPU_IS_LOST"): 7}, {("nvml", "out_of_range"): 2}, 1),
    )


def exposed(shown: ExporterSnapshot | None) -> str:
    source = SnapshotSource()
    source.latest = shown
    body, _ = MetricExposition([source]).render("")
    return body.decode()


def samples(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def values(text: str, name: str) -> Mapping[str, float]:
    found = (line.rpartition(" ") for line in samples(text) if line.startswith(f"{name}{{"))
    return {labels.removeprefix(name): float(value) for labels, _, value in found}


def test_what_is_scraped() -> None:
    assert samples(exposed(snapshot())) == GOLDEN.read_text("utf-8").splitlines()


def test_every_metric_of_the_contract_is_there_and_no_other() -> None:
    text = exposed(snapshot())
    named = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert named == {spec.name for spec in GPU_EXPORTER_METRICS}


@needs_prometheus
def test_promtool_has_nothing_to_say() -> None:
    found = subprocess.run(
        [PROMTOOL or "promtool", "check", "metrics"],
        input=exposed(snapshot()),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_nothing_before_the_first_snapshot() -> None:
    source = SnapshotSource()
    assert (source.version, list(source.families())) == (0, [])
    assert all(line.startswith("gpucost_exporter_") for line in samples(exposed(None)))


def test_a_rendering_is_used_again_until_the_next_snapshot() -> None:
    source = SnapshotSource()
    source.latest = snapshot()
    exposition = MetricExposition([source])
    first = exposition.render("")[0]
    assert exposition.render("")[0] == first
    source.latest = replace(snapshot(), version=8, at_ms=NOW_MS + 1000)
    assert exposition.render("")[0] != first


@pytest.mark.trap(32)
@pytest.mark.fault(2)
def test_a_lost_board_shows_that_it_is_held_and_nothing_measured() -> None:
    about = [line for line in samples(exposed(snapshot())) if 'gpu_uuid="GPU-3"' in line]
    assert {line.partition("{")[0] for line in about} == {
        "gpucost_gpu_up",
        "gpucost_gpu_present_seconds_total",
        "gpucost_pod_gpu_held_seconds_total",
        "gpucost_gpu_xid_events_total",
        "gpucost_gpu_exporter_missing_since_timestamp_seconds",
    }


def test_nor_does_a_board_that_was_forgotten() -> None:
    shown = snapshot()
    text = exposed(replace(shown, boards=shown.boards[:2]))
    about = {line.partition("{")[0] for line in samples(text) if 'gpu_uuid="GPU-3"' in line}
    assert "gpucost_pod_gpu_held_seconds_total" in about
    assert not about & {
        "gpucost_gpu_busy_seconds_total",
        "gpucost_pod_gpu_busy_seconds_total",
        "gpucost_gpu_up",
    }


@pytest.mark.trap(6)
def test_memory_of_a_mig_board_is_not_beside_that_of_its_slices() -> None:
    used = values(exposed(snapshot()), "gpucost_gpu_memory_used_bytes")
    assert sum(used.values()) == 1024 + 300
    assert not [labels for labels in used if 'gpu_instance="",gpu_uuid="GPU-2"' in labels]


def test_the_share_of_a_replica_of_a_slice_is_of_the_board() -> None:
    shares = values(exposed(snapshot()), "gpucost_pod_gpu_share")
    assert [share for labels, share in shares.items() if "GPU-2" in labels] == [pytest.approx(3 / 14)]


class TestLacks:
    def test_each_has_the_time_when_it_began(self) -> None:
        kubelet, driver = MissingPart(NODE, "kubelet", "refused"), MissingPart(NODE, "driver", "HUNG")
        lacks = MissingParts()
        assert lacks.update([kubelet], 1) == {kubelet: 1}
        assert lacks.update([driver, kubelet, kubelet], 2) == {driver: 2, kubelet: 1}
        assert lacks.update([driver], 3) == {driver: 2}
        assert lacks.update([kubelet], 4) == {kubelet: 4}

    def test_what_another_source_fills_is_not_missing(self) -> None:
        board = replace(
            BOARDS[0],
            memory_used_bytes=5,
            missing=dict.fromkeys(
                (ReadingPart.SM, ReadingPart.TENSOR, ReadingPart.MEMORY, ReadingPart.ENERGY), "NOT_SUPPORTED"
            ),
        )
        state = GpuState(board, 0)
        state.device(WHOLE).sources[GpuSignal.SM] = SignalSource.DCGM
        assert {lack.part for lack in missing_parts_of(state)} == {"tensor_active", "energy"}
