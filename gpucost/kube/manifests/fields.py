"""Fields of specs by kind, to tell a misspelt one, and documents that make no pods.

Those of Kubernetes' own kinds are in the published schemas. The names here are those of the other kinds' API
types: JobSet v1alpha2, Kubeflow trainer v1alpha1 and v1,
mpi-operator v2beta1, KubeRay v1, LeaderWorkerSet v1, Volcano v1alpha1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gpucost.domain.jobs import JobKind


class Fields(NamedTuple):
    """``read`` are those that decide something here; ``other`` exist too."""

    read: frozenset[str]
    other: frozenset[str] = frozenset()


def _fields(read: str, other: str = "") -> Fields:
    return Fields(frozenset(read.split()), frozenset(other.split()))


OBJECT = _fields("apiVersion kind metadata spec", "status data")
_RAY_CLUSTER = _fields(
    "enableInTreeAutoscaling headGroupSpec workerGroupSpecs autoscalerOptions suspend",
    "authOptions gcsFaultToleranceOptions headServiceAnnotations managedBy networkPolicy rayVersion "
    "upgradeStrategy",
)


def _kubeflow(replica_specs: str, other: str = "") -> Fields:
    return _fields(f"runPolicy elasticPolicy {replica_specs}", other)


SPECS: Mapping[JobKind, Fields] = {
    JobKind.JOB_SET: _fields(
        "replicatedJobs suspend",
        "coordinator failurePolicy managedBy network startupPolicy successPolicy ttlSecondsAfterFinished "
        "volumeClaimPolicies",
    ),
    JobKind.TRAIN_JOB: _fields(
        "runtimeRef trainer podTemplateOverrides podSpecOverrides runtimePatches suspend "
        "activeDeadlineSeconds",
        "annotations initializer labels managedBy ttlSecondsAfterFinished",
    ),
    JobKind.PYTORCH_JOB: _kubeflow("pytorchReplicaSpecs", "nprocPerNode"),
    JobKind.TF_JOB: _kubeflow("tfReplicaSpecs", "enableDynamicWorker successPolicy"),
    JobKind.XGBOOST_JOB: _kubeflow("xgbReplicaSpecs"),
    JobKind.PADDLE_JOB: _kubeflow("paddleReplicaSpecs"),
    JobKind.JAX_JOB: _kubeflow("jaxReplicaSpecs"),
    JobKind.MPI_JOB: _kubeflow(
        "mpiReplicaSpecs",
        "cleanPodPolicy launcherCreationPolicy mainContainer mpiImplementation runLauncherAsWorker "
        "slotsPerWorker sshAuthMountPath",
    ),
    JobKind.RAY_CLUSTER: _RAY_CLUSTER,
    JobKind.RAY_JOB: _fields(
        "rayClusterSpec submissionMode submitterPodTemplate clusterSelector suspend activeDeadlineSeconds",
        "backoffLimit deletionStrategy entrypoint entrypointNumCpus entrypointNumGpus entrypointResources "
        "jobId managedBy metadata preRunningDeadlineSeconds runtimeEnvYAML shutdownAfterJobFinishes "
        "submitterConfig ttlSecondsAfterFinished",
    ),
    JobKind.RAY_SERVICE: _fields(
        "rayClusterConfig suspend",
        "deploymentUnhealthySecondThreshold excludeHeadPodFromServeSvc managedBy "
        "rayClusterDeletionDelaySeconds serveConfigV2 serveService serviceUnhealthySecondThreshold "
        "upgradeStrategy",
    ),
    JobKind.VOLCANO_JOB: _fields(
        "minAvailable queue tasks priorityClassName schedulerName networkTopology",
        "maxRetry minSuccess plugins policies runningEstimate ttlSecondsAfterFinished volumes",
    ),
    JobKind.LEADER_WORKER_SET: _fields(
        "replicas leaderWorkerTemplate", "networkConfig revisionHistoryLimit rolloutStrategy startupPolicy"
    ),
    JobKind.NOTEBOOK: _fields("template"),
}
"""Of every kind that is none of Kubernetes' own."""

TEMPLATE_AT: Mapping[JobKind, str] = {
    **dict.fromkeys(
        (JobKind.JOB, JobKind.DEPLOYMENT, JobKind.STATEFUL_SET, JobKind.REPLICA_SET, JobKind.DAEMON_SET),
        "spec.template.spec.containers",
    ),
    JobKind.NOTEBOOK: "spec.template.spec.containers",
    JobKind.CRON_JOB: "spec.jobTemplate.spec.template.spec.containers",
    JobKind.JOB_SET: "spec.replicatedJobs",
    JobKind.PYTORCH_JOB: "spec.pytorchReplicaSpecs",
    JobKind.TF_JOB: "spec.tfReplicaSpecs",
    JobKind.XGBOOST_JOB: "spec.xgbReplicaSpecs",
    JobKind.PADDLE_JOB: "spec.paddleReplicaSpecs",
    JobKind.JAX_JOB: "spec.jaxReplicaSpecs",
    JobKind.MPI_JOB: "spec.mpiReplicaSpecs",
    JobKind.RAY_CLUSTER: "spec.headGroupSpec",
    JobKind.RAY_JOB: "spec.rayClusterSpec",
    JobKind.RAY_SERVICE: "spec.rayClusterConfig",
    JobKind.VOLCANO_JOB: "spec.tasks",
    JobKind.LEADER_WORKER_SET: "spec.leaderWorkerTemplate.workerTemplate",
    JobKind.TRAIN_JOB: "spec.runtimeRef",
    JobKind.POD: "spec.containers",
}
"""Where the pod templates are, of every kind that a manifest may be of."""

_PODLESS_GROUPS = frozenset(
    {
        *("admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io", "autoscaling"),
        *("autoscaling.k8s.io", "autoscaling.x-k8s.io", "cert-manager.io", "coordination.k8s.io"),
        *("external-secrets.io", "flowcontrol.apiserver.k8s.io", "gateway.networking.k8s.io"),
        *("karpenter.sh", "keda.sh", "kueue.x-k8s.io", "kustomize.config.k8s.io", "monitoring.coreos.com"),
        *("networking.k8s.io", "node.k8s.io", "policy", "rbac.authorization.k8s.io", "resource.k8s.io"),
        *("resource.nvidia.com", "scheduling.k8s.io", "scheduling.volcano.sh", "scheduling.x-k8s.io"),
        *("snapshot.storage.k8s.io", "storage.k8s.io", "topology.volcano.sh"),
    }
)
_PODLESS = frozenset(
    {
        *("ConfigMap", "Endpoints", "Event", "LimitRange", "Namespace", "Node", "PersistentVolume"),
        *("PersistentVolumeClaim", "PodTemplate", "ResourceQuota", "Secret", "Service", "ServiceAccount"),
    }
)
"""Of the core group."""
_RUNTIMES = ("TrainingRuntime", "ClusterTrainingRuntime")


def makes_no_pods(group: str, kind: str) -> bool:
    """Whether documents of a kind only stand beside jobs."""
    if group == "trainer.kubeflow.org":
        return kind in _RUNTIMES
    return kind in _PODLESS if not group else group in _PODLESS_GROUPS
