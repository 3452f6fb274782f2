"""What gpucost reads by label, under its names in Kubernetes and in Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from gpucost.cluster.gpu_labels import label_keys
from gpucost.cluster.node_labels import PLACE_LABELS
from gpucost.cluster.ownership import KUEUE_QUEUES, LINKS, VOLCANO_GROUPS, VOLCANO_QUEUES, WORKLOAD, OwnerKeys
from gpucost.contract.kube_state import annotation_name, label_name
from gpucost.contract.probe import NodeSeries, PodSeries

PRODUCT, COUNT, REPLICAS = "nvidia.com/gpu.product", "nvidia.com/gpu.count", "nvidia.com/gpu.replicas"
GPU_LABELS = (PRODUCT, COUNT, REPLICAS)
_MIG = "nvidia.com/mig-"
PRODUCTS = (PRODUCT, "amd.com/gpu.product-name", "gpu.intel.com/product", "cloud.google.com/gke-accelerator")
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
PLACES = (
    *(INSTANCE_TYPE, "topology.kubernetes.io/region", "topology.kubernetes.io/zone"),
    *("karpenter.sh/capacity-type", "eks.amazonaws.com/capacityType", "cloud.google.com/gke-spot"),
)
"""Of those that are looked at, what most clusters have; the others are in ``PLACE_LABELS``."""
assert set(PLACES) <= set(PLACE_LABELS)
QUEUES = (*KUEUE_QUEUES, *VOLCANO_QUEUES)


@dataclass(frozen=True, slots=True)
class Wanted:
    """``owners`` are the keys that name team, project and user; ``max_gap_ms`` is how far scrapes may lie
    apart; ``replica_labels`` are those set already."""

    owners: OwnerKeys = field(default_factory=OwnerKeys)
    max_gap_ms: int = 300_000
    replica_labels: tuple[str, ...] = ()

    @property
    def pod_keys(self) -> tuple[str, ...]:
        return (*self.owners.all, *QUEUES)


def labels_in(keys: Iterable[str], exported: Collection[str]) -> tuple[str, ...]:
    """Those of these label keys that are exported."""
    return tuple(key for key in keys if label_name(key) in exported)


def annotations_in(keys: Iterable[str], exported: Collection[str]) -> tuple[str, ...]:
    return tuple(key for key in keys if annotation_name(key) in exported)


@dataclass(frozen=True, slots=True)
class Allowlist:
    """What to export of one kind of object: label ``keys``, those that gpucost reads and that are exported
    already among them; and by their sanitised names, which cannot be turned back, ``others`` that are.
    ``is_known`` is whether it could be read what is exported."""

    kind: str
    keys: tuple[str, ...]
    others: tuple[str, ...] = ()
    is_known: bool = True

    def __str__(self) -> str:
        return f"{self.kind}=[{','.join(self.keys)}]"


def slice_labels(nodes: NodeSeries, profiles: Iterable[str] = ()) -> tuple[str, ...]:
    """How many slices of each kind there are, of those that nodes hand out and of ``profiles``, and how often
    each is shared: GPU feature discovery writes a label of each under MIG strategy ``mixed``."""
    kinds = {each.removesuffix(".shared") for each in nodes.resources if each.startswith(_MIG)}
    kinds |= {_MIG + each.replace("+", ".") for each in profiles}
    return tuple(f"{kind}.{fact}" for kind in sorted(kinds) for fact in ("count", "replicas"))


def allowlists(
    wanted: Wanted, pods: PodSeries | None, nodes: NodeSeries | None, profiles: Iterable[str] = ()
) -> tuple[Allowlist, ...]:
    """Of labels: what is worth exporting, and what is exported and read. ``profiles`` are MIG's in use."""
    pods, nodes = pods or PodSeries(), nodes or NodeSeries()
    owners = wanted.owners.all
    worth = (*GPU_LABELS, *slice_labels(nodes, profiles), *PLACES)
    of_nodes = (*worth, *PRODUCTS, *label_keys(), *PLACE_LABELS)
    return (
        _allowlist("nodes", worth, of_nodes, nodes.labels),
        _allowlist("pods", (*wanted.pod_keys, WORKLOAD), (*wanted.pod_keys, *LINKS), pods.labels),
        _allowlist("jobs", (*owners, *KUEUE_QUEUES), (*owners, *LINKS), pods.job_labels),
        _allowlist("namespaces", owners, owners, pods.namespace_labels),
    )


def annotation_lists(wanted: Wanted, pods: PodSeries | None) -> Allowlist:
    """Of annotations of pods: Volcano names queues and groups in them."""
    known = (*wanted.pod_keys, *LINKS)
    keys = (*VOLCANO_QUEUES[:1], *VOLCANO_GROUPS[:1], WORKLOAD)
    exported = None if pods is None else pods.annotations
    return _allowlist("pods", keys, known, exported, annotation_name)


def _allowlist(
    kind: str,
    keys: Iterable[str],
    known: Iterable[str],
    exported: Collection[str] | None,
    named: Callable[[str], str] = label_name,
) -> Allowlist:
    there = exported or ()
    listed = tuple(dict.fromkeys((*keys, *(key for key in known if named(key) in there))))
    others = set(there) - {named(key) for key in listed}
    sanitised = sorted(name.removeprefix(named("")) for name in others)
    return Allowlist(kind, listed, tuple(sanitised), exported is not None)
