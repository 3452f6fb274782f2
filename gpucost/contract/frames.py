"""The frames a telemetry source returns: the neutral form between any dialect and attribution.

Each frame is declared once as a FrameSpec. ``RecordedSource`` stores exactly these columns as Parquet;
``PrometheusSource`` and the simulator produce them; attribution reads nothing else. Times are integer
milliseconds UTC, intervals half-open. A missing number is null (``NaN`` for floats), never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ColumnType(StrEnum):
    TEXT = "str"
    INTEGER = "int64"
    REAL = "float64"


@dataclass(frozen=True, slots=True)
class FrameColumn:
    """One column: ``unit`` is its unit (``ms``, ``units``, ``boards`` for GPUs, or empty for names).

    A column that ``may_lack`` was added after the first release: where it is missing, all of it is null, and
    text is empty.
    """

    name: str
    type: ColumnType
    unit: str
    help: str
    may_lack: bool = False


@dataclass(frozen=True, slots=True)
class FrameSpec:
    name: str
    help: str
    columns: tuple[FrameColumn, ...]

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


def _text(name: str, help_: str) -> FrameColumn:
    return FrameColumn(name, ColumnType.TEXT, "", help_)


def _int(name: str, unit: str, help_: str) -> FrameColumn:
    return FrameColumn(name, ColumnType.INTEGER, unit, help_)


def _real(name: str, unit: str, help_: str) -> FrameColumn:
    return FrameColumn(name, ColumnType.REAL, unit, help_)


def _later(name: str, unit: str, help_: str) -> FrameColumn:
    return FrameColumn(name, ColumnType.REAL, unit, help_, may_lack=True)


def _later_text(name: str, help_: str) -> FrameColumn:
    return FrameColumn(name, ColumnType.TEXT, "", help_, may_lack=True)


_CLUSTER = _text("cluster", "name of the Kubernetes cluster")
_NODE = _text("node", "name of the node")
_START = _int("start_ms", "ms", "first instant, inclusive")
_END = _int("end_ms", "ms", "first instant after, exclusive")

# The dimensions that a report can be grouped by and a team rule can use. Their order is that of a holder's
# key.
HOLDER_COLUMNS: tuple[FrameColumn, ...] = (
    _text("namespace", "namespace of the pod"),
    _text("pod", "name of the pod"),
    _text("pod_uid", "uid of the pod: the subject, since names are reused"),
    _text("job_kind", "kind of the job (domain.jobs.JobKind)"),
    _text("job", "name of the job"),
    _text("job_uid", "uid of the job"),
    _text("workload", "name of the Kueue Workload or Volcano PodGroup, empty without one"),
    _text("queue", "LocalQueue or Volcano queue, empty without one"),
    _text("cluster_queue", "ClusterQueue, empty without one"),
    _text("flavor", "ResourceFlavor that was assigned, empty without one"),
    _text("team_label", "value of the team label or annotation, empty without one"),
    _text("project", "value of the project label or annotation, empty without one"),
    _text("user", "value of the user label or annotation, empty without one"),
)

ALLOCATIONS = FrameSpec(
    "allocations",
    "One row per pod, GPU resource and set of attributes: who held how many units, from when to when. "
    "A pod whose labels change has one row per value, end to end.",
    (
        _CLUSTER,
        _NODE,
        *HOLDER_COLUMNS,
        _text("resource", "resource name, such as nvidia.com/gpu"),
        _int("count", "units", "units held"),
        _START,
        _END,
    ),
)

NODES = FrameSpec(
    "nodes",
    "One row per node and set of properties that a price can depend on.",
    (
        _CLUSTER,
        _NODE,
        _START,
        _END,
        _text("product", "GPU product label, such as NVIDIA-H100-80GB-HBM3"),
        _int("boards", "boards", "physical boards the node should have; -1 when nothing says"),
        _text("instance_type", "node.kubernetes.io/instance-type, empty without one"),
        _text("capacity_type", "on-demand, spot, reserved or owned; empty when nothing says"),
        _text("region", "topology.kubernetes.io/region"),
        _text("zone", "topology.kubernetes.io/zone"),
        _text("pool", "node pool"),
        _text("labels", "further labels a price rule names, as a JSON object with sorted keys"),
    ),
)

CAPACITY = FrameSpec(
    "capacity",
    "One row per node, GPU resource and stretch of time with the same counts.",
    (
        _CLUSTER,
        _NODE,
        _text("resource", "resource name"),
        _START,
        _END,
        _int("expected", "units", "units the hardware should give; -1 when nothing says"),
        _int("capacity", "units", "units in status.capacity; -1 when unknown"),
        _int("allocatable", "units", "units in status.allocatable"),
        _int("replicas", "units", "time-slicing or MPS replicas per board or slice, 1 when not shared"),
        _int("schedulable", "0 or 1", "1 when the node is Ready and not cordoned"),
    ),
)

OBSERVED = FrameSpec(
    "observed",
    "Stretches in which the state of a cluster was observed. Between them nothing is known for certain.",
    (_CLUSTER, _START, _END),
)

SIGNALS = FrameSpec(
    "signals",
    "What was measured on the time a pod held, per window; null where no signal exists. On a shared board a "
    "pod may be active for more than the board time observed for it: the part of the board that it held.",
    (
        _CLUSTER,
        _NODE,
        _text("pod_uid", "uid of the pod"),
        _START,
        _END,
        _real("observed_ms", "board ms", "board time for which the busy signal was observed"),
        _real("busy_ms", "board ms", "time with at least one kernel running"),
        _real("sm_observed_ms", "board ms", "board time for which the SM signal was observed"),
        _real("sm_active_ms", "board ms", "time weighted by the share of SMs active"),
        _real("tensor_active_ms", "board ms", "time weighted by the share of tensor pipes active"),
        _later("tensor_observed_ms", "board ms", "board time for which the tensor signal was observed"),
        _later("memory_observed_ms", "board ms", "board time for which memory was read"),
        _later(
            "memory_used_mib_s", "MiB s", "memory in use of what was held, times time; shared by share held"
        ),
        _later("memory_total_mib_s", "MiB s", "memory there was of what was held, times time"),
        _later(
            "memory_peak_mib",
            "MiB",
            "most memory in use of one GPU the pod held, by all who share it",
        ),
        _later("energy_observed_ms", "board ms", "board time for which energy was read"),
        _later("energy_mj", "mJ", "energy of the pod's part of its boards"),
    ),
)

ACTIVITY = FrameSpec(
    "activity",
    "What each GPU did for each pod that held it, in steps of a few minutes. A row is one GPU, never a pod's "
    "mean. Board milliseconds; null where no signal exists; no row where nothing was measured.",
    (
        _CLUSTER,
        _NODE,
        _text("gpu", "uuid of the board, or uuid/instance of a MIG instance"),
        _text("pod_uid", "uid of the pod"),
        _START,
        _END,
        _real("held_ms", "board ms", "board time the pod held of this GPU"),
        _real("observed_ms", "board ms", "board time for which the busy signal was observed"),
        _real("busy_ms", "board ms", "time with at least one kernel running; exactly 0 when none ever ran"),
        _real("sm_observed_ms", "board ms", "board time for which the SM signal was observed"),
        _real("sm_active_ms", "board ms", "time weighted by the share of SMs active"),
        _real("memory_used_bytes", "bytes", "the most memory in use of the GPU during the step"),
        _real("memory_total_bytes", "bytes", "memory of the GPU"),
        _real("energy_j", "J", "energy of the pod's part of the board"),
    ),
)

SERVING = FrameSpec(
    "serving",
    "What reached servers, in steps of a few minutes, by pod and counter. A row says that the counter was "
    "read, and 0 that nothing came; no row where nothing was read.",
    (
        _CLUSTER,
        _text("pod_uid", "uid of the pod"),
        _text("metric", "name of the counter"),
        _START,
        _END,
        _real("requests", "requests", "how many came; null where the counter counts none"),
        _real("received_bytes", "bytes", "bytes its network received; null where the counter counts none"),
    ),
)

DEMAND = FrameSpec(
    "demand",
    "Who waited for GPUs, for what, and what held it. One row per job, pod set and stretch.",
    (
        _CLUSTER,
        _text("namespace", "namespace of the job"),
        _text("job_kind", "kind of the job (domain.jobs.JobKind)"),
        _text("job", "name of the job"),
        _text("job_uid", "uid of the job"),
        _text("workload", "name of the Kueue Workload or Volcano PodGroup, empty without one"),
        _text("queue", "LocalQueue or Volcano queue, empty without one"),
        _text("cluster_queue", "ClusterQueue, empty without one"),
        _text("team_label", "value of the team label or annotation, empty without one"),
        _text("pod_set", "name of the pod set, empty where there is one"),
        _text("resource", "GPU resource it wants"),
        _text("products", "GPU product labels of nodes that would take it, joined by |; empty: any"),
        _int("pods", "pods", "pods that wait"),
        _int("min_pods", "pods", "how many of them must start at once: pods for a gang, 1 for none"),
        _int("units", "units", "units per pod"),
        _text("layer", "quota, placement or device (contract.queue_metrics.Layer); empty: not known"),
        _text("reason", "the granular reason, as gpucost_workload_waiting has it"),
        _START,
        _END,
        FrameColumn(
            "channel",
            ColumnType.TEXT,
            "",
            "node where each pod needs a channel of a ComputeDomain, clique where all must besides be in one "
            "NVLink clique; empty: no channel",
            may_lack=True,
        ),
    ),
)

STALLS = FrameSpec(
    "stalls",
    "Stretches in which a gang held GPUs while it lacked members.",
    (
        _CLUSTER,
        _text("gang", "uid of the gang: PodGroup, workload or job, with a group's index"),
        _text("namespace", "namespace of the gang"),
        _text("job_kind", "kind of its job"),
        _text("job", "name of its job"),
        _text("job_uid", "uid of its job"),
        _text("queue", "LocalQueue or Volcano queue, empty without one"),
        _int("min_members", "pods", "how many it needs at once"),
        _int("running", "pods", "how many hold their node"),
        _int("pending", "pods", "how many have none"),
        _START,
        _END,
    ),
)

EVICTIONS = FrameSpec(
    "evictions",
    "Attempts that somebody cut short: one row per pod. Failures are no evictions.",
    (
        _CLUSTER,
        _text("pod_uid", "uid of the pod that was stopped"),
        _text("job_uid", "uid of its job"),
        _text("queue", "LocalQueue or Volcano queue, empty without one"),
        _START,
        _int("end_ms", "ms", "when the pod gave its units back"),
        _text("reason", "why, such as Preempted, PodsReadyTimeout, PreemptionByScheduler"),
        _text("by", "who took its place, as namespace/name; empty when nothing says"),
        _int("checkpoint_ms", "ms", "its last checkpoint; -1 when nothing says"),
    ),
)

QUOTAS = FrameSpec(
    "quotas",
    "What each queue may use and uses, in units of a GPU resource. Null where there is none or nobody knows.",
    (
        _CLUSTER,
        _text("scheduler", "kueue or volcano"),
        _text("queue", "ClusterQueue or Volcano queue"),
        _text("cohort", "root of its cohort; empty when it shares with nobody"),
        _text("flavor", "ResourceFlavor, empty for Volcano"),
        _text("resource", "GPU resource"),
        _START,
        _END,
        _real("nominal", "units", "nominal quota (Volcano: deserved)"),
        _real("borrowing_limit", "units", "how much it may borrow; null when unlimited"),
        _real("lending_limit", "units", "how much of its own others may borrow; null when all"),
        _real("used", "units", "units its admitted work uses"),
        _later_text(
            "own_cohort", "the cohort that it names itself, in the tree below cohort; empty: not known"
        ),
    ),
)

COHORTS = FrameSpec(
    "cohorts",
    "Cohorts, and the quota of their own, in units of a GPU resource. Null where there is none.",
    (
        _CLUSTER,
        _text("cohort", "name of the cohort"),
        _text("parent", "the cohort above it, empty without one"),
        _text("flavor", "ResourceFlavor; empty in the row that only says where the cohort stands"),
        _text("resource", "GPU resource; empty where flavor is"),
        _START,
        _END,
        _real("nominal", "units", "quota of the cohort itself, beside that of its queues"),
        _real("lending_limit", "units", "how much may leave the cohort; null when all"),
    ),
)

HEALTH = FrameSpec(
    "health",
    "Stretches in which a GPU was there but broken.",
    (
        _CLUSTER,
        _NODE,
        _text("gpu", "uuid of the board; empty where it is not known which of the node's it is"),
        _START,
        _END,
        _text("reason", "what says so: lost, xid_ and its code, or reported_unhealthy"),
        _later_text("pod_uid", "uid of the pod whose status says so; empty where it was not a pod's"),
        _later_text("resource", "GPU resource of that pod's unhealthy units; empty without a pod"),
        _later("units", "units", "how many of that pod's units are unhealthy; null without a pod"),
    ),
)

DOMAINS = FrameSpec(
    "domains",
    "Nodes with a channel for ComputeDomains (NVLink over several nodes), and who has it.",
    (
        _CLUSTER,
        _NODE,
        _text("clique", "NVLink clique of the node (nvidia.com/gpu.clique), empty without one"),
        _int("reserved", "0 or 1", "1 while a ComputeDomain has the node's channel"),
        _text("namespace", "namespace of that ComputeDomain, empty where it is not known"),
        _text("domain", "the ComputeDomain, as namespace/name, or its uid"),
        _text("job", "job whose pod has the channel, empty where none is known"),
        _text("job_uid", "uid of that job"),
        _START,
        _END,
    ),
)

PROGRESS = FrameSpec(
    "progress",
    "How far a job came in a window: steps, epochs, tokens; by the names given in the settings.",
    (
        _CLUSTER,
        _text("pod_uid", "uid of the pod"),
        _START,
        _END,
        _text("name", "name of the progress metric in the settings"),
        _real("amount", "its own", "how much it rose"),
    ),
)

# Usage lines: what attribution makes of the frames above, and what the ledger stores. The natural key is
# everything up to and including rate_id.
USAGE_LINES = FrameSpec(
    "usage_lines",
    "Window x node x unit kind x holder x rate -> integer board time and money. held + unallocated + "
    "unavailable + unknown = capacity, to the millisecond and the nano-unit; overcommitted stands beside it.",
    (
        _int("window_start_ms", "ms", "start of the window"),
        _int("window_end_ms", "ms", "end of the window, exclusive"),
        _CLUSTER,
        _NODE,
        _text("resource", "resource name; __remainder__ for the part of the boards no resource advertises"),
        _text("model", "canonical GPU model"),
        _text("profile", "MIG profile, empty for whole boards"),
        _int("share_num", "", "numerator of the share of a board that one unit stands for"),
        _int("share_den", "", "denominator of that share"),
        _text("basis", "basis of the share: compute or memory"),
        _text("instance_type", "as in nodes"),
        _text("capacity_type", "as in nodes"),
        _text("region", "as in nodes"),
        _text("zone", "as in nodes"),
        _text("pool", "as in nodes"),
        _text("bucket", "held, unallocated, unavailable, unknown or overcommitted (domain.holders.Bucket)"),
        *HOLDER_COLUMNS,
        _text("team", "team by the team rules; __unallocated__ and so on for the holders that are nobody"),
        _text("rate_id", "price-book row that applied; empty when there is no price"),
        _int("board_ms", "board ms", "board time"),
        _int("nano", "nano-units", "cost; null when there is no price, never 0 instead"),
        _int("first_ms", "ms", "first instant the holder held units in this window"),
        _int("last_ms", "ms", "instant after the last one"),
        _int("observed_ms", "board ms", "as in signals, rounded; null where not observed"),
        _int("busy_ms", "board ms", "as in signals, rounded"),
        _int("sm_observed_ms", "board ms", "as in signals, rounded"),
        _int("sm_active_ms", "board ms", "as in signals, rounded"),
        _int("tensor_active_ms", "board ms", "as in signals, rounded"),
        _int("tensor_observed_ms", "board ms", "as in signals, rounded"),
        _int("memory_observed_ms", "board ms", "as in signals, rounded"),
        _int("memory_used_mib_s", "MiB s", "as in signals, rounded"),
        _int("memory_total_mib_s", "MiB s", "as in signals, rounded"),
        _int("memory_peak_mib", "MiB", "as in signals, rounded; over several lines the largest, never a sum"),
        _int("energy_observed_ms", "board ms", "as in signals, rounded"),
        _int("energy_mj", "mJ", "as in signals, rounded"),
        _int(
            "busy_over_ms",
            "board ms",
            "busy beyond what was observed (a shared board); null where nothing was",
        ),
        _int("sm_over_ms", "board ms", "SM activity beyond what was observed; null where nothing was"),
        _int(
            "tensor_over_ms", "board ms", "tensor activity beyond what was observed; null where nothing was"
        ),
    ),
)
# The longest text of a usage line, in characters: PostgreSQL indexes at most 2,704 bytes of a value, and no
# name in Kubernetes comes near this.
MAX_TEXT = 600

LINE_MEASURES = (
    "board_ms",
    "nano",
    "first_ms",
    "last_ms",
    "observed_ms",
    "busy_ms",
    "sm_observed_ms",
    "sm_active_ms",
    "tensor_active_ms",
    "tensor_observed_ms",
    "memory_observed_ms",
    "memory_used_mib_s",
    "memory_total_mib_s",
    "memory_peak_mib",
    "energy_observed_ms",
    "energy_mj",
    "busy_over_ms",
    "sm_over_ms",
    "tensor_over_ms",
)
# What was measured over the time of a line; the rest of LINE_MEASURES is the time itself and its cost.
SIGNAL_MEASURES = LINE_MEASURES[4:]
# These are combined by their maximum; all others are added up.
PEAKS = frozenset({"memory_peak_mib"})

# What attribution needs, and what only detectors use: a recording may lack any of the latter.
HISTORY_FRAMES: tuple[FrameSpec, ...] = (
    *(ACTIVITY, SERVING, DEMAND, STALLS, EVICTIONS, QUOTAS, HEALTH, DOMAINS, COHORTS),
)
FRAMES: tuple[FrameSpec, ...] = (
    *(ALLOCATIONS, NODES, CAPACITY, OBSERVED, SIGNALS, PROGRESS),
    *HISTORY_FRAMES,
)

# What detectors found: pieces of held or free time, each in one bucket of the waste ledger.
WASTE_PIECES = FrameSpec(
    "waste_pieces",
    "Stretches of board time in one bucket of the waste ledger each; pieces of one account never overlap "
    "beyond what it has.",
    (
        _CLUSTER,
        _NODE,
        _text("resource", "resource name"),
        _text("pod_uid", "uid of the pod that held it; __unallocated__ for time nobody held"),
        _START,
        _END,
        _text("waste", "domain.waste.Waste"),
        _real("boards", "boards", "how many boards, or parts of them"),
        _int("draft", "", "position of the finding it belongs to; -1 for none"),
    ),
)
