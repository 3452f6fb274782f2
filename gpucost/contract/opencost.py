"""The series of OpenCost that are read: its prices, and what it bills pods by.

Names and labels: OpenCost, pkg/costmodel/metrics.go. Pitfalls:

- Prices carry no currency, and no GPU model. ``node`` and ``instance`` both name the node; a scrape without
  ``honor_labels`` renames the latter.
- ``node_gpu_hourly_cost`` is what OpenCost's split of a node's price leaves for one GPU, not what the node
  costs; ``node_total_hourly_cost`` is the whole node.
- ``container_gpu_allocation`` has units as Kubernetes counts them (slices, replicas). OpenCost's own series
  have a label ``uid`` since late in 2025.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpucost.domain.time import MINUTE_MS

NODE_TOTAL = "node_total_hourly_cost"
NODE_GPU = "node_gpu_hourly_cost"
NODE_GPU_COUNT = "node_gpu_count"
NODE_IS_SPOT = "kubecost_node_is_spot"
ALLOCATED = "container_gpu_allocation"
NODE_LABELS = ("node", "instance")

# Series that OpenCost reads from others: kube-state-metrics, dcgm-exporter.
CONTAINER_RUNNING = "kube_pod_container_status_running"
GPU_RESOURCE = "nvidia_com_gpu"
GPU_ACTIVE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"

# These identify the release of OpenCost, and the provider whose prices it starts from.
BUILD_INFO = "opencost_build_info"
CLUSTER_INFO = "kubecost_cluster_info"
# OpenCost finds the node of a container by these: with neither a request nor one of its own series it finds
# none.
CPU_AND_MEMORY = ("container_cpu_allocation", "container_memory_allocation_bytes")

# The resources whose requests OpenCost bills; all others cost nothing there.
COUNTED_RESOURCES = frozenset({"nvidia.com/gpu", "k8s.amazonaws.com/vgpu"})
# The resolution at which OpenCost samples running pods unless ``ETL_RESOLUTION_SECONDS`` says otherwise
# (pkg/env, v1.112.0).
RESOLUTION_MS = 5 * MINUTE_MS

# ``GPU`` of configs/*.json (v1.112.0), per hour, by the ``provider`` of kubecost_cluster_info: what a node
# without a price costs unless the operator sets another price.
SHIPPED_GPU_PRICES = {"aws": 0.95, "gcp": 0.95, "azure": 0.0428925, "alibaba": 0.95, "oracle": 2.0}
CUSTOM_PROVIDER = "custom"


@dataclass(frozen=True, slots=True)
class DefaultPrice:
    """What OpenCost bills for an hour of a GPU on a node without a price series; ``source`` says where that
    price is from."""

    price: float
    source: str


@dataclass(frozen=True, slots=True)
class OpenCostRelease:
    """Which OpenCost wrote a cluster's series, and how it reads them.

    ``versions`` are those of its build info, none where that is missing. ``by_uid``: it queries each pod by
    uid, and adds up those of one name (its own series have uids then); else by name alone. ``sees_start``:
    whether a sample at the very start of a window counts, which it does not where a release before 1.115
    queries a Prometheus 3 (opencost/opencost pull 3094).
    """

    versions: tuple[str, ...] = ()
    by_uid: bool = False
    sees_start: bool = True
    default: DefaultPrice | None = None

    @property
    def name(self) -> str:
        """``OpenCost 1.112.0``."""
        return f"OpenCost {', '.join(self.versions) or 'of unknown version'}"

    @property
    def rules(self) -> str:
        """How time is billed, in words."""
        pods = "pods by uid, added up by name" if self.by_uid else "pods by name"
        start = "" if self.sees_start else ", without the look at the start of a day (Prometheus 3)"
        return f"{pods}, from the first look at them to the last{start}"

    @property
    def doubts(self) -> tuple[str, ...]:
        """What its series do not show, and what may make its own page differ from these figures."""
        found = []
        if not any(version[:1].isdigit() or version[:1] == "v" for version in self.versions):
            found.append("its version is no release: the rules follow from the labels of its series")
        if self.by_uid:
            found.append(
                "not to be seen in series: INGEST_POD_UID (pods of one name kept apart), and the collector "
                "source, which does not read Prometheus: with it these are not its figures"
            )
        return tuple(found)


@dataclass(frozen=True, slots=True)
class BilledPod:
    """What OpenCost bills a pod for in a window, under one name and on one node: from ``start_ms`` to
    ``end_ms``, its first and last sample of it running (a single sample is one resolution), with the mean of
    its units. ``unit_ms`` are units times that time: 0 where its units are missing in what OpenCost reads.
    ``active`` is the mean of its GPUs' activity, 0 to 1; None where there is none. ``is_placed``: whether
    OpenCost finds a node, and with that a price, for it; ``node`` is where it was in any case.
    """

    node: str
    namespace: str
    pod: str
    start_ms: int
    end_ms: int
    unit_ms: int
    active: float | None = None
    is_placed: bool = True

    @property
    def running_ms(self) -> int:
        return self.end_ms - self.start_ms


@dataclass(frozen=True, slots=True)
class BilledNode:
    """What OpenCost's series say of one node in a window: means of its prices per hour and of its GPU count
    (None: no such series), and how long there were any, from the first sample to the last."""

    node: str
    gpu_price: float | None
    total_price: float | None
    count: float | None
    node_ms: int
