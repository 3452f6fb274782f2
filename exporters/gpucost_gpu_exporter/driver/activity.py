"""For how long a GPU ran at least one kernel, and for how long it was slowed down, by reason.

Busy time is from the driver's own samples, each over the time it stands for: nvmlDeviceGetSamples hands out a
ring buffer, so nothing is missed between two reads, and short jobs count. Throttling is from the driver's
counters, or from the reasons at the instant of a read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pynvml

from gpucost_gpu_exporter.driver.calls import (
    CORRUPT,
    LARGEST_COUNT,
    UNSUPPORTED,
    DriverLook,
    NvmlRefusal,
    call,
    call_newest,
    code_name,
    value_of,
)
from gpucost_gpu_exporter.model.readings import SignalActivity, SignalSource

LONGEST_SAMPLE_US = 2_000_000
LONGEST_GUESS_NS = 1_500_000_000
"""A sample of one instant stands for at most this much time, however long ago the last read was."""
_FIRST_SPACING_US = 166_667
_SILENCE_NS = 10_000_000_000
_NS_PER_PERCENT_OF_US = 10


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
