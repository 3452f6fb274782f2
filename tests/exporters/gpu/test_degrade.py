"""When parts of a node fail: what is left goes on, the rest is absent, a metric says what and since when."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from gpucost.contract.gpu_metrics import GpuMeasure
from gpucost_gpu_exporter.metric_families import ExporterSnapshot
from gpucost_gpu_exporter.model.holdings import DeviceKey
from gpucost_gpu_exporter.model.readings import GpuSignal
from tests.support.gpu_accounts import differences
from tests.support.gpu_node import SECOND, START_MS, GpuNode, build_double, gpu_node, of, uid_of
from tests.support.nvml.driver import DeviceLoad, FakeBoard, FakeComputeInstance, FakeInstance

GPU, OTHER = "GPU-one", "GPU-two"
BUSY = {GPU: DeviceLoad(busy=0.5, sm=0.25, tensor=0.125, watts=300.0)}
NO_PERMISSION, UNKNOWN_ERROR = 4, 999


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("library")


@pytest.fixture
def node(tmp_path: Path, builds: Path) -> Iterator[GpuNode]:
    with gpu_node(tmp_path, build_double(builds), FakeBoard(GPU, minor=0), FakeBoard(OTHER, minor=1)) as node:
        yield node


def started(node: GpuNode, *pods: str) -> GpuNode:
    """An exporter that has looked at time 1 and 2, with these pods on the first GPU from time 1."""
    node.pass_time(1)
    node.start()
    node.running.collect()
    for pod in pods:
        node.pod(pod, GPU)
    node.tick()
    return node


def lacks(snapshot: ExporterSnapshot) -> dict[tuple[str, str, str], int]:
    """(device, part, reason) -> when it began, in seconds of the node's time."""
    return {
        ("/".join(filter(None, lack.device)), lack.part, lack.reason): (since_ms - START_MS) // 1000
        for lack, since_ms in snapshot.lacks.items()
    }


def series(node: GpuNode, name: str) -> dict[str, float]:
    """The series of one name, as they are scraped: labels -> value."""
    body, _ = node.exposition.render("")
    lines = (line.rpartition(" ") for line in body.decode().splitlines() if line.startswith(f"{name}{{"))
    return {labels.removeprefix(name): float(value) for labels, _, value in lines}


def gpu(snapshot: ExporterSnapshot, measure: GpuMeasure, uuid: str = GPU) -> float | None:
    """Seconds or joules of a GPU; None where there are none."""
    found = snapshot.accounts.gpus.get(DeviceKey(uuid), {}).get(measure)
    return None if found is None else found / (1_000 if measure is GpuMeasure.ENERGY else SECOND)


def test_nothing_is_missing_on_a_node_that_works(node: GpuNode) -> None:
    found = started(node, "train").ticks(3, BUSY)
    assert lacks(found) == {}
    assert series(node, "gpucost_gpu_exporter_missing_since_timestamp_seconds") == {}


class TestDriver:
    @pytest.mark.fault(1)
    def test_no_driver_at_the_start(self, node: GpuNode) -> None:
        node.driver.loaded = False
        node.start()
        node.pod("train", GPU)
        found = node.ticks(5)
        assert not found.is_up
        assert lacks(found)["", "driver", "DRIVER_NOT_LOADED"] == 0
        assert series(node, "gpucost_nvml_up") == {'{node="node-1"}': 0.0}
        assert series(node, "gpucost_gpu_up") == {}
        assert series(node, "gpucost_pod_gpu_held_seconds_total") == {}
        node.driver.loaded = True
        # The pause before the next try grows to at most a minute.
        found = node.ticks(62, BUSY)
        assert found.is_up
        assert ("", "driver", "DRIVER_NOT_LOADED") not in lacks(found)
        assert of(found, "busy_seconds", pod="train") > 0

    @pytest.mark.fault(1)
    @pytest.mark.trap(13)
    def test_the_driver_is_reloaded_while_a_job_runs(self, node: GpuNode) -> None:
        started(node, "train")
        node.ticks(10, BUSY)
        node.driver.loaded = False
        gone = node.ticks(5)
        down_since = lacks(gone)["", "driver", "DRIVER_NOT_LOADED"]
        assert (gone.is_up, lacks(gone)[GPU, "gpu", "NO_DRIVER"]) == (False, down_since)
        held, energy = of(gone, "held_seconds", pod="train"), of(gone, "energy_joules", pod="train")
        assert held == 16
        assert list(series(node, "gpucost_gpu_up").values()) == [0, 0]
        assert series(node, "gpucost_gpu_busy_seconds_total") == {}
        node.driver.reload()
        back = node.ticks(40, BUSY)
        assert back.is_up
        assert lacks(back) == {}
        assert of(back, "held_seconds", pod="train") == 56
        assert of(back, "energy_joules", pod="train") > energy + 300 * 25
        assert gpu(back, GpuMeasure.OBSERVED) == pytest.approx(51, abs=0.01)
        assert list(series(node, "gpucost_gpu_driver_epoch").values()) == [1, 1]
        assert not list(differences(back.accounts))

    @pytest.mark.fault(1)
    def test_the_time_of_what_is_missing_stands_still_while_it_lasts(self, node: GpuNode) -> None:
        started(node)
        node.driver.loaded = False
        first = lacks(node.tick())["", "driver", "DRIVER_NOT_LOADED"]
        later = lacks(node.ticks(30))["", "driver", "DRIVER_NOT_LOADED"]
        assert first == later == 3
        [shown] = [
            value
            for labels, value in series(node, "gpucost_gpu_exporter_missing_since_timestamp_seconds").items()
            if 'part="driver"' in labels
        ]
        assert shown == START_MS / 1000 + 3

    @pytest.mark.fault(1)
    def test_a_driver_that_hangs(self, node: GpuNode) -> None:
        node.timeout_s, node.first_timeout_s = 1.5, 60.0
        started(node, "train")
        before = node.ticks(3, BUSY)
        observed = gpu(before, GpuMeasure.OBSERVED)
        node.driver.hang("nvmlDeviceGetTotalEnergyConsumption", GPU)
        found = node.tick(1, BUSY)
        assert lacks(found)["", "driver", "HUNG"] == 6
        assert of(found, "held_seconds", pod="train") == of(before, "held_seconds", pod="train") + 1
        assert gpu(found, GpuMeasure.OBSERVED) == observed
        node.driver.release("nvmlDeviceGetTotalEnergyConsumption", GPU)
        found = node.ticks(5, BUSY)
        assert lacks(found) == {}
        assert found.counts.driver_restarts == 1
        assert found.counts.errors["driver", "HUNG"] >= 1
        # The samples of the time before are in the driver's buffer.
        assert gpu(found, GpuMeasure.OBSERVED) == gpu(found, GpuMeasure.HELD)
        assert of(found, "energy_joules", pod="train") == 70 + 300 * 9

    @pytest.mark.fault(1)
    @pytest.mark.trap(14)
    def test_the_xid_that_announces_a_hang_is_shown_while_it_lasts(self, node: GpuNode) -> None:
        node.timeout_s, node.first_timeout_s = 4.0, 60.0
        started(node, "train")
        node.driver.hang("nvmlDeviceGetTotalEnergyConsumption", GPU)
        node.driver.xid(GPU, 119)
        node.driver.xid(OTHER, 95)
        found = node.tick(1, BUSY)
        assert not found.is_up
        shown = {
            f'{{gpu_uuid="{GPU}",node="node-1",xid="119"}}': 1.0,
            f'{{gpu_uuid="{OTHER}",node="node-1",xid="95"}}': 1.0,
        }
        assert series(node, "gpucost_gpu_xid_events_total") == shown
        node.driver.release("nvmlDeviceGetTotalEnergyConsumption", GPU)
        assert node.ticks(5, BUSY).is_up
        assert series(node, "gpucost_gpu_xid_events_total") == shown


class TestLostBoard:
    @pytest.mark.fault(2)
    @pytest.mark.trap(32)
    def test_lost_and_back(self, node: GpuNode) -> None:
        started(node, "train")
        node.ticks(4, BUSY)
        board = node.driver.board(GPU)
        board.lost = True
        node.driver.xid(GPU, 79)
        lost = node.ticks(10, {OTHER: DeviceLoad(busy=1.0)})
        assert lacks(lost) == {(GPU, "gpu", "GPU_IS_LOST"): 7}
        up = series(node, "gpucost_gpu_up")
        assert {labels.partition('gpu_uuid="')[2][:7]: value for labels, value in up.items()} == {
            GPU: 0.0,
            OTHER: 1.0,
        }
        for name in ("busy_seconds", "observed_seconds", "energy_joules", "sm_active_seconds"):
            shown = series(node, f"gpucost_gpu_{name}_total") | series(node, f"gpucost_pod_gpu_{name}_total")
            assert shown
            assert not [labels for labels in shown if GPU in labels]
        assert of(lost, "held_seconds", pod="train") == 15
        assert of(lost, "busy_seconds", gpu=OTHER) == pytest.approx(10, abs=0.1)
        assert lost.counts.errors["gpu", "GPU_IS_LOST"] == 1
        board.lost = False
        back = node.ticks(5, BUSY)
        assert lacks(back) == {}
        assert of(back, "held_seconds", pod="train") == 20
        assert of(back, "busy_seconds", pod="train") == pytest.approx(2 + 2.5, abs=0.6)
        assert not list(differences(back.accounts))

    @pytest.mark.trap(14, 32)
    def test_the_xid_that_came_with_it_is_counted(self, node: GpuNode) -> None:
        started(node, "train")
        node.driver.board(GPU).lost = True
        node.driver.xid(GPU, 79)
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s and not node.tick().accounts.xids:
            time.sleep(0.02)  # events come in a thread of their own, in real time
        assert node.running.source.latest is not None
        assert node.running.source.latest.accounts.xids == {(GPU, 79): 1}

    @pytest.mark.trap(32)
    def test_a_board_that_is_off_the_bus_at_a_restart_is_still_held(self, node: GpuNode) -> None:
        started(node, "train")
        node.ticks(5, BUSY)
        node.stop()
        node.driver.boards = [node.driver.board(OTHER)]
        node.start()
        found = node.ticks(5)
        assert lacks(found)[GPU, "gpu", "GONE"] >= 0
        assert of(found, "held_seconds", pod="train") == 11

    def test_a_board_nobody_holds_is_forgotten_with_its_series(self, node: GpuNode) -> None:
        started(node, "train")
        node.ticks(5, BUSY)
        node.end("train")
        node.stop()
        node.driver.boards = [node.driver.board(OTHER)]
        node.start()
        node.tick()
        node.tick(700)
        found = node.tick()
        assert [board.seen.uuid for board in found.boards] == [OTHER]
        assert not [labels for labels in series(node, "gpucost_gpu_busy_seconds_total") if GPU in labels]


class TestKubelet:
    def test_its_socket_is_gone_and_comes_back(self, node: GpuNode) -> None:
        started(node, "train")
        node.ticks(10, BUSY)
        node.kubelet.stop()
        stands = node.ticks(25, BUSY)
        assert of(stands, "held_seconds", holder="__unknown__") == 0
        since = lacks(stands)["", "kubelet", "no_socket"]
        unknown = node.ticks(30, BUSY)
        assert lacks(unknown)["", "kubelet", "no_socket"] == since
        # 30 s after its last answer the holders are unknown; what was held before stays held.
        held = of(unknown, "held_seconds", pod="train")
        assert of(unknown, "held_seconds", gpu=GPU, holder="__unknown__") == 66 - held > 20
        assert 35 < held <= 46
        assert of(unknown, "busy_seconds", gpu=GPU, method="none") == pytest.approx((66 - held) / 2, abs=0.1)
        assert series(node, "gpucost_pod_gpu_share") == {}
        node.kubelet.start()
        back = node.ticks(20, BUSY)
        assert ("", "kubelet", "no_socket") not in lacks(back)
        assert of(back, "held_seconds", pod="train") == pytest.approx(held + 20, abs=6)
        assert not list(differences(back.accounts))

    def test_it_never_answered(self, node: GpuNode) -> None:
        node.kubelet.fails["List"] = grpc.StatusCode.UNAVAILABLE
        node.start()
        found = node.ticks(3, BUSY)
        assert [part for _, part, _ in lacks(found)] == ["kubelet"]
        assert of(found, "held_seconds", holder="__unknown__") == of(found, "held_seconds") == 4
        assert of(found, "busy_seconds", holder="__unknown__") > 0

    def test_no_list_of_what_it_can_hand_out(self, node: GpuNode) -> None:
        node.kubelet.allocatable = None
        found = started(node, "train").ticks(2, BUSY)
        assert {part for _, part, _ in lacks(found)} == {"allocatable"}
        assert of(found, "held_seconds", pod="train") == 3

    def test_a_device_that_no_board_answers_to(self, node: GpuNode) -> None:
        node.start()
        node.pod("train", "GPU-elsewhere")
        found = node.ticks(3, BUSY)
        assert list(lacks(found)) == [("", "holders", "unknown_device")]
        assert of(found, "held_seconds", holder="__unallocated__") == of(found, "held_seconds") == 6


class TestRefused:
    """One thing that may not be read is missing alone."""

    @pytest.mark.trap(8)
    def test_gpm(self, node: GpuNode) -> None:
        node.driver.fail("nvmlGpmSampleGet", NO_PERMISSION)
        found = started(node, "train").ticks(3, BUSY)
        assert {(part, reason) for uuid, part, reason in lacks(found) if uuid == GPU} == {
            ("sm_active", "NO_PERMISSION"),
            ("tensor_active", "NO_PERMISSION"),
        }
        assert gpu(found, GpuMeasure.BUSY) == pytest.approx(1.5)
        assert gpu(found, GpuMeasure.SM_ACTIVE) is gpu(found, GpuMeasure.SM_OBSERVED) is None
        assert {board.sources[DeviceKey(board.seen.uuid)][GpuSignal.SM] for board in found.boards} == {"none"}

    @pytest.mark.parametrize(
        ("function", "part", "shown"),
        [
            ("nvmlDeviceGetMemoryInfo_v2", "memory", "gpucost_gpu_memory_used_bytes"),
            ("nvmlDeviceGetTotalEnergyConsumption", "energy", "gpucost_gpu_energy_joules_total"),
        ],
    )
    def test_one_reading(self, node: GpuNode, function: str, part: str, shown: str) -> None:
        node.driver.fail(function, NO_PERMISSION, GPU)
        found = started(node, "train").ticks(3, BUSY)
        assert lacks(found) == {(GPU, part, "NO_PERMISSION"): 1}
        assert [labels for labels in series(node, shown) if OTHER in labels]
        assert not [labels for labels in series(node, shown) if GPU in labels]
        node.driver.heal(function, GPU)
        assert lacks(node.ticks(3, BUSY)) == {}
        assert [labels for labels in series(node, shown) if GPU in labels]

    def test_processes_are_not_looked_at(self, node: GpuNode) -> None:
        node.can_see_processes = False
        node.start()
        node.kubelet.allocatable = {"nvidia.com/gpu.shared": [f"{GPU}::{replica}" for replica in range(2)]}
        for replica, pod in enumerate(("first", "second")):
            uid = node.pod(pod, f"{GPU}::{replica}", resource="nvidia.com/gpu.shared")
            node.process(node.driver.board(GPU), 100 + replica, uid)
        load = {GPU: DeviceLoad(busy=1.0, processes={100: 90.0, 101: 10.0})}
        found = node.ticks(5, load)
        assert of(found, "busy_seconds", pod="first") == of(found, "busy_seconds", pod="second") == 2
        assert of(found, "busy_seconds", gpu=GPU, method="weighted") == 0
        assert series(node, "gpucost_gpu_processes") == {}

    def test_utilization_of_processes(self, node: GpuNode) -> None:
        node.driver.fail("nvmlDeviceGetProcessUtilization", NO_PERMISSION)
        found = started(node, "train").ticks(3, BUSY)
        assert {lack[1:] for lack in lacks(found)} == {("process_utilization", "NO_PERMISSION")}
        assert of(found, "busy_seconds", pod="train") == pytest.approx(1.5)


class TestState:
    def test_it_cannot_be_written(self, node: GpuNode) -> None:
        node.state_dir = node.folder / "state"
        node.state_dir.write_text("a file where the folder should be")
        found = started(node, "train").ticks(5, BUSY)
        assert list(lacks(found)) == [("", "state_file", "not_writable")]
        assert of(found, "held_seconds", pod="train") == 6

    def test_it_is_not_wanted(self, node: GpuNode) -> None:
        node.state_dir = None
        assert list(lacks(started(node).tick())) == [("", "state_file", "not_configured")]


class TestMig:
    @pytest.mark.trap(4)
    def test_slices_without_gpm_have_no_signal_and_are_held(self, tmp_path: Path, builds: Path) -> None:
        part = FakeInstance(1, 3, "3g.40gb", [FakeComputeInstance("MIG-a", slices=3)], gpm=None)
        sliced = FakeBoard(GPU, minor=0, mig=True, instances=[part])
        with gpu_node(tmp_path, build_double(builds), sliced) as node:
            node.start()
            node.pod("train", "MIG-a", resource="nvidia.com/mig-3g.40gb")
            found = node.ticks(7, {(GPU, 1): DeviceLoad(busy=1.0)})
        assert of(found, "held_seconds", pod="train", instance="1") == pytest.approx(3, abs=1e-5)
        assert of(found, "held_seconds", holder="__unpartitioned__") == pytest.approx(4, abs=1e-5)
        assert GpuMeasure.BUSY not in found.accounts.gpus[DeviceKey(GPU, "1")]
        assert {part for place, part, _ in lacks(found) if place == f"{GPU}/1"} == {
            "busy",
            "sm_active",
            "tensor_active",
            "process_utilization",
        }
        assert uid_of("train") in {row.who.pod.uid for row in found.accounts.rows}
