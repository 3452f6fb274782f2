"""Reports as plain documents for JSON, and back. A field is declared once, in its dataclass; the rules are:

- ``nano`` and ``*_nano`` stay integers, and stand beside a decimal text of nine decimals: ``cost`` for
  ``nano``, else the name without ``_nano``;
- ``board_ms`` and ``*_board_ms`` stay integers, beside the GPU-hours as decimal text: ``gpu_hours``,
  ``*_gpu_hours``;
- ``mj`` and ``*_mj`` (millijoules) stay integers, beside kilowatt-hours as decimal text: ``kwh``, ``*_kwh``;
- a ratio is a number of six decimals; a span of time has ``start`` and ``end``, UTC, half-open;
- what is missing is null, never 0.

``read_document`` turns what ``document`` wrote back into a report, by the same declarations. A ratio has the
six decimals that a document has. The texts beside integers (costs, GPU-hours) are not read, nor are fields
that this version does not know; a field that is missing must have a default.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from gpucost.domain.errors import InputError
from gpucost.domain.money import plain, round_half_even
from gpucost.domain.time import Month, Window, iso, parse_instant
from gpucost.reports.base.display import hours_exact, kwh_exact

Document = dict[str, "Value"]
Value = None | bool | int | float | str | list["Value"] | Document


def to_json(report: object) -> str:
    """Any report of this package as JSON text: keys sorted, an indent of two blanks, a newline at the end."""
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
class TextCompanion:
    """The decimal text that stands beside an integer."""

    name: str
    text: Callable[[int], str]


@cache
def companion(name: str) -> TextCompanion | None:
    """The companion of a field of this name: a cost for nano-units, GPU-hours for GPU milliseconds,
    kilowatt-hours for millijoules."""
    if name == "nano" or name.endswith("_nano"):
        return TextCompanion(name[: -len("_nano")] or "cost", plain)
    if name == "board_ms" or name.endswith("_board_ms"):
        return TextCompanion(f"{name[: -len('board_ms')]}gpu_hours", hours_exact)
    if name == "mj" or name.endswith("_mj"):
        return TextCompanion(f"{name[: -len('mj')]}kwh", kwh_exact)
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


R = TypeVar("R")


class NotAReport(ValueError):
    """The text is not a document of the expected report."""


def parse_json(text: str | bytes) -> Any:
    """JSON values; numbers with a decimal point keep their digits. Raises NotAReport."""
    try:
        return json.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError):
        raise NotAReport("not JSON") from None


def read_document(kind: type[R], found: object) -> R:
    """The report of a document of ``parse_json``. Raises NotAReport, which names the field."""
    expected = f"gpucost/{kind.__name__}/v1"
    schema = found.get("schema") if isinstance(found, Mapping) else None
    if schema != expected:
        raise NotAReport(f"no document {expected}")
    try:
        report: R = _read(kind, found, kind.__name__)
    except (InputError, RecursionError):
        raise NotAReport(f"a value in {expected} makes no sense") from None
    return report


def read_part(kind: type[R], found: object) -> R:
    """A part of a report, which has no ``schema``. Raises NotAReport."""
    part: R = _read(kind, found, kind.__name__)
    return part


def _read(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _of_several(arguments, value, where)
    if origin is tuple:
        _require(isinstance(value, list), where)
        return tuple(_read(arguments[0], item, f"{where}[]") for item in value)
    if origin is not None:
        _require(issubclass(origin, Mapping) and isinstance(value, Mapping), where)
        return {key: _read(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if kind is Fraction:
        _require(_is_number(value), where)
        return Fraction(value)
    if kind is Month:
        _require(isinstance(value, str), where)
        return Month.parse(value)
    if kind is Window:
        _require(isinstance(value, Mapping), where)
        return Window(parse_instant(str(value.get("start"))), parse_instant(str(value.get("end"))))
    if is_dataclass(kind):
        _require(isinstance(value, Mapping), where)
        return _read_fields(kind, value, where)
    if issubclass(kind, Enum):
        _require(value in [member.value for member in kind], where)
        return kind(value)
    _require(isinstance(value, kind) and isinstance(value, bool) == (kind is bool), where)
    return value


def _of_several(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    for kind in kinds:
        if kind is not type(None) and _may_be(kind, value):
            return _read(kind, value, where)
    raise NotAReport(f"{where} is not what it should be")


def _may_be(kind: Any, value: Any) -> bool:
    """Whether a value fits this member of a union: an integer is not a ratio, which always has a decimal
    point."""
    if kind is Fraction:
        return isinstance(value, Decimal)
    if kind in (int, str, bool):
        return isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
    return True


def _read_fields(kind: Any, value: Mapping[str, Any], where: str) -> Any:
    hints, given = _hints(kind), {}
    for field in fields(kind):
        if field.name in value:
            given[field.name] = _read(hints[field.name], value[field.name], f"{where}.{field.name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise NotAReport(f"{where}.{field.name} is missing")
    return kind(**given)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _is_number(value: object) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _require(is_right: bool, where: str) -> None:
    if not is_right:
        raise NotAReport(f"{where} is not what it should be")
