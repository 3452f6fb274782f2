"""The facts of ``gpucost state show`` as JSON values, and back.

A field ``*_ms`` is a time, RFC 3339 under the name without it; all else is as it is declared
(``state_facts``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from decimal import Decimal
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from gpucost.domain.errors import InputError
from gpucost.domain.time import iso, parse_instant
from gpucost.reports.base.document import NotAReport
from gpucost.reports.live.state_facts import StateFacts


def state_json(facts: StateFacts) -> str:
    """As ``gpucost state show --format json`` prints them, and ``GET /v1/state`` answers."""
    return json.dumps(as_data(facts), indent=2) + "\n"


def as_data(value: Any) -> Any:
    """Facts as JSON has them."""
    if is_dataclass(value) and not isinstance(value, type):
        return dict(_field(each.name, getattr(value, each.name)) for each in fields(value))
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: as_data(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_data(each) for each in value]
    return value


def _field(name: str, value: Any) -> tuple[str, Any]:
    if name.endswith("_ms"):
        return name.removesuffix("_ms"), None if value is None else iso(value)
    return name, as_data(value)


def read_state(found: Any) -> StateFacts:
    """The facts of a document of ``reports.base.document.parse_json``. Raises NotAReport, which names the
    field."""
    try:
        facts: StateFacts = _read(StateFacts, found, "state")
    except (InputError, RecursionError):
        raise NotAReport("a value in the state makes no sense") from None
    return facts


def _read(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _of_several(arguments, value, where)
    if origin is not None and issubclass(origin, Mapping):
        _require(isinstance(value, Mapping), where)
        return {key: _read(arguments[1], inner, f"{where}.{key}") for key, inner in value.items()}
    if origin is not None and issubclass(origin, Sequence):
        _require(isinstance(value, list), where)
        return [_read(arguments[0], inner, f"{where}[]") for inner in value]
    if isinstance(kind, type) and is_dataclass(kind):
        _require(isinstance(value, Mapping), where)
        hints = _hints(kind)
        return kind(*(_read_field(hints, each.name, value, where) for each in fields(kind)))
    if issubclass(kind, Enum):
        _require(value in [member.value for member in kind], where)
        return kind(value)
    if kind is float:
        _require(isinstance(value, int | Decimal) and not isinstance(value, bool), where)
        return float(value)
    _require(isinstance(value, kind) and isinstance(value, bool) == (kind is bool), where)
    return value


def _of_several(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    rest = [kind for kind in kinds if kind is not type(None)]
    if int in rest and isinstance(value, int):
        return _read(int, value, where)
    return _read(rest[-1], value, where)


def _read_field(hints: Mapping[str, Any], name: str, value: Mapping[str, Any], where: str) -> Any:
    written = name.removesuffix("_ms")
    if written not in value:
        raise NotAReport(f"{where}.{written} is missing")
    found = value[written]
    if written == name:
        return _read(hints[name], found, f"{where}.{name}")
    if found is None and type(None) in get_args(hints[name]):
        return None
    _require(isinstance(found, str), f"{where}.{written}")
    return parse_instant(found)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _require(is_right: bool, where: str) -> None:
    if not is_right:
        raise NotAReport(f"{where} is not what it should be")
