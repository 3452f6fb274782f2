"""Amounts of resources as Volcano compares them (volcano, pkg/scheduler/api/resource_info.go, v1.15.1).

Units are those of ``gpucost.cluster.objects.metadata.Resources``; shares of a queue may be fractions. Two
amounts that differ by less than a tenth of Volcano's smallest unit are equal: of a thousandth of a core, a
byte, and a thousandth of everything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from gpucost.cluster.objects.metadata import CPU
from gpucost.cluster.views.node_fit import PODS

ResourceAmounts: TypeAlias = Mapping[str, float]
MEMORY = "memory"
INFINITE = float("inf")
_PLAIN = frozenset({CPU, MEMORY, PODS, "ephemeral-storage"})
_LIKE = ("hugepages-", "attachable-volumes-")
_NOT_COUNTED = ("requests.", "limits.", "count/")


def counted(resources: Mapping[str, float]) -> dict[str, float]:
    """What Volcano reads of a list of resources: minResources also has limits and counts of objects, which it
    leaves out (NewResource, IsScalarResourceName, IsCountQuota)."""
    return {key: float(amount) for key, amount in resources.items() if _is_counted(key)}


def _is_counted(resource: str) -> bool:
    if resource in _PLAIN or resource.startswith(_LIKE):
        return True
    return "/" in resource and not resource.startswith(_NOT_COUNTED)


def slack(resource: str) -> float:
    """The amount below which a resource counts as nothing."""
    return 0.1 if resource in (CPU, MEMORY) else 0.0001


def at_most(resource: str, amount: float, limit: float) -> bool:
    """Whether an amount is not above a limit, as Volcano compares."""
    return amount < limit or amount == limit or abs(amount - limit) < slack(resource)


def covers(have: ResourceAmounts, amounts: ResourceAmounts) -> bool:
    """Whether all of ``amounts`` is at most ``have``; what either does not name is 0 (LessEqual, Zero)."""
    return all(at_most(key, amount, have.get(key, 0.0)) for key, amount in amounts.items())


def too_much(amounts: ResourceAmounts, limit: ResourceAmounts, asked: ResourceAmounts) -> tuple[str, ...]:
    """Resources that are asked for and of which ``amounts`` exceed ``limit``, by name; pods are never counted
    (LessEqualWithDimensionAndResourcesName). Only noise of the division by weight is forgiven."""
    return tuple(
        key
        for key in sorted(asked)
        if asked[key] > 0 and key != PODS and amounts.get(key, 0.0) > limit.get(key, 0.0) * (1 + 1e-12) + 1e-9
    )


def plus(*parts: ResourceAmounts) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        add_to(total, part)
    return total


def add_to(total: dict[str, float], part: ResourceAmounts) -> None:
    for key, amount in part.items():
        total[key] = total.get(key, 0.0) + amount


def minus(amounts: ResourceAmounts, other: ResourceAmounts) -> dict[str, float]:
    return {key: amounts.get(key, 0.0) - other.get(key, 0.0) for key in keys(amounts, other)}


def times(amounts: ResourceAmounts, factor: float) -> dict[str, float]:
    return {key: amount * factor for key, amount in amounts.items()}


def exceeding(amounts: ResourceAmounts, other: ResourceAmounts) -> dict[str, float]:
    """What of ``amounts`` is above ``other``, never below 0 (ExceededPart)."""
    return {key: max(0.0, amount - other.get(key, 0.0)) for key, amount in amounts.items()}


def least(amounts: ResourceAmounts, limit: ResourceAmounts, unnamed: float) -> dict[str, float]:
    """The smaller of both, where ``limit`` names a resource; ``unnamed`` is its limit else
    (MinDimensionResource with Infinity or Zero)."""
    return {key: min(amount, limit.get(key, unnamed)) for key, amount in amounts.items()}


def most(amounts: ResourceAmounts, other: ResourceAmounts) -> dict[str, float]:
    return {key: max(amounts.get(key, 0.0), other.get(key, 0.0)) for key in keys(amounts, other)}


def share(amounts: ResourceAmounts, of: ResourceAmounts, named: Iterable[str]) -> float:
    """The largest part that ``amounts`` are of ``of``, over ``named`` resources; 1 of nothing, 0 where both
    are nothing (Share)."""
    if not amounts:
        return 0.0
    parts = (_part(amounts.get(key, 0.0), of.get(key, 0.0)) for key in named)
    return max(parts, default=0.0)


def _part(amount: float, of: float) -> float:
    if of == 0:
        return 0.0 if amount == 0 else 1.0
    return amount / of


def keys(*parts: ResourceAmounts) -> list[str]:
    return sorted({key for part in parts for key in part})
