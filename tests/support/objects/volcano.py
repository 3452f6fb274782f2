"""Volcano's objects, except its jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tests.support.objects import condition, given, metadata

Amounts: TypeAlias = Mapping[str, str | int]


def pod_group(
    name: str,
    namespace: str = "default",
    *,
    min_member: int | None = None,
    min_task_member: Mapping[str, int] | None = None,
    min_resources: Amounts | None = None,
    queue: str = "default",
    priority_class: str = "",
    topology: Mapping[str, Any] | None = None,
    phase: str = "",
    running: int | None = None,
    succeeded: int | None = None,
    failed: int | None = None,
    conditions: Sequence[Mapping[str, Any]] = (),
    **meta: Any,
) -> dict[str, Any]:
    """``topology`` is networkTopology; for ``conditions`` see ``pod_group_condition``."""
    spec = given(
        minMember=min_member,
        minTaskMember=min_task_member and dict(min_task_member),
        queue=queue,
        priorityClassName=priority_class,
        networkTopology=topology and dict(topology),
    )
    if min_resources is not None:
        spec["minResources"] = dict(min_resources)
    status = given(
        phase=phase,
        running=running,
        succeeded=succeeded,
        failed=failed,
        conditions=[dict(each) for each in conditions],
    )
    return _object(
        "scheduling.volcano.sh/v1beta1", "PodGroup", metadata(name, namespace, **meta), spec, status
    )


def pod_group_condition(type_: str, *, transition: str = "1", **fields: Any) -> dict[str, Any]:
    """As Volcano writes it, with the id of the session."""
    return condition(type_, **fields) | {"transitionID": transition}


def queue(
    name: str,
    *,
    weight: int | None = None,
    capability: Amounts | None = None,
    deserved: Amounts | None = None,
    guarantee: Amounts | None = None,
    reclaimable: bool | None = None,
    parent: str = "",
    priority: int | None = None,
    dequeue_strategy: str = "",
    state: str = "Open",
    allocated: Amounts | None = None,
    **meta: Any,
) -> dict[str, Any]:
    amounts = {"capability": capability, "deserved": deserved}
    spec = given(
        weight=weight,
        reclaimable=reclaimable,
        parent=parent,
        priority=priority,
        dequeueStrategy=dequeue_strategy,
    ) | {key: dict(value) for key, value in amounts.items() if value is not None}
    if guarantee is not None:
        spec["guarantee"] = {"resource": dict(guarantee)}
    status = given(state=state)
    if allocated is not None:
        status["allocated"] = dict(allocated)
    return _object("scheduling.volcano.sh/v1beta1", "Queue", metadata(name, **meta), spec, status)


def hyper_node(
    name: str,
    tier: int,
    *,
    tier_name: str = "",
    members: Sequence[tuple[str, Mapping[str, Any]]] = (),
    node_count: int | None = None,
    **meta: Any,
) -> dict[str, Any]:
    """``members`` are (type, selector as the API writes it)."""
    spec = {"tier": tier} | given(
        tierName=tier_name,
        members=[{"type": type_, "selector": dict(selector)} for type_, selector in members],
    )
    return _object(
        "topology.volcano.sh/v1alpha1",
        "HyperNode",
        metadata(name, **meta),
        spec,
        given(nodeCount=node_count),
    )


def _object(
    version: str, kind: str, meta: dict[str, Any], spec: dict[str, Any], status: dict[str, Any]
) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": meta} | given(spec=spec, status=status)
