"""Parsers of the gangs of Kubernetes itself (``scheduling.k8s.io``): PodGroups, groups of them, and the
Workloads of Kubernetes 1.35 (kubernetes/api, scheduling/v1alpha1 to v1beta1 types.go).

Of an object without identity all of them raise Unreadable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucost.cluster.objects.volcano import (
    CompositePodGroup,
    DisruptionMode,
    GroupKind,
    PodGroup,
)
from gpucost.kube.parse.core_objects import NEVER
from gpucost.kube.parse.fields import ObjectPart, conditions, meta

_MODES = {"Pod": DisruptionMode.SINGLE, "PodGroup": DisruptionMode.ALL}
"""As Kubernetes 1.36 wrote them (v1alpha2)."""
_PARENT = "parentCompositePodGroupName"


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
        topology=_topology(spec.part("schedulingConstraints")),
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
        topology=_topology(spec.part("schedulingConstraints")),
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


def _topology(constraints: ObjectPart) -> dict[str, str]:
    keys = [each.text("topologyKey") for each in constraints.parts("topologyConstraints")]
    keys += [each.text("key") for each in constraints.parts("topology")]
    return {"required": keys[0]} if keys and keys[0] else {}
