"""What an administrator says of GPUs that several pods have: by which capacity, and who reserves them.

``DIMENSIONS`` are the capacities that drivers publish of a device and that claims may consume:
NVIDIA's as in kubernetes-sigs/dra-driver-nvidia-gpu (cmd/gpu-kubelet-plugin/mig.go), AMD's as in
ROCm/k8s-gpu-dra-driver (cmd/gpu-kubeletplugin/deviceinfo.go).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpucost.domain.errors import InputError

MEMORY = "memory"
"""The capacity that parts are measured by where nothing else is said."""
KAI_RESERVATIONS = "kai-resource-reservation"
"""The namespace of KAI Scheduler's reservations, as it is installed."""
DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "gpu.nvidia.com": (
        *(MEMORY, "multiprocessors", "copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines"),
    ),
    "gpu.amd.com": (MEMORY, "computeUnits", "simdUnits"),
    "gpu.intel.com": (MEMORY, "millicores"),
    "gaudi.intel.com": (MEMORY,),
}


@dataclass(frozen=True, slots=True)
class SharingRules:
    """``dimensions`` are capacities by driver, by which its devices are divided, and by no other: a claim
    that consumes none of it has an unknown part. ``reservations`` is the namespace of KAI's reservation pods,
    in which tenants can make none."""

    dimensions: Mapping[str, str] = field(default_factory=dict)
    reservations: str = KAI_RESERVATIONS


DEFAULT_SHARING = SharingRules()


def share_dimensions(texts: Iterable[str]) -> Mapping[str, str]:
    """``driver=capacity``, each driver once. Raises InputError naming what is allowed."""
    found: dict[str, str] = {}
    for text in texts:
        driver, _, dimension = text.partition("=")
        if driver not in DIMENSIONS:
            raise InputError("share_dimensions", text, f"driver=capacity, of {', '.join(DIMENSIONS)}")
        if dimension not in DIMENSIONS[driver]:
            allowed = f"for {driver} one of {', '.join(DIMENSIONS[driver])}"
            raise InputError("share_dimensions", text, allowed)
        if driver in found:
            raise InputError("share_dimensions", text, f"{driver} once")
        found[driver] = dimension
    return found
