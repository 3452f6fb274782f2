"""Settings -> a running exporter: the only place that knows all parts and the real clocks."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.kube.connect.http_transport import HttpTransport
from gpucost.kube.parse.events import Object
from gpucost.kube.watch.reflector import Reflector
from gpucost_exporter_base.endpoint import HealthChecks, HttpEndpoint, Route
from gpucost_exporter_base.exposition import MetricExposition
from gpucost_exporter_base.scrape_access import METRICS, listening
from gpucost_gpu_exporter.dcgm.endpoint import DcgmEndpoint, DcgmSecondSource
from gpucost_gpu_exporter.driver_link import FIRST_REPLY_S, DriverLink
from gpucost_gpu_exporter.exporter import ExporterClock, GpuExporter
from gpucost_gpu_exporter.holders import DeviceHolders, NoPodNames, PodNames
from gpucost_gpu_exporter.kubelet.client import PodResources
from gpucost_gpu_exporter.metering.process_owners import ProcessOwners, pid_view
from gpucost_gpu_exporter.model.holdings import DraDevice
from gpucost_gpu_exporter.node_pods import (
    NodePods,
    NodeSlices,
    pod_reflector,
    slice_reflector,
)
from gpucost_gpu_exporter.settings import ExporterSettings
from gpucost_gpu_exporter.state_file import StateFile

# A snapshot older than this many intervals means that collecting has stopped.
STALE_AFTER_INTERVALS = 30
# How long the first collection waits for the API server, and then for the kubelet.
FIRST_PODS_S = 5.0
_FORBIDDEN = ("http_401", "http_403")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


REAL_CLOCK = ExporterClock(boot_ns, wall_ms)


class WatchedPods:
    """The pod watch and the ResourceSlices of the node, in the form that ``DeviceHolders`` takes."""

    def __init__(self, pods: NodePods, slices: NodeSlices) -> None:
        self._pods = pods
        self._slices = slices

    def uid(self, namespace: str, name: str) -> str | None:
        return self._pods.uid(namespace, name)

    def is_finished(self, namespace: str, name: str) -> bool:
        return self._pods.is_finished(namespace, name)

    def devices(self) -> Mapping[str, DraDevice]:
        return self._slices.devices()

    @property
    def version(self) -> object:
        return self._pods.reflector.version, self._slices.reflector.version

    @property
    def problem(self) -> str:
        reflector = self._pods.reflector
        if not reflector.problem:
            return "" if reflector.synced else "starting"
        return "forbidden" if reflector.problem in _FORBIDDEN else "unreachable"


@dataclass(slots=True)
class GpuExporterProcess:
    """An exporter with its threads and its endpoint, None where it does not listen and is not started.
    ``start`` and ``close`` each once."""

    exporter: GpuExporter
    holders: DeviceHolders
    endpoint: HttpEndpoint | None
    settings: ExporterSettings
    reflectors: tuple[Reflector[Object], ...] = ()
    dcgm: DcgmEndpoint | None = None
    threads: list[threading.Thread] = field(default_factory=list)
    _closing: threading.Event = field(default_factory=threading.Event)

    def start(self) -> int:
        """Start everything; returns the port that is listened on. Raises InputError when it is taken."""
        assert self.endpoint is not None
        port = self.endpoint.start()
        for reflector in self.reflectors:
            reflector.start()
        if self.dcgm:
            self.dcgm.start()
        self._thread("kubelet", self._ask_kubelet)
        self._thread("collector", self._collect)
        return port

    def close(self) -> None:
        """Stop in order; the last counters are saved, and the driver's process is ended."""
        self.exporter.close()
        self._closing.set()
        self.holders.close()
        for reflector in self.reflectors:
            reflector.close()
        if self.dcgm:
            self.dcgm.close()
        for thread in self.threads:
            thread.join(self.settings.driver_timeout.total_seconds() + 2)
        self.exporter.stop_driver()
        if self.endpoint:
            self.endpoint.close()

    def wait_for_pods(self, seconds: float) -> None:
        """Wait until the watches have listed all objects, for ``seconds`` at most."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not all(watch.synced for watch in self.reflectors):
            if self._closing.wait(0.02):
                return

    def _ask_kubelet(self) -> None:
        self.holders.run(self.settings.kubelet_interval.total_seconds())

    def _collect(self) -> None:
        # A holder seen before its uid is known would count as another one afterwards.
        self.wait_for_pods(FIRST_PODS_S)
        self.holders.asked.wait(FIRST_PODS_S)
        self.exporter.run(self.settings.interval.total_seconds())

    def _thread(self, name: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self.threads.append(thread)
        thread.start()


def assemble(
    settings: ExporterSettings,
    environ: Mapping[str, str],
    state_file: StateFile,
    clock: ExporterClock = REAL_CLOCK,
    *,
    listens: bool = True,
) -> GpuExporterProcess:
    """All parts of an exporter with these settings, none started yet; ``state_file`` is read.

    Raises InputError for an address that cannot be used, and where scrapes would be open (``listening``).
    """
    pods, reflectors, wakes = _pods(settings, environ)
    kubelet = PodResources(settings.kubelet_socket, resources=settings.extra_resources)
    dcgm = _dcgm(settings, clock)
    view = pid_view(settings.proc_root)
    is_split = settings.processes and view.host

    def driver(resume: Mapping[str, int]) -> DriverLink:
        timeout_s = settings.driver_timeout.total_seconds()
        return DriverLink(
            random=random.random,
            timeout_s=timeout_s,
            resume=resume,
            environment=environ,
        )

    holders = DeviceHolders(kubelet, pods, clock.boot_ns)
    exporter = GpuExporter(
        settings.node_name,
        clock,
        driver,
        holders,
        state_file,
        ProcessOwners(settings.proc_root) if is_split else None,
        view.code if settings.processes else "off",
        DcgmSecondSource(dcgm) if dcgm else None,
    )
    holders.on_change(exporter.wake)
    wakes += [holders.wake, exporter.wake]
    routes = _routes(exporter, settings, clock)
    endpoint = listening(settings, settings.listen_port, routes) if listens else None
    return GpuExporterProcess(exporter, holders, endpoint, settings, reflectors, dcgm)


def _routes(exporter: GpuExporter, settings: ExporterSettings, clock: ExporterClock) -> Mapping[str, Route]:
    longest_look_s = max(settings.driver_timeout.total_seconds(), FIRST_REPLY_S) + 2 * FIRST_PODS_S
    stale_s = STALE_AFTER_INTERVALS * settings.interval.total_seconds() + longest_look_s
    started_ns = clock.boot_ns()

    def alive() -> str:
        collected_ns = exporter.collected_ns
        age_s = (clock.boot_ns() - (started_ns if collected_ns is None else collected_ns)) / 1e9
        return f"no collection for {age_s:.0f} s" if age_s > stale_s else ""

    def ready() -> str:
        return "no collection yet" if exporter.collected_ns is None else alive()

    return {
        METRICS: MetricExposition([exporter.source]).answer,
        "/healthz": HealthChecks({"collection": alive}).answer,
        "/readyz": HealthChecks({"collection": ready}).answer,
    }


def _pods(
    settings: ExporterSettings, environ: Mapping[str, str]
) -> tuple[PodNames, tuple[Reflector[Object], ...], list[Callable[[], None]]]:
    """The names and UIDs of pods; the list takes the functions to call when something changed on the node."""
    wakes: list[Callable[[], None]] = []
    is_off = settings.kubernetes == "auto" and "KUBERNETES_SERVICE_HOST" not in environ
    if is_off or settings.kubernetes == "off":
        return NoPodNames(), (), wakes
    if not settings.node:  # in a pod, the host's name is the pod's, and no pod runs on a node of that name
        raise InputError("node", ErrorRemark("missing"), "the name of the node, from spec.nodeName")
    transport = _transport(settings, environ)

    def changed() -> None:
        for wake in wakes:
            wake()

    pods = NodePods(pod_reflector(transport, settings.node, changed))
    slices = NodeSlices(slice_reflector(transport, settings.node, changed))
    return WatchedPods(pods, slices), (pods.reflector, slices.reflector), wakes


def _transport(settings: ExporterSettings, environ: Mapping[str, str]) -> HttpTransport:
    if settings.kubernetes != "url":
        return HttpTransport.in_cluster(environ)
    try:
        return HttpTransport(
            settings.kubernetes_url, settings.kubernetes_token_file, settings.kubernetes_ca_file
        )
    except InputError as error:
        raise InputError("kubernetes_url", error.value, error.allowed) from error


def _dcgm(settings: ExporterSettings, clock: ExporterClock) -> DcgmEndpoint | None:
    if not settings.dcgm_url:
        return None
    interval_s = settings.dcgm_interval.total_seconds()
    return DcgmEndpoint(settings.dcgm_url, clock=clock.boot_ns, interval_s=interval_s)


def boot_id() -> str:
    """The kernel's id of this boot of the node; empty where it gives none."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
