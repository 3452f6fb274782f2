"""Values that are written to break out of their place: each is refused, or stands whole where it belongs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema_rs
import pytest

from tests.support.helm_chart import (
    CHART,
    IS_THERE,
    Path_,
    Values,
    at,
    defaults,
    documents,
    merged,
    needs_helm,
    scenarios,
    texts,
)

if IS_THERE:
    from helm_python import HelmError

pytestmark = [needs_helm, pytest.mark.fault(70)]

HOSTILE = (
    "x\ninjected: true",
    'x"\ninjected: "true',
    "x: {injected: true}",
    "x #",
    "*x{{ .Release.Name }}'\"\\",
)
PLAIN = "plain"
# Without what is large and holds no value, so that there is time for all of them.
BASE: Values = merged(
    defaults(),
    scenarios()["all"],
    {"monitoring": {"rules": {"enabled": False}, "dashboards": {"enabled": False}}},
)
SCHEMA = jsonschema_rs.validator_for(json.loads((CHART / "values.schema.json").read_text("utf-8")))


def places(values: Mapping[str, Any], above: Path_ = ()) -> Iterator[Path_]:
    """Where a text stands, and where a map or a list takes one."""
    for key, value in values.items():
        if isinstance(value, str):
            yield (*above, key)
        elif isinstance(value, Mapping):
            yield from places(value, (*above, key))


MAPS = [
    ("commonLabels",),
    ("service", "podAnnotations"),
    ("service", "ingress", "annotations"),
    ("monitoring", "labels"),
    ("service", "config", "notify"),
]
LISTS = [
    ("image", "pullSecrets"),
    ("webhook", "excludedNamespaces"),
    ("networkPolicies", "kubernetesApi", "cidrs"),
]


def given(path: Path_, text: str) -> Iterator[Values]:
    if path in LISTS:
        yield at(path, [text])
    elif path in MAPS:
        yield at((*path, "key"), text)
        yield at((*path, text), "value")
    else:
        yield at(path, text)


def shape(found: Any, said: list[str]) -> Any:
    """``found`` without its texts, which are added to ``said``; what is JSON in a text is looked into."""
    if isinstance(found, dict):
        said += found
        known = dict.fromkeys((*HOSTILE, PLAIN), "key")
        return {known.get(key, key): shape(value, said) for key, value in found.items()}
    if isinstance(found, list):
        return [shape(each, said) for each in found]
    if isinstance(found, str) and found.startswith("{"):
        try:
            return shape(json.loads(found), said)
        except ValueError:
            pass
    said.append(str(found))
    return ""


def taken(values: Values, text: str) -> tuple[Any, bool] | None:
    """The shape of everything, and whether ``text`` stands in it. None where values are refused. Raises
    yaml.YAMLError for what is no YAML."""
    if not SCHEMA.is_valid(values):
        return None
    try:
        files = texts(values)
    except HelmError:
        return None
    said: list[str] = []
    found = {
        name: [shape(each, said) for each in documents(file)]
        for name, file in files.items()
        if name != "NOTES.txt"
    }
    return found, any(text in each for each in said)


PLACES = [*places(BASE), *MAPS, *LISTS]


@pytest.mark.parametrize("part", sorted({path[0] for path in PLACES}))
def test_values_stay_in_their_places(part: str) -> None:
    for path in (path for path in PLACES if path[0] == part):
        for text in HOSTILE:
            for hostile, plain in zip(given(path, text), given(path, PLAIN), strict=True):
                found = taken(merged(BASE, hostile), text)
                if found is not None:
                    assert found == taken(merged(BASE, plain), PLAIN), (path, text)


def test_what_is_looked_for_would_be_seen() -> None:
    said: list[str] = []
    assert shape({"a": {"b": "x"}}, said) != shape({"a": {"b": "x", "injected": True}}, said)
    assert shape({"a": '{"b": "x #"}'}, said) == {"a": {"b": ""}}
    assert "x #" in said
    assert len(PLACES) > 80
    free = ("cluster", "name"), ("service", "priceBook"), ("prometheus", "basicAuth", "username")
    assert all(taken(merged(BASE, at(path, "*x")), "*x") for path in free), "not all is refused"
