"""The command as a process: it serves what is in the cluster, ends on a signal, and says what is wrong."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest

from gpucost.kube.parse.collections import collections
from gpucost_queue_collector.cli import main
from gpucost_queue_collector.settings import PREFIX, CollectorSettings, variable
from tests.cluster.builders import SECOND, T0
from tests.exporters.queue import world
from tests.support.cluster.server import ClusterServer
from tests.support.in_process import ended
from tests.support.ports import free_port

COMMAND = Path(sys.executable).with_name("gpucost-queue-collector")
AT_ONCE_S = 25.0
"""It waits five seconds at most for requests under way; the rest is a slow machine. One that says nothing
is left after 30 s."""
_OF_A_CLUSTER = ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "HOME")


def environment(folder: Path, **settings: object) -> dict[str, str]:
    """Nothing of this machine's cluster, and these settings."""
    plain = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(PREFIX) and name not in _OF_A_CLUSTER
    }
    ours = {f"{PREFIX}{key.upper()}": str(value) for key, value in settings.items()}
    return {**plain, "HOME": str(folder), **ours}


class Running:
    """One process of the command; ``log`` is what it says."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process, self.port, self.log = process, port, log

    def get(self, path: str) -> tuple[int, str]:
        """Status and body; 0 while no process listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def until(self, is_so: Callable[[], bool], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
        """Exit status, and the seconds it took."""
        began = time.monotonic()
        self.process.send_signal(number)
        return self.process.wait(90), time.monotonic() - began


@contextmanager
def running(folder: Path, **settings: object) -> Iterator[Running]:
    port, log = free_port(), folder / "collector.log"
    settings = {"listen_host": "127.0.0.1", "listen_port": port, "refresh": "1s", **settings}
    with log.open("w") as output:
        process = subprocess.Popen(
            [COMMAND], env=environment(folder, **settings), stdout=output, stderr=output
        )
    try:
        yield Running(process, port, log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(20)


@pytest.fixture
def server() -> Iterator[ClusterServer]:
    with ClusterServer() as found:
        found.put(world.node("gpu-1"))
        found.put(world.bound(world.pod("train-0"), "gpu-1", T0 + 10 * SECOND))
        yield found


@contextmanager
def silent_server() -> Iterator[str]:
    """Takes connections, and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_it_serves_the_cluster_and_ends_when_told(server: ClusterServer, tmp_path: Path) -> None:
    with running(tmp_path, kubernetes_url=server.url, replicas=2) as found:
        found.until(lambda: found.get("/readyz")[0] == 200)
        assert found.get("/healthz")[0] == 200
        status, text = found.get("/metrics")
        assert status == 200
        assert "gpucost_state_up 1.0\n" in text
        assert "gpucost_state_replicas 2.0\n" in text
        assert re.search(r'^gpucost_pod_gpu_request\{.*pod="train-0".*\} 8\.0$', text, re.MULTILINE)
        server.put(world.bound(world.pod("train-1"), "gpu-1", T0 + 20 * SECOND))
        found.until(lambda: 'pod="train-1"' in found.get("/metrics")[1])
        status, seconds = found.end()
        assert (status, seconds < AT_ONCE_S) == (0, True)
        log = found.log.read_text()
        assert "Traceback" not in log
        assert f"metrics on 127.0.0.1 port {found.port}" in log


def test_an_interrupt_is_no_error(server: ClusterServer, tmp_path: Path) -> None:
    with running(tmp_path, kubernetes_url=server.url) as found:
        found.until(lambda: found.get("/readyz")[0] == 200)
        status, seconds = found.end(signal.SIGINT)
        assert (status, seconds < AT_ONCE_S) == (0, True)
        assert "Traceback" not in found.log.read_text()


@pytest.mark.fault(14)
def test_forbidden_pods_are_no_reason_to_die_but_to_be_not_ready(
    server: ClusterServer, tmp_path: Path
) -> None:
    server.break_list("403", "pods", times=None)
    with running(tmp_path, kubernetes_url=server.url) as found:
        found.until(lambda: 'gpucost_node_info{node="gpu-1"' in found.get("/metrics")[1])
        assert "gpucost_state_up 0.0\n" in found.get("/metrics")[1]
        status, text = found.get("/readyz")
        assert (status, "not current" in text) == (503, True)
        assert found.get("/healthz")[0] == 200
        server.mend()
        found.until(lambda: found.get("/readyz")[0] == 200)


@pytest.mark.fault(14)
def test_what_is_optional_and_forbidden_holds_up_no_start(server: ClusterServer, tmp_path: Path) -> None:
    server.break_list("403", "resourceclaims.resource.k8s.io", times=None)
    with running(tmp_path, kubernetes_url=server.url) as found:
        found.until(lambda: found.get("/readyz")[0] == 200)


@pytest.mark.fault(15)
def test_it_ends_at_once_though_the_api_server_says_nothing(tmp_path: Path) -> None:
    with silent_server() as url, running(tmp_path, kubernetes_url=url) as found:
        found.until(lambda: found.get("/metrics")[0] == 200)
        assert found.get("/readyz")[0] == 503
        time.sleep(0.5)
        status, seconds = found.end()
        assert (status, seconds < AT_ONCE_S) == (0, True), found.log.read_text()


def test_the_log_of_an_outage_is_a_few_lines(server: ClusterServer, tmp_path: Path) -> None:
    server.break_list("403", "pods", times=None)
    server.break_list("403", "nodes", times=None)
    with running(tmp_path, kubernetes_url=server.url) as found:
        found.until(lambda: "2 cannot be read: http_403 (pods, nodes)" in found.log.read_text())
        found.until(lambda: "gpucost_state_up is 0" in found.log.read_text())
        server.mend()
        found.until(lambda: "gpucost_state_up is 1" in found.log.read_text())
        lines = found.log.read_text().splitlines()
    assert len([line for line in lines if "gpucost.kube.watch.reflector" in line]) == 1
    assert "are not installed" in lines[-1] + lines[-2]
    assert "cannot be read" not in lines[-1] + lines[-2]
    assert len(lines) <= 8


# What can be read


def test_check_says_what_can_be_read(server: ClusterServer, tmp_path: Path) -> None:
    done = once(tmp_path, "--check", kubernetes_url=server.url)
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows, total = (line.split(maxsplit=3) for line in done.stdout.splitlines())
    assert head == ["COLLECTION", "VERSION", "OBJECTS", "PROBLEM"]
    assert ["pods", "v1", "1"] in rows
    assert ["nodes", "v1", "1"] in rows
    assert "cannot" not in " ".join(total)
    assert len(rows) == len(collections())


def test_check_names_what_cannot_be_read(server: ClusterServer, tmp_path: Path) -> None:
    server.break_list("403", "resourceclaims.resource.k8s.io", times=None)
    done = once(tmp_path, "--check", kubernetes_url=server.url)
    assert done.returncode == 1
    assert re.search(r"^resourceclaims.resource.k8s.io +- +- +http_403$", done.stdout, re.MULTILINE)
    assert "1 cannot be read: http_403 (resourceclaims.resource.k8s.io)" in done.stdout
    assert "docs/queue-collector.md" in done.stdout.splitlines()[-1]
    assert len(done.stderr.splitlines()) == 1  # the server's own words


def test_check_of_a_server_that_is_not_there(tmp_path: Path) -> None:
    done = once(tmp_path, "--check", kubernetes_url=f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert "0 collections are read" in done.stdout
    assert re.search(r"^pods +- +- +unreachable$", done.stdout, re.MULTILINE)
    assert len(done.stderr.splitlines()) == 1  # not one for each collection
    assert "Connection refused" in done.stderr


# What is wrong


def once(folder: Path, *arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    settings = {"listen_host": "127.0.0.1", "listen_port": 0, **settings}
    env = environment(folder, **settings)
    return subprocess.run(
        [COMMAND, *arguments], env=env, capture_output=True, text=True, check=False, timeout=120
    )


def refusal(folder: Path, *arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """As ``once``, in this process: for what ends before anything is started."""
    return ended(main, arguments, environment(folder, listen_host="127.0.0.1", listen_port=0, **settings))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"refresh": "2m"},
            "environment: GPUCOST_QUEUE_COLLECTOR_REFRESH: '2m' is not allowed; allowed: 1s to 30s",
        ),
        (
            {"refrsh": "5s"},
            "environment: GPUCOST_QUEUE_COLLECTOR_REFRSH: unknown setting; "
            "allowed: GPUCOST_QUEUE_COLLECTOR_REFRESH (did you mean this?)",
        ),
        (
            {"kubernetes_url": "http://127.0.0.1:1", "context": "prod"},
            "environment: GPUCOST_QUEUE_COLLECTOR_KUBERNETES_URL: 'http://127.0.0.1:1' is not allowed; "
            "allowed: none where a kubeconfig or context is given",
        ),
    ],
    ids=["value", "name", "two ways"],
)
def test_a_wrong_setting_is_said_in_one_line(
    tmp_path: Path, settings: Mapping[str, object], expected: str
) -> None:
    done = refusal(tmp_path, **settings)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"gpucost-queue-collector: {expected}\n"


def test_without_any_way_to_a_cluster(tmp_path: Path) -> None:
    done = once(tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gpucost-queue-collector: ")
    assert "kubeconfig" in done.stderr.lower()
    assert len(done.stderr.splitlines()) == 1


def test_a_port_that_is_taken_is_named_with_its_setting(server: ClusterServer, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = once(tmp_path, kubernetes_url=server.url, listen_port=port)
    assert (done.returncode, done.stdout) == (2, "")
    last = done.stderr.splitlines()[-1]
    variable = "GPUCOST_QUEUE_COLLECTOR_LISTEN_PORT"
    assert last.startswith(
        f"gpucost-queue-collector: {variable}: '127.0.0.1:{port}' is not allowed; allowed: "
    )
    assert "Traceback" not in done.stderr


def test_help_and_version(tmp_path: Path) -> None:
    done = once(tmp_path, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "docs/queue-collector.md" in " ".join(done.stdout.split())
    named = set(re.findall(rf"{PREFIX}\w+", done.stdout))
    assert {f"{PREFIX}KUBECONFIG", f"{PREFIX}LISTEN_PORT", f"{PREFIX}TEAM_LABELS"} <= named
    assert named <= {variable(key) for key in CollectorSettings.model_fields}
    assert max(map(len, done.stdout.splitlines())) <= 100
    done = refusal(tmp_path, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{version('gpucost')}\n", "")
    done = refusal(tmp_path, "now")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
