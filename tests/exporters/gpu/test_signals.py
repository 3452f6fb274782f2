"""Which source feeds which signal: NVML first, a dcgm-exporter for what NVML lacks, never a blend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpucost.contract.gpu_metrics import GpuMeasure
from gpucost_gpu_exporter.dcgm.endpoint import DcgmEndpoint, DcgmSecondSource
from gpucost_gpu_exporter.metric_families import ExporterSnapshot
from gpucost_gpu_exporter.model.holdings import DeviceKey
from tests.support.gpu_node import SECOND, GpuNode, build_double, gpu_node, of
from tests.support.http import Reply, ScriptedServer, scripted_server
from tests.support.nvml.driver import DeviceLoad, FakeBoard, FakeComputeInstance, FakeInstance

GPU = "GPU-one"
BOARD = DeviceKey(GPU)
BUSY = {GPU: DeviceLoad(busy=0.5, sm=0.25, tensor=0.125, watts=300.0)}
SM_ACTIVE, TENSOR_ACTIVE = "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"
GR_ENGINE, GPU_UTIL = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL"
ENERGY, XID = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_XID_ERRORS"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_double(tmp_path_factory.mktemp("library"))


class Dcgm:
    """A dcgm-exporter: ``shows`` is what it prints from the next poll on."""

    def __init__(self, node: GpuNode, server: ScriptedServer) -> None:
        self.server = server
        self.endpoint = DcgmEndpoint(f"{server.url}/metrics", clock=node.boot_ns)
        node.dcgm = DcgmSecondSource(self.endpoint)

    def shows(self, *rows: str, status: int = 200) -> None:
        self.server.replies = [Reply(status=status, body="\n".join([*rows, ""]), content_type="text/plain")]
        self.endpoint.poll()


def row(name: str, value: float | str, instance: str = "", pod: str = "somebody-else") -> str:
    """A line of dcgm-exporter, with labels of a pod that must not be looked at."""
    return f'{name}{{gpu="0",UUID="{GPU}",GPU_I_ID="{instance}",namespace="team",pod="{pod}"}} {value}'


@contextmanager
def with_dcgm(folder: Path, library: Path, board: FakeBoard) -> Iterator[tuple[GpuNode, Dcgm]]:
    with (
        gpu_node(folder, library, board) as node,
        scripted_server(Reply(body="", content_type="text/plain")) as server,
    ):
        dcgm = Dcgm(node, server)
        yield node, dcgm


def before_hopper(**more: object) -> FakeBoard:
    return FakeBoard(GPU, product="NVIDIA A100-SXM4-80GB", minor=0, gpm=None, **more)  # type: ignore[arg-type]


def begin(node: GpuNode) -> None:
    """The exporter has looked once, and the pod holds the GPU."""
    node.pass_time(1)
    node.start()
    node.pod("train", GPU)


def sources(snapshot: ExporterSnapshot, device: DeviceKey = BOARD) -> dict[str, str]:
    [board] = snapshot.boards
    return {str(signal): str(source) for signal, source in board.sources[device].items()}


def lacks(snapshot: ExporterSnapshot) -> set[tuple[str, str]]:
    return {(lack.part, lack.reason) for lack in snapshot.lacks}


def measures(snapshot: ExporterSnapshot, device: DeviceKey = BOARD) -> dict[GpuMeasure, int]:
    return snapshot.accounts.gpus.get(device, {})


class TestNvml:
    @pytest.mark.trap(1, 8)
    def test_on_hopper_all_come_from_nvml_each_under_its_own_name(
        self, tmp_path: Path, library: Path
    ) -> None:
        with with_dcgm(tmp_path, library, FakeBoard(GPU, minor=0)) as (node, dcgm):
            dcgm.shows(row(SM_ACTIVE, 0.9), row(GPU_UTIL, 99), row(GR_ENGINE, 0.98))
            begin(node)
            found = node.ticks(8, BUSY)
            body, _ = node.exposition.render("")
        assert sources(found) == {"busy": "nvml_samples", "sm_active": "gpm", "tensor_active": "gpm"}
        assert [of(found, name, pod="train") for name in ("busy_seconds", "sm_active_seconds")] == [4, 2]
        assert of(found, "tensor_active_seconds", pod="train") == 1
        labels = f'gpu_instance="",gpu_uuid="{GPU}",node="node-1",signal="sm_active",source="gpm"'
        assert f"gpucost_gpu_signal{{{labels}}} 1.0" in body.decode()

    @pytest.mark.trap(3)
    def test_tensor_activity_of_a_healthy_training_is_passed_on_as_it_is(
        self, tmp_path: Path, library: Path
    ) -> None:
        load = {GPU: DeviceLoad(busy=1.0, sm=0.75, tensor=0.25, watts=600.0)}
        with gpu_node(tmp_path, library, FakeBoard(GPU, minor=0)) as node:
            begin(node)
            found = node.ticks(4, load)
        assert of(found, "tensor_active_seconds", pod="train") == 1
        assert of(found, "tensor_observed_seconds", pod="train") == 4

    @pytest.mark.trap(4, 8, 11)
    def test_neither_gpm_nor_dcgm_leaves_sm_absent_and_not_0(self, tmp_path: Path, library: Path) -> None:
        with gpu_node(tmp_path, library, before_hopper()) as node:
            begin(node)
            found = node.ticks(4, BUSY)
            body, _ = node.exposition.render("")
        assert sources(found) == {"busy": "nvml_samples", "sm_active": "none", "tensor_active": "none"}
        assert {"sm_active", "tensor_active"} == {part for part, _ in lacks(found)}
        text = body.decode()
        assert "gpucost_pod_gpu_busy_seconds_total{" in text
        for name in ("sm_active", "sm_observed", "tensor_active", "tensor_observed"):
            assert f"_gpu_{name}_seconds_total{{" not in text


class TestDcgm:
    @pytest.mark.trap(8, 20)
    def test_it_fills_sm_before_hopper_and_its_pods_are_not_believed(
        self, tmp_path: Path, library: Path
    ) -> None:
        with with_dcgm(tmp_path, library, before_hopper()) as (node, dcgm):
            dcgm.shows(row(SM_ACTIVE, 0.25), row(TENSOR_ACTIVE, 0.125), row(GPU_UTIL, 100))
            begin(node)
            found = node.ticks(8, BUSY)
        assert sources(found) == {"busy": "nvml_samples", "sm_active": "dcgm", "tensor_active": "dcgm"}
        assert of(found, "busy_seconds", pod="train") == 4
        assert of(found, "sm_active_seconds", pod="train") == 2
        assert of(found, "sm_observed_seconds", pod="train") == 8
        assert of(found, "tensor_active_seconds", pod="train") == 1
        assert of(found, "busy_seconds", pod="somebody-else") == 0
        assert lacks(found) == set()

    @pytest.mark.trap(23)
    def test_copies_of_a_shared_gpus_row_are_one(self, tmp_path: Path, library: Path) -> None:
        with with_dcgm(tmp_path, library, before_hopper()) as (node, dcgm):
            dcgm.shows(*(row(SM_ACTIVE, 0.5, pod=pod) for pod in ("a", "b", "c")))
            begin(node)
            found = node.ticks(4, BUSY)
        assert of(found, "sm_active_seconds") == 2

    @pytest.mark.trap(34)
    def test_when_it_goes_down_its_values_grow_old_and_the_signal_ends(
        self, tmp_path: Path, library: Path
    ) -> None:
        with with_dcgm(tmp_path, library, before_hopper()) as (node, dcgm):
            dcgm.shows(row(SM_ACTIVE, 0.5))
            begin(node)
            node.ticks(10, BUSY)
            dcgm.shows(status=503)
            found = node.ticks(100, BUSY)
            assert ("dcgm", "http_status") in lacks(found)
            assert ("sm_active", "NOT_SUPPORTED") in lacks(found)
            assert sources(found)["sm_active"] == "none"
            observed = of(found, "sm_observed_seconds", pod="train")
            assert observed == pytest.approx(60, abs=2)
            assert of(found, "busy_seconds", pod="train") == 55
            [since] = {since for lack, since in found.lacks.items() if lack.part == "dcgm"}
            assert {since for lack, since in node.tick(1, BUSY).lacks.items() if lack.part == "dcgm"} == {
                since
            }
            dcgm.shows(row(SM_ACTIVE, 0.5))
            back = node.ticks(10, BUSY)
        assert lacks(back) == {("tensor_active", "NOT_SUPPORTED")}
        assert sources(back)["sm_active"] == "dcgm"
        assert of(back, "sm_observed_seconds", pod="train") == observed + 10

    def test_why_it_is_down_is_the_last_failure(self, tmp_path: Path, library: Path) -> None:
        with with_dcgm(tmp_path, library, before_hopper()) as (node, dcgm):
            begin(node)
            assert ("dcgm", "starting") in lacks(node.tick())
            dcgm.shows(status=503)
            assert ("dcgm", "http_status") in lacks(node.tick())
            dcgm.shows()
            assert ("dcgm", "empty") in lacks(node.tick())
            dcgm.shows(row(SM_ACTIVE, 0.5))
            assert "dcgm" not in {part for part, _ in lacks(node.tick())}
            found = node.tick(70)
        assert ("dcgm", "stale") in lacks(found)
        assert found.counts.errors["dcgm", "http_status"] == 1

    @pytest.mark.trap(9)
    def test_profiling_counters_that_stick_at_0_are_not_believed(self, tmp_path: Path, library: Path) -> None:
        with with_dcgm(tmp_path, library, before_hopper()) as (node, dcgm):
            begin(node)
            for _ in range(3):
                dcgm.shows(row(SM_ACTIVE, "0.000000"), row(GR_ENGINE, "0.000000"), row(GPU_UTIL, 97))
                found = node.ticks(5, BUSY)
            before = of(found, "sm_observed_seconds")
            stuck = node.ticks(20, BUSY)
            assert sources(stuck)["sm_active"] == "none"
            assert ("dcgm", "prof_stuck") in lacks(stuck)
            assert before <= of(stuck, "sm_observed_seconds") <= before + 1
            dcgm.shows(row(SM_ACTIVE, 0.5), row(GR_ENGINE, 0.6), row(GPU_UTIL, 97))
            right = node.ticks(4, BUSY)
        assert ("dcgm", "prof_stuck") not in lacks(right)
        assert of(right, "sm_active_seconds") == 2

    @pytest.mark.trap(2, 4, 5)
    def test_slices_without_gpm_have_its_graphics_engine_as_busy(self, tmp_path: Path, library: Path) -> None:
        part = FakeInstance(1, 3, "3g.40gb", [FakeComputeInstance("MIG-a", slices=3)], gpm=None)
        sliced = before_hopper(mig=True, instances=[part])
        with with_dcgm(tmp_path, library, sliced) as (node, dcgm):
            dcgm.shows(row(GR_ENGINE, 0.5, "1"), row(SM_ACTIVE, 0.25, "1"))
            node.start()
            node.pod("train", "MIG-a", resource="nvidia.com/mig-3g.40gb")
            found = node.ticks(14)
        assert sources(found, DeviceKey(GPU, "1"))["busy"] == "dcgm"
        assert of(found, "held_seconds", pod="train") == pytest.approx(6, abs=1e-4)
        assert of(found, "busy_seconds", pod="train") == pytest.approx(3, abs=1e-4)
        assert of(found, "sm_active_seconds", pod="train") == pytest.approx(1.5, abs=1e-4)

    def test_memory_and_energy_that_nvml_refuses(self, tmp_path: Path, library: Path) -> None:
        board = before_hopper(energy_mj=None, watts=None)
        memory = [row("DCGM_FI_DEV_FB_USED", 1024), row("DCGM_FI_DEV_FB_TOTAL", 81920)]
        with with_dcgm(tmp_path, library, board) as (node, dcgm):
            node.driver.fail("nvmlDeviceGetMemoryInfo_v2", 4)
            node.driver.fail("nvmlDeviceGetMemoryInfo", 4)
            begin(node)
            found = node.tick()
            assert ("memory", "NO_PERMISSION") in lacks(found)
            for tick in range(4):  # a new value every 30 s, as dcgm-exporter collects
                dcgm.shows(*memory, row(ENERGY, 10**9 + tick * 30 * 400_000))
                found = node.ticks(30, BUSY)
        assert found.boards[0].seen.memory_used_bytes == 1 << 30
        assert ("memory", "NO_PERMISSION") not in lacks(found)
        assert of(found, "energy_joules", pod="train") == 3 * 30 * 400

    @pytest.mark.trap(14)
    def test_xid_errors_that_nvml_does_not_tell_are_counted_when_they_change(
        self, tmp_path: Path, library: Path
    ) -> None:
        with with_dcgm(tmp_path, library, before_hopper(event_types=0)) as (node, dcgm):
            dcgm.shows(row(XID, 13), row(SM_ACTIVE, 0.5))
            begin(node)
            assert node.ticks(3).accounts.xids == {}
            for _ in range(3):
                dcgm.shows(row(XID, 79), row(SM_ACTIVE, 0.5))
                found = node.ticks(3)
        assert found.accounts.xids == {(GPU, 79): 1}


@pytest.mark.fault(5)
class TestBoth:
    """Both sources over an outage of the driver: no second is counted twice."""

    def outage(
        self, node: GpuNode, dcgm: Dcgm
    ) -> tuple[ExporterSnapshot, ExporterSnapshot, ExporterSnapshot]:
        begin(node)
        before = node.ticks(10, BUSY)
        node.driver.fail("nvmlDeviceGetCount", 999)
        for tick in range(4):
            dcgm.shows(row(SM_ACTIVE, 0.75), row(GPU_UTIL, 50), row(ENERGY, 10**9 + tick * 5 * 300_000))
            during = node.ticks(5, BUSY)
        node.driver.heal("nvmlDeviceGetCount")
        return before, during, node.ticks(40, BUSY)

    def test_time_is_observed_once(self, tmp_path: Path, library: Path) -> None:
        with with_dcgm(tmp_path, library, FakeBoard(GPU, minor=0)) as (node, dcgm):
            before, during, after = self.outage(node, dcgm)
        assert during.boards[0].lost == "NO_DRIVER"
        assert of(before, "observed_seconds") == 10
        assert sources(during)["sm_active"] == "dcgm"
        assert of(during, "sm_observed_seconds") == 30
        assert sources(after) == {"busy": "nvml_samples", "sm_active": "gpm", "tensor_active": "gpm"}
        found = measures(after)
        assert found[GpuMeasure.HELD] == 70 * SECOND
        assert 60 * SECOND <= found[GpuMeasure.SM_OBSERVED] <= found[GpuMeasure.HELD]
        assert 60 * SECOND <= found[GpuMeasure.OBSERVED] <= found[GpuMeasure.HELD]
        assert found[GpuMeasure.TENSOR_OBSERVED] < 55 * SECOND
        assert of(after, "busy_seconds") == pytest.approx(of(after, "observed_seconds") / 2, abs=0.1)

    def test_energy_counts_once(self, tmp_path: Path, library: Path) -> None:
        with with_dcgm(tmp_path, library, FakeBoard(GPU, minor=0)) as (node, dcgm):
            *_, after = self.outage(node, dcgm)
        truth = 70 * 300
        assert 0.75 * truth < of(after, "energy_joules") <= truth
