"""GPUs of other makers than NVIDIA: what nodes hand out of them, and who tells what they do."""

from __future__ import annotations

from gpucost.contract import kube_state as ksm
from gpucost.contract.dcgm import DcgmField
from gpucost.contract.device_dialects import OTHERS, DeviceDialect
from gpucost.contract.metrics import NODE_GPU_CAPACITY
from gpucost.contract.probe import DeviceSeries, OtherGpus
from gpucost.domain.gpu import is_nvidia
from gpucost.domain.time import Window
from gpucost.telemetry.doctor.probe_reader import ProbeReader
from gpucost.telemetry.prometheus.cluster_reader import column, numbers
from gpucost.telemetry.prometheus.promql import by
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
