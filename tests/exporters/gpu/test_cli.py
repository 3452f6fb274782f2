"""The command at a shell: help, mistakes, and a look with ``--once``."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.gpu_command import CommandNode, command_node, moving, node_api
from tests.support.http import Reply, scripted_server
from tests.support.kube import pod
from tests.support.nvml.build import build_double
from tests.support.nvml.driver import DeviceLoad, FakeBoard, FakeDriver

DCGM_TEXT = (Path(__file__).parent / "dcgm" / "classic.prom").read_text()
BOARD = "GPU-0a000000-0000-4000-8000-000000000001"


@pytest.fixture
def node(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandNode]:
    """A node with one GPU of before Hopper, which the pod ``train`` holds."""
    library = build_double(tmp_path_factory.getbasetemp())
    driver = FakeDriver(tmp_path / "nvml.state", [FakeBoard(BOARD, "NVIDIA A100-SXM4-80GB", gpm=None)])
    with command_node(tmp_path, library, driver) as made:
        made.kubelet.allocatable = {"nvidia.com/gpu": [BOARD]}
        made.kubelet.hold("team", "train", BOARD)
        yield made


def test_help_says_where_settings_are_documented(node: CommandNode) -> None:
    done = node.once("--help")
    assert (done.returncode, done.stderr) == (0, "")
    words = " ".join(done.stdout.split())
    assert "Settings are environment variables" in words
    assert "docs/gpu-exporter.md" in words
    assert "--once" in words


def test_version(node: CommandNode) -> None:
    done = node.refusal("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{version('gpucost')}\n", "")


@pytest.mark.parametrize(
    ("settings", "arguments", "expected"),
    [
        (
            {"interval": "2s"},
            (),
            "environment: GPUCOST_GPU_EXPORTER_INTERVAL: '2s' is not allowed; allowed: 100ms to 1s",
        ),
        (
            {"intervall": "1s"},
            (),
            "environment: GPUCOST_GPU_EXPORTER_INTERVALL: unknown setting; "
            "allowed: GPUCOST_GPU_EXPORTER_INTERVAL (did you mean this?)",
        ),
        (
            {"kubernetes": "in-cluster"},
            (),
            "KUBERNETES_SERVICE_HOST: missing; "
            "allowed: the address of the API server, as Kubernetes sets it in pods",
        ),
        (
            {"kubernetes": "url", "kubernetes_url": "http://127.0.0.1:1", "node": "No_Node"},
            (),
            "GPUCOST_GPU_EXPORTER_NODE: 'No_Node' is not allowed; "
            "allowed: the name of a node, such as gpu-7.example",
        ),
        (
            {"listen_host": "0.0.0.0"},
            (),
            "GPUCOST_GPU_EXPORTER_SCRAPE_TOKEN_FILES: missing; allowed: files with a token for who scrapes; "
            "or scrape_auth off, or a listen_host such as 127.0.0.1",
        ),
        ({}, ("--once", "--seconds", "0"), "--seconds: 0.0 is not allowed; allowed: 1 to 60"),
        ({}, ("--once", "--seconds", "nan"), "--seconds: nan is not allowed; allowed: 1 to 60"),
        ({}, ("--once", "--seconds", "3600"), "--seconds: 3600.0 is not allowed; allowed: 1 to 60"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    node: CommandNode, settings: dict[str, str], arguments: tuple[str, ...], expected: str
) -> None:
    node.environment.pop("KUBERNETES_SERVICE_HOST", None)
    node.set(**settings)
    # What only a start finds out needs a process, which takes with it what was opened.
    starts = not settings.keys().isdisjoint({"kubernetes", "listen_host"})
    done = (node.once if starts else node.refusal)(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"gpucost-gpu-exporter: {expected}\n"


def test_seconds_are_for_a_look(node: CommandNode) -> None:
    done = node.refusal("--seconds", "5")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--seconds is for --once" in done.stderr


@pytest.mark.parametrize("kind", ["auto", "in-cluster", "url"])
def test_a_pod_is_told_the_name_of_its_node(node: CommandNode, kind: str) -> None:
    url = {"kubernetes_url": "http://127.0.0.1:1"} if kind == "url" else {}
    node.environment |= {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
    node.set(kubernetes=kind, node="", **url)
    done = node.once()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "gpucost-gpu-exporter: GPUCOST_GPU_EXPORTER_NODE: missing; "
        "allowed: the name of the node, from spec.nodeName\n"
    )


def test_at_a_shell_the_host_s_name_will_do(node: CommandNode) -> None:
    node.environment.pop("KUBERNETES_SERVICE_HOST", None)
    node.set(kubernetes="auto", node="")
    with moving(node.driver, {}):
        done = node.once("--once", "--seconds", "1")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("host", ["no such host", "192.0.2.1"])
def test_a_host_that_is_none_is_named_with_its_setting(node: CommandNode, host: str) -> None:
    node.set(listen_host=host, scrape_auth="off")
    done = node.once()
    assert (done.returncode, done.stdout) == (2, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"gpucost-gpu-exporter: GPUCOST_GPU_EXPORTER_LISTEN_HOST: '{host}' is not allowed")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [("--once", "--seconds", "abc"), ("--onc",), ("now",)])
def test_arguments_that_are_none(node: CommandNode, arguments: tuple[str, ...]) -> None:
    done = node.refusal(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert arguments[-1] in done.stderr
    assert "Traceback" not in done.stderr


def test_a_token_goes_over_no_open_connection(node: CommandNode, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret-token\n")
    node.set(kubernetes="url", kubernetes_url="http://192.0.2.1", kubernetes_token_file=str(token))
    done = node.once("--once")
    assert (done.returncode, done.stdout) == (2, "")
    assert "GPUCOST_GPU_EXPORTER_KUBERNETES_URL: " in done.stderr
    assert "https" in done.stderr
    assert "secret-token" not in done.stderr


def test_a_look(node: CommandNode) -> None:
    loads = {BOARD: DeviceLoad(busy=0.75, watts=300)}
    reply = Reply(body=DCGM_TEXT, content_type="text/plain")
    with (
        moving(node.driver, loads),
        node_api(pod("train", "uid-1")) as api,
        scripted_server(reply) as dcgm,
    ):
        node.set(kubernetes="url", kubernetes_url=api.url, dcgm_url=f"{dcgm.url}/metrics")
        started = time.monotonic()
        done = node.once("--once", "--seconds", "1")
        assert time.monotonic() - started >= 1
    assert (done.returncode, done.stderr) == (0, "")
    head, row, *missing = done.stdout.splitlines()
    assert head.split() == ["GPU", "WHAT", "HELD", "BY", "SHARE", "BUSY", "SM", "TENSOR", "POWER", "METHOD"]
    found = re.fullmatch(
        rf"{BOARD}  NVIDIA A100-SXM4-80GB  team/train  1      (\d+)%   50%  25%     (\d+) W  exact", row
    )
    assert found, row
    assert 65 <= int(found[1]) <= 85
    assert 200 <= int(found[2]) <= 400
    assert missing[0] == (
        "missing: whose the processes on shared GPUs are: GPUCOST_GPU_EXPORTER_PROCESSES is false "
        "(host_pids off)"
    )


def test_a_look_leaves_the_exporter_that_runs_alone(node: CommandNode, tmp_path: Path) -> None:
    with moving(node.driver, {}), node.start() as running:
        taken = str(running.port)
        node.set(listen_port=taken)
        done = node.once("--once", "--seconds", "1")
        assert (done.returncode, done.stderr) == (0, "")
        assert "team/train" in done.stdout
        assert running.get("/readyz")[0] == 200
    assert sorted(file.name for file in (tmp_path / "state").iterdir()) == ["lock", "state.json"]


@pytest.mark.fault(1)
def test_a_look_without_a_driver(node: CommandNode) -> None:
    node.environment["LD_LIBRARY_PATH"] = ""
    done = node.once("--once", "--seconds", "1")
    assert (done.returncode, done.stderr) == (0, "")
    head, driver, *_ = done.stdout.splitlines()
    assert head == "no GPUs found"
    assert driver == (
        "missing: the GPU driver: libnvidia-ml.so.1 is not here; in a container, the driver was not injected "
        "(driver LIBRARY_NOT_FOUND)"
    )


def test_a_look_without_a_kubelet(node: CommandNode, tmp_path: Path) -> None:
    node.set(kubelet_socket=str(tmp_path / "none.sock"))
    with moving(node.driver, {}):
        done = node.once("--once", "--seconds", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(rf"^{BOARD}  NVIDIA A100-SXM4-80GB  __unknown__  1 ", done.stdout, re.MULTILINE)
    assert (
        "missing: who holds the GPUs: the kubelet's socket is not at GPUCOST_GPU_EXPORTER_KUBELET_SOCKET "
        "(kubelet no_socket)\n"
    ) in done.stdout
