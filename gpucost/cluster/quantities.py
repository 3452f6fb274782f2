"""Kubernetes quantities (apimachinery, pkg/api/resource/quantity.go): ``500m``, ``2Gi``, ``1e3``."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from gpucost.domain.errors import InputError

CPU = "cpu"
MOST = 2**63 - 1
_IN_BYTES = frozenset({"memory", "ephemeral-storage", "storage"})
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_MOST_WHOLE = 10_000
_ALLOWED = "a Kubernetes quantity such as 500m, 8 or 2Gi"
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30}))"
    r"(?P<suffix>n|u|m|k|[MGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?\Z",
    re.ASCII,
)
_SCALES = {
    **{suffix: Fraction(10) ** power for suffix, power in {"n": -9, "u": -6, "m": -3, "": 0, "k": 3}.items()},
    **{suffix: Fraction(1000) ** power for power, suffix in enumerate("MGTPE", 2)},
    **{f"{suffix}i": Fraction(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
}


@lru_cache(maxsize=16384)
def parse_quantity(text: str) -> Fraction:
    """The exact number. Raises InputError for what is no quantity, and for negative ones."""
    match = _QUANTITY.match(text)
    if match is None:
        raise InputError("quantity", text, _ALLOWED)
    suffix = match["suffix"] or ""
    scale = _SCALES.get(suffix)
    number = Fraction(match["number"]) * (Fraction(10) ** int(suffix[1:]) if scale is None else scale)
    if number < 0:
        raise InputError("quantity", text, f"{_ALLOWED}, not negative")
    return number


def amount(resource: str, quantity: Fraction) -> int:
    """In the units of ``objects.Resources``: thousandths of ``cpu``, whole units of all else, rounded up.

    At most ``MOST``: Kubernetes cuts off there too.
    """
    scaled = quantity * 1000 if resource == CPU else quantity
    return min(-(-scaled.numerator // scaled.denominator), MOST)


def base_units(resource: str, amount_: int) -> float:
    """Back to cores, bytes and units, as metrics and people want them."""
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
