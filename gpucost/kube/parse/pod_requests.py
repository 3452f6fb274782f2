"""The requests of a pod as the scheduler counts them: containers, init containers in their order, the pod as
a whole, overhead, and resizing (kubernetes v1.37, component-helpers/resource/helpers.go, PodRequests).

GPUs are requested by containers only. Requests of the whole pod (``spec.resources``, Kubernetes 1.34) are
cpu, memory and huge pages, all others there are ignored (IsSupportedPodLevelResource). A running pod can be
given more or less cpu and memory, of nothing else (pkg/apis/core/validation, ValidatePodResize): its status
never changes how many GPUs it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from gpucost.kube.parse.fields import ObjectPart

_OF_WHOLE_POD = ("cpu", "memory")
_RESIZED = ("cpu", "memory")
_ALLOCATED, _ACTUAL = "allocatedResources", "resources"
_STATUSES = ("containerStatuses", "initContainerStatuses")

Amounts: TypeAlias = dict[str, int]
ContainerAmounts: TypeAlias = Callable[[ObjectPart], Amounts]
"""What a container of a spec counts for."""


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
