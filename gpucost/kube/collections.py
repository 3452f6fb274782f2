"""Every collection that makes up a ``ClusterState``: where the API serves it, and what parses it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from gpucost.kube.parse import basics, dra, jobs, kueue, kueue_workload, nodes, pod_groups, pods, volcano

Parser: TypeAlias = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Collection:
    """One kind of object. ``versions`` are those that can be read, best first; ``field`` is where its objects
    are in a ``ClusterState``. A collection that is not ``required`` may be absent: a CRD not installed.
    """

    group: str
    versions: tuple[str, ...]
    plural: str
    kind: str
    field: str
    parse: Parser
    required: bool = False

    @property
    def name(self) -> str:
        """As kubectl writes it: ``pods``, ``workloads.kueue.x-k8s.io``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def paths(self) -> tuple[str, ...]:
        """Of all objects, in every namespace, by version."""
        root = f"/apis/{self.group}" if self.group else "/api"
        return tuple(f"{root}/{version}/{self.plural}" for version in self.versions)


def collections(annotations: Iterable[str] = ()) -> tuple[Collection, ...]:
    """All of them; ``annotations`` are further ones to keep of pods, such as those that name a team."""
    return (
        Collection(
            "", ("v1",), "pods", "Pod", "pods", pods.pod_parser(frozenset(annotations)), required=True
        ),
        Collection("", ("v1",), "nodes", "Node", "nodes", nodes.node, required=True),
        Collection("", ("v1",), "namespaces", "Namespace", "namespaces", basics.namespace),
        Collection(
            "scheduling.k8s.io",
            ("v1",),
            "priorityclasses",
            "PriorityClass",
            "priority_classes",
            basics.priority_class,
        ),
        Collection(
            "policy",
            ("v1",),
            "poddisruptionbudgets",
            "PodDisruptionBudget",
            "disruption_budgets",
            basics.disruption_budget,
        ),
        *_JOBS,
        *_KUEUE,
        *_GROUPS,
        *_DEVICES,
    )


def _job(group: str, versions: tuple[str, ...], plural: str, kind: str) -> Collection:
    return Collection(group, versions, plural, kind, "jobs", jobs.job_parser(f"{group}/{versions[0]}", kind))


def _kubeflow(kind: str) -> Collection:
    versions = ("v2beta1", "v1") if kind == "MPIJob" else ("v1",)
    return _job("kubeflow.org", versions, f"{kind.lower()}s", kind)


_JOBS = (
    _job("batch", ("v1",), "jobs", "Job"),
    _job("batch", ("v1",), "cronjobs", "CronJob"),
    _job("apps", ("v1",), "deployments", "Deployment"),
    _job("apps", ("v1",), "statefulsets", "StatefulSet"),
    _job("apps", ("v1",), "replicasets", "ReplicaSet"),
    _job("apps", ("v1",), "daemonsets", "DaemonSet"),
    _job("jobset.x-k8s.io", ("v1beta1", "v1alpha2"), "jobsets", "JobSet"),
    _job("trainer.kubeflow.org", ("v1alpha1", "v2alpha1"), "trainjobs", "TrainJob"),
    *map(_kubeflow, ("PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob", "MPIJob")),
    _job("ray.io", ("v1", "v1alpha1"), "rayjobs", "RayJob"),
    _job("ray.io", ("v1", "v1alpha1"), "rayclusters", "RayCluster"),
    _job("ray.io", ("v1", "v1alpha1"), "rayservices", "RayService"),
    _job("leaderworkerset.x-k8s.io", ("v1",), "leaderworkersets", "LeaderWorkerSet"),
    _job("kubeflow.org", ("v1", "v1beta1"), "notebooks", "Notebook"),
    _job("batch.volcano.sh", ("v1alpha1",), "jobs", "Job"),
)


def _kueue(plural: str, kind: str, field: str, parse: Parser) -> Collection:
    return Collection("kueue.x-k8s.io", ("v1beta2", "v1beta1"), plural, kind, field, parse)


_KUEUE = (
    _kueue("clusterqueues", "ClusterQueue", "cluster_queues", kueue.cluster_queue),
    _kueue("localqueues", "LocalQueue", "local_queues", kueue.local_queue),
    _kueue("cohorts", "Cohort", "cohorts", kueue.cohort),
    _kueue("resourceflavors", "ResourceFlavor", "flavors", kueue.resource_flavor),
    _kueue("topologies", "Topology", "topologies", kueue.topology),
    _kueue("admissionchecks", "AdmissionCheck", "checks", kueue.admission_check),
    _kueue(
        "workloadpriorityclasses",
        "WorkloadPriorityClass",
        "priority_classes",
        kueue.workload_priority_class,
    ),
    _kueue("workloads", "Workload", "workloads", kueue_workload.workload),
)

_GROUPS = (
    # Of Kubernetes 1.35 only: later versions of a Workload hold templates of PodGroups.
    Collection(
        "scheduling.k8s.io",
        ("v1alpha1",),
        "workloads",
        "Workload",
        "pod_groups",
        pod_groups.native_pod_group,
    ),
    Collection(
        "scheduling.k8s.io",
        ("v1beta1", "v1alpha3", "v1alpha2"),
        "podgroups",
        "PodGroup",
        "pod_groups",
        pod_groups.native_pod_group,
    ),
    Collection(
        "scheduling.x-k8s.io",
        ("v1alpha1",),
        "podgroups",
        "PodGroup",
        "pod_groups",
        pod_groups.coscheduling_pod_group,
    ),
    Collection(
        "scheduling.volcano.sh",
        ("v1beta1",),
        "podgroups",
        "PodGroup",
        "pod_groups",
        volcano.volcano_pod_group,
    ),
    Collection(
        "scheduling.volcano.sh", ("v1beta1",), "queues", "Queue", "volcano_queues", volcano.volcano_queue
    ),
    Collection(
        "topology.volcano.sh", ("v1alpha1",), "hypernodes", "HyperNode", "hyper_nodes", volcano.hyper_node
    ),
)

_DRA_VERSIONS = ("v1", "v1beta2", "v1beta1")
_DEVICES = (
    Collection(
        "resource.k8s.io", _DRA_VERSIONS, "resourceslices", "ResourceSlice", "slices", dra.resource_slice
    ),
    Collection(
        "resource.k8s.io", _DRA_VERSIONS, "resourceclaims", "ResourceClaim", "claims", dra.resource_claim
    ),
)
