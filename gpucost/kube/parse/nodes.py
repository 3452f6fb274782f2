"""Nodes of the API as ``cluster.nodes.Node``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpucost.cluster.nodes import Node, Taint
from gpucost.cluster.objects import Labels
from gpucost.kube.parse.gpu_labels import gpu_labels
from gpucost.kube.parse.reading import Part, conditions, meta, shared

_INSTANCE_TYPE = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_REGION = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")
_ZONE = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
_POOL = (
    "karpenter.sh/nodepool",
    "karpenter.sh/provisioner-name",
    "eks.amazonaws.com/nodegroup",
    "alpha.eksctl.io/nodegroup-name",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "agentpool",
    "oke.oraclecloud.com/pool.name",
    "node.kubernetes.io/pool",
)
_CAPACITY_TYPE = (
    "karpenter.sh/capacity-type",
    "eks.amazonaws.com/capacityType",
    "kubernetes.azure.com/scalesetpriority",
    "cloud.google.com/gke-provisioning",
    "node.kubernetes.io/lifecycle",
)
_CAPACITY_TYPES = {
    "spot": "spot",
    "preemptible": "spot",
    "on-demand": "on-demand",
    "on_demand": "on-demand",
    "ondemand": "on-demand",
    "standard": "on-demand",
    "regular": "on-demand",
    "normal": "on-demand",
    "reserved": "reserved",
    "capacity_block": "reserved",
    "capacity-block": "reserved",
    "reservation": "reserved",
}
"""What clouds call them -> what prices are set for (pricing.match.CapacityType)."""
_SPOT_FLAGS = ("cloud.google.com/gke-spot", "cloud.google.com/gke-preemptible")
_ANNOTATIONS: frozenset[str] = frozenset()


def node(found: Mapping[str, Any]) -> Node:
    """One node, with all of its labels and no annotation. Raises Unreadable without a uid or name."""
    root = Part(found)
    who = meta(root, _ANNOTATIONS)
    spec, status = root.part("spec"), root.part("status")
    gpus = gpu_labels(who.labels, root)
    ready = conditions(status).get("Ready")
    return Node(
        meta=who,
        capacity=shared(status.amounts("capacity")),
        allocatable=shared(status.amounts("allocatable")),
        is_ready=ready is not None and ready.status is True,
        ready_since_ms=ready.since_ms if ready is not None and ready.status is True else None,
        is_cordoned=spec.flag("unschedulable"),
        product=gpus.product,
        instance_type=_first(who.labels, _INSTANCE_TYPE),
        capacity_type=_capacity_type(who.labels, root),
        region=_first(who.labels, _REGION),
        zone=_first(who.labels, _ZONE),
        pool=_first(who.labels, _POOL),
        boards=gpus.boards,
        expected=gpus.expected,
        replicas=gpus.replicas,
        taints=tuple(
            Taint(each.text("key"), each.text("value"), each.text("effect")) for each in spec.parts("taints")
        ),
        flaws=tuple(root.flaws),
    )


def _first(labels: Labels, keys: tuple[str, ...]) -> str:
    return next((labels[key] for key in keys if labels.get(key)), "")


def _capacity_type(labels: Labels, root: Part) -> str:
    """``spot``, ``on-demand`` or ``reserved``; empty where nothing says, which the price book may assume."""
    if any(labels.get(key) == "true" for key in _SPOT_FLAGS):
        return "spot"
    for key in _CAPACITY_TYPE:
        text = labels.get(key)
        if text:
            capacity_type = _CAPACITY_TYPES.get(text.lower())
            if capacity_type is not None:
                return capacity_type
            root.flaw(f"metadata.labels.{key}", text, ", ".join(sorted(_CAPACITY_TYPES)))
    return ""
