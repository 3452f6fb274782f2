"""Advice and explanations as plain documents for JSON, and back: the API and ``--format json`` answer the
same.

A field is declared once, in its dataclass; the rules are:

- ``schema`` names the kind and version of the answer (``gpucost/Advice/v1``);
- nano-units stay integers under ``*_nano``, beside a decimal text of nine decimals under the name itself;
- ``*_ms`` are milliseconds, or Unix milliseconds where a field says when;
- quota by flavor and resource is a list of ``{"flavor", "resource", "amount"}``;
- what is missing is null, never 0; a list without entries is empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from decimal import Decimal
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from gpucost.advisor.model.answers import Advice, Explanation
from gpucost.cluster.objects.kueue import FlavorResource
from gpucost.domain.money import plain

_MONEY = frozenset({"per_hour", "for_run", "price_per_hour"})


def document(answer: Advice | Explanation) -> dict[str, Any]:
    """The answer as JSON values: dicts with text keys, lists, text, integers, booleans and None."""
    return {"schema": schema(type(answer)), **_fields(answer)}


def schema(kind: type[Advice | Explanation]) -> str:
    """The name and version of the document that ``kind`` becomes."""
    return f"gpucost/{kind.__name__}/v1"


def _fields(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in fields(value):
        inner = getattr(value, field.name)
        if field.name in _MONEY:
            found[f"{field.name}_nano"] = inner
            inner = None if inner is None else plain(inner)
        found[field.name] = _value(inner)
    return found


def _value(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        # A lone surrogate is in no UTF-8: a name of a manifest may hold one.
        return value.encode("utf-8", "backslashreplace").decode()
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        if any(isinstance(key, FlavorResource) for key in value):
            return [
                {"flavor": _value(key.flavor), "resource": _value(key.resource), "amount": amount}
                for key, amount in sorted(value.items())
            ]
        return {_value(str(key)): _value(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_value(inner) for inner in value]
    if is_dataclass(value):
        return _fields(value)
    raise TypeError(f"{type(value).__name__} has no place in an answer")


A = TypeVar("A", Advice, Explanation)


class NotAnAnswer(ValueError):
    """The document is not the expected answer."""


def read_answer(kind: type[A], found: object) -> A:
    """The answer of a ``document``. Fields that a newer version has more are left out. Raises NotAnAnswer."""
    if not isinstance(found, Mapping) or found.get("schema") != schema(kind):
        raise NotAnAnswer(f"no document {schema(kind)}")
    answer: A = _read(kind, found, kind.__name__)
    return answer


def _read(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return float(value) if isinstance(value, Decimal) else value
    if origin in (Union, UnionType):
        if value is None and type(None) in arguments:
            return None
        [kind] = [each for each in arguments if each is not type(None)]
        return _read(kind, value, where)
    if origin is tuple:
        _require(isinstance(value, list), where)
        return tuple(_read(arguments[0], item, f"{where}[]") for item in value)
    if origin is not None:
        return _read_mapping(arguments, value, where)
    if is_dataclass(hint):
        return _read_dataclass(hint, value, where)
    if issubclass(hint, Enum):
        _require(value in [member.value for member in hint], where)
        return hint(value)
    if hint is float and isinstance(value, int | Decimal) and not isinstance(value, bool):
        return float(value)
    _require(isinstance(value, hint) and isinstance(value, bool) == (hint is bool), where)
    return value


def _read_mapping(arguments: tuple[Any, ...], value: Any, where: str) -> Mapping[Any, Any]:
    key_kind, kind = arguments
    if key_kind is not FlavorResource:
        _require(isinstance(value, Mapping), where)
        return {key: _read(kind, item, f"{where}.{key}") for key, item in value.items()}
    if value == {}:  # an empty one has no key to tell it by
        return {}
    _require(isinstance(value, list) and all(isinstance(row, Mapping) for row in value), where)
    return {
        FlavorResource(str(row.get("flavor")), str(row.get("resource"))): _read(
            kind, row.get("amount"), f"{where}[].amount"
        )
        for row in value
    }


def _read_dataclass(kind: Any, value: Any, where: str) -> Any:
    _require(isinstance(value, Mapping), where)
    hints, given = _hints(kind), {}
    for field in fields(kind):
        name = f"{field.name}_nano" if field.name in _MONEY else field.name
        if name in value:
            given[field.name] = _read(hints[field.name], value[name], f"{where}.{name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise NotAnAnswer(f"{where}.{name} is missing")
    return kind(**given)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _require(is_right: bool, where: str) -> None:
    if not is_right:
        raise NotAnAnswer(f"{where} is not what it should be")
