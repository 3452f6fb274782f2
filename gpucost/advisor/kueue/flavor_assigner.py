"""Which flavor each pod set gets, how well a flavor serves a request, and which of two is preferred.

Rules: kueue v0.19.2, pkg/scheduler/flavorassigner/flavorassigner.go (isPreferred, shouldTryNextFlavor,
assignFlavors, findFlavorForPodSets, fitsResourceQuota), with its gate VectorizedResourceRequests on: without
it resources are walked in any order, on which only reasons and messages depend. The scan of flavors starts at
the first, unless it is told where Kueue would go on (``FlavorAssignment.next_flavors``): that is only in its
memory, and so known of a replay alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from gpucost.advisor.kueue.messages import (
    EXCEEDS_MAX,
    NO_FLAVOR,
    WAITING_FOR_QUOTA,
    FlavorReason,
    granular,
    joined,
    merged,
    most_severe,
)
from gpucost.advisor.kueue.requests import (
    PodSetRequest,
    QuotaRequest,
    requested,
    walk_rank,
)
from gpucost.advisor.kueue.snapshot import KueueSnapshot, SnapshotQueue
from gpucost.advisor.model.cycle_results import PodSetFlavors
from gpucost.cluster.objects.kueue import FlavorFungibility, FlavorResource, ResourceGroup

PREEMPTION_FIRST = "PreemptionOverBorrowing"
TRY_NEXT = "TryNextFlavor"


class AssignmentMode(IntEnum):
    """From worst to best."""

    NO_FIT = 0
    NO_CANDIDATES = 1
    """Only preemption would help, and there are no candidates to preempt."""
    PREEMPT = 2
    """By preempting workloads of the own queue, among others."""
    RECLAIM = 3
    """By preempting workloads of other queues only."""
    FIT = 4


class AssignmentGrade(NamedTuple):
    """A mode, and how high in the tree quota is borrowed for it."""

    mode: AssignmentMode
    level: int


BEST = AssignmentGrade(AssignmentMode.FIT, 0)
WORST = AssignmentGrade(AssignmentMode.NO_FIT, 2**31)


def is_preferred(one: AssignmentGrade, other: AssignmentGrade, fungibility: FlavorFungibility) -> bool:
    """Whether ``one`` is strictly better. By default the mode counts first and the level second, whatever the
    comment of the API says; with PreemptionOverBorrowing the level counts first."""
    if one.mode is AssignmentMode.NO_FIT or other.mode is AssignmentMode.NO_FIT:
        return one.mode is not AssignmentMode.NO_FIT
    if (one.mode is AssignmentMode.NO_CANDIDATES) != (other.mode is AssignmentMode.NO_CANDIDATES):
        return other.mode is AssignmentMode.NO_CANDIDATES
    if fungibility.preference == PREEMPTION_FIRST:
        return (-one.level, one.mode) > (-other.level, other.mode)
    return (one.mode, -one.level) > (other.mode, -other.level)


def tries_next(grade: AssignmentGrade, fungibility: FlavorFungibility) -> bool:
    """Whether the flavors after one of this grade are tried too."""
    if (
        grade.mode in (AssignmentMode.PREEMPT, AssignmentMode.RECLAIM)
        and fungibility.when_can_preempt == TRY_NEXT
    ):
        return True
    if grade.level > 0 and fungibility.when_can_borrow == TRY_NEXT:
        return True
    return grade.mode <= AssignmentMode.NO_CANDIDATES


PreemptionOracle: TypeAlias = Callable[[FlavorResource, int], AssignmentGrade]
"""What preemption could do for so much of one flavor and resource."""


FlavorScan: TypeAlias = Mapping[tuple[str, str], int]
"""At which flavor the scan starts, by pod set and resource; at the first for those that are not named."""


class FlavorChoice(NamedTuple):
    """The flavor of one resource, how well it serves, and the position of the first flavor that was left
    untried; 0 where the scan came to the end, to begin again."""

    flavor: str
    grade: AssignmentGrade
    next_flavor: int


@dataclass(slots=True)
class PodSetChoice:
    """Of one pod set: no ``choices`` where no flavor serves it; ``reasons`` of those that do not at once.
    ``tried`` are the flavors that were tried, as in ``messages.merged``."""

    name: str
    count: int
    requests: Mapping[str, int]
    choices: dict[str, FlavorChoice] = field(default_factory=dict)
    reasons: list[FlavorReason] = field(default_factory=list)
    tried: Mapping[str, str] = field(default_factory=dict)
    failed: bool = False

    @property
    def mode(self) -> AssignmentMode:
        if not self.reasons and not self.failed:
            return AssignmentMode.FIT
        if self.failed or not self.choices:
            return AssignmentMode.NO_FIT
        return min(each.grade.mode for each in self.choices.values())


@dataclass(slots=True)
class FlavorAssignment:
    """Of all pod sets, up to the first that no flavor serves. ``groups`` are the resource groups of the
    queue."""

    groups: Sequence[ResourceGroup] = ()
    pod_sets: list[PodSetChoice] = field(default_factory=list)
    usage: dict[FlavorResource, int] = field(default_factory=dict)
    level: int = 0
    mode: AssignmentMode = AssignmentMode.NO_FIT
    """FIT, NO_FIT, or PREEMPT for all that needs preemption, with or without candidates."""

    @property
    def contested(self) -> frozenset[FlavorResource]:
        """What needs preemption."""
        return frozenset(
            FlavorResource(choice.flavor, resource)
            for each in self.pod_sets
            for resource, choice in each.choices.items()
            if AssignmentMode.NO_FIT < choice.grade.mode < AssignmentMode.FIT
        )

    @property
    def has_untried(self) -> bool:
        """Whether some flavor was left untried: then the next cycle continues from there."""
        return any(choice.next_flavor for each in self.pod_sets for choice in each.choices.values())

    @property
    def next_flavors(self) -> FlavorScan:
        """Where the scan goes on."""
        return {
            (each.name, resource): choice.next_flavor
            for each in self.pod_sets
            for resource, choice in each.choices.items()
            if choice.next_flavor
        }

    @property
    def assigned(self) -> tuple[PodSetFlavors, ...]:
        return tuple(
            PodSetFlavors(
                each.name, each.count, {name: choice.flavor for name, choice in each.choices.items()}
            )
            for each in self.pod_sets
        )

    @property
    def message(self) -> str:
        return "; ".join(
            f"couldn't assign flavors to pod set {each.name}: {joined(each.reasons)}"
            for each in self.pod_sets
            if each.reasons
        )

    @property
    def reason(self) -> str:
        """The granular reason of a NO_FIT."""
        unserved = [each.tried for each in self.pod_sets if each.mode is AssignmentMode.NO_FIT]
        return most_severe([granular(tried, self.groups) for tried in unserved])


class FlavorAssigner:
    """Assigns flavors to one ask of one queue, at any size."""

    def __init__(
        self,
        snapshot: KueueSnapshot,
        queue: SnapshotQueue,
        ask: QuotaRequest,
        oracle: PreemptionOracle,
        scan: FlavorScan | None = None,
    ) -> None:
        self._snapshot, self._queue, self._ask, self._oracle = snapshot, queue, ask, oracle
        self._scan: FlavorScan = scan or {}

    def assign(self, counts: Sequence[int]) -> FlavorAssignment:
        """With so many pods of each pod set."""
        assignment = FlavorAssignment(self._queue.spec.groups)
        for group in _grouped(self._ask.pod_sets, counts):
            if not self._assign_group(assignment, group):
                break
        mode = min([each.mode for each in assignment.pod_sets], default=AssignmentMode.NO_FIT)
        needs_victims = AssignmentMode.NO_FIT < mode < AssignmentMode.FIT
        assignment.mode = AssignmentMode.PREEMPT if needs_victims else mode
        return assignment

    def _assign_group(self, assignment: FlavorAssignment, group: Sequence[tuple[PodSetRequest, int]]) -> bool:
        """Pod sets that share their flavors; one alone, mostly. False: none serves them."""
        covered = self._queue.covered
        sets = [PodSetChoice(asked.name, count, requested(asked, count, covered)) for asked, count in group]
        total: dict[str, int] = {}
        for each in sets:
            for resource, amount in each.requests.items():
                total[resource] = total.get(resource, 0) + amount
        choices: dict[str, FlavorChoice] = {}
        reasons: list[FlavorReason] = []
        tried: dict[str, str] = {}
        failed = False
        for resource in sorted(total, key=walk_rank) if len(total) > 1 else total:
            if resource in choices or self._is_ignored(resource, total[resource]):
                continue
            found, why = self._find(resource, [asked for asked, _ in group], total, assignment.usage, tried)
            if not found:  # what is said of groups before it is forgotten, what was tried of them is not
                choices, reasons, failed = {}, why, True
                break
            reasons.extend(why)
            choices.update(found)
        for each in sets:
            each.choices = {name: choice for name, choice in choices.items() if name in each.requests}
            each.reasons, each.tried, each.failed = reasons, tried, failed
            self._count(assignment, each)
        return not failed

    def _is_ignored(self, resource: str, amount: int) -> bool:
        """Of what the queue does not cover: nothing asked, or all of it with IgnoreUndeclared."""
        is_covered = resource in self._queue.covered
        return not is_covered and (not amount or self._snapshot.config.ignores_undeclared)

    def _count(self, assignment: FlavorAssignment, choice: PodSetChoice) -> None:
        assignment.pod_sets.append(choice)
        for resource, chosen in choice.choices.items():
            key = FlavorResource(chosen.flavor, resource)
            assignment.usage[key] = assignment.usage.get(key, 0) + choice.requests[resource]
            assignment.level = max(assignment.level, chosen.grade.level)

    def _find(
        self,
        resource: str,
        pod_sets: Sequence[PodSetRequest],
        total: Mapping[str, int],
        used: Mapping[FlavorResource, int],
        tried: dict[str, str],
    ) -> tuple[dict[str, FlavorChoice], list[FlavorReason]]:
        """The best flavor of the resource group that covers ``resource``, for all of the group it asks. What
        was tried is added to ``tried``."""
        index = self._queue.covered.get(resource)
        if index is None:
            said = f"resource {resource} unavailable in ClusterQueue"
            return {}, [FlavorReason("", "", said)]
        group = self._queue.spec.groups[index]
        flavors = group.flavors
        wanted = {name: total[name] for name in group.resources if name in total}
        fungibility = self._queue.spec.fungibility
        best, best_flavor, last = WORST, "", len(flavors) - 1
        best_grades: dict[str, AssignmentGrade] = {}
        reasons: list[FlavorReason] = []
        looked_at: dict[str, str] = {}
        end = last
        start = self._scan.get((pod_sets[0].name, resource), 0) if self._scan else 0
        for position, flavor in enumerate(flavors[start:] if start else flavors, start):
            refusal = self._refused(pod_sets, flavor)
            if refusal:
                reasons.append(FlavorReason(NO_FLAVOR, flavor, refusal))
                looked_at[flavor] = NO_FLAVOR
                continue
            grade, grades, why = self._graded(flavor, wanted, used)
            reasons.extend(why)
            is_refused = grade.mode is AssignmentMode.NO_FIT
            looked_at[flavor] = most_severe([each.reason for each in why]) if is_refused else ""
            if is_preferred(grade, best, fungibility):
                best, best_grades, best_flavor = grade, grades, flavor
            if not tries_next(grade, fungibility):
                best, best_grades, best_flavor, end = grade, grades, flavor, position
                break
        merged(tried, looked_at, group)
        next_flavor = end + 1 if end != last else 0
        choices = {name: FlavorChoice(best_flavor, each, next_flavor) for name, each in best_grades.items()}
        return choices, [] if best.mode is AssignmentMode.FIT else reasons

    def _refused(self, group: Sequence[PodSetRequest], flavor: str) -> str:
        for asked in group:
            refusal = self._snapshot.refusal(self._queue, asked, flavor)
            if refusal is not None:
                return refusal.message
        return ""

    def _graded(
        self,
        flavor: str,
        wanted: Mapping[str, int],
        used: Mapping[FlavorResource, int],
    ) -> tuple[AssignmentGrade, dict[str, AssignmentGrade], list[FlavorReason]]:
        """The worst grade over the resources, in the queue's own order of preference: that is how a needed
        preemption can hide behind a resource that is borrowed (with PreemptionOverBorrowing, v0.19.2). With
        the grade of each, and why those are not had at once that are not."""
        overall = BEST
        reasons: list[FlavorReason] = []
        grades: dict[str, AssignmentGrade] = {}
        for resource, amount in wanted.items():
            key = FlavorResource(flavor, resource)
            grade, why = self._quota(key, used.get(key, 0), amount)
            if why is not None:
                reasons.append(why)
            if is_preferred(overall, grade, self._queue.spec.fungibility):
                overall = grade
            grades[resource] = grade
        return overall, grades, reasons

    def _quota(
        self, key: FlavorResource, used: int, amount: int
    ) -> tuple[AssignmentGrade, FlavorReason | None]:
        """How ``amount`` more of one flavor and resource can be had, ``used`` being what earlier pod sets of
        the same workload take; and why not at once."""
        node, wanted = self._queue.node, used + amount
        most = node.potential(key)
        if wanted > most:
            why = FlavorReason(EXCEEDS_MAX, key.flavor, "", key.resource, used, amount, most)
            return AssignmentGrade(AssignmentMode.NO_FIT, node.borrowing_level(key, wanted)), why
        available = node.available(key)
        if wanted <= available:
            return AssignmentGrade(AssignmentMode.FIT, node.borrowing_level(key, wanted)), None
        why = FlavorReason(WAITING_FOR_QUOTA, key.flavor, "", key.resource, used, amount, available)
        if _may_preempt(self._snapshot, self._queue, key, wanted):
            return self._oracle(key, wanted), why
        return AssignmentGrade(AssignmentMode.NO_FIT, node.borrowing_level(key, wanted)), why


def _may_preempt(snapshot: KueueSnapshot, queue: SnapshotQueue, key: FlavorResource, wanted: int) -> bool:
    """Whether preemption can help: within the nominal quota, or beyond it by policy."""
    if wanted <= queue.nominal(key):
        return True
    policy = queue.spec.preemption
    if policy.borrow_within_cohort != "Never":
        return True
    if snapshot.config.fair_sharing and policy.reclaim_within_cohort != "Never":
        return True
    return queue.node.fits_below_root(key, wanted)


class PlainRequest(NamedTuple):
    """All that an ask wants, where there is one amount of one resource and one flavor to have it of."""

    key: FlavorResource
    amount: int

    def is_beyond_reach(self, snapshot: KueueSnapshot, queue: SnapshotQueue) -> bool:
        """Whether the only flavor is a NO_FIT now: most tries of a replay are, and this costs a tenth of an
        assignment."""
        key, amount = self
        if amount > queue.node.potential(key):
            return True
        return amount > queue.node.available(key) and not _may_preempt(snapshot, queue, key, amount)


def plain_request(snapshot: KueueSnapshot, queue: SnapshotQueue, ask: QuotaRequest) -> PlainRequest | None:
    """None for an ask with more to choose."""
    if len(ask.pod_sets) != 1:
        return None
    (asked,) = ask.pod_sets
    amounts = requested(asked, asked.count, queue.covered)
    if len(amounts) != 1 or asked.least != asked.count or asked.topology:
        return None
    ((resource, amount),) = amounts.items()
    index = queue.covered.get(resource)
    if index is None or len(queue.spec.groups[index].flavors) != 1:
        return None
    (flavor,) = queue.spec.groups[index].flavors
    if snapshot.refusal(queue, asked, flavor) is not None:
        return None
    return PlainRequest(FlavorResource(flavor, resource), amount)


def _grouped(
    pod_sets: Sequence[PodSetRequest], counts: Sequence[int]
) -> list[list[tuple[PodSetRequest, int]]]:
    """Pod sets with their sizes; those of one group together, where the first of them stands."""
    if not any(asked.topology for asked in pod_sets):
        return [[each] for each in zip(pod_sets, counts, strict=True)]
    groups: dict[str, list[tuple[PodSetRequest, int]]] = {}
    for position, (asked, count) in enumerate(zip(pod_sets, counts, strict=True)):
        key = f"group {asked.group}" if asked.group else f"single {position}"
        groups.setdefault(key, []).append((asked, count))
    return list(groups.values())
