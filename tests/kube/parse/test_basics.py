"""Namespaces, PriorityClasses and PodDisruptionBudgets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from gpucost.cluster.objects.pods import SelectorRequirement
from gpucost.kube.parse.core_objects import disruption_budget, namespace, priority_class
from gpucost.kube.parse.events import Unreadable
from tests.kube.parse.json_values import objects_of


def test_a_namespace_keeps_what_may_name_its_team() -> None:
    found = namespace(
        {
            "metadata": {
                "name": "team-a",
                "uid": "ns",
                "labels": {"kubernetes.io/metadata.name": "team-a", "cost-centre": "17"},
                "annotations": {"owner": "ann", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
            },
            "status": {"phase": "Active"},
        }
    )
    assert found.meta.labels["cost-centre"] == "17"
    assert found.meta.annotations == {"owner": "ann"}
    assert not found.flaws


@pytest.mark.parametrize(
    ("fields", "value", "is_default", "flawed"),
    [
        ({"value": 1000, "globalDefault": True}, 1000, True, []),
        ({"value": -10}, -10, False, []),
        ({"value": 0}, 0, False, []),
        ({"value": "high"}, 0, False, ["value"]),
        ({}, 0, False, ["value"]),
        ({"value": 5, "globalDefault": "yes"}, 5, False, ["globalDefault"]),
    ],
)
def test_a_priority_class(fields: dict[str, Any], value: int, is_default: bool, flawed: list[str]) -> None:
    found = priority_class({"metadata": {"name": "high", "uid": "pc"}, **fields})
    assert (found.value, found.is_default, found.of_kueue) == (value, is_default, False)
    assert [each.field for each in found.flaws] == flawed


@pytest.mark.parametrize(("policy", "never"), [("Never", True), ("PreemptLowerPriority", False), ("", False)])
def test_a_priority_class_that_preempts_nobody(policy: str, never: bool) -> None:
    written = {"metadata": {"name": "high", "uid": "pc"}, "value": 1, "preemptionPolicy": policy}
    assert priority_class(written).never_preempts is never


def test_a_disruption_budget() -> None:
    found = disruption_budget(
        {
            "metadata": {"name": "web", "namespace": "team-a", "uid": "b"},
            "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}},
            "status": {"disruptionsAllowed": 1, "disruptedPods": {"web-0": "2026-10-24T00:00:00Z"}},
        }
    )
    assert found.selector == (SelectorRequirement("app", "In", ("web",)),)
    assert (found.allowed, found.disrupted, found.flaws) == (1, frozenset({"web-0"}), ())
    bare = disruption_budget({"metadata": {"name": "web", "uid": "b"}, "spec": {"selector": {}}})
    assert (bare.selector, bare.allowed, bare.disrupted) == ((), 0, frozenset())
    assert disruption_budget({"metadata": {"name": "web", "uid": "b"}}).selector is None


@pytest.mark.parametrize("parse", [namespace, priority_class, disruption_budget])
def test_an_object_without_an_identity(parse: Any) -> None:
    with pytest.raises(Unreadable):
        parse({"metadata": {"name": "x"}, "value": 1})


@given(found=objects_of("spec", "status", "value", "globalDefault"))
def test_no_json_breaks_a_parser(found: Any) -> None:
    assert namespace(found).meta.uid == priority_class(found).meta.uid == "u"
    assert disruption_budget(found).meta.uid == "u"
