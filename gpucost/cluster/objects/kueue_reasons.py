"""Why Kueue takes quota away from a workload, in its words and for a person.

Reasons of the conditions Evicted and Preempted, and of ``status.schedulingStats.evictions``: kueue v0.19.2,
apis/kueue/v1beta2/workload_types.go, and pkg/workload/patching for causes, which are written behind
``DeactivatedDueTo``. Another reason is one of a newer version: it is shown and counted under its own name.
"""

from __future__ import annotations

from enum import StrEnum


class EvictionReason(StrEnum):
    """Why a workload was told to stop."""

    PREEMPTED = "Preempted"
    FLAVOR_MIGRATION = "FlavorMigration"
    PODS_READY_TIMEOUT = "PodsReadyTimeout"
    ADMISSION_CHECK = "AdmissionCheck"
    CLUSTER_QUEUE_STOPPED = "ClusterQueueStopped"
    LOCAL_QUEUE_STOPPED = "LocalQueueStopped"
    NODE_FAILURES = "NodeFailures"
    DEACTIVATED = "Deactivated"


_MEANINGS = {
    EvictionReason.PREEMPTED: "others needed its quota",
    EvictionReason.FLAVOR_MIGRATION: "it moves to a flavor that its ClusterQueue prefers",
    EvictionReason.PODS_READY_TIMEOUT: "its pods were not ready in time",
    EvictionReason.ADMISSION_CHECK: "an admission check withdrew its word",
    EvictionReason.CLUSTER_QUEUE_STOPPED: "its ClusterQueue was stopped",
    EvictionReason.LOCAL_QUEUE_STOPPED: "its LocalQueue was stopped",
    EvictionReason.NODE_FAILURES: "nodes that it ran on failed",
    EvictionReason.DEACTIVATED: "it was deactivated",
    "VariantEvicted": "the variant that ran of it was evicted",
    "ConcurrentAdmission": "no variant of it runs any more",
}
_CAUSES = {
    "RequeuingLimitExceeded": "it was put back too often",
    "MaximumExecutionTimeExceeded": "it ran as long as it may",
    "AdmissionCheck": "an admission check rejected it",
    "EvictedOnManagerCluster": "the cluster that sent it here evicted it",
}
_PREEMPTIONS = {
    "InClusterQueue": "a workload of its own ClusterQueue went before it",
    "InCohortReclamation": "a queue of its cohort took its own quota back",
    "InCohortFairSharing": "a queue of its cohort with a smaller share went before it",
    "InCohortReclaimWhileBorrowing": "a queue of its cohort took quota back while it borrowed itself",
}
_DUE_TO = "DueTo"


def eviction_meaning(reason: str) -> str:
    """What a reason of the conditions Evicted or Preempted says; of an unknown one, that quota is gone."""
    of, _, cause = reason.partition(_DUE_TO)
    said = _MEANINGS.get(of) or _PREEMPTIONS.get(of) or "it gave its quota back"
    return f"{said}: {_CAUSES.get(cause, cause)}" if cause else said
