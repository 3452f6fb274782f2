"""SM and tensor activity from the GPU performance monitor of Hopper and newer, per GPU or MIG instance.

One sample is kept per device and each new one is compared with it, so that the figures are averages over
the whole time between two looks. Fixed by NVML: two samples are at least 100 ms apart.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pynvml

from gpucost_gpu_exporter.driver.calls import (
    CORRUPT,
    UNSUPPORTED,
    DriverLook,
    GpuLost,
    NvmlRefusal,
    call,
    code_name,
)
from gpucost_gpu_exporter.model.readings import GpuSignal, SignalActivity, SignalSource

DeviceId = tuple[object, ...]
"""UUID of the GPU; for a MIG instance also what distinguishes it from another that got the same id later."""

SHORTEST_NS = 100_000_000
LONGEST_NS = 600_000_000_000
RETRY_NS = 600_000_000_000
HIGHEST_PERCENT = 105.0
_METRICS = {
    GpuSignal.BUSY: pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL,
    GpuSignal.SM: pynvml.NVML_GPM_METRIC_SM_UTIL,
    GpuSignal.TENSOR: pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
}


@dataclass(slots=True)
class GpmResult:
    """What came out of one comparison; a signal is in ``activity``, in ``missing``, or not due yet."""

    activity: dict[str, SignalActivity] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Device:
    kept: Any
    spare: Any
    kept_ns: int | None = None
    looked_ns: int = 0
    probed: bool = False
    off_code: str = ""
    off_until_ns: int = 0


class GpmSampler:
    """The kept samples of every device of the node."""

    def __init__(self) -> None:
        self._devices: dict[DeviceId, _Device] = {}
        self._question = pynvml.c_nvmlGpmMetricsGet_t()
        self._question.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._question.numMetrics = len(_METRICS)
        for place, metric in enumerate(_METRICS.values()):
            self._question.metrics[place].metricId = metric

    def measure(
        self, look: DriverLook, device_id: DeviceId, board: Any, take: Callable[[Any], Any]
    ) -> GpmResult:
        """Activity since the last look. ``take`` fills a sample of the device. Raises GpuLost."""
        try:
            return self._measure(look, device_id, board, take)
        except NvmlRefusal as refusal:
            return GpmResult(missing=dict.fromkeys(_METRICS, refusal.code))

    def forget_others(self, now_ns: int) -> None:
        """Let go of the devices that were not measured at ``now_ns``: gone, lost, or cut anew."""
        for device_id in [key for key, device in self._devices.items() if device.looked_ns != now_ns]:
            device = self._devices.pop(device_id)
            for sample in (device.kept, device.spare):
                with suppress(NvmlRefusal, GpuLost):
                    call(pynvml.nvmlGpmSampleFree, sample)

    def _measure(
        self, look: DriverLook, device_id: DeviceId, board: Any, take: Callable[[Any], Any]
    ) -> GpmResult:
        device = self._device(device_id)
        device.looked_ns = look.now_ns
        if look.now_ns < device.off_until_ns:
            raise NvmlRefusal(device.off_code)
        since_ns = None if device.kept_ns is None else look.now_ns - device.kept_ns
        if since_ns is not None and since_ns < SHORTEST_NS:
            return GpmResult()
        _take(look, device, board, take)
        if since_ns is None or since_ns > LONGEST_NS:
            return GpmResult()
        return self._compare(look, device, since_ns)

    def _device(self, device_id: DeviceId) -> _Device:
        if device_id not in self._devices:
            kept, spare = call(pynvml.nvmlGpmSampleAlloc), call(pynvml.nvmlGpmSampleAlloc)
            self._devices[device_id] = _Device(kept, spare)
        return self._devices[device_id]

    def _compare(self, look: DriverLook, device: _Device, since_ns: int) -> GpmResult:
        self._question.sample1, self._question.sample2 = device.spare, device.kept
        call(pynvml.nvmlGpmMetricsGet, self._question)
        result = GpmResult()
        for place, signal in enumerate(_METRICS):
            metric = self._question.metrics[place]
            if metric.nvmlReturn != pynvml.NVML_SUCCESS:
                result.missing[signal] = code_name(metric.nvmlReturn)
            elif not 0 <= metric.value <= HIGHEST_PERCENT:
                look.drop()
                result.missing[signal] = CORRUPT
            else:
                active_ns = round(since_ns * min(metric.value, 100.0) / 100)
                result.activity[signal] = SignalActivity(since_ns, active_ns, SignalSource.GPM)
        return result


def _take(look: DriverLook, device: _Device, board: Any, take: Callable[[Any], Any]) -> None:
    """Put a new sample in the place of the kept one. Switched off for a while when the driver refuses it."""
    try:
        if not device.probed and not call(pynvml.nvmlGpmQueryDeviceSupport, board).isSupportedDevice:
            raise NvmlRefusal("NOT_SUPPORTED")
        device.probed = True
        call(take, device.spare)
    except NvmlRefusal as refusal:
        device.kept_ns = None
        if refusal.code in UNSUPPORTED:
            device.probed, device.off_code = False, refusal.code
            device.off_until_ns = look.now_ns + RETRY_NS
        raise
    device.kept, device.spare = device.spare, device.kept
    device.kept_ns = look.now_ns
