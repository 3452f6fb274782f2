"""``ClusterState``: everything that is known of one cluster at one instant.

Typed objects by uid, one field per family: pods, nodes, namespaces, jobs, queues, cohorts, flavors,
workloads, pod groups, claims, and how the schedulers are configured. A state is immutable, and taking one
copies no object: a watch, a file and the simulator hand out the same type, and whatever is computed from one
can be kept beside it. Two states are equal when their objects are, whenever and however they were read.

What is not there must be told from what could not be read. ``collections`` says of each collection how
current it is, and three questions use it: ``knows`` (may a name that is not here be called missing?),
``is_unread`` (would a count be a guess?) and ``is_absent`` (does the cluster not serve this API at all?).
Answers of the advisor and series of the collector rest on these, and never take an empty mapping for "none".
A state without ``collections``, as tests make it, knows what it has objects of.

Look-ups by name (``node_by_name``, ``pods_by_node``, …) are made when first asked for, and kept. Questions
about more than one object (who owns a pod, what a queue has left, why a job waits) are not here but in
``gpucost.cluster.views``; ``views.overview.ClusterOverview`` holds a state and all that follows from it.

``gpucost.kube.watch.cluster_watch`` makes states of a live cluster, ``gpucost.kube.dumps`` makes them of
files, ``gpucost.simulator`` of a seed, ``advisor.verify`` of recorded cases. The queue collector, the
detectors that need the state of now, ``gpucost state`` and the advisor ask them. ``at_ms`` is milliseconds
UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from gpucost.cluster.objects.jobs import JobObject, Namespace, PriorityClass
from gpucost.cluster.objects.kueue import (
    AdmissionCheck,
    ClusterQueue,
    Cohort,
    LocalQueue,
    ResourceFlavor,
    Topology,
    Workload,
)
from gpucost.cluster.objects.nodes import (
    ComputeDomain,
    DeviceTaintRule,
    Node,
    ResourceClaim,
    ResourceSlice,
)
from gpucost.cluster.objects.pods import DisruptionBudget, Pod
from gpucost.cluster.objects.scheduler_config import SchedulerConfigs
from gpucost.cluster.objects.volcano import CompositePodGroup, HyperNode, PodGroup, VolcanoQueue

T = TypeVar("T")
K = TypeVar("K")

_COLLECTIONS: Mapping[str, str] = {
    "nodes": "nodes",
    "pods": "pods",
    "claims": "resourceclaims.resource.k8s.io",
    "disruption_budgets": "poddisruptionbudgets.policy",
    "cluster_queues": "clusterqueues.kueue.x-k8s.io",
    "cohorts": "cohorts.kueue.x-k8s.io",
    "composite_groups": "compositepodgroups.scheduling.k8s.io",
    "local_queues": "localqueues.kueue.x-k8s.io",
    "flavors": "resourceflavors.kueue.x-k8s.io",
    "checks": "admissionchecks.kueue.x-k8s.io",
    "topologies": "topologies.kueue.x-k8s.io",
    "pod_groups": "podgroups.scheduling.volcano.sh",
    "volcano_queues": "queues.scheduling.volcano.sh",
    "workloads": "workloads.kueue.x-k8s.io",
}
"""Names of collections, as in ``ClusterState.collections``, by the field that has their objects."""


@dataclass(frozen=True, slots=True)
class CollectionStatus:
    """The currency of a collection. ``version`` is the API version it was read in, empty when ``absent``.

    ``synced`` says that all of it has been read at least once; ``problem`` why it is not current now, in one
    word, empty when it is; ``seen_ms`` when the server last sent anything of it, None for never.
    """

    version: str
    synced: bool
    absent: bool = False
    problem: str = ""
    seen_ms: int | None = None


@dataclass(frozen=True)
class ClusterState:
    """Objects by uid. An immutable snapshot: taking one copies no object, and none changes afterwards.

    ``at_ms`` is when it was taken; ``collections`` says of each how current it is, by its name as kubectl
    writes it (``clusterqueues.kueue.x-k8s.io``). Two states are equal when
    their objects are, whenever and however they were read.
    """

    at_ms: int = field(compare=False)
    collections: Mapping[str, CollectionStatus] = field(default_factory=dict, compare=False)
    pods: Mapping[str, Pod] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    namespaces: Mapping[str, Namespace] = field(default_factory=dict)
    jobs: Mapping[str, JobObject] = field(default_factory=dict)
    priority_classes: Mapping[str, PriorityClass] = field(default_factory=dict)
    disruption_budgets: Mapping[str, DisruptionBudget] = field(default_factory=dict)
    cluster_queues: Mapping[str, ClusterQueue] = field(default_factory=dict)
    local_queues: Mapping[str, LocalQueue] = field(default_factory=dict)
    cohorts: Mapping[str, Cohort] = field(default_factory=dict)
    flavors: Mapping[str, ResourceFlavor] = field(default_factory=dict)
    topologies: Mapping[str, Topology] = field(default_factory=dict)
    checks: Mapping[str, AdmissionCheck] = field(default_factory=dict)
    workloads: Mapping[str, Workload] = field(default_factory=dict)
    pod_groups: Mapping[str, PodGroup] = field(default_factory=dict)
    composite_groups: Mapping[str, CompositePodGroup] = field(default_factory=dict)
    volcano_queues: Mapping[str, VolcanoQueue] = field(default_factory=dict)
    hyper_nodes: Mapping[str, HyperNode] = field(default_factory=dict)
    claims: Mapping[str, ResourceClaim] = field(default_factory=dict)
    slices: Mapping[str, ResourceSlice] = field(default_factory=dict)
    taint_rules: Mapping[str, DeviceTaintRule] = field(default_factory=dict)
    compute_domains: Mapping[str, ComputeDomain] = field(default_factory=dict)
    schedulers: SchedulerConfigs = field(default=SchedulerConfigs(), compare=False)
    """The configuration of its schedulers, as far as it could be read."""

    def knows(self, field: str) -> bool:
        """Whether a name that is not in a field does not exist: all of its collection has been read, and the
        cluster has it. A state without information on its collections knows those of which it has objects."""
        if not self.collections:
            return bool(getattr(self, field))
        status = self.collections.get(_COLLECTIONS[field])
        return status is not None and status.synced and not status.absent

    def is_unread(self, field: str) -> bool:
        """Whether there may be objects of a field that could not be read: a count of them would be a guess.

        ``field`` may also be the name of a collection. Nothing is unread in a state without information on
        its collections.
        """
        status = self.collections.get(_COLLECTIONS.get(field, field))
        return bool(self.collections) and (status is None or not (status.synced or status.absent))

    def is_absent(self, field: str) -> bool:
        """Whether the cluster is known not to serve a field's collection, or the collection of that name."""
        status = self.collections.get(_COLLECTIONS.get(field, field))
        return status is not None and status.absent

    @cached_property
    def node_by_name(self) -> Mapping[str, Node]:
        return {node.meta.name: node for node in self.nodes.values()}

    @cached_property
    def pods_by_node(self) -> Mapping[str, list[Pod]]:
        """The pods that hold something on each node."""
        return grouped((pod for pod in self.pods.values() if pod.is_bound), lambda pod: pod.node)

    @cached_property
    def cluster_queue_by_name(self) -> Mapping[str, ClusterQueue]:
        return {queue.name: queue for queue in self.cluster_queues.values()}

    @cached_property
    def local_queue_by_name(self) -> Mapping[tuple[str, str], LocalQueue]:
        """By namespace and name."""
        return {(queue.meta.namespace, queue.meta.name): queue for queue in self.local_queues.values()}

    @cached_property
    def cohort_by_name(self) -> Mapping[str, Cohort]:
        return {cohort.name: cohort for cohort in self.cohorts.values()}

    @cached_property
    def flavor_by_name(self) -> Mapping[str, ResourceFlavor]:
        return {flavor.meta.name: flavor for flavor in self.flavors.values()}

    @cached_property
    def workload_by_name(self) -> Mapping[tuple[str, str], Workload]:
        """By namespace and name."""
        return {(each.meta.namespace, each.meta.name): each for each in self.workloads.values()}

    @cached_property
    def namespace_by_name(self) -> Mapping[str, Namespace]:
        return {namespace.meta.name: namespace for namespace in self.namespaces.values()}

    @cached_property
    def pod_group_by_name(self) -> Mapping[tuple[str, str, str], PodGroup]:
        """By kind of group, namespace and name."""
        return {
            (group.group_kind.value, group.meta.namespace, group.meta.name): group
            for group in self.pod_groups.values()
        }

    @cached_property
    def composite_group_by_name(self) -> Mapping[tuple[str, str], CompositePodGroup]:
        """By namespace and name."""
        return {(each.meta.namespace, each.meta.name): each for each in self.composite_groups.values()}

    @cached_property
    def volcano_queue_by_name(self) -> Mapping[str, VolcanoQueue]:
        return {queue.name: queue for queue in self.volcano_queues.values()}

    @cached_property
    def claim_by_name(self) -> Mapping[tuple[str, str], ResourceClaim]:
        """By namespace and name."""
        return {(claim.meta.namespace, claim.meta.name): claim for claim in self.claims.values()}


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Lists by key, in the order of ``items``."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
