"""What one look at the GPUs of a node found, and XID events. Pure; crosses the pipe from the driver process
as JSON.

Missing is None, never 0. Everything cumulative (energy, throttling) is as the driver counts it, since it was
loaded; everything else is of the time since the last look.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Self


class GpuSignal(StrEnum):
    """How a GPU was used: three different questions, never blended."""

    BUSY = "busy"
    SM = "sm_active"
    TENSOR = "tensor_active"


class SignalSource(StrEnum):
    """Where a signal comes from."""

    NVML_SAMPLES = "nvml_samples"
    NVML_UTILIZATION = "nvml_utilization"
    GPM = "gpm"
    DCGM = "dcgm"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class SignalActivity:
    """Integer nanoseconds: for how long a signal was watched, and how much of that it was active.

    On a MIG instance both are of the instance: 1 s fully active is 10**9, whatever the size of the slice.
    ``active_ns <= observed_ns``.
    """

    observed_ns: int
    active_ns: int
    source: str


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """A process on a GPU or MIG instance. ``pid`` is as the driver gives it.

    ``sm_weight`` is the sum of its SM percentages in the new samples of the driver: a weight, not a time;
    None where the driver has no per-process samples (MIG, vGPU, no privilege).
    """

    pid: int
    memory_bytes: int | None = None
    sm_weight: int | None = None


@dataclass(frozen=True, slots=True)
class InstanceReading:
    """A MIG GPU instance. ``compute_instances`` maps the MIG UUID to the part of the instance, in slices.

    ``slices`` of ``of_slices`` is its share of the GPU (3 of 7); ``profile`` is like ``3g.40gb``.
    """

    gpu_instance: int
    compute_instances: Mapping[str, int]
    slices: int
    of_slices: int
    profile: str
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    activity: Mapping[str, SignalActivity] = field(default_factory=dict)
    processes: tuple[ProcessReading, ...] | None = None
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One physical GPU; ``uuid`` is ``pci:<bus id>`` or ``index:<n>`` for a lost one whose UUID was never
    read.

    ``lost`` is the driver's error when the GPU no longer answers (``GPU_IS_LOST``), else empty; then all else
    but ``uuid`` is as last known or None. ``missing`` says, for each thing that could not be read, why: the
    name of the NVML error without its prefix (``NOT_SUPPORTED``, ``NO_PERMISSION``, ``FUNCTION_NOT_FOUND``,
    ``CORRUPT`` for a value outside its range); its keys are the names in ``ReadingPart``. ``processes`` is
    None when the list could not be read, empty when there is none.
    """

    uuid: str
    minor: int | None = None
    product: str = ""
    pci_bus_id: str = ""
    lost: str = ""
    mig: bool = False
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    energy_mj: int | None = None
    throttled_ns: Mapping[str, int] = field(default_factory=dict)
    activity: Mapping[str, SignalActivity] = field(default_factory=dict)
    instances: tuple[InstanceReading, ...] = ()
    processes: tuple[ProcessReading, ...] | None = None
    missing: Mapping[str, str] = field(default_factory=dict)


class ReadingPart(StrEnum):
    """What can be missing of a GPU or instance: the keys of ``missing``."""

    BUSY = "busy"
    SM = "sm_active"
    TENSOR = "tensor_active"
    MEMORY = "memory"
    ENERGY = "energy"
    THROTTLING = "throttling"
    XID = "xid"
    PROCESSES = "processes"
    PROCESS_UTILIZATION = "process_utilization"
    MIG = "mig"


@dataclass(frozen=True, slots=True)
class NodeReading:
    """All GPUs of the node at one instant. ``dropped`` counts readings thrown away, by reason."""

    driver_version: str
    boards: tuple[GpuReading, ...]
    dropped: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, numbers and strings, some of them those of this reading."""
        return {**_flat(self), "boards": [_board_json(board) for board in self.boards]}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """The inverse of ``to_json``."""
        return cls(
            driver_version=found["driver_version"],
            boards=tuple(_board(board) for board in found["boards"]),
            dropped=found["dropped"],
        )


_XID = "xid"
# A reply can be long, and is not read twice.
_XID_LINE = f'{{"{_XID}":'.encode()


class XidEvent(NamedTuple):
    """An XID error of a GPU. Each is told in a line of its own, as it happens: a reading may never come."""

    uuid: str
    code: int

    def to_json(self) -> dict[str, Any]:
        """``from_line`` reads it, as a line without spaces."""
        return {_XID: list(self)}

    @classmethod
    def from_line(cls, line: bytes) -> Self | None:
        """The event that a line of the driver process tells; None for any other line."""
        if not line.startswith(_XID_LINE):
            return None
        try:
            uuid, code = json.loads(line)[_XID]
            return cls(str(uuid), int(code))
        except (ValueError, TypeError):
            return None


def _board_json(board: GpuReading) -> dict[str, Any]:
    instances = [{**_flat(found), **_use_json(found)} for found in board.instances]
    return {**_flat(board), **_use_json(board), "instances": instances}


def _use_json(device: GpuReading | InstanceReading) -> dict[str, Any]:
    processes = device.processes
    return {
        "activity": {signal: _flat(activity) for signal, activity in device.activity.items()},
        "processes": None if processes is None else [_flat(process) for process in processes],
    }


def _flat(reading: Any) -> dict[str, Any]:
    # Not asdict, which copies all that is in it, and takes three times as long.
    return {name: getattr(reading, name) for name in reading.__slots__}


def _board(found: Mapping[str, Any]) -> GpuReading:
    # State files of earlier exporters have events here, always none.
    known = {name: value for name, value in found.items() if name != "xids"}
    return GpuReading(
        **{
            **known,
            "activity": _activity(found["activity"]),
            "instances": tuple(_instance(instance) for instance in found["instances"]),
            "processes": _processes(found["processes"]),
        }
    )


def _instance(found: Mapping[str, Any]) -> InstanceReading:
    activity, processes = _activity(found["activity"]), _processes(found["processes"])
    return InstanceReading(**{**found, "activity": activity, "processes": processes})


def _activity(found: Mapping[str, Any]) -> dict[str, SignalActivity]:
    return {signal: SignalActivity(**values) for signal, values in found.items()}


def _processes(found: list[dict[str, Any]] | None) -> tuple[ProcessReading, ...] | None:
    return None if found is None else tuple(ProcessReading(**process) for process in found)
