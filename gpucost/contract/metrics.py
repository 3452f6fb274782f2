"""The metric contract: every series that gpucost's exporters give and its sources read, declared once.

Series of pods and nodes are declared here; the queue collector's others in ``queue_metrics``, the GPU
exporter's in ``gpu_metrics``; what a metric consists of in ``metric_spec``. ``render`` writes the exporters'
part of docs/metrics.md out of these tables; ``gpucost.service.metrics`` adds the service's own metrics.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from gpucost.contract.gpu_metrics import (
    GPU_EXPORTER_METRICS,
    GPU_RULES,
    POD_BUSY,
    POD_ENERGY,
    POD_HELD,
    POD_LABELS,
    POD_OBSERVED,
    POD_SM_ACTIVE,
    POD_SM_OBSERVED,
    POD_TENSOR_ACTIVE,
    POD_TENSOR_OBSERVED,
)
from gpucost.contract.metric_spec import MetricExporter, MetricSpec, MetricType
from gpucost.contract.queue_metrics import QUEUE_METRICS, QUEUE_RULES
from gpucost.domain.time import MINUTE_MS

LINGER_MS = 10 * MINUTE_MS
"""How long a finished pod or workload, or a deleted node, keeps its series: four scrapes and more."""

# Rules that a table cannot express.
RULES = """\
- All series of one scrape carry the time of that scrape. `gpucost_state_up` is the heartbeat: a source
  counts a pod as absent only in scrapes whose heartbeat is 1.
- A finished pod or deleted node keeps all its series for ten minutes, from then on together with its end
  timestamp; then they all go. A pod that lives and dies between two scrapes is so still seen.
- Timestamps are the objects' own, in seconds. Kubernetes writes nearly all of its times in whole seconds;
  what only the collector can tell (when a deletion arrived) has a fraction. Sources read milliseconds.
- `job_uid` is the uid of the job, or `namespace:uid` where an owner reference leads to an object that is not
  known, or that is not what the reference says: whoever may write pods could name any job as its owner.
- The name of the cluster is not a label of these series: it comes as a target or external label.
- A label without a value is exported empty, which Prometheus stores as absent. Names that scrape
  configurations are wont to set (`job`, `team`, `region`) are avoided: such a label would fill the
  empty one.
"""


class UnavailableCause(StrEnum):
    """Why a node takes no new pods, what says most first. The values of the label ``cause``."""

    SHUTDOWN = "shutdown"
    DRAINED = "drained"
    DRAINING = "draining"
    MAINTENANCE = "maintenance"
    MAINTENANCE_PLANNED = "maintenance_planned"
    NOT_READY = "not_ready"
    CORDONED = "cordoned"


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
PROVIDER_ID = "provider_id"
"""Label of gpucost_node_info and of kube_node_info: which machine of a cloud a node is."""
NODE_LABEL_PREFIX = "label_"


def node_label_name(kubernetes_label: str) -> str:
    """``example.com/tier`` -> ``label_example_com_tier``: where gpucost_node_info carries a node label."""
    return NODE_LABEL_PREFIX + re.sub(r"[^a-z0-9_]", "_", kubernetes_label.lower())


def _gauge(name: str, unit: str, labels: tuple[str, ...], help_: str, label_prefix: str = "") -> MetricSpec:
    return MetricSpec(name, MetricType.GAUGE, unit, labels, help_, label_prefix=label_prefix)


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
POD_CLAIM_SHARE = _gauge(
    "gpucost_pod_gpu_claim_share",
    "",
    (*POD_RESOURCE_LABELS, "device", "claim", "method", "dimension"),
    "A device among those of gpucost_pod_gpu_request that other pods may use at the same time: the part of "
    "it that the pod's ResourceClaim has (consumedCapacity of the claim / capacity of the device, of the "
    "dimension), 1 where no amount says. Pods that use a claim at the same time have equal parts of it.",
)
POD_CLAIM_UNKNOWN = _gauge(
    "gpucost_pod_claim_unknown_start_timestamp_seconds",
    "seconds",
    (*POD_LABELS, "claim"),
    "When a pod was bound that uses a ResourceClaim of which nobody can say what it gave, since the claim "
    "went while no collector looked. Its GPUs, if it gave any, are in no series: how many is not known.",
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
    ("node", *NODE_INFO_LABELS, PROVIDER_ID),
    "What a price can depend on: GPU product label, instance and capacity type, place, pool and the node "
    "labels named in the settings as label_*; and the machine of a cloud that it is (spec.providerID); "
    "always 1.",
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
    "Time-slicing or MPS replicas per GPU or slice (nvidia.com/gpu.replicas); absent or 1 when not shared.",
)
NODE_SCHEDULABLE = _gauge(
    "gpucost_node_schedulable",
    "",
    ("node",),
    "1 when the node is Ready, not cordoned, not drained and not shut down, else 0.",
)
NODE_UNAVAILABLE = _gauge(
    "gpucost_node_unavailable_info",
    "",
    ("node", "cause"),
    "Why the node takes no new pods, in one word; always 1, absent while it takes some.",
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
NODE_DOMAIN_RESERVED = _gauge(
    "gpucost_node_compute_domain_reserved",
    "",
    ("node", "clique", "namespace", "compute_domain", "job_kind", "job_name", "job_uid"),
    "Of a node with a channel for ComputeDomains (NVLink over several nodes): 1 while one has it, with the "
    "job whose pod claimed the channel, 0 while it is free for any. clique is nvidia.com/gpu.clique.",
)
POD_METRICS = (POD_GPU_REQUEST, POD_GPU_START, POD_GPU_END, POD_CLAIM_SHARE, POD_OWNER_INFO)
NODE_METRICS = (
    NODE_INFO,
    NODE_BOARDS,
    NODE_GPU_CAPACITY,
    NODE_GPU_ALLOCATABLE,
    NODE_GPU_EXPECTED,
    NODE_GPU_REPLICAS,
    NODE_SCHEDULABLE,
    NODE_UNAVAILABLE,
    NODE_START,
    NODE_END,
)
# Columns of frames.SIGNALS -> the counters whose increase, times a thousand, they are: seconds and joules.
# Held time is the part of it for which energy was read.
SIGNAL_METRICS: Mapping[str, MetricSpec] = {
    "observed_ms": POD_OBSERVED,
    "busy_ms": POD_BUSY,
    "sm_observed_ms": POD_SM_OBSERVED,
    "sm_active_ms": POD_SM_ACTIVE,
    "tensor_active_ms": POD_TENSOR_ACTIVE,
    "tensor_observed_ms": POD_TENSOR_OBSERVED,
    "energy_observed_ms": POD_HELD,
    "energy_mj": POD_ENERGY,
}
METRICS: tuple[MetricSpec, ...] = (
    STATE_UP,
    *POD_METRICS,
    POD_CLAIM_UNKNOWN,
    *NODE_METRICS,
    NODE_DOMAIN_RESERVED,
    *QUEUE_METRICS,
    *GPU_EXPORTER_METRICS,
)


_HEAD = """# Metrics

<!-- Generated by `python -m gpucost.service.metrics docs/metrics.md` from gpucost/contract/metrics.py
and gpucost/service/metrics.py. -->

The series that gpucost's exporters give and its Prometheus source reads, and at the end those of the service
itself. Stability: *experimental* may
change in any release; *stable* keeps name and labels; *deprecated* goes at the earliest two minor releases
later.
"""


def render() -> str:
    """The exporters' series as a page in Markdown."""
    parts = [
        _HEAD,
        f"## Rules\n\n{RULES}",
        f"## Rules of queues, workloads and gangs\n\n{QUEUE_RULES}",
        f"## Rules of the GPU exporter\n\n{GPU_RULES}",
    ]
    for exporter in MetricExporter:
        specs = [spec for spec in METRICS if spec.exporter is exporter]
        parts.append(f"## {exporter.value}\n\n" + "\n".join(_entry(spec) for spec in specs))
    return "\n".join(parts)


def _entry(spec: MetricSpec) -> str:
    labels = [f"`{label}`" for label in spec.labels]
    if spec.label_prefix:
        labels.append(f"`{spec.label_prefix}*`")
    facts = [spec.type.value, spec.unit, spec.stability.value]
    return (
        f"### {spec.name}\n\n{spec.help}\n\n"
        f"- {', '.join(fact for fact in facts if fact)}\n"
        f"- labels: {', '.join(labels) or 'none of its own'}\n"
    )
