"""What the devices of resource claims (DRA) are, by the ResourceSlices that their driver publishes. Pure.

A MIG device that is cut only when claimed has no UUID in its slice, and is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gpucost.cluster.devices import newest_slices
from gpucost.cluster.dra import Device, ResourceSlice
from gpucost.kube.events import Unreadable
from gpucost.kube.parse.dra import resource_slice

NVIDIA_DRA_DRIVERS = ("gpu.nvidia.com",)


@dataclass(frozen=True, slots=True)
class DraDevice:
    """A device that a claim can be given: a board or a MIG device, by its NVML UUID."""

    uuid: str
    kind: Literal["gpu", "mig"]


def devices(
    slices: Iterable[Mapping[str, Any]], drivers: Collection[str] = NVIDIA_DRA_DRIVERS
) -> dict[str, DraDevice]:
    """``driver/pool/device`` -> what it is, from the newest generation of each pool.

    A slice or device that is not of the expected form is left out.
    """
    return {
        f"{each.driver}/{each.pool}/{device.name}": _known(device)
        for each in newest_slices(_readable(slices), drivers)
        for device in each.devices
        if device.attributes.get("uuid")
    }


def _readable(slices: Iterable[Mapping[str, Any]]) -> Iterator[ResourceSlice]:
    for item in slices:
        try:
            yield resource_slice(item)
        except Unreadable:
            continue


def _known(device: Device) -> DraDevice:
    uuid = device.attributes["uuid"]
    is_mig = device.attributes.get("type") == "mig" or uuid.startswith("MIG-")
    return DraDevice(uuid, "mig" if is_mig else "gpu")
