"""Namespaces, PriorityClasses and PodDisruptionBudgets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucost.cluster.jobs import Namespace, PriorityClass
from gpucost.cluster.pods import DisruptionBudget
from gpucost.kube.parse.reading import Part, meta
from gpucost.kube.parse.selectors import label_selector

NEVER = "Never"
"""The preemptionPolicy of what preempts nobody; any other value is that of what does."""


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
    return PriorityClass(
        identity,
        value or 0,
        part.flag("globalDefault"),
        never_preempts=part.text("preemptionPolicy") == NEVER,
        flaws=tuple(part.flaws),
    )


def disruption_budget(found: Mapping[str, Any]) -> DisruptionBudget:
    """A PodDisruptionBudget of ``policy/v1``. One without a status allows nothing yet, as for kube-scheduler.

    Raises Unreadable for an object without a uid or a name.
    """
    part = Part(found)
    identity = meta(part, frozenset())
    status = part.part("status")
    return DisruptionBudget(
        identity,
        label_selector(part.part("spec"), "selector"),
        status.count("disruptionsAllowed"),
        frozenset(status.part("disruptedPods")),
        tuple(part.flaws),
    )
