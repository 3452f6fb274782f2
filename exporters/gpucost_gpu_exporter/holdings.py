"""Who holds which part of which GPU, as exact shares. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple


class DeviceKey(NamedTuple):
    """A board (``gpu_instance`` empty) or one MIG GPU instance of it (its id as text)."""

    gpu_uuid: str
    gpu_instance: str = ""


class Pod(NamedTuple):
    """A pod on this node. ``uid`` is empty while nobody could say it."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Holding:
    """A pod holds ``share`` of a device: 1, 2/4 of a time-sliced board, 1/3 of a MIG instance.

    ``containers`` are the names of the containers that list the device, ``resource`` is what was asked for
    (``nvidia.com/gpu``; ``gpu.nvidia.com`` for DRA). A device is held by a pod once, however many of its
    containers list it.
    """

    pod: Pod
    device: DeviceKey
    share: Fraction
    resource: str
    containers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeviceClaim:
    """One line of the kubelet's answer, before NVML says what it is: a pod's container lists a device id.

    ``device_id`` is as the kubelet gives it (``GPU-…``, ``MIG-…``, ``GPU-…::2``, ``nvidia0/gi3``), or the
    ``driver/pool/device`` of a DRA claim, when ``is_dra``.
    """

    namespace: str
    pod: str
    container: str
    resource: str
    device_id: str
    is_dra: bool = False


@dataclass(frozen=True, slots=True)
class KubeletState:
    """What the kubelet answered: the claims, and every device id it could hand out, by resource name.

    ``allocatable`` gives replica counts and free slices; None when the kubelet does not say.
    """

    claims: tuple[DeviceClaim, ...]
    allocatable: dict[str, tuple[str, ...]] | None
