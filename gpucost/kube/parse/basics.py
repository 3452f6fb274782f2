"""Namespaces and PriorityClasses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucost.cluster.jobs import Namespace, PriorityClass
from gpucost.kube.parse.reading import Part, meta


def namespace(found: Mapping[str, Any]) -> Namespace:
    """Raises Unreadable for an object without a uid or a name."""
    part = Part(found)
    return Namespace(meta(part), tuple(part.flaws))


def priority_class(found: Mapping[str, Any]) -> PriorityClass:
    """A PriorityClass of ``scheduling.k8s.io/v1``; 0 with a flaw where its value makes no sense.

    Raises Unreadable for an object without a uid or a name.
    """
    part = Part(found)
    identity = meta(part, frozenset())
    value = part.whole("value")
    if value is None and "value" not in part:
        part.flaw("value", None, "a whole number")
    return PriorityClass(identity, value or 0, part.flag("globalDefault"), flaws=tuple(part.flaws))
