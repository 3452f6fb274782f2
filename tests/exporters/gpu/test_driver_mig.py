"""GPUs cut by MIG through the real driver process, over the stand-in driver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucost_gpu_exporter.model.readings import (
    GpuReading,
    InstanceReading,
    ProcessReading,
    SignalActivity,
)
from tests.support.driver_process import SECOND, Node, Totals, driver_node
from tests.support.nvml.build import build_double
from tests.support.nvml.driver import (
    DeviceLoad,
    FakeBoard,
    FakeComputeInstance,
    FakeDriver,
    FakeInstance,
    FakeProcess,
    GpmCounters,
)

GPU = "GPU-8f1c0d2e-0000-4000-8000-000000000001"
GIB = 1 << 30


def one_slice(number: int, generation: int = 0) -> FakeInstance:
    return FakeInstance(number, 1, "1g.10gb", [FakeComputeInstance(f"MIG-{generation}-{number}")])


def instance(board: GpuReading, number: int) -> InstanceReading:
    return next(found for found in board.instances if found.gpu_instance == number)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_double(tmp_path_factory.mktemp("library"))


@pytest.fixture
def node(tmp_path: Path, library: Path) -> Iterator[Node]:
    """A GPU in seven slices, with instance ids 7 to 13 as the driver gives them."""
    board = FakeBoard(GPU, mig=True, instances=[one_slice(number) for number in range(7, 14)])
    driver = FakeDriver(tmp_path / "nvml.state", [board])
    with driver_node(driver, library) as node:
        yield node


class TestInstances:
    def test_seven_slices(self, node: Node) -> None:
        board = node.look().boards[0]
        assert board.mig
        assert [found.gpu_instance for found in board.instances] == list(range(7, 14))
        first = board.instances[0]
        assert (first.slices, first.of_slices, first.profile) == (1, 7, "1g.10gb")
        assert first.compute_instances == {"MIG-0-7": 1}
        assert (first.memory_used_bytes, first.memory_total_bytes) == (0, 10 * GIB)

    def test_activity_of_each_slice_equals_its_truth(self, node: Node) -> None:
        totals = {(number, signal): Totals() for number in range(7, 14) for signal in ("busy", "sm_active")}
        node.look()
        for tick in range(20):
            load = {
                (GPU, number): DeviceLoad(busy=number / 13, sm=((number + tick) % 5) / 10)
                for number in range(7, 14)
            }
            board = node.board(load)
            for (number, signal), total in totals.items():
                total.add(instance(board, number).activity, signal)
        for number in range(7, 14):
            busy, sm = totals[number, "busy"], totals[number, "sm_active"]
            assert busy.observed_ns == sm.observed_ns == 20 * SECOND
            assert busy.active_ns == pytest.approx(20 * SECOND * number / 13, rel=0.001)
            assert sm.active_ns == pytest.approx(4 * SECOND, rel=0.001)

    @pytest.mark.trap(2, 4)
    def test_busy_is_the_graphics_engines_time_of_the_slice(self, node: Node) -> None:
        """The GPU has no utilisation with MIG, which is missing there and not 0."""
        node.look()
        board = node.board({(GPU, 7): DeviceLoad(busy=0.75, sm=0.5, tensor=0.25)})
        assert board.activity == {}
        assert instance(board, 7).activity == {
            "busy": SignalActivity(SECOND, 3 * SECOND // 4, "gpm"),
            "sm_active": SignalActivity(SECOND, SECOND // 2, "gpm"),
            "tensor_active": SignalActivity(SECOND, SECOND // 4, "gpm"),
        }
        assert instance(board, 8).activity["busy"].active_ns == 0

    @pytest.mark.trap(4, 8)
    def test_before_hopper_a_slice_has_no_activity_at_all(self, node: Node) -> None:
        board = node.driver.board(GPU)
        board.gpm = None
        for found in board.instances:
            found.gpm = None
        node.look()
        first = node.board().instances[0]
        assert first.activity == {}
        assert first.missing == dict.fromkeys(("busy", "sm_active", "tensor_active"), "NOT_SUPPORTED")

    def test_energy_is_the_boards_alone(self, node: Node) -> None:
        node.look()
        board = node.board({GPU: DeviceLoad(watts=200.0)})
        assert board.energy_mj == 200_000

    def test_board_memory_without_privilege_is_missing_and_the_rest_is_there(self, node: Node) -> None:
        node.driver.fail("nvmlDeviceGetMemoryInfo_v2", 4, GPU)
        board = node.look().boards[0]
        assert (board.memory_used_bytes, board.missing["memory"]) == (None, "NO_PERMISSION")
        assert board.instances[0].memory_total_bytes == 10 * GIB

    def test_compute_instances_of_one_gpu_instance_are_one_reading(self, node: Node) -> None:
        parts = [FakeComputeInstance(f"MIG-part-{number}", 1, number) for number in range(3)]
        shared = FakeInstance(
            2, 3, "3g.40gb", parts, processes=[FakeProcess(11, GIB), FakeProcess(12, GIB, compute_instance=2)]
        )
        node.driver.board(GPU).repartition([shared])
        node.look()
        board = node.board({(GPU, 2): DeviceLoad(busy=0.5)}, processes=True)
        assert len(board.instances) == 1
        found = board.instances[0]
        assert (found.slices, found.of_slices, found.profile) == (3, 7, "3g.40gb")
        assert found.compute_instances == {"MIG-part-0": 1, "MIG-part-1": 1, "MIG-part-2": 1}
        assert found.activity["busy"] == SignalActivity(SECOND, SECOND // 2, "gpm")
        assert found.processes == (ProcessReading(11, GIB, None), ProcessReading(12, GIB, None))

    def test_gaps_in_the_numbering_are_skipped(self, node: Node) -> None:
        late = FakeInstance(3, 2, "2g.20gb", [FakeComputeInstance("MIG-late", 2, index=5)])
        node.driver.board(GPU).repartition([late])
        board = node.look().boards[0]
        assert [found.compute_instances for found in board.instances] == [{"MIG-late": 2}]
        assert board.missing == {}

    def test_an_a30_has_four_slices(self, node: Node) -> None:
        board = node.driver.board(GPU)
        board.mig_slices = 4
        board.repartition([FakeInstance(1, 2, "2g.12gb", [FakeComputeInstance("MIG-a30", 2)])])
        found = node.look().boards[0].instances[0]
        assert (found.slices, found.of_slices, found.profile) == (2, 4, "2g.12gb")

    def test_processes_have_no_weight_with_mig(self, node: Node) -> None:
        node.driver.board(GPU).instances[0].processes.append(FakeProcess(11, GIB))
        board = node.look(processes=True).boards[0]
        assert board.processes is None
        assert instance(board, 7).processes == (ProcessReading(11, GIB, None),)
        assert instance(board, 7).missing["process_utilization"] == "NOT_SUPPORTED"
        assert instance(board, 8).processes == ()

    def test_a_board_without_mig_in_its_design_is_whole(self, node: Node) -> None:
        board = node.driver.board(GPU)
        board.repartition([])
        board.mig = None
        found = node.look().boards[0]
        assert (found.mig, found.instances, found.missing) == (False, (), {})

    def test_mig_without_any_instance(self, node: Node) -> None:
        node.driver.board(GPU).repartition([])
        found = node.look().boards[0]
        assert (found.mig, found.instances, found.activity) == (True, (), {})


class TestReconfigured:
    @pytest.mark.fault(7)
    def test_the_set_of_slices_changes_while_the_process_lives(self, node: Node) -> None:
        node.look()
        node.board()
        big = FakeInstance(1, 4, "4g.40gb", [FakeComputeInstance("MIG-1-1", 4)])
        rest = FakeInstance(2, 3, "3g.40gb", [FakeComputeInstance("MIG-1-2", 3)])
        node.driver.board(GPU).repartition([big, rest])
        board = node.look().boards[0]
        assert [found.profile for found in board.instances] == ["4g.40gb", "3g.40gb"]
        assert sum(found.slices for found in board.instances) == 7
        assert [found.activity for found in board.instances] == [{}, {}]
        board = node.board({(GPU, 1): DeviceLoad(busy=1.0)})
        assert instance(board, 1).activity["busy"] == SignalActivity(SECOND, SECOND, "gpm")
        assert node.link.restarts == 0

    @pytest.mark.trap(12)
    def test_an_instance_id_used_again_is_another_instance(self, node: Node) -> None:
        """Its counters have nothing to do with the old one's: compared with them they would say 90 %."""
        node.look()
        node.board({(GPU, 7): DeviceLoad(busy=1.0, sm=1.0)})
        again = one_slice(7, generation=1)
        again.gpm = GpmCounters(11 * SECOND, 10 * SECOND, 10 * SECOND, 10 * SECOND)
        node.driver.board(GPU).repartition([again])
        first = node.board().instances[0]
        assert first.compute_instances == {"MIG-1-7": 1}
        assert (first.activity, first.missing) == ({}, {})
        board = node.board({(GPU, 7): DeviceLoad(busy=0.25)})
        assert instance(board, 7).activity["busy"] == SignalActivity(SECOND, SECOND // 4, "gpm")

    def test_mig_switched_off_and_on(self, node: Node) -> None:
        node.look()
        board = node.driver.board(GPU)
        board.repartition([])
        board.mig = False
        node.board()
        whole = node.board({GPU: DeviceLoad(busy=0.5)})
        assert (whole.mig, whole.instances) == (False, ())
        assert whole.activity["busy"] == SignalActivity(SECOND, SECOND // 2, "nvml_samples")
        board.repartition([one_slice(7)])
        board.mig = True
        cut = node.board()
        assert (cut.mig, len(cut.instances), cut.activity) == (True, 1, {})

    def test_one_slice_that_cannot_be_read_does_not_stop_the_others(self, node: Node) -> None:
        node.driver.fail("nvmlDeviceGetAttributes", 999, "MIG-0-9")
        board = node.look().boards[0]
        assert [found.gpu_instance for found in board.instances] == [7, 8, 10, 11, 12, 13]
        assert board.missing == {"mig": "UNKNOWN"}
