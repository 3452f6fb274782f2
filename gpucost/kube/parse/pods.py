"""Parser of pods (``cluster.objects.pods.Pod``): what they request, and from when to when they hold it.

The end of a pod in a terminal phase is the first of these that applies:

1. All its containers finished, each at a known time, or an init container failed for good: the last of these.
   Once the main containers have, the times of init containers that have ended too are not needed.
2. Signs of an end, of which the latest counts, but no earlier than containers that are known to have ended:
   DisruptionTarget turned True (the pod was evicted, preempted or lost with its node), or
   PodReadyToStartContainers turned False (its sandbox is gone) after all known times of containers. A
   condition that was never True has the time of the pod's start (kubelet/status), which proves nothing. Where
   the write of 4 is known, signs count only shortly before it: an evicted pod may run on for long.
3. The kubelet refused it: ``status.startTime``.
4. The last write by the writer of its phase (``metadata.managedFields``). That is no earlier than the end,
   since a kubelet writes a terminal phase when nothing runs any more; and mostly only seconds later.
5. Unknown.

Ready and ContainersReady are no signs: a kubelet that turns their reason to PodFailed leaves the time when
the pod first stopped being ready, by its probe, a crash or the first of its containers that ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gpucost.cluster.objects.metadata import Conditions, is_false, is_true
from gpucost.cluster.objects.pods import (
    Pod,
    PodDisruption,
    PodPhase,
    PodWaitReason,
    UnhealthyDevice,
)
from gpucost.domain.errors import ErrorRemark
from gpucost.domain.time import SECOND_MS
from gpucost.kube.parse.fields import ObjectPart, conditions, meta
from gpucost.kube.parse.templates import pod_template

MOST_CLAIMS = 64
"""Of one pod, more than any has use for: each may become a series."""
MOST_UNHEALTHY = 256
"""Devices of one pod: 16 GPUs, each handed out 16 times."""
POD_ANNOTATIONS = frozenset(
    {
        "batch.kubernetes.io/job-completion-index",
        "gpu-fraction",
        "gpu-memory",
        "hami.io/vgpu-devices-allocated",
        "kubernetes.io/config.mirror",
        "kueue.x-k8s.io/pod-group-name",
        "kueue.x-k8s.io/pod-group-total-count",
        "kueue.x-k8s.io/workload",
        "leaderworkerset.sigs.k8s.io/size",
        "scheduling.k8s.io/group-name",
        "scheduling.volcano.sh/group-min-member",
        "scheduling.volcano.sh/group-name",
        "scheduling.volcano.sh/queue-name",
        "volcano.sh/preemptable",
    }
)
"""Annotations that name the job, gang or queue of a pod, and whether Volcano may evict it. Others are not
kept."""

_PHASES = {phase.value: phase for phase in PodPhase}
_RESTARTING_ALL = "RestartingAllContainers"
"""Reason of containers that ended only to start again together (kubernetes 1.35, container restart rules)."""
_REFUSALS = frozenset(
    {
        *("NodeAffinity", "NodeName", "NodePorts", "NodeShutdown", "TaintToleration"),
        *("UnexpectedAdmissionError", "TopologyAffinityError", "InvalidNodeInfo"),
        *("AppArmor", "SysctlForbidden", "PodOSNotSupported", "PodOSSelectorNodeLabelDoesNotMatch"),
    }
)
"""``status.reason`` of pods that a kubelet does not admit (kubelet/lifecycle and its admit handlers)."""
REFUSED_MESSAGE = "Pod was rejected"
"""The beginning of ``status.message`` of such a pod."""

_REFUSED_FOR_LACK = "OutOf"
_CLAIM = "claim:"
_SOON_MS = 60_000


class _Container(NamedTuple):
    """The state of a container. ``waits_for`` is empty unless it waits; times are None when not known.

    ``has_run``: it was started at least once, the last time at ``begun_ms``. ``exit_code`` is None unless it
    has ended now. ``ended_before_ms`` is the end of the previous run of a container that has ended now at an
    unknown time.
    """

    name: str
    waits_for: str
    has_run: bool
    ended_ms: int | None
    exit_code: int | None
    end_reason: str
    begun_ms: int | None = None
    ended_before_ms: int | None = None


def pod_parser(annotations: frozenset[str]) -> Callable[[Mapping[str, Any]], Pod]:
    """Of one pod, with the annotations named in ``POD_ANNOTATIONS`` and further ones (of a team or user).

    What is returned raises Unreadable without a uid or name.
    """
    kept = POD_ANNOTATIONS | annotations
    return lambda found: _pod(found, kept)


def _pod(found: Mapping[str, Any], annotations: frozenset[str]) -> Pod:
    root = ObjectPart(found)
    who = meta(root, annotations)
    spec, status = root.part("spec"), root.part("status")
    its_conditions = conditions(status)
    started = [_container(each) for each in status.parts("initContainerStatuses")]
    main = [_container(each) for each in status.parts("containerStatuses")]
    phase = _phase(spec, status, started, main, who.deleted_ms is not None)
    node = spec.text("nodeName")
    bound_ms = _bound(status, its_conditions, who.created_ms) if node else None
    has_ended = phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)
    ended_ms = _ended(root, its_conditions, started, main, bound_ms) if has_ended else None
    return Pod(
        meta=who,
        phase=phase,
        template=pod_template(spec, status),
        node=node,
        bound_ms=bound_ms,
        ended_ms=ended_ms,
        ready_ms=its_conditions["Ready"].since_ms if is_true(its_conditions, "Ready") else None,
        waiting=None if node else _waiting(its_conditions),
        stuck=_stuck(status, (*started, *main)),
        gates=tuple(each.text("name") for each in spec.parts("schedulingGates")),
        priority=spec.whole("priority") or 0,
        claims=_claims(spec, status),
        group=_group(spec),
        unhealthy=_unhealthy(spec, status),
        flaws=tuple(root.flaws),
        backing_claim=_backing_claim(status),
        backed=_backed(status),
        started_ms=status.instant("startTime"),
        grace_ms=_grace(root, spec),
        nominated="" if node else status.text("nominatedNodeName"),
        disruption=_disruption(its_conditions),
    )


def _container(status: ObjectPart) -> _Container:
    state = status.part("state")
    waits_for = state.part("waiting").text("reason") if "waiting" in state else ""
    if "running" in state:
        begun_ms = state.part("running").instant("startedAt")
        return _Container(status.text("name"), "", True, None, None, "", begun_ms)
    if "terminated" in state:
        end = state.part("terminated")
        code = end.whole("exitCode")
        exit_code = 1 if code is None else code
        ended_ms, begun_ms, ended_before_ms = end.instant("finishedAt"), end.instant("startedAt"), None
        if ended_ms is None:
            before = status.part("lastState").part("terminated")
            ended_before_ms = before.instant("finishedAt")
            begun_ms = before.instant("startedAt") if begun_ms is None else begun_ms
        reason = end.text("reason")
        return _Container(
            status.text("name"), "", True, ended_ms, exit_code, reason, begun_ms, ended_before_ms
        )
    last = status.part("lastState")
    if "terminated" in last:
        end = last.part("terminated")
        ended_ms, begun_ms = end.instant("finishedAt"), end.instant("startedAt")
        return _Container(status.text("name"), waits_for, True, ended_ms, None, "", begun_ms)
    return _Container(status.text("name"), waits_for, status.count("restartCount") > 0, None, None, "")


def _phase(
    spec: ObjectPart,
    status: ObjectPart,
    started: Sequence[_Container],
    main: Sequence[_Container],
    is_deleted: bool,
) -> PodPhase:
    """``status.phase``, unless it is Running while no container runs or will run.

    The kubelet holds back a terminal phase until it has cleaned up (kubernetes, kubelet/status,
    mergePodStatus). What the phase will be then is known from its containers (kubelet_pods.go, getPhase):
    Succeeded when all ended with 0, else Failed. It is taken at once when each container has ended and none
    is started again: because the pod is being deleted, or by its restart policy (Never; OnFailure and 0).
    """
    text = status.text("phase", PodPhase.PENDING)
    phase = _PHASES.get(text)
    if phase is None:
        status.flaw("phase", text, ", ".join(_PHASES))
        return PodPhase.UNKNOWN
    if phase is not PodPhase.RUNNING or not main or any(each.exit_code is None for each in main):
        return phase
    containers = spec.parts("containers")
    if len(main) < len(containers) or any(each.exit_code is None for each in started):
        return phase
    if any(each.end_reason == _RESTARTING_ALL for each in (*started, *main)):
        return phase
    named = _by_name(containers)
    if not is_deleted and any(_starts_again(spec, named, each) for each in main):
        return phase
    return PodPhase.FAILED if any(each.exit_code for each in main) else PodPhase.SUCCEEDED


def _by_name(containers: Sequence[ObjectPart]) -> dict[str, ObjectPart]:
    return {each.text("name"): each for each in containers}


def _starts_again(spec: ObjectPart, containers: Mapping[str, ObjectPart], ended: _Container) -> bool:
    """By the container's restart policy (Kubernetes 1.34), else the pod's; rules by exit code may say so."""
    own = containers.get(ended.name)
    if own is not None and "restartPolicyRules" in own:
        return True
    policy = (own.text("restartPolicy") if own is not None else "") or spec.text("restartPolicy")
    return not (policy == "Never" or (policy == "OnFailure" and ended.exit_code == 0))


def _bound(status: ObjectPart, its_conditions: Conditions, created_ms: int) -> int:
    """When a pod that has a node was given it.

    Where ``spec.nodeName`` is written without the scheduler (static pods, some controllers), the condition is
    left to the kubelet. Until that writes it, the pod holds its node from the time the kubelet first saw it,
    or, before that, from when it was last known to have none.
    """
    scheduled = its_conditions.get("PodScheduled")
    since_ms = scheduled.since_ms if scheduled is not None else None
    if since_ms is not None and is_true(its_conditions, "PodScheduled"):
        return since_ms
    started_ms = status.instant("startTime")
    if started_ms is not None:
        return started_ms
    return created_ms if since_ms is None else since_ms


def _ended(
    root: ObjectPart,
    its_conditions: Conditions,
    started: Sequence[_Container],
    main: Sequence[_Container],
    bound_ms: int | None,
) -> int | None:
    """When a pod in a terminal phase ended, by the rules in the head of this module; never before
    ``bound_ms``."""
    spec, status = root.part("spec"), root.part("status")
    ran = [each for each in (*started, *main) if each.has_run]
    ends = (each.ended_before_ms if each.ended_ms is None else each.ended_ms for each in ran)
    known = [each for each in ends if each is not None]
    has_main_ended = _are_all_over(spec, main) and all(each.ended_ms is not None for each in main)
    lost = [each for each in ran if each.ended_ms is None]
    if has_main_ended:
        is_known = all(each.exit_code is not None for each in lost)
    else:
        is_known = not lost and _has_failed_at_start(spec, started)
    if not is_known:
        starts = [bound_ms, status.instant("startTime"), *(each.begun_ms for each in ran)]
        begun_ms = max((each for each in starts if each is not None), default=0)
        signs = _signs(its_conditions, begun_ms, max(known, default=0))
        told_ms = _told(root, signs, max([begun_ms, *known]), has_run=bool(ran))
        if told_ms is not None:
            known.append(told_ms)
        elif not has_main_ended:
            return None
    return max(known) if bound_ms is None else max(*known, bound_ms)


def _are_all_over(spec: ObjectPart, main: Sequence[_Container]) -> bool:
    """Whether all containers have ended now. A container that waits, though it ended before, keeps its
    node."""
    is_complete = len(main) >= max(1, len(spec.parts("containers")))
    return is_complete and all(each.exit_code is not None for each in main)


def _has_failed_at_start(spec: ObjectPart, started: Sequence[_Container]) -> bool:
    """Whether an init container failed that is not restarted: then no other ever starts."""
    failed = [each for each in started if each.exit_code]
    named = _by_name(spec.parts("initContainers")) if failed else {}
    return bool(failed) and not all(_starts_again(spec, named, each) for each in failed)


def _signs(its_conditions: Conditions, begun_ms: int, ended_ms: int) -> list[int]:
    """When the conditions turned that prove the end; ``begun_ms`` and ``ended_ms`` are the last known start
    and end of a container."""
    signs = []
    if is_true(its_conditions, "DisruptionTarget"):
        disrupted_ms = its_conditions["DisruptionTarget"].since_ms
        if disrupted_ms is not None and disrupted_ms >= begun_ms:
            signs.append(disrupted_ms)
    if is_false(its_conditions, "PodReadyToStartContainers"):
        gone_ms = its_conditions["PodReadyToStartContainers"].since_ms
        if gone_ms is not None and gone_ms > begun_ms and gone_ms >= ended_ms:
            signs.append(gone_ms)
    return signs


def _told(root: ObjectPart, signs: list[int], alive_ms: int, *, has_run: bool) -> int | None:
    """The end by signs, by the refusal, or else by the last write of the phase; None where none is known.

    ``alive_ms`` is the last known time of its containers. A kubelet that refuses a running pod again, after
    the node's restart, drops the status of its containers: such a pod was refused long after its start.
    """
    status, written_ms = root.part("status"), _phase_written(root)
    if written_ms is not None:
        signs = [each for each in signs if alive_ms <= each and 0 <= written_ms - each <= _SOON_MS]
    if signs:
        return max(signs)
    refused_ms = status.instant("startTime") if not has_run and _is_refused(status) else None
    if refused_ms is not None and (written_ms is None or written_ms - refused_ms <= _SOON_MS):
        return refused_ms
    return written_ms


def _is_refused(status: ObjectPart) -> bool:
    reason = status.text("reason")
    return (
        reason in _REFUSALS
        or reason.startswith(_REFUSED_FOR_LACK)
        or status.text("message").startswith(REFUSED_MESSAGE)
    )


def _phase_written(root: ObjectPart) -> int | None:
    """When the writer of ``status.phase`` last changed any field."""
    times = [
        each.instant("time")
        for each in root.part("metadata").parts("managedFields")
        if "f:phase" in each.part("fieldsV1").part("f:status")
    ]
    return max((each for each in times if each is not None), default=None)


def _waiting(its_conditions: Conditions) -> PodWaitReason | None:
    scheduled = its_conditions.get("PodScheduled")
    if scheduled is None or scheduled.status is not False:
        return None
    return PodWaitReason(scheduled.reason, scheduled.message, scheduled.since_ms)


def _grace(root: ObjectPart, spec: ObjectPart) -> int | None:
    """The grace period of its deletion request, else that of its spec."""
    asked = root.part("metadata")
    key = "deletionGracePeriodSeconds"
    seconds = asked.whole(key) if key in asked else spec.whole("terminationGracePeriodSeconds")
    return None if seconds is None or seconds < 0 else seconds * SECOND_MS


def _disruption(its_conditions: Conditions) -> PodDisruption | None:
    if not is_true(its_conditions, "DisruptionTarget"):
        return None
    found = its_conditions["DisruptionTarget"]
    return PodDisruption(found.reason, found.since_ms)


def _stuck(status: ObjectPart, containers: Sequence[_Container]) -> str:
    return status.text("reason") or next((each.waits_for for each in containers if each.waits_for), "")


def _claims(spec: ObjectPart, status: ObjectPart) -> tuple[str, ...]:
    """Names of the ResourceClaims that exist for it: those it names, and those made from templates so far."""
    names = _claim_names(spec, status)
    found = tuple(dict.fromkeys(name for name in names.values() if name))
    if len(found) > MOST_CLAIMS:
        spec.flaw("resourceClaims", ErrorRemark(f"{len(found):,} claims"), f"at most {MOST_CLAIMS}")
    return found[:MOST_CLAIMS]


def _claim_names(spec: ObjectPart, status: ObjectPart) -> dict[str, str]:
    """Names of ResourceClaims by the names that the pod's spec gives them; empty for one yet to be made."""
    wanted = spec.parts("resourceClaims")
    if not wanted:
        return {}
    made = {
        each.text("name"): each.text("resourceClaimName") for each in status.parts("resourceClaimStatuses")
    }
    return {
        each.text("name"): each.text("resourceClaimName") or made.get(each.text("name"), "")
        for each in wanted
    }


def _unhealthy(spec: ObjectPart, status: ObjectPart) -> tuple[UnhealthyDevice, ...]:
    """``allocatedResourcesStatus`` of its containers, each device once (KEP-4680, core/v1 ResourceStatus).

    Unknown is not unhealthy: of a driver that says nothing of health, and of one that has gone silent, a
    kubelet writes Unknown. Kubernetes 1.37 writes the field for main containers alone.
    """
    told: dict[UnhealthyDevice, None] = {}
    claims = _claim_names(spec, status)
    for container in (*status.parts("containerStatuses"), *status.parts("initContainerStatuses")):
        for resource in container.parts("allocatedResourcesStatus"):
            sick = [each for each in resource.parts("resources") if each.text("health") == "Unhealthy"]
            for each in sick:
                told[_device(resource.text("name"), each.text("resourceID"), claims)] = None
    found = tuple(each for each in told if each.device_id and (each.resource or each.claim))
    if len(found) > MOST_UNHEALTHY:
        remark = ErrorRemark(f"{len(found):,} devices")
        status.flaw("allocatedResourcesStatus", remark, f"at most {MOST_UNHEALTHY}")
    return found[:MOST_UNHEALTHY]


def _device(name: str, device_id: str, claims: Mapping[str, str]) -> UnhealthyDevice:
    """``name`` is that of an extended resource, or ``claim:NAME/REQUEST`` with the spec's name of a claim, of
    which ``claims`` has the ResourceClaim."""
    if not name.startswith(_CLAIM):
        return UnhealthyDevice(name, "", device_id)
    claim = name.removeprefix(_CLAIM).partition("/")[0]
    return UnhealthyDevice("", claims.get(claim, ""), device_id)


def _backing_claim(status: ObjectPart) -> str:
    """Kubernetes 1.34: the claim that the scheduler made for extended resources of a DRA driver."""
    if "extendedResourceClaimStatus" not in status:
        return ""
    return status.part("extendedResourceClaimStatus").text("resourceClaimName")


def _backed(status: ObjectPart) -> tuple[tuple[str, str], ...]:
    if "extendedResourceClaimStatus" not in status:
        return ()
    mappings = status.part("extendedResourceClaimStatus").parts("requestMappings")
    return tuple((each.text("requestName"), each.text("resourceName")) for each in mappings)


def _group(spec: ObjectPart) -> str:
    """Kubernetes 1.36 names a PodGroup; 1.35 a Workload, a group in it and perhaps a replica of the group,
    which are joined by slashes."""
    group = spec.part("schedulingGroup").text("podGroupName") if "schedulingGroup" in spec else ""
    if group or "workloadRef" not in spec:
        return group
    reference = spec.part("workloadRef")
    parts = (reference.text(key) for key in ("name", "podGroup", "podGroupReplicaKey"))
    return "/".join(part for part in parts if part)
