"""Volcano's objects (volcano v1.15.1), and the PodGroups of other gang schedulers in the same form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpucost.cluster.objects.metadata import (
    Conditions,
    FieldFlaw,
    ObjectMeta,
    Resources,
)


class GroupKind(StrEnum):
    """The scheduler that a PodGroup belongs to."""

    VOLCANO = "volcano"
    NATIVE = "native"
    """scheduling.k8s.io, Kubernetes 1.35 and later."""
    COSCHEDULING = "coscheduling"
    """scheduling.x-k8s.io, of the scheduler-plugins project."""


WAITING_PHASES = frozenset({"", "Pending", "Inqueue"})
"""Phases of a PodGroup of Volcano that has not started: new, in line, admitted (its pods may be made
already)."""


@dataclass(frozen=True, slots=True)
class PodGroup:
    """A gang as its scheduler sees it. Phases: Pending, Inqueue, Running, Unknown, Completed; others' own.

    Trust ``phase`` and counts of pods: Volcano leaves Unschedulable True after it adds Scheduled.
    """

    meta: ObjectMeta
    group_kind: GroupKind
    min_member: int = 1
    min_task_member: Mapping[str, int] = field(default_factory=dict)
    min_resources: Resources | None = None
    queue: str = ""
    priority_class: str = ""
    phase: str = ""
    running: int | None = None
    succeeded: int | None = None
    failed: int | None = None
    conditions: Conditions = field(default_factory=dict)
    topology: Mapping[str, str] = field(default_factory=dict)
    flaws: tuple[FieldFlaw, ...] = ()
    unread: tuple[str, ...] = ()
    """Fields that decide how its pods are placed; only their presence is known."""


@dataclass(frozen=True, slots=True)
class VolcanoQueue:
    """Amounts are None when not set: no hard cap, nothing deserved, nothing guaranteed.

    ``allocated`` is what the scheduler wrote at the end of its last session, None when it never did. Counts
    of PodGroups in its status are no longer written, and not read: they are counted from the PodGroups.
    """

    meta: ObjectMeta
    weight: int = 1
    capability: Resources | None = None
    deserved: Resources | None = None
    guarantee: Resources | None = None
    is_reclaimable: bool = True
    parent: str = ""
    priority: int = 0
    dequeue_strategy: str = ""
    state: str = ""
    allocated: Resources | None = None
    flaws: tuple[FieldFlaw, ...] = ()

    @property
    def name(self) -> str:
        return self.meta.name


@dataclass(frozen=True, slots=True)
class HyperNode:
    """A topology domain of Volcano. ``members`` are (type, how, value): type Node or HyperNode; how
    ``exact``, ``regex`` or ``label`` (``key=value``, comma-separated)."""

    meta: ObjectMeta
    tier: int
    tier_name: str = ""
    members: tuple[tuple[str, str, str], ...] = ()
    node_count: int | None = None
    flaws: tuple[FieldFlaw, ...] = ()
