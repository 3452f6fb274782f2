"""Every collection that makes up a ``ClusterState``: where the API serves it, and which function parses
it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from gpucost.kube.parse import core_objects, gang_schedulers, jobs, kueue, pods

ObjectParser: TypeAlias = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class ApiCollection:
    """One kind of object. ``versions`` are those that can be read, best first; ``field`` of a
    ``ClusterState`` has its objects. A collection that is not ``required`` may be absent: a CRD not
    installed."""

    group: str
    versions: tuple[str, ...]
    plural: str
    kind: str
    field: str
    parse: ObjectParser
    required: bool = False

    @property
    def name(self) -> str:
        """As kubectl writes it: ``pods``, ``workloads.kueue.x-k8s.io``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of all objects, in every namespace, by version."""
        root = f"/apis/{self.group}" if self.group else "/api"
        return tuple(f"{root}/{version}/{self.plural}" for version in self.versions)


def collections(annotations: Iterable[str] = ()) -> tuple[ApiCollection, ...]:
    """All of them; ``annotations`` are further ones to keep of pods, such as those that name a team."""
    return (
        ApiCollection(
            "", ("v1",), "pods", "Pod", "pods", pods.pod_parser(frozenset(annotations)), required=True
        ),
        ApiCollection("", ("v1",), "nodes", "Node", "nodes", core_objects.node, required=True),
        ApiCollection("", ("v1",), "namespaces", "Namespace", "namespaces", core_objects.namespace),
        ApiCollection(
            "scheduling.k8s.io",
            ("v1",),
            "priorityclasses",
            "PriorityClass",
            "priority_classes",
            core_objects.priority_class,
        ),
        ApiCollection(
            "policy",
            ("v1",),
            "poddisruptionbudgets",
            "PodDisruptionBudget",
            "disruption_budgets",
            core_objects.disruption_budget,
        ),
        *_JOBS,
        *_KUEUE,
        *_GROUPS,
        *_DEVICES,
    )


def _job(group: str, versions: tuple[str, ...], plural: str, kind: str) -> ApiCollection:
    return ApiCollection(
        group, versions, plural, kind, "jobs", jobs.job_parser(f"{group}/{versions[0]}", kind)
    )


def _kubeflow(kind: str) -> ApiCollection:
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


def _kueue(plural: str, kind: str, field: str, parse: ObjectParser) -> ApiCollection:
    return ApiCollection("kueue.x-k8s.io", ("v1beta2", "v1beta1"), plural, kind, field, parse)


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
    _kueue("workloads", "Workload", "workloads", kueue.workload),
)

_GROUPS = (
    # Of Kubernetes 1.35 only: later versions of a Workload hold templates of PodGroups.
    ApiCollection(
        "scheduling.k8s.io",
        ("v1alpha1",),
        "workloads",
        "Workload",
        "pod_groups",
        gang_schedulers.native_pod_group,
    ),
    ApiCollection(
        "scheduling.k8s.io",
        ("v1beta1", "v1alpha3", "v1alpha2"),
        "podgroups",
        "PodGroup",
        "pod_groups",
        gang_schedulers.native_pod_group,
    ),
    ApiCollection(
        "scheduling.k8s.io",
        ("v1alpha3",),
        "compositepodgroups",
        "CompositePodGroup",
        "composite_groups",
        gang_schedulers.composite_pod_group,
    ),
    ApiCollection(
        "scheduling.x-k8s.io",
        ("v1alpha1",),
        "podgroups",
        "PodGroup",
        "pod_groups",
        gang_schedulers.coscheduling_pod_group,
    ),
    ApiCollection(
        "scheduling.volcano.sh",
        ("v1beta1",),
        "podgroups",
        "PodGroup",
        "pod_groups",
        gang_schedulers.volcano_pod_group,
    ),
    ApiCollection(
        "scheduling.volcano.sh",
        ("v1beta1",),
        "queues",
        "Queue",
        "volcano_queues",
        gang_schedulers.volcano_queue,
    ),
    ApiCollection(
        "topology.volcano.sh",
        ("v1alpha1",),
        "hypernodes",
        "HyperNode",
        "hyper_nodes",
        gang_schedulers.hyper_node,
    ),
)

_DRA_VERSIONS = ("v1", "v1beta2", "v1beta1")
_DEVICES = (
    ApiCollection(
        "resource.k8s.io",
        _DRA_VERSIONS,
        "resourceslices",
        "ResourceSlice",
        "slices",
        core_objects.resource_slice,
    ),
    ApiCollection(
        "resource.k8s.io",
        _DRA_VERSIONS,
        "resourceclaims",
        "ResourceClaim",
        "claims",
        core_objects.resource_claim,
    ),
    ApiCollection(
        "resource.k8s.io",
        ("v1", "v1beta2", "v1alpha3"),
        "devicetaintrules",
        "DeviceTaintRule",
        "taint_rules",
        core_objects.device_taint_rule,
    ),
    ApiCollection(
        "resource.nvidia.com",
        ("v1beta1",),
        "computedomains",
        "ComputeDomain",
        "compute_domains",
        core_objects.compute_domain,
    ),
)
