"""The subject of each series of an exporter of GPUs: its device, and the pods of the name in its labels.

A row names the pod that uses the GPU in ``exported_pod`` or, where the scrape honours labels, in ``pod``;
where the GPU has no holder, and where labels are not honoured, ``pod`` is the exporter's own. Which of the
two it is follows from who held GPUs then.

``ClusterHoldings`` is which pods held which units when: series of GPUs, which have names of pods and no uids,
are matched with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gpucost.contract.dcgm import INSTANCE_LABELS, UUID_LABELS, DcgmField
from gpucost.contract.device_dialects import DCGM, DeviceDialect
from gpucost.contract.frames import ALLOCATIONS, CAPACITY
from gpucost.domain.time import MINUTE_MS, Window
from gpucost.telemetry.evidence.frame_rows import FrameRow
from gpucost.telemetry.prometheus.cluster_reader import ClusterReader
from gpucost.telemetry.prometheus.promql import by, except_where
from gpucost.telemetry.prometheus.query_response import needed
from gpucost.telemetry.prometheus.trust import device_kinds
from gpucost.telemetry.upstream.kube_reader import KubeStateReader

_AMD = "amd.com/"
_HOLD = ("pod_uid", "namespace", "pod", "node", "resource", "count", "start_ms", "end_ms")


@dataclass(frozen=True, slots=True)
class PodHolding:
    """``count`` units of ``resource`` held by one pod during ``[start_ms, end_ms)``.

    ``replicas`` is how many units a GPU, or MIG slice, is handed out as: above 1 it is shared.
    """

    pod_uid: str
    namespace: str
    pod: str
    node: str
    resource: str
    count: int
    start_ms: int
    end_ms: int
    replicas: int = 1


class ClusterHoldings:
    """What the pods of one cluster held in one stretch of time."""

    def __init__(
        self, holds: Iterable[PodHolding], units: Mapping[str, Mapping[str, int]] | None = None
    ) -> None:
        self.units = units or {}
        """By node, the most units of each resource that it had."""
        self._by_name: dict[tuple[str, str], list[PodHolding]] = {}
        self._by_uid: dict[str, list[PodHolding]] = {}
        for hold in sorted(holds, key=lambda each: (each.start_ms, each.pod_uid)):
            self._by_name.setdefault((hold.namespace, hold.pod), []).append(hold)
            self._by_uid.setdefault(hold.pod_uid, []).append(hold)

    @classmethod
    def of(cls, allocations: Sequence[FrameRow], capacity: Sequence[FrameRow]) -> ClusterHoldings:
        """Of rows of frames.ALLOCATIONS and frames.CAPACITY."""
        wanted = ("node", "resource", "replicas", "capacity", "allocatable")
        places = [CAPACITY.column_names.index(name) for name in wanted]
        replicas: dict[tuple[str, str], int] = {}
        units: dict[str, dict[str, int]] = {}
        for row in capacity:
            node, resource, times, *counts = (str(row[at]) for at in places)
            replicas[node, resource] = max(replicas.get((node, resource), 1), int(times))
            of_node = units.setdefault(node, {})
            of_node[resource] = max(of_node.get(resource, 0), *map(int, counts))
        return cls((_hold(row, replicas) for row in allocations), units)

    def without(self, uids: Collection[str]) -> ClusterHoldings:
        """The same without those pods; their nodes are as they were."""
        if not uids:
            return self
        return ClusterHoldings((each for each in self if each.pod_uid not in uids), self.units)

    def by_partition(self) -> ClusterHoldings:
        """The same, where units of AMD's plugin are devices of their own, as its exporter shows them: a
        partition is a part of a GPU that no other pod has."""
        held = (replace(each, replicas=1) if each.resource.startswith(_AMD) else each for each in self)
        return ClusterHoldings(held, self.units)

    def named(self, namespace: str, pod: str, inside: Window) -> Sequence[PodHolding]:
        """The holdings of the pods of that name that reach into ``inside``: names are reused, uids are
        not."""
        return _reaching(self._by_name.get((namespace, pod), ()), inside)

    def of_uid(self, uid: str, inside: Window) -> Sequence[PodHolding]:
        """The holdings of one pod that reach into ``inside``."""
        return _reaching(self._by_uid.get(uid, ()), inside)

    def __iter__(self) -> Iterator[PodHolding]:
        return (hold for holds in self._by_uid.values() for hold in holds)


def _hold(row: FrameRow, replicas: Mapping[tuple[str, str], int]) -> PodHolding:
    values = dict(zip(ALLOCATIONS.column_names, row, strict=True))
    uid, namespace, pod, node, resource = (str(values[name]) for name in _HOLD[:5])
    count, start, end = (int(str(values[name])) for name in _HOLD[5:])
    return PodHolding(
        uid, namespace, pod, node, resource, count, start, end, replicas.get((node, resource), 1)
    )


def _reaching(holds: Sequence[PodHolding], inside: Window) -> Sequence[PodHolding]:
    return [hold for hold in holds if hold.start_ms < inside.end_ms and hold.end_ms > inside.start_ms]


_LOOKED_MS = 15 * MINUTE_MS
_FEW_LOOKS = 6
_POD = ("exported_pod", "exported_pod_name", "pod_name", "pod")
_NAMESPACE = ("exported_namespace", "exported_pod_namespace", "pod_namespace", "namespace")
# Labels without use here, which would be most of an answer.
NEEDLESS = (
    *("gpu", "device", "pci_bus_id", "endpoint", "service", "container", "exported_container"),
    *("container_name", "DCGM_FI_DRIVER_VERSION", "DCGM_FI_SYSTEM_DRIVER_VERSION", "DCGM_FI_PROCESS_NAME"),
    *("card_vendor", "driver_version", "vbios_version", "kfd_process_id", "deployment_mode"),
)

SeriesLabels = Mapping[str, str]
SeriesPlace = frozenset[tuple[str, str]]
DcgmDevice = tuple[str, str]
"""UUID of the GPU, and id of the MIG instance or an empty text."""
SeriesOrigin = tuple[str, ...]


def first_of(labels: SeriesLabels, names: Iterable[str]) -> str:
    """The first label that is not empty: an empty label equals a missing one."""
    return next((labels[name] for name in names if labels.get(name)), "")


def place_of(labels: SeriesLabels) -> SeriesPlace:
    """The labels that distinguish a series from others of its metric, without those that have no use here."""
    return frozenset(each for each in labels.items() if each[0] != "__name__" and each[0] not in NEEDLESS)


def pod_of(labels: SeriesLabels) -> tuple[str, str]:
    """Namespace and name of the pod that a row names: a pod that uses the GPU, or the exporter itself."""
    return first_of(labels, _NAMESPACE), first_of(labels, _POD)


@dataclass(frozen=True, slots=True)
class DeviceSubject:
    """One device, for the pods of one name (empty: no holder), in one of the copies that ``vgpu`` numbers."""

    device: DcgmDevice
    uids: tuple[str, ...] = ()
    vgpu: str = ""


def _looks(window: Window, most: int) -> tuple[int, int, int]:
    """The first and the last instant at which ``window`` is sampled, and the distance between two: few enough
    to cost little beside the reading of every scrape."""
    every = min(window.length_ms, max(_LOOKED_MS, -(-window.length_ms // most)))
    return window.end_ms - window.length_ms // every * every, window.end_ms, every


def field_names(
    reader: KubeStateReader, window: Window, dialect: DeviceDialect = DCGM
) -> Mapping[DcgmField, tuple[str, ...]]:
    """The names that have samples in ``window``, by field."""

    def ask() -> frozenset[str]:
        counted = by("count", ("__name__",), reader.select(dialect.spelled))
        # GPUs that exist for one short job only are few: a finer search for them costs little.
        for most in (_FEW_LOOKS, window.length_ms // _LOOKED_MS):
            looked = reader.matrix(counted, *_looks(window, max(1, most)))
            seen = [needed(each, "__name__", dialect.spelled) for each in looked]
            if seen:
                break
        return frozenset(seen)

    if dialect is not DCGM and not has_series(reader, dialect):
        return {}
    found = reader.once((dialect.what, window.start_ms, window.end_ms), ask)
    names: dict[DcgmField, tuple[str, ...]] = {}
    for name in sorted(found):
        meant = dialect.meaning(name).field
        names[meant] = (*names.get(meant, ()), name)
    return names


def has_series(reader: ClusterReader, dialect: DeviceDialect) -> bool:
    """Whether any job has series of a dialect of OTHERS near the reader's window."""
    return any(not set(kind.names).isdisjoint(dialect.spelled) for kind in device_kinds(reader))


def has_others(reader: KubeStateReader, window: Window, names: Sequence[str], beside: Sequence[str]) -> bool:
    """Whether a device has series of ``names`` and none of ``beside``."""
    place = (*UUID_LABELS, *INSTANCE_LABELS)
    lacking = except_where(reader.select(names), reader.select(beside), place)
    return bool(reader.matrix(by("count", (), lacking), *_looks(window, _FEW_LOOKS)))


class RowHolders(Protocol):
    """Whose rows are that name no pod (``node_holders``)."""

    def of(self, labels: SeriesLabels) -> tuple[str, ...]:
        """The uids of the pods that held the device of a row."""


class SeriesSubjects:
    """The subject of each series in ``window``: a pod that held GPUs then, or no holder."""

    def __init__(
        self,
        reader: KubeStateReader,
        holdings: ClusterHoldings,
        window: Window,
        dialect: DeviceDialect = DCGM,
        holders: RowHolders | None = None,
    ) -> None:
        self._holdings = holdings
        self._window = window
        self._replicas = reader.settings.replica_labels
        self._holders = holders
        self._parts: dict[str, int] = {}
        self.dialect = dialect
        self.products: dict[DcgmDevice, tuple[str, str]] = {}  # model name and profile
        self.keys: dict[DcgmDevice, str] = {}  # the value by which its series are selected

    def of(self, labels: SeriesLabels) -> DeviceSubject | None:
        """The subject; None for a series that names no GPU."""
        device = self.dialect.device(labels)
        if device is None:
            return None
        if device not in self.products:
            self.products[device] = self.dialect.product(labels)
            self.keys[device] = first_of(labels, self.dialect.keys)
        parts = self.dialect.parts(labels)
        if parts is not None:
            self._parts[device[0]] = max(parts, self._parts.get(device[0], 1))
        return DeviceSubject(device, self.uids(labels), labels.get("vgpu", ""))

    def measured(self, name: str, labels: SeriesLabels) -> DeviceSubject | None:
        """The subject; None also for a series whose values are no measurements of it."""
        found = self.of(labels)
        return found if self.dialect.is_measured(self.dialect.meaning(name).field, labels) else None

    def parts(self, device: DcgmDevice) -> int | None:
        """How many parts its GPU has, where the rows say so; None else. Of all rows that were read."""
        return self._parts.get(device[0]) if device[1] else None

    def uids(self, labels: SeriesLabels) -> tuple[str, ...]:
        """The uids of the pods of that name which held GPUs, or the one that the row itself names."""
        if self._holders is not None:
            return self._holders.of(labels)
        uid = first_of(labels, ("exported_pod_uid", "pod_uid", "exported_pod_uuid", "pod_uuid"))
        if uid and self._holdings.of_uid(uid, self._window):
            return (uid,)
        held = self._holdings.named(*pod_of(labels), self._window)
        return tuple(dict.fromkeys(hold.pod_uid for hold in held))

    def source(self, name: str, labels: SeriesLabels) -> SeriesOrigin:
        """The labels that distinguish copies of one reading: HA members, jobs, names, jobs of an HPC
        scheduler."""
        return name, *(labels.get(each, "") for each in ("job", "hpc_job", *self._replicas))
