"""Clusters with Kueue's objects in few words, for tests of the advisor.

Amounts are as people say them: GPUs and pods in whole units, cpu in cores. Uids are names. Times are seconds
before ``NOW``, at which every state is looked at. Small objects of other kinds: ``tests.cluster.builders``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from gpucost.cluster.objects.kueue import (
    ClusterQueue,
    ClusterQueuePreemption,
    Cohort,
    FlavorFungibility,
    FlavorQuota,
    FlavorResource,
    LocalQueue,
    PodSetAssignment,
    ResourceFlavor,
    ResourceGroup,
    Workload,
)
from gpucost.cluster.objects.kueue import Topology as Topology
from gpucost.cluster.objects.metadata import ObjectMeta, StatusCondition
from gpucost.cluster.objects.nodes import Node, Taint
from gpucost.cluster.objects.pods import (
    PodSet,
    PodTemplate,
    SelectorRequirement,
    Toleration,
)
from gpucost.cluster.objects.scheduler_config import KueueConfig, SchedulerConfigs, VolcanoConfig
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.overview import ClusterOverview
from tests.cluster import builders
from tests.cluster.builders import GPU, T0

NOW = T0 + 60 * builders.MINUTE
"""2026-10-24T01:00:00Z, in ms."""
FLAVOR = "h100"
"""Of quota and holdings, where a test names none."""
MAIN = "main"
"""Every ClusterQueue has a LocalQueue of this name, in a namespace of its own name."""

Amount = int | float | FlavorQuota
Amounts = Amount | Mapping[str, Amount] | None
"""Of one resource, by flavor; one number is of every flavor that the GPUs are in, else of ``FLAVOR``. A Quota
is taken as it is, in Kueue's units."""


def meta(
    name: str,
    namespace: str = "",
    *,
    created: float = 7200,
    uid: str = "",
    labels: Mapping[str, str] | None = None,
) -> ObjectMeta:
    """``created`` in seconds before ``NOW``."""
    return builders.meta(
        name, namespace, uid=uid or name, created_ms=NOW - round(created * 1000), labels=labels
    )


def queue(
    name: str,
    gpu: Amounts = None,
    *,
    cohort: str = "",
    cpu: Amounts = None,
    memory: Amounts = None,
    pods: Amounts = None,
    resources: Mapping[str, Amounts] | None = None,
    borrowing: float | None = None,
    lending: float | None = None,
    strict: bool = False,
    within: str = "Never",
    reclaim: str = "Never",
    borrow: str = "Never",
    threshold: int | None = None,
    can_borrow: str = "MayStopSearch",
    can_preempt: str = "TryNextFlavor",
    preference: str = "",
    weight: Fraction | int = 1,
    is_active: bool = True,
    reason: str = "",
    groups: tuple[ResourceGroup, ...] | None = None,
    **fields: Any,
) -> ClusterQueue:
    """An active ClusterQueue that any namespace may use.

    ``borrowing`` and ``lending`` are limits of every GPU quota that is given as a number. Resources of the
    same flavors are one resource group, unless ``groups`` says otherwise. Without ``is_active`` its Active
    condition is False for ``reason``. ``within``, ``reclaim``, ``borrow`` and ``threshold`` are of its
    preemption; more fields of ClusterQueue by keyword.
    """
    amounts = {GPU: gpu, "cpu": cpu, "memory": memory, "pods": pods, **(resources or {})}
    found_groups, quotas = _quotas(amounts, borrowing, lending)
    active = StatusCondition(is_active, reason or ("Ready" if is_active else "Stopped"), "", NOW - 7_200_000)
    return ClusterQueue(
        meta(name),
        cohort,
        "StrictFIFO" if strict else "BestEffortFIFO",
        found_groups if groups is None else groups,
        quotas,
        ClusterQueuePreemption(within, reclaim, borrow, threshold),
        FlavorFungibility(can_borrow, can_preempt, preference),
        weight=Fraction(weight),
        **{"namespace_selector": (), "conditions": {"Active": active}, **fields},
    )


def cohort(
    name: str,
    gpu: Amounts = None,
    *,
    parent: str = "",
    cpu: Amounts = None,
    resources: Mapping[str, Amounts] | None = None,
    borrowing: float | None = None,
    lending: float | None = None,
    weight: Fraction | int = 1,
) -> Cohort:
    """As ``queue``."""
    groups, quotas = _quotas({GPU: gpu, "cpu": cpu, **(resources or {})}, borrowing, lending)
    return Cohort(meta(name), parent, groups, quotas, Fraction(weight))


def flavor(
    name: str = FLAVOR,
    labels: Mapping[str, str] | None = None,
    *,
    taints: tuple[Taint, ...] = (),
    tolerations: tuple[Toleration, ...] = (),
    topology: str = "",
) -> ResourceFlavor:
    """``labels`` are those of its nodes."""
    return ResourceFlavor(meta(name), labels or {}, taints, tolerations, topology)


def taint(key: str, value: str = "", effect: str = "NoSchedule") -> Taint:
    return Taint(key, value, effect)


def tolerates(key: str, value: str | None = None, effect: str = "") -> Toleration:
    """Any value of a taint, unless one is named."""
    return Toleration(key, value is None, value or "", effect)


def pod_set(
    name: str = MAIN,
    pods: int = 1,
    gpus: int = 1,
    *,
    cpu: float = 0,
    least: int | None = None,
    more: Mapping[str, int] | None = None,
    tolerations: tuple[Toleration, ...] = (),
    selector: Mapping[str, str] | None = None,
    affinity: tuple[SelectorRequirement, ...] = (),
    topology: Mapping[str, str] | None = None,
) -> PodSet:
    """``pods`` pods of ``gpus`` GPUs, ``cpu`` cores and ``more`` each; ``least`` of them would do.

    ``affinity`` is one term of requirements that must all hold.
    """
    asked = {GPU: gpus, "cpu": round(cpu * 1000), **(more or {})}
    template = PodTemplate(
        {resource: amount for resource, amount in asked.items() if amount},
        selector or {},
        (affinity,) if affinity else (),
        tolerations,
    )
    return PodSet(name, pods, template, least, topology or {})


def workload(
    name: str,
    queue: str,
    gpus: int = 1,
    pods: int = 1,
    priority: int = 0,
    *,
    holding: bool = False,
    flavor: str | Mapping[str, str] = FLAVOR,
    pod_sets: tuple[PodSet, ...] | None = None,
    given: Mapping[str, int] | None = None,
    created: float = 3600,
    reserved: float = 1800,
    evicted: float | None = None,
    evicted_for: str = "Preempted",
    namespace: str = "",
    uid: str = "",
    rest: Mapping[str, Any] | None = None,
    **asked: Any,
) -> Workload:
    """Of ``pods`` pods of ``gpus`` GPUs each, in ``queue``; or of ``pod_sets``. Pending, unless ``holding``.

    One that holds quota has been admitted ``reserved`` seconds ago in ``flavor`` (one for all resources, or
    by resource), ``given`` pods by pod set, else all of them. With ``evicted`` it was evicted that many
    seconds ago; its quota stays reserved while it is ``holding``. ``rest`` are more fields of Workload; more
    keywords go to ``pod_set``.
    """
    sets = (pod_set(MAIN, pods, gpus, **asked),) if pod_sets is None else pod_sets
    conditions: dict[str, StatusCondition] = {}
    if holding:
        since = NOW - round(reserved * 1000)
        conditions = {each: StatusCondition(True, each, "", since) for each in ("QuotaReserved", "Admitted")}
    if evicted is not None:
        conditions["Evicted"] = StatusCondition(True, evicted_for, "", NOW - round(evicted * 1000))
    own = {
        "queue": MAIN,
        "priority": priority,
        "conditions": conditions,
        "cluster_queue": queue if holding else "",
        "assignments": tuple(_given(each, flavor, given) for each in sets) if holding else (),
        **(rest or {}),
    }
    return Workload(meta(name, namespace or queue, created=created, uid=uid), sets, **own)


def node(
    name: str,
    gpus: int = 8,
    *,
    cpu: float = 64,
    labels: Mapping[str, str] | None = None,
    more: Mapping[str, int] | None = None,
    **fields: Any,
) -> Node:
    """Ready, with ``cpu`` cores and 110 pods; more fields as in ``builders.node``."""
    has = {GPU: gpus, "cpu": round(cpu * 1000), "pods": 110, **(more or {})}
    return builders.node(name, gpus, labels=labels, allocatable=has, **fields)


def local_queue(name: str, cluster_queue: str, namespace: str, **fields: Any) -> LocalQueue:
    return LocalQueue(meta(name, namespace, uid=f"{namespace}/{name}"), cluster_queue, **fields)


def state(
    *objects: object,
    kueue: KueueConfig | None = None,
    volcano: VolcanoConfig | None = None,
    fair_sharing: bool = False,
    **collections: Any,
) -> ClusterState:
    """A state of these objects at ``NOW``. Kinds it does not know go by keyword (``topologies=[…]``).

    Every ClusterQueue has its LocalQueue ``main`` in a namespace of its own name. Namespaces that workloads
    are in, and flavors that quotas name, are there too unless a test makes its own.
    """
    queues = [each for each in objects if isinstance(each, ClusterQueue)]
    cohorts = [each for each in objects if isinstance(each, Cohort)]
    rest = [each for each in objects if not isinstance(each, Cohort)]
    quotas = [*(each.quotas for each in queues), *(each.quotas for each in cohorts)]
    own = {each.meta.name for each in objects if isinstance(each, ResourceFlavor)}
    named = {key.flavor for each in quotas for key in each}
    places = {each.name for each in queues}
    places |= {each.meta.namespace for each in objects if isinstance(each, Workload)}
    found = builders.state(
        *(local_queue(MAIN, each.name, each.name) for each in queues),
        *(builders.namespace(each, uid=f"namespace/{each}") for each in sorted(places)),
        *(flavor(each) for each in sorted(named - own)),
        *rest,
        at_ms=NOW,
        cohorts=cohorts,
        **collections,
    )
    config = kueue or KueueConfig(version="v0.19.2", fair_sharing=fair_sharing, is_read=True)
    return replace(found, schedulers=SchedulerConfigs(config, volcano or VolcanoConfig()))


def overview(*objects: object, **options: Any) -> ClusterOverview:
    """Of ``state``."""
    return ClusterOverview(state(*objects, **options))


def _quotas(
    resources: Mapping[str, Amounts], borrowing: float | None, lending: float | None
) -> tuple[tuple[ResourceGroup, ...], dict[FlavorResource, FlavorQuota]]:
    gpus = resources.get(GPU)
    usual = tuple(gpus) if isinstance(gpus, Mapping) else (FLAVOR,)
    groups: dict[tuple[str, ...], list[str]] = {}
    quotas: dict[FlavorResource, FlavorQuota] = {}
    for resource, amounts in resources.items():
        if amounts is None:
            continue
        by_flavor = amounts if isinstance(amounts, Mapping) else dict.fromkeys(usual, amounts)
        groups.setdefault(tuple(by_flavor), []).append(resource)
        limits = (borrowing, lending) if resource == GPU else (None, None)
        for name, amount in by_flavor.items():
            quotas[FlavorResource(name, resource)] = _quota(resource, amount, *limits)
    return tuple(ResourceGroup(tuple(names), flavors) for flavors, names in groups.items()), quotas


def _quota(resource: str, amount: Amount, borrowing: float | None, lending: float | None) -> FlavorQuota:
    if isinstance(amount, FlavorQuota):
        return amount
    scale = 1000 if resource == "cpu" else 1
    limits = (None if each is None else round(each * scale) for each in (borrowing, lending))
    return FlavorQuota(round(amount * scale), *limits)


def _given(
    pods: PodSet, flavor: str | Mapping[str, str], given: Mapping[str, int] | None
) -> PodSetAssignment:
    asked = pods.template.requests
    count = (given or {}).get(pods.name, pods.count)
    flavors = dict.fromkeys(asked, flavor) if isinstance(flavor, str) else dict(flavor)
    return PodSetAssignment(
        pods.name, flavors, {each: amount * count for each, amount in asked.items()}, count
    )
