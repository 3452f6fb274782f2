"""Kueue's admission fair sharing: what the LocalQueues of a ClusterQueue have used lately, by which Kueue
orders their workloads.

The usage of a LocalQueue is what its status says it consumed, with the entry penalties added, by the weights
of resources, divided by the weight of the queue. An entry penalty is charged when a workload gets quota, and
is part of what was consumed once the workload is admitted: Kueue keeps it in memory, so here it is computed,
for workloads with quota that are not admitted yet. It is not known where Kueue's Configuration was not read.

Rules: kueue v0.19.2, pkg/util/admissionfairsharing/admission_fair_sharing.go, pkg/cache/queue/afs and
pkg/scheduler/scheduler.go (shouldApplyEntryPenalty). Left out: what Kueue has added since it last wrote the
status (every usageSamplingInterval), and penalties of workloads that were evicted before they were admitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from gpucost.cluster.objects.kueue import ClusterQueue, LocalQueue, Workload
from gpucost.cluster.objects.metadata import is_true
from gpucost.cluster.objects.quantities import CPU
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.cluster.objects.state import ClusterState

FAIR_ADMISSION = "UsageBasedAdmissionFairSharing"
GATE = "AdmissionFairSharing"
LAST = Fraction(2**200)
"""The usage of a LocalQueue of weight 0, which comes after all others."""
LocalUsages: TypeAlias = Mapping[tuple[str, str], "LocalQueueUsage"]
"""By namespace and name of the LocalQueue."""


@dataclass(frozen=True, slots=True)
class LocalQueueUsage:
    """``consumed`` is what its status says, ``penalty`` what is charged for workloads that are not admitted
    yet (None: not known), both by resource in thousandths of a core, byte or unit. ``order`` is what Kueue
    compares: the less comes first."""

    queue: LocalQueue
    consumed: Mapping[str, int]
    penalty: Mapping[str, Fraction] | None
    order: Fraction


def goes_by_usage(queue: ClusterQueue, config: KueueConfig) -> bool:
    """Whether Kueue orders the queue's workloads by usage: the queue says so, and Kueue is not known to have
    admission fair sharing switched off."""
    is_off = (config.is_read and config.fair_admission is None) or config.gates.get(GATE) is False
    return queue.admission_mode == FAIR_ADMISSION and not is_off


def local_usages(state: ClusterState, config: KueueConfig) -> LocalUsages:
    """Of the LocalQueues that lead to a ClusterQueue which goes by usage."""
    fair = {name for name, queue in state.cluster_queue_by_name.items() if goes_by_usage(queue, config)}
    if not fair:
        return {}
    entering: dict[tuple[str, str], list[Workload]] = {}
    for each in state.workloads.values():
        if each.has_quota and each.cluster_queue in fair and not is_true(each.conditions, "Admitted"):
            entering.setdefault((each.meta.namespace, each.queue), []).append(each)
    return {
        name: _usage(queue, entering.get(name, []), config)
        for name, queue in state.local_queue_by_name.items()
        if queue.cluster_queue in fair
    }


def _usage(queue: LocalQueue, entering: list[Workload], config: KueueConfig) -> LocalQueueUsage:
    settings = config.fair_admission
    penalty = None if settings is None else _penalty(entering, settings.entry_part)
    weights = {} if settings is None else settings.weights
    total = sum(
        (weights.get(resource, Fraction(1)) * amount for resource, amount in queue.fair_usage.items()),
        sum(
            (weights.get(resource, Fraction(1)) * amount for resource, amount in (penalty or {}).items()),
            Fraction(0),
        ),
    )
    order = total / queue.weight if queue.weight > 0 else LAST
    return LocalQueueUsage(queue, queue.fair_usage, penalty, order)


def _penalty(entering: list[Workload], part: Fraction) -> dict[str, Fraction]:
    """``part`` of all that these were given."""
    found: dict[str, Fraction] = {}
    for workload in entering:
        for assignment in workload.assignments:
            for resource, amount in assignment.usage.items():
                thousandths = amount if resource == CPU else 1000 * amount
                found[resource] = found.get(resource, Fraction(0)) + part * thousandths
    return found
