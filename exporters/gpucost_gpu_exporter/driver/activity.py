"""For how long a GPU ran at least one kernel, how busy its SMs and tensor cores were, and for how long
it was slowed down, by reason.

Busy time is from the driver's own samples, each over the time it stands for: nvmlDeviceGetSamples hands out a
ring buffer, so nothing is missed between two reads, and short jobs count. Throttling is from the driver's
counters, or from the reasons at the instant of a read.

SM and tensor activity is from the GPU performance monitor (GPM) of Hopper and newer, per GPU or MIG instance.
One sample is kept per device and each new one is compared with it, so that the figures are averages over the
whole time between two looks. Fixed by NVML: two samples are at least 100 ms apart.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pynvml

from gpucost_gpu_exporter.driver.calls import (
    CORRUPT,
    LARGEST_COUNT,
    UNSUPPORTED,
    DriverLook,
    GpuLost,
    NvmlRefusal,
    call,
    call_newest,
    code_name,
    value_of,
)
from gpucost_gpu_exporter.model.readings import GpuSignal, SignalActivity, SignalSource

LONGEST_SAMPLE_US = 2_000_000
LONGEST_GUESS_NS = 1_500_000_000
"""A sample of one instant stands for at most this much time, however long ago the last read was."""
_FIRST_SPACING_US = 166_667
_SILENCE_NS = 10_000_000_000
_NS_PER_PERCENT_OF_US = 10
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


class BusyTime:
    """Busy time of one GPU. ``last_us`` is the driver's time of the last sample seen, None before any.

    Given ``last_us`` of an earlier process, the first look reaches back to it as far as the buffer goes.
    """

    def __init__(self, last_us: int | None = None) -> None:
        self.last_us = last_us
        self._spacing_us = _FIRST_SPACING_US
        self._heard_ns: int | None = None
        self._looked_ns: int | None = None

    def measure(self, look: DriverLook, handle: Any) -> SignalActivity | None:
        """Busy time since the last look; None while there is nothing new. Raises NvmlRefusal, GpuLost."""
        before_ns, self._looked_ns = self._looked_ns, look.now_ns
        try:
            samples = _samples(handle, self.last_us or 0)
        except NvmlRefusal as refusal:
            if refusal.code not in UNSUPPORTED:
                raise
            self.last_us = None
            return _of_rate(look, handle, before_ns)
        return self._of_samples(look, samples)

    def _of_samples(self, look: DriverLook, samples: list[tuple[int, int | float]]) -> SignalActivity | None:
        last_us = self.last_us
        fresh = [(at, value) for at, value in samples if last_us is None or at > last_us]
        if not fresh:
            self._start_over_when_silent(look.now_ns)
            return None
        self._heard_ns, self.last_us = look.now_ns, fresh[-1][0]
        if last_us is None:
            return None
        observed_us = percent_us = 0
        for at, value in fresh:
            covered_us, last_us = self._covered(at - last_us), at
            if not 0 <= value <= 100:
                look.drop()
                continue
            observed_us += covered_us
            percent_us += covered_us * int(value)
        return SignalActivity(
            observed_us * 1000, percent_us * _NS_PER_PERCENT_OF_US, SignalSource.NVML_SAMPLES
        )

    def _covered(self, since_us: int) -> int:
        if since_us > LONGEST_SAMPLE_US:
            return self._spacing_us
        self._spacing_us = since_us
        return since_us

    def _start_over_when_silent(self, now_ns: int) -> None:
        """The driver stamps samples with the wall clock: set back, it would hand out nothing
        until it caught up."""
        if self._heard_ns is None:
            self._heard_ns = now_ns
        elif now_ns - self._heard_ns > _SILENCE_NS:
            self._heard_ns, self.last_us = now_ns, None


def _samples(handle: Any, last_us: int) -> list[tuple[int, int | float]]:
    """(driver's time in us, percent), oldest first."""
    try:
        kind, samples = call(
            pynvml.nvmlDeviceGetSamples, handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, last_us
        )
    except NvmlRefusal as refusal:
        if refusal.code == "NOT_FOUND":
            return []
        raise
    return sorted((sample.timeStamp, value_of(kind, sample.sampleValue)) for sample in samples)


def _of_rate(look: DriverLook, handle: Any, before_ns: int | None) -> SignalActivity | None:
    percent = call(pynvml.nvmlDeviceGetUtilizationRates, handle).gpu
    if percent > 100:
        look.drop()
        raise NvmlRefusal(CORRUPT)
    if before_ns is None:
        return None
    observed_ns = min(look.now_ns - before_ns, LONGEST_GUESS_NS)
    return SignalActivity(observed_ns, observed_ns * percent // 100, SignalSource.NVML_UTILIZATION)


class _Reason(NamedTuple):
    """A field that counts nanoseconds, and the bit of the event reasons that stands for the same reason."""

    field: int
    bit: int


REASONS = {
    "sw_power_cap": _Reason(
        pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP, pynvml.nvmlClocksEventReasonSwPowerCap
    ),
    "sync_boost": _Reason(
        pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST, pynvml.nvmlClocksEventReasonSyncBoost
    ),
    "sw_thermal": _Reason(
        pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN,
        pynvml.nvmlClocksEventReasonSwThermalSlowdown,
    ),
    "hw_thermal": _Reason(
        pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN,
        pynvml.nvmlClocksEventReasonHwThermalSlowdown,
    ),
    "hw_power_brake": _Reason(
        pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN,
        pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
    ),
}
# Drivers older than a field answer that its number is no argument.
_UNCOUNTED = UNSUPPORTED | {"INVALID_ARGUMENT"}
_FIELDS = [reason.field for reason in REASONS.values()]


class ThrottleTime:
    """Throttled time of one GPU. What the driver does not count is added up here, from 0 when this process
    started.

    A reason stays with one of the two: a counter that fails once is left out, so that a change of source
    never looks like a counter that was reset.
    """

    def __init__(self) -> None:
        self._counted: set[str] = set()
        self._added_ns: dict[str, int] = {}
        self._looked_ns: int | None = None

    def measure(self, look: DriverLook, handle: Any) -> dict[str, int]:
        """Nanoseconds by reason, cumulative. Raises NvmlRefusal when no reason can be read; GpuLost."""
        before_ns, self._looked_ns = self._looked_ns, look.now_ns
        counted, codes = _counters(look, handle)
        counted = {name: count for name, count in counted.items() if name not in self._added_ns}
        self._counted |= counted.keys()
        for name in [
            name for name, code in codes.items() if code in _UNCOUNTED and name not in self._counted
        ]:
            self._added_ns.setdefault(name, 0)
        added = self._add(look.now_ns, before_ns, handle) if self._added_ns else {}
        if not counted and not added:
            raise NvmlRefusal(next(iter(codes.values()), CORRUPT))
        return counted | added

    def _add(self, now_ns: int, before_ns: int | None, handle: Any) -> dict[str, int]:
        try:
            bits = call_newest(
                (pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle),
                (pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
            )
        except NvmlRefusal:
            return {}
        span_ns = 0 if before_ns is None else min(now_ns - before_ns, LONGEST_GUESS_NS)
        for name in self._added_ns:
            self._added_ns[name] += span_ns if bits & REASONS[name].bit else 0
        return dict(self._added_ns)


def _counters(look: DriverLook, handle: Any) -> tuple[dict[str, int], dict[str, str]]:
    """The reasons that the driver counts, and the error of each of the others."""
    try:
        values = call(pynvml.nvmlDeviceGetFieldValues, handle, _FIELDS)
    except NvmlRefusal as refusal:
        return {}, dict.fromkeys(REASONS, refusal.code)
    counted, codes = {}, {}
    for name, value in zip(REASONS, values, strict=True):
        if value.nvmlReturn != pynvml.NVML_SUCCESS:
            codes[name] = code_name(value.nvmlReturn)
            continue
        count = _count(value)
        if count is not None and 0 <= count <= LARGEST_COUNT:
            counted[name] = count
        else:
            look.drop()
            codes[name] = CORRUPT
    return counted, codes


def _count(value: Any) -> int | None:
    """None where the driver gives a type of value that is not known."""
    try:
        return int(value_of(value.valueType, value.value))
    except NvmlRefusal:
        return None


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
