"""The GPU exporter of one node: looks every second, brings the counters up to date, and publishes them.

``collect`` is one such step and all of the logic; ``run`` repeats it, and besides whenever a pod of the node
comes or goes (``wake``). A scrape reads the latest snapshot and never waits for a step.

A step: read the driver, in a process of its own that can be killed when the driver hangs (``driver_link``);
fill gaps from dcgm-exporter where it is set up; ask the kubelet who holds which device (``holders``); add the
time since the last step to those who held the GPUs *then* (``metering.meter``); then note who holds them now.

Counters, because a scrape that is lost must lose nothing: a counter still has the time, a gauge does not.
They count GPU seconds and joules per pod. State is written before a page is published (``state_file``), so
that an exporter that is killed never comes back with less than somebody has read. A restart is bridged up to
an hour, for holders that are provably the same before and after; a longer absence is not observed time.

What cannot be known is missing, and never 0: each missing part is named with a reason (``missing_parts``), on
``/metrics`` and in words in the log. A GPU that the driver no longer shows stays, as lost, while its pod
holds it. A pod's series stay for ten minutes after it gave its GPUs back, so that the last scrape has the
total.

``boot_ns`` counts from the boot of the node, for lengths of time; ``wall_ms`` is UTC, for timestamps only: a
clock that is set moves no counter.

``assemble`` puts it together; the command ``gpucost-gpu-exporter`` runs it. Its metrics are declared in
``gpucost.contract.gpu_metrics``, and written by ``metric_families``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpucost_gpu_exporter.dcgm.endpoint import DcgmSecondSource
from gpucost_gpu_exporter.driver_link import DriverDown, DriverLink
from gpucost_gpu_exporter.holders import DeviceHolders
from gpucost_gpu_exporter.metering.meter import (
    NO_SECOND,
    GpuMeter,
    HoldingsOfDevice,
    SecondSource,
)
from gpucost_gpu_exporter.metering.missing_parts import (
    NODE,
    MissingPart,
    MissingParts,
    missing_parts_of,
)
from gpucost_gpu_exporter.metering.process_owners import ProcessOwner, ProcessOwners
from gpucost_gpu_exporter.metric_families import (
    ExporterSnapshot,
    GpuView,
    SelfCounts,
    SnapshotSource,
)
from gpucost_gpu_exporter.model.holdings import (
    SECOND_NS,
    DeviceHolding,
    DeviceKey,
    GpuTopology,
)
from gpucost_gpu_exporter.model.readings import GpuReading, NodeReading
from gpucost_gpu_exporter.state_file import ExporterState, StateFile
from gpucost_gpu_exporter.text_report import sentences

logger = logging.getLogger(__name__)

# The contract's promise: a pod's series can be scraped for ten minutes after it gave its GPU back.
KEEP_NS = 600 * SECOND_NS
# The least time between two collections, however often something changes on the node.
LEAST_INTERVAL_S = 0.1
# A longer absence of the exporter is not bridged, even if the same pods held the GPUs before and after.
MAX_BRIDGE_NS = 3_600 * SECOND_NS


@dataclass(frozen=True, slots=True)
class ExporterClock:
    """``boot_ns`` counts from the boot of the node, also over a suspend; ``wall_ms`` is UTC since 1970."""

    boot_ns: Callable[[], int]
    wall_ms: Callable[[], int]


class GpuExporter:
    """One node's exporter.

    ``processes`` is None when the driver's PIDs cannot be understood; ``why_no_processes`` is the reason.
    """

    def __init__(
        self,
        node: str,
        clock: ExporterClock,
        driver: Callable[[Mapping[str, int]], DriverLink],
        holders: DeviceHolders,
        state_file: StateFile,
        processes: ProcessOwners | None = None,
        why_no_processes: str = "",
        dcgm: DcgmSecondSource | None = None,
    ) -> None:
        self.source = SnapshotSource()
        self._node = node
        self._clock = clock
        self._holders = holders
        self._state_file = state_file
        self._processes = processes
        self._why_no_processes = why_no_processes
        self._dcgm = dcgm
        self._lacks = MissingParts()
        self._errors: Counter[tuple[str, str]] = Counter()
        self._dropped: Counter[tuple[str, str]] = Counter()
        self._collections = 0
        self._version = 0
        self._collected_ns: int | None = None
        self._down: DriverDown | None = None
        self._lost: frozenset[str] = frozenset()
        self._wake = threading.Event()
        self._closed = threading.Event()
        saved = state_file.load()
        is_recent = saved.at_ns is not None and 0 <= clock.boot_ns() - saved.at_ns <= MAX_BRIDGE_NS
        if not is_recent:
            for board in saved.boards.values():
                board.forget_totals()
        self._meter = GpuMeter(saved.accounts, saved.boards, saved.at_ns if is_recent else None)
        self._before = saved.holdings
        self._holdings: tuple[DeviceHolding, ...] | None = None
        self._is_bridging = is_recent
        boards = tuple(board.seen for board in saved.boards.values())
        self._topology = GpuTopology.from_reading(NodeReading("", boards))
        self._driver_version = ""
        self._driver = driver(saved.resume)

    def collect(self) -> ExporterSnapshot:
        """One step: read the GPUs, add the time since the last step to the holders of that time, then update
        the holders."""
        reading, problem = self._look()
        now_ns, now_ms = self._clock.boot_ns(), self._clock.wall_ms()
        if self._dcgm:
            self._dcgm.look()
            reading = self._dcgm.filled(reading, now_ns) if reading else None
        if reading is not None:
            self._topology = GpuTopology.from_reading(self._with_gone(reading), self._topology)
            self._driver_version = reading.driver_version
        found = self._holders.current(now_ns, self._topology)
        holdings = None if found is None else found.holdings
        self._meter.advance(
            now_ns,
            reading,
            self._held_since(holdings),
            self._owner(now_ns),
            self._second(now_ns),
            self._driver.take_xids(),
        )
        self._holdings = holdings
        self._meter.open(_by_device(holdings))
        for held in holdings or ():
            self._meter.accounts.saw(held.pod, now_ms, now_ns)
        if holdings is not None:  # otherwise it is not known which pods are gone
            self._meter.accounts.retire(now_ns, KEEP_NS)
        self._count(reading)
        snapshot = self._publish(now_ns, now_ms, reading, problem)
        self._collected_ns = now_ns  # only now: a client that gets "ready" finds the page
        return snapshot

    @property
    def collected_ns(self) -> int | None:
        """The time since boot of the last collection that came to its end."""
        return self._collected_ns

    def run(self, interval_s: float) -> None:
        """Collect every ``interval_s``, and at once when ``wake`` is called, until ``close``."""
        while not self._closed.is_set():
            started = time.monotonic()
            try:
                self.collect()
            except Exception:
                # A mistake of ours in one step must not end the exporter; it is counted and shown.
                logger.exception("a collection failed")
                self._errors["collection", "failed"] += 1
                self._publish_failure()
            self._closed.wait(LEAST_INTERVAL_S)
            self._wake.wait(max(0.0, interval_s - (time.monotonic() - started)))
            self._wake.clear()

    def wake(self) -> None:
        """Collect now: the holders of the GPUs have changed."""
        self._wake.set()

    def close(self) -> None:
        """Stop ``run`` after its current step, and the driver's process."""
        self._closed.set()
        self._wake.set()

    def stop_driver(self) -> None:
        """End the driver's process and let go of the state. After ``run`` has returned."""
        self._driver.close()
        self._state_file.close()

    def _look(self) -> tuple[NodeReading | None, str]:
        try:
            return self._driver.look(self._clock.boot_ns(), self._processes is not None), ""
        except DriverDown as error:
            if error is not self._down:  # the same failed state again is no new attempt
                self._errors["driver", error.code] += 1
                logger.info("no reading from the driver: %s", error)
            self._down = error
            return None, error.code

    def _with_gone(self, reading: NodeReading) -> NodeReading:
        """``reading`` and the GPUs it does not show any more: they are held until their pods end."""
        shown = {board.uuid for board in reading.boards}
        gone = [GpuReading(uuid, lost="GONE") for uuid in self._meter.boards if uuid not in shown]
        return replace(reading, boards=(*reading.boards, *gone)) if gone else reading

    def _held_since(self, now_held: Sequence[DeviceHolding] | None) -> HoldingsOfDevice:
        """The holders since the last step: those seen then; over a restart, only of devices that the same
        pods, known by UID, hold before and after."""
        if not self._is_bridging:
            return _by_device(self._holdings)
        self._is_bridging = False
        before, after = _grouped(self._before), _grouped(now_held or ())

        def unchanged(device: DeviceKey) -> Sequence[DeviceHolding] | None:
            same = before.get(device) == after.get(device)
            is_proven = same and all(held.pod.uid for held in after.get(device, ()))
            return after.get(device) if is_proven else None

        return unchanged

    def _owner(self, now_ns: int) -> Callable[[int], ProcessOwner]:
        processes = self._processes

        def owner(pid: int) -> ProcessOwner:
            assert processes is not None  # otherwise the driver does not read processes
            return processes.owner(pid, now_ns)

        return owner

    def _second(self, now_ns: int) -> SecondSource:
        return self._dcgm.second(now_ns) if self._dcgm else NO_SECOND

    def _count(self, reading: NodeReading | None) -> None:
        self._collections += 1
        if reading is not None:
            self._dropped.update({("nvml", reason): count for reason, count in reading.dropped.items()})
            lost = {board.uuid: board.lost for board in reading.boards if board.lost}
            self._errors.update(("gpu", code) for uuid, code in lost.items() if uuid not in self._lost)
            self._lost = frozenset(lost)

    def _publish(
        self, now_ns: int, now_ms: int, reading: NodeReading | None, problem: str
    ) -> ExporterSnapshot:
        state = ExporterState(
            now_ns,
            self._meter.accounts,
            self._meter.boards,
            self._holdings or (),
            self._driver.resume,
        )
        self._state_file.save(state)
        self._version += 1
        snapshot = ExporterSnapshot(
            version=self._version,
            node=self._node,
            at_ms=now_ms,
            is_up=reading is not None,
            driver_version=self._driver_version,
            accounts=self._meter.accounts.copy(),
            boards=tuple(GpuView.of(board) for board in self._meter.boards.values()),
            holdings=self._holdings or (),
            lacks=self._lacks.update(self._missing(problem), now_ms),
            counts=self._counts(),
        )
        for sentence in sentences(self._lacks.new):
            logger.info("%s", sentence)
        self.source.latest = snapshot
        return snapshot

    def _publish_failure(self) -> None:
        """The last known values stay on the page, with the count of failures beside them."""
        if self.source.latest is not None:
            self._version += 1
            self.source.latest = replace(self.source.latest, version=self._version, counts=self._counts())

    def _counts(self) -> SelfCounts:
        return SelfCounts(self._collections, self._all_errors(), self._all_dropped(), self._driver.restarts)

    def _missing(self, problem: str) -> Iterator[MissingPart]:
        if problem:
            yield MissingPart(NODE, "driver", problem)
        for board in self._meter.boards.values():
            yield from missing_parts_of(board)
        yield from self._holders.lacks()
        if self._why_no_processes:
            yield MissingPart(NODE, "host_pids", self._why_no_processes)
        if self._dcgm:
            yield from self._dcgm.lacks()
        if self._state_file.problem:
            yield MissingPart(NODE, "state_file", self._state_file.problem)

    def _all_errors(self) -> dict[tuple[str, str], int]:
        errors = dict(self._errors)
        if self._meter.failures:
            errors["collection", "board"] = self._meter.failures
        errors |= {("kubelet", reason): count for reason, count in self._holders.errors.copy().items()}
        dcgm = self._dcgm.errors if self._dcgm else {}
        return errors | {("dcgm", reason): count for reason, count in dcgm.items()}

    def _all_dropped(self) -> dict[tuple[str, str], int]:
        dcgm = self._dcgm.dropped if self._dcgm else {}
        impossible = self._meter.impossible_steps
        nvml = {("nvml", "energy_step"): impossible} if impossible else {}
        return dict(self._dropped) | nvml | {("dcgm", reason): count for reason, count in dcgm.items()}


def _grouped(holdings: Sequence[DeviceHolding]) -> dict[DeviceKey, list[DeviceHolding]]:
    grouped: dict[DeviceKey, list[DeviceHolding]] = {}
    for held in holdings:
        grouped.setdefault(held.device, []).append(held)
    return grouped


def _by_device(holdings: Sequence[DeviceHolding] | None) -> HoldingsOfDevice:
    if holdings is None:
        return lambda _device: None
    grouped = _grouped(holdings)
    return lambda device: grouped.get(device, ())
