"""Recorded cases, replayed through the rules and counted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from gpucost.advisor.kueue.cycle import run_cycle
from gpucost.advisor.kueue.given import victims_given
from gpucost.advisor.kueue.results import CycleResult, Outcome, PendingClass, WorkloadDecision
from gpucost.advisor.verify.facts import FACTS, Fact, answers, facts, order_fact
from gpucost.advisor.verify.schema import CYCLE, Case
from gpucost.cluster.scheduling import KueueConfig
from gpucost.cluster.state import ClusterState

Cycle: TypeAlias = Callable[[ClusterState, KueueConfig], CycleResult]
Search: TypeAlias = Callable[
    [ClusterState, KueueConfig, str, Mapping[str, Mapping[str, str]], Collection[str]],
    tuple[tuple[str, str], ...],
]


class Rules(NamedTuple):
    """What answers: one scheduling cycle, and the search for victims of given flavors."""

    cycle: Cycle = run_cycle
    search: Search = victims_given


class Tally(NamedTuple):
    """How many there were, and how many of them agree."""

    of: int = 0
    agree: int = 0

    def with_one(self, agrees: bool) -> Tally:
        return Tally(self.of + 1, self.agree + agrees)


@dataclass(frozen=True, slots=True)
class Disagreement:
    """``workload`` is its key, empty where a fact is about the whole case."""

    case: str
    workload: str
    fact: str
    expected: str
    got: str


@dataclass(frozen=True, slots=True)
class Report:
    """``cases`` counts those in which all agrees, ``facts`` single facts; ``by_fact`` facts by their name.

    ``by_rule`` counts cases by their tags; cases without any by their level and kind of preemption.
    """

    cases: Tally
    facts: Tally
    by_fact: Mapping[str, Tally]
    by_rule: Mapping[str, Tally]
    disagreements: tuple[Disagreement, ...]

    @property
    def agrees(self) -> bool:
        """Whether every asserted fact does. One without facts does not."""
        return self.facts.of > 0 and not self.disagreements


KUEUE = Rules()


def verify(cases: Iterable[Case], rules: Rules = KUEUE) -> Report:
    """Every asserted fact of every case against what ``rules`` say."""
    total, all_facts = Tally(), Tally()
    by_fact: dict[str, Tally] = {}
    by_rule: dict[str, Tally] = {}
    wrong: list[Disagreement] = []
    for case in cases:
        compared = _compared(case, rules)
        agrees = all(fact.agrees for _, fact in compared)
        total = total.with_one(agrees)
        for rule in case.tags or (_kind(case),):
            by_rule[rule] = by_rule.get(rule, Tally()).with_one(agrees)
        for key, fact in compared:
            all_facts = all_facts.with_one(fact.agrees)
            by_fact[fact.name] = by_fact.get(fact.name, Tally()).with_one(fact.agrees)
            if not fact.agrees:
                wrong.append(Disagreement(case.id, key, fact.name, fact.expected, fact.got))
    ordered = {name: by_fact[name] for name in FACTS if name in by_fact}
    return Report(total, all_facts, ordered, dict(sorted(by_rule.items())), tuple(wrong))


def _kind(case: Case) -> str:
    return f"{case.level}, {'fair sharing' if case.config.fair_sharing else 'classical preemption'}"


def _compared(case: Case, rules: Rules) -> list[tuple[str, Fact]]:
    result = decided(case, rules)
    found = answers(case, result.decisions)
    compared = [(key, fact) for key, each in case.expected.items() for fact in facts(each, found.get(key))]
    if case.order is not None:
        order = [tuple(case.keys.get(uid, uid) for uid in tree) for tree in result.order]
        compared.append(("", order_fact(case.order, order)))
    return compared


def decided(case: Case, rules: Rules = KUEUE) -> CycleResult:
    """What the rules say of a case; of a search, who is preempted for the one that is given."""
    if case.level == CYCLE:
        return rules.cycle(case.state, case.config)
    given = case.given
    victims = dict(rules.search(case.state, case.config, case.searched, given.flavors, given.fits))
    decisions = {
        uid: _searched(case, uid, victims) for uid, each in case.state.workloads.items() if each.has_quota
    }
    none = PendingClass.NO_CANDIDATES
    decisions[case.searched] = (
        WorkloadDecision(case.searched, Outcome.PREEMPTING, preempts=tuple(victims))
        if victims
        else WorkloadDecision(case.searched, Outcome.PENDING, none)
    )
    return CycleResult(decisions, ())


def _searched(case: Case, uid: str, victims: Mapping[str, str]) -> WorkloadDecision:
    """Of one with quota. One that was told to leave before gets no new reason."""
    by = case.searched if uid in victims else ""
    if "Evicted" in case.state.workloads[uid].conditions:
        return WorkloadDecision(uid, Outcome.BEING_EVICTED, preempted_by=by)
    if by:
        return WorkloadDecision(uid, Outcome.PREEMPTED, preempted_by=by, preempted_reason=victims[uid])
    return WorkloadDecision(uid, Outcome.KEEPS_RUNNING)
