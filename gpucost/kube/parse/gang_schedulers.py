"""Parsers of the objects of gang schedulers: Volcano's PodGroups, Queues and HyperNodes (volcano v1.15.1,
staging/src/volcano.sh/apis), PodGroups of the scheduler-plugins project, and the gangs of Kubernetes itself
(``scheduling.k8s.io``): PodGroups, groups of them, and the Workloads of Kubernetes 1.35 (kubernetes/api,
scheduling/v1alpha1 to v1beta1 types.go).

Of an object without identity all of them raise Unreadable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucost.cluster.objects.metadata import Resources
from gpucost.cluster.objects.volcano import (
    CompositePodGroup,
    DisruptionMode,
    GroupKind,
    HyperNode,
    PodGroup,
    VolcanoQueue,
)
from gpucost.kube.parse.core_objects import NEVER
from gpucost.kube.parse.events import Object
from gpucost.kube.parse.fields import (
    ObjectPart,
    as_text,
    conditions,
    label_selector,
    meta,
)

OTHER_PHASE = "Other"
_NOT_FOLLOWED = ("subGroupPolicy",)
"""Fields of a PodGroup: minimums and topologies of parts of it."""
_PHASES = ("", "Pending", "Inqueue", "Running", "Unknown", "Completed")
_MODES = {"Pod": DisruptionMode.SINGLE, "PodGroup": DisruptionMode.ALL}
"""As Kubernetes 1.36 wrote them (v1alpha2)."""
_PARENT = "parentCompositePodGroupName"


def volcano_pod_group(found: Object) -> PodGroup:
    """``min_member`` is 1, which is no gang, where it is 0 or not given.

    Its counts are 0 where they are not written and the scheduler has written the phase, which leaves out
    zeros. ``topology`` may have ``mode``, ``highest_tier`` and ``highest_tier_name``. Raises Unreadable for
    an object without identity, as all functions here.
    """
    part = ObjectPart(found)
    identity, spec, status = meta(part), part.part("spec"), part.part("status")
    running, succeeded, failed = (
        status.count(key) if "phase" in status else _counted(status, key)
        for key in ("running", "succeeded", "failed")
    )
    return PodGroup(
        identity,
        GroupKind.VOLCANO,
        min_member=max(spec.count("minMember"), 1),
        min_task_member=_counts(spec.part("minTaskMember")),
        min_resources=_amounts(spec, "minResources"),
        queue=spec.text("queue") or "default",
        priority_class=spec.text("priorityClassName"),
        phase=_phase(status),
        running=running,
        succeeded=succeeded,
        failed=failed,
        conditions=conditions(status),
        topology=_topology(spec.part("networkTopology")),
        flaws=tuple(part.flaws),
        unread=tuple(f"spec.{key}" for key in _NOT_FOLLOWED if spec.raw(key)),
    )


def _phase(status: ObjectPart) -> str:
    """``Other`` for a phase that Volcano does not have: a writer of PodGroups may write their status too."""
    phase = status.text("phase")
    if phase in _PHASES:
        return phase
    status.flaw("phase", phase, ", ".join(_PHASES[1:]))
    return OTHER_PHASE


def volcano_queue(found: Object) -> VolcanoQueue:
    """An empty capability, deserved or guarantee equals none, as for Volcano's plugins."""
    part = ObjectPart(found)
    identity, spec, status = meta(part), part.part("spec"), part.part("status")
    return VolcanoQueue(
        identity,
        weight=spec.count("weight", 1),
        capability=spec.amounts("capability") or None,
        deserved=spec.amounts("deserved") or None,
        guarantee=spec.part("guarantee").amounts("resource") or None,
        is_reclaimable=spec.flag("reclaimable", True),
        parent=spec.text("parent"),
        priority=spec.whole("priority") or 0,
        dequeue_strategy=spec.text("dequeueStrategy") or "traverse",
        state=status.text("state"),
        allocated=_amounts(status, "allocated"),
        flaws=tuple(part.flaws),
    )


def hyper_node(found: Object) -> HyperNode:
    """A HyperNode without a tier counts as of tier 0, with a flaw."""
    part = ObjectPart(found)
    identity, spec, status = meta(part), part.part("spec"), part.part("status")
    if "tier" not in spec:
        spec.flaw("tier", None, "a whole number")
    members = (_member(each) for each in spec.parts("members"))
    return HyperNode(
        identity,
        spec.count("tier"),
        spec.text("tierName"),
        tuple(member for member in members if member is not None),
        _counted(status, "nodeCount"),
        tuple(part.flaws),
    )


def _amounts(part: ObjectPart, key: str) -> Resources | None:
    """The amounts; None where they are missing, or not an object."""
    read = part.amounts(key)
    return read if isinstance(part.raw(key), dict) else None


def _counts(part: ObjectPart) -> dict[str, int]:
    read = {key: _counted(part, key) for key in part}
    return {key: count for key, count in read.items() if count is not None}


def _counted(part: ObjectPart, key: str) -> int | None:
    """The number; None where it is missing or not valid."""
    found = part.count(key, -1)
    return None if found < 0 else found


def _topology(part: ObjectPart) -> dict[str, str]:
    """The mode is ``hard`` where a topology is requested without a mode."""
    if not part:
        return {}
    tier = _counted(part, "highestTierAllowed")
    read = {
        "mode": part.text("mode") or "hard",
        "highest_tier": "" if tier is None else str(tier),
        "highest_tier_name": part.text("highestTierName"),
    }
    return {key: value for key, value in read.items() if value}


def _member(part: ObjectPart) -> tuple[str, str, str] | None:
    """As in ``HyperNode.members``; None with a flaw for a selector that selects nothing."""
    type_, selector = part.text("type"), part.part("selector")
    if "exactMatch" in selector:
        return type_, "exact", selector.part("exactMatch").text("name")
    if "regexMatch" in selector:
        return type_, "regex", selector.part("regexMatch").text("pattern")
    labels = label_selector(selector, "labelMatch")
    if labels is not None:
        return type_, "label", as_text(labels)
    if "labelMatch" not in selector:
        part.flaw("selector", part.raw("selector"), "exactMatch, regexMatch or labelMatch")
    return None


def coscheduling_pod_group(found: Mapping[str, Any]) -> PodGroup:
    """A PodGroup of ``scheduling.x-k8s.io/v1alpha1``; pods name it in the label of that group.

    Phases are Pending, Scheduling, Running, Unknown, Finished and Failed; counts that are not written are 0
    once there is a status (scheduler-plugins, apis/scheduling/v1alpha1/types.go). Raises Unreadable for an
    object without a uid or a name.
    """
    part = ObjectPart(found)
    identity, spec, status = meta(part), part.part("spec"), part.part("status")
    running, succeeded, failed = (
        status.count(key) if status else None for key in ("running", "succeeded", "failed")
    )
    return PodGroup(
        identity,
        GroupKind.COSCHEDULING,
        min_member=max(spec.count("minMember", 1), 1),
        min_resources=spec.amounts("minResources") if "minResources" in spec else None,
        phase=status.text("phase"),
        running=running,
        succeeded=succeeded,
        failed=failed,
        flaws=tuple(part.flaws),
    )


def native_pod_group(found: Mapping[str, Any]) -> PodGroup:
    """A gang of ``scheduling.k8s.io``: a PodGroup (v1alpha2 and later), or a Workload of v1alpha1.

    A PodGroup has ``spec.schedulingPolicy`` with ``basic``, whose pods are independent (``min_member`` 1), or
    ``gang.minCount``. A Workload of v1alpha1 lists groups with ``policy`` in ``spec.podGroups``; it is one
    PodGroup here, because pods name the Workload: ``min_task_member`` has the gangs among its groups by name,
    ``min_member`` is their sum. Raises Unreadable for an object without a uid or a name.

    The API is alpha up to Kubernetes 1.36, and not all of it is certain:

    - The condition is ``PodGroupScheduled`` in 1.36 and ``PodGroupInitiallyScheduled`` in 1.37, which never
      turns False again; neither follows pods that are lost later. There is no phase and no count of pods.
    - A group of v1alpha1 may be there several times (``podGroupReplicaKey`` of its pods), each time with its
      own minimum; how many times is not in the Workload, and one is taken.
    - The topology constraint was written ``topologyConstraints[].topologyKey`` before it was released;
      ``topology[].key`` is read too.
    - A Workload of v1alpha2 and later holds templates (``podGroupTemplates``) and is no gang: not for here.
    """
    part = ObjectPart(found)
    identity, spec = meta(part), part.part("spec")
    gangs = _gangs(spec) if "podGroups" in spec else {}
    own = spec.part("schedulingPolicy").part("gang").count("minCount", 1)
    return PodGroup(
        identity,
        GroupKind.NATIVE,
        min_member=sum(gangs.values()) or max(own, 1),
        min_task_member=gangs,
        priority_class=spec.text("priorityClassName"),
        conditions=conditions(part.part("status")),
        topology=_native_topology(spec.part("schedulingConstraints")),
        parent=spec.text(_PARENT),
        disruption=_disruption(spec),
        never_preempts=spec.text("preemptionPolicy") == NEVER,
        flaws=tuple(part.flaws),
    )


def composite_pod_group(found: Mapping[str, Any]) -> CompositePodGroup:
    """A CompositePodGroup (v1alpha3, Kubernetes 1.37, behind a feature gate).

    Its condition is ``CompositePodGroupInitiallyScheduled``, which never turns False again. Its templates are
    in a Workload and are not read: every group is an object of its own.
    """
    part = ObjectPart(found)
    identity, spec = meta(part), part.part("spec")
    policy = spec.part("schedulingPolicy")
    is_gang = "gang" in policy
    least = policy.part("gang").count("minGroupCount", 1)
    return CompositePodGroup(
        identity,
        min_groups=max(least, 1) if is_gang else None,
        parent=spec.text(_PARENT),
        disruption=_disruption(spec),
        never_preempts=spec.text("preemptionPolicy") == NEVER,
        priority_class=spec.text("priorityClassName"),
        conditions=conditions(part.part("status")),
        topology=_native_topology(spec.part("schedulingConstraints")),
        flaws=tuple(part.flaws),
    )


def _disruption(spec: ObjectPart) -> DisruptionMode:
    """Text in v1alpha2, an object with one field later; what is neither is a flaw, and as if not written."""
    written = spec.raw("disruptionMode")
    if isinstance(written, str):
        mode = _MODES.get(spec.text("disruptionMode"))
        if mode is None:
            spec.flaw("disruptionMode", written, ", ".join(_MODES))
        return mode or DisruptionMode.SINGLE
    modes = spec.part("disruptionMode")
    if modes and not any(each in modes for each in DisruptionMode):
        spec.flaw("disruptionMode", written, ", ".join(DisruptionMode))
    return DisruptionMode.ALL if DisruptionMode.ALL in modes else DisruptionMode.SINGLE


def _gangs(spec: ObjectPart) -> dict[str, int]:
    """The smallest number of pods by name, of those groups of a Workload that are gangs."""
    return {
        group.text("name"): max(group.part("policy").part("gang").count("minCount", 1), 1)
        for group in spec.parts("podGroups")
        if "gang" in group.part("policy")
    }


def _native_topology(constraints: ObjectPart) -> dict[str, str]:
    keys = [each.text("topologyKey") for each in constraints.parts("topologyConstraints")]
    keys += [each.text("key") for each in constraints.parts("topology")]
    return {"required": keys[0]} if keys and keys[0] else {}
