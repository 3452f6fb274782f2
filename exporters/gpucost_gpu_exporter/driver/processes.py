"""The processes on a GPU or MIG instance, and how much of the SMs' time each had."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pynvml

from gpucost_gpu_exporter.driver.calls import DriverLook, NvmlRefusal, call, call_newest
from gpucost_gpu_exporter.model.readings import ProcessReading

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
