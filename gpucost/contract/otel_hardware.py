"""OpenTelemetry's metrics of GPUs under the names that Prometheus gives them.

Semantic conventions for hardware, status Development (open-telemetry/semantic-conventions, docs/hardware/
gpu.md and common.md): ``hw.gpu.utilization`` (unit 1), ``hw.gpu.memory.usage`` and ``.limit`` (By), and with
``hw.type`` = ``gpu`` ``hw.energy`` (J) and ``hw.power`` (W). OTLP ingestion and the collector's exporter
write ``.`` as ``_`` and append the unit; names that were not translated (UTF-8) are not read. ``hw.id`` is
required and unique in its host only. No attribute names a pod: resource attributes of Kubernetes are those of
the collector that exports. The host is on the series, or on ``target_info`` of the same ``job`` and
``instance``.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpucost.contract.dcgm import DcgmField, DcgmName, DcgmUnit

NAMES: Mapping[str, DcgmName] = {
    "HW_GPU_UTILIZATION_RATIO": DcgmName(DcgmField.BUSY, DcgmUnit.RATIO),
    "HW_GPU_MEMORY_USAGE_BYTES": DcgmName(DcgmField.MEMORY_USED, DcgmUnit.BYTES),
    "HW_GPU_MEMORY_LIMIT_BYTES": DcgmName(DcgmField.MEMORY_TOTAL, DcgmUnit.BYTES),
    "HW_ENERGY_JOULES_TOTAL": DcgmName(DcgmField.ENERGY, DcgmUnit.JOULES),
    "HW_POWER_WATTS": DcgmName(DcgmField.POWER, DcgmUnit.WATTS),
}
TARGET_INFO = "target_info"
ID, TYPE, TASK, MODEL = "hw_id", "hw_type", "hw_gpu_task", "hw_model"
KEYS = (ID,)
HOSTS, SCRAPED = ("k8s_node_name", "host_name"), ("node", "kubernetes_node")
"""Labels that may name the node of a GPU, and those in which scrapes name the node of what they scrape."""
NODES = (*HOSTS, *SCRAPED)
"""The best first."""
_GENERAL = ("", "general")
PARTS = ("hw_gpu_partition", "gpu_mig_profile")
"""Of OpenLIT's collector, on rows of parts of GPUs; they say no more of a pod than the GPU's own."""


def device_of(labels: Mapping[str, str]) -> tuple[str, str] | None:
    """The GPU; None for other hardware, for parts of a GPU, and for what encoders and decoders did."""
    if not labels.get(ID) or labels.get(TYPE, "gpu") != "gpu" or any(labels.get(each) for each in PARTS):
        return None
    if labels.get(TASK, "") not in _GENERAL:
        return None
    host = next((labels[name] for name in NODES if labels.get(name)), labels.get("instance", ""))
    return f"{host}/{labels[ID]}", ""


def is_measured(field: DcgmField, labels: Mapping[str, str]) -> bool:
    """Whether a row's value is of a GPU: energy and power are so of what ``hw.type`` says, which is required
    there, and without it of anything."""
    return field not in (DcgmField.ENERGY, DcgmField.POWER) or labels.get(TYPE) == "gpu"


def product_of(labels: Mapping[str, str]) -> tuple[str, str]:
    """Model and MIG profile, of which there is none."""
    return labels.get(MODEL, ""), ""
