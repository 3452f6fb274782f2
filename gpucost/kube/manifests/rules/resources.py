"""Resources of containers and pods (pkg/apis/core/validation: validateResourceRequirements; helper)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction

from gpucost.cluster.objects.metadata import is_quantity, signed_quantity
from gpucost.kube.manifests.rules.names import (
    LABEL_RULE,
    LONGEST_LABEL,
    QUALIFIED_RULE,
    SET,
    is_dns_label,
    is_qualified,
)
from gpucost.kube.parse.fields import ObjectPart

_OF_CONTAINERS = frozenset(("cpu", "memory", "ephemeral-storage"))
_OF_PODS = frozenset(("cpu", "memory"))
_HUGE = "hugepages-"
_NATIVE = "kubernetes.io/"
_IN_QUOTA = "requests."
_NOT_STANDARD = (
    "a standard resource for containers (cpu, memory, ephemeral-storage), or a fully qualified name"
)
Amounts = Mapping[str, Fraction]
_Names = Callable[[str], str]
"""What is allowed, for an invalid resource name; empty for a valid one."""


def amounts(part: ObjectPart, key: str) -> dict[str, Fraction]:
    """Quantities by resource, negative ones too."""
    return {name: signed_quantity(value) for name, value in part.labels(key).items()}


def is_native(resource: str) -> bool:
    """Resources of Kubernetes itself: names without a domain, or with its own."""
    return "/" not in resource or _NATIVE in resource


def is_extended(resource: str) -> bool:
    """A device or the like, whose quantity is whole and whose request equals its limit."""
    return (
        not is_native(resource)
        and not resource.startswith(_IN_QUOTA)
        and is_qualified(f"{_IN_QUOTA}{resource}")
    )


def check_resources(part: ObjectPart, claims: Iterable[str]) -> None:
    """``resources`` of a container; ``claims`` are the names of the pod's resource claims."""
    resources = part.part("resources")
    _check_amounts(resources, _container_resource)
    _check_claims(resources, frozenset(claims))


def check_overhead(part: ObjectPart) -> None:
    """Is checked as limits are."""
    found = amounts(part, "overhead")
    for name, amount in found.items():
        _check_amount(part, "overhead", name, amount, _container_resource)
    if _asks_only_huge_pages(found):
        part.flaw("overhead", list(found), "cpu or memory beside huge pages")


def check_pod_resources(spec: ObjectPart) -> None:
    """The resources of the pod as a whole, beside those of its containers."""
    if "resources" not in spec:
        return
    resources = spec.part("resources")
    if resources.raw("claims") is not None:
        resources.flaw("claims", SET, "none: claims are those of containers")
    _check_amounts(resources, _pod_resource)
    for key in ("requests", "limits"):
        own, asked = amounts(resources, key), _asked(spec, key)
        for name in own.keys() & asked.keys():
            if asked[name] > own[name] and (key == "requests" or name.startswith(_HUGE)):
                allowed = f"greater than or equal to the {key} of its containers together"
                resources.flaw(f"{key}[{name}]", _written(resources, key, name), allowed)
    limits = amounts(resources, "limits")
    for container in spec.parts("containers"):
        inner = container.part("resources")
        for name, amount in amounts(inner, "limits").items():
            if name in limits and amount > limits[name]:
                most = _written(resources, "limits", name)[:40]
                found = _written(inner, "limits", name)
                inner.flaw(f"limits[{name}]", found, f"at most the pod's limit of {most}")


def _written(resources: ObjectPart, key: str, name: str) -> str:
    """The text of one quantity that ``amounts`` has; to format all of them for each would take minutes."""
    return str(resources.raw(key)[name])


def _asked(spec: ObjectPart, key: str) -> dict[str, Fraction]:
    """The requests of all containers, or of the init container that needs most with the sidecars before it
    (component-helpers v0.36.3, resource/helpers.go: AggregateContainerRequests)."""
    total: dict[str, Fraction] = {}
    for container in spec.parts("containers"):
        _add(total, amounts(container.part("resources"), key))
    sidecars: dict[str, Fraction] = {}
    most: dict[str, Fraction] = {}
    for container in spec.parts("initContainers"):
        own = amounts(container.part("resources"), key)
        if container.text("restartPolicy") == "Always":
            _add(total, own)
            _add(sidecars, own)
            own = dict(sidecars)
        else:
            _add(own, sidecars)
        for name, amount in own.items():
            most[name] = max(amount, most.get(name, amount))
    return {name: max(total.get(name, Fraction(0)), most.get(name, Fraction(0))) for name in total | most}


def _add(into: dict[str, Fraction], more: Amounts) -> None:
    for name, amount in more.items():
        into[name] = into.get(name, Fraction(0)) + amount


def _check_amounts(resources: ObjectPart, is_of: _Names) -> None:
    limits, requests = amounts(resources, "limits"), amounts(resources, "requests")
    for key, found in (("limits", limits), ("requests", requests)):
        for name, amount in found.items():
            _check_amount(resources, key, name, amount, is_of)
    for name, amount in requests.items():
        _check_limit(resources, name, amount, limits.get(name))
    if _asks_only_huge_pages(limits | requests):
        resources.flaw("", list(limits | requests), "cpu or memory beside huge pages")


def _check_amount(resources: ObjectPart, key: str, name: str, amount: Fraction, is_of: _Names) -> None:
    where, value = f"{key}[{name[:253]}]", _written(resources, key, name)
    allowed = is_of(name)
    if allowed:
        resources.flaw(where, name, allowed)
    if amount < 0:
        resources.flaw(where, value, "greater than or equal to 0")
    elif is_extended(name) and -(-amount * 1000 // 1) % 1000:
        resources.flaw(where, value, "an integer: devices are not divided")
    elif name.startswith(_HUGE):
        page = name.removeprefix(_HUGE)
        size = signed_quantity(page) if is_quantity(page) else None
        if size is None or size <= 0 or amount % size or amount <= 0:
            resources.flaw(where, value, f"a positive integer multiple of {name[:64]}")


def _check_limit(resources: ObjectPart, name: str, amount: Fraction, limit: Fraction | None) -> None:
    is_shared = is_native(name) and not name.startswith(_HUGE)
    value = _written(resources, "requests", name)
    if limit is None:
        if not is_shared:
            allowed = f"the same as its request, {value[:40]} (limit must be set for it)"
            resources.flaw(f"limits[{name}]", None, allowed)
        return
    most = _written(resources, "limits", name)[:40]
    if not is_shared and amount != limit:
        resources.flaw(f"requests[{name}]", value, f"equal to {name[:64]} limit of {most}")
    elif amount > limit:
        resources.flaw(f"requests[{name}]", value, f"less than or equal to {name[:64]} limit of {most}")


def _asks_only_huge_pages(found: Amounts) -> bool:
    return any(name.startswith(_HUGE) for name in found) and not _OF_PODS.intersection(found)


def _container_resource(name: str) -> str:
    """What is allowed, for a name that is not."""
    if not is_qualified(name):
        return QUALIFIED_RULE
    if "/" not in name:
        return "" if name in _OF_CONTAINERS or name.startswith(_HUGE) else _NOT_STANDARD
    if is_native(name) or is_extended(name):
        return ""
    return f"a domain of at most {LONGEST_LABEL - len(_IN_QUOTA)} and a name, not beginning with {_IN_QUOTA}"


def _pod_resource(name: str) -> str:
    if not is_qualified(name):
        return QUALIFIED_RULE
    return "" if name in _OF_PODS or name.startswith(_HUGE) else "supported values: cpu, hugepages-, memory"


def _check_claims(resources: ObjectPart, of_pod: frozenset[str]) -> None:
    seen: set[str] = set()
    in_parts: set[str] = set()
    for index, claim in enumerate(resources.parts("claims")):
        name, request = claim.text("name"), claim.text("request")
        if not name:
            claim.flaw("name", None, "the name of one of the pod's resource claims")
            continue
        if request and not is_dns_label(request):
            claim.flaw("request", request, LABEL_RULE)
        key = f"{name}/{request}" if request else name
        is_whole = not request and name in in_parts
        if name in seen or key in seen or is_whole:
            resources.flaw(f"claims[{index}]", key, "each claim once")
        seen.add(key)
        if request:
            in_parts.add(name)
        if name not in of_pod:
            allowed = ", ".join(sorted(of_pod)[:10]) or "names in spec.resourceClaims, which is empty"
            claim.flaw("name", name, allowed)
