"""The processes on a board or MIG instance, and how much of the SMs' time each had."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pynvml

from gpucost_gpu_exporter.driver.calls import Look, Refused, call, call_newest
from gpucost_gpu_exporter.readings import ProcessReading

_NOTHING_NEW = frozenset({"NOT_FOUND", "SUCCESS"})
_FURTHEST_AHEAD_US = 10_000_000
_COMPUTE_LIST = (
    pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
    pynvml.nvmlDeviceGetComputeRunningProcesses_v2,
)
_OTHER_LISTS = (
    (pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3, pynvml.nvmlDeviceGetGraphicsRunningProcesses_v2),
    (pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v2),
)


class ProcessShares:
    """Samples of SM use by process, of one board. Not to be had on a board that is cut by MIG.

    ``last_us`` is the driver's time of the last sample that an earlier process saw.
    """

    def __init__(self, last_us: int | None = None) -> None:
        self._last_us = last_us

    def keep_up(self, newest_us: int | None) -> None:
        """``newest_us`` is the time of the board's last busy sample, by the same clock of the driver.

        The first look begins there, so that both stand for the same time; and it begins there again after
        that clock was set back.
        """
        if self._last_us is None or (newest_us and self._last_us > newest_us + _FURTHEST_AHEAD_US):
            self._last_us = newest_us

    def weights(self, look: Look, handle: Any) -> dict[int, int]:
        """The sum of each process's new SM percentages, by pid; empty when nothing ran. Raises Refused.

        nvidia-ml-py raises an error named success when the driver has no samples.
        """
        last_us = self._last_us or 0
        try:
            samples = call(pynvml.nvmlDeviceGetProcessUtilization, handle, last_us)
        except Refused as refusal:
            if refusal.code not in _NOTHING_NEW:
                raise
            samples = []
        weights: dict[int, int] = {}
        for sample in samples:
            # Once each: nvidia-ml-py makes every reading of a field a call.
            at_us, pid, percent = sample.timeStamp, sample.pid, sample.smUtil
            if at_us <= last_us:
                continue
            self._last_us = max(self._last_us or 0, at_us)
            if percent > 100:
                look.drop()
                continue
            weights[pid] = weights.get(pid, 0) + percent
        return weights


def memory_by_pid(handle: Any) -> dict[int, int | None]:
    """Bytes by pid of every process with a context there, None where unknown. Raises Refused, BoardLost.

    A process that both computes and draws is in two of the driver's lists, with the same memory. Clients of
    an MPS server are in a list of their own.
    """
    found: dict[int, int | None] = {}
    for functions in _OTHER_LISTS:
        with suppress(Refused):  # boards without graphics, drivers without MPS
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
