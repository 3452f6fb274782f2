"""What a dump keeps of each kind, but for its metadata: the fields that ``gpucost.kube.parse`` reads.

Keys are group and kind, over all versions; each entry names spec, status and other fields of the root. A
parser that reads a new field needs it here too (a test compares them).
"""

from __future__ import annotations

from collections.abc import Mapping

from gpucost.kube.dumps.kept import Kept, by_name, conditions, each, fields, named_values, names_alone, plain
from gpucost.kube.dumps.kept_jobs import JOBS
from gpucost.kube.dumps.kept_kueue import KUEUE, SELECTOR
from gpucost.kube.dumps.kept_pods import NODE, POD

_GANG = fields(gang=fields("minCount"))
_NATIVE_GROUP: Kept = {
    "spec": fields(
        "priorityClassName",
        podGroups=each(fields("name", policy=_GANG)),
        schedulingPolicy=_GANG,
        schedulingConstraints=fields(
            topologyConstraints=each(fields("topologyKey")), topology=each(fields("key"))
        ),
    ),
    "status": fields(conditions=conditions("PodGroupScheduled")),
}
_COSCHEDULING_GROUP: Kept = {
    "spec": fields("minMember", minResources=named_values),
    "status": fields("phase", "running", "succeeded", "failed"),
}
_VOLCANO_GROUP: Kept = {
    "spec": fields(
        *("minMember", "queue", "priorityClassName"),
        minResources=named_values,
        minTaskMember=named_values,
        networkTopology=fields("mode", "highestTierAllowed", "highestTierName"),
        subGroupPolicy=each(fields()),
    ),
    "status": fields(*("phase", "running", "succeeded", "failed"), conditions=conditions("Unschedulable")),
}
_VOLCANO_QUEUE: Kept = {
    "spec": fields(
        *("weight", "reclaimable", "parent", "priority", "dequeueStrategy"),
        capability=named_values,
        deserved=named_values,
        guarantee=fields(resource=named_values),
    ),
    "status": fields("state", allocated=named_values),
}
_MEMBER = fields(exactMatch=fields("name"), regexMatch=fields("pattern"), labelMatch=SELECTOR)
_HYPER_NODE: Kept = {
    "spec": fields("tier", "tierName", members=each(fields("type", selector=_MEMBER))),
    "status": fields("nodeCount"),
}
_DEVICE: Kept = {
    "attributes": by_name(fields("string", "version", "int", "bool")),
    "consumesCounters": each(fields("counterSet")),
}
_SLICE: Kept = {
    "spec": fields(
        *("driver", "nodeName"),
        pool=fields("name", "generation"),
        devices=each(fields("name", basic=fields(**_DEVICE), **_DEVICE)),
    )
}
_REQUEST = ("deviceClassName", "allocationMode", "count", "adminAccess")
_RESULTS = each(fields("driver", "pool", "device", "adminAccess"))
_CLAIM: Kept = {
    "spec": fields(
        devices=fields(
            requests=each(fields(*_REQUEST, exactly=fields(*_REQUEST), firstAvailable=each(fields())))
        )
    ),
    "status": fields(
        allocation=fields(devices=fields(results=_RESULTS)),
        reservedFor=each(fields("apiGroup", "resource", "uid")),
    ),
}

KINDS: Mapping[tuple[str, str], Kept] = {
    ("", "Pod"): POD,
    ("", "Node"): NODE,
    ("", "Namespace"): {},
    ("scheduling.k8s.io", "PriorityClass"): {
        "value": plain,
        "globalDefault": plain,
        "preemptionPolicy": plain,
    },
    ("policy", "PodDisruptionBudget"): {
        "spec": fields(selector=SELECTOR),
        "status": fields("disruptionsAllowed", disruptedPods=names_alone),
    },
    **JOBS,
    **KUEUE,
    ("scheduling.k8s.io", "Workload"): _NATIVE_GROUP,
    ("scheduling.k8s.io", "PodGroup"): _NATIVE_GROUP,
    ("scheduling.x-k8s.io", "PodGroup"): _COSCHEDULING_GROUP,
    ("scheduling.volcano.sh", "PodGroup"): _VOLCANO_GROUP,
    ("scheduling.volcano.sh", "Queue"): _VOLCANO_QUEUE,
    ("topology.volcano.sh", "HyperNode"): _HYPER_NODE,
    ("resource.k8s.io", "ResourceSlice"): _SLICE,
    ("resource.k8s.io", "ResourceClaim"): _CLAIM,
}
