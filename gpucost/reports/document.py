"""Reports as plain documents for JSON. A field is declared once, in its dataclass; the rules are:

- ``nano`` and ``*_nano`` stay integers, and stand beside a decimal text of nine decimals: ``cost`` for
  ``nano``, else the name without ``_nano``;
- ``board_ms`` and ``*_board_ms`` stay integers, beside the GPU-hours as decimal text: ``gpu_hours``,
  ``*_gpu_hours``;
- ``mj`` and ``*_mj`` (millijoules) stay integers, beside kilowatt-hours as decimal text: ``kwh``, ``*_kwh``;
- a ratio is a number of six decimals; a span of time has ``start`` and ``end``, UTC, half-open;
- what is missing is null, never 0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from fractions import Fraction
from functools import cache

from gpucost.domain.money import plain, round_half_even
from gpucost.domain.time import Month, Window, iso
from gpucost.reports.display import hours_exact, kwh_exact

Document = dict[str, "Value"]
Value = None | bool | int | float | str | list["Value"] | Document


def to_json(report: object) -> str:
    """Any report of this package as JSON text: keys sorted, two blanks of indent, a newline at the end."""
    return json.dumps(document(report), ensure_ascii=False, sort_keys=True, indent=2) + "\n"


def document(report: object) -> Document:
    """Any report of this package as JSON values. ``schema`` names its kind and version."""
    found = _value(report)
    if not isinstance(found, dict):
        raise TypeError(f"{type(report).__name__} is not a report")
    return {"schema": f"gpucost/{type(report).__name__}/v1", **found}


def number(value: Fraction) -> float:
    """A ratio as a float of six decimals; the same on every machine."""
    return round_half_even(value.numerator * 1_000_000, value.denominator) / 1_000_000


@dataclass(frozen=True, slots=True)
class Companion:
    """The decimal text that stands beside an integer."""

    name: str
    text: Callable[[int], str]


@cache
def companion(name: str) -> Companion | None:
    """What stands beside a field of this name: a cost for nano-units, GPU-hours for board milliseconds,
    kilowatt-hours for millijoules.
    """
    if name == "nano" or name.endswith("_nano"):
        return Companion(name[: -len("_nano")] or "cost", plain)
    if name == "board_ms" or name.endswith("_board_ms"):
        return Companion(f"{name[: -len('board_ms')]}gpu_hours", hours_exact)
    if name == "mj" or name.endswith("_mj"):
        return Companion(f"{name[: -len('mj')]}kwh", kwh_exact)
    return None


def _value(value: object) -> Value:
    if value is None or isinstance(value, bool | int | str):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Fraction):
        return number(value)
    if isinstance(value, Month):
        return str(value)
    if isinstance(value, Window):
        return {"start": iso(value.start_ms), "end": iso(value.end_ms)}
    if isinstance(value, Mapping):
        return {str(key): _value(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_value(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _fields(value: object) -> Document:
    found: Document = {}
    for field in fields(value):  # type: ignore[arg-type]
        item = getattr(value, field.name)
        found[field.name] = _value(item)
        partner = companion(field.name)
        if partner is not None:
            found[partner.name] = None if item is None else partner.text(item)
    return found
