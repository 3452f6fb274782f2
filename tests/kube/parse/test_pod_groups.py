"""Gangs of Kubernetes itself, in the shapes of three releases, and of scheduler-plugins."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from gpucost.cluster.objects.metadata import is_false
from gpucost.cluster.objects.volcano import DisruptionMode, GroupKind
from gpucost.kube.parse.events import Unreadable
from gpucost.kube.parse.gang_schedulers import composite_pod_group, coscheduling_pod_group, native_pod_group
from tests.kube.parse.json_values import objects_of

METADATA = {"name": "train", "namespace": "team-a", "uid": "pg-uid"}


def native(spec: dict[str, Any], **status: Any) -> Any:
    return native_pod_group({"metadata": METADATA, "spec": spec, "status": status})


def composite(spec: dict[str, Any], **status: Any) -> Any:
    return composite_pod_group({"metadata": METADATA, "spec": spec, "status": status})


@pytest.mark.parametrize("condition", ["PodGroupScheduled", "PodGroupInitiallyScheduled"])
def test_a_gang_of_kubernetes_1_36_and_1_37(condition: str) -> None:
    found = native(
        {
            "podGroupTemplateRef": {"workload": {"workloadName": "train", "podGroupTemplateName": "workers"}},
            "schedulingPolicy": {"gang": {"minCount": 4}},
            "schedulingConstraints": {"topology": [{"key": "topology.kubernetes.io/rack"}]},
            "priorityClassName": "high",
        },
        conditions=[
            {
                "type": condition,
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/8 nodes are available",
                "lastTransitionTime": "2026-10-24T00:00:00Z",
            }
        ],
    )
    assert (found.group_kind, found.min_member, found.min_task_member) == (GroupKind.NATIVE, 4, {})
    assert found.topology == {"required": "topology.kubernetes.io/rack"}
    assert found.priority_class == "high"
    assert is_false(found.conditions, condition)
    assert found.conditions[condition].since_ms == 1_792_800_000_000
    assert (found.phase, found.running) == ("", None)
    assert not found.flaws


def test_the_topology_as_it_was_before_the_release() -> None:
    constraints = {"topologyConstraints": [{"topologyKey": "rack"}]}
    assert native({"schedulingConstraints": constraints}).topology == {"required": "rack"}


def test_a_workload_of_kubernetes_1_35_holds_several_groups() -> None:
    found = native(
        {
            "controllerRef": {"apiGroup": "batch", "kind": "Job", "name": "train"},
            "podGroups": [
                {"name": "leader", "policy": {"gang": {"minCount": 1}}},
                {"name": "workers", "policy": {"gang": {"minCount": 8}}},
                {"name": "monitors", "policy": {"basic": {}}},
            ],
        }
    )
    assert found.min_member == 9
    assert found.min_task_member == {"leader": 1, "workers": 8}


@pytest.mark.parametrize(
    "spec",
    [
        {"schedulingPolicy": {"basic": {}}},
        {"podGroups": [{"name": "monitors", "policy": {"basic": {}}}]},
        {"podGroups": []},
        {},
    ],
)
def test_pods_of_a_group_that_is_no_gang_are_independent(spec: dict[str, Any]) -> None:
    found = native(spec)
    assert (found.min_member, found.min_task_member, found.flaws) == (1, {}, ())


def test_a_minimum_that_makes_no_sense_is_a_flaw() -> None:
    found = native({"schedulingPolicy": {"gang": {"minCount": "four"}}})
    assert found.min_member == 1
    assert [each.field for each in found.flaws] == ["spec.schedulingPolicy.gang.minCount"]


def test_a_group_of_scheduler_plugins() -> None:
    found = coscheduling_pod_group(
        {
            "metadata": METADATA,
            "spec": {
                "minMember": 3,
                "scheduleTimeoutSeconds": 30,
                "minResources": {"cpu": "1500m", "memory": "2Gi", "nvidia.com/gpu": 24},
            },
            "status": {"phase": "Scheduling", "running": 2, "occupiedBy": "team-a/train"},
        }
    )
    assert (found.group_kind, found.min_member, found.phase) == (GroupKind.COSCHEDULING, 3, "Scheduling")
    assert found.min_resources == {"cpu": 1500, "memory": 2 * 2**30, "nvidia.com/gpu": 24}
    assert (found.running, found.succeeded, found.failed) == (2, 0, 0)
    assert not found.flaws


def test_a_group_that_nobody_has_looked_at() -> None:
    found = coscheduling_pod_group({"metadata": METADATA, "spec": {"minMember": 3}})
    assert (found.phase, found.running, found.succeeded, found.failed) == ("", None, None, None)
    assert found.min_resources is None


@pytest.mark.parametrize("parse", [native_pod_group, coscheduling_pod_group, composite_pod_group])
def test_an_object_without_an_identity(parse: Any) -> None:
    with pytest.raises(Unreadable):
        parse({"metadata": {"name": "x"}, "spec": {}})


@given(found=objects_of("spec", "status"))
def test_no_json_breaks_a_parser(found: Any) -> None:
    assert native_pod_group(found).min_member >= 1
    assert coscheduling_pod_group(found).min_member >= 1
    assert (composite_pod_group(found).min_groups or 1) >= 1


@pytest.mark.parametrize(
    ("written", "mode"),
    [
        ({}, DisruptionMode.SINGLE),
        ({"disruptionMode": "Pod"}, DisruptionMode.SINGLE),
        ({"disruptionMode": "PodGroup"}, DisruptionMode.ALL),
        ({"disruptionMode": {"single": {}}}, DisruptionMode.SINGLE),
        ({"disruptionMode": {"all": {}}}, DisruptionMode.ALL),
    ],
)
def test_disruption_modes_of_two_releases(written: dict[str, Any], mode: DisruptionMode) -> None:
    found = native({"schedulingPolicy": {"basic": {}}, **written})
    assert (found.disruption, found.flaws) == (mode, ())
    assert composite({"schedulingPolicy": {"basic": {}}, **written}).disruption is mode


@pytest.mark.parametrize("written", ["all", {"every": {}}, ["all"]])
def test_a_disruption_mode_that_nobody_knows_is_a_flaw(written: Any) -> None:
    found = native({"disruptionMode": written})
    assert found.disruption is DisruptionMode.SINGLE
    assert [each.field for each in found.flaws] == ["spec.disruptionMode"]


def test_a_group_of_a_tree() -> None:
    found = native({"parentCompositePodGroupName": "replica-0", "preemptionPolicy": "Never"})
    assert (found.parent, found.never_preempts) == ("replica-0", True)
    assert not native({"preemptionPolicy": "PreemptLowerPriority"}).never_preempts


def test_a_group_of_groups() -> None:
    found = composite(
        {
            "parentCompositePodGroupName": "root",
            "workloadRef": {"workloadName": "w", "templateName": "replica"},
            "schedulingPolicy": {"gang": {"minGroupCount": 2}},
            "schedulingConstraints": {"topology": [{"key": "rack"}]},
            "priorityClassName": "high",
            "preemptionPolicy": "Never",
        },
        conditions=[{"type": "CompositePodGroupInitiallyScheduled", "status": "False"}],
    )
    assert (found.min_groups, found.parent, found.topology) == (2, "root", {"required": "rack"})
    assert (found.priority_class, found.never_preempts) == ("high", True)
    assert is_false(found.conditions, "CompositePodGroupInitiallyScheduled")
    assert composite({"schedulingPolicy": {"basic": {}}}).min_groups is None


def test_a_least_number_of_groups_that_makes_no_sense_is_a_flaw() -> None:
    found = composite({"schedulingPolicy": {"gang": {"minGroupCount": -1}}})
    assert found.min_groups == 1
    assert [each.field for each in found.flaws] == ["spec.schedulingPolicy.gang.minGroupCount"]
