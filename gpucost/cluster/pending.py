"""Workloads that wait for quota: how many, for how much, and since when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from gpucost.cluster.kueue import Workload, WorkloadState
from gpucost.cluster.quota_use import workload_units
from gpucost.cluster.state import ClusterState, grouped
from gpucost.domain.gpu import ResourceCatalog

QueueName: TypeAlias = tuple[str, str]
"""Namespace and name of a LocalQueue."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Workloads that wait for quota: how many by reason, GPU units by resource and reason, and since when
    the longest waiting one has waited (None: none does)."""

    workloads: Mapping[str, int] = field(default_factory=dict)
    units: Mapping[tuple[str, str], int] = field(default_factory=dict)
    oldest_ms: int | None = None


def waiting_by_queue(state: ClusterState) -> dict[QueueName, list[Workload]]:
    """Workloads that wait for quota, by the LocalQueue they name, whether that exists or not."""
    pending = (each for each in state.workloads.values() if each.state is WorkloadState.PENDING)
    return grouped(pending, lambda workload: (workload.meta.namespace, workload.queue))


def pending_reason(workload: Workload) -> str:
    """Why it has no quota, in Kueue's word; ``Pending`` before Kueue has said anything."""
    found = workload.conditions.get("QuotaReserved")
    return found.reason if found is not None and found.reason else "Pending"


def pending_of(workloads: Iterable[Workload], catalog: ResourceCatalog) -> Pending:
    """What these workloads are together."""
    counts: Counter[str] = Counter()
    units: Counter[tuple[str, str]] = Counter()
    since = []
    for workload in workloads:
        reason = pending_reason(workload)
        counts[reason] += 1
        since.append(workload.waiting_since_ms)
        for resource, amount in workload_units(workload, catalog).items():
            units[resource, reason] += amount
    return Pending(dict(counts), dict(units), min(since, default=None))


def merged(parts: Iterable[Pending | None]) -> Pending | None:
    """The sum of parts that have no workload in common; None where one of them is not known."""
    counts: Counter[str] = Counter()
    units: Counter[tuple[str, str]] = Counter()
    since = []
    for part in parts:
        if part is None:
            return None
        counts.update(part.workloads)
        units.update(part.units)
        if part.oldest_ms is not None:
            since.append(part.oldest_ms)
    return Pending(dict(counts), dict(units), min(since, default=None))
