"""What pods are told of themselves, in variables and files (pkg/apis/core/validation:
validateObjectFieldSelector, validateContainerResourceFieldSelector)."""

from __future__ import annotations

import re

from gpucost.cluster.quantities import signed_quantity
from gpucost.kube.manifests.rules.names import QUALIFIED_RULE, is_qualified
from gpucost.kube.parse.reading import Part

_IN_FILES = (
    *("metadata.name", "metadata.namespace", "metadata.labels", "metadata.annotations", "metadata.uid"),
)
_IN_VARIABLES = (
    *("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName"),
    *("status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"),
)
_RESOURCES = tuple(
    f"{which}.{name}" for which in ("limits", "requests") for name in ("cpu", "memory", "ephemeral-storage")
)
_HUGE = ("limits.hugepages-", "requests.hugepages-")
_ONE = re.compile(r"(metadata\.(?:labels|annotations))\['(.*)'\]")
_SIZES = frozenset(
    signed_quantity(f"1{suffix}") for suffix in ("", *"kMGTPE", *(f"{each}i" for each in "KMGTPE"))
)
_CPU = frozenset((signed_quantity("1"), signed_quantity("1m")))


def check_field(reference: Part, in_volume: bool = False) -> None:
    """A field of the pod."""
    version, path = reference.text("apiVersion", "v1") or "v1", reference.text("fieldPath")
    allowed = _IN_FILES if in_volume else _IN_VARIABLES
    if version != "v1":
        reference.flaw("apiVersion", version, "v1")
    elif not path:
        reference.flaw("fieldPath", None, "a field of the pod")
    elif one := _ONE.fullmatch(path):
        key = one[2].lower() if one[1].endswith("annotations") else one[2]
        if not is_qualified(key):
            reference.flaw("fieldPath", path, QUALIFIED_RULE)
    elif path not in allowed:
        reference.flaw("fieldPath", path, f"supported values: {', '.join(allowed)}")


def check_resource_field(reference: Part, in_volume: bool = False) -> None:
    """A resource of a container."""
    resource, divisor = reference.text("resource"), reference.text("divisor")
    if in_volume and not reference.text("containerName"):
        reference.flaw("containerName", None, "the name of a container")
    elif resource not in _RESOURCES and not resource.startswith(_HUGE):
        reference.flaw("resource", resource or None, f"supported values: {', '.join(_RESOURCES)}")
    if divisor and (amount := signed_quantity(divisor)):
        right = _CPU if resource.endswith(".cpu") else _SIZES
        if amount not in right and (resource in _RESOURCES or resource.startswith(_HUGE)):
            allowed = (
                "1m or 1" if right is _CPU else "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi or 1Ei"
            )
            reference.flaw("divisor", divisor, allowed)
