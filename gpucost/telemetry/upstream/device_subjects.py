"""The subject of each series of dcgm-exporter: its device, and the pods of the name in its labels.

A row names the pod that uses the GPU in ``exported_pod`` or, where the scrape honours labels, in ``pod``;
where the GPU has no holder, and where labels are not honoured, ``pod`` is the exporter's own. Which of the
two it is follows from who held GPUs then.

``ClusterHoldings`` is which pods held which units when: series of GPUs, which have names of pods and no uids,
are matched with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpucost.contract.dcgm import INSTANCE_LABELS, MODEL_LABELS, NAMES, PROFILE_LABELS, UUID_LABELS, DcgmField
from gpucost.contract.frames import ALLOCATIONS, CAPACITY
from gpucost.domain.time import MINUTE_MS, Window
from gpucost.telemetry.evidence.frame_rows import FrameRow
from gpucost.telemetry.prometheus.promql import by, except_where
from gpucost.telemetry.prometheus.query_response import needed
from gpucost.telemetry.upstream.kube_reader import KubeStateReader

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

    def __init__(self, holds: Iterable[PodHolding]) -> None:
        self._by_name: dict[tuple[str, str], list[PodHolding]] = {}
        self._by_uid: dict[str, list[PodHolding]] = {}
        for hold in sorted(holds, key=lambda each: (each.start_ms, each.pod_uid)):
            self._by_name.setdefault((hold.namespace, hold.pod), []).append(hold)
            self._by_uid.setdefault(hold.pod_uid, []).append(hold)

    @classmethod
    def of(cls, allocations: Sequence[FrameRow], capacity: Sequence[FrameRow]) -> ClusterHoldings:
        """Of rows of frames.ALLOCATIONS and frames.CAPACITY."""
        at = {name: CAPACITY.column_names.index(name) for name in ("node", "resource", "replicas")}
        replicas: dict[tuple[str, str], int] = {}
        for row in capacity:
            key = str(row[at["node"]]), str(row[at["resource"]])
            replicas[key] = max(replicas.get(key, 1), int(str(row[at["replicas"]])))
        return cls(_hold(row, replicas) for row in allocations)

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
)
_ALL = tuple(dict.fromkeys(each for name in NAMES for each in (name, name.lower())))

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


def field_names(reader: KubeStateReader, window: Window) -> Mapping[DcgmField, tuple[str, ...]]:
    """The names that have samples in ``window``, by field."""

    def ask() -> frozenset[str]:
        counted = by("count", ("__name__",), reader.select(_ALL))
        # GPUs that exist for one short job only are few: a finer search for them costs little.
        for most in (_FEW_LOOKS, window.length_ms // _LOOKED_MS):
            looked = reader.matrix(counted, *_looks(window, max(1, most)))
            seen = [needed(each, "__name__", _ALL) for each in looked]
            if seen:
                break
        return frozenset(seen)

    found = reader.once(("dcgm", window.start_ms, window.end_ms), ask)
    names: dict[DcgmField, tuple[str, ...]] = {}
    for name in sorted(found):
        meant = NAMES[name.upper()].field
        names[meant] = (*names.get(meant, ()), name)
    return names


def has_others(reader: KubeStateReader, window: Window, names: Sequence[str], beside: Sequence[str]) -> bool:
    """Whether a device has series of ``names`` and none of ``beside``."""
    place = (*UUID_LABELS, *INSTANCE_LABELS)
    lacking = except_where(reader.select(names), reader.select(beside), place)
    return bool(reader.matrix(by("count", (), lacking), *_looks(window, _FEW_LOOKS)))


class SeriesSubjects:
    """The subject of each series in ``window``: a pod that held GPUs then, or no holder."""

    def __init__(self, reader: KubeStateReader, holdings: ClusterHoldings, window: Window) -> None:
        self._holdings = holdings
        self._window = window
        self._replicas = reader.settings.replica_labels
        self.products: dict[DcgmDevice, tuple[str, str]] = {}  # model name and profile

    def of(self, labels: SeriesLabels) -> DeviceSubject | None:
        """The subject; None for a series that names no GPU."""
        uuid = first_of(labels, UUID_LABELS)
        if not uuid:
            return None
        device = uuid, first_of(labels, INSTANCE_LABELS)
        if device not in self.products:
            self.products[device] = first_of(labels, MODEL_LABELS), first_of(labels, PROFILE_LABELS)
        return DeviceSubject(device, self.uids(labels), labels.get("vgpu", ""))

    def uids(self, labels: SeriesLabels) -> tuple[str, ...]:
        """The uids of the pods of that name which held GPUs, or the one that the row itself names."""
        uid = first_of(labels, ("exported_pod_uid", "pod_uid"))
        if uid and self._holdings.of_uid(uid, self._window):
            return (uid,)
        held = self._holdings.named(*pod_of(labels), self._window)
        return tuple(dict.fromkeys(hold.pod_uid for hold in held))

    def source(self, name: str, labels: SeriesLabels) -> SeriesOrigin:
        """The labels that distinguish copies of one reading: HA members, jobs, names, jobs of an HPC
        scheduler."""
        return name, *(labels.get(each, "") for each in ("job", "hpc_job", *self._replicas))
