"""One object of every kind of job, in the shape in which the API hands it out."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
DONE = "2026-10-24T03:04:05Z"
_PODS = "kueue.x-k8s.io/podset"
TOPOLOGY = {
    f"{_PODS}-required-topology": "rack",
    f"{_PODS}-group-name": "ring",
    f"{_PODS}-slice-required-topology": "kubernetes.io/hostname",
    f"{_PODS}-slice-size": "2",
}
"""Of every pod template."""


def metadata(name: str, **more: Any) -> Json:
    return {
        "name": name,
        "namespace": "team-a",
        "uid": f"{name}-uid",
        "creationTimestamp": "2026-10-24T00:00:00Z",
        **more,
    }


def template(gpus: int = 0, priority_class: str = "") -> Json:
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}, "requests": {"cpu": "2"}} if gpus else {}
    spec: Json = {"containers": [{"name": "main", "image": "train:1", "resources": resources}]}
    if priority_class:
        spec["priorityClassName"] = priority_class
    return {"metadata": {"labels": {"app": "train"}, "annotations": TOPOLOGY}, "spec": spec}


def condition(type_: str, status: str = "True", at: str = DONE) -> Json:
    return {"type": type_, "status": status, "reason": type_, "message": "", "lastTransitionTime": at}


JOB = {
    "metadata": metadata("sweep", labels={"kueue.x-k8s.io/priority-class": "high"}),
    "spec": {"parallelism": 4, "completions": 6, "suspend": False, "template": template(2)},
    "status": {
        "startTime": "2026-10-24T00:01:00Z",
        "active": 3,
        "ready": 2,
        "failed": 1,
        "conditions": [condition("FailureTarget", at="2026-10-24T03:00:00Z"), condition("Failed")],
    },
}
CRON_JOB = {
    "metadata": metadata("nightly"),
    "spec": {"schedule": "0 1 * * *", "suspend": True, "jobTemplate": {"spec": {"template": template(8)}}},
    "status": {"lastScheduleTime": "2026-10-24T01:00:00Z"},
}


def _replicated(name: str, replicas: int, parallelism: int, gpus: int, *after: str) -> Json:
    job = {"parallelism": parallelism, "completions": parallelism, "template": template(gpus)}
    waits = [{"name": each, "status": "Complete"} for each in after]
    return {"name": name, "replicas": replicas, "template": {"spec": job}, "dependsOn": waits}


JOB_SET = {
    "metadata": metadata("llm"),
    "spec": {
        "suspend": False,
        "replicatedJobs": [
            _replicated("data", 1, 1, 0),
            _replicated("leader", 1, 1, 1, "data"),
            _replicated("workers", 2, 4, 8, "data"),
        ],
    },
    "status": {
        "conditions": [condition("Completed")],
        "terminalState": "Completed",
        "replicatedJobsStatus": [
            {"name": "data", "ready": 0, "succeeded": 1, "failed": 0, "active": 0, "suspended": 0},
            {"name": "workers", "ready": 1, "succeeded": 0, "failed": 0, "active": 2, "suspended": 0},
        ],
    },
}
TRAIN_JOB = {
    "metadata": metadata("tune"),
    "spec": {
        "runtimeRef": {"name": "torch-distributed", "kind": "ClusterTrainingRuntime"},
        "trainer": {"numNodes": 4, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}},
        "suspend": True,
    },
    "status": {"conditions": [condition("Suspended"), condition("Complete", "False")]},
}
PYTORCH_JOB = {
    "metadata": metadata("bert"),
    "spec": {
        "elasticPolicy": {"minReplicas": 2, "maxReplicas": 6, "rdzvBackend": "c10d"},
        "runPolicy": {"suspend": True, "cleanPodPolicy": "None"},
        "pytorchReplicaSpecs": {
            "Master": {"restartPolicy": "OnFailure", "template": template(1, "research")},
            "Worker": {"replicas": 6, "template": template(8)},
        },
    },
    "status": {
        "startTime": "2026-10-24T00:02:00Z",
        "completionTime": DONE,
        "conditions": [condition("Running", "False"), condition("Succeeded")],
        "replicaStatuses": {"Master": {"succeeded": 1}, "Worker": {"active": 2, "succeeded": 3, "failed": 1}},
    },
}
MPI_JOB = {
    "metadata": metadata("allreduce"),
    "spec": {
        "slotsPerWorker": 8,
        "runPolicy": {"schedulingPolicy": {"priorityClass": "urgent"}},
        "mpiReplicaSpecs": {
            "Launcher": {"replicas": 1, "template": template(0)},
            "Worker": {"replicas": 16, "template": template(8, "normal")},
        },
    },
    "status": {"replicaStatuses": {"Launcher": {}, "Worker": {"active": 16}}},
}


def kubeflow(replica_specs: str, **replicas: int) -> Json:
    roles = {role: {"replicas": count, "template": template(1)} for role, count in replicas.items()}
    return {"metadata": metadata("train"), "spec": {replica_specs: roles}, "status": {}}


_RAY_CLUSTER = {
    "rayVersion": "2.46.0",
    "enableInTreeAutoscaling": True,
    "headGroupSpec": {"rayStartParams": {}, "template": template(0)},
    "workerGroupSpecs": [
        {
            "groupName": "h100",
            "replicas": 3,
            "minReplicas": 1,
            "maxReplicas": 5,
            "numOfHosts": 2,
            "template": template(8),
        },
        {"groupName": "l4", "replicas": 9, "minReplicas": 0, "maxReplicas": 4, "template": template(1)},
        {"groupName": "off", "suspend": True, "replicas": 7, "minReplicas": 7, "template": template(1)},
    ],
}
_RAY_STATUS = {
    "state": "ready",
    "desiredWorkerReplicas": 10,
    "availableWorkerReplicas": 9,
    "readyWorkerReplicas": 8,
}
RAY_CLUSTER = {"metadata": metadata("ray"), "spec": _RAY_CLUSTER, "status": _RAY_STATUS}
RAY_SERVICE = {
    "metadata": metadata("serve"),
    "spec": {"serveConfigV2": "", "rayClusterConfig": _RAY_CLUSTER},
    "status": {"activeServiceStatus": {"rayClusterName": "serve-x", "rayClusterStatus": _RAY_STATUS}},
}
RAY_JOB = {
    "metadata": metadata("rayjob"),
    "spec": {
        "suspend": True,
        "submissionMode": "K8sJobMode",
        "submitterPodTemplate": template(0),
        "rayClusterSpec": {**_RAY_CLUSTER, "enableInTreeAutoscaling": False},
    },
    "status": {
        "jobStatus": "SUCCEEDED",
        "jobDeploymentStatus": "Complete",
        "startTime": "2026-10-24T00:03:00Z",
        "endTime": DONE,
        "succeeded": 1,
        "rayClusterStatus": {"availableWorkerReplicas": 4},
    },
}
LEADER_WORKER_SET = {
    "metadata": metadata("vllm"),
    "spec": {
        "replicas": 3,
        "leaderWorkerTemplate": {
            "size": 4,
            "leaderTemplate": template(1),
            "workerTemplate": template(8),
        },
    },
    "status": {"replicas": 3, "readyReplicas": 2, "conditions": [condition("Available", "False")]},
}
REPLICAS = {
    "metadata": metadata("web"),
    "spec": {"replicas": 5, "template": template(1, "serving")},
    "status": {"observedGeneration": 2, "replicas": 4, "unavailableReplicas": 4},
}
DAEMON_SET = {
    "metadata": metadata("agent"),
    "spec": {"template": template(1)},
    "status": {"desiredNumberScheduled": 7, "currentNumberScheduled": 6, "numberReady": 5},
}
NOTEBOOK = {
    "metadata": metadata("nb", annotations={"kubeflow-resource-stopped": "2026-10-24T02:00:00Z"}),
    "spec": {"template": template(1)},
    "status": {"readyReplicas": 0, "conditions": []},
}
VOLCANO_JOB = {
    "metadata": metadata("vc"),
    "spec": {
        "queue": "research",
        "minAvailable": 3,
        "priorityClassName": "high",
        "schedulerName": "volcano",
        "tasks": [
            {"name": "ps", "replicas": 1, "template": template(0)},
            {"replicas": 4, "minAvailable": 2, "template": template(8)},
        ],
    },
    "status": {
        "state": {"phase": "Completed", "lastTransitionTime": DONE},
        "minAvailable": 3,
        "pending": 1,
        "running": 2,
        "succeeded": 2,
    },
}
