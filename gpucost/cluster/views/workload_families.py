"""Kueue's workloads where several stand for one job, in one cluster or, with MultiKueue, in several: each job
once, as long as it lasts.

Concurrent admission (kueue, keps/8691): a parent that is never scheduled, and for each flavor a variant that
is. Kueue writes what became of the variants to the parent, so the parent counts, and its variants do not:
with them a job would want, and hold, its GPUs several times over. Two things it writes to the variants only,
and here the parent is given them: how often a variant was evicted and why (of the parent it says just
``VariantEvicted``), and why those that wait have no quota. That a variant was deactivated in favour of
another is no eviction of the job (kueue, pkg/controller/concurrentadmission/controller.go).

Elastic jobs (kueue, pkg/workloadslicing): a job that grows gets a new workload of its new size, a slice,
which replaces the one it had once it gets quota; that one is then finished for the reason
``WorkloadSliceReplaced``. The slices of a chain count as one workload: under the name and uid of the first,
since the first was given quota, of the size of the last. So a job that grows does not end, wait or leave. A
slice that waits to replace another wants what it has more than that one.

``one_per_job`` is asked where states are made, by the watch and by dumps: views and the advisor know these
families no more. Facts: kueue v0.19.2.

MultiKueue: workloads take their quota in one cluster and run in another. In the cluster where a job is
submitted, the manager, its Workload gets quota and is then sent to worker clusters: an AdmissionCheck of the
ClusterQueue names MultiKueue. Each of the nominated clusters has a copy of the Workload, which waits there;
the first that admits it keeps it, and runs its pods. So in the manager a workload that has quota waits for no
quota and no node of the manager, and its pods, if it has any there (of jobs that are plain pods), stay gated
or mirror the status of those that run: they hold nothing, and nothing is billed. Pods are billed in the
cluster where they have nodes.

What links both: the copy and its job have the namespaces and names of the originals, and the copy has the
label ``kueue.x-k8s.io/multikueue-origin``. Only the label of a Workload is believed, which Kueue writes; a
job's own is written by whoever submits it.

Rules: kueue v0.19.2, pkg/controller/admissionchecks/multikueue/workload.go, pkg/controller/jobs/pod/
pod_multikueue_adapter.go, and of apis/kueue/v1beta2 multikueue_types.go (constants) and workload_types.go
(``clusterName``, ``nominatedClusterNames``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

from gpucost.cluster.objects.kueue import ClusterQueue, Workload, WorkloadEviction, WorkloadState
from gpucost.cluster.objects.metadata import Conditions, Resources, StatusCondition, is_true
from gpucost.cluster.objects.state import ClusterState

REPLACES = "kueue.x-k8s.io/workload-slice-replacement-for"
"""The annotation of a slice with the namespace and name of the one that it replaces."""
PARENT = "kueue.x-k8s.io/concurrent-admission-parent"
"""The label of a parent (kueue, pkg/controller/constants)."""
_REPLACED = "WorkloadSliceReplaced"
_KUEUE = "kueue.x-k8s.io/"
_OF_VARIANTS = ("VariantEvicted", "ConcurrentAdmission")
"""Reasons of the condition Evicted of a parent that only say that its variant was, or that none runs."""
_QUOTA = ("QuotaReserved", "Admitted")
_DEACTIVATED = "Deactivated"
_NOT_LOOKED_AT = ("", "Pending", "PendingEvaluation")
_MILDEST_FIRST = (
    *("WaitingForPreemptedWorkloads", "TopologyPlacementFailed", "WaitingForQuota"),
    *("ExceedsMaxQuota", "NoMatchingFlavor"),
)
"""Variants are alternatives, one for each flavor: as of flavors, the mildest reason counts."""
CONTROLLER = "kueue.x-k8s.io/multikueue"
"""``spec.controllerName`` of an AdmissionCheck."""
ORIGIN = "kueue.x-k8s.io/multikueue-origin"
"""The label of a copy in a worker cluster: the ``multiKueue.origin`` of its manager's configuration."""


def one_per_job(workloads: Mapping[str, Workload]) -> Mapping[str, Workload]:
    """Workloads by uid, families joined; the same mapping where there are none."""
    if not any(is_variant(each) or REPLACES in each.meta.annotations for each in workloads.values()):
        return workloads
    found: dict[str, Workload] = {}
    names = {f"{each.meta.namespace}/{each.meta.name}": each for each in workloads.values()}
    variants: dict[str, list[Workload]] = {}
    alone = []
    for each in sorted(workloads.values(), key=_made):
        if _has_parent(each, workloads) and each.meta.owner is not None:
            variants.setdefault(each.meta.owner.uid, []).append(each)
        elif not _is_replaced(each):
            alone.append(each)
    for family in variants.values():
        held = [each for each in family if each.has_quota]
        alone += held if len(held) > 1 else ()  # Kueue lets one of them run
    for each in alone:
        mine = variants.get(each.meta.uid)
        joined = _with_variants(each, mine) if mine else _joined(each, names)
        # Of two that say they replaced the same one, one does, and the other stands for itself.
        found[each.meta.uid if joined.meta.uid in found else joined.meta.uid] = (
            each if joined.meta.uid in found else joined
        )
    return found


def _with_variants(parent: Workload, variants: Sequence[Workload]) -> Workload:
    """The parent with what Kueue writes to its variants only, or first."""
    held = [each for each in variants if each.state in (WorkloadState.RESERVED, WorkloadState.ADMITTED)]
    if len(held) == 1 and parent.state is WorkloadState.PENDING:
        parent = _as_held(parent, held[0])
    evictions = _added(
        (
            *parent.evictions,
            *(
                told
                for variant in variants
                for told in variant.evictions
                if told.reason != _DEACTIVATED or told.cause
            ),
        )
    )
    conditions = dict(parent.conditions)
    evicted, reserved = conditions.get("Evicted"), conditions.get("QuotaReserved")
    if evicted is not None and evicted.status is True and evicted.reason in _OF_VARIANTS:
        why = _last_eviction(variants)
        if why is not None:
            conditions["Evicted"] = replace(evicted, reason=why.reason, message=why.message)
    if parent.state is WorkloadState.PENDING and (reserved is None or reserved.reason in _NOT_LOOKED_AT):
        conditions |= _why_they_wait(variants)
    return replace(parent, evictions=evictions, conditions=conditions)


def _as_held(parent: Workload, variant: Workload) -> Workload:
    """The parent with the quota of its variant, of which Kueue has not told it yet."""
    given = {key: variant.conditions[key] for key in _QUOTA if key in variant.conditions}
    others = {key: each for key, each in parent.conditions.items() if key not in ("Evicted", *_QUOTA)}
    cluster_queue, assignments = variant.cluster_queue, variant.assignments
    return replace(
        parent, cluster_queue=cluster_queue, assignments=assignments, conditions={**others, **given}
    )


def _added(evictions: Iterable[WorkloadEviction]) -> tuple[WorkloadEviction, ...]:
    """One for each reason and cause. Those of a variant that is deleted are no longer among them."""
    times: dict[tuple[str, str], int] = {}
    for each in evictions:
        times[each.reason, each.cause] = times.get((each.reason, each.cause), 0) + each.times
    return tuple(WorkloadEviction(*key, count) for key, count in times.items())


def _last_eviction(variants: Iterable[Workload]) -> StatusCondition | None:
    """Of the variant that was evicted last; being deactivated in favour of another is none."""
    told = [
        each.conditions["Evicted"]
        for each in variants
        if is_true(each.conditions, "Evicted") and each.conditions["Evicted"].reason != _DEACTIVATED
    ]
    return max(told, key=lambda each: each.since_ms or 0, default=None)


def _why_they_wait(variants: Iterable[Workload]) -> dict[str, StatusCondition]:
    """The condition of those that wait, as one; empty where Kueue has looked at none of them."""
    told = [
        each.conditions["QuotaReserved"]
        for each in variants
        if each.state is WorkloadState.PENDING and "QuotaReserved" in each.conditions
    ]
    told = [each for each in told if each.message or each.reason not in _NOT_LOOKED_AT]
    if not told:
        return {}
    named = {each.reason for each in told}
    reason = next((each for each in _MILDEST_FIRST if each in named), told[0].reason)
    messages = dict.fromkeys(each.message for each in told if each.message)
    return {"QuotaReserved": replace(told[0], reason=reason, message="; ".join(messages))}


def _made(workload: Workload) -> tuple[int, str]:
    return workload.meta.created_ms, workload.meta.uid


def is_variant(workload: Workload) -> bool:
    """Whether another workload is its owner."""
    owner = workload.meta.owner
    return owner is not None and owner.kind == "Workload" and owner.api_version.startswith(_KUEUE)


def _has_parent(workload: Workload, workloads: Mapping[str, Workload]) -> bool:
    if not is_variant(workload) or workload.meta.owner is None:
        return False
    parent = workloads.get(workload.meta.owner.uid)
    return (
        parent is not None
        and parent.meta.namespace == workload.meta.namespace
        and parent.meta.labels.get(PARENT) == "true"
        and not is_variant(parent)
        and (workload.finished_ms is not None or parent.finished_ms is None)
        and _wants(workload) == _wants(parent)
    )


def _wants(workload: Workload) -> tuple[str, list[tuple[str, int, Resources]]]:
    """Its queue and the size of its pod sets. Kueue makes a variant with the spec of its parent: anything
    else is the work of somebody who hides a large workload behind a small one."""
    return workload.queue, [(each.name, each.count, each.template.requests) for each in workload.pod_sets]


def _before(workload: Workload, names: Mapping[str, Workload]) -> Workload | None:
    """What it replaces, or replaced: of the same job, in its own namespace."""
    found = names.get(workload.meta.annotations.get(REPLACES, ""))
    if found is None or found.meta.owner is None or found.meta.owner != workload.meta.owner:
        return None
    return found if found.meta.namespace == workload.meta.namespace else None


def _is_replaced(workload: Workload) -> bool:
    finished = workload.conditions.get("Finished")
    return finished is not None and finished.status is True and finished.reason == _REPLACED


def _joined(workload: Workload, names: Mapping[str, Workload]) -> Workload:
    before = _before(workload, names)
    if before is None:
        return workload
    if not workload.has_quota and before.has_quota:
        return _more(workload, before)
    if not (workload.has_quota or workload.finished_ms is not None):
        return workload  # it waits anew: what it replaced once is no place in the queue
    chain = (workload, *_replaced_before(workload, names))
    first = chain[-1].meta
    meta = replace(workload.meta, uid=first.uid, name=first.name, created_ms=first.created_ms)
    return replace(workload, meta=meta, conditions=_since_first(chain))


def _replaced_before(workload: Workload, names: Mapping[str, Workload]) -> Iterator[Workload]:
    """What it replaced, the last first. A slice that ended in another way was the end of its chain."""
    seen = {workload.meta.uid}
    before = _before(workload, names)
    while before is not None and _is_replaced(before) and before.meta.uid not in seen:
        yield before
        seen.add(before.meta.uid)
        before = _before(before, names)


def _since_first(chain: tuple[Workload, ...]) -> Conditions:
    """The conditions of the last slice, its quota and admission dated by the first that had them."""
    conditions = dict(chain[0].conditions)
    for type_ in _QUOTA:
        held = [each.conditions[type_] for each in chain if type_ in each.conditions]
        since = [each.since_ms for each in held if each.status is True and each.since_ms is not None]
        if since and type_ in conditions and conditions[type_].status is True:
            conditions[type_] = replace(conditions[type_], since_ms=min(since))
    return conditions


def _more(workload: Workload, before: Workload) -> Workload:
    """It with the pods only that it has more than ``before``."""
    had = {each.name: each.count for each in before.pod_sets}
    more = {each.name: max(0, each.count - had.get(each.name, 0)) for each in workload.pod_sets}
    counts = {each.name: each.count for each in workload.pod_sets}
    annotations = {key: text for key, text in workload.meta.annotations.items() if key != REPLACES}
    return replace(
        workload,
        meta=replace(workload.meta, annotations=annotations),
        pod_sets=tuple(replace(each, count=more[each.name]) for each in workload.pod_sets if more[each.name]),
        asked={
            name: {key: amount * more[name] // counts[name] for key, amount in asked.items()}
            for name, asked in workload.asked.items()
            if more.get(name)
        },
    )


class FamilyMemory:
    """Joins families of one cluster from state to state. Kueue may remove a slice that was replaced long
    before its chain ends: it is remembered for as long as a workload names it, so that the chain keeps the
    name, uid and beginning of its first. Unknown after a restart: then a chain begins with its first slice
    that is there."""

    def __init__(self) -> None:
        self._replaced: Mapping[str, Workload] = {}

    def one_per_job(self, workloads: Mapping[str, Workload]) -> Mapping[str, Workload]:
        """As the function of that name, with the slices that are remembered."""
        there = {f"{each.meta.namespace}/{each.meta.name}": each for each in workloads.values()}
        known = {**self._replaced, **{name: each for name, each in there.items() if _is_replaced(each)}}
        named: dict[str, Workload] = {}
        for each in there.values():
            name = each.meta.annotations.get(REPLACES, "")
            while name in known and name not in named:
                named[name] = known[name]
                name = known[name].meta.annotations.get(REPLACES, "")
        self._replaced = named
        gone = {each.meta.uid: each for name, each in named.items() if name not in there}
        return one_per_job({**workloads, **gone} if gone else workloads)


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
