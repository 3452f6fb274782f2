"""Parsers of Kueue's objects: queues, flavors, cohorts, checks, classes, and Workloads with their topology
assignments, of v1beta1 and v1beta2 alike.

No field of one version means something else in the other, so one function reads both, and the same facts
give equal results (kueue v0.19.2, apis/kueue/v1beta1/*_conversion.go, apis/kueue/v1beta2/workload_types.go).

Both forms of a topology assignment give the same list of domains. v1beta1 lists the domains. v1beta2 lists
slices of domains that have something in common: per level one value for all, or one each with a common prefix
and suffix (kueue v0.19.2, apis/kueue/v1beta2, TopologyAssignment).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import repeat
from math import ceil
from typing import TypeVar

from gpucost.cluster.objects.jobs import PriorityClass
from gpucost.cluster.objects.kueue import (
    AdmissionCheck,
    AdmissionCheckState,
    ClusterQueue,
    ClusterQueuePreemption,
    Cohort,
    DomainCount,
    FlavorFungibility,
    FlavorQuota,
    FlavorResource,
    FlavorUsage,
    LocalQueue,
    PodSetAssignment,
    ResourceFlavor,
    ResourceGroup,
    Topology,
    Workload,
    WorkloadEviction,
)
from gpucost.cluster.objects.metadata import Resources, parse_quantity
from gpucost.cluster.objects.nodes import Taint
from gpucost.cluster.objects.pods import PodSet
from gpucost.domain.errors import InputError
from gpucost.kube.parse.events import Object
from gpucost.kube.parse.fields import (
    MOST_FLAWS,
    ObjectPart,
    conditions,
    label_selector,
    meta,
    shared,
)
from gpucost.kube.parse.templates import pod_template, tolerations

_OLD_FUNGIBILITY = {"Borrow": "MayStopSearch", "Preempt": "MayStopSearch"}
T = TypeVar("T", str, int)
MOST_LEVELS = 16
_LONGEST_AFFIX = 63
_LONGEST = f"at most {_LONGEST_AFFIX} characters"


def cluster_queue(found: Object) -> ClusterQueue:
    """Raises Unreadable for an object without identity, as all functions here."""
    part = ObjectPart(found)
    identity, spec, status = meta(part), part.part("spec"), part.part("status")
    groups, quotas = _groups(spec)
    return ClusterQueue(
        identity,
        cohort=spec.text("cohortName") or spec.text("cohort"),
        strategy=spec.text("queueingStrategy") or "BestEffortFIFO",
        groups=groups,
        quotas=quotas,
        preemption=_preemption(spec.part("preemption")),
        fungibility=_fungibility(spec.part("flavorFungibility")),
        namespace_selector=label_selector(spec, "namespaceSelector"),
        stop_policy=spec.text("stopPolicy") or "None",
        checks=_checks(spec),
        weight=_weight(spec),
        admission_mode=spec.part("admissionScope").text("admissionMode"),
        conditions=conditions(status),
        reserved=_uses(status, "flavorsReservation"),
        used=_uses(status, "flavorsUsage"),
        pending=_counted(status, "pendingWorkloads"),
        reserving=_counted(status, "reservingWorkloads"),
        admitted=_counted(status, "admittedWorkloads"),
        weighted_share=_counted(status.part("fairSharing"), "weightedShare"),
        flaws=tuple(part.flaws),
    )


def local_queue(found: Object) -> LocalQueue:
    part = ObjectPart(found)
    identity, spec, status = meta(part), part.part("spec"), part.part("status")
    return LocalQueue(
        identity,
        cluster_queue=spec.text("clusterQueue"),
        stop_policy=spec.text("stopPolicy") or "None",
        weight=_weight(spec),
        conditions=conditions(status),
        reserved=_uses(status, "flavorsReservation"),
        used=_uses(status, "flavorsUsage" if "flavorsUsage" in status else "flavorUsage"),
        pending=_counted(status, "pendingWorkloads"),
        reserving=_counted(status, "reservingWorkloads"),
        admitted=_counted(status, "admittedWorkloads"),
        fair_usage=_fair_usage(status),
        fair_usage_ms=_fair_status(status).instant("lastUpdate"),
        flaws=tuple(part.flaws),
    )


def cohort(found: Object) -> Cohort:
    part = ObjectPart(found)
    identity, spec, status = meta(part), part.part("spec"), part.part("status")
    groups, quotas = _groups(spec)
    return Cohort(
        identity,
        parent=spec.text("parentName"),
        groups=groups,
        quotas=quotas,
        weight=_weight(spec),
        weighted_share=_counted(status.part("fairSharing"), "weightedShare"),
        flaws=tuple(part.flaws),
    )


def resource_flavor(found: Object) -> ResourceFlavor:
    part = ObjectPart(found)
    identity, spec = meta(part), part.part("spec")
    return ResourceFlavor(
        identity,
        node_labels=spec.labels("nodeLabels"),
        taints=tuple(
            Taint(each.text("key"), each.text("value"), each.text("effect"))
            for each in spec.parts("nodeTaints")
        ),
        # A flavor writes its tolerations as a pod does.
        tolerations=tolerations(spec),
        topology=spec.text("topologyName"),
        flaws=tuple(part.flaws),
    )


def topology(found: Object) -> Topology:
    part = ObjectPart(found)
    identity, spec = meta(part), part.part("spec")
    labels = [each.text("nodeLabel") for each in spec.parts("levels")]
    return Topology(identity, tuple(filter(None, labels)), tuple(part.flaws))


def admission_check(found: Object) -> AdmissionCheck:
    part = ObjectPart(found)
    identity, spec, status = meta(part), part.part("spec"), part.part("status")
    active = conditions(status).get("Active")
    return AdmissionCheck(identity, spec.text("controllerName"), active, tuple(part.flaws))


def workload_priority_class(found: Object) -> PriorityClass:
    """A class without a value counts as 0, with a flaw."""
    part = ObjectPart(found)
    identity, value = meta(part), part.whole("value")
    if "value" not in part:
        part.flaw("value", None, "a whole number")
    return PriorityClass(identity, value or 0, of_kueue=True, flaws=tuple(part.flaws))


def _groups(spec: ObjectPart) -> tuple[tuple[ResourceGroup, ...], dict[FlavorResource, FlavorQuota]]:
    """Resource groups, and those of their quotas whose nominal quota can be read."""
    groups, quotas = [], {}
    for group in spec.parts("resourceGroups"):
        flavors = _flavors(group, "flavors")
        groups.append(ResourceGroup(group.texts("coveredResources"), tuple(name for name, _ in flavors)))
        for key, each in _by_resource(flavors):
            quota = _quota(each, key)
            if quota is not None:
                quotas[key] = quota
    return tuple(groups), quotas


def _quota(part: ObjectPart, key: FlavorResource) -> FlavorQuota | None:
    """None without a nominal quota. A limit that is not valid counts as not set."""
    nominal = part.amount("nominalQuota", key.resource, part.raw("nominalQuota"))
    if nominal is None:
        return None
    return FlavorQuota(nominal, _amount(part, "borrowingLimit", key), _amount(part, "lendingLimit", key))


def _uses(status: ObjectPart, list_: str) -> dict[FlavorResource, FlavorUsage]:
    """The entries whose total can be read."""
    read = {}
    for key, each in _by_resource(_flavors(status, list_)):
        total = _amount(each, "total", key)
        if total is not None:
            read[key] = FlavorUsage(total, _amount(each, "borrowed", key) or 0)
    return read


def _flavors(part: ObjectPart, list_: str) -> list[tuple[str, list[ObjectPart]]]:
    """Resources by flavor; flavors without a name are skipped."""
    named = [(flavor.text("name"), flavor) for flavor in part.parts(list_)]
    return [(name, flavor.parts("resources")) for name, flavor in named if name]


def _by_resource(flavors: list[tuple[str, list[ObjectPart]]]) -> Iterator[tuple[FlavorResource, ObjectPart]]:
    """Every resource of every flavor; those without a name are skipped."""
    for flavor, resources in flavors:
        for each in resources:
            name = each.text("name")
            if name:
                yield FlavorResource(flavor, name), each


def _amount(part: ObjectPart, field: str, key: FlavorResource) -> int | None:
    return part.amount(field, key.resource, part.raw(field)) if field in part else None


def _preemption(part: ObjectPart) -> ClusterQueuePreemption:
    borrowing = part.part("borrowWithinCohort")
    return ClusterQueuePreemption(
        part.text("withinClusterQueue") or "Never",
        part.text("reclaimWithinCohort") or "Never",
        borrowing.text("policy") or "Never",
        borrowing.whole("maxPriorityThreshold"),
    )


def _fungibility(part: ObjectPart) -> FlavorFungibility:
    when_can_borrow = part.text("whenCanBorrow") or "MayStopSearch"
    when_can_preempt = part.text("whenCanPreempt") or "TryNextFlavor"
    return FlavorFungibility(
        _OLD_FUNGIBILITY.get(when_can_borrow, when_can_borrow),
        _OLD_FUNGIBILITY.get(when_can_preempt, when_can_preempt),
        part.text("preference"),
    )


def _checks(spec: ObjectPart) -> dict[str, tuple[str, ...]]:
    """Of the list that v1beta1 may have instead of the strategy, each check is for all flavors."""
    strategy = spec.part("admissionChecksStrategy").parts("admissionChecks")
    by_flavor = {each.text("name"): each.texts("onFlavors") for each in strategy if each.text("name")}
    return dict.fromkeys(spec.texts("admissionChecks"), ()) | by_flavor


def _weight(spec: ObjectPart) -> Fraction:
    """1 where it is missing or not valid."""
    found = _quantity(spec.part("fairSharing"), "weight")
    return Fraction(1) if found is None else found


def _fair_usage(status: ObjectPart) -> dict[str, int]:
    """Rounded up to thousandths."""
    consumed = _fair_status(status).part("consumedResources")
    quantities = {resource: _quantity(consumed, resource) for resource in consumed}
    return {resource: ceil(each * 1000) for resource, each in quantities.items() if each is not None}


def _fair_status(status: ObjectPart) -> ObjectPart:
    return status.part("fairSharing").part("admissionFairSharingStatus")


def _quantity(part: ObjectPart, key: str) -> Fraction | None:
    """The exact number, which ``ObjectPart.amount`` rounds up to the units of a resource."""
    found = part.raw(key)
    if found is None:
        return None
    is_quantity = isinstance(found, (str, int, float)) and not isinstance(found, bool)
    try:
        return parse_quantity(str(found) if is_quantity else "")
    except InputError as error:
        part.flaw(key, found, error.allowed)
        return None


def _counted(part: ObjectPart, key: str) -> int | None:
    """The number; None where it is missing or not valid."""
    found = part.count(key, -1)
    return None if found < 0 else found


def domain_counts(found: ObjectPart) -> tuple[DomainCount, ...]:
    """Pods by domain, sorted. Empty, with a flaw, where any of it is not valid: a part would mislead.

    The CRD's limits on levels and lengths keep the result in proportion to what was read; values that are
    given one by one limit how many domains a slice can have.
    """
    flaws_before = len(found.flaws)
    levels = len(found.texts("levels"))
    if not 1 <= levels <= MOST_LEVELS:
        found.flaw("levels", levels, f"1 to {MOST_LEVELS} levels")
        return ()
    read = [domain for each in found.parts("slices") for domain in _slice(each, levels)]
    read += [_domain(each, levels) for each in found.parts("domains")]
    return tuple(sorted(read)) if len(found.flaws) == flaws_before < MOST_FLAWS else ()


def _domain(part: ObjectPart, levels: int) -> DomainCount:
    values = part.texts("values")
    if len(values) != levels:
        part.flaw("values", len(values), f"{levels} values, one per level")
    return DomainCount(values, _pods(part, "count"))


def _slice(part: ObjectPart, levels: int) -> list[DomainCount]:
    domains = part.count("domainCount")
    by_level = [_values(each) for each in part.parts("valuesPerLevel")]
    pods = _pod_counts(part.part("podCounts"))
    listed = {len(each) for each in (*by_level, pods) if isinstance(each, tuple)}
    if len(by_level) != levels:
        part.flaw("valuesPerLevel", len(by_level), f"{levels} entries, one per level")
    elif not domains or (listed or {1}) != {domains}:
        # Domains without a value of their own would all be the same.
        part.flaw("domainCount", domains, "as many as there are individual values")
    else:
        values = zip(*(_listed(each, domains) for each in by_level), strict=True)
        return list(map(DomainCount, values, _listed(pods, domains)))
    return []


def _listed(found: T | tuple[T, ...], domains: int) -> Iterable[T]:
    return found if isinstance(found, tuple) else repeat(found, domains)


def _values(part: ObjectPart) -> str | tuple[str, ...]:
    """One value for all domains, or one each."""
    if "individual" not in part:
        if not part.text("universal"):
            part.flaw("universal", part.raw("universal"), "universal or individual values")
        return part.text("universal")
    individual = part.part("individual")
    prefix, suffix = individual.text("prefix"), individual.text("suffix")
    for key, affix in (("prefix", prefix), ("suffix", suffix)):
        if len(affix) > _LONGEST_AFFIX:
            individual.flaw(key, affix, _LONGEST)
            return ()
    return tuple(f"{prefix}{root}{suffix}" for root in individual.texts("roots"))


def _pod_counts(part: ObjectPart) -> int | tuple[int, ...]:
    """One count for all domains, or one each."""
    if "individual" not in part:
        return _pods(part, "universal")
    counts = part.raw("individual")
    if not isinstance(counts, list) or not all(type(each) is int and each > 0 for each in counts):
        part.flaw("individual", counts, "a list of positive whole numbers")
        return ()
    return tuple(counts)


def _pods(part: ObjectPart, key: str) -> int:
    count = part.count(key)
    if not count:
        part.flaw(key, part.raw(key), "a positive whole number")
    return count


_MAIN = "main"
_OF_KUEUE = "kueue.x-k8s.io"
_SOURCES = {"kueue.x-k8s.io/workloadpriorityclass": True, "scheduling.k8s.io/priorityclass": False}
_TOPOLOGY = {
    "required": "required",
    "preferred": "preferred",
    "group": "podSetGroupName",
    "slice": "podSetSliceRequiredTopology",
}
_PAST_EXECUTION = ("accumulatedPastExecutionTimeSeconds", "accumulatedPastExexcutionTimeSeconds")


def workload(found: Object) -> Workload:
    """Raises Unreadable for an object without identity."""
    part = ObjectPart(found)
    identity, spec, status = meta(part), part.part("spec"), part.part("status")
    priority_class, of_kueue = _priority_class(spec)
    pod_sets = tuple(_pod_set(each) for each in spec.parts("podSets"))
    admission, requeue = status.part("admission"), status.part("requeueState")
    return Workload(
        identity,
        pod_sets,
        queue=spec.text("queueName"),
        priority=spec.whole("priority") or 0,
        priority_class=priority_class,
        priority_class_of_kueue=of_kueue,
        is_active=spec.flag("active", True),
        max_execution_s=spec.count("maximumExecutionTimeSeconds") or None,
        cluster_queue=admission.text("clusterQueue"),
        assignments=_assignments(admission, pod_sets),
        conditions=conditions(status),
        requeue_count=requeue.count("count"),
        requeue_at_ms=requeue.instant("requeueAt"),
        reclaimable=_reclaimable(status),
        checks=_workload_checks(status),
        asked=_asked(status),
        evictions=_evictions(status),
        past_execution_s=max(status.count(key) for key in _PAST_EXECUTION),
        unhealthy_nodes=tuple(each.text("name") for each in status.parts("unhealthyNodes")),
        on_cluster=status.text("clusterName"),
        nominated=status.texts("nominatedClusterNames"),
        flaws=tuple(part.flaws),
    )


def _priority_class(spec: ObjectPart) -> tuple[str, bool]:
    """Its name, and whether it is a WorkloadPriorityClass.

    In v1beta1 a name without a source is no reference (kueue, apis/kueue/v1beta1/workload_conversion.go).
    """
    reference = spec.part("priorityClassRef")
    if reference:
        return reference.text("name"), reference.text("group") == _OF_KUEUE
    of_kueue = _SOURCES.get(spec.text("priorityClassSource"))
    return ("", False) if of_kueue is None else (spec.text("priorityClassName"), of_kueue)


def _pod_set(part: ObjectPart) -> PodSet:
    return PodSet(
        part.text("name") or _MAIN,
        part.count("count", 1),
        pod_template(part.part("template").part("spec")),
        part.count("minCount") or None,
        _topology(part.part("topologyRequest")),
    )


def _topology(request: ObjectPart) -> Mapping[str, str]:
    if not request:
        return {}
    read = {key: request.text(field) for key, field in _TOPOLOGY.items() if field in request}
    if "podSetSliceSize" in request:
        read["slice_size"] = str(request.count("podSetSliceSize"))
    if request.flag("unconstrained"):
        read["unconstrained"] = "true"
    return read


def _assignments(admission: ObjectPart, pod_sets: tuple[PodSet, ...]) -> tuple[PodSetAssignment, ...]:
    """Admissions written by older versions of Kueue have no count: then it is the whole pod set."""
    sizes = {each.name: each.count for each in pod_sets}
    return tuple(_assignment(each, sizes) for each in admission.parts("podSetAssignments"))


def _assignment(part: ObjectPart, sizes: Mapping[str, int]) -> PodSetAssignment:
    name, topology = part.text("name") or _MAIN, part.part("topologyAssignment")
    domains = domain_counts(topology) if topology else ()
    return PodSetAssignment(
        name,
        part.labels("flavors"),
        shared(part.amounts("resourceUsage")),
        part.count("count", sizes.get(name, 0)),
        topology.texts("levels") if domains else (),
        domains,
        not topology and part.text("delayedTopologyRequest") == "Pending",
    )


def _reclaimable(status: ObjectPart) -> dict[str, int]:
    return {each.text("name"): each.count("count") for each in status.parts("reclaimablePods")}


def _workload_checks(status: ObjectPart) -> tuple[AdmissionCheckState, ...]:
    return tuple(
        AdmissionCheckState(each.text("name"), each.text("state"), each.text("message"))
        for each in status.parts("admissionChecks")
    )


def _asked(status: ObjectPart) -> dict[str, Resources]:
    return {each.text("name"): shared(each.amounts("resources")) for each in status.parts("resourceRequests")}


def _evictions(status: ObjectPart) -> tuple[WorkloadEviction, ...]:
    return tuple(
        WorkloadEviction(each.text("reason"), each.text("underlyingCause"), each.count("count"))
        for each in status.part("schedulingStats").parts("evictions")
    )
