"""Holders, and the devices they hold as exact shares: types of GPUs, MIG instances, claims and amounts. Pure.

``DeviceHolding`` is a pod's share of a device; ``DeviceClaim`` and ``KubeletState`` are the kubelet's answer.
``GpuTopology`` has the GPUs and MIG instances of a node: what device ids are looked up in. ``devices`` gives
the devices of resource claims (DRA), from the ResourceSlices that their driver publishes; a MIG device that
is created only when claimed has no UUID in its slice, and is left out.

Amounts (``dyadic``, ``exported``) are integers that floats can carry without an error. Counters are exported
as floats and added up by others: by Prometheus, by a spreadsheet, in any order. A sum of multiples of 2^-20 s
(about 1 µs) or 2^-14 J is exact in a double up to 2^33 s and 2^39 J, far beyond the life of a GPU, so that
the parts add up to the whole not only here but wherever they are added.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, NamedTuple, Self

from gpucost.cluster.objects.nodes import PublishedDevice, ResourceSlice
from gpucost.cluster.views.device_claims import newest_slices
from gpucost.contract.gpu_metrics import GpuMeasure
from gpucost.kube.parse.core_objects import resource_slice
from gpucost.kube.parse.events import Unreadable
from gpucost_gpu_exporter.model.readings import GpuReading, NodeReading


class DeviceKey(NamedTuple):
    """A GPU (``gpu_instance`` empty) or one MIG GPU instance of it (its id as text)."""

    gpu_uuid: str
    gpu_instance: str = ""


class PodRef(NamedTuple):
    """A pod on this node. ``uid`` is empty while it is not known."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeviceHolding:
    """A pod holds ``share`` of a device: 1, 2/4 of a time-sliced GPU, 1/3 of a MIG instance.

    ``containers`` are the names of the containers that list the device, ``resource`` is what was asked for
    (``nvidia.com/gpu``; ``gpu.nvidia.com`` for DRA). A device is held by a pod once, however many of its
    containers list it.
    """

    pod: PodRef
    device: DeviceKey
    share: Fraction
    resource: str
    containers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeviceClaim:
    """One line of the kubelet's answer, before the device is looked up: a pod's container lists a device id.

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

    ``allocatable`` gives replica counts and free slices; None when the kubelet gives no such list.
    """

    claims: tuple[DeviceClaim, ...]
    allocatable: dict[str, tuple[str, ...]] | None


WHOLE = Fraction(1)


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A MIG GPU instance: its size, and the sizes of its compute instances by MIG UUID, all in slices."""

    slices: int
    compute_instances: Mapping[str, int]

    def share(self, slices: int) -> Fraction:
        """The part of the instance that a compute instance of so many slices is."""
        return min(WHOLE, Fraction(slices, self.slices)) if self.slices > 0 else WHOLE


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """A GPU: its minor number (the N of ``/dev/nvidiaN``), and its GPU instances by id, if it has any."""

    minor: int | None = None
    instances: Mapping[int, MigInstance] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuTopology:
    """The GPUs of a node by UUID. Minor numbers may change between two looks, UUIDs do not."""

    boards: Mapping[str, GpuDevice] = field(default_factory=dict)

    @classmethod
    def from_reading(cls, reading: NodeReading, before: GpuTopology | None = None) -> Self:
        """The GPUs of this reading. A lost GPU is as it was ``before``: its holders still hold it."""
        known = before.boards if before is not None else {}
        return cls(
            {
                board.uuid: known[board.uuid] if board.lost and board.uuid in known else _board(board)
                for board in reading.boards
            }
        )

    def by_minor(self, minor: int) -> str | None:
        """The UUID of the GPU with this minor number."""
        return next((uuid for uuid, board in self.boards.items() if board.minor == minor), None)

    def mig(self, mig_uuid: str) -> tuple[DeviceKey, Fraction] | None:
        """The GPU instance that a MIG device is in, and which part of it the device is."""
        for uuid, board in self.boards.items():
            for number, instance in board.instances.items():
                if (slices := instance.compute_instances.get(mig_uuid)) is not None:
                    return DeviceKey(uuid, str(number)), instance.share(slices)
        return None


def _board(board: GpuReading) -> GpuDevice:
    return GpuDevice(
        board.minor,
        {
            instance.gpu_instance: MigInstance(instance.slices, dict(instance.compute_instances))
            for instance in board.instances
        },
    )


NVIDIA_DRA_DRIVERS = ("gpu.nvidia.com",)


@dataclass(frozen=True, slots=True)
class DraDevice:
    """A device that a claim can be given: a GPU or a MIG device, by its NVML UUID."""

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


def _known(device: PublishedDevice) -> DraDevice:
    uuid = device.attributes["uuid"]
    is_mig = device.attributes.get("type") == "mig" or uuid.startswith("MIG-")
    return DraDevice(uuid, "mig" if is_mig else "gpu")


SECOND_NS = 1_000_000_000
TICKS_PER_SECOND = 1 << 20
PARTS_PER_JOULE = 1 << 14

# Base amounts: nanoseconds of GPU time, or millijoules.
_BASE = dict.fromkeys(GpuMeasure, SECOND_NS) | {GpuMeasure.ENERGY: 1_000}
_DYADIC = dict.fromkeys(GpuMeasure, TICKS_PER_SECOND) | {GpuMeasure.ENERGY: PARTS_PER_JOULE}


def dyadic(measure: GpuMeasure, base: int) -> int:
    """A total in nanoseconds or millijoules -> whole ticks or parts of a joule, rounded down."""
    return base * _DYADIC[measure] // _BASE[measure]


def exported(measure: GpuMeasure, amount: int) -> float:
    """Ticks or parts -> seconds or joules, without an error."""
    return amount / _DYADIC[measure]
