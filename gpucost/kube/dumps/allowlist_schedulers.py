"""What a dump keeps of Kueue's objects (v1beta1 and v1beta2 alike) and of the schedulers' configuration.

Of Kueue's and Volcano's two ConfigMaps those settings stay that decide which jobs are admitted, of their two
Deployments the version and the feature gates. No registry, no other argument, and nothing of other ConfigMaps
and Deployments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gpucost.kube.dumps.allowlist import (
    EXPRESSIONS,
    NAMED,
    POD_TEMPLATE,
    TEMPLATE,
    TEMPLATE_METADATA,
    TOLERATIONS,
    FieldAllowlist,
    FieldFilter,
    conditions,
    each,
    fields,
    message,
    named_values,
    plain,
    texts,
)
from gpucost.kube.parse.scheduler_configs import (
    KUEUE_KEY,
    VOLCANO_KEY,
    as_argument,
    document,
    gates_in,
    scheduler_image,
)

SELECTOR = fields(matchLabels=named_values, matchExpressions=EXPRESSIONS)
_QUOTAS = each(fields("name", "nominalQuota", "borrowingLimit", "lendingLimit"))
_GROUPS = each(fields(coveredResources=texts, flavors=each(fields("name", resources=_QUOTAS))))
_USES = each(fields("name", resources=each(fields("name", "total", "borrowed"))))
_PENDING = ("pendingWorkloads", "reservingWorkloads", "admittedWorkloads")
_WEIGHT = fields("weight")
_CLUSTER_QUEUE: FieldAllowlist = {
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
_LOCAL_QUEUE: FieldAllowlist = {
    "spec": fields("clusterQueue", "stopPolicy", fairSharing=_WEIGHT),
    "status": fields(
        *_PENDING,
        conditions=conditions("Active"),
        fairSharing=fields(admissionFairSharingStatus=fields("lastUpdate", consumedResources=named_values)),
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
    """Its message stays as long as the check is open."""
    is_open = isinstance(found, dict) and found.get("state") != "Ready"
    return (fields("name", "state", message=message) if is_open else fields("name", "state"))(found)


_WORKLOAD: FieldAllowlist = {
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
        nominatedClusterNames=texts,
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
KUEUE: Mapping[tuple[str, str], FieldAllowlist] = {
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


_BROKEN = "["
"""Stands for text that is not a configuration, so that a reader of the dump finds none either."""

_KUEUE = fields(
    *("apiVersion", "kind", "namespace", "manageJobsWithoutQueueName"),
    fairSharing=fields("enable", preemptionStrategies=texts),
    admissionFairSharing=fields("usageHalfLifeTime", "usageSamplingInterval", resourceWeights=named_values),
    preemptionProtection=fields(),
    waitForPodsReady=fields("enable", "blockAdmission", requeuingStrategy=fields("timestamp")),
    resources=fields(
        "quotaCheckStrategy",
        excludeResourcePrefixes=texts,
        transformations=each(fields("input")),
        deviceClassMappings=each(fields("name")),
    ),
    featureGates=named_values,
    integrations=fields(frameworks=texts),
    managedJobsNamespaceSelector=SELECTOR,
)


def _plugin(found: Any) -> Any:
    """A plugin with its switches, of which there are many."""
    switches = [name for name in found if isinstance(name, str)] if isinstance(found, dict) else []
    names = [name for name in switches if name.startswith("enable")]
    return fields("name", *names, arguments=named_values)(found)


_VOLCANO = fields(
    "actions",
    tiers=each(fields(plugins=each(_plugin))),
    configurations=each(fields("name", arguments=named_values)),
)


def _text_of(keep: FieldFilter) -> FieldFilter:
    """Text that is a configuration, as JSON."""

    def kept(found: Any) -> Any:
        if not isinstance(found, str):
            return None
        configuration = document(found)
        return _BROKEN if configuration is None else json.dumps(keep(configuration))

    return kept


CONFIG_MAP: FieldAllowlist = {
    "data": fields(**{KUEUE_KEY: _text_of(_KUEUE), VOLCANO_KEY: _text_of(_VOLCANO)})
}


def _container(found: Any) -> Any:
    image = scheduler_image(found.get("image")) if isinstance(found, dict) else ""
    if not image:
        return NAMED(found)
    return {**NAMED(found), "image": image, "args": [as_argument(gates_in(found.get("args")))]}


DEPLOYMENT_TEMPLATE = fields(
    metadata=TEMPLATE_METADATA, spec=fields(**{**TEMPLATE, "containers": each(_container)})
)
