"""For how long a board was slowed down, by reason: the driver's counters, or the reasons of the instant."""

from __future__ import annotations

from typing import Any, NamedTuple

import pynvml

from gpucost_gpu_exporter.driver.activity import LONGEST_GUESS_NS
from gpucost_gpu_exporter.driver.calls import LARGEST_COUNT, Look, Refused, call, call_newest, value_of


class _Reason(NamedTuple):
    """A field that counts nanoseconds, and the bit of the event reasons that says the same of an instant."""

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
_FIELDS = [reason.field for reason in REASONS.values()]


class Throttling:
    """Of one board. What the driver does not count is added up here, from 0 when this process started."""

    def __init__(self) -> None:
        self._added_ns: dict[str, int] = {}
        self._looked_ns: int | None = None

    def measure(self, look: Look, handle: Any) -> dict[str, int]:
        """Nanoseconds by reason, cumulative. Raises Refused when no reason can be read; BoardLost."""
        before_ns, self._looked_ns = self._looked_ns, look.now_ns
        counted, code = _counters(look, handle)
        uncounted = [name for name in REASONS if name not in counted]
        if not uncounted:
            return counted
        try:
            bits = call_newest(
                (pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle),
                (pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
            )
        except Refused:
            if counted:
                return counted
            raise Refused(code) from None
        span_ns = 0 if before_ns is None else min(look.now_ns - before_ns, LONGEST_GUESS_NS)
        for name in uncounted:
            added_ns = span_ns if bits & REASONS[name].bit else 0
            self._added_ns[name] = self._added_ns.get(name, 0) + added_ns
        return counted | {name: self._added_ns[name] for name in uncounted}


def _counters(look: Look, handle: Any) -> tuple[dict[str, int], str]:
    """The reasons that the driver counts, and why it does not count the others."""
    try:
        values = call(pynvml.nvmlDeviceGetFieldValues, handle, _FIELDS)
    except Refused as refusal:
        return {}, refusal.code
    counted = {}
    for name, value in zip(REASONS, values, strict=True):
        if value.nvmlReturn != pynvml.NVML_SUCCESS:
            continue
        count = int(value_of(value.valueType, value.value))
        if 0 <= count <= LARGEST_COUNT:
            counted[name] = count
        else:
            look.drop()
    return counted, "NOT_SUPPORTED"
