"""A cluster in the schema of recorded cases, as far as the schema can express it.

``CaseNames`` writes real names, ``CaseAliases`` aliases that reveal nothing and keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpucost.advisor.verify.case_objects import HOLDING, MISSING, PENDING
from gpucost.advisor.verify.case_schema import CYCLE
from gpucost.cluster.objects.kueue import (
    ClusterQueue,
    Cohort,
    FlavorResource,
    ResourceFlavor,
    Workload,
)
from gpucost.cluster.objects.metadata import CPU, is_false, is_true
from gpucost.cluster.objects.pods import PodSet, SelectorRequirement, Toleration
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.node_fit import meets

_DIGITS = 5


class CaseNames:
    """Names as they are."""

    is_anonymous = False

    def of(self, kind: str, name: str) -> str:
        """The name to write. ``kind`` is the kind of the object (``queue``, ``flavor``). An empty name stays
        empty."""
        del kind
        return name

    def learn(self, kind: str, names: Iterable[str]) -> None:
        """Announces names in the order that their aliases are to have."""
        del kind, names


class CaseAliases(CaseNames):
    """``queue-00001`` and so on: the same for the same name while this lives, so over all cases of a file."""

    is_anonymous = True

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}

    def of(self, kind: str, name: str) -> str:
        if not name:
            return ""
        alias = self._known.get((kind, name))
        if alias is None:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            alias = self._known[kind, name] = f"{kind}-{self._counts[kind]:0{_DIGITS}}"
        return alias

    def learn(self, kind: str, names: Iterable[str]) -> None:
        for name in names:
            self.of(kind, name)


CaseDocument = dict[str, Any]


class CaseWriter:
    """Documents of one state, whose time is the now of its case."""

    def __init__(self, state: ClusterState, names: CaseNames) -> None:
        self._state, self._names = state, names
        self._ranks = {uid: f"{at:06}" for at, uid in enumerate(sorted(state.workloads))}
        for kind, found in (
            ("queue", sorted(state.cluster_queue_by_name)),
            ("cohort", sorted(state.cohort_by_name)),
            ("flavor", sorted(state.flavor_by_name)),
            ("workload", sorted(state.workloads)),
        ):
            names.learn(kind, found)

    def case(self, workloads: Iterable[Workload], config: KueueConfig) -> CaseDocument:
        """All but its id and what is expected. ``workloads`` are those that take part."""
        state = self._state
        named = {key.flavor for each in state.cluster_queues.values() for key in each.quotas}
        missing = sorted(named - set(state.flavor_by_name))
        document: CaseDocument = {
            "level": CYCLE,
            "config": {
                "fairSharing": config.fair_sharing,
                "preemptionStrategies": list(config.strategies) if config.fair_sharing else None,
            },
            "resourceFlavors": [self._flavor(each) for _, each in sorted(state.flavor_by_name.items())],
            "cohorts": [self._cohort(each) for _, each in sorted(state.cohort_by_name.items())],
            "clusterQueues": [self._queue(each) for _, each in sorted(state.cluster_queue_by_name.items())],
            "workloads": [self._workload(each) for each in sorted(workloads, key=lambda each: each.meta.uid)],
        }
        if missing:
            document["unusableFlavors"] = {self.named("flavor", each): MISSING for each in missing}
        return document

    def named(self, kind: str, name: str) -> str:
        return self._names.of(kind, name)

    def workload_name(self, each: Workload) -> str:
        """Aliases follow the order of uids, by which Kueue breaks ties."""
        return self.named("workload", each.meta.uid) if self._names.is_anonymous else each.meta.name

    def key(self, each: Workload) -> str:
        """Of the workload within its case."""
        return f"{self.named('namespace', each.meta.namespace)}/{self.workload_name(each)}"

    def pod_sets(self, each: Workload) -> list[CaseDocument]:
        """What its pod sets were given."""
        return [
            {
                "name": self.named("podset", given.name),
                "count": given.count,
                "flavors": {key: self.named("flavor", flavor) for key, flavor in given.flavors.items()},
            }
            for given in each.assignments
        ]

    def _queue(self, each: ClusterQueue) -> CaseDocument:
        return {
            "name": self.named("queue", each.name),
            "cohortName": self.named("cohort", each.cohort) or None,
            "queueingStrategy": each.strategy,
            "stopPolicy": self._stop_policy(each),
            "resourceGroups": self._groups(each),
            "preemption": {
                "withinClusterQueue": each.preemption.within_cluster_queue,
                "reclaimWithinCohort": each.preemption.reclaim_within_cohort,
                "borrowWithinCohort": {
                    "policy": each.preemption.borrow_within_cohort,
                    "maxPriorityThreshold": each.preemption.max_priority_threshold,
                },
            },
            "flavorFungibility": {
                "whenCanBorrow": each.fungibility.when_can_borrow,
                "whenCanPreempt": each.fungibility.when_can_preempt,
                "preference": each.fungibility.preference or None,
            },
            "fairSharingWeight": _decimal(float(each.weight)),
            "admitsNamespaces": self._admitted(each),
        }

    def _stop_policy(self, each: ClusterQueue) -> str | None:
        """A queue that is inactive for a reason that the schema has no word for is written as stopped."""
        flavors = {flavor for group in each.groups for flavor in group.flavors}
        if each.stop_policy == "None" and is_false(each.conditions, "Active"):
            return "Hold" if flavors <= set(self._state.flavor_by_name) else None
        return None if each.stop_policy == "None" else each.stop_policy

    def _admitted(self, each: ClusterQueue) -> list[str] | None:
        """Null where it is every namespace, by name."""
        selector = each.namespace_selector
        if selector == ():
            return None
        found = sorted(self._state.namespace_by_name.items())
        taken = [
            name
            for name, namespace in found
            if selector is not None and all(meets(line, namespace.meta.labels) for line in selector)
        ]
        return [self.named("namespace", name) for name in taken]

    def _cohort(self, each: Cohort) -> CaseDocument:
        return {
            "name": self.named("cohort", each.name),
            "parentName": self.named("cohort", each.parent) or None,
            "resourceGroups": self._groups(each),
            "fairSharingWeight": _decimal(float(each.weight)),
        }

    def _groups(self, each: ClusterQueue | Cohort) -> list[CaseDocument]:
        return [
            {
                "coveredResources": list(group.resources),
                "flavors": [
                    {
                        "name": self.named("flavor", flavor),
                        "resources": [
                            _quota(each, FlavorResource(flavor, resource))
                            for resource in group.resources
                            if FlavorResource(flavor, resource) in each.quotas
                        ],
                    }
                    for flavor in group.flavors
                ],
            }
            for group in each.groups
        ]

    def _flavor(self, each: ResourceFlavor) -> CaseDocument:
        return {
            "name": self.named("flavor", each.meta.name),
            "nodeLabels": self._labels(each.node_labels),
            "nodeTaints": [
                {**self._pair(taint.key, taint.value), "effect": taint.effect} for taint in each.taints
            ],
            "tolerations": self._tolerations(each.tolerations),
        }

    def _workload(self, each: Workload) -> CaseDocument:
        now_ms, queue = self._state.at_ms, self.cluster_queue(each)
        document: CaseDocument = {
            "name": self.workload_name(each),
            "uid": self._ranks[each.meta.uid] if self._names.is_anonymous else each.meta.uid,
            "namespace": self.named("namespace", each.meta.namespace),
            "clusterQueue": self.named("queue", queue) or None,
            "role": HOLDING if each.has_quota else PENDING,
            "priority": each.priority,
            "podSets": [self._pod_set(pods) for pods in each.pod_sets],
            "createdAtSecondsFromNow": _seconds(each.meta.created_ms - now_ms),
        }
        if each.has_quota:
            since_ms = each.reserved_ms
            document["reservation"] = {
                "podSets": self.pod_sets(each),
                "reservedAtSecondsFromNow": _seconds((now_ms if since_ms is None else since_ms) - now_ms),
            }
        if is_true(each.conditions, "Evicted"):
            evicted_ms = each.conditions["Evicted"].since_ms
            document["alreadyEvicted"] = True
            document["evictedAtSecondsFromNow"] = (
                None if evicted_ms is None else _seconds(evicted_ms - now_ms)
            )
        return document

    def cluster_queue(self, each: Workload) -> str:
        """The name of the ClusterQueue where it has or asks for quota; empty where its LocalQueue leads
        nowhere."""
        queue = self._state.local_queue_by_name.get((each.meta.namespace, each.queue))
        return each.cluster_queue or (queue.cluster_queue if queue is not None else "")

    def _pod_set(self, pods: PodSet) -> CaseDocument:
        template = pods.template
        document: CaseDocument = {
            "name": self.named("podset", pods.name),
            "count": pods.count,
            "requestsPerPod": {key: quantity(key, amount) for key, amount in template.requests.items()},
            "nodeSelector": self._labels(template.node_selector),
            "tolerations": self._tolerations(template.tolerations),
            "requiredNodeAffinity": [
                self._requirement(line) for term in template.affinity[:1] for line in term
            ],
        }
        return document if pods.min_count is None else {**document, "minCount": pods.min_count}

    def _requirement(self, line: SelectorRequirement) -> CaseDocument:
        is_bound = line.operator in ("Gt", "Lt")
        values = list(line.values) if is_bound else [self.named("value", each) for each in line.values]
        return {"key": self.named("key", line.key), "operator": line.operator, "values": values}

    def _tolerations(self, found: Iterable[Toleration]) -> list[CaseDocument]:
        return [
            {
                **self._pair(each.key, each.value),
                "operator": "Exists" if each.exists else "Equal",
                "effect": each.effect,
            }
            for each in found
        ]

    def _pair(self, key: str, value: str) -> CaseDocument:
        return {"key": self.named("key", key), "value": self.named("value", value)}

    def _labels(self, labels: Mapping[str, str]) -> CaseDocument:
        return {self.named("key", key): self.named("value", value) for key, value in labels.items()}


def quantity(resource: str, amount: int) -> str:
    """As Kubernetes writes it, exactly."""
    if resource != CPU:
        return str(amount)
    return f"{amount}m" if amount % 1000 else str(amount // 1000)


def _quota(each: ClusterQueue | Cohort, key: FlavorResource) -> CaseDocument:
    found = each.quotas[key]
    limits = {"borrowingLimit": found.borrowing_limit, "lendingLimit": found.lending_limit}
    return {
        "name": key.resource,
        "nominalQuota": quantity(key.resource, found.nominal),
        **{name: None if limit is None else quantity(key.resource, limit) for name, limit in limits.items()},
    }


def _seconds(ms: int) -> int | float:
    return ms // 1000 if ms % 1000 == 0 else ms / 1000


def _decimal(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)
