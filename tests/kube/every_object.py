"""Objects of every kind that gpucost reads, with their apiVersion and kind: the fixtures of the parsers."""

from __future__ import annotations

import json
from typing import Any

from gpucost.kube.parse.collections import ApiCollection, collections
from tests.cli.state_worlds import cluster
from tests.kube.parse import job_objects, test_dra, test_kueue, test_pods, test_volcano
from tests.kube.parse.test_kueue_workload import full_workload
from tests.support.cluster import shapes
from tests.support.objects import condition, kueue
from tests.support.objects.kueue_v1beta1 import as_v1beta1

Json = dict[str, Any]
ALL = collections()
_AT = 1_792_800_000_000
_JOBS = {
    "batch/v1 Job": job_objects.JOB,
    "batch/v1 CronJob": job_objects.CRON_JOB,
    "jobset.x-k8s.io/v1alpha2 JobSet": job_objects.JOB_SET,
    "trainer.kubeflow.org/v1alpha1 TrainJob": job_objects.TRAIN_JOB,
    "kubeflow.org/v1 PyTorchJob": job_objects.PYTORCH_JOB,
    "kubeflow.org/v1 TFJob": job_objects.kubeflow("tfReplicaSpecs", Chief=1, Worker=2),
    "kubeflow.org/v1 XGBoostJob": job_objects.kubeflow("xgbReplicaSpecs", Master=1),
    "kubeflow.org/v1 PaddleJob": job_objects.kubeflow("paddleReplicaSpecs", Worker=2),
    "kubeflow.org/v1 JAXJob": job_objects.kubeflow("jaxReplicaSpecs", Worker=2),
    "kubeflow.org/v1 PyTorchJob ": {
        **job_objects.PYTORCH_JOB,
        "status": {"conditions": [job_objects.condition("Failed")]},
    },
    "kubeflow.org/v2beta1 MPIJob": job_objects.MPI_JOB,
    "ray.io/v1 RayCluster": job_objects.RAY_CLUSTER,
    "ray.io/v1 RayService": job_objects.RAY_SERVICE,
    "ray.io/v1 RayJob": job_objects.RAY_JOB,
    "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet": job_objects.LEADER_WORKER_SET,
    "apps/v1 Deployment": job_objects.REPLICAS,
    "apps/v1 StatefulSet": job_objects.REPLICAS,
    "apps/v1 DaemonSet": job_objects.DAEMON_SET,
    "kubeflow.org/v1 Notebook": job_objects.NOTEBOOK,
    "batch.volcano.sh/v1alpha1 Job": job_objects.VOLCANO_JOB,
}
_META = {"name": "n", "namespace": "team-a", "uid": "u"}
_REQUEST = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 2}
_RESULT = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-0"}
_CLAIM = {
    "spec": {
        "devices": {
            "requests": [
                {"name": "gpu", "exactly": {**_REQUEST, "selectors": [{"cel": {"expression": "x"}}]}},
                {"name": "old", **_REQUEST},
                {"name": "all", **_REQUEST, "adminAccess": True},
                {"name": "any", "firstAvailable": [{"name": "a", **_REQUEST}]},
            ],
            "config": [{"opaque": {"driver": "d", "parameters": {"key": "x"}}}],
        }
    },
    "status": {
        "allocation": {"devices": {"results": [_RESULT, {**_RESULT, "adminAccess": True}]}},
        "reservedFor": [
            {"resource": "pods", "name": "p", "uid": "p0"},
            {"apiGroup": "g", "resource": "pods"},
        ],
        "devices": [{"data": {"key": "x"}}],
    },
}
_BUDGET = {
    "spec": {"minAvailable": 1, "selector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}},
    "status": {"disruptionsAllowed": 2, "disruptedPods": {"p": "2026-10-24T00:00:00Z"}, "currentHealthy": 3},
}
_GANG = {"gang": {"minCount": 4}}
_NATIVE = {
    "spec": {
        "schedulingPolicy": _GANG,
        "schedulingConstraints": {
            "topology": [{"key": "rack"}],
            "topologyConstraints": [{"topologyKey": "r"}],
        },
        "parentCompositePodGroupName": "tree",
        "disruptionMode": "PodGroup",
        "preemptionPolicy": "Never",
        "podGroups": [{"name": "a", "policy": _GANG}, {"name": "b", "policy": {"basic": {}}}],
        "priorityClassName": "high",
    },
    "status": {"conditions": [condition("PodGroupScheduled", False, "Unschedulable", "0/8 nodes")]},
}
_COMPOSITE = {
    "spec": {
        "parentCompositePodGroupName": "root",
        "workloadRef": {"workloadName": "w", "templateName": "t"},
        "schedulingPolicy": {"gang": {"minGroupCount": 2}},
        "schedulingConstraints": {"topology": [{"key": "rack"}]},
        "disruptionMode": {"all": {}},
        "priorityClassName": "high",
        "preemptionPolicy": "Never",
    },
    "status": {
        "conditions": [condition("CompositePodGroupInitiallyScheduled", False, "Unschedulable", "0/8 nodes")]
    },
}
_INDEPENDENT = {"spec": {"schedulingPolicy": {"basic": {}}, "disruptionMode": {"single": {}}}}
_COSCHEDULING = {
    "spec": {"minMember": 2, "minResources": {"cpu": "1"}},
    "status": {"phase": "Running", "running": 2, "succeeded": 0, "failed": 0, "occupiedBy": "team-a/job"},
}
_BACKED = {
    "spec": {
        "containers": [{"name": "a", "restartPolicyRules": [{"action": "Restart"}]}],
        "resourceClaims": [{"name": "c", "resourceClaimName": "r"}],
        "workloadRef": {"name": "w", "podGroup": "g", "podGroupReplicaKey": "0"},
        "nodeName": "node-1",
        "restartPolicy": "OnFailure",
    },
    "status": {
        "phase": "Failed",
        "reason": "OutOfcpu",
        "message": "Pod was rejected: no room",
        "startTime": "2026-10-24T00:00:00Z",
        "extendedResourceClaimStatus": {"resourceClaimName": "r", "requestMappings": []},
    },
}
_EXIT = {"name": "a", "state": {"terminated": {"exitCode": 1, "reason": "Error", "message": "boom"}}}
_ENDED = {"name": "a", "state": {"terminated": {"exitCode": 1, "finishedAt": "2026-10-24T00:00:00Z"}}}
_STOPPING = {
    "spec": {
        "containers": [{"name": "a"}, {"name": "b"}],
        "initContainers": [{"name": "a"}],
        "restartPolicy": "OnFailure",
        "nodeName": "node-1",
        "topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule", "topologyKey": "rack"}],
    },
    "status": {"phase": "Failed", "containerStatuses": [_ENDED], "initContainerStatuses": [_ENDED]},
}
_WRITTEN = {
    "manager": "kubelet",
    "subresource": "status",
    "time": "2026-10-24T00:00:00Z",
    "fieldsV1": {"f:status": {"f:phase": {}, "f:podIP": {}}},
}
_LOST = {
    "metadata": {**_META, "managedFields": [_WRITTEN], "deletionGracePeriodSeconds": 7},
    "spec": {"containers": [{"name": "a"}], "nodeName": "node-1", "terminationGracePeriodSeconds": 90},
    "status": {"phase": "Failed", "reason": "Terminated"},
}
_NOMINATED = {
    "spec": {"containers": [{"name": "a"}], "preemptionPolicy": "Never", "terminationGracePeriodSeconds": 9},
    "status": {"phase": "Pending", "nominatedNodeName": "node-2"},
}
_GIVEN = {"cpu": "2", "memory": "1Gi"}
_RESIZED = {
    "spec": {
        "containers": [{"name": "a", "resources": {"requests": {"cpu": "4", "memory": "1Gi"}}}],
        "resources": {"requests": {"cpu": "6"}},
    },
    "status": {
        "phase": "Running",
        "conditions": [condition("PodResizePending", True, "Infeasible", "too much")],
        "containerStatuses": [{"name": "a", "allocatedResources": _GIVEN, "resources": {"requests": _GIVEN}}],
        "allocatedResources": _GIVEN,
        "resources": {"requests": _GIVEN},
    },
}
_STOPPED = {
    **_STOPPING,
    "status": {"phase": "Running", "containerStatuses": [_EXIT, {**_EXIT, "name": "b"}]},
}
_WAITING = [
    condition("QuotaReserved", False, "Pending", "couldn't assign flavors"),
    condition("Requeued", False, "Backoff", "in a minute"),
]
_DELAYED = {**kueue.assignment(flavors={"cpu": "f"}, usage={"cpu": 1}), "delayedTopologyRequest": "Pending"}


_SHARE = {"request": "g", "driver": "gpu.nvidia.com", "pool": "n", "device": "gpu-0", "shareID": "s"}
_SHARED = {
    "status": {
        "allocation": {"devices": {"results": [{**_SHARE, "consumedCapacity": {"memory": "10Gi"}}]}},
        "reservedFor": [{"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "g"}],
    }
}


def _of(api_version: str, kind: str, found: Json) -> Json:
    return {"metadata": _META, **found, "apiVersion": api_version, "kind": kind}


def _every_object() -> list[Json]:
    kueues = [
        *test_kueue.FULL.values(),
        full_workload(),
        kueue.workload("w", "nlp", conditions=_WAITING, checks=[kueue.check_state("c", "Retry", "later")]),
        kueue.workload("w", "nlp", cluster_queue="a", assignments=[_DELAYED]),
    ]
    jobs = [_of(*name.split(), found) for name, found in _JOBS.items()]  # type: ignore[call-arg]
    return [
        *cluster(),
        *jobs,
        *shapes.deployment("a", "web", _AT, 2, shapes.template("nvidia.com/gpu", 1)),
        *kueues,
        *map(as_v1beta1, kueues),
        *test_volcano.FULL.values(),
        _of("v1", "Pod", test_pods._FULL),
        *(_of("v1", "Pod", each) for each in (_BACKED, _STOPPING, _STOPPED, _LOST, _NOMINATED, _RESIZED)),
        _of("v1", "Node", test_pods._FULL_NODE),
        _of("scheduling.k8s.io/v1", "PriorityClass", {"value": 5, "globalDefault": True, "description": "d"}),
        _of("scheduling.k8s.io/v1", "PriorityClass", {"value": 5, "preemptionPolicy": "Never"}),
        _of("policy/v1", "PodDisruptionBudget", _BUDGET),
        _of("scheduling.k8s.io/v1alpha1", "Workload", _NATIVE),
        _of("scheduling.k8s.io/v1beta1", "PodGroup", _NATIVE),
        _of("scheduling.k8s.io/v1beta1", "PodGroup", _INDEPENDENT),
        _of("scheduling.k8s.io/v1alpha3", "CompositePodGroup", _COMPOSITE),
        _of("scheduling.k8s.io/v1alpha3", "CompositePodGroup", _INDEPENDENT),
        _of("scheduling.x-k8s.io/v1alpha1", "PodGroup", _COSCHEDULING),
        _of("resource.k8s.io/v1", "ResourceClaim", _CLAIM),
        _of("resource.k8s.io/v1", "ResourceClaim", _SHARED),
        _of("resource.k8s.io/v1", "DeviceTaintRule", {"spec": test_dra.RULE}),
        _of("resource.nvidia.com/v1beta1", "ComputeDomain", {"spec": test_dra.DOMAIN}),
        _of("resource.k8s.io/v1", "ResourceSlice", test_dra.a_slice(test_dra.flat("gpu-0"))),
        _of(
            "resource.k8s.io/v1beta1",
            "ResourceSlice",
            test_dra.a_slice(
                test_dra.v1beta1(
                    "gpu-0", consumesCounters=[{"counterSet": "s"}], taints=[test_dra.RULE["taint"]]
                )
            ),
        ),
    ]


EVERYTHING: list[Json] = json.loads(json.dumps(_every_object()))


def collection_of(found: Json) -> ApiCollection:
    """The one whose parser reads it."""
    group = str(found["apiVersion"]).rpartition("/")[0]
    return next(each for each in ALL if (each.group, each.kind) == (group, found["kind"]))
