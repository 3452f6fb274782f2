"""Parsers of Volcano's PodGroups, Queues and HyperNodes (volcano v1.15.1, staging/src/volcano.sh/apis), and
of PodGroups of the scheduler-plugins project."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucost.cluster.objects.metadata import Resources
from gpucost.cluster.objects.volcano import (
    GroupKind,
    HyperNode,
    PodGroup,
    VolcanoQueue,
)
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
