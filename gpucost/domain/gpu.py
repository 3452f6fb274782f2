"""GPUs, the units Kubernetes hands out of them, and the exact share of a GPU each unit stands for.

Facts: GPU Feature Discovery's product label (NVIDIA/k8s-device-plugin, internal/lm/resource.go) and NVIDIA's
MIG user guide (supported profiles). A profile name alone does not name its GPU (``1g.10gb`` exists on three),
so every look-up is by (model, profile); where no label names the GPU, it is by the profile alone, provided
that all GPUs with that profile agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache

from gpucost.domain.errors import InputError

WHOLE = Fraction(1)
_ALLOWED_PROFILE = "a profile of that GPU in NVIDIA's MIG user guide, such as 1g.10gb"


class ShareBasis(StrEnum):
    """What the share of a MIG slice is measured by. Reports name it: 3g.40gb is 3/7 of the compute, 4/8 of
    the memory."""

    COMPUTE = "compute"
    MEMORY = "memory"


class ShareMethod(StrEnum):
    """How the parts of a device are found that several pods have at once.

    Parts of a device are units of a resource that ends in the method: bills name it so.
    """

    CLAIM = "dra-claim"
    """One claim has the device; pods that use the claim at the same time have equal parts."""
    CAPACITY = "dra-capacity"
    """A claim's part is what it consumes of a capacity, of what the device has; again equal for its pods."""
    TIME = "dra-time"
    """Claims share it without amounts: equal parts for all claims that have it at the same time."""
    FRACTION = "gpu-fraction"
    """A scheduler that hands out fractions of GPUs (KAI) gave the pod this part."""
    UNKNOWN = "unknown-part"
    """There are amounts, but not of what they are part: equal parts, and a problem."""


_SHARED = re.compile(rf"\.(?:{'|'.join(ShareMethod)})\Z")


def shared_resource(resource: str, method: ShareMethod) -> str:
    """The name of units that are parts of a divided device: ``gpu.nvidia.com.dra-capacity``."""
    return f"{resource}.{method.value}"


def is_shared_resource(resource: str) -> bool:
    """Whether its units are parts of a divided device."""
    return _SHARED.search(resource) is not None


@dataclass(frozen=True, slots=True)
class MigTable:
    """How a GPU model divides: its slices of compute, and the memory slices of each profile."""

    compute_slices: int
    memory_slices: int
    memory_by_profile: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class UnitKind:
    """What one unit of a resource is on one node: of which GPU model, and how much of a GPU."""

    resource: str
    model: str
    share: Fraction
    profile: str = ""


@dataclass(frozen=True, slots=True)
class GpuProduct:
    """A product label in parts. ``model`` is canonical where known, else the cleaned label."""

    model: str
    profile: str
    shared: bool


def _hopper(one: str, double: str, two: str, three: str, four: str, seven: str) -> MigTable:
    return MigTable(7, 8, {one: 1, double: 2, two: 2, three: 4, four: 4, seven: 8})


_A100_80 = _hopper("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")

MEMORY_ROOM = 0.8
"""Part of a slice's memory that the job's 99th percentile may take: JDS' margin of 20 %."""

MIG_TABLES: Mapping[str, MigTable] = {
    "A30": MigTable(4, 4, {"1g.6gb": 1, "2g.12gb": 2, "4g.24gb": 4}),
    "A100-40GB": _hopper("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"),
    "A100-80GB": _A100_80,
    "A800-80GB": _A100_80,
    "H100": _A100_80,
    "H100-PCIe": _A100_80,
    "H100-NVL": _hopper("1g.12gb", "1g.24gb", "2g.24gb", "3g.47gb", "4g.47gb", "7g.94gb"),
    "H200": _hopper("1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"),
    "B200": _hopper("1g.23gb", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"),
}

AMD_CHIPLETS: Mapping[str, int] = {"MI300X": 8, "MI325X": 8, "MI350X": 8, "MI355X": 8, "MI300A": 6}
"""Compute dies (XCD) of a GPU: in CPX each is a partition of its own (AMD, Instinct partitioning guide)."""
_PARTITIONS = {"spx": 1, "dpx": 2, "tpx": 3, "qpx": 4}

# A seventh of an H100 NVL; an RTX PRO 6000 or 5000 Blackwell (no table here) has it as a quarter or half.
_ELSEWHERE_ANOTHER = frozenset({"1g.24gb"})

# Patterns over the label in capitals, without NVIDIA- and TESLA-. Order matters: the first match wins.
_MODEL_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"V100-(SXM\d|PCIE|DGXS)-16GB", "V100-16GB"),
    (r"V100-(SXM\d|PCIE|DGXS)-32GB", "V100-32GB"),
    (r"T4", "T4"),
    (r"A10G", "A10G"),
    (r"A10", "A10"),
    (r"L4", "L4"),
    (r"L40S", "L40S"),
    (r"A30", "A30"),
    (r"A100-(SXM4-40GB|PCIE-40GB|40GB.*)", "A100-40GB"),
    (r"A100-(SXM4-80GB|PCIE-80GB|80GB.*)", "A100-80GB"),
    (r"A800-.*80GB.*", "A800-80GB"),
    (r"H100-(80GB-HBM3.*|SXM5.*)", "H100"),
    (r"H100-NVL", "H100-NVL"),
    (r"H100-PCIE", "H100-PCIe"),
    (r"H200(-141GB.*|-SXM.*)?", "H200"),
    (r"GH200-.*", "GH200"),
    (r"B200(-SXM.*)?", "B200"),
    (r"B300(-SXM.*)?", "B300"),
    (r"GB200(-.*)?", "GB200"),
    (r"GB300(-.*)?", "GB300"),
    *((rf"(AMD-)?(INSTINCT-)?{model}(-.*)?", model) for model in (*AMD_CHIPLETS, "MI308X")),
)
_MODELS = tuple((re.compile(pattern + r"\Z"), model) for pattern, model in _MODEL_PATTERNS)
KNOWN_MODELS = frozenset(model for _, model in _MODEL_PATTERNS)

_PROFILE = re.compile(r"(?:(?P<c>\d)c\.)?(?P<g>\d)g\.(?P<gb>\d+)gb(?P<media>[+.]me)?\Z")
# Resource names of the device plugin, and of NVIDIA's DRA driver (gpucost.cluster.views.device_claims).
# What AMD's device plugin calls partitions under the naming strategy ``mixed`` (ROCm/k8s-device-plugin,
# docs/user-guide/configuration.md): partitions of the compute, then of the memory.
_AMD_PARTITION = re.compile(r"(?P<compute>[sdtqc]px)_nps[0-9]\Z")
_AMD_PARTITION_RESOURCE = re.compile(r"amd\.com/(?P<style>[sdtqc]px_nps[0-9])\Z")
_MIG_RESOURCE = re.compile(r"(?:gpu\.)?nvidia\.com/mig-(?P<profile>[0-9a-z.+]+?)(?P<shared>\.shared)?\Z")


@lru_cache(maxsize=1024)
def parse_product(label: str) -> GpuProduct:
    """``NVIDIA-H100-80GB-HBM3-MIG-1g.10gb-SHARED`` -> (H100, 1g.10gb, shared).

    Matches without regard to case, to blanks or dashes, or to the ``NVIDIA`` prefix old drivers lack.
    An unknown model keeps its label, so that a price can be set for it and an error can name it.
    """
    cleaned = re.sub(r"[\s_-]+", "-", label.strip()).strip("-")
    shared = cleaned.upper().endswith("-SHARED")
    if shared:
        cleaned = cleaned[: -len("-SHARED")]
    base, *after = re.split("-MIG-", cleaned, maxsplit=1, flags=re.IGNORECASE)
    profile = "".join(after).lower()
    bare = re.sub(r"^(NVIDIA-)?(TESLA-)?", "", base.upper())
    for pattern, model in _MODELS:
        if pattern.match(bare):
            return GpuProduct(model, profile, shared)
    by_name = {model.upper(): model for model in KNOWN_MODELS}
    return GpuProduct(by_name.get(bare, base), profile, shared)


def mig_share(model: str, profile: str, basis: ShareBasis = ShareBasis.COMPUTE) -> Fraction:
    """The share of a GPU that one MIG slice stands for.

    Media profiles (``+me``, ``.me``) count like the plain one; a compute-instance slice (``1c.3g.71gb``)
    counts its own part of the GPU instance it lives in. ``model`` is empty where no label names the GPU: then
    the share is that of all GPUs with such a profile. Raises InputError for an unknown pair, and for a
    profile whose share differs between GPUs.
    """
    match = _PROFILE.match(profile)
    plain = f"{match['g']}g.{match['gb']}gb" if match else profile
    boards = [MIG_TABLES.get(model)] if model else MIG_TABLES.values()
    tables = [table for table in boards if table is not None and plain in table.memory_by_profile]
    on = f"{profile} on {model or 'a GPU of an unknown model'}"
    if match is None or not tables:
        raise InputError("MIG profile", on, _ALLOWED_PROFILE)
    slices = int(match["g"])
    part = Fraction(int(match["c"] or slices), slices)
    if part > 1:
        raise InputError("MIG profile", on, "a compute instance no larger than its GPU instance")
    shares = {_share_of(table, slices, plain, basis) for table in tables}
    if len(shares) > 1 or (not model and plain in _ELSEWHERE_ANOTHER):
        raise InputError("MIG profile", on, "one of a known model: GPUs that have it differ in its share")
    return part * shares.pop()


def _share_of(table: MigTable, slices: int, plain: str, basis: ShareBasis) -> Fraction:
    if basis is ShareBasis.MEMORY:
        return Fraction(table.memory_by_profile[plain], table.memory_slices)
    return Fraction(slices, table.compute_slices)


def amd_partitions(style: str, model: str) -> int:
    """How many partitions an AMD GPU has in a style such as ``cpx_nps4``; a partition is a share of its
    compute, whatever part of the memory is nearest to it.

    Raises InputError for an unknown style, and for CPX on a model whose compute dies are not known.
    """
    match = _AMD_PARTITION.match(style)
    if match is None:
        raise InputError("partition style", style, "one of AMD's, such as cpx_nps4")
    if match["compute"] != "cpx":
        return _PARTITIONS[match["compute"]]
    if model not in AMD_CHIPLETS:
        on = f"{style} on {model or 'a GPU of an unknown model'}"
        raise InputError("partition style", on, f"CPX of {', '.join(AMD_CHIPLETS)}")
    return AMD_CHIPLETS[model]


@dataclass(frozen=True, slots=True)
class ResourceCatalog:
    """Which resource names are GPUs, and how much of a GPU one unit of the plain ones stands for.

    ``shares`` maps a resource name to the share of one unit before product label and replica count are
    applied: 1 for ``nvidia.com/gpu`` or ``amd.com/gpu``, 1/100 for HAMi's ``nvidia.com/gpucores``.
    """

    shares: Mapping[str, Fraction] = field(default_factory=lambda: dict(DEFAULT_RESOURCES))

    @classmethod
    def with_whole(cls, names: Iterable[str]) -> ResourceCatalog:
        """The default resources, and further ones of which each unit is a whole GPU."""
        return cls({**DEFAULT_RESOURCES, **dict.fromkeys(names, WHOLE)})

    def is_gpu(self, resource: str) -> bool:
        plain = _SHARED.sub("", resource)
        return plain in self.shares or any(
            each.match(plain) for each in (_MIG_RESOURCE, _AMD_PARTITION_RESOURCE)
        )

    def unit(
        self,
        resource: str,
        product: str,
        replicas: int = 1,
        basis: ShareBasis = ShareBasis.COMPUTE,
    ) -> UnitKind:
        """What one unit of ``resource`` is on a node with this product label and replica count.

        ``replicas`` is the number of time-slicing or MPS replicas per GPU or slice (1 when not shared).
        Raises InputError for a resource that is not a GPU, an unknown MIG profile, a replica count below
        1, and a label that says SHARED while the count says 1: billing each replica as a GPU would
        charge the same hardware several times.
        """
        label = parse_product(product)
        plain = _SHARED.sub("", resource)
        mig, amd = _MIG_RESOURCE.match(plain), _AMD_PARTITION_RESOURCE.match(plain)
        if mig is None and amd is None and plain not in self.shares:
            raise InputError(
                "resource", resource, f"a GPU resource: {', '.join(sorted(self.shares))}, nvidia.com/mig-*"
            )
        if replicas < 1:
            raise InputError("replicas", replicas, "a whole number of at least 1")
        is_shared = label.shared or plain != resource or resource.endswith(".shared")
        if is_shared and replicas == 1:
            raise InputError(
                "replicas", replicas, f"the replica count of {resource} on {product}, which is shared"
            )
        if amd is not None:
            share = Fraction(1, amd_partitions(amd["style"], label.model))
            return UnitKind(resource, label.model, share / replicas, amd["style"])
        profile = (mig["profile"] if mig else label.profile).replace("+me", ".me")
        share = mig_share(label.model, profile, basis) if profile else self.shares[plain]
        return UnitKind(resource, label.model, share / replicas, profile)


def is_nvidia(resource: str) -> bool:
    """Whether units of it are GPUs of NVIDIA, or parts of them."""
    return resource.startswith(NVIDIA_RESOURCES)


NVIDIA_RESOURCES = ("nvidia.com/", "gpu.nvidia.com")
DEFAULT_RESOURCES: Mapping[str, Fraction] = {
    "nvidia.com/gpu": WHOLE,
    "nvidia.com/gpu.shared": WHOLE,
    "nvidia.com/gpucores": Fraction(1, 100),
    "gpu.nvidia.com": WHOLE,
    "amd.com/gpu": WHOLE,
    "gpu.amd.com": WHOLE,
    "gpu.intel.com": WHOLE,
    "gpu.intel.com/i915": WHOLE,
    "gpu.intel.com/xe": WHOLE,
    "habana.ai/gaudi": WHOLE,
}
