"""A snapshot of the exporter -> the metric families of the contract. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from gpucost.contract import gpu_metrics as metrics
from gpucost.contract.gpu_metrics import GpuMeasure
from gpucost.contract.metric_spec import MetricSpec
from gpucost_exporter_base.exposition import Labelled, MetricFamily
from gpucost_gpu_exporter.metering.accounts import GpuAccounts
from gpucost_gpu_exporter.metering.gpu_state import GpuState, MeteredDevice
from gpucost_gpu_exporter.metering.missing_parts import MissingPart
from gpucost_gpu_exporter.model.holdings import (
    SECOND_NS,
    DeviceHolding,
    DeviceKey,
    dyadic,
    exported,
)
from gpucost_gpu_exporter.model.readings import GpuReading, GpuSignal, InstanceReading


@dataclass(frozen=True, slots=True)
class SelfCounts:
    """What the exporter counts about itself since it started."""

    collections: int = 0
    errors: Mapping[tuple[str, str], int] = field(default_factory=dict)
    dropped: Mapping[tuple[str, str], int] = field(default_factory=dict)
    driver_restarts: int = 0


@dataclass(frozen=True, slots=True)
class GpuView:
    """What is exported of a GPU beside its counters. ``sources`` and ``owners`` are by device."""

    seen: GpuReading
    lost: str
    epoch: int
    devices: tuple[MeteredDevice, ...]
    sources: Mapping[DeviceKey, Mapping[GpuSignal, str]]
    owners: Mapping[DeviceKey, Mapping[str, int]]

    @classmethod
    def of(cls, board: GpuState) -> GpuView:
        """The view of ``board`` as it stands."""
        devices = tuple(board.layout())
        sources = {device.key: dict(board.device(device.key).sources) for device in devices}
        owners = {device.key: dict(board.device(device.key).owners) for device in devices}
        return cls(board.seen, board.lost, board.epoch, devices, sources, owners)


@dataclass(frozen=True, slots=True)
class ExporterSnapshot:
    """Everything one collection made known; never changed. ``version`` rises with each."""

    version: int
    node: str
    at_ms: int
    is_up: bool
    driver_version: str
    accounts: GpuAccounts
    boards: tuple[GpuView, ...]
    holdings: tuple[DeviceHolding, ...]
    lacks: Mapping[MissingPart, int]
    counts: SelfCounts


class SnapshotSource:
    """The latest snapshot as a source of metrics; nothing before the first."""

    name = "gpu"

    def __init__(self) -> None:
        self.latest: ExporterSnapshot | None = None

    @property
    def version(self) -> int:
        return self.latest.version if self.latest else 0

    def families(self) -> Iterator[MetricFamily]:
        latest = self.latest
        if latest is not None:
            yield from _gpus(latest)
            yield from _counters(latest)
            yield from _pods(latest)
            yield from _itself(latest)


def _gpus(snapshot: ExporterSnapshot) -> Iterator[MetricFamily]:
    node = snapshot.node
    yield MetricFamily(
        metrics.GPU_UP, [((node, board.seen.uuid), float(not board.lost)) for board in snapshot.boards]
    )
    here = [board for board in snapshot.boards if not board.lost]
    devices = [(board, device) for board in here for device in board.devices]
    yield MetricFamily(
        metrics.GPU_INFO, [_info(snapshot, board) for board in here] + _infos_of_mig(snapshot, here)
    )
    yield MetricFamily(
        metrics.GPU_BOARD_RATIO, [((node, *device.key), float(device.part)) for _, device in devices]
    )
    yield MetricFamily(
        metrics.GPU_SIGNAL,
        [
            ((node, *key, signal, source), 1.0)
            for board in here
            for key, sources in board.sources.items()
            for signal, source in sources.items()
        ],
    )
    yield MetricFamily(
        metrics.GPU_DRIVER_EPOCH, [((node, board.seen.uuid), float(board.epoch)) for board in here]
    )
    yield from _memory(node, here)
    yield MetricFamily(
        metrics.GPU_PROCESSES,
        [
            ((node, *key, owner), float(count))
            for board in here
            for key, owners in board.owners.items()
            for owner, count in owners.items()
        ],
    )


def _info(snapshot: ExporterSnapshot, board: GpuView, instance: InstanceReading | None = None) -> Labelled:
    seen = board.seen
    gpu = (str(instance.gpu_instance), seen.product, instance.profile) if instance else ("", seen.product, "")
    minor = "" if seen.minor is None else str(seen.minor)
    labels = (snapshot.node, seen.uuid, *gpu, minor, seen.pci_bus_id, snapshot.driver_version)
    return labels, 1.0


def _infos_of_mig(snapshot: ExporterSnapshot, boards: list[GpuView]) -> list[Labelled]:
    return [_info(snapshot, board, instance) for board in boards for instance in board.seen.instances]


def _memory(node: str, boards: list[GpuView]) -> Iterator[MetricFamily]:
    found: list[tuple[DeviceKey, GpuReading | InstanceReading]] = []
    for board in boards:
        found.append((DeviceKey(board.seen.uuid), board.seen))
        found += [
            (DeviceKey(board.seen.uuid, str(instance.gpu_instance)), instance)
            for instance in board.seen.instances
        ]
    used = [((node, *key), read.memory_used_bytes) for key, read in found if not _is_mig_board(read)]
    total = [((node, *key), read.memory_total_bytes) for key, read in found if not _is_mig_board(read)]
    yield _present(metrics.GPU_MEMORY_USED, used)
    yield _present(metrics.GPU_MEMORY_TOTAL, total)


def _is_mig_board(read: GpuReading | InstanceReading) -> bool:
    # Its instances have their own memory; the GPU's figure beside them would be added twice.
    return isinstance(read, GpuReading) and read.mig


def _present(spec: MetricSpec, values: Sequence[tuple[tuple[str, ...], int | None]]) -> MetricFamily:
    return MetricFamily(spec, [(labels, float(value)) for labels, value in values if value is not None])


def _counters(snapshot: ExporterSnapshot) -> Iterator[MetricFamily]:
    """The counters of GPUs and holders. Of a lost GPU only the held time continues to be exported."""
    node, accounts = snapshot.node, snapshot.accounts
    here = {board.seen.uuid for board in snapshot.boards if not board.lost}

    def is_shown(device: DeviceKey, measure: GpuMeasure) -> bool:
        return measure is GpuMeasure.HELD or device.gpu_uuid in here

    for measure in GpuMeasure:
        of_gpus = [
            (
                (node, gpu.gpu_uuid) if measure is GpuMeasure.ENERGY else (node, *gpu),
                exported(measure, dyadic(measure, amounts[measure])),
            )
            for gpu, amounts in accounts.gpus.items()
            if measure in amounts and is_shown(gpu, measure)
        ]
        yield MetricFamily(metrics.GPU_COUNTERS[measure], of_gpus)
        of_holders = [
            (
                (row.who.holder.value, *row.who.pod, node, *row.device, row.method.value),
                exported(measure, amounts[measure]),
            )
            for row, amounts in accounts.rows.items()
            if measure in amounts and is_shown(row.device, measure)
        ]
        yield MetricFamily(metrics.HOLDER_COUNTERS[measure], of_holders)
    retired = [
        ((node, *gpu, measure.value), exported(measure, amount))
        for gpu, amounts in accounts.retired.items()
        for measure, amount in amounts.items()
        if is_shown(gpu, measure)
    ]
    yield MetricFamily(metrics.GPU_RETIRED, retired)
    throttled = [
        ((node, uuid, reason), ns / SECOND_NS)
        for (uuid, reason), ns in accounts.throttled_ns.items()
        if uuid in here
    ]
    yield MetricFamily(metrics.GPU_THROTTLED, throttled)
    xids = [((node, uuid, str(xid)), float(count)) for (uuid, xid), count in accounts.xids.items()]
    yield MetricFamily(metrics.GPU_XID_EVENTS, xids)


def _pods(snapshot: ExporterSnapshot) -> Iterator[MetricFamily]:
    parts = {device.key: device.part for board in snapshot.boards for device in board.devices}
    shares = [
        (
            (*held.pod, snapshot.node, *held.device, ",".join(held.containers), held.resource),
            float(held.share * parts.get(held.device, Fraction(1))),
        )
        for held in snapshot.holdings
    ]
    yield MetricFamily(metrics.POD_GPU_SHARE, shares)
    since = [((*pod, snapshot.node), life.since_ms / 1000) for pod, life in snapshot.accounts.pods.items()]
    yield MetricFamily(metrics.POD_COUNTED_SINCE, since)


def _itself(snapshot: ExporterSnapshot) -> Iterator[MetricFamily]:
    node, counts = snapshot.node, snapshot.counts
    yield MetricFamily(metrics.NVML_UP, [((node,), float(snapshot.is_up))])
    lacks = [
        ((node, *lack.device, lack.part, lack.reason), since_ms / 1000)
        for lack, since_ms in snapshot.lacks.items()
    ]
    yield MetricFamily(metrics.MISSING_SINCE, lacks)
    yield MetricFamily(metrics.LAST_COLLECTION, [((node,), snapshot.at_ms / 1000)])
    yield MetricFamily(metrics.COLLECTIONS, [((node,), float(counts.collections))])
    yield MetricFamily(
        metrics.EXPORTER_ERRORS, [((node, *place), float(n)) for place, n in counts.errors.items()]
    )
    yield MetricFamily(
        metrics.DROPPED_SAMPLES, [((node, *place), float(n)) for place, n in counts.dropped.items()]
    )
    yield MetricFamily(metrics.DRIVER_RESTARTS, [((node,), float(counts.driver_restarts))])
