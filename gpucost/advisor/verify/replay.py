"""Recorded cases, replayed through the rules and counted.

``facts`` compares what a recording asserts of one workload with the answer of the rules, one fact at a time;
``verify`` counts the facts of all cases.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from gpucost.advisor.kueue.cycle import run_cycle, victims_given
from gpucost.advisor.model.cycle_results import (
    CycleOutcome,
    CycleResult,
    PendingClass,
    PodSetFlavors,
    WorkloadDecision,
)
from gpucost.advisor.verify.case_schema import (
    CYCLE,
    HEAP,
    PARKED,
    ExpectedDecision,
    SchedulerCase,
)
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.cluster.objects.state import ClusterState


class ReplayAnswer(NamedTuple):
    """``decision`` names workloads by their keys, not their uids. ``cluster_queue`` is where the workload
    queues or holds quota, empty where its queue leads nowhere."""

    decision: WorkloadDecision
    cluster_queue: str


class AssertedFact(NamedTuple):
    """One asserted fact, as text for a person."""

    name: str
    expected: str
    got: str
    agrees: bool


FACTS = (
    *("outcome", "clusterQueue", "flavors", "podSets", "borrowsFromCohort", "borrowingLevel"),
    *("nominated.mode", "nominated.podSets", "nominated.borrowingLevel", "preempts", "preemptedBy"),
    *("preemptedReason", "pendingClass", "requeuedTo", "quotaReservedReason", "messageContains"),
    "processingOrder",
)
"""Names of all facts, in the order in which they are listed."""

_Pair = tuple[object, Callable[[ReplayAnswer], object]]


def facts(expected: ExpectedDecision, answer: ReplayAnswer | None) -> list[AssertedFact]:
    """The facts of one workload; ``answer`` is None where the rules give no answer for it."""
    found = []
    for name, (wanted, of) in _pairs(expected).items():
        if wanted is None:
            continue
        got = None if answer is None else of(answer)
        agrees = wanted == got
        if name == "messageContains":
            agrees = isinstance(got, str) and str(wanted) in got
        found.append(
            AssertedFact(name, _said(wanted), "no decision" if answer is None else _said(got), agrees)
        )
    return found


def order_fact(expected: Iterable[tuple[str, ...]], got: Iterable[tuple[str, ...]]) -> AssertedFact:
    """Heads in the order of processing, one tuple per cohort tree; the order of the tuples means nothing."""
    wanted, found = frozenset(expected), frozenset(got)
    return AssertedFact("processingOrder", _orders(wanted - found), _orders(found - wanted), wanted == found)


def answers(case: SchedulerCase, decisions: Mapping[str, WorkloadDecision]) -> dict[str, ReplayAnswer]:
    """By key."""
    found = {}
    for uid, key in case.keys.items():
        decision = decisions.get(uid)
        if decision is not None:
            found[key] = ReplayAnswer(_keyed(decision, case.keys), _cluster_queue(case, uid))
    return found


def _pairs(expected: ExpectedDecision) -> dict[str, _Pair]:
    return {
        "outcome": (expected.outcome, lambda each: each.decision.outcome.value),
        "clusterQueue": (expected.cluster_queue, _where),
        "flavors": (expected.flavors, lambda each: _merged(each.decision.pod_sets)),
        "podSets": (_plain(expected.pod_sets), lambda each: _plain(each.decision.pod_sets)),
        "borrowsFromCohort": (expected.borrows, lambda each: each.decision.level > 0),
        "borrowingLevel": (expected.level, lambda each: each.decision.level),
        "nominated.mode": (expected.nominated_mode, lambda each: _nominated(each, "mode")),
        "nominated.podSets": (_plain(expected.nominated_pod_sets), lambda each: _nominated(each, "pod_sets")),
        "nominated.borrowingLevel": (expected.nominated_level, lambda each: _nominated(each, "level")),
        "preempts": (expected.preempts, lambda each: frozenset(each.decision.preempts)),
        "preemptedBy": (expected.preempted_by, lambda each: each.decision.preempted_by),
        "preemptedReason": (expected.preempted_reason, lambda each: each.decision.preempted_reason),
        "pendingClass": (expected.pending, _pending),
        "requeuedTo": (expected.requeued_to, lambda each: PARKED if each.decision.parked else HEAP),
        "quotaReservedReason": (expected.reason, lambda each: each.decision.reason),
        "messageContains": (expected.message, lambda each: each.decision.message),
    }


def _keyed(decision: WorkloadDecision, keys: Mapping[str, str]) -> WorkloadDecision:
    by = decision.preempted_by
    return replace(
        decision,
        preempts=tuple(keys.get(uid, uid) for uid in decision.preempts),
        preempted_by=keys.get(by, by),
    )


def _cluster_queue(case: SchedulerCase, uid: str) -> str:
    workload = case.state.workloads[uid]
    queue = case.state.local_queue_by_name.get((workload.meta.namespace, workload.queue))
    return workload.cluster_queue or (queue.cluster_queue if queue is not None else "")


def _where(answer: ReplayAnswer) -> str:
    """Where it has quota, or would have it."""
    pending = answer.decision.outcome is CycleOutcome.PENDING
    return "" if pending and answer.decision.pending is PendingClass.INADMISSIBLE else answer.cluster_queue


def _pending(answer: ReplayAnswer) -> str:
    """The pending class to compare: ``needs-preemption`` is implied for a workload that is preempting."""
    decision = answer.decision
    if decision.pending is not None:
        return decision.pending.value
    return PendingClass.NEEDS_PREEMPTION.value if decision.outcome is CycleOutcome.PREEMPTING else ""


def _nominated(answer: ReplayAnswer, field: str) -> object:
    found = answer.decision.nominated
    if found is None:
        return None
    return {"mode": found.mode, "level": found.level, "pod_sets": _plain(found.pod_sets)}[field]


def _merged(sets: Iterable[PodSetFlavors]) -> dict[str, str] | None:
    """Over pod sets; None where two differ."""
    merged: dict[str, str] = {}
    for each in sets:
        for resource, flavor in each.flavors.items():
            if merged.setdefault(resource, flavor) != flavor:
                return None
    return merged


def _plain(sets: Iterable[PodSetFlavors] | None) -> dict[str, tuple[int, dict[str, str]]] | None:
    """By name: the order in which pod sets are listed has no meaning."""
    return None if sets is None else {each.name: (each.count, dict(each.flavors)) for each in sets}


def _said(value: object) -> str:
    if value is None or value in ("", {}, frozenset()):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, frozenset):
        return ", ".join(sorted(map(str, value)))
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_value(each)}" for key, each in sorted(value.items()))
    return str(value)


def _value(value: object) -> str:
    if isinstance(value, tuple):
        count, flavors = value
        return f"{count} of {_said(flavors)}"
    return str(value)


def _orders(orders: Iterable[tuple[str, ...]]) -> str:
    return "; ".join(sorted(" > ".join(each) for each in orders)) or "none"


CycleFunction: TypeAlias = Callable[[ClusterState, KueueConfig], CycleResult]
SearchFunction: TypeAlias = Callable[
    [ClusterState, KueueConfig, str, Mapping[str, Mapping[str, str]], Collection[str]],
    tuple[tuple[str, str], ...],
]


class ReplayRules(NamedTuple):
    """What answers: one scheduling cycle, and the search for victims of given flavors."""

    cycle: CycleFunction = run_cycle
    search: SearchFunction = victims_given


class FactTally(NamedTuple):
    """How many there were, and how many of them agree."""

    of: int = 0
    agree: int = 0

    def with_one(self, agrees: bool) -> FactTally:
        return FactTally(self.of + 1, self.agree + agrees)


@dataclass(frozen=True, slots=True)
class RuleDisagreement:
    """``workload`` is its key, empty where a fact is about the whole case."""

    case: str
    workload: str
    fact: str
    expected: str
    got: str


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """``cases`` counts those in which all agrees, of those that assert anything, ``facts`` single facts;
    ``by_fact`` facts by their name.

    ``by_rule`` counts cases by their tags; cases without any by their level and kind of preemption.
    """

    cases: FactTally
    facts: FactTally
    by_fact: Mapping[str, FactTally]
    by_rule: Mapping[str, FactTally]
    disagreements: tuple[RuleDisagreement, ...]

    @property
    def agrees(self) -> bool:
        """Whether every asserted fact agrees. False for a report without facts."""
        return self.facts.of > 0 and not self.disagreements


KUEUE = ReplayRules()


def verify(cases: Iterable[SchedulerCase], rules: ReplayRules = KUEUE) -> ReplayReport:
    """Every asserted fact of every case against what ``rules`` say."""
    total, all_facts = FactTally(), FactTally()
    by_fact: dict[str, FactTally] = {}
    by_rule: dict[str, FactTally] = {}
    wrong: list[RuleDisagreement] = []
    for case in cases:
        compared = _compared(case, rules)
        if not compared:
            continue  # it says nothing, so nothing of it agrees
        agrees = all(fact.agrees for _, fact in compared)
        total = total.with_one(agrees)
        for rule in case.tags or (_kind(case),):
            by_rule[rule] = by_rule.get(rule, FactTally()).with_one(agrees)
        for key, fact in compared:
            all_facts = all_facts.with_one(fact.agrees)
            by_fact[fact.name] = by_fact.get(fact.name, FactTally()).with_one(fact.agrees)
            if not fact.agrees:
                wrong.append(RuleDisagreement(case.id, key, fact.name, fact.expected, fact.got))
    ordered = {name: by_fact[name] for name in FACTS if name in by_fact}
    return ReplayReport(total, all_facts, ordered, dict(sorted(by_rule.items())), tuple(wrong))


def _kind(case: SchedulerCase) -> str:
    return f"{case.level}, {'fair sharing' if case.config.fair_sharing else 'classical preemption'}"


def _compared(case: SchedulerCase, rules: ReplayRules) -> list[tuple[str, AssertedFact]]:
    result = decided(case, rules)
    found = answers(case, result.decisions)
    compared = [(key, fact) for key, each in case.expected.items() for fact in facts(each, found.get(key))]
    if case.order is not None:
        order = [tuple(case.keys.get(uid, uid) for uid in tree) for tree in result.order]
        compared.append(("", order_fact(case.order, order)))
    return compared


def decided(case: SchedulerCase, rules: ReplayRules = KUEUE) -> CycleResult:
    """The answer of the rules for a case; of a search, the workloads that are preempted for the given one."""
    if case.level == CYCLE:
        return rules.cycle(case.state, case.config)
    given = case.given
    victims = dict(rules.search(case.state, case.config, case.searched, given.flavors, given.fits))
    decisions = {
        uid: _searched(case, uid, victims) for uid, each in case.state.workloads.items() if each.has_quota
    }
    none = PendingClass.NO_CANDIDATES
    decisions[case.searched] = (
        WorkloadDecision(case.searched, CycleOutcome.PREEMPTING, preempts=tuple(victims))
        if victims
        else WorkloadDecision(case.searched, CycleOutcome.PENDING, none)
    )
    return CycleResult(decisions, ())


def _searched(case: SchedulerCase, uid: str, victims: Mapping[str, str]) -> WorkloadDecision:
    """The decision about a workload with quota. One that was evicted before gets no new reason."""
    by = case.searched if uid in victims else ""
    if "Evicted" in case.state.workloads[uid].conditions:
        return WorkloadDecision(uid, CycleOutcome.BEING_EVICTED, preempted_by=by)
    if by:
        return WorkloadDecision(uid, CycleOutcome.PREEMPTED, preempted_by=by, preempted_reason=victims[uid])
    return WorkloadDecision(uid, CycleOutcome.KEEPS_RUNNING)
