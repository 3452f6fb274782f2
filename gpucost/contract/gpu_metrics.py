"""The GPU exporter's metrics: what each GPU did, and the part of it that each holder had."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from gpucost.contract.metric_spec import MetricExporter, MetricSpec, MetricType


class HolderKind(StrEnum):
    """The label ``holder``: a pod, or one of the pseudo-holders of time that no pod held."""

    POD = "pod"
    UNALLOCATED = "__unallocated__"
    UNPARTITIONED = "__unpartitioned__"
    SHARED_OVERHEAD = "__shared_overhead__"
    UNMANAGED = "__unmanaged__"
    UNKNOWN = "__unknown__"


class AttributionMethod(StrEnum):
    """The label ``method``: how a holder's part of what was measured on the GPU was determined."""

    EXACT = "exact"
    WEIGHTED = "weighted"
    EQUAL = "equal"
    NONE = "none"


POD_LABELS = ("namespace", "pod", "pod_uid", "node")
DEVICE_LABELS = ("node", "gpu_uuid", "gpu_instance")
HOLDER_LABELS = ("holder", *POD_LABELS, "gpu_uuid", "gpu_instance", "method")

GPU_RULES = """\
- A GPU is a board, or one MIG GPU instance of it (`gpu_instance`, empty for a whole board). Seconds are
  *board* seconds: an instance of 3 of 7 slices, fully busy for 7 s, adds 3. So series of one board add up
  over its instances; what no instance uses is on the row without `gpu_instance`, holder `__unpartitioned__`.
  Energy adds up per board only: an instance has no energy counter of its own, and the holders' joules, also
  those on rows of its instances, are together the board's.
- `holder` is `pod`, or `__unallocated__` (nobody holds it), `__unpartitioned__` (SMs in no MIG instance),
  `__unmanaged__` (processes outside Kubernetes, or of pods that did not ask for the GPU),
  `__shared_overhead__` (use of a shared GPU that no process could be found for) or `__unknown__` (the
  kubelet does not answer, or over a pause nobody can prove who held it).
- `method` says how a holder's part was found: `exact` (it had the GPU alone), `weighted` (by the SM
  share of its processes, also of one pod beside unmanaged ones; energy of MIG instances by activity),
  `equal` (by share held: there is no signal per process) or `none` (nothing was measured on it, or nobody
  knows whose it was).
- For each GPU and each measure (energy: for each board), the holders' counters plus
  `gpucost_gpu_retired_total` are the GPU's counter, to the last bit: held + retired (`held_seconds`) =
  `gpucost_gpu_present_seconds_total`, and the others by their own names. All are multiples of 2^-20 s or
  2^-14 J, which floats add up without an error. Counters survive a restart of the exporter and begin again
  at 0 when the node boots. A pod's series stay for ten minutes after it gave the GPU back (on a node with
  more than 1,000 pods in that time, those longest gone for at least two), then their values move to
  `gpucost_gpu_retired_total`.
- A pod's counters begin at 0 at `gpucost_pod_gpu_counted_since_timestamp_seconds`, so a job that lived
  between two scrapes is all in its first sample. `increase()` leaves a first sample out; gpucost counts it.
- A lost GPU, or one whose driver is gone, has `gpucost_gpu_up` 0 and no measured series, while the time it
  is held goes on. Nothing is ever filled in with 0: `…_observed_…` says how much time a signal was seen.
"""


def _gauge(name: str, unit: str, labels: tuple[str, ...], help_: str) -> MetricSpec:
    return MetricSpec(name, MetricType.GAUGE, unit, labels, help_, MetricExporter.GPU_EXPORTER)


def _counter(name: str, unit: str, labels: tuple[str, ...], help_: str) -> MetricSpec:
    return MetricSpec(name, MetricType.COUNTER, unit, labels, help_, MetricExporter.GPU_EXPORTER)


GPU_INFO = _gauge(
    "gpucost_gpu_info",
    "",
    (*DEVICE_LABELS, "product", "mig_profile", "device_minor", "pci_bus_id", "driver_version"),
    "What a GPU or MIG instance is; always 1.",
)
GPU_UP = _gauge(
    "gpucost_gpu_up", "", ("node", "gpu_uuid"), "1 while the driver answers for the board, 0 once it is lost."
)
GPU_BOARD_RATIO = _gauge(
    "gpucost_gpu_board_ratio",
    "ratio",
    DEVICE_LABELS,
    "The share of its board that a GPU is: 1, or the slices of a MIG instance by those of the board.",
)
GPU_SIGNAL = _gauge(
    "gpucost_gpu_signal",
    "",
    (*DEVICE_LABELS, "signal", "source"),
    "1 for the source a signal of this GPU comes from now; source is none where there is no such signal.",
)
GPU_DRIVER_EPOCH = _gauge(
    "gpucost_gpu_driver_epoch",
    "",
    ("node", "gpu_uuid"),
    "How often the driver's own counters of this board were seen to begin anew (driver reload, GPU reset).",
)
GPU_MEMORY_USED = _gauge(
    "gpucost_gpu_memory_used_bytes",
    "bytes",
    DEVICE_LABELS,
    "Memory in use (nvmlMemory used, without reserved).",
)
GPU_MEMORY_TOTAL = _gauge(
    "gpucost_gpu_memory_total_bytes", "bytes", DEVICE_LABELS, "Memory there is (nvmlMemory total)."
)
GPU_PROCESSES = _gauge(
    "gpucost_gpu_processes",
    "",
    (*DEVICE_LABELS, "process_owner"),
    "Processes on the GPU by owner: pod, outside (not in Kubernetes), mps_server or unreadable.",
)
GPU_THROTTLED = _counter(
    "gpucost_gpu_throttled_seconds_total",
    "seconds",
    ("node", "gpu_uuid", "reason"),
    "Time the board's clocks were held down, by reason (NVML clocks event reason counters).",
)
GPU_XID_EVENTS = _counter(
    "gpucost_gpu_xid_events_total",
    "",
    ("node", "gpu_uuid", "xid"),
    "XID errors by code, counted as they happened (NVML events, else changes of DCGM_FI_DEV_XID_ERRORS).",
)
GPU_RETIRED = _counter(
    "gpucost_gpu_retired_total",
    "",
    (*DEVICE_LABELS, "measure"),
    "What the series of pods that are gone had reached: measure is the middle of the counter's name.",
)
POD_GPU_SHARE = _gauge(
    "gpucost_pod_gpu_share",
    "",
    (*POD_LABELS, "gpu_uuid", "gpu_instance", "container_names", "resource"),
    "The share of a board that the pod holds now (kubelet pod-resources). Of a device that several claims "
    "have parts of an equal part for each pod: the kubelet does not say consumed capacity. Bills follow "
    "gpucost_pod_gpu_claim_share instead.",
)
POD_COUNTED_SINCE = _gauge(
    "gpucost_pod_gpu_counted_since_timestamp_seconds",
    "seconds",
    POD_LABELS,
    "When the pod's counters on this node began, at 0.",
)


class GpuMeasure(StrEnum):
    """What is counted, on each GPU and for each holder: the middle of the counters' names."""

    HELD = "held_seconds"
    OBSERVED = "observed_seconds"
    BUSY = "busy_seconds"
    SM_OBSERVED = "sm_observed_seconds"
    SM_ACTIVE = "sm_active_seconds"
    TENSOR_OBSERVED = "tensor_observed_seconds"
    TENSOR_ACTIVE = "tensor_active_seconds"
    ENERGY = "energy_joules"


_MEANING: Mapping[GpuMeasure, str] = {
    GpuMeasure.HELD: "Seconds {of} x share of the board, as long as the exporter watched or could prove it.",
    GpuMeasure.OBSERVED: "Board seconds {of} for which the busy signal was observed.",
    GpuMeasure.BUSY: "Board seconds {of} with at least one kernel running (NVML utilization.gpu samples; on "
    "MIG graphics activity of GPM or DCGM_FI_PROF_GR_ENGINE_ACTIVE).",
    GpuMeasure.SM_OBSERVED: "Board seconds {of} for which the SM signal was observed.",
    GpuMeasure.SM_ACTIVE: "Board seconds {of} weighted by the share of SMs active (GPM SM_UTIL or "
    "DCGM_FI_PROF_SM_ACTIVE).",
    GpuMeasure.TENSOR_OBSERVED: "Board seconds {of} for which the tensor signal was observed.",
    GpuMeasure.TENSOR_ACTIVE: "Board seconds {of} weighted by the share of tensor pipes active (GPM "
    "ANY_TENSOR or DCGM_FI_PROF_PIPE_TENSOR_ACTIVE).",
    GpuMeasure.ENERGY: "Energy {of} (NVML total energy consumption of the board).",
}
_OF_GPU = {GpuMeasure.HELD: "the GPU was there"}
_OF_HOLDER = {GpuMeasure.HELD: "held"}
# On the GPU itself, the time held by any holder is the time that it was there.
_GPU_NAMES = {GpuMeasure.HELD: "present_seconds"}


def _unit(measure: GpuMeasure) -> str:
    return measure.rpartition("_")[2]


def _of_gpu(measure: GpuMeasure) -> MetricSpec:
    name = f"gpucost_gpu_{_GPU_NAMES.get(measure, measure)}_total"
    labels = ("node", "gpu_uuid") if measure is GpuMeasure.ENERGY else DEVICE_LABELS
    return _counter(
        name, _unit(measure), labels, _MEANING[measure].format(of=_OF_GPU.get(measure, "of the GPU"))
    )


def _of_holder(measure: GpuMeasure) -> MetricSpec:
    meaning = _MEANING[measure].format(of=_OF_HOLDER.get(measure, "of the holder"))
    return _counter(f"gpucost_pod_gpu_{measure}_total", _unit(measure), HOLDER_LABELS, meaning)


GPU_COUNTERS: Mapping[GpuMeasure, MetricSpec] = {measure: _of_gpu(measure) for measure in GpuMeasure}
HOLDER_COUNTERS: Mapping[GpuMeasure, MetricSpec] = {measure: _of_holder(measure) for measure in GpuMeasure}
POD_HELD = HOLDER_COUNTERS[GpuMeasure.HELD]
POD_OBSERVED = HOLDER_COUNTERS[GpuMeasure.OBSERVED]
POD_BUSY = HOLDER_COUNTERS[GpuMeasure.BUSY]
POD_SM_OBSERVED = HOLDER_COUNTERS[GpuMeasure.SM_OBSERVED]
POD_SM_ACTIVE = HOLDER_COUNTERS[GpuMeasure.SM_ACTIVE]
POD_TENSOR_OBSERVED = HOLDER_COUNTERS[GpuMeasure.TENSOR_OBSERVED]
POD_TENSOR_ACTIVE = HOLDER_COUNTERS[GpuMeasure.TENSOR_ACTIVE]
POD_ENERGY = HOLDER_COUNTERS[GpuMeasure.ENERGY]

NVML_UP = _gauge("gpucost_nvml_up", "", ("node",), "1 while NVML answers and shows at least one GPU, else 0.")
MISSING_SINCE = _gauge(
    "gpucost_gpu_exporter_missing_since_timestamp_seconds",
    "seconds",
    (*DEVICE_LABELS, "part", "reason"),
    "What the exporter lacks now, why, and since when; "
    "part is a row of the table of parts in docs/gpu-exporter.md.",
)
LAST_COLLECTION = _gauge(
    "gpucost_gpu_exporter_last_collection_timestamp_seconds",
    "seconds",
    ("node",),
    "When the counters were last brought up to date.",
)
COLLECTIONS = _counter(
    "gpucost_gpu_exporter_collections_total", "", ("node",), "How often the counters were brought up to date."
)
EXPORTER_ERRORS = _counter(
    "gpucost_gpu_exporter_errors_total",
    "",
    ("node", "part", "reason"),
    "Failures by what failed and why; reason is an error code, never its text.",
)
DROPPED_SAMPLES = _counter(
    "gpucost_gpu_exporter_dropped_samples_total",
    "",
    ("node", "source", "reason"),
    "Readings thrown away because they cannot be true (out of range, not a number, sentinel, unparsable, "
    "a step of energy that no board can make).",
)
DRIVER_RESTARTS = _counter(
    "gpucost_gpu_exporter_driver_restarts_total",
    "",
    ("node",),
    "How often the process that talks to the driver was started again.",
)
SOURCE_UP = MetricSpec(
    "gpucost_exporter_source_up",
    MetricType.GAUGE,
    "",
    ("source",),
    "1 when the last rendering had everything of this part of the exporter, 0 when the part failed: the GPU "
    "exporter leaves it out then, the queue collector shows it as it was.",
    MetricExporter.BOTH,
)
SOURCE_ERRORS = MetricSpec(
    "gpucost_exporter_source_errors_total",
    MetricType.COUNTER,
    "",
    ("source",),
    "Renderings for which this part of the exporter failed.",
    MetricExporter.BOTH,
)
DUPLICATES = _counter(
    "gpucost_exporter_duplicate_samples_total",
    "",
    ("source",),
    "Samples of this part left out of renderings because their labels had been given already.",
)

GPU_EXPORTER_METRICS: tuple[MetricSpec, ...] = (
    GPU_INFO,
    GPU_UP,
    GPU_BOARD_RATIO,
    GPU_SIGNAL,
    GPU_DRIVER_EPOCH,
    *GPU_COUNTERS.values(),
    GPU_MEMORY_USED,
    GPU_MEMORY_TOTAL,
    GPU_PROCESSES,
    GPU_THROTTLED,
    GPU_XID_EVENTS,
    POD_GPU_SHARE,
    POD_COUNTED_SINCE,
    *HOLDER_COUNTERS.values(),
    GPU_RETIRED,
    NVML_UP,
    MISSING_SINCE,
    LAST_COLLECTION,
    COLLECTIONS,
    EXPORTER_ERRORS,
    DROPPED_SAMPLES,
    DRIVER_RESTARTS,
    SOURCE_UP,
    SOURCE_ERRORS,
    DUPLICATES,
)
