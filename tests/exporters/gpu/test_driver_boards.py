"""Whole GPUs through the real driver process and nvidia-ml-py, over the stand-in driver."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

import gpucost_gpu_exporter.driver
from gpucost_gpu_exporter.driver_link import COMMAND
from gpucost_gpu_exporter.model.readings import GpuReading, ProcessReading, SignalActivity
from tests.support.driver_process import SECOND, Node, Totals, child_environment, driver_node
from tests.support.nvml.boards import ProcessSample
from tests.support.nvml.build import build_double
from tests.support.nvml.driver import DeviceLoad, FakeBoard, FakeDriver, FakeProcess, ProcessKind

GPU = "GPU-8f1c0d2e-0000-4000-8000-000000000001"
OTHER = "GPU-8f1c0d2e-0000-4000-8000-000000000002"
GIB = 1 << 30


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_double(tmp_path_factory.mktemp("library"))


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    driver = FakeDriver(tmp_path / "nvml.state", [FakeBoard(GPU, minor=3), FakeBoard(OTHER)])
    driver.advance(SECOND)
    return driver


@pytest.fixture
def node(driver: FakeDriver, library: Path) -> Iterator[Node]:
    with driver_node(driver, library) as node:
        yield node


def process_of(board: GpuReading, pid: int) -> ProcessReading:
    return next(process for process in board.processes or () if process.pid == pid)


def _weight(processes: tuple[ProcessReading, ...] | None, pid: int) -> int:
    return sum(process.sm_weight or 0 for process in processes or () if process.pid == pid)


class TestBoard:
    def test_who_it_is(self, node: Node) -> None:
        reading = node.look()
        first, second = reading.boards
        assert reading.driver_version == node.driver.driver_version
        assert (first.uuid, first.minor, first.product) == (GPU, 3, "NVIDIA H100 80GB HBM3")
        assert first.pci_bus_id == "00000000:01:00.0"
        assert (second.uuid, second.minor, second.lost, second.mig) == (OTHER, 1, "", False)

    def test_the_first_look_has_counters_and_no_activity(self, node: Node) -> None:
        node.driver.advance(SECOND, {GPU: DeviceLoad(busy=1.0, watts=300.0)})
        board = node.look().boards[0]
        assert board.energy_mj == 70_000 + 300_000
        assert board.activity == {}
        assert board.missing == {}
        assert board.processes is None

    def test_memory(self, node: Node) -> None:
        node.driver.board(GPU).memory_used_bytes = 7 * GIB
        board = node.look().boards[0]
        assert (board.memory_used_bytes, board.memory_total_bytes) == (7 * GIB, 80 * GIB)

    def test_energy_and_throttling_are_cumulative(self, node: Node) -> None:
        load = {GPU: DeviceLoad(watts=500.0, throttled={74: 0.5, 76: 0.1, 269: 0.2, 270: 0.3, 271: 0.4})}
        node.board(load)
        board = node.board(load)
        assert board.energy_mj == 70_000 + 1_000_000
        assert board.throttled_ns == {
            "sw_power_cap": SECOND,
            "sync_boost": SECOND // 5,
            "sw_thermal": 2 * SECOND // 5,
            "hw_thermal": 3 * SECOND // 5,
            "hw_power_brake": 4 * SECOND // 5,
        }

    def test_throttling_that_the_driver_does_not_count_is_added_up_from_the_reasons(self, node: Node) -> None:
        board = node.driver.board(GPU)
        board.throttled_ns = {74: 5 * SECOND}
        assert node.look().boards[0].throttled_ns["hw_thermal"] == 0
        board.clock_reasons = 0x40
        node.board()
        board.clock_reasons = 0
        node.board()
        board.clock_reasons = 0x40
        throttled = node.step(seconds=60).boards[0].throttled_ns
        assert throttled["hw_thermal"] == SECOND + 3 * SECOND // 2
        assert throttled["sw_power_cap"] == 5 * SECOND
        assert throttled["sw_thermal"] == 0

    def test_a_counter_of_throttling_that_fails_for_once_is_left_out_and_not_set_back(
        self, node: Node
    ) -> None:
        board = node.driver.board(GPU)
        board.clock_reasons = 0x44
        board.throttled_ns[74] = 5 * SECOND
        node.look()
        node.driver.fail("nvmlDeviceGetFieldValues", 999, GPU)
        failed = node.board()
        assert (failed.throttled_ns, failed.missing) == ({}, {"throttling": "UNKNOWN"})
        node.driver.heal("nvmlDeviceGetFieldValues", GPU)
        board.field_errors[74] = 4
        assert "sw_power_cap" not in node.board().throttled_ns
        del board.field_errors[74]
        assert node.board().throttled_ns["sw_power_cap"] == 5 * SECOND

    def test_throttling_that_cannot_be_read_at_all_is_missing(self, node: Node) -> None:
        for function in ("nvmlDeviceGetFieldValues", "nvmlDeviceGetCurrentClocksEventReasons"):
            node.driver.fail(function, 3, GPU)
        board = node.board()
        assert (board.throttled_ns, board.missing["throttling"]) == ({}, "NOT_SUPPORTED")


class TestActivity:
    def test_busy_seconds_over_a_hundred_looks_equal_the_truth(self, node: Node) -> None:
        """Looks come unevenly, and loads change between them: what the driver sampled is all counted."""
        totals, truth_ns = Totals(), 0.0
        node.look()
        for tick in range(100):
            busy, seconds = (tick % 11) / 10, 0.5 + (tick % 7) / 10
            truth_ns += busy * seconds * SECOND
            totals.add(node.step({GPU: DeviceLoad(busy=busy)}, seconds=seconds).boards[0].activity, "busy")
        assert totals.active_ns == pytest.approx(truth_ns, rel=0.001)
        assert totals.observed_ns == pytest.approx(sum(0.5 + (tick % 7) / 10 for tick in range(100)) * SECOND)

    def test_a_job_shorter_than_the_time_between_looks_is_counted(self, node: Node) -> None:
        node.look()
        node.driver.advance(4 * SECOND)
        node.driver.advance(2 * SECOND, {GPU: DeviceLoad(busy=1.0)})
        busy = node.step(seconds=4).boards[0].activity["busy"]
        assert busy == SignalActivity(10 * SECOND, 2 * SECOND, "nvml_samples")

    @pytest.mark.trap(1)
    def test_busy_sm_and_tensor_stay_apart(self, node: Node) -> None:
        """One tiny kernel: always busy, almost no SM in use."""
        node.look()
        activity = node.board({GPU: DeviceLoad(busy=1.0, sm=0.02, tensor=0.005)}).activity
        assert activity == {
            "busy": SignalActivity(SECOND, SECOND, "nvml_samples"),
            "sm_active": SignalActivity(SECOND, SECOND // 50, "gpm"),
            "tensor_active": SignalActivity(SECOND, SECOND // 200, "gpm"),
        }

    def test_gpm_covers_the_whole_time_between_looks(self, node: Node) -> None:
        node.look()
        node.driver.advance(29 * SECOND, {GPU: DeviceLoad(sm=0.1)})
        sm = node.board({GPU: DeviceLoad(sm=1.0)}).activity["sm_active"]
        assert sm == SignalActivity(30 * SECOND, round(3.9 * SECOND), "gpm")

    def test_looks_closer_than_gpm_allows_lose_nothing(self, node: Node) -> None:
        node.look()
        assert "sm_active" not in node.step({GPU: DeviceLoad(sm=1.0)}, seconds=0.06).boards[0].activity
        board = node.step(seconds=0.06).boards[0]
        assert board.activity["sm_active"] == SignalActivity(SECOND * 12 // 100, SECOND * 6 // 100, "gpm")
        assert board.missing == {}

    def test_after_a_very_long_time_gpm_starts_anew(self, node: Node) -> None:
        node.look()
        assert "sm_active" not in node.step({GPU: DeviceLoad(sm=1.0)}, seconds=601).boards[0].activity
        assert node.board({GPU: DeviceLoad(sm=0.5)}).activity["sm_active"].active_ns == SECOND // 2

    @pytest.mark.trap(8)
    def test_before_hopper_sm_and_tensor_are_missing_and_not_0(self, node: Node) -> None:
        node.driver.board(GPU).gpm = None
        node.look()
        board = node.board({GPU: DeviceLoad(busy=0.5)})
        assert set(board.activity) == {"busy"}
        assert board.missing == {"sm_active": "NOT_SUPPORTED", "tensor_active": "NOT_SUPPORTED"}
        assert "sm_active" in node.look().boards[1].activity or node.step().boards[1].activity["sm_active"]

    @pytest.mark.trap(8)
    def test_gpm_without_permission_is_off_and_tried_again_after_ten_minutes(self, node: Node) -> None:
        node.driver.fail("nvmlGpmSampleGet", 4, GPU)
        assert node.look().boards[0].missing["sm_active"] == "NO_PERMISSION"
        node.driver.heal("nvmlGpmSampleGet", GPU)
        assert node.step(seconds=599).boards[0].missing["sm_active"] == "NO_PERMISSION"
        assert "sm_active" not in node.step(seconds=2).boards[0].missing
        assert node.board({GPU: DeviceLoad(sm=0.5)}).activity["sm_active"].active_ns == SECOND // 2

    def test_without_samples_busy_is_the_rate_over_at_most_a_second_and_a_half(self, node: Node) -> None:
        node.driver.fail("nvmlDeviceGetSamples", 3, GPU)
        assert "busy" not in node.look().boards[0].activity
        load = {GPU: DeviceLoad(busy=0.5)}
        assert node.board(load).activity["busy"] == SignalActivity(SECOND, SECOND // 2, "nvml_utilization")
        late = node.step(load, seconds=9).boards[0].activity["busy"]
        assert late == SignalActivity(3 * SECOND // 2, 3 * SECOND // 4, "nvml_utilization")

    def test_without_samples_and_rates_busy_is_gpms(self, node: Node) -> None:
        for function in ("nvmlDeviceGetSamples", "nvmlDeviceGetUtilizationRates"):
            node.driver.fail(function, 3, GPU)
        node.look()
        board = node.board({GPU: DeviceLoad(busy=0.5)})
        assert board.activity["busy"] == SignalActivity(SECOND, SECOND // 2, "gpm")
        assert "busy" not in board.missing

    def test_a_passing_failure_of_the_samples_is_made_up_for(self, node: Node) -> None:
        node.look()
        node.driver.fail("nvmlDeviceGetSamples", 999, GPU)
        board = node.board({GPU: DeviceLoad(busy=1.0)})
        assert ("busy" in board.activity, board.missing["busy"]) == (False, "UNKNOWN")
        node.driver.heal("nvmlDeviceGetSamples", GPU)
        assert node.board().activity["busy"] == SignalActivity(2 * SECOND, SECOND, "nvml_samples")

    def test_a_gap_in_the_samples_covers_only_their_usual_spacing(self, node: Node) -> None:
        """The ring buffer holds 20 s here: of a minute without a look, 40 s are not attributed."""
        node.look()
        node.board({GPU: DeviceLoad(busy=1.0)})
        busy = node.step({GPU: DeviceLoad(busy=1.0)}, seconds=60).boards[0].activity["busy"]
        assert busy.active_ns == busy.observed_ns
        assert busy.observed_ns == pytest.approx(20 * SECOND, rel=0.01)


class TestTime:
    @pytest.mark.trap(34)
    def test_the_drivers_clock_may_be_any_other_than_the_parents(self, node: Node) -> None:
        node.driver.write()
        node.link.look(5 * SECOND, False)
        node.driver.advance(SECOND, {GPU: DeviceLoad(busy=0.5, sm=0.25)})
        node.driver.write()
        activity = node.link.look(6 * SECOND, False).boards[0].activity
        assert activity["busy"] == SignalActivity(SECOND, SECOND // 2, "nvml_samples")
        assert activity["sm_active"] == SignalActivity(SECOND, SECOND // 4, "gpm")

    @pytest.mark.trap(34)
    def test_a_drivers_clock_set_back_is_noticed_within_seconds(self, node: Node) -> None:
        now_ns = node.driver.now_ns
        node.look()
        node.driver.now_ns -= 3600 * SECOND
        node.driver.board(GPU).samples.clear()
        active_ns, weights = [], []
        for _ in range(16):
            now_ns += SECOND
            node.driver.advance(SECOND, {GPU: DeviceLoad(busy=0.5, processes={11: 50.0})})
            node.driver.write()
            board = node.link.look(now_ns, True).boards[0]
            active_ns.append(board.activity["busy"].active_ns if "busy" in board.activity else 0)
            weights.append(sum(process.sm_weight or 0 for process in board.processes or ()))
        assert active_ns[-2:] == [SECOND // 2] * 2
        assert weights[-2:] == [6 * 50] * 2
        assert sum(active_ns) < 8 * SECOND


class TestCorruptValues:
    @pytest.mark.trap(10)
    def test_a_sample_above_100_is_neither_time_watched_nor_time_used(self, node: Node) -> None:
        node.look()
        node.driver.advance(SECOND, {GPU: DeviceLoad(busy=0.5)})
        samples = node.driver.board(GPU).samples
        samples[-2] = samples[-2]._replace(percent=808334905)
        reading = node.look()
        busy = reading.boards[0].activity["busy"]
        assert busy.observed_ns == pytest.approx(SECOND * 5 / 6, rel=0.001)
        assert busy.active_ns == pytest.approx(busy.observed_ns / 2, rel=0.001)
        assert reading.dropped == {"out_of_range": 1}
        assert node.step().dropped == {}

    @pytest.mark.trap(10)
    def test_gpm_just_above_1_is_1_and_more_is_dropped(self, node: Node) -> None:
        counters = node.driver.board(GPU).gpm
        assert counters is not None
        node.look()
        counters.sm_ns += round(1.04 * SECOND)
        counters.tensor_ns += round(1.06 * SECOND)
        reading = node.step()
        board = reading.boards[0]
        assert board.activity["sm_active"] == SignalActivity(SECOND, SECOND, "gpm")
        assert "tensor_active" not in board.activity
        assert board.missing == {"tensor_active": "CORRUPT"}
        assert reading.dropped == {"out_of_range": 1}

    @pytest.mark.trap(10)
    def test_a_blank_energy_and_more_memory_used_than_there_is(self, node: Node) -> None:
        board = node.driver.board(GPU)
        board.memory_used_bytes = board.memory_total_bytes + 1
        board.energy_mj = 2**64 - 16
        board.watts = None
        reading = node.look()
        found = reading.boards[0]
        assert (found.energy_mj, found.memory_used_bytes) == (None, None)
        assert found.missing == {"energy": "CORRUPT", "memory": "CORRUPT"}
        assert reading.dropped == {"out_of_range": 2}

    @pytest.mark.trap(10)
    def test_a_process_above_100_has_no_weight(self, node: Node) -> None:
        node.driver.board(GPU).processes = [FakeProcess(11, GIB)]
        node.look()
        node.driver.advance(SECOND, {GPU: DeviceLoad(busy=1.0, processes={11: 50.0})})
        samples = node.driver.board(GPU).process_samples
        samples[-1] = samples[-1]._replace(sm=4294967295)
        reading = node.look(processes=True)
        assert process_of(reading.boards[0], 11).sm_weight == 250
        assert reading.dropped == {"out_of_range": 1}


class TestProcesses:
    def test_memory_and_weights(self, node: Node) -> None:
        node.driver.board(GPU).processes = [
            FakeProcess(11, 2 * GIB),
            FakeProcess(12, None),
            FakeProcess(13, GIB),
        ]
        node.look()
        board = node.board({GPU: DeviceLoad(busy=1.0, processes={11: 60.0, 12: 20.0})}, processes=True)
        assert board.processes == (
            ProcessReading(11, 2 * GIB, 360),
            ProcessReading(12, None, 120),
            ProcessReading(13, GIB, 0),
        )

    def test_each_sample_is_counted_once_however_seldom_one_asks(self, node: Node) -> None:
        node.driver.board(GPU).processes = [FakeProcess(11, GIB)]
        node.look()
        load = {GPU: DeviceLoad(busy=1.0, processes={11: 10.0})}
        for _ in range(4):
            assert node.board(load).processes is None
        assert process_of(node.board(load, processes=True), 11).sm_weight == 5 * 60
        assert process_of(node.board(load, processes=True), 11).sm_weight == 60

    def test_samples_that_come_later_than_anothers_newer_ones_are_counted(self, node: Node) -> None:
        """Those of one process come 1.5 s late, at every look; each of both is counted once."""
        board = node.driver.board(GPU)
        node.look(processes=True)
        made: list[ProcessSample] = []
        totals = {11: 0, 12: 0}
        for _ in range(10):
            node.driver.advance(SECOND, {GPU: DeviceLoad(busy=1.0, processes={11: 30.0, 12: 60.0})})
            made += board.process_samples
            due_us = node.driver.now_ns // 1000 - 1_500_000
            board.process_samples.clear()
            board.process_samples.extend(
                sample for sample in made if sample.pid == 11 or sample.timestamp_us <= due_us
            )
            found = node.look(processes=True).boards[0].processes
            totals = {pid: total + _weight(found, pid) for pid, total in totals.items()}
            board.process_samples.clear()
        assert totals == {11: 10 * 6 * 30, 12: (10 * 6 - 9) * 60}

    def test_a_sample_is_not_counted_again_by_any_later_look(self, node: Node) -> None:
        node.look(processes=True)
        both, one = (
            {GPU: DeviceLoad(busy=1.0, processes=processes)}
            for processes in ({11: 30.0, 12: 60.0}, {12: 60.0})
        )
        found = node.board(both, processes=True).processes
        assert [_weight(found, pid) for pid in (11, 12)] == [180, 360]
        for _ in range(70):
            found = node.board(one, processes=True).processes
            assert [_weight(found, pid) for pid in (11, 12)] == [0, 360]

    def test_nothing_from_before_the_first_look_is_counted_however_late_it_comes(self, node: Node) -> None:
        board, now_us = node.driver.board(GPU), node.driver.now_ns // 1000
        node.look(processes=True)
        board.process_samples.append(ProcessSample(now_us - 1, 12, 50))
        found = node.board({GPU: DeviceLoad(busy=1.0, processes={11: 30.0})}, processes=True).processes
        assert [_weight(found, pid) for pid in (11, 12)] == [180, 0]

    @pytest.mark.parametrize("says_success", [False, True])
    def test_no_activity_is_a_weight_of_0(self, node: Node, says_success: bool) -> None:
        """Drivers say NOT_FOUND, or success with a count of 0, which nvidia-ml-py raises as an error."""
        board = node.driver.board(GPU)
        board.processes = [FakeProcess(11, GIB)]
        board.no_process_samples_is_success = says_success
        found = node.look(processes=True).boards[0]
        assert (found.processes, found.missing) == ((ProcessReading(11, GIB, 0),), {})

    def test_a_board_without_processes_has_an_empty_list(self, node: Node) -> None:
        assert node.look(processes=True).boards[0].processes == ()

    def test_a_process_that_ended_keeps_its_weight(self, node: Node) -> None:
        node.look()
        board = node.board({GPU: DeviceLoad(busy=1.0, processes={99: 100.0})}, processes=True)
        assert board.processes == (ProcessReading(99, None, 600),)

    def test_a_process_in_several_lists_is_one(self, node: Node) -> None:
        node.driver.board(GPU).processes = [
            FakeProcess(11, GIB),
            FakeProcess(11, GIB, ProcessKind.GRAPHICS),
            FakeProcess(12, GIB, ProcessKind.GRAPHICS),
            FakeProcess(13, GIB, ProcessKind.MPS),
        ]
        found = node.look(processes=True).boards[0].processes or ()
        assert [process.pid for process in found] == [11, 12, 13]

    @pytest.mark.parametrize(("error", "code"), [(3, "NOT_SUPPORTED"), (4, "NO_PERMISSION")])
    def test_without_samples_of_processes_their_weight_is_unknown(
        self, node: Node, error: int, code: str
    ) -> None:
        node.driver.board(GPU).processes = [FakeProcess(11, GIB)]
        node.driver.fail("nvmlDeviceGetProcessUtilization", error, GPU)
        board = node.look(processes=True).boards[0]
        assert board.processes == (ProcessReading(11, GIB, None),)
        assert board.missing == {"process_utilization": code}

    def test_without_the_list_processes_are_unknown_and_not_none(self, node: Node) -> None:
        node.driver.fail("nvmlDeviceGetComputeRunningProcesses", 4, GPU)
        board = node.look(processes=True).boards[0]
        assert (board.processes, board.missing["processes"]) == (None, "NO_PERMISSION")


class TestEvents:
    @pytest.mark.trap(14)
    def test_each_event_is_told_once(self, node: Node) -> None:
        """The same code twice is two events; an event stays none of a later look."""
        node.look()
        node.driver.xid(GPU, 31)
        node.driver.xid(GPU, 31)
        assert self.told(node, 2) == [31, 31]
        node.driver.xid(GPU, 79)
        assert self.told(node, 1) == [79]

    def told(self, node: Node, count: int) -> list[int]:
        """The codes of the first GPU until there are ``count``, and a little longer."""
        codes: list[int] = []
        end_s = time.monotonic() + 60
        while time.monotonic() < end_s:
            node.look()
            for event in node.link.take_xids().elements():
                assert event.uuid == GPU
                codes.append(event.code)
            if len(codes) >= count:
                end_s = min(end_s, time.monotonic() + 0.3)
            time.sleep(0.02)
        return codes

    def test_a_board_without_events_says_so(self, node: Node) -> None:
        node.driver.fail("nvmlDeviceRegisterEvents", 3, GPU)
        first, second = node.look().boards
        assert first.missing == {"xid": "NOT_SUPPORTED"}
        assert second.missing == {}


class TestResume:
    def test_the_ring_buffer_bridges_a_restart(self, driver: FakeDriver, library: Path) -> None:
        driver.board(GPU).processes = [FakeProcess(11, GIB)]
        with driver_node(driver, library) as node:
            node.look()
            node.board({GPU: DeviceLoad(busy=1.0)})
            resume = node.link.resume
        assert set(resume) == {GPU, OTHER}
        driver.advance(10 * SECOND, {GPU: DeviceLoad(busy=0.3, processes={11: 30.0})})
        with driver_node(driver, library, resume=resume) as node:
            board = node.look(processes=True).boards[0]
            assert board.activity["busy"] == SignalActivity(10 * SECOND, 3 * SECOND, "nvml_samples")
            assert process_of(board, 11).sm_weight == 60 * 30

    def test_a_new_process_of_the_same_link_goes_on_where_the_old_one_was(self, node: Node) -> None:
        node.look()
        node.board()
        node.link.close()
        board = node.board({GPU: DeviceLoad(busy=1.0)})
        assert board.activity["busy"] == SignalActivity(SECOND, SECOND, "nvml_samples")
        assert node.link.restarts == 1

    def test_without_resume_nothing_before_the_first_look_is_counted(
        self, driver: FakeDriver, library: Path
    ) -> None:
        driver.advance(10 * SECOND, {GPU: DeviceLoad(busy=1.0)})
        with driver_node(driver, library) as node:
            assert node.look().boards[0].activity == {}


class TestProcess:
    def test_it_ends_when_its_stdin_does(self, driver: FakeDriver, library: Path) -> None:
        driver.write()
        done = subprocess.run(
            COMMAND,
            input=b'{"now_ns": 1, "processes": true}\n',
            env=child_environment(driver, library),
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr, done.stdout.count(b"\n")) == (0, b"", 1)

    def test_it_stays_small(self, node: Node) -> None:
        node.look(processes=True)
        for _ in range(20):
            node.step({GPU: DeviceLoad(busy=0.5)}, processes=True)
        child = node.link._child
        assert child is not None
        status = Path(f"/proc/{child.pid}/status").read_text()
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        assert int(resident.split()[1]) < 24_000
        assert "libcuda" not in Path(f"/proc/{child.pid}/maps").read_text()

    @pytest.mark.trap(30)
    def test_it_changes_nothing_in_the_driver(self) -> None:
        """Every NVML function that the package names reads, samples or waits; none sets or resets."""
        folder = Path(gpucost_gpu_exporter.driver.__path__[0])
        named = {
            found.attr
            for module in folder.glob("*.py")
            for found in ast.walk(ast.parse(module.read_text()))
            if isinstance(found, ast.Attribute) and inspect.isfunction(getattr(pynvml, found.attr, None))
        }
        allowed = ("nvmlDeviceGet", "nvmlSystemGet", "nvmlGpm", "nvmlEventSet", "nvmlInit")
        assert {name for name in named if not name.startswith(allowed)} == {"nvmlDeviceRegisterEvents"}
        assert not {name for name in named if "Streaming" in name or "Accounting" in name}

    def test_it_imports_no_more_than_it_must(self) -> None:
        loaded = subprocess.run(
            [
                sys.executable,
                "-c",
                "import gpucost_gpu_exporter.driver.__main__, sys; print(*sys.modules)",
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(place for place in sys.path if place)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        foreign = {"grpc", "prometheus_client", "pydantic", "asyncio", "logging", "gpucost"}
        assert not foreign & {name.partition(".")[0] for name in loaded}
