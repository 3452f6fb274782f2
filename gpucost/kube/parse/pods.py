"""Pods of the API as ``cluster.pods.Pod``: what they ask for, and from when to when they hold it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gpucost.cluster.objects import Conditions, is_false, is_true
from gpucost.cluster.pods import Pod, PodPhase, Waiting
from gpucost.kube.parse.reading import Part, conditions, meta
from gpucost.kube.parse.templates import pod_template

POD_ANNOTATIONS = frozenset(
    {
        "batch.kubernetes.io/job-completion-index",
        "kubernetes.io/config.mirror",
        "kueue.x-k8s.io/pod-group-name",
        "kueue.x-k8s.io/pod-group-total-count",
        "kueue.x-k8s.io/workload",
        "leaderworkerset.sigs.k8s.io/size",
        "scheduling.k8s.io/group-name",
        "scheduling.volcano.sh/group-min-member",
        "scheduling.volcano.sh/group-name",
        "scheduling.volcano.sh/queue-name",
    }
)
"""Annotations that say which job, gang or queue a pod belongs to. Others are not kept."""

_PHASES = {phase.value: phase for phase in PodPhase}
_RESTARTING_ALL = "RestartingAllContainers"
"""Reason of containers that ended only to start again together (kubernetes 1.35, container restart rules)."""


class _Container(NamedTuple):
    """Where a container stands. ``waits_for`` is empty unless it waits; times are None when not known.

    ``has_run`` says that it was started at least once. ``exit_code`` is None unless it has ended now.
    """

    name: str
    waits_for: str
    has_run: bool
    ended_ms: int | None
    exit_code: int | None
    end_reason: str


def pod(found: Mapping[str, Any]) -> Pod:
    """One pod with the annotations named in ``POD_ANNOTATIONS``.

    Raises Unreadable without a uid or name.
    """
    return _pod(found, POD_ANNOTATIONS)


def pod_parser(annotations: frozenset[str]) -> Callable[[Mapping[str, Any]], Pod]:
    """As ``pod``, with further annotations kept (of a team or user)."""
    kept = POD_ANNOTATIONS | annotations
    return lambda found: _pod(found, kept)


def _pod(found: Mapping[str, Any], annotations: frozenset[str]) -> Pod:
    root = Part(found)
    who = meta(root, annotations)
    spec, status = root.part("spec"), root.part("status")
    its_conditions = conditions(status)
    started = [_container(each) for each in status.parts("initContainerStatuses")]
    main = [_container(each) for each in status.parts("containerStatuses")]
    phase = _phase(spec, status, started, main, who.deleted_ms is not None)
    node = spec.text("nodeName")
    bound_ms = _bound(status, its_conditions, who.created_ms) if node else None
    has_ended = phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)
    ended_ms = _ended(spec, status, its_conditions, started, main, bound_ms) if has_ended else None
    return Pod(
        meta=who,
        phase=phase,
        template=pod_template(spec),
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
        flaws=tuple(root.flaws),
    )


def _container(status: Part) -> _Container:
    state = status.part("state")
    waits_for = state.part("waiting").text("reason") if "waiting" in state else ""
    if "running" in state:
        return _Container(status.text("name"), "", True, None, None, "")
    if "terminated" in state:
        end = state.part("terminated")
        code = end.whole("exitCode")
        exit_code = 1 if code is None else code
        return _Container(
            status.text("name"), "", True, end.instant("finishedAt"), exit_code, end.text("reason")
        )
    last = status.part("lastState")
    if "terminated" in last:
        ended_ms = last.part("terminated").instant("finishedAt")
        return _Container(status.text("name"), waits_for, True, ended_ms, None, "")
    return _Container(status.text("name"), waits_for, status.count("restartCount") > 0, None, None, "")


def _phase(
    spec: Part, status: Part, started: Sequence[_Container], main: Sequence[_Container], is_deleted: bool
) -> PodPhase:
    """``status.phase``, unless that says Running while nothing runs and nothing will.

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
    if not is_deleted and any(_starts_again(spec, containers, each) for each in main):
        return phase
    return PodPhase.FAILED if any(each.exit_code for each in main) else PodPhase.SUCCEEDED


def _starts_again(spec: Part, containers: Sequence[Part], ended: _Container) -> bool:
    """By the container's restart policy (Kubernetes 1.34), else the pod's; rules by exit code may say so."""
    own = next((each for each in containers if each.text("name") == ended.name), None)
    if own is not None and "restartPolicyRules" in own:
        return True
    policy = (own.text("restartPolicy") if own is not None else "") or spec.text("restartPolicy")
    return not (policy == "Never" or (policy == "OnFailure" and ended.exit_code == 0))


def _bound(status: Part, its_conditions: Conditions, created_ms: int) -> int:
    """When a pod that has a node was given it.

    Who writes ``spec.nodeName`` without the scheduler (static pods, some controllers) leaves the condition to
    the kubelet. Until that writes it, the pod holds its node from the kubelet's first look, or, before that,
    from when it was last known to have none.
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
    spec: Part,
    status: Part,
    its_conditions: Conditions,
    started: Sequence[_Container],
    main: Sequence[_Container],
    bound_ms: int | None,
) -> int | None:
    """When the last container of a pod in a terminal phase ended; never before ``bound_ms``.

    Where a container's end is not known (the node was lost, the kubelet evicted it without a word): the last
    of the known ends and of the conditions that turn when a pod ends. Where those do not say either and no
    container ever ran, the kubelet refused it at its first look: ``status.startTime``.
    """
    ran = [each.ended_ms for each in (*started, *main) if each.has_run]
    known = [ended_ms for ended_ms in ran if ended_ms is not None]
    is_certain = bool(known) and len(known) == len(ran) and len(main) >= len(spec.parts("containers"))
    if not is_certain:
        known += _turned(its_conditions)
    if not known and not ran:
        refused_ms = status.instant("startTime")
        known = [] if refused_ms is None else [refused_ms]
    if not known:
        return None
    return max(known) if bound_ms is None else max(*known, bound_ms)


def _turned(its_conditions: Conditions) -> list[int]:
    """When conditions that turn at the end of a pod turned."""
    turned = [
        *(its_conditions[type_] for type_ in ("Ready", "ContainersReady") if is_false(its_conditions, type_)),
        *(its_conditions[type_] for type_ in ("DisruptionTarget",) if is_true(its_conditions, type_)),
    ]
    return [each.since_ms for each in turned if each.since_ms is not None]


def _waiting(its_conditions: Conditions) -> Waiting | None:
    scheduled = its_conditions.get("PodScheduled")
    if scheduled is None or scheduled.status is not False:
        return None
    return Waiting(scheduled.reason, scheduled.message, scheduled.since_ms)


def _stuck(status: Part, containers: Sequence[_Container]) -> str:
    return status.text("reason") or next((each.waits_for for each in containers if each.waits_for), "")


def _claims(spec: Part, status: Part) -> tuple[str, ...]:
    """Names of the ResourceClaims that exist for it: those named, and those made from templates so far."""
    wanted = spec.parts("resourceClaims")
    if not wanted:
        return ()
    made = {
        each.text("name"): each.text("resourceClaimName") for each in status.parts("resourceClaimStatuses")
    }
    names = (each.text("resourceClaimName") or made.get(each.text("name"), "") for each in wanted)
    return tuple(name for name in names if name)


def _group(spec: Part) -> str:
    """Kubernetes 1.36 names a PodGroup; 1.35 a Workload, a group in it and perhaps a replica of the group,
    which are joined by slashes."""
    group = spec.part("schedulingGroup").text("podGroupName") if "schedulingGroup" in spec else ""
    if group or "workloadRef" not in spec:
        return group
    reference = spec.part("workloadRef")
    parts = (reference.text(key) for key in ("name", "podGroup", "podGroupReplicaKey"))
    return "/".join(part for part in parts if part)
