"""What the meter remembers of a GPU between two looks. Pure; survives a restart as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple, Self

from gpucost.contract.gpu_metrics import AttributionMethod
from gpucost_gpu_exporter.metering.accounts import GpuUser
from gpucost_gpu_exporter.model.holdings import SECOND_NS, DeviceKey
from gpucost_gpu_exporter.model.readings import (
    GpuReading,
    GpuSignal,
    InstanceReading,
    NodeReading,
    SignalSource,
)

# A shorter idle stretch shows the driver's counter steps more than the GPU.
IDLE_STRETCH_NS = 10 * SECOND_NS
# More than any GPU can draw; a step beyond it is a broken counter.
MAX_WATTS = 10_000


class MeteredDevice(NamedTuple):
    """A GPU or MIG instance and its share of the GPU; ``reading`` is None for what cannot be read."""

    key: DeviceKey
    part: Fraction
    reading: GpuReading | InstanceReading | None


@dataclass(slots=True)
class IdlePower:
    """What a GPU draws with nothing running on it, learnt from its latest idle stretch."""

    milliwatts: int | None = None
    stretch_ns: int = 0
    stretch_mj: int = 0

    def learn(self, is_idle: bool, ns: int, millijoules: int) -> None:
        if not is_idle:
            self.stretch_ns = self.stretch_mj = 0
            return
        self.stretch_ns += ns
        self.stretch_mj += millijoules
        if self.stretch_ns >= IDLE_STRETCH_NS:
            self.milliwatts = self.stretch_mj * SECOND_NS // self.stretch_ns
            self.stretch_ns = self.stretch_mj = 0

    def of(self, ns: int, millijoules: int) -> int:
        """The part of ``millijoules`` used in ``ns`` that an idle GPU would have used."""
        return min(millijoules, (self.milliwatts or 0) * ns // SECOND_NS)


class ProcessWeightSample(NamedTuple):
    """The process weights of one look, and how long it was since the look before."""

    at_ns: int
    elapsed_ns: int
    weights: Mapping[GpuUser, int]


@dataclass(slots=True)
class DeviceState:
    """Of one device: how much of the time that passed its signals may still cover, and its latest weights.

    ``credit_ns`` is GPU time of the device that a signal has not covered yet: no signal is observed for
    longer than the device was there, whichever sources took turns. ``weighed`` are the process weights of the
    last seconds. ``owners`` counts the processes on it by kind of owner.
    """

    credit_ns: dict[GpuSignal, int] = field(default_factory=dict)
    sources: dict[GpuSignal, str] = field(default_factory=lambda: dict.fromkeys(GpuSignal, SignalSource.NONE))
    method: AttributionMethod = AttributionMethod.NONE
    weighed: list[ProcessWeightSample] = field(default_factory=list)
    owners: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class GpuState:
    """Of one GPU. ``seen`` is the last reading in which it answered; ``answered_ns`` is when.

    ``energy_mj`` is the driver's total at the last look that had one, at ``energy_ns``. ``quiet_ns`` is since
    when the GPU was seen idle without a break.
    """

    seen: GpuReading
    answered_ns: int
    lost: str = ""
    energy_mj: int | None = None
    energy_ns: int = 0
    energy_source: str = SignalSource.NONE
    throttled_ns: dict[str, int] = field(default_factory=dict)
    epoch: int = 0
    idle: IdlePower = field(default_factory=IdlePower)
    quiet_ns: int | None = None
    devices: dict[str, DeviceState] = field(default_factory=dict)

    def device(self, key: DeviceKey) -> DeviceState:
        return self.devices.setdefault(key.gpu_instance, DeviceState())

    def answered(self, board: GpuReading, now_ns: int) -> None:
        """The GPU was read. An instance that is gone, or has another size, begins anew under its id."""
        before = {device.key: device.part for device in self.layout()} if self.seen.mig or board.mig else None
        self.seen, self.answered_ns = board, now_ns
        if before is not None:
            same = {key.gpu_instance for key, part, _ in self.layout() if before.get(key) == part}
            self.devices = {number: state for number, state in self.devices.items() if number in same}

    def layout(self) -> Iterator[MeteredDevice]:
        """The devices of the GPU now; without a reading while the GPU does not answer."""
        if not self.seen.mig:
            yield MeteredDevice(DeviceKey(self.seen.uuid), Fraction(1), None if self.lost else self.seen)
            return
        for instance in self.seen.instances:
            key = DeviceKey(self.seen.uuid, str(instance.gpu_instance))
            part = Fraction(instance.slices, instance.of_slices)
            yield MeteredDevice(key, part, None if self.lost else instance)

    def unpartitioned(self) -> Fraction:
        """The share of the GPU that no MIG instance has; 0 without MIG."""
        return max(Fraction(0), 1 - sum((device.part for device in self.layout()), Fraction(0)))

    def energy_step(self, total_mj: int, source: str, now_ns: int) -> int | None:
        """Millijoules since the last look that had a total, out of the driver's total since it was loaded.

        None at the first look, after a change of source and for a step no GPU can make. A total that fell was
        reset with the driver: what it shows was used since then. One that stands still was not updated, as
        dcgm-exporter's are not for 30 s: the step lasts until it moves.
        """
        before, known_source = self.energy_mj, self.energy_source
        if before == total_mj and known_source == source:
            return 0
        span_ns = now_ns - self.energy_ns
        self.energy_mj, self.energy_ns, self.energy_source = total_mj, now_ns, source
        if before is None or known_source != source:
            return None
        if total_mj < before:
            self.epoch += 1
            before = 0
        step = total_mj - before
        return step if step * SECOND_NS <= MAX_WATTS * 1_000 * max(span_ns, SECOND_NS) else None

    def forget_totals(self) -> None:
        """Drop the totals: what the driver counts until the next look is attributed to no one, since it is
        too long ago."""
        self.energy_mj, self.throttled_ns = None, {}

    def throttled_step(self, totals: Mapping[str, int]) -> dict[str, int]:
        """Nanoseconds since the last look by reason; nothing for a reason seen for the first time."""
        before, self.throttled_ns = self.throttled_ns, {**self.throttled_ns, **totals}
        steps = {reason: total - before[reason] for reason, total in totals.items() if reason in before}
        return {reason: step if step >= 0 else totals[reason] for reason, step in steps.items()}

    def to_json(self) -> dict[str, Any]:
        """What outlives the process: identity, layout and the driver's totals; not weights or credits."""
        seen = replace(self.seen, activity={}, processes=None)
        kept = NodeReading("", (replace(seen, instances=tuple(map(_bare, seen.instances))),)).to_json()
        return {
            "seen": kept,
            "answered_ns": self.answered_ns,
            "lost": self.lost,
            "energy_mj": self.energy_mj,
            "energy_ns": self.energy_ns,
            "energy_source": self.energy_source,
            "throttled_ns": self.throttled_ns,
            "epoch": self.epoch,
            "idle": asdict(self.idle),
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError for what ``to_json`` did not write."""
        [seen] = NodeReading.from_json(found["seen"]).boards
        return cls(**{**found, "seen": seen, "idle": IdlePower(**found["idle"])})


def _bare(instance: InstanceReading) -> InstanceReading:
    return replace(instance, activity={}, processes=None)
