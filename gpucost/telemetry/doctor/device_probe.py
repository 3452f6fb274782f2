"""What is known of GPUs that NVIDIA's device plugin does not hand out whole: GPUs of other makers, with who
tells what they do, and what the queue collector says of claims, of their parts, and of newer schedulers.
"""

from __future__ import annotations

from collections import Counter

from gpucost.contract import kube_state as ksm
from gpucost.contract.dcgm import DcgmField
from gpucost.contract.device_dialects import OTHERS, DeviceDialect
from gpucost.contract.metrics import NODE_GPU_CAPACITY, NODE_UNAVAILABLE, POD_CLAIM_SHARE
from gpucost.contract.probe import DeviceSeries, OtherGpus, SharingSeries
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
from gpucost.telemetry.doctor.probe_reader import ProbeReader
from gpucost.telemetry.prometheus.cluster_reader import ClusterReader, column, numbers
from gpucost.telemetry.prometheus.promql import PromQL, by
from gpucost.telemetry.prometheus.query_response import needed, whole_count
from gpucost.telemetry.upstream.device_subjects import has_series, pod_of
from gpucost.telemetry.upstream.kube_reader import KubeStateReader

_BASES = (DcgmField.BUSY, DcgmField.POWER, DcgmField.MEMORY_USED)


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
    base = next((each for each in _BASES if each in fields), None)
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
