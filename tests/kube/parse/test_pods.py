"""Pods as the API gives them: from when to when they hold what they ask for, and why they do not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucost.cluster.objects.pods import (
    Pod,
    PodDisruption,
    PodPhase,
    PodWaitReason,
    UnhealthyDevice,
)
from gpucost.domain.jobs import OwnerReference
from gpucost.kube.parse import pods
from gpucost.kube.parse.core_objects import node
from gpucost.kube.parse.events import Unreadable
from gpucost.kube.parse.pods import MOST_UNHEALTHY, pod_parser
from tests.kube.parse.pod_objects import (
    BOUND,
    GPU,
    a_pod,
    at,
    condition,
    ended,
    ms,
    phase_written,
    pod,
    pod_object,
    running,
    stuck,
)


def test_a_running_pod() -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "ju", "controller": True}
    read = a_pod(
        {"priority": 7, "priorityClassName": "high"},
        [BOUND, condition("Ready", "True", 4)],
        {
            "labels": {"team": "vision"},
            "annotations": {"kueue.x-k8s.io/workload": "w", "note": "x"},
            "ownerReferences": [owner],
        },
        startTime=at(3),
        containerStatuses=[running()],
    )
    assert (read.meta.uid, read.meta.namespace, read.meta.name) == ("u", "ns", "p")
    assert read.meta.owner == OwnerReference("batch/v1", "Job", "j", "ju")
    assert read.meta.annotations == {"kueue.x-k8s.io/workload": "w"}
    assert (read.phase, read.node, read.requests) == (PodPhase.RUNNING, "n", {GPU: 1})
    assert (read.bound_ms, read.ready_ms, read.ended_ms) == (ms(2), ms(4), None)
    assert (read.priority, read.waiting, read.stuck) == (7, None, "")
    assert read.is_bound
    assert not read.has_ended


def test_how_long_it_may_take_to_stop() -> None:
    assert a_pod({"terminationGracePeriodSeconds": 90}, [BOUND]).grace_ms == 90_000
    assert a_pod({}, [BOUND]).grace_ms is None
    asked = {"deletionTimestamp": at(50), "deletionGracePeriodSeconds": 5}
    assert a_pod({"terminationGracePeriodSeconds": 90}, [BOUND], asked).grace_ms == 5_000


def test_one_that_kube_scheduler_preempted() -> None:
    told = condition("DisruptionTarget", "True", 9, reason="PreemptionByScheduler")
    found = a_pod({}, [BOUND, told], startTime=at(3))
    assert (found.disruption, found.started_ms) == (PodDisruption("PreemptionByScheduler", ms(9)), ms(3))
    past = condition("DisruptionTarget", "False", 9, reason="PreemptionByScheduler")
    assert a_pod({}, [BOUND, past]).disruption is None


def test_one_that_kube_scheduler_makes_room_for() -> None:
    waits = a_pod({"nodeName": None}, [], phase="Pending", nominatedNodeName="n7")
    assert (waits.nominated, waits.template.never_preempts) == ("n7", False)
    assert a_pod({"preemptionPolicy": "Never"}, [BOUND], nominatedNodeName="n7").nominated == ""
    assert a_pod({"preemptionPolicy": "Never"}, [BOUND]).template.never_preempts


def test_a_waiting_pod() -> None:
    why = {"reason": "Unschedulable", "message": "0/4 nodes are available"}
    read = a_pod({"nodeName": None}, [condition("PodScheduled", "False", 1, **why)], phase="Pending")
    assert read.waiting == PodWaitReason("Unschedulable", "0/4 nodes are available", ms(1))
    assert (read.bound_ms, read.ended_ms, read.is_bound) == (None, None, False)


def test_a_gated_pod() -> None:
    gates = [{"name": "kueue.x-k8s.io/admission"}, {"name": "kueue.x-k8s.io/topology"}]
    read = a_pod({"nodeName": None, "schedulingGates": gates}, [], phase="Pending")
    assert read.gates == ("kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology")
    assert read.is_gated


def test_further_annotations_are_kept_when_asked_for() -> None:
    found = pod_object(meta={"annotations": {"example.com/user": "ann", "scheduling.k8s.io/group-name": "g"}})
    assert pod(found).meta.annotations == {"scheduling.k8s.io/group-name": "g"}
    assert pod_parser(frozenset({"example.com/user"}))(found).meta.annotations == {
        "example.com/user": "ann",
        "scheduling.k8s.io/group-name": "g",
    }


@pytest.mark.parametrize(
    ("conditions", "status", "minute"),
    [
        ([BOUND], {"startTime": at(5)}, 2),
        ([], {"startTime": at(5)}, 5),  # nodeName was written by hand
        ([], {}, 1),
        ([condition("PodScheduled", "False", 3)], {"startTime": at(5)}, 5),
        ([condition("PodScheduled", "False", 3)], {}, 3),
        ([{"type": "PodScheduled", "status": "True"}], {"startTime": at(5)}, 5),
    ],
)
def test_a_pod_holds_its_node_from_its_binding(
    conditions: list[dict[str, Any]], status: dict[str, Any], minute: int
) -> None:
    read = a_pod(conditions=conditions, **status)
    assert read.bound_ms == ms(minute)
    assert read.waiting is None


def test_a_pod_without_a_node_is_not_bound_whatever_its_conditions_say() -> None:
    assert a_pod({"nodeName": ""}).bound_ms is None


def test_a_phase_that_is_unknown_is_a_flaw_and_one_that_is_missing_is_pending() -> None:
    odd = pod(pod_object(phase="Dreaming"))
    assert odd.phase is PodPhase.UNKNOWN
    assert [flaw.field for flaw in odd.flaws] == ["status.phase"]
    assert pod(pod_object(phase=None)).phase is PodPhase.PENDING
    lost = a_pod(phase="Unknown")
    assert (lost.phase, lost.is_bound) == (PodPhase.UNKNOWN, True)


@pytest.mark.parametrize(
    ("status", "stuck"),
    [
        ({"reason": "Evicted", "containerStatuses": [stuck("ContainerCreating")]}, "Evicted"),
        (
            {
                "initContainerStatuses": [stuck("ImagePullBackOff", "init")],
                "containerStatuses": [stuck("PodInitializing")],
            },
            "ImagePullBackOff",
        ),
        ({"containerStatuses": [running(), stuck("CrashLoopBackOff", "other")]}, "CrashLoopBackOff"),
        ({"containerStatuses": [running()]}, ""),
    ],
)
def test_what_a_pod_is_stuck_at(status: dict[str, Any], stuck: str) -> None:
    assert a_pod(**status).stuck == stuck


def test_claims_are_those_that_exist() -> None:
    read = a_pod(
        {
            "resourceClaims": [
                {"name": "own", "resourceClaimName": "shared-gpu"},
                {"name": "made", "resourceClaimTemplateName": "one-gpu"},
                {"name": "later", "resourceClaimTemplateName": "one-gpu"},
            ]
        },
        resourceClaimStatuses=[{"name": "made", "resourceClaimName": "p-made-x7x2z"}, {"name": "later"}],
    )
    assert read.claims == ("shared-gpu", "p-made-x7x2z")
    assert read.template.claims == ("shared-gpu", "one-gpu", "one-gpu")
    assert read.backing_claim == ""


def test_a_claim_made_for_extended_resources_is_none_of_its_own() -> None:
    mapping = {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "r0"}
    made = {"resourceClaimName": "p-extended-resources-x7x2z", "requestMappings": [mapping]}
    read = a_pod({}, extendedResourceClaimStatus=made)
    assert (read.claims, read.backing_claim) == ((), "p-extended-resources-x7x2z")
    assert read.backed == (("r0", "nvidia.com/gpu"),)


def told(name: str, **health: str) -> dict[str, Any]:
    return {"name": name, "resources": [{"resourceID": key, "health": each} for key, each in health.items()]}


def test_devices_that_its_kubelet_calls_unhealthy() -> None:
    """Each once, whichever containers have it; Unknown, and a word of a later Kubernetes, are not."""
    claims = [
        {"name": "own", "resourceClaimName": "shared"},
        {"name": "made", "resourceClaimTemplateName": "t"},
    ]
    sick = told(GPU, a="Unhealthy", b="Healthy", c="Unknown", d="PermanentlyDoubtful", e="Unhealthy")
    of_claims = (
        told("claim:own", x="Unhealthy"),
        told("claim:made/r", y="Unhealthy"),
        told("claim:no/r", z="Unhealthy"),
    )
    read = a_pod(
        {"resourceClaims": claims},
        resourceClaimStatuses=[{"name": "made", "resourceClaimName": "p-made-x7x2z"}],
        containerStatuses=[{**running(), "allocatedResourcesStatus": [sick, *of_claims]}],
        initContainerStatuses=[
            {**running(), "allocatedResourcesStatus": [told(GPU, a="Unhealthy", f="Unhealthy")]}
        ],
    )
    assert read.unhealthy == (
        UnhealthyDevice(GPU, "", "a"),
        UnhealthyDevice(GPU, "", "e"),
        UnhealthyDevice("", "shared", "x"),
        UnhealthyDevice("", "p-made-x7x2z", "y"),
        UnhealthyDevice(GPU, "", "f"),
    )
    assert read.flaws == ()


def test_a_pod_has_so_many_unhealthy_devices_at_most() -> None:
    many = told(GPU, **{f"g{n}": "Unhealthy" for n in range(MOST_UNHEALTHY + 1)})
    read = pod(pod_object({}, containerStatuses=[{**running(), "allocatedResourcesStatus": [many]}]))
    assert len(read.unhealthy) == MOST_UNHEALTHY
    assert [each.field for each in read.flaws] == ["status.allocatedResourcesStatus"]


def test_names_of_claims_are_looked_up_once_however_many_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A status of a megabyte names ten thousands of devices, and a spec hundreds of claims."""
    looked, names = list[int](), pods._claim_names
    monkeypatch.setattr(pods, "_claim_names", lambda *found: looked.append(1) or names(*found))
    many = told("claim:c0/r", **{f"g{n}": "Unhealthy" for n in range(1_000)})
    claims = [{"name": f"c{n}", "resourceClaimName": f"claim-{n}"} for n in range(100)]
    read = pod(
        pod_object({"resourceClaims": claims}, containerStatuses=[{"allocatedResourcesStatus": [many]}])
    )
    assert {each.claim for each in read.unhealthy} == {"claim-0"}
    assert len(looked) <= 2


@pytest.mark.parametrize(
    ("spec", "group"),
    [
        ({"schedulingGroup": {"podGroupName": "workers-0"}}, "workers-0"),
        ({"workloadRef": {"name": "train", "podGroup": "workers"}}, "train/workers"),
        ({"workloadRef": {"name": "train", "podGroup": "w", "podGroupReplicaKey": "1"}}, "train/w/1"),
        ({}, ""),
    ],
)
def test_the_native_group(spec: dict[str, Any], group: str) -> None:
    assert a_pod(spec).group == group


def test_a_bad_field_is_a_flaw_and_the_rest_of_the_pod_is_read() -> None:
    found = pod_object(
        {"priority": "high", "tolerations": {}}, containerStatuses=[3, ended(8)], phase="Failed"
    )
    found["metadata"]["labels"] = {"team": None, "app": "train"}
    read = pod(found)
    assert (read.meta.labels, read.ended_ms, read.requests) == ({"app": "train"}, ms(8), {GPU: 1})
    assert {flaw.field for flaw in read.flaws} == {
        "metadata.labels.'team'",
        "spec.priority",
        "spec.tolerations",
        "status.containerStatuses[0]",
    }


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(at(5)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def _paths(found: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    return [path, *(each for key, inner in items for each in _paths(inner, (*path, key)))]


def _with(found: Any, path: tuple[Any, ...], value: Any) -> Any:
    """``found`` with ``value`` at ``path``."""
    if not path:
        return value
    copy = found.copy()
    copy[path[0]] = _with(found[path[0]], path[1:], value)
    return copy


_FULL = pod_object(
    {
        "initContainers": [
            {"name": "side", "restartPolicy": "Always", "resources": {"limits": {"cpu": "1"}}}
        ],
        "overhead": {"cpu": "1m"},
        "resources": {"requests": {"cpu": "1"}},
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}
                    ]
                }
            },
            "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]},
        },
        "topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}],
        "schedulingGates": [{"name": "g"}],
        "schedulingGroup": {"podGroupName": "g"},
        "workloadRef": {"name": "w"},
        "resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}],
    },
    [BOUND, condition("Ready", "False", 7)],
    {
        "labels": {"a": "b"},
        "annotations": {"a": "b"},
        "ownerReferences": [{"uid": "o", "controller": True}],
        **phase_written(9),
    },
    startTime=at(3),
    initContainerStatuses=[ended(6, 0, "side")],
    containerStatuses=[stuck("CrashLoopBackOff", lastState=ended(8)["state"], restartCount=1), ended(9)],
    resourceClaimStatuses=[{"name": "c", "resourceClaimName": "r"}],
)
_FULL_NODE = {
    "metadata": {
        **_FULL["metadata"],
        "labels": {
            "nvidia.com/gpu.count": "8",
            "nvidia.com/gpu.replicas": "2",
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb-SHARED",
            "nvidia.com/mig-1g.10gb.count": "8",
            "karpenter.sh/capacity-type": "spot",
        },
    },
    "spec": {"unschedulable": True, "taints": [{"key": "a", "effect": "NoSchedule"}]},
    "status": {"capacity": {"cpu": "1"}, "allocatable": {"cpu": "1"}, "conditions": [BOUND]},
}


@settings(max_examples=300, deadline=None)
@given(st.data(), st.lists(_JSON, min_size=1, max_size=3))
def test_no_json_crashes_a_parser(data: st.DataObject, values: list[Any]) -> None:
    found: Any = data.draw(st.sampled_from([_FULL, _FULL_NODE]))
    parse = pod if found is _FULL else node
    for value in values:
        paths = [path for path in _paths(found) if path]
        found = _with(found, data.draw(st.sampled_from(paths)), value)
    try:
        read = parse(found)
    except Unreadable:
        return
    assert read == parse(found)
    assert len(read.flaws) <= 20
    if isinstance(read, Pod) and read.ended_ms is not None:
        assert read.has_ended
        assert read.bound_ms is None or read.bound_ms <= read.ended_ms
