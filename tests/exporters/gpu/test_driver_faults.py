"""What goes wrong with a driver, through the real driver process over the stand-in driver."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucost_gpu_exporter.driver_link import DriverDown, DriverLink
from gpucost_gpu_exporter.model.readings import SignalActivity
from tests.support.driver_process import SECOND, Node, child_environment, driver_node
from tests.support.nvml.build import build_double
from tests.support.nvml.driver import DeviceLoad, FakeBoard, FakeDriver, FakeProcess

GPU = "GPU-8f1c0d2e-0000-4000-8000-000000000001"
OTHER = "GPU-8f1c0d2e-0000-4000-8000-000000000002"
GIB = 1 << 30


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("library")


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    driver = FakeDriver(tmp_path / "nvml.state", [FakeBoard(GPU), FakeBoard(OTHER)])
    driver.advance(SECOND)
    return driver


@pytest.fixture
def node(driver: FakeDriver, builds: Path) -> Iterator[Node]:
    with driver_node(driver, build_double(builds)) as node:
        yield node


def code_of(node: Node) -> str:
    with pytest.raises(DriverDown) as down:
        node.look()
    return down.value.code


class TestDriver:
    @pytest.mark.fault(1)
    def test_no_library(self, driver: FakeDriver, tmp_path: Path) -> None:
        driver.write()
        environment = child_environment(driver, tmp_path)
        link = DriverLink(environment=environment, random=lambda: 1.0, timeout_s=20)
        with pytest.raises(DriverDown, match="NVML Shared Library Not Found") as down:
            link.look(0, False)
        assert down.value.code == "LIBRARY_NOT_FOUND"
        link.close()

    @pytest.mark.fault(1)
    def test_a_driver_that_comes_later_is_found(self, node: Node) -> None:
        node.driver.loaded = False
        assert code_of(node) == "DRIVER_NOT_LOADED"
        node.driver.loaded = True
        assert len(node.look().boards) == 2

    @pytest.mark.fault(1)
    @pytest.mark.trap(13)
    def test_a_reloaded_driver_is_met_by_a_new_process(self, node: Node) -> None:
        node.look()
        assert node.board({GPU: DeviceLoad(watts=900.0)}).energy_mj == 970_000
        node.driver.reload()
        assert code_of(node) == "DRIVER_NOT_LOADED"
        assert node.board({GPU: DeviceLoad(watts=100.0)}).energy_mj == 100_000
        assert node.link.restarts == 1
        assert node.board({GPU: DeviceLoad(busy=0.5)}).activity["busy"].active_ns == SECOND // 2

    def test_no_boards_is_an_error_and_not_an_idle_node(self, node: Node) -> None:
        boards, node.driver.boards = node.driver.boards, []
        assert code_of(node) == "NO_GPUS"
        node.driver.boards = boards
        assert len(node.look().boards) == 2

    def test_a_library_of_another_version_than_the_driver(self, node: Node) -> None:
        node.driver.fail("nvmlInitWithFlags", 18)
        assert code_of(node) == "LIB_RM_VERSION_MISMATCH"


class TestHanging:
    @pytest.mark.fault(1)
    def test_a_wedged_call_is_killed_in_time_and_the_next_process_works(
        self, driver: FakeDriver, builds: Path
    ) -> None:
        with driver_node(driver, build_double(builds), timeout_s=3.0) as node:
            node.look()
            child = node.link._child
            assert child is not None
            driver.hang("nvmlDeviceGetTotalEnergyConsumption", GPU)
            assert code_of(node) == "HUNG"
            with pytest.raises(ProcessLookupError):
                os.kill(child.pid, 0)
            driver.release("nvmlDeviceGetTotalEnergyConsumption", GPU)
            board = node.board({GPU: DeviceLoad(busy=1.0)})
            assert board.activity["busy"] == SignalActivity(SECOND, SECOND, "nvml_samples")

    @pytest.mark.fault(1)
    @pytest.mark.trap(14)
    def test_events_that_come_with_a_hang_are_told_and_once(self, driver: FakeDriver, builds: Path) -> None:
        with driver_node(driver, build_double(builds), timeout_s=4.0) as node:
            node.look()
            driver.hang("nvmlDeviceGetTotalEnergyConsumption", GPU)
            driver.xid(GPU, 119)
            driver.xid(OTHER, 95)
            assert code_of(node) == "HUNG"
            assert node.link.take_xids() == {(GPU, 119): 1, (OTHER, 95): 1}
            driver.release("nvmlDeviceGetTotalEnergyConsumption", GPU)
            node.look()
            assert not node.link.take_xids()

    def test_a_wait_for_events_that_hangs_holds_up_nothing(self, node: Node) -> None:
        node.driver.hang("nvmlEventSetWait_v2")
        assert node.look().boards[0].energy_mj is not None
        node.link.close()
        assert node.link.left_behind == 0


class TestLostBoard:
    @pytest.mark.fault(2)
    @pytest.mark.trap(32)
    def test_a_lost_board_is_named_and_the_other_goes_on(self, node: Node) -> None:
        node.look()
        node.board()
        node.driver.board(GPU).lost = True
        for _ in range(12):  # past the next listing of the GPUs
            reading = node.step({OTHER: DeviceLoad(busy=0.5)})
            lost, other = reading.boards
            assert (lost.uuid, lost.lost, lost.minor) == (GPU, "GPU_IS_LOST", 0)
            assert (lost.energy_mj, lost.activity, lost.throttled_ns) == (None, {}, {})
            assert other.activity["busy"] == SignalActivity(SECOND, SECOND // 2, "nvml_samples")
        assert node.link.restarts == 0

    @pytest.mark.trap(14, 32)
    def test_the_event_that_came_with_the_loss_is_told(self, node: Node) -> None:
        node.look()
        node.driver.xid(GPU, 79)
        node.driver.board(GPU).lost = True
        told, deadline_s = [], time.monotonic() + 60
        while not told and time.monotonic() < deadline_s:
            time.sleep(0.02)
            assert node.look().boards[0].lost == "GPU_IS_LOST"
            told += node.link.take_xids()
        assert told == [(GPU, 79)]

    @pytest.mark.fault(2)
    def test_a_board_that_is_back_is_read_again(self, node: Node) -> None:
        node.look()
        node.driver.board(GPU).lost = True
        node.board()
        node.driver.board(GPU).lost = False
        back = node.board()
        assert (back.lost, "sm_active" in back.activity, back.missing) == ("", False, {})
        board = node.board({GPU: DeviceLoad(busy=0.5, sm=0.25)})
        assert board.activity["busy"] == SignalActivity(SECOND, SECOND // 2, "nvml_samples")
        assert board.activity["sm_active"] == SignalActivity(SECOND, SECOND // 4, "gpm")

    def test_a_board_lost_in_the_middle_of_a_look_is_lost_whole(self, node: Node) -> None:
        node.look()
        node.driver.fail("nvmlDeviceGetTotalEnergyConsumption", 15, GPU)
        assert node.board().lost == "GPU_IS_LOST"

    def test_a_board_that_is_no_longer_listed_is_lost(self, node: Node) -> None:
        node.look()
        node.driver.boards = [node.driver.board(OTHER)]
        first, second = node.step(seconds=11).boards
        assert (first.uuid, first.lost, second.lost) == (GPU, "NOT_FOUND", "")

    @pytest.mark.trap(12)
    def test_another_order_of_the_boards_changes_nothing(self, node: Node) -> None:
        node.look()
        node.driver.boards.reverse()
        for _ in range(12):
            reading = node.step({GPU: DeviceLoad(busy=0.5)})
        by_uuid = {board.uuid: board for board in reading.boards}
        assert by_uuid[GPU].activity["busy"].active_ns == SECOND // 2
        assert by_uuid[OTHER].activity["busy"].active_ns == 0
        assert by_uuid[GPU].lost == ""

    @pytest.mark.trap(12)
    def test_a_swapped_board_is_a_new_one_at_the_same_index(self, node: Node) -> None:
        node.look()
        node.driver.boards[0] = FakeBoard("GPU-new")
        boards = {board.uuid: board.lost for board in node.step(seconds=11).boards}
        assert boards == {GPU: "NOT_FOUND", OTHER: "", "GPU-new": ""}

    def test_a_board_that_is_not_ours_to_open_is_left_out(self, node: Node) -> None:
        node.driver.fail("nvmlDeviceGetHandleByIndex", 4, GPU)
        assert [board.uuid for board in node.look().boards] == [OTHER]

    def test_when_no_board_may_be_opened_that_is_the_error(self, node: Node) -> None:
        node.driver.fail("nvmlDeviceGetHandleByIndex", 4)
        assert code_of(node) == "NO_PERMISSION"


class TestOldDriver:
    def test_no_gpm(self, driver: FakeDriver, builds: Path) -> None:
        with driver_node(driver, build_double(builds, "GPM")) as node:
            node.look()
            board = node.board({GPU: DeviceLoad(busy=0.5)})
        assert board.activity == {"busy": SignalActivity(SECOND, SECOND // 2, "nvml_samples")}
        assert board.missing == dict.fromkeys(("sm_active", "tensor_active"), "FUNCTION_NOT_FOUND")

    def test_no_samples(self, driver: FakeDriver, builds: Path) -> None:
        with driver_node(driver, build_double(builds, "SAMPLES")) as node:
            node.look()
            board = node.board({GPU: DeviceLoad(busy=0.5)})
        assert board.activity["busy"] == SignalActivity(SECOND, SECOND // 2, "nvml_utilization")

    def test_no_process_utilization(self, driver: FakeDriver, builds: Path) -> None:
        driver.board(GPU).processes = [FakeProcess(11, GIB)]
        with driver_node(driver, build_double(builds, "PROCESS_UTILIZATION")) as node:
            board = node.look(processes=True).boards[0]
        assert [process.sm_weight for process in board.processes or ()] == [None]
        assert board.missing == {"process_utilization": "FUNCTION_NOT_FOUND"}

    def test_no_field_values(self, driver: FakeDriver, builds: Path) -> None:
        driver.board(GPU).clock_reasons = 0x4
        with driver_node(driver, build_double(builds, "FIELD_VALUES")) as node:
            node.look()
            board = node.board()
        assert board.throttled_ns["sw_power_cap"] == SECOND
        assert board.missing == {}

    @pytest.mark.parametrize(
        ("function", "part"),
        [
            ("nvmlDeviceGetMemoryInfo_v2", "memory"),
            ("nvmlDeviceGetTotalEnergyConsumption", "energy"),
            ("nvmlDeviceGetMigMode", "mig"),
            ("nvmlDeviceGetSamples", "busy"),
        ],
    )
    def test_one_thing_refused_is_missing_alone(self, node: Node, function: str, part: str) -> None:
        node.look()
        node.driver.fail(function, 999, GPU)
        first, second = node.step().boards
        assert first.missing == {part: "UNKNOWN"}
        assert first.lost == ""
        assert second.missing == {}
