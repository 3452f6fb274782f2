"""The names and labels of AMD's device-metrics-exporter, and what its rows mean on GPUs in partitions.

ROCm/device-metrics-exporter, pkg/amdgpu/gpuagent/gpuagent_gpu_metrics.go (names and labels),
docs/configuration/metricslist.md (units, platforms, partitions), releases 1.0 to 1.5. Names are in lower
case; ``MetricsFieldPrefix`` puts a prefix before each, ``amd_`` in AMD's examples, and other prefixes are not
read. Energy is in microjoules, memory in MB of 2**20 bytes (amdsmi counts so).

A GPU in partitions (DPX, TPX, QPX, CPX) has a row for each, with the pod that holds it. But activity, power
and energy have one sensor for the whole GPU: amdsmi reports them on partition 0, and 0 or nothing on the
others. There they were not measured. Nothing documents whether memory on a partition's row is the
partition's or the GPU's, so of partitions it is not read.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpucost.contract.dcgm import DcgmField, DcgmName, DcgmUnit

PREFIXES = ("", "AMD_")
_NAMES: Mapping[str, DcgmName] = {
    "GPU_GFX_ACTIVITY": DcgmName(DcgmField.BUSY, DcgmUnit.PERCENT),
    "GPU_PROF_SM_ACTIVE": DcgmName(DcgmField.SM, DcgmUnit.PERCENT),
    "GPU_PROF_TENSOR_ACTIVE_PERCENT": DcgmName(DcgmField.TENSOR, DcgmUnit.PERCENT),
    "GPU_USED_VRAM": DcgmName(DcgmField.MEMORY_USED, DcgmUnit.MEBIBYTES),
    "GPU_FREE_VRAM": DcgmName(DcgmField.MEMORY_FREE, DcgmUnit.MEBIBYTES),
    "GPU_TOTAL_VRAM": DcgmName(DcgmField.MEMORY_TOTAL, DcgmUnit.MEBIBYTES),
    "GPU_ENERGY_CONSUMED": DcgmName(DcgmField.ENERGY, DcgmUnit.MICROJOULES),
    "GPU_PACKAGE_POWER": DcgmName(DcgmField.POWER, DcgmUnit.WATTS),
    "GPU_AVERAGE_PACKAGE_POWER": DcgmName(DcgmField.POWER, DcgmUnit.WATTS),
}
NAMES: Mapping[str, DcgmName] = {
    prefix + name: meant for prefix in PREFIXES for name, meant in _NAMES.items()
}

SERIAL, ID, PARTITION, STYLE = "serial_number", "gpu_id", "gpu_partition_id", "gpu_compute_partition_type"
UUID, HOST, MODEL, SERIES = "gpu_uuid", "hostname", "card_model", "card_series"
KEYS = (SERIAL, UUID, ID)
"""Labels of which each series of a device has one: the serial number is empty in virtual machines, and the
UUID is exported on request only."""
_PARTS = {"dpx": 2, "tpx": 3, "qpx": 4}
_STYLES = (*_PARTS, "cpx")


def device_of(labels: Mapping[str, str]) -> tuple[str, str] | None:
    """The GPU, and the number of its partition, empty for a whole one; None for a row that names no GPU."""
    number, host = labels.get(ID, ""), labels.get(HOST, "")
    partition = labels.get(PARTITION, "") if is_partition(labels) else ""
    # Without a serial number nothing says which partitions are of one GPU.
    own = labels.get(SERIAL) or ("" if partition else labels.get(UUID, "")) or (number and f"{host}/{number}")
    return (own, partition) if number and own else None


def is_partition(labels: Mapping[str, str]) -> bool:
    return labels.get(STYLE, "").lower() in _STYLES


def parts_of(labels: Mapping[str, str]) -> int | None:
    """How many partitions the GPU of a row has at the least; None for a whole GPU. CPX has as many as compute
    dies: one more than the highest number on any row of the GPU."""
    if not is_partition(labels):
        return None
    number = labels.get(PARTITION, "")
    return _PARTS.get(labels[STYLE].lower(), int(number) + 1 if number.isdecimal() else 1)


def is_measured(field: DcgmField, labels: Mapping[str, str]) -> bool:
    """Whether a row's value is a measurement of its device."""
    if not is_partition(labels):
        return True
    is_memory = field in (DcgmField.MEMORY_USED, DcgmField.MEMORY_FREE, DcgmField.MEMORY_TOTAL)
    return labels.get(PARTITION) == "0" and not is_memory


def product_of(labels: Mapping[str, str]) -> tuple[str, str]:
    """Model and MIG profile, of which there is none. ``card_model`` is a part number (``102-G30211-0C``)."""
    return labels.get(SERIES) or labels.get(MODEL, ""), ""
