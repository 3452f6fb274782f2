"""The published OpenAPI schemas: fields that exist, and values of the type that they have.

They come with the package kubernetes-validate, as data. Its own validation is not used: it refuses ``null``
where the API server treats it as absent, has no bounds of whole numbers, and takes longer to load than a
command runs. Objects are read here as the API server decodes them (apimachinery v0.36.3,
pkg/runtime/serializer/json with strict validation, which is kubectl's default): unknown fields are refused,
``null`` means absent, and what the schema calls required is not, unless a rule says so.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpucost.cluster.objects.metadata import is_quantity
from gpucost.domain.errors import ErrorRemark, shorten
from gpucost.kube.parse.fields import ObjectPart

RELEASE = "1.36"
_PACKAGE = "kubernetes_validate"
_DEFINITIONS = f"kubernetes-json-schema/v{RELEASE}.0-local/_definitions.json"
_PREFIX = "#/$defs/"
_QUANTITY = "a Kubernetes quantity such as 500m, 8 or 2Gi"
_LONGEST, _MOST_LOOKED_AT, _CLOSE = 64, 50, 0.8
_WORDS = {"string": "text", "boolean": "true or false", "object": "an object", "array": "a list"}
_ZEROS: Mapping[str, Any] = {"string": "", "boolean": False, "integer": 0, "number": 0}
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
Schema = Mapping[str, Any]


def decoded(part: ObjectPart, value: dict[str, Any], definition: str) -> dict[str, Any]:
    """``value``, which ``part`` stands for, as the API server holds it: without ``null``, and quantities
    without blanks around. A value that it cannot decode is a flaw of ``part``, and left out.

    ``definition`` is the full name of a published type.
    """
    return _struct(part, value, _definitions()[definition], definition)


@lru_cache(maxsize=1)
def _definitions() -> Mapping[str, Any]:
    """Read once, and only when an object is checked: it takes some 20 ms."""
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{_PACKAGE} is missing: install gpucost[server]", name=_PACKAGE)
    place = Path(next(iter(spec.submodule_search_locations))) / _DEFINITIONS
    found: Mapping[str, Any] = json.loads(place.read_bytes())["$defs"]
    return found


def _struct(part: ObjectPart, value: Mapping[str, Any], schema: Schema, name: str) -> dict[str, Any]:
    fields = schema["properties"]
    read = {}
    unknown = []
    for key, each in value.items():
        if key not in fields:
            unknown.append(key)
        elif each is not None:
            found = _value(part, key, each, fields[key])
            if found is not None:
                read[key] = found
    for key, allowed in misspelt(unknown, fields, f"a field of {name.rpartition('.')[2]}"):
        part.flaw(key, ErrorRemark("unknown field"), allowed)
    return read


def misspelt(unknown: list[str], fields: Any, otherwise: str) -> list[tuple[str, str]]:
    """Each key with the field that must have been meant, or ``otherwise``."""
    by_lower = {name.lower(): name for name in sorted(fields)}
    told = []
    for at, key in enumerate(unknown):
        close: list[str] = []
        if len(key) <= _LONGEST and at < _MOST_LOOKED_AT:
            close = difflib.get_close_matches(key.lower(), by_lower, 1, _CLOSE)
        told.append((key, f"{by_lower[close[0]]} (did you mean this?)" if close else otherwise))
    return told


def _value(part: ObjectPart, key: str, value: Any, schema: Schema) -> Any:
    """The decoded value; None for one with a flaw, or ``null`` where that means absent."""
    name = schema.get("$ref", "").removeprefix(_PREFIX)
    if name:
        schema = _definitions()[name]
        if name in _SPECIAL:
            return _SPECIAL[name](part, key, value)
    kind = _type(schema)
    if kind == "object":
        return _object(part, key, value, schema, name)
    if kind == "array":
        return _list(part, key, value, schema["items"])
    return _plain(part, key, value, kind, schema.get("format", ""))


def _type(schema: Schema) -> str:
    found = schema.get("type", "object")
    return found if isinstance(found, str) else str(found[0])


def _object(part: ObjectPart, key: str, value: Any, schema: Schema, name: str) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        _wrong(part, key, value, "object")
        return None
    below = ObjectPart(value, key, part)
    if "properties" in schema:
        return _struct(below, value, schema, name)
    inner = schema.get("additionalProperties")
    if not isinstance(inner, Mapping):
        return value
    read = {}
    for each, held in value.items():
        found = _zero(inner) if held is None else _value(below, each, held, inner)
        if found is not None:
            read[each] = found
    return read


def _list(part: ObjectPart, key: str, value: Any, items: Schema) -> list[Any] | None:
    if not isinstance(value, list):
        _wrong(part, key, value, "array")
        return None
    read = []
    for index, each in enumerate(value):
        if each is None:
            read.append(_zero(items))
        elif isinstance(each, dict):
            read.append(_item(ObjectPart(each, key, part, index), each, items))
        else:
            read.append(_value(part, f"{key}[{index}]", each, items))
    return read


def _item(below: ObjectPart, each: dict[str, Any], items: Schema) -> Any:
    name = items.get("$ref", "").removeprefix(_PREFIX)
    schema = _definitions()[name] if name else items
    if "properties" in schema:
        return _struct(below, each, schema, name)
    return _value(below, "", each, items)


def _zero(schema: Schema) -> Any:
    """What the API server makes of ``null`` in a list or mapping."""
    name = schema.get("$ref", "").removeprefix(_PREFIX)
    if name == _QUANTITY_TYPE:
        return "0"
    return _ZEROS.get(_type(_definitions()[name] if name else schema), {})


def _plain(part: ObjectPart, key: str, value: Any, kind: str, form: str) -> Any:
    if kind == "string":
        if not isinstance(value, str):
            return _wrong(part, key, value, kind)
        return _instant(part, key, value) if form == "date-time" else value
    if kind == "boolean":
        return value if isinstance(value, bool) else _wrong(part, key, value, kind)
    if kind == "number":
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return value if is_number else _wrong(part, key, value, kind)
    return _whole(part, key, value, 63 if form == "int64" else 31)


def _whole(part: ObjectPart, key: str, value: Any, bits: int) -> int | None:
    """kubectl writes 4.0 as 4."""
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    if not isinstance(whole, int) or isinstance(whole, bool):
        part.flaw(key, value, "a whole number")
        return None
    if not -(2**bits) <= whole < 2**bits:
        part.flaw(key, value, f"a whole number of {bits + 1} bits")
        return None
    return whole


def _instant(part: ObjectPart, key: str, value: str) -> str | None:
    try:
        if not _INSTANT.fullmatch(value):
            raise ValueError
        datetime.fromisoformat(value.upper())
    except ValueError:
        part.flaw(key, value, "a time in RFC 3339")
        return None
    return value


def _quantity(part: ObjectPart, key: str, value: Any) -> str | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = shorten(value)
    if not isinstance(value, str) or not is_quantity(value):
        part.flaw(key, value, _QUANTITY)
        return None
    return value.strip()


def _int_or_text(part: ObjectPart, key: str, value: Any) -> int | str | None:
    return value if isinstance(value, str) else _whole(part, key, value, 31)


def _anything(_: ObjectPart, __: str, value: Any) -> Any:
    return value


def _wrong(part: ObjectPart, key: str, value: Any, kind: str) -> Any:
    """None, with a flaw."""
    part.flaw(key, value, _WORDS.get(kind, "a number"))
    return None


_META = "io.k8s.apimachinery.pkg.apis.meta.v1"
_QUANTITY_TYPE = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_SPECIAL = {
    _QUANTITY_TYPE: _quantity,
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": _int_or_text,
    f"{_META}.FieldsV1": _anything,
}
