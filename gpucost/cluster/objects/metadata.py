"""What all objects have in common: identity, amounts of resources, conditions, and flaws found in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from gpucost.domain.jobs import OwnerReference

Resources: TypeAlias = Mapping[str, int]
"""Amounts by resource name, in Kueue's units (kueue, pkg/resources/requests.go): ``cpu`` in thousandths of a
core, everything else in whole units (memory in bytes), rounded up. Never changed once made."""

Labels: TypeAlias = Mapping[str, str]

MOST_GPU_RESOURCES = 16
"""The most kinds of GPU units that one object may request."""


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """The identity of an object. ``namespace`` is empty for cluster-wide kinds; ``uid`` is what objects are
    keyed by.

    ``owner`` is the controller among the owner references, or the only other one; None for an object made by
    hand. ``deleted_ms`` is when it will be gone at the latest, once its deletion was requested.
    """

    uid: str
    namespace: str
    name: str
    created_ms: int
    labels: Labels
    annotations: Labels
    owner: OwnerReference | None = None
    deleted_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StatusCondition:
    """One condition of an object's status. ``status`` is True, False, or None for Unknown."""

    status: bool | None
    reason: str
    message: str
    since_ms: int | None


Conditions: TypeAlias = Mapping[str, StatusCondition]
"""By type."""


@dataclass(frozen=True, slots=True)
class FieldFlaw:
    """A field that is not valid; the rest of its object is used. ``value`` is shortened, for people."""

    field: str
    value: str
    allowed: str


def is_true(conditions: Conditions, type_: str) -> bool:
    """Whether a condition is there and True."""
    found = conditions.get(type_)
    return found is not None and found.status is True


def is_false(conditions: Conditions, type_: str) -> bool:
    """Whether a condition is there and False."""
    found = conditions.get(type_)
    return found is not None and found.status is False


def added(*parts: Resources) -> dict[str, int]:
    """The sum, resource by resource."""
    total: dict[str, int] = {}
    for part in parts:
        for resource, amount in part.items():
            total[resource] = total.get(resource, 0) + amount
    return total


def times(resources: Resources, count: int) -> dict[str, int]:
    """``count`` of the same."""
    return {resource: amount * count for resource, amount in resources.items()}


def few(resources: Resources) -> Resources:
    """At most MOST_GPU_RESOURCES of them, the first by name: no real object needs more, and an object that
    names thousands would cause a series for each."""
    if len(resources) <= MOST_GPU_RESOURCES:
        return resources
    return dict(sorted(resources.items())[:MOST_GPU_RESOURCES])
