"""What a dump keeps of jobs of every kind."""

from __future__ import annotations

from collections.abc import Mapping

from gpucost.kube.dumps.kept import Keep, Kept, by_name, conditions, each, fields, plain
from gpucost.kube.dumps.kept_pods import JOB_TEMPLATE
from gpucost.kube.dumps.kept_schedulers import DEPLOYMENT_TEMPLATE

_BATCH = {"template": JOB_TEMPLATE, **dict.fromkeys(("parallelism", "completions", "completionMode"), plain)}
_COUNTS = ("active", "ready", "succeeded", "failed")

_DEADLINE = "activeDeadlineSeconds"


def _job(spec: Keep, *names: str, **below: Keep) -> Kept:
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


def _kubeflow(replica_specs: str) -> Kept:
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
    "endTime",
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


def _replicas(template: Keep) -> Kept:
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
JOBS: Mapping[tuple[str, str], Kept] = {
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
