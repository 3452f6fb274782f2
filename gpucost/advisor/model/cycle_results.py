"""What one scheduling cycle decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class CycleOutcome(StrEnum):
    """What a cycle does with a workload."""

    ADMITTED = "admitted"
    PREEMPTING = "preempting"
    """Stays in its queue until its victims have left."""
    PENDING = "pending"
    PREEMPTED = "preempted"
    KEEPS_RUNNING = "keeps-running"
    BEING_EVICTED = "being-evicted"
    """Evicted before this cycle; its quota is still reserved."""


class PendingClass(StrEnum):
    """Why a workload stays pending."""

    NEEDS_PREEMPTION = "needs-preemption"
    NO_CANDIDATES = "needs-preemption-no-candidates"
    NO_FIT = "no-fit"
    NO_LONGER_FITS = "no-longer-fits"
    """Nominated, but other heads of this cycle took the quota."""
    OVERLAPPING = "overlapping-preemption-targets"
    WAITING = "waiting"
    """Not the head of its queue, or in a queue that is not active and so offers no head."""
    INADMISSIBLE = "inadmissible"
    """Its LocalQueue leads to no ClusterQueue, or to one that takes no workloads of its namespace."""


@dataclass(frozen=True, slots=True)
class PodSetFlavors:
    """Flavors of one pod set: ``count`` of its pods (fewer than asked after partial admission)."""

    name: str
    count: int
    flavors: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class HeadNomination:
    """What was chosen for a head: ``mode`` is Fit or Preempt, ``level`` how high it borrows."""

    mode: str
    pod_sets: tuple[PodSetFlavors, ...]
    level: int


@dataclass(frozen=True, slots=True)
class WorkloadDecision:
    """Of one workload, pending or with quota; by uid.

    ``pod_sets`` and ``level`` are of the assignment that was made or is wanted (admitted, preempting);
    ``nominated`` of a head that stays pending all the same. ``preempts`` and ``preempted_by`` are uids.
    ``level`` counts after the victims are gone. ``reason`` is the granular QuotaReserved reason, empty where
    Kueue sets none; ``message`` the condition's.
    ``parked`` says that it waits outside the heap for an event of its cohort tree.
    """

    uid: str
    outcome: CycleOutcome
    pending: PendingClass | None = None
    pod_sets: tuple[PodSetFlavors, ...] = ()
    level: int = 0
    nominated: HeadNomination | None = None
    preempts: tuple[str, ...] = ()
    preempted_by: str = ""
    preempted_reason: str = ""
    reason: str = ""
    message: str = ""
    parked: bool = False


@dataclass(frozen=True, slots=True)
class CycleResult:
    """``decisions`` by uid, of every workload the snapshot knows; ``order`` is the uids of heads as they were
    processed, one tuple per cohort tree. ``ties`` are pairs of sibling cohorts with equal shares that Kueue
    takes in any order, of heads or in the search for victims: then it may decide otherwise as well."""

    decisions: Mapping[str, WorkloadDecision]
    order: tuple[tuple[str, ...], ...]
    ties: tuple[tuple[str, str], ...] = ()
