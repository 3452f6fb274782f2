"""Series of Kueue's ClusterQueues, cohorts and LocalQueues, and of Volcano's queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gpucost.cluster.objects.kueue import FlavorResource, LocalQueue
from gpucost.cluster.objects.metadata import Resources, base_units
from gpucost.cluster.views.queues import (
    ClusterQueueView,
    CohortView,
    LocalQueueView,
    PendingWorkloads,
)
from gpucost.cluster.views.volcano_queues import VolcanoQueueView
from gpucost.contract import queue_metrics as m
from gpucost.contract.metric_spec import MetricSpec
from gpucost_queue_collector.page import OTHERS, NamespaceLimit, line, others_uid

# The metric for each figure of a view's quotas.
_OF_CLUSTER_QUEUE: Mapping[MetricSpec, str] = {
    m.CLUSTER_QUEUE_NOMINAL: "nominal",
    m.CLUSTER_QUEUE_BORROWING_LIMIT: "borrowing_limit",
    m.CLUSTER_QUEUE_LENDING_LIMIT: "lending_limit",
    m.CLUSTER_QUEUE_RESERVED: "reserved",
    m.CLUSTER_QUEUE_USED: "used",
    m.CLUSTER_QUEUE_BORROWED: "borrowed",
    m.CLUSTER_QUEUE_LENDABLE: "lendable",
}
_OF_COHORT: Mapping[MetricSpec, str] = {
    m.COHORT_NOMINAL: "nominal",
    m.COHORT_BORROWING_LIMIT: "borrowing_limit",
    m.COHORT_LENDING_LIMIT: "lending_limit",
    m.COHORT_SUBTREE_QUOTA: "subtree",
    m.COHORT_RESERVED: "reserved",
    m.COHORT_USED: "used",
    m.COHORT_BORROWED: "borrowed",
    m.COHORT_LENDABLE: "lendable",
}
CLUSTER_QUEUE = (
    m.CLUSTER_QUEUE_INFO,
    m.CLUSTER_QUEUE_ACTIVE,
    *_OF_CLUSTER_QUEUE,
    m.CLUSTER_QUEUE_PENDING_WORKLOADS,
    m.CLUSTER_QUEUE_PENDING_UNITS,
    m.CLUSTER_QUEUE_OLDEST,
    m.CLUSTER_QUEUE_ADMITTED_WORKLOADS,
    m.CLUSTER_QUEUE_RESERVING_WORKLOADS,
)
COHORT = (
    m.COHORT_INFO,
    *_OF_COHORT,
    m.COHORT_PENDING_WORKLOADS,
    m.COHORT_PENDING_UNITS,
    m.COHORT_OLDEST,
)
LOCAL_QUEUE = (
    m.LOCAL_QUEUE_INFO,
    m.LOCAL_QUEUE_ACTIVE,
    m.LOCAL_QUEUE_RESERVED,
    m.LOCAL_QUEUE_USED,
    m.LOCAL_QUEUE_PENDING_WORKLOADS,
    m.LOCAL_QUEUE_PENDING_UNITS,
    m.LOCAL_QUEUE_OLDEST,
    m.LOCAL_QUEUE_FAIR_USAGE,
    m.LOCAL_QUEUE_FAIR_USAGE_SEEN,
    m.LOCAL_QUEUE_FAIR_WEIGHT,
)
VOLCANO_QUEUE = (
    m.VOLCANO_QUEUE_INFO,
    m.VOLCANO_QUEUE_WEIGHT,
    m.VOLCANO_QUEUE_DESERVED,
    m.VOLCANO_QUEUE_GUARANTEE,
    m.VOLCANO_QUEUE_CAPABILITY,
    m.VOLCANO_QUEUE_ALLOCATED,
    m.VOLCANO_QUEUE_POD_GROUPS,
    m.VOLCANO_QUEUE_PENDING_UNITS,
    m.VOLCANO_QUEUE_OLDEST,
)
_Quotas = Iterable[tuple[FlavorResource, int | None]]


def write_cluster_queue(view: ClusterQueueView) -> Sequence[bytes]:
    """One text for each of CLUSTER_QUEUE."""
    queue = view.queue
    name = (queue.name,)
    return (
        line(m.CLUSTER_QUEUE_INFO, (*name, queue.cohort, queue.strategy), 1),
        _active(m.CLUSTER_QUEUE_ACTIVE, name, view.is_active, view.reason),
        *_all_quotas(_OF_CLUSTER_QUEUE, name, view.quotas),
        *_pending(
            m.CLUSTER_QUEUE_PENDING_WORKLOADS,
            m.CLUSTER_QUEUE_PENDING_UNITS,
            m.CLUSTER_QUEUE_OLDEST,
            name,
            view.pending,
        ),
        _count(m.CLUSTER_QUEUE_ADMITTED_WORKLOADS, name, view.admitted),
        _count(m.CLUSTER_QUEUE_RESERVING_WORKLOADS, name, view.reserving),
    )


def write_cohort(view: CohortView) -> Sequence[bytes]:
    """One text for each of COHORT."""
    name = (view.name,)
    return (
        line(m.COHORT_INFO, (*name, view.parent), 1),
        *_all_quotas(_OF_COHORT, name, view.quotas),
        *_pending(m.COHORT_PENDING_WORKLOADS, m.COHORT_PENDING_UNITS, m.COHORT_OLDEST, name, view.pending),
    )


def _others(views: Sequence[LocalQueueView]) -> Mapping[str, LocalQueueView]:
    """Sums, in a LocalQueue that leads nowhere."""
    meta = views[0].queue.meta
    reserved, used = Counter[FlavorResource](), Counter[FlavorResource]()
    workloads, units = Counter[str](), Counter[tuple[str, str]]()
    waiting = [each.pending for each in views if each.pending is not None]
    for each in views:
        reserved.update(each.reserved)
        used.update(each.used)
    for pending in waiting:
        workloads.update(pending.workloads)
        units.update(pending.units)
    oldest_ms = min((each.oldest_ms for each in waiting if each.oldest_ms is not None), default=None)
    one = LocalQueueView(
        LocalQueue(replace(meta, name=OTHERS, uid=others_uid(meta.namespace)), ""),
        is_active=None,
        reason="",
        reserved=reserved,
        used=used,
        pending=PendingWorkloads(workloads, units, oldest_ms) if waiting else None,
        from_status=views[0].from_status,
    )
    return {"/".join((meta.namespace, OTHERS)): one}


LOCAL_LIMIT = NamespaceLimit[LocalQueueView](
    lambda view: view.queue.meta.namespace,
    lambda view: (view.queue.meta.created_ms, view.queue.meta.name),
    _others,
)


def write_local_queue(view: LocalQueueView) -> Sequence[bytes]:
    """One text for each of LOCAL_QUEUE."""
    meta = view.queue.meta
    name = (meta.namespace, meta.name)
    return (
        line(m.LOCAL_QUEUE_INFO, (*name, view.queue.cluster_queue), 1),
        _active(m.LOCAL_QUEUE_ACTIVE, name, view.is_active, view.reason),
        _quotas(m.LOCAL_QUEUE_RESERVED, name, view.reserved.items()),
        _quotas(m.LOCAL_QUEUE_USED, name, view.used.items()),
        *_pending(
            m.LOCAL_QUEUE_PENDING_WORKLOADS,
            m.LOCAL_QUEUE_PENDING_UNITS,
            m.LOCAL_QUEUE_OLDEST,
            name,
            view.pending,
        ),
        _fair_usage(name, view.queue),
        _instant(m.LOCAL_QUEUE_FAIR_USAGE_SEEN, name, view.queue.fair_usage_ms),
        line(m.LOCAL_QUEUE_FAIR_WEIGHT, name, float(view.queue.weight)) if view.is_fair else b"",
    )


def _fair_usage(name: tuple[str, ...], queue: LocalQueue) -> bytes:
    """Thousandths as whole units."""
    found = queue.fair_usage.items()
    return b"".join(line(m.LOCAL_QUEUE_FAIR_USAGE, (*name, each), amount / 1000) for each, amount in found)


def write_volcano_queue(view: VolcanoQueueView) -> Sequence[bytes]:
    """One text for each of VOLCANO_QUEUE."""
    queue = view.queue
    name = (queue.name,)
    phases = (line(m.VOLCANO_QUEUE_POD_GROUPS, (*name, phase), n) for phase, n in view.pod_groups.items())
    return (
        line(m.VOLCANO_QUEUE_INFO, (*name, queue.parent, queue.state), 1),
        line(m.VOLCANO_QUEUE_WEIGHT, name, queue.weight),
        _amounts(m.VOLCANO_QUEUE_DESERVED, name, queue.deserved),
        _amounts(m.VOLCANO_QUEUE_GUARANTEE, name, queue.guarantee),
        _amounts(m.VOLCANO_QUEUE_CAPABILITY, name, queue.capability),
        _amounts(m.VOLCANO_QUEUE_ALLOCATED, name, view.allocated),
        b"".join(phases),
        _amounts(m.VOLCANO_QUEUE_PENDING_UNITS, name, view.pending_units),
        _instant(m.VOLCANO_QUEUE_OLDEST, name, view.oldest_pending_ms),
    )


def _active(spec: MetricSpec, name: tuple[str, ...], is_active: bool | None, reason: str) -> bytes:
    if is_active is None:
        return b""
    return line(spec, (*name, "" if is_active else reason), is_active)


def _all_quotas(
    specs: Mapping[MetricSpec, str], name: tuple[str, ...], quotas: Mapping[FlavorResource, object]
) -> Iterator[bytes]:
    for spec, quantity in specs.items():
        yield _quotas(spec, name, ((key, getattr(quota, quantity)) for key, quota in quotas.items()))


def _quotas(spec: MetricSpec, name: tuple[str, ...], quotas: _Quotas) -> bytes:
    return b"".join(
        line(spec, (*name, *key), base_units(key.resource, amount))
        for key, amount in quotas
        if amount is not None
    )


def _amounts(spec: MetricSpec, name: tuple[str, ...], amounts: Resources | None) -> bytes:
    known = amounts or {}
    return b"".join(line(spec, (*name, each), base_units(each, amount)) for each, amount in known.items())


def _pending(
    workloads: MetricSpec,
    units: MetricSpec,
    oldest: MetricSpec,
    name: tuple[str, ...],
    pending: PendingWorkloads | None,
) -> tuple[bytes, bytes, bytes]:
    if pending is None:
        return b"", b"", b""
    counts: Mapping[str, int] = pending.workloads
    return (
        b"".join(line(workloads, (*name, reason), count) for reason, count in counts.items()),
        b"".join(line(units, (*name, *key), count) for key, count in pending.units.items()),
        _instant(oldest, name, pending.oldest_ms),
    )


def _count(spec: MetricSpec, name: tuple[str, ...], count: int | None) -> bytes:
    return b"" if count is None else line(spec, name, count)


def _instant(spec: MetricSpec, name: tuple[str, ...], instant_ms: int | None) -> bytes:
    return b"" if instant_ms is None else line(spec, name, instant_ms / 1000)
