"""Volcano's objects (volcano v1.15.1), and the groups of pods of other gang schedulers in the same form."""

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


class DisruptionMode(StrEnum):
    """How much of a native group is preempted at once.

    Kubernetes 1.36 wrote ``Pod`` and ``PodGroup``, 1.37 ``single`` and ``all`` (kubernetes/api, scheduling
    v1alpha2 and v1beta1 types.go).
    """

    SINGLE = "single"
    """Its pods, or the groups in it, one by one: also where nothing is written."""
    ALL = "all"


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
    parent: str = ""
    """The CompositePodGroup of its namespace that it is a part of."""
    disruption: DisruptionMode = DisruptionMode.SINGLE
    never_preempts: bool = False
    """``preemptionPolicy: Never`` of its own: its PriorityClass may have it as well."""


@dataclass(frozen=True, slots=True)
class CompositePodGroup:
    """A group of groups (scheduling.k8s.io, Kubernetes 1.37): PodGroups, or further ones of its kind, name it
    as their parent.

    ``min_groups`` of the groups in it must find nodes at once; None where these are scheduled independently.
    """

    meta: ObjectMeta
    min_groups: int | None = None
    parent: str = ""
    disruption: DisruptionMode = DisruptionMode.SINGLE
    never_preempts: bool = False
    priority_class: str = ""
    conditions: Conditions = field(default_factory=dict)
    topology: Mapping[str, str] = field(default_factory=dict)
    flaws: tuple[FieldFlaw, ...] = ()


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
