"""For how long a board was slowed down, by reason: the driver's counters, or the reasons of the instant."""

from __future__ import annotations

from typing import Any, NamedTuple

import pynvml

from gpucost_gpu_exporter.driver.activity import LONGEST_GUESS_NS
from gpucost_gpu_exporter.driver.calls import (
    CORRUPT,
    LARGEST_COUNT,
    UNSUPPORTED,
    Look,
    Refused,
    call,
    call_newest,
    code_name,
    value_of,
)


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
# Drivers from before a field say that its number is no argument.
_UNCOUNTED = UNSUPPORTED | {"INVALID_ARGUMENT"}
_FIELDS = [reason.field for reason in REASONS.values()]


class Throttling:
    """Of one board. What the driver does not count is added up here, from 0 when this process started.

    A reason stays with one of the two: a counter that fails for once is left out, so that no reader takes
    the switch for a counter that was set back.
    """

    def __init__(self) -> None:
        self._counted: set[str] = set()
        self._added_ns: dict[str, int] = {}
        self._looked_ns: int | None = None

    def measure(self, look: Look, handle: Any) -> dict[str, int]:
        """Nanoseconds by reason, cumulative. Raises Refused when no reason can be read; BoardLost."""
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
            raise Refused(next(iter(codes.values()), CORRUPT))
        return counted | added

    def _add(self, now_ns: int, before_ns: int | None, handle: Any) -> dict[str, int]:
        try:
            bits = call_newest(
                (pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle),
                (pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
            )
        except Refused:
            return {}
        span_ns = 0 if before_ns is None else min(now_ns - before_ns, LONGEST_GUESS_NS)
        for name in self._added_ns:
            self._added_ns[name] += span_ns if bits & REASONS[name].bit else 0
        return dict(self._added_ns)


def _counters(look: Look, handle: Any) -> tuple[dict[str, int], dict[str, str]]:
    """The reasons that the driver counts, and the error of each of the others."""
    try:
        values = call(pynvml.nvmlDeviceGetFieldValues, handle, _FIELDS)
    except Refused as refusal:
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
    except Refused:
        return None
