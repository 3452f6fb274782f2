"""The chart as Helm itself renders it, by scenario and with every switch turned."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import jsonschema_rs
import kubernetes_validate
import pytest
import yaml
from kubernetes_validate import utils

try:
    from helm_python import Chart, HelmError, lint
except (ImportError, OSError) as error:  # the wheel holds a library for some machines only
    MISSING = f"the chart is NOT TESTED: helm-python-sdk cannot be used here ({error})"
    IS_THERE = False
else:
    MISSING, IS_THERE = "", True

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "gpucost"
CRD_SCHEMAS = ROOT / "tests" / "helm" / "crd_schemas"
Values: TypeAlias = dict[str, Any]
Object: TypeAlias = dict[str, Any]
Path_: TypeAlias = tuple[str, ...]

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Of C where there is one: dashboards and rules are a megabyte."""

# It reads megabytes of schemas anew for every object.
utils.schema_contents = cache(utils.schema_contents)

needs_helm = pytest.mark.skipif(not IS_THERE, reason=MISSING)

NEEDS: dict[Path_, Values] = {
    ("webhook", "enabled"): {"webhook": {"token": "0123456789abcdef"}},
    ("service", "ingress", "enabled"): {
        "service": {"ingress": {"host": "gpucost.example.com"}},
        "networkPolicies": {"apiClients": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]},
    },
    ("monitoring", "alertmanager", "enabled"): {"monitoring": {"alertmanager": {"secret": "key"}}},
    ("access", "kubernetes", "enabled"): {"access": {"grants": [{"groups": ["platform"], "role": "admin"}]}},
    ("service", "watchCluster"): {"webhook": {"enabled": False}},
}
"""What a switch needs beside it, so that it may be turned."""


def defaults() -> Values:
    return deepcopy(_values_in(CHART / "values.yaml"))


@cache
def _values_in(file: Path) -> Values:
    found: Values = yaml.load(file.read_text("utf-8"), LOADER)
    return found


def scenarios() -> dict[str, Values]:
    """Name of each ci/NAME-values.yaml -> its values."""
    files = sorted((CHART / "ci").glob("*-values.yaml"))
    return {file.name.removesuffix("-values.yaml"): deepcopy(_values_in(file)) for file in files}


def booleans(values: Mapping[str, Any], above: Path_ = ()) -> Iterator[Path_]:
    """The path of every switch in ``values``."""
    for key, value in values.items():
        if isinstance(value, bool):
            yield (*above, key)
        elif isinstance(value, Mapping):
            yield from booleans(value, (*above, key))


def merged(*parts: Mapping[str, Any]) -> Values:
    """``parts`` over each other, maps into maps, as Helm does it."""
    found: Values = {}
    for part in parts:
        for key, value in part.items():
            if isinstance(value, Mapping) and isinstance(found.get(key), Mapping):
                found[key] = merged(found[key], value)
            else:
                found[key] = deepcopy(value)
    return found


def at(path: Sequence[str], value: object) -> Values:
    """``value`` in the maps of ``path``."""
    found = value
    for key in reversed(path):
        found = {key: found}
    assert isinstance(found, dict)
    return found


def value_at(values: Mapping[str, Any], path: Sequence[str]) -> Any:
    found: Any = values
    for key in path:
        found = found[key]
    return found


def flipped(path: Path_, base: Mapping[str, Any]) -> tuple[Values, Values]:
    """``base`` with what a switch needs, as it is and with the switch turned."""
    before = merged(base, NEEDS.get(path, {}))
    return before, merged(before, at(path, not value_at(merged(defaults(), before), path)))


@cache
def chart() -> Any:
    return Chart.load(CHART)


def texts(values: Mapping[str, Any], name: str = "gpu", namespace: str = "cost") -> dict[str, str]:
    """Name of a template -> what Helm makes of it. Raises HelmError, as Helm says it."""
    return _texts(json.dumps(values), name, namespace)


@cache
def _texts(values: str, name: str, namespace: str) -> dict[str, str]:
    found: dict[str, str] = chart().render(json.loads(values), name=name, namespace=namespace)
    return {file.removeprefix("gpucost/templates/"): text for file, text in found.items()}


def refusal(values: Mapping[str, Any]) -> str:
    """What Helm says to values that are wrong."""
    with pytest.raises(HelmError) as caught:
        texts(values)
    return str(caught.value)


def lint_errors(values: Mapping[str, Any]) -> list[str]:
    """What ``helm lint`` finds, but for the advice to have a picture."""
    found = lint(CHART, dict(values), strict=True, namespace="cost")
    return [each["error"] for each in found["messages"] if each["error"] != "icon is recommended"]


def objects(values: Mapping[str, Any], name: str = "gpu", namespace: str = "cost") -> list[Object]:
    """Everything that would be applied. Shared: change nothing in it."""
    return _objects(json.dumps(values), name, namespace)


@cache
def _objects(values: str, name: str, namespace: str) -> list[Object]:
    found = dict(_texts(values, name, namespace))
    del found["NOTES.txt"]
    return [each for text in found.values() for each in documents(text) if each]


@cache
def documents(text: str) -> list[Any]:
    """What a rendered template says; most are the same whatever the values. Change nothing in it."""
    return list(yaml.load_all(text, LOADER))


def rendered_settings(found: Sequence[Object]) -> dict[str, Any]:
    """The settings file that the service gets."""
    config: dict[str, Any] = json.loads(one(found, "ConfigMap", "service")["data"]["config.yaml"])
    return config


def of_kind(found: Sequence[Object], *kinds: str) -> list[Object]:
    return [each for each in found if each["kind"] in kinds]


def one(found: Sequence[Object], kind: str, component: str) -> Object:
    """The one object of a kind and a component."""
    label = "app.kubernetes.io/component"
    [each] = [it for it in of_kind(found, kind) if it["metadata"]["labels"][label] == component]
    return each


def pods(found: Sequence[Object]) -> dict[str, Object]:
    """``Kind/name`` of a workload -> its pod template."""
    kinds = ("Deployment", "DaemonSet", "StatefulSet", "Job")
    return {
        f"{each['kind']}/{each['metadata']['name']}": each["spec"]["template"]
        for each in of_kind(found, *kinds)
    }


def containers(pod: Mapping[str, Any]) -> list[Object]:
    spec = pod["spec"]
    return [*spec.get("initContainers", ()), *spec["containers"]]


def check(found: Object) -> None:
    """Raises when an API server would refuse ``found``, or drop a field of it."""
    _check(json.dumps(found, sort_keys=True))


@cache
def _check(text: str) -> None:
    found = json.loads(text)
    schema = CRD_SCHEMAS / f"{found['kind']}.json"
    if schema.exists():
        _crd(schema).validate(found)
    else:
        kubernetes_validate.validate(found, kubernetes_validate.latest_version(), strict=True)


@cache
def _crd(file: Path) -> Any:
    return jsonschema_rs.validator_for(json.loads(file.read_text("utf-8")))
