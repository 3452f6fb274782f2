"""When pods ended: what their objects say of it, and what they do not."""

from __future__ import annotations

from typing import Any

import pytest

from gpucost.cluster.objects.pods import PodPhase
from tests.kube.parse.pod_objects import (
    BOUND,
    a_pod,
    at,
    condition,
    ended,
    ms,
    phase_written,
    running,
    stuck,
)

_NOT_READY = condition("Ready", "False", 7, reason="PodFailed")
_DISRUPTED = condition("DisruptionTarget", "True", 9, reason="DeletionByPodGC")
_TWO = {"containers": [{"name": "main"}, {"name": "other"}]}


@pytest.mark.parametrize(
    ("spec", "conditions", "status", "minute"),
    [
        pytest.param({}, [], {"containerStatuses": [ended(8)]}, 8, id="one"),
        pytest.param(
            _TWO, [_NOT_READY], {"containerStatuses": [ended(8), ended(6, 1, "other")]}, 8, id="last of two"
        ),
        pytest.param(
            {},
            [],
            {"initContainerStatuses": [ended(11, 0, "sidecar")], "containerStatuses": [ended(8)]},
            11,
            id="a sidecar outlives",
        ),
        pytest.param(
            {},
            [_NOT_READY],
            {
                "initContainerStatuses": [ended(5, 1, "init")],
                "containerStatuses": [stuck("PodInitializing")],
            },
            5,
            id="init failed",
        ),
        pytest.param(
            {},
            [_DISRUPTED],
            {"containerStatuses": [ended(8)]},
            8,
            id="conditions do not matter when all ends are known",
        ),
        pytest.param(
            _TWO,
            [_NOT_READY],
            {"containerStatuses": [ended(6), ended(None, 137, "other", reason="ContainerStatusUnknown")]},
            None,
            id="one end unknown",
        ),
        pytest.param(_TWO, [_NOT_READY], {"containerStatuses": [ended(6)]}, None, id="one status missing"),
        pytest.param(
            _TWO, [_DISRUPTED], {"containerStatuses": [ended(6)]}, 9, id="one status missing, disrupted"
        ),
        pytest.param(
            {}, [_NOT_READY, _DISRUPTED], {"containerStatuses": [running()]}, 9, id="node lost while running"
        ),
        pytest.param(
            {}, [_DISRUPTED], {"reason": "Evicted", "startTime": at(3)}, 9, id="evicted, no statuses"
        ),
        pytest.param(
            {}, [], {"reason": "UnexpectedAdmissionError", "startTime": at(3)}, 3, id="refused by kubelet"
        ),
        pytest.param(
            {},
            [],
            {"containerStatuses": [stuck("ContainerCreating")], "startTime": at(3)},
            None,
            id="never started, and nobody refused it",
        ),
        pytest.param(
            {},
            [],
            {"containerStatuses": [stuck("CrashLoopBackOff", lastState=ended(8)["state"])]},
            None,
            id="ended before, waiting since",
        ),
        pytest.param(
            {}, [], {"containerStatuses": [ended(None, 137)], "startTime": at(3)}, None, id="nobody"
        ),
        pytest.param(
            {}, [], {"containerStatuses": [running()], "startTime": at(3)}, None, id="still running"
        ),
        pytest.param({}, [], {}, None, id="nothing at all"),
        pytest.param({}, [], {"containerStatuses": [ended(1)]}, 2, id="never before it was bound"),
    ],
)
def test_a_pod_ends_with_its_last_container(
    spec: dict[str, Any], conditions: list[dict[str, Any]], status: dict[str, Any], minute: int | None
) -> None:
    read = a_pod(spec, [BOUND, *conditions], phase="Failed", **status)
    assert read.ended_ms == (None if minute is None else ms(minute))
    assert read.has_ended
    assert not read.is_bound


_INIT = {"initContainers": [{"name": "init"}], "restartPolicy": "Always"}
_INIT_DONE = ended(10, 0, "init")
_NEVER_READY = [condition(type_, "False", 3, reason="PodFailed") for type_ in ("Ready", "ContainersReady")]
_UNREADY = [condition(type_, "False", 12, reason="PodFailed") for type_ in ("Ready", "ContainersReady")]
_EVICTED = condition("DisruptionTarget", "True", 20, reason="TerminationByKubelet")
_NO_SANDBOX = condition("PodReadyToStartContainers", "False", 21)
_LOST = ended(None, 137, reason="ContainerStatusUnknown", startedAt=None)
_LOOPING = stuck("CrashLoopBackOff", lastState=ended(15, 1, startedAt=at(14))["state"], restartCount=9)
_LOST_LOOPING = {**_LOST, "lastState": _LOOPING["lastState"]}
_LOST_LATER = {**_LOST, "lastState": ended(21, 1, startedAt=at(21))["state"]}
_AFTER_CRASH = [condition(type_, "False", 15, reason="PodFailed") for type_ in ("Ready", "ContainersReady")]
_ENDED_FIRST, _ENDED_LATER = (ended(minute, 0, "other", startedAt=at(11)) for minute in (12, 22))
_PULLING = stuck("ImagePullBackOff", "other")
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
            [*_NEVER_READY, _EVICTED], _INIT, [stuck("ImagePullBackOff")], {}, None, 20, id="evicted pulling"
        ),
        pytest.param(_NEVER_READY, _INIT, [stuck("ImagePullBackOff")], {}, None, None, id="pulling, late"),
        pytest.param(
            [*_NEVER_READY, _NO_SANDBOX], _INIT, [stuck("ImagePullBackOff")], {}, 22, 21, id="sandbox gone"
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
            [condition("Ready", "False", 12, reason="ContainersNotReady")],
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
    more: dict[str, Any] = {"startTime": at(3), **status}
    if statuses is not None:
        more["containerStatuses"] = statuses
    if spec is _INIT:
        more["initContainerStatuses"] = [_INIT_DONE]
    initialized = condition("Initialized", "True", 10 if spec is _INIT else 3)
    meta = None if written is None else phase_written(written)
    read = a_pod(spec, [BOUND, initialized, *conditions], meta, phase="Failed", **more)
    assert read.has_ended
    assert read.ended_ms == (None if minute is None else ms(minute))


_INIT_LOST = ended(None, 0, "init", reason="Completed", startedAt=None)
_SIDECAR_LOST = ended(None, 137, "init", reason="ContainerStatusUnknown", startedAt=None)


@pytest.mark.fault(12)
@pytest.mark.parametrize("written", [None, 50])
@pytest.mark.parametrize(
    ("policy", "init", "main", "none", "late"),
    [
        pytest.param(None, _INIT_LOST, ended(20), 20, 20, id="its status is lost"),
        pytest.param("Always", _SIDECAR_LOST, ended(20), 20, 20, id="a sidecar's status is lost"),
        pytest.param("Always", running("init"), ended(20), 20, 50, id="a sidecar that seems to run on"),
        pytest.param(None, _INIT_LOST, _LOST, None, 50, id="all is lost"),
        pytest.param(None, _INIT_LOST, stuck("PodInitializing"), None, 50, id="the main one never began"),
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
    meta = None if written is None else phase_written(written)
    more: dict[str, Any] = {"initContainerStatuses": [init], "containerStatuses": [main]}
    read = a_pod(spec, [BOUND, *_NEVER_READY], meta, phase="Succeeded", startTime=at(3), **more)
    minute = none if written is None else late
    assert read.ended_ms == (None if minute is None else ms(minute))


def test_only_who_wrote_the_phase_tells_of_the_end() -> None:
    meta = phase_written(20, "f:startTime")
    assert a_pod(None, [BOUND], meta, phase="Failed", containerStatuses=[_LOST]).ended_ms is None


_DELETED = {"deletionTimestamp": at(30)}
_SIDECAR = {"initContainers": [{"name": "sidecar", "restartPolicy": "Always"}]}


@pytest.mark.parametrize(
    ("policy", "statuses", "more", "phase"),
    [
        pytest.param("Never", [ended(8)], {}, PodPhase.SUCCEEDED, id="never"),
        pytest.param("Never", [ended(8, 1)], {}, PodPhase.FAILED, id="never, failed"),
        pytest.param("OnFailure", [ended(8)], {}, PodPhase.SUCCEEDED, id="on failure, succeeded"),
        pytest.param("OnFailure", [ended(8, 1)], {}, PodPhase.RUNNING, id="on failure, failed: restarts"),
        pytest.param("Always", [ended(8)], {}, PodPhase.RUNNING, id="always: restarts"),
        pytest.param("Always", [ended(8, 1)], {"meta": _DELETED}, PodPhase.FAILED, id="deleted"),
        pytest.param(
            "Always", [running()], {"meta": _DELETED}, PodPhase.RUNNING, id="deleted, still running"
        ),
        pytest.param(
            "Always",
            [stuck("CrashLoopBackOff")],
            {"meta": _DELETED},
            PodPhase.RUNNING,
            id="deleted, waiting",
        ),
        pytest.param("Always", [], {"meta": _DELETED}, PodPhase.RUNNING, id="deleted, no statuses"),
        pytest.param("Never", [ended(8)], {"spec": _TWO}, PodPhase.RUNNING, id="one status missing"),
        pytest.param(
            "Never",
            [ended(8)],
            {"spec": _SIDECAR, "initContainerStatuses": [running("sidecar")]},
            PodPhase.RUNNING,
            id="sidecar still runs",
        ),
        pytest.param(
            "Never",
            [ended(8)],
            {"spec": _SIDECAR, "initContainerStatuses": [ended(8, 143, "sidecar")]},
            PodPhase.SUCCEEDED,
            id="exit codes of sidecars do not matter",
        ),
        pytest.param(
            "Never",
            [ended(8)],
            {"spec": {"containers": [{"name": "main", "restartPolicy": "Always"}]}},
            PodPhase.RUNNING,
            id="the container's own policy",
        ),
        pytest.param(
            "Never",
            [ended(8, 42)],
            {"spec": {"containers": [{"name": "main", "restartPolicyRules": [{"action": "Restart"}]}]}},
            PodPhase.RUNNING,
            id="rules may restart it",
        ),
        pytest.param(
            "Never",
            [ended(8, 42, reason="RestartingAllContainers")],
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
    read = a_pod(spec, containerStatuses=statuses, **more)
    assert read.phase is phase
    assert read.ended_ms == (ms(8) if read.has_ended else None)
    assert read.is_bound is not read.has_ended
