"""Field filters: what a dump keeps of an object, of pods, pod templates and nodes, and of the schedulers.

A ``FieldFilter`` copies what may stay of one value; a field that is not named is not in a dump. Of a value in
another form than the field has, only the form stays (an empty object, list or text): a parser finds the same
flaw, and none of its content gets out.

Of Kueue's objects the same stays in v1beta1 and v1beta2. Of Kueue's and Volcano's two ConfigMaps those
settings stay that decide which jobs are admitted, of their two Deployments the version and the feature gates.
No registry, no other argument, and nothing of other ConfigMaps and Deployments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from gpucost.kube.parse.pods import REFUSED_MESSAGE
from gpucost.kube.parse.scheduler_configs import (
    KUEUE_KEY,
    VOLCANO_KEY,
    as_argument,
    document,
    gates_in,
    scheduler_image,
)
from gpucost.kube.parse.templates import TOPOLOGY_ANNOTATIONS

FieldFilter: TypeAlias = Callable[[Any], Any]
FieldAllowlist: TypeAlias = Mapping[str, FieldFilter]
"""Filters by field."""

LONGEST_MESSAGE = 4096
_LEFT_OUT = "leftOut"
"""A field that no kind has, null. With it an object of which nothing stays is still not empty, and for some
parsers that is the difference between an empty status and none."""


def plain(found: Any) -> Any:
    """Text, a number, true, false or null."""
    return _emptied(found) if isinstance(found, (dict, list)) else found


def texts(found: Any) -> Any:
    """A list of plain values."""
    return [plain(each) for each in found] if isinstance(found, list) else _emptied(found)


def named_values(found: Any) -> Any:
    """Plain values under names that people choose, such as labels and amounts of resources."""
    return by_name(plain)(found)


def fields(*names: str, **below: FieldFilter) -> FieldFilter:
    """An object, of which the plain fields in ``names`` stay, and of the fields in ``below`` what their
    filters keep.

    Without any, only its presence stays.
    """
    known = {**dict.fromkeys(names, plain), **below}

    def keep(found: Any) -> Any:
        if not isinstance(found, dict):
            return _emptied(found)
        kept = {name: known[name](value) for name, value in found.items() if name in known}
        return kept or ({_LEFT_OUT: None} if found and known else {})

    return keep


def each(keep: FieldFilter) -> FieldFilter:
    """A list whose elements have the same filter."""
    return lambda found: [keep(one) for one in found] if isinstance(found, list) else _emptied(found)


def by_name(keep: FieldFilter) -> FieldFilter:
    """A mapping under names that people choose, whose values have the same filter."""

    def kept(found: Any) -> Any:
        if not isinstance(found, dict):
            return _emptied(found)
        return {name: keep(value) for name, value in found.items()}

    return kept


def names_alone(found: Any) -> Any:
    """The names that people chose, without their values."""
    return dict.fromkeys(found) if isinstance(found, dict) else _emptied(found)


def only(names: frozenset[str]) -> FieldFilter:
    """Plain values under some of the names that people choose."""

    def kept(found: Any) -> Any:
        if not isinstance(found, dict):
            return _emptied(found)
        return {name: plain(value) for name, value in found.items() if name in names}

    return kept


def conditions(*shown: str) -> FieldFilter:
    """Conditions; messages, in which controllers quote objects, only of the types in ``shown``."""
    silent = fields("type", "status", "reason", "lastTransitionTime")
    speaking = fields("type", "status", "reason", "lastTransitionTime", message=message)

    def keep(found: Any) -> Any:
        is_shown = isinstance(found, dict) and found.get("type") in [*shown]
        return (speaking if is_shown else silent)(found)

    return each(keep)


def message(found: Any) -> Any:
    """The beginning of a text for people."""
    return found[:LONGEST_MESSAGE] if isinstance(found, str) else plain(found)


def beginning(text: str) -> FieldFilter:
    """``text`` of a value that begins with it; nothing of other text."""
    return lambda found: text if isinstance(found, str) and found.startswith(text) else _emptied(found)


def _emptied(found: Any) -> Any:
    return type(found)() if isinstance(found, (dict, list, str)) else found


EXPRESSIONS = each(fields("key", "operator", values=texts))
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_TERMS = each(fields(matchExpressions=EXPRESSIONS, matchFields=EXPRESSIONS))
_OF_PODS = fields(**{_REQUIRED: each(fields())})
_AMOUNTS = fields(requests=named_values, limits=named_values)
ASKING = fields("restartPolicy", resources=_AMOUNTS)
"""The fields of a container in a template."""
_ALL_ASKING = each(ASKING)
_CONTAINERS = each(fields("name", "restartPolicy", restartPolicyRules=each(fields()), resources=_AMOUNTS))
TOLERATIONS = each(fields("key", "operator", "value", "effect"))
TEMPLATE: FieldAllowlist = {
    "affinity": fields(
        nodeAffinity=fields(**{_REQUIRED: fields(nodeSelectorTerms=_TERMS)}),
        podAffinity=fields(**{_REQUIRED: each(fields("topologyKey"))}),
        podAntiAffinity=_OF_PODS,
    ),
    "containers": _ALL_ASKING,
    "initContainers": _ALL_ASKING,
    "nodeSelector": named_values,
    "overhead": named_values,
    "preemptionPolicy": plain,
    "priorityClassName": plain,
    "resourceClaims": each(fields("name", "resourceClaimName", "resourceClaimTemplateName")),
    "resources": _AMOUNTS,
    "schedulerName": plain,
    "tolerations": TOLERATIONS,
    "topologySpreadConstraints": each(fields("whenUnsatisfiable")),
}
TEMPLATE_METADATA = fields(annotations=only(frozenset(TOPOLOGY_ANNOTATIONS)))
POD_TEMPLATE = fields(metadata=TEMPLATE_METADATA, spec=fields(**TEMPLATE))
NAMED = fields("name", "restartPolicy", resources=_AMOUNTS)
JOB_TEMPLATE = fields(metadata=TEMPLATE_METADATA, spec=fields(**{**TEMPLATE, "containers": each(NAMED)}))
"""Includes the names of containers, since a change of a container's request names it."""

_ENDED = fields("exitCode", "reason", "startedAt", "finishedAt")
_CONTAINER_STATUSES = each(
    fields(
        "name",
        "restartCount",
        allocatedResources=named_values,
        allocatedResourcesStatus=each(fields("name", resources=each(fields("resourceID", "health")))),
        resources=fields(requests=named_values),
        state=fields(running=fields("startedAt"), waiting=fields("reason"), terminated=_ENDED),
        lastState=fields(terminated=_ENDED),
    )
)
_MAPPINGS = each(fields("containerName", "resourceName", "requestName"))
POD: FieldAllowlist = {
    "spec": fields(
        *("nodeName", "priority", "restartPolicy", "terminationGracePeriodSeconds"),
        schedulingGates=each(fields("name")),
        schedulingGroup=fields("podGroupName"),
        workloadRef=fields("name", "podGroup", "podGroupReplicaKey"),
        **{**TEMPLATE, "containers": _CONTAINERS, "initContainers": _CONTAINERS},
    ),
    "status": fields(
        *("phase", "reason", "startTime", "nominatedNodeName"),
        allocatedResources=named_values,
        resources=fields(requests=named_values),
        conditions=conditions("PodScheduled"),
        containerStatuses=_CONTAINER_STATUSES,
        initContainerStatuses=_CONTAINER_STATUSES,
        resourceClaimStatuses=each(fields("name", "resourceClaimName")),
        extendedResourceClaimStatus=fields("resourceClaimName", requestMappings=_MAPPINGS),
        message=beginning(REFUSED_MESSAGE),
    ),
}
_PHASE = fields(**{"f:status": fields(**{"f:phase": fields()})})
WRITERS: FieldAllowlist = {"managedFields": each(fields("manager", "subresource", "time", fieldsV1=_PHASE))}
"""In the metadata of pods: who wrote the phase, and when."""

NODE: FieldAllowlist = {
    "spec": fields("unschedulable", taints=each(fields("key", "value", "effect"))),
    "status": fields(capacity=named_values, allocatable=named_values, conditions=conditions()),
}


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
        *("name", "count", "delayedTopologyRequest"),
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
