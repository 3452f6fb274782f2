"""The values that reports are made of. Integers until they are displayed; ``frame_sums`` adds them up.

Field names carry the unit, and the renderers rely on it: ``nano`` and ``*_nano`` are nano-units of the
report's currency, ``board_ms`` and ``*_board_ms`` are GPU milliseconds (1 GPU-hour = 3,600,000).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction

from gpucost.contract.frames import PEAKS, SIGNAL_MEASURES

MEASURES = ("board_ms", "nano", "unpriced_ms", *SIGNAL_MEASURES)
STEP = "step_start_ms"


@dataclass(frozen=True, slots=True)
class CostAmount:
    """GPU time and its cost. ``nano`` is None when nothing of it has a price; time without a price is counted
    apart."""

    board_ms: int
    nano: int | None
    unpriced_board_ms: int = 0

    def __add__(self, other: CostAmount) -> CostAmount:
        known = [part.nano for part in (self, other) if part.nano is not None and part != NOTHING]
        unknown = any(part.nano is None for part in (self, other))
        return CostAmount(
            self.board_ms + other.board_ms,
            None if unknown and not known else sum(known),
            self.unpriced_board_ms + other.unpriced_board_ms,
        )


NOTHING = CostAmount(0, 0)


@dataclass(frozen=True, slots=True)
class UsageSignal:
    """One signal over held time. ``mean`` is over the observed part only; ``coverage`` = observed / held.

    ``over_board_ms`` is what pods did on shared GPUs beyond their part: it is not in ``active_board_ms``.
    """

    mean: Fraction
    coverage: Fraction | None
    active_board_ms: int
    observed_board_ms: int
    over_board_ms: int


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """Memory in use of what was held: ``mean`` is used / total, ``peak_mib`` the most of any one GPU."""

    mean: Fraction
    coverage: Fraction | None
    peak_mib: int | None
    observed_board_ms: int


@dataclass(frozen=True, slots=True)
class EnergyUsage:
    """Energy of the held part of the GPUs; ``mean_w`` is watts per GPU, over the observed part."""

    mj: int
    mean_w: Fraction | None
    coverage: Fraction | None
    observed_board_ms: int


@dataclass(frozen=True, slots=True)
class GpuUtilisation:
    """Three signals, which are never combined, memory and energy. What was never observed is None,
    never 0."""

    busy: UsageSignal | None
    sm: UsageSignal | None
    tensor: UsageSignal | None
    memory: MemoryUsage | None
    energy: EnergyUsage | None


@dataclass(frozen=True, slots=True)
class CostChange:
    """Held time compared with that of the previous month, adjustments of either left out. ``nano`` is None
    when either cost is; ``relative`` is None when the previous cost is 0."""

    previous: CostAmount
    board_ms: int
    nano: int | None
    relative: Fraction | None

    @classmethod
    def between(cls, now: CostAmount, previous: CostAmount) -> CostChange:
        nano = None if now.nano is None or previous.nano is None else now.nano - previous.nano
        relative = Fraction(nano, previous.nano) if nano is not None and previous.nano else None
        return cls(previous, now.board_ms - previous.board_ms, nano, relative)


@dataclass(frozen=True, slots=True)
class MeasureSums:
    """The measures of one group of ledger rows: sums, and the largest of PEAKS."""

    board_ms: int
    nano: int | None
    unpriced_ms: int
    observed_ms: int | None = None
    busy_ms: int | None = None
    sm_observed_ms: int | None = None
    sm_active_ms: int | None = None
    tensor_active_ms: int | None = None
    tensor_observed_ms: int | None = None
    memory_observed_ms: int | None = None
    memory_used_mib_s: int | None = None
    memory_total_mib_s: int | None = None
    memory_peak_mib: int | None = None
    energy_observed_ms: int | None = None
    energy_mj: int | None = None
    busy_over_ms: int | None = None
    sm_over_ms: int | None = None
    tensor_over_ms: int | None = None

    @property
    def amount(self) -> CostAmount:
        return CostAmount(self.board_ms, self.nano, self.unpriced_ms)

    @property
    def utilisation(self) -> GpuUtilisation:
        return GpuUtilisation(
            self._signal(self.busy_ms, self.observed_ms, self.busy_over_ms),
            self._signal(self.sm_active_ms, self.sm_observed_ms, self.sm_over_ms),
            self._signal(self.tensor_active_ms, self.tensor_observed_ms, self.tensor_over_ms),
            self._memory(),
            self._energy(),
        )

    def _signal(
        self, active_ms: int | None, observed_ms: int | None, over_ms: int | None
    ) -> UsageSignal | None:
        if active_ms is None or not observed_ms:
            return None
        mean, coverage = Fraction(active_ms, observed_ms), ratio(observed_ms, self.board_ms)
        return UsageSignal(mean, coverage, active_ms, observed_ms, over_ms or 0)

    def _memory(self) -> MemoryUsage | None:
        mean, observed_ms = ratio(self.memory_used_mib_s, self.memory_total_mib_s), self.memory_observed_ms
        if mean is None or not observed_ms:
            return None
        return MemoryUsage(mean, ratio(observed_ms, self.board_ms), self.memory_peak_mib, observed_ms)

    def _energy(self) -> EnergyUsage | None:
        if self.energy_mj is None or not self.energy_observed_ms:
            return None
        # A millijoule per millisecond is a watt.
        watts, coverage = (
            ratio(self.energy_mj, self.energy_observed_ms),
            ratio(self.energy_observed_ms, self.board_ms),
        )
        return EnergyUsage(self.energy_mj, watts, coverage, self.energy_observed_ms)


def added_sums(parts: Sequence[MeasureSums]) -> MeasureSums:
    """The sum of several groups; a measure that is None in all of them stays None."""
    if not parts:
        return EMPTY
    found: dict[str, int | None] = {}
    for field in fields(MeasureSums):
        known = [value for value in (getattr(part, field.name) for part in parts) if value is not None]
        add = max if field.name in PEAKS else sum
        found[field.name] = add(known) if known else None
    return MeasureSums(**found)  # type: ignore[arg-type]


EMPTY = MeasureSums(0, 0, 0)


def ratio(part: int | None, whole: int | None) -> Fraction | None:
    """``part / whole``; None when either is missing or the whole is 0."""
    return None if part is None or not whole else Fraction(part, whole)


def named(keys: Sequence[str], values: Iterable[str]) -> Mapping[str, str]:
    return dict(zip(keys, values, strict=True))


def costliest_first(amount: CostAmount, key: object) -> tuple[int, int, object]:
    """The order of every table: by cost, then GPU time, then key. Rows without a price rank as 0."""
    return (-(amount.nano or 0), -amount.board_ms, key)
