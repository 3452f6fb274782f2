"""A node of eight time-sliced GPUs with 64 pods, each with one process, as stand-ins."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gpucost_gpu_exporter.metric_families import ExporterSnapshot
from tests.support.gpu_command import CommandNode, command_node, node_api
from tests.support.gpu_node import gpu_node, uid_of
from tests.support.kube import pod
from tests.support.nvml.build import build_double
from tests.support.nvml.driver import DeviceLoad, FakeBoard, FakeDriver, FakeProcess

UUIDS = tuple(f"GPU-{board:08x}-0000-4000-8000-000000000000" for board in range(8))
REPLICAS = 8
FIRST_PID = 10_000
PIDS = {uuid: [FIRST_PID + REPLICAS * board + n for n in range(REPLICAS)] for board, uuid in enumerate(UUIDS)}
# A GPU works at 72 %, and each of its pods another part of that.
LOADS = {
    uuid: DeviceLoad(
        busy=0.9,
        sm=0.72,
        tensor=0.3,
        watts=500,
        processes={pid: 2.0 * (n + 1) for n, pid in enumerate(pids)},
        throttled={74: 0.1},
    )
    for uuid, pids in PIDS.items()
}


def name_of(pid: int) -> str:
    """The pod that a process is in."""
    return f"notebook-{pid - FIRST_PID:02}"


@contextmanager
def busy_node(folder: Path) -> Iterator[CommandNode]:
    """The node for the command in a process of its own; nothing moves yet."""
    driver = FakeDriver(folder / "nvml.state", _boards())
    with ExitStack() as parts:
        node = parts.enter_context(command_node(folder, build_double(folder), driver))
        pods = [pod(name_of(pid), uid_of(name_of(pid))) for pids in PIDS.values() for pid in pids]
        api = parts.enter_context(node_api(*pods))
        for uuid, pids in PIDS.items():
            for replica, pid in enumerate(pids):
                node.kubelet.hold("team", name_of(pid), f"{uuid}::{replica}")
        node.kubelet.allocatable = {"nvidia.com/gpu": [f"{u}::{n}" for u in UUIDS for n in range(REPLICAS)]}
        _write_proc(folder / "proc")
        node.set(processes="true", proc_root=str(folder / "proc"))
        node.set(kubernetes="url", kubernetes_url=api.url)
        driver.write()
        yield node


def snapshot(seconds: int) -> ExporterSnapshot:
    """What an exporter in this process shows of such a node after so many seconds of made time."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with gpu_node(folder, build_double(folder), *(FakeBoard(uuid) for uuid in UUIDS)) as node:
            for board in node.driver.boards:
                for replica, pid in enumerate(PIDS[board.uuid]):
                    node.process(board, pid, node.pod(name_of(pid), f"{board.uuid}::{replica}"))
            node.start()
            return node.ticks(seconds, LOADS)


def _boards() -> list[FakeBoard]:
    return [FakeBoard(uuid, processes=[FakeProcess(pid, 4 << 30) for pid in PIDS[uuid]]) for uuid in UUIDS]


def _write_proc(proc: Path) -> None:
    """The host's /proc as mounted into a container: the exporter has a PID in two namespaces."""
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "status").write_text("NSpid:\t4242\t7\n")
    for pid in (pid for pids in PIDS.values() for pid in pids):
        (proc / str(pid)).mkdir()
        cgroup = f"0::/kubepods/burstable/pod{uid_of(name_of(pid))}/{'a' * 64}\n"
        (proc / str(pid) / "cgroup").write_text(cgroup)
        (proc / str(pid) / "stat").write_text(f"{pid} (python) S {'0 ' * 18}{pid} {'0 ' * 30}\n")
