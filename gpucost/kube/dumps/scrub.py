"""Scrubbing: what a dump keeps of jobs and every other kind, without private data and unused fields.

Of each kind those fields stay that a parser of ``gpucost.kube.parse`` reads. Keys are group and kind, over
all versions; each entry names spec, status and other fields of the root. A parser that reads a new field
needs it here too (a test compares them).

Of annotations those stay that link an object to others or name its owner; of messages those that are shown to
people. All else is dropped, also fields that are not known yet: environments, commands, arguments, images,
volumes, configurations. Of Kueue and Volcano themselves the settings that decide admission stay
(``allowlist``).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from gpucost.cluster.objects.metadata import OwnerKeys
from gpucost.cluster.views.ownership import LINKS
from gpucost.cluster.views.workload_families import REPLACES
from gpucost.kube.dumps.allowlist import (
    CONFIG_MAP,
    DEPLOYMENT_TEMPLATE,
    JOB_TEMPLATE,
    KUEUE,
    NODE,
    POD,
    SELECTOR,
    WRITERS,
    FieldAllowlist,
    FieldFilter,
    by_name,
    conditions,
    each,
    fields,
    named_values,
    names_alone,
    only,
    plain,
)
from gpucost.kube.parse.core_objects import SPLIT_GPUS
from gpucost.kube.parse.pods import POD_ANNOTATIONS

_BATCH = {"template": JOB_TEMPLATE, **dict.fromkeys(("parallelism", "completions", "completionMode"), plain)}
_COUNTS = ("active", "ready", "succeeded", "failed")

_DEADLINE = "activeDeadlineSeconds"


def _job(spec: FieldFilter, *names: str, **below: FieldFilter) -> FieldAllowlist:
    """``names`` and ``below`` are of the status."""
    return {"spec": spec, "status": fields("startTime", *names, **below)}


_JOB = _job(fields("suspend", _DEADLINE, **_BATCH), "completionTime", *_COUNTS, conditions=conditions())
_JOB_SET = _job(
    fields(
        "suspend",
        replicatedJobs=each(
            fields(
                *("name", "replicas"),
                dependsOn=each(fields("name", "status")),
                template=fields(spec=fields(**_BATCH)),
            )
        ),
    ),
    "completionTime",
    conditions=conditions(),
    replicatedJobsStatus=each(fields("name", *_COUNTS)),
)
_TRAIN_JOB = _job(fields("suspend", trainer=fields("numNodes")), "completionTime", conditions=conditions())


def _kubeflow(replica_specs: str) -> FieldAllowlist:
    policy = fields("suspend", _DEADLINE, schedulingPolicy=fields("minAvailable", "priorityClass"))
    replicas = by_name(fields("replicas", template=JOB_TEMPLATE))
    return _job(
        fields(elasticPolicy=fields("minReplicas"), runPolicy=policy, **{replica_specs: replicas}),
        "completionTime",
        conditions=conditions(),
        replicaStatuses=by_name(fields("active", "succeeded", "failed")),
    )


_RAY = {
    "suspend": plain,
    "enableInTreeAutoscaling": plain,
    "headGroupSpec": fields(template=JOB_TEMPLATE),
    "workerGroupSpecs": each(
        fields(
            *("groupName", "numOfHosts", "minReplicas", "maxReplicas", "replicas", "suspend"),
            template=JOB_TEMPLATE,
        )
    ),
}
_RAY_WORKERS = ("availableWorkerReplicas", "readyWorkerReplicas")
_RAY_JOB = _job(
    fields(
        *("suspend", "submissionMode", _DEADLINE),
        rayClusterSpec=fields(**_RAY),
        submitterPodTemplate=JOB_TEMPLATE,
    ),
    *("endTime", "jobStatus"),
    rayClusterStatus=fields(*_RAY_WORKERS),
)
_RAY_SERVICE = _job(
    fields("suspend", rayClusterConfig=fields(**_RAY)),
    activeServiceStatus=fields(rayClusterStatus=fields(*_RAY_WORKERS)),
)
_LEADER_WORKERS = fields("size", leaderTemplate=JOB_TEMPLATE, workerTemplate=JOB_TEMPLATE)
_LEADER_WORKER_SET = _job(
    fields("suspend", "replicas", leaderWorkerTemplate=_LEADER_WORKERS), "replicas", "readyReplicas"
)


def _replicas(template: FieldFilter) -> FieldAllowlist:
    return _job(fields("suspend", "replicas", template=template), "replicas", "readyReplicas")


_REPLICAS = _replicas(JOB_TEMPLATE)
_DAEMON_SET = _job(
    fields("suspend", template=JOB_TEMPLATE),
    *("desiredNumberScheduled", "currentNumberScheduled", "numberReady"),
)
_VOLCANO_JOB = _job(
    fields(
        *("minAvailable", "priorityClassName"),
        tasks=each(fields("name", "replicas", "minAvailable", template=JOB_TEMPLATE)),
    ),
    *("pending", "running", "succeeded", "failed"),
    state=fields("phase", "lastTransitionTime"),
)
JOBS: Mapping[tuple[str, str], FieldAllowlist] = {
    ("batch", "Job"): _JOB,
    ("batch", "CronJob"): _job(fields("suspend")),
    ("apps", "Deployment"): _replicas(DEPLOYMENT_TEMPLATE),
    ("apps", "StatefulSet"): _REPLICAS,
    ("apps", "ReplicaSet"): _REPLICAS,
    ("apps", "DaemonSet"): _DAEMON_SET,
    ("jobset.x-k8s.io", "JobSet"): _JOB_SET,
    ("trainer.kubeflow.org", "TrainJob"): _TRAIN_JOB,
    ("kubeflow.org", "PyTorchJob"): _kubeflow("pytorchReplicaSpecs"),
    ("kubeflow.org", "TFJob"): _kubeflow("tfReplicaSpecs"),
    ("kubeflow.org", "XGBoostJob"): _kubeflow("xgbReplicaSpecs"),
    ("kubeflow.org", "PaddleJob"): _kubeflow("paddleReplicaSpecs"),
    ("kubeflow.org", "JAXJob"): _kubeflow("jaxReplicaSpecs"),
    ("kubeflow.org", "MPIJob"): _kubeflow("mpiReplicaSpecs"),
    ("kubeflow.org", "Notebook"): _job(fields(template=JOB_TEMPLATE), "readyReplicas"),
    ("ray.io", "RayJob"): _RAY_JOB,
    ("ray.io", "RayCluster"): _job(fields(**_RAY), *_RAY_WORKERS),
    ("ray.io", "RayService"): _RAY_SERVICE,
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _LEADER_WORKER_SET,
    ("batch.volcano.sh", "Job"): _VOLCANO_JOB,
}


_GANG = fields(gang=fields("minCount"))


def _mode(found: Any) -> Any:
    """Text in Kubernetes 1.36, an object with one field since."""
    return found if isinstance(found, str) else fields(single=fields(), all=fields())(found)


_OF_GROUPS = fields(gang=fields("minGroupCount"), basic=fields())
_COMPOSITE_GROUP: FieldAllowlist = {
    "spec": fields(
        *("parentCompositePodGroupName", "preemptionPolicy", "priorityClassName"),
        disruptionMode=_mode,
        schedulingPolicy=_OF_GROUPS,
        schedulingConstraints=fields(topology=each(fields("key"))),
    ),
    "status": fields(conditions=conditions("CompositePodGroupInitiallyScheduled")),
}
_NATIVE_GROUP: FieldAllowlist = {
    "spec": fields(
        *("parentCompositePodGroupName", "preemptionPolicy", "priorityClassName"),
        disruptionMode=_mode,
        podGroups=each(fields("name", policy=_GANG)),
        schedulingPolicy=_GANG,
        schedulingConstraints=fields(
            topologyConstraints=each(fields("topologyKey")), topology=each(fields("key"))
        ),
    ),
    "status": fields(conditions=conditions("PodGroupScheduled", "PodGroupInitiallyScheduled")),
}
_COSCHEDULING_GROUP: FieldAllowlist = {
    "spec": fields("minMember", minResources=named_values),
    "status": fields("phase", "running", "succeeded", "failed"),
}
_VOLCANO_GROUP: FieldAllowlist = {
    "spec": fields(
        *("minMember", "queue", "priorityClassName"),
        minResources=named_values,
        minTaskMember=named_values,
        networkTopology=fields("mode", "highestTierAllowed", "highestTierName"),
        subGroupPolicy=each(fields()),
    ),
    "status": fields(*("phase", "running", "succeeded", "failed"), conditions=conditions("Unschedulable")),
}
_VOLCANO_QUEUE: FieldAllowlist = {
    "spec": fields(
        *("weight", "reclaimable", "parent", "priority", "dequeueStrategy"),
        capability=named_values,
        deserved=named_values,
        guarantee=fields(resource=named_values),
    ),
    "status": fields("state", allocated=named_values),
}
_MEMBER = fields(exactMatch=fields("name"), regexMatch=fields("pattern"), labelMatch=SELECTOR)
_HYPER_NODE: FieldAllowlist = {
    "spec": fields("tier", "tierName", members=each(fields("type", selector=_MEMBER))),
    "status": fields("nodeCount"),
}
_DEVICE: FieldAllowlist = {
    "attributes": by_name(fields("string", "version", "int", "bool")),
    "consumesCounters": each(fields("counterSet")),
    "capacity": by_name(fields("value")),
    "taints": each(fields("key", "value", "effect")),
}
_SLICE: FieldAllowlist = {
    "spec": fields(
        *("driver", "nodeName"),
        pool=fields("name", "generation"),
        devices=each(fields("name", basic=fields(**_DEVICE), **_DEVICE)),
    )
}
_REQUEST = ("deviceClassName", "allocationMode", "count", "adminAccess")
_RESULTS = each(
    fields(*("request", "driver", "pool", "device", "adminAccess", "shareID"), consumedCapacity=named_values)
)
_CLAIM: FieldAllowlist = {
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

KINDS: Mapping[tuple[str, str], FieldAllowlist] = {
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
    ("scheduling.k8s.io", "CompositePodGroup"): _COMPOSITE_GROUP,
    ("scheduling.x-k8s.io", "PodGroup"): _COSCHEDULING_GROUP,
    ("scheduling.volcano.sh", "PodGroup"): _VOLCANO_GROUP,
    ("scheduling.volcano.sh", "Queue"): _VOLCANO_QUEUE,
    ("topology.volcano.sh", "HyperNode"): _HYPER_NODE,
    ("resource.k8s.io", "ResourceSlice"): _SLICE,
    ("resource.k8s.io", "ResourceClaim"): _CLAIM,
    ("resource.k8s.io", "DeviceTaintRule"): {
        "spec": fields(
            deviceSelector=fields("driver", "pool", "device"), taint=fields("key", "value", "effect")
        )
    },
    ("resource.nvidia.com", "ComputeDomain"): {
        "spec": fields(channel=fields(resourceClaimTemplate=fields("name")))
    },
}


ANNOTATIONS = frozenset(
    {
        *LINKS,
        *POD_ANNOTATIONS,
        SPLIT_GPUS,
        *OwnerKeys().all,
        "kubeflow-resource-stopped",
        "kueue.x-k8s.io/job-min-parallelism",
        REPLACES,
    }
)
"""Names of the annotations that always stay."""

_KINDS = {**KINDS, ("", "ConfigMap"): CONFIG_MAP}
_METADATA: FieldAllowlist = {
    **dict.fromkeys(("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp"), plain),
    "deletionGracePeriodSeconds": plain,
    "labels": named_values,
    "ownerReferences": each(fields("apiVersion", "kind", "name", "uid", "controller")),
}


def scrubbed(found: Mapping[str, Any], annotations: frozenset[str] = frozenset()) -> dict[str, Any]:
    """A scrubbed copy of an object, which must have its apiVersion and kind; ``annotations`` are further ones
    to keep.

    Of a kind that no parser reads only the metadata stays.
    """
    api_version, kind = found.get("apiVersion"), found.get("kind")
    group = api_version.rpartition("/")[0] if isinstance(api_version, str) else ""
    kept: dict[str, Any] = _object(group, kind if isinstance(kind, str) else "", annotations)(found)
    return kept


@lru_cache(maxsize=256)
def _object(group: str, kind: str, annotations: frozenset[str]) -> FieldFilter:
    of_kind = WRITERS if (group, kind) == ("", "Pod") else {}
    metadata = fields(annotations=only(ANNOTATIONS | annotations), **_METADATA, **of_kind)
    return fields("apiVersion", "kind", metadata=metadata, **_KINDS.get((group, kind), {}))
