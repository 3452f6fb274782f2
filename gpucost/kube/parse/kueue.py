"""Kueue's queues, flavors, cohorts, checks and classes, of v1beta1 and v1beta2 alike.

No field of one version means something else in the other, so one function reads both, and the same facts
give equal results (kueue v0.19.2, apis/kueue/v1beta1/*_conversion.go). Workloads: ``kueue_workload``.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import ceil

from gpucost.cluster.objects.jobs import PriorityClass
from gpucost.cluster.objects.kueue import (
    AdmissionCheck,
    ClusterQueue,
    ClusterQueuePreemption,
    Cohort,
    FlavorFungibility,
    FlavorQuota,
    FlavorResource,
    FlavorUsage,
    LocalQueue,
    ResourceFlavor,
    ResourceGroup,
    Topology,
)
from gpucost.cluster.objects.nodes import Taint
from gpucost.cluster.objects.quantities import parse_quantity
from gpucost.domain.errors import InputError
from gpucost.kube.parse.events import Object
from gpucost.kube.parse.fields import (
    ObjectPart,
    conditions,
    label_selector,
    meta,
)
from gpucost.kube.parse.templates import tolerations

_OLD_FUNGIBILITY = {"Borrow": "MayStopSearch", "Preempt": "MayStopSearch"}


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
