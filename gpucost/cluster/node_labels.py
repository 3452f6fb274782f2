"""What a node's labels say of where it stands and how it was bought: what a price can depend on."""

from __future__ import annotations

from dataclasses import dataclass

from gpucost.cluster.gpu_labels import Flawed
from gpucost.cluster.objects import Labels

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

PLACE_LABELS = (*_INSTANCE_TYPE, *_REGION, *_ZONE, *_POOL, *_CAPACITY_TYPE, *_SPOT_FLAGS)
"""Every label that is looked at."""


@dataclass(frozen=True, slots=True)
class Place:
    """As in ``cluster.nodes.Node``; empty where nothing says."""

    instance_type: str = ""
    capacity_type: str = ""
    region: str = ""
    zone: str = ""
    pool: str = ""


def node_place(labels: Labels, flaw: Flawed) -> Place:
    """What ``labels`` say; a capacity type that nobody knows is told to ``flaw``."""
    return Place(
        _first(labels, _INSTANCE_TYPE),
        _capacity_type(labels, flaw),
        _first(labels, _REGION),
        _first(labels, _ZONE),
        _first(labels, _POOL),
    )


def _first(labels: Labels, keys: tuple[str, ...]) -> str:
    return next((labels[key] for key in keys if labels.get(key)), "")


def _capacity_type(labels: Labels, flaw: Flawed) -> str:
    """``spot``, ``on-demand`` or ``reserved``; empty where nothing says, which the price book may assume."""
    if any(labels.get(key) == "true" for key in _SPOT_FLAGS):
        return "spot"
    for key in _CAPACITY_TYPE:
        text = labels.get(key)
        if text:
            capacity_type = _CAPACITY_TYPES.get(text.lower())
            if capacity_type is not None:
                return capacity_type
            flaw(key, text, ", ".join(sorted(_CAPACITY_TYPES)))
    return ""
