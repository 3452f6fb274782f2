"""What dcgm-exporter exports, in each of its dialects, and which GPUs and pods its labels name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from gpucost.contract import dcgm
from gpucost.contract.probe import DuplicateSeries, GpuSeries
from gpucost.telemetry.doctor.probe_reader import (
    ProbeReader,
    duplicate_series,
    grouped,
    ratio_of,
    some,
)
from gpucost.telemetry.prometheus.cluster_reader import own_label, renamed
from gpucost.telemetry.prometheus.query_response import ResultSeries

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
