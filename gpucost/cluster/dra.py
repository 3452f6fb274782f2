"""Dynamic resource allocation (``resource.k8s.io``): devices that drivers publish, and claims on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpucost.cluster.objects import Flaw, Meta


class DeviceId(NamedTuple):
    """A device by name."""

    driver: str
    pool: str
    device: str


@dataclass(frozen=True, slots=True)
class Device:
    """``attributes`` as text by name without the driver's domain (``type``, ``uuid``, ``productName``)."""

    name: str
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResourceSlice:
    """Devices of one pool on one node (``node`` is empty for devices of several nodes).

    Of slices of one pool only those of the highest ``generation`` count.
    """

    meta: Meta
    driver: str
    pool: str
    generation: int
    node: str
    devices: tuple[Device, ...] = ()
    flaws: tuple[Flaw, ...] = ()


class DeviceRequest(NamedTuple):
    """``amount`` devices of a class; None where nobody can say beforehand how many, or of which class."""

    device_class: str
    amount: int | None


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """``devices`` are what it was given, without those for administrators, which hold nothing;
    ``reserved_for`` are uids of pods that may use it; ``requests`` what its spec asks for, likewise."""

    meta: Meta
    devices: tuple[DeviceId, ...] = ()
    reserved_for: tuple[str, ...] = ()
    flaws: tuple[Flaw, ...] = ()
    requests: tuple[DeviceRequest, ...] = ()
