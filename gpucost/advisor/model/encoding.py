"""Advice and explanations as plain documents for JSON: the API and ``--format json`` answer the same.

A field is declared once, in its dataclass; the rules are:

- ``schema`` names the kind and version of the answer (``gpucost/Advice/v1``);
- nano-units stay integers under ``*_nano``, beside a decimal text of nine decimals under the name itself;
- ``*_ms`` are milliseconds, or Unix milliseconds where a field says when;
- quota by flavor and resource is a list of ``{"flavor", "resource", "amount"}``;
- what is missing is null, never 0; a list without entries is empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

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
