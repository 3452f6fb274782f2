"""A GPU node in virtual time: driver, kubelet and /proc are stand-ins, everything else is the exporter.

The exporter runs in this process; its driver process is a real one with the real nvidia-ml-py over our own
library, the kubelet a real gRPC server.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

from gpucost_exporter_base.exposition import MetricExposition
from gpucost_gpu_exporter.dcgm.endpoint import DcgmSecondSource
from gpucost_gpu_exporter.driver_link import DriverLink
from gpucost_gpu_exporter.exporter import ExporterClock, GpuExporter
from gpucost_gpu_exporter.holders import DeviceHolders
from gpucost_gpu_exporter.kubelet.client import PodResources
from gpucost_gpu_exporter.metering.process_owners import ProcessOwners
from gpucost_gpu_exporter.metric_families import ExporterSnapshot
from gpucost_gpu_exporter.model.holdings import DraDevice
from gpucost_gpu_exporter.state_file import StateFile
from tests.support.kubelet import FakeKubelet
from tests.support.nvml.build import build_double
from tests.support.nvml.driver import FakeBoard, FakeDriver, FakeProcess
from tests.support.nvml.load import Loads

START_MS = 1_793_491_200_000  # 2026-11-01T00:00:00Z
SECOND = 10**9
_TICKS = 100


class Names:
    """Pods as the watch would know them."""

    problem = ""

    def __init__(self) -> None:
        self.uids: dict[tuple[str, str], str] = {}
        self.over: set[tuple[str, str]] = set()
        self.slices: dict[str, DraDevice] = {}
        self.version = 0

    def uid(self, namespace: str, name: str) -> str | None:
        return self.uids.get((namespace, name))

    def is_finished(self, namespace: str, name: str) -> bool:
        return (namespace, name) in self.over

    def devices(self) -> Mapping[str, DraDevice]:
        return self.slices


class GpuNode:
    """One node. ``tick`` lets virtual time pass under a load and makes the exporter collect."""

    def __init__(self, folder: Path, library: Path, boards: Iterable[FakeBoard]) -> None:
        self.folder = folder
        self.driver = FakeDriver(folder / "nvml.state", boards)
        self.kubelet = FakeKubelet(folder / "kubelet.sock")
        self.names = Names()
        self.proc = folder / "proc"
        self.proc.mkdir()
        self.now_ns = 1_000 * SECOND
        self.boot_id = "boot-1"
        self.library = library
        self.exporter: GpuExporter | None = None
        self.state_dir: Path | None = folder / "state"
        self.can_see_processes = True
        self.dcgm: DcgmSecondSource | None = None
        self.timeout_s = self.first_timeout_s = 60.0
        self.asked_ns = 0

    def wall_ms(self) -> int:
        return START_MS + (self.now_ns - 1_000 * SECOND) // 1_000_000

    def boot_ns(self) -> int:
        return self.now_ns

    @property
    def running(self) -> GpuExporter:
        assert self.exporter is not None
        return self.exporter

    def start(self) -> GpuExporter:
        """Start an exporter on what is there, as a DaemonSet pod would."""
        self.driver.write()
        environment = {**os.environ, **self.driver.environment(self.library)}
        seeded = random.Random(7)

        def driver(resume: Mapping[str, int]) -> DriverLink:
            return DriverLink(
                environment=environment,
                clock=lambda: self.now_ns / SECOND,
                random=seeded.random,
                resume=resume,
                timeout_s=self.timeout_s,
                first_timeout_s=self.first_timeout_s,
            )

        state_file = StateFile(self.state_dir, self.boot_id)
        assert state_file.acquire()
        self.holders = DeviceHolders(PodResources(self.kubelet.socket), self.names, self.boot_ns)
        self.exporter = GpuExporter(
            "node-1",
            ExporterClock(self.boot_ns, self.wall_ms),
            driver,
            self.holders,
            state_file,
            ProcessOwners(self.proc) if self.can_see_processes else None,
            dcgm=self.dcgm,
        )
        self.exposition = MetricExposition([self.exporter.source])
        self.holders.refresh()
        return self.exporter

    def stop(self) -> None:
        """End the exporter's process, as SIGKILL would: nothing is saved beyond what was."""
        if self.exporter is not None:
            self.holders.close()
            self.exporter.close()
            self.exporter.stop_driver()
            self.exporter = None

    def pass_time(self, seconds: float, loads: Loads | None = None) -> None:
        """Let time pass without an exporter."""
        self.now_ns += round(seconds * SECOND)
        self.driver.advance(round(seconds * SECOND), loads or {})
        self.driver.write()

    def tick(self, seconds: float = 1.0, loads: Loads | None = None) -> ExporterSnapshot:
        """Let time pass, ask the kubelet as often as its thread would, and collect once."""
        self.pass_time(seconds, loads)
        if self.now_ns >= self.asked_ns + 5 * SECOND:
            self.asked_ns = self.now_ns
            self.holders.refresh()
        return self.running.collect()

    def ticks(self, count: int, loads: Loads | None = None) -> ExporterSnapshot:
        for _ in range(count - 1):
            self.tick(1.0, loads)
        return self.tick(1.0, loads)

    def pod(self, name: str, *device_ids: str, uid: str = "", resource: str = "nvidia.com/gpu") -> str:
        """A pod of namespace ``team`` is given devices; returns its uid."""
        uid = uid or uid_of(name)
        self.names.uids["team", name] = uid
        self.names.over.discard(("team", name))
        self.names.version += 1
        self.kubelet.hold("team", name, *device_ids, resource=resource)
        self._changed()
        return uid

    def end(self, name: str) -> None:
        """The pod has ended and the kubelet lists it no more."""
        self.names.over.add(("team", name))
        self.names.version += 1
        self.kubelet.remove("team", name)
        self._changed()

    def process(self, board: FakeBoard, pid: int, pod_uid: str | None, comm: str = "python") -> None:
        """A process on a GPU, in the pod's cgroup; None: outside Kubernetes, "": without a /proc entry."""
        board.processes.append(FakeProcess(pid, 1 << 30))
        if pod_uid == "":
            return
        folder = self.proc / str(pid)
        folder.mkdir()
        path = "/system.slice/x.service"
        if pod_uid is not None:
            unit = pod_uid.replace("-", "_")
            path = f"/kubepods.slice/kubepods-pod{unit}.slice/cri-containerd-{'a' * 64}.scope"
        (folder / "cgroup").write_text(f"0::{path}\n")
        fields = " ".join(["S", *["0"] * 18, str(_TICKS + pid), *["0"] * 30])
        (folder / "stat").write_text(f"{pid} ({comm}) {fields}\n")

    def _changed(self) -> None:
        if self.exporter is not None:
            self.holders.refresh()
            # What the exporter's own loop does when it is woken: the interval is cut here.
            self.exporter.collect()


def uid_of(name: str) -> str:
    """A pod UID that is the same in each run."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


@contextmanager
def gpu_node(folder: Path, library: Path, *boards: FakeBoard) -> Iterator[GpuNode]:
    """A node whose kubelet answers; its exporter is not started yet."""
    node = GpuNode(folder, library, boards)
    with node.kubelet:
        try:
            yield node
        finally:
            node.stop()


def of(snapshot: ExporterSnapshot, measure: str, **labels: str) -> float:
    """The sum of a holder measure, in seconds or joules, over the rows with these values."""
    total = Fraction(0)
    for row, amounts in snapshot.accounts.rows.items():
        found = {
            "holder": row.who.holder.value,
            "pod": row.who.pod.name,
            "pod_uid": row.who.pod.uid,
            "gpu": row.device.gpu_uuid,
            "instance": row.device.gpu_instance,
            "method": row.method.value,
        }
        if all(found[name] == value for name, value in labels.items()):
            scale = 1 << 14 if measure == "energy_joules" else 1 << 20
            total += Fraction(dict(amounts).get(measure, 0), scale)  # type: ignore[call-overload]
    return float(total)


__all__ = ["GpuNode", "build_double", "gpu_node", "of", "uid_of"]
