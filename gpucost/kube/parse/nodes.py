"""Nodes of the API as ``cluster.nodes.Node``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucost.cluster.gpu_labels import gpu_labels
from gpucost.cluster.node_labels import node_place
from gpucost.cluster.nodes import Node, Taint
from gpucost.kube.parse.reading import Part, conditions, meta, shared

_ANNOTATIONS: frozenset[str] = frozenset()


def node(found: Mapping[str, Any]) -> Node:
    """One node, with all of its labels and no annotation. Raises Unreadable without a uid or name."""
    root = Part(found)
    who = meta(root, _ANNOTATIONS)
    spec, status = root.part("spec"), root.part("status")

    def flaw(label: str, found: object, allowed: str) -> None:
        root.flaw(f"metadata.labels.{label}", found, allowed)

    gpus, place = gpu_labels(who.labels, flaw), node_place(who.labels, flaw)
    ready = conditions(status).get("Ready")
    return Node(
        meta=who,
        capacity=shared(status.amounts("capacity")),
        allocatable=shared(status.amounts("allocatable")),
        is_ready=ready is not None and ready.status is True,
        ready_since_ms=ready.since_ms if ready is not None and ready.status is True else None,
        is_cordoned=spec.flag("unschedulable"),
        product=gpus.product,
        instance_type=place.instance_type,
        capacity_type=place.capacity_type,
        region=place.region,
        zone=place.zone,
        pool=place.pool,
        boards=gpus.boards,
        expected=gpus.expected,
        replicas=gpus.replicas,
        taints=tuple(
            Taint(each.text("key"), each.text("value"), each.text("effect")) for each in spec.parts("taints")
        ),
        flaws=tuple(root.flaws),
    )
