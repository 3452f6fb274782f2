"""What the stand-in driver has: GPUs, MIG instances, processes, and their cumulative truths.

All mutable: a test changes a field and calls ``FakeDriver.write``. Times are integer nanoseconds, sample
timestamps integer microseconds of the driver's own virtual clock, memory bytes, energy millijoules.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

GIB = 1 << 30
SAMPLE_RING = 120
PROCESS_SAMPLE_RING = 512
# Single and double bit ECC, performance state, XID, clock.
EVENT_TYPES = 0x1F


class ProcessKind(StrEnum):
    """Which of the three process lists of the driver shows a process."""

    COMPUTE = "compute"
    GRAPHICS = "graphics"
    MPS = "mps"


class UtilizationSample(NamedTuple):
    """Percent of the time since the sample before in which a kernel ran."""

    timestamp_us: int
    percent: int


class ProcessSample(NamedTuple):
    """A process's percent of the SMs and of the memory bandwidth since the sample before."""

    timestamp_us: int
    pid: int
    sm: int
    memory: int = 0


@dataclass(slots=True)
class GpmCounters:
    """Cumulative nanoseconds: watched, and active in each way. On a MIG instance, of the instance."""

    elapsed_ns: int = 0
    graphics_ns: int = 0
    sm_ns: int = 0
    tensor_ns: int = 0


@dataclass(slots=True)
class FakeProcess:
    """``memory_bytes`` None: the driver does not know. ``compute_instance`` counts on MIG only."""

    pid: int
    memory_bytes: int | None = None
    kind: ProcessKind = ProcessKind.COMPUTE
    compute_instance: int = 0


@dataclass(slots=True)
class FakeComputeInstance:
    """One MIG device. ``index`` is its place among the MIG devices of the GPU: None is the next free."""

    uuid: str
    slices: int = 1
    compute_instance: int = 0
    index: int | None = None


@dataclass(slots=True)
class FakeInstance:
    """A MIG GPU instance; ``profile`` is like ``1g.10gb``. ``gpm`` None: the driver has no GPM for it."""

    gpu_instance: int
    slices: int
    profile: str
    compute_instances: list[FakeComputeInstance]
    memory_total_bytes: int = 10 * GIB
    memory_used_bytes: int = 0
    memory_reserved_bytes: int = 0
    gpm: GpmCounters | None = field(default_factory=GpmCounters)
    processes: list[FakeProcess] = field(default_factory=list)


@dataclass(slots=True)
class FakeBoard:
    """One physical GPU.

    ``mig`` None: the product cannot do it. ``gpm`` None: not supported, as before Hopper. ``energy_mj`` and
    ``watts`` None: not supported. ``throttled_ns`` is by field id (74, 76, 269, 270, 271); an id not there
    is not supported, and ``field_errors`` gives any field id an NVML error of its own.
    ``no_process_samples_is_success`` makes an empty answer say success with a count of zero, as some
    drivers do, rather than NOT_FOUND. ``clock_reasons`` is the bit mask of this instant.
    """

    uuid: str
    product: str = "NVIDIA H100 80GB HBM3"
    minor: int | None = None
    pci_bus_id: str = ""
    memory_total_bytes: int = 80 * GIB
    memory_used_bytes: int = 0
    memory_reserved_bytes: int = 0
    watts: float | None = 100.0
    energy_mj: int | None = 0
    throttled_ns: dict[int, int] = field(default_factory=lambda: dict.fromkeys((74, 76, 269, 270, 271), 0))
    field_errors: dict[int, int] = field(default_factory=dict)
    clock_reasons: int = 0
    event_types: int = EVENT_TYPES
    multiprocessors: int = 132
    gpm: GpmCounters | None = field(default_factory=GpmCounters)
    samples: deque[UtilizationSample] = field(default_factory=lambda: deque(maxlen=SAMPLE_RING))
    processes: list[FakeProcess] = field(default_factory=list)
    process_samples: deque[ProcessSample] = field(default_factory=lambda: deque(maxlen=PROCESS_SAMPLE_RING))
    no_process_samples_is_success: bool = False
    mig: bool | None = False
    mig_slices: int = 7
    mig_generation: int = 0
    instances: list[FakeInstance] = field(default_factory=list)
    lost: bool = False
    carried: dict[str, float] = field(default_factory=dict, repr=False)

    def repartition(self, instances: list[FakeInstance]) -> None:
        """Replace the MIG instances. Handles from before go stale, also of a UUID that comes back."""
        self.instances = instances
        self.mig_generation += 1

    def reset(self) -> None:
        """What a GPU reset does to the counters: all start at 0 and no sample is left."""
        if self.energy_mj is not None:
            self.energy_mj = 0
        self.throttled_ns = dict.fromkeys(self.throttled_ns, 0)
        self.samples.clear()
        self.process_samples.clear()
        self.carried.clear()
        self.gpm = None if self.gpm is None else GpmCounters()
        for instance in self.instances:
            instance.gpm = None if instance.gpm is None else GpmCounters()
