"""Recorded decisions against the rules: what agrees counts, and every kind of fact that differs is caught."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucost.advisor.kueue.cycle import run_cycle
from gpucost.advisor.model.cycle_results import CycleOutcome, CycleResult
from gpucost.advisor.verify.replay import FACTS, FactTally, ReplayRules, verify
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.cluster.objects.state import ClusterState
from tests.advisor.recorded import CASE, GPU, SEARCH, Document, changed, given, read


def test_a_case_whose_facts_follow_from_the_rules_agrees_in_every_kind_of_fact() -> None:
    report = verify(read(CASE, SEARCH))
    assert report.disagreements == ()
    assert report.agrees
    assert report.cases == FactTally(2, 2)
    assert report.facts.of == report.facts.agree
    assert tuple(report.by_fact) == FACTS, "one of each kind"
    assert sum(each.of for each in report.by_fact.values()) == report.facts.of


def test_rules_are_tags_and_else_the_kind_of_case() -> None:
    assert dict(verify(read(CASE, SEARCH)).by_rule) == {
        "admits": FactTally(1, 1),
        "preempts": FactTally(1, 1),
        "preemption-target-search, classical preemption": FactTally(1, 1),
    }


HIGH, LOW, NEXT, NEW = (f"expected.{key}" for key in ("train/high", "train/low", "serve/next", "alone/new"))
OTHER: list[tuple[str, Any, str]] = [
    (f"{LOW}.outcome", "keeps-running", "outcome"),
    (f"{NEW}.clusterQueue", "train", "clusterQueue"),
    (f"{NEW}.flavors", {GPU: "l4"}, "flavors"),
    (f"{NEW}.flavors", {}, "flavors"),
    (f"{NEW}.podSets", given(count=2), "podSets"),
    (f"{NEW}.podSets", given("l4"), "podSets"),
    (f"{NEW}.podSets", [*given(), {"name": "x", "count": 1, "flavors": {}}], "podSets"),
    (f"{NEW}.podSets", [], "podSets"),
    (f"{NEW}.borrowsFromCohort", True, "borrowsFromCohort"),
    (f"{NEW}.borrowingLevel", 1, "borrowingLevel"),
    (f"{NEXT}.nominated.mode", "Fit", "nominated.mode"),
    (f"{NEXT}.nominated.podSets", given("l4"), "nominated.podSets"),
    (f"{NEXT}.nominated.borrowingLevel", 0, "nominated.borrowingLevel"),
    (f"{NEW}.nominated", {"mode": "Fit"}, "nominated.mode"),
    (f"{HIGH}.preempts", [], "preempts"),
    (f"{HIGH}.preempts", ["train/low", "serve/model"], "preempts"),
    (f"{LOW}.preemptedBy", "serve/next", "preemptedBy"),
    (f"{LOW}.preemptedReason", "InCohortReclamation", "preemptedReason"),
    (f"{NEXT}.pendingClass", "no-fit", "pendingClass"),
    (f"{NEXT}.requeuedTo", "heap", "requeuedTo"),
    (f"{NEXT}.quotaReservedReason", "ExceedsMaxQuota", "quotaReservedReason"),
    (f"{HIGH}.messageContains", "plenty of quota", "messageContains"),
    ("processingOrder", [["serve/next", "train/high"], ["alone/new"]], "processingOrder"),
    ("processingOrder", [["train/high", "serve/next", "alone/new"]], "processingOrder"),
    ("processingOrder", [["train/high", "serve/next"]], "processingOrder"),
]


@pytest.mark.parametrize(("path", "value", "fact"), OTHER)
def test_every_kind_of_fact_that_differs_is_caught_and_nothing_else(path: str, value: Any, fact: str) -> None:
    whole = verify(read(CASE)).facts.of
    report = verify(read(changed(CASE, path, value), SEARCH))
    (wrong,) = report.disagreements
    about = "" if path == "processingOrder" else path.split(".")[1]
    assert (wrong.case, wrong.workload, wrong.fact) == ("one", about, fact)
    assert wrong.expected != wrong.got
    assert report.cases == FactTally(2, 1)
    assert not report.agrees
    assert report.by_fact[fact].of - report.by_fact[fact].agree == 1
    assert report.by_rule["admits"] == FactTally(1, 0)
    assert report.facts.of - verify(read(SEARCH)).facts.of in (whole, whole + 1)


def test_all_other_kinds_of_facts_have_a_case_above() -> None:
    assert {fact for _, _, fact in OTHER} == set(FACTS)


@pytest.mark.parametrize("path", [path for path, _, _ in OTHER if "nominated" not in path])
def test_null_is_not_asserted(path: str) -> None:
    report = verify(read(changed(CASE, path, None)))
    assert report.agrees
    assert report.facts.of == verify(read(CASE)).facts.of - 1


def test_the_order_of_lists_that_have_none_does_not_matter() -> None:
    turned: Document = {
        **CASE,
        "processingOrder": CASE["processingOrder"][::-1],
        "workloads": CASE["workloads"][::-1],
        "clusterQueues": CASE["clusterQueues"][::-1],
    }
    assert verify(read(turned)).agrees


@pytest.mark.parametrize(
    ("path", "value", "fact"),
    [
        ("train/high.preempts", ["train/low"], "preempts"),
        ("train/low.preemptedReason", "InCohortReclamation", "preemptedReason"),
        ("train/low.outcome", "keeps-running", "outcome"),
        ("train/gone.preemptedBy", "train/low", "preemptedBy"),
    ],
)
def test_a_search_that_finds_other_victims_is_caught(path: str, value: Any, fact: str) -> None:
    report = verify(read(changed(SEARCH, f"expected.{path}", value)))
    assert [each.fact for each in report.disagreements] == [fact]


def test_rules_that_forget_a_workload_disagree_in_all_that_is_asserted_of_it() -> None:
    def forgetful(state: ClusterState, config: KueueConfig) -> CycleResult:
        result = run_cycle(state, config)
        return replace(result, decisions={k: v for k, v in result.decisions.items() if k != "low"})

    report = verify(read(CASE), ReplayRules(cycle=forgetful))
    assert [each.fact for each in report.disagreements] == ["outcome", "preemptedBy", "preemptedReason"]
    assert {each.got for each in report.disagreements} == {"no decision"}


def test_rules_that_err_are_caught() -> None:
    def generous(state: ClusterState, config: KueueConfig) -> CycleResult:
        result = run_cycle(state, config)
        decisions = {
            uid: replace(each, outcome=CycleOutcome.ADMITTED)
            if each.outcome is CycleOutcome.PENDING
            else each
            for uid, each in result.decisions.items()
        }
        return replace(result, decisions=decisions)

    report = verify(read(CASE), ReplayRules(cycle=generous))
    assert [(each.workload, each.fact) for each in report.disagreements] == [
        ("serve/next", "outcome"),
        ("serve/later", "outcome"),
    ]


def test_cases_without_facts_agree_in_nothing() -> None:
    report = verify(read({**CASE, "expected": {}, "processingOrder": None}))
    assert report.facts == FactTally(0, 0)
    assert not report.agrees


def test_cases_that_assert_nothing_and_empty_messages_do_not_count() -> None:
    """Who takes out what does not agree would else have as many cases, and rules, that agree."""
    hollow = {**CASE, "expected": {}, "processingOrder": None}
    vague = {**CASE, "expected": {key: {"messageContains": ""} for key in CASE["expected"]}}
    full = verify(read(CASE))
    assert verify(read(CASE, hollow, {**vague, "processingOrder": None})) == full
    empty = verify(read(hollow))
    assert (empty.cases, empty.facts, empty.by_rule, empty.agrees) == (FactTally(), FactTally(), {}, False)
