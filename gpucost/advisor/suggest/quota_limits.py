"""Quota for an administrator to raise, by exactly what is missing, and a setting that hides preemption.

``QuotaRaise`` is a raised limit of a ClusterQueue or cohort: as an object, in words, and as a patch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpucost.advisor.kueue.flavor_assigner import PREEMPTION_FIRST
from gpucost.advisor.kueue.job_workloads import as_workloads
from gpucost.advisor.kueue.messages import quantity
from gpucost.advisor.kueue.pending_queues import standing
from gpucost.advisor.kueue.requests import PodSetRequest, in_order, requested
from gpucost.advisor.kueue.snapshot import SnapshotQueue
from gpucost.advisor.model.answers import (
    SchedulingDecision,
    SchedulingLayer,
    SuggestedChange,
    SuggestedChangeKind,
)
from gpucost.advisor.suggest.candidates import SuggestionCandidate, SuggestionCase, is_as_good, with_quota
from gpucost.advisor.suggest.patches import pointer, text_of
from gpucost.cluster.objects.kueue import (
    ClusterQueue,
    Cohort,
    FlavorQuota,
    FlavorResource,
)
from gpucost.cluster.objects.pods import PodTemplate
from gpucost.cluster.views.cohorts import QuotaNode
from gpucost.cluster.views.commands import (
    CLUSTER_QUEUES,
    COHORTS,
    cluster_queue_patch,
    is_plain,
    json_patch,
)

NOMINAL, BORROWING, LENDING = "nominalQuota", "borrowingLimit", "lendingLimit"
_FIELDS: Mapping[str, str] = {
    NOMINAL: "nominal",
    BORROWING: "borrowing_limit",
    LENDING: "lending_limit",
}

QuotaAmounts = Mapping[FlavorResource, int]


@dataclass(frozen=True, slots=True)
class QuotaRaise:
    """``field`` of the quotas of one object is raised by these amounts, for each flavor and resource, all in
    one change."""

    owner: ClusterQueue | Cohort
    field: str
    by: QuotaAmounts

    @property
    def kind(self) -> str:
        return "ClusterQueue" if isinstance(self.owner, ClusterQueue) else "Cohort"

    def raised(self) -> ClusterQueue | Cohort:
        quotas = dict(self.owner.quotas)
        for key, amount in self.by.items():
            quotas[key] = replace(quotas[key], **{_FIELDS[self.field]: self._now(key) + amount})
        return replace(self.owner, quotas=quotas)

    def says(self) -> str:
        parts = [
            f"{key.resource} of flavor {key.flavor} from {quantity(key.resource, self._now(key))} to "
            f"{self._then(key)}"
            for key in sorted(self.by)
        ]
        return f"raise {self.field} of {self.kind} {self.owner.name}: {', '.join(parts)}"

    def written(self) -> SuggestedChange:
        """Without a command where the name is not a valid Kubernetes name."""
        name, steps = self.owner.name, tuple(self._operations())
        collection = CLUSTER_QUEUES if self.kind == "ClusterQueue" else COHORTS
        return SuggestedChange(
            SuggestedChangeKind.CLUSTER,
            f"{self.kind.lower()}/{name}",
            text_of(self._patch(), is_whole=False),
            steps,
            json_patch(collection, name, steps) if is_plain(name) else "",
        )

    def _operations(self) -> Iterator[Mapping[str, object]]:
        """The RFC 6902 operations. They test names, so that nothing is changed where the object has changed
        meanwhile."""
        for key in sorted(self.by):
            for at, group in enumerate(self.owner.groups):
                if key.resource in group.resources and key.flavor in group.flavors:
                    flavor, resource = group.flavors.index(key.flavor), group.resources.index(key.resource)
                    above = ("spec", "resourceGroups", at, "flavors", flavor)
                    inside = (*above, "resources", resource)
                    yield {"op": "test", "path": pointer((*above, "name")), "value": key.flavor}
                    yield {"op": "test", "path": pointer((*inside, "name")), "value": key.resource}
                    path = pointer((*inside, self.field))
                    yield {"op": "replace", "path": path, "value": self._then(key)}

    def _patch(self) -> Mapping[str, object]:
        groups = []
        for group in self.owner.groups:
            flavors = []
            for flavor in group.flavors:
                keys = sorted(key for key in self.by if key.flavor == flavor)
                resources = [self._member(key) for key in keys if key.resource in group.resources]
                flavors += [{"name": flavor, "resources": resources}] if resources else []
            groups += [{"flavors": flavors}] if flavors else []
        return {"spec": {"resourceGroups": groups}}

    def _member(self, key: FlavorResource) -> Mapping[str, object]:
        amount = self._then(key)
        return {"name": key.resource, self.field: int(amount) if amount.isdecimal() else amount}

    def _now(self, key: FlavorResource) -> int:
        return int(getattr(self.owner.quotas[key], _FIELDS[self.field]) or 0)

    def _then(self, key: FlavorResource) -> str:
        return quantity(key.resource, self._now(key) + self.by[key])


MOST_OF_LIMIT = 12
_MOST_FLAVORS = 2
_MOST_OWNERS = 2
_ANY_PREFERENCE = "BorrowingOverPreemption"


def borrowing(case: SuggestionCase) -> Iterator[SuggestionCandidate | None]:
    """Its ClusterQueue may borrow more of what its cohort has."""
    yield from _first(case, _borrowing(case))


def _borrowing(case: SuggestionCase) -> Iterator[QuotaRaise]:
    for missing, queue in _short_of(case):
        limited = {key: by for key, by in missing.items() if _quota(queue, key).borrowing_limit is not None}
        if limited and queue.spec.cohort:
            yield QuotaRaise(queue.spec, BORROWING, limited)


def lending(case: SuggestionCase) -> Iterator[SuggestionCandidate | None]:
    """Another ClusterQueue or cohort of the tree lends more of what it leaves unused."""
    yield from _first(case, _lending(case))


def _lending(case: SuggestionCase) -> Iterator[QuotaRaise]:
    for missing, queue in _short_of(case):
        if len(missing) == 1:
            key, by = next(iter(missing.items()))
            for owner in _keeping(case, queue, key, by)[:_MOST_OWNERS]:
                yield QuotaRaise(owner, LENDING, missing)


def nominal(case: SuggestionCase) -> Iterator[SuggestionCandidate | None]:
    """Its ClusterQueue gets more quota of its own: what the job lacks, else also what the workloads ahead of
    it take first."""
    yield from _first(case, _nominal(case))


def _nominal(case: SuggestionCase) -> Iterator[QuotaRaise]:
    for missing, queue in _short_of(case):
        if not missing.keys() <= queue.spec.quotas.keys():
            continue
        yield QuotaRaise(queue.spec, NOMINAL, missing)
        tried = [missing]
        for ahead in _ahead(case, queue):
            more = {key: by + ahead.get(key.resource, 0) for key, by in missing.items()}
            if more not in tried:
                tried.append(more)
                yield QuotaRaise(queue.spec, NOMINAL, more)


def _first(case: SuggestionCase, raises: Iterable[QuotaRaise]) -> Iterator[SuggestionCandidate | None]:
    """The first that helps, and as little of it as does."""
    for each in raises:
        is_found = False
        for tried in _least(case, each):
            is_found = is_found or (tried is not None and case.helps(tried))
            yield tried
        if is_found:
            return


def preference(case: SuggestionCase) -> Iterator[SuggestionCandidate | None]:
    """The defect of v0.19.2: with PreemptionOverBorrowing a flavor that needs preemption counts as free."""
    if case.advice.decision is not SchedulingDecision.WAITS or not case.is_at_kueue:
        return
    spec = case.known.kueue.snapshot.queues[case.advice.queue].spec
    if spec.fungibility.preference != PREEMPTION_FIRST:
        return
    changed = replace(spec, fungibility=replace(spec.fungibility, preference=_ANY_PREFERENCE))
    setting = {"preference": _ANY_PREFERENCE}
    path = pointer(("spec", "flavorFungibility", "preference"))
    change = SuggestedChange(
        SuggestedChangeKind.CLUSTER,
        f"clusterqueue/{spec.name}",
        text_of({"spec": {"flavorFungibility": setting}}),
        ({"op": "replace", "path": path, "value": _ANY_PREFERENCE},),
        cluster_queue_patch(spec.name, flavorFungibility=setting) if is_plain(spec.name) else "",
    )
    says = f"preference {_ANY_PREFERENCE} in ClusterQueue {spec.name}: then it preempts as it may"
    known = with_quota(case.known, spec.name, (changed,))
    yield case.of_cluster(says, change, known, "it decides for all workloads of this queue")


def _short_of(case: SuggestionCase) -> Iterator[tuple[QuotaAmounts, SnapshotQueue]]:
    """The quota that is missing, for the flavors with which the fewest GPUs are missing."""
    is_short = case.advice.layer is SchedulingLayer.QUOTA and case.advice.decision in (
        SchedulingDecision.WAITS,
        SchedulingDecision.NEVER,
    )
    if not is_short or not case.is_at_kueue:
        return
    queue = case.known.kueue.snapshot.queues[case.advice.queue]
    found = [each for each in _missing(case, queue) if each]
    gpus = case.known.overview.catalog.is_gpu
    order = sorted(found, key=lambda each: sum(by for key, by in each.items() if gpus(key.resource)))
    for each in order[:_MOST_FLAVORS]:
        yield each, queue


def _missing(case: SuggestionCase, queue: SnapshotQueue) -> Iterator[QuotaAmounts]:
    """The missing quota for each flavor of the resource group that its GPUs are in, each together with the
    flavors of other groups that lack least."""
    totals, templates = _totals(case, queue)
    if not totals or totals.keys() - queue.covered.keys():
        return
    refusal = case.known.kueue.snapshot.mismatch
    by_group: dict[int, list[QuotaAmounts]] = {}
    for at in dict.fromkeys(queue.covered[resource] for resource in totals):
        for flavor in queue.spec.groups[at].flavors:
            if any(refusal(each, flavor) for each in templates):
                continue
            keys = [FlavorResource(flavor, name) for name in totals if queue.covered[name] == at]
            lacks = {key: totals[key.resource] - queue.node.available(key) for key in keys}
            by_group.setdefault(at, []).append({key: by for key, by in lacks.items() if by > 0})
        if at not in by_group:
            return
    is_gpu = case.known.overview.catalog.is_gpu
    main = next((queue.covered[name] for name in totals if is_gpu(name)), min(by_group))
    others = [min(each, key=lambda lacks: sum(lacks.values())) for at, each in by_group.items() if at != main]
    for each in by_group[main]:
        yield {key: by for lacks in (each, *others) for key, by in lacks.items()}


def _ahead(case: SuggestionCase, queue: SnapshotQueue) -> Sequence[dict[str, int]]:
    """Two sums of what the workloads ahead of it ask for, which take raised quota first: of those that ask
    for no more than it does, and so are served first in any case, and of all."""
    line = case.known.kueue.lines_of(queue.name)[queue.name]
    workloads = as_workloads(case.manifest, case.known.state, case.known.state.schedulers.kueue)
    own = in_order(standing(case.known.kueue.snapshot, workloads[-1]))
    mine, _ = _totals(case, queue)
    small: dict[str, int] = {}
    whole: dict[str, int] = {}
    for ask in (*line.heap, *line.parked):
        if in_order(ask) < own:
            asked = _added(ask.pod_sets, queue)
            is_small = all(amount <= mine.get(name, 0) for name, amount in asked.items())
            for totals in (small, whole) if is_small else (whole,):
                for name, amount in asked.items():
                    totals[name] = totals.get(name, 0) + amount
    return small, whole


def _added(pod_sets: Iterable[PodSetRequest], queue: SnapshotQueue) -> dict[str, int]:
    totals: dict[str, int] = {}
    for each in pod_sets:
        for name, amount in requested(each, each.count, queue.covered).items():
            totals[name] = totals.get(name, 0) + amount
    return {name: amount for name, amount in totals.items() if amount}


def _totals(case: SuggestionCase, queue: SnapshotQueue) -> tuple[dict[str, int], list[PodTemplate]]:
    workloads = as_workloads(case.manifest, case.known.state, case.known.state.schedulers.kueue)
    pod_sets = [each for one in workloads for each in standing(case.known.kueue.snapshot, one).pod_sets]
    return _added(pod_sets, queue), [each.template for each in pod_sets]


def _keeping(
    case: SuggestionCase, queue: SnapshotQueue, key: FlavorResource, by: int
) -> list[ClusterQueue | Cohort]:
    """Nodes of the tree whose lending limit keeps so much unused quota to themselves, the most first."""
    state, above = case.known.state, set(_above(queue.node))
    found: list[tuple[int, str, ClusterQueue | Cohort]] = []
    for node in _below(_root(queue.node)):
        if node is queue.node or (node.name in above and not node.is_queue):
            continue
        owner = (state.cluster_queue_by_name if node.is_queue else state.cohort_by_name).get(node.name)
        limit = _of(node.quotas, key).lending_limit
        if owner is not None and limit is not None and node.local_available(key) >= by:
            found.append((-node.local_available(key), node.name, owner))
    return [owner for _, _, owner in sorted(found, key=lambda each: each[:2])]


def _least(case: SuggestionCase, full: QuotaRaise) -> Iterator[SuggestionCandidate | None]:
    """With all of it, then with less of one after another, as long as that does as well."""
    first = _with(case, full)
    yield first
    if first is None or not case.helps(first):
        return
    by = dict(full.by)
    for key in by:
        low, high = 0, by[key]
        middle = high - 1
        while low < high and case.may_ask:
            found = _with(case, replace(full, by=_positive({**by, key: middle})))
            yield found
            if found is not None and is_as_good(found, first):
                high = middle
            else:
                low = middle + 1
            middle = (low + high) // 2
        by[key] = high


def _positive(amounts: QuotaAmounts) -> QuotaAmounts:
    return {key: by for key, by in amounts.items() if by > 0}


def _with(case: SuggestionCase, change: QuotaRaise) -> SuggestionCandidate | None:
    if not change.by or not case.may_ask:
        return None
    owner, written = change.raised(), change.written()
    if not written.operations:
        return None
    queues = (owner,) if isinstance(owner, ClusterQueue) else ()
    cohorts = (owner,) if isinstance(owner, Cohort) else ()
    known = with_quota(case.known, case.advice.queue, queues, cohorts)
    return case.of_cluster(change.says(), written, known, _caveat(change))


def _caveat(change: QuotaRaise) -> str:
    if change.field == LENDING:
        return "what is lent comes back only when it is reclaimed, if preemption lets it"
    return "others of the cohort have less to borrow then" if change.field == BORROWING else ""


def _quota(queue: SnapshotQueue, key: FlavorResource) -> FlavorQuota:
    return _of(queue.spec.quotas, key)


def _of(quotas: Mapping[FlavorResource, FlavorQuota], key: FlavorResource) -> FlavorQuota:
    return quotas.get(key, FlavorQuota(0))


def _root(node: QuotaNode) -> QuotaNode:
    while node.parent is not None:
        node = node.parent
    return node


def _above(node: QuotaNode) -> Iterable[str]:
    while node.parent is not None:
        node = node.parent
        yield node.name


def _below(node: QuotaNode) -> Sequence[QuotaNode]:
    return [node, *(each for child in node.children for each in _below(child))]
