"""PodGroups of Kubernetes itself and of the scheduler-plugins project. Volcano's own are parsed elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucost.cluster.volcano import GroupKind, PodGroup
from gpucost.kube.parse.reading import Part, conditions, meta


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
    part = Part(found)
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
        flaws=tuple(part.flaws),
    )


def coscheduling_pod_group(found: Mapping[str, Any]) -> PodGroup:
    """A PodGroup of ``scheduling.x-k8s.io/v1alpha1``; pods name it in the label of that group.

    Phases are Pending, Scheduling, Running, Unknown, Finished and Failed; counts that are not written are 0
    once there is a status (scheduler-plugins, apis/scheduling/v1alpha1/types.go). Raises Unreadable for an
    object without a uid or a name.
    """
    part = Part(found)
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


def _gangs(spec: Part) -> dict[str, int]:
    """The smallest number of pods by name, of those groups of a Workload that are gangs."""
    return {
        group.text("name"): max(group.part("policy").part("gang").count("minCount", 1), 1)
        for group in spec.parts("podGroups")
        if "gang" in group.part("policy")
    }


def _topology(constraints: Part) -> dict[str, str]:
    keys = [each.text("topologyKey") for each in constraints.parts("topologyConstraints")]
    keys += [each.text("key") for each in constraints.parts("topology")]
    return {"required": keys[0]} if keys and keys[0] else {}
