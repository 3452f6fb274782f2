"""The subject of each series of an exporter of GPUs: its device, and the pods of the name in its labels, or
whose a GPU is where its series name no pod.

A row names the pod that uses the GPU in ``exported_pod`` or, where the scrape honours labels, in ``pod``;
where the GPU has no holder, and where labels are not honoured, ``pod`` is the exporter's own. Which of the
two it is follows from who held GPUs then.

``ClusterHoldings`` is which pods held which units when: series of GPUs, which have names of pods and no uids,
are matched with it.

Where series name no pod, as OpenTelemetry's, the GPU is of a pod that held every GPU of the node. A row names
its node by a label, or by ``target_info`` of its target (Prometheus, OTLP: resource attributes become labels
of ``target_info``). A scrape's own label for the node counts where the target shows one host: a collector of
several need not run on any of them. Nothing says which GPU of a node a pod has, so only a pod with all units
that the node has is known to have this one. All other use is of nobody, and what pods held there a problem.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gpucost.contract.dcgm import INSTANCE_LABELS, UUID_LABELS, DcgmField
from gpucost.contract.device_dialects import DCGM, DeviceDialect
from gpucost.contract.frames import ALLOCATIONS, CAPACITY
from gpucost.contract.otel_hardware import HOSTS, NODES, PARTS, TARGET_INFO, TASK, TYPE
from gpucost.domain.errors import DataProblem, DataProblemCode
from gpucost.domain.gpu import WHOLE, is_nvidia
from gpucost.domain.time import MINUTE_MS, Window
from gpucost.telemetry.evidence.frame_rows import FrameRow
from gpucost.telemetry.prometheus.cluster_reader import ClusterReader
from gpucost.telemetry.prometheus.promql import by, except_where, one_of, over_time
from gpucost.telemetry.prometheus.query_response import needed
from gpucost.telemetry.prometheus.trust import device_kinds
from gpucost.telemetry.upstream.kube_reader import TARGET_LABELS, KubeStateReader

_AMD = "amd.com/"
_HOLD = ("pod_uid", "namespace", "pod", "node", "resource", "count", "start_ms", "end_ms")
_UNNAMED = (
    "series of GPUs by OpenTelemetry name no pod: use is known of those pods alone that held every GPU of "
    "their node"
)


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
SeriesPlace = tuple[tuple[str, str], ...]
"""Labels by name."""
DcgmDevice = tuple[str, str]
"""UUID of the GPU, and id of the MIG instance or an empty text."""
SeriesOrigin = tuple[str, ...]


def first_of(labels: SeriesLabels, names: Iterable[str]) -> str:
    """The first label that is not empty: an empty label equals a missing one."""
    return next((labels[name] for name in names if labels.get(name)), "")


def place_of(labels: SeriesLabels) -> SeriesPlace:
    """The labels that distinguish a series from others of its metric, without those that have no use here."""
    kept = (each for each in labels.items() if each[0] != "__name__" and each[0] not in NEEDLESS)
    return (*sorted(each for each in kept if each[1]),)


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
    """The names that have series in ``window``, by field: out of the server's index, without any samples. Of
    a name whose samples are all near the window, and none inside it, nothing will be read."""
    if dialect is not DCGM and not has_series(reader, dialect):
        return {}
    names: dict[DcgmField, tuple[str, ...]] = {}
    for name in reader.once((dialect.what, window), lambda: _names(reader, window, dialect)):
        meant = dialect.meaning(name).field
        names[meant] = (*names.get(meant, ()), name)
    return names


def _names(reader: KubeStateReader, window: Window, dialect: DeviceDialect) -> Sequence[str]:
    found = reader.label_values("__name__", reader.select(dialect.spelled), window.start_ms, window.end_ms)
    return [needed({"metric": {"__name__": name}}, "__name__", dialect.spelled) for name in found]


def has_series(reader: ClusterReader, dialect: DeviceDialect) -> bool:
    """Whether any job has series of a dialect of OTHERS near the reader's window."""
    return any(not set(kind.names).isdisjoint(dialect.spelled) for kind in device_kinds(reader))


def has_others(reader: KubeStateReader, window: Window, names: Sequence[str], beside: Sequence[str]) -> bool:
    """Whether a device has series of ``names`` and none of ``beside``."""
    place = (*UUID_LABELS, *INSTANCE_LABELS)
    lacking = except_where(reader.select(names), reader.select(beside), place)
    return bool(reader.matrix(by("count", (), lacking), *_looks(window, _FEW_LOOKS)))


class RowHolders(Protocol):
    """Whose rows are that name no pod (``NodeHolders``)."""

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

    def is_measured(self, name: str, labels: SeriesLabels) -> bool:
        """Whether the values of a series are measurements of its subject."""
        return self.dialect.is_measured(self.dialect.meaning(name).field, labels)

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


class NodeHolders:
    """Of the GPUs that ``dialect`` shows in ``window``; ``known`` are pods whose use others tell."""

    def __init__(
        self,
        reader: KubeStateReader,
        window: Window,
        holdings: ClusterHoldings,
        dialect: DeviceDialect,
        names: Sequence[str],
        known: Collection[str] = (),
    ) -> None:
        self._cluster, self._window, self._holdings = reader.cluster, window, holdings
        self._catalog = reader.existing.catalog
        self._known = known
        latest = over_time("last_over_time", reader.select(names), window.length_ms)
        labels = ("__name__", *dialect.keys, TYPE, TASK, *PARTS, *NODES, *TARGET_LABELS)
        found = [each["metric"] for each in reader.vector(by("group", labels, latest), window.end_ms)]
        rows = [row for row in found if _is_of_gpu(dialect, row)]
        self._gateways = _gateways(rows)
        self._of_target = self._targets(reader, rows)
        seen: dict[str, set[str]] = defaultdict(set)
        for row in rows:
            if node := self._node(row):
                seen[node].update([first_of(row, dialect.keys)] if dialect.device(row) else [])
        held: dict[str, list[PodHolding]] = defaultdict(list)
        for hold in holdings:
            if hold.node in seen:
                held[hold.node].append(hold)
        self._alone = {node: self._holders(node, len(gpus), held[node]) for node, gpus in seen.items()}

    def of(self, labels: SeriesLabels) -> tuple[str, ...]:
        """The uids of the pods that held the GPU of a row, one after the other."""
        return self._alone.get(self._node(labels), ())

    def problems(self) -> list[DataProblem]:
        """GPU time held on nodes with such rows by pods whose use nothing tells. Of other makers' GPUs
        attribution names it (``conservation.unmeasured``)."""
        told = {uid for uids in self._alone.values() for uid in uids}.union(self._known)
        lost = sum(
            self._held_ms(hold)
            for hold in self._holdings
            if hold.node in self._alone and hold.pod_uid not in told and is_nvidia(hold.resource)
        )
        if lost < 1:
            return []
        code, at_ms = DataProblemCode.USE_UNSPLIT, self._window.start_ms
        return [DataProblem(code, self._cluster, self._cluster, _UNNAMED, round(lost), at_ms)]

    def _node(self, labels: SeriesLabels) -> str:
        target = _target(labels)
        return self._named(labels, target in self._gateways) or self._of_target.get(target, "")

    def _named(self, labels: SeriesLabels, is_gateway: bool) -> str:
        """The node that labels name; empty for none."""
        names = HOSTS if is_gateway or labels.get(HOSTS[0]) else NODES
        return next((labels[name] for name in names if labels.get(name) in self._holdings.units), "")

    def _targets(
        self, reader: KubeStateReader, rows: Sequence[SeriesLabels]
    ) -> Mapping[tuple[str, str], str]:
        """The node of each target that no label of its rows names, where ``target_info`` has just one."""
        unnamed = {_target(row) for row in rows if not first_of(row, NODES)}
        if not unnamed:
            return {}
        jobs = one_of("job", sorted({job for job, _ in unnamed}))
        latest = over_time("last_over_time", reader.select(TARGET_INFO, jobs), self._window.length_ms)
        found = reader.vector(by("group", (*NODES, *TARGET_LABELS), latest), self._window.end_ms)
        gateways = _gateways([each["metric"] for each in found])
        nodes: dict[tuple[str, str], set[str]] = defaultdict(set)
        for each in found:
            target = _target(each["metric"])
            if target in unnamed and target not in gateways:
                nodes[target].add(self._named(each["metric"], is_gateway=False))
        return {target: min(named) for target, named in nodes.items() if len(named) == 1}

    def _holders(self, node: str, gpus: int, held: Sequence[PodHolding]) -> tuple[str, ...]:
        units = {name: count for name, count in self._holdings.units[node].items() if count > 0}
        if len(units) != 1:
            return ()
        [(resource, count)] = units.items()
        if not 0 < gpus <= count or self._catalog.shares.get(resource) != WHOLE:
            return ()
        found = [
            hold.pod_uid
            for hold in held
            if hold.resource == resource
            and hold.replicas == 1
            and hold.count >= count
            and self._window.overlap_ms(hold.start_ms, hold.end_ms)
        ]
        return tuple(dict.fromkeys(uid for uid in found if uid not in self._known))

    def _held_ms(self, hold: PodHolding) -> float:
        share = self._catalog.shares.get(hold.resource, WHOLE) / hold.replicas
        return self._window.overlap_ms(hold.start_ms, hold.end_ms) * hold.count * float(share)


def _target(labels: SeriesLabels) -> tuple[str, str]:
    return labels.get("job", ""), labels.get("instance", "")


def _is_of_gpu(dialect: DeviceDialect, row: SeriesLabels) -> bool:
    """Whether a row is of a GPU or a part of one: collectors export CPUs and disks under the same names."""
    field = dialect.meaning(row["__name__"]).field
    return row.get(TYPE, "gpu") == "gpu" and dialect.is_measured(field, row)


def _gateways(rows: Sequence[SeriesLabels]) -> set[tuple[str, str]]:
    """Targets with rows of several hosts."""
    hosts: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in rows:
        if host := first_of(row, HOSTS):
            hosts[_target(row)].add(host)
    return {target for target, found in hosts.items() if len(found) > 1}
