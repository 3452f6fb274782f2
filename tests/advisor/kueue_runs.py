"""One cycle of Kueue's rules, for tests; and its quota arithmetic once more, the plain way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpucost.advisor.kueue.admission import AdmissionOutlook, KueueView
from gpucost.advisor.kueue.cycle import NominatedHead, nominate, run_cycle
from gpucost.advisor.kueue.pending_queues import standing
from gpucost.advisor.kueue.requests import QuotaRequest
from gpucost.advisor.kueue.snapshot import KueueSnapshot
from gpucost.advisor.model.cycle_results import CycleResult, PendingClass, WorkloadDecision
from gpucost.cluster.objects.kueue import FlavorQuota, FlavorResource
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.quota import QuotaUse, workload_usage
from tests.advisor import worlds
from tests.cluster.builders import GPU

GPUS = FlavorResource(worlds.FLAVOR, GPU)


def cycle_of(state: ClusterState) -> CycleResult:
    return run_cycle(state, state.schedulers.kueue)


def cycle(*objects: object, **options: Any) -> CycleResult:
    """Of ``worlds.state``."""
    return cycle_of(worlds.state(*objects, **options))


def decided(name: str, *objects: object, **options: Any) -> WorkloadDecision:
    """About one workload, in one cycle."""
    return cycle(*objects, **options).decisions[name]


def outcomes(result: CycleResult) -> dict[str, str]:
    """By workload; why it stays pending, for those that do."""
    return {
        name: str(each.pending if each.pending is not None else each.outcome)
        for name, each in result.decisions.items()
    }


def why(decision: WorkloadDecision) -> tuple[PendingClass | None, str]:
    return decision.pending, decision.reason


def flavors(decision: WorkloadDecision) -> dict[str, str]:
    """Of the GPUs, by pod set."""
    return {each.name: each.flavors.get(GPU, "") for each in decision.pod_sets}


def asked(snapshot: KueueSnapshot, name: str) -> QuotaRequest:
    return standing(snapshot, snapshot.state.workloads[name])


def nominee(state: ClusterState, name: str) -> NominatedHead:
    snapshot = KueueSnapshot(state, state.schedulers.kueue)
    return nominate(snapshot, asked(snapshot, name))


def outlook_of(state: ClusterState, name: str) -> AdmissionOutlook:
    view = KueueView(state, state.schedulers.kueue)
    return view.outlook(asked(view.snapshot, name))


def usages(snapshot: KueueSnapshot) -> dict[tuple[str, str], dict[FlavorResource, int]]:
    """Of all nodes; what is 0 is left out."""
    nodes = [*snapshot.tree.queues.values(), *snapshot.tree.cohorts.values()]
    return {
        ("queue" if node.is_queue else "cohort", node.name): {
            key: amount for key, amount in node.usage.items() if amount
        }
        for node in nodes
    }


def members(snapshot: KueueSnapshot) -> dict[str, set[str]]:
    """By queue."""
    return {name: set(queue.members) for name, queue in snapshot.queues.items()}


def with_quota(state: ClusterState, queue: str, key: FlavorResource, quota: FlavorQuota) -> ClusterState:
    """A copy in which a ClusterQueue has another quota."""
    queues = dict(state.cluster_queues)
    for uid, spec in queues.items():
        if spec.name == queue:
            queues[uid] = replace(spec, quotas={**spec.quotas, key: quota})
    return replace(state, cluster_queues=queues)


@dataclass
class Account:
    """A queue or cohort with what it and those below it have and use of one flavor and resource."""

    name: str
    quota: FlavorQuota
    is_queue: bool
    used: int = 0
    below: list[Account] = field(default_factory=list)
    above: Account | None = None

    @property
    def kept(self) -> int:
        """What it never lends."""
        limit = self.quota.lending_limit
        return 0 if limit is None else max(0, self.subtree - limit)

    @property
    def subtree(self) -> int:
        return self.quota.nominal + sum(each.subtree - each.kept for each in self.below)

    @property
    def total_used(self) -> int:
        return self.used + sum(max(0, each.total_used - each.kept) for each in self.below)

    @property
    def most(self) -> int:
        """What it could ever use."""
        if self.above is None:
            return self.subtree
        limit = self.quota.borrowing_limit
        from_above = self.kept + self.above.most
        return from_above if limit is None else min(from_above, self.subtree + limit)

    @property
    def is_kept_to(self) -> bool:
        """Whether no more is used than may be, here and above."""
        limit = None if self.above is not None else 0
        if self.above is not None and self.quota.borrowing_limit is not None:
            limit = self.quota.borrowing_limit
        if limit is not None and self.total_used > self.subtree + limit:
            return False
        return self.above is None or self.above.is_kept_to


def accounts(state: ClusterState, key: FlavorResource) -> Mapping[str, Account]:
    """Of ClusterQueues by name, for trees without circles; usage is what admitted workloads hold."""
    none = FlavorQuota(0)
    cohorts: dict[str, Account] = {}
    parents = {each.name: each.parent for each in state.cohorts.values()}
    quotas = {each.name: each.quotas.get(key, none) for each in state.cohorts.values()}

    def account_of(name: str) -> Account:
        if name not in cohorts:
            found = cohorts[name] = Account(name, quotas.get(name, none), False)
            if parents.get(name):
                found.above = account_of(parents[name])
                found.above.below.append(found)
        return cohorts[name]

    for name in parents:
        account_of(name)
    queues = {}
    for queue in state.cluster_queues.values():
        found = queues[queue.name] = Account(queue.name, queue.quotas.get(key, none), True)
        if queue.cohort:
            found.above = account_of(queue.cohort)
            found.above.below.append(found)
    for workload in state.workloads.values():
        if workload.has_quota:
            usage: QuotaUse = workload_usage(workload)
            queues[workload.cluster_queue].used += usage.get(key, 0)
    return queues
