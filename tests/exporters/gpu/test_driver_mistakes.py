"""What must not end the look at a node: bad answers, GPUs never named, mistakes; and a process's end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from gpucost_gpu_exporter.driver import gpus as driver_boards
from gpucost_gpu_exporter.driver.__main__ import WholeLines
from gpucost_gpu_exporter.driver.activity import GpmSampler, ThrottleTime
from gpucost_gpu_exporter.driver.calls import DriverGone, DriverLook, NvmlRefusal, call, value_of
from gpucost_gpu_exporter.driver.gpus import NvmlGpu
from gpucost_gpu_exporter.driver_link import COMMAND
from gpucost_gpu_exporter.model.readings import XidEvent
from tests.support.driver_process import SECOND, Node, child_environment, driver_node
from tests.support.nvml.build import build_double
from tests.support.nvml.driver import DeviceLoad, FakeBoard, FakeDriver

GPU = "GPU-8f1c0d2e-0000-4000-8000-000000000001"
OTHER = "GPU-8f1c0d2e-0000-4000-8000-000000000002"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_double(tmp_path_factory.mktemp("library"))


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    driver = FakeDriver(tmp_path / "nvml.state", [FakeBoard(GPU), FakeBoard(OTHER)])
    driver.advance(SECOND)
    return driver


@pytest.fixture
def node(driver: FakeDriver, library: Path) -> Iterator[Node]:
    with driver_node(driver, library) as node:
        yield node


class TestNeverNamed:
    """GPUs that are lost before their UUID was ever known."""

    @pytest.mark.fault(2)
    @pytest.mark.trap(32)
    def test_one_that_was_lost_before_the_start_is_told_by_its_place(self, node: Node) -> None:
        node.driver.board(OTHER).lost = True
        for _ in range(3):
            first, second = node.step({GPU: DeviceLoad(busy=0.5)}).boards
            assert (first.uuid, first.lost) == (GPU, "")
            assert (second.uuid, second.lost, second.energy_mj) == ("index:1", "GPU_IS_LOST", None)
        node.driver.board(OTHER).lost = False
        assert [(board.uuid, board.lost) for board in node.step().boards] == [(GPU, ""), (OTHER, "")]

    @pytest.mark.fault(2)
    def test_where_its_place_on_the_bus_is_known_that_is_its_name(self, node: Node) -> None:
        node.driver.fail("nvmlDeviceGetUUID", 11, OTHER)
        _, second = node.look().boards
        assert (second.uuid, second.lost) == ("pci:00000000:02:00.0", "IRQ_ISSUE")
        assert second.pci_bus_id == "00000000:02:00.0"

    def test_when_all_are_that_is_told_of_each(self, node: Node) -> None:
        for uuid in (GPU, OTHER):
            node.driver.board(uuid).lost = True
        assert [(board.uuid, board.lost) for board in node.look().boards] == [
            ("index:0", "GPU_IS_LOST"),
            ("index:1", "GPU_IS_LOST"),
        ]

    def test_a_board_that_moved_is_not_lost_with_its_old_place(self, node: Node) -> None:
        node.look()
        node.driver.boards = [node.driver.board(OTHER), FakeBoard("GPU-new", lost=True)]
        found = {board.uuid: board.lost for board in node.step(seconds=11).boards}
        assert found == {GPU: "NOT_FOUND", OTHER: "", "index:1": "GPU_IS_LOST"}


def _raising(error: Exception) -> Callable[..., object]:
    def function(*_: object) -> object:
        raise error

    return function


class TestBadAnswers:
    def test_a_name_that_is_no_text_costs_the_name_alone(self, node: Node) -> None:
        node.driver.board(GPU).product = "BAD-NAME"
        node.driver.write()
        state = node.driver.state_file
        bad = state.with_name("bad")
        bad.write_bytes(state.read_bytes().replace(b"BAD-NAME", b"BAD\xff"))
        bad.replace(state)
        first, second = node.link.look(0, False).boards
        assert (first.product, first.minor, first.pci_bus_id, first.lost) == ("", 0, "00000000:01:00.0", "")
        assert first.energy_mj is not None
        assert (second.product, second.lost) == ("NVIDIA H100 80GB HBM3", "")

    @pytest.mark.parametrize(
        "error",
        [
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
            ValueError(),
            TypeError(),
            KeyError(),
            IndexError(),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_what_cannot_be_decoded_is_corrupt(self, error: Exception) -> None:
        with pytest.raises(NvmlRefusal) as refused:
            call(_raising(error))
        assert refused.value.code == "CORRUPT"

    def test_a_type_of_value_that_is_not_known_is_corrupt(self) -> None:
        with pytest.raises(NvmlRefusal) as refused:
            value_of(77, pynvml.c_nvmlValue_t())
        assert refused.value.code == "CORRUPT"

    def test_a_field_of_such_a_type_is_left_out_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        value = pynvml.c_nvmlValue_t()
        value.ullVal = 5
        fields = [SimpleNamespace(nvmlReturn=0, valueType=kind, value=value) for kind in (77, 3, 3, 3, 3)]
        monkeypatch.setattr(pynvml, "nvmlDeviceGetFieldValues", lambda *_: fields)
        look = DriverLook(0, False)
        found = ThrottleTime().measure(look, None)
        assert found == dict.fromkeys(("sync_boost", "sw_thermal", "hw_thermal", "hw_power_brake"), 5)
        assert look.dropped == {"out_of_range": 1}

    def test_a_mistake_with_one_board_is_told_once_and_ends_nothing(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(driver_boards, "memory_bytes", _raising(AttributeError("a mistake")))
        board = NvmlGpu(GPU, GpmSampler())
        for _ in range(3):
            board.lost = ""
            found = board.look(DriverLook(0, False))
            assert (found.uuid, found.lost) == (GPU, "INTERNAL")
        told = capsys.readouterr().err
        assert told.startswith(f"{GPU}:\n")
        assert told.count("AttributeError: a mistake") == 1

    def test_a_driver_that_is_gone_is_no_mistake(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(driver_boards, "memory_bytes", _raising(DriverGone("UNINITIALIZED")))
        with pytest.raises(DriverGone):
            NvmlGpu(GPU, GpmSampler()).look(DriverLook(0, False))


class TestProcess:
    def test_events_of_another_thread_tear_no_reply(self) -> None:
        source, sink = os.pipe()
        with os.fdopen(sink, "w", encoding="utf-8") as replies, os.fdopen(source, "rb") as written:
            lines = WholeLines(replies)
            reply = {"reading": "x" * 20_000}

            def reply_often() -> None:
                for _ in range(200):
                    lines.send(reply)

            def tell_often() -> None:
                for code in range(2_000):
                    lines.tell(XidEvent(GPU, code))

            threads = [threading.Thread(target=each) for each in (reply_often, tell_often)]
            for thread in threads:
                thread.start()
            found = [json.loads(written.readline()) for _ in range(2_200)]
            for thread in threads:
                thread.join()
        assert found.count(reply) == 200
        assert [each["xid"][1] for each in found if "xid" in each] == list(range(2_000))

    def test_a_folder_that_it_is_started_in_is_no_place_to_import_from(
        self, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        planted = tmp_path / "planted"
        planted.mkdir()
        for name in ("pynvml.py", "json.py", "gpucost_gpu_exporter.py"):
            (planted / name).write_text(f"open({str(planted / 'ran')!r}, 'w').close()\n")
        monkeypatch.chdir(planted)
        assert len(node.look().boards) == 2
        assert not (planted / "ran").exists()

    def test_one_that_hangs_ends_with_its_parent(self, driver: FakeDriver, library: Path) -> None:
        """The parent is killed while the driver's process is inside a call, and cannot see its stdin end."""
        driver.write()
        script = f"""
        import subprocess, sys, time
        child = subprocess.Popen({COMMAND!r}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        for now in (b"1", b"2"):
            child.stdin.write(b'{{"now_ns": ' + now + b', "processes": false}}' + bytes([10]))
            if now == b"1":
                child.stdout.readline()
                print(child.pid, flush=True)
                sys.stdin.readline()
        print("asked", flush=True)
        time.sleep(600)
        """
        command = (sys.executable, "-c", textwrap.dedent(script))
        pipe, environment = subprocess.PIPE, child_environment(driver, library)
        with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as parent:
            assert parent.stdin is not None
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            driver.hang("nvmlDeviceGetTotalEnergyConsumption")
            driver.write()
            parent.stdin.write("\n")
            parent.stdin.flush()
            assert parent.stdout.readline() == "asked\n"
            parent.kill()
        deadline_s = time.monotonic() + 60
        while _runs(child) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        is_left = _runs(child)
        if is_left:
            os.kill(child, signal.SIGKILL)
        assert not is_left


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False
