"""The order in which Kueue tries the workloads of a ClusterQueue, and the priorities of pods.

Rules: kueue v0.19.2, pkg/cache/queue/cluster_queue.go. Three things that only Kueue's memory and
configuration contain are left out: a preemptor that keeps the head of its queue while its victims leave, the
priority boost of an alpha feature, and ``timestamp: Creation`` of waitForPodsReady, which ignores evictions
for that reason.

The value of a PriorityClass for a pod is resolved by the API server, whichever scheduler places the pod.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from gpucost.cluster.objects.jobs import PriorityClass
from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.objects.metadata import is_true
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.queues import LocalUsages, local_usages, waiting_by_queue
from gpucost.cluster.views.quota import held_back

_TO_THE_BACK = ("PodsReadyTimeout", "AdmissionCheck")


def positions(state: ClusterState) -> dict[str, int]:
    """The place of each pending workload in its ClusterQueue, from 1, by the workload's uid.

    Those that Kueue does not try now, because they are held back (``quota.held_back``), have no place, nor do
    those without a ClusterQueue. Higher priority first, then the earlier
    ``queue_timestamp_ms``, then the uid. Under admission fair sharing what the LocalQueue has used lately
    (``queues.local_usages``) comes before all of these.
    """
    usage = local_usages(state, state.schedulers.kueue)
    lines: dict[str, list[Workload]] = {}
    for name, workloads in waiting_by_queue(state).items():
        queue = state.local_queue_by_name.get(name)
        if queue is None or queue.cluster_queue not in state.cluster_queue_by_name:
            continue
        lines.setdefault(queue.cluster_queue, []).extend(
            each for each in workloads if is_tried(each, state.at_ms)
        )
    places: dict[str, int] = {}
    for line in lines.values():
        ordered = _ordered(line, usage)
        places.update({workload.meta.uid: place for place, workload in enumerate(ordered, 1)})
    return places


def is_tried(workload: Workload, at_ms: int) -> bool:
    """Whether Kueue tries a pending workload at all, at that instant."""
    return held_back(workload, at_ms) is None


_RETRIED = ("WaitingForPreemptedWorkloads", "PendingEvaluation")
_RETRIED_MESSAGES = (
    *("Pending the preemption of", "Pending the migration of"),
    *("no longer fits after", "overlapping preemption targets"),
)


def in_heap(workload: Workload) -> bool:
    """Whether Kueue tries a pending workload again in the next cycle, as far as its object shows. Others of a
    BestEffortFIFO queue are parked until quota is released (kueue, cluster_queue.go, requeueIfNotPresent)."""
    reserved = workload.conditions.get("QuotaReserved")
    if reserved is None or not reserved.message:
        return True
    return reserved.reason in _RETRIED or any(said in reserved.message for said in _RETRIED_MESSAGES)


def queue_timestamp_ms(workload: Workload) -> int:
    """Since when it has its place: its creation, or its eviction by a timeout of its pods or by an admission
    check. After other evictions it keeps its place (kueue, pkg/workload, GetQueueOrderTimestamp)."""
    evicted = workload.conditions.get("Evicted")
    if evicted is None or not is_true(workload.conditions, "Evicted") or evicted.reason not in _TO_THE_BACK:
        return workload.meta.created_ms
    return workload.meta.created_ms if evicted.since_ms is None else evicted.since_ms


def _ordered(line: list[Workload], usage: LocalUsages) -> list[Workload]:
    def key(workload: Workload) -> tuple[Fraction | int, int, int, str]:
        used = usage.get((workload.meta.namespace, workload.queue))
        before = 0 if used is None else used.order
        return before, -workload.priority, queue_timestamp_ms(workload), workload.meta.uid

    return sorted(line, key=key)


OF_PODS, OF_KUEUE = "priorityclasses.scheduling.k8s.io", "workloadpriorityclasses.kueue.x-k8s.io"
"""Collections of the classes of pods, and of those of Kueue's workloads."""
_OF_SYSTEM = "system-"
"""The prefix of the names of classes that the API server creates itself."""


def pod_classes(state: ClusterState) -> list[PriorityClass]:
    """The classes of Kubernetes itself: a WorkloadPriorityClass of Kueue does not apply to pods."""
    return [each for each in state.priority_classes.values() if not each.of_kueue]


def class_named(classes: Iterable[PriorityClass], name: str) -> PriorityClass | None:
    """None where no class has the name."""
    return next((each for each in classes if each.meta.name == name), None)


def has_pod_class(state: ClusterState, name: str) -> bool:
    """Whether pods that name it can be made (kubernetes v1.36, plugin/pkg/admission/priority/admission.go,
    Validate); True where the classes could not be read."""
    found = class_named(pod_classes(state), name)
    return found is not None or name.startswith(_OF_SYSTEM) or state.is_unread(OF_PODS)


def default_class(state: ClusterState) -> PriorityClass | None:
    """The class of pods that name none. Of several global defaults the lowest counts, then the first by name
    (kubernetes, plugin/pkg/admission/priority/admission.go, getDefaultPriorityClass)."""
    defaults = (each for each in pod_classes(state) if each.is_default)
    return min(defaults, key=lambda each: (each.value, each.meta.name), default=None)


def pod_priority(state: ClusterState, name: str) -> int:
    """The value of the class of that name; of the default class where none is named or none has that name; 0
    where there is no default."""
    found = (class_named(pod_classes(state), name) if name else None) or default_class(state)
    return 0 if found is None else found.value
