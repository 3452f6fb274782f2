"""Quota that workloads use, GPU units that they request or were given, and why Kueue gives a workload no
quota.

Reasons are Kueue's granular ones. Kueue itself reports them only with its gate
UnadmittedWorkloadsObservability, off by default in v0.19. Without it the reason is just ``Pending`` or
``Inadmissible`` and the message has the rest (kueue, pkg/scheduler/flavorassigner/flavorassigner.go and
pkg/scheduler/scheduler.go; formats of older versions are read too). Problems of its queue are read from the
queue, which has them before the workload does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from gpucost.cluster.objects.kueue import (
    AdmissionCheckState,
    ClusterQueue,
    EvictionReason,
    FlavorQuota,
    FlavorResource,
    FlavorUsage,
    LocalQueue,
    PodSetAssignment,
    Workload,
    WorkloadState,
    reason_without_cause,
)
from gpucost.cluster.objects.metadata import (
    Resources,
    StatusCondition,
    added,
    few,
    is_false,
    is_true,
    times,
)
from gpucost.cluster.objects.state import ClusterState
from gpucost.domain.gpu import ResourceCatalog
from gpucost.domain.time import iso

QuotaUse: TypeAlias = Mapping[FlavorResource, int]


def workload_units(workload: Workload, catalog: ResourceCatalog) -> Resources:
    """GPU units of its admission, pods that gave theirs back included; while it has no quota, those it
    requests."""
    has_quota = workload.has_quota or workload.state is WorkloadState.FINISHED
    if has_quota and workload.assignments:
        total = added(*(each.usage for each in workload.assignments))
    elif workload.asked:
        total = added(*workload.asked.values())
    else:
        total = added(
            *(
                times(each.template.requests, max(0, each.count - workload.reclaimable.get(each.name, 0)))
                for each in workload.pod_sets
            )
        )
    return few({name: amount for name, amount in total.items() if amount and catalog.is_gpu(name)})


def workload_usage(workload: Workload) -> QuotaUse:
    """Quota it holds now: that of its admission, less the part of pods that gave theirs back.

    Rule: kueue, pkg/workload/workload.go, totalRequestsFromAdmission (v0.19.2).
    """
    counts = {each.name: each.count for each in workload.pod_sets}
    usage: dict[FlavorResource, int] = {}
    for each in workload.assignments:
        left = counts.get(each.name, each.count) - workload.reclaimable.get(each.name, 0)
        for resource, amount in _scaled(each, max(0, left)).items():
            if resource in each.flavors:
                key = FlavorResource(each.flavors[resource], resource)
                usage[key] = usage.get(key, 0) + amount
    return usage


class QuotaUsage(NamedTuple):
    """Quota in use by flavor and resource: ``reserved``, and ``used`` of it by admitted workloads."""

    reserved: Mapping[FlavorResource, FlavorUsage]
    used: Mapping[FlavorResource, FlavorUsage]
    from_status: bool


def quota_use(
    reserved: Mapping[FlavorResource, FlavorUsage],
    used: Mapping[FlavorResource, FlavorUsage],
    quotas: Mapping[FlavorResource, FlavorQuota],
    workloads: list[Workload],
) -> QuotaUsage:
    """From the status; what it lacks is counted from the workloads that have quota.

    A status that lacks a flavor and resource of the spec was written before the spec, or never.
    """
    knows_reserved, knows_used = (bool(of) and quotas.keys() <= of.keys() for of in (reserved, used))
    if knows_reserved and knows_used:
        return QuotaUsage(reserved, used, True)
    held = [(workload_usage(each), is_true(each.conditions, "Admitted")) for each in workloads]
    if not knows_reserved:
        reserved = _counted((usage for usage, _ in held), quotas)
    if not knows_used:
        used = _counted((usage for usage, is_admitted in held if is_admitted), quotas)
    return QuotaUsage(reserved, used, False)


def _counted(
    usages: Iterable[QuotaUse], quotas: Mapping[FlavorResource, FlavorQuota]
) -> dict[FlavorResource, FlavorUsage]:
    total = dict.fromkeys(quotas, 0)
    for usage in usages:
        for key, amount in usage.items():
            total[key] = total.get(key, 0) + amount
    return {
        key: FlavorUsage(amount, max(0, amount - (quotas[key].nominal if key in quotas else 0)))
        for key, amount in total.items()
    }


def _scaled(assignment: PodSetAssignment, count: int) -> Resources:
    if count >= assignment.count:
        return assignment.usage
    return {resource: amount // assignment.count * count for resource, amount in assignment.usage.items()}


QUEUE_MISSING = "QueueMissing"
QUEUE_INACTIVE = "QueueInactive"
WAITING_FOR_REQUEUE = "WaitingForRequeue"
ON_HOLD = "OnHold"
ADMISSION_GATED = "AdmissionGated"
FOR_REPLACEMENTS = "WaitingForReplacementPods"
CHECKS_OUTSTANDING = "UnsatisfiedAdmissionChecks"
TOPOLOGY_OUTSTANDING = "PendingDelayedTopologyRequests"
NOT_ADMITTED_YET = "NotAdmittedYet"
"""Of a workload with quota, whose checks agree if it has any; Kueue has no word for it."""
_BEFORE_QUOTA = "NoReservation"
"""How reasons of Admitted begin that are of the time before it had quota."""
_UNEVALUATED = "PendingEvaluation"
_WAITING_FOR_QUOTA = "WaitingForQuota"
_EXCEEDS_MAX = "ExceedsMaxQuota"
_NO_FLAVOR = "NoMatchingFlavor"
_NO_TOPOLOGY = "TopologyPlacementFailed"
_MISCONFIGURED = "Misconfigured"
_FOR_VICTIMS = "WaitingForPreemptedWorkloads"
FOR_PODS_READY = "WaitingForPodsReady"
"""Nobody is admitted while pods of others start (waitForPodsReady.blockAdmission)."""
PREEMPTION_GATED = "PreemptionGated"
"""It needs a preemption, and Kueue lets another variant of its job, or another cluster, go first."""
GATED_MESSAGE = re.compile(r"requires preemption, but it's gated")
GRANULAR = frozenset(
    {
        *(_UNEVALUATED, _WAITING_FOR_QUOTA, _EXCEEDS_MAX, _NO_FLAVOR, _NO_TOPOLOGY, _MISCONFIGURED),
        *(_FOR_VICTIMS, FOR_PODS_READY, "Suspended", ON_HOLD, ADMISSION_GATED),
    }
)
"""Reasons of QuotaReserved that say all there is to say; the last two also without that gate (kueue v0.19.2,
apis/kueue/v1beta2/workload_types.go). Others are shown as they are."""
_SEVERITY = (_NO_TOPOLOGY, _WAITING_FOR_QUOTA, _EXCEEDS_MAX, _NO_FLAVOR)
"""As Kueue ranks them (flavorassigner.go, reasonSeverity)."""

# For the workload as a whole: the first that is found decides.
_OVERALL = (
    (GATED_MESSAGE, PREEMPTION_GATED),
    (
        re.compile(
            r"pending the (preemption|migration) of|will fit after these preemptions complete", re.IGNORECASE
        ),
        _FOR_VICTIMS,
    ),
    (re.compile(r"waiting for all admitted workloads to be in", re.IGNORECASE), FOR_PODS_READY),
    (re.compile(r"no longer fits after|overlapping preemption targets"), _WAITING_FOR_QUOTA),
    (re.compile(r"Queue \S* ?(doesn't exist|not found|is terminating or missing)"), QUEUE_MISSING),
    (re.compile(r"Queue \S+ is (inactive|stopped)"), QUEUE_INACTIVE),
    (re.compile(r"namespace doesn't match"), _MISCONFIGURED),
    (re.compile(r"resource \S+ unavailable in ClusterQueue"), _NO_FLAVOR),
)
# For one flavor, which the group names.
_OF_FLAVOR = (
    (
        re.compile(r"insufficient unused quota (?:in cohort )?for \S+ in flavor ([^\s,;]+)"),
        _WAITING_FOR_QUOTA,
    ),
    (re.compile(r"borrowing limit for \S+ in flavor ([^\s,;]+) exceeded"), _WAITING_FOR_QUOTA),
    (re.compile(r"insufficient quota for \S+ in flavor ([^\s,;]+)"), _EXCEEDS_MAX),
    (re.compile(r"untolerated taint [^,;]{0,512} in flavor ([^\s,;]+)"), _NO_FLAVOR),
    (re.compile(r"flavor (\S+) (?:doesn't match node affinity|not found)"), _NO_FLAVOR),
    (re.compile(r'Flavor "([^"\s]+)" (?:supports only|does not support)'), _NO_FLAVOR),
)
_TOPOLOGY = re.compile(r"doesn't allow to fit|allows to fit only")
_POD_SET = "couldn't assign flavors to pod set "


def quota_reason(state: ClusterState, workload: Workload) -> tuple[str, str]:
    """Why a workload in the queue has no quota, and more detail for people."""
    wrong = _wrong_queue(state, workload)
    if wrong is not None:
        return wrong
    condition = workload.conditions.get("QuotaReserved")
    if condition is not None and GATED_MESSAGE.search(condition.message):
        return PREEMPTION_GATED, condition.message
    held = held_back(workload, state.at_ms)
    is_in_backoff = held is not None and held.until_ms is not None
    if condition is not None and condition.reason in GRANULAR and not is_in_backoff:
        return condition.reason, condition.message
    if is_in_backoff or is_false(workload.conditions, "Requeued"):
        requeued = workload.conditions.get("Requeued")
        return WAITING_FOR_REQUEUE, requeued.message if requeued is not None else ""
    if condition is None:
        return _UNEVALUATED, ""
    queue = cluster_queue_of(state, workload)
    return reason_in(condition.message, queue) or condition.reason or _UNEVALUATED, condition.message


class HeldBack(NamedTuple):
    """Why Kueue does not try a pending workload: ``field`` of its object has ``value``, and ``said`` is what
    Kueue says of it. ``until_ms`` is when Kueue tries it again, None where no object knows."""

    reason: str
    field: str
    value: str
    said: str
    until_ms: int | None = None


_TAKEN_BACK = (
    EvictionReason.PODS_READY_TIMEOUT,
    EvictionReason.ADMISSION_CHECK,
    EvictionReason.DEACTIVATED,
    EvictionReason.CLUSTER_QUEUE_STOPPED,
    EvictionReason.LOCAL_QUEUE_STOPPED,
)
"""Reasons of Requeued=False that Kueue takes back by itself at once, when the time to wait is over, or the
workload is active and its queue open again (workload_controller.go, Reconcile); what it deactivated itself
with the cause behind them."""


def held_back(workload: Workload, at_ms: int) -> HeldBack | None:
    """Why a pending workload is not tried at ``at_ms``, in a queue of any strategy; None where it is.

    Rules: kueue v0.19.2, pkg/workload/workload.go (IsAdmissible) and pkg/cache/queue/cluster_queue.go
    (backoffWaitingTimeExpired).
    """
    reserved, requeued = (workload.conditions.get(each) for each in ("QuotaReserved", "Requeued"))
    is_held = reserved is not None and reserved.reason in (ON_HOLD, ADMISSION_GATED)
    # Kueue gives the same reason to one that it tries, and that may not preempt yet.
    if reserved is not None and is_held and not GATED_MESSAGE.search(reserved.message):
        return _held_by("QuotaReserved", reserved, reserved.reason)
    if is_true(workload.conditions, FOR_REPLACEMENTS):
        return _held_by(FOR_REPLACEMENTS, workload.conditions[FOR_REPLACEMENTS], FOR_REPLACEMENTS)
    if workload.requeue_at_ms is not None and workload.requeue_at_ms > at_ms:
        said = requeued.message if requeued is not None else ""
        field, until_ms = "status.requeueState.requeueAt", workload.requeue_at_ms
        return HeldBack(WAITING_FOR_REQUEUE, field, iso(until_ms), said, until_ms)
    if requeued is None or requeued.status is not False:
        return None
    if reason_without_cause(requeued.reason) not in _TAKEN_BACK:
        return _held_by("Requeued", requeued, WAITING_FOR_REQUEUE)
    return None


def _held_by(type_: str, condition: StatusCondition, reason: str) -> HeldBack:
    return HeldBack(reason, f"status.conditions[{type_}]", condition.reason, condition.message)


def cluster_queue_of(state: ClusterState, workload: Workload) -> ClusterQueue | None:
    """The ClusterQueue where it was admitted, or waits."""
    local = state.local_queue_by_name.get((workload.meta.namespace, workload.queue))
    name = workload.cluster_queue or (local.cluster_queue if local is not None else "")
    return state.cluster_queue_by_name.get(name)


def checks_reason(workload: Workload) -> tuple[str, str]:
    """Why a workload with quota is not admitted: its checks, else the domains of its topology, else nothing
    that an object has."""
    condition, waits_for = not_admitted(workload), open_checks(workload)
    said = ", ".join(f"{each.name} is {each.state}: {each.message}".rstrip(": ") for each in waits_for)
    if condition is not None and condition.reason:
        return condition.reason, said or condition.message
    if waits_for:
        return CHECKS_OUTSTANDING, said
    is_delayed = any(each.awaits_topology for each in workload.assignments)
    return TOPOLOGY_OUTSTANDING if is_delayed else NOT_ADMITTED_YET, ""


def open_checks(workload: Workload) -> list[AdmissionCheckState]:
    """Its admission checks that have not agreed."""
    return [each for each in workload.checks if each.state != "Ready"]


def not_admitted(workload: Workload) -> StatusCondition | None:
    """What Kueue says of a workload with quota that is not admitted; None where it says nothing since it has
    quota."""
    condition = workload.conditions.get("Admitted")
    is_old = condition is None or condition.status is not False or condition.reason.startswith(_BEFORE_QUOTA)
    return None if is_old else condition


def reason_in(message: str, queue: ClusterQueue | None) -> str:
    """The granular reason that a message of QuotaReserved stands for; empty for an unknown message.

    Flavors of one resource group are alternatives, of which the mildest reason counts; groups and pod sets
    must all be served, so the most severe of theirs counts (flavorassigner.go, resolveNoFitReason). ``queue``
    decides which flavors are alternatives; without it they all are.
    """
    for pattern, reason in _OVERALL:
        if pattern.search(message):
            return reason
    worst = [_of_pod_set(part, queue) for part in message.split(_POD_SET)]
    rank = max((each for each in worst if each is not None), default=None)
    if rank is None:
        return _NO_TOPOLOGY if _TOPOLOGY.search(message) else ""
    return _SEVERITY[rank]


def _of_pod_set(message: str, queue: ClusterQueue | None) -> int | None:
    """The rank of the part of a message that concerns one pod set."""
    by_flavor: dict[str, int] = {}
    for flavor, rank in _flavor_ranks(message):
        by_flavor[flavor] = max(rank, by_flavor.get(flavor, rank))
    by_group: dict[int, int] = {}
    for flavor, rank in by_flavor.items():
        group = _group(flavor, queue)
        by_group[group] = min(rank, by_group.get(group, rank))
    return max(by_group.values(), default=None)


def _flavor_ranks(message: str) -> Iterator[tuple[str, int]]:
    for pattern, reason in _OF_FLAVOR:
        for flavor in pattern.findall(message):
            yield flavor, _SEVERITY.index(reason)


def _group(flavor: str, queue: ClusterQueue | None) -> int:
    groups = queue.groups if queue is not None else ()
    return next((index for index, group in enumerate(groups) if flavor in group.flavors), -1)


def _wrong_queue(state: ClusterState, workload: Workload) -> tuple[str, str] | None:
    """Why its LocalQueue or ClusterQueue serves no workload."""
    namespace = workload.meta.namespace
    local = state.local_queue_by_name.get((namespace, workload.queue))
    if local is None:
        known = state.knows("local_queues")
        return (QUEUE_MISSING, f"LocalQueue {namespace}/{workload.queue} does not exist") if known else None
    queue = state.cluster_queue_by_name.get(local.cluster_queue)
    if queue is None:
        known = state.knows("cluster_queues")
        return (QUEUE_MISSING, f"ClusterQueue {local.cluster_queue} does not exist") if known else None
    return _inactive("ClusterQueue", queue) or _inactive("LocalQueue", local)


def _inactive(kind: str, queue: ClusterQueue | LocalQueue) -> tuple[str, str] | None:
    name = queue.meta.name
    if queue.stop_policy != "None":
        return QUEUE_INACTIVE, f"{kind} {name} is stopped ({queue.stop_policy})"
    if is_false(queue.conditions, "Active"):
        said = queue.conditions["Active"]
        return QUEUE_INACTIVE, f"{kind} {name} is not active: {said.message or said.reason}"
    return None
