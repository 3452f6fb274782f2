"""Numbers that stay the same for a while: sums of stretches as arrays, to add and integrate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpucost.attribution.deal import Flags, Ints
from gpucost.detectors.activity import Floats


@dataclass(frozen=True)
class Series:
    """A number over time: ``value[n]`` from ``time[n]`` (ms, rising) to the next one, the last for ever, and
    0 before the first. Sums of whole units are exact."""

    time: Ints
    value: Floats

    @classmethod
    def summed(cls, start: Ints, end: Ints, amount: Floats) -> Series:
        """At every instant the sum of ``amount`` over the stretches ``[start, end)`` it lies in."""
        real = (start < end) & (amount != 0)
        time = np.concatenate([start[real], end[real]])
        times, at = np.unique(time, return_inverse=True)
        change = np.concatenate([amount[real], -amount[real]])
        value = np.cumsum(np.bincount(at, weights=change, minlength=len(times)), dtype=np.float64)
        return cls(times.astype(np.int64), value)

    @classmethod
    def within(cls, start: Ints, end: Ints) -> Series:
        """1 in stretches that do not overlap, else 0."""
        return cls.summed(start, end, np.ones(len(start)))

    def at(self, instants: npt.ArrayLike) -> Floats:
        """Its value at each of some instants."""
        position = np.searchsorted(self.time, np.asarray(instants, dtype=np.int64), "right")
        found: Floats = np.concatenate([np.zeros(1), self.value])[position]
        return found

    def parts(self, start_ms: int, end_ms: int) -> tuple[Ints, Ints, Floats]:
        """(starts, ends, values) of the stretches of ``[start, end)`` in which it stays the same."""
        if start_ms >= end_ms:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
        inside = self.time[(self.time > start_ms) & (self.time < end_ms)]
        starts = np.concatenate([np.array([start_ms], np.int64), inside])
        ends = np.append(starts[1:], end_ms).astype(np.int64)
        return starts, ends, self.at(starts)

    def integral(self, start_ms: int, end_ms: int) -> float:
        """Its value times milliseconds in ``[start, end)``."""
        starts, ends, values = self.parts(start_ms, end_ms)
        return float(((ends - starts) * values).sum())

    def mean(self, start_ms: int, end_ms: int) -> float:
        return self.integral(start_ms, end_ms) / (end_ms - start_ms)

    def most(self, start_ms: int, end_ms: int) -> float:
        return float(self.parts(start_ms, end_ms)[2].max(initial=0.0))

    def stretches(self, start_ms: int, end_ms: int) -> tuple[Ints, Ints]:
        """(starts, ends) of the longest stretches of ``[start, end)`` in which it is above 0."""
        starts, ends, values = self.parts(start_ms, end_ms)
        above = np.concatenate([np.zeros(1, bool), values > 0, np.zeros(1, bool)])
        begun, over = above[1:-1] & ~above[:-2], above[1:-1] & ~above[2:]
        return starts[begun], ends[over]

    def quantile(self, part: float, start_ms: int, end_ms: int, where: Series) -> float:
        """The least value that it does not exceed for ``part`` of the time of ``[start, end)`` in which
        ``where`` is above 0; NaN without any such time."""
        both = combined(lambda value, known: np.where(known > 0, value, np.nan), self, where)
        starts, ends, values = both.parts(start_ms, end_ms)
        known = (~np.isnan(values)) & (where.at(starts) > 0)
        if not known.any():
            return float("nan")
        values, length = values[known], (ends - starts)[known]
        order = np.argsort(values, kind="stable")
        reached = np.cumsum(length[order])
        # Half a millisecond forgives what 0.95 x total is off by.
        return float(values[order][np.searchsorted(reached, part * reached[-1] - 0.5)])


def combined(function: Callable[..., Floats | Flags], *series: Series) -> Series:
    """``function`` of the values of some series at every instant: it is given arrays, and gives one."""
    # Not np.unique: these are a few sorted runs, which a stable sort merges.
    times = np.sort(np.concatenate([each.time for each in series]), kind="stable")
    times = times[np.append(True, times[1:] != times[:-1])[: len(times)]]
    return Series(times, np.asarray(function(*(each.at(times) for each in series)), dtype=np.float64))


def least(*series: Series) -> Series:
    return combined(lambda *values: np.minimum.reduce(values), *series)


def difference(one: Series, *others: Series) -> Series:
    """``one`` less the ``others``, never below 0."""
    return combined(lambda value, *rest: np.maximum(value - sum(rest), 0.0), one, *others)
