"""The collections of a cluster with everything that the collector knows."""

from __future__ import annotations

from tests.support.cluster.model import Kind

KUEUE = "kueue.x-k8s.io"
_CLUSTER_WIDE = frozenset(
    {
        *("namespaces", "nodes", "priorityclasses", "queues", "hypernodes", "resourceslices"),
        "devicetaintrules",
        *("clusterqueues", "cohorts", "resourceflavors", "topologies", "admissionchecks"),
        "workloadpriorityclasses",
    }
)
# Group, version, plural, kind.
_COLLECTIONS = """
    - v1 pods Pod
    - v1 nodes Node
    - v1 namespaces Namespace
    batch v1 jobs Job
    batch v1 cronjobs CronJob
    apps v1 deployments Deployment
    apps v1 replicasets ReplicaSet
    apps v1 statefulsets StatefulSet
    apps v1 daemonsets DaemonSet
    scheduling.k8s.io v1 priorityclasses PriorityClass
    scheduling.k8s.io v1beta1 podgroups PodGroup
    scheduling.k8s.io v1alpha3 compositepodgroups CompositePodGroup
    policy v1 poddisruptionbudgets PodDisruptionBudget
    resource.k8s.io v1 resourceclaims ResourceClaim
    resource.k8s.io v1 resourceslices ResourceSlice
    resource.k8s.io v1 devicetaintrules DeviceTaintRule
    resource.nvidia.com v1beta1 computedomains ComputeDomain
    jobset.x-k8s.io v1alpha2 jobsets JobSet
    trainer.kubeflow.org v1alpha1 trainjobs TrainJob
    kubeflow.org v1 pytorchjobs PyTorchJob
    kubeflow.org v1 tfjobs TFJob
    kubeflow.org v1 xgboostjobs XGBoostJob
    kubeflow.org v1 paddlejobs PaddleJob
    kubeflow.org v1 jaxjobs JAXJob
    kubeflow.org v1 notebooks Notebook
    kubeflow.org v2beta1 mpijobs MPIJob
    ray.io v1 rayjobs RayJob
    ray.io v1 rayclusters RayCluster
    ray.io v1 rayservices RayService
    leaderworkerset.x-k8s.io v1 leaderworkersets LeaderWorkerSet
    kueue.x-k8s.io v1beta2 clusterqueues ClusterQueue
    kueue.x-k8s.io v1beta2 localqueues LocalQueue
    kueue.x-k8s.io v1beta2 cohorts Cohort
    kueue.x-k8s.io v1beta2 resourceflavors ResourceFlavor
    kueue.x-k8s.io v1beta2 topologies Topology
    kueue.x-k8s.io v1beta2 admissionchecks AdmissionCheck
    kueue.x-k8s.io v1beta2 workloads Workload
    kueue.x-k8s.io v1beta2 workloadpriorityclasses WorkloadPriorityClass
    batch.volcano.sh v1alpha1 jobs Job
    scheduling.volcano.sh v1beta1 podgroups PodGroup
    scheduling.volcano.sh v1beta1 queues Queue
    topology.volcano.sh v1alpha1 hypernodes HyperNode
    scheduling.x-k8s.io v1alpha1 podgroups PodGroup
"""


def everything() -> list[tuple[Kind, str]]:
    """Each kind with the version it is served in."""
    found = []
    for line in _COLLECTIONS.split("\n"):
        if line.strip():
            group, version, plural, kind = line.split()
            named = Kind("" if group == "-" else group, plural, kind, plural not in _CLUSTER_WIDE)
            found.append((named, version))
    return found
