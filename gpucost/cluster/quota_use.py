"""Quota that workloads use, and GPU units that they ask for or were given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from gpucost.cluster.kueue import Assignment, FlavorResource, Quota, Use, Workload, WorkloadState
from gpucost.cluster.objects import Resources, added, few, is_true, times
from gpucost.domain.gpu import ResourceCatalog

QuotaUse: TypeAlias = Mapping[FlavorResource, int]


def workload_units(workload: Workload, catalog: ResourceCatalog) -> Resources:
    """GPU units that it was given, pods that gave theirs back included; while it has no quota, asks for."""
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
    """Quota it holds now: what it was given, less the part of pods that gave theirs back.

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


class Uses(NamedTuple):
    """Quota in use by flavor and resource: ``reserved``, and ``used`` of it by admitted workloads."""

    reserved: Mapping[FlavorResource, Use]
    used: Mapping[FlavorResource, Use]
    from_status: bool


def quota_use(
    reserved: Mapping[FlavorResource, Use],
    used: Mapping[FlavorResource, Use],
    quotas: Mapping[FlavorResource, Quota],
    workloads: list[Workload],
) -> Uses:
    """As the status says; what it does not say is counted from the workloads that have quota.

    A status that lacks a flavor and resource of the spec was written before the spec, or never.
    """
    knows_reserved, knows_used = (bool(of) and quotas.keys() <= of.keys() for of in (reserved, used))
    if knows_reserved and knows_used:
        return Uses(reserved, used, True)
    held = [(workload_usage(each), is_true(each.conditions, "Admitted")) for each in workloads]
    if not knows_reserved:
        reserved = _counted((usage for usage, _ in held), quotas)
    if not knows_used:
        used = _counted((usage for usage, is_admitted in held if is_admitted), quotas)
    return Uses(reserved, used, False)


def _counted(usages: Iterable[QuotaUse], quotas: Mapping[FlavorResource, Quota]) -> dict[FlavorResource, Use]:
    total = dict.fromkeys(quotas, 0)
    for usage in usages:
        for key, amount in usage.items():
            total[key] = total.get(key, 0) + amount
    return {
        key: Use(amount, max(0, amount - (quotas[key].nominal if key in quotas else 0)))
        for key, amount in total.items()
    }


def _scaled(assignment: Assignment, count: int) -> Resources:
    if count >= assignment.count:
        return assignment.usage
    return {resource: amount // assignment.count * count for resource, amount in assignment.usage.items()}
