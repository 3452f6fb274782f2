"""The cluster of a recorded case as typed objects, as Kueue's own objects would be read.

``CaseCluster`` makes the state; ``workload`` makes its workloads, pending or with quota.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import TypeVar

from gpucost.advisor.verify.case_schema import (
    NOW_MS,
    JsonFields,
    fields,
    items,
    quantity_of,
    text,
)
from gpucost.cluster.objects.jobs import Namespace
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
from gpucost.cluster.objects.metadata import (
    Conditions,
    ObjectMeta,
    StatusCondition,
    is_true,
)
from gpucost.cluster.objects.nodes import Taint
from gpucost.cluster.objects.pods import (
    PodSet,
    PodTemplate,
    SelectorRequirement,
    Toleration,
)
from gpucost.cluster.objects.scheduler_config import KueueConfig, SchedulerConfigs
from gpucost.cluster.objects.state import ClusterState
from gpucost.domain.errors import ErrorRemark, InputError

PENDING = "pending"
HOLDING = "holding-quota"
EFFECTS = ("", "NoSchedule", "PreferNoSchedule", "NoExecute")
_PODS = "pods"
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_OLDER_MS = 3_600_000
"""How much older a workload without a time of creation is than all that have one."""


def workload(part: JsonFields, uid: str, queue: str, cluster_queue: str, oldest_ms: int) -> Workload:
    """``queue`` is its LocalQueue, ``cluster_queue`` where that leads. ``oldest_ms`` is the earliest creation
    that the case gives, ``NOW_MS`` where it gives none."""
    name, namespace = part.name("name"), part.text("namespace", "")
    role = part.one_of("role", (PENDING, HOLDING))
    created = part.seconds("createdAtSecondsFromNow")
    created_ms = oldest_ms - _OLDER_MS if created is None else NOW_MS + created
    sets = tuple(pod_set(each) for each in part.objects("podSets"))
    _distinct([each.name for each in sets], part.at("podSets"))
    conditions, assignments = _reservation(part, role, sets)
    return Workload(
        ObjectMeta(uid, namespace, name, created_ms, {}, {}),
        sets,
        queue,
        part.whole("priority", 0),
        cluster_queue=cluster_queue if role == HOLDING else "",
        assignments=assignments,
        conditions={**conditions, **_evicted(part)},
    )


def tolerations(part: JsonFields) -> tuple[Toleration, ...]:
    return tuple(
        Toleration(
            each.text("key", ""),
            each.one_of("operator", ("Equal", "Exists"), "Equal") == "Exists",
            each.text("value", ""),
            each.one_of("effect", EFFECTS, ""),
        )
        for each in part.objects("tolerations")
    )


def pod_set(part: JsonFields) -> PodSet:
    asked = part.raw("requestsPerPod")
    requests = {} if asked is None else part.mapping("requestsPerPod", lambda found, at: (found, at))
    affinity = tuple(
        SelectorRequirement(each.text("key"), each.one_of("operator", _OPERATORS), each.texts("values"))
        for each in part.objects("requiredNodeAffinity")
    )
    template = PodTemplate(
        {name: quantity_of(name, found, at) for name, (found, at) in requests.items()},
        part.mapping("nodeSelector", text),
        (affinity,) if affinity else (),
        tolerations(part),
    )
    count = part.whole("count", None, 0)
    return PodSet(part.text("name", "main"), count, template, part.whole_or_none("minCount", 0))


def _reservation(
    part: JsonFields, role: str, sets: tuple[PodSet, ...]
) -> tuple[Conditions, tuple[PodSetAssignment, ...]]:
    found, path = part.raw("reservation"), part.at("reservation")
    if role == PENDING:
        if found is not None:
            raise InputError(path, ErrorRemark("given"), f"none for role {PENDING}")
        return {}, ()
    with fields({} if found is None else found, path) as inner:
        since_ms = NOW_MS + (inner.seconds("reservedAtSecondsFromNow") or 0)
        assignments = tuple(_assignment(each, sets) for each in inner.objects("podSets"))
    named = [each.name for each in assignments]
    _distinct(named, path)
    if sorted(named) != sorted(each.name for each in sets):
        raise InputError(f"{path}.podSets", ErrorRemark(", ".join(named) or "missing"), "each pod set, once")
    held = {each: StatusCondition(True, each, "", since_ms) for each in ("QuotaReserved", "Admitted")}
    return held, assignments


def _assignment(part: JsonFields, sets: tuple[PodSet, ...]) -> PodSetAssignment:
    name, count = part.name("name"), part.whole("count", None, 0)
    flavors = part.mapping("flavors", text)
    requests: Mapping[str, int] = next((each.template.requests for each in sets if each.name == name), {})
    usage = {resource: amount * count for resource, amount in requests.items()}
    if _PODS in flavors:
        usage[_PODS] = count
    return PodSetAssignment(name, flavors, usage, count)


def _evicted(part: JsonFields) -> Conditions:
    since = part.seconds("evictedAtSecondsFromNow")
    if not part.flag("alreadyEvicted"):
        if since is not None:
            raise InputError(
                part.at("evictedAtSecondsFromNow"), ErrorRemark("given"), "none unless alreadyEvicted"
            )
        return {}
    return {"Evicted": StatusCondition(True, "Preempted", "", NOW_MS + (since or 0))}


def _distinct(names: list[str], path: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InputError(path, name, "each name once")


T = TypeVar("T", ClusterQueue, Cohort, ResourceFlavor)

TAINTED, MISSING = "tainted", "missing"
MAIN = "main"
"""The LocalQueue of a namespace that uses one ClusterQueue."""
NOWHERE = "nowhere"
"""A LocalQueue that does not exist."""
NAMESPACE_LABEL = "kubernetes.io/metadata.name"
_TAINT = Taint("instance", "spot", "NoSchedule")
"""For a flavor that the case only marks as tainted: the one that Kueue's own tests use (kueue v0.19.2,
pkg/scheduler/scheduler_test.go)."""
_NEVER = ("Never", "")
_WITHIN = ("LowerPriority", "LowerOrNewerEqualPriority", *_NEVER)
_RECLAIM = ("LowerPriority", "Any", *_NEVER)
_BORROW = ("LowerPriority", *_NEVER)
_SEARCH = ("MayStopSearch", "TryNextFlavor")
_PREFERENCES = ("BorrowingOverPreemption", "PreemptionOverBorrowing", "")
_MADE_MS = NOW_MS - 20 * 365 * 86_400_000
"""When queues and flavors were made: before anything else."""


class CaseCluster:
    """The cluster of one case. Raises InputError for the first invalid field. Uids of workloads are their
    names, so that ties are broken by name; with the namespace appended where two have the same name."""

    def __init__(self, case: JsonFields) -> None:
        unusable = case.mapping("unusableFlavors", _unusable)
        self._missing = {name for name, how in unusable.items() if how == MISSING}
        queues = [self._cluster_queue(each) for each in case.objects("clusterQueues")]
        cohorts = [_cohort(each) for each in case.objects("cohorts")]
        given = [_flavor(each) for each in case.objects("resourceFlavors")]
        self.cluster_queues = _by_name(queues, case.at("clusterQueues"))
        self.cohorts = _by_name(cohorts, case.at("cohorts"))
        self._given = _by_name(given, case.at("resourceFlavors"))
        self._tainted = {name for name, how in unusable.items() if how == TAINTED}
        self._lines = _Lines(case)
        self.workloads: dict[str, Workload] = {}
        self.keys: dict[str, str] = {}
        for part in case.objects("workloads"):
            self._add(part)

    def state(self, config: KueueConfig) -> ClusterState:
        """At ``NOW_MS``."""
        places = sorted({each.meta.namespace for each in self.workloads.values()} | set(self.cluster_queues))
        local = self._lines.local_queues
        return ClusterState(
            NOW_MS,
            namespaces={f"namespace/{name}": Namespace(_meta(name, f"namespace/{name}")) for name in places},
            cluster_queues=self.cluster_queues,
            local_queues={each.meta.uid: each for each in local},
            cohorts=self.cohorts,
            flavors=self._flavors(),
            workloads=self.workloads,
            schedulers=SchedulerConfigs(config),
        )

    def is_served(self, each: Workload) -> bool:
        """Whether a pending workload is in a ClusterQueue that is there and active."""
        name = self._lines.leads[each.meta.namespace, each.queue] if each.queue != NOWHERE else ""
        queue = self.cluster_queues.get(name)
        return queue is not None and is_true(queue.conditions, "Active")

    def _flavors(self) -> dict[str, ResourceFlavor]:
        """The flavors that the case describes, and the others that its quotas or workloads name, without
        rules."""
        named = {flavor for each in self.cluster_queues.values() for flavor in _named(each)}
        named |= {flavor for each in self.cohorts.values() for flavor in _named(each)}
        found = {name: ResourceFlavor(_meta(name)) for name in sorted(named | self._tainted)} | self._given
        for name in self._tainted:
            old = found[name]
            found[name] = ResourceFlavor(old.meta, old.node_labels, (*old.taints, _TAINT), old.tolerations)
        return {name: each for name, each in found.items() if name not in self._missing}

    def _add(self, part: JsonFields) -> None:
        name, namespace = part.name("name"), part.text("namespace", "")
        key = f"{namespace}/{name}"
        if key in self.keys.values():
            raise InputError(part.at("name"), key, "each workload once")
        uid = part.text("uid", "") or (f"{name} {namespace}" if name in self.workloads else name)
        if uid in self.workloads:
            raise InputError(part.at("uid"), uid, "another one for each workload")
        queue, cluster_queue = self._lines.of(part)
        self.workloads[uid] = workload(part, uid, queue, cluster_queue, self._lines.oldest_ms)
        self.keys[uid] = key

    def _cluster_queue(self, part: JsonFields) -> ClusterQueue:
        groups, quotas = _groups(part)
        absent = sorted({flavor for group in groups for flavor in group.flavors} & self._missing)
        active = StatusCondition(True, "Ready", "Can admit new workloads", _MADE_MS)
        if absent:
            said = f"Can't admit new workloads: references missing ResourceFlavor(s): {','.join(absent)}."
            active = StatusCondition(False, "FlavorNotFound", said, _MADE_MS)
        return ClusterQueue(
            _meta(part.name("name")),
            part.text("cohortName", ""),
            part.one_of("queueingStrategy", ("BestEffortFIFO", "StrictFIFO"), "BestEffortFIFO"),
            groups,
            quotas,
            _preemption(part),
            _fungibility(part),
            _selector(part),
            weight=part.number("fairSharingWeight", Fraction(1)),
            stop_policy=part.one_of("stopPolicy", ("None", "Hold", "HoldAndDrain"), "None"),
            conditions={"Active": active},
        )


class _Lines:
    """Which LocalQueue leads to which ClusterQueue: one for each pair of namespace and ClusterQueue."""

    def __init__(self, case: JsonFields) -> None:
        found = items(case.raw("workloads") or [], case.at("workloads"))
        parts = [JsonFields(each, case.at(f"workloads[{place}]")) for place, each in enumerate(found)]
        pairs = [(each.text("namespace", ""), each.text_or_none("clusterQueue")) for each in parts]
        created = [each.seconds("createdAtSecondsFromNow") for each in parts]
        self.oldest_ms = NOW_MS + min((each for each in created if each is not None), default=0)
        self._names: dict[tuple[str, str], str] = {}
        used: dict[str, list[str]] = {}
        for namespace, cluster_queue in pairs:
            if cluster_queue is not None and cluster_queue not in used.setdefault(namespace, []):
                used[namespace].append(cluster_queue)
        for namespace, queues in used.items():
            for each in queues:
                self._names[namespace, each] = MAIN if len(queues) == 1 else each

    def of(self, part: JsonFields) -> tuple[str, str]:
        """The LocalQueue of a workload and where it leads; one that does not exist where that is null."""
        cluster_queue = part.text_or_none("clusterQueue")
        if cluster_queue is None:
            return NOWHERE, ""
        return self._names[part.text("namespace", ""), cluster_queue], cluster_queue

    @property
    def leads(self) -> dict[tuple[str, str], str]:
        """ClusterQueues by namespace and LocalQueue."""
        return {(namespace, name): queue for (namespace, queue), name in self._names.items()}

    @property
    def local_queues(self) -> list[LocalQueue]:
        return [
            LocalQueue(_meta(name, f"{namespace}/{name}", namespace), cluster_queue)
            for (namespace, name), cluster_queue in self.leads.items()
        ]


def flavor_name(found: object, path: str) -> str:
    return text(found, path)


def _meta(name: str, uid: str = "", namespace: str = "") -> ObjectMeta:
    labels = {} if uid != f"namespace/{name}" else {NAMESPACE_LABEL: name}
    return ObjectMeta(uid or name, namespace, name, _MADE_MS, labels, {})


def _groups(part: JsonFields) -> tuple[tuple[ResourceGroup, ...], dict[FlavorResource, FlavorQuota]]:
    groups: list[ResourceGroup] = []
    quotas: dict[FlavorResource, FlavorQuota] = {}
    for group in part.objects("resourceGroups"):
        flavors = []
        for flavor in group.objects("flavors"):
            flavors.append(flavor.name("name"))
            for each in flavor.objects("resources"):
                key = FlavorResource(flavors[-1], each.name("name"))
                if key in quotas:
                    raise InputError(each.at("name"), key.resource, "each resource of a flavor once")
                quotas[key] = _quota(each, key.resource)
        groups.append(ResourceGroup(group.texts("coveredResources"), tuple(flavors)))
    return tuple(groups), quotas


def _quota(part: JsonFields, resource: str) -> FlavorQuota:
    return FlavorQuota(
        part.amount("nominalQuota", resource),
        part.amount_or_none("borrowingLimit", resource),
        part.amount_or_none("lendingLimit", resource),
    )


def _preemption(part: JsonFields) -> ClusterQueuePreemption:
    with fields(part.raw("preemption") or {}, part.at("preemption")) as inner:
        with fields(inner.raw("borrowWithinCohort") or {}, inner.at("borrowWithinCohort")) as borrowing:
            policy = borrowing.one_of("policy", _BORROW, "Never")
            threshold = borrowing.whole_or_none("maxPriorityThreshold")
        within = inner.one_of("withinClusterQueue", _WITHIN, "Never")
        return ClusterQueuePreemption(
            within, inner.one_of("reclaimWithinCohort", _RECLAIM, "Never"), policy, threshold
        )


def _fungibility(part: JsonFields) -> FlavorFungibility:
    with fields(part.raw("flavorFungibility") or {}, part.at("flavorFungibility")) as inner:
        return FlavorFungibility(
            inner.one_of("whenCanBorrow", _SEARCH, "MayStopSearch"),
            inner.one_of("whenCanPreempt", _SEARCH, "TryNextFlavor"),
            inner.one_of("preference", _PREFERENCES, ""),
        )


def _selector(part: JsonFields) -> tuple[SelectorRequirement, ...] | None:
    """Every namespace where nothing is said."""
    if part.raw("admitsNamespaces") is None:
        return ()
    names = part.texts("admitsNamespaces")
    return (SelectorRequirement(NAMESPACE_LABEL, "In", names),) if names else None


def _cohort(part: JsonFields) -> Cohort:
    groups, quotas = _groups(part)
    weight = part.number("fairSharingWeight", Fraction(1))
    return Cohort(_meta(part.name("name")), part.text("parentName", ""), groups, quotas, weight)


def _flavor(part: JsonFields) -> ResourceFlavor:
    taints = tuple(
        Taint(each.text("key"), each.text("value", ""), each.one_of("effect", EFFECTS[1:]))
        for each in part.objects("nodeTaints")
    )
    return ResourceFlavor(
        _meta(part.name("name")), part.mapping("nodeLabels", text), taints, tolerations(part)
    )


def _unusable(found: object, path: str) -> str:
    if found not in (TAINTED, MISSING):
        raise InputError(path, found, f"{TAINTED} or {MISSING}")
    return text(found, path)


def _named(each: ClusterQueue | Cohort) -> Iterable[str]:
    return (flavor for group in each.groups for flavor in group.flavors)


def _by_name(found: list[T], path: str) -> dict[str, T]:
    by_name: dict[str, T] = {}
    for each in found:
        if each.meta.name in by_name:
            raise InputError(path, each.meta.name, "each name once")
        by_name[each.meta.name] = each
    return by_name
