"""Nodes: what they have, advertise and should advertise, and what a price or a placement depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpucost.cluster.objects import Flaw, Labels, Meta, Resources
from gpucost.cluster.pods import Toleration


@dataclass(frozen=True, slots=True)
class Taint:
    """``effect`` is NoSchedule, PreferNoSchedule or NoExecute."""

    key: str
    value: str
    effect: str

    def tolerated_by(self, tolerations: tuple[Toleration, ...]) -> bool:
        """Whether one of ``tolerations`` matches (kubernetes, component-helpers, ToleratesTaint)."""
        return any(
            (not each.effect or each.effect == self.effect)
            and (not each.key or each.key == self.key)
            and (each.exists or (bool(each.key) and each.value == self.value))
            for each in tolerations
        )


@dataclass(frozen=True, slots=True)
class Node:
    """A node. ``capacity`` and ``allocatable`` are all of its resources; the rest is about its GPUs.

    ``boards`` is how many physical GPUs its labels claim, None when nothing says. ``expected`` are GPU units
    by resource that hardware and sharing settings should give, empty when nothing says. ``replicas`` are
    time-slicing or MPS replicas by resource, where they are shared. ``is_ready`` is the Ready condition,
    ``is_cordoned`` spec.unschedulable. Times in ms.
    """

    meta: Meta
    capacity: Resources
    allocatable: Resources
    is_ready: bool
    ready_since_ms: int | None
    is_cordoned: bool
    product: str = ""
    instance_type: str = ""
    capacity_type: str = ""
    region: str = ""
    zone: str = ""
    pool: str = ""
    boards: int | None = None
    expected: Mapping[str, int] = field(default_factory=dict)
    replicas: Mapping[str, int] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    flaws: tuple[Flaw, ...] = ()

    @property
    def labels(self) -> Labels:
        return self.meta.labels

    @property
    def is_schedulable(self) -> bool:
        """Whether new pods may be put on it at all."""
        return self.is_ready and not self.is_cordoned
