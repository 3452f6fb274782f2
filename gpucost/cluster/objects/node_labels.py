"""What a node's labels say of its GPUs, of where it is and how it was bought.

The labels of GPUs give how many GPUs there are, how many units of which resource, and how often each is
shared. Rules of GPU feature discovery (NVIDIA/k8s-device-plugin, internal/lm/resource.go and
mig-strategy.go):

- ``nvidia.com/gpu.count`` counts GPUs; under MIG strategy ``single`` slices, and the product label then names
  their profile.
- ``nvidia.com/mig-<profile>.count`` counts slices under strategy ``mixed``.
- ``<resource>.replicas`` is how many units each of those is advertised as; 0 and 1 are not shared. Units of a
  shared resource keep its name when its product label ends in ``-SHARED``, else they are called
  ``<resource>.shared``.

Intel's plugin may hand each GPU out several times (``-shared-dev-num``), under the same name and without a
label. NFD's rules count the GPUs (intel-device-plugins-for-kubernetes, cmd/gpu_plugin/labels.md and
deployments/nfd), so the capacity tells.

The labels of place and purchase are those that a price can depend on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from gpucost.cluster.objects.metadata import Labels
from gpucost.domain.errors import InputError
from gpucost.domain.gpu import MIG_TABLES, amd_partitions, parse_product

FlawReport = Callable[[str, object, str], None]
"""Called with a label that is not valid: its key, its value, and what is allowed."""

_NOTHING: Mapping[str, float] = MappingProxyType({})
_GPU = "nvidia.com/gpu"
_COUNT = re.compile(r"(?P<resource>nvidia\.com/(?:gpu|mig-[0-9a-z.]+))\.count\Z")
_NUMBER = re.compile(r"[0-9]{1,5}\Z", re.ASCII)
_PROFILE = re.compile(r"(?P<slices>[0-9])g\.[0-9]+gb\Z")
_SHARED = "-SHARED"
INTEL_PRODUCT, INTEL_COUNT = "gpu.intel.com/product", "gpu.intel.com/device.count"
_PRODUCT_LABELS = (
    f"{_GPU}.product",
    "amd.com/gpu.product-name",
    INTEL_PRODUCT,
    "cloud.google.com/gke-accelerator",
)


AMD_DEVICE = "amd.com/gpu.device-id"
AMD_PARTITIONS = ("amd.com/gpu.compute-memory-partition", "amd.com/compute-memory-partition")
"""As the labeller writes it, and as its documentation has it (ROCm/k8s-device-plugin, cmd/k8s-node-labeller
and docs/user-guide/configuration.md)."""
_AMD_DEVICES = {
    **dict.fromkeys(("74a1", "74a9", "74b5", "74bd"), "MI300X"),
    **dict.fromkeys(("74a2", "74a8", "74b6", "74bc"), "MI308X"),
    **dict.fromkeys(("74a5", "74b9"), "MI325X"),
    **dict.fromkeys(("75a0", "75b0"), "MI350X"),
    **dict.fromkeys(("75a3", "75b3"), "MI355X"),
    "74a0": "MI300A",
}
"""By PCI device id, of GPUs and their virtual functions: the label of the product's name is often absent
(ROCm/gpu-operator, device ids of its node labels)."""


@dataclass(frozen=True, slots=True)
class GpuLabels:
    """As in ``cluster.objects.nodes.Node``: unknown values are None or absent."""

    product: str = ""
    boards: int | None = None
    expected: Mapping[str, int] = field(default_factory=dict)
    replicas: Mapping[str, int] = field(default_factory=dict)


INTEL_GPUS = ("gpu.intel.com/i915", "gpu.intel.com/xe")
"""By kernel driver: a GPU is in one of the two. The plugin's other resources (``gpu.intel.com/monitoring``,
``i915_monitoring``, ``xe_monitoring``) open all GPUs of a node for reading, and are none."""


def label_keys() -> tuple[str, ...]:
    """The labels that are read, for sources that must request each by name."""
    profiles = dict.fromkeys(
        profile.replace("+", ".") for table in MIG_TABLES.values() for profile in table.memory_by_profile
    )
    resources = (_GPU, *(f"nvidia.com/mig-{profile}" for profile in profiles))
    facts = ("count", "product", "replicas")
    others = (AMD_DEVICE, *AMD_PARTITIONS, INTEL_COUNT)
    return (
        *_PRODUCT_LABELS[1:],
        *others,
        *(f"{resource}.{fact}" for resource in resources for fact in facts),
    )


def gpu_labels(labels: Labels, flaw: FlawReport, capacity: Mapping[str, float] = _NOTHING) -> GpuLabels:
    """The GPU labels among ``labels`` of a node. Those that are not valid are passed to ``flaw``.
    ``capacity`` are its units by resource, where labels alone do not say how often a GPU is handed out."""
    product = next((labels[key] for key in _PRODUCT_LABELS if labels.get(key)), "")
    if f"{_GPU}.product" not in labels and any(key.startswith("amd.com/") for key in labels):
        return _amd_labels(labels, product, flaw)
    if f"{_GPU}.product" not in labels and INTEL_COUNT in labels:
        return _intel_labels(labels, product, capacity, flaw)
    counts = _counts(labels, flaw)
    if not counts and f"{_GPU}.replicas" not in labels:
        return GpuLabels(product)
    has_slices = any(resource != _GPU for resource in counts)
    expected: dict[str, int] = {}
    replicas: dict[str, int] = {}
    for resource in {_GPU: None, **counts}:
        times = _number(labels, f"{resource}.replicas", flaw)
        unit = _handed_out_as(resource, labels.get(f"{resource}.product", ""), times or 1)
        if unit is None:
            flaw(f"{resource}.replicas", times, "at least 2 for a shared product")
            continue
        if times is not None and times > 1:
            replicas[unit] = times
        count = counts.get(resource)
        # Of GPUs beside slices no label says how many are whole: the count is of both.
        if count and not (resource == _GPU and has_slices):
            expected[unit] = count * (times or 1)
    return GpuLabels(product, _boards(product, counts.get(_GPU)), expected, replicas)


def _amd_labels(labels: Labels, product: str, flaw: FlawReport) -> GpuLabels:
    """Of AMD's node labeller. Where all GPUs of a node are cut alike, their partitions may be called
    ``amd.com/gpu`` as whole GPUs are."""
    product = product or _AMD_DEVICES.get(labels.get(AMD_DEVICE, "").lower(), "")
    style = next((labels[key].lower() for key in AMD_PARTITIONS if labels.get(key)), "")
    if not style:
        return GpuLabels(product)
    try:
        parts = amd_partitions(style, parse_product(product).model)
    except InputError as error:
        flaw(AMD_PARTITIONS[0], style, error.allowed)
        return GpuLabels(_of_unknown_units(product or "AMD-GPU"))
    return GpuLabels(product, replicas={"amd.com/gpu": parts} if parts > 1 else {})


def _intel_labels(labels: Labels, product: str, capacity: Mapping[str, float], flaw: FlawReport) -> GpuLabels:
    """Of NFD's rules for Intel. More units than GPUs are shared ones; where they are no multiple, nothing
    says which GPU has how many."""
    boards = _number(labels, INTEL_COUNT, flaw)
    given = {name: capacity[name] for name in INTEL_GPUS if capacity.get(name)}
    units = sum(given.values())
    if not boards or units <= boards:
        return GpuLabels(product, boards or None)
    if units % boards:
        flaw(INTEL_COUNT, boards, f"a divisor of {units:.0f}, the units of its GPUs")
        return GpuLabels(_of_unknown_units(product or "Intel-GPU"), boards)
    return GpuLabels(product, boards, replicas=dict.fromkeys(given, int(units // boards)))


def _of_unknown_units(product: str) -> str:
    """The label of GPUs that are shared nobody knows how often: what a unit is, is unknown, and so its price,
    instead of a whole GPU for each (``domain.gpu.ResourceCatalog.unit``)."""
    return product + _SHARED


def _counts(labels: Labels, flaw: FlawReport) -> dict[str, int]:
    """GPUs or slices by resource."""
    counts = {}
    for label in labels:
        match = _COUNT.match(label) if label.startswith("nvidia.com/") else None
        if match is not None:
            count = _number(labels, label, flaw)
            if count is not None:
                counts[match["resource"]] = count
    return counts


def _number(labels: Labels, label: str, flaw: FlawReport) -> int | None:
    text = labels.get(label)
    if text is None:
        return None
    if _NUMBER.match(text) is None:
        flaw(label, text, "a whole number below 100000")
        return None
    return int(text)


def _handed_out_as(resource: str, product: str, times: int) -> str | None:
    """The name of the units; None where the product is shared and the number of replicas is unknown."""
    is_marked = product.upper().endswith(_SHARED)
    if times <= 1:
        return None if is_marked else resource
    return resource if is_marked or not product else f"{resource}.shared"


def _boards(product: str, count: int | None) -> int | None:
    """How many GPUs there are; for slices, the number of full GPUs that holds them all, if it is whole."""
    if not count:  # 0 is what is written where the MIG geometry does not suit the strategy
        return None
    label = parse_product(product)
    if not label.profile:
        return count
    most = _most_on_a_board(label.model, label.profile)
    return count // most if most and count % most == 0 else None


def _most_on_a_board(model: str, profile: str) -> int | None:
    """How many slices of one profile a GPU holds (NVIDIA's MIG user guide, supported profiles).

    None for GPUs and profiles that are not known, and for compute instances, which share a slice.
    """
    plain = re.sub(r"[+.]me\Z", "", profile)
    table, match = MIG_TABLES.get(model), _PROFILE.match(plain)
    memory = table.memory_by_profile.get(plain) if table is not None else None
    if table is None or match is None or memory is None:
        return None
    if plain != profile:  # a GPU has one set of media engines
        return 1
    return min(table.compute_slices // int(match["slices"]), table.memory_slices // memory)


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
    "owned": "owned",
    "reserved": "reserved",
    "capacity_block": "reserved",
    "capacity-block": "reserved",
    "reservation": "reserved",
}
"""What clouds call them -> what prices are set for (pricing.match.CapacityType)."""
_SPOT_FLAGS = ("cloud.google.com/gke-spot", "cloud.google.com/gke-preemptible")

PLACE_LABELS = (*_INSTANCE_TYPE, *_REGION, *_ZONE, *_POOL, *_CAPACITY_TYPE, *_SPOT_FLAGS)
"""Every label that is read."""


@dataclass(frozen=True, slots=True)
class NodePlace:
    """As in ``cluster.objects.nodes.Node``; empty where unknown."""

    instance_type: str = ""
    capacity_type: str = ""
    region: str = ""
    zone: str = ""
    pool: str = ""


def node_place(labels: Labels, flaw: FlawReport) -> NodePlace:
    """The place in ``labels``; an unknown capacity type is passed to ``flaw``."""
    return NodePlace(
        _first(labels, _INSTANCE_TYPE),
        _capacity_type(labels, flaw),
        _first(labels, _REGION),
        _first(labels, _ZONE),
        _first(labels, _POOL),
    )


def _first(labels: Labels, keys: tuple[str, ...]) -> str:
    return next((labels[key] for key in keys if labels.get(key)), "")


def _capacity_type(labels: Labels, flaw: FlawReport) -> str:
    """``spot``, ``on-demand``, ``reserved`` or ``owned``; empty where unknown, for which the price book may
    have a default."""
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
