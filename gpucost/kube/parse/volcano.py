"""Volcano's PodGroups, Queues and HyperNodes (volcano v1.15.1, staging/src/volcano.sh/apis)."""

from __future__ import annotations

from gpucost.cluster.objects import Resources
from gpucost.cluster.volcano import GroupKind, HyperNode, PodGroup, VolcanoQueue
from gpucost.kube.events import Object
from gpucost.kube.parse.reading import Part, conditions, meta
from gpucost.kube.parse.selectors import as_text, label_selector

OTHER_PHASE = "Other"
_NOT_FOLLOWED = ("subGroupPolicy",)
"""Of a PodGroup: minimums and topologies of parts of it."""
_PHASES = ("", "Pending", "Inqueue", "Running", "Unknown", "Completed")


def volcano_pod_group(found: Object) -> PodGroup:
    """``min_member`` is 1, which is no gang, where it is 0 or not given.

    Its counts are 0 where they are not written and the scheduler has written the phase, which leaves out
    zeros. ``topology`` may have ``mode``, ``highest_tier`` and ``highest_tier_name``. Raises Unreadable for
    an object without identity, as all functions here.
    """
    part = Part(found)
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


def _phase(status: Part) -> str:
    """``Other`` for one that Volcano does not have: who may write PodGroups may write their status too."""
    phase = status.text("phase")
    if phase in _PHASES:
        return phase
    status.flaw("phase", phase, ", ".join(_PHASES[1:]))
    return OTHER_PHASE


def volcano_queue(found: Object) -> VolcanoQueue:
    """An empty capability, deserved or guarantee is as good as none, as for Volcano's plugins."""
    part = Part(found)
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
    part = Part(found)
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


def _amounts(part: Part, key: str) -> Resources | None:
    """None where it does not say, or is no object."""
    read = part.amounts(key)
    return read if isinstance(part.raw(key), dict) else None


def _counts(part: Part) -> dict[str, int]:
    read = {key: _counted(part, key) for key in part}
    return {key: count for key, count in read.items() if count is not None}


def _counted(part: Part, key: str) -> int | None:
    """None where it does not say, or makes no sense."""
    found = part.count(key, -1)
    return None if found < 0 else found


def _topology(part: Part) -> dict[str, str]:
    """The mode is ``hard`` where a topology is asked for and no mode given."""
    if not part:
        return {}
    tier = _counted(part, "highestTierAllowed")
    read = {
        "mode": part.text("mode") or "hard",
        "highest_tier": "" if tier is None else str(tier),
        "highest_tier_name": part.text("highestTierName"),
    }
    return {key: value for key, value in read.items() if value}


def _member(part: Part) -> tuple[str, str, str] | None:
    """As of ``HyperNode.members``; None with a flaw for one that selects nothing."""
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
