"""Pods as the API gives them: from when to when they hold what they ask for, and why they do not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucost.cluster.pods import Pod, PodPhase, Waiting
from gpucost.domain.jobs import Owner
from gpucost.kube.events import Unreadable
from gpucost.kube.parse.nodes import node
from gpucost.kube.parse.pods import pod, pod_parser

_DAY_MS = 1_790_812_800_000  # 2026-10-01T00:00:00Z
_GPU = "nvidia.com/gpu"


def _at(minute: int) -> str:
    return f"2026-10-01T00:{minute:02d}:00Z"


def _ms(minute: int) -> int:
    return _DAY_MS + minute * 60_000


def _condition(type_: str, status: str, minute: int, **more: str) -> dict[str, Any]:
    return {"type": type_, "status": status, "lastTransitionTime": _at(minute), **more}


_BOUND = _condition("PodScheduled", "True", 2)


def _ended(minute: int | None, code: int = 0, name: str = "main", **more: Any) -> dict[str, Any]:
    finished = {"finishedAt": _at(minute)} if minute is not None else {}
    return {"name": name, "state": {"terminated": {"exitCode": code, **finished, **more}}}


def _running(name: str = "main") -> dict[str, Any]:
    return {"name": name, "state": {"running": {"startedAt": _at(3)}}}


def _stuck(reason: str, name: str = "main", **more: Any) -> dict[str, Any]:
    return {"name": name, "state": {"waiting": {"reason": reason}}, **more}


def _object(
    spec: dict[str, Any] | None = None,
    conditions: list[dict[str, Any]] | None = None,
    meta: dict[str, Any] | None = None,
    **status: Any,
) -> dict[str, Any]:
    """A pod with one container ``main`` on node ``n``, created at minute 1 and bound at minute 2."""
    return {
        "metadata": {
            "uid": "u",
            "namespace": "ns",
            "name": "p",
            "creationTimestamp": _at(1),
            **(meta or {}),
        },
        "spec": {
            "nodeName": "n",
            "restartPolicy": "Never",
            "containers": [{"name": "main", "resources": {"requests": {_GPU: "1"}}}],
            **(spec or {}),
        },
        "status": {
            "phase": "Running",
            "conditions": [_BOUND] if conditions is None else conditions,
            **status,
        },
    }


def _pod(*args: Any, **kwargs: Any) -> Pod:
    read = pod(_object(*args, **kwargs))
    assert read.flaws == ()
    return read


def test_a_running_pod() -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "ju", "controller": True}
    read = _pod(
        {"priority": 7, "priorityClassName": "high"},
        [_BOUND, _condition("Ready", "True", 4)],
        {
            "labels": {"team": "vision"},
            "annotations": {"kueue.x-k8s.io/workload": "w", "note": "x"},
            "ownerReferences": [owner],
        },
        startTime=_at(3),
        containerStatuses=[_running()],
    )
    assert (read.meta.uid, read.meta.namespace, read.meta.name) == ("u", "ns", "p")
    assert read.meta.owner == Owner("batch/v1", "Job", "j", "ju")
    assert read.meta.annotations == {"kueue.x-k8s.io/workload": "w"}
    assert (read.phase, read.node, read.requests) == (PodPhase.RUNNING, "n", {_GPU: 1})
    assert (read.bound_ms, read.ready_ms, read.ended_ms) == (_ms(2), _ms(4), None)
    assert (read.priority, read.waiting, read.stuck) == (7, None, "")
    assert read.is_bound
    assert not read.has_ended


def test_a_waiting_pod() -> None:
    why = {"reason": "Unschedulable", "message": "0/4 nodes are available"}
    read = _pod({"nodeName": None}, [_condition("PodScheduled", "False", 1, **why)], phase="Pending")
    assert read.waiting == Waiting("Unschedulable", "0/4 nodes are available", _ms(1))
    assert (read.bound_ms, read.ended_ms, read.is_bound) == (None, None, False)


def test_a_gated_pod() -> None:
    gates = [{"name": "kueue.x-k8s.io/admission"}, {"name": "kueue.x-k8s.io/topology"}]
    read = _pod({"nodeName": None, "schedulingGates": gates}, [], phase="Pending")
    assert read.gates == ("kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology")
    assert read.is_gated


def test_further_annotations_are_kept_when_asked_for() -> None:
    found = _object(meta={"annotations": {"example.com/user": "ann", "scheduling.k8s.io/group-name": "g"}})
    assert pod(found).meta.annotations == {"scheduling.k8s.io/group-name": "g"}
    assert pod_parser(frozenset({"example.com/user"}))(found).meta.annotations == {
        "example.com/user": "ann",
        "scheduling.k8s.io/group-name": "g",
    }


@pytest.mark.parametrize(
    ("conditions", "status", "minute"),
    [
        ([_BOUND], {"startTime": _at(5)}, 2),
        ([], {"startTime": _at(5)}, 5),  # nodeName was written by hand
        ([], {}, 1),
        ([_condition("PodScheduled", "False", 3)], {"startTime": _at(5)}, 5),
        ([_condition("PodScheduled", "False", 3)], {}, 3),
        ([{"type": "PodScheduled", "status": "True"}], {"startTime": _at(5)}, 5),
    ],
)
def test_a_pod_holds_its_node_from_its_binding(
    conditions: list[dict[str, Any]], status: dict[str, Any], minute: int
) -> None:
    read = _pod(conditions=conditions, **status)
    assert read.bound_ms == _ms(minute)
    assert read.waiting is None


def test_a_pod_without_a_node_is_not_bound_whatever_its_conditions_say() -> None:
    assert _pod({"nodeName": ""}).bound_ms is None


_NOT_READY = _condition("Ready", "False", 7, reason="PodFailed")
_DISRUPTED = _condition("DisruptionTarget", "True", 9, reason="DeletionByPodGC")
_TWO = {"containers": [{"name": "main"}, {"name": "other"}]}


@pytest.mark.parametrize(
    ("spec", "conditions", "status", "minute"),
    [
        pytest.param({}, [], {"containerStatuses": [_ended(8)]}, 8, id="one"),
        pytest.param(
            _TWO, [_NOT_READY], {"containerStatuses": [_ended(8), _ended(6, 1, "other")]}, 8, id="last of two"
        ),
        pytest.param(
            {},
            [],
            {"initContainerStatuses": [_ended(11, 0, "sidecar")], "containerStatuses": [_ended(8)]},
            11,
            id="a sidecar outlives",
        ),
        pytest.param(
            {},
            [_NOT_READY],
            {
                "initContainerStatuses": [_ended(5, 1, "init")],
                "containerStatuses": [_stuck("PodInitializing")],
            },
            5,
            id="init failed",
        ),
        pytest.param(
            {},
            [_DISRUPTED],
            {"containerStatuses": [_ended(8)]},
            8,
            id="conditions do not matter when all ends are known",
        ),
        pytest.param(
            _TWO,
            [_NOT_READY],
            {"containerStatuses": [_ended(6), _ended(None, 137, "other", reason="ContainerStatusUnknown")]},
            None,
            id="one end unknown",
        ),
        pytest.param(_TWO, [_NOT_READY], {"containerStatuses": [_ended(6)]}, None, id="one status missing"),
        pytest.param(
            _TWO, [_DISRUPTED], {"containerStatuses": [_ended(6)]}, 9, id="one status missing, disrupted"
        ),
        pytest.param(
            {}, [_NOT_READY, _DISRUPTED], {"containerStatuses": [_running()]}, 9, id="node lost while running"
        ),
        pytest.param(
            {}, [_DISRUPTED], {"reason": "Evicted", "startTime": _at(3)}, 9, id="evicted, no statuses"
        ),
        pytest.param(
            {}, [], {"reason": "UnexpectedAdmissionError", "startTime": _at(3)}, 3, id="refused by kubelet"
        ),
        pytest.param(
            {},
            [],
            {"containerStatuses": [_stuck("ContainerCreating")], "startTime": _at(3)},
            None,
            id="never started, and nobody refused it",
        ),
        pytest.param(
            {},
            [],
            {"containerStatuses": [_stuck("CrashLoopBackOff", lastState=_ended(8)["state"])]},
            None,
            id="ended before, waiting since",
        ),
        pytest.param(
            {}, [], {"containerStatuses": [_ended(None, 137)], "startTime": _at(3)}, None, id="nobody"
        ),
        pytest.param(
            {}, [], {"containerStatuses": [_running()], "startTime": _at(3)}, None, id="still running"
        ),
        pytest.param({}, [], {}, None, id="nothing at all"),
        pytest.param({}, [], {"containerStatuses": [_ended(1)]}, 2, id="never before it was bound"),
    ],
)
def test_a_pod_ends_with_its_last_container(
    spec: dict[str, Any], conditions: list[dict[str, Any]], status: dict[str, Any], minute: int | None
) -> None:
    read = _pod(spec, [_BOUND, *conditions], phase="Failed", **status)
    assert read.ended_ms == (None if minute is None else _ms(minute))
    assert read.has_ended
    assert not read.is_bound


def _written(minute: int, owns: str = "f:phase") -> dict[str, Any]:
    """``metadata`` with the kubelet's last write of ``owns``, and of annotations by others since."""
    fields: dict[str, Any] = {"f:status": {"f:conditions": {}, owns: {}}}
    return {
        "managedFields": [
            {"manager": "kubelet", "subresource": "status", "time": _at(minute), "fieldsV1": fields},
            {"manager": "x", "time": _at(59), "fieldsV1": {"f:metadata": {"f:annotations": {}}}},
            {"manager": "y", "fieldsV1": None},
        ]
    }


_INIT = {"initContainers": [{"name": "init"}], "restartPolicy": "Always"}
_INIT_DONE = _ended(10, 0, "init")
_NEVER_READY = [_condition(type_, "False", 3, reason="PodFailed") for type_ in ("Ready", "ContainersReady")]
_UNREADY = [_condition(type_, "False", 12, reason="PodFailed") for type_ in ("Ready", "ContainersReady")]
_EVICTED = _condition("DisruptionTarget", "True", 20, reason="TerminationByKubelet")
_NO_SANDBOX = _condition("PodReadyToStartContainers", "False", 21)
_LOST = _ended(None, 137, reason="ContainerStatusUnknown", startedAt=None)
_LOOPING = _stuck("CrashLoopBackOff", lastState=_ended(15, 1, startedAt=_at(14))["state"], restartCount=9)
_LOST_LOOPING = {**_LOST, "lastState": _LOOPING["lastState"]}
_LOST_LATER = {**_LOST, "lastState": _ended(21, 1, startedAt=_at(21))["state"]}
_AFTER_CRASH = [_condition(type_, "False", 15, reason="PodFailed") for type_ in ("Ready", "ContainersReady")]
_ENDED_FIRST, _ENDED_LATER = (_ended(minute, 0, "other", startedAt=_at(11)) for minute in (12, 22))
_PULLING = _stuck("ImagePullBackOff", "other")
_REFUSED = {"reason": "OutOfnvidia.com/gpu", "message": "Pod was rejected: no GPU"}


@pytest.mark.fault(12)
@pytest.mark.parametrize(
    ("conditions", "spec", "statuses", "status", "written", "minute"),
    [
        pytest.param(_NEVER_READY, {}, [_LOST], {}, None, None, id="never ready, lost"),
        pytest.param(_NEVER_READY, {}, [_LOST], {}, 20, 20, id="never ready, lost: the kubelet's word"),
        pytest.param(_NEVER_READY, _INIT, [_LOST], {}, None, None, id="init done, lost"),
        pytest.param(_NEVER_READY, _INIT, [_LOST], {}, 20, 20, id="init done, lost: the kubelet's word"),
        pytest.param(_NEVER_READY, {}, None, {"reason": "Terminated"}, None, None, id="no statuses"),
        pytest.param(_NEVER_READY, {}, None, {"reason": "Terminated"}, 20, 20, id="no statuses, written"),
        pytest.param([*_NEVER_READY, _EVICTED], {}, None, {}, 21, 20, id="no statuses, evicted"),
        pytest.param([*_NEVER_READY, _EVICTED], {}, None, {}, 22, 22, id="no statuses, long evicted"),
        pytest.param(
            [*_NEVER_READY, _EVICTED], _INIT, [_stuck("ImagePullBackOff")], {}, None, 20, id="evicted pulling"
        ),
        pytest.param(_NEVER_READY, _INIT, [_stuck("ImagePullBackOff")], {}, None, None, id="pulling, late"),
        pytest.param(
            [*_NEVER_READY, _NO_SANDBOX], _INIT, [_stuck("ImagePullBackOff")], {}, 22, 21, id="sandbox gone"
        ),
        pytest.param([_EVICTED, _NO_SANDBOX], {}, [_LOST], {}, None, 21, id="evicted, and its sandbox gone"),
        pytest.param([_EVICTED], {}, [_LOST], {}, 20, 20, id="told and written at once"),
        pytest.param([_EVICTED], {}, [_LOST], {}, 19, 19, id="told after it was written"),
        pytest.param([_EVICTED, *_UNREADY], {}, [_LOST], {}, 30, 30, id="evicted, and ran on"),
        pytest.param(
            [_EVICTED],
            {},
            [_LOST_LATER],
            {},
            21,
            21,
            id="evicted before the end that is known of a run before",
        ),
        pytest.param(
            [_EVICTED], {}, [_LOST_LATER], {}, None, None, id="evicted before it began, as far as is known"
        ),
        pytest.param([_EVICTED], _TWO, [_LOST, _ENDED_LATER], {}, 23, 23, id="one container outlived it"),
        pytest.param(
            [_EVICTED], _TWO, [_LOST, _ENDED_LATER], {}, None, 22, id="one container outlived it, a dump"
        ),
        pytest.param([_EVICTED], {}, [_LOOPING], {}, None, 20, id="evicted between two starts"),
        pytest.param(_UNREADY, {}, [_LOOPING], {}, None, None, id="it began once more after it was unready"),
        pytest.param(_UNREADY, {}, [_LOOPING], {}, 25, 25, id="stopped between two starts"),
        pytest.param(_AFTER_CRASH, {}, [_LOST_LOOPING], {}, 18, 18, id="crashed, waited, was deleted"),
        pytest.param(_AFTER_CRASH, {}, [_LOST_LOOPING], {}, None, None, id="crashed and deleted, a dump"),
        pytest.param(_UNREADY, {}, [_LOST], {}, 25, 25, id="unready by its probe, lost later"),
        pytest.param(_UNREADY, {}, [_LOST], {}, None, None, id="unready by its probe, lost later, a dump"),
        pytest.param(
            _UNREADY, _TWO, [_LOST, _ENDED_FIRST], {}, 25, 25, id="one done, the main one lost later"
        ),
        pytest.param(_UNREADY, _TWO, [_LOST, _ENDED_FIRST], {}, None, None, id="one done, one lost, a dump"),
        pytest.param(
            _UNREADY, _TWO, [_ENDED_FIRST, _PULLING], {}, 25, 25, id="one done, one never began, stopped"
        ),
        pytest.param(
            [_condition("Ready", "False", 12, reason="ContainersNotReady")],
            {},
            [_LOST],
            {},
            25,
            25,
            id="was not ready for a while, and then lost",
        ),
        pytest.param(_NEVER_READY, {}, None, _REFUSED, None, 3, id="refused"),
        pytest.param(_NEVER_READY, {}, None, _REFUSED, 4, 3, id="refused, at once"),
        pytest.param([], {}, None, _REFUSED, 20, 20, id="refused after the node's restart"),
        pytest.param([], {}, [_LOST], {"reason": "NodeAffinity"}, None, None, id="ran before it was refused"),
        pytest.param([], {}, None, {"message": "Pod was rejected: x"}, None, 3, id="refused, the message"),
        pytest.param([], {}, None, {"message": "Preempted by pod x"}, None, None, id="another message"),
    ],
)
def test_the_end_of_a_pod_of_which_not_all_is_known(
    conditions: list[dict[str, Any]],
    spec: dict[str, Any],
    statuses: list[dict[str, Any]] | None,
    status: dict[str, Any],
    written: int | None,
    minute: int | None,
) -> None:
    """A condition that was never True has the time of the start, which is no end."""
    more: dict[str, Any] = {"startTime": _at(3), **status}
    if statuses is not None:
        more["containerStatuses"] = statuses
    if spec is _INIT:
        more["initContainerStatuses"] = [_INIT_DONE]
    initialized = _condition("Initialized", "True", 10 if spec is _INIT else 3)
    meta = None if written is None else _written(written)
    read = _pod(spec, [_BOUND, initialized, *conditions], meta, phase="Failed", **more)
    assert read.has_ended
    assert read.ended_ms == (None if minute is None else _ms(minute))


_INIT_LOST = _ended(None, 0, "init", reason="Completed", startedAt=None)
_SIDECAR_LOST = _ended(None, 137, "init", reason="ContainerStatusUnknown", startedAt=None)


@pytest.mark.fault(12)
@pytest.mark.parametrize("written", [None, 50])
@pytest.mark.parametrize(
    ("policy", "init", "main", "none", "late"),
    [
        pytest.param(None, _INIT_LOST, _ended(20), 20, 20, id="its status is lost"),
        pytest.param("Always", _SIDECAR_LOST, _ended(20), 20, 20, id="a sidecar's status is lost"),
        pytest.param("Always", _running("init"), _ended(20), 20, 50, id="a sidecar that seems to run on"),
        pytest.param(None, _INIT_LOST, _LOST, None, 50, id="all is lost"),
        pytest.param(None, _INIT_LOST, _stuck("PodInitializing"), None, 50, id="the main one never began"),
    ],
)
def test_an_init_container_of_no_known_end_hides_not_that_of_the_main_one(
    policy: str | None,
    init: dict[str, Any],
    main: dict[str, Any],
    none: int | None,
    late: int,
    written: int | None,
) -> None:
    """``none`` is the end without managedFields, ``late`` with a phase last written at minute 50."""
    spec = {"initContainers": [{"name": "init", **({"restartPolicy": policy} if policy else {})}]}
    meta = None if written is None else _written(written)
    more: dict[str, Any] = {"initContainerStatuses": [init], "containerStatuses": [main]}
    read = _pod(spec, [_BOUND, *_NEVER_READY], meta, phase="Succeeded", startTime=_at(3), **more)
    minute = none if written is None else late
    assert read.ended_ms == (None if minute is None else _ms(minute))


def test_only_who_wrote_the_phase_tells_of_the_end() -> None:
    meta = _written(20, "f:startTime")
    assert _pod(None, [_BOUND], meta, phase="Failed", containerStatuses=[_LOST]).ended_ms is None


_DELETED = {"deletionTimestamp": _at(30)}
_SIDECAR = {"initContainers": [{"name": "sidecar", "restartPolicy": "Always"}]}


@pytest.mark.parametrize(
    ("policy", "statuses", "more", "phase"),
    [
        pytest.param("Never", [_ended(8)], {}, PodPhase.SUCCEEDED, id="never"),
        pytest.param("Never", [_ended(8, 1)], {}, PodPhase.FAILED, id="never, failed"),
        pytest.param("OnFailure", [_ended(8)], {}, PodPhase.SUCCEEDED, id="on failure, succeeded"),
        pytest.param("OnFailure", [_ended(8, 1)], {}, PodPhase.RUNNING, id="on failure, failed: restarts"),
        pytest.param("Always", [_ended(8)], {}, PodPhase.RUNNING, id="always: restarts"),
        pytest.param("Always", [_ended(8, 1)], {"meta": _DELETED}, PodPhase.FAILED, id="deleted"),
        pytest.param(
            "Always", [_running()], {"meta": _DELETED}, PodPhase.RUNNING, id="deleted, still running"
        ),
        pytest.param(
            "Always",
            [_stuck("CrashLoopBackOff")],
            {"meta": _DELETED},
            PodPhase.RUNNING,
            id="deleted, waiting",
        ),
        pytest.param("Always", [], {"meta": _DELETED}, PodPhase.RUNNING, id="deleted, no statuses"),
        pytest.param("Never", [_ended(8)], {"spec": _TWO}, PodPhase.RUNNING, id="one status missing"),
        pytest.param(
            "Never",
            [_ended(8)],
            {"spec": _SIDECAR, "initContainerStatuses": [_running("sidecar")]},
            PodPhase.RUNNING,
            id="sidecar still runs",
        ),
        pytest.param(
            "Never",
            [_ended(8)],
            {"spec": _SIDECAR, "initContainerStatuses": [_ended(8, 143, "sidecar")]},
            PodPhase.SUCCEEDED,
            id="exit codes of sidecars do not matter",
        ),
        pytest.param(
            "Never",
            [_ended(8)],
            {"spec": {"containers": [{"name": "main", "restartPolicy": "Always"}]}},
            PodPhase.RUNNING,
            id="the container's own policy",
        ),
        pytest.param(
            "Never",
            [_ended(8, 42)],
            {"spec": {"containers": [{"name": "main", "restartPolicyRules": [{"action": "Restart"}]}]}},
            PodPhase.RUNNING,
            id="rules may restart it",
        ),
        pytest.param(
            "Never",
            [_ended(8, 42, reason="RestartingAllContainers")],
            {},
            PodPhase.RUNNING,
            id="all start again",
        ),
    ],
)
def test_a_pod_that_will_not_run_again_has_ended_before_its_phase_says_so(
    policy: str, statuses: list[dict[str, Any]], more: dict[str, Any], phase: PodPhase
) -> None:
    spec = {"restartPolicy": policy, **more.pop("spec", {})}
    read = _pod(spec, containerStatuses=statuses, **more)
    assert read.phase is phase
    assert read.ended_ms == (_ms(8) if read.has_ended else None)
    assert read.is_bound is not read.has_ended


def test_a_phase_that_is_unknown_is_a_flaw_and_one_that_is_missing_is_pending() -> None:
    odd = pod(_object(phase="Dreaming"))
    assert odd.phase is PodPhase.UNKNOWN
    assert [flaw.field for flaw in odd.flaws] == ["status.phase"]
    assert pod(_object(phase=None)).phase is PodPhase.PENDING
    lost = _pod(phase="Unknown")
    assert (lost.phase, lost.is_bound) == (PodPhase.UNKNOWN, True)


@pytest.mark.parametrize(
    ("status", "stuck"),
    [
        ({"reason": "Evicted", "containerStatuses": [_stuck("ContainerCreating")]}, "Evicted"),
        (
            {
                "initContainerStatuses": [_stuck("ImagePullBackOff", "init")],
                "containerStatuses": [_stuck("PodInitializing")],
            },
            "ImagePullBackOff",
        ),
        ({"containerStatuses": [_running(), _stuck("CrashLoopBackOff", "other")]}, "CrashLoopBackOff"),
        ({"containerStatuses": [_running()]}, ""),
    ],
)
def test_what_a_pod_is_stuck_at(status: dict[str, Any], stuck: str) -> None:
    assert _pod(**status).stuck == stuck


def test_claims_are_those_that_exist() -> None:
    read = _pod(
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
    made = {"resourceClaimName": "p-extended-resources-x7x2z", "requestMappings": []}
    read = _pod({}, extendedResourceClaimStatus=made)
    assert (read.claims, read.backing_claim) == ((), "p-extended-resources-x7x2z")


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
    assert _pod(spec).group == group


def test_a_bad_field_is_a_flaw_and_the_rest_of_the_pod_is_read() -> None:
    found = _object({"priority": "high", "tolerations": {}}, containerStatuses=[3, _ended(8)], phase="Failed")
    found["metadata"]["labels"] = {"team": None, "app": "train"}
    read = pod(found)
    assert (read.meta.labels, read.ended_ms, read.requests) == ({"app": "train"}, _ms(8), {_GPU: 1})
    assert {flaw.field for flaw in read.flaws} == {
        "metadata.labels.'team'",
        "spec.priority",
        "spec.tolerations",
        "status.containerStatuses[0]",
    }


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(_at(5)),
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


_FULL = _object(
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
    [_BOUND, _condition("Ready", "False", 7)],
    {
        "labels": {"a": "b"},
        "annotations": {"a": "b"},
        "ownerReferences": [{"uid": "o", "controller": True}],
        **_written(9),
    },
    startTime=_at(3),
    initContainerStatuses=[_ended(6, 0, "side")],
    containerStatuses=[_stuck("CrashLoopBackOff", lastState=_ended(8)["state"], restartCount=1), _ended(9)],
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
    "status": {"capacity": {"cpu": "1"}, "allocatable": {"cpu": "1"}, "conditions": [_BOUND]},
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
