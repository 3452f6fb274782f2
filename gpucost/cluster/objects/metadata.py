"""What all objects have in common: identity, quantities and amounts of resources, conditions, and flaws found
in them.

Quantities are Kubernetes' own (apimachinery v0.36.3, pkg/api/resource/quantity.go): ``500m``, ``2Gi``,
``1e3``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias

from gpucost.domain.errors import InputError
from gpucost.domain.jobs import OwnerReference

CPU = "cpu"
MOST = 2**63 - 1
_IN_BYTES = frozenset({"memory", "ephemeral-storage", "storage"})
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_MOST_WHOLE = 10_000
_ALLOWED = "a Kubernetes quantity such as 500m, 8 or 2Gi"
_QUANTITY = re.compile(
    r"(?=.)(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<rest>[0-9]*))?"
    r"(?P<suffix>n|u|m|k|[MGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,19})?",
    re.ASCII,
)
"""Any part of the number may be missing, as for ``ParseQuantity``: ``.``, ``+`` and ``Gi`` are 0."""
_BLANKS = (
    " \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
)
"""The blanks that Go trims and that JSON writes unescaped: for an escaped tab the API server sees the
escape."""
_LONGEST = 64
"""The digits before and after the point that make a difference: more is beyond ``MOST``, or below a
billionth."""
_SCALES = {
    **{suffix: Fraction(10) ** power for suffix, power in {"n": -9, "u": -6, "m": -3, "": 0, "k": 3}.items()},
    **{suffix: Fraction(1000) ** power for power, suffix in enumerate("MGTPE", 2)},
    **{f"{suffix}i": Fraction(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
}
Resources: TypeAlias = Mapping[str, int]
"""Amounts by resource name, in Kueue's units (kueue, pkg/resources/requests.go): ``cpu`` in thousandths of a
core, everything else in whole units (memory in bytes), rounded up. Never changed once made."""

Labels: TypeAlias = Mapping[str, str]

MOST_GPU_RESOURCES = 16
"""The most kinds of GPU units that one object may request."""


@lru_cache(maxsize=16384)
def parse_quantity(text: str) -> Fraction:
    """The exact number. Raises InputError for an invalid quantity, and for a negative one."""
    number = signed_quantity(text)
    if number < 0:
        raise InputError("quantity", text, f"{_ALLOWED}, not negative")
    return number


@lru_cache(maxsize=16384)
def signed_quantity(text: str) -> Fraction:
    """The exact number, negative too; beyond the greatest number that is counted the exact value is lost.

    Raises InputError for an invalid quantity.
    """
    match = _QUANTITY.fullmatch(text.strip(_BLANKS))
    if match is None:
        raise InputError("quantity", text, _ALLOWED)
    whole, rest, suffix = match["whole"].lstrip("0"), match["rest"] or "", match["suffix"] or ""
    power = int(suffix[1:]) if suffix not in _SCALES else 0
    if abs(power) >= 2**63:
        raise InputError("quantity", text, _ALLOWED)
    number = _scaled(whole, rest[: 2 * _LONGEST], power) * _SCALES.get(suffix, 1)
    return -number if match["sign"] == "-" else number


def _scaled(whole: str, rest: str, power: int) -> Fraction:
    """``whole.rest`` times ten to the power, within bounds that keep it cheap."""
    if not (whole or rest.strip("0")):
        return Fraction(0)
    if len(whole) + power > _LONGEST or len(whole) > 2 * _LONGEST:
        return Fraction(10**_LONGEST)
    if len(whole) + power < -_LONGEST:
        return Fraction(1, 10**_LONGEST)
    return Fraction(f"{whole or 0}.{rest or 0}") * Fraction(10) ** power


def is_quantity(text: str) -> bool:
    """Whether the API server accepts it as a quantity."""
    try:
        signed_quantity(text)
    except InputError:
        return False
    return True


def amount(resource: str, quantity: Fraction) -> int:
    """In the units of ``objects.Resources``: thousandths of ``cpu``, whole units of all else, rounded up.

    At most ``MOST``: Kubernetes cuts off there too.
    """
    scaled = quantity * 1000 if resource == CPU else quantity
    return min(-(-scaled.numerator // scaled.denominator), MOST)


def base_units(resource: str, amount_: int) -> float:
    """Back to cores, bytes and units, as in metrics and texts."""
    return amount_ / 1000 if resource == CPU else amount_


def is_bytes(resource: str) -> bool:
    """Whether amounts of it are bytes, which Kubernetes writes with binary suffixes."""
    return resource in _IN_BYTES or resource.startswith("hugepages-")


def readable(resource: str, amount_: int) -> str:
    """An amount in the units of ``objects.Resources``, for a person: ``215`` and ``2.5`` cores of cpu,
    ``2,865Gi`` and ``2.73Ti`` of memory (two decimals where it is not whole), ``1,024`` of all else."""
    if resource == CPU:
        return _trimmed(f"{amount_ / 1000:,.3f}")
    if not is_bytes(resource):
        return f"{amount_:,}"
    whole, power = amount_, 0
    while whole and whole % 1024 == 0 and power < len(_BINARY) - 1:
        whole, power = whole // 1024, power + 1
    if whole < _MOST_WHOLE:
        return f"{whole:,}{_BINARY[power]}"
    number = float(whole)
    while number >= 1024 and power < len(_BINARY) - 1:
        number, power = number / 1024, power + 1
    return _trimmed(f"{number:,.2f}") + _BINARY[power]


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass(frozen=True, slots=True)
class OwnerKeys:
    """Labels or annotations that name the team, project and user of a pod, in order of preference.

    A nearer object goes before a farther one, whichever key it has. The user's default is what JupyterHub
    puts on notebooks.
    """

    team: tuple[str, ...] = ("gpucost.io/team", "team")
    project: tuple[str, ...] = ("gpucost.io/project", "project")
    user: tuple[str, ...] = ("gpucost.io/user", "user", "hub.jupyter.org/username")

    @property
    def all(self) -> tuple[str, ...]:
        """The annotations that a reader of objects must keep for this."""
        return (*self.team, *self.project, *self.user)


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
