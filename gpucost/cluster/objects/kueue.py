"""Kueue's objects, the same whichever API version they were read in (kueue v0.19.2, apis/kueue/v1beta2), and
why Kueue takes quota away from a workload, in its words and for a person.

Reasons are those of the conditions Evicted and Preempted, and of ``status.schedulingStats.evictions``:
apis/kueue/v1beta2/workload_types.go, and pkg/workload/patching for causes, which are written behind
``DeactivatedDueTo``. Another reason is one of a newer version: it is shown and counted under its own name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import NamedTuple

from gpucost.cluster.objects.metadata import (
    Conditions,
    FieldFlaw,
    Labels,
    ObjectMeta,
    Resources,
    StatusCondition,
    is_true,
)
from gpucost.cluster.objects.nodes import Taint
from gpucost.cluster.objects.pods import PodSet, SelectorRequirement, Toleration

"""``weightedShare`` of a queue that borrows with weight 0."""


class FlavorResource(NamedTuple):
    """The key of quota: a flavor and a resource."""

    flavor: str
    resource: str


@dataclass(frozen=True, slots=True)
class FlavorQuota:
    """The quota of one flavor and resource; limits are None when not set, which means unlimited."""

    nominal: int
    borrowing_limit: int | None = None
    lending_limit: int | None = None


class FlavorUsage(NamedTuple):
    """``total`` reserved or used; ``borrowed`` of it above the nominal quota (0 for LocalQueues)."""

    total: int
    borrowed: int = 0


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """Resources that are covered together, and their flavors, in the order in which Kueue tries them."""

    resources: tuple[str, ...]
    flavors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterQueuePreemption:
    """Policies as Kueue names them; defaults are Kueue's (clusterqueue_types.go)."""

    within_cluster_queue: str = "Never"
    reclaim_within_cohort: str = "Never"
    borrow_within_cohort: str = "Never"
    max_priority_threshold: int | None = None


@dataclass(frozen=True, slots=True)
class FlavorFungibility:
    """``TryNextFlavor`` or ``MayStopSearch``; v1beta1's ``Borrow`` and ``Preempt`` read as the latter."""

    when_can_borrow: str = "MayStopSearch"
    when_can_preempt: str = "TryNextFlavor"
    preference: str = ""


@dataclass(frozen=True, slots=True)
class ClusterQueue:
    """``namespace_selector`` is None when it matches no namespace; empty matches all (requirements on
    namespace labels). ``checks`` are AdmissionChecks by name with the flavors they are for (empty: all).
    ``reserved`` is quota reserved, ``used`` is admitted. ``weighted_share`` is None without fair sharing.
    """

    meta: ObjectMeta
    cohort: str = ""
    strategy: str = "BestEffortFIFO"
    groups: tuple[ResourceGroup, ...] = ()
    quotas: Mapping[FlavorResource, FlavorQuota] = field(default_factory=dict)
    preemption: ClusterQueuePreemption = ClusterQueuePreemption()
    fungibility: FlavorFungibility = FlavorFungibility()
    namespace_selector: tuple[SelectorRequirement, ...] | None = None
    stop_policy: str = "None"
    checks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    weight: Fraction = Fraction(1)
    admission_mode: str = ""
    conditions: Conditions = field(default_factory=dict)
    reserved: Mapping[FlavorResource, FlavorUsage] = field(default_factory=dict)
    used: Mapping[FlavorResource, FlavorUsage] = field(default_factory=dict)
    pending: int | None = None
    reserving: int | None = None
    admitted: int | None = None
    weighted_share: int | None = None
    flaws: tuple[FieldFlaw, ...] = ()

    @property
    def name(self) -> str:
        return self.meta.name

    @property
    def active(self) -> StatusCondition | None:
        """The reason of this condition explains a False."""
        return self.conditions.get("Active")


@dataclass(frozen=True, slots=True)
class LocalQueue:
    """``fair_usage`` is admission fair sharing's decayed consumption, in thousandths of a unit, as of
    ``fair_usage_ms`` (None: it has none)."""

    meta: ObjectMeta
    cluster_queue: str
    stop_policy: str = "None"
    weight: Fraction = Fraction(1)
    conditions: Conditions = field(default_factory=dict)
    reserved: Mapping[FlavorResource, FlavorUsage] = field(default_factory=dict)
    used: Mapping[FlavorResource, FlavorUsage] = field(default_factory=dict)
    pending: int | None = None
    reserving: int | None = None
    admitted: int | None = None
    fair_usage: Mapping[str, int] = field(default_factory=dict)
    fair_usage_ms: int | None = None
    flaws: tuple[FieldFlaw, ...] = ()


@dataclass(frozen=True, slots=True)
class Cohort:
    """An explicit cohort; those that only a ClusterQueue or a child names have no object."""

    meta: ObjectMeta
    parent: str = ""
    groups: tuple[ResourceGroup, ...] = ()
    quotas: Mapping[FlavorResource, FlavorQuota] = field(default_factory=dict)
    weight: Fraction = Fraction(1)
    weighted_share: int | None = None
    flaws: tuple[FieldFlaw, ...] = ()

    @property
    def name(self) -> str:
        return self.meta.name


@dataclass(frozen=True, slots=True)
class ResourceFlavor:
    """The nodes that quota of this flavor stands for."""

    meta: ObjectMeta
    node_labels: Labels = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    topology: str = ""
    flaws: tuple[FieldFlaw, ...] = ()


@dataclass(frozen=True, slots=True)
class Topology:
    """Node labels from the widest domain to the narrowest."""

    meta: ObjectMeta
    levels: tuple[str, ...] = ()
    flaws: tuple[FieldFlaw, ...] = ()


@dataclass(frozen=True, slots=True)
class AdmissionCheck:
    """``active`` is its Active condition, None while it has none."""

    meta: ObjectMeta
    controller: str = ""
    active: StatusCondition | None = None
    flaws: tuple[FieldFlaw, ...] = ()


class DomainCount(NamedTuple):
    """Pods in one topology domain: its label values, one per level, and how many."""

    values: tuple[str, ...]
    pods: int


@dataclass(frozen=True, slots=True)
class PodSetAssignment:
    """The assignment of one pod set of an admitted workload: ``usage`` is of all its ``count`` pods
    together. ``awaits_topology``: its domains are chosen once all admission checks agree."""

    name: str
    flavors: Labels
    usage: Resources
    count: int
    topology_levels: tuple[str, ...] = ()
    topology: tuple[DomainCount, ...] = ()
    awaits_topology: bool = False


@dataclass(frozen=True, slots=True)
class AdmissionCheckState:
    """The state of an admission check: Pending, Ready, Retry or Rejected."""

    name: str
    state: str
    message: str = ""


class WorkloadEviction(NamedTuple):
    """The number of evictions for one reason, as Kueue counts."""

    reason: str
    cause: str
    times: int


class WorkloadState(StrEnum):
    """The newest truth about a workload; a later one hides an earlier one."""

    INACTIVE = "inactive"
    """Deactivated: it does not queue."""
    PENDING = "pending"
    """In the queue, without quota."""
    RESERVED = "reserved"
    """Has quota; admission checks or topology are outstanding."""
    ADMITTED = "admitted"
    """May run."""
    EVICTING = "evicting"
    """Asked to stop, its quota still reserved."""
    FINISHED = "finished"


_WITH_QUOTA = frozenset({WorkloadState.RESERVED, WorkloadState.ADMITTED, WorkloadState.EVICTING})


@dataclass(frozen=True, slots=True)
class Workload:
    """``cluster_queue`` is where it was admitted, empty while it has no quota. ``asked`` are its requests
    according to Kueue (status.resourceRequests), by pod set, empty where missing. ``reclaimable`` are pods
    that gave their quota back, by pod set. ``priority_class_of_kueue`` says which kind the class is.
    ``on_cluster`` is the cluster that runs it, ``nominated`` those that may, of MultiKueue."""

    meta: ObjectMeta
    pod_sets: tuple[PodSet, ...] = ()
    queue: str = ""
    priority: int = 0
    priority_class: str = ""
    priority_class_of_kueue: bool = False
    is_active: bool = True
    max_execution_s: int | None = None
    cluster_queue: str = ""
    assignments: tuple[PodSetAssignment, ...] = ()
    conditions: Conditions = field(default_factory=dict)
    requeue_count: int = 0
    requeue_at_ms: int | None = None
    reclaimable: Mapping[str, int] = field(default_factory=dict)
    checks: tuple[AdmissionCheckState, ...] = ()
    asked: Mapping[str, Resources] = field(default_factory=dict)
    evictions: tuple[WorkloadEviction, ...] = ()
    past_execution_s: int = 0
    unhealthy_nodes: tuple[str, ...] = ()
    on_cluster: str = ""
    nominated: tuple[str, ...] = ()
    flaws: tuple[FieldFlaw, ...] = ()

    @property
    def state(self) -> WorkloadState:
        if is_true(self.conditions, "Finished"):
            return WorkloadState.FINISHED
        has_quota = is_true(self.conditions, "QuotaReserved")
        if has_quota and is_true(self.conditions, "Evicted"):
            return WorkloadState.EVICTING
        if is_true(self.conditions, "Admitted"):
            return WorkloadState.ADMITTED
        if has_quota:
            return WorkloadState.RESERVED
        return WorkloadState.PENDING if self.is_active else WorkloadState.INACTIVE

    @property
    def has_quota(self) -> bool:
        """Whether quota is reserved for it now, also while it is asked to release it."""
        return self.state in _WITH_QUOTA

    @property
    def waiting_since_ms(self) -> int:
        """Since when it has been waiting, while it has no quota: its creation, or its last eviction; of one
        that was deactivated since it was made active again, for until then nobody wanted it to run."""
        since_ms = _since(self.conditions, "Evicted") or 0
        requeued = self.conditions.get("Requeued")
        if requeued is not None and requeued.reason == _REACTIVATED:
            since_ms = max(since_ms, _since(self.conditions, "Requeued") or 0)
        return max(self.meta.created_ms, since_ms)

    @property
    def queued_since_ms(self) -> int | None:
        """Since when it waited for the quota it has, as far as its object has it.

        Kueue turns Evicted to False when quota is reserved again. From then on only Requeued has the time,
        some seconds late, and of the first time only: None where it was evicted more than once.
        """
        if not self.has_quota and self.state is not WorkloadState.FINISHED:
            return self.waiting_since_ms
        if sum(each.times for each in self.evictions) > 1:
            return None
        requeued = self.conditions.get("Requeued")
        return max(self.meta.created_ms, (requeued.since_ms if requeued else None) or 0)

    @property
    def reserved_ms(self) -> int | None:
        """When it was given the quota it has now."""
        return _since(self.conditions, "QuotaReserved")

    @property
    def admitted_ms(self) -> int | None:
        return _since(self.conditions, "Admitted")

    @property
    def finished_ms(self) -> int | None:
        return _since(self.conditions, "Finished")


_REACTIVATED = "Reactivated"
"""Kueue's reason of Requeued once a deactivated workload is active again (v0.19, workload_controller.go)."""


def _since(conditions: Conditions, type_: str) -> int | None:
    found = conditions.get(type_)
    return found.since_ms if found is not None and found.status is True else None


class EvictionReason(StrEnum):
    """Why a workload was told to stop."""

    PREEMPTED = "Preempted"
    FLAVOR_MIGRATION = "FlavorMigration"
    PODS_READY_TIMEOUT = "PodsReadyTimeout"
    ADMISSION_CHECK = "AdmissionCheck"
    CLUSTER_QUEUE_STOPPED = "ClusterQueueStopped"
    LOCAL_QUEUE_STOPPED = "LocalQueueStopped"
    NODE_FAILURES = "NodeFailures"
    DEACTIVATED = "Deactivated"


_MEANINGS = {
    EvictionReason.PREEMPTED: "others needed its quota",
    EvictionReason.FLAVOR_MIGRATION: "it moves to a flavor that its ClusterQueue prefers",
    EvictionReason.PODS_READY_TIMEOUT: "its pods were not ready in time",
    EvictionReason.ADMISSION_CHECK: "an admission check withdrew its word",
    EvictionReason.CLUSTER_QUEUE_STOPPED: "its ClusterQueue was stopped",
    EvictionReason.LOCAL_QUEUE_STOPPED: "its LocalQueue was stopped",
    EvictionReason.NODE_FAILURES: "nodes that it ran on failed",
    EvictionReason.DEACTIVATED: "it was deactivated",
    "VariantEvicted": "the variant that ran of it was evicted",
    "ConcurrentAdmission": "no variant of it runs any more",
}
_CAUSES = {
    "RequeuingLimitExceeded": "it was put back too often",
    "MaximumExecutionTimeExceeded": "it ran as long as it may",
    "AdmissionCheck": "an admission check rejected it",
    "EvictedOnManagerCluster": "the cluster that sent it here evicted it",
}
_PREEMPTIONS = {
    "InClusterQueue": "a workload of its own ClusterQueue went before it",
    "InCohortReclamation": "a queue of its cohort took its own quota back",
    "InCohortFairSharing": "a queue of its cohort with a smaller share went before it",
    "InCohortReclaimWhileBorrowing": "a queue of its cohort took quota back while it borrowed itself",
}
_DUE_TO = "DueTo"


def reason_without_cause(reason: str) -> str:
    """``Deactivated`` of ``DeactivatedDueToRequeuingLimitExceeded``; others as they are."""
    return reason.partition(_DUE_TO)[0]


def eviction_meaning(reason: str) -> str:
    """What a reason of the conditions Evicted or Preempted says; of an unknown one, that quota is gone."""
    of, _, cause = reason.partition(_DUE_TO)
    said = _MEANINGS.get(of) or _PREEMPTIONS.get(of) or "it gave its quota back"
    return f"{said}: {_CAUSES.get(cause, cause)}" if cause else said
