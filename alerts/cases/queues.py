"""Queue pressure; both replicas of a collector export the same."""

from __future__ import annotations

from alerts.cases.helpers import BEGINS, always, around, pair, samples
from alerts.rules import thresholds as t
from alerts.rules.model import AlertCase

_PENDING = 'gpucost_cluster_queue_pending_workloads{cluster="prod", cluster_queue="nlp", reason="Pending"}'
_QUOTA = 'cluster="prod", cluster_queue="nlp", flavor="h100", resource="nvidia.com/gpu"'
_ALL_QUEUES = "gpucost-queues?var-cluster=prod"
_DASHBOARD = "gpucost-queues?var-cluster=prod&var-queue=nlp"
_NLP = {"cluster": "prod", "cluster_queue": "nlp"}
_SINCE = BEGINS - 60 - int(t.PENDING_LONG.value)
_OLDEST = 'gpucost_cluster_queue_oldest_pending_timestamp_seconds{cluster="prod", cluster_queue="nlp"'
_LIMIT = 40
_NEAR = int(t.BORROWED_NEAR.value * _LIMIT)


def _admitting(admitted_at: str, free: str) -> dict[str, str]:
    """A node of 8 GPUs, a pod that holds some, and a workload that wants 4."""
    where = 'cluster="prod", node="gpu-1", resource="nvidia.com/gpu"'
    return {
        f"gpucost_node_gpu_allocatable{{{where}}}": always(8),
        'gpucost_node_schedulable{cluster="prod", node="gpu-1"}': always(),
        f'gpucost_pod_gpu_request{{{where}, namespace="a", pod="a", pod_uid="1"}}': free,
        'gpucost_workload_units{cluster="prod", workload_uid="w", resource="nvidia.com/gpu"}': always(4),
        'gpucost_workload_state{cluster="prod", workload_uid="w", state="pending"}': always(),
        'gpucost_workload_admitted_timestamp_seconds{cluster="prod", workload_uid="v"}': admitted_at,
    }


CASES: tuple[AlertCase, ...] = (
    pair(
        "GpuCostQueuePendingLong",
        "a ClusterQueue, seen by two replicas of which one is late; it is empty in the end",
        {
            f'{_OLDEST}, instance="a"}}': (samples((_SINCE, 30), ("stale", 1))),
            f'{_OLDEST}, instance="b"}}': (samples((_SINCE + 30, 30), ("stale", 1))),
        },
        _NLP,
        "The longest waiting workload of queue nlp of cluster prod has waited for 12h 11m 0s.",
        _DASHBOARD,
    ),
    pair(
        "GpuCostQueuePendingLong",
        "a queue of Volcano's; no label names the cluster",
        {
            'gpucost_volcano_queue_oldest_pending_timestamp_seconds{volcano_queue="nlp"}': samples(
                (_SINCE, 30), ("stale", 1)
            )
        },
        {"volcano_queue": "nlp"},
        "The longest waiting workload of queue nlp has waited for 12h 11m 0s.",
        "gpucost-queues?var-cluster=",
    ),
    pair(
        "GpuCostQueueBorrowingNearLimit",
        "borrowed just below the part, then just at it",
        {
            f"gpucost_cluster_queue_borrowed{{{_QUOTA}}}": around(
                "GpuCostQueueBorrowingNearLimit", _NEAR - 1, _NEAR
            ),
            f"gpucost_cluster_queue_borrowing_limit{{{_QUOTA}}}": always(_LIMIT),
            _PENDING: always(1),
        },
        {**_NLP, "flavor": "h100", "resource": "nvidia.com/gpu"},
        "Queue nlp of cluster prod has borrowed 90% of what it may of nvidia.com/gpu in flavor h100, and "
        "has workloads "
        "waiting.",
        _DASHBOARD,
    ),
    AlertCase(
        "GpuCostQueueBorrowingNearLimit",
        "all is borrowed, and nobody waits: that is what quota is for; and nothing may be borrowed",
        {
            f"gpucost_cluster_queue_borrowed{{{_QUOTA}}}": always(_LIMIT),
            f"gpucost_cluster_queue_borrowing_limit{{{_QUOTA}}}": samples((_LIMIT, 100), (0, 100)),
            _PENDING: samples((0, 100), (1, 100)),
        },
        silent=(5_400, 11_000),
    ),
    pair(
        "GpuCostQueueInactive",
        "one replica still says that it is not",
        {
            _PENDING: always(3),
            'gpucost_cluster_queue_active{cluster="prod", cluster_queue="nlp", instance="a"}': around(
                "GpuCostQueueInactive", 1, 0
            ),
            'gpucost_cluster_queue_active{cluster="prod", cluster_queue="nlp", instance="b"}': always(0),
        },
        _NLP,
        "Queue nlp of cluster prod is not active: 3 workloads wait in it, and none will be admitted until "
        "it is.",
        _DASHBOARD,
    ),
    pair(
        "GpuCostNothingAdmitted",
        "one GPU too few is free, then just as many as somebody waits for",
        _admitting(always(-40_000), around("GpuCostNothingAdmitted", 5, 4)),
        {"cluster": "prod", "resource": "nvidia.com/gpu"},
        "4 nvidia.com/gpu of cluster prod are free, which is as many as a waiting workload asks for, and "
        "nothing has "
        "been admitted for 1h.",
        _ALL_QUEUES,
    ),
    pair(
        "GpuCostNothingAdmitted",
        "as many GPUs are free all the time, and the last admission is just an hour ago; then there is "
        "another",
        _admitting(samples((0, 110), (6_000, 200)), always(4)),
        {"cluster": "prod", "resource": "nvidia.com/gpu"},
        "4 nvidia.com/gpu of cluster prod are free, which is as many as a waiting workload asks for, and "
        "nothing has "
        "been admitted for 1h.",
        _ALL_QUEUES,
        begins=int(t.NO_ADMISSION.value),
        resolved=6_660,
    ),
)
