"""Settings of the advisor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AutoscaledPool:
    """Nodes that an autoscaler adds when they are needed.

    ``labels`` and ``taints`` (``key=value:effect``) are what its nodes carry, ``allocatable`` what each has,
    as Kubernetes quantities; at most ``most`` nodes in all, new ones ready after ``minutes``.
    """

    name: str
    labels: Mapping[str, str]
    allocatable: Mapping[str, str]
    most: int
    minutes: float
    taints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AdvisorSettings:
    """``horizon_hours`` and ``samples`` are of the simulation of the wait, 0 samples for none; ``pools``
    those that scale. ``budget_s`` is what ``AdvisorContext.is_late`` allows for waits and suggestions, in
    seconds, for the words of an answer; None without a limit."""

    horizon_hours: float = 168.0
    samples: int = 40
    most_suggestions: int = 5
    pools: tuple[AutoscaledPool, ...] = ()
    budget_s: float | None = None
