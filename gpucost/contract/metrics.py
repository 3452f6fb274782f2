"""The metric contract: every series that gpucost's exporters give and its sources read, declared once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from gpucost.domain.errors import InputError, Remark

_NAME = re.compile(r"gpucost_[a-z][a-z0-9]*(_[a-z0-9]+)*\Z")
_LABEL = re.compile(r"[a-z][a-z0-9_]*\Z")
_UNITS = ("seconds", "bytes", "joules", "ratio")
# What Prometheus itself, the operator and common external labels put on every series of a target.
_TARGET_LABELS = frozenset(
    {"cluster", "container", "endpoint", "env", "environment", "instance", "job", "owner", "prometheus"}
    | {"region", "replica", "service", "team", "zone"}
)


# What a table cannot say.
RULES = """\
- All series of one scrape carry the time of that scrape. `gpucost_state_up` is the heartbeat: a source
  counts a pod as absent only in scrapes whose heartbeat is 1.
- A finished pod or deleted node keeps all its series for ten minutes, from then on together with its end
  timestamp; then they all go. A pod that lives and dies between two scrapes is so still seen.
- Timestamps are the objects' own, in seconds with a fraction; sources round them to milliseconds.
- The name of the cluster is not a label of these series: it comes as a target or external label.
- A label without a value is exported empty, which Prometheus stores as absent. Names that scrape
  configurations are wont to set (`job`, `team`, `region`) are avoided: such a label would fill the
  empty one.
"""


class MetricType(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"


class Stability(StrEnum):
    """STABLE keeps name and labels; DEPRECATED goes at the earliest two minor releases later."""

    EXPERIMENTAL = "experimental"
    STABLE = "stable"
    DEPRECATED = "deprecated"


class Exporter(StrEnum):
    QUEUE_COLLECTOR = "gpucost-queue-collector"
    GPU_EXPORTER = "gpucost-gpu-exporter"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric. ``unit`` is its base unit and the end of its name, empty for plain numbers.

    ``label_prefix`` allows further labels whose names start with it (``label_`` on nodes). Raises
    InputError when name, unit or a label breaks the conventions of the contract.
    """

    name: str
    type: MetricType
    unit: str
    labels: tuple[str, ...]
    help: str
    exporter: Exporter = Exporter.QUEUE_COLLECTOR
    stability: Stability = Stability.EXPERIMENTAL
    label_prefix: str = ""

    def __post_init__(self) -> None:
        if _NAME.match(self.name) is None:
            raise InputError("metric", self.name, "gpucost_ and lower-case words joined by _")
        if (self.type is MetricType.COUNTER) != self.name.endswith("_total"):
            raise InputError("metric", self.name, "_total at the end of counters, and of counters only")
        suffix = next((unit for unit in _UNITS if self.family.endswith(f"_{unit}")), "")
        if suffix != self.unit:
            raise InputError(f"{self.name}.unit", self.unit, suffix or "no unit, or its unit in the name")
        for label in self.labels:
            if _LABEL.match(label) is None or label in _TARGET_LABELS:
                raise InputError(f"{self.name}.labels", label, "a label name that no scrape target sets")

    @property
    def family(self) -> str:
        """The name that OpenMetrics puts in ``# TYPE``: a counter's without ``_total``."""
        return self.name.removesuffix("_total")

    def check_labels(self, labels: Mapping[str, str]) -> None:
        """Raise InputError unless ``labels`` are this metric's: none missing, none unknown."""
        for label in self.labels:
            if label not in labels:
                raise InputError(f"{self.name}.{label}", Remark("missing label"), ", ".join(self.labels))
        for label in labels:
            is_open = bool(self.label_prefix) and label.startswith(self.label_prefix)
            if label not in self.labels and not (is_open and _LABEL.match(label)):
                raise InputError(f"{self.name}.{label}", Remark("unknown label"), ", ".join(self.labels))


POD_LABELS = ("namespace", "pod", "pod_uid", "node")
POD_RESOURCE_LABELS = (*POD_LABELS, "resource")

# Labels of gpucost_pod_owner_info -> columns of a holder (frames.HOLDER_COLUMNS).
OWNER_LABELS: Mapping[str, str] = {
    "namespace": "namespace",
    "pod": "pod",
    "pod_uid": "pod_uid",
    "job_kind": "job_kind",
    "job_name": "job",
    "job_uid": "job_uid",
    "workload": "workload",
    "queue": "queue",
    "cluster_queue": "cluster_queue",
    "flavor": "flavor",
    "owner_team": "team_label",
    "owner_project": "project",
    "owner_user": "user",
}
# Labels of gpucost_node_info -> columns of frames.NODES.
NODE_INFO_LABELS: Mapping[str, str] = {
    "product": "product",
    "instance_type": "instance_type",
    "capacity_type": "capacity_type",
    "topology_region": "region",
    "topology_zone": "zone",
    "node_pool": "pool",
}
NODE_LABEL_PREFIX = "label_"


def node_label_name(kubernetes_label: str) -> str:
    """``example.com/tier`` -> ``label_example_com_tier``: where gpucost_node_info carries a node label."""
    return NODE_LABEL_PREFIX + re.sub(r"[^a-z0-9_]", "_", kubernetes_label.lower())


def _gauge(name: str, unit: str, labels: tuple[str, ...], help_: str, label_prefix: str = "") -> MetricSpec:
    return MetricSpec(name, MetricType.GAUGE, unit, labels, help_, label_prefix=label_prefix)


def _signal(name: str, help_: str) -> MetricSpec:
    return MetricSpec(name, MetricType.COUNTER, "seconds", POD_LABELS, help_, Exporter.GPU_EXPORTER)


STATE_UP = _gauge(
    "gpucost_state_up",
    "",
    (),
    "1 while the collector's view of the cluster is current, 0 while it serves an old one: the heartbeat.",
)
POD_GPU_REQUEST = _gauge(
    "gpucost_pod_gpu_request",
    "",
    POD_RESOURCE_LABELS,
    "GPU units the pod holds, from its binding to a node on (containers[].resources of the Pod).",
)
POD_GPU_START = _gauge(
    "gpucost_pod_gpu_start_timestamp_seconds",
    "seconds",
    POD_RESOURCE_LABELS,
    "When the pod was bound to its node and so began to hold its units (PodScheduled of the Pod).",
)
POD_GPU_END = _gauge(
    "gpucost_pod_gpu_end_timestamp_seconds",
    "seconds",
    POD_RESOURCE_LABELS,
    "When the pod gave its units back: exported once it has finished, for ten minutes.",
)
POD_OWNER_INFO = _gauge(
    "gpucost_pod_owner_info",
    "",
    ("node", *OWNER_LABELS),
    "What a pod belongs to: job, workload, queues, flavor, team, project and user; always 1.",
)
NODE_INFO = _gauge(
    "gpucost_node_info",
    "",
    ("node", *NODE_INFO_LABELS),
    "What a price can depend on: GPU product label, instance and capacity type, place, pool and the node "
    "labels named in the settings as label_*; always 1.",
    label_prefix=NODE_LABEL_PREFIX,
)
NODE_BOARDS = _gauge(
    "gpucost_node_boards",
    "",
    ("node",),
    "Physical GPUs the node should have (nvidia.com/gpu.count or settings); absent when nothing says.",
)
NODE_GPU_CAPACITY = _gauge(
    "gpucost_node_gpu_capacity",
    "",
    ("node", "resource"),
    "GPU units in status.capacity of the Node.",
)
NODE_GPU_ALLOCATABLE = _gauge(
    "gpucost_node_gpu_allocatable",
    "",
    ("node", "resource"),
    "GPU units in status.allocatable of the Node.",
)
NODE_GPU_EXPECTED = _gauge(
    "gpucost_node_gpu_expected",
    "",
    ("node", "resource"),
    "GPU units that the node's hardware and sharing settings should give; absent when nothing says.",
)
NODE_GPU_REPLICAS = _gauge(
    "gpucost_node_gpu_replicas",
    "",
    ("node", "resource"),
    "Time-slicing or MPS replicas per board or slice (nvidia.com/gpu.replicas); 1 when not shared.",
)
NODE_SCHEDULABLE = _gauge(
    "gpucost_node_schedulable",
    "",
    ("node",),
    "1 when the node is Ready and not cordoned, else 0.",
)
NODE_START = _gauge(
    "gpucost_node_start_timestamp_seconds",
    "seconds",
    ("node",),
    "When the node joined (metadata.creationTimestamp of the Node).",
)
NODE_END = _gauge(
    "gpucost_node_end_timestamp_seconds",
    "seconds",
    ("node",),
    "When the node was deleted: exported from then on, for ten minutes.",
)
POD_OBSERVED = _signal(
    "gpucost_pod_gpu_observed_seconds_total",
    "Board seconds the pod held for which the busy signal was observed.",
)
POD_BUSY = _signal(
    "gpucost_pod_gpu_busy_seconds_total",
    "Board seconds with at least one kernel running (DCGM_FI_DEV_GPU_UTIL or NVML utilization.gpu).",
)
POD_SM_OBSERVED = _signal(
    "gpucost_pod_gpu_sm_observed_seconds_total",
    "Board seconds the pod held for which the SM signal was observed.",
)
POD_SM_ACTIVE = _signal(
    "gpucost_pod_gpu_sm_active_seconds_total",
    "Board seconds weighted by the share of SMs active (DCGM_FI_PROF_SM_ACTIVE).",
)
POD_TENSOR_ACTIVE = _signal(
    "gpucost_pod_gpu_tensor_active_seconds_total",
    "Board seconds weighted by the share of tensor pipes active (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE).",
)

POD_METRICS = (POD_GPU_REQUEST, POD_GPU_START, POD_GPU_END, POD_OWNER_INFO)
NODE_METRICS = (
    NODE_INFO,
    NODE_BOARDS,
    NODE_GPU_CAPACITY,
    NODE_GPU_ALLOCATABLE,
    NODE_GPU_EXPECTED,
    NODE_GPU_REPLICAS,
    NODE_SCHEDULABLE,
    NODE_START,
    NODE_END,
)
# Columns of frames.SIGNALS -> the counters they are the increase of.
SIGNAL_METRICS: Mapping[str, MetricSpec] = {
    "observed_ms": POD_OBSERVED,
    "busy_ms": POD_BUSY,
    "sm_observed_ms": POD_SM_OBSERVED,
    "sm_active_ms": POD_SM_ACTIVE,
    "tensor_active_ms": POD_TENSOR_ACTIVE,
}
METRICS: tuple[MetricSpec, ...] = (STATE_UP, *POD_METRICS, *NODE_METRICS, *SIGNAL_METRICS.values())


def metric(name: str) -> MetricSpec:
    """The metric called ``name``. Raises InputError when the contract has none."""
    for spec in METRICS:
        if spec.name == name:
            return spec
    raise InputError("metric", name, ", ".join(spec.name for spec in METRICS))
