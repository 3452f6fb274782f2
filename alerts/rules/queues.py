"""Quota and queue pressure: what has waited too long, and what soon will."""

from __future__ import annotations

from alerts.rules import thresholds as t
from alerts.rules.model import (
    QUEUE,
    QUEUES,
    AlertRule,
    AlertSeverity,
    RuleGroup,
)

_OF = "{{ with $labels.cluster }} of cluster {{ . }}{{ end }}"
_PENDING = "cluster_queue:gpucost_cluster_queue_pending_workloads:sum"
# A Volcano queue cannot be selected on the dashboard: only ClusterQueues are in its variable.
_BOARD = (
    "d/gpucost-queues?var-cluster={{ $labels.cluster | urlquery }}"
    "{{ with $labels.cluster_queue }}&var-queue={{ . | urlquery }}{{ end }}"
)
_QUOTA = "(cluster, cluster_queue, flavor, resource)"

PENDING_LONG = AlertRule(
    "GpuCostQueuePendingLong",
    "time() - min by (cluster, cluster_queue) (gpucost_cluster_queue_oldest_pending_timestamp_seconds) "
    f"> {t.PENDING_LONG} "
    "or time() - min by (cluster, volcano_queue) (gpucost_volcano_queue_oldest_pending_timestamp_seconds) "
    f"> {t.PENDING_LONG}",
    AlertSeverity.WARNING,
    "Work has waited in a queue for very long.",
    f"The longest waiting workload of queue "
    f"{{{{ $labels.cluster_queue }}}}{{{{ $labels.volcano_queue }}}}{_OF} "
    "has waited for {{ $value | humanizeDuration }}.",
    _BOARD,
    t.SETTLED,
    thresholds=(t.PENDING_LONG,),
)

BORROWING = AlertRule(
    "GpuCostQueueBorrowingNearLimit",
    f"max by {_QUOTA} (gpucost_cluster_queue_borrowed) "
    f"/ (max by {_QUOTA} (gpucost_cluster_queue_borrowing_limit) > 0) >= {t.BORROWED_NEAR} "
    f"and on (cluster, cluster_queue) {_PENDING} > 0",
    AlertSeverity.WARNING,
    "A queue has borrowed nearly all it may, and work waits.",
    f"Queue {{{{ $labels.cluster_queue }}}}{_OF} has borrowed {{{{ $value | humanizePercentage }}}} of "
    f"what it may "
    "of {{ $labels.resource }} in flavor {{ $labels.flavor }}, and has workloads waiting.",
    QUEUE,
    t.STEADY,
    thresholds=(t.BORROWED_NEAR,),
)

INACTIVE = AlertRule(
    "GpuCostQueueInactive",
    f"{_PENDING} > 0 and on (cluster, cluster_queue) "
    "max by (cluster, cluster_queue) (gpucost_cluster_queue_active) == 0",
    AlertSeverity.WARNING,
    "A queue that admits nothing has work waiting in it.",
    f"Queue {{{{ $labels.cluster_queue }}}}{_OF} is not active: {{{{ $value }}}} workloads wait in it, and "
    f"none will "
    "be admitted until it is.",
    QUEUE,
    t.PATIENT,
)

_WAITS = (
    "max by (cluster, workload_uid, resource) (gpucost_workload_units) and on (cluster, workload_uid) "
    'max by (cluster, workload_uid) (gpucost_workload_state{state="pending"})'
)
NOTHING_ADMITTED = AlertRule(
    "GpuCostNothingAdmitted",
    f"(cluster_resource:gpucost_node_gpu_free:sum >= on (cluster, resource) min by (cluster, resource) "
    f"({_WAITS})) "
    "unless on (cluster) max by (cluster) "
    f"(max_over_time(gpucost_workload_admitted_timestamp_seconds[{t.NO_ADMISSION.duration}])) "
    f"> time() - {t.NO_ADMISSION}",
    AlertSeverity.WARNING,
    "GPUs are free, work waits, and nothing is admitted.",
    f"{{{{ $value }}}} {{{{ $labels.resource }}}}{_OF} are free, which is as many as a waiting workload "
    f"asks for, and "
    f"nothing has been admitted for {t.NO_ADMISSION.shown}.",
    QUEUES,
    t.STEADY,
    thresholds=(t.NO_ADMISSION,),
)

GROUP = RuleGroup("gpucost-queues", (PENDING_LONG, BORROWING, INACTIVE, NOTHING_ADMITTED))
