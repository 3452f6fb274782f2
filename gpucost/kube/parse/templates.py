"""Parser of pod specs, of pods and in the templates of jobs and Kueue workloads: requests, and where they
fit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from weakref import WeakValueDictionary

from gpucost.cluster.objects.pods import (
    ContainerRequest,
    PodTemplate,
    SelectorRequirement,
    Toleration,
)
from gpucost.kube.parse.core_objects import NEVER
from gpucost.kube.parse.fields import ObjectPart, shared
from gpucost.kube.parse.pod_requests import pod_requests

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_NOWHERE = (SelectorRequirement("", "In"),)
"""A term without requirements matches no node (kubernetes, NodeSelectorTerm), like In without values."""

_LONGEST_SHARED = 256

_PREFIX = "kueue.x-k8s.io/podset-"
_REQUIRED_TOPOLOGY, _PREFERRED_TOPOLOGY = f"{_PREFIX}required-topology", f"{_PREFIX}preferred-topology"
_UNCONSTRAINED_TOPOLOGY, _GROUP = f"{_PREFIX}unconstrained-topology", f"{_PREFIX}group-name"
_SLICE, _SLICE_SIZE = f"{_PREFIX}slice-required-topology", f"{_PREFIX}slice-size"
TOPOLOGY_ANNOTATIONS = (
    *(_REQUIRED_TOPOLOGY, _PREFERRED_TOPOLOGY, _UNCONSTRAINED_TOPOLOGY),
    *(_GROUP, _SLICE, _SLICE_SIZE),
)
"""Annotations of pod templates, and of pods without a job."""
_TRUTH = {**dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True)}
_TRUTH |= dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False)
"""Text as Go's strconv.ParseBool reads it."""
_SIZE = re.compile("[0-9]{1,9}")
_NO_TOPOLOGY: Mapping[str, str] = {}

Terms = tuple[tuple[SelectorRequirement, ...], ...]
_Key = tuple[
    tuple[tuple[str, int], ...],
    tuple[tuple[str, str], ...],
    Terms,
    tuple[Toleration, ...],
    str,
    str,
    tuple[str, ...],
    bool,
    bool,
    tuple[str, ...],
]
_TEMPLATES: WeakValueDictionary[_Key, PodTemplate] = WeakValueDictionary()
"""The cache keeps no template alive: a tenant could create templates of a megabyte again and again."""


def pod_template(spec: ObjectPart, status: ObjectPart | None = None) -> PodTemplate:
    """The requests and constraints of a pod spec, with its ``status`` if it is that of a pod. Equal templates
    are one object for as long as it is used.

    Requests of 0 are left out: they equal no request.
    """
    affinity = spec.part("affinity")
    key = (
        tuple(sorted(pod_requests(spec, status).items())),
        tuple(sorted(spec.labels("nodeSelector").items())),
        _terms(affinity.part("nodeAffinity").part(_REQUIRED)) if affinity else (),
        tolerations(spec),
        spec.text("priorityClassName"),
        spec.text("schedulerName"),
        _claims(spec),
        _depends_on_others(spec, affinity),
        spec.text("preemptionPolicy") == NEVER,
        _together(affinity) if affinity else (),
    )
    found = _TEMPLATES.get(key)
    if found is None:
        found = _TEMPLATES[key] = _template(key)
    return found


def container_asks(spec: ObjectPart) -> tuple[ContainerRequest, ...]:
    """The requests of the containers that have a name; init containers are left out."""
    return tuple(
        ContainerRequest(name, resources.amounts("requests"), resources.amounts("limits"))
        for each in spec.parts("containers")
        if (name := each.text("name"))
        for resources in (each.part("resources"),)
    )


def topology_request(holder: ObjectPart) -> Mapping[str, str]:
    """What a pod template (or a pod) asks of Kueue's topology-aware scheduling, as in ``PodSet.topology``.

    The first of required, preferred and unconstrained counts; a group only with one of the first two, and
    slices only with their size (kueue v0.19.2, pkg/controller/jobframework/tas.go).
    """
    if "metadata" not in holder or "annotations" not in holder.part("metadata"):
        return _NO_TOPOLOGY
    said = holder.part("metadata").part("annotations")
    read: dict[str, str] = {}
    if _REQUIRED_TOPOLOGY in said:
        read["required"] = said.text(_REQUIRED_TOPOLOGY)
    elif _PREFERRED_TOPOLOGY in said:
        read["preferred"] = said.text(_PREFERRED_TOPOLOGY)
    elif _UNCONSTRAINED_TOPOLOGY in said:
        found = _TRUTH.get(said.text(_UNCONSTRAINED_TOPOLOGY))
        if found is None:
            said.flaw(_UNCONSTRAINED_TOPOLOGY, said.raw(_UNCONSTRAINED_TOPOLOGY), "true or false")
        elif found:
            read["unconstrained"] = "true"
    if read and "unconstrained" not in read and _GROUP in said:
        read["group"] = said.text(_GROUP)
    if _SLICE in said and _SLICE_SIZE in said:
        size = said.text(_SLICE_SIZE)
        if _SIZE.fullmatch(size) and int(size):
            read |= {"slice": said.text(_SLICE), "slice_size": str(int(size))}
        else:
            said.flaw(_SLICE_SIZE, size, "a whole number from 1 to 999,999,999")
    return read or _NO_TOPOLOGY


def _template(key: _Key) -> PodTemplate:
    return PodTemplate(shared(dict(key[0])), dict(key[1]), *key[2:])


def _terms(required: ObjectPart) -> Terms:
    return tuple(
        (*_requirements(term, "matchExpressions"), *_requirements(term, "matchFields")) or _NOWHERE
        for term in required.parts("nodeSelectorTerms")
    )


def _requirements(term: ObjectPart, key: str) -> list[SelectorRequirement]:
    of_field = key == "matchFields"
    return [
        SelectorRequirement(each.text("key"), _operator(each), each.texts("values"), of_field)
        for each in term.parts(key)
    ]


def _operator(requirement: ObjectPart) -> str:
    operator = requirement.text("operator")
    if operator not in _OPERATORS:
        requirement.flaw("operator", operator, ", ".join(_OPERATORS))
    return operator


def tolerations(spec: ObjectPart) -> tuple[Toleration, ...]:
    """Tolerations with the operators Equal and Exists; others are flaws, and tolerate nothing."""
    read = []
    for each in spec.parts("tolerations"):
        operator = each.text("operator", "Equal") or "Equal"
        if operator not in ("Equal", "Exists"):
            each.flaw("operator", operator, "Equal or Exists")
            continue
        key, value, effect = each.text("key"), each.text("value"), each.text("effect")
        is_short = len(key) + len(value) + len(effect) <= _LONGEST_SHARED
        make = _toleration if is_short else Toleration
        read.append(make(key, operator == "Exists", value, effect))
    return tuple(read)


@lru_cache(maxsize=4096)
def _toleration(key: str, exists: bool, value: str, effect: str) -> Toleration:
    return Toleration(key, exists, value, effect)


def _claims(spec: ObjectPart) -> tuple[str, ...]:
    names = (
        each.text("resourceClaimName") or each.text("resourceClaimTemplateName")
        for each in spec.parts("resourceClaims")
    )
    return tuple(name for name in names if name)


def _together(affinity: ObjectPart) -> tuple[str, ...]:
    terms = affinity.part("podAffinity").parts(_REQUIRED)
    return tuple(sorted({each.text("topologyKey") for each in terms} - {""}))


def _depends_on_others(spec: ObjectPart, affinity: ObjectPart) -> bool:
    if affinity and any(affinity.part(key).parts(_REQUIRED) for key in ("podAffinity", "podAntiAffinity")):
        return True
    constraints = spec.parts("topologySpreadConstraints")
    return any(each.text("whenUnsatisfiable") == "DoNotSchedule" for each in constraints)
