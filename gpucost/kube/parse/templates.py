"""Parser of pod specs, of pods and in the templates of jobs and Kueue workloads: requests, and where they
fit.

Requests are those of a pod as the scheduler counts them: containers, init containers in their order, the pod
as a whole, overhead, and resizing (kubernetes v1.37, component-helpers/resource/helpers.go, PodRequests).

GPUs are requested by containers only. Requests of the whole pod (``spec.resources``, Kubernetes 1.34) are
cpu, memory and huge pages, all others there are ignored (IsSupportedPodLevelResource). A running pod can be
given more or less cpu and memory, of nothing else (pkg/apis/core/validation, ValidatePodResize): its status
never changes how many GPUs it holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TypeAlias
from weakref import WeakValueDictionary

from gpucost.cluster.objects.pods import (
    ContainerRequest,
    PodTemplate,
    SelectorRequirement,
    Toleration,
)
from gpucost.kube.parse.core_objects import NEVER
from gpucost.kube.parse.fields import ObjectPart, shared

_OF_WHOLE_POD = ("cpu", "memory")
_RESIZED = ("cpu", "memory")
_ALLOCATED, _ACTUAL = "allocatedResources", "resources"
_STATUSES = ("containerStatuses", "initContainerStatuses")

Amounts: TypeAlias = dict[str, int]
ContainerAmounts: TypeAlias = Callable[[ObjectPart], Amounts]
"""What a container of a spec counts for."""
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


def pod_requests(spec: ObjectPart, status: ObjectPart | None = None) -> Amounts:
    """By resource, without those of 0. ``status`` is that of a pod, None for a template.

    While a pod is resized, the largest counts of what it asks for, was allocated and has; not what it asks
    for where its node can never give that: else whoever may resize a pod could fill a node with a number.
    """
    total = _requests(spec, _asked)
    if status is not None and _is_resized(spec, status):
        is_infeasible = _is_infeasible(status)
        stated = _by_name(status)
        given = [
            _requests(spec, lambda one: _allocated(one, stated, is_infeasible)),
            _requests(spec, lambda one: _actuated(one, stated, is_infeasible)),
        ]
        given += [] if is_infeasible else [total]
        kept = {name: n for name, n in total.items() if name not in _RESIZED}
        total = kept | _most(given)
    if "resources" in spec:
        _override(total, spec.part("resources"), status)
    if "overhead" in spec:
        _add(total, spec.amounts("overhead"))
    return {resource: amount for resource, amount in total.items() if amount}


def _requests(spec: ObjectPart, asks: ContainerAmounts) -> Amounts:
    total: Amounts = {}
    for container in spec.parts("containers"):
        _add(total, asks(container))
    if "initContainers" in spec:
        total = _with_init_containers(total, spec.parts("initContainers"), asks)
    return total


def _with_init_containers(
    total: Amounts, init_containers: list[ObjectPart], asks: ContainerAmounts
) -> Amounts:
    """The larger, by resource, of what the containers need and what any step of the start needs.

    An init container that always restarts is a sidecar: it runs from its turn on, beside all that follows.
    """
    sidecars: Amounts = {}
    most: Amounts = {}
    for container in init_containers:
        asked = asks(container)
        if container.text("restartPolicy") == "Always":
            _add(sidecars, asked)
            continue
        # What a step does not request itself, sidecars hold in the end too.
        for resource, amount in asked.items():
            most[resource] = max(sidecars.get(resource, 0) + amount, most.get(resource, 0))
    _add(total, sidecars)
    for resource, amount in most.items():
        total[resource] = max(amount, total.get(resource, 0))
    return total


def _asked(container: ObjectPart) -> Amounts:
    """A limit without a request is the request: the API server defaults it in pods, but not in templates."""
    resources = container.part("resources")
    return {**resources.amounts("limits"), **resources.amounts("requests")}


def _override(total: Amounts, resources: ObjectPart, status: ObjectPart | None) -> None:
    """Requests of the whole pod take the place of its containers' (Kubernetes 1.34); its limits only count
    where no container has a request."""
    for resource, amount in resources.amounts("limits").items():
        if _is_of_whole_pod(resource):
            total.setdefault(resource, amount)
    asked = {key: n for key, n in resources.amounts("requests").items() if _is_of_whole_pod(key)}
    if asked and status is not None and _ACTUAL in status:
        given = [status.part(_ACTUAL).amounts("requests"), status.amounts(_ALLOCATED)]
        given += [] if _is_infeasible(status) else [asked]
        most = _most(given)
        asked = {key: most.get(key, amount) for key, amount in asked.items()}
    total.update(asked)


def _is_of_whole_pod(resource: str) -> bool:
    return resource in _OF_WHOLE_POD or resource.startswith("hugepages-")


def _is_resized(spec: ObjectPart, status: ObjectPart) -> bool:
    """Whether a container has, or was allocated, anything else than it asks for, or that may be so."""
    stated = _by_name(status)
    if not stated:
        return False
    return any(
        other != asked.raw(resource)
        for container in _containers(spec)
        if (one := stated.get(container.text("name"))) is not None
        for asked in (container.part("resources").part("requests"),)
        for given in (one.part(_ALLOCATED), one.part(_ACTUAL).part("requests"))
        for resource in _RESIZED
        if (other := given.raw(resource)) is not None
    )


def _containers(spec: ObjectPart) -> Iterator[ObjectPart]:
    yield from spec.parts("containers")
    yield from spec.parts("initContainers")


def _by_name(status: ObjectPart) -> Mapping[str, ObjectPart]:
    """What a pod's status says of its containers."""
    return {
        each.text("name"): each
        for key in _STATUSES
        if key in status
        for each in status.parts(key)
        if _ALLOCATED in each or _ACTUAL in each
    }


def _is_infeasible(status: ObjectPart) -> bool:
    return any(
        each.text("type") == "PodResizePending" and each.text("reason") == "Infeasible"
        for each in status.parts("conditions")
    )


def _allocated(container: ObjectPart, stated: Mapping[str, ObjectPart], is_infeasible: bool) -> Amounts:
    """What its kubelet has set aside for a container."""
    one = stated.get(container.text("name"))
    if one is not None and _ALLOCATED in one:
        return one.amounts(_ALLOCATED)
    return {} if is_infeasible else _asked(container)


def _actuated(container: ObjectPart, stated: Mapping[str, ObjectPart], is_infeasible: bool) -> Amounts:
    """What a container runs with."""
    one = stated.get(container.text("name"))
    has = one.part(_ACTUAL) if one is not None else None
    if has is not None and "requests" in has:
        return has.amounts("requests")
    return _allocated(container, stated, is_infeasible)


def _most(given: list[Amounts]) -> Amounts:
    """The largest amount of each resource that may be resized, where there is any."""
    names = {name for each in given for name in each if name in _RESIZED}
    return {name: max(each.get(name, 0) for each in given) for name in names}


def _add(total: Amounts, more: Mapping[str, int]) -> None:
    for resource, amount in more.items():
        total[resource] = total.get(resource, 0) + amount


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
