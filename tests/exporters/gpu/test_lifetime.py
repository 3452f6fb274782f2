"""The real command lives and dies: signals, restarts, a second one beside it, a driver that hangs."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from socket import create_server

import pytest

from tests.support.gpu_command import (
    CommandNode,
    Loads,
    Running,
    command_node,
    eventually,
    is_alive,
    moving,
    node_api,
)
from tests.support.kube import pod
from tests.support.nvml.build import build_double
from tests.support.nvml.driver import DeviceLoad, FakeBoard, FakeDriver

BOARD = "GPU-0a000000-0000-4000-8000-000000000001"
IDLE_BOARD = "GPU-0b000000-0000-4000-8000-000000000002"
LOADS: Loads = {BOARD: DeviceLoad(busy=0.8, sm=0.5, tensor=0.2, watts=400)}
UID = "00000000-0000-4000-8000-000000000001"
# A call made at each look; the driver hangs in it.
LOOKED = "nvmlDeviceGetTotalEnergyConsumption"
COLLECTED = "gpucost_gpu_exporter_last_collection_timestamp_seconds"
_COUNTER = re.compile(r"^gpucost_(gpu_(?!exporter_)|pod_gpu_)[a-z_]+_total\{")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_double(tmp_path_factory.mktemp("library"))


@pytest.fixture
def node(tmp_path: Path, library: Path) -> Iterator[CommandNode]:
    """A node with a busy and an idle GPU; the pod ``train`` holds the busy one."""
    driver = FakeDriver(tmp_path / "nvml.state", [FakeBoard(BOARD), FakeBoard(IDLE_BOARD)])
    with command_node(tmp_path, library, driver) as made, node_api(pod("train", UID)) as api:
        made.set(kubernetes="url", kubernetes_url=api.url, interval="200ms", driver_timeout="1m")
        made.kubelet.allocatable = {"nvidia.com/gpu": [BOARD, IDLE_BOARD]}
        made.kubelet.hold("team", "train", BOARD)
        with moving(driver, LOADS):
            yield made


def _counters(scrape: dict[str, float]) -> dict[str, float]:
    """The counters of GPUs and holders; the exporter's counts of itself begin anew with it."""
    return {series: value for series, value in scrape.items() if _COUNTER.match(series)}


def _held(scrape: dict[str, float], holder: str = "pod", uuid: str = BOARD) -> float:
    return sum(
        value
        for series, value in scrape.items()
        if series.startswith("gpucost_pod_gpu_held_seconds_total")
        and f'gpu_uuid="{uuid}"' in series
        and f'holder="{holder}"' in series
    )


def _value(scrape: dict[str, float], name: str) -> float:
    [value] = [value for series, value in scrape.items() if series.partition("{")[0] == name]
    return value


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_both_processes(node: CommandNode, number: signal.Signals) -> None:
    with node.start() as running:
        [child] = running.children()
        assert running.end(number) == 0
    eventually(lambda: not is_alive(child))


@pytest.mark.slow
def test_a_signal_ends_both_processes_while_the_driver_hangs(node: CommandNode) -> None:
    node.set(driver_timeout="1s")
    with node.start() as running:
        seen = set(running.children())
        node.driver.hang(LOOKED)
        eventually(lambda: _value(running.scrape(), "gpucost_nvml_up") == 0)
        eventually(lambda: bool(set(running.children()) - seen))  # another tries, and hangs as well
        seen |= set(running.children())
        assert running.end(signal.SIGTERM) == 0
    eventually(lambda: not any(map(is_alive, seen)))


@pytest.mark.slow
def test_the_driver_process_ends_with_a_killed_exporter(node: CommandNode) -> None:
    with node.start() as running:
        [child] = running.children()
        running.end(signal.SIGKILL)
    eventually(lambda: not is_alive(child))


class Scraper:
    """Scrapes as fast as it can, from a thread; ``last`` is the last whole scrape."""

    def __init__(self, running: Running) -> None:
        self.last: dict[str, float] = {}
        self._running = running
        self._thread = threading.Thread(target=self._scrape)
        self._thread.start()

    def _scrape(self) -> None:
        while self._running.process.poll() is None:
            status, text = self._running.get("/metrics")
            if status == 200 and text.endswith("\n"):
                self.last = dict(_parsed(text))

    def join(self) -> dict[str, float]:
        self._thread.join()
        return self.last


def _parsed(text: str) -> Iterator[tuple[str, float]]:
    for line in text.splitlines():
        series, _, value = line.rpartition(" ")
        if not line.startswith("#"):
            yield series, float(value)


@pytest.mark.slow
@pytest.mark.fault(6)
@pytest.mark.trap(13, 27)
def test_counters_go_on_after_a_kill(node: CommandNode) -> None:
    with node.start() as running:
        scraper = Scraper(running)
        eventually(lambda: _held(scraper.last) > 1)
        running.end(signal.SIGKILL)
        before = scraper.join()
    node.kubelet.delay_s = 0.5  # an answer that comes late must not cost the proof of who held on
    with node.start() as again:
        first = again.scrape()
        eventually(lambda: _held(again.scrape()) > _held(first) + 0.5)

    counted = _counters(before)
    assert len(counted) > 20
    assert [series for series, value in counted.items() if first.get(series, -1) < value] == []
    # The pod held the GPU all along, as the API server's uid proves: the break is its, and no other pod's.
    break_s = _value(first, COLLECTED) - _value(before, COLLECTED)
    assert _held(first) - _held(before) == pytest.approx(break_s, abs=0.3)
    assert _held(first, "__unknown__") == 0


@pytest.mark.fault(6)
def test_without_a_state_folder_counters_begin_at_0_and_the_exporter_says_so(node: CommandNode) -> None:
    node.set(state_dir="")
    with node.start() as running:
        eventually(lambda: _held(running.scrape()) > 1)
        missing = [series for series in running.scrape() if 'part="state_file"' in series]
        assert len(missing) == 1
        assert 'reason="not_configured"' in missing[0]
        running.end(signal.SIGTERM)
    began_s = time.monotonic()
    with node.start() as again:
        held_s = _held(again.scrape())
        assert held_s <= time.monotonic() - began_s, "no more than it has run"


@pytest.mark.slow
@pytest.mark.fault(5)
def test_a_second_exporter_waits_until_the_first_has_ended(node: CommandNode) -> None:
    with node.start() as first, node.run() as second:
        eventually(lambda: "another exporter has" in second.log.read_text())
        assert second.get("/metrics") == (0, "")  # nothing that would count the node twice
        before = _held(first.scrape())
        assert first.end(signal.SIGTERM) == 0
        eventually(lambda: second.get("/readyz")[0] == 200, second.log)
        eventually(
            lambda: _held(second.scrape()) > 0, second.log
        )  # on a busy machine its first look takes a while
        assert _held(second.scrape()) >= before
        assert second.end(signal.SIGTERM) == 0


@pytest.mark.fault(5)
def test_one_that_waits_can_be_ended(node: CommandNode) -> None:
    with node.start(), node.run() as second:
        eventually(lambda: "another exporter has" in second.log.read_text())
        assert second.end(signal.SIGTERM) == 0


@pytest.mark.fault(1)
def test_a_scrape_is_answered_while_the_driver_hangs(node: CommandNode) -> None:
    node.set(driver_timeout="8s")
    with node.start() as running:
        assert running.get("/healthz") == (200, "ok\n")
        eventually(lambda: _held(running.scrape()) > 0.5)
        node.driver.hang(LOOKED)
        # Before the time-out is over: the old values, with their age beside them.
        eventually(lambda: _is_old(running.scrape()))
        eventually(lambda: _value(running.scrape(), "gpucost_nvml_up") == 0)
        down = running.scrape()
        assert {name: value for name, value in down.items() if name.startswith("gpucost_gpu_up")} == {
            f'gpucost_gpu_up{{gpu_uuid="{uuid}",node="gpu-1"}}': 0.0 for uuid in (BOARD, IDLE_BOARD)
        }
        assert not [name for name in down if name.startswith("gpucost_gpu_busy_seconds_total")]
        assert [name for name in down if 'part="driver",reason="HUNG"' in name]
        eventually(lambda: _held(running.scrape()) > _held(down))  # it is held, whatever it does
        assert running.get("/healthz")[0] == 200
        node.driver.release(LOOKED)
        eventually(lambda: _value(running.scrape(), "gpucost_nvml_up") == 1)
        assert _value(running.scrape(), "gpucost_gpu_exporter_driver_restarts_total") >= 1


def _is_old(scrape: dict[str, float]) -> bool:
    """Whether these are values of a living driver that are older than two intervals of the collector."""
    return _value(scrape, "gpucost_nvml_up") == 1 and time.time() - _value(scrape, COLLECTED) > 0.5


def test_not_ready_before_the_first_collection(node: CommandNode) -> None:
    node.driver.hang(LOOKED)
    node.driver.write()
    with node.run() as running:
        eventually(lambda: running.get("/healthz")[0] != 0, running.log)
        assert running.get("/readyz") == (503, "collection: no collection yet\n")
        assert running.get("/healthz")[0] == 200
        status, text = running.get("/metrics")
        assert status == 200
        assert "gpucost_gpu_" not in re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
        node.driver.release(LOOKED)
        eventually(lambda: running.get("/readyz")[0] == 200)


def test_a_port_in_use_is_named_with_its_setting(node: CommandNode) -> None:
    with closing(create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        node.set(listen_port=str(port))
        done = node.once()
    assert (done.returncode, done.stdout) == (2, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("gpucost-gpu-exporter: GPUCOST_GPU_EXPORTER_LISTEN_PORT: ")
    assert f"127.0.0.1:{port}" in last
    assert "Traceback" not in done.stderr
