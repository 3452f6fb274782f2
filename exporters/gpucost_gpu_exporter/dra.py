"""What the devices of resource claims (DRA) are, by the ResourceSlices that their driver publishes. Pure.

Takes the API's own dicts, of ``resource.k8s.io`` v1, v1beta1 (attributes under ``basic``) and v1beta2. The
attributes are those of NVIDIA's driver (NVIDIA/k8s-dra-driver-gpu): ``type``, ``uuid``, ``parentUUID``,
``profile``. A MIG device that is cut only when claimed has no UUID in its slice, and is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

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

    While a driver republishes a pool, slices of two generations exist side by side; the older one is void
    (``spec.pool.generation``). A slice or device that is not of the expected form is left out.
    """
    newest: dict[tuple[str, str], int] = {}
    found: list[tuple[tuple[str, str], int, Mapping[str, Any]]] = []
    for item in slices:
        spec = _mapping(item.get("spec"))
        pool = _mapping(spec.get("pool"))
        key, generation = (str(spec.get("driver")), str(pool.get("name"))), pool.get("generation", 0)
        if key[0] not in drivers or not isinstance(generation, int):
            continue
        newest[key] = max(generation, newest.get(key, generation))
        found.append((key, generation, spec))
    return {
        f"{key[0]}/{key[1]}/{name}": device
        for key, generation, spec in found
        if generation == newest[key]
        for name, device in _devices_of(spec, key[0])
    }


def _devices_of(spec: Mapping[str, Any], driver: str) -> Iterator[tuple[str, DraDevice]]:
    listed = spec.get("devices")
    for item in listed if isinstance(listed, list) else ():
        device = _mapping(item)
        attributes = _mapping(_mapping(device.get("basic") or device).get("attributes"))
        uuid = _text(attributes, "uuid", driver)
        if uuid and isinstance(name := device.get("name"), str):
            is_mig = _text(attributes, "type", driver) == "mig" or uuid.startswith("MIG-")
            yield name, DraDevice(uuid, "mig" if is_mig else "gpu")


def _text(attributes: Mapping[str, Any], name: str, driver: str) -> str:
    """A text attribute; its name may be written out with the driver as its domain."""
    value = _mapping(attributes.get(name, attributes.get(f"{driver}/{name}"))).get("string")
    return value if isinstance(value, str) else ""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
