"""What the API server would refuse of a manifest, and what a person must have meant otherwise.

Rules of names and resources are those of Kubernetes (apimachinery, pkg/util/validation; kubernetes,
pkg/apis/core/validation: extended resources are whole, and their request is their limit).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gpucost.cluster.objects import Flaw
from gpucost.cluster.pods import PodSet
from gpucost.cluster.quantities import parse_quantity
from gpucost.domain.configfile import is_name
from gpucost.domain.errors import InputError, shorten
from gpucost.domain.jobs import JobKind
from gpucost.kube.manifests.fields import (
    CONTAINER,
    METADATA,
    OBJECT,
    POD_SPEC,
    RESOURCES,
    SPECS,
    TEMPLATE_AT,
    Fields,
)

MOST_PODS = 1_000_000
MOST_POD_SETS = 1_000
MOST_FLAWS = 20
_LABEL = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_DNS_LABEL = re.compile(_LABEL)
_PREFIX = re.compile("[a-z0-9][-a-z0-9.]*")
_VALUE = re.compile("([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_NAMES_A_SET = re.compile("[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LONGEST_NAME = 253
_NAME_RULE = (
    f"lower-case letters, digits, - and . with a letter or digit at both ends, at most {_LONGEST_NAME}"
)
_LABEL_RULE = "lower-case letters, digits and -, with a letter or digit at both ends, at most 63"
_VALUE_RULE = "letters, digits, -, _ and . with a letter or digit at both ends, at most 63"
_SHOWN_RULE = "1 to 253 characters, no control characters, no blanks at the ends"
_COUNTS = frozenset(
    ("replicas", "parallelism", "minAvailable", "minReplicas", "numOfHosts", "numNodes", "size", "minMember")
)
_SHOWN = frozenset(
    ("groupName", "priorityClass", "priorityClassName", "queue", "resourceClaimName", "schedulerName")
)
"""Fields whose text is shown in answers."""
_BY_NAME = frozenset(("annotations", "labels", "limits", "matchLabels", "nodeSelector", "requests"))
_TEMPLATES = frozenset(("leaderTemplate", "submitterPodTemplate", "template", "workerTemplate"))
_POD_SETS = frozenset(
    {
        *("replicatedJobs", "tasks", "workerGroupSpecs", "jaxReplicaSpecs", "mpiReplicaSpecs"),
        *("paddleReplicaSpecs", "pytorchReplicaSpecs", "tfReplicaSpecs", "xgbReplicaSpecs"),
    }
)
_WITH_POD_SETS = ("rayClusterSpec", "rayClusterConfig")
_PATCHES = frozenset(("podSpecOverrides", "podTemplateOverrides", "runtimePatches", "status"))
_INNER = frozenset(("containers", "replicatedJobs", "template"))


class Found(NamedTuple):
    """A mapping in a document, and the way to it."""

    path: str
    value: dict[str, Any]


def below(document: Mapping[str, Any]) -> Iterator[Found]:
    """Every mapping but those in patches of other objects and in the status, the document first."""
    waiting: list[tuple[str, Any]] = [("", dict(document))]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            yield Found(path, value)
            inside = [(_at(path, key), each) for key, each in value.items() if key not in _PATCHES]
        else:
            inside = [(f"{path}[{index}]", each) for index, each in enumerate(value)]
        waiting += [each for each in reversed(inside) if isinstance(each[1], (dict, list))]


def pod_templates(document: Mapping[str, Any]) -> list[Found]:
    """What has a pod spec with containers: pod templates, and pods themselves."""
    found = []
    for each in below(document):
        spec = each.value.get("spec")
        if isinstance(spec, dict) and "containers" in spec:
            found.append(each)
    return found


def flaws_of_document(document: Mapping[str, Any], kind: JobKind) -> list[Flaw]:
    """What is wrong, at most ``MOST_FLAWS``, the object's name first."""
    found: list[Flaw] = []
    for each in _flaws(document, kind):
        found.append(each)
        if len(found) == MOST_FLAWS:
            break
    return found


def too_many(document: Mapping[str, Any]) -> list[Flaw]:
    """Lists of pod sets too long to look at more closely."""
    spec = document.get("spec")
    own = spec if isinstance(spec, dict) else {}
    inside = [("spec", own), *((f"spec.{key}", own[key]) for key in _WITH_POD_SETS if key in own)]
    for path, holder in inside:
        for key, value in holder.items() if isinstance(holder, dict) else ():
            is_long = isinstance(value, (dict, list)) and len(value) > MOST_POD_SETS
            if is_long and key in _POD_SETS:
                return [_too_many(f"{path}.{key}", len(value))]
    return []


def _too_many(path: str, count: int) -> Flaw:
    return Flaw(path, f"{count:,} pod sets", f"at most {MOST_POD_SETS:,} pod sets in one job")


def flaws_of_pod_sets(kind: JobKind, pod_sets: tuple[PodSet, ...], templates: int) -> Iterator[Flaw]:
    """``templates`` is how many pod templates with containers the manifest has."""
    at = TEMPLATE_AT[kind]
    if len(pod_sets) > MOST_POD_SETS:
        yield _too_many(at, len(pod_sets))
        return
    needed = 1 if kind is JobKind.LEADER_WORKER_SET else len(pod_sets)
    if templates < max(needed, 1):
        value = f"{templates} of {needed} with containers" if needed > 1 else "missing"
        yield Flaw(at, value, "a pod template with containers for each")
    pods = sum(each.count for each in pod_sets)
    if pods > MOST_PODS:
        yield Flaw("spec", f"{pods:,} pods", f"at most {MOST_PODS:,} pods in one job")
    names = [each.name for each in pod_sets]
    for name in dict.fromkeys(names):
        if not _NAMES_A_SET.fullmatch(name):
            yield _flaw(f"{at} (a name in it)", name, _VALUE_RULE)
    if len(set(names)) < len(names):
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        yield _flaw(f"{at} (a name in it)", twice, "each name once")


def _flaws(document: Mapping[str, Any], kind: JobKind) -> Iterator[Flaw]:
    yield from _misspelt(OBJECT, "", document)
    yield from _metadata(document.get("metadata"))
    spec = document.get("spec")
    if not isinstance(spec, dict):
        yield _flaw("spec", spec, "an object")
        return
    yield from _misspelt(SPECS[kind], "spec", spec)
    for each in below(document):
        yield from _plain(each)
        inner = each.value.get("spec")
        if isinstance(inner, dict) and "containers" in inner:
            yield from _pod_spec(Found(_at(each.path, "spec"), inner))
        for key in _TEMPLATES.intersection(each.value):
            yield from _without_containers(_at(each.path, key), each.value[key])


def _metadata(found: object) -> Iterator[Flaw]:
    if not isinstance(found, dict):
        yield _flaw("metadata", found, "an object with a name")
        return
    yield from _misspelt(METADATA, "metadata", found)
    name, prefix, namespace = found.get("name"), found.get("generateName"), found.get("namespace")
    if name is None and prefix is None:
        yield Flaw("metadata.name", "missing", "a name, or generateName")
    elif name is not None and not _is(_SUBDOMAIN, name, _LONGEST_NAME):
        yield _flaw("metadata.name", name, _NAME_RULE)
    elif name is None and not _is(_PREFIX, prefix, _LONGEST_NAME - 5):
        yield _flaw("metadata.generateName", prefix, _NAME_RULE)
    if namespace is not None and not _is(_DNS_LABEL, namespace, 63):
        yield _flaw("metadata.namespace", namespace, _LABEL_RULE)
    labels = found.get("labels")
    for key, value in labels.items() if isinstance(labels, dict) else ():
        if isinstance(value, str) and not _VALUE.fullmatch(value):
            yield _flaw(f"metadata.labels[{shorten(key, 64)[1:-1]}]", value, _VALUE_RULE)


def _plain(found: Found) -> Iterator[Flaw]:
    """Counts that nobody means, and text that is no name."""
    for key, value in found.value.items():
        if not is_name(key):
            yield _flaw(found.path or "(top level)", key, f"keys of {_SHOWN_RULE}")
        elif key in _COUNTS and type(value) is int and value > MOST_PODS:
            yield _flaw(_at(found.path, key), value, f"at most {MOST_PODS:,}")
        elif key in _SHOWN and isinstance(value, str) and value and not is_name(value):
            yield _flaw(_at(found.path, key), value, _SHOWN_RULE)


def _pod_spec(spec: Found) -> Iterator[Flaw]:
    yield from _misspelt(POD_SPEC, spec.path, spec.value)
    selector = spec.value.get("nodeSelector")
    for key, value in selector.items() if isinstance(selector, dict) else ():
        if isinstance(value, str) and not _VALUE.fullmatch(value):
            yield _flaw(f"{spec.path}.nodeSelector[{shorten(key, 64)[1:-1]}]", value, _VALUE_RULE)
    for key in ("containers", "initContainers"):
        containers = spec.value.get(key)
        if key == "containers" and not containers:
            yield _flaw(f"{spec.path}.{key}", containers, "at least one container")
        for index, each in enumerate(containers if isinstance(containers, list) else ()):
            if isinstance(each, dict):
                yield from _container(Found(f"{spec.path}.{key}[{index}]", each))


def _container(found: Found) -> Iterator[Flaw]:
    yield from _misspelt(CONTAINER, found.path, found.value)
    resources = found.value.get("resources")
    if not isinstance(resources, dict):
        return
    path = f"{found.path}.resources"
    yield from _misspelt(RESOURCES, path, resources)
    requests, limits = (each if isinstance(each := resources.get(key), dict) else {} for key in _AMOUNTS)
    for resource in dict.fromkeys((*requests, *limits)):
        yield from _resource(path, resource, requests.get(resource), limits.get(resource))


_AMOUNTS = ("requests", "limits")


def _resource(path: str, resource: str, request: object, limit: object) -> Iterator[Flaw]:
    """Of one container. What is no quantity is refused by the parser."""
    asked, most = _amount(request), _amount(limit)
    name = resource[:_LONGEST_NAME]
    if not _is_extended(resource):
        if asked is not None and most is not None and asked > most:
            yield _flaw(f"{path}.requests[{name}]", request, f"at most its limit, {shorten(limit, 40)}")
        return
    for key, amount, value in (("requests", asked, request), ("limits", most, limit)):
        if amount is not None and amount.denominator != 1:
            yield _flaw(f"{path}.{key}[{name}]", value, "a whole number: devices are not divided")
            return
    if asked is not None and limit is None:
        yield Flaw(f"{path}.limits[{name}]", "missing", f"the same as its request, {shorten(request, 40)}")
    elif asked is not None and most is not None and asked != most:
        yield _flaw(f"{path}.requests[{name}]", request, f"the same as its limit, {shorten(limit, 40)}")


def _is_extended(resource: str) -> bool:
    domain, slash, _ = resource.partition("/")
    return bool(slash) and not domain.endswith("kubernetes.io")


def _amount(value: object) -> Any:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    text = value if isinstance(value, str) else shorten(value)
    try:
        return parse_quantity(text)
    except InputError:
        return None


def _without_containers(path: str, template: object) -> Iterator[Flaw]:
    spec = template.get("spec") if isinstance(template, dict) else None
    if isinstance(spec, dict) and not _INNER.intersection(spec):
        yield from _misspelt(POD_SPEC, f"{path}.spec", spec)
        yield Flaw(f"{path}.spec.containers", "missing", "at least one container")


def _misspelt(fields: Fields, path: str, value: Mapping[str, Any]) -> Iterator[Flaw]:
    for key, close in fields.misspelt(value):
        yield Flaw(_at(path, key), "unknown field", f"{close} (did you mean this?)")


def _at(path: str, key: str) -> str:
    if path.rpartition(".")[2] in _BY_NAME:
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def _is(pattern: re.Pattern[str], value: object, longest: int) -> bool:
    return isinstance(value, str) and len(value) <= longest and pattern.fullmatch(value) is not None


def _flaw(field: str, value: object, allowed: str) -> Flaw:
    return Flaw(field, "missing" if value is None else shorten(value), allowed)
