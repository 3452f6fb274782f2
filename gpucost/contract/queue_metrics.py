"""The queue collector's metrics: queues, workloads, gangs, and the collector itself."""

from __future__ import annotations

from enum import StrEnum

from gpucost.contract.gpu_metrics import POD_LABELS
from gpucost.contract.metric_spec import MetricSpec, MetricType

# Rules that a table cannot express.
QUEUE_RULES = """\
- Quota, reserved, used, borrowed and lendable amounts are in base units: GPUs, cores (with a fraction) and
  bytes. A limit that is not set has no series: it is unlimited. A queue without a cohort lends to nobody
  and has no `lendable`.
- Waits are timestamps, not durations, so that a series changes only when something happens:
  `time() - gpucost_workload_queued_timestamp_seconds` is a wait.
- `reserved` is quota that Kueue holds for workloads, whether their pods run or not; `used` is the part of it
  whose workloads are admitted. What pods really hold is `gpucost_pod_gpu_request`.
- A cohort's amounts are those of all queues and cohorts below it; `borrowed` is what they use above the
  cohort's own subtree quota, from its parent. Cohorts that are only named, without an object, count too.
- Of a waiting workload, or of a job without one, exactly one layer is named: the first that holds it.
  `quota`: its queue gives it none, or admission checks are outstanding. `placement`: it may run, but its
  pods find no nodes, alone or as a gang. `device`: they would, if nodes advertised all the GPUs they have,
  or they are on nodes that cannot give them their devices.
- The label `reason` of `…_pending_workloads` and `…_pending_units` is Kueue's own word, as its object has it
  (mostly `Pending` or `Inadmissible`); that of `gpucost_workload_waiting` and `gpucost_job_waiting` is the
  granular one (`WaitingForQuota`, `NotAdvertised`). All values of labels stand in queue-collector.md.
- Positions count from 1, in the order in which Kueue looks at a queue: priority, then waiting time; under
  admission fair sharing what LocalQueues used lately comes first.
- Of a waiting workload, or of a job without one, `…_pod_set_…` tell each pod set with pods that wait: how
  many, how many of them must start at once, and the GPU units of each. `products` are the GPU products of
  nodes whose labels and taints admit its pods, joined by `|`; `nodes` says how to read it. `all`: every
  product that has the resource is admitted, and `products` is empty. `some`: those in `products`. `none`: no
  such node is ready and admits them, and `products` is empty. `unknown`: it was not looked at, since its pods
  have more rules than the collector evaluates. What is free there is not asked, nor what a flavor will add.
- Finished workloads keep their series for ten minutes, unless they are deleted before.
- A gang is what must run together: a PodGroup, or a tree of groups (CompositePodGroup), else a Kueue
  workload, else a job of a kind whose pods work together. It is partial while some of its members hold
  GPUs and the others it needs do not.
"""


class WaitLayer(StrEnum):
    """What keeps a waiting workload from starting. The values of the label ``layer``."""

    QUOTA = "quota"
    PLACEMENT = "placement"
    DEVICE = "device"


class GangKind(StrEnum):
    """What declares that pods belong together. The values of the label ``gang_kind``."""

    POD_GROUP = "pod_group"
    GROUP_TREE = "composite_pod_group"
    WORKLOAD = "workload"
    JOB = "job"


class NodeAdmission(StrEnum):
    """Which nodes with its resource would admit a pod, by labels and taints. Values of the label
    ``nodes``."""

    ALL = "all"
    SOME = "some"
    NONE = "none"
    UNKNOWN = "unknown"


PRODUCT_SEPARATOR = "|"
WORKLOAD_LABELS = ("namespace", "workload", "workload_uid")
JOB_LABELS = ("job_kind", "job_name", "job_uid")
GANG_LABELS = ("namespace", "gang", "gang_uid", "gang_kind")
QUOTA_LABELS = ("flavor", "resource")
_CLUSTER_QUEUE = ("cluster_queue",)
_LOCAL_QUEUE = ("namespace", "queue")
_COHORT = ("cohort",)
_VOLCANO_QUEUE = ("volcano_queue",)


def _gauge(name: str, labels: tuple[str, ...], help_: str) -> MetricSpec:
    unit = "seconds" if name.endswith("_seconds") else ""
    return MetricSpec(f"gpucost_{name}", MetricType.GAUGE, unit, labels, help_)


def _counter(name: str, labels: tuple[str, ...], help_: str) -> MetricSpec:
    unit = "seconds" if name.endswith("_seconds_total") else ""
    return MetricSpec(f"gpucost_{name}", MetricType.COUNTER, unit, labels, help_)


# Pods that want GPUs

POD_GPU_WAITING = _gauge(
    "pod_gpu_waiting",
    (*POD_LABELS[:3], "resource", "reason"),
    "GPU units a pod without a node wants; reason is gated, or that of its PodScheduled condition.",
)
POD_GPU_WAITING_SINCE = _gauge(
    "pod_gpu_waiting_since_timestamp_seconds",
    POD_LABELS[:3],
    "Since when no node is found for the pod (its PodScheduled condition, else its creation).",
)

# Pods that hold GPUs and are to stop

POD_DISRUPTED = _gauge(
    "pod_disruption_timestamp_seconds",
    (*POD_LABELS, "reason"),
    "When a pod that holds GPUs was told to stop, and by whom (its condition DisruptionTarget): reason is "
    "PreemptionByScheduler, EvictionByEvictionAPI, DeletionByTaintManager, DeletionByPodGC, "
    "TerminationByKubelet, or other.",
)

# Pods that hold broken GPUs

POD_GPU_UNHEALTHY = _gauge(
    "pod_gpu_unhealthy",
    (*POD_LABELS, "resource", "gpu_uuid"),
    "GPU units of a pod that its kubelet calls unhealthy (allocatedResourcesStatus of its containers), of "
    "those in gpucost_pod_gpu_request; gpu_uuid is empty where their ids do not say which GPU it is; absent "
    "while there are none.",
)

# ClusterQueues

CLUSTER_QUEUE_INFO = _gauge(
    "cluster_queue_info",
    (*_CLUSTER_QUEUE, "cohort", "strategy"),
    "Where a ClusterQueue stands and how it queues; always 1.",
)
CLUSTER_QUEUE_ACTIVE = _gauge(
    "cluster_queue_active",
    (*_CLUSTER_QUEUE, "reason"),
    "1 while the ClusterQueue admits workloads, else 0; reason says why not.",
)
CLUSTER_QUEUE_NOMINAL = _gauge(
    "cluster_queue_nominal_quota", (*_CLUSTER_QUEUE, *QUOTA_LABELS), "Quota of the ClusterQueue's own."
)
CLUSTER_QUEUE_BORROWING_LIMIT = _gauge(
    "cluster_queue_borrowing_limit",
    (*_CLUSTER_QUEUE, *QUOTA_LABELS),
    "How much it may borrow from its cohort; absent when unlimited.",
)
CLUSTER_QUEUE_LENDING_LIMIT = _gauge(
    "cluster_queue_lending_limit",
    (*_CLUSTER_QUEUE, *QUOTA_LABELS),
    "How much of its quota others may borrow; absent when all of it.",
)
CLUSTER_QUEUE_RESERVED = _gauge(
    "cluster_queue_reserved",
    (*_CLUSTER_QUEUE, *QUOTA_LABELS),
    "Quota reserved for workloads (status.flavorsReservation).",
)
CLUSTER_QUEUE_USED = _gauge(
    "cluster_queue_used",
    (*_CLUSTER_QUEUE, *QUOTA_LABELS),
    "Quota of admitted workloads (status.flavorsUsage).",
)
CLUSTER_QUEUE_BORROWED = _gauge(
    "cluster_queue_borrowed",
    (*_CLUSTER_QUEUE, *QUOTA_LABELS),
    "Reserved quota above the nominal quota.",
)
CLUSTER_QUEUE_LENDABLE = _gauge(
    "cluster_queue_lendable",
    (*_CLUSTER_QUEUE, *QUOTA_LABELS),
    "Unused quota that others in the cohort may borrow now; none while the queue is not active.",
)
CLUSTER_QUEUE_PENDING_WORKLOADS = _gauge(
    "cluster_queue_pending_workloads",
    (*_CLUSTER_QUEUE, "reason"),
    "Workloads that wait for quota; reason is that of their QuotaReserved condition.",
)
CLUSTER_QUEUE_PENDING_UNITS = _gauge(
    "cluster_queue_pending_units",
    (*_CLUSTER_QUEUE, "resource", "reason"),
    "GPU units that waiting workloads ask for.",
)
CLUSTER_QUEUE_OLDEST = _gauge(
    "cluster_queue_oldest_pending_timestamp_seconds",
    _CLUSTER_QUEUE,
    "Since when the longest waiting workload has waited; absent when none does.",
)
CLUSTER_QUEUE_ADMITTED_WORKLOADS = _gauge(
    "cluster_queue_admitted_workloads", _CLUSTER_QUEUE, "Workloads that may run and have not finished."
)
CLUSTER_QUEUE_RESERVING_WORKLOADS = _gauge(
    "cluster_queue_reserving_workloads", _CLUSTER_QUEUE, "Workloads with quota, admitted or not yet."
)

# Cohorts

COHORT_INFO = _gauge("cohort_info", (*_COHORT, "parent"), "Where a cohort stands in its tree; always 1.")
COHORT_NOMINAL = _gauge(
    "cohort_nominal_quota",
    (*_COHORT, *QUOTA_LABELS),
    "Quota of the cohort's own, beyond that of its queues; absent when it has none.",
)
COHORT_BORROWING_LIMIT = _gauge(
    "cohort_borrowing_limit", (*_COHORT, *QUOTA_LABELS), "How much the cohort may borrow from its parent."
)
COHORT_LENDING_LIMIT = _gauge(
    "cohort_lending_limit", (*_COHORT, *QUOTA_LABELS), "How much the cohort may lend beyond itself."
)
COHORT_SUBTREE_QUOTA = _gauge(
    "cohort_subtree_quota",
    (*_COHORT, *QUOTA_LABELS),
    "Quota that the cohort can hand out: its own, and what its children lend (kueue, resource_node.go).",
)
COHORT_RESERVED = _gauge(
    "cohort_reserved", (*_COHORT, *QUOTA_LABELS), "Quota reserved in all ClusterQueues below the cohort."
)
COHORT_USED = _gauge(
    "cohort_used", (*_COHORT, *QUOTA_LABELS), "Quota of admitted workloads in all ClusterQueues below it."
)
COHORT_BORROWED = _gauge(
    "cohort_borrowed",
    (*_COHORT, *QUOTA_LABELS),
    "What is used of its parent's quota: use of the subtree that reaches the cohort, above its quota.",
)
COHORT_LENDABLE = _gauge(
    "cohort_lendable",
    (*_COHORT, *QUOTA_LABELS),
    "Unused quota that queues of the cohort can still borrow.",
)
COHORT_PENDING_WORKLOADS = _gauge(
    "cohort_pending_workloads", (*_COHORT, "reason"), "Workloads that wait for quota below the cohort."
)
COHORT_PENDING_UNITS = _gauge(
    "cohort_pending_units",
    (*_COHORT, "resource", "reason"),
    "GPU units that waiting workloads below the cohort ask for.",
)
COHORT_OLDEST = _gauge(
    "cohort_oldest_pending_timestamp_seconds",
    _COHORT,
    "Since when the longest waiting workload below the cohort has waited; absent when none does.",
)

# LocalQueues

LOCAL_QUEUE_INFO = _gauge(
    "local_queue_info",
    (*_LOCAL_QUEUE, "cluster_queue"),
    "Which ClusterQueue a LocalQueue leads to; always 1.",
)
LOCAL_QUEUE_ACTIVE = _gauge(
    "local_queue_active",
    (*_LOCAL_QUEUE, "reason"),
    "1 while the LocalQueue takes workloads, else 0; reason says why not.",
)
LOCAL_QUEUE_RESERVED = _gauge(
    "local_queue_reserved",
    (*_LOCAL_QUEUE, *QUOTA_LABELS),
    "Quota reserved for workloads of this LocalQueue.",
)
LOCAL_QUEUE_USED = _gauge(
    "local_queue_used",
    (*_LOCAL_QUEUE, *QUOTA_LABELS),
    "Quota of admitted workloads of this LocalQueue.",
)
LOCAL_QUEUE_PENDING_WORKLOADS = _gauge(
    "local_queue_pending_workloads", (*_LOCAL_QUEUE, "reason"), "Workloads of it that wait for quota."
)
LOCAL_QUEUE_PENDING_UNITS = _gauge(
    "local_queue_pending_units",
    (*_LOCAL_QUEUE, "resource", "reason"),
    "GPU units that waiting workloads of it ask for.",
)
LOCAL_QUEUE_OLDEST = _gauge(
    "local_queue_oldest_pending_timestamp_seconds",
    _LOCAL_QUEUE,
    "Since when the longest waiting workload of it has waited; absent when none does.",
)
LOCAL_QUEUE_FAIR_USAGE = _gauge(
    "local_queue_fair_usage",
    (*_LOCAL_QUEUE, "resource"),
    "What a LocalQueue consumed lately, by which admission fair sharing orders workloads: decayed, in cores, "
    "bytes or units, as of its timestamp (status.fairSharing.admissionFairSharingStatus).",
)
LOCAL_QUEUE_FAIR_USAGE_SEEN = _gauge(
    "local_queue_fair_usage_timestamp_seconds", _LOCAL_QUEUE, "When Kueue last wrote that."
)
LOCAL_QUEUE_FAIR_WEIGHT = _gauge(
    "local_queue_fair_weight",
    _LOCAL_QUEUE,
    "By what that is divided: its weight under admission fair sharing; absent where its ClusterQueue does "
    "not go by usage.",
)

# Workloads

WORKLOAD_INFO = _gauge(
    "workload_info",
    (
        *WORKLOAD_LABELS,
        *("queue", "cluster_queue", "job_kind", "job_name", "job_uid", "priority_class", "owner_team"),
    ),
    "What a Kueue workload belongs to; cluster_queue is where it was admitted or waits; always 1.",
)
WORKLOAD_STATE = _gauge(
    "workload_state",
    (*WORKLOAD_LABELS, "state", "reason"),
    "The state a workload is in: inactive, pending, reserved, admitted, evicting or finished; 1, or how many "
    "__others__ there are.",
)
WORKLOAD_UNITS = _gauge(
    "workload_units", (*WORKLOAD_LABELS, "resource"), "GPU units the workload asks for, or was given."
)
WORKLOAD_PRIORITY = _gauge("workload_priority", WORKLOAD_LABELS, "Its priority in the queue.")
WORKLOAD_QUEUED = _gauge(
    "workload_queued_timestamp_seconds",
    WORKLOAD_LABELS,
    "Since when it waits, or waited, for the quota it has: creation, or its last eviction; absent where "
    "nobody knows: it was evicted more than once, and was not seen to wait since.",
)
WORKLOAD_RESERVED = _gauge(
    "workload_reserved_timestamp_seconds",
    WORKLOAD_LABELS,
    "When quota was reserved for it; absent while it has none.",
)
WORKLOAD_ADMITTED = _gauge(
    "workload_admitted_timestamp_seconds",
    WORKLOAD_LABELS,
    "When it was admitted; absent while it is not.",
)
WORKLOAD_FINISHED = _gauge(
    "workload_finished_timestamp_seconds",
    WORKLOAD_LABELS,
    "When it finished: exported once it has, for ten minutes or until it is deleted.",
)
WORKLOAD_POSITION = _gauge(
    "workload_queue_position",
    WORKLOAD_LABELS,
    "Its place among those that wait in its ClusterQueue, from 1; absent while it does not wait, or is held "
    "back and so not tried.",
)
WORKLOAD_LAYER = _gauge(
    "workload_waiting",
    (*WORKLOAD_LABELS, "layer", "reason"),
    "The first layer that holds a workload back: quota, placement or device; 1, or how many __others__ there "
    "are.",
)
JOB_WAITING = _gauge(
    "job_waiting",
    (*JOB_LABELS, "layer", "reason"),
    "The first layer that holds back a job which no Kueue workload stands for; 1, or how many __others__ "
    "there are.",
)
JOB_WAITING_INFO = _gauge(
    "job_waiting_info",
    (*JOB_LABELS, "namespace", "pod_group", "queue", "owner_team"),
    "What a waiting job without a workload belongs to; always 1.",
)
WORKLOAD_SET_PODS = _gauge(
    "workload_pod_set_pods", (*WORKLOAD_LABELS, "pod_set"), "Pods of a waiting workload's pod set that wait."
)
WORKLOAD_SET_MIN = _gauge(
    "workload_pod_set_min_pods",
    (*WORKLOAD_LABELS, "pod_set"),
    "How many of them must start at once: those of a gang, 1 where each is of use alone.",
)
WORKLOAD_SET_UNITS = _gauge(
    "workload_pod_set_units",
    (*WORKLOAD_LABELS, "pod_set", "resource", "products", "nodes"),
    "GPU units of one pod of the pod set; products are those that would take it, as nodes says.",
)
JOB_SET_PODS = _gauge(
    "job_pod_set_pods", (*JOB_LABELS, "pod_set"), "Pods of a job without a workload that wait, by pod set."
)
JOB_SET_MIN = _gauge(
    "job_pod_set_min_pods",
    (*JOB_LABELS, "pod_set"),
    "How many of them must start at once: those of a gang, 1 where each is of use alone.",
)
JOB_SET_UNITS = _gauge(
    "job_pod_set_units",
    (*JOB_LABELS, "pod_set", "resource", "products", "nodes"),
    "GPU units of one pod of the pod set; products are those that would take it, as nodes says.",
)
_NEED = (
    "1 for a pod set whose pods need a channel of a ComputeDomain each, of which a node has one; span is "
    "clique where they say that all must be in one NVLink clique, else node."
)
WORKLOAD_SET_CHANNELS = _gauge(
    "workload_pod_set_domain_channel", (*WORKLOAD_LABELS, "pod_set", "span"), _NEED
)
JOB_SET_CHANNELS = _gauge("job_pod_set_domain_channel", (*JOB_LABELS, "pod_set", "span"), _NEED)
WORKLOAD_EVICTIONS = _counter(
    "workload_evictions_total",
    (*WORKLOAD_LABELS, "reason"),
    "Times it was told to stop, as Kueue counts (status.schedulingStats): survives restarts of everything.",
)
WORKLOAD_REQUEUES = _gauge(
    "workload_requeues",
    WORKLOAD_LABELS,
    "Times it was put back because its pods were not ready in time (status.requeueState).",
)
WORKLOAD_DISPATCHED = _gauge(
    "workload_dispatched",
    (*WORKLOAD_LABELS, "worker", "stage"),
    "Clusters that MultiKueue sends a workload with quota to; stage is seeking (none is named yet), "
    "nominated (it waits there) or assigned (it runs there); always 1.",
)
WORKLOAD_ORIGIN = _gauge(
    "workload_origin_info",
    (*WORKLOAD_LABELS, "origin"),
    "Which MultiKueue manager sent a workload to this cluster, under the same namespace and name; always 1.",
)

# Volcano queues

VOLCANO_QUEUE_INFO = _gauge(
    "volcano_queue_info", (*_VOLCANO_QUEUE, "parent", "state"), "A Volcano queue; always 1."
)
VOLCANO_QUEUE_WEIGHT = _gauge("volcano_queue_weight", _VOLCANO_QUEUE, "Its weight among its siblings.")
VOLCANO_QUEUE_DESERVED = _gauge(
    "volcano_queue_deserved", (*_VOLCANO_QUEUE, "resource"), "What it deserves (capacity plugin)."
)
VOLCANO_QUEUE_GUARANTEE = _gauge(
    "volcano_queue_guarantee", (*_VOLCANO_QUEUE, "resource"), "What is kept for it, used or not."
)
VOLCANO_QUEUE_CAPABILITY = _gauge(
    "volcano_queue_capability", (*_VOLCANO_QUEUE, "resource"), "The most it may use; absent when unlimited."
)
VOLCANO_QUEUE_ALLOCATED = _gauge(
    "volcano_queue_allocated",
    (*_VOLCANO_QUEUE, "resource"),
    "What its pods use as the scheduler last wrote it; a parent's includes its children's.",
)
VOLCANO_QUEUE_POD_GROUPS = _gauge(
    "volcano_queue_pod_groups",
    (*_VOLCANO_QUEUE, "phase"),
    "Its PodGroups by phase, counted from the PodGroups: the counts in its status are no longer written.",
)
VOLCANO_QUEUE_PENDING_UNITS = _gauge(
    "volcano_queue_pending_units",
    (*_VOLCANO_QUEUE, "resource"),
    "GPU units that its waiting PodGroups need at least.",
)
VOLCANO_QUEUE_OLDEST = _gauge(
    "volcano_queue_oldest_pending_timestamp_seconds",
    _VOLCANO_QUEUE,
    "Since when its longest waiting PodGroup has existed; absent when none waits.",
)

# Gangs

GANG_INFO = _gauge(
    "gang_info",
    (*GANG_LABELS, "job_kind", "job_name", "job_uid", "queue"),
    "Pods that must run together, and the job they belong to; always 1.",
)
GANG_MIN_MEMBERS = _gauge("gang_min_members", GANG_LABELS, "Pods it needs at once to get on.")
GANG_RUNNING = _gauge("gang_running_members", GANG_LABELS, "Its pods that hold their node.")
GANG_PENDING = _gauge("gang_pending_members", GANG_LABELS, "Its pods without a node.")
GANG_HELD_UNITS = _gauge("gang_held_units", (*GANG_LABELS, "resource"), "GPU units that its pods hold.")
GANG_PARTIAL_SINCE = _gauge(
    "gang_partial_since_timestamp_seconds",
    GANG_LABELS,
    "Since when some of it holds GPUs while it lacks members, or since this was first seen where nothing "
    "says; absent while it is whole or holds nothing.",
)

# The collector itself

STATE_REPLICAS = _gauge(
    "state_replicas",
    (),
    "How many collectors should run, all with the same values (setting replicas).",
)
STATE_OTHERS = _gauge(
    "state_other_objects",
    ("part",),
    "Objects without series of their own, since their namespace has more than most_per_namespace of them: in "
    "that part of the series they are one row of the namespace, named __others__.",
)
COLLECTION_UP = _gauge(
    "state_collection_up",
    ("collection", "version"),
    "1 while a collection of the API is current, 0 while an old state of it is served. One that the "
    "cluster does not have is absent: 1 with version none.",
)
COLLECTION_OBJECTS = _gauge("state_collection_objects", ("collection",), "Objects known of a collection.")
COLLECTION_SEEN = _gauge(
    "state_collection_seen_timestamp_seconds",
    ("collection",),
    "When the API server was last heard of a collection; absent for never.",
)
COLLECTION_ERRORS = _counter(
    "state_collection_errors_total",
    ("collection", "reason"),
    "Requests, events and objects that went wrong, by reason.",
)
STATE_PROBLEMS = _gauge(
    "state_problems",
    ("code",),
    "Objects that make no sense now, alone or together, by code; docs/queue-collector.md explains each.",
)
STATE_REFRESHED = _gauge(
    "state_refreshed_timestamp_seconds", (), "When the series were last brought up to date."
)
SCHEDULER_INFO = _gauge(
    "scheduler_info",
    ("scheduler", "version"),
    "Kueue or Volcano as its own metrics describe it, where the settings say where they are; always 1.",
)
SCHEDULER_UP = _gauge(
    "scheduler_metrics_up", ("scheduler",), "1 while Kueue's or Volcano's own metrics can be read, else 0."
)
ADMISSION_WAITS = _counter(
    "cluster_queue_admission_waits_total",
    _CLUSTER_QUEUE,
    "Workloads whose wait until admission Kueue's own histogram counted.",
)
ADMISSION_WAIT_SECONDS = _counter(
    "cluster_queue_admission_wait_seconds_total",
    _CLUSTER_QUEUE,
    "The sum of those waits.",
)

QUEUE_METRICS: tuple[MetricSpec, ...] = tuple(
    value for value in tuple(globals().values()) if isinstance(value, MetricSpec)
)
