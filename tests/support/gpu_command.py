"""The exporter's console command in a process of its own, on a node whose parts are all stand-ins.

The driver's truths move in real time, the kubelet is a gRPC server, the API server and the dcgm-exporter are
HTTP servers; the command, its driver process and nvidia-ml-py are the real ones.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from gpucost_gpu_exporter.cli import main
from gpucost_gpu_exporter.settings import PREFIX
from tests.support.in_process import ended
from tests.support.kube import Answer, Asked, KubeServer, listed, refused
from tests.support.kubelet import FakeKubelet
from tests.support.nvml.driver import DeviceLoad, FakeDriver
from tests.support.ports import free_port

COMMAND = Path(sys.executable).with_name("gpucost-gpu-exporter")
NODE = "gpu-1"
Loads = Mapping[str | tuple[str, int], DeviceLoad]
_SAMPLE = re.compile(r"^([a-zA-Z_:][^\s{]*(?:\{.*\})?) (\S+)$", re.MULTILINE)


class NodeApi(KubeServer):
    """An API server that always answers: these pods, no resource slices, and watches in which nothing is."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        super().__init__([])
        self.pods = pods

    def next_answer(self, asked: Asked) -> Answer:
        with self.lock:
            self.asked.append(asked)
        if asked.path != "/api/v1/pods":
            return refused(404)
        return Answer(ending="silence") if asked.is_watch else listed(*self.pods)


@contextmanager
def node_api(*pods: dict[str, Any]) -> Iterator[NodeApi]:
    """A running API server; stopped at the end."""
    with NodeApi(*pods) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.stopping.set()
            server.shutdown()
            thread.join()


@contextmanager
def moving(driver: FakeDriver, loads: Loads, every_s: float = 0.1) -> Iterator[None]:
    """Let real time pass in the driver under a steady load, from now on."""
    stop = threading.Event()

    def move() -> None:
        then_ns = time.monotonic_ns()
        while not stop.wait(every_s):
            now_ns = time.monotonic_ns()
            driver.advance(now_ns - then_ns, loads)
            driver.write()
            then_ns = now_ns

    driver.write()
    thread = threading.Thread(target=move)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class Running:
    """One process of the command, listening on a port of its own; ``log`` is what it says on stderr."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        self.port = free_port()
        self.log = log
        environment = {**environment, f"{PREFIX}LISTEN_PORT": str(self.port)}
        with log.open("a") as output:
            self.process = subprocess.Popen([COMMAND], env=environment, stdout=output, stderr=output)

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def get(self, path: str) -> tuple[int, str]:
        """Status and body; 0 while no process listens."""
        try:
            with urllib.request.urlopen(f"http://{self.target}{path}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def scrape(self) -> dict[str, float]:
        """Series with labels -> value."""
        status, text = self.get("/metrics")
        assert status == 200, text
        return {found[1]: float(found[2]) for found in _SAMPLE.finditer(text)}

    def children(self) -> list[int]:
        """PIDs of the processes it has started and that live."""
        found = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(pid) for file in found for pid in file.read_text().split()]

    def end(self, number: signal.Signals, seconds: float = 60) -> int:
        """Send a signal and wait; returns the exit status."""
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.end(signal.SIGKILL)


class CommandNode:
    """A node to run the command on: a folder, a driver and a kubelet."""

    def __init__(self, folder: Path, library: Path, driver: FakeDriver, kubelet: FakeKubelet) -> None:
        self.folder = folder
        self.driver = driver
        self.kubelet = kubelet
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(PREFIX)},
            **driver.environment(library),
        }
        self.set(
            node=NODE,
            listen_host="127.0.0.1",
            kubelet_socket=str(kubelet.socket),
            state_dir=str(folder / "state"),
            kubernetes="off",
        )

    def set(self, **settings: str) -> None:
        """Change settings for the processes that are started from now on."""
        self.environment |= {f"{PREFIX}{key.upper()}": value for key, value in settings.items()}

    def run(self) -> Running:
        """Start the command; it may not listen yet."""
        return Running(self.environment, self.folder / "exporter.log")

    def start(self) -> Running:
        """Start the command and wait until it is ready."""
        running = self.run()
        try:
            eventually(lambda: running.get("/readyz")[0] == 200, running.log)
        except BaseException:
            running.end(signal.SIGKILL)
            raise
        return running

    def refusal(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """As ``once``, in this process: for what ends before anything is started."""
        return ended(main, arguments, self.environment)

    def once(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        return subprocess.run(
            [COMMAND, *arguments], env=self.environment, capture_output=True, text=True, check=False
        )


@contextmanager
def command_node(folder: Path, library: Path, driver: FakeDriver) -> Iterator[CommandNode]:
    """A node whose kubelet answers."""
    with FakeKubelet(folder / "kubelet.sock") as kubelet:
        yield CommandNode(folder, library, driver, kubelet)


def eventually(is_so: Callable[[], bool], log: Path | None = None, seconds: float = 60) -> None:
    """Wait until it is so. Raises AssertionError, with the log, when it never is."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, log.read_text() if log else "it did not come to be"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """Whether a process runs: not ended, and not a zombie either."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False
