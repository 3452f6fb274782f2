"""For how long a board ran at least one kernel: the driver's own samples, each over the time it stands for.

nvmlDeviceGetSamples hands out a ring buffer, so nothing is missed between two looks, and short jobs count.
"""

from __future__ import annotations

from typing import Any

import pynvml

from gpucost_gpu_exporter.driver.calls import CORRUPT, UNSUPPORTED, Look, Refused, call, value_of
from gpucost_gpu_exporter.readings import Activity, Source

LONGEST_SAMPLE_US = 2_000_000
LONGEST_GUESS_NS = 1_500_000_000
"""A value of one instant stands for no more time than this, however long ago the look before was."""
_FIRST_SPACING_US = 166_667
_SILENCE_NS = 10_000_000_000
_NS_PER_PERCENT_OF_US = 10


class Busy:
    """Busy time of one board. ``last_us`` is the driver's time of the last sample seen, None before any.

    Given ``last_us`` of an earlier process, the first look reaches back to it as far as the buffer goes.
    """

    def __init__(self, last_us: int | None = None) -> None:
        self.last_us = last_us
        self._spacing_us = _FIRST_SPACING_US
        self._heard_ns: int | None = None
        self._looked_ns: int | None = None

    def measure(self, look: Look, handle: Any) -> Activity | None:
        """Busy time since the look before; None while there is nothing new. Raises Refused, BoardLost."""
        before_ns, self._looked_ns = self._looked_ns, look.now_ns
        try:
            samples = _samples(handle, self.last_us or 0)
        except Refused as refusal:
            if refusal.code not in UNSUPPORTED:
                raise
            self.last_us = None
            return _of_rate(look, handle, before_ns)
        return self._of_samples(look, samples)

    def _of_samples(self, look: Look, samples: list[tuple[int, int | float]]) -> Activity | None:
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
        return Activity(observed_us * 1000, percent_us * _NS_PER_PERCENT_OF_US, Source.NVML_SAMPLES)

    def _covered(self, since_us: int) -> int:
        if since_us > LONGEST_SAMPLE_US:
            return self._spacing_us
        self._spacing_us = since_us
        return since_us

    def _start_over_when_silent(self, now_ns: int) -> None:
        """The driver stamps with the wall clock: set back, it would hand out nothing until it caught up."""
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
    except Refused as refusal:
        if refusal.code == "NOT_FOUND":
            return []
        raise
    return sorted((sample.timeStamp, value_of(kind, sample.sampleValue)) for sample in samples)


def _of_rate(look: Look, handle: Any, before_ns: int | None) -> Activity | None:
    percent = call(pynvml.nvmlDeviceGetUtilizationRates, handle).gpu
    if percent > 100:
        look.drop()
        raise Refused(CORRUPT)
    if before_ns is None:
        return None
    observed_ns = min(look.now_ns - before_ns, LONGEST_GUESS_NS)
    return Activity(observed_ns, observed_ns * percent // 100, Source.NVML_UTILIZATION)
