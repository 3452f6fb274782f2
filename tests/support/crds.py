"""Whether an object is what its custom resource definition allows; read from the pinned CRDs in place."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from tests.support.shared import SHARED, missing

_NAME = "reference/crds"
FOLDER = SHARED / _NAME
_METADATA = {"type": "object", "required": ["name"]}


def validate(found: Mapping[str, Any]) -> None:
    """Raises AssertionError for an object that an API server with these CRDs would refuse or prune.

    A field that the schema does not know is an error here (a server drops it), so that a typo in a fixture
    is found. Rules in CEL are not evaluated. Skips the test, loudly, where the CRDs are not at hand.
    """
    group_version, kind = str(found["apiVersion"]), str(found["kind"])
    errors = [
        f"{'.'.join(map(str, error.instance_path))}: {error.message}"
        for error in _validator(group_version, kind).iter_errors(dict(found))
    ]
    assert not errors, f"{group_version} {kind}: " + "; ".join(errors)


@cache
def _validator(group_version: str, kind: str) -> Any:
    group, _, version = group_version.partition("/")
    for spec in _definitions(group):
        if spec["names"]["kind"] == kind:
            for each in spec["versions"]:
                if each["name"] == version:
                    return jsonschema_rs.Draft4Validator(
                        _root(each["schema"]["openAPIV3Schema"]), validate_formats=True
                    )
    raise AssertionError(f"no definition of {group_version} {kind}")


@cache
def _definitions(group: str) -> list[dict[str, Any]]:
    """``spec`` of every CRD of an API group."""
    if not FOLDER.is_dir():
        pytest.skip(missing(_NAME))
    paths = sorted(path for path in FOLDER.iterdir() if path.name.startswith(f"{group}_"))
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [each["spec"] for path in paths for each in yaml.load_all(_text(path), loader) if each]


def _text(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def _root(schema: dict[str, Any]) -> dict[str, Any]:
    """Metadata is not the CRD's: a server checks it as of any object."""
    strict: dict[str, Any] = _strict(schema)
    strict["properties"] |= {"metadata": _METADATA}
    return strict


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    """OpenAPI of a structural schema as JSON schema that refuses unknown fields."""
    kept = {
        key: value
        for key, value in schema.items()
        if not key.startswith("x-kubernetes") and key not in ("description", "default", "nullable", "example")
    }
    if "(?i)" in schema.get("pattern", ""):  # Go's flag, unknown to ECMA's regular expressions
        kept["pattern"] = schema["pattern"].replace("(?i)", "").replace("a-z", "a-zA-Z")
    if "items" in schema:
        kept["items"] = _strict(schema["items"])
    if schema.get("type") == "object" or "properties" in schema:
        kept |= _object(schema)
    if not kept.get("required", True):
        del kept["required"]
    if schema.get("nullable") and "type" in kept:
        kept["type"] = [kept["type"], "null"]
    return kept


def _object(schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties", {})
    values = schema.get("additionalProperties", False)
    is_open = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    return {
        "properties": {key: _strict(value) for key, value in properties.items()},
        "additionalProperties": _strict(values) if isinstance(values, dict) else bool(values) or is_open,
        # A server fills in defaults before it validates.
        "required": [key for key in schema.get("required", []) if "default" not in properties.get(key, {})],
    }
