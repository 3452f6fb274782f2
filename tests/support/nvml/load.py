"""How a steady load moves a GPU's cumulative truths forward. No clock: the time that passed is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.support.nvml.boards import FakeBoard, GpmCounters, ProcessSample, UtilizationSample

Device = str | tuple[str, int]
# NVML says "between 1/6 second and 1 second, depending on the product" of the window of a sample.
SAMPLE_PERIOD_NS = 10**9 // 6
IDLE_WATTS = 70.0


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """A steady load. ``busy``, ``sm`` and ``tensor`` are 0 to 1 of the device's time.

    ``watts`` is the GPU's draw, and means nothing on a MIG instance. ``processes`` is each process's SM
    percentage, 0 to 100. ``throttled`` is the part of the time, 0 to 1, by throttle field id.
    """

    busy: float = 0.0
    sm: float = 0.0
    tensor: float = 0.0
    watts: float = IDLE_WATTS
    processes: Mapping[int, float] = field(default_factory=dict)
    throttled: Mapping[int, float] = field(default_factory=dict)


IDLE = DeviceLoad()
# The type of a mapping's keys is exact, so a mapping of UUIDs alone is not one of devices.
Loads = Mapping[Device, DeviceLoad] | Mapping[str, DeviceLoad] | Mapping[tuple[str, int], DeviceLoad]


def check_devices(boards: Iterable[FakeBoard], loads: Mapping[Device, DeviceLoad]) -> None:
    """Raise ``KeyError`` for a load on a device that is not there."""
    known: set[Device] = set()
    for board in boards:
        known.add(board.uuid)
        known.update((board.uuid, instance.gpu_instance) for instance in board.instances)
    for device in loads:
        if device not in known:
            raise KeyError(device)


def advance_board(board: FakeBoard, now_ns: int, dt_ns: int, loads: Mapping[Device, DeviceLoad]) -> None:
    """Move one GPU and its MIG instances to ``now_ns``, ``dt_ns`` after where they were."""
    load = loads.get(board.uuid, IDLE)
    _advance_energy(board, dt_ns, load)
    _advance_gpm(board.gpm, dt_ns, load)
    for instance in board.instances:
        _advance_gpm(instance.gpm, dt_ns, loads.get((board.uuid, instance.gpu_instance), IDLE))
    for reason, part in load.throttled.items():
        board.throttled_ns[reason] += round(part * dt_ns)
    if not board.mig:
        _add_samples(board, now_ns, dt_ns, load)


def _advance_energy(board: FakeBoard, dt_ns: int, load: DeviceLoad) -> None:
    if board.watts is not None:
        board.watts = load.watts
    if board.energy_mj is not None:
        nanojoules = round(load.watts * dt_ns) + round(board.carried.get("energy", 0))
        millijoules, rest = divmod(nanojoules, 10**6)
        board.energy_mj += millijoules
        board.carried["energy"] = rest


def _advance_gpm(counters: GpmCounters | None, dt_ns: int, load: DeviceLoad) -> None:
    if counters is not None:
        counters.elapsed_ns += dt_ns
        counters.graphics_ns += round(load.busy * dt_ns)
        counters.sm_ns += round(load.sm * dt_ns)
        counters.tensor_ns += round(load.tensor * dt_ns)


def _add_samples(board: FakeBoard, now_ns: int, dt_ns: int, load: DeviceLoad) -> None:
    """Equal parts of about one sample period, at least one; each sample is stamped with its part's end."""
    parts = max(1, round(dt_ns / SAMPLE_PERIOD_NS))
    for part in range(parts):
        ends_us = (now_ns - dt_ns * (parts - 1 - part) // parts) // 1000
        length = dt_ns / parts
        percent = _whole_percent(board, "busy", 100 * load.busy, length)
        board.samples.append(UtilizationSample(ends_us, percent))
        for pid, share in load.processes.items():
            used = _whole_percent(board, str(pid), share, length)
            if used:  # the driver lists only processes that did something in the period
                board.process_samples.append(ProcessSample(ends_us, pid, used))


def _whole_percent(board: FakeBoard, name: str, percent: float, length_ns: float) -> int:
    """The driver counts in whole percent: what rounding took or gave is carried to the next sample."""
    wanted = percent + board.carried.get(name, 0.0) / length_ns
    shown = min(100, max(0, round(wanted)))
    board.carried[name] = (wanted - shown) * length_ns
    return shown
