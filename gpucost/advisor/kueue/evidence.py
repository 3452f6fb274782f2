"""Where in which object it stands that a request does or does not fit a ClusterQueue."""

from __future__ import annotations

from collections.abc import Iterator

from gpucost.advisor.answers import Evidence
from gpucost.advisor.kueue.snapshot import Queue, Snapshot
from gpucost.advisor.kueue.words import quantity
from gpucost.cluster.kueue import FlavorResource

NO_CEILING = "none"


def quota_path(queue: Queue, key: FlavorResource, field: str) -> str:
    """The path of a quota field in the ClusterQueue, empty where there is no such quota."""
    for at, group in enumerate(queue.spec.groups):
        if key.resource in group.resources and key.flavor in group.flavors:
            flavor, resource = group.flavors.index(key.flavor), group.resources.index(key.resource)
            return f"spec.resourceGroups[{at}].flavors[{flavor}].resources[{resource}].{field}"
    return ""


def quota_evidence(snapshot: Snapshot, queue: Queue, key: FlavorResource, amount: int) -> Iterator[Evidence]:
    """Nominal quota, what is used of it, what may be borrowed, and what is left, for one flavor and
    resource of which ``amount`` is asked."""
    name, node = f"clusterqueue/{queue.name}", queue.node
    quota = queue.spec.quotas.get(key)
    if quota is None:
        return
    what = f"{key.resource} of flavor {key.flavor}"
    said = quantity(key.resource, quota.nominal)
    yield Evidence(name, quota_path(queue, key, "nominalQuota"), said, f"its own quota of {what}")
    yield from _in_use(queue, key)
    if queue.spec.cohort:
        limit = NO_CEILING if quota.borrowing_limit is None else quantity(key.resource, quota.borrowing_limit)
        meaning = f"the most it may borrow from cohort {queue.spec.cohort}"
        yield Evidence(name, quota_path(queue, key, "borrowingLimit"), limit, meaning)
        yield from _of_cohorts(snapshot, queue, key)
    left = quantity(key.resource, node.available(key))
    asked = quantity(key.resource, amount)
    yield Evidence(name, "", left, f"{what} left for it, worked out with what it may borrow; {asked} asked")


def _in_use(queue: Queue, key: FlavorResource) -> Iterator[Evidence]:
    """As its status says, and as the workloads that hold it come to where that is something else."""
    name, what = f"clusterqueue/{queue.name}", f"{key.resource} of flavor {key.flavor}"
    said, used = queue.spec.reserved.get(key), queue.node.usage.get(key, 0)
    if said is not None:
        field = f"status.flavorsReservation[{key.flavor}]"
        yield Evidence(name, field, quantity(key.resource, said.total), f"{what} in use")
    if said is None or said.total != used:
        meaning = f"{what} in use, worked out from the workloads that hold it"
        yield Evidence(name, "", quantity(key.resource, used), meaning)


def _of_cohorts(snapshot: Snapshot, queue: Queue, key: FlavorResource) -> Iterator[Evidence]:
    parent = queue.node.parent
    if parent is None:
        return
    for child in parent.children:
        spec = snapshot.queues[child.name].spec if child.is_queue else None
        quota = spec.quotas.get(key) if spec is not None else None
        if spec is None or quota is None or child is queue.node or not quota.nominal:
            continue
        used = quantity(key.resource, child.usage.get(key, 0))
        nominal = quantity(key.resource, quota.nominal)
        limit = quota.lending_limit
        lends = "all that is unused" if limit is None else f"at most {quantity(key.resource, limit)}"
        yield Evidence(
            f"clusterqueue/{child.name}",
            quota_path(snapshot.queues[child.name], key, "lendingLimit"),
            "none" if limit is None else quantity(key.resource, limit),
            f"uses {used} of its {nominal} and lends {lends}",
        )
