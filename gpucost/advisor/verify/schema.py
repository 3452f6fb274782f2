"""One recorded case: a cluster, what was asked of its scheduler, and what it did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpucost.advisor.kueue.results import Assigned
from gpucost.cluster.scheduling import KueueConfig
from gpucost.cluster.state import ClusterState

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
class Expected:
    """What the scheduler did with one workload; None is not asserted. Workloads are named by their keys."""

    outcome: str | None = None
    cluster_queue: str | None = None
    flavors: Mapping[str, str] | None = None
    pod_sets: tuple[Assigned, ...] | None = None
    borrows: bool | None = None
    level: int | None = None
    nominated_mode: str | None = None
    nominated_pod_sets: tuple[Assigned, ...] | None = None
    nominated_level: int | None = None
    preempts: frozenset[str] | None = None
    preempted_by: str | None = None
    preempted_reason: str | None = None
    pending: str | None = None
    requeued_to: str | None = None
    reason: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """Flavors that a search for victims starts from, by pod set and resource; ``fits`` are resources that
    need no preemption."""

    flavors: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    fits: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Case:
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
    expected: Mapping[str, Expected]
    title: str = ""
    source: str = ""
    teaches: str = ""
    tags: tuple[str, ...] = ()
    order: frozenset[tuple[str, ...]] | None = None
    given: Given = Given()
    searched: str = ""
