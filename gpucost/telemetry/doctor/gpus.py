"""What is known of a server's GPUs: what dcgm-exporter exports, in each of its dialects, which GPUs and pods
its labels name; and those that NVIDIA's device plugin does not hand out whole: GPUs of other makers, with who
tells what they do, and what the queue collector says of claims, of their parts, and of newer schedulers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from gpucost.contract import dcgm
from gpucost.contract import kube_state as ksm
from gpucost.contract.dcgm import DcgmField
from gpucost.contract.device_dialects import OTHERS, DeviceDialect
from gpucost.contract.metrics import NODE_GPU_CAPACITY, NODE_UNAVAILABLE, POD_CLAIM_SHARE
from gpucost.contract.probe import DeviceSeries, DuplicateSeries, GpuSeries, OtherGpus, SharingSeries
from gpucost.contract.queue_metrics import (
    COLLECTION_OBJECTS,
    LOCAL_QUEUE_FAIR_WEIGHT,
    POD_GPU_UNHEALTHY,
    SCHEDULER_INFO,
    WORKLOAD_DISPATCHED,
    WORKLOAD_ORIGIN,
)
from gpucost.domain.gpu import is_nvidia
from gpucost.domain.time import Window
from gpucost.telemetry.doctor.probe_reader import (
    ProbeReader,
    duplicate_series,
    grouped,
    ratio_of,
    some,
)
from gpucost.telemetry.prometheus.cluster_reader import ClusterReader, column, numbers, own_label, renamed
from gpucost.telemetry.prometheus.promql import PromQL, by
from gpucost.telemetry.prometheus.query_response import ResultSeries, needed, whole_count
from gpucost.telemetry.upstream.device_subjects import has_series, pod_of
from gpucost.telemetry.upstream.kube_reader import KubeStateReader

EXPORTER = "dcgm-exporter"
ExporterTarget = tuple[str, str, str]
"""Cluster, job and instance."""
_POD = ("pod", "pod_name")
_NAMESPACE = ("namespace", "pod_namespace")
_NAMES = ("namespace", "pod", "container")
_SHOWN = (
    *("UUID", "uuid", "gpu_uuid", "GPU_I_ID", "GPU_I_PROFILE", "Hostname", "hostname", "modelName"),
    *("pod", "pod_name", "pod_uid", "vgpu", "hpc_job", "dra_claim_name", "node"),
)
# The first of these fields that has series defines the number of rows; fields that MIG slices also have come
# first.
_BASES = (
    *(
        dcgm.DcgmField.MEMORY_USED,
        dcgm.DcgmField.GRAPHICS,
        dcgm.DcgmField.POWER,
        dcgm.DcgmField.ENERGY,
        dcgm.DcgmField.BUSY,
    ),
    *(dcgm.DcgmField.MEMORY_FREE, dcgm.DcgmField.SM, dcgm.DcgmField.TENSOR),
)
METRICS = tuple(name for upper in dcgm.NAMES for name in (upper, upper.lower()))
"""Every name of every dialect: those of 1.x are in lower case."""
_OTHER_BASES = (DcgmField.BUSY, DcgmField.POWER, DcgmField.MEMORY_USED)


def fields_of(series: Mapping[str, int]) -> dict[dcgm.DcgmField, dict[str, int]]:
    """The series of each name, by what they measure."""
    found: dict[dcgm.DcgmField, dict[str, int]] = {}
    for name, count in series.items():
        known = dcgm.NAMES.get(name.upper())
        if known is not None:
            found.setdefault(known.field, {})[name] = count
    return found


def base_of(series: Mapping[str, int]) -> list[str]:
    """The names of the field by which rows are counted; none where there is no field of use."""
    fields = fields_of(series)
    return next((sorted(fields[each]) for each in _BASES if each in fields), [])


def read_rows(
    asker: ProbeReader, clusters: Mapping[str, Mapping[str, int]], at_ms: int
) -> dict[str, list[ResultSeries]] | None:
    """One series of each GPU, slice and replica, by cluster. None where they cannot be read."""
    bases = sorted({name for series in clusters.values() for name in base_of(series)})
    if not bases:
        return {}
    answer = asker.vector("rows of dcgm-exporter", asker.select(bases), at_ms)
    if answer is None:
        return None
    found = grouped(asker, answer)
    return {
        cluster: [
            each for each in rows if each["metric"].get("__name__") in base_of(clusters.get(cluster, {}))
        ]
        for cluster, rows in found.items()
    }


def unclear_units(
    asker: ProbeReader, clusters: Iterable[Mapping[str, int]], at_ms: int
) -> dict[str, list[str]]:
    """By cluster, names of which neither the name nor any value tells the unit."""
    names = {
        name
        for series in clusters
        for name in series
        if name.upper() in dcgm.NAMES and dcgm.NAMES[name.upper()].unit is None
    }
    found: dict[str, list[str]] = {}
    for name in sorted(names):
        read = grouped(asker, asker.vector(f"values of {name}", asker.select(name), at_ms))
        for cluster, result in read.items():
            if dcgm.unit_of(str(each["value"][1]) for each in result) is None:
                found.setdefault(cluster, []).append(name)
    return found


def gpu_series(
    rows: list[ResultSeries],
    series: Mapping[str, int],
    exporters: Collection[tuple[str, str]],
    unclear: Iterable[str],
) -> GpuSeries:
    """Of one cluster. ``exporters``: namespace and name of the exporter's pods, as its targets have them."""
    labels = frozenset(label for row in rows for label in row["metric"] if label in _SHOWN)
    keys = {_device(row): _holder(row, exporters) for row in rows}
    fields = fields_of(series)
    base = sum(series.get(name, 0) for name in base_of(series))
    return GpuSeries(
        rows=len(keys),
        held=len({_device(row) for row in rows if _holder(row, exporters) == "pod"}),
        own_pod=sum(holder == "exporter" for holder in keys.values()),
        replicas=sum("vgpu" in row["metric"] for row in rows),
        fields={each.value: ratio_of(names.values(), base, len(keys)) for each, names in fields.items()},
        metrics=tuple(sorted(name for names in fields.values() for name in names)),
        labels=labels,
        profiles=tuple(some(row["metric"].get("GPU_I_PROFILE", "") for row in rows)),
        models=tuple(some(row["metric"].get("modelName", "") for row in rows)),
        versions=tuple(_versions(fields, labels)),
        renamed=frozenset(name for name in _NAMES if any(renamed(name) in row["metric"] for row in rows)),
        unclear_units=tuple(unclear),
    )


def duplicate_rows(rows: list[ResultSeries], replica_labels: Collection[str]) -> DuplicateSeries | None:
    """Rows of the same GPU, slice and replica, held by the same pod."""
    return duplicate_series(EXPORTER, rows, _row_key, replica_labels)


def _row_key(row: ResultSeries) -> tuple[str, ...]:
    labels = row["metric"]
    places = tuple(own_label(row, name) for name in _NAMES)
    return (labels.get("__name__", ""), *_device(row), labels.get("vgpu", ""), *places)


def _device(row: ResultSeries) -> tuple[str, str]:
    return _first(row, dcgm.UUID_LABELS), _first(row, dcgm.INSTANCE_LABELS)


def _holder(row: ResultSeries, exporters: Collection[tuple[str, str]]) -> str:
    """Whether the row names a pod (``pod``), the exporter itself (``exporter``), or no holder."""
    if row["metric"].get(renamed("pod")):
        return "pod"
    pod = _first(row, _POD)
    if not pod:
        return ""
    is_own = (_first(row, _NAMESPACE), pod) in exporters or EXPORTER in pod
    return "exporter" if is_own else "pod"


def _versions(fields: Mapping[dcgm.DcgmField, Mapping[str, int]], labels: Collection[str]) -> Iterable[str]:
    names = [name for each in fields.values() for name in each]
    in_base_units = [
        name
        for name in names
        if dcgm.NAMES[name.upper()].unit in (dcgm.DcgmUnit.JOULES, dcgm.DcgmUnit.BYTES)
        or name.upper().endswith(("_RATIO", "_WATTS"))
    ]
    if any(not name.upper().startswith("DCGM_FI_") for name in names):
        yield "names of 1.x (--use-old-namespace)"
    if in_base_units:
        yield "names of 4.9 and later"
    if len(in_base_units) < len(names):
        yield "names of before 4.9"
    if "hostname" in labels:
        yield "label hostname: 4.8.3 or later"
    if "Hostname" in labels:
        yield "label Hostname: before 4.8.3"


def _first(row: ResultSeries, labels: Iterable[str]) -> str:
    return next((row["metric"][label] for label in labels if row["metric"].get(label)), "")


def read_others(asker: ProbeReader, cluster: str, window: Window, *, is_own: bool) -> OtherGpus | None:
    """As of the end of ``window``; units are those that gpucost's collector (``is_own``) shows, or
    kube-state-metrics. None where it cannot be read."""

    def ask() -> OtherGpus:
        reader = asker.reader(cluster, window)
        told = tuple(_series(reader, each, window) for each in OTHERS if has_series(reader, each))
        return OtherGpus(_units(reader, window, is_own=is_own), tuple(each for each in told if each.devices))

    return asker.tried("GPUs of other makers", ask)


def _units(reader: KubeStateReader, window: Window, *, is_own: bool) -> dict[str, int]:
    """By resource. A resource that kube-state-metrics names is found by its sanitised name."""
    of_kube = reader.select(ksm.NODE_CAPACITY, reader.is_gpu)
    shown = reader.select(NODE_GPU_CAPACITY.name) if is_own else of_kube
    node = by("max", ("resource", "node"), shown)
    found = reader.vector(by("sum", ("resource",), node), window.end_ms)
    units: dict[str, int] = {}
    for name, value in zip(column(found, "resource"), numbers(found), strict=True):
        resource = name if is_own else reader.resource(name) or ""
        if value and resource and not is_nvidia(resource):
            units[resource] = units.get(resource, 0) + whole_count(value)
    return units


def _series(reader: KubeStateReader, dialect: DeviceDialect, window: Window) -> DeviceSeries:
    counted = reader.vector(by("count", ("__name__",), reader.select(dialect.spelled)), window.end_ms)
    names = [needed(each, "__name__", dialect.spelled) for each in counted]
    fields = {dialect.meaning(name).field for name in names}
    base = next((each for each in _OTHER_BASES if each in fields), None)
    wanted = [name for name in names if dialect.meaning(name).field is base]
    rows = reader.vector(reader.select(wanted), window.end_ms) if wanted else []
    devices = {device: row["metric"] for row in rows if (device := dialect.device(row["metric"]))}
    return DeviceSeries(
        dialect.what,
        len(devices),
        sum(dialect.parts(labels) is not None for labels in devices.values()),
        sum(bool(pod_of(labels)[1]) for labels in devices.values()) if dialect.names_pods else 0,
        tuple(each.value for each in DcgmField if each in fields),
        names_pods=dialect.names_pods,
    )


def read_sharing(asker: ProbeReader, cluster: str, window: Window) -> SharingSeries | None:
    """As of the end of ``window``, of the collector that is believed. None where it cannot be read."""

    def ask() -> SharingSeries:
        reader = asker.reader(cluster, window)
        objects = by("max", ("collection",), reader.select(COLLECTION_OBJECTS.name))
        parts = by("count", ("method",), reader.select(POD_CLAIM_SHARE.name))
        of_manager = by("max", ("stage", "workload_uid"), reader.select(WORKLOAD_DISPATCHED.name))
        arrived = by("max", ("workload_uid",), reader.select(WORKLOAD_ORIGIN.name))
        by_usage = by("max", ("namespace", "queue"), reader.select(LOCAL_QUEUE_FAIR_WEIGHT.name))
        unhealthy = by("max", ("pod_uid",), reader.select(POD_GPU_UNHEALTHY.name))
        closed = by("count", ("cause",), reader.select(NODE_UNAVAILABLE.name))
        return SharingSeries(
            _numbers(reader, objects, "collection", window),
            _numbers(reader, parts, "method", window),
            Counter(column(reader.vector(of_manager, window.end_ms), "stage")),
            len(reader.vector(arrived, window.end_ms)),
            len(reader.vector(by_usage, window.end_ms)),
            _numbers(reader, closed, "cause", window),
            len(reader.vector(unhealthy, window.end_ms)),
        )

    return asker.tried("what the collector knows of claims and workloads", ask)


def _numbers(reader: ClusterReader, expression: PromQL, label: str, window: Window) -> dict[str, int]:
    found = reader.vector(expression, window.end_ms)
    return dict(zip(column(found, label), map(whole_count, numbers(found)), strict=True))


def read_schedulers(asker: ProbeReader, cluster: str, window: Window) -> dict[str, str]:
    """Versions of Kueue and Volcano as of the end of ``window``, empty where their metrics do not say it."""

    def ask() -> dict[str, str]:
        reader = asker.reader(cluster, window)
        named = by("max", ("scheduler", "version"), reader.select(SCHEDULER_INFO.name))
        found = reader.vector(named, window.end_ms)
        return dict(sorted(zip(column(found, "scheduler"), column(found, "version"), strict=True)))

    return asker.tried("which schedulers run", ask) or {}
