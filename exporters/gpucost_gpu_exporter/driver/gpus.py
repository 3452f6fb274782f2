"""One physical GPU, its MIG instances and the processes on them: what is kept between two looks, and one
look at it.

``memory_bytes`` reads the memory of a GPU or MIG instance. ``MigInstances`` are read anew at each look:
handles and ids are reused when a GPU is repartitioned. ``ProcessShares`` says how much of the SMs' time each
process had.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import pynvml

from gpucost_gpu_exporter.driver.activity import BusyTime, GpmSampler, ThrottleTime
from gpucost_gpu_exporter.driver.calls import (
    CORRUPT,
    LARGEST_COUNT,
    UNSUPPORTED,
    DriverLook,
    GpuErrorGuard,
    GpuLost,
    NvmlRefusal,
    call,
    call_newest,
)
from gpucost_gpu_exporter.model.readings import (
    GpuReading,
    GpuSignal,
    InstanceReading,
    ProcessReading,
    ReadingPart,
    SignalActivity,
)

_NOTHING_NEW = frozenset({"NOT_FOUND", "SUCCESS"})
_FURTHEST_AHEAD_US = 10_000_000
_REACH_BACK_EVERY_NS = 10 * 10**9
_LATEST_US = 10_000_000
_FORGOTTEN_AFTER_US = 60_000_000
_COMPUTE_LIST = (
    pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
    pynvml.nvmlDeviceGetComputeRunningProcesses_v2,
)
_OTHER_LISTS = (
    (pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3, pynvml.nvmlDeviceGetGraphicsRunningProcesses_v2),
    (pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v2),
)


class ProcessShares:
    """Samples of SM use by process, of one GPU. Not available on a GPU in MIG mode.

    The driver hands samples out up to 10 s late (NVIDIA/go-nvml#51), one process's later than another's, so
    what was seen is kept for each process. ``last_us`` is the driver's time of the last sample that an
    earlier exporter's process saw: nothing up to there is counted.
    """

    def __init__(self, last_us: int | None = None) -> None:
        self._newest_us = last_us
        self._begin_us = last_us or 0
        self._seen_us: dict[int, int] = {}
        self._reached_back_ns: int | None = None

    def keep_up(self, newest_us: int | None) -> None:
        """``newest_us`` is the time of the GPU's last busy sample, by the same clock of the driver.

        The first look begins there, so that both stand for the same time; and it begins there again after
        that clock was set back.
        """
        if self._newest_us is None or (newest_us and self._newest_us > newest_us + _FURTHEST_AHEAD_US):
            self._newest_us, self._begin_us, self._seen_us = newest_us, newest_us or 0, {}

    def weights(self, look: DriverLook, handle: Any) -> dict[int, int]:
        """The sum of each process's new SM percentages, by pid; empty when nothing ran. Raises
        NvmlRefusal."""
        from_us = self._from_us(look.now_ns)
        weights: dict[int, int] = {}
        for at_us, pid, percent in _samples(handle, from_us):
            if at_us <= max(from_us, self._seen_us.get(pid, 0)):
                continue
            self._seen_us[pid] = at_us
            self._newest_us = max(self._newest_us or 0, at_us)
            if percent > 100:
                look.drop()
                continue
            weights[pid] = weights.get(pid, 0) + percent
        oldest_us = (self._newest_us or 0) - _FORGOTTEN_AFTER_US
        self._seen_us = {pid: at_us for pid, at_us in self._seen_us.items() if at_us > oldest_us}
        return weights

    def _from_us(self, now_ns: int) -> int:
        """The newest sample seen; now and then far enough back for those that came late.

        Not each time: reading ten seconds of samples through nvidia-ml-py takes more than all the rest.
        """
        if self._reached_back_ns is not None and now_ns - self._reached_back_ns < _REACH_BACK_EVERY_NS:
            return self._newest_us or 0
        self._reached_back_ns = now_ns
        return max(self._begin_us, (self._newest_us or 0) - _LATEST_US)


def _samples(handle: Any, from_us: int) -> list[tuple[int, int, int]]:
    """(driver's time in us, pid, percent), oldest first.

    nvidia-ml-py raises an error named success when the driver has no samples.
    """
    try:
        samples = call(pynvml.nvmlDeviceGetProcessUtilization, handle, from_us)
    except NvmlRefusal as refusal:
        if refusal.code not in _NOTHING_NEW:
            raise
        return []
    return sorted((sample.timeStamp, sample.pid, sample.smUtil) for sample in samples)


def memory_by_pid(handle: Any) -> dict[int, int | None]:
    """Bytes by pid of every process with a context there, None where unknown. Raises NvmlRefusal, GpuLost.

    A process that both computes and draws is in two of the driver's lists, with the same memory. Clients of
    an MPS server are in a list of their own.
    """
    found: dict[int, int | None] = {}
    for functions in _OTHER_LISTS:
        with suppress(NvmlRefusal):  # GPUs without graphics, drivers without MPS
            found |= _listed(handle, functions)
    return found | _listed(handle, _COMPUTE_LIST)


def _listed(handle: Any, functions: tuple[Any, ...]) -> dict[int, int | None]:
    processes = call_newest(*((function, handle) for function in functions))
    return {process.pid: process.usedGpuMemory for process in processes}


def merged(memory: Mapping[int, int | None], weights: Mapping[int, int] | None) -> tuple[ProcessReading, ...]:
    """One reading per process. One that ended since its sample has a weight and no memory."""
    pids = sorted({*memory, *(weights or {})})
    return tuple(
        ProcessReading(pid, memory.get(pid), None if weights is None else weights.get(pid, 0)) for pid in pids
    )


def memory_bytes(look: DriverLook, handle: Any, missing: dict[str, str]) -> tuple[int | None, int | None]:
    """(used, total). The older call, second choice, counts as used what the driver keeps for itself."""
    try:
        found = call_newest(
            (pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2),
            (pynvml.nvmlDeviceGetMemoryInfo, handle),
        )
    except NvmlRefusal as refusal:
        missing[ReadingPart.MEMORY] = refusal.code
        return None, None
    if found.used > found.total:
        look.drop()
        missing[ReadingPart.MEMORY] = CORRUPT
        return None, None
    return found.used, found.total


_PROFILE = re.compile(r"MIG (?:\d+c\.)?(\d+g\.\S+)")


class _Compute(NamedTuple):
    """One compute instance; its handle is valid until the GPU is repartitioned. Slices are of its GPU
    instance."""

    gpu_instance: int
    compute_instance: int
    uuid: str
    handle: Any
    gpu_slices: int
    slices: int
    memory_mb: int


def is_enabled(handle: Any) -> bool:
    """Whether the GPU is in MIG mode now. Raises NvmlRefusal when the driver does not answer
    that, GpuLost."""
    try:
        current, _ = call(pynvml.nvmlDeviceGetMigMode, handle)
    except NvmlRefusal as refusal:
        if refusal.code in {"NOT_SUPPORTED", "FUNCTION_NOT_FOUND"}:
            return False
        raise
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)


class MigInstances:
    """The instances of one GPU. Several compute instances in one GPU instance are one reading."""

    def __init__(self, board_uuid: str, gpm: GpmSampler) -> None:
        self._board_uuid = board_uuid
        self._gpm = gpm
        self._profiles: dict[tuple[object, ...], str] = {}

    def read(self, look: DriverLook, board: Any, missing: dict[str, str]) -> tuple[InstanceReading, ...]:
        """All instances by id; what could not be read of the list itself goes to ``missing``."""
        try:
            of_slices = int(call(pynvml.nvmlDeviceGetMaxMigDeviceCount, board))
        except NvmlRefusal as refusal:
            missing[ReadingPart.MIG] = refusal.code
            return ()
        found = sorted(_compute_instances(board, of_slices, missing), key=lambda compute: compute[:2])
        profiles = {_shape(compute): self._profile(compute) for compute in found}
        self._profiles = profiles
        return tuple(
            self._instance(look, board, list(parts), of_slices)
            for _, parts in groupby(found, key=lambda compute: compute.gpu_instance)
        )

    def _instance(
        self, look: DriverLook, board: Any, parts: list[_Compute], of_slices: int
    ) -> InstanceReading:
        first = parts[0]
        device_id = (self._board_uuid, first.gpu_instance, first.gpu_slices, *(part.uuid for part in parts))
        take = partial(pynvml.nvmlGpmMigSampleGet, board, first.gpu_instance)
        gpm = self._gpm.measure(look, device_id, board, take)
        missing = gpm.missing
        used_bytes, total_bytes = memory_bytes(look, first.handle, missing)
        return InstanceReading(
            gpu_instance=first.gpu_instance,
            compute_instances={part.uuid: part.slices for part in parts},
            slices=first.gpu_slices,
            of_slices=of_slices,
            profile=self._profiles[_shape(first)],
            memory_used_bytes=used_bytes,
            memory_total_bytes=total_bytes,
            activity=gpm.activity,
            processes=_processes(look, parts, missing),
            missing=missing,
        )

    def _profile(self, compute: _Compute) -> str:
        """``3g.40gb`` of ``NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb``; empty when the driver gives no
        such name."""
        known = self._profiles.get(_shape(compute))
        if known:
            return known
        try:
            match = _PROFILE.search(call(pynvml.nvmlDeviceGetName, compute.handle))
        except NvmlRefusal:
            return ""
        return match[1] if match else ""


def _shape(compute: _Compute) -> tuple[object, ...]:
    return (compute.uuid, compute.gpu_slices, compute.slices, compute.memory_mb)


def _compute_instances(board: Any, count: int, missing: dict[str, str]) -> Iterator[_Compute]:
    """NVML numbers them with gaps, so every index is tried."""
    for index in range(count):
        try:
            handle = call(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, board, index)
            yield _compute(handle)
        except NvmlRefusal as refusal:
            if refusal.code != "NOT_FOUND":
                missing[ReadingPart.MIG] = refusal.code


def _compute(handle: Any) -> _Compute:
    attributes = call(pynvml.nvmlDeviceGetAttributes_v2, handle)
    return _Compute(
        gpu_instance=call(pynvml.nvmlDeviceGetGpuInstanceId, handle),
        compute_instance=call(pynvml.nvmlDeviceGetComputeInstanceId, handle),
        uuid=call(pynvml.nvmlDeviceGetUUID, handle),
        handle=handle,
        gpu_slices=attributes.gpuInstanceSliceCount,
        slices=attributes.computeInstanceSliceCount,
        memory_mb=attributes.memorySizeMB,
    )


def _processes(
    look: DriverLook, parts: list[_Compute], missing: dict[str, str]
) -> tuple[ProcessReading, ...] | None:
    if not look.processes:
        return None
    missing[ReadingPart.PROCESS_UTILIZATION] = "NOT_SUPPORTED"
    memory: dict[int, int | None] = {}
    try:
        for part in parts:
            memory |= memory_by_pid(part.handle)
    except NvmlRefusal as refusal:
        missing[ReadingPart.PROCESSES] = refusal.code
        return None
    return merged(memory, None)


Missing = dict[str, str]
Result = TypeVar("Result")


class NvmlGpu:
    """Known by its UUID for as long as the process lives. ``lost`` is why it does not answer, else empty."""

    def __init__(self, uuid: str, gpm: GpmSampler, last_us: int | None = None) -> None:
        self.uuid = uuid
        self.busy = BusyTime(last_us)
        self.lost = ""
        self._gpm = gpm
        self._throttling = ThrottleTime()
        self._shares = ProcessShares(last_us)
        self._mishaps = GpuErrorGuard()
        self._instances = MigInstances(uuid, gpm)
        self._handle: Any = None
        self._minor: int | None = None
        self._product = ""
        self._pci_bus_id = ""

    def listed(self, handle: Any) -> None:
        """The driver lists the GPU, by this handle."""
        self._handle, self.lost = handle, ""
        try:
            self._identify(handle)
        except GpuLost as failure:
            self.lost = failure.code

    def look(self, look: DriverLook, no_xids: str = "") -> GpuReading:
        """The reading of the GPU now. ``no_xids`` is why its events cannot be collected, else empty."""
        missing = {ReadingPart.XID.value: no_xids} if no_xids else {}
        try:
            return self._read(look, missing) if not self.lost else self._lost()
        except Exception as error:
            self.lost = self._mishaps.code(self.uuid, error)
            return self._lost()

    def _identify(self, handle: Any) -> None:
        """Reads identity once; a value that is refused is read again the next time that GPUs are listed."""
        if not self._product:
            with suppress(NvmlRefusal):
                self._product = call(pynvml.nvmlDeviceGetName, handle)
        if not self._pci_bus_id:
            with suppress(NvmlRefusal):
                self._pci_bus_id = call(pynvml.nvmlDeviceGetPciInfo_v3, handle).busId
        if self._minor is None:
            with suppress(NvmlRefusal):
                self._minor = call(pynvml.nvmlDeviceGetMinorNumber, handle)

    def _read(self, look: DriverLook, missing: Missing) -> GpuReading:
        used_bytes, total_bytes = memory_bytes(look, self._handle, missing)
        is_mig = _attempt(missing, ReadingPart.MIG, is_enabled, self._handle) or False
        return GpuReading(
            uuid=self.uuid,
            minor=self._minor,
            product=self._product,
            pci_bus_id=self._pci_bus_id,
            mig=is_mig,
            memory_used_bytes=used_bytes,
            memory_total_bytes=total_bytes,
            energy_mj=_attempt(missing, ReadingPart.ENERGY, _energy_mj, look, self._handle),
            throttled_ns=_attempt(
                missing, ReadingPart.THROTTLING, self._throttling.measure, look, self._handle
            )
            or {},
            activity={} if is_mig else self._activity(look, missing),
            instances=self._instances.read(look, self._handle, missing) if is_mig else (),
            processes=self._processes(look, missing) if look.processes and not is_mig else None,
            missing=missing,
        )

    def _lost(self) -> GpuReading:
        return GpuReading(
            uuid=self.uuid,
            minor=self._minor,
            product=self._product,
            pci_bus_id=self._pci_bus_id,
            lost=self.lost,
        )

    def _activity(self, look: DriverLook, missing: Missing) -> dict[str, SignalActivity]:
        """Busy time by the driver's samples, by GPM only where those cannot be had; never a blend."""
        gpm = self._gpm.measure(look, (self.uuid,), self._handle, self._take)
        busy = _attempt(missing, ReadingPart.BUSY, self.busy.measure, look, self._handle)
        self._shares.keep_up(self.busy.last_us)
        # A passing failure is compensated by the samples after it, so GPM must not count that time too.
        if missing.get(ReadingPart.BUSY) in UNSUPPORTED and GpuSignal.BUSY in gpm.activity:
            del missing[ReadingPart.BUSY]
        else:
            gpm.activity.pop(GpuSignal.BUSY, None)
        missing |= {part: code for part, code in gpm.missing.items() if part != ReadingPart.BUSY}
        return gpm.activity | ({GpuSignal.BUSY.value: busy} if busy else {})

    def _take(self, sample: Any) -> None:
        pynvml.nvmlGpmSampleGet(self._handle, sample)

    def _processes(self, look: DriverLook, missing: Missing) -> tuple[ProcessReading, ...] | None:
        memory = _attempt(missing, ReadingPart.PROCESSES, memory_by_pid, self._handle)
        weights = _attempt(missing, ReadingPart.PROCESS_UTILIZATION, self._shares.weights, look, self._handle)
        return None if memory is None else merged(memory, weights)


def _attempt(
    missing: Missing, part: ReadingPart, function: Callable[..., Result], *arguments: object
) -> Result | None:
    """The function's answer, or None and the reason in ``missing``. Raises GpuLost, DriverGone."""
    try:
        return function(*arguments)
    except NvmlRefusal as refusal:
        missing[part] = refusal.code
        return None


def _energy_mj(look: DriverLook, handle: Any) -> int:
    energy_mj = int(call(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle))
    if energy_mj > LARGEST_COUNT:
        look.drop()
        raise NvmlRefusal(CORRUPT)
    return energy_mj
