"""Texts of real dcgm-exporters, read where they lie; they are not part of the project."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from gpucost.contract.dcgm import DcgmField
from gpucost_gpu_exporter.dcgm.scrapes import DcgmDropReason, DcgmScrape, DcgmState, FrameBufferMemory, parse
from gpucost_gpu_exporter.model.holdings import DeviceKey
from gpucost_gpu_exporter.model.readings import GpuSignal
from tests.support.gpu_accounts import power_w
from tests.support.shared import SHARED, needs_shared

SAMPLES = SHARED / "reference" / "dcgm-samples"
MIB = 2**20
A800 = "GPU-1f027ee8-6e1e-2b8c-0108-3d370e5f0418"

pytestmark = needs_shared("reference/dcgm-samples")


def sample(name: str) -> DcgmScrape:
    return parse((SAMPLES / f"{name}.prom").read_text())


def ratios(found: DcgmScrape, device: DeviceKey) -> list[float | None]:
    known = DcgmState().after(found, 0)
    return [known.ratio(device, signal, 0) for signal in GpuSignal]


def only(found: DcgmScrape) -> DeviceKey:
    (device,) = found.values
    return device


def test_every_sample_is_read_by_a_test_here() -> None:
    text = Path(__file__).read_text()
    assert [path.stem for path in SAMPLES.iterdir() if f'"{path.stem}' not in text] == []


@pytest.mark.trap(2, 4, 5, 6)
def test_a_board_in_mig_mode_among_whole_ones() -> None:
    found = sample("mig-a800-mixed-node-complete")
    slices = [DeviceKey(A800, gi) for gi in ("3", "5", "6")]
    assert {key for key in found.values if key.gpu_instance} == set(slices)
    assert len({key.gpu_uuid for key in found.values}) == 8
    assert not any(DcgmField.BUSY in found.values[key] for key in slices)
    assert found.values[DeviceKey(A800)] == {DcgmField.POWER: 78.446, DcgmField.ENERGY: 257_858_316}
    assert all(ratios(found, key) == [0.0, None, 0.0] for key in slices)
    whole = [key for key in found.values if key.gpu_uuid != A800]
    assert all(ratios(found, key) == [0.0, None, 0.0] for key in whole)
    power = sum(row.get(DcgmField.POWER, 0) for row in found.values.values())
    assert power == pytest.approx(78.446 + 55.942 + 53.752 + 56.99 + 58.643 + 54.581 + 57.145 + 55.011)
    assert not found.dropped


@pytest.mark.fault(3)
def test_lines_that_are_no_numbers_are_all_dropped_and_counted() -> None:
    found = sample("malformed-failed-to-convert")
    assert (found.values, found.dropped) == ({}, {DcgmDropReason.UNPARSABLE: 10})
    assert not found.is_empty


@pytest.mark.trap(1)
def test_a_busy_t4_shows_how_far_busy_and_activity_are_apart() -> None:
    found = sample("t4-busy-no-pod-labels-complete")
    device = only(found)
    assert ratios(found, device) == [0.91, None, 0.005822]
    assert found.values[device][DcgmField.GRAPHICS] == 0.156205
    known = DcgmState().after(found, 0)
    assert known.energy_mj(device.gpu_uuid, 0) == 15_152_422_938
    assert known.memory(device, 0) == FrameBufferMemory(5120 * MIB, 15358 * MIB)


@pytest.mark.trap(11)
@pytest.mark.parametrize(
    ("name", "energy_mj", "memory_mib"),
    [
        ("l40s-idle-no-pod-complete", 5_551_899_580, 46067),
        ("l4-idle-complete", 4_742_776, 23033),
        ("t4-idle-excerpt", 48_287_135, 15359),
    ],
)
def test_an_idle_board_is_0_not_missing(name: str, energy_mj: int, memory_mib: int) -> None:
    found = sample(name)
    known = DcgmState().after(found, 0)
    device = only(found)
    assert ratios(found, device) == [0.0, None, 0.0]
    assert known.energy_mj(device.gpu_uuid, 0) == energy_mj
    assert known.memory(device, 0).total_bytes == memory_mib * MIB
    assert not found.dropped


@pytest.mark.trap(8, 11)
def test_a_vgpu_guest_has_busy_time_and_memory_and_nothing_else() -> None:
    found = sample("a100-vgpu-guest-no-power-no-prof")
    device = only(found)
    known = DcgmState().after(found, 0)
    assert ratios(found, device) == [0.0, None, None]
    assert (power_w(known, device.gpu_uuid, 0), known.energy_mj(device.gpu_uuid, 0)) == (None, None)
    assert known.memory(device, 0) == FrameBufferMemory(0, (9323 + 916) * MIB)


@pytest.mark.trap(20, 21)
def test_the_board_with_a_pod_and_the_idle_ones_are_read_alike() -> None:
    found = sample("h100-whole-gpu-one-pod-seven-idle")
    assert len(found.values) == 8
    assert all(
        row.keys() == {DcgmField.BUSY, DcgmField.POWER} and row[DcgmField.BUSY] == 0
        for row in found.values.values()
    )
    assert found.values[DeviceKey("GPU-c4529c8d-69c4-b61d-e0bc-7b2460096005")][DcgmField.POWER] == 113.611


@pytest.mark.trap(20)
def test_idle_boards_that_look_like_the_exporter_s_own_pod_are_still_just_boards() -> None:
    answer = json.loads((SAMPLES / "h100-prometheus-api-idle-gpus-look-like-exporter-pod.json").read_text())
    rows = answer["data"]["result"]
    assert any("dcgm-exporter" in row["metric"]["pod"] for row in rows)
    text = "".join(
        "{}{{{}}} {}\n".format(
            row["metric"]["__name__"],
            ",".join(f'{name}="{value}"' for name, value in row["metric"].items() if name != "__name__"),
            row["value"][1],
        )
        for row in rows
    )
    found = parse(text)
    assert {key.gpu_uuid for key in found.values} == {row["metric"]["UUID"] for row in rows}
    assert not found.dropped


@pytest.mark.trap(10, 21, 22, 31)
@pytest.mark.fault(3)
def test_one_line_of_each_label_dialect() -> None:
    found = sample("label-variants-excerpts")
    assert found.values == {
        DeviceKey("GPU-603a8873-0edd-c157-ce48-2078e8b1a935", "1"): {
            DcgmField.TENSOR: 0,
            DcgmField.GRAPHICS: 0.959228,
        },
        DeviceKey("GPU-265c9814-6156-355b-e589-ff2064894f16"): {DcgmField.POWER: 52.636},
        DeviceKey("GPU-931446e6-0413-2864-5b76-11227dcda4ae"): {DcgmField.GRAPHICS: 0.008246},
        DeviceKey("GPU-d6dd33b9-e50e-997c-f303-c8f7312fa498", "7"): {DcgmField.MEMORY_USED: 8543 * MIB},
    }
    assert found.dropped == Counter({DcgmDropReason.NO_UUID: 1})
