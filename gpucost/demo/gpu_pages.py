"""The pages of the GPU exporters of the simulated nodes: the real exporter's families over
simulated counts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from typing import Any

from gpucost.contract.gpu_metrics import (
    DUPLICATES,
    SOURCE_ERRORS,
    SOURCE_UP,
    AttributionMethod,
    GpuMeasure,
    HolderKind,
)
from gpucost.contract.metric_spec import (
    EOF,
    MetricSpec,
    header,
    series_name,
)
from gpucost.demo.gpu_counters import (
    SLICES,
    Amounts,
    GpuCounts,
    GpuHeldTime,
    PodCount,
    SimulatedDevice,
    SimulatedGpu,
    boards_of,
)
from gpucost.demo.incident import IdleIncident
from gpucost.simulator.cluster import SimulatedCluster
from gpucost.simulator.injected_patterns import XID
from gpucost.simulator.inventory import SimulatedNode
from gpucost_exporter_base.exposition import MetricFamily
from gpucost_gpu_exporter.metering.accounts import (
    UNALLOCATED,
    UNPARTITIONED,
    CounterRow,
    GpuAccounts,
    GpuUser,
    PodLife,
)
from gpucost_gpu_exporter.metering.gpu_state import MeteredDevice
from gpucost_gpu_exporter.metering.missing_parts import MissingPart
from gpucost_gpu_exporter.metric_families import (
    ExporterSnapshot,
    GpuView,
    SelfCounts,
    SnapshotSource,
)
from gpucost_gpu_exporter.model.holdings import (
    DeviceHolding,
    DeviceKey,
    PodRef,
    dyadic,
)
from gpucost_gpu_exporter.model.readings import (
    GpuReading,
    GpuSignal,
    InstanceReading,
    SignalSource,
    XidEvent,
)

_DRIVER = "580.95.05"
_NS = 1_000_000
# A 64th of a second: whole nanoseconds, and whole ticks.
_QUANTUM_NS = 15_625_000
# The part of its SM activity in which a GPU is capped for power, in hundredths, by the end of its uuid.
_CAPPED = (0, 2, 0, 4, 1)
_THERMAL_NODE = "a100-02"
# Hangs per day that an exporter with missing reads counts.
_HANGS_PER_DAY = 3
_DAY_MS = 86_400_000
# The exporter's endpoint has only this part.
_PART = (SnapshotSource.name,)
_ITSELF = (
    MetricFamily(SOURCE_UP, [(_PART, 1.0)]),
    MetricFamily(SOURCE_ERRORS, [(_PART, 0.0)]),
    MetricFamily(DUPLICATES, [(_PART, 0.0)]),
)


class GpuPages:
    """One page for each node with an exporter: the result of a scrape at an instant."""

    def __init__(self, cluster: SimulatedCluster, incident: IdleIncident | None = None) -> None:
        self._cluster, self._incident = cluster, incident
        self._counts = GpuCounts(cluster)
        self._boards = {node.name: boards_of(cluster.seed, node) for node in cluster.nodes}
        self._pods = {
            uid: (PodRef(pod.submission.job.namespace, name, uid), pod.node)
            for pod, (name, uid) in zip(cluster.placements, cluster.names, strict=True)
        }
        self._held_time = GpuHeldTime(cluster)
        self._health: dict[str, list[Mapping[Hashable, Any]]] = {}
        for row in cluster.frames.health.to_dict("records"):
            self._health.setdefault(row["node"], []).append(row)
        self._series: dict[tuple[str, tuple[str, ...]], str] = {}

    def at(self, at_ms: int) -> Mapping[str, str]:
        """OpenMetrics text by node."""
        of_pods: dict[str, list[PodCount]] = {}
        for count in self._counts.of_pods(at_ms):
            of_pods.setdefault(self._pods[count.pod_uid][1], []).append(count)
        retired = self._counts.retired(at_ms)
        held = self._held(at_ms)
        pages = {}
        for node in self._cluster.nodes:
            if node.start_ms <= at_ms < node.end_ms and node.signal_coverage:
                look = _NodeInstant(
                    self._health.get(node.name, []), node, self._boards[node.name], at_ms,
                    of_pods.get(node.name, []),
                    {gpu: amounts for (name, gpu), amounts in retired.items() if name == node.name},
                    held.get(node.name, []), self._pods, self._held_time.held_ns,
                )  # fmt: skip
                pages[node.name] = self._page(look.snapshot())
        if self._incident is not None:
            pages[self._incident.node.name] = self.of_incident(self._incident, at_ms)
        return pages

    def of_incident(self, incident: IdleIncident, at_ms: int) -> str:
        """The page of the incident's node."""
        pod, node = PodRef(*incident.pod), incident.node
        look = _NodeInstant(
            [], node, boards_of(incident.seed, node), at_ms, incident.counts(at_ms), {},
            incident.held(at_ms), {pod.uid: (pod, node.name)},
            lambda gpu, instant_ms: incident.held_ns(gpu.text, instant_ms),
        )  # fmt: skip
        return self._page(look.snapshot())

    def _page(self, snapshot: ExporterSnapshot) -> str:
        """The page in the exporter's format; names of series are cached, since they are most of the work."""
        source = SnapshotSource()
        source.latest = snapshot
        texts = list[str]()
        for family in (*source.families(), *_ITSELF):
            texts.append(_header(family.spec))
            for labels, value in family.samples:
                key = (family.spec.name, labels)
                series = self._series.get(key)
                if series is None:
                    pairs = dict(zip(family.spec.labels, labels, strict=True))
                    series = self._series[key] = series_name(family.spec, pairs)
                texts.append(f"{series} {value!r}\n")
        return "".join((*texts, EOF))

    def _held(self, at_ms: int) -> Mapping[str, list[tuple[str, str, str]]]:
        """By node: (uid of a pod, GPU, resource) of everything held now."""
        found: dict[str, list[tuple[str, str, str]]] = {}
        for at in self._cluster.placed(at_ms, at_ms + 1):
            pod, (_, uid) = self._cluster.placements[at], self._cluster.names[at]
            for gpu in self._cluster.gpus[at]:
                found.setdefault(pod.node, []).append((uid, gpu, pod.submission.resource))
        return found


@dataclass
class _NodeInstant:
    """One node at one instant."""

    health: Sequence[Mapping[Hashable, Any]]
    node: SimulatedNode
    boards: Sequence[SimulatedDevice]
    at_ms: int
    counts: Sequence[PodCount]
    retired: Mapping[str, Amounts]
    held: Sequence[tuple[str, str, str]]
    pods: Mapping[str, tuple[PodRef, str]]
    held_ns: Callable[[SimulatedGpu, int], Fraction | int]
    accounts: GpuAccounts = field(default_factory=GpuAccounts)

    def snapshot(self) -> ExporterSnapshot:
        by_gpu: dict[str, list[PodCount]] = {}
        for count in self.counts:
            by_gpu.setdefault(count.gpu, []).append(count)
            self.accounts.pods[self.pods[count.pod_uid][0]] = PodLife(count.since_ms, 0, 0)
        for board in self.boards:
            self._account(board, by_gpu)
        lost, epochs = set[str](), dict[str, int]()
        for row in self.health:
            if row["start_ms"] > self.at_ms:
                continue
            is_over = row["end_ms"] <= self.at_ms
            uuid = row["gpu"].partition("/")[0]
            if row["reason"].startswith(XID.rstrip("0123456789")):
                self.accounts.xids[XidEvent(uuid, int(row["reason"].rpartition("_")[2]))] = 1
                epochs[uuid] = int(is_over)
            elif not is_over:
                lost.add(uuid)
        views = [
            self._view(board, by_gpu, board.uuid in lost, epochs.get(board.uuid, 0)) for board in self.boards
        ]
        return ExporterSnapshot(
            version=self.at_ms,
            node=self.node.name,
            at_ms=self.at_ms,
            is_up=True,
            driver_version=_DRIVER,
            accounts=self.accounts,
            boards=tuple(views),
            holdings=tuple(self._holdings()),
            lacks=dict.fromkeys(self._lacks(), self.node.start_ms),
            counts=self._self_counts(),
        )

    def _account(self, board: SimulatedDevice, by_gpu: Mapping[str, Sequence[PodCount]]) -> None:
        accounts, lived_ns = self.accounts, (self.at_ms - self.node.start_ms) * _NS
        energy_mj = 0
        active_ns = 0
        for gpu in board.gpus:
            mine = [_whole(count) for count in by_gpu.get(gpu.text, ())]
            gone = _in_quanta(self.retired.get(gpu.text, {}))
            used = {measure: gone.get(measure, 0) for measure in GpuMeasure}
            for count in mine:
                for measure, amount in count.amounts.items():
                    used[measure] += amount
            # Rounded once: the difference of two rounded times would fluctuate by a nanosecond.
            free_ns = (lived_ns * gpu.part - self.held_ns(gpu, self.at_ms)) // _QUANTUM_NS * _QUANTUM_NS
            totals = self._totals(gpu, used, free_ns)
            energy_mj += totals.pop(GpuMeasure.ENERGY)
            active_ns += totals.get(GpuMeasure.SM_ACTIVE, 0)
            accounts.gpus[gpu.key] = totals
            method = AttributionMethod.WEIGHTED if gpu.replicas > 1 else AttributionMethod.EXACT
            rows = {
                CounterRow(GpuUser(HolderKind.POD, self.pods[count.pod_uid][0]), gpu.key, method): _ticks(
                    count.amounts
                )
                for count in mine
            }
            if gone:
                accounts.retired[gpu.key] = _ticks(gone)
            rest = _ticks(totals)
            for amounts in (*rows.values(), accounts.retired.get(gpu.key, {})):
                for measure in rest:
                    rest[measure] -= amounts.get(measure, 0)
            rest[GpuMeasure.ENERGY] = dyadic(GpuMeasure.ENERGY, int(gpu.idle_watts * free_ns) // _NS)
            accounts.rows |= rows
            accounts.rows[CounterRow(UNALLOCATED, gpu.key, AttributionMethod.EXACT)] = rest
        whole = DeviceKey(board.uuid)
        if board.unpartitioned:
            left = int(lived_ns * board.unpartitioned)
            accounts.gpus[whole] = {GpuMeasure.HELD: left}
            accounts.rows[CounterRow(UNPARTITIONED, whole, AttributionMethod.NONE)] = _ticks(
                {GpuMeasure.HELD: left}
            )
        accounts.gpus.setdefault(whole, {})[GpuMeasure.ENERGY] = energy_mj
        capped = _CAPPED[int(board.uuid[-2:], 16) % len(_CAPPED)]
        accounts.throttled_ns[board.uuid, "sw_power_cap"] = active_ns * capped // 100
        is_hot = self.node.name == _THERMAL_NODE and board.minor == 0
        accounts.throttled_ns[board.uuid, "hw_thermal"] = active_ns // 50 if is_hot else 0

    def _totals(
        self, gpu: SimulatedGpu, used: Mapping[GpuMeasure, int], free_ns: int
    ) -> dict[GpuMeasure, int]:
        """The counts of the GPU itself: those of pods, and the time without a holder."""
        seen_ns = int(free_ns * gpu.coverage)
        totals = {GpuMeasure.HELD: used[GpuMeasure.HELD] + free_ns}
        if gpu.has_busy:
            totals |= {
                GpuMeasure.OBSERVED: used[GpuMeasure.OBSERVED] + seen_ns,
                GpuMeasure.BUSY: used[GpuMeasure.BUSY],
            }
        if gpu.has_sm:
            totals |= {
                GpuMeasure.SM_OBSERVED: used[GpuMeasure.SM_OBSERVED] + seen_ns,
                GpuMeasure.SM_ACTIVE: used[GpuMeasure.SM_ACTIVE],
                GpuMeasure.TENSOR_OBSERVED: used[GpuMeasure.TENSOR_OBSERVED] + seen_ns,
                GpuMeasure.TENSOR_ACTIVE: used[GpuMeasure.TENSOR_ACTIVE],
            }
        totals[GpuMeasure.ENERGY] = used[GpuMeasure.ENERGY] + int(gpu.idle_watts * free_ns) // _NS
        return totals

    def _view(
        self, board: SimulatedDevice, by_gpu: Mapping[str, Sequence[PodCount]], is_lost: bool, epoch: int
    ) -> GpuView:
        read: dict[DeviceKey, GpuReading | InstanceReading] = {}
        for gpu in board.gpus:
            used = sum(count.memory_bytes for count in by_gpu.get(gpu.text, ()))
            if gpu.profile:
                read[gpu.key] = InstanceReading(
                    int(gpu.key.gpu_instance), {}, int(gpu.part * SLICES), SLICES, gpu.profile,
                    min(used, gpu.memory_bytes), gpu.memory_bytes,
                )  # fmt: skip
            else:
                read[gpu.key] = self._reading(board, (), min(used, gpu.memory_bytes), gpu.memory_bytes)
        instances = tuple(each for each in read.values() if isinstance(each, InstanceReading))
        seen = self._reading(board, instances) if board.is_mig else read[DeviceKey(board.uuid)]
        assert isinstance(seen, GpuReading)
        return GpuView(
            seen,
            "GPU_IS_LOST" if is_lost else "",
            epoch,
            tuple(MeteredDevice(gpu.key, gpu.part, read[gpu.key]) for gpu in board.gpus),
            {gpu.key: _sources(gpu) for gpu in board.gpus},
            {
                gpu.key: {"pod": sum(count.memory_bytes > 0 for count in by_gpu.get(gpu.text, ()))}
                for gpu in board.gpus
            },
        )

    def _reading(
        self,
        board: SimulatedDevice,
        instances: tuple[InstanceReading, ...],
        used: int | None = None,
        total: int | None = None,
    ) -> GpuReading:
        bus = f"00000000:{0x10 + board.minor:02X}:00.0"
        return GpuReading(
            board.uuid, board.minor, board.product, bus, mig=board.is_mig,
            memory_used_bytes=used, memory_total_bytes=total, instances=instances,
        )  # fmt: skip

    def _holdings(self) -> Iterator[DeviceHolding]:
        gpus = {gpu.text: gpu for board in self.boards for gpu in board.gpus}
        for uid, text, resource in self.held:
            gpu = gpus[text]
            yield DeviceHolding(self.pods[uid][0], gpu.key, Fraction(1, gpu.replicas), resource, ("main",))

    def _lacks(self) -> Iterator[MissingPart]:
        for board in self.boards:
            for gpu in board.gpus:
                if not gpu.has_busy:
                    yield MissingPart(gpu.key, GpuSignal.BUSY.value, "NOT_SUPPORTED")
                if not gpu.has_sm:
                    yield MissingPart(gpu.key, GpuSignal.SM.value, "NOT_SUPPORTED")
                    yield MissingPart(gpu.key, GpuSignal.TENSOR.value, "NOT_SUPPORTED")

    def _self_counts(self) -> SelfCounts:
        lived_ms = self.at_ms - self.node.start_ms
        if self.node.signal_coverage == 1:
            return SelfCounts(lived_ms // 1000)
        hangs = lived_ms * _HANGS_PER_DAY // _DAY_MS
        return SelfCounts(
            int(lived_ms * self.node.signal_coverage) // 1000,
            {("driver", "HUNG"): hangs},
            {("nvml", "out_of_range"): hangs * 2},
            hangs,
        )


@cache
def _header(spec: MetricSpec) -> str:
    return header(spec)


def _whole(count: PodCount) -> PodCount:
    return replace(count, amounts=_in_quanta(count.amounts))


def _in_quanta(amounts: Amounts) -> dict[GpuMeasure, int]:
    """Times in whole ticks, so that the rest of a GPU's time never falls by a tick."""
    return {
        measure: amount if measure is GpuMeasure.ENERGY else amount // _QUANTUM_NS * _QUANTUM_NS
        for measure, amount in amounts.items()
    }


def _ticks(amounts: Amounts) -> dict[GpuMeasure, int]:
    return {measure: dyadic(measure, amount) for measure, amount in amounts.items()}


def _sources(gpu: SimulatedGpu) -> Mapping[GpuSignal, str]:
    busy = SignalSource.NVML_SAMPLES if gpu.has_busy else SignalSource.NONE
    gpm = SignalSource.GPM if gpu.has_sm else SignalSource.NONE
    return {GpuSignal.BUSY: busy, GpuSignal.SM: gpm, GpuSignal.TENSOR: gpm}
