"""Wait causes: the first layer that holds a waiting workload or job back.

- quota: its queue gives it none, or admission checks are outstanding.
- placement: it may run, but its pods find no nodes, alone or as a gang.
- device: its pods would find nodes if these advertised all the GPUs they are expected to have; or they are on
  nodes that refuse them or cannot start them with their devices. A container that is being created is no such
  error, however long: it may be pulling its image.

A workload that runs, ends or is deactivated does not wait. Neither does one that is admitted and has no pods
yet: no layer is against it, and its job is making them. One that MultiKueue sends to other clusters waits
there once clusters are named, and here until then; its pods here never get nodes, and do not wait for any.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gpucost.cluster.objects.kueue import Workload, WorkloadState
from gpucost.cluster.objects.metadata import is_false
from gpucost.cluster.objects.pods import Pod
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.objects.volcano import WAITING_PHASES, GroupKind, PodGroup
from gpucost.cluster.views.gpu_units import GpuUnits
from gpucost.cluster.views.group_trees import TREE_SCHEDULED, GroupTrees
from gpucost.cluster.views.node_fit import FreeNodes
from gpucost.cluster.views.ownership import PodOwnership
from gpucost.cluster.views.quota import checks_reason, quota_reason
from gpucost.cluster.views.workload_families import DispatchStage, dispatches, multi_kueue_checks
from gpucost.contract.queue_metrics import WaitLayer
from gpucost.domain.jobs import JobReference

UNSCHEDULABLE = "Unschedulable"
GANG_NOT_READY = "GangNotReady"
GATED = "SchedulingGated"
NOT_ADVERTISED = "NotAdvertised"
NO_WORKER = "NoWorkerCluster"
"""MultiKueue has named no cluster yet that may run it."""
NOT_LOOKED_AT = "Pending"
"""No scheduler has written a reason for the pod yet."""
REFUSED = "UnexpectedAdmissionError"
_NATIVE_SCHEDULED = ("PodGroupScheduled", "PodGroupInitiallyScheduled")
"""Conditions of Kubernetes 1.36, and of 1.37."""
DEVICE_ERRORS = frozenset({REFUSED, "CreateContainerError", "RunContainerError"})


@dataclass(frozen=True, slots=True)
class WaitCause:
    """The first layer that holds something back, the reason in that layer's own words, and since when."""

    layer: WaitLayer
    reason: str
    message: str
    since_ms: int


@dataclass(slots=True)
class _Pods:
    """Pods of one workload or job that do not run as they should, and whether others exist."""

    waiting: list[Pod] = field(default_factory=list)
    stuck: list[Pod] = field(default_factory=list)
    refused: list[Pod] = field(default_factory=list)
    others: bool = False

    def add(self, pod: Pod) -> None:
        if pod.has_ended:
            if pod.stuck == REFUSED:
                self.refused.append(pod)
        elif pod.bound_ms is None and pod.is_leaving:
            pass
        elif pod.bound_ms is None:
            self.waiting.append(pod)
        elif pod.stuck in DEVICE_ERRORS:
            self.stuck.append(pod)
        else:
            self.others = True


def waiting(state: ClusterState, units: GpuUnits, ownership: PodOwnership) -> dict[str, WaitCause]:
    """The cause of each Kueue workload that waits, by its uid."""
    judge = _Judge(state, units, ownership)
    pods = _by_workload(state.pods.values(), ownership)
    holds = ((uid, judge.workload(each, pods.get(uid))) for uid, each in state.workloads.items())
    return {uid: hold for uid, hold in holds if hold is not None}


def waiting_jobs(
    state: ClusterState, units: GpuUnits, ownership: PodOwnership
) -> dict[JobReference, WaitCause]:
    """The cause of each waiting job that Kueue does not manage and that wants GPUs.

    A PodGroup counts before its pods are made: Volcano makes those of a job only when it is admitted.
    """
    judge = _Judge(state, units, ownership)
    holds = {job: judge.pods(pods, 0) for job, pods in _by_job(state, units, ownership).items()}
    for group in state.pod_groups.values():
        if _is_not_ready(group) and units.asked(group.min_resources or {}):
            holds.setdefault(ownership.job_of(group), _of_group(group))
    return {job: hold for job, hold in holds.items() if hold is not None}


def pod_reason(pod: Pod) -> str:
    """Why a pod has no node: ``gated``, or the reason of its PodScheduled condition, or ``Pending`` while no
    scheduler has written one."""
    if pod.is_gated:
        return "gated"
    return (pod.waiting.reason if pod.waiting is not None else "") or NOT_LOOKED_AT


def pod_since_ms(pod: Pod) -> int:
    """Since when a scheduler has found no node for it; before any scheduler has tried, since its creation."""
    said = pod.waiting.since_ms if pod.waiting is not None else None
    return pod.meta.created_ms if said is None else said


class _Judge:
    """Finds the layer; free capacity of nodes is computed once."""

    def __init__(self, state: ClusterState, units: GpuUnits, ownership: PodOwnership) -> None:
        self._state = state
        self._units = units
        self._ownership = ownership
        self._trees = GroupTrees(state)
        self._nodes = FreeNodes(state, units.catalog)
        self._sent = dispatches(state)

    def workload(self, workload: Workload, pods: _Pods | None) -> WaitCause | None:
        sent = self._sent.get(workload.meta.uid)
        match workload.state:
            case WorkloadState.PENDING:
                return WaitCause(
                    WaitLayer.QUOTA, *quota_reason(self._state, workload), workload.waiting_since_ms
                )
            case WorkloadState.RESERVED:
                since_ms = workload.reserved_ms
                since_ms = workload.waiting_since_ms if since_ms is None else since_ms
                reason, said = checks_reason(workload)
                if sent is not None and not _others_are_open(self._state, workload):
                    reason = NO_WORKER
                is_there = sent is not None and sent.stage is not DispatchStage.SEEKING
                return None if is_there else WaitCause(WaitLayer.QUOTA, reason, said, since_ms)
            case WorkloadState.ADMITTED if sent is not None:
                return None
            case WorkloadState.ADMITTED if pods is not None:
                return self.pods(pods, workload.admitted_ms or 0)
            case _:
                return None

    def pods(self, pods: _Pods, from_ms: int) -> WaitCause | None:
        """Of pods that may run since ``from_ms``."""
        if pods.waiting:
            return self._placement(pods.waiting, from_ms)
        if pods.stuck:
            first = min(pods.stuck, key=lambda pod: (pod.bound_ms or 0, pod.meta.uid))
            return WaitCause(WaitLayer.DEVICE, first.stuck, f"pod {first.meta.name}", first.bound_ms or 0)
        if pods.refused and not pods.others:
            last = max(pods.refused, key=lambda pod: (pod.ended_ms or 0, pod.meta.uid))
            since_ms = last.meta.created_ms if last.ended_ms is None else last.ended_ms
            return WaitCause(WaitLayer.DEVICE, REFUSED, f"pod {last.meta.name}", since_ms)
        return None

    def _placement(self, pods: Sequence[Pod], from_ms: int) -> WaitCause:
        """The cause of pods without a node. Pods that a scheduler has seen go before gated ones."""
        free = [pod for pod in pods if not pod.is_gated]
        first = min(free or pods, key=_since)
        since_ms = max(from_ms, _since(first)[0])
        short = next((found for pod in free if (found := self._unadvertised(pod))), "")
        if short:
            return WaitCause(WaitLayer.DEVICE, NOT_ADVERTISED, short, since_ms)
        message = first.waiting.message if first.waiting is not None else ""
        if not free:
            return WaitCause(WaitLayer.PLACEMENT, GATED, message or ", ".join(first.gates), since_ms)
        group = self._ownership.pod_group_of(first)
        root = None if group is None else self._trees.root_of(group)
        if root is not None and is_false(root.conditions, TREE_SCHEDULED):
            said = root.conditions[TREE_SCHEDULED].message
            return WaitCause(WaitLayer.PLACEMENT, GANG_NOT_READY, said or message, since_ms)
        if group is not None and group.min_member > 1 and _is_not_ready(group):
            return WaitCause(WaitLayer.PLACEMENT, GANG_NOT_READY, _said(group) or message, since_ms)
        return WaitCause(WaitLayer.PLACEMENT, pod_reason(first), message, since_ms)

    def _unadvertised(self, pod: Pod) -> str:
        """The missing resource of a node that would make room for the pod; empty when it finds room anyway,
        or would not find it then."""
        asked = self._units.asked(pod.template.requests)
        node = self._nodes.would_fit(pod.template) if asked else None
        if node is None or self._nodes.fits(pod.template):
            return ""
        return ", ".join(
            f"{node.meta.name} advertises {node.allocatable.get(resource, 0)} of {expected} {resource}"
            for resource, expected in sorted(node.expected.items())
            if resource in asked and node.allocatable.get(resource, 0) < expected
        )


def _others_are_open(state: ClusterState, workload: Workload) -> bool:
    """Whether another admission check is outstanding: MultiKueue waits until all of them agree."""
    mine = multi_kueue_checks(state)
    return any(each.state != "Ready" and each.name not in mine for each in workload.checks)


def _by_workload(pods: Iterable[Pod], ownership: PodOwnership) -> dict[str, _Pods]:
    found: dict[str, _Pods] = {}
    for pod in pods:
        if not pod.has_ended or pod.stuck:
            uid = ownership.of(pod).workload_uid
            if uid:
                found.setdefault(uid, _Pods()).add(pod)
    return found


def _by_job(state: ClusterState, units: GpuUnits, ownership: PodOwnership) -> dict[JobReference, _Pods]:
    """Pods that Kueue does not manage and that want GPUs."""
    found: dict[JobReference, _Pods] = {}
    for pod in state.pods.values():
        # A pod that was refused waits only if its controller makes it again.
        jobs = ownership.jobs_of(pod) if pod.has_ended else ()
        is_made_again = bool(pod.stuck) and any(job.ended_ms is None for job in jobs)
        if (not pod.has_ended or is_made_again) and units.is_gpu_pod(pod):
            belonging = ownership.of(pod)
            if not belonging.workload_uid:
                found.setdefault(belonging.job, _Pods()).add(pod)
    return found


def _since(pod: Pod) -> tuple[int, str]:
    return pod_since_ms(pod), pod.meta.uid


def _is_not_ready(group: PodGroup) -> bool:
    """Whether its scheduler holds all of it back."""
    if group.group_kind is GroupKind.NATIVE:
        return any(is_false(group.conditions, type_) for type_ in _NATIVE_SCHEDULED)
    return group.phase in WAITING_PHASES


def _of_group(group: PodGroup) -> WaitCause:
    return WaitCause(WaitLayer.PLACEMENT, GANG_NOT_READY, _said(group), group.meta.created_ms)


def _said(group: PodGroup) -> str:
    types = _NATIVE_SCHEDULED if group.group_kind is GroupKind.NATIVE else ("Unschedulable",)
    said = (group.conditions[type_].message for type_ in types if type_ in group.conditions)
    return next(filter(None, said), "")
