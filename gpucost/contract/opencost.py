"""The series of OpenCost that are read: its prices, and what it bills pods by.

Names and labels: OpenCost, pkg/costmodel/metrics.go. What bites:

- Prices carry no currency, and no GPU model. ``node`` and ``instance`` both name the node; a scrape without
  ``honor_labels`` renames the latter.
- ``node_gpu_hourly_cost`` is what OpenCost's split of a node's price leaves for one GPU, not what the node
  costs; ``node_total_hourly_cost`` is the whole node.
- ``container_gpu_allocation`` has units as Kubernetes counts them (slices, replicas), and no uid before 2025.
"""

from __future__ import annotations

from dataclasses import dataclass

NODE_TOTAL = "node_total_hourly_cost"
NODE_GPU = "node_gpu_hourly_cost"
NODE_GPU_COUNT = "node_gpu_count"
NODE_IS_SPOT = "kubecost_node_is_spot"
ALLOCATED = "container_gpu_allocation"
NODE_LABELS = ("node", "instance")

# What OpenCost takes from others: kube-state-metrics, dcgm-exporter.
CONTAINER_RUNNING = "kube_pod_container_status_running"
GPU_RESOURCE = "nvidia_com_gpu"
GPU_ACTIVE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"

# The resources whose requests it bills; all others cost nothing there.
COUNTED_RESOURCES = frozenset({"nvidia.com/gpu", "k8s.amazonaws.com/vgpu"})
RESOLUTION_MS = 300_000


@dataclass(frozen=True, slots=True)
class BilledPod:
    """What OpenCost bills a pod on one node for in a window: ``unit_ms`` are units times the time it ran, at
    OpenCost's resolution. ``active`` is the mean of its GPUs' activity, 0 to 1; None where there is none."""

    node: str
    namespace: str
    pod: str
    unit_ms: int
    running_ms: int
    active: float | None = None


@dataclass(frozen=True, slots=True)
class BilledNode:
    """What OpenCost knows of one node in a window: means of its prices per hour and of its GPU count (None:
    no such series), and how long there were any."""

    node: str
    gpu_price: float | None
    total_price: float | None
    count: float | None
    node_ms: int
