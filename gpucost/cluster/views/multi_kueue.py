"""MultiKueue: workloads that take their quota in one cluster and run in another.

In the cluster where a job is submitted, the manager, its Workload gets quota and is then sent to worker
clusters: an AdmissionCheck of the ClusterQueue names MultiKueue. Each of the nominated clusters has a copy of
the Workload, which waits there; the first that admits it keeps it, and runs its pods. So in the manager a
workload that has quota waits for no quota and no node of the manager, and its pods, if it has any there (of
jobs that are plain pods), stay gated or mirror the status of those that run: they hold nothing, and nothing
is billed. Pods are billed in the cluster where they have nodes.

What links both: the copy and its job have the namespaces and names of the originals, and the copy has the
label ``kueue.x-k8s.io/multikueue-origin``. Only the label of a Workload is believed, which Kueue writes; a
job's own is written by whoever submits it.

Rules: kueue v0.19.2, pkg/controller/admissionchecks/multikueue/workload.go, pkg/controller/jobs/pod/
pod_multikueue_adapter.go, and of apis/kueue/v1beta2 multikueue_types.go (constants) and workload_types.go
(``clusterName``, ``nominatedClusterNames``).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from gpucost.cluster.objects.kueue import ClusterQueue, Workload, WorkloadState
from gpucost.cluster.objects.state import ClusterState

CONTROLLER = "kueue.x-k8s.io/multikueue"
"""``spec.controllerName`` of an AdmissionCheck."""
ORIGIN = "kueue.x-k8s.io/multikueue-origin"
"""The label of a copy in a worker cluster: the ``multiKueue.origin`` of its manager's configuration."""


class DispatchStage(StrEnum):
    """How far a workload of a manager is on its way."""

    SEEKING = "seeking"
    """It has quota, and no worker cluster is named yet."""
    NOMINATED = "nominated"
    """It waits in the worker clusters that are named."""
    ASSIGNED = "assigned"
    """A worker cluster has admitted it, and runs it."""


class WorkloadDispatch(NamedTuple):
    """To which clusters a workload was sent: one that runs it, or those that may."""

    stage: DispatchStage
    clusters: tuple[str, ...]


def dispatches(state: ClusterState) -> Mapping[str, WorkloadDispatch]:
    """By uid, the workloads with quota of a manager that are sent to other clusters."""
    checks = multi_kueue_checks(state)
    found = {}
    for uid, workload in state.workloads.items():
        is_sent = workload.on_cluster or workload.nominated or (checks and _is_checked(workload, checks))
        if is_sent and workload.state in (WorkloadState.RESERVED, WorkloadState.ADMITTED):
            found[uid] = _dispatch(workload)
    return found


def multi_kueue_checks(state: ClusterState) -> frozenset[str]:
    """Names of AdmissionChecks that send workloads to other clusters."""
    return frozenset(each.meta.name for each in state.checks.values() if each.controller == CONTROLLER)


def sends_elsewhere(queue: ClusterQueue, state: ClusterState) -> bool:
    """Whether workloads of a ClusterQueue may be sent to other clusters: nodes of this one decide nothing."""
    return not multi_kueue_checks(state).isdisjoint(queue.checks)


def origin_of(workload: Workload) -> str:
    """Which manager sent a workload to this cluster; empty for one that was submitted here."""
    return workload.meta.labels.get(ORIGIN, "")


def _is_checked(workload: Workload, checks: frozenset[str]) -> bool:
    return any(each.name in checks for each in workload.checks)


def _dispatch(workload: Workload) -> WorkloadDispatch:
    if workload.on_cluster:
        return WorkloadDispatch(DispatchStage.ASSIGNED, (workload.on_cluster,))
    if workload.nominated:
        return WorkloadDispatch(DispatchStage.NOMINATED, tuple(sorted(workload.nominated)))
    return WorkloadDispatch(DispatchStage.SEEKING, ())
