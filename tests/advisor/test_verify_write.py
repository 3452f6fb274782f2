"""A cluster written as a case and read again decides as before."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings

from gpucost.advisor.kueue.cycle import run_cycle
from gpucost.advisor.verify.case_writer import (
    CaseAliases,
    CaseNames,
    CaseWriter,
    quantity,
)
from gpucost.advisor.verify.replay import answers, decided
from gpucost.cluster.objects.metadata import amount, parse_quantity
from gpucost.cluster.objects.state import ClusterState
from tests.advisor.cases_random import clusters
from tests.advisor.recorded import read


@settings(max_examples=60, deadline=None)
@given(state=clusters())
def test_what_is_written_decides_as_what_was_there(state: ClusterState) -> None:
    written = json.loads(
        json.dumps(CaseWriter(state, CaseNames()).case(state.workloads.values(), state.schedulers.kueue))
    )
    (case,) = read({"id": "x", **written})
    first = run_cycle(state, state.schedulers.kueue)
    second = decided(case)
    assert {each: found.decision for each, found in answers(case, second.decisions).items()} == {
        each: found.decision for each, found in answers(case, first.decisions).items()
    }
    assert set(first.order) == set(second.order)


@settings(max_examples=30, deadline=None)
@given(state=clusters())
def test_aliases_hide_names_and_change_no_decision(state: ClusterState) -> None:
    writer = CaseWriter(state, CaseAliases())
    document = writer.case(state.workloads.values(), state.schedulers.kueue)
    text = json.dumps(document)
    assert not any(f'"{name}"' in text for name in (*state.cluster_queue_by_name, *state.workloads, "h100"))
    (case,) = read({"id": "x", **document})
    first, second = run_cycle(state, state.schedulers.kueue), decided(case)
    outcomes = {writer.key(state.workloads[uid]): each.outcome for uid, each in first.decisions.items()}
    assert {case.keys[uid]: each.outcome for uid, each in second.decisions.items()} == outcomes


@pytest.mark.parametrize(
    ("resource", "units", "text"),
    [("cpu", 1500, "1500m"), ("cpu", 2000, "2"), ("memory", 2**40, "1099511627776"), ("cpu", 0, "0")],
)
def test_quantities_are_written_exactly(resource: str, units: int, text: str) -> None:
    assert quantity(resource, units) == text
    assert amount(resource, parse_quantity(text)) == units
