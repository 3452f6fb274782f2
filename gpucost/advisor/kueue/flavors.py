"""Which flavor each pod set gets.

Rules: kueue v0.19.2, pkg/scheduler/flavorassigner/flavorassigner.go (assignFlavors, findFlavorForPodSets,
fitsResourceQuota). The scan of flavors starts at the first: where Kueue went on from in an earlier cycle is
only in its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from gpucost.advisor.kueue.asks import Ask, AskedPods, requested
from gpucost.advisor.kueue.modes import BEST, WORST, Grade, Mode, is_preferred, tries_next
from gpucost.advisor.kueue.results import Assigned
from gpucost.advisor.kueue.snapshot import Queue, Snapshot
from gpucost.advisor.kueue.words import (
    EXCEEDS_MAX,
    NO_FLAVOR,
    WAITING_FOR_QUOTA,
    Reason,
    joined,
    most_severe,
    worst,
)
from gpucost.cluster.kueue import FlavorResource

Oracle: TypeAlias = Callable[[FlavorResource, int], Grade]
"""What preemption could do for so much of one flavor and resource."""


class Choice(NamedTuple):
    """The flavor of one resource, how well it serves, and whether flavors after it were not looked at."""

    flavor: str
    grade: Grade
    has_untried: bool


@dataclass(slots=True)
class PodSetChoice:
    """Of one pod set: no ``choices`` where no flavor serves it; ``reasons`` of those that do not at once."""

    name: str
    count: int
    requests: Mapping[str, int]
    choices: dict[str, Choice] = field(default_factory=dict)
    reasons: list[Reason] = field(default_factory=list)
    failed: bool = False

    @property
    def mode(self) -> Mode:
        if not self.reasons and not self.failed:
            return Mode.FIT
        if self.failed or not self.choices:
            return Mode.NO_FIT
        return min(each.grade.mode for each in self.choices.values())


@dataclass(slots=True)
class Assignment:
    """Of all pod sets, as far as they were looked at: after one that no flavor serves comes no other."""

    pod_sets: list[PodSetChoice] = field(default_factory=list)
    usage: dict[FlavorResource, int] = field(default_factory=dict)
    level: int = 0

    @property
    def mode(self) -> Mode:
        """FIT, NO_FIT, or PREEMPT for all that needs preemption, with or without candidates."""
        found = min((each.mode for each in self.pod_sets), default=Mode.NO_FIT)
        return Mode.PREEMPT if Mode.NO_FIT < found < Mode.FIT else found

    @property
    def contested(self) -> frozenset[FlavorResource]:
        """What needs preemption."""
        return frozenset(
            FlavorResource(choice.flavor, resource)
            for each in self.pod_sets
            for resource, choice in each.choices.items()
            if Mode.NO_FIT < choice.grade.mode < Mode.FIT
        )

    @property
    def has_untried(self) -> bool:
        """Whether some flavor was not looked at: then the next cycle goes on from there."""
        return any(choice.has_untried for each in self.pod_sets for choice in each.choices.values())

    @property
    def assigned(self) -> tuple[Assigned, ...]:
        return tuple(
            Assigned(each.name, each.count, {name: choice.flavor for name, choice in each.choices.items()})
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
        unserved = [worst(each.reasons) for each in self.pod_sets if each.mode is Mode.NO_FIT]
        return "" if "" in unserved else most_severe(unserved)


class Assigner:
    """Assigns flavors to one ask of one queue, at any size."""

    def __init__(self, snapshot: Snapshot, queue: Queue, ask: Ask, oracle: Oracle) -> None:
        self._snapshot, self._queue, self._ask, self._oracle = snapshot, queue, ask, oracle

    def assign(self, counts: Sequence[int]) -> Assignment:
        """With so many pods of each pod set."""
        assignment = Assignment()
        for group in _grouped(self._ask.pod_sets, counts):
            if not self._assign_group(assignment, group):
                break
        return assignment

    def _assign_group(self, assignment: Assignment, group: Sequence[tuple[AskedPods, int]]) -> bool:
        """Pod sets that share their flavors; one alone, mostly. False: none serves them."""
        covered = self._queue.covered
        sets = [PodSetChoice(asked.name, count, requested(asked, count, covered)) for asked, count in group]
        total: dict[str, int] = {}
        for each in sets:
            for resource, amount in each.requests.items():
                total[resource] = total.get(resource, 0) + amount
        choices: dict[str, Choice] = {}
        reasons: list[Reason] = []
        failed = False
        for resource in sorted(total):
            if resource in choices or self._is_ignored(resource, total[resource]):
                continue
            found, why = self._find(resource, [asked for asked, _ in group], total, assignment.usage)
            if not found:  # what is said of groups before it is forgotten
                choices, reasons, failed = {}, why, True
                break
            reasons.extend(why)
            choices.update(found)
        for each in sets:
            each.choices = {name: choice for name, choice in choices.items() if name in each.requests}
            each.reasons, each.failed = reasons, failed
            self._count(assignment, each)
        return not failed

    def _is_ignored(self, resource: str, amount: int) -> bool:
        """Of what the queue does not cover: nothing asked, or all of it with IgnoreUndeclared."""
        is_covered = resource in self._queue.covered
        return not is_covered and (not amount or self._snapshot.config.ignores_undeclared)

    def _count(self, assignment: Assignment, choice: PodSetChoice) -> None:
        assignment.pod_sets.append(choice)
        for resource, chosen in choice.choices.items():
            key = FlavorResource(chosen.flavor, resource)
            assignment.usage[key] = assignment.usage.get(key, 0) + choice.requests[resource]
            assignment.level = max(assignment.level, chosen.grade.level)

    def _find(
        self,
        resource: str,
        group: Sequence[AskedPods],
        total: Mapping[str, int],
        used: Mapping[FlavorResource, int],
    ) -> tuple[dict[str, Choice], list[Reason]]:
        """The best flavor of the resource group that covers ``resource``, for all of the group it asks."""
        index = self._queue.covered.get(resource)
        if index is None:
            said = f"resource {resource} unavailable in ClusterQueue"
            return {}, [Reason("", "", -1, said)]
        flavors = self._queue.spec.groups[index].flavors
        wanted = {name: total[name] for name in sorted(total) if self._queue.covered.get(name) == index}
        fungibility = self._queue.spec.fungibility
        best, best_grades, best_flavor, last = WORST, dict[str, Grade](), "", len(flavors) - 1
        reasons: list[Reason] = []
        tried = last
        for position, flavor in enumerate(flavors):
            refusal = self._refused(group, flavor)
            if refusal:
                reasons.append(Reason(NO_FLAVOR, flavor, index, refusal))
                continue
            grade, grades = self._graded(flavor, wanted, used, reasons, index)
            if is_preferred(grade, best, fungibility):
                best, best_grades, best_flavor = grade, grades, flavor
            if not tries_next(grade, fungibility):
                best, best_grades, best_flavor, tried = grade, grades, flavor, position
                break
        choices = {name: Choice(best_flavor, each, tried != last) for name, each in best_grades.items()}
        return choices, [] if best.mode is Mode.FIT else reasons

    def _refused(self, group: Sequence[AskedPods], flavor: str) -> str:
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
        reasons: list[Reason],
        index: int,
    ) -> tuple[Grade, dict[str, Grade]]:
        """The worst grade over the resources, in the queue's own order of preference: that is how a needed
        preemption can hide behind a resource that is borrowed (with PreemptionOverBorrowing, v0.19.2)."""
        overall = BEST
        grades: dict[str, Grade] = {}
        for resource, amount in wanted.items():
            key = FlavorResource(flavor, resource)
            grade, why = self._quota(key, used.get(key, 0), amount, index)
            if why is not None:
                reasons.append(why)
            if is_preferred(overall, grade, self._queue.spec.fungibility):
                overall = grade
            grades[resource] = grade
        return overall, grades

    def _quota(self, key: FlavorResource, used: int, amount: int, group: int) -> tuple[Grade, Reason | None]:
        """How ``amount`` more of one flavor and resource can be had, ``used`` being what earlier pod sets of
        the same workload take; and why not at once."""
        node, wanted = self._queue.node, used + amount
        most = node.potential(key)
        if wanted > most:
            why = Reason(EXCEEDS_MAX, key.flavor, group, "", key.resource, used, amount, most)
            return Grade(Mode.NO_FIT, node.borrowing_level(key, wanted)), why
        available = node.available(key)
        if wanted <= available:
            return Grade(Mode.FIT, node.borrowing_level(key, wanted)), None
        why = Reason(WAITING_FOR_QUOTA, key.flavor, group, "", key.resource, used, amount, available)
        if wanted <= self._queue.nominal(key) or self._may_reclaim(key, wanted):
            return self._oracle(key, wanted), why
        return Grade(Mode.NO_FIT, node.borrowing_level(key, wanted)), why

    def _may_reclaim(self, key: FlavorResource, wanted: int) -> bool:
        """Whether preemption can help beyond the nominal quota."""
        policy = self._queue.spec.preemption
        if policy.borrow_within_cohort != "Never":
            return True
        if self._snapshot.config.fair_sharing and policy.reclaim_within_cohort != "Never":
            return True
        return self._queue.node.fits_below_root(key, wanted)


def _grouped(pod_sets: Sequence[AskedPods], counts: Sequence[int]) -> list[list[tuple[AskedPods, int]]]:
    """Pod sets with their sizes; those of one group together, where the first of them stands."""
    groups: dict[str, list[tuple[AskedPods, int]]] = {}
    for position, (asked, count) in enumerate(zip(pod_sets, counts, strict=True)):
        key = f"group {asked.group}" if asked.group else f"single {position}"
        groups.setdefault(key, []).append((asked, count))
    return list(groups.values())
