"""What a dump keeps of Kueue's objects, of v1beta1 and v1beta2 alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucost.kube.dumps.kept import Kept, conditions, each, fields, message, named_values, plain, texts
from gpucost.kube.dumps.kept_pods import EXPRESSIONS, POD_TEMPLATE, TOLERATIONS

SELECTOR = fields(matchLabels=named_values, matchExpressions=EXPRESSIONS)
_QUOTAS = each(fields("name", "nominalQuota", "borrowingLimit", "lendingLimit"))
_GROUPS = each(fields(coveredResources=texts, flavors=each(fields("name", resources=_QUOTAS))))
_USES = each(fields("name", resources=each(fields("name", "total", "borrowed"))))
_PENDING = ("pendingWorkloads", "reservingWorkloads", "admittedWorkloads")
_WEIGHT = fields("weight")
_CLUSTER_QUEUE: Kept = {
    "spec": fields(
        *("cohort", "cohortName", "queueingStrategy", "stopPolicy"),
        admissionChecks=texts,
        admissionChecksStrategy=fields(admissionChecks=each(fields("name", onFlavors=texts))),
        admissionScope=fields("admissionMode"),
        fairSharing=_WEIGHT,
        flavorFungibility=fields("whenCanBorrow", "whenCanPreempt", "preference"),
        namespaceSelector=SELECTOR,
        preemption=fields(
            *("withinClusterQueue", "reclaimWithinCohort"),
            borrowWithinCohort=fields("policy", "maxPriorityThreshold"),
        ),
        resourceGroups=_GROUPS,
    ),
    "status": fields(
        *_PENDING,
        conditions=conditions("Active"),
        fairSharing=fields("weightedShare"),
        flavorsReservation=_USES,
        flavorsUsage=_USES,
    ),
}
_LOCAL_QUEUE: Kept = {
    "spec": fields("clusterQueue", "stopPolicy", fairSharing=_WEIGHT),
    "status": fields(
        *_PENDING,
        conditions=conditions("Active"),
        fairSharing=fields(admissionFairSharingStatus=fields(consumedResources=named_values)),
        flavorsReservation=_USES,
        flavorsUsage=_USES,
        flavorUsage=_USES,
    ),
}
_VALUES = fields("universal", individual=fields("prefix", "suffix", roots=texts))
_TOPOLOGY_ASSIGNMENT = fields(
    levels=texts,
    domains=each(fields("count", values=texts)),
    slices=each(
        fields(
            "domainCount",
            valuesPerLevel=each(_VALUES),
            podCounts=fields("universal", individual=texts),
        )
    ),
)
_ASSIGNMENTS = each(
    fields(
        *("name", "count"),
        flavors=named_values,
        resourceUsage=named_values,
        topologyAssignment=_TOPOLOGY_ASSIGNMENT,
    )
)
_TOPOLOGY_REQUEST = fields(
    *("required", "preferred", "unconstrained", "podSetGroupName"),
    *("podSetSliceRequiredTopology", "podSetSliceSize"),
)


def _check_state(found: Any) -> Any:
    """Its message is shown while it is open."""
    is_open = isinstance(found, dict) and found.get("state") != "Ready"
    return (fields("name", "state", message=message) if is_open else fields("name", "state"))(found)


_WORKLOAD: Kept = {
    "spec": fields(
        *("queueName", "priority", "priorityClassName", "priorityClassSource", "active"),
        "maximumExecutionTimeSeconds",
        priorityClassRef=fields("name", "group"),
        podSets=each(
            fields(
                *("name", "count", "minCount"),
                template=POD_TEMPLATE,
                topologyRequest=_TOPOLOGY_REQUEST,
            )
        ),
    ),
    "status": fields(
        *("accumulatedPastExecutionTimeSeconds", "accumulatedPastExexcutionTimeSeconds", "clusterName"),
        admission=fields("clusterQueue", podSetAssignments=_ASSIGNMENTS),
        admissionChecks=each(_check_state),
        conditions=conditions("QuotaReserved", "Requeued", "Admitted"),
        reclaimablePods=each(fields("name", "count")),
        requeueState=fields("count", "requeueAt"),
        resourceRequests=each(fields("name", resources=named_values)),
        schedulingStats=fields(evictions=each(fields("reason", "underlyingCause", "count"))),
        unhealthyNodes=each(fields("name")),
    ),
}
KUEUE: Mapping[tuple[str, str], Kept] = {
    ("kueue.x-k8s.io", "ClusterQueue"): _CLUSTER_QUEUE,
    ("kueue.x-k8s.io", "LocalQueue"): _LOCAL_QUEUE,
    ("kueue.x-k8s.io", "Cohort"): {
        "spec": fields("parentName", fairSharing=_WEIGHT, resourceGroups=_GROUPS),
        "status": fields(fairSharing=fields("weightedShare")),
    },
    ("kueue.x-k8s.io", "ResourceFlavor"): {
        "spec": fields(
            "topologyName",
            nodeLabels=named_values,
            nodeTaints=each(fields("key", "value", "effect")),
            tolerations=TOLERATIONS,
        )
    },
    ("kueue.x-k8s.io", "Topology"): {"spec": fields(levels=each(fields("nodeLabel")))},
    ("kueue.x-k8s.io", "AdmissionCheck"): {
        "spec": fields("controllerName"),
        "status": fields(conditions=conditions()),
    },
    ("kueue.x-k8s.io", "WorkloadPriorityClass"): {"value": plain},
    ("kueue.x-k8s.io", "Workload"): _WORKLOAD,
}
