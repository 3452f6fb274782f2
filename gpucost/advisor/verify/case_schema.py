"""The types of a recorded case: a cluster, what was asked of its scheduler, and what it did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpucost.advisor.model.cycle_results import PodSetFlavors
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.cluster.objects.state import ClusterState

SCHEMA_VERSION = 1
NOW_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z: the now of every case."""
VERSION = "v0.19.2"
"""Of Kueue, whose decisions the cases are."""
REASONS_GATE = "UnadmittedWorkloadsObservability"
"""The feature gate that makes the reason of QuotaReserved=False granular."""

CYCLE = "one-scheduling-cycle"
SEARCH = "preemption-target-search"
LEVELS = (CYCLE, SEARCH)
HEAP = "heap"
PARKED = "inadmissible"


@dataclass(frozen=True, slots=True)
class ExpectedDecision:
    """What the scheduler did with one workload; None: not asserted. Workloads are named by their keys."""

    outcome: str | None = None
    cluster_queue: str | None = None
    flavors: Mapping[str, str] | None = None
    pod_sets: tuple[PodSetFlavors, ...] | None = None
    borrows: bool | None = None
    level: int | None = None
    nominated_mode: str | None = None
    nominated_pod_sets: tuple[PodSetFlavors, ...] | None = None
    nominated_level: int | None = None
    preempts: frozenset[str] | None = None
    preempted_by: str | None = None
    preempted_reason: str | None = None
    pending: str | None = None
    requeued_to: str | None = None
    reason: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class GivenFlavors:
    """Flavors that a search for victims starts from, by pod set and resource; ``fits`` are resources that
    need no preemption."""

    flavors: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    fits: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RecordingOrigin:
    """The Kueue whose decisions a file holds, from when to when they were watched (Unix ms; 0: not said).
    Of ``config`` only version, kind of preemption, feature gates and whether it was read are kept in a
    file."""

    config: KueueConfig
    from_ms: int = 0
    to_ms: int = 0


@dataclass(frozen=True, slots=True)
class SchedulerCase:
    """``state`` and ``config`` are what the rules are asked with. ``keys`` names each workload
    (``namespace/name``) by its uid. ``searched`` is the uid of the workload that ``given`` is for.
    ``tags`` say which rules it touches. ``order`` is one tuple of keys per cohort tree, None where it is not
    asserted.
    """

    id: str
    level: str
    state: ClusterState
    config: KueueConfig
    keys: Mapping[str, str]
    expected: Mapping[str, ExpectedDecision]
    title: str = ""
    source: str = ""
    teaches: str = ""
    tags: tuple[str, ...] = ()
    order: frozenset[tuple[str, ...]] | None = None
    given: GivenFlavors = GivenFlavors()
    searched: str = ""
