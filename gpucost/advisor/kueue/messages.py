"""Kueue's own messages and reasons (v0.19.2), and the quota fields that an answer cites as evidence.

``FlavorReason``, ``merged`` and ``granular`` give what Kueue writes into a workload's QuotaReserved
condition. ``quota_path`` and ``quota_evidence`` say where in which object it stands that a request fits a
ClusterQueue or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gpucost.advisor.kueue.snapshot import KueueSnapshot, SnapshotQueue
from gpucost.advisor.model.answers import AdviceEvidence
from gpucost.cluster.objects.kueue import FlavorResource, ResourceGroup
from gpucost.cluster.objects.metadata import CPU

WAITING_FOR_QUOTA = "WaitingForQuota"
EXCEEDS_MAX = "ExceedsMaxQuota"
NO_FLAVOR = "NoMatchingFlavor"
FOR_VICTIMS = "WaitingForPreemptedWorkloads"
MISCONFIGURED = "Misconfigured"
NO_LONGER_FITS = "Workload no longer fits after processing another workload"
OVERLAPPING = "Workload has overlapping preemption targets with another workload"
_SEVERITY = ("", WAITING_FOR_QUOTA, EXCEEDS_MAX, NO_FLAVOR)
_BINARY = ("memory", "ephemeral-storage", "storage")
_SUFFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = ("", "k", "M", "G", "T", "P", "E")


class FlavorReason(NamedTuple):
    """Why one flavor does not serve a pod set as it is: Kueue's granular reason, the flavor, and what
    ``message`` is made of. For quota: what earlier pod sets ``used``, what is ``asked``, and what there is
    (``left``)."""

    reason: str
    flavor: str
    said: str = ""
    resource: str = ""
    used: int = 0
    asked: int = 0
    left: int = 0

    @property
    def message(self) -> str:
        """Kueue's sentence; made only when it is read, for there are many."""
        name = self.resource
        if self.said:
            return self.said
        if self.reason == EXCEEDS_MAX:
            return (
                f"insufficient quota for {name} in flavor {self.flavor}, previously considered podsets "
                f"requests ({quantity(name, self.used)}) + current podset request "
                f"({quantity(name, self.asked)}) > maximum capacity ({quantity(name, self.left)})"
            )
        short = quantity(name, self.used + self.asked - self.left)
        return f"insufficient unused quota for {name} in flavor {self.flavor}, {short} more needed"


def joined(reasons: Sequence[FlavorReason]) -> str:
    """As Kueue lists them: sorted, so that the order of trial does not show."""
    return ", ".join(sorted(each.message for each in reasons))


def merged(tried: dict[str, str], more: Mapping[str, str], group: ResourceGroup) -> None:
    """Adds to the flavors ``tried`` for earlier resources those of one more, which ``group`` covers: by
    flavor the granular reason why it does not fit, empty where it could be had.

    Of two groups that name one flavor both must have it; a flavor that the scan of the second did not reach
    counts as refused (flavor_assigner_attempts.go, mergeFlavorAttemptsForResource).
    """
    for flavor, reason in more.items():
        before = tried.get(flavor)
        tried[flavor] = most_severe((before, reason)) if before else reason
    if more:
        for flavor in tried.keys() - more.keys():
            if flavor in group.flavors:
                tried[flavor] = NO_FLAVOR


def granular(tried: Mapping[str, str], groups: Sequence[ResourceGroup]) -> str:
    """The granular reason of a pod set that does not fit, from the flavors ``tried`` for it (as in
    ``merged``), of all resource groups down to the one that failed: flavors of a group are alternatives, of
    which the mildest refusal counts; groups must all be served, so the most severe counts. A group that could
    be had, but not with each of its flavors, counts as well. Empty where all that was tried could be had, and
    a resource that no group covers failed (flavorassigner.go, resolveNoFitReason).
    """
    if not tried:
        return NO_FLAVOR
    refused = [[tried[flavor] for flavor in group.flavors if tried.get(flavor)] for group in groups]
    return most_severe([min(each, key=_SEVERITY.index) for each in refused if each])


def most_severe(reasons: Sequence[str]) -> str:
    """Of several; the empty reason is the mildest."""
    if len(reasons) == 1:
        return reasons[0]
    return max(reasons, key=_SEVERITY.index, default="")


def quantity(resource: str, amount: int) -> str:
    """As Kubernetes writes an amount (apimachinery, pkg/api/resource, CanonicalizeBytes)."""
    if resource == CPU:
        return _decimal(amount // 1000) if amount % 1000 == 0 else f"{amount}m"
    if resource in _BINARY or resource.startswith("hugepages-"):
        return _scaled(amount, 1024, _SUFFIXES) if amount >= 1024 else str(amount)
    return _decimal(amount)


def _decimal(amount: int) -> str:
    return _scaled(amount, 1000, _DECIMAL)


def _scaled(amount: int, base: int, suffixes: Sequence[str]) -> str:
    power = 0
    while amount and amount % base == 0 and power + 1 < len(suffixes):
        amount //= base
        power += 1
    return f"{amount}{suffixes[power]}"


NO_CEILING = "none"


def quota_path(queue: SnapshotQueue, key: FlavorResource, field: str) -> str:
    """The path of a quota field in the ClusterQueue, empty where there is no such quota."""
    for at, group in enumerate(queue.spec.groups):
        if key.resource in group.resources and key.flavor in group.flavors:
            flavor, resource = group.flavors.index(key.flavor), group.resources.index(key.resource)
            return f"spec.resourceGroups[{at}].flavors[{flavor}].resources[{resource}].{field}"
    return ""


def quota_evidence(
    snapshot: KueueSnapshot, queue: SnapshotQueue, key: FlavorResource, amount: int
) -> Iterator[AdviceEvidence]:
    """Nominal quota, what is used of it, what may be borrowed, and what is left, for one flavor and
    resource of which ``amount`` is asked."""
    name, node = f"clusterqueue/{queue.name}", queue.node
    quota = queue.spec.quotas.get(key)
    if quota is None:
        return
    what = f"{key.resource} of flavor {key.flavor}"
    said = quantity(key.resource, quota.nominal)
    yield AdviceEvidence(name, quota_path(queue, key, "nominalQuota"), said, f"its own quota of {what}")
    yield from _in_use(queue, key)
    if queue.spec.cohort:
        limit = NO_CEILING if quota.borrowing_limit is None else quantity(key.resource, quota.borrowing_limit)
        meaning = f"the most it may borrow from cohort {queue.spec.cohort}"
        yield AdviceEvidence(name, quota_path(queue, key, "borrowingLimit"), limit, meaning)
        yield from _of_cohorts(snapshot, queue, key)
    left = quantity(key.resource, node.available(key))
    asked = quantity(key.resource, amount)
    yield AdviceEvidence(
        name, "", left, f"{what} left for it, worked out with what it may borrow; {asked} asked"
    )


def _in_use(queue: SnapshotQueue, key: FlavorResource) -> Iterator[AdviceEvidence]:
    """Usage as the object's status has it, and the sum over the workloads that hold it where the
    two differ."""
    name, what = f"clusterqueue/{queue.name}", f"{key.resource} of flavor {key.flavor}"
    said, used = queue.spec.reserved.get(key), queue.node.usage.get(key, 0)
    if said is not None:
        field = f"status.flavorsReservation[{key.flavor}]"
        yield AdviceEvidence(name, field, quantity(key.resource, said.total), f"{what} in use")
    if said is None or said.total != used:
        meaning = f"{what} in use, worked out from the workloads that hold it"
        yield AdviceEvidence(name, "", quantity(key.resource, used), meaning)


def _of_cohorts(
    snapshot: KueueSnapshot, queue: SnapshotQueue, key: FlavorResource
) -> Iterator[AdviceEvidence]:
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
        yield AdviceEvidence(
            f"clusterqueue/{child.name}",
            quota_path(snapshot.queues[child.name], key, "lendingLimit"),
            "none" if limit is None else quantity(key.resource, limit),
            f"uses {used} of its {nominal} and lends {lends}",
        )
