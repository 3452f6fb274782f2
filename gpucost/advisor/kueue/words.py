"""Messages and reasons as Kueue writes them into a workload's QuotaReserved condition (v0.19.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpucost.cluster.quantities import CPU

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


@dataclass(frozen=True, slots=True)
class Reason:
    """Why one flavor does not serve a pod set as it is: Kueue's granular reason, the flavor, the index of its
    resource group, and what ``message`` says of it. Of quota: what earlier pod sets ``used``, what is
    ``asked``, and what there is (``left``)."""

    reason: str
    flavor: str
    group: int
    said: str = ""
    resource: str = ""
    used: int = 0
    asked: int = 0
    left: int = 0

    @property
    def message(self) -> str:
        """Kueue's sentence; put together only when somebody asks, for there are many."""
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


def joined(reasons: Sequence[Reason]) -> str:
    """As Kueue lists them: sorted, so that the order of trial does not show."""
    return ", ".join(sorted(each.message for each in reasons))


def worst(reasons: Sequence[Reason]) -> str:
    """The granular reason of a pod set: flavors of a group are alternatives, of which the mildest counts;
    groups must all be served, so the most severe counts. A resource that no group covers has none."""
    if any(not each.reason for each in reasons):
        return ""
    by_flavor: dict[tuple[int, str], int] = {}
    for each in reasons:
        key = each.group, each.flavor
        by_flavor[key] = max(by_flavor.get(key, 0), _SEVERITY.index(each.reason))
    by_group: dict[int, int] = {}
    for (group, _), rank in by_flavor.items():
        by_group[group] = min(rank, by_group.get(group, rank))
    return _SEVERITY[max(by_group.values(), default=0)]


def most_severe(reasons: Sequence[str]) -> str:
    """Of several pod sets."""
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
